//! Bans by hand: made, listed, lifted, kept.

use serde_json::{Value, json};
use sterna_auth::{TokenDigest, TokenFile, TokenRecord};
use sterna_broker::Limits;
use sterna_mqtt::Packet;
use sterna_net::TransportKind;
use sterna_store::MemoryStore;

use crate::admin::world::{V5, World};
use crate::amqp_client::{Client as Amqp, Start};
use crate::fixture::{Broker, Lines, plain};
use crate::h3_client::Client as HttpClient;
use crate::page::{HTTP, config, connect};

const BANS: &str = "/admin/v1/bans";

fn ban(world: &mut World, wanted: &Value) -> String {
    let told = world.call("POST", BANS, &wanted.to_string());
    assert_eq!(told.status, 200, "{told:?}");
    told.json["id"].as_str().expect("an id").to_owned()
}

/// What a client is told that comes from an address.
fn told(world: &mut World, address: [u8; 4], name: &str) -> String {
    world.broker.come_from(address);
    let peer = world.broker.open_on(1, TransportKind::Tcp, Vec::new());
    world
        .broker
        .packet(peer, V5, &Packet::Connect(plain(V5, name)));
    world.broker.told(peer, V5).join(" ")
}

#[test]
fn a_banned_client_is_ended_and_stays_out_until_the_ban_is_lifted() {
    for (wanted, other) in [
        (json!({ "client": "c" }), ([192, 0, 2, 1], "d")),
        (json!({ "address": "192.0.2.0/24" }), ([192, 0, 3, 1], "c")),
        (
            json!({ "client": "c", "address": "192.0.2.1" }),
            ([192, 0, 2, 2], "c"),
        ),
        (
            json!({ "address": "192.0.2.1", "expiry_s": 60, "reason": "too loud" }),
            ([192, 0, 2, 2], "c"),
        ),
    ] {
        let mut world = World::new(2);
        world.broker.come_from([192, 0, 2, 1]);
        let peer = world.client(0, "c", 0);
        let id = ban(&mut world, &wanted);
        let end = world.broker.told(peer, V5).join(" ");
        assert!(end.contains("DISCONNECT"), "{wanted}: {end}");
        assert!(world.broker.is_closed(peer));
        let refused = told(&mut world, [192, 0, 2, 1], "c");
        assert!(refused.contains("Banned"), "{wanted}: {refused}");
        assert!(
            told(&mut world, other.0, other.1).contains("Success"),
            "{wanted}"
        );
        let listed = world.read(BANS)["items"][0].clone();
        assert_eq!(
            (listed["id"].as_str(), listed["cause"].as_str()),
            (Some(&*id), Some("operator"))
        );
        for name in ["client", "address", "reason"] {
            let expected = wanted.get(name).cloned();
            let nothing = if name == "reason" {
                json!("")
            } else {
                Value::Null
            };
            assert_eq!(listed[name], expected.unwrap_or(nothing), "{name}");
        }
        assert_eq!(
            world.call("DELETE", &format!("{BANS}/{id}"), "").status,
            204
        );
        assert_eq!(
            world.call("DELETE", &format!("{BANS}/{id}"), "").status,
            404
        );
        assert!(
            told(&mut world, [192, 0, 2, 1], "c").contains("Success"),
            "{wanted}"
        );
        assert_eq!(world.read(BANS)["items"], json!([]));
    }
}

#[test]
fn an_address_is_banned_at_every_door_but_that_of_operators() {
    let mut world = World::new(1);
    let http = connect(&mut world.broker, HTTP, 0);
    ban(&mut world, &json!({ "address": "127.0.0.1" }));
    assert!(world.broker.is_closed(http));
    let http = connect(&mut world.broker, HTTP, 0);
    let request = "GET /v1/topics/t?last HTTP/1.1\r\nHost: localhost\r\n\r\n";
    world.broker.send(http, request.as_bytes());
    let answer = String::from_utf8(world.broker.take(http)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    // The operator's own connection is from there, too.
    assert_eq!(world.read(BANS)["items"].as_array().map(Vec::len), Some(1));
}

/// A connection of QUIC survives another address, but not a banned one.
#[test]
fn who_moves_to_a_banned_address_is_ended() {
    let mut world = World::new(1);
    world.broker.come_from([192, 0, 2, 1]);
    let quic = |world: &mut World, protocol: &[u8], listener: u16| {
        world.broker.listener = listener;
        let quic = TransportKind::Quic;
        let peer = world.broker.open_speaking(protocol, 0, quic, Vec::new());
        world.broker.listener = 0;
        peer
    };
    let mqtt = quic(&mut world, b"mqtt", 0);
    let connect = Packet::Connect(plain(V5, "c"));
    world.broker.packet(mqtt, V5, &connect);
    assert!(world.broker.told(mqtt, V5)[0].contains("Success"));
    let start = Start::new("a").over(TransportKind::Quic);
    let amqp = Amqp::start(&mut world.broker, start).peer;
    let mut http = HttpClient::connect(&mut world.broker);
    let subscription = http.request(&mut world.broker, "GET", "/v1/topics/t", &[], b"");
    assert_eq!(http.response(subscription).status, 200);
    ban(&mut world, &json!({ "address": "198.51.100.0/24" }));
    let all = [mqtt, amqp, http.peer];
    for (address, is_over) in [([192, 0, 2, 9], false), ([198, 51, 100, 7], true)] {
        for peer in all {
            world.broker.move_to(peer, address);
            assert_eq!(
                world.broker.is_closed(peer),
                is_over,
                "{address:?} {peer:?}"
            );
        }
    }
}

#[test]
fn what_is_no_ban_is_refused() {
    let mut config = config();
    config.bans.maximum_bans = 2;
    let mut world = World::with(&config, 1);
    for (wanted, status) in [
        (json!({}), 400),
        (json!({ "reason": "x" }), 400),
        (json!({ "user": "" }), 400),
        (json!({ "user": "a\0" }), 400),
        (json!({ "client": "\0$share/g/t" }), 400),
        (json!({ "address": "x" }), 400),
        (json!({ "address": "10.0.0.1/8" }), 400),
        (json!({ "user": "u".repeat(1025) }), 400),
        (json!({ "user": "a", "other": 1 }), 400),
        (json!({ "user": "a" }), 200),
        (json!({ "user": "a", "reason": "again" }), 200),
        (json!({ "user": "b" }), 200),
        (json!({ "user": "c" }), 409),
    ] {
        let told = world.call("POST", BANS, &wanted.to_string());
        assert_eq!(told.status, status, "{wanted}: {told:?}");
    }
    assert_eq!(world.all(BANS, 1).len(), 2, "page by page");
}

#[test]
fn bans_are_kept_over_a_restart() {
    let store = MemoryStore::new();
    let start = || {
        let broker = Broker::restored(&config(), 2, Limits::default(), || Box::new(store.clone()));
        World::of(broker)
    };
    let mut world = start();
    let first = ban(&mut world, &json!({ "client": "c", "reason": "kept" }));
    let second = ban(&mut world, &json!({ "client": "d" }));
    assert_eq!(
        world.call("DELETE", &format!("{BANS}/{second}"), "").status,
        204
    );
    let before = world.read(BANS);
    drop(world);
    let mut world = start();
    assert_eq!(world.read(BANS), before);
    assert!(told(&mut world, [192, 0, 2, 1], "c").contains("Banned"));
    assert!(told(&mut world, [192, 0, 2, 1], "d").contains("Success"));
    let third = ban(&mut world, &json!({ "client": "e" }));
    assert_ne!(third, first);
}

/// A ban of one of the users on a connection ends what is that user's, whoever has asked last, and nothing else.
#[test]
fn a_ban_ends_what_a_user_has_open_beside_others_on_a_connection() {
    let mut file = TokenFile::new();
    for user in ["ann", "bob"] {
        let record = TokenRecord {
            user: user.into(),
            digest: TokenDigest::of(format!("{user}-token").as_bytes()),
            expires_at_s: None,
        };
        file.add(record).expect("a user");
    }
    let directory = tempfile::tempdir().expect("a folder");
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, file.to_string()).expect("a file");
    let mut config = config();
    config.authentication.token_file = Some(tokens);
    let fields = |user: &str| {
        [
            ("authorization", format!("Bearer {user}-token")),
            ("accept", "text/event-stream".to_owned()),
        ]
    };
    for (last, wanted) in [
        ("bob", json!({ "user": "ann" })),
        ("ann", json!({ "user": "ann" })),
        ("bob", json!({ "user": "ann", "address": "192.0.2.1" })),
        ("bob", json!({ "address": "192.0.2.1" })),
    ] {
        let mut world = World::with(&config, 2);
        world.broker.come_from([192, 0, 2, 1]);
        world.broker.listener = HTTP;
        let mut http = HttpClient::connect(&mut world.broker);
        let ask = |world: &mut World, http: &mut HttpClient, user: &str, path: &str| {
            let fields = fields(user);
            let fields = fields
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            http.request(&mut world.broker, "GET", path, &fields, b"")
        };
        let hers = ask(&mut world, &mut http, "ann", "/v1/topics/a");
        let his = ask(&mut world, &mut http, "bob", "/v1/topics/b");
        let _ = ask(&mut world, &mut http, last, "/v1/topics/c?wait=0s");
        assert_eq!(http.response(hers).status, 200);
        assert_eq!(http.response(his).status, 200);
        ban(&mut world, &wanted);
        world.broker.advance(5_000);
        http.turn(&mut world.broker);
        let is_all = wanted["user"].is_null();
        assert_eq!(world.broker.is_closed(http.peer), is_all, "{wanted}");
        if is_all {
            continue;
        }
        assert!(http.response(hers).is_complete, "{last} {wanted}");
        assert!(!http.response(his).is_complete, "{last} {wanted}");
        let again = ask(&mut world, &mut http, "ann", "/v1/topics/c?wait=0s");
        assert_eq!(http.response(again).status, 403, "{last} {wanted}");
    }
}

/// The one who looks for the end of a ban finds its maker's reason, and when it ends.
#[test]
fn the_audit_line_of_a_ban_has_its_number_its_reason_and_its_end() {
    let text = Lines::of(tracing::Level::INFO, |_| {
        let mut world = World::new(1);
        let content = r#"{"user": "eve", "reason": "scans ports", "expiry_s": 60}"#;
        let told = world.call("POST", "/admin/v1/bans", content);
        assert_eq!(told.status, 200, "{told:?}");
    });
    let line = text.lines().find(|line| line.contains("admin action"));
    let line = line.expect("a line");
    let words = "detail=\"ban 1: user eve, by operator, because: scans ports, until ";
    assert!(line.contains(words), "{line}");
}
