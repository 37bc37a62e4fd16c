//! The shard's loop: TCP, TLS, WebSocket and QUIC behind one handler interface.

mod handler;
pub mod quic;
pub mod sim;

pub use handler::{
    Chunk, CloseReason, ConnectionId, ConnectionInfo, Handler, Network, PathStatistics,
    SHARE_BYTES, StreamId, TransportKind,
};
