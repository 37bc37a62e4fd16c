//! HTTP/3 (RFC 9114) for servers and clients. Bytes of numbered streams and time go in, events come
//! out; commands go in, bytes come out. There are no sockets, clocks, tasks or locks. With it come
//! QPACK (RFC 9204), extended CONNECT (RFC 9220), HTTP datagrams and capsules (RFC 9297) and
//! WebTransport (draft-ietf-webtrans-http3).
//!
//! It is made for small requests. QPACK uses only the static table. A message with its content is
//! one write, and so mostly one packet. An idle connection holds no buffer.
//!
//! # From bytes to events
//!
//! A [`Chunk`] of a stream goes to [`Connection::receive`], repeatedly until it returns `None`.
//! Each call returns an [`Event`], whose bytes are slices of the chunk. Other signals of the
//! transport go to [`Connection::peer_reset`], [`Connection::peer_stopped`] and
//! [`Connection::datagram_received`]. [`Connection::next_event`] has further events; ask it after
//! each of these calls and after each command.
//!
//! # From commands to bytes
//!
//! Commands write to an [`Output`]:
//! - a client's [`request`](Connection::request), a server's [`respond`](Connection::respond) and
//!   [`inform`](Connection::inform)
//! - for both [`send`](Connection::send), [`send_trailers`](Connection::send_trailers),
//!   [`finish`](Connection::finish), [`cancel`](Connection::cancel),
//!   [`stop_receiving`](Connection::stop_receiving) and [`go_away`](Connection::go_away)
//! - for WebTransport [`connect_session`](Connection::connect_session) and
//!   [`accept_session`](Connection::accept_session),
//!   [`open_session_stream`](Connection::open_session_stream),
//!   [`send_datagram`](Connection::send_datagram) and [`close_session`](Connection::close_session)
//!
//! # Backpressure
//!
//! The engine queues nothing towards the transport, which knows its own queue: a caller that
//! streams asks it. Content is handed on and not kept. [`hold`](Connection::hold) keeps back the
//! input of a stream, within a limit, until [`resume`](Connection::resume). A transport that can
//! leave a stream unread need not deliver it meanwhile.
//!
//! # Duties of the caller
//!
//! - Deadlines: the caller cancels a request that arrives too slowly, and a response that is not read.
//! - Early data (RFC 8470): the caller decides whether to process it; [`Event::Request`] marks it.
//!
//! Priorities (RFC 9218) are checked and ignored. Nothing is pushed, and no push is taken.
//!
//! # A front door in short
//!
//! ```
//! use sterna_h3::{Chunk, Connection, Content, ErrorCode, Event, Features, Field, Limits, Output};
//! use sterna_h3::{RequestLine, StreamId};
//!
//! /// A transport that keeps what it is given.
//! #[derive(Default)]
//! struct Wire(Vec<(StreamId, Vec<u8>, bool)>);
//!
//! impl Output for Wire {
//!     fn write(&mut self, stream: StreamId, bytes: &[u8]) {
//!         self.0.push((stream, bytes.to_vec(), false));
//!     }
//!     fn finish(&mut self, stream: StreamId) {
//!         self.0.push((stream, Vec::new(), true));
//!     }
//!     fn reset(&mut self, _: StreamId, _: ErrorCode) {}
//!     fn stop(&mut self, _: StreamId, _: ErrorCode) {}
//!     fn datagram(&mut self, _: &[u8]) -> bool {
//!         false
//!     }
//! }
//!
//! // A client publishes, all in one flight.
//! let (limits, features) = (Limits::default(), Features::default());
//! let mut up = Wire::default();
//! let mut client = Connection::client(&limits, features, None, &mut up);
//! let line = RequestLine::https("POST", "example.org", "/v1/topics/room1");
//! let fields = [Field::secret("authorization", b"Basic YTpi")];
//! let request = client.request(&line, &fields, Content::Whole(b"21.5"), &mut up)?;
//!
//! // The server answers.
//! let mut down = Wire::default();
//! let mut server = Connection::server(&limits, features, &mut down);
//! let mut published = Vec::new();
//! for (stream, bytes, fin) in &up.0 {
//!     let mut chunk = Chunk { fin: *fin, ..Chunk::new(*stream, bytes) };
//!     while let Some(event) = server.receive(&mut chunk, 0, &mut down)? {
//!         match event {
//!             Event::Request { head, .. } => assert_eq!(head.path(), Some("/v1/topics/room1")),
//!             Event::Content { bytes, .. } => published.extend_from_slice(bytes),
//!             Event::End { stream } => {
//!                 server.respond(stream, 204, &[], Content::Empty, &mut down)?;
//!             }
//!             _ => {}
//!         }
//!     }
//!     while let Some(_event) = server.next_event() {}
//! }
//! assert_eq!(published, b"21.5");
//!
//! // The client reads the answer.
//! let mut status = 0;
//! for (stream, bytes, fin) in &down.0 {
//!     let mut chunk = Chunk { fin: *fin, ..Chunk::new(*stream, bytes) };
//!     while let Some(event) = client.receive(&mut chunk, 0, &mut up)? {
//!         if let Event::Response { stream, head } = event {
//!             assert_eq!(stream, request);
//!             status = head.status();
//!         }
//!     }
//! }
//! assert_eq!(status, 204);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading the citations
//!
//! "Section 7.2.4" without the number of an RFC is a section of RFC 9114. In the modules of QPACK
//! it is one of RFC 9204, in those of WebTransport one of draft-ietf-webtrans-http3, versions 2 and
//! 7.

pub mod capsule;
pub mod connection;
mod error;
mod field;
pub mod frame;
mod limits;
mod message;
pub mod qpack;
pub mod settings;
mod stream_id;
pub mod varint;
pub mod webtransport;

pub use connection::{Chunk, Connection, Event, Features, Output, TOO_MANY_RESETS};
pub use error::{CommandError, ErrorCode, Scope, Violation};
pub use field::{Field, Fields};
pub use limits::Limits;
pub use message::{Content, RequestHead, RequestLine, ResponseHead};
pub use settings::Settings;
pub use stream_id::StreamId;
