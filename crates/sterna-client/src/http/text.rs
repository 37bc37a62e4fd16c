//! Topics and values in targets: UTF-8, percent-encoded where it has to be.

use sterna_mapping::percent;

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

/// Appends a topic or filter to a path.
pub(super) fn push_path(text: &str, out: &mut String) {
    percent::encode(text.as_bytes(), is_plain_in_path, out);
}

/// Appends a value to a query.
pub(super) fn push_query(text: &str, out: &mut String) {
    percent::encode(text.as_bytes(), is_plain_in_query, out);
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
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(text in ".{0,40}") {
            for push in [push_path, push_query] {
                let mut encoded = String::new();
                push(&text, &mut encoded);
                prop_assert!(encoded.bytes().all(|byte| matches!(byte, 0x21..=0x7e)));
                let decoded = percent::decode_text(encoded.as_bytes());
                prop_assert_eq!(decoded.as_deref(), Some(&*text));
            }
        }
    }
}
