//! What a client may use, by who it is: connections, sessions, subscriptions, and how fast it may publish.

use sterna_amqp::messaging::Source;
use sterna_h3::Features;
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Packet, PublishProperties, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::authorization::Subject;
use sterna_server::config::{self, Config};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::identity::world::guarded;

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

/// Connects, publishes and goes, as often as it likes: the user has its burst and what it may owe, once.
#[test]
fn who_connects_again_and_again_owes_no_more_than_it_may() {
    for config in [
        "messages_per_s = 10",
        "messages_per_s = 10\nexceeded = 'refuse'",
    ] {
        for version in [V5, V311] {
            let mut broker = Broker::with(&limited(config), 2);
            let reader = broker.client(V5, "reader");
            broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
            let (good, _) = connect(&mut broker, 0, version, "good");
            broker.publish(good, version, "t", "x", QoS::AtMostOnce);
            let (hog, _) = connect(&mut broker, 1, version, "hog");
            for _ in 0..2_000 {
                broker.publish(hog, version, "t", "x", QoS::AtMostOnce);
            }
            let refuses = config.contains("refuse") && version == V5;
            let most = if refuses { 10 } else { 310 };
            assert_eq!(
                broker.told(reader, V5).len(),
                most,
                "half of what may be owed"
            );
            broker.publish(good, version, "t", "x", QoS::AtMostOnce);
            let came = broker.told(reader, V5).len();
            assert_eq!(came, usize::from(!refuses), "the rest is for others");
            for _ in 0..20 {
                let (peer, _) = connect(&mut broker, 1, version, "again");
                for _ in 0..500 {
                    broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
                }
                broker.cut(peer);
            }
            let came = broker.told(reader, V5).len() + most;
            assert!(came <= 10 + 600, "{config} {version:?}: {came}");
            broker.advance(60_001);
            assert!(!is_paused(&broker, good) && !is_paused(&broker, hog));
        }
    }
}

#[test]
fn who_owes_too_much_is_told_where_it_can_be() {
    let mut broker = Broker::with(&limited("messages_per_s = 1"), 1);
    let publish = |broker: &mut Broker, peer, version, packet_id| {
        let mut publish = publish("t", "x", QoS::AtLeastOnce);
        publish.packet_id = sterna_mqtt::PacketId::new(packet_id);
        broker.packet(peer, version, &Packet::Publish(publish));
    };
    let (new, _) = connect(&mut broker, 0, V5, "new");
    let (old, _) = connect(&mut broker, 0, V311, "old");
    publish(&mut broker, old, V311, 99);
    assert_eq!(broker.told(old, V311).len(), 1);
    let said: Vec<String> = (1..=40)
        .flat_map(|packet_id| {
            publish(&mut broker, new, V5, packet_id);
            broker.told(new, V5)
        })
        .collect();
    let refused = said.iter().filter(|said| said.contains("uota")).count();
    assert_eq!(refused, 10, "all but half of what may be owed: {said:?}");
    for packet_id in 1..=40 {
        publish(&mut broker, old, V311, packet_id);
    }
    let told = broker.told(old, V311);
    assert!(broker.is_closed(old), "an acknowledgement would be a lie");
    assert_eq!(told.len(), 1, "what it did not owe itself yet: {told:?}");
}

#[test]
fn the_first_message_of_a_new_connection_waits_behind_what_the_user_owes() {
    for version in [V5, V311] {
        let mut broker = Broker::with(&limited("messages_per_s = 10"), 2);
        let reader = broker.client(V5, "reader");
        broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
        let (peer, _) = connect(&mut broker, 0, version, "a");
        for _ in 0..60 {
            broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
        }
        broker.cut(peer);
        assert_eq!(broker.told(reader, V5).len(), 60);
        let (peer, _) = connect(&mut broker, 1, version, "a");
        broker.subscribe(peer, version, "else", QoS::AtMostOnce);
        assert!(!is_paused(&broker, peer), "who only reads does not wait");
        broker.publish(peer, version, "t", "y", QoS::AtMostOnce);
        broker.publish(peer, version, "t", "z", QoS::AtMostOnce);
        let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(0));
        let session = amqp.begin(&mut broker);
        let link = amqp.sender(&mut broker, session, "t");
        amqp.send(&mut broker, link, 1, "amqp");
        broker.advance(4_900);
        amqp.turn(&mut broker);
        assert!(is_paused(&broker, peer) && amqp.outcomes().is_empty());
        assert!(broker.told(reader, V5).is_empty());
        broker.advance(200);
        amqp.turn(&mut broker);
        let mut told = broker.told(reader, V5);
        told.sort();
        assert_eq!(told, ["PUBLISH0 t=amqp", "PUBLISH0 t=y", "PUBLISH0 t=z"]);
        let outcomes = amqp.outcomes();
        assert!(outcomes[0].1.contains("ccepted"), "{outcomes:?}");
    }
}

#[test]
fn a_reload_that_raises_a_limit_frees_who_is_paused() {
    let load = |limit: &str| Policy::load(&limited(limit)).expect("a policy");
    for (low, high) in [
        ("messages_per_s = 1", "messages_per_s = 1000"),
        ("bytes_per_s = 1", "bytes_per_s = 100000"),
    ] {
        let mut broker = Broker::with(&limited(low), 2);
        let (first, _) = connect(&mut broker, 0, V5, "a");
        let (second, _) = connect(&mut broker, 1, V311, "b");
        for _ in 0..20 {
            broker.publish(first, V5, "t", "x", QoS::AtMostOnce);
            broker.publish(second, V311, "t", "x", QoS::AtMostOnce);
        }
        assert!(is_paused(&broker, first) && is_paused(&broker, second));
        broker.apply(load(high));
        broker.advance(50);
        assert!(
            !is_paused(&broker, first) && !is_paused(&broker, second),
            "{low}"
        );
        let (new, _) = connect(&mut broker, 1, V5, "c");
        broker.publish(new, V5, "t", "x", QoS::AtMostOnce);
        assert!(!is_paused(&broker, new), "{low}");
    }
    // Another limit that is the same frees nobody.
    let mut broker = Broker::with(&limited("messages_per_s = 1"), 1);
    let (peer, _) = connect(&mut broker, 0, V5, "a");
    for _ in 0..20 {
        broker.publish(peer, V5, "t", "x", QoS::AtMostOnce);
    }
    broker.apply(load("messages_per_s = 1\nsubscriptions = 7"));
    broker.advance(18_000);
    assert!(is_paused(&broker, peer));
    broker.advance(1_001);
    assert!(!is_paused(&broker, peer));
}

#[test]
fn what_a_connection_took_in_advance_is_given_back() {
    let admitted = |broker: &mut Broker| {
        let (peer, _) = connect(broker, 0, V5, "all");
        let mut admitted = 0;
        for _ in 0..120 {
            broker.packet(
                peer,
                V5,
                &Packet::Publish(publish("t", "x", QoS::AtLeastOnce)),
            );
            admitted += usize::from(!broker.told(peer, V5).join(" ").contains("uota"));
        }
        admitted
    };
    let config = limited("messages_per_s = 100\nexceeded = 'refuse'");
    // By its end.
    let mut broker = Broker::with(&config, 1);
    for _ in 0..3 {
        let (peer, _) = connect(&mut broker, 0, V5, "short");
        broker.publish(peer, V5, "t", "x", QoS::AtMostOnce);
        broker.cut(peer);
    }
    assert_eq!(admitted(&mut broker), 97);
    // By a reload.
    let mut broker = Broker::with(&config, 1);
    let (peer, _) = connect(&mut broker, 0, V5, "long");
    for _ in 0..3 {
        broker.publish(peer, V5, "t", "x", QoS::AtMostOnce);
        broker.apply(Policy::load(&config).expect("a policy"));
    }
    assert_eq!(admitted(&mut broker), 97);
}

/// Of HTTP, when another user of the connection has its turn.
#[test]
fn what_a_user_took_in_advance_is_given_back_when_another_asks() {
    let (_directory, config) = shared("messages_per_s = 100\nexceeded = 'refuse'");
    let mut broker = Broker::with(&config, 1);
    for _ in 0..3 {
        let mut http = HttpClient::connect(&mut broker);
        // What is open keeps her seat.
        ask((&mut broker, &mut http), "ann", "GET", "/v1/topics/a");
        for user in ["ann", "bob"] {
            ask((&mut broker, &mut http), user, "POST", "/v1/topics/t");
        }
    }
    let mut http = HttpClient::connect(&mut broker);
    let mut admitted = 0;
    for _ in 0..120 {
        let post = ask((&mut broker, &mut http), "ann", "POST", "/v1/topics/t");
        admitted += usize::from(http.response(post).status == 204);
    }
    assert_eq!(admitted, 97);
}

/// A will is paid when its client comes in, so none is lost to the rate, and reconnecting is no way around it.
#[test]
fn a_will_counts_as_a_message_of_its_user() {
    for version in [V5, V311] {
        let config = limited("messages_per_s = 1\ndebt_s = 5");
        let mut broker = Broker::with(&config, 2);
        let reader = broker.client(V5, "reader");
        broker.subscribe(reader, V5, "will", QoS::AtLeastOnce);
        let leave = |broker: &mut Broker, number: usize| {
            let peer = broker.open_on(number % 2, TransportKind::Tcp, Vec::new());
            let name = format!("c{number}");
            let mut connect = plain(version, &name);
            connect.will = Some(Will {
                topic: "will",
                payload: b"gone",
                qos: QoS::AtLeastOnce,
                retain: false,
                properties: PublishProperties::EMPTY,
            });
            broker.packet(peer, version, &Packet::Connect(connect));
            let told = broker.told(peer, version).join(" ");
            if !broker.is_closed(peer) {
                broker.cut(peer);
            }
            told == "CONNACK Success"
        };
        let came = (0..20).filter(|number| leave(&mut broker, *number)).count();
        assert_eq!(came, 6, "the burst, and what may be owed");
        assert_eq!(broker.told(reader, V5).len(), 6, "each is published");
        broker.advance(2_000);
        let came = (20..30)
            .filter(|number| leave(&mut broker, *number))
            .count();
        assert_eq!(came, 2);
        // What is owed is waited for by the next message.
        let (peer, _) = connect(&mut broker, 0, version, "publisher");
        broker.publish(peer, version, "t", "x", QoS::AtMostOnce);
        assert!(is_paused(&broker, peer));
    }
}

#[test]
fn a_reload_that_raises_a_limit_reads_a_client_of_http_again() {
    let mut broker = Broker::with(&limited("messages_per_s = 1"), 1);
    let mut http = HttpClient::connect(&mut broker);
    for _ in 0..5 {
        http.request(&mut broker, "POST", "/v1/topics/t", &[], b"x");
    }
    assert!(is_paused(&broker, http.peer));
    let config = limited("messages_per_s = 1000");
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(!is_paused(&broker, http.peer));
    let stream = http.request(&mut broker, "POST", "/v1/topics/t", &[], b"x");
    assert_eq!(http.response(stream).status, 204);
    broker.advance(50);
    assert!(!is_paused(&broker, http.peer));
}

/// Two users, of whom one has limits, on connections of HTTP.
fn shared(limit: &str) -> (tempfile::TempDir, Config) {
    let (directory, mut config) = guarded(|config| config.authorization.default_allow = true);
    config.authorization.rules.clear();
    config.authorization.limits = limited(&format!("users = [\"ann\"]\n{limit}"))
        .authorization
        .limits;
    (directory, config)
}

/// A request of a user, by the token.
fn ask(
    (broker, http): (&mut Broker, &mut HttpClient),
    user: &str,
    method: &str,
    path: &str,
) -> u64 {
    let token = format!("Bearer {user}-token");
    let fields = [
        ("authorization", token.as_str()),
        ("accept", "text/event-stream"),
    ];
    http.request(broker, method, path, &fields, b"")
}

/// A user keeps the seat of a connection while something of the user is open there, whoever else asks on it, and
/// no longer.
#[test]
fn other_users_of_a_connection_do_not_give_a_seat_back() {
    let (_directory, config) = shared("connections = 1");
    let mut broker = Broker::with(&config, 2);
    let mut first = HttpClient::connect(&mut broker);
    let mut second = HttpClient::connect_on(&mut broker, 1, Features::default(), Vec::new());
    let open = ask((&mut broker, &mut first), "ann", "GET", "/v1/topics/a");
    assert_eq!(first.response(open).status, 200);
    let post = ask((&mut broker, &mut first), "bob", "POST", "/v1/topics/t");
    assert_eq!(first.response(post).status, 204);
    let refused = ask((&mut broker, &mut second), "ann", "GET", "/v1/topics/a");
    assert_eq!(second.response(refused).status, 429);
    // On her own connection she is in.
    let again = ask((&mut broker, &mut first), "ann", "GET", "/v1/topics/b");
    assert_eq!(first.response(again).status, 200);
    let post = ask((&mut broker, &mut first), "bob", "POST", "/v1/topics/t");
    assert_eq!(first.response(post).status, 204);
    for stream in [open, again] {
        broker.reset(first.peer, sterna_net::StreamId(stream), 0x10c);
        broker.stop_reading(first.peer, sterna_net::StreamId(stream));
    }
    let free = ask((&mut broker, &mut second), "ann", "GET", "/v1/topics/a");
    assert_eq!(second.response(free).status, 200);
}

/// Another user's request does not end the pause of who has published too fast.
#[test]
fn other_users_of_a_connection_do_not_lift_a_pause() {
    let (_directory, config) = shared("messages_per_s = 1");
    let mut broker = Broker::with(&config, 1);
    let mut http = HttpClient::connect(&mut broker);
    for _ in 0..4 {
        for user in ["ann", "bob"] {
            let post = ask((&mut broker, &mut http), user, "POST", "/v1/topics/t");
            assert_eq!(http.response(post).status, 204);
        }
    }
    assert!(is_paused(&broker, http.peer));
    broker.advance(1_500);
    assert!(is_paused(&broker, http.peer));
    broker.advance(5_000);
    assert!(!is_paused(&broker, http.peer));
}

/// A user's limit of subscriptions counts the user's own.
#[test]
fn subscriptions_are_counted_by_user() {
    let (_directory, config) = shared("subscriptions = 1");
    let mut broker = Broker::with(&config, 1);
    let mut http = HttpClient::connect(&mut broker);
    for (user, status) in [("bob", 200), ("bob", 200), ("ann", 200), ("ann", 429)] {
        let open = ask((&mut broker, &mut http), user, "GET", "/v1/topics/a");
        assert_eq!(http.response(open).status, status, "{user}");
    }
}
