//! How far a reader of the log has come.
//!
//! A session that outlives its connection reads the log in one of two ways. While it is *awake*, its routes are in
//! the index and publishers hand it each message with its position. While it is *asleep*, its routes are not in the
//! index and cost nothing. Its consumer is away then, or slower than its publishers. Its next messages are in the
//! log from `next` on, and are read when the consumer takes them. Waking and falling asleep happen at a position,
//! under the lock that gives positions out. So each message comes one way, and none comes both ways.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::attempts::Attempts;
use crate::away::{Allowance, Amount, Spans};
use crate::records::{Fields, HIGHEST_PLACE, put_number};
use crate::session::Subscription;

/// A store's record of a reader: the place where it goes on after a restart.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Cursor {
    /// Everything before is settled, but for `unsettled`.
    pub(crate) from: u64,
    /// Positions before `from` that are not settled, rising. Mostly the first is settled next.
    pub(crate) unsettled: VecDeque<Unsettled>,
    /// Positions from `from` on that are settled, rising.
    pub(crate) settled: Vec<u64>,
    /// Positions from `from` on that have failed or were sent before, rising.
    pub(crate) failed: VecDeque<Unsettled>,
    /// Spans in which its consumer was away and that are not read: see `away.rs`. The last span lasts while that is
    /// away.
    pub(crate) away: Spans,
    /// Messages that its queue had no room for.
    pub(crate) dropped: Spans,
    /// Whether all counts that is published until it has read all: see `away.rs`.
    pub(crate) is_limited: bool,
    /// Unsettled messages before this position may have been sent by an earlier process, which could not write that any
    /// more.
    pub(crate) doubtful_to: u64,
}

/// Where a position is in a rising list, or is to be.
fn find(list: &VecDeque<Unsettled>, position: u64) -> Result<usize, usize> {
    list.binary_search_by_key(&position, |one| one.position)
}

fn remove(list: &mut VecDeque<Unsettled>, position: u64) {
    if let Ok(at) = find(list, position) {
        list.remove(at);
    }
}

fn enter(list: &mut VecDeque<Unsettled>, position: u64) {
    if let Err(at) = find(list, position) {
        let attempts = Attempts {
            was_sent: true,
            ..Attempts::default()
        };
        list.insert(at, Unsettled { position, attempts });
    }
}

/// A message that is not settled, or was sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsettled {
    pub(crate) position: u64,
    /// Its deliveries so far.
    pub(crate) attempts: Attempts,
}

impl Cursor {
    /// A reader of what is to come.
    pub(crate) fn at(position: u64) -> Self {
        Self {
            from: position,
            ..Self::default()
        }
    }

    /// The first position that is wanted.
    pub(crate) fn first(&self) -> u64 {
        let first = self.unsettled.front();
        first.map_or(self.from, |first| first.position.min(self.from))
    }

    /// The deliveries so far of the message of a position; `None` where it is settled.
    pub(crate) fn wants(&self, position: u64) -> Option<Attempts> {
        let known = if position < self.from {
            let at = find(&self.unsettled, position).ok()?;
            self.unsettled[at].attempts
        } else if self.settled.binary_search(&position).is_ok() {
            return None;
        } else {
            match find(&self.failed, position) {
                Ok(at) => self.failed[at].attempts,
                Err(_) if self.dropped.contains(position) => return None,
                Err(_) => Attempts::default(),
            }
        };
        Some(Attempts {
            was_sent: known.was_sent || position < self.doubtful_to,
            ..known
        })
    }

    /// The session's consumer leaves, or has left before this position.
    pub(crate) fn leave(&mut self, position: u64) {
        self.away.open(position.max(self.from));
    }

    /// Whether a message counts against the limits of the session's queue.
    pub(crate) fn counts(&self, position: u64) -> bool {
        self.away.contains(position) && !self.was_sent(position)
    }

    /// Notes that the session's queue had no room for a message.
    ///
    /// It joins the one `after` which it comes, where no other message was read between them.
    pub(crate) fn drop_position(&mut self, position: u64, after: Option<u64>) {
        self.dropped.add(position, after, &self.away);
    }

    /// The session's consumer is back. Returns whether it was away.
    pub(crate) fn come_back(&mut self, position: u64) -> bool {
        !self.is_limited && self.away.close(position)
    }

    /// Notes that a message is settled.
    pub(crate) fn settle(&mut self, position: u64) {
        remove(&mut self.failed, position);
        if position < self.from {
            remove(&mut self.unsettled, position);
        } else if let Err(at) = self.settled.binary_search(&position) {
            self.settled.insert(at, position);
        }
    }

    /// Whether a message that is not settled was sent when the cursor was written.
    pub(crate) fn was_sent(&self, position: u64) -> bool {
        let list = if position < self.from {
            &self.unsettled
        } else {
            &self.failed
        };
        find(list, position).is_ok_and(|at| list[at].attempts.was_sent)
    }

    /// Whether a message that is not settled may have been sent before. [MQTT-3.3.1-1]
    pub(crate) fn may_have_been_sent(&self, position: u64) -> bool {
        position < self.doubtful_to || self.was_sent(position)
    }

    /// Notes that a message was sent, also if it waits again.
    pub(crate) fn note_sent(&mut self, position: u64) {
        if position >= self.from {
            enter(&mut self.failed, position);
        }
    }

    /// The process of a session's consumer has ended, at the latest when the log was at this position. Where the cursor
    /// does not say that the consumer had left before, it may have been sent all up to here.
    pub(crate) fn process_ended(&mut self, end: u64) {
        if self.is_limited || !self.away.is_open() {
            self.doubtful_to = self.doubtful_to.max(end);
        }
    }

    /// Notes that all messages up to a position are settled.
    pub(crate) fn settle_up_to(&mut self, position: u64) {
        self.unsettled.retain(|one| one.position > position);
        self.failed.retain(|one| one.position > position);
        self.settled.retain(|&settled| settled > position);
        self.move_to(self.from.max(position + 1));
    }

    /// Everything before a position is settled, but for what is listed.
    fn move_to(&mut self, from: u64) {
        self.from = from;
        self.away.trim(from);
        self.dropped.trim(from);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12 + 3 * (self.unsettled.len() + self.settled.len()));
        put_number(&mut out, self.from);
        put_number(&mut out, self.unsettled.len() as u64);
        // Backwards from `from`, so that the numbers are small.
        let mut before = self.from;
        for unsettled in self.unsettled.iter().rev() {
            put_number(&mut out, before - unsettled.position);
            put_number(&mut out, unsettled.attempts.to_number());
            before = unsettled.position;
        }
        let mut after = self.from;
        put_number(&mut out, self.failed.len() as u64);
        for failed in &self.failed {
            put_number(&mut out, failed.position - after);
            put_number(&mut out, failed.attempts.to_number());
            after = failed.position;
        }
        out.push(u8::from(self.is_limited));
        put_number(&mut out, self.doubtful_to);
        self.away.encode(&mut out, self.from);
        self.dropped.encode(&mut out, self.from);
        after = self.from;
        for &settled in &self.settled {
            put_number(&mut out, settled - after);
            after = settled;
        }
        out
    }

    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(record);
        let from = fields.place()?;
        let count = fields.number()?;
        let mut unsettled = VecDeque::new();
        let mut before = from;
        for _ in 0..count {
            before = before.checked_sub(fields.number()?)?;
            unsettled.push_front(Unsettled {
                position: before,
                attempts: Attempts::from_number(fields.number()?)?,
            });
        }
        let beyond = |after: u64, more: u64| {
            let position = after.checked_add(more);
            position.filter(|&position| position <= HIGHEST_PLACE)
        };
        let mut failed = VecDeque::new();
        let mut after = from;
        for _ in 0..fields.number()? {
            after = beyond(after, fields.number()?)?;
            failed.push_back(Unsettled {
                position: after,
                attempts: Attempts::from_number(fields.number()?)?,
            });
        }
        let is_limited = fields.byte()? != 0;
        let doubtful_to = fields.number().filter(|&to| to <= HIGHEST_PLACE)?;
        let away = Spans::decode(&mut fields, from)?;
        let dropped = Spans::decode(&mut fields, from)?;
        let mut settled = Vec::new();
        after = from;
        while !fields.rest().is_empty() {
            after = beyond(after, fields.number()?)?;
            settled.push(after);
        }
        Some(Self {
            from,
            unsettled,
            settled,
            failed,
            away,
            dropped,
            is_limited,
            doubtful_to,
        })
    }
}

/// Settled positions behind a reader's cursor at which it is written before it is time to.
const MOST_SETTLED: usize = 512;

/// The state of a session's reading.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Where its restart would begin, but for what has come since.
    pub(crate) cursor: Cursor,
    /// The position from which on publishers hand it messages; `None` while it is asleep.
    pub(crate) awake_from: Option<u64>,
    /// While it is asleep: where reading goes on.
    pub(crate) next: u64,
    /// While its session moves: the position from which on messages go to the other shard.
    pub(crate) leaves_at: u64,
    /// The lowest position that a restart would need.
    pub(crate) needed: u64,
    /// While it catches up after being away: how much it may still take of what was published then.
    pub(crate) allowance: Option<Allowance>,
    /// While it finds out how much that is.
    pub(crate) count: Option<Box<Count>>,
    /// Subscriptions that began behind the place where a restart would read, with the positions where. Earlier
    /// publications are not theirs. [MQTT-3.8.4-3]
    pub(crate) recent: Vec<(Arc<str>, u64)>,
    /// Subscriptions that have ended, or had other options, behind the place where it reads.
    pub(crate) past: Vec<Past>,
    /// Its next messages wait until appends have come to this token; 0 for none.
    pub(crate) held_until: u64,
    /// Whether it waits for an answer of the store.
    pub(crate) is_asked: bool,
    /// Whether its consumer has nothing yet of what it has missed.
    pub(crate) is_first: bool,
    /// Whether its cursor is to be written.
    pub(crate) is_changed: bool,
    /// The number of settled positions at which its cursor is written before it is time to. It is twice as much as the
    /// last writing has left: else each message would write all of them again.
    write_at: usize,
}

/// A subscription that has ended, or has other options since: what was published before is read by it.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) filter: Arc<str>,
    pub(crate) subscription: Subscription,
    /// The position at which it began.
    pub(crate) since: u64,
    /// The position at which it ended.
    pub(crate) until: u64,
}

impl Past {
    /// The part of its record's key that tells it from others of the session.
    pub(crate) fn key(&self) -> Vec<u8> {
        let mut key = self.until.to_be_bytes().to_vec();
        key.extend_from_slice(self.filter.as_bytes());
        key
    }
}

/// A first reading of what was published while a session was away, where the oldest of it make room for later ones.
#[derive(Debug)]
pub(crate) struct Count {
    /// Where the reading began, and begins again.
    pub(crate) start: u64,
    /// Where it ends.
    pub(crate) until: u64,
    /// Messages that count.
    pub(crate) unread: Amount,
}

impl Reader {
    /// A reader that is awake from the start.
    pub(crate) fn awake(position: u64) -> Self {
        Self {
            awake_from: Some(position),
            ..Self::restored(Cursor::at(position))
        }
    }

    /// A reader that a store had.
    pub(crate) fn restored(cursor: Cursor) -> Self {
        Self {
            next: cursor.first(),
            leaves_at: u64::MAX,
            needed: cursor.first(),
            cursor,
            awake_from: None,
            allowance: None,
            count: None,
            recent: Vec::new(),
            past: Vec::new(),
            held_until: 0,
            is_asked: false,
            is_first: false,
            is_changed: false,
            write_at: MOST_SETTLED,
        }
    }

    /// The position at which a subscription began; zero where that is behind it.
    pub(crate) fn since(&self, filter: &str) -> u64 {
        let recent = self.recent.iter().find(|(known, _)| **known == *filter);
        recent.map_or(0, |&(_, since)| since)
    }

    /// Notes that a subscription begins at a position.
    pub(crate) fn begin(&mut self, filter: &Arc<str>, since: u64) {
        self.recent.retain(|(known, _)| known != filter);
        if since > self.needed {
            if self.recent.capacity() == 0 {
                // Most sessions have one subscription, and a million sessions may be away.
                self.recent.reserve_exact(1);
            }
            self.recent.push((Arc::clone(filter), since));
        }
    }

    /// While it is asleep: the position before which everything has been read for its queue.
    pub(crate) fn reached(&self) -> u64 {
        let count = self.count.as_ref();
        count.map_or(self.next, |count| count.start)
    }

    /// The lowest position that it needs of the log. While it is awake, nothing is read from `next` on.
    pub(crate) fn holds(&self) -> u64 {
        if self.awake_from.is_some() {
            self.needed
        } else {
            self.needed.min(self.reached())
        }
    }

    /// The allowance in which a message of the log counts; `None` where it counts in none.
    pub(crate) fn allowance_at(&mut self, position: u64) -> Option<&mut Allowance> {
        let cursor = &self.cursor;
        self.allowance
            .as_mut()
            .filter(|allowance| position < allowance.until && cursor.counts(position))
    }

    /// Gives up what it was about to read.
    pub(crate) fn interrupt(&mut self) {
        self.next = self.reached();
        self.count = None;
        self.allowance = None;
        self.is_asked = false;
    }

    /// Whether a publisher's message is taken from its hand; else it is read in the log.
    pub(crate) fn takes(&self, position: u64) -> bool {
        self.awake_from.is_some_and(|from| position >= from)
    }

    /// The position before which everything has come; `watermark` is that of what publishers hand over.
    pub(crate) fn bound(&self, watermark: u64) -> u64 {
        let awake = self.awake_from.map(|from| from.max(watermark));
        awake.unwrap_or_else(|| self.reached()).min(self.leaves_at)
    }

    /// Notes that a message is settled. Returns true where the settled positions are many, and then not before they
    /// are twice as many: the cursor may be where it cannot pass them.
    pub(crate) fn settle(&mut self, position: u64) -> bool {
        self.cursor.settle(position);
        let is_long = self.cursor.settled.len() >= self.write_at;
        if is_long {
            self.write_at = 2 * self.cursor.settled.len();
        }
        is_long
    }

    /// Moves the cursor to `low` at most: everything before has come, or has been read. `waiting` and
    /// `sent` are the positions in the session's queue and in its ledger.
    pub(crate) fn advance(&mut self, low: u64, waiting: &[u64], sent: &[u64]) {
        let cursor = &mut self.cursor;
        let from = cursor.from;
        let ahead = waiting.iter().copied().filter(|&position| position >= from);
        let low = ahead.fold(low, u64::min).max(from);
        cursor.move_to(low);
        // Messages that other shards are to hand over may come before these.
        cursor.failed.retain(|one| one.position >= low);
        for &position in sent.iter().filter(|&&position| position >= from) {
            let list = if position < low {
                &mut cursor.unsettled
            } else {
                &mut cursor.failed
            };
            enter(list, position);
        }
        let done = cursor.settled.partition_point(|&settled| settled < low);
        cursor.settled.drain(..done);
        self.write_at = MOST_SETTLED.max(2 * cursor.settled.len());
        self.is_changed = false;
        self.needed = cursor.first();
        let needed = self.needed;
        self.recent.retain(|&(_, since)| since > needed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsettled(position: u64) -> Unsettled {
        Unsettled {
            position,
            attempts: Attempts {
                was_sent: true,
                ..Attempts::default()
            },
        }
    }

    #[test]
    fn a_cursor_comes_back_and_takes_few_bytes() {
        let cursor = Cursor {
            from: 1 << 40,
            unsettled: VecDeque::from([
                Unsettled {
                    position: 7,
                    attempts: Attempts::from_number(0x0703).expect("a number"),
                },
                unsettled((1 << 40) - 1),
            ]),
            settled: vec![(1 << 40) + 1, (1 << 40) + 100],
            failed: VecDeque::from([unsettled((1 << 40) + 7)]),
            ..Cursor::default()
        };
        assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        let away = Cursor::at(1 << 30);
        assert!(away.encode().len() <= 11);
        assert_eq!(
            Cursor::decode(&[5, 1, 9, 0, 0, 0, 0, 0]),
            None,
            "before the first"
        );
        let highest = Cursor::at(HIGHEST_PLACE);
        assert_eq!(Cursor::decode(&highest.encode()), Some(highest.clone()));
        let beyond = HIGHEST_PLACE + 1;
        for forged in [
            Cursor::at(u64::MAX),
            Cursor {
                settled: vec![beyond],
                ..highest.clone()
            },
            Cursor {
                failed: vec![unsettled(beyond)].into(),
                ..highest.clone()
            },
            Cursor {
                doubtful_to: beyond,
                ..highest
            },
        ] {
            assert_eq!(Cursor::decode(&forged.encode()), None);
        }
    }

    #[test]
    fn what_is_settled_is_not_wanted_again() {
        let mut reader = Reader::awake(10);
        for position in [11, 10, 15] {
            reader.settle(position);
        }
        // 12 was sent, 13 waits.
        reader.advance(20, &[13], &[12]);
        let written = &reader.cursor;
        assert_eq!(written.from, 13);
        assert_eq!(written.unsettled, [unsettled(12)]);
        assert_eq!(written.settled, [15]);
        let wanted: Vec<u64> = (9..17).filter(|&at| written.wants(at).is_some()).collect();
        assert_eq!(wanted, [12, 13, 14, 16]);
        assert_eq!(written.first(), 12);
    }

    #[test]
    fn all_up_to_a_position_is_settled_at_once() {
        let cursor = Cursor {
            from: 20,
            unsettled: VecDeque::from([unsettled(5), unsettled(9)]),
            settled: vec![21, 24],
            failed: VecDeque::from([unsettled(22), unsettled(25)]),
            ..Cursor::default()
        };
        for (position, from, wanted) in [
            (5, 20, vec![9, 20, 22, 23, 25]),
            (19, 20, vec![20, 22, 23, 25]),
            (22, 23, vec![23, 25]),
            (30, 31, vec![]),
        ] {
            let mut cursor = cursor.clone();
            cursor.settle_up_to(position);
            let found: Vec<u64> = (1..26).filter(|&at| cursor.wants(at).is_some()).collect();
            assert_eq!((cursor.from, found), (from, wanted), "{position}");
            assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        }
    }

    #[test]
    fn what_was_sent_is_known_wherever_the_cursor_is() {
        let mut reader = Reader::awake(10);
        reader.advance(12, &[], &[10, 14, 13]);
        let sent = |reader: &Reader| -> Vec<u64> {
            let cursor = Cursor::decode(&reader.cursor.encode()).expect("a cursor");
            let wanted = (9..17).filter(|&at| cursor.wants(at).is_some());
            wanted.filter(|&at| cursor.was_sent(at)).collect()
        };
        assert_eq!(sent(&reader), [10, 13, 14]);
        reader.settle(13);
        assert_eq!(sent(&reader), [10, 14]);
        // Another node writes it before it has sent that again.
        reader.advance(12, &[], &[]);
        assert_eq!(sent(&reader), [10, 14]);
        reader.advance(15, &[14], &[]);
        assert_eq!(sent(&reader), [10, 14]);
    }

    #[test]
    fn a_consumer_that_had_not_left_may_have_been_sent_all_up_to_the_end() {
        let doubtful = |cursor: &Cursor| -> Vec<u64> {
            let cursor = Cursor::decode(&cursor.encode()).expect("a cursor");
            (8..22)
                .filter(|&at| cursor.may_have_been_sent(at))
                .collect()
        };
        let mut reader = Reader::awake(10);
        reader.advance(12, &[], &[10, 14]);
        let mut away = reader.cursor.clone();
        away.leave(16);
        away.process_ended(20);
        assert_eq!(doubtful(&away), [10, 14]);
        reader.cursor.process_ended(20);
        let all: Vec<u64> = (8..20).collect();
        assert_eq!(doubtful(&reader.cursor), all);
        // It has not come back, and the next process ends, too.
        reader.cursor.leave(20);
        reader.cursor.process_ended(21);
        assert_eq!(doubtful(&reader.cursor), all);
    }

    #[test]
    fn what_was_sent_and_given_back_is_wanted_wherever_the_cursor_is() {
        let mut reader = Reader::awake(10);
        reader.advance(20, &[], &[12, 15]);
        reader.settle(15);
        // 12 waits again.
        reader.advance(30, &[12], &[]);
        let wanted: Vec<u64> = (9..33)
            .filter(|&at| reader.cursor.wants(at).is_some())
            .collect();
        assert_eq!(wanted, [12, 30, 31, 32]);
    }

    #[test]
    fn a_restored_reader_reads_what_was_unsettled_before() {
        let mut reader = Reader::restored(Cursor {
            from: 20,
            unsettled: VecDeque::from([unsettled(5), unsettled(9)]),
            settled: vec![21],
            ..Cursor::default()
        });
        assert_eq!(reader.next, 5);
        reader.settle(9);
        // 5 is in the queue again, and reading has come to 22.
        reader.advance(22, &[5], &[]);
        assert!(reader.cursor.wants(5).is_some());
        assert_eq!(
            (reader.cursor.wants(9), reader.cursor.wants(21)),
            (None, None)
        );
        assert_eq!((reader.cursor.from, reader.needed), (22, 5));
    }
}
