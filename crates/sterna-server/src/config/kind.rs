//! The kind of a setting's value, as its type says it when it is read.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer as _,
    MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// Kind of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A whole number from the first to the second, or the third.
    Integer(u64, u64, Option<u64>),
    /// A number; the least and the greatest where there are bounds.
    Number(Option<(String, String)>),
    /// Text.
    Text,
    /// A path of a file or folder.
    Path,
    /// One of these words.
    Choice(Vec<String>),
    /// A list.
    List(Box<Self>),
    /// A table with these keys.
    Table(&'static [&'static str]),
    /// A form of its own, in words.
    Other(String),
}

/// The greatest whole number of TOML.
pub(super) const MOST: u64 = i64::MAX as u64;

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("true or false"),
            Self::Integer(least, most, also) => {
                if let Some(also) = also {
                    write!(f, "{also}, or ")?;
                }
                if *most == MOST {
                    write!(f, "whole number from {least} on")
                } else {
                    write!(f, "whole number from {least} to {most}")
                }
            }
            Self::Number(None) => f.write_str("number"),
            Self::Number(Some((least, most))) => write!(f, "number from {least} to {most}"),
            Self::Text => f.write_str("text"),
            Self::Path => f.write_str("path"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::List(element) => write!(f, "list; each element: {element}"),
            Self::Table(keys) => write!(f, "table with {}", keys.join(", ")),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// The kind of a type's values.
pub(super) fn kind<T: DeserializeOwned>() -> Kind {
    match T::deserialize(Probe) {
        Err(Asked(kind)) => kind,
        // A type that reads nothing has one value.
        Ok(_) => Kind::Table(&[]),
    }
}

/// The kind of a field of a type, by its key.
pub(super) fn kind_of_field<T: DeserializeOwned>(key: &'static str) -> Kind {
    match T::deserialize(Field(key)) {
        Err(Asked(kind)) => kind,
        Ok(_) => Kind::Table(&[]),
    }
}

/// A reader of a table with one key, whose value is a [`Probe`].
struct Field(&'static str);

impl<'de> Deserializer<'de> for Field {
    type Error = Asked;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Asked> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Field {
    type Error = Asked;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Asked> {
        seed.deserialize(self.0.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Asked> {
        seed.deserialize(Probe)
    }
}

/// A reader without data. A type says which form it wants, and that is the error which it gets.
struct Probe;

/// The form that was asked for.
#[derive(Debug)]
struct Asked(Kind);

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Asked {}

impl de::Error for Asked {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(Kind::Other(message.to_string()))
    }
}

/// The form in the words of the type that reads it.
fn in_words<'de, V: Visitor<'de>>(visitor: &V) -> String {
    let expected: &dyn Expected = visitor;
    expected.to_string()
}

macro_rules! integers {
    ($($method:ident $type:ty;)+) => {$(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Asked> {
            Err(Asked(Kind::Integer(0, u64::from(<$type>::MAX).min(MOST), None)))
        }
    )+};
}

impl<'de> Deserializer<'de> for Probe {
    type Error = Asked;

    integers! {
        deserialize_u8 u8;
        deserialize_u16 u16;
        deserialize_u32 u32;
        deserialize_u64 u64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Asked> {
        Err(Asked(Kind::Other(in_words(&visitor))))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Asked> {
        Err(Asked(Kind::Boolean))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Asked> {
        Err(Asked(Kind::Number(None)))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Asked> {
        let words = in_words(&visitor);
        Err(Asked(match words.split_once("(one of ") {
            Some((_, names)) => {
                let names = names.trim_end_matches(')').split(", ");
                Kind::Choice(names.map(str::to_owned).collect())
            }
            None if words == "path string" => Kind::Path,
            None => Kind::Text,
        }))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Asked> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Asked> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Asked> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Asked> {
        visitor
            .visit_seq(Self)
            .map_err(|Asked(element)| Asked(Kind::List(Box::new(element))))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Asked> {
        let words = variants.iter().map(|word| (*word).to_owned());
        Err(Asked(Kind::Choice(words.collect())))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Asked> {
        Err(Asked(Kind::Table(fields)))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct map
        identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for Probe {
    type Error = Asked;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Asked> {
        seed.deserialize(Self).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{AddressPrefix, Durability, MemoryCeiling, ProxyProtocol};
    use super::*;

    #[test]
    fn types_say_what_they_take() {
        let words =
            |words: &[&str]| Kind::Choice(words.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(kind::<bool>(), Kind::Boolean);
        assert_eq!(kind::<Option<u16>>(), Kind::Integer(0, 65_535, None));
        assert_eq!(kind::<u64>(), Kind::Integer(0, MOST, None));
        assert_eq!(kind::<f64>(), Kind::Number(None));
        assert_eq!(kind::<Option<PathBuf>>(), Kind::Path);
        assert_eq!(kind::<Vec<PathBuf>>(), Kind::List(Box::new(Kind::Path)));
        assert_eq!(
            kind::<Vec<AddressPrefix>>(),
            Kind::List(Box::new(Kind::Text))
        );
        assert_eq!(
            kind::<Durability>(),
            words(&["memory", "interval", "commit"])
        );
        assert_eq!(
            kind::<sterna_quic::Cipher>(),
            words(&["auto", "aes", "chacha20"])
        );
        assert_eq!(kind::<Option<ProxyProtocol>>(), Kind::Table(&["from"]));
        assert!(matches!(kind::<MemoryCeiling>(), Kind::Other(words) if words.contains("512 MiB")));
    }
}
