//! Other nodes: what goes to them and what comes from them.

use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, Retention};
use crate::directory::Admission;
use crate::message::{Message, MessageHeader, Qos};
use crate::peers::{Destination, FromPeer, Interest, Outgoing, PeerGate, Peers, Wanted, stays};
use crate::route::RouteUpdate;

impl<P: DoorState> Broker<P> {
    /// Makes this the broker of a cluster's node. To be called on all shards before there is a session.
    /// Shared subscriptions are refused from then on.
    pub fn join_cluster(&mut self, gate: Arc<PeerGate>) {
        self.peers = Some(Box::new(Peers::new(gate)));
        if self.shard == 0 {
            self.directory.set_clustered();
            self.index.note_interest();
        }
    }

    /// The filters for which this node's readers have changed since the last call, and what is wanted now.
    /// Only the first shard has any. To be called at the end of a turn.
    pub fn take_interest(&mut self) -> Vec<(Arc<str>, Interest)> {
        if self.peers.is_none() || self.shard != 0 {
            return Vec::new();
        }
        self.catch_up();
        self.index.take_interest()
    }

    /// Tells which other nodes want what some filters match, for all shards. Each filter is told as a whole:
    /// [`Wanted::NOBODY`] ends it.
    pub fn set_wanted(&mut self, changes: Vec<(Arc<str>, Wanted)>) {
        self.edit_log(|log| {
            for (filter, wanted) in changes {
                log.push(RouteUpdate::Peers { filter, wanted });
            }
        });
    }

    /// The messages for other nodes that were published since the last call, in their order. To be called at
    /// the end of a turn.
    ///
    /// Acknowledgements wait for tokens up to the one that comes first. They are kept when
    /// [`committed`](Self::committed) has come so far: the store's `written` and `synced` are to count these
    /// tokens. So a broker in a cluster has a store that keeps nothing.
    pub fn take_outgoing(&mut self) -> Option<(u64, Vec<Outgoing>)> {
        let is_crowded = std::mem::take(&mut self.queues.is_crowded);
        let peers = self.peers.as_mut()?;
        if is_crowded {
            peers.note_crowded();
        }
        peers.take()
    }

    /// Routes a message of another node to this node's readers. It goes to no other node.
    pub fn publish_from_peer(&mut self, now_ms: u64, message: Message, what: FromPeer) {
        let Some(peers) = &mut self.peers else {
            return;
        };
        peers.is_from_peer = true;
        match what {
            FromPeer::Publish => {
                self.route(now_ms, message);
            }
            FromPeer::Deliver => {
                self.catch_up();
                let message = self.prepared(now_ms, message);
                self.spread(now_ms, message, 0, Retention::NotAsked, None);
            }
            FromPeer::Retain => {
                (self.directory).retain(&Arc::new(message), Admission::Limited);
            }
        }
        if let Some(peers) = &mut self.peers {
            peers.is_from_peer = false;
        }
        self.finish(now_ms);
    }

    /// Whether other nodes are to have a message for sure, and cannot get it now.
    pub(super) fn peers_refuse(&mut self, message: &Message) -> bool {
        let is_shut = (self.peers.as_ref()).is_some_and(|peers| peers.is_shut_for(message));
        if !is_shut || !message.qos().is_acknowledged() || stays(message.topic()) {
            return false;
        }
        if message.retain() {
            return true;
        }
        self.catch_up();
        let matches = self.index.matches(message, &self.queues.limits);
        matches.is_some_and(|matches| !matches.peers.acknowledged.is_empty())
    }

    /// Tells other nodes that a topic has no retained message any more.
    pub(super) fn clear_on_peers(&mut self, topic: &str) {
        let Some(peers) = &mut self.peers else {
            return;
        };
        let header = MessageHeader {
            qos: Qos::AtMostOnce,
            retain: true,
            ..MessageHeader::default()
        };
        if let Ok(message) = Message::copy(topic, &[], &[], header) {
            peers.retain(&Arc::new(message), Destination::Cleared);
        }
    }
}
