//! MQTT packets from any bytes.

use bytes::BytesMut;
use sterna_mqtt::packet::Publish;
use sterna_mqtt::{
    DecodeError, Frame, Framer, MAX_PACKET_BYTES, Packet, PropertyContext, PublishProperties,
    Version,
};

/// The limit for packets that the framer is given: small enough for inputs to exceed it.
const LIMIT_BYTES: usize = 4096;

/// What a framer made of some bytes.
#[derive(Debug, PartialEq, Eq)]
struct Cut {
    /// First byte and body of each packet.
    packets: Vec<(u8, Vec<u8>)>,
    error: Option<DecodeError>,
}

/// Checks that the bytes of a lane mean the same however they are cut on the way, that what is
/// decoded can be encoded, and that the result decodes to the same.
///
/// # Panics
///
/// Where one of these does not hold.
pub fn lane(bytes: &[u8], version: Version) {
    let whole = cut(bytes, |rest| rest);
    let by_byte = cut(bytes, |_| 1);
    assert_eq!(whole, by_byte, "a packet in pieces is another packet");
    let mut step = 0;
    let mixed = cut(bytes, |_| {
        step = (step * 5 + 3) % 17;
        step + 1
    });
    assert_eq!(whole, mixed, "a packet in pieces is another packet");
    for (first, body) in &whole.packets {
        packet(&Frame::new(*first, body), version);
    }
}

/// Cuts bytes that arrive in pieces; `piece` says how many come next, given how many are left.
fn cut(bytes: &[u8], mut piece: impl FnMut(usize) -> usize) -> Cut {
    let mut framer = Framer::new();
    let mut cut = Cut {
        packets: Vec::new(),
        error: None,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let (mut now, later) = rest.split_at(piece(rest.len()).min(rest.len()));
        rest = later;
        loop {
            let before = now.len();
            match framer.next(&mut now, LIMIT_BYTES) {
                Ok(Some(frame)) => {
                    assert!(now.len() < before, "a packet out of nothing");
                    assert!(frame.packet_bytes() <= LIMIT_BYTES);
                    if let Some(shared) = frame.shared() {
                        assert_eq!(&shared[..], frame.body());
                    }
                    cut.packets
                        .push((frame.first_byte(), frame.body().to_vec()));
                }
                Ok(None) => {
                    assert!(now.is_empty(), "bytes were left lying");
                    break;
                }
                Err(error) => {
                    cut.error = Some(error);
                    return cut;
                }
            }
            assert!(framer.buffered_bytes() <= 2 * LIMIT_BYTES);
        }
        if framer.partial().is_none() {
            assert_eq!(framer.buffered_bytes(), 0, "an idle lane holds memory");
        }
    }
    cut
}

/// Checks one packet.
fn packet(frame: &Frame<'_>, version: Version) {
    let packet = match Packet::decode(frame, version) {
        Ok(packet) => packet,
        Err(error) => {
            assert!(error.reason.is_error(), "{error:?}");
            assert!(!error.detail.is_empty());
            return;
        }
    };
    assert_eq!(Some(packet.packet_type()), frame.packet_type());
    if let Packet::Publish(publish) = &packet {
        forwarding(publish);
    }
    let mut encoded = BytesMut::new();
    packet
        .encode(version, MAX_PACKET_BYTES, &mut encoded)
        .expect("what was decoded can be encoded");
    let mut input = &encoded[..];
    let mut framer = Framer::new();
    let again = framer
        .next(&mut input, MAX_PACKET_BYTES)
        .expect("what was encoded is a packet")
        .expect("what was encoded is a whole packet");
    let decoded = Packet::decode(&again, version).expect("what was encoded can be decoded");
    assert_eq!(decoded, packet);
    assert!(input.is_empty(), "more was encoded than one packet");
    // One byte less than it takes, and nothing is written.
    let needed = encoded.len();
    encoded.clear();
    assert!(packet.encode(version, needed - 1, &mut encoded).is_err());
    assert!(encoded.is_empty());
}

/// Checks that the properties that a subscriber gets are what the publisher sent.
fn forwarding(publish: &Publish<'_>) {
    let forward = publish.properties.forward();
    let mut copied = Vec::new();
    forward.copy_to(&mut copied);
    assert_eq!(copied.len(), forward.len());
    assert_eq!(
        copied,
        forward.slices().flatten().copied().collect::<Vec<u8>>()
    );
    if let Some(contiguous) = forward.contiguous() {
        assert_eq!(contiguous, &copied[..]);
    }
    let passed_on = PublishProperties::parse(&copied, PropertyContext::Publish)
        .expect("what is passed on is valid");
    assert!(
        passed_on
            .user_properties()
            .eq(publish.properties.user_properties())
    );
    assert_eq!(passed_on.content_type(), publish.properties.content_type());
    assert_eq!(
        passed_on.response_topic(),
        publish.properties.response_topic()
    );
    assert_eq!(
        passed_on.correlation_data(),
        publish.properties.correlation_data()
    );
    assert_eq!(
        passed_on.is_utf8_payload(),
        publish.properties.is_utf8_payload()
    );
    assert_eq!(passed_on.topic_alias(), None);
    assert_eq!(passed_on.message_expiry_s(), None);
    assert_eq!(passed_on.subscription_identifiers().count(), 0);
}
