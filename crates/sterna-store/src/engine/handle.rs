//! A shard's handle: appends, and asks for messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sterna_broker::{LogNeeds, NeedsLimits};

use super::inbox::Inbox;
use super::read::{Answer, Reader, Request};
use super::records::Records;
use super::shared::{HandleState, Progress, Shared};
use crate::log::frame::Draft;
use crate::log::segment::Segment;
use crate::settings::Durability;

/// Place of an append in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Position of its first message, or of the next message of anybody where it has none.
    pub first: u64,
    /// Number of its frame. The next append, by whichever handle, has the same number or the next.
    pub sequence: u64,
}

/// Messages find no room: the disk or a limit of the store is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// A shard's handle on a store. Only [`read_now`](Self::read_now) and [`load`](Self::load) wait for a disk.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    records: Arc<Records>,
    state: Arc<HandleState>,
    /// Something was appended since the last flush.
    unflushed: bool,
}

impl Handle {
    pub(super) fn new(
        shared: Arc<Shared>,
        records: Arc<Records>,
        waker: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        let state = Arc::new(HandleState::new(waker));
        shared.add_handle(Arc::clone(&state));
        Self {
            shared,
            records,
            state,
            unflushed: false,
        }
    }

    /// The position that the next message gets.
    #[must_use]
    pub fn next_position(&self) -> u64 {
        self.shared.inbox().next_position
    }

    /// Appends a frame. It reaches the writer at the latest with the next [`flush`](Self::flush). A frame of one message
    /// may become a part of the frame before, where that has its topic and is not yet written.
    ///
    /// # Errors
    /// [`Full`] where its messages find no room; then nothing is appended. A frame without messages is
    /// always taken.
    pub fn append(&mut self, draft: &Draft) -> Result<Appended, Full> {
        self.append_at(draft, None)
    }

    /// As [`append`](Self::append), with the position of its first message, which is not below the next.
    pub(crate) fn append_at(
        &mut self,
        draft: &Draft,
        position: Option<u64>,
    ) -> Result<Appended, Full> {
        let shared = &*self.shared;
        let checksum = Inbox::checksum_of_long(draft.body(), shared.seal);
        let mut inbox = shared.inbox();
        if draft.messages() > 0 {
            let waiting = shared.unwritten_bytes(&inbox);
            let most = shared.settings.maximum_unwritten_bytes;
            if shared.is_full() || (waiting > 0 && waiting + draft.body().len() > most) {
                return Err(Full);
            }
        }
        let synced = shared.progress().synced;
        let appended = inbox.append(draft, position, (checksum, shared.seal), synced);
        drop(inbox);
        self.unflushed = true;
        Ok(appended)
    }

    /// Has the writer take the appends. Call it at the end of a turn: the appends of a turn are then written
    /// together.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            self.shared.wake_writer();
        }
    }

    /// How far the appends of all handles have come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Wakes the shard when an append is as safe as asked for, maybe within this call; earlier wishes stay.
    /// With [`Durability::Commit`] it is synced as soon as can be.
    pub fn wake_when(&mut self, sequence: u64, durability: Durability) {
        match durability {
            Durability::Commit => {
                self.shared.want_synced(sequence);
                self.state.wish(None, Some(sequence), &self.shared);
            }
            Durability::Interval => self.state.wish(Some(sequence), None, &self.shared),
            Durability::Memory => self.state.wish(Some(0), None, &self.shared),
        }
    }

    /// Asks for messages. The shard is woken when the answer is there.
    pub fn read(&mut self, request: Request) {
        let entry = (Arc::clone(&self.state), request);
        self.shared.read_queue().requests.push_back(entry);
        self.shared.reader_wake.notify_one();
    }

    /// The next answer to a request of this handle.
    #[must_use]
    pub fn next_answer(&mut self) -> Option<Answer> {
        self.state.pop_answer()
    }

    /// As [`read`](Self::read), and waits for the disk. After a sync has failed, it ends for a while where the
    /// log is known to be on the disk.
    #[must_use]
    pub fn read_now(&mut self, request: &Request) -> Answer {
        Reader::new(Arc::clone(&self.shared)).answer_now(request)
    }

    /// Visits all records that are written, in the order of their keys. May wait for a disk.
    ///
    /// # Errors
    /// When the file of the records cannot be read, in a sentence.
    pub fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), String> {
        let turn = self.records.turn_to_read();
        let (newer, snapshot) = {
            // Both at one time: a checkpoint moves changes from one to the other.
            let pending = self.shared.pending();
            let snapshot = self.records.snapshot(turn)?;
            let mut newer = (*pending.applying).clone();
            newer.extend(&pending.changes);
            (newer, snapshot)
        };
        snapshot.visit(&newer, visit)
    }

    /// The value of a record that is written; `None` where there is none. May wait for a disk.
    ///
    /// # Errors
    /// When the file of the records cannot be read, in a sentence.
    pub fn load_one(&mut self, key: &[u8]) -> Result<Option<Box<[u8]>>, String> {
        let turn = self.records.turn_to_read();
        let (newer, snapshot) = {
            let pending = self.shared.pending();
            let snapshot = self.records.snapshot(turn)?;
            let change = (pending.changes.of(key)).or_else(|| pending.applying.of(key));
            (change.map(|(_, value)| value.map(Box::from)), snapshot)
        };
        match newer {
            Some(value) => Ok(value),
            None => snapshot.value(key),
        }
    }

    /// No reader of this shard needs messages before this position. Until all handles have said so, none are
    /// removed. The last position of a handle stays in force when the handle is dropped.
    pub fn needed_from(&mut self, position: u64) {
        self.state.needed_from.store(position, Ordering::SeqCst);
        if self.shared.has_little_room() {
            // A segment may go now.
            self.shared.wake_maintenance();
        }
    }

    /// A reader has come to this shard that needs messages from this position on, whatever was said before.
    pub fn hold_from(&mut self, position: u64) {
        self.state.hold_from(position);
    }

    /// How much is to be told of what this shard's readers need; `None` while nothing would be made of it.
    #[must_use]
    pub fn wanted_needs(&self) -> Option<NeedsLimits> {
        let settings = &self.shared.settings;
        let before = self.crowded_before();
        (before > 1 && settings.maximum_rewrite_readers > 0).then_some(NeedsLimits {
            before,
            readers: settings.maximum_rewrite_readers,
            filters: settings.maximum_rewrite_filters,
            positions: settings.maximum_rewrite_positions,
        })
    }

    /// Tells the needs of this shard's readers. When all handles have said so, the rest is taken out of full segments
    /// where that frees enough. A report is in force until the next one, with each [`hold_from`](Self::hold_from) since.
    pub fn needs(&mut self, needs: LogNeeds) {
        self.shared.tell_needs(&self.state, needs);
        self.shared.wake_maintenance();
    }

    /// The position before which messages are in the way, where the log has more segments than a few. Readers that
    /// get nothing should not hold these messages.
    #[must_use]
    pub fn crowded_before(&self) -> u64 {
        let segments = self.shared.segments();
        let first = segments.len().checked_sub(self.shared.roomy_segments());
        first.map_or(1, |first| segments[first].first_position)
    }

    /// Whether messages are refused for want of room, or will be soon.
    #[must_use]
    pub fn has_little_room(&self) -> bool {
        self.shared.has_little_room()
    }

    /// The position before which most of the log is, once that has [`Settings::pressed_percent`] of its room; otherwise 1.
    /// It has more segments than a few then.
    ///
    /// [`Settings::pressed_percent`]: crate::Settings::pressed_percent
    #[must_use]
    pub fn pressed_before(&self) -> u64 {
        if !self.shared.is_pressed.load(Ordering::Relaxed) {
            return 1;
        }
        let segments = self.shared.segments();
        let bytes = |segment: &Segment| segment.end().offset;
        let half: u64 = segments.iter().map(|segment| bytes(segment)).sum::<u64>() / 2;
        let mut before_bytes = 0;
        for segment in segments
            .iter()
            .take(segments.len().saturating_sub(self.shared.roomy_segments()))
        {
            before_bytes += bytes(segment);
            if before_bytes >= half {
                return segment.end().position;
            }
        }
        self.crowded_before()
    }

    /// Whether what was appended cannot be written at the moment, records included.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.shared.stuck.load(Ordering::Relaxed)
    }

    /// Whether records should not grow: the disk has little room, or more waits for it than messages may.
    /// Records that make room are still to be written.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        let shared = &*self.shared;
        self.is_stuck()
            || shared.is_low.load(Ordering::Relaxed)
            || shared.unwritten_bytes(&shared.inbox()) > shared.settings.maximum_unwritten_bytes
    }

    /// Whether messages are refused for want of room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.shared.is_full()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.flush();
    }
}
