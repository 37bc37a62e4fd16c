//! PUBACK, PUBREC, PUBREL and PUBCOMP (MQTT 5.0 sections 3.4 to 3.7).

use bytes::{BufMut, BytesMut};

use super::{TRAILING, begin, block_bytes, put_block};
use crate::property::{Properties, PropertyContext};
use crate::wire::Reader;
use crate::{DecodeError, EncodeError, PacketId, PacketType, ReasonCode, Version};

/// One of the four acknowledgements of a PUBLISH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    /// Identifier of the PUBLISH.
    pub packet_id: PacketId,
    /// Success before 5.0.
    pub reason: ReasonCode,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    /// An acknowledgement without properties.
    #[must_use]
    pub const fn new(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self {
            packet_id,
            reason,
            properties: Properties::EMPTY,
        }
    }

    pub(crate) fn decode(
        packet_type: PacketType,
        body: &'a [u8],
        version: Version,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        if !version.is_v5() {
            return if reader.is_empty() {
                Ok(Self::new(packet_id, ReasonCode::Success))
            } else {
                Err(TRAILING)
            };
        }
        // Section 3.4.2: reason code and properties may be left out.
        let reason = if reader.is_empty() {
            ReasonCode::Success
        } else {
            // [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
            ReasonCode::from_u8(reader.u8()?)
                .filter(|reason| reason.is_valid_in(packet_type))
                .ok_or(DecodeError::malformed(
                    "reason code not allowed in this acknowledgement",
                ))?
        };
        let properties = if reader.is_empty() {
            Properties::EMPTY
        } else {
            Properties::parse(reader.property_block()?, PropertyContext::Acknowledgement)?
        };
        if !reader.is_empty() {
            return Err(TRAILING);
        }
        Ok(Self {
            packet_id,
            reason,
            properties,
        })
    }
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP; nothing on error. Before 5.0 only the identifier is
/// written. In 5.0, fields that the receiver can infer are left out.
///
/// # Errors
///
/// As for [`Packet::encode`](super::Packet::encode).
pub fn encode_ack(
    packet_type: PacketType,
    ack: &Ack<'_>,
    version: Version,
    max_packet_bytes: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let block = if version.is_v5() {
        ack.properties.raw()
    } else {
        &[]
    };
    let reason = version.is_v5() && (ack.reason != ReasonCode::Success || !block.is_empty());
    let mut remaining = 2 + usize::from(reason);
    if !block.is_empty() {
        remaining += block_bytes(block.len());
    }
    begin(packet_type.first_byte(), remaining, max_packet_bytes, out)?;
    // [MQTT-2.2.1-5] [MQTT311-2.3.1-6]
    out.put_u16(ack.packet_id.get());
    if reason {
        out.put_u8(ack.reason as u8);
    }
    if !block.is_empty() {
        put_block(out, block);
    }
    Ok(())
}
