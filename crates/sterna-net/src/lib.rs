//! The shard's loop: TCP, TLS, WebSocket and QUIC behind one handler interface.
//!
//! [`bind`] opens the sockets of a set of shards. Each [`BoundShard`] moves to a thread of its own
//! and runs a [`Handler`] there. A turn of the loop takes the input and hands it to the handler. At
//! its end it writes the handler's output, with one system call for each connection with output. An
//! idle connection owns no buffer.
//!
//! Every transport provides the streams that MQTT requires: ordered, lossless, of bytes, in both
//! directions. [MQTT-4.2-1]

mod bind;
mod clock;
mod config;
mod contain;
mod counters;
mod foreign;
mod handler;
mod handshake;
mod mailbox;
mod outbox;
mod pages;
mod peers;
mod proxy_header;
pub mod quic;
mod shard;
pub mod sim;
mod sockets;
mod steering;
mod strays;
mod table;
mod tcp_info;
mod throttle;
mod tls;
mod tokens;
mod udp;
mod websocket;

pub use bind::{BoundShard, bind};
pub use clock::Clock;
pub use config::{ListenerConfig, ListenerTransport, ShardConfig, WebSocketConfig};
pub use contain::contain;
pub use counters::{Count, ListenerFigures, RefusedConnection, ShardCounters, ShardFigures};
pub use foreign::foreign;
pub use handler::{
    CHUNK_BYTES, Chunk, CloseReason, ConnectionId, ConnectionInfo, EarlyData, Handler, Network,
    PathStatistics, RefusedPeers, SHARE_BYTES, StreamEnd, StreamId, Trace, TraceSink,
    TransportKind,
};
pub use handshake::{FailedHandshake, FaultCounts, HandshakeFault};
pub use mailbox::{Courier, Gate, Mailbox};
pub use pages::{Pages, SharedPages, is_authority};
pub use tls::{
    CertificateError, Certificates, ClientAuth, ClientAuthority, ClientKeys, Identity, RawKeys,
    TlsConfig, TlsVersions,
};
