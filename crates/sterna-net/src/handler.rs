//! The one interface between the transports and the message protocols above them.
//!
//! A shard drives a [`Handler`] and the handler answers through [`Network`]. Both the shard on real
//! sockets and the simulated network implement `Network`, so a handler cannot tell them apart. A
//! handler never blocks, never waits and never reads a clock.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use ipnet::IpNet;
use thin_vec::ThinVec;

use crate::{FailedHandshake, RefusedConnection};

/// A transport connection of one shard.
///
/// The generation tells a reused slot from its predecessor: calls with an outdated identifier do
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    /// Index into the shard's table of connections.
    pub slot: u32,
    /// Number of earlier uses of the slot.
    pub generation: u32,
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.{}", self.slot, self.generation)
    }
}

/// A stream within a connection, numbered as in QUIC (RFC 9000, section 2.1).
///
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

/// The transport of a connection.
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

/// A shard's record of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Index of the listener that accepted the connection, in the order of the configuration.
    pub listener: u16,
    /// The transport.
    pub transport: TransportKind,
    /// The application protocol: ALPN of TLS and QUIC, or subprotocol of WebSocket; empty without
    /// negotiation.
    pub protocol: Box<[u8]>,
    /// The peer's current address.
    ///
    /// It changes when a QUIC peer has migrated to a validated address (RFC 9000, section 9.3);
    /// [`Handler::migrated`] reports it.
    pub peer: SocketAddr,
    /// Whether the peer has shown that it reads at its address.
    ///
    /// A first flight of early data may have a forged source address: nothing is to be decided by it before
    /// [`Handler::confirmed`], where this becomes true. It is true earlier if the flight has a token that was
    /// sent to the address (Retry, NEW_TOKEN). A byte stream's peer has shown it before the connection exists.
    pub is_peer_proved: bool,
    /// The peer's certificate chain in DER, end-entity first; empty without client authentication.
    ///
    /// For a raw public key (RFC 7250) the one entry is that key (SubjectPublicKeyInfo). A resumed
    /// peer has the chain of the connection that received the ticket.
    pub peer_certificates: ThinVec<Box<[u8]>>,
}

/// End of one side of a stream by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEnd {
    /// It ended its sending side in order (FIN, or the end of a TCP stream).
    ///
    /// The handler can still send on a byte-stream connection, until it closes it or
    /// [`crate::ShardConfig::half_closed_timeout_ms`] has passed; see [`Network::keep_half_closed`]. A
    /// WebSocket is closed right after the call, as its protocol demands.
    Finished,
    /// It aborted its sending side (RESET_STREAM) with this application error code.
    Aborted(u64),
    /// It stopped reading (STOP_SENDING) with this application error code. Bytes sent there are
    /// dropped. The peer's own sending side goes on.
    Stopped(u64),
}

/// The most bytes of one [`Chunk`] of a byte-stream connection. A handler may empty its queues between two of them, so
/// there are no more small messages in one than a queue has places.
pub const CHUNK_BYTES: usize = 4_096;

/// Bytes that arrived on a stream, in order.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The stream they arrived on.
    pub stream: StreamId,
    /// The bytes; valid during the call only.
    pub bytes: &'a [u8],
    /// Whether they arrived as early data (0-RTT), which an attacker can replay.
    pub early: bool,
    /// Whether the handshake was confirmed before this call.
    pub confirmed: bool,
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The handler closed it.
    Local,
    /// The peer ended it in order.
    Peer {
        /// Application error code of QUIC; 0 on other transports.
        code: u64,
    },
    /// The transport's idle timeout has passed.
    TimedOut,
    /// The transport failed or the peer violated it; the text is for the log.
    Failed(String),
    /// The shard is stopping.
    Shutdown,
}

/// The fate of a connection's early data (0-RTT).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum EarlyData {
    /// The peer sent none.
    #[default]
    None,
    /// It was read.
    Accepted,
    /// It was refused: the ticket was used up or too old, or early data is not allowed.
    Rejected,
}

/// Live figures of a connection's path. Figures that a transport does not know are 0.
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
    /// Probe timeouts (RFC 9002, section 6.2); QUIC only. An estimate: the library does not report
    /// them.
    ///
    /// Counted are timeouts without a loss that made the connection send. They are at least one round
    /// trip after the last ack-eliciting packet.
    pub probe_timeouts: u32,
    /// Congestion window in bytes.
    pub congestion_window_bytes: u64,
    /// Largest known UDP payload of the path, or the path's MTU on TCP; in bytes.
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
    /// Bytes of streams and unreliable datagrams that the transport has taken over;
    /// retransmissions are not counted.
    pub sent_payload_bytes: u64,
    /// The fate of early data.
    pub early_data: EarlyData,
    /// Whether the connection resumed an earlier session with a ticket.
    pub resumed: bool,
    /// Validated changes of the peer's address.
    pub migrations: u32,
    /// Open streams; 1 on a byte stream.
    pub open_streams: u32,
}

/// Receives the records of a connection's trace.
///
/// The shard calls it within its turn, so it must not block: leave slow writes to another thread.
pub trait TraceSink: Send {
    /// Takes one record of a JSON text sequence (RFC 7464), separators included.
    fn record(&mut self, record: &[u8]);
}

/// The settings of a connection's trace; see [`Network::trace`].
pub struct Trace {
    /// The receiver of the records.
    pub sink: Box<dyn TraceSink>,
    /// Title of the trace in its header, for example the client's identifier.
    pub title: String,
    /// Maximum size of the trace in bytes; a last record says that it is reached.
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

/// The peers whose new connections are refused, see [`Network::refuse_newcomers`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RefusedPeers {
    /// No one.
    #[default]
    None,
    /// Those from these networks.
    Of(Vec<IpNet>),
    /// Everyone.
    All,
}

impl RefusedPeers {
    /// Whether a newcomer from this address is refused, and why.
    pub(crate) fn refusal(&self, peer: IpAddr) -> Option<RefusedConnection> {
        match self {
            Self::All => Some(RefusedConnection::Refused),
            Self::Of(networks) if networks.iter().any(|network| network.contains(&peer)) => {
                Some(RefusedConnection::RefusedNetwork)
            }
            Self::Of(_) | Self::None => None,
        }
    }
}

/// The services of a shard (or the simulation) for its handler.
///
/// No call blocks or fails. A call for a closed connection or stream does nothing;
/// [`Handler::closed`] reports the end.
pub trait Network {
    /// Milliseconds since the Unix epoch; monotonic, and constant within one turn.
    fn now_ms(&self) -> u64;

    /// The record of a connection; `None` once it is closed.
    fn info(&self, connection: ConnectionId) -> Option<&ConnectionInfo>;

    /// Queues a copy of bytes on a stream. All queued bytes leave together, at the end of the turn.
    fn send(&mut self, connection: ConnectionId, stream: StreamId, bytes: &[u8]);

    /// Queues bytes on a stream without copying; for payloads of [`SHARE_BYTES`] or more.
    fn send_shared(&mut self, connection: ConnectionId, stream: StreamId, bytes: Bytes);

    /// Queues one unreliable datagram (RFC 9221).
    ///
    /// Returns false if the peer takes no datagrams or this one is too large; then use a stream.
    fn send_datagram(&mut self, connection: ConnectionId, bytes: Bytes) -> bool;

    /// Maximum size of an unreliable datagram now, in bytes; 0 if the peer takes none.
    fn datagram_bytes(&mut self, connection: ConnectionId) -> usize {
        let _ = connection;
        0
    }

    /// Bytes queued on all streams of the connection that the transport has not yet taken over. Once a write to a byte
    /// stream has failed, it is the high watermark: there is no room any more, and what is still sent is dropped. Bytes
    /// that the peer sent before come all the same, and then the end.
    fn unsent_bytes(&self, connection: ConnectionId) -> usize;

    /// About how many bytes the transport keeps that have come and are not read: QUIC alone does so.
    fn unread_bytes(&self, connection: ConnectionId) -> usize {
        let _ = connection;
        0
    }

    /// Whether nobody sees the end of this turn: some connection had more than one turn reads from it, so another turn
    /// follows at once, and nothing is to be sent before that. To be asked at the end of a turn.
    fn ends_unseen(&self) -> bool {
        false
    }

    /// Bytes queued on one stream that the transport has not yet taken over.
    fn unsent_on(&self, connection: ConnectionId, stream: StreamId) -> usize;

    /// Requests [`Handler::writable`] once the transport has taken over all queued bytes of a stream, or has dropped
    /// them because one end gave the stream up.
    ///
    /// For streams that a peer may leave unread while it reads others. Byte streams have only the
    /// watermarks of their connection.
    fn watch(&mut self, connection: ConnectionId, stream: StreamId) {
        let _ = (connection, stream);
    }

    /// Ends the sending side of a stream after its queued bytes.
    fn finish(&mut self, connection: ConnectionId, stream: StreamId);

    /// Aborts both directions of a stream with an application error code (RESET_STREAM and
    /// STOP_SENDING on QUIC; closes a byte-stream connection).
    fn abort(&mut self, connection: ConnectionId, stream: StreamId, code: u64);

    /// Aborts the sending side of a stream (RESET_STREAM on QUIC) and drops its queued bytes.
    ///
    /// The receiving side goes on. Closes a byte-stream connection.
    fn reset(&mut self, connection: ConnectionId, stream: StreamId, code: u64);

    /// Stops the receiving side of a stream (STOP_SENDING on QUIC).
    ///
    /// The sending side goes on. Closes a byte-stream connection.
    fn stop(&mut self, connection: ConnectionId, stream: StreamId, code: u64);

    /// Closes the connection once the transport has its queued bytes, or after the linger time.
    ///
    /// [`Handler::closed`] follows with [`CloseReason::Local`].
    fn close(&mut self, connection: ConnectionId, code: u64);

    /// Stops (`true`) or resumes (`false`) reading, so that flow control slows the peer.
    ///
    /// A QUIC connection that its peer closes ends meanwhile, and what has come is handed up. A byte-stream
    /// connection that its peer ends or resets has [`crate::ShardConfig::paused_timeout_ms`] to be read
    /// again. After that [`Handler::closed`] follows, and what was not read is lost.
    fn pause(&mut self, connection: ConnectionId, paused: bool);

    /// Keeps a byte-stream connection open beyond [`crate::ShardConfig::half_closed_timeout_ms`] after its peer's end:
    /// the handler has an answer for the peer, and closes the connection behind it.
    ///
    /// [`Handler::closed`] follows as soon as the system reports that the peer is gone. It does so when bytes are sent to
    /// a peer that has closed both directions.
    fn keep_half_closed(&mut self, connection: ConnectionId) {
        let _ = connection;
    }

    /// Refuses new connections of these listeners from now on, those of such `peers`, and takes all others.
    /// On a byte stream a connection is closed at its accept, or once a balancer has told its client. On QUIC its first
    /// packet is answered with CONNECTION_REFUSED.
    ///
    /// The simulation takes all.
    fn refuse_newcomers(&mut self, listeners: &[u16], peers: &RefusedPeers) {
        let _ = (listeners, peers);
    }

    /// Drops what the peer of a QUIC connection sends, while at least so many bytes of it are
    /// [unread](Self::unread_bytes): flow control cannot take back the credit that the peer has. To the peer the datagrams
    /// are lost on the way. `u32::MAX` ends that.
    ///
    /// The simulation drops nothing.
    fn cap_unread(&mut self, connection: ConnectionId, most_bytes: u32) {
        let _ = (connection, most_bytes);
    }

    /// Live figures of the connection's path.
    fn path(&self, connection: ConnectionId) -> PathStatistics;

    /// Shows the paths of up to `most` open connections. The next call goes on behind them, so that
    /// calls at intervals are a sample of all.
    ///
    /// The simulation shows none.
    fn survey(&mut self, most: usize, each: &mut dyn FnMut(&ConnectionInfo, &PathStatistics)) {
        let _ = (most, each);
    }

    /// Shows the open connections in the order of their places, beginning at the place `from`. It stops when `each`
    /// returns false or `most` places were looked at. Returns the place to go on with; `None` at the end.
    ///
    /// A connection keeps its place, so that calls with the returned places show each one once.
    fn connections(
        &self,
        from: usize,
        most: usize,
        each: &mut dyn FnMut(ConnectionId) -> bool,
    ) -> Option<usize> {
        let _ = (from, most, each);
        None
    }

    /// Starts a trace of the connection as qlog (version 0.4, JSON text sequence); `None` ends it.
    ///
    /// The end of the connection drops the sink. Byte-stream transports and the simulation have no
    /// trace and drop it at once.
    fn trace(&mut self, connection: ConnectionId, trace: Option<Trace>) {
        let _ = (connection, trace);
    }
}

/// Minimum size in bytes of payloads for [`Network::send_shared`]; a copy of smaller ones is
/// cheaper than a shared buffer.
pub const SHARE_BYTES: usize = 2048;

/// A message protocol, driven by a shard. Every method is one step of the loop and must not block.
///
/// A panic that leaves a method ends the shard: [`crate::BoundShard::run`] unwinds. Only the handler
/// knows which of its state belongs to one connection; see [`crate::contain`].
pub trait Handler {
    /// The type of messages that other threads send to this shard.
    type Mail: Send + 'static;

    /// A turn begins: nothing of it has been told yet. The shard may have slept or stood still for any time.
    fn begin_of_turn(&mut self, net: &mut dyn Network) {
        let _ = net;
    }

    /// A connection is ready for application bytes.
    ///
    /// TCP is accepted, TLS finished, or WebSocket upgraded. QUIC has finished its handshake, or
    /// carries early data.
    fn opened(&mut self, net: &mut dyn Network, connection: ConnectionId);

    /// A handshake has failed: its client could not come in.
    fn handshake_failed(&mut self, net: &mut dyn Network, failed: FailedHandshake) {
        let _ = (net, failed);
    }

    /// Whether bytes of open connections may be read now. It is asked before each read. Where not, they stay with the kernel,
    /// and another turn follows at once or within a millisecond.
    fn takes_input(&mut self, net: &mut dyn Network) -> bool {
        let _ = net;
        true
    }

    /// Whether another end of a connection may be [told](Self::closed) in this turn. One is told in each turn
    /// in any case; where not, the rest follows in the next one.
    fn takes_ends(&mut self, net: &mut dyn Network) -> bool {
        let _ = net;
        true
    }

    /// Bytes arrived on a stream. The first chunk of a stream announces the stream.
    fn received(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>);

    /// The QUIC handshake is confirmed: early data can no longer be a replay. Not called for
    /// connections that were confirmed when they opened.
    fn confirmed(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let _ = (net, connection);
    }

    /// The peer has moved to a validated address, which [`Network::info`] now returns.
    fn migrated(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        let _ = (net, connection);
    }

    /// An unreliable datagram arrived.
    fn datagram(&mut self, net: &mut dyn Network, connection: ConnectionId, chunk: Chunk<'_>) {
        let _ = (net, connection, chunk);
    }

    /// The peer has ended one side of a stream.
    fn stream_ended(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    );

    /// The queued bytes fell from above the high watermark below the low one, or a watched stream
    /// ([`Network::watch`]) is empty.
    fn writable(&mut self, net: &mut dyn Network, connection: ConnectionId);

    /// The connection is gone. No call for it follows.
    fn closed(&mut self, net: &mut dyn Network, connection: ConnectionId, reason: &CloseReason);

    /// Takes all messages that other threads sent since the last turn, in order per sender.
    fn mail(&mut self, net: &mut dyn Network, mail: &mut Vec<Self::Mail>);

    /// The deadline that [`Handler::deadline_ms`] named has passed.
    fn timeout(&mut self, net: &mut dyn Network);

    /// The handler has received all input of this turn; queued bytes leave right after the call.
    fn end_of_turn(&mut self, net: &mut dyn Network);

    /// Time of the next [`Handler::timeout`] in ms, on the clock of [`Network::now_ms`]; `None` for
    /// no deadline.
    fn deadline_ms(&self) -> Option<u64>;

    /// Whether the shard may end its loop; asked at the end of every turn.
    fn finished(&self) -> bool;
}
