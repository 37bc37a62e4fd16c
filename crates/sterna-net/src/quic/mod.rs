//! QUIC without sockets, clocks or tasks: datagrams and time in, events and datagrams out.
//!
//! A [`Driver`] is one QUIC listener on one shard. The shard's loop feeds it with what its UDP
//! socket received ([`Driver::datagram`]) and with the time ([`Driver::timeout`]), hands its events
//! to the handler ([`Driver::poll_event`]), and at the end of the turn sends what became of it all
//! ([`Driver::transmit`]). Nothing here blocks, and nothing is visited that has nothing to do: work
//! is proportional to the connections that something happened to, never to those that exist.

mod config;
mod driver;
mod event;

pub use config::{Congestion, MtuDiscovery, QuicConfig, RequestedAckFrequency, SetupError};
pub use driver::{Driver, Placement};
pub use event::{Counters, DriverEvent, EventKind, Flush, Key, Outgoing, Sent};
pub use quinn_proto::EcnCodepoint;
