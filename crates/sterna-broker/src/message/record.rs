//! A message as a store keeps it.
//!
//! One byte of flags is first, then integers of seven bits a byte. They are the time of publication, and the time
//! from there to expiry in milliseconds. The lengths of topic, properties, payload and native form follow. The
//! length of the native form has its format in front, in one byte. Then come the publisher (8 bytes, the lowest
//! first), and the parts themselves. A payload that lies in the native form is not repeated: its start there is the
//! last of the integers.

use bytes::Bytes;

use super::{InvalidMessage, Message, MessageHeader, NativeFormat, Origin, Qos};
use crate::records::{Fields, put_number};

const QOS: u8 = 3;
const RETAIN: u8 = 4;
const EXPIRES: u8 = 8;
const NATIVE: u8 = 16;
/// The payload is a part of the native form.
const PAYLOAD_IN_NATIVE: u8 = 32;

/// The most bytes of a stored form in front of its parts: flags, six integers, the native form's format, the publisher.
const HEAD_BYTES: usize = 1 + 2 * 10 + 5 * 5 + 1 + 8;

/// A stored form before it is appended.
struct Record<'a> {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    parts: [&'a [u8]; 4],
}

impl Record<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.head_bytes + bytes.len();
        self.head[self.head_bytes..end].copy_from_slice(bytes);
        self.head_bytes = end;
    }

    #[inline]
    fn put_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.put(&[number as u8 | 0x80]);
            number >>= 7;
        }
        self.put(&[number as u8]);
    }

    #[inline]
    fn bytes(&self) -> usize {
        let parts = self.parts.iter().map(|part| part.len());
        self.head_bytes + parts.sum::<usize>()
    }

    #[inline]
    fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.head_bytes]);
        for part in self.parts.iter().filter(|part| !part.is_empty()) {
            out.extend_from_slice(part);
        }
    }
}

impl Message {
    /// Appends the message's stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.record().append(out);
    }

    /// Appends the message's stored form, with its length in front.
    #[inline]
    pub(crate) fn encode_sized(&self, out: &mut Vec<u8>) {
        let record = self.record();
        put_number(out, record.bytes() as u64);
        record.append(out);
    }

    #[inline]
    fn record(&self) -> Record<'_> {
        let native = self.native();
        let start_in_native = native.and_then(|(_, native)| {
            let start = self.payload_start.checked_sub(self.native_start)? as usize;
            (start + self.payload_len as usize <= native.len()).then_some(start)
        });
        let mut flags = self.qos() as u8;
        flags |= if self.retain() { RETAIN } else { 0 };
        flags |= if self.expires_at_ms().is_some() {
            EXPIRES
        } else {
            0
        };
        flags |= if native.is_some() { NATIVE } else { 0 };
        flags |= if start_in_native.is_some() {
            PAYLOAD_IN_NATIVE
        } else {
            0
        };
        let payload = if start_in_native.is_none() {
            self.payload()
        } else {
            &[]
        };
        let native_form = native.map_or(&[][..], |(_, native)| native);
        let mut record = Record {
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            parts: [self.topic_bytes(), self.properties(), payload, native_form],
        };
        record.put(&[flags]);
        record.put_number(self.published_ms);
        if let Some(expires_at_ms) = self.expires_at_ms() {
            record.put_number(expires_at_ms.saturating_sub(self.published_ms));
        }
        record.put_number(u64::from(self.topic_len));
        record.put_number(u64::from(self.properties_len));
        record.put_number(u64::from(self.payload_len));
        if let Some((format, native)) = native {
            record.put(&[format as u8]);
            record.put_number(native.len() as u64);
        }
        if let Some(start) = start_in_native {
            record.put_number(start as u64);
        }
        record.put(&self.origin.0.to_le_bytes());
        record
    }

    /// The message of a stored form, which becomes its body without a copy.
    ///
    /// # Errors
    /// [`InvalidMessage`] where the bytes are not a stored form.
    #[inline]
    pub fn decode(record: Bytes) -> Result<Self, InvalidMessage> {
        let parts = parts(&record).ok_or(InvalidMessage)?;
        parts.message(record)
    }
}

struct Parts {
    header: MessageHeader,
    origin: Origin,
    topic: usize,
    properties: usize,
    payload: usize,
    native: Option<(NativeFormat, usize)>,
    start_in_native: Option<usize>,
    /// Where the topic begins.
    start: usize,
}

#[inline]
fn parts(record: &[u8]) -> Option<Parts> {
    let mut fields = Fields::new(record);
    let flags = fields.byte()?;
    let len = |fields: &mut Fields<'_>| usize::try_from(fields.number()?).ok();
    let published_ms = fields.number()?;
    let expires_at_ms = if flags & EXPIRES == 0 {
        None
    } else {
        Some(published_ms.saturating_add(fields.number()?))
    };
    let (topic, properties, payload) = (len(&mut fields)?, len(&mut fields)?, len(&mut fields)?);
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
    let origin = fields.slice(8)?;
    Some(Parts {
        header: MessageHeader {
            qos: Qos::from_u8(flags & QOS)?,
            retain: flags & RETAIN != 0,
            published_ms,
            expires_at_ms,
        },
        origin: Origin(u64::from_le_bytes(origin.try_into().ok()?)),
        topic,
        properties,
        payload,
        native,
        start_in_native,
        start: record.len() - fields.rest().len(),
    })
}

impl Parts {
    #[inline]
    fn message(self, record: Bytes) -> Result<Message, InvalidMessage> {
        let add = |one: usize, other: usize| one.checked_add(other).ok_or(InvalidMessage);
        let topic = self.start..add(self.start, self.topic)?;
        let properties = topic.end..add(topic.end, self.properties)?;
        let (payload, native) = match (self.native, self.start_in_native) {
            (Some((_, native_len)), Some(start)) => {
                let native = properties.end..add(properties.end, native_len)?;
                let start = add(native.start, start)?;
                let payload = start..add(start, self.payload)?;
                if payload.end > native.end {
                    return Err(InvalidMessage);
                }
                (payload, Some(native))
            }
            (native, _) => {
                let payload = properties.end..add(properties.end, self.payload)?;
                let native = match native {
                    Some((_, native_len)) => Some(payload.end..add(payload.end, native_len)?),
                    None => None,
                };
                (payload, native)
            }
        };
        let end = native.as_ref().map_or(payload.end, |native| native.end);
        if end != record.len() {
            return Err(InvalidMessage);
        }
        let message = Message::from_body(record, topic, properties, payload, self.header)?
            .with_origin(self.origin);
        match (self.native, native) {
            (Some((format, _)), Some(native)) => message.with_native(format, native),
            _ => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests {
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
            message.encode_sized(&mut sized);
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
