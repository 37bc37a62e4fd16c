//! Other nodes: what goes to them and what comes from them.

use std::sync::Arc;

use super::Broker;
use super::companions::Beside;
use super::publish::Routing;
use crate::api::{DoorState, Retention, Routed};
use crate::directory::{Admission, RetainedBy};
use crate::encoded::{Outbound, parts_of};
use crate::message::{InvalidMessage, Message, MessageHeader, Qos};
use crate::peer_gate::PeerGate;
use crate::peers::{Destination, FromPeer, Interest, NodeSet, Peers, Settles, Wanted, stays};
use crate::route::RouteUpdate;
use crate::store::Change;
use crate::watch::Step;

impl<P: DoorState> Broker<P> {
    /// Makes this the broker of a cluster's node. To be called on all shards before there is a session.
    pub fn join_cluster(&mut self, gate: Arc<PeerGate>) {
        self.peers = Some(Box::new(Peers::new(gate)));
        self.index.set_clustered();
        self.queues.branches.is_on = true;
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

    /// The nodes that have the sessions now which wanted some filters here tell so: nothing is held for these sessions
    /// any more. To be called on the first shard.
    pub fn release_handed_over(&mut self, filters: Vec<Arc<str>>) {
        self.edit_log(|log| {
            for filter in filters {
                log.push(RouteUpdate::HandedOver {
                    filter,
                    holds: false,
                });
            }
        });
    }

    /// The messages for other nodes that were published since the last call, in their order. `None` where there are
    /// none, and nothing waits for tokens. To be called at the end of a turn.
    ///
    /// Acknowledgements wait for tokens up to [`Outbound::token`]. They are kept when
    /// [`committed`](Self::committed) has come so far: the store's `written` and `synced` are to count these
    /// tokens. So a broker in a cluster has a store that keeps nothing.
    pub fn take_outgoing(&mut self) -> Option<Outbound> {
        self.take_crowded();
        self.peers.as_mut()?.take()
    }

    /// Whether [`take_outgoing`](Self::take_outgoing) may as well wait for the end of the next turn, if that follows at
    /// once. It may once: where there are few messages, which are encoded already, and nothing waits for a token.
    pub fn may_outgoing_wait(&mut self) -> bool {
        (self.peers.as_mut()).is_some_and(|peers| peers.may_wait())
    }

    /// Routes a message of another node to this node's readers. It goes to no other node.
    /// [`PeerGate::arrives`] was told of it.
    pub fn publish_from_peer(&mut self, now_ms: u64, message: Message, what: FromPeer) {
        if let Some(peers) = &self.peers {
            peers.gate.has_arrived(&message);
            self.take_from_peer(now_ms, message, what);
        }
    }

    /// As [`publish_from_peer`](Self::publish_from_peer), for a part of the other node's
    /// [`Encoded`](crate::Encoded) messages. Their topics' retained messages stay as they are: nodes agree on these by
    /// another way. [`PeerGate::arrive_encoded`] was told of the part's bytes.
    ///
    /// # Errors
    /// [`InvalidMessage`] where one is not valid. It and those behind it are left out.
    pub fn publish_encoded(&mut self, now_ms: u64, records: &[u8]) -> Result<(), InvalidMessage> {
        let Some(peers) = &self.peers else {
            return Ok(());
        };
        peers.gate.have_arrived_encoded(records.len() as u64);
        for parts in parts_of(records) {
            let parts = parts?;
            self.catch_up();
            self.set_from_peer(true);
            let routed = self.spread_parts(now_ms, parts);
            self.set_from_peer(false);
            self.finish(now_ms);
            routed?;
        }
        Ok(())
    }

    /// Says whether what is routed came from another node.
    #[inline]
    fn set_from_peer(&mut self, is_from_peer: bool) {
        if let Some(peers) = &mut self.peers {
            peers.is_from_peer = is_from_peer;
        }
    }

    fn take_from_peer(&mut self, now_ms: u64, message: Message, what: FromPeer) {
        self.set_from_peer(true);
        match what {
            FromPeer::Publish => {
                self.route_alone(now_ms, message, false, RetainedBy::Peer);
            }
            FromPeer::Deliver => {
                self.catch_up();
                let message = self.prepared(now_ms, message);
                self.spread(now_ms, message, Routing::PLAIN);
            }
            FromPeer::Retain => {
                let mut message = message;
                message.charge(&self.gauge);
                let message = Arc::new(message);
                (self.directory).retain(&message, RetainedBy::Peer, Admission::Limited);
            }
        }
        self.set_from_peer(false);
        self.finish(now_ms);
    }

    /// Whether a message goes by the cluster's log: somebody wants it who outlives a connection, here or on
    /// another node, or it is to go there in any case.
    pub(super) fn is_for_peers_log(&mut self, message: &Message, is_for_log: bool) -> bool {
        let is_own = (self.peers.as_ref()).is_some_and(|peers| !peers.is_from_peer);
        if !is_own || stays(message.topic_bytes()) {
            return false;
        }
        if !message.qos().is_acknowledged() {
            return self.is_for_queue(message);
        }
        self.catch_up();
        let matches = self.index.matches(message, &self.queues.limits);
        matches.is_some_and(|matches| is_for_log || matches.is_durable || matches.peers.is_durable)
    }

    /// Whether a queue of the cluster takes a message, whatever its QoS is.
    fn is_for_queue(&mut self, message: &Message) -> bool {
        self.catch_up();
        if !self.index.has_kept_groups() {
            return false;
        }
        let matches = self.index.matches(message, &self.queues.limits);
        matches.is_some_and(|matches| matches.is_for_queue)
    }

    /// Whether a message must go to the cluster's log while that is full, or to a node that is full.
    pub(super) fn is_peers_log_full(&mut self, message: &Message, is_for_log: bool) -> bool {
        let Some(peers) = &self.peers else {
            return false;
        };
        let (is_log_full, full) = (peers.gate.is_log_full(), peers.gate.full());
        (is_log_full && self.is_for_peers_log(message, is_for_log))
            || (!full.is_empty() && self.must_reach(message, full))
    }

    /// Whether one of some nodes is to have a message for sure.
    fn must_reach(&mut self, message: &Message, nodes: NodeSet) -> bool {
        if !message.qos().is_acknowledged() || stays(message.topic_bytes()) {
            return false;
        }
        self.catch_up();
        let matches = self.index.matches(message, &self.queues.limits);
        matches.is_some_and(|matches| matches.peers.acknowledged.meets(nodes))
    }

    /// Sends a message to the cluster's log. All readers have it as it comes by, those of this node, too.
    pub(super) fn send_to_log(
        &mut self,
        now_ms: u64,
        message: Message,
        beside: &mut Beside,
    ) -> Routed {
        let (once, settles) = self.take_name(now_ms, beside).unzip();
        let destination = Destination::Log { once, following: 0 };
        let settles = settles.flatten();
        let kept = (beside.by, &mut beside.changes);
        self.put_into_log(now_ms, message, destination, settles, kept)
    }

    /// Whether messages that are published together can be one entry of the cluster's log, whichever nodes want
    /// them.
    pub(super) fn are_for_peers_log(&mut self, messages: &[Message]) -> bool {
        let takes = |message: &Message| {
            message.qos().is_acknowledged()
                && !stays(message.topic_bytes())
                && (self.index.matches(message, &self.queues.limits)).is_some()
        };
        self.peers
            .as_ref()
            .is_some_and(|peers| peers.gate.takes_together(messages))
            && messages.iter().all(takes)
    }

    /// Sends messages to the cluster's log, which takes all of them or none.
    pub(super) fn send_to_log_together(
        &mut self,
        now_ms: u64,
        messages: Vec<Message>,
        by: RetainedBy,
        companions: &mut Vec<Change>,
    ) -> Routed {
        let mut sum = Routed::default();
        let mut following = messages.len();
        for message in messages {
            following -= 1;
            let once = None;
            let destination = Destination::Log { once, following };
            let routed = self.put_into_log(now_ms, message, destination, None, (by, companions));
            sum.matched += routed.matched;
            sum.retention = routed.retention;
        }
        sum
    }

    fn put_into_log(
        &mut self,
        now_ms: u64,
        message: Message,
        destination: Destination,
        settles: Option<Settles>,
        (by, companions): (RetainedBy, &mut Vec<Change>),
    ) -> Routed {
        let message = self.prepared(now_ms, message);
        let retention = if message.retain() {
            self.directory.retain(&message, by, Admission::Limited).0
        } else {
            Retention::NotAsked
        };
        let found = self.index.matches(&message, &self.queues.limits);
        let (matched, away) = found.map_or((1, 0), |found| {
            // Somebody who is away may be no node's at this moment.
            let matched = (found.total + found.peers.nodes().len()).max(1);
            (matched, found.asleep)
        });
        let step = Step::Received { matched, away };
        self.queues.saw(&message, step);
        if let Some(peers) = &mut self.peers {
            let mut token = peers.log(&message, destination, settles);
            // Nothing comes between messages that go as one.
            peers.retain_later(&message, retention);
            if !matches!(destination, Destination::Log { following: 1.., .. }) {
                token = token.max(peers.retain_all());
            }
            token = token.max(peers.keep(companions));
            self.last_append.handed_over(token);
        }
        Routed {
            matched,
            retention,
            ..Routed::default()
        }
    }

    /// A message of the cluster's log comes by, at a position that is higher than those of all before it. The
    /// first shard routes all of them to this node's readers.
    pub fn publish_from_log(&mut self, now_ms: u64, position: u64, message: Message) {
        let message = self.prepared(now_ms, message);
        let directory = Arc::clone(&self.directory);
        let mut appends = directory.appends();
        self.queues.store.came_by(position);
        appends.came_by(position, &message);
        let length = directory.head();
        drop(appends);
        self.catch_up_to(length);
        self.set_from_peer(true);
        let routing = Routing {
            position,
            ..Routing::PLAIN
        };
        self.spread(now_ms, message, routing);
        self.set_from_peer(false);
        self.finish(now_ms);
    }

    /// The cluster's log has come by up to here, without a message for anybody.
    pub fn pass_log(&mut self, position: u64) {
        let directory = Arc::clone(&self.directory);
        let appends = directory.appends();
        self.queues.store.came_by(position);
        drop(appends);
    }

    /// Changes of records that were put aside since the last call. To be called before
    /// [`take_outgoing`](Self::take_outgoing), whose token counts them, too.
    pub fn take_changes(&mut self) -> Vec<Change> {
        (self.peers.as_mut()).map_or_else(Vec::new, |peers| peers.take_changes())
    }

    /// Tells other nodes of retained messages again, for the engine has lost them: of up to `most` behind the first
    /// `skip`. How many are to be skipped next; `None` at the end.
    pub fn restore_retained(&mut self, now_ms: u64, skip: usize, most: usize) -> Option<usize> {
        let (messages, has_more) = self.retained_page(now_ms, "#", skip, most)?;
        let peers = self.peers.as_mut()?;
        for message in &messages {
            peers.restore(message);
        }
        has_more.then_some(skip + messages.len())
    }

    /// Whether other nodes are to have a message for sure, or may want it so, and cannot get it now.
    pub(super) fn peers_refuse(&mut self, message: &Message, is_for_log: bool) -> bool {
        let Some(peers) = &self.peers else {
            return false;
        };
        if !peers.is_shut_for(message) || stays(message.topic_bytes()) {
            return false;
        }
        let knows_wanted = peers.gate.knows_wanted();
        if !message.qos().is_acknowledged() {
            return self.is_for_queue(message);
        }
        if !knows_wanted || message.retain() || is_for_log {
            return true;
        }
        self.catch_up();
        let matches = self.index.matches(message, &self.queues.limits);
        matches.is_some_and(|matches| {
            !matches.peers.acknowledged.is_empty() || matches.peers.is_durable || matches.is_durable
        })
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
            peers.retain(&Arc::new(message), Destination::RetainedQuietly);
        }
    }
}
