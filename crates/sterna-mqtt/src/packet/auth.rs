//! AUTH (MQTT 5.0 section 3.15).

use bytes::{BufMut, BytesMut};

use super::{TRAILING, begin, block_bytes, put_block};
use crate::property::{Properties, PropertyContext};
use crate::wire::Reader;
use crate::{DecodeError, EncodeError, PacketType, ReasonCode, Version};

/// A step of an extended authentication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth<'a> {
    /// Success, `ContinueAuthentication` or `ReAuthenticate`.
    pub reason: ReasonCode,
    /// Properties, among them the method and its data.
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        if !version.is_v5() {
            return Err(DecodeError::malformed(
                "packet type 15 is reserved before MQTT 5.0",
            ));
        }
        let mut reader = Reader::new(body);
        // Section 3.15.2.1: reason code and properties are left out together or not at all.
        if reader.is_empty() {
            return Ok(Self {
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            });
        }
        // [MQTT-3.15.2-1]
        let reason = ReasonCode::from_u8(reader.u8()?)
            .filter(|reason| reason.is_valid_in(PacketType::Auth))
            .ok_or(DecodeError::malformed("reason code not allowed in AUTH"))?;
        let properties = Properties::parse(reader.property_block()?, PropertyContext::Auth)?;
        if !reader.is_empty() {
            return Err(TRAILING);
        }
        Ok(Self { reason, properties })
    }

    /// Appends the packet; nothing on error.
    ///
    /// # Errors
    ///
    /// As for [`Packet::encode`](super::Packet::encode).
    pub fn encode(&self, max_packet_bytes: usize, out: &mut BytesMut) -> Result<(), EncodeError> {
        let block = self.properties.raw();
        let first = PacketType::Auth.first_byte();
        if self.reason == ReasonCode::Success && block.is_empty() {
            return begin(first, 0, max_packet_bytes, out);
        }
        begin(first, 1 + block_bytes(block.len()), max_packet_bytes, out)?;
        out.put_u8(self.reason as u8);
        put_block(out, block);
        Ok(())
    }
}
