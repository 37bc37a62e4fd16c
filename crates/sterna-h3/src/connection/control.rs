//! The control stream (RFC 9114, section 6.2.1) and those of QPACK.

use super::receive::Step;
use super::stream::{Item, Kind, Receiving, Stream, whole};
use super::{Connection, Event, Fault, Output, Queued};
use crate::frame::FrameType;
use crate::{ErrorCode, Settings, StreamId, qpack, varint};

/// The first integer of a unidirectional stream: its type.
pub(super) const CONTROL_STREAM: u64 = 0x00;
pub(super) const PUSH_STREAM: u64 = 0x01;
pub(super) const ENCODER_STREAM: u64 = 0x02;
pub(super) const DECODER_STREAM: u64 = 0x03;

/// The end of a stream without which the connection cannot go on (RFC 9114, section 6.2.1; RFC 9204,
/// section 4.2).
pub(super) const CLOSED: Fault = Fault::Connection(
    ErrorCode::H3_CLOSED_CRITICAL_STREAM,
    "a critical stream was closed",
);

const UNEXPECTED: ErrorCode = ErrorCode::H3_FRAME_UNEXPECTED;

/// Most bytes of a setting: two integers.
const MAX_SETTING_BYTES: u64 = 2 * varint::MAX_BYTES as u64;

impl Connection {
    /// Handles bytes of the peer's control stream.
    pub(super) fn step_control<'a>(
        &mut self,
        stream: &mut Stream,
        input: &mut &'a [u8],
        out: &mut dyn Output,
    ) -> Result<Step<'a>, Fault> {
        loop {
            match stream.item {
                Item::Between => {
                    let Some((frame_type, payload_bytes, header_bytes)) =
                        stream.gather.frame(input, None)
                    else {
                        break;
                    };
                    stream.item =
                        self.begin_control_frame(frame_type, payload_bytes, header_bytes)?;
                }
                Item::Whole(frame_type, bytes) => {
                    let Some(payload) = whole(&mut stream.partial, bytes, input) else {
                        break;
                    };
                    stream.item = Item::Between;
                    if let Some(event) = self.control_frame(frame_type, &payload, out)? {
                        return Ok(Step::Tell(event));
                    }
                }
                Item::Skip(left) | Item::Content(left) => {
                    if !stream.skip(left, input) {
                        break;
                    }
                }
            }
        }
        if stream.fin {
            Err(CLOSED)
        } else {
            Ok(Step::Idle)
        }
    }

    /// Checks that a frame may come now on the control stream, and says how to read it.
    fn begin_control_frame(
        &mut self,
        frame_type: FrameType,
        payload_bytes: u64,
        header_bytes: usize,
    ) -> Result<Item, Fault> {
        let unexpected = |detail| Err(Fault::Connection(UNEXPECTED, detail));
        // Section 6.2.1: SETTINGS comes first. Section 7.2.4: and only once.
        match (frame_type, self.peer.settings) {
            (FrameType::SETTINGS, None) => {
                let most = u64::from(self.limits.max_settings) * MAX_SETTING_BYTES;
                if payload_bytes > most {
                    return Err(Fault::Connection(
                        ErrorCode::H3_EXCESSIVE_LOAD,
                        "too many settings",
                    ));
                }
                return Ok(Item::Whole(frame_type, payload_bytes as usize));
            }
            (FrameType::SETTINGS, Some(_)) => return unexpected("a second SETTINGS"),
            (_, None) => {
                return Err(Fault::Connection(
                    ErrorCode::H3_MISSING_SETTINGS,
                    "the control stream does not begin with SETTINGS",
                ));
            }
            _ => {}
        }
        if frame_type.is_reserved() {
            return unexpected("a frame of HTTP/2");
        }
        self.spend_idle_bytes(payload_bytes.saturating_add(header_bytes as u64))?;
        match frame_type {
            FrameType::DATA | FrameType::HEADERS | FrameType::PUSH_PROMISE => {
                unexpected("a frame of a request on the control stream")
            }
            FrameType::MAX_PUSH_ID if !self.is_server => unexpected("MAX_PUSH_ID of a server"),
            FrameType::PRIORITY_UPDATE_REQUEST | FrameType::PRIORITY_UPDATE_PUSH
                if !self.is_server =>
            {
                unexpected("PRIORITY_UPDATE of a server")
            }
            FrameType::CANCEL_PUSH | FrameType::GOAWAY | FrameType::MAX_PUSH_ID => {
                // Exactly one integer.
                if payload_bytes == 0 || payload_bytes > varint::MAX_BYTES as u64 {
                    return Err(WRONG_SIZE);
                }
                Ok(Item::Whole(frame_type, payload_bytes as usize))
            }
            // It fits in the budget, so it is not long.
            FrameType::PRIORITY_UPDATE_REQUEST | FrameType::PRIORITY_UPDATE_PUSH => {
                Ok(Item::Whole(frame_type, payload_bytes as usize))
            }
            // Section 9: unknown types are ignored.
            _ => Ok(Item::skip(payload_bytes)),
        }
    }

    /// Handles a frame of the control stream.
    fn control_frame(
        &mut self,
        frame_type: FrameType,
        mut payload: &[u8],
        out: &mut dyn Output,
    ) -> Result<Option<Event<'static>>, Fault> {
        if frame_type == FrameType::SETTINGS {
            return self.settings_received(payload).map(Some);
        }
        let number = varint::take(&mut payload).ok_or(WRONG_SIZE)?;
        let wrong_id = |detail| Err(Fault::Connection(ErrorCode::H3_ID_ERROR, detail));
        match frame_type {
            // RFC 9218, section 7.2: the payload is a hint that may be ignored.
            FrameType::PRIORITY_UPDATE_REQUEST if StreamId(number).is_request() => Ok(None),
            FrameType::PRIORITY_UPDATE_REQUEST => {
                wrong_id("priority of an identifier that is not a request's")
            }
            // No push is ever promised by this end or allowed to the other.
            FrameType::PRIORITY_UPDATE_PUSH => wrong_id("priority of a push that is not there"),
            _ if !payload.is_empty() => Err(WRONG_SIZE),
            FrameType::CANCEL_PUSH => wrong_id("a push that is not there"),
            FrameType::MAX_PUSH_ID => {
                // Section 7.2.7: it must not be reduced.
                if self.peer.max_push_id.is_some_and(|before| number < before) {
                    return wrong_id("MAX_PUSH_ID is reduced");
                }
                self.peer.max_push_id = Some(number);
                Ok(None)
            }
            FrameType::GOAWAY => self.goaway_received(number, out).map(Some),
            _ => Ok(None),
        }
    }

    fn settings_received(&mut self, payload: &[u8]) -> Result<Event<'static>, Fault> {
        let settings = Settings::decode(payload, self.limits.max_settings)
            .map_err(|(code, detail)| Fault::Connection(code, detail))?;
        if let Some(remembered) = self.peer.remembered.take()
            && !settings.keeps(&remembered)
        {
            return Err(Fault::Connection(
                ErrorCode::H3_SETTINGS_ERROR,
                "settings are less than early data relied on",
            ));
        }
        self.peer.settings = Some(settings);
        self.tell_waiting_requests();
        Ok(Event::Settings(settings))
    }

    /// Section 5.2.
    fn goaway_received(
        &mut self,
        number: u64,
        out: &mut dyn Output,
    ) -> Result<Event<'static>, Fault> {
        let id = StreamId(number);
        let wrong_id = |detail| Err(Fault::Connection(ErrorCode::H3_ID_ERROR, detail));
        if !self.is_server && !id.is_request() {
            return wrong_id("GOAWAY with an identifier that is not a request's");
        }
        if self.peer.goaway.is_some_and(|before| number > before) {
            return wrong_id("GOAWAY with a higher number than before");
        }
        self.peer.goaway = Some(number);
        if !self.is_server {
            let requests = self.streams.iter().filter_map(|(stream, state)| {
                // A request that was answered in full was processed, with any number in the GOAWAY.
                let is_refused = *stream >= id
                    && matches!(
                        &state.kind,
                        Kind::Exchange(exchange) if exchange.receiving != Receiving::Done
                    );
                is_refused.then_some(*stream)
            });
            let mut refused: Vec<_> = requests.collect();
            refused.sort_unstable();
            for stream in refused {
                let Some(mut state) = self.streams.remove(&stream) else {
                    continue;
                };
                self.abort(stream, &state, ErrorCode::H3_REQUEST_CANCELLED, out);
                if !self.end_session_of(stream, &mut state, None, out) {
                    let code = ErrorCode::H3_REQUEST_REJECTED;
                    self.queue
                        .push_back(Queued::Event(Event::Reset { stream, code }));
                }
                self.forget(&state);
            }
        }
        Ok(Event::GoAway { id })
    }

    /// Handles bytes of the peer's encoder or decoder.
    pub(super) fn step_qpack<'a>(
        &mut self,
        stream: &mut Stream,
        input: &mut &'a [u8],
    ) -> Result<Step<'a>, Fault> {
        let (read, code): (fn(&mut &[u8]) -> _, _) = match stream.kind {
            Kind::Encoder => (qpack::encoder_stream, ErrorCode::QPACK_ENCODER_STREAM_ERROR),
            _ => (qpack::decoder_stream, ErrorCode::QPACK_DECODER_STREAM_ERROR),
        };
        let arrived_bytes = input.len() as u64;
        // The cut-off part has a few bytes: an integer with more is refused.
        stream.partial.extend_from_slice(input);
        *input = &[];
        let mut rest = &stream.partial[..];
        let read_all = loop {
            match read(&mut rest) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(Fault::Connection(code, error.0)),
            }
        };
        let rest_bytes = rest.len();
        let done_bytes = stream.partial.len() - rest_bytes;
        stream.partial.drain(..done_bytes);
        if rest_bytes == 0 {
            stream.partial = Vec::new();
        }
        read_all?;
        self.spend_idle_bytes(arrived_bytes)?;
        if stream.fin {
            Err(CLOSED)
        } else {
            Ok(Step::Idle)
        }
    }
}

const WRONG_SIZE: Fault = Fault::Connection(
    ErrorCode::H3_FRAME_ERROR,
    "a frame is longer or shorter than its content",
);
