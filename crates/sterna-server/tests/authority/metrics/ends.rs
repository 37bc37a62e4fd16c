//! Why consumers leave, in the metrics.

use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{Outcome, Source, Target, TargetArchetype};
use sterna_amqp::performatives::Role;
use sterna_broker::EndCause;
use sterna_mqtt::packet::{Disconnect, Packet};
use sterna_mqtt::{QoS, ReasonCode, Version};
use sterna_net::StreamId;
use sterna_server::Policy;
use sterna_server::config::OnLostRight;

use crate::amqp_client::{Client, in_transaction};
use crate::fixture::Broker;
use crate::h2_client::Client as Http2Client;
use crate::h3_client::Client as HttpClient;
use crate::page::{HTTP, MQTT, config, scrape};
use crate::rights::overlap::secretive;

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

/// The causes that count more ends after something was done than before, and how many.
fn ends_by(broker: &mut Broker, done: impl FnOnce(&mut Broker)) -> Vec<(&'static str, u64)> {
    let count = |broker: &mut Broker| {
        let page = scrape(broker);
        EndCause::ALL.map(|cause| {
            let name = cause.name();
            page.value(&format!("sterna_consumers_ended_total{{cause=\"{name}\"}}"))
        })
    };
    let before = count(broker);
    done(broker);
    let after = count(broker);
    (EndCause::ALL.iter().zip(before.iter().zip(after)))
        .filter(|(_, (before, after))| *before != after)
        .map(|(cause, (before, after))| (cause.name(), after - before))
        .collect()
}

/// Readers of `secret/a`: by a link, a stream and a poll.
fn readers(broker: &mut Broker) -> (Client, HttpClient, HttpClient) {
    let mut amqp = Client::connect(broker, "c");
    let session = amqp.begin(broker);
    amqp.receiver(broker, session, "r", Source::new("secret/a"), 9);
    let mut http = HttpClient::connect(broker);
    http.request(broker, "GET", "/v1/topics/secret/a", &[], b"");
    let mut polls = HttpClient::connect(broker);
    let path = "/v1/topics/secret/a?wait=60s";
    let poll = polls.request(broker, "GET", path, &[], b"");
    assert_eq!(polls.response(poll).status, 0, "it waits");
    (amqp, http, polls)
}

#[test]
fn who_reads_what_was_deleted_has_not_left_by_itself() {
    let mut broker = Broker::with(&config(), 1);
    let (mut amqp, mut http, mut polls) = readers(&mut broker);
    let ended = ends_by(&mut broker, |broker| {
        let mut other = HttpClient::connect(broker);
        other.request(broker, "DELETE", "/v1/topics/secret/a", &[], b"");
        for one in [&mut http, &mut polls] {
            one.turn(broker);
        }
        amqp.turn(broker);
    });
    assert_eq!(ended, [("deleted", 3)]);
}

#[test]
fn who_has_lost_a_right_has_not_left_by_itself() {
    let mut broker = Broker::with(&config(), 1);
    let mqtt = broker.client(V5, "m");
    broker.subscribe(mqtt, V5, "secret/a", QoS::AtMostOnce);
    let (mut amqp, mut http, mut polls) = readers(&mut broker);
    let mut denied = config();
    denied.authorization.rules = secretive(&[]).authorization.rules;
    denied.authorization.on_lost_right = OnLostRight::Disconnect;
    let ended = ends_by(&mut broker, |broker| {
        broker.apply(Policy::load(&denied).expect("a policy"));
        for one in [&mut http, &mut polls] {
            one.turn(broker);
        }
        amqp.turn(broker);
    });
    assert_eq!(ended, [("not_allowed", 4)]);
}

#[test]
fn a_link_that_is_refused_something_has_not_left_by_itself() {
    let mut broker = Broker::with(&config(), 1);
    let mut amqp = Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    // To take a source up that is not there.
    let options = AttachOptions {
        source: None,
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let ended = ends_by(&mut broker, |broker| {
        amqp.attach(broker, session, "none", Role::Receiver, &options);
    });
    assert_eq!(amqp.condition().as_deref(), Some("amqp:not-found"));
    assert_eq!(ended, [("refused", 1)]);

    // To accept in a transaction that there is not.
    let sender = amqp.sender(&mut broker, session, "queue/q");
    amqp.send(&mut broker, sender, 1, "1");
    amqp.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
    let ended = ends_by(&mut broker, |broker| {
        let state = in_transaction(b"none", Some(Outcome::Accepted));
        amqp.dispose(broker, session, (0, 0), &state, false);
    });
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:transaction:unknown-id")
    );
    assert_eq!(ended, [("refused", 1)]);
}

#[test]
fn a_client_of_http_that_breaks_its_protocol_has_not_left_by_itself() {
    let mut broker = Broker::with(&config(), 1);
    let mut http = HttpClient::connect(&mut broker);
    http.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let mut other = HttpClient::connect(&mut broker);
    let number = other.request(&mut broker, "GET", "/v1/topics/a", &[], b"");
    let ended = ends_by(&mut broker, |broker| {
        // DATA on the control stream: of the connection (RFC 9114, section 7.2.1).
        broker.send_on(http.peer, StreamId(2), &[0, 0]);
    });
    assert!(broker.is_closed(http.peer));
    assert_eq!(ended, [("violation", 1)]);
    let ended = ends_by(&mut broker, |broker| {
        broker.stop_reading(other.peer, StreamId(number));
    });
    assert_eq!(ended, [("client", 1)], "a request is given up");
}

#[test]
fn a_client_of_http_2_that_breaks_its_protocol_has_not_left_by_itself() {
    let mut broker = Broker::with(&config(), 1);
    let reader = |broker: &mut Broker| {
        broker.listener = HTTP;
        let mut http = Http2Client::connect(broker, b"h2");
        broker.listener = MQTT;
        let stream = http.request(broker, "GET", "/v1/topics/a", &[], b"");
        assert_eq!(stream.status, 200);
        (http, stream)
    };
    let (http, _stream) = reader(&mut broker);
    let ended = ends_by(&mut broker, |broker| {
        // DATA without a stream (RFC 9113, section 6.1).
        broker.send(http.peer, &[0; 9]);
    });
    assert!(broker.is_closed(http.peer));
    assert_eq!(ended, [("violation", 1)]);
    // A window of more than 2^31 - 1 (section 6.9.1), and a frame of SETTINGS that is too long for one (section 6.5).
    for frame in [
        &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff][..],
        &[0, 0, 5, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let (http, _stream) = reader(&mut broker);
        let ended = ends_by(&mut broker, |broker| broker.send(http.peer, frame));
        assert!(broker.is_closed(http.peer));
        assert_eq!(ended, [("violation", 1)], "{frame:?}");
    }
    // It gives the request up.
    let (mut http, mut stream) = reader(&mut broker);
    let ended = ends_by(&mut broker, |broker| {
        stream.reset();
        http.turn(broker, &mut [&mut stream]);
    });
    assert!(!broker.is_closed(http.peer));
    assert_eq!(ended, [("client", 1)]);
}

#[test]
fn a_client_of_amqp_that_is_silent_is_lost() {
    let mut broker = Broker::with(&config(), 1);
    let mut amqp = Client::connect(&mut broker, "c");
    let session = amqp.begin(&mut broker);
    amqp.receiver(&mut broker, session, "r", Source::new("a"), 1);
    let ended = ends_by(&mut broker, |broker| {
        broker.advance(600_000);
        assert!(broker.is_closed(amqp.peer));
    });
    assert_eq!(ended, [("lost", 1)]);
}
