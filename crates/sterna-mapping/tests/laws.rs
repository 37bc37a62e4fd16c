//! The laws of `docs/mapping.md`: what goes through another protocol comes back as it was.

#[allow(unreachable_pub, reason = "the fuzz targets' crate shows it")]
#[path = "../../../fuzz/src/mapping.rs"]
mod fuzzed;

use bytes::BytesMut;
use proptest::prelude::*;
use sterna_amqp::messaging::{
    Body, Header, MessageId, MessageView, MessageWriter, Properties, SectionKind, Sections,
};
use sterna_amqp::types::{ListWriter, Map, MapWriter, Symbol, Timestamp, Value};
use sterna_mapping::{
    FromAmqp, ToAmqp, ToFields, from_amqp, from_fields, merge_annotations, to_amqp, to_fields,
    topic_of_address,
};
use sterna_mqtt::{Property, PropertyBuf, PropertyContext, PublishProperties, QoS};

/// A value to be encoded.
#[derive(Clone, Debug)]
enum Tree {
    Null,
    Boolean(bool),
    Integer(u8, i64),
    Large(u64),
    Float(f32),
    Double(f64),
    Decimal(u128),
    Char(char),
    Timestamp(i64),
    Uuid([u8; 16]),
    Binary(Vec<u8>),
    String(String),
    Symbol(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
    /// Of one null.
    Array,
    Described,
}

impl Tree {
    fn encode(&self, out: &mut BytesMut) {
        let value = match self {
            Self::Null => Value::Null,
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Integer(width, value) => match width {
                0 => Value::Byte(*value as i8),
                1 => Value::Short(*value as i16),
                2 => Value::Int(*value as i32),
                3 => Value::Ubyte(value.to_be_bytes()[7]),
                4 => Value::Ushort(value.cast_unsigned() as u16),
                5 => Value::Uint(value.cast_unsigned() as u32),
                _ => Value::Long(*value),
            },
            Self::Large(value) => Value::Ulong(*value),
            Self::Float(value) => Value::Float(*value),
            Self::Double(value) => Value::Double(*value),
            Self::Decimal(bits) => match bits % 3 {
                0 => Value::Decimal32((*bits as u32).to_be_bytes()),
                1 => Value::Decimal64((*bits as u64).to_be_bytes()),
                _ => Value::Decimal128(bits.to_be_bytes()),
            },
            Self::Char(value) => Value::Char(*value),
            Self::Timestamp(value) => Value::Timestamp(*value),
            Self::Uuid(value) => Value::Uuid(*value),
            Self::Binary(value) => Value::Binary(value),
            Self::String(value) => Value::String(value),
            Self::Symbol(value) => Value::Symbol(value),
            Self::List(values) => {
                let mut list = ListWriter::new(out);
                for value in values {
                    value.encode(list.entry());
                }
                return list.finish();
            }
            Self::Map(entries) => {
                let mut map = MapWriter::new(out);
                for (key, value) in entries {
                    value.encode(map.entry(&Value::String(key)));
                }
                return map.finish();
            }
            Self::Array => return out.extend_from_slice(&[0xe0, 2, 1, 0x40]),
            Self::Described => return out.extend_from_slice(&[0x00, 0x53, 1, 0x40]),
        };
        value.encode(out);
    }

    fn is_compound(&self) -> bool {
        matches!(self, Self::List(_) | Self::Map(_))
    }

    /// Whether JSON has a form for it.
    fn has_form(&self) -> bool {
        match self {
            Self::Array | Self::Described => false,
            Self::List(values) => values.iter().all(Self::has_form),
            Self::Map(entries) => entries.iter().all(|(_, value)| value.has_form()),
            // What is no number has many forms, and only one has a text.
            Self::Float(value) => !value.is_nan() || value.to_bits() == f32::NAN.to_bits(),
            Self::Double(value) => !value.is_nan() || value.to_bits() == f64::NAN.to_bits(),
            _ => true,
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    "[a-zé,=%; \u{1}\"\\\\]{0,9}"
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Null),
        any::<bool>().prop_map(Tree::Boolean),
        (0..7_u8, any::<i64>()).prop_map(|(width, value)| Tree::Integer(width, value)),
        (0..7_u8, -200..200_i64).prop_map(|(width, value)| Tree::Integer(width, value)),
        any::<u64>().prop_map(Tree::Large),
        any::<u32>().prop_map(|bits| Tree::Float(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Tree::Double(f64::from_bits(bits))),
        (-1000..1000_i32).prop_map(|tenth| Tree::Double(f64::from(tenth) / 10.0)),
        any::<u128>().prop_map(Tree::Decimal),
        any::<char>().prop_map(Tree::Char),
        any::<i64>().prop_map(Tree::Timestamp),
        any::<[u8; 16]>().prop_map(Tree::Uuid),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(Tree::Binary),
        any::<String>().prop_map(Tree::String),
        "[ -~]{0,9}".prop_map(Tree::Symbol),
        Just(Tree::Array),
        Just(Tree::Described),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Tree::List),
            prop::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|map| Tree::Map(map.into_iter().collect())),
        ]
    })
}

/// A body.
#[derive(Clone, Debug)]
enum Sent {
    Value(Tree),
    Data(Vec<Vec<u8>>),
    Sequences(Vec<Vec<Tree>>),
}

impl Sent {
    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Value(tree) => {
                MessageWriter::new(out).value_with(|out| tree.encode(out));
            }
            Self::Data(parts) => {
                for part in parts {
                    MessageWriter::new(out).data(part);
                }
            }
            Self::Sequences(parts) => {
                for part in parts {
                    let mut list = BytesMut::new();
                    Tree::List(part.clone()).encode(&mut list);
                    let Ok(Value::List(list)) = Value::decode(&list) else {
                        panic!("a list");
                    };
                    MessageWriter::new(out).sequence(list);
                }
            }
        }
    }

    fn has_form(&self) -> bool {
        match self {
            Self::Value(tree) => tree.has_form(),
            Self::Data(parts) => parts.len() == 1,
            Self::Sequences(parts) => parts.len() == 1 && parts[0].iter().all(Tree::has_form),
        }
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        4 => tree().prop_map(Sent::Value),
        1 => prop::collection::vec(bytes, 1..3).prop_map(Sent::Data),
        1 => prop::collection::vec(prop::collection::vec(tree(), 0..4), 1..3).prop_map(Sent::Sequences),
    ]
}

fn mqtt<'a>(view: &MessageView<'a>) -> FromAmqp<'a> {
    view.validate().expect("valid");
    from_amqp(view, |address, _| topic_of_address(address)).expect("valid")
}

fn amqp(properties: &PublishProperties<'_>, payload: &[u8]) -> BytesMut {
    let form = ToAmqp {
        topic: "a/b",
        header: Header::default(),
        retain: false,
        annotations: None,
    };
    let mut out = BytesMut::new();
    let rest = to_amqp(properties, payload, &form, &mut out);
    assert!(payload.ends_with(rest));
    out.extend_from_slice(rest);
    out
}

fn fields(properties: PublishProperties<'_>) -> Vec<(&'static str, String)> {
    let message = ToFields {
        qos: QoS::AtLeastOnce,
        retain: false,
        expiry_s: None,
        properties,
    };
    let mut fields = Vec::new();
    to_fields(&message, |name, value| {
        fields.push((name, value.to_owned()));
    });
    fields
}

/// Names and values of the User Properties, sorted.
fn user(properties: &PublishProperties<'_>) -> Vec<(String, String)> {
    let user = properties.user_properties();
    let mut user: Vec<_> = user.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    user.sort();
    user
}

/// User Properties of a message of MQTT; some fit fields of AMQP, some only bear their names.
fn user_properties() -> impl Strategy<Value = Vec<(String, String)>> {
    let names = prop::sample::select(vec![
        "amqp-subject",
        "amqp-message-id",
        "amqp-user-id",
        "amqp-content-encoding",
        "amqp-creation-time",
        "amqp-group-id",
        "amqp-group-sequence",
        "amqp-reply-to-group-id",
        "amqp-priority",
        "amqp-content-type",
        "amqp-type",
        "plain",
        "other",
    ]);
    let values = prop_oneof![
        text(),
        prop::sample::select(vec![
            "7",
            "Zm9v",
            "base64:/w==",
            "-3",
            "int",
            "map",
            "300",
            "04"
        ])
        .prop_map(str::to_owned),
    ];
    let names = names.prop_map(str::to_owned);
    prop::collection::btree_map(names, values, 0..8).prop_map(|user| user.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// AMQP -> MQTT -> HTTP -> MQTT -> AMQP: the body comes back with its type, whatever it is, and so
    /// do the fields.
    #[test]
    fn amqp_comes_back(
        body in sent(),
        content_type in prop::option::of("[a-z]{1,5}/[a-z]{1,5}"),
        subject in prop::option::of(text()),
        id in prop::option::of(prop::collection::vec(any::<u8>(), 0..6)),
        group in prop::option::of((text(), any::<u32>(), any::<i64>())),
        priority in any::<u8>(),
        application in prop::collection::btree_map("[a-z]{1,4}", text(), 0..3),
    ) {
        let properties = Properties {
            message_id: id.as_deref().map(MessageId::Binary),
            user_id: id.as_deref(),
            to: Some(Value::String("a/b")),
            subject: subject.as_deref(),
            reply_to: Some(Value::String("topic:///answers")),
            correlation_id: subject.as_deref().map(MessageId::String),
            content_type: content_type.as_deref().map(Symbol),
            content_encoding: content_type.as_deref().map(Symbol),
            creation_time: group.as_ref().map(|(.., time)| Timestamp(*time)),
            group_id: group.as_ref().map(|(id, ..)| &**id),
            group_sequence: group.as_ref().map(|(_, sequence, _)| *sequence),
            reply_to_group_id: group.as_ref().map(|(id, ..)| &**id),
            ..Properties::default()
        };
        let header = Header { priority, ..Header::default() };
        let mut sent = BytesMut::new();
        let mut writer = MessageWriter::new(&mut sent);
        if header != Header::default() {
            writer.header(&header);
        }
        writer.properties(&properties);
        if !application.is_empty() {
            writer.application_properties(|map| {
                for (name, value) in &application {
                    map.push(&Value::String(name), &Value::String(value));
                }
            });
        }
        body.write(&mut sent);
        let view = MessageView::parse(&sent).unwrap();
        let came = mqtt(&view);
        let published = came.properties.publish_properties(PropertyContext::Publish).unwrap();
        let is_encoded = published.content_type() == Some("application/vnd.amqp");
        prop_assert_eq!(is_encoded, !body.has_form());
        if published.is_utf8_payload() {
            prop_assert!(std::str::from_utf8(&came.payload).is_ok());
        }
        if matches!(&body, Sent::Value(tree) if tree.is_compound()) && !is_encoded {
            serde_json::from_slice::<serde_json::Value>(&came.payload).unwrap();
            let expected = content_type.as_deref().unwrap_or("application/json");
            prop_assert_eq!(published.content_type(), Some(expected));
        }
        // Through the fields of HTTP nothing is lost either.
        let fields = fields(published);
        let read = from_fields(&*fields).unwrap();
        let read = read.properties.publish_properties(PropertyContext::Publish).unwrap();
        prop_assert_eq!(user(&read), user(&published));

        let back = amqp(&read, &came.payload);
        prop_assert_eq!(&back, &sent);
    }

    /// MQTT -> AMQP -> MQTT: nothing is lost, also of what does not fit AMQP's fields.
    #[test]
    fn mqtt_comes_back(
        payload in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            text().prop_map(String::into_bytes),
            Just(b"7".to_vec()),
        ],
        is_text: bool,
        content_type in prop::option::of("[a-z]{1,5}/[a-z]{1,5}"),
        response in prop::option::of("/?[a-z]{1,3}/[a-zé/% ]{1,9}"),
        correlation in prop::option::of(prop::collection::vec(any::<u8>(), 0..12)),
        sent_user in user_properties(),
    ) {
        let is_text = is_text && std::str::from_utf8(&payload).is_ok();
        let mut block = PropertyBuf::new();
        let mut push = |property: Property<'_>| block.push(property).unwrap();
        if is_text {
            push(Property::PayloadFormatIndicator(true));
        }
        if let Some(value) = &content_type {
            push(Property::ContentType(value));
        }
        if let Some(value) = &response {
            push(Property::ResponseTopic(value));
        }
        if let Some(value) = &correlation {
            push(Property::CorrelationData(value));
        }
        for (name, value) in &sent_user {
            push(Property::UserProperty(name, value));
        }
        let sent = block.publish_properties(PropertyContext::Publish).unwrap();
        let bytes = amqp(&sent, &payload);
        let view = MessageView::parse(&bytes).unwrap();
        let came = mqtt(&view);
        let back = came.properties.publish_properties(PropertyContext::Publish).unwrap();
        prop_assert_eq!(&*came.payload, &*payload);
        let is_typed = sent_user.iter().any(|(name, value)| name == "amqp-type" && value == "int")
            && payload == b"7";
        prop_assert_eq!(back.is_utf8_payload(), is_text || is_typed);
        let expected = content_type.as_deref().or_else(|| is_typed.then_some("text/plain"));
        prop_assert_eq!(back.content_type(), expected);
        prop_assert_eq!(back.response_topic(), response.as_deref());
        prop_assert_eq!(back.correlation_data(), correlation.as_deref());
        // Of numbers what counts is the number; the usual priority is not said.
        let normal = |user: Vec<(String, String)>| -> Vec<(String, String)> {
            user.into_iter()
                .map(|(name, value)| match &*name {
                    "amqp-priority" | "amqp-group-sequence" | "amqp-creation-time" => {
                        let number = value.parse::<i64>().map(|number| number.to_string());
                        (name, number.unwrap_or(value))
                    }
                    _ => (name, value),
                })
                .filter(|(name, value)| name != "amqp-priority" || value != "4")
                .collect()
        };
        prop_assert_eq!(normal(user(&back)), normal(user(&sent)));
    }

    /// The overlay's entries take the place of those with their keys, and nothing else changes.
    #[test]
    fn annotations_merge(
        base in prop::collection::btree_map("[a-e]", any::<i32>(), 0..5),
        over in prop::collection::btree_map("[a-e]", any::<i32>(), 0..5),
    ) {
        let encoded = |entries: &std::collections::BTreeMap<String, i32>| {
            let mut out = BytesMut::new();
            let mut map = MapWriter::new(&mut out);
            for (key, value) in entries {
                map.push(&Value::Symbol(key), &Value::Int(*value));
            }
            map.finish();
            out
        };
        let (base_bytes, over_bytes) = (encoded(&base), encoded(&over));
        let map = |bytes| match Value::decode(bytes) {
            Ok(Value::Map(map)) => map,
            other => panic!("{other:?}"),
        };
        let mut out = BytesMut::new();
        merge_annotations(Some(map(&base_bytes)), map(&over_bytes), &mut out);
        let merged = map(&out);
        let mut expected = base;
        expected.extend(over);
        prop_assert_eq!(merged.len(), expected.len());
        for (key, value) in &expected {
            prop_assert_eq!(merged.get(key), Some(Value::Int(*value)));
        }
        prop_assert!(merged.check_keys(|_| true).is_ok());
    }

    /// Whatever bytes are said to be.
    #[test]
    fn no_mark_makes_a_message_that_is_none(
        mark in prop_oneof!["[a-z]{3,9}", "(map|list|sequence) [0-9a-zA-Z?]{0,6}"],
        payload in prop_oneof![
            "[\\[\\]{}\",:0-9eE.a-]{0,12}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..30),
        ],
    ) {
        let mut block = PropertyBuf::new();
        block.push(Property::UserProperty("amqp-type", &mark)).unwrap();
        let sent = block.publish_properties(PropertyContext::Publish).unwrap();
        let bytes = amqp(&sent, &payload);
        let view = MessageView::parse(&bytes).unwrap();
        view.validate().unwrap();
        // Where it does not fit it is still told.
        if let Some(application) = view.application_properties() {
            prop_assert_eq!(application.get("amqp-type"), Some(Value::String(&mark)));
            prop_assert_eq!(view.data(), Some(&*payload));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// What the fuzz target checks, with bytes that mean something more often.
    #[test]
    fn texts_stay_the_same_from_the_first_time_on(
        name in "subject|message-id|user-id|content-encoding|creation-time|priority|group-sequence|type|content-type",
        value in "boolean|u?(byte|int|long)|float|double|decimal(32|64|128)|char|timestamp|uuid|symbol|(list|map|sequence) [0-9A-z?]{0,5}|[0-9+-]{1,4}|base64:[A-z=/]{0,5}",
        payload in "-?[0-9.eE+]{0,6}|true|NaN|-?inf|0x[0-9a-f]{8}|[0-9a-f-]{36}|\\[([0-9.e]{1,4},)?\"?[A-z0-9]{0,4}\"?\\]|\\{\"[a-z]\":[0-9]{1,3}\\}",
    ) {
        fuzzed::texts(format!("{name}\n{value}\n{payload}").as_bytes());
    }
}

#[test]
fn what_mqtt_cannot_have_is_refused() {
    let refused = |properties: &Properties<'_>| {
        let mut out = BytesMut::new();
        MessageWriter::new(&mut out)
            .properties(properties)
            .data(b"x");
        let view = MessageView::parse(&out).unwrap();
        from_amqp(&view, |address, _| topic_of_address(address)).is_err()
    };
    let long = "x".repeat(65_536);
    for subject in ["a\0b", &long] {
        assert!(refused(&Properties {
            subject: Some(subject),
            ..Properties::default()
        }));
    }
    assert!(refused(&Properties {
        content_type: Some(Symbol("a\0")),
        ..Properties::default()
    }));
    // An address that names no topic to publish to is none.
    let reply_to = Some(Value::String("a/+"));
    assert!(!refused(&Properties {
        reply_to,
        ..Properties::default()
    }));
}

#[test]
fn a_message_that_says_nothing_has_no_header() {
    let bytes = amqp(&PublishProperties::EMPTY, b"21.5");
    let kinds: Vec<_> = Sections::new(&bytes)
        .map(|section| section.unwrap().kind)
        .collect();
    assert_eq!(kinds, [SectionKind::Properties, SectionKind::Data]);
    let view = MessageView::parse(&bytes).unwrap();
    assert!(matches!(view.body(), Body::Data(_)));
    assert_eq!(
        view.application_properties()
            .map_or(0, |map: Map<'_>| map.len()),
        0
    );
}

/// Each name is found without a look at all others, or this takes very long.
#[test]
fn very_many_user_properties_are_as_few() {
    for names in [1, 15, 16, 17, 100_000] {
        let texts: Vec<String> = (0..names).map(|number| number.to_string()).collect();
        let mut out = PropertyBuf::new();
        for value in ["first", "last"] {
            for name in &texts {
                out.push(Property::UserProperty(name, value)).unwrap();
            }
        }
        let properties = out.publish_properties(PropertyContext::Publish).unwrap();
        let bytes = amqp(&properties, b"");
        let view = MessageView::parse(&bytes).unwrap();
        let came = view.application_properties().unwrap();
        let came = came.iter().map(|(name, value)| {
            assert_eq!(value, Value::String("last"));
            name.as_text().unwrap()
        });
        assert!(came.eq(texts.iter().map(String::as_str)), "{names}");
    }
}
