//! Writes the traces of connections to files, on a thread of its own: a shard never waits for a disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use sterna_net::{Trace, TraceSink};

use crate::data_directory::create_private;

/// Records that wait for the disk; more are left out, and the file says how many.
const MAXIMUM_WAITING_RECORDS: usize = 4096;

/// How much of a client identifier goes into the name of its file.
const MAXIMUM_NAME_BYTES: usize = 128;

/// An order to the thread.
enum Order {
    Open(u64, PathBuf),
    Write(u64, Box<[u8]>),
    LeftOut(u64, u64),
    Close(u64),
}

/// The way to the thread that writes traces.
#[derive(Clone, Debug)]
pub struct Tracer {
    orders: SyncSender<Order>,
    /// Tells the traces of this process apart.
    next: Arc<AtomicU64>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Order")
    }
}

impl Tracer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start() -> std::io::Result<Self> {
        let (orders, receiver) = sync_channel(MAXIMUM_WAITING_RECORDS);
        std::thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || write(&receiver))?;
        Ok(Self {
            orders,
            next: Arc::default(),
        })
    }

    /// A trace of a client's connection, in a new file of the folder that ends after `max_bytes`.
    #[must_use]
    pub fn trace(&self, directory: &Path, client_id: &str, now_ms: u64, max_bytes: u64) -> Trace {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut name = escape(client_id);
        name.truncate(MAXIMUM_NAME_BYTES);
        let path = directory.join(format!("{name}-{now_ms}-{number}.sqlog"));
        let sink = Sink {
            number,
            orders: self.orders.clone(),
            left_out: 0,
        };
        if self.orders.try_send(Order::Open(number, path)).is_err() {
            tracing::warn!(client = client_id, "too much to trace");
        }
        Trace {
            sink: Box::new(sink),
            title: client_id.to_owned(),
            max_bytes,
        }
    }
}

/// A name that is one level of a topic and one component of a path. Letters, digits, `.`, `_` and `-` are
/// as they are. Each other byte is `%` and two hexadecimal digits.
#[must_use]
pub(crate) fn escape(name: &str) -> String {
    use std::fmt::Write as _;
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    // These two are names of folders.
    if escaped == "." || escaped == ".." {
        escaped = escaped.replace('.', "%2E");
    }
    escaped
}

/// One trace on its way to its file.
struct Sink {
    number: u64,
    orders: SyncSender<Order>,
    left_out: u64,
}

impl TraceSink for Sink {
    fn record(&mut self, record: &[u8]) {
        if self.left_out > 0 {
            let order = Order::LeftOut(self.number, self.left_out);
            if self.orders.try_send(order).is_err() {
                self.left_out += 1;
                return;
            }
            self.left_out = 0;
        }
        let order = Order::Write(self.number, record.into());
        if self.orders.try_send(order).is_err() {
            self.left_out += 1;
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Where there is no room the file is closed with the process.
        let _ = self.orders.try_send(Order::Close(self.number));
    }
}

/// The thread: writes records as they come, and has written everything whenever nothing is left to
/// do.
fn write(orders: &Receiver<Order>) {
    let mut files: HashMap<u64, (PathBuf, BufWriter<File>)> = HashMap::new();
    loop {
        let order = match orders.try_recv() {
            Ok(order) => order,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                files.retain(|_, (path, file)| {
                    let flushed = file.flush();
                    kept(path, &flushed)
                });
                match orders.recv() {
                    Ok(order) => order,
                    Err(_) => return,
                }
            }
        };
        match order {
            Order::Open(number, path) => match create_private(&path) {
                Ok(file) => {
                    tracing::info!(trace = %path.display(), "tracing a connection");
                    files.insert(number, (path, BufWriter::new(file)));
                }
                Err(error) => {
                    tracing::error!(trace = %path.display(), %error, "cannot write a trace");
                }
            },
            Order::Write(number, record) => {
                if let Some((path, file)) = files.get_mut(&number)
                    && !kept(path, &file.write_all(&record))
                {
                    files.remove(&number);
                }
            }
            Order::LeftOut(number, records) => {
                if let Some((path, file)) = files.get_mut(&number) {
                    let name = "sterna:records_left_out";
                    let line =
                        format!("\x1e{{\"name\":\"{name}\",\"data\":{{\"records\":{records}}}}}\n");
                    if !kept(path, &file.write_all(line.as_bytes())) {
                        files.remove(&number);
                    }
                }
            }
            Order::Close(number) => {
                if let Some((path, mut file)) = files.remove(&number) {
                    kept(&path, &file.flush());
                }
            }
        }
    }
}

/// Whether a file can be written further; the operator is told where not.
fn kept(path: &Path, written: &std::io::Result<()>) -> bool {
    if let Err(error) = written {
        tracing::error!(trace = %path.display(), %error, "cannot go on with a trace");
    }
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_component() {
        for (name, escaped) in [
            ("sensor-1", "sensor-1"),
            ("a/b", "a%2Fb"),
            ("+#", "%2B%23"),
            ("..", "%2E%2E"),
            ("é", "%C3%A9"),
        ] {
            assert_eq!(escape(name), escaped);
        }
    }

    #[test]
    fn records_reach_the_file() {
        let directory = tempfile::tempdir().expect("a folder");
        let tracer = Tracer::start().expect("a thread");
        let mut trace = tracer.trace(&directory.path().join("deep"), "a/b", 7, 100);
        trace.sink.record(b"one ");
        trace.sink.record(b"two");
        drop(trace);
        let path = directory.path().join("deep").join("a%2Fb-7-0.sqlog");
        for _ in 0..6_000 {
            if std::fs::read(&path).is_ok_and(|bytes| bytes == b"one two") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the file has {:?}", std::fs::read(&path));
    }
}
