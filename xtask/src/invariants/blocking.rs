//! Waiting, which a shard's thread must not do.

use std::collections::BTreeSet;

use super::text::words;
use crate::rust_source::{imports, line_of};
use crate::sources::SourceFile;

/// Crates whose code runs in shards. The engines among them may not even name the system.
const SHARD_CRATES: [&str; 4] = [
    "sterna-broker",
    "sterna-http",
    "sterna-net",
    "sterna-server",
];

/// Calls that wait for a disk, another thread or time. Short locks are not among them.
const WAITS: [&str; 9] = [
    "std::fs",
    "std::sync::mpsc",
    "Barrier",
    "Condvar",
    "JoinHandle",
    "block_on",
    "thread::park",
    "thread::sleep",
    "to_socket_addrs",
];

/// Modules that may wait, and why.
const MAY_WAIT: &[(&str, &str)] = &[
    (
        "crates/sterna-server/src/certificate.rs",
        "reads and makes keys when the process starts or reloads",
    ),
    (
        "crates/sterna-server/src/cluster.rs",
        "reads a password when the process starts; the engine has a thread of its own",
    ),
    (
        "crates/sterna-server/src/config/cluster.rs",
        "looks at files when the process starts or reloads",
    ),
    (
        "crates/sterna-server/src/config/exposure.rs",
        "looks at files when the process starts or reloads",
    ),
    (
        "crates/sterna-server/src/config/quic.rs",
        "reads a secret when the process starts or reloads",
    ),
    (
        "crates/sterna-server/src/config/load.rs",
        "reads the configuration when the process starts or reloads",
    ),
    (
        "crates/sterna-server/src/reload.rs",
        "the thread that reloads waits for what shards count",
    ),
    (
        "crates/sterna-server/src/control.rs",
        "a shard gives orders without waiting; the process waits for them",
    ),
    (
        "crates/sterna-server/src/data_directory.rs",
        "claims the directory when the process starts",
    ),
    (
        "crates/sterna-server/src/identity/checker.rs",
        "checks passwords on threads of its own",
    ),
    (
        "crates/sterna-server/src/identity/jwt/keys.rs",
        "reads files when a policy is loaded",
    ),
    (
        "crates/sterna-server/src/file_watch.rs",
        "looks at files on a thread of its own",
    ),
    (
        "crates/sterna-server/src/node_clock/system.rs",
        "reads the name of the boot when the process starts",
    ),
    (
        "crates/sterna-server/src/directory_watch.rs",
        "looks at the directory on a thread of its own",
    ),
    (
        "crates/sterna-server/src/identity/trust.rs",
        "reads files when a policy is loaded",
    ),
    (
        "crates/sterna-server/src/identity/endpoint/mod.rs",
        "asks a URL when the process starts or reloads, and on threads of its own",
    ),
    (
        "crates/sterna-server/src/identity/endpoint/url.rs",
        "the same, where it resolves the host",
    ),
    (
        "crates/sterna-server/src/identity/secret_file.rs",
        "replaces records on the checker's threads",
    ),
    (
        "crates/sterna-server/src/identity/users.rs",
        "reads files when a policy is loaded",
    ),
    (
        "crates/sterna-server/src/identity/webhook/mod.rs",
        "reads a file when a policy is loaded",
    ),
    (
        "crates/sterna-server/src/identity/webhook/queue.rs",
        "asks the webhook on threads of its own",
    ),
    (
        "crates/sterna-server/src/key_refresh.rs",
        "refreshes keys on a thread of its own",
    ),
    (
        "crates/sterna-server/src/otlp.rs",
        "sends spans on a thread of its own",
    ),
    (
        "crates/sterna-server/src/server.rs",
        "starts and joins the shards' threads",
    ),
    (
        "crates/sterna-server/src/memory/machine.rs",
        "reads /proc/self and the control groups on the thread of memory/watch.rs, and at the start",
    ),
    (
        "crates/sterna-server/src/memory/watch.rs",
        "is a thread of its own",
    ),
    (
        "crates/sterna-server/src/sys.rs",
        "reads /proc/self, which is no disk",
    ),
    (
        "crates/sterna-server/src/tracer.rs",
        "writes traces on a thread of its own",
    ),
];

/// Places that may wait on a shard's thread, and modules that are named without need.
pub(super) fn waits_in_shards(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files
        .iter()
        .filter(|file| SHARD_CRATES.contains(&file.crate_name()))
    {
        let code = file.shipped_code();
        let mut found = BTreeSet::new();
        for (offset, path) in imports(&code) {
            let waits = |wait: &&&str| path == **wait || path.starts_with(&format!("{wait}::"));
            found.extend((WAITS.iter().find(waits)).map(|wait| (line_of(&code, offset), *wait)));
        }
        for wait in WAITS {
            found.extend((words(&code, wait).into_iter()).map(|at| (line_of(&code, at), wait)));
        }
        let is_named = MAY_WAIT.iter().any(|(name, _)| *name == file.name);
        if is_named && found.is_empty() {
            violations.push(format!("{}: named without need", file.name));
        } else if !is_named {
            let places = found.iter();
            violations.extend(places.map(|(line, wait)| format!("{}:{line}: {wait}", file.name)));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::divide;

    #[test]
    fn waiting_is_found_where_shards_run() {
        let text = "\
use std::sync::{Arc, mpsc::{Receiver, channel}};
fn f() { std::thread::sleep(d); let text = \"std::fs\"; } // Condvar
#[cfg(test)]
mod tests { use std::fs; }
";
        let named = MAY_WAIT[2].0;
        let files = [
            ("crates/sterna-server/src/shard.rs", text),
            ("crates/sterna-lab/src/lib.rs", text),
            ("crates/sterna-server/tests/all.rs", text),
            (MAY_WAIT[0].0, text),
            (named, "fn f() {}\n"),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(
            waits_in_shards(&divide(files.into())),
            [
                "crates/sterna-server/src/shard.rs:1: std::sync::mpsc".to_owned(),
                "crates/sterna-server/src/shard.rs:2: thread::sleep".to_owned(),
                format!("{named}: named without need"),
            ]
        );
    }
}
