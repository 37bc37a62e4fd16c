//! One end of an HTTP/3 connection.
//!
//! `receive.rs` separates input by stream. `control.rs` and `exchange.rs` know the frames of the
//! control stream and of requests, `session.rs` WebTransport. `command.rs` and `session_command.rs`
//! send.

mod command;
mod control;
mod event;
mod exchange;
mod output;
mod receive;
mod section;
mod session;
mod session_command;
mod stream;

use std::collections::VecDeque;

use bytes::Bytes;
use rustc_hash::FxHashMap;

pub use event::Event;
pub use output::{Chunk, Output};

use crate::limits::Budget;
use crate::stream_id::Seen;
use crate::{CommandError, ErrorCode, Fields, Limits, Settings, StreamId, Violation};
use crate::{settings, varint};
use section::Scratch;
use stream::{Exchange, Hold, Kind, Stream};

/// The detail of an end because of [`Limits::max_resets`].
pub const TOO_MANY_RESETS: &str = "too many requests that were given up";

/// Capacity for streams that an idle connection gives up, and the capacity that it keeps.
const MANY_STREAMS: usize = 28;
const FEW_STREAMS: usize = 7;

/// Features of an end beside plain requests and responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Server: extended CONNECT is taken (RFC 9220). WebTransport brings it along.
    pub extended_connect: bool,
    /// HTTP datagrams are taken (RFC 9297); only where the transport announces
    /// max_datagram_frame_size, since the peer ends the connection otherwise. WebTransport brings
    /// them along.
    pub datagrams: bool,
    /// WebTransport sessions are taken, where [`Limits::max_sessions`] is not 0.
    pub webtransport: bool,
}

impl Features {
    pub(crate) fn extended_connect(self) -> bool {
        self.extended_connect || self.webtransport
    }

    pub(crate) fn datagrams(self) -> bool {
        self.datagrams || self.webtransport
    }
}

/// A violation of the peer, before its further effects are known.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The connection ends.
    Connection(ErrorCode, &'static str),
    /// The stream ends.
    Stream(ErrorCode, &'static str),
    /// The stream ends, a request among them with a response.
    TooLarge,
}

/// An event that waits to be reported.
#[derive(Debug)]
enum Queued {
    Event(Event<'static>),
    /// A stream flows again.
    Resume(StreamId),
}

/// The state of one connection, of either end.
#[derive(Debug)]
pub struct Connection {
    is_server: bool,
    is_closed: bool,
    limits: Limits,
    features: Features,
    /// Streams that are open.
    streams: FxHashMap<StreamId, Stream>,
    /// Which bidirectional streams the peer has opened.
    seen_bidirectional: Seen,
    /// Which unidirectional ones.
    seen_unidirectional: Seen,
    /// The next streams of this end.
    next_bidirectional: u64,
    next_unidirectional: u64,
    /// This end's control stream.
    control: StreamId,
    peer: Peer,
    /// Identifier in this end's last GOAWAY.
    goaway_sent: Option<u64>,
    /// Requests that are open.
    requests: u32,
    /// WebTransport sessions that are open or asked for.
    sessions: u32,
    /// Streams that wait for a session.
    waiting: u32,
    resets: Budget,
    idle_bytes: Budget,
    now_ms: u64,
    queue: VecDeque<Queued>,
    scratch: Scratch,
}

/// Known state of the other end.
#[derive(Debug, Default)]
struct Peer {
    settings: Option<Settings>,
    /// Its settings when a ticket was given.
    remembered: Option<Settings>,
    has_control: bool,
    has_encoder: bool,
    has_decoder: bool,
    /// Identifier in its last GOAWAY.
    goaway: Option<u64>,
    /// Number of pushes that it would take.
    max_push_id: Option<u64>,
}

impl Connection {
    /// A server's end. Opens the control stream and sends SETTINGS. Call it before the first byte
    /// of the client is read.
    pub fn server(limits: &Limits, features: Features, out: &mut dyn Output) -> Self {
        Self::new(true, limits, features, None, out)
    }

    /// A client's end. Opens the control stream and sends SETTINGS, so that they leave together with
    /// the first request.
    ///
    /// `remembered` are the settings of the connection whose ticket is used for early data (RFC
    /// 9114, section 7.2.4.2). They are valid until the server's own arrive. A server that refuses
    /// early data has seen none of it: the client starts again with another `Connection`.
    pub fn client(
        limits: &Limits,
        features: Features,
        remembered: Option<Settings>,
        out: &mut dyn Output,
    ) -> Self {
        Self::new(false, limits, features, remembered, out)
    }

    fn new(
        is_server: bool,
        limits: &Limits,
        mut features: Features,
        remembered: Option<Settings>,
        out: &mut dyn Output,
    ) -> Self {
        features.webtransport &= limits.max_sessions > 0;
        let own = u64::from(is_server);
        let peer = u64::from(!is_server);
        let mut connection = Self {
            is_server,
            is_closed: false,
            limits: *limits,
            features,
            streams: FxHashMap::default(),
            seen_bidirectional: Seen::new(peer),
            seen_unidirectional: Seen::new(2 | peer),
            next_bidirectional: own,
            next_unidirectional: 2 | own,
            control: StreamId(2 | own),
            peer: Peer {
                remembered,
                ..Peer::default()
            },
            goaway_sent: None,
            requests: 0,
            sessions: 0,
            waiting: 0,
            resets: Budget::default(),
            idle_bytes: Budget::default(),
            now_ms: 0,
            queue: VecDeque::new(),
            scratch: Scratch::default(),
        };
        let control = connection.open_unidirectional();
        let mut bytes = Vec::with_capacity(48);
        varint::write(control::CONTROL_STREAM, &mut bytes);
        settings::write(limits, features, is_server, &mut bytes);
        out.write(control, &bytes);
        connection
    }

    fn open_unidirectional(&mut self) -> StreamId {
        let id = StreamId(self.next_unidirectional);
        self.next_unidirectional += 4;
        id
    }

    fn open_bidirectional(&mut self) -> StreamId {
        let id = StreamId(self.next_bidirectional);
        self.next_bidirectional += 4;
        id
    }

    /// Whether a violation has ended the connection. Input is then ignored, and commands fail.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The peer's settings, once they have arrived.
    #[must_use]
    pub fn peer_settings(&self) -> Option<&Settings> {
        self.peer.settings.as_ref()
    }

    /// The settings to go by: the peer's, those that are remembered, or none.
    fn settings(&self) -> Settings {
        let known = self.peer.settings.or(self.peer.remembered);
        known.unwrap_or(Settings::INITIAL)
    }

    /// Requests that are open: not answered in full, or not in full received.
    #[must_use]
    pub fn open_requests(&self) -> u32 {
        self.requests
    }

    /// Whether a stream of the peer has begun, and its purpose is not known or not reported yet.
    /// Examples are a request without its whole head, and a stream of a session that is not
    /// accepted yet.
    #[must_use]
    pub fn is_untold(&self, stream: StreamId) -> bool {
        match self.streams.get(&stream).map(|stream| &stream.kind) {
            Some(Kind::Undecided | Kind::SessionPrefix | Kind::Waiting(_)) => true,
            Some(Kind::Exchange(exchange)) => self.is_server && !exchange.is_told(),
            _ => false,
        }
    }

    /// The next event that followed from something else than the bytes at hand. To be asked after
    /// each call that is not a question.
    pub fn next_event(&mut self) -> Option<Event<'static>> {
        loop {
            let stream = match self.queue.pop_front()? {
                Queued::Event(event) => return Some(event),
                Queued::Resume(stream) => stream,
            };
            if let Some(open) = self.streams.get_mut(&stream)
                && open.hold == Hold::Resuming
            {
                open.hold = Hold::Flowing;
                let bytes = Bytes::from(std::mem::take(&mut open.held));
                return Some(Event::Resumed { stream, bytes });
            }
        }
    }

    fn tell(&mut self, event: Event<'static>) {
        self.queue.push_back(Queued::Event(event));
    }

    /// Holds back the input of a stream until [`Connection::resume`], up to
    /// [`Limits::max_held_bytes`]. A caller whose transport can leave a stream unread does that
    /// meanwhile, so that the peer feels flow control.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoStream`], and [`CommandError::State`] for a stream without a message.
    pub fn hold(&mut self, stream: StreamId) -> Result<(), CommandError> {
        let stream = self
            .streams
            .get_mut(&stream)
            .ok_or(CommandError::NoStream)?;
        if !matches!(stream.kind, Kind::Exchange(_) | Kind::SessionStream(_)) {
            return Err(CommandError::State);
        }
        stream.hold = Hold::Held;
        Ok(())
    }

    /// Lets a stream flow again: [`Event::Resumed`] follows, from [`Connection::next_event`]. Does
    /// nothing for a stream that is not held.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoStream`], and [`CommandError::State`] while the stream waits for something
    /// that the peer has to do.
    pub fn resume(&mut self, id: StreamId) -> Result<(), CommandError> {
        let settings_known = self.peer.settings.is_some();
        let stream = self.streams.get_mut(&id).ok_or(CommandError::NoStream)?;
        let waits = match &stream.kind {
            Kind::Waiting(_) => true,
            Kind::Exchange(exchange) => exchange.waits_for_settings() && !settings_known,
            _ => false,
        };
        if waits {
            return Err(CommandError::State);
        }
        if stream.hold == Hold::Held {
            stream.hold = Hold::Resuming;
            self.queue.push_back(Queued::Resume(id));
        }
        Ok(())
    }

    /// Whether input of a stream would be held back.
    #[must_use]
    pub fn is_held(&self, stream: StreamId) -> bool {
        let stream = self.streams.get(&stream);
        stream.is_some_and(|stream| stream.hold != Hold::Flowing)
    }

    /// Bytes that are held back of a stream.
    #[must_use]
    pub fn held_bytes(&self, stream: StreamId) -> usize {
        self.streams
            .get(&stream)
            .map_or(0, |stream| stream.held.len())
    }

    /// Takes back the memory of fields that are no longer needed, for later ones. With it a request
    /// allocates nothing.
    pub fn recycle(&mut self, fields: Fields) {
        self.scratch.recycle(fields);
    }

    /// Gives up memory that is kept for later input, up to some kilobytes. For idle connections.
    pub fn release_memory(&mut self) {
        self.scratch = Scratch::default();
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        // The streams that every connection has stay, and have room for some requests.
        if self.streams.capacity() >= MANY_STREAMS {
            self.streams.shrink_to(FEW_STREAMS);
        }
    }

    /// Ends the connection, for the engine: the caller closes the transport.
    fn fail(&mut self, code: ErrorCode, detail: &'static str) -> Violation {
        self.is_closed = true;
        self.streams = FxHashMap::default();
        self.queue = VecDeque::new();
        self.scratch = Scratch::default();
        Violation::connection(code, detail)
    }

    /// Counts bytes that were read for nothing.
    fn spend_idle_bytes(&mut self, bytes: u64) -> Result<(), Fault> {
        let (limits, now_ms) = (&self.limits, self.now_ms);
        let is_within =
            self.idle_bytes
                .spend(bytes, limits.max_idle_bytes, limits.window_ms, now_ms);
        if is_within {
            Ok(())
        } else {
            Err(Fault::Connection(
                ErrorCode::H3_EXCESSIVE_LOAD,
                "too much that says nothing",
            ))
        }
    }

    /// Counts a request that was given up before it was answered, once.
    fn spend_reset(&mut self, exchange: &mut Exchange) -> Result<(), Fault> {
        if !self.is_server || std::mem::replace(&mut exchange.is_given_up, true) {
            return Ok(());
        }
        let (limits, now_ms) = (&self.limits, self.now_ms);
        let is_within = self
            .resets
            .spend(1, limits.max_resets, limits.window_ms, now_ms);
        if is_within {
            Ok(())
        } else {
            Err(Fault::Connection(
                ErrorCode::H3_EXCESSIVE_LOAD,
                TOO_MANY_RESETS,
            ))
        }
    }
}
