//! What wrong credentials cost, at every door alike.

use std::path::Path;

use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, Version};
use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::fixture::{Broker, Peer, plain};
use crate::h2_client;
use crate::h3_client::Client as H3Client;
use crate::identity::world::{ADMIN, DOORS, Door, Shown, authorization, enter, guarded, takes};

const RIGHT: Shown = Shown::Password("ann", "ann-pass");
const WRONG: Shown = Shown::Password("ann", "wrong");

fn try_at(broker: &mut Broker, door: Door, shown: Shown) -> bool {
    enter(broker, door, TransportKind::Quic, None, shown, "c").is_some()
}

/// Guesses at one door count at all others, for the guesser's address and that user.
#[test]
fn wrong_passwords_count_over_all_doors() {
    for guessing in DOORS {
        for shown in [WRONG, Shown::Scram("ann", "wrong")] {
            if !takes(guessing, shown) {
                continue;
            }
            let (_directory, config) = guarded(|_| {});
            let mut broker = Broker::with(&config, 1);
            broker.come_from([192, 0, 2, 1]);
            for _ in 0..=config.guessing.free_failures {
                assert!(!try_at(&mut broker, guessing, shown));
            }
            for door in DOORS {
                for right in [RIGHT, Shown::Scram("ann", "ann-pass")] {
                    if takes(door, right) {
                        assert!(!try_at(&mut broker, door, right), "{door:?} {right:?}");
                    }
                }
            }
            // Another user, and the same one from elsewhere, come in; and so does she when it is over.
            let bob = Shown::Password("bob", "bob-pass");
            assert!(try_at(&mut broker, Door::Http, bob));
            broker.come_from([192, 0, 2, 2]);
            assert!(try_at(&mut broker, guessing, RIGHT));
            broker.come_from([192, 0, 2, 1]);
            broker.advance(config.guessing.first_delay_ms);
            assert!(try_at(&mut broker, guessing, RIGHT));
        }
    }
}

/// The client is told to come later, in the words of its protocol, and whether the password would have
/// been right is not told.
#[test]
fn whoever_has_to_wait_is_told_so() {
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    for _ in 0..=config.guessing.free_failures {
        assert!(!try_at(&mut broker, Door::Mqtt5, WRONG));
    }
    for password in ["wrong", "ann-pass"] {
        for (version, told) in [
            (Version::V5, "CONNACK Connection rate exceeded"),
            (Version::V311, "CONNACK Server unavailable"),
        ] {
            let peer = connect(&mut broker, version, "ann", password);
            broker.await_verdicts();
            assert_eq!(broker.told(peer, version), [told]);
        }
        let mut client = H3Client::connect(&mut broker);
        let value = authorization(Shown::Password("ann", password)).expect("a field");
        let fields = [("authorization", value.as_str())];
        let number = client.request(&mut broker, "GET", "/v1/topics/a?wait=0s", &fields, b"");
        let response = client.response(number);
        assert_eq!(response.status, 429);
        assert_eq!(response.field("retry-after"), Some("1"));
    }
}

fn connect(broker: &mut Broker, version: Version, user: &str, password: &str) -> Peer {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let connect = Connect {
        user_name: Some(user),
        password: Some(password.as_bytes()),
        ..plain(version, "")
    };
    broker.packet(peer, version, &Packet::Connect(connect));
    peer
}

/// Each check takes long enough that they queue up.
fn slow(directory: &Path, config: &Config) {
    let record = sterna_auth::Record::from_password("ann-pass", &[7; 16], 40_000);
    let path = config.authentication.password_file.as_ref();
    let bob = sterna_auth::Record::from_password("bob-pass", &[7; 16], 40_000);
    let text = format!(
        "ann:{}\nbob:{}\n",
        record.expect("a record"),
        bob.expect("a record")
    );
    std::fs::write(path.expect("a file"), text).expect("written");
    assert!(directory.exists());
}

/// A thousand guesses of one address are looked at as far as they are free; an honest login from
/// elsewhere does not wait for them.
#[test]
fn an_honest_login_does_not_wait_for_guesses() {
    let (directory, config) = guarded(|_| {});
    slow(directory.path(), &config);
    let mut broker = Broker::with(&config, 1);
    broker.come_from([192, 0, 2, 1]);
    let guesses: Vec<Peer> = (0..1000)
        .map(|number| {
            let user = if number % 2 == 0 { "ann" } else { "bob" };
            connect(&mut broker, Version::V5, user, "wrong")
        })
        .collect();
    // On a busy machine there are verdicts before it comes.
    broker.take_verdicts();
    broker.come_from([192, 0, 2, 2]);
    let honest = connect(&mut broker, Version::V5, "ann", "ann-pass");
    // It is among the next few verdicts, however many guesses wait.
    let mut verdicts = 0;
    while broker.told(honest, Version::V5).is_empty() {
        broker.await_verdict();
        verdicts += 1;
        assert!(verdicts < 50, "it waits behind guesses");
    }
    assert!(!broker.is_closed(honest), "it came in");
    broker.await_verdicts();
    let mut looked_at = 0;
    for guess in guesses {
        let told = broker.told(guess, Version::V5);
        looked_at += usize::from(told == ["CONNACK Bad User Name or Password"]);
    }
    assert!(looked_at <= 14, "{looked_at} guesses were looked at");
}

/// A connection that ends takes its check with it.
#[test]
fn a_check_ends_with_its_connection() {
    let (directory, config) = guarded(|_| {});
    slow(directory.path(), &config);
    let mut broker = Broker::with(&config, 1);
    for door in [Door::Mqtt5, Door::Http] {
        let open: Vec<Peer> = (0..150)
            .map(|number| match door {
                Door::Http => {
                    let mut client = H3Client::connect(&mut broker);
                    let value = authorization(RIGHT).expect("a field");
                    let fields = [("authorization", value.as_str())];
                    client.request(&mut broker, "GET", "/v1/topics/a", &fields, b"");
                    client.peer
                }
                _ => connect(&mut broker, Version::V5, &format!("user-{number}"), "x"),
            })
            .collect();
        for peer in open {
            broker.cut(peer);
        }
        assert!(broker.open_checks() <= 1, "{door:?}: one is under way");
        broker.await_verdicts();
    }
}

/// A password that waits for too long is given up, and the client is told to come again.
#[test]
fn a_check_has_a_deadline() {
    let (directory, config) = guarded(|config| config.passwords.timeout_ms = 1);
    slow(directory.path(), &config);
    let mut broker = Broker::with(&config, 1);
    let open: Vec<Peer> = (0..20)
        .map(|_| connect(&mut broker, Version::V5, "ann", "ann-pass"))
        .collect();
    broker.await_verdicts();
    let told: Vec<String> = (open.into_iter())
        .flat_map(|peer| broker.told(peer, Version::V5))
        .collect();
    assert_eq!(told.len(), 20);
    assert!(told.contains(&"CONNACK Server busy".to_owned()), "{told:?}");
}

/// A weak record is raised by a login, and a password that was found right needs no second check.
#[test]
fn a_login_raises_its_record_and_is_remembered() {
    let (directory, config) = guarded(|config| config.passwords.iterations = 6000);
    let path = directory.path().join("passwords");
    let mut broker = Broker::with(&config, 1);
    assert!(try_at(&mut broker, Door::Mqtt5, RIGHT));
    broker.await_verdicts();
    let text = std::fs::read_to_string(&path).expect("a file");
    let line = |user: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(user));
        line.expect("a line").to_owned()
    };
    assert!(
        line("ann:").starts_with("ann:SCRAM-SHA-256$6000:"),
        "{text}"
    );
    assert!(
        line("bob:").starts_with("bob:SCRAM-SHA-256$4096:"),
        "{text}"
    );
    // The same record serves SCRAM and the other doors; the second login is answered at once.
    for door in DOORS {
        for shown in [RIGHT, Shown::Scram("ann", "ann-pass")] {
            if takes(door, shown) {
                assert!(try_at(&mut broker, door, shown), "{door:?} {shown:?}");
            }
        }
    }
    let peer = connect(&mut broker, Version::V5, "ann", "ann-pass");
    assert_eq!(broker.told(peer, Version::V5), ["CONNACK Success"]);
    assert_eq!(broker.open_checks(), 0);
}

/// Requests of operators wait with their contents while a password is checked: up to a limit for each connection, and
/// the account of memory has them.
#[test]
fn requests_that_wait_for_a_password_are_bounded() {
    let (_directory, config) = guarded(|config| config.http.maximum_assembling_bytes = 35_000);
    let mut broker = Broker::with(&config, 1);
    broker.listener = ADMIN;
    let mut client = h2_client::Client::connect(&mut broker, b"h2");
    let wrong = authorization(Shown::Password("ann", "wrong")).expect("a field");
    let fields = [
        ("authorization", wrong.as_str()),
        ("content-type", "application/json"),
        ("sterna-request", "1"),
    ];
    let content = vec![b' '; 10_000];
    // All of them come in one step, before there is a verdict.
    let mut requests: Vec<_> = (0..6)
        .map(|_| {
            let path = "/admin/v1/publish";
            client.begin("POST", path, &fields, Some(&content))
        })
        .collect();
    let mut all: Vec<_> = requests.iter_mut().collect();
    client.turn(&mut broker, &mut all);
    broker.await_verdicts();
    let mut all: Vec<_> = requests.iter_mut().collect();
    client.turn(&mut broker, &mut all);
    let statuses: Vec<u16> = requests.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [401, 401, 401, 503, 503, 503], "three waited");
}
