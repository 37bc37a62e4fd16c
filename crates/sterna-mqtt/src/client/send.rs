//! Packets that the client sends of its own accord.

use std::error::Error;
use std::fmt;

use bytes::BytesMut;

use super::connection::{Connection, State};
use crate::alias::AliasUse;
use crate::packet::{
    Ack, Auth, Disconnect, Publish, SubscribeOptions, encode_ack, encode_subscribe,
    encode_unsubscribe,
};
use crate::session::{AwaitedAck, Stage};
use crate::{
    DecodeError, EncodeError, Lane, MAX_PACKET_BYTES, MqttSession, PacketId, PacketType,
    Properties, Property, PropertyBuf, PropertyContext, PublishProperties, QoS, ReasonCode, topic,
};

/// Most requests (SUBSCRIBE, UNSUBSCRIBE) that wait for their answers.
const MAX_REQUESTS: usize = 1_024;

/// Most Topic Aliases that a client sets, with any limit of the server.
const MAX_ALIASES: u16 = 256;

/// Bytes of Topic Names that the client's Topic Aliases may occupy.
const MAX_ALIAS_TOPIC_BYTES: usize = 64 << 10;

/// Tag of identifiers that no message of the caller has.
const NO_TAG: u64 = u64::MAX;

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    /// Topic Name.
    pub topic: &'a str,
    /// The application's data.
    pub payload: &'a [u8],
    /// QoS.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Properties, without Topic Alias and Subscription Identifier; not sent before MQTT 5.0.
    pub properties: Properties<'a>,
}

/// Why something was not sent. Nothing was written, nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The connection is at its end, or authentication was not negotiated.
    Closed,
    /// The message has to wait. Try again after an answer of the server.
    Later,
    /// The server has declared that it does not support this. The code is that of its answer.
    Unsupported(ReasonCode),
    /// Too large for the server or for the protocol.
    Encode(EncodeError),
    /// The message is invalid.
    Invalid(DecodeError),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection is closed"),
            Self::Later => f.write_str("not before the server has answered"),
            Self::Unsupported(reason) => {
                write!(
                    f,
                    "the server doesn't take it: {} (0x{:02x})",
                    reason.name(),
                    *reason as u8
                )
            }
            Self::Encode(error) => error.fmt(f),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl Error for SendError {}

impl From<EncodeError> for SendError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

impl From<DecodeError> for SendError {
    fn from(error: DecodeError) -> Self {
        Self::Invalid(error)
    }
}

impl Connection {
    /// Whether anything but AUTH and DISCONNECT may be sent now.
    fn check_open(&self) -> Result<(), SendError> {
        match self.state {
            State::Connecting if self.early_room_bytes == 0 => Err(SendError::Later),
            State::Connecting | State::Connected => Ok(()),
            State::Closed => Err(SendError::Closed),
        }
    }

    /// Counts bytes that were sent before the CONNACK.
    fn count_early(&mut self, sent_bytes: usize) {
        if self.state == State::Connecting {
            self.early_room_bytes = self.early_room_bytes.saturating_sub(sent_bytes);
            self.sent_early = true;
        }
    }

    /// The largest packet that may be sent now. A packet that does not fit before the CONNACK waits
    /// for it.
    fn check_size(&self, error: EncodeError) -> SendError {
        match error {
            EncodeError::TooLarge { .. } if self.state == State::Connecting => SendError::Later,
            error => SendError::Encode(error),
        }
    }

    /// The server does not support this or, before the CONNACK, did not the last time.
    fn unsupported(&self, reason: ReasonCode) -> SendError {
        match self.state {
            State::Connecting => SendError::Later,
            _ => SendError::Unsupported(reason),
        }
    }

    fn room_bytes(&self) -> usize {
        // [MQTT-3.2.2-15]
        match self.state {
            State::Connecting => self.early_room_bytes.min(self.limits.max_packet_bytes),
            _ => self.limits.max_packet_bytes,
        }
    }

    /// Whether the server's Receive Maximum leaves room for a message with this QoS, and there is
    /// an identifier for it.
    #[must_use]
    pub fn has_room(&self, session: &MqttSession, qos: QoS) -> bool {
        match qos {
            QoS::AtMostOnce => true,
            QoS::AtLeastOnce => self.has_window(session),
            // A message that the server does not take fails at once.
            QoS::ExactlyOnce => {
                self.has_window(session)
                    && (session.has_identifier() || self.limits.max_qos < QoS::ExactlyOnce)
            }
        }
    }

    fn has_window(&self, session: &MqttSession) -> bool {
        // [MQTT-4.9.0-1] [MQTT-4.9.0-2]
        session.in_flight() < usize::from(self.limits.receive_maximum)
    }

    /// As [`Connection::has_room`]. In an inherited session without an identifier for QoS 2 it has
    /// the server release some: their PUBRELs are written to `control`, the control lane. Ask again
    /// after each packet of the server.
    pub fn make_room(
        &mut self,
        session: &mut MqttSession,
        qos: QoS,
        control: &mut BytesMut,
    ) -> bool {
        if self.has_room(session, qos) {
            return true;
        }
        // Early, the server may have no session at all.
        let may_ask = self.state == State::Connected && self.has_window(session);
        if qos == QoS::ExactlyOnce && may_ask && !session.has_resends() {
            let most = usize::from(self.limits.receive_maximum);
            for packet_id in session.ask_for_identifiers(NO_TAG, most) {
                self.release_again(packet_id, control);
            }
        }
        false
    }

    /// Publishes a message on `lane`, whose buffer is `out`. `tag` is the caller's name of the
    /// message, and comes back with [`Event::Delivered`](super::Event::Delivered). With QoS 1 and 2
    /// the caller keeps the message until then, or until
    /// [`Event::HandedOver`](super::Event::HandedOver).
    ///
    /// # Errors
    ///
    /// [`SendError::Later`] if the server's Receive Maximum is reached, there is no identifier
    /// ([`Connection::make_room`]), or older messages are yet to be sent again. Also before the
    /// CONNACK. With other errors the message can never be sent on this connection.
    pub fn publish(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        publication: &Publication<'_>,
        tag: u64,
        out: &mut BytesMut,
    ) -> Result<Option<PacketId>, SendError> {
        self.check_open()?;
        self.check_supported(publication)?;
        // [MQTT-4.6.0-1]: what was sent before comes first again.
        if session.has_resends() || !self.has_room(session, publication.qos) {
            return Err(SendError::Later);
        }
        let packet_id = match publication.qos {
            QoS::AtMostOnce => None,
            // [MQTT-2.2.1-3] [MQTT-4.3.2-1] [MQTT-4.3.3-1]
            QoS::AtLeastOnce => Some(
                session
                    .allocate(tag, Stage::PublishQoS1)
                    .ok_or(SendError::Later)?,
            ),
            QoS::ExactlyOnce => Some(
                session
                    .allocate(tag, Stage::PublishQoS2)
                    .ok_or(SendError::Later)?,
            ),
        };
        let before = out.len();
        // [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2] without the DUP flag
        let written = self.write_publish(lane, publication, packet_id, false, out);
        if let Err(error) = written {
            if let Some(packet_id) = packet_id {
                session.take_back(packet_id);
            }
            return Err(error);
        }
        self.count_early(out.len() - before);
        Ok(packet_id)
    }

    /// Whether the server takes such a message, by its CONNACK; before that, by the one of an earlier connection.
    ///
    /// # Errors
    ///
    /// [`SendError::Unsupported`] where it does not, [`SendError::Later`] before the CONNACK. Otherwise the topic is not valid.
    pub fn check_supported(&self, publication: &Publication<'_>) -> Result<(), SendError> {
        // [MQTT-3.2.2-11]
        if publication.qos > self.limits.max_qos {
            return Err(self.unsupported(ReasonCode::QoSNotSupported));
        }
        // [MQTT-3.2.2-14]
        if publication.retain && !self.limits.retain {
            return Err(self.unsupported(ReasonCode::RetainNotSupported));
        }
        // [MQTT-3.3.2-2] [MQTT-4.7.3-1]
        topic::check_name(publication.topic).map_err(|error| DecodeError::from(error).into())
    }

    fn write_publish(
        &mut self,
        lane: Lane,
        publication: &Publication<'_>,
        packet_id: Option<PacketId>,
        dup: bool,
        out: &mut BytesMut,
    ) -> Result<(), SendError> {
        let properties = own_properties(publication)?;
        let mut publish = Publish {
            dup,
            qos: publication.qos,
            retain: publication.retain,
            topic: publication.topic,
            packet_id,
            properties,
            payload: publication.payload,
        };
        let room_bytes = self.room_bytes();
        // [MQTT-3.2.2-17] [MQTT-3.2.2-18] [MQTT-3.3.2-9]. Lanes are not ordered among each other,
        // so only one of them can use aliases.
        let choice = if lane.is_control() {
            let maximum = self.limits.topic_alias_maximum.min(MAX_ALIASES);
            self.aliases
                .choose(publication.topic.as_bytes(), maximum, MAX_ALIAS_TOPIC_BYTES)
        } else {
            AliasUse::Name
        };
        let (alias, set) = match choice {
            AliasUse::Name => {
                return publish
                    .encode(self.version, room_bytes, out)
                    .map_err(|error| self.check_size(error));
            }
            AliasUse::Set(alias) => (alias, true),
            AliasUse::Alias(alias) => (alias, false),
        };
        let mut with_alias = PropertyBuf::new();
        with_alias.extend(publication.properties);
        with_alias.push(Property::TopicAlias(alias))?;
        publish.properties = with_alias.publish_properties(PropertyContext::Publish)?;
        if !set {
            publish.topic = "";
        }
        publish
            .encode(self.version, room_bytes, out)
            .map_err(|error| self.check_size(error))?;
        if set {
            self.aliases.set(publication.topic.as_bytes(), alias);
        }
        Ok(())
    }

    /// The next message of an earlier connection that has to be sent again, with its tag. PUBRELs
    /// before it are written to `out`. `None` if all are sent, or if the server's Receive Maximum
    /// is reached: ask again after each acknowledgement. Follow it with [`Connection::resend`], or
    /// with [`Connection::give_up`].
    pub fn next_resend(
        &mut self,
        session: &mut MqttSession,
        out: &mut BytesMut,
    ) -> Option<AwaitedAck> {
        if self.state != State::Connected {
            return None;
        }
        // [MQTT-4.4.0-1]: now and never else
        loop {
            let outgoing = session.next_resend()?;
            match outgoing.stage {
                Stage::Release => {
                    // [MQTT-4.3.3-6]: never the PUBLISH again
                    let ack = Ack::new(outgoing.packet_id, ReasonCode::Success);
                    let _ = encode_ack(
                        PacketType::PubRel,
                        &ack,
                        self.version,
                        MAX_PACKET_BYTES,
                        out,
                    );
                    session.mark_resent(outgoing.packet_id);
                }
                Stage::PublishQoS1 | Stage::PublishQoS2 => {
                    return self.has_room(session, QoS::AtLeastOnce).then_some(outgoing);
                }
                // Requests end with their connection, so the session has none to repeat.
                Stage::Subscribe | Stage::Unsubscribe => {
                    session.forget_outgoing(outgoing.packet_id);
                }
            }
        }
    }

    /// Sends a message again that [`Connection::next_resend`] asked for, on the control lane.
    ///
    /// # Errors
    ///
    /// When the server of this connection takes less than the one before: it will never be sent, so
    /// call [`Connection::give_up`].
    pub fn resend(
        &mut self,
        session: &mut MqttSession,
        outgoing: AwaitedAck,
        publication: &Publication<'_>,
        out: &mut BytesMut,
    ) -> Result<(), SendError> {
        self.check_supported(publication)?;
        // [MQTT-3.3.1-1]
        let packet_id = Some(outgoing.packet_id);
        self.write_publish(Lane::CONTROL, publication, packet_id, true, out)?;
        session.mark_resent(outgoing.packet_id);
        Ok(())
    }

    /// Gives a message up that was sent and will not be sent again. The server may have it: with QoS
    /// 2, PUBREL makes it forget, so that it takes no later message for a repetition of this one.
    pub fn give_up(&self, session: &mut MqttSession, outgoing: AwaitedAck, out: &mut BytesMut) {
        if outgoing.stage == Stage::PublishQoS2
            && session
                .pubrec(outgoing.packet_id, ReasonCode::Success)
                .is_ok()
        {
            self.release_again(outgoing.packet_id, out);
        } else {
            session.forget_outgoing(outgoing.packet_id);
        }
    }

    /// Subscribes. `tag` comes back with [`Event::Subscribed`](super::Event::Subscribed).
    ///
    /// Never held back by the Receive Maximum ([MQTT-3.3.4-9], [MQTT-4.9.0-3]).
    ///
    /// # Errors
    ///
    /// [`SendError::Later`] if it is too early or too many requests are unanswered. Otherwise the
    /// server does not support the request, or a filter is not valid.
    pub fn subscribe<'f>(
        &mut self,
        session: &mut MqttSession,
        filters: impl Iterator<Item = (&'f str, SubscribeOptions)> + Clone,
        properties: Properties<'_>,
        tag: u64,
        out: &mut BytesMut,
    ) -> Result<PacketId, SendError> {
        self.check_open()?;
        let mut count = 0;
        for (filter, options) in filters.clone() {
            self.check_filter(filter)?;
            // [MQTT-3.8.3-4]
            if options.no_local && topic::is_shared(filter) {
                return Err(SendError::Invalid(DecodeError::protocol(
                    "No Local with a shared subscription",
                )));
            }
            count += 1;
        }
        // Section 3.2.2.3.12
        let has_identifier = properties
            .find(|property| matches!(property, Property::SubscriptionIdentifier(_)).then_some(()));
        if has_identifier.is_some() && !self.limits.subscription_identifiers {
            return Err(self.unsupported(ReasonCode::SubscriptionIdentifiersNotSupported));
        }
        let packet_id = self.begin_request(session, tag, Stage::Subscribe, count)?;
        let before = out.len();
        let (version, room_bytes) = (self.version, self.room_bytes());
        let written = encode_subscribe(version, packet_id, properties, filters, room_bytes, out);
        self.end_request(session, packet_id, count, written, out.len() - before)
    }

    /// Unsubscribes. `tag` comes back with [`Event::Unsubscribed`](super::Event::Unsubscribed).
    ///
    /// # Errors
    ///
    /// As for [`Connection::subscribe`].
    pub fn unsubscribe<'f>(
        &mut self,
        session: &mut MqttSession,
        filters: impl Iterator<Item = &'f str> + Clone,
        properties: Properties<'_>,
        tag: u64,
        out: &mut BytesMut,
    ) -> Result<PacketId, SendError> {
        self.check_open()?;
        let mut count = 0;
        for filter in filters.clone() {
            check_syntax(filter)?;
            count += 1;
        }
        let packet_id = self.begin_request(session, tag, Stage::Unsubscribe, count)?;
        let before = out.len();
        let (version, room_bytes) = (self.version, self.room_bytes());
        let written = encode_unsubscribe(version, packet_id, properties, filters, room_bytes, out);
        self.end_request(session, packet_id, count, written, out.len() - before)
    }

    fn begin_request(
        &self,
        session: &mut MqttSession,
        tag: u64,
        stage: Stage,
        filters: usize,
    ) -> Result<PacketId, SendError> {
        // [MQTT-3.8.3-2] [MQTT-3.8.3-3] [MQTT-3.10.3-2]
        if filters == 0 {
            return Err(SendError::Invalid(DecodeError::protocol("no Topic Filter")));
        }
        if self.requests.len() >= MAX_REQUESTS {
            return Err(SendError::Later);
        }
        // [MQTT-2.2.1-3]
        session.allocate(tag, stage).ok_or(SendError::Later)
    }

    fn end_request(
        &mut self,
        session: &mut MqttSession,
        packet_id: PacketId,
        filters: usize,
        written: Result<(), EncodeError>,
        sent_bytes: usize,
    ) -> Result<PacketId, SendError> {
        if let Err(error) = written {
            session.forget_outgoing(packet_id);
            return Err(self.check_size(error));
        }
        self.requests.insert(packet_id, filters);
        self.count_early(sent_bytes);
        Ok(packet_id)
    }

    /// Continues an authentication, at [`Event::Challenge`](super::Event::Challenge).
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] when no authentication is under way.
    pub fn authenticate(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), SendError> {
        if self.state == State::Closed || (self.state == State::Connected && !self.reauthenticating)
        {
            return Err(SendError::Closed);
        }
        self.write_auth(ReasonCode::ContinueAuthentication, data, out)
    }

    /// Starts a re-authentication (MQTT 5.0 section 4.12.1), with the method of the CONNECT
    /// and the method's first data.
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] when there is no connection or the CONNECT had no method;
    /// [`SendError::Later`] when one is under way.
    pub fn reauthenticate(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), SendError> {
        if self.state != State::Connected {
            return Err(SendError::Closed);
        }
        if self.reauthenticating {
            return Err(SendError::Later);
        }
        self.write_auth(ReasonCode::ReAuthenticate, data, out)?;
        self.reauthenticating = true;
        Ok(())
    }

    fn write_auth(
        &self,
        reason: ReasonCode,
        data: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), SendError> {
        // [MQTT-4.12.0-7]
        let method = self.auth_method.as_deref().ok_or(SendError::Closed)?;
        // [MQTT-3.15.2-1] [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthenticationMethod(method))?;
        if !data.is_empty() {
            properties.push(Property::AuthenticationData(data))?;
        }
        let auth = Auth {
            reason,
            properties: properties.properties(),
        };
        Ok(auth.encode(self.limits.max_packet_bytes, out)?)
    }

    /// Ends the connection in order. Close the network connection next ([MQTT-3.14.4-2]).
    ///
    /// # Errors
    ///
    /// [`SendError::Closed`] when it has ended before; [`SendError::Invalid`] for a Session Expiry
    /// Interval where the CONNECT had none (section 3.14.2.2.2).
    pub fn disconnect(
        &mut self,
        disconnect: &Disconnect<'_>,
        out: &mut BytesMut,
    ) -> Result<(), SendError> {
        if self.state == State::Closed {
            return Err(SendError::Closed);
        }
        if self.session_expiry_s == 0 && disconnect.session_expiry_s().is_some_and(|s| s > 0) {
            return Err(SendError::Invalid(DecodeError::protocol(
                "Session Expiry Interval where the CONNECT had none",
            )));
        }
        // [MQTT-3.14.2-3] [MQTT-3.14.2-4]: rather without properties than not at all
        let max_bytes = self.limits.max_packet_bytes;
        disconnect
            .encode(self.version, max_bytes, out)
            .or_else(|_| Disconnect::new(disconnect.reason).encode(self.version, max_bytes, out))?;
        // [MQTT-3.14.4-1]
        self.state = State::Closed;
        Ok(())
    }

    fn check_filter(&self, filter: &str) -> Result<(), SendError> {
        check_syntax(filter)?;
        // [MQTT-3.2.2-21]
        if !self.limits.wildcards && topic::has_wildcard(filter) {
            return Err(self.unsupported(ReasonCode::WildcardSubscriptionsNotSupported));
        }
        // Section 3.2.2.3.13
        if !self.limits.shared_subscriptions && topic::is_shared(filter) {
            return Err(self.unsupported(ReasonCode::SharedSubscriptionsNotSupported));
        }
        Ok(())
    }
}

/// The properties of a message to publish.
pub(super) fn own_properties<'a>(
    publication: &Publication<'a>,
) -> Result<PublishProperties<'a>, SendError> {
    let properties =
        PublishProperties::parse(publication.properties.raw(), PropertyContext::Publish)?;
    // [MQTT-3.3.4-6]; aliases are the connection's own business
    if properties.topic_alias().is_some() || properties.subscription_identifiers().count() > 0 {
        return Err(SendError::Invalid(DecodeError::protocol(
            "Topic Alias or Subscription Identifier in a message to publish",
        )));
    }
    Ok(properties)
}

fn check_syntax(filter: &str) -> Result<(), SendError> {
    // [MQTT-3.8.3-1] [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.8.2-1] [MQTT-4.8.2-2]
    topic::check_any_filter(filter).map_err(|error| DecodeError::from(error).into())
}
