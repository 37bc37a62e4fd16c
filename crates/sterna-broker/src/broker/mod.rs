//! The broker of one shard.

use std::sync::Arc;

use crate::api::{
    Close, ConsumerId, Delivery, Event, OpenError, OpenSession, Opened, Outcome, Publication,
    QueueState, Routed, SessionInfo, SessionKey, ShardId, SubscribeError, SubscribeOptions,
    Subscribed, Unacknowledged,
};
use crate::counters::Counters;
use crate::directory::Directory;
use crate::limits::Limits;
use crate::mail::Mail;
use crate::message::Qos;
use crate::store::Store;

/// One shard's broker. `P` is the front door's state per session, opaque here.
///
/// Everything happens in calls and ends with them. After a call (best once per turn of the loop)
/// the caller carries out what has gathered: [`take_mail`](Self::take_mail),
/// [`next_event`](Self::next_event), [`next_ready`](Self::next_ready).
#[derive(Debug)]
pub struct Broker<P> {
    _protocol: std::marker::PhantomData<P>,
}

impl<P: Default + Send> Broker<P> {
    /// The broker of one of the directory's shards.
    #[must_use]
    pub fn new(shard: ShardId, directory: Arc<Directory>, store: Box<dyn Store>) -> Self {
        unimplemented!("follows {shard:?} {directory:?} {store:?}")
    }

    /// Takes over this shard's share of what the store holds. Once, before anything else; all
    /// sessions are away, and their expiry counts on from where it was.
    pub fn restore(&mut self, now_ms: u64) {
        unimplemented!("follows {now_ms}")
    }

    /// Which shard this is.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        unimplemented!("follows")
    }

    /// The limits that hold.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        unimplemented!("follows")
    }

    /// Opens a session for a consumer, evicting the one that has it now, wherever it is.
    ///
    /// # Errors
    /// When a limit forbids it or the will can't be published.
    pub fn open(&mut self, now_ms: u64, request: OpenSession<'_>) -> Result<Opened, OpenError> {
        unimplemented!("follows {now_ms} {request:?}")
    }

    /// Ends a consumer's connection; the session lives on for its expiry interval. Does nothing
    /// for an outdated key.
    pub fn close(&mut self, now_ms: u64, session: SessionKey, close: Close) {
        unimplemented!("follows {now_ms} {session:?} {close:?}")
    }

    /// Disconnects the consumer of a session of this shard ([`Event::Evicted`]) and, if `end`, ends
    /// the session too. Returns whether this shard has the session.
    pub fn evict(&mut self, now_ms: u64, client_id: &str, end: bool) -> bool {
        unimplemented!("follows {now_ms} {client_id} {end}")
    }

    /// The front door's state of a session; `None` for an outdated key.
    #[must_use]
    pub fn protocol(&self, session: SessionKey) -> Option<&P> {
        unimplemented!("follows {session:?}")
    }

    /// The front door's state of a session; `None` for an outdated key.
    #[must_use]
    pub fn protocol_mut(&mut self, session: SessionKey) -> Option<&mut P> {
        unimplemented!("follows {session:?}")
    }

    /// Stores a snapshot of the front door's state, for a session that outlives its connection.
    pub fn save_protocol(&mut self, session: SessionKey, snapshot: &[u8]) {
        unimplemented!("follows {session:?} {snapshot:?}")
    }

    /// The snapshot a restored session came with: once, then `None`. The front door rebuilds its
    /// state from it when the session is opened for the first time after a restart.
    pub fn take_snapshot(&mut self, session: SessionKey) -> Option<Box<[u8]>> {
        unimplemented!("follows {session:?}")
    }

    /// Adds or replaces a subscription. It is in force on all shards when this returns.
    ///
    /// # Errors
    /// When the filter is not valid or a limit forbids it.
    pub fn subscribe(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        filter: &str,
        options: SubscribeOptions,
    ) -> Result<Subscribed, SubscribeError> {
        unimplemented!("follows {now_ms} {session:?} {filter} {options:?}")
    }

    /// Removes a subscription; false where there was none.
    pub fn unsubscribe(&mut self, now_ms: u64, session: SessionKey, filter: &str) -> bool {
        unimplemented!("follows {now_ms} {session:?} {filter}")
    }

    /// Routes a message to every queue whose subscription it matches, here and on other shards.
    pub fn publish(&mut self, now_ms: u64, publication: Publication) -> Routed {
        unimplemented!("follows {now_ms} {publication:?}")
    }

    /// The next session with something to send and a consumer that isn't parked. A session comes
    /// again, after the others, until it is drained or parked.
    pub fn next_ready(&mut self) -> Option<(ConsumerId, SessionKey)> {
        unimplemented!("follows")
    }

    /// The level of what [`next_delivery`](Self::next_delivery) would return, so that the front
    /// door can see whether its window allows it.
    pub fn next_qos(&mut self, now_ms: u64, session: SessionKey) -> Option<Qos> {
        unimplemented!("follows {now_ms} {session:?}")
    }

    /// Takes the next message from the queue; expired ones are dropped on the way. At QoS 1 and 2
    /// it enters the ledger as sent.
    pub fn next_delivery(&mut self, now_ms: u64, session: SessionKey) -> Option<Delivery> {
        unimplemented!("follows {now_ms} {session:?}")
    }

    /// Keeps a session from being ready, because its window or its transport is full.
    pub fn park(&mut self, session: SessionKey) {
        unimplemented!("follows {session:?}")
    }

    /// Lets a parked session be ready again.
    pub fn unpark(&mut self, session: SessionKey) {
        unimplemented!("follows {session:?}")
    }

    /// Ends a delivery. False for an unknown tag.
    pub fn settle(&mut self, now_ms: u64, session: SessionKey, tag: u64, outcome: Outcome) -> bool {
        unimplemented!("follows {now_ms} {session:?} {tag} {outcome:?}")
    }

    /// The receiver has taken a QoS 2 delivery over (PUBREC): the message is dropped, the tag kept
    /// until it is settled. False for an unknown tag.
    pub fn handed_over(&mut self, session: SessionKey, tag: u64) -> bool {
        unimplemented!("follows {session:?} {tag}")
    }

    /// What was sent and not settled, in the order it was sent: what to send again on resume.
    #[must_use]
    pub fn unacknowledged(&self, session: SessionKey) -> Vec<Unacknowledged> {
        unimplemented!("follows {session:?}")
    }

    /// One entry of the ledger by its tag.
    #[must_use]
    pub fn unacknowledged_by_tag(&self, session: SessionKey, tag: u64) -> Option<Unacknowledged> {
        unimplemented!("follows {session:?} {tag}")
    }

    /// What a session's queue holds.
    #[must_use]
    pub fn queue(&self, session: SessionKey) -> Option<QueueState> {
        unimplemented!("follows {session:?}")
    }

    /// Mail for other shards, in the order it is to arrive.
    pub fn take_mail(&mut self) -> std::vec::Drain<'_, (ShardId, Mail<P>)> {
        unimplemented!("follows")
    }

    /// Whether there is mail to carry.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        unimplemented!("follows")
    }

    /// Mail from another shard.
    pub fn mail(&mut self, now_ms: u64, mail: Mail<P>) {
        let _ = mail;
        unimplemented!("follows {now_ms}")
    }

    /// What the front door needs to know, in order.
    pub fn next_event(&mut self) -> Option<Event> {
        unimplemented!("follows")
    }

    /// When [`timeout`](Self::timeout) wants to be called.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        unimplemented!("follows")
    }

    /// Publishes wills that are due, ends sessions and drops messages whose time is over.
    pub fn timeout(&mut self, now_ms: u64) {
        unimplemented!("follows {now_ms}")
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        unimplemented!("follows")
    }

    /// Sessions of this shard for an administrator: up to `limit`, starting at a cursor (zero at
    /// first); the second value is the cursor to go on with, `None` at the end.
    #[must_use]
    pub fn sessions(&self, cursor: usize, limit: usize) -> (Vec<SessionInfo>, Option<usize>) {
        unimplemented!("follows {cursor} {limit}")
    }
}
