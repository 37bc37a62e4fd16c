//! Refused logins as operators see them, at every door.

use serde_json::Value;
use sterna_amqp::sasl::{Anonymous, Plain};
use sterna_mqtt::Packet;
use sterna_mqtt::packet::Connect;
use sterna_net::TransportKind;

use crate::admin::roles::{credentials, guarded};
use crate::admin::trace::{begin, events};
use crate::admin::world::{V5, World};
use crate::amqp_client::{Client as Amqp, Start};
use crate::fixture::{Broker, Peer, plain};
use crate::page::{ADMIN, AMQP, HTTP, Page, answer, config, connect, get};

/// A header of the SASL layer, and `sasl-init` with ANONYMOUS, sent at once.
const PIPELINED: &[u8] = b"AMQP\x03\x01\x00\x00\
    \x00\x00\x00\x19\x02\x01\x00\x00\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS";

/// Everybody needs a password; an operator sees who is refused.
fn watched() -> (tempfile::TempDir, World, Peer) {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = guarded(&directory, "admin://127.0.0.1:0");
    config.authentication.anonymous = Some(false);
    let mut world = World::of(Broker::with(&config, 2));
    let watcher = connect(&mut world.broker, ADMIN, 1);
    let request = format!(
        "GET /admin/v1/trace?events=login_refused HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        credentials("ann", "secret")
    );
    world.broker.send(watcher, request.as_bytes());
    world.broker.await_verdicts();
    assert_eq!(events(&mut world, watcher).len(), 1);
    (directory, world, watcher)
}

/// Protocol, reason and user of each refused login since the last call.
fn refused(world: &mut World, watcher: Peer) -> Vec<String> {
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or("-").to_owned();
    let events = events(world, watcher);
    let refused = events
        .iter()
        .filter(|event| event["event"] == "login_refused");
    let line = |event: &Value| ["protocol", "reason", "user"].map(|name| text(event, name));
    refused.map(|event| line(event).join(" ")).collect()
}

fn amqp(world: &mut World, start: Start) -> Amqp {
    world.broker.listener = AMQP;
    let client = Amqp::start(&mut world.broker, start);
    world.broker.listener = 0;
    client
}

/// Each way in which an AMQP client shows nothing.
fn quiet_amqp(world: &mut World, way: &str) {
    match way {
        "no layer" => {
            amqp(world, Start::new("c"));
        }
        "leaves" => {
            let client = amqp(world, Start::new("c").with(Anonymous::default()));
            assert!(!client.is_open);
            if !world.broker.is_closed(client.peer) {
                world.broker.cut(client.peer);
            }
        }
        _ => {
            let peer = connect(&mut world.broker, AMQP, 0);
            world.broker.send(peer, PIPELINED);
            assert!(world.broker.is_closed(peer));
        }
    }
}

#[test]
fn an_amqp_client_without_credentials_is_a_refused_login() {
    let (_directory, mut world, watcher) = watched();
    for way in ["no layer", "leaves", "pipelined"] {
        quiet_amqp(&mut world, way);
        let told = refused(&mut world, watcher);
        assert_eq!(told, ["amqp no_credentials -"], "{way}");
    }
}

#[test]
fn an_amqp_client_of_a_banned_address_is_a_refused_login() {
    let mut world = World::with(&config(), 2);
    let watcher = begin(&mut world, "events=login_refused");
    let ban = world.call("POST", "/admin/v1/bans", r#"{"address":"192.0.2.1"}"#);
    assert_eq!(ban.status, 200, "{ban:?}");
    world.broker.come_from([192, 0, 2, 1]);
    for way in ["no layer", "leaves", "pipelined"] {
        quiet_amqp(&mut world, way);
        let told = refused(&mut world, watcher);
        assert_eq!(told, ["amqp banned -"], "{way}");
    }
}

#[test]
fn a_refused_login_names_the_user_at_every_door() {
    let (_directory, mut world, watcher) = watched();
    let mqtt = world.broker.open_on(0, TransportKind::Tcp, Vec::new());
    let connect_packet = Connect {
        user_name: Some("ann"),
        password: Some(b"wrong"),
        ..plain(V5, "c")
    };
    world
        .broker
        .packet(mqtt, V5, &Packet::Connect(connect_packet));
    world.broker.await_verdicts();
    assert_eq!(refused(&mut world, watcher), ["mqtt password ann"]);
    let wrong = Plain {
        user: "ann".to_owned(),
        password: "wrong".to_owned(),
    };
    amqp(&mut world, Start::new("c").with(wrong));
    world.broker.await_verdicts();
    assert_eq!(refused(&mut world, watcher), ["amqp password ann"]);
    for (listener, protocol, path) in [
        (HTTP, "http", "/v1/topics/a?last"),
        (ADMIN, "admin", "/admin/v1/me"),
        (ADMIN, "admin", "/metrics"),
    ] {
        let peer = connect(&mut world.broker, listener, 0);
        let fields = credentials("ann", "wrong");
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        world.broker.send(peer, request.as_bytes());
        world.broker.await_verdicts();
        let expected = format!("{protocol} password ann");
        assert_eq!(refused(&mut world, watcher), [expected], "{path}");
    }
}

#[test]
fn an_operator_without_credentials_has_none_and_is_not_forbidden() {
    for anonymous in [None, Some(false)] {
        let directory = tempfile::tempdir().expect("a folder");
        let mut config = guarded(&directory, "admin://127.0.0.1:0");
        config.listeners[usize::from(ADMIN)].anonymous = anonymous;
        let mut broker = Broker::with(&config, 1);
        let peer = connect(&mut broker, ADMIN, 0);
        assert_eq!(get(&mut broker, peer, "/admin/v1/clients", "").status, 401);
        let peer = connect(&mut broker, ADMIN, 0);
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
            credentials("ann", "secret")
        );
        broker.send(peer, request.as_bytes());
        broker.await_verdicts();
        let page = Page::parse(&answer(&mut broker, peer).expect("a page").content);
        let count = |reason: &str| {
            page.value(&format!(
                r#"sterna_logins_refused_total{{protocol="admin",reason="{reason}"}}"#
            ))
        };
        assert_eq!(
            (count("no_credentials"), count("not_authorized")),
            (1, 0),
            "{anonymous:?}"
        );
    }
}
