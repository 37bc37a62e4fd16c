//! QUIC without sockets, clocks or tasks: datagrams and time in, events and datagrams out.
//!
//! A [`Driver`] is one QUIC listener on one shard. The shard's loop gives it the datagrams of its
//! UDP socket ([`Driver::datagram`]) and the time ([`Driver::timeout`]). It hands the driver's
//! events to the handler ([`Driver::poll_event`]). At the end of the turn the loop sends the output
//! ([`Driver::transmit`]). Calls do not block. Work is proportional to the connections with events,
//! not to all connections.
//!
//! quinn-proto has the protocol itself. This module adds the connections' bookkeeping, early data
//! before the handshake ends, and limits on half-open connections. It also adds early 1-RTT
//! packets, buffers for unsent bytes, and a lean binding to TLS.

mod address_tokens;
mod config;
mod connection;
mod connection_ids;
mod driver;
mod event;
mod figures;
mod gaps;
mod half_open;
mod moving;
mod newcomers;
mod outgoing;
mod path_memory;
mod reading;
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
pub(crate) use connection_ids::shard_offset;
pub use connection_ids::{CONNECTION_ID_BYTES, ServerId, shard_of};
pub use driver::{Driver, Placement};
pub use event::{Counters, DatagramBatch, DriverEvent, EventKind, Flush, Key, Sent};
pub(crate) use newcomers::TurnedAway;
pub use quinn_proto::EcnCodepoint;
pub use tickets::{TicketStore, TicketStoreUse};
