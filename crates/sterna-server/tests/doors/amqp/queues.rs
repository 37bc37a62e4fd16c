//! Queues: competing consumers, credit, outcomes, and what is left when nobody is there.

use bytes::BytesMut;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{
    DeliveryState, DistributionMode, Header, MessageView, MessageWriter, Modified, Outcome,
    Rejected, Source, Target, TargetArchetype,
};
use sterna_amqp::performatives::Role;
use sterna_amqp::types::Value;
use sterna_mqtt::packet::{Ack, Publish};
use sterna_mqtt::{Property, QoS, Version};
use sterna_server::config::{ActionName, Config, Effect, Queue, Rule};

use crate::amqp_client::{Client, Start, message_to};
use crate::fixture::Broker;

fn modified(delivery_failed: bool, undeliverable_here: bool) -> DeliveryState<'static> {
    DeliveryState::Outcome(Outcome::Modified(Modified {
        delivery_failed,
        undeliverable_here,
        message_annotations: None,
    }))
}

#[test]
fn a_queue_keeps_messages_without_receivers() {
    let mut broker = Broker::new();
    let mut sender = Client::connect(&mut broker, "sender");
    let session = sender.begin(&mut broker);
    let link = sender.sender(&mut broker, session, "queue/orders");
    sender.send(&mut broker, link, 1, "one");
    sender.send_settled(&mut broker, link, "two");
    assert_eq!(sender.outcomes(), [(1, "accepted".to_owned())]);
    let mut receiver = Client::connect(&mut broker, "receiver");
    let session = receiver.begin(&mut broker);
    receiver.receiver(&mut broker, session, "r", Source::new("queue/orders"), 10);
    assert!(receiver.received.iter().all(|one| !one.settled));
    assert_eq!(receiver.accept_all(&mut broker), ["one", "two"]);
    drop(receiver.cut(&mut broker));
    let mut again = Client::connect(&mut broker, "again");
    let session = again.begin(&mut broker);
    again.receiver(&mut broker, session, "r", Source::new("queue/orders"), 10);
    assert!(again.texts().is_empty(), "what is accepted is gone");
}

/// What programs for Azure Service Bus and Artemis expect: a plain name is a queue, also as `reply-to`,
/// and topics are there by their prefix.
#[test]
fn an_empty_queue_prefix_makes_every_plain_name_a_queue() {
    let mut config = Config::default();
    config.amqp.queue_prefixes = vec![String::new()];
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let orders = client.sender(&mut broker, session, "orders");
    client.send(&mut broker, orders, 1, "one");
    let topic = client.sender(&mut broker, session, "topic://news");
    client.send(&mut broker, topic, 2, "nobody is there");
    for (name, source, texts) in [
        ("1", "orders", &["one"][..]),
        ("2", "queue/orders", &[]),
        ("3", "topic://news", &[]),
        ("4", "news", &[]),
    ] {
        client.receiver(&mut broker, session, name, Source::new(source), 10);
        assert_eq!(client.accept_all(&mut broker), texts, "{source}");
    }
    // A node of the broker's own making is a topic as before.
    let options = AttachOptions {
        source: Some(Source {
            dynamic: true,
            ..Source::default()
        }),
        target: Some(TargetArchetype::Target(Target::default())),
        ..Default::default()
    };
    let role = Role::Receiver;
    let answers = client.attach(&mut broker, session, "answers", role, &options);
    client.credit(&mut broker, answers, 10);
    let address = client.answers[&answers].address.clone().expect("a name");
    let back = client.sender(&mut broker, session, &address);
    client.send(&mut broker, back, 3, "answer");
    assert_eq!(client.accept_all(&mut broker), ["answer"]);
}

#[test]
fn receivers_get_as_much_as_they_give_credit_for() {
    for shards in [1, 3] {
        let mut broker = Broker::with(&Config::default(), shards);
        let mut sender = Client::connect(&mut broker, "sender");
        let session = sender.begin(&mut broker);
        let link = sender.sender(&mut broker, session, "queue/q");
        for token in 0..10 {
            sender.send(&mut broker, link, token, &token.to_string());
        }
        let mut receivers: Vec<Client> = (0..3)
            .map(|number| {
                let container = format!("r{number}");
                Client::start(&mut broker, Start::new(&container).on(number % shards))
            })
            .collect();
        let mut texts = Vec::new();
        for (receiver, credit) in receivers.iter_mut().zip([2, 0, 3]) {
            let session = receiver.begin(&mut broker);
            receiver.receiver(&mut broker, session, "r", Source::new("queue/q"), credit);
            let got = receiver.texts();
            assert_eq!(got.len(), credit as usize);
            texts.extend(got);
        }
        assert_eq!(texts, ["0", "1", "2", "3", "4"], "{shards} shards");
        // What is not settled when a receiver goes returns to the front, in order.
        let first = receivers.remove(0);
        drop(first.cut(&mut broker));
        let last = receivers.last_mut().unwrap();
        let link = *last.answers.keys().next().unwrap();
        last.credit(&mut broker, link, 10);
        let again: Vec<(String, u32)> = last
            .received
            .iter()
            .map(|one| (one.text(), one.delivery_count()))
            .collect();
        let expected = [
            ("0", 0),
            ("1", 0),
            ("5", 0),
            ("6", 0),
            ("7", 0),
            ("8", 0),
            ("9", 0),
        ];
        let expected: Vec<(String, u32)> = expected
            .iter()
            .map(|(text, count)| ((*text).to_owned(), *count))
            .collect();
        assert_eq!(again, expected, "{shards} shards");
    }
}

#[test]
fn outcomes_decide_where_a_message_goes() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    let link = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
    for (state, again) in [
        (DeliveryState::RELEASED, Some(0)),
        (modified(false, false), Some(0)),
        (modified(true, false), Some(1)),
        (modified(true, true), None),
        (DeliveryState::ACCEPTED, None),
    ] {
        client.send(&mut broker, sender, 7, "m");
        let id = client.received.pop().expect("the message").id;
        client.dispose(&mut broker, session, (id, id), &state, true);
        client.credit(&mut broker, link, 1);
        let came = client.received.pop();
        assert_eq!(
            came.as_ref()
                .map(crate::amqp_client::Received::delivery_count),
            again,
            "{state:?}"
        );
        if let Some(came) = came {
            let range = (came.id, came.id);
            client.dispose(&mut broker, session, range, &DeliveryState::ACCEPTED, true);
            client.credit(&mut broker, link, 1);
        }
    }
    // What this receiver could not take waits for another.
    let other = client.receiver(&mut broker, session, "other", Source::new("queue/q"), 1);
    assert_eq!(client.received.len(), 1);
    assert_eq!(client.received[0].link, other);
    assert_eq!(client.received[0].delivery_count(), 1);
}

#[test]
fn several_that_go_back_keep_their_order() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    for token in 0..5 {
        client.send(&mut broker, sender, token, &token.to_string());
    }
    let link = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 4);
    let ids: Vec<u32> = client.received.drain(..).map(|one| one.id).collect();
    let range = (ids[0], ids[3]);
    client.dispose(&mut broker, session, range, &DeliveryState::RELEASED, true);
    client.credit(&mut broker, link, 5);
    assert_eq!(client.texts(), ["0", "1", "2", "3", "4"]);
}

#[test]
fn a_drained_link_gives_its_credit_back() {
    for shards in [1, 2] {
        let mut broker = Broker::with(&Config::default(), shards);
        let mut client = Client::start(&mut broker, Start::new("c").on(shards - 1));
        let session = client.begin(&mut broker);
        let sender = client.sender(&mut broker, session, "queue/q");
        client.send(&mut broker, sender, 1, "one");
        let link = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 0);
        client
            .engine
            .set_credit(link, 5, true, false, &mut client.out)
            .unwrap();
        client.turn(&mut broker);
        assert_eq!(client.texts(), ["one"]);
        let drained = crate::amqp_client::Happened::Drained(link);
        assert!(client.happened.contains(&drained), "{shards} shards");
        client.send(&mut broker, sender, 2, "two");
        assert!(client.texts().is_empty(), "no credit is left");
        client.credit(&mut broker, link, 1);
        assert_eq!(client.texts(), ["two"]);
        // Without credit there is nothing to give back, and an answer all the same.
        client.happened.clear();
        client
            .engine
            .set_credit(link, 0, true, false, &mut client.out)
            .expect("a link");
        client.turn(&mut broker);
        assert!(client.happened.contains(&drained), "{shards} shards");
    }
}

#[test]
fn queues_of_the_configuration_take_what_their_filter_matches() {
    let mut config = Config::default();
    config.amqp.queues_on_first_use = false;
    config.amqp.queues = vec![
        Queue {
            name: "orders".to_owned(),
            ..Queue::default()
        },
        Queue {
            name: "alarms".to_owned(),
            filter: Some("+/alarm".to_owned()),
            ..Queue::default()
        },
    ];
    let mut broker = Broker::with(&config, 2);
    let mqtt = broker.client(Version::V5, "publisher");
    broker.publish(mqtt, Version::V5, "kitchen/alarm", "fire", QoS::AtMostOnce);
    broker.publish(mqtt, Version::V5, "queue/orders", "tea", QoS::AtLeastOnce);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    for (address, text) in [("queue/alarms", "fire"), ("/queues/orders", "tea")] {
        client.receiver(&mut broker, session, address, Source::new(address), 1);
        assert_eq!(client.accept_all(&mut broker), [text]);
    }
    client.sender(&mut broker, session, "queue/alarms");
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:precondition-failed"));
    client.sender(&mut broker, session, "queue/unknown");
    assert_eq!(client.condition().as_deref(), Some("amqp:not-found"));
}

#[test]
fn mqtt_clients_compete_for_a_queue() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    let mqtt = broker.client(Version::V5, "worker");
    broker.subscribe(mqtt, Version::V5, "$share/q/queue/q", QoS::AtLeastOnce);
    client.send(&mut broker, sender, 1, "one");
    assert_eq!(broker.told(mqtt, Version::V5), ["PUBLISH1 queue/q=one"]);
}

#[test]
fn a_selector_leaves_the_others_in_the_queue() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    for (token, color) in ["red", "blue", "red", "blue"].into_iter().enumerate() {
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message)
            .application_properties(|map| {
                map.push(&Value::String("color"), &Value::String(color));
            })
            .data(format!("{color}{token}").as_bytes());
        client.send_message(&mut broker, sender, token as u64, &message, false, None);
    }
    let filter = crate::amqp::links::selector("color = 'blue'");
    let source = Source {
        filter: crate::amqp::links::map(&filter),
        ..Source::new("queue/q")
    };
    let link = client.receiver(&mut broker, session, "blue", source, 10);
    assert_eq!(client.answers[&link].filters, 1);
    assert_eq!(client.accept_all(&mut broker), ["blue1", "blue3"]);
    client.receiver(&mut broker, session, "all", Source::new("queue/q"), 10);
    assert_eq!(client.accept_all(&mut broker), ["red0", "red2"]);
}

const REJECTED: DeliveryState<'static> =
    DeliveryState::Outcome(Outcome::Rejected(Rejected { error: None }));

/// A broker whose queue `orders` sends to `lost` what two deliveries of have failed.
fn with_dead_letters(shards: usize) -> Broker {
    let mut config = Config::default();
    config.amqp.queues = vec![Queue {
        name: "orders".to_owned(),
        maximum_deliveries: Some(2),
        dead_letter: Some("lost".to_owned()),
        ..Queue::default()
    }];
    config.check().expect("it is valid");
    Broker::with(&config, shards)
}

/// What a message tells of its death.
fn obituary(payload: &[u8]) -> Vec<String> {
    let view = MessageView::parse(payload).expect("a message");
    let annotations = view.message_annotations().expect("annotations");
    let text = |value: Value<'_>| match value {
        Value::Uint(number) => number.to_string(),
        other => other.as_text().expect("text").to_owned(),
    };
    (annotations.into_iter())
        .map(|(key, value)| format!("{}={}", text(key), text(value)))
        .collect()
}

#[test]
fn what_receivers_reject_or_cannot_take_goes_to_the_dead_letters() {
    for shards in [1, 3] {
        let mut broker = with_dead_letters(shards);
        let mut client = Client::start(&mut broker, Start::new("c").on(shards - 1));
        let session = client.begin(&mut broker);
        let sender = client.sender(&mut broker, session, "queue/orders");
        let link = client.receiver(&mut broker, session, "r", Source::new("queue/orders"), 1);
        let mut annotated = BytesMut::new();
        MessageWriter::new(&mut annotated)
            .header(&Header {
                durable: true,
                priority: 7,
                ttl: Some(60_000),
                ..Header::default()
            })
            .message_annotations(|map| map.push(&Value::Symbol("x-own"), &Value::String("kept")))
            .application_properties(|map| map.push(&Value::String("color"), &Value::String("red")))
            .data(b"poison");
        client.send_message(&mut broker, sender, 1, &annotated, false, None);
        for failures in 0..2 {
            let came = client.received.pop().expect("the message");
            assert_eq!(came.delivery_count(), failures);
            client.dispose(
                &mut broker,
                session,
                (came.id, came.id),
                &modified(true, false),
                true,
            );
            client.credit(&mut broker, link, 1);
        }
        assert!(client.received.is_empty(), "it has failed too often");
        // By MQTT as well.
        let mqtt = broker.client(Version::V5, "publisher");
        broker.publish(mqtt, Version::V5, "queue/orders", "bad", QoS::AtLeastOnce);
        client.turn(&mut broker);
        let came = client.received.pop().expect("the message");
        client.dispose(&mut broker, session, (came.id, came.id), &REJECTED, true);
        client.receiver(&mut broker, session, "dead", Source::new("queue/lost"), 10);
        let dead = client.received.clone();
        assert_eq!(client.accept_all(&mut broker), ["poison", "bad"]);
        let of_poison = [
            "x-own=kept",
            "x-opt-dead-letter-queue=orders",
            "x-opt-dead-letter-cause=maximum-deliveries",
            "x-opt-dead-letter-failures=2",
        ];
        assert_eq!(obituary(&dead[0].payload), of_poison);
        let view = MessageView::parse(&dead[0].payload).expect("a message");
        let header = view.header().expect("a header").unwrap_or_default();
        assert_eq!(
            (header.durable, header.priority, header.ttl),
            (true, 7, None)
        );
        assert!(
            view.application_properties()
                .is_some_and(|map| map.get("color").is_some())
        );
        let view = MessageView::parse(&dead[1].payload).expect("a message");
        let told = view
            .application_properties()
            .expect("MQTT's user properties");
        let cause = told.get("x-opt-dead-letter-cause");
        assert_eq!(cause, Some(Value::String("rejected")));
    }
}

#[test]
fn mqtt_consumers_reject_to_the_dead_letters_and_read_them() {
    let mut broker = with_dead_letters(2);
    let worker = broker.client(Version::V5, "worker");
    broker.subscribe(
        worker,
        Version::V5,
        "$share/orders/queue/orders",
        QoS::AtLeastOnce,
    );
    let heir = broker.client(Version::V5, "heir");
    broker.subscribe(
        heir,
        Version::V5,
        "$share/lost/queue/lost",
        QoS::AtLeastOnce,
    );
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/orders");
    client.send(&mut broker, sender, 1, "bad");
    assert_eq!(
        broker.told(worker, Version::V5),
        ["PUBLISH1 queue/orders=bad"]
    );
    let packet_id = sterna_mqtt::PacketId::new(1).expect("not zero");
    let refusal = Ack::new(packet_id, sterna_mqtt::ReasonCode::UnspecifiedError);
    broker.packet(worker, Version::V5, &sterna_mqtt::Packet::PubAck(refusal));
    assert_eq!(broker.told(heir, Version::V5), ["PUBLISH1 queue/lost=bad"]);
}

#[test]
fn a_queue_with_priorities_delivers_the_highest_first() {
    let mut config = Config::default();
    config.amqp.queue_priorities = true;
    let mut broker = Broker::with(&config, 2);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    for (token, priority) in [4, 0, 9, 4].into_iter().enumerate() {
        let mut message = BytesMut::new();
        let header = Header {
            priority,
            ..Header::default()
        };
        let text = format!("{priority}.{token}");
        MessageWriter::new(&mut message)
            .header(&header)
            .data(text.as_bytes());
        client.send_message(&mut broker, sender, token as u64, &message, false, None);
    }
    let mqtt = broker.client(Version::V5, "publisher");
    let properties = crate::fixture::block(&[Property::UserProperty("amqp-priority", "8")]);
    let publish = Publish {
        properties: properties
            .publish_properties(sterna_mqtt::PropertyContext::Publish)
            .expect("a user property"),
        ..crate::fixture::publish("queue/q", "8.mqtt", QoS::AtMostOnce)
    };
    broker.packet(mqtt, Version::V5, &sterna_mqtt::Packet::Publish(publish));
    client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
    assert_eq!(
        client.accept_all(&mut broker),
        ["9.2", "8.mqtt", "4.0", "4.3", "0.1"]
    );
}

#[test]
fn a_delayed_message_comes_when_it_is_due() {
    for shards in [1, 2] {
        let mut broker = Broker::with(&Config::default(), shards);
        let mut client = Client::start(&mut broker, Start::new("c").on(shards - 1));
        let session = client.begin(&mut broker);
        let sender = client.sender(&mut broker, session, "queue/q");
        client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        for (token, (annotation, value)) in [
            ("x-opt-delivery-delay", Value::Long(3_000)),
            ("x-opt-delivery-delay", Value::Uint(1_000)),
            ("x-opt-delivery-time", Value::Timestamp(1)),
        ]
        .into_iter()
        .enumerate()
        {
            let mut message = BytesMut::new();
            MessageWriter::new(&mut message)
                .message_annotations(|map| map.push(&Value::Symbol(annotation), &value))
                .data(token.to_string().as_bytes());
            client.send_message(&mut broker, sender, token as u64, &message, false, None);
        }
        assert_eq!(client.outcomes().len(), 3, "they are in the queue");
        assert_eq!(client.accept_all(&mut broker), ["2"], "the past is due");
        broker.advance(1_000);
        client.turn(&mut broker);
        assert_eq!(client.accept_all(&mut broker), ["1"]);
        broker.advance(2_000);
        client.turn(&mut broker);
        assert_eq!(client.accept_all(&mut broker), ["0"]);
    }
}

#[test]
fn a_browser_gets_copies_and_leaves_the_messages() {
    for shards in [1, 3] {
        let mut broker = Broker::with(&Config::default(), shards);
        let mut client = Client::start(&mut broker, Start::new("c").on(shards - 1));
        let session = client.begin(&mut broker);
        let sender = client.sender(&mut broker, session, "queue/q");
        for token in 0..5 {
            client.send(&mut broker, sender, token, &token.to_string());
        }
        let browse = Source {
            distribution_mode: Some(DistributionMode::Copy),
            ..Source::new("queue/q")
        };
        let link = client.receiver(&mut broker, session, "look", browse.clone(), 2);
        assert_eq!(client.accept_all(&mut broker), ["0", "1"]);
        // As clients ask whether there is more.
        client
            .engine
            .set_credit(link, 10, true, false, &mut client.out)
            .expect("a link");
        client.turn(&mut broker);
        assert_eq!(client.accept_all(&mut broker), ["2", "3", "4"]);
        let drained = crate::amqp_client::Happened::Drained(link);
        assert!(client.happened.contains(&drained), "{shards} shards");
        client.detach(&mut broker, link, true);
        client.receiver(&mut broker, session, "again", browse, 10);
        assert_eq!(client.texts().len(), 5, "they are still there");
        client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        assert_eq!(client.accept_all(&mut broker), ["0", "1", "2", "3", "4"]);
    }
}

/// A rule that denies the topic of a message holds for whoever has the right to the queue: who takes, browses, or
/// reads the dead letters. A right to the topic that is missing does not matter.
#[test]
fn what_a_rule_denies_is_denied_in_every_queue() {
    let rule = |effect, topics: &[&str]| Rule {
        effect,
        users: Vec::new(),
        clients: vec!["reader".to_owned()],
        actions: vec![ActionName::Subscribe],
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
        ..Rule::default()
    };
    for (shards, denies) in [(1, true), (2, true), (1, false)] {
        let mut config = Config::default();
        config.amqp.queues = vec![Queue {
            name: "orders".to_owned(),
            filter: Some("orders/#".to_owned()),
            dead_letter: Some("lost".to_owned()),
            ..Queue::default()
        }];
        config.authorization.rules = vec![rule(Effect::Allow, &["queue/#"])];
        if denies {
            let deny = rule(Effect::Deny, &["orders/secret/#"]);
            config.authorization.rules.push(deny);
        }
        // The reader has no right to the topics themselves.
        config.authorization.rules.extend([Rule {
            effect: Effect::Allow,
            clients: vec!["others".to_owned()],
            topics: vec!["#".to_owned()],
            ..Rule::default()
        }]);
        config.authorization.default_allow = false;
        config.check().expect("it is valid");
        let mut broker = Broker::with(&config, shards);
        let mut others = Client::connect(&mut broker, "others");
        let of_others = others.begin(&mut broker);
        let topics = ["orders/a", "orders/secret/b", "orders/c"];
        let senders = topics.map(|topic| others.sender(&mut broker, of_others, topic));
        for (token, (sender, topic)) in senders.into_iter().zip(topics).enumerate() {
            others.send(&mut broker, sender, token as u64, topic);
        }
        let visible = |secret: &str| {
            let all = ["orders/a", secret, "orders/c"].into_iter();
            all.filter(|topic| !denies || !topic.contains("secret"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let mut reader = Client::start(&mut broker, Start::new("reader").on(shards - 1));
        let session = reader.begin(&mut broker);
        let browse = Source {
            distribution_mode: Some(DistributionMode::Copy),
            ..Source::new("queue/orders")
        };
        reader.receiver(&mut broker, session, "look", browse, 10);
        assert_eq!(reader.texts(), visible("orders/secret/b"));
        reader.received.clear();
        // What others reject is a dead letter, whose topic is that of the queue of these.
        let link = others.receiver(&mut broker, of_others, "r", Source::new("queue/orders"), 10);
        for came in std::mem::take(&mut others.received) {
            others.dispose(&mut broker, of_others, (came.id, came.id), &REJECTED, true);
        }
        others.detach(&mut broker, link, true);
        reader.receiver(&mut broker, session, "dead", Source::new("queue/lost"), 10);
        assert_eq!(reader.accept_all(&mut broker), visible("orders/secret/b"));
        // By MQTT the topic of the queue is as any other.
        let mqtt = broker.client(Version::V5, "reader");
        broker.subscribe(mqtt, Version::V5, "queue/lost", QoS::AtLeastOnce);
        for (token, sender) in senders[..2].iter().enumerate() {
            others.send(&mut broker, *sender, 10 + token as u64, "again");
        }
        others.receiver(
            &mut broker,
            of_others,
            "r2",
            Source::new("queue/orders"),
            10,
        );
        for came in std::mem::take(&mut others.received) {
            others.dispose(&mut broker, of_others, (came.id, came.id), &REJECTED, true);
        }
        let told = broker.told(mqtt, Version::V5).len();
        assert_eq!(told, if denies { 1 } else { 2 });
    }
}

#[test]
fn a_source_that_is_attached_again_to_browse_takes_nothing() {
    for is_stolen in [false, true] {
        let mut broker = Broker::new();
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let sender = client.sender(&mut broker, session, "queue/q");
        for token in 0..3 {
            client.send(&mut broker, sender, token, &token.to_string());
        }
        // Some are assigned to it and not settled.
        let link = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 2);
        assert_eq!(client.texts(), ["0", "1"]);
        let browse = Source {
            distribution_mode: Some(DistributionMode::Copy),
            ..Source::new("queue/q")
        };
        let mut looking = if is_stolen {
            Client::connect(&mut broker, "c")
        } else {
            client.detach(&mut broker, link, false);
            client
        };
        let session = looking.begin(&mut broker);
        looking.receiver(&mut broker, session, "r", browse, 10);
        looking.turn(&mut broker);
        let mut copies = looking.accept_all(&mut broker);
        copies.sort();
        assert_eq!(copies, ["0", "1", "2"], "stolen: {is_stolen}");
        let mut other = Client::connect(&mut broker, "d");
        let session = other.begin(&mut broker);
        let link = other.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        assert_eq!(other.accept_all(&mut broker), ["0", "1", "2"]);
        other.detach(&mut broker, link, true);
        // Nor is a link that takes one that browsed.
        let sender = other.sender(&mut broker, session, "queue/q");
        other.send(&mut broker, sender, 9, "9");
        let mut taking = Client::connect(&mut broker, "c");
        let session = taking.begin(&mut broker);
        taking.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        assert_eq!(taking.accept_all(&mut broker), ["9"]);
    }
}

/// Else it is a topic without readers: a message to it is accepted, and gone.
#[test]
fn a_name_that_no_queue_can_have_is_refused_in_every_form() {
    let long = "x".repeat(1_025);
    let mut config = Config::default();
    config.amqp.queue_prefixes = vec![String::new()];
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    for (number, address) in [format!("queue/{long}"), long, "queue/".to_owned()]
        .iter()
        .enumerate()
    {
        let target = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target::new(address))),
            ..AttachOptions::default()
        };
        let source = AttachOptions {
            source: Some(Source::new(address)),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        };
        for (role, options) in [(Role::Sender, target), (Role::Receiver, source)] {
            let name = format!("{number} {role:?}");
            client.attach(&mut broker, session, &name, role, &options);
            let condition = client.condition();
            assert_eq!(condition.as_deref(), Some("amqp:invalid-field"), "{name}");
        }
    }
    let relay = client.anonymous_sender(&mut broker, session);
    for (token, address) in [(1, "queue/"), (2, &*format!("queue/{}", "x".repeat(1_025)))] {
        let message = message_to(address, "m");
        client.send_message(&mut broker, relay, token, &message, false, None);
        let refused = "rejected amqp:invalid-field".to_owned();
        assert_eq!(client.outcomes(), [(token, refused)]);
    }
}
