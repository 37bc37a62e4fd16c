//! Messages and their sections (part 3, section 3.2), filters of sources.

use bytes::BytesMut;
use sterna_amqp::messaging::{
    Body, Filter, Header, MessageId, MessageView, MessageWriter, Properties, Received, Sections,
    Source, descriptor,
};
use sterna_amqp::types::{Encoded, ListWriter, MapWriter, Symbol, Timestamp, Value};

fn whole() -> BytesMut {
    let mut out = BytesMut::new();
    MessageWriter::new(&mut out)
        .header(&Header {
            durable: true,
            ttl: Some(1_000),
            ..Header::default()
        })
        .delivery_annotations(|map| map.push(&Value::Symbol("x-d"), &Value::Uint(1)))
        .message_annotations(|map| map.push(&Value::Symbol("x-m"), &Value::Uint(2)))
        .properties(&Properties {
            message_id: Some(MessageId::Ulong(1 << 40)),
            user_id: Some(b"me"),
            to: Some(Value::String("there")),
            subject: Some("about"),
            reply_to: Some(Value::String("here")),
            correlation_id: Some(MessageId::Binary(b"corr")),
            content_type: Some(Symbol("text/plain")),
            content_encoding: Some(Symbol("gzip")),
            absolute_expiry_time: Some(Timestamp(5)),
            creation_time: Some(Timestamp(4)),
            group_id: Some("group"),
            group_sequence: Some(9),
            reply_to_group_id: Some("other"),
        })
        .application_properties(|map| map.push(&Value::String("k"), &Value::Boolean(true)))
        .data(b"first")
        .data(b"second")
        .footer(|map| map.push(&Value::Symbol("x-f"), &Value::Uint(3)));
    out
}

#[test]
fn every_section_is_found() {
    let bytes = whole();
    let view = MessageView::parse(&bytes).unwrap();
    view.validate().unwrap();
    let header = view.header().unwrap().unwrap();
    assert!(header.durable && header.ttl == Some(1_000) && header.priority == 4);
    let properties = view.properties().unwrap().unwrap();
    assert_eq!(properties.message_id, Some(MessageId::Ulong(1 << 40)));
    assert_eq!(properties.reply_to_group_id, Some("other"));
    assert_eq!(
        view.delivery_annotations().unwrap().get("x-d"),
        Some(Value::Uint(1))
    );
    assert_eq!(
        view.message_annotations().unwrap().get("x-m"),
        Some(Value::Uint(2))
    );
    assert_eq!(
        view.application_properties().unwrap().get("k"),
        Some(Value::Boolean(true))
    );
    assert_eq!(view.footer().unwrap().get("x-f"), Some(Value::Uint(3)));
    let Body::Data(sections) = view.body() else {
        panic!("not data");
    };
    let data: Vec<Value<'_>> = sections.map(|section| section.unwrap().value).collect();
    assert_eq!(data, [Value::Binary(b"first"), Value::Binary(b"second")]);
    assert_eq!(view.data(), None, "two sections are not one");
    // The bare message begins with the properties and ends before the footer.
    let bare = MessageView::parse(&bytes[view.bare()]).unwrap();
    assert!(bare.header().unwrap().is_none() && bare.footer().is_none());
    assert_eq!(bare.properties().unwrap(), Some(properties));
    assert_eq!(bare.bare(), 0..view.bare().len());
    assert!(
        Sections::new(&bytes)
            .map(|section| section.unwrap().kind)
            .is_sorted()
    );
    assert_eq!(Sections::new(&bytes).count(), 8);
    // A partly received message goes on at a byte of a section.
    let data_at = Sections::new(&bytes).nth(5).unwrap().unwrap().range.start;
    let received = Received {
        section_number: 5,
        section_offset: 2,
    };
    assert_eq!(view.offset_of(received), Some(data_at + 2));
    let beyond = Received {
        section_number: 5,
        section_offset: 1_000,
    };
    assert_eq!(view.offset_of(beyond), None);
}

#[test]
fn bodies_of_every_kind() {
    let mut list = BytesMut::new();
    let mut writer = ListWriter::new(&mut list);
    writer.push(&Value::Uint(1));
    writer.finish();
    let Value::List(list) = Value::decode(&list).unwrap() else {
        panic!("not a list");
    };
    let mut out = BytesMut::new();
    MessageWriter::new(&mut out).sequence(list).sequence(list);
    let view = MessageView::parse(&out).unwrap();
    let Body::Sequences(sections) = view.body() else {
        panic!("not sequences");
    };
    assert_eq!(sections.count(), 2);
    let mut out = BytesMut::new();
    MessageWriter::new(&mut out).value(&Value::String("text"));
    let view = MessageView::parse(&out).unwrap();
    assert!(matches!(view.body(), Body::Value(Value::String("text"))));
    let mut out = BytesMut::new();
    MessageWriter::new(&mut out).data(b"bytes");
    assert_eq!(
        MessageView::parse(&out).unwrap().data(),
        Some(&b"bytes"[..])
    );
    assert!(matches!(
        MessageView::parse(&[]).unwrap().body(),
        Body::Empty
    ));
}

#[test]
fn malformed_messages_are_refused() {
    let section = |code: u8, value: &Value<'_>| {
        let mut out = BytesMut::from(&[0x00, 0x53, code][..]);
        value.encode(&mut out);
        out.to_vec()
    };
    let data = section(0x75, &Value::Binary(b"x"));
    let value = section(0x77, &Value::Null);
    let empty_map = Value::Map(sterna_amqp::types::Map::EMPTY);
    let footer = section(0x78, &empty_map);
    let annotations = section(0x72, &empty_map);
    for (name, bytes) in [
        ("not described", vec![0x40]),
        ("unknown section", section(0x79, &Value::Null)),
        ("data that is text", section(0x75, &Value::String("x"))),
        ("sequence that is a map", section(0x76, &empty_map)),
        ("header that is a map", section(0x70, &empty_map)),
        (
            "annotations that are a list",
            section(0x71, &Value::List(sterna_amqp::types::List::EMPTY)),
        ),
        ("two values", [&value[..], &value].concat()),
        ("data and value", [&data[..], &value].concat()),
        ("footer before the body", [&footer[..], &data].concat()),
        (
            "annotations after the body",
            [&data[..], &annotations].concat(),
        ),
        (
            "annotations twice",
            [&annotations[..], &annotations].concat(),
        ),
        ("cut off", data[..data.len() - 1].to_vec()),
    ] {
        assert!(MessageView::parse(&bytes).is_err(), "{name}");
    }
    let map = |key: Value<'_>, value: Value<'_>| {
        let mut out = BytesMut::new();
        let mut map = MapWriter::new(&mut out);
        map.push(&key, &value);
        map.finish();
        Encoded::from_bytes(out.freeze()).unwrap()
    };
    for (name, code, entries) in [
        (
            "annotation with a string as key",
            0x72,
            map(Value::String("a"), Value::Null),
        ),
        (
            "application property with a symbol as key",
            0x74,
            map(Value::Symbol("a"), Value::Null),
        ),
        (
            "application property that is a list",
            0x74,
            map(
                Value::String("a"),
                Value::List(sterna_amqp::types::List::EMPTY),
            ),
        ),
    ] {
        let bytes = section(code, &entries.value());
        let view = MessageView::parse(&bytes).unwrap();
        assert!(view.validate().is_err(), "{name}");
    }
    let mut header = BytesMut::from(&[0x00, 0x53, 0x70][..]);
    let mut fields = ListWriter::new(&mut header);
    fields.push(&Value::Uint(1));
    fields.finish();
    let view = MessageView::parse(&header).unwrap();
    assert!(view.header().is_err() && view.validate().is_err());
}

/// Any change of a byte is refused or understood, never a panic.
#[test]
fn changed_bytes_never_panic() {
    let bytes = whole();
    for at in 0..bytes.len() {
        for byte in [
            0x00, 0x40, 0x45, 0x53, 0x70, 0x7f, 0x80, 0xa0, 0xc1, 0xd0, 0xf0, 0xff,
        ] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            if let Ok(view) = MessageView::parse(&changed) {
                let _ = view.validate();
                assert!(view.bare().end <= changed.len());
            }
        }
        let _ = MessageView::parse(&bytes[..at]);
    }
}

#[test]
fn filters_are_told_apart() {
    let described = |(code, symbol): (u64, &'static str), by_code: bool, value: &Value<'_>| {
        let mut out = BytesMut::from(&[0x00][..]);
        if by_code {
            Value::Ulong(code).encode(&mut out);
        } else {
            Value::Symbol(symbol).encode(&mut out);
        }
        value.encode(&mut out);
        Encoded::from_bytes(out.freeze()).unwrap()
    };
    for by_code in [true, false] {
        let mut out = BytesMut::new();
        let mut map = MapWriter::new(&mut out);
        let no_local = Value::List(sterna_amqp::types::List::EMPTY);
        for (name, filter, value) in [
            ("s", descriptor::SELECTOR, Value::String("a = 1")),
            ("t", descriptor::TOPIC, Value::String("a.*")),
            ("d", descriptor::DIRECT, Value::String("a")),
            ("n", descriptor::NO_LOCAL, no_local),
            ("x", (99, "other:filter"), Value::String("a")),
            ("w", descriptor::SELECTOR, Value::Uint(1)),
        ] {
            let filter = described(filter, by_code, &value);
            map.push(&Value::Symbol(name), &filter.value());
        }
        map.push(&Value::Symbol("off"), &Value::Null);
        map.finish();
        let Value::Map(map) = Value::decode(&out).unwrap() else {
            panic!("not a map");
        };
        let source = Source {
            filter: Some(map),
            ..Source::default()
        };
        let filters: Vec<(&str, Filter<'_>)> = source.filters().collect();
        assert_eq!(filters.len(), 6);
        assert_eq!(filters[0], ("s", Filter::Selector("a = 1")));
        assert_eq!(filters[1], ("t", Filter::Topic("a.*")));
        assert_eq!(filters[2], ("d", Filter::Direct("a")));
        assert_eq!(filters[3], ("n", Filter::NoLocal));
        assert!(matches!(filters[4].1, Filter::Other(_)));
        assert!(matches!(filters[5].1, Filter::Other(_)));
    }
}
