//! One value that is kept.

use bytes::{Bytes, BytesMut};

use super::Value;
use crate::DecodeError;

/// One encoded value, validated and owned. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encoded(Bytes);

impl Encoded {
    /// Keeps a value.
    #[must_use]
    pub fn new(value: &Value<'_>) -> Self {
        let mut out = BytesMut::new();
        value.encode(&mut out);
        Self(out.freeze())
    }

    /// Takes bytes that are one encoded value.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` if they are not.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        Value::decode(&bytes)?;
        Ok(Self(bytes))
    }

    /// Encodes with a function that appends exactly one value.
    pub fn build(write: impl FnOnce(&mut BytesMut)) -> Self {
        let mut out = BytesMut::new();
        write(&mut out);
        debug_assert!(Value::decode(&out).is_ok());
        Self(out.freeze())
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Value<'_> {
        Value::decode(&self.0).unwrap_or(Value::Null)
    }

    /// The encoded bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.0
    }
}
