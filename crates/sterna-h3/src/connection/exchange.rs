//! Streams of requests (RFC 9114, sections 4.1 and 7.1).

use super::receive::Step;
use super::section::write_headers;
use super::stream::{Exchange, Item, Kind, Receiving, Sending, Stream, whole};
use super::{Connection, Event, Fault, Output};
use crate::frame::FrameType;
use crate::message::check_trailers;
use crate::qpack::{self, DecodeError};
use crate::{ErrorCode, Field, Fields, RequestHead, ResponseHead, StreamId};

const UNEXPECTED: ErrorCode = ErrorCode::H3_FRAME_UNEXPECTED;

impl Exchange {
    /// Whether the caller knows of a request.
    pub(super) fn is_told(&self) -> bool {
        self.receiving != Receiving::Head && !self.waits_for_settings()
    }

    /// Whether a request has to wait for the client's settings.
    pub(super) fn waits_for_settings(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(|session| session.untold.is_some())
    }
}

impl Connection {
    /// Handles bytes of a request's stream, and its end.
    pub(super) fn step_exchange<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        input: &mut &'a [u8],
        out: &mut dyn Output,
    ) -> Result<Step<'a>, Fault> {
        loop {
            match stream.item {
                Item::Between => {
                    let alone = self
                        .features
                        .webtransport
                        .then_some(FrameType::WEBTRANSPORT_STREAM);
                    let Some((frame_type, payload_bytes, header_bytes)) =
                        stream.gather.frame(input, alone)
                    else {
                        break;
                    };
                    self.begin_frame(stream, frame_type, payload_bytes, header_bytes)?;
                }
                Item::Content(left) => {
                    if input.is_empty() {
                        break;
                    }
                    let bytes = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let (content, rest) = input.split_at(bytes);
                    let Kind::Exchange(exchange) = &mut stream.kind else {
                        return Ok(Step::Forget);
                    };
                    if exchange.session.is_some() {
                        // It holds capsules; one may end before the available content does.
                        let mut left_over = content;
                        let event = self.session_content(id, stream, &mut left_over, out)?;
                        let taken = content.len() - left_over.len();
                        *input = &input[taken..];
                        stream.item = content_left(left - taken as u64);
                        if let Some(event) = event {
                            return Ok(Step::Tell(event));
                        }
                        continue;
                    }
                    *input = rest;
                    stream.item = content_left(left - bytes as u64);
                    return Ok(Step::Tell(Event::Content {
                        stream: id,
                        bytes: content,
                    }));
                }
                Item::Whole(_, bytes) => {
                    let Some(payload) = whole(&mut stream.partial, bytes, input) else {
                        break;
                    };
                    stream.item = Item::Between;
                    return match self.section_received(id, stream, &payload, out)? {
                        Some(event) => Ok(Step::Tell(event)),
                        None => Ok(Step::Again),
                    };
                }
                Item::Skip(left) => {
                    if !stream.skip(left, input) {
                        break;
                    }
                }
            }
        }
        if stream.fin {
            return self.message_ends(id, stream, out);
        }
        Ok(Step::Idle)
    }

    /// Checks that a frame may come now on a request's stream, and says how to read it.
    pub(super) fn begin_frame(
        &mut self,
        stream: &mut Stream,
        frame_type: FrameType,
        payload_bytes: u64,
        header_bytes: usize,
    ) -> Result<(), Fault> {
        let unexpected = |detail| Err(Fault::Connection(UNEXPECTED, detail));
        let Kind::Exchange(exchange) = &mut stream.kind else {
            return Ok(());
        };
        match (frame_type, exchange.receiving) {
            // Section 4.1: a message is a head, content and trailers, in this order.
            (FrameType::DATA, Receiving::Content) => {
                exchange
                    .content
                    .add(payload_bytes)
                    .map_err(|detail| Fault::Stream(ErrorCode::H3_MESSAGE_ERROR, detail))?;
                stream.item = content_left(payload_bytes);
                if payload_bytes == 0 {
                    self.spend_idle_bytes(header_bytes as u64)?;
                }
                Ok(())
            }
            (FrameType::DATA, Receiving::Head) => unexpected("DATA before HEADERS"),
            (FrameType::DATA, _) => unexpected("DATA after trailers"),
            (FrameType::HEADERS, Receiving::Head | Receiving::Content) => {
                if exchange.receiving == Receiving::Content && exchange.is_connect {
                    // Section 4.4: after the head of CONNECT there is only DATA.
                    return unexpected("trailers of CONNECT");
                }
                if payload_bytes > u64::from(self.limits.read_section_bytes()) {
                    return Err(Fault::TooLarge);
                }
                stream.item = Item::Whole(frame_type, payload_bytes as usize);
                Ok(())
            }
            (FrameType::HEADERS, _) => unexpected("HEADERS after trailers"),
            (FrameType::PUSH_PROMISE, _) if !self.is_server => {
                // Section 7.2.5: no push identifier has been allowed.
                Err(Fault::Connection(
                    ErrorCode::H3_ID_ERROR,
                    "a push that was not allowed",
                ))
            }
            (
                FrameType::CANCEL_PUSH
                | FrameType::SETTINGS
                | FrameType::PUSH_PROMISE
                | FrameType::GOAWAY
                | FrameType::MAX_PUSH_ID
                | FrameType::PRIORITY_UPDATE_REQUEST
                | FrameType::PRIORITY_UPDATE_PUSH,
                _,
            ) => unexpected("a frame that does not belong on a request's stream"),
            (FrameType::WEBTRANSPORT_STREAM, _) if self.features.webtransport => {
                Err(Fault::Connection(
                    ErrorCode::H3_FRAME_ERROR,
                    "a stream of a session that has begun as a request",
                ))
            }
            _ if frame_type.is_reserved() => unexpected("a frame of HTTP/2"),
            // Section 9: unknown types are ignored.
            _ => {
                stream.item = Item::skip(payload_bytes);
                self.spend_idle_bytes(payload_bytes.saturating_add(header_bytes as u64))
            }
        }
    }

    /// A field section is there: a head or trailers.
    fn section_received(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        payload: &[u8],
        out: &mut dyn Output,
    ) -> Result<Option<Event<'static>>, Fault> {
        let mut fields = self.scratch.fields();
        qpack::decode(
            payload,
            self.limits.read_section_bytes() as usize,
            self.limits.max_fields as usize,
            &mut fields,
        )
        .map_err(|error| match error {
            DecodeError::Failed(error) => {
                Fault::Connection(ErrorCode::QPACK_DECOMPRESSION_FAILED, error.0)
            }
            DecodeError::TooLarge => Fault::TooLarge,
        })?;
        let is_head = matches!(
            &stream.kind,
            Kind::Exchange(exchange) if exchange.receiving == Receiving::Head
        );
        match (is_head, self.is_server) {
            (true, true) => self.request_received(id, stream, fields, out),
            (true, false) => self.response_received(id, stream, fields, out).map(Some),
            (false, _) => {
                check_trailers(&fields).map_err(malformed)?;
                if let Kind::Exchange(exchange) = &mut stream.kind {
                    exchange.receiving = Receiving::Trailers;
                }
                Ok(Some(Event::Trailers { stream: id, fields }))
            }
        }
    }

    fn request_received(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        fields: Fields,
        out: &mut dyn Output,
    ) -> Result<Option<Event<'static>>, Fault> {
        let head = RequestHead::new(fields).map_err(malformed)?;
        if head.protocol().is_some() && !self.features.extended_connect() {
            // RFC 9220, section 3: without the setting the pseudo-header field is undefined.
            return Err(malformed("a protocol that was not announced"));
        }
        let early = stream.early;
        let Kind::Exchange(exchange) = &mut stream.kind else {
            return Ok(None);
        };
        exchange.receiving = Receiving::Content;
        exchange.is_connect = head.is_connect();
        exchange.is_head = head.method() == "HEAD";
        if !exchange.is_connect {
            exchange.content.promised_bytes = head.content_length();
        }
        if self.asks_for_session(&head) {
            return self.session_requested(id, stream, head);
        }
        self.refuse_waiting(id, out);
        Ok(Some(Event::Request {
            stream: id,
            head,
            early,
        }))
    }

    fn response_received(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        fields: Fields,
        out: &mut dyn Output,
    ) -> Result<Event<'static>, Fault> {
        let head = ResponseHead::new(fields).map_err(malformed)?;
        if let Kind::Exchange(exchange) = &mut stream.kind {
            if head.is_interim() {
                exchange.interim_responses += 1;
                if exchange.interim_responses > self.limits.max_interim_responses {
                    return Err(Fault::Stream(
                        ErrorCode::H3_EXCESSIVE_LOAD,
                        "too many interim responses",
                    ));
                }
            } else {
                exchange.receiving = Receiving::Content;
                let is_tunnel = exchange.is_connect && head.is_success();
                exchange.content.promised_bytes = match head.status() {
                    // RFC 9110, sections 9.3.2, 15.3.5 and 15.4.5: there is never content.
                    204 | 304 => Some(0),
                    _ if exchange.is_head => Some(0),
                    _ if is_tunnel => None,
                    _ => head.content_length(),
                };
                exchange.is_connect = is_tunnel;
                self.session_answered(id, stream, head.is_success(), out);
            }
        }
        Ok(Event::Response { stream: id, head })
    }

    /// The peer's message ends here.
    fn message_ends<'a>(
        &mut self,
        id: StreamId,
        stream: &mut Stream,
        out: &mut dyn Output,
    ) -> Result<Step<'a>, Fault> {
        if stream.is_in_frame() {
            // Section 7.1.
            return Err(Fault::Connection(
                ErrorCode::H3_FRAME_ERROR,
                "the stream ends within a frame",
            ));
        }
        let is_server = self.is_server;
        let Kind::Exchange(exchange) = &mut stream.kind else {
            return Ok(Step::Forget);
        };
        match exchange.receiving {
            Receiving::Head if is_server => {
                return Err(Fault::Stream(
                    ErrorCode::H3_REQUEST_INCOMPLETE,
                    "a request without a head",
                ));
            }
            Receiving::Head => return Err(malformed("a response without a final head")),
            Receiving::Content | Receiving::Trailers | Receiving::Done => {}
        }
        exchange.content.finish().map_err(malformed)?;
        let was_session = self.session_stream_ends(id, stream, out)?;
        if let Kind::Exchange(exchange) = &mut stream.kind {
            exchange.receiving = Receiving::Done;
        }
        if was_session {
            // That was told, or waits to be.
            return Ok(Step::Idle);
        }
        Ok(Step::Tell(Event::End { stream: id }))
    }

    /// Answers a head that is larger than it may be (RFC 6585, section 5); false where a response
    /// has begun.
    pub(super) fn refuse_too_large(
        &mut self,
        id: StreamId,
        exchange: &mut Exchange,
        out: &mut dyn Output,
    ) -> bool {
        if exchange.receiving != Receiving::Head || exchange.sending != Sending::Head {
            return false;
        }
        let mut bytes = self.scratch.bytes();
        let start = write_headers([Field::new(":status", b"431")], &mut bytes);
        out.write(id, &bytes[start..]);
        out.finish(id);
        self.scratch.give_back(bytes);
        exchange.sending = Sending::Done;
        true
    }
}

fn malformed(detail: &'static str) -> Fault {
    Fault::Stream(ErrorCode::H3_MESSAGE_ERROR, detail)
}

/// The item for content with N bytes to come.
const fn content_left(left: u64) -> Item {
    match left {
        0 => Item::Between,
        _ => Item::Content(left),
    }
}
