//! PUBLISH (MQTT 5.0 section 3.3; MQTT 3.1.1 section 3.3).

use bytes::{BufMut, BytesMut};

use super::{begin, block_bytes, field_bytes, put_block};
use crate::property::{PropertyContext, PublishProperties};
use crate::topic::TopicError;
use crate::wire::{Reader, put_binary};
use crate::{DecodeError, EncodeError, PacketId, PacketType, QoS, Version, text};

const DUP: u8 = 0b1000;
const RETAIN: u8 = 0b0001;

/// An application message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Publish<'a> {
    /// Whether it may be a repetition.
    pub dup: bool,
    /// QoS of this delivery.
    pub qos: QoS,
    /// Whether it is (to be) a retained message.
    pub retain: bool,
    /// Topic Name; empty only where a Topic Alias stands for it.
    pub topic: &'a str,
    /// Present exactly when the QoS is not 0.
    pub packet_id: Option<PacketId>,
    /// Properties; empty before 5.0.
    pub properties: PublishProperties<'a>,
    /// The application's data.
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    #[expect(
        clippy::inline_always,
        reason = "most packets; otherwise their parts are moved twice"
    )]
    #[inline(always)]
    pub(crate) fn decode(first: u8, body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        Self::decode_known(first, body, version, None)
    }

    /// The same of a packet whose Topic Name is known, and was checked.
    #[expect(
        clippy::inline_always,
        reason = "most packets; otherwise their parts are moved twice"
    )]
    #[inline(always)]
    pub(crate) fn decode_known(
        first: u8,
        body: &'a [u8],
        version: Version,
        topic: Option<&'a str>,
    ) -> Result<Self, DecodeError> {
        // [MQTT-3.3.1-4] [MQTT311-3.3.1-4]
        let qos =
            QoS::from_u8(first >> 1 & 0b11).ok_or(DecodeError::malformed("PUBLISH with QoS 3"))?;
        let dup = first & DUP != 0;
        // [MQTT-3.3.1-2] [MQTT311-3.3.1-2]
        if dup && qos == QoS::AtMostOnce {
            return Err(DecodeError::protocol("DUP flag of a PUBLISH with QoS 0"));
        }
        let mut reader = Reader::new(body);
        // [MQTT-3.3.2-1] [MQTT311-3.3.2-1]
        let field = reader.binary()?;
        let topic = match topic {
            Some(topic) => topic,
            None => checked_topic(field)?,
        };
        debug_assert_eq!(field, topic.as_bytes(), "the topic is that of the packet");
        // [MQTT-2.2.1-2] [MQTT311-2.3.1-5]
        let packet_id = if qos.is_acknowledged() {
            Some(reader.packet_id()?)
        } else {
            None
        };
        let properties = if version.is_v5() {
            PublishProperties::parse(reader.property_block()?, PropertyContext::Publish)?
        } else {
            PublishProperties::EMPTY
        };
        if topic.is_empty() && properties.topic_alias().is_none() {
            return Err(if version.is_v5() {
                DecodeError::protocol("PUBLISH with neither Topic Name nor Topic Alias")
            } else {
                // [MQTT311-4.7.3-1]
                TopicError::Empty.into()
            });
        }
        Ok(Self {
            dup,
            qos,
            retain: first & RETAIN != 0,
            topic,
            packet_id,
            properties,
            payload: reader.rest(),
        })
    }

    /// The first byte of the packet.
    #[must_use]
    pub const fn first_byte(&self) -> u8 {
        first_byte(self.dup, self.qos, self.retain)
    }

    /// Appends the packet; nothing on error.
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
        let block = self.properties.raw();
        let mut remaining = field_bytes(self.topic.as_bytes())? + self.payload.len();
        if self.qos.is_acknowledged() {
            remaining += 2;
        }
        if version.is_v5() {
            remaining += block_bytes(block.len());
        }
        begin(self.first_byte(), remaining, max_packet_bytes, out)?;
        put_binary(out, self.topic.as_bytes());
        // [MQTT-2.2.1-2]
        if self.qos.is_acknowledged() {
            out.put_u16(self.packet_id.map_or(0, PacketId::get));
        }
        if version.is_v5() {
            put_block(out, block);
        }
        out.put_slice(self.payload);
        Ok(())
    }
}

/// The first byte of a PUBLISH.
pub(crate) const fn first_byte(dup: bool, qos: QoS, retain: bool) -> u8 {
    // [MQTT-3.3.1-2] [MQTT-4.3.1-1] [MQTT311-4.3.1-1] no DUP flag with QoS 0
    let dup = if dup && qos.is_acknowledged() { DUP } else { 0 };
    PacketType::Publish.first_byte() | dup | (qos as u8) << 1 | if retain { RETAIN } else { 0 }
}

/// A Topic Name that may be empty, checked in as few passes as possible.
#[inline]
fn checked_topic(bytes: &[u8]) -> Result<&str, DecodeError> {
    // [MQTT-1.5.4-2] [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT-4.7.3-2]
    // [MQTT311-1.5.3-2] [MQTT311-3.3.2-2] [MQTT311-4.7.1-1] [MQTT311-4.7.3-2]
    match text::checked(bytes, [0, b'+', b'#'])? {
        (topic, false) => Ok(topic),
        (_, true) if bytes.contains(&0) => Err(text::NULL),
        (_, true) => Err(TopicError::WildcardInName.into()),
    }
}
