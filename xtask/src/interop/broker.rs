//! The broker under test, as a process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Failure;

/// Longest time until a broker is ready, and until it has ended. Three nodes take some time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval of these checks.
const POLL: Duration = Duration::from_millis(20);

/// The last lines of a broker's log that are printed when it failed.
const LOG_LINES: usize = 12;

/// The listeners of a broker whose suites don't say otherwise.
const LISTENERS: [&str; 5] = ["mqtt", "mqtts", "ws", "wss", "mqtt+quic"];

/// How a broker is started.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    /// Arguments before `serve`.
    pub(super) before: Vec<OsString>,
    /// The search path, where it is not the caller's.
    pub(super) search_path: Option<OsString>,
}

impl Launch {
    /// The broker's own program.
    pub(super) const fn program(program: PathBuf) -> Self {
        Self {
            program,
            before: Vec::new(),
            search_path: None,
        }
    }
}

/// A broker that is ready. Killed when dropped.
#[derive(Debug)]
pub(super) struct Broker {
    child: Child,
    ready_file: PathBuf,
    certificate: PathBuf,
    log: PathBuf,
}

impl Broker {
    /// Starts a broker in an empty folder and waits until it is ready.
    pub(super) fn start(launch: &Launch, serve: &[String], folder: &Path) -> Result<Self, Failure> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        let ready_file = folder.join("ready.json");
        let log = folder.join("log");
        let output = File::create(&log)?;
        let mut command = Command::new(&launch.program);
        if let Some(path) = &launch.search_path {
            command.env("PATH", path);
        }
        command
            .args(&launch.before)
            .arg("serve")
            .arg("--ready-file")
            .arg(&ready_file)
            .arg("--data-dir")
            .arg(folder.join("data"))
            .current_dir(folder);
        // Nothing of the caller's own broker.
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("STERNA_"))
            {
                command.env_remove(name);
            }
        }
        if serve.is_empty() {
            for scheme in LISTENERS {
                command
                    .arg("--listen")
                    .arg(format!("{scheme}://127.0.0.1:0"));
            }
        } else {
            command.args(serve);
        }
        command
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output);
        let child = command
            .spawn()
            .map_err(|error| Failure(format!("{}: {error}", launch.program.display())))?;
        let mut broker = Self {
            child,
            ready_file,
            certificate: PathBuf::new(),
            log,
        };
        broker.certificate = broker.wait_until_ready()?;
        Ok(broker)
    }

    /// The file in which the broker names its listeners.
    pub(super) fn ready_file(&self) -> &Path {
        &self.ready_file
    }

    /// The certificate that its clients should trust; empty where it has none.
    pub(super) fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The broker's end, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<String>, Failure> {
        Ok(self
            .child
            .try_wait()?
            .map(|status| self.with_log(&status.to_string())))
    }

    /// Asks the broker to end; returns the fault of its end, if there is one.
    pub(super) fn stop(mut self) -> Result<Option<String>, Failure> {
        let asked = Command::new("kill")
            .arg(self.child.id().to_string())
            .status()?;
        if !asked.success() {
            return Ok(Some("it had ended already".to_owned()));
        }
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                let text = self.with_log(&status.to_string());
                return Ok((!status.success()).then_some(text));
            }
            sleep(POLL);
        }
        Ok(Some(format!("still there after {} s", PATIENCE.as_secs())))
    }

    fn wait_until_ready(&mut self) -> Result<PathBuf, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // It may be seen half written; the next look finds the rest.
            if let Some(ready) = fs::read_to_string(&self.ready_file)
                .ok()
                .and_then(|text| serde_json::from_str::<Value>(&text).ok())
            {
                return Ok(certificate(&ready));
            }
            if let Some(ending) = self.ended()? {
                return Err(Failure(format!("it ended before it was ready: {ending}")));
            }
            if Instant::now() > deadline {
                let text = format!("not ready after {} s", PATIENCE.as_secs());
                return Err(Failure(self.with_log(&text)));
            }
            sleep(POLL);
        }
    }

    fn with_log(&self, text: &str) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n    ");
        format!(
            "{text}\n    {last}\n    (all of it in {})",
            self.log.display()
        )
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path behind the first `certificate` in the broker's file.
fn certificate(ready: &Value) -> PathBuf {
    fn search(value: &Value) -> Option<&str> {
        match value {
            Value::Object(fields) => fields
                .get("certificate")
                .and_then(Value::as_str)
                .or_else(|| fields.values().find_map(search)),
            Value::Array(items) => items.iter().find_map(search),
            _ => None,
        }
    }
    PathBuf::from(search(ready).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(name: &str, text: &str) -> (PathBuf, PathBuf) {
        let folder =
            std::env::temp_dir().join(format!("xtask-broker-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("sterna");
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (program, folder)
    }

    fn start(program: &Path, serve: &[String], folder: &Path) -> Result<Broker, Failure> {
        let launch = Launch::program(program.to_owned());
        loop {
            let result = Broker::start(&launch, serve, &folder.join("run"));
            // Another test's child may hold the script open for writing until it executes.
            match &result {
                Err(Failure(why)) if why.contains("Text file busy") => sleep(POLL),
                _ => return result,
            }
        }
    }

    #[test]
    fn a_broker_is_started_and_stopped() {
        let (program, folder) = script(
            "good",
            r#"echo '{"listeners": [{"url": "mqtt://127.0.0.1:1"}], "certificate": "/x/ca.pem"}' > "$3"
trap 'exit 0' TERM; while :; do sleep 0.05; done"#,
        );
        let mut broker = start(&program, &["--x".to_owned()], &folder).unwrap();
        assert_eq!(broker.certificate(), Path::new("/x/ca.pem"));
        assert!(broker.ended().unwrap().is_none());
        assert_eq!(broker.stop().unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_broker_that_does_not_come_up_is_told_with_its_log() {
        let (program, folder) = script("bad", "echo port taken; exit 1");
        let Failure(why) = start(&program, &[], &folder).unwrap_err();
        assert!(
            why.contains("exit status: 1") && why.contains("port taken"),
            "{why}"
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
