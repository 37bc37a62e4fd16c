//! The server's end of a connection: order of packets, limits, acknowledgements, versions.

mod command;
mod connection;
mod deliver;

pub use command::{Accept, Reason, Refuse};
pub use connection::Connection;
pub use deliver::{NotSent, OutgoingPublish, Resend, Sent};

use std::num::NonZeroU16;

use crate::alias::TopicName;
use crate::packet::{Auth, Connect, Disconnect, Subscribe, Unsubscribe};
use crate::session::ReceivedId;
use crate::{MAX_PACKET_BYTES, PacketId, PublishProperties, QoS, ReasonCode, Version};

/// The server's limits for a connection. The CONNACK tells the client the values that the protocol
/// can express.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Oldest version that is served.
    pub min_version: Version,
    /// Largest packet that is accepted, in bytes, with its fixed header (Maximum Packet Size).
    pub max_packet_bytes: u32,
    /// Largest packet before the CONNACK, in bytes, while the client is unknown.
    pub max_connect_bytes: u32,
    /// QoS 1 and 2 messages that a 5.0 client may have unacknowledged (Receive Maximum).
    pub receive_maximum: NonZeroU16,
    /// QoS 2 identifiers of any version that a session may have open at a time, in all.
    pub max_incoming_ids: u32,
    /// QoS 1 and 2 messages that are sent to a client without acknowledgement; the client's
    /// Receive Maximum lowers it.
    pub send_window: NonZeroU16,
    /// Topic Aliases that a client may set (Topic Alias Maximum).
    pub topic_alias_maximum: u16,
    /// Bytes of all Topic Names that a connection's aliases may stand for, in each direction.
    pub max_alias_topic_bytes: u32,
    /// Topic Aliases that are set towards a client, if it takes them.
    pub outgoing_topic_aliases: u16,
    /// Highest QoS of publications (Maximum QoS).
    pub maximum_qos: QoS,
    /// Available features.
    pub features: Features,
    /// Time from the start of the connection to its CONNECT, in milliseconds.
    pub connect_timeout_ms: u32,
    /// Payloads of at least this many bytes are not copied into the buffer of the connection.
    pub share_payload_bytes: u32,
    /// Whether a violation on a lane other than control ends that lane only. Some servers of MQTT
    /// over QUIC do that. The specification wants the connection closed ([MQTT-4.13.1-1]).
    pub isolate_lanes: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            min_version: Version::V31,
            max_packet_bytes: 1024 * 1024,
            max_connect_bytes: 64 * 1024,
            receive_maximum: NonZeroU16::new(1024).unwrap_or(NonZeroU16::MIN),
            max_incoming_ids: 16 * 1024,
            send_window: NonZeroU16::new(1024).unwrap_or(NonZeroU16::MIN),
            topic_alias_maximum: 32,
            max_alias_topic_bytes: 64 * 1024,
            outgoing_topic_aliases: 32,
            maximum_qos: QoS::ExactlyOnce,
            features: Features::ALL,
            connect_timeout_ms: 30_000,
            share_payload_bytes: 2048,
            isolate_lanes: false,
        }
    }
}

impl Limits {
    /// The largest packet before or after the CONNACK.
    pub(crate) fn packet_bytes(&self, connected: bool) -> usize {
        let bytes = if connected {
            self.max_packet_bytes
        } else {
            self.max_connect_bytes
        };
        (bytes as usize).min(MAX_PACKET_BYTES)
    }
}

/// A set of optional features of a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Features(u8);

impl Features {
    /// Retained messages.
    pub const RETAIN: Self = Self(1);
    /// Wildcards in Topic Filters.
    pub const WILDCARDS: Self = Self(2);
    /// Shared subscriptions.
    pub const SHARED: Self = Self(4);
    /// Subscription Identifiers.
    pub const IDENTIFIERS: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// Whether all of `other` are in the set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Request of a packet to the server.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A client wants to connect. Until it is answered with [`Connection::accept`],
    /// [`Connection::refuse`] or [`Connection::auth`] no more bytes are to be handed in
    /// ([`Connection::accepts_input`]).
    Connect(Connect<'a>),
    /// A step of an extended authentication. Before the CONNACK, answer as for `Connect`. In a
    /// re-authentication, answer with [`Connection::auth`] or [`Connection::disconnect`].
    Auth(Auth<'a>),
    /// A message was published. Answer QoS 1 with [`Connection::puback`] and QoS 2 with
    /// [`Connection::pubrec`], on the lane on which it arrived.
    Publish(IncomingPublish<'a>),
    /// Answer with [`Connection::suback`].
    Subscribe(Subscribe<'a>),
    /// Answer with [`Connection::unsuback`].
    Unsubscribe(Unsubscribe<'a>),
    /// The client is done with a delivery: it has the message, or refused it with an error code.
    /// Either way it is not sent again ([MQTT-4.4.0-2], [MQTT-4.8.2-6]).
    Delivered {
        /// The tag of the delivery.
        tag: u64,
        /// The client's reason.
        reason: ReasonCode,
    },
    /// The client has a QoS 2 message; `Delivered` follows. The message itself is no longer needed.
    /// Answer with [`Connection::pubrel`] once that is kept, in the order of these events.
    HandedOver {
        /// The tag of the delivery; `None` where the client has said it before, or there is none.
        tag: Option<u64>,
        /// Packet Identifier.
        packet_id: PacketId,
        /// Reason code of the answer.
        reason: ReasonCode,
    },
    /// The client will not send a QoS 2 message again: its identifier is free. Answer with
    /// [`Connection::pubcomp`] once that is kept.
    Released {
        /// The identifier.
        packet_id: PacketId,
        /// The message; `None` where no such message is known.
        received: Option<ReceivedId>,
        /// Reason code of the answer.
        reason: ReasonCode,
    },
    /// A QoS 2 message that was accepted has come again. Answer with [`Connection::pubrec`] and success,
    /// behind the answers to the messages before it.
    Repeated {
        /// Packet Identifier.
        packet_id: PacketId,
    },
    /// The client ends the connection; nothing more is processed. The will is discarded if the
    /// reason is `Success` ([`Disconnect::discards_will`]).
    Disconnect(Disconnect<'a>),
}

/// A received PUBLISH with its topic resolved, and without its DUP flag, which only concerns this
/// hop ([MQTT-3.3.1-3], [MQTT311-3.3.1-3]).
#[derive(Clone, Debug)]
pub struct IncomingPublish<'a> {
    /// The Topic Name, where necessary from the table of aliases.
    pub topic: TopicName<'a>,
    /// QoS of the publication.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// Present exactly when the QoS is not 0.
    pub packet_id: Option<PacketId>,
    /// Present exactly with QoS 2.
    pub received: Option<ReceivedId>,
    /// A message that was forgotten for this one, because there were too many.
    pub displaced: Option<ReceivedId>,
    /// Properties; subscribers get [`PublishProperties::forward`].
    pub properties: PublishProperties<'a>,
    /// The application's data.
    pub payload: &'a [u8],
}
