//! State that the engine's threads and handles share.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use super::changes::Changes;
use super::failure::Failure;
use super::inbox::Inbox;
use super::read::{Answer, Request};
use super::usage::{RewriteCounts, WriterCounts};
use crate::disk::Disk;
use crate::log::frame::Seal;
use crate::log::segment::Segment;
use crate::settings::Settings;
use sterna_broker::LogNeeds;

/// See [`Shared::roomy_segments`].
const ROOMY_SEGMENTS: usize = 4;

/// A place in a file that is no sound frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The file, with its folder.
    pub file: String,
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// How long it is in bytes.
    pub bytes: u64,
    /// The kind of damage.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            bytes,
            reason,
        } = self;
        write!(f, "{file}: {reason} (offset {offset}, {bytes} bytes)")
    }
}

/// How far appends have come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Appends up to this number are with the operating system.
    pub written: u64,
    /// Appends up to this number are on the disk.
    pub synced: u64,
}

/// The engine's side of one handle.
pub(crate) struct HandleState {
    waker: Box<dyn Fn() + Send + Sync>,
    /// Wake when appends up to here are written, or synced; `u64::MAX` for no wish.
    wake_written: AtomicU64,
    wake_synced: AtomicU64,
    pub(crate) needed_from: AtomicU64,
    needs: Mutex<Option<HandleNeeds>>,
    answers: Mutex<VecDeque<Answer>>,
}

/// The needs of one handle's readers, as they were told.
#[derive(Clone, Debug)]
pub(crate) struct HandleNeeds {
    /// From here on everything stays: at most as far as the needs say.
    pub(crate) all_from: u64,
    pub(crate) needs: Arc<LogNeeds>,
}

impl fmt::Debug for HandleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleState").finish_non_exhaustive()
    }
}

impl HandleState {
    pub(crate) fn new(waker: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            waker,
            wake_written: AtomicU64::new(u64::MAX),
            wake_synced: AtomicU64::new(u64::MAX),
            needed_from: AtomicU64::new(0),
            needs: Mutex::default(),
            answers: Mutex::default(),
        }
    }

    /// A reader has come that needs messages from a position on.
    pub(crate) fn hold_from(&self, position: u64) {
        self.needed_from.fetch_min(position, Ordering::SeqCst);
        if let Some(needs) = &mut *lock(&self.needs) {
            needs.all_from = needs.all_from.min(position);
        }
    }

    /// Wakes the shard where a wish has come true.
    fn progressed(&self, progress: Progress) {
        let mut wake = false;
        for (wish, reached) in [
            (&self.wake_written, progress.written),
            (&self.wake_synced, progress.synced),
        ] {
            wake |= wish.load(Ordering::SeqCst) <= reached
                && wish.swap(u64::MAX, Ordering::SeqCst) != u64::MAX;
        }
        if wake {
            (self.waker)();
        }
    }

    pub(crate) fn push_answer(&self, answer: Answer) {
        lock(&self.answers).push_back(answer);
        (self.waker)();
    }

    pub(crate) fn pop_answer(&self) -> Option<Answer> {
        lock(&self.answers).pop_front()
    }

    /// Asks to be woken. An earlier wish for an earlier append stays.
    pub(crate) fn wish(&self, written: Option<u64>, synced: Option<u64>, shared: &Shared) {
        for (wish, sequence) in [(&self.wake_written, written), (&self.wake_synced, synced)] {
            if let Some(sequence) = sequence {
                wish.fetch_min(sequence, Ordering::SeqCst);
            }
        }
        // Progress in between would wake no shard.
        self.progressed(shared.progress());
    }
}

/// Requests that wait for the reader.
#[derive(Debug, Default)]
pub(crate) struct ReadQueue {
    pub(crate) requests: VecDeque<(Arc<HandleState>, Request)>,
    /// Segments have gone: the reader is to close their files, which take room until then.
    pub(crate) segments_gone: bool,
    pub(crate) closing: bool,
}

/// Changes of records on their way into their file.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Changes of frames that are written, since the last checkpoint began.
    pub(crate) changes: Changes,
    /// Sequence of the last frame that they come from.
    pub(crate) through: u64,
    /// Position behind the messages up to that frame.
    pub(crate) next_position: u64,
    /// The changes that a checkpoint is about to apply. Older than those above.
    pub(crate) applying: Arc<Changes>,
}

/// State that the engine's threads and handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) settings: Settings,
    pub(crate) identity: [u8; 16],
    pub(crate) seal: Seal,
    inbox: Mutex<Inbox>,
    pub(crate) writer_wake: Condvar,
    written: AtomicU64,
    synced: AtomicU64,
    /// Somebody waits for this append to be synced.
    sync_wanted: AtomicU64,
    /// No messages are taken.
    full: AtomicBool,
    /// The writer's last attempt has failed: what was appended is not written.
    pub(crate) stuck: AtomicBool,
    /// The disk has less room than messages may take.
    pub(crate) is_low: AtomicBool,
    /// Whether the log has most of its room.
    pub(crate) is_pressed: AtomicBool,
    /// Counts when a segment fails, and when its frames are in another: odd in between.
    failures: AtomicU64,
    /// Bytes that were written to the log since the start.
    pub(crate) log_written: AtomicU64,
    /// Bytes that the writer has taken and not written yet.
    pub(crate) in_hand: AtomicU64,
    segments: RwLock<Arc<Vec<Arc<Segment>>>>,
    handles: RwLock<Vec<Arc<HandleState>>>,
    read_queue: Mutex<ReadQueue>,
    pub(crate) reader_wake: Condvar,
    pending: Mutex<Pending>,
    /// For the maintenance thread: there is something to do before its time.
    pub(crate) maintenance: Mutex<MaintenanceFlags>,
    pub(crate) maintenance_wake: Condvar,
    damage: Mutex<Vec<Damage>>,
    /// Rises with each report of what a handle's readers need.
    needs_told: AtomicU64,
    pub(crate) rewrite_counts: RewriteCounts,
    /// Memory that the rewriting of segments takes at the moment, in bytes.
    pub(crate) rewrite_bytes: AtomicU64,
    /// Memory that pages of the records' file took after the last checkpoint, in bytes.
    pub(crate) cached_bytes: AtomicU64,
    pub(crate) writer_counts: WriterCounts,
    pub(crate) failure: Failure,
}

/// Orders for the maintenance thread.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct MaintenanceFlags {
    pub(crate) wanted: bool,
    pub(crate) closing: bool,
}

/// Places that are remembered; all are logged.
const MOST_DAMAGE: usize = 1_000;

/// Locks, also after a panic of somebody else: nothing is left half-changed behind these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state that recovery has found.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) identity: [u8; 16],
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) last_sequence: u64,
    pub(crate) next_position: u64,
    pub(crate) changes: Changes,
    pub(crate) damage: Vec<Damage>,
}

impl Shared {
    pub(crate) fn new(disk: Arc<dyn Disk>, settings: Settings, start: Start) -> Self {
        let inbox = Inbox::new(start.last_sequence + 1, start.next_position);
        let pending = Pending {
            changes: start.changes,
            through: start.last_sequence,
            next_position: start.next_position,
            ..Pending::default()
        };
        Self {
            disk,
            settings,
            identity: start.identity,
            seal: Seal::of(start.identity),
            inbox: Mutex::new(inbox),
            writer_wake: Condvar::new(),
            written: AtomicU64::new(start.last_sequence),
            synced: AtomicU64::new(start.last_sequence),
            sync_wanted: AtomicU64::new(0),
            full: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            is_low: AtomicBool::new(false),
            is_pressed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            log_written: AtomicU64::new(0),
            in_hand: AtomicU64::new(0),
            segments: RwLock::new(Arc::new(start.segments)),
            handles: RwLock::default(),
            read_queue: Mutex::default(),
            reader_wake: Condvar::new(),
            pending: Mutex::new(pending),
            maintenance: Mutex::default(),
            maintenance_wake: Condvar::new(),
            damage: Mutex::new(start.damage),
            needs_told: AtomicU64::new(0),
            rewrite_counts: RewriteCounts::default(),
            rewrite_bytes: AtomicU64::new(0),
            cached_bytes: AtomicU64::new(0),
            writer_counts: WriterCounts::default(),
            failure: Failure::default(),
        }
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    /// Bytes that were appended and are not written yet.
    pub(crate) fn unwritten_bytes(&self, inbox: &Inbox) -> usize {
        inbox.bytes() + self.in_hand.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    pub(crate) fn read_queue(&self) -> MutexGuard<'_, ReadQueue> {
        lock(&self.read_queue)
    }

    pub(crate) fn progress(&self) -> Progress {
        // Synced first, so that it is never ahead.
        let synced = self.synced.load(Ordering::SeqCst);
        Progress {
            written: self.written.load(Ordering::SeqCst),
            synced,
        }
    }

    /// Tells the handles that wait how far it has come.
    pub(crate) fn publish(&self, progress: Progress) {
        debug_assert!(
            progress.synced <= progress.written,
            "what is synced is written"
        );
        debug_assert!(
            self.synced.load(Ordering::SeqCst) <= progress.synced,
            "what is synced stays so"
        );
        self.written.store(progress.written, Ordering::SeqCst);
        self.synced.store(progress.synced, Ordering::SeqCst);
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        for handle in &*handles {
            handle.progressed(progress);
        }
    }

    pub(crate) fn add_handle(&self, handle: Arc<HandleState>) {
        let mut handles = self.handles.write().unwrap_or_else(PoisonError::into_inner);
        handles.push(handle);
    }

    /// The position from which on some handle's readers need messages; 0 before all have said so.
    pub(crate) fn needed_from(&self) -> u64 {
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        let needed = handles
            .iter()
            .map(|handle| handle.needed_from.load(Ordering::SeqCst));
        needed.min().unwrap_or(0)
    }

    /// A handle's readers need this and no more.
    pub(crate) fn tell_needs(&self, handle: &HandleState, needs: LogNeeds) {
        *lock(&handle.needs) = Some(HandleNeeds {
            all_from: needs.all_from,
            needs: Arc::new(needs),
        });
        self.needs_told.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of reports of what readers need.
    pub(crate) fn needs_told(&self) -> u64 {
        self.needs_told.load(Ordering::SeqCst)
    }

    /// The needs of all handles' readers; `None` before all have said so.
    pub(crate) fn needs(&self) -> Option<Vec<HandleNeeds>> {
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        // All at one moment: a reader that moves from one to another is held by one of them at least.
        let needs: Vec<_> = handles.iter().map(|handle| lock(&handle.needs)).collect();
        let all = needs.iter().map(|needs| (**needs).clone());
        all.collect::<Option<Vec<_>>>()
            .filter(|needs| !needs.is_empty())
    }

    /// Has everything up to an append synced soon.
    pub(crate) fn want_synced(&self, sequence: u64) {
        if self.sync_wanted.fetch_max(sequence, Ordering::SeqCst) < sequence
            && self.synced.load(Ordering::SeqCst) < sequence
        {
            self.wake_writer();
        }
    }

    pub(crate) fn sync_wanted(&self) -> u64 {
        self.sync_wanted.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_writer(&self) {
        let mut inbox = self.inbox();
        if std::mem::take(&mut inbox.writer_sleeps) {
            self.writer_wake.notify_one();
        }
    }

    pub(crate) fn wake_maintenance(&self) {
        lock(&self.maintenance).wanted = true;
        self.maintenance_wake.notify_one();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Whether messages are refused, or will be soon.
    pub(crate) fn has_little_room(&self) -> bool {
        self.is_full() || self.is_pressed.load(Ordering::Relaxed)
    }

    /// Segments that the log may have, the one that is written included, before readers that get nothing are to make
    /// room. So a reader writes its cursor at most once in this number of segments. With little room left all that are
    /// full are looked at, because a small log is full before it has as many more.
    pub(crate) fn roomy_segments(&self) -> usize {
        if self.has_little_room() {
            1
        } else {
            ROOMY_SEGMENTS
        }
    }

    /// A number that changes when a segment fails. It is `None` from then on until the segment's unsynced frames
    /// are in another, and can be read.
    pub(crate) fn certainty(&self) -> Option<u64> {
        let failures = self.failures.load(Ordering::SeqCst);
        failures.is_multiple_of(2).then_some(failures)
    }

    /// A segment has failed, or its frames are in another.
    pub(crate) fn change_certainty(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes messages or refuses them from now on; says so in the log when that changes.
    pub(crate) fn set_full(&self, reason: Option<&str>) {
        let was_full = self.full.swap(reason.is_some(), Ordering::Relaxed);
        match reason {
            Some(reason) if !was_full => {
                tracing::warn!("the store refuses messages: {reason}");
            }
            None if was_full => tracing::info!("the store takes messages again"),
            _ => {}
        }
    }

    /// The segments in order, as they are now.
    pub(crate) fn segments(&self) -> Arc<Vec<Arc<Segment>>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&segments)
    }

    /// Has the reader close the files of segments that are gone.
    pub(crate) fn close_gone(&self) {
        self.read_queue().segments_gone = true;
        self.reader_wake.notify_one();
    }

    pub(crate) fn change_segments(&self, change: impl FnOnce(&mut Vec<Arc<Segment>>)) {
        let mut segments = self
            .segments
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut segments));
    }

    /// Bytes that were written to the log since the start.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.log_written.load(Ordering::Relaxed)
    }

    /// Bytes of all segments, as far as they are written.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.segments()
            .iter()
            .map(|segment| segment.end().offset)
            .sum()
    }

    pub(crate) fn add_damage(&self, damage: Damage) {
        let mut known = lock(&self.damage);
        if !known.contains(&damage) {
            tracing::warn!("damaged store: {damage}");
            if known.len() < MOST_DAMAGE {
                known.push(damage);
            }
        }
    }

    pub(crate) fn damage(&self) -> Vec<Damage> {
        lock(&self.damage).clone()
    }
}
