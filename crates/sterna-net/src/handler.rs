//! The one interface between the transports and whatever speaks a message protocol above them.
//!
//! A shard drives a [`Handler`] and the handler answers through [`Network`]. Both the shard on real
//! sockets and the simulated network implement `Network`, so a handler cannot tell them apart. A
//! handler never blocks, never waits and never reads a clock.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;

/// A transport connection of one shard. The generation tells a reused slot from its predecessor:
/// calls with an outdated identifier do nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    /// Index into the shard's table of connections.
    pub slot: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.{}", self.slot, self.generation)
    }
}

/// A stream within a connection, numbered as RFC 9000, section 2.1 numbers QUIC streams.
/// TCP, TLS and WebSocket connections have the single stream [`StreamId::FIRST`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The first client-initiated bidirectional stream, and the only one of a byte-stream transport.
    pub const FIRST: Self = Self(0);

    /// Whether both ends may send on the stream.
    #[must_use]
    pub const fn is_bidirectional(self) -> bool {
        self.0 & 2 == 0
    }

    /// Whether the client opened the stream.
    #[must_use]
    pub const fn is_client_initiated(self) -> bool {
        self.0 & 1 == 0
    }
}

/// What carries the bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransportKind {
    /// TCP in the clear.
    Tcp,
    /// TLS 1.2 or 1.3 on TCP.
    Tls,
    /// WebSocket (RFC 6455) on TCP in the clear.
    WebSocket,
    /// WebSocket on TLS.
    SecureWebSocket,
    /// QUIC version 1.
    Quic,
    /// The simulated network.
    Simulated,
}

impl TransportKind {
    /// Whether the bytes are encrypted on the wire.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::SecureWebSocket | Self::Quic)
    }
}

/// What a shard knows of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Index of the listener that accepted the connection, in the order of the configuration.
    pub listener: u16,
    /// What carries the bytes.
    pub transport: TransportKind,
    /// The application protocol: the ALPN of TLS and QUIC, the subprotocol of WebSocket; empty
    /// where nothing was negotiated.
    pub protocol: Box<[u8]>,
    /// The peer's current address. It changes when a QUIC peer migrates, once the new one is
    /// validated (RFC 9000, section 9.3); [`Handler::migrated`] tells.
    pub peer: SocketAddr,
    /// The peer's certificate chain in DER, end-entity first; empty without client authentication. For
    /// a peer with a raw public key (RFC 7250) the one entry is that key (SubjectPublicKeyInfo). A
    /// resumed peer is who its ticket was given to.
    pub peer_certificates: Vec<Box<[u8]>>,
}

/// Bytes that arrived on a stream, in order.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The stream they arrived on.
    pub stream: StreamId,
    /// The bytes; valid during the call only.
    pub bytes: &'a [u8],
    /// Whether they arrived as early data (0-RTT), which an attacker can replay.
    pub early: bool,
    /// Whether the handshake was confirmed when they were handed up.
    pub confirmed: bool,
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The handler asked for it.
    Local,
    /// The peer ended it in order; QUIC carries an application code, otherwise 0.
    Peer {
        /// Application error code.
        code: u64,
    },
    /// Nothing arrived for as long as the transport allows.
    TimedOut,
    /// The transport failed or the peer broke its rules; the text is for the log.
    Failed(String),
    /// The shard is stopping.
    Shutdown,
}

/// What became of the early data (0-RTT) of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum EarlyData {
    /// The peer sent none.
    #[default]
    None,
    /// It was read.
    Accepted,
    /// It could not be read: the ticket was used up or too old, or early data is not allowed.
    Rejected,
}

/// Live figures of a connection's path. A transport leaves what it does not know at 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathStatistics {
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u64,
    /// Least round-trip time seen on the path, in microseconds.
    pub min_rtt_us: u64,
    /// Variation of the round-trip time (RFC 9002, section 5.3), in microseconds.
    pub rtt_variance_us: u64,
    /// Packets declared lost; segments sent again on TCP.
    pub lost_packets: u64,
    /// Bytes of packets declared lost; QUIC only.
    pub lost_bytes: u64,
    /// Probe timeouts (RFC 9002, section 6.2); QUIC only. The library does not tell them, so this
    /// counts timeouts without a loss, at least a round trip after the last packet that asked for an
    /// acknowledgement, that made the connection send.
    pub probe_timeouts: u32,
    /// Congestion window in bytes.
    pub congestion_window_bytes: u64,
    /// Largest UDP payload that the path carries as far as known, or the path's MTU on TCP; in bytes.
    pub mtu_bytes: u32,
    /// Bytes received from the wire, without the headers of IP, UDP and TCP.
    pub received_bytes: u64,
    /// Bytes sent to the wire, without the headers of IP, UDP and TCP.
    pub sent_bytes: u64,
    /// Datagrams (segments on TCP) received.
    pub received_datagrams: u64,
    /// Datagrams (segments on TCP) sent.
    pub sent_datagrams: u64,
    /// Bytes of streams and unreliable datagrams handed up.
    pub received_payload_bytes: u64,
    /// Bytes of streams and unreliable datagrams that the transport has taken over; each counts
    /// once, however often it is sent.
    pub sent_payload_bytes: u64,
    /// What became of early data.
    pub early_data: EarlyData,
    /// Whether the connection resumed an earlier session with a ticket.
    pub resumed: bool,
    /// Changes of the peer's address, those that were validated.
    pub migrations: u32,
    /// Streams that are open; 1 on a byte stream.
    pub open_streams: u32,
}

/// Takes the records of a connection's trace. It is called within the shard's turn, so it must not
/// block: hand the bytes to another thread where writing may take time.
pub trait TraceSink: Send {
    /// One record of a JSON text sequence (RFC 7464), separators included.
    fn record(&mut self, record: &[u8]);
}

/// What to trace a connection with; see [`Network::trace`].
pub struct Trace {
    /// Where records go.
    pub sink: Box<dyn TraceSink>,
    /// What names the trace in its header, such as the client's identifier.
    pub title: String,
    /// Bytes after which the trace ends, with a record that says so.
    pub max_bytes: u64,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("title", &self.title)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

/// What a handler may ask of the shard (or the simulation) that drives it.
///
/// Nothing here blocks or fails: a call for a connection or stream that is gone does nothing, and the
/// handler learns of the end through [`Handler::closed`].
pub trait Network {
    /// Milliseconds since the Unix epoch; it never goes back and stays the same within one turn.
    fn now_ms(&self) -> u64;

    /// What is known of a connection; `None` once it is closed.
    fn info(&self, connection: ConnectionId) -> Option<&ConnectionInfo>;

    /// Queues bytes on a stream, copying them into the stream's buffer. They leave at the end of
    /// the turn, together with everything else that was queued in it.
    fn send(&mut self, connection: ConnectionId, stream: StreamId, bytes: &[u8]);

    /// Queues bytes on a stream without copying; for payloads of [`SHARE_BYTES`] or more.
    fn send_shared(&mut self, connection: ConnectionId, stream: StreamId, bytes: Bytes);

    /// Queues one unreliable datagram (RFC 9221). Returns false where the peer does not take
    /// datagrams or this one is too large; the caller then uses a stream.
    fn send_datagram(&mut self, connection: ConnectionId, bytes: Bytes) -> bool;

    /// Largest unreliable datagram that can be sent now, in bytes; 0 where the peer takes none.
    fn datagram_bytes(&mut self, connection: ConnectionId) -> usize {
        let _ = connection;
        0
    }

    /// Bytes queued on all streams of the connection that the transport has not yet taken over.
    fn unsent_bytes(&self, connection: ConnectionId) -> usize;

    /// Bytes queued on one stream that the transport has not yet taken over.
    fn unsent_on(&self, connection: ConnectionId, stream: StreamId) -> usize;

    /// Asks for [`Handler::writable`] as soon as the transport has taken over all that is queued on a
    /// stream. For streams that a peer may leave unread while it reads others; byte streams have the
    /// watermarks of their connection alone.
    fn watch(&mut self, connection: ConnectionId, stream: StreamId) {
        let _ = (connection, stream);
    }

    /// Ends the sending side of a stream after what was queued.
    fn finish(&mut self, connection: ConnectionId, stream: StreamId);

    /// Aborts both directions of a stream with an application error code (RESET_STREAM and
    /// STOP_SENDING on QUIC; closes a byte-stream connection).
    fn abort(&mut self, connection: ConnectionId, stream: StreamId, code: u64);

    /// Aborts what is sent on a stream (RESET_STREAM on QUIC): what is queued there is dropped. What the
    /// peer sends goes on. Closes a byte-stream connection.
    fn reset(&mut self, connection: ConnectionId, stream: StreamId, code: u64);

    /// Takes nothing more from a stream (STOP_SENDING on QUIC). What is sent there goes on. Closes a
    /// byte-stream connection.
    fn stop(&mut self, connection: ConnectionId, stream: StreamId, code: u64);

    /// Closes the connection after what was queued has been handed to the transport, or after the
    /// configured linger time. `closed` follows with [`CloseReason::Local`].
    fn close(&mut self, connection: ConnectionId, code: u64);

    /// Stops (`true`) or resumes (`false`) reading from the connection, so that the peer feels the
    /// transport's flow control.
    fn pause(&mut self, connection: ConnectionId, paused: bool);

    /// Live figures of the connection's path.
    fn path(&self, connection: ConnectionId) -> PathStatistics;

    /// Begins to trace a connection as qlog (version 0.4, JSON text sequence), or ends that with
    /// `None`. Byte-stream transports and the simulation know nothing to trace and drop the sink;
    /// so does the end of the connection.
    fn trace(&mut self, connection: ConnectionId, trace: Option<Trace>) {
        let _ = (connection, trace);
    }
}

/// Payloads of at least this many bytes are queued with [`Network::send_shared`]; below it a copy
/// is cheaper than the bookkeeping of a shared buffer.
pub const SHARE_BYTES: usize = 2048;

/// What a shard drives. Every method is one step of the loop: it runs to its end and returns.
///
/// A panic that leaves a method ends the shard ([`crate::BoundShard::run`] unwinds): only the handler can
/// tell what of its own belongs to one connection. See [`crate::contain`].
pub trait Handler {
    /// What other threads send to this shard.
    type Mail: Send + 'static;

    /// A connection is ready for application bytes: TCP accepted, TLS finished, WebSocket upgraded,
    /// or a QUIC connection that carries early data or has finished its handshake.
    fn opened(&mut self, net: &mut dyn Network, connection: ConnectionId);

    /// Bytes arrived on a stream. The first chunk of a stream announces the stream.
    fn received(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>);

    /// The QUIC handshake is confirmed: early data can no longer be a replay. Not called for
    /// connections that were confirmed when they opened.
    fn confirmed(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let _ = (net, connection);
    }

    /// The peer's address has changed and the new one is validated: [`Network::info`] names it from
    /// now on.
    fn migrated(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let _ = (net, connection);
    }

    /// An unreliable datagram arrived.
    fn datagram(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        let _ = (net, connection, chunk);
    }

    /// The peer ended its sending side of a stream in order (FIN, or the end of a TCP stream).
    ///
    /// A byte-stream connection stays open for what the handler still has to say, until the handler
    /// closes it or [`crate::ShardConfig::half_closed_timeout_ms`] has passed. A WebSocket is closed
    /// right after this call, as its protocol demands.
    fn stream_finished(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
    );

    /// The peer aborted what it sends on a stream (RESET_STREAM) with an application error code.
    fn stream_aborted(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        code: u64,
    );

    /// The peer takes nothing more from a stream (STOP_SENDING), with an application error code:
    /// what is sent there is dropped. What the peer itself sends goes on.
    fn stream_stopped(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        code: u64,
    ) {
        let _ = (net, connection, stream, code);
    }

    /// What was queued fell below the low watermark after it had been above the high one, or a stream
    /// that is watched ([`Network::watch`]) has been emptied.
    fn writable(&mut self, net: &mut dyn Network, connection: ConnectionId);

    /// The connection is gone. No call for it follows.
    fn closed(&mut self, net: &mut dyn Network, connection: ConnectionId, reason: &CloseReason);

    /// Everything that other threads sent since the last turn, in order per sender.
    fn mail(&mut self, net: &mut dyn Network, mail: &mut Vec<Self::Mail>);

    /// The deadline that [`Handler::deadline_ms`] named has passed.
    fn timeout(&mut self, net: &mut dyn Network);

    /// All input of this turn was handed over; what is queued now leaves right after.
    fn end_of_turn(&mut self, net: &mut dyn Network);

    /// When `timeout` wants to be called next, on the clock of [`Network::now_ms`].
    fn deadline_ms(&self) -> Option<u64>;

    /// Whether the shard may end its loop; asked at the end of every turn.
    fn finished(&self) -> bool;
}
