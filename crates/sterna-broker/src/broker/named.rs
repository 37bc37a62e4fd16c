//! Sessions by name, for callers that don't read their queues: they may be connected or away.
//!
//! [`Directory::shard_of`](crate::Directory::shard_of) says which shard to ask. There, a session that
//! is on its way from or to another shard is not found, and the caller tries again later.

use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, Outcome, QueueState, SessionInfo, SessionKey};
use crate::name::SessionName;
use crate::session::{BrokerSession, NEVER_MS};

/// Begin filters of shared subscriptions.
const SHARE_PREFIX: &str = "$share/";

impl<P: DoorState> Broker<P> {
    /// The filters that a session subscribes to, in no particular order; none for an outdated key.
    pub fn filters(&self, session: SessionKey) -> impl Iterator<Item = &Arc<str>> {
        let session = self.queues.attended(session);
        session.into_iter().flat_map(filters)
    }

    /// The facts that this shard knows of a session, and the filters that it subscribes to, in no particular order.
    #[must_use]
    pub fn session_named(&self, name: &SessionName) -> Option<(SessionInfo, Vec<Arc<str>>)> {
        let look = |session: &_| (self.info(session), filters(session).cloned().collect());
        self.queues.sessions.look(self.active_slot(name)?, look)
    }

    /// The front door's state of a session of this shard.
    #[must_use]
    pub fn protocol_named(&mut self, name: &SessionName) -> Option<&mut P> {
        let slot = self.active_slot(name)?;
        self.queues.sessions.unpack(slot);
        Some(&mut self.queues.sessions[slot].protocol)
    }

    /// A record of a session of this shard that a store had, while [`take_records`](Self::take_records) has not taken it.
    #[must_use]
    pub fn record_named(&mut self, name: &SessionName, key: &[u8]) -> Option<&[u8]> {
        let slot = self.active_slot(name)?;
        self.queues.sessions.unpack(slot);
        let session = &self.queues.sessions[slot];
        let mut records = session.rare.as_ref()?.restored.iter();
        let (_, value) = records.find(|(known, _)| **known == *key)?;
        Some(value)
    }

    /// The key of a session of this shard that has a consumer. With it, everything can be done that the consumer's
    /// front door can do.
    #[must_use]
    pub fn key_named(&self, name: &SessionName) -> Option<SessionKey> {
        let slot = self.active_slot(name)?;
        let session = self.queues.sessions.get(slot)?;
        session.is_connected().then(|| session.key(slot))
    }

    /// Whether [`open`](Self::open) with these wishes takes nothing from anybody, if its client is never heard of again.
    /// So it is where there is no session of the name, and where one is gone on with that is here, is away, has no
    /// will and no shared subscription, and lasts no shorter from then on.
    ///
    /// Of a session of another shard nothing is known, and in a cluster another node may have one: false.
    #[must_use]
    pub fn takes_nothing(&self, name: &SessionName, clean_start: bool, expiry_s: u32) -> bool {
        if self.directory.owner(name).is_none() {
            return !self.is_in_cluster();
        }
        let Some(slot) = self.active_slot(name).filter(|_| !clean_start) else {
            return false;
        };
        let sessions = &self.queues.sessions;
        let is_kept = |session: &BrokerSession<P>| {
            !session.is_connected()
                && session.expiry_s <= expiry_s
                && !filters(session).any(|filter| filter.starts_with(SHARE_PREFIX))
        };
        !sessions.has_will(slot) && sessions.look(slot, is_kept) == Some(true)
    }

    /// As [`settle`](Self::settle), for a session of this shard by its name. False also where there is
    /// none.
    pub fn settle_named(
        &mut self,
        now_ms: u64,
        name: &SessionName,
        tag: u64,
        outcome: Outcome,
    ) -> bool {
        // A packed one has nothing to settle.
        let here = self.active_slot(name);
        let Some(slot) = here.filter(|&slot| self.queues.sessions.is_open(slot)) else {
            return false;
        };
        let Some(node) = self.queues.find_sent(slot, tag) else {
            return false;
        };
        let is_known = self.settle_node(slot, node, outcome);
        self.finish(now_ms);
        is_known
    }

    /// The slot of a session that is here; it may be packed.
    pub(super) fn active_slot(&self, name: &SessionName) -> Option<u32> {
        let owner = self.directory.owner(name)?;
        if owner.shard != self.shard {
            return None;
        }
        let sessions = &self.queues.sessions;
        let is_open = (sessions.get(owner.slot)).is_some_and(BrokerSession::is_active);
        let is_here = is_open || sessions.is_packed(owner.slot);
        let is_it = sessions.generation(owner.slot) == Some(owner.generation);
        (is_here && is_it).then_some(owner.slot)
    }

    /// As [`info`](Self::info); `None` for a root's session.
    pub(super) fn client_info(&self, session: &BrokerSession<P>) -> Option<SessionInfo> {
        (!session.is_root()).then(|| self.info(session))
    }

    pub(super) fn info(&self, session: &BrokerSession<P>) -> SessionInfo {
        SessionInfo {
            name: session.name.clone(),
            shard: self.shard(),
            consumer: session.consumer(),
            expiry_s: session.expiry_s,
            expires_at_ms: Some(session.expires_at_ms)
                .filter(|&at_ms| !session.is_connected() && at_ms != NEVER_MS),
            subscriptions: session.subscriptions.len(),
            queue: self.queue_state(session),
        }
    }

    pub(super) fn queue_state(&self, session: &BrokerSession<P>) -> QueueState {
        let reader = session.reader.as_ref();
        let end = self.queues.store.next_position();
        QueueState {
            pending: session.pending.len(),
            pending_bytes: session.account.pending_bytes,
            has_more_in_log: reader
                .is_some_and(|reader| reader.awake_from.is_none() && reader.reached() < end),
            unacknowledged: session.ledger.len(),
        }
    }
}

fn filters<P>(session: &BrokerSession<P>) -> impl Iterator<Item = &Arc<str>> {
    session.subscriptions.iter().map(|(filter, _)| filter)
}
