//! Lines of the log about what is refused: each says who it was, and why.

use sterna_amqp::messaging::Source;
use sterna_amqp::sasl::Plain;
use sterna_broker::{Limits, NoStore};
use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions, Will};
use sterna_mqtt::{Packet, Property, PublishProperties, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::{
    Authorization, Config, Effect, Limit, Listener, OnLostRight, Queue, Rule,
};
use tracing::Level;

use crate::amqp_client::{Client, Start, message_to};
use crate::fixture::{Broker, Lines, block, describe, everybodys, plain, publish, reason_of};
use crate::http::admission::guarded;

fn broker(url: &str, change: impl FnOnce(&mut Config)) -> Broker {
    let mut config = Config {
        listeners: vec![Listener::at(url)],
        ..everybodys()
    };
    change(&mut config);
    Broker::with(&config, 1)
}

/// The only line of a text that has a word.
fn only<'t>(text: &'t str, word: &str) -> &'t str {
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(word)).collect();
    let [line] = *lines else {
        panic!("{word}: {text}");
    };
    line
}

#[test]
fn another_protocol_is_named_at_every_plain_port() {
    const CONNECT: &[u8] = b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0";
    const HELLO: &[u8] = b"\x16\x03\x01\0\xf0\x01\0\0\xec\x03\x03";
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (url, first, spoken) in [
        ("mqtt", GET, "HTTP"),
        ("mqtt", HELLO, "TLS"),
        ("mqtt", b"AMQP\0\0\x09\x01", "AMQP 0-9-1"),
        ("mqtt", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        ("http", CONNECT, "MQTT"),
        ("http", HELLO, "TLS"),
        ("http", b"AMQP\x03\x01\0\0", "AMQP 1.0"),
        ("admin", CONNECT, "MQTT"),
        ("amqp", CONNECT, "MQTT"),
        ("amqp", HELLO, "TLS"),
        ("amqp", GET, "HTTP"),
        ("amqp", b"DELETE /a HTTP/1.1\r\n\r\n", "HTTP"),
    ] {
        let text = Lines::of(Level::INFO, |_| {
            let mut broker = broker(&format!("{url}://127.0.0.1:0"), |_| {});
            let peer = broker.open_speaking(b"", 0, TransportKind::Tcp, Vec::new());
            broker.send(peer, first);
            assert!(broker.is_closed(peer), "{url} {spoken}");
        });
        let line = only(&text, "peer=");
        let said = format!("the client speaks {spoken}, and this end ");
        assert!(line.contains(&said), "{url}: {line}");
    }
}

#[test]
fn a_refused_link_is_told_with_its_user_and_node() {
    let text = Lines::of(Level::INFO, |_| {
        let (_directory, config) = guarded(|config| {
            config.listeners = vec![Listener::at("amqp://127.0.0.1:0")];
            config.authorization.rules = vec![Rule {
                effect: Effect::Deny,
                topics: vec!["closed/#".to_owned()],
                ..Rule::default()
            }];
            config.authorization.admins.clear();
            config.amqp.maximum_queues = 0;
        });
        let mut broker = Broker::with(&config, 1);
        let plain = Plain {
            user: "ann".to_owned(),
            password: "secret".to_owned(),
        };
        let mut client = Client::start(&mut broker, Start::new("c").with(plain));
        broker.await_verdict();
        client.turn(&mut broker);
        let session = client.begin(&mut broker);
        client.receiver(&mut broker, session, "r", Source::new("closed/in"), 1);
        client.sender(&mut broker, session, "closed/out");
        client.sender(&mut broker, session, "queue/new");
        let long = "x".repeat(5_000);
        client.receiver(
            &mut broker,
            session,
            "s",
            Source::new(&format!("{long}/#/a")),
            1,
        );
    });
    for (link, node) in [
        ("\"r\"", "closed/in"),
        ("\"closed/out\"", "closed/out"),
        ("\"queue/new\"", "queue/new"),
    ] {
        let line = only(&text, &format!("link={link}"));
        for part in ["peer=127.0.0.1:", "user=\"ann\"", "link refused"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(line.contains(&format!("node=\"{node}\"")), "{line}");
    }
    assert!(only(&text, "link=\"s\"").len() < 1_000);
}

fn say(broker: &mut Broker, request: &str) -> String {
    let peer = broker.open_speaking(b"http/1.1", 0, TransportKind::Tls, Vec::new());
    broker.send(peer, request.as_bytes());
    broker.advance(10);
    String::from_utf8_lossy(&broker.take(peer)).into_owned()
}

#[test]
fn a_refused_request_is_one_line_with_method_and_path() {
    let basic = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    for (method, path, fields, status, told) in [
        ("GET", "/wp-login.php", basic, 404, "HTTP request refused"),
        ("GET", "/v1/topics/a", "", 401, "login refused"),
        (
            "GET",
            "/v1/topics/a",
            "Authorization: Bearer a.b.c\r\n",
            401,
            "login refused",
        ),
        (
            "PUT",
            "/v1/topics/closed",
            basic,
            403,
            "publication refused",
        ),
        (
            "GET",
            "/v1/topics/closed",
            basic,
            403,
            "subscription refused",
        ),
        (
            "GET",
            "/v1/topics/a",
            "Origin: https://evil.example\r\n",
            403,
            "HTTP request refused",
        ),
    ] {
        let text = Lines::of(Level::INFO, |_| {
            let (_directory, config) = guarded(|config| {
                config.listeners = vec![Listener::at("https://127.0.0.1:0")];
                config.authorization.rules = vec![Rule {
                    effect: Effect::Deny,
                    topics: vec!["closed".to_owned()],
                    ..Rule::default()
                }];
                config.authorization.admins.clear();
            });
            let mut broker = Broker::with(&config, 1);
            let query = if path.ends_with("closed") {
                ""
            } else {
                "?key=secret"
            };
            let request = format!(
                "{method} {path}{query} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: 0\r\n\r\n"
            );
            let peer = broker.open_speaking(b"http/1.1", 0, TransportKind::Tls, Vec::new());
            broker.send(peer, request.as_bytes());
            broker.await_verdicts();
            let answer = String::from_utf8_lossy(&broker.take(peer)).into_owned();
            assert!(answer.contains(&format!(" {status} ")), "{path}: {answer}");
        });
        let line = only(&text, "peer=");
        assert!(line.contains(told), "{line}");
        assert!(!line.contains("secret"), "{line}");
        let is_of_topic = status == 403 && told != "HTTP request refused";
        if !is_of_topic {
            let request = format!("method=\"{method}\" path=\"{path}\"");
            assert!(line.contains(&request), "{line}");
        }
    }
}

/// Who asks for one name after the other fills no log.
#[test]
fn unknown_paths_are_told_at_a_pace() {
    let text = Lines::of(Level::INFO, |_| {
        let mut broker = broker("http://127.0.0.1:0", |_| {});
        for number in 0..100 {
            let answer = say(
                &mut broker,
                &format!("GET /{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            );
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        }
        broker.advance(10_000);
        say(&mut broker, "GET /last HTTP/1.1\r\nHost: localhost\r\n\r\n");
        // A question whether there is something is not refused.
        say(
            &mut broker,
            "HEAD /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
    });
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("peer=")).collect();
    let [first, last] = *lines else {
        panic!("{text}");
    };
    assert!(first.contains("path=\"/0\""), "{first}");
    assert!(
        last.contains("path=\"/last\"") && last.contains("more=99"),
        "{last}"
    );
}

#[test]
fn a_session_that_is_taken_over_is_told_with_both_peers() {
    for shards in [1, 2] {
        let text = Lines::of(Level::INFO, |_| {
            let config = Config {
                listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
                ..everybodys()
            };
            let mut broker = Broker::with(&config, shards);
            broker.come_from([192, 0, 2, 1]);
            let old = broker.client(Version::V5, "device");
            broker.come_from([192, 0, 2, 2]);
            let new = broker.open_on(shards - 1, TransportKind::Tcp, Vec::new());
            broker.packet(
                new,
                Version::V5,
                &Packet::Connect(plain(Version::V5, "device")),
            );
            assert!(broker.is_closed(old));
        });
        let line = only(&text, "session taken over");
        for part in [
            "peer=192.0.2.1:4000",
            "by=192.0.2.2:4001",
            "client=\"device\"",
            "sterna admin sessions end --nobody -- 'device'",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn a_quota_is_told_with_the_setting_that_holds() {
    const V5: Version = Version::V5;
    let config = Config {
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        authorization: Authorization {
            limits: vec![Limit {
                subscriptions: Some(1),
                ..Limit::default()
            }],
            ..everybodys().authorization
        },
        ..Config::default()
    };
    let limits = Limits {
        retained_messages: 0,
        sessions: 2,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&config, 1, limits, || Box::new(NoStore));
    for wants in [true, false] {
        let name = if wants { "wants" } else { "does not" };
        let asked = [Property::RequestProblemInformation(wants)];
        let properties = block(&asked);
        let connect = Connect {
            properties: properties.properties(),
            ..plain(V5, name)
        };
        let peer = broker.client_with(V5, &connect);
        let mut said = Vec::new();
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let publish = Publish {
                retain: true,
                ..publish("a", "x", qos)
            };
            broker.packet(peer, V5, &Packet::Publish(publish));
            said.extend(broker.packets(peer, V5, |packet| (describe(packet), reason_of(packet))));
        }
        for filter in ["a", "b"] {
            broker.subscribe_with(
                peer,
                V5,
                filter,
                SubscribeOptions::new(QoS::AtMostOnce),
                &[],
            );
            said.extend(broker.packets(peer, V5, |packet| (describe(packet), reason_of(packet))));
        }
        for (answer, setting) in [
            (
                "PUBACK 7 Quota exceeded",
                "broker.maximum_retained_messages",
            ),
            (
                "PUBREC 7 Quota exceeded",
                "broker.maximum_retained_messages",
            ),
            ("SUBACK 1 0x97", "authorization.limit.subscriptions"),
        ] {
            let of = said.iter().find(|(packet, _)| packet == answer);
            let (_, reason) = of.unwrap_or_else(|| panic!("{said:?}"));
            let names = (reason.as_deref()).is_some_and(|text| text.contains(setting));
            assert_eq!(names, wants, "{said:?}");
            assert_eq!(reason.is_some(), wants, "{said:?}");
        }
    }
    let third = broker.open();
    broker.packet(third, V5, &Packet::Connect(plain(V5, "third")));
    let said = broker.packets(third, V5, |packet| (describe(packet), reason_of(packet)));
    let (answer, reason) = &said[0];
    assert_eq!(answer, "CONNACK Quota exceeded");
    let reason = reason.as_deref().unwrap_or_default();
    assert!(reason.contains("broker.maximum_sessions"), "{reason}");
}

/// A connection of MQTT with a password.
fn user<'c>(client_id: &'c str, user: Option<&'c str>) -> Packet<'c> {
    let connect = plain(Version::V5, client_id);
    Packet::Connect(Connect {
        user_name: user,
        password: user.map(|_| &b"secret"[..]),
        ..connect
    })
}

#[test]
fn a_session_too_many_is_one_line_with_the_command_that_frees_one() {
    for (name, freed_by) in [
        (None, "sterna admin sessions remove --nobody"),
        (Some("ann"), "sterna admin sessions remove --user='ann'"),
    ] {
        let text = Lines::of(Level::INFO, |_| {
            let (_directory, config) = guarded(|config| {
                config.listeners = ["mqtt", "amqp", "http"]
                    .map(|scheme| Listener::at(&format!("{scheme}://127.0.0.1:0")))
                    .into();
                config.authentication.anonymous = Some(true);
                config.authorization.admins = vec!["anonymous".into(), "ann".into()];
            });
            let limits = Limits {
                sessions: 0,
                ..Limits::default()
            };
            let mut broker = Broker::restored(&config, 1, limits, || Box::new(NoStore));
            let peer = broker.open();
            broker.packet(peer, Version::V5, &user("device", name));
            broker.await_verdicts();
            broker.listener = 1;
            let start = Start::new("c");
            let start = match name {
                Some(name) => start.with(Plain {
                    user: name.to_owned(),
                    password: "secret".to_owned(),
                }),
                None => start,
            };
            let mut client = Client::start(&mut broker, start);
            broker.await_verdicts();
            client.turn(&mut broker);
            let session = client.begin(&mut broker);
            client.receiver(&mut broker, session, "r", Source::new("t"), 1);
            broker.listener = 2;
            let basic = name.map_or("", |_| "Authorization: Basic YW5uOnNlY3JldA==\r\n");
            let peer = broker.open_speaking(b"http/1.1", 0, TransportKind::Tls, Vec::new());
            let request = format!("GET /v1/topics/t HTTP/1.1\r\nHost: localhost\r\n{basic}\r\n");
            broker.send(peer, request.as_bytes());
            broker.await_verdicts();
        });
        let lines: Vec<&str> = (text.lines())
            .filter(|line| line.contains("too many sessions"))
            .collect();
        let told = ["login refused", "link refused", "HTTP request refused"];
        assert_eq!(lines.len(), told.len(), "{text}");
        for (line, told) in lines.iter().zip(told) {
            assert!(line.contains(told), "{told}: {line}");
            assert!(
                line.contains(&format!("freed_by=\"{freed_by}\"")),
                "{freed_by}: {line}"
            );
        }
        assert!(!text.contains("there is no room"), "{text}");
    }
}

/// What a broker with topics of two levels at most says: the log, and the answers to clients.
fn of_two_levels(work: impl FnOnce(&mut Broker) -> String) -> (String, String) {
    let mut said = String::new();
    let text = Lines::of(Level::INFO, |_| {
        let config = Config {
            listeners: ["mqtt", "amqp", "http"]
                .map(|scheme| Listener::at(&format!("{scheme}://127.0.0.1:0")))
                .into(),
            ..everybodys()
        };
        let limits = Limits {
            topic_levels: 2,
            ..Limits::default()
        };
        let mut broker = Broker::restored(&config, 1, limits, || Box::new(NoStore));
        said = work(&mut broker);
    });
    (text, said)
}

#[test]
fn too_many_levels_are_told_with_their_setting_at_every_door() {
    const SETTING: &str = "broker.maximum_topic_levels";
    const V5: Version = Version::V5;
    let (text, said) = of_two_levels(|broker| {
        let peer = broker.client(V5, "device");
        broker.publish(peer, V5, "a/b/c", "x", QoS::AtLeastOnce);
        let options = SubscribeOptions::new(QoS::AtMostOnce);
        broker.subscribe_with(peer, V5, "$share/g/a/b/#", options, &[]);
        let will = Connect {
            will: Some(Will {
                topic: "a/b/c",
                payload: b"x",
                qos: QoS::AtMostOnce,
                retain: false,
                properties: PublishProperties::EMPTY,
            }),
            ..plain(V5, "with-will")
        };
        let other = broker.open();
        broker.packet(other, V5, &Packet::Connect(will));
        let mut said = Vec::new();
        for peer in [peer, other] {
            said.extend(broker.packets(peer, V5, |packet| (describe(packet), reason_of(packet))));
        }
        format!("{said:?}")
    });
    for answer in ["PUBACK 7", "SUBACK 1", "CONNACK Topic Name invalid"] {
        let at = said
            .find(answer)
            .unwrap_or_else(|| panic!("{answer}: {said}"));
        let rest = &said[at..];
        let end = rest.find(')').unwrap_or(rest.len());
        let whole = &rest[..rest.len().min(end + 100)];
        assert!(whole.contains(SETTING), "{answer}: {said}");
    }
    for line in [
        "publication refused",
        "subscription refused",
        "login refused",
    ] {
        let line = only(&text, line);
        assert!(line.contains(SETTING), "{line}");
    }
    let (text, condition) = of_two_levels(|broker| {
        broker.listener = 1;
        let mut client = Client::connect(broker, "c");
        let session = client.begin(broker);
        client.receiver(broker, session, "r", Source::new("a/b/c"), 1);
        let anonymous = client.anonymous_sender(broker, session);
        let message = message_to("a/b/d", "x");
        client.send_message(broker, anonymous, 1, &message, false, None);
        String::new()
    });
    assert!(condition.is_empty());
    let line = only(&text, "link refused");
    assert!(line.contains(SETTING), "{line}");
    let line = only(&text, "message refused");
    assert!(
        line.contains(SETTING) && line.contains("topic=\"a/b/d\""),
        "{line}"
    );
    let (_, said) = of_two_levels(|broker| {
        broker.listener = 2;
        [("POST", "x"), ("GET", ""), ("PUT", "")]
            .map(|(method, content)| {
                let length = content.len();
                let fields =
                    format!("Host: localhost\r\nContent-Length: {length}\r\n\r\n{content}");
                say(
                    broker,
                    &format!("{method} /v1/topics/a/b/c HTTP/1.1\r\n{fields}"),
                )
            })
            .join("\n--\n")
    });
    for answer in said.split("\n--\n") {
        assert!(
            answer.contains(" 400 ") && answer.contains(SETTING),
            "{answer}"
        );
    }
}

/// The words of a line, what a client does, and what the line tells of it.
type Case<'c> = (&'c str, &'c dyn Fn(&mut Broker), &'c [&'c str]);

#[test]
fn limits_of_mqtt_are_told_with_their_settings() {
    let cases: [Case<'_>; 4] = [
        (
            "client disconnected",
            &|broker| {
                let peer = broker.client(Version::V5, "device");
                broker.send(peer, &[0x30, 0xff, 0xff, 0xff, 0x7f]);
            },
            &["client=\"device\"", "mqtt.maximum_packet_bytes"],
        ),
        (
            "client disconnected",
            &|broker| {
                let peer = broker.client(Version::V5, "device");
                for number in 1..4 {
                    broker.send(peer, &[0x34, 7, 0, 1, b't', 0, number, 0, b'x']);
                }
            },
            &["client=\"device\"", "mqtt.receive_maximum"],
        ),
        (
            "client disconnected",
            &|broker| {
                broker.open();
                broker.advance(30_001);
            },
            &["network.connect_timeout_ms"],
        ),
        (
            "login refused",
            &|broker| {
                let peer = broker.open();
                let long = "x".repeat(300);
                broker.packet(peer, Version::V5, &user(&long, Some("ann")));
            },
            &[
                "client=\"xxx",
                "user=\"ann\"",
                "mqtt.maximum_client_id_bytes",
            ],
        ),
    ];
    for (line, work, parts) in cases {
        let text = Lines::of(Level::INFO, |_| {
            let mut broker = broker("mqtt://127.0.0.1:0", |config| {
                config.mqtt.receive_maximum = 2;
                config.mqtt.maximum_client_id_bytes = 256;
            });
            work(&mut broker);
        });
        let line = only(&text, line);
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn a_mechanism_that_is_not_offered_is_told_as_that() {
    const INIT: &[u8] =
        b"AMQP\x03\x01\0\0\0\0\0\x16\x02\x01\0\0\0\x53\x41\xc0\x09\x01\xa3\x06GSSAPI";
    let text = Lines::of(Level::INFO, |_| {
        let (_directory, config) = guarded(|config| {
            config.listeners = vec![Listener::at("amqp://127.0.0.1:0")];
            config.authorization.admins.clear();
        });
        let mut broker = Broker::with(&config, 1);
        let peer = broker.open();
        broker.send(peer, INIT);
    });
    let line = only(&text, "login refused");
    assert!(line.contains("reason=\"method\""), "{line}");
}

#[test]
fn a_queue_that_is_not_made_is_told_with_the_setting() {
    let text = Lines::of(Level::INFO, |_| {
        let config = Config {
            listeners: vec![Listener::at("amqp://127.0.0.1:0")],
            amqp: sterna_server::config::Amqp {
                queues: vec![Queue {
                    name: "orders".to_owned(),
                    ..Queue::default()
                }],
                ..Default::default()
            },
            ..everybodys()
        };
        let limits = Limits {
            sessions: 0,
            ..Limits::default()
        };
        Broker::restored(&config, 1, limits, || Box::new(NoStore));
    });
    let line = only(&text, "the queue was not made");
    assert!(line.contains("broker.maximum_sessions"), "{line}");
    assert!(!line.contains("store"), "{line}");
}

#[test]
fn a_lost_right_is_told_with_the_filter() {
    let text = Lines::of(Level::INFO, |_| {
        let mut broker = broker("mqtt://127.0.0.1:0", |_| {});
        let peer = broker.client(Version::V5, "device");
        for filter in ["open/#", "closed/#"] {
            broker.subscribe(peer, Version::V5, filter, QoS::AtMostOnce);
        }
        let mut config = everybodys();
        config.listeners = vec![Listener::at("mqtt://127.0.0.1:0")];
        config.authorization.admins.clear();
        config.authorization.on_lost_right = OnLostRight::Disconnect;
        config.authorization.rules = vec![Rule {
            effect: Effect::Deny,
            topics: vec!["closed/#".to_owned()],
            ..Rule::default()
        }];
        broker.apply(Policy::load(&config).expect("a policy"));
        assert!(broker.is_closed(peer));
    });
    let line = only(&text, "client disconnected");
    assert!(line.contains("closed/#"), "{line}");
}
