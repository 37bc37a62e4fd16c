//! Limits of a server.

use crate::packet::ConnAck;
use crate::{MAX_PACKET_BYTES, QoS};

/// Bytes that a client sends after CONNECT before it has a CONNACK. Servers limit the bytes that
/// they keep for unknown clients. This number fits into the first flight of TCP and of QUIC.
pub const EARLY_BYTES: usize = 8_192;

/// Messages with QoS 1 and 2 that a client sends before it knows the server's Receive Maximum.
pub const EARLY_PUBLISHES: u16 = 8;

/// The server's limits on this connection (MQTT 5.0 section 3.2.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerLimits {
    /// Messages with QoS 1 and 2 that may be unacknowledged: 1 to 65,535.
    pub receive_maximum: u16,
    /// Highest QoS of a message.
    pub max_qos: QoS,
    /// Whether messages are retained.
    pub retain: bool,
    /// Largest packet, in bytes.
    pub max_packet_bytes: usize,
    /// Highest Topic Alias; 0 for none.
    pub topic_alias_maximum: u16,
    /// Whether filters may have wildcards.
    pub wildcards: bool,
    /// Whether subscriptions may have identifiers.
    pub subscription_identifiers: bool,
    /// Whether subscriptions may be shared.
    pub shared_subscriptions: bool,
}

impl ServerLimits {
    /// Assumptions before the CONNACK: the server has all features of MQTT, with small limits.
    pub const EARLY: Self = Self {
        receive_maximum: EARLY_PUBLISHES,
        max_qos: QoS::ExactlyOnce,
        retain: true,
        max_packet_bytes: EARLY_BYTES,
        topic_alias_maximum: 0,
        wildcards: true,
        subscription_identifiers: true,
        shared_subscriptions: true,
    };

    /// Limits before the CONNACK, to a server that had these limits on an earlier connection.
    #[must_use]
    pub fn early(self) -> Self {
        Self {
            receive_maximum: self.receive_maximum.min(EARLY_PUBLISHES),
            max_packet_bytes: self.max_packet_bytes.min(EARLY_BYTES),
            // Aliases need the server's word on this connection. [MQTT-3.2.2-17]
            topic_alias_maximum: 0,
            ..self
        }
    }

    /// The limits in a CONNACK; absent values have the specification's defaults.
    #[must_use]
    pub fn of(connack: &ConnAck<'_>) -> Self {
        Self {
            receive_maximum: connack.receive_maximum(),
            max_qos: connack.maximum_qos(),
            retain: connack.retain_available(),
            max_packet_bytes: MAX_PACKET_BYTES.min(connack.maximum_packet_bytes() as usize),
            topic_alias_maximum: connack.topic_alias_maximum(),
            wildcards: connack.wildcard_available(),
            subscription_identifiers: connack.subscription_identifier_available(),
            shared_subscriptions: connack.shared_available(),
        }
    }
}
