//! The message before that was allowed, in the same input. Publishers send in batches, mostly to one topic. So the topic's form, the
//! rules, the webhook's answer and the wait of a first message cost one comparison.
//!
//! Nothing that decides changes while one input is looked at: neither the rules nor the clock, nor where the client
//! is. AUTH in it can give the client other groups, so all packets but PUBLISH have it
//! [forgotten](LastMessage::forget).

use sterna_mqtt::Frame;

/// The longest topic that is kept, in bytes.
const LONGEST_BYTES: usize = 256;

/// See the module. Messages that can be replays, or are refused, are none: the webhook may be asked about each.
#[derive(Debug, Default)]
pub(super) struct LastMessage {
    topic: String,
    /// The first byte of its packet; 0 if nothing is known.
    first_byte: u8,
}

impl LastMessage {
    pub(super) const fn forget(&mut self) {
        self.first_byte = 0;
    }

    /// The topic of a packet that is like the last one, and so is allowed.
    #[inline]
    pub(super) fn topic_of<'a>(&self, frame: &Frame<'a>) -> Option<&'a str> {
        if frame.first_byte() != self.first_byte {
            return None;
        }
        frame.topic_if(&self.topic)
    }

    /// A message has come in this packet, and was allowed.
    pub(super) fn keep(&mut self, frame: &Frame<'_>, topic: &str) {
        if topic.len() > LONGEST_BYTES {
            return self.forget();
        }
        self.topic.clear();
        self.topic.push_str(topic);
        self.first_byte = frame.first_byte();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_packet_with_the_same_topic_and_flags_is_like_the_last() {
        let mut last = LastMessage::default();
        let first = Frame::new(0x30, b"\0\x03a/bfirst");
        assert_eq!(last.topic_of(&first), None);
        last.keep(&first, "a/b");
        assert_eq!(last.topic_of(&first), Some("a/b"));
        let others: [(u8, &[u8]); 6] = [
            (0x31, b"\0\x03a/b"),
            (0x32, b"\0\x03a/b\0\x01"),
            (0x30, b"\0\x03a/c"),
            (0x30, b"\0\x04a/bc"),
            (0x30, b"\0\x02a/b"),
            (0x30, b"\0\x03a/"),
        ];
        for (first_byte, body) in others {
            assert_eq!(
                last.topic_of(&Frame::new(first_byte, body)),
                None,
                "{body:?}"
            );
        }
        last.forget();
        assert_eq!(last.topic_of(&first), None);
        // The topic that an alias stands for is not in the packet.
        last.keep(&Frame::new(0x30, b"\0\0\x03\x23\0\x01"), "a/b");
        assert_eq!(
            last.topic_of(&Frame::new(0x30, b"\0\0\x03\x23\0\x01")),
            None
        );
        assert_eq!(last.topic_of(&first), Some("a/b"));
        let long = "x".repeat(LONGEST_BYTES + 1);
        last.keep(&first, &long);
        assert_eq!(last.topic_of(&first), None);
    }
}
