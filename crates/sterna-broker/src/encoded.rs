//! Messages on their way between nodes, encoded where they are in a core's cache already.
//!
//! A shard encodes what goes to other nodes as it routes it. So its messages end on the shard, and one piece of memory
//! goes to who brings them there. A shard of the other node takes a piece of memory in the same way.

use bytes::Bytes;

use crate::message::{InvalidMessage, Message, MessageDecoder, MessageEncoder, MessageParts};
use crate::peers::{NodeSet, Outgoing};
use crate::records::Fields;

/// The nodes that get a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recipients {
    /// They are to have it for sure: its acknowledgement waits for that.
    pub acknowledged: NodeSet,
    /// They may miss it.
    pub at_most_once: NodeSet,
}

/// Bytes in front of a turn's messages that are left for the head of what brings them to other nodes.
pub const HEAD_ROOM_BYTES: usize = 16;

/// Messages of a turn for other nodes, in their order. Each is as a store keeps it or brief, with its length in front. The
/// first of each part is whole.
#[derive(Debug, Default)]
pub struct Encoded {
    /// Room for a head, then the records; nothing at all where there is no message.
    memory: Vec<u8>,
    /// Of each part, where it ends in the memory.
    parts: Vec<(EncodedPart, usize)>,
    charge: u64,
    encoder: MessageEncoder,
}

/// Messages that follow each other and have the same recipients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodedPart {
    /// These.
    pub recipients: Recipients,
    /// Number of messages.
    pub messages: usize,
}

impl Encoded {
    /// None, with room for some bytes of records.
    pub(crate) fn with_room(bytes: usize) -> Self {
        Self {
            memory: Vec::with_capacity(HEAD_ROOM_BYTES + bytes),
            ..Self::default()
        }
    }

    /// Appends a message, which is charged with some bytes. Its record may be brief where `may_be_brief`.
    #[inline]
    pub fn push(
        &mut self,
        message: MessageParts<'_>,
        recipients: Recipients,
        charge: u64,
        may_be_brief: bool,
    ) {
        if self.memory.is_empty() {
            self.memory.resize(HEAD_ROOM_BYTES, 0);
        }
        let last = self.parts.last_mut();
        let last = last.filter(|(last, _)| last.recipients == recipients);
        let may_be_brief = may_be_brief && last.is_some();
        (self.encoder).push_parts(&mut self.memory, message, may_be_brief);
        self.charge += charge;
        let end = self.memory.len();
        if let Some((last, last_end)) = last {
            last.messages += 1;
            *last_end = end;
            return;
        }
        let part = EncodedPart {
            recipients,
            messages: 1,
        };
        self.parts.push((part, end));
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes that they are charged with in a [`PeerGate`](crate::PeerGate).
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.charge
    }

    /// Bytes of all records, each with its length in front.
    #[must_use]
    pub const fn record_bytes(&self) -> usize {
        self.memory.len().saturating_sub(HEAD_ROOM_BYTES)
    }

    /// The parts, with their records.
    pub fn parts(&self) -> impl Iterator<Item = (EncodedPart, &[u8])> {
        let mut start = HEAD_ROOM_BYTES;
        self.parts.iter().map(move |&(part, end)| {
            let records = &self.memory[start..end];
            start = end;
            (part, records)
        })
    }

    /// All messages, where they have the same recipients.
    #[must_use]
    pub fn only_part(&self) -> Option<EncodedPart> {
        match self.parts[..] {
            [(part, _)] => Some(part),
            _ => None,
        }
    }

    /// A head and all records behind it. They are not copied where the head has at most [`HEAD_ROOM_BYTES`], unless they
    /// fill less than half of their memory: the bytes may wait for long, and are counted as what they are.
    #[must_use]
    pub fn into_bytes(mut self, head: &[u8]) -> Bytes {
        if self.memory.len() < self.memory.capacity() / 2 {
            self.memory.shrink_to_fit();
        }
        let records = HEAD_ROOM_BYTES.min(self.memory.len());
        match records.checked_sub(head.len()) {
            Some(start) => {
                self.memory[start..records].copy_from_slice(head);
                Bytes::from(self.memory).slice(start..)
            }
            None => Bytes::from([head, &self.memory[records..]].concat()),
        }
    }
}

/// The messages of an encoded part, up to the first that is not valid. They share no memory with it, so that one message
/// that waits does not hold all others.
pub fn messages_of(records: &[u8]) -> impl Iterator<Item = Result<Message, InvalidMessage>> {
    parts_of(records).map(|parts| parts?.to_message())
}

/// The same, where they lie.
#[inline]
pub(crate) fn parts_of(
    records: &[u8],
) -> impl Iterator<Item = Result<MessageParts<'_>, InvalidMessage>> {
    let mut fields = Fields::new(records);
    let mut decoder = MessageDecoder::default();
    std::iter::from_fn(move || {
        if fields.rest().is_empty() {
            return None;
        }
        let record = fields.bytes().ok_or(InvalidMessage);
        let parts = record.and_then(|record| decoder.parts(record));
        if parts.is_err() {
            fields = Fields::new(&[]);
        }
        Some(parts)
    })
}

/// All that a turn of a shard has for other nodes.
#[derive(Debug)]
pub struct Outbound {
    /// The last token that was given out for it, for changes of records, or before.
    pub token: u64,
    /// Messages for single nodes.
    pub encoded: Encoded,
    /// All others.
    pub outgoing: Vec<Outgoing>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageHeader;
    use crate::records::put_bytes;

    fn message(topic: &str) -> Message {
        Message::copy(topic, &[], b"payload", MessageHeader::default()).expect("it fits")
    }

    fn topics(records: &[u8]) -> Vec<Option<String>> {
        messages_of(records)
            .map(|one| one.ok().map(|message| message.topic().to_owned()))
            .collect()
    }

    fn to(node: usize) -> Recipients {
        let mut recipients = Recipients {
            acknowledged: NodeSet::EMPTY,
            at_most_once: NodeSet::EMPTY,
        };
        recipients.at_most_once.insert(node);
        recipients
    }

    #[test]
    fn what_follows_each_other_to_the_same_nodes_is_one_part() {
        let mut encoded = Encoded::default();
        assert!(encoded.is_empty());
        assert_eq!((encoded.record_bytes(), encoded.only_part()), (0, None));
        for (topic, node) in [("a", 1), ("b", 1), ("c", 2), ("d", 1)] {
            encoded.push(message(topic).parts(), to(node), 7, false);
        }
        let parts: Vec<_> = (encoded.parts())
            .map(|(part, records)| (part.recipients, part.messages, topics(records)))
            .collect();
        let some = |topics: &[&str]| topics.iter().map(|one| Some((*one).to_owned())).collect();
        let expected = [
            (to(1), 2, some(&["a", "b"])),
            (to(2), 1, some(&["c"])),
            (to(1), 1, some(&["d"])),
        ];
        assert_eq!(parts, expected);
        assert_eq!((encoded.bytes(), encoded.is_empty()), (28, false));
        assert_eq!(encoded.only_part(), None);
    }

    #[test]
    fn a_head_is_put_in_front_of_all_records_where_they_are() {
        let turn = || {
            let mut encoded = Encoded::with_room(100);
            for topic in ["a", "b"] {
                encoded.push(message(topic).parts(), to(1), 7, false);
            }
            encoded
        };
        let (part, records) = (turn().only_part(), turn());
        let part = part.expect("all are for the same node");
        assert_eq!((part.recipients, part.messages), (to(1), 2));
        let (_, records) = records.parts().next().expect("the part");
        for bytes in [0, 1, 7, HEAD_ROOM_BYTES, HEAD_ROOM_BYTES + 1] {
            let (encoded, head) = (turn(), vec![9; bytes]);
            assert_eq!(encoded.record_bytes(), records.len());
            let memory = encoded.memory.as_ptr_range();
            let whole = encoded.into_bytes(&head);
            assert_eq!(whole, [&head, records].concat(), "{bytes}");
            let is_same = memory.contains(&whole.as_ptr());
            assert_eq!(is_same, bytes <= HEAD_ROOM_BYTES, "{bytes}");
        }
        let mut small = Encoded::with_room(100_000);
        small.push(message("a").parts(), to(1), 7, false);
        let bytes = small.into_bytes(b"head");
        let memory = bytes.try_into_mut().expect("nobody shares it");
        assert!(memory.capacity() < 200, "memory that nothing is in");
        assert_eq!(Encoded::default().into_bytes(&[]), "");
        assert_eq!(Encoded::default().into_bytes(b"head"), "head");
    }

    #[test]
    fn nothing_follows_what_is_not_valid() {
        let mut records = Vec::new();
        for record in [&b"\x03"[..], b"no message"] {
            let mut one = Vec::new();
            message("a").encode(&mut one);
            put_bytes(&mut records, &one);
            put_bytes(&mut records, record);
            put_bytes(&mut records, &one);
            assert_eq!(topics(&records), [Some("a".to_owned()), None]);
            records.clear();
        }
        assert_eq!(topics(&[9, 1]), [None], "it ends too early");
        assert_eq!(topics(&[]), []);
    }
}
