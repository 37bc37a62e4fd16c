//! The front doors' state of a session in the broker, and the names of sessions.

pub(crate) mod amqp;
pub(crate) mod http;
pub(crate) mod topics;

use sterna_broker::{Broker, DoorState, SessionKey, SessionName};
use sterna_mqtt::PacketId;

pub use amqp::Terminus;
pub use http::HttpSession;

/// State that the front door keeps of a session, by the protocol that opened it. Client identifiers
/// of different protocols never meet.
#[derive(Debug)]
pub enum SessionState {
    /// Packet identifiers and messages in flight.
    Mqtt(sterna_mqtt::MqttSession),
    /// The terms of a receiver's link; `None` for a terminus that nobody finds again.
    Amqp(Option<Box<Terminus>>),
    /// Ids of sent messages.
    Http(Box<HttpSession>),
}

impl Default for SessionState {
    fn default() -> Self {
        Self::Mqtt(sterna_mqtt::MqttSession::default())
    }
}

impl DoorState for SessionState {
    fn is_idle(&self) -> bool {
        match self {
            // Packet identifiers of the next connection may begin anew.
            Self::Mqtt(session) => session.is_empty(),
            Self::Amqp(terminus) => terminus.is_none(),
            Self::Http(_) => false,
        }
    }

    fn lasting_bytes(&self) -> usize {
        match self {
            Self::Mqtt(_) | Self::Amqp(None) => 0,
            Self::Amqp(Some(terminus)) => terminus.lasting_bytes(),
            Self::Http(_) => size_of::<HttpSession>(),
        }
    }

    /// MQTT finds the identifier again by the place. A link that is attached again tells places, and takes what it does not
    /// settle by place for new, as after a restart. HTTP gives a new id, and understands the old one.
    fn forget_sent(&mut self, place: u64, tag: u64) -> bool {
        let session = match self {
            Self::Mqtt(session) => session,
            Self::Amqp(_) => return true,
            Self::Http(session) => {
                session.forget_sent();
                return true;
            }
        };
        let packet_id = packet_id_at(place);
        let is_it = (session.outgoing(packet_id)).is_some_and(|sent| sent.tag == tag);
        is_it && session.forget_outgoing(packet_id).is_some()
    }
}

/// The identifier of a delivery from the log: the same after a restart and on other nodes, without a record.
/// [MQTT-4.4.0-1]
pub(crate) fn packet_id_at(position: u64) -> PacketId {
    PacketId::MIN.saturating_add((position % 65_535) as u16)
}

/// First part of the names of sessions of AMQP links: receivers, and in a cluster senders.
pub(crate) const AMQP_PREFIX: &str = "$amqp/";
/// First part of the names of sessions that are anchors of queues.
pub(crate) const QUEUE_PREFIX: &str = "$queue/";
/// First part of the names of sessions of HTTP subscriptions.
pub(crate) const HTTP_PREFIX: &str = "$http/";
/// The beginning of client identifiers that are assigned.
pub(crate) const ASSIGNED_PREFIX: &str = "auto-";

/// A client's own name; empty where it was given a new one, as it will be the next time.
pub(crate) fn own_name(name: &str) -> &str {
    if name.starts_with(ASSIGNED_PREFIX) {
        ""
    } else {
        name
    }
}

/// The protocol of a session, by its name; `queue` for the anchor of an AMQP queue.
pub(crate) fn protocol_of(client_id: &str) -> &'static str {
    let names = [
        (AMQP_PREFIX, "amqp"),
        (QUEUE_PREFIX, "queue"),
        (HTTP_PREFIX, "http"),
    ];
    let known = names
        .iter()
        .find(|(prefix, _)| client_id.starts_with(prefix));
    known.map_or("mqtt", |(_, name)| name)
}

/// The name of the session of a queue's anchor, which is nobody's.
pub(crate) fn anchor_of(name: &str) -> SessionName {
    SessionName::new(None, &format!("{QUEUE_PREFIX}{name}"))
}

/// Whether a client identifier belongs to the broker, so that no MQTT client may have it.
pub(crate) fn is_reserved(client_id: &str) -> bool {
    [AMQP_PREFIX, QUEUE_PREFIX, HTTP_PREFIX]
        .iter()
        .any(|prefix| client_id.starts_with(prefix))
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The option that names a user, or nobody.
fn option_of(user: Option<&str>) -> String {
    user.map_or_else(
        || "--nobody".to_owned(),
        |user| format!("--user={}", quoted(user)),
    )
}

/// The command by which an operator ends a session, for a shell.
pub(crate) fn command_that_ends(session: &SessionName) -> String {
    let whose = option_of(session.user());
    let name = quoted(session.id());
    format!("sterna admin sessions end {whose} -- {name}")
}

/// The command by which an operator ends all sessions of a user, or of clients without one, for a shell.
pub(crate) fn command_that_frees(user: Option<&str>) -> String {
    format!("sterna admin sessions remove {}", option_of(user))
}

/// The name of a reader of the broker, and whose it is: a session's identifier and its user, or the whole filter of a shared
/// subscription.
pub(crate) fn reader_parts(reader: &str) -> (&str, Option<&str>) {
    SessionName::parts_of(reader).unwrap_or((reader, None))
}

/// The MQTT state of a session; `None` for an outdated key.
pub(crate) fn mqtt(
    broker: &Broker<SessionState>,
    session: SessionKey,
) -> Option<&sterna_mqtt::MqttSession> {
    match broker.protocol(session)? {
        SessionState::Mqtt(state) => Some(state),
        SessionState::Amqp(_) | SessionState::Http(_) => None,
    }
}

/// The MQTT state of a session; `None` for an outdated key.
pub(crate) fn mqtt_mut(
    broker: &mut Broker<SessionState>,
    session: SessionKey,
) -> Option<&mut sterna_mqtt::MqttSession> {
    match broker.protocol_mut(session)? {
        SessionState::Mqtt(state) => Some(state),
        SessionState::Amqp(_) | SessionState::Http(_) => None,
    }
}
