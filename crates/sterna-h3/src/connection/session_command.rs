//! WebTransport sessions and datagrams, as far as this end drives them.

use super::session::State;
use super::stream::{Kind, Sending, SessionStream, Stream};
use super::{Connection, Output};
use crate::frame::{self, FrameType};
use crate::webtransport::{
    DRAFT_02_CHOICE, DRAFT_02_OFFER, MAX_REASON_BYTES, PROTOCOL, UNIDIRECTIONAL_STREAM,
};
use crate::{CommandError, Content, Field, RequestLine, StreamId, capsule, varint};

use super::session::WebTransportSession;

impl Connection {
    /// Client: requests a WebTransport session with a resource of the scheme `https`. The session
    /// is open when an [`Event::Response`](super::Event::Response) says success. Streams and
    /// datagrams may be sent before. They are lost if the server refuses.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`]. [`CommandError::NotNegotiated`] if an end's settings do not
    /// allow sessions. [`CommandError::Limit`] if the server takes no more sessions.
    pub fn connect_session(
        &mut self,
        authority: &str,
        path: &str,
        fields: &[Field<'_>],
        out: &mut dyn Output,
    ) -> Result<StreamId, CommandError> {
        let settings = self.settings();
        if !self.features.webtransport || settings.webtransport_sessions == 0 {
            return Err(CommandError::NotNegotiated);
        }
        let most = settings
            .webtransport_sessions
            .min(u64::from(self.limits.max_sessions));
        if u64::from(self.sessions) >= most {
            return Err(CommandError::Limit);
        }
        let mut all = Vec::with_capacity(fields.len() + 1);
        all.extend_from_slice(fields);
        all.push(Field::new(DRAFT_02_OFFER, b"1"));
        let line = RequestLine::connect(PROTOCOL, authority, path);
        let id = self.request(&line, &all, Content::Streamed, out)?;
        if let Some(Stream {
            kind: Kind::Exchange(exchange),
            ..
        }) = self.streams.get_mut(&id)
        {
            exchange.session = Some(Box::default());
            self.sessions += 1;
        }
        Ok(id)
    }

    /// Server: accepts a WebTransport session that an [`Event::Request`](super::Event::Request) asks
    /// for. Streams that have waited for it follow. It is refused with [`Connection::respond`] and
    /// another status.
    ///
    /// # Errors
    ///
    /// As [`Connection::respond`]; [`CommandError::State`] for a request that does not ask for one.
    pub fn accept_session(
        &mut self,
        id: StreamId,
        fields: &[Field<'_>],
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        let session = match &self.open_stream(id)?.kind {
            Kind::Exchange(exchange) if self.is_server && exchange.sending == Sending::Head => {
                exchange.session.as_deref()
            }
            _ => None,
        };
        let session = session
            .filter(|session| session.untold.is_none() && session.state == State::Requested)
            .ok_or(CommandError::State)?;
        if session.offers_draft_02 {
            let mut all = Vec::with_capacity(fields.len() + 1);
            all.extend_from_slice(fields);
            all.push(Field::new(DRAFT_02_CHOICE, b"draft02"));
            self.send_response(id, 200, &all, Content::Streamed, out)?;
        } else {
            self.send_response(id, 200, fields, Content::Streamed, out)?;
        }
        if let Some(mut stream) = self.streams.remove(&id) {
            if let Kind::Exchange(exchange) = &mut stream.kind
                && let Some(session) = &mut exchange.session
            {
                session.state = State::Open;
                self.admit_waiting(id, session, out);
            }
            self.streams.insert(id, stream);
        }
        Ok(())
    }

    /// Opens a stream of a WebTransport session. Its bytes are not framed.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoStream`] if the session is over. [`CommandError::State`] if it is not a
    /// session, or a server has not accepted it.
    pub fn open_session_stream(
        &mut self,
        session: StreamId,
        bidirectional: bool,
        out: &mut dyn Output,
    ) -> Result<StreamId, CommandError> {
        self.usable_session(session)?;
        let (id, signal) = if bidirectional {
            (self.open_bidirectional(), FrameType::WEBTRANSPORT_STREAM.0)
        } else {
            (self.open_unidirectional(), UNIDIRECTIONAL_STREAM)
        };
        let mut buffer = self.scratch.bytes();
        varint::write(signal, &mut buffer);
        varint::write(session.0, &mut buffer);
        out.write(id, &buffer);
        self.scratch.give_back(buffer);
        let stream = Stream::new(Kind::SessionStream(SessionStream {
            session,
            receives: bidirectional,
            sends: true,
        }));
        self.streams.insert(id, stream);
        if let Some(session) = self.session_mut(session) {
            session.streams.push(id);
        }
        Ok(id)
    }

    /// Sends an HTTP datagram (RFC 9297) of an extended CONNECT, for example of a WebTransport
    /// session. Returns false if the transport does not take one of this size.
    ///
    /// # Errors
    ///
    /// [`CommandError::NotNegotiated`] if the peer takes no datagrams. [`CommandError::NoStream`]
    /// if the request does not exist. [`CommandError::State`] if its method has no datagrams.
    pub fn send_datagram(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        out: &mut dyn Output,
    ) -> Result<bool, CommandError> {
        match &self.open_stream(id)?.kind {
            // RFC 9297, section 2.1: only while this end's side of the stream is open.
            Kind::Exchange(exchange)
                if exchange.is_connect && exchange.sending == Sending::Content =>
            {
                if exchange.session.is_some() {
                    self.usable_session(id)?;
                }
            }
            _ => return Err(CommandError::State),
        }
        if !self.settings().datagrams {
            return Err(CommandError::NotNegotiated);
        }
        let mut buffer = self.scratch.bytes();
        varint::write(id.0 / 4, &mut buffer);
        buffer.extend_from_slice(bytes);
        let is_taken = out.datagram(&buffer);
        self.scratch.give_back(buffer);
        Ok(is_taken)
    }

    /// Asks the peer to end a WebTransport session soon; [`Event::SessionDraining`] tells it there.
    ///
    /// [`Event::SessionDraining`]: super::Event::SessionDraining
    ///
    /// # Errors
    ///
    /// As [`Connection::open_session_stream`].
    pub fn drain_session(
        &mut self,
        session: StreamId,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        self.usable_session(session)?;
        if self.sends_capsules(session) {
            self.write_capsule(session, capsule::DRAIN_WEBTRANSPORT_SESSION, &[&[]], out);
        }
        Ok(())
    }

    /// Closes a WebTransport session: its streams end, and no event for it follows.
    ///
    /// # Errors
    ///
    /// As [`Connection::open_session_stream`]; [`CommandError::Limit`] for a reason above
    /// [`MAX_REASON_BYTES`].
    pub fn close_session(
        &mut self,
        session: StreamId,
        code: u32,
        reason: &str,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        self.usable_session(session)?;
        if reason.len() > MAX_REASON_BYTES {
            return Err(CommandError::Limit);
        }
        if self.sends_capsules(session) {
            let payload = [&code.to_be_bytes()[..], reason.as_bytes()];
            self.write_capsule(session, capsule::CLOSE_WEBTRANSPORT_SESSION, &payload, out);
            out.finish(session);
        }
        // The peer answers with the end of its side. Nothing waits for it, and bytes that still
        // arrive are ignored. STOP_SENDING could overtake the capsule.
        if let Some(mut stream) = self.streams.remove(&session) {
            if let Kind::Exchange(exchange) = &mut stream.kind
                && let Some(ended) = exchange.session.take()
            {
                self.drop_session(session, &ended, out);
            }
            // The session is counted already.
            self.forget(&stream);
        }
        Ok(())
    }

    /// A session that this end may use.
    fn usable_session(&self, id: StreamId) -> Result<(), CommandError> {
        self.open_stream(id)?;
        let is_usable = |session: &WebTransportSession| match session.state {
            State::Requested => !self.is_server,
            State::Open => true,
            State::Closed => false,
        };
        match self.session(id) {
            Some(session) if is_usable(session) => Ok(()),
            _ => Err(CommandError::State),
        }
    }

    /// Whether the peer still reads the request of a session.
    fn sends_capsules(&self, session: StreamId) -> bool {
        matches!(
            self.streams.get(&session).map(|stream| &stream.kind),
            Some(Kind::Exchange(exchange)) if exchange.sending == Sending::Content
        )
    }

    /// Sends a capsule in a DATA frame of its own.
    fn write_capsule(
        &mut self,
        session: StreamId,
        capsule_type: u64,
        payload: &[&[u8]],
        out: &mut dyn Output,
    ) {
        let payload_bytes = payload.iter().map(|part| part.len()).sum::<usize>() as u64;
        let capsule_bytes = capsule::header_bytes(capsule_type, payload_bytes) as u64;
        let mut buffer = self.scratch.bytes();
        frame::write_header(FrameType::DATA, capsule_bytes + payload_bytes, &mut buffer);
        capsule::write_header(capsule_type, payload_bytes, &mut buffer);
        for part in payload {
            buffer.extend_from_slice(part);
        }
        out.write(session, &buffer);
        self.scratch.give_back(buffer);
    }
}
