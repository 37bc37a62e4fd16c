//! Subscriptions, queues, retained messages and wills after a right was taken away.

use sterna_amqp::messaging::{Source, TerminusExpiryPolicy};
use sterna_mqtt::packet::{Connect, SubscribeOptions, Will};
use sterna_mqtt::{Packet, PublishProperties, QoS, Version};
use sterna_server::Policy;
use sterna_server::config::{ActionName, Config, Effect, OnLostRight, Rule};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, block, plain};
use crate::h3_client::Client as HttpClient;
use crate::rights::overlap::{retain, say, secretive};

const V5: Version = Version::V5;

fn apply(broker: &mut Broker, config: &Config) {
    broker.apply(Policy::load(config).expect("a policy"));
}

/// A client whose session outlives its connection.
fn lasting(broker: &mut Broker, shard: usize, client_id: &str) -> (Peer, Vec<String>) {
    let properties = block(&[sterna_mqtt::Property::SessionExpiryInterval(600)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, client_id)
    };
    let peer = broker.open_on(shard, sterna_net::TransportKind::Tcp, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(connect));
    let told = broker.told(peer, V5);
    (peer, told)
}

/// A client of each protocol that reads `secret/a`; that of MQTT reads `open`, too.
fn readers(broker: &mut Broker) -> (Peer, AmqpClient, HttpClient, u64) {
    let mqtt = broker.client(V5, "m");
    broker.subscribe(mqtt, V5, "secret/a", QoS::AtMostOnce);
    broker.subscribe(mqtt, V5, "open", QoS::AtMostOnce);
    let mut amqp = AmqpClient::start(broker, Start::new("c").on(1));
    let session = amqp.begin(broker);
    amqp.receiver(broker, session, "r", Source::new("secret/a"), 9);
    let mut http = HttpClient::connect(broker);
    let stream = http.request(broker, "GET", "/v1/topics/secret/a", &[], b"");
    (mqtt, amqp, http, stream)
}

#[test]
fn a_subscription_rests_while_it_is_not_allowed_in_every_protocol() {
    let mut broker = Broker::with(&Config::default(), 2);
    let publisher = broker.client(V5, "p");
    let (mqtt, mut amqp, mut http, stream) = readers(&mut broker);
    apply(&mut broker, &secretive(&[]));
    say(&mut broker, publisher, "secret/a", "while denied");
    say(&mut broker, publisher, "open", "2");
    assert_eq!(broker.told(mqtt, V5), ["PUBLISH0 open=2"]);
    amqp.turn(&mut broker);
    assert_eq!(amqp.condition(), None);
    http.turn(&mut broker);
    assert!(!http.response(stream).is_complete, "it is told nothing");
    assert!(http.response(stream).content.is_empty());
    apply(&mut broker, &Config::default());
    say(&mut broker, publisher, "secret/a", "3");
    assert_eq!(broker.told(mqtt, V5), ["PUBLISH0 secret/a=3"]);
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["3"]);
    http.turn(&mut broker);
    let content = String::from_utf8_lossy(&http.response(stream).content).into_owned();
    assert!(
        content.contains('3') && !content.contains("while denied"),
        "{content}"
    );
}

#[test]
fn who_asks_for_it_is_disconnected_in_every_protocol() {
    let mut broker = Broker::with(&Config::default(), 2);
    let publisher = broker.client(V5, "p");
    let (mqtt, mut amqp, mut http, stream) = readers(&mut broker);
    let old = broker.client(Version::V311, "old");
    broker.subscribe(old, Version::V311, "secret/a", QoS::AtMostOnce);
    let (lasting_one, _) = lasting(&mut broker, 0, "lasting");
    broker.subscribe(lasting_one, V5, "secret/a", QoS::AtLeastOnce);
    let mut denied = secretive(&[]);
    denied.authorization.on_lost_right = OnLostRight::Disconnect;
    apply(&mut broker, &denied);
    for peer in [mqtt, lasting_one] {
        assert_eq!(broker.told(peer, V5), ["DISCONNECT Not authorized"]);
    }
    for peer in [mqtt, lasting_one, old] {
        assert!(broker.is_closed(peer));
    }
    assert!(!broker.is_closed(publisher), "it has lost nothing");
    amqp.turn(&mut broker);
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:unauthorized-access")
    );
    http.turn(&mut broker);
    assert!(http.response(stream).is_complete);
    let (lasting_one, told) = lasting(&mut broker, 0, "lasting");
    assert_eq!(told, ["CONNACK Success present"]);
    apply(&mut broker, &Config::default());
    broker.publish(publisher, V5, "secret/a", "again", QoS::AtLeastOnce);
    assert_eq!(
        broker.told(lasting_one, V5),
        ["PUBLISH1 secret/a=again"],
        "its subscription has waited"
    );
}

#[test]
fn what_waits_for_a_client_that_is_away_is_judged_anew() {
    for comes_to in [0, 1] {
        let mut broker = Broker::with(&Config::default(), 2);
        let publisher = broker.client(V5, "p");
        let (away, _) = lasting(&mut broker, 0, "away");
        broker.subscribe(away, V5, "#", QoS::AtLeastOnce);
        broker.subscribe(away, V5, "secret/x", QoS::AtLeastOnce);
        // Sent and not acknowledged, and then queued.
        broker.publish(publisher, V5, "secret/sent", "1", QoS::AtLeastOnce);
        broker.publish(publisher, V5, "open/sent", "2", QoS::AtLeastOnce);
        assert_eq!(broker.told(away, V5).len(), 2);
        broker.cut(away);
        broker.publish(publisher, V5, "secret/x", "3", QoS::AtLeastOnce);
        broker.publish(publisher, V5, "open/x", "4", QoS::AtLeastOnce);
        apply(&mut broker, &secretive(&[]));
        broker.publish(publisher, V5, "secret/x", "5", QoS::AtLeastOnce);
        broker.publish(publisher, V5, "open/x", "6", QoS::AtLeastOnce);
        let (_, told) = lasting(&mut broker, comes_to, "away");
        let expected = [
            "CONNACK Success present",
            "PUBLISH1 dup open/sent=2",
            "PUBLISH1 open/x=4",
            "PUBLISH1 open/x=6",
        ];
        assert_eq!(told, expected, "on shard {comes_to}");
    }
}

#[test]
fn what_a_member_has_and_may_not_send_goes_to_another() {
    let mut broker = Broker::with(&Config::default(), 2);
    let publisher = broker.client(V5, "p");
    let (first, _) = lasting(&mut broker, 0, "barred");
    broker.subscribe(first, V5, "$share/g/secret/+", QoS::AtLeastOnce);
    // It takes nothing, so what is assigned to it waits.
    broker.wires[0].unsent_bytes = 1 << 20;
    for n in 0..3 {
        broker.publish(publisher, V5, "secret/x", &n.to_string(), QoS::AtLeastOnce);
    }
    let (second, _) = lasting(&mut broker, 1, "other");
    broker.subscribe(second, V5, "$share/g/secret/+", QoS::AtLeastOnce);
    apply(&mut broker, &secretive(&["barred"]));
    let told = broker.told(second, V5);
    let expected = [
        "PUBLISH1 secret/x=0",
        "PUBLISH1 secret/x=1",
        "PUBLISH1 secret/x=2",
    ];
    assert_eq!(told, expected);
    broker.wires[0].unsent_bytes = 0;
    broker.writable(first);
    assert!(broker.told(first, V5).is_empty());
}

#[test]
fn a_durable_source_that_is_away_gets_all_but_what_was_published_while_it_was_denied() {
    let mut broker = Broker::with(&Config::default(), 1);
    let publisher = broker.client(V5, "p");
    let source = || Source {
        expiry_policy: TerminusExpiryPolicy::Never,
        ..Source::new("secret/a")
    };
    let mut amqp = AmqpClient::connect(&mut broker, "c/1");
    let session = amqp.begin(&mut broker);
    let link = amqp.receiver(&mut broker, session, "r", source(), 9);
    amqp.detach(&mut broker, link, false);
    broker.publish(publisher, V5, "secret/a", "1", QoS::AtLeastOnce);
    // By the name of its container, which is one level of no topic.
    apply(&mut broker, &secretive(&["c/1"]));
    broker.publish(publisher, V5, "secret/a", "2", QoS::AtLeastOnce);
    amqp.condition();
    amqp.receiver(&mut broker, session, "r", source(), 9);
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:unauthorized-access")
    );
    assert!(amqp.texts().is_empty());
    apply(&mut broker, &secretive(&["c"]));
    amqp.receiver(&mut broker, session, "r", source(), 9);
    assert_eq!(amqp.condition(), None);
    broker.publish(publisher, V5, "secret/a", "3", QoS::AtLeastOnce);
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1", "3"]);
}

/// The handle of a detached link is free for the next one.
#[test]
fn a_detached_source_that_is_forbidden_leaves_other_links_alone() {
    let mut broker = Broker::with(&Config::default(), 1);
    let publisher = broker.client(V5, "p");
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let link = amqp.receiver(&mut broker, session, "a", Source::new("secret/a"), 9);
    amqp.detach(&mut broker, link, false);
    let other = amqp.receiver(&mut broker, session, "b", Source::new("open"), 9);
    assert_eq!(link, other, "the same handle");
    amqp.condition();
    apply(&mut broker, &secretive(&[]));
    amqp.turn(&mut broker);
    assert_eq!(amqp.condition(), None);
    say(&mut broker, publisher, "open", "1");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1"]);
    // It comes back as another subscription, once it may.
    apply(&mut broker, &Config::default());
    amqp.receiver(&mut broker, session, "a", Source::new("secret/a"), 9);
    say(&mut broker, publisher, "secret/a", "2");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["2"]);
}

#[test]
fn a_queue_is_read_by_the_right_to_the_queue() {
    let allowed = |topics: &[&str]| {
        let mut config = Config::default();
        config.authorization.default_allow = false;
        config.authorization.rules = vec![Rule {
            actions: vec![ActionName::Publish, ActionName::Subscribe],
            topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
            ..Rule::default()
        }];
        config.amqp.queues = vec![sterna_server::config::Queue {
            name: "alarms".to_owned(),
            filter: Some("plant/+/alarm".to_owned()),
            ..sterna_server::config::Queue::default()
        }];
        config
    };
    let mut broker = Broker::with(&allowed(&["queue/alarms", "plant/1/alarm"]), 1);
    let publisher = broker.client(V5, "p");
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("queue/alarms"), 2);
    apply(
        &mut broker,
        &allowed(&["queue/alarms", "plant/1/alarm", "x"]),
    );
    say(&mut broker, publisher, "plant/1/alarm", "1");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1"]);
    apply(&mut broker, &allowed(&["plant/1/alarm"]));
    amqp.turn(&mut broker);
    assert_eq!(amqp.condition(), None, "it is told nothing");
    // The queue goes on.
    say(&mut broker, publisher, "plant/1/alarm", "2");
    amqp.turn(&mut broker);
    assert!(amqp.texts().is_empty());
    apply(&mut broker, &allowed(&["queue/alarms", "plant/1/alarm"]));
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["2"]);
}

/// A queue's messages are the queue's, whichever name reads them.
#[test]
fn a_denied_queue_is_not_emptied_by_its_filter() {
    let mut config = Config::default();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        topics: vec!["queue/alarms".to_owned()],
        ..Rule::default()
    }];
    config.amqp.queues = vec![sterna_server::config::Queue {
        name: "alarms".to_owned(),
        filter: Some("plant/+/alarm".to_owned()),
        ..sterna_server::config::Queue::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let eve = broker.client(V5, "eve");
    let mut told = Vec::new();
    for filter in ["$share/alarms/plant/+/alarm", "$share/others/plant/+/alarm"] {
        broker.subscribe_with(
            eve,
            V5,
            filter,
            SubscribeOptions::new(QoS::AtLeastOnce),
            &[],
        );
        told.extend(broker.told(eve, V5));
    }
    let wanted = ["SUBACK 1 0x87", "SUBACK 1 0x01"];
    assert_eq!(told, wanted);
}

#[test]
fn a_dynamic_node_stays_its_clients() {
    let mut broker = Broker::with(&Config::default(), 1);
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let source = Source {
        dynamic: true,
        ..Source::default()
    };
    let link = amqp.receiver(&mut broker, session, "r", source, 9);
    let topic = amqp.answers[&link].address.clone().expect("an address");
    let mut config = Config::default();
    config.authorization.default_allow = false;
    config.authorization.rules = vec![Rule {
        actions: vec![ActionName::Publish],
        topics: vec!["#".to_owned()],
        ..Rule::default()
    }];
    apply(&mut broker, &config);
    let publisher = broker.client(V5, "p");
    say(&mut broker, publisher, &topic, "1");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1"]);
}

#[test]
fn a_will_is_judged_when_it_is_due() {
    for denied in [false, true] {
        let mut broker = Broker::with(&Config::default(), 1);
        let watcher = broker.client(V5, "w");
        broker.subscribe(watcher, V5, "#", QoS::AtMostOnce);
        let connect = Connect {
            will: Some(Will {
                topic: "gone",
                payload: b"x",
                qos: QoS::AtMostOnce,
                retain: false,
                properties: PublishProperties::EMPTY,
            }),
            ..plain(V5, "c")
        };
        let peer = broker.client_with(V5, &connect);
        if denied {
            let mut config = Config::default();
            config.authorization.rules = vec![Rule {
                effect: Effect::Deny,
                clients: vec!["c".to_owned()],
                topics: vec!["gone".to_owned()],
                ..Rule::default()
            }];
            apply(&mut broker, &config);
        }
        broker.cut(peer);
        let told = broker.told(watcher, V5);
        let expected: &[&str] = if denied { &[] } else { &["PUBLISH0 gone=x"] };
        assert_eq!(told, expected);
    }
}

#[test]
fn a_retained_message_of_a_lost_right_is_not_sent_to_a_new_subscription() {
    let mut broker = Broker::with(&Config::default(), 1);
    let publisher = broker.client(V5, "p");
    retain(&mut broker, publisher, "secret/a", "1");
    apply(&mut broker, &secretive(&[]));
    let peer = broker.client(V5, "c");
    broker.subscribe_with(peer, V5, "+/a", SubscribeOptions::new(QoS::AtMostOnce), &[]);
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x00"]);
}
