//! Frames of `application/vnd.sterna.stream` and of WebTransport (`docs/http.md`).

use std::fmt;
use std::ops::{Deref, Range};

use bytes::{BufMut, Bytes, BytesMut};
use sterna_h3::varint;

/// The frame that says nothing but that the stream lives.
pub const HEARTBEAT: &[u8] = &[0];

/// Message Expiry Interval (MQTT 5.0, section 3.3.2.3.3).
const MESSAGE_EXPIRY_INTERVAL: u8 = 2;

/// The field Flags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(u8);

impl Flags {
    const QOS: u8 = 3;
    const RETAIN: u8 = 4;
    const REDELIVERED: u8 = 8;
    /// The frame acknowledges everything up to its id. It has no more fields.
    const ACKNOWLEDGES: u8 = 0x80;

    /// The flags of an acknowledgement.
    pub const ACKNOWLEDGEMENT: Self = Self(Self::ACKNOWLEDGES);

    /// The flags of a message; `qos` is 0, 1 or 2.
    #[must_use]
    pub const fn new(qos: u8, retain: bool, redelivered: bool) -> Self {
        let retain = if retain { Self::RETAIN } else { 0 };
        let redelivered = if redelivered { Self::REDELIVERED } else { 0 };
        Self(qos & Self::QOS | retain | redelivered)
    }

    /// Highest level of delivery: 0, 1 or 2.
    #[must_use]
    pub const fn qos(self) -> u8 {
        self.0 & Self::QOS
    }

    /// Whether it is retained, or is to be.
    #[must_use]
    pub const fn retain(self) -> bool {
        self.0 & Self::RETAIN != 0
    }

    /// Whether it may have been sent before.
    #[must_use]
    pub const fn redelivered(self) -> bool {
        self.0 & Self::REDELIVERED != 0
    }

    const fn parse(byte: u8) -> Option<Self> {
        let known = Self::QOS | Self::RETAIN | Self::REDELIVERED;
        match byte {
            Self::ACKNOWLEDGES => Some(Self(byte)),
            _ if byte & !known != 0 || byte & Self::QOS == 3 => None,
            _ => Some(Self(byte)),
        }
    }
}

/// The part of a frame before its payload.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Zero for none.
    pub id: u64,
    /// Level of delivery and the like.
    pub flags: Flags,
    /// Topic name.
    pub topic: &'a str,
    /// Becomes the property Message Expiry Interval, in seconds.
    pub expiry_s: Option<u32>,
    /// The other properties, in the encoding of MQTT 5.0.
    pub properties: &'a [u8],
    /// Length of the payload, which follows.
    pub payload_bytes: usize,
}

impl Head<'_> {
    /// Appends everything before the payload, with the field Length or, for a datagram, without.
    pub fn write(&self, with_length: bool, out: &mut BytesMut) {
        self.write_before_topic(with_length, out);
        out.put_slice(self.topic.as_bytes());
        self.write_before_properties(out);
        out.put_slice(self.properties);
    }

    /// Appends everything before the topic's bytes: a step of [`write`](Self::write) that is short.
    pub fn write_before_topic(&self, with_length: bool, out: &mut BytesMut) {
        let properties_bytes = self.properties_bytes();
        if with_length {
            let bytes = varint::len(self.id)
                + 1
                + varint::len(self.topic.len() as u64)
                + self.topic.len()
                + varint::len(properties_bytes as u64)
                + properties_bytes
                + self.payload_bytes;
            put_varint(bytes as u64, out);
        }
        put_varint(self.id, out);
        out.put_u8(self.flags.0);
        put_varint(self.topic.len() as u64, out);
    }

    /// Appends what is between the topic's bytes and the other properties.
    pub fn write_before_properties(&self, out: &mut BytesMut) {
        put_varint(self.properties_bytes() as u64, out);
        if let Some(expiry_s) = self.expiry_s {
            out.put_u8(MESSAGE_EXPIRY_INTERVAL);
            out.put_u32(expiry_s);
        }
    }

    fn properties_bytes(&self) -> usize {
        self.expiry_s.map_or(0, |_| 5) + self.properties.len()
    }
}

/// Appends the answer to a frame that a client has sent on a bidirectional stream.
pub fn write_answer(id: u64, status: u16, out: &mut BytesMut) {
    let bytes = varint::len(id) + varint::len(status.into());
    put_varint(bytes as u64, out);
    put_varint(id, out);
    put_varint(status.into(), out);
}

/// Appends the shortest encoding of a value, which is below 2^62.
fn put_varint(value: u64, out: &mut BytesMut) {
    debug_assert!(
        value <= varint::MAX,
        "ids and lengths are counted, not given"
    );
    match varint::len(value) {
        1 => out.put_u8(value as u8),
        2 => out.put_u16(value as u16 | 0x4000),
        4 => out.put_u32(value as u32 | 0x8000_0000),
        _ => out.put_u64(value | 0xc000_0000_0000_0000),
    }
}

/// A fault in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// The frame's Length is above the limit.
    TooLarge,
    /// The frame's fields are longer than the frame, or unexpected bytes follow them.
    Fields,
    /// The frame's Flags have unknown bits, or an unknown level of delivery.
    Flags,
    /// The frame's Topic is not UTF-8.
    Topic,
}

impl FrameError {
    /// Description of the fault for people.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::TooLarge => "the frame is longer than http.maximum_content_bytes",
            Self::Fields => "the frame's fields do not fit its length",
            Self::Flags => "the frame's flags are not known",
            Self::Topic => "the frame's topic is not UTF-8",
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail())
    }
}

impl std::error::Error for FrameError {}

/// A frame taken apart: its fields are ranges of the bytes that it came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame<B = Bytes> {
    /// Zero for none.
    pub id: u64,
    /// Level of delivery and the like.
    pub flags: Flags,
    /// All of the frame but its Length.
    pub body: B,
    /// Place of the topic in the body.
    pub topic: Range<usize>,
    /// Place of the properties in the body.
    pub properties: Range<usize>,
    /// Place of the payload in the body.
    pub payload: Range<usize>,
}

impl<B: Deref<Target = [u8]>> Frame<B> {
    /// Takes a frame apart that comes without its Length.
    ///
    /// # Errors
    /// When it is no frame; the stream that it came on can go on with the next.
    pub fn parse(body: B) -> Result<Self, FrameError> {
        let mut rest = &body[..];
        let at = |rest: &[u8]| body.len() - rest.len();
        let id = varint::take(&mut rest).ok_or(FrameError::Fields)?;
        let (&flags, mut rest) = rest.split_first().ok_or(FrameError::Fields)?;
        let flags = Flags::parse(flags).ok_or(FrameError::Flags)?;
        if flags == Flags::ACKNOWLEDGEMENT {
            if !rest.is_empty() {
                return Err(FrameError::Fields);
            }
            let nothing = body.len()..body.len();
            return Ok(Self {
                id,
                flags,
                topic: nothing.clone(),
                properties: nothing.clone(),
                payload: nothing,
                body,
            });
        }
        let mut range = || {
            let bytes = varint::take(&mut rest)?;
            let bytes = usize::try_from(bytes).ok()?;
            let start = at(rest);
            rest = rest.get(bytes..)?;
            Some(start..start + bytes)
        };
        let topic = range().ok_or(FrameError::Fields)?;
        let properties = range().ok_or(FrameError::Fields)?;
        let payload = at(rest)..body.len();
        if std::str::from_utf8(&body[topic.clone()]).is_err() {
            return Err(FrameError::Topic);
        }
        Ok(Self {
            id,
            flags,
            body,
            topic,
            properties,
            payload,
        })
    }

    /// Whether it acknowledges everything up to its id, and says nothing else.
    #[must_use]
    pub fn is_acknowledgement(&self) -> bool {
        self.flags == Flags::ACKNOWLEDGEMENT
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        // It was checked.
        std::str::from_utf8(&self.body[self.topic.clone()]).unwrap_or_default()
    }

    /// The properties, as they came.
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        &self.body[self.properties.clone()]
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.body[self.payload.clone()]
    }
}

/// Cuts a stream of bytes into frames. It keeps the bytes of an incomplete frame, and none between
/// frames.
#[derive(Debug)]
pub struct FrameReader {
    limit_bytes: usize,
    /// The received bytes of the field Length.
    length: [u8; varint::MAX_BYTES],
    length_bytes: usize,
    /// Bytes that the frame has, once its Length has come.
    wanted_bytes: usize,
    body: BytesMut,
}

impl FrameReader {
    /// A reader of frames of which none may be longer than `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            length: [0; varint::MAX_BYTES],
            length_bytes: 0,
            wanted_bytes: 0,
            body: BytesMut::new(),
        }
    }

    /// The next frame, without its Length; `None` where all of `input` is taken and more is needed.
    /// Heartbeats are passed over.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] as soon as its Length says so; there is no way to go on.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Bytes>, FrameError> {
        while self.wanted_bytes == 0 {
            let Some((&byte, rest)) = input.split_first() else {
                return Ok(None);
            };
            *input = rest;
            self.length[self.length_bytes] = byte;
            self.length_bytes += 1;
            if let Some((bytes, _)) = varint::read(&self.length[..self.length_bytes]) {
                self.length_bytes = 0;
                self.wanted_bytes = usize::try_from(bytes)
                    .ok()
                    .filter(|&bytes| bytes <= self.limit_bytes)
                    .ok_or(FrameError::TooLarge)?;
            }
        }
        let missing_bytes = self.wanted_bytes - self.body.len();
        let (new, rest) = input.split_at(missing_bytes.min(input.len()));
        *input = rest;
        if new.len() < missing_bytes {
            // It grows with the bytes that have come, not with the announced length.
            self.body.extend_from_slice(new);
            return Ok(None);
        }
        self.wanted_bytes = 0;
        if self.body.is_empty() {
            return Ok(Some(Bytes::copy_from_slice(new)));
        }
        self.body.extend_from_slice(new);
        Ok(Some(std::mem::take(&mut self.body).freeze()))
    }

    /// Bytes that are kept of a frame that is not complete.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.body.len()
    }

    /// Whether the stream may end here: no frame is begun.
    #[must_use]
    pub const fn is_between_frames(&self) -> bool {
        self.length_bytes == 0 && self.wanted_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(head: &Head<'_>, with_length: bool, payload: &[u8]) -> BytesMut {
        let mut out = BytesMut::new();
        head.write(with_length, &mut out);
        out.put_slice(payload);
        out
    }

    /// Everything that a reader finds in bytes that come in pieces.
    fn read(bytes: &[u8], limit: usize, pieces: &[usize]) -> Result<Vec<Bytes>, FrameError> {
        let mut reader = FrameReader::new(limit);
        let mut frames = Vec::new();
        let mut rest = bytes;
        let mut sizes = pieces.iter().copied().cycle();
        while !rest.is_empty() {
            let (mut piece, after) = rest.split_at(sizes.next().unwrap_or(1).clamp(1, rest.len()));
            while let Some(frame) = reader.next(&mut piece)? {
                frames.push(frame);
            }
            assert!(piece.is_empty(), "all of it is taken");
            assert!(reader.held_bytes() <= limit);
            rest = after;
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_come_back_however_they_are_cut(
            frames in prop::collection::vec((
                0..1_u64 << 62, 0..3_u8, any::<[bool; 2]>(), "[a-zé/]{0,70}",
                prop::option::of(any::<u32>()), prop::collection::vec(any::<u8>(), 0..80),
                prop::collection::vec(any::<u8>(), 0..200), any::<bool>(),
            ), 1..6),
            pieces in prop::collection::vec(1..90_usize, 1..5),
        ) {
            let mut bytes = BytesMut::new();
            for (id, qos, [retain, redelivered], topic, expiry_s, properties, payload, beat) in &frames {
                let head = Head {
                    id: *id, flags: Flags::new(*qos, *retain, *redelivered), topic,
                    expiry_s: *expiry_s, properties, payload_bytes: payload.len(),
                };
                let whole = written(&head, true, payload);
                let alone = written(&head, false, payload);
                prop_assert!(whole.ends_with(&alone) && whole.len() > alone.len());
                bytes.put_slice(&whole);
                if *beat {
                    bytes.put_slice(HEARTBEAT);
                }
            }
            let got = read(&bytes, 1_000, &pieces).unwrap();
            prop_assert_eq!(got.len(), frames.len());
            for (got, (id, qos, [retain, redelivered], topic, expiry_s, properties, payload, _)) in
                got.into_iter().zip(&frames)
            {
                let frame = Frame::parse(got).unwrap();
                let flags = frame.flags;
                prop_assert_eq!(
                    (frame.id, flags.qos(), flags.retain(), flags.redelivered()),
                    (*id, *qos, *retain, *redelivered)
                );
                prop_assert_eq!((frame.topic(), frame.payload()), (&**topic, &**payload));
                let expiry = expiry_s.map(|expiry_s| [&[2][..], &expiry_s.to_be_bytes()].concat());
                let all = [expiry.unwrap_or_default(), properties.clone()].concat();
                prop_assert_eq!(frame.properties(), &*all);
                prop_assert!(!frame.is_acknowledgement());
            }
        }

        #[test]
        fn any_bytes_are_read_alike_in_one_piece_and_in_many(
            bytes in prop::collection::vec(any::<u8>(), 0..300), limit in 0..100_usize,
            pieces in prop::collection::vec(1..9_usize, 1..4),
        ) {
            let whole = read(&bytes, limit, &[usize::MAX]);
            prop_assert_eq!(&whole, &read(&bytes, limit, &pieces));
            for frame in whole.into_iter().flatten() {
                prop_assert!(!frame.is_empty() && frame.len() <= limit);
                let _ = Frame::parse(frame);
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_frame_is_said() {
        let parse = |bytes: &'static [u8]| Frame::parse(Bytes::from_static(bytes));
        for (bytes, error) in [
            (&[][..], FrameError::Fields),
            (&[5], FrameError::Fields),
            (&[5, 0], FrameError::Fields),
            (&[5, 3, 0, 0], FrameError::Flags),
            (&[5, 0x10, 0, 0], FrameError::Flags),
            (&[5, 0x81, 0, 0], FrameError::Flags),
            (&[5, 0x80, 0], FrameError::Fields),
            (&[5, 0, 2, b'a'], FrameError::Fields),
            (&[5, 0, 1, b'a', 1], FrameError::Fields),
            (&[5, 0, 1, 0xff, 0], FrameError::Topic),
            (
                &[5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                FrameError::Fields,
            ),
        ] {
            assert_eq!(parse(bytes), Err(error), "{bytes:x?}");
        }
        let acknowledgement = parse(&[0x40, 5, 0x80]).unwrap();
        assert!(acknowledgement.is_acknowledgement());
        assert_eq!(acknowledgement.id, 5);
        assert_eq!(parse(&[0, 0, 0, 0]).unwrap().payload(), b"");
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_kept() {
        let mut reader = FrameReader::new(100);
        let mut input: &[u8] = &[0x40, 101];
        assert_eq!(reader.next(&mut input), Err(FrameError::TooLarge));
        let mut reader = FrameReader::new(1 << 20);
        let mut input: &[u8] = &[0x80, 0x10, 0, 0, 1];
        assert_eq!(reader.next(&mut input), Ok(None));
        assert!(!reader.is_between_frames());
        assert!(reader.body.capacity() < 1_000, "only what has come");
    }

    #[test]
    fn answers_say_their_ids_and_statuses() {
        let mut out = BytesMut::new();
        write_answer(7, 204, &mut out);
        assert_eq!(&out[..], [3, 7, 0x40, 204]);
    }
}
