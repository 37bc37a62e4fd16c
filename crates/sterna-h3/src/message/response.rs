//! Heads of responses (RFC 9114, section 4.3.2).

use std::fmt;

use super::{Malformed, Pseudo, check_field, content_length};
use crate::{Field, Fields};

/// The head of a response that arrived, be it interim (status 1xx) or final. It is not malformed.
#[derive(Clone, PartialEq, Eq)]
pub struct ResponseHead {
    fields: Fields,
    status: u16,
    content_length: Option<u64>,
}

impl ResponseHead {
    /// Checks the fields of a head.
    pub(crate) fn new(fields: Fields) -> Result<Self, Malformed> {
        let mut pseudo = Pseudo::new([":status"]);
        let pseudo_fields = pseudo.read(&fields)?;
        for field in fields.iter().skip(pseudo_fields) {
            check_field(field)?;
        }
        if !pseudo.has(0) {
            return Err("a response without a status");
        }
        let value = fields.at(0).map_or(&b""[..], |field| field.value);
        let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else {
            return Err("a status other than three digits");
        };
        let status = [a, b, c]
            .into_iter()
            .fold(0, |number, digit| 10 * number + u16::from(digit - b'0'));
        // Section 4.5: there is no upgrade in HTTP/3.
        if status == 101 {
            return Err("status 101");
        }
        let content_length = content_length(fields.get_all("content-length"))?;
        Ok(Self {
            fields,
            status,
            content_length,
        })
    }

    /// The status, from 100 to 999.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether another head follows (RFC 9110, section 15.2).
    #[must_use]
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// Whether the status says success (RFC 9110, section 15.3).
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Bytes of content that the response says it has. The engine holds it to that, except where
    /// there can be none: in response to HEAD and with status 304.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The value of the first field of this name, which is in lower case and no pseudo-header
    /// field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|field| field.name == name.as_bytes())
            .map(|field| field.value)
    }

    /// The fields in their order, without the status.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.fields.iter().skip(1)
    }

    /// All fields, the status first; [`Connection::recycle`](crate::Connection::recycle) takes them
    /// back.
    #[must_use]
    pub fn into_fields(self) -> Fields {
        self.fields
    }
}

impl fmt::Debug for ResponseHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResponseHead").field(&self.fields).finish()
    }
}
