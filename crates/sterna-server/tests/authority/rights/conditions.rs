//! Rules that ask from where a client speaks, who it is beside its name, and what is special in a message.

use sterna_amqp::messaging::Source;
use sterna_mqtt::packet::{Connect, Publish, Will};
use sterna_mqtt::{Packet, PacketId, PublishProperties, QoS, Version};
use sterna_net::{Chunk, StreamId, TransportKind};
use sterna_server::config::{self, Config};
use sterna_server::{Policy, authorization};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, encode, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::rights::overlap::say;

const V5: Version = Version::V5;

/// Only what these rules allow.
fn closed(rules: &str) -> Config {
    let text = format!("[authorization]\ndefault_allow = false\n{rules}");
    let config = config::parse("x", &text).expect("a configuration");
    config.check().expect("a configuration without faults");
    config
}

fn rule(text: &str) -> String {
    format!("[[authorization.rule]]\n{text}\n")
}

/// A client that speaks from an address over a transport.
fn client(broker: &mut Broker, address: [u8; 4], transport: TransportKind, name: &str) -> Peer {
    broker.come_from(address);
    let peer = broker.open_on(0, transport, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(plain(V5, name)));
    assert_eq!(broker.told(peer, V5).len(), 1, "{name} is in");
    peer
}

const INSIDE: [u8; 4] = [10, 0, 0, 7];
const OUTSIDE: [u8; 4] = [192, 0, 2, 7];

#[test]
fn a_publication_is_decided_by_each_condition() {
    let config = closed(
        &[
            "topics = ['in']\naddresses = ['10.0.0.0/8']",
            "topics = ['safe']\ntransports = ['tls', 'quic']",
            "topics = ['once']\nactions = ['publish']\nqos = [1]",
            "topics = ['kept']\nactions = ['publish']\nretain = true",
            "topics = ['loose']\nactions = ['publish']\nretain = false",
            "topics = ['admin']\nadmin = true",
            "topics = ['others']\nadmin = false",
            "topics = ['both']\naddresses = ['10.0.0.7']\ntransports = ['tcp']",
        ]
        .map(rule)
        .concat(),
    );
    let mut broker = Broker::with(&config, 1);
    let near = client(&mut broker, INSIDE, TransportKind::Tcp, "near");
    let far = client(&mut broker, OUTSIDE, TransportKind::Tls, "far");
    let quic = client(&mut broker, OUTSIDE, TransportKind::Quic, "quic");
    for (peer, topic, qos, retain, is_allowed) in [
        (near, "in", 1, false, true),
        (far, "in", 1, false, false),
        (near, "safe", 1, false, false),
        (far, "safe", 1, false, true),
        (quic, "safe", 1, false, true),
        (near, "once", 1, false, true),
        (near, "once", 2, false, false),
        (near, "kept", 1, true, true),
        (near, "kept", 1, false, false),
        (near, "loose", 1, true, false),
        (near, "loose", 1, false, true),
        (near, "admin", 1, false, false),
        (near, "others", 1, false, true),
        (near, "both", 1, false, true),
        (far, "both", 1, false, false),
    ] {
        let packet = Publish {
            retain,
            ..publish(topic, "x", QoS::from_u8(qos).expect("a QoS"))
        };
        broker.packet(peer, V5, &Packet::Publish(packet));
        let told = broker.told(peer, V5).join(" ");
        let is_refused = told.contains("NotAuthorized") || told.contains("Not authorized");
        assert_eq!(!is_refused, is_allowed, "{topic} {qos} {retain}: {told}");
        assert!(told.contains("PUB"), "an answer: {told}");
    }
}

/// The broker remembers the message before, of the same input.
#[test]
fn messages_that_come_together_are_decided_as_if_alone() {
    let config = closed(
        &[
            "topics = ['loose']\nactions = ['publish']\nretain = false",
            "topics = ['once']\nactions = ['publish']\nqos = [1]",
            "topics = ['loose/more']",
        ]
        .map(rule)
        .concat(),
    );
    let mut broker = Broker::with(&config, 1);
    let peer = client(&mut broker, INSIDE, TransportKind::Tcp, "c");
    let messages = [
        ("loose", 1, false, true),
        ("loose", 1, false, true),
        ("loose", 1, true, false),
        ("loose", 1, true, false),
        ("loose", 1, false, true),
        ("loose/less", 1, false, false),
        ("loose/more", 1, false, true),
        ("loosen", 1, false, false),
        ("loosen", 1, false, false),
        ("once", 1, false, true),
        ("once", 2, false, false),
        ("once", 2, false, false),
        ("once", 1, false, true),
    ];
    let mut input = Vec::new();
    for (at, (topic, qos, retain, _)) in (1..).zip(messages) {
        let packet = Publish {
            retain,
            packet_id: PacketId::new(at),
            ..publish(topic, "x", QoS::from_u8(qos).expect("a QoS"))
        };
        input.extend_from_slice(&encode(V5, &Packet::Publish(packet)));
    }
    broker.send(peer, &input);
    let told = broker.told(peer, V5);
    let allowed: Vec<bool> = (told.iter())
        .filter(|answer| answer.starts_with("PUB"))
        .map(|answer| !answer.contains("NotAuthorized") && !answer.contains("Not authorized"))
        .collect();
    assert_eq!(allowed, messages.map(|message| message.3), "{told:?}");
}

#[test]
fn every_door_asks_from_where() {
    let config = closed(&rule("topics = ['in/#']\naddresses = ['10.0.0.0/8']"));
    for (address, is_allowed) in [(INSIDE, true), (OUTSIDE, false)] {
        let mut broker = Broker::with(&config, 2);
        broker.come_from(address);
        let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(1));
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("in/a"), 9);
        amqp.sender(&mut broker, session, "in/a");
        let refused = Some("amqp:unauthorized-access").filter(|_| !is_allowed);
        assert_eq!(amqp.condition().as_deref(), refused, "{address:?}");
        let mut http = HttpClient::connect(&mut broker);
        let stream = http.request(&mut broker, "POST", "/v1/topics/in/a", &[], b"x");
        let status = http.response(stream).status;
        assert_eq!(status == 403, !is_allowed, "{address:?}: {status}");
        // A will is a publication, too.
        let peer = broker.open_on(0, TransportKind::Tcp, Vec::new());
        let will = Will {
            qos: QoS::AtMostOnce,
            retain: false,
            topic: "in/will",
            payload: b"gone",
            properties: PublishProperties::EMPTY,
        };
        let connect = Connect {
            will: Some(will),
            ..plain(V5, "w")
        };
        broker.packet(peer, V5, &Packet::Connect(connect));
        let told = broker.told(peer, V5).join(" ");
        assert_eq!(told.contains("Success"), is_allowed, "{told}");
    }
}

#[test]
fn a_message_of_amqp_is_asked_about_by_itself() {
    let config = closed(&rule("topics = ['once']\nactions = ['publish']\nqos = [0]"));
    let mut broker = Broker::with(&config, 1);
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let link = amqp.sender(&mut broker, session, "once");
    assert_eq!(amqp.condition(), None, "some message may come");
    amqp.send(&mut broker, link, 1, "unsettled");
    let outcomes = amqp.outcomes();
    assert_eq!(outcomes.len(), 1);
    assert!(
        outcomes[0].1.contains("unauthorized-access"),
        "{outcomes:?}"
    );
}

const DOORS: &str = "[[listener]]\nurl = 'mqtt://localhost:1'\nname = 'front'\n[[listener]]\nurl = 'mqtt://localhost:2'\nname = 'back'\n";

/// A listener never gets the rights of another one, also not for what waits for a client that is away.
#[test]
fn each_listener_has_its_own_rights_in_every_protocol() {
    let rules = [
        "topics = ['#']\nlisteners = ['front']",
        "topics = ['web/#']\nlisteners = ['back']",
    ];
    let text = format!(
        "[authorization]\ndefault_allow = false\n{}",
        rules.map(rule).concat()
    );
    let config = config::parse("x", &format!("{text}{DOORS}")).expect("a configuration");
    config.check().expect("a configuration without faults");
    let mut broker = Broker::with(&config, 2);
    let front = client(&mut broker, INSIDE, TransportKind::Tcp, "front");
    broker.listener = 1;
    let back = client(&mut broker, INSIDE, TransportKind::Tcp, "back");
    for (peer, topic, is_allowed) in [
        (front, "valve", true),
        (front, "web/a", true),
        (back, "valve", false),
        (back, "web/a", true),
    ] {
        broker.packet(
            peer,
            V5,
            &Packet::Publish(publish(topic, "x", QoS::AtLeastOnce)),
        );
        let told = broker.told(peer, V5).join(" ");
        assert_eq!(!told.contains("Not"), is_allowed, "{topic}: {told}");
    }
    for (listener, texts) in [(0, &["1"][..]), (1, &[])] {
        broker.listener = listener;
        let mut amqp = AmqpClient::start(&mut broker, Start::new(&format!("c{listener}")).on(1));
        let session = amqp.begin(&mut broker);
        amqp.receiver(&mut broker, session, "r", Source::new("valve"), 9);
        say(&mut broker, front, "valve", "1");
        amqp.turn(&mut broker);
        assert_eq!(amqp.texts(), texts, "AMQP on listener {listener}");
    }
    // Over connections, and shards.
    for comes_to in [0, 1] {
        let lasting = |broker: &mut Broker, shard: usize, listener: u16| {
            let expiry = sterna_mqtt::Property::SessionExpiryInterval(600);
            let properties = crate::fixture::block(&[expiry]);
            let connect = Connect {
                clean_start: false,
                properties: properties.properties(),
                ..plain(V5, "roams")
            };
            broker.listener = listener;
            let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
            broker.packet(peer, V5, &Packet::Connect(connect));
            peer
        };
        let peer = lasting(&mut broker, 0, 0);
        broker.told(peer, V5);
        broker.subscribe(peer, V5, "valve", QoS::AtLeastOnce);
        broker.cut(peer);
        broker.publish(front, V5, "valve", "waits", QoS::AtLeastOnce);
        let peer = lasting(&mut broker, comes_to, 1);
        let told = broker.told(peer, V5);
        assert_eq!(told, ["CONNACK Success present"], "on shard {comes_to}");
        broker.publish(front, V5, "valve", "again", QoS::AtLeastOnce);
        assert!(broker.told(peer, V5).is_empty());
        broker.cut(peer);
    }
}

/// The right to a subscription is the one of the place where its client is now.
#[test]
fn who_moves_or_comes_back_from_elsewhere_is_judged_again() {
    let rules = [
        "topics = ['in/#']\nactions = ['subscribe']\naddresses = ['10.0.0.0/8']",
        "topics = ['in/#']\nactions = ['publish']",
        "topics = ['all']",
    ];
    let config = closed(&rules.map(rule).concat());
    let mut broker = Broker::with(&config, 2);
    let speaker = client(&mut broker, OUTSIDE, TransportKind::Tcp, "speaker");
    let reader = client(&mut broker, INSIDE, TransportKind::Quic, "reader");
    broker.subscribe(reader, V5, "in/a", QoS::AtMostOnce);
    broker.subscribe(reader, V5, "all", QoS::AtMostOnce);
    broker.come_from(INSIDE);
    let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(1));
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("in/a"), 9);
    say(&mut broker, speaker, "in/a", "1");
    assert_eq!(broker.told(reader, V5), ["PUBLISH0 in/a=1"]);
    broker.move_to(reader, OUTSIDE);
    say(&mut broker, speaker, "in/a", "2");
    say(&mut broker, speaker, "all", "3");
    assert_eq!(broker.told(reader, V5), ["PUBLISH0 all=3"]);
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1", "2"], "who stays keeps what it has");

    // Over connections, and shards.
    for comes_to in [0, 1] {
        let lasting = |broker: &mut Broker, shard: usize, address: [u8; 4]| {
            let expiry = sterna_mqtt::Property::SessionExpiryInterval(600);
            let properties = crate::fixture::block(&[expiry]);
            let connect = Connect {
                clean_start: false,
                properties: properties.properties(),
                ..plain(V5, "roams")
            };
            broker.come_from(address);
            let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
            broker.packet(peer, V5, &Packet::Connect(connect));
            peer
        };
        let peer = lasting(&mut broker, 0, INSIDE);
        broker.told(peer, V5);
        broker.subscribe(peer, V5, "in/b", QoS::AtLeastOnce);
        broker.cut(peer);
        broker.publish(speaker, V5, "in/b", "waits", QoS::AtLeastOnce);
        let peer = lasting(&mut broker, comes_to, OUTSIDE);
        let told = broker.told(peer, V5);
        assert_eq!(told, ["CONNACK Success present"], "on shard {comes_to}");
        broker.publish(speaker, V5, "in/b", "again", QoS::AtLeastOnce);
        assert!(broker.told(peer, V5).is_empty());
        broker.cut(peer);
    }
}

#[test]
fn a_reload_judges_connected_clients_by_where_they_are() {
    let mut broker = Broker::with(&Config::default(), 1);
    let near = client(&mut broker, INSIDE, TransportKind::Tcp, "near");
    let far = client(&mut broker, OUTSIDE, TransportKind::Tcp, "far");
    for peer in [near, far] {
        broker.subscribe(peer, V5, "in/a", QoS::AtMostOnce);
        broker.told(peer, V5);
    }
    let config = closed(
        &[
            "topics = ['in/#']\naddresses = ['10.0.0.0/8']",
            "topics = ['in/#']\nactions = ['publish']",
        ]
        .map(rule)
        .concat(),
    );
    broker.apply(Policy::load(&config).expect("a policy"));
    say(&mut broker, far, "in/a", "1");
    assert_eq!(broker.told(near, V5), ["PUBLISH0 in/a=1"]);
    assert!(broker.told(far, V5).is_empty());
}

/// What may not come as early data is not refused: it waits until it can be no replay.
#[test]
fn early_data_that_a_rule_denies_waits_for_the_handshake() {
    for listener in ["all", "idempotent"] {
        let text = format!(
            "[quic]\nearly_data = '{listener}'\n{}{}",
            rule("effect = 'deny'\nactions = ['publish']\ntopics = ['late/#']\nearly_data = true"),
            rule("topics = ['#']\nidempotent = true"),
        );
        let config = config::parse("x", &text).expect("a configuration");
        let mut broker = Broker::with(&config, 1);
        let reader = broker.client(V5, "reader");
        broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
        let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
        let early = |broker: &mut Broker, packet: &Packet<'_>| {
            let bytes = encode(V5, packet);
            let chunk = Chunk {
                stream: StreamId::FIRST,
                bytes: &bytes,
                early: true,
                confirmed: false,
            };
            broker.arrive(peer, chunk);
        };
        early(&mut broker, &Packet::Connect(plain(V5, "early")));
        let say = |topic| Packet::Publish(publish(topic, "x", QoS::AtMostOnce));
        early(&mut broker, &say("soon"));
        early(&mut broker, &say("late/a"));
        assert_eq!(broker.told(reader, V5), ["PUBLISH0 soon=x"], "{listener}");
        broker.confirm(peer);
        assert_eq!(broker.told(reader, V5), ["PUBLISH0 late/a=x"], "{listener}");
    }
}

/// The same by HTTP, also for a request whose key makes a repetition harmless. One that another server has
/// forwarded out of early data cannot wait.
#[test]
fn requests_in_early_data_wait_where_a_rule_asks_for_it() {
    for listener in ["all", "idempotent"] {
        let text = format!(
            "[quic]\nearly_data = '{listener}'\n{}",
            rule("effect = 'deny'\nactions = ['publish']\ntopics = ['late/#']\nearly_data = true"),
        );
        let config = config::parse("x", &text).expect("a configuration");
        let mut broker = Broker::with(&config, 1);
        let reader = broker.client(V5, "reader");
        broker.subscribe(reader, V5, "#", QoS::AtMostOnce);
        let mut http = HttpClient::connect(&mut broker);
        http.early = true;
        let path = "/v1/topics/late%2Fa";
        let key = ("idempotency-key", "k");
        for (fields, payload) in [(&[key][..], "keyed"), (&[], "plain")] {
            http.request(&mut broker, "POST", path, fields, payload.as_bytes());
            assert!(broker.told(reader, V5).is_empty(), "{listener} {payload}");
        }
        broker.confirm(http.peer);
        http.early = false;
        http.turn(&mut broker);
        let came = ["PUBLISH0 late/a=keyed", "PUBLISH0 late/a=plain"];
        assert_eq!(broker.told(reader, V5), came, "{listener}");
        let forwarded = [("idempotency-key", "other"), ("early-data", "1")];
        let number = http.request(&mut broker, "POST", path, &forwarded, b"x");
        assert_eq!(http.response(number).status, 425, "{listener}");
        assert!(broker.told(reader, V5).is_empty(), "{listener}");
    }
}

#[test]
fn conditions_that_cannot_be_are_faults() {
    for (text, names) in [
        ("topics = ['a']\nqos = [3]\nactions = ['publish']", "qos"),
        ("topics = ['a']\nretain = true", "actions"),
        ("topics = ['a']\nlisteners = ['b']", "`b`"),
        (
            "topics = ['a']\nearly_data = true\nactions = ['subscribe']",
            "actions",
        ),
    ] {
        let config = config::parse("x", &rule(text)).expect("a configuration");
        let problems = config.check().expect_err(text).join("\n");
        assert!(problems.contains(names), "{problems}");
    }
    for text in [
        "addresses = ['10.0.0.1/8']",
        "addresses = ['x']",
        "transports = ['udp']",
    ] {
        let text = rule(&format!("topics = ['a']\n{text}"));
        assert!(config::parse("x", &text).is_err(), "{text}");
    }
    // A rule for some is not one that closes the broker.
    let open = "[[listener]]\nurl = 'mqtts://*:1'\nname = 'a'\n[authentication]\nallow_anonymous_beyond_loopback = true\n\
                [tls]\nallow_development_certificate_beyond_loopback = true\n";
    for (condition, is_closed) in [
        ("", true),
        ("addresses = ['10.0.0.0/8']", false),
        ("transports = ['tcp']", false),
        ("listeners = ['a']", false),
        ("admin = false", false),
    ] {
        let rule = rule(&format!("effect = 'deny'\ntopics = ['#']\n{condition}"));
        let config = config::parse("x", &format!("{open}{rule}")).expect("a configuration");
        assert_eq!(
            config.check().is_ok(),
            is_closed,
            "{condition}: {:?}",
            config.check()
        );
    }
}

#[test]
fn what_is_not_known_suits_the_client() {
    let config = closed(
        &[
            "effect = 'deny'\ntopics = ['a']\naddresses = ['10.0.0.0/8']",
            "topics = ['a']\ntransports = ['tls']",
        ]
        .map(rule)
        .concat(),
    );
    let rules = authorization::Rules::new(&config.authorization, &config.listeners);
    let decide = |origin| {
        let subject = authorization::Subject {
            user: None,
            client: "c",
            origin,
            ..authorization::Subject::default()
        };
        rules.may_subscribe(subject, "a")
    };
    let origin = |address: [u8; 4], transport| authorization::Origin {
        address: Some(address.into()),
        transport: Some(transport),
        listener: None,
    };
    let asking = config::parse(
        "x",
        &[
            "effect = 'ask'\ntopics = ['b']\naddresses = ['10.0.0.0/8']",
            "effect = 'deny'\ntopics = ['b/deep/#']",
            "topics = ['b/#']",
        ]
        .map(rule)
        .concat(),
    )
    .expect("rules");
    let asking = authorization::Rules::new(&asking.authorization, &asking.listeners);
    for (origin, topic, is_allowed) in [
        (authorization::Origin::UNKNOWN, "b", true),
        (origin(OUTSIDE, config::TransportName::Tls), "b", true),
        // Nobody is there to say yes.
        (origin(INSIDE, config::TransportName::Tls), "b", false),
        (authorization::Origin::UNKNOWN, "b/deep/x", false),
    ] {
        let subject = authorization::Subject {
            client: "c",
            origin,
            ..authorization::Subject::default()
        };
        assert_eq!(
            asking.may_subscribe(subject, topic),
            is_allowed,
            "{origin:?}"
        );
        assert_eq!(asking.may_receive(subject, topic), is_allowed, "{origin:?}");
    }
    assert!(decide(authorization::Origin::UNKNOWN));
    assert!(decide(origin(OUTSIDE, config::TransportName::Tls)));
    assert!(!decide(origin(OUTSIDE, config::TransportName::Tcp)));
    assert!(!decide(origin(INSIDE, config::TransportName::Tls)));
}
