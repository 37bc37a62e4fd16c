//! Requests, from what arrives.

use bytes::Bytes;
use sterna_h3::{Chunk, ErrorCode, Event, RequestHead, Scope, StreamId, Violation};

use super::{Asked, Carrier, Incoming, Sent, Stream, exchange};
use crate::http::exchange::{ExchangeId, Head, Refusal, Request};
use crate::http::{Desk, log_end};

impl Carrier {
    /// Bytes arrived.
    pub(in crate::http) fn received(
        &mut self,
        desk: &mut Desk<'_, '_>,
        chunk: &sterna_net::Chunk<'_>,
    ) {
        let chunk = Chunk {
            early: chunk.early && !chunk.confirmed,
            ..Chunk::new(StreamId(chunk.stream.0), chunk.bytes)
        };
        self.feed(desk, chunk);
    }

    /// The client has ended its side of a stream.
    pub(in crate::http) fn finished(
        &mut self,
        desk: &mut Desk<'_, '_>,
        stream: sterna_net::StreamId,
    ) {
        self.feed(desk, Chunk::fin(StreamId(stream.0)));
    }

    /// A datagram arrived.
    pub(in crate::http) fn datagram(&mut self, desk: &mut Desk<'_, '_>, bytes: &[u8]) {
        match (self.engine).datagram_received(bytes, self.now_ms, &mut self.wire) {
            Ok(Some(event)) => self.handle(desk, event),
            Ok(None) => {}
            Err(violation) => self.violated(desk, &violation),
        }
        self.follow_up(desk);
    }

    /// The client gave up what it sends on a stream.
    pub(in crate::http) fn peer_reset(
        &mut self,
        desk: &mut Desk<'_, '_>,
        stream: sterna_net::StreamId,
        code: u64,
    ) {
        let id = StreamId(stream.0);
        let told = (self.engine).peer_reset(id, ErrorCode(code), self.now_ms, &mut self.wire);
        self.ended(desk, id, told);
    }

    /// The client reads no more of a stream.
    pub(in crate::http) fn peer_stopped(
        &mut self,
        desk: &mut Desk<'_, '_>,
        stream: sterna_net::StreamId,
        code: u64,
    ) {
        let id = StreamId(stream.0);
        let told = (self.engine).peer_stopped(id, ErrorCode(code), self.now_ms, &mut self.wire);
        self.ended(desk, id, told);
    }

    fn ended(
        &mut self,
        desk: &mut Desk<'_, '_>,
        id: StreamId,
        told: Result<Option<Event<'static>>, Violation>,
    ) {
        match told {
            Ok(Some(event)) => self.handle(desk, event),
            // A request whose head is not complete is forgotten without a word.
            Ok(None) => {
                if matches!(self.streams.get(&id.0), Some(Stream::Head { .. })) {
                    self.remove(id);
                }
            }
            Err(violation) => self.violated(desk, &violation),
        }
        self.follow_up(desk);
    }

    /// Ends requests that come too slowly.
    pub(in crate::http) fn timeout(&mut self, desk: &mut Desk<'_, '_>) {
        let now_ms = self.now_ms;
        if self
            .connect_deadline_ms
            .is_some_and(|due_ms| due_ms <= now_ms)
        {
            self.connect_deadline_ms = None;
            // It only fails on a connection that is closed.
            let _ = self.engine.go_away(false, &mut self.wire);
            self.close_code.get_or_insert(ErrorCode::H3_NO_ERROR);
        }
        if self.incomplete == 0 {
            return;
        }
        let is_due = |stream: &Stream| stream.deadline_ms().is_some_and(|due_ms| due_ms <= now_ms);
        for id in self.numbers(is_due) {
            match self.remove(id) {
                Some(Stream::Content(incoming)) => {
                    self.refuse(desk, id, incoming.head, Refusal::Timeout);
                }
                _ => self.give_up(id, ErrorCode::H3_REQUEST_INCOMPLETE),
            }
        }
    }

    /// Handles bytes of a stream, and its end.
    fn feed(&mut self, desk: &mut Desk<'_, '_>, mut chunk: Chunk<'_>) {
        if self.close_code.is_some() {
            return;
        }
        let id = chunk.stream;
        loop {
            match (self.engine).receive(&mut chunk, self.now_ms, &mut self.wire) {
                Ok(Some(event)) => self.handle(desk, event),
                Ok(None) => break,
                Err(violation) => {
                    self.violated(desk, &violation);
                    break;
                }
            }
        }
        if id.is_bidirectional() && !self.streams.contains_key(&id.0) && self.engine.is_untold(id) {
            let deadline_ms = self.now_ms + self.limits.fields_timeout_ms;
            self.put(id, Stream::Head { deadline_ms });
        }
        self.follow_up(desk);
    }

    /// Handles what else follows.
    pub(super) fn follow_up(&mut self, desk: &mut Desk<'_, '_>) {
        while let Some(event) = self.engine.next_event() {
            self.handle(desk, event);
        }
    }

    fn handle(&mut self, desk: &mut Desk<'_, '_>, event: Event<'_>) {
        match event {
            Event::Request {
                stream,
                head,
                early,
            } => self.request(desk, stream, head, early),
            Event::Content { stream, bytes } => self.content(desk, stream, bytes),
            Event::End { stream } => self.complete(desk, stream),
            Event::Reset { stream, .. } | Event::Stopped { stream, .. } => {
                self.gone(desk, stream, ErrorCode::H3_REQUEST_CANCELLED);
            }
            Event::Resumed { stream, bytes } => {
                self.feed(desk, Chunk::new(stream, &bytes));
            }
            Event::Datagram { stream, bytes } => {
                if matches!(self.streams.get(&stream.0), Some(Stream::Session)) {
                    let session = exchange(stream);
                    (desk.api).session_datagram(desk.cx, desk.peer, self, session, &bytes);
                }
            }
            Event::SessionStream { session, stream } => {
                let place = Stream::OfSession {
                    session: session.0,
                    sent: Sent::default(),
                };
                self.put(stream, place);
                let session = exchange(session);
                let both = stream.is_bidirectional();
                (desk.api).session_stream(desk.cx, desk.peer, self, session, stream.0, both);
            }
            Event::SessionClosed { session, .. } => self.session_closed(desk, session),
            Event::Trailers { fields, .. } => self.engine.recycle(fields),
            Event::Settings(settings) if settings.datagrams && self.lacks_datagrams => {
                let code = ErrorCode::H3_SETTINGS_ERROR;
                let detail = "SETTINGS_H3_DATAGRAM without max_datagram_frame_size";
                log_end(desk.cx.net, self.id, desk.peer, &code.to_string(), detail);
                self.close_code = Some(code);
            }
            // What the client's settings allow the engine knows; the others are for clients, or ask for
            // nothing.
            _ => {}
        }
    }

    fn request(&mut self, desk: &mut Desk<'_, '_>, id: StreamId, head: RequestHead, early: bool) {
        self.connect_deadline_ms = None;
        let limits = self.limits;
        let target_bytes = head.path().map_or(0, str::len);
        if target_bytes > limits.target_bytes {
            return self.refuse(desk, id, head, Refusal::TargetTooLong);
        }
        if head.section_bytes() > limits.fields_bytes {
            return self.refuse(desk, id, head, Refusal::FieldsTooLarge);
        }
        if head.is_connect() {
            return self.ask(desk, id, head, Bytes::new(), early);
        }
        let content_bytes = head.content_length().unwrap_or(0);
        if content_bytes > limits.content_bytes as u64 {
            return self.refuse(desk, id, head, Refusal::ContentTooLarge);
        }
        let incoming = Incoming {
            head,
            content: Vec::new(),
            early,
            deadline_ms: self.now_ms + limits.content_timeout_ms,
        };
        self.put(id, Stream::Content(Box::new(incoming)));
    }

    fn content(&mut self, desk: &mut Desk<'_, '_>, id: StreamId, bytes: &[u8]) {
        let limits = self.limits;
        match self.streams.get_mut(&id.0) {
            Some(Stream::Content(incoming)) => {
                let refusal = if incoming.content.len() + bytes.len() > limits.content_bytes {
                    Refusal::ContentTooLarge
                } else if self.assembling_bytes + bytes.len() > limits.assembling_bytes {
                    Refusal::Busy
                } else {
                    if incoming.content.is_empty() {
                        incoming.content.reserve_exact(bytes.len());
                    }
                    incoming.content.extend_from_slice(bytes);
                    self.assembling_bytes += bytes.len();
                    return;
                };
                if let Some(Stream::Content(incoming)) = self.remove(id) {
                    self.refuse(desk, id, incoming.head, refusal);
                }
            }
            Some(Stream::OfSession { session, .. }) => {
                let session = ExchangeId(*session);
                (desk.api).session_bytes(desk.cx, desk.peer, self, session, id.0, bytes);
            }
            // A tunnel that was not opened, or a request that was answered already.
            _ => {}
        }
    }

    /// All of a request, or of the client's side of a session's stream, has come.
    fn complete(&mut self, desk: &mut Desk<'_, '_>, id: StreamId) {
        match self.streams.get(&id.0) {
            Some(Stream::Content(_)) => {
                if let Some(Stream::Content(incoming)) = self.remove(id) {
                    let content = Bytes::from(incoming.content);
                    self.ask(desk, id, incoming.head, content, incoming.early);
                }
            }
            Some(Stream::OfSession { session, .. }) => {
                let session = ExchangeId(*session);
                if !id.is_bidirectional() {
                    self.remove(id);
                }
                (desk.api).session_stream_ended(desk.cx, desk.peer, self, session, id.0);
            }
            _ => {}
        }
    }

    /// Hands a request to the API.
    fn ask(
        &mut self,
        desk: &mut Desk<'_, '_>,
        id: StreamId,
        head: RequestHead,
        content: Bytes,
        early: bool,
    ) {
        self.put(id, Stream::Asked(Asked::of(&head)));
        let request = Request {
            id: exchange(id),
            head: Head::Http3(head),
            content,
            early: early && !self.is_confirmed,
        };
        desk.api.request(desk.cx, desk.peer, self, request);
    }

    /// Has the API turn a request away that is not complete.
    fn refuse(&mut self, desk: &mut Desk<'_, '_>, id: StreamId, head: RequestHead, why: Refusal) {
        self.put(id, Stream::Asked(Asked::of(&head)));
        let head = Head::Http3(head);
        (desk.api).refuse(desk.cx, desk.peer, self, exchange(id), Some(&head), why);
        // RFC 9114, section 4.1: the response is good without the rest of the request.
        let _ = (self.engine).stop_receiving(id, ErrorCode::H3_NO_ERROR, &mut self.wire);
        self.follow_up(desk);
    }

    /// The client gave a stream up, or it was ended because of what the client did.
    fn gone(&mut self, desk: &mut Desk<'_, '_>, id: StreamId, code: ErrorCode) {
        let was = self.remove(id);
        let _ = self.engine.cancel(id, code, &mut self.wire);
        match was {
            Some(Stream::Asked(_)) => {
                desk.api.gone(desk.cx, desk.peer, self, exchange(id));
            }
            Some(Stream::OfSession { session, .. }) => {
                let session = ExchangeId(session);
                (desk.api).session_stream_gone(desk.cx, desk.peer, self, session, id.0);
            }
            Some(Stream::Session) => self.session_closed(desk, id),
            Some(Stream::Head { .. } | Stream::Content(_)) | None => {}
        }
    }

    /// A session is over, and its streams with it.
    fn session_closed(&mut self, desk: &mut Desk<'_, '_>, id: StreamId) {
        let was = self.remove(id);
        self.forget_streams_of(id);
        match was {
            Some(Stream::Asked(_)) => desk.api.gone(desk.cx, desk.peer, self, exchange(id)),
            Some(_) => (desk.api).session_closed(desk.cx, desk.peer, self, exchange(id)),
            None => {}
        }
    }

    pub(super) fn forget_streams_of(&mut self, id: StreamId) {
        self.streams.retain(
            |_, stream| !matches!(stream, Stream::OfSession { session, .. } if *session == id.0),
        );
    }

    /// Tells the operator what a client did wrong; the client has been told by the engine, or will be.
    fn violated(&mut self, desk: &mut Desk<'_, '_>, violation: &Violation) {
        let code = violation.code.to_string();
        log_end(desk.cx.net, self.id, desk.peer, &code, violation.detail);
        match violation.scope {
            Scope::Connection => self.close_code = Some(violation.code),
            Scope::Stream(id) => self.gone(desk, id, violation.code),
        }
    }
}

impl Asked {
    fn of(head: &RequestHead) -> Self {
        Self {
            is_head: head.method() == "HEAD",
            is_connect: head.is_connect(),
            ..Self::default()
        }
    }
}
