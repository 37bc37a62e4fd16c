//! Types and frames of AMQP 1.0 (OASIS, ISO/IEC 19464), and the state of connections, sessions and
//! links. Bytes and time go in, events come out; commands go in, bytes come out. There are no
//! sockets, clocks, tasks or locks.
//!
//! # From bytes to events
//!
//! 1. One [`Framer`] per lane cuts bytes into protocol headers and [`Frame`]s. A [`Lane`] is a byte
//!    stream: the one of TCP, or each stream of a QUIC connection. A frame that lies whole in the
//!    input is borrowed.
//! 2. A [`Connection`] takes them with [`Connection::receive`], for a server as for a client. It
//!    decodes the frame's body without allocating, and checks that it may come now. It keeps the
//!    state of the connection, its sessions and links. It answers frames that need no decision, and
//!    yields an [`Event`] for the others. [`Connection::next_event`] has further events.
//! 3. While the caller decides about credentials or an open, [`Connection::accepts_input`] returns
//!    false. The peer's later bytes wait, so everything may be pipelined.
//!
//! # From commands to bytes
//!
//! Commands are methods of [`Connection`]; they write whole frames into the buffer of a lane
//! ([`LaneWriter`]):
//! - [`open`](Connection::open) and [`close`](Connection::close), [`begin`](Connection::begin) and
//!   [`end`](Connection::end)
//! - [`attach`](Connection::attach), [`accept_attach`](Connection::accept_attach),
//!   [`refuse_attach`](Connection::refuse_attach) and [`detach`](Connection::detach)
//! - for senders [`transfer`](Connection::transfer) and [`settle`](Connection::settle), for
//!   receivers [`set_credit`](Connection::set_credit) and [`dispose`](Connection::dispose)
//!
//! # Lanes
//!
//! Protocol headers, SASL, open and close use the control lane, each session the lane of its begin.
//! A peer that uses one lane for everything is served, too. Frames of a session on another lane
//! than its own are taken: the channel names their session.
//!
//! # State that outlives a connection
//!
//! [`Event::Detached`] returns the unsettled deliveries of a link. The link can be attached again
//! with them ([`link::AttachOptions::unsettled`]), on any connection. Both ends then compare their
//! deliveries, and [`Event::Recover`] has the action for each. No accepted message is lost. With
//! receiver settle mode second none is delivered twice.
//!
//! # Links that are stolen
//!
//! A link that is attached again in the same connection is stolen from its session by the engine.
//! Across connections the caller knows: it detaches the older with
//! [`Condition::STOLEN`] (part 2, section 2.6.1).
//!
//! # A front door in short
//!
//! ```
//! use bytes::BytesMut;
//! use sterna_amqp::connection::{ClientOptions, ServerOptions};
//! use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
//! use sterna_amqp::messaging::{DeliveryState, MessageView, MessageWriter, Target, TargetArchetype};
//! use sterna_amqp::performatives::{Open, Role};
//! use sterna_amqp::{Connection, Event, Framer, Lane, Limits};
//!
//! // A client that sends one message, all in one flight.
//! let mut bytes = BytesMut::new(); // one per lane: implement `LaneWriter` for several
//! let options = ClientOptions { open: Open::new("device"), mechanism: None, pipelined: true };
//! let mut client = Connection::client(options, &Limits::default(), 0, &mut bytes);
//! let session = client.begin(Lane::CONTROL, &mut bytes)?;
//! let to = TargetArchetype::Target(Target::new("sensors/room1"));
//! let to = AttachOptions { target: Some(to), ..AttachOptions::default() };
//! let link = client.attach(session, "readings", Role::Sender, &to, &mut bytes)?;
//! client.assume_credit(link, 1)?; // known from before
//! let mut message = BytesMut::new();
//! MessageWriter::new(&mut message).data(b"21.5");
//! client.transfer(link, &OutgoingTransfer::new(b"1", 1), &[&message], false, &mut bytes)?;
//!
//! // The server.
//! let options = ServerOptions {
//!     container_id: "broker".to_owned(),
//!     mechanisms: Vec::new(),
//!     require_sasl: false,
//! };
//! let mut server = Connection::server(&options, &Limits::default(), 0);
//! let mut framer = Framer::new(); // one per lane
//! let mut out = BytesMut::new();
//! let mut input = &bytes[..];
//! let mut received = Vec::new();
//! while server.accepts_input(Lane::CONTROL) {
//!     let unit = match framer.next(&mut input, server.max_frame_bytes()) {
//!         Ok(Some(unit)) => unit,
//!         Ok(None) => break, // more bytes are needed
//!         Err(error) => return Err(server.decode_failed(error, &mut out).into()),
//!     };
//!     match server.receive(Lane::CONTROL, &unit, 0, &mut out) {
//!         Ok(Some(Event::Open(_))) => server.open(&Open::new("broker"), &mut out)?,
//!         Ok(Some(Event::Attach { link, attach })) => {
//!             let (source, target) = (attach.source, attach.target);
//!             let options = AttachOptions { source, target, ..AttachOptions::default() };
//!             server.accept_attach(link, &options, &mut out)?;
//!             server.set_credit(link, 1, false, false, &mut out)?;
//!         }
//!         Ok(Some(Event::Delivery(delivery))) => {
//!             received.push(MessageView::parse(&delivery.payload)?.data().map(<[u8]>::to_vec));
//!             let range = (delivery.delivery_id, delivery.delivery_id);
//!             let accepted = DeliveryState::ACCEPTED;
//!             server.dispose(delivery.link.session, range, Some(&accepted), true, &mut out)?;
//!         }
//!         // A violation has been answered; what it ended is among the events that follow.
//!         Ok(_) | Err(_) => {}
//!     }
//!     while let Some(_event) = server.next_event() {}
//! }
//! assert_eq!(received, [Some(b"21.5".to_vec())]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Reading the citations
//!
//! "Part 2, section 2.5.6" is a section of the OASIS Standard of 29 October 2012.

pub mod connection;
mod error;
pub mod frame;
mod lane;
mod limits;
pub mod link;
pub mod messaging;
pub mod performatives;
pub mod sasl;
pub mod security;
pub mod selector;
pub mod session;
pub mod transactions;
pub mod types;

pub use connection::{Connection, Event};
pub use error::{CommandError, Condition, DecodeError, Scope, Violation};
pub use frame::{FRAME_TOO_LARGE, Frame, Framer};
pub use lane::{Lane, LaneWriter};
pub use limits::{Limits, MAX_MAX_FRAME_BYTES, MIN_MAX_FRAME_BYTES};
