//! The state of one connection, and the effects of each packet of the server.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;

use super::limits::ServerLimits;
use crate::alias::{IncomingAliases, OutgoingAliases, TopicName};
use crate::packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Publish, ReasonCodes, SubAck, UnsubAck, encode_ack,
};
use crate::session::{AckError, Content, Received, Stage};
use crate::{
    Answer, DecodeError, EncodeError, Frame, Lane, LaneWriter, MAX_PACKET_BYTES, MqttSession,
    Packet, PacketId, PacketType, Properties, Property, QoS, ReasonCode, Scope, Version, Violation,
};

/// Bytes of Topic Names that the server's Topic Aliases may occupy here.
const MAX_ALIAS_TOPIC_BYTES: usize = 1 << 20;

/// Shortest wait for a PINGRESP, in milliseconds.
const MIN_PING_TIMEOUT_MS: u64 = 5_000;

/// Meaning of a server's packet for the client.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// The server accepted. When `session_present` is false, everything that an earlier connection
    /// left unfinished is gone from the session.
    Connected(ConnAck<'a>),
    /// The server refused and closes the connection.
    Refused(ConnAck<'a>),
    /// The server asks for the next step of an authentication: answer with
    /// [`Connection::authenticate`].
    Challenge(Auth<'a>),
    /// The server is satisfied with a re-authentication.
    Reauthenticated(Auth<'a>),
    /// A message. With QoS 1 and 2, hand it on and then call [`Connection::acknowledge`].
    Publish {
        /// The topic, also where the packet only has an alias for it.
        topic: TopicName<'a>,
        /// The packet.
        publish: Publish<'a>,
    },
    /// The server has received a QoS 2 message; its content is not needed any more.
    HandedOver {
        /// The publisher's own name of the message.
        tag: u64,
    },
    /// A message with QoS 1 or 2 is done with, successfully or not.
    Delivered {
        /// The publisher's own name of the message.
        tag: u64,
        /// The server's verdict.
        reason: ReasonCode,
        /// Reason String and User Properties.
        properties: Properties<'a>,
    },
    /// A SUBSCRIBE is answered.
    Subscribed {
        /// The caller's own name of the request.
        tag: u64,
        /// One code for each filter, in order.
        codes: ReasonCodes<'a>,
        /// Reason String and User Properties.
        properties: Properties<'a>,
    },
    /// An UNSUBSCRIBE is answered.
    Unsubscribed {
        /// The caller's own name of the request.
        tag: u64,
        /// One code for each filter, in order; none before MQTT 5.0, where it always succeeds.
        codes: ReasonCodes<'a>,
        /// Reason String and User Properties.
        properties: Properties<'a>,
    },
    /// The server ends the connection and says why (MQTT 5.0).
    Disconnected(Disconnect<'a>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// CONNECT is sent, CONNACK is yet to come.
    Connecting,
    Connected,
    /// DISCONNECT was sent or received, or the server refused.
    Closed,
}

/// An incoming message with QoS 1 or 2 that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    packet_id: PacketId,
    qos: QoS,
    /// Where it arrived.
    lane: Lane,
    /// Set when it may be answered and others before it may not.
    reason: Option<ReasonCode>,
}

/// One connection of a client, from CONNECT to its end.
#[derive(Debug)]
pub struct Connection {
    pub(super) version: Version,
    pub(super) state: State,
    /// The limits that are in force: guesses until the CONNACK.
    pub(super) limits: ServerLimits,
    pub(super) aliases: OutgoingAliases,
    /// Filters in each request that waits for its answer.
    pub(super) requests: BTreeMap<PacketId, usize>,
    /// Bytes that may still be sent before the CONNACK.
    pub(super) early_room_bytes: usize,
    /// Something was sent before the CONNACK.
    pub(super) sent_early: bool,
    pub(super) auth_method: Option<Box<str>>,
    /// A re-authentication is under way.
    pub(super) reauthenticating: bool,
    pub(super) session_expiry_s: u32,
    clean_start: bool,
    holds_session: bool,
    receive_maximum: u16,
    max_packet_bytes: usize,
    topic_alias_maximum: u16,
    wants_problem_information: bool,
    pub(super) peer_aliases: IncomingAliases,
    unanswered: VecDeque<Unanswered>,
    unanswered_qos1: usize,
    keep_alive_ms: u64,
    last_sent_ms: u64,
    last_heard_ms: u64,
    /// When a PINGREQ was sent that the server has not answered.
    ping_sent_ms: Option<u64>,
    /// The transport itself finds out that the server is gone.
    transport_hears: bool,
}

impl Connection {
    /// Writes a CONNECT and starts a connection with it.
    ///
    /// `holds_session` is true if the client has state of this session, even if that is empty. A
    /// client without state, with Clean Start off, must close if the server has a session for it,
    /// and does. One that goes on with the session of an earlier process has
    /// [`MqttSession::inherited`] as its state: anything may be under way. With Clean Start the
    /// session is emptied. Otherwise its content is sent again after the CONNACK.
    ///
    /// `expected` are the server's limits on an earlier connection, or [`ServerLimits::EARLY`].
    /// Packets before the CONNACK keep within them.
    ///
    /// # Errors
    ///
    /// When the CONNECT cannot be written. The buffer is then unchanged.
    pub fn open(
        connect: &Connect<'_>,
        holds_session: bool,
        expected: ServerLimits,
        session: &mut MqttSession,
        now_ms: u64,
        out: &mut BytesMut,
    ) -> Result<Self, EncodeError> {
        connect.encode(MAX_PACKET_BYTES, out)?;
        if connect.clean_start {
            // [MQTT-3.1.2-4]
            session.clear();
        }
        session.begin_connection();
        let auth_method = connect.properties.authentication_method().map(Box::from);
        Ok(Self {
            version: connect.version,
            state: State::Connecting,
            limits: expected.early(),
            aliases: OutgoingAliases::default(),
            requests: BTreeMap::new(),
            // With nothing to send again there is nothing that early messages could overtake.
            // [MQTT-3.1.2-30] nothing early with an authentication method
            early_room_bytes: if session.is_empty() && auth_method.is_none() {
                super::EARLY_BYTES
            } else {
                0
            },
            sent_early: false,
            auth_method,
            reauthenticating: false,
            session_expiry_s: connect.session_expiry_s(),
            clean_start: connect.clean_start,
            holds_session,
            receive_maximum: connect.receive_maximum(),
            max_packet_bytes: MAX_PACKET_BYTES.min(connect.maximum_packet_bytes() as usize),
            topic_alias_maximum: connect.topic_alias_maximum(),
            wants_problem_information: connect.wants_problem_information(),
            // [MQTT-3.3.2-10]
            peer_aliases: IncomingAliases::default(),
            unanswered: VecDeque::new(),
            unanswered_qos1: 0,
            keep_alive_ms: u64::from(connect.keep_alive_s) * 1000,
            last_sent_ms: now_ms,
            last_heard_ms: now_ms,
            ping_sent_ms: None,
            transport_hears: false,
        })
    }

    /// The version of the connection.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Largest packet that this end takes, in bytes, fixed header included: the limit for its
    /// [`Framer`](crate::Framer).
    #[must_use]
    pub const fn max_packet_bytes(&self) -> usize {
        self.max_packet_bytes
    }

    /// Whether something was sent without knowing whether the server takes it.
    #[must_use]
    pub const fn has_sent_early(&self) -> bool {
        self.sent_early
    }

    /// Takes no larger packets than this, also where the server cannot be told: before MQTT 5.0.
    pub fn limit_packets(&mut self, max_packet_bytes: usize) {
        self.max_packet_bytes = self.max_packet_bytes.min(max_packet_bytes);
    }

    /// The server's limits; assumptions until it has answered.
    #[must_use]
    pub const fn limits(&self) -> &ServerLimits {
        &self.limits
    }

    /// Whether the server has accepted and neither side has ended the connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Whether a DISCONNECT was sent or received, or the server refused: nothing more is sent.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Decodes and handles one packet of the server that arrived on `lane`; see
    /// [`Connection::handle`].
    ///
    /// # Errors
    ///
    /// As for [`Connection::handle`], and for bytes that are no packet.
    pub fn receive<'a>(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        frame: &Frame<'a>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        let packet =
            Packet::decode(frame, self.version).map_err(|error| self.decode_failed(error))?;
        self.handle(session, lane, packet, now_ms, out)
    }

    /// Handles one packet of the server that arrived on `lane`. Answers that the protocol fixes are
    /// written to `out`.
    ///
    /// # Errors
    ///
    /// When the server broke the protocol: pass the violation to [`Connection::violation`] and
    /// close.
    pub fn handle<'a>(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        packet: Packet<'a>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.heard(now_ms);
        match packet {
            _ if self.state == State::Closed => {
                Err(self.protocol("packet after the end of the connection"))
            }
            Packet::ConnAck(connack) => self.connack(session, lane, connack).map(Some),
            Packet::Auth(auth) => self.auth(lane, auth).map(Some),
            // [MQTT-3.2.0-1] [MQTT-3.14.0-1]
            _ if self.state == State::Connecting => {
                Err(self.protocol("the server's first packet is neither CONNACK nor AUTH"))
            }
            Packet::Publish(publish) => self.publish_in(session, lane, publish, out),
            Packet::PubAck(ack) => self.puback(session, ack),
            Packet::PubRec(ack) => self.pubrec(session, lane, ack, out),
            Packet::PubRel(ack) => self.pubrel(session, lane, ack, out).map(|()| None),
            Packet::PubComp(ack) => self.pubcomp(session, ack),
            Packet::SubAck(suback) => self.suback(session, suback).map(Some),
            Packet::UnsubAck(unsuback) => self.unsuback(session, unsuback).map(Some),
            Packet::PingResp => {
                self.ping_sent_ms = None;
                Ok(None)
            }
            Packet::Disconnect(disconnect) if self.version.is_v5() => {
                // [MQTT-3.14.2-2]
                if disconnect.session_expiry_s().is_some() {
                    return Err(self.protocol("Session Expiry Interval in the server's DISCONNECT"));
                }
                self.state = State::Closed;
                Ok(Some(Event::Disconnected(disconnect)))
            }
            Packet::Connect(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::PingReq
            | Packet::Disconnect(_) => Err(self.protocol("a packet that only clients send")),
        }
    }

    /// Bytes of a packet that could not be decoded are a violation, too.
    #[must_use]
    pub const fn decode_failed(&self, error: DecodeError) -> Violation {
        self.broken(error.reason, error.detail)
    }

    /// Ends the connection because of a violation. Writes DISCONNECT where the version has it;
    /// close the network connection next ([MQTT-4.13.2-1], [MQTT-3.14.4-2]).
    pub fn violation(&mut self, violation: &Violation, out: &mut BytesMut) {
        if self.state != State::Closed && violation.answer == Answer::Disconnect {
            // A reason text would be useless: servers do not show it. An error means that the
            // server takes no packet of four bytes; then the close alone is the answer.
            let disconnect = Disconnect::new(violation.reason);
            let _ = disconnect.encode(self.version, self.limits.max_packet_bytes, out);
        }
        self.state = State::Closed;
    }

    pub(super) const fn broken(&self, reason: ReasonCode, detail: &'static str) -> Violation {
        let answer = if self.version.is_v5() {
            Answer::Disconnect
        } else {
            Answer::Nothing
        };
        Violation {
            reason,
            detail,
            answer,
            scope: Scope::Connection,
        }
    }

    const fn protocol(&self, detail: &'static str) -> Violation {
        self.broken(ReasonCode::ProtocolError, detail)
    }

    /// Whether a packet has properties that only some packets may have for a client without Request
    /// Problem Information.
    fn check_problem_information(&self, properties: Properties<'_>) -> Result<(), Violation> {
        // [MQTT-3.1.2-29]
        let unwanted = |property| {
            matches!(
                property,
                Property::ReasonString(_) | Property::UserProperty(..)
            )
            .then_some(())
        };
        if !self.wants_problem_information && properties.find(unwanted).is_some() {
            return Err(self.protocol("problem information that was not requested"));
        }
        Ok(())
    }

    // ---- Connecting and authenticating -----------------------------------------------------

    fn connack<'a>(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        connack: ConnAck<'a>,
    ) -> Result<Event<'a>, Violation> {
        // [MQTT-3.2.0-2]
        if self.state != State::Connecting || !lane.is_control() {
            return Err(self.protocol("CONNACK at a place where none is due"));
        }
        if connack.reason.is_error() {
            // [MQTT-4.13.2-1]: the caller closes.
            self.state = State::Closed;
            return Ok(Event::Refused(connack));
        }
        self.check_method(connack.properties)?;
        if connack.session_present {
            // [MQTT-3.2.2-4] [MQTT-3.2.2-5]
            if self.clean_start {
                return Err(self.protocol("the server kept a session that was to be discarded"));
            }
            if !self.holds_session {
                return Err(
                    self.protocol("the server has a session that this client does not know")
                );
            }
        } else if self.version != Version::V31 {
            // Section 3.2.2.1.1: the server has no session, so this end has none either. If packets
            // were sent early, the session was empty before, and its content is new. MQTT 3.1 does
            // not tell.
            session.disinherit();
            if !self.sent_early {
                session.clear();
            }
        }
        self.limits = ServerLimits::of(&connack);
        if let Some(keep_alive_s) = connack.server_keep_alive_s() {
            // [MQTT-3.1.2-21]
            self.keep_alive_ms = u64::from(keep_alive_s) * 1000;
        }
        if let Some(expiry_s) = connack.properties.session_expiry_s() {
            self.session_expiry_s = expiry_s;
        }
        self.state = State::Connected;
        Ok(Event::Connected(connack))
    }

    /// The authentication method must be the one of the CONNECT, and none where that has none.
    fn check_method(&self, properties: Properties<'_>) -> Result<(), Violation> {
        // [MQTT-4.12.0-5] [MQTT-4.12.0-6]
        if properties.authentication_method() == self.auth_method.as_deref() {
            Ok(())
        } else {
            Err(self.protocol("another authentication method than that of the CONNECT"))
        }
    }

    fn auth<'a>(&mut self, lane: Lane, auth: Auth<'a>) -> Result<Event<'a>, Violation> {
        // [MQTT-4.12.0-6]
        if self.auth_method.is_none() || !lane.is_control() {
            return Err(self.protocol("AUTH without an authentication method"));
        }
        self.check_method(auth.properties)?;
        self.check_problem_information(auth.properties)?;
        match auth.reason {
            // [MQTT-4.12.0-2] [MQTT-4.12.0-3]
            ReasonCode::ContinueAuthentication
                if self.state == State::Connecting || self.reauthenticating =>
            {
                Ok(Event::Challenge(auth))
            }
            ReasonCode::Success if self.reauthenticating => {
                self.reauthenticating = false;
                Ok(Event::Reauthenticated(auth))
            }
            _ => Err(self.protocol("AUTH at a place where none is due")),
        }
    }

    // ---- Messages to the client ------------------------------------------------------------

    fn publish_in<'a>(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        publish: Publish<'a>,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        let topic = match publish.properties.topic_alias() {
            None => TopicName::Literal(publish.topic),
            Some(alias) => self
                .peer_aliases
                .resolve(
                    lane,
                    publish.topic,
                    alias,
                    self.topic_alias_maximum,
                    MAX_ALIAS_TOPIC_BYTES,
                )
                .map_err(|error| self.decode_failed(error))?,
        };
        let Some(packet_id) = publish.packet_id else {
            return Ok(Some(Event::Publish { topic, publish }));
        };
        if publish.qos == QoS::ExactlyOnce {
            let (retain, properties) = (publish.retain, &publish.properties);
            let content = Content::of(&topic, retain, properties, publish.payload);
            match session.receive(lane, packet_id, publish.dup, content) {
                Received::New(_) => {}
                Received::Pending => {
                    self.await_acknowledgement(packet_id, publish.qos, lane);
                    return Ok(None);
                }
                Received::Repeated => {
                    // [MQTT-4.3.3-10]
                    self.answer(
                        PacketType::PubRec,
                        lane,
                        packet_id,
                        ReasonCode::Success,
                        out,
                    );
                    return Ok(None);
                }
            }
        } else {
            self.unanswered_qos1 += 1;
        }
        if self.unanswered_qos1 + session.incoming_in_flight() > usize::from(self.receive_maximum) {
            return Err(self.broken(
                ReasonCode::ReceiveMaximumExceeded,
                "more unacknowledged messages than the Receive Maximum",
            ));
        }
        self.unanswered.push_back(Unanswered {
            packet_id,
            qos: publish.qos,
            lane,
            reason: None,
        });
        Ok(Some(Event::Publish { topic, publish }))
    }

    /// A message that the application has came again: on another lane, or over another connection.
    /// The application's acknowledgement of the first one is for this one.
    fn await_acknowledgement(&mut self, packet_id: PacketId, qos: QoS, lane: Lane) {
        let mut known = self.unanswered.iter_mut();
        match known.find(|known| known.packet_id == packet_id && known.qos == qos) {
            Some(known) => known.lane = lane,
            None => self.unanswered.push_back(Unanswered {
                packet_id,
                qos,
                lane,
                reason: None,
            }),
        }
    }

    /// Takes over a message with QoS 1 or 2 that came with [`Event::Publish`], or refuses it with
    /// an error code. Writes PUBACK or PUBREC. Servers before MQTT 5.0 do not get the code.
    ///
    /// Messages may be acknowledged in any order. The packets leave in the order in which the
    /// messages came, so one that stays unacknowledged holds up the others.
    ///
    /// A message with QoS 2 is handed over once, also where its connection ends before this. Its
    /// acknowledgement then answers the repetition, which may be yet to come.
    pub fn acknowledge(
        &mut self,
        session: &mut MqttSession,
        packet_id: PacketId,
        reason: ReasonCode,
        out: &mut impl LaneWriter,
    ) {
        let refuses = reason.is_error() && self.version.is_v5();
        let is_connected = self.state == State::Connected;
        let found = self.unanswered.iter_mut().find(|message| {
            is_connected && message.packet_id == packet_id && message.reason.is_none()
        });
        match found {
            Some(message) => {
                message.reason = Some(reason);
                if message.qos == QoS::ExactlyOnce && !refuses {
                    // Also where those before it hold its PUBREC up.
                    session.mark_received(message.lane, packet_id);
                }
            }
            None if refuses => {}
            None => session.mark_earlier_received(packet_id),
        }
        if !is_connected {
            return;
        }
        // [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT311-4.6.0-2] [MQTT311-4.6.0-3]
        while let Some(Unanswered {
            packet_id,
            qos,
            lane,
            reason: Some(reason),
        }) = self.unanswered.front().copied()
        {
            self.unanswered.pop_front();
            if qos == QoS::AtLeastOnce {
                // [MQTT-4.3.2-4]
                self.unanswered_qos1 -= 1;
                self.answer(PacketType::PubAck, lane, packet_id, reason, out);
            } else {
                // [MQTT-4.3.3-8] [MQTT-4.3.3-9]
                if reason.is_error() && self.version.is_v5() {
                    session.forget_received(lane, packet_id);
                }
                self.answer(PacketType::PubRec, lane, packet_id, reason, out);
            }
        }
    }

    /// Writes an acknowledgement to where its message came from.
    fn answer(
        &self,
        packet_type: PacketType,
        lane: Lane,
        packet_id: PacketId,
        reason: ReasonCode,
        out: &mut impl LaneWriter,
    ) {
        // [MQTT-2.2.1-5] [MQTT-4.5.0-2]. Never too large: the smallest Maximum Packet Size of a
        // server that could speak MQTT holds five bytes.
        let ack = Ack::new(packet_id, reason);
        let _ = encode_ack(
            packet_type,
            &ack,
            self.version,
            MAX_PACKET_BYTES,
            out.buffer(lane.reply()),
        );
    }

    fn pubrel(
        &self,
        session: &mut MqttSession,
        lane: Lane,
        ack: Ack<'_>,
        out: &mut impl LaneWriter,
    ) -> Result<(), Violation> {
        self.check_problem_information(ack.properties)?;
        let reason = match session.release(lane, ack.packet_id) {
            Some((_, true)) => ReasonCode::Success,
            Some((_, false)) => return Err(self.protocol("PUBREL before PUBREC")),
            None => ReasonCode::PacketIdentifierNotFound,
        };
        // [MQTT-4.3.3-11]
        self.answer(PacketType::PubComp, lane, ack.packet_id, reason, out);
        Ok(())
    }

    // ---- Answers to the client's packets ---------------------------------------------------

    fn puback<'a>(
        &self,
        session: &mut MqttSession,
        ack: Ack<'a>,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.check_problem_information(ack.properties)?;
        match session.puback(ack.packet_id) {
            Ok(tag) => Ok(Some(Event::Delivered {
                tag,
                reason: ack.reason,
                properties: ack.properties,
            })),
            // An answer that came twice changes nothing.
            Err(AckError::Unknown) => Ok(None),
            Err(AckError::Unexpected) => {
                Err(self.protocol("PUBACK for an identifier without a QoS 1 message"))
            }
        }
    }

    fn pubrec<'a>(
        &self,
        session: &mut MqttSession,
        lane: Lane,
        ack: Ack<'a>,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.check_problem_information(ack.properties)?;
        let release = |reason, out: &mut _| {
            // [MQTT-4.3.3-4] [MQTT-4.6.0-4]: at once, so in the order of the PUBRECs
            self.answer(PacketType::PubRel, lane, ack.packet_id, reason, out);
        };
        match session.pubrec(ack.packet_id, ack.reason) {
            // [MQTT-4.4.0-2]
            Ok((tag, _)) if ack.reason.is_error() => Ok(Some(Event::Delivered {
                tag,
                reason: ack.reason,
                properties: ack.properties,
            })),
            Ok((tag, first)) => {
                release(ReasonCode::Success, out);
                Ok(first.then_some(Event::HandedOver { tag }))
            }
            Err(AckError::Unknown) if ack.reason.is_error() => Ok(None),
            Err(AckError::Unknown) => {
                // Section 3.6.2.1: the server is told that there is nothing to release.
                release(ReasonCode::PacketIdentifierNotFound, out);
                Ok(None)
            }
            Err(AckError::Unexpected) => {
                Err(self.protocol("PUBREC for an identifier without a QoS 2 message"))
            }
        }
    }

    fn pubcomp<'a>(
        &self,
        session: &mut MqttSession,
        ack: Ack<'a>,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.check_problem_information(ack.properties)?;
        // A message of an earlier process, if there was one.
        let is_left = session.is_asked(ack.packet_id);
        match session.pubcomp(ack.packet_id) {
            Ok(_) if is_left => Ok(None),
            Ok(tag) => Ok(Some(Event::Delivered {
                tag,
                // That the server has forgotten the identifier doesn't mean that it lost the
                // message: it has answered PUBREC.
                reason: ReasonCode::Success,
                properties: ack.properties,
            })),
            Err(AckError::Unknown) => Ok(None),
            Err(AckError::Unexpected) => Err(self.protocol("PUBCOMP before PUBREL")),
        }
    }

    fn suback<'a>(
        &mut self,
        session: &mut MqttSession,
        suback: SubAck<'a>,
    ) -> Result<Event<'a>, Violation> {
        self.check_problem_information(suback.properties)?;
        // [MQTT-2.2.1-6] [MQTT-3.8.4-2]
        let tag = session
            .answered(suback.packet_id, Stage::Subscribe)
            .map_err(|_| self.protocol("SUBACK without a SUBSCRIBE"))?;
        // [MQTT-3.8.4-6]
        if self.requests.remove(&suback.packet_id) != Some(suback.codes().len()) {
            return Err(self.protocol("SUBACK with another number of reason codes than filters"));
        }
        Ok(Event::Subscribed {
            tag,
            codes: suback.codes(),
            properties: suback.properties,
        })
    }

    fn unsuback<'a>(
        &mut self,
        session: &mut MqttSession,
        unsuback: UnsubAck<'a>,
    ) -> Result<Event<'a>, Violation> {
        self.check_problem_information(unsuback.properties)?;
        // [MQTT-2.2.1-6]
        let tag = session
            .answered(unsuback.packet_id, Stage::Unsubscribe)
            .map_err(|_| self.protocol("UNSUBACK without an UNSUBSCRIBE"))?;
        let filters = self.requests.remove(&unsuback.packet_id);
        if self.version.is_v5() && filters != Some(unsuback.codes().len()) {
            return Err(self.protocol("UNSUBACK with another number of reason codes than filters"));
        }
        Ok(Event::Unsubscribed {
            tag,
            codes: unsuback.codes(),
            properties: unsuback.properties,
        })
    }

    // ---- Time ------------------------------------------------------------------------------

    /// Bytes have been handed to the transport.
    pub const fn sent(&mut self, now_ms: u64) {
        self.last_sent_ms = now_ms;
    }

    /// Bytes have arrived, be it only a part of a packet: the server is alive.
    pub const fn heard(&mut self, now_ms: u64) {
        self.last_heard_ms = now_ms;
    }

    /// Leaves it to the transport to find out that the server is gone, as QUIC does with its idle
    /// timeout. Then the silence of this end alone makes a PINGREQ due.
    pub const fn leave_liveness_to_transport(&mut self) {
        self.transport_hears = true;
    }

    /// Time at which [`Connection::on_timeout`] is due, if no packet passes until then. In
    /// milliseconds on the clock of `now_ms`; `None` for never.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        if self.state != State::Connected || self.keep_alive_ms == 0 {
            return None;
        }
        let ping_ms = self.ping_deadline_ms();
        Some(match self.answer_deadline_ms() {
            Some(answer_ms) => answer_ms.min(ping_ms),
            None => ping_ms,
        })
    }

    /// Time at which the next PINGREQ is due.
    fn ping_deadline_ms(&self) -> u64 {
        // Sent bytes say nothing about the server: they vanish in a dead connection for minutes.
        // One PINGREQ at a time asks for a sign of life.
        let asks = !self.transport_hears && self.ping_sent_ms.is_none();
        let since_ms = if asks {
            self.last_sent_ms.min(self.last_heard_ms)
        } else {
            self.last_sent_ms
        };
        // [MQTT-3.1.2-20] [MQTT311-3.1.2-23]
        since_ms + self.keep_alive_ms
    }

    /// Time at which a server that has not answered a PINGREQ counts as gone.
    fn answer_deadline_ms(&self) -> Option<u64> {
        let since_ms = self.ping_sent_ms?.max(self.last_heard_ms);
        Some(since_ms + self.ping_timeout_ms())
    }

    const fn ping_timeout_ms(&self) -> u64 {
        let half = self.keep_alive_ms / 2;
        if half > MIN_PING_TIMEOUT_MS {
            half
        } else {
            MIN_PING_TIMEOUT_MS
        }
    }

    /// Writes a PINGREQ when one is due.
    ///
    /// # Errors
    ///
    /// When the server has sent no packet in half the Keep Alive time (at least 5 s) after a
    /// PINGREQ. The connection is dead: close it.
    pub fn on_timeout(&mut self, now_ms: u64, out: &mut BytesMut) -> Result<(), Violation> {
        if self
            .deadline_ms()
            .is_none_or(|deadline_ms| now_ms < deadline_ms)
        {
            return Ok(());
        }
        let answer_ms = self.answer_deadline_ms();
        if answer_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms) {
            return Err(Violation {
                answer: Answer::Nothing,
                ..self.broken(ReasonCode::KeepAliveTimeout, "the server doesn't answer")
            });
        }
        self.ping_sent_ms.get_or_insert(now_ms);
        self.last_sent_ms = now_ms;
        let _ = Packet::PingReq.encode(self.version, MAX_PACKET_BYTES, out);
        Ok(())
    }
}
