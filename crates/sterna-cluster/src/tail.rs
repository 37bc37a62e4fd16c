//! The tail of the log: entries whose records may not be written.
//!
//! An entry that settles a record says so in a header, beside the message; the record is kept after the entry.
//! Where the node dies between the two, the entry is the record. A process that takes over the session, or the key
//! of a request, finds it here.
//!
//! Each process says in its marks up to which position all its records are kept. So the tail has what it appended since,
//! and nobody removes that from the log before others have what the process had.
//!
//! No input or output here.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use sterna_broker::{Records, settle};

use crate::owners::{Key, Process, incarnation_in, number_in};

/// The header's name.
pub const HEADER: &str = "Sterna-Settles";

/// The form of the header's line.
const FORM: &str = "1";

/// The longest line. A record with a longer line has no header, so others do not find it in the log.
pub const MOST_LINE_BYTES: usize = 320;

/// The record that an entry of the log settles, with its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The process that has appended it.
    pub by: Process,
    /// The record.
    pub record: Settles,
}

/// A record that is kept behind an entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settles {
    /// Of a session.
    Session {
        /// The session.
        key: Key,
        /// The epoch of its owner.
        epoch: u64,
        /// Number of the publication in the session.
        round: u64,
        /// The front door's key of the record, which has no value.
        record: Box<[u8]>,
    },
    /// Of a request with a key.
    Request {
        /// The key.
        key: Key,
        /// Which use of the key it is.
        round: u64,
        /// For how many seconds the request is known.
        kept_for_s: u64,
        /// The front door's record.
        value: Box<[u8]>,
    },
}

impl Settled {
    /// The header's line; `None` where it would be too long.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let Process { node, incarnation } = &self.by;
        let line = match &self.record {
            Settles::Session {
                key,
                epoch,
                round,
                record,
            } => {
                let (key, record) = (hex(key), hex(record));
                format!("{FORM} {node} {incarnation} session {key} {epoch} {round} {record}")
            }
            Settles::Request {
                key,
                round,
                kept_for_s,
                value,
            } => {
                let (key, value) = (hex(key), hex(value));
                format!("{FORM} {node} {incarnation} request {key} {round} {kept_for_s} {value}")
            }
        };
        (line.len() <= MOST_LINE_BYTES).then_some(line)
    }

    /// Reads a line; `None` for another form.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let &[form, node, incarnation, kind, key, first, second, bytes] = words.as_slice() else {
            return None;
        };
        if form != FORM {
            return None;
        }
        let by = Process {
            node: node.into(),
            incarnation: incarnation_in(incarnation)?,
        };
        let key = Key::try_from(&*unhex(key)?).ok()?;
        let (first, second, bytes) = (number_in(first)?, number_in(second)?, unhex(bytes)?);
        let record = match kind {
            "session" => Settles::Session {
                key,
                epoch: first,
                round: second,
                record: bytes,
            },
            "request" => Settles::Request {
                key,
                round: first,
                kept_for_s: second,
                value: bytes,
            },
            _ => return None,
        };
        Some(Self { by, record })
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Box<[u8]>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let pair = std::str::from_utf8(pair).ok()?;
        let is_plain = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_plain.then(|| u8::from_str_radix(pair, 16).ok())?
    };
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(byte).collect()
}

/// Node and incarnation of a process, in the order of both.
type Name = (Arc<str>, u64);

/// The entries of the tail that a node knows.
#[derive(Debug)]
pub struct Tail {
    /// All entries from this position on that are in the tail are known.
    from: u64,
    /// Up to which position processes have kept all their records.
    kept: BTreeMap<Name, u64>,
    /// The processes of which others have everything, by their nodes: the highest incarnations.
    swept: BTreeMap<Arc<str>, u64>,
    known: BTreeMap<Name, VecDeque<(u64, Settles)>>,
    entries: usize,
    most_entries: usize,
}

impl Tail {
    /// The tail of a node that follows the log from no position yet. Beyond `most_entries`, those of the process with
    /// the most entries are forgotten, the oldest first.
    #[must_use]
    pub const fn new(most_entries: usize) -> Self {
        Self {
            from: u64::MAX,
            kept: BTreeMap::new(),
            swept: BTreeMap::new(),
            known: BTreeMap::new(),
            entries: 0,
            most_entries,
        }
    }

    /// The log is followed from this position on.
    pub const fn begin(&mut self, position: u64) {
        self.from = position;
    }

    /// Looks at all entries; for tests, after each of their steps.
    ///
    /// # Panics
    /// Where the number is not that of the entries, or they are not in order.
    pub fn check(&self) {
        let entries: usize = self.known.values().map(VecDeque::len).sum();
        assert_eq!(self.entries, entries, "entries of all processes");
        assert!(entries <= self.most_entries, "no more is known than may be");
        for (name, known) in &self.known {
            let kept = self.kept.get(name).copied().unwrap_or(0);
            assert!(
                known.iter().all(|(position, _)| *position >= kept),
                "what a process has kept is no part of the tail"
            );
            let pairs = known.iter().zip(known.iter().skip(1));
            for ((position, _), (next, _)) in pairs {
                assert!(position < next, "entries of a process are in order");
            }
        }
    }

    /// Number of entries that are known.
    #[must_use]
    pub const fn entries(&self) -> usize {
        self.entries
    }

    /// An entry comes by, or is found later. True where another had to be forgotten.
    pub fn saw(&mut self, position: u64, Settled { by, record }: Settled) -> bool {
        let name = (by.node, by.incarnation);
        if self.is_swept(&name) {
            return false;
        }
        if self.kept_by(&name).is_some_and(|kept| position < kept) {
            return false;
        }
        let entries = self.known.entry(name).or_default();
        match entries.binary_search_by_key(&position, |(at, _)| *at) {
            Ok(_) => return false,
            Err(place) => entries.insert(place, (position, record)),
        }
        self.entries += 1;
        if self.entries <= self.most_entries {
            return false;
        }
        let longest = self.known.values_mut().max_by_key(|entries| entries.len());
        if let Some(longest) = longest {
            longest.pop_front();
            self.entries -= 1;
        }
        true
    }

    /// A process had kept all its records up to a position when it wrote its last mark.
    pub fn had_kept(&mut self, node: &str, incarnation: u64, position: u64) {
        if !self.is_swept(&(node.into(), incarnation)) {
            self.kept(node, incarnation, position);
        }
    }

    /// A process has kept all its records up to a position, and lives. Its mark may come late.
    pub fn kept(&mut self, node: &str, incarnation: u64, position: u64) {
        let name: Name = (node.into(), incarnation);
        if self.is_swept(&name) {
            // It was taken for gone.
            self.swept.remove(node);
        }
        let last = (Arc::clone(&name.0), u64::MAX);
        let later = (Bound::Excluded(&name), Bound::Included(&last));
        if self.kept.range::<Name, _>(later).next().is_some() {
            return;
        }
        if let Some(entries) = self.known.get_mut(&name) {
            let before = entries.len();
            let first = entries.partition_point(|(at, _)| *at < position);
            entries.drain(..first);
            self.entries -= before - entries.len();
            if entries.is_empty() {
                self.known.remove(&name);
            }
        }
        self.kept.insert(name, position);
    }

    /// Others have everything of a node's processes up to an incarnation.
    pub fn forget(&mut self, node: &str, incarnation: u64) {
        let is_over = |(name, known): &Name| **name == *node && *known <= incarnation;
        let swept = self.swept.entry(node.into()).or_default();
        *swept = incarnation.max(*swept);
        self.kept.retain(|name, _| !is_over(name));
        self.known.retain(|name, _| !is_over(name));
        self.entries = self.known.values().map(VecDeque::len).sum();
    }

    /// The lowest position up to which a node's processes before an incarnation have kept their records. `None`
    /// where others have everything of them.
    #[must_use]
    pub fn kept_earlier(&self, node: &str, incarnation: u64) -> Option<u64> {
        let node: Arc<str> = node.into();
        let earlier = (Arc::clone(&node), 0)..(node, incarnation);
        self.kept.range(earlier).map(|(_, at)| *at).min()
    }

    fn is_swept(&self, (node, incarnation): &Name) -> bool {
        (self.swept.get(node)).is_some_and(|swept| incarnation <= swept)
    }

    /// The position up to which a process has kept its records. The position of a later process of the node holds
    /// for it, too.
    fn kept_by(&self, (node, incarnation): &Name) -> Option<u64> {
        let same_or_later = (Arc::clone(node), *incarnation)..=(Arc::clone(node), u64::MAX);
        self.kept.range(same_or_later).next().map(|(_, at)| *at)
    }

    /// The positions to read in the log before all of the tail is known: the first, and the one after the last.
    /// `None` where all of it is known.
    #[must_use]
    pub fn missing(&self) -> Option<(u64, u64)> {
        let first = self.kept.values().copied().min()?;
        (first < self.from).then_some((first, self.from))
    }

    /// Everything was read from a position on.
    pub fn has_read(&mut self, from: u64) {
        self.from = self.from.min(from);
    }

    /// Adds to a session's records what the tail has of it. `epoch` is that of the owner that wrote them. Returns how
    /// many there were.
    pub fn amend(&self, session: Key, epoch: u64, records: &mut Records) -> usize {
        let all = self.known.values().flatten();
        let mut found: Vec<(u64, &[u8], u64)> = all
            .filter_map(|(_, settles)| match settles {
                Settles::Session {
                    key,
                    epoch,
                    round,
                    record,
                } if *key == session => Some((*round, &**record, *epoch)),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        let added = found.into_iter().filter(|&(round, record, of)| {
            // Publications of an earlier session of the name have a lower epoch, and numbers of its own.
            settle(records, (round, record), of >= epoch)
        });
        added.count()
    }

    /// The front door's record of a request that was published in a round, and for how many seconds it is kept.
    #[must_use]
    pub fn request(&self, request: Key, of: u64) -> Option<(Box<[u8]>, u64)> {
        let mut all = self.known.values().flatten();
        all.find_map(|(_, settles)| match settles {
            Settles::Request {
                key,
                round,
                kept_for_s,
                value,
            } if *key == request && *round == of => Some((value.clone(), *kept_for_s)),
            _ => None,
        })
    }

    /// The requests that a node's processes up to an incarnation have published, with their rounds.
    #[must_use]
    pub fn requests_of(&self, node: &str, incarnation: u64) -> Vec<(Key, u64)> {
        let node: Arc<str> = node.into();
        let names = (Arc::clone(&node), 0)..=(node, incarnation);
        let entries = self.known.range(names).flat_map(|(_, entries)| entries);
        let requests = entries.filter_map(|(_, settles)| match settles {
            Settles::Request { key, round, .. } => Some((*key, *round)),
            Settles::Session { .. } => None,
        });
        requests.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_incarnation_is_one_as_others() {
        let mut tail = Tail::new(10);
        tail.begin(0);
        tail.kept("a", u64::MAX, 7);
        tail.kept("a", 3, 9);
        assert_eq!(
            tail.kept_earlier("a", u64::MAX),
            None,
            "what came late is nothing"
        );
    }

    #[test]
    fn a_line_with_numbers_that_are_no_ones_is_none() {
        let line = |incarnation: u64, epoch: u64, round: u64| {
            let key = "0".repeat(32);
            Settled::parse(&format!(
                "1 a {incarnation} session {key} {epoch} {round} ff"
            ))
        };
        assert!(line(1, 7, 8).is_some());
        for (incarnation, epoch, round) in [
            (0, 7, 8),
            (u64::MAX, 7, 8),
            (1, u64::MAX, 8),
            (1, 7, u64::MAX),
        ] {
            assert_eq!(line(incarnation, epoch, round), None);
        }
    }

    fn by(node: &str, incarnation: u64) -> Process {
        Process {
            node: node.into(),
            incarnation,
        }
    }

    fn session(node: &str, incarnation: u64, epoch: u64, round: u64) -> Settled {
        Settled {
            by: by(node, incarnation),
            record: Settles::Session {
                key: [7; 16],
                epoch,
                round,
                record: [b'r', 0, round as u8].into(),
            },
        }
    }

    fn request(node: &str, round: u64) -> Settled {
        Settled {
            by: by(node, 1),
            record: Settles::Request {
                key: [9; 16],
                round,
                kept_for_s: 60,
                value: b"value".as_slice().into(),
            },
        }
    }

    #[test]
    fn lines_come_back_and_others_are_nothing() {
        for settled in [session("node-1", 3, 4, 5), request("b", 8)] {
            let line = settled.line().expect("a short one");
            assert_eq!(Settled::parse(&line), Some(settled));
            for end in 0..line.len() - 2 {
                let other = Settled::parse(&line[..end]);
                assert!(other.is_none_or(|other| other.line().is_some()));
            }
            assert_eq!(Settled::parse(&line.replacen('1', "2", 1)), None);
            assert_eq!(Settled::parse(&format!("{line} x")), None);
            assert_eq!(Settled::parse(&line.replace("es", "x")), None);
        }
        for text in ["", "1", "1 a 1 session zz 1 1 00", "1 a 1 session +0 1 1 é"] {
            assert_eq!(Settled::parse(text), None, "{text}");
        }
        let mut long = session("a", 1, 1, 1);
        if let Settles::Session { record, .. } = &mut long.record {
            *record = vec![0; MOST_LINE_BYTES].into();
        }
        assert_eq!(long.line(), None);
    }

    /// Records of a session that has published `rounds` messages.
    fn records(rounds: u64) -> Records {
        let mut records = Records::from([(b"s\x031:a"[..].into(), Box::default())]);
        if rounds > 0 {
            settle(&mut records, (rounds, b"before"), true);
        }
        records
    }

    #[test]
    fn records_that_were_not_written_are_found_and_no_others() {
        let mut tail = Tail::new(100);
        tail.begin(1_000);
        for (position, round) in [(1_000, 3), (1_001, 4), (1_002, 5)] {
            assert!(!tail.saw(position, session("a", 1, 20, round)));
        }
        let mut known = records(3);
        assert_eq!(tail.amend([7; 16], 20, &mut known), 2);
        assert_eq!(tail.amend([7; 16], 20, &mut known), 0, "it is known now");
        assert_eq!(
            tail.amend([8; 16], 20, &mut records(0)),
            0,
            "another session"
        );
        for earlier in [0, 1, 7] {
            let added = tail.amend([7; 16], 21, &mut records(earlier));
            assert_eq!(added, 0, "a later session that has published {earlier}");
        }
        let added = tail.amend([7; 16], 21, &mut records(4));
        assert_eq!(added, 1, "its owner has written something else since");
        assert_eq!(
            tail.amend([7; 16], 0, &mut Records::new()),
            0,
            "there is none"
        );
        assert_eq!(
            tail.amend([7; 16], 20, &mut records(0)),
            3,
            "its first ones"
        );
        tail.kept("a", 1, 1_002);
        assert_eq!(tail.entries(), 1);
        tail.kept("a", 2, 1_005);
        tail.kept("a", 1, 2_000);
        assert_eq!(tail.entries(), 1, "a mark that comes late is nothing");
        tail.forget("a", 1);
        assert_eq!(tail.entries(), 0);
        tail.had_kept("a", 1, 1_000);
        tail.saw(3_000, session("a", 1, 20, 6));
        assert_eq!((tail.entries(), tail.missing()), (0, None), "it is swept");
        tail.kept("a", 2, 1_005);
        tail.forget("a", 2);
        tail.kept("a", 2, 3_000);
        tail.saw(3_001, session("a", 2, 20, 7));
        assert_eq!(tail.entries(), 1, "it lives");
    }

    #[test]
    fn what_came_by_before_the_start_is_to_be_read() {
        let mut tail = Tail::new(100);
        assert_eq!(tail.missing(), None);
        tail.kept("a", 1, 700);
        tail.kept("b", 1, 900);
        tail.begin(1_000);
        assert_eq!(tail.missing(), Some((700, 1_000)));
        tail.saw(700, session("a", 1, 2, 3));
        tail.saw(800, session("b", 1, 2, 3));
        tail.saw(950, session("b", 1, 2, 3));
        tail.saw(950, session("b", 1, 2, 3));
        assert_eq!(tail.entries(), 2, "b has kept what is before 900");
        tail.has_read(700);
        assert_eq!(tail.missing(), None);
        assert_eq!(tail.kept_earlier("a", 2), Some(700));
        assert_eq!(tail.kept_earlier("a", 1), None);
        // The position of the next start holds for the one before.
        tail.kept("a", 2, 720);
        tail.forget("a", 1);
        tail.saw(710, session("a", 1, 2, 4));
        assert_eq!(tail.entries(), 1);
    }

    #[test]
    fn requests_are_found_by_key_and_round() {
        let mut tail = Tail::new(100);
        tail.begin(1);
        tail.saw(5, request("a", 3));
        let value = Some((b"value".as_slice().into(), 60));
        assert_eq!(tail.request([9; 16], 3), value);
        assert_eq!(tail.request([9; 16], 4), None);
        assert_eq!(tail.request([8; 16], 3), None);
        assert_eq!(tail.requests_of("a", 1), [([9; 16], 3)]);
        assert_eq!(tail.requests_of("a", 0), []);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut tail = Tail::new(3);
        tail.begin(1);
        tail.saw(1, session("b", 1, 1, 1));
        for position in 2..=4 {
            let forgotten = tail.saw(position, session("a", 1, 1, position));
            assert_eq!(forgotten, position == 4);
        }
        assert_eq!(tail.entries(), 3);
        let mut known = records(0);
        assert_eq!(tail.amend([7; 16], 1, &mut known), 3);
    }
}
