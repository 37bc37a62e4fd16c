//! DISCONNECT (MQTT 5.0 section 3.14; MQTT 3.1.1 section 3.14).

use bytes::{BufMut, BytesMut};

use super::{TRAILING, begin, block_bytes, put_block};
use crate::property::{Properties, PropertyContext};
use crate::wire::Reader;
use crate::{DecodeError, EncodeError, PacketType, ReasonCode, Version};

/// The orderly end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disconnect<'a> {
    /// Why; Success before 5.0.
    pub reason: ReasonCode,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
}

impl<'a> Disconnect<'a> {
    /// A DISCONNECT without properties.
    #[must_use]
    pub const fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            properties: Properties::EMPTY,
        }
    }

    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        // Section 3.14.2.1: without a reason code it is a normal disconnection.
        if reader.is_empty() {
            return Ok(Self::new(ReasonCode::Success));
        }
        if !version.is_v5() {
            return Err(TRAILING);
        }
        // [MQTT-3.14.2-1]
        let reason = ReasonCode::from_u8(reader.u8()?)
            .filter(|reason| reason.is_valid_in(PacketType::Disconnect))
            .ok_or(DecodeError::malformed(
                "reason code not allowed in DISCONNECT",
            ))?;
        let properties = if reader.is_empty() {
            Properties::EMPTY
        } else {
            Properties::parse(reader.property_block()?, PropertyContext::Disconnect)?
        };
        if !reader.is_empty() {
            return Err(TRAILING);
        }
        Ok(Self { reason, properties })
    }

    /// Seconds that the session is to outlive the connection, where the packet changes it.
    #[must_use]
    pub fn session_expiry_s(&self) -> Option<u32> {
        self.properties.session_expiry_s()
    }

    /// Whether the server discards the will instead of publishing it.
    #[must_use]
    pub fn discards_will(&self) -> bool {
        // [MQTT-3.14.4-3] [MQTT311-3.1.2-10]
        self.reason == ReasonCode::Success
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
        let block = if version.is_v5() {
            self.properties.raw()
        } else {
            &[]
        };
        let reason = version.is_v5() && (self.reason != ReasonCode::Success || !block.is_empty());
        let mut remaining = usize::from(reason);
        if !block.is_empty() {
            remaining += block_bytes(block.len());
        }
        begin(
            PacketType::Disconnect.first_byte(),
            remaining,
            max_packet_bytes,
            out,
        )?;
        if reason {
            out.put_u8(self.reason as u8);
        }
        if !block.is_empty() {
            put_block(out, block);
        }
        Ok(())
    }
}
