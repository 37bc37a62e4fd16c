//! Each reason of a dropped message, made through every door that has it: in the metrics and in a trace.

use serde_json::Value;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{DeliveryState, Outcome, Rejected, Source, Target, TargetArchetype};
use sterna_amqp::performatives::Role;
use sterna_broker::{Limits, NoStore};
use sterna_cluster::ToShard;
use sterna_mqtt::packet::{Connect, Packet, Will};
use sterna_mqtt::{PublishProperties, QoS, Version};
use sterna_server::Mail;
use sterna_server::config::{self, Config, Effect, Rule};
use sterna_store::MemoryStore;

use crate::admin::trace::{begin, events};
use crate::admin::world::{V5, World};
use crate::amqp_client::{Client as Amqp, Start, message_to};
use crate::fixture::{Broker, Peer, plain};
use crate::page::{ADMIN, AMQP, HTTP, answer, config, connect, get};

const DROPPED: &str = "sterna_messages_dropped_total";

/// Holds that messages were dropped for these reasons, by protocol, and no others.
fn assert_dropped(world: &mut World, expected: &[(&str, &str, u64)]) {
    let peer = connect(&mut world.broker, ADMIN, 0);
    let page = get(&mut world.broker, peer, "/metrics", "").content;
    let of_drops = page.lines().filter_map(|line| line.strip_prefix(DROPPED));
    let mut counted: Vec<&str> = of_drops.filter(|line| !line.ends_with(" 0")).collect();
    let sample = |(reason, protocol, count): &(&str, &str, u64)| {
        format!(r#"{{reason="{reason}",protocol="{protocol}"}} {count}"#)
    };
    let mut expected: Vec<String> = expected.iter().map(sample).collect();
    counted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(counted, expected);
}

/// Events of one name, each with who publishes or reads, its topic and its reason.
fn told(events: &[Value], name: &str) -> Vec<String> {
    let text = |event: &Value, member: &str| event[member].as_str().unwrap_or("-").to_owned();
    let of_name = events.iter().filter(|event| event["event"] == name);
    let line = |event: &Value| {
        let who = if name == "refused" {
            "publisher"
        } else {
            "reader"
        };
        [who, "topic", "reason"]
            .map(|member| text(event, member))
            .join(" ")
    };
    of_name.map(line).collect()
}

fn amqp(world: &mut World, container: &str, shard: usize) -> Amqp {
    world.broker.listener = AMQP;
    let client = Amqp::start(&mut world.broker, Start::new(container).on(shard));
    world.broker.listener = 0;
    client
}

/// Posts by HTTP/1.1; the status.
fn post(world: &mut World, topic: &str) -> u16 {
    let peer = connect(&mut world.broker, HTTP, 0);
    let request = format!(
        "POST /v1/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
    );
    world.broker.send(peer, request.as_bytes());
    answer(&mut world.broker, peer).expect("an answer").status
}

/// Publishes to a topic by each protocol, once; each is refused. `rejected` is what AMQP says.
fn refused_everywhere(world: &mut World, mqtt: Peer, topic: &str, rejected: &str, status: u16) {
    world.broker.publish(mqtt, V5, topic, "x", QoS::AtLeastOnce);
    let said = world.broker.told(mqtt, V5);
    assert!(
        !said.iter().any(|line| line.contains("Success")),
        "{said:?}"
    );
    send_refused(world, topic, rejected);
    assert_eq!(post(world, topic), status);
}

fn send_refused(world: &mut World, topic: &str, rejected: &str) {
    let mut client = amqp(world, "container", 0);
    let session = client.begin(&mut world.broker);
    let link = client.sender(&mut world.broker, session, topic);
    client.send(&mut world.broker, link, 1, "x");
    let expected = [(1, format!("rejected {rejected}"))];
    assert_eq!(client.outcomes(), expected);
}

fn leave_will(world: &mut World, topic: &str) {
    let peer = world.broker.open();
    let will = Will {
        topic,
        payload: b"x",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: PublishProperties::EMPTY,
    };
    let connect = Connect {
        will: Some(will),
        ..plain(V5, "leaver")
    };
    world.broker.packet(peer, V5, &Packet::Connect(connect));
    world.broker.cut(peer);
}

#[test]
fn queue_refused() {
    let mut world = World::of(Broker::with_small_queue(&config(), 2));
    let mqtt = world.client(0, "publisher", 0);
    world
        .broker
        .publish(mqtt, V5, "a", "first", QoS::AtLeastOnce);
    world.broker.told(mqtt, V5);
    let trace = begin(&mut world, "topic=a");
    refused_everywhere(&mut world, mqtt, "a", "amqp:resource-limit-exceeded", 503);
    let content = r#"{"topic":"a","qos":1}"#;
    assert_eq!(world.call("POST", "/admin/v1/publish", content).status, 503);
    leave_will(&mut world, "a");
    let of_one = |protocol| ("queue_refused", protocol, 1);
    let internal = ("queue_refused", "internal", 2); // the operator's, and the will
    let expected = [of_one("mqtt"), of_one("amqp"), of_one("http"), internal];
    assert_dropped(&mut world, &expected);
    let seen = told(&events(&mut world, trace), "refused");
    let by = |name: &str| format!("{name} a queue_refused");
    assert_eq!(seen, ["publisher", "container", "", "", "-"].map(by));
}

/// The broker knows nothing of these, and what it has refused of its own stays counted.
#[test]
fn queue_refused_where_a_transaction_is_too_large() {
    let mut config = config();
    config.amqp.maximum_transaction_deliveries = 1;
    let mut world = World::of(Broker::with_small_queue(&config, 1));
    let mqtt = world.client(0, "publisher", 0);
    world
        .broker
        .publish(mqtt, V5, "a", "first", QoS::AtLeastOnce);
    leave_will(&mut world, "a");
    let internal = ("queue_refused", "internal", 1);
    assert_dropped(&mut world, &[internal]);
    let mut client = amqp(&mut world, "container", 0);
    let session = client.begin(&mut world.broker);
    let link = client.sender(&mut world.broker, session, "b");
    let coordinator = client.coordinator(&mut world.broker, session);
    let txn = client.declare(&mut world.broker, coordinator);
    let txn = txn.expect("declared");
    for _ in 0..2 {
        client.post(&mut world.broker, link, 1, &txn, "x");
    }
    assert_dropped(&mut world, &[internal, ("queue_refused", "amqp", 1)]);
}

#[test]
fn store_full() {
    let store = MemoryStore::new();
    let mut world = World::of(Broker::restored(&config(), 2, Limits::default(), || {
        Box::new(store.clone())
    }));
    let reader = world.client(0, "reader", 1_000);
    world.broker.subscribe(reader, V5, "a", QoS::AtLeastOnce);
    world.broker.cut(reader);
    let mqtt = world.client(0, "publisher", 0);
    let old = world.broker.client(Version::V311, "old");
    store.set_full(true);
    let trace = begin(&mut world, "topic=a");
    refused_everywhere(&mut world, mqtt, "a", "amqp:resource-limit-exceeded", 507);
    // [MQTT311-3.3.5-2] an acknowledgement would say that it is kept
    (world.broker).publish(old, Version::V311, "a", "x", QoS::AtLeastOnce);
    assert!(world.broker.is_closed(old));
    let content = r#"{"topic":"a","qos":1}"#;
    assert_eq!(world.call("POST", "/admin/v1/publish", content).status, 507);
    leave_will(&mut world, "a");
    let expected = [
        ("store_full", "mqtt", 2),
        ("store_full", "amqp", 1),
        ("store_full", "http", 1),
        ("store_full", "internal", 2),
    ];
    assert_dropped(&mut world, &expected);
    let seen = told(&events(&mut world, trace), "refused");
    let by = |name: &str| format!("{name} a store_full");
    assert_eq!(seen, ["publisher", "container", "", "old", "", "-"].map(by));
}

/// A node whose NATS was never there: nobody knows what others want. New sessions of MQTT wait there, so its publishers
/// are not among these.
#[test]
fn cluster_away() {
    let mut config = config();
    config.cluster.nats = vec!["nats://127.0.0.1:1".to_owned()];
    config.cluster.node = Some("n1".to_owned());
    let mut world = World::with(&config, 2);
    let trace = begin(&mut world, "topic=a");
    send_refused(&mut world, "a", "amqp:resource-limit-exceeded");
    assert_eq!(post(&mut world, "a"), 503);
    let content = r#"{"topic":"a","qos":1}"#;
    assert_eq!(world.call("POST", "/admin/v1/publish", content).status, 503);
    let expected = [
        ("cluster_away", "amqp", 1),
        ("cluster_away", "http", 1),
        ("cluster_away", "internal", 1),
    ];
    assert_dropped(&mut world, &expected);
    let seen = told(&events(&mut world, trace), "refused");
    let by = |name: &str| format!("{name} a cluster_away");
    assert_eq!(seen, ["container", "", ""].map(by));
    // They want nothing, as it is known then: clients of this node go on.
    let letter = Mail::Cluster(Box::new(ToShard::WantedIsWhole));
    world.broker.letter(0, letter);
    assert_eq!(post(&mut world, "a"), 204);
}

/// Readers of each protocol that take nothing for longer than messages of QoS 0 are kept.
#[test]
fn too_late() {
    let limits = Limits {
        queued_qos0_age_ms: 1_000,
        ..Limits::default()
    };
    let broker = Broker::restored(&config(), 2, limits, || Box::new(NoStore));
    let mut world = World::of(broker);
    let mqtt = world.client(1, "reader", 0);
    world.broker.subscribe(mqtt, V5, "a", QoS::AtMostOnce);
    let mut amqp = amqp(&mut world, "c", 1);
    let session = amqp.begin(&mut world.broker);
    amqp.receiver(&mut world.broker, session, "r", Source::new("a"), 10);
    let http = connect(&mut world.broker, HTTP, 1);
    let request = b"GET /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
    world.broker.send(http, request);
    let publisher = world.client(0, "publisher", 0);
    let trace = begin(&mut world, "topic=a");
    let readers = [mqtt, amqp.peer, http];
    world.broker.wires[1].unsent_bytes = 1 << 30;
    for _ in 0..2 {
        (world.broker).publish(publisher, V5, "a", "x", QoS::AtMostOnce);
    }
    world.broker.advance(5_000);
    world.broker.wires[1].unsent_bytes = 0;
    for reader in readers {
        world.broker.writable(reader);
    }
    let lost = |protocol| ("too_late", protocol, 2);
    assert_dropped(&mut world, &[lost("mqtt"), lost("http")]);
    let seen = told(&events(&mut world, trace), "dropped");
    assert!(
        seen.iter().all(|line| line.ends_with("a too_late")),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 4, "{seen:?}");
    // Who gives credit when it pleases is waited for.
    amqp.turn(&mut world.broker);
    assert_eq!(amqp.texts(), ["x", "x"]);
}

#[test]
fn undeliverable() {
    let mut world = World::new(2);
    let mut client = amqp(&mut world, "c", 1);
    let session = client.begin(&mut world.broker);
    let sender = client.sender(&mut world.broker, session, "queue/q");
    client.receiver(&mut world.broker, session, "r", Source::new("queue/q"), 1);
    let trace = begin(&mut world, "topic=%23");
    client.send(&mut world.broker, sender, 1, "x");
    let id = client.received.pop().expect("the message").id;
    let rejected = DeliveryState::Outcome(Outcome::Rejected(Rejected { error: None }));
    client.dispose(&mut world.broker, session, (id, id), &rejected, true);
    assert_dropped(&mut world, &[("undeliverable", "shared", 1)]);
    let seen = told(&events(&mut world, trace), "dropped");
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].starts_with("$share/"), "{seen:?}");
    assert!(seen[0].ends_with(" undeliverable"), "{seen:?}");
}

#[test]
fn invalid() {
    let limits = Limits {
        topic_levels: 2,
        ..Limits::default()
    };
    let broker = Broker::restored(&config(), 2, limits, || Box::new(NoStore));
    let mut world = World::of(broker);
    let mqtt = world.client(0, "publisher", 0);
    let trace = begin(&mut world, "topic=a/b/c");
    refused_everywhere(&mut world, mqtt, "a/b/c", "amqp:invalid-field", 400);
    let lost = |protocol| ("invalid", protocol, 1);
    assert_dropped(&mut world, &[lost("mqtt"), lost("amqp"), lost("http")]);
    let seen = told(&events(&mut world, trace), "refused");
    let by = |name: &str| format!("{name} a/b/c invalid");
    assert_eq!(seen, ["publisher", "container", ""].map(by));
}

/// Larger than the reader takes, at QoS 0 and 1, in the two protocols in which a reader can say so.
#[test]
fn too_large() {
    let mut world = World::new(2);
    let mqtt = world
        .broker
        .open_on(1, sterna_net::TransportKind::Tcp, Vec::new());
    let properties = crate::fixture::block(&[sterna_mqtt::Property::MaximumPacketSize(60)]);
    let small = Connect {
        properties: properties.properties(),
        ..plain(V5, "reader")
    };
    world.broker.packet(mqtt, V5, &Packet::Connect(small));
    world.broker.told(mqtt, V5);
    world.broker.subscribe(mqtt, V5, "a", QoS::AtLeastOnce);
    let mut amqp = amqp(&mut world, "c", 1);
    let session = amqp.begin(&mut world.broker);
    let options = AttachOptions {
        source: Some(Source::new("a")),
        target: Some(TargetArchetype::Target(Target::default())),
        max_message_size: Some(60),
        ..AttachOptions::default()
    };
    let link = amqp.attach(&mut world.broker, session, "r", Role::Receiver, &options);
    amqp.credit(&mut world.broker, link, 10);
    let publisher = world.client(0, "publisher", 0);
    let trace = begin(&mut world, "topic=a");
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let text = "x".repeat(100);
        world.broker.publish(publisher, V5, "a", &text, qos);
    }
    assert_dropped(
        &mut world,
        &[("too_large", "mqtt", 2), ("too_large", "amqp", 2)],
    );
    let seen = told(&events(&mut world, trace), "dropped");
    assert!(
        seen.iter().all(|line| line.ends_with("a too_large")),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn rate_exceeded_and_not_authorized() {
    let limit = "[[authorization.limit]]\nmessages_per_s = 1\nexceeded = 'refuse'\n";
    let limit = config::parse("x", limit).expect("a limit");
    let limited = |limits, rules| Config {
        authorization: config::Authorization {
            limits,
            rules,
            ..config().authorization
        },
        ..config()
    };
    let mut world = World::with(&limited(limit.authorization.limits, Vec::new()), 2);
    let mqtt = world.client(0, "publisher", 0);
    world.broker.publish(mqtt, V5, "a", "x", QoS::AtMostOnce);
    let trace = begin(&mut world, "topic=a");
    refused_everywhere(&mut world, mqtt, "a", "amqp:resource-limit-exceeded", 429);
    let lost = |protocol| ("rate_exceeded", protocol, 1);
    assert_dropped(&mut world, &[lost("mqtt"), lost("amqp"), lost("http")]);
    let seen = told(&events(&mut world, trace), "refused");
    let by = |name: &str| format!("{name} a rate_exceeded");
    assert_eq!(seen, ["publisher", "container", ""].map(by));

    let deny = Rule {
        effect: Effect::Deny,
        topics: vec!["a".to_owned()],
        ..Rule::default()
    };
    let mut world = World::with(&limited(Vec::new(), vec![deny]), 2);
    let mqtt = world.client(0, "publisher", 0);
    let trace = begin(&mut world, "client=container");
    world.broker.publish(mqtt, V5, "a", "x", QoS::AtLeastOnce);
    assert_eq!(post(&mut world, "a"), 403);
    // A link to the topic would be refused: the message names it.
    let mut client = amqp(&mut world, "container", 0);
    let session = client.begin(&mut world.broker);
    let link = client.anonymous_sender(&mut world.broker, session);
    let message = message_to("a", "x");
    client.send_message(&mut world.broker, link, 1, &message, false, None);
    let lost = |protocol| ("not_authorized", protocol, 1);
    assert_dropped(&mut world, &[lost("mqtt"), lost("amqp"), lost("http")]);
    let seen = told(&events(&mut world, trace), "refused");
    assert_eq!(seen, ["container  not_authorized"]);
}
