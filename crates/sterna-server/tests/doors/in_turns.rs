//! Work that no message is: what is delivered in one turn, and which subscriptions are changed in it.

use bytes::BytesMut;
use sterna_amqp::messaging::{Source, TerminusExpiryPolicy};
use sterna_h3::Content;
use sterna_mqtt::packet::{Publish, SubscribeOptions, encode_subscribe, encode_unsubscribe};
use sterna_mqtt::{Packet, PacketId, Properties, QoS, Version};

use crate::amqp_client::{Client, Start};
use crate::fan_out::{PER_TURN, broker_with, client_at, is_paused, payloads};
use crate::fixture::{Broker, Peer, encode, everybodys, publish};
use crate::h3_client::Client as HttpClient;

const V5: Version = Version::V5;

/// Messages that one session is sent at once, before the next one has its turn.
const AT_ONCE: usize = 256;

fn subscribe(filter: &str) -> BytesMut {
    let mut out = BytesMut::new();
    let filters = [(filter, SubscribeOptions::new(QoS::AtMostOnce))];
    let none = Properties::default();
    encode_subscribe(
        V5,
        PacketId::MIN,
        none,
        filters.into_iter(),
        1_000,
        &mut out,
    )
    .expect("fits");
    out
}

fn unsubscribe(filter: &str) -> BytesMut {
    let mut out = BytesMut::new();
    let none = Properties::default();
    encode_unsubscribe(
        V5,
        PacketId::MIN,
        none,
        [filter].into_iter(),
        1_000,
        &mut out,
    )
    .expect("fits");
    out
}

fn topic_of(packet: &Packet<'_>) -> Option<String> {
    match packet {
        Packet::Publish(message) => Some(message.topic.to_owned()),
        _ => None,
    }
}

#[test]
fn what_waits_for_many_is_delivered_in_turns() {
    const READERS: usize = 20;
    const RETAINED: usize = 100;
    let mut broker = broker_with(&everybodys(), 1);
    let publisher = client_at(&mut broker, 0, 1, "publisher");
    for number in 0..RETAINED {
        let topic = format!("kept/{number:03}");
        let retained = Publish {
            retain: true,
            ..publish(&topic, "x", QoS::AtMostOnce)
        };
        broker.send(publisher, &encode(V5, &Packet::Publish(retained)));
    }
    let readers: Vec<_> = (0..READERS)
        .map(|number| client_at(&mut broker, 0, 9, &format!("reader{number}")))
        .collect();
    broker.end_turn();
    broker.stays_in_turn = true;
    for reader in &readers {
        broker.send(*reader, &subscribe("kept/+"));
    }
    let mut came = vec![Vec::new(); READERS];
    let mut turns = 0;
    while came.iter().any(|came| came.len() < RETAINED) {
        broker.one_turn();
        let mut in_turn = 0;
        for (reader, came) in readers.iter().zip(&mut came) {
            let now: Vec<String> = (broker.packets(*reader, V5, topic_of).into_iter())
                .flatten()
                .collect();
            in_turn += now.len();
            came.extend(now);
        }
        assert!(
            in_turn <= PER_TURN as usize + AT_ONCE,
            "{in_turn} in one turn"
        );
        turns += 1;
        assert!(turns < 1_000, "{came:?}");
    }
    assert!(
        turns >= READERS * RETAINED / (PER_TURN as usize + AT_ONCE),
        "{turns}"
    );
    let all: Vec<String> = (0..RETAINED)
        .map(|number| format!("kept/{number:03}"))
        .collect();
    for mut came in came {
        came.sort();
        assert_eq!(came, all);
    }
}

/// Begins a turn, and changes subscriptions in it without end. The client waits with the rest.
fn churn(broker: &mut Broker, changes: usize) -> Peer {
    let client = client_at(broker, 0, 1, "churn");
    broker.end_turn();
    broker.stays_in_turn = true;
    let packets: Vec<u8> = (0..changes)
        .flat_map(|number| subscribe(&format!("churn/{number}")))
        .collect();
    broker.burst(client, &packets);
    assert!(is_paused(broker, client));
    client
}

#[test]
fn subscriptions_without_end_stop_nobody_else() {
    const CHANGES: usize = 200;
    for shards in [1, 2] {
        let mut broker = broker_with(&everybodys(), shards);
        let (light, few) = (
            client_at(&mut broker, 0, 2, "light"),
            client_at(&mut broker, 0, 3, "few"),
        );
        broker.subscribe(few, V5, "few", QoS::AtMostOnce);
        let other = client_at(&mut broker, 0, 4, "other");
        let client = churn(&mut broker, CHANGES);
        let told = broker.told(client, V5);
        assert!(
            !told.is_empty() && told.len() < CHANGES / 4,
            "{}",
            told.len()
        );
        broker.publish(light, V5, "few", "x", QoS::AtLeastOnce);
        assert!(broker.told(light, V5)[0].starts_with("PUBACK"));
        // The end of a subscription waits as well.
        broker.send(other, &unsubscribe("none"));
        assert!(is_paused(&broker, other));
        broker.end_turn();
        assert_eq!(payloads(&mut broker, few), ["x"]);
        assert!(broker.told(other, V5)[0].starts_with("UNSUBACK"));
        assert_eq!(told.len() + broker.told(client, V5).len(), CHANGES);
        assert!(!is_paused(&broker, client) && !is_paused(&broker, other));
    }
}

#[test]
fn links_and_requests_that_subscribe_wait_for_their_turn() {
    let mut broker = broker_with(&everybodys(), 1);
    let mut amqp = Client::start(&mut broker, Start::new("amqp"));
    let session = amqp.begin(&mut broker);
    let mut http = HttpClient::connect(&mut broker);
    churn(&mut broker, 200);
    let link = amqp.receiver(&mut broker, session, "some", Source::new("some"), 1);
    assert!(!amqp.answers.contains_key(&link));
    let number = http.begin("GET", "/v1/topics/some", &[], Content::Whole(b""));
    http.flush(&mut broker);
    http.read(&mut broker);
    assert!(is_paused(&broker, amqp.peer));
    assert_eq!(http.response(number).status, 0);
    broker.end_turn();
    amqp.turn(&mut broker);
    http.turn(&mut broker);
    assert!(amqp.answers.contains_key(&link));
    assert_ne!(http.response(number).status, 0);
}

/// The transport asks before it tells of another end, and what is heavy waits behind the ends of many links.
#[test]
fn ends_of_many_links_leave_the_rest_to_the_next_turn() {
    const LINKS: usize = 20;
    let mut broker = broker_with(&everybodys(), 1);
    let other = client_at(&mut broker, 0, 4, "other");
    for (links, waits) in [(1, false), (LINKS, true)] {
        let mut amqp = Client::start(&mut broker, Start::new("amqp"));
        let session = amqp.begin(&mut broker);
        for number in 0..links {
            let source = Source {
                expiry_policy: TerminusExpiryPolicy::Never,
                ..Source::new("some")
            };
            amqp.receiver(&mut broker, session, &number.to_string(), source, 1);
        }
        broker.end_turn();
        broker.stays_in_turn = true;
        amqp.cut(&mut broker);
        broker.send(other, &unsubscribe("none"));
        assert_eq!(is_paused(&broker, other), waits, "{links}");
        broker.end_turn();
        assert!(broker.told(other, V5)[0].starts_with("UNSUBACK"));
        assert!(!is_paused(&broker, other));
    }
}
