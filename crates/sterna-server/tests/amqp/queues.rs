//! Queues: competing consumers, credit, outcomes, and what is left when nobody is there.

use sterna_amqp::messaging::{DeliveryState, Modified, Outcome, Source};
use sterna_mqtt::{QoS, Version};
use sterna_server::config::{Config, Queue};

use crate::client::{Client, Start};
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
            .map(|number| Client::start(&mut broker, Start::new("r").on(number % shards)))
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
            ("0", 1),
            ("1", 1),
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
            came.as_ref().map(crate::client::Received::delivery_count),
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
        let drained = crate::client::Happened::Drained(link);
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
            filter: None,
        },
        Queue {
            name: "alarms".to_owned(),
            filter: Some("+/alarm".to_owned()),
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
        let mut message = bytes::BytesMut::new();
        sterna_amqp::messaging::MessageWriter::new(&mut message)
            .application_properties(|map| {
                map.push(
                    &sterna_amqp::types::Value::String("color"),
                    &sterna_amqp::types::Value::String(color),
                );
            })
            .data(format!("{color}{token}").as_bytes());
        client.send_message(&mut broker, sender, token as u64, &message, false, None);
    }
    let filter = crate::links::selector("color = 'blue'");
    let source = Source {
        filter: crate::links::map(&filter),
        ..Source::new("queue/q")
    };
    let link = client.receiver(&mut broker, session, "blue", source, 10);
    assert_eq!(client.answers[&link].filters, 1);
    assert_eq!(client.accept_all(&mut broker), ["blue1", "blue3"]);
    client.receiver(&mut broker, session, "all", Source::new("queue/q"), 10);
    assert_eq!(client.accept_all(&mut broker), ["red0", "red2"]);
}
