//! A trial of a static program, on this machine or in an emulator of its own. The program serves, and
//! carries a message from a publisher over QUIC to a reader over TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Machine, emptied, tool};
use crate::Failure;
use crate::command::output;
use crate::workspace::on_path;

/// Time until the program is ready. An emulator is slow.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
const MESSAGE: &str = "from one end to the other";

/// How a program is run.
struct Runner {
    emulator: Option<&'static str>,
    program: PathBuf,
}

impl Runner {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.emulator.map_or_else(
            || Command::new(&self.program),
            |emulator| {
                let mut command = Command::new(emulator);
                command.arg(&self.program);
                command
            },
        );
        command.args(arguments);
        command
    }
}

/// The broker; ends with this value.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The emulator of a machine, by Debian's package `qemu-user-static`; `None` for this machine.
fn emulator(triple: &str) -> Option<&'static str> {
    let machine = triple.split('-').next().unwrap_or_default();
    match machine {
        same if same == std::env::consts::ARCH => None,
        "x86_64" => Some("qemu-x86_64-static"),
        "aarch64" => Some("qemu-aarch64-static"),
        _ => Some("qemu-arm-static"),
    }
}

/// Tries the program of a machine; says how it was run, or why it was not.
pub(super) fn run(machine: Machine, program: &Path, folder: &Path) -> Result<String, Failure> {
    let headers = tool("binutils", Command::new("readelf").arg("-lW").arg(program))?;
    if headers.contains("INTERP") {
        return Err(Failure(format!(
            "{} needs a dynamic linker: it is not static",
            program.display()
        )));
    }
    let emulator = emulator(machine.triple);
    if let Some(emulator) = emulator
        && !on_path(emulator)
    {
        return Ok(format!(
            "not run: {emulator} is not installed (Debian: qemu-user-static)"
        ));
    }
    let runner = Runner {
        emulator,
        program: program.to_path_buf(),
    };
    carries(&runner, &emptied(&folder.join("trial"))?)?;
    fs::remove_dir_all(folder.join("trial"))?;
    let how = emulator.map_or_else(|| "on this machine".to_owned(), |name| format!("by {name}"));
    Ok(format!("run {how}: a message went by QUIC and TLS"))
}

fn carries(runner: &Runner, folder: &Path) -> Result<(), Failure> {
    let ready_file = folder.join("ready.json");
    let log = fs::File::create(folder.join("log"))?;
    let mut serve = runner.command(&["serve"]);
    for url in ["mqtts://127.0.0.1:0", "mqtt+quic://127.0.0.1:0"] {
        serve.args(["--listen", url]);
    }
    serve.arg("--data-dir").arg(folder.join("data"));
    serve.arg("--ready-file").arg(&ready_file);
    serve.stdin(Stdio::null()).stdout(log.try_clone()?);
    let mut served = Served(serve.stderr(log).spawn()?);
    let deadline = Instant::now() + PATIENCE;
    let ready: Value = loop {
        let text = fs::read_to_string(&ready_file).unwrap_or_default();
        if let Ok(ready) = serde_json::from_str(&text) {
            break ready;
        }
        if served.0.try_wait()?.is_some() || Instant::now() > deadline {
            let said = fs::read_to_string(folder.join("log")).unwrap_or_default();
            return Err(Failure(format!("the program does not serve:\n{said}")));
        }
        sleep(POLL);
    };
    let listeners = ready["listeners"].as_array().into_iter().flatten();
    let urls: Vec<&str> = listeners.filter_map(|one| one["url"].as_str()).collect();
    let url = |scheme: &str| {
        let found = urls.iter().find(|url| url.starts_with(scheme)).copied();
        found.ok_or_else(|| Failure(format!("no listener {scheme} in {ready}")))
    };
    let authority = ready["certificate"].as_str().unwrap_or_default();
    let common = ["--cafile", authority, "-t", "trial/message"];
    let publish = [
        "pub",
        "--url",
        url("mqtt+quic:")?,
        "-q",
        "1",
        "-r",
        "-m",
        MESSAGE,
    ];
    output(runner.command(&publish).args(common))?;
    let subscribe = ["sub", "--url", url("mqtts:")?, "-C", "1"];
    let got = output(runner.command(&subscribe).args(common))?;
    if got.trim() != MESSAGE {
        return Err(Failure(format!("another message came: {got}")));
    }
    Ok(())
}
