//! Messages as JSON (RFC 8259).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, BytesMut};
use sterna_mqtt::{PropertyContext, PublishProperties};

use super::OutgoingMessage;

/// Appends the object that stands for a message.
pub(super) fn write_object(item: &OutgoingMessage<'_>, out: &mut BytesMut) {
    let message = item.message;
    // Room for what is not escaped, in one piece.
    out.reserve(message.body_bytes() + 128);
    out.put_u8(b'{');
    if item.id != 0 {
        out.put_slice(b"\"id\":");
        write_number(item.id, out);
        out.put_u8(b',');
    }
    out.put_slice(b"\"topic\":");
    write_string(message.topic(), out);
    if let Ok(text) = std::str::from_utf8(message.payload()) {
        out.put_slice(b",\"payload\":");
        write_string(text, out);
    } else {
        out.put_slice(b",\"payload_base64\":");
        write_base64(message.payload(), out);
    }
    out.put_slice(b",\"qos\":");
    out.put_u8(b'0' + item.qos as u8);
    if item.retain {
        out.put_slice(b",\"retain\":true");
    }
    if item.redelivered {
        out.put_slice(b",\"redelivered\":true");
    }
    // They were checked when they came.
    let properties = PublishProperties::parse(message.properties(), PropertyContext::Publish)
        .unwrap_or(PublishProperties::EMPTY);
    if !properties.is_empty() {
        if let Some(content_type) = properties.content_type() {
            out.put_slice(b",\"content_type\":");
            write_string(content_type, out);
        }
        if properties.is_utf8_payload() {
            out.put_slice(b",\"payload_format\":\"utf-8\"");
        }
    }
    if let Some(left_s) = message.expiry_left_s(item.now_ms) {
        out.put_slice(b",\"expiry_s\":");
        write_number(left_s.into(), out);
    }
    if !properties.is_empty() {
        if let Some(topic) = properties.response_topic() {
            out.put_slice(b",\"response_topic\":");
            write_string(topic, out);
        }
        if let Some(data) = properties.correlation_data() {
            out.put_slice(b",\"correlation_data\":");
            write_base64(data, out);
        }
        write_user_properties(&properties, out);
    }
    out.put_u8(b'}');
}

fn write_user_properties(properties: &PublishProperties<'_>, out: &mut BytesMut) {
    let mut is_first = true;
    for (name, value) in properties.user_properties() {
        let before: &[u8] = if is_first {
            b",\"user_properties\":[["
        } else {
            b",["
        };
        is_first = false;
        out.put_slice(before);
        write_string(name, out);
        out.put_u8(b',');
        write_string(value, out);
        out.put_u8(b']');
    }
    if !is_first {
        out.put_u8(b']');
    }
}

/// Appends a string (section 7). There are no line ends in it, so it also fits where lines count.
pub(crate) fn write_string(text: &str, out: &mut BytesMut) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    out.put_u8(b'"');
    let mut plain_from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.put_slice(&bytes[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' => out.put_slice(b"\\\""),
            b'\\' => out.put_slice(b"\\\\"),
            b'\n' => out.put_slice(b"\\n"),
            b'\r' => out.put_slice(b"\\r"),
            b'\t' => out.put_slice(b"\\t"),
            _ => {
                out.put_slice(b"\\u00");
                out.put_u8(DIGITS[usize::from(byte >> 4)]);
                out.put_u8(DIGITS[usize::from(byte & 15)]);
            }
        }
    }
    out.put_slice(&bytes[plain_from..]);
    out.put_u8(b'"');
}

/// Appends bytes as a string in base64 with padding.
fn write_base64(bytes: &[u8], out: &mut BytesMut) {
    out.put_u8(b'"');
    let start = out.len();
    let most = bytes.len().div_ceil(3) * 4;
    out.resize(start + most, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
    debug_assert_eq!(written, most, "three bytes become four, with padding");
    out.put_u8(b'"');
}

/// Appends a number.
pub(crate) fn write_number(value: u64, out: &mut BytesMut) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn strings_and_numbers_are_what_a_reader_of_json_reads(
            text in any::<String>(), control in "[\u{0}-\u{1f}\"\\\\\u{7f}\u{2028}]{0,9}",
            number in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            for text in [text, control] {
                let mut out = BytesMut::new();
                write_string(&text, &mut out);
                prop_assert!(!out.iter().any(|byte| *byte < 0x20));
                prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
            }
            let mut out = BytesMut::new();
            write_number(number, &mut out);
            prop_assert_eq!(serde_json::from_slice::<u64>(&out).unwrap(), number);
            let mut out = BytesMut::from(&b"x"[..]);
            write_base64(&bytes, &mut out);
            let text: String = serde_json::from_slice(&out[1..]).unwrap();
            prop_assert_eq!(STANDARD.decode(text).unwrap(), bytes);
        }
    }
}
