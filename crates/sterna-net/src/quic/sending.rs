//! The sending side of a connection, and its end.

use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Dir, Side, StreamId, Transmit, VarInt};
use sterna_quic::Meter;

use super::config::code;
use super::connection::{Closing, Connected, Patience, Shared, Stage};
use super::event::EventKind;
use super::outgoing::{Pool, StreamQueues};
use super::tls;
use crate::CloseReason;

/// Times the linger time that a connection may take to close, however it goes on.
const MOST_LINGERS: u32 = 10;
/// Streams that are looked at for one that is open when a connection is closed, counted from the last.
const MAX_LOOKED_AT: u64 = 65_536;
/// Streams that the handler may use before the peer has permitted them.
const MAX_WAITING_OPENS: u64 = 64;

impl Connected {
    /// Builds the next datagrams, and has the client answer the first one with new keys.
    ///
    /// That packet may be an acknowledgement, which a silent client leaves without an answer. Some libraries (quinn-proto
    /// 0.11.19) let the client change keys again all the same, which RFC 9001, section 6.1, forbids. A server that has
    /// seen no packet of the phase between takes the next one for one of the phase before. The connection is deaf from
    /// then on. The PING brings a packet of this phase.
    pub(super) fn build(
        &mut self,
        shared: &Shared,
        most: usize,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let transmit = self.quic.poll_transmit(shared.now, most, buffer);
        if tls::has_changed_keys() {
            self.quic.ping();
        }
        transmit
    }

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

    fn queue(&mut self, pool: &mut Pool, stream: StreamId) -> Option<&mut StreamQueues> {
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
        if self.drop_queued(shared, stream) {
            self.emit(shared, EventKind::Writable);
        }
        let sends = stream.initiator() == Side::Server || stream.dir() == Dir::Bi;
        if sends && self.exists(stream) {
            self.trace_stream(shared, stream, "reset_sent");
            let _ = self.quic.send_stream(stream).reset(code(reason));
        }
    }

    /// Drops the waiting bytes of a stream; returns whether the handler wants to know that none wait.
    pub(super) fn drop_queued(&mut self, shared: &mut Shared, stream: StreamId) -> bool {
        let outgoing = self.outgoing.as_mut();
        outgoing.is_some_and(|outgoing| outgoing.drop_stream(&mut shared.pool, stream))
    }

    pub(super) fn stop(&mut self, shared: &Shared, stream: StreamId, reason: u64) {
        let receives = stream.initiator() == Side::Client || stream.dir() == Dir::Bi;
        if self.is_usable() && receives && self.exists(stream) {
            let _ = self.quic.recv_stream(stream).stop(code(reason));
            self.gaps.ended(stream);
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

    /// Begins to close: earlier bytes are delivered first, as far as that works in time. The end of
    /// a stream confirms the delivery, so the streams that the client opened end. Streams of this
    /// end may have to last as long as the connection (RFC 9114, section 6.2.1).
    pub(super) fn close(&mut self, shared: &mut Shared, reason: u64) {
        if !self.is_usable() {
            return;
        }
        self.stage = Stage::Lingering;
        self.drop_unread(shared);
        let is_settled = self.is_settled(shared);
        let ends_all = self.outgoing.as_mut().is_none_or(|outgoing| {
            outgoing.finish_where(|stream| stream.initiator() == Side::Client)
        });
        let has_own = self.opened.iter().any(|opened| *opened > 0);
        let is_unsettled = !ends_all || (has_own && !is_settled);
        let awaited = if is_settled {
            Vec::new()
        } else {
            self.finish_streams()
        };
        self.closing = Some(Box::new(Closing {
            code: code(reason),
            patience: None,
            awaited,
            is_unsettled,
        }));
    }

    /// Ends the streams of the client's on which nothing is queued; returns them. Those that are still
    /// open are its first ones and its last ones, as a rule.
    fn finish_streams(&mut self) -> Vec<StreamId> {
        let mut ended = Vec::new();
        let mut open = self.quic.streams().send_streams();
        let count = self.accepted[Dir::Bi as usize];
        let last = count.saturating_sub(MAX_LOOKED_AT).max(1);
        let numbers = (0..count.min(1)).chain((last..count).rev());
        for stream in numbers.map(|number| StreamId::new(Side::Client, Dir::Bi, number)) {
            if open == 0 {
                break;
            }
            if self
                .outgoing
                .as_ref()
                .is_some_and(|queued| queued.has(stream))
            {
                open -= 1;
            } else if self.quic.send_stream(stream).finish().is_ok() {
                open -= 1;
                ended.push(stream);
            }
        }
        ended
    }

    /// The time for the end is over, unless the peer has acknowledged something since the last look.
    pub(super) fn lose_patience(&mut self, shared: &mut Shared) {
        let meter = Meter::of(&self.quic);
        let wait = self.linger(shared, &meter);
        if let Some(patience) = self.closing.as_mut().and_then(|it| it.patience.as_mut())
            && patience.acknowledged != meter.acknowledged()
            && shared.now < patience.last
        {
            patience.acknowledged = meter.acknowledged();
            patience.deadline = (shared.now + wait).min(patience.last);
            return;
        }
        let peer = self.quic.remote_address();
        let unsent_bytes = self.unsent_bytes();
        let now_ms = shared.clock.at(shared.now);
        if let Some(more) = shared.closed_over_data.pass(now_ms) {
            tracing::info!(%peer, unsent_bytes, more, "closed over data that the client has not acknowledged");
        }
        self.close_now(shared);
    }

    /// Time for the peer's next acknowledgement: at least three probe timeouts (RFC 9002, section
    /// 6.2.1).
    fn linger(&self, shared: &Shared, meter: &Meter) -> Duration {
        let settings = &shared.config.settings;
        let max_ack_delay = Duration::from_millis(settings.max_ack_delay_ms.into());
        let probe_timeout = self.quic.rtt() + 4 * meter.variance() + max_ack_delay;
        shared.config.linger.max(3 * probe_timeout)
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
        if self.stage != Stage::Lingering {
            return false;
        }
        let wants_patience = self
            .closing
            .as_ref()
            .is_some_and(|it| it.patience.is_none());
        if wants_patience {
            let meter = Meter::of(&self.quic);
            let (now, wait) = (shared.now, self.linger(shared, &meter));
            let last = now + wait.max(shared.config.linger * MOST_LINGERS);
            if let Some(closing) = &mut self.closing {
                closing.patience = Some(Patience {
                    deadline: now + wait,
                    last,
                    acknowledged: meter.acknowledged(),
                });
            }
        }
        let (is_awaited, is_unsettled) = self.closing.as_ref().map_or((false, false), |it| {
            (!it.awaited.is_empty(), it.is_unsettled)
        });
        let delivered = self.outgoing.is_none()
            && !is_awaited
            && !self.quic.has_pending_retransmits()
            && (!is_unsettled || self.is_settled(shared));
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

    /// Hands the library as many of the waiting bytes as it takes.
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
