//! The shard's loop: TCP, TLS, WebSocket and QUIC behind one handler interface.
//!
//! [`bind`] opens the sockets of a set of shards; each [`BoundShard`] moves to a thread of its own
//! and runs a [`Handler`] there. A turn of the loop takes what arrived, hands it to the handler, and
//! at its end writes what the handler queued, with one system call per connection that has something
//! to say. A connection that is idle owns no buffer.
//!
//! Every transport hands up what MQTT asks of one: ordered, lossless streams of bytes in both directions.
//! [MQTT-4.2-1]

mod bind;
mod clock;
mod config;
mod contain;
mod counters;
mod handler;
mod mailbox;
mod outbox;
mod pages;
mod peers;
pub mod quic;
mod shard;
pub mod sim;
mod sockets;
mod steering;
mod strays;
mod table;
mod tcp_info;
mod tls;
mod tokens;
mod udp;
mod websocket;

pub use bind::{BoundShard, bind};
pub use clock::Clock;
pub use config::{ListenerConfig, ListenerTransport, ShardConfig, WebSocketConfig};
pub use contain::contain;
pub use counters::{ShardCounters, ShardFigures};
pub use handler::{
    Chunk, CloseReason, ConnectionId, ConnectionInfo, EarlyData, Handler, Network, PathStatistics,
    SHARE_BYTES, StreamId, Trace, TraceSink, TransportKind,
};
pub use mailbox::{Courier, Gate, Mailbox};
pub use pages::{Pages, SharedPages};
pub use tls::{
    CertificateError, Certificates, ClientAuth, ClientAuthority, ClientKeys, Identity, RawKeys,
    TlsConfig, TlsVersions,
};
