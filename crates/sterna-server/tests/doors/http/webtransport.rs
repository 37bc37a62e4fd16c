//! WebTransport, as it is carried.

use sterna_h3::{Features, StreamId};
use sterna_mqtt::{QoS, Version};
use sterna_server::config::Config;

use crate::fixture::Broker;
use crate::h3_client::Client;

const WEBTRANSPORT: Features = Features {
    extended_connect: true,
    datagrams: true,
    webtransport: true,
};

/// A frame of the binary stream: its length, an id, flags, a topic, no properties, a payload.
fn frame(id: u8, qos: u8, topic: &str, payload: &str) -> Vec<u8> {
    let mut bytes = vec![id, qos, topic.len() as u8];
    bytes.extend_from_slice(topic.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(payload.as_bytes());
    bytes.insert(0, bytes.len() as u8);
    bytes
}

fn broker() -> Broker {
    let mut broker = Broker::new();
    broker.wires[0].datagram_bytes = 1_200;
    broker
}

/// A session with a subscription.
fn open(broker: &mut Broker, path: &str) -> (Client, StreamId) {
    let mut client = Client::connect_with(broker, WEBTRANSPORT);
    let session = (client.engine)
        .connect_session("localhost", path, &[], &mut client.out)
        .expect("settings that allow it");
    client.turn(broker);
    assert_eq!(client.response(session.0).status, 200);
    (client, session)
}

#[test]
fn messages_go_both_ways_on_streams_and_in_datagrams() {
    let mut broker = broker();
    let watcher = broker.client(Version::V5, "watch");
    broker.subscribe(watcher, Version::V5, "#", QoS::AtLeastOnce);
    let (mut client, session) = open(&mut broker, "/v1/topics/a/%23");
    // On a stream of both directions each frame is answered.
    let stream = (client.engine)
        .open_session_stream(session, true, &mut client.out)
        .expect("a session that is open");
    let bytes = [frame(1, 1, "a/b", "one"), frame(2, 1, "a/c", "two")].concat();
    // Cut somewhere within.
    for part in [&bytes[..5], &bytes[5..]] {
        let sent = client.engine.send(stream, part, &mut client.out);
        sent.expect("a stream that is open");
        client.turn(&mut broker);
    }
    let answers = client.heard.streams.remove(&stream.0).expect("answers");
    // Length, id and the status 204 in two bytes each.
    assert_eq!(answers, [3, 1, 0x40, 204, 3, 2, 0x40, 204]);
    assert_eq!(
        broker.told(watcher, Version::V5),
        ["PUBLISH1 a/b=one", "PUBLISH1 a/c=two"]
    );
    // The subscription of the session has them, on one stream.
    assert_eq!(client.heard.streams.len(), 1);
    let (delivering, delivered) = client.heard.streams.pop_first().expect("deliveries");
    let expected = [frame(1, 1, "a/b", "one"), frame(2, 1, "a/c", "two")].concat();
    assert_eq!(delivered, expected);
    // In a datagram, without the length: it comes back in one.
    let sent =
        (client.engine).send_datagram(session, &frame(0, 0, "a/d", "x")[1..], &mut client.out);
    assert_eq!(sent, Ok(true));
    client.turn(&mut broker);
    assert_eq!(broker.told(watcher, Version::V5), ["PUBLISH0 a/d=x"]);
    assert_eq!(
        client.heard.datagrams,
        [frame(0, 0, "a/d", "x")[1..].to_vec()]
    );
    assert!(!client.heard.streams.contains_key(&delivering));
}

#[test]
fn a_session_ends_with_what_belongs_to_it() {
    let mut broker = broker();
    let connected = |broker: &Broker| {
        let sessions = broker.sessions(0).0;
        sessions.iter().filter(|one| one.consumer.is_some()).count()
    };
    // Closed by the client, and by the end of its side.
    for closes in [true, false] {
        let (mut client, session) = open(&mut broker, "/v1/topics/a");
        assert_eq!(connected(&broker), 1);
        if closes {
            let closed = (client.engine).close_session(session, 7, "enough", &mut client.out);
            closed.expect("a session that is open");
            client.turn(&mut broker);
        } else {
            broker.reset(client.peer, sterna_net::StreamId(session.0), 0x10c);
        }
        assert_eq!(connected(&broker), 0);
        assert!(!broker.is_closed(client.peer));
    }
    // By the broker, when it stops.
    let (mut client, session) = open(&mut broker, "/v1/topics/a");
    broker.stop();
    client.read(&mut broker);
    assert_eq!(client.heard.closed_sessions, [session.0]);
    assert!(broker.finished());
}

#[test]
fn it_can_be_turned_off() {
    let mut config = Config::default();
    config.http.maximum_webtransport_sessions = 0;
    let mut broker = Broker::with(&config, 1);
    broker.wires[0].datagram_bytes = 1_200;
    let mut client = Client::connect_with(&mut broker, WEBTRANSPORT);
    let refused = (client.engine).connect_session("localhost", "/v1/topics", &[], &mut client.out);
    assert!(refused.is_err());
    assert!(!broker.is_closed(client.peer));
}

/// RFC 9297, section 2.1.1: the setting goes with the transport parameter, at both ends.
#[test]
fn the_setting_goes_with_the_transport_parameter() {
    for (datagram_bytes, are_taken) in [(0, false), (1_200, true)] {
        let mut broker = Broker::new();
        broker.wires[0].datagram_bytes = datagram_bytes;
        let mut client = Client::connect(&mut broker);
        client.turn(&mut broker);
        let settings = client.engine.peer_settings().expect("settings");
        assert_eq!(settings.datagrams, are_taken);
        let client = Client::connect_with(&mut broker, WEBTRANSPORT);
        assert_eq!(broker.is_closed(client.peer), !are_taken);
        let code = (!are_taken).then_some(sterna_h3::ErrorCode::H3_SETTINGS_ERROR.0);
        assert_eq!(broker.wires[0].close_codes.last().copied(), code);
    }
}
