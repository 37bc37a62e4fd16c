//! Packets and session state of MQTT 3.1, 3.1.1 and 5.0, without input, output, clock, tasks or
//! locks. Bytes and time go in, events come out; commands go in, bytes come out.
//!
//! # From bytes to events
//!
//! 1. One [`Framer`] per lane cuts bytes into [`Frame`]s. A [`Lane`] is a byte stream: the one of
//!    TCP, or each stream of a QUIC connection. A packet that lies whole in the input is borrowed.
//!    One that arrives in pieces is put together, and can be kept without another copy
//!    ([`Frame::shared`]).
//! 2. [`Packet::decode`] makes a borrowed, fully validated view of a frame, without allocating.
//! 3. A [`server::Connection`] checks order and limits, keeps the protocol's state, and answers
//!    packets that need no decision. It yields [`server::Event`]s for the others.
//!
//! # From commands to bytes
//!
//! The connection's methods (`accept`, `puback`, `pubrec`, `suback`, `publish`, …) write whole
//! packets into the buffer of a lane ([`LaneWriter`]). [`Packet::encode`] and the functions of
//! [`packet`] write any packet of either direction.
//!
//! # State that outlives a connection
//!
//! A [`MqttSession`] holds Packet Identifiers and the state of deliveries, for either end. It
//! survives connections, the loss of streams, and moves between transports. Outgoing identifiers
//! are unique in the session, on any lane. Incoming QoS 2 identifiers belong to the lane on which
//! they arrive, because some clients number each stream for itself. After a reconnection or the
//! loss of the lane they are found from any lane.
//!
//! # A front door in short
//!
//! ```
//! use bytes::BytesMut;
//! use sterna_mqtt::server::{Accept, Connection, Event, Limits};
//! use sterna_mqtt::{Framer, Lane, ReasonCode, MqttSession};
//!
//! let limits = Limits::default();
//! let now_ms = 0;
//! let mut connection = Connection::new(limits, now_ms);
//! let mut session = MqttSession::new();
//! let mut framer = Framer::new(); // one per lane
//! let mut out = BytesMut::new(); // one per lane: implement `LaneWriter` for several
//!
//! // CONNECT with Client Identifier "a", then PUBLISH "x" to "t" with QoS 1.
//! let bytes = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a\x32\x07\x00\x01t\x00\x01\x00x";
//! let mut input = &bytes[..];
//! while connection.accepts_input(Lane::CONTROL) {
//!     let frame = match framer.next(&mut input, connection.max_packet_bytes()) {
//!         Ok(Some(frame)) => frame,
//!         Ok(None) => break, // more bytes are needed
//!         Err(error) => {
//!             let violation = connection.decode_failed(Lane::CONTROL, error);
//!             connection.violation(&violation, &mut out);
//!             break; // and close
//!         }
//!     };
//!     let received = connection.receive(Some(&mut session), Lane::CONTROL, &frame, now_ms, &mut out);
//!     match received {
//!         // The broker opens the session; when that takes time, the bytes that follow wait.
//!         Ok(Some(Event::Connect(connect))) => {
//!             assert_eq!(connect.client_id, "a");
//!             connection.accept(&mut session, &Accept::default(), now_ms, &mut out).unwrap();
//!         }
//!         Ok(Some(Event::Publish(publish))) => {
//!             assert_eq!(&*publish.topic, "t");
//!             if let Some(packet_id) = publish.packet_id {
//!                 connection.puback(Lane::CONTROL, packet_id, ReasonCode::Success, &mut out);
//!             }
//!         }
//!         Ok(_) => {}
//!         Err(violation) => {
//!             connection.violation(&violation, &mut out);
//!             break; // and close
//!         }
//!     }
//! }
//! assert!(out.ends_with(b"\x40\x02\x00\x01")); // after the CONNACK: PUBACK
//! ```
//!
//! Towards the client: after `accept`, [`server::Connection::next_resend`] and
//! [`server::Connection::resend`] repeat the rest of an earlier connection. Then
//! [`server::Connection::can_send`] and [`server::Connection::publish`] serve new deliveries. Their
//! fate returns as [`server::Event::HandedOver`] and [`server::Event::Delivered`] with the caller's
//! tag. Timers: [`server::Connection::deadline_ms`] and [`server::Connection::on_timeout`].
//!
//! # The client's end
//!
//! [`client::Connection`] is the counterpart: it writes CONNECT and requests, obeys the server's
//! limits, and works on a [`MqttSession`] just the same.
//!
//! # Reading the citations
//!
//! `[MQTT-…]` names a normative statement of MQTT 5.0, `[MQTT311-…]` one of MQTT 3.1.1, beside its
//! code and its test.

pub mod alias;
pub mod client;
mod error;
mod framer;
mod lane;
pub mod packet;
pub mod property;
mod reason;
pub mod server;
pub mod session;
mod text;
pub mod topic;
mod types;
mod wire;

pub use error::{Answer, DecodeError, EncodeError, Scope, Violation};
pub use framer::{Frame, Framer};
pub use lane::{Lane, LaneWriter};
pub use packet::Packet;
pub use property::{
    Forward, Properties, Property, PropertyBuf, PropertyContext, PropertyId, PublishProperties,
};
pub use reason::ReasonCode;
pub use session::MqttSession;
pub use types::{MAX_PACKET_BYTES, MAX_REMAINING_BYTES, PacketId, PacketType, QoS, Version};
