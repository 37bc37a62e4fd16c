//! Appends to the store, and how far they have come.

use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, SessionKey};
use crate::directory::Appends;
use crate::message::Message;
use crate::name::SessionName;
use crate::records::{self, Kind};
use crate::session::{BrokerSession, State};
use crate::store::{Appended, Change, Committed, Frame, Full, Record};

/// Changes of records for which room is kept.
const SPARE_CHANGES: usize = 1_024;

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

/// Changes that have gathered, and behind them those of a message that is appended. They are taken back where the store
/// does not take them, also by a panic: they would be kept without the message.
struct Gathered<'a> {
    /// The number of those that stay.
    own: usize,
    all: &'a mut Vec<Change>,
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        self.all.truncate(self.own);
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

    /// Appends messages and their companions, with the changes that have gathered, under the lock that gives positions out.
    /// A full store takes nothing, and leaves no companions.
    pub(super) fn append(
        &mut self,
        appends: &mut Appends,
        messages: &[Arc<Message>],
        companions: &mut Vec<Change>,
    ) -> Result<Appended, Full> {
        let queues = &mut self.queues;
        if let Some(peers) = &mut self.peers {
            debug_assert!(messages.is_empty(), "messages come by in the cluster's log");
            let token = peers.keep(&mut queues.changes);
            let token = token.max(peers.keep(companions));
            queues.changes.shrink_to(SPARE_CHANGES);
            self.last_append.handed_over(token);
            return Ok(Appended { first: 0, token });
        }
        let mut gathered = Gathered {
            own: queues.changes.len(),
            all: &mut queues.changes,
        };
        gathered.all.append(companions);
        let frame = Frame {
            messages,
            changes: gathered.all,
        };
        let appended = appends.append(&mut *queues.store, self.held.keeping(), frame)?;
        gathered.own = 0;
        drop(gathered);
        // A crowd that leaves at once writes many cursors.
        queues.changes.shrink_to(SPARE_CHANGES);
        self.last_append.made(appended.token);
        Ok(appended)
    }

    /// Appends the changes that have gathered.
    pub(super) fn append_changes(&mut self) {
        self.append_with(&mut Vec::new());
    }

    /// Appends these changes with those that have gathered.
    pub(super) fn append_with(&mut self, changes: &mut Vec<Change>) {
        let directory = Arc::clone(&self.directory);
        // A frame without messages is always taken.
        let appended = self.append(&mut directory.appends(), &[], changes);
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
    pub(super) fn lacks_room_for(&self, name: &SessionName) -> bool {
        if !self.lacks_room() {
            return false;
        }
        let Some(owner) = self.directory.owner(name) else {
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
    pub(super) fn door_change(
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
                records::put(Kind::Door, session.name.text(), key, value.to_vec())
            }
            None => records::remove(Kind::Door, session.name.text(), key),
        };
        Some(change)
    }
}
