//! Ends: records which say that a session has ended, that nothing is kept of one, or that a key is free again.
//!
//! An end stays for a time, so that late writers find it, and is removed then. NATS is not to forget it by itself: what
//! lay below it might come again. So its removal takes everything of its subject up to it, and is looked at.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Core;

/// How often is looked for ends whose time is over.
const LOOK: Duration = Duration::from_millis(200);

/// Time after which a removal that NATS has not done is tried again, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// A stream, and a subject of it without the cluster's name.
type Place = (&'static str, Rc<str>);

/// An end that waits.
#[derive(Clone, Copy, Debug)]
struct End {
    due_ms: u64,
    sequence: u64,
}

/// The ends that this node removes, by place and by time.
#[derive(Debug, Default)]
pub(super) struct Ends {
    waiting: HashMap<Place, End>,
    by_time: BTreeSet<(u64, Place)>,
    /// Floors that are being told: what they stand for may lie below ends.
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

    /// Notes an end, which waits until `due_ms`. A later one of its place takes its place.
    fn note(&mut self, place: Place, end: End) {
        if let Some(earlier) = self.waiting.get_mut(&place) {
            if earlier.sequence > end.sequence {
                return;
            }
            self.by_time.remove(&(earlier.due_ms, place.clone()));
        }
        self.by_time.insert((end.due_ms, place.clone()));
        self.waiting.insert(place, end);
    }

    /// Takes up to `count` ends that are due, unless floors are being told. More than `most` do not wait for their time.
    fn take_due(&mut self, now_ms: u64, most: usize, count: usize) -> Vec<(Place, u64)> {
        let mut due = Vec::new();
        while due.len() < count && self.floors == 0 {
            let Some((due_ms, _)) = self.by_time.first() else {
                break;
            };
            if *due_ms > now_ms && self.waiting.len() <= most {
                break;
            }
            let Some((_, place)) = self.by_time.pop_first() else {
                break;
            };
            if let Some(end) = self.waiting.remove(&place) {
                due.push((place, end.sequence));
            }
        }
        due
    }
}

impl Core {
    /// Has a subject's messages removed up to an end of it, when that has stayed for its time.
    pub(super) fn note_end(&self, stream: &'static str, subject: &str, sequence: u64) {
        let due_ms = self.now_ms() + self.settings.ended_session_ms;
        let end = End { due_ms, sequence };
        let mut ends = self.ends.borrow_mut();
        ends.note((stream, subject.into()), end);
        self.status.ends.set(ends.waiting.len() as u64);
    }

    /// Removes ends when their time is over.
    pub(super) async fn remove_ends(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            while self.status.is_connected() {
                let (most, count) = (
                    self.settings.maximum_waiting_ends,
                    self.settings.maximum_in_flight,
                );
                let due = (self.ends.borrow_mut()).take_due(self.now_ms(), most, count);
                if due.is_empty() {
                    break;
                }
                let is_more = due.len() == count;
                let left = join_all(due.into_iter().map(|end| self.remove_end(end))).await;
                let due_ms = self.now_ms() + RETRY_MS;
                for (place, sequence) in left.into_iter().flatten() {
                    let end = End { due_ms, sequence };
                    self.ends.borrow_mut().note(place, end);
                }
                self.status
                    .ends
                    .set(self.ends.borrow().waiting.len() as u64);
                if !is_more {
                    break;
                }
            }
        }
    }

    /// Removes a subject's messages up to an end. Returns it where NATS still has some, or does not say.
    async fn remove_end(&self, end: (Place, u64)) -> Option<(Place, u64)> {
        let ((stream, subject), sequence) = &end;
        let name = self.settings.stream(stream);
        let Ok(found) = self.jetstream.get_stream_no_info(name).await else {
            return Some(end);
        };
        let purge = found.purge().filter(self.settings.subject(subject));
        if purge.sequence(sequence + 1).await.is_err() {
            return Some(end);
        }
        let last = self.last_of_subject(stream, subject).await;
        let is_gone = last.is_ok_and(|last| last.is_none_or(|last| last.sequence > *sequence));
        (!is_gone).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_due_in_time_or_when_there_are_too_many() {
        let place = |subject: &str| ("SESSIONS", Rc::from(subject));
        let end = |due_ms, sequence| End { due_ms, sequence };
        let mut ends = Ends::default();
        ends.note(place("a"), end(100, 1));
        ends.note(place("b"), end(200, 2));
        assert!(ends.take_due(99, 9, 9).is_empty());
        // It has ended again, and what came late is nothing.
        ends.note(place("a"), end(300, 7));
        ends.note(place("a"), end(400, 6));
        ends.tells_floors();
        assert!(ends.take_due(200, 9, 9).is_empty());
        ends.has_told_floors();
        assert_eq!(ends.take_due(200, 9, 9), [(place("b"), 2)]);
        assert!(ends.take_due(299, 9, 9).is_empty());
        ends.note(place("c"), end(350, 8));
        ends.note(place("d"), end(360, 9));
        assert_eq!(ends.take_due(0, 2, 9), [(place("a"), 7)]);
        assert_eq!(ends.take_due(1_000, 9, 1), [(place("c"), 8)]);
        assert_eq!(ends.take_due(1_000, 9, 9), [(place("d"), 9)]);
        assert!(ends.waiting.is_empty() && ends.by_time.is_empty());
    }
}
