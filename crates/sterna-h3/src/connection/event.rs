//! What the engine tells its caller.

use std::borrow::Cow;

use bytes::Bytes;

use crate::webtransport::SessionClose;
use crate::{ErrorCode, Fields, RequestHead, ResponseHead, Settings, StreamId};

/// Something that happened. Bytes are slices of what was handed to the engine, wherever they can be:
/// a caller whose input is [`Bytes`] keeps them with [`Bytes::slice_ref`] and without a copy.
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
        /// What is asked for.
        head: RequestHead,
        /// Whether any of it came as early data that may be a replay. What must not be repeated is
        /// answered with status 425 (RFC 8470), or waits: [`hold`](crate::Connection::hold).
        early: bool,
    },
    /// Client: the head of a response. Interim ones come first; after the final one content,
    /// trailers and [`Event::End`] follow.
    Response {
        /// The request that is answered.
        stream: StreamId,
        /// What is answered.
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
    /// The peer gave up sending: the message ends here, incomplete. To a client this also says that
    /// a request was not processed, with H3_REQUEST_REJECTED. What this end sends on the stream may
    /// go on; where that is of no use, [`Connection::cancel`](crate::Connection::cancel) ends it.
    Reset {
        /// The stream.
        stream: StreamId,
        /// Why; see [`application_code`](crate::webtransport::application_code) for streams of
        /// sessions.
        code: ErrorCode,
    },
    /// The peer reads no further: what is sent on the stream is dropped, and its sending side is
    /// over. What the peer sends itself goes on. Not told of the request of an open session, whose end
    /// comes with what the peer sends.
    Stopped {
        /// The stream.
        stream: StreamId,
        /// Why; H3_NO_ERROR where a server has answered without the rest of a request.
        code: ErrorCode,
    },
    /// What was held back of a stream. Hand it to [`Connection::receive`] at once, also where it is
    /// empty: the end of the stream may have been held back too.
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
        /// What it carries.
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
        /// What the peer said about it; `None` where the session broke.
        close: Option<SessionClose>,
    },
}
