//! What the broker does when memory is short, stage by stage, in virtual time.

mod away;
mod principals;
mod retained;

#[path = "../../durability/store.rs"]
#[allow(dead_code, reason = "another test binary uses the rest")]
mod store;

use bytes::BytesMut;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{Source, Target, TargetArchetype};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_amqp::types::{Encoded, MapWriter, Value};
use sterna_broker::Limits;
use sterna_mqtt::packet::{Connect, Publish};
use sterna_mqtt::{Packet, PacketId, Property, PropertyContext, QoS, Version};
use sterna_net::{RefusedPeers, TransportKind};
use sterna_server::Stage;
use sterna_server::config::{Config, Listener, MemoryCeiling};

use crate::amqp_client::{Client as AmqpClient, Start as AmqpStart};
use crate::fixture::{Broker, Peer, Wire, block, everybodys, plain, publish};
use crate::overload::store::Held;

const V5: Version = Version::V5;
const V311: Version = Version::V311;
const CEILING_BYTES: u64 = 100 << 20;

const MQTT: u16 = 0;
const AMQP: u16 = 1;
const HTTP: u16 = 2;
const ADMIN: u16 = 3;

fn config() -> Config {
    let listeners = [
        "mqtt://127.0.0.1:0",
        "amqp://127.0.0.1:0",
        "http://127.0.0.1:0",
        "admin://127.0.0.1:0",
    ];
    let mut config = Config {
        listeners: listeners.into_iter().map(Listener::at).collect(),
        ..everybodys()
    };
    config.broker.memory_ceiling = MemoryCeiling::Bytes(CEILING_BYTES);
    config
}

/// So much of the ceiling is resident.
fn resident(broker: &mut Broker, percent: u64, expected: Stage) {
    broker.resident(CEILING_BYTES / 100 * percent);
    assert_eq!(broker.memory.stage(), expected);
}

fn is_paused(broker: &Broker, peer: Peer) -> bool {
    broker.wires[peer.shard].paused.contains(&peer.id)
}

/// Connects to a session that is kept, and takes four messages at once.
fn kept(broker: &mut Broker, client_id: &str) -> Peer {
    let peer = come_back(broker, client_id);
    let told = broker.told(peer, V5);
    assert!(told[0].starts_with("CONNACK Success"), "{told:?}");
    peer
}

/// The same, where the answer and what waits are yet to be read.
fn come_back(broker: &mut Broker, client_id: &str) -> Peer {
    let properties = block(&[
        Property::SessionExpiryInterval(1_000),
        Property::ReceiveMaximum(4),
    ]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, client_id)
    };
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// The payloads and identifiers of messages that have come.
fn came(broker: &mut Broker, peer: Peer) -> Vec<(String, Option<PacketId>)> {
    let messages = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => {
            let text = String::from_utf8_lossy(publish.payload).into_owned();
            Some((text, publish.packet_id))
        }
        _ => None,
    });
    messages.into_iter().flatten().collect()
}

fn puback(broker: &mut Broker, peer: Peer, id: PacketId) {
    let [high, low] = id.get().to_be_bytes();
    broker.send(peer, &[0x40, 2, high, low]);
}

fn waiting(broker: &Broker) -> usize {
    let (sessions, _) = broker.sessions(0);
    sessions.iter().map(|session| session.queue.pending).sum()
}

/// The beginning of a PUBLISH of 2,000,000 bytes.
fn partial_publish() -> Vec<u8> {
    let mut partial = vec![0x30, 0x80, 0x89, 0x7a, 0, 1, b't', 0];
    partial.resize(1_500_000, b'x');
    partial
}

#[test]
fn clients_that_publish_are_not_read_while_memory_is_short_but_for_moments() {
    let mut broker = Broker::with(&config(), 2);
    let connect = |broker: &mut Broker, id: &str, shard: usize| {
        let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
        let connect = Connect {
            keep_alive_s: 5,
            ..plain(V5, id)
        };
        broker.packet(peer, V5, &Packet::Connect(connect));
        broker.take(peer);
        peer
    };
    let quiet = connect(&mut broker, "quiet", 0);
    let publishers = [connect(&mut broker, "a", 0), connect(&mut broker, "b", 1)];
    for peer in publishers {
        broker.publish(peer, V5, "t", "1", QoS::AtLeastOnce);
    }
    resident(&mut broker, 71, Stage::PausePublishers);
    for peer in publishers {
        assert!(!is_paused(&broker, peer) || peer.shard < 2);
        broker.publish(peer, V5, "t", "2", QoS::AtLeastOnce);
        assert!(is_paused(&broker, peer), "it publishes");
        // What is read is acknowledged.
        let told = broker.told(peer, V5);
        assert_eq!(told.len(), 2, "{told:?}");
    }
    assert!(!is_paused(&broker, quiet), "it does not publish");
    // Keep-alive stands still, and once a second there is a moment for a PINGREQ.
    for _ in 0..60 {
        broker.advance(1_000);
        broker.send(quiet, &[0xc0, 0]);
        for peer in publishers {
            assert!(!is_paused(&broker, peer), "there is a moment");
            broker.send(peer, &[0xc0, 0]);
            assert_eq!(broker.take(peer), [0xd0, 0]);
            assert!(!is_paused(&broker, peer), "it has not published");
            broker.publish(peer, V5, "t", "3", QoS::AtMostOnce);
            assert!(is_paused(&broker, peer), "it has");
        }
    }
    // Also without a word from it.
    for _ in 0..3 {
        broker.advance(900);
    }
    for peer in publishers {
        assert!(!broker.is_closed(peer));
    }
    resident(&mut broker, 66, Stage::PausePublishers);
    resident(&mut broker, 64, Stage::Normal);
    for peer in publishers {
        assert!(!is_paused(&broker, peer));
        broker.publish(peer, V5, "t", "4", QoS::AtMostOnce);
        assert!(!is_paused(&broker, peer));
    }
}

#[test]
fn publishers_of_amqp_and_http_are_not_read_either() {
    let mut broker = Broker::with(&config(), 1);
    broker.listener = AMQP;
    let mut amqp = AmqpClient::connect(&mut broker, "sender");
    let session = amqp.begin(&mut broker);
    let link = amqp.sender(&mut broker, session, "t");
    broker.listener = HTTP;
    let http = broker.open();
    resident(&mut broker, 75, Stage::PausePublishers);
    assert!(!is_paused(&broker, amqp.peer) && !is_paused(&broker, http));
    amqp.send(&mut broker, link, 1, "text");
    assert!(is_paused(&broker, amqp.peer));
    let post = "POST /v1/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
    broker.send(http, post.as_bytes());
    assert!(is_paused(&broker, http));
    broker.advance(1_000);
    assert!(!is_paused(&broker, amqp.peer) && !is_paused(&broker, http));
    resident(&mut broker, 10, Stage::Normal);
    assert!(!is_paused(&broker, amqp.peer) && !is_paused(&broker, http));
}

#[test]
fn what_waits_and_is_in_the_log_leaves_memory_and_comes_in_order() {
    const MESSAGES: usize = 600;
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let reader = kept(&mut broker, "reader");
    broker.subscribe(reader, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "publisher");
    let text = |n: usize| format!("{n}-{}", "x".repeat(100));
    for n in 0..MESSAGES {
        broker.publish(publisher, V5, "t", &text(n), QoS::AtLeastOnce);
    }
    // It acknowledges nothing, and has what its window allows.
    let mut inbox = came(&mut broker, reader);
    let waited = waiting(&broker);
    assert!(
        inbox.len() < MESSAGES && waited > 100,
        "{} came",
        inbox.len()
    );
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(5_000);
    assert!(
        waiting(&broker) <= 32,
        "{} wait in memory",
        waiting(&broker)
    );
    // Later ones are behind those in the log.
    for n in MESSAGES..MESSAGES + 50 {
        broker.publish(publisher, V5, "t", &text(n), QoS::AtLeastOnce);
    }
    assert!(
        waiting(&broker) <= 32,
        "{} wait in memory",
        waiting(&broker)
    );
    let mut all = Vec::new();
    for round in 0.. {
        assert!(round < 1_000, "{} of them came", all.len());
        if round == 5 {
            resident(&mut broker, 10, Stage::Normal);
        }
        for (text, id) in std::mem::take(&mut inbox) {
            all.push(text);
            puback(&mut broker, reader, id.expect("an identifier"));
        }
        broker.advance(10);
        inbox.extend(came(&mut broker, reader));
        if inbox.is_empty() && all.len() >= MESSAGES + 50 {
            break;
        }
    }
    assert_eq!(all.len(), MESSAGES + 50);
    assert!(
        all.iter().enumerate().all(|(n, came)| *came == text(n)),
        "in order"
    );
}

/// Its queue was full to the last message. What leaves memory and is read again counts once.
#[test]
fn a_reader_that_was_away_loses_nothing_when_what_waits_leaves_memory() {
    const MESSAGES: usize = 600;
    let store = Held::new();
    let limits = Limits {
        queued_messages: MESSAGES,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&config(), 1, limits, || Box::new(store.clone()));
    let reader = kept(&mut broker, "reader");
    broker.subscribe(reader, V5, "t", QoS::AtLeastOnce);
    broker.cut(reader);
    let publisher = broker.client(V5, "publisher");
    for n in 0..MESSAGES {
        broker.publish(publisher, V5, "t", &n.to_string(), QoS::AtLeastOnce);
    }
    let reader = come_back(&mut broker, "reader");
    let mut inbox = came(&mut broker, reader);
    let waited = waiting(&broker);
    assert!(waited > 100, "{waited} wait in memory");
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(5_000);
    let waited = waiting(&broker);
    assert!(waited <= 32, "{waited} wait in memory");
    resident(&mut broker, 10, Stage::Normal);
    let mut all = Vec::new();
    while !inbox.is_empty() {
        for (text, id) in std::mem::take(&mut inbox) {
            all.push(text);
            puback(&mut broker, reader, id.expect("an identifier"));
        }
        broker.advance(10);
        inbox.extend(came(&mut broker, reader));
    }
    let expected: Vec<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
    assert_eq!(all, expected);
}

#[test]
fn messages_of_qos_0_are_dropped_first_and_new_ones_reach_who_keeps_up() {
    let mut broker = Broker::with(&config(), 1);
    let slow = broker.client_with(
        V5,
        &Connect {
            properties: block(&[Property::ReceiveMaximum(2)]).properties(),
            ..plain(V5, "slow")
        },
    );
    broker.subscribe(slow, V5, "t", QoS::AtLeastOnce);
    let fast = broker.client(V5, "fast");
    broker.subscribe(fast, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "publisher");
    for n in 0..20 {
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce][n % 2];
        broker.publish(publisher, V5, "t", &n.to_string(), qos);
    }
    for (_, id) in came(&mut broker, fast) {
        if let Some(id) = id {
            puback(&mut broker, fast, id);
        }
    }
    let before = waiting(&broker);
    assert!(before > 10, "{before} wait for the slow one");
    resident(&mut broker, 92, Stage::Drop);
    broker.advance(1);
    let after = waiting(&broker);
    assert!(after < before, "those of QoS 0 are gone: {before}, {after}");
    // What was acknowledged at QoS 1 comes all the same, and nothing new for who is slow.
    broker.publish(publisher, V5, "t", "new", QoS::AtLeastOnce);
    assert_eq!(waiting(&broker), after);
    assert_eq!(came(&mut broker, fast).len(), 1, "it keeps up");
    let mut of_slow = Vec::new();
    loop {
        let inbox = came(&mut broker, slow);
        if inbox.is_empty() {
            break;
        }
        for (text, id) in inbox {
            of_slow.push(text);
            if let Some(id) = id {
                puback(&mut broker, slow, id);
            }
        }
    }
    let odd = (0..20).filter(|n| n % 2 == 1).map(|n: u32| n.to_string());
    for text in odd {
        assert!(
            of_slow.contains(&text),
            "{text} was acknowledged: {of_slow:?}"
        );
    }
    assert!(!of_slow.contains(&"new".to_owned()));
    // No topic gets its first retained message; one that has one may get another.
    let retained = |broker: &mut Broker, topic: &str, text: &str| {
        let mut packet = publish(topic, text, QoS::AtLeastOnce);
        packet.retain = true;
        broker.packet(publisher, V5, &Packet::Publish(packet));
        broker.told(publisher, V5).pop().expect("an answer")
    };
    broker.take(publisher);
    let told = retained(&mut broker, "new/topic", "x");
    assert!(told.contains("Quota exceeded"), "{told}");
    resident(&mut broker, 10, Stage::Normal);
    let told = retained(&mut broker, "new/topic", "x");
    assert!(!told.contains("Quota exceeded"), "{told}");
    resident(&mut broker, 92, Stage::Drop);
    let told = retained(&mut broker, "new/topic", "y");
    assert!(!told.contains("Quota exceeded"), "{told}");
}

#[test]
fn newcomers_are_refused_in_the_last_stage_and_operators_are_not() {
    let mut broker = Broker::with(&config(), 2);
    let known = broker.client(V5, "known");
    resident(&mut broker, 96, Stage::RefuseNewcomers);
    for wire in &broker.wires {
        assert_eq!(
            wire.refusing,
            (vec![MQTT, AMQP, HTTP], RefusedPeers::All),
            "not the operators' listener"
        );
    }
    // Those whose transport was there before.
    let (mqtt5, mqtt311) = (broker.open(), broker.open());
    broker.packet(mqtt5, V5, &Packet::Connect(plain(V5, "new")));
    let told = broker.told(mqtt5, V5);
    assert!(told[0].starts_with("CONNACK Quota exceeded"), "{told:?}");
    broker.packet(mqtt311, V311, &Packet::Connect(plain(V311, "new")));
    assert_eq!(broker.take(mqtt311), [0x20, 2, 0, 3]);
    assert!(broker.is_closed(mqtt5) && broker.is_closed(mqtt311));
    broker.listener = AMQP;
    let mut amqp = AmqpClient::connect(&mut broker, "new");
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:resource-limit-exceeded")
    );
    broker.listener = HTTP;
    let http = broker.open();
    let request = b"GET /v1/topics/t HTTP/1.1\r\nHost: localhost\r\n\r\n";
    broker.send(http, request);
    let answer = String::from_utf8(broker.take(http)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains("memory-short") && answer.contains("etry-"),
        "{answer}"
    );
    // Subscriptions of known clients as well.
    broker.subscribe_with(
        known,
        V5,
        "t",
        sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    let told = broker.told(known, V5);
    assert_eq!(told, ["SUBACK 1 0x97"]);
    let ready = |broker: &mut Broker| {
        broker.listener = ADMIN;
        let peer = broker.open();
        broker.send(peer, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let answer = String::from_utf8(broker.take(peer)).expect("text");
        broker.listener = MQTT;
        answer
    };
    let answer = ready(&mut broker);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("refuse-newcomers"), "{answer}");
    resident(&mut broker, 91, Stage::RefuseNewcomers);
    resident(&mut broker, 86, Stage::Drop);
    let answer = ready(&mut broker);
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("drop"),
        "{answer}"
    );
    resident(&mut broker, 10, Stage::Normal);
    let goes_on = |wire: &Wire| wire.refusing.1 == RefusedPeers::None;
    assert!(broker.wires.iter().all(goes_on));
    assert!(!broker.is_closed(known));
    broker.client(V5, "new");
}

#[test]
fn the_client_that_holds_most_of_what_has_partly_arrived_is_ended_while_messages_are_dropped() {
    let mut broker = Broker::with(&config(), 1);
    let (heavy, light) = (broker.client(V5, "heavy"), broker.client(V5, "light"));
    let partial = partial_publish();
    broker.send(heavy, &partial);
    broker.send(light, &partial[..1_000]);
    resident(&mut broker, 72, Stage::PausePublishers);
    assert!(is_paused(&broker, heavy) && !is_paused(&broker, light));
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(1_000);
    assert!(is_paused(&broker, heavy), "there is no moment for it");
    assert!(!broker.is_closed(heavy));
    resident(&mut broker, 91, Stage::Drop);
    assert!(broker.is_closed(heavy) && !broker.is_closed(light));
    let told = broker.told(heavy, V5);
    assert!(told[0].contains("Quota exceeded"), "{told:?}");
    resident(&mut broker, 10, Stage::Normal);
}

/// What clients make the broker keep in other ways than by messages that have partly arrived counts as well. Else they
/// would be left, memory would stay short, and others would be ended instead.
#[test]
fn who_holds_filters_links_aliases_or_a_transaction_is_ended_first() {
    for attack in [
        "filters",
        "levels",
        "links",
        "selectors",
        "transaction",
        "aliases",
        "deliveries",
        "earlier deliveries",
    ] {
        let mut broker = Broker::with(&config(), 1);
        let light = broker.client(V5, "light");
        // It holds a little more than others.
        broker.send(light, &partial_publish()[..17_000]);
        let heavy = match attack {
            "filters" | "levels" => {
                let heavy = broker.client(V5, "heavy");
                for number in 0..40 {
                    let filter = match attack {
                        "filters" => format!("{number}/{}", "x".repeat(1_000)),
                        _ => format!("{number}{}", "/+".repeat(100)),
                    };
                    broker.subscribe(heavy, V5, &filter, QoS::AtMostOnce);
                }
                heavy
            }
            "aliases" => {
                let heavy = broker.client(V5, "heavy");
                for number in 1..=30 {
                    let properties = block(&[Property::TopicAlias(number)]);
                    let topic = format!("{number}/{}", "x".repeat(1_000));
                    let publish = Publish {
                        properties: properties
                            .publish_properties(PropertyContext::Publish)
                            .expect("of a publication"),
                        ..publish(&topic, "", QoS::AtMostOnce)
                    };
                    broker.packet(heavy, V5, &Packet::Publish(publish));
                }
                heavy
            }
            _ => {
                let start = AmqpStart::new("heavy");
                let mut client = AmqpClient::start(&mut broker, start);
                let session = client.begin(&mut broker);
                match attack {
                    "links" => {
                        for number in 0..40 {
                            let topic = format!("{number}/{}", "x".repeat(500));
                            client.sender(&mut broker, session, &topic);
                        }
                    }
                    "deliveries" | "earlier deliveries" => {
                        let options = AttachOptions {
                            rcv_settle_mode: ReceiverSettleMode::Second,
                            source: Some(Source::default()),
                            target: Some(TargetArchetype::Target(Target::new("a"))),
                            ..AttachOptions::default()
                        };
                        let role = Role::Sender;
                        let link = client.attach(&mut broker, session, "out", role, &options);
                        for token in 0..120 {
                            client.send(&mut broker, link, token, "");
                        }
                        if attack == "earlier deliveries" {
                            let (_, unsettled) = client.cut(&mut broker).pop().expect("the link");
                            client = AmqpClient::start(&mut broker, AmqpStart::new("heavy"));
                            let session = client.begin(&mut broker);
                            let options = AttachOptions {
                                unsettled: &unsettled,
                                recover: true,
                                ..options
                            };
                            client.attach(&mut broker, session, "out", role, &options);
                        }
                    }
                    "selectors" => {
                        let selector = "a OR ".repeat(500) + "a";
                        let mut filter = BytesMut::new();
                        let mut map = MapWriter::new(&mut filter);
                        let entry = map.entry(&Value::Symbol("selector"));
                        entry.extend_from_slice(&[0]);
                        Value::Symbol("apache.org:selector-filter:string").encode(entry);
                        Value::String(&selector).encode(entry);
                        map.finish();
                        let filter = Encoded::from_bytes(filter.freeze()).expect("a map");
                        let Value::Map(filter) = filter.value() else {
                            unreachable!("it is a map")
                        };
                        let source = Source {
                            filter: Some(filter),
                            ..Source::new("a")
                        };
                        client.receiver(&mut broker, session, "in", source, 0);
                    }
                    _ => {
                        let coordinator = client.coordinator(&mut broker, session);
                        let txn_id = client.declare(&mut broker, coordinator).expect("declared");
                        let link = client.sender(&mut broker, session, "a");
                        let text = "x".repeat(20_000);
                        client.post(&mut broker, link, 1, &txn_id, &text);
                    }
                }
                client.peer
            }
        };
        // The one that holds most is enough.
        resident(&mut broker, 71, Stage::PausePublishers);
        broker.resident(CEILING_BYTES / 100 * 65 + 1);
        broker.advance(31_000);
        assert!(broker.is_closed(heavy), "{attack}");
        assert!(!broker.is_closed(light), "{attack}");
    }
}

/// Also where the system has not told yet how much is resident.
#[test]
fn long_filters_and_topics_are_in_the_account() {
    let mut config = config();
    config.broker.memory_ceiling = MemoryCeiling::Bytes(4 << 20);
    let mut broker = Broker::with(&config, 1);
    let long = "x".repeat(60_000);
    // One session has up to 1 MiB of filters.
    let clients = ["one", "two", "three"].map(|name| broker.client(V5, name));
    for client in clients {
        for number in 0..12 {
            let filter = format!("{number}/{long}");
            broker.subscribe(client, V5, &filter, QoS::AtMostOnce);
        }
    }
    broker.resident(0);
    assert!(
        broker.memory.stage() >= Stage::MoveToLog,
        "no more of them are taken"
    );
    for client in clients {
        broker.cut(client);
    }
    resident(&mut broker, 0, Stage::Normal);

    let client = broker.client(V5, "client");
    let deep = "/x".repeat(120);
    for number in 0..230 {
        let topic = format!("{number}{deep}");
        let retained = Publish {
            retain: true,
            ..publish(&topic, "r", QoS::AtMostOnce)
        };
        broker.packet(client, V5, &Packet::Publish(retained));
    }
    resident(&mut broker, 0, Stage::RefuseNewcomers);
}

/// Else who acknowledges nothing could keep all others from publishing for as long as it pleases.
#[test]
fn whoever_holds_most_is_ended_where_memory_stays_short() {
    let mut broker = Broker::with(&config(), 1);
    let (never, honest) = (broker.client(V5, "never"), broker.client(V5, "honest"));
    broker.subscribe(never, V5, "t", QoS::AtLeastOnce);
    broker.subscribe(honest, V5, "t", QoS::AtLeastOnce);
    let text = "x".repeat(10_000);
    for _ in 0..50 {
        broker.publish(honest, V5, "t", &text, QoS::AtLeastOnce);
    }
    for (_, id) in came(&mut broker, honest) {
        puback(&mut broker, honest, id.expect("an identifier"));
    }
    resident(&mut broker, 71, Stage::PausePublishers);
    broker.advance(29_000);
    assert!(!broker.is_closed(never), "it may still acknowledge");
    broker.advance(3_000);
    assert!(broker.is_closed(never) && !broker.is_closed(honest));
    let told = broker.told(never, V5);
    assert!(told.iter().any(|packet| packet.contains("Quota exceeded")));
}

/// Else what is read again in such a moment fills memory for another while, as often as it likes.
#[test]
fn a_moment_with_enough_memory_begins_no_new_patience() {
    for (enough_ms, is_ended) in [(100, true), (29_000, false)] {
        let mut broker = Broker::with(&config(), 1);
        let heavy = broker.client(V5, "heavy");
        broker.send(heavy, &partial_publish());
        resident(&mut broker, 71, Stage::PausePublishers);
        broker.advance(29_000);
        resident(&mut broker, 10, Stage::Normal);
        broker.advance(enough_ms);
        resident(&mut broker, 71, Stage::PausePublishers);
        broker.advance(3_000);
        assert_eq!(broker.is_closed(heavy), is_ended, "{enough_ms} ms");
    }
}

/// Without anybody who asks the system: what shards note is enough.
#[test]
fn the_account_alone_begins_the_stages_and_ends_them() {
    let mut broker = Broker::with(&config(), 2);
    let mut partial = vec![0x30, 0x80, 0x89, 0x7a, 0, 1, b't', 0];
    partial.resize(1_900_000, b'x');
    let mut peers = Vec::new();
    for n in 0..42 {
        let peer = broker.open_on(n % 2, TransportKind::Tcp, Vec::new());
        let name = format!("c{n}");
        broker.packet(peer, V5, &Packet::Connect(plain(V5, &name)));
        broker.send(peer, &partial);
        peers.push(peer);
    }
    assert!(
        broker.memory.stage() >= Stage::PausePublishers,
        "{}",
        broker.memory.stage()
    );
    for peer in peers {
        broker.cut(peer);
    }
    for _ in 0..200 {
        broker.advance(1_000);
    }
    assert_eq!(broker.memory.stage(), Stage::Normal);
}

/// Sends messages on a link that settles second, and goes without settling them.
fn departs(broker: &mut Broker, container: &str, messages: u64) {
    let mut client = AmqpClient::start(broker, AmqpStart::new(container));
    let session = client.begin(broker);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("a"))),
        ..AttachOptions::default()
    };
    let link = client.attach(broker, session, "out", Role::Sender, &options);
    for token in 0..messages {
        client.send(broker, link, token, "");
    }
    client.cut(broker);
}

/// Else nobody knows why memory is short, and it stays short until the next link is attached.
#[test]
fn what_departed_senders_leave_is_in_the_account_until_its_time_is_over() {
    let mut config = config();
    config.broker.memory_ceiling = MemoryCeiling::Bytes(128 << 10);
    config.broker.memory_patience_ms = 3_600_000;
    // Its topics would take memory, too.
    config.sys.interval_s = 0;
    let mut broker = Broker::with(&config, 2);
    let mut departed = 0;
    while broker.memory.stage() == Stage::Normal && departed < 40 {
        departs(&mut broker, &format!("c{departed}"), 60);
        broker.resident(0);
        departed += 1;
    }
    assert_eq!(broker.memory.stage(), Stage::PausePublishers, "{departed}");
    broker.advance(50_000);
    broker.resident(0);
    assert_eq!(broker.memory.stage(), Stage::PausePublishers);
    broker.advance(12_000);
    broker.resident(0);
    assert_eq!(broker.memory.stage(), Stage::Normal);
}

/// Else a client that is there is ended for what another has left.
#[test]
fn what_departed_senders_leave_goes_before_any_client_is_ended() {
    let mut config = config();
    let ceiling_bytes = 256 << 10;
    config.broker.memory_ceiling = MemoryCeiling::Bytes(ceiling_bytes);
    config.amqp.suspended_link_timeout_s = 600;
    let mut broker = Broker::with(&config, 1);
    departs(&mut broker, "gone", 200);
    let honest = broker.client(V5, "honest");
    broker.send(honest, &partial_publish()[..17_000]);
    broker.resident(ceiling_bytes / 100 * 71);
    assert_eq!(broker.memory.stage(), Stage::PausePublishers);
    broker.advance(30_500);
    assert!(!broker.is_closed(honest), "the other goes first");
    // Nothing is left to go first, and the system had its time to have that back.
    broker.advance(3_000);
    assert!(broker.is_closed(honest));
}

/// No client gives these back by its end. So they must not be made while others have to give theirs back.
#[test]
fn queues_and_topics_are_not_made_while_messages_are_dropped() {
    let mut broker = Broker::with(&config(), 1);
    let mut amqp = AmqpClient::start(&mut broker, AmqpStart::new("c"));
    let session = amqp.begin(&mut broker);
    amqp.sender(&mut broker, session, "queue/before");
    assert_eq!(amqp.condition(), None);
    broker.listener = HTTP;
    let http = broker.open();
    let put = |broker: &mut Broker, topic: &str| {
        let request = format!("PUT /v1/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        broker.send(http, request.as_bytes());
        String::from_utf8(broker.take(http)).expect("text")
    };
    assert!(put(&mut broker, "before").starts_with("HTTP/1.1 201"));
    // Another address holds most.
    broker.listener = MQTT;
    broker.come_from([10, 0, 0, 1]);
    let heavy = broker.client(V5, "heavy");
    broker.send(heavy, &partial_publish()[..100_000]);
    resident(&mut broker, 91, Stage::Drop);
    let answer = put(&mut broker, "after");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("memory-short"), "{answer}");
    assert!(put(&mut broker, "before").starts_with("HTTP/1.1 200"));
    amqp.receiver(&mut broker, session, "in", Source::new("queue/before"), 1);
    assert_eq!(amqp.condition(), None);
    amqp.sender(&mut broker, session, "queue/after");
    let condition = amqp.condition();
    assert_eq!(condition.as_deref(), Some("amqp:resource-limit-exceeded"));
}
