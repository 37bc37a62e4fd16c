//! Appends to the store, and how far they have come.

use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, SessionKey};
use crate::directory::Appends;
use crate::message::Message;
use crate::peers::{Once, Settles};
use crate::records::{self, Kind, split_key};
use crate::session::{BrokerSession, State};
use crate::store::{Appended, Change, Committed, Frame, Full, Record};

/// Bits of a round that count the publications of a session; those above are when they began.
const ROUND_BITS: u32 = 20;

/// Changes of records for which room is kept.
const SPARE_CHANGES: usize = 1_024;

/// The name of the message that is published next.
#[derive(Debug)]
pub(super) enum NextName {
    /// Of a session, by its packet identifier and by how many the session has published.
    Counted(SessionKey, u16),
    /// The same, of a message that goes by the log.
    Logged(SessionKey, u16),
    /// This one, with the record of the whole cluster that is kept behind it.
    Given(Once, Option<Settles>),
}

/// The last append of a shard.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LastAppend {
    /// See [`Broker::token`].
    token: u64,
    /// See [`Broker::appends`].
    count: u64,
}

impl LastAppend {
    /// An append was made, which may have the token of the one before.
    const fn made(&mut self, token: u64) {
        self.token = token;
        self.count += 1;
    }

    /// Something was handed to the cluster, unless the token is that of something before.
    pub(super) const fn handed_over(&mut self, token: u64) {
        if token > self.token {
            self.made(token);
        }
    }
}

impl<P: DoorState> Broker<P> {
    /// The token of this shard's last append; zero where there was none. Everything that the broker was told before
    /// is kept as soon as [`committed`](Self::committed) has come so far.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.last_append.token
    }

    /// The number of appends that this shard has made. Two of them may have one token, so only this tells whether there
    /// was one.
    #[must_use]
    pub const fn appends(&self) -> u64 {
        self.last_append.count
    }

    /// The position in the log that the next message gets, or a later one.
    #[must_use]
    pub fn next_position(&self) -> u64 {
        self.queues.store.next_position()
    }

    /// How far the appends of all shards have come.
    #[must_use]
    pub fn committed(&self) -> Committed {
        self.queues.store.committed()
    }

    /// Asks for the shard to be woken when appends have come to either of these tokens; 0 is no wish.
    pub fn wake_at(&mut self, wanted: Committed) {
        self.queues.store.wake_at(wanted);
    }

    /// Has the store write what was appended. To be called at the end of a turn.
    pub fn flush_store(&mut self) {
        self.queues.store.flush();
    }

    /// Whether anything outlives the process.
    #[must_use]
    pub const fn is_durable(&self) -> bool {
        self.queues.is_durable
    }

    /// Appends messages, with the changes that have gathered, under the lock that gives positions out.
    pub(super) fn append(
        &mut self,
        appends: &mut Appends,
        messages: &[Arc<Message>],
    ) -> Result<Appended, Full> {
        let queues = &mut self.queues;
        let gathered = queues.changes.len();
        queues.changes.append(&mut self.companions);
        if let Some(peers) = &mut self.peers {
            debug_assert!(messages.is_empty(), "messages come by in the cluster's log");
            let token = peers.keep(&mut queues.changes);
            queues.changes.shrink_to(SPARE_CHANGES);
            self.last_append.handed_over(token);
            return Ok(Appended { first: 0, token });
        }
        let frame = Frame {
            messages,
            changes: &queues.changes,
        };
        match appends.append(&mut *queues.store, self.held.keeping(), frame) {
            Ok(appended) => {
                queues.changes.clear();
                // A crowd that leaves at once writes many cursors.
                queues.changes.shrink_to(SPARE_CHANGES);
                self.last_append.made(appended.token);
                Ok(appended)
            }
            Err(full) => {
                queues.changes.truncate(gathered);
                Err(full)
            }
        }
    }

    /// Appends the changes that have gathered.
    pub(super) fn append_changes(&mut self) {
        let directory = Arc::clone(&self.directory);
        // A frame without messages is always taken.
        let appended = self.append(&mut directory.appends(), &[]);
        debug_assert!(appended.is_ok(), "a store takes records");
    }

    // Records that front doors keep.

    /// Whether the store has no room for another record that stays. Records that replace others are taken.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        self.queues.store.lacks_room()
    }

    /// Whether the store has no room for a session that it does not know, or for the will of one. One that it knows may come back, and make
    /// room. Of a session of another shard that is seen when it arrives.
    pub(super) fn lacks_room_for(&self, client_id: &str) -> bool {
        if !self.lacks_room() {
            return false;
        }
        let Some(owner) = self.directory.owner(client_id) else {
            return true;
        };
        if owner.shard != self.shard {
            return false;
        }
        // Packed sessions are known.
        let session = self.queues.sessions.get(owner.slot);
        let session = session.filter(|session| session.generation == owner.generation);
        let is_known = |session: &BrokerSession<P>| {
            session.is_stored || session.will.as_ref().is_some_and(|will| will.is_stored)
        };
        session.is_some_and(|session| session.state == State::Active && !is_known(session))
    }

    /// Keeps a record of a session, by a key that the front door chooses. Nothing is kept of a session that
    /// ends with its connection.
    pub fn keep(&mut self, session: SessionKey, key: &[u8], value: &[u8]) {
        if let Some(change) = self.door_change(session, key, Some(value)) {
            self.queues.changes.push(change);
            self.append_changes();
        }
    }

    /// As [`keep`](Self::keep), together with the message that the session publishes next: both are kept,
    /// or none. Where that message is not appended, the record is not kept.
    pub fn keep_with_next(&mut self, session: SessionKey, key: &[u8], value: &[u8]) {
        let change = self.door_change(session, key, Some(value));
        self.companions.extend(change);
    }

    /// Removes a record of a session.
    pub fn forget(&mut self, session: SessionKey, key: &[u8]) {
        let known = self.queues.attended(session);
        let is_kept = known
            .and_then(|session| session.rare.as_ref())
            .is_some_and(|rare| rare.kept.iter().any(|kept| **kept == *key));
        if is_kept && let Some(change) = self.door_change(session, key, None) {
            self.queues.changes.push(change);
            self.append_changes();
        }
    }

    /// The records of a session that a store had, by their keys: once, then none.
    pub fn take_records(&mut self, session: SessionKey) -> Vec<Record> {
        let Some(session) = self.queues.attended_mut(session) else {
            return Vec::new();
        };
        let rare = session.rare.as_mut();
        rare.map(|rare| std::mem::take(&mut rare.restored))
            .unwrap_or_default()
    }

    /// Names the message that the session publishes next, by its packet identifier and by the number of such
    /// messages from the session. So when it is sent again to another node of a cluster, it is the same message.
    pub fn name_next(&mut self, session: SessionKey, packet_id: u16) {
        let name = NextName::Counted(session, packet_id);
        self.next_name = self.peers.is_some().then_some(name);
    }

    /// As [`name_next`](Self::name_next), and has the message go by the log of a cluster, also where nobody wants
    /// it. So the record that goes with it ([`keep_with_next`](Self::keep_with_next)) is kept for sure.
    pub fn log_next(&mut self, session: SessionKey, number: u16) {
        let name = NextName::Logged(session, number);
        self.next_name = self.peers.is_some().then_some(name);
    }

    /// Names the message that is published next, and has it go by the log of a cluster, also where nobody wants it.
    /// So one append decides whether it was published, whichever node tries. `record` is the key and value of a
    /// record of the whole cluster. The entry tells of it, and it is kept behind the entry
    /// ([`keep_shared`](Self::keep_shared)). `None` where there is no such record.
    pub fn name_next_as(&mut self, once: Once, record: Option<(&[u8], &[u8])>) {
        if self.peers.is_some() {
            let settles = record.map(|(key, value)| Settles::Shared {
                key: key.into(),
                value: value.into(),
            });
            self.next_name = Some(NextName::Given(once, settles));
        }
    }

    /// Whether the message that is published next goes by the log of a cluster in any case.
    pub(super) const fn is_next_for_log(&self) -> bool {
        matches!(
            self.next_name,
            Some(NextName::Given(..) | NextName::Logged(..))
        )
    }

    /// The name of the message that is published, and the record of it; `None` where nothing is kept of its session.
    pub(super) fn take_name(&mut self, now_ms: u64) -> Option<(Once, Option<Settles>)> {
        let (session, packet_id) = match self.next_name.take()? {
            NextName::Counted(session, number) | NextName::Logged(session, number) => {
                (session, number)
            }
            NextName::Given(once, settles) => return Some((once, settles)),
        };
        let session = self.queues.attended_mut(session)?;
        if !session.is_stored {
            return None;
        }
        let rare = session.rare_mut();
        if rare.rounds == 0 {
            // A session of that name may have been there a moment ago, and NATS knows its names.
            rare.rounds = now_ms << ROUND_BITS;
        }
        rare.rounds += 1;
        let round = rare.rounds;
        let (client_id, session) = (Arc::clone(&session.client_id), session.origin.0);
        let mut companions = self.companions.iter();
        let settles = companions.find_map(|change| match split_key(&change.key)? {
            (Kind::Door, name, key) if *name == *client_id => Some(Settles::Session {
                client_id: Arc::clone(&client_id),
                round,
                key: key.into(),
            }),
            _ => None,
        });
        let value = round.to_be_bytes().to_vec();
        (self.companions).push(records::put(Kind::Rounds, &client_id, &[], value));
        let once = Once {
            session,
            round,
            packet_id,
        };
        Some((once, settles))
    }

    /// Keeps a record of the node, together with the message that is published next; see
    /// [`keep_with_next`](Self::keep_with_next).
    pub fn keep_node_with_next(&mut self, key: &[u8], value: &[u8]) {
        if self.keeps_of_node() {
            let change = records::put(Kind::Node, "", key, value.to_vec());
            self.companions.push(change);
        }
    }

    /// Keeps a record of the node.
    pub fn keep_node(&mut self, key: &[u8], value: &[u8]) {
        if self.keeps_of_node() {
            let change = records::put(Kind::Node, "", key, value.to_vec());
            self.queues.changes.push(change);
            self.append_changes();
        }
    }

    /// Removes a record of the node.
    pub fn forget_node(&mut self, key: &[u8]) {
        if self.keeps_of_node() {
            self.queues
                .changes
                .push(records::remove(Kind::Node, "", key));
            self.append_changes();
        }
    }

    /// Keeps a record of the whole cluster, after the messages of this turn that go by the log: every node finds it.
    /// Nothing is kept where there is no cluster.
    pub fn keep_shared(&mut self, key: &[u8], value: &[u8]) {
        if self.peers.is_some() {
            let change = records::put(Kind::Shared, "", key, value.to_vec());
            self.queues.changes.push(change);
            self.append_changes();
        }
    }

    /// Whether anything is kept of the node itself, its sessions aside. In a cluster that ends with its process.
    pub(super) const fn keeps_of_node(&self) -> bool {
        self.queues.is_durable && self.peers.is_none()
    }

    /// The change of a session's record; `None` where nothing is kept of the session.
    fn door_change(
        &mut self,
        session: SessionKey,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Option<Change> {
        let session = self.queues.attended_mut(session)?;
        if !session.is_stored {
            return None;
        }
        let kept = &mut session.rare_mut().kept;
        kept.retain(|kept| **kept != *key);
        let change = match value {
            Some(value) => {
                kept.push(key.into());
                records::put(Kind::Door, &session.client_id, key, value.to_vec())
            }
            None => records::remove(Kind::Door, &session.client_id, key),
        };
        Some(change)
    }
}
