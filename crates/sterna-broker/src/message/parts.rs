//! The parts of a message, wherever they lie.

use bytes::Bytes;

use super::{InvalidMessage, Level, Message, MessageHeader, NEVER_MS, NativeFormat, Origin, Qos};

/// A message whose parts lie elsewhere: in the packet of its publisher, or in a [`Message`]. So it can be looked at, and
/// given to other nodes, without a copy.
#[derive(Clone, Copy, Debug)]
pub struct MessageParts<'a> {
    /// UTF-8.
    pub(super) topic: &'a [u8],
    pub(super) properties: &'a [u8],
    pub(super) payload: &'a [u8],
    pub(super) native: Option<NativeForm<'a>>,
    pub(super) published_ms: u64,
    pub(super) expires_at_ms: u64,
    pub(super) origin: Origin,
    pub(super) level: Level,
    pub(super) body_bytes: usize,
}

/// The native form of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeForm<'a> {
    pub(super) format: NativeFormat,
    pub(super) bytes: &'a [u8],
    /// Where the payload is, if it is a part of it.
    pub(super) payload_start: Option<usize>,
}

impl<'a> MessageParts<'a> {
    /// A message of these parts, without a native form. They are as [`Message::copy`] takes them.
    #[inline]
    #[must_use]
    pub const fn new(
        topic: &'a str,
        properties: &'a [u8],
        payload: &'a [u8],
        header: MessageHeader,
    ) -> Self {
        Self {
            topic: topic.as_bytes(),
            properties,
            payload,
            native: None,
            published_ms: header.published_ms,
            expires_at_ms: match header.expires_at_ms {
                Some(expires_at_ms) => expires_at_ms,
                None => NEVER_MS,
            },
            origin: Origin::NONE,
            level: Level::new(header.qos, header.retain),
            body_bytes: topic.len() + properties.len() + payload.len(),
        }
    }

    /// A message with a body of its own.
    ///
    /// # Errors
    /// [`InvalidMessage`] when the topic has more than 65,535 bytes or the whole more than 4 GiB.
    #[inline]
    pub fn to_message(self) -> Result<Message, InvalidMessage> {
        let header = MessageHeader {
            qos: self.qos(),
            retain: self.retain(),
            published_ms: self.published_ms,
            expires_at_ms: (self.expires_at_ms != NEVER_MS).then_some(self.expires_at_ms),
        };
        let message = match self.native {
            None => Message::of_parts(self.topic, self.properties, self.payload, header),
            Some(native) => self.with_native(native, header),
        }?;
        Ok(message.with_origin(self.origin))
    }

    fn with_native(
        self,
        native: NativeForm<'_>,
        header: MessageHeader,
    ) -> Result<Message, InvalidMessage> {
        let topic = 0..self.topic.len();
        let properties = topic.end..topic.end + self.properties.len();
        let beside = match native.payload_start {
            Some(_) => &[],
            None => self.payload,
        };
        let native_start = properties.end + beside.len();
        let payload_start = match native.payload_start {
            Some(start) => native_start + start,
            None => properties.end,
        };
        let payload = payload_start..payload_start + self.payload.len();
        let body = [self.topic, self.properties, beside, native.bytes].concat();
        let end = body.len();
        Message::assemble(Bytes::from(body), topic, properties, payload, header)?
            .with_native(native.format, native_start..end)
    }

    /// Sets the publisher.
    pub(crate) const fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Sets the time of publication, if there is none.
    pub(crate) const fn stamp(&mut self, now_ms: u64) {
        if self.published_ms == 0 {
            self.published_ms = now_ms;
        }
    }

    pub(crate) const fn topic_bytes(&self) -> &'a [u8] {
        self.topic
    }

    pub(crate) const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    pub(crate) const fn qos(&self) -> Qos {
        self.level.qos()
    }

    pub(crate) const fn retain(&self) -> bool {
        self.level.retain()
    }

    /// Bytes of all parts, as a record has them: a payload that lies in the native form counts once.
    #[inline]
    pub(super) const fn record_bytes(&self) -> usize {
        let payload_and_native = match self.native {
            Some(NativeForm {
                bytes,
                payload_start: Some(_),
                ..
            }) => bytes.len(),
            Some(NativeForm { bytes, .. }) => self.payload.len() + bytes.len(),
            None => self.payload.len(),
        };
        self.topic.len() + self.properties.len() + payload_and_native
    }

    /// Bytes of the body that it has as a [`Message`].
    pub(crate) const fn body_bytes(&self) -> usize {
        self.body_bytes
    }
}

impl Message {
    /// Its parts.
    #[inline]
    #[must_use]
    pub fn parts(&self) -> MessageParts<'_> {
        let native = self.native().map(|(format, bytes)| {
            let start = self.payload_start.checked_sub(self.native_start);
            let start = start.map(|start| start as usize);
            NativeForm {
                format,
                bytes,
                payload_start: start
                    .filter(|start| start + self.payload_len as usize <= bytes.len()),
            }
        });
        MessageParts {
            topic: self.topic_bytes(),
            properties: self.properties(),
            payload: self.payload(),
            native,
            published_ms: self.published_ms,
            expires_at_ms: self.expires_at_ms,
            origin: self.origin,
            level: self.level,
            body_bytes: self.body_bytes(),
        }
    }
}
