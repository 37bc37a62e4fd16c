//! The parts of the shard that a front door may use in one step.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sterna_broker::{
    Broker, CompanionRecord, Companions, ConsumerId, CrowdedReader, InvalidMessage, Message,
    MessageParts, OpenError, OpenSession, Opened, Publication, PublishRefusal, Publisher, Routed,
    SessionKey, SessionName,
};
use sterna_cluster::Fence;
use sterna_net::{ConnectionId, ConnectionInfo, Network, TransportKind};
use tracing::field::DisplayValue;

use crate::authorization::Origin;
use crate::bans::Bans;
use crate::config::{Protocol, TransportName};
use crate::holding::Holding;
use crate::identity::{Checker, Refusal};
use crate::mail::Outbox;
use crate::memory::{Memory, Stage};
use crate::metrics::{DropReason, Meters};
use crate::policy::Policy;
use crate::repeats::left_out;
use crate::seats::Seats;
use crate::session::{SessionState, command_that_ends, command_that_frees, own_name};
use crate::tracer::Tracer;

/// Everything a front door needs for one step.
pub(crate) struct Context<'a> {
    /// The transports.
    pub(crate) net: &'a mut dyn Network,
    /// The time of this turn, in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
    /// This shard's broker.
    pub(crate) broker: &'a mut Broker<SessionState>,
    /// The policy for clients.
    pub(crate) policy: &'a Arc<Policy>,
    /// Checks passwords beside the shard.
    pub(crate) checker: Option<&'a Checker>,
    /// Bans of clients for a while.
    pub(crate) bans: &'a Arc<Bans>,
    /// Connections of users that have a limit of them.
    pub(crate) seats: &'a Arc<Seats>,
    /// Writes traces of connections.
    pub(crate) tracer: Option<&'a Tracer>,
    /// The way to this and other shards.
    pub(crate) outbox: &'a mut dyn Outbox,
    /// Clients that wait for a reader whose queue is half full.
    pub(crate) holding: &'a mut Holding,
    /// How short memory is.
    pub(crate) memory: &'a Arc<Memory>,
    /// The meters of this shard.
    pub(crate) meters: &'a Meters,
    /// Number of this shard.
    pub(crate) shard: usize,
    /// Whether this node of a cluster is sure of its sessions; `None` where there is no cluster.
    pub(crate) fence: Option<&'a Arc<Fence>>,
}

/// The most sessions of a connection for which it is looked at whether connections wait in a circle.
const LOOKED_AT: usize = 64;

/// Why something new is refused where memory is short.
pub(crate) const SHORT_FOR_NEW: &str =
    "memory is short, and the client's user or address holds most of it (broker.memory_ceiling)";
/// Why a session is refused.
pub(crate) const TOO_MANY_SESSIONS: &str =
    "too many sessions (broker.maximum_sessions, authorization.limit.sessions)";

/// Why a message is refused whose sender has a limit.
pub(crate) const TOO_FAST: &str = "the client publishes faster than its limit (authorization.limit.messages_per_s, \
     authorization.limit.bytes_per_s)";
/// Why a message is not retained.
pub(crate) const NOT_RETAINED: &str = "it was delivered, but there is no room to retain it \
     (broker.maximum_retained_messages, broker.maximum_retained_bytes, broker.memory_retained_percent)";
/// Why something that is to be kept is refused.
pub(crate) const STORE_FULL: &str =
    "the store has no room (store.maximum_bytes, store.minimum_free_bytes, or the disk)";
/// Why a subscription is refused.
pub(crate) const TOO_MANY_SUBSCRIPTIONS: &str =
    "too many subscriptions (broker.maximum_subscriptions_per_session and the settings beside it)";
/// Why a subscription of a user with a limit is refused.
pub(crate) const TOO_MANY_OF_USER: &str =
    "the limit of the user has no more subscriptions (authorization.limit.subscriptions)";

/// The reason why a node takes no new clients for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// Memory is short.
    MemoryShort,
    /// The clock of this node of a cluster is wrong.
    WrongClock,
    /// The clock of this node of a cluster is being compared with others.
    UnknownClock,
}

/// Whether a reason in words is the broker's own, and no client's.
pub(crate) fn is_outage(what: &str) -> bool {
    let refusals = [PublishRefusal::StoreFull, PublishRefusal::ClusterAway];
    let logins = [Refusal::Webhook, Refusal::Busy];
    is_of_memory(what)
        || what == STORE_FULL
        || Closed::ALL.iter().any(|closed| closed.detail() == what)
        || refusals.iter().any(|refusal| refusal.detail() == what)
        || logins.iter().any(|refusal| refusal.detail() == what)
}

/// Whether memory is short by these words.
fn is_of_memory(what: &str) -> bool {
    what == SHORT_FOR_NEW || what == Closed::MemoryShort.detail()
}

/// The fields of a line that say how an operator makes room for what was refused.
#[derive(Default)]
pub(crate) struct Cure {
    /// The kind of memory that is most of what is used, where memory is short.
    pub(crate) held_as: Option<&'static str>,
    /// The command that makes room.
    pub(crate) freed_by: Option<Cow<'static, str>>,
}

impl Cure {
    /// For what was refused by these words, to a client of this user.
    pub(crate) fn of(memory: &Memory, what: &str, user: Option<&str>) -> Self {
        if is_of_memory(what) {
            let (held_as, freed_by) = memory.held_most();
            return Self {
                held_as: Some(held_as),
                freed_by: Some(freed_by.into()),
            };
        }
        let freed_by = (what == TOO_MANY_SESSIONS).then(|| command_that_frees(user).into());
        Self {
            held_as: None,
            freed_by,
        }
    }
}

impl Closed {
    /// All reasons.
    const ALL: [Self; 3] = [Self::MemoryShort, Self::WrongClock, Self::UnknownClock];

    /// The reason in words.
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::MemoryShort => "memory is short (broker.memory_ceiling)",
            Self::WrongClock => "the clock of this node of the cluster is wrong",
            Self::UnknownClock => {
                "the clock of this node of the cluster is still to be compared with others"
            }
        }
    }
}

/// The fields that each line of the log about a peer has.
pub(crate) struct PeerLine {
    /// Its address; `None` where its connection is gone.
    pub(crate) peer: Option<DisplayValue<SocketAddr>>,
    /// How many lines like this one were left out before; `None` for none.
    pub(crate) more: Option<u64>,
}

impl Context<'_> {
    /// Why this node takes no new clients; `None` where it does.
    pub(crate) fn closed(&self) -> Option<Closed> {
        if self.memory.stage() >= Stage::RefuseNewcomers {
            Some(Closed::MemoryShort)
        } else if self.fence.is_some_and(|fence| fence.has_wrong_clock()) {
            Some(Closed::WrongClock)
        } else if self.fence.is_some_and(|fence| fence.awaits_clock()) {
            Some(Closed::UnknownClock)
        } else {
            None
        }
    }

    /// A line about a peer that may cause many like it; `None` where it is left out. `who` is its name, empty for none, and
    /// `what` the reason. A reason that is the broker's own, and strikes everybody, has one line for all.
    pub(crate) fn repeats(
        &self,
        connection: ConnectionId,
        who: &str,
        what: &str,
    ) -> Option<PeerLine> {
        let (repeats, limits) = (&self.meters.repeats, self.policy.repeats);
        let peer = self.net.info(connection).map(|info| info.peer);
        let more = if is_outage(what) {
            repeats.pass(self.now_ms, limits, None, what)
        } else {
            let address = peer.map(|peer| peer.ip());
            repeats.pass(self.now_ms, limits, address, (own_name(who), what))
        };
        Some(PeerLine {
            more: more.map(left_out)?,
            peer: peer.map(tracing::field::display),
        })
    }

    /// A line about a session that another connection of its user has taken from this one.
    pub(crate) fn log_taken_over(
        &self,
        connection: ConnectionId,
        session: &SessionName,
        by: Option<SocketAddr>,
    ) {
        let detail = "another connection of the same user has taken the session over";
        let Some(line) = self.repeats(connection, session.id(), detail) else {
            return;
        };
        tracing::info!(
            peer = line.peer,
            by = by.map(tracing::field::display),
            client = session.id(),
            user = session.user(),
            more = line.more,
            detail,
            freed_by = command_that_ends(session),
            "session taken over"
        );
    }

    /// A line about a session that a client does not get, for a reason that came after its request. The line of the cluster's
    /// engine says which node has it.
    pub(crate) fn log_session_refused(&self, connection: ConnectionId, session: &str, why: &str) {
        if let Some(line) = self.repeats(connection, session, why) {
            tracing::info!(
                peer = line.peer,
                client = session,
                why,
                more = line.more,
                "session refused"
            );
        }
    }

    /// The address of a connection; `None` where it is gone.
    pub(crate) fn address(&self, connection: ConnectionId) -> Option<IpAddr> {
        self.net.info(connection).map(|info| info.peer.ip())
    }

    /// From where a client speaks, as far as the rules ask for that.
    pub(crate) fn origin(&self, connection: ConnectionId) -> Origin {
        if !self.policy.rules.look_at_origins() {
            return Origin::UNKNOWN;
        }
        (self.net.info(connection)).map_or(Origin::UNKNOWN, origin_of)
    }

    /// Tells the broker from where the client of a session speaks, as far as the rules ask for that.
    pub(crate) fn note_origin(&mut self, connection: ConnectionId, session: SessionKey) {
        let origin = self.origin(connection);
        if origin != Origin::UNKNOWN {
            let now_ms = self.now_ms;
            self.broker.set_endpoint(now_ms, session, origin.endpoint());
        }
    }

    /// Whether this node cannot be sure that its sessions are its own.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.is_some_and(|fence| fence.is_shut())
    }

    /// Whether a message of QoS 1 or 2 for a topic has to wait, and the input of its connection behind it: a reader who
    /// gets it has a queue that is half full. The front door looks again when [`Holding`] has let the connection go. A message
    /// that is published at once (`is_whole`) need not wait where the connection's last one is long ago.
    /// `is_own` tells the connection's consumers, and `sessions` are their sessions.
    #[inline(never)]
    pub(crate) fn must_hold(
        &mut self,
        connection: ConnectionId,
        topic: &str,
        is_own: impl Fn(ConsumerId) -> bool,
        sessions: impl Iterator<Item = SessionKey>,
        is_whole: bool,
    ) -> bool {
        let Some(reader) = self.broker.holder_of(topic, is_own) else {
            return false;
        };
        let most_ms = self.policy.publisher_hold_ms;
        let budget_ms = self.holding.budget_ms(self.now_ms, connection, most_ms);
        if budget_ms == 0 {
            return false;
        }
        let interval_ms = self.policy.held_publisher_interval_ms;
        let mut longest_ms = budget_ms;
        if is_whole && interval_ms > 0 {
            let now_ms = self.now_ms;
            let next_ms = (self.holding).next_passage_ms(connection, interval_ms);
            if next_ms <= now_ms {
                (self.holding).pass(now_ms, connection, most_ms, interval_ms);
                return false;
            }
            longest_ms = longest_ms.min(next_ms - now_ms);
        }
        let sessions: Vec<SessionKey> = sessions.take(LOOKED_AT).collect();
        let Some(own) = self.broker.hold(reader, &sessions) else {
            return false;
        };
        let client = (connection, own);
        let times_ms = (budget_ms, longest_ms);
        self.holding.begin(self.now_ms, client, reader, times_ms);
        true
    }

    /// Whether as many copies were made in this turn as there may be.
    #[inline]
    pub(crate) fn is_turn_spent(&self) -> bool {
        let most = self.broker.limits().copies_per_turn;
        (self.holding.line).is_spent(self.broker.copies_of_turn(), most)
    }

    /// Drops a datagram from a client of this name that goes to many, where the copies of the turn are made; whether it did. It
    /// does not wait: a client that sends datagrams accepts that some are lost.
    pub(crate) fn drops_for_the_turn(
        &mut self,
        protocol: Protocol,
        client: &str,
        topic: &str,
    ) -> bool {
        let is_dropped = self.is_turn_spent() && !self.broker.is_light(topic);
        if is_dropped {
            (self.meters).refuse(protocol, (client, topic), DropReason::RateExceeded);
        }
        is_dropped
    }

    /// Whether a message has to wait for another turn, since it goes to many. Nothing of it is done before. A message whose
    /// topic is not known yet counts as one, and so do subscriptions and their end.
    #[inline(never)]
    pub(crate) fn must_line_up(
        &mut self,
        connection: ConnectionId,
        user: Option<&str>,
        topic: Option<&str>,
    ) -> bool {
        if topic.is_some_and(|topic| self.broker.is_light(topic)) {
            return false;
        }
        let net = &self.net;
        let address = || net.info(connection).map(|info| info.peer.ip());
        self.holding.line.join(connection, user, address);
        true
    }

    /// Ends the wait of a connection for a reader, if it waits; `is_gone` if it will not come again.
    pub(crate) fn end_hold(&mut self, connection: ConnectionId, is_gone: bool) {
        if is_gone {
            self.holding.line.leave(connection);
        }
        if self.holding.is_empty() {
            return;
        }
        let ended = if is_gone {
            self.holding.forget(self.now_ms, connection)
        } else {
            let most_ms = self.policy.publisher_hold_ms;
            self.holding.end(self.now_ms, connection, most_ms)
        };
        self.unhold(ended);
    }

    /// Ends the wait of a connection for a reader, and lets it wait no more. False where it does not wait.
    pub(crate) fn exhaust_hold(&mut self, connection: ConnectionId) -> bool {
        let most_ms = self.policy.publisher_hold_ms;
        let ended = self.holding.exhaust(self.now_ms, connection, most_ms);
        self.unhold(ended)
    }

    /// Tells the broker of the end of a wait for a reader, if there was one.
    fn unhold(&self, ended: Option<(CrowdedReader, Vec<CrowdedReader>)>) -> bool {
        let was_held = ended.is_some();
        if let Some((reader, own)) = ended {
            self.broker.unhold(reader, &own);
        }
        was_held
    }

    /// Whether memory is so short that who holds most of it gets nothing new.
    pub(crate) fn is_short_for_new(&self) -> bool {
        self.memory.stage() >= Stage::MoveToLog
    }

    /// Why something new is refused: there are `too_many`, unless memory is short.
    pub(crate) fn why_full(&self, too_many: &'static str) -> &'static str {
        if self.is_short_for_new() {
            SHORT_FOR_NEW
        } else {
            too_many
        }
    }

    /// Opens a session for the client of a connection.
    pub(crate) fn open(
        &mut self,
        connection: ConnectionId,
        request: OpenSession,
    ) -> Result<Opened, OpenError> {
        if let Some(fence) = self.fence {
            self.broker.set_unsure(fence.is_shut());
        }
        let peer = self.net.info(connection).map(|info| info.peer);
        self.broker.open_from(self.now_ms, peer, request)
    }

    /// The client of a connection, as the broker is to know it where it publishes without a session.
    pub(crate) fn publisher<'u>(
        &self,
        connection: ConnectionId,
        user: Option<&'u str>,
    ) -> Publisher<'u> {
        let address = self.address(connection);
        Publisher { user, address }
    }

    /// Publishes a message of a client or operator; traces call it `publisher`.
    #[inline]
    pub(crate) fn publish(&mut self, publisher: &str, publication: Publication<'_>) -> Routed {
        let now_ms = self.now_ms;
        if self.holding.take_passage() {
            return self.publish_at_once(publisher, publication);
        }
        self.named(publisher, |broker| broker.publish(now_ms, publication))
    }

    /// The same for a message whose publisher cannot wait for a reader.
    pub(crate) fn publish_at_once(
        &mut self,
        publisher: &str,
        publication: Publication<'_>,
    ) -> Routed {
        let now_ms = self.now_ms;
        self.named(publisher, |broker| {
            broker.publish_at_once(now_ms, publication)
        })
    }

    /// The same for a message that lies in its packet.
    ///
    /// # Errors
    /// [`InvalidMessage`] where its parts do not fit a message: nothing is published.
    #[inline]
    pub(crate) fn publish_parts(
        &mut self,
        publisher: &str,
        origin: Option<SessionKey>,
        parts: MessageParts<'_>,
        companions: Companions<'_>,
    ) -> Result<Routed, InvalidMessage> {
        if self.holding.take_passage() {
            let publication = Publication {
                companions,
                ..Publication::new(origin, parts.to_message()?)
            };
            return Ok(self.publish_at_once(publisher, publication));
        }
        let now_ms = self.now_ms;
        self.named(publisher, |broker| {
            broker.publish_parts(now_ms, origin, parts, companions)
        })
    }

    /// Publishes messages of a client together with records, or none of them; see [`publish`](Self::publish).
    pub(crate) fn publish_together(
        &mut self,
        (publisher, client): (&str, Publisher<'_>),
        messages: Vec<Message>,
        records: &[CompanionRecord<'_>],
    ) -> Routed {
        let now_ms = self.now_ms;
        self.named(publisher, |broker| {
            broker.publish_together(now_ms, Some(client), messages, records)
        })
    }

    #[inline]
    fn named<R>(
        &mut self,
        publisher: &str,
        work: impl FnOnce(&mut Broker<SessionState>) -> R,
    ) -> R {
        let watch = &self.meters.watch;
        if !watch.is_on() {
            return work(self.broker);
        }
        watch.set_publisher(Some(publisher));
        let result = work(self.broker);
        watch.set_publisher(None);
        result
    }

    /// Does something, and tells the append that it has made, beside its result; 0 for none.
    pub(crate) fn appended<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> (R, u64) {
        let before = self.broker.appends();
        let result = work(self);
        let is_made = self.broker.appends() != before;
        (result, if is_made { self.broker.token() } else { 0 })
    }
}

/// The origin of a connection.
fn origin_of(info: &ConnectionInfo) -> Origin {
    Origin {
        address: Some(info.peer.ip().to_canonical()),
        transport: Some(match info.transport {
            TransportKind::Tcp => TransportName::Tcp,
            TransportKind::Tls => TransportName::Tls,
            TransportKind::WebSocket => TransportName::Ws,
            TransportKind::SecureWebSocket => TransportName::Wss,
            // It has the streams and the early data of QUIC.
            TransportKind::Quic | TransportKind::Simulated => TransportName::Quic,
        }),
        listener: Some(info.listener),
    }
}
