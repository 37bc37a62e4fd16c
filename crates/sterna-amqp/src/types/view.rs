//! Views of validated lists, maps and described values.

use std::collections::BTreeSet;

use super::decode::{self, MAX_DEPTH};
use super::{Reader, Value};
use crate::DecodeError;

/// Above this many entries the keys of a map are compared by search.
const FEW_KEYS: usize = 12;

/// A list of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct List<'a> {
    pub(super) count: u32,
    pub(super) body: &'a [u8],
}

impl<'a> List<'a> {
    /// The list without entries.
    pub const EMPTY: Self = Self {
        count: 0,
        body: &[],
    };

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Entries in order.
    #[must_use]
    pub const fn iter(&self) -> ValueIter<'a> {
        ValueIter {
            left: self.count,
            rest: self.body,
        }
    }

    /// The encoded entries.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }
}

impl<'a> IntoIterator for &List<'a> {
    type Item = Value<'a>;
    type IntoIter = ValueIter<'a>;

    fn into_iter(self) -> ValueIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for List<'a> {
    type Item = Value<'a>;
    type IntoIter = ValueIter<'a>;

    fn into_iter(self) -> ValueIter<'a> {
        self.iter()
    }
}

/// The values of a list.
#[derive(Clone, Debug)]
pub struct ValueIter<'a> {
    left: u32,
    rest: &'a [u8],
}

impl<'a> Iterator for ValueIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Validated when the view was made.
        decode::value(&mut self.rest, MAX_DEPTH).ok()
    }
}

/// A map: keys with their values, in the order of the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Map<'a> {
    /// Keys and values together.
    pub(super) count: u32,
    pub(super) body: &'a [u8],
}

impl<'a> Map<'a> {
    /// The map without entries.
    pub const EMPTY: Self = Self {
        count: 0,
        body: &[],
    };

    /// Number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize / 2
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Entries in order.
    #[must_use]
    pub const fn iter(&self) -> MapIter<'a> {
        MapIter(ValueIter {
            left: self.count,
            rest: self.body,
        })
    }

    /// The value of the key that is this string or symbol.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.iter()
            .find(|(name, _)| name.as_text() == Some(key))
            .map(|(_, value)| value)
    }

    /// The encoded keys and values.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Checks that every key is of the kind that `is_key` takes, and no key comes twice (part 1,
    /// section 1.6.23).
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` for a key that comes twice, `amqp:invalid-field` for one of another kind.
    pub fn check_keys(&self, is_key: impl Fn(&Value<'a>) -> bool) -> Result<(), DecodeError> {
        const TWICE: DecodeError = DecodeError::decode("a key comes twice in a map");
        let mut few: [&[u8]; FEW_KEYS] = [&[]; FEW_KEYS];
        // A sender chooses the keys, and cannot choose them so that they are slow to find here.
        let mut many = BTreeSet::new();
        let mut reader = Reader::new(self.body);
        for index in 0..self.len() {
            let start = reader.rest();
            let key = reader.value()?;
            if !is_key(&key) {
                return Err(DecodeError::invalid("key of a map has the wrong type"));
            }
            let encoded = &start[..start.len() - reader.rest().len()];
            // A text in both of its encodings is one key, too.
            let bytes = match key {
                Value::String(text) | Value::Symbol(text) => text.as_bytes(),
                Value::Binary(bytes) => bytes,
                _ => encoded,
            };
            if self.len() > FEW_KEYS {
                if !many.insert(bytes) {
                    return Err(TWICE);
                }
            } else {
                if few[..index].contains(&bytes) {
                    return Err(TWICE);
                }
                few[index] = bytes;
            }
            reader.value()?;
        }
        Ok(())
    }
}

impl<'a> IntoIterator for &Map<'a> {
    type Item = (Value<'a>, Value<'a>);
    type IntoIter = MapIter<'a>;

    fn into_iter(self) -> MapIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for Map<'a> {
    type Item = (Value<'a>, Value<'a>);
    type IntoIter = MapIter<'a>;

    fn into_iter(self) -> MapIter<'a> {
        self.iter()
    }
}

/// The entries of a map.
#[derive(Clone, Debug)]
pub struct MapIter<'a>(ValueIter<'a>);

impl<'a> Iterator for MapIter<'a> {
    type Item = (Value<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }
}

/// A value with its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described<'a> {
    /// The encoded descriptor.
    pub(super) descriptor: &'a [u8],
    /// Of an element of an array: the constructor without this descriptor. Else empty.
    pub(super) constructor: &'a [u8],
    /// The encoded value, without its constructor if that is apart.
    pub(super) data: &'a [u8],
}

impl<'a> Described<'a> {
    /// The descriptor of the value: usually a ulong or a symbol.
    #[must_use]
    pub fn descriptor(&self) -> Value<'a> {
        // Validated when the view was made.
        decode::value(&mut { self.descriptor }, MAX_DEPTH).unwrap_or(Value::Null)
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Value<'a> {
        let mut data = self.data;
        let value = if self.constructor.is_empty() {
            decode::value(&mut data, MAX_DEPTH)
        } else {
            decode::with_constructor(self.constructor, &mut data, MAX_DEPTH)
        };
        value.unwrap_or(Value::Null)
    }

    /// Whether the descriptor is this code, or this symbol.
    #[must_use]
    pub fn is(&self, code: u64, symbol: &str) -> bool {
        match self.descriptor() {
            Value::Ulong(descriptor) => descriptor == code,
            Value::Symbol(descriptor) => descriptor == symbol,
            _ => false,
        }
    }

    /// The bytes of descriptor, constructor (if it is apart) and data.
    #[must_use]
    pub const fn parts(&self) -> (&'a [u8], &'a [u8], &'a [u8]) {
        (self.descriptor, self.constructor, self.data)
    }
}
