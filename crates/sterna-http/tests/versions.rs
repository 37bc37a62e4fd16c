//! One application, asked in every version of HTTP over the simulated network, without any broker.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use sterna_http::{
    Application, Carrier, Content, Date, ExchangeId, Fault, Head, Limits, Refusal, Request,
    Responses, Settings,
};
use sterna_net::sim::{self, Client, ClientOptions, Simulation};
use sterna_net::{
    Chunk, CloseReason, ConnectionId, Handler, Network, StreamEnd, StreamId, TransportKind,
};

const CONNECT_TIMEOUT_MS: u64 = 5_000;

fn settings() -> Settings {
    let limits = Limits {
        max_fields_bytes: 1_000,
        max_target_bytes: 100,
        max_content_bytes: 50,
        max_assembling_bytes: 200,
        max_requests: 10,
        max_resets: 10,
        max_control_frames: 100,
        max_sessions: 1,
        max_session_streams: 1,
        connect_timeout_ms: CONNECT_TIMEOUT_MS,
        fields_timeout_ms: 10_000,
        content_timeout_ms: 10_000,
        idle_timeout_ms: 60_000,
        stalled_timeout_ms: 60_000,
        high_watermark_bytes: 256 << 10,
    };
    Settings {
        limits: Arc::new(limits),
        takes_datagrams: true,
        http3_port: Some(8443),
    }
}

/// Sends back what it is asked for, and notes what it is told.
#[derive(Default)]
struct Mirror {
    told: Vec<String>,
}

impl Application for Mirror {
    fn request(&mut self, out: &mut dyn Responses, request: Request) {
        let head = &request.head;
        let authority = head.authority().unwrap_or_default();
        let content = String::from_utf8_lossy(&request.content);
        let said = format!("{} {authority}{} {content}", head.method(), head.target());
        self.told.push(said.clone());
        let fields = [("content-type", &b"text/plain"[..])];
        out.respond(request.id, 200, &fields, Content::Whole(said.as_bytes()));
    }

    fn refuse(&mut self, out: &mut dyn Responses, id: ExchangeId, _: &Head, refusal: Refusal) {
        self.told.push(format!("{refusal:?}"));
        out.respond(id, 400, &[], Content::Whole(b"no"));
    }

    fn gone(&mut self, _: &mut dyn Responses, _: ExchangeId) {
        self.told.push("gone".to_owned());
    }

    fn writable(&mut self, _: &mut dyn Responses) {}

    fn stop(&mut self, _: &mut dyn Responses) {
        self.told.push("stop".to_owned());
    }

    fn turned_away(&mut self, _: Fault, code: &str, _: &str) {
        self.told.push(format!("turned away: {code}"));
    }
}

#[derive(Default)]
struct Server {
    date: Date,
    mirror: Mirror,
    carriers: BTreeMap<ConnectionId, Carrier>,
}

impl Server {
    fn step(
        &mut self,
        net: &mut dyn Network,
        id: ConnectionId,
        work: impl FnOnce(&mut Carrier, &mut Mirror),
    ) {
        let Some(carrier) = self.carriers.get_mut(&id) else {
            return;
        };
        carrier.begin(net, &mut self.date);
        work(carrier, &mut self.mirror);
        carrier.settle(&mut self.mirror);
        carrier.flush(net, false);
        if let Some(code) = carrier.close_code() {
            net.close(id, code);
        }
    }
}

impl Handler for Server {
    type Mail = ();

    fn opened(&mut self, net: &mut dyn Network, id: ConnectionId) {
        let carrier = Carrier::new(net, id, settings()).unwrap();
        self.carriers.insert(id, carrier);
        self.step(net, id, |_, _| {});
    }

    fn received(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Chunk<'_>) {
        self.step(net, id, |carrier, app| carrier.received(app, &chunk));
    }

    fn confirmed(&mut self, net: &mut dyn Network, id: ConnectionId) {
        self.step(net, id, |carrier, _| carrier.confirmed());
    }

    fn datagram(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Chunk<'_>) {
        self.step(net, id, |carrier, app| carrier.datagram(app, chunk.bytes));
    }

    fn stream_ended(
        &mut self,
        net: &mut dyn Network,
        id: ConnectionId,
        on: StreamId,
        end: StreamEnd,
    ) {
        self.step(net, id, |carrier, app| carrier.stream_ended(app, on, end));
    }

    fn writable(&mut self, net: &mut dyn Network, id: ConnectionId) {
        self.step(net, id, |carrier, app| carrier.writable(app));
    }

    fn closed(&mut self, _: &mut dyn Network, id: ConnectionId, _: &CloseReason) {
        self.carriers.remove(&id);
    }

    fn mail(&mut self, _: &mut dyn Network, _: &mut Vec<()>) {}

    fn timeout(&mut self, net: &mut dyn Network) {
        let ids: Vec<ConnectionId> = self.carriers.keys().copied().collect();
        for id in ids {
            self.step(net, id, |carrier, app| carrier.timeout(app));
        }
    }

    fn end_of_turn(&mut self, _: &mut dyn Network) {}

    fn deadline_ms(&self) -> Option<u64> {
        self.carriers
            .values()
            .filter_map(Carrier::deadline_ms)
            .min()
    }

    fn finished(&self) -> bool {
        false
    }
}

/// What a client writes with the engine of HTTP/3.
#[derive(Default)]
struct Written(Vec<(StreamId, Vec<u8>, bool)>);

impl sterna_h3::Output for Written {
    fn write(&mut self, stream: sterna_h3::StreamId, bytes: &[u8]) {
        self.0.push((StreamId(stream.0), bytes.to_vec(), false));
    }
    fn finish(&mut self, stream: sterna_h3::StreamId) {
        self.0.push((StreamId(stream.0), Vec::new(), true));
    }
    fn reset(&mut self, _: sterna_h3::StreamId, _: sterna_h3::ErrorCode) {}
    fn stop(&mut self, _: sterna_h3::StreamId, _: sterna_h3::ErrorCode) {}
    fn datagram(&mut self, _: &[u8]) -> bool {
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    Http1,
    Http2,
    Http3,
}

const VERSIONS: [Version; 3] = [Version::Http1, Version::Http2, Version::Http3];

struct World {
    sim: Simulation<Server>,
    version: Version,
    client: Client,
}

impl World {
    fn new(version: Version) -> Self {
        let mut sim = Simulation::new(7, sim::Settings::default(), 1, |_, _| Server::default());
        let (transport, protocol) = match version {
            Version::Http1 => (TransportKind::Tls, &b"http/1.1"[..]),
            // The first bytes tell.
            Version::Http2 => (TransportKind::Tcp, &b""[..]),
            Version::Http3 => (TransportKind::Quic, &b"h3"[..]),
        };
        let client = sim.connect(ClientOptions {
            transport,
            protocol: protocol.to_vec(),
            ..ClientOptions::default()
        });
        Self {
            sim,
            version,
            client,
        }
    }

    fn told(&self) -> &[String] {
        &self.sim.handler(0).mirror.told
    }

    /// Sends one POST on a fresh connection; status and content of the response.
    fn post(&mut self, target: &str, content: &[u8]) -> (u16, Vec<u8>) {
        match self.version {
            Version::Http1 => self.post_http1(target, content),
            Version::Http2 => self.post_http2(target, content),
            Version::Http3 => self.post_http3(target, content),
        }
    }

    fn exchange(&mut self, request: &[u8]) -> Vec<u8> {
        self.sim.send(self.client, StreamId::FIRST, request);
        self.sim.run_for(1_000);
        self.sim.take(self.client, StreamId::FIRST)
    }

    fn post_http1(&mut self, target: &str, content: &[u8]) -> (u16, Vec<u8>) {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: example.org\r\nContent-Length: {}\r\n\r\n",
            content.len()
        );
        let got = self.exchange(&[head.as_bytes(), content].concat());
        let text = String::from_utf8(got).unwrap();
        let (head, content) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\ndate: "), "{head}");
        assert!(
            head.contains("\r\nalt-svc: h3=\":8443\"; ma=86400"),
            "{head}"
        );
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, content.into())
    }

    fn post_http2(&mut self, target: &str, content: &[u8]) -> (u16, Vec<u8>) {
        let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            request.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
            request.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
            request.extend_from_slice(payload);
        };
        frame(4, 0, 0, &[]);
        // RFC 7541: POST and http by index, authority and path as literals with an indexed name.
        let mut head = vec![0x83, 0x86, 0x01, 11];
        head.extend_from_slice(b"example.org");
        head.push(0x04);
        match target.len() {
            short @ ..127 => head.push(short as u8),
            // Section 5.1.
            long => head.extend_from_slice(&[127, (long - 127) as u8]),
        }
        head.extend_from_slice(target.as_bytes());
        frame(1, 4, 1, &head);
        frame(0, 1, 1, content);
        let got = self.exchange(&request);
        let (mut status, mut said, mut rest) = (0, Vec::new(), &got[..]);
        while let [a, b, c, kind, _, 0, 0, 0, stream, after @ ..] = rest {
            let (payload, after) = after.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
            match (kind, stream) {
                // Appendix A of RFC 7541.
                (1, 1) => status = if payload[0] == 0x88 { 200 } else { 400 },
                (0, 1) => said.extend_from_slice(payload),
                _ => {}
            }
            rest = after;
        }
        (status, said)
    }

    fn post_http3(&mut self, target: &str, content: &[u8]) -> (u16, Vec<u8>) {
        let (limits, features) = (sterna_h3::Limits::default(), sterna_h3::Features::default());
        let mut written = Written::default();
        let mut engine = sterna_h3::Connection::client(&limits, features, None, &mut written);
        let line = sterna_h3::RequestLine::https("POST", "example.org", target);
        let content = sterna_h3::Content::Whole(content);
        let request = engine.request(&line, &[], content, &mut written).unwrap();
        let mut opened = Vec::new();
        for (stream, bytes, is_end) in &written.0 {
            if !opened.contains(stream) {
                opened.push(*stream);
                assert_eq!(
                    self.sim.open(self.client, stream.is_bidirectional()),
                    *stream
                );
            }
            self.sim.send(self.client, *stream, bytes);
            if *is_end {
                self.sim.finish(self.client, *stream);
            }
        }
        self.sim.run_for(1_000);
        let got = self.sim.take(self.client, StreamId(request.0));
        let mut chunk = sterna_h3::Chunk::new(request, &got);
        let (mut status, mut said) = (0, Vec::new());
        while let Some(event) = engine
            .receive(&mut chunk, 0, &mut Written::default())
            .unwrap()
        {
            match event {
                sterna_h3::Event::Response { head, .. } => status = head.status(),
                sterna_h3::Event::Content { bytes, .. } => said.extend_from_slice(bytes),
                _ => {}
            }
        }
        (status, said)
    }
}

#[test]
fn every_version_carries_the_same_request_and_response() {
    for version in VERSIONS {
        let mut world = World::new(version);
        let (status, content) = world.post("/a?b=c", b"21.5");
        assert_eq!(
            (status, &*String::from_utf8(content).unwrap()),
            (200, "POST example.org/a?b=c 21.5"),
            "{version:?}"
        );
        assert_eq!(world.told(), ["POST example.org/a?b=c 21.5"], "{version:?}");
    }
}

#[test]
fn a_request_above_a_limit_is_refused_by_its_carrier_and_answered_by_the_application() {
    let long = format!("/{}", "x".repeat(150));
    for version in VERSIONS {
        for (target, content, refusal) in [
            ("/", &[b'x'; 51][..], "ContentTooLarge"),
            (&*long, b"x", "TargetTooLong"),
        ] {
            let mut world = World::new(version);
            let (status, said) = world.post(target, content);
            assert_eq!(
                (status, &said[..]),
                (400, &b"no"[..]),
                "{version:?} {refusal}"
            );
            assert_eq!(world.told(), [refusal], "{version:?}");
        }
    }
}

#[test]
fn a_connection_without_a_request_is_closed_when_its_time_is_over() {
    for version in VERSIONS {
        let mut world = World::new(version);
        world.sim.run_for(CONNECT_TIMEOUT_MS - 100);
        assert_eq!(world.sim.closed(world.client), None, "{version:?}");
        world.sim.run_for(1_000);
        assert!(world.sim.closed(world.client).is_some(), "{version:?}");
        assert!(world.told().is_empty(), "{version:?}");
    }
}

/// What means two things is not guessed at: the application hears that the request is malformed.
#[test]
fn a_request_that_means_two_things_is_malformed() {
    for request in [
        "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/b#c HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nContent-Type: a/c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nLast-Event-ID: a:1\r\nLast-Event-ID: a:2\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let mut world = World::new(Version::Http1);
        let answer = String::from_utf8(world.exchange(request.as_bytes())).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request}: {answer}");
        assert!(
            world.told()[0].starts_with("Malformed("),
            "{request}: {:?}",
            world.told()
        );
    }
}

/// Also where requests follow each other, and where their heads come in pieces.
#[test]
fn only_the_request_with_a_fragment_is_malformed() {
    let good = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 21\r\n\r\nGET /b#c HTTP/1.1\r\n\r\n";
    let chunks =
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n#\r\n0\r\n\r\n";
    let bad = "GET /b#c HTTP/1.1\r\nHost: a\r\n\r\n";
    for size in [1, 7, 1000] {
        let mut world = World::new(Version::Http1);
        for request in [&*[good, bad].concat(), chunks, bad, good] {
            for part in request.as_bytes().chunks(size) {
                world.sim.send(world.client, StreamId::FIRST, part);
                world.sim.run_for(20);
            }
            world.sim.run_for(200);
        }
        let told: Vec<bool> = (world.told().iter())
            .map(|said| said.starts_with("Malformed("))
            .collect();
        assert_eq!(
            told,
            [false, true, false, true, false],
            "{size}: {:?}",
            world.told()
        );
    }
}

/// PING and SETTINGS are answered by the library, which counts them not.
#[test]
fn a_flood_of_frames_that_say_nothing_ends_the_connection() {
    let frame = |kind: u8, payload: &[u8]| {
        let mut frame = vec![0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 0];
        frame.extend_from_slice(payload);
        frame
    };
    for (kind, payload) in [
        (6, &[0; 8][..]),
        (4, &[]),
        (2, &[0, 0, 0, 0, 1]),
        (0x55, &[]),
    ] {
        let stream = u8::from(kind == 2);
        let mut one = frame(kind, payload);
        one[8] = stream;
        let mut world = World::new(Version::Http2);
        let start = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, &[])].concat();
        world.exchange(&start);
        world.exchange(&one.repeat(90));
        assert_eq!(world.sim.closed(world.client), None, "{kind}");
        let answer = world.exchange(&one.repeat(40));
        assert!(world.sim.closed(world.client).is_some(), "{kind}");
        assert_eq!(world.told(), ["turned away: ENHANCE_YOUR_CALM"], "{kind}");
        let goodbye = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];
        assert!(answer.ends_with(&goodbye), "{kind}: {answer:?}");
        // In time they come back: ten in a second.
        let mut world = World::new(Version::Http2);
        world.exchange(&start);
        for _ in 0..3 {
            world.exchange(&one.repeat(40));
        }
        assert_eq!(world.sim.closed(world.client), None, "{kind}");
    }
}

/// A content that comes behind its head is no beginning of the next one: its client may be silent for a while.
#[test]
fn the_end_of_a_content_begins_no_head() {
    let mut world = World::new(Version::Http1);
    world.exchange(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx");
    let answer = world.exchange(b"y");
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    world.sim.run_for(30_000);
    assert_eq!(world.sim.closed(world.client), None);
    let answer = world.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{answer:?}");
}
