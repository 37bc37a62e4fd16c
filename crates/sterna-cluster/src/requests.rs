//! Requests that are done once in a cluster, by the keys that their clients chose.
//!
//! Each key has an entry, the last of its subject. A process that wants to do the request first writes, by
//! compare-and-set, that it has begun. When it has done the request, it writes that over the first entry. Where a
//! process that is gone had begun a request, another begins it again, in the same *round*. The publications of both
//! then have one name, and the log takes only one of them.
//!
//! No input or output here.

use crate::owners::{Key, Process, number, put_number};

/// The version that this node writes, and the only one that it reads.
const VERSION: u8 = 1;

/// Flags.
const IS_DONE: u8 = 1;

/// An incarnation that is over: those of processes are higher.
const OVER: u64 = 0;

/// The entry of a key in the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Whether the request was done.
    pub is_done: bool,
    /// Which use of the key it is: the same for all who try it.
    pub round: u64,
    /// The process that has begun the request.
    pub by: Process,
    /// The front door's record of the request.
    pub value: Box<[u8]>,
}

impl Entry {
    /// The bytes that NATS keeps. The entry holds until `until_s`, in seconds since the Unix epoch: what NATS brings back
    /// later is none.
    #[must_use]
    pub fn encode(&self, until_s: u64) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.is_done) * IS_DONE];
        put_number(&mut out, until_s);
        put_number(&mut out, self.round);
        put_number(&mut out, self.by.node.len() as u64);
        out.extend_from_slice(self.by.node.as_bytes());
        put_number(&mut out, self.by.incarnation);
        out.extend_from_slice(&self.value);
        out
    }

    /// Whether it says that a request was done, with this record of it. A later use of the key has another.
    #[must_use]
    pub fn is_record(&self, value: &[u8]) -> bool {
        self.is_done && *self.value == *value
    }

    /// Reads what was encoded, and until when it holds; `None` for another version, or what is no entry.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, u64)> {
        let (&[version, flags], mut rest) = bytes.split_first_chunk()?;
        if version != VERSION || flags > IS_DONE {
            return None;
        }
        let until_s = number(&mut rest)?;
        let round = number(&mut rest)?;
        let len = usize::try_from(number(&mut rest)?).ok()?;
        let (node, mut rest) = rest.split_at_checked(len)?;
        let by = Process {
            node: std::str::from_utf8(node).ok()?.into(),
            incarnation: number(&mut rest)?,
        };
        let entry = Self {
            is_done: flags & IS_DONE != 0,
            round,
            by,
            value: rest.into(),
        };
        Some((entry, until_s))
    }
}

/// The answer to a process that wants to do a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It is to be done, in this round.
    First(u64),
    /// It was done, or is being done elsewhere if `is_done` is false: what the front door has kept of it.
    Known {
        /// Whether it was done.
        is_done: bool,
        /// The front door's record.
        value: Box<[u8]>,
    },
    /// NATS does not say.
    Away,
}

/// One that wants to do a request.
#[derive(Debug)]
pub struct Beginning {
    /// The sequence number that the last entry of the subject is to have; 0 for none.
    pub expected: u64,
    entry: Entry,
    /// Entries of other processes in whose rounds this one has tried to begin, one for each round.
    taken_up: Vec<Entry>,
    /// The round of the last entry of the subject; `None` where there is none.
    over: Option<u64>,
}

impl Beginning {
    /// Of a process. `round` is higher than in earlier uses of the key.
    #[must_use]
    pub const fn new(by: Process, round: u64, value: Box<[u8]>) -> Self {
        Self {
            expected: 0,
            entry: Entry {
                is_done: false,
                round,
                by,
                value,
            },
            taken_up: Vec::new(),
            over: None,
        }
    }

    /// The entry to write where the last entry of the subject is the expected one.
    #[must_use]
    pub const fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Gives the request up, after the last write had no answer.
    #[must_use]
    pub fn give_up(self) -> Freeing {
        let (expected, over) = (self.expected, self.over);
        self.free(expected, over)
    }

    /// The way to give the request up that this process is to do: the answer was [`Begun::First`], and its entry has this
    /// sequence number.
    #[must_use]
    pub fn begun(self, sequence: u64) -> Freeing {
        let round = self.entry.round;
        self.free(sequence, Some(round))
    }

    fn free(self, expected: u64, round: Option<u64>) -> Freeing {
        let mut freeing = Freeing {
            expected,
            tried: expected,
            by: self.entry.by,
            taken_up: self.taken_up,
            entry: None,
        };
        freeing.entry = freeing.left_in(round);
        freeing
    }

    /// Takes the last entry of the subject, after it was another than expected or this one's write is uncertain.
    /// `found` is that entry with its sequence number; `None` where there is none, or it was given up. `may_act`
    /// tells whether a process may still be doing a request. `published` has the front door's record of a request
    /// that the log has in a round. Returns the answer; `None` where this entry is to be written (again).
    pub fn found(
        &mut self,
        sequence: u64,
        found: Option<Entry>,
        may_act: impl FnOnce(&Process) -> bool,
        published: impl FnOnce(u64) -> Option<Box<[u8]>>,
    ) -> Option<Begun> {
        let may_be_written = sequence == self.expected;
        self.expected = sequence;
        self.over = found.as_ref().map(|found| found.round);
        let Some(found) = found else {
            self.taken_up.clear();
            return None;
        };
        if found.is_done {
            let (is_done, value) = (true, found.value);
            return Some(Begun::Known { is_done, value });
        }
        if found.by == self.entry.by && found.round == self.entry.round {
            return Some(Begun::First(found.round));
        }
        let acts = may_act(&found.by);
        if acts && may_be_written && self.taken_up.contains(&found) {
            // It is to be known whether this one's entry is written over that: nobody would do the request otherwise.
            return None;
        }
        if !acts && let Some(value) = published(found.round) {
            let is_done = true;
            return Some(Begun::Known { is_done, value });
        }
        if acts || found.value != self.entry.value {
            let (is_done, value) = (false, found.value);
            return Some(Begun::Known { is_done, value });
        }
        self.entry.round = found.round;
        if found.by != self.entry.by {
            self.taken_up.retain(|entry| entry.round != found.round);
            self.taken_up.push(found);
        }
        None
    }
}

/// A key to be freed, because its process does not do the request.
///
/// NATS may take the process's entry later than it answers a reader. So the key is free when a free entry is written
/// over the last one: every earlier write conflicts from then on.
///
/// In the round of another process that this one took up, an entry that keeps the round is written instead.
/// That process may publish in it although it was taken for dead, and a free key would have another round. The entry
/// is of no process that acts: that one may have given up, too, and nobody else could begin then.
#[derive(Debug)]
pub struct Freeing {
    /// The sequence number that the last entry of the subject is to have; 0 for none.
    pub expected: u64,
    /// The highest sequence number over which the process's entry may be written.
    tried: u64,
    by: Process,
    taken_up: Vec<Entry>,
    entry: Option<Entry>,
}

impl Freeing {
    /// The entry to write where the last entry of the subject is the expected one; `None` for a free one.
    #[must_use]
    pub const fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    /// The entry that keeps a round of another process.
    fn left_in(&self, round: Option<u64>) -> Option<Entry> {
        let mut taken_up = self.taken_up.iter();
        let mut entry = taken_up.find(|entry| Some(entry.round) == round).cloned()?;
        entry.by.incarnation = OVER;
        Some(entry)
    }

    /// Takes the last entry of the subject, as [`Beginning::found`] does, after [`Freeing::entry`] was not written.
    /// Returns whether that is to be written (again); false where another has the key.
    pub fn found(&mut self, sequence: u64, found: Option<&Entry>) -> bool {
        if found.is_none_or(|found| !found.is_done && found.by == self.by) {
            self.expected = sequence;
            self.entry = self.left_in(found.map(|found| found.round));
            return true;
        }
        // A server that is behind may still have what the process has found and written over.
        sequence <= self.tried
    }
}

/// The key under which the cluster knows a front door's.
#[must_use]
pub fn key_of(key: &[u8]) -> Key {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    // No client identifier begins so.
    context.update(b"\0key ");
    context.update(key);
    let mut half = Key::default();
    half.copy_from_slice(&context.finish().as_ref()[..16]);
    half
}
