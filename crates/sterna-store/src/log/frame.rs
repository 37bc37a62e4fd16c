//! Frames: the form of an append in a file.
//!
//! All numbers are little-endian.
//!
//! ```text
//! offset  bytes
//!      0      4  magic of the store
//!      4      4  length of the body
//!      8      8  sequence: number of the frame, from 1, without gaps
//!     16      8  position of its first message; of the next message where it has none
//!     24      4  unsynced: sequence minus the sequence up to which all was on the disk at the append
//!     28      4  CRC-32C of the body
//!     32      4  CRC-32C of the 32 bytes before
//!     36         body: items, one after the other
//! ```
//!
//! ```text
//! item                bytes
//! message             1, length of the rest (4), length of the topic (2), topic, content
//! put of a record     2, length of the key (4), key, length of the value (4), value
//! removal of a record 3, length of the key (4), key
//! message             4, length of the rest (4), start of the topic (1), length of the topic (2), content
//! ```
//!
//! A message of the second form has its topic within its content, from that start on. So a topic that the content
//! repeats near its beginning is written once.
//!
//! The magic, and the start of both checksums, follow from a number that is drawn when the store is made
//! ([`Seal`]). So no publisher can write a message that looks like a frame. It would be taken for one where the
//! frame around it is damaged.

use std::fmt;
use std::ops::Range;

/// Bytes of a frame before its body.
pub(crate) const HEADER_BYTES: usize = 36;

/// The largest body: lengths have 32 bits, and the sum with the header shall fit as well.
pub(crate) const MAX_BODY_BYTES: usize = u32::MAX as usize - HEADER_BYTES;

/// The largest frame that messages share which were appended one by one. It is a sector of most disks: damage costs
/// whole frames.
pub(crate) const MOST_SHARED_BYTES: usize = 512;

/// Bytes of an item before its first field.
const FIELD_START: usize = 5;

/// How far into a content its topic is looked for.
const TOPIC_SEARCH_BYTES: usize = 64;

const MESSAGE: u8 = 1;
const PUT: u8 = 2;
const REMOVE: u8 = 3;
const MESSAGE_WITH_TOPIC: u8 = 4;

/// Tells frames of one store from all other bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    magic: [u8; 4],
    seed: u32,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// The seal that belongs to a store's identity.
    pub(crate) fn of(identity: [u8; 16]) -> Self {
        let [a, b, c, d, rest @ ..] = identity;
        Self {
            // A zero byte first would make every preallocated byte look like the start of a frame.
            magic: [a | 1, b, c, d],
            seed: crc32c::crc32c(&rest),
        }
    }

    pub(crate) fn magic(self) -> [u8; 4] {
        self.magic
    }

    pub(crate) fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.seed, bytes)
    }

    /// The checksum of bytes that have `before` so far, with more behind them.
    pub(crate) fn checksum_with(before: u32, more: &[u8]) -> u32 {
        crc32c::crc32c_append(before, more)
    }
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) body_bytes: u32,
    pub(crate) sequence: u64,
    pub(crate) first_position: u64,
    pub(crate) unsynced: u32,
    pub(crate) body_checksum: u32,
}

impl Header {
    pub(crate) fn encode(&self, seal: Seal) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&seal.magic);
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_position.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.unsynced.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = seal.checksum(&bytes[..32]);
        bytes[32..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header that a slice begins with, if it is one.
    pub(crate) fn decode(bytes: &[u8], seal: Seal) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        if bytes[..4] != seal.magic || u32_at(bytes, 32)? != seal.checksum(&bytes[..32]) {
            return None;
        }
        Some(Self {
            body_bytes: u32_at(bytes, 4)?,
            sequence: u64_at(bytes, 8)?,
            first_position: u64_at(bytes, 16)?,
            unsynced: u32_at(bytes, 24)?,
            body_checksum: u32_at(bytes, 28)?,
        })
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }

    /// The sequence up to which all was on the disk when the frame was appended.
    pub(crate) fn synced(&self) -> u64 {
        self.sequence.saturating_sub(u64::from(self.unsynced))
    }
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Whether a body is the one of its header: by its checksum, and as a sequence of items.
pub(crate) fn is_sound(header: &Header, body: &[u8], seal: Seal) -> bool {
    body.len() == header.body_bytes as usize
        && seal.checksum(body) == header.body_checksum
        && items(body).all(|item| item.is_ok())
}

/// One item of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Item<'a> {
    Message { topic: &'a str, content: &'a [u8] },
    Put { key: &'a [u8], value: &'a [u8] },
    Remove { key: &'a [u8] },
}

/// A body is no sequence of items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// The items of a body. After an error there are no more.
pub(crate) fn items(body: &[u8]) -> impl Iterator<Item = Result<Item<'_>, Malformed>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let item = take_item(&mut rest);
        if item.is_none() {
            rest = &[];
        }
        Some(item.ok_or(Malformed))
    })
}

/// The messages of a body that is sound, in order.
pub(crate) fn messages(body: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    items(body).filter_map(|item| match item {
        Ok(Item::Message { topic, content }) => Some((topic, content)),
        _ => None,
    })
}

fn take_item<'a>(rest: &mut &'a [u8]) -> Option<Item<'a>> {
    let (kind, after) = rest.split_first()?;
    *rest = after;
    match *kind {
        MESSAGE => {
            let message = take_field(rest)?;
            let (length, message) = message.split_first_chunk()?;
            let (topic, content) = message.split_at_checked(u16::from_le_bytes(*length).into())?;
            Some(Item::Message {
                topic: std::str::from_utf8(topic).ok()?,
                content,
            })
        }
        MESSAGE_WITH_TOPIC => {
            let message = take_field(rest)?;
            let ([start, low, high], content) = message.split_first_chunk()?;
            let topic = content.get(usize::from(*start)..)?;
            let topic = topic.get(..u16::from_le_bytes([*low, *high]).into())?;
            Some(Item::Message {
                topic: std::str::from_utf8(topic).ok()?,
                content,
            })
        }
        PUT => Some(Item::Put {
            key: take_field(rest)?,
            value: take_field(rest)?,
        }),
        REMOVE => Some(Item::Remove {
            key: take_field(rest)?,
        }),
        _ => None,
    }
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let (field, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    Some(field)
}

/// A frame that is being put together: all of it is kept, or nothing.
#[derive(Debug, Default)]
pub struct Draft {
    body: Vec<u8>,
    messages: u32,
    /// The topic of its one message, in the body, while there is nothing else.
    lone_topic: Range<usize>,
}

/// A message, key or value is longer than its length can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a topic is longer than 65,535 bytes, or a frame longer than 4 GiB")
    }
}

impl std::error::Error for TooLong {}

impl Draft {
    /// Takes out all that was put in.
    pub fn clear(&mut self) {
        /// A large frame's room is given back.
        const KEPT_BYTES: usize = 1 << 20;
        self.body.clear();
        self.body.shrink_to(KEPT_BYTES);
        self.messages = 0;
        self.lone_topic = 0..0;
    }

    /// Adds a message; `write` appends its content. The topic is written once, if the content has it near
    /// its beginning too.
    ///
    /// # Errors
    /// When topic, message or frame become too long. Then the draft is as before.
    pub fn message(
        &mut self,
        topic: &str,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TooLong> {
        let start = self.body.len();
        let topic_bytes = u16::try_from(topic.len())
            .map_err(|_| TooLong)?
            .to_le_bytes();
        self.body
            .extend_from_slice(&[MESSAGE_WITH_TOPIC, 0, 0, 0, 0, 0]);
        self.body.extend_from_slice(&topic_bytes);
        let content_at = self.body.len();
        write(&mut self.body);
        let topic_at =
            if let Some(at) = position_near_start(&self.body[content_at..], topic.as_bytes()) {
                self.body[start + FIELD_START] = at;
                content_at + usize::from(at)
            } else {
                let head = [&topic_bytes, topic.as_bytes()].concat();
                self.body[start] = MESSAGE;
                self.body.splice(start + FIELD_START..content_at, head);
                start + FIELD_START + topic_bytes.len()
            };
        if self.body.len() > MAX_BODY_BYTES {
            self.body.truncate(start);
            return Err(TooLong);
        }
        let length = (self.body.len() - start - FIELD_START) as u32;
        self.body[start + 1..start + FIELD_START].copy_from_slice(&length.to_le_bytes());
        self.messages += 1;
        self.lone_topic = if start == 0 {
            topic_at..topic_at + topic.len()
        } else {
            0..0
        };
        Ok(())
    }

    /// Adds the change of a record: its new value, or `None` to remove it.
    ///
    /// # Errors
    /// When the frame becomes too long. Then the draft is as before.
    pub fn change(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), TooLong> {
        let bytes = 9 + key.len() + value.map_or(0, <[u8]>::len);
        if bytes > MAX_BODY_BYTES - self.body.len() {
            return Err(TooLong);
        }
        self.lone_topic = 0..0;
        self.body.push(if value.is_some() { PUT } else { REMOVE });
        for field in std::iter::once(key).chain(value) {
            self.body
                .extend_from_slice(&(field.len() as u32).to_le_bytes());
            self.body.extend_from_slice(field);
        }
        Ok(())
    }

    /// Number of its messages.
    #[must_use]
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether nothing was put in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The place of the topic in the body, where that is one message and nothing else.
    pub(crate) fn lone_topic(&self) -> Option<Range<usize>> {
        (!self.lone_topic.is_empty()).then(|| self.lone_topic.clone())
    }
}

/// Appends a frame to a buffer, without its changes of records, and with its messages of some positions alone. Its number
/// stays. Returns the position of the first message, which the draft has afterwards with those behind it.
///
/// # Errors
/// When the frame becomes too long. Then the buffer is as before.
pub(crate) fn put_messages(
    out: &mut Vec<u8>,
    draft: &mut Draft,
    (header, body): (&Header, &[u8]),
    positions: Range<u64>,
    seal: Seal,
) -> Result<u64, TooLong> {
    draft.clear();
    for (position, (topic, content)) in (header.first_position..).zip(messages(body)) {
        if positions.contains(&position) {
            draft.message(topic, |out| out.extend_from_slice(content))?;
        }
    }
    let body = draft.body();
    let header = Header {
        first_position: header.first_position.max(positions.start),
        body_bytes: body.len() as u32,
        body_checksum: seal.checksum(body),
        ..*header
    };
    out.extend_from_slice(&header.encode(seal));
    out.extend_from_slice(body);
    Ok(header.first_position)
}

/// Where a content has its topic, within the bytes that are looked at.
fn position_near_start(content: &[u8], topic: &[u8]) -> Option<u8> {
    let last = content.len().checked_sub(topic.len())?;
    let found = (0..=last.min(TOPIC_SEARCH_BYTES)).find(|at| content[*at..].starts_with(topic))?;
    u8::try_from(found).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_the_content_has_is_written_once() {
        for (before, once) in [(0, true), (1, true), (64, true), (65, false)] {
            let mut content = vec![b'a'; before];
            content.extend_from_slice(b"some/topic and more");
            let mut draft = Draft::default();
            draft
                .message("some/topic", |out| out.extend_from_slice(&content))
                .unwrap();
            let expected = content.len() + if once { 8 } else { 7 + 10 };
            assert_eq!(draft.body().len(), expected);
            let item = items(draft.body()).next().unwrap().unwrap();
            let topic = "some/topic";
            assert_eq!(
                item,
                Item::Message {
                    topic,
                    content: &content
                }
            );
        }
    }

    #[test]
    fn what_is_put_into_a_draft_is_read_again() {
        let mut draft = Draft::default();
        draft
            .message("a/b", |out| out.extend_from_slice(b"content"))
            .unwrap();
        draft.change(b"key", Some(b"value")).unwrap();
        draft.change(b"other", None).unwrap();
        draft.message("", |_| {}).unwrap();
        let long = "x".repeat(65_536);
        assert_eq!(draft.message(&long, |_| {}), Err(TooLong));
        let read: Vec<_> = items(draft.body()).map(Result::unwrap).collect();
        assert_eq!(
            read,
            [
                Item::Message {
                    topic: "a/b",
                    content: b"content"
                },
                Item::Put {
                    key: b"key",
                    value: b"value"
                },
                Item::Remove { key: b"other" },
                Item::Message {
                    topic: "",
                    content: b""
                },
            ]
        );
        assert_eq!(draft.messages(), 2);
    }

    #[test]
    fn a_header_is_read_by_its_own_store_only() {
        let header = Header {
            body_bytes: 7,
            sequence: 1 << 40,
            first_position: 3,
            unsynced: 12,
            body_checksum: 99,
        };
        let seal = Seal::of([7; 16]);
        let bytes = header.encode(seal);
        assert_eq!(Header::decode(&bytes, seal), Some(header));
        assert_eq!(Header::decode(&bytes, Seal::of([8; 16])), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&flipped, seal), None, "{bit}");
        }
    }
}
