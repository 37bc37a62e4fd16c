//! One AMQP connection as the front door sees it.

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use sterna_amqp::connection::{Connection, LinkId, SessionId};
use sterna_amqp::link::{Recovery, Unsettled};
use sterna_amqp::messaging::{DeliveryStateBuf, TerminusExpiryPolicy};
use sterna_amqp::performatives::SenderSettleMode;
use sterna_amqp::{Framer, Lane};
use sterna_broker::{Delivery, EndCause, Origin, SessionKey};
use sterna_net::{ConnectionId, StreamId};

use super::acknowledge::Acknowledgement;
use super::claims::Claim;
use super::exact::ExactLink;
use super::farewell::Farewell;
use super::nodes::NodeLink;
use super::registry::LinkKey;
use super::target::AttachingTarget;
use super::transactions::Transactions;
use crate::authorization::{KnownTopics, MessageKind, Owner, Subject};
use crate::context::Context;
use crate::door::{Asking, Early, Framers, Held, Promise, Promises, Sips, held_bytes};
use crate::identity::{Exchange, Identity, Pending};
use crate::inspect;

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) id: ConnectionId,
    pub(super) engine: Connection,
    pub(super) state: State,
    /// Index of the listener in the configuration.
    pub(super) listener: u16,
    /// Cut the streams into frames.
    pub(super) framers: Framers<Framer>,
    /// The stream that each session was begun on.
    pub(super) sessions: Vec<(SessionId, Lane)>,
    /// Streams to be finished when everything is written.
    pub(super) finishing: Vec<StreamId>,
    /// Input that arrived while a decision was awaited, in order of arrival.
    pub(super) held: Vec<Held>,
    /// Ends that wait until the client was told what came before.
    pub(super) farewell: Farewell,
    /// The state of the client's early data.
    pub(super) early: Early,
    /// Whether an action of the client waits for the webhook.
    pub(super) asking: Asking,
    /// The rules' decisions on its last topics.
    pub(super) known_topics: KnownTopics,
    /// Deadline of this connection's entry among the timers; older entries are void.
    pub(super) timer_ms: u64,
    /// The client's container-id, once known.
    pub(super) container: Box<str>,
    /// The client's identity; `None` until its SASL layer has shown it, or its open where there is no such layer.
    pub(super) identity: Option<Identity>,
    /// The client as a publisher, for receivers that do not want messages of their own connection.
    pub(super) origin: Origin,
    /// Links on which the client receives.
    pub(super) sources: Links<Box<SourceLink>>,
    /// Links on which the client sends.
    pub(super) targets: Links<TargetLink>,
    /// Sending links whose attach is not answered and whose messages may have been sent already, with their streams.
    pub(super) unanswered: Vec<(LinkId, StreamId)>,
    /// Sources whose links are detached and that last as long as their session or the connection.
    pub(super) suspended: Vec<(SessionId, Box<SourceLink>)>,
    /// Sending links that are detached and whose nodes were made for links.
    pub(super) lingering: Vec<Lingering>,
    pub(super) transactions: Transactions,
    /// Whether the connection is traced.
    pub(super) traced: bool,
    /// The code with which the transport is closed.
    pub(super) close_code: u64,
    /// Why its links and sessions end: by the client itself, until something else is known.
    pub(super) cause: EndCause,
    /// Deliveries that are accepted and whose disposition is yet to be written.
    pub(super) accepted: Option<Accepted>,
    /// Answers that wait until their effects are kept.
    pub(super) promises: Promises<Acknowledgement>,
    /// Whether its login is counted when its address is known.
    pub(super) owes_login: bool,
    /// Whether the client is not read because too many answers wait, or memory is short.
    pub(super) is_paced: bool,
    pub(super) sips: Sips,
    /// Whether a link has less credit than it could have, because deliveries are not settled.
    pub(super) is_starved: bool,
}

/// How far a client has come.
#[derive(Debug)]
pub(super) enum State {
    /// Before its open.
    New,
    /// A password or a token is being checked. Whether it is a token of OAUTHBEARER, whose refusal is explained.
    Password(Box<Pending>, bool),
    /// A challenge was sent.
    Exchange(Box<Exchange>),
    /// A token was refused, and the client was told why; its answer ends the layer.
    Denied,
    /// Connected.
    Open,
    /// Being closed: nothing that arrives is looked at.
    Ended,
}

/// Consecutive deliveries of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(super) session: SessionId,
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) settled: bool,
    pub(super) promise: Promise,
}

/// A link on which the client receives: a session of the broker.
#[derive(Debug)]
pub(super) struct SourceLink {
    pub(super) name: Box<str>,
    /// The address that the receiver has asked for; empty for none.
    pub(super) address: Box<str>,
    /// Bytes of the filters that it has asked for.
    pub(super) filter_bytes: usize,
    /// The consumer of the broker's session.
    pub(super) consumer: u64,
    pub(super) session: SessionKey,
    pub(super) state: SourceState,
    /// When the terminus begins to expire, and how long that takes.
    pub(super) expiry: Expiry,
    pub(super) snd_settle_mode: SenderSettleMode,
    /// Whether deliveries are named by their places in the log.
    pub(super) names_places: bool,
    /// Number of the next delivery that has no tag of the broker's.
    pub(super) next_number: u32,
    /// A message of which parts have been sent.
    pub(super) sending: Option<Sending>,
    /// The state of a delivery that is settled without one.
    pub(super) default_outcome: Option<DeliveryStateBuf>,
    /// Counts it as a link of its node, where that was made for a link.
    pub(super) lifetime: Option<NodeLink>,
    /// Deliveries from before, which go first.
    pub(super) resuming: VecDeque<(Unsettled, Recovery)>,
    /// Whether the receiver wants its credit back when there is nothing more to send.
    pub(super) drain: Drain,
    /// Whether queues were granted less than the receiver's credit, see [`Door::ask`](super::Door::ask).
    pub(super) is_capped: bool,
    /// Whether the broker's session is parked: for credit, for the window or for the transport.
    pub(super) parked: bool,
    /// Why the broker detaches it with an error; `None` while it does not.
    pub(super) refused_for: Option<EndCause>,
}

/// A sending link that is detached, and still counts as a link of its node.
#[derive(Debug)]
pub(super) struct Lingering {
    pub(super) session: SessionId,
    pub(super) name: Box<str>,
    /// The event at which it counts no more.
    pub(super) until: TerminusExpiryPolicy,
    /// Its count, which ends with this.
    #[expect(dead_code, reason = "it counts by being there")]
    pub(super) lifetime: NodeLink,
}

/// How far a source's link is.
#[derive(Debug)]
pub(super) enum SourceState {
    /// The broker's session is on its way from another shard.
    Opening(Box<super::wanted::Wanted>),
    /// The answer waits until the terminus is kept.
    Answering,
    /// Attached.
    Attached,
}

/// How far a drain is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drain {
    /// None was asked for.
    No,
    /// Messages that other shards have assigned may be on their way.
    Asked,
    /// Nothing is on its way: the queued messages are all.
    Ready,
}

/// When a source expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expiry {
    pub(super) policy: TerminusExpiryPolicy,
    pub(super) timeout_s: u32,
}

impl Expiry {
    /// Whether another connection can find the source again.
    pub(super) fn outlives_connection(self) -> bool {
        self.policy == TerminusExpiryPolicy::Never || self.timeout_s > 0
    }

    /// Session Expiry Interval of the broker's session, in seconds.
    pub(super) fn session_expiry_s(self) -> u32 {
        match self.policy {
            TerminusExpiryPolicy::Never => sterna_broker::NEVER_EXPIRES_S,
            _ => self.timeout_s,
        }
    }
}

/// A message that is being sent.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) delivery: Delivery,
    /// The bytes that are sent before the tail of the message's body.
    pub(super) head: Bytes,
    /// Bytes at the end of the message's body that belong to the delivery.
    pub(super) tail_bytes: usize,
    /// Bytes sent so far.
    pub(super) sent_bytes: usize,
}

/// A link on which the client sends.
#[derive(Debug)]
pub(super) struct TargetLink {
    pub(super) name: Box<str>,
    pub(super) node: Target,
    /// The deliveries taken on the link, where its receiver settles second.
    pub(super) exact: Option<ExactLink>,
    /// Deliveries of earlier attachments that were not settled when the link was attached.
    pub(super) earlier: usize,
    /// The link's session, in a cluster.
    pub(super) claim: Option<Claim>,
    /// Its attach, while the link is still attached elsewhere.
    pub(super) waiting: Option<Box<AttachingTarget>>,
    /// Whether it was attached anew elsewhere.
    pub(super) is_stolen: bool,
    /// Counts it as a link of its node, where that was made for a link.
    pub(super) lifetime: Option<NodeLink>,
    /// When its terminus ends, where its node was made for a link.
    pub(super) until: TerminusExpiryPolicy,
}

/// Where a link's messages go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// To this topic.
    Topic(Box<str>),
    /// Where each message's `to` says.
    Anonymous,
    /// To the topic that each message's subject names.
    BySubject,
    /// To the coordinator of transactions.
    Coordinator,
}

impl Target {
    /// The topic that a link's messages go to, where that is one.
    pub(super) fn topic(&self) -> Option<&str> {
        match self {
            Self::Topic(topic) => Some(topic),
            Self::Anonymous | Self::BySubject | Self::Coordinator => None,
        }
    }
}

/// A link without its texts, with the engine's part of it.
const LINK_BYTES: usize = 1_000;
/// An unsettled delivery, in the engine and in the state that is remembered of its link.
const DELIVERY_BYTES: usize = 200;
/// Bytes that one byte of a selector takes when it is read: `a OR a OR …` is the worst case.
const SELECTOR_FACTOR: usize = 12;

/// A link that takes some bytes, always as many.
pub(super) trait Weighed {
    /// About the bytes that it takes, with the engine's part of it.
    fn bytes(&self) -> usize;
}

impl Weighed for Box<SourceLink> {
    fn bytes(&self) -> usize {
        let texts = self.name.len() + self.address.len();
        LINK_BYTES + texts + SELECTOR_FACTOR * self.filter_bytes
    }
}

impl Weighed for TargetLink {
    fn bytes(&self) -> usize {
        let topic_bytes = self.node.topic().map_or(0, str::len);
        LINK_BYTES + self.name.len() + topic_bytes + self.earlier * DELIVERY_BYTES
    }
}

/// The links of a client in one direction, with the bytes that they take.
#[derive(Debug)]
pub(super) struct Links<L> {
    links: FxHashMap<LinkId, L>,
    bytes: usize,
}

impl<L> Default for Links<L> {
    fn default() -> Self {
        Self {
            links: FxHashMap::default(),
            bytes: 0,
        }
    }
}

impl<L: Weighed> Links<L> {
    pub(super) fn insert(&mut self, id: LinkId, link: L) {
        self.bytes += link.bytes();
        let before = self.links.insert(id, link);
        debug_assert!(before.is_none(), "the engine names each link once");
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<L> {
        let link = self.links.remove(&id)?;
        debug_assert!(self.bytes >= link.bytes(), "a link that goes was counted");
        self.bytes -= link.bytes();
        debug_assert!(
            !self.links.is_empty() || self.bytes == 0,
            "a link weighed something else when it came"
        );
        Some(link)
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut L> {
        self.links.get_mut(&id)
    }

    /// # Panics
    /// Where the bytes are not those of the links.
    fn check(&self) {
        let bytes: usize = self.links.values().map(Weighed::bytes).sum();
        assert_eq!(self.bytes, bytes, "bytes of links");
    }
}

impl<L> std::ops::Deref for Links<L> {
    type Target = FxHashMap<LinkId, L>;

    fn deref(&self) -> &Self::Target {
        &self.links
    }
}

impl Client {
    /// When the engine is due, or the client's right to be here ends.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let until_ms = (self.identity.as_ref()).and_then(Identity::until_ms);
        let ends_ms = self.farewell.deadline_ms();
        let deadlines = [self.engine.deadline_ms(), until_ms, ends_ms];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the client's right to be here has ended.
    pub(super) fn has_expired(&self, now_ms: u64) -> bool {
        let is_here = !matches!(self.state, State::Ended);
        is_here && (self.identity.as_ref()).is_some_and(|identity| identity.has_ended(now_ms))
    }

    /// Whether bytes of a stream can be looked at now.
    pub(super) fn accepts(&self, stream: StreamId) -> bool {
        !matches!(self.early, Early::Waiting)
            && !self.asking.is_waiting()
            && !self.sips.is_waiting()
            && !self.is_unanswered(stream)
            && !self.farewell.is_waiting_on(stream)
            && self.engine.accepts_input(Lane(stream.0))
    }

    /// Whether the next bytes of a stream may be messages for a link that has no credit before its attach is answered.
    pub(super) fn is_unanswered(&self, stream: StreamId) -> bool {
        let mut links = self.unanswered.iter();
        links.any(|(link, on)| *on == stream && self.targets.contains_key(link))
    }

    /// The client's name, while it is connected.
    pub(super) fn live_name(&self) -> Option<&str> {
        matches!(self.state, State::Open).then_some(&*self.container)
    }

    /// Its links, on all sessions.
    pub(super) fn links(&self) -> usize {
        self.sources.len() + self.targets.len()
    }

    /// Whether it has neither shown who it is nor opened the connection.
    pub(super) const fn is_stranger(&self) -> bool {
        matches!(self.state, State::New) && self.identity.is_none()
    }

    /// Begins or ends the trace of the connection, as the policy says.
    pub(super) fn trace(&mut self, cx: &mut Context<'_>) {
        let name = matches!(self.state, State::Open).then_some(&*self.container);
        inspect::trace(cx, self.id, name, &mut self.traced);
    }

    /// Bytes that are kept of frames and messages that are not complete, or cannot be looked at yet.
    pub(super) fn partial_bytes(&self) -> usize {
        let framers = self.framers.iter().map(Framer::buffered_bytes);
        framers.sum::<usize>() + held_bytes(&self.held) + self.engine.assembling_bytes()
    }

    /// Bytes that are kept of the client: input that has partly arrived, links, unsettled deliveries, and open
    /// transactions.
    pub(super) fn kept_bytes(&self) -> usize {
        let suspended = self.suspended.iter().map(|(_, source)| source.bytes());
        self.partial_bytes()
            + self.sources.bytes
            + self.targets.bytes
            + suspended.sum::<usize>()
            + self.engine.unsettled_deliveries() * DELIVERY_BYTES
            + self.transactions.bytes()
    }

    /// Stops reading while too much waits for the store, memory is short, the webhook is asked, or a reader's queue is
    /// half full. Goes on after that, unless the broker `is_stopping`. The client's silence does not count meanwhile.
    pub(super) fn pace(&mut self, cx: &mut Context<'_>, is_stopping: bool) {
        let partial_bytes = self.partial_bytes();
        let user = self.identity.as_ref().and_then(Identity::user);
        let is_held_back = self.sips.holds_back(cx, (self.id, partial_bytes), user);
        let is_full = is_stopping
            || is_held_back
            || self.promises.is_full(cx)
            || self.asking.is_waiting()
            || self.sips.is_waiting()
            || self.farewell.is_waiting();
        if is_full {
            cx.net.pause(self.id, true);
        } else if self.is_paced {
            self.engine.input_resumed(cx.now_ms);
            cx.net.pause(self.id, !self.held.is_empty());
        }
        self.is_paced = is_full;
    }

    /// The name of its user.
    pub(super) fn user(&self) -> Option<&str> {
        self.identity.as_ref()?.user()
    }

    /// The client as the rules see it now.
    pub(super) fn subject(&self, cx: &Context<'_>) -> Subject<'_> {
        Subject {
            user: self.user(),
            client: &self.container,
            origin: cx.origin(self.id),
            standing: (self.identity.as_ref())
                .and_then(Identity::standing)
                .map(|own| &**own),
        }
    }

    /// The owner of the state that is remembered of the client.
    pub(super) fn owner(&self) -> Owner<'_> {
        self.identity
            .as_ref()
            .map(Identity::owner)
            .unwrap_or_default()
    }

    /// Whether it may publish such a message to a topic.
    pub(super) fn may_publish(&mut self, cx: &Context<'_>, topic: &str, kind: MessageKind) -> bool {
        let mut known = std::mem::take(&mut self.known_topics);
        let who = (self.owner(), || self.subject(cx));
        let now_ms = cx.now_ms;
        let rules = &cx.policy.rules;
        let is_allowed = rules.may_publish_again(&mut known, who, topic, kind, now_ms);
        self.known_topics = known;
        is_allowed
    }

    /// Whether something of a stream is held, which anything later must not overtake.
    pub(super) fn holds(&self, stream: StreamId) -> bool {
        self.held.iter().any(|held| held.stream() == stream)
    }

    /// Looks at the links, transactions and input of the client. `link_of` is the link that the door knows by the number
    /// of a consumer of this client. Returns how many it is to know.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub(super) fn check(&self, link_of: impl Fn(u64) -> Option<LinkId>) -> usize {
        self.framers.check();
        self.sources.check();
        self.targets.check();
        self.transactions.check(&self.targets);
        assert!(
            self.accepted.is_none(),
            "a step tells which deliveries are accepted"
        );
        assert!(self.finishing.is_empty(), "a step finishes streams");
        let is_here = !matches!(self.state, State::Ended);
        if let Some(first) = self.held.first().filter(|_| is_here) {
            assert!(
                !self.accepts(first.stream()),
                "input that is held waits for something"
            );
        }
        for (link, source) in self.sources.iter() {
            assert_eq!(
                link_of(source.consumer),
                Some(*link),
                "the door finds a source"
            );
        }
        for (_, source) in &self.suspended {
            let is_known = link_of(source.consumer).is_some();
            assert!(is_known, "the door finds whose source is suspended");
        }
        let claims = self
            .targets
            .iter()
            .filter_map(|(link, target)| Some((link, target.claim?)));
        for (link, claim) in claims.clone() {
            assert_eq!(
                link_of(claim.consumer()),
                Some(*link),
                "the door finds a claim"
            );
        }
        self.sources.len() + self.suspended.len() + claims.count()
    }

    /// The name of a link among all clients' links.
    pub(super) fn link_key(&self, name: &str) -> LinkKey {
        LinkKey {
            user: self.user().map(Into::into),
            container: self.container.clone(),
            name: name.into(),
        }
    }
}
