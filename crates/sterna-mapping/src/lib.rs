//! The mapping between MQTT, AMQP 1.0 and HTTP (`docs/mapping.md`), for brokers and clients. It works on
//! views: property blocks of MQTT, [`MessageView`]s of AMQP, fields of HTTP. No sockets, no clock, no
//! state.
//!
//! MQTT's form is the middle: [`from_amqp()`] and [`from_fields`] lead to it, [`to_amqp()`] and [`to_fields`]
//! from it.
//!
//! ```
//! use bytes::BytesMut;
//! use sterna_amqp::messaging::{Header, MessageView, MessageWriter};
//! use sterna_amqp::types::Value;
//! use sterna_mapping::{ToAmqp, from_amqp, to_amqp, topic_of_address};
//! use sterna_mqtt::PropertyContext;
//!
//! // A number of AMQP is text in MQTT, and the mark `amqp-type` says which number it was.
//! let mut sent = BytesMut::new();
//! MessageWriter::new(&mut sent).value(&Value::Double(21.5));
//! let view = MessageView::parse(&sent)?;
//! let mqtt = from_amqp(&view, |address, _| topic_of_address(address))?;
//! let properties = mqtt.properties.publish_properties(PropertyContext::Publish).expect("valid");
//! assert_eq!(&*mqtt.payload, b"21.5");
//! assert_eq!(properties.content_type(), Some("text/plain"));
//! assert_eq!(properties.user_properties().next(), Some(("amqp-type", "double")));
//!
//! // The way back.
//! let form = ToAmqp { topic: "a/b", header: Header::default(), retain: false, annotations: None };
//! let mut back = BytesMut::new();
//! let rest = to_amqp(&properties, &mqtt.payload, &form, &mut back);
//! back.extend_from_slice(rest);
//! let view = MessageView::parse(&back)?;
//! assert!(matches!(view.body(), sterna_amqp::messaging::Body::Value(Value::Double(21.5))));
//! # Ok::<(), sterna_amqp::DecodeError>(())
//! ```
//!
//! [`MessageView`]: sterna_amqp::messaging::MessageView

mod address;
mod body;
mod decimal;
mod fields;
pub mod frame;
mod from_amqp;
mod json;
pub mod percent;
mod text;
mod to_amqp;

pub use address::{TOPIC_PREFIX, address_of_topic, topic_of_address};
pub use fields::{
    FieldError, FieldSource, FromFields, ToFields, field, from_fields, is_field_value, to_fields,
};
pub use from_amqp::{FromAmqp, from_amqp, is_to_be_retained};
pub use text::{base64, from_base64};
pub use to_amqp::{ToAmqp, merge_annotations, to_amqp};

/// Names of the User Properties for fields that only AMQP has.
pub mod name {
    #![allow(missing_docs, reason = "the names are AMQP's")]
    pub const SUBJECT: &str = "amqp-subject";
    pub const MESSAGE_ID: &str = "amqp-message-id";
    pub const USER_ID: &str = "amqp-user-id";
    pub const CONTENT_ENCODING: &str = "amqp-content-encoding";
    pub const CREATION_TIME: &str = "amqp-creation-time";
    pub const GROUP_ID: &str = "amqp-group-id";
    pub const GROUP_SEQUENCE: &str = "amqp-group-sequence";
    pub const REPLY_TO_GROUP_ID: &str = "amqp-reply-to-group-id";
    pub const PRIORITY: &str = "amqp-priority";
    /// The mark: type of the body whose text or JSON is the payload.
    pub const TYPE: &str = "amqp-type";
    /// The publisher's content-type of a body that is the payload in its encoding.
    pub const CONTENT_TYPE: &str = "amqp-content-type";
}

/// Content Type of a payload that is the encoding of AMQP body sections.
pub const AMQP_BODY: &str = "application/vnd.amqp";

/// The message annotation that stands for MQTT's RETAIN: true.
pub const RETAIN_ANNOTATION: &str = "x-opt-retain";

/// The delivery annotation that names the topic where neither `to` nor the link's address does.
pub const TOPIC_ANNOTATION: &str = "x-opt-topic";

/// Priority of a message whose header says none (AMQP 1.0, part 3, section 3.2.1).
pub const DEFAULT_PRIORITY: u8 = 4;
