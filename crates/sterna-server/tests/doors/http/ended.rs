//! DELETE of a topic, to subscribers of every protocol on every shard.

use sterna_amqp::messaging::Source;
use sterna_mqtt::{QoS, Version};

use crate::amqp_client::{Client as AmqpClient, Happened, Start};
use crate::fixture::{Broker, everybodys};
use crate::h3_client::Client;
use crate::http::publish::problem;

const V5: Version = Version::V5;

#[test]
fn everybody_is_told_as_their_protocol_can() {
    let mut broker = Broker::with(&everybodys(), 2);
    let mqtt = broker.client(V5, "s");
    broker.subscribe(mqtt, V5, "t/x", QoS::AtLeastOnce);
    broker.subscribe(mqtt, V5, "t/#", QoS::AtLeastOnce);
    let mut amqp = AmqpClient::start(&mut broker, Start::new("c").on(1));
    let session = amqp.begin(&mut broker);
    let topic = amqp.receiver(&mut broker, session, "r", Source::new("t/x"), 5);
    amqp.receiver(&mut broker, session, "w", Source::new("t/+"), 5);
    let mut http = Client::connect(&mut broker);
    let only = http.request(&mut broker, "GET", "/v1/topics/t/x", &[], b"");
    let more = http.request(&mut broker, "GET", "/v1/topics/t/x?filter=t/y", &[], b"");

    let number = http.request(&mut broker, "DELETE", "/v1/topics/t/x", &[], b"");
    assert_eq!(http.response(number).status, 204);
    amqp.turn(&mut broker);
    http.turn(&mut broker);
    assert!(amqp.happened.contains(&Happened::Detached {
        link: topic,
        closed: true,
        condition: Some("amqp:resource-deleted".to_owned()),
        unsettled: Vec::new(),
    }));
    assert!(
        http.response(only).is_complete,
        "it has nothing to wait for"
    );
    assert!(!http.response(more).is_complete, "it waits for t/y");

    // Other filters go on, and who wants the topic again has it again.
    http.request(&mut broker, "POST", "/v1/topics/t/x", &[], b"1");
    assert_eq!(broker.told(mqtt, V5), ["PUBLISH1 t/x=1"], "by t/#");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1"], "by t/+");
    amqp.receiver(&mut broker, session, "again", Source::new("t/x"), 5);
    http.request(&mut broker, "POST", "/v1/topics/t/x", &[], b"2");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["2", "2"]);
}

#[test]
fn a_queue_of_amqp_outlives_the_topic_that_feeds_it() {
    let mut broker = Broker::new();
    let mut amqp = AmqpClient::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 5);
    let mut http = Client::connect(&mut broker);
    let number = http.request(&mut broker, "DELETE", "/v1/topics/queue/q", &[], b"");
    assert_eq!(problem(&http, number), "404 no-topic");
    http.request(&mut broker, "POST", "/v1/topics/queue/q", &[], b"1");
    amqp.turn(&mut broker);
    assert_eq!(amqp.texts(), ["1"]);
}
