//! Makes requests of arriving events.

use bytes::Bytes;
use sterna_h3::{
    Chunk, ErrorCode, Event, RequestHead, Scope, StreamId, TOO_MANY_RESETS, Violation,
};
use sterna_net::is_authority;

use super::{Asked, Carrier, Incoming, Sent, Stream, exchange};
use crate::exchange::{Application, ExchangeId, Fault, Head, Refusal, Request, repeated_field};

impl Carrier {
    /// Bytes arrived.
    pub(crate) fn received(&mut self, app: &mut dyn Application, chunk: &sterna_net::Chunk<'_>) {
        let chunk = Chunk {
            early: chunk.early && !chunk.confirmed,
            ..Chunk::new(StreamId(chunk.stream.0), chunk.bytes)
        };
        self.feed(app, chunk);
    }

    /// The client has ended its side of a stream.
    pub(crate) fn finished(&mut self, app: &mut dyn Application, stream: sterna_net::StreamId) {
        self.feed(app, Chunk::fin(StreamId(stream.0)));
    }

    /// A datagram arrived.
    pub(crate) fn datagram(&mut self, app: &mut dyn Application, bytes: &[u8]) {
        match (self.engine).datagram_received(bytes, self.now_ms, &mut self.wire) {
            Ok(Some(event)) => self.handle(app, event),
            Ok(None) => {}
            Err(violation) => self.violated(app, &violation),
        }
        self.follow_up(app);
    }

    /// The client gave up what it sends on a stream.
    pub(crate) fn peer_reset(
        &mut self,
        app: &mut dyn Application,
        stream: sterna_net::StreamId,
        code: u64,
    ) {
        let id = StreamId(stream.0);
        let told = (self.engine).peer_reset(id, ErrorCode(code), self.now_ms, &mut self.wire);
        self.ended(app, id, told);
    }

    /// The client reads no more of a stream.
    pub(crate) fn peer_stopped(
        &mut self,
        app: &mut dyn Application,
        stream: sterna_net::StreamId,
        code: u64,
    ) {
        let id = StreamId(stream.0);
        let told = (self.engine).peer_stopped(id, ErrorCode(code), self.now_ms, &mut self.wire);
        self.ended(app, id, told);
    }

    fn ended(
        &mut self,
        app: &mut dyn Application,
        id: StreamId,
        told: Result<Option<Event<'static>>, Violation>,
    ) {
        match told {
            Ok(Some(event)) => self.handle(app, event),
            // A request whose head is not complete is forgotten without a word.
            Ok(None) => {
                if matches!(self.streams.get(&id.0), Some(Stream::Head { .. })) {
                    self.remove(id);
                }
            }
            Err(violation) => self.violated(app, &violation),
        }
        self.follow_up(app);
    }

    /// Ends requests that come too slowly.
    pub(crate) fn timeout(&mut self, app: &mut dyn Application) {
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
                    self.refuse(app, id, incoming.head, Refusal::Timeout);
                }
                _ => self.give_up(id, ErrorCode::H3_REQUEST_INCOMPLETE),
            }
        }
    }

    /// Handles bytes of a stream, and its end.
    fn feed(&mut self, app: &mut dyn Application, mut chunk: Chunk<'_>) {
        if self.close_code.is_some() {
            return;
        }
        let id = chunk.stream;
        loop {
            match (self.engine).receive(&mut chunk, self.now_ms, &mut self.wire) {
                Ok(Some(event)) => self.handle(app, event),
                Ok(None) => break,
                Err(violation) => {
                    self.violated(app, &violation);
                    break;
                }
            }
        }
        if id.is_bidirectional() && !self.streams.contains_key(&id.0) && self.engine.is_untold(id) {
            let deadline_ms = self.now_ms + self.limits.fields_timeout_ms;
            self.put(id, Stream::Head { deadline_ms });
        }
        self.follow_up(app);
    }

    /// Handles what else follows.
    pub(super) fn follow_up(&mut self, app: &mut dyn Application) {
        loop {
            while let Some(event) = self.engine.next_event() {
                self.handle(app, event);
            }
            // The transport has nothing to say about a stream that the session does not wait for any more.
            if !std::mem::take(&mut self.frees_room) {
                return;
            }
            self.writable(app);
        }
    }

    fn handle(&mut self, app: &mut dyn Application, event: Event<'_>) {
        match event {
            Event::Request {
                stream,
                head,
                early,
            } => self.request(app, stream, head, early),
            Event::Content { stream, bytes } => self.content(app, stream, bytes),
            Event::End { stream } => self.complete(app, stream),
            Event::Reset { stream, .. } | Event::Stopped { stream, .. } => {
                self.gone(app, stream, ErrorCode::H3_REQUEST_CANCELLED);
            }
            Event::Resumed { stream, bytes } => {
                self.feed(app, Chunk::new(stream, &bytes));
            }
            Event::Datagram { stream, bytes } => {
                if matches!(self.streams.get(&stream.0), Some(Stream::Session)) {
                    let session = exchange(stream);
                    app.session_datagram(self, session, &bytes);
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
                app.session_stream(self, session, stream.0, both);
            }
            Event::SessionClosed { session, .. } => self.session_closed(app, session),
            Event::Trailers { fields, .. } => self.engine.recycle(fields),
            Event::Settings(settings) if settings.datagrams && self.lacks_datagrams => {
                let code = ErrorCode::H3_SETTINGS_ERROR;
                let detail = "SETTINGS_H3_DATAGRAM without max_datagram_frame_size";
                app.turned_away(Fault::Violation, &code.to_string(), detail);
                self.close_code = Some(code);
            }
            // The engine itself keeps to the client's settings. The other events are for clients, or ask for nothing.
            _ => {}
        }
    }

    fn request(&mut self, app: &mut dyn Application, id: StreamId, head: RequestHead, early: bool) {
        self.connect_deadline_ms = None;
        let target_bytes = head.path().map_or(0, str::len);
        if target_bytes > self.limits.max_target_bytes as usize {
            return self.refuse(app, id, head, Refusal::TargetTooLong);
        }
        if head.section_bytes() > self.limits.max_fields_bytes as usize {
            return self.refuse(app, id, head, Refusal::FieldsTooLarge);
        }
        if let Some(fault) = fault_of(&head) {
            return self.refuse(app, id, head, Refusal::Malformed(fault));
        }
        if head.is_connect() {
            return self.ask(app, id, head, Bytes::new(), early);
        }
        let content_bytes = head.content_length().unwrap_or(0);
        if content_bytes > u64::from(self.limits.max_content_bytes) {
            return self.refuse(app, id, head, Refusal::ContentTooLarge);
        }
        let incoming = Incoming {
            head,
            content: Vec::new(),
            early,
            deadline_ms: self.now_ms + self.limits.content_timeout_ms,
        };
        self.put(id, Stream::Content(Box::new(incoming)));
    }

    fn content(&mut self, app: &mut dyn Application, id: StreamId, bytes: &[u8]) {
        match self.streams.get_mut(&id.0) {
            Some(Stream::Content(incoming)) => {
                let refusal = if incoming.content.len() + bytes.len()
                    > self.limits.max_content_bytes as usize
                {
                    Refusal::ContentTooLarge
                } else if self.assembling_bytes + bytes.len()
                    > self.limits.max_assembling_bytes as usize
                {
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
                    self.refuse(app, id, incoming.head, refusal);
                }
            }
            Some(Stream::OfSession { session, .. }) => {
                let session = ExchangeId(*session);
                app.session_bytes(self, session, id.0, bytes);
            }
            // A tunnel that was not opened, or a request that was answered already.
            _ => {}
        }
    }

    /// All of a request, or of the client's side of a session's stream, has come.
    fn complete(&mut self, app: &mut dyn Application, id: StreamId) {
        match self.streams.get(&id.0) {
            Some(Stream::Content(_)) => {
                if let Some(Stream::Content(incoming)) = self.remove(id) {
                    let content = Bytes::from(incoming.content);
                    self.ask(app, id, incoming.head, content, incoming.early);
                }
            }
            Some(Stream::OfSession { session, .. }) => {
                let session = ExchangeId(*session);
                if !id.is_bidirectional() {
                    self.remove(id);
                }
                app.session_stream_ended(self, session, id.0);
            }
            _ => {}
        }
    }

    /// Hands a request to the application.
    fn ask(
        &mut self,
        app: &mut dyn Application,
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
        app.request(self, request);
    }

    /// Has the application turn a request away that is not complete.
    fn refuse(&mut self, app: &mut dyn Application, id: StreamId, head: RequestHead, why: Refusal) {
        self.put(id, Stream::Asked(Asked::of(&head)));
        let head = Head::Http3(head);
        app.refuse(self, exchange(id), &head, why);
        // RFC 9114, section 4.1: the response is good without the rest of the request.
        let _ = (self.engine).stop_receiving(id, ErrorCode::H3_NO_ERROR, &mut self.wire);
        self.follow_up(app);
    }

    /// The client gave a stream up, or it was ended because of what the client did.
    fn gone(&mut self, app: &mut dyn Application, id: StreamId, code: ErrorCode) {
        let was = self.remove(id);
        let _ = self.engine.cancel(id, code, &mut self.wire);
        match was {
            Some(Stream::Asked(_)) => {
                app.gone(self, exchange(id));
            }
            Some(Stream::OfSession { session, .. }) => {
                let session = ExchangeId(session);
                app.session_stream_gone(self, session, id.0);
            }
            Some(Stream::Session) => self.session_closed(app, id),
            Some(Stream::Head { .. } | Stream::Content(_)) | None => {}
        }
    }

    /// A session is over, and its streams with it.
    fn session_closed(&mut self, app: &mut dyn Application, id: StreamId) {
        let was = self.remove(id);
        self.forget_streams_of(id);
        match was {
            Some(Stream::Asked(_)) => app.gone(self, exchange(id)),
            Some(_) => app.session_closed(self, exchange(id)),
            None => {}
        }
    }

    pub(super) fn forget_streams_of(&mut self, id: StreamId) {
        self.streams.retain(
            |_, stream| !matches!(stream, Stream::OfSession { session, .. } if *session == id.0),
        );
    }

    /// Tells the operator what a client did wrong; the client has been told by the engine, or will be.
    fn violated(&mut self, app: &mut dyn Application, violation: &Violation) {
        let fault = match violation.code {
            ErrorCode::H3_EXCESSIVE_LOAD => Fault::Limit,
            _ => Fault::Violation,
        };
        let detail = match violation.detail {
            TOO_MANY_RESETS => crate::limits::TOO_MANY_RESETS,
            other => other,
        };
        app.turned_away(fault, &violation.code.to_string(), detail);
        match violation.scope {
            Scope::Connection => self.close_code = Some(violation.code),
            Scope::Stream(id) => self.gone(app, id, violation.code),
        }
    }
}

/// The fault of a request that the engine takes.
fn fault_of(head: &RequestHead) -> Option<&'static str> {
    if head
        .authority()
        .is_some_and(|authority| !is_authority(authority))
    {
        return Some("the authority is no name of a host");
    }
    repeated_field(|name| head.get_all(name).count())
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
