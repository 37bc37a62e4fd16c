//! HTTP/3, as it is carried.

use crate::fixture::Broker;
use crate::h3_client::Client;

/// What no resource answers to.
const NOWHERE: &str = "/nowhere";

#[test]
fn a_request_is_answered() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    assert!(client.engine.peer_settings().is_some());
    let number = client.request(&mut broker, "GET", NOWHERE, &[], b"");
    let response = client.response(number);
    assert_eq!(response.status, 404);
    assert_eq!(
        response.field("date"),
        Some("Tue, 14 Nov 2023 22:13:20 GMT")
    );
    assert!(response.is_complete);
}
