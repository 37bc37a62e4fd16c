//! Sterna's broker, as a process of its own, as long as it is needed.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use sterna_client::Fingerprint;

/// Longest wait until it listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker, and the folder of its files, which go with it.
pub(super) struct OwnBroker {
    child: Child,
    pub(super) folder: PathBuf,
    /// Where it listens, in the order of the configuration.
    pub(super) urls: Vec<String>,
    pub(super) fingerprint: Fingerprint,
}

#[derive(Deserialize)]
struct Ready {
    listeners: Vec<Address>,
    fingerprint: String,
}

#[derive(Deserialize)]
struct Address {
    url: String,
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        // An error says that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl OwnBroker {
    /// Starts the program's broker with this configuration, whose files `prepare` may put into its folder. The
    /// configuration has `FOLDER` where the folder's path is to stand.
    pub(super) fn start(
        program: &Path,
        configuration: &str,
        prepare: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("a broker of its own: {error}");
        let folder = std::env::temp_dir().join(format!("sterna-bench-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(failed)?;
        let started = prepare(&folder).and_then(|()| {
            let text = configuration.replace("FOLDER", &folder.display().to_string());
            let file = folder.join("sterna.toml");
            fs::write(&file, text).map_err(failed)?;
            let mut child = Command::new(program);
            child.arg("serve").arg("--config").arg(&file);
            child.arg("--data-dir").arg(&folder);
            child.arg("--ready-file").arg(folder.join("ready.json"));
            child.stdin(Stdio::null()).stdout(Stdio::null());
            child.spawn().map_err(failed)
        });
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                return Err(error);
            }
        };
        // From here on dropping it ends the process and removes the folder.
        let mut broker = Self {
            child,
            folder,
            urls: Vec::new(),
            fingerprint: Fingerprint::of(b""),
        };
        broker.wait()?;
        Ok(broker)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait(&mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(text) = fs::read_to_string(self.folder.join("ready.json")) {
                let ready: Ready = serde_json::from_str(&text).map_err(|e| e.to_string())?;
                self.urls = ready.listeners.into_iter().map(|one| one.url).collect();
                let fingerprint = ready.fingerprint.parse();
                self.fingerprint = fingerprint.map_err(|error| format!("{error}"))?;
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("a broker of its own: it ended with {status}"));
            }
            if Instant::now() > end {
                return Err("a broker of its own: it does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
