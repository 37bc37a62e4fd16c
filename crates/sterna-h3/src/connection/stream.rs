//! State of a stream.

use crate::StreamId;
use crate::frame::{FrameType, Gather};
use crate::message::ContentCount;

use super::session::WebTransportSession;

/// One stream that is open.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) kind: Kind,
    /// Header of a frame, or of the stream, as far as it has arrived.
    pub(super) gather: Gather,
    /// Where in a frame the stream is.
    pub(super) item: Item,
    /// Received part of a payload that is handled as a whole.
    pub(super) partial: Vec<u8>,
    pub(super) hold: Hold,
    /// Bytes that are held back.
    pub(super) held: Vec<u8>,
    /// The peer's side ends after the received bytes.
    pub(super) fin: bool,
    /// Some of it was early data.
    pub(super) early: bool,
}

/// Purpose of a stream.
#[derive(Debug, Default)]
pub(super) enum Kind {
    /// The end has not decided yet.
    #[default]
    Undecided,
    Exchange(Exchange),
    Control,
    Encoder,
    Decoder,
    /// A stream of a session, before it names the session.
    SessionPrefix,
    /// A stream of a session that is not accepted yet.
    Waiting(StreamId),
    SessionStream(SessionStream),
}

/// A stream of a WebTransport session.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionStream {
    pub(super) session: StreamId,
    pub(super) receives: bool,
    pub(super) sends: bool,
}

/// A request and its response.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    pub(super) content: ContentCount,
    /// The method is HEAD: the response has no content.
    pub(super) is_head: bool,
    /// The method is CONNECT: content goes on in both directions, and there are no trailers.
    pub(super) is_connect: bool,
    /// It was given up, which was counted.
    pub(super) is_given_up: bool,
    /// Interim responses that have come.
    pub(super) interim_responses: u32,
    pub(super) session: Option<Box<WebTransportSession>>,
}

/// Progress of the peer's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Receiving {
    #[default]
    Head,
    Content,
    /// Trailers have come.
    Trailers,
    Done,
}

/// Progress of this end's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Sending {
    #[default]
    Head,
    Content,
    Done,
}

/// Where in a frame a stream is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Item {
    /// Between frames.
    #[default]
    Between,
    /// Within content, with N bytes to come.
    Content(u64),
    /// Within a payload that is handled as a whole.
    Whole(FrameType, usize),
    /// Within a payload that is ignored.
    Skip(u64),
}

impl Item {
    /// The state N bytes before the end of an ignored part.
    pub(super) const fn skip(left: u64) -> Self {
        match left {
            0 => Self::Between,
            _ => Self::Skip(left),
        }
    }
}

/// Whether input is handled or held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Hold {
    #[default]
    Flowing,
    Held,
    /// It will flow as soon as the held bytes have been handed out.
    Resuming,
}

impl Stream {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// Whether nothing can come or go any more.
    pub(super) fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Exchange(exchange) => {
                exchange.receiving == Receiving::Done && exchange.sending == Sending::Done
            }
            Kind::SessionStream(stream) => !stream.receives && !stream.sends,
            _ => false,
        }
    }

    /// Ignores the rest of an unused payload; true if its end is reached.
    pub(super) fn skip(&mut self, left: u64, input: &mut &[u8]) -> bool {
        let bytes = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        *input = &input[bytes..];
        let left = left - bytes as u64;
        self.item = Item::skip(left);
        left == 0
    }

    /// Whether the stream ends within a frame.
    pub(super) fn is_in_frame(&self) -> bool {
        self.gather.is_partial() || !matches!(self.item, Item::Between)
    }
}

/// Takes a payload of `bytes` off the input, or adds its available part to `partial`. `None` if
/// more is needed. The caller clears the joined payload.
pub(super) fn whole<'a>(
    partial: &mut Vec<u8>,
    bytes: usize,
    input: &mut &'a [u8],
) -> Option<Whole<'a>> {
    if partial.is_empty() && input.len() >= bytes {
        let (payload, rest) = input.split_at(bytes);
        *input = rest;
        return Some(Whole::Borrowed(payload));
    }
    let wanted = (bytes - partial.len()).min(input.len());
    let (part, rest) = input.split_at(wanted);
    partial.extend_from_slice(part);
    *input = rest;
    (partial.len() == bytes).then(|| Whole::Together(std::mem::take(partial)))
}

/// A payload that is there as a whole.
#[derive(Debug)]
pub(super) enum Whole<'a> {
    /// A payload that lay whole in the input.
    Borrowed(&'a [u8]),
    /// A payload that was put together.
    Together(Vec<u8>),
}

impl std::ops::Deref for Whole<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Together(bytes) => bytes,
        }
    }
}
