//! Values of any type, kept.

use bytes::{BufMut as _, Bytes, BytesMut};
use sterna_amqp::types::{self, Encoded, ListWriter, MapWriter, code};

/// One value of any type (part 1), with everything in it.
///
/// Floating-point numbers are compared as numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Boolean(bool),
    /// Unsigned, 8 bits.
    Ubyte(u8),
    /// Unsigned, 16 bits.
    Ushort(u16),
    /// Unsigned, 32 bits.
    Uint(u32),
    /// Unsigned, 64 bits.
    Ulong(u64),
    /// Signed, 8 bits.
    Byte(i8),
    /// Signed, 16 bits.
    Short(i16),
    /// Signed, 32 bits.
    Int(i32),
    /// Signed, 64 bits.
    Long(i64),
    /// IEEE 754 binary32.
    Float(f32),
    /// IEEE 754 binary64.
    Double(f64),
    /// IEEE 754 decimal32, as its bits.
    Decimal32([u8; 4]),
    /// IEEE 754 decimal64, as its bits.
    Decimal64([u8; 8]),
    /// IEEE 754 decimal128, as its bits.
    Decimal128([u8; 16]),
    /// A Unicode character.
    Char(char),
    /// Milliseconds since the Unix epoch.
    Timestamp(i64),
    /// RFC 4122.
    Uuid([u8; 16]),
    /// Bytes.
    Binary(Bytes),
    /// UTF-8.
    String(String),
    /// ASCII, from a constrained domain.
    Symbol(String),
    /// Values of any types.
    List(Vec<Self>),
    /// Keys and values of any types, in the order of their encoding.
    Map(Vec<(Self, Self)>),
    /// Values of one type, as they are encoded.
    Array(Encoded),
    /// A value with a descriptor, which says what it means.
    Described(Box<(Self, Self)>),
}

impl Value {
    /// A symbol.
    #[must_use]
    pub fn symbol(text: impl Into<String>) -> Self {
        Self::Symbol(text.into())
    }

    /// An array of symbols.
    #[must_use]
    pub fn symbols(symbols: &[&str]) -> Self {
        let mut bytes = BytesMut::new();
        let data: usize = symbols.iter().map(|symbol| 4 + symbol.len()).sum();
        bytes.put_u8(code::ARRAY32);
        bytes.put_u32(data as u32 + 5);
        bytes.put_u32(symbols.len() as u32);
        bytes.put_u8(code::SYM32);
        for symbol in symbols {
            bytes.put_u32(symbol.len() as u32);
            bytes.put_slice(symbol.as_bytes());
        }
        // In its shortest form, as it comes back.
        types::Value::decode(&bytes).map_or(Self::Null, |array| Self::Array(Encoded::new(&array)))
    }

    /// The text of a string or symbol.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::String(text) | Self::Symbol(text) => Some(text),
            _ => None,
        }
    }

    /// Appends its encoding.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::List(values) => {
                let mut list = ListWriter::new(out);
                for value in values {
                    value.encode(list.entry());
                }
                list.finish();
            }
            Self::Map(entries) => write_map(entries, out),
            Self::Array(array) => out.put_slice(array.bytes()),
            Self::Described(parts) => {
                out.put_u8(code::DESCRIBED);
                parts.0.encode(out);
                parts.1.encode(out);
            }
            simple => simple.simple().encode(out),
        }
    }

    /// Keeps it in its encoding.
    ///
    /// # Errors
    /// When it is nested more deeply than a peer has to take.
    pub(crate) fn encoded(&self) -> Result<Encoded, super::Error> {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        Encoded::from_bytes(out.freeze()).map_err(super::Error::Message)
    }

    /// A value that holds no others.
    fn simple(&self) -> types::Value<'_> {
        match self {
            Self::Boolean(v) => types::Value::Boolean(*v),
            Self::Ubyte(v) => types::Value::Ubyte(*v),
            Self::Ushort(v) => types::Value::Ushort(*v),
            Self::Uint(v) => types::Value::Uint(*v),
            Self::Ulong(v) => types::Value::Ulong(*v),
            Self::Byte(v) => types::Value::Byte(*v),
            Self::Short(v) => types::Value::Short(*v),
            Self::Int(v) => types::Value::Int(*v),
            Self::Long(v) => types::Value::Long(*v),
            Self::Float(v) => types::Value::Float(*v),
            Self::Double(v) => types::Value::Double(*v),
            Self::Decimal32(v) => types::Value::Decimal32(*v),
            Self::Decimal64(v) => types::Value::Decimal64(*v),
            Self::Decimal128(v) => types::Value::Decimal128(*v),
            Self::Char(v) => types::Value::Char(*v),
            Self::Timestamp(v) => types::Value::Timestamp(*v),
            Self::Uuid(v) => types::Value::Uuid(*v),
            Self::Binary(v) => types::Value::Binary(v),
            Self::String(v) => types::Value::String(v),
            Self::Symbol(v) => types::Value::Symbol(v),
            Self::Null | Self::List(_) | Self::Map(_) | Self::Array(_) | Self::Described(_) => {
                types::Value::Null
            }
        }
    }
}

/// Appends a map.
pub(crate) fn write_map(entries: &[(Value, Value)], out: &mut BytesMut) {
    let mut map = MapWriter::new(out);
    fill_map(entries, &mut map);
    map.finish();
}

/// Appends the entries of a map.
pub(crate) fn fill_map(entries: &[(Value, Value)], map: &mut MapWriter<'_>) {
    let mut key_bytes = BytesMut::new();
    for (key, value) in entries {
        key_bytes.clear();
        key.encode(&mut key_bytes);
        // The encoding of this library can be read; a key that is nested too deeply is not a key.
        if let Ok(key) = types::Value::decode(&key_bytes) {
            value.encode(map.entry(&key));
        }
    }
}

/// The entries of a map.
pub(crate) fn entries_of(map: types::Map<'_>) -> Vec<(Value, Value)> {
    map.iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

impl From<types::Value<'_>> for Value {
    fn from(value: types::Value<'_>) -> Self {
        match value {
            types::Value::Null => Self::Null,
            types::Value::Boolean(v) => Self::Boolean(v),
            types::Value::Ubyte(v) => Self::Ubyte(v),
            types::Value::Ushort(v) => Self::Ushort(v),
            types::Value::Uint(v) => Self::Uint(v),
            types::Value::Ulong(v) => Self::Ulong(v),
            types::Value::Byte(v) => Self::Byte(v),
            types::Value::Short(v) => Self::Short(v),
            types::Value::Int(v) => Self::Int(v),
            types::Value::Long(v) => Self::Long(v),
            types::Value::Float(v) => Self::Float(v),
            types::Value::Double(v) => Self::Double(v),
            types::Value::Decimal32(v) => Self::Decimal32(v),
            types::Value::Decimal64(v) => Self::Decimal64(v),
            types::Value::Decimal128(v) => Self::Decimal128(v),
            types::Value::Char(v) => Self::Char(v),
            types::Value::Timestamp(v) => Self::Timestamp(v),
            types::Value::Uuid(v) => Self::Uuid(v),
            types::Value::Binary(v) => Self::Binary(Bytes::copy_from_slice(v)),
            types::Value::String(v) => Self::String(v.to_owned()),
            types::Value::Symbol(v) => Self::Symbol(v.to_owned()),
            types::Value::List(list) => Self::List(list.iter().map(Into::into).collect()),
            types::Value::Map(map) => Self::Map(entries_of(map)),
            types::Value::Array(_) => Self::Array(Encoded::new(&value)),
            types::Value::Described(described) => Self::Described(Box::new((
                described.descriptor().into(),
                described.value().into(),
            ))),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident;)*) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

from! {
    bool => Boolean;
    u8 => Ubyte;
    u16 => Ushort;
    u32 => Uint;
    u64 => Ulong;
    i8 => Byte;
    i16 => Short;
    i32 => Int;
    i64 => Long;
    f32 => Float;
    f64 => Double;
    char => Char;
    &str => String;
    String => String;
    Bytes => Binary;
    Vec<u8> => Binary;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every type comes back as it went.
    #[test]
    fn values_survive_their_encoding() {
        let values = Value::List(vec![
            Value::Null,
            true.into(),
            7_u8.into(),
            700_u16.into(),
            70_000_u32.into(),
            7_u64.into(),
            (-7_i8).into(),
            (-700_i16).into(),
            (-70_000_i32).into(),
            (-7_i64).into(),
            1.5_f32.into(),
            2.5_f64.into(),
            Value::Decimal32([1; 4]),
            Value::Decimal64([2; 8]),
            Value::Decimal128([3; 16]),
            'ß'.into(),
            Value::Timestamp(-1),
            Value::Uuid([9; 16]),
            vec![0_u8; 300].into(),
            "text".into(),
            Value::symbol("sym"),
            Value::Map(vec![("k".into(), Value::List(Vec::new()))]),
            Value::symbols(&["a", "b"]),
            Value::Described(Box::new((Value::Ulong(0x77), "inside".into()))),
        ]);
        let encoded = values.encoded().unwrap();
        assert_eq!(Value::from(encoded.value()), values);
    }
}
