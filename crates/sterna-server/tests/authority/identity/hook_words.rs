//! The words of a refusal where the webhook decides about an action: those of the service, or that it gave none.

use serde_json::{Value, json};
use sterna_amqp::messaging::Source;
use sterna_mqtt::packet::SubscribeOptions;
use sterna_mqtt::{QoS, Version};
use sterna_net::TransportKind;

use crate::fixture::{Broker, Lines, Peer, reason_of};
use crate::h3_client::Client as H3Client;
use crate::identity::hook::{Hook, Reply, asking, connect_with_will};
use crate::identity::world::{Door, Entered, Quiet, Shown, authorization, enter};

const V5: Version = Version::V5;
const SHOWN: Shown = Shown::Password("ann", "ann-pass");

/// Topics and filters, what their client is told, and what the log says.
const CASES: [(&str, &str, &str); 3] = [
    ("no/a", "the webhook denies it", "the webhook denies it"),
    (
        "why/a",
        "the webhook denies it: valve 7 is under maintenance",
        "the webhook denies it: valve 7 is under maintenance",
    ),
    (
        "out/a",
        "the webhook gives no good answer",
        "the webhook gives no good answer: unknown variant `perhaps`",
    ),
];

fn says(question: &Value) -> Reply {
    let topic = question["topic"].as_str().unwrap_or_default();
    Reply::Json(match topic.split_once('/') {
        Some(("no", _)) => json!({ "result": "deny" }),
        Some(("why", _)) => {
            json!({ "result": "deny", "reason": "valve 7 is under\n maintenance\u{0}" })
        }
        _ => json!({ "result": "perhaps" }),
    })
}

/// A client of MQTT 5 that has come in.
fn come(broker: &mut Broker) -> Peer {
    let entered = enter(broker, Door::Mqtt5, TransportKind::Tcp, None, SHOWN, "c");
    let Some(Entered::Mqtt(peer, _)) = entered else {
        panic!("enters")
    };
    peer
}

/// Holds that one line says that something was refused, with these words.
fn assert_line(text: &str, refused: &str, words: &str) {
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(refused)).collect();
    let [line] = lines[..] else {
        panic!("one line {refused:?}: {text}");
    };
    assert!(line.contains(words), "{words}: {line}");
}

#[test]
fn mqtt_tells_why_a_message_a_subscription_and_a_will_are_refused() {
    let hook = Hook::start(says);
    let (_directory, config) = asking(&hook, |_| {});
    for (topic, told, logged) in CASES {
        let text = Lines::of(tracing::Level::INFO, |_| {
            let mut broker = Broker::with(&config, 1);
            let peer = come(&mut broker);
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                broker.publish(peer, V5, topic, "x", qos);
                broker.await_verdicts();
                let reasons = broker.packets(peer, V5, reason_of);
                assert_eq!(reasons, [Some(told.to_owned())], "{qos:?}");
            }
        });
        assert_line(&text, "publication refused", logged);
        let text = Lines::of(tracing::Level::INFO, |_| {
            let mut broker = Broker::with(&config, 1);
            let peer = come(&mut broker);
            let options = SubscribeOptions::new(QoS::AtMostOnce);
            let filter = format!("$share/g/{topic}");
            broker.subscribe_with(peer, V5, &filter, options, &[]);
            broker.await_verdicts();
            let reasons = broker.packets(peer, V5, reason_of);
            assert_eq!(reasons, [Some(told.to_owned())]);
        });
        assert_line(&text, "subscription refused", logged);
        let text = Lines::of(tracing::Level::INFO, |_| {
            let mut broker = Broker::with(&config, 1);
            let peer = connect_with_will(&mut broker, "w", topic);
            broker.await_verdicts();
            let reasons = broker.packets(peer, V5, reason_of);
            assert_eq!(reasons, [Some(format!("the will: {told}"))]);
        });
        assert_line(&text, "login refused", logged);
        assert_line(&text, "login refused", topic);
    }
}

#[test]
fn amqp_and_http_tell_why_a_link_and_a_request_are_refused() {
    let hook = Hook::start(says);
    let (_directory, config) = asking(&hook, |_| {});
    for (topic, told, logged) in CASES {
        let text = Lines::of(tracing::Level::INFO, |_| {
            let mut broker = Broker::with(&config, 1);
            let door = Door::Amqp(Quiet::NoLayer);
            let entered = enter(&mut broker, door, TransportKind::Tcp, None, SHOWN, "c");
            let Some(Entered::Amqp(mut client)) = entered else {
                panic!("enters")
            };
            let session = client.begin(&mut broker);
            client.tap = Some(Vec::new());
            client.receiver(&mut broker, session, "r", Source::new(topic), 9);
            broker.await_verdicts();
            client.turn(&mut broker);
            client.sender(&mut broker, session, topic);
            broker.await_verdicts();
            client.turn(&mut broker);
            let read = client.tap.unwrap_or_default();
            let words = read
                .windows(told.len())
                .filter(|read| *read == told.as_bytes());
            assert_eq!(words.count(), 2, "of both links");
        });
        assert_line(&text, "link refused", told);

        let value = authorization(SHOWN).expect("a field");
        let fields = [("authorization", value.as_str())];
        for (method, path, refused) in [
            ("POST", format!("/v1/topics/{topic}"), "publication refused"),
            (
                "GET",
                format!("/v1/topics/{topic}?wait=0s"),
                "subscription refused",
            ),
        ] {
            let text = Lines::of(tracing::Level::INFO, |_| {
                let mut broker = Broker::with(&config, 1);
                let mut http = H3Client::connect(&mut broker);
                let number = http.request(&mut broker, method, &path, &fields, b"");
                broker.await_verdicts();
                http.turn(&mut broker);
                let response = http.response(number);
                assert_eq!(response.status, 403);
                let problem: Value = serde_json::from_slice(&response.content).expect("JSON");
                assert_eq!(problem["detail"], told, "{method}");
            });
            assert_line(&text, refused, logged);
        }
    }
}

/// The log names the rule: two rules that deny are told apart.
#[test]
fn a_rule_that_denies_is_named() {
    let hook = Hook::start(says);
    let (_directory, config) = asking(&hook, |_| {});
    let text = Lines::of(tracing::Level::INFO, |_| {
        let mut broker = Broker::with(&config, 1);
        let peer = come(&mut broker);
        broker.publish(peer, V5, "yes/denied", "x", QoS::AtLeastOnce);
        let reasons = broker.packets(peer, V5, reason_of);
        assert_eq!(reasons, [None], "the rules are the operator's");
    });
    assert_line(&text, "publication refused", "rule 1 denies it");
}
