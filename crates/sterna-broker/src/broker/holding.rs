//! Publishers that wait for a reader whose queue is half full: see [`crate::holding`].

use super::Broker;
use crate::api::{ConsumerId, DoorState, SessionKey};
use crate::holding::CrowdedReader;
use crate::mail::Letter;
use crate::route::Target;
use crate::session::BrokerSession;

impl<P: DoorState> Broker<P> {
    /// Whether a publisher may have to wait for a reader. The front door asks before each message of QoS 1 or 2, and
    /// [`holder_of`](Self::holder_of) where it is so.
    #[inline]
    #[must_use]
    pub fn may_hold(&self) -> bool {
        self.queues.holds.is_some()
    }

    /// A reader whose queue is half full, and that gets messages of QoS 1 and 2 of a topic. `is_own` tells the consumers
    /// of the publisher, which never waits for itself: it could acknowledge nothing meanwhile.
    pub fn holder_of(
        &mut self,
        topic: &str,
        is_own: impl Fn(ConsumerId) -> bool,
    ) -> Option<CrowdedReader> {
        self.catch_up();
        let queues = &self.queues;
        let answer = (self.index).look_up(topic.as_bytes(), &queues.limits)?;
        let matches = self.index.matches_at(answer);
        let is_meant = |target: &&Target| {
            let flags = target.flags;
            flags.qos().is_acknowledged() || (flags.is_group() && !flags.keeps())
        };
        if queues.holds.is_some_on(self.shard) {
            let mut local = matches.local.iter().filter(is_meant);
            let found = local.find_map(|target| {
                let reader = CrowdedReader::of(self.shard, target);
                let is_anothers = || {
                    let session = queues.sessions.get(target.slot);
                    let consumer = session.and_then(BrokerSession::consumer);
                    consumer.is_some_and(|consumer| !is_own(consumer))
                };
                let is_it = queues.is_holding(reader) && (target.flags.is_group() || is_anothers());
                is_it.then_some(reader)
            });
            if found.is_some() {
                return found;
            }
        }
        let mut remote =
            (matches.remote.iter()).filter(|(shard, _)| queues.holds.is_some_on(*shard));
        remote.find_map(|(shard, targets)| {
            let targets = targets.iter().filter(is_meant);
            let readers = targets.map(|target| CrowdedReader::of(*shard, target));
            queues.holds.first_of(readers)
        })
    }

    /// Notes that a client with these sessions waits for a reader, of which [`take_released`](Self::take_released) tells
    /// the end. Returns what else waits with the client, for [`unhold`](Self::unhold): its own readers. `None` where it
    /// must not wait: the reader holds nobody any more, or is its own, or its client waits for this one.
    #[must_use]
    pub fn hold(
        &self,
        holder: CrowdedReader,
        sessions: &[SessionKey],
    ) -> Option<Vec<CrowdedReader>> {
        let own = self.readers(sessions);
        if !self.queues.holds.hold(holder, &own) {
            return None;
        }
        if self.still_holds(holder) {
            return Some(own);
        }
        self.queues.holds.let_go(holder, &own);
        None
    }

    /// Whether a reader still holds publishers. If so, [`take_released`](Self::take_released) tells the end.
    #[must_use]
    pub fn still_holds(&self, holder: CrowdedReader) -> bool {
        self.queues.holds.waits(holder, self.shard)
    }

    /// A client with these readers of its own waits for a reader no more.
    pub fn unhold(&self, holder: CrowdedReader, own: &[CrowdedReader]) {
        self.queues.holds.let_go(holder, own);
    }

    /// The readers of these sessions of this shard: themselves, and the shared subscriptions that they are members of.
    fn readers(&self, sessions: &[SessionKey]) -> Vec<CrowdedReader> {
        let mut readers = Vec::with_capacity(sessions.len());
        for session in sessions {
            let own = CrowdedReader::session(self.shard, session.slot, session.generation);
            readers.push(own);
            if self.queues.attended(*session).is_some() {
                let groups = self.groups_of(session.slot).into_iter();
                readers.extend(groups.filter_map(|group| {
                    let home = self.index.home(group)?;
                    Some(CrowdedReader::group(home, group))
                }));
            }
        }
        readers
    }

    /// Readers for which clients of this shard have waited, and that hold nobody any more. Those of this shard let other
    /// shards know.
    pub fn take_released(&mut self) -> Vec<CrowdedReader> {
        for (holder, waiting) in std::mem::take(&mut self.queues.released) {
            for shard in waiting {
                if shard == self.shard {
                    self.let_go.push(holder);
                } else {
                    self.send(shard, Letter::LetGo { reader: holder });
                }
            }
        }
        std::mem::take(&mut self.let_go)
    }
}
