//! The MQTT packets of a load: written once as templates, stamped for each message.

use bytes::BytesMut;
use sterna_mqtt::packet::{self, Connect, SubscribeOptions, Will};
use sterna_mqtt::{
    EncodeError, Framer, MAX_PACKET_BYTES, Packet, PacketId, PacketType, Properties,
    PublishProperties, QoS, Version,
};

/// Bytes at the start of every payload: publisher, sequence number, time.
pub(super) const STAMP_BYTES: usize = 16;
/// Larger packets from a broker end the connection.
const MAX_INCOMING_BYTES: usize = 1 << 20;

/// Start of every payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    /// Number of the publisher.
    pub(super) publisher: u32,
    /// Number of the message, from 0, of that publisher.
    pub(super) sequence: u32,
    /// When it was due (open loop) or written (closed loop), nanoseconds since the run began.
    pub(super) time_ns: u64,
}

impl Stamp {
    /// Reads the stamp of a payload that this load published.
    pub(super) fn of(payload: &[u8]) -> Option<Self> {
        let (publisher, rest) = payload.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        Some(Self {
            publisher: u32::from_be_bytes(*publisher),
            sequence: u32::from_be_bytes(*sequence),
            time_ns: u64::from_be_bytes(*rest.first_chunk()?),
        })
    }
}

/// A PUBLISH whose identifier and stamp are filled in for each message.
pub(super) struct Template {
    bytes: Vec<u8>,
    /// Where the packet identifier is, above QoS 0.
    identifier_at: Option<usize>,
    stamp_at: usize,
    /// Where the topic ends.
    topic_end: usize,
}

impl Template {
    pub(super) fn new(version: Version, topic: &str, qos: QoS, payload_bytes: usize) -> Self {
        // Not compressible, and the same in every run.
        let mut state = 0x9e37_79b9_u32;
        let payload: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .take(payload_bytes)
        .collect();
        let publish = packet::Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: qos.is_acknowledged().then_some(PacketId::MIN),
            properties: PublishProperties::EMPTY,
            payload: &payload,
        };
        let bytes = encoded(|out| publish.encode(version, MAX_PACKET_BYTES, out));
        let stamp_at = bytes.len() - payload_bytes;
        // In front of the payload: the identifier and, in 5.0, the length of no properties.
        let identifier_at = stamp_at - 2 - usize::from(version.is_v5());
        Self {
            bytes,
            identifier_at: qos.is_acknowledged().then_some(identifier_at),
            stamp_at,
            topic_end: if qos.is_acknowledged() {
                identifier_at
            } else {
                stamp_at - usize::from(version.is_v5())
            },
        }
    }

    /// Writes `tail` over the end of the topic, whose length stays.
    pub(super) fn end_topic_with(&mut self, tail: &str) {
        let start = self.topic_end - tail.len();
        self.bytes[start..self.topic_end].copy_from_slice(tail.as_bytes());
    }

    /// The packet for one message.
    pub(super) fn stamped(&mut self, identifier: u16, stamp: Stamp) -> &[u8] {
        if let Some(at) = self.identifier_at {
            self.bytes[at..at + 2].copy_from_slice(&identifier.to_be_bytes());
        }
        let place = &mut self.bytes[self.stamp_at..self.stamp_at + STAMP_BYTES];
        place[..4].copy_from_slice(&stamp.publisher.to_be_bytes());
        place[4..8].copy_from_slice(&stamp.sequence.to_be_bytes());
        place[8..].copy_from_slice(&stamp.time_ns.to_be_bytes());
        &self.bytes
    }
}

/// Fields of a client's CONNECT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Login<'a> {
    pub(super) version: Version,
    pub(super) client_id: &'a str,
    pub(super) user_name: Option<&'a str>,
    pub(super) password: Option<&'a [u8]>,
    /// The session outlives the connection, and continues one of before.
    pub(super) durable: bool,
    /// The payload of a will, which is retained in a topic of the client's own.
    pub(super) will: Option<&'a [u8]>,
}

/// CONNECT without keep alive.
pub(super) fn connect(login: Login<'_>) -> Vec<u8> {
    let topic = format!("bench/{}/state", login.client_id);
    let will = login.will.map(|payload| Will {
        topic: &topic,
        payload,
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: PublishProperties::EMPTY,
    });
    let connect = Connect {
        version: login.version,
        clean_start: !login.durable,
        keep_alive_s: 0,
        client_id: login.client_id,
        will,
        user_name: login.user_name,
        password: login.password,
        properties: Properties::EMPTY,
    };
    encoded(|out| connect.encode(MAX_PACKET_BYTES, out))
}

/// SUBSCRIBE to one filter.
pub(super) fn subscribe(version: Version, filter: &str, qos: QoS) -> Vec<u8> {
    let options = SubscribeOptions::new(qos);
    let filters = std::iter::once((filter, options));
    encoded(|out| {
        let (id, properties) = (PacketId::MIN, Properties::EMPTY);
        packet::encode_subscribe(version, id, properties, filters, MAX_PACKET_BYTES, out)
    })
}

/// A packet without a body: PINGREQ or DISCONNECT.
pub(super) fn empty(packet_type: PacketType) -> [u8; 2] {
    [packet_type.first_byte(), 0]
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP of success, which is the same in all versions.
pub(super) fn acknowledgement(packet_type: PacketType, id: PacketId) -> [u8; 4] {
    let [high, low] = id.get().to_be_bytes();
    [packet_type.first_byte(), 2, high, low]
}

fn encoded(encode: impl FnOnce(&mut BytesMut) -> Result<(), EncodeError>) -> Vec<u8> {
    let mut out = BytesMut::new();
    // The command line's limits bound names and payloads. Above them the broker gets nothing, and
    // the run ends by its time limit.
    let _ = encode(&mut out);
    out.to_vec()
}

/// Hands every whole packet in `bytes` to `sink`; keeps the rest for the next call.
pub(super) fn read(
    framer: &mut Framer,
    version: Version,
    mut bytes: &[u8],
    sink: &mut impl FnMut(&Packet<'_>),
) -> Result<(), String> {
    let failed = |e| format!("the broker sent bytes that are not MQTT: {e}");
    while let Some(frame) = framer
        .next(&mut bytes, MAX_INCOMING_BYTES)
        .map_err(failed)?
    {
        sink(&Packet::decode(&frame, version).map_err(failed)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_topic_is_replaced() {
        for version in [Version::V311, Version::V5] {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
                let mut template = Template::new(version, "bench/news/00000000", qos, 64);
                template.end_topic_with("away/00000042");
                let (mut framer, mut topics) = (Framer::new(), Vec::new());
                read(&mut framer, version, &template.bytes, &mut |packet| {
                    if let Packet::Publish(publish) = packet {
                        topics.push(publish.topic.to_owned());
                    }
                })
                .unwrap();
                assert_eq!(topics, ["bench/away/00000042"], "{version:?} {qos:?}");
            }
        }
    }

    #[test]
    fn a_stamped_publish_is_read_back_at_any_split() {
        for version in [Version::V311, Version::V5] {
            for (qos, size) in [
                (QoS::AtMostOnce, 16),
                (QoS::AtLeastOnce, 64),
                (QoS::ExactlyOnce, 1024),
            ] {
                let mut template = Template::new(version, "bench/pair/00000001", qos, size);
                let stamp_of = |n: u32| Stamp {
                    publisher: 7,
                    sequence: n,
                    time_ns: u64::from(n) << 33,
                };
                let mut wire = Vec::new();
                for n in 0..3 {
                    wire.extend_from_slice(template.stamped(n as u16 + 1, stamp_of(n)));
                }
                for step in 1..wire.len() {
                    let (mut framer, mut seen) = (Framer::new(), 0);
                    for part in wire.chunks(step) {
                        read(&mut framer, version, part, &mut |packet| {
                            let Packet::Publish(publish) = packet else {
                                panic!("{packet:?}")
                            };
                            assert_eq!((publish.qos, publish.payload.len()), (qos, size));
                            let id = publish.packet_id.map(PacketId::get);
                            assert_eq!(id, qos.is_acknowledged().then_some(seen as u16 + 1));
                            assert_eq!(Stamp::of(publish.payload), Some(stamp_of(seen)));
                            seen += 1;
                        })
                        .unwrap();
                    }
                    assert_eq!(seen, 3);
                }
            }
        }
    }
}
