//! Messages on their way between nodes, encoded where they are in a core's cache already.
//!
//! A shard encodes what goes to other nodes as it routes it. So its messages end on the shard, and one piece of memory
//! goes to who brings them there. A shard of the other node takes a piece of memory in the same way.

use bytes::Bytes;

use crate::message::{InvalidMessage, Message};
use crate::peers::{NodeSet, Outgoing};
use crate::records::{Fields, put_bytes};

/// The nodes that get a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recipients {
    /// They are to have it for sure: its acknowledgement waits for that.
    pub acknowledged: NodeSet,
    /// They may miss it.
    pub at_most_once: NodeSet,
}

/// Messages of a turn for other nodes, in their order. Each is as a store keeps it, with its length in front.
#[derive(Debug, Default)]
pub struct Encoded {
    records: Vec<u8>,
    /// Of messages that follow each other and have the same recipients: these, and where the messages end.
    parts: Vec<(Recipients, usize)>,
    charge: u64,
}

impl Encoded {
    /// None, with room for some bytes.
    pub(crate) fn with_room(bytes: usize) -> Self {
        Self {
            records: Vec::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// Appends a message, which is charged with some bytes. `scratch` is memory that calls share.
    pub(crate) fn push(
        &mut self,
        message: &Message,
        recipients: Recipients,
        charge: u64,
        scratch: &mut Vec<u8>,
    ) {
        scratch.clear();
        message.encode(scratch);
        put_bytes(&mut self.records, scratch);
        self.charge += charge;
        let end = self.records.len();
        match self.parts.last_mut() {
            Some((last, last_end)) if *last == recipients => *last_end = end,
            _ => self.parts.push((recipients, end)),
        }
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

    /// Bytes of all messages.
    pub(crate) const fn record_bytes(&self) -> usize {
        self.records.len()
    }

    /// Messages that follow each other, with their recipients.
    pub fn parts(&self) -> impl Iterator<Item = (Recipients, &[u8])> {
        let mut start = 0;
        self.parts.iter().map(move |&(recipients, end)| {
            let records = &self.records[start..end];
            start = end;
            (recipients, records)
        })
    }
}

/// The messages of an encoded part, up to the first that is not valid. They share no memory with it, so that one message
/// that waits does not hold all others.
pub fn messages_of(records: &[u8]) -> impl Iterator<Item = Result<Message, InvalidMessage>> {
    let mut fields = Fields::new(records);
    std::iter::from_fn(move || {
        if fields.rest().is_empty() {
            return None;
        }
        let record = fields.bytes().ok_or(InvalidMessage);
        let message = record.and_then(|record| Message::decode(Bytes::copy_from_slice(record)));
        if message.is_err() {
            fields = Fields::new(&[]);
        }
        Some(message)
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

    fn message(topic: &str) -> Message {
        Message::copy(topic, &[], b"payload", MessageHeader::default()).expect("it fits")
    }

    fn topics(records: &[u8]) -> Vec<Option<String>> {
        messages_of(records)
            .map(|one| one.ok().map(|message| message.topic().to_owned()))
            .collect()
    }

    #[test]
    fn what_follows_each_other_to_the_same_nodes_is_one_part() {
        let to = |node| {
            let mut recipients = Recipients {
                acknowledged: NodeSet::EMPTY,
                at_most_once: NodeSet::EMPTY,
            };
            recipients.at_most_once.insert(node);
            recipients
        };
        let mut encoded = Encoded::default();
        assert!(encoded.is_empty());
        for (topic, node) in [("a", 1), ("b", 1), ("c", 2), ("d", 1)] {
            encoded.push(&message(topic), to(node), 7, &mut Vec::new());
        }
        let parts: Vec<_> = (encoded.parts())
            .map(|(recipients, records)| (recipients, topics(records)))
            .collect();
        let some = |topics: &[&str]| topics.iter().map(|one| Some((*one).to_owned())).collect();
        let expected = [
            (to(1), some(&["a", "b"])),
            (to(2), some(&["c"])),
            (to(1), some(&["d"])),
        ];
        assert_eq!(parts, expected);
        assert_eq!((encoded.bytes(), encoded.is_empty()), (28, false));
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
