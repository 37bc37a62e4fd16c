//! Field sections from bytes (RFC 9204, section 4.5).

use std::fmt;

use super::static_table::ENTRIES;
use super::{Error, huffman, integer};
use crate::Fields;

/// Why a field section was not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The bytes are wrong; the connection ends with QPACK_DECOMPRESSION_FAILED.
    Failed(Error),
    /// The section is larger than it may be. That is the message's trouble alone.
    TooLarge,
}

impl From<Error> for DecodeError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::TooLarge => f.write_str("field section is too large"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decodes a whole field section, and appends it to `fields`.
///
/// `max_section_bytes` limits the size as RFC 9114, section 4.2.2 counts it, and `max_fields` the
/// number of fields. Both include the fields that are there already.
///
/// # Errors
///
/// See [`DecodeError`]; `fields` then has some of the fields.
pub fn decode(
    mut input: &[u8],
    max_section_bytes: usize,
    max_fields: usize,
    fields: &mut Fields,
) -> Result<(), DecodeError> {
    let input = &mut input;
    prefix(input)?;
    while let Some(first) = input.first() {
        if fields.len() == max_fields {
            return Err(DecodeError::TooLarge);
        }
        match first {
            // Section 4.5.2: an indexed field line.
            0x80.. => {
                let (name, value) = entry(input, 6, first & 0x40 != 0)?;
                fields.bytes_mut().extend_from_slice(name.as_bytes());
                fields.finish_name(false);
                fields.bytes_mut().extend_from_slice(value.as_bytes());
                fields.finish_value();
            }
            // Section 4.5.4: a literal value with the name of an entry.
            0x40.. => {
                let never_indexed = first & 0x20 != 0;
                let (name, _) = entry(input, 4, first & 0x10 != 0)?;
                fields.bytes_mut().extend_from_slice(name.as_bytes());
                fields.finish_name(never_indexed);
                string(input, 7, fields.bytes_mut())?;
                fields.finish_value();
            }
            // Section 4.5.6: a literal value with a literal name.
            0x20.. => {
                let never_indexed = first & 0x10 != 0;
                string(input, 3, fields.bytes_mut())?;
                fields.finish_name(never_indexed);
                string(input, 7, fields.bytes_mut())?;
                fields.finish_value();
            }
            // Sections 4.5.3 and 4.5.5: entries past the base.
            _ => return Err(Error("reference to the dynamic table").into()),
        }
        if fields.section_bytes() > max_section_bytes {
            return Err(DecodeError::TooLarge);
        }
    }
    Ok(())
}

/// Section 4.5.1: with a dynamic table of capacity 0 nothing can be required of it.
fn prefix(input: &mut &[u8]) -> Result<(), Error> {
    if integer::take(input, 8)? != 0 {
        return Err(Error("field section requires the dynamic table"));
    }
    let Some(second) = input.first() else {
        return Err(Error("field section has no base"));
    };
    if second & 0x80 != 0 {
        return Err(Error("base is negative"));
    }
    integer::take(input, 7)?;
    Ok(())
}

fn entry(
    input: &mut &[u8],
    prefix_bits: u32,
    is_static: bool,
) -> Result<(&'static str, &'static str), Error> {
    if !is_static {
        return Err(Error("reference to the dynamic table"));
    }
    let index = integer::take(input, prefix_bits)?;
    usize::try_from(index)
        .ok()
        .and_then(|index| ENTRIES.get(index))
        .copied()
        .ok_or(Error("index beyond the static table"))
}

/// Section 4.1.2: a string with its length in a prefix, after the bit that says Huffman.
fn string(input: &mut &[u8], prefix_bits: u32, out: &mut Vec<u8>) -> Result<(), Error> {
    let Some(first) = input.first() else {
        return Err(Error("string is cut off"));
    };
    let is_huffman = first >> prefix_bits & 1 != 0;
    let bytes = integer::take(input, prefix_bits)?;
    let (text, rest) = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| input.split_at_checked(bytes))
        .ok_or(Error("string is cut off"))?;
    *input = rest;
    if is_huffman {
        huffman::decode(text, out)
    } else {
        out.extend_from_slice(text);
        Ok(())
    }
}
