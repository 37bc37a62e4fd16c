//! Data representation: integers, strings and Variable Byte Integers (MQTT 5.0 section 1.5).

use bytes::{BufMut, BytesMut};

use crate::{DecodeError, PacketId, text};

/// Reads the fields of a packet one after the other; never past its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

const TRUNCATED: DecodeError = DecodeError::malformed("packet ends within a field");

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    #[inline]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    /// Section 2.2.1: a Packet Identifier is not zero.
    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<PacketId, DecodeError> {
        // [MQTT-2.2.1-3] [MQTT311-2.3.1-1]
        PacketId::new(self.u16()?).ok_or(DecodeError::protocol("Packet Identifier is zero"))
    }

    /// Section 1.5.5: one to four bytes, shortest form.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0;
        for index in 0..4 {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                // [MQTT-1.5.5-1]
                if byte == 0 && index > 0 {
                    return Err(DecodeError::malformed(
                        "Variable Byte Integer is not in its shortest form",
                    ));
                }
                return Ok(value);
            }
        }
        Err(DecodeError::malformed(
            "Variable Byte Integer of more than four bytes",
        ))
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(head)
    }

    /// Section 1.5.6: two bytes of length, then that many bytes.
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Section 1.5.4: a UTF-8 Encoded String.
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a str, DecodeError> {
        // [MQTT-1.5.4-2] [MQTT311-1.5.3-2]
        match text::checked(self.binary()?, [0])? {
            (text, false) => Ok(text),
            (_, true) => Err(text::NULL),
        }
    }

    /// A string that was validated before.
    #[inline]
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        text::utf8(self.binary().ok()?)
    }

    /// A block of properties: its length and that many bytes.
    #[inline]
    pub(crate) fn property_block(&mut self) -> Result<&'a [u8], DecodeError> {
        // Most packets have none.
        if let Some((0, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(&[]);
        }
        self.filled_property_block()
    }

    fn filled_property_block(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.varint()?;
        self.take(len as usize)
            .map_err(|_| DecodeError::malformed("Property Length beyond the end of the packet"))
    }
}

/// Bytes that a Variable Byte Integer takes.
#[inline]
pub(crate) const fn varint_bytes(value: usize) -> usize {
    match value {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// Bytes of a whole packet whose body has `remaining_bytes`.
#[inline]
pub(crate) const fn packet_bytes(remaining_bytes: usize) -> usize {
    1 + varint_bytes(remaining_bytes) + remaining_bytes
}

/// Appends a Variable Byte Integer. The value must be below 2^28.
#[inline]
pub(crate) fn put_varint(out: &mut BytesMut, mut value: usize) {
    debug_assert!(value <= crate::MAX_REMAINING_BYTES);
    // [MQTT-1.5.5-1]
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Appends a string or binary field; the caller has checked that it has at most 65,535 bytes.
#[inline]
pub(crate) fn put_binary(out: &mut BytesMut, bytes: &[u8]) {
    debug_assert!(u16::try_from(bytes.len()).is_ok());
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}
