//! Bytes that nobody should send: what carries HTTP ends the connection, or refuses the request, and goes
//! on with everybody else.

use proptest::prelude::*;
use sterna_h3::{Content, Features};
use sterna_net::{StreamId, TransportKind};

use crate::fixture::{Broker, Peer};
use crate::h2_client;
use crate::h3_client::{Client, Order};
use crate::http::http1;

/// What happens to a connection between two pieces.
#[derive(Clone, Debug)]
enum Happening {
    Nothing,
    Time(u64),
    Full(bool),
    End,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => Just(Happening::Nothing),
        1 => (0..20_000u64).prop_map(Happening::Time),
        2 => any::<bool>().prop_map(Happening::Full),
        1 => Just(Happening::End),
    ]
}

/// How bytes are cut into pieces, what happens between them, and which of them are changed.
#[derive(Clone, Debug)]
struct Plan {
    pieces: Vec<(usize, Happening)>,
    changes: Vec<(usize, u8)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let pieces = prop::collection::vec((1..400usize, happening()), 1..12);
    let changes = prop::collection::vec((any::<usize>(), any::<u8>()), 0..4);
    (pieces, changes).prop_map(|(pieces, changes)| Plan { pieces, changes })
}

fn play(broker: &mut Broker, peer: Peer, stream: StreamId, bytes: &[u8], plan: &Plan) {
    let mut bytes = bytes.to_vec();
    for (at, change) in &plan.changes {
        let length = bytes.len();
        bytes[at % length] ^= change;
    }
    let mut rest = &bytes[..];
    for (length, happening) in plan.pieces.iter().cycle().take(400) {
        let piece = rest.len().min(*length);
        broker.send_on(peer, stream, &rest[..piece]);
        rest = &rest[piece..];
        if broker.is_closed(peer) {
            return;
        }
        match happening {
            Happening::Nothing => {}
            Happening::Time(time_ms) => broker.advance(*time_ms),
            Happening::Full(full) => {
                broker.wires[0].unsent_bytes = if *full { 1 << 20 } else { 0 };
                if !full {
                    broker.writable(peer);
                }
            }
            Happening::End => {
                broker.finish(peer, stream);
                return;
            }
        }
        if rest.is_empty() {
            return;
        }
    }
}

/// Others are served as before.
fn is_well(broker: &mut Broker) {
    broker.wires[0].unsent_bytes = 0;
    let mut client = Client::connect(broker);
    let number = client.request(broker, "HEAD", "/v1/topics/none", &[], b"");
    assert_eq!(client.response(number).status, 404);
    broker.stop();
    assert!(broker.finished());
}

/// Requests of HTTP/1.1: a subscription at last, which goes on.
const REQUESTS: &str = "POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc\
    POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n\
    3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n\
    GET /v1/topics/a?last HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n\
    GET /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n\
    POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn http1_survives(plan in plan()) {
        let mut broker = http1::broker();
        let peer = http1::connect(&mut broker);
        play(&mut broker, peer, StreamId::FIRST, REQUESTS.as_bytes(), &plan);
        is_well(&mut broker);
    }

    #[test]
    fn http2_survives(plan in plan()) {
        let mut broker = http1::broker();
        let bytes = h2_client::flight(&[
            ("POST", "/v1/topics/a", b"abc"),
            ("GET", "/v1/topics/a", b""),
            ("POST", "/v1/topics/a", &[b'x'; 3000]),
            ("HEAD", "/v1/topics/a", b""),
        ]);
        let peer = broker.open_speaking(b"h2", 0, TransportKind::Tls, Vec::new());
        play(&mut broker, peer, StreamId::FIRST, &bytes, &plan);
        is_well(&mut broker);
    }

    #[test]
    fn http3_survives(plan in plan(), which in 0..5usize) {
        let mut broker = Broker::new();
        broker.wires[0].datagram_bytes = 1_200;
        let features = Features { extended_connect: true, datagrams: true, webtransport: true };
        let mut client = Client::connect_with(&mut broker, features);
        client.begin("POST", "/v1/topics/a", &[], Content::Whole(&[b'x'; 600]));
        client.begin("GET", "/v1/topics/a", &[], Content::Empty);
        let session = client.engine.connect_session("localhost", "/v1/topics/b", &[], &mut client.out);
        let session = session.expect("settings that allow it");
        let stream = client.engine.open_session_stream(session, true, &mut client.out);
        let stream = stream.expect("a session");
        let sent = client.engine.send(stream, &[9, 1, 1, 1, b'b', 0, b'x', b'y', b'z', b'!'], &mut client.out);
        sent.expect("a stream");
        let orders = std::mem::take(&mut client.out.0);
        for (number, order) in orders.into_iter().enumerate() {
            if broker.is_closed(client.peer) {
                break;
            }
            match order {
                Order::Bytes(stream, bytes) if number % 5 == which => {
                    play(&mut broker, client.peer, StreamId(stream.0), &bytes, &plan);
                }
                Order::Bytes(stream, bytes) => {
                    broker.send_on(client.peer, StreamId(stream.0), &bytes);
                }
                Order::Finish(stream) => broker.finish(client.peer, StreamId(stream.0)),
                _ => {}
            }
        }
        is_well(&mut broker);
    }
}
