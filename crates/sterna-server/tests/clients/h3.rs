//! A client of HTTP/3 of the engine's making, driven by hand against the broker of the fixture.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::collections::BTreeMap;

use bytes::Bytes;
use sterna_h3::{
    Chunk, Connection, Content, ErrorCode, Event, Features, Field, Limits, Output, RequestLine,
    StreamId,
};
use sterna_net::TransportKind;

use crate::fixture::{Broker, Peer};

/// What a client writes, in order.
#[derive(Default)]
pub struct Written(pub Vec<Order>);

/// One thing that a client does.
pub enum Order {
    Bytes(StreamId, Vec<u8>),
    Finish(StreamId),
    Reset(StreamId, u64),
    Stop(StreamId, u64),
    Datagram(Vec<u8>),
}

impl Output for Written {
    fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        self.0.push(Order::Bytes(stream, bytes.to_vec()));
    }
    fn finish(&mut self, stream: StreamId) {
        self.0.push(Order::Finish(stream));
    }
    fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        self.0.push(Order::Reset(stream, code.0));
    }
    fn stop(&mut self, stream: StreamId, code: ErrorCode) {
        self.0.push(Order::Stop(stream, code.0));
    }
    fn datagram(&mut self, bytes: &[u8]) -> bool {
        self.0.push(Order::Datagram(bytes.to_vec()));
        true
    }
}

/// What came in answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub content: Vec<u8>,
    pub is_complete: bool,
    /// The code with which the server gave it up.
    pub reset: Option<u64>,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let field = fields.find(|(known, _)| known == name);
        field.map(|(_, value)| value.as_str())
    }
}

/// What a client was told.
#[derive(Default)]
pub struct Heard {
    pub responses: BTreeMap<u64, Response>,
    /// What came on streams of sessions, and in datagrams.
    pub streams: BTreeMap<u64, Vec<u8>>,
    pub datagrams: Vec<Vec<u8>>,
    pub closed_sessions: Vec<u64>,
    pub goaway: Option<u64>,
}

/// See the module.
pub struct Client {
    pub peer: Peer,
    pub engine: Connection,
    pub out: Written,
    pub heard: Heard,
    /// Whether what it sends arrives as early data.
    pub early: bool,
    reset: usize,
    finished: usize,
    datagrams_read: usize,
    is_deaf: bool,
}

impl Client {
    pub fn connect(broker: &mut Broker) -> Self {
        Self::connect_with(broker, Features::default())
    }

    pub fn connect_with(broker: &mut Broker, features: Features) -> Self {
        Self::connect_on(broker, 0, features, Vec::new())
    }

    pub fn connect_on(
        broker: &mut Broker,
        shard: usize,
        features: Features,
        certificates: Vec<Box<[u8]>>,
    ) -> Self {
        let mut client = Self::new(broker, shard, features, certificates);
        client.turn(broker);
        client
    }

    /// A client that never hears what the server's settings are.
    pub fn connect_deaf(broker: &mut Broker) -> Self {
        let mut client = Self::new(broker, 0, Features::default(), Vec::new());
        client.is_deaf = true;
        client.turn(broker);
        client
    }

    fn new(
        broker: &mut Broker,
        shard: usize,
        features: Features,
        certificates: Vec<Box<[u8]>>,
    ) -> Self {
        let peer = broker.open_speaking(b"h3", shard, TransportKind::Quic, certificates);
        let mut out = Written::default();
        let engine = Connection::client(&Limits::default(), features, None, &mut out);
        Self {
            peer,
            engine,
            out,
            heard: Heard::default(),
            early: false,
            reset: broker.wires[shard].reset.len(),
            finished: broker.wires[shard].finished.len(),
            datagrams_read: broker.wires[shard].datagrams.len(),
            is_deaf: false,
        }
    }

    /// Asks, and reads what comes; the number of the request.
    pub fn request(
        &mut self,
        broker: &mut Broker,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        content: &[u8],
    ) -> u64 {
        let number = self.begin(method, path, fields, Content::Whole(content));
        self.turn(broker);
        number
    }

    /// Writes a request, and sends nothing.
    pub fn begin(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        content: Content<'_>,
    ) -> u64 {
        self.begin_line(
            &RequestLine::https(method, "localhost", path),
            fields,
            content,
        )
    }

    /// Writes a request to a name of the server, and sends nothing.
    pub fn begin_at(&mut self, authority: &str, method: &str, path: &str) -> u64 {
        let line = RequestLine::https(method, authority, path);
        self.begin_line(&line, &[], Content::Empty)
    }

    pub fn begin_line(
        &mut self,
        line: &RequestLine<'_>,
        fields: &[(&str, &str)],
        content: Content<'_>,
    ) -> u64 {
        let fields: Vec<Field<'_>> = fields
            .iter()
            .map(|(name, value)| Field::new(name, value.as_bytes()))
            .collect();
        let stream = self.engine.request(line, &fields, content, &mut self.out);
        stream.expect("a request").0
    }

    /// What came for a request.
    pub fn response(&self, number: u64) -> &Response {
        static NONE: Response = Response {
            status: 0,
            fields: Vec::new(),
            content: Vec::new(),
            is_complete: false,
            reset: None,
        };
        self.heard.responses.get(&number).unwrap_or(&NONE)
    }

    /// Sends what is written, and reads what has come, until nothing moves.
    pub fn turn(&mut self, broker: &mut Broker) {
        loop {
            let sent = self.flush(broker);
            let came = self.read(broker);
            if !sent && !came {
                return;
            }
        }
    }

    /// Sends what is written.
    pub fn flush(&mut self, broker: &mut Broker) -> bool {
        let orders = std::mem::take(&mut self.out.0);
        let any = !orders.is_empty();
        let number = |stream: StreamId| sterna_net::StreamId(stream.0);
        for order in orders {
            match order {
                Order::Bytes(stream, bytes) => broker.arrive(
                    self.peer,
                    sterna_net::Chunk {
                        stream: number(stream),
                        bytes: &bytes,
                        early: self.early,
                        confirmed: !self.early,
                    },
                ),
                Order::Finish(stream) => broker.finish(self.peer, number(stream)),
                Order::Reset(stream, code) => broker.reset(self.peer, number(stream), code),
                Order::Stop(stream, code) => {
                    broker.stop_reading_with(self.peer, number(stream), code);
                }
                Order::Datagram(bytes) => broker.datagram(self.peer, &bytes),
            }
        }
        any
    }

    /// Reads what has come.
    pub fn read(&mut self, broker: &mut Broker) -> bool {
        let wire = &mut broker.wires[self.peer.shard];
        let mut came: Vec<(u64, Vec<u8>, bool)> = Vec::new();
        let keys: Vec<_> = wire.sent.keys().copied().collect();
        for (id, stream) in keys {
            if id == self.peer.id
                && let Some(bytes) = wire.sent.remove(&(id, stream))
            {
                came.push((stream.0, bytes, false));
            }
        }
        came.sort();
        for (id, stream) in &wire.finished[self.finished..] {
            if *id == self.peer.id {
                came.push((stream.0, Vec::new(), true));
            }
        }
        self.finished = wire.finished.len();
        let resets: Vec<_> = wire.reset[self.reset..].to_vec();
        self.reset = wire.reset.len();
        let datagrams: Vec<Bytes> = (wire.datagrams[self.datagrams_read..].iter())
            .filter(|(id, _)| *id == self.peer.id)
            .map(|(_, bytes)| bytes.clone())
            .collect();
        self.datagrams_read = wire.datagrams.len();
        let any = !(came.is_empty() && resets.is_empty() && datagrams.is_empty());
        for (stream, bytes, fin) in came {
            if self.is_deaf && stream == 3 {
                continue;
            }
            let mut chunk = Chunk {
                fin,
                ..Chunk::new(StreamId(stream), &bytes)
            };
            loop {
                let event = self.engine.receive(&mut chunk, 0, &mut self.out);
                match event.expect("a server that keeps the rules") {
                    Some(event) => self.heard.note(event),
                    None => break,
                }
            }
        }
        for (id, stream, code) in resets {
            if id == self.peer.id {
                let stream = StreamId(stream.0);
                let told = (self.engine).peer_reset(stream, ErrorCode(code), 0, &mut self.out);
                told.expect("a server that keeps the rules");
                self.heard.responses.entry(stream.0).or_default().reset = Some(code);
            }
        }
        for bytes in datagrams {
            let told = self.engine.datagram_received(&bytes, 0, &mut self.out);
            if let Some(event) = told.expect("a server that keeps the rules") {
                self.heard.note(event);
            }
        }
        while let Some(event) = self.engine.next_event() {
            self.heard.note(event);
        }
        any
    }
}

impl Heard {
    fn note(&mut self, event: Event<'_>) {
        match event {
            Event::Response { stream, head } => {
                let response = self.responses.entry(stream.0).or_default();
                response.status = head.status();
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
                response.fields = (head.iter())
                    .map(|field| (text(field.name), text(field.value)))
                    .collect();
            }
            Event::Content { stream, bytes } => match self.responses.get_mut(&stream.0) {
                Some(response) => response.content.extend_from_slice(bytes),
                None => (self.streams.entry(stream.0).or_default()).extend_from_slice(bytes),
            },
            Event::End { stream } => {
                if let Some(response) = self.responses.get_mut(&stream.0) {
                    response.is_complete = true;
                }
            }
            Event::GoAway { id } => self.goaway = Some(id.0),
            Event::SessionClosed { session, .. } => self.closed_sessions.push(session.0),
            Event::Datagram { bytes, .. } => self.datagrams.push(bytes.into_owned()),
            _ => {}
        }
    }
}
