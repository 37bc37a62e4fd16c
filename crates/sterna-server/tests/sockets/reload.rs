//! Reload: all or nothing, and never from authenticated to open (attack row 34).

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use sterna_server::Server;
use sterna_server::config::{ActionName, ClientIds, Config, Effect, Listener, Rule};

/// CONNECT of MQTT 5.0 with a clean start and without credentials.
const ANONYMOUS: &[u8] = b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x02p1";

/// What becomes of a configuration.
type Change<'a> = Box<dyn Fn(&mut Config) + 'a>;

/// The reason code with which a client without credentials is answered.
fn answer(address: SocketAddr) -> u8 {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a socket");
    stream.write_all(ANONYMOUS).expect("sends");
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).expect("a CONNACK");
    assert_eq!(connack[0], 0x20);
    connack[3]
}

/// A broker that other hosts reach and that knows one user, its configuration, and where it is.
fn closed_broker(folder: &Path) -> (Server, Config, SocketAddr) {
    let users = folder.join("users");
    let record = sterna_auth::Record::from_password("secret", &[7; 16], 4096).expect("a record");
    std::fs::write(&users, format!("ann:{record}\n")).expect("writes");
    let mut config = Config {
        listeners: vec![
            Listener::at("mqtt://0.0.0.0:0"),
            Listener::at("mqtts://127.0.0.1:0"),
        ],
        data_directory: Some(folder.join("state")),
        ..Config::default()
    };
    config.authentication.password_file = Some(users);
    config
        .authentication
        .allow_plaintext_passwords_beyond_loopback = true;
    config.authorization.default_allow = false;
    let server = Server::start(&config).expect("a broker");
    let (_, port) = server.listeners()[0].rsplit_once(':').expect("a port");
    let port = port.parse().expect("a number");
    (server, config, (Ipv4Addr::LOCALHOST, port).into())
}

#[test]
fn a_reload_never_opens_a_door() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, config, address) = closed_broker(folder.path());
    assert_ne!(answer(address), 0);
    let garbage = folder.path().join("garbage");
    std::fs::write(&garbage, "no record: and no certificate").expect("writes");
    let missing = folder.path().join("missing");
    let fingerprint = server.certificate().fingerprint;

    // Somebody tries all the time.
    let (stop, admitted, tried) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicU32::new(0)),
    );
    let load = std::thread::spawn({
        let (stop, admitted, tried) = (stop.clone(), admitted.clone(), tried.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                admitted.fetch_add(u32::from(answer(address) == 0), Ordering::Relaxed);
                tried.fetch_add(1, Ordering::Relaxed);
            }
        }
    });

    let changes: Vec<(&str, &str, Change<'_>)> = vec![
        (
            "emptied",
            "",
            Box::new(|config| *config = Config::default()),
        ),
        (
            "listeners on loopback, and no authentication",
            "allow_anonymous_beyond_loopback",
            Box::new(|config| {
                config.listeners = vec![Listener::at("mqtt://127.0.0.1:0")];
                config.authentication.password_file = None;
                config.authorization.default_allow = true;
            }),
        ),
        (
            "the same, and everything is allowed beyond loopback, but nobody said anonymous",
            "authentication.anonymous = true",
            Box::new(|config| {
                config.listeners.truncate(1);
                config.authentication.password_file = None;
                config.authentication.allow_anonymous_beyond_loopback = true;
            }),
        ),
        (
            "anonymous on loopback, whose listeners only a restart opens",
            "allow_anonymous_beyond_loopback",
            Box::new(|config| {
                config.listeners = vec![Listener::at("mqtt://127.0.0.1:0")];
                config.authentication.anonymous = Some(true);
            }),
        ),
        (
            "a listener that admits everybody",
            "allow_anonymous_beyond_loopback",
            Box::new(|config| config.listeners[0].anonymous = Some(true)),
        ),
        (
            "a password file that is not there",
            "missing",
            Box::new(|config| config.authentication.password_file = Some(missing.clone())),
        ),
        (
            "a password file that is none",
            "garbage",
            Box::new(|config| config.authentication.password_file = Some(garbage.clone())),
        ),
        (
            "a token file that is none",
            "garbage",
            Box::new(|config| config.authentication.token_file = Some(garbage.clone())),
        ),
        (
            "a certificate that is none",
            "garbage",
            Box::new(|config| {
                config.tls.certificate = Some(garbage.clone());
                config.tls.key = Some(garbage.clone());
            }),
        ),
        (
            "a key without its certificate",
            "tls.certificate and tls.key",
            Box::new(|config| config.tls.key = Some(garbage.clone())),
        ),
        (
            "what no rule names is allowed",
            "authorization",
            Box::new(|config| {
                config.authorization.default_allow = true;
                config.authorization.allow_default_beyond_loopback = true;
            }),
        ),
        (
            "a last rule that allows it, and the default",
            "default_allow",
            Box::new(|config| {
                config.authorization.default_allow = true;
                config.authorization.rules = vec![Rule {
                    topics: vec!["#".to_owned()],
                    ..Rule::default()
                }];
            }),
        ),
        (
            "a rule that is none",
            "",
            Box::new(|config| {
                config.authorization.rules = vec![Rule {
                    topics: vec!["a/#/b".to_owned()],
                    effect: Effect::Allow,
                    actions: vec![ActionName::Publish],
                    ..Rule::default()
                }];
            }),
        ),
        (
            "passwords in the clear without a word",
            "allow_plaintext_passwords_beyond_loopback",
            Box::new(|config| {
                config
                    .authentication
                    .allow_plaintext_passwords_beyond_loopback = false;
            }),
        ),
        (
            "a limit that is none",
            "receive_maximum",
            Box::new(|config| config.mqtt.receive_maximum = 0),
        ),
    ];
    for (what, named, change) in changes {
        let mut next = config.clone();
        change(&mut next);
        let why = server.reload(&next).expect_err(what);
        assert!(why.contains(named), "{what}: {why}");
        assert_ne!(answer(address), 0, "{what}");
        assert_eq!(server.certificate().fingerprint, fingerprint, "{what}");
    }
    // What is harmless goes through, by the listeners that are open.
    let mut harmless = config.clone();
    harmless.listeners = vec![Listener::at("mqtt://127.0.0.1:0")];
    harmless.tls.require_client_certificate = false;
    harmless.quic.early_data = sterna_server::config::EarlyData::All;
    harmless.data_directory = Some(folder.path().join("other"));
    assert_eq!(
        server.reload(&harmless).expect("sound"),
        ["data_directory", "listener", "quic.early_data"]
    );
    assert!(!folder.path().join("other").exists());
    assert_ne!(answer(address), 0);
    // Nobody but the broker that holds the directory is served by it.
    let why = Server::start(&config).expect_err("in use");
    assert!(why.contains("another broker that is running"), "{why}");

    // And with the words that say so the door opens.
    let mut open = config.clone();
    open.authentication.anonymous = Some(true);
    open.authentication.allow_anonymous_beyond_loopback = true;
    stop.store(true, Ordering::Relaxed);
    load.join().expect("a thread");
    assert_eq!(admitted.load(Ordering::Relaxed), 0);
    assert!(tried.load(Ordering::Relaxed) > 0);
    assert_eq!(server.reload(&open), Ok(Vec::new()));
    let is_open = (0..1_000).any(|_| answer(address) == 0);
    assert!(is_open, "the explicit word had no effect");
    server.shutdown();
    let again = Server::start(&config).expect("the directory is free again");
    again.shutdown();
}

/// What stays and what goes is one: a new authority is not trusted where the certificate is refused.
#[test]
fn an_authority_is_not_replaced_by_a_reload_that_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut config = Config {
        listeners: vec![Listener::at("mqtts://127.0.0.1:0")],
        data_directory: Some(path("state")),
        ..Config::default()
    };
    // Any certificate will do as an authority.
    let server = Server::start(&config).expect("a broker");
    let own = server.certificate().trust_anchor;
    server.shutdown();
    std::fs::copy(own, path("ca.pem")).expect("copies");
    config.tls.client_ca = Some(path("ca.pem"));
    config.tls.require_client_certificate = true;
    let server = Server::start(&config).expect("a broker");
    for (contents, named) in [("", "ca.pem"), ("-----BEGIN CERTIFICATE-----\n", "ca.pem")] {
        std::fs::write(path("ca.pem"), contents).expect("writes");
        let why = server.reload(&config).expect_err("no authority");
        assert!(why.contains(named), "{why}");
    }
    // What a handshake is made of stays until a restart.
    config.tls.client_ca = None;
    config.tls.require_client_certificate = false;
    let why = server.reload(&config).expect_err("the file is still empty");
    assert!(why.contains("ca.pem"), "{why}");
    let anchor = server.certificate().trust_anchor;
    std::fs::copy(anchor, path("ca.pem")).expect("copies");
    config.authentication.anonymous = Some(true);
    assert_eq!(
        server.reload(&config).expect("sound"),
        ["tls.client_ca", "tls.require_client_certificate"]
    );
    server.shutdown();
}

/// A file that is still being written has lost its end.
#[test]
fn a_configuration_that_is_cut_off_opens_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users");
    let record = sterna_auth::Record::from_password("secret", &[7; 16], 4096).expect("a record");
    let text = format!("ann:{record}\n");
    std::fs::write(&users, &text).expect("writes");
    let rule = |effect, topic: &str| Rule {
        effect,
        topics: vec![topic.to_owned()],
        ..Rule::default()
    };
    let mut config = Config {
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        data_directory: Some(folder.path().join("state")),
        ..Config::default()
    };
    config.authentication.password_file = Some(users.clone());
    config.authentication.client_ids = vec![ClientIds {
        users: vec!["*".to_owned()],
        patterns: vec!["%u".to_owned()],
    }];
    config.authorization.rules = vec![rule(Effect::Allow, "devices/%u/#"), rule(Effect::Deny, "#")];
    let server = Server::start(&config).expect("a broker");
    let mut cut = config.clone();
    cut.authorization.rules.truncate(1);
    let why = server.reload(&cut).expect_err("the last rule is gone");
    assert!(why.contains("authorization"), "{why}");
    let mut cut = config.clone();
    cut.authentication.client_ids.clear();
    let why = server.reload(&cut).expect_err("nothing binds identifiers");
    assert!(why.contains("client_ids"), "{why}");
    std::fs::write(&users, "").expect("writes");
    let why = server.reload(&config).expect_err("all users are gone");
    assert!(why.contains("password_file"), "{why}");
    std::fs::write(&users, &text).expect("writes");
    assert_eq!(server.reload(&config), Ok(Vec::new()));
    server.shutdown();
}

/// A rule that is wrong for a moment is said before and after, and takes nothing for good.
#[test]
fn a_reload_says_which_rights_it_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        data_directory: Some(folder.path().join("state")),
        ..Config::default()
    };
    let server = Server::start(&config).expect("a broker");
    let (_, port) = server.listeners()[0].rsplit_once(':').expect("a port");
    let port: u16 = port.parse().expect("a number");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a socket");
    let mut exchange = |sent: &[u8], answer: u8| {
        stream.write_all(sent).expect("sends");
        let mut head = [0; 2];
        stream.read_exact(&mut head).expect("an answer");
        assert_eq!(head[0], answer);
        let mut rest = vec![0; usize::from(head[1])];
        stream.read_exact(&mut rest).expect("its rest");
        rest
    };
    exchange(ANONYMOUS, 0x20);
    // To s/1 and s/2, at QoS 0.
    exchange(b"\x82\x0f\x00\x01\x00\x00\x03s/1\x00\x00\x03s/2\x00", 0x90);
    let publish = b"\x30\x07\x00\x03s/1\x00x";
    assert_eq!(exchange(publish, 0x30), b"\x00\x03s/1\x00x");
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        actions: vec![ActionName::Subscribe],
        topics: vec!["s/#".to_owned()],
        ..Rule::default()
    }];
    let lost = |reloaded: Result<sterna_server::control::Reloaded, String>| {
        let lost = reloaded.expect("sound").lost;
        (lost.subscriptions, lost.sessions)
    };
    assert_eq!(lost(server.reload_with(&config, true)), (2, 1));
    assert_eq!(exchange(publish, 0x30), b"\x00\x03s/1\x00x", "a dry run");
    assert_eq!(lost(server.reload_with(&config, false)), (2, 1));
    assert_eq!(lost(server.reload_with(&config, true)), (0, 0), "once");
    config.authorization.rules[0].topics = vec!["else".to_owned()];
    assert_eq!(lost(server.reload_with(&config, false)), (0, 0));
    assert_eq!(exchange(publish, 0x30), b"\x00\x03s/1\x00x", "it is back");
    server.shutdown();
}
