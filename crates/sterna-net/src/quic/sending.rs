//! The sending side of a connection, and its end.

use bytes::Bytes;
use quinn_proto::{Dir, Side, StreamId, VarInt};

use super::config::code;
use super::connection::{Closing, Connected, Shared, Stage};
use super::event::EventKind;
use super::outgoing::{Outgoing, Pool};
use crate::CloseReason;

/// Streams that the handler may use before the peer has permitted them.
const MAX_WAITING_OPENS: u64 = 64;

impl Connected {
    /// Whether the handler may send on the stream: the client opened it, or we may.
    fn may_send(&self, stream: StreamId) -> bool {
        let dir = stream.dir() as usize;
        match stream.initiator() {
            Side::Client => stream.dir() == Dir::Bi && stream.index() < self.accepted[dir],
            Side::Server => stream.index() < self.opened[dir] + MAX_WAITING_OPENS,
        }
    }

    fn exists(&self, stream: StreamId) -> bool {
        let dir = stream.dir() as usize;
        match stream.initiator() {
            Side::Client => stream.index() < self.accepted[dir],
            Side::Server => stream.index() < self.opened[dir],
        }
    }

    fn queue(&mut self, pool: &mut Pool, stream: StreamId) -> Option<&mut Outgoing> {
        if !self.is_usable() || !self.may_send(stream) {
            tracing::debug!(connection = ?self.key, %stream, "nothing can be sent on this stream");
            return None;
        }
        Some(self.outgoing.get_or_insert_with(|| pool.take()))
    }

    pub(super) fn send(&mut self, shared: &mut Shared, stream: StreamId, bytes: &[u8]) {
        let high = shared.config.high_watermark_bytes;
        if let Some(outgoing) = self.queue(&mut shared.pool, stream) {
            outgoing.push(&mut shared.pool, stream, bytes, high);
            self.check_unsent(shared);
        }
    }

    pub(super) fn send_shared(&mut self, shared: &mut Shared, stream: StreamId, bytes: Bytes) {
        let high = shared.config.high_watermark_bytes;
        if let Some(outgoing) = self.queue(&mut shared.pool, stream) {
            outgoing.push_shared(&mut shared.pool, stream, bytes, high);
            self.check_unsent(shared);
        }
    }

    fn check_unsent(&mut self, shared: &mut Shared) {
        let unsent_bytes = self.unsent_bytes();
        if unsent_bytes > shared.config.max_unsent_bytes {
            self.quic.close(
                shared.now,
                VarInt::from_u32(0),
                Bytes::from_static(b"too slow"),
            );
            let why = format!("{unsent_bytes} bytes unsent: the peer takes nothing");
            self.end(shared, CloseReason::Failed(why));
        }
    }

    /// Largest unreliable datagram that the peer and the path take; 0 where there are none.
    pub(super) fn datagram_bytes(&mut self) -> usize {
        self.quic.datagrams().max_size().unwrap_or(0)
    }

    pub(super) fn send_datagram(&mut self, bytes: Bytes) -> bool {
        let length = bytes.len();
        if let Some(handshake) = &self.handshake
            && handshake.allowance < length
        {
            return false;
        }
        let sent = self.is_usable() && self.quic.datagrams().send(bytes, true).is_ok();
        if sent {
            self.figures.sent_payload_bytes += length as u64;
        }
        if sent && let Some(handshake) = &mut self.handshake {
            handshake.allowance -= length;
        }
        sent
    }

    pub(super) fn finish(&mut self, shared: &mut Shared, stream: StreamId) {
        if let Some(outgoing) = self.queue(&mut shared.pool, stream) {
            outgoing.finish(&mut shared.pool, stream);
        }
    }

    /// Aborts both halves, either of which may be over.
    pub(super) fn abort(&mut self, shared: &mut Shared, stream: StreamId, reason: u64) {
        self.reset(shared, stream, reason);
        self.stop(shared, stream, reason);
    }

    pub(super) fn reset(&mut self, shared: &mut Shared, stream: StreamId, reason: u64) {
        if !self.is_usable() {
            return;
        }
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.drop_stream(&mut shared.pool, stream);
        }
        let sends = stream.initiator() == Side::Server || stream.dir() == Dir::Bi;
        if sends && self.exists(stream) {
            self.trace_stream(shared, stream, "reset_sent");
            let _ = self.quic.send_stream(stream).reset(code(reason));
        }
    }

    pub(super) fn stop(&mut self, shared: &Shared, stream: StreamId, reason: u64) {
        let receives = stream.initiator() == Side::Client || stream.dir() == Dir::Bi;
        if self.is_usable() && receives && self.exists(stream) {
            let _ = self.quic.recv_stream(stream).stop(code(reason));
            self.readable.retain(|readable| *readable != stream);
            self.tend_limit(shared, stream.dir());
        }
    }

    pub(super) fn unsent_on(&self, stream: StreamId) -> usize {
        let outgoing = self.outgoing.as_ref();
        outgoing.map_or(0, |outgoing| outgoing.unsent_on(stream))
    }

    /// Has the handler told when a stream is empty.
    pub(super) fn watch(&mut self, shared: &mut Shared, stream: StreamId) {
        let is_waiting = self
            .outgoing
            .as_mut()
            .is_some_and(|outgoing| outgoing.watch(stream));
        if !is_waiting {
            self.emit(shared, EventKind::Writable);
        }
    }

    /// Begins to close: what is queued is delivered first, as far as that works in time.
    pub(super) fn close(&mut self, reason: u64) {
        if !self.is_usable() {
            return;
        }
        self.stage = Stage::Lingering;
        self.readable = Vec::new();
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.finish_all();
        }
        self.closing = Some(Box::new(Closing {
            code: code(reason),
            deadline: None,
            awaited: Vec::new(),
        }));
    }

    pub(super) fn close_now(&mut self, shared: &mut Shared) {
        let code = self
            .closing
            .as_ref()
            .map_or(VarInt::from_u32(0), |closing| closing.code);
        self.quic.close(shared.now, code, Bytes::new());
        self.end(shared, CloseReason::Local);
    }

    /// Closes if that was asked for and everything queued has arrived; returns whether it did.
    pub(super) fn close_if_delivered(&mut self, shared: &mut Shared) -> bool {
        if let Some(closing) = &mut self.closing {
            closing
                .deadline
                .get_or_insert(shared.now + shared.config.linger);
        }
        let delivered = self.stage == Stage::Lingering
            && self.outgoing.is_none()
            && self
                .closing
                .as_ref()
                .is_none_or(|closing| closing.awaited.is_empty())
            && !self.quic.has_pending_retransmits();
        if delivered {
            self.close_now(shared);
        }
        delivered
    }

    /// Closes at once because the shard stops.
    pub(super) fn shut_down(&mut self, shared: &mut Shared, reason: u64) {
        if !matches!(self.stage, Stage::Closed | Stage::Left) {
            self.flush(shared);
            self.quic.close(shared.now, code(reason), Bytes::new());
            self.end(shared, CloseReason::Shutdown);
        }
    }

    /// Hands the library what it takes of what waits.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        let Some(mut outgoing) = self.outgoing.take() else {
            return;
        };
        let opened = &mut self.opened;
        let low = shared.config.low_watermark_bytes;
        let mut unlimited = usize::MAX;
        let allowance = match &mut self.handshake {
            Some(handshake) => &mut handshake.allowance,
            None => &mut unlimited,
        };
        let allowed = *allowance;
        let pool = &mut shared.pool;
        let flushed = outgoing.flush(pool, &mut self.quic, low, allowance, |quic, stream| {
            let opened = &mut opened[stream.dir() as usize];
            while stream.initiator() == Side::Server && stream.index() >= *opened {
                if quic.streams().open(stream.dir()).is_none() {
                    return false;
                }
                *opened += 1;
            }
            true
        });
        self.figures.sent_payload_bytes += (allowed - *allowance) as u64;
        if outgoing.is_empty() {
            shared.pool.recycle(outgoing);
        } else {
            self.outgoing = Some(outgoing);
        }
        if let Some(closing) = &mut self.closing {
            closing.awaited.extend(flushed.finished);
        }
        if flushed.writable {
            self.emit(shared, EventKind::Writable);
        }
    }
}
