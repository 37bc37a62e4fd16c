//! The engine's reports to its caller.

use std::borrow::Cow;

use bytes::Bytes;

use crate::webtransport::SessionClose;
use crate::{ErrorCode, Fields, RequestHead, ResponseHead, Settings, StreamId};

/// An event of a connection. Its bytes are slices of the caller's input where possible. A caller
/// whose input is [`Bytes`] keeps them with [`Bytes::slice_ref`], without a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Server: the head of a request. Content, trailers and [`Event::End`] follow; the response may
    /// be sent from now on, and one has to be: [`Connection::respond`] or [`Connection::cancel`].
    ///
    /// [`Connection::respond`]: crate::Connection::respond
    /// [`Connection::cancel`]: crate::Connection::cancel
    Request {
        /// The request.
        stream: StreamId,
        /// Head of the request.
        head: RequestHead,
        /// Whether a part of it came as early data that may be a replay. A request that must not be
        /// repeated is answered with status 425 (RFC 8470), or waits:
        /// [`hold`](crate::Connection::hold).
        early: bool,
    },
    /// Client: the head of a response. Interim ones come first; after the final one content,
    /// trailers and [`Event::End`] follow.
    Response {
        /// The request that is answered.
        stream: StreamId,
        /// Head of the response.
        head: ResponseHead,
    },
    /// Content of a message or of a tunnel, or bytes of a stream of a WebTransport session.
    Content {
        /// Its stream.
        stream: StreamId,
        /// The bytes; never none.
        bytes: &'a [u8],
    },
    /// Trailers of a message. Only [`Event::End`] follows.
    Trailers {
        /// Its stream.
        stream: StreamId,
        /// The fields, none of them a pseudo-header field.
        fields: Fields,
    },
    /// The peer's message, or its side of a stream of a session, is complete.
    End {
        /// Its stream.
        stream: StreamId,
    },
    /// The peer gave up sending: the message ends here, incomplete. To a client,
    /// H3_REQUEST_REJECTED also means that the request was not processed. This end may continue to
    /// send on the stream; [`Connection::cancel`](crate::Connection::cancel) ends that.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why; see [`application_code`](crate::webtransport::application_code) for streams of
        /// sessions.
        code: ErrorCode,
    },
    /// The peer reads no further: bytes sent on the stream are dropped, and its sending side is
    /// over. The peer may continue to send. Not reported for the request of an open session, whose
    /// end comes with the peer's own bytes.
    Stopped {
        /// The stream.
        stream: StreamId,
        /// Why; H3_NO_ERROR where a server has answered without the rest of a request.
        code: ErrorCode,
    },
    /// Bytes of a stream that were held back. Hand them to [`Connection::receive`] at once, even if
    /// they are empty: the end of the stream may have been held back, too.
    ///
    /// [`Connection::receive`]: crate::Connection::receive
    Resumed {
        /// The stream.
        stream: StreamId,
        /// The bytes.
        bytes: Bytes,
    },
    /// The peer's settings have arrived.
    Settings(Settings),
    /// The peer is about to close the connection. Client: requests from this stream on are not
    /// processed, and [`Event::Reset`] follows for each that was sent; no further one can be.
    GoAway {
        /// The first stream that is not processed; to a server the number says nothing.
        id: StreamId,
    },
    /// An HTTP datagram of an extended CONNECT.
    Datagram {
        /// The request, which for WebTransport is the session.
        stream: StreamId,
        /// Content of the datagram.
        bytes: Cow<'a, [u8]>,
    },
    /// The peer has opened a stream of a WebTransport session. Its bytes come as
    /// [`Event::Content`], and this end may send on it if it is bidirectional.
    SessionStream {
        /// The session.
        session: StreamId,
        /// The stream.
        stream: StreamId,
    },
    /// The peer asks to end a WebTransport session soon.
    SessionDraining {
        /// The session.
        session: StreamId,
    },
    /// A WebTransport session is over, and all of its streams with it: no event for one follows.
    SessionClosed {
        /// The session.
        session: StreamId,
        /// The peer's reason; `None` if the session broke.
        close: Option<SessionClose>,
    },
}
