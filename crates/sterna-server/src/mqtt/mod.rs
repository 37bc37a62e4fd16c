//! The front door of MQTT: between the engine's words and the broker's.
//!
//! `connect.rs` decides which clients get in. `publish.rs` and `subscribe.rs` carry requests to the broker.
//! `deliver.rs` carries messages to the client. `early.rs` says which packets need not wait for the handshake. `acknowledge.rs` sends answers whose effects are kept. `end.rs`
//! ends connections.

mod acknowledge;
mod admission;
mod again;
mod ask;
mod client;
mod connect;
mod deliver;
mod early;
mod end;
mod publish;
mod quota;
mod received;
mod repetitions;
mod subscribe;
mod view;

use std::sync::Arc;

use sterna_broker::{ConsumerId, EndCause, SessionKey};
use sterna_mqtt::server::{Connection, Event, Features, Limits};
use sterna_mqtt::{
    DecodeError, Frame, Framer, Lane, PacketType, QoS, ReasonCode, Scope, Violation,
};
use sterna_net::{Chunk, ConnectionId, StreamId, foreign};
use thin_vec::ThinVec;

use crate::authorization::KnownTopics;
use crate::config::Protocol;
use crate::context::Context;
use crate::door::{
    self, Asking, Early, Framers, Held, Promises, Service, Sips, held_bytes, hold_early, note_early,
};
use crate::identity::Identity;
use crate::policy::Policy;
use crate::rights::CHANGED_DURING_CHECK;
use crate::session;
use acknowledge::Acknowledgement;
use again::LastMessage;
use ask::Asked;
use client::{Client, DATAGRAMS, State};

pub use repetitions::Repetitions;

/// First byte of a PUBLISH of QoS 0 without flags.
const PUBLISH_AT_MOST_ONCE: u8 = 0x30;
/// The bits of the QoS in the first byte of a PUBLISH.
const QOS: u8 = 6;
/// The flag of a retained message in the first byte of a PUBLISH.
const RETAIN: u8 = 1;

/// Milliseconds after which a connection is looked at again while its CONNECT is being decided.
const DECISION_CHECK_MS: u64 = 1000;

/// The front door of one shard.
pub(crate) type Door = door::Door<Mqtt>;

/// The door's state beside its clients.
#[derive(Debug)]
pub(crate) struct Mqtt {
    /// The engine's limits, which connections share.
    limits: Arc<Limits>,
    repetitions: Arc<Repetitions>,
    /// Its memory is used again for each input.
    last: LastMessage,
}

impl Service for Mqtt {
    const IS_READ_TO_ITS_END: bool = true;

    type Id = ConnectionId;
    type Client = Client;
    type Acknowledgement = Acknowledgement;

    fn greet(door: &mut Door, cx: &mut Context<'_>, id: ConnectionId) -> Option<Client> {
        let info = cx.net.info(id)?;
        let now_ms = cx.now_ms;
        let limits = engine_limits(cx.policy);
        if *door.service.limits != limits {
            door.service.limits = Arc::new(limits);
        }
        let mut client = Client {
            id,
            engine: Connection::new(Arc::clone(&door.service.limits), now_ms),
            state: State::New,
            listener: info.listener,
            framers: Framers::default(),
            held: ThinVec::new(),
            early: Early::Over,
            datagrams: false,
            traced: false,
            timer_ms: u64::MAX,
            name: Arc::default(),
            is_named: false,
            identity: Identity::NOBODY,
            renewal: None,
            asking: Asking::default(),
            known_topics: KnownTopics::default(),
            parked: false,
            promises: Promises::default(),
            is_bound: false,
            is_resumed: false,
            owes_login: false,
            is_paced: false,
            sips: Sips::begun(now_ms),
            beginning_bytes: cx.policy.early_bytes,
        };
        door.set_timer(&mut client, now_ms + cx.policy.connect_timeout_ms);
        Some(client)
    }

    fn settle(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        door.release(cx, client);
        client.pace(cx, door.stopping);
        let is_mute = |stream| client.framers.is_mute(stream);
        door.out.flush(cx, client.id, is_mute);
        if matches!(client.state, State::Ended) {
            cx.net.close(client.id, 0);
        }
    }

    fn due(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        let now_ms = cx.now_ms;
        if client.is_paced {
            client.engine.input_resumed(now_ms);
        }
        if let Err(violation) = client.engine.on_timeout(now_ms) {
            door.violated(cx, client, &violation, &[]);
            return;
        }
        if matches!(client.state, State::Live(_)) && client.identity.has_ended(now_ms) {
            door.expired(cx, client);
            return;
        }
        match (client.next_ms(), &client.state) {
            (Some(next_ms), _) => door.set_timer(client, next_ms),
            (
                None,
                State::Password(..) | State::Asking(..) | State::Opening(..) | State::Opened(_),
            ) => {
                door.set_timer(client, now_ms + DECISION_CHECK_MS);
            }
            // Keep alive is off: the transport alone says whether the client lives.
            (None, _) => {}
        }
    }

    fn policy_changed(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        client.trace(cx);
        let info = cx.net.info(client.id);
        let stays = match client.state {
            State::Ended => Ok(()),
            State::New => cx.policy.still_trusts(info),
            State::Password(..) | State::Asking(..) | State::Exchange(..) => {
                Err(CHANGED_DURING_CHECK.into())
            }
            State::Opening(..) | State::Opened(_) | State::Live(_) => {
                cx.policy.still_admits(info, &client.identity)
            }
        };
        if let Err(why) = stays {
            door.send_away(cx, client, ReasonCode::NotAuthorized, &why);
        } else if matches!(
            client.state,
            State::Opening(..) | State::Opened(_) | State::Live(_)
        ) {
            // Where clients can be given groups from now on, this one has none.
            cx.policy.note_standing(&mut client.identity, &client.name);
            client
                .sips
                .allow_again(cx, &client.identity, client.id, Some(&client.name));
        }
    }

    fn stop(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        door.say_goodbye(cx, client);
    }

    fn lost(_: &mut Door, cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        Door::lost(cx, client, cause);
    }

    fn dismiss(_: &mut Door, cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        Door::dismissed(cx, client, cause);
    }

    fn hang_up(cx: &mut Context<'_>, id: ConnectionId, failed: bool) {
        let reason = if failed {
            ReasonCode::ImplementationSpecificError
        } else {
            ReasonCode::Success
        };
        cx.net.close(id, u64::from(reason as u8));
    }

    fn is_consumer_of(&self, consumer: ConsumerId, id: ConnectionId) -> bool {
        consumer == client::consumer(id)
    }

    fn name(client: &Client) -> Option<&str> {
        client.live_name()
    }

    fn user(client: &Client) -> Option<&str> {
        client.identity.user()
    }

    fn promises(client: &mut Client) -> &mut Promises<Acknowledgement> {
        &mut client.promises
    }

    fn acknowledge(
        door: &mut Door,
        cx: &mut Context<'_>,
        client: &mut Client,
        acknowledgement: Acknowledgement,
    ) {
        door.write_acknowledgement(cx, client, acknowledgement);
    }

    fn timer(client: &mut Client) -> (ConnectionId, &mut u64) {
        (client.id, &mut client.timer_ms)
    }

    fn partial_bytes(client: &Client) -> usize {
        client.partial_bytes()
    }

    fn kept_bytes(client: &Client) -> usize {
        client.kept_bytes()
    }

    fn each_session(client: &Client, visit: &mut dyn FnMut(SessionKey)) {
        client.session().into_iter().for_each(visit);
    }

    fn known_topics(client: &mut Client) -> Option<&mut KnownTopics> {
        Some(&mut client.known_topics)
    }

    fn sips(client: &mut Client) -> &mut Sips {
        &mut client.sips
    }

    fn shed(door: &mut Door, cx: &mut Context<'_>, client: &mut Client) {
        let detail = "memory is short, and this client holds most of it (broker.memory_ceiling)";
        door.turn_away(cx, client, ReasonCode::QuotaExceeded, detail);
    }

    fn check(door: &Door) {
        door.clients.iter().for_each(Client::check);
    }
}

impl Door {
    /// A door without clients.
    pub(crate) fn new(repetitions: Arc<Repetitions>, high_watermark_bytes: usize) -> Self {
        let limits = Arc::new(Limits::default());
        Self::open_for(
            Mqtt {
                limits,
                repetitions,
                last: LastMessage::default(),
            },
            high_watermark_bytes,
        )
    }

    /// Bytes arrived.
    pub(crate) fn received(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            door.counts.bytes_received += chunk.bytes.len() as u64;
            let (early, listener) = (&mut client.early, client.listener);
            note_early(cx, early, Protocol::Mqtt, listener, &chunk);
            door.feed(cx, client, chunk.stream, chunk.bytes);
        });
    }

    /// A datagram arrived.
    pub(crate) fn datagram(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        chunk: Chunk<'_>,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            door.counts.bytes_received += chunk.bytes.len() as u64;
            let (early, listener) = (&mut client.early, client.listener);
            note_early(cx, early, Protocol::Mqtt, listener, &chunk);
            door.feed(cx, client, DATAGRAMS, chunk.bytes);
        });
    }

    /// Early data can no longer be a replay.
    pub(crate) fn confirmed(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_client(cx, connection, |door, cx, client| {
            if client.early != Early::Over {
                door.service.repetitions.confirmed((cx.shard, client.id));
                Self::keep_will(cx, client);
            }
            client.early = Early::Over;
            door.count_login(cx, client);
        });
    }

    /// The queue towards a client has room again.
    pub(crate) fn writable(&mut self, cx: &mut Context<'_>, connection: ConnectionId) {
        self.with_client(cx, connection, Self::resume);
    }

    /// Cuts bytes of a stream into packets and handles them, or keeps them until they can be.
    fn feed(&mut self, cx: &mut Context<'_>, client: &mut Client, stream: StreamId, bytes: &[u8]) {
        let lane = Lane(stream.0);
        if matches!(client.state, State::Ended) {
            return;
        }
        if client.holds(stream) || !client.accepts(lane) {
            self.hold(cx, client, Held::Bytes(stream, bytes.into()));
            return;
        }
        if stream == DATAGRAMS {
            return self.feed_datagram(cx, client, bytes);
        }
        let now_ms = cx.now_ms;
        let mut framer = client.framers.take(stream);
        let mut input = bytes;
        let mut last = std::mem::take(&mut self.service.last);
        last.forget();
        loop {
            let most = client.engine.max_packet_bytes();
            match framer.next(&mut input, most) {
                Ok(Some(frame)) => {
                    let again = last.topic_of(&frame);
                    let mut asked = Asked::Waits;
                    if again.is_some() {
                        asked = Asked::Decided(true);
                    } else if client.early == Early::Allowed
                        && !early::may_be_early(cx, client, &frame)
                    {
                        hold_early(cx, &mut client.early, Protocol::Mqtt);
                    } else {
                        asked = Self::must_ask(cx, client, lane, &frame);
                        if asked != Asked::Waits
                            && frame.packet_type() == Some(PacketType::Publish)
                            && client.sips.must_wait(cx, Protocol::Mqtt)
                        {
                            asked = Asked::Waits;
                        }
                    }
                    if asked != Asked::Waits && Self::must_hold(cx, client, lane, &frame) {
                        asked = Asked::Waits;
                    }
                    // Last of all, because it is done at once or not at all.
                    if asked != Asked::Waits
                        && client.early == Early::Allowed
                        && !self.begin_early(cx, client, &frame)
                    {
                        hold_early(cx, &mut client.early, Protocol::Mqtt);
                        asked = Asked::Waits;
                    }
                    if asked == Asked::Waits {
                        let mut kept = Vec::new();
                        frame.copy_to(&mut kept);
                        kept.extend_from_slice(input);
                        self.hold(cx, client, Held::Bytes(stream, kept.into()));
                        break;
                    }
                    self.counts.messages_received += 1;
                    let session = match client.state {
                        State::Live(session) => session::mqtt_mut(cx.broker, session),
                        _ => None,
                    };
                    match client.engine.receive_known(
                        session,
                        lane,
                        &frame,
                        again,
                        now_ms,
                        &mut self.out,
                    ) {
                        Ok(None) => {}
                        // Nearly all are of this kind, and are not moved.
                        Ok(Some(Event::Publish(publish))) => {
                            let is_allowed = client.may_publish(cx, &publish, asked);
                            self.publish(cx, client, lane, &frame, &publish, is_allowed);
                            let is_new = is_allowed && again.is_none();
                            if is_new && !input.is_empty() && client.early == Early::Over {
                                last.keep(&frame, &publish.topic);
                            }
                        }
                        Ok(Some(event)) => {
                            // The client may have other groups from now on.
                            last.forget();
                            self.handle(cx, client, lane, &frame, event, asked);
                        }
                        Err(violation) => self.violated(cx, client, &violation, bytes),
                    }
                }
                Ok(None) => {
                    // A packet that can only be refused is not waited for.
                    if let Some(first_byte) = framer.partial()
                        && let Err(violation) = client.engine.check_partial(lane, first_byte)
                    {
                        self.violated(cx, client, &violation, bytes);
                    }
                    break;
                }
                Err(error) => {
                    let violation = client.engine.decode_failed(lane, error);
                    self.violated(cx, client, &violation, bytes);
                    break;
                }
            }
            if matches!(client.state, State::Ended) {
                break;
            }
            if !client.accepts(lane) {
                if !input.is_empty() {
                    self.hold(cx, client, Held::Bytes(stream, input.into()));
                }
                break;
            }
        }
        let is_partial = framer.buffered_bytes() > 0;
        client.framers.put_back(stream, framer);
        self.service.last = last;
        if is_partial && !matches!(client.state, State::Ended) {
            self.check_assembling(cx, client);
        }
    }

    /// Ends a connection whose streams together hold too much of packets that are not complete.
    fn check_assembling(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let each = client.framers.iter().map(Framer::buffered_bytes);
        if each.sum::<usize>() > cx.policy.mqtt.maximum_assembling_bytes as usize {
            let detail = "more bytes of incomplete packets than mqtt.maximum_assembling_bytes";
            self.turn_away(cx, client, ReasonCode::QuotaExceeded, detail);
        }
    }

    /// Handles a datagram: one PUBLISH of QoS 0 and nothing else.
    fn feed_datagram(&mut self, cx: &mut Context<'_>, client: &mut Client, bytes: &[u8]) {
        const LANE: Lane = Lane::DATAGRAMS;
        // A first byte of 0 marks datagrams of others, which are not for the broker.
        if bytes.first() == Some(&0) {
            return;
        }
        let mut framer = Framer::new();
        let mut input = bytes;
        let violation = match framer.next(&mut input, client.engine.max_packet_bytes()) {
            Ok(Some(frame))
                if input.is_empty() && frame.first_byte() & !RETAIN == PUBLISH_AT_MOST_ONCE =>
            {
                if client.early == Early::Allowed && !early::may_be_early(cx, client, &frame) {
                    hold_early(cx, &mut client.early, Protocol::Mqtt);
                    return self.hold(cx, client, Held::Bytes(DATAGRAMS, bytes.into()));
                }
                let asked = Self::must_ask(cx, client, LANE, &frame);
                if asked == Asked::Waits || client.sips.must_wait(cx, Protocol::Mqtt) {
                    return self.hold(cx, client, Held::Bytes(DATAGRAMS, bytes.into()));
                }
                if cx.is_turn_spent() && Self::drops_for_the_turn(cx, client, &frame) {
                    return;
                }
                self.counts.messages_received += 1;
                let session = match client.state {
                    State::Live(session) => session::mqtt_mut(cx.broker, session),
                    _ => None,
                };
                let now_ms = cx.now_ms;
                let received = client
                    .engine
                    .receive(session, LANE, &frame, now_ms, &mut self.out);
                match received {
                    Ok(None) => return,
                    Ok(Some(event)) => {
                        return self.handle(cx, client, LANE, &frame, event, asked);
                    }
                    Err(violation) => violation,
                }
            }
            Ok(_) => {
                let error = DecodeError::new(
                    ReasonCode::ProtocolError,
                    "a datagram that is not one PUBLISH of QoS 0",
                );
                client.engine.decode_failed(LANE, error)
            }
            Err(error) => client.engine.decode_failed(LANE, error),
        };
        self.violated(cx, client, &violation, &[]);
    }

    /// Keeps bytes until the decision that they wait for. The transport is paused meanwhile, so that
    /// not much more than one read comes.
    fn hold(&mut self, cx: &mut Context<'_>, client: &mut Client, held: Held) {
        let control = held.stream() == StreamId::FIRST;
        let datagram = held.stream() == DATAGRAMS;
        client.held.push(held);
        let mut most = cx.policy.mqtt.maximum_held_bytes as usize;
        let is_packet = client.asking.is_waiting() || client.sips.is_waiting();
        if is_packet {
            // The waiting input is a whole packet.
            most += cx.policy.mqtt.maximum_packet_bytes as usize;
        }
        if held_bytes(&client.held) > most {
            if datagram {
                // A client that sends datagrams accepts that some are lost.
                client.held.pop();
                return;
            }
            let detail = "more than mqtt.maximum_held_bytes before CONNACK, an answer of the webhook, or the end of a pause";
            self.turn_away(cx, client, ReasonCode::QuotaExceeded, detail);
        } else if (control || is_packet) && client.early != Early::Waiting {
            cx.net.pause(client.id, true);
        }
    }

    /// Handles the held input, if it can be handled now.
    fn release(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let ready = |held: &Held| client.accepts(Lane(held.stream().0));
        if !client.held.first().is_some_and(ready) {
            return;
        }
        cx.net.pause(client.id, false);
        for held in std::mem::take(&mut client.held) {
            match held {
                Held::Bytes(stream, bytes) => self.feed(cx, client, stream, &bytes),
                Held::Finished(stream) => self.finished(cx, client, stream),
            }
        }
    }

    fn handle(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
        event: Event<'_>,
        asked: Asked,
    ) {
        match event {
            Event::Publish(publish) => {
                let is_allowed = client.may_publish(cx, &publish, asked);
                self.publish(cx, client, lane, frame, &publish, is_allowed);
            }
            Event::Delivered { tag, reason } => self.delivered(cx, client, tag, reason),
            Event::HandedOver {
                tag,
                packet_id,
                reason,
            } => self.handed_over(cx, client, lane, packet_id, tag, reason),
            Event::Released {
                packet_id,
                received,
                reason,
            } => self.released(cx, client, lane, (packet_id, received), reason),
            Event::Repeated { packet_id } => {
                let again = Acknowledgement::PubRec(lane, packet_id, ReasonCode::Success, None);
                self.acknowledge_again(cx, client, again);
            }
            Event::Subscribe(subscribe) => self.subscribe(cx, client, lane, &subscribe),
            Event::Unsubscribe(unsubscribe) => self.unsubscribe(cx, client, lane, &unsubscribe),
            Event::Connect(connect) => self.connect(cx, client, &connect),
            Event::Auth(auth) => self.auth(cx, client, &auth),
            Event::Disconnect(disconnect) => Self::disconnected(cx, client, &disconnect),
        }
    }

    /// Tells a client about its violation, and the operator about the client. The violation is in `input`.
    fn violated(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        violation: &Violation,
        input: &[u8],
    ) {
        let is_first = matches!(client.state, State::New);
        let violation = &Violation {
            detail: with_setting(violation, is_first),
            ..*violation
        };
        let foreign = is_first.then(|| foreign(input, "MQTT")).flatten();
        let detail = foreign.as_deref().unwrap_or(violation.detail);
        log_end(cx, client, violation.reason.name(), detail);
        client.engine.violation(violation, &mut self.out);
        match violation.scope {
            // The datagram is dropped.
            Scope::Lane(Lane::DATAGRAMS) => {}
            Scope::Lane(lane) => {
                cx.net.abort(
                    client.id,
                    StreamId(lane.0),
                    u64::from(violation.reason as u8),
                );
                client.held.retain(|held| held.stream().0 != lane.0);
                Self::lane_gone(cx, client, StreamId(lane.0));
                self.send_again(cx, client, lane);
            }
            Scope::Connection => Self::lost(cx, client, end::cause_of(violation.reason)),
        }
    }
}

/// The fault of a violation in words, with the setting where a limit is why.
const fn with_setting(violation: &Violation, is_first: bool) -> &'static str {
    match violation.reason {
        ReasonCode::PacketTooLarge => {
            "packet larger than the Maximum Packet Size (mqtt.maximum_packet_bytes)"
        }
        ReasonCode::ReceiveMaximumExceeded => {
            "more unacknowledged messages than Receive Maximum (mqtt.receive_maximum)"
        }
        ReasonCode::KeepAliveTimeout if is_first => {
            "no CONNECT within the connect timeout (network.connect_timeout_ms)"
        }
        _ => violation.detail,
    }
}

/// A line for the operator about a connection that is ended because of its client.
fn log_end(cx: &Context<'_>, client: &Client, reason: &str, detail: &str) {
    let Some(line) = cx.repeats(client.id, &client.name, detail) else {
        return;
    };
    tracing::warn!(
        peer = line.peer,
        client = (!client.name.is_empty()).then_some(&*client.name),
        user = client.identity.user(),
        reason,
        detail,
        more = line.more,
        "client disconnected"
    );
}

/// The engine's limits for a new connection.
fn engine_limits(policy: &Policy) -> Limits {
    let mqtt = &policy.mqtt;
    let mut features = Features::ALL;
    for (available, feature) in [
        (mqtt.retain_available, Features::RETAIN),
        (mqtt.wildcard_subscription_available, Features::WILDCARDS),
        (mqtt.shared_subscription_available, Features::SHARED),
        (
            mqtt.subscription_identifiers_available,
            Features::IDENTIFIERS,
        ),
    ] {
        if !available {
            features = features.without(feature);
        }
    }
    Limits {
        max_packet_bytes: mqtt.maximum_packet_bytes,
        max_connect_bytes: mqtt.maximum_connect_bytes.min(mqtt.maximum_packet_bytes),
        receive_maximum: mqtt
            .receive_maximum
            .try_into()
            .unwrap_or(std::num::NonZeroU16::MIN),
        send_window: mqtt
            .send_maximum
            .try_into()
            .unwrap_or(std::num::NonZeroU16::MIN),
        topic_alias_maximum: mqtt.topic_alias_maximum,
        outgoing_topic_aliases: mqtt.topic_alias_maximum,
        maximum_qos: QoS::from_u8(mqtt.maximum_qos).unwrap_or(QoS::ExactlyOnce),
        features,
        connect_timeout_ms: policy.connect_timeout_ms.try_into().unwrap_or(u32::MAX),
        share_payload_bytes: sterna_net::SHARE_BYTES as u32,
        ..Limits::default()
    }
}
