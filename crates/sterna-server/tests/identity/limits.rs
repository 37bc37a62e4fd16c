//! What a client may use, by who it is: connections, sessions, subscriptions, and how fast it may publish.

use sterna_amqp::messaging::Source;
use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::authorization::Subject;
use sterna_server::config::{self, Config};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;

const V5: Version = Version::V5;
const V311: Version = Version::V311;

fn limited(limit: &str) -> Config {
    let text = format!("[[authorization.limit]]\n{limit}\n");
    let config = config::parse("x", &text).expect("a configuration");
    config.check().expect("a configuration without faults");
    config
}

/// What a client that connects is told.
fn connect(broker: &mut Broker, shard: usize, version: Version, client: &str) -> (Peer, String) {
    let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
    broker.packet(peer, version, &Packet::Connect(plain(version, client)));
    (peer, broker.told(peer, version).join(" "))
}

fn is_paused(broker: &Broker, peer: Peer) -> bool {
    broker.wires[peer.shard].paused.contains(&peer.id)
}

#[test]
fn a_user_has_so_many_connections_over_all_doors_and_shards() {
    let mut broker = Broker::with(&limited("connections = 3"), 2);
    let (first, told) = connect(&mut broker, 0, V5, "a");
    assert_eq!(told, "CONNACK Success");
    let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(1));
    amqp.begin(&mut broker);
    assert_eq!(amqp.condition(), None);
    let mut http = HttpClient::connect(&mut broker);
    let stream = http.request(&mut broker, "POST", "/v1/topics/t", &[], b"x");
    assert_eq!(http.response(stream).status, 204);

    let (_, told) = connect(&mut broker, 1, V5, "b");
    assert!(
        told.contains("QuotaExceeded") || told.contains("Quota exceeded"),
        "{told}"
    );
    let (_, told) = connect(&mut broker, 1, V311, "b");
    assert!(
        told.starts_with("CONNACK") && !told.contains("Success"),
        "{told}"
    );
    let mut more = AmqpClient::start(&mut broker, Start::new("d").on(0));
    more.turn(&mut broker);
    assert_eq!(more.condition().as_deref(), Some("amqp:connection:forced"));
    let mut more = HttpClient::connect(&mut broker);
    let stream = more.request(&mut broker, "POST", "/v1/topics/t", &[], b"x");
    let response = more.response(stream);
    assert_eq!(response.status, 429);
    assert!(response.field("retry-after").is_some());

    // Who comes back takes its own place, wherever it is; who goes makes room.
    let (_, told) = connect(&mut broker, 1, V5, "a");
    assert_eq!(told, "CONNACK Success");
    assert!(broker.is_closed(first));
    amqp.cut(&mut broker);
    let (_, told) = connect(&mut broker, 0, V5, "b");
    assert_eq!(told, "CONNACK Success");
}

#[test]
fn a_user_has_so_many_sessions_also_while_away() {
    let mut broker = Broker::with(&limited("sessions = 2"), 2);
    let lasting = |broker: &mut Broker, shard: usize, client: &str| {
        let properties = block(&[sterna_mqtt::Property::SessionExpiryInterval(600)]);
        let connect = Connect {
            clean_start: false,
            properties: properties.properties(),
            ..plain(V5, client)
        };
        let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
        broker.packet(peer, V5, &Packet::Connect(connect));
        let told = broker.told(peer, V5).join(" ");
        broker.cut(peer);
        told
    };
    for (shard, client) in [(0, "a"), (1, "b")] {
        assert!(lasting(&mut broker, shard, client).contains("Success"));
    }
    let told = lasting(&mut broker, 0, "c");
    assert!(told.contains("uota"), "{told}");
    let told = lasting(&mut broker, 0, "b");
    assert!(told.contains("Success present"), "{told}");
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("t"), 9);
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:resource-limit-exceeded")
    );
    // The end of one makes room for another.
    broker.advance(601_000);
    assert!(lasting(&mut broker, 1, "c").contains("Success"));
}

#[test]
fn a_client_has_so_many_subscriptions() {
    let mut broker = Broker::with(&limited("subscriptions = 1"), 1);
    let mqtt = broker.client(V5, "m");
    broker.subscribe(mqtt, V5, "a", QoS::AtMostOnce);
    broker.subscribe(mqtt, V5, "a", QoS::AtMostOnce);
    let options = sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce);
    broker.subscribe_with(mqtt, V5, "b", options, &[]);
    assert_eq!(broker.told(mqtt, V5), ["SUBACK 1 0x97"]);
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("a"), 9);
    assert_eq!(amqp.condition(), None);
    amqp.receiver(&mut broker, session, "s", Source::new("b"), 9);
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:resource-limit-exceeded")
    );
    let mut http = HttpClient::connect(&mut broker);
    let first = http.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    assert_eq!(http.response(first).status, 200);
    let second = http.request(&mut broker, "GET", "/v1/topics/b", &[], b"");
    assert_eq!(http.response(second).status, 429);
}

/// At ten messages a second, a hundred take nine seconds after the burst.
#[test]
fn who_publishes_too_fast_is_not_read_for_as_long_as_it_was_too_fast() {
    for version in [V5, V311] {
        let mut broker = Broker::with(&limited("messages_per_s = 10"), 1);
        let reader = broker.client(V5, "reader");
        broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
        let (peer, _) = connect(&mut broker, 0, version, "fast");
        for _ in 0..10 {
            broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
        }
        assert!(!is_paused(&broker, peer), "the burst");
        // They were on their way.
        for _ in 0..90 {
            broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
        }
        assert!(is_paused(&broker, peer));
        assert_eq!(broker.told(reader, V5).len(), 100, "nothing is lost");
        broker.advance(8_900);
        assert!(is_paused(&broker, peer));
        broker.advance(200);
        assert!(!is_paused(&broker, peer), "{version:?}");
        broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
        broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
        assert!(is_paused(&broker, peer), "no burst yet");
    }
}

/// Clients without a name are one user.
#[test]
fn a_rate_is_of_the_user_over_all_connections_doors_and_shards() {
    let mut broker = Broker::with(&limited("messages_per_s = 10"), 2);
    let reader = broker.client(V5, "reader");
    broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
    let (first, _) = connect(&mut broker, 0, V5, "first");
    let (second, _) = connect(&mut broker, 1, V311, "second");
    let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(1));
    let session = amqp.begin(&mut broker);
    let link = amqp.sender(&mut broker, session, "t");
    // Nine of the ten that may come at once, by three doors.
    for number in 0..3 {
        broker.publish(first, V5, "t", "x", QoS::AtMostOnce);
        broker.publish(second, V311, "t", "x", QoS::AtMostOnce);
        amqp.send(&mut broker, link, number, "x");
    }
    assert!(!is_paused(&broker, first) && !is_paused(&broker, second));
    for _ in 0..11 {
        broker.publish(first, V5, "t", "x", QoS::AtMostOnce);
    }
    assert!(is_paused(&broker, first), "until a second has passed");
    assert!(
        !is_paused(&broker, second),
        "it has published nothing since"
    );
    broker.publish(second, V311, "t", "x", QoS::AtMostOnce);
    assert!(is_paused(&broker, second), "behind the other one");
    assert!(!is_paused(&broker, reader), "who reads is read");
    broker.advance(1_001);
    assert!(!is_paused(&broker, first) && is_paused(&broker, second));
    broker.advance(100);
    assert!(!is_paused(&broker, second));
    assert_eq!(broker.told(reader, V5).len(), 21, "nothing is lost");

    // A new connection pays what an older one owes.
    for _ in 0..50 {
        broker.publish(first, V5, "t", "x", QoS::AtMostOnce);
    }
    for peer in [first, second, reader] {
        broker.cut(peer);
    }
    amqp.cut(&mut broker);
    let (again, _) = connect(&mut broker, 1, V5, "again");
    broker.publish(again, V5, "t", "x", QoS::AtMostOnce);
    broker.advance(4_900);
    assert!(is_paused(&broker, again));
    broker.advance(300);
    assert!(!is_paused(&broker, again));
}

#[test]
fn a_rate_that_refuses_refuses_the_user_on_every_shard() {
    let config = limited("messages_per_s = 2\nexceeded = 'refuse'");
    let mut broker = Broker::with(&config, 2);
    let (first, _) = connect(&mut broker, 0, V5, "first");
    let (second, _) = connect(&mut broker, 1, V5, "second");
    let told = |broker: &mut Broker, peer: Peer| {
        broker.packet(
            peer,
            V5,
            &Packet::Publish(publish("t", "x", QoS::AtLeastOnce)),
        );
        broker.told(peer, V5).join(" ")
    };
    for peer in [first, second] {
        let said = told(&mut broker, peer);
        assert!(!said.contains("uota"), "{said}");
    }
    for peer in [first, second] {
        let said = told(&mut broker, peer);
        assert!(said.contains("uota"), "{said}");
    }
    broker.advance(500);
    assert!(!told(&mut broker, second).contains("uota"));
    assert!(told(&mut broker, first).contains("uota"));
}

#[test]
fn bytes_count_by_themselves() {
    let mut broker = Broker::with(&limited("bytes_per_s = 1000\nburst_s = 2"), 1);
    let (peer, _) = connect(&mut broker, 0, V5, "c");
    let payload = "x".repeat(1000);
    broker.publish(peer, V5, "t", &payload, QoS::AtMostOnce);
    broker.publish(peer, V5, "t", &payload, QoS::AtMostOnce);
    assert!(!is_paused(&broker, peer));
    broker.publish(peer, V5, "t", &payload, QoS::AtMostOnce);
    assert!(is_paused(&broker, peer));
    broker.advance(999);
    assert!(is_paused(&broker, peer));
    broker.advance(2);
    assert!(!is_paused(&broker, peer));
}

#[test]
fn a_setting_refuses_instead() {
    let config = limited("messages_per_s = 1\nexceeded = 'refuse'");
    let mut broker = Broker::with(&config, 1);
    let reader = broker.client(V5, "reader");
    broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
    let (peer, _) = connect(&mut broker, 0, V5, "fast");
    for (qos, refusal) in [(QoS::AtLeastOnce, "PUBACK"), (QoS::ExactlyOnce, "PUBREC")] {
        broker.advance(1_000);
        let ok = broker.told(peer, V5);
        broker.packet(
            peer,
            V5,
            &Packet::Publish(publish("t", "x", QoS::AtMostOnce)),
        );
        broker.packet(peer, V5, &Packet::Publish(publish("t", "y", qos)));
        let told = broker.told(peer, V5).join(" ");
        assert!(
            told.contains(refusal) && told.contains("uota"),
            "{ok:?} {told}"
        );
        assert!(!is_paused(&broker, peer));
        assert_eq!(broker.told(reader, V5), ["PUBLISH0 t=x"]);
    }
    // Who cannot be told waits.
    let (old, _) = connect(&mut broker, 0, V311, "old");
    broker.publish(old, V311, "t", "1", QoS::AtMostOnce);
    broker.publish(old, V311, "t", "2", QoS::AtMostOnce);
    assert!(is_paused(&broker, old));
    assert_eq!(broker.told(reader, V5).len(), 2);

    // What one door has taken, the others pay, too.
    broker.advance(10_000);
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let link = amqp.sender(&mut broker, session, "t");
    amqp.send(&mut broker, link, 1, "one");
    amqp.send(&mut broker, link, 2, "two");
    let outcomes = amqp.outcomes();
    assert!(outcomes[0].1.contains("ccepted"), "{outcomes:?}");
    assert!(
        outcomes[1].1.contains("resource-limit-exceeded"),
        "{outcomes:?}"
    );
    broker.advance(10_000);
    let mut http = HttpClient::connect(&mut broker);
    for status in [204, 429] {
        let stream = http.request(&mut broker, "POST", "/v1/topics/t", &[], b"x");
        let response = http.response(stream);
        assert_eq!(response.status, status);
        assert_eq!(response.field("retry-after").is_some(), status == 429);
    }
}

#[test]
fn a_reload_changes_the_limits_of_who_is_there() {
    let mut broker = Broker::with(&Config::default(), 1);
    let (peer, _) = connect(&mut broker, 0, V5, "c");
    let (other, _) = connect(&mut broker, 0, V5, "d");
    let config = limited("messages_per_s = 1\nconnections = 1");
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(!broker.is_closed(peer) && !broker.is_closed(other));
    for _ in 0..2 {
        broker.publish(peer, V5, "t", "x", QoS::AtMostOnce);
    }
    assert!(is_paused(&broker, peer));
    let (_, told) = connect(&mut broker, 0, V5, "e");
    assert!(told.contains("uota"), "{told}");
    broker.apply(Policy::load(&Config::default()).expect("a policy"));
    assert!(!is_paused(&broker, peer));
}

#[test]
fn the_first_limit_that_names_the_user_holds() {
    let text = "[[authorization.group]]\nname = 'gateways'\nusers = ['gw']\n\
                [[authorization.limit]]\ngroups = ['gateways']\nmessages_per_s = 1000\n\
                [[authorization.limit]]\nusers = ['*']\nmessages_per_s = 10\nconnections = 2\n";
    let config = config::parse("x", text).expect("a configuration");
    config.check().expect("no faults");
    let policy = Policy::load(&config).expect("a policy");
    let limit = |user| {
        policy
            .rules
            .limit_of(Subject {
                user,
                ..Subject::default()
            })
            .map(|limit| (limit.messages_per_s, limit.connections))
    };
    assert_eq!(limit(Some("gw")), Some((Some(1000), None)));
    assert_eq!(limit(Some("ann")), Some((Some(10), Some(2))));
    assert_eq!(limit(None), None);
    for wrong in [
        "connections = 1\ngroups = ['none']",
        "messages_per_s = 0",
        "bytes_per_s = 0",
        "burst_s = 0\nconnections = 1",
        "users = ['*']",
    ] {
        let text = format!("[[authorization.limit]]\n{wrong}\n");
        let config = config::parse("x", &text).expect("a configuration");
        assert_eq!(config.check().expect_err(wrong).len(), 1, "{wrong}");
    }
}
