//! How far a shared subscription has come in the log. Its home shard knows each message that is not
//! settled, in the queue or out with a member.

use std::collections::{BTreeMap, BTreeSet};

use crate::cursor::{Cursor, Unsettled};
use crate::queues::Queues;
use crate::records::{self, Kind};

/// What became of a message so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Attempts {
    failed: u16,
    /// Whether a member has it: if the broker ends, that attempt has failed.
    is_out: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct GroupReader {
    unsettled: BTreeMap<u64, Attempts>,
    /// Settled positions, from the watermark of the last writing on.
    settled: BTreeSet<u64>,
    /// Nothing before this position is the group's, but for what is not settled.
    since: u64,
    /// The lowest position that a restart would need.
    needed: u64,
    pub(crate) is_changed: bool,
}

/// What a store keeps of a group.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct GroupRecord {
    /// Whether its queue is kept: then messages of QoS 0 are in it too.
    pub(crate) is_kept: bool,
    pub(crate) cursor: Cursor,
}

impl GroupRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = vec![u8::from(self.is_kept)];
        record.extend(self.cursor.encode());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let (&is_kept, cursor) = record.split_first()?;
        Some(Self {
            is_kept: is_kept != 0,
            cursor: Cursor::decode(cursor)?,
        })
    }
}

impl GroupReader {
    /// A reader of what is published from a position on.
    pub(crate) fn new(since: u64) -> Self {
        Self {
            since,
            needed: since,
            ..Self::default()
        }
    }

    /// The reader of a group that a store had; what it has not settled is entered again.
    pub(crate) fn restored(cursor: &Cursor, since: u64) -> Self {
        Self {
            since,
            needed: cursor.first(),
            ..Self::default()
        }
    }

    /// A message has come.
    pub(crate) fn enter(&mut self, position: u64, failed: u16) {
        let is_out = false;
        self.unsettled.insert(position, Attempts { failed, is_out });
    }

    /// A member has the message, or has given it back after so many attempts that failed.
    pub(crate) fn set(&mut self, position: u64, failed: u16, is_out: bool) {
        if let Some(attempts) = self.unsettled.get_mut(&position) {
            *attempts = Attempts { failed, is_out };
        }
    }

    /// The message is settled, or was dropped.
    pub(crate) fn settle(&mut self, position: u64) {
        self.unsettled.remove(&position);
        self.settled.insert(position);
    }

    /// The lowest position that a restart would need.
    pub(crate) fn needed(&self) -> u64 {
        self.needed
    }

    /// The cursor as a store is to keep it, where nothing before the watermark is under way.
    pub(crate) fn write(&mut self, watermark: u64) -> Cursor {
        let from = watermark.max(self.since);
        self.settled = self.settled.split_off(&from);
        self.is_changed = false;
        let unsettled = |(&position, attempts): (&u64, &Attempts)| Unsettled {
            position,
            failures: attempts.failed.saturating_add(u16::from(attempts.is_out)),
        };
        let under_way = self.unsettled.range(from..).map(unsettled);
        let cursor = Cursor {
            from,
            unsettled: self.unsettled.range(..from).map(unsettled).collect(),
            failed: under_way.filter(|known| known.failures > 0).collect(),
            settled: self.settled.iter().copied().collect(),
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

    /// Notes that a message of a group's is settled or dropped.
    pub(crate) fn settle_in_group(&mut self, id: u32, position: u64) {
        self.note_in_group(id, position, |log| log.settle(position));
    }

    /// Makes a group read the log from a position on, or no longer.
    pub(crate) fn set_group_log(&mut self, id: u32, is_durable: bool, since: u64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if !is_durable {
            if group.log.take().is_some() {
                self.changes
                    .push(records::remove(Kind::Group, &group.filter, &[]));
            }
        } else if group.log.is_none() {
            group.log = Some(Box::new(GroupReader::new(since)));
            self.write_group_cursor(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_counts_as_failed_after_a_restart() {
        let mut reader = GroupReader::new(5);
        for position in [5, 7, 8, 12] {
            reader.enter(position, 0);
        }
        reader.set(7, 2, true);
        reader.settle(5);
        reader.settle(12);
        let cursor = reader.write(10);
        assert_eq!(cursor.from, 10);
        let wanted: Vec<_> = (0..15)
            .filter_map(|at| Some((at, cursor.wants(at)?)))
            .collect();
        assert_eq!(wanted, [(7, 3), (8, 0), (10, 0), (11, 0), (13, 0), (14, 0)]);
        assert_eq!(reader.needed(), 7);
    }

    #[test]
    fn nothing_from_before_the_group_is_its() {
        let mut reader = GroupReader::new(100);
        assert_eq!(reader.write(40).from, 100);
    }
}
