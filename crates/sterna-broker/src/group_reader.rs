//! How far a shared subscription has come in the log. Its home shard knows each message that is not
//! settled, in the queue or out with a member.

use std::collections::{BTreeMap, BTreeSet};

use crate::attempts::{Attempts, Failures};
use crate::cursor::{Cursor, Unsettled};
use crate::queues::Queues;
use crate::records::{self, Kind};
use crate::tail::Tail;

/// The state of a message so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Known {
    attempts: Attempts,
    /// Whether a member has it: if the broker ends, it was sent before. That is nobody's failure.
    is_out: bool,
}

/// Settled positions from which on what waits in the log is listed instead, if that is less.
const MOST_SETTLED: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct GroupReader {
    /// Unsettled messages; of those that wait in the log, only the ones that a member had before.
    unsettled: BTreeMap<u64, Known>,
    /// Settled positions, from the cursor of the last writing on.
    settled: BTreeSet<u64>,
    /// See [`Cursor::doubtful_to`].
    doubtful_to: u64,
    /// Where the cursor of the last writing was. Nothing before is the group's, but for unsettled messages.
    from: u64,
    /// The lowest position that a restart would need.
    needed: u64,
    /// Whether a restart is to find the queue.
    pub(crate) is_stored: bool,
    pub(crate) is_changed: bool,
}

/// A store's record of a group.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct GroupRecord {
    /// Whether its queue is kept: then messages of QoS 0 are in it too.
    pub(crate) is_kept: bool,
    /// Whether a member was connected, so that it may have been sent what has come since.
    pub(crate) is_attended: bool,
    pub(crate) cursor: Cursor,
}

const KEPT: u8 = 1;
const ATTENDED: u8 = 2;

impl GroupRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let mut record = vec![flag(self.is_kept, KEPT) | flag(self.is_attended, ATTENDED)];
        record.extend(self.cursor.encode());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (&flags, cursor) = record.split_first()?;
        Some(Self {
            is_kept: flags & KEPT != 0,
            is_attended: flags & ATTENDED != 0,
            cursor: Cursor::decode(cursor)?,
        })
    }

    /// The process of the group's members has ended, at the latest when the log was at this position.
    pub(crate) fn process_ended(&mut self, end: u64) {
        if self.is_attended {
            self.cursor.doubtful_to = end;
        }
    }
}

impl GroupReader {
    /// A reader of what is published from a position on.
    pub(crate) fn new(from: u64) -> Self {
        Self {
            from,
            needed: from,
            ..Self::default()
        }
    }

    /// The reader of a group that a store had; what it has not settled is entered again.
    pub(crate) fn restored(cursor: &Cursor) -> Self {
        Self {
            from: cursor.from,
            doubtful_to: cursor.doubtful_to,
            settled: cursor.settled.iter().copied().collect(),
            needed: cursor.first(),
            is_stored: true,
            ..Self::default()
        }
    }

    /// A message has come; or it is not settled after all.
    pub(crate) fn enter(&mut self, position: u64, attempts: Attempts) {
        self.settled.remove(&position);
        let is_out = false;
        self.unsettled.insert(position, Known { attempts, is_out });
    }

    /// A member has the message.
    pub(crate) fn assign(&mut self, position: u64) {
        if let Some(known) = self.unsettled.get_mut(&position) {
            known.is_out = true;
        }
    }

    /// A member has given the message back.
    pub(crate) fn take_back(&mut self, position: u64, attempts: Attempts) {
        if let Some(known) = self.unsettled.get_mut(&position) {
            let is_out = false;
            *known = Known { attempts, is_out };
        }
    }

    /// The state of a message of which nothing is known.
    fn unknown(&self, position: u64) -> Known {
        Known {
            attempts: Attempts {
                was_sent: position < self.doubtful_to,
                ..Attempts::default()
            },
            is_out: false,
        }
    }

    /// The message waits in the log from now on.
    pub(crate) fn shelve(&mut self, position: u64) {
        if (self.unsettled.get(&position)).is_some_and(|known| *known == self.unknown(position)) {
            self.unsettled.remove(&position);
        }
    }

    /// Whether each message is settled; those that wait in the log are not counted.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// The message was read in the log. Returns its deliveries so far.
    pub(crate) fn unshelve(&mut self, position: u64) -> Attempts {
        let unknown = self.unknown(position);
        (self.unsettled.entry(position).or_insert(unknown)).attempts
    }

    /// The failed deliveries of a message.
    pub(crate) fn failures(&self, position: u64) -> Failures {
        let known = self.unsettled.get(&position);
        known.map_or_else(Failures::default, |known| known.attempts.failures)
    }

    /// The message is settled, or was dropped.
    pub(crate) fn settle(&mut self, position: u64) {
        self.unsettled.remove(&position);
        self.settled.insert(position);
    }

    /// Other messages are the group's from a position on.
    pub(crate) fn begin_anew(&mut self, position: u64) {
        self.from = self.from.max(position);
    }

    /// Notes that the cursor is to be written, if nothing is unsettled; true if it was not noted before.
    pub(crate) fn touch(&mut self) -> bool {
        self.unsettled.is_empty() && !std::mem::replace(&mut self.is_changed, true)
    }

    /// The lowest position that a restart would need.
    pub(crate) fn needed(&self) -> u64 {
        self.needed
    }

    /// Where the cursor is, and the positions before that are not settled: what a restart would read. All that waits in
    /// the log is in `tail`.
    pub(crate) fn unsettled(&self, tail: &Tail) -> (u64, Vec<u64>) {
        let known = self.unsettled.range(..self.from);
        let shelved = tail.before(self.from);
        let mut before: Vec<u64> = known.map(|(&at, _)| at).chain(shelved).collect();
        before.sort_unstable();
        before.dedup();
        (self.from, before)
    }

    /// The cursor as a store is to keep it, where nothing before the watermark is under way. All that waits in
    /// the log is in `tail`: mostly the cursor is at the first of it, and so says all.
    pub(crate) fn write(&mut self, watermark: u64, tail: &Tail) -> Cursor {
        let most = watermark.max(self.from);
        let first = tail.lowest().unwrap_or(u64::MAX);
        let is_listed = self.settled.len() > MOST_SETTLED.max(tail.len());
        let from = if is_listed {
            most
        } else {
            first.clamp(self.from, most)
        };
        self.from = from;
        self.settled = self.settled.split_off(&from);
        self.is_changed = false;
        let unsettled = |(&position, known): (&u64, &Known)| Unsettled {
            position,
            attempts: Attempts {
                was_sent: known.attempts.was_sent || known.is_out,
                ..known.attempts
            },
        };
        let mut before: Vec<Unsettled> = self.unsettled.range(..from).map(unsettled).collect();
        let shelved = tail
            .before(from)
            .filter(|at| !self.unsettled.contains_key(at));
        before.extend(shelved.map(|position| Unsettled {
            position,
            attempts: Attempts::default(),
        }));
        before.sort_unstable_by_key(|unsettled| unsettled.position);
        let under_way = self.unsettled.range(from..).map(unsettled);
        let cursor = Cursor {
            from,
            unsettled: before.into(),
            failed: (under_way.filter(|known| known.attempts != Attempts::default())).collect(),
            settled: self.settled.iter().copied().collect(),
            doubtful_to: self.doubtful_to,
            ..Cursor::default()
        };
        self.needed = cursor.first();
        cursor
    }
}

impl<P> Queues<P> {
    /// Changes what is known of a group's messages, if it reads the log.
    pub(crate) fn note_in_group(
        &mut self,
        id: u32,
        position: u64,
        note: impl FnOnce(&mut GroupReader),
    ) {
        if position == 0 {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(log) = &mut group.log else {
            return;
        };
        note(log);
        if !std::mem::replace(&mut log.is_changed, true) {
            self.changed_groups.push(id);
        }
    }

    /// Notes that a member of a group has left: its record says whether one is connected.
    pub(crate) fn note_left(&mut self, id: u32) {
        if let Some(group) = self.groups.get_mut(&id)
            && group.attending == 0
            && group.root.is_none()
            && let Some(log) = &mut group.log
            && !std::mem::replace(&mut log.is_changed, true)
        {
            self.changed_groups.push(id);
        }
    }

    /// Notes that a message of a group's is settled or dropped.
    pub(crate) fn settle_in_group(&mut self, id: u32, position: u64) {
        if position != 0 && self.branches.settle(id, position) {
            return;
        }
        self.note_in_group(id, position, |log| log.settle(position));
    }

    /// Makes a group read the log from a position on, or no longer.
    pub(crate) fn set_group_log(&mut self, id: u32, is_durable: bool, since: u64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if is_durable {
            let log = &mut group.log;
            let log = log.get_or_insert_with(|| Box::new(GroupReader::new(since)));
            if !std::mem::replace(&mut log.is_stored, true) {
                self.write_group_cursor(id);
            }
        } else if let Some(log) = &mut group.log
            && std::mem::take(&mut log.is_stored)
        {
            // Messages that wait in the log go on to do so.
            let change = records::remove(Kind::Group, &group.filter, &[]);
            self.changes.push(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_was_sent_after_a_restart_and_has_not_failed() {
        let attempts = |said, was_sent| Attempts {
            failures: Failures { said, lost: 0 },
            was_sent,
        };
        let mut reader = GroupReader::new(5);
        for position in [5, 7, 8, 12, 13] {
            reader.enter(position, Attempts::default());
        }
        reader.take_back(7, attempts(2, true));
        reader.assign(7);
        reader.assign(13);
        reader.settle(5);
        reader.settle(12);
        let cursor = reader.write(10, &Tail::default());
        assert_eq!(cursor.from, 10);
        let wanted: Vec<_> = (0..15)
            .filter_map(|at| Some((at, cursor.wants(at)?)))
            .collect();
        let none = Attempts::default();
        let twice = (7, attempts(2, true));
        let out = (13, attempts(0, true));
        assert_eq!(
            wanted,
            [twice, (8, none), (10, none), (11, none), out, (14, none)]
        );
        assert_eq!(reader.needed(), 7);
        assert_eq!(reader.unsettled(&Tail::default()), (10, vec![7, 8]));
    }

    #[test]
    fn what_a_connected_member_may_have_had_is_known_after_the_end() {
        for is_attended in [false, true] {
            let mut reader = GroupReader::new(5);
            reader.enter(5, Attempts::default());
            let attempts = |was_sent| Attempts {
                was_sent,
                ..Attempts::default()
            };
            reader.take_back(5, attempts(true));
            let record = GroupRecord {
                is_kept: true,
                is_attended,
                cursor: reader.write(8, &Tail::default()),
            };
            let mut record = GroupRecord::decode(&record.encode()).expect("a record");
            record.process_ended(12);
            let sent = (5..14).filter(|&at| record.cursor.may_have_been_sent(at));
            let expected = if is_attended {
                (5..12).collect()
            } else {
                vec![5]
            };
            assert_eq!(sent.collect::<Vec<u64>>(), expected);
            let mut again = GroupReader::restored(&record.cursor);
            assert_eq!(again.unshelve(9), attempts(is_attended));
            again.shelve(9);
            assert_eq!(again.unsettled.len(), 0);
        }
    }

    #[test]
    fn nothing_from_before_the_group_is_its() {
        let mut reader = GroupReader::new(100);
        assert_eq!(reader.write(40, &Tail::default()).from, 100);
    }
}
