//! Requests, responses and their contents.

use bytes::Bytes;

use super::section::{section_bytes, write_headers};
use super::stream::{Exchange, Kind, Receiving, Sending, Stream};
use super::{Connection, Output};
use crate::frame::{self, FrameType};
use crate::message::check_field;
use crate::{CommandError, Content, ErrorCode, Field, RequestLine, StreamId, varint};

/// Contents up to this size are copied behind the header, so that they leave with one write.
const MAX_COPIED_BYTES: usize = 2048;

impl Connection {
    /// Client: sends a request, in one write where its content is small. The response comes as
    /// [`Event::Response`](super::Event::Response).
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] at a server. [`CommandError::GoingAway`] if the server takes no more
    /// requests. [`CommandError::NotNegotiated`] for an extended CONNECT that the server's settings
    /// do not allow, or not yet. Others for a request that is malformed or larger than the server
    /// takes.
    pub fn request(
        &mut self,
        line: &RequestLine<'_>,
        fields: &[Field<'_>],
        content: Content<'_>,
        out: &mut dyn Output,
    ) -> Result<StreamId, CommandError> {
        if self.is_closed {
            return Err(CommandError::Closed);
        }
        if self.is_server {
            return Err(CommandError::State);
        }
        if self.peer.goaway.is_some() || self.goaway_sent.is_some() {
            return Err(CommandError::GoingAway);
        }
        let has_host = fields.iter().any(|field| field.name == b"host");
        line.check(has_host).map_err(CommandError::Malformed)?;
        if line.protocol.is_some() && !self.settings().extended_connect {
            return Err(CommandError::NotNegotiated);
        }
        let section = || line.fields().chain(fields.iter().copied());
        self.check_section(fields, section_bytes(section()))?;
        let id = self.open_bidirectional();
        let exchange = Exchange {
            sending: Sending::Content,
            is_head: line.method == "HEAD",
            is_connect: line.method == "CONNECT",
            ..Exchange::default()
        };
        let mut stream = Stream::new(Kind::Exchange(exchange));
        self.requests += 1;
        self.write_message(id, section(), content, &mut stream, out);
        self.streams.insert(id, stream);
        Ok(id)
    }

    /// Server: sends the final response of a request, in one write if its content is small. The
    /// request need not be complete. Its later events are still reported, unless
    /// [`Connection::stop_receiving`] ends it.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoStream`] if the request was given up. [`CommandError::State`] if it has a
    /// response. Others for a response that is malformed or larger than the client takes.
    pub fn respond(
        &mut self,
        id: StreamId,
        status: u16,
        fields: &[Field<'_>],
        content: Content<'_>,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        if !(200..=999).contains(&status) {
            return Err(CommandError::Malformed("a final status below 200"));
        }
        let exchange = self.exchange_to_answer(id)?;
        if exchange.session.is_some() && (200..300).contains(&status) {
            // That is for `accept_session`.
            return Err(CommandError::State);
        }
        if !content.is_empty() && (exchange.is_head || matches!(status, 204 | 304)) {
            return Err(CommandError::Malformed(
                "content in a message without content",
            ));
        }
        self.send_response(id, status, fields, content, out)
    }

    /// Writes a final response to any request.
    pub(super) fn send_response(
        &mut self,
        id: StreamId,
        status: u16,
        fields: &[Field<'_>],
        content: Content<'_>,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        let digits = status_digits(status);
        let section =
            || std::iter::once(Field::new(":status", &digits)).chain(fields.iter().copied());
        self.check_section(fields, section_bytes(section()))?;
        let Some(mut stream) = self.streams.remove(&id) else {
            return Err(CommandError::NoStream);
        };
        if let Kind::Exchange(exchange) = &mut stream.kind {
            exchange.sending = Sending::Content;
            if !(200..300).contains(&status)
                && let Some(session) = exchange.session.take()
            {
                self.drop_session(id, &session, out);
            }
        }
        self.write_message(id, section(), content, &mut stream, out);
        self.put_back(id, stream);
        Ok(())
    }

    /// Server: sends an interim response (status 1xx, but not 101).
    ///
    /// # Errors
    ///
    /// As [`Connection::respond`].
    pub fn inform(
        &mut self,
        id: StreamId,
        status: u16,
        fields: &[Field<'_>],
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        if !(100..200).contains(&status) || status == 101 {
            return Err(CommandError::Malformed(
                "an interim status other than 100 and 102 to 199",
            ));
        }
        self.exchange_to_answer(id)?;
        let digits = status_digits(status);
        let section =
            || std::iter::once(Field::new(":status", &digits)).chain(fields.iter().copied());
        self.check_section(fields, section_bytes(section()))?;
        self.write_section(id, section(), out);
        Ok(())
    }

    /// Sends content of a message whose head was sent with [`Content::Streamed`], or bytes of a
    /// stream of a WebTransport session. The transport keeps bytes that it has not sent yet. A
    /// caller with much to send asks the transport for their number.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoStream`] if the stream is over. [`CommandError::State`] if this end's
    /// message has no head yet, is complete, or belongs to a session.
    pub fn send(
        &mut self,
        id: StreamId,
        bytes: &[u8],
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        if self.sends_frames(id)? {
            if bytes.is_empty() {
                return Ok(());
            }
            let mut buffer = self.scratch.bytes();
            frame::write_header(FrameType::DATA, bytes.len() as u64, &mut buffer);
            if bytes.len() <= MAX_COPIED_BYTES {
                buffer.extend_from_slice(bytes);
                out.write(id, &buffer);
            } else {
                out.write(id, &buffer);
                out.write(id, bytes);
            }
            self.scratch.give_back(buffer);
        } else if !bytes.is_empty() {
            out.write(id, bytes);
        }
        Ok(())
    }

    /// Sends content as [`Connection::send`] does, without a copy; for contents from some kilobytes
    /// on.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`].
    pub fn send_shared(
        &mut self,
        id: StreamId,
        bytes: Bytes,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        let is_framed = self.sends_frames(id)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if is_framed {
            let mut buffer = self.scratch.bytes();
            frame::write_header(FrameType::DATA, bytes.len() as u64, &mut buffer);
            out.write(id, &buffer);
            self.scratch.give_back(buffer);
        }
        out.write_shared(id, bytes);
        Ok(())
    }

    /// Whether content on a stream is sent in frames, where it may be sent at all.
    fn sends_frames(&self, id: StreamId) -> Result<bool, CommandError> {
        match &self.open_stream(id)?.kind {
            Kind::Exchange(exchange)
                if exchange.sending == Sending::Content && exchange.session.is_none() =>
            {
                Ok(true)
            }
            Kind::SessionStream(stream) if stream.sends => Ok(false),
            _ => Err(CommandError::State),
        }
    }

    /// Ends a message with trailers.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`], and the error of trailers that are malformed or larger than the
    /// peer takes.
    pub fn send_trailers(
        &mut self,
        id: StreamId,
        fields: &[Field<'_>],
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        match &self.open_stream(id)?.kind {
            Kind::Exchange(exchange)
                if exchange.sending == Sending::Content && !exchange.is_connect => {}
            _ => return Err(CommandError::State),
        }
        self.check_section(fields, section_bytes(fields.iter().copied()))?;
        self.write_section(id, fields.iter().copied(), out);
        self.finish(id, out)
    }

    /// Ends a message, or this end's side of a stream of a WebTransport session.
    ///
    /// # Errors
    ///
    /// As [`Connection::send`].
    pub fn finish(&mut self, id: StreamId, out: &mut dyn Output) -> Result<(), CommandError> {
        self.sends_frames(id)?;
        out.finish(id);
        if let Some(mut stream) = self.streams.remove(&id) {
            match &mut stream.kind {
                Kind::Exchange(exchange) => exchange.sending = Sending::Done,
                Kind::SessionStream(own) => own.sends = false,
                _ => {}
            }
            self.put_back(id, stream);
        }
        Ok(())
    }

    /// Gives a stream up in both directions: no event for it follows. A session ends with its
    /// request. A server refuses an unprocessed request with H3_REQUEST_REJECTED, so that it may be
    /// sent again. It ends others with H3_REQUEST_CANCELLED or H3_INTERNAL_ERROR.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoStream`] if it is over; [`CommandError::State`] for a stream without a
    /// message.
    pub fn cancel(
        &mut self,
        id: StreamId,
        code: ErrorCode,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        match &self.open_stream(id)?.kind {
            Kind::Exchange(_) | Kind::SessionStream(_) => {}
            _ if self.is_untold(id) => {}
            _ => return Err(CommandError::State),
        }
        if let Some(mut stream) = self.streams.remove(&id) {
            self.abort(id, &stream, code, out);
            if let Kind::Exchange(exchange) = &mut stream.kind
                && let Some(session) = exchange.session.take()
            {
                self.drop_session(id, &session, out);
            }
            self.leave_session(id, &stream);
            self.forget(&stream);
        }
        Ok(())
    }

    /// Takes no more of the peer's side of a stream: no event for it follows. A server that has
    /// answered without the rest of a request says H3_NO_ERROR (RFC 9114, section 4.1).
    ///
    /// # Errors
    ///
    /// As [`Connection::cancel`], and [`CommandError::State`] for the request of a session.
    pub fn stop_receiving(
        &mut self,
        id: StreamId,
        code: ErrorCode,
        out: &mut dyn Output,
    ) -> Result<(), CommandError> {
        let is_receiving = match &self.open_stream(id)?.kind {
            Kind::Exchange(exchange) if exchange.session.is_none() => {
                exchange.receiving != Receiving::Done
            }
            Kind::SessionStream(own) => own.receives,
            _ => return Err(CommandError::State),
        };
        if is_receiving && let Some(mut stream) = self.streams.remove(&id) {
            if !stream.fin {
                out.stop(id, code);
            }
            match &mut stream.kind {
                Kind::Exchange(exchange) => exchange.receiving = Receiving::Done,
                Kind::SessionStream(own) => own.receives = false,
                _ => {}
            }
            stream.held = Vec::new();
            stream.partial = Vec::new();
            self.put_back(id, stream);
        }
        Ok(())
    }

    /// Says that the connection is about to end (RFC 9114, section 5.2). A client may send no request
    /// after that.
    ///
    /// With `soon` a server announces it and still takes requests. Call it a round trip or more
    /// before the last call, which is without `soon` and refuses later requests. Open requests are
    /// finished. The connection can be closed when [`Connection::open_requests`] is 0.
    ///
    /// # Errors
    ///
    /// [`CommandError::Closed`].
    pub fn go_away(&mut self, soon: bool, out: &mut dyn Output) -> Result<(), CommandError> {
        /// The last number that a request can have.
        const LAST_REQUEST: u64 = varint::MAX - 3;
        if self.is_closed {
            return Err(CommandError::Closed);
        }
        let first_refused = match (self.is_server, soon) {
            (true, true) => LAST_REQUEST,
            (true, false) => self.seen_bidirectional.next().0,
            // The number is one of a push, of which there are none.
            (false, _) => 0,
        };
        // Section 5.2: it may only fall.
        if self.goaway_sent.is_none_or(|before| first_refused < before) {
            self.goaway_sent = Some(first_refused);
            let mut buffer = self.scratch.bytes();
            let payload_bytes = varint::len(first_refused) as u64;
            frame::write_header(FrameType::GOAWAY, payload_bytes, &mut buffer);
            varint::write(first_refused, &mut buffer);
            out.write(self.control, &buffer);
            self.scratch.give_back(buffer);
        }
        Ok(())
    }

    pub(super) fn open_stream(&self, id: StreamId) -> Result<&Stream, CommandError> {
        if self.is_closed {
            return Err(CommandError::Closed);
        }
        self.streams.get(&id).ok_or(CommandError::NoStream)
    }

    /// A request that this end may answer.
    fn exchange_to_answer(&self, id: StreamId) -> Result<&Exchange, CommandError> {
        match &self.open_stream(id)?.kind {
            Kind::Exchange(exchange)
                if self.is_server && exchange.is_told() && exchange.sending == Sending::Head =>
            {
                Ok(exchange)
            }
            _ => Err(CommandError::State),
        }
    }

    /// Checks fields as the peer will, and the size of their section.
    fn check_section(&self, fields: &[Field<'_>], section_bytes: u64) -> Result<(), CommandError> {
        for field in fields {
            check_field(*field).map_err(CommandError::Malformed)?;
        }
        match self.settings().max_field_section_bytes {
            Some(most) if section_bytes > most => Err(CommandError::FieldSectionTooLarge),
            _ => Ok(()),
        }
    }

    fn write_section<'a>(
        &mut self,
        id: StreamId,
        section: impl Iterator<Item = Field<'a>>,
        out: &mut dyn Output,
    ) {
        let mut buffer = self.scratch.bytes();
        let start = write_headers(section, &mut buffer);
        out.write(id, &buffer[start..]);
        self.scratch.give_back(buffer);
    }

    /// Writes a head and the available content.
    fn write_message<'a>(
        &mut self,
        id: StreamId,
        section: impl Iterator<Item = Field<'a>>,
        content: Content<'_>,
        stream: &mut Stream,
        out: &mut dyn Output,
    ) {
        let mut buffer = self.scratch.bytes();
        let start = write_headers(section, &mut buffer);
        let is_complete = !matches!(content, Content::Streamed);
        let bytes = match &content {
            Content::Whole(bytes) => bytes,
            Content::Shared(bytes) => &bytes[..],
            Content::Empty | Content::Streamed => &[],
        };
        if !bytes.is_empty() {
            frame::write_header(FrameType::DATA, bytes.len() as u64, &mut buffer);
        }
        let is_copied = bytes.len() <= MAX_COPIED_BYTES;
        if is_copied {
            buffer.extend_from_slice(bytes);
        }
        out.write(id, &buffer[start..]);
        self.scratch.give_back(buffer);
        match content {
            Content::Shared(bytes) if !is_copied => out.write_shared(id, bytes),
            Content::Whole(bytes) if !is_copied => out.write(id, bytes),
            _ => {}
        }
        if is_complete {
            out.finish(id);
            if let Kind::Exchange(exchange) = &mut stream.kind {
                exchange.sending = Sending::Done;
            }
        }
    }
}

fn status_digits(status: u16) -> [u8; 3] {
    [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8)
}
