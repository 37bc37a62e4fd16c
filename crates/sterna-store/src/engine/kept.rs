//! The part of a segment that readers need.
//!
//! There may be a million topics in a segment, and a thousand ranges of positions in which readers need them: one for
//! each subscription that was replaced. So the ranges of a filter are merged, and topics with the same needs share them:
//! of a topic there is a number.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use super::shared::{HandleNeeds, Shared};
use crate::log::index::{IndexFile, Posting};

/// Memory that may be taken, and the account of what is taken.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    most_bytes: usize,
    /// Bytes that are taken by what else belongs to it.
    base_bytes: usize,
    account: &'a AtomicU64,
}

impl<'a> Room<'a> {
    pub(crate) const fn new(most_bytes: usize, account: &'a AtomicU64) -> Self {
        Self {
            most_bytes,
            base_bytes: 0,
            account,
        }
    }

    /// The room for rewriting, beside an index.
    pub(crate) fn of(shared: &'a Shared, index: &IndexFile) -> Self {
        Self {
            base_bytes: index.memory_bytes(),
            ..Self::new(
                shared.settings.maximum_rewrite_memory_bytes,
                &shared.rewrite_bytes,
            )
        }
    }

    /// Accounts for bytes that are taken, and tells whether there is room for them.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        let bytes = bytes.saturating_add(self.base_bytes);
        self.account.store(bytes as u64, Ordering::Relaxed);
        bytes <= self.most_bytes
    }
}

/// The messages of a topic that are needed.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Needed {
    /// Positions from the first on, before the second. They rise, and do not touch.
    ranges: Vec<(u64, u64)>,
    /// Whether single positions count.
    has_single: bool,
}

impl Needed {
    /// Has the ranges rise, and merges those that touch.
    fn merge(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1;
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
        self.ranges.shrink_to_fit();
    }

    fn and(&self, other: &Self) -> Self {
        let mut both = Self {
            ranges: [&*self.ranges, &*other.ranges].concat(),
            has_single: self.has_single || other.has_single,
        };
        both.merge();
        both
    }

    fn has_range(&self, position: u64) -> bool {
        let behind = self.ranges.partition_point(|range| range.0 <= position);
        behind > 0 && position < self.ranges[behind - 1].1
    }

    /// About its memory, and that of its place.
    const fn memory_bytes(&self) -> usize {
        const PLACE_BYTES: usize = 128;
        self.ranges.len() * size_of::<(u64, u64)>() + PLACE_BYTES
    }
}

/// Needs of topics, each once.
#[derive(Debug)]
struct Shares {
    /// With the number of topics that need this. The first is nothing.
    all: Vec<(Rc<Needed>, usize)>,
    known: FxHashMap<Rc<Needed>, u32>,
    /// Places that no topic has.
    free: Vec<u32>,
    bytes: usize,
}

impl Shares {
    /// Nothing is needed of any topic.
    fn new(topics: usize) -> Self {
        Self {
            all: vec![(Rc::default(), topics)],
            known: FxHashMap::default(),
            free: Vec::new(),
            bytes: 0,
        }
    }

    /// The place of what a topic needs that needed something before, and now more.
    fn place_of(&mut self, before: u32, more: &Needed) -> u32 {
        let both = Rc::new(self.all[before as usize].0.and(more));
        if let Some(&place) = self.known.get(&both) {
            return place;
        }
        self.bytes += both.memory_bytes();
        let entry = (Rc::clone(&both), 0);
        let place = if let Some(place) = self.free.pop() {
            self.all[place as usize] = entry;
            place
        } else {
            self.all.push(entry);
            // There are no more than topics, which have 32 bits.
            (self.all.len() - 1) as u32
        };
        self.known.insert(both, place);
        place
    }

    fn move_topic(&mut self, before: u32, after: u32) {
        self.all[after as usize].1 += 1;
        let left = &mut self.all[before as usize].1;
        debug_assert!(*left > 0, "a topic leaves the place that it has");
        *left = left.saturating_sub(1);
    }

    /// Forgets what no topic needs any more.
    fn forget(&mut self, place: u32) {
        let (needed, topics) = &mut self.all[place as usize];
        if place == 0 || *topics > 0 {
            return;
        }
        let needed = std::mem::take(needed);
        debug_assert!(
            self.bytes >= needed.memory_bytes(),
            "what is forgotten was counted"
        );
        self.bytes -= needed.memory_bytes();
        self.known.remove(&needed);
        self.free.push(place);
    }
}

/// A frame that has a needed message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NeededFrame {
    /// Where it begins.
    pub(crate) offset: u64,
    /// The positions from the first message that is needed to the last.
    pub(crate) positions: Range<u64>,
}

impl NeededFrame {
    const fn of(posting: Posting) -> Self {
        Self {
            offset: posting.offset,
            positions: posting.position..posting.position + 1,
        }
    }

    /// Another of its messages is needed.
    fn take(&mut self, position: u64) {
        self.positions.start = self.positions.start.min(position);
        self.positions.end = self.positions.end.max(position + 1);
    }
}

/// The part of a segment that readers need.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Of each topic, by its number in the index: the place of what is needed of it.
    topics: Vec<u32>,
    shares: Shares,
    /// Single positions that are needed, rising.
    single: Vec<u64>,
}

impl Kept {
    /// By the filters of all readers, each asked once about the topics of a segment. `None` where there is no room for
    /// it.
    pub(crate) fn of(
        index: &IndexFile,
        positions: &Range<u64>,
        needs: &[HandleNeeds],
        room: &Room<'_>,
    ) -> Option<Self> {
        let mut filters: BTreeMap<&str, Needed> = BTreeMap::new();
        let mut single = Vec::new();
        for reader in needs.iter().flat_map(|handle| &handle.needs.readers) {
            let from = (reader.single).partition_point(|&at| at < positions.start);
            let to = (reader.single).partition_point(|&at| at < positions.end);
            let has_single = from < to;
            single.extend_from_slice(&reader.single[from..to]);
            for filter in &reader.filters {
                let first = filter.since.max(reader.from).max(positions.start);
                let end = filter.until.min(positions.end);
                if first >= end && !has_single {
                    continue;
                }
                let needed = filters.entry(&filter.filter).or_default();
                needed.has_single |= has_single;
                if first < end {
                    needed.ranges.push((first, end));
                }
            }
        }
        single.sort_unstable();
        single.dedup();
        // Postings of a topic are read at once.
        let most_messages = (0..index.topics()).map(|topic| index.messages_of(topic));
        let most_messages = most_messages.max().unwrap_or(0) as usize;
        let fixed_bytes = index.topics() * size_of::<u32>()
            + single.len() * size_of::<u64>()
            + most_messages * size_of::<Posting>();
        if !room.has(fixed_bytes) {
            return None;
        }
        let mut kept = Self {
            topics: vec![0; index.topics()],
            shares: Shares::new(index.topics()),
            single,
        };
        for (filter, mut needed) in filters {
            needed.merge();
            let mut places: FxHashMap<u32, u32> = FxHashMap::default();
            let mut has_room = true;
            index.matching_topics(filter, &mut |topic| {
                let before = kept.topics[topic];
                let shares = &mut kept.shares;
                let after = match places.get(&before) {
                    Some(&after) => after,
                    None if !has_room => return,
                    None => {
                        let after = shares.place_of(before, &needed);
                        has_room = room.has(fixed_bytes + shares.bytes);
                        places.insert(before, after);
                        after
                    }
                };
                shares.move_topic(before, after);
                kept.topics[topic] = after;
            });
            if !has_room {
                return None;
            }
            for &before in places.keys() {
                kept.shares.forget(before);
            }
        }
        Some(kept)
    }

    fn has(&self, needed: &Needed, position: u64) -> bool {
        needed.has_range(position)
            || needed.has_single && self.single.binary_search(&position).is_ok()
    }

    /// The topics of which something is needed, by their numbers.
    fn needed(&self) -> impl Iterator<Item = (usize, &Needed)> {
        let topics = self.topics.iter().enumerate();
        let needed = topics.filter(|&(_, &place)| place != 0);
        needed.map(|(topic, &place)| (topic, &*self.shares.all[place as usize].0))
    }

    /// Number of messages that stay: in each frame those from the first that is needed to the last.
    pub(crate) fn messages(&self, index: &IndexFile, positions: &Range<u64>) -> u64 {
        let mut messages = 0;
        let mut postings = Vec::new();
        for (topic, needed) in self.needed() {
            if needed.ranges == [(positions.start, positions.end)] {
                messages += u64::from(index.messages_of(topic));
                continue;
            }
            postings.clear();
            index.postings_of(topic, &mut postings);
            let frames = postings.chunk_by(|one, next| one.offset == next.offset);
            let is_needed = |posting: &Posting| self.has(needed, posting.position);
            messages += frames
                .filter_map(|frame| {
                    let first = frame.iter().position(is_needed)?;
                    Some((frame.iter().rposition(is_needed)? - first + 1) as u64)
                })
                .sum::<u64>();
        }
        messages
    }

    /// The frames that have a needed message, in order. `None` where there is no room for the list.
    pub(crate) fn frames(&self, index: &IndexFile, room: &Room<'_>) -> Option<Vec<NeededFrame>> {
        let mut frames: Vec<NeededFrame> = Vec::new();
        let mut postings = Vec::new();
        for (topic, needed) in self.needed() {
            postings.clear();
            index.postings_of(topic, &mut postings);
            let found = postings.iter();
            let found = found.filter(|posting| self.has(needed, posting.position));
            for posting in found {
                match frames.last_mut() {
                    Some(last) if last.offset == posting.offset => last.take(posting.position),
                    _ => frames.push(NeededFrame::of(*posting)),
                }
            }
            if !room.has(self.memory_bytes() + frames.capacity() * size_of::<NeededFrame>()) {
                return None;
            }
        }
        frames.sort_unstable_by_key(|frame| frame.offset);
        // A frame of several topics.
        frames.dedup_by(|next, kept| {
            let is_same = next.offset == kept.offset;
            if is_same {
                kept.take(next.positions.start);
                kept.take(next.positions.end - 1);
            }
            is_same
        });
        frames.shrink_to_fit();
        Some(frames)
    }

    /// About the memory that it takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.topics.len() * size_of::<u32>()
            + self.single.len() * size_of::<u64>()
            + self.shares.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sterna_broker::{LogNeeds, NeededFilter, ReaderNeeds};

    use super::*;
    use crate::log::frame::Seal;
    use crate::log::index::IndexBuilder;

    const TOPICS: u64 = 1_000;

    fn index() -> IndexFile {
        let mut builder = IndexBuilder::new(0);
        for position in 0..2 * TOPICS {
            let posting = Posting {
                position,
                offset: 64 + position,
            };
            let topic = position % TOPICS;
            builder.add(&format!("d/{}/{topic}", topic % 2), posting);
        }
        let seal = Seal::of([1; 16]);
        let bytes = builder.encode(1, 9_999, 2 * TOPICS, seal);
        IndexFile::decode(bytes, 1, 9_999, seal).unwrap()
    }

    /// Each sum is that of what it stands for.
    fn check(kept: &Kept) {
        let shares = &kept.shares;
        let mut topics = vec![0; shares.all.len()];
        for &place in &kept.topics {
            topics[place as usize] += 1;
        }
        let counted = shares.all.iter().map(|(_, topics)| *topics);
        assert!(counted.eq(topics), "topics of each place");
        let known = shares.known.iter();
        let bytes: usize = known.clone().map(|(needed, _)| needed.memory_bytes()).sum();
        assert_eq!(shares.bytes, bytes, "bytes of what is needed");
        for (needed, &place) in known {
            assert_eq!(
                shares.all[place as usize].0, *needed,
                "a place has what is known of it"
            );
        }
        let places = 1 + shares.known.len() + shares.free.len();
        assert_eq!(shares.all.len(), places, "a place is known or free");
    }

    fn reader(filters: &[(&str, u64, u64)], from: u64, single: &[u64]) -> ReaderNeeds {
        let filters = filters.iter().map(|&(filter, since, until)| NeededFilter {
            filter: filter.into(),
            since,
            until,
        });
        ReaderNeeds {
            filters: filters.collect(),
            from,
            single: single.to_vec(),
        }
    }

    fn handle(readers: Vec<ReaderNeeds>) -> [HandleNeeds; 1] {
        let all_from = u64::MAX;
        [HandleNeeds {
            all_from,
            needs: Arc::new(LogNeeds { all_from, readers }),
        }]
    }

    /// As it is said of each message and each reader alone.
    fn expected(readers: &[ReaderNeeds]) -> Vec<u64> {
        let is_needed = |&position: &u64| {
            let topic = position % TOPICS;
            let topic = format!("d/{}/{topic}", topic % 2);
            readers.iter().any(|reader| {
                let mut filters = reader.filters.iter();
                filters.any(|one| {
                    let is_in_force = (one.since.max(reader.from)..one.until).contains(&position);
                    sterna_topic::matches(&one.filter, &topic)
                        && (is_in_force || reader.single.contains(&position))
                })
            })
        };
        let needed = (0..2 * TOPICS).filter(is_needed);
        needed.map(|position| 64 + position).collect()
    }

    #[test]
    fn ranges_are_merged_and_shared_and_say_the_same() {
        let index = index();
        let account = AtomicU64::new(0);
        let room = Room::new(usize::MAX, &account);
        let replaced: Vec<(&str, u64, u64)> =
            (0..250).map(|nth| ("#", nth * 8, nth * 8 + 3)).collect();
        let touching: Vec<(&str, u64, u64)> = (0..250)
            .map(|nth| ("d/0/#", nth * 8, nth * 8 + 8))
            .collect();
        for readers in [
            vec![reader(&replaced, 5, &[])],
            vec![
                reader(&touching, 5, &[]),
                reader(&replaced, 900, &[3, 4, 6]),
            ],
            (0..200)
                .map(|nth| reader(&[("d/+/7", 0, u64::MAX)], nth * 9, &[]))
                .collect(),
            vec![
                reader(
                    &[("d/1/#", 0, 100), ("d/+/+", 50, 60), ("d/1/5", 90, 1_200)],
                    0,
                    &[],
                ),
                reader(&[("d/#", 1_000, 1_010), ("e", 0, u64::MAX)], 0, &[]),
            ],
            vec![reader(&[("none", 0, u64::MAX)], 0, &[])],
        ] {
            let needs = handle(readers);
            let positions = 0..2 * TOPICS;
            let kept = Kept::of(&index, &positions, &needs, &room).unwrap();
            check(&kept);
            let expected = expected(&needs[0].needs.readers);
            let frames = kept.frames(&index, &room).unwrap();
            let offsets: Vec<u64> = frames.iter().map(|frame| frame.offset).collect();
            assert_eq!(offsets, expected);
            assert_eq!(kept.messages(&index, &positions), expected.len() as u64);
            // A number for each topic, and a few lists.
            let most_bytes = index.topics() * 4 + 3 * 250 * 16 + 1_024;
            let bytes = kept.memory_bytes();
            assert!(bytes < most_bytes, "{bytes} of {most_bytes} bytes");
        }
    }

    #[test]
    fn what_has_no_room_is_not_begun() {
        let index = index();
        let account = AtomicU64::new(0);
        // Each topic has its own needs, and the ranges cannot be merged.
        let names: Vec<String> = (0..TOPICS).map(|topic| format!("d/+/{topic}")).collect();
        let filters: Vec<(&str, u64, u64)> = (names.iter().zip(0..))
            .map(|(name, at)| (&**name, at, at + 1))
            .collect();
        let needs = handle(vec![reader(&filters, 0, &[])]);
        let positions = 0..2 * TOPICS;
        let of = |most_bytes| {
            let room = Room::new(most_bytes, &account);
            let kept = Kept::of(&index, &positions, &needs, &room);
            kept.map(|kept| (kept.memory_bytes(), kept.frames(&index, &room).is_some()))
        };
        let (bytes, _) = of(usize::MAX).unwrap();
        assert!(bytes > 100 * TOPICS as usize);
        assert!(account.load(Ordering::Relaxed) as usize >= bytes);
        assert_eq!(of(bytes / 2), None);
        assert_eq!(of(100), None);
        assert_eq!(
            of(bytes + 100),
            Some((bytes, false)),
            "no room for the list"
        );
        assert_eq!(of(bytes + 32 * TOPICS as usize), Some((bytes, true)));
    }
}
