//! A webhook that is down, slow or lying, and clients that make use of that.

use serde_json::json;
use sterna_amqp::sasl::Plain;
use sterna_mqtt::Version;
use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, QoS};
use sterna_net::TransportKind;
use sterna_server::Policy;

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, plain};
use crate::h3_client::Client as H3Client;
use crate::identity::hook::{Hook, Reply, hooked, knows};
use crate::identity::world::{Shown, authorization};

/// What a client with a right password is told at each door.
fn told(broker: &mut Broker) -> [String; 4] {
    let mut mqtt = |version: Version| {
        let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
        let connect = Connect {
            user_name: Some("device"),
            password: Some(b"device-pass"),
            ..plain(version, "")
        };
        broker.packet(peer, version, &Packet::Connect(connect));
        broker.await_verdicts();
        broker.told(peer, version).join(" ")
    };
    let (mqtt5, mqtt3) = (mqtt(Version::V5), mqtt(Version::V311));
    let start = Start::new("c").with(Plain {
        user: "device".to_owned(),
        password: "device-pass".to_owned(),
    });
    let start = Start {
        is_tapped: true,
        ..start
    };
    let mut client = AmqpClient::start(broker, start);
    client.turn(broker);
    broker.await_verdicts();
    client.turn(broker);
    let amqp = if client.is_open {
        "open".to_owned()
    } else {
        // The code of the outcome, a byte of AMQP.
        let tap = client.tap.take().unwrap_or_default();
        let has = |code: u8| tap.windows(2).any(|two| two == [0x50, code]);
        let codes = [(1, "auth"), (2, "sys"), (4, "sys-temp")];
        let found = codes.into_iter().find(|(code, _)| has(*code));
        found.map_or("", |(_, name)| name).to_owned()
    };
    let mut http = H3Client::connect(broker);
    let value = authorization(Shown::Password("device", "device-pass")).expect("a field");
    let fields = [("authorization", value.as_str())];
    let number = http.request(broker, "GET", "/v1/topics/free/x?wait=0s", &fields, b"");
    broker.await_verdicts();
    http.turn(broker);
    let status = http.response(number).status.to_string();
    [mqtt5, mqtt3, amqp, status]
}

const OK: &str = "HTTP/1.1 200 OK\r\n";

/// Whatever is no good answer lets nobody in, and each door says that it is not the client's fault.
#[test]
fn a_service_that_is_down_or_lying_lets_nobody_in() {
    let hook = Hook::start(knows);
    let (_directory, config) = hooked(&hook, |config| {
        config.webhook.failures = 1000;
        config.webhook.timeout_ms = 60_000;
        config.webhook.maximum_answer_bytes = 1000;
    });
    let good = json!({"result": "allow", "user": "device"}).to_string();
    let raw = |text: String| Reply::Raw(text);
    let long = json!({"result": "allow", "user": "device", "groups": ["x".repeat(2000)]});
    for (what, reply) in [
        ("down", Reply::Down),
        (
            "status",
            raw(format!(
                "HTTP/1.1 500 No\r\nContent-Length: {}\r\n\r\n{good}",
                good.len()
            )),
        ),
        (
            "redirect",
            raw(format!(
                "HTTP/1.1 302 Found\r\nLocation: {}\r\n\r\n{good}",
                hook.url()
            )),
        ),
        ("no HTTP", raw(good.clone())),
        ("no JSON", raw(format!("{OK}\r\nallow"))),
        ("other JSON", Reply::Json(json!(["allow"]))),
        (
            "cut off",
            raw(format!("{OK}Content-Length: 500\r\n\r\n{good}")),
        ),
        ("long", Reply::Json(long)),
        (
            "endless head",
            raw(format!("{OK}X: {}", "x".repeat(40_000))),
        ),
        (
            "another user",
            Reply::Json(json!({"result": "allow", "user": "ann"})),
        ),
        (
            "unknown member",
            Reply::Json(json!({"result": "allow", "client_id": "c"})),
        ),
        ("unknown word", Reply::Json(json!({"result": "Allow"}))),
        (
            "rule that asks",
            Reply::Json(json!({"result": "allow", "rules": [{"topics": ["#"], "effect": "ask"}]})),
        ),
    ] {
        hook.answers(move |_| reply.clone());
        // Nothing is remembered of it.
        let mut broker = Broker::with(&config, 1);
        let expected = [
            "CONNACK Server unavailable",
            "CONNACK Server unavailable",
            "sys-temp",
            "503",
        ];
        assert_eq!(told(&mut broker), expected, "{what}");
        assert_eq!(broker.policy.webhook.remembered(), (0, 0), "{what}");
        hook.answers(knows);
        let found = told(&mut broker);
        assert!(
            found[0].contains("Success") && found[1].contains("Success"),
            "{what}: {found:?}"
        );
        assert_eq!(
            (found[2].as_str(), found[3].as_str()),
            ("open", "204"),
            "{what}"
        );
    }
    hook.answers(|_| Reply::Json(json!({"result": "deny"})));
    let mut broker = Broker::with(&config, 1);
    let found = told(&mut broker);
    assert_eq!(found[0], "CONNACK Bad User Name or Password");
    assert_eq!((found[2].as_str(), found[3].as_str()), ("auth", "401"));
}

/// A slow service keeps nobody but those that need it waiting, for a bounded time; after failures it is
/// left alone.
#[test]
fn a_slow_service_is_given_up_and_left_alone() {
    let hook = Hook::start(|_| Reply::Silence);
    let (_directory, mut config) = hooked(&hook, |config| {
        config.webhook.failures = 2;
        config.webhook.timeout_ms = 2_000;
        config.webhook.pause_ms = 3_600_000;
    });
    let mut broker = Broker::with(&config, 1);
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let connect = |user: &'static str, password: &'static str| Connect {
        user_name: Some(user),
        password: Some(password.as_bytes()),
        ..plain(Version::V5, user)
    };
    broker.packet(peer, Version::V5, &Packet::Connect(connect("device", "x")));
    // The shard goes on meanwhile.
    let bob = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    broker.packet(
        bob,
        Version::V5,
        &Packet::Connect(connect("bob", "bob-pass")),
    );
    broker.await_verdicts();
    assert!(broker.told(bob, Version::V5)[0].contains("Success"));
    assert_eq!(
        broker.told(peer, Version::V5),
        ["CONNACK Server unavailable"]
    );
    told(&mut broker);
    hook.await_asked(2);
    let asked = hook.asked().len();
    assert_eq!(asked, 2, "it is not asked after two failures");
    hook.answers(knows);
    assert_eq!(told(&mut broker)[0], "CONNACK Server unavailable");
    assert_eq!(hook.asked().len(), asked);
    // A reload tries at once. This answer may take its time.
    config.webhook.timeout_ms = 60_000;
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(told(&mut broker)[0].contains("Success"));
}

/// A service that answers one client's odd credentials with errors of its own lives, and is asked about others.
#[test]
fn answers_that_one_client_provokes_pause_nobody() {
    for status in [
        "400 Bad Request",
        "431 Too Large",
        "500 Oops",
        "503 Down",
        "200 OK",
    ] {
        let hook = Hook::start(move |question| {
            if question["user"] == "odd" {
                return Reply::Raw(format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\nodd"));
            }
            knows(question)
        });
        let (_directory, config) = hooked(&hook, |config| {
            config.webhook.failures = 2;
            config.webhook.pause_ms = 3_600_000;
            config.webhook.deny_s = 1;
        });
        let mut broker = Broker::with(&config, 1);
        for number in 0..10 {
            let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
            let password = format!("{number}");
            let connect = Connect {
                user_name: Some("odd"),
                password: Some(password.as_bytes()),
                ..plain(Version::V5, "")
            };
            broker.packet(peer, Version::V5, &Packet::Connect(connect));
            broker.await_verdicts();
            assert_eq!(
                broker.told(peer, Version::V5),
                ["CONNACK Server unavailable"]
            );
        }
        assert!(told(&mut broker)[0].contains("Success"), "{status}");
    }
}

/// A client whose questions hang the service pauses it for its own address.
#[test]
fn silence_for_one_address_keeps_no_other_out() {
    let hook = Hook::start(|question| match question["user"].as_str() {
        Some("odd") => Reply::Down,
        _ => knows(question),
    });
    let (_directory, config) = hooked(&hook, |config| {
        config.webhook.failures = 2;
        config.webhook.pause_ms = 3_600_000;
    });
    let mut broker = Broker::with(&config, 1);
    broker.come_from([198, 51, 100, 66]);
    for _ in 0..10 {
        let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
        let connect = Connect {
            user_name: Some("odd"),
            password: Some(b"x"),
            ..plain(Version::V5, "")
        };
        broker.packet(peer, Version::V5, &Packet::Connect(connect));
        broker.await_verdicts();
        assert_eq!(
            broker.told(peer, Version::V5),
            ["CONNACK Server unavailable"]
        );
    }
    assert_eq!(hook.asked().len(), 2, "no more is asked for it");
    assert_eq!(told(&mut broker)[0], "CONNACK Server unavailable");
    broker.come_from([198, 51, 100, 7]);
    assert!(told(&mut broker)[0].contains("Success"));
}

/// What waits is bounded, and so is what is remembered.
#[test]
fn guesses_fill_neither_the_queue_nor_the_memory() {
    let hook = Hook::start(|_| Reply::Json(json!({"result": "deny"})));
    let (_directory, config) = hooked(&hook, |config| {
        config.webhook.maximum_waiting = 10;
        config.webhook.maximum_concurrent = 1;
        config.webhook.maximum_entries = 64;
        config.guessing.maximum_entries = 100;
    });
    let mut broker = Broker::with(&config, 1);
    let mut peers = Vec::new();
    for number in 0..300 {
        let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
        let user = format!("user-{number}");
        let connect = Connect {
            user_name: Some(&user),
            password: Some(b"x"),
            ..plain(Version::V5, &user)
        };
        broker.packet(peer, Version::V5, &Packet::Connect(connect));
        assert!(broker.policy.webhook.open_questions() <= 11);
        peers.push(peer);
    }
    broker.await_verdicts();
    let mut busy = 0;
    for peer in peers {
        match broker.told(peer, Version::V5).join(" ").as_str() {
            "CONNACK Server busy" => busy += 1,
            "CONNACK Bad User Name or Password" => {}
            other => panic!("{other}"),
        }
    }
    assert!(busy > 0 && busy < 300, "{busy}");
    assert!(broker.policy.webhook.remembered().0 <= 64);
}

/// Where rules ask and nobody answers, nothing is allowed.
#[test]
fn without_an_answer_nothing_is_allowed() {
    let hook = Hook::start(|_| Reply::Down);
    let (_directory, mut config) = hooked(&hook, |config| {
        config.webhook.authentication_url = None;
        config.webhook.authorization_url = Some(hook.url());
    });
    let text = "[[authorization.rule]]\neffect = 'ask'\ntopics = ['#']\n";
    let parsed = sterna_server::config::parse("test", text).expect("rules");
    config.authorization = parsed.authorization;
    config.authentication.anonymous = Some(true);
    let mut broker = Broker::with(&config, 1);
    let reader = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    broker.packet(
        reader,
        Version::V5,
        &Packet::Connect(plain(Version::V5, "c")),
    );
    broker.told(reader, Version::V5);
    // As many filters as one packet may have: some are not even asked about.
    let filters: Vec<String> = (0..100).map(|number| format!("t/{number}")).collect();
    for filter in &filters {
        let options = sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce);
        broker.subscribe_with(reader, Version::V5, filter, options, &[]);
        broker.await_verdicts();
        assert_eq!(broker.told(reader, Version::V5), ["SUBACK 1 0x87"]);
    }
    broker.publish(reader, Version::V5, "t/0", "x", QoS::AtLeastOnce);
    broker.await_verdicts();
    assert_eq!(
        broker.told(reader, Version::V5),
        ["PUBACK 7 Not authorized"]
    );
}

/// TLS to the service is checked like that of any server, and credentials are not sent in the clear to
/// other hosts unless that is said.
#[test]
fn a_service_that_nobody_vouches_for_is_not_asked() {
    let hook = Hook::start(knows);
    let (_directory, mut config) = hooked(&hook, |_| {});
    // It speaks no TLS.
    config.webhook.authentication_url = Some(hook.url().replace("http://", "https://"));
    config.webhook.timeout_ms = 2000;
    let mut broker = Broker::with(&config, 1);
    assert_eq!(told(&mut broker)[0], "CONNACK Server unavailable");
    assert!(hook.asked().is_empty());
    // No such name.
    config.webhook.authentication_url = Some("https://nowhere.invalid/".to_owned());
    broker.apply(Policy::load(&config).expect("a policy"));
    assert_eq!(told(&mut broker)[0], "CONNACK Server unavailable");
    for bad in [
        "http://192.0.2.1/",
        "ftp://localhost/",
        "https://user@localhost/",
        "localhost",
    ] {
        config.webhook.authentication_url = Some(bad.to_owned());
        let why = Policy::load(&config).expect_err(bad);
        assert!(why.contains("webhook.authentication_url"), "{why}");
    }
    config.webhook.authentication_url = Some("http://192.0.2.1/".to_owned());
    config.webhook.allow_plaintext_beyond_loopback = true;
    Policy::load(&config).expect("it is said");
}
