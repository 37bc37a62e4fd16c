//! Input: the order of packets, the limits, and the engine's own answers.

use std::sync::Arc;

use super::{Event, Features, IncomingPublish, Limits};
use crate::alias::{IncomingAliases, OutgoingAliases, TopicName};
use crate::packet::{Ack, Auth, Connect, Disconnect, Publish, Subscribe, encode_ack};
use crate::session::{AckError, Content, Received};
use crate::{
    Answer, DecodeError, Frame, Lane, LaneWriter, MqttSession, Packet, PacketType, Property, QoS,
    ReasonCode, Scope, Version, Violation, topic,
};

/// The server's end of one network connection.
///
/// It keeps the state of the connection. State that outlives it is in the [`MqttSession`], which
/// the caller passes in.
#[derive(Debug)]
pub struct Connection {
    pub(super) limits: Arc<Limits>,
    pub(super) phase: Phase,
    pub(super) version: Version,
    /// Whether the client is a bridge before 5.0, whose subscriptions have options of 5.0.
    is_of_bridge: bool,
    pub(super) clean_start: bool,
    pub(super) wants_problem_information: bool,
    pub(super) wants_response_information: bool,
    pub(super) keep_alive_s: u16,
    /// Session Expiry Interval that the CONNECT requested.
    pub(super) session_expiry_s: u32,
    /// QoS 1 and 2 messages that may be on their way to the client.
    pub(super) send_quota: u16,
    /// Highest Topic Alias that may be set towards the client.
    pub(super) outgoing_alias_maximum: u16,
    /// Largest packet that the client takes.
    pub(super) client_max_packet_bytes: u32,
    /// Received QoS 1 messages that the caller has not acknowledged.
    pub(super) unacknowledged_qos1: u32,
    /// When the last packet arrived; before CONNECT, when the connection began.
    pub(super) last_received_ms: u64,
    /// A thin pointer, because few clients name a method.
    pub(super) authentication_method: Option<Box<Box<str>>>,
    /// `None` until the client sets the first.
    pub(super) incoming_aliases: Option<Box<IncomingAliases>>,
    pub(super) outgoing_aliases: Option<Box<OutgoingAliases>>,
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing has arrived: CONNECT is awaited.
    Start,
    /// The caller decides about a CONNECT or AUTH.
    Deciding,
    /// The server has sent AUTH: AUTH is awaited.
    Authenticating,
    /// The CONNACK has been sent.
    Connected(Reauthentication),
    /// Over: nothing is processed or sent any more.
    Closed,
}

/// Where a re-authentication stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reauthentication {
    /// None is under way.
    Idle,
    /// The caller decides about an AUTH.
    Deciding,
    /// The server has sent AUTH: AUTH is awaited.
    Awaiting,
}

impl Connection {
    /// A connection that begins now and whose CONNECT is awaited on [`Lane::CONTROL`].
    #[must_use]
    pub fn new(limits: impl Into<Arc<Limits>>, now_ms: u64) -> Self {
        let limits = limits.into();
        Self {
            phase: Phase::Start,
            version: Version::V5,
            is_of_bridge: false,
            clean_start: true,
            wants_problem_information: true,
            wants_response_information: false,
            keep_alive_s: 0,
            session_expiry_s: 0,
            send_quota: limits.send_window.get(),
            limits,
            outgoing_alias_maximum: 0,
            client_max_packet_bytes: u32::MAX,
            unacknowledged_qos1: 0,
            last_received_ms: now_ms,
            authentication_method: None,
            incoming_aliases: None,
            outgoing_aliases: None,
        }
    }

    /// The Topic Name that an alias of the client stands for on a lane now.
    #[must_use]
    pub fn topic_of_alias(&self, lane: Lane, alias: u16) -> Option<&str> {
        self.incoming_aliases.as_ref()?.peek(lane, alias)
    }

    /// The version of the connection; 5.0 until a CONNECT has arrived.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Whether a CONNACK with success has been sent and the connection is not over.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected(_))
    }

    /// Whether the connection is over: by a violation, a refusal or a DISCONNECT of either end.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Whether bytes of this lane may be handed in now. Otherwise keep them (within a limit) until
    /// the CONNACK is sent. Clients may send packets right behind the CONNECT ([MQTT-3.1.4-6]).
    #[must_use]
    pub const fn accepts_input(&self, lane: Lane) -> bool {
        match self.phase {
            Phase::Start | Phase::Authenticating => lane.is_control(),
            Phase::Deciding => false,
            Phase::Connected(_) | Phase::Closed => true,
        }
    }

    /// Largest packet that is accepted now, for [`Framer::next`](crate::Framer::next).
    #[must_use]
    pub fn max_packet_bytes(&self) -> usize {
        self.limits.packet_bytes(self.is_connected())
    }

    /// The authentication method that the client named in its CONNECT.
    #[must_use]
    pub fn authentication_method(&self) -> Option<&str> {
        self.authentication_method
            .as_deref()
            .map(|method| &**method)
    }

    /// The Keep Alive time in force, in seconds; 0 if it is off.
    #[must_use]
    pub const fn keep_alive_s(&self) -> u16 {
        self.keep_alive_s
    }

    /// Checks the first byte of an incomplete packet ([`Framer::partial`](crate::Framer::partial)).
    /// So a packet that can only be refused is not waited for. Optional.
    ///
    /// # Errors
    ///
    /// The violation that the whole packet would be.
    pub fn check_partial(&mut self, lane: Lane, first_byte: u8) -> Result<(), Violation> {
        self.check_first_byte(lane, first_byte)
            .map_err(|error| self.fail(lane, error))
    }

    /// Decodes and handles one packet: [`Packet::decode`] and [`Connection::handle`] in one.
    ///
    /// # Errors
    ///
    /// As for [`Connection::handle`].
    #[inline]
    pub fn receive<'a>(
        &mut self,
        session: Option<&mut MqttSession>,
        lane: Lane,
        frame: &Frame<'a>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.receive_known(session, lane, frame, None, now_ms, out)
    }

    /// The same of a packet whose Topic Name need not be checked again: [`Frame::topic_if`] has found that it is one
    /// of an earlier PUBLISH. `None` for all others.
    ///
    /// # Errors
    ///
    /// As for [`Connection::handle`].
    #[inline]
    pub fn receive_known<'a>(
        &mut self,
        session: Option<&mut MqttSession>,
        lane: Lane,
        frame: &Frame<'a>,
        topic: Option<&'a str>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        // The most frequent packet does not go through the large `Packet`.
        if frame.first_byte() >> 4 == PacketType::Publish as u8
            && self.is_connected()
            && let Some(session) = session
        {
            self.last_received_ms = now_ms;
            return Publish::decode_known(frame.first_byte(), frame.body(), self.version, topic)
                .and_then(|publish| self.publish_received(session, lane, &publish))
                .map_err(|error| self.fail(lane, error));
        }
        if self.is_closed() {
            return Ok(None);
        }
        if matches!(self.phase, Phase::Start) {
            self.is_of_bridge = Connect::is_of_bridge(frame.body());
        }
        let decoded = self
            .check_first_byte(lane, frame.first_byte())
            .and_then(|()| Packet::decode(frame, self.version));
        match decoded {
            Ok(packet) => self.handle(session, lane, packet, now_ms, out),
            Err(error) => Err(self.fail(lane, error)),
        }
    }

    /// Handles one packet: checks that it may come now and keeps the protocol's state. It answers
    /// packets that need no decision, and returns an event for the others.
    ///
    /// `session` is the client's session from [`Connection::accept`] on; `None` if another connection has
    /// taken it over. Then, and after the end of the connection, nothing is processed and `None` returned.
    ///
    /// # Errors
    ///
    /// The first violation ends the connection (or the lane); hand it to
    /// [`Connection::violation`] and close.
    #[inline]
    pub fn handle<'a>(
        &mut self,
        session: Option<&mut MqttSession>,
        lane: Lane,
        packet: Packet<'a>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        // [MQTT-3.1.2-11] [MQTT-3.1.2-22] [MQTT311-3.1.2-24] any packet on any lane counts
        self.last_received_ms = now_ms;
        let handled = match self.phase {
            Phase::Connected(state) => match session {
                Some(session) => self.handle_connected(session, state, lane, packet, out),
                // Another connection has it. The caller is about to end this one, and says why.
                None => return Ok(None),
            },
            // [MQTT-3.14.4-1] [MQTT-4.13.1-1] [MQTT-3.1.4-6] [MQTT311-3.1.4-5] [MQTT311-3.14.4-1]
            // [MQTT311-3.14.4-2] [MQTT311-4.8.0-1] nothing is processed after the end
            Phase::Closed => return Ok(None),
            Phase::Start | Phase::Authenticating | Phase::Deciding => {
                self.handle_unconnected(lane, packet)
            }
        };
        handled.map_err(|error| self.fail(lane, error))
    }

    /// Bytes of a lane could not be cut or decoded: the violation that this is.
    pub fn decode_failed(&mut self, lane: Lane, error: DecodeError) -> Violation {
        self.fail(lane, error)
    }

    /// Input was not read until now, because the server could not: that was not the client's silence.
    pub const fn input_resumed(&mut self, now_ms: u64) {
        self.last_received_ms = now_ms;
    }

    /// Bytes of the Topic Names that aliases of either direction stand for.
    #[must_use]
    pub fn alias_bytes(&self) -> usize {
        let incoming = self
            .incoming_aliases
            .as_ref()
            .map_or(0, |aliases| aliases.topic_bytes());
        let outgoing = self
            .outgoing_aliases
            .as_ref()
            .map_or(0, |aliases| aliases.topic_bytes());
        incoming + outgoing
    }

    /// A lane other than control is lost, with its aliases. Messages received on it can be
    /// completed on any other.
    pub fn lane_closed(&mut self, session: Option<&mut MqttSession>, lane: Lane) {
        if let Some(aliases) = &mut self.incoming_aliases {
            aliases.lane_closed(lane);
        }
        if let Some(session) = session {
            session.lane_closed(lane);
        }
    }

    /// Time at which [`Connection::on_timeout`] is due, in milliseconds since the Unix epoch.
    /// `None` for never. One and a half times the Keep Alive time ends then, or the time for
    /// CONNECT and authentication.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let allowed_ms = match self.phase {
            Phase::Start | Phase::Authenticating => u64::from(self.limits.connect_timeout_ms),
            Phase::Connected(_) if self.keep_alive_s != 0 => u64::from(self.keep_alive_s) * 1500,
            Phase::Connected(_) | Phase::Deciding | Phase::Closed => return None,
        };
        Some(self.last_received_ms.saturating_add(allowed_ms))
    }

    /// Checks the time.
    ///
    /// # Errors
    ///
    /// The violation, if the deadline has passed without a packet.
    pub fn on_timeout(&mut self, now_ms: u64) -> Result<(), Violation> {
        if self
            .deadline_ms()
            .is_none_or(|deadline_ms| now_ms < deadline_ms)
        {
            return Ok(());
        }
        let detail = match self.phase {
            Phase::Start => "no CONNECT within the connect timeout",
            Phase::Authenticating => "no AUTH within the connect timeout",
            _ => "no packet within one and a half times the Keep Alive",
        };
        // [MQTT-3.1.2-11] [MQTT-3.1.2-22] [MQTT311-3.1.2-24]
        let error = DecodeError::new(ReasonCode::KeepAliveTimeout, detail);
        Err(self.fail(Lane::CONTROL, error))
    }

    /// The violation that an error is, given where the connection stands; the connection is over.
    pub(super) fn fail(&mut self, lane: Lane, error: DecodeError) -> Violation {
        let lane_only = self.limits.isolate_lanes && !lane.is_control() && self.is_connected();
        let answer = match self.phase {
            _ if lane_only => Answer::Nothing,
            // [MQTT-3.14.0-1] no DISCONNECT before a CONNACK
            Phase::Start => {
                self.version = error.connect_version.unwrap_or(self.version);
                connack_answer(error.connect_version, error.reason)
            }
            Phase::Deciding | Phase::Authenticating => {
                connack_answer(Some(self.version), error.reason)
            }
            // [MQTT-4.13.1-1]; older servers have no DISCONNECT
            Phase::Connected(_) if self.version.is_v5() => Answer::Disconnect,
            Phase::Connected(_) | Phase::Closed => Answer::Nothing,
        };
        let scope = if lane_only {
            Scope::Lane(lane)
        } else {
            self.phase = Phase::Closed;
            Scope::Connection
        };
        Violation {
            reason: error.reason,
            detail: error.detail,
            answer,
            scope,
        }
    }

    /// Checks the first byte of a packet: its type, and whether it may come now and here.
    fn check_first_byte(&self, lane: Lane, first_byte: u8) -> Result<(), DecodeError> {
        let Some(packet_type) = PacketType::from_first_byte(first_byte) else {
            return Err(DecodeError::malformed("packet type 0 is reserved"));
        };
        match self.phase {
            // [MQTT-3.1.0-1] [MQTT311-3.1.0-1]
            Phase::Start if packet_type != PacketType::Connect => {
                return Err(DecodeError::protocol("the first packet is not CONNECT"));
            }
            // [MQTT-3.1.0-2] [MQTT311-3.1.0-2]
            Phase::Connected(_) | Phase::Authenticating | Phase::Deciding
                if packet_type == PacketType::Connect =>
            {
                return Err(DecodeError::protocol("second CONNECT"));
            }
            _ => {}
        }
        let control_only = matches!(
            packet_type,
            PacketType::Connect | PacketType::Disconnect | PacketType::Auth
        );
        if control_only && !lane.is_control() {
            return Err(DecodeError::protocol(
                "CONNECT, AUTH or DISCONNECT on a data stream",
            ));
        }
        if !packet_type.is_sent_by_client() {
            return Err(DecodeError::protocol("packet of a server"));
        }
        Ok(())
    }

    fn handle_unconnected<'a>(
        &mut self,
        lane: Lane,
        packet: Packet<'a>,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        self.check_first_byte(lane, packet.packet_type().first_byte())?;
        match (self.phase, packet) {
            (Phase::Start, Packet::Connect(connect)) => {
                self.connect(&connect)
                    .map_err(|e| e.in_connect(connect.version))?;
                Ok(Some(Event::Connect(connect)))
            }
            (Phase::Authenticating, Packet::Auth(auth)) => {
                self.check_auth(&auth, ReasonCode::ContinueAuthentication)?;
                self.phase = Phase::Deciding;
                Ok(Some(Event::Auth(auth)))
            }
            (Phase::Authenticating, Packet::Disconnect(disconnect)) => {
                self.disconnected(disconnect).map(Some)
            }
            // [MQTT-3.1.2-30]
            (Phase::Authenticating, _) => Err(DecodeError::protocol(
                "packet other than AUTH during authentication",
            )),
            _ => Err(DecodeError::protocol("packet before the CONNACK")),
        }
    }

    fn connect(&mut self, connect: &Connect<'_>) -> Result<(), DecodeError> {
        self.phase = Phase::Deciding;
        self.version = connect.version;
        self.clean_start = connect.clean_start;
        self.keep_alive_s = connect.keep_alive_s;
        self.session_expiry_s = connect.session_expiry_s();
        // [MQTT-3.1.2-2] [MQTT311-3.1.2-2]
        if connect.version < self.limits.min_version {
            return Err(DecodeError::new(
                ReasonCode::UnsupportedProtocolVersion,
                "protocol version is not served",
            ));
        }
        // [MQTT-3.1.3-4] [MQTT-3.1.3-6] [MQTT311-3.1.3-6]
        // [MQTT311-3.1.3-7] [MQTT311-3.1.3-8] [MQTT311-3.1.3-9]; MQTT 3.1 has no empty Client Identifiers
        let may_be_empty = match connect.version {
            Version::V31 => false,
            Version::V311 => connect.clean_start,
            Version::V5 => true,
        };
        if connect.client_id.is_empty() && !may_be_empty {
            return Err(DecodeError::new(
                ReasonCode::ClientIdentifierNotValid,
                "empty Client Identifier",
            ));
        }
        if let Some(will) = &connect.will {
            // [MQTT-3.2.2-12]
            if will.qos > self.limits.maximum_qos {
                return Err(DecodeError::new(
                    ReasonCode::QoSNotSupported,
                    "QoS of the will is not supported",
                ));
            }
            // [MQTT-3.2.2-13]
            if will.retain && !self.limits.features.contains(Features::RETAIN) {
                return Err(DecodeError::new(
                    ReasonCode::RetainNotSupported,
                    "retained messages are not supported",
                ));
            }
        }
        for property in connect.properties {
            match property {
                Property::ReceiveMaximum(v) => self.send_quota = self.send_quota.min(v),
                Property::MaximumPacketSize(v) => self.client_max_packet_bytes = v,
                Property::TopicAliasMaximum(v) => {
                    self.outgoing_alias_maximum = v.min(self.limits.outgoing_topic_aliases);
                }
                Property::RequestProblemInformation(v) => self.wants_problem_information = v,
                Property::RequestResponseInformation(v) => self.wants_response_information = v,
                Property::AuthenticationMethod(v) => {
                    self.authentication_method = Some(Box::new(Box::from(v)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn handle_connected<'a>(
        &mut self,
        session: &mut MqttSession,
        state: Reauthentication,
        lane: Lane,
        packet: Packet<'a>,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        match packet {
            Packet::Publish(publish) => self.publish_received(session, lane, &publish),
            Packet::PubAck(ack) => match session.puback(ack.packet_id) {
                Ok(tag) => Ok(Some(Event::Delivered {
                    tag,
                    reason: ack.reason,
                })),
                // No error: the identifier may be of a connection before.
                Err(AckError::Unknown) => Ok(None),
                Err(AckError::Unexpected) => Err(DecodeError::protocol("PUBACK out of order")),
            },
            Packet::PubRec(ack) => Self::pubrec_received(session, lane, &ack),
            Packet::PubRel(ack) => Self::pubrel_received(session, lane, &ack),
            Packet::PubComp(ack) => match session.pubcomp(ack.packet_id) {
                Ok(tag) => Ok(Some(Event::Delivered {
                    tag,
                    reason: ack.reason,
                })),
                Err(AckError::Unknown) => Ok(None),
                Err(AckError::Unexpected) => Err(DecodeError::protocol("PUBCOMP out of order")),
            },
            Packet::Subscribe(subscribe) => {
                self.check_subscribe(&subscribe)?;
                let subscribe = if self.is_of_bridge {
                    subscribe.of_bridge()
                } else {
                    subscribe
                };
                Ok(Some(Event::Subscribe(subscribe)))
            }
            Packet::Unsubscribe(unsubscribe) => Ok(Some(Event::Unsubscribe(unsubscribe))),
            Packet::PingReq => {
                // [MQTT-3.12.4-1] [MQTT311-3.12.4-1] on the lane that asks
                let pong = [PacketType::PingResp.first_byte(), 0];
                if pong.len() <= self.client_max() {
                    out.buffer(lane.reply()).extend_from_slice(&pong);
                }
                session.compact();
                Ok(None)
            }
            Packet::Disconnect(disconnect) => {
                self.check_first_byte(lane, PacketType::Disconnect.first_byte())?;
                self.disconnected(disconnect).map(Some)
            }
            Packet::Auth(auth) => {
                self.check_first_byte(lane, PacketType::Auth.first_byte())?;
                let awaited = match state {
                    Reauthentication::Idle => ReasonCode::ReAuthenticate,
                    Reauthentication::Awaiting => ReasonCode::ContinueAuthentication,
                    Reauthentication::Deciding => {
                        return Err(DecodeError::protocol("AUTH before the answer to another"));
                    }
                };
                self.check_auth(&auth, awaited)?;
                self.phase = Phase::Connected(Reauthentication::Deciding);
                Ok(Some(Event::Auth(auth)))
            }
            // [MQTT-3.1.0-2] [MQTT311-3.1.0-2]
            Packet::Connect(_) => Err(DecodeError::protocol("second CONNECT")),
            Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::PingResp => {
                Err(DecodeError::protocol("packet of a server"))
            }
        }
    }

    #[expect(
        clippy::inline_always,
        reason = "most packets; otherwise their parts are moved twice"
    )]
    #[inline(always)]
    fn publish_received<'a>(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        publish: &Publish<'a>,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        // [MQTT-3.2.2-11]
        if publish.qos > self.limits.maximum_qos {
            return Err(DecodeError::new(
                ReasonCode::QoSNotSupported,
                "QoS is not supported",
            ));
        }
        // [MQTT-3.2.2-14]
        if publish.retain && !self.limits.features.contains(Features::RETAIN) {
            return Err(DecodeError::new(
                ReasonCode::RetainNotSupported,
                "retained messages are not supported",
            ));
        }
        // [MQTT-3.3.4-6]
        if publish.properties.has_subscription_identifier() {
            return Err(DecodeError::protocol(
                "Subscription Identifier in a client's PUBLISH",
            ));
        }
        let topic = match publish.properties.topic_alias() {
            None => TopicName::Literal(publish.topic),
            Some(alias) => self.incoming_aliases.get_or_insert_default().resolve(
                lane,
                publish.topic,
                alias,
                self.limits.topic_alias_maximum,
                self.limits.max_alias_topic_bytes as usize,
            )?,
        };
        let (mut received, mut displaced) = (None, None);
        if let Some(packet_id) = publish.packet_id {
            match publish.qos {
                QoS::AtMostOnce => {}
                QoS::AtLeastOnce => {
                    // [MQTT-4.3.2-5] [MQTT311-4.3.2-2] always a new message
                    self.check_receive_maximum(session, 1)?;
                    self.unacknowledged_qos1 += 1;
                }
                QoS::ExactlyOnce => {
                    let (retain, properties) = (publish.retain, &publish.properties);
                    let content = Content::of(&topic, retain, properties, publish.payload);
                    match session.receive(lane, packet_id, publish.dup, content) {
                        Received::New(id) => received = Some(id),
                        // [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT311-4.3.3-2]
                        Received::Repeated => return Ok(Some(Event::Repeated { packet_id })),
                        Received::Pending => return Ok(None),
                    }
                    if session.incoming_len() > self.limits.max_incoming_ids as usize {
                        // Some clients forget a stream's messages with it, and use its identifiers again.
                        displaced = session.displace_received(packet_id);
                    }
                    if let Err(error) = self.check_receive_maximum(session, 0) {
                        // It was not handed on: when it is repeated it is still new.
                        session.forget_received(lane, packet_id);
                        return Err(error);
                    }
                }
            }
        }
        Ok(Some(Event::Publish(IncomingPublish {
            topic,
            qos: publish.qos,
            retain: publish.retain,
            packet_id: publish.packet_id,
            received,
            displaced,
            properties: publish.properties,
            payload: publish.payload,
        })))
    }

    /// Checks the Receive Maximum with `more` messages than are counted now.
    fn check_receive_maximum(&self, session: &MqttSession, more: usize) -> Result<(), DecodeError> {
        // [MQTT-3.3.4-8] [MQTT-4.9.0-1]
        let in_flight = self.unacknowledged_qos1 as usize + session.incoming_in_flight() + more;
        let exceeded = (self.version.is_v5()
            && in_flight > usize::from(self.limits.receive_maximum.get()))
            || session.incoming_len() > self.limits.max_incoming_ids as usize;
        if exceeded {
            return Err(DecodeError::new(
                ReasonCode::ReceiveMaximumExceeded,
                "more unacknowledged messages than Receive Maximum",
            ));
        }
        Ok(())
    }

    fn pubrec_received<'a>(
        session: &mut MqttSession,
        lane: Lane,
        ack: &Ack<'_>,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        let packet_id = ack.packet_id;
        let (tag, reason) = match session.pubrec(packet_id, ack.reason) {
            // [MQTT-4.4.0-2] [MQTT-4.8.2-6]
            Ok((tag, _)) if ack.reason.is_error() => {
                return Ok(Some(Event::Delivered {
                    tag,
                    reason: ack.reason,
                }));
            }
            Ok((tag, first)) => {
                session.sent_on(packet_id, lane.reply());
                (first.then_some(tag), ReasonCode::Success)
            }
            Err(AckError::Unknown) if ack.reason.is_error() => return Ok(None),
            Err(AckError::Unknown) => (None, ReasonCode::PacketIdentifierNotFound),
            Err(AckError::Unexpected) => return Err(DecodeError::protocol("PUBREC out of order")),
        };
        Ok(Some(Event::HandedOver {
            tag,
            packet_id,
            reason,
        }))
    }

    fn pubrel_received<'a>(
        session: &mut MqttSession,
        lane: Lane,
        ack: &Ack<'_>,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        let packet_id = ack.packet_id;
        let (received, reason) = match session.release(lane, packet_id) {
            Some((received, true)) => (Some(received), ReasonCode::Success),
            Some((_, false)) => return Err(DecodeError::protocol("PUBREL before PUBREC")),
            None => (None, ReasonCode::PacketIdentifierNotFound),
        };
        Ok(Some(Event::Released {
            packet_id,
            received,
            reason,
        }))
    }

    /// Section 3.2.2.3: features that the CONNACK declared unavailable.
    fn check_subscribe(&self, subscribe: &Subscribe<'_>) -> Result<(), DecodeError> {
        // [MQTT-3.2.2-9] any QoS may be requested, with any Maximum QoS
        let features = self.limits.features;
        if features == Features::ALL {
            return Ok(());
        }
        if !features.contains(Features::IDENTIFIERS) && subscribe.identifier().is_some() {
            return Err(DecodeError::new(
                ReasonCode::SubscriptionIdentifiersNotSupported,
                "Subscription Identifiers are not supported",
            ));
        }
        for (filter, _) in subscribe.filters() {
            let shared = self.version.is_v5() && topic::is_shared(filter);
            if shared && !features.contains(Features::SHARED) {
                return Err(DecodeError::new(
                    ReasonCode::SharedSubscriptionsNotSupported,
                    "shared subscriptions are not supported",
                ));
            }
            // [MQTT-3.2.2-21] [MQTT311-3.8.3-2]
            if !features.contains(Features::WILDCARDS) && topic::has_wildcard(filter) {
                return Err(DecodeError::new(
                    ReasonCode::WildcardSubscriptionsNotSupported,
                    "wildcards are not supported",
                ));
            }
        }
        Ok(())
    }

    fn check_auth(&self, auth: &Auth<'_>, awaited: ReasonCode) -> Result<(), DecodeError> {
        // [MQTT-4.12.0-7]
        let Some(method) = self.authentication_method() else {
            return Err(DecodeError::protocol(
                "AUTH without a method in the CONNECT",
            ));
        };
        // [MQTT-3.15.2-1]
        if auth.reason != awaited {
            return Err(DecodeError::protocol(
                "AUTH with a reason that is not awaited",
            ));
        }
        // [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        if auth.properties.authentication_method() != Some(method) {
            return Err(DecodeError::protocol(
                "AUTH with another method than the CONNECT",
            ));
        }
        Ok(())
    }

    fn disconnected<'a>(&mut self, disconnect: Disconnect<'a>) -> Result<Event<'a>, DecodeError> {
        // [MQTT-3.14.2-1]
        if !disconnect.reason.is_disconnect_by_client() {
            return Err(DecodeError::protocol(
                "reason code of a server's DISCONNECT",
            ));
        }
        // Section 3.14.2.2.2
        if self.session_expiry_s == 0 && disconnect.session_expiry_s().unwrap_or(0) != 0 {
            return Err(DecodeError::protocol(
                "Session Expiry Interval in DISCONNECT after zero in CONNECT",
            ));
        }
        self.phase = Phase::Closed;
        Ok(Event::Disconnect(disconnect))
    }

    /// Writes one of the four acknowledgements on the lane that answers `lane`.
    pub(super) fn acknowledge(
        &self,
        packet_type: PacketType,
        ack: &Ack<'_>,
        lane: Lane,
        out: &mut impl LaneWriter,
    ) {
        // Neither Reason String nor User Properties: [MQTT-3.1.2-29] [MQTT-3.4.2-2] [MQTT-3.4.2-3]
        // [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3].
        // A packet that the client does not take is treated as sent: [MQTT-3.1.2-25].
        let _ = encode_ack(
            packet_type,
            ack,
            self.version,
            self.client_max_packet_bytes as usize,
            out.buffer(lane.reply()),
        );
    }
}

/// The CONNACK that an error before the CONNACK is answered with, if any.
fn connack_answer(version: Option<Version>, reason: ReasonCode) -> Answer {
    match version {
        Some(Version::V5) => Answer::ConnAck(Version::V5),
        // [MQTT311-3.2.2-6]
        Some(version) if reason.for_v3_connack().is_some() => Answer::ConnAck(version),
        _ => Answer::Nothing,
    }
}
