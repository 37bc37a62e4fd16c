//! Lanes that end, and datagrams.

use super::*;

/// The topic of the message in a datagram.
fn receive(client: &mut Client, bytes: &[u8]) -> Result<String, Violation> {
    let (mut framer, mut rest) = (Framer::new(), bytes);
    let frame = framer.next(&mut rest, MAX_PACKET_BYTES).unwrap();
    let frame = frame.filter(|_| rest.is_empty());
    let publish = client.connection.receive_datagram(frame.as_ref(), NOW_MS)?;
    Ok(publish.topic.to_owned())
}

#[test]
fn a_datagram_is_one_plain_message() {
    let mut client = Client::connected(&[]);
    let plain = publish("a", QoS::AtMostOnce, 0, &[]);
    assert_eq!(receive(&mut client, &plain).unwrap(), "a");
    let twice = [&plain[..], &plain[..]].concat();
    for wrong in [
        &plain[..plain.len() - 1],
        &twice,
        &publish("a", QoS::AtLeastOnce, 1, &[]),
        &publish("a", QoS::AtMostOnce, 0, &[Property::TopicAlias(1)]),
        &ack(Packet::PubAck, 1),
        &connack(false, &[]),
    ] {
        receive(&mut client, wrong).unwrap_err();
    }
}

#[test]
fn messages_are_written_as_datagrams_when_they_fit() {
    let client = Client::connected(&[Property::TopicAliasMaximum(5)]);
    let mut out = BytesMut::new();
    let small = message("a", QoS::AtMostOnce);
    client
        .connection
        .publish_datagram(&small, 100, &mut out)
        .unwrap();
    assert_eq!(out, publish("a", QoS::AtMostOnce, 0, &[]), "without alias");
    let large = Publication {
        payload: &[0; 100],
        ..small
    };
    let written = client.connection.publish_datagram(&large, 100, &mut out);
    assert!(matches!(written, Err(SendError::Encode(_))));
}

/// Messages received on a lost lane are released on any other, and the aliases of that lane are
/// lost with it.
#[test]
fn a_lane_can_end() {
    let mut client = Client::connected(&[]);
    client.publish("a", QoS::ExactlyOnce, 1).unwrap();
    client.feed(&ack(Packet::PubRec, 1)).unwrap();
    client.sent();
    let lane = Lane(4);
    let none = PublishProperties::EMPTY;
    let content = crate::session::Content::of("t", false, &none, b"");
    client.session.receive(lane, id(9), false, content);
    client.session.mark_received(lane, id(9));
    client.connection.lane_closed(&mut client.session, lane);
    let released = client.session.release(Lane::CONTROL, id(9));
    assert!(matches!(released, Some((_, true))));
    let mut out = BytesMut::new();
    client.connection.release_again(id(1), &mut out);
    assert_eq!(out, ack(Packet::PubRel, 1));
}
