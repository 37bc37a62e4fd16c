//! WebTransport sessions, as far as the peer drives them.

use std::borrow::Cow;

use super::receive::Step;
use super::stream::{
    Exchange, Hold, Item, Kind, Receiving, Sending, SessionStream, Stream, Whole, whole,
};
use super::{Connection, Event, Fault, Output, Queued};
use crate::frame::{FrameType, Gather};
use crate::webtransport::{self, MAX_REASON_BYTES, SessionClose};
use crate::{ErrorCode, RequestHead, StreamId, Violation, capsule, varint};

const CLOSE: FrameType = FrameType(capsule::CLOSE_WEBTRANSPORT_SESSION);
const DRAIN: FrameType = FrameType(capsule::DRAIN_WEBTRANSPORT_SESSION);
const DATAGRAM: FrameType = FrameType(capsule::DATAGRAM);

/// Bytes of the code in a capsule that closes a session.
const CODE_BYTES: usize = 4;

/// State of a session, with the request that asked for it.
#[derive(Debug, Default)]
pub(super) struct WebTransportSession {
    pub(super) state: State,
    /// The request, while the client's settings have not arrived.
    pub(super) untold: Option<RequestHead>,
    /// Version 2 of the draft was offered.
    pub(super) offers_draft_02: bool,
    /// Streams that are open, of both ends.
    pub(super) streams: Vec<StreamId>,
    /// The header of a capsule, as far as it has come.
    gather: Gather,
    item: Item,
    partial: Vec<u8>,
}

/// Progress of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    /// It was asked for.
    #[default]
    Requested,
    Open,
    /// The peer has closed it; only the end of the stream may follow.
    Closed,
}

/// Where a stream that names a session belongs.
enum Place {
    Session,
    Waits,
    Nowhere,
}

impl Connection {
    /// Whether a request asks for a session that is taken.
    pub(super) fn asks_for_session(&self, head: &RequestHead) -> bool {
        self.features.webtransport && head.protocol() == Some(webtransport::PROTOCOL)
    }

    /// Server: a client asks for a session.
    pub(super) fn session_requested(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        head: RequestHead,
    ) -> Result<Option<Event<'static>>, Fault> {
        if self.sessions == self.limits.max_sessions {
            return Err(Fault::Stream(
                ErrorCode::H3_REQUEST_REJECTED,
                "too many sessions are open",
            ));
        }
        let early = stream.early;
        let Kind::Exchange(exchange) = &mut stream.kind else {
            return Ok(None);
        };
        self.sessions += 1;
        let mut session = Box::new(WebTransportSession {
            offers_draft_02: head.get(webtransport::DRAFT_02_OFFER) == Some(b"1"),
            ..WebTransportSession::default()
        });
        let settings_known = self.peer.settings.is_some();
        // Section 3.1: requests for sessions are looked at when the client's settings are known.
        let event = if settings_known {
            Some(Event::Request {
                stream: id,
                head,
                early,
            })
        } else {
            session.untold = Some(head);
            stream.hold = Hold::Held;
            None
        };
        exchange.session = Some(session);
        Ok(event)
    }

    /// The client's settings have arrived.
    pub(super) fn tell_waiting_requests(&mut self) {
        if self.sessions == 0 || !self.is_server {
            return;
        }
        let mut told = Vec::new();
        for (id, stream) in &mut self.streams {
            let early = stream.early;
            if let Kind::Exchange(exchange) = &mut stream.kind
                && let Some(session) = &mut exchange.session
                && let Some(head) = session.untold.take()
            {
                stream.hold = Hold::Resuming;
                told.push((*id, head, early));
            }
        }
        told.sort_unstable_by_key(|(id, ..)| *id);
        for (stream, head, early) in told {
            self.tell(Event::Request {
                stream,
                head,
                early,
            });
            self.queue.push_back(Queued::Resume(stream));
        }
    }

    /// Client: a request for a session has its final response.
    pub(super) fn session_answered(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        is_accepted: bool,
        out: &mut dyn Output,
    ) {
        let Kind::Exchange(exchange) = &mut stream.kind else {
            return;
        };
        let Some(session) = &mut exchange.session else {
            return;
        };
        if is_accepted {
            session.state = State::Open;
            self.admit_waiting(id, session, out);
        } else if let Some(session) = exchange.session.take() {
            finish_sending(id, exchange, out);
            self.drop_session(id, &session, out);
        }
    }

    /// Streams that have waited for a session belong to it.
    pub(super) fn admit_waiting(
        &mut self,
        id: StreamId,
        session: &mut WebTransportSession,
        out: &mut dyn Output,
    ) {
        for waiting in self.waiting_for(id) {
            let peer_streams = self.peer_streams(session);
            let Some(stream) = self.streams.get_mut(&waiting) else {
                continue;
            };
            self.waiting -= 1;
            if peer_streams >= self.limits.max_session_streams {
                stream.kind = Kind::SessionPrefix;
                if let Some(stream) = self.streams.remove(&waiting) {
                    let code = ErrorCode::WEBTRANSPORT_BUFFERED_STREAM_REJECTED;
                    self.abort(waiting, &stream, code, out);
                }
                continue;
            }
            stream.kind = Kind::SessionStream(peer_stream(id, waiting));
            stream.hold = Hold::Resuming;
            session.streams.push(waiting);
            self.tell(Event::SessionStream {
                session: id,
                stream: waiting,
            });
            self.queue.push_back(Queued::Resume(waiting));
        }
    }

    /// Streams that wait for a session, in order.
    fn waiting_for(&self, session: StreamId) -> Vec<StreamId> {
        if self.waiting == 0 {
            return Vec::new();
        }
        let mut waiting: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| matches!(stream.kind, Kind::Waiting(on) if on == session))
            .map(|(id, _)| *id)
            .collect();
        waiting.sort_unstable();
        waiting
    }

    /// Streams of a session that the peer has opened.
    fn peer_streams(&self, session: &WebTransportSession) -> u32 {
        let is_peers = |id: &&StreamId| id.is_client_initiated() == self.is_server;
        session.streams.iter().filter(is_peers).count() as u32
    }

    /// A stream of a session says which.
    pub(super) fn step_session_prefix<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        input: &mut &'a [u8],
        out: &mut dyn Output,
    ) -> Result<Step<'a>, Fault> {
        let Some(session) = stream.gather.integer(input) else {
            // A stream that ends before its header is complete is not taken.
            if stream.fin {
                if id.is_bidirectional() {
                    out.reset(id, ErrorCode::WEBTRANSPORT_SESSION_GONE);
                }
                return Ok(Step::Forget);
            }
            return Ok(Step::Idle);
        };
        let session = StreamId(session);
        if !session.is_request() || (!self.is_server && session.0 >= self.next_bidirectional) {
            return Err(Fault::Connection(
                ErrorCode::H3_ID_ERROR,
                "a session that no request can have asked for",
            ));
        }
        match self.place(session) {
            Place::Session => {}
            Place::Nowhere => {
                self.abort(id, stream, ErrorCode::WEBTRANSPORT_SESSION_GONE, out);
                return Ok(Step::Forget);
            }
            Place::Waits if self.waiting >= self.limits.max_waiting_streams => {
                let code = ErrorCode::WEBTRANSPORT_BUFFERED_STREAM_REJECTED;
                self.abort(id, stream, code, out);
                return Ok(Step::Forget);
            }
            Place::Waits => {
                self.waiting += 1;
                stream.kind = Kind::Waiting(session);
                stream.hold = Hold::Held;
                return Ok(Step::Again);
            }
        }
        let Some(WebTransportSession { streams, .. }) = self.session_mut(session) else {
            return Ok(Step::Forget);
        };
        streams.push(id);
        let is_too_many = self
            .session(session)
            .is_some_and(|session| self.peer_streams(session) > self.limits.max_session_streams);
        stream.kind = Kind::SessionStream(peer_stream(session, id));
        if is_too_many {
            let code = ErrorCode::WEBTRANSPORT_BUFFERED_STREAM_REJECTED;
            self.abort(id, stream, code, out);
            self.leave_session(id, stream);
            return Ok(Step::Forget);
        }
        Ok(Step::Tell(Event::SessionStream {
            session,
            stream: id,
        }))
    }

    fn place(&self, session: StreamId) -> Place {
        match self.streams.get(&session).map(|stream| &stream.kind) {
            Some(Kind::Exchange(Exchange {
                session: Some(session),
                ..
            })) => match session.state {
                State::Requested => Place::Waits,
                State::Open => Place::Session,
                State::Closed => Place::Nowhere,
            },
            Some(Kind::Undecided) => Place::Waits,
            Some(Kind::Exchange(exchange)) if self.is_server && !exchange.is_told() => Place::Waits,
            None if self.is_server && self.seen_bidirectional.may_come(session) => Place::Waits,
            _ => Place::Nowhere,
        }
    }

    pub(super) fn session(&self, id: StreamId) -> Option<&WebTransportSession> {
        match &self.streams.get(&id)?.kind {
            Kind::Exchange(exchange) => exchange.session.as_deref(),
            _ => None,
        }
    }

    pub(super) fn session_mut(&mut self, id: StreamId) -> Option<&mut WebTransportSession> {
        match &mut self.streams.get_mut(&id)?.kind {
            Kind::Exchange(exchange) => exchange.session.as_deref_mut(),
            _ => None,
        }
    }

    /// A stream is over: its session no longer counts it.
    pub(super) fn leave_session(&mut self, id: StreamId, stream: &Stream) {
        if let Kind::SessionStream(own) = &stream.kind
            && let Some(session) = self.session_mut(own.session)
        {
            session.streams.retain(|stream| *stream != id);
        }
    }

    /// Ends the session of a request whose stream is out of the table, if it has one. True if its
    /// end is reported, now or before: then nothing further is reported.
    pub(super) fn end_session_of(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        close: Option<SessionClose>,
        out: &mut dyn Output,
    ) -> bool {
        let Kind::Exchange(exchange) = &mut stream.kind else {
            return false;
        };
        let Some(session) = exchange.session.take() else {
            return false;
        };
        self.drop_session(id, &session, out);
        if session.state == State::Open {
            self.tell(Event::SessionClosed { session: id, close });
        }
        session.state != State::Requested
    }

    /// Ends the streams of a session, and those that wait for it.
    pub(super) fn drop_session(
        &mut self,
        id: StreamId,
        session: &WebTransportSession,
        out: &mut dyn Output,
    ) {
        self.sessions -= 1;
        self.end_streams(&session.streams, ErrorCode::WEBTRANSPORT_SESSION_GONE, out);
        self.refuse_waiting(id, out);
    }

    /// Ends streams that wait for a session which will not be.
    pub(super) fn refuse_waiting(&mut self, session: StreamId, out: &mut dyn Output) {
        let waiting = self.waiting_for(session);
        self.end_streams(&waiting, ErrorCode::WEBTRANSPORT_SESSION_GONE, out);
    }

    pub(super) fn end_streams(
        &mut self,
        streams: &[StreamId],
        code: ErrorCode,
        out: &mut dyn Output,
    ) {
        for id in streams {
            if let Some(stream) = self.streams.remove(id) {
                self.abort(*id, &stream, code, out);
                self.forget(&stream);
            }
        }
    }

    /// Content of the request of a session: capsules. Takes all of it, or up to an event.
    pub(super) fn session_content<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        input: &mut &'a [u8],
        out: &mut dyn Output,
    ) -> Result<Option<Event<'a>>, Fault> {
        while !input.is_empty() {
            let Kind::Exchange(exchange) = &mut stream.kind else {
                return Ok(None);
            };
            let Some(session) = &mut exchange.session else {
                return Ok(None);
            };
            match session.item {
                Item::Between => {
                    if session.state == State::Closed {
                        // Section 5: nothing may follow the capsule that closes.
                        return Err(malformed("a session continues after its end"));
                    }
                    let Some((capsule_type, payload_bytes, header_bytes)) =
                        session.gather.frame(input, None)
                    else {
                        return Ok(None);
                    };
                    session.item = match capsule_type {
                        CLOSE => {
                            let payload_bytes = usize::try_from(payload_bytes)
                                .ok()
                                .filter(|bytes| *bytes >= CODE_BYTES)
                                .filter(|bytes| *bytes <= CODE_BYTES + MAX_REASON_BYTES)
                                .ok_or_else(|| malformed("a capsule of a wrong size"))?;
                            Item::Whole(capsule_type, payload_bytes)
                        }
                        DATAGRAM if payload_bytes <= u64::from(self.limits.max_capsule_bytes) => {
                            Item::Whole(capsule_type, payload_bytes as usize)
                        }
                        DRAIN if payload_bytes != 0 => {
                            return Err(malformed("a capsule of a wrong size"));
                        }
                        DRAIN => {
                            self.spend_idle_bytes(header_bytes as u64)?;
                            return Ok(Some(Event::SessionDraining { session: id }));
                        }
                        _ => {
                            self.spend_idle_bytes(
                                payload_bytes.saturating_add(header_bytes as u64),
                            )?;
                            Item::skip(payload_bytes)
                        }
                    };
                    // A datagram may be empty, and nothing more comes for it.
                    if matches!(session.item, Item::Whole(DATAGRAM, 0)) {
                        session.item = Item::Between;
                        let is_open = session.state == State::Open;
                        self.spend_idle_bytes(header_bytes as u64)?;
                        if is_open {
                            return Ok(Some(datagram(id, Whole::Borrowed(&[]))));
                        }
                    }
                }
                Item::Whole(capsule_type, bytes) => {
                    let Some(payload) = whole(&mut session.partial, bytes, input) else {
                        return Ok(None);
                    };
                    session.item = Item::Between;
                    if capsule_type == DATAGRAM {
                        // Before the session is open it is dropped, as others may be on the way.
                        if session.state == State::Open {
                            return Ok(Some(datagram(id, payload)));
                        }
                        continue;
                    }
                    return self.session_closed(id, stream, &payload, out).map(Some);
                }
                Item::Skip(left) | Item::Content(left) => {
                    let bytes = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    *input = &input[bytes..];
                    session.item = Item::skip(left - bytes as u64);
                }
            }
        }
        Ok(None)
    }

    /// The peer closes a session with a capsule.
    fn session_closed(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        payload: &[u8],
        out: &mut dyn Output,
    ) -> Result<Event<'static>, Fault> {
        let (code, reason) = payload
            .split_first_chunk::<CODE_BYTES>()
            .ok_or_else(|| malformed("a capsule of a wrong size"))?;
        let reason =
            std::str::from_utf8(reason).map_err(|_| malformed("a reason that is not UTF-8"))?;
        let close = SessionClose {
            code: u32::from_be_bytes(*code),
            reason: reason.to_owned(),
        };
        if let Kind::Exchange(exchange) = &mut stream.kind
            && let Some(session) = &mut exchange.session
        {
            session.state = State::Closed;
            let streams = std::mem::take(&mut session.streams);
            self.end_streams(&streams, ErrorCode::WEBTRANSPORT_SESSION_GONE, out);
            finish_sending(id, exchange, out);
        }
        Ok(Event::SessionClosed {
            session: id,
            close: Some(close),
        })
    }

    /// The peer's side of a request ends in order; true where that ends an accepted session.
    pub(super) fn session_stream_ends(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        out: &mut dyn Output,
    ) -> Result<bool, Fault> {
        let mut was_session = false;
        if let Kind::Exchange(exchange) = &mut stream.kind
            && let Some(session) = &exchange.session
        {
            // RFC 9297, section 3.3.
            if session.gather.is_partial() || !matches!(session.item, Item::Between) {
                return Err(malformed("the stream ends within a capsule"));
            }
            was_session = session.state != State::Requested;
            if was_session {
                finish_sending(id, exchange, out);
            }
            // Section 5: without a capsule it is as with the code 0 and no reason.
            self.end_session_of(id, stream, Some(SessionClose::default()), out);
        }
        Ok(was_session)
    }

    /// An unreliable datagram of QUIC arrived (RFC 9297, section 2.1).
    ///
    /// # Errors
    ///
    /// As [`Connection::receive`].
    pub fn datagram_received<'a>(
        &mut self,
        mut bytes: &'a [u8],
        now_ms: u64,
        out: &mut dyn Output,
    ) -> Result<Option<Event<'a>>, Violation> {
        const MAX_QUARTER: u64 = varint::MAX / 4;
        self.now_ms = self.now_ms.max(now_ms);
        // Datagrams that were not announced are ignored.
        if self.is_closed || !self.features.datagrams() {
            return Ok(None);
        }
        let quarter = varint::take(&mut bytes).filter(|quarter| *quarter <= MAX_QUARTER);
        let Some(quarter) = quarter else {
            return Err(self.fail(
                ErrorCode::H3_DATAGRAM_ERROR,
                "a datagram that names no stream",
            ));
        };
        let id = StreamId(4 * quarter);
        if !self.is_server && id.0 >= self.next_bidirectional {
            return Err(self.fail(
                ErrorCode::H3_ID_ERROR,
                "a datagram of a request that was not sent",
            ));
        }
        // Datagrams overtake streams and outlive them: a datagram without its stream is dropped.
        let Some(Stream {
            kind: Kind::Exchange(exchange),
            ..
        }) = self.streams.get(&id)
        else {
            return Ok(None);
        };
        if exchange.receiving == Receiving::Done {
            return Ok(None);
        }
        let is_taken = match &exchange.session {
            Some(session) => session.state == State::Open,
            None if !exchange.is_told() => false,
            None if exchange.is_connect => true,
            None => {
                // Section 2: the method gives datagrams no meaning.
                let fault = Fault::Stream(
                    ErrorCode::H3_DATAGRAM_ERROR,
                    "a datagram of a request that has none",
                );
                let stream = self.streams.remove(&id);
                return Err(self.violated(id, stream, fault, out));
            }
        };
        Ok(is_taken.then_some(Event::Datagram {
            stream: id,
            bytes: Cow::Borrowed(bytes),
        }))
    }
}

/// Ends this end's side of a session's request.
fn finish_sending(id: StreamId, exchange: &mut Exchange, out: &mut dyn Output) {
    match std::mem::replace(&mut exchange.sending, Sending::Done) {
        Sending::Head => out.reset(id, ErrorCode::H3_REQUEST_CANCELLED),
        Sending::Content => out.finish(id),
        Sending::Done => {}
    }
}

fn datagram(stream: StreamId, bytes: Whole<'_>) -> Event<'_> {
    let bytes = match bytes {
        Whole::Borrowed(bytes) => Cow::Borrowed(bytes),
        Whole::Together(bytes) => Cow::Owned(bytes),
    };
    Event::Datagram { stream, bytes }
}

/// A stream that the peer has opened.
fn peer_stream(session: StreamId, id: StreamId) -> SessionStream {
    SessionStream {
        session,
        receives: true,
        sends: id.is_bidirectional(),
    }
}

fn malformed(detail: &'static str) -> Fault {
    Fault::Stream(ErrorCode::H3_MESSAGE_ERROR, detail)
}
