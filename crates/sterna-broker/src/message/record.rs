//! A message as a store keeps it.
//!
//! One byte of flags is first, then integers of seven bits a byte. They are the time of publication, and the time
//! from there to expiry in milliseconds. The lengths of topic, properties, payload and native form follow. The
//! length of the native form has its format in front, in one byte. Then come the publisher (8 bytes, the lowest
//! first), and the parts themselves. A payload that lies in the native form is not repeated: its start there is the
//! last of the integers.
//!
//! Between nodes a record may be brief. It has the topic and the publisher of the last record before it that is whole, and
//! the time since that one's publication.

use std::ops::Range;

use bytes::Bytes;

use super::parts::NativeForm;
use super::{
    InvalidMessage, Level, Message, MessageHeader, MessageParts, NEVER_MS, NativeFormat, Origin,
    Qos,
};
use crate::records::{Fields, number_bytes, put_number};

const QOS: u8 = 3;
const RETAIN: u8 = 4;
const EXPIRES: u8 = 8;
const NATIVE: u8 = 16;
/// The payload is a part of the native form.
const PAYLOAD_IN_NATIVE: u8 = 32;
/// The record is brief.
const BRIEF: u8 = 64;

/// The most brief records behind a whole one. They stay together, and so they are to be few.
const MOST_BRIEF: u8 = 31;

/// The most bytes of a message's body whose record brief ones may follow. A group goes as a whole, and behind a large one
/// it might not fit a message of NATS.
const MOST_LEADING_BYTES: usize = 1024;

/// The most bytes of a message's body whose record may be brief.
const MOST_BRIEF_BYTES: usize = 256;

/// The most bytes of a whole record and the brief ones behind it, each with its length in front.
pub const MOST_GROUP_BYTES: usize = MOST_LEADING_BYTES
    + MOST_BRIEF as usize * MOST_BRIEF_BYTES
    + (1 + MOST_BRIEF as usize) * (HEAD_BYTES + LENGTH_BYTES);

/// The most bytes of a record's length.
const LENGTH_BYTES: usize = 5;

/// The most bytes of a stored form in front of its parts: flags, six integers, the native form's format, the publisher.
const HEAD_BYTES: usize = 1 + 2 * 10 + 5 * 5 + 1 + 8;

/// A stored form before it is appended.
#[derive(Clone, Copy)]
struct Record<'a> {
    parts: MessageParts<'a>,
    /// The time of the whole record that it is behind, where it is brief.
    whole_ms: Option<u64>,
}

/// Where a stored form goes.
trait Sink {
    fn byte(&mut self, byte: u8);
    fn number(&mut self, number: u64);
    fn bytes(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }

    #[inline]
    fn number(&mut self, number: u64) {
        put_number(self, number);
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        // A call for nothing costs as much as one for a few bytes.
        if !bytes.is_empty() {
            self.extend_from_slice(bytes);
        }
    }
}

/// The number of bytes that were put.
#[derive(Default)]
struct Count(usize);

impl Sink for Count {
    #[inline]
    fn byte(&mut self, _: u8) {
        self.0 += 1;
    }

    #[inline]
    fn number(&mut self, number: u64) {
        self.0 += number_bytes(number);
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

impl Record<'_> {
    #[inline]
    fn flags(&self) -> u8 {
        let parts = &self.parts;
        let has_payload = (parts.native).is_some_and(|native| native.payload_start.is_some());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        parts.qos() as u8
            | flag(parts.retain(), RETAIN)
            | flag(parts.expires_at_ms != NEVER_MS, EXPIRES)
            | flag(parts.native.is_some(), NATIVE)
            | flag(has_payload, PAYLOAD_IN_NATIVE)
            | flag(self.whole_ms.is_some(), BRIEF)
    }

    #[inline]
    fn put(&self, out: &mut impl Sink) {
        let parts = &self.parts;
        let payload_start = parts.native.and_then(|native| native.payload_start);
        out.byte(self.flags());
        out.number(parts.published_ms - self.whole_ms.unwrap_or(0));
        if parts.expires_at_ms != NEVER_MS {
            out.number(parts.expires_at_ms.saturating_sub(parts.published_ms));
        }
        if self.whole_ms.is_none() {
            out.number(parts.topic.len() as u64);
        }
        out.number(parts.properties.len() as u64);
        out.number(parts.payload.len() as u64);
        if let Some(native) = parts.native {
            out.byte(native.format as u8);
            out.number(native.bytes.len() as u64);
        }
        if let Some(start) = payload_start {
            out.number(start as u64);
        }
        if self.whole_ms.is_none() {
            out.bytes(&parts.origin.0.to_le_bytes());
            out.bytes(parts.topic);
        }
        out.bytes(parts.properties);
        if payload_start.is_none() {
            out.bytes(parts.payload);
        }
        if let Some(native) = parts.native {
            out.bytes(native.bytes);
        }
    }

    /// The length and the head of most brief records: each number takes one byte. `None` of all others.
    #[inline]
    fn short_head(&self) -> Option<[u8; 5]> {
        let parts = &self.parts;
        let since_ms = parts.published_ms - self.whole_ms?;
        let (properties, payload) = (parts.properties.len() as u64, parts.payload.len() as u64);
        let bytes = 4 + properties + payload;
        let is_short =
            (bytes | since_ms) < 0x80 && parts.native.is_none() && parts.expires_at_ms == NEVER_MS;
        let flags = u64::from(self.flags());
        is_short.then(|| [bytes, flags, since_ms, properties, payload].map(|number| number as u8))
    }

    /// Appends it with its length in front.
    #[inline]
    fn append(&self, out: &mut Vec<u8>) {
        if let Some(head) = self.short_head() {
            out.extend_from_slice(&head);
            out.bytes(self.parts.properties);
            out.bytes(self.parts.payload);
            return;
        }
        let mut count = Count::default();
        self.put(&mut count);
        put_number(out, count.0 as u64);
        self.put(out);
    }
}

impl Message {
    /// Appends the message's stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let record = Record {
            parts: self.parts(),
            whole_ms: None,
        };
        record.put(out);
    }

    /// The message of a stored form, which becomes its body without a copy.
    ///
    /// # Errors
    /// [`InvalidMessage`] where the bytes are not a stored form.
    #[inline]
    pub fn decode(record: Bytes) -> Result<Self, InvalidMessage> {
        if is_brief(&record) {
            return Err(InvalidMessage);
        }
        let layout = layout(&record, None).ok_or(InvalidMessage)?;
        let in_body = |part: Range<usize>| layout.start + part.start..layout.start + part.end;
        let message = Self::from_body(
            record,
            in_body(layout.topic.clone()),
            in_body(layout.properties.clone()),
            in_body(layout.payload.clone()),
            layout.header,
        )?
        .with_origin(layout.origin);
        match layout.native {
            Some((format, native)) => message.with_native(format, in_body(native)),
            None => Ok(message),
        }
    }
}

/// Whether a record is brief: it is not read without the whole one before it.
#[must_use]
pub fn is_brief(record: &[u8]) -> bool {
    record.first().is_some_and(|flags| flags & BRIEF != 0)
}

/// Number of brief records that may follow the whole one of a message whose body has this number of bytes.
const fn most_brief_behind(body_bytes: usize) -> u8 {
    if body_bytes <= MOST_LEADING_BYTES {
        MOST_BRIEF
    } else {
        0
    }
}

/// Encodes messages into one piece of memory, each with its length in front.
#[derive(Clone, Default, Debug)]
pub struct MessageEncoder {
    /// The last whole record: where its topic is in the memory, the publisher, and the time.
    topic: Range<usize>,
    origin: Origin,
    published_ms: u64,
    /// Number of brief records that may follow.
    left: u8,
}

impl MessageEncoder {
    /// The next record is whole.
    pub const fn begin_anew(&mut self) {
        self.left = 0;
    }

    /// Appends the record of a message, which may be brief where `may_be_brief`. Returns whether it is. The memory has
    /// all that was appended before, where it was.
    #[inline]
    pub fn push(&mut self, memory: &mut Vec<u8>, message: &Message, may_be_brief: bool) -> bool {
        self.push_parts(memory, message.parts(), may_be_brief)
    }

    /// As [`push`](Self::push), of a message's parts.
    #[inline]
    pub(crate) fn push_parts(
        &mut self,
        memory: &mut Vec<u8>,
        parts: MessageParts<'_>,
        may_be_brief: bool,
    ) -> bool {
        if may_be_brief && self.has_whole_of(memory, &parts) {
            self.left -= 1;
            let whole_ms = Some(self.published_ms);
            Record { parts, whole_ms }.append(memory);
            return true;
        }
        let record = Record {
            parts,
            whole_ms: None,
        };
        record.append(memory);
        let bytes = parts.record_bytes();
        let topic = memory.len() - bytes;
        *self = Self {
            topic: topic..topic + parts.topic.len(),
            origin: parts.origin,
            published_ms: parts.published_ms,
            left: most_brief_behind(bytes),
        };
        false
    }

    /// Whether the last whole record has what a brief one of the message lacks.
    #[inline]
    fn has_whole_of(&self, memory: &[u8], parts: &MessageParts<'_>) -> bool {
        self.left > 0
            && parts.record_bytes() <= MOST_BRIEF_BYTES
            && parts.origin == self.origin
            && parts.published_ms >= self.published_ms
            && memory.get(self.topic.clone()) == Some(parts.topic)
    }
}

/// Decodes records that follow each other.
#[derive(Clone, Default, Debug)]
pub struct MessageDecoder<'a> {
    whole: Option<Whole<'a>>,
}

/// Fields that brief records lack.
#[derive(Clone, Copy, Debug)]
struct Whole<'a> {
    topic: &'a [u8],
    origin: Origin,
    published_ms: u64,
    /// Number of brief records that may follow.
    left: u8,
}

impl<'a> MessageDecoder<'a> {
    /// The message of the next record. It shares no memory with it.
    ///
    /// # Errors
    /// [`InvalidMessage`] where the bytes are no record, or are brief without a whole one before them. So it is where brief
    /// ones are more or larger than an encoder makes them: each takes memory for the topic, too.
    pub fn message(&mut self, record: &'a [u8]) -> Result<Message, InvalidMessage> {
        self.parts(record)?.to_message()
    }

    /// As [`message`](Self::message), where the parts lie in the records.
    #[inline]
    pub(crate) fn parts(&mut self, record: &'a [u8]) -> Result<MessageParts<'a>, InvalidMessage> {
        if !is_brief(record) {
            return self.whole(record);
        }
        let whole = self.whole.as_mut().ok_or(InvalidMessage)?;
        let layout = layout(record, Some(whole)).ok_or(InvalidMessage)?;
        let parts = layout.parts(whole.topic, &record[layout.start..]);
        if whole.left == 0 || parts.body_bytes > MOST_BRIEF_BYTES {
            return Err(InvalidMessage);
        }
        whole.left -= 1;
        Ok(parts)
    }

    fn whole(&mut self, record: &'a [u8]) -> Result<MessageParts<'a>, InvalidMessage> {
        self.whole = None;
        let layout = layout(record, None).ok_or(InvalidMessage)?;
        let rest = &record[layout.start..];
        let topic = &rest[layout.topic.clone()];
        if std::str::from_utf8(topic).is_err() {
            return Err(InvalidMessage);
        }
        self.whole = Some(Whole {
            topic,
            origin: layout.origin,
            published_ms: layout.header.published_ms,
            left: most_brief_behind(rest.len()),
        });
        Ok(layout.parts(topic, rest))
    }
}

/// A record: what its head says, and where its parts are behind that.
struct Layout {
    header: MessageHeader,
    origin: Origin,
    /// Of a brief one: nothing.
    topic: Range<usize>,
    properties: Range<usize>,
    payload: Range<usize>,
    native: Option<(NativeFormat, Range<usize>)>,
    /// Bytes of the head.
    start: usize,
}

/// The layout of a record; of a brief one behind `whole`. All its parts lie in it, and nothing is behind them.
#[inline]
fn layout(record: &[u8], whole: Option<&Whole<'_>>) -> Option<Layout> {
    let mut fields = Fields::new(record);
    let flags = fields.byte()?;
    let len = |fields: &mut Fields<'_>| usize::try_from(fields.number()?).ok();
    let since_ms = whole.map_or(0, |whole| whole.published_ms);
    let published_ms = since_ms.saturating_add(fields.number()?);
    let expires_at_ms = if flags & EXPIRES == 0 {
        None
    } else {
        Some(published_ms.saturating_add(fields.number()?))
    };
    let topic = match whole {
        Some(_) => 0,
        None => len(&mut fields)?,
    };
    let (properties, payload) = (len(&mut fields)?, len(&mut fields)?);
    let native = if flags & NATIVE == 0 {
        None
    } else {
        match fields.byte()? {
            1 => Some((NativeFormat::Amqp, len(&mut fields)?)),
            _ => return None,
        }
    };
    let start_in_native = if flags & PAYLOAD_IN_NATIVE == 0 {
        None
    } else {
        Some(len(&mut fields)?)
    };
    let origin = match whole {
        Some(whole) => whole.origin,
        None => Origin(u64::from_le_bytes(fields.slice(8)?.try_into().ok()?)),
    };
    let properties = topic..topic.checked_add(properties)?;
    let behind = properties.end;
    let (payload, native) = match (native, start_in_native) {
        (Some((format, native)), Some(start)) => {
            let native = behind..behind.checked_add(native)?;
            let start = behind.checked_add(start)?;
            let payload = start..start.checked_add(payload)?;
            if payload.end > native.end {
                return None;
            }
            (payload, Some((format, native)))
        }
        (native, _) => {
            let payload = behind..behind.checked_add(payload)?;
            let native = match native {
                Some((format, native)) => {
                    Some((format, payload.end..payload.end.checked_add(native)?))
                }
                None => None,
            };
            (payload, native)
        }
    };
    let end = native
        .as_ref()
        .map_or(payload.end, |(_, native)| native.end);
    let is_all = end == fields.rest().len();
    is_all.then_some(Layout {
        header: MessageHeader {
            qos: Qos::from_u8(flags & QOS)?,
            retain: flags & RETAIN != 0,
            published_ms,
            expires_at_ms,
        },
        origin,
        topic: 0..topic,
        properties,
        payload,
        native,
        start: record.len() - fields.rest().len(),
    })
}

impl Layout {
    /// The parts, of a topic that is UTF-8. `rest` is all of the record behind its head.
    #[inline]
    fn parts<'a>(&self, topic: &'a [u8], rest: &'a [u8]) -> MessageParts<'a> {
        let native = self.native.as_ref().map(|(format, native)| NativeForm {
            format: *format,
            bytes: &rest[native.clone()],
            payload_start: (self.payload.start.checked_sub(native.start))
                .filter(|_| self.payload.end <= native.end),
        });
        let body_bytes = topic.len() + rest.len() - self.topic.len();
        MessageParts {
            topic,
            properties: &rest[self.properties.clone()],
            payload: &rest[self.payload.clone()],
            native,
            published_ms: self.header.published_ms,
            expires_at_ms: self.header.expires_at_ms.unwrap_or(NEVER_MS),
            origin: self.origin,
            level: Level::new(self.header.qos, self.header.retain),
            body_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::put_bytes;

    fn encoded(message: &Message) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out);
        out
    }

    fn same(one: &Message, other: &Message) {
        assert_eq!(one.topic(), other.topic());
        assert_eq!(one.properties(), other.properties());
        assert_eq!(one.payload(), other.payload());
        assert_eq!(one.native(), other.native());
        assert_eq!(one.origin(), other.origin());
        assert_eq!((one.qos(), one.retain()), (other.qos(), other.retain()));
        assert_eq!(one.published_ms(), other.published_ms());
        assert_eq!(one.expires_at_ms(), other.expires_at_ms());
    }

    fn samples() -> Vec<Message> {
        let header = MessageHeader {
            qos: Qos::ExactlyOnce,
            retain: true,
            published_ms: 1_790_000_000_000,
            expires_at_ms: Some(1_790_000_060_000),
        };
        let plain = Message::copy("a/b", &[1, 1], b"payload", header).expect("it fits");
        let body = Bytes::from_static(b"t/1native-payother");
        let inside = Message::from_body(body.clone(), 0..3, 3..3, 10..13, header)
            .and_then(|message| message.with_native(NativeFormat::Amqp, 3..13))
            .expect("it fits");
        let beside = Message::from_body(body, 0..3, 3..3, 13..18, MessageHeader::default())
            .and_then(|message| message.with_native(NativeFormat::Amqp, 3..13))
            .expect("it fits");
        vec![plain.with_origin(Origin(u64::MAX)), inside, beside]
    }

    #[test]
    fn a_message_comes_back_from_its_stored_form() {
        for message in samples() {
            let record = encoded(&message);
            let decoded = Message::decode(Bytes::from(record.clone())).expect("it is one");
            same(&message, &decoded);
            assert_eq!(decoded.body_bytes(), record.len(), "no copy");
        }
    }

    #[test]
    fn the_length_in_front_is_that_of_the_stored_form() {
        let header = MessageHeader {
            published_ms: u64::MAX,
            expires_at_ms: Some(u64::MAX - 1),
            ..MessageHeader::default()
        };
        let payload = vec![7; 20_000];
        let sized = (0..300).chain(16_200..16_500);
        let mut messages: Vec<Message> = sized
            .map(|bytes| Message::copy("a/b", &[1, 1], &payload[..bytes], header))
            .collect::<Result<_, _>>()
            .expect("it fits");
        messages.extend(samples());
        for message in messages {
            let (mut sized, mut expected) = (vec![9], vec![9]);
            MessageEncoder::default().push(&mut sized, &message, true);
            put_bytes(&mut expected, &encoded(&message));
            assert_eq!(sized, expected);
        }
    }

    #[test]
    fn no_part_or_extension_of_a_stored_form_is_one() {
        for message in samples() {
            let mut record = encoded(&message);
            for end in 0..record.len() {
                assert!(Message::decode(Bytes::copy_from_slice(&record[..end])).is_err());
            }
            record.push(0);
            assert!(Message::decode(Bytes::from(record)).is_err());
        }
    }

    /// The records in a piece of memory.
    fn split(memory: &[u8]) -> Vec<&[u8]> {
        let mut fields = Fields::new(memory);
        let mut records = Vec::new();
        while !fields.rest().is_empty() {
            records.push(fields.bytes().expect("a length and as many bytes"));
        }
        records
    }

    /// A message of few kinds, so that neighbours are often alike.
    fn few_kinds() -> impl Strategy<Value = Message> {
        let header = (0_u8..3, any::<bool>(), 0_u64..4, prop::option::of(0_u64..9)).prop_map(
            |(qos, retain, published_ms, expires_at_ms)| MessageHeader {
                qos: Qos::from_u8(qos).expect("a level"),
                retain,
                published_ms,
                expires_at_ms: expires_at_ms.map(|after_ms| published_ms + after_ms),
            },
        );
        let topic = prop::sample::select(vec!["a", "a/b", ""]);
        let payload = prop::sample::select(vec![0, 1, 40, 240, 300]);
        let plain =
            (topic, payload, header, 0_u64..2).prop_map(|(topic, payload, header, origin)| {
                let message = Message::copy(topic, &[1, 1], &vec![7; payload], header);
                message.expect("it fits").with_origin(Origin(origin))
            });
        prop_oneof![9 => plain, 1 => (0..3_usize).prop_map(|sample| samples().swap_remove(sample))]
    }

    fn with_payload(bytes: usize) -> Message {
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            retain: false,
            published_ms: 1,
            expires_at_ms: None,
        };
        Message::copy("a/b", &[], &vec![7; bytes], header).expect("it fits")
    }

    #[test]
    fn records_that_stay_together_have_few_bytes() {
        let (mut encoder, mut memory) = (MessageEncoder::default(), Vec::new());
        encoder.push(&mut memory, &with_payload(MOST_LEADING_BYTES - 3), true);
        let brief = with_payload(MOST_BRIEF_BYTES - 3);
        while encoder.push(&mut memory, &brief, true) {
            assert!(memory.len() <= MOST_GROUP_BYTES);
        }
        assert_eq!(split(&memory).len(), 2 + usize::from(MOST_BRIEF));
    }

    #[test]
    fn a_large_record_leads_no_brief_ones() {
        for (leading_bytes, is_brief) in [(100, true), (MOST_LEADING_BYTES, false)] {
            let (mut encoder, mut memory) = (MessageEncoder::default(), Vec::new());
            encoder.push(&mut memory, &with_payload(leading_bytes), true);
            assert_eq!(encoder.push(&mut memory, &with_payload(1), true), is_brief);
        }
    }

    #[test]
    fn brief_records_beyond_the_limits_of_an_encoder_are_refused() {
        let (mut encoder, mut memory) = (MessageEncoder::default(), Vec::new());
        for message in [1, 1].map(with_payload) {
            encoder.push(&mut memory, &message, true);
        }
        let records = split(&memory);
        let (whole, brief) = (records[0], records[1]);
        let mut decoder = MessageDecoder::default();
        decoder.message(whole).expect("it is one");
        for _ in 0..MOST_BRIEF {
            decoder.message(brief).expect("it is one");
        }
        assert!(decoder.message(brief).is_err());
        decoder.message(whole).expect("it is one");
        decoder.message(brief).expect("a new group has begun");

        let large = with_payload(MOST_LEADING_BYTES);
        let large = encoded(&large);
        decoder.message(&large).expect("it is one");
        assert!(decoder.message(brief).is_err());

        decoder.message(whole).expect("it is one");
        let long = with_payload(MOST_BRIEF_BYTES);
        let record = Record {
            parts: long.parts(),
            whole_ms: Some(1),
        };
        let mut long = Vec::new();
        record.put(&mut long);
        assert!(decoder.message(&long).is_err());
    }

    proptest! {
        #[test]
        fn messages_come_back_from_records_behind_each_other(
            messages in prop::collection::vec((few_kinds(), prop::bool::weighted(0.9)), 1..80),
        ) {
            let (mut encoder, mut memory) = (MessageEncoder::default(), vec![9]);
            let mut brief = Vec::new();
            for (message, may_be_brief) in &messages {
                brief.push(encoder.push(&mut memory, message, *may_be_brief));
            }
            let records = split(&memory[1..]);
            prop_assert_eq!(records.len(), messages.len());
            let mut decoder = MessageDecoder::default();
            let mut whole = None::<&Message>;
            let mut since_whole = 0;
            for ((record, is_brief), (message, may_be_brief)) in records.into_iter().zip(brief).zip(&messages) {
                prop_assert_eq!(super::is_brief(record), is_brief);
                let found = decoder.message(record).expect("it is one");
                same(message, &found);
                if is_brief {
                    since_whole += 1;
                    prop_assert!(*may_be_brief && since_whole <= MOST_BRIEF);
                    prop_assert!(Message::decode(Bytes::copy_from_slice(record)).is_err());
                    prop_assert!(record.len() < encoded(message).len());
                    continue;
                }
                let (Some(before), true) = (whole.replace(message), *may_be_brief) else {
                    since_whole = 0;
                    continue;
                };
                let is_alike = before.topic() == message.topic()
                    && before.origin() == message.origin()
                    && before.published_ms() <= message.published_ms();
                prop_assert!(!is_alike || since_whole == MOST_BRIEF || message.body_bytes() > MOST_BRIEF_BYTES);
                since_whole = 0;
            }
        }

        #[test]
        fn no_bytes_behind_a_whole_record_make_a_decoder_panic(record in prop::collection::vec(any::<u8>(), 0..40)) {
            let whole = samples().remove(0);
            let (mut encoder, mut memory) = (MessageEncoder::default(), Vec::new());
            encoder.push(&mut memory, &whole, true);
            let mut decoder = MessageDecoder::default();
            decoder.message(split(&memory)[0]).expect("it is one");
            let mut brief = record;
            if let Some(flags) = brief.first_mut() {
                *flags |= BRIEF;
            }
            if let Ok(message) = decoder.message(&brief) {
                prop_assert_eq!((message.topic(), message.origin()), (whole.topic(), whole.origin()));
            }
        }
    }

    #[test]
    fn the_stored_form_adds_few_bytes() {
        let message = Message::copy(
            "sensors/7/temperature",
            &[],
            &[7; 100],
            MessageHeader::default(),
        );
        let record = encoded(&message.expect("it fits"));
        assert!(record.len() <= 121 + 20, "{} bytes", record.len());
    }
}
