//! The handler's commands for single connections.

use bytes::Bytes;
use quinn_proto::VarInt;

use super::Driver;
use crate::quic::Key;
use crate::quic::connection::{Connected, Shared};
use crate::{PathStatistics, StreamId, Trace};

impl Driver {
    pub(super) fn get(&self, key: Key) -> Option<&Connected> {
        let slot = self.slots.get(key.slot as usize)?;
        slot.connection
            .as_deref()
            .filter(|_| slot.generation == key.generation)
    }

    fn get_mut(&mut self, key: Key) -> Option<(&mut Connected, &mut Shared)> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        let connection = slot.connection.as_deref_mut()?;
        (slot.generation == key.generation).then_some((connection, &mut self.shared))
    }

    /// Lets `act` work on a connection that the handler may use, and has the outcome sent.
    fn with<R>(
        &mut self,
        key: Key,
        act: impl FnOnce(&mut Connected, &mut Shared) -> R,
    ) -> Option<R> {
        let (connection, shared) = self.get_mut(key)?;
        let result = act(connection, shared);
        self.mark_dirty(key.slot);
        Some(result)
    }

    /// [`crate::Network::send`]. On the server's own streams (RFC 9000, section 2.1) the first
    /// bytes open them. They wait if the peer permits no more streams yet.
    pub fn send(&mut self, key: Key, stream: StreamId, bytes: &[u8]) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| {
                connection.send(shared, stream, bytes);
            });
        }
    }

    /// [`crate::Network::send_shared`].
    pub fn send_shared(&mut self, key: Key, stream: StreamId, bytes: Bytes) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| {
                connection.send_shared(shared, stream, bytes);
            });
        }
    }

    /// [`crate::Network::send_datagram`].
    pub fn send_datagram(&mut self, key: Key, bytes: Bytes) -> bool {
        self.with(key, |connection, _| connection.send_datagram(bytes))
            .unwrap_or(false)
    }

    /// [`crate::Network::datagram_bytes`].
    pub fn datagram_bytes(&mut self, key: Key) -> usize {
        self.with(key, |connection, _| connection.datagram_bytes())
            .unwrap_or(0)
    }

    /// [`crate::Network::unsent_bytes`].
    #[must_use]
    pub fn unsent_bytes(&self, key: Key) -> usize {
        self.get(key).map_or(0, Connected::unsent_bytes)
    }

    /// [`crate::Network::unread_bytes`].
    #[must_use]
    pub fn unread_bytes(&self, key: Key) -> usize {
        self.get(key).map_or(0, Connected::unread_bytes)
    }

    /// [`crate::Network::cap_unread`].
    pub fn cap_unread(&mut self, key: Key, most_bytes: u32) {
        self.with(key, |connection, _| {
            connection.most_unread_bytes = most_bytes;
        });
    }

    /// [`crate::Network::unsent_on`].
    #[must_use]
    pub fn unsent_on(&self, key: Key, stream: StreamId) -> usize {
        let connection = self.get(key).zip(library_id(stream));
        connection.map_or(0, |(connection, stream)| connection.unsent_on(stream))
    }

    /// [`crate::Network::watch`].
    pub fn watch(&mut self, key: Key, stream: StreamId) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| connection.watch(shared, stream));
        }
    }

    /// [`crate::Network::finish`].
    pub fn finish(&mut self, key: Key, stream: StreamId) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| connection.finish(shared, stream));
        }
    }

    /// [`crate::Network::abort`].
    pub fn abort(&mut self, key: Key, stream: StreamId, code: u64) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| {
                connection.abort(shared, stream, code);
            });
        }
    }

    /// [`crate::Network::reset`].
    pub fn reset(&mut self, key: Key, stream: StreamId, code: u64) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| {
                connection.reset(shared, stream, code);
            });
        }
    }

    /// [`crate::Network::stop`].
    pub fn stop(&mut self, key: Key, stream: StreamId, code: u64) {
        if let Some(stream) = library_id(stream) {
            self.with(key, |connection, shared| {
                connection.stop(shared, stream, code);
            });
        }
    }

    /// [`crate::Network::close`]: finishes the client's streams. The connection closes when the peer has
    /// acknowledged that, and the bytes on other streams. It also closes if the peer has acknowledged
    /// nothing for [`linger`](crate::quic::QuicConfig::linger). A connection without unacknowledged bytes
    /// closes at once.
    pub fn close(&mut self, key: Key, code: u64) {
        self.with(key, |connection, shared| connection.close(shared, code));
    }

    /// [`crate::Network::pause`].
    pub fn pause(&mut self, key: Key, paused: bool) {
        if self.with(key, |connection, shared| connection.pause(shared, paused)) == Some(true) {
            self.mark_ready(key.slot);
        }
    }

    /// [`crate::Network::path`].
    #[must_use]
    pub fn path(&self, key: Key) -> PathStatistics {
        self.get(key)
            .map_or_else(PathStatistics::default, Connected::path)
    }

    /// [`crate::Network::trace`].
    pub fn trace(&mut self, key: Key, trace: Option<Trace>) {
        if let Some((connection, shared)) = self.get_mut(key) {
            connection.trace(shared, trace);
        }
    }
}

/// The library's identifier of a stream; numbers beyond 62 bits name none.
fn library_id(stream: StreamId) -> Option<quinn_proto::StreamId> {
    VarInt::from_u64(stream.0)
        .ok()
        .map(quinn_proto::StreamId::from)
}
