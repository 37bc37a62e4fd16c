//! A panic while the broker works for an operator ends that connection, and nobody else notices; or the
//! shard ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sterna_mqtt::{QoS, Version};

use crate::fixture::Broker;
use crate::page::{ADMIN, config, connect, scrape};

const V5: Version = Version::V5;
const REQUESTS: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n\
    GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n\
    GET /admin/v1/clients HTTP/1.1\r\nHost: localhost\r\n\r\n\
    GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn ask(broker: &mut Broker) {
    let peer = connect(broker, ADMIN, 0);
    broker.send(peer, REQUESTS);
    broker.advance(10);
}

#[test]
fn a_panic_for_an_operator_is_nobody_elses() {
    let mut broker = Broker::with(&config(), 2);
    broker.wires[0].fault.set(None);
    ask(&mut broker);
    let calls = broker.wires[0].fault.calls();
    assert!(calls > 20, "{calls} calls of the network");
    let mut contained = 0;
    for call in 0..calls {
        let mut broker = Broker::with(&config(), 2);
        let reader = broker.client(V5, "reader");
        broker.subscribe(reader, V5, "t", QoS::AtMostOnce);
        let fault = Arc::clone(&broker.wires[0].fault);
        fault.set(Some(call));
        let ended = catch_unwind(AssertUnwindSafe(|| ask(&mut broker)));
        assert!(fault.take_call().is_some(), "call {call} did not happen");
        fault.set(None);
        if ended.is_err() {
            continue; // it was the shard's own
        }
        contained += 1;
        let page = scrape(&mut broker);
        assert_eq!(page.value(r#"sterna_clients{state="connected"}"#), 1);
        broker.publish(reader, V5, "t", "x", QoS::AtMostOnce);
        assert_eq!(broker.told(reader, V5), ["PUBLISH0 t=x"], "call {call}");
    }
    assert!(
        contained * 2 > calls,
        "{contained} of {calls} were contained"
    );
}
