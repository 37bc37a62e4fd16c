//! Ends: records which say that a session has ended, that nothing is kept of one, that a key is free again, that a filter
//! is not wanted any more, or that a topic has no retained message.
//!
//! An end stays for a time, so that late writers and readers find it, and is removed then. NATS is not to forget it by
//! itself: what lay below it might come again. So its removal takes everything of its subject up to it, and is looked at.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Core;
use super::streams::{NODES, RETAINED};

/// How often is looked for ends whose time is over.
const LOOK: Duration = Duration::from_millis(200);

/// Time after which a removal that NATS has not done is tried again, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// Time by which other nodes remove an end later than the one that wrote it, in milliseconds. That one may be gone.
const OTHERS_LATER_MS: u64 = 10_000;

/// A stream, and a subject of it without the cluster's name.
type Place = (&'static str, Rc<str>);

/// The kinds of ends. Each has a bound of its own: many filters are no reason to forget the ends of sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Of sessions, of what they have, and of keys.
    Session,
    /// Of filters, and of bans.
    Filter,
    /// Of topics' retained messages.
    Topic,
    /// Retained messages that will expire, which has to be written then. They are no ends, and never before their time.
    Expiring,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Session, Self::Filter, Self::Topic, Self::Expiring];

    fn of(stream: &str) -> Self {
        match stream {
            NODES => Self::Filter,
            RETAINED => Self::Topic,
            _ => Self::Session,
        }
    }
}

/// An end that waits.
#[derive(Clone, Copy, Debug)]
struct End {
    due_ms: u64,
    sequence: u64,
}

/// Ends of one kind that wait, by place and by time.
#[derive(Debug, Default)]
struct Waiting {
    ends: HashMap<Place, End>,
    by_time: BTreeSet<(u64, Place)>,
}

impl Waiting {
    /// Notes an end, which waits until its time. A later one of its place takes its place. One that is noted twice goes by the
    /// earlier time: its node sees it come by, too.
    fn note(&mut self, place: Place, end: End) {
        if let Some(earlier) = self.ends.get(&place) {
            let is_same = earlier.sequence == end.sequence;
            if earlier.sequence > end.sequence || (is_same && earlier.due_ms <= end.due_ms) {
                return;
            }
            self.by_time.remove(&(earlier.due_ms, place.clone()));
        }
        self.by_time.insert((end.due_ms, place.clone()));
        self.ends.insert(place, end);
    }

    /// Takes up to `count` that are due. More than `most` do not wait for their time.
    fn take_due(&mut self, now_ms: u64, most: usize, count: usize) -> Vec<(Place, u64)> {
        let mut due = Vec::new();
        while due.len() < count {
            let Some((due_ms, _)) = self.by_time.first() else {
                break;
            };
            if *due_ms > now_ms && self.ends.len() <= most {
                break;
            }
            let Some((_, place)) = self.by_time.pop_first() else {
                break;
            };
            if let Some(end) = self.ends.remove(&place) {
                due.push((place, end.sequence));
            }
        }
        due
    }
}

/// The ends that this node removes, and the retained messages whose end it writes.
#[derive(Debug, Default)]
pub(super) struct Ends {
    waiting: [Waiting; Kind::ALL.len()],
    /// Floors that are being told: what they stand for may lie below ends of sessions.
    floors: usize,
}

impl Ends {
    /// A floor is to be told.
    pub(super) const fn tells_floors(&mut self) {
        self.floors += 1;
    }

    /// It has been.
    pub(super) const fn has_told_floors(&mut self) {
        self.floors -= 1;
    }

    fn note(&mut self, kind: Kind, place: Place, end: End) {
        self.waiting[kind as usize].note(place, end);
    }

    fn take_due(
        &mut self,
        kind: Kind,
        now_ms: u64,
        most: usize,
        count: usize,
    ) -> Vec<(Place, u64)> {
        if kind == Kind::Session && self.floors > 0 {
            return Vec::new();
        }
        let most = if kind == Kind::Expiring {
            usize::MAX
        } else {
            most
        };
        self.waiting[kind as usize].take_due(now_ms, most, count)
    }

    /// The ends that wait, of all kinds.
    fn count(&self) -> usize {
        let ends = (self.waiting.iter().zip(Kind::ALL)).filter(|(_, kind)| *kind != Kind::Expiring);
        ends.map(|(waiting, _)| waiting.ends.len()).sum()
    }
}

impl Core {
    /// Has a subject's messages removed up to an end of it that this node wrote, when that has stayed for its time.
    pub(super) fn note_end(&self, stream: &'static str, subject: &str, sequence: u64) {
        self.note_end_later(stream, subject, sequence, 0);
    }

    /// As [`note_end`](Self::note_end), for an end that another node wrote: this one removes it if that one is gone.
    pub(super) fn note_end_of_another(&self, stream: &'static str, subject: &str, sequence: u64) {
        self.note_end_later(stream, subject, sequence, OTHERS_LATER_MS);
    }

    fn note_end_later(&self, stream: &'static str, subject: &str, sequence: u64, later_ms: u64) {
        let kind = Kind::of(stream);
        let kept_ms = match kind {
            Kind::Filter => self.settings.ended_filter_ms,
            Kind::Topic => self.settings.cleared_topic_ms,
            Kind::Session | Kind::Expiring => self.settings.ended_session_ms,
        };
        let due_ms = self.now_ms() + kept_ms + later_ms;
        let end = End { due_ms, sequence };
        let mut ends = self.ends.borrow_mut();
        ends.note(kind, (stream, subject.into()), end);
        self.status.ends.set(ends.count() as u64);
    }

    /// Has the end of a retained message written, which expires after a time. `is_own` says whether this node handed it
    /// to NATS; others do it later, if that one has not.
    pub(super) fn note_expiry(&self, subject: &str, sequence: u64, left_ms: u64, is_own: bool) {
        let later_ms = if is_own { 0 } else { OTHERS_LATER_MS };
        let due_ms = self
            .now_ms()
            .saturating_add(left_ms)
            .saturating_add(later_ms);
        let end = End { due_ms, sequence };
        let place = (RETAINED, subject.into());
        (self.ends.borrow_mut()).note(Kind::Expiring, place, end);
    }

    /// Removes ends when their time is over, and writes those of retained messages that have expired.
    pub(super) async fn remove_ends(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            for kind in Kind::ALL {
                while self.status.is_connected() && self.remove_some_ends(kind).await {}
            }
        }
    }

    /// Looks after the ends of a kind that are due. Whether there may be more.
    async fn remove_some_ends(&self, kind: Kind) -> bool {
        let most = self.settings.maximum_waiting_ends;
        let count = self.settings.maximum_in_flight;
        let due = (self.ends.borrow_mut()).take_due(kind, self.now_ms(), most, count);
        let is_more = due.len() == count;
        let looked_after = due.into_iter().map(async |(place, sequence)| {
            let is_done = if kind == Kind::Expiring {
                self.end_expired(&place.1, sequence).await
            } else {
                self.remove_end(kind, &place, sequence).await
            };
            (!is_done).then_some((place, sequence))
        });
        let left = join_all(looked_after).await;
        let due_ms = self.now_ms() + RETRY_MS;
        let mut ends = self.ends.borrow_mut();
        for (place, sequence) in left.into_iter().flatten() {
            ends.note(kind, place, End { due_ms, sequence });
        }
        self.status.ends.set(ends.count() as u64);
        is_more
    }

    /// Removes a subject's messages up to an end. False where NATS still has some, or does not say.
    async fn remove_end(&self, kind: Kind, (stream, subject): &Place, sequence: u64) -> bool {
        // All nodes look after those of topics, and one of them was the first.
        if kind == Kind::Topic && self.has_nothing_up_to(stream, subject, sequence).await {
            return true;
        }
        let Ok(found) = self.stream(stream).await else {
            return false;
        };
        let purge = found.purge().filter(self.settings.subject(subject));
        purge.sequence(sequence + 1).await.is_ok()
            && self.has_nothing_up_to(stream, subject, sequence).await
    }

    async fn has_nothing_up_to(&self, stream: &str, subject: &str, sequence: u64) -> bool {
        let last = self.last_of_subject(stream, subject).await;
        last.is_ok_and(|last| last.is_none_or(|last| last.sequence > sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_due_in_time_or_when_there_are_too_many() {
        let place = |subject: &str| ("SESSIONS", Rc::from(subject));
        let end = |due_ms, sequence| End { due_ms, sequence };
        let kind = Kind::Session;
        let mut ends = Ends::default();
        ends.note(kind, place("a"), end(100, 1));
        ends.note(kind, place("b"), end(200, 2));
        assert!(ends.take_due(kind, 99, 9, 9).is_empty());
        // It has ended again, and what came late is nothing.
        ends.note(kind, place("a"), end(300, 7));
        ends.note(kind, place("a"), end(400, 6));
        ends.note(kind, place("a"), end(900, 7));
        ends.tells_floors();
        assert!(ends.take_due(kind, 200, 9, 9).is_empty());
        ends.has_told_floors();
        assert_eq!(ends.take_due(kind, 200, 9, 9), [(place("b"), 2)]);
        assert!(ends.take_due(kind, 299, 9, 9).is_empty());
        ends.note(kind, place("c"), end(350, 8));
        ends.note(kind, place("d"), end(360, 9));
        assert_eq!(ends.take_due(kind, 0, 2, 9), [(place("a"), 7)]);
        assert_eq!(ends.take_due(kind, 1_000, 9, 1), [(place("c"), 8)]);
        assert_eq!(ends.take_due(kind, 1_000, 9, 9), [(place("d"), 9)]);
        assert_eq!(ends.count(), 0);
    }

    #[test]
    fn many_ends_of_one_kind_leave_those_of_another_and_nothing_expires_early() {
        let (mut ends, most) = (Ends::default(), 2);
        let end = |due_ms| End {
            due_ms,
            sequence: 1,
        };
        let place = |stream: &'static str, number: u64| -> Place {
            (stream, Rc::from(format!("{number}").as_str()))
        };
        ends.note(Kind::Session, place("SESSIONS", 0), end(50));
        for number in 0..5 {
            ends.note(Kind::of(NODES), place(NODES, number), end(100 + number));
            ends.note(Kind::Expiring, place(RETAINED, number), end(100 + number));
        }
        assert_eq!(ends.count(), 6, "what will expire is no end");
        assert!(ends.take_due(Kind::Session, 0, most, 9).is_empty());
        assert!(ends.take_due(Kind::Expiring, 99, most, 9).is_empty());
        assert_eq!(ends.take_due(Kind::Filter, 0, most, 9).len(), 3);
        assert_eq!(ends.take_due(Kind::Expiring, 102, most, 9).len(), 3);
    }
}
