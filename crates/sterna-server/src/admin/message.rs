//! A message as the API shows it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sterna_broker::Message;

/// A message, with so many bytes of its payload.
pub(super) fn message_value(message: &Message, maximum_payload_bytes: u32) -> Value {
    let payload = message.payload();
    let most = maximum_payload_bytes as usize;
    let shown = &payload[..payload.len().min(most)];
    // A cut may be within a character.
    let text = match std::str::from_utf8(shown) {
        Ok(text) => Some(text),
        Err(error) if shown.len() < payload.len() && error.error_len().is_none() => {
            std::str::from_utf8(&shown[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    let mut value = json!({
        "topic": message.topic(),
        "qos": message.qos() as u8,
        "retain": message.retain(),
        "published_ms": message.published_ms(),
        "expires_at_ms": message.expires_at_ms(),
        "payload_bytes": payload.len(),
        "is_cut": shown.len() < payload.len(),
    });
    match text {
        Some(text) => value["payload"] = text.into(),
        None => value["payload_base64"] = STANDARD.encode(shown).into(),
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
