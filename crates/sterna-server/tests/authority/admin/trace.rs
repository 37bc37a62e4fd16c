//! Traces of messages.

use serde_json::{Value, json};
use sterna_mqtt::packet::{Ack, Packet};
use sterna_mqtt::{PacketId, Properties, QoS, ReasonCode};
use sterna_net::StreamId;
use sterna_server::config::{Authorization, Effect, Rule};

use sterna_broker::Limits;
use sterna_store::MemoryStore;

use sterna_auth::{TokenDigest, TokenFile, TokenRecord};
use sterna_server::Policy;

use crate::admin::roles::{credentials, guarded};
use crate::admin::world::{V5, World};
use crate::fixture::{Broker, Peer};
use crate::page::{ADMIN, config, connect};

/// When every broker of these tests begins, in seconds since the Unix epoch.
const NOW_S: u64 = 1_700_000_000;

/// Begins a trace on a connection of its own.
pub(crate) fn begin(world: &mut World, query: &str) -> Peer {
    let peer = connect(&mut world.broker, ADMIN, 1);
    let request = format!("GET /admin/v1/trace?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world.broker.send(peer, request.as_bytes());
    let first = events(world, peer);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first[0]["event"], "watching");
    peer
}

/// The events since the last call.
pub(crate) fn events(world: &mut World, peer: Peer) -> Vec<Value> {
    let text = String::from_utf8(world.broker.take(peer)).expect("text");
    // Between them are the sizes of chunks.
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// The names of events, with the reader.
fn told(events: &[Value]) -> Vec<String> {
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let told = events.iter().map(|event| {
        let reason = text(event, "reason");
        format!("{} {}{reason}", text(event, "event"), text(event, "reader"))
    });
    told.map(|line| line.trim_end().to_owned()).collect()
}

fn acknowledge(world: &mut World, peer: Peer) {
    let ack = Ack {
        packet_id: PacketId::MIN,
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    };
    world.broker.packet(peer, V5, &Packet::PubAck(ack));
}

/// Attack row 35: a trace is a response that does not end, and ends with the right to look.
#[test]
fn a_trace_ends_with_the_token_the_role_and_the_user() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = guarded(&directory, "admin://127.0.0.1:0");
    let tokens = directory.path().join("tokens");
    let mut file = TokenFile::new();
    file.add(TokenRecord {
        user: "oli".into(),
        digest: TokenDigest::of(b"a-short-token"),
        expires_at_s: Some(NOW_S + 100),
    })
    .expect("a user");
    std::fs::write(&tokens, file.to_string()).expect("a file");
    config.authentication.token_file = Some(tokens);
    config.authentication.anonymous = Some(true);
    let mut world = World::of(Broker::with(&config, 2));
    let open = |world: &mut World, credentials: &str| {
        let peer = connect(&mut world.broker, ADMIN, 1);
        let request =
            format!("GET /admin/v1/trace?topic=t HTTP/1.1\r\nHost: localhost\r\n{credentials}\r\n");
        world.broker.send(peer, request.as_bytes());
        world.broker.await_verdicts();
        assert_eq!(told(&events(world, peer)), ["watching"], "{credentials}");
        peer
    };
    let by_token = open(&mut world, "Authorization: Bearer a-short-token\r\n");
    let by_password = open(&mut world, &credentials("oli", "secret"));
    let by_admin = open(&mut world, &credentials("ann", "secret"));
    let sees = |world: &mut World| {
        for peer in [by_token, by_password, by_admin] {
            world.broker.take(peer);
        }
        // Another one would have been silent for too long.
        let publisher = world.client(0, "publisher", 0);
        (world.broker).publish(publisher, V5, "t", "x", QoS::AtMostOnce);
        [by_token, by_password, by_admin].map(|peer| {
            let told = told(&events(world, peer));
            let is_over = world.broker.is_closed(peer);
            assert_eq!(told.is_empty(), is_over, "{peer:?}: {told:?}");
            !is_over
        })
    };
    assert_eq!(sees(&mut world), [true; 3]);
    world.broker.advance(101_000);
    assert_eq!(sees(&mut world), [false, true, true]);
    config.admin.operators.clear();
    world.broker.apply(Policy::load(&config).expect("a policy"));
    assert_eq!(sees(&mut world), [false, false, true]);
    let users = directory.path().join("users");
    let text = std::fs::read_to_string(&users).expect("a file");
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("ann:"))
        .collect();
    std::fs::write(&users, kept.join("\n")).expect("written");
    world.broker.apply(Policy::load(&config).expect("a policy"));
    assert_eq!(sees(&mut world), [false; 3]);
}

/// From the publisher's shard to the reader's, and back to the operator's.
#[test]
fn the_way_of_a_message_is_told_across_shards() {
    let mut world = World::new(3);
    let reader = world.client(2, "reader", 0);
    world.broker.subscribe(reader, V5, "t/#", QoS::AtLeastOnce);
    let publisher = world.client(0, "publisher", 0);
    let by_topic = begin(&mut world, "topic=t/%23");
    let by_reader = begin(&mut world, "client=reader");
    let by_publisher = begin(&mut world, "client=publisher");
    let of_both = begin(&mut world, "client=reader&topic=other/%23");
    world
        .broker
        .publish(publisher, V5, "t/1", "payload", QoS::AtLeastOnce);
    world
        .broker
        .publish(publisher, V5, "nobody", "payload", QoS::AtMostOnce);
    acknowledge(&mut world, reader);
    let seen = events(&mut world, by_topic);
    let way = [
        "received",
        "queued reader",
        "sent reader",
        "acknowledged reader",
    ];
    assert_eq!(told(&seen), way);
    assert_eq!(
        (&seen[0]["matched"], &seen[0]["payload_bytes"]),
        (&json!(1), &json!(7))
    );
    assert_eq!(seen[3]["outcome"], "accepted");
    assert_eq!(told(&events(&mut world, by_reader)), way[1..]);
    let seen = events(&mut world, by_publisher);
    let [received, queued, sent, acknowledged] = way;
    assert_eq!(
        told(&seen),
        [received, queued, sent, received, acknowledged]
    );
    assert_eq!(
        (&seen[3]["topic"], &seen[3]["matched"]),
        (&json!("nobody"), &json!(0))
    );
    assert!(seen.iter().all(|event| event["publisher"] == "publisher"));
    assert!(events(&mut world, of_both).is_empty());
}

/// Sessions that are away cost nothing for a message, so no event names them. Their number is told.
#[test]
fn readers_that_are_away_are_counted() {
    let store = MemoryStore::new();
    let mut world = World::of(Broker::restored(&config(), 2, Limits::default(), || {
        Box::new(store.clone())
    }));
    let present = world.client(1, "present", 0);
    world.broker.subscribe(present, V5, "t/#", QoS::AtLeastOnce);
    for (shard, name) in [(0, "away-0"), (1, "away-1")] {
        let away = world.client(shard, name, 1_000);
        world.broker.subscribe(away, V5, "t/#", QoS::AtLeastOnce);
        world.broker.cut(away);
    }
    let publisher = world.client(0, "publisher", 0);
    let trace = begin(&mut world, "topic=t/%23");
    for qos in [QoS::AtLeastOnce, QoS::AtMostOnce] {
        world.broker.publish(publisher, V5, "t/1", "payload", qos);
    }
    let seen = events(&mut world, trace);
    let received = seen.iter().filter(|event| event["event"] == "received");
    let counts = received.map(|event| (event["matched"].clone(), event["away"].clone()));
    let expected = (json!(3), json!(2));
    assert_eq!(counts.collect::<Vec<_>>(), [expected.clone(), expected]);
}

#[test]
fn what_is_not_delivered_has_its_reason() {
    let mut config = config();
    config.authorization = Authorization {
        rules: vec![Rule {
            effect: Effect::Deny,
            topics: vec!["secret/#".to_owned()],
            ..Rule::default()
        }],
        ..config.authorization
    };
    let mut world = World::with(&config, 2);
    let away = world.client(1, "away", 100);
    world.broker.subscribe(away, V5, "t/#", QoS::AtLeastOnce);
    world.broker.cut(away);
    let publisher = world.client(0, "publisher", 0);
    let peer = begin(&mut world, "client=publisher");
    world
        .broker
        .publish(publisher, V5, "t/1", "x", QoS::AtMostOnce);
    world
        .broker
        .publish(publisher, V5, "secret/1", "x", QoS::AtLeastOnce);
    world
        .broker
        .publish(publisher, V5, "t/2", "x", QoS::AtLeastOnce);
    let seen = told(&events(&mut world, peer));
    for expected in ["dropped awayaway", "refused not_authorized", "queued away"] {
        assert!(
            seen.iter().any(|line| line == expected),
            "{expected}: {seen:?}"
        );
    }
}

#[test]
fn traces_are_bounded_in_number_and_rate() {
    let mut config = config();
    config.admin.maximum_traces = 1;
    config.admin.maximum_trace_events_per_s = 3;
    let mut world = World::with(&config, 2);
    let publisher = world.client(0, "publisher", 0);
    let peer = begin(&mut world, "topic=%23");
    let refused = world.get("/admin/v1/trace?client=a");
    assert_eq!(refused.status, 503, "{refused:?}");
    for _ in 0..10 {
        world
            .broker
            .publish(publisher, V5, "t", "x", QoS::AtMostOnce);
    }
    let seen = events(&mut world, peer);
    let received = seen
        .iter()
        .filter(|event| event["event"] == "received")
        .count();
    let lost = seen.iter().filter_map(|event| event["events"].as_u64());
    assert_eq!((received, lost.sum::<u64>()), (3, 7));
    world.broker.advance(1_000);
    world
        .broker
        .publish(publisher, V5, "t", "x", QoS::AtMostOnce);
    assert_eq!(told(&events(&mut world, peer)), ["received"]);
    // It is told that it goes on, and makes room when it leaves.
    world.broker.advance(20_000);
    assert_eq!(told(&events(&mut world, peer)), ["alive"]);
    world.broker.cut(peer);
    begin(&mut world, "client=a");
    for wrong in ["", "topic=a/%23/b", "other=1"] {
        assert_eq!(
            world.get(&format!("/admin/v1/trace?{wrong}")).status,
            400,
            "{wrong}"
        );
    }
}

/// The end of the operator's side alone does not end a trace. A line at once finds out who has closed both sides.
#[test]
fn a_trace_says_that_it_goes_on_when_its_operator_ends_a_side() {
    let mut config = config();
    config.admin.maximum_traces = 1;
    let mut world = World::with(&config, 2);
    let peer = begin(&mut world, "topic=%23");
    world.broker.finish(peer, StreamId::FIRST);
    assert_eq!(told(&events(&mut world, peer)), ["alive"]);
    // The line meets nobody.
    world.broker.cut(peer);
    begin(&mut world, "client=a");
}

/// An operator that does not read costs so much and no more, and is told what it has missed.
#[test]
fn a_watcher_that_does_not_read_loses_events_and_is_told_how_many() {
    let mut config = config();
    config.admin.maximum_trace_events_per_s = 1_000_000;
    let mut world = World::with(&config, 2);
    let publisher = world.client(0, "publisher", 0);
    let peer = begin(&mut world, "topic=%23");
    world.broker.wires[1].unsent_bytes = 1 << 30;
    for _ in 0..20_000 {
        world
            .broker
            .publish(publisher, V5, "t", "x", QoS::AtMostOnce);
    }
    world.broker.wires[1].unsent_bytes = 0;
    world.broker.writable(peer);
    world
        .broker
        .publish(publisher, V5, "t", "x", QoS::AtMostOnce);
    let mut seen = Vec::new();
    loop {
        let more = events(&mut world, peer);
        if more.is_empty() {
            break;
        }
        seen.extend(more);
        world.broker.writable(peer);
    }
    let received = seen
        .iter()
        .filter(|event| event["event"] == "received")
        .count() as u64;
    let lost: u64 = seen
        .iter()
        .filter_map(|event| event["events"].as_u64())
        .sum();
    assert_eq!(received + lost, 20_001);
    assert!(lost > 15_000, "{received} were kept for it");
}

#[test]
fn a_trace_ends_with_the_broker() {
    let mut world = World::new(2);
    let peer = begin(&mut world, "topic=%23");
    world.broker.stop();
    assert!(world.broker.is_closed(peer));
    assert!(world.broker.finished());
}
