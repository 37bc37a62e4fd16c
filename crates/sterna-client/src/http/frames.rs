//! The binary stream of a subscription: `application/vnd.sterna.stream` (`docs/http.md`, "Binary
//! stream").

use std::fmt;

use bytes::{Buf as _, BytesMut};
use sterna_h3::varint;
use sterna_mapping::frame;
use sterna_mqtt::packet::Publish;
use sterna_mqtt::{PacketId, PropertyContext, PublishProperties, QoS};

use crate::message::Message;

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.sterna.stream";

/// Buffers above this size are given back once they are empty.
const KEPT_BYTES: usize = 65_536;

/// A frame of the stream.
#[derive(Clone, Debug)]
pub enum Frame {
    /// A sign of life: no message came for a while.
    Heartbeat,
    /// A message.
    Message {
        /// Number of the message in the subscription; `None` with QoS 0.
        id: Option<u64>,
        /// The message.
        message: Message,
    },
}

/// An error in a frame. The stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame's length is above the limit.
    TooLarge {
        /// Size of the frame in bytes, without its length field.
        bytes: u64,
        /// The limit.
        max_bytes: usize,
    },
    /// The frame's content is cut off, or longer than its fields say. The text has details.
    Malformed(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max_bytes } => write!(
                f,
                "a frame of the stream has {bytes} bytes, and {max_bytes} are taken"
            ),
            Self::Malformed(detail) => write!(f, "a frame of the stream is malformed: {detail}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Reads the frames of a stream that comes in pieces.
///
/// ```
/// use sterna_client::http::{Frame, Frames};
///
/// let mut frames = Frames::new(1024);
/// frames.push(b"\x00\x07\x01\x01\x01");
/// assert!(matches!(frames.next_frame()?, Some(Frame::Heartbeat)));
/// assert!(frames.next_frame()?.is_none());
/// frames.push(b"a\x00hi");
/// let Some(Frame::Message { id, message }) = frames.next_frame()? else { panic!() };
/// assert_eq!((id, message.topic(), message.payload_bytes()), (Some(1), "a", &b"hi"[..]));
/// # Ok::<(), sterna_client::http::FrameError>(())
/// ```
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    max_bytes: usize,
}

impl Frames {
    /// An empty stream, with this limit of bytes for a frame.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            max_bytes,
        }
    }

    /// Takes bytes that have arrived, and keeps them until their frame is complete. Call
    /// [`Frames::next_frame`] after each piece until it returns `None`. Then at most the largest
    /// frame and one piece are kept.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that wait for the rest of their frame.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The next frame that is complete.
    ///
    /// # Errors
    /// When the stream cannot be read on: it says the same again when it is asked again.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((length, header_bytes)) = varint::read(&self.buffer) else {
            self.give_back();
            return Ok(None);
        };
        let frame_bytes = usize::try_from(length)
            .ok()
            .filter(|bytes| *bytes <= self.max_bytes)
            .ok_or(FrameError::TooLarge {
                bytes: length,
                max_bytes: self.max_bytes,
            })?;
        let Some(bytes) = self.buffer.get(header_bytes..header_bytes + frame_bytes) else {
            self.buffer
                .reserve(header_bytes + frame_bytes - self.buffer.len());
            return Ok(None);
        };
        let frame = if bytes.is_empty() {
            Frame::Heartbeat
        } else {
            decode(bytes)?
        };
        self.buffer.advance(header_bytes + frame_bytes);
        Ok(Some(frame))
    }

    fn give_back(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES {
            self.buffer = BytesMut::new();
        }
    }
}

/// Reads what follows the length.
fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    let frame = frame::Frame::parse(bytes);
    let frame = frame.map_err(|error| FrameError::Malformed(error.detail()))?;
    // A broker acknowledges nothing.
    let qos = QoS::from_u8(frame.flags.qos()).filter(|_| !frame.is_acknowledgement());
    let qos = qos.ok_or(FrameError::Malformed("it acknowledges"))?;
    // Both are bounded in MQTT, whose properties and topics these are.
    if frame.topic().len() > 65_535 {
        return Err(FrameError::Malformed(
            "its topic has more than 65,535 bytes",
        ));
    }
    if u32::try_from(frame.properties().len()).is_err() {
        return Err(FrameError::Malformed("its properties are too long"));
    }
    let properties = PublishProperties::parse(frame.properties(), PropertyContext::Publish)
        .map_err(|_| FrameError::Malformed("its properties are not valid"))?;
    let publish = Publish {
        dup: frame.flags.redelivered(),
        qos,
        retain: frame.flags.retain(),
        topic: frame.topic(),
        packet_id: PacketId::new(0),
        properties,
        payload: frame.payload(),
    };
    Ok(Frame::Message {
        id: (frame.id != 0).then_some(frame.id),
        message: Message::new(&publish, 0),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sterna_mqtt::{Property, PropertyBuf};

    use super::*;

    fn encode(id: u64, flags: u8, topic: &str, properties: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        varint::write(id, &mut body);
        body.push(flags);
        varint::write(topic.len() as u64, &mut body);
        body.extend_from_slice(topic.as_bytes());
        varint::write(properties.len() as u64, &mut body);
        body.extend_from_slice(properties);
        body.extend_from_slice(payload);
        let mut frame = Vec::new();
        varint::write(body.len() as u64, &mut frame);
        frame.extend_from_slice(&body);
        frame
    }

    #[test]
    fn every_part_is_read() {
        let mut properties = PropertyBuf::new();
        properties
            .push(Property::ContentType("text/plain"))
            .unwrap();
        properties
            .push(Property::UserProperty("unit", "°C"))
            .unwrap();
        let bytes = encode(300, 0b1101, "a/b", properties.properties().raw(), b"21.5");
        let mut frames = Frames::new(1024);
        frames.push(&bytes);
        let Some(Frame::Message { id, message }) = frames.next_frame().unwrap() else {
            panic!("no message");
        };
        assert_eq!(id, Some(300));
        assert_eq!(message.topic(), "a/b");
        assert_eq!(message.qos(), QoS::AtLeastOnce);
        assert!(message.retain() && message.is_duplicate());
        assert_eq!(message.properties().content_type(), Some("text/plain"));
        assert_eq!(message.payload_bytes(), b"21.5");
        assert_eq!(frames.buffered_bytes(), 0);
    }

    #[test]
    fn faults_are_named_and_stay() {
        let mut frames = Frames::new(10);
        frames.push(&[0x0b]);
        let too_large = FrameError::TooLarge {
            bytes: 11,
            max_bytes: 10,
        };
        assert_eq!(frames.next_frame().unwrap_err(), too_large);
        assert_eq!(frames.next_frame().unwrap_err(), too_large);
        let malformed = |bytes: &[u8]| {
            let mut frames = Frames::new(100);
            frames.push(bytes);
            matches!(frames.next_frame(), Err(FrameError::Malformed(_)))
        };
        assert!(malformed(&[1, 0]));
        assert!(malformed(&encode(1, 3, "a", &[], b"")));
        assert!(malformed(&[5, 1, 0, 9, b'a', 0]));
        assert!(malformed(&encode(1, 1, "a", &[0xff], b"")));
        // A Subscription Identifier is left out by the broker, and harmless.
        assert!(!malformed(&encode(1, 1, "a", &[11, 1], b"")));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_however_it_is_cut(
            messages in prop::collection::vec(
                (0..1_u64 << 40, 0..3_u8, "[a-z/]{1,20}", prop::collection::vec(any::<u8>(), 0..200)),
                0..8,
            ),
            piece in 1..64_usize,
        ) {
            let mut bytes = Vec::new();
            for (id, qos, topic, payload) in &messages {
                bytes.extend(encode(*id, *qos, topic, &[], payload));
                bytes.push(0);
            }
            let mut frames = Frames::new(1 << 16);
            let mut read = Vec::new();
            let mut beats = 0;
            for piece in bytes.chunks(piece) {
                frames.push(piece);
                while let Some(frame) = frames.next_frame().unwrap() {
                    match frame {
                        Frame::Heartbeat => beats += 1,
                        Frame::Message { id, message } => read.push((
                            id.unwrap_or(0),
                            message.qos() as u8,
                            message.topic().to_owned(),
                            message.payload_bytes().to_vec(),
                        )),
                    }
                }
            }
            prop_assert_eq!(beats, messages.len());
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut frames = Frames::new(200);
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next_frame() {}
        }
    }
}
