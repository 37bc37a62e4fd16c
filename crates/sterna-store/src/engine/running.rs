//! The engine's threads.

use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::maintenance::{Checkpoint, Maintenance};
use super::read::Reader;
use super::records::Records;
use super::shared::{Shared, lock};
use super::writer::{Step, Writer};
use super::{Damage, Engine, Handle, OpenReport, UsageReader};

/// How long closing waits for a disk that takes nothing, in milliseconds.
const CLOSE_LIMIT_MS: u64 = 10_000;

/// How long the reader waits after a sync failed, before it looks again.
const UNCERTAIN_WAIT: Duration = Duration::from_millis(10);

/// A store at work. When it is dropped, everything that was appended is written and synced first, until
/// the disk takes nothing for 10 seconds.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    records: Arc<Records>,
    report: OpenReport,
    writer: Option<JoinHandle<bool>>,
    reader: Option<JoinHandle<()>>,
    maintenance: Option<JoinHandle<bool>>,
}

/// Not everything that was appended could be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwritten;

impl std::fmt::Display for Unwritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the disk did not take everything that the store had to write")
    }
}

impl std::error::Error for Unwritten {}

impl Running {
    pub(super) fn start(engine: Engine) -> io::Result<Self> {
        let Engine {
            shared,
            records,
            writer,
            reader,
            maintenance,
            report,
            ..
        } = engine;
        let mut running = Self {
            shared: Arc::clone(&shared),
            records,
            report,
            writer: None,
            reader: None,
            maintenance: None,
        };
        let begin = Instant::now();
        let shared_by = || Arc::clone(&shared);
        let (of_writer, of_reader, of_maintenance) = (shared_by(), shared_by(), shared_by());
        running.writer = Some(thread("store-writer", &shared, move || {
            write(writer, &of_writer, begin)
        })?);
        running.reader = Some(thread("store-reader", &shared, move || {
            read(reader, &of_reader);
        })?);
        running.maintenance = Some(thread("store-maintenance", &shared, move || {
            maintain(maintenance, &of_maintenance, begin)
        })?);
        Ok(running)
    }

    /// Has `tell` be called with the reason, at once or later, when a thread of the store has ended that nobody has
    /// ended. Then nothing more is kept, or read, or removed.
    pub fn on_failure(&self, tell: impl Fn(&str) + Send + Sync + 'static) {
        self.shared.failure.listen(Box::new(tell));
    }

    /// The state of the store when it was opened.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// A handle for a shard; see [`Engine::handle`].
    #[must_use]
    pub fn handle(&self, waker: Box<dyn Fn() + Send + Sync>) -> Handle {
        Handle::new(Arc::clone(&self.shared), Arc::clone(&self.records), waker)
    }

    /// A reader of the store's figures.
    #[must_use]
    pub fn usage_reader(&self) -> UsageReader {
        UsageReader::new(Arc::clone(&self.shared))
    }

    /// Damage that has been found so far.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        self.shared.damage()
    }

    /// Writes and syncs everything that was appended, brings the records' file up to date, and ends.
    ///
    /// # Errors
    /// When the disk takes nothing for 10 seconds.
    pub fn close(mut self) -> Result<(), Unwritten> {
        if self.finish() {
            Ok(())
        } else {
            Err(Unwritten)
        }
    }

    fn finish(&mut self) -> bool {
        // Maintenance first: its last checkpoint needs the writer.
        lock(&self.shared.maintenance).closing = true;
        self.shared.maintenance_wake.notify_all();
        let kept = self
            .maintenance
            .take()
            .is_none_or(|thread| thread.join().unwrap_or(false));
        self.shared.read_queue().closing = true;
        self.shared.reader_wake.notify_all();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.shared.inbox().closing = true;
        self.shared.writer_wake.notify_all();
        let written = self
            .writer
            .take()
            .is_none_or(|thread| thread.join().unwrap_or(false));
        kept && written
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.finish() {
            tracing::error!("{Unwritten}");
        }
    }
}

/// Starts a thread of the store, which tells where it ends by a panic.
fn thread<R: Send + 'static>(
    name: &'static str,
    shared: &Arc<Shared>,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    let shared = Arc::clone(shared);
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(move || {
        let _ending = Ending(name, shared);
        work()
    })
}

/// Tells of the end of a thread.
struct Ending(&'static str, Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let failure = format!("the thread {} has panicked, which is a bug", self.0);
            self.1.failure.tell(failure);
        }
    }
}

fn now_ms(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The writer's thread. Returns whether everything was written.
fn write(mut writer: Writer, shared: &Shared, begin: Instant) -> bool {
    let mut close_by_ms = None;
    loop {
        let step = writer.step(now_ms(begin));
        let mut inbox = shared.inbox();
        if inbox.closing {
            let last = inbox.next_sequence - 1;
            drop(inbox);
            shared.want_synced(last);
            if writer.is_done() {
                writer.close();
                return true;
            }
            if step == Step::Again {
                close_by_ms = None;
                continue;
            }
            let by_ms = *close_by_ms.get_or_insert_with(|| now_ms(begin) + CLOSE_LIMIT_MS);
            if now_ms(begin) > by_ms {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        if step == Step::Again || writer.has_work(&inbox) {
            continue;
        }
        inbox.writer_sleeps = true;
        let woken = |inbox: &mut super::inbox::Inbox| inbox.writer_sleeps && !inbox.closing;
        match step {
            Step::At(at_ms) => {
                let wait = Duration::from_millis(at_ms.saturating_sub(now_ms(begin)));
                let waited = shared.writer_wake.wait_timeout_while(inbox, wait, woken);
                inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            Step::Idle | Step::Again => {
                let waited = shared.writer_wake.wait_while(inbox, woken);
                inbox = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        inbox.writer_sleeps = false;
    }
}

/// The reader's thread.
fn read(mut reader: Reader, shared: &Shared) {
    loop {
        let mut queue = shared.read_queue();
        let (handle, request) = loop {
            if queue.closing {
                return;
            }
            if std::mem::take(&mut queue.segments_gone) {
                drop(queue);
                reader.close_gone();
                queue = shared.read_queue();
                continue;
            }
            if let Some(entry) = queue.requests.pop_front() {
                break entry;
            }
            let waited = shared.reader_wake.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        };
        drop(queue);
        if let Some(answer) = reader.answer(&request) {
            handle.push_answer(answer);
        } else {
            shared.read_queue().requests.push_front((handle, request));
            std::thread::sleep(UNCERTAIN_WAIT);
        }
    }
}

/// The maintenance's thread. Returns whether it came to an end in time.
fn maintain(mut maintenance: Maintenance, shared: &Shared, begin: Instant) -> bool {
    let interval = Duration::from_millis(shared.settings.checkpoint_interval_ms);
    let mut close_by_ms = None;
    loop {
        let now = now_ms(begin);
        let mut flags = lock(&shared.maintenance);
        let closing = flags.closing;
        flags.wanted = false;
        drop(flags);
        let checkpoint = if closing && !has_unwritten(shared) {
            Checkpoint::IfCheap
        } else {
            Checkpoint::WhenDue
        };
        let step = maintenance.step(now, checkpoint);
        if closing {
            let is_last = checkpoint == Checkpoint::IfCheap && step != Step::Again;
            if is_last && !maintenance.is_busy() {
                return true;
            }
            if step == Step::Again {
                close_by_ms = None;
                continue;
            }
            if now > *close_by_ms.get_or_insert(now + CLOSE_LIMIT_MS) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let wait = match step {
            Step::Again => continue,
            Step::At(at_ms) => Duration::from_millis(at_ms.saturating_sub(now)).min(interval),
            Step::Idle => interval,
        };
        let flags: MutexGuard<'_, _> = lock(&shared.maintenance);
        let waited = shared
            .maintenance_wake
            .wait_timeout_while(flags, wait, |flags| !flags.wanted && !flags.closing);
        drop(waited.unwrap_or_else(PoisonError::into_inner).0);
    }
}

/// Whether something was appended that is not written yet.
fn has_unwritten(shared: &Shared) -> bool {
    let last = shared.inbox().next_sequence - 1;
    shared.progress().written < last
}
