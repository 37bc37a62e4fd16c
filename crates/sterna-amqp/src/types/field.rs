//! Fields of composite types.

use bytes::BytesMut;

use super::encode::symbols;
use super::{Array, Map, Reader, Value};
use crate::DecodeError;

/// A symbol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Symbol<'a>(pub &'a str);

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Timestamp(pub i64);

/// Any number of symbols: null is none, a symbol is one, an array holds any number (part 1, section
/// 1.4, `multiple="true"`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Multiple<'a> {
    /// None.
    #[default]
    None,
    /// One, as a value of its own.
    One(Symbol<'a>),
    /// Those of an array of symbols.
    Array(Array<'a>),
    /// Those of a slice, for encoding.
    Slice(&'a [&'a str]),
}

impl<'a> Multiple<'a> {
    /// The symbols in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let (one, array, slice) = match *self {
            Self::None => (None, None, [].as_slice()),
            Self::One(one) => (Some(one.0), None, [].as_slice()),
            Self::Array(array) => (None, Some(array), [].as_slice()),
            Self::Slice(slice) => (None, None, slice),
        };
        let array = array.into_iter().flatten().filter_map(|value| match value {
            Value::Symbol(symbol) => Some(symbol),
            _ => None,
        });
        one.into_iter().chain(array).chain(slice.iter().copied())
    }

    /// Whether the symbol is among them.
    #[must_use]
    pub fn contains(&self, symbol: &str) -> bool {
        self.iter().any(|one| one == symbol)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Appends the value: null for none, one symbol, or an array of them.
    pub fn encode(&self, out: &mut BytesMut) {
        match *self {
            // Some decoders take no array without elements.
            Self::None | Self::Slice([]) => Value::Null.encode(out),
            Self::One(one) => Value::Symbol(one.0).encode(out),
            Self::Array(array) => Value::Array(array).encode(out),
            Self::Slice([one]) => Value::Symbol(one).encode(out),
            Self::Slice(slice) => symbols(out, slice.iter().copied()),
        }
    }
}

/// A type that a field of a composite can have.
pub(crate) trait Field<'a>: Sized {
    /// Reads it from a value that is not null.
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError>;

    /// Appends its encoding.
    fn write(&self, out: &mut BytesMut);
}

const WRONG: DecodeError = DecodeError::decode("field has the wrong type");

macro_rules! field {
    ($($type:ty, $pattern:pat => $value:expr, $self:ident => $out:expr;)*) => {
        $(impl<'a> Field<'a> for $type {
            fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
                match value {
                    $pattern => Ok($value),
                    _ => Err(WRONG),
                }
            }

            fn write(&$self, out: &mut BytesMut) {
                $out.encode(out);
            }
        })*
    };
}

field! {
    bool, Value::Boolean(v) => v, self => Value::Boolean(*self);
    u8, Value::Ubyte(v) => v, self => Value::Ubyte(*self);
    u16, Value::Ushort(v) => v, self => Value::Ushort(*self);
    u32, Value::Uint(v) => v, self => Value::Uint(*self);
    u64, Value::Ulong(v) => v, self => Value::Ulong(*self);
    Timestamp, Value::Timestamp(v) => Self(v), self => Value::Timestamp(self.0);
    &'a str, Value::String(v) => v, self => Value::String(self);
    Symbol<'a>, Value::Symbol(v) => Self(v), self => Value::Symbol(self.0);
    &'a [u8], Value::Binary(v) => v, self => Value::Binary(self);
    Map<'a>, Value::Map(v) => v, self => Value::Map(*self);
}

impl<'a> Field<'a> for Value<'a> {
    fn from_value(value: Self) -> Result<Self, DecodeError> {
        Ok(value)
    }

    fn write(&self, out: &mut BytesMut) {
        self.encode(out);
    }
}

impl<'a> Field<'a> for Multiple<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match value {
            Value::Symbol(one) => Ok(Self::One(Symbol(one))),
            Value::Array(array) if array.iter().all(|one| matches!(one, Value::Symbol(_))) => {
                Ok(Self::Array(array))
            }
            // An empty array has elements of no particular type.
            Value::Array(array) if array.is_empty() => Ok(Self::None),
            _ => Err(WRONG),
        }
    }

    fn write(&self, out: &mut BytesMut) {
        self.encode(out);
    }
}

/// The fields of a composite, read in order.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    left: u32,
    reader: Reader<'a>,
}

impl<'a> Fields<'a> {
    /// From the list that the reader is at.
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (count, body) = reader.list_header()?;
        Ok(Self::of(count, body))
    }

    /// From the entries of a list.
    pub(crate) fn of(count: u32, body: &'a [u8]) -> Self {
        Self {
            left: count,
            reader: Reader::new(body),
        }
    }

    fn next(&mut self) -> Result<Option<Value<'a>>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let value = self.reader.value()?;
        Ok((!value.is_null()).then_some(value))
    }

    pub(crate) fn optional<T: Field<'a>>(&mut self) -> Result<Option<T>, DecodeError> {
        self.next()?.map(T::from_value).transpose()
    }

    pub(crate) fn required<T: Field<'a>>(&mut self) -> Result<T, DecodeError> {
        self.optional()?
            .ok_or(DecodeError::decode("mandatory field is missing"))
    }

    pub(crate) fn or<T: Field<'a>>(&mut self, default: T) -> Result<T, DecodeError> {
        Ok(self.optional()?.unwrap_or(default))
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> Result<(), DecodeError> {
        if self.left == 0 && self.reader.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::decode("more fields than the type has"))
        }
    }
}

/// An enumeration that is restricted from another field type (`choice` in the specification).
macro_rules! symbolic {
    ($(#[$doc:meta])* $name:ident: $source:ty { $($(#[$case_doc:meta])* $case:ident = $value:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name { $($(#[$case_doc])* $case,)* }

        impl<'a> crate::types::Field<'a> for $name {
            fn from_value(value: crate::types::Value<'a>) -> Result<Self, crate::DecodeError> {
                let raw = <$source as crate::types::Field<'a>>::from_value(value)?;
                $(if raw == $value { return Ok(Self::$case); })*
                Err(crate::DecodeError::invalid(concat!("unknown ", stringify!($name))))
            }

            fn write(&self, out: &mut bytes::BytesMut) {
                let raw: $source = match self { $(Self::$case => $value,)* };
                crate::types::Field::write(&raw, out);
            }
        }
    };
}
pub(crate) use symbolic;
