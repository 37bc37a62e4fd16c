//! Queues: what waits, and what operators do with it.

use serde_json::{Value, json};
use sterna_amqp::messaging::{DeliveryState, Outcome, Rejected, Source};
use sterna_mqtt::QoS;
use sterna_server::config::{Config, Queue};

use crate::admin::world::{V5, World, names};
use crate::amqp_client::{Client as Amqp, Start};
use crate::page;

/// The configuration with some queues.
pub(crate) fn config() -> Config {
    let queue = |name: &str| Queue {
        name: name.to_owned(),
        ..Queue::default()
    };
    let mut config = page::config();
    config.amqp.queues = vec![
        Queue {
            dead_letter: Some("dead".to_owned()),
            maximum_deliveries: Some(3),
            ..queue("orders")
        },
        queue("dead"),
        queue("q"),
        Queue {
            filter: Some("alarms/#".to_owned()),
            ..queue("alarms")
        },
    ];
    config
}

fn publish(world: &mut World, topic: &str, payload: &str) -> u16 {
    let content = json!({"topic": topic, "payload": payload, "qos": 1}).to_string();
    world.call("POST", "/admin/v1/publish", &content).status
}

fn payloads(items: &[Value]) -> Vec<&str> {
    let payloads = items
        .iter()
        .map(|item| item["payload"].as_str().expect("text"));
    payloads.collect()
}

fn depth(world: &mut World, queue: &str) -> u64 {
    let queue = world.read(&format!("/admin/v1/queues/{queue}"));
    queue["messages"].as_u64().expect("a number")
}

/// The session that keeps a queue is nobody who is away.
#[test]
fn queues_are_no_clients() {
    let mut world = World::with(&config(), 3);
    let node = world.read("/admin/v1/node");
    assert_eq!(
        (&node["clients_disconnected"], &node["sessions"]),
        (&json!(0), &json!(4))
    );
    let away = world.client(0, "away", 100);
    world.broker.cut(away);
    let page = page::scrape(&mut world.broker);
    assert_eq!(page.value(r#"sterna_clients{state="disconnected"}"#), 1);
    assert_eq!(page.value(r#"sterna_clients{state="connected"}"#), 0);
}

#[test]
fn a_dead_letter_says_why_it_is_one() {
    let mut world = World::with(&config(), 1);
    assert_eq!(publish(&mut world, "queue/orders", "m"), 200);
    let all = world.all("/admin/v1/queues/orders/messages", 2);
    assert_eq!(all[0].get("dead_letter"), None);
    world.broker.listener = page::AMQP;
    let mut client = Amqp::start(&mut world.broker, Start::new("c"));
    world.broker.listener = 0;
    let session = client.begin(&mut world.broker);
    let source = Source::new("queue/orders");
    client.receiver(&mut world.broker, session, "r", source, 1);
    let rejected = DeliveryState::Outcome(Outcome::Rejected(Rejected { error: None }));
    client.dispose(&mut world.broker, session, (0, 0), &rejected, true);
    let dead = world.all("/admin/v1/queues/dead/messages", 2);
    let expected = json!({ "queue": "orders", "cause": "rejected", "failures": 0 });
    assert_eq!(dead[0]["dead_letter"], expected);
}

#[test]
fn queues_are_listed_with_depth_consumers_and_rules() {
    let mut world = World::with(&config(), 3);
    for limit in [1, 2, 100] {
        let queues = world.all("/admin/v1/queues", limit);
        assert_eq!(names(&queues), ["alarms", "dead", "orders", "q"], "{limit}");
    }
    for number in 0..5 {
        assert_eq!(
            publish(&mut world, "queue/orders", &format!("m{number}")),
            200
        );
    }
    let orders = world.read("/admin/v1/queues/orders");
    let expected = json!({
        "name": "orders", "filter": "queue/orders", "messages": 5, "delayed": 0, "bytes": 5 * 14,
        "consumers": 0, "maximum_deliveries": 3, "dead_letter": "dead", "has_priorities": false,
        "shard": orders["shard"], "node": null,
    });
    assert_eq!(orders, expected);
    assert_eq!(world.read("/admin/v1/queues/alarms")["filter"], "alarms/#");
    let all = world.all("/admin/v1/queues/orders/messages", 2);
    assert_eq!(payloads(&all), ["m0", "m1", "m2", "m3", "m4"]);
    assert_eq!(depth(&mut world, "orders"), 5, "a look takes nothing");
    let consumer = world.client(0, "consumer", 0);
    world
        .broker
        .subscribe(consumer, V5, "$share/orders/queue/orders", QoS::AtLeastOnce);
    let orders = world.read("/admin/v1/queues/orders");
    assert_eq!(
        (&orders["consumers"], &orders["messages"]),
        (&json!(1), &json!(0))
    );
    for path in ["nothing", "nothing/messages"] {
        let told = world.get(&format!("/admin/v1/queues/{path}"));
        assert_eq!(told.status, 404, "{path}");
        assert_eq!(told.json["type"], "urn:sterna:problem:no-queue");
    }
}

#[test]
fn a_queue_is_purged_from_its_front() {
    let mut world = World::with(&config(), 2);
    for number in 0..10 {
        publish(&mut world, "queue/orders", &number.to_string());
    }
    let told = world.call("DELETE", "/admin/v1/queues/orders/messages?limit=4", "");
    assert_eq!(told.status, 200);
    assert_eq!(
        told.json,
        json!({"messages": 4, "left": 6, "is_refused": false})
    );
    let left = world.all("/admin/v1/queues/orders/messages", 100);
    assert_eq!(payloads(&left), ["4", "5", "6", "7", "8", "9"]);
    let told = world.call("DELETE", "/admin/v1/queues/orders/messages", "");
    assert_eq!(told.json["left"], 0);
    assert_eq!(
        world.read("/admin/v1/node")["queued_messages"],
        0,
        "nothing is left behind"
    );
    let told = world.call("DELETE", "/admin/v1/queues/orders/messages", "");
    assert_eq!(told.json["messages"], 0);
}

/// Dead letters go back to where they came from, in their order, and nothing is lost or doubled.
#[test]
fn messages_are_moved_to_another_queue() {
    let mut world = World::with(&config(), 3);
    for number in 0..5 {
        publish(&mut world, "queue/dead", &number.to_string());
    }
    let told = world.call(
        "POST",
        "/admin/v1/queues/dead/move",
        r#"{"to":"orders","limit":3}"#,
    );
    assert_eq!(
        told.json,
        json!({"messages": 3, "left": 2, "is_refused": false})
    );
    let moved = world.all("/admin/v1/queues/orders/messages", 100);
    assert_eq!(payloads(&moved), ["0", "1", "2"]);
    assert_eq!(moved[0]["topic"], "queue/orders");
    let told = world.call("POST", "/admin/v1/queues/dead/move", r#"{"to":"orders"}"#);
    assert_eq!(told.json["left"], 0);
    assert_eq!(depth(&mut world, "orders"), 5);
    for (content, status) in [
        (r#"{"to":"nothing"}"#, 404),
        (r#"{"to":"orders"}"#, 200),
        (r#"{"to":"dead"}"#, 409),
        (r#"{"to":"alarms"}"#, 409),
        (r#"{"to":"orders","limit":0}"#, 400),
        (r#"{"to":"orders","limit":10001}"#, 200),
        ("{}", 400),
    ] {
        let told = world.call("POST", "/admin/v1/queues/dead/move", content);
        assert_eq!(told.status, status, "{content}");
    }
}

/// What the other queue has no room for stays where it is.
#[test]
fn a_move_into_a_full_queue_ends_there() {
    let limits = sterna_broker::Limits {
        group_queued_messages: 4,
        ..sterna_broker::Limits::default()
    };
    let broker =
        crate::fixture::Broker::restored(&config(), 1, limits, || Box::new(sterna_broker::NoStore));
    let mut world = World::of(broker);
    for number in 0..2 {
        assert_eq!(
            publish(&mut world, "queue/orders", &number.to_string()),
            200
        );
    }
    for number in 2..6 {
        assert_eq!(publish(&mut world, "queue/dead", &number.to_string()), 200);
    }
    assert_eq!(publish(&mut world, "queue/dead", "one more"), 503);
    let told = world.call("POST", "/admin/v1/queues/dead/move", r#"{"to":"orders"}"#);
    assert_eq!(
        told.json,
        json!({"messages": 2, "left": 2, "is_refused": true})
    );
    let orders = world.all("/admin/v1/queues/orders/messages", 9);
    assert_eq!(payloads(&orders), ["0", "1", "2", "3"]);
    let dead = world.all("/admin/v1/queues/dead/messages", 9);
    assert_eq!(payloads(&dead), ["4", "5"]);
}

/// Else the places that somebody's queues take are taken for good.
#[test]
fn a_queue_that_is_not_declared_is_removed_with_its_messages() {
    let mut config = config();
    config.amqp.maximum_queues_per_user = 1;
    let mut world = World::with(&config, 2);
    world.broker.listener = page::AMQP;
    let mut client = Amqp::connect(&mut world.broker, "c");
    world.broker.listener = page::MQTT;
    let session = client.begin(&mut world.broker);
    let made = client.sender(&mut world.broker, session, "queue/made");
    client.send(&mut world.broker, made, 1, "m");
    assert_eq!(client.outcomes(), [(1, "accepted".to_owned())]);
    assert_eq!(depth(&mut world, "made"), 1);
    client.sender(&mut world.broker, session, "queue/other");
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:resource-limit-exceeded"));
    for (queue, status, kind) in [
        ("orders", 409, "conflict"),
        ("nothing", 404, "no-queue"),
        ("other", 404, "no-queue"),
    ] {
        let told = world.call("DELETE", &format!("/admin/v1/queues/{queue}"), "");
        assert_eq!(told.status, status, "{queue}");
        assert_eq!(told.json["type"], format!("urn:sterna:problem:{kind}"));
    }
    let answer = world.send(
        "DELETE",
        "/admin/v1/queues/made",
        "Sterna-Request: 1\r\n",
        "",
    );
    assert_eq!(answer.status, 204);
    assert_eq!(world.get("/admin/v1/queues/made").status, 404);
    assert_eq!(world.read("/admin/v1/node")["queued_messages"], 0);
    let queues = world.all("/admin/v1/queues", 100);
    assert_eq!(names(&queues), ["alarms", "dead", "orders", "q"]);
    // Its user may make another.
    client.sender(&mut world.broker, session, "queue/another");
    assert_eq!(client.condition(), None);
}
