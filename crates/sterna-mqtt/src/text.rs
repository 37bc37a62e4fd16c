//! Checks strings in as few passes as possible.
//!
//! `str::from_utf8` reads text byte by byte unless it begins at a word boundary. Strings within
//! packets rarely begin there. For a topic of 30 bytes it takes a fifth of the time of a whole
//! PUBLISH. This function checks eight bytes at a time, for all rules at once. Only text with other
//! bytes than ASCII goes through `str::from_utf8`. Bytes that were checked before are compared alone.
//! These are the only reasons for the only `unsafe` in this crate.

#![allow(unsafe_code)]

use crate::DecodeError;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Result of a scan of some bytes.
struct Scan {
    /// No byte is above 0x7f.
    ascii: bool,
    /// A byte is one of those that were looked for.
    found: bool,
}

/// Looks for bytes above 0x7f and for those of `set`.
#[inline]
fn scan<const N: usize>(bytes: &[u8], set: [u8; N]) -> Scan {
    let mut all = 0;
    let mut found = 0;
    let mut look = |word: u64| {
        all |= word;
        for byte in set {
            // A byte's upper bit is left exactly if some byte of the word equals the wanted one.
            // The position of the bit may be wrong, which does not matter here.
            let zero_where_equal = word ^ (ONES * u64::from(byte));
            found |= zero_where_equal.wrapping_sub(ONES) & !zero_where_equal;
        }
    };
    if let Some(last) = bytes.last_chunk() {
        // The last eight bytes overlap the others instead of being finished one by one.
        look(u64::from_le_bytes(*last));
        for word in bytes.as_chunks().0 {
            look(u64::from_le_bytes(*word));
        }
    } else if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        look(u64::from(first) | u64::from(last) << 32);
    } else {
        // Bytes that are not there are taken for a letter, which is never looked for.
        look(
            bytes
                .iter()
                .fold(ONES * u64::from(b'a'), |word, b| word << 8 | u64::from(*b)),
        );
    }
    Scan {
        ascii: all & HIGHS == 0,
        found: found & HIGHS != 0,
    }
}

/// The bytes as a string, if they are one.
#[inline]
fn as_str<'a>(bytes: &'a [u8], scan: &Scan) -> Option<&'a str> {
    if scan.ascii {
        // SAFETY: no byte is above 0x7f, and such bytes are UTF-8.
        Some(unsafe { std::str::from_utf8_unchecked(bytes) })
    } else {
        std::str::from_utf8(bytes).ok()
    }
}

/// Whether one of `set` occurs. The set must not contain `a`.
#[inline]
pub(crate) fn has_any<const N: usize>(bytes: &[u8], set: [u8; N]) -> bool {
    scan(bytes, set).found
}

/// The bytes as a string, if they are UTF-8.
#[inline]
pub(crate) fn utf8(bytes: &[u8]) -> Option<&str> {
    as_str(bytes, &scan(bytes, []))
}

/// The bytes as a string, if they are those of `known`.
#[inline]
pub(crate) fn same<'a>(bytes: &'a [u8], known: &str) -> Option<&'a str> {
    // SAFETY: they are the bytes of a string.
    (bytes == known.as_bytes()).then(|| unsafe { std::str::from_utf8_unchecked(bytes) })
}

/// The bytes as a UTF-8 Encoded String (section 1.5.4), and whether one of `set` occurs in it.
#[inline]
pub(crate) fn checked<const N: usize>(
    bytes: &[u8],
    set: [u8; N],
) -> Result<(&str, bool), DecodeError> {
    let scan = scan(bytes, set);
    // [MQTT-1.5.4-1] [MQTT311-1.5.3-1] well-formed, which excludes surrogates;
    // [MQTT-1.5.4-3] [MQTT311-1.5.3-3] U+FEFF is a character like any other and stays.
    match as_str(bytes, &scan) {
        Some(text) => Ok((text, scan.found)),
        None => Err(DecodeError::malformed("string is not well-formed UTF-8")),
    }
}

/// The error of a string that contains U+0000.
pub(crate) const NULL: DecodeError = DecodeError::malformed("string contains U+0000");

#[cfg(test)]
mod tests {
    use super::{has_any, same, utf8};

    #[test]
    fn only_the_same_bytes_are_the_same_text() {
        let known = "caf\u{e9}/1";
        assert_eq!(same(known.as_bytes(), known), Some(known));
        let text: &[u8] = known.as_bytes();
        for other in [
            b"",
            &text[..4],
            &text[..6],
            b"caf\xe9/1",
            b"caf\xc3\xa9/2",
            b"caf\xc3\xa9/1\xff",
        ] {
            assert_eq!(same(other, known), None, "{other:?}");
        }
        assert_eq!(same(b"", ""), Some(""));
    }

    /// Every length, place and byte gives the result of a plain loop.
    #[test]
    fn as_a_plain_loop() {
        for len in 0..40 {
            let plain = vec![b'x'; len];
            assert_eq!(utf8(&plain), std::str::from_utf8(&plain).ok());
            assert!(!has_any(&plain, [0, b'+', b'#']));
            for place in 0..len {
                for byte in 0..=255 {
                    let mut bytes = plain.clone();
                    bytes[place] = byte;
                    let expected = matches!(byte, 0 | b'+' | b'#');
                    assert_eq!(has_any(&bytes, [0, b'+', b'#']), expected, "{place} {byte}");
                    assert_eq!(utf8(&bytes), std::str::from_utf8(&bytes).ok());
                }
            }
        }
        assert_eq!(utf8("aäöü€𝄞".as_bytes()), Some("aäöü€𝄞"));
    }
}
