//! The forms in which messages are sent to subscribers (`docs/http.md`). Nothing here reads from or sends to a
//! connection. The code turns messages into bytes, and bytes into frames and their messages.

pub(crate) mod json;
mod pen;
mod publish;

use bytes::{BufMut as _, Bytes, BytesMut};
use sterna_broker::{Delivery, Message, Qos};

use sterna_mapping::frame::{Flags, HEARTBEAT, Head};

pub(crate) use pen::Place;
use pen::{Encoding, Pen};
pub(crate) use publish::message_from_frame;

/// The form of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// One JSON object a line.
    Lines,
    /// Server-sent events.
    Events,
    /// Binary frames.
    Frames,
    /// An array of JSON objects, for a response that ends.
    Array,
}

/// A message to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingMessage<'m> {
    /// The id by which it is acknowledged; zero for none.
    pub(crate) id: u64,
    pub(crate) message: &'m Message,
    /// The level it is delivered at.
    pub(crate) qos: Qos,
    /// Whether it comes as retained.
    pub(crate) retain: bool,
    /// Whether it was sent before.
    pub(crate) redelivered: bool,
    /// Milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
}

impl<'m> OutgoingMessage<'m> {
    /// A delivery of the broker under its id.
    pub(crate) fn of(delivery: &'m Delivery, id: u64, now_ms: u64) -> Self {
        Self {
            id,
            message: &delivery.message,
            qos: delivery.qos,
            retain: delivery.retain,
            redelivered: delivery.redelivered,
            // Another shard's clock may be a little ahead. The remaining lifetime is never more than the message
            // came with.
            now_ms: now_ms.max(delivery.message.published_ms()),
        }
    }
}

impl Format {
    /// The media type of the response.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
            Self::Frames => "application/vnd.sterna.stream",
            Self::Array => "application/json",
        }
    }

    /// The beginning of a response.
    pub(crate) const fn opening(self) -> &'static [u8] {
        match self {
            Self::Array => b"[",
            Self::Lines | Self::Events | Self::Frames => b"",
        }
    }

    /// The end of a response that ends in order.
    pub(crate) const fn closing(self) -> &'static [u8] {
        match self {
            Self::Array => b"]",
            Self::Lines | Self::Events | Self::Frames => b"",
        }
    }

    /// The sign of life between two messages; empty for a form that has none.
    pub(crate) const fn heartbeat(self) -> &'static [u8] {
        match self {
            Self::Lines => b"\n",
            Self::Events => b":\n\n",
            Self::Frames => HEARTBEAT,
            Self::Array => b"",
        }
    }

    /// Appends a message from a place on, which moves, until `out` has `until_bytes` or a little more. `is_first` says
    /// whether the message is the response's first, and `session` names the session in its id. Returns whether it is all of it.
    pub(crate) fn write(
        self,
        item: &OutgoingMessage<'_>,
        session: &str,
        is_first: bool,
        place: &mut Place,
        (out, until_bytes): (&mut BytesMut, usize),
    ) -> bool {
        let pen = &mut Pen::new(place, out, until_bytes);
        match self {
            Self::Lines => {
                json::write_object(item, pen);
                pen.put(|out| out.put_u8(b'\n'));
            }
            Self::Events => {
                pen.put(|out| {
                    if item.id != 0 {
                        out.put_slice(b"id: ");
                        out.put_slice(session.as_bytes());
                        out.put_u8(b':');
                        json::write_number(item.id, out);
                        out.put_u8(b'\n');
                    }
                    out.put_slice(b"data: ");
                });
                json::write_object(item, pen);
                pen.put(|out| out.put_slice(b"\n\n"));
            }
            Self::Array => {
                pen.put(|out| {
                    if !is_first {
                        out.put_u8(b',');
                    }
                });
                json::write_object(item, pen);
            }
            Self::Frames => {
                let head = head(item);
                pen.put(|out| head.write_before_topic(true, out));
                pen.long(b"", Encoding::Raw, || Some(head.topic.as_bytes()));
                pen.put(|out| head.write_before_properties(out));
                pen.long(b"", Encoding::Raw, || Some(head.properties));
                if !pen.leaves_payload() {
                    pen.long(b"", Encoding::Raw, || Some(item.message.payload()));
                }
            }
        }
        pen.is_done()
    }

    /// A payload that is sent behind the message without a copy; `None` where it is written with the message.
    pub(crate) fn shared_payload(self, message: &Message) -> Option<Bytes> {
        (self == Self::Frames && message.payload().len() >= sterna_net::SHARE_BYTES)
            .then(|| message.payload_shared())
    }
}

/// Appends a message as a datagram of WebTransport: a frame without its Length.
pub(crate) fn write_datagram(item: &OutgoingMessage<'_>, out: &mut BytesMut) {
    head(item).write(false, out);
    out.put_slice(item.message.payload());
}

fn head<'m>(item: &OutgoingMessage<'m>) -> Head<'m> {
    Head {
        id: item.id,
        flags: Flags::new(item.qos as u8, item.retain, item.redelivered),
        topic: item.message.topic(),
        expiry_s: item.message.expiry_left_s(item.now_ms),
        properties: item.message.properties(),
        payload_bytes: item.message.payload().len(),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use sterna_broker::MessageHeader;
    use sterna_mqtt::{Property, PropertyBuf};

    use super::*;
    use sterna_mapping::frame::{Frame, FrameReader};

    const NOW_MS: u64 = 1_000_000;

    #[derive(Clone, Debug)]
    struct Sample {
        id: u64,
        flags: [bool; 3],
        topic: String,
        payload: Vec<u8>,
        content_type: Option<String>,
        expiry_s: Option<u32>,
        response_topic: Option<String>,
        correlation: Option<Vec<u8>>,
        user: Vec<(String, String)>,
    }

    fn sample() -> impl Strategy<Value = Sample> {
        let payload = prop_oneof![
            "\\PC{0,30}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
            Just(vec![7; sterna_net::SHARE_BYTES]),
        ];
        let text = "[a-zé\"\\\\\n\u{1}]{0,9}";
        (
            (
                0..1_000_u64,
                any::<[bool; 3]>(),
                "[a-zé/\"\n]{1,30}",
                payload,
            ),
            prop::option::of(text),
            prop::option::of(1..u32::MAX),
            prop::option::of("[a-z/\"]{1,9}"),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
            prop::collection::vec((text, text), 0..3),
        )
            .prop_map(
                |(
                    (id, flags, topic, payload),
                    content_type,
                    expiry_s,
                    response,
                    correlation,
                    user,
                )| {
                    Sample {
                        id,
                        flags,
                        topic,
                        payload,
                        content_type,
                        expiry_s,
                        response_topic: response,
                        correlation,
                        user,
                    }
                },
            )
    }

    impl Sample {
        fn properties(&self) -> PropertyBuf {
            let mut out = PropertyBuf::new();
            let mut push = |property: Property<'_>| out.push(property).unwrap();
            if self.flags[2] {
                push(Property::PayloadFormatIndicator(true));
            }
            if let Some(value) = &self.content_type {
                push(Property::ContentType(value));
            }
            if let Some(value) = &self.response_topic {
                push(Property::ResponseTopic(value));
            }
            if let Some(value) = &self.correlation {
                push(Property::CorrelationData(value));
            }
            for (name, value) in &self.user {
                push(Property::UserProperty(name, value));
            }
            out
        }

        fn message(&self) -> Message {
            let header = MessageHeader {
                qos: Qos::ExactlyOnce,
                expires_at_ms: self
                    .expiry_s
                    .map(|left_s| NOW_MS + u64::from(left_s) * 1000),
                ..MessageHeader::default()
            };
            let properties = self.properties();
            Message::copy(
                &self.topic,
                properties.properties().raw(),
                &self.payload,
                header,
            )
            .unwrap()
        }

        fn outgoing<'m>(&self, message: &'m Message) -> OutgoingMessage<'m> {
            OutgoingMessage {
                id: self.id,
                message,
                qos: Qos::AtLeastOnce,
                retain: self.flags[0],
                redelivered: self.flags[1],
                now_ms: NOW_MS,
            }
        }

        /// The object as the page of the documentation describes it.
        fn object(&self) -> Value {
            let base64 = base64::engine::general_purpose::STANDARD;
            let mut object = json!({ "topic": self.topic, "qos": 1 });
            let mut put = |name: &str, value: Value| object[name] = value;
            if self.id != 0 {
                put("id", self.id.into());
            }
            match String::from_utf8(self.payload.clone()) {
                Ok(text) => put("payload", text.into()),
                Err(_) => put("payload_base64", base64.encode(&self.payload).into()),
            }
            for (flag, name) in self.flags.iter().zip(["retain", "redelivered"]) {
                if *flag {
                    put(name, true.into());
                }
            }
            if self.flags[2] {
                put("payload_format", "utf-8".into());
            }
            if let Some(value) = &self.content_type {
                put("content_type", value.clone().into());
            }
            if let Some(value) = self.expiry_s {
                put("expiry_s", value.into());
            }
            if let Some(value) = &self.response_topic {
                put("response_topic", value.clone().into());
            }
            if let Some(value) = &self.correlation {
                put("correlation_data", base64.encode(value).into());
            }
            if !self.user.is_empty() {
                put("user_properties", json!(self.user));
            }
            object
        }
    }

    fn written(format: Format, items: &[Sample]) -> BytesMut {
        let mut out = BytesMut::from(format.opening());
        for (at, sample) in items.iter().enumerate() {
            let message = sample.message();
            let item = sample.outgoing(&message);
            let shared = format.shared_payload(&message).filter(|_| at % 2 == 0);
            let mut place = Place::begin(shared.is_some());
            while !format.write(&item, "s", at == 0, &mut place, (&mut out, usize::MAX)) {}
            out.put_slice(&shared.unwrap_or_default());
            out.put_slice(format.heartbeat());
        }
        out.put_slice(format.closing());
        out
    }

    /// However little room there is for each piece, the pieces are the message, and none is much larger than its room.
    #[test]
    fn a_message_in_pieces_is_the_message() {
        let long = |unit: &str| unit.repeat(9_000 / unit.len());
        let user = |name: &str, value: &str| (long(name), long(value));
        for (at, payload) in [
            long("\u{1}").into_bytes(),
            long("é\"x").into_bytes(),
            vec![0xff; 10_001],
            Vec::new(),
        ]
        .into_iter()
        .enumerate()
        {
            let sample = Sample {
                id: 7,
                flags: [true; 3],
                topic: long("t/é"),
                payload,
                content_type: Some(long("\n")),
                expiry_s: Some(9),
                response_topic: (at % 2 == 0).then(|| long("r")),
                correlation: Some(vec![1; 7_000]),
                user: vec![
                    user("\u{2}", "v"),
                    user("n", "\\"),
                    ("a".into(), String::new()),
                ],
            };
            let message = sample.message();
            let item = sample.outgoing(&message);
            for format in [Format::Lines, Format::Events, Format::Array, Format::Frames] {
                let mut whole = BytesMut::new();
                let mut place = Place::default();
                assert!(format.write(&item, "s", false, &mut place, (&mut whole, usize::MAX)));
                if format == Format::Array {
                    let object: Value = serde_json::from_slice(&whole[1..]).unwrap();
                    assert_eq!(object, sample.object());
                }
                for room in [1, 100, 3_000, 16_384] {
                    let (mut place, mut pieces) = (Place::default(), Vec::new());
                    loop {
                        let mut piece = BytesMut::new();
                        let to = (&mut piece, room);
                        let is_done = format.write(&item, "s", false, &mut place, to);
                        assert!(piece.len() <= room + (10 << 10), "{}", piece.len());
                        assert!(!piece.is_empty() || is_done);
                        pieces.extend_from_slice(&piece);
                        if is_done {
                            break;
                        }
                    }
                    assert!(pieces == whole, "{format:?} in pieces of {room}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn all_forms_say_the_same(items in prop::collection::vec(sample(), 0..4)) {
            let objects: Vec<Value> = items.iter().map(Sample::object).collect();
            let lines = written(Format::Lines, &items);
            let lines: Vec<Value> = lines[..]
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
                .map(|line| serde_json::from_slice(line).unwrap())
                .collect();
            prop_assert_eq!(&lines, &objects);
            let array = written(Format::Array, &items);
            let array: Vec<Value> = serde_json::from_slice(&array).unwrap();
            prop_assert_eq!(&array, &objects);

            let events = String::from_utf8(written(Format::Events, &items).to_vec()).unwrap();
            let events: Vec<&str> = events.split("\n\n").filter(|event| !matches!(*event, "" | ":")).collect();
            prop_assert_eq!(events.len(), items.len());
            for (event, sample) in events.iter().zip(&items) {
                let data = if let Some((id, data)) = event.split_once('\n') {
                    prop_assert_eq!(id, format!("id: s:{}", sample.id));
                    data
                } else {
                    prop_assert_eq!(sample.id, 0);
                    event
                };
                let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                prop_assert_eq!(data, sample.object());
            }
        }

        #[test]
        fn frames_carry_the_message(items in prop::collection::vec(sample(), 1..4)) {
            let bytes = written(Format::Frames, &items);
            let mut reader = FrameReader::new(1 << 20);
            let mut input = &bytes[..];
            for sample in &items {
                let body = reader.next(&mut input).unwrap().unwrap();
                let message = sample.message();
                let mut datagram = BytesMut::new();
                write_datagram(&sample.outgoing(&message), &mut datagram);
                prop_assert_eq!(&body, &datagram);
                let frame = Frame::parse(body).unwrap();
                prop_assert_eq!((frame.id, frame.topic()), (sample.id, &*sample.topic));
                prop_assert_eq!(frame.payload(), &sample.payload);
                let flags = [frame.flags.retain(), frame.flags.redelivered()];
                prop_assert_eq!((frame.flags.qos(), flags), (1, [sample.flags[0], sample.flags[1]]));
                let parsed = sterna_mqtt::PublishProperties::parse(
                    frame.properties(), sterna_mqtt::PropertyContext::Publish,
                ).unwrap();
                prop_assert_eq!(parsed.message_expiry_s(), sample.expiry_s);
                let sent = sample.properties();
                prop_assert_eq!(parsed.forward().contiguous(), Some(sent.properties().raw()));
            }
            prop_assert_eq!(reader.next(&mut input).unwrap(), None);
            prop_assert!(reader.is_between_frames());
        }
    }
}
