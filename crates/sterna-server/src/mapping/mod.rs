//! Messages of the broker in each protocol's form (`docs/mapping.md`); the mapping itself is the crate
//! `sterna-mapping`, which clients share.
//!
//! A message in the broker has MQTT's form: topic, properties, payload. One that came by another
//! protocol also carries its native form, as its publisher wrote it. Subscribers of that protocol
//! get that form.

mod from_amqp;
mod from_http;
mod to_amqp;
mod to_http;

pub(crate) use from_amqp::message_from_amqp;
pub(crate) use from_http::message_from_http;
pub(crate) use to_amqp::{AmqpForm, amqp_form, modified, tail};
pub(crate) use to_http::{entity_tag, http_fields};
