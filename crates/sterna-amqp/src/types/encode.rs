//! From values to bytes, in the shortest form.

use bytes::{BufMut as _, BytesMut};

use super::{Value, code};

impl Value<'_> {
    /// Appends the shortest encoding. The entries of lists, maps and arrays are copied as they are.
    pub fn encode(&self, out: &mut BytesMut) {
        match *self {
            Self::Null => out.put_u8(code::NULL),
            Self::Boolean(true) => out.put_u8(code::BOOLEAN_TRUE),
            Self::Boolean(false) => out.put_u8(code::BOOLEAN_FALSE),
            Self::Ubyte(v) => out.put_slice(&[code::UBYTE, v]),
            Self::Ushort(v) => fixed(out, code::USHORT, v.to_be_bytes()),
            Self::Uint(0) => out.put_u8(code::UINT0),
            Self::Uint(v) => match u8::try_from(v) {
                Ok(small) => out.put_slice(&[code::SMALLUINT, small]),
                Err(_) => fixed(out, code::UINT, v.to_be_bytes()),
            },
            Self::Ulong(0) => out.put_u8(code::ULONG0),
            Self::Ulong(v) => match u8::try_from(v) {
                Ok(small) => out.put_slice(&[code::SMALLULONG, small]),
                Err(_) => fixed(out, code::ULONG, v.to_be_bytes()),
            },
            Self::Byte(v) => fixed(out, code::BYTE, v.to_be_bytes()),
            Self::Short(v) => fixed(out, code::SHORT, v.to_be_bytes()),
            Self::Int(v) => match i8::try_from(v) {
                Ok(small) => fixed(out, code::SMALLINT, small.to_be_bytes()),
                Err(_) => fixed(out, code::INT, v.to_be_bytes()),
            },
            Self::Long(v) => match i8::try_from(v) {
                Ok(small) => fixed(out, code::SMALLLONG, small.to_be_bytes()),
                Err(_) => fixed(out, code::LONG, v.to_be_bytes()),
            },
            Self::Float(v) => fixed(out, code::FLOAT, v.to_be_bytes()),
            Self::Double(v) => fixed(out, code::DOUBLE, v.to_be_bytes()),
            Self::Decimal32(v) => fixed(out, code::DECIMAL32, v),
            Self::Decimal64(v) => fixed(out, code::DECIMAL64, v),
            Self::Decimal128(v) => fixed(out, code::DECIMAL128, v),
            Self::Char(v) => fixed(out, code::CHAR, u32::from(v).to_be_bytes()),
            Self::Timestamp(v) => fixed(out, code::TIMESTAMP, v.to_be_bytes()),
            Self::Uuid(v) => fixed(out, code::UUID, v),
            Self::Binary(v) => variable(out, code::VBIN8, code::VBIN32, v),
            Self::String(v) => variable(out, code::STR8, code::STR32, v.as_bytes()),
            Self::Symbol(v) => variable(out, code::SYM8, code::SYM32, v.as_bytes()),
            Self::List(v) if v.is_empty() => out.put_u8(code::LIST0),
            Self::List(v) => whole(out, [code::LIST8, code::LIST32], v.count, &[v.body]),
            Self::Map(v) => whole(out, [code::MAP8, code::MAP32], v.count, &[v.body]),
            Self::Array(v) => whole(
                out,
                [code::ARRAY8, code::ARRAY32],
                v.count,
                &[v.constructor, v.data],
            ),
            Self::Described(v) => {
                out.put_u8(code::DESCRIBED);
                out.put_slice(v.descriptor);
                out.put_slice(v.constructor);
                out.put_slice(v.data);
            }
        }
    }
}

fn fixed<const N: usize>(out: &mut BytesMut, code: u8, bytes: [u8; N]) {
    out.put_u8(code);
    out.put_slice(&bytes);
}

fn variable(out: &mut BytesMut, code8: u8, code32: u8, bytes: &[u8]) {
    if let Ok(len) = u8::try_from(bytes.len()) {
        out.put_slice(&[code8, len]);
    } else {
        out.put_u8(code32);
        out.put_u32(bytes.len() as u32);
    }
    out.put_slice(bytes);
}

/// A list, map or array whose parts are encoded already.
fn whole(out: &mut BytesMut, [code8, code32]: [u8; 2], count: u32, parts: &[&[u8]]) {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    if let (Ok(size), Ok(count)) = (u8::try_from(bytes + 1), u8::try_from(count)) {
        out.put_slice(&[code8, size, count]);
    } else {
        out.put_u8(code32);
        out.put_u32(bytes as u32 + 4);
        out.put_u32(count);
    }
    for part in parts {
        out.put_slice(part);
    }
}

/// Bytes of the compact header of a list, map or array, and the additional bytes of the wide one.
const COMPACT_BYTES: usize = 3;
const WIDER_BYTES: usize = 6;

/// Writes the header of a compound after its body, which begins at `start + COMPACT_BYTES`; moves
/// the body when the header must be wide.
fn finish(out: &mut BytesMut, start: usize, [code8, code32]: [u8; 2], count: u32) {
    let body = start + COMPACT_BYTES;
    let bytes = out.len() - body;
    if let (Ok(size), Ok(count)) = (u8::try_from(bytes + 1), u8::try_from(count)) {
        out[start..body].copy_from_slice(&[code8, size, count]);
        return;
    }
    out.put_bytes(0, WIDER_BYTES);
    out.copy_within(body..body + bytes, body + WIDER_BYTES);
    out[start] = code32;
    out[start + 1..start + 5].copy_from_slice(&(bytes as u32 + 4).to_be_bytes());
    out[start + 5..start + 9].copy_from_slice(&count.to_be_bytes());
}

/// Writes a list, entry by entry.
#[derive(Debug)]
pub struct ListWriter<'o> {
    out: &'o mut BytesMut,
    start: usize,
    count: u32,
    /// Nulls that are written only when something follows: trailing ones are left out.
    nulls: u32,
}

impl<'o> ListWriter<'o> {
    /// Begins a list at the end of `out`.
    pub fn new(out: &'o mut BytesMut) -> Self {
        let start = out.len();
        out.put_bytes(0, COMPACT_BYTES);
        Self {
            out,
            start,
            count: 0,
            nulls: 0,
        }
    }

    /// Appends a value, null too.
    pub fn push(&mut self, value: &Value<'_>) {
        value.encode(self.entry());
    }

    /// Appends a null, which is left out if no entry follows. The meaning of a field that is left
    /// out at the end is null (part 1, section 1.4).
    pub fn skip(&mut self) {
        self.nulls += 1;
    }

    /// Buffer for the next entry, to which exactly one encoded value is to be appended.
    pub fn entry(&mut self) -> &mut BytesMut {
        self.out.put_bytes(code::NULL, self.nulls as usize);
        self.count += self.nulls + 1;
        self.nulls = 0;
        self.out
    }

    /// Completes the list.
    pub fn finish(self) {
        if self.count == 0 {
            self.out.truncate(self.start);
            self.out.put_u8(code::LIST0);
        } else {
            finish(
                self.out,
                self.start,
                [code::LIST8, code::LIST32],
                self.count,
            );
        }
    }
}

/// Writes a map, entry by entry.
#[derive(Debug)]
pub struct MapWriter<'o> {
    out: &'o mut BytesMut,
    start: usize,
    count: u32,
}

impl<'o> MapWriter<'o> {
    /// Begins a map at the end of `out`.
    pub fn new(out: &'o mut BytesMut) -> Self {
        let start = out.len();
        out.put_bytes(0, COMPACT_BYTES);
        Self {
            out,
            start,
            count: 0,
        }
    }

    /// Appends a key and its value.
    pub fn push(&mut self, key: &Value<'_>, value: &Value<'_>) {
        value.encode(self.entry(key));
    }

    /// Appends a key; its value is to be appended to the returned buffer.
    pub fn entry(&mut self, key: &Value<'_>) -> &mut BytesMut {
        self.count += 2;
        key.encode(self.out);
        self.out
    }

    /// Completes the map.
    pub fn finish(self) {
        finish(self.out, self.start, [code::MAP8, code::MAP32], self.count);
    }
}

/// Appends an array of symbols.
pub(crate) fn symbols<'s>(out: &mut BytesMut, symbols: impl Iterator<Item = &'s str> + Clone) {
    let wide = symbols.clone().any(|one| one.len() > 255);
    let start = out.len();
    out.put_bytes(0, COMPACT_BYTES);
    out.put_u8(if wide { code::SYM32 } else { code::SYM8 });
    let mut count = 0;
    for one in symbols {
        count += 1;
        if wide {
            out.put_u32(one.len() as u32);
        } else {
            out.put_u8(one.len() as u8);
        }
        out.put_slice(one.as_bytes());
    }
    finish(out, start, [code::ARRAY8, code::ARRAY32], count);
}
