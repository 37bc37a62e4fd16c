//! Every control packet as a borrowed view, its decoder and its encoder.
//!
//! A view is validated at its creation: all of its later values are well formed. Lists (properties,
//! filters, reason codes) stay in their encoding, and are read as they are iterated.

mod ack;
mod auth;
mod connack;
mod connect;
mod disconnect;
pub(crate) mod publish;
mod subscribe;
mod unsubscribe;

use bytes::BytesMut;

pub use ack::{Ack, encode_ack};
pub use auth::Auth;
pub use connack::ConnAck;
pub use connect::{Connect, Will};
pub use disconnect::Disconnect;
pub use publish::Publish;
pub use subscribe::{
    Filters, ReasonCodes, RetainHandling, SubAck, Subscribe, SubscribeOptions, encode_suback,
    encode_subscribe,
};
pub use unsubscribe::{Topics, UnsubAck, Unsubscribe, encode_unsuback, encode_unsubscribe};

use crate::wire::{packet_bytes, put_varint};
use crate::{DecodeError, EncodeError, Frame, MAX_REMAINING_BYTES, PacketType, Version};

/// A decoded control packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// CONNECT.
    Connect(Connect<'a>),
    /// CONNACK.
    ConnAck(ConnAck<'a>),
    /// PUBLISH.
    Publish(Publish<'a>),
    /// PUBACK.
    PubAck(Ack<'a>),
    /// PUBREC.
    PubRec(Ack<'a>),
    /// PUBREL.
    PubRel(Ack<'a>),
    /// PUBCOMP.
    PubComp(Ack<'a>),
    /// SUBSCRIBE.
    Subscribe(Subscribe<'a>),
    /// SUBACK.
    SubAck(SubAck<'a>),
    /// UNSUBSCRIBE.
    Unsubscribe(Unsubscribe<'a>),
    /// UNSUBACK.
    UnsubAck(UnsubAck<'a>),
    /// PINGREQ.
    PingReq,
    /// PINGRESP.
    PingResp,
    /// DISCONNECT.
    Disconnect(Disconnect<'a>),
    /// AUTH.
    Auth(Auth<'a>),
}

impl<'a> Packet<'a> {
    /// Decodes and validates a packet. `version` is that of the connection; a CONNECT carries its
    /// own.
    ///
    /// # Errors
    ///
    /// Any Malformed Packet or Protocol Error of the specification that is visible in the packet
    /// alone, with its reason code.
    #[inline]
    pub fn decode(frame: &Frame<'a>, version: Version) -> Result<Self, DecodeError> {
        let first = frame.first_byte();
        let body = frame.body();
        // PUBLISH comes first: a broker reads it most often.
        if first >> 4 == PacketType::Publish as u8 {
            return Publish::decode(first, body, version).map(Packet::Publish);
        }
        Self::decode_other(frame, version)
    }

    fn decode_other(frame: &Frame<'a>, version: Version) -> Result<Self, DecodeError> {
        let first = frame.first_byte();
        let body = frame.body();
        let Some(packet_type) = frame.packet_type() else {
            return Err(DecodeError::malformed("packet type 0 is reserved"));
        };
        check_flags(packet_type, first, version)?;
        Ok(match packet_type {
            PacketType::Connect => Packet::Connect(Connect::decode(body)?),
            PacketType::ConnAck => Packet::ConnAck(ConnAck::decode(body, version)?),
            PacketType::Publish => Packet::Publish(Publish::decode(first, body, version)?),
            PacketType::PubAck => Packet::PubAck(Ack::decode(packet_type, body, version)?),
            PacketType::PubRec => Packet::PubRec(Ack::decode(packet_type, body, version)?),
            PacketType::PubRel => Packet::PubRel(Ack::decode(packet_type, body, version)?),
            PacketType::PubComp => Packet::PubComp(Ack::decode(packet_type, body, version)?),
            PacketType::Subscribe => Packet::Subscribe(Subscribe::decode(body, version)?),
            PacketType::SubAck => Packet::SubAck(SubAck::decode(body, version)?),
            PacketType::Unsubscribe => Packet::Unsubscribe(Unsubscribe::decode(body, version)?),
            PacketType::UnsubAck => Packet::UnsubAck(UnsubAck::decode(body, version)?),
            PacketType::PingReq => {
                check_empty(body)?;
                Packet::PingReq
            }
            PacketType::PingResp => {
                check_empty(body)?;
                Packet::PingResp
            }
            PacketType::Disconnect => Packet::Disconnect(Disconnect::decode(body, version)?),
            PacketType::Auth => Packet::Auth(Auth::decode(body, version)?),
        })
    }

    /// The type of the packet.
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Self::Connect(_) => PacketType::Connect,
            Self::ConnAck(_) => PacketType::ConnAck,
            Self::Publish(_) => PacketType::Publish,
            Self::PubAck(_) => PacketType::PubAck,
            Self::PubRec(_) => PacketType::PubRec,
            Self::PubRel(_) => PacketType::PubRel,
            Self::PubComp(_) => PacketType::PubComp,
            Self::Subscribe(_) => PacketType::Subscribe,
            Self::SubAck(_) => PacketType::SubAck,
            Self::Unsubscribe(_) => PacketType::Unsubscribe,
            Self::UnsubAck(_) => PacketType::UnsubAck,
            Self::PingReq => PacketType::PingReq,
            Self::PingResp => PacketType::PingResp,
            Self::Disconnect(_) => PacketType::Disconnect,
            Self::Auth(_) => PacketType::Auth,
        }
    }

    /// Appends the packet to `out`; nothing on error. A CONNECT is written in its own version.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooLarge`] above `max_packet_bytes` (the receiver's Maximum Packet Size, or
    /// [`MAX_PACKET_BYTES`](crate::MAX_PACKET_BYTES)); [`EncodeError::FieldTooLong`] for a field of
    /// more than 65,535 bytes.
    pub fn encode(
        &self,
        version: Version,
        max_packet_bytes: usize,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        let max = max_packet_bytes;
        match self {
            Self::Connect(packet) => packet.encode(max, out),
            Self::ConnAck(packet) => packet.encode(version, max, out),
            Self::Publish(packet) => packet.encode(version, max, out),
            Self::PubAck(ack) | Self::PubRec(ack) | Self::PubRel(ack) | Self::PubComp(ack) => {
                encode_ack(self.packet_type(), ack, version, max, out)
            }
            Self::Subscribe(packet) => encode_subscribe(
                version,
                packet.packet_id,
                packet.properties,
                packet.filters(),
                max,
                out,
            ),
            Self::SubAck(packet) => encode_suback(
                version,
                packet.packet_id,
                packet.properties,
                packet.codes(),
                max,
                out,
            ),
            Self::Unsubscribe(packet) => encode_unsubscribe(
                version,
                packet.packet_id,
                packet.properties,
                packet.topics(),
                max,
                out,
            ),
            Self::UnsubAck(packet) => encode_unsuback(
                version,
                packet.packet_id,
                packet.properties,
                packet.codes(),
                max,
                out,
            ),
            Self::PingReq => begin(PacketType::PingReq.first_byte(), 0, max, out),
            Self::PingResp => begin(PacketType::PingResp.first_byte(), 0, max, out),
            Self::Disconnect(packet) => packet.encode(version, max, out),
            Self::Auth(packet) => packet.encode(max, out),
        }
    }
}

/// Checks the flags of every packet but PUBLISH, which has its own.
fn check_flags(packet_type: PacketType, first: u8, version: Version) -> Result<(), DecodeError> {
    let expected = packet_type.first_byte();
    let settles_with_dup = matches!(
        packet_type,
        PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe
    );
    // MQTT 3.1 sets the DUP flag when it repeats these three.
    let dup = if version == Version::V31 && settles_with_dup {
        0b1000
    } else {
        0
    };
    if first & !dup == expected {
        return Ok(());
    }
    // [MQTT-2.1.3-1] [MQTT-3.1.2-12] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1]
    // [MQTT-3.15.1-1]
    // [MQTT311-2.2.2-1] [MQTT311-2.2.2-2] [MQTT311-3.6.1-1] [MQTT311-3.8.1-1] [MQTT311-3.10.1-1]
    // [MQTT311-3.14.1-1]
    Err(DecodeError::malformed("reserved flags of the fixed header"))
}

fn check_empty(body: &[u8]) -> Result<(), DecodeError> {
    if body.is_empty() {
        Ok(())
    } else {
        Err(TRAILING)
    }
}

/// Bytes after the last field of a packet.
const TRAILING: DecodeError = DecodeError::malformed("bytes after the end of the packet");

/// Writes a fixed header if the whole packet fits, and makes room for the rest.
#[inline]
fn begin(
    first: u8,
    remaining_bytes: usize,
    max_packet_bytes: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let packet_bytes = packet_bytes(remaining_bytes);
    // [MQTT-3.1.2-24] [MQTT-3.2.2-15] [MQTT-3.2.2-16]
    if remaining_bytes > MAX_REMAINING_BYTES || packet_bytes > max_packet_bytes {
        return Err(EncodeError::TooLarge { packet_bytes });
    }
    out.reserve(packet_bytes);
    bytes::BufMut::put_u8(out, first);
    put_varint(out, remaining_bytes);
    Ok(())
}

/// Bytes of a string or binary field with its length.
#[inline]
const fn field_bytes(field: &[u8]) -> Result<usize, EncodeError> {
    if field.len() > 65_535 {
        Err(EncodeError::FieldTooLong)
    } else {
        Ok(2 + field.len())
    }
}

/// Bytes of a block of properties with its length.
#[inline]
const fn block_bytes(len: usize) -> usize {
    crate::wire::varint_bytes(len) + len
}

/// Appends a block of properties with its length.
#[inline]
fn put_block(out: &mut BytesMut, block: &[u8]) {
    // [MQTT-2.2.2-1] a length of zero where there are none
    put_varint(out, block.len());
    bytes::BufMut::put_slice(out, block);
}
