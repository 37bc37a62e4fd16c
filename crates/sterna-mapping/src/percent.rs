//! Percent-encoding (RFC 3986, section 2.1): of topics in targets, and of texts in fields.

use std::borrow::Cow;

/// Whether a byte stands for itself anywhere (RFC 3986, section 2.3).
#[must_use]
pub const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a byte stands for itself in a text within a field (`docs/http.md`).
#[must_use]
pub const fn is_field(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'%' | b',' | b'=' | b';')
}

/// Appends a text with everything encoded but the bytes that stand for themselves.
pub fn encode(text: &[u8], is_plain: fn(u8) -> bool, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        if is_plain(byte) && byte.is_ascii() {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// A text as it stands in a field.
#[must_use]
pub fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode(text.as_bytes(), is_field, &mut out);
    out
}

/// The bytes that a text stands for; `None` where a `%` is not followed by two hexadecimal digits.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(first) = text.iter().position(|&byte| byte == b'%') else {
        return Some(Cow::Borrowed(text));
    };
    let mut out = Vec::with_capacity(text.len());
    out.extend_from_slice(&text[..first]);
    let mut rest = &text[first..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (&[high, low], after) = rest.split_first_chunk()?;
        let digit = |digit: u8| char::from(digit).to_digit(16);
        out.push((digit(high)? << 4 | digit(low)?) as u8);
        rest = after;
    }
    Some(Cow::Owned(out))
}

/// The text that a percent-encoded one stands for; `None` also where it is not UTF-8.
#[must_use]
pub fn decode_text(text: &[u8]) -> Option<Cow<'_, str>> {
    match decode(text)? {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn broken_escapes_are_no_text() {
        for bad in ["%", "%4", "a%4g", "%%41", "%+1"] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(decode_text(b"%ff"), None);
        assert_eq!(decode_text(b"%c3%A9+%2f"), Some("é+/".into()));
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            for is_plain in [is_unreserved, is_field] {
                let mut text = String::new();
                encode(&bytes, is_plain, &mut text);
                prop_assert!(text.bytes().all(|byte| byte == b'%' || is_plain(byte)));
                let back = decode(text.as_bytes());
                prop_assert_eq!(back.as_deref(), Some(&*bytes));
            }
        }
    }
}
