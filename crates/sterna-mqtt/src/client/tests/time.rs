//! Keep alive, and lanes.

use super::*;

/// [MQTT-3.1.2-20] [MQTT311-3.1.2-23] a PINGREQ if no other packet is sent; [MQTT-3.1.2-21] in the
/// server's interval.
#[test]
fn pings_keep_the_connection() {
    let mut client = Client::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
    assert_eq!(
        client.connection.deadline_ms(),
        None,
        "not before the CONNACK"
    );
    client
        .feed(&connack(false, &[Property::ServerKeepAlive(20)]))
        .unwrap();
    assert_eq!(client.connection.deadline_ms(), Some(NOW_MS + 20_000));
    client.connection.heard(NOW_MS + 5_000);
    client.connection.sent(NOW_MS + 5_000);
    let due_ms = NOW_MS + 25_000;
    assert_eq!(client.connection.deadline_ms(), Some(due_ms));
    client
        .connection
        .on_timeout(due_ms - 1, &mut client.out)
        .unwrap();
    assert!(client.sent().is_empty());
    client
        .connection
        .on_timeout(due_ms, &mut client.out)
        .unwrap();
    assert_eq!(client.sent(), ["PingReq"]);
    assert_eq!(client.connection.deadline_ms(), Some(due_ms + 10_000));
    client
        .feed(&bytes_of(&Packet::PingResp, Version::V5))
        .unwrap();
    client.connection.heard(due_ms);
    assert_eq!(client.connection.deadline_ms(), Some(due_ms + 20_000));
}

#[test]
fn a_silent_server_is_given_up() {
    let mut client = Client::connected(&[]);
    client
        .connection
        .on_timeout(NOW_MS + 60_000, &mut client.out)
        .unwrap();
    // Anything that arrives shows that the server lives, though its answer is stuck behind.
    client.connection.heard(NOW_MS + 80_000);
    client
        .connection
        .on_timeout(NOW_MS + 90_000, &mut client.out)
        .unwrap();
    let dead = client
        .connection
        .on_timeout(NOW_MS + 110_000, &mut client.out)
        .unwrap_err();
    assert_eq!(
        (dead.reason, dead.answer),
        (ReasonCode::KeepAliveTimeout, Answer::Nothing)
    );
    client.sent();
    client.connection.violation(&dead, &mut client.out);
    assert!(client.sent().is_empty() && client.connection.is_closed());
}

/// A publisher of QoS 0 hears nothing, and what it sends vanishes in a dead connection: a PINGREQ asks.
#[test]
fn a_silent_server_is_given_up_while_the_client_sends() {
    let mut client = Client::connected(&[]);
    let mut pinged = Vec::new();
    let dead = loop {
        let now_ms = client.connection.deadline_ms().unwrap();
        // A message every ten seconds leaves.
        client.connection.sent(now_ms - now_ms % 10_000);
        if let Err(dead) = client.connection.on_timeout(now_ms, &mut client.out) {
            break (now_ms, dead.reason);
        }
        if client.sent() == ["PingReq"] {
            pinged.push(now_ms);
        }
        assert!(now_ms < NOW_MS + 200_000, "{pinged:?}");
    };
    assert_eq!(pinged, [NOW_MS + 60_000]);
    assert_eq!(dead, (NOW_MS + 90_000, ReasonCode::KeepAliveTimeout));
}

/// A server that answers is asked once in each interval.
#[test]
fn a_publisher_that_hears_nothing_asks_once_per_interval() {
    let mut client = Client::connected(&[]);
    let mut pings = 0;
    for s in 1..=600 {
        let now_ms = NOW_MS + s * 1_000;
        if s % 10 == 0 {
            client.connection.sent(now_ms);
        }
        client
            .connection
            .on_timeout(now_ms, &mut client.out)
            .unwrap();
        if client.sent() == ["PingReq"] {
            pings += 1;
            let answer = bytes_of(&Packet::PingResp, Version::V5);
            client.feed(&answer).unwrap();
            client.connection.heard(now_ms);
        }
    }
    assert_eq!(pings, 10);
}

/// QUIC finds out by itself that the server is gone: packets for that are not needed.
#[test]
fn over_quic_only_silence_of_this_end_asks_for_a_ping() {
    let mut client = Client::connected(&[]);
    client.connection.leave_liveness_to_transport();
    client.connection.sent(NOW_MS + 50_000);
    let due_ms = NOW_MS + 110_000;
    assert_eq!(client.connection.deadline_ms(), Some(due_ms));
    // [MQTT-3.1.2-20] holds, and an answer is expected then.
    client
        .connection
        .on_timeout(due_ms, &mut client.out)
        .unwrap();
    assert_eq!(client.sent(), ["PingReq"]);
    assert_eq!(client.connection.deadline_ms(), Some(due_ms + 30_000));
}

/// [MQTT-3.1.2-20] while the answer to a PINGREQ is stuck behind a large message.
#[test]
fn a_ping_without_an_answer_is_followed_by_another_while_bytes_come() {
    let mut client = Client::connected(&[]);
    client
        .connection
        .on_timeout(NOW_MS + 60_000, &mut client.out)
        .unwrap();
    assert_eq!(client.sent(), ["PingReq"]);
    client.connection.heard(NOW_MS + 119_000);
    client
        .connection
        .on_timeout(NOW_MS + 120_000, &mut client.out)
        .unwrap();
    assert_eq!(client.sent(), ["PingReq"]);
}

#[test]
fn keep_alive_can_be_off() {
    let mut client = Client::connected(&[Property::ServerKeepAlive(0)]);
    assert_eq!(client.connection.deadline_ms(), None);
    client
        .connection
        .on_timeout(u64::MAX, &mut client.out)
        .unwrap();
    assert!(client.sent().is_empty());
}

/// Acknowledgements go where the message came from; a QUIC stream that only the server writes is
/// answered on the control stream.
#[test]
fn lanes_are_answered_on_themselves() {
    struct Lanes(Vec<(Lane, BytesMut)>);
    impl crate::LaneWriter for Lanes {
        fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
            let at = self
                .0
                .iter()
                .position(|(known, _)| *known == lane)
                .unwrap_or_else(|| {
                    self.0.push((lane, BytesMut::new()));
                    self.0.len() - 1
                });
            &mut self.0[at].1
        }
    }
    let mut client = Client::connected(&[]);
    let mut lanes = Lanes(Vec::new());
    for (lane, packet_id) in [(Lane(4), 1), (Lane(3), 2)] {
        let packet = Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "a",
            packet_id: PacketId::new(packet_id),
            properties: PublishProperties::EMPTY,
            payload: b"",
        });
        let Client {
            connection,
            session,
            ..
        } = &mut client;
        connection
            .handle(session, lane, packet, NOW_MS, &mut lanes)
            .unwrap();
        connection.acknowledge(session, id(packet_id), ReasonCode::Success, &mut lanes);
    }
    let written: Vec<_> = lanes
        .0
        .iter()
        .map(|(lane, bytes)| (lane.0, bytes.len()))
        .collect();
    assert_eq!(written, [(4, 4), (0, 4)]);
}
