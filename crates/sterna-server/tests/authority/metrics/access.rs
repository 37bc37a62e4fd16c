//! Access to the resources.

use std::fs;

use sterna_auth::{MIN_ITERATIONS, Record};
use sterna_mqtt::Version;
use sterna_server::config::{Config, Listener};

use crate::fixture::{Broker, Peer};
use crate::page::{ADMIN, HTTP, answer, config, connect, get, scrape, scrape_on};

#[test]
fn health_and_readiness_are_told_without_credentials() {
    let mut broker = Broker::with(&config(), 3);
    let peer = connect(&mut broker, ADMIN, 1);
    for (path, content) in [("/healthz", "ok\n"), ("/readyz?x=1", "ready\n")] {
        let answer = get(&mut broker, peer, path, "");
        assert_eq!((answer.status, &*answer.content), (200, content));
        assert!(answer.head.contains("cache-control: no-store"));
    }
    broker.send(peer, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let answer = answer(&mut broker, peer).expect("an answer");
    assert_eq!((answer.status, &*answer.content), (200, ""));
}

#[test]
fn there_is_nothing_else_and_each_resource_is_only_read() {
    let mut broker = Broker::with(&config(), 1);
    let peer = connect(&mut broker, ADMIN, 0);
    for path in ["/page/", "/page", "/metrics/", "/v1/topics/a", "/admin/v1"] {
        assert_eq!(get(&mut broker, peer, path, "").status, 404, "{path}");
    }
    for path in ["/", "/metrics", "/healthz", "/readyz"] {
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        broker.send(peer, request.as_bytes());
        let answer = answer(&mut broker, peer).expect("an answer");
        assert_eq!(answer.status, 405);
        assert!(answer.head.contains("allow: get, head"), "{}", answer.head);
    }
    // Where messages are, metrics are not.
    let peer = connect(&mut broker, HTTP, 0);
    assert_eq!(get(&mut broker, peer, "/metrics", "").status, 404);
}

/// A foreign page in the operator's browser must not read resources of this host.
#[test]
fn pages_of_other_origins_read_nothing() {
    let mut broker = Broker::with(&config(), 1);
    let peer = connect(&mut broker, ADMIN, 0);
    for fields in [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        for path in ["/metrics", "/readyz"] {
            let answer = get(&mut broker, peer, path, fields);
            assert_eq!(answer.status, 403, "{fields}");
            assert!(!answer.head.contains("access-control-allow-origin"));
        }
    }
    // Its own name resolves to this host (DNS rebinding).
    broker.send(
        peer,
        b"GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n",
    );
    assert_eq!(answer(&mut broker, peer).expect("an answer").status, 421);
    let own = "Origin: http://localhost:9464\r\nSec-Fetch-Site: same-origin\r\n";
    assert_eq!(get(&mut broker, peer, "/metrics", own).status, 200);
}

/// A listener beyond loopback, with the users `ann`, who is an administrator, and `bob`.
fn guarded(directory: &tempfile::TempDir) -> Config {
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("written");
        path
    };
    let record = |user: &str| {
        let record = Record::from_password("secret", &[7; 16], MIN_ITERATIONS);
        format!("{user}:{}\n", record.expect("a record"))
    };
    let mut config = config();
    config.listeners[usize::from(ADMIN)] = Listener::at("admins://0.0.0.0:0");
    config.authentication.password_file = Some(file("users", record("ann") + &record("bob")));
    config.authorization.admins = vec!["ann".to_owned()];
    config
}

fn with_password(broker: &mut Broker, peer: Peer, user: &str, password: &str) -> u16 {
    use base64::Engine as _;
    let value = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {value}\r\n\r\n");
    broker.send(peer, request.as_bytes());
    broker.await_verdict();
    answer(broker, peer).expect("an answer").status
}

#[test]
fn beyond_loopback_only_administrators_read_metrics() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut broker = Broker::with(&guarded(&directory), 1);
    let peer = connect(&mut broker, ADMIN, 0);
    let refused = get(&mut broker, peer, "/metrics", "");
    assert_eq!(refused.status, 401);
    assert!(
        refused.head.contains("www-authenticate: basic"),
        "{}",
        refused.head
    );
    assert_eq!(with_password(&mut broker, peer, "ann", "wrong"), 401);
    assert_eq!(with_password(&mut broker, peer, "bob", "secret"), 403);
    assert_eq!(with_password(&mut broker, peer, "ann", "secret"), 200);
    // A probe has no credentials, and learns nothing but that.
    assert_eq!(get(&mut broker, peer, "/readyz", "").status, 200);
    // The next request of the connection has to show its own.
    assert_eq!(get(&mut broker, peer, "/metrics", "").status, 401);
    // On loopback credentials are not required, unless the listener says so.
    let mut config = guarded(&directory);
    config.listeners[usize::from(ADMIN)] = Listener::at("admin://127.0.0.1:0");
    let mut broker = Broker::with(&config, 1);
    let page = scrape(&mut broker);
    let refused = r#"sterna_logins_refused_total{protocol="admin",reason="password"}"#;
    assert_eq!(page.value(refused), 0);
    config.listeners[usize::from(ADMIN)].anonymous = Some(false);
    let mut broker = Broker::with(&config, 1);
    let peer = connect(&mut broker, ADMIN, 0);
    assert_eq!(get(&mut broker, peer, "/metrics", "").status, 401);
}

#[test]
fn a_shard_that_does_not_answer_is_named() {
    let mut broker = Broker::with(&config(), 2);
    let peer = connect(&mut broker, ADMIN, 0);
    broker.deaf = Some(1);
    for path in ["/readyz", "/metrics"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        broker.send(peer, request.as_bytes());
        broker.advance(4_999);
        assert!(answer(&mut broker, peer).is_none(), "{path}");
        broker.advance(1);
        let answer = answer(&mut broker, peer).expect("an answer");
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.content.contains("of shard 1"), "{}", answer.content);
    }
    // The process lives.
    assert_eq!(get(&mut broker, peer, "/healthz", "").status, 200);
    broker.deaf = None;
    assert_eq!(get(&mut broker, peer, "/readyz", "").status, 200);
    scrape_on(&mut broker, peer);
}

#[test]
fn open_requests_are_bounded_and_those_of_clients_that_leave_are_forgotten() {
    let mut broker = Broker::with(&config(), 2);
    broker.deaf = Some(1);
    let most = config().admin.maximum_gathers;
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let waiting: Vec<Peer> = (0..most)
        .map(|_| {
            let peer = connect(&mut broker, ADMIN, 0);
            broker.send(peer, request);
            assert!(answer(&mut broker, peer).is_none());
            peer
        })
        .collect();
    let late = connect(&mut broker, ADMIN, 0);
    let refused = get(&mut broker, late, "/readyz", "");
    assert_eq!(refused.status, 503);
    assert!(refused.content.contains("admin.maximum_gathers"));
    broker.cut(waiting[0]);
    broker.send(late, request);
    assert!(
        answer(&mut broker, late).is_none(),
        "it waits as the others"
    );
}

#[test]
fn a_broker_that_stops_is_not_ready_and_lets_go_of_operators() {
    let mut broker = Broker::with(&config(), 1);
    let idle = connect(&mut broker, ADMIN, 0);
    assert_eq!(get(&mut broker, idle, "/readyz", "").status, 200);
    broker.client(Version::V5, "a");
    broker.stop();
    assert!(broker.is_closed(idle));
    assert!(broker.finished());
}
