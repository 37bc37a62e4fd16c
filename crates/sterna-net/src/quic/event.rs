//! Input and output of a driver.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use quinn_proto::EcnCodepoint;

use crate::{CloseReason, ConnectionInfo, FailedHandshake, FaultCounts, StreamId};

/// A connection of one driver. Keys of connections that are gone are harmless: calls with them do
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Index into the driver's table; small numbers, reused.
    pub slot: u32,
    /// Number of earlier uses of the slot.
    pub generation: u32,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}.{}", self.slot, self.generation)
    }
}

/// An event of a connection.
#[derive(Clone, Debug)]
pub struct DriverEvent {
    /// The connection it happened to.
    pub connection: Key,
    /// The event itself.
    pub kind: EventKind,
}

/// An event of a connection.
///
/// `Opened` is the first event of every connection and `Closed` the last. A connection whose handshake fails has
/// [`EventKind::HandshakeFailed`], and neither of these unless it has opened with early data.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The connection carries early data or has finished its handshake.
    Opened {
        /// Known facts of it. The listener is the one of [`super::Placement`].
        info: Box<ConnectionInfo>,
        /// Whether the handshake is finished; otherwise `Confirmed` follows.
        confirmed: bool,
    },
    /// A handshake has failed.
    HandshakeFailed {
        /// Known facts of it.
        failed: Box<FailedHandshake>,
    },
    /// Bytes arrived on a stream, in order.
    Chunk {
        /// The stream.
        stream: StreamId,
        /// The bytes; a slice of the decrypted packet, not a copy.
        bytes: Bytes,
        /// Whether they were read before the handshake finished, thus arrived as 0-RTT data.
        early: bool,
        /// Whether the handshake was confirmed when they were handed up.
        confirmed: bool,
    },
    /// The peer ended its sending side of a stream in order.
    Finished {
        /// The stream.
        stream: StreamId,
    },
    /// The peer aborted its side of a stream (RESET_STREAM).
    Aborted {
        /// The stream.
        stream: StreamId,
        /// The application error code.
        code: u64,
    },
    /// The peer takes nothing more from a stream (STOP_SENDING). This side was reset in answer; the
    /// peer's side continues.
    Stopped {
        /// The stream.
        stream: StreamId,
        /// The application error code.
        code: u64,
    },
    /// An unreliable datagram arrived (RFC 9221).
    Datagram {
        /// Its payload.
        bytes: Bytes,
        /// See [`EventKind::Chunk`].
        early: bool,
        /// See [`EventKind::Chunk`].
        confirmed: bool,
    },
    /// The handshake of a connection that opened with early data has finished.
    Confirmed,
    /// The unsent bytes fell below the low watermark after they had been above the high one, or a
    /// watched stream is empty.
    Writable,
    /// The peer sends from another address (migration or a new binding of a NAT) and has answered a
    /// path challenge there.
    PeerAddressChanged {
        /// The address it sends from now.
        peer: SocketAddr,
    },
    /// The connection is gone. No event for it follows.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// Datagrams of one destination to hand to the socket in one call.
#[derive(Clone, Copy, Debug)]
pub struct DatagramBatch<'a> {
    /// Address and port of the receiver.
    pub destination: SocketAddr,
    /// The local address to send from, where the socket is bound to several.
    pub source_ip: Option<IpAddr>,
    /// The ECN codepoint to set.
    pub ecn: Option<EcnCodepoint>,
    /// The size of every datagram but the last, where `bytes` holds several (GSO).
    pub segment_bytes: Option<usize>,
    /// The datagrams, back to back.
    pub bytes: &'a [u8],
}

/// The socket's result for a [`DatagramBatch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Taken, or refused for good (which counts as loss on the path).
    Done,
    /// The socket would block: the driver keeps the bytes and offers them first next time.
    Blocked,
}

/// The result of [`super::Driver::transmit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// Everything that may leave now has left.
    Complete,
    /// The socket blocked: call again once it is writable.
    Blocked,
    /// As many bytes have left as may in one turn ([`super::QuicConfig::sent_per_turn_bytes`]). The rest is for the next one.
    Spent,
}

/// A driver's counts since its creation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Connections whose handshake was begun.
    pub accepted: u64,
    /// Connections that finished their handshake.
    pub confirmed: u64,
    /// Number of handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Connections that opened with early data.
    pub opened_early: u64,
    /// Connections that finished their handshake, and whose early data was refused.
    pub early_refused: u64,
    /// Handshakes that failed or timed out, by fault in the order of [`crate::HandshakeFault::ALL`].
    pub failed: FaultCounts,
    /// First packets answered with Retry.
    pub retried: u64,
    /// First packets left unanswered, or refused, because of a limit on connections.
    pub ignored: u64,
    /// Datagrams dropped because a client, or all of them, sent too much early data.
    pub early_dropped: u64,
    /// Datagrams dropped because too much of their connections was unread, see [`crate::Network::cap_unread`].
    pub unread_dropped: u64,
    /// Datagrams held back until the handshake finished.
    pub held_back: u64,
    /// Datagrams dropped because too many were held back.
    pub held_back_dropped: u64,
    /// Datagrams, or batches of them, held back or dropped. More would have left for an unproved
    /// address than RFC 9000 allows (section 8).
    pub amplification_stops: u64,
    /// Changes of a peer's address, those that were validated.
    pub migrations: u64,
}
