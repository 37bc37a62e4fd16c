//! A broker on a machine whose wall clock is wrong after a boot. Clock and boot are those of a library that the process
//! is started with, so that the program has no door for them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::process::{code, stdout, sterna};
use crate::serve::Served;

const YEAR_S: i64 = 365 * 24 * 3_600;

/// Builds the library; `None` where there is no compiler.
fn library(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/clock/machine.c");
    let library = folder.join("machine.so");
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .ok()?;
    assert!(built.success(), "the library is built");
    Some(library)
}

/// A machine that is booted again and again.
struct Machine {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Machine {
    fn start(&self, boot: &str, wall_offset_s: i64) -> Served {
        let name = self.folder.path().join(boot);
        fs::write(&name, format!("{boot}\n")).unwrap();
        let _ = fs::remove_file(self.folder.path().join("ready.json"));
        let mut command = sterna();
        command
            .env("LD_PRELOAD", &self.library)
            .env("WALL_OFFSET_S", wall_offset_s.to_string())
            .env("BOOT_ID", name);
        let file = self.folder.path().join("sterna.toml");
        let config = "[authorization]\nadmins = ['anonymous']\n[[listener]]\nurl = 'mqtt://127.0.0.1:0'\n\
                      [[listener]]\nurl = 'admin://127.0.0.1:0'\n";
        fs::write(&file, config).unwrap();
        let config = ["--config", file.to_str().unwrap()];
        Served::run(command, self.folder.path(), &config)
    }
}

/// What an operator sees of the clock.
fn clock(broker: &Served, action: &str) -> Value {
    let output = sterna()
        .args(["admin", "clock", action, "--json", "--url", broker.url(1)])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A client with a session of ten minutes. Reads so many messages, or subscribes and goes.
fn sleeper(broker: &Served, messages: Option<&str>) -> String {
    let mut command = sterna();
    command.args(["sub", broker.url(0), "-t", "t", "-q", "1"]);
    command.args(["-i", "sleeper", "-c", "-x", "600"]);
    match messages {
        None => command.arg("-E"),
        Some(messages) => command.args(["-C", messages, "-W", "20"]),
    };
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    stdout(&output).to_owned()
}

fn publish(broker: &Served, payload: &str) {
    let output = sterna()
        .args(["pub", broker.url(0), "-t", "t", "-q", "1", "-m", payload])
        .args(["-D", "publish", "message-expiry-interval", "600"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{output:?}");
}

#[test]
fn a_clock_that_is_a_year_wrong_after_a_boot_ends_no_session_and_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = library(folder.path()) else {
        return;
    };
    let machine = Machine { folder, library };
    let broker = machine.start("first", 0);
    sleeper(&broker, None);
    publish(&broker, "one");
    assert_eq!(clock(&broker, "show")["doubt"], Value::Null);
    // It is killed, as by a power cut.
    drop(broker);
    for (boot, offset_s, doubt) in [("second", YEAR_S, "ahead"), ("third", -YEAR_S, "behind")] {
        let broker = machine.start(boot, offset_s);
        let seen = clock(&broker, "show");
        assert_eq!(seen["doubt"], doubt);
        let apart_ms = seen["wall_ms"].as_i64().unwrap() - seen["now_ms"].as_i64().unwrap();
        assert!(apart_ms.abs() > (YEAR_S - 3_600) * 1000, "{seen}");
        publish(&broker, boot);
    }
    let broker = machine.start("fourth", YEAR_S);
    assert_eq!(sleeper(&broker, Some("3")), "one\nsecond\nthird\n");
    // The operator says that a year has passed.
    assert_eq!(clock(&broker, "accept")["is_accepted"], true);
    let seen = clock(&broker, "show");
    assert_eq!(seen["is_accepted"], true);
    sleeper(&broker, None);
    publish(&broker, "last");
    assert!(broker.stops());
    let broker = machine.start("fourth", YEAR_S);
    let seen = clock(&broker, "show");
    assert_eq!(seen["doubt"], Value::Null, "{seen}");
    assert_eq!(sleeper(&broker, Some("1")), "last\n", "it is of this boot");
}
