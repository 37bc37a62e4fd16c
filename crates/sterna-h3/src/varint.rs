//! Variable-length integers (RFC 9000, section 16).

/// Largest value that fits.
pub const MAX: u64 = (1 << 62) - 1;

/// Most bytes of one integer.
pub const MAX_BYTES: usize = 8;

/// Bytes that the integer takes which begins with `first_byte`: 1, 2, 4 or 8.
#[must_use]
pub const fn encoded_bytes(first_byte: u8) -> usize {
    1 << (first_byte >> 6)
}

/// Reads the integer at the start of `input`: its value and its length in bytes. `None` if more
/// bytes are needed. Every encoding is valid, also a longer one than necessary.
#[must_use]
pub fn read(input: &[u8]) -> Option<(u64, usize)> {
    let first = *input.first()?;
    let bytes = encoded_bytes(first);
    let rest = input.get(1..bytes)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, byte| {
        value << 8 | u64::from(*byte)
    });
    Some((value, bytes))
}

/// Reads the integer at the start of `input` and takes it off.
pub fn take(input: &mut &[u8]) -> Option<u64> {
    let (value, bytes) = read(input)?;
    *input = &input[bytes..];
    Some(value)
}

/// Bytes of the shortest encoding of `value`.
#[must_use]
pub const fn len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends the shortest encoding of `value`.
///
/// # Panics
///
/// Where `value` is above [`MAX`]: it has no encoding.
pub fn write(value: u64, out: &mut Vec<u8>) {
    assert!(value <= MAX, "{value} has no encoding");
    match len(value) {
        1 => out.push(value as u8),
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000, appendix A.1.
    #[test]
    fn the_samples_of_the_specification() {
        let samples: [(&[u8], u64); 5] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in samples {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn the_shortest_form_is_written() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out.len(), len(value));
            assert_eq!(read(&out), Some((value, out.len())));
        }
        let lengths = [63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30].map(len);
        assert_eq!(lengths, [1, 2, 2, 4, 4, 8]);
    }

    #[test]
    #[should_panic(expected = "has no encoding")]
    fn what_is_too_large_is_not_written() {
        write(MAX + 1, &mut Vec::new());
    }
}
