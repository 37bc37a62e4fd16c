//! What fuzz targets and property tests do with any bytes.

use bytes::BytesMut;
use sterna_amqp::Framer;
use sterna_amqp::frame::{self, Unit};
use sterna_amqp::messaging::MessageView;
use sterna_amqp::performatives::Performative;
use sterna_amqp::sasl::SaslFrame;
use sterna_amqp::selector::{Selector, SelectorLimits};
use sterna_amqp::types::{Reader, Value};

/// Small, so that inputs reach it.
const MAX_FRAME_BYTES: usize = 4_096;

/// Values from any bytes: what is decoded can be walked, and encodes to what decodes to the same.
pub(crate) fn types(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    while let Ok(value) = reader.value() {
        assert!(reader.rest().len() < bytes.len());
        walk(&value);
        let mut encoded = BytesMut::new();
        value.encode(&mut encoded);
        let again = Value::decode(&encoded).expect("what was encoded can be decoded");
        let mut twice = BytesMut::new();
        again.encode(&mut twice);
        assert_eq!(encoded, twice);
        if reader.is_empty() {
            break;
        }
    }
}

fn walk(value: &Value<'_>) {
    match value {
        Value::List(list) => {
            assert_eq!(list.iter().count(), list.len());
            list.iter().for_each(|one| walk(&one));
        }
        Value::Map(map) => {
            assert_eq!(map.iter().count(), map.len());
            let _ = map.check_keys(|_| true);
            map.iter().for_each(|(key, value)| {
                walk(&key);
                walk(&value);
            });
        }
        Value::Array(array) => assert_eq!(array.iter().count(), array.len()),
        Value::Described(described) => {
            walk(&described.descriptor());
            walk(&described.value());
        }
        _ => {}
    }
}

/// The bytes of a lane: they mean the same however they are cut on the way, and frame bodies that
/// are decoded can be encoded.
pub(crate) fn frames(bytes: &[u8]) {
    let whole = cut(bytes, |rest| rest);
    assert_eq!(whole, cut(bytes, |_| 1), "in pieces it is something else");
    let mut step = 0;
    let mixed = cut(bytes, |_| {
        step = (step * 5 + 3) % 17;
        step + 1
    });
    assert_eq!(whole, mixed, "in pieces it is something else");
    for (frame_type, _, body) in &whole.0 {
        match *frame_type {
            frame::TYPE_AMQP => body_round_trips(body),
            frame::TYPE_SASL => {
                if let Ok(sasl) = SaslFrame::decode(body) {
                    let mut encoded = BytesMut::new();
                    sasl.encode(&mut encoded);
                    assert_eq!(SaslFrame::decode(&encoded), Ok(sasl));
                }
            }
            _ => {}
        }
    }
}

fn body_round_trips(body: &[u8]) {
    let Ok((performative, payload)) = Performative::decode(body) else {
        return;
    };
    let mut encoded = BytesMut::new();
    performative.encode(&mut encoded);
    let (_, rest) = Performative::decode(&encoded).expect("what was encoded can be decoded");
    assert!(rest.is_empty());
    if let Ok(message) = MessageView::parse(payload) {
        let _ = message.validate();
        let _ = message.body();
        let bare = &payload[message.bare()];
        assert!(MessageView::parse(bare).is_ok());
    }
}

type Units = (Vec<(u8, u16, Vec<u8>)>, Option<sterna_amqp::DecodeError>);

fn cut(bytes: &[u8], mut piece: impl FnMut(usize) -> usize) -> Units {
    let mut framer = Framer::new();
    let mut units = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (mut now, later) = rest.split_at(piece(rest.len()).min(rest.len()));
        rest = later;
        loop {
            match framer.next(&mut now, MAX_FRAME_BYTES) {
                Ok(Some(Unit::Header(header))) => {
                    let mut bytes = BytesMut::new();
                    header.encode(&mut bytes);
                    units.push((255, 0, bytes.to_vec()));
                }
                Ok(Some(Unit::Frame(frame))) => {
                    units.push((frame.frame_type(), frame.channel(), frame.body().to_vec()));
                }
                Ok(None) => {
                    assert!(now.is_empty(), "bytes were left lying");
                    break;
                }
                Err(error) => return (units, Some(error)),
            }
            assert!(framer.buffered_bytes() <= MAX_FRAME_BYTES);
        }
        if !framer.is_partial() {
            assert_eq!(framer.buffered_bytes(), 0, "an idle lane holds memory");
        }
    }
    (units, None)
}

/// A selector and, after a zero byte, a message.
pub(crate) fn selector(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let Ok(text) = std::str::from_utf8(parts.next().unwrap_or_default()) else {
        return;
    };
    let Ok(selector) = Selector::parse(text, &SelectorLimits::default()) else {
        return;
    };
    let payload = parts.next().unwrap_or_default();
    if let Ok(message) = MessageView::parse(payload) {
        let matches = selector.matches(&message);
        if let Ok(not) = Selector::parse(&format!("NOT ({text})"), &SelectorLimits::default()) {
            assert!(!(matches && not.matches(&message)), "true and false");
        }
    }
}
