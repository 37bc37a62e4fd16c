//! HTTP: what is answered when.

use sterna_h3::Features;
use sterna_mqtt::{QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::{Config, Listener};

use crate::fixture::{Broker, Peer};
use crate::h3_client::Client;
use crate::store::{Held, config, with_strict_rule};

const V5: Version = Version::V5;

/// Listeners as elsewhere, and one for HTTP that waits for the disk.
fn with_http() -> Config {
    let mut config = config();
    config.listeners.push(Listener {
        durability: Some(sterna_server::config::Durability::Commit),
        ..Listener::at("http://127.0.0.1:0")
    });
    config
}

/// A client of HTTP/1.1.
fn open_http1(broker: &mut Broker) -> Peer {
    broker.listener = 3;
    let peer = broker.open_speaking(b"http/1.1", 0, TransportKind::Tcp, Vec::new());
    broker.listener = 0;
    peer
}

fn ask(broker: &mut Broker, peer: Peer, method: &str, path: &str, fields: &str, content: &str) {
    let length = content.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{fields}\r\n{content}"
    );
    broker.send(peer, request.as_bytes());
}

/// The statuses of the responses that have come.
fn statuses(broker: &mut Broker, peer: Peer) -> Vec<String> {
    let text = String::from_utf8(broker.take(peer)).expect("text");
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("HTTP/1.1 "));
    lines.map(|line| line[..3].to_owned()).collect()
}

/// A subscription that is kept.
fn keeper(broker: &mut Broker) -> Client {
    let mut keeper = Client::connect(broker);
    let number = keeper.request(
        broker,
        "GET",
        "/v1/topics/kept%2F%2B?session=keeper&qos=1",
        &[],
        b"",
    );
    assert_eq!(keeper.response(number).status, 200);
    keeper
}

#[test]
fn a_request_is_answered_when_its_message_is_kept() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let _keeper = keeper(&mut broker);
    let mut client = Client::connect(&mut broker);
    let plain = open_http1(&mut broker);
    store.hold();
    let path = "/v1/topics/kept%2Fa";
    let kept = client.request(&mut broker, "POST", path, &[], b"m");
    ask(&mut broker, plain, "POST", path, "", "m");
    assert_eq!(client.response(kept).status, 0);
    assert_eq!(statuses(&mut broker, plain), [""; 0]);
    // Reading goes on.
    let described = client.request(&mut broker, "GET", "/v1/sessions/keeper", &[], b"");
    assert_eq!(client.response(described).status, 200);
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(kept).status, 204);
    assert_eq!(statuses(&mut broker, plain), ["204"]);
}

#[test]
fn a_rule_may_ask_for_more_than_a_listener() {
    let store = Held::new();
    let mut broker = store.broker(&with_strict_rule(), 1);
    let mut keeper = Client::connect(&mut broker);
    let path = "/v1/topics/kept%2F%23?session=keeper&qos=1";
    let number = keeper.request(&mut broker, "GET", path, &[], b"");
    assert_eq!(keeper.response(number).status, 200);
    broker.listener = 2;
    let mut client = Client::connect(&mut broker);
    store.hold();
    let loose = client.request(&mut broker, "POST", "/v1/topics/kept%2Fa", &[], b"m");
    assert_eq!(client.response(loose).status, 204);
    let path = "/v1/topics/kept%2Fstrict%2Fa";
    let strict = client.request(&mut broker, "POST", path, &[], b"m");
    store.write(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(strict).status, 0);
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(strict).status, 204);
}

#[test]
fn a_keyed_request_is_done_once_whatever_waits() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let mut keeper = keeper(&mut broker);
    let mut client = Client::connect(&mut broker);
    store.hold();
    let key = [("idempotency-key", "k")];
    let first = client.request(&mut broker, "POST", "/v1/topics/kept%2Fa", &key, b"m");
    assert_eq!(client.response(first).status, 0);
    broker.cut(client.peer);
    // On another connection, by another protocol: it waits for the same.
    let plain = open_http1(&mut broker);
    let field = "Idempotency-Key: k\r\n";
    ask(
        &mut broker,
        plain,
        "POST",
        "/v1/topics/kept%2Fa",
        field,
        "m",
    );
    assert_eq!(statuses(&mut broker, plain), [""; 0]);
    store.sync(&mut broker);
    let answer = String::from_utf8(broker.take(plain)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert!(answer.contains("idempotent-replayed: ?1"), "{answer}");
    keeper.turn(&mut broker);
    let contents = keeper
        .heard
        .responses
        .values()
        .map(|response| &response.content);
    let told: String = contents
        .map(|content| String::from_utf8_lossy(content))
        .collect();
    assert_eq!(told.matches("kept/a").count(), 1, "{told}");
}

#[test]
fn sessions_and_topics_are_kept_before_they_are_answered() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    store.hold();
    let mut client = Client::connect(&mut broker);
    let session = client.request(&mut broker, "GET", "/v1/topics/a?session=s", &[], b"");
    let topic = client.request(&mut broker, "PUT", "/v1/topics/t", &[], b"");
    assert_eq!(client.response(session).status, 0);
    assert_eq!(client.response(topic).status, 0);
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(session).status, 200);
    assert_eq!(client.response(topic).status, 201);
    store.hold();
    let end = client.request(&mut broker, "DELETE", "/v1/sessions/s", &[], b"");
    let delete = client.request(&mut broker, "DELETE", "/v1/topics/t", &[], b"");
    assert_eq!(client.response(end).status, 0);
    assert_eq!(client.response(delete).status, 0);
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(end).status, 204);
    assert_eq!(client.response(delete).status, 204);
}

/// A second client hears no earlier that it is done.
#[test]
fn a_topic_that_is_created_again_is_kept_before_that_is_answered() {
    for shard in [0, 1] {
        let store = Held::new();
        let mut broker = store.broker(&with_http(), 2);
        let mut client = Client::connect(&mut broker);
        let mut again = Client::connect_on(&mut broker, shard, Features::default(), Vec::new());
        store.hold();
        let path = "/v1/topics/t";
        let first = client.request(&mut broker, "PUT", path, &[], b"");
        let second = again.request(&mut broker, "PUT", path, &[], b"");
        assert_eq!(client.response(first).status, 0);
        assert_eq!(again.response(second).status, 0, "shard {shard}");
        store.sync(&mut broker);
        client.turn(&mut broker);
        again.turn(&mut broker);
        assert_eq!(client.response(first).status, 201);
        assert_eq!(again.response(second).status, 200);
        // It is long since kept.
        store.hold();
        let third = again.request(&mut broker, "PUT", path, &[], b"");
        assert_eq!(again.response(third).status, 200);
    }
}

/// The ways in which operators and users end a session.
#[test]
fn a_session_of_another_shard_has_ended_before_that_is_answered() {
    let store = Held::new();
    let mut config = with_http();
    config.listeners.push(Listener::at("admin://127.0.0.1:0"));
    let mut broker = store.broker(&config, 2);
    for name in ["a", "b"] {
        let mut owner = Client::connect_on(&mut broker, 1, Features::default(), Vec::new());
        let path = format!("/v1/topics/t?session={name}");
        let number = owner.request(&mut broker, "GET", &path, &[], b"");
        assert_eq!(owner.response(number).status, 200);
        broker.cut(owner.peer);
    }
    let mut client = Client::connect(&mut broker);
    broker.listener = 4;
    let operator = broker.open_speaking(b"", 0, TransportKind::Tcp, Vec::new());
    broker.listener = 0;
    store.hold();
    // The other shard has not even heard of it.
    broker.deaf = Some(1);
    let end = client.request(&mut broker, "DELETE", "/v1/sessions/a", &[], b"");
    let line = "DELETE /admin/v1/sessions/$http%2Fb HTTP/1.1";
    let request = format!("{line}\r\nHost: localhost:9464\r\nSterna-Request: 1\r\n\r\n");
    broker.send(operator, request.as_bytes());
    assert_eq!(client.response(end).status, 0);
    assert_eq!(statuses(&mut broker, operator), [""; 0]);
    broker.hear();
    client.turn(&mut broker);
    assert_eq!(
        client.response(end).status,
        0,
        "it has ended, and is not kept"
    );
    assert_eq!(statuses(&mut broker, operator), [""; 0]);
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(end).status, 204);
    assert_eq!(statuses(&mut broker, operator), ["204"]);
    for shard in [0, 1] {
        assert!(broker.sessions(shard).0.is_empty(), "shard {shard}");
    }
}

#[test]
fn a_session_that_is_away_never_says_that_nothing_waits_while_the_log_has_messages() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let publisher = broker.client(V5, "p");
    let keeper = keeper(&mut broker);
    broker.cut(keeper.peer);
    let mut client = Client::connect(&mut broker);
    let mut pending = |broker: &mut Broker| {
        let number = client.request(broker, "GET", "/v1/sessions/keeper", &[], b"");
        let told = client.response(number);
        let told: serde_json::Value = serde_json::from_slice(&told.content).expect("JSON");
        (told["pending"].clone(), told["pending_bytes"].clone())
    };
    assert_eq!(pending(&mut broker), (0.into(), 0.into()), "nothing came");
    broker.publish(publisher, V5, "kept/a", "m", QoS::AtLeastOnce);
    assert_eq!(pending(&mut broker), (().into(), ().into()));
}

#[test]
fn a_response_begins_when_its_session_is_kept_and_not_if_it_is_gone() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let publisher = broker.client(V5, "p");
    store.hold();
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a?session=s", &[], b"");
    broker.publish(publisher, V5, "a", "m", QoS::AtMostOnce);
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 0);
    // Another request takes it over.
    let mut other = Client::connect(&mut broker);
    let taken = other.request(&mut broker, "GET", "/v1/topics/a?session=s", &[], b"");
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 409);
    store.sync(&mut broker);
    client.turn(&mut broker);
    other.turn(&mut broker);
    assert_eq!(client.response(number).status, 409);
    assert_eq!(other.response(taken).status, 200);
    // A connection that ends leaves nothing that is told to somebody else.
    store.hold();
    let mut gone = Client::connect(&mut broker);
    gone.request(&mut broker, "GET", "/v1/topics/a?session=t", &[], b"");
    broker.cut(gone.peer);
    store.sync(&mut broker);
    assert!(!broker.is_closed(other.peer));
}

/// A frame of the binary stream: its length, an id, flags, a topic, no properties, a payload.
fn frame(id: u8, qos: u8, topic: &str, payload: &str) -> Vec<u8> {
    let mut bytes = vec![id, qos, topic.len() as u8];
    bytes.extend_from_slice(topic.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(payload.as_bytes());
    bytes.insert(0, bytes.len() as u8);
    bytes
}

#[test]
fn frames_of_webtransport_are_answered_in_order_before_their_stream_ends() {
    let store = Held::new();
    let mut config = with_http();
    config.store.maximum_waiting_acknowledgements = 4;
    let mut broker = store.broker(&config, 1);
    broker.wires[0].datagram_bytes = 1_200;
    let _keeper = keeper(&mut broker);
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    let mut client = Client::connect_with(&mut broker, features);
    let session = (client.engine)
        .connect_session("localhost", "/v1/topics", &[], &mut client.out)
        .expect("settings that allow it");
    client.turn(&mut broker);
    assert_eq!(client.response(session.0).status, 200);
    let stream = (client.engine)
        .open_session_stream(session, true, &mut client.out)
        .expect("a stream");
    store.hold();
    for (id, topic) in [(1, "kept/a"), (2, "other"), (3, "kept/a")] {
        let bytes = frame(id, 1, topic, "m");
        client
            .engine
            .send(stream, &bytes, &mut client.out)
            .expect("a stream");
        client.turn(&mut broker);
    }
    client
        .engine
        .finish(stream, &mut client.out)
        .expect("a stream");
    client.turn(&mut broker);
    assert_eq!(client.heard.streams.get(&stream.0), None);
    let peer = client.peer.id;
    let ends = |broker: &Broker| {
        let stream = sterna_net::StreamId(stream.0);
        broker.wires[0].finished.contains(&(peer, stream))
    };
    assert!(!ends(&broker));
    assert!(broker.wires[0].paused.contains(&peer));
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert!(!broker.wires[0].paused.contains(&peer));
    // Length, id and the status 204 in two bytes each.
    let answers = [1, 2, 3].map(|id| [3, id, 0x40, 204]).concat();
    assert_eq!(client.heard.streams[&stream.0], answers);
    assert!(ends(&broker));
}

#[test]
fn a_full_store_is_told_by_its_status() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let _keeper = keeper(&mut broker);
    let mut client = Client::connect(&mut broker);
    let plain = open_http1(&mut broker);
    store.memory.set_full(true);
    let key = [("idempotency-key", "k")];
    let full = client.request(&mut broker, "POST", "/v1/topics/kept%2Fa", &key, b"m");
    let response = client.response(full);
    assert_eq!(response.status, 507);
    let content = String::from_utf8_lossy(&response.content);
    assert!(
        content.contains("urn:sterna:problem:store-full"),
        "{content}"
    );
    ask(&mut broker, plain, "POST", "/v1/topics/kept%2Fa", "", "m");
    assert_eq!(statuses(&mut broker, plain), ["507"]);
    // It went nowhere, so the same key may be tried again.
    store.memory.set_full(false);
    let done = client.request(&mut broker, "POST", "/v1/topics/kept%2Fa", &key, b"m");
    let response = client.response(done);
    assert_eq!(
        (response.status, response.field("idempotent-replayed")),
        (204, None)
    );
}

#[test]
fn an_id_that_was_never_given_is_refused_after_a_restart_too() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let mut keeper = keeper(&mut broker);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "kept/a", "m", QoS::AtLeastOnce);
    keeper.turn(&mut broker);
    drop(broker);
    let mut broker = store.broker(&with_http(), 1);
    let mut client = Client::connect(&mut broker);
    for listened in [false, true] {
        if listened {
            let path = "/v1/topics/kept%2F%2B?session=keeper&qos=1";
            client.request(&mut broker, "GET", path, &[], b"");
        }
        for (id, status) in [(1, 204), (999_999, 400)] {
            let path = format!("/v1/sessions/keeper/ack?id={id}");
            let number = client.request(&mut broker, "POST", &path, &[], b"");
            assert_eq!(client.response(number).status, status, "{id} {listened}");
        }
    }
}

/// Other programs have filled the disk to its last byte: waiting would tell nobody why.
#[test]
fn a_session_that_cannot_be_kept_is_refused_through_every_door() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    store.hold();
    store.memory.set_stuck(true);
    let peer = broker.open();
    let properties = crate::fixture::block(&[sterna_mqtt::Property::SessionExpiryInterval(60)]);
    let connect = sterna_mqtt::packet::Connect {
        properties: properties.properties(),
        ..crate::fixture::plain(V5, "m")
    };
    broker.packet(peer, V5, &sterna_mqtt::Packet::Connect(connect));
    assert_eq!(broker.told(peer, V5), ["CONNACK Quota exceeded"]);
    // One that ends with its connection needs nothing of the store.
    broker.client(V5, "live");
    let mut amqp = crate::amqp_client::Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "sub", crate::amqp::durable("a"), 1);
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:resource-limit-exceeded")
    );
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a?session=s", &[], b"");
    assert_eq!(client.response(number).status, 507);
    store.memory.set_stuck(false);
    store.sync(&mut broker);
    let number = client.request(&mut broker, "GET", "/v1/topics/a?session=s", &[], b"");
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 200);
}

/// CONNECT with a session that outlives its connection; what was told.
fn connect(broker: &mut Broker, version: Version, client_id: &str) -> (Peer, Vec<String>) {
    let seconds = [sterna_mqtt::Property::SessionExpiryInterval(60)];
    let properties = crate::fixture::block(if version == V5 { &seconds } else { &[] });
    let connect = sterna_mqtt::packet::Connect {
        clean_start: false,
        properties: properties.properties(),
        ..crate::fixture::plain(version, client_id)
    };
    let peer = broker.open();
    broker.packet(peer, version, &sterna_mqtt::Packet::Connect(connect));
    (peer, broker.told(peer, version))
}

fn suback(broker: &mut Broker, version: Version, peer: Peer, filter: &str) -> Vec<String> {
    let options = sterna_mqtt::packet::SubscribeOptions::new(QoS::AtLeastOnce);
    broker.subscribe_with(peer, version, filter, options, &[]);
    broker.told(peer, version)
}

/// Attack F1: the disk has less room than messages may take, and records would take the last of it.
#[test]
fn records_that_would_grow_are_refused_through_every_door() {
    let store = Held::new();
    let mut broker = store.broker(&with_http(), 1);
    let versions = [(V5, "five"), (Version::V311, "four")];
    for (version, name) in versions {
        let (peer, _) = connect(&mut broker, version, name);
        assert_eq!(suback(&mut broker, version, peer, "t"), ["SUBACK 1 0x01"]);
        broker.cut(peer);
    }
    let mut client = Client::connect(&mut broker);
    let mut amqp = crate::amqp_client::Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    store.memory.set_lacking_room(true);

    let (_, told) = connect(&mut broker, V5, "new");
    assert_eq!(told, ["CONNACK Quota exceeded"]);
    let (_, told) = connect(&mut broker, Version::V311, "new");
    assert_eq!(told, ["CONNACK Server unavailable"]);
    for ((version, name), refusal) in versions.into_iter().zip(["0x97", "0x80"]) {
        let (peer, told) = connect(&mut broker, version, name);
        assert_eq!(told, ["CONNACK Success present"], "{name}");
        // Clients subscribe again when they come back.
        assert_eq!(suback(&mut broker, version, peer, "t"), ["SUBACK 1 0x01"]);
        let told = suback(&mut broker, version, peer, "u");
        assert_eq!(told, [format!("SUBACK 1 {refusal}")]);
    }
    // A session that ends with its connection needs nothing of the store.
    let live = broker.client(V5, "live");
    assert_eq!(suback(&mut broker, V5, live, "u"), ["SUBACK 1 0x01"]);
    for (nth, source) in [
        crate::amqp::durable("a"),
        sterna_amqp::messaging::Source::new("queue/new"),
    ]
    .into_iter()
    .enumerate()
    {
        amqp.receiver(&mut broker, session, &format!("link {nth}"), source, 1);
        assert_eq!(
            amqp.condition().as_deref(),
            Some("amqp:resource-limit-exceeded")
        );
    }
    let requests = [
        ("GET", "/v1/topics/a?session=s", 507, 200),
        ("PUT", "/v1/topics/created", 507, 201),
    ];
    for (method, path, refused, _) in requests {
        let number = client.request(&mut broker, method, path, &[], b"");
        assert_eq!(client.response(number).status, refused, "{path}");
    }

    store.memory.set_lacking_room(false);
    for (method, path, _, done) in requests {
        let number = client.request(&mut broker, method, path, &[], b"");
        assert_eq!(client.response(number).status, done, "{path}");
    }
    amqp.receiver(
        &mut broker,
        session,
        "link",
        sterna_amqp::messaging::Source::new("queue/new"),
        1,
    );
    assert_eq!(amqp.condition(), None);
}

#[test]
fn a_broker_that_stops_reads_no_client_again() {
    let store = Held::new();
    let mut config = with_http();
    config.store.maximum_waiting_acknowledgements = 2;
    let mut broker = store.broker(&config, 1);
    let _keeper = keeper(&mut broker);
    let mut client = Client::connect(&mut broker);
    let plain = open_http1(&mut broker);
    store.hold();
    let path = "/v1/topics/kept%2Fa";
    client.request(&mut broker, "POST", path, &[], b"m");
    let one = store.memory.appends();
    client.request(&mut broker, "POST", path, &[], b"m");
    ask(&mut broker, plain, "POST", path, "", "m");
    broker.stop();
    store.sync_up_to(&mut broker, one);
    for peer in [client.peer, plain] {
        assert!(broker.wires[0].paused.contains(&peer.id), "{peer:?}");
    }
    store.sync(&mut broker);
    client.turn(&mut broker);
    let statuses = client.heard.responses.values().map(|one| one.status);
    assert_eq!(statuses.collect::<Vec<_>>(), [204, 204]);
    assert!(broker.finished());
}
