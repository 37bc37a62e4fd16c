//! Maps and lists of AMQP as JSON (RFC 8259), and back.
//!
//! JSON has fewer types than AMQP. So a list of letters goes beside the text: one for each number
//! and each string, in order. A number before a letter repeats it: `3id` are three ints and a
//! double. Without letters numbers with a fraction or exponent are doubles, others longs, and
//! strings are strings.

use std::fmt;
use std::iter::Peekable;
use std::str::Bytes;

use bytes::BytesMut;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use sterna_amqp::types::{List, ListWriter, MAX_DEPTH, Map, MapWriter, Value};

use crate::text::{self, Simple};

/// A compound value as JSON.
#[derive(Debug)]
pub(crate) struct Json {
    pub(crate) text: Vec<u8>,
    /// The types of its numbers and strings; empty where they are the ones without letters.
    pub(crate) types: String,
}

/// The JSON of a list or map. `None` if JSON has no form for it: arrays, described values, maps
/// with repeated keys or keys other than strings.
pub(crate) fn of_compound(value: &Value<'_>) -> Option<Json> {
    let mut writer = Writer::default();
    writer.value(value)?;
    let types = if writer.is_plain {
        String::new()
    } else {
        writer.types()
    };
    Some(Json {
        text: writer.out,
        types,
    })
}

struct Writer {
    out: Vec<u8>,
    /// Letters, each with the number of its repetitions.
    runs: Vec<(u8, u32)>,
    /// Whether all types are those of JSON without letters.
    is_plain: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            out: Vec::new(),
            runs: Vec::new(),
            is_plain: true,
        }
    }
}

impl Writer {
    fn types(&self) -> String {
        let mut types = String::new();
        for &(letter, count) in &self.runs {
            if count > 1 {
                types.push_str(&count.to_string());
            }
            types.push(char::from(letter));
        }
        types
    }

    fn leaf(&mut self, simple: Simple, is_plain: bool) {
        let letter = simple.letter();
        match self.runs.last_mut() {
            Some((last, count)) if *last == letter => *count += 1,
            _ => self.runs.push((letter, 1)),
        }
        self.is_plain &= is_plain;
    }

    fn string(&mut self, text: &str) {
        // Memory takes any text.
        let _ = serde_json::to_writer(&mut self.out, text);
    }

    fn value(&mut self, value: &Value<'_>) -> Option<()> {
        match *value {
            Value::Null => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => {
                let text: &[u8] = if value { b"true" } else { b"false" };
                self.out.extend_from_slice(text);
            }
            Value::List(list) => self.list(list)?,
            Value::Map(map) => self.map(map)?,
            Value::Array(_) | Value::Described(_) => return None,
            // As the shortest text of their own width, with a point or an exponent.
            Value::Double(number) if number.is_finite() => {
                serde_json::to_writer(&mut self.out, &number).ok()?;
                self.leaf(Simple::Double, true);
            }
            Value::Float(number) if number.is_finite() => {
                let start = self.out.len();
                serde_json::to_writer(&mut self.out, &number).ok()?;
                let wide: f64 = serde_json::from_slice(&self.out[start..]).ok()?;
                if (wide as f32).to_bits() != number.to_bits() {
                    return None;
                }
                self.leaf(Simple::Float, false);
            }
            _ => {
                let (simple, text) = text::exact(value)?;
                let is_number = matches!(
                    simple,
                    Simple::Ubyte
                        | Simple::Ushort
                        | Simple::Uint
                        | Simple::Ulong
                        | Simple::Byte
                        | Simple::Short
                        | Simple::Int
                        | Simple::Long
                        | Simple::Timestamp
                );
                if is_number {
                    self.out.extend_from_slice(text.as_bytes());
                } else {
                    self.string(&text);
                }
                self.leaf(simple, matches!(simple, Simple::Long | Simple::String));
            }
        }
        Some(())
    }

    fn list(&mut self, list: List<'_>) -> Option<()> {
        let mut separator = b'[';
        for value in list {
            self.out.push(separator);
            separator = b',';
            self.value(&value)?;
        }
        if list.is_empty() {
            self.out.push(b'[');
        }
        self.out.push(b']');
        Some(())
    }

    fn map(&mut self, map: Map<'_>) -> Option<()> {
        map.check_keys(|key| matches!(key, Value::String(_))).ok()?;
        let mut separator = b'{';
        for (key, value) in map {
            self.out.push(separator);
            separator = b',';
            self.string(key.as_text()?);
            self.out.push(b':');
            self.value(&value)?;
        }
        if map.is_empty() {
            self.out.push(b'{');
        }
        self.out.push(b'}');
        Some(())
    }
}

/// Appends the value of a JSON text with these types: a map if `is_map`, otherwise a list. False if
/// there is no such value; the caller then removes the appended bytes.
pub(crate) fn append(json: &[u8], types: &str, is_map: bool, out: &mut BytesMut) -> bool {
    let start = out.len();
    let mut types = Types {
        letters: (!types.is_empty()).then(|| types.bytes().peekable()),
        letter: 0,
        left: 0,
    };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let seed = Seed {
        out: &mut *out,
        types: &mut types,
        depth: MAX_DEPTH,
    };
    if seed.deserialize(&mut reader).is_err() || reader.end().is_err() || !types.is_empty() {
        return false;
    }
    match Value::decode(&out[start..]) {
        Ok(value @ Value::Map(_)) => is_map && has_unique_keys(&value),
        Ok(value @ Value::List(_)) => !is_map && has_unique_keys(&value),
        _ => false,
    }
}

/// Whether no key comes twice in a map, however deep.
fn has_unique_keys(value: &Value<'_>) -> bool {
    match value {
        Value::List(list) => list.iter().all(|value| has_unique_keys(&value)),
        Value::Map(map) => {
            map.check_keys(|_| true).is_ok() && map.iter().all(|(_, value)| has_unique_keys(&value))
        }
        _ => true,
    }
}

/// Reads the letters.
struct Types<'t> {
    letters: Option<Peekable<Bytes<'t>>>,
    letter: u8,
    /// Remaining repetitions of the letter.
    left: u32,
}

impl Types<'_> {
    /// The type of the next number or string; `otherwise` without letters, `None` behind the last.
    fn next(&mut self, otherwise: Simple) -> Option<Simple> {
        let Some(letters) = &mut self.letters else {
            return Some(otherwise);
        };
        if self.left == 0 {
            let mut count: Option<u32> = None;
            while let Some(digit) = letters.next_if(u8::is_ascii_digit) {
                let tens = count.unwrap_or(0).checked_mul(10)?;
                count = Some(tens.checked_add(u32::from(digit - b'0'))?);
            }
            self.letter = letters.next()?;
            self.left = count.unwrap_or(1);
        }
        self.left = self.left.checked_sub(1)?;
        Simple::of_letter(self.letter)
    }

    fn is_empty(&mut self) -> bool {
        self.left == 0
            && self
                .letters
                .as_mut()
                .is_none_or(|letters| letters.peek().is_none())
    }
}

/// Appends one value of JSON.
struct Seed<'o, 't, 'l> {
    out: &'o mut BytesMut,
    types: &'t mut Types<'l>,
    /// Lists and maps that may yet be in each other.
    depth: u8,
}

impl Seed<'_, '_, '_> {
    /// Allowed nesting depth of the entries of this value.
    fn inner<E: serde::de::Error>(&self) -> Result<u8, E> {
        let inner = self.depth.checked_sub(1);
        inner.ok_or_else(|| E::custom("nested more deeply than AMQP takes"))
    }

    fn simple<E: serde::de::Error>(self, text: &str, otherwise: Simple) -> Result<(), E> {
        let simple = self.types.next(otherwise);
        let simple = simple.ok_or_else(|| E::custom("no type for a number or string"))?;
        if simple.parse(text, |value| value.encode(self.out)) {
            Ok(())
        } else {
            Err(E::custom("a number or string is not of its type"))
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Value::Null.encode(self.out);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        Value::Boolean(value).encode(self.out);
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.simple(&value.to_string(), Simple::Long)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        let fits = i64::try_from(value).is_ok();
        let otherwise = if fits { Simple::Long } else { Simple::Ulong };
        self.simple(&value.to_string(), otherwise)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        match self.types.next(Simple::Double) {
            Some(Simple::Double) => Value::Double(value).encode(self.out),
            Some(Simple::Float) => Value::Float(value as f32).encode(self.out),
            _ => return Err(E::custom("a number is not of its type")),
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.simple(text, Simple::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let depth = self.inner()?;
        let mut list = ListWriter::new(self.out);
        while values
            .next_element_seed(Entry {
                list: &mut list,
                types: &mut *self.types,
                depth,
            })?
            .is_some()
        {}
        list.finish();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let depth = self.inner()?;
        let mut map = MapWriter::new(self.out);
        while let Some(key) = entries.next_key::<String>()? {
            entries.next_value_seed(Seed {
                out: map.entry(&Value::String(&key)),
                types: &mut *self.types,
                depth,
            })?;
        }
        map.finish();
        Ok(())
    }
}

/// Appends one entry of a list, if there is one.
struct Entry<'w, 'o, 't, 'l> {
    list: &'w mut ListWriter<'o>,
    types: &'t mut Types<'l>,
    depth: u8,
}

impl<'de> DeserializeSeed<'de> for Entry<'_, '_, '_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(Seed {
            out: self.list.entry(),
            types: self.types,
            depth: self.depth,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(json: &str, types: &str) -> Option<BytesMut> {
        let mut out = BytesMut::new();
        let is_map = json.starts_with('{');
        append(json.as_bytes(), types, is_map, &mut out).then_some(out)
    }

    #[test]
    fn texts_with_types_are_values_and_back() {
        for (json, types) in [
            ("{}", ""),
            ("[]", ""),
            ("[null,true,false,1,-1,\"\",21.0,1e+300,-0.0]", ""),
            ("{\"b\":1,\"a\":{\"c\":[2.5,\"x\\u0000\"]}}", ""),
            ("[1,2,3,0.1,\"NaN\"]", "3i2f"),
            (
                "[255,65535,4294967295,18446744073709551615,-128,-7,-7]",
                "BHIQbhi",
            ),
            (
                "[1,\"21.50\",\"ß\",\"AA==\",\"sym\",\"12121212-1212-1212-1212-121212121212\"]",
                "tEcxyu",
            ),
        ] {
            let value = built(json, types).unwrap_or_else(|| panic!("{json}"));
            let back = of_compound(&Value::decode(&value).unwrap()).unwrap();
            assert_eq!(std::str::from_utf8(&back.text), Ok(json));
            assert_eq!(back.types, types);
        }
        // Above the range of a long there is only one type.
        let large = built("[18446744073709551615]", "").unwrap();
        assert_eq!(built("[18446744073709551615]", "Q").unwrap(), large);
    }

    #[test]
    fn texts_that_fit_no_types_are_no_values() {
        for (json, types) in [
            ("1", ""),
            ("[", ""),
            ("[1] 2", ""),
            ("[1]", "2i"),
            ("[1,2]", "i"),
            ("[1]", "0i"),
            ("[1]", "s "),
            ("[1]", "z"),
            ("[1]", "99999999999i"),
            ("[300]", "B"),
            ("[1.5]", "i"),
            ("[\"x\"]", "i"),
            ("{\"a\":1,\"a\":2}", ""),
            ("[{\"a\":1,\"a\":2}]", ""),
        ] {
            assert_eq!(built(json, types), None, "{json} {types}");
        }
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(built(&deep, ""), None);
        let mut out = BytesMut::new();
        assert!(!append(b"[]", "", true, &mut out));
    }

    #[test]
    fn what_json_cannot_say_has_no_text() {
        let mut out = BytesMut::new();
        let mut map = MapWriter::new(&mut out);
        map.push(&Value::Symbol("key"), &Value::Null);
        map.finish();
        assert!(of_compound(&Value::decode(&out).unwrap()).is_none());
        // An array: of one null.
        assert!(of_compound(&Value::decode(&[0xe0, 2, 1, 0x40]).unwrap()).is_none());
        // A described value.
        assert!(of_compound(&Value::decode(&[0x00, 0x53, 1, 0x40]).unwrap()).is_none());
    }
}
