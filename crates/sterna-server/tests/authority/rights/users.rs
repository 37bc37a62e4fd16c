//! Users who are removed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sterna_amqp::sasl::Plain;
use sterna_h3::Features;
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Packet, PublishProperties, QoS, Version};
use sterna_server::Policy;
use sterna_server::config::{Config, HttpAuthentication};

use crate::amqp_client::{Client as AmqpClient, Happened, Start};
use crate::fixture::{Broker, Peer, block, plain};
use crate::h3_client::Client as HttpClient;

const V5: Version = Version::V5;

/// A configuration whose users are these, with their names as passwords.
pub(crate) fn users(directory: &tempfile::TempDir, names: &[&str]) -> Config {
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
    config.http.authentication = HttpAuthentication::Connection;
    config
}

pub(crate) fn enter(broker: &mut Broker, connect: &Connect<'_>, user: &str) -> (Peer, Vec<String>) {
    let connect = Connect {
        user_name: Some(user),
        password: Some(user.as_bytes()),
        ..*connect
    };
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(connect));
    broker.await_verdicts();
    let told = broker.told(peer, V5);
    (peer, told)
}

#[test]
fn a_removed_user_is_disconnected_in_every_protocol() {
    let directory = tempfile::tempdir().expect("a folder");
    let config = users(&directory, &["ann", "bob"]);
    let mut broker = Broker::with(&config, 1);
    let (watcher, _) = enter(&mut broker, &plain(V5, "w"), "bob");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    let properties = block(&[sterna_mqtt::Property::SessionExpiryInterval(600)]);
    let connect = Connect {
        will: Some(Will {
            topic: "gone",
            payload: b"x",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: PublishProperties::EMPTY,
        }),
        properties: properties.properties(),
        ..plain(V5, "a")
    };
    let (mqtt, _) = enter(&mut broker, &connect, "ann");
    let lasting = Connect {
        will: None,
        ..connect
    };
    let (away, _) = enter(
        &mut broker,
        &Connect {
            client_id: "away",
            ..lasting
        },
        "ann",
    );
    broker.subscribe(away, V5, "#", QoS::AtLeastOnce);
    broker.cut(away);
    let mechanism = Plain {
        user: "ann".to_owned(),
        password: "ann".to_owned(),
    };
    let mut amqp = AmqpClient::start(&mut broker, Start::new("c").with(mechanism));
    broker.await_verdicts();
    amqp.turn(&mut broker);
    assert!(amqp.is_open);
    broker.wires[0].datagram_bytes = 1_200;
    let mut http = HttpClient::connect_with(
        &mut broker,
        Features {
            extended_connect: true,
            datagrams: true,
            webtransport: true,
        },
    );
    let credentials = format!("Basic {}", STANDARD.encode("ann:ann"));
    let fields = [("authorization", credentials.as_str())];
    let stream = http.request(&mut broker, "GET", "/v1/topics/t", &fields, b"");
    broker.await_verdicts();
    http.turn(&mut broker);
    assert_eq!(http.response(stream).status, 200);
    let posted = http.request(&mut broker, "POST", "/v1/topics/t2", &[], b"x");
    assert_eq!(http.response(posted).status, 204, "by the connection");
    let transport = (http.engine)
        .connect_session("localhost", "/v1/topics", &[], &mut http.out)
        .expect("a session");
    http.turn(&mut broker);
    assert_eq!(http.response(transport.0).status, 200);
    broker.told(watcher, V5);

    let config = users(&directory, &["bob"]);
    broker.apply(Policy::load(&config).expect("a policy"));
    assert_eq!(broker.told(mqtt, V5), ["DISCONNECT Not authorized"]);
    assert!(broker.is_closed(mqtt));
    amqp.turn(&mut broker);
    let closed = Happened::Closed(Some("amqp:unauthorized-access".to_owned()));
    assert!(amqp.happened.contains(&closed), "{:?}", amqp.happened);
    http.turn(&mut broker);
    assert!(http.response(stream).is_complete);
    assert_eq!(http.heard.closed_sessions, [transport.0]);
    let posted = http.request(&mut broker, "POST", "/v1/topics/t", &[], b"x");
    assert_eq!(
        http.response(posted).status,
        401,
        "the connection is nobody's"
    );
    // No will of somebody who may say nothing, yet.
    assert!(broker.told(watcher, V5).is_empty());
    assert!(!broker.is_closed(watcher));
    let mut names: Vec<String> = (broker.sessions(0).0.iter())
        .map(|session| session.name.id().to_owned())
        // What a stream of HTTP has waits for it for a moment.
        .filter(|name| !name.starts_with("$http/~"))
        .collect();
    names.sort();
    assert_eq!(names, ["a", "away", "w"], "sessions wait for their user");
    broker.publish(watcher, V5, "t", "while missing", QoS::AtLeastOnce);
    broker.told(watcher, V5);
    let config = users(&directory, &["ann", "bob"]);
    broker.apply(Policy::load(&config).expect("a policy"));
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 gone=x"]);
    broker.publish(watcher, V5, "t", "back", QoS::AtLeastOnce);
    let again = Connect {
        client_id: "away",
        clean_start: false,
        ..lasting
    };
    let (_, told) = enter(&mut broker, &again, "ann");
    assert_eq!(
        told,
        [
            "CONNACK Success present",
            "PUBLISH1 t2=x",
            "PUBLISH1 t=back"
        ]
    );
}

/// A record changes when its user logs in, and when the password is another one.
#[test]
fn another_password_record_ends_nothing() {
    let directory = tempfile::tempdir().expect("a folder");
    let config = users(&directory, &["ann", "bob"]);
    let mut broker = Broker::with(&config, 1);
    let (peer, _) = enter(&mut broker, &plain(V5, "a"), "ann");
    broker.subscribe(peer, V5, "t", QoS::AtMostOnce);
    let path = directory.path().join("users");
    let text = std::fs::read_to_string(&path).expect("reads");
    let mut file = sterna_auth::PasswordFile::new();
    for name in ["ann", "bob"] {
        let record =
            sterna_auth::Record::from_password("other", &[9; 16], sterna_auth::MIN_ITERATIONS);
        file.set(name, record.expect("a record")).expect("a user");
    }
    assert_ne!(text, file.to_string());
    std::fs::write(&path, file.to_string()).expect("a file");
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(!broker.is_closed(peer));
    broker.publish(peer, V5, "t", "1", QoS::AtMostOnce);
    assert_eq!(broker.told(peer, V5), ["PUBLISH0 t=1"]);
}

#[test]
fn a_password_that_is_being_checked_at_the_reload_does_not_let_its_user_in() {
    let directory = tempfile::tempdir().expect("a folder");
    let config = users(&directory, &["ann", "bob"]);
    let mut broker = Broker::with(&config, 1);
    let peer = broker.open();
    let connect = Connect {
        user_name: Some("ann"),
        password: Some(b"ann"),
        ..plain(V5, "a")
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    let config = users(&directory, &["bob"]);
    broker.apply(Policy::load(&config).expect("a policy"));
    let told = broker.told(peer, V5);
    // The verdict may have come before.
    let last = told.last().map(String::as_str);
    assert!(
        matches!(
            last,
            Some("CONNACK Not authorized" | "DISCONNECT Not authorized")
        ),
        "{told:?}"
    );
    assert!(broker.is_closed(peer));
}

#[test]
fn nobody_stays_where_nobody_would_get_in() {
    let mut broker = Broker::with(&Config::default(), 1);
    let peer = broker.client(V5, "c");
    let mut http = HttpClient::connect(&mut broker);
    let stream = http.request(&mut broker, "GET", "/v1/topics/t", &[], b"");
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let directory = tempfile::tempdir().expect("a folder");
    let config = users(&directory, &["bob"]);
    broker.apply(Policy::load(&config).expect("a policy"));
    assert_eq!(broker.told(peer, V5), ["DISCONNECT Not authorized"]);
    http.turn(&mut broker);
    assert!(http.response(stream).is_complete);
    amqp.turn(&mut broker);
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:unauthorized-access")
    );
}
