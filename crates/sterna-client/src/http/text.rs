//! Topics and values in targets and fields: UTF-8, percent-encoded where it has to be.

use std::fmt::Write as _;

/// Whether a byte stands for itself in the path of a target.
const fn is_plain_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.' | b'_' | b'~' | b'/' | b'$' | b'+' | b'!' | b'@' | b':' | b','
        )
}

/// The same for the value of a parameter, where a plus sign may be taken for a blank.
const fn is_plain_in_query(byte: u8) -> bool {
    is_plain_in_path(byte) && byte != b'+'
}

/// The same for topics, names and values in fields.
const fn is_plain_in_field(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e) && !matches!(byte, b'%' | b',' | b'=' | b';')
}

fn push(text: &str, is_plain: fn(u8) -> bool, out: &mut String) {
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Appends a topic or filter to a path.
pub(super) fn push_path(text: &str, out: &mut String) {
    push(text, is_plain_in_path, out);
}

/// Appends a value to a query.
pub(super) fn push_query(text: &str, out: &mut String) {
    push(text, is_plain_in_query, out);
}

/// Appends a topic, name or value to the value of a field.
pub(super) fn push_field(text: &str, out: &mut String) {
    push(text, is_plain_in_field, out);
}

/// Resolves percent-encoding; none where it is not UTF-8 or a `%` is not followed by two digits.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            (digit(bytes.next())? << 4 | digit(bytes.next())?) as u8
        } else {
            byte
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_a_meaning_is_encoded() {
        let mut path = String::new();
        push_path("$share/g/a b/+/#?é%", &mut path);
        assert_eq!(path, "$share/g/a%20b/+/%23%3F%C3%A9%25");
        let mut query = String::new();
        push_query("a/+&b=c", &mut query);
        assert_eq!(query, "a/%2B%26b%3Dc");
        let mut field = String::new();
        push_field("a=b,c d", &mut field);
        assert_eq!(field, "a%3Db%2Cc%20d");
        for wrong in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(wrong), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in ".{0,40}") {
            for push in [push_path, push_query, push_field] {
                let mut encoded = String::new();
                push(&text, &mut encoded);
                prop_assert!(encoded.bytes().all(|byte| matches!(byte, 0x21..=0x7e)));
                prop_assert_eq!(decode(&encoded), Some(text.clone()));
            }
        }
    }
}
