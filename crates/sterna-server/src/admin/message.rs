//! A message as the API shows it.

use serde_json::{Value, json};
use sterna_broker::Message;

use crate::amqp::death;
use crate::watch::add_payload;

/// A message, with so many bytes of its payload.
pub(super) fn message_value(message: &Message, maximum_payload_bytes: u32) -> Value {
    let mut value = json!({
        "topic": message.topic(),
        "qos": message.qos() as u8,
        "retain": message.retain(),
        "published_ms": message.published_ms(),
        "expires_at_ms": message.expires_at_ms(),
    });
    add_payload(
        &mut value,
        message.payload(),
        maximum_payload_bytes as usize,
    );
    if let Some((queue, cause, failures)) = death(message) {
        value["dead_letter"] = json!({ "queue": queue, "cause": cause, "failures": failures });
    }
    value
}

#[cfg(test)]
mod tests {
    use sterna_broker::MessageHeader;

    use super::*;

    fn shown(payload: &[u8], most: u32) -> Value {
        let message = Message::copy("t", &[], payload, MessageHeader::default());
        message_value(&message.expect("a message"), most)
    }

    #[test]
    fn payloads_are_text_or_base64_and_cut() {
        assert_eq!(shown("grün".as_bytes(), 9)["payload"], "grün");
        let cut = shown("grün".as_bytes(), 3);
        assert_eq!(
            (&cut["payload"], &cut["is_cut"]),
            (&json!("gr"), &json!(true))
        );
        assert_eq!(cut["payload_bytes"], 5);
        let bytes = shown(&[0xff, 1], 9);
        assert_eq!(bytes["payload_base64"], "/wE=");
        assert!(bytes.get("payload").is_none());
    }
}
