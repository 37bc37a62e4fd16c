//! A store in the data directory that this broker would not read: that of an earlier start, which kept its sessions and
//! messages by itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sterna_store::disk::{Disk, RealDisk};
use sterna_store::inspect;

use crate::config::Config;
use crate::store::FOLDER;

/// Why a node of a cluster does not start; `None` where no store would be left unread, or that is meant.
///
/// A broker without a cluster whose store is switched off starts all the same. Its log has a warning.
pub(crate) fn refusal(config: &Config) -> Option<String> {
    if is_refused(config) {
        found(config).map(|store| store.refusal())
    } else {
        None
    }
}

/// Looks at the store once when a process starts: says in the log that it stays unread, where that is meant.
///
/// # Errors
/// Why the node does not start, as [`refusal`] says it.
pub(crate) fn look(config: &Config) -> Result<(), String> {
    if config.store.enabled {
        return Ok(());
    }
    let Some(store) = found(config) else {
        return Ok(());
    };
    if is_refused(config) {
        return Err(store.refusal());
    }
    tracing::warn!(
        store = %store.path.display(),
        "a store that is not empty stays on disk, unread: store.enabled is false"
    );
    Ok(())
}

/// Whether a store that would stay unread is a reason not to start.
fn is_refused(config: &Config) -> bool {
    config.cluster.is_on() && !config.cluster.ignore_store
}

/// A store that has something, or may have.
struct Store {
    directory: PathBuf,
    path: PathBuf,
    /// Why its contents are not known.
    why: Option<String>,
}

impl Store {
    fn refusal(&self) -> String {
        let (path, directory) = (self.path.display(), self.directory.display());
        let content = self.why.as_ref().map_or_else(
            || "is not empty".to_owned(),
            |why| format!("cannot be read ({why})"),
        );
        format!(
            "cluster.ignore_store: the store {path} {content}, and a node of a cluster does not read it: sessions and \
             messages of an earlier start would be missing. `sterna store export --data-dir {directory} -o FILE` and \
             `sterna cluster import -i FILE` move them into the cluster while its nodes are stopped. Then move the store \
             away. Or set cluster.ignore_store = true to start without them: the store stays on disk, unread"
        )
    }
}

/// The store in the data directory; `None` where it is empty, or there is none.
fn found(config: &Config) -> Option<Store> {
    // Where no directory is named, there is none with a store.
    let directory = config.data_directory().ok()?;
    let path = directory.join(FOLDER);
    if !path.is_dir() {
        return None;
    }
    let why = contents(&path)?;
    Some(Store {
        directory,
        path,
        why: why.err(),
    })
}

/// `None` for an empty store; the error says why it cannot be read.
fn contents(path: &Path) -> Option<Result<(), String>> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(path));
    match inspect::is_empty(&disk, &sterna_broker::is_of_node) {
        Ok(true) => None,
        Ok(false) => Some(Ok(())),
        Err(error) => Some(Err(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sterna_store::{Draft, Engine, Settings};

    use super::*;

    fn node(directory: &Path) -> Config {
        let mut config = Config {
            data_directory: Some(directory.to_owned()),
            ..Config::default()
        };
        config.store.enabled = false;
        config.cluster.nats = vec!["nats://127.0.0.1:4222".to_owned()];
        config
    }

    fn store(directory: &Path) -> Engine {
        let disk = Arc::new(RealDisk::new(directory.join(FOLDER)));
        Engine::open(disk, Settings::default()).expect("a store")
    }

    #[test]
    fn a_node_does_not_start_beside_a_store_that_it_would_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = node(folder.path());
        assert_eq!(refusal(&config), None, "there is none");
        store(folder.path())
            .spawn()
            .expect("a thread")
            .close()
            .expect("closed");
        assert_eq!(refusal(&config), None, "it is empty");

        let running = store(folder.path()).spawn().expect("a thread");
        let mut handle = running.handle(Box::new(|| {}));
        let mut draft = Draft::default();
        let clock = sterna_broker::key_of_node(b"clock");
        draft.change(&clock, Some(b"1")).expect("it fits");
        handle.append(&draft).expect("there is room");
        drop(handle);
        running.close().expect("closed");
        assert_eq!(refusal(&config), None, "it says nothing of clients");

        let running = store(folder.path()).spawn().expect("a thread");
        let mut handle = running.handle(Box::new(|| {}));
        let mut draft = Draft::default();
        draft.change(b"a session", Some(b"1")).expect("it fits");
        handle.append(&draft).expect("there is room");
        drop(handle);
        running.close().expect("closed");
        let why = refusal(&config).expect("it is not empty");
        for word in [
            "cluster.ignore_store = true",
            "sterna store export",
            "sterna cluster import",
            "stays on disk, unread",
        ] {
            assert!(why.contains(word), "{why}");
        }
        assert!(why.contains(&*folder.path().display().to_string()), "{why}");

        config.cluster.ignore_store = true;
        assert_eq!(refusal(&config), None, "that is meant");
        config.cluster.ignore_store = false;
        config.cluster.nats.clear();
        assert_eq!(refusal(&config), None, "it is no node");
    }

    /// Its sessions may be there all the same.
    #[test]
    fn a_store_that_cannot_be_read_is_not_taken_for_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        store(folder.path())
            .spawn()
            .expect("a thread")
            .close()
            .expect("closed");
        fs::write(
            folder.path().join(FOLDER).join("records.redb"),
            "no database",
        )
        .expect("written");
        let why = refusal(&node(folder.path())).expect("nobody knows");
        assert!(why.contains("cannot be read"), "{why}");
    }
}
