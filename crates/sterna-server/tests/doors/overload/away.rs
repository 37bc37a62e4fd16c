//! Sessions that are away with messages that were sent to them: what becomes of these where memory is short.

use sterna_broker::Limits;
use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, PacketId, Property, QoS};
use sterna_server::Stage;

use super::{V5, config, resident};
use crate::fixture::{Broker, Peer, block, plain};
use crate::overload::store::Held;

const MESSAGES: usize = 200;

fn reader(broker: &mut Broker) -> Peer {
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, "reader")
    };
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// The payloads, identifiers and DUP flags of messages that have come.
fn came(broker: &mut Broker, peer: Peer) -> Vec<(String, PacketId, bool)> {
    let messages = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => {
            let text = String::from_utf8_lossy(publish.payload).into_owned();
            Some((text, publish.packet_id.expect("an identifier"), publish.dup))
        }
        _ => None,
    });
    messages.into_iter().flatten().collect()
}

/// Answers with PUBACK (`0x40`), PUBREC (`0x50`) or PUBCOMP (`0x70`).
fn answer(broker: &mut Broker, peer: Peer, first_byte: u8, id: PacketId) {
    let [high, low] = id.get().to_be_bytes();
    broker.send(peer, &[first_byte, 2, high, low]);
}

fn unsettled(broker: &Broker) -> usize {
    let (sessions, _) = broker.sessions(0);
    sessions
        .iter()
        .map(|session| session.queue.unacknowledged)
        .sum()
}

/// What was sent is read in the log again, and comes as it would have: in its order, by its identifiers, and once.
#[test]
fn what_was_sent_to_a_reader_that_is_away_leaves_memory() {
    for (qos, restarts) in [
        (QoS::AtLeastOnce, false),
        (QoS::ExactlyOnce, false),
        (QoS::AtLeastOnce, true),
        (QoS::ExactlyOnce, true),
    ] {
        let store = Held::new();
        let broker_of =
            || Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
        let mut broker = broker_of();
        let first = reader(&mut broker);
        broker.take(first);
        broker.subscribe(first, V5, "t", qos);
        let publisher = broker.client(V5, "publisher");
        for number in 0..MESSAGES {
            broker.publish(publisher, V5, "t", &number.to_string(), qos);
            // PUBREL of the identifier that it uses for all, which at QoS 1 means nothing.
            broker.send(publisher, &[0x62, 2, 0, 7]);
        }
        let sent = came(&mut broker, first);
        assert_eq!(sent.len(), MESSAGES);
        // Some are settled, out of order; some are in the client's hands.
        let (settled, taken) = ([3, 7, 100], [0, 5]);
        for number in settled {
            let id = sent[number].1;
            if qos == QoS::ExactlyOnce {
                answer(&mut broker, first, 0x50, id);
                answer(&mut broker, first, 0x70, id);
            } else {
                answer(&mut broker, first, 0x40, id);
            }
        }
        if qos == QoS::ExactlyOnce {
            for number in taken {
                answer(&mut broker, first, 0x50, sent[number].1);
            }
        }
        broker.cut(first);
        assert_eq!(unsettled(&broker), MESSAGES - settled.len());
        resident(&mut broker, 85, Stage::MoveToLog);
        broker.advance(5_000);
        let kept = if qos == QoS::ExactlyOnce {
            taken.len()
        } else {
            0
        };
        assert_eq!(unsettled(&broker), kept, "they are in the log");
        resident(&mut broker, 10, Stage::Normal);
        if restarts {
            broker.advance(60_000);
            broker = broker_of();
        }
        let second = reader(&mut broker);
        let mut rest = came(&mut broker, second);
        let is_done = |number: &usize| {
            settled.contains(number) || qos == QoS::ExactlyOnce && taken.contains(number)
        };
        let expected: Vec<_> = (sent.iter().enumerate())
            .filter(|(number, _)| !is_done(number))
            .map(|(_, (text, id, _))| (text.clone(), *id, true))
            .collect();
        while rest.len() < expected.len() {
            broker.advance(10);
            let more = came(&mut broker, second);
            assert!(!more.is_empty(), "{} came", rest.len());
            rest.extend(more);
        }
        assert_eq!(rest, expected, "{qos:?}, restarts: {restarts}");
    }
}

/// Few messages may be large.
#[test]
fn a_few_large_messages_leave_memory_as_well() {
    let store = Held::new();
    let mut broker = Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
    let first = reader(&mut broker);
    broker.take(first);
    broker.subscribe(first, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "publisher");
    let large = |number: usize| format!("{number}{}", "x".repeat(100_000));
    for number in 0..3 {
        broker.publish(publisher, V5, "t", &large(number), QoS::AtLeastOnce);
    }
    assert_eq!(came(&mut broker, first).len(), 3);
    broker.cut(first);
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(5_000);
    assert_eq!(unsettled(&broker), 0);
    resident(&mut broker, 10, Stage::Normal);
    let second = reader(&mut broker);
    let texts: Vec<String> = (came(&mut broker, second).into_iter())
        .map(|(text, ..)| text)
        .collect();
    assert_eq!(texts, (0..3).map(large).collect::<Vec<_>>());
}
