//! A request and its response, as the carriers and the application see them. The carriers are HTTP/3 of our
//! own, and a library's HTTP/2 and HTTP/1.1. One application serves all three.

use bytes::Bytes;
use http::request::Parts;
use sterna_h3::RequestHead;

/// Names a request on its connection: the number of its stream on HTTP/3, a running number otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExchangeId(pub u64);

/// A request that is complete.
#[derive(Debug)]
pub struct Request {
    /// The name of the request and its response.
    pub id: ExchangeId,
    /// Method, target and fields.
    pub head: Head,
    /// The content, complete and within [`Limits::max_content_bytes`](crate::Limits); empty for an
    /// extended CONNECT.
    pub content: Bytes,
    /// Whether any of it came as early data that may be a replay.
    pub early: bool,
}

/// The head of a request, in the form in which it came.
#[derive(Debug)]
pub enum Head {
    /// A request by HTTP/3.
    Http3(RequestHead),
    /// A request by HTTP/2 or HTTP/1.1.
    Tcp(Box<Parts>),
}

impl Head {
    /// The method, in the case in which it came.
    #[must_use]
    pub fn method(&self) -> &str {
        match self {
            Self::Http3(head) => head.method(),
            Self::Tcp(head) => head.method.as_str(),
        }
    }

    /// Path and query as they came.
    #[must_use]
    pub fn target(&self) -> &str {
        match self {
            Self::Http3(head) => head.path().unwrap_or_default(),
            Self::Tcp(head) => (head.uri.path_and_query()).map_or("", |target| target.as_str()),
        }
    }

    /// Host and port that the request is for.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
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
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        match self {
            Self::Http3(head) => head.protocol(),
            Self::Tcp(_) => None,
        }
    }

    /// The value of a field, the first of several. Names are in lower case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        match self {
            Self::Http3(head) => head.get(name),
            Self::Tcp(head) => head.headers.get(name).map(http::HeaderValue::as_bytes),
        }
    }

    /// The name of the first field for whose name this holds, in lower case.
    #[must_use]
    pub fn find_name(&self, is_it: impl Fn(&str) -> bool) -> Option<&str> {
        match self {
            Self::Http3(head) => (head.iter())
                .filter_map(|field| std::str::from_utf8(field.name).ok())
                .find(|name| is_it(name)),
            Self::Tcp(head) => (head.headers.keys())
                .map(http::HeaderName::as_str)
                .find(|name| is_it(name)),
        }
    }

    /// Every value of a field, in order.
    pub fn each_field<'a>(&'a self, name: &'a str, mut each: impl FnMut(&'a [u8])) {
        match self {
            Self::Http3(head) => head.get_all(name).for_each(each),
            Self::Tcp(head) => {
                (head.headers.get_all(name).iter()).for_each(|value| each(value.as_bytes()));
            }
        }
    }
}

/// Fields that a request has at most once, and the fault of one that comes twice. The application looks after its own.
const ONCE: [(&str, &str); 11] = [
    ("host", "a request has one field host"),
    ("authorization", "more than one field authorization"),
    ("content-type", "more than one field content-type"),
    ("content-length", "more than one field content-length"),
    ("transfer-encoding", "more than one field transfer-encoding"),
    ("idempotency-key", "more than one field idempotency-key"),
    ("last-event-id", "more than one field last-event-id"),
    ("origin", "more than one field origin"),
    ("sec-fetch-site", "more than one field sec-fetch-site"),
    (
        "access-control-request-method",
        "more than one field access-control-request-method",
    ),
    ("expect", "more than one field expect"),
];

/// The fault of a field that may come once and comes twice (RFC 9110, section 5.3). One reader would look at
/// the first, another at the last, and they would not see the same. `count` says how often a field is there.
pub(crate) fn repeated_field(count: impl Fn(&'static str) -> usize) -> Option<&'static str> {
    let mut fields = ONCE.iter();
    let found = fields.find(|(name, _)| count(name) > 1);
    found.map(|(_, fault)| *fault)
}

/// Reason for which the carrier turns a request away before it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
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
    /// Status 503: too many contents are under way on the connection, or the server stops.
    Busy,
}

/// The content of a response.
#[derive(Debug)]
pub enum Content<'a> {
    /// None: the response is complete.
    Empty,
    /// All of it: the response is complete.
    Whole(&'a [u8]),
    /// All of it, without a copy: the response is complete.
    Shared(Bytes),
    /// Content that follows with [`Responses::send`].
    Open,
}

/// Takes the responses of one connection. No call fails: a response to an exchange that is gone is
/// dropped.
pub trait Responses {
    /// Begins a response, or gives all of it. Names of fields are in lower case; `content-length`,
    /// `date` and the fields that frame the response come by themselves. For HEAD the content is
    /// left out.
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

    /// Whether more of an open response may be sent now. Where not,
    /// [`Application::writable`] says when it may.
    fn has_room(&mut self, id: ExchangeId) -> bool;

    /// Bytes of the response that the client's transport has taken so far. They show whether a client reads at all.
    fn taken_bytes(&mut self, id: ExchangeId) -> u64;

    /// Accepts a WebTransport session.
    fn accept_session(&mut self, id: ExchangeId, fields: &[(&str, &[u8])]);

    // A carrier without WebTransport accepts no session, so it has none that these are for.

    /// Opens a unidirectional stream of a session; its number on the connection.
    fn open_session_stream(&mut self, _session: ExchangeId) -> Option<u64> {
        None
    }

    /// Sends on a stream of a session.
    fn send_on_session_stream(&mut self, _session: ExchangeId, _stream: u64, _bytes: &[u8]) {}

    /// Ends this side of a stream of a session.
    fn finish_session_stream(&mut self, _session: ExchangeId, _stream: u64) {}

    /// Gives a stream of a session up, in both directions.
    fn reset_session_stream(&mut self, _session: ExchangeId, _stream: u64, _code: u32) {}

    /// Sends a datagram of a session; false where it is too large or the client takes none.
    fn send_session_datagram(&mut self, _session: ExchangeId, _bytes: &[u8]) -> bool {
        false
    }

    /// Ends a session.
    fn close_session(&mut self, _session: ExchangeId, _code: u32, _reason: &str) {}
}

/// The fault of a client that is turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It broke the protocol.
    Violation,
    /// It asked for more than a limit of the server's.
    Limit,
    /// It sends too slowly, or takes nothing.
    Slow,
}

/// Answers the requests of one connection. `out` takes the responses to this and to earlier
/// requests. A response to an exchange that is gone has no effect.
pub trait Application {
    /// Answers a request, now or later.
    fn request(&mut self, out: &mut dyn Responses, request: Request);

    /// Answers a request that its carrier turns away: `head` came, and not all of the content.
    fn refuse(&mut self, out: &mut dyn Responses, id: ExchangeId, head: &Head, refusal: Refusal);

    /// The client has given a request up that is not answered in full.
    fn gone(&mut self, out: &mut dyn Responses, id: ExchangeId);

    /// There is room again in a response for which [`Responses::has_room`] denied it.
    fn writable(&mut self, out: &mut dyn Responses);

    /// The client has ended its side of a connection of HTTP/1.1, and open responses go on. Whether it still reads shows
    /// when something is sent.
    fn half_closed(&mut self, out: &mut dyn Responses) {
        let _ = out;
    }

    /// The server stops: open responses are to end now, and open sessions.
    fn stop(&mut self, out: &mut dyn Responses);

    /// The client broke the protocol or a limit, so that the connection or a request ends, behind this call. The client
    /// is told by the carrier; `code` and `detail` are for the operator.
    fn turned_away(&mut self, fault: Fault, code: &str, detail: &str);

    /// The client has opened a stream of a WebTransport session. `stream` is its number on the
    /// connection. This and the following are only for applications that
    /// [accept](Responses::accept_session) sessions.
    fn session_stream(
        &mut self,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
        is_bidirectional: bool,
    ) {
        let _ = (out, session, stream, is_bidirectional);
    }

    /// Bytes arrived on a stream of a session.
    fn session_bytes(
        &mut self,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
        bytes: &[u8],
    ) {
        let _ = (out, session, stream, bytes);
    }

    /// The client has ended its side of a session's stream.
    fn session_stream_ended(&mut self, out: &mut dyn Responses, session: ExchangeId, stream: u64) {
        let _ = (out, session, stream);
    }

    /// A stream of a session was given up.
    fn session_stream_gone(&mut self, out: &mut dyn Responses, session: ExchangeId, stream: u64) {
        let _ = (out, session, stream);
    }

    /// A datagram of a session arrived.
    fn session_datagram(&mut self, out: &mut dyn Responses, session: ExchangeId, bytes: &[u8]) {
        let _ = (out, session, bytes);
    }

    /// A session is over, and its streams with it.
    fn session_closed(&mut self, out: &mut dyn Responses, session: ExchangeId) {
        let _ = (out, session);
    }
}
