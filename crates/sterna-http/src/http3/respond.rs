//! Responses, as the application gives them.

use bytes::Bytes;
use sterna_h3::{CommandError, ErrorCode, Field, StreamId};

use super::{Asked, Carrier, Sent, Stream};
use crate::exchange::{Content, ExchangeId, Responses};

/// Fields of a response that need no allocation.
const FIELDS: usize = 16;

impl Responses for Carrier {
    fn respond(
        &mut self,
        id: ExchangeId,
        status: u16,
        fields: &[(&str, &[u8])],
        content: Content<'_>,
    ) {
        let Some(Stream::Asked(asked)) = self.streams.get(&id.0) else {
            return;
        };
        let asked = *asked;
        if asked.is_open {
            return;
        }
        let id = StreamId(id.0);
        let (is_open, bytes) = match &content {
            Content::Empty => (false, 0),
            Content::Whole(bytes) => (false, bytes.len()),
            Content::Shared(bytes) => (false, bytes.len()),
            Content::Open => (true, 0),
        };
        // RFC 9110, section 8.6: none with these, and none while nobody knows. With HEAD it may be
        // left out, and some clients hold it against the content that does not come.
        let has_length = !is_open && !asked.is_head && !matches!(status, 100..=199 | 204 | 304);
        let has_content = !asked.is_head && !matches!(status, 204 | 304);
        let is_open = is_open && has_content;
        let content = match content {
            _ if !has_content => sterna_h3::Content::Empty,
            Content::Empty => sterna_h3::Content::Empty,
            Content::Whole(bytes) => sterna_h3::Content::Whole(bytes),
            Content::Shared(bytes) => sterna_h3::Content::Shared(bytes),
            Content::Open => sterna_h3::Content::Streamed,
        };
        let date = self.date;
        let mut digits = [0; 20];
        let length = decimal(bytes, &mut digits);
        let own = [
            Some(Field::new("date", &date)),
            has_length.then(|| Field::new("content-length", length)),
        ];
        let own = own.into_iter().flatten();
        let sent = with_fields(own, fields, |all| {
            (self.engine).respond(id, status, all, content, &mut self.wire)
        });
        match sent {
            Ok(()) if is_open => {
                let place = Stream::Asked(Asked {
                    is_open: true,
                    ..asked
                });
                self.put(id, place);
            }
            Ok(()) => {
                self.remove(id);
                if asked.is_connect {
                    let _ =
                        (self.engine).stop_receiving(id, ErrorCode::H3_NO_ERROR, &mut self.wire);
                }
            }
            Err(error) => self.failed(id, error),
        }
    }

    fn send(&mut self, id: ExchangeId, bytes: &[u8]) {
        let emptied = self.emptied;
        if let Some(sent) = self.open(id) {
            sent.add(bytes.len(), emptied);
            let id = StreamId(id.0);
            if let Err(error) = self.engine.send(id, bytes, &mut self.wire) {
                self.failed(id, error);
            }
        }
    }

    fn send_shared(&mut self, id: ExchangeId, bytes: Bytes) {
        let emptied = self.emptied;
        if let Some(sent) = self.open(id) {
            sent.add(bytes.len(), emptied);
            let id = StreamId(id.0);
            if let Err(error) = self.engine.send_shared(id, bytes, &mut self.wire) {
                self.failed(id, error);
            }
        }
    }

    fn finish(&mut self, id: ExchangeId) {
        if self.open(id).is_some() {
            let id = StreamId(id.0);
            self.remove(id);
            let _ = self.engine.finish(id, &mut self.wire);
        }
    }

    fn cancel(&mut self, id: ExchangeId) {
        if matches!(self.streams.get(&id.0), Some(Stream::Asked(_))) {
            self.give_up(StreamId(id.0), ErrorCode::H3_INTERNAL_ERROR);
        }
    }

    fn has_room(&mut self, id: ExchangeId) -> bool {
        let is_full = |sent: &Sent| self.fills_response(sent);
        let full_stream = match self.streams.get(&id.0) {
            Some(Stream::Asked(Asked { sent, .. }) | Stream::OfSession { sent, .. }) => {
                is_full(sent).then_some(id.0)
            }
            Some(Stream::Session) => {
                let mut streams = self.streams.iter();
                let full = streams.find(|(_, stream)| match stream {
                    Stream::OfSession { session, sent } => *session == id.0 && is_full(sent),
                    _ => false,
                });
                full.map(|(number, _)| *number)
            }
            _ => None,
        };
        if let Some(number) = full_stream {
            self.wire.watch(StreamId(number));
        }
        let written = self.unsent_bytes + self.wire.written_bytes();
        let has_room = full_stream.is_none() && written < self.limits.high_watermark_bytes;
        self.is_full |= !has_room;
        has_room
    }

    fn taken_bytes(&mut self, id: ExchangeId) -> u64 {
        let emptied = self.emptied;
        match self.streams.get(&id.0) {
            Some(Stream::Asked(Asked { sent, .. }) | Stream::OfSession { sent, .. }) => {
                sent.taken_bytes(emptied)
            }
            Some(Stream::Session) => {
                // Deliveries leave on the server's unidirectional stream; answers on other streams do not count.
                let streams = (self.streams.iter())
                    .filter(|(number, _)| !StreamId(**number).is_bidirectional());
                let of_session = streams.filter_map(|(_, stream)| match stream {
                    Stream::OfSession { session, sent } if *session == id.0 => Some(sent),
                    _ => None,
                });
                of_session.map(|sent| sent.taken_bytes(emptied)).sum()
            }
            _ => 0,
        }
    }

    fn accept_session(&mut self, id: ExchangeId, fields: &[(&str, &[u8])]) {
        if !matches!(self.streams.get(&id.0), Some(Stream::Asked(_))) {
            return;
        }
        let id = StreamId(id.0);
        let date = self.date;
        let own = std::iter::once(Field::new("date", &date));
        let accepted = with_fields(own, fields, |all| {
            self.engine.accept_session(id, all, &mut self.wire)
        });
        match accepted {
            Ok(()) => self.put(id, Stream::Session),
            Err(error) => self.failed(id, error),
        }
    }

    fn open_session_stream(&mut self, session: ExchangeId) -> Option<u64> {
        let id = StreamId(session.0);
        let opened = (self.engine).open_session_stream(id, false, &mut self.wire);
        let stream = opened.ok()?;
        let place = Stream::OfSession {
            session: session.0,
            sent: Sent::default(),
        };
        self.put(stream, place);
        Some(stream.0)
    }

    fn send_on_session_stream(&mut self, session: ExchangeId, stream: u64, bytes: &[u8]) {
        let emptied = self.emptied;
        if let Some(sent) = self.session_stream(session, stream) {
            sent.add(bytes.len(), emptied);
            // A client that reads no more of it is told of by the engine.
            let _ = (self.engine).send(StreamId(stream), bytes, &mut self.wire);
        }
    }

    fn finish_session_stream(&mut self, session: ExchangeId, stream: u64) {
        if self.session_stream(session, stream).is_some() {
            let id = StreamId(stream);
            let _ = self.engine.finish(id, &mut self.wire);
            // The client has ended its side before.
            self.remove(id);
        }
    }

    fn reset_session_stream(&mut self, session: ExchangeId, stream: u64, code: u32) {
        if self.session_stream(session, stream).is_some() {
            let code = sterna_h3::webtransport::error_code(code);
            self.give_up(StreamId(stream), code);
        }
    }

    fn send_session_datagram(&mut self, session: ExchangeId, bytes: &[u8]) -> bool {
        let id = StreamId(session.0);
        let sent = (self.engine).send_datagram(id, bytes, &mut self.wire);
        sent.unwrap_or(false)
    }

    fn close_session(&mut self, session: ExchangeId, code: u32, reason: &str) {
        if matches!(self.streams.get(&session.0), Some(Stream::Session)) {
            let id = StreamId(session.0);
            self.remove(id);
            self.forget_streams_of(id);
            let closed = (self.engine).close_session(id, code, reason, &mut self.wire);
            if closed == Err(CommandError::Limit) {
                let _ = (self.engine).close_session(id, code, "", &mut self.wire);
            }
        }
    }
}

impl Carrier {
    /// The sent bytes of a response that is open.
    fn open(&mut self, id: ExchangeId) -> Option<&mut Sent> {
        match self.streams.get_mut(&id.0) {
            Some(Stream::Asked(asked)) if asked.is_open => Some(&mut asked.sent),
            _ => None,
        }
    }

    /// The sent bytes of a stream of a session.
    fn session_stream(&mut self, of: ExchangeId, stream: u64) -> Option<&mut Sent> {
        match self.streams.get_mut(&stream) {
            Some(Stream::OfSession { session, sent }) if *session == of.0 => Some(sent),
            _ => None,
        }
    }

    /// A response cannot be sent. The client sees that there will be none.
    fn failed(&mut self, id: StreamId, error: CommandError) {
        tracing::debug!(connection = ?self.id, stream = id.0, %error, "no response");
        self.give_up(id, ErrorCode::H3_INTERNAL_ERROR);
    }
}

/// Calls `with` with all fields of a response.
fn with_fields<'a, R>(
    own: impl Iterator<Item = Field<'a>>,
    fields: &[(&'a str, &'a [u8])],
    with: impl FnOnce(&[Field<'a>]) -> R,
) -> R {
    let others = fields.iter().map(|(name, value)| Field::new(name, value));
    let mut list = [Field::new("", b""); FIELDS];
    if fields.len() + 2 > FIELDS {
        return with(&own.chain(others).collect::<Vec<_>>());
    }
    let mut count = 0;
    for (place, field) in list.iter_mut().zip(own.chain(others)) {
        *place = field;
        count += 1;
    }
    with(&list[..count])
}

/// A number in decimal.
fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 || at == 0 {
            return &digits[at..];
        }
    }
}
