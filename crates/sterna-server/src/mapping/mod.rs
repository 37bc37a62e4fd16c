//! What a message of one protocol looks like in another (`docs/mapping.md`).
//!
//! A message in the broker has MQTT's form: topic, properties, payload. One that came by another
//! protocol also carries what its publisher wrote, its native form, which subscribers of that
//! protocol get.

mod from_amqp;
mod from_http;
pub(crate) mod percent;
mod text;
mod to_amqp;
mod to_http;

pub(crate) use from_amqp::message_from_amqp;
pub(crate) use from_http::{message_from_frame, message_from_http};
pub(crate) use to_amqp::{AmqpForm, amqp_form, tail};
pub(crate) use to_http::{entity_tag, http_fields};

/// Names of the user properties that carry what only AMQP has a field for.
mod name {
    pub(super) const SUBJECT: &str = "amqp-subject";
    pub(super) const MESSAGE_ID: &str = "amqp-message-id";
    pub(super) const USER_ID: &str = "amqp-user-id";
    pub(super) const CONTENT_ENCODING: &str = "amqp-content-encoding";
    pub(super) const CREATION_TIME: &str = "amqp-creation-time";
    pub(super) const GROUP_ID: &str = "amqp-group-id";
    pub(super) const GROUP_SEQUENCE: &str = "amqp-group-sequence";
    pub(super) const REPLY_TO_GROUP_ID: &str = "amqp-reply-to-group-id";
    pub(super) const PRIORITY: &str = "amqp-priority";
}

/// Names of HTTP's fields (`docs/http.md`), in lower case.
mod field {
    pub(super) const CONTENT_TYPE: &str = "content-type";
    pub(super) const QOS: &str = "sterna-qos";
    pub(super) const RETAIN: &str = "sterna-retain";
    pub(super) const EXPIRY: &str = "sterna-expiry";
    pub(super) const RESPONSE_TOPIC: &str = "sterna-response-topic";
    pub(super) const CORRELATION_DATA: &str = "sterna-correlation-data";
    pub(super) const USER_PROPERTY: &str = "sterna-user-property";
    pub(super) const PAYLOAD_FORMAT: &str = "sterna-payload-format";
    /// What errors of the content are said of.
    pub(super) const CONTENT: &str = "content";
    /// What errors of a frame's properties are said of.
    pub(super) const PROPERTIES: &str = "properties";
}

/// Content Type of a payload that is the encoding of AMQP body sections.
const AMQP_BODY: &str = "application/vnd.amqp";

/// The message annotation that stands for MQTT's RETAIN.
const RETAIN: &str = "x-opt-retain";

/// The delivery annotation that names the topic where `to` does not.
const TOPIC: &str = "x-opt-topic";

/// Priority of a message that does not say (AMQP 1.0, part 3, section 3.2.1).
const DEFAULT_PRIORITY: u8 = 4;
