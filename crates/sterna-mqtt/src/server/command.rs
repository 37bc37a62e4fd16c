//! The server's packets: CONNACK, acknowledgements, DISCONNECT.

use bytes::BytesMut;

use super::connection::{Phase, Reauthentication};
use super::{Connection, Features};
use crate::packet::{Ack, Auth, ConnAck, Disconnect, encode_ack, encode_suback, encode_unsuback};
use crate::{
    Answer, EncodeError, Lane, LaneWriter, MAX_PACKET_BYTES, MqttSession, PacketId, PacketType,
    Properties, Property, PropertyBuf, QoS, ReasonCode, Version, Violation,
};

/// Fields of a CONNACK with success, beyond the limits of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Accept<'a> {
    /// Whether the session existed. Ignored (as false) if the client asked for a clean start.
    pub session_present: bool,
    /// The Client Identifier that was assigned because the client sent none. Required then in 5.0.
    pub assigned_client_id: Option<&'a str>,
    /// Keep Alive time in seconds that is imposed (5.0 only; ignored before).
    pub keep_alive_s: Option<u16>,
    /// Session Expiry Interval in seconds, if it is not the one that the client requested (5.0
    /// only).
    pub session_expiry_s: Option<u32>,
    /// Basis for Response Topics; sent if the client asked for it.
    pub response_information: Option<&'a str>,
    /// Last data of the extended authentication.
    pub authentication_data: Option<&'a [u8]>,
    /// Text for a human; left out if it does not fit.
    pub reason_string: Option<&'a str>,
    /// User Properties; left out if they do not fit.
    pub user_properties: &'a [(&'a str, &'a str)],
}

/// Fields of a refusal or a DISCONNECT.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refuse<'a> {
    /// Text for a human; left out if it does not fit.
    pub reason_string: Option<&'a str>,
    /// Another server to connect to; with `UseAnotherServer` and `ServerMoved`.
    pub server_reference: Option<&'a str>,
}

/// The reason of a PUBACK or PUBREC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason<'a> {
    /// The reason code.
    pub code: ReasonCode,
    /// Text for a human; left out if it does not fit.
    pub string: Option<&'a str>,
}

impl From<ReasonCode> for Reason<'_> {
    fn from(code: ReasonCode) -> Self {
        Self { code, string: None }
    }
}

impl Connection {
    /// Accepts the connection: writes the CONNACK on the control lane and prepares the session.
    /// From now on input of all lanes may be handed in. [`Connection::next_resend`] has the
    /// deliveries of the session that are to be repeated.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] if the client does not take even the smallest CONNACK, or a field of
    /// `accept` is too long. Nothing was written then, and the connection is over.
    pub fn accept(
        &mut self,
        session: &mut MqttSession,
        accept: &Accept<'_>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<(), EncodeError> {
        // [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT311-3.2.0-1] one CONNACK, before anything else
        if self.phase != Phase::Deciding {
            return Ok(());
        }
        // [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT311-3.2.2-1] [MQTT311-3.2.2-2] [MQTT311-3.2.2-3]
        let session_present = accept.session_present && !self.clean_start;
        if let Some(keep_alive_s) = accept.keep_alive_s
            && self.version.is_v5()
        {
            self.keep_alive_s = keep_alive_s;
        }
        if let Err(error) =
            self.write_acceptance(session_present, accept, out.buffer(Lane::CONTROL))
        {
            self.phase = Phase::Closed;
            return Err(error);
        }
        // [MQTT-3.1.4-4] [MQTT311-3.1.4-3]
        if session_present {
            // [MQTT-3.1.2-5] [MQTT311-3.1.2-4]
            session.mark_all_received();
            session.begin_connection();
        } else {
            // [MQTT-3.1.2-4] [MQTT311-3.1.2-6]
            session.clear();
        }
        self.phase = Phase::Connected(Reauthentication::Idle);
        // The time that the decision took is not the client's silence.
        self.last_received_ms = now_ms;
        Ok(())
    }

    /// Refuses the connection: writes a CONNACK with the reason, or nothing where the version has
    /// no return code for it. Close afterwards.
    pub fn refuse(&mut self, reason: ReasonCode, refuse: &Refuse<'_>, out: &mut impl LaneWriter) {
        // [MQTT-3.1.3-5] [MQTT-3.1.3-8] [MQTT-3.1.4-2] [MQTT-4.12.0-1] [MQTT-4.12.0-4] [MQTT311-3.1.3-9]
        if matches!(self.phase, Phase::Deciding | Phase::Authenticating) {
            // [MQTT-3.2.2-7] [MQTT-4.13.2-1] [MQTT311-3.2.2-5] nothing is processed from now on
            self.phase = Phase::Closed;
            if self.version.is_v5() || reason.for_v3_connack().is_some() {
                self.write_refusal(self.version, reason, refuse, out.buffer(Lane::CONTROL));
            }
        }
    }

    /// Continues an extended authentication. `ContinueAuthentication` awaits another AUTH, and
    /// `Success` ends a re-authentication. The first authentication ends with
    /// [`Connection::accept`] or [`Connection::refuse`]. A failed re-authentication ends with
    /// [`Connection::disconnect`]. Has no effect if no AUTH is due.
    pub fn auth(&mut self, reason: ReasonCode, data: Option<&[u8]>, out: &mut impl LaneWriter) {
        let next = match (self.phase, reason) {
            // [MQTT-4.12.0-2] [MQTT-4.12.0-3]
            (Phase::Deciding, ReasonCode::ContinueAuthentication) => Phase::Authenticating,
            (Phase::Connected(Reauthentication::Deciding), ReasonCode::ContinueAuthentication) => {
                Phase::Connected(Reauthentication::Awaiting)
            }
            (Phase::Connected(Reauthentication::Deciding), ReasonCode::Success) => {
                Phase::Connected(Reauthentication::Idle)
            }
            _ => return,
        };
        // [MQTT-4.12.0-6]
        let Some(method) = self.authentication_method() else {
            return;
        };
        let mut properties = PropertyBuf::new();
        // [MQTT-4.12.0-5] [MQTT-4.12.1-1]; neither Reason String nor User Properties, so nothing has
        // to be left out: [MQTT-3.15.2-2] [MQTT-3.15.2-3]
        let pushed = properties
            .push(Property::AuthenticationMethod(method))
            .and_then(|()| {
                data.map_or(Ok(()), |data| {
                    properties.push(Property::AuthenticationData(data))
                })
            });
        if pushed.is_ok() {
            let auth = Auth {
                reason,
                properties: properties.properties(),
            };
            // Too large for the client: as if it had been sent, and the authentication times out.
            let _ = auth.encode(self.client_max(), out.buffer(Lane::CONTROL));
        }
        self.phase = next;
    }

    /// Acknowledges a PUBLISH with QoS 1 that arrived on `lane`. Before 5.0 there is no reason: an
    /// error is either acknowledged or answered with a close ([MQTT311-3.3.5-2]).
    ///
    /// Call it in the order of the PUBLISH packets.
    pub fn puback<'a>(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
        reason: impl Into<Reason<'a>>,
        out: &mut impl LaneWriter,
    ) {
        if self.is_connected() {
            self.unacknowledged_qos1 = self.unacknowledged_qos1.saturating_sub(1);
            // [MQTT-3.3.4-1] [MQTT-4.3.2-4] [MQTT311-3.3.4-1] [MQTT311-4.3.2-2]
            self.answer_publish(PacketType::PubAck, packet_id, reason.into(), lane, out);
        }
    }

    /// Writes a PUBACK or PUBREC, with the Reason String if it fits.
    fn answer_publish(
        &self,
        packet_type: PacketType,
        packet_id: PacketId,
        Reason { code, string }: Reason<'_>,
        lane: Lane,
        out: &mut impl LaneWriter,
    ) {
        if string.is_none() {
            return self.acknowledge(packet_type, &Ack::new(packet_id, code), lane, out);
        }
        let refuse = Refuse {
            reason_string: string,
            ..Refuse::default()
        };
        let out = out.buffer(lane.reply());
        // [MQTT-3.4.2-2] [MQTT-3.5.2-2]
        self.write_with_reason(&refuse, self.version, out, |properties, max, out| {
            let ack = Ack {
                properties,
                ..Ack::new(packet_id, code)
            };
            encode_ack(packet_type, &ack, self.version, max, out)
        });
    }

    /// Acknowledges a PUBLISH with QoS 2 that arrived on `lane`. With an error code the message was
    /// not accepted and its identifier is free. Where the lane is lost, the answer takes the lane on which the message
    /// came again. Until then there is none: elsewhere it could be for another message.
    ///
    /// Call it in the order of the PUBLISH packets.
    pub fn pubrec<'a>(
        &mut self,
        session: &mut MqttSession,
        lane: Lane,
        packet_id: PacketId,
        reason: impl Into<Reason<'a>>,
        out: &mut impl LaneWriter,
    ) {
        if !self.is_connected() {
            return;
        }
        let reason = reason.into();
        let answer = session.answer_lane(lane, packet_id);
        // Before 5.0 the client takes every PUBREC as a success and goes on with PUBREL.
        if reason.code.is_error() && self.version.is_v5() {
            // [MQTT-4.3.3-9]
            session.forget_received(lane, packet_id);
        } else {
            session.mark_received(lane, packet_id);
        }
        // [MQTT-3.3.4-1] [MQTT-4.3.3-8] [MQTT311-3.3.4-1] [MQTT311-4.3.3-2]
        if let Some(lane) = answer {
            self.answer_publish(PacketType::PubRec, packet_id, reason, lane, out);
        }
    }

    /// Answers a PUBREC that arrived on `lane`. Call it in the order of the PUBREC packets.
    pub fn pubrel(
        &self,
        lane: Lane,
        packet_id: PacketId,
        reason: ReasonCode,
        out: &mut impl LaneWriter,
    ) {
        if self.is_connected() {
            // [MQTT-4.3.3-4] [MQTT-4.6.0-4] [MQTT311-4.3.3-1] [MQTT311-4.6.0-4]
            self.acknowledge(PacketType::PubRel, &Ack::new(packet_id, reason), lane, out);
        }
    }

    /// Answers a PUBREL that arrived on `lane`.
    pub fn pubcomp(
        &self,
        lane: Lane,
        packet_id: PacketId,
        reason: ReasonCode,
        out: &mut impl LaneWriter,
    ) {
        if self.is_connected() {
            // [MQTT-4.3.3-11] [MQTT311-4.3.3-2]
            self.acknowledge(PacketType::PubComp, &Ack::new(packet_id, reason), lane, out);
        }
    }

    /// Answers a SUBSCRIBE that arrived on `lane`: one code per filter, in order.
    pub fn suback(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
        codes: &[ReasonCode],
        out: &mut impl LaneWriter,
    ) {
        self.suback_with(lane, packet_id, codes, None, out);
    }

    /// The same with a text for a human; left out if it does not fit.
    pub fn suback_with(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
        codes: &[ReasonCode],
        reason_string: Option<&str>,
        out: &mut impl LaneWriter,
    ) {
        if self.is_connected() {
            let refuse = Refuse {
                reason_string,
                ..Refuse::default()
            };
            let (version, out) = (self.version, out.buffer(lane.reply()));
            // [MQTT-3.8.4-1] [MQTT-3.8.4-5] [MQTT-3.8.4-7] [MQTT311-3.8.4-1] [MQTT311-3.8.4-4]
            // [MQTT-3.9.2-2]
            self.write_with_reason(&refuse, version, out, |properties, max, out| {
                let codes = codes.iter().copied();
                encode_suback(version, packet_id, properties, codes, max, out)
            });
        }
    }

    /// Answers an UNSUBSCRIBE that arrived on `lane`: one code per filter, in order.
    pub fn unsuback(
        &mut self,
        lane: Lane,
        packet_id: PacketId,
        codes: &[ReasonCode],
        out: &mut impl LaneWriter,
    ) {
        if self.is_connected() {
            // [MQTT-3.10.4-4] [MQTT-3.10.4-6] [MQTT-3.11.2-2] [MQTT311-3.10.4-5]
            let _ = encode_unsuback(
                self.version,
                packet_id,
                Properties::EMPTY,
                codes.iter().copied(),
                self.client_max(),
                out.buffer(lane.reply()),
            );
        }
    }

    /// Ends the connection for a reason of the server's own: DISCONNECT (5.0), a refusing CONNACK
    /// where none has been sent, or nothing. Close afterwards.
    pub fn disconnect(
        &mut self,
        reason: ReasonCode,
        refuse: &Refuse<'_>,
        out: &mut impl LaneWriter,
    ) {
        match self.phase {
            Phase::Connected(_) => {
                // [MQTT-3.14.4-1] [MQTT-3.1.4-3] [MQTT-4.12.1-2]
                self.phase = Phase::Closed;
                if self.version.is_v5() {
                    self.write_disconnect(reason, refuse, out.buffer(Lane::CONTROL));
                }
            }
            // [MQTT-3.14.0-1]
            Phase::Deciding | Phase::Authenticating => self.refuse(reason, refuse, out),
            Phase::Start | Phase::Closed => self.phase = Phase::Closed,
        }
    }

    /// Reports a violation to the client by [`Violation::answer`]. Afterwards close the part in
    /// [`Violation::scope`].
    pub fn violation(&mut self, violation: &Violation, out: &mut impl LaneWriter) {
        let refuse = Refuse {
            reason_string: Some(violation.detail),
            server_reference: None,
        };
        match violation.answer {
            Answer::Nothing => {}
            // [MQTT-3.1.4-1] [MQTT-3.1.4-2]
            Answer::ConnAck(version) => {
                self.write_refusal(
                    version,
                    violation.reason,
                    &refuse,
                    out.buffer(Lane::CONTROL),
                );
            }
            // [MQTT-4.13.1-1] [MQTT-4.13.2-1]
            Answer::Disconnect => {
                self.write_disconnect(violation.reason, &refuse, out.buffer(Lane::CONTROL));
            }
        }
    }

    pub(super) const fn client_max(&self) -> usize {
        self.client_max_packet_bytes as usize
    }

    /// Writes a CONNACK with success, with Reason String and User Properties if they fit.
    fn write_acceptance(
        &self,
        session_present: bool,
        accept: &Accept<'_>,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        // [MQTT-3.1.4-5] [MQTT-3.2.2-8] [MQTT311-3.1.4-4]
        let reason = ReasonCode::Success;
        let mut properties = PropertyBuf::new();
        if self.version.is_v5() {
            self.describe(accept, &mut properties)?;
        }
        let base = properties.len();
        if self.version.is_v5() {
            self.explain(
                accept.reason_string,
                accept.user_properties,
                &mut properties,
            );
            let connack = ConnAck {
                session_present,
                reason,
                properties: properties.properties(),
            };
            if connack.encode(self.version, self.client_max(), out).is_ok() {
                return Ok(());
            }
            // [MQTT-3.2.2-19] [MQTT-3.2.2-20]
            properties.truncate(base);
        }
        let connack = ConnAck {
            session_present,
            reason,
            properties: properties.properties(),
        };
        connack.encode(self.version, self.client_max(), out)
    }

    /// The properties of a CONNACK with success.
    fn describe(
        &self,
        accept: &Accept<'_>,
        properties: &mut PropertyBuf,
    ) -> Result<(), EncodeError> {
        let limits = &self.limits;
        if let Some(v) = accept.session_expiry_s {
            properties.push(Property::SessionExpiryInterval(v))?;
        }
        if limits.receive_maximum.get() != u16::MAX {
            properties.push(Property::ReceiveMaximum(limits.receive_maximum.get()))?;
        }
        if limits.maximum_qos != QoS::ExactlyOnce {
            properties.push(Property::MaximumQoS(limits.maximum_qos as u8))?;
        }
        if (limits.max_packet_bytes as usize) < MAX_PACKET_BYTES {
            properties.push(Property::MaximumPacketSize(limits.max_packet_bytes))?;
        }
        // [MQTT-3.1.3-7]
        if let Some(v) = accept.assigned_client_id {
            properties.push(Property::AssignedClientIdentifier(v))?;
        }
        if limits.topic_alias_maximum != 0 {
            properties.push(Property::TopicAliasMaximum(limits.topic_alias_maximum))?;
        }
        if !limits.features.contains(Features::RETAIN) {
            properties.push(Property::RetainAvailable(false))?;
        }
        if !limits.features.contains(Features::WILDCARDS) {
            properties.push(Property::WildcardSubscriptionAvailable(false))?;
        }
        if !limits.features.contains(Features::IDENTIFIERS) {
            properties.push(Property::SubscriptionIdentifierAvailable(false))?;
        }
        if !limits.features.contains(Features::SHARED) {
            properties.push(Property::SharedSubscriptionAvailable(false))?;
        }
        // [MQTT-3.1.2-21] [MQTT-3.2.2-22]
        if let Some(v) = accept.keep_alive_s {
            properties.push(Property::ServerKeepAlive(v))?;
        }
        // [MQTT-3.1.2-28]
        if let Some(v) = accept.response_information
            && self.wants_response_information
        {
            properties.push(Property::ResponseInformation(v))?;
        }
        // [MQTT-4.12.0-5] [MQTT-4.12.0-6]
        if let Some(method) = self.authentication_method() {
            properties.push(Property::AuthenticationMethod(method))?;
            if let Some(v) = accept.authentication_data {
                properties.push(Property::AuthenticationData(v))?;
            }
        }
        Ok(())
    }

    /// Reason String and User Properties, unless the client does not want them.
    fn explain(
        &self,
        reason_string: Option<&str>,
        user_properties: &[(&str, &str)],
        properties: &mut PropertyBuf,
    ) {
        // [MQTT-3.1.2-29]
        if !self.wants_problem_information {
            return;
        }
        // A text that cannot be expressed is left out, as one that does not fit.
        if let Some(v) = reason_string {
            let _ = properties.push(Property::ReasonString(v));
        }
        for (name, value) in user_properties {
            let _ = properties.push(Property::UserProperty(name, value));
        }
    }

    fn write_refusal(
        &self,
        version: Version,
        reason: ReasonCode,
        refuse: &Refuse<'_>,
        out: &mut BytesMut,
    ) {
        // [MQTT-3.2.2-8] [MQTT311-3.2.2-5]
        let reason = if reason.is_valid_in(PacketType::ConnAck) {
            reason
        } else {
            ReasonCode::UnspecifiedError
        };
        self.write_with_reason(refuse, version, out, |properties, max, out| {
            // [MQTT-3.2.2-6] [MQTT311-3.2.2-4]
            ConnAck {
                session_present: false,
                reason,
                properties,
            }
            .encode(version, max, out)
        });
    }

    fn write_disconnect(&self, reason: ReasonCode, refuse: &Refuse<'_>, out: &mut BytesMut) {
        // [MQTT-3.14.2-1] [MQTT-3.14.2-2]
        let reason = if reason.is_valid_in(PacketType::Disconnect) {
            reason
        } else {
            ReasonCode::UnspecifiedError
        };
        self.write_with_reason(refuse, self.version, out, |properties, max, out| {
            Disconnect { reason, properties }.encode(Version::V5, max, out)
        });
    }

    /// Writes a packet with the Reason String if it fits, and without otherwise.
    fn write_with_reason(
        &self,
        refuse: &Refuse<'_>,
        version: Version,
        out: &mut BytesMut,
        mut encode: impl FnMut(Properties<'_>, usize, &mut BytesMut) -> Result<(), EncodeError>,
    ) {
        let mut properties = PropertyBuf::new();
        if version.is_v5() {
            if let Some(v) = refuse.server_reference {
                let _ = properties.push(Property::ServerReference(v));
            }
            let base = properties.len();
            self.explain(refuse.reason_string, &[], &mut properties);
            // [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.2.2-19]
            if encode(properties.properties(), self.client_max(), out).is_ok() {
                return;
            }
            properties.truncate(base);
        }
        // A packet that the client does not take is not sent: the close informs it.
        let _ = encode(properties.properties(), self.client_max(), out);
    }
}
