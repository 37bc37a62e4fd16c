//! What a broker that has died finds again, and what its clients see of it.

use sterna_amqp::connection::SessionId;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{DeliveryState, Source, TerminusDurability};
use sterna_amqp::performatives::Role;
use sterna_mqtt::packet::{Connect, Publish, Will};
use sterna_mqtt::{Packet, PacketId, Property, PropertyContext, PublishProperties, QoS, Version};
use sterna_server::config::{Config, Queue};

use crate::amqp::durable;
use crate::amqp_client::{Client as AmqpClient, Received, Start as AmqpStart};
use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::store::{Held, config};

const V5: Version = Version::V5;

/// Connects to a session that is kept; what the client was told.
fn connect(broker: &mut Broker, client_id: &str, will: Option<Will<'_>>) -> (Peer, Vec<String>) {
    let peer = broker.open();
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        will,
        ..plain(V5, client_id)
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    let told = broker.told(peer, V5);
    (peer, told)
}

fn numbered(topic: &'static str, qos: QoS, packet_id: u16, dup: bool) -> Packet<'static> {
    Packet::Publish(Publish {
        packet_id: PacketId::new(packet_id),
        dup,
        ..publish(topic, "m", qos)
    })
}

/// The identifiers of the messages that have come.
fn identifiers(broker: &mut Broker, peer: Peer) -> Vec<u16> {
    let ids = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => publish.packet_id.map(PacketId::get),
        _ => None,
    });
    ids.into_iter().flatten().collect()
}

fn pubrec(broker: &mut Broker, peer: Peer, id: u16) {
    let [high, low] = id.to_be_bytes();
    broker.send(peer, &[0x50, 2, high, low]);
}

fn pubcomp(broker: &mut Broker, peer: Peer, id: u16) {
    let [high, low] = id.to_be_bytes();
    broker.send(peer, &[0x70, 2, high, low]);
}

/// [MQTT-4.1.0-1] [MQTT-4.3.3-10]
#[test]
fn a_publisher_of_exactly_once_goes_on_where_it_was() {
    for shards in [1, 3] {
        let store = Held::new();
        let mut broker = store.broker(&config(), shards);
        let (keeper, _) = connect(&mut broker, "keeper", None);
        broker.subscribe(keeper, V5, "a", QoS::ExactlyOnce);
        let (peer, _) = connect(&mut broker, "p", None);
        broker.packet(peer, V5, &numbered("a", QoS::ExactlyOnce, 7, false));
        assert_eq!(broker.told(peer, V5), ["PUBREC 7 Success"]);
        broker.packet(peer, V5, &numbered("a", QoS::ExactlyOnce, 8, false));
        broker.send(peer, &[0x62, 2, 0, 8]);
        drop(broker);
        let mut broker = store.broker(&config(), 1);
        let (peer, told) = connect(&mut broker, "p", None);
        assert_eq!(told, ["CONNACK Success present"]);
        broker.packet(peer, V5, &numbered("a", QoS::ExactlyOnce, 7, true));
        broker.send(peer, &[0x62, 2, 0, 7]);
        broker.send(peer, &[0x62, 2, 0, 8]);
        assert_eq!(
            broker.told(peer, V5),
            [
                "PUBREC 7 Success",
                "PUBCOMP 7 Success",
                "PUBCOMP 8 Packet Identifier not found"
            ]
        );
        // Both identifiers are free, so these are new messages.
        for id in [7, 8] {
            broker.packet(peer, V5, &numbered("a", QoS::ExactlyOnce, id, false));
        }
        let (keeper, _) = connect(&mut broker, "keeper", None);
        assert_eq!(store.memory.counts().0, 4, "none came twice");
        broker.told(keeper, V5);
    }
}

/// [MQTT-4.4.0-1] [MQTT-4.3.3-6] [MQTT311-4.4.0-1]
#[test]
fn a_subscriber_of_exactly_once_goes_on_where_it_was() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let (keeper, _) = connect(&mut broker, "keeper", None);
    broker.subscribe(keeper, V5, "a", QoS::ExactlyOnce);
    let publisher = broker.client(V5, "p");
    let mut ids = Vec::new();
    for id in 1..=3 {
        broker.packet(publisher, V5, &numbered("a", QoS::ExactlyOnce, id, false));
        ids.extend(identifiers(&mut broker, keeper));
    }
    assert_eq!(ids.len(), 3);
    // The second is done, the first is released, the third was only sent.
    for &id in &ids[..2] {
        pubrec(&mut broker, keeper, id);
    }
    pubcomp(&mut broker, keeper, ids[1]);
    assert_eq!(broker.told(keeper, V5).len(), 2);
    broker.advance(1_000);
    for _ in 0..2 {
        drop(broker);
        broker = store.broker(&config(), 1);
        let keeper = broker.open();
        let properties = block(&[Property::SessionExpiryInterval(1_000)]);
        let connect = Connect {
            clean_start: false,
            properties: properties.properties(),
            ..plain(V5, "keeper")
        };
        broker.packet(keeper, V5, &Packet::Connect(connect));
        let told = broker.packets(keeper, V5, |packet| match packet {
            Packet::PubRel(release) => format!("PUBREL {}", release.packet_id),
            Packet::Publish(publish) => format!("PUBLISH {}", publish.packet_id.unwrap()),
            other => format!("{:?}", other.packet_type()),
        });
        let release = format!("PUBREL {}", ids[0]);
        let again = format!("PUBLISH {}", ids[2]);
        assert_eq!(told, ["ConnAck", &release, &again]);
    }
    let (keeper, told) = connect(&mut broker, "keeper", None);
    assert_eq!(told.len(), 3);
    pubcomp(&mut broker, keeper, ids[0]);
    pubrec(&mut broker, keeper, ids[2]);
    pubcomp(&mut broker, keeper, ids[2]);
    broker.advance(1_000);
    drop(broker);
    let mut broker = store.broker(&config(), 1);
    let (_, told) = connect(&mut broker, "keeper", None);
    assert_eq!(told, ["CONNACK Success present"]);
}

#[test]
fn sessions_subscriptions_and_retained_messages_are_there_again() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 3);
    let (keeper, _) = connect(&mut broker, "keeper", None);
    broker.subscribe(keeper, V5, "a/+", QoS::AtLeastOnce);
    broker.cut(keeper);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a/1", "away", QoS::AtLeastOnce);
    let retained = Publish {
        retain: true,
        ..publish("r", "last", QoS::AtMostOnce)
    };
    broker.packet(publisher, V5, &Packet::Publish(retained));
    drop(broker);
    let mut broker = store.broker(&config(), 2);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a/2", "after", QoS::AtLeastOnce);
    let (keeper, told) = connect(&mut broker, "keeper", None);
    assert_eq!(
        told,
        [
            "CONNACK Success present",
            "PUBLISH1 a/1=away",
            "PUBLISH1 a/2=after"
        ]
    );
    broker.subscribe_with(
        keeper,
        V5,
        "r",
        sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert_eq!(broker.told(keeper, V5)[1], "PUBLISH0 retain r=last");
}

/// Publishes numbers to `a`, each with itself as packet identifier.
fn send_numbers(broker: &mut Broker, peer: Peer, numbers: &[u16], dup: bool) {
    for &number in numbers {
        let payload = number.to_string();
        let packet = Packet::Publish(Publish {
            packet_id: PacketId::new(number),
            dup,
            ..publish("a", &payload, QoS::AtLeastOnce)
        });
        broker.packet(peer, V5, &packet);
    }
}

/// The payloads among what a client was told, one behind the other.
fn payloads(told: &[String]) -> String {
    let messages = told.iter().filter(|line| line.starts_with("PUBLISH"));
    let payloads = messages.filter_map(|line| line.rsplit_once('='));
    payloads.map(|(_, payload)| payload).collect()
}

/// A publisher repeats what was not acknowledged. A reader that subscribed behind the first message has it by its
/// repetition alone. So it comes behind the others: as the broker received them.
///
/// [MQTT-4.6.0-6] [MQTT-3.8.4-3]
#[test]
fn repetitions_come_in_the_order_in_which_they_were_received() {
    for (shards, are_awake) in [(1, false), (1, true), (3, false), (3, true)] {
        let store = Held::new();
        let mut broker = store.broker(&config(), shards);
        let [early, late] = ["early", "late"].map(|name| connect(&mut broker, name, None).0);
        broker.subscribe(early, V5, "a", QoS::ExactlyOnce);
        let (publisher, _) = connect(&mut broker, "p", None);
        send_numbers(&mut broker, publisher, &[1], false);
        broker.subscribe(late, V5, "a", QoS::ExactlyOnce);
        send_numbers(&mut broker, publisher, &[2, 3], false);
        drop(broker);
        let mut broker = store.broker(&config(), shards);
        let enter = |broker: &mut Broker| {
            ["early", "late"].map(|client_id| connect(broker, client_id, None))
        };
        let awake = are_awake.then(|| enter(&mut broker));
        let (publisher, _) = connect(&mut broker, "p", None);
        send_numbers(&mut broker, publisher, &[1, 2, 3], true);
        let readers = awake.unwrap_or_else(|| enter(&mut broker));
        let all = readers.map(|(peer, mut told)| {
            told.extend(broker.told(peer, V5));
            payloads(&told)
        });
        assert_eq!(all, ["123123", "23123"], "{shards} {are_awake}");
    }
}

/// What a broker says of itself costs the store nothing, and is not there before it says it again.
#[test]
fn nothing_of_a_broker_itself_is_kept() {
    let mut config = config();
    config.sys.interval_s = 1;
    let store = Held::new();
    let mut broker = store.broker(&config, 2);
    let watcher = broker.client(V5, "watcher");
    broker.subscribe(watcher, V5, "$SYS/#", QoS::AtMostOnce);
    broker.take(watcher);
    let before = store.memory.appends();
    broker.advance(10_000);
    assert!(!broker.told(watcher, V5).is_empty());
    assert_eq!(store.memory.appends(), before);
    assert_eq!(store.counts(), (0, 0));
}

const WILL: Will<'static> = Will {
    topic: "will",
    payload: b"gone",
    qos: QoS::AtLeastOnce,
    retain: false,
    properties: PublishProperties::EMPTY,
};

/// What a bridge of Mosquitto retains below `$SYS/` is a client's word, and is kept as such.
#[test]
fn the_state_of_a_bridge_is_kept() {
    const STATE: &str = "$SYS/broker/connection/site-7/state";
    let store = Held::new();
    let mut broker = store.broker(&config(), 2);
    let state = |payload| {
        Packet::Publish(Publish {
            retain: true,
            ..publish(STATE, payload, QoS::AtLeastOnce)
        })
    };
    let retained = |broker: &mut Broker| {
        let looker = broker.client(V5, "looker");
        broker.subscribe_with(
            looker,
            V5,
            "$SYS/broker/connection/#",
            sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce),
            &[],
        );
        broker.told(looker, V5).split_off(1)
    };
    let (bridge, _) = connect(&mut broker, "site-7", None);
    broker.packet(bridge, V5, &state("1"));
    drop(broker);
    let mut broker = store.broker(&config(), 1);
    let kept = [format!("PUBLISH0 retain {STATE}=1")];
    assert_eq!(retained(&mut broker), kept);
    // It is cleared as others are.
    let (bridge, _) = connect(&mut broker, "site-7", None);
    broker.packet(bridge, V5, &state(""));
    drop(broker);
    let mut broker = store.broker(&config(), 1);
    assert_eq!(retained(&mut broker), [""; 0]);
}

/// One whose client was lost before is due when it was due.
#[test]
fn a_will_that_is_delayed_survives_a_restart() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let (watcher, _) = connect(&mut broker, "watcher", None);
    broker.subscribe(watcher, V5, "will", QoS::AtLeastOnce);
    let delay = block(&[Property::WillDelayInterval(60)]);
    let (mortal, _) = connect(
        &mut broker,
        "mortal",
        Some(Will {
            properties: delay
                .publish_properties(PropertyContext::Will)
                .expect("of a will"),
            ..WILL
        }),
    );
    broker.cut(mortal);
    broker.stop();
    drop(broker);
    let mut broker = store.broker(&config(), 1);
    let (watcher, _) = connect(&mut broker, "watcher", None);
    broker.advance(55_000);
    broker.packet(watcher, V5, &Packet::PingReq);
    assert_eq!(broker.told(watcher, V5), ["PINGRESP"]);
    broker.advance(6_000);
    assert_eq!(broker.told(watcher, V5), ["PUBLISH1 will=gone"]);
}

fn begin(broker: &mut Broker, container: &str) -> (AmqpClient, SessionId) {
    let mut client = AmqpClient::connect(broker, container);
    let session = client.begin(broker);
    (client, session)
}

/// AMQP 1.0, part 3, section 3.5.5: what a link was attached with is found again by its name alone.
#[test]
fn a_terminus_is_there_again_with_what_waits_for_it() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 3);
    let (mut client, session) = begin(&mut broker, "c");
    let link = client.receiver(&mut broker, session, "sub", durable("a/#"), 10);
    let (mut sender, session) = begin(&mut broker, "s");
    let to = sender.sender(&mut broker, session, "a/b");
    sender.send(&mut broker, to, 1, "one");
    sender.send(&mut broker, to, 2, "two");
    client.turn(&mut broker);
    let first = client.received.remove(0);
    let state = DeliveryState::ACCEPTED;
    client.dispose(
        &mut broker,
        link.session,
        (first.id, first.id),
        &state,
        true,
    );
    broker.advance(1_000);
    drop(broker);
    let mut broker = store.broker(&config(), 2);
    let (mut sender, session) = begin(&mut broker, "s");
    let to = sender.sender(&mut broker, session, "a/c");
    sender.send(&mut broker, to, 1, "three");
    let (mut client, session) = begin(&mut broker, "c");
    let options = AttachOptions {
        recover: true,
        ..AttachOptions::default()
    };
    let link = client.attach(&mut broker, session, "sub", Role::Receiver, &options);
    let answer = &client.answers[&link];
    assert_eq!(answer.address.as_deref(), Some("a/#"));
    assert_eq!(answer.durable, TerminusDurability::Configuration);
    client.credit(&mut broker, link, 10);
    assert_eq!(client.accept_all(&mut broker), ["two", "three"]);
    // One that nobody ever attached is not there.
    let link = client.attach(&mut broker, session, "other", Role::Receiver, &options);
    assert!(
        client
            .answers
            .get(&link)
            .is_none_or(|answer| answer.refused)
    );
}

#[test]
fn queues_are_there_again_with_their_rules() {
    let mut config = config();
    config.amqp.queues = vec![Queue {
        name: "orders".to_owned(),
        maximum_deliveries: Some(1),
        dead_letter: Some("dead".to_owned()),
        ..Queue::default()
    }];
    let store = Held::new();
    let mut broker = store.broker(&config, 3);
    let (mut sender, session) = begin(&mut broker, "s");
    for (token, queue) in [(1, "queue/orders"), (2, "queue/made")] {
        let link = sender.sender(&mut broker, session, queue);
        sender.send(&mut broker, link, token, queue);
    }
    drop(broker);
    // From now on no link makes one: this one is known.
    config.amqp.queues_on_first_use = false;
    for shards in [2, 1, 3] {
        let mut broker = store.broker(&config, shards);
        let (mut client, session) = begin(&mut broker, "c");
        let none = client.receiver(&mut broker, session, "n", Source::new("queue/none"), 10);
        assert!(
            client
                .answers
                .get(&none)
                .is_none_or(|answer| answer.refused)
        );
        client.receiver(&mut broker, session, "m", Source::new("queue/made"), 10);
        assert_eq!(client.texts(), ["queue/made"], "{shards}");
    }
    let mut broker = store.broker(&config, 1);
    let (mut client, session) = begin(&mut broker, "c");
    let link = client.receiver(&mut broker, session, "o", Source::new("queue/orders"), 1);
    let received = client.received.remove(0);
    let failed = DeliveryState::Outcome(sterna_amqp::messaging::Outcome::Modified(
        sterna_amqp::messaging::Modified {
            delivery_failed: true,
            undeliverable_here: false,
            message_annotations: None,
        },
    ));
    let range = (received.id, received.id);
    client.dispose(&mut broker, link.session, range, &failed, true);
    client.receiver(&mut broker, session, "d", Source::new("queue/dead"), 10);
    assert_eq!(client.texts(), ["queue/orders"], "a dead letter");
}

/// A queue may be at home on another shard than its consumer. What that gives back comes by letter.
#[test]
fn a_message_that_was_never_sent_has_not_failed_when_the_broker_stops() {
    for shard in [0, 1] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 2);
        let (mut sender, session) = begin(&mut broker, "s");
        let to = sender.sender(&mut broker, session, "queue/q");
        let mut consumer = AmqpClient::start(&mut broker, AmqpStart::new("c").on(shard));
        let session = consumer.begin(&mut broker);
        consumer.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        // Its transport is full, so it has credit and gets nothing.
        broker.wires[shard].unsent_bytes = usize::MAX / 2;
        sender.send(&mut broker, to, 1, "one");
        consumer.turn(&mut broker);
        assert_eq!(consumer.texts(), [""; 0]);
        broker.advance(1_000);
        broker.stop();
        assert!(broker.finished());
        drop(broker);
        let mut broker = store.broker(&config(), 1);
        let (mut client, session) = begin(&mut broker, "c");
        client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        let counts: Vec<u32> = (client.received.iter())
            .map(Received::delivery_count)
            .collect();
        assert_eq!(counts, [0], "shard {shard}");
    }
}

/// A shard that has failed says nothing to the others.
#[test]
fn a_shard_that_is_not_heard_of_does_not_keep_the_broker_from_its_end() {
    let store = Held::new();
    let mut config = config();
    config.network.shutdown_timeout_ms = 10_000;
    let mut broker = store.broker(&config, 2);
    broker.deaf = Some(0);
    broker.stop();
    broker.advance(7_499);
    assert!(!broker.finished());
    broker.advance(1);
    assert!(broker.finished());
}

#[test]
fn sessions_topics_and_keys_of_http_are_there_again() {
    let mut config = config();
    config.http.idempotency_window_s = 60;
    let store = Held::new();
    let mut broker = store.broker(&config, 2);
    let mut client = HttpClient::connect(&mut broker);
    let get = "/v1/topics/a?session=s&qos=1";
    let number = client.request(&mut broker, "GET", get, &[], b"");
    assert_eq!(client.response(number).status, 200);
    for topic in ["kept", "deleted"] {
        client.request(&mut broker, "PUT", &format!("/v1/topics/{topic}"), &[], b"");
    }
    client.request(&mut broker, "DELETE", "/v1/topics/deleted", &[], b"");
    let key = [("idempotency-key", "k")];
    client.request(&mut broker, "POST", "/v1/topics/a", &key, b"one");
    client.request(&mut broker, "POST", "/v1/topics/a", &[], b"two");
    drop(broker);
    let mut broker = store.broker(&config, 3);
    let mut client = HttpClient::connect(&mut broker);
    for (topic, status) in [("kept", 200), ("deleted", 404)] {
        let head = client.request(
            &mut broker,
            "HEAD",
            &format!("/v1/topics/{topic}"),
            &[],
            b"",
        );
        assert_eq!(client.response(head).status, status, "{topic}");
    }
    let again = client.request(&mut broker, "POST", "/v1/topics/a", &key, b"one");
    let response = client.response(again);
    assert_eq!(response.status, 204);
    assert_eq!(response.field("idempotent-replayed"), Some("?1"));
    let reused = client.request(&mut broker, "POST", "/v1/topics/a", &key, b"another");
    assert_eq!(client.response(reused).status, 422);
    // An id from before the restart acknowledges nothing that the client has not seen since.
    let ack = "/v1/sessions/s/ack";
    let early = client.request(&mut broker, "POST", ack, &[], b"{\"id\": 2}");
    assert_eq!(client.response(early).status, 204);
    let number = client.request(&mut broker, "GET", get, &[], b"");
    let ids = |client: &HttpClient, number: u64| -> Vec<(u64, String)> {
        let text = String::from_utf8(client.response(number).content.clone()).unwrap();
        let lines = text.lines().filter(|line| line.starts_with('{'));
        let values = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        values
            .filter_map(|value| Some((value["id"].as_u64()?, value.to_string())))
            .collect()
    };
    let came = ids(&client, number);
    assert_eq!(came.len(), 2, "{came:?}");
    assert!(came.iter().all(|(id, _)| *id > 2), "{came:?}");
    let late = client.request(&mut broker, "POST", ack, &[], b"{\"id\": 2}");
    assert_eq!(client.response(late).status, 204);
    let last = format!("{{\"id\": {}}}", came[1].0);
    client.request(&mut broker, "POST", ack, &[], last.as_bytes());
    broker.advance(70_000);
    drop(broker);
    let mut broker = store.broker(&config, 1);
    let mut client = HttpClient::connect(&mut broker);
    let number = client.request(&mut broker, "GET", get, &[], b"");
    assert_eq!(ids(&client, number), []);
    // Fixtures begin at the same moment each time.
    broker.advance(70_000);
    let records = store.memory.counts().1;
    let new = client.request(&mut broker, "POST", "/v1/topics/b", &key, b"one");
    let response = client.response(new);
    assert_eq!(
        (response.status, response.field("idempotent-replayed")),
        (204, None)
    );
    assert!(store.memory.counts().1 < records, "its record is gone");
}

/// The password file of users whose names are their passwords.
fn users(directory: &tempfile::TempDir, names: &[&str]) -> Config {
    let path = directory.path().join("users");
    let mut file = sterna_auth::PasswordFile::new();
    for name in names {
        let record =
            sterna_auth::Record::from_password(name, &[7; 16], sterna_auth::MIN_ITERATIONS);
        file.set(name, record.expect("a record")).expect("a user");
    }
    std::fs::write(&path, file.to_string()).expect("a file");
    let mut config = Config::default();
    config.authentication.password_file = Some(path);
    config
}

/// As at a reload.
#[test]
fn the_sessions_of_users_who_were_removed_meanwhile_wait_for_them() {
    let directory = tempfile::tempdir().expect("a folder");
    for shards in [1, 3] {
        let store = Held::new();
        let mut broker = store.broker(&users(&directory, &["ann", "bob"]), shards);
        let enter = |broker: &mut Broker, user: &str, client_id: &str| {
            let peer = broker.open();
            let properties = block(&[Property::SessionExpiryInterval(1_000)]);
            let connect = Connect {
                clean_start: false,
                properties: properties.properties(),
                user_name: Some(user),
                password: Some(user.as_bytes()),
                ..plain(V5, client_id)
            };
            broker.packet(peer, V5, &Packet::Connect(connect));
            broker.await_verdicts();
            (peer, broker.told(peer, V5))
        };
        for (user, client_id) in [("ann", "a"), ("bob", "b")] {
            let (peer, told) = enter(&mut broker, user, client_id);
            assert_eq!(told, ["CONNACK Success"]);
            broker.subscribe(peer, V5, "a", QoS::AtLeastOnce);
            broker.cut(peer);
        }
        let (publisher, _) = enter(&mut broker, "bob", "p");
        broker.publish(publisher, V5, "a", "before", QoS::AtLeastOnce);
        drop(broker);
        let config = users(&directory, &["bob"]);
        let mut broker = store.broker(&config, shards);
        broker.advance(1);
        let (publisher, _) = enter(&mut broker, "bob", "p");
        broker.publish(publisher, V5, "a", "while missing", QoS::AtLeastOnce);
        let mut names: Vec<String> = (0..shards)
            .flat_map(|shard| broker.sessions(shard).0)
            .map(|session| session.name.id().to_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["a", "b", "p"]);
        drop(broker);
        let mut broker = store.broker(&users(&directory, &["ann", "bob"]), shards);
        broker.advance(1);
        let (publisher, _) = enter(&mut broker, "bob", "p");
        broker.publish(publisher, V5, "a", "after", QoS::AtLeastOnce);
        let (_, told) = enter(&mut broker, "ann", "a");
        let expected = [
            "CONNACK Success present",
            "PUBLISH1 a=before",
            "PUBLISH1 a=after",
        ];
        assert_eq!(told, expected, "{shards} shards");
    }
}

/// By which listener a client came is not known after a restart, until it comes back. Nothing is delivered before.
#[test]
fn who_comes_back_by_another_listener_gets_what_that_one_allows() {
    let text = "[authorization]\ndefault_allow = false\n\
                [[listener]]\nurl = 'mqtt://localhost:1'\nname = 'front'\n\
                [[listener]]\nurl = 'mqtt://localhost:2'\nname = 'back'\n\
                [[authorization.rule]]\nlisteners = ['front']\ntopics = ['#']\n\
                [[authorization.rule]]\nlisteners = ['back']\ntopics = ['web/#']\n";
    let told = sterna_server::config::parse("x", text).expect("a configuration");
    let config = Config {
        listeners: told.listeners,
        authorization: told.authorization,
        ..config()
    };
    let store = Held::new();
    let mut broker = store.broker(&config, 1);
    let (peer, _) = connect(&mut broker, "roams", None);
    for topic in ["valve", "web/a"] {
        broker.subscribe(peer, V5, topic, QoS::AtLeastOnce);
    }
    broker.cut(peer);
    let (speaker, _) = connect(&mut broker, "speaker", None);
    broker.publish(speaker, V5, "valve", "before", QoS::AtLeastOnce);
    drop(broker);
    let mut broker = store.broker(&config, 1);
    let (speaker, _) = connect(&mut broker, "speaker", None);
    broker.publish(speaker, V5, "valve", "after", QoS::AtLeastOnce);
    broker.publish(speaker, V5, "web/a", "page", QoS::AtLeastOnce);
    broker.listener = 1;
    let (peer, mut told) = connect(&mut broker, "roams", None);
    told.extend(broker.told(peer, V5));
    assert_eq!(told[0], "CONNACK Success present");
    assert!(
        told.iter().any(|one| one.contains("web/a=page")),
        "{told:?}"
    );
    assert!(!told.iter().any(|one| one.contains("valve")), "{told:?}");
}
