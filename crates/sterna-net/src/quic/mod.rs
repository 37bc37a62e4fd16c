//! QUIC without sockets, clocks or tasks: datagrams and time in, events and datagrams out.
//!
//! A [`Driver`] is one QUIC listener on one shard. The shard's loop feeds it with what its UDP
//! socket received ([`Driver::datagram`]) and with the time ([`Driver::timeout`]), hands its events
//! to the handler ([`Driver::poll_event`]), and at the end of the turn sends what became of it all
//! ([`Driver::transmit`]). Nothing here blocks, and nothing is visited that has nothing to do: work
//! is proportional to the connections that something happened to, never to those that exist.
//!
//! The protocol itself is quinn-proto's. What is added here: the connections' bookkeeping, early
//! data handed up before the handshake ends, limits on half-open connections, 1-RTT packets that
//! arrive too early, buffers for what waits to be sent, and a lean binding to TLS.

mod address_tokens;
mod config;
mod connection;
mod connection_ids;
mod driver;
mod event;
mod figures;
mod half_open;
mod newcomers;
mod outgoing;
mod path_memory;
mod refusals;
mod sending;
mod stream_credit;
mod tickets;
mod timers;
mod tls;
mod trace;
mod unproved;

pub use address_tokens::AddressTokens;
pub use config::{QuicConfig, SetupError};
pub use connection_ids::{CONNECTION_ID_BYTES, shard_of};
pub use driver::{Driver, Placement};
pub use event::{Counters, DatagramBatch, DriverEvent, EventKind, Flush, Key, Sent};
pub use quinn_proto::EcnCodepoint;
pub use tickets::{TicketStore, TicketStoreUse};
