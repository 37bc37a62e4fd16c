//! One connection as the front door sees it.

use std::sync::Arc;

use sterna_broker::{ConsumerId, SessionKey};
use sterna_mqtt::server::{Connection, IncomingPublish};
use sterna_mqtt::{Framer, Lane};
use sterna_net::{ConnectionId, StreamId};
use thin_vec::ThinVec;

use super::acknowledge::Acknowledgement;
use super::admission::Admission;
use super::ask::Asked;
use crate::authorization::{KnownTopics, MessageKind, Subject};
use crate::context::Context;
use crate::door::{Asking, Early, Framers, Held, Promises, Sips, held_bytes};
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
    /// Cut the streams into packets, and know which streams the client reads no more.
    pub(super) framers: Framers<Framer>,
    /// Input that arrived while CONNECT was being decided, in order of arrival.
    pub(super) held: ThinVec<Held>,
    /// The state of the client's early data.
    pub(super) early: Early,
    /// Whether messages of QoS 0 leave as datagrams.
    pub(super) datagrams: bool,
    /// Whether the connection is traced.
    pub(super) traced: bool,
    /// Deadline of this connection's entry among the timers; older entries are void.
    pub(super) timer_ms: u64,
    /// Client identifier, once known; its session has the same one.
    pub(super) name: Arc<str>,
    /// The client has chosen that name itself.
    pub(super) is_named: bool,
    /// The client's identity, once it is known.
    pub(super) identity: Identity,
    /// Re-authentication under way.
    pub(super) renewal: Option<Box<Renewal>>,
    /// Whether an action of the client waits for the webhook.
    pub(super) asking: Asking,
    /// The rules' decisions on its last topics.
    pub(super) known_topics: KnownTopics,
    /// Whether the session's queue waits for acknowledgements or for the transport.
    pub(super) parked: bool,
    /// Answers that wait until their effects are kept.
    pub(super) promises: Promises<Acknowledgement>,
    /// Whether its session outlives the connection, so that another node may have taken it over.
    pub(super) is_bound: bool,
    /// Whether its session was there before the connection.
    pub(super) is_resumed: bool,
    /// Whether its login is counted when its address is known.
    pub(super) owes_login: bool,
    /// Whether [`pace`](Self::pace) has the client not read.
    pub(super) is_paced: bool,
    pub(super) sips: Sips,
    /// Bytes that are left of the connection's beginning. Its messages may be repetitions, sent by a client that
    /// could have sent them as early data.
    pub(super) beginning_bytes: u32,
}

/// A re-authentication under way.
#[derive(Debug)]
pub(super) enum Renewal {
    /// The client was sent a challenge.
    Exchange(Exchange),
    /// The webhook decides.
    Asked(Pending),
}

/// How far a client has come. One box in each variant keeps it small, since a client is here for long.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing but CONNECT is accepted.
    New,
    /// A password is being checked.
    Password(Box<(Admission, Pending)>),
    /// The webhook is asked about the will.
    Asking(Box<(Admission, Identity)>),
    /// An enhanced authentication is under way.
    Exchange(Box<(Admission, Exchange)>),
    /// The session is on its way from another shard.
    Opening(Box<(SessionKey, Admission)>),
    /// The session is open, and its CONNACK waits until that is kept.
    Opened(SessionKey),
    /// Connected.
    Live(SessionKey),
    /// Being closed: nothing that arrives is looked at.
    Ended,
}

/// Where [`Held`] keeps datagrams, one in each entry: the number that the engine knows their lane by.
pub(super) const DATAGRAMS: StreamId = StreamId(Lane::DATAGRAMS.0);

impl Client {
    /// The session, while connected.
    pub(super) const fn session(&self) -> Option<SessionKey> {
        match self.state {
            State::Live(session) => Some(session),
            _ => None,
        }
    }

    /// Looks at the streams and the input of the client.
    ///
    /// # Panics
    /// Where a stream has two framers, or input waits for nothing.
    pub(super) fn check(&self) {
        self.framers.check();
        if let Some(first) = self
            .held
            .first()
            .filter(|_| !matches!(self.state, State::Ended))
        {
            let lane = Lane(first.stream().0);
            assert!(
                !self.accepts(lane),
                "input that is held waits for something"
            );
        }
    }

    /// When the engine is due, or the client's right to be here ends.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let until_ms = match self.state {
            State::Live(_) => self.identity.until_ms(),
            _ => None,
        };
        self.engine.deadline_ms().into_iter().chain(until_ms).min()
    }

    /// Whether bytes of a lane can be looked at now.
    pub(super) fn accepts(&self, lane: Lane) -> bool {
        !matches!(self.early, Early::Waiting)
            && !self.asking.is_waiting()
            && !self.sips.is_waiting()
            && self.engine.accepts_input(lane)
    }

    /// The client's name, while it is connected.
    pub(super) fn live_name(&self) -> Option<&str> {
        matches!(self.state, State::Live(_)).then_some(&*self.name)
    }

    /// Begins or ends the trace of the connection, as the policy says.
    pub(super) fn trace(&mut self, cx: &mut Context<'_>) {
        let name = matches!(self.state, State::Live(_)).then_some(&*self.name);
        inspect::trace(cx, self.id, name, &mut self.traced);
    }

    /// Bytes that are kept of packets that are not complete, or cannot be looked at yet.
    pub(super) fn partial_bytes(&self) -> usize {
        let framers = self.framers.iter().map(Framer::buffered_bytes);
        framers.sum::<usize>() + held_bytes(&self.held)
    }

    /// Bytes that are kept of the client: input that has partly arrived, and the topics of its aliases.
    pub(super) fn kept_bytes(&self) -> usize {
        self.partial_bytes() + self.engine.alias_bytes()
    }

    /// Stops reading while too much waits for the store, memory is short, the webhook is asked, or a reader's queue is
    /// half full. Goes on after that, unless the broker `is_stopping`. The client's silence does not count meanwhile.
    pub(super) fn pace(&mut self, cx: &mut Context<'_>, is_stopping: bool) {
        let partial_bytes = self.partial_bytes();
        let user = self.identity.user();
        let is_held_back = self.sips.holds_back(cx, (self.id, partial_bytes), user);
        let is_full = is_stopping
            || is_held_back
            || self.promises.is_full(cx)
            || self.asking.is_waiting()
            || self.sips.is_waiting();
        if is_full {
            cx.net.pause(self.id, true);
        } else if self.is_paced {
            self.engine.input_resumed(cx.now_ms);
            cx.net.pause(self.id, !self.held.is_empty());
        }
        self.is_paced = is_full;
    }

    /// The client as the rules see it now.
    pub(super) fn subject(&self, cx: &Context<'_>) -> Subject<'_> {
        subject(cx, self.id, &self.identity, &self.name)
    }

    /// Whether the rules allow a message, if that was not said when it was asked about.
    #[inline]
    pub(super) fn may_publish(
        &mut self,
        cx: &Context<'_>,
        publish: &IncomingPublish<'_>,
        asked: Asked,
    ) -> bool {
        if let Asked::Decided(is_allowed) = asked {
            return is_allowed;
        }
        let is_early = self.early == Early::Allowed;
        let kind = MessageKind::new(publish.qos as u8, publish.retain, is_early);
        let Self {
            id,
            identity,
            name,
            known_topics,
            ..
        } = self;
        let who = (identity.owner(), || subject(cx, *id, identity, name));
        (cx.policy.rules).may_publish_again(known_topics, who, &publish.topic, kind, cx.now_ms)
    }

    /// Whether something of a stream is held, which anything later must not overtake.
    pub(super) fn holds(&self, stream: StreamId) -> bool {
        self.held.iter().any(|held| held.stream() == stream)
    }

    /// Where an answer to something that came on a lane goes: there, or to the control stream where the lane is
    /// unidirectional. `None` where the stream is gone: its client sends again on another stream, and could take
    /// the answer for that to a packet of the control stream with the same identifier.
    pub(super) fn answering_lane(&self, lane: Lane) -> Option<Lane> {
        let lane = lane.reply();
        let is_open = lane.is_control() || self.framers.has(StreamId(lane.0));
        is_open.then_some(lane)
    }

    /// The lane for deliveries of a subscription that was made on `hint`. It is the stream itself as long as that
    /// is open, else the control stream.
    pub(super) fn delivery_lane(&self, hint: u64) -> Lane {
        let lane = Lane(hint);
        let open = !lane.is_control()
            && self.framers.has(StreamId(hint))
            && !self.framers.is_mute(StreamId(hint));
        if open { lane } else { Lane::CONTROL }
    }
}

/// The client of a connection as the rules see it now.
fn subject<'a>(
    cx: &Context<'_>,
    connection: ConnectionId,
    identity: &'a Identity,
    name: &'a str,
) -> Subject<'a> {
    Subject {
        user: identity.user(),
        client: name,
        origin: cx.origin(connection),
        standing: identity.standing().map(|own| &**own),
    }
}

/// The broker's name for a connection.
pub(super) const fn consumer(connection: ConnectionId) -> ConsumerId {
    ConsumerId((connection.generation as u64) << 32 | connection.slot as u64)
}

/// The connection behind the broker's name.
pub(super) const fn connection(consumer: ConsumerId) -> ConnectionId {
    ConnectionId {
        slot: consumer.0 as u32,
        generation: (consumer.0 >> 32) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte more takes 320: the allocator has no size between.
    #[test]
    fn a_client_is_small() {
        assert!(size_of::<Client>() <= 256, "{}", size_of::<Client>());
    }
}
