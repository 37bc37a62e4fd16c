//! The thread that asks the system how much of the process is resident, and gives back what nobody uses.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::allocator::Unused;
use super::gather::Gather;
use super::trim::Trim;
use super::{Memory, Stage, allocator, machine};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// The same while little memory is taken: each look wakes a processor that could rest.
const REST_INTERVAL: Duration = Duration::from_secs(1);
/// Little is this part of the memory at which the first stage begins.
const LITTLE: u64 = 4;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread. `tell` is called when the stage has changed.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        memory: &Arc<Memory>,
        mut tell: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let memory: Weak<Memory> = Arc::downgrade(memory);
        // Sessions of before are restored: what that needed for a moment makes memory short for nobody.
        allocator::give_back(Unused::All);
        let thread = std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(move || {
                let begin = Instant::now();
                let mut trim = Trim::default();
                let mut gather = Gather::default();
                let mut interval = INTERVAL;
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    let Some(memory) = memory.upgrade() else {
                        return;
                    };
                    let now_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                    interval = memory.watch((&mut trim, &mut gather), now_ms);
                    if memory.look() {
                        tell();
                    }
                }
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has been told of.
            let _ = thread.join();
        }
    }
}

impl Memory {
    /// Asks the system, and gives back what nobody uses where that is worth it. Returns the time until the next
    /// look.
    fn watch(&self, (trim, gather): (&mut Trim, &mut Gather), now_ms: u64) -> Duration {
        allocator::give_back(Unused::Aged);
        let resident_bytes = machine::resident_bytes();
        self.refresh(None);
        let Some(mut resident_bytes) = resident_bytes else {
            return INTERVAL;
        };
        let accounted_bytes = self.account().iter().sum();
        let first_bytes = self
            .thresholds
            .map_or(u64::MAX, |thresholds| thresholds.first_bytes());
        let is_short = resident_bytes >= first_bytes || self.stage() > Stage::Normal;
        if trim.is_due(now_ms, resident_bytes, accounted_bytes, is_short) {
            let before_bytes = resident_bytes;
            allocator::give_back(Unused::All);
            resident_bytes = machine::resident_bytes().unwrap_or(resident_bytes);
            trim.done(now_ms, before_bytes, resident_bytes, accounted_bytes);
            tracing::debug!(
                before_bytes,
                resident_bytes,
                "gave memory back to the system"
            );
        }
        let bytes = (resident_bytes, accounted_bytes);
        if let Some(ceiling_bytes) = self.ceiling_bytes()
            && self.stage() >= Stage::MoveToLog
            && gather.is_due(now_ms, bytes, ceiling_bytes)
        {
            let before_bytes = resident_bytes;
            let settle = || allocator::give_back(Unused::OfThread);
            let mut from = 0;
            while let Some(next) = self.directory.gather_retained(from, &settle) {
                from = next;
                // Shards have waited for it.
                std::thread::yield_now();
            }
            allocator::give_back(Unused::All);
            resident_bytes = machine::resident_bytes().unwrap_or(resident_bytes);
            gather.done(now_ms, before_bytes, resident_bytes);
            tracing::info!(
                before_bytes,
                resident_bytes,
                "moved retained messages together: they held pages that nobody else used"
            );
        }
        self.refresh(Some(resident_bytes));
        if is_short || resident_bytes > first_bytes / LITTLE {
            INTERVAL
        } else {
            REST_INTERVAL
        }
    }
}
