//! The needs of readers: told to a store that takes all else out of the log.
//!
//! A reader needs the messages that its filters match, from its cursor on, and the few before that are not settled.
//! That only becomes less: a subscription begins at the end of the log, so a reader never comes to want a message that
//! was published before. A reader that moves to another shard is held there and here ([`LogNeeds::hold`]). So a message
//! that nobody needed at some time is never needed later.
//!
//! There may be a million readers. Those are listed that need the lowest positions, a few. Of the others it is said from
//! where on the first of them needs something: from there on everything stays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rustc_hash::FxHashSet;

use crate::away::Span;
use crate::cursor::{Cursor, Past};
use crate::group_reader::GroupRecord;
use crate::message::fnv1a;
use crate::nodes::NIL;
use crate::records::{Kind, SubscriptionRecord, split_key};
use crate::route::topics_of_shared;
use crate::session::BrokerSession;

/// Spans that are left out of one session's needs: each has its filters once more.
const MOST_LEFT_OUT: usize = 4;

/// A topic filter by which a reader has messages of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeededFilter {
    /// Without `$share/NAME/`.
    pub filter: Box<str>,
    /// Messages before this position are not its.
    pub since: u64,
    /// Messages from this position on are not its; `u64::MAX` while it is in force.
    pub until: u64,
}

/// The part of the log that one reader needs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReaderNeeds {
    /// It needs nothing that none of these matches.
    pub filters: Vec<NeededFilter>,
    /// From this position on it needs all that its filters match.
    pub from: u64,
    /// Before that position it needs these, rising.
    pub single: Vec<u64>,
}

impl ReaderNeeds {
    /// The lowest position that it needs.
    #[must_use]
    pub fn first(&self) -> u64 {
        let first = self.single.first();
        first.map_or(self.from, |&first| first.min(self.from))
    }
}

/// The parts of the log that readers need.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LogNeeds {
    /// From this position on everything may be needed.
    pub all_from: u64,
    /// The readers that need something before that position.
    pub readers: Vec<ReaderNeeds>,
}

/// How much is told of what readers need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeedsLimits {
    /// Nothing is told of what is needed from this position on: everything stays.
    pub before: u64,
    /// Readers that are listed.
    pub readers: usize,
    /// Filters that are listed, of all readers together.
    pub filters: usize,
    /// Single positions that are listed, of all readers together.
    pub positions: usize,
}

impl LogNeeds {
    /// Has everything stay from a position on.
    pub fn hold(&mut self, position: u64) {
        self.all_from = self.all_from.min(position);
    }

    /// Of these readers, which rise with what they need first, those that fit the limits. None is asked for behind the
    /// first that does not: each may have a megabyte of filters.
    fn of(all_from: u64, limits: NeedsLimits, readers: impl Iterator<Item = ReaderNeeds>) -> Self {
        let mut needs = Self {
            all_from,
            readers: Vec::new(),
        };
        let (mut filters, mut positions) = (0, 0);
        for mut reader in readers {
            filters += reader.filters.len();
            if filters > limits.filters {
                needs.hold(reader.first());
                break;
            }
            if positions + reader.single.len() > limits.positions {
                // All that its filters match is more than it needs, and takes less to say.
                reader.from = reader.first();
                reader.single = Vec::new();
            }
            positions += reader.single.len();
            needs.readers.push(reader);
        }
        needs
    }

    /// The needs of the readers whose records these are. `each` visits all records, in the order of their keys, and is
    /// called three times. A record that cannot be understood may be of a reader of all messages: then everything stays.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn of_records<E>(
        limits: NeedsLimits,
        mut each: impl FnMut(&mut dyn FnMut(&[u8], &[u8])) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut found = FirstNeeds::default();
        let mut behind = Behind::new(limits);
        let mut is_understood = true;
        each(&mut |key, value| {
            is_understood &= found.visit(&mut behind, key, value).is_some();
        })?;
        let (all_from, names) = behind.finish();
        let mut counts: BTreeMap<Name, usize> = BTreeMap::new();
        for name in &names {
            counts.insert(name.clone(), usize::from(matches!(name, Name::Group(_))));
        }
        each(&mut |key, value| count_filter(&mut counts, key, value))?;
        // Groups have a filter each. One reader more than fits tells from where on everything stays.
        let mut filters = 0;
        let mut readers: BTreeMap<Name, ReaderNeeds> = BTreeMap::new();
        for name in &names {
            readers.insert(name.clone(), ReaderNeeds::default());
            filters += counts.get(name).copied().unwrap_or(0);
            if filters > limits.filters {
                break;
            }
        }
        each(&mut |key, value| {
            is_understood &= collect(&mut readers, key, value).is_some();
        })?;
        if !is_understood {
            return Ok(Self::default());
        }
        let in_order = names.iter().map_while(|name| readers.remove(name));
        Ok(Self::of(all_from, limits, in_order))
    }
}

/// Which reader a record is of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Name {
    Session(Box<str>),
    Group(Box<str>),
}

/// The sessions whose cursors were seen, by hashes of their names.
#[derive(Default)]
struct FirstNeeds {
    cursors: FxHashSet<u64>,
}

impl FirstNeeds {
    /// Lists the reader of a record; `None` where that cannot be understood.
    fn visit(&mut self, behind: &mut Behind<Name>, key: &[u8], value: &[u8]) -> Option<()> {
        let (kind, name, _) = split_key(key)?;
        match kind {
            Kind::Cursor => {
                let first = Cursor::decode(value)?.first();
                behind.note(first, || Name::Session(name.into()));
                self.cursors.insert(fnv1a(name.as_bytes()));
            }
            Kind::Group => {
                let first = GroupRecord::decode(value)?.cursor.first();
                behind.note(first, || Name::Group(name.into()));
            }
            // A session without a cursor reads the log from its start. Keys of cursors come before.
            Kind::Session => return (self.cursors.contains(&fnv1a(name.as_bytes()))).then_some(()),
            _ => {}
        }
        Some(())
    }
}

/// The filter of a session's subscription, as its record says, and whether the session has messages of the log by it.
/// `None` where the record cannot be understood.
fn filter_of(kind: Kind, rest: &[u8], value: &[u8]) -> Option<(NeededFilter, bool)> {
    let (until, filter) = if kind == Kind::Past {
        let (until, filter) = rest.split_first_chunk()?;
        (u64::from_be_bytes(*until), filter)
    } else {
        (u64::MAX, rest)
    };
    let filter = std::str::from_utf8(filter).ok()?;
    let record = SubscriptionRecord::decode(value)?;
    // Members of a shared subscription have its messages by its own record.
    let is_own = record.flags.qos().is_acknowledged() && !filter.starts_with("$share/");
    let filter = NeededFilter {
        filter: filter.into(),
        since: record.since,
        until,
    };
    Some((filter, is_own))
}

/// Counts a filter for its reader, if that is listed.
fn count_filter(counts: &mut BTreeMap<Name, usize>, key: &[u8], value: &[u8]) {
    if let Some((kind @ (Kind::Subscription | Kind::Past), name, rest)) = split_key(key)
        && let Some(count) = counts.get_mut(&Name::Session(name.into()))
        && let Some((_, true)) = filter_of(kind, rest, value)
    {
        *count += 1;
    }
}

/// Takes in what a record says of a listed reader; `None` where it cannot be understood.
fn collect(readers: &mut BTreeMap<Name, ReaderNeeds>, key: &[u8], value: &[u8]) -> Option<()> {
    let (kind, name, rest) = split_key(key)?;
    let named = match kind {
        Kind::Cursor | Kind::Subscription | Kind::Past => Name::Session(name.into()),
        Kind::Group => Name::Group(name.into()),
        _ => return Some(()),
    };
    let Some(reader) = readers.get_mut(&named) else {
        return Some(());
    };
    match kind {
        Kind::Cursor => reader.read_cursor(&Cursor::decode(value)?),
        Kind::Group => {
            *reader = ReaderNeeds::of_stored_group(name, &GroupRecord::decode(value)?);
        }
        _ => {
            let (filter, is_own) = filter_of(kind, rest, value)?;
            reader.filters.extend(is_own.then_some(filter));
        }
    }
    Some(())
}

impl ReaderNeeds {
    fn read_cursor(&mut self, cursor: &Cursor) {
        self.from = cursor.from;
        self.single = cursor.unsettled.iter().map(|one| one.position).collect();
    }

    /// The needs of a shared subscription or queue, by its whole filter and its cursor.
    pub(crate) fn of_group(filter: &str, from: u64, single: Vec<u64>) -> Self {
        Self {
            filters: vec![NeededFilter {
                filter: topics_of_shared(filter).into(),
                since: 0,
                until: u64::MAX,
            }],
            from,
            single,
        }
    }

    /// The same, by its record.
    pub(crate) fn of_stored_group(filter: &str, record: &GroupRecord) -> Self {
        let mut needs = Self::of_group(filter, 0, Vec::new());
        needs.read_cursor(&record.cursor);
        needs
    }

    /// The needs of a session; `None` where it reads nothing.
    pub(crate) fn of_session<P>(session: &BrokerSession<P>) -> Option<Self> {
        let reader = session.reader.as_ref()?;
        let mut needs = Self::default();
        needs.read_cursor(&reader.cursor);
        let own = session
            .subscriptions
            .iter()
            .filter(|(_, known)| known.group == NIL)
            .filter(|(_, known)| known.flags.qos().is_acknowledged() && !known.is_resting())
            .map(|(filter, _)| NeededFilter {
                filter: Box::from(&**filter),
                since: reader.since(filter),
                until: u64::MAX,
            });
        let past = |past: &Past| NeededFilter {
            filter: Box::from(&*past.filter),
            since: past.since,
            until: past.until,
        };
        needs.filters = own.chain(reader.past.iter().map(past)).collect();
        needs.leave_out(&reader.cursor);
        Some(needs)
    }

    /// Leaves out what the session's queue had no room for, where that is long.
    fn leave_out(&mut self, cursor: &Cursor) {
        let is_sent = |span: &Span| {
            let mut failed = cursor.failed.iter();
            failed.any(|one| (span.from..span.until).contains(&one.position))
        };
        let mut dropped: Vec<Span> = cursor
            .dropped
            .iter()
            .filter(|span| !is_sent(span))
            .collect();
        dropped.sort_unstable_by_key(|span| Reverse(span.until - span.from));
        for span in dropped.into_iter().take(MOST_LEFT_OUT) {
            for at in 0..self.filters.len() {
                let filter = &mut self.filters[at];
                let (since, until) = (filter.since, filter.until);
                if since < span.from && span.until < until {
                    let mut behind = filter.clone();
                    behind.since = span.until;
                    filter.until = span.from;
                    self.filters.push(behind);
                }
            }
        }
    }
}

/// The readers that need the lowest positions, of all that are noted.
#[derive(Debug)]
pub(crate) struct Behind<R> {
    limits: NeedsLimits,
    /// The needs of readers that are not listed begin here, or behind.
    all_from: u64,
    /// The highest first.
    lowest: BinaryHeap<(u64, R)>,
}

impl<R: Ord> Behind<R> {
    pub(crate) const fn new(limits: NeedsLimits) -> Self {
        Self {
            limits,
            all_from: limits.before,
            lowest: BinaryHeap::new(),
        }
    }

    /// Has everything stay from a position on.
    pub(crate) fn hold(&mut self, position: u64) {
        self.all_from = self.all_from.min(position);
    }

    /// Notes a reader that needs something from a position on.
    pub(crate) fn note(&mut self, first: u64, reader: impl FnOnce() -> R) {
        if first >= self.all_from {
            return;
        }
        if self.lowest.len() == self.limits.readers {
            match self.lowest.peek() {
                Some(&(highest, _)) if first < highest => {
                    self.all_from = highest;
                    self.lowest.pop();
                }
                _ => return self.hold(first),
            }
        }
        self.lowest.push((first, reader()));
    }

    /// From where on everything stays, and the readers that need something before, from the lowest on.
    fn finish(self) -> (u64, Vec<R>) {
        let all_from = self.all_from;
        let listed = self.lowest.into_sorted_vec().into_iter();
        let listed = listed.take_while(|&(first, _)| first < all_from);
        (all_from, listed.map(|(_, reader)| reader).collect())
    }

    /// The needs of those that are listed. Where `needs_of` has none of a reader, that has ended.
    pub(crate) fn needs(self, needs_of: impl FnMut(R) -> Option<ReaderNeeds>) -> LogNeeds {
        let limits = self.limits;
        let (all_from, listed) = self.finish();
        LogNeeds::of(all_from, limits, listed.into_iter().filter_map(needs_of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: NeedsLimits = NeedsLimits {
        before: 1_000,
        readers: 3,
        filters: 10,
        positions: 10,
    };

    fn one(filter: &str, from: u64, single: &[u64]) -> ReaderNeeds {
        ReaderNeeds {
            single: single.to_vec(),
            ..ReaderNeeds::of_group(&format!("$share/g/{filter}"), from, Vec::new())
        }
    }

    #[test]
    fn the_lowest_are_listed_and_everything_stays_from_the_next_on() {
        for firsts in [
            [5, 900, 7, 300, 6, 2_000],
            [2_000, 300, 900, 7, 6, 5],
            [5, 6, 7, 300, 900, 1_000],
        ] {
            let mut behind = Behind::new(LIMITS);
            for first in firsts {
                behind.note(first, || first);
            }
            assert_eq!(behind.finish(), (300, vec![5, 6, 7]), "{firsts:?}");
        }
        let mut behind = Behind::new(LIMITS);
        behind.note(5, || 5);
        behind.note(900, || 900);
        behind.hold(800);
        behind.note(850, || 850);
        assert_eq!(behind.finish(), (800, vec![5]));
        let none = NeedsLimits {
            readers: 0,
            ..LIMITS
        };
        let mut behind = Behind::new(none);
        behind.note(7, || 7);
        assert_eq!(behind.finish(), (7, Vec::new()));
    }

    #[test]
    fn a_list_that_is_too_long_is_said_with_less_and_then_not_at_all() {
        let long: Vec<u64> = (20..60).collect();
        let readers = vec![one("a", 70, &long), one("b", 80, &[30])];
        let needs = LogNeeds::of(1_000, LIMITS, readers.clone().into_iter());
        assert_eq!(needs.readers[0], one("a", 20, &[]));
        assert_eq!((needs.all_from, &needs.readers[1]), (1_000, &readers[1]));
        let fewer = NeedsLimits {
            filters: 1,
            ..LIMITS
        };
        let needs = LogNeeds::of(1_000, fewer, readers.into_iter());
        assert_eq!((needs.all_from, needs.readers.len()), (30, 1));
    }

    #[test]
    fn no_reader_is_asked_for_its_filters_behind_the_limit() {
        let limits = NeedsLimits {
            readers: 256,
            ..LIMITS
        };
        let mut behind = Behind::new(limits);
        for first in 0..256 {
            behind.note(first, || first);
        }
        let mut asked = 0;
        let needs = behind.needs(|first| {
            asked += 1;
            let mut reader = one("a", first, &[]);
            reader.filters = vec![reader.filters[0].clone(); 4];
            Some(reader)
        });
        // The third has none any more.
        assert_eq!((asked, needs.readers.len(), needs.all_from), (3, 2, 2));
    }

    #[test]
    fn of_records_those_readers_are_listed_whose_filters_fit() {
        use crate::records::key;
        use crate::route::RouteFlags;

        let subscription = |qos| SubscriptionRecord {
            flags: RouteFlags::from_bits(qos),
            identifier: None,
            since: 0,
            rest: None,
        };
        let mut records: Vec<(Box<[u8]>, Vec<u8>)> = Vec::new();
        for (name, from) in [("one", 5_u64), ("two", 6), ("three", 7)] {
            records.push((key(Kind::Cursor, name, &[]), Cursor::at(from).encode()));
            for number in 0..8_u8 {
                // Every second is at QoS 0 and needs nothing.
                let value = subscription(number % 2).encode();
                records.push((key(Kind::Subscription, name, &[b'a' + number]), value));
            }
        }
        records.sort();
        let read = |filters| {
            let limits = NeedsLimits { filters, ..LIMITS };
            let each = |visit: &mut dyn FnMut(&[u8], &[u8])| {
                for (key, value) in &records {
                    visit(key, value);
                }
                Ok::<(), ()>(())
            };
            let needs = LogNeeds::of_records(limits, each).unwrap();
            (needs.readers.len(), needs.all_from)
        };
        assert_eq!(read(12), (3, 1_000));
        assert_eq!(read(11), (2, 7));
        assert_eq!(read(4), (1, 6));
        assert_eq!(read(3), (0, 5));
    }

    #[test]
    fn records_that_are_not_understood_have_everything_stay() {
        use crate::records::key;
        use crate::route::RouteFlags;

        let subscription = SubscriptionRecord {
            flags: RouteFlags::from_bits(1),
            identifier: None,
            since: 8,
            rest: None,
        };
        assert!(subscription.flags.qos().is_acknowledged());
        let cursor = Cursor::at(7).encode();
        let group = GroupRecord {
            is_kept: true,
            is_attended: false,
            cursor: Cursor::at(9),
        };
        let good: Vec<(Box<[u8]>, Vec<u8>)> = vec![
            (key(Kind::Cursor, "one", &[]), cursor),
            (key(Kind::Group, "$share/q/b/#", &[]), group.encode()),
            (key(Kind::Session, "one", &[]), vec![1, 0]),
            (
                key(Kind::Subscription, "one", b"a/+"),
                subscription.encode(),
            ),
            (
                key(Kind::Subscription, "one", b"$share/q/b/#"),
                subscription.encode(),
            ),
        ];
        let read = |records: &[(Box<[u8]>, Vec<u8>)]| {
            let each = |visit: &mut dyn FnMut(&[u8], &[u8])| {
                for (key, value) in records {
                    visit(key, value);
                }
                Ok::<(), ()>(())
            };
            LogNeeds::of_records(LIMITS, each).unwrap_or_default()
        };
        let mut session = one("a/+", 7, &[]);
        session.filters[0].since = 8;
        let expected = LogNeeds {
            all_from: 1_000,
            readers: vec![session, one("b/#", 9, &[])],
        };
        assert_eq!(read(&good), expected);
        assert_eq!(read(&[]).all_from, 1_000, "no readers, no needs");
        for unknown in [
            (Box::from(*b"?unknown"), Vec::new()),
            (key(Kind::Cursor, "two", &[]), Vec::new()),
            (key(Kind::Session, "two", &[]), vec![1, 0]),
            (key(Kind::Subscription, "one", b"c"), Vec::new()),
        ] {
            let mut records = good.clone();
            records.push(unknown);
            assert_eq!(read(&records), LogNeeds::default(), "everything stays");
        }
    }
}
