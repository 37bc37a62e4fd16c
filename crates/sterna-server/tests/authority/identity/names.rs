//! Names that look like patterns or like lines of a log are names, or nothing.

use sterna_auth::{PasswordFile, Record};
use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::{ClientIds, Config, Rule};

use crate::fixture::{Broker, Lines, Peer, plain};
use crate::identity::world::{Door, Entered, Quiet, Shown, certificate, enter, guarded};

const V5: Version = Version::V5;

/// Users with such names, all with the password `pass`; each may use its own branch.
fn with_users(names: &[&str]) -> (tempfile::TempDir, Config) {
    let (directory, mut config) = guarded(|_| {});
    let mut file = PasswordFile::new();
    for name in names {
        let record = Record::from_password("pass", &[7; 16], sterna_auth::MIN_ITERATIONS);
        file.set(name, record.expect("a record")).expect("a name");
    }
    let path = directory.path().join("passwords");
    std::fs::write(&path, file.to_string()).expect("written");
    config.authentication.password_file = Some(path);
    config.authorization.default_allow = false;
    config.authorization.rules = vec![Rule {
        topics: vec!["u/%u/#".to_owned(), "c/%c/#".to_owned()],
        ..Rule::default()
    }];
    (directory, config)
}

fn connect(broker: &mut Broker, user: &str, client_id: &str) -> Option<Peer> {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let connect = Connect {
        user_name: Some(user),
        password: Some(b"pass"),
        ..plain(V5, client_id)
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    broker.await_verdicts();
    let told = broker.told(peer, V5);
    (told == ["CONNACK Success"]).then_some(peer)
}

fn may_publish(broker: &mut Broker, peer: Peer, topic: &str) -> bool {
    broker.publish(peer, V5, topic, "x", QoS::AtLeastOnce);
    let told = broker.told(peer, V5);
    assert_eq!(told.len(), 1, "{told:?}");
    !told[0].contains("Not authorized")
}

#[test]
fn marks_in_names_open_nobody_elses_branch() {
    let users = ["ann", "%u", "%c", "+", "a/b", "*", "ann/#"];
    let (_directory, config) = with_users(&users);
    let mut broker = Broker::with(&config, 1);
    for user in users {
        for client_id in ["victim", "%u", "%c", "+", "#", "a/b", "*"] {
            let peer = connect(&mut broker, user, client_id).expect("enters");
            for topic in ["u/bob/x", "u/ann/x", "c/other/x", "u/a/b/x", "c/a/b/x"] {
                let is_own = (user == "ann" && topic == "u/ann/x")
                    || topic == format!("u/{user}/x")
                    || topic == format!("c/{client_id}/x");
                let may = may_publish(&mut broker, peer, topic);
                assert!(is_own || !may, "{user} {client_id} {topic}");
            }
            // The next user may have the identifier.
            broker.cut(peer);
        }
    }
}

#[test]
fn names_that_are_none_are_refused_at_every_door() {
    let long: &'static str = "a".repeat(65_000).leak();
    let (_directory, config) = with_users(&["ann"]);
    let mut broker = Broker::with(&config, 1);
    for name in ["a\nb", "a\u{7f}b", "a\u{85}b", long] {
        assert!(connect(&mut broker, "ann", name).is_none(), "as identifier");
        assert!(connect(&mut broker, name, "c").is_none(), "as user");
        for door in [Door::Mqtt311, Door::Amqp(Quiet::NoLayer), Door::Http] {
            // The field would be longer than a client may send.
            if door == Door::Http && name == long {
                continue;
            }
            let shown = Shown::Password(name, "pass");
            let entered = enter(&mut broker, door, TransportKind::Tcp, None, shown, "c");
            assert!(entered.is_none(), "{door:?}");
        }
        let shown = Shown::Password("ann", "pass");
        let door = Door::Amqp(Quiet::NoLayer);
        let entered = enter(&mut broker, door, TransportKind::Tcp, None, shown, name);
        assert!(entered.is_none(), "as container");
    }
    // A user name is asked for by its bytes: neither a shorter nor a longer one is another's.
    for name in ["", "an", "ann ", " ann", "Ann"] {
        assert!(connect(&mut broker, name, "c").is_none(), "{name:?}");
    }
}

#[test]
fn common_names_are_names_or_refused() {
    let (_directory, config) = with_users(&["ann"]);
    let config = Config {
        tls: sterna_server::config::Tls {
            certificate_as_username: true,
            ..config.tls.clone()
        },
        ..config
    };
    let mut broker = Broker::with(&config, 1);
    let long: &'static str = "n".repeat(2000).leak();
    for (name, enters) in [
        ("%u", true),
        ("+", true),
        ("a/b", true),
        ("", false),
        ("a\nb", false),
        ("a\0b", false),
        (long, false),
    ] {
        let der = certificate(Some(name), 2020..2030);
        for door in [Door::Mqtt311, Door::Mqtt5, Door::Amqp(Quiet::Anonymous)] {
            let (kind, shown) = (TransportKind::Tls, Shown::Nothing);
            let id = format!("{}", name.len());
            let entered = enter(&mut broker, door, kind, Some(&der), shown, &id);
            assert_eq!(entered.is_some(), enters, "{door:?} {name:?}");
            if let Some(Entered::Mqtt(peer, V5)) = entered {
                for topic in ["u/ann/x", "u/x/x", "u/a/b/x"] {
                    assert!(!may_publish(&mut broker, peer, topic), "{name} {topic}");
                }
            }
        }
    }
}

#[test]
fn a_pattern_of_identifiers_takes_names_as_they_are() {
    let (_directory, mut config) = with_users(&["ann", "*", "%u", "a*"]);
    config.authentication.client_ids = vec![ClientIds {
        users: vec!["*".to_owned()],
        patterns: vec!["%u".to_owned()],
    }];
    let mut broker = Broker::with(&config, 1);
    for user in ["ann", "*", "%u", "a*"] {
        for client_id in ["ann", "*", "%u", "a*", "axe"] {
            let entered = connect(&mut broker, user, client_id).is_some();
            assert_eq!(entered, user == client_id, "{user} {client_id}");
        }
    }
}

#[test]
fn a_name_makes_no_line_in_the_log() {
    let lines = Lines::default();
    let writer = lines.clone();
    // For the whole process, whose other tests write lines of their own.
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    let (_directory, config) = with_users(&["ann"]);
    let mut broker = Broker::with(&config, 1);
    let forged = "x\n2026-01-01T00:00:00Z ERROR forged: \u{1b}[31mall is lost";
    for _ in 0..10 {
        connect(&mut broker, forged, "c");
        connect(&mut broker, "ann", forged);
        let shown = Shown::Password("ann", "pass");
        let door = Door::Amqp(Quiet::NoLayer);
        enter(&mut broker, door, TransportKind::Tcp, None, shown, forged);
        // A topic filter may have such characters.
        let peer = connect(&mut broker, "ann", "c").expect("enters");
        let options = sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce);
        broker.subscribe_with(peer, V5, forged, options, &[]);
        broker.cut(peer);
    }
    let text = lines.text();
    assert!(text.lines().count() > 10, "{text}");
    for line in text.lines() {
        assert!(!line.starts_with("2026-01-01"), "{line}");
        assert!(!line.contains('\u{1b}'), "{line}");
    }
}

/// A token that has come as a user name is a secret.
#[test]
fn a_token_in_the_place_of_a_name_is_not_logged() {
    let (_directory, config) = with_users(&["ann"]);
    let token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.c2VjcmV0";
    let text = Lines::of(tracing::Level::DEBUG, |_| {
        let mut broker = Broker::with(&config, 1);
        for (door, shown) in [
            (Door::Mqtt311, Shown::Name(token)),
            (Door::Mqtt5, Shown::Password(token, "")),
            (Door::Amqp(Quiet::NoLayer), Shown::Password(token, "")),
            (Door::Http, Shown::Password(token, "")),
        ] {
            let entered = enter(&mut broker, door, TransportKind::Tcp, None, shown, "c");
            assert!(entered.is_none(), "{door:?}");
        }
    });
    assert!(text.lines().count() >= 3, "{text}");
    assert!(!text.contains(token), "{text}");
}
