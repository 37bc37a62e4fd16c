//! What operators read, and what they end.

use serde_json::json;
use sterna_amqp::messaging::Source;
use sterna_mqtt::QoS;
use sterna_mqtt::packet::{Packet, SubscribeOptions};
use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::admin::world::{V5, World, names};
use crate::amqp_client::{Client as Amqp, Start};
use crate::fixture::plain;
use crate::page::{AMQP, HTTP, config, connect};

#[test]
fn connected_clients_are_listed_with_identity_path_and_queue() {
    let mut world = World::new(2);
    for (shard, name) in [(0, "a"), (1, "b"), (1, "c")] {
        let peer = world.client(shard, name, 0);
        world.broker.subscribe(peer, V5, "t/#", QoS::AtLeastOnce);
    }
    connect(&mut world.broker, HTTP, 1);
    let clients = world.all("/admin/v1/clients", 100);
    assert_eq!(
        names(&clients),
        ["-", "a", "b", "c"],
        "the operator is none of them"
    );
    let client = clients
        .iter()
        .find(|client| client["name"] == "b")
        .expect("b");
    assert_eq!(client["protocol"], "mqtt");
    assert_eq!(client["version"], "5.0");
    assert_eq!(client["transport"], "tcp");
    assert_eq!(client["proof"], "nothing");
    assert_eq!(client["user"], json!(null));
    assert_eq!(client["subscriptions"], 1);
    assert_eq!(client["pending"], 0);
    assert_eq!(client["path"]["rtt_us"], 1_234);
    let id = client["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("1."), "its shard: {id}");
    let one = world.read(&format!("/admin/v1/clients/{id}"));
    assert_eq!(one, *client);
    let by_name = world.all("/admin/v1/clients?name=c", 100);
    assert_eq!(names(&by_name), ["c"]);
    for wrong in ["9.0.1", "1.77.1", "x"] {
        let told = world.get(&format!("/admin/v1/clients/{wrong}"));
        assert_eq!(told.status, 404, "{wrong}");
        assert_eq!(told.json["type"], "urn:sterna:problem:no-client");
    }
}

/// However small pages are, and wherever clients are, each is on exactly one page.
#[test]
fn pages_show_each_client_and_session_once() {
    let mut world = World::new(3);
    let mut expected = Vec::new();
    for number in 0..25 {
        let name = format!("client-{number:02}");
        world.client(number * 7 % 3, &name, 100);
        expected.push(name);
    }
    for limit in [1, 2, 7, 25, 1_000] {
        assert_eq!(
            names(&world.all("/admin/v1/clients", limit)),
            expected,
            "{limit}"
        );
        assert_eq!(
            names(&world.all("/admin/v1/sessions", limit)),
            expected,
            "{limit}"
        );
    }
    for wrong in [
        "limit=0",
        "limit=x",
        "after=x",
        "after=9.0",
        "after=1",
        "x=1",
    ] {
        let told = world.get(&format!("/admin/v1/sessions?{wrong}"));
        assert_eq!(told.status, 400, "{wrong}");
        assert_eq!(told.json["type"], "urn:sterna:problem:invalid-parameter");
    }
}

/// A client that asks for more than the settings let it have gets as much as that.
#[test]
fn pages_are_no_longer_than_the_settings_say() {
    let mut config = config();
    config.admin.maximum_page = 4;
    let mut world = World::with(&config, 2);
    for number in 0..10 {
        world.client(number % 2, &format!("client-{number}"), 100);
    }
    for list in ["clients", "clients?sort=name", "sessions"] {
        let separator = if list.contains('?') { '&' } else { '?' };
        let page = world.get(&format!("/admin/v1/{list}{separator}limit=500"));
        assert_eq!((page.status, page.items().len()), (200, 4), "{list}");
        assert_eq!(world.all(&format!("/admin/v1/{list}"), 500).len(), 10);
    }
}

/// Who gets a topic, over all shards, in pages of any size and however few sessions are looked at for one.
#[test]
fn subscriptions_are_found_by_topic_and_filter() {
    let mut config = config();
    config.admin.maximum_scan = 3;
    let mut world = World::with(&config, 3);
    for number in 0..9 {
        let peer = world.client(number % 3, &format!("c{number}"), 100);
        for filter in ["a/+", "a/b", "$share/g/a/b", "x y/#"] {
            world.broker.subscribe(peer, V5, filter, QoS::AtLeastOnce);
        }
        if number % 2 == 0 {
            world.broker.cut(peer);
        }
    }
    let queues = connect(&mut world.broker, HTTP, 1);
    let request = b"GET /v1/topics/a%2Fb HTTP/1.1\r\nHost: localhost\r\n\r\n";
    world.broker.send(queues, request);
    for limit in [1, 2, 3, 7, 100] {
        for (query, expected) in [
            ("", 37),
            ("?topic=a%2Fb", 28),
            ("?topic=a%2Fc", 9),
            ("?topic=x%20y", 9),
            ("?topic=x", 0),
            ("?filter=a%2F%2B", 9),
            ("?filter=%24share%2Fg%2Fa%2Fb", 9),
            ("?filter=a%2F%2B&topic=x", 0),
        ] {
            let (mut found, mut after) = (Vec::new(), String::new());
            loop {
                let and = if query.is_empty() { '?' } else { '&' };
                let path = format!("/admin/v1/subscriptions{query}{and}limit={limit}{after}");
                let page = world.read(&path);
                let items = page["items"].as_array().expect("a page");
                assert!(items.len() <= limit);
                found.extend(items.iter().map(|one| {
                    let part = |name: &str| one[name].as_str().expect("a text").to_owned();
                    (part("session"), part("filter"))
                }));
                let Some(next) = page["next"].as_str() else {
                    break;
                };
                let mut encoded = String::new();
                sterna_mapping::percent::encode(
                    next.as_bytes(),
                    sterna_mapping::percent::is_unreserved,
                    &mut encoded,
                );
                after = format!("&after={encoded}");
            }
            let all = found.len();
            found.sort_unstable();
            found.dedup();
            assert_eq!((found.len(), all), (expected, expected), "{query} {limit}");
        }
    }
    let topic = world.read("/admin/v1/topics/a/b");
    assert_eq!(
        topic["matched"], 11,
        "nine sessions, their group, and HTTP's: {topic}"
    );
    assert_eq!(topic["shared_subscriptions"], 1);
    assert_eq!(topic["is_retained"], false);
    assert_eq!(world.read("/admin/v1/topics/none")["matched"], 0);
    let told = world.get("/admin/v1/topics/a%2F%2B");
    assert_eq!(told.status, 400, "{told:?}");
}

/// Each connection knows since when it is there, and how many messages passed over it, at every door.
#[test]
fn messages_are_counted_by_client() {
    let mut world = World::new(2);
    let now_ms = world.read("/admin/v1/node")["now_ms"]
        .as_u64()
        .expect("a time");
    let mqtt = world.client(1, "m", 0);
    world.broker.subscribe(mqtt, V5, "t", QoS::AtLeastOnce);
    let mut amqp = {
        world.broker.listener = AMQP;
        let client = Amqp::start(&mut world.broker, Start::new("a").on(0));
        world.broker.listener = 0;
        client
    };
    let session = amqp.begin(&mut world.broker);
    amqp.receiver(&mut world.broker, session, "r", Source::new("t"), 100);
    let http = connect(&mut world.broker, HTTP, 1);
    let request = b"GET /v1/topics/t HTTP/1.1\r\nHost: localhost\r\n\r\n";
    world.broker.send(http, request);
    for _ in 0..3 {
        world.broker.publish(mqtt, V5, "t", "x", QoS::AtLeastOnce);
    }
    let link = amqp.sender(&mut world.broker, session, "t");
    for number in 0..2 {
        amqp.send(&mut world.broker, link, number, "x");
    }
    let second = connect(&mut world.broker, HTTP, 0);
    let post = b"POST /v1/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
    world.broker.send(second, post);
    let clients = world.all("/admin/v1/clients?sort=messages", 100);
    let counts: Vec<(u64, u64)> = (clients.iter())
        .map(|client| {
            let count = |name: &str| client[name].as_u64().expect("a count");
            let since_ms = count("since_ms");
            assert!(since_ms.abs_diff(now_ms) < 60_000, "{client}");
            (count("messages_received"), count("messages_sent"))
        })
        .collect();
    // Most first: MQTT with three of its own and all six, AMQP with two and all, HTTP's reader and publisher.
    assert_eq!(counts, [(3, 6), (2, 6), (0, 6), (1, 0)]);
}

/// The connections of one user, whatever they are called.
#[test]
fn clients_are_found_by_user() {
    let mut config = config();
    config.tls.certificate_as_username = true;
    let mut world = World::with(&config, 2);
    world.client(0, "nameless", 0);
    for (shard, name, user) in [(0, "a", "ann"), (1, "b", "ann"), (1, "c", "bob")] {
        let shown = vec![certificate(user)];
        let peer = world.broker.open_on(shard, TransportKind::Tls, shown);
        world
            .broker
            .packet(peer, V5, &Packet::Connect(plain(V5, name)));
        assert!(world.broker.told(peer, V5)[0].starts_with("CONNACK Success"));
    }
    for (query, expected) in [
        ("user=ann", &["a", "b"][..]),
        ("user=bob", &["c"]),
        ("user=eve", &[]),
        ("user=ann&name=b", &["b"]),
        ("user=ann&sort=name", &["a", "b"]),
    ] {
        let found = world.all(&format!("/admin/v1/clients?{query}"), 100);
        assert_eq!(names(&found), expected, "{query}");
    }
}

fn certificate(name: &str) -> Box<[u8]> {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2030, 1, 1);
    let certificate = params.self_signed(&key).expect("a certificate");
    certificate.der().as_ref().into()
}

/// Clients in an order, over all shards and in pages of any size.
#[test]
fn clients_are_sorted_over_all_shards() {
    let mut config = config();
    // So that a shard is asked again and again for one page.
    config.admin.maximum_scan = 3;
    let mut world = World::with(&config, 3);
    for number in 0..20_u64 {
        let name = format!("client-{number:02}");
        let peer = world.client(number as usize * 7 % 3, &name, 0);
        let path = world.broker.wires[peer.shard]
            .paths
            .entry(peer.id)
            .or_default();
        path.rtt_us = number * 13 % 20;
        path.sent_datagrams = 100;
        path.lost_packets = number * 3 % 20;
        path.sent_bytes = number * 11 % 20;
    }
    let expected = |figure: fn(u64) -> u64| {
        let mut numbers: Vec<u64> = (0..20).collect();
        numbers.sort_by_key(|number| std::cmp::Reverse(figure(*number)));
        let names = numbers.iter().map(|number| format!("client-{number:02}"));
        names.collect::<Vec<_>>()
    };
    let in_order = |world: &mut World, sort: &str, limit: usize| {
        let all = world.all(&format!("/admin/v1/clients?sort={sort}"), limit);
        let names = all
            .iter()
            .map(|client| client["name"].as_str().map(str::to_owned));
        names.map(Option::unwrap_or_default).collect::<Vec<_>>()
    };
    for limit in [1, 6, 20, 1_000] {
        for (sort, expected) in [
            ("rtt", expected(|number| number * 13 % 20)),
            ("loss", expected(|number| number * 3 % 20)),
            ("bytes", expected(|number| number * 11 % 20)),
            ("name", expected(|number| 20 - number)),
        ] {
            assert_eq!(
                in_order(&mut world, sort, limit),
                expected,
                "{sort} {limit}"
            );
        }
    }
    assert_eq!(
        names(&world.all("/admin/v1/clients?sort=rtt&name=client-07", 5)),
        ["client-07"]
    );
    for wrong in ["sort=x", "sort=rtt&after=1", "sort=rtt&after=x.0.0.0."] {
        let told = world.get(&format!("/admin/v1/clients?{wrong}"));
        assert_eq!(told.status, 400, "{wrong}");
        assert_eq!(told.json["type"], "urn:sterna:problem:invalid-parameter");
    }
}

/// A page costs a shard no more than `admin.maximum_scan` places, however empty they are.
#[test]
fn a_page_looks_at_so_many_places_and_no_more() {
    let mut config = config();
    config.admin.maximum_scan = 10;
    let mut world = World::with(&config, 1);
    let peers: Vec<_> = (0..40)
        .map(|number| world.client(0, &format!("client-{number:02}"), 0))
        .collect();
    for peer in &peers[..35] {
        world.broker.cut(*peer);
    }
    let first = world.read("/admin/v1/sessions");
    assert_eq!(first["items"], json!([]), "ten empty places");
    assert_eq!(first["next"], "0.10");
    assert_eq!(world.all("/admin/v1/sessions", 100).len(), 5);
    assert_eq!(world.all("/admin/v1/clients", 100).len(), 5);
}

#[test]
fn ten_thousand_clients_are_listed_in_bounded_pages() {
    let mut world = World::new(2);
    for number in 0..10_000 {
        world.client(number % 2, &format!("c{number}"), 0);
    }
    let most = Config::default().admin.maximum_page as usize;
    let page = world.get(&format!("/admin/v1/clients?limit={most}"));
    assert_eq!(page.items().len(), most);
    let all = world.all("/admin/v1/clients", most);
    let mut names = names(&all);
    names.dedup();
    assert_eq!(names.len(), 10_000);
}

#[test]
fn a_session_that_is_away_is_listed_and_can_be_ended() {
    let mut world = World::new(2);
    let peer = world.client(1, "away", 100);
    world.broker.subscribe(peer, V5, "t/1", QoS::AtLeastOnce);
    let options = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::new(QoS::AtMostOnce)
    };
    world.broker.subscribe_with(peer, V5, "t/2", options, &[]);
    let now_ms = world.read("/admin/v1/node")["now_ms"]
        .as_u64()
        .expect("a time");
    let connected = world.read("/admin/v1/sessions/away");
    assert_eq!(connected["connected"], true);
    assert_eq!(connected["expires_at_ms"], json!(null));
    let client = connected["client"].as_str().expect("a client").to_owned();
    assert_eq!(
        world.read(&format!("/admin/v1/clients/{client}"))["name"],
        "away"
    );
    world.broker.cut(peer);
    let publisher = world.client(0, "publisher", 0);
    world
        .broker
        .publish(publisher, V5, "t/1", "x", QoS::AtLeastOnce);
    let away = world.read("/admin/v1/sessions/away");
    assert_eq!(away["connected"], false);
    assert_eq!(away["client"], json!(null));
    assert_eq!(away["shard"], 1);
    assert_eq!(away["expiry_s"], 100);
    assert_eq!(away["expires_at_ms"], now_ms + 100_000);
    assert_eq!(
        (&away["pending"], &away["pending_bytes"]),
        (&json!(1), &json!(4))
    );
    let subscriptions = world.all("/admin/v1/sessions/away/subscriptions", 1);
    let expected = json!([
        {"filter": "t/1", "qos": 1, "no_local": false, "retain_as_published": false, "identifier": null, "resting": false},
        {"filter": "t/2", "qos": 0, "no_local": true, "retain_as_published": false, "identifier": null, "resting": false},
    ]);
    assert_eq!(json!(subscriptions), expected);
    let ended = world.call("DELETE", "/admin/v1/sessions/away", "");
    assert_eq!(ended.status, 204);
    for (method, path) in [
        ("GET", "/admin/v1/sessions/away"),
        ("DELETE", "/admin/v1/sessions/away"),
        ("GET", "/admin/v1/sessions/away/subscriptions"),
    ] {
        let told = world.call(method, path, "");
        assert_eq!(told.status, 404, "{method} {path}");
        assert_eq!(told.json["type"], "urn:sterna:problem:no-session");
    }
}

/// The client is told why, its will is published, and its session is there when it comes back.
#[test]
fn a_client_is_disconnected() {
    let mut world = World::new(2);
    let peer = world.client(1, "rogue", 100);
    let client = world.all("/admin/v1/clients?name=rogue", 10).remove(0);
    let path = format!(
        "/admin/v1/clients/{}",
        client["id"].as_str().expect("an id")
    );
    assert_eq!(world.call("DELETE", &path, "").status, 204);
    assert_eq!(
        world.broker.told(peer, V5),
        ["DISCONNECT Administrative action"]
    );
    assert!(world.broker.is_closed(peer));
    assert_eq!(world.call("DELETE", &path, "").status, 404);
    assert_eq!(world.read("/admin/v1/sessions/rogue")["connected"], false);
    world.client(0, "rogue", 100);
    assert_eq!(world.read("/admin/v1/sessions/rogue")["connected"], true);
}

#[test]
fn messages_are_published_retained_shown_and_deleted() {
    let mut world = World::new(2);
    let reader = world.client(1, "reader", 0);
    world.broker.subscribe(reader, V5, "t/#", QoS::AtLeastOnce);
    let content = json!({"topic": "t/1", "payload": "grün", "qos": 1, "retain": true, "content_type": "text/plain"});
    let told = world.call("POST", "/admin/v1/publish", &content.to_string());
    assert_eq!((told.status, &told.json), (200, &json!({"matched": 1})));
    assert_eq!(world.broker.told(reader, V5), ["PUBLISH1 t/1=grün"]);
    let binary = json!({"topic": "t/2", "payload_base64": "/wE=", "retain": true});
    assert_eq!(
        world
            .call("POST", "/admin/v1/publish", &binary.to_string())
            .status,
        200
    );
    for (wrong, status) in [
        (json!({"topic": "t/+"}), 400),
        (json!({"topic": "t", "qos": 3}), 400),
        (
            json!({"topic": "t", "payload": "x", "payload_base64": "eA=="}),
            400,
        ),
        (json!({"topic": "t", "unknown": 1}), 400),
        (json!({"topic": "$SYS/x"}), 403),
        (json!([]), 400),
    ] {
        let told = world.call("POST", "/admin/v1/publish", &wrong.to_string());
        assert_eq!(told.status, status, "{wrong}");
    }
    let retained = world.all("/admin/v1/retained?filter=t/%23", 1);
    let payloads: Vec<_> = (retained.iter())
        .map(|message| (&message["payload"], &message["payload_base64"]))
        .collect();
    assert!(
        payloads.contains(&(&json!("grün"), &json!(null))),
        "{payloads:?}"
    );
    assert!(
        payloads.contains(&(&json!(null), &json!("/wE="))),
        "{payloads:?}"
    );
    assert_eq!(payloads.len(), 2);
    let one = world.get("/admin/v1/retained/t/1");
    assert_eq!(one.json["payload"], "grün");
    let etag = one.field("etag").expect("a tag").to_owned();
    let again = world.send(
        "GET",
        "/admin/v1/retained/t%2F1",
        &format!("If-None-Match: {etag}\r\n"),
        "",
    );
    assert_eq!((again.status, &*again.content), (304, ""));
    assert_eq!(
        world.call("DELETE", "/admin/v1/retained/t/1", "").status,
        204
    );
    assert_eq!(
        world.call("DELETE", "/admin/v1/retained/t/1", "").status,
        404
    );
    assert_eq!(world.get("/admin/v1/retained/t/1").status, 404);
    assert_eq!(world.get("/admin/v1/retained?filter=a/%23/b").status, 400);
}

#[test]
fn the_node_tells_what_was_counted() {
    let mut world = World::new(2);
    let client = world.client(1, "a", 0);
    world
        .broker
        .publish(client, V5, "nobody", "x", QoS::AtMostOnce);
    let node = world.read("/admin/v1/node");
    assert_eq!(node["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(node["shards"].as_array().map(Vec::len), Some(2));
    assert_eq!(node["clients_connected"], 1);
    assert_eq!(node["messages_received"], 1);
    assert_eq!(node["shards"][1]["messages_received"], 1);
    assert_eq!(node["is_stopping"], false);
    assert_eq!(world.read("/admin/v1/store"), json!({"is_enabled": false}));
    let memory = world.read("/admin/v1/memory");
    let kinds = memory["kinds"].as_object().expect("kinds");
    let sum: u64 = kinds.values().filter_map(serde_json::Value::as_u64).sum();
    assert!(sum >= memory["resident_bytes"].as_u64().expect("bytes"));
    assert_eq!(world.read("/admin/v1/certificates"), json!({"items": []}));
}

#[test]
fn a_shard_that_does_not_answer_is_named() {
    let mut world = World::new(2);
    world.client(1, "a", 0);
    world.broker.deaf = Some(1);
    for path in [
        "/admin/v1/node",
        "/admin/v1/sessions/a",
        "/admin/v1/clients",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        world.broker.send(world.peer, request.as_bytes());
        world.broker.advance(4_999);
        assert!(
            crate::page::answer(&mut world.broker, world.peer).is_none(),
            "{path}"
        );
        world.broker.advance(1);
        let answer = crate::page::answer(&mut world.broker, world.peer).expect("an answer");
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.content.contains("of shard 1"), "{}", answer.content);
    }
}

/// Nobody takes orders here: the operator is told so.
#[test]
fn orders_that_nobody_takes_are_refused() {
    let mut world = World::new(1);
    for path in ["/admin/v1/reload", "/admin/v1/drain"] {
        let told = world.call("POST", path, "");
        assert_eq!(told.status, 503, "{path}");
    }
}
