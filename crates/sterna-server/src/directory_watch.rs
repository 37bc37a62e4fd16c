//! Looks now and then whether the data directory is still this broker's, on a thread of its own.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::control::Failure;
use crate::data_directory::DataDirectory;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Starts the thread. It ends when nobody has the directory any more, or when it was lost.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(
    directory: &Arc<DataDirectory>,
    report: Sender<Failure>,
) -> std::io::Result<()> {
    let directory = Arc::downgrade(directory);
    let thread = std::thread::Builder::new().name("directory".to_owned());
    let watch = move || watch(&directory, INTERVAL, &report);
    thread.spawn(watch).map(drop)
}

fn watch(directory: &Weak<DataDirectory>, interval: Duration, report: &Sender<Failure>) {
    loop {
        std::thread::sleep(interval);
        let Some(directory) = directory.upgrade() else {
            return;
        };
        if let Err(why) = directory.look() {
            // Nobody may be listening.
            let _ = report.send(Failure::Robbed(why));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_directory_that_is_lost_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let directory = Arc::new(DataDirectory::claim(&path).unwrap());
        let (report, failures) = channel();
        let weak = Arc::downgrade(&directory);
        let thread = std::thread::spawn(move || watch(&weak, Duration::from_millis(1), &report));
        std::fs::rename(&path, folder.path().join("aside")).unwrap();
        let Ok(Failure::Robbed(why)) = failures.recv() else {
            panic!("nothing was reported");
        };
        assert!(why.contains("it was removed"), "{why}");
        thread.join().unwrap();
    }
}
