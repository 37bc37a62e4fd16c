//! The configuration of a set of shards: listeners, and every limit by name.

use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::clock::Clock;
use crate::pages::SharedPages;
use crate::quic::QuicConfig;
use crate::tls::TlsConfig;

/// Address and transport of a listener.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Address to bind. Port 0 lets the system pick one, the same for every shard; `[::]` takes
    /// IPv4 as well.
    pub address: SocketAddr,
    /// The transport.
    pub transport: ListenerTransport,
    /// Balancers that connect for clients, by the PROXY protocol. Then only they may connect, and each
    /// connection begins with a header; `None` for clients that connect themselves. Not for QUIC.
    pub balancers: Option<Arc<[IpNet]>>,
    /// Most connections, over all shards. Those beyond it are closed as they are accepted; QUIC is told
    /// `CONNECTION_REFUSED`.
    pub connections: usize,
}

/// The transport of a listener's connections.
#[derive(Clone, Debug)]
pub enum ListenerTransport {
    /// TCP in the clear.
    Tcp,
    /// TLS 1.2 or 1.3 on TCP.
    Tls(Arc<TlsConfig>),
    /// WebSocket on TCP in the clear.
    WebSocket(Arc<WebSocketConfig>),
    /// WebSocket on TLS.
    SecureWebSocket(Arc<TlsConfig>, Arc<WebSocketConfig>),
    /// QUIC version 1 on UDP. The application protocols are those of the [`QuicConfig`].
    Quic(Arc<TlsConfig>, Arc<QuicConfig>),
}

/// A WebSocket listener's answers to upgrade requests (RFC 6455, section 4.2).
#[derive(Clone, Debug)]
pub struct WebSocketConfig {
    /// Request paths that are upgraded; any other is answered with 404. The query is ignored.
    pub paths: Vec<String>,
    /// Subprotocols this listener speaks, the preferred one first.
    pub subprotocols: Vec<String>,
    /// Whether a client must offer one of the subprotocols. If false, a client that offers none is
    /// admitted with an empty protocol. A client that offers only foreign ones is never admitted.
    pub require_subprotocol: bool,
    /// The names by which requests may address the listener, and the pages that may connect.
    pub pages: SharedPages,
    /// Whether only this host can reach the listener, which then has no names of its own.
    pub on_loopback: bool,
    /// Longest request head in bytes; a longer one is answered with 431.
    pub request_head_bytes: usize,
}

impl Default for WebSocketConfig {
    fn default() -> Self {
        Self {
            paths: vec!["/mqtt".into(), "/".into()],
            subprotocols: vec!["mqtt".into(), "mqttv3.1".into()],
            require_subprotocol: true,
            pages: SharedPages::default(),
            on_loopback: false,
            request_head_bytes: 8 * 1024,
        }
    }
}

/// Limits of every shard. Counts are per shard, so a broker of N shards admits N times as many. The
/// system spreads connections evenly over the shards.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The clock of all shards; `None` for one that starts with the system's wall clock.
    pub clock: Option<Clock>,
    /// Most byte-stream connections at a time; more are closed as they are accepted.
    pub connections: usize,
    /// Most connections at a time from one peer address (IPv6: from one /64), over all transports,
    /// listeners and shards. A byte stream beyond it is closed as it is accepted; a QUIC connection is
    /// refused with `CONNECTION_REFUSED`.
    pub connections_per_address: usize,
    /// Most byte-stream connections at a time that have not finished TLS or the WebSocket upgrade.
    pub half_open: usize,
    /// Largest number of half-open connections from one peer address (IPv6: from one /64).
    pub half_open_per_address: usize,
    /// Most connections taken from one listener's queue in one turn. So a flood of connects does
    /// not delay established connections.
    pub accepts_per_turn: usize,
    /// Most handshake flights (TLS, WebSocket upgrade) in one turn. One TLS flight costs about 120
    /// us of CPU: this limits the delay that new connections add for all clients.
    pub handshakes_per_turn: usize,
    /// Length of a TCP listener's queue of connections that were not accepted yet.
    pub backlog: u32,
    /// Milliseconds from accept until TLS and the WebSocket upgrade must be finished.
    pub handshake_timeout_ms: u64,
    /// Time from the accept of a balancer's connection to the end of its header, in milliseconds.
    pub proxy_header_timeout_ms: u64,
    /// Longest header of a balancer, in bytes; at least 16.
    pub proxy_header_bytes: usize,
    /// Milliseconds that a closing connection may wait for the system to take the next piece of its
    /// queue. All waits together take at most ten times this. It waits as long again for the peer's
    /// end of the stream.
    pub linger_ms: u64,
    /// Milliseconds for which a connection stays open for writing after the peer ended its side. It is the same for
    /// reading what came before a write failed. The time begins again after a pause. A handler with a longer answer
    /// [keeps it open](crate::Network::keep_half_closed).
    pub half_closed_timeout_ms: u64,
    /// Milliseconds for which one pause keeps a connection open after the peer ended its side, at least; no longer than
    /// 128 times `half_closed_timeout_ms`. Bytes that are still unread then are lost.
    pub paused_timeout_ms: u64,
    /// Most bytes read from one connection in one turn (the size of the shard's read buffer).
    pub read_bytes_per_turn: usize,
    /// Bytes read from all byte streams in one turn. Where many have something to say, less is read from each, but at least
    /// 4 KiB. So the wait for its turn grows little with the number of others.
    pub streams_bytes_per_turn: usize,
    /// Time in one turn after which the byte streams that are left wait for the next one, in milliseconds; at least one is read.
    /// Then the streams of each address have their turns: those of one do not wait for all of another.
    pub reading_per_turn_ms: u64,
    /// The same for writing. Connections that have room again are written to in their turn as well.
    pub writing_per_turn_ms: u64,
    /// Bytes written to one connection in one turn, above which the rest waits for the next turn.
    pub write_bytes_per_turn: usize,
    /// Unsent bytes above which a connection counts as blocked.
    pub high_watermark_bytes: usize,
    /// Unsent bytes below which a blocked connection gets [`crate::Handler::writable`].
    pub low_watermark_bytes: usize,
    /// Most unsent bytes of one byte-stream connection that were queued by copying
    /// ([`crate::Network::send`]). If the peer never reads and the handler exceeds it, the
    /// connection is cut. Shared payloads do not count: the queues that they come from limit them.
    pub copied_bytes: usize,
    /// Memory of output buffers that a shard keeps for reuse.
    pub pooled_bytes: usize,
    /// Seconds without traffic after which the system asks a TCP peer whether it still exists;
    /// `None` never asks. It finds lost peers even if the message protocol has no keep-alive.
    pub tcp_keepalive_s: Option<u32>,
    /// Size requested for a TCP connection's send buffer in the kernel; `None` leaves it to the
    /// system, which adapts it.
    pub send_buffer_bytes: Option<usize>,
    /// Size requested for a TCP connection's receive buffer in the kernel; `None` leaves it to the
    /// system, which adapts it.
    pub receive_buffer_bytes: Option<usize>,
    /// Size requested for each UDP socket's send and receive buffer in the kernel. One socket serves
    /// all QUIC connections of a shard, so this is large.
    pub udp_buffer_bytes: usize,
    /// Whether the kernel hands a QUIC datagram to the shard that owns the connection. Otherwise, or
    /// where it cannot, the shards hand them to each other, which costs a wake-up.
    pub kernel_steering: bool,
    /// Most batches of datagrams taken from one UDP socket in one turn, as long as `reading_per_turn_ms` is not over.
    pub datagram_batches_per_turn: usize,
}

impl Default for ShardConfig {
    fn default() -> Self {
        Self {
            clock: None,
            connections: 1_000_000,
            connections_per_address: usize::MAX,
            half_open: 4_096,
            half_open_per_address: 256,
            accepts_per_turn: 256,
            handshakes_per_turn: 16,
            backlog: 4_096,
            handshake_timeout_ms: 30_000,
            proxy_header_timeout_ms: 2_000,
            proxy_header_bytes: 4_096,
            linger_ms: 2_000,
            half_closed_timeout_ms: 10_000,
            paused_timeout_ms: 10_000,
            read_bytes_per_turn: 64 * 1024,
            streams_bytes_per_turn: 4 * 1024 * 1024,
            reading_per_turn_ms: 10,
            writing_per_turn_ms: 10,
            write_bytes_per_turn: 1024 * 1024,
            high_watermark_bytes: 256 * 1024,
            low_watermark_bytes: 64 * 1024,
            copied_bytes: 4 * 1024 * 1024,
            pooled_bytes: 4 * 1024 * 1024,
            tcp_keepalive_s: Some(600),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            udp_buffer_bytes: 4 * 1024 * 1024,
            kernel_steering: true,
            datagram_batches_per_turn: 8,
        }
    }
}
