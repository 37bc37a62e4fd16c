//! Input of a byte-stream connection, up through its layers to the handler.

use std::io::{self, Read};

use super::Shard;
use super::connection::{Client, Connection, Hangup, Phase};
use super::core::Core;
use crate::contain::contain;
use crate::proxy_header;
use crate::tls::{PARTIAL_ROOM, TlsFailure};
use crate::udp::canonical;
use crate::websocket::{self, Upgrade};
use crate::{
    CHUNK_BYTES, Chunk, CloseReason, ConnectionId, Handler, HandshakeFault, StreamEnd, StreamId,
};

impl<H: Handler> Shard<H> {
    /// Reads from a connection that has something to read, once.
    pub(super) fn attend(&mut self, id: ConnectionId) {
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        connection.queued = false;
        if !connection.wants_input() {
            return;
        }
        let phase = connection.phase;
        if (self.reading).is_over(self.core.config.reading_per_turn_ms) {
            return self.hold_back(id);
        }
        if phase == Phase::Handshake {
            if self.handshakes_left == 0 {
                return self.hold_back(id);
            }
            self.handshakes_left -= 1;
        } else if phase == Phase::Open && !self.handler.takes_input(&mut self.core) {
            self.is_held_back = true;
            return self.hold_back(id);
        }
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        let room_bytes = self.read_bytes;
        let room = &mut self.scratch.read[PARTIAL_ROOM..][..room_bytes];
        let read = connection.socket.read(room);
        self.has_read = true;
        // Letters posted before the peer sent these bytes go first: another shard's answer may have told the peer of
        // them.
        self.mail();
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        match read {
            Ok(0) if connection.is_cut() => self.core.end_unwritten(id),
            Ok(0) => {
                connection.peer_side.end();
                connection.readable = false;
                self.stream_ended(id);
            }
            Ok(count) => {
                connection.received_bytes += count as u64;
                let counters = self.core.counters.listener(connection.info.listener);
                counters.received_bytes.add(count as u64);
                // A short read has emptied the queue: further bytes raise another event. Only an
                // end of the stream that was announced already does not.
                let more = count == room_bytes || connection.hangup != Hangup::None;
                connection.readable = more;
                self.digest(id, count);
                if more
                    && self
                        .core
                        .connections
                        .get(id)
                        .is_some_and(Connection::wants_input)
                {
                    self.core.enqueue(id);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                self.core.end_unwritten(id);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.core.enqueue(id),
            Err(error) => self.core.fail(id, &error),
        }
    }

    /// Passes `count` bytes that were read up through the layers.
    fn digest(&mut self, id: ConnectionId, count: usize) {
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        if connection.phase == Phase::Lingering {
            return;
        }
        let mut end = PARTIAL_ROOM + count;
        if connection.awaits_header() {
            let Some(header_bytes) = self.take_header(id, count) else {
                return;
            };
            let rest = PARTIAL_ROOM + header_bytes..end;
            end -= header_bytes;
            self.scratch.read.copy_within(rest, PARTIAL_ROOM);
            if end == PARTIAL_ROOM {
                return;
            }
        }
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        if connection.tls.is_some() {
            self.decrypt(id, end);
        } else {
            let mut read = std::mem::take(&mut self.scratch.read);
            self.deframe(id, &mut read[PARTIAL_ROOM..end]);
            self.scratch.read = read;
        }
    }

    /// Reads a balancer's header. Returns how many of the `count` bytes that were read belong to it, once it is
    /// complete.
    fn take_header(&mut self, id: ConnectionId, count: usize) -> Option<usize> {
        let maximum_bytes = self.core.config.proxy_header_bytes;
        let connection = self.core.connections.get_mut(id)?;
        let Client::Unnamed(partial) = &mut connection.client else {
            return None;
        };
        let before = partial.len();
        let room = (maximum_bytes + 1).saturating_sub(before).min(count);
        let read = &self.scratch.read[PARTIAL_ROOM..PARTIAL_ROOM + room];
        partial.extend_from_slice(read);
        let header = match proxy_header::read(partial, maximum_bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return None,
            Err(detail) => {
                self.core.refuse_header(id, detail);
                return None;
            }
        };
        let balancer = connection.info.peer;
        let peer = header.client.map_or(balancer, canonical);
        let listener = connection.info.listener;
        let place = match self.core.refusing.refusal(listener, peer.ip()) {
            Some(refusal) => Err(refusal),
            None => self.core.peers.enter(peer.ip(), listener),
        };
        let admitted = place.and_then(|place| {
            let named = self.core.admission.name(peer.ip(), &self.core.config);
            named.map(|()| place)
        });
        match admitted {
            Ok(place) => {
                connection.info.peer = peer;
                connection.client = Client::Named(place);
                let is_plain = connection.tls.is_none() && connection.websocket.is_none();
                tracing::debug!(?id, %peer, %balancer, "a balancer connects for a client");
                if is_plain {
                    self.open(id);
                }
                Some(header.bytes - before)
            }
            Err(refusal) => {
                let from = (connection.info.listener, connection.info.transport, peer);
                self.core
                    .turn_away(from, (refusal, 1), Some(balancer), None);
                let detail = format!("refused: {}", refusal.name());
                self.core.cut(id, HandshakeFault::Limit, detail);
                None
            }
        }
    }

    /// The TLS layer.
    fn decrypt(&mut self, id: ConnectionId, end: usize) {
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        let Some(tls) = connection.tls.as_deref_mut() else {
            return;
        };
        let mut plaintext = std::mem::take(&mut self.scratch.plaintext);
        plaintext.clear();
        let (read, pool) = (&mut self.scratch.read, &mut self.core.pool);
        let received = match contain(|| tls.receive(read, end, &mut plaintext, pool)) {
            Ok(received) => received,
            Err(panic) => {
                plaintext.clear();
                self.scratch.plaintext = plaintext;
                return self.core.end_after_panic(id, &panic);
            }
        };
        let has_output = !tls.pending().is_empty();
        if received.opened {
            connection.info.protocol = tls.protocol().into();
            connection.info.peer_certificates = tls.peer_certificates();
            let counters = self.core.counters.listener(connection.info.listener);
            counters.handshakes.add(1);
            counters.resumed.add(u64::from(tls.is_resumed()));
        }
        if has_output {
            self.core.mark_dirty(id);
        }
        if received.opened && self.is_without_websocket(id) {
            self.open(id);
        }
        if !plaintext.is_empty() {
            self.deframe(id, &mut plaintext);
        }
        self.scratch.plaintext = plaintext;
        if let Some(error) = received.failure {
            self.tls_failed(id, error);
        } else if received.ended {
            if let Some(connection) = self.core.connections.get_mut(id) {
                connection.peer_side.end();
            }
            self.stream_ended(id);
        }
    }

    fn tls_failed(&mut self, id: ConnectionId, failure: TlsFailure) {
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        // Only the alert, if there is one, is on its way.
        if let Some(outbox) = connection.outbox.take() {
            self.core.pool.recycle_outbox(outbox);
        }
        connection.websocket = None;
        let TlsFailure { fault, detail } = failure;
        self.core.refuse(id, fault, format!("TLS: {detail}"));
    }

    fn is_without_websocket(&self, id: ConnectionId) -> bool {
        let connection = self.core.connections.get(id);
        connection.is_some_and(|connection| connection.websocket.is_none())
    }

    /// The WebSocket layer, where there is one.
    fn deframe(&mut self, id: ConnectionId, bytes: &mut [u8]) {
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        let phase = connection.phase;
        let Some(websocket) = connection.websocket.as_deref_mut() else {
            deliver(&mut self.handler, &mut self.core, id, bytes);
            return;
        };
        let mut bytes = bytes;
        if !websocket.is_upgraded() {
            match contain(|| websocket.upgrade(bytes)) {
                Err(panic) => return self.core.end_after_panic(id, &panic),
                Ok(Upgrade::Incomplete) => return,
                Ok(Upgrade::Refused {
                    status,
                    fault,
                    detail,
                }) => {
                    let detail = format!("WebSocket: {detail} (status {status})");
                    self.core.refuse(id, fault, detail);
                    return;
                }
                Ok(Upgrade::Done {
                    frames_at,
                    subprotocol,
                }) => {
                    if phase != Phase::Handshake {
                        return;
                    }
                    connection.info.protocol = subprotocol.into_bytes().into();
                    self.core.mark_dirty(id);
                    self.open(id);
                    bytes = &mut bytes[frames_at..];
                }
            }
        }
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        let Some(websocket) = connection.websocket.as_deref_mut() else {
            return;
        };
        match contain(|| websocket.decode(bytes)) {
            Err(panic) => self.core.end_after_panic(id, &panic),
            Ok(Err(violation)) => self.core.violate(id, violation),
            Ok(Ok(decoded)) => {
                if decoded.ping.is_some() {
                    self.core.mark_dirty(id);
                }
                let data = &bytes[..decoded.data_bytes];
                if !data.is_empty() {
                    deliver(&mut self.handler, &mut self.core, id, data);
                }
                if let Some(status) = decoded.close {
                    self.websocket_closed(id, status);
                }
            }
        }
    }

    /// The peer has sent a Close frame: there is no half-closed WebSocket. A handler that has paused still has to do with
    /// what came before, and closes it after that.
    fn websocket_closed(&mut self, id: ConnectionId, status: u16) {
        self.tell_finished(id);
        if let Some(connection) = self.core.connections.get_mut(id)
            && connection.pause.is_on()
        {
            connection.peer_side.end();
            return self.core.limit_half_closed(id);
        }
        let code = match status {
            websocket::code::NORMAL | websocket::code::GOING_AWAY | websocket::code::NO_STATUS => 0,
            other => u64::from(other),
        };
        self.core.begin_close(id, Some(CloseReason::Peer { code }));
    }

    /// The connection is ready for application bytes.
    fn open(&mut self, id: ConnectionId) {
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        if connection.phase != Phase::Handshake {
            return;
        }
        connection.phase = Phase::Open;
        connection.announced = true;
        let address = connection.half_open_address();
        self.core.admission.release(address);
        self.handler.opened(&mut self.core, id);
    }

    /// The peer's end of the stream was read.
    fn stream_ended(&mut self, id: ConnectionId) {
        let Some(connection) = self.core.connections.get(id) else {
            return;
        };
        match connection.phase {
            Phase::Open => {
                let websocket = connection.websocket.is_some();
                self.core.limit_half_closed(id);
                self.tell_finished(id);
                if self.is_paused(id) {
                    return;
                }
                if websocket {
                    self.core
                        .begin_close(id, Some(CloseReason::Peer { code: 0 }));
                }
                self.core.end_unwritten(id);
            }
            Phase::Handshake if connection.has_part_of_header() => {
                (self.core).refuse_header(id, "the balancer has closed before its end");
            }
            Phase::Handshake => self.core.end(id, CloseReason::Peer { code: 0 }),
            Phase::Lingering => self.core.end(id, CloseReason::Local),
            Phase::Closing | Phase::Dead => {}
        }
    }

    fn is_paused(&self, id: ConnectionId) -> bool {
        let connection = self.core.connections.get(id);
        connection.is_some_and(|connection| connection.pause.is_on())
    }

    fn tell_finished(&mut self, id: ConnectionId) {
        let open = |c: &Connection| c.phase == Phase::Open;
        if self.core.connections.get(id).is_some_and(open) {
            let end = StreamEnd::Finished;
            (self.handler).stream_ended(&mut self.core, id, StreamId::FIRST, end);
        }
    }
}

/// Hands bytes to the handler, as long as it wants any. It may look at other things between two chunks.
fn deliver<H: Handler>(handler: &mut H, core: &mut Core, id: ConnectionId, bytes: &[u8]) {
    let open = |c: &Connection| c.phase == Phase::Open;
    for bytes in bytes.chunks(CHUNK_BYTES) {
        if !core.connections.get(id).is_some_and(open) {
            return;
        }
        let chunk = Chunk {
            stream: StreamId::FIRST,
            bytes,
            early: false,
            confirmed: true,
        };
        handler.received(core, id, chunk);
    }
}
