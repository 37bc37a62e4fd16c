//! Either end of a connection driven by a script, for a fuzz target and a property test.

use std::collections::BTreeMap;

use sterna_h3::{
    Chunk, Connection, Content, ErrorCode, Event, Features, Field, Limits, Output, RequestLine,
    Scope, StreamId, Violation, frame, qpack, varint,
};

/// Bytes as choices.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.below(32)).min(self.0.len());
        let (bytes, rest) = self.0.split_at(wanted);
        self.0 = rest;
        bytes
    }

    /// A stream of any kind, one of the first few.
    fn stream(&mut self) -> StreamId {
        StreamId(u64::from(self.below(24)))
    }

    fn code(&mut self) -> ErrorCode {
        let (code, _) = ErrorCode::ALL[usize::from(self.byte()) % ErrorCode::ALL.len()];
        code
    }
}

/// A transport that holds the engine to its rules.
#[derive(Debug, Default)]
struct Strict {
    lanes: BTreeMap<u64, Sides>,
}

#[derive(Debug, Default)]
struct Sides {
    is_finished: bool,
    is_reset: bool,
    is_stopped: bool,
}

impl Output for Strict {
    fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        let lane = self.lanes.entry(stream.0).or_default();
        assert!(!bytes.is_empty());
        assert!(!lane.is_finished && !lane.is_reset, "write to {stream:?}");
    }

    fn finish(&mut self, stream: StreamId) {
        let lane = self.lanes.entry(stream.0).or_default();
        assert!(!lane.is_finished && !lane.is_reset, "finish {stream:?}");
        lane.is_finished = true;
    }

    fn reset(&mut self, stream: StreamId, _: ErrorCode) {
        let lane = self.lanes.entry(stream.0).or_default();
        assert!(!lane.is_finished && !lane.is_reset, "reset {stream:?}");
        lane.is_reset = true;
    }

    fn stop(&mut self, stream: StreamId, _: ErrorCode) {
        let lane = self.lanes.entry(stream.0).or_default();
        assert!(!lane.is_stopped, "stop {stream:?}");
        lane.is_stopped = true;
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        bytes.len() < 30
    }
}

/// How far the events of a stream are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Head,
    Trailers,
    Over,
}

/// One end and what was told of it.
struct Driven {
    connection: Connection,
    out: Strict,
    limits: Limits,
    is_server: bool,
    told: BTreeMap<StreamId, Told>,
    sessions: Vec<StreamId>,
    violations: u32,
    now_ms: u64,
}

impl Driven {
    /// Checks that an event may come now, and answers some.
    fn heard(&mut self, event: &Event<'_>, choices: &mut Choices<'_>) {
        match event {
            Event::Request { stream, .. } => {
                assert!(self.is_server && stream.is_request());
                assert_eq!(self.told.insert(*stream, Told::Head), None);
                self.answer(*stream, choices);
            }
            Event::Response { stream, head } => {
                assert!(!self.is_server);
                assert_eq!(self.told.get(stream), None);
                if !head.is_interim() {
                    self.told.insert(*stream, Told::Head);
                }
            }
            Event::SessionStream { session, stream } => {
                assert!(session.is_request());
                assert_eq!(self.told.insert(*stream, Told::Head), None);
                self.sessions.push(*session);
            }
            Event::Content { stream, bytes } => {
                assert!(!bytes.is_empty());
                let told = self.told.get(stream);
                assert!(told == Some(&Told::Head) || self.is_own_session_stream(*stream));
            }
            Event::Trailers { stream, fields } => {
                assert_eq!(self.told.insert(*stream, Told::Trailers), Some(Told::Head));
                assert!(fields.iter().all(|field| !field.name.starts_with(b":")));
            }
            Event::End { stream } | Event::Reset { stream, .. } => {
                assert_ne!(self.told.insert(*stream, Told::Over), Some(Told::Over));
            }
            Event::Resumed { stream, bytes } => {
                self.receive(Chunk::new(*stream, bytes), choices);
            }
            Event::SessionClosed { session, .. } => {
                assert_ne!(self.told.insert(*session, Told::Over), None);
            }
            _ => {}
        }
    }

    fn is_own_session_stream(&self, stream: StreamId) -> bool {
        stream.is_client_initiated() != self.is_server && stream.is_bidirectional()
    }

    fn answer(&mut self, stream: StreamId, choices: &mut Choices<'_>) {
        let (connection, out) = (&mut self.connection, &mut self.out);
        let _ = match choices.below(6) {
            0 => connection.respond(stream, 204, &[], Content::Empty, out),
            1 => connection.respond(stream, 200, &[], Content::Streamed, out),
            2 | 3 => connection.accept_session(stream, &[], out),
            4 => connection.hold(stream),
            _ => Ok(()),
        };
    }

    fn judge<T>(&mut self, result: Result<T, Violation>) -> Option<T> {
        let violation = match result {
            Ok(value) => return Some(value),
            Err(violation) => violation,
        };
        self.violations += 1;
        assert_ne!(violation.code, ErrorCode::H3_INTERNAL_ERROR);
        match violation.scope {
            Scope::Connection => assert!(self.connection.is_closed()),
            Scope::Stream(stream) => {
                assert!(!self.connection.is_closed());
                self.told.insert(stream, Told::Over);
            }
        }
        None
    }

    fn receive(&mut self, mut chunk: Chunk<'_>, choices: &mut Choices<'_>) {
        loop {
            let left = chunk.bytes.len();
            let result = self
                .connection
                .receive(&mut chunk, self.now_ms, &mut self.out);
            assert!(chunk.bytes.len() <= left);
            match self.judge(result) {
                Some(Some(event)) => self.heard(&event, choices),
                Some(None) | None => break,
            }
        }
        assert!(chunk.bytes.is_empty());
        self.drain(choices);
    }

    fn drain(&mut self, choices: &mut Choices<'_>) {
        while let Some(event) = self.connection.next_event() {
            self.heard(&event, choices);
        }
    }

    /// A command, which may or may not be in order.
    fn command(&mut self, choices: &mut Choices<'_>) {
        let stream = choices.stream();
        let (connection, out) = (&mut self.connection, &mut self.out);
        let field = [Field::new("a", b"b")];
        let _ = match choices.below(16) {
            0 => connection.respond(stream, 200, &field, Content::Whole(b"x"), out),
            1 => connection.respond(stream, 403, &field, Content::Streamed, out),
            2 => connection.inform(stream, 103, &field, out),
            3 => connection.send(stream, choices.bytes(), out),
            4 => connection.send_trailers(stream, &field, out),
            5 => connection.finish(stream, out),
            6 => {
                let result = connection.cancel(stream, choices.code(), out);
                if result.is_ok() {
                    self.told.insert(stream, Told::Over);
                }
                result
            }
            7 => connection.stop_receiving(stream, choices.code(), out),
            8 => connection.hold(stream),
            9 => connection.resume(stream),
            10 => connection.go_away(choices.flag(), out),
            11 => connection.accept_session(stream, &field, out),
            12 => {
                let result = connection.open_session_stream(stream, choices.flag(), out);
                result.map(|_| ())
            }
            13 => connection
                .send_datagram(stream, choices.bytes(), out)
                .map(|_| ()),
            14 => connection.drain_session(stream, out),
            _ => connection.close_session(stream, 7, "over", out),
        };
    }

    /// A client asks.
    fn ask(&mut self, choices: &mut Choices<'_>) {
        let (connection, out) = (&mut self.connection, &mut self.out);
        let line = RequestLine::https(if choices.flag() { "GET" } else { "HEAD" }, "a", "/");
        let _ = match choices.below(3) {
            0 => connection.request(&line, &[], Content::Empty, out),
            1 => connection.request(&line, &[], Content::Streamed, out),
            _ => connection.connect_session("a", "/", &[], out),
        };
    }

    fn check(&self) {
        let limits = &self.limits;
        if self.is_server {
            assert!(self.connection.open_requests() <= limits.max_requests);
        }
        for stream in (0..24).map(StreamId) {
            let held = self.connection.held_bytes(stream);
            assert!(held <= limits.max_held_bytes as usize);
        }
        if self.connection.is_closed() {
            assert!(self.violations > 0);
        }
    }
}

/// Bytes that a peer may send: those that make sense, and others.
fn bytes(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let frame = |frame_type, payload: &[u8], out: &mut Vec<u8>| {
        frame::write_header(frame::FrameType(frame_type), payload.len() as u64, out);
        out.extend_from_slice(payload);
    };
    let section = |fields: &[(&str, &str)]| {
        let mut payload = Vec::new();
        let fields = fields
            .iter()
            .map(|(name, value)| Field::new(name, value.as_bytes()));
        qpack::encode(fields, &mut payload);
        payload
    };
    let rest = [
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
        (":protocol", "webtransport"),
    ];
    match choices.below(14) {
        0 => frame(
            1,
            &section(&[&[(":method", "GET")], &rest[..3]].concat()),
            &mut out,
        ),
        1 => frame(
            1,
            &section(&[&[(":method", "CONNECT")], &rest[..]].concat()),
            &mut out,
        ),
        2 => frame(1, &section(&[(":status", "200")]), &mut out),
        3 => frame(1, &section(&[(":status", "103")]), &mut out),
        4 => frame(1, &section(&[("t", "1")]), &mut out),
        5 => frame(0, choices.bytes(), &mut out),
        6 => out.extend([0, 4, 2, 0x33, 1]),
        7 => {
            let kind = if choices.flag() { 0x41 } else { 0x54 };
            varint::write(kind, &mut out);
            varint::write(u64::from(choices.below(6)) * 4, &mut out);
        }
        8 => {
            let types = [0, 0x2843, 0x78ae, 0x21];
            let mut capsule = Vec::new();
            frame(
                types[usize::from(choices.below(4))],
                choices.bytes(),
                &mut capsule,
            );
            frame(0, &capsule, &mut out);
        }
        9 => frame(7, &[choices.byte() & 0x3f], &mut out),
        10 => frame(u64::from(choices.byte()), choices.bytes(), &mut out),
        11 => frame(1, choices.bytes(), &mut out),
        12 => out.push(choices.below(4)),
        _ => out.extend_from_slice(choices.bytes()),
    }
    out
}

/// Drives one end by a script, and checks what it does.
///
/// # Panics
///
/// Where it breaks a rule.
pub(crate) fn connection(script: &[u8]) {
    let mut choices = Choices(script);
    let features = choices.byte();
    let features = Features {
        extended_connect: features & 1 != 0,
        datagrams: features & 2 != 0,
        webtransport: features & 4 == 0,
    };
    let limits = Limits {
        max_field_section_bytes: 400,
        max_fields: 8,
        max_requests: 3,
        max_interim_responses: 2,
        max_skipped_streams: 4,
        max_held_bytes: 64,
        max_idle_bytes: 256,
        max_resets: 8,
        max_sessions: 2,
        max_session_streams: 2,
        max_waiting_streams: 2,
        max_capsule_bytes: 16,
        ..Limits::default()
    };
    let is_server = choices.flag();
    let mut out = Strict::default();
    let connection = if is_server {
        Connection::server(&limits, features, &mut out)
    } else {
        Connection::client(&limits, features, None, &mut out)
    };
    let mut driven = Driven {
        connection,
        out,
        limits,
        is_server,
        told: BTreeMap::new(),
        sessions: Vec::new(),
        violations: 0,
        now_ms: 0,
    };
    // The ends of the peer's sides, after which nothing may come.
    let mut ended = [false; 24];
    while !choices.0.is_empty() && !driven.connection.is_closed() {
        driven.now_ms += u64::from(choices.below(4)) * 100;
        let action = choices.below(16);
        let stream = choices.stream();
        let index = stream.0 as usize;
        let is_peers =
            stream.is_bidirectional() || stream.is_client_initiated() == driven.is_server;
        match action {
            0..8 if is_peers && !ended[index] => {
                let bytes = bytes(&mut choices);
                let cut = usize::from(choices.byte()) % (bytes.len() + 1);
                let fin = choices.below(4) == 1;
                ended[index] = fin;
                let early = choices.flag();
                let chunk = Chunk {
                    early,
                    ..Chunk::new(stream, &bytes[..cut])
                };
                driven.receive(chunk, &mut choices);
                let chunk = Chunk {
                    fin,
                    ..Chunk::new(stream, &bytes[cut..])
                };
                driven.receive(chunk, &mut choices);
            }
            8 if is_peers && !ended[index] => {
                ended[index] = true;
                let code = choices.code();
                let result =
                    driven
                        .connection
                        .peer_reset(stream, code, driven.now_ms, &mut driven.out);
                if let Some(Some(event)) = driven.judge(result) {
                    driven.heard(&event, &mut choices);
                }
            }
            9 => {
                let code = choices.code();
                let result =
                    driven
                        .connection
                        .peer_stopped(stream, code, driven.now_ms, &mut driven.out);
                if let Some(Some(event)) = driven.judge(result) {
                    driven.heard(&event, &mut choices);
                }
            }
            10 => {
                let datagram = choices.bytes();
                let result =
                    driven
                        .connection
                        .datagram_received(datagram, driven.now_ms, &mut driven.out);
                if let Some(Some(event)) = driven.judge(result) {
                    driven.heard(&event, &mut choices);
                }
            }
            11 if !driven.is_server => driven.ask(&mut choices),
            _ => driven.command(&mut choices),
        }
        driven.drain(&mut choices);
        driven.check();
    }
    driven.connection.release_memory();
}
