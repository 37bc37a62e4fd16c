//! Limits of the system on the process.

use std::process::{Command, Stdio};

use crate::process::{Broker, MIB, await_that};
use crate::wire::{client, publish_all};

/// Where the limit on addresses leaves little beside what the program maps, the start is refused. Where it leaves more, what
/// it leaves is the ceiling, and messages do not end the process.
#[test]
fn a_limit_on_addresses_is_the_ceiling_or_refuses_the_start() {
    let limited = |kib: u64| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_sterna"), "serve"]);
        command.args(["--listen", "mqtt://127.0.0.1:0", "--data-dir"]);
        command.arg(folder.path().join("data"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = limited(150_000);
    assert!(said.contains("ulimit -v"), "{said}");

    let mut broker = Broker::start_within("", Some(900_000));
    let ceiling: u64 = broker.number("sterna_memory_ceiling_bytes");
    assert!(
        (64 * MIB..900_000 * 1024).contains(&ceiling),
        "{ceiling} bytes"
    );
    let mut publisher = client(&broker, "publisher", true);
    // More than the ceiling: much is refused, and the process lives.
    let messages = (0..ceiling / 200_000 + 500).map(|number| {
        let topic = format!("kept/{number}");
        (topic, vec![b'x'; 200_000])
    });
    publish_all(&mut publisher, messages, true);
    await_that("it is ready", || broker.get("/readyz").0 == 200);
    assert!(broker.is_running());
}
