//! Requests and responses on QUIC: between the engine of HTTP/3 and the application.
//!
//! `receive.rs` gathers requests, `respond.rs` sends the application's responses, `wire.rs` keeps
//! the bytes of a step until its end.

mod receive;
mod respond;
mod wire;

use std::sync::Arc;

use rustc_hash::FxHashMap;
use sterna_h3::{Connection, ErrorCode, Features, RequestHead, StreamId};
use sterna_net::{ConnectionId, Network};

use crate::carrier::{Moment, Settings};
use crate::date;
use crate::exchange::{Application, ExchangeId};
use crate::limits::Limits;
use wire::Wire;

/// The application error code of an orderly end.
pub const NO_ERROR: u64 = ErrorCode::H3_NO_ERROR.0;
/// The application error code of an end that is the server's own fault.
pub const INTERNAL_ERROR: u64 = ErrorCode::H3_INTERNAL_ERROR.0;

/// Number of high watermarks that may be queued before the client is read no more. A client that takes no answers gets
/// no more of them.
const PAUSE_SHARE: usize = 2;

/// A connection of HTTP/3.
#[derive(Debug)]
pub(crate) struct Carrier {
    id: ConnectionId,
    engine: Connection,
    wire: Wire,
    streams: FxHashMap<u64, Stream>,
    /// Streams of requests that are not complete.
    incomplete: usize,
    /// Bytes of contents that are not complete.
    assembling_bytes: usize,
    limits: Arc<Limits>,
    now_ms: u64,
    date: [u8; date::BYTES],
    /// Bytes that were queued towards the client before this step.
    unsent_bytes: usize,
    /// Number of steps that began with an empty queue: the transport had taken everything.
    emptied: u32,
    /// Time at which the queue of each stream was last read, in milliseconds since the Unix epoch: the lower half of
    /// the number, which is compared alone.
    counted_ms: u32,
    /// Bytes that are queued towards the client if it has taken none since that time: the lower half of the number,
    /// which is compared alone. Each idle client has it.
    untaken_bytes: u32,
    /// The application was told that there is no room.
    is_full: bool,
    /// A stream has ended that left its session no room.
    frees_room: bool,
    /// The client is not read: too much is queued towards it.
    is_paused: bool,
    /// Time at which the connection is closed unless a request has come; `None` after the first
    /// one.
    connect_deadline_ms: Option<u64>,
    /// Early data can no longer be a replay.
    is_confirmed: bool,
    /// This end takes datagrams, and the client has said in the handshake that it takes none.
    lacks_datagrams: bool,
    close_code: Option<ErrorCode>,
}

/// The state of a stream.
#[derive(Debug)]
enum Stream {
    /// A request whose head is not complete.
    Head { deadline_ms: u64 },
    /// A request whose content is not complete.
    Content(Box<Incoming>),
    /// A request that the application has, and its response.
    Asked(Asked),
    /// A WebTransport session that the application has accepted.
    Session,
    /// A stream of a WebTransport session.
    OfSession { session: u64, sent: Sent },
}

/// A request that is coming in.
#[derive(Debug)]
struct Incoming {
    head: RequestHead,
    content: Vec<u8>,
    early: bool,
    deadline_ms: u64,
}

/// A request that the application has.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    is_head: bool,
    is_connect: bool,
    /// The response has begun, and goes on.
    is_open: bool,
    sent: Sent,
}

/// The bytes sent on a stream, and those of them that were not taken at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    bytes: u64,
    queued_bytes: usize,
    /// Value of `emptied` of the connection when the above was noted.
    emptied: u32,
}

impl Sent {
    fn add(&mut self, bytes: usize, emptied: u32) {
        self.bytes += bytes as u64;
        self.queued_bytes = self.unsent_bytes(emptied) + bytes;
        self.emptied = emptied;
    }

    const fn unsent_bytes(&self, emptied: u32) -> usize {
        if self.emptied == emptied {
            self.queued_bytes
        } else {
            0
        }
    }

    const fn taken_bytes(&self, emptied: u32) -> u64 {
        self.bytes.saturating_sub(self.unsent_bytes(emptied) as u64)
    }
}

impl Carrier {
    pub(crate) fn new(
        id: ConnectionId,
        settings: Settings,
        now_ms: u64,
        has_datagrams: bool,
    ) -> Self {
        let Settings {
            limits,
            takes_datagrams,
            ..
        } = settings;
        let of_engine = sterna_h3::Limits {
            max_field_section_bytes: limits.max_fields_bytes,
            // A field section above the limit gets a problem for an answer, up to twice the limit.
            max_refused_section_bytes: limits.max_fields_bytes.saturating_mul(2),
            max_requests: limits.max_requests,
            max_resets: limits.max_resets,
            max_sessions: limits.max_sessions,
            max_session_streams: limits.max_session_streams,
            ..sterna_h3::Limits::default()
        };
        let features = Features {
            // The setting goes with the transport parameter (RFC 9297, section 2.1.1).
            webtransport: takes_datagrams && has_datagrams,
            ..Features::default()
        };
        let connect_deadline_ms = Some(now_ms.saturating_add(limits.connect_timeout_ms));
        let mut wire = Wire::default();
        Self {
            id,
            engine: Connection::server(&of_engine, features, &mut wire),
            wire,
            streams: FxHashMap::default(),
            incomplete: 0,
            assembling_bytes: 0,
            limits,
            now_ms: 0,
            date: [b' '; date::BYTES],
            unsent_bytes: 0,
            emptied: 0,
            counted_ms: 0,
            untaken_bytes: 0,
            is_full: false,
            frees_room: false,
            is_paused: false,
            connect_deadline_ms,
            is_confirmed: false,
            lacks_datagrams: takes_datagrams && !has_datagrams,
            close_code: None,
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, net: &mut dyn Network, moment: Moment) {
        self.now_ms = moment.now_ms;
        self.date = moment.date;
        self.unsent_bytes = moment.unsent_bytes;
        if self.unsent_bytes == 0 {
            self.emptied = self.emptied.wrapping_add(1);
            self.untaken_bytes = 0;
        } else if self.counted_ms != self.now_ms as u32
            || (self.is_full && self.unsent_bytes as u32 != self.untaken_bytes)
        {
            self.count_unsent(net);
        }
        if self.has_sessions() {
            self.wire.datagram_bytes = net.datagram_bytes(self.id);
        }
    }

    /// Asks how much is queued on each stream: once a turn, and when some of it was taken while there is no room.
    fn count_unsent(&mut self, net: &dyn Network) {
        self.counted_ms = self.now_ms as u32;
        self.untaken_bytes = self.unsent_bytes as u32;
        for (number, stream) in &mut self.streams {
            let (Stream::Asked(Asked { sent, .. }) | Stream::OfSession { sent, .. }) = stream
            else {
                continue;
            };
            if sent.unsent_bytes(self.emptied) > 0 {
                sent.queued_bytes = net.unsent_on(self.id, sterna_net::StreamId(*number));
            }
        }
    }

    fn has_sessions(&self) -> bool {
        let is_session = |stream: &Stream| matches!(stream, Stream::Session);
        self.streams.values().any(is_session)
    }

    /// Handles what else follows from a step.
    pub(crate) fn settle(&mut self, app: &mut dyn Application) {
        self.follow_up(app);
    }

    /// Bytes of contents of which parts have arrived.
    pub(crate) const fn partial_bytes(&self) -> usize {
        self.assembling_bytes
    }

    /// Hands over what the step has written; returns how many bytes it were. A client that `is_paced` is not
    /// read.
    pub(crate) fn flush(&mut self, net: &mut dyn Network, is_paced: bool) -> u64 {
        let sent = self.wire.flush(net, self.id);
        if let Some(code) = self.close_code {
            // The end of a stream would say that its response is complete.
            for number in self.streams.keys() {
                net.reset(self.id, sterna_net::StreamId(*number), code.0);
            }
        }
        let most_bytes = self.limits.high_watermark_bytes.saturating_mul(PAUSE_SHARE);
        let unsent_bytes = net.unsent_bytes(self.id);
        // The difference that this step makes is no sign that the client has taken something.
        let others_bytes = self.untaken_bytes.wrapping_sub(self.unsent_bytes as u32);
        self.untaken_bytes = others_bytes.wrapping_add(unsent_bytes as u32);
        let is_paused = is_paced || unsent_bytes >= most_bytes;
        if is_paused != self.is_paused {
            self.is_paused = is_paused;
            net.pause(self.id, is_paused);
        }
        if self.streams.is_empty() {
            self.engine.release_memory();
            self.wire.release();
            self.streams = FxHashMap::default();
        }
        sent
    }

    /// The code to close the connection with, once it is over.
    pub(crate) fn close_code(&self) -> Option<u64> {
        self.close_code.map(|code| code.0)
    }

    /// When `timeout` wants to be called.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        if self.close_code.is_some() {
            return None;
        }
        let streams = (self.incomplete > 0).then_some(&self.streams);
        let streams = streams.into_iter().flat_map(FxHashMap::values);
        let of_streams = streams.filter_map(Stream::deadline_ms).min();
        of_streams.into_iter().chain(self.connect_deadline_ms).min()
    }

    /// Early data can no longer be a replay, nor can requests that began in it.
    pub(crate) const fn confirmed(&mut self) {
        self.is_confirmed = true;
    }

    /// There is room again.
    pub(crate) fn writable(&mut self, app: &mut dyn Application) {
        self.is_full = false;
        app.writable(self);
    }

    /// Refuses incomplete requests, lets the application end open responses, and ends the
    /// connection.
    pub(crate) fn stop(&mut self, app: &mut dyn Application) {
        if self.close_code.is_some() {
            return;
        }
        // It only fails on a connection that is closed.
        let _ = self.engine.go_away(false, &mut self.wire);
        let is_incomplete = |stream: &Stream| stream.deadline_ms().is_some();
        for id in self.numbers(is_incomplete) {
            self.give_up(id, ErrorCode::H3_REQUEST_REJECTED);
        }
        app.stop(self);
        self.follow_up(app);
        self.close_code.get_or_insert(ErrorCode::H3_NO_ERROR);
    }

    /// Numbers of the streams that are so.
    fn numbers(&self, is_so: impl Fn(&Stream) -> bool) -> Vec<StreamId> {
        let all = self.streams.iter();
        let of = all.filter(|(_, stream)| is_so(stream));
        of.map(|(number, _)| StreamId(*number)).collect()
    }

    /// Forgets a stream.
    fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id.0)?;
        self.uncount(&stream);
        if let Stream::OfSession { sent, .. } = &stream {
            self.frees_room |= self.is_full && self.fills_response(sent);
        }
        let counted = (self.incomplete, self.assembling_bytes);
        debug_assert!(
            !self.streams.is_empty() || counted == (0, 0),
            "no stream is left, and {counted:?} are counted as incomplete, with their bytes"
        );
        Some(stream)
    }

    /// Puts a stream into the table, in the place of what it was before.
    fn put(&mut self, id: StreamId, stream: Stream) {
        self.incomplete += usize::from(stream.deadline_ms().is_some());
        if let Some(before) = self.streams.insert(id.0, stream) {
            self.uncount(&before);
        }
    }

    /// Whether so much waits on a stream that the application waits, too.
    fn fills_response(&self, sent: &Sent) -> bool {
        sent.unsent_bytes(self.emptied) >= self.limits.response_bytes()
    }

    fn uncount(&mut self, stream: &Stream) {
        self.incomplete -= usize::from(stream.deadline_ms().is_some());
        if let Stream::Content(incoming) = stream {
            self.assembling_bytes -= incoming.content.len();
        }
    }

    /// Ends a stream in both directions, which the application does not know or is done with.
    fn give_up(&mut self, id: StreamId, code: ErrorCode) {
        self.remove(id);
        // One that is over needs no end.
        let _ = self.engine.cancel(id, code, &mut self.wire);
    }
}

impl Stream {
    /// When its time is over, while the client has to send something.
    fn deadline_ms(&self) -> Option<u64> {
        match self {
            Self::Head { deadline_ms } => Some(*deadline_ms),
            Self::Content(incoming) => Some(incoming.deadline_ms),
            Self::Asked(_) | Self::Session | Self::OfSession { .. } => None,
        }
    }
}

/// The name of a request.
const fn exchange(id: StreamId) -> ExchangeId {
    ExchangeId(id.0)
}
