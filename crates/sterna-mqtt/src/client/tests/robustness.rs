//! With any packets of a server, the client neither panics nor forgets a limit.

use proptest::prelude::*;

use super::*;

/// Packets that a server could mean, and impossible ones.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let acknowledgement = (4..8_u8, 1..6_u16, any::<bool>()).prop_map(|(kind, id, known)| {
        let flags = if kind == 6 { 2 } else { 0 };
        let [high, low] = id.to_be_bytes();
        let reason = if known { 0 } else { 0x80 };
        vec![kind << 4 | flags, 3, high, low, reason]
    });
    let message = (0..3_u8, 1..6_u8, any::<bool>(), 0..4_u8).prop_map(|(qos, id, dup, alias)| {
        let mut body = vec![0, 1, b't'];
        if qos > 0 {
            body.extend([0, id]);
        }
        body.extend(if alias == 0 {
            vec![0]
        } else {
            vec![3, 35, 0, alias]
        });
        let flags = qos << 1 | if dup && qos > 0 { 8 } else { 0 };
        [vec![0x30 | flags, body.len() as u8], body].concat()
    });
    let answer = (1..6_u8, any::<bool>(), 1..3_usize).prop_map(|(id, suback, codes)| {
        let mut bytes = vec![if suback { 0x90 } else { 0xB0 }, 3 + codes as u8, 0, id, 0];
        bytes.resize(bytes.len() + codes, 0);
        bytes
    });
    prop_oneof![
        4 => acknowledgement,
        4 => message,
        1 => answer,
        1 => (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(first, body)| [vec![first, body.len() as u8], body].concat()),
        1 => Just(vec![0xD0, 0]),
        1 => Just(vec![0x20, 3, 0, 0, 0]),
    ]
}

proptest! {
    #[test]
    fn nothing_a_server_sends_breaks_the_client(
        packets in proptest::collection::vec((packet(), 0..4_u8), 0..60),
        welcome in any::<bool>(),
    ) {
        let maximum = 3;
        let properties = block(&[Property::ReceiveMaximum(4), Property::TopicAliasMaximum(2)]);
        let mut client = Client::open(&connect(&properties), true, MqttSession::new());
        if welcome {
            client.feed(&connack(false, &[Property::ReceiveMaximum(maximum)])).unwrap();
        }
        for (tag, (packet, deed)) in packets.into_iter().enumerate() {
            let before = client.connection.is_closed();
            let mut framer = Framer::new();
            let mut input = &packet[..];
            let Ok(Some(frame)) = framer.next(&mut input, MAX_PACKET_BYTES) else { continue };
            let Client { connection, session, out } = &mut client;
            if let Err(violation) = connection.receive(session, Lane::CONTROL, &frame, NOW_MS, out) {
                connection.violation(&violation, out);
                prop_assert!(connection.is_closed());
            }
            let tag = tag as u64;
            let _ = match deed {
                0 => client.publish("a", QoS::AtLeastOnce, tag),
                1 => client.publish("a", QoS::ExactlyOnce, tag),
                2 => client.subscribe(&["a"], tag).map(|_| ()),
                _ => {
                    for id in 1..6 {
                        client.acknowledge(id, ReasonCode::Success);
                    }
                    Ok(())
                }
            };
            // Early messages may be more than the server turns out to take.
            let limit = client.connection.limits().receive_maximum.max(EARLY_PUBLISHES);
            prop_assert!(client.session.in_flight() <= usize::from(limit));
            prop_assert!(client.session.incoming_in_flight() <= 5, "one above the maximum ends it");
            if before {
                prop_assert!(client.out.is_empty(), "nothing is sent after the end");
            }
            client.out.clear();
        }
    }
}
