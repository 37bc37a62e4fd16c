//! The driver of one QUIC listener on one shard.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use quinn_proto::EcnCodepoint;

use super::{Counters, DriverEvent, Flush, Key, Outgoing, QuicConfig, Sent, SetupError};
use crate::{ConnectionId, PathStatistics, StreamId};

/// Where a driver stands among its siblings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Index of the listener in the order of the configuration.
    pub listener: u16,
    /// Index of the shard, below `shards`.
    pub shard: u16,
    /// Number of shards, from 1 to 256: connection identifiers carry the shard in their first byte.
    pub shards: u16,
}

/// One QUIC listener on one shard: all its connections, without sockets or clocks.
///
/// In a turn of its loop the shard calls [`Driver::datagram`] for what arrived and
/// [`Driver::timeout`] when [`Driver::deadline`] has passed, then [`Driver::poll_event`] until it
/// returns `None`, and at the end [`Driver::transmit`].
#[derive(Debug)]
pub struct Driver {
    counters: Counters,
}

impl Driver {
    /// Makes a driver.
    ///
    /// # Errors
    ///
    /// A setting or the TLS configuration doesn't suit QUIC.
    pub fn new(
        _config: QuicConfig,
        _tls: Arc<rustls::ServerConfig>,
        _placement: Placement,
    ) -> Result<Self, SetupError> {
        Ok(Self {
            counters: Counters::default(),
        })
    }

    /// Replaces the TLS configuration for connections to come.
    ///
    /// # Errors
    ///
    /// The configuration doesn't suit QUIC; the one in force stays.
    pub fn set_tls(&mut self, _tls: Arc<rustls::ServerConfig>) -> Result<(), SetupError> {
        Ok(())
    }

    /// Remembers the shard's identifier of a connection; see [`Driver::bound`].
    pub fn bind(&mut self, _key: Key, _id: ConnectionId) {}

    /// The identifier given with [`Driver::bind`], while the connection exists.
    #[must_use]
    pub fn bound(&self, _key: Key) -> Option<ConnectionId> {
        None
    }

    /// Takes in one datagram (GRO batches are to be split before).
    pub fn datagram(
        &mut self,
        _now: Instant,
        _local_ip: Option<IpAddr>,
        _remote: SocketAddr,
        _ecn: Option<EcnCodepoint>,
        _bytes: BytesMut,
    ) {
    }

    /// Lets everything happen that is due at `now`.
    pub fn timeout(&mut self, _now: Instant) {}

    /// When [`Driver::timeout`] wants to be called next.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The next event, in order per connection.
    pub fn poll_event(&mut self) -> Option<DriverEvent> {
        None
    }

    /// Sends what became ready: `sink` gets batches of up to `max_segments` datagrams (1 without
    /// GSO), built in `buffer`.
    pub fn transmit(
        &mut self,
        _now: Instant,
        _max_segments: usize,
        _buffer: &mut Vec<u8>,
        _sink: &mut dyn FnMut(&Outgoing<'_>) -> Sent,
    ) -> Flush {
        Flush::Complete
    }

    /// [`crate::Network::send`].
    pub fn send(&mut self, _key: Key, _stream: StreamId, _bytes: &[u8]) {}

    /// [`crate::Network::send_shared`].
    pub fn send_shared(&mut self, _key: Key, _stream: StreamId, _bytes: Bytes) {}

    /// [`crate::Network::send_datagram`].
    pub fn send_datagram(&mut self, _key: Key, _bytes: Bytes) -> bool {
        false
    }

    /// [`crate::Network::unsent_bytes`].
    #[must_use]
    pub fn unsent_bytes(&self, _key: Key) -> usize {
        0
    }

    /// [`crate::Network::finish`].
    pub fn finish(&mut self, _key: Key, _stream: StreamId) {}

    /// [`crate::Network::abort`].
    pub fn abort(&mut self, _key: Key, _stream: StreamId, _code: u64) {}

    /// [`crate::Network::close`].
    pub fn close(&mut self, _key: Key, _code: u64) {}

    /// [`crate::Network::pause`].
    pub fn pause(&mut self, _key: Key, _paused: bool) {}

    /// [`crate::Network::path`].
    #[must_use]
    pub fn path(&self, _key: Key) -> PathStatistics {
        PathStatistics::default()
    }

    /// Refuses new connections and closes those that exist, with an application error code; their
    /// `Closed` events say [`crate::CloseReason::Shutdown`].
    pub fn shutdown(&mut self, _now: Instant, _code: u64) {}

    /// Number of connections, those in their handshake or draining included.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the driver has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}
