//! Texts that stand for values of AMQP types in MQTT's user properties.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sterna_amqp::messaging::MessageId;
use sterna_amqp::types::{Value, uuid_text};

/// Before the base64 of a binary message-id.
const BASE64: &str = "base64:";

/// Base64 with padding (RFC 4648, section 4).
pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a base64 text with padding; `None` for anything else.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The text of a simple value (AMQP 1.0, part 3, section 3.2.5); `None` for compound ones.
pub(super) fn of_value<'a>(value: &Value<'a>) -> Option<Cow<'a, str>> {
    let text = match *value {
        Value::Null => return Some(Cow::Borrowed("")),
        Value::String(text) | Value::Symbol(text) => return Some(Cow::Borrowed(text)),
        Value::Boolean(value) => value.to_string(),
        Value::Ubyte(value) => value.to_string(),
        Value::Ushort(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Ulong(value) => value.to_string(),
        Value::Byte(value) => value.to_string(),
        Value::Short(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Long(value) | Value::Timestamp(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Double(value) => value.to_string(),
        Value::Decimal32(bits) => hexadecimal(&bits),
        Value::Decimal64(bits) => hexadecimal(&bits),
        Value::Decimal128(bits) => hexadecimal(&bits),
        Value::Char(value) => value.to_string(),
        Value::Uuid(id) => uuid_text(&id),
        Value::Binary(bytes) => base64(bytes),
        Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_) => return None,
    };
    Some(Cow::Owned(text))
}

/// The text of a message-id.
pub(super) fn of_message_id(id: MessageId<'_>) -> Cow<'_, str> {
    match id {
        MessageId::String(text) => Cow::Borrowed(text),
        MessageId::Binary(bytes) => Cow::Owned(format!("{BASE64}{}", base64(bytes))),
        MessageId::Ulong(id) => Cow::Owned(id.to_string()),
        MessageId::Uuid(id) => Cow::Owned(uuid_text(&id)),
    }
}

/// The message-id of a text: its bytes if it is base64 by its prefix, otherwise the text itself.
pub(super) fn binary_message_id(text: &str) -> Option<Vec<u8>> {
    from_base64(text.strip_prefix(BASE64)?)
}

/// A correlation-id as MQTT's Correlation Data.
pub(super) fn correlation_data(id: MessageId<'_>) -> Cow<'_, [u8]> {
    match id {
        MessageId::String(text) => Cow::Borrowed(text.as_bytes()),
        MessageId::Binary(bytes) => Cow::Borrowed(bytes),
        MessageId::Ulong(id) => Cow::Owned(id.to_string().into_bytes()),
        MessageId::Uuid(id) => Cow::Owned(uuid_text(&id).into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_texts() {
        let id = [0x12; 16];
        for (value, text) in [
            (Value::Null, Some("")),
            (Value::Boolean(true), Some("true")),
            (Value::Long(-7), Some("-7")),
            (Value::Double(1.5), Some("1.5")),
            (Value::Char('ß'), Some("ß")),
            (Value::Binary(b"foob"), Some("Zm9vYg==")),
            (
                Value::Uuid(id),
                Some("12121212-1212-1212-1212-121212121212"),
            ),
            (Value::Decimal32([1, 2, 3, 4]), Some("0x01020304")),
            (Value::Map(sterna_amqp::types::Map::EMPTY), None),
        ] {
            assert_eq!(of_value(&value).as_deref(), text);
        }
    }
}
