//! Why consumers leave, in the metrics.

use sterna_amqp::messaging::Source;
use sterna_mqtt::packet::{Disconnect, Packet};
use sterna_mqtt::{ReasonCode, Version};

use crate::amqp_client::Client;
use crate::fixture::Broker;
use crate::page::{config, scrape};

const V5: Version = Version::V5;

#[test]
fn each_end_is_counted_by_its_cause() {
    let mut broker = Broker::with(&config(), 2);
    let ended = |broker: &mut Broker, cause: &str| {
        let page = scrape(broker);
        page.value(&format!(
            "sterna_consumers_ended_total{{cause=\"{cause}\"}}"
        ))
    };
    // A queue is made, which the broker itself attends for a moment.
    let mut amqp = Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    let link = amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
    assert_eq!(ended(&mut broker, "client"), 0);
    amqp.detach(&mut broker, link, true);
    let peer = broker.client(V5, "a");
    let disconnect = Packet::Disconnect(Disconnect::new(ReasonCode::Success));
    broker.packet(peer, V5, &disconnect);
    assert_eq!(ended(&mut broker, "client"), 2);
    amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
    drop(amqp.cut(&mut broker));
    let peer = broker.client(V5, "b");
    broker.cut(peer);
    assert_eq!(ended(&mut broker, "lost"), 2);
    broker.client(V5, "b");
    let peer = broker.client(V5, "b");
    assert_eq!(ended(&mut broker, "taken_over"), 1);
    // A second CONNECT.
    broker.packet(peer, V5, &Packet::Connect(crate::fixture::plain(V5, "b")));
    assert_eq!(ended(&mut broker, "violation"), 1);
    let silent = broker.client(V5, "silent");
    broker.advance(200_000);
    assert!(broker.is_closed(silent));
    assert_eq!(ended(&mut broker, "lost"), 3);
}
