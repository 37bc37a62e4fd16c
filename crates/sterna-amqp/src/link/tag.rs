//! Delivery-tags.

use std::fmt;

/// Most bytes of a delivery-tag (AMQP 1.0, part 2, section 2.8.7).
pub const MAX_TAG_BYTES: usize = 32;

/// The name of a delivery in its link, kept without heap memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeliveryTag {
    len: u8,
    bytes: [u8; MAX_TAG_BYTES],
}

impl DeliveryTag {
    /// Keeps a tag; `None` if it has more than [`MAX_TAG_BYTES`].
    #[must_use]
    pub fn new(tag: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_TAG_BYTES];
        bytes.get_mut(..tag.len())?.copy_from_slice(tag);
        Some(Self {
            len: tag.len() as u8,
            bytes,
        })
    }

    /// Bytes of the tag, at most 32.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for DeliveryTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeliveryTag({})", self.as_bytes().escape_ascii())
    }
}
