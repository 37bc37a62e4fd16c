//! Both ends of a connection, and the wire between them.

use std::collections::{BTreeMap, VecDeque};

use sterna_h3::{
    Chunk, Connection, ErrorCode, Event, Features, Field, Fields, Limits, Output, StreamId,
    Violation, frame, qpack, varint,
};

/// What one end has written on a stream.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) fin: bool,
    pub(crate) reset: Option<ErrorCode>,
    pub(crate) stop: Option<ErrorCode>,
    /// How many writes there were.
    pub(crate) writes: usize,
    fin_read: bool,
}

/// What one end has written.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) lanes: BTreeMap<u64, Lane>,
    pub(crate) datagrams: VecDeque<Vec<u8>>,
}

impl Wire {
    pub(crate) fn lane(&mut self, stream: StreamId) -> &mut Lane {
        self.lanes.entry(stream.0).or_default()
    }

    /// Takes the bytes that were written on a stream.
    pub(crate) fn take(&mut self, stream: u64) -> Vec<u8> {
        self.lane(StreamId(stream)).bytes.drain(..).collect()
    }

    pub(crate) fn ended(&self, stream: u64) -> (Option<ErrorCode>, Option<ErrorCode>) {
        let lane = self.lanes.get(&stream);
        lane.map_or((None, None), |lane| (lane.reset, lane.stop))
    }

    /// Streams on which there is something to read.
    pub(crate) fn readable(&self) -> Vec<u64> {
        let is_readable = |lane: &Lane| {
            !lane.bytes.is_empty()
                || (lane.fin && !lane.fin_read)
                || lane.reset.is_some()
                || lane.stop.is_some()
        };
        self.lanes
            .iter()
            .filter(|(_, lane)| is_readable(lane))
            .map(|(id, _)| *id)
            .collect()
    }
}

impl Output for Wire {
    fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        let lane = self.lane(stream);
        assert!(!lane.fin && !bytes.is_empty(), "{stream:?}");
        lane.writes += 1;
        lane.bytes.extend(bytes);
    }

    fn finish(&mut self, stream: StreamId) {
        let lane = self.lane(stream);
        assert!(!lane.fin && lane.reset.is_none(), "{stream:?}");
        lane.fin = true;
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        let lane = self.lane(stream);
        assert!(lane.reset.is_none(), "{stream:?}");
        lane.reset = Some(code);
    }

    fn stop(&mut self, stream: StreamId, code: ErrorCode) {
        let lane = self.lane(stream);
        assert!(lane.stop.is_none(), "{stream:?}");
        lane.stop = Some(code);
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > 1200 {
            return false;
        }
        self.datagrams.push_back(bytes.to_vec());
        true
    }
}

/// Everything on.
pub(crate) const ALL: Features = Features {
    extended_connect: true,
    datagrams: true,
    webtransport: true,
};

/// Does what a test's own caller would do about an event.
pub(crate) type Caller<'a> = &'a mut dyn FnMut(&mut Connection, &mut Wire, &Event<'_>);

/// One end, with what it has written and what it was told.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) connection: Connection,
    pub(crate) out: Wire,
    pub(crate) log: Log,
    pub(crate) violations: Vec<Violation>,
    pub(crate) now_ms: u64,
}

/// What was told, as lines. Content in several pieces is one line.
#[derive(Debug, Default)]
pub(crate) struct Log {
    lines: Vec<String>,
    content_of: Option<StreamId>,
}

impl Log {
    fn add(&mut self, event: &Event<'_>) {
        if let Event::Content { stream, bytes } = event {
            assert!(!bytes.is_empty());
            if self.content_of == Some(*stream)
                && let Some(last) = self.lines.last_mut()
            {
                last.push_str(&bytes.escape_ascii().to_string());
                return;
            }
            self.content_of = Some(*stream);
            self.lines
                .push(format!("{stream:?} content {}", bytes.escape_ascii()));
            return;
        }
        if matches!(event, Event::Resumed { .. }) {
            return;
        }
        self.content_of = None;
        self.lines.push(describe(event));
    }

    /// What was told since the last time.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.content_of = None;
        std::mem::take(&mut self.lines)
    }
}

fn describe(event: &Event<'_>) -> String {
    match event {
        Event::Request {
            stream,
            head,
            early,
        } => {
            let early = if *early { " early" } else { "" };
            let path = head.path().unwrap_or("-");
            let mut text = format!("{stream:?} request {} {path}{early}", head.method());
            text.extend(head.iter().map(|field| format!(" [{field:?}]")));
            text
        }
        Event::Response { stream, head } => {
            let mut text = format!("{stream:?} response {}", head.status());
            text.extend(head.iter().map(|field| format!(" [{field:?}]")));
            text
        }
        Event::Trailers { stream, fields } => format!("{stream:?} trailers {fields:?}"),
        Event::End { stream } => format!("{stream:?} end"),
        Event::Reset { stream, code } => format!("{stream:?} reset {code:?}"),
        Event::Stopped { stream, code } => format!("{stream:?} stopped {code:?}"),
        Event::Settings(_) => "settings".to_owned(),
        Event::GoAway { id } => format!("goaway {}", id.0),
        Event::Datagram { stream, bytes } => {
            format!("{stream:?} datagram {}", bytes.escape_ascii())
        }
        Event::SessionStream { session, stream } => format!("{session:?} stream {stream:?}"),
        Event::SessionDraining { session } => format!("{session:?} draining"),
        Event::SessionClosed { session, close } => match close {
            Some(close) => format!("{session:?} closed {} {}", close.code, close.reason),
            None => format!("{session:?} broken"),
        },
        other => format!("{other:?}"),
    }
}

impl End {
    pub(crate) fn server(limits: &Limits, features: Features) -> Self {
        let mut out = Wire::default();
        let connection = Connection::server(limits, features, &mut out);
        Self::new(connection, out)
    }

    pub(crate) fn client(limits: &Limits, features: Features) -> Self {
        let mut out = Wire::default();
        let connection = Connection::client(limits, features, None, &mut out);
        Self::new(connection, out)
    }

    pub(crate) fn new(connection: Connection, out: Wire) -> Self {
        Self {
            connection,
            out,
            log: Log::default(),
            violations: Vec::new(),
            now_ms: 0,
        }
    }

    /// Hands in a chunk.
    pub(crate) fn receive(&mut self, mut chunk: Chunk<'_>, caller: Caller<'_>) {
        loop {
            match self
                .connection
                .receive(&mut chunk, self.now_ms, &mut self.out)
            {
                Ok(Some(event)) => {
                    self.log.add(&event);
                    caller(&mut self.connection, &mut self.out, &event);
                }
                Ok(None) => break,
                Err(violation) => {
                    self.violations.push(violation);
                    break;
                }
            }
        }
        assert!(chunk.bytes.is_empty(), "{chunk:?}");
        self.drain(caller);
    }

    /// Asks for what follows.
    pub(crate) fn drain(&mut self, caller: Caller<'_>) {
        while let Some(event) = self.connection.next_event() {
            self.log.add(&event);
            caller(&mut self.connection, &mut self.out, &event);
            if let Event::Resumed { stream, bytes } = &event {
                self.receive(Chunk::new(*stream, bytes), caller);
            }
        }
    }

    /// Hands in bytes without a caller.
    pub(crate) fn feed(&mut self, stream: u64, bytes: &[u8], fin: bool) {
        let chunk = Chunk {
            fin,
            ..Chunk::new(StreamId(stream), bytes)
        };
        self.receive(chunk, &mut |_, _, _| {});
    }

    pub(crate) fn reset(&mut self, stream: u64, code: ErrorCode, caller: Caller<'_>) {
        let told = self
            .connection
            .peer_reset(StreamId(stream), code, self.now_ms, &mut self.out);
        self.told(told, caller);
    }

    pub(crate) fn stopped(&mut self, stream: u64, code: ErrorCode, caller: Caller<'_>) {
        let told = self
            .connection
            .peer_stopped(StreamId(stream), code, self.now_ms, &mut self.out);
        self.told(told, caller);
    }

    pub(crate) fn datagram(&mut self, bytes: &[u8]) {
        let told = self
            .connection
            .datagram_received(bytes, self.now_ms, &mut self.out);
        self.told(told, &mut |_, _, _| {});
    }

    fn told(&mut self, told: Result<Option<Event<'_>>, Violation>, caller: Caller<'_>) {
        match told {
            Ok(Some(event)) => {
                self.log.add(&event);
                caller(&mut self.connection, &mut self.out, &event);
            }
            Ok(None) => {}
            Err(violation) => self.violations.push(violation),
        }
        self.drain(caller);
    }

    /// Reads up to `max_bytes` that the other end has written on a stream.
    pub(crate) fn read(
        &mut self,
        from: &mut Wire,
        stream: u64,
        max_bytes: usize,
        caller: Caller<'_>,
    ) {
        let lane = from.lane(StreamId(stream));
        if let Some(code) = lane.stop.take() {
            self.stopped(stream, code, caller);
        }
        let lane = from.lane(StreamId(stream));
        if let Some(code) = lane.reset.take() {
            lane.bytes.clear();
            lane.fin_read = true;
            self.reset(stream, code, caller);
            return;
        }
        let wanted = max_bytes.min(lane.bytes.len());
        let bytes: Vec<u8> = lane.bytes.drain(..wanted).collect();
        let fin = lane.fin && lane.bytes.is_empty() && !lane.fin_read;
        lane.fin_read |= fin;
        if !bytes.is_empty() || fin {
            let chunk = Chunk {
                fin,
                ..Chunk::new(StreamId(stream), &bytes)
            };
            self.receive(chunk, caller);
        }
    }

    /// Reads all that the other end has written.
    pub(crate) fn read_all(&mut self, from: &mut Wire, caller: Caller<'_>) {
        loop {
            for stream in from.readable() {
                self.read(from, stream, usize::MAX, caller);
            }
            while let Some(datagram) = from.datagrams.pop_front() {
                self.datagram(&datagram);
            }
            if from.readable().is_empty() {
                return;
            }
        }
    }
}

/// Hands everything over in both directions, until there is nothing more.
pub(crate) fn exchange(client: &mut End, server: &mut End) {
    loop {
        server.read_all(&mut client.out, &mut |_, _, _| {});
        client.read_all(&mut server.out, &mut |_, _, _| {});
        if client.out.readable().is_empty() && server.out.readable().is_empty() {
            break;
        }
    }
    assert_eq!(client.violations, []);
    assert_eq!(server.violations, []);
}

/// Both ends, which know each other's settings.
pub(crate) fn connected(limits: &Limits, features: Features) -> (End, End) {
    let mut client = End::client(limits, features);
    let mut server = End::server(limits, features);
    exchange(&mut client, &mut server);
    client.log.take();
    server.log.take();
    (client, server)
}

/// A field section.
pub(crate) fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let fields = fields
        .iter()
        .map(|(name, value)| Field::new(name, value.as_bytes()));
    qpack::encode(fields, &mut bytes);
    bytes
}

/// A frame.
pub(crate) fn frame(frame_type: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write_header(
        frame::FrameType(frame_type),
        payload.len() as u64,
        &mut bytes,
    );
    bytes.extend_from_slice(payload);
    bytes
}

/// HEADERS.
pub(crate) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(0x01, &section(fields))
}

/// HEADERS of a plain request.
pub(crate) fn get() -> Vec<u8> {
    headers(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ])
}

/// Integers one after the other.
pub(crate) fn integers(values: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        varint::write(*value, &mut bytes);
    }
    bytes
}

/// Fields from names and values.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Fields {
    fields
        .iter()
        .map(|(name, value)| Field::new(name, value.as_bytes()))
        .collect()
}
