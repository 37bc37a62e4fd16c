//! Writes the appends of all handles in batches, and syncs them as the durability asks.
//!
//! # When a write or a sync fails
//!
//! Where the disk is full, the batch in hand is tried again until there is room.
//!
//! After a failed sync, Linux takes the pages it could not write for written. A second sync that succeeds says
//! nothing about them, and a read may show them or not. So the writer keeps every frame in memory until it is
//! synced. After a failed sync it leaves the segment where that was last known to be on the disk. The same holds
//! for a write that failed for another reason than room. It writes all later frames into a new segment, and they
//! count as synced when that one is. Until then nothing more is published, and messages are refused.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::check::Follow;
use super::inbox::Inbox;
use super::shared::{Pending, Progress, Shared};
use crate::disk::{DiskFile, UNFINISHED, remove_if_there};
use crate::log::frame::{HEADER_BYTES, Item, items, u32_at, u64_at};
use crate::log::index::{IndexBuilder, Posting};
use crate::log::segment::{
    End, FOLDER, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentState, segment_name,
};
use crate::settings::Durability;

/// Time between two attempts after a failure, and between two looks for room on a full disk.
const RETRY_MS: u64 = 100;

/// After how many bytes it is looked up how much room there is.
const ROOM_CHECK_BYTES: u64 = 1 << 20;

/// The time of the next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// There is more to do.
    Again,
    /// There is something to do at this time, in milliseconds.
    At(u64),
    /// There is something to do when a frame is appended.
    Idle,
}

/// The one thread that writes the log; also driven step by step, by tests.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    /// The segment that is written; none before the first frame since the start.
    active: Option<Active>,
    next_number: u64,
    /// Frames that were taken from the inbox, and how much of them is written.
    batch: Vec<u8>,
    batch_done: usize,
    /// Frames that are written to the active segment and not synced.
    retained: Vec<u8>,
    unsynced_since_ms: u64,
    progress: Progress,
    published: Progress,
    /// The active segment failed: its unsynced frames belong into another.
    must_move: bool,
    /// The first segment was begun, or tried to be.
    is_prepared: bool,
    /// When what is in hand is written, where that is put off.
    write_at_ms: Option<u64>,
    /// Time of the next attempt after a failure.
    retry_at_ms: Option<u64>,
    unchecked_bytes: u64,
    /// Messages are refused for want of room.
    lacks_room: bool,
}

#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    end: End,
    /// Up to here it is on the disk.
    synced: End,
    /// Where it is full.
    limit: u64,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let progress = shared.progress();
        let last = shared.segments().last().map(|segment| segment.number);
        Self {
            shared,
            active: None,
            next_number: last.unwrap_or(0) + 1,
            batch: Vec::new(),
            batch_done: 0,
            retained: Vec::new(),
            unsynced_since_ms: 0,
            progress,
            published: progress,
            must_move: false,
            is_prepared: false,
            retry_at_ms: None,
            write_at_ms: None,
            // So that the first step looks.
            unchecked_bytes: ROOM_CHECK_BYTES,
            lacks_room: false,
        }
    }

    /// Does one thing: publishes the result of the last step, syncs, or writes.
    pub(crate) fn step(&mut self, now_ms: u64) -> Step {
        if self.progress != self.published {
            self.published = self.progress;
            self.shared.publish(self.progress);
        }
        if let Some(at_ms) = self.retry_at_ms.filter(|at_ms| now_ms < *at_ms) {
            return Step::At(at_ms);
        }
        let is_retry = self.retry_at_ms.take().is_some();
        if is_retry || self.unchecked_bytes >= ROOM_CHECK_BYTES {
            self.check_room();
        }
        let done = if self.must_move {
            self.move_unsynced()
        } else if self.sync_is_due(now_ms) {
            self.sync()
        } else {
            if self.batch.is_empty() {
                self.take_batch();
                if self.batch.is_empty() {
                    self.prepare();
                    return self.rest(now_ms);
                }
                let delay_ms = self.shared.settings.write_delay_ms;
                self.write_at_ms = (delay_ms > 0).then_some(now_ms + delay_ms);
            }
            if let Some(at_ms) = self.write_at_ms.filter(|at_ms| now_ms < *at_ms) {
                return Step::At(at_ms);
            }
            self.write_at_ms = None;
            if self.retained.is_empty() {
                self.unsynced_since_ms = now_ms;
            }
            self.write_some()
        };
        if let Err(error) = done {
            self.shared.writer_counts.failed();
            let reason = if error.kind() == io::ErrorKind::StorageFull {
                "the disk is full".to_owned()
            } else {
                format!("{error}")
            };
            self.shared.set_full(Some(&reason));
            self.shared.stuck.store(true, Ordering::Relaxed);
            self.retry_at_ms = Some(now_ms + RETRY_MS);
            return Step::At(now_ms + RETRY_MS);
        }
        self.shared.stuck.store(false, Ordering::Relaxed);
        if is_retry && !self.lacks_room {
            self.shared.set_full(None);
        }
        Step::Again
    }

    /// # Panics
    /// Where a sum, a place or a flag does not agree with the frames in memory, or with the segment that is written.
    pub(super) fn check(&self) {
        let shared = &*self.shared;
        let Progress { written, synced } = self.progress;
        assert_eq!(
            shared.progress(),
            self.published,
            "handles know what is published"
        );
        assert!(
            self.published.written <= written && self.published.synced <= synced,
            "what is published is done"
        );
        let pending = shared.pending();
        assert_eq!(
            pending.through, written,
            "changes wait of all frames that are written"
        );
        let mut frames = Follow::new(synced + 1, 0, shared.seal);
        frames.check(&self.retained);
        assert_eq!(
            frames.sequence,
            written + 1,
            "frames that are not synced are in memory"
        );
        assert!(
            self.batch_done <= self.batch.len(),
            "what is written of a batch is in it"
        );
        let in_hand = &self.batch[self.batch_done..];
        assert_eq!(
            shared.in_hand.load(Ordering::Relaxed),
            in_hand.len() as u64,
            "the bytes in hand"
        );
        let mut frames = Follow::new(written + 1, pending.next_position, shared.seal);
        drop(pending);
        frames.check(in_hand);
        shared.inbox().check(&mut frames);
        assert_eq!(
            self.must_move,
            shared.certainty().is_none(),
            "readers wait while a segment has failed"
        );
        assert!(
            !self.lacks_room || shared.is_full(),
            "messages are refused for want of room"
        );
        let is_stuck = shared.stuck.load(Ordering::Relaxed);
        assert!(
            !is_stuck || self.retry_at_ms.is_some(),
            "what has failed is tried again"
        );
        match &self.active {
            Some(active) => self.check_active(active),
            None => assert_eq!(written, synced, "frames are written to a segment"),
        }
    }

    fn check_active(&self, active: &Active) {
        let Progress { written, synced } = self.progress;
        let segments = self.shared.segments();
        let last = segments.last();
        assert!(
            last.is_some_and(|last| Arc::ptr_eq(last, &active.segment)),
            "the segment that is written is the last"
        );
        assert_eq!(
            active.end.sequence, written,
            "the segment ends with what is written"
        );
        assert_eq!(
            active.synced.sequence, synced,
            "the disk has what is synced"
        );
        assert_eq!(
            active.end.offset - active.synced.offset,
            self.retained.len() as u64,
            "the bytes that are not synced"
        );
        let readable = if self.must_move {
            active.synced
        } else {
            active.end
        };
        assert_eq!(
            active.segment.end(),
            readable,
            "readers see the frames that are certain"
        );
    }

    /// Whether everything that was appended is on the disk and published.
    pub(crate) fn is_done(&self) -> bool {
        self.batch.is_empty()
            && self.shared.inbox().is_empty()
            && self.progress.synced == self.progress.written
            && self.published == self.progress
    }

    /// Ends the segment that is written, after [`is_done`](Self::is_done).
    pub(crate) fn close(&mut self) {
        if let Some(active) = self.active.take() {
            active.seal();
        }
    }

    /// Whether something came in after the last step, which that step would have taken.
    pub(crate) fn has_work(&self, inbox: &Inbox) -> bool {
        let wants_sync = self.shared.sync_wanted() > self.progress.synced
            && self.progress.synced < self.progress.written;
        let waits = self.retry_at_ms.is_some() || self.write_at_ms.is_some();
        !waits && (!inbox.is_empty() || wants_sync)
    }

    /// There is nothing to write: until when.
    fn rest(&mut self, now_ms: u64) -> Step {
        if self.lacks_room {
            self.retry_at_ms = Some(now_ms + RETRY_MS);
            return Step::At(now_ms + RETRY_MS);
        }
        self.shared.set_full(None);
        if self.progress.synced < self.progress.written
            && self.shared.settings.durability == Durability::Interval
        {
            return Step::At(self.unsynced_since_ms + self.shared.settings.sync_interval_ms);
        }
        Step::Idle
    }

    fn sync_is_due(&self, now_ms: u64) -> bool {
        let settings = &self.shared.settings;
        if self.progress.synced == self.progress.written {
            return false;
        }
        self.shared.sync_wanted() > self.progress.synced
            || self.retained.len() >= settings.maximum_unwritten_bytes
            || match settings.durability {
                Durability::Commit => true,
                Durability::Interval => {
                    now_ms >= self.unsynced_since_ms + settings.sync_interval_ms
                }
                Durability::Memory => false,
            }
    }

    fn take_batch(&mut self) {
        self.batch.clear();
        self.batch_done = 0;
        let mut inbox = self.shared.inbox();
        inbox.take(&mut self.batch);
        let in_hand = self.batch.len() as u64;
        self.shared.in_hand.store(in_hand, Ordering::Relaxed);
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let begin = Instant::now();
        if let Err(error) = active.file.sync() {
            self.fail(&error);
            return Err(error);
        }
        self.shared.writer_counts.synced(begin.elapsed());
        active.synced = active.end;
        self.progress.synced = active.end.sequence;
        self.retained.clear();
        Ok(())
    }

    /// Writes as many frames of the batch as fit into the segment.
    fn write_some(&mut self) -> io::Result<()> {
        let rest = &self.batch[self.batch_done..];
        let room = |active: &Active| active.limit.saturating_sub(active.end.offset);
        let mut count = frames_within(rest, self.active.as_ref().map_or(0, room));
        if count == 0 {
            let first = frame_bytes(rest);
            self.begin_segment(first as u64)?;
            let rest = &self.batch[self.batch_done..];
            count = frames_within(rest, self.active.as_ref().map_or(0, room));
        }
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let frames = &self.batch[self.batch_done..self.batch_done + count];
        if let Err(error) = active.file.write_at(active.end.offset, frames) {
            if error.kind() != io::ErrorKind::StorageFull {
                self.fail(&error);
            }
            return Err(error);
        }
        self.retained.extend_from_slice(frames);
        active.absorb(frames, Some(&mut self.shared.pending()));
        debug_assert!(
            active.end.offset <= active.limit,
            "frames find room in their segment"
        );
        self.progress.written = active.end.sequence;
        self.shared
            .log_written
            .fetch_add(count as u64, Ordering::Relaxed);
        self.batch_done += count;
        self.unchecked_bytes += count as u64;
        if self.batch_done == self.batch.len() {
            self.batch.clear();
            self.batch_done = 0;
            // A burst's room is given back.
            self.batch.shrink_to(ROOM_CHECK_BYTES as usize);
        }
        let in_hand = (self.batch.len() - self.batch_done) as u64;
        self.shared.in_hand.store(in_hand, Ordering::Relaxed);
        Ok(())
    }

    /// Begins the first segment of a start before there is anything to write. A file that is made, reserved and
    /// synced takes long, and the first client would wait for it. Where this fails, the segment is made when it is
    /// needed.
    fn prepare(&mut self) {
        if self.active.is_none() && !std::mem::replace(&mut self.is_prepared, true) {
            let inbox = self.shared.inbox();
            let (is_idle, position) = (inbox.is_empty(), inbox.next_position);
            drop(inbox);
            if is_idle && let Err(error) = self.begin_segment_at(position, 0) {
                tracing::debug!("store: a segment cannot be made yet: {error}");
            }
        }
    }

    /// Provides a segment with room for a frame of this length. It ends the active segment, if that is too small.
    fn begin_segment(&mut self, frame_bytes: u64) -> io::Result<()> {
        let first = u64_at(&self.batch, self.batch_done + 16).unwrap_or(1);
        let start = SEGMENT_HEADER_BYTES as u64;
        match &mut self.active {
            // It was prepared, and is as good as a new one.
            Some(active) if active.end.offset == start => {
                active.limit = start + frame_bytes;
                match active.file.allocate(active.limit) {
                    // The room that is left may do.
                    Err(error) if error.kind() != io::ErrorKind::StorageFull => Err(error),
                    _ => Ok(()),
                }
            }
            Some(active) => {
                let position = active.end.position;
                self.begin_segment_at(position, frame_bytes)
            }
            None => self.begin_segment_at(first, frame_bytes),
        }
    }

    fn begin_segment_at(&mut self, first_position: u64, frame_bytes: u64) -> io::Result<()> {
        // A segment that has a successor is on the disk as a whole: recovery relies on it.
        self.sync()?;
        let active =
            self.make_segment(self.progress.written + 1, first_position, &[], frame_bytes)?;
        let segment = Arc::clone(&active.segment);
        self.shared
            .change_segments(|segments| segments.push(segment));
        if let Some(old) = self.active.replace(active) {
            old.seal();
        }
        self.shared.wake_maintenance();
        self.check_room();
        Ok(())
    }

    /// Makes a segment that has these frames already, on the disk when it returns.
    fn make_segment(
        &mut self,
        first_sequence: u64,
        first_position: u64,
        frames: &[u8],
        frame_bytes: u64,
    ) -> io::Result<Active> {
        let shared = &*self.shared;
        let header = SegmentHeader {
            identity: shared.identity,
            number: self.next_number,
            first_sequence,
            first_position,
            has_gaps: false,
            joined: 0,
        };
        let start = SEGMENT_HEADER_BYTES as u64;
        let least = start + (frames.len() as u64).max(frame_bytes);
        let limit = shared.settings.segment_bytes.max(least);
        let name = segment_name(header.number);
        let draft = format!("{name}{UNFINISHED}");
        if let Err(error) = remove_if_there(&*shared.disk, &draft) {
            // A draft that cannot be removed costs its number, and not all that is appended from now on.
            self.next_number += u64::from(shared.disk.open(&draft).is_ok());
            return Err(error);
        }
        let file = shared.disk.create(&draft)?;
        if let Err(error) = file.allocate(limit) {
            if error.kind() != io::ErrorKind::StorageFull {
                return Err(error);
            }
            // The room that is left may do for these frames.
            file.set_length(0)?;
        }
        file.write_at(0, &header.encode())?;
        file.write_at(start, frames)?;
        file.sync()?;
        shared.disk.rename(&draft, &name)?;
        shared.disk.sync_folder(FOLDER)?;
        let end = End {
            offset: start,
            sequence: first_sequence - 1,
            position: first_position,
        };
        let state = SegmentState {
            end,
            file: Some(Arc::clone(&file)),
            index: Some(IndexBuilder::new(first_position)),
            lacks_index: false,
            is_replaced: false,
        };
        let segment = Arc::new(Segment::new(&header, state));
        let mut active = Active {
            segment: Arc::clone(&segment),
            file,
            end,
            synced: end,
            limit,
        };
        active.absorb(frames, None);
        active.synced = active.end;
        self.next_number += 1;
        Ok(active)
    }

    /// The active segment failed: from now on its unsynced frames are not read.
    fn fail(&mut self, error: &io::Error) {
        let Some(active) = &self.active else { return };
        if !std::mem::replace(&mut self.must_move, true) {
            self.shared.change_certainty();
        }
        *active.segment.state_mut() = SegmentState {
            end: active.synced,
            file: None,
            // Made again from the rest of the segment.
            index: None,
            lacks_index: false,
            is_replaced: false,
        };
        let name = segment_name(active.segment.number);
        let name = self.shared.disk.display_name(&name);
        tracing::error!(
            "{name} failed ({error}): frames that are not on the disk go into another file"
        );
    }

    /// Writes the unsynced frames into a new segment, after the active one failed.
    fn move_unsynced(&mut self) -> io::Result<()> {
        let Some(active) = &self.active else {
            return Ok(());
        };
        let synced = active.synced;
        let retained = std::mem::take(&mut self.retained);
        let made = self.make_segment(synced.sequence + 1, synced.position, &retained, 0);
        self.retained = retained;
        let made = made?;
        let segment = Arc::clone(&made.segment);
        let Some(old) = self.active.replace(made) else {
            return Ok(());
        };
        let is_empty = synced.sequence < old.segment.first_sequence;
        self.shared.change_segments(|segments| {
            segments.retain(|known| !(is_empty && Arc::ptr_eq(known, &old.segment)));
            segments.push(segment);
        });
        self.shared.change_certainty();
        self.retained.clear();
        self.must_move = false;
        self.progress.synced = self.progress.written;
        // Where this fails, frames are in two places: recovery takes those of the later segment.
        if is_empty {
            let _ = self.shared.disk.remove(&segment_name(old.segment.number));
        } else {
            let _ = old.file.set_length(synced.offset);
        }
        self.shared.wake_maintenance();
        Ok(())
    }

    fn check_room(&mut self) {
        self.unchecked_bytes = 0;
        let shared = &*self.shared;
        let settings = &shared.settings;
        let free = shared.disk.free_bytes();
        let log_bytes = shared.log_bytes();
        let most_bytes = match settings.maximum_bytes {
            0 => u64::MAX,
            most_bytes => most_bytes,
        };
        let spare_bytes = |free: &u64| free.saturating_sub(settings.minimum_free_bytes);
        let on_disk = free.as_ref().map_or(u64::MAX, spare_bytes);
        let room_bytes = u128::from(most_bytes.min(log_bytes.saturating_add(on_disk)));
        let is_pressed =
            u128::from(log_bytes) * 100 >= room_bytes * u128::from(settings.pressed_percent);
        shared.is_pressed.store(is_pressed, Ordering::Relaxed);
        let low = match free {
            Ok(free) if free < settings.minimum_free_bytes => Some(format!(
                "the disk has {free} bytes left, less than store.minimum_free_bytes ({})",
                settings.minimum_free_bytes
            )),
            // A disk that cannot say so is full when writes fail.
            _ => None,
        };
        shared.is_low.store(low.is_some(), Ordering::Relaxed);
        let reason = if log_bytes >= most_bytes {
            Some(format!(
                "its log has store.maximum_bytes ({})",
                settings.maximum_bytes
            ))
        } else {
            low
        };
        let lacked_room = std::mem::replace(&mut self.lacks_room, reason.is_some());
        if lacked_room || reason.is_some() {
            shared.set_full(reason.as_deref());
        }
    }
}

impl Active {
    /// Takes note of frames that were written at its end.
    fn absorb(&mut self, frames: &[u8], mut pending: Option<&mut Pending>) {
        let mut state = self.segment.state_mut();
        let mut rest = frames;
        while rest.len() >= HEADER_BYTES {
            let (frame, after) = rest.split_at(frame_bytes(rest));
            rest = after;
            let mut position = u64_at(frame, 16).unwrap_or(self.end.position);
            debug_assert!(position >= self.end.position, "positions rise");
            debug_assert_eq!(
                u64_at(frame, 8),
                Some(self.end.sequence + 1),
                "a frame follows on the one before"
            );
            for item in items(&frame[HEADER_BYTES..]) {
                let pending = pending.as_deref_mut();
                match (item, pending) {
                    (Ok(Item::Message { topic, .. }), _) => {
                        let posting = Posting {
                            position,
                            offset: self.end.offset,
                        };
                        if let Some(index) = &mut state.index {
                            index.add(topic, posting);
                        }
                        position += 1;
                    }
                    (Ok(Item::Put { key, value }), Some(pending)) => {
                        pending.changes.change(key, Some(value));
                    }
                    (Ok(Item::Remove { key }), Some(pending)) => pending.changes.change(key, None),
                    _ => {}
                }
            }
            self.end = End {
                offset: self.end.offset + frame.len() as u64,
                sequence: u64_at(frame, 8).unwrap_or(self.end.sequence),
                position,
            };
        }
        if let Some(pending) = pending {
            pending.through = self.end.sequence;
            pending.next_position = self.end.position;
        }
        state.end = self.end;
    }

    /// It is full: gives back room that was reserved, and lets readers open it themselves.
    fn seal(self) {
        if let Err(error) = self.file.set_length(self.end.offset) {
            tracing::warn!("cannot give back reserved room of the log: {error}");
        }
        self.segment.state_mut().file = None;
    }
}

/// Bytes of the first frame.
fn frame_bytes(frames: &[u8]) -> usize {
    let body = u32_at(frames, 4).unwrap_or(0) as usize;
    (HEADER_BYTES + body).min(frames.len())
}

/// Bytes of as many whole frames as there is room for.
fn frames_within(frames: &[u8], room: u64) -> usize {
    let mut end = 0;
    while end < frames.len() {
        let next = end + frame_bytes(&frames[end..]);
        if next as u64 > room {
            break;
        }
        end = next;
    }
    end
}
