//! CONNACK (MQTT 5.0 section 3.2; MQTT 3.1.1 section 3.2).

use bytes::{BufMut, BytesMut};

use super::{TRAILING, begin, block_bytes, put_block};
use crate::property::{Properties, Property, PropertyContext, value};
use crate::wire::Reader;
use crate::{DecodeError, EncodeError, PacketType, QoS, ReasonCode, Version};

/// The answer to a CONNECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnAck<'a> {
    /// Whether the server has state of the session.
    pub session_present: bool,
    /// Success or why not; return codes of older versions are mapped.
    pub reason: ReasonCode,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
}

impl<'a> ConnAck<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let flags = reader.u8()?;
        let code = reader.u8()?;
        // [MQTT-3.2.2-1]; MQTT 3.1 does not use the byte
        if flags > 1 && version != Version::V31 {
            return Err(DecodeError::malformed("reserved flags of CONNACK"));
        }
        let session_present = flags & 1 != 0 && version != Version::V31;
        let (reason, properties) = if version.is_v5() {
            // [MQTT-3.2.2-8]
            let reason = ReasonCode::from_u8(code)
                .filter(|reason| reason.is_valid_in(PacketType::ConnAck))
                .ok_or(DecodeError::malformed("reason code not allowed in CONNACK"))?;
            let properties = Properties::parse(reader.property_block()?, PropertyContext::ConnAck)?;
            (reason, properties)
        } else {
            let reason = ReasonCode::from_v3_connack(code)
                .ok_or(DecodeError::malformed("unknown return code of CONNACK"))?;
            (reason, Properties::EMPTY)
        };
        if !reader.is_empty() {
            return Err(TRAILING);
        }
        // [MQTT-3.2.2-6] [MQTT311-3.2.2-4]
        if session_present && reason != ReasonCode::Success {
            return Err(DecodeError::protocol(
                "Session Present in a CONNACK that refuses",
            ));
        }
        Ok(Self {
            session_present,
            reason,
            properties,
        })
    }

    /// Appends the packet; nothing on error. A reason without a return code of an older version is
    /// written as `ServerUnavailable`.
    ///
    /// # Errors
    ///
    /// As for [`Packet::encode`](super::Packet::encode).
    pub fn encode(
        &self,
        version: Version,
        max_packet_bytes: usize,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        // [MQTT-3.2.2-6] [MQTT311-3.2.2-4]; MQTT 3.1 has no such flag
        let session_present =
            self.session_present && self.reason == ReasonCode::Success && version != Version::V31;
        let block = self.properties.raw();
        let remaining = if version.is_v5() {
            2 + block_bytes(block.len())
        } else {
            2
        };
        begin(
            PacketType::ConnAck.first_byte(),
            remaining,
            max_packet_bytes,
            out,
        )?;
        out.put_u8(u8::from(session_present));
        if version.is_v5() {
            out.put_u8(self.reason as u8);
            put_block(out, block);
        } else {
            out.put_u8(self.reason.for_v3_connack().unwrap_or(3));
        }
        Ok(())
    }

    /// QoS 1 and 2 messages that the server takes unacknowledged: 1 to 65,535.
    #[must_use]
    pub fn receive_maximum(&self) -> u16 {
        self.properties
            .find(value!(ReceiveMaximum))
            .unwrap_or(u16::MAX)
    }

    /// Highest QoS that the server takes.
    #[must_use]
    pub fn maximum_qos(&self) -> QoS {
        self.properties
            .find(value!(MaximumQoS))
            .and_then(QoS::from_u8)
            .unwrap_or(QoS::ExactlyOnce)
    }

    /// Whether the server retains messages.
    #[must_use]
    pub fn retain_available(&self) -> bool {
        self.flag(value!(RetainAvailable))
    }

    /// Whether the server takes wildcards in filters.
    #[must_use]
    pub fn wildcard_available(&self) -> bool {
        self.flag(value!(WildcardSubscriptionAvailable))
    }

    /// Whether the server takes Subscription Identifiers.
    #[must_use]
    pub fn subscription_identifier_available(&self) -> bool {
        self.flag(value!(SubscriptionIdentifierAvailable))
    }

    /// Whether the server takes shared subscriptions.
    #[must_use]
    pub fn shared_available(&self) -> bool {
        self.flag(value!(SharedSubscriptionAvailable))
    }

    /// Largest packet that the server takes, in bytes; `u32::MAX` where it names none.
    #[must_use]
    pub fn maximum_packet_bytes(&self) -> u32 {
        self.properties
            .find(value!(MaximumPacketSize))
            .unwrap_or(u32::MAX)
    }

    /// Highest Topic Alias that the server takes; 0 for none.
    #[must_use]
    pub fn topic_alias_maximum(&self) -> u16 {
        self.properties.find(value!(TopicAliasMaximum)).unwrap_or(0)
    }

    /// The Client Identifier that the server chose.
    #[must_use]
    pub fn assigned_client_id(&self) -> Option<&'a str> {
        self.properties.find(value!(AssignedClientIdentifier))
    }

    /// The Keep Alive time that the server imposes, in seconds.
    #[must_use]
    pub fn server_keep_alive_s(&self) -> Option<u16> {
        self.properties.find(value!(ServerKeepAlive))
    }

    /// Basis for Response Topics.
    #[must_use]
    pub fn response_information(&self) -> Option<&'a str> {
        self.properties.find(value!(ResponseInformation))
    }

    /// A feature that is there unless the server says otherwise.
    fn flag(&self, pick: impl FnMut(Property<'a>) -> Option<bool>) -> bool {
        self.properties.find(pick).unwrap_or(true)
    }
}
