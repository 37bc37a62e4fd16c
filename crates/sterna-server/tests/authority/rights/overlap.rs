//! A subscription that a rule denies in part stands, and delivers what is not denied.

use sterna_amqp::messaging::Source;
use sterna_mqtt::packet::{Connect, Publish};
use sterna_mqtt::{Packet, QoS, Version};
use sterna_server::Policy;
use sterna_server::config::{Config, Effect, Rule};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, plain, publish};
use crate::h3_client::Client as HttpClient;

const V5: Version = Version::V5;

/// Everything is allowed, but for `secret/#` to the clients named.
pub(crate) fn secretive(clients: &[&str]) -> Config {
    let mut config = Config::default();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        clients: clients.iter().map(|&name| name.to_owned()).collect(),
        actions: vec![sterna_server::config::ActionName::Subscribe],
        topics: vec!["secret/#".to_owned()],
        ..Rule::default()
    }];
    config
}

pub(crate) fn retain(broker: &mut Broker, peer: Peer, topic: &str, payload: &str) {
    let packet = Publish {
        retain: true,
        ..publish(topic, payload, QoS::AtMostOnce)
    };
    broker.packet(peer, V5, &Packet::Publish(packet));
}

pub(crate) fn say(broker: &mut Broker, peer: Peer, topic: &str, payload: &str) {
    broker.publish(peer, V5, topic, payload, QoS::AtMostOnce);
}

#[test]
fn a_wildcard_over_what_is_denied_stands_in_every_protocol() {
    let mut broker = Broker::with(&secretive(&[]), 2);
    let publisher = broker.client(V5, "p");
    retain(&mut broker, publisher, "secret/old", "r");
    retain(&mut broker, publisher, "open/old", "r");
    let mqtt = broker.client(V5, "monitor");
    broker.subscribe_with(
        mqtt,
        V5,
        "#",
        sterna_mqtt::packet::SubscribeOptions::new(QoS::AtLeastOnce),
        &[],
    );
    let told = broker.told(mqtt, V5);
    assert_eq!(told, ["SUBACK 1 0x01", "PUBLISH0 retain open/old=r"]);
    let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(1));
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("#"), 9);
    let mut http = HttpClient::connect(&mut broker);
    let stream = http.request(&mut broker, "GET", "/v1/topics/%23?retained=no", &[], b"");
    for (topic, payload) in [
        ("secret/a", "1"),
        ("open/a", "2"),
        ("secret/a", "3"),
        ("b", "4"),
    ] {
        say(&mut broker, publisher, topic, payload);
    }
    assert_eq!(broker.told(mqtt, V5), ["PUBLISH0 open/a=2", "PUBLISH0 b=4"]);
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["r", "2", "4"]);
    http.turn(&mut broker);
    let content = String::from_utf8_lossy(&http.response(stream).content).into_owned();
    assert!(
        content.contains("open/a") && !content.contains("secret"),
        "{content}"
    );
}

#[test]
fn what_lies_wholly_within_the_denied_is_refused() {
    let mut broker = Broker::with(&secretive(&[]), 1);
    let peer = broker.client(V5, "c");
    for filter in ["secret/#", "secret/+", "secret", "secret/a"] {
        let options = sterna_mqtt::packet::SubscribeOptions::new(QoS::AtMostOnce);
        broker.subscribe_with(peer, V5, filter, options, &[]);
        assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x87"], "{filter}");
    }
}

#[test]
fn a_shared_subscription_gives_each_member_what_it_may_get() {
    let mut broker = Broker::with(&secretive(&["barred"]), 2);
    let publisher = broker.client(V5, "p");
    let barred = broker.client(V5, "barred");
    broker.subscribe(barred, V5, "$share/g/#", QoS::AtMostOnce);
    // What nobody may get waits for nobody: the queue takes other messages for ever.
    for n in 0..20_000 {
        say(&mut broker, publisher, "secret/x", &n.to_string());
    }
    say(&mut broker, publisher, "open", "1");
    assert_eq!(broker.told(barred, V5), ["PUBLISH0 open=1"]);
    let other = broker.client(V5, "other");
    broker.subscribe(other, V5, "$share/g/#", QoS::AtMostOnce);
    for n in 0..6 {
        say(&mut broker, publisher, "secret/x", &n.to_string());
    }
    let expected: Vec<String> = (0..6).map(|n| format!("PUBLISH0 secret/x={n}")).collect();
    assert_eq!(broker.told(other, V5), expected);
    assert!(broker.told(barred, V5).is_empty());
}

#[test]
fn a_reload_decides_again_what_was_decided_once() {
    let mut broker = Broker::with(&secretive(&[]), 2);
    let publisher = broker.client(V5, "p");
    let monitor = broker.client(V5, "m");
    broker.subscribe(monitor, V5, "#", QoS::AtMostOnce);
    let shared = broker.client(V5, "s");
    broker.subscribe(shared, V5, "$share/g/#", QoS::AtMostOnce);
    let mut count = 0;
    for (config, gets) in [
        (Config::default(), true),
        (secretive(&["m", "s"]), false),
        (secretive(&["else"]), true),
        (secretive(&[]), false),
    ] {
        broker.apply(Policy::load(&config).expect("a policy"));
        for _ in 0..3 {
            count += 1;
            say(&mut broker, publisher, "secret/x", &count.to_string());
            let expected: Vec<String> = (gets.then(|| format!("PUBLISH0 secret/x={count}")))
                .into_iter()
                .collect();
            assert_eq!(broker.told(monitor, V5), expected);
            assert_eq!(broker.told(shared, V5), expected);
        }
    }
}

/// What is denied takes no place of a client that is away.
#[test]
fn what_is_denied_is_not_queued() {
    let mut broker = Broker::with(&secretive(&[]), 1);
    let publisher = broker.client(V5, "p");
    let properties = crate::fixture::block(&[sterna_mqtt::Property::SessionExpiryInterval(600)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, "away")
    };
    let away = broker.client_with(V5, &connect);
    broker.subscribe(away, V5, "#", QoS::AtLeastOnce);
    broker.cut(away);
    broker.publish(publisher, V5, "secret/x", "1", QoS::AtLeastOnce);
    broker.publish(publisher, V5, "open", "2", QoS::AtLeastOnce);
    let queued = (broker.sessions(0).0.iter())
        .find(|session| session.name.id() == "away")
        .map(|session| session.queue.pending);
    assert_eq!(queued, Some(1));
}
