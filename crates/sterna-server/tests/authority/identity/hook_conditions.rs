//! The webhook beside what else decides: conditions of rules, limits, bans and early data.

use std::sync::mpsc::channel;

use bytes::BytesMut;
use serde_json::json;
use sterna_amqp::messaging::{MessageWriter, Source};
use sterna_amqp::types::Value;
use sterna_mqtt::packet::{Publish, SubscribeOptions};
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::{Chunk, StreamId, TransportKind};
use sterna_server::config::{self, Config, EarlyData, Listener};

use crate::fixture::{Broker, encode, plain, publish};
use crate::h3_client::Client as H3Client;
use crate::identity::hook::{
    Hook, Reply, asking, connect, connect_with_will, hooked, rules, told, yes,
};
use crate::identity::world::{Door, Entered, Quiet, Shown, authorization, enter};

const V5: Version = Version::V5;

/// What a client says while the webhook is asked is not read. So its silence is the broker's until the answer.
#[test]
fn a_client_lives_while_the_webhook_is_asked_and_keeps_alive_afterwards() {
    let shown = Shown::Password("ann", "ann-pass");
    for door in [Door::Mqtt5, Door::Amqp(Quiet::NoLayer)] {
        let (shut, gate) = channel::<()>();
        let hook = Hook::start(move |question| {
            // Until the test drops its end.
            let _ = gate.recv();
            yes(question)
        });
        let (_directory, config) = asking(&hook, |_| {});
        let mut broker = Broker::with(&config, 1);
        let entered = enter(&mut broker, door, TransportKind::Tcp, None, shown, "c");
        // One and a half times the keep alive, and twice the idle time-out.
        let (peer, most_ms) = match entered {
            Some(Entered::Mqtt(peer, version)) => {
                let options = SubscribeOptions::new(QoS::AtMostOnce);
                broker.subscribe_with(peer, version, "yes/a", options, &[]);
                (peer, 90_000)
            }
            Some(Entered::Amqp(mut client)) => {
                let session = client.begin(&mut broker);
                client.receiver(&mut broker, session, "r", Source::new("yes/a"), 9);
                (client.peer, 120_000)
            }
            _ => panic!("enters"),
        };
        broker.advance(3 * most_ms);
        assert!(!broker.is_closed(peer), "{door:?}");
        assert!(broker.wires[0].paused.contains(&peer.id));
        drop(shut);
        broker.await_verdicts();
        assert!(!broker.wires[0].paused.contains(&peer.id));
        broker.advance(most_ms - 1);
        assert!(!broker.is_closed(peer), "{door:?}");
        broker.advance(1);
        assert!(broker.is_closed(peer), "{door:?}");
    }
}

/// A rule that asks about retained messages says nothing about others, and asks nothing about them.
#[test]
fn conditions_are_looked_at_before_the_webhook_is_asked() {
    let hook = Hook::start(yes);
    let (_directory, config) = asking(&hook, |config| {
        config.authorization.rules = rules(
            "[[authorization.rule]]\neffect = 'ask'\nactions = ['publish']\nretain = true\ntopics = ['#']\n\
             [[authorization.rule]]\ntopics = ['#']\n",
        );
    });
    let mut broker = Broker::with(&config, 1);
    let messages = [
        ("no/plain", false, true),
        ("no/kept", true, false),
        ("yes/kept", true, true),
    ];

    let peer = connect(&mut broker, "c", "ann", "ann-pass");
    told(&mut broker, peer);
    for (topic, retain, is_allowed) in messages {
        let packet = Publish {
            retain,
            ..publish(topic, "x", QoS::AtLeastOnce)
        };
        broker.packet(peer, V5, &Packet::Publish(packet));
        let told = told(&mut broker, peer).join(" ");
        assert_eq!(!told.contains("Not authorized"), is_allowed, "{told}");
    }

    let shown = Shown::Password("ann", "ann-pass");
    let (door, transport) = (Door::Amqp(Quiet::NoLayer), TransportKind::Tcp);
    let Some(Entered::Amqp(mut client)) = enter(&mut broker, door, transport, None, shown, "a")
    else {
        panic!("enters")
    };
    let session = client.begin(&mut broker);
    for (topic, retain, is_allowed) in messages {
        let topic = format!("{topic}/amqp");
        // Nobody knows which messages will come.
        let link = client.sender(&mut broker, session, &topic);
        assert!(
            client.answers.get(&link).is_some_and(|one| !one.refused),
            "{topic}"
        );
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message)
            .message_annotations(|map| {
                if retain {
                    map.push(&Value::Symbol("x-opt-retain"), &Value::Boolean(true));
                }
            })
            .data(b"x");
        client.send_message(&mut broker, link, 1, &message, false, None);
        broker.await_verdicts();
        client.turn(&mut broker);
        let outcomes = client.outcomes();
        assert_eq!(outcomes.len(), 1, "{topic}");
        let is_refused = outcomes[0].1.contains("unauthorized-access");
        assert_eq!(!is_refused, is_allowed, "{topic}: {outcomes:?}");
    }

    let mut http = H3Client::connect(&mut broker);
    let value = authorization(shown).expect("a field");
    for (topic, retain, is_allowed) in messages {
        let flag = if retain { "?1" } else { "?0" };
        let fields = [("authorization", value.as_str()), ("sterna-retain", flag)];
        let path = format!("/v1/topics/{topic}/http");
        let number = http.request(&mut broker, "POST", &path, &fields, b"x");
        broker.await_verdicts();
        http.turn(&mut broker);
        let status = http.response(number).status;
        assert_eq!(status, if is_allowed { 204 } else { 403 }, "{topic}");
    }

    let asked = hook.asked();
    let topics: Vec<&str> = (asked.iter())
        .filter_map(|(_, question)| question["topic"].as_str())
        .collect();
    assert_eq!(
        topics,
        [
            "no/kept",
            "yes/kept",
            "no/kept/amqp",
            "yes/kept/amqp",
            "no/kept/http",
            "yes/kept/http"
        ]
    );
}

#[test]
fn a_group_that_the_webhook_gives_has_its_limit() {
    let hook = Hook::start(|question| {
        Reply::Json(match question["user"].as_str() {
            Some("grouped") => json!({"result": "allow", "groups": ["plant"]}),
            _ => json!({"result": "allow"}),
        })
    });
    let (_directory, config) = hooked(&hook, |config| {
        config.authorization = config::parse(
            "test",
            "[[authorization.group]]\nname = 'plant'\n\
             [[authorization.limit]]\ngroups = ['plant']\nconnections = 1\n",
        )
        .expect("a limit")
        .authorization;
    });
    let mut broker = Broker::with(&config, 1);
    for (user, expected) in [("grouped", "Quota exceeded"), ("other", "Success")] {
        let first = connect(&mut broker, &format!("{user}-1"), user, "x");
        assert!(told(&mut broker, first)[0].contains("Success"), "{user}");
        let second = connect(&mut broker, &format!("{user}-2"), user, "x");
        let told = told(&mut broker, second).join(" ");
        assert!(told.contains(expected), "{user}: {told}");
    }
}

/// A client whose will is asked about comes once.
#[test]
fn a_question_about_a_will_is_no_second_login() {
    let hook = Hook::start(yes);
    let (_directory, config) = asking(&hook, |config| {
        config.bans = config::parse(
            "test",
            "[bans]\nflapping_logins = 3\nflapping_window_s = 10\n",
        )
        .expect("bans")
        .bans;
        // Each will is a question of its own.
        config.webhook.maximum_entries = 64;
    });
    let mut broker = Broker::with(&config, 1);
    for (at, expected) in ["Success", "Success", "Success", "Banned"]
        .iter()
        .enumerate()
    {
        let topic = format!("yes/{at}");
        let peer = connect_with_will(&mut broker, "w", &topic);
        let heard = told(&mut broker, peer).join(" ");
        assert!(heard.contains(expected), "{at}: {heard}");
        broker.cut(peer);
    }
}

/// A message of early data that waits for the webhook is not done: if its connection ends, the same message over
/// another one is no repetition.
#[test]
fn early_data_that_waits_for_the_webhook_is_not_done() {
    // The first answer comes after the connection has ended.
    let (let_answer, may_answer) = channel::<()>();
    let hook = Hook::start(move |question| {
        // Without a sender it answers at once.
        let _ = may_answer.recv();
        yes(question)
    });
    let listener = Listener {
        early_data: Some(EarlyData::Idempotent),
        ..Listener::at("mqtt+quic://127.0.0.1:0")
    };
    let mut config = Config {
        listeners: vec![listener],
        ..Config::default()
    };
    config.webhook.authorization_url = Some(hook.url());
    config.authorization.rules = rules(
        "[[authorization.rule]]\neffect = 'ask'\nactions = ['publish']\ntopics = ['yes/#']\n",
    );
    let mut broker = Broker::with(&config, 1);
    // The webhook is told addresses, and asked about those that are proved.
    broker.has_token = true;
    let watcher = broker.client(V5, "watcher");
    broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
    let mut flight = encode(V5, &Packet::Connect(plain(V5, "x"))).to_vec();
    let message = Packet::Publish(publish("yes/1", "x", QoS::AtLeastOnce));
    flight.extend_from_slice(&encode(V5, &message));
    let early = |broker: &mut Broker| {
        let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
        let chunk = Chunk {
            stream: StreamId::FIRST,
            bytes: &flight,
            early: true,
            confirmed: false,
        };
        broker.arrive(peer, chunk);
        peer
    };
    let peer = early(&mut broker);
    while hook.asked().is_empty() {
        std::thread::yield_now();
    }
    broker.cut(peer);
    drop(let_answer);
    broker.await_verdicts();
    assert_eq!(broker.told(watcher, V5), [""; 0]);

    broker.has_token = false;
    let asked = hook.asked().len();
    let peer = early(&mut broker);
    broker.await_verdicts();
    assert_eq!(hook.asked().len(), asked);
    broker.confirm(peer);
    let heard = told(&mut broker, peer).join(" ");
    assert!(heard.contains("PUBACK 7 Success"), "{heard}");
    assert_eq!(broker.told(watcher, V5), ["PUBLISH0 yes/1=x"]);
}
