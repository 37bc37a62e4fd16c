//! Integers with a prefix (RFC 7541, section 5.1, as RFC 9204, section 4.1.1 takes them).

use super::Error;

/// Most bits of a value: those of a variable-length integer of QUIC.
const MAX_BITS: u32 = 62;

/// Reads an integer whose first byte has `prefix_bits` of it, and takes it off the input.
///
/// # Errors
///
/// Where the input ends too early or the value has more than 62 bits.
pub(super) fn take(input: &mut &[u8], prefix_bits: u32) -> Result<u64, Error> {
    let (value, bytes) = read(input, prefix_bits)?.ok_or(Error("integer is cut off"))?;
    *input = &input[bytes..];
    Ok(value)
}

/// As [`take`], but leaves the input and says `None` where it ends too early.
pub(super) fn read(input: &[u8], prefix_bits: u32) -> Result<Option<(u64, usize)>, Error> {
    let mask = (1_u16 << prefix_bits) as u8;
    let mask = mask.wrapping_sub(1);
    let Some((first, rest)) = input.split_first() else {
        return Ok(None);
    };
    let mut value = u64::from(first & mask);
    if value < u64::from(mask) {
        return Ok(Some((value, 1)));
    }
    let mut shift = 0;
    for (at, byte) in rest.iter().enumerate() {
        let part = u64::from(byte & 0x7f);
        if shift >= MAX_BITS || part >> (MAX_BITS - shift).min(7) != 0 {
            return Err(Error("integer is too large"));
        }
        value += part << shift;
        if value >> MAX_BITS != 0 {
            return Err(Error("integer is too large"));
        }
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 2)));
        }
        shift += 7;
    }
    Ok(None)
}

/// Appends an integer; `first_byte` has the bits before the prefix.
pub(super) fn write(value: usize, prefix_bits: u32, first_byte: u8, out: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(first_byte | value as u8);
        return;
    }
    out.push(first_byte | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541, appendix C.1.
    #[test]
    fn the_samples_of_the_specification() {
        let samples: [(&[u8], u32, u64); 3] = [
            (&[0b1010], 5, 10),
            (&[0b1_1111, 0b1001_1010, 0b1010], 5, 1337),
            (&[0b10_1010], 8, 42),
        ];
        for (bytes, prefix_bits, value) in samples {
            assert_eq!(read(bytes, prefix_bits), Ok(Some((value, bytes.len()))));
            let mut out = Vec::new();
            write(value as usize, prefix_bits, 0, &mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for prefix_bits in 3..=8 {
            for value in (0..70).map(|shift| (1_usize << (shift % 62)) - 1 + shift / 3) {
                let mut out = Vec::new();
                write(value, prefix_bits, 0, &mut out);
                let read_back = read(&out, prefix_bits);
                assert_eq!(read_back, Ok(Some((value as u64, out.len()))));
                assert_eq!(read(&out[..out.len() - 1], prefix_bits), Ok(None));
            }
        }
    }

    #[test]
    fn too_large_values_are_refused() {
        let largest = [0xff, 0x80, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f];
        assert_eq!(read(&largest, 8), Ok(Some(((1 << 62) - 1, 10))));
        let mut larger = largest;
        larger[1] = 0x81;
        assert!(read(&larger, 8).is_err());
        assert!(read(&[0xff; 12], 8).is_err());
        let padded = [
            0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0,
        ];
        assert!(read(&padded, 8).is_err());
    }
}
