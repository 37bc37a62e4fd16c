//! The type system (AMQP 1.0, part 1): every primitive type in every encoding, composite values,
//! and described types.
//!
//! Decoding borrows: a [`Value`] of a string, list, map or array is a view of the input, and
//! nothing is ever allocated. A view is validated when it is made, down to the last nested value,
//! so that walking it cannot fail. Encoding picks the shortest form.

mod array;
mod composite;
mod decode;
mod encode;
mod encoded;
mod field;
mod view;

pub use array::{Array, ArrayIter};
pub use composite::Composite;
pub(crate) use composite::{composite, encode_descriptor};
pub use decode::{MAX_DEPTH, MAX_WIDTHLESS_ELEMENTS, Reader};
pub use encode::{ListWriter, MapWriter};
pub use encoded::Encoded;
pub(crate) use field::{Field, Fields, symbolic};
pub use field::{Multiple, Symbol, Timestamp};
pub use view::{Described, List, Map, MapIter, ValueIter};

/// Format codes (part 1, section 1.6).
pub mod code {
    #![allow(missing_docs, reason = "the names are the specification's")]
    pub const DESCRIBED: u8 = 0x00;
    pub const NULL: u8 = 0x40;
    pub const BOOLEAN: u8 = 0x56;
    pub const BOOLEAN_TRUE: u8 = 0x41;
    pub const BOOLEAN_FALSE: u8 = 0x42;
    pub const UBYTE: u8 = 0x50;
    pub const USHORT: u8 = 0x60;
    pub const UINT: u8 = 0x70;
    pub const SMALLUINT: u8 = 0x52;
    pub const UINT0: u8 = 0x43;
    pub const ULONG: u8 = 0x80;
    pub const SMALLULONG: u8 = 0x53;
    pub const ULONG0: u8 = 0x44;
    pub const BYTE: u8 = 0x51;
    pub const SHORT: u8 = 0x61;
    pub const INT: u8 = 0x71;
    pub const SMALLINT: u8 = 0x54;
    pub const LONG: u8 = 0x81;
    pub const SMALLLONG: u8 = 0x55;
    pub const FLOAT: u8 = 0x72;
    pub const DOUBLE: u8 = 0x82;
    pub const DECIMAL32: u8 = 0x74;
    pub const DECIMAL64: u8 = 0x84;
    pub const DECIMAL128: u8 = 0x94;
    pub const CHAR: u8 = 0x73;
    pub const TIMESTAMP: u8 = 0x83;
    pub const UUID: u8 = 0x98;
    pub const VBIN8: u8 = 0xa0;
    pub const VBIN32: u8 = 0xb0;
    pub const STR8: u8 = 0xa1;
    pub const STR32: u8 = 0xb1;
    pub const SYM8: u8 = 0xa3;
    pub const SYM32: u8 = 0xb3;
    pub const LIST0: u8 = 0x45;
    pub const LIST8: u8 = 0xc0;
    pub const LIST32: u8 = 0xd0;
    pub const MAP8: u8 = 0xc1;
    pub const MAP32: u8 = 0xd1;
    pub const ARRAY8: u8 = 0xe0;
    pub const ARRAY32: u8 = 0xf0;

    /// Every format code of a primitive type.
    pub const PRIMITIVES: [u8; 39] = [
        NULL,
        BOOLEAN,
        BOOLEAN_TRUE,
        BOOLEAN_FALSE,
        UBYTE,
        USHORT,
        UINT,
        SMALLUINT,
        UINT0,
        ULONG,
        SMALLULONG,
        ULONG0,
        BYTE,
        SHORT,
        INT,
        SMALLINT,
        LONG,
        SMALLLONG,
        FLOAT,
        DOUBLE,
        DECIMAL32,
        DECIMAL64,
        DECIMAL128,
        CHAR,
        TIMESTAMP,
        UUID,
        VBIN8,
        VBIN32,
        STR8,
        STR32,
        SYM8,
        SYM32,
        LIST0,
        LIST8,
        LIST32,
        MAP8,
        MAP32,
        ARRAY8,
        ARRAY32,
    ];
}

/// One value of any type, borrowed from its encoding.
///
/// Floating-point numbers are equal if their bits are, so NaN equals itself. Lists, maps, arrays
/// and described values are equal if their encodings are.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
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
    Binary(&'a [u8]),
    /// UTF-8.
    String(&'a str),
    /// ASCII, from a constrained domain.
    Symbol(&'a str),
    /// Values of any types.
    List(List<'a>),
    /// Keys and values of any types.
    Map(Map<'a>),
    /// Values of one type.
    Array(Array<'a>),
    /// A value with a descriptor, which names its meaning.
    Described(Described<'a>),
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Boolean(a), Self::Boolean(b)) => a == b,
            (Self::Ubyte(a), Self::Ubyte(b)) => a == b,
            (Self::Ushort(a), Self::Ushort(b)) => a == b,
            (Self::Uint(a), Self::Uint(b)) => a == b,
            (Self::Ulong(a), Self::Ulong(b)) => a == b,
            (Self::Byte(a), Self::Byte(b)) => a == b,
            (Self::Short(a), Self::Short(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Long(a), Self::Long(b)) | (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Double(a), Self::Double(b)) => a.to_bits() == b.to_bits(),
            (Self::Decimal32(a), Self::Decimal32(b)) => a == b,
            (Self::Decimal64(a), Self::Decimal64(b)) => a == b,
            (Self::Decimal128(a), Self::Decimal128(b)) | (Self::Uuid(a), Self::Uuid(b)) => a == b,
            (Self::Char(a), Self::Char(b)) => a == b,
            (Self::Binary(a), Self::Binary(b)) => a == b,
            (Self::String(a), Self::String(b)) | (Self::Symbol(a), Self::Symbol(b)) => a == b,
            (Self::List(a), Self::List(b)) => a == b,
            (Self::Map(a), Self::Map(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => a == b,
            (Self::Described(a), Self::Described(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Value<'_> {}

impl<'a> Value<'a> {
    /// Decodes the bytes of exactly one value.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` for anything else.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, crate::DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = reader.value()?;
        if reader.is_empty() {
            Ok(value)
        } else {
            Err(crate::DecodeError::decode("bytes after the value"))
        }
    }

    /// Whether it is null.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The text of a string or symbol.
    #[must_use]
    pub const fn as_text(&self) -> Option<&'a str> {
        match self {
            Self::String(text) | Self::Symbol(text) => Some(text),
            _ => None,
        }
    }
}

/// The text of a uuid: 36 characters, hexadecimal digits in lower case (RFC 4122, section 3).
#[must_use]
pub fn uuid_text(id: &[u8; 16]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(36);
    for (index, byte) in id.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // A string takes any.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
