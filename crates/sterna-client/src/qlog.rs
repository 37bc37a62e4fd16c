//! Traces of QUIC connections as qlog.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quinn_proto::{QlogConfig, QlogStream};

/// Largest trace, in bytes. Later records are left out.
const MAX_TRACE_BYTES: u64 = 256 << 20;
/// End of a record of a JSON text sequence (RFC 7464, section 2.2).
const RECORD_END: u8 = b'\n';

/// Folder and name for traces of QUIC connections, in the format qlog.
///
/// A trace has packets sent, received and lost, round trip, congestion window and bytes in flight.
/// The format is qlog 0.3 in JSON text sequences, as qvis and other viewers read it.
///
/// Each connection has a file of its own, `NAME-NUMBER.sqlog`. Numbers count from 0 over all
/// clients that have clones of one value. Where a host has several addresses, attempts to reach
/// them side by side share a file. A file ends at 256 MiB. The task that drives the connection
/// writes the records as they come, so tracing slows it. Records hold no content and no keys.
///
/// Because of the library, two things differ from the draft of qlog. Round trips are in seconds,
/// and `group_id` changes once the server has chosen its connection identifier.
#[derive(Clone, Debug)]
pub struct Qlog {
    directory: PathBuf,
    name: String,
    epoch: Instant,
    epoch_ms: u128,
    next: Arc<AtomicU32>,
}

impl Qlog {
    /// Traces in this folder, which is made when it is needed, under this name. Their times count
    /// from now.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        let epoch_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_millis());
        Self {
            directory: directory.into(),
            name: name.into(),
            epoch: Instant::now(),
            epoch_ms,
            next: Arc::default(),
        }
    }

    /// Lets times count from this moment on.
    #[must_use]
    pub fn since(mut self, epoch: Instant) -> Self {
        let moved = epoch.elapsed().as_millis();
        let until_now = self.epoch.elapsed().as_millis();
        self.epoch_ms = (self.epoch_ms + until_now).saturating_sub(moved);
        self.epoch = epoch;
        self
    }

    /// The file of the connection with this number.
    #[must_use]
    pub fn file(&self, number: u32) -> PathBuf {
        self.directory.join(format!("{}-{number}.sqlog", self.name))
    }

    /// A trace for the next connection. The error names the file.
    pub(crate) fn begin(&self, peer: &str) -> Result<Option<QlogStream>, String> {
        let path = self.file(self.next.fetch_add(1, Ordering::Relaxed));
        let failed = |error: io::Error| format!("qlog: {}: {error}", path.display());
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let records = Records::create(&path, MAX_TRACE_BYTES).map_err(failed)?;
        let mut config = QlogConfig::default();
        config
            .writer(Box::new(records))
            .title(Some(format!("client of {peer}")))
            .description(Some(format!(
                "time 0 is {} ms after the start of 1970 (UTC)",
                self.epoch_ms
            )))
            .start_time(self.epoch);
        Ok(config.into_stream())
    }
}

/// Writes whole records to a file, so that what is there can be read whenever the process ends.
struct Records {
    path: PathBuf,
    /// None once it is full or could not be written.
    file: Option<File>,
    left_bytes: u64,
    record: Vec<u8>,
}

impl Records {
    /// A new file; an old one is never touched.
    fn create(path: &Path, most_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: Some(File::create_new(path)?),
            left_bytes: most_bytes,
            record: Vec::new(),
        })
    }

    fn end(&mut self, reason: &dyn std::fmt::Display) {
        tracing::warn!(path = %self.path.display(), %reason, "the qlog ends here");
        self.file = None;
    }
}

impl Write for Records {
    /// Always takes everything: a trace that cannot go on must not be reported with each packet.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(file) = &mut self.file else {
            return Ok(bytes.len());
        };
        self.record.extend_from_slice(bytes);
        if !bytes.ends_with(&[RECORD_END]) {
            return Ok(bytes.len());
        }
        let length = self.record.len() as u64;
        if length > self.left_bytes {
            self.end(&"it is as large as it may become");
        } else {
            self.left_bytes -= length;
            if let Err(error) = file.write_all(&self.record) {
                self.end(&error);
            }
        }
        self.record.clear();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_ends_with_a_whole_record() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut records = Records::create(&path, 20).unwrap();
        for bytes in [
            "\x1e{\"a\":",
            "1}\n",
            "\x1e{\"b\":",
            "12345678}\n",
            "\x1e{}\n",
        ] {
            assert_eq!(records.write(bytes.as_bytes()).unwrap(), bytes.len());
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "\x1e{\"a\":1}\n");
    }

    #[test]
    fn an_old_trace_stays() {
        let directory = tempfile::tempdir().unwrap();
        let qlog = Qlog::new(directory.path().join("deep"), "x");
        assert!(qlog.begin("h").unwrap().is_some());
        let again = Qlog::new(directory.path().join("deep"), "x");
        let error = again.begin("h").err().unwrap();
        assert!(error.contains("x-0.sqlog"), "{error}");
        assert!(qlog.begin("h").unwrap().is_some());
        assert!(qlog.file(1).exists());
    }
}
