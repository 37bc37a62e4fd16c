//! Messages, and the rules for well-formed ones (RFC 9114, section 4).

mod request;
mod response;

pub use request::{RequestHead, RequestLine};
pub use response::ResponseHead;

use crate::{Field, Fields};

/// Why a message is malformed, for people.
pub(crate) type Malformed = &'static str;

/// Fields that belong to a connection of HTTP/1.1 (section 4.2).
const CONNECTION_FIELDS: [&[u8]; 5] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
];

/// Content of a message, for a command that sends one.
#[derive(Clone, Debug)]
pub enum Content<'a> {
    /// There is none: the message ends with its head.
    Empty,
    /// These bytes, and then the message ends.
    Whole(&'a [u8]),
    /// Whole content without a copy, for some kilobytes and more.
    Shared(bytes::Bytes),
    /// Content that follows with later commands.
    Streamed,
}

impl Content<'_> {
    /// Whether the message ends without a byte of content.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Shared(bytes) => bytes.is_empty(),
            Self::Streamed => false,
        }
    }
}

/// Checks the fields of trailers.
pub(crate) fn check_trailers(fields: &Fields) -> Result<(), Malformed> {
    for field in fields.iter() {
        // Section 4.3: pseudo-header fields must not be in trailers.
        check_field(field)?;
    }
    Ok(())
}

/// Checks a field that is not a pseudo-header field, in any message.
pub(crate) fn check_field(field: Field<'_>) -> Result<(), Malformed> {
    if field.name.first() == Some(&b':') {
        return Err("a pseudo-header field where none may be");
    }
    if field.name.is_empty() || !field.name.iter().all(|byte| is_name_byte(*byte)) {
        // Section 4.2: characters in names must be lower case.
        return Err("a field name with a character that none may have");
    }
    check_value(field.value)?;
    if CONNECTION_FIELDS.contains(&field.name) {
        return Err("a field of a connection of HTTP/1.1");
    }
    if field.name == b"te" && !field.value.eq_ignore_ascii_case(b"trailers") {
        return Err("a field te that says more than trailers");
    }
    Ok(())
}

/// Lower-case characters of a token (RFC 9110, section 5.6.2).
const fn is_name_byte(byte: u8) -> bool {
    is_token_byte(byte) && !byte.is_ascii_uppercase()
}

/// Characters of a token (RFC 9110, section 5.6.2).
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Checks the characters of a value (RFC 9110, section 5.5).
fn check_value(value: &[u8]) -> Result<(), Malformed> {
    let is_allowed = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    if !value.iter().all(is_allowed) {
        return Err("a field value with a control character");
    }
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_blank(value.first()) || is_blank(value.last()) {
        return Err("a field value with blanks around it");
    }
    Ok(())
}

/// Positions of pseudo-header fields, by kind, while they are read.
struct Pseudo<const KINDS: usize> {
    names: [&'static str; KINDS],
    at: [Option<u8>; KINDS],
}

impl<const KINDS: usize> Pseudo<KINDS> {
    const fn new(names: [&'static str; KINDS]) -> Self {
        Self {
            names,
            at: [None; KINDS],
        }
    }

    /// Reads the pseudo-header fields, and returns their number.
    fn read(&mut self, fields: &Fields) -> Result<usize, Malformed> {
        for (index, field) in fields.iter().enumerate() {
            if field.name.first() != Some(&b':') {
                return Ok(index);
            }
            let kind = self
                .names
                .iter()
                .position(|name| name.as_bytes() == field.name);
            // Section 4.3: others make the message malformed.
            let kind = kind.ok_or("a pseudo-header field that the message cannot have")?;
            if self.at[kind].is_some() {
                return Err("a pseudo-header field comes twice");
            }
            check_value(field.value)?;
            // There are fewer kinds than a byte counts, and none comes twice.
            self.at[kind] = Some(index as u8);
        }
        Ok(fields.len())
    }

    fn has(&self, kind: usize) -> bool {
        self.at[kind].is_some()
    }
}

/// The length of the content that the fields name (RFC 9110, section 8.6).
fn content_length(
    fields: impl Iterator<Item = impl AsRef<[u8]>>,
) -> Result<Option<u64>, Malformed> {
    let mut length = None;
    for value in fields {
        let value = value.as_ref();
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err("a content-length that is not a number");
        }
        let number = std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or("a content-length beyond all measure")?;
        if length.is_some_and(|before| before != number) {
            return Err("two values of content-length");
        }
        length = Some(number);
    }
    Ok(length)
}

/// Counts content against the announced length (section 4.1.2).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContentCount {
    /// Value of content-length, or 0 if there can be no content; `None` if it is not known.
    pub(crate) promised_bytes: Option<u64>,
    /// Received bytes.
    pub(crate) bytes: u64,
}

impl ContentCount {
    /// Counts bytes of content.
    pub(crate) fn add(&mut self, bytes: u64) -> Result<(), Malformed> {
        self.bytes = self.bytes.saturating_add(bytes);
        match self.promised_bytes {
            Some(promised) if self.bytes > promised => Err("more content than content-length"),
            _ => Ok(()),
        }
    }

    /// Checks that all has come.
    pub(crate) fn finish(&self) -> Result<(), Malformed> {
        match self.promised_bytes {
            Some(promised) if self.bytes != promised => Err("less content than content-length"),
            _ => Ok(()),
        }
    }
}
