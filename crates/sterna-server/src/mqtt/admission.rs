//! The wishes of a CONNECT, kept while the client's admission is decided.

use bytes::BytesMut;
use sterna_broker::{InvalidMessage, MessageHeader, MessageParts, Qos, Will};
use sterna_mqtt::packet::{Connect, Will as WillPacket};
use sterna_mqtt::{PublishProperties, QoS, ReasonCode};

use crate::config::Mqtt;
use crate::identity::is_client_id;
use crate::session::{ASSIGNED_PREFIX, is_reserved};

/// The User Property with which a client asks in CONNECT for messages of QoS 0 in QUIC datagrams. The broker
/// agrees with it in CONNACK.
pub(super) const DATAGRAMS_PROPERTY: (&str, &str) = ("datagrams", "1");

/// A CONNECT's wishes, owned.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The client identifier, assigned where the client sent none.
    pub(super) client_id: String,
    /// Whether the identifier was assigned.
    pub(super) assigned: bool,
    pub(super) clean_start: bool,
    /// Session Expiry Interval to grant.
    pub(super) expiry_s: u32,
    /// Whether that is less than the client asked for.
    pub(super) expiry_reduced: bool,
    /// Keep Alive to impose, where it is not the client's own.
    pub(super) server_keep_alive_s: Option<u16>,
    pub(super) will: Option<Will>,
    /// Whether messages of QoS 0 may come as QUIC datagrams.
    pub(super) asks_datagrams: bool,
    /// Last message of an enhanced authentication.
    pub(super) authentication_data: Option<String>,
}

impl Admission {
    /// Reads a CONNECT.
    ///
    /// # Errors
    /// The reason code to refuse it with, and why.
    pub(super) fn new(
        connect: &Connect<'_>,
        limits: &Mqtt,
        server_keep_alive_s: Option<u16>,
        now_ms: u64,
    ) -> Result<Self, (ReasonCode, &'static str)> {
        let assigned = connect.client_id.is_empty();
        // [MQTT-3.1.3-8] [MQTT311-3.1.3-8] [MQTT311-3.1.3-9] a session that is to be kept needs a
        // name that the client knows; 5.0 tells it the assigned one, the older versions cannot.
        if assigned && !connect.version.is_v5() && !connect.clean_start {
            return Err((
                ReasonCode::ClientIdentifierNotValid,
                "an empty client identifier needs a clean session",
            ));
        }
        // [MQTT-3.1.3-3] [MQTT-3.1.3-5] [MQTT311-3.1.3-5] any UTF-8 string up to the limit is taken that
        // has no control characters
        if connect.client_id.len() > usize::from(limits.maximum_client_id_bytes) {
            return Err((
                ReasonCode::ClientIdentifierNotValid,
                "the client identifier is longer than mqtt.maximum_client_id_bytes",
            ));
        }
        if !is_client_id(connect.client_id) {
            return Err((
                ReasonCode::ClientIdentifierNotValid,
                "the client identifier has control characters",
            ));
        }
        if is_reserved(connect.client_id) {
            return Err((
                ReasonCode::ClientIdentifierNotValid,
                "client identifiers that start with $amqp/ or $queue/ are the broker's",
            ));
        }
        // [MQTT-3.1.3-4] [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT311-3.1.3-6] [MQTT311-3.1.3-7]
        let client_id = if assigned {
            assign()?
        } else {
            connect.client_id.to_owned()
        };
        let asked_s = connect.session_expiry_s();
        let expiry_s = Self::expiry_s(connect, limits);
        let will = match &connect.will {
            None => None,
            Some(will) => Some(convert_will(will, limits, now_ms)?),
        };
        Ok(Self {
            client_id,
            assigned,
            clean_start: connect.clean_start,
            expiry_s,
            expiry_reduced: expiry_s < asked_s && connect.version.is_v5(),
            server_keep_alive_s: keep_alive(
                connect,
                server_keep_alive_s,
                limits.maximum_keep_alive_s,
            ),
            will,
            asks_datagrams: connect
                .properties
                .user_properties()
                .any(|property| property == DATAGRAMS_PROPERTY),
            authentication_data: None,
        })
    }
}

impl Admission {
    /// The Session Expiry Interval that a CONNECT is granted, in seconds.
    pub(super) fn expiry_s(connect: &Connect<'_>, limits: &Mqtt) -> u32 {
        let most_s = if connect.version.is_v5() {
            limits.maximum_session_expiry_s
        } else {
            limits.legacy_session_expiry_s
        };
        connect.session_expiry_s().min(most_s)
    }
}

/// The Keep Alive that the broker imposes, if it is not the client's own.
fn keep_alive(connect: &Connect<'_>, imposed_s: Option<u16>, most_s: u16) -> Option<u16> {
    // [MQTT-3.2.2-22] only 5.0 has a way to tell it.
    if !connect.version.is_v5() {
        return None;
    }
    let asked = connect.keep_alive_s;
    let granted = imposed_s.unwrap_or({
        if most_s > 0 && (asked == 0 || asked > most_s) {
            most_s
        } else {
            asked
        }
    });
    (granted != asked).then_some(granted)
}

/// An identifier that nobody else has: 96 random bits.
fn assign() -> Result<String, (ReasonCode, &'static str)> {
    use std::fmt::Write as _;
    let mut random = [0; 12];
    getrandom::fill(&mut random).map_err(|_| {
        (
            ReasonCode::ServerUnavailable,
            "no randomness for a client identifier",
        )
    })?;
    let mut id = String::from(ASSIGNED_PREFIX);
    for byte in random {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

fn convert_will(
    will: &WillPacket<'_>,
    limits: &Mqtt,
    now_ms: u64,
) -> Result<Will, (ReasonCode, &'static str)> {
    // [MQTT-3.2.2-12]
    if will.qos as u8 > limits.maximum_qos {
        return Err((ReasonCode::QoSNotSupported, "the will's QoS is not served"));
    }
    // [MQTT-3.2.2-13]
    if will.retain && !limits.retain_available {
        return Err((
            ReasonCode::RetainNotSupported,
            "retained messages are not served",
        ));
    }
    if has_more_user_properties(&will.properties, limits.maximum_list_entries) {
        let detail = "the will has more User Properties than mqtt.maximum_list_entries";
        return Err((ReasonCode::QuotaExceeded, detail));
    }
    // [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.3-10] [MQTT311-3.1.2-16] [MQTT311-3.1.2-17]
    let header = MessageHeader {
        qos: qos(will.qos),
        retain: will.retain,
        published_ms: now_ms,
        expires_at_ms: None,
    };
    let message = in_parts(
        will.topic,
        &will.properties,
        will.payload,
        header,
        |parts| {
            let detail = "the message's parts do not fit";
            (parts.to_message()).map_err(|InvalidMessage| (ReasonCode::TopicNameInvalid, detail))
        },
    )?;
    Ok(Will {
        message,
        delay_s: will.properties.will_delay_s(),
        expiry_s: will.properties.message_expiry_s(),
        is_given: false,
        is_unproved: false,
    })
}

/// Bytes of the shortest User Property: its identifier and the lengths of two empty texts.
const USER_PROPERTY_BYTES: usize = 5;

/// Whether a message has more User Properties than that.
pub(super) fn has_more_user_properties(properties: &PublishProperties<'_>, most: u32) -> bool {
    let most = most as usize;
    // Nearly all have no room for so many, and are not looked through.
    properties.forward().len() / USER_PROPERTY_BYTES > most
        && properties.user_properties().nth(most).is_some()
}

/// Does something with a message that lies in its packet. Properties that end at this hop are left out.
#[inline]
pub(super) fn in_parts<R>(
    topic: &str,
    properties: &PublishProperties<'_>,
    payload: &[u8],
    header: MessageHeader,
    work: impl FnOnce(MessageParts<'_>) -> R,
) -> R {
    let forward = properties.forward();
    if let Some(contiguous) = forward.contiguous() {
        return work(MessageParts::new(topic, contiguous, payload, header));
    }
    let mut rest = BytesMut::with_capacity(forward.len());
    forward.copy_to(&mut rest);
    work(MessageParts::new(topic, &rest, payload, header))
}

/// The broker's word for a QoS.
pub(super) const fn qos(qos: QoS) -> Qos {
    match qos {
        QoS::AtMostOnce => Qos::AtMostOnce,
        QoS::AtLeastOnce => Qos::AtLeastOnce,
        QoS::ExactlyOnce => Qos::ExactlyOnce,
    }
}

/// The engine's word for a QoS.
pub(super) const fn wire_qos(qos: Qos) -> QoS {
    match qos {
        Qos::AtMostOnce => QoS::AtMostOnce,
        Qos::AtLeastOnce => QoS::AtLeastOnce,
        Qos::ExactlyOnce => QoS::ExactlyOnce,
    }
}
