//! Answers requests of shards for messages of the log, on a thread of its own.
//!
//! A segment's index says which of its topics match, once for all its messages. Where few of its messages
//! are wanted, their frames are read one by one; where many are, the segment is read through.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};

use super::shared::{Damage, Shared};
use crate::disk::{DiskFile, read_all, read_around};
use crate::log::frame::{HEADER_BYTES, Header, Seal, is_sound, messages};
use crate::log::index::{Index, IndexBuilder, IndexFile, Posting};
use crate::log::scan::{Damaged, Found, Reason, Scanner};
use crate::log::segment::{End, SEGMENT_HEADER_BYTES, Segment, index_name, segment_name};

/// Asks for messages.
#[derive(Clone, Debug)]
pub struct Request {
    /// Comes back with the answer.
    pub reader: u64,
    /// The first position.
    pub from: u64,
    /// The position behind the last; `u64::MAX` for the end of the log.
    pub to: u64,
    /// MQTT topic filters; a message is wanted if one matches its topic.
    pub filters: Arc<[Box<str>]>,
    /// Number of messages after which the answer ends; 0 counts as 1.
    pub most_messages: usize,
    /// Bytes of topics and contents above which the answer ends. One message may be larger.
    pub most_bytes: usize,
}

/// A message of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredMessage {
    /// Its position.
    pub position: u64,
    /// Its topic.
    pub topic: Box<str>,
    /// Its content, in memory of its own: a reader that keeps it keeps nothing of the others.
    pub content: Bytes,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// As in the request.
    pub reader: u64,
    /// In the order of positions.
    pub messages: Vec<StoredMessage>,
    /// The first position that was not looked at: where the end was reached, that behind the last written
    /// message. It may be before the end although the answer is not full.
    pub next: u64,
}

/// When more than one of this number of messages is wanted, all are read through.
const SPARSE: u64 = 4;

/// Bytes that are read for a frame whose length is not known.
const FRAME_GUESS_BYTES: usize = 1 << 11;

/// Frames that are closer than this are read together, in bytes.
pub(super) const TOGETHER_BYTES: u64 = 1 << 16;

/// Number of plans that are remembered.
const MOST_PLANS: usize = 16;

/// In a plan: the segment grows.
const GROWING: u64 = u64::MAX;

/// Segments that one answer looks into at most. Other readers wait meanwhile.
const MOST_SEGMENTS: usize = 32;

/// Segments whose files stay open.
const MOST_OPEN: usize = 64;

/// Reads messages. It remembers indexes of segments, and the plans of its last requests.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    /// The last used at the back.
    open: VecDeque<OpenSegment>,
    plans: VecDeque<Plan>,
    /// The segment that cannot be read at the moment, if that was said.
    waiting_for: Option<u64>,
}

/// A full segment, with its file and its index.
#[derive(Clone, Debug)]
pub(super) struct OpenSegment {
    file_id: FileId,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) index: Arc<IndexFile>,
}

/// A state of a segment's file: by the segment's number, that of the rewriting that has made the file, and the end of
/// its frames.
type FileId = (u64, u64, u64);

fn file_id(segment: &Segment, end_offset: u64) -> FileId {
    (segment.number, segment.rewriting, end_offset)
}

/// The messages of a segment that match a reader's filters.
#[derive(Clone, Debug)]
struct Plan {
    file_id: FileId,
    filters: Arc<[Box<str>]>,
    wanted: Wanted,
}

/// Which messages of a segment are wanted.
#[derive(Clone, Debug)]
enum Wanted {
    /// These, in order.
    Few(Arc<Vec<Posting>>),
    /// More than a few: the segment is read through, and the filters are asked.
    Many,
}

impl Wanted {
    /// Asks the filters about each topic of a segment, once for all its messages.
    fn of(index: &dyn Index, filters: &[Box<str>]) -> Self {
        // It does not know all messages. A reader of the whole segment tells what is damaged.
        if index.has_damage() {
            return Self::Many;
        }
        let mut wanted = 0;
        for filter in filters {
            index.matching(filter, &mut |_, count| wanted += u64::from(count));
        }
        if wanted * SPARSE > index.messages() {
            return Self::Many;
        }
        let mut topics: FxHashSet<Box<str>> = FxHashSet::default();
        for filter in filters {
            index.matching(filter, &mut |topic, _| {
                topics.insert(topic.into());
            });
        }
        let mut postings = Vec::with_capacity(wanted as usize);
        for topic in &topics {
            index.postings(topic, &mut postings);
        }
        postings.sort_unstable();
        Self::Few(Arc::new(postings))
    }
}

/// Filters, with the topics that they were asked about in one read.
struct Matcher<'a> {
    filters: &'a [Box<str>],
    known: FxHashMap<Box<str>, bool>,
}

impl Matcher<'_> {
    fn wants(&mut self, topic: &str) -> bool {
        if let Some(known) = self.known.get(topic) {
            return *known;
        }
        let mut filters = self.filters.iter();
        let is_wanted = filters.any(|filter| sterna_topic::matches(filter, topic));
        self.known.insert(topic.into(), is_wanted);
        is_wanted
    }
}

/// An answer that grows.
#[derive(Debug)]
struct Gathered<'a> {
    request: &'a Request,
    from: u64,
    to: u64,
    messages: Vec<StoredMessage>,
    bytes: usize,
    next: u64,
}

impl Gathered<'_> {
    /// Whether another message finds room.
    fn is_full(&self) -> bool {
        self.messages.len() >= self.request.most_messages.max(1)
            || (!self.messages.is_empty() && self.bytes >= self.request.most_bytes)
    }

    /// Adds a message, unless it finds no room.
    fn add(&mut self, position: u64, topic: &str, content: &[u8]) -> bool {
        let bytes = self.bytes + topic.len() + content.len();
        if self.is_full() || (!self.messages.is_empty() && bytes > self.request.most_bytes) {
            return false;
        }
        debug_assert!(
            position >= self.next && position < self.to,
            "messages come in order, and are asked for"
        );
        self.bytes = bytes;
        self.messages.push(StoredMessage {
            position,
            topic: topic.into(),
            content: Bytes::copy_from_slice(content),
        });
        self.next = position + 1;
        true
    }

    /// The answer as far as it goes before a segment is looked at, or as far as that was read.
    fn stop_before(mut self, segment: &Segment) -> Answer {
        self.next = self.next.max(segment.first_position.min(self.to));
        self.finish()
    }

    fn finish(self) -> Answer {
        Answer {
            reader: self.request.reader,
            messages: self.messages,
            next: self.next,
        }
    }
}

/// The part of a segment that can be read.
#[derive(Debug)]
struct View<'a> {
    segment: &'a Segment,
    end: End,
    file: Arc<dyn DiskFile>,
    wanted: Wanted,
    /// Where to begin to read through.
    start: u64,
}

impl View<'_> {
    /// Whether frames that the view shows are now in another segment.
    fn has_moved(&self) -> bool {
        let state = self.segment.state();
        state.end.offset < self.end.offset || state.is_replaced
    }
}

/// A segment failed while it was read, or was rewritten before.
#[derive(Debug)]
struct Moved;

/// Whether an error is the file's own and stays. Errors of the system pass, such as too many open files, or a
/// device that is gone: the messages are there, and are not to be passed over.
fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            open: VecDeque::new(),
            plans: VecDeque::new(),
            waiting_for: None,
        }
    }

    /// Answers a request. Unreadable messages are left out, and reported as damage. `None` after a sync failed,
    /// until its frames are in another segment.
    pub(crate) fn answer(&mut self, request: &Request) -> Option<Answer> {
        loop {
            let certainty = self.shared.certainty()?;
            match self.gather(request) {
                Ok(answer) if self.shared.certainty() == Some(certainty) => return Some(answer),
                _ => {}
            }
        }
    }

    /// As [`answer`](Self::answer), with the messages that can be read at the moment.
    pub(crate) fn answer_now(&mut self, request: &Request) -> Answer {
        loop {
            if let Ok(answer) = self.gather(request) {
                return answer;
            }
        }
    }

    fn gather(&mut self, request: &Request) -> Result<Answer, Moved> {
        let segments = self.shared.segments();
        let end = segments.last().map_or(1, |last| last.end().position);
        let to = request.to.min(end);
        let mut gathered = Gathered {
            request,
            from: request.from,
            to,
            messages: Vec::new(),
            bytes: 0,
            next: request.from,
        };
        let first = segments.partition_point(|segment| segment.first_position <= request.from);
        let segments = &segments[first.saturating_sub(1)..];
        for (index, segment) in segments.iter().enumerate() {
            if segment.first_position >= to || gathered.next >= to {
                break;
            }
            if index == MOST_SEGMENTS {
                gathered.next = segment.first_position;
                return Ok(gathered.finish());
            }
            let view = match self.view(segment, request) {
                Ok(view) => view,
                Err(_) if segment.state().is_replaced => return Err(Moved),
                // It has been removed meanwhile: no reader needs it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if is_damage(&error) => {
                    tracing::warn!("{} cannot be read: {error}", self.name(segment.number));
                    continue;
                }
                Err(error) => {
                    self.waits_for(segment, &error);
                    return Ok(gathered.stop_before(segment));
                }
            };
            match self.read_segment(&view, &mut gathered) {
                Ok(true) => {}
                Ok(false) => return Ok(gathered.finish()),
                Err(_) if view.has_moved() => return Err(Moved),
                Err(error) if is_damage(&error) => {
                    tracing::warn!("{} cannot be read: {error}", self.name(segment.number));
                }
                Err(error) => {
                    self.waits_for(segment, &error);
                    return Ok(gathered.stop_before(segment));
                }
            }
        }
        self.waiting_for = None;
        // From behind the end, there is nothing to go on with but that.
        gathered.next = to.max(request.from);
        Ok(gathered.finish())
    }

    /// Reads one segment; `false` where the answer is full.
    fn read_segment(&self, view: &View<'_>, gathered: &mut Gathered<'_>) -> io::Result<bool> {
        match &view.wanted {
            Wanted::Few(postings) => self.read_postings(view, postings, gathered),
            Wanted::Many => self.read_through(view, gathered),
        }
    }

    /// Says once that readers wait for a segment.
    fn waits_for(&mut self, segment: &Segment, error: &io::Error) {
        if self.waiting_for.replace(segment.number) != Some(segment.number) {
            let name = self.name(segment.number);
            tracing::error!("{name} cannot be read at the moment, its readers wait: {error}");
        }
    }

    /// Reads frame by frame; `false` where the answer is full.
    fn read_postings(
        &self,
        view: &View<'_>,
        postings: &[Posting],
        gathered: &mut Gathered<'_>,
    ) -> io::Result<bool> {
        let first = postings.partition_point(|posting| posting.position < gathered.from);
        let mut window = Window::new(&*view.file, view.end.offset);
        // Frames with several messages are checked once.
        let mut checked = None;
        for (index, posting) in postings.iter().enumerate().skip(first) {
            if posting.position >= gathered.to {
                break;
            }
            if gathered.is_full() {
                return Ok(false);
            }
            if checked.is_none_or(|(offset, _)| offset != posting.offset) {
                let mut behind = postings[index..].iter().map(|next| next.offset);
                let next = behind.find(|offset| *offset != posting.offset);
                let is_close = next.is_some_and(|next| next - posting.offset < TOGETHER_BYTES);
                let found = window.frame(posting.offset, is_close, self.shared.seal)?;
                if found.is_none() {
                    let reason = if window.has_unreadable {
                        Reason::Unreadable
                    } else {
                        Reason::Body
                    };
                    self.report(view, posting.offset, 0, reason)?;
                }
                checked = Some((posting.offset, found));
            }
            let Some((_, Some(header))) = checked else {
                continue;
            };
            let body = window.body(posting.offset, &header);
            let nth = posting.position.saturating_sub(header.first_position) as usize;
            if let Some((topic, content)) = messages(body).nth(nth)
                && !gathered.add(posting.position, topic, content)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a segment through; `false` where the answer is full.
    fn read_through(&self, view: &View<'_>, gathered: &mut Gathered<'_>) -> io::Result<bool> {
        let mut matcher = Matcher {
            filters: &gathered.request.filters,
            known: FxHashMap::default(),
        };
        let mut scanner = Scanner::new(&*view.file, self.shared.seal, view.start, view.end.offset);
        // The number of the next frame; `None` where it is not known.
        let mut next_sequence = None;
        while let Some(found) = scanner.next()? {
            let (offset, header) = match found {
                Found::Frame { offset, header } => (offset, header),
                Found::Damaged(damaged) => {
                    self.report(view, damaged.offset, damaged.bytes, damaged.reason)?;
                    next_sequence = None;
                    continue;
                }
            };
            let is_gap = next_sequence.is_some_and(|next| header.sequence > next);
            if is_gap && !view.segment.has_gaps {
                self.report(view, offset, 0, Reason::Missing)?;
            }
            next_sequence = Some(header.sequence.saturating_add(1));
            if header.first_position >= gathered.to || header.sequence > view.end.sequence {
                break;
            }
            for (position, (topic, content)) in
                (header.first_position..).zip(messages(scanner.body()))
            {
                if position < gathered.from || position >= gathered.to {
                    continue;
                }
                // Messages up to here need not be looked at again.
                if gathered.is_full() {
                    return Ok(false);
                }
                if matcher.wants(topic) {
                    if !gathered.add(position, topic, content) {
                        return Ok(false);
                    }
                } else {
                    gathered.next = position + 1;
                }
            }
            // Behind its last frame, a segment that failed may have anything.
            if header.sequence == view.end.sequence {
                break;
            }
        }
        Ok(true)
    }

    /// The part of a segment that a request asks for, by the segment's index.
    fn view<'a>(&mut self, segment: &'a Segment, request: &Request) -> io::Result<View<'a>> {
        let state = segment.state();
        if state.is_replaced {
            return Err(replaced());
        }
        let end = state.end;
        let view = |file, index: &dyn Index, wanted| View {
            segment,
            end,
            file,
            start: index
                .frame_before(request.from)
                .unwrap_or(SEGMENT_HEADER_BYTES as u64),
            wanted,
        };
        if let Some(index) = &state.index {
            let file = match &state.file {
                Some(file) => Arc::clone(file),
                None => self.shared.disk.open(&segment_name(segment.number))?,
            };
            // A segment that grows stays one to be read through, if it is one.
            let growing = file_id(segment, GROWING);
            let wanted = match self.known_plan(growing, request) {
                Some(wanted) => wanted,
                None => Wanted::of(index, &request.filters),
            };
            let view = view(file, index, wanted);
            drop(state);
            if matches!(view.wanted, Wanted::Many) {
                self.remember(growing, request, view.wanted.clone());
            }
            return Ok(view);
        }
        drop(state);
        let open = self.open(segment, end)?;
        let wanted = match self.known_plan(open.file_id, request) {
            Some(wanted) => wanted,
            None => Wanted::of(&*open.index, &request.filters),
        };
        self.remember(open.file_id, request, wanted.clone());
        Ok(view(Arc::clone(&open.file), &*open.index, wanted))
    }

    /// Takes the plan that a request with these filters had for a segment.
    fn known_plan(&mut self, file_id: FileId, request: &Request) -> Option<Wanted> {
        let is_this = |plan: &Plan| plan.file_id == file_id && plan.filters == request.filters;
        let known = self.plans.iter().position(is_this)?;
        Some(self.plans.remove(known)?.wanted)
    }

    fn remember(&mut self, file_id: FileId, request: &Request, wanted: Wanted) {
        self.plans.push_back(Plan {
            file_id,
            filters: Arc::clone(&request.filters),
            wanted,
        });
        if self.plans.len() > MOST_PLANS {
            self.plans.pop_front();
        }
    }

    /// A full segment's file and index.
    fn open(&mut self, segment: &Segment, end: End) -> io::Result<OpenSegment> {
        let this = file_id(segment, end.offset);
        let known = (self.open.iter()).position(|open| open.file_id == this);
        if let Some(open) = known.and_then(|known| self.open.remove(known)) {
            self.open.push_back(open.clone());
            return Ok(open);
        }
        let open = open_segment(&self.shared, segment, end)?;
        self.open.push_back(open.clone());
        let mut bytes: usize = self.open.iter().map(|open| open.index.memory_bytes()).sum();
        while self.open.len() > 1
            && (bytes > self.shared.settings.index_cache_bytes || self.open.len() > MOST_OPEN)
        {
            if let Some(oldest) = self.open.pop_front() {
                bytes -= oldest.index.memory_bytes();
            }
        }
        Ok(open)
    }

    /// # Panics
    /// Where more is open or remembered than may be, or something twice.
    pub(super) fn check(&self) {
        assert!(self.open.len() <= MOST_OPEN, "files that are open");
        assert!(self.plans.len() <= MOST_PLANS, "plans that are remembered");
        let files: FxHashSet<FileId> = self.open.iter().map(|open| open.file_id).collect();
        assert_eq!(files.len(), self.open.len(), "a file is open once");
    }

    /// Closes the files of segments that are gone: they take room until then.
    pub(crate) fn close_gone(&mut self) {
        let segments = self.shared.segments();
        let is_there = |file_id: &FileId| {
            let (number, rewriting, _) = *file_id;
            let mut segments = segments.iter();
            segments.any(|segment| (segment.number, segment.rewriting) == (number, rewriting))
        };
        self.open.retain(|open| is_there(&open.file_id));
        self.plans.retain(|plan| is_there(&plan.file_id));
    }

    fn name(&self, number: u64) -> String {
        self.shared.disk.display_name(&segment_name(number))
    }

    /// Reports damage, or fails where the segment has moved.
    fn report(&self, view: &View<'_>, offset: u64, bytes: u64, reason: Reason) -> io::Result<()> {
        if view.has_moved() {
            return Err(io::Error::other("the segment has moved"));
        }
        self.shared.add_damage(Damage {
            file: self.name(view.segment.number),
            offset,
            bytes,
            reason: reason.to_string(),
        });
        Ok(())
    }
}

/// The error of a segment for which another stands.
fn replaced() -> io::Error {
    io::Error::other("the segment was rewritten")
}

/// Opens a full segment and its index. An index that is in no file is made.
///
/// # Errors
/// The disk's. Also where another segment stands for this one: its files may be that one's.
pub(super) fn open_segment(
    shared: &Shared,
    segment: &Segment,
    end: End,
) -> io::Result<OpenSegment> {
    let disk = &*shared.disk;
    // Both files are of one segment: a rewriting waits, and takes their names afterwards.
    let state = segment.state();
    if state.is_replaced {
        return Err(replaced());
    }
    let file = disk.open(&segment_name(segment.number))?;
    let read = disk.open(&index_name(segment.number));
    drop(state);
    let decode = |bytes| IndexFile::decode(bytes, segment.number, end.offset, shared.seal);
    let index = read.and_then(|file| read_all(&*file)).ok().and_then(decode);
    let index = if let Some(index) = index {
        index
    } else {
        // The maintenance writes it into its file.
        segment.state_mut().lacks_index = true;
        shared.wake_maintenance();
        let built = build_index(shared, segment, &*file, end)?;
        decode(
            built
                .index
                .encode(segment.number, end.offset, end.position, shared.seal),
        )
        .ok_or_else(|| io::Error::other("its index cannot be made"))?
    };
    Ok(OpenSegment {
        file_id: file_id(segment, end.offset),
        file,
        index: Arc::new(index),
    })
}

/// An index that was made from the frames of a segment.
#[derive(Debug)]
pub(crate) struct Built {
    /// It says whether frames are left out.
    pub(crate) index: IndexBuilder,
    /// The device could not read some of them. That may pass, so it is to be made again.
    pub(crate) is_unreadable: bool,
}

/// Makes the index of a segment from its frames. Damage is reported, and passed over.
pub(crate) fn build_index(
    shared: &Shared,
    segment: &Segment,
    file: &dyn DiskFile,
    end: End,
) -> io::Result<Built> {
    let mut builder = IndexBuilder::new(segment.first_position);
    let mut next_position = segment.first_position;
    let mut next_sequence = segment.first_sequence;
    let start = SEGMENT_HEADER_BYTES as u64;
    let mut scanner = Scanner::new(file, shared.seal, start, end.offset);
    let mut is_unreadable = false;
    let damaged_at = |damaged: Damaged| {
        shared.add_damage(Damage {
            file: shared.disk.display_name(&segment_name(segment.number)),
            offset: damaged.offset,
            bytes: damaged.bytes,
            reason: damaged.reason.to_string(),
        });
    };
    // Whether the frames before are damaged: some are missing then.
    let mut is_damaged_before = false;
    let mut frames_end = start;
    // Behind its last frame there may be what a failed sync has left. A start does not look for it in each file.
    while next_sequence <= end.sequence
        && let Some(found) = scanner.next()?
    {
        match found {
            Found::Frame { offset, header } => {
                let is_next = segment.has_gaps || header.sequence <= next_sequence;
                if !is_next && !std::mem::take(&mut is_damaged_before) {
                    builder.set_damaged();
                    damaged_at(Damaged::missing(offset));
                }
                is_damaged_before = false;
                frames_end = offset + header.frame_bytes();
                next_sequence = header.sequence.saturating_add(1);
                if header.first_position >= next_position && header.sequence <= end.sequence {
                    next_position =
                        builder.add_frame(offset, header.first_position, scanner.body());
                }
            }
            // A segment that failed has its last frames in the next one.
            Found::Damaged(damaged) if segment.end().offset >= end.offset => {
                builder.set_damaged();
                is_unreadable |= damaged.reason == Reason::Unreadable;
                is_damaged_before = true;
                damaged_at(damaged);
            }
            Found::Damaged(_) => {}
        }
    }
    // A file that frames were taken out of ends with a frame.
    let is_short = if segment.has_gaps {
        next_sequence <= end.sequence && frames_end < end.offset
    } else {
        next_sequence <= end.sequence
    };
    if is_short && !is_damaged_before && segment.end().offset >= end.offset {
        builder.set_damaged();
        damaged_at(Damaged::missing(frames_end));
    }
    Ok(Built {
        index: builder,
        is_unreadable,
    })
}

/// Bytes of a file from an offset on.
#[derive(Debug)]
pub(super) struct Window<'a> {
    file: &'a dyn DiskFile,
    end: u64,
    at: u64,
    bytes: Vec<u8>,
    /// Whether the device could not read some of the bytes.
    pub(super) has_unreadable: bool,
    /// Bytes that were read so far.
    pub(super) read_bytes: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(file: &'a dyn DiskFile, end: u64) -> Self {
        Self {
            file,
            end,
            at: 0,
            bytes: Vec::new(),
            has_unreadable: false,
            read_bytes: 0,
        }
    }

    /// Has the frame at an offset in the window, and returns its header if the frame is sound.
    pub(super) fn frame(
        &mut self,
        offset: u64,
        more_follow: bool,
        seal: Seal,
    ) -> io::Result<Option<Header>> {
        let guess = if more_follow {
            TOGETHER_BYTES as usize
        } else {
            FRAME_GUESS_BYTES
        };
        if self.slice(offset, HEADER_BYTES).is_none() {
            self.fill(offset, guess)?;
        }
        let header = self.slice(offset, HEADER_BYTES);
        let Some(header) = header.and_then(|bytes| Header::decode(bytes, seal)) else {
            return Ok(None);
        };
        if offset + header.frame_bytes() > self.end {
            return Ok(None);
        }
        let length = header.frame_bytes() as usize;
        if self.slice(offset, length).is_none() {
            self.fill(offset, length.max(guess))?;
        }
        let is_sound = self.slice(offset, length).is_some()
            && is_sound(&header, self.body(offset, &header), seal);
        Ok(is_sound.then_some(header))
    }

    /// The body of a frame that is in the window.
    pub(super) fn body(&self, offset: u64, header: &Header) -> &[u8] {
        let frame = self.slice(offset, header.frame_bytes() as usize);
        frame.map_or(&[], |frame| &frame[HEADER_BYTES..])
    }

    fn slice(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.at)?).ok()?;
        self.bytes.get(start..)?.get(..length)
    }

    fn fill(&mut self, offset: u64, length: usize) -> io::Result<()> {
        let length = (self.end.saturating_sub(offset)).min(length as u64) as usize;
        self.bytes.resize(length, 0);
        self.at = offset;
        let (read, unreadable) = read_around(self.file, offset, &mut self.bytes)?;
        self.bytes.truncate(read);
        self.read_bytes += read as u64;
        self.has_unreadable = !unreadable.is_empty();
        Ok(())
    }
}
