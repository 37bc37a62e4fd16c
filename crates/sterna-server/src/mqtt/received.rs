//! Records of messages of QoS 2 that were received and not released. [MQTT-4.3.3-10]

use std::num::NonZeroU64;
use std::ops::Deref;

use sterna_mqtt::PacketId;
use sterna_mqtt::session::{Content, ReceivedId};

/// The first byte of the key of a record: a message of QoS 2 was received and is not released.
const RECEIVED: u8 = b'r';

/// The key of the record that a message of QoS 2 was received: its identifier, the digest of its content, and the
/// number of its lane without leading zeros. The record itself is empty: a cluster's log tells of keys alone.
pub(super) fn received_key(received: ReceivedId) -> Key {
    let mut key = Key::default();
    key.push(&[RECEIVED]);
    key.push(&received.packet_id.get().to_be_bytes());
    key.push(&received.content.number().get().to_be_bytes());
    let zeros = received.lane.leading_zeros() / u8::BITS;
    key.push(&received.lane.to_be_bytes()[zeros as usize..]);
    key
}

/// The key of a record.
#[derive(Default, Debug)]
pub(super) struct Key {
    bytes: [u8; 1 + size_of::<u16>() + 2 * size_of::<u64>()],
    len: usize,
}

impl Key {
    fn push(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The message in the key of such a record; `None` for other keys.
pub(super) fn received_id(key: &[u8]) -> Option<ReceivedId> {
    let (&[RECEIVED, high, low], rest) = key.split_first_chunk()? else {
        return None;
    };
    let (content, lane) = rest.split_first_chunk()?;
    if lane.len() > size_of::<u64>() {
        return None;
    }
    Some(ReceivedId {
        packet_id: PacketId::new(u16::from_be_bytes([high, low]))?,
        lane: (lane.iter()).fold(0, |lane, &byte| lane << 8 | u64::from(byte)),
        content: Content::from_number(NonZeroU64::new(u64::from_be_bytes(*content))?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        for lane in [0, 4, 256, u64::MAX] {
            for content in [1, 0x100, u64::MAX].map(NonZeroU64::new) {
                let received = ReceivedId {
                    packet_id: PacketId::MAX,
                    lane,
                    content: Content::from_number(content.expect("not 0")),
                };
                let key = received_key(received);
                assert_eq!(received_id(&key), Some(received));
            }
        }
    }

    #[test]
    fn other_keys_are_none() {
        assert!(received_id(b"r\x01\x0212345678").is_some());
        for other in [
            &b""[..],
            b"r\x01",
            b"r\x01\x02",
            b"r\x00\x0012345678",
            b"s\x01\x0212345678",
            b"r\x01\x02\0\0\0\0\0\0\0\0",
            b"r\x01\x021234567",
            b"r\x01\x0212345678123456789",
        ] {
            assert_eq!(received_id(other), None, "{other:?}");
        }
    }
}
