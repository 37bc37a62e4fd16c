//! Input, by the kind of its stream.

use super::session::State;
use super::stream::{Exchange, Hold, Kind, Receiving, Sending, Stream};
use super::{Chunk, Connection, Event, Fault, Output, control};
use crate::frame::FrameType;
use crate::stream_id::{Seen, Sighting};
use crate::{ErrorCode, StreamId, Violation, webtransport};

/// Bytes that a stream of unknown type counts in [`crate::Limits::max_idle_bytes`].
const UNKNOWN_STREAM_BYTES: u64 = 64;

/// The next state of a stream after a step.
pub(super) enum Step<'a> {
    /// Something is to be told; there may be more.
    Tell(Event<'a>),
    /// It is now for something else: look again.
    Again,
    /// All there was has been handled.
    Idle,
    /// It is of no use any more.
    Forget,
}

impl Connection {
    /// Handles bytes of a stream, and its end. To be called with the same chunk until it says
    /// `None`: then all bytes have been taken.
    ///
    /// `now_ms` is the time in milliseconds on any clock that does not go back.
    ///
    /// # Errors
    ///
    /// A violation of the peer. If it concerns a stream, that has been ended and forgotten. No
    /// event for it follows, except [`Event::SessionClosed`] for a session. If it concerns the
    /// connection, the caller closes the connection with the code.
    pub fn receive<'a>(
        &mut self,
        chunk: &mut Chunk<'a>,
        now_ms: u64,
        out: &mut dyn Output,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.now_ms = self.now_ms.max(now_ms);
        let id = chunk.stream;
        let mut stream = match self.take(id) {
            Ok(Some(stream)) => stream,
            Ok(None) => {
                chunk.bytes = &[];
                return Ok(None);
            }
            Err(fault) => {
                chunk.bytes = &[];
                return Err(self.violated(id, None, fault, out));
            }
        };
        stream.fin |= chunk.fin;
        stream.early |= chunk.early;
        if stream.hold != Hold::Flowing {
            let all_bytes = stream.held.len() + chunk.bytes.len();
            if all_bytes > self.limits.max_held_bytes as usize {
                chunk.bytes = &[];
                let fault = Fault::Stream(ErrorCode::H3_EXCESSIVE_LOAD, "too much to be held back");
                return Err(self.violated(id, Some(stream), fault, out));
            }
            stream.held.extend_from_slice(chunk.bytes);
            chunk.bytes = &[];
            self.streams.insert(id, stream);
            return Ok(None);
        }
        loop {
            match self.step(id, &mut stream, &mut chunk.bytes, out) {
                Ok(Step::Again) => {
                    if stream.hold != Hold::Flowing {
                        // It has begun to wait: the remaining input waits with it.
                        self.streams.insert(id, stream);
                        return self.receive(chunk, now_ms, out);
                    }
                }
                Ok(Step::Tell(event)) => {
                    self.put_back(id, stream);
                    return Ok(Some(event));
                }
                Ok(Step::Idle) => {
                    self.put_back(id, stream);
                    return Ok(None);
                }
                Ok(Step::Forget) => {
                    chunk.bytes = &[];
                    self.forget(&stream);
                    return Ok(None);
                }
                Err(fault) => {
                    chunk.bytes = &[];
                    return Err(self.violated(id, Some(stream), fault, out));
                }
            }
        }
    }

    /// Takes a stream out of the table, or makes one where the peer has just opened it. `None` where
    /// there is nothing to do with it.
    fn take(&mut self, id: StreamId) -> Result<Option<Stream>, Fault> {
        if self.is_closed {
            return Ok(None);
        }
        if let Some(stream) = self.streams.remove(&id) {
            return Ok(Some(stream));
        }
        if id.is_client_initiated() != self.is_server {
            return Ok(None);
        }
        let max_skipped = self.limits.max_skipped_streams;
        match self.seen(id).see(id, max_skipped) {
            Sighting::New => Ok(Some(Stream::new(Kind::Undecided))),
            Sighting::Known => Ok(None),
            Sighting::TooMany => Err(Fault::Connection(
                ErrorCode::H3_EXCESSIVE_LOAD,
                "too many streams are left out",
            )),
        }
    }

    fn seen(&mut self, id: StreamId) -> &mut Seen {
        if id.is_bidirectional() {
            &mut self.seen_bidirectional
        } else {
            &mut self.seen_unidirectional
        }
    }

    /// Puts a stream back, unless it is over.
    pub(super) fn put_back(&mut self, id: StreamId, stream: Stream) {
        if stream.is_over() {
            self.leave_session(id, &stream);
            self.forget(&stream);
        } else {
            self.streams.insert(id, stream);
        }
    }

    /// Counts a stream that is no longer there.
    pub(super) fn forget(&mut self, stream: &Stream) {
        match &stream.kind {
            Kind::Exchange(exchange) => {
                self.requests -= 1;
                self.sessions -= u32::from(exchange.session.is_some());
            }
            Kind::Waiting(_) => self.waiting -= 1,
            _ => {}
        }
    }

    /// Carries out the consequences of a fault.
    pub(super) fn violated(
        &mut self,
        id: StreamId,
        stream: Option<Stream>,
        fault: Fault,
        out: &mut dyn Output,
    ) -> Violation {
        let (code, detail) = match fault {
            Fault::Connection(code, detail) => return self.fail(code, detail),
            Fault::Stream(code, detail) => (code, detail),
            Fault::TooLarge => (
                ErrorCode::H3_EXCESSIVE_LOAD,
                "a field section larger than may be",
            ),
        };
        let Some(mut stream) = stream else {
            return Violation::stream(id, code, detail);
        };
        let mut is_answered = false;
        if let Kind::Exchange(exchange) = &mut stream.kind {
            if matches!(fault, Fault::TooLarge) && self.is_server {
                is_answered = self.refuse_too_large(id, exchange, out);
            }
            // Resets that a peer provokes count as its own.
            if let Err(Fault::Connection(code, detail)) = self.spend_reset(exchange) {
                return self.fail(code, detail);
            }
        }
        if is_answered {
            if !stream.fin {
                out.stop(id, ErrorCode::H3_NO_ERROR);
            }
        } else {
            self.abort(id, &stream, code, out);
        }
        self.end_session_of(id, &mut stream, None, out);
        self.refuse_waiting(id, out);
        self.leave_session(id, &stream);
        self.forget(&stream);
        Violation::stream(id, code, detail)
    }

    /// Ends the open directions of a stream.
    pub(super) fn abort(
        &self,
        id: StreamId,
        stream: &Stream,
        code: ErrorCode,
        out: &mut dyn Output,
    ) {
        let is_own = id.is_client_initiated() != self.is_server;
        let (receives, sends) = match &stream.kind {
            Kind::Exchange(exchange) => (
                exchange.receiving != Receiving::Done,
                exchange.sending != Sending::Done,
            ),
            Kind::SessionStream(stream) => (stream.receives, stream.sends),
            _ => (
                id.is_bidirectional() || !is_own,
                id.is_bidirectional() || is_own,
            ),
        };
        if sends {
            out.reset(id, code);
        }
        // A complete stream need not be stopped.
        if receives && !stream.fin {
            out.stop(id, code);
        }
    }

    fn step<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        input: &mut &'a [u8],
        out: &mut dyn Output,
    ) -> Result<Step<'a>, Fault> {
        match &mut stream.kind {
            Kind::Undecided if id.is_bidirectional() => {
                self.decide_bidirectional(id, stream, input)
            }
            Kind::Undecided => self.decide_unidirectional(id, stream, input, out),
            Kind::Exchange(exchange) if exchange.receiving == Receiving::Done => {
                *input = &[];
                Ok(Step::Idle)
            }
            Kind::Exchange(_) => self.step_exchange(id, stream, input, out),
            Kind::Control => self.step_control(stream, input, out),
            Kind::Encoder | Kind::Decoder => self.step_qpack(stream, input),
            Kind::SessionPrefix => self.step_session_prefix(id, stream, input, out),
            Kind::Waiting(_) => Ok(Step::Idle),
            Kind::SessionStream(own) => {
                if !own.receives {
                    // It was asked to stop, and that was still on its way.
                    *input = &[];
                    return Ok(Step::Idle);
                }
                if !input.is_empty() {
                    let bytes = std::mem::take(input);
                    return Ok(Step::Tell(Event::Content { stream: id, bytes }));
                }
                if stream.fin {
                    own.receives = false;
                    return Ok(Step::Tell(Event::End { stream: id }));
                }
                Ok(Step::Idle)
            }
        }
    }

    /// A bidirectional stream of the peer: a request, or a stream of a session.
    fn decide_bidirectional<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        input: &mut &'a [u8],
    ) -> Result<Step<'a>, Fault> {
        let alone = self
            .features
            .webtransport
            .then_some(FrameType::WEBTRANSPORT_STREAM);
        if !self.is_server {
            // RFC 9114, section 6.1: only extensions let a server open one.
            const WRONG: Fault = Fault::Connection(
                ErrorCode::H3_STREAM_CREATION_ERROR,
                "a server opened a bidirectional stream",
            );
            let Some(signal) = alone else {
                return Err(WRONG);
            };
            return match stream.gather.integer(input) {
                Some(value) if value == signal.0 => {
                    stream.kind = Kind::SessionPrefix;
                    Ok(Step::Again)
                }
                Some(_) => Err(WRONG),
                None if stream.fin => Ok(Step::Forget),
                None => Ok(Step::Idle),
            };
        }
        match stream.gather.frame(input, alone) {
            Some((frame_type, ..)) if alone == Some(frame_type) => {
                stream.kind = Kind::SessionPrefix;
                Ok(Step::Again)
            }
            Some((frame_type, payload_bytes, header_bytes)) => {
                self.begin_request(id, stream)?;
                self.begin_frame(stream, frame_type, payload_bytes, header_bytes)?;
                Ok(Step::Again)
            }
            None if stream.fin => {
                self.begin_request(id, stream)?;
                Ok(Step::Again)
            }
            None => Ok(Step::Idle),
        }
    }

    /// Counts a request, or refuses it before anything is known of it.
    fn begin_request(&mut self, id: StreamId, stream: &mut Stream) -> Result<(), Fault> {
        stream.kind = Kind::Exchange(Exchange::default());
        self.requests += 1;
        // Section 5.2: requests from the announced one on are not processed.
        if self.goaway_sent.is_some_and(|first| id.0 >= first) {
            // The client could not know: that is not counted.
            if let Kind::Exchange(exchange) = &mut stream.kind {
                exchange.is_given_up = true;
            }
            return Err(Fault::Stream(
                ErrorCode::H3_REQUEST_REJECTED,
                "a request after GOAWAY",
            ));
        }
        if self.requests > self.limits.max_requests {
            return Err(Fault::Stream(
                ErrorCode::H3_REQUEST_REJECTED,
                "too many requests are open",
            ));
        }
        Ok(())
    }

    /// A unidirectional stream of the peer begins with its type (RFC 9114, section 6.2).
    fn decide_unidirectional<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        input: &mut &'a [u8],
        out: &mut dyn Output,
    ) -> Result<Step<'a>, Fault> {
        const WRONG: ErrorCode = ErrorCode::H3_STREAM_CREATION_ERROR;
        let Some(stream_type) = stream.gather.integer(input) else {
            // Section 6.2: a stream may end before it has a type.
            return Ok(if stream.fin { Step::Forget } else { Step::Idle });
        };
        let (kind, is_there) = match stream_type {
            control::CONTROL_STREAM => (Kind::Control, &mut self.peer.has_control),
            control::ENCODER_STREAM => (Kind::Encoder, &mut self.peer.has_encoder),
            control::DECODER_STREAM => (Kind::Decoder, &mut self.peer.has_decoder),
            // Section 6.2.2: only servers push, and only with the client's permission.
            control::PUSH_STREAM if self.is_server => {
                return Err(Fault::Connection(WRONG, "a push stream of a client"));
            }
            control::PUSH_STREAM => {
                return Err(Fault::Connection(
                    ErrorCode::H3_ID_ERROR,
                    "a push that was not allowed",
                ));
            }
            webtransport::UNIDIRECTIONAL_STREAM if self.features.webtransport => {
                stream.kind = Kind::SessionPrefix;
                return Ok(Step::Again);
            }
            _ => {
                self.spend_idle_bytes(UNKNOWN_STREAM_BYTES)?;
                out.stop(id, WRONG);
                return Ok(Step::Forget);
            }
        };
        if std::mem::replace(is_there, true) {
            return Err(Fault::Connection(
                WRONG,
                "a second stream of a kind that there is one of",
            ));
        }
        stream.kind = kind;
        Ok(Step::Again)
    }

    /// The peer gave up sending on a stream (RESET_STREAM), with an application error code.
    ///
    /// # Errors
    ///
    /// As [`Connection::receive`].
    pub fn peer_reset(
        &mut self,
        id: StreamId,
        code: ErrorCode,
        now_ms: u64,
        out: &mut dyn Output,
    ) -> Result<Option<Event<'static>>, Violation> {
        self.now_ms = self.now_ms.max(now_ms);
        let taken = self.take(id);
        let mut stream = match taken {
            Ok(Some(stream)) => stream,
            Ok(None) => return Ok(None),
            Err(fault) => return Err(self.violated(id, None, fault, out)),
        };
        stream.hold = Hold::Flowing;
        stream.held = Vec::new();
        match &mut stream.kind {
            Kind::Control | Kind::Encoder | Kind::Decoder => {
                Err(self.violated(id, Some(stream), control::CLOSED, out))
            }
            Kind::Exchange(exchange) if exchange.receiving == Receiving::Done => {
                self.put_back(id, stream);
                Ok(None)
            }
            Kind::Exchange(exchange) => {
                // A request whose head was not told of is not told of at all.
                let is_told = !self.is_server || exchange.is_told();
                if exchange.sending != Sending::Done
                    && let Err(fault) = self.spend_reset(exchange)
                {
                    return Err(self.violated(id, Some(stream), fault, out));
                }
                exchange.receiving = Receiving::Done;
                stream.partial = Vec::new();
                if self.end_session_of(id, &mut stream, None, out) {
                    self.abort(id, &stream, ErrorCode::H3_REQUEST_CANCELLED, out);
                    self.forget(&stream);
                    return Ok(self.next_event());
                }
                if !is_told {
                    self.abort(id, &stream, ErrorCode::H3_REQUEST_CANCELLED, out);
                    self.refuse_waiting(id, out);
                    self.forget(&stream);
                    return Ok(None);
                }
                self.put_back(id, stream);
                Ok(Some(Event::Reset { stream: id, code }))
            }
            Kind::SessionStream(own) => {
                let is_news = std::mem::replace(&mut own.receives, false);
                self.put_back(id, stream);
                Ok(is_news.then_some(Event::Reset { stream: id, code }))
            }
            // Sections 6.2 and 7.1: nothing was said yet. This end's side is of no use either.
            Kind::Undecided | Kind::SessionPrefix | Kind::Waiting(_) => {
                if id.is_bidirectional() {
                    out.reset(id, ErrorCode::H3_REQUEST_CANCELLED);
                }
                let spent = match &stream.kind {
                    Kind::Undecided if id.is_bidirectional() => {
                        self.spend_reset(&mut Exchange::default())
                    }
                    _ => Ok(()),
                };
                self.refuse_waiting(id, out);
                self.forget(&stream);
                spent
                    .map(|()| None)
                    .map_err(|fault| self.violated(id, None, fault, out))
            }
        }
    }

    /// The peer reads no further on a stream (STOP_SENDING), with an application error code. The
    /// transport resets this end's side of it, as RFC 9000, section 3.5 asks.
    ///
    /// # Errors
    ///
    /// As [`Connection::receive`].
    pub fn peer_stopped(
        &mut self,
        id: StreamId,
        code: ErrorCode,
        now_ms: u64,
        out: &mut dyn Output,
    ) -> Result<Option<Event<'static>>, Violation> {
        self.now_ms = self.now_ms.max(now_ms);
        if self.is_closed {
            return Ok(None);
        }
        if id == self.control {
            return Err(self.violated(id, None, control::CLOSED, out));
        }
        if !id.is_bidirectional() && id.is_client_initiated() == self.is_server {
            // It is the peer that sends there: its transport lets no such thing through.
            return Ok(None);
        }
        let taken = self.take(id);
        let mut stream = match taken {
            Ok(Some(stream)) => stream,
            Ok(None) => return Ok(None),
            Err(fault) => return Err(self.violated(id, None, fault, out)),
        };
        let is_news = match &mut stream.kind {
            Kind::Exchange(exchange) => {
                if exchange.sending != Sending::Done
                    && let Err(fault) = self.spend_reset(exchange)
                {
                    return Err(self.violated(id, Some(stream), fault, out));
                }
                let before = std::mem::replace(&mut exchange.sending, Sending::Done);
                let is_told = !self.is_server || exchange.is_told();
                // The capsule that closes a session may follow. The peer's bytes will tell.
                let is_open = exchange
                    .session
                    .as_ref()
                    .is_some_and(|session| session.state != State::Requested);
                before != Sending::Done && is_told && !is_open
            }
            Kind::SessionStream(own) => std::mem::replace(&mut own.sends, false),
            Kind::Undecided if id.is_bidirectional() => {
                if let Err(fault) = self.spend_reset(&mut Exchange::default()) {
                    return Err(self.violated(id, Some(stream), fault, out));
                }
                false
            }
            _ => false,
        };
        self.put_back(id, stream);
        Ok(is_news.then_some(Event::Stopped { stream: id, code }))
    }
}
