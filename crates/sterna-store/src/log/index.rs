//! The index of a segment: which topics it has messages of, and where.
//!
//! It grows in memory while the segment is written ([`IndexBuilder`]). When the segment is full, it goes
//! into a file beside it (`log/NNNNNNNNNN.index`). That file can always be made again from the segment,
//! so no step waits until it is on the disk.
//!
//! ```text
//! offset  bytes
//!      0      8  "STERNIDX"
//!      8      4  version of the format: 1
//!     12      4  number of topics
//!     16      8  number of the segment
//!     24      8  where the segment's frames end, as an offset in its file
//!     32      8  position of its first message
//!     40      8  position behind its last message
//!     48      4  bytes of all postings
//!     52      4  number of marks
//!     56      4  flags; 1: frames were damaged or missing when it was made
//!     60         postings
//!                topics in the order of their bytes, each:
//!                  length of the topic (2), topic, number of postings (4), bytes of its postings (4)
//!                marks, each: position (8), offset (8)
//!  end-4      4  CRC-32C of all before
//! ```
//!
//! A posting is a message, as two differences to the topic's posting before. The first is that of its position; the
//! topic's first posting counts from the segment's first position. The second is that of its frame's offset; the
//! topic's first posting counts from 0. Both are numbers in groups of 7 bits, the lowest first, with the highest
//! bit of a byte set where more follow. The postings of a topic stand together, in the order of topics.
//!
//! A mark is the first frame that begins at or behind a multiple of 64 KiB and has a message.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::frame::{Seal, messages, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"STERNIDX";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 60;

/// Flag of an index that was made over damage.
const HAS_DAMAGE: u32 = 1;
const CHECKSUM_BYTES: usize = 4;

/// How far marks are apart at least, in bytes of the segment.
const MARK_BYTES: u64 = 1 << 16;

/// About the memory of a topic in an index that grows, beside its name and its postings, in bytes.
const TOPIC_BYTES: usize = 160;

/// A message of a segment: its position, and where its frame begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Posting {
    pub(crate) position: u64,
    pub(crate) offset: u64,
}

/// Questions that both forms of an index answer.
pub(crate) trait Index {
    /// Number of messages.
    fn messages(&self) -> u64;
    /// Whether frames were damaged or missing when it was made: their messages are not in it.
    fn has_damage(&self) -> bool;
    /// Calls back for each topic that matches a filter, in no order, with its number of messages.
    fn matching(&self, filter: &str, found: &mut dyn FnMut(&str, u32));
    /// Appends the postings of a topic to a list, in order.
    fn postings(&self, topic: &str, list: &mut Vec<Posting>);
    /// Where to begin for a position: at a frame that is not behind that of its message.
    fn frame_before(&self, position: u64) -> Option<u64>;
}

/// The part of a filter before its first wildcard, and whether that is all of it.
///
/// All topics that match begin with it, less a `/` at its end: `sport/#` also matches `sport`.
fn literal_start(filter: &str) -> (&str, bool) {
    let mut length = 0;
    for level in filter.split_inclusive('/') {
        if matches!(level.trim_end_matches('/'), "+" | "#") {
            let start = &filter[..length];
            return (start.strip_suffix('/').unwrap_or(start), false);
        }
        length += level.len();
    }
    (filter, true)
}

/// An index that grows.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    first_position: u64,
    topics: FxHashMap<Arc<str>, Postings>,
    /// The topics in order, for filters with wildcards.
    ordered: BTreeSet<Arc<str>>,
    marks: Vec<Posting>,
    messages: u64,
    has_damage: bool,
    /// About the memory of topics and postings.
    bytes: usize,
}

/// The postings of one topic, as they are written.
#[derive(Debug)]
struct Postings {
    bytes: Vec<u8>,
    count: u32,
    last: Posting,
}

impl IndexBuilder {
    pub(crate) fn new(first_position: u64) -> Self {
        Self {
            first_position,
            topics: FxHashMap::default(),
            ordered: BTreeSet::new(),
            marks: Vec::new(),
            messages: 0,
            has_damage: false,
            bytes: 0,
        }
    }

    /// Bytes of memory that it takes, about.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.bytes + self.marks.len() * size_of::<Posting>()
    }

    /// Notes that frames of the segment are not in it.
    pub(crate) fn set_damaged(&mut self) {
        self.has_damage = true;
    }

    /// Adds a message. Positions and offsets rise.
    pub(crate) fn add(&mut self, topic: &str, posting: Posting) {
        self.messages += 1;
        let last = self.marks.last();
        if last.is_none_or(|last| posting.offset / MARK_BYTES > last.offset / MARK_BYTES) {
            self.marks.push(posting);
        }
        if let Some(postings) = self.topics.get_mut(topic) {
            self.bytes += postings.add(posting);
            return;
        }
        let start = Posting {
            position: self.first_position,
            offset: 0,
        };
        let mut postings = Postings {
            bytes: Vec::new(),
            count: 0,
            last: start,
        };
        self.bytes += TOPIC_BYTES + topic.len() + postings.add(posting);
        let topic: Arc<str> = topic.into();
        self.ordered.insert(Arc::clone(&topic));
        self.topics.insert(topic, postings);
    }

    /// Adds the messages of a frame at an offset; returns the position behind the last.
    pub(crate) fn add_frame(&mut self, offset: u64, first_position: u64, body: &[u8]) -> u64 {
        let mut position = first_position;
        for (topic, _) in messages(body) {
            self.add(topic, Posting { position, offset });
            position += 1;
        }
        position
    }

    /// The file's bytes.
    pub(crate) fn encode(
        &self,
        number: u64,
        end_offset: u64,
        next_position: u64,
        seal: Seal,
    ) -> Vec<u8> {
        let in_order = || {
            let known = self.ordered.iter();
            known.filter_map(|topic| Some((topic, self.topics.get(topic)?)))
        };
        let postings_bytes: usize = in_order().map(|(_, postings)| postings.bytes.len()).sum();
        let topics_bytes: usize = self.ordered.iter().map(|topic| topic.len() + 10).sum();
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES + postings_bytes + topics_bytes + self.marks.len() * 16 + CHECKSUM_BYTES,
        );
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.ordered.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&end_offset.to_le_bytes());
        bytes.extend_from_slice(&self.first_position.to_le_bytes());
        bytes.extend_from_slice(&next_position.to_le_bytes());
        bytes.extend_from_slice(&(postings_bytes as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.marks.len() as u32).to_le_bytes());
        let flags = if self.has_damage { HAS_DAMAGE } else { 0 };
        bytes.extend_from_slice(&flags.to_le_bytes());
        for (_, postings) in in_order() {
            bytes.extend_from_slice(&postings.bytes);
        }
        for (topic, postings) in in_order() {
            bytes.extend_from_slice(&(topic.len() as u16).to_le_bytes());
            bytes.extend_from_slice(topic.as_bytes());
            bytes.extend_from_slice(&postings.count.to_le_bytes());
            bytes.extend_from_slice(&(postings.bytes.len() as u32).to_le_bytes());
        }
        for mark in &self.marks {
            bytes.extend_from_slice(&mark.position.to_le_bytes());
            bytes.extend_from_slice(&mark.offset.to_le_bytes());
        }
        let checksum = seal.checksum(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

impl Postings {
    /// Returns the bytes that it takes.
    fn add(&mut self, posting: Posting) -> usize {
        let before = self.bytes.len();
        self.count += 1;
        put_number(&mut self.bytes, posting.position - self.last.position);
        put_number(&mut self.bytes, posting.offset - self.last.offset);
        self.last = posting;
        self.bytes.len() - before
    }
}

impl Index for IndexBuilder {
    fn messages(&self) -> u64 {
        self.messages
    }

    fn has_damage(&self) -> bool {
        self.has_damage
    }

    fn matching(&self, filter: &str, found: &mut dyn FnMut(&str, u32)) {
        let (start, is_whole) = literal_start(filter);
        if is_whole {
            if let Some(postings) = self.topics.get(filter) {
                found(filter, postings.count);
            }
            return;
        }
        let range = (Bound::Included(start), Bound::Unbounded);
        let topics = self.ordered.range::<str, _>(range);
        for topic in topics.take_while(|topic| topic.starts_with(start)) {
            if sterna_topic::matches(filter, topic)
                && let Some(postings) = self.topics.get(topic)
            {
                found(topic, postings.count);
            }
        }
    }

    fn postings(&self, topic: &str, list: &mut Vec<Posting>) {
        if let Some(postings) = self.topics.get(topic) {
            read_postings(&postings.bytes, self.first_position, list);
        }
    }

    fn frame_before(&self, position: u64) -> Option<u64> {
        let behind = self.marks.partition_point(|mark| mark.position <= position);
        Some(self.marks.get(behind.checked_sub(1)?)?.offset)
    }
}

/// Appends a number, seven bits a byte.
pub(crate) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number of [`put_number`]; `None` where there is none.
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn read_postings(mut bytes: &[u8], first_position: u64, list: &mut Vec<Posting>) {
    let mut posting = Posting {
        position: first_position,
        offset: 0,
    };
    while let (Some(position), Some(offset)) = (take_number(&mut bytes), take_number(&mut bytes)) {
        posting.position = posting.position.saturating_add(position);
        posting.offset = posting.offset.saturating_add(offset);
        list.push(posting);
    }
}

/// An index that was read from its file.
#[derive(Debug)]
pub(crate) struct IndexFile {
    bytes: Vec<u8>,
    first_position: u64,
    messages: u64,
    has_damage: bool,
    /// In the order of the topics' bytes.
    topics: Vec<TopicPlace>,
    marks: Vec<Posting>,
}

/// Where a topic's name and its postings are in the file.
#[derive(Debug)]
struct TopicPlace {
    name_at: u32,
    name_bytes: u16,
    count: u32,
    postings_at: u32,
    postings_bytes: u32,
}

impl IndexFile {
    /// Reads the index of a segment whose frames end at an offset. `None` where it is damaged, of another version,
    /// or not of this segment as it is.
    pub(crate) fn decode(bytes: Vec<u8>, number: u64, end_offset: u64, seal: Seal) -> Option<Self> {
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if content.get(..8)? != MAGIC
            || u32_at(content, 8)? != VERSION
            || u64_at(content, 16)? != number
            || u64_at(content, 24)? != end_offset
            || u32::from_le_bytes(*checksum) != seal.checksum(content)
        {
            return None;
        }
        let first_position = u64_at(content, 32)?;
        let mut at = HEADER_BYTES + u32_at(content, 48)? as usize;
        let mut postings_at = HEADER_BYTES as u32;
        let mut topics = Vec::with_capacity((u32_at(content, 12)? as usize).min(content.len()));
        let mut messages = 0;
        for _ in 0..u32_at(content, 12)? {
            let name_bytes = u16::from_le_bytes(*content.get(at..)?.first_chunk()?);
            let name_at = at + 2;
            at = name_at + usize::from(name_bytes);
            std::str::from_utf8(content.get(name_at..at)?).ok()?;
            let place = TopicPlace {
                name_at: name_at as u32,
                name_bytes,
                count: u32_at(content, at)?,
                postings_at,
                postings_bytes: u32_at(content, at + 4)?,
            };
            at += 8;
            messages += u64::from(place.count);
            postings_at = postings_at.saturating_add(place.postings_bytes);
            topics.push(place);
        }
        let marks = content.get(at..)?.chunks_exact(16).map(|mark| {
            Some(Posting {
                position: u64_at(mark, 0)?,
                offset: u64_at(mark, 8)?,
            })
        });
        Some(Self {
            first_position,
            messages,
            has_damage: u32_at(content, 56)? & HAS_DAMAGE != 0,
            marks: marks.collect::<Option<_>>()?,
            topics,
            bytes,
        })
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.topics.len() * size_of::<TopicPlace>()
    }

    fn name(&self, place: &TopicPlace) -> &str {
        let start = place.name_at as usize;
        let name = self.bytes.get(start..start + usize::from(place.name_bytes));
        // It was checked when the file was read.
        name.and_then(|name| std::str::from_utf8(name).ok())
            .unwrap_or_default()
    }

    /// Where the first topic that is not before this one is.
    fn place_of(&self, topic: &str) -> usize {
        self.topics
            .partition_point(|place| self.name(place) < topic)
    }

    fn exactly(&self, topic: &str) -> Option<usize> {
        let at = self.place_of(topic);
        let place = self.topics.get(at)?;
        (self.name(place) == topic).then_some(at)
    }

    /// Number of topics. Each has a number below it.
    pub(crate) const fn topics(&self) -> usize {
        self.topics.len()
    }

    /// Number of messages of a topic, by the topic's number.
    pub(crate) fn messages_of(&self, topic: usize) -> u32 {
        self.topics[topic].count
    }

    /// Calls back with the number of each topic that matches a filter.
    pub(crate) fn matching_topics(&self, filter: &str, found: &mut dyn FnMut(usize)) {
        let (start, is_whole) = literal_start(filter);
        if is_whole {
            if let Some(topic) = self.exactly(filter) {
                found(topic);
            }
            return;
        }
        for topic in self.place_of(start)..self.topics.len() {
            let name = self.name(&self.topics[topic]);
            if !name.starts_with(start) {
                break;
            }
            if sterna_topic::matches(filter, name) {
                found(topic);
            }
        }
    }

    /// Appends the postings of a topic to a list, in order, by the topic's number.
    pub(crate) fn postings_of(&self, topic: usize, list: &mut Vec<Posting>) {
        let place = &self.topics[topic];
        let start = place.postings_at as usize;
        let bytes = self.bytes.get(start..start + place.postings_bytes as usize);
        read_postings(bytes.unwrap_or_default(), self.first_position, list);
    }
}

impl Index for IndexFile {
    fn messages(&self) -> u64 {
        self.messages
    }

    fn has_damage(&self) -> bool {
        self.has_damage
    }

    fn matching(&self, filter: &str, found: &mut dyn FnMut(&str, u32)) {
        self.matching_topics(filter, &mut |topic| {
            let place = &self.topics[topic];
            found(self.name(place), place.count);
        });
    }

    fn postings(&self, topic: &str, list: &mut Vec<Posting>) {
        if let Some(topic) = self.exactly(topic) {
            self.postings_of(topic, list);
        }
    }

    fn frame_before(&self, position: u64) -> Option<u64> {
        let behind = self.marks.partition_point(|mark| mark.position <= position);
        Some(self.marks.get(behind.checked_sub(1)?)?.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_filter_ends_before_its_wildcard() {
        for (filter, start) in [
            ("a/b", ("a/b", true)),
            ("a/b/", ("a/b/", true)),
            ("a/#", ("a", false)),
            ("a/+/c", ("a", false)),
            ("+", ("", false)),
            ("#", ("", false)),
            ("+/a", ("", false)),
            ("/+", ("", false)),
            ("a//#", ("a/", false)),
            ("", ("", true)),
        ] {
            assert_eq!(literal_start(filter), start, "{filter}");
        }
    }

    #[test]
    fn both_forms_find_the_same() {
        let seal = Seal::of([1; 16]);
        let mut builder = IndexBuilder::new(10);
        let topics = ["a", "a/b", "a-b", "a/b/c", "b", "$SYS/a", "é/ü", ""];
        let postings: Vec<(&str, Posting)> = (0..4_000_u64)
            .map(|i| {
                let posting = Posting {
                    position: 10 + i * 2,
                    offset: 64 + i * 300,
                };
                (topics[(i * i % 7 + i % 2) as usize % topics.len()], posting)
            })
            .collect();
        for (topic, posting) in &postings {
            builder.add(topic, *posting);
        }
        let bytes = builder.encode(3, 9_999, 9_000, seal);
        let read = |number, end, seal| IndexFile::decode(bytes.clone(), number, end, seal);
        assert!(read(4, 9_999, seal).is_none());
        assert!(read(3, 9_998, seal).is_none());
        assert!(read(3, 9_999, Seal::of([2; 16])).is_none());
        let file = read(3, 9_999, seal).unwrap();
        assert_eq!(file.messages(), 4_000);
        for filter in [
            "a", "a/b", "#", "+", "a/#", "a/+", "+/b", "$SYS/#", "é/#", "c", "a/b/#",
        ] {
            let mut expected: Vec<Posting> = postings
                .iter()
                .filter(|(topic, _)| sterna_topic::matches(filter, topic))
                .map(|(_, posting)| *posting)
                .collect();
            expected.sort_unstable();
            for index in [&builder as &dyn Index, &file] {
                let mut found = Vec::new();
                let mut count = 0;
                index.matching(filter, &mut |topic, messages| {
                    count += messages as usize;
                    index.postings(topic, &mut found);
                });
                found.sort_unstable();
                assert_eq!(found, expected, "{filter}");
                assert_eq!(count, expected.len());
            }
        }
        for index in [&builder as &dyn Index, &file] {
            assert_eq!(index.frame_before(9), None);
            for (_, posting) in &postings {
                let offset = index.frame_before(posting.position).unwrap();
                assert!(offset <= posting.offset && posting.offset - offset <= MARK_BYTES + 300);
            }
        }
        assert!(!file.has_damage());
        builder.set_damaged();
        let damaged = builder.encode(3, 9_999, 9_000, seal);
        let damaged = IndexFile::decode(damaged, 3, 9_999, seal).unwrap();
        assert!(damaged.has_damage() && damaged.messages() == 4_000);
        let mut other = bytes[..bytes.len() - CHECKSUM_BYTES].to_vec();
        other[8] = 2;
        let checksum = seal.checksum(&other);
        other.extend_from_slice(&checksum.to_le_bytes());
        let other = IndexFile::decode(other, 3, 9_999, seal);
        assert!(other.is_none(), "another version");
        for index in (0..bytes.len()).step_by(97) {
            let mut flipped = bytes.clone();
            flipped[index] ^= 4;
            assert!(IndexFile::decode(flipped, 3, 9_999, seal).is_none());
        }
    }
}
