//! Messages as JSON (RFC 8259).

use bytes::{BufMut as _, BytesMut};
use sterna_mqtt::{Properties, Property};

use super::OutgoingMessage;
use super::pen::{Encoding, Pen};

/// Writes the object that stands for a message.
pub(super) fn write_object(item: &OutgoingMessage<'_>, pen: &mut Pen<'_>) {
    let message = item.message;
    pen.put(|out| {
        out.put_u8(b'{');
        if item.id != 0 {
            out.put_slice(b"\"id\":");
            write_number(item.id, out);
            out.put_u8(b',');
        }
    });
    let topic = message.topic().as_bytes();
    pen.long(b"\"topic\":", Encoding::Json, || Some(topic));
    let payload = message.payload();
    let (name, encoding): (&[u8], _) = if pen.is_text(payload) {
        (b",\"payload\":", Encoding::Json)
    } else {
        (b",\"payload_base64\":", Encoding::Base64)
    };
    pen.long(name, encoding, || Some(payload));
    // They were checked when they came.
    let properties = Properties::known(message.properties());
    pen.put(|out| {
        out.put_slice(b",\"qos\":");
        out.put_u8(b'0' + item.qos as u8);
        if item.retain {
            out.put_slice(b",\"retain\":true");
        }
        if item.redelivered {
            out.put_slice(b",\"redelivered\":true");
        }
    });
    pen.long(b",\"content_type\":", Encoding::Json, || {
        properties.find(|property| match property {
            Property::ContentType(value) => Some(value.as_bytes()),
            _ => None,
        })
    });
    pen.put(|out| {
        let is_text = |property| matches!(property, Property::PayloadFormatIndicator(true));
        if properties.iter().any(is_text) {
            out.put_slice(b",\"payload_format\":\"utf-8\"");
        }
        if let Some(left_s) = message.expiry_left_s(item.now_ms) {
            out.put_slice(b",\"expiry_s\":");
            write_number(left_s.into(), out);
        }
    });
    pen.long(b",\"response_topic\":", Encoding::Json, || {
        properties.find(|property| match property {
            Property::ResponseTopic(value) => Some(value.as_bytes()),
            _ => None,
        })
    });
    pen.long(b",\"correlation_data\":", Encoding::Base64, || {
        properties.find(|property| match property {
            Property::CorrelationData(value) => Some(value),
            _ => None,
        })
    });
    pen.pairs(message.properties());
    pen.put(|out| out.put_u8(b'}'));
}

/// Appends a string (section 7). There are no line ends in it, so it also fits where lines count.
pub(crate) fn write_string(text: &str, out: &mut BytesMut) {
    out.put_u8(b'"');
    escape(text.as_bytes(), out);
    out.put_u8(b'"');
}

/// Appends a part of a string's bytes, wherever the string is cut.
pub(super) fn escape(bytes: &[u8], out: &mut BytesMut) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len());
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
            number in any::<u64>(),
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
        }
    }
}
