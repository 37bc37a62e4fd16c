//! Header and properties (part 3, sections 3.2.1 and 3.2.4).

use bytes::BytesMut;

use crate::DecodeError;
use crate::types::{Field, Symbol, Timestamp, Value, composite};

composite! {
    /// Treatment of a message on its way (section 3.2.1).
    #[derive(Copy)]
    Header = 0x70, "amqp:header:list" {
        /// Whether the message must survive restarts of nodes.
        durable: bool, default false;
        /// Higher goes first.
        priority: u8, default 4;
        /// Lifetime in milliseconds.
        ttl: u32, optional;
        /// No other receiver has had it.
        first_acquirer: bool, default false;
        /// Failed attempts to deliver it.
        delivery_count: u32, default 0;
    }
}

impl Default for Header {
    fn default() -> Self {
        Self {
            durable: false,
            priority: 4,
            ttl: None,
            first_acquirer: false,
            delivery_count: 0,
        }
    }
}

composite! {
    /// The sender's properties of a message; never changed on its way (section 3.2.4).
    #[derive(Copy, Default)]
    Properties<'a> = 0x73, "amqp:properties:list" {
        /// Names the message.
        message_id: MessageId<'a>, optional;
        /// The user that made it.
        user_id: &'a [u8], optional;
        /// The node it is for.
        to: Value<'a>, optional;
        /// Subject of the message.
        subject: &'a str, optional;
        /// The node for answers.
        reply_to: Value<'a>, optional;
        /// The message that this one answers.
        correlation_id: MessageId<'a>, optional;
        /// MIME type of the body.
        content_type: Symbol<'a>, optional;
        /// Encodings of the body on top of its type.
        content_encoding: Symbol<'a>, optional;
        /// Time at which the message becomes useless.
        absolute_expiry_time: Timestamp, optional;
        /// Time of creation.
        creation_time: Timestamp, optional;
        /// The group it belongs to.
        group_id: &'a str, optional;
        /// Place of the message in its group.
        group_sequence: u32, optional;
        /// The group of answers.
        reply_to_group_id: &'a str, optional;
    }
}

/// The types that message-id and correlation-id can have (sections 3.2.11 to 3.2.14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum MessageId<'a> {
    Ulong(u64),
    Uuid([u8; 16]),
    Binary(&'a [u8]),
    String(&'a str),
}

impl<'a> Field<'a> for MessageId<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match value {
            Value::Ulong(id) => Ok(Self::Ulong(id)),
            Value::Uuid(id) => Ok(Self::Uuid(id)),
            Value::Binary(id) => Ok(Self::Binary(id)),
            Value::String(id) => Ok(Self::String(id)),
            _ => Err(DecodeError::decode("message-id has the wrong type")),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        Value::from(*self).encode(out);
    }
}

impl<'a> From<MessageId<'a>> for Value<'a> {
    fn from(id: MessageId<'a>) -> Self {
        match id {
            MessageId::Ulong(id) => Self::Ulong(id),
            MessageId::Uuid(id) => Self::Uuid(id),
            MessageId::Binary(id) => Self::Binary(id),
            MessageId::String(id) => Self::String(id),
        }
    }
}
