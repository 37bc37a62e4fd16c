//! Rewriting segments that only few readers hold, to what these need.
//!
//! Segments go from the front of the log, so one session that sleeps long would hold all that was published since. Its
//! shard tells what the readers need that are furthest behind ([`LogNeeds`](sterna_broker::LogNeeds)). Segments before
//! the needs of all others are copied without the rest: by their indexes, frame by frame. Neighbours that become small
//! are joined into one file. Positions and numbers of frames stay, with gaps.
//!
//! # Crashes
//!
//! The copy is a draft until it is synced, and then takes the name of its first segment. From then on it stands for all
//! segments that it was made of, and its header says so. A start removes those that are still there. So at each moment
//! the files have all that is needed, once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::kept::{Kept, NeededFrame, Room};
use super::read::{TOGETHER_BYTES, Window, open_segment};
use super::shared::{Damage, HandleNeeds, Shared};
use super::writer::Step;
use crate::disk::{DiskFile, UNFINISHED, remove_if_there};
use crate::log::frame::{Draft, put_messages};
use crate::log::index::{Index as _, IndexBuilder};
use crate::log::scan::Reason;
use crate::log::segment::{
    End, FOLDER, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentState, index_name,
    segment_name,
};
use crate::settings::{LARGEST_SEGMENT_BYTES, Settings};

/// Bytes that are read and written in one step, about.
const PART_BYTES: u64 = 1 << 20;

/// Bytes of a draft that are written at once.
const WRITE_BYTES: usize = 1 << 18;

/// A file of less than this part of a segment is joined with its neighbours.
const SMALL_PART: u64 = 4;

/// Time between two attempts after a failure, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// Time between two looks at a segment while the log has little room left, in milliseconds.
const URGENT_MS: u64 = 5_000;

/// Rewrites segments, a part in each step.
#[derive(Debug)]
pub(crate) struct Rewriter {
    shared: Arc<Shared>,
    /// Of segments that few readers hold, by their numbers.
    looks: BTreeMap<u64, Look>,
    job: Option<Job>,
    /// A rewritten segment has its name, which is not known to be on the disk. Segments whose files are to go once it is.
    replaced: Option<BTreeSet<u64>>,
    /// It was said that looks would take too much memory.
    has_told_memory: bool,
    rewritings: u64,
    /// Until then nothing is read or written: what was last has taken so long, or failed.
    rests_until_ms: u64,
}

/// The knowledge of a segment.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// When it is looked at next.
    at_ms: u64,
    /// The report of needs by which it was looked at last.
    told: u64,
    /// `None` before the first look.
    stays: Option<Stays>,
}

/// How much of a segment would stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stays {
    /// About these bytes of frames.
    About(u64),
    /// The file as it is: frames are damaged, missing, or cannot be read.
    Damaged,
    /// The file as it is: there is not the memory to say what is needed of it.
    TooLarge,
}

/// Segments that are being rewritten.
#[derive(Debug)]
struct Job {
    needs: Vec<HandleNeeds>,
    told: u64,
    segments: Vec<Arc<Segment>>,
    /// The number of them that are copied.
    copied: usize,
    source: Option<Source>,
    header: SegmentHeader,
    name: String,
    draft: Arc<dyn DiskFile>,
    /// Frames that are not written to the draft yet, and where they belong.
    frames: Vec<u8>,
    frames_at: u64,
    frame: Draft,
    index: IndexBuilder,
}

/// The segment that is being copied.
#[derive(Debug)]
struct Source {
    file: Arc<dyn DiskFile>,
    end: End,
    /// The frames that stay, in order.
    frames: Vec<NeededFrame>,
    next: usize,
}

/// How far a part has come.
enum Copied {
    /// There is more; the number of bytes so far.
    Part(u64),
    All,
    /// The segment that is being copied cannot be: the files are left as they are.
    Never,
}

/// The positions of a segment's messages.
fn positions(segment: &Segment, end: End) -> Range<u64> {
    segment.first_position..end.position
}

/// Whether a rewriting frees enough, by bytes of frames before and after it.
fn pays(settings: &Settings, bytes: u64, kept_bytes: u64) -> bool {
    let freed_bytes = u128::from(bytes.saturating_sub(kept_bytes));
    let least = u128::from(bytes) * u128::from(settings.rewrite_least_percent);
    freed_bytes > 0 && freed_bytes * 100 >= least
}

/// Bytes of a segment's frames.
fn frame_bytes(segment: &Segment) -> u64 {
    (segment.end().offset).saturating_sub(SEGMENT_HEADER_BYTES as u64)
}

impl Job {
    /// About the memory that it takes, in bytes.
    fn memory_bytes(&self) -> usize {
        let frames = self.source.as_ref().map_or(0, |source| source.frames.len());
        frames * size_of::<NeededFrame>() + self.frames.capacity() + self.index.memory_bytes()
    }

    /// Copies about [`PART_BYTES`].
    fn copy(&mut self, shared: &Shared) -> io::Result<Copied> {
        let mut bytes = 0;
        while let Some(segment) = self.segments.get(self.copied) {
            let source = match &mut self.source {
                Some(source) => source,
                none => {
                    let end = segment.end();
                    let open = open_segment(shared, segment, end)?;
                    if open.index.has_damage() {
                        return Ok(Copied::Never);
                    }
                    bytes += open.index.memory_bytes() as u64;
                    let room = Room::of(shared, &open.index);
                    let positions = positions(segment, end);
                    let kept = Kept::of(&open.index, &positions, &self.needs, &room);
                    let Some(frames) = kept.and_then(|kept| kept.frames(&open.index, &room)) else {
                        return Ok(Copied::Never);
                    };
                    none.insert(Source {
                        frames,
                        file: open.file,
                        end,
                        next: 0,
                    })
                }
            };
            let mut window = Window::new(&*source.file, source.end.offset);
            while let Some(frame) = source.frames.get(source.next) {
                let (offset, positions) = (frame.offset, frame.positions.clone());
                if bytes + window.read_bytes >= PART_BYTES {
                    return Ok(Copied::Part(bytes + window.read_bytes));
                }
                source.next += 1;
                let next = source.frames.get(source.next);
                let is_close = next.is_some_and(|next| next.offset - offset < TOGETHER_BYTES);
                let Some(header) = window.frame(offset, is_close, shared.seal)? else {
                    if window.has_unreadable {
                        // That may pass.
                        let reason = "the device cannot read a frame at the moment";
                        return Err(io::Error::other(reason));
                    }
                    let name = segment_name(segment.number);
                    shared.add_damage(Damage {
                        file: shared.disk.display_name(&name),
                        offset,
                        bytes: 0,
                        reason: Reason::Body.to_string(),
                    });
                    return Ok(Copied::Never);
                };
                let body = window.body(offset, &header);
                let place = self.frames_at + self.frames.len() as u64;
                let first_position = put_messages(
                    &mut self.frames,
                    &mut self.frame,
                    (&header, body),
                    positions,
                    shared.seal,
                )
                .map_err(io::Error::other)?;
                self.index
                    .add_frame(place, first_position, self.frame.body());
                bytes += header.frame_bytes();
                if self.frames.len() >= WRITE_BYTES {
                    write_out(&*self.draft, &mut self.frames, &mut self.frames_at)?;
                }
            }
            bytes += window.read_bytes;
            self.source = None;
            self.copied += 1;
        }
        write_out(&*self.draft, &mut self.frames, &mut self.frames_at)?;
        Ok(Copied::All)
    }
}

fn write_out(draft: &dyn DiskFile, frames: &mut Vec<u8>, at: &mut u64) -> io::Result<()> {
    draft.write_at(*at, frames)?;
    *at += frames.len() as u64;
    frames.clear();
    Ok(())
}

impl Rewriter {
    /// `replaced` are segments for which another stands and whose files are still there, by their numbers.
    pub(crate) fn new(shared: Arc<Shared>, replaced: BTreeSet<u64>) -> Self {
        Self {
            shared,
            looks: BTreeMap::new(),
            job: None,
            replaced: (!replaced.is_empty()).then_some(replaced),
            has_told_memory: false,
            rewritings: 0,
            rests_until_ms: 0,
        }
    }

    /// # Panics
    /// Where the segments that are being rewritten, or their copy, do not agree with the log.
    pub(super) fn check(&self) {
        let segments = self.shared.segments();
        if let Some(replaced) = &self.replaced {
            let mut numbers = segments.iter().map(|segment| segment.number);
            assert!(
                !numbers.any(|number| replaced.contains(&number)),
                "a segment that another stands for is none of the log's"
            );
        }
        let Some(job) = &self.job else { return };
        assert!(
            self.replaced.is_none(),
            "files are gone before the next rewriting"
        );
        assert!(job.copied <= job.segments.len(), "segments that are copied");
        let start = SEGMENT_HEADER_BYTES as u64;
        assert!(job.frames_at >= start, "a draft begins with its header");
        if let Some(source) = &job.source {
            assert!(
                job.copied < job.segments.len(),
                "a segment that is copied is one of them"
            );
            assert!(source.next <= source.frames.len(), "frames that are copied");
            let mut pairs = source.frames.iter().zip(source.frames.iter().skip(1));
            assert!(
                pairs.all(|(one, next)| {
                    let is_before = one.positions.end <= next.positions.start;
                    is_before && one.offset < next.offset
                }),
                "frames that stay are in order"
            );
        }
        let first = &job.segments[0];
        let at = segments.iter().position(|known| Arc::ptr_eq(known, first));
        if let Some(at) = at {
            let here = segments[at..].iter().zip(&job.segments);
            let same = here.filter(|(known, own)| Arc::ptr_eq(known, own)).count();
            assert_eq!(
                same,
                job.segments.len(),
                "segments that are rewritten are neighbours"
            );
        }
    }

    /// Whether a rewritten segment has its name, and what it stands for is still to go. Nothing else is removed or
    /// rewritten before.
    pub(crate) const fn is_unfinished(&self) -> bool {
        self.replaced.is_some()
    }

    /// Removes the files for which a rewritten segment stands.
    pub(crate) fn finish(&mut self, indexed: &mut BTreeSet<u64>) -> Result<(), String> {
        let Some(replaced) = &mut self.replaced else {
            return Ok(());
        };
        let disk = &*self.shared.disk;
        // First the name: from then on nobody needs the others.
        disk.sync_folder(FOLDER).map_err(|error| {
            format!("the name of a rewritten segment is not known to be on the disk: {error}")
        })?;
        if replaced.is_empty() {
            self.replaced = None;
            return Ok(());
        }
        let mut failure = None;
        replaced.retain(|&number| {
            let removed = [index_name(number), segment_name(number)]
                .iter()
                .try_for_each(|name| remove_if_there(disk, name));
            if let Err(error) = &removed {
                let name = disk.display_name(&segment_name(number));
                failure = Some(format!(
                    "another segment stands for {name}, which cannot be removed: {error}. \
                     Nothing else is removed or rewritten before"
                ));
            } else {
                indexed.remove(&number);
                self.looks.remove(&number);
            }
            removed.is_err()
        });
        let synced = disk.sync_folder(FOLDER).map_err(|error| {
            format!("removals of segments are not known to be on the disk: {error}")
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        // They are removed, and are so once more after a failed sync.
        synced?;
        self.replaced = None;
        Ok(())
    }

    /// Does a part of the work, if there is any. Changes of frames up to `applied` are in the records' file.
    pub(crate) fn step(&mut self, now_ms: u64, applied: u64, indexed: &mut BTreeSet<u64>) -> Step {
        if now_ms < self.rests_until_ms {
            return Step::At(self.rests_until_ms);
        }
        let Some(mut job) = self.job.take() else {
            return self.plan(now_ms, applied);
        };
        let result = if self.is_current(&job) {
            job.copy(&self.shared)
        } else {
            self.shared.rewrite_bytes.store(0, Ordering::Relaxed);
            // Its first segment went, for nobody needs it any more; or the log cannot be read at the moment.
            self.drop_draft(&job);
            return Step::Again;
        };
        let result = match result {
            Ok(Copied::Part(bytes)) => {
                let memory_bytes = job.memory_bytes() as u64;
                self.shared
                    .rewrite_bytes
                    .store(memory_bytes, Ordering::Relaxed);
                self.job = Some(job);
                return self.rest_for(now_ms, bytes);
            }
            Ok(Copied::All) => self.put_in_place(&mut job, indexed),
            Ok(Copied::Never) => Ok(false),
            Err(error) => Err(error),
        };
        self.shared.rewrite_bytes.store(0, Ordering::Relaxed);
        match result {
            Ok(true) => {
                let kept_bytes = job.frames_at - SEGMENT_HEADER_BYTES as u64;
                let stays = Some(Stays::About(kept_bytes));
                self.note(&job.segments[..1], now_ms, job.told, stays);
                Step::Again
            }
            Ok(false) => {
                self.drop_draft(&job);
                for (at, segment) in job.segments.iter().enumerate() {
                    // Nothing is gained, as far as is known.
                    let stays = if at == job.copied {
                        Stays::Damaged
                    } else {
                        Stays::About(frame_bytes(segment))
                    };
                    self.note(std::slice::from_ref(segment), now_ms, job.told, Some(stays));
                }
                Step::Again
            }
            Err(error) => {
                self.drop_draft(&job);
                self.failed(now_ms, &job.segments, job.told, &error)
            }
        }
    }

    /// Rests for the time that the setting gives so many bytes.
    fn rest_for(&mut self, now_ms: u64, bytes: u64) -> Step {
        let per_s = self.shared.settings.rewrite_bytes_per_s;
        self.rests_until_ms = now_ms + bytes.saturating_mul(1000) / per_s.max(1);
        Step::Again
    }

    /// Leaves segments as they are that cannot be rewritten, and rests before the next attempt.
    fn failed(
        &mut self,
        now_ms: u64,
        segments: &[Arc<Segment>],
        told: u64,
        error: &io::Error,
    ) -> Step {
        let name = segment_name(segments[0].number);
        tracing::warn!("store: {name} cannot be rewritten: {error}");
        self.note(segments, now_ms, told, None);
        self.rests_until_ms = now_ms + RETRY_MS;
        Step::At(self.rests_until_ms)
    }

    /// Notes what is known of segments since now.
    fn note(&mut self, segments: &[Arc<Segment>], now_ms: u64, told: u64, stays: Option<Stays>) {
        let look = Look {
            at_ms: now_ms.saturating_add(self.shared.settings.rewrite_interval_ms),
            told,
            stays,
        };
        for segment in segments {
            self.looks.insert(segment.number, look);
        }
    }

    /// Whether a job's segments are still those of the log.
    fn is_current(&self, job: &Job) -> bool {
        let segments = self.shared.segments();
        let first = &job.segments[0];
        let at = segments.iter().position(|known| Arc::ptr_eq(known, first));
        at.is_some() && self.shared.certainty().is_some()
    }

    fn drop_draft(&self, job: &Job) {
        // The next start removes it otherwise.
        let _ = self.shared.disk.remove(&job.name);
    }

    /// Looks at the next segment that is due, or begins to rewrite some.
    fn plan(&mut self, now_ms: u64, applied: u64) -> Step {
        let shared = Arc::clone(&self.shared);
        let told = shared.needs_told();
        let segments = shared.segments();
        let Some(needs) = shared.needs().filter(|_| shared.certainty().is_some()) else {
            return Step::Idle;
        };
        let held = &segments[..self.held(&segments, &needs, applied)];
        if let Some(first) = segments.first() {
            self.looks.retain(|&number, _| number >= first.number);
        }
        let interval_ms = shared.settings.rewrite_interval_ms;
        for segment in held {
            self.looks.entry(segment.number).or_insert_with(|| Look {
                at_ms: now_ms.saturating_add(interval_ms),
                told: 0,
                stays: None,
            });
        }
        // Those that nobody has looked at come first, at once where there is little room left. Others are
        // looked at again when nothing is to be rewritten: reports may come faster than all can be looked at.
        let is_urgent = shared.has_little_room();
        let is_due = |look: &Look| {
            let soon_ms = look.at_ms.saturating_sub(interval_ms) + URGENT_MS.min(interval_ms);
            let is_time =
                now_ms >= look.at_ms || is_urgent && (look.stays.is_none() || now_ms >= soon_ms);
            look.told != told && is_time
        };
        let due = |looks: &BTreeMap<u64, Look>, is_first: bool| {
            let mut held = held.iter();
            let found = held.find(|segment| {
                let look = looks.get(&segment.number);
                look.is_some_and(|look| is_due(look) && look.stays.is_none() == is_first)
            });
            found.map(Arc::clone)
        };
        if let Some(segment) = due(&self.looks, true) {
            return self.look(now_ms, &segment, &needs, told);
        }
        if let Some(chosen) = self.choose(held) {
            let segments = held[chosen].to_vec();
            return match self.begin(segments.clone(), needs, told) {
                Ok(job) => {
                    self.job = Some(job);
                    Step::Again
                }
                Err(error) => self.failed(now_ms, &segments, told, &error),
            };
        }
        if let Some(segment) = due(&self.looks, false) {
            return self.look(now_ms, &segment, &needs, told);
        }
        let looks = held.iter().filter_map(|held| self.looks.get(&held.number));
        // The others wait for the next report.
        let later = looks.filter(|look| look.told != told);
        let next_ms = later.map(|look| look.at_ms).min();
        next_ms.map_or(Step::Idle, Step::At)
    }

    /// Finds out how much of a segment is needed.
    fn look(
        &mut self,
        now_ms: u64,
        segment: &Arc<Segment>,
        needs: &[HandleNeeds],
        told: u64,
    ) -> Step {
        let found = look_at(&self.shared, segment, needs);
        self.shared.rewrite_bytes.store(0, Ordering::Relaxed);
        let name = segment_name(segment.number);
        let (stays, read_bytes) = match found {
            Ok(Looked { stays, read_bytes }) => (Some(stays), read_bytes),
            Err(error) => {
                tracing::debug!("store: {name} is not looked at: {error}");
                (None, PART_BYTES)
            }
        };
        if stays == Some(Stays::TooLarge) && !std::mem::replace(&mut self.has_told_memory, true) {
            let most_bytes = self.shared.settings.maximum_rewrite_memory_bytes;
            tracing::warn!(
                "store: {name} and others are not rewritten: to say what is needed of them takes more than \
                 store.maximum_rewrite_memory_bytes ({most_bytes})"
            );
        }
        let before = self.looks.get(&segment.number).and_then(|look| look.stays);
        if stays == Some(Stays::Damaged) && before != stays {
            tracing::warn!(
                "store: {name} stays as it is: frames are damaged or missing, or cannot be read"
            );
        }
        self.note(std::slice::from_ref(segment), now_ms, told, stays);
        self.rest_for(now_ms, read_bytes)
    }

    /// The number of segments at the front of the log that are full, and held by few readers that are known.
    fn held(&self, segments: &[Arc<Segment>], needs: &[HandleNeeds], applied: u64) -> usize {
        let all_from = needs.iter().map(|handle| handle.all_from).min();
        let all_from = all_from.unwrap_or(0);
        let readers = needs.iter().flat_map(|handle| &handle.needs.readers);
        let mut firsts: Vec<u64> = readers.map(sterna_broker::ReaderNeeds::first).collect();
        firsts.sort_unstable();
        let most_readers = self.shared.settings.maximum_rewrite_readers;
        let roomy = segments.len().saturating_sub(self.shared.roomy_segments());
        let is_held = |&at: &usize| {
            let next = &segments[at + 1];
            // Changes of records that are not applied for certain are needed by the next start.
            next.first_sequence <= applied + 1
                && next.first_position <= all_from
                && firsts.partition_point(|&first| first < next.first_position) <= most_readers
        };
        (0..roomy).take_while(is_held).count()
    }

    /// Neighbours among the held segments that lose enough when they are rewritten into one.
    fn choose(&self, held: &[Arc<Segment>]) -> Option<Range<usize>> {
        let settings = &self.shared.settings;
        let pays = |bytes, kept_bytes| pays(settings, bytes, kept_bytes);
        let mut start = 0;
        while start < held.len() {
            let (mut bytes, mut kept_bytes, mut end) = (0, 0, start);
            for segment in &held[start..] {
                let look = self.looks.get(&segment.number);
                let Some(Stays::About(stays)) = look.and_then(|look| look.stays) else {
                    break;
                };
                let whole = frame_bytes(segment);
                let is_small = whole < settings.segment_bytes / SMALL_PART;
                if !(is_small || pays(whole, stays))
                    || end > start && kept_bytes + stays > settings.segment_bytes
                {
                    break;
                }
                bytes += whole;
                kept_bytes += stays;
                end += 1;
            }
            if pays(bytes, kept_bytes) {
                return Some(start..end);
            }
            start = end.max(start + 1);
        }
        None
    }

    /// Begins a draft for segments.
    fn begin(
        &self,
        segments: Vec<Arc<Segment>>,
        needs: Vec<HandleNeeds>,
        told: u64,
    ) -> io::Result<Job> {
        let shared = &*self.shared;
        let (first, last) = (&segments[0], &segments[segments.len() - 1]);
        let header = SegmentHeader {
            identity: shared.identity,
            number: first.number,
            first_sequence: first.first_sequence,
            first_position: first.first_position,
            has_gaps: true,
            joined: u32::try_from(last.number - first.number).map_err(io::Error::other)?,
        };
        let name = format!("{}{UNFINISHED}", segment_name(first.number));
        remove_if_there(&*shared.disk, &name)?;
        let draft = shared.disk.create(&name)?;
        draft.write_at(0, &header.encode())?;
        Ok(Job {
            needs,
            told,
            index: IndexBuilder::new(header.first_position),
            segments,
            copied: 0,
            source: None,
            header,
            name,
            draft,
            frames: Vec::new(),
            frames_at: SEGMENT_HEADER_BYTES as u64,
            frame: Draft::default(),
        })
    }

    /// Puts a complete draft into the place of its segments, if it frees as much as was expected. False where it
    /// does not.
    fn put_in_place(&mut self, job: &mut Job, indexed: &mut BTreeSet<u64>) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        let before: u64 = job
            .segments
            .iter()
            .map(|segment| frame_bytes(segment))
            .sum();
        let after = job.frames_at - SEGMENT_HEADER_BYTES as u64;
        if !pays(&shared.settings, before, after) || job.frames_at > LARGEST_SEGMENT_BYTES {
            return Ok(false);
        }
        job.draft.sync()?;
        let first = &job.segments[0];
        let name = segment_name(first.number);
        // An index of the file as it was must not be taken for one of the file as it will be.
        indexed.remove(&first.number);
        remove_if_there(&*shared.disk, &index_name(first.number))?;
        shared.disk.sync_folder(FOLDER)?;
        let end = End {
            offset: job.frames_at,
            ..job.segments[job.segments.len() - 1].end()
        };
        self.rewritings += 1;
        let state = SegmentState {
            end,
            file: None,
            index: Some(std::mem::replace(&mut job.index, IndexBuilder::new(0))),
            lacks_index: false,
            is_replaced: false,
        };
        let rewritten = Arc::new(Segment::rewritten(&job.header, state, self.rewritings));
        // Nobody opens a file by a name while it becomes another's.
        let mut states: Vec<_> = (job.segments.iter())
            .map(|segment| segment.state_mut())
            .collect();
        shared.disk.rename(&job.name, &name)?;
        shared.change_segments(|segments| {
            let at = segments.iter().position(|known| Arc::ptr_eq(known, first));
            debug_assert!(at.is_some(), "it was current");
            if let Some(at) = at {
                segments.splice(at..at + job.segments.len(), [rewritten]);
            }
        });
        for state in &mut states {
            state.is_replaced = true;
        }
        drop(states);
        let others = job.segments.iter().skip(1);
        self.replaced = Some(others.map(|segment| segment.number).collect());
        shared.close_gone();
        let count = job.segments.len();
        shared
            .rewrite_counts
            .rewritten(count as u64, before - after);
        tracing::info!(
            "store: {name} stands for {count} segments now, {after} of {before} bytes stay"
        );
        Ok(true)
    }
}

/// The result of a look at a segment.
struct Looked {
    stays: Stays,
    read_bytes: u64,
}

/// Finds out how much of a segment stays, by the number of messages that are needed.
fn look_at(shared: &Shared, segment: &Segment, needs: &[HandleNeeds]) -> io::Result<Looked> {
    let file = shared.disk.open(&index_name(segment.number));
    let most_bytes = shared.settings.maximum_rewrite_memory_bytes as u64;
    if file
        .and_then(|file| file.length())
        .is_ok_and(|bytes| bytes > most_bytes)
    {
        return Ok(Looked {
            stays: Stays::TooLarge,
            read_bytes: 0,
        });
    }
    let end = segment.end();
    let open = open_segment(shared, segment, end)?;
    let read_bytes = open.index.memory_bytes() as u64;
    let looked = |stays| Ok(Looked { stays, read_bytes });
    if open.index.has_damage() {
        return looked(Stays::Damaged);
    }
    let positions = positions(segment, end);
    let room = Room::of(shared, &open.index);
    let Some(kept) = Kept::of(&open.index, &positions, needs, &room) else {
        return looked(Stays::TooLarge);
    };
    let needed = kept.messages(&open.index, &positions);
    let of = u128::from(open.index.messages().max(1));
    let bytes = u128::from(frame_bytes(segment)) * u128::from(needed) / of;
    looked(Stays::About(u64::try_from(bytes).unwrap_or(u64::MAX)))
}
