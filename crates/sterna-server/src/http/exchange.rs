//! A request and its response, as what carries them and what answers them see them: HTTP/3 of our own
//! on one side, a library's HTTP/2 and HTTP/1.1 on the other, and one API for all three.

use bytes::Bytes;
use sterna_h3::RequestHead;
use sterna_mapping::FieldSource;

/// Names a request on its connection: the number of its stream on HTTP/3, a running number otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ExchangeId(pub(crate) u64);

/// A request that is complete.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: ExchangeId,
    pub(crate) head: Head,
    /// The content, complete and within `http.maximum_content_bytes`; empty for an extended CONNECT.
    pub(crate) content: Bytes,
    /// Whether any of it came as early data that may be a replay.
    pub(crate) early: bool,
}

/// What is asked for, in the form in which it came.
#[derive(Debug)]
pub(crate) enum Head {
    /// By HTTP/3.
    Http3(RequestHead),
    /// By HTTP/2 or HTTP/1.1.
    Tcp(Box<http::request::Parts>),
}

impl Head {
    /// The method, in the case in which it came.
    pub(crate) fn method(&self) -> &str {
        match self {
            Self::Http3(head) => head.method(),
            Self::Tcp(head) => head.method.as_str(),
        }
    }

    /// Path and query as they came.
    pub(crate) fn target(&self) -> &str {
        match self {
            Self::Http3(head) => head.path().unwrap_or_default(),
            Self::Tcp(head) => (head.uri.path_and_query()).map_or("", |target| target.as_str()),
        }
    }

    /// Host and port that the request is for.
    pub(crate) fn authority(&self) -> Option<&str> {
        let host = || {
            self.field("host")
                .and_then(|host| std::str::from_utf8(host).ok())
        };
        match self {
            Self::Http3(head) => head.authority().or_else(host),
            Self::Tcp(head) => (head.uri.authority())
                .map(http::uri::Authority::as_str)
                .or_else(host),
        }
    }

    /// The protocol of an extended CONNECT (RFC 9220).
    pub(crate) fn protocol(&self) -> Option<&str> {
        match self {
            Self::Http3(head) => head.protocol(),
            Self::Tcp(_) => None,
        }
    }

    /// The value of a field, the first of several. Names are in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&[u8]> {
        match self {
            Self::Http3(head) => head.get(name),
            Self::Tcp(head) => head.headers.get(name).map(http::HeaderValue::as_bytes),
        }
    }

    /// Every value of a field, in order.
    pub(crate) fn each_field<'a>(&'a self, name: &'a str, mut each: impl FnMut(&'a [u8])) {
        match self {
            Self::Http3(head) => head.get_all(name).for_each(each),
            Self::Tcp(head) => {
                (head.headers.get_all(name).iter()).for_each(|value| each(value.as_bytes()));
            }
        }
    }
}

impl FieldSource for Head {
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.each_field(name, each);
    }
}

/// Why a request is turned away by what carries it, before it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Status 400: the message is malformed.
    Malformed(&'static str),
    /// Status 408: the content came too slowly.
    Timeout,
    /// Status 413: the content is larger than it may be.
    ContentTooLarge,
    /// Status 414: the target is longer than it may be.
    TargetTooLong,
    /// Status 431: the fields are larger than they may be.
    FieldsTooLarge,
    /// Status 503: too many contents are under way on the connection, or the broker stops.
    Busy,
}

/// The content of a response.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    /// None: the response is complete.
    Empty,
    /// All of it: the response is complete.
    Whole(&'a [u8]),
    /// All of it, without a copy: the response is complete.
    Shared(Bytes),
    /// What follows with [`Responses::send`].
    Open,
}

/// Where the responses of one connection go. Nothing here fails: what is for an exchange that is gone
/// is dropped.
pub(crate) trait Responses {
    /// Begins a response, or gives all of it. Names of fields are in lower case; `content-length`,
    /// `date` and what frames the response come by themselves. For HEAD the content is left out.
    fn respond(
        &mut self,
        id: ExchangeId,
        status: u16,
        fields: &[(&str, &[u8])],
        content: Content<'_>,
    );

    /// Sends more of an open response.
    fn send(&mut self, id: ExchangeId, bytes: &[u8]);

    /// Sends more of an open response, without a copy.
    fn send_shared(&mut self, id: ExchangeId, bytes: Bytes);

    /// Ends an open response.
    fn finish(&mut self, id: ExchangeId);

    /// Breaks a response off, so that the client sees that it is not complete.
    fn cancel(&mut self, id: ExchangeId);

    /// Whether more of an open response may be sent now. Where not, the API is told when it may.
    fn has_room(&mut self, id: ExchangeId) -> bool;

    /// Bytes of the response that the client's transport has taken so far, so that one can see whether
    /// a client reads at all.
    fn taken_bytes(&mut self, id: ExchangeId) -> u64;

    /// Accepts a WebTransport session.
    fn accept_session(&mut self, id: ExchangeId, fields: &[(&str, &[u8])]);

    /// Opens a unidirectional stream of a session; its number on the connection.
    fn open_session_stream(&mut self, session: ExchangeId) -> Option<u64>;

    /// Sends on a stream of a session.
    fn send_on_session_stream(&mut self, session: ExchangeId, stream: u64, bytes: &[u8]);

    /// Ends this side of a stream of a session.
    fn finish_session_stream(&mut self, session: ExchangeId, stream: u64);

    /// Gives a stream of a session up, in both directions.
    fn reset_session_stream(&mut self, session: ExchangeId, stream: u64, code: u32);

    /// Sends a datagram of a session; false where it is too large or the client takes none.
    fn send_session_datagram(&mut self, session: ExchangeId, bytes: &[u8]) -> bool;

    /// Ends a session.
    fn close_session(&mut self, session: ExchangeId, code: u32, reason: &str);
}
