//! The small vocabulary that every other module uses.

use std::fmt;
use std::num::NonZeroU16;

/// A Packet Identifier: 1 to 65,535 (MQTT 5.0 section 2.2.1).
pub type PacketId = NonZeroU16;

/// Largest value of the Remaining Length field, in bytes (MQTT 5.0 section 1.5.5).
pub const MAX_REMAINING_BYTES: usize = 268_435_455;

/// Largest packet that can exist: fixed header of five bytes and [`MAX_REMAINING_BYTES`].
pub const MAX_PACKET_BYTES: usize = MAX_REMAINING_BYTES + 5;

/// Version of the protocol, chosen by the CONNECT packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1: protocol name `MQIsdp`, level 3.
    V31 = 3,
    /// MQTT 3.1.1: protocol name `MQTT`, level 4.
    V311 = 4,
    /// MQTT 5.0: protocol name `MQTT`, level 5.
    V5 = 5,
}

impl Version {
    /// Whether packets of this version carry properties and reason codes.
    #[must_use]
    pub const fn is_v5(self) -> bool {
        matches!(self, Self::V5)
    }

    /// The protocol name of the CONNECT packet.
    #[must_use]
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::V31 => "MQIsdp",
            Self::V311 | Self::V5 => "MQTT",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V31 => "3.1",
            Self::V311 => "3.1.1",
            Self::V5 => "5.0",
        })
    }
}

/// Quality of Service (MQTT 5.0 section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum QoS {
    /// QoS 0: at most once.
    #[default]
    AtMostOnce = 0,
    /// QoS 1: at least once.
    AtLeastOnce = 1,
    /// QoS 2: exactly once.
    ExactlyOnce = 2,
}

impl QoS {
    /// The level with this number, or `None` for anything above 2.
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }

    /// Whether packets of this level carry a Packet Identifier and are acknowledged.
    #[must_use]
    pub const fn is_acknowledged(self) -> bool {
        !matches!(self, Self::AtMostOnce)
    }
}

/// Type of a control packet: the upper four bits of its first byte (MQTT 5.0 section 2.1.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PacketType {
    /// Connection request, client to server.
    Connect = 1,
    /// Connection acknowledgement, server to client.
    ConnAck = 2,
    /// Application message, both directions.
    Publish = 3,
    /// QoS 1 acknowledgement.
    PubAck = 4,
    /// QoS 2, first acknowledgement.
    PubRec = 5,
    /// QoS 2, release.
    PubRel = 6,
    /// QoS 2, completion.
    PubComp = 7,
    /// Subscribe request, client to server.
    Subscribe = 8,
    /// Subscribe acknowledgement, server to client.
    SubAck = 9,
    /// Unsubscribe request, client to server.
    Unsubscribe = 10,
    /// Unsubscribe acknowledgement, server to client.
    UnsubAck = 11,
    /// Ping request, client to server.
    PingReq = 12,
    /// Ping response, server to client.
    PingResp = 13,
    /// Orderly end; both directions in 5.0, client to server before.
    Disconnect = 14,
    /// Authentication exchange, 5.0 only.
    Auth = 15,
}

impl PacketType {
    /// The type that the first byte of a packet names; `None` for the reserved type 0.
    #[inline]
    #[must_use]
    pub const fn from_first_byte(first: u8) -> Option<Self> {
        Some(match first >> 4 {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return None,
        })
    }

    /// The first byte of a packet of this type with the flags that the specification prescribes;
    /// PUBLISH adds its own.
    #[must_use]
    pub const fn first_byte(self) -> u8 {
        // [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1]
        let flags = match self {
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        };
        ((self as u8) << 4) | flags
    }

    /// Whether a client may send packets of this type to a server.
    #[must_use]
    pub const fn is_sent_by_client(self) -> bool {
        !matches!(
            self,
            Self::ConnAck | Self::SubAck | Self::UnsubAck | Self::PingResp
        )
    }

    /// Whether a server may send packets of this type to a client that speaks `version`.
    #[must_use]
    pub const fn is_sent_by_server(self, version: Version) -> bool {
        match self {
            Self::Connect | Self::Subscribe | Self::Unsubscribe | Self::PingReq => false,
            Self::Disconnect | Self::Auth => version.is_v5(),
            _ => true,
        }
    }
}
