//! What a full store does to those who wait for no answer, and to transactions.

use sterna_amqp::messaging::Source;
use sterna_mqtt::{QoS, Version};

use crate::amqp::durable;
use crate::amqp_client::Client;
use crate::page;
use crate::store::{Held, config};

const V5: Version = Version::V5;
const ROLLED_BACK: &str = "rejected amqp:transaction:rollback";

#[test]
fn what_nobody_waits_for_is_dropped_and_counted() {
    let store = Held::new();
    let mut broker = store.broker(&page::config(), 1);
    let publisher = broker.client(V5, "p");
    broker.listener = page::AMQP;
    let mut client = Client::connect(&mut broker, "c");
    broker.listener = page::MQTT;
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "queue/q");
    let receiver = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 0);
    store.memory.set_full(true);
    client.send_settled(&mut broker, link, "settled");
    broker.publish(publisher, V5, "queue/q", "qos 0", QoS::AtMostOnce);
    let dropped = page::scrape(&mut broker);
    for protocol in ["amqp", "mqtt"] {
        let sample = format!(
            "sterna_messages_dropped_total{{reason=\"store_full\",protocol=\"{protocol}\"}}"
        );
        assert_eq!(dropped.value(&sample), 1, "{protocol}");
    }
    store.memory.set_full(false);
    client.send_settled(&mut broker, link, "there is room");
    client.credit(&mut broker, receiver, 10);
    assert_eq!(client.texts(), ["there is room"]);
}

#[test]
fn a_transaction_that_finds_no_room_is_rolled_back() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let mut keeper = Client::connect(&mut broker, "keeper");
    let session = keeper.begin(&mut broker);
    keeper.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let coordinator = client.coordinator(&mut broker, session);
    let link = client.sender(&mut broker, session, "kept/a");
    let txn = client.declare(&mut broker, coordinator).expect("declared");
    client.post(&mut broker, link, 1, &txn, "too much");
    client.outcomes();
    store.memory.set_full(true);
    client.discharge(&mut broker, coordinator, 2, &txn, false);
    assert_eq!(client.outcomes(), [(2, ROLLED_BACK.to_owned())]);
    store.memory.set_full(false);
    client.send(&mut broker, link, 3, "there is room");
    keeper.turn(&mut broker);
    assert_eq!(keeper.texts(), ["there is room"]);
}
