//! Texts that stand for values of AMQP's simple types.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sterna_amqp::messaging::MessageId;
use sterna_amqp::types::{Value, uuid_text};

use crate::decimal::{DECIMAL32, DECIMAL64, DECIMAL128, Layout};

/// Before the base64 of a binary message-id.
const BASE64: &str = "base64:";

/// Before the bits of a decimal that is no finite number.
const HEXADECIMAL: &str = "0x";

/// Base64 with padding (RFC 4648, section 4).
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a base64 text with padding; `None` for anything else.
#[must_use]
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

fn decimal<const N: usize>(layout: Layout, bits: [u8; N]) -> String {
    let raw = bits
        .iter()
        .fold(0, |raw, &byte| raw << 8 | u128::from(byte));
    layout.text(raw).unwrap_or_else(|| {
        let mut text = String::from(HEXADECIMAL);
        for byte in bits {
            // A string takes any.
            let _ = write!(text, "{byte:02x}");
        }
        text
    })
}

fn parse_decimal<const N: usize>(layout: Layout, text: &str) -> Option<[u8; N]> {
    let raw = match text.strip_prefix(HEXADECIMAL) {
        Some(digits) if digits.len() == 2 * N => u128::from_str_radix(digits, 16).ok()?,
        Some(_) => return None,
        None => layout.parse(text)?,
    };
    raw.to_be_bytes()[16 - N..].try_into().ok()
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    let is_hyphen = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    if bytes.len() != 36 || (0..36).any(|at| is_hyphen(at) != (bytes[at] == b'-')) {
        return None;
    }
    let mut id = [0; 16];
    let mut digits = text.chars().filter(|digit| *digit != '-');
    for byte in &mut id {
        let mut digit = || digits.next()?.to_digit(16);
        *byte = (digit()? << 4 | digit()?) as u8;
    }
    Some(id)
}

/// A simple type: one without values in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Simple {
    Boolean,
    Ubyte,
    Ushort,
    Uint,
    Ulong,
    Byte,
    Short,
    Int,
    Long,
    Float,
    Double,
    Decimal32,
    Decimal64,
    Decimal128,
    Char,
    Timestamp,
    Uuid,
    Binary,
    String,
    Symbol,
}

impl Simple {
    /// Each type with its name, and its letter in the types of a compound value.
    const ALL: [(Self, &'static str, u8); 20] = [
        (Self::Boolean, "boolean", b'?'),
        (Self::Ubyte, "ubyte", b'B'),
        (Self::Ushort, "ushort", b'H'),
        (Self::Uint, "uint", b'I'),
        (Self::Ulong, "ulong", b'Q'),
        (Self::Byte, "byte", b'b'),
        (Self::Short, "short", b'h'),
        (Self::Int, "int", b'i'),
        (Self::Long, "long", b'q'),
        (Self::Float, "float", b'f'),
        (Self::Double, "double", b'd'),
        (Self::Decimal32, "decimal32", b'e'),
        (Self::Decimal64, "decimal64", b'E'),
        (Self::Decimal128, "decimal128", b'G'),
        (Self::Char, "char", b'c'),
        (Self::Timestamp, "timestamp", b't'),
        (Self::Uuid, "uuid", b'u'),
        (Self::Binary, "binary", b'x'),
        (Self::String, "string", b's'),
        (Self::Symbol, "symbol", b'y'),
    ];

    /// The type of a value; `None` for null and for compound ones.
    pub(crate) const fn of(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Boolean(_) => Self::Boolean,
            Value::Ubyte(_) => Self::Ubyte,
            Value::Ushort(_) => Self::Ushort,
            Value::Uint(_) => Self::Uint,
            Value::Ulong(_) => Self::Ulong,
            Value::Byte(_) => Self::Byte,
            Value::Short(_) => Self::Short,
            Value::Int(_) => Self::Int,
            Value::Long(_) => Self::Long,
            Value::Float(_) => Self::Float,
            Value::Double(_) => Self::Double,
            Value::Decimal32(_) => Self::Decimal32,
            Value::Decimal64(_) => Self::Decimal64,
            Value::Decimal128(_) => Self::Decimal128,
            Value::Char(_) => Self::Char,
            Value::Timestamp(_) => Self::Timestamp,
            Value::Uuid(_) => Self::Uuid,
            Value::Binary(_) => Self::Binary,
            Value::String(_) => Self::String,
            Value::Symbol(_) => Self::Symbol,
            Value::Null
            | Value::List(_)
            | Value::Map(_)
            | Value::Array(_)
            | Value::Described(_) => {
                return None;
            }
        })
    }

    /// The name of the type (part 1, section 1.6).
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(crate) fn letter(self) -> u8 {
        Self::ALL[self as usize].2
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known, _)| *known == name);
        found.map(|(this, ..)| *this)
    }

    pub(crate) fn of_letter(letter: u8) -> Option<Self> {
        let found = Self::ALL.iter().find(|(.., known)| *known == letter);
        found.map(|(this, ..)| *this)
    }

    /// Hands over the value of this type that a text stands for. False if there is none.
    pub(crate) fn parse(self, text: &str, take: impl FnOnce(&Value<'_>)) -> bool {
        fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
            text.parse().ok()
        }
        let bytes;
        let value = match self {
            Self::Boolean => number(text).map(Value::Boolean),
            Self::Ubyte => number(text).map(Value::Ubyte),
            Self::Ushort => number(text).map(Value::Ushort),
            Self::Uint => number(text).map(Value::Uint),
            Self::Ulong => number(text).map(Value::Ulong),
            Self::Byte => number(text).map(Value::Byte),
            Self::Short => number(text).map(Value::Short),
            Self::Int => number(text).map(Value::Int),
            Self::Long => number(text).map(Value::Long),
            Self::Float => number(text).map(Value::Float),
            Self::Double => number(text).map(Value::Double),
            Self::Decimal32 => parse_decimal(DECIMAL32, text).map(Value::Decimal32),
            Self::Decimal64 => parse_decimal(DECIMAL64, text).map(Value::Decimal64),
            Self::Decimal128 => parse_decimal(DECIMAL128, text).map(Value::Decimal128),
            Self::Char => number(text).map(Value::Char),
            Self::Timestamp => number(text).map(Value::Timestamp),
            Self::Uuid => parse_uuid(text).map(Value::Uuid),
            Self::Binary => {
                bytes = from_base64(text);
                bytes.as_deref().map(Value::Binary)
            }
            Self::String => Some(Value::String(text)),
            Self::Symbol => text.is_ascii().then_some(Value::Symbol(text)),
        };
        value.as_ref().map(take).is_some()
    }
}

/// The text of a simple value (AMQP 1.0, part 3, section 3.2.5); `None` for compound ones.
pub(crate) fn of_value<'a>(value: &Value<'a>) -> Option<Cow<'a, str>> {
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
        Value::Decimal32(bits) => decimal(DECIMAL32, bits),
        Value::Decimal64(bits) => decimal(DECIMAL64, bits),
        Value::Decimal128(bits) => decimal(DECIMAL128, bits),
        Value::Char(value) => value.to_string(),
        Value::Uuid(id) => uuid_text(&id),
        Value::Binary(bytes) => base64(bytes),
        Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_) => return None,
    };
    Some(Cow::Owned(text))
}

/// The text of a simple value, with its type, from which exactly this value can be read again.
/// `None` for compound values and null, and for NaNs other than the usual one.
pub(crate) fn exact<'a>(value: &Value<'a>) -> Option<(Simple, Cow<'a, str>)> {
    let (simple, text) = (Simple::of(value)?, of_value(value)?);
    let mut is_same = false;
    simple.parse(&text, |back| is_same = back == value);
    is_same.then_some((simple, text))
}

/// The text of a message-id.
pub(crate) fn of_message_id(id: MessageId<'_>) -> Cow<'_, str> {
    match id {
        MessageId::String(text) => Cow::Borrowed(text),
        MessageId::Binary(bytes) => Cow::Owned(format!("{BASE64}{}", base64(bytes))),
        MessageId::Ulong(id) => Cow::Owned(id.to_string()),
        MessageId::Uuid(id) => Cow::Owned(uuid_text(&id)),
    }
}

/// The bytes of the message-id that a text stands for, if the text is base64 by its prefix.
pub(crate) fn binary_message_id(text: &str) -> Option<Vec<u8>> {
    from_base64(text.strip_prefix(BASE64)?)
}

/// A correlation-id as MQTT's Correlation Data.
pub(crate) fn correlation_data(id: MessageId<'_>) -> Cow<'_, [u8]> {
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
            (Value::Float(f32::NEG_INFINITY), Some("-inf")),
            (Value::Char('ß'), Some("ß")),
            (Value::Binary(b"foob"), Some("Zm9vYg==")),
            (
                Value::Uuid(id),
                Some("12121212-1212-1212-1212-121212121212"),
            ),
            (Value::Decimal32([0x32, 0x00, 0x00, 0xd7]), Some("21.5")),
            (Value::Decimal32([0x7c, 0, 0, 1]), Some("0x7c000001")),
            (Value::Map(sterna_amqp::types::Map::EMPTY), None),
        ] {
            assert_eq!(of_value(&value).as_deref(), text);
            let is_simple = Simple::of(&value).is_some();
            assert_eq!(exact(&value).is_some(), is_simple, "{value:?}");
        }
        // A NaN other than the usual one.
        assert!(exact(&Value::Double(f64::from_bits(0x7ff8_0000_0000_0001))).is_none());
    }

    #[test]
    fn types_have_names_and_letters() {
        for (at, (simple, name, letter)) in Simple::ALL.into_iter().enumerate() {
            assert_eq!(simple as usize, at);
            assert_eq!(Simple::of_name(name), Some(simple));
            assert_eq!(Simple::of_letter(letter), Some(simple));
        }
        for bad in [
            "12121212-1212-1212-1212-12121212121",
            "1212121211212-1212-1212-121212121212-",
            "ß",
        ] {
            assert!(!Simple::Uuid.parse(bad, |_| ()), "{bad}");
        }
        assert!(!Simple::Symbol.parse("é", |_| ()));
        assert!(!Simple::Decimal32.parse("0x1", |_| ()));
        assert!(!Simple::Char.parse("ab", |_| ()));
    }
}
