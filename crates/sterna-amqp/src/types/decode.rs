//! From bytes to values.

use super::{Array, Described, List, Map, Value, code};
use crate::DecodeError;

/// Deepest nesting of lists, maps, arrays and described types that is taken.
pub const MAX_DEPTH: u8 = 24;

/// Most elements of an array whose elements have no bytes of their own (null, true, an empty list,
/// …). Any other array, list or map has no more entries than bytes.
pub const MAX_WIDTHLESS_ELEMENTS: u32 = 4_096;

const SHORT: DecodeError = DecodeError::decode("value is cut off");

/// Reads one value after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next value, validated as a whole.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` when the bytes are not a value, or nest deeper than [`MAX_DEPTH`].
    pub fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        value(&mut self.rest, MAX_DEPTH)
    }

    /// The unread bytes.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the start of a described type: a descriptor that is a ulong or a symbol.
    pub(crate) fn descriptor(&mut self) -> Result<Value<'a>, DecodeError> {
        if self.byte()? != code::DESCRIBED {
            return Err(DecodeError::decode("not a described type"));
        }
        match self.value()? {
            descriptor @ (Value::Ulong(_) | Value::Symbol(_)) => Ok(descriptor),
            _ => Err(DecodeError::decode(
                "descriptor is neither ulong nor symbol",
            )),
        }
    }

    /// Reads the constructor of a list, its size and count. The entries, which follow, are within
    /// the returned slice and have not been validated.
    pub(crate) fn list_header(&mut self) -> Result<(u32, &'a [u8]), DecodeError> {
        let (count, body) = match self.byte()? {
            code::LIST0 => return Ok((0, &[])),
            code::LIST8 => compound8(&mut self.rest)?,
            code::LIST32 => compound32(&mut self.rest)?,
            _ => return Err(DecodeError::decode("not a list")),
        };
        check_count(count, body)?;
        Ok((count, body))
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        byte(&mut self.rest)
    }
}

/// The next value of `input`, which may nest `depth` levels. Every byte is looked at once.
pub(super) fn value<'a>(input: &mut &'a [u8], depth: u8) -> Result<Value<'a>, DecodeError> {
    let code = byte(input)?;
    if code != code::DESCRIBED {
        return primitive(code, input, depth);
    }
    let depth = deeper(depth)?;
    let start = *input;
    value(input, depth)?;
    let descriptor = &start[..start.len() - input.len()];
    let start = *input;
    value(input, depth)?;
    Ok(Value::Described(Described {
        descriptor,
        constructor: &[],
        data: &start[..start.len() - input.len()],
    }))
}

/// Takes the constructor of an array's elements off `input`: a format code, behind any number of
/// descriptors (part 1, section 1.2). Returns its bytes.
fn constructor<'a>(input: &mut &'a [u8], depth: u8) -> Result<&'a [u8], DecodeError> {
    let start = *input;
    let mut depth = depth;
    while byte(input)? == code::DESCRIBED {
        depth = deeper(depth)?;
        value(input, depth)?;
    }
    Ok(&start[..start.len() - input.len()])
}

/// Takes the data of one element off `input`, whose constructor has been validated.
fn element<'a>(
    constructor: &[u8],
    input: &mut &'a [u8],
    depth: u8,
) -> Result<Value<'a>, DecodeError> {
    // The format code is behind the descriptors.
    let code = constructor.last().copied().ok_or(SHORT)?;
    primitive(code, input, depth)
}

/// Takes one element of an array with its descriptors off `input`.
pub(super) fn with_constructor<'a>(
    constructor: &'a [u8],
    input: &mut &'a [u8],
    depth: u8,
) -> Result<Value<'a>, DecodeError> {
    let start = *input;
    let plain = element(constructor, input, depth)?;
    let mut inner = constructor;
    if byte(&mut inner)? != code::DESCRIBED {
        return Ok(plain);
    }
    let before = inner;
    value(&mut inner, depth)?;
    Ok(Value::Described(Described {
        descriptor: &before[..before.len() - inner.len()],
        constructor: inner,
        data: &start[..start.len() - input.len()],
    }))
}

/// Takes the data of one primitive value off `input`.
fn primitive<'a>(code: u8, input: &mut &'a [u8], depth: u8) -> Result<Value<'a>, DecodeError> {
    Ok(match code {
        code::NULL => Value::Null,
        code::BOOLEAN_TRUE => Value::Boolean(true),
        code::BOOLEAN_FALSE => Value::Boolean(false),
        code::BOOLEAN => match byte(input)? {
            0 => Value::Boolean(false),
            1 => Value::Boolean(true),
            _ => return Err(DecodeError::decode("boolean is neither 0 nor 1")),
        },
        code::UBYTE => Value::Ubyte(byte(input)?),
        code::USHORT => Value::Ushort(u16::from_be_bytes(fixed(input)?)),
        code::UINT => Value::Uint(u32::from_be_bytes(fixed(input)?)),
        code::SMALLUINT => Value::Uint(byte(input)?.into()),
        code::UINT0 => Value::Uint(0),
        code::ULONG => Value::Ulong(u64::from_be_bytes(fixed(input)?)),
        code::SMALLULONG => Value::Ulong(byte(input)?.into()),
        code::ULONG0 => Value::Ulong(0),
        code::BYTE => Value::Byte(i8::from_be_bytes(fixed(input)?)),
        code::SHORT => Value::Short(i16::from_be_bytes(fixed(input)?)),
        code::INT => Value::Int(i32::from_be_bytes(fixed(input)?)),
        code::SMALLINT => Value::Int(i8::from_be_bytes(fixed(input)?).into()),
        code::LONG => Value::Long(i64::from_be_bytes(fixed(input)?)),
        code::SMALLLONG => Value::Long(i8::from_be_bytes(fixed(input)?).into()),
        code::FLOAT => Value::Float(f32::from_be_bytes(fixed(input)?)),
        code::DOUBLE => Value::Double(f64::from_be_bytes(fixed(input)?)),
        code::DECIMAL32 => Value::Decimal32(fixed(input)?),
        code::DECIMAL64 => Value::Decimal64(fixed(input)?),
        code::DECIMAL128 => Value::Decimal128(fixed(input)?),
        code::CHAR => Value::Char(
            char::from_u32(u32::from_be_bytes(fixed(input)?))
                .ok_or(DecodeError::decode("not a Unicode character"))?,
        ),
        code::TIMESTAMP => Value::Timestamp(i64::from_be_bytes(fixed(input)?)),
        code::UUID => Value::Uuid(fixed(input)?),
        code::VBIN8 => Value::Binary(variable8(input)?),
        code::VBIN32 => Value::Binary(variable32(input)?),
        code::STR8 => Value::String(utf8(variable8(input)?)?),
        code::STR32 => Value::String(utf8(variable32(input)?)?),
        code::SYM8 => Value::Symbol(ascii(variable8(input)?)?),
        code::SYM32 => Value::Symbol(ascii(variable32(input)?)?),
        code::LIST0 => Value::List(List::EMPTY),
        code::LIST8 => Value::List(list(compound8(input)?, depth)?),
        code::LIST32 => Value::List(list(compound32(input)?, depth)?),
        code::MAP8 => Value::Map(map(compound8(input)?, depth)?),
        code::MAP32 => Value::Map(map(compound32(input)?, depth)?),
        code::ARRAY8 => Value::Array(array(compound8(input)?, depth)?),
        code::ARRAY32 => Value::Array(array(compound32(input)?, depth)?),
        _ => return Err(DecodeError::decode("unknown format code")),
    })
}

fn list((count, body): (u32, &[u8]), depth: u8) -> Result<List<'_>, DecodeError> {
    validate_entries(count, body, depth)?;
    Ok(List { count, body })
}

fn map((count, body): (u32, &[u8]), depth: u8) -> Result<Map<'_>, DecodeError> {
    if count % 2 != 0 {
        return Err(DecodeError::decode("map has a key without a value"));
    }
    validate_entries(count, body, depth)?;
    Ok(Map { count, body })
}

fn validate_entries(count: u32, body: &[u8], depth: u8) -> Result<(), DecodeError> {
    let depth = deeper(depth)?;
    check_count(count, body)?;
    let mut rest = body;
    for _ in 0..count {
        value(&mut rest, depth)?;
    }
    check_end(rest)
}

fn array((count, body): (u32, &[u8]), depth: u8) -> Result<Array<'_>, DecodeError> {
    let depth = deeper(depth)?;
    let mut rest = body;
    let constructor = constructor(&mut rest, depth)?;
    let data = rest;
    if data.is_empty() && count > MAX_WIDTHLESS_ELEMENTS {
        return Err(DecodeError::decode("too many elements without bytes"));
    }
    if !data.is_empty() {
        check_count(count, data)?;
    }
    for _ in 0..count {
        element(constructor, &mut rest, depth)?;
    }
    check_end(rest)?;
    Ok(Array {
        count,
        constructor,
        data,
    })
}

fn check_count(count: u32, body: &[u8]) -> Result<(), DecodeError> {
    if count as usize > body.len() {
        return Err(DecodeError::decode("more entries than bytes"));
    }
    Ok(())
}

fn check_end(rest: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() {
        Ok(())
    } else {
        Err(DecodeError::decode("bytes after the last entry"))
    }
}

fn deeper(depth: u8) -> Result<u8, DecodeError> {
    depth
        .checked_sub(1)
        .ok_or(DecodeError::decode("nested too deeply"))
}

fn byte(input: &mut &[u8]) -> Result<u8, DecodeError> {
    let (&first, rest) = input.split_first().ok_or(SHORT)?;
    *input = rest;
    Ok(first)
}

fn fixed<const N: usize>(input: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (head, rest) = input.split_first_chunk::<N>().ok_or(SHORT)?;
    *input = rest;
    Ok(*head)
}

fn take<'a>(input: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], DecodeError> {
    let (head, rest) = input.split_at_checked(bytes).ok_or(SHORT)?;
    *input = rest;
    Ok(head)
}

fn variable8<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let bytes = byte(input)?.into();
    take(input, bytes)
}

fn variable32<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let bytes = u32::from_be_bytes(fixed(input)?) as usize;
    take(input, bytes)
}

/// Size, which counts itself not but the count, then the count (part 1, section 1.2).
fn compound8<'a>(input: &mut &'a [u8]) -> Result<(u32, &'a [u8]), DecodeError> {
    let mut whole = variable8(input)?;
    let count = byte(&mut whole)?;
    Ok((count.into(), whole))
}

fn compound32<'a>(input: &mut &'a [u8]) -> Result<(u32, &'a [u8]), DecodeError> {
    let mut whole = variable32(input)?;
    let count = u32::from_be_bytes(fixed(&mut whole)?);
    Ok((count, whole))
}

fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::decode("string is not UTF-8"))
}

fn ascii(bytes: &[u8]) -> Result<&str, DecodeError> {
    if bytes.is_ascii() {
        utf8(bytes)
    } else {
        Err(DecodeError::decode("symbol is not ASCII"))
    }
}
