//! UNSUBSCRIBE and UNSUBACK (MQTT 5.0 sections 3.10 and 3.11).

use bytes::{BufMut, BytesMut};

use super::subscribe::{ReasonCodes, check_filter};
use super::{TRAILING, begin, block_bytes, field_bytes, put_block};
use crate::property::{Properties, PropertyContext};
use crate::wire::{Reader, put_binary};
use crate::{DecodeError, EncodeError, PacketId, PacketType, ReasonCode, Version};

/// A request to end subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsubscribe<'a> {
    /// Identifier for the UNSUBACK.
    pub packet_id: PacketId,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
    payload: &'a [u8],
    count: u32,
}

impl<'a> Unsubscribe<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = if version.is_v5() {
            Properties::parse(reader.property_block()?, PropertyContext::Unsubscribe)?
        } else {
            Properties::EMPTY
        };
        let payload = reader.rest();
        // [MQTT-3.10.3-2] [MQTT311-3.10.3-2]
        if payload.is_empty() {
            return Err(DecodeError::protocol("UNSUBSCRIBE without a Topic Filter"));
        }
        let mut count = 0;
        while !reader.is_empty() {
            // [MQTT-3.10.3-1] [MQTT311-3.10.3-1]
            check_filter(reader.string()?, version)?;
            count += 1;
        }
        Ok(Self {
            packet_id,
            properties,
            payload,
            count,
        })
    }

    /// The filters in the order of the packet.
    #[must_use]
    pub const fn topics(&self) -> Topics<'a> {
        Topics {
            reader: Reader::new(self.payload),
        }
    }

    /// Number of filters; at least one.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Never: an UNSUBSCRIBE has at least one filter.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The filters of an UNSUBSCRIBE.
#[derive(Clone, Debug)]
pub struct Topics<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Topics<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        // Validated when the packet was decoded.
        self.reader.text()
    }
}

/// The answer to an UNSUBSCRIBE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnsubAck<'a> {
    /// Identifier of the UNSUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
    codes: &'a [u8],
}

impl<'a> UnsubAck<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        if !version.is_v5() {
            return if reader.is_empty() {
                Ok(Self {
                    packet_id,
                    properties: Properties::EMPTY,
                    codes: &[],
                })
            } else {
                Err(TRAILING)
            };
        }
        let properties = Properties::parse(reader.property_block()?, PropertyContext::SubAck)?;
        let codes = reader.rest();
        // [MQTT-3.11.3-1]
        if codes.is_empty() {
            return Err(DecodeError::protocol("UNSUBACK without a reason code"));
        }
        for &code in codes {
            // [MQTT-3.11.3-2]
            ReasonCode::from_u8(code)
                .filter(|code| code.is_valid_in(PacketType::UnsubAck))
                .ok_or(DecodeError::malformed(
                    "reason code not allowed in UNSUBACK",
                ))?;
        }
        Ok(Self {
            packet_id,
            properties,
            codes,
        })
    }

    /// The reason codes, one per filter of the UNSUBSCRIBE; none before 5.0.
    #[must_use]
    pub const fn codes(&self) -> ReasonCodes<'a> {
        ReasonCodes { codes: self.codes }
    }
}

/// Appends an UNSUBSCRIBE; nothing on error.
///
/// # Errors
///
/// As for [`Packet::encode`](super::Packet::encode).
pub fn encode_unsubscribe<'f>(
    version: Version,
    packet_id: PacketId,
    properties: Properties<'_>,
    filters: impl Iterator<Item = &'f str> + Clone,
    max_packet_bytes: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let mut remaining = 2;
    if version.is_v5() {
        remaining += block_bytes(properties.raw().len());
    }
    for filter in filters.clone() {
        remaining += field_bytes(filter.as_bytes())?;
    }
    begin(
        PacketType::Unsubscribe.first_byte(),
        remaining,
        max_packet_bytes,
        out,
    )?;
    out.put_u16(packet_id.get());
    if version.is_v5() {
        put_block(out, properties.raw());
    }
    for filter in filters {
        put_binary(out, filter.as_bytes());
    }
    Ok(())
}

/// Appends an UNSUBACK; nothing on error. `codes` has one code per filter of the UNSUBSCRIBE, in
/// order; older versions have none.
///
/// # Errors
///
/// As for [`Packet::encode`](super::Packet::encode).
pub fn encode_unsuback(
    version: Version,
    packet_id: PacketId,
    properties: Properties<'_>,
    codes: impl ExactSizeIterator<Item = ReasonCode>,
    max_packet_bytes: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let mut remaining = 2;
    if version.is_v5() {
        remaining += block_bytes(properties.raw().len()) + codes.len();
    }
    begin(
        PacketType::UnsubAck.first_byte(),
        remaining,
        max_packet_bytes,
        out,
    )?;
    // [MQTT-2.2.1-6] [MQTT-3.10.4-5] [MQTT-3.11.2-1] [MQTT311-2.3.1-7] [MQTT311-3.10.4-4]
    out.put_u16(packet_id.get());
    if version.is_v5() {
        put_block(out, properties.raw());
        // [MQTT-3.11.3-1]
        for code in codes {
            out.put_u8(code as u8);
        }
    }
    Ok(())
}
