//! A simulated connection: streams of bytes on their way in both directions.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::{CloseReason, ConnectionId, ConnectionInfo, StreamId, TransportKind};

/// One direction of a stream.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    pub(super) finish: bool,
    pub(super) abort: Option<u64>,
    /// Whether a delivery is scheduled.
    pub(super) scheduled: bool,
    /// Whether the end was delivered, or the reader has left.
    pub(super) over: bool,
}

impl Pipe {
    /// Whether there is something to deliver.
    pub(super) fn is_loaded(&self) -> bool {
        !self.over && (!self.bytes.is_empty() || self.finish || self.abort.is_some())
    }

    /// Ends the pipe; returns the number of bytes lost in it.
    pub(super) fn drop_bytes(&mut self) -> usize {
        let lost = self.bytes.len();
        self.bytes = VecDeque::new();
        lost
    }
}

/// Received bytes at the client's end of a stream.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) bytes: Vec<u8>,
    pub(super) finished: bool,
    pub(super) aborted: Option<u64>,
}

/// Both directions of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) up: Pipe,
    pub(super) down: Pipe,
    pub(super) inbox: Inbox,
    /// Whether the server wants a report when its bytes have left.
    pub(super) watched: bool,
}

/// The ends that have stopped reading.
#[derive(Debug, Default)]
pub(super) struct Paused {
    pub(super) server: bool,
    /// When the server's newest pause began.
    pub(super) server_since_us: u64,
    pub(super) client: bool,
}

/// The fate of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Whole,
    /// The server will learn of its end.
    Ending,
    /// The same, and nothing gets through any more.
    Cut,
}

/// A simulated connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) shard: usize,
    /// The server's identifier, from the moment it is told of the connection until its end.
    pub(super) id: Option<ConnectionId>,
    pub(super) info: ConnectionInfo,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    pub(super) confirmed: bool,
    /// Streams that the client opened so far: bidirectional and unidirectional.
    pub(super) opened: [u64; 2],
    pub(super) delay_up_us: u64,
    pub(super) delay_down_us: u64,
    /// Before this moment nothing arrives at the server.
    pub(super) open_at_us: u64,
    pub(super) paused: Paused,
    /// Bytes on their way to the client, on all streams.
    pub(super) down_bytes: usize,
    /// Bytes on their way to the server, on all streams.
    pub(super) up_bytes: usize,
    /// Whether the high watermark was passed and not yet the low one.
    pub(super) above: bool,
    /// The server closes, with this code, once everything has been passed on.
    pub(super) server_closing: Option<u64>,
    /// The client closes, with this code, once everything has been passed on.
    pub(super) client_closing: Option<u64>,
    pub(super) fate: Fate,
    /// The client's reason for the end of the connection.
    pub(super) client_closed: Option<CloseReason>,
    /// Unreliable datagrams that the client received.
    pub(super) datagrams: Vec<Bytes>,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    /// Changes of the client's address that the server knows of.
    pub(super) migrations: u32,
}

impl Link {
    /// Streams of which a direction is open.
    pub(super) fn open_streams(&self) -> u32 {
        let open = |stream: &&Stream| !(stream.up.over && stream.down.over);
        self.streams.values().filter(open).count() as u32
    }

    /// Whether the connection has but one stream, whose abort is its end.
    pub(super) const fn is_byte_stream(&self) -> bool {
        matches!(
            self.info.transport,
            TransportKind::Tcp
                | TransportKind::Tls
                | TransportKind::WebSocket
                | TransportKind::SecureWebSocket
        )
    }

    /// Whether the handler may use the connection.
    pub(super) const fn is_usable(&self) -> bool {
        self.id.is_some() && self.server_closing.is_none()
    }

    /// Whether the client may use the connection.
    pub(super) const fn is_open_to_client(&self) -> bool {
        self.client_closed.is_none() && self.client_closing.is_none()
    }

    pub(super) fn unsent_bytes(&self, window_bytes: usize) -> usize {
        self.down_bytes.saturating_sub(window_bytes)
    }

    /// Whether everything towards the server has arrived.
    pub(super) fn is_up_empty(&self) -> bool {
        !self.streams.values().any(|stream| stream.up.is_loaded())
    }

    /// Whether everything towards the client has arrived.
    pub(super) fn is_down_empty(&self) -> bool {
        !self.streams.values().any(|stream| stream.down.is_loaded())
    }
}
