//! Bytes that wait to be sent on a connection's streams.
//!
//! A connection has a [`StreamQueues`] only while bytes wait. Its memory then returns to a pool and serves
//! the next connection. Small messages of one turn gather in one buffer for each stream, and go to the QUIC
//! library in one write. That is a copy of their exact size, so no spare capacity is held until the
//! acknowledgement.
//!
//! All copies are counted from the call that queues them until the peer has acknowledged them. Then the library drops
//! its last share of a [`Copied`]. Bytes that are queued without a copy belong to their owner, and are not counted
//! here.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use quinn_proto::{Connection, StreamId, WriteError};

/// Buffers kept for reuse.
const POOLED: usize = 64;
/// Larger ones are freed.
const POOLED_BYTES: usize = 64 * 1024;

/// Bytes that are gone from the front of a buffer before the rest moves up.
const COMPACTED_BYTES: usize = 4 * 1024;

/// Bytes that are handed to the library as one copy at most: of a copy it may take the beginning alone.
const COPY_BYTES: usize = 8 * 1024;

/// Bytes of copies that wait to be sent, or to be acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<AtomicU64>);

impl Held {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.0.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// A copy that is counted until its last share is dropped.
    fn copy(&self, bytes: &[u8]) -> Bytes {
        self.add(bytes.len());
        Bytes::from_owner(Copied {
            bytes: bytes.into(),
            held: self.clone(),
        })
    }
}

/// A copy that is counted.
struct Copied {
    bytes: Box<[u8]>,
    held: Held,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.held.remove(self.bytes.len());
    }
}

/// Parts for reuse.
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) held: Held,
    buffers: Vec<Vec<u8>>,
    #[expect(
        clippy::vec_box,
        reason = "the boxes move between the pool and the connections"
    )]
    outgoing: Vec<Box<StreamQueues>>,
}

impl Pool {
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "the boxes are what is pooled"
    )]
    pub(super) fn take(&mut self) -> Box<StreamQueues> {
        self.outgoing.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, mut outgoing: Box<StreamQueues>) {
        for lane in outgoing.lanes.drain(..) {
            self.held.remove(lane.copied_bytes());
            recycle(&mut self.buffers, lane.tail);
        }
        if self.outgoing.len() < POOLED {
            outgoing.unsent_bytes = 0;
            outgoing.above = false;
            self.outgoing.push(outgoing);
        }
    }
}

fn recycle(buffers: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if buffers.len() < POOLED && (1..=POOLED_BYTES).contains(&buffer.capacity()) {
        buffer.clear();
        buffers.push(buffer);
    }
}

/// All streams of a connection on which something waits.
#[derive(Debug, Default)]
pub(super) struct StreamQueues {
    lanes: Vec<Lane>,
    unsent_bytes: usize,
    /// Whether the high watermark was passed and not yet the low one.
    above: bool,
}

/// The waiting bytes of one stream: first `queue`, then `tail` from `start` on, then the end.
#[derive(Debug)]
struct Lane {
    stream: StreamId,
    queue: VecDeque<Bytes>,
    tail: Vec<u8>,
    start: usize,
    finish: bool,
    /// Whether the library refused more until it says otherwise, or the allowance is used up.
    blocked: bool,
    /// Whether the handler wants to know when nothing waits any more.
    watched: bool,
}

impl Lane {
    fn unsent_bytes(&self) -> usize {
        self.queue.iter().map(Bytes::len).sum::<usize>() + self.copied_bytes()
    }

    /// Bytes that wait behind the queue.
    const fn copied_bytes(&self) -> usize {
        self.tail.len() - self.start
    }
}

/// The result of a flush.
#[derive(Default, Debug)]
pub(super) struct Flushed {
    /// Streams whose end was handed over.
    pub(super) finished: Vec<StreamId>,
    /// Whether the low watermark was passed, or a stream that is watched is empty.
    pub(super) writable: bool,
}

impl StreamQueues {
    pub(super) const fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Bytes that wait on one stream.
    pub(super) fn unsent_on(&self, stream: StreamId) -> usize {
        let lane = self.lanes.iter().find(|lane| lane.stream == stream);
        lane.map_or(0, Lane::unsent_bytes)
    }

    /// Requests a report when the waiting bytes of a stream have left; false if none wait.
    pub(super) fn watch(&mut self, stream: StreamId) -> bool {
        let lane = self.lanes.iter_mut().find(|lane| lane.stream == stream);
        lane.map(|lane| lane.watched = true).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    fn lane(&mut self, stream: StreamId, buffers: &mut Vec<Vec<u8>>) -> &mut Lane {
        // Few streams have something to say in one turn, and the last one is the likeliest.
        let at = self
            .lanes
            .iter()
            .rposition(|lane| lane.stream == stream)
            .unwrap_or_else(|| {
                self.lanes.push(Lane {
                    stream,
                    queue: VecDeque::new(),
                    tail: buffers.pop().unwrap_or_default(),
                    start: 0,
                    finish: false,
                    blocked: false,
                    watched: false,
                });
                self.lanes.len() - 1
            });
        &mut self.lanes[at]
    }

    /// Queues a copy of the bytes.
    pub(super) fn push(&mut self, pool: &mut Pool, stream: StreamId, bytes: &[u8], high: usize) {
        let lane = self.lane(stream, &mut pool.buffers);
        if lane.finish {
            return;
        }
        lane.tail.extend_from_slice(bytes);
        pool.held.add(bytes.len());
        self.added(bytes.len(), high);
    }

    /// Queues the bytes without a copy.
    pub(super) fn push_shared(
        &mut self,
        pool: &mut Pool,
        stream: StreamId,
        bytes: Bytes,
        high: usize,
    ) {
        let lane = self.lane(stream, &mut pool.buffers);
        if lane.finish || bytes.is_empty() {
            return;
        }
        if lane.tail.len() > lane.start {
            let copy = pool.held.copy(&lane.tail[lane.start..]);
            pool.held.remove(copy.len());
            lane.queue.push_back(copy);
        }
        lane.tail.clear();
        lane.start = 0;
        let added = bytes.len();
        lane.queue.push_back(bytes);
        self.added(added, high);
    }

    fn added(&mut self, bytes: usize, high: usize) {
        self.unsent_bytes += bytes;
        self.above |= self.unsent_bytes >= high;
    }

    /// Ends the stream after the waiting bytes.
    pub(super) fn finish(&mut self, pool: &mut Pool, stream: StreamId) {
        self.lane(stream, &mut pool.buffers).finish = true;
    }

    /// Ends the streams on which something waits and that are so; whether all are.
    pub(super) fn finish_where(&mut self, is_so: impl Fn(StreamId) -> bool) -> bool {
        let mut all = true;
        for lane in &mut self.lanes {
            lane.finish |= is_so(lane.stream);
            all &= lane.finish;
        }
        all
    }

    /// Whether something waits on a stream.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        self.lanes.iter().any(|lane| lane.stream == stream)
    }

    /// Drops the waiting bytes of a stream; returns whether the handler wants to know that none wait.
    #[must_use]
    pub(super) fn drop_stream(&mut self, pool: &mut Pool, stream: StreamId) -> bool {
        let Some(at) = self.lanes.iter().position(|lane| lane.stream == stream) else {
            return false;
        };
        let lane = self.lanes.remove(at);
        self.unsent_bytes -= lane.unsent_bytes();
        pool.held.remove(lane.copied_bytes());
        recycle(&mut pool.buffers, lane.tail);
        lane.watched
    }

    /// The library takes more on this stream, or on all of them.
    pub(super) fn unblock(&mut self, stream: Option<StreamId>) {
        for lane in &mut self.lanes {
            if stream.is_none_or(|stream| stream == lane.stream) {
                lane.blocked = false;
            }
        }
    }

    /// Hands the library as many bytes as it takes, up to `allowance`, which is reduced by them.
    /// `open` returns whether a stream exists, and opens it if this end may open it.
    pub(super) fn flush(
        &mut self,
        pool: &mut Pool,
        connection: &mut Connection,
        low: usize,
        allowance: &mut usize,
        mut open: impl FnMut(&mut Connection, StreamId) -> bool,
    ) -> Flushed {
        let mut flushed = Flushed::default();
        let unsent_bytes = &mut self.unsent_bytes;
        self.lanes.retain_mut(|lane| {
            if lane.blocked {
                return true;
            }
            if !open(connection, lane.stream) {
                lane.blocked = true;
                return true;
            }
            let before = lane.unsent_bytes();
            let gone = match lane.write(&pool.held, connection, allowance) {
                Ok(()) => true,
                Err(WriteError::Blocked) => {
                    lane.blocked = true;
                    false
                }
                // The peer wants no more of it, which it says in an event, or the stream is over.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    lane.queue.clear();
                    pool.held.remove(lane.copied_bytes());
                    lane.start = lane.tail.len();
                    lane.finish = false;
                    true
                }
            };
            *unsent_bytes -= before - lane.unsent_bytes();
            if gone {
                flushed.writable |= lane.watched;
                if lane.finish && connection.send_stream(lane.stream).finish().is_ok() {
                    flushed.finished.push(lane.stream);
                }
                recycle(&mut pool.buffers, mem::take(&mut lane.tail));
            }
            !gone
        });
        if self.above && self.unsent_bytes < low {
            self.above = false;
            flushed.writable = true;
        }
        flushed
    }
}

impl Lane {
    fn write(
        &mut self,
        held: &Held,
        connection: &mut Connection,
        allowance: &mut usize,
    ) -> Result<(), WriteError> {
        let mut stream = connection.send_stream(self.stream);
        while let Some(front) = self.queue.front_mut() {
            if *allowance == 0 {
                return Err(WriteError::Blocked);
            }
            let written = if front.len() > *allowance {
                // The rest keeps its place.
                let mut part = [front.slice(..*allowance)];
                let written = stream.write_chunks(&mut part)?.bytes;
                front.advance(written);
                written
            } else {
                stream.write_chunks(std::slice::from_mut(front))?.bytes
            };
            *allowance -= written;
            // A piece that was taken whole is left behind empty.
            if self.queue.front().is_some_and(Bytes::is_empty) {
                self.queue.pop_front();
            }
        }
        while self.start < self.tail.len() {
            if *allowance == 0 {
                return Err(WriteError::Blocked);
            }
            let most = COPY_BYTES.min(*allowance);
            let end = self.tail.len().min(self.start + most);
            let mut copy = [held.copy(&self.tail[self.start..end])];
            let written = stream.write_chunks(&mut copy)?.bytes;
            *allowance -= written;
            held.remove(written);
            self.advance(written);
        }
        Ok(())
    }

    /// Notes that N bytes of the tail have left. Their room is used again before it grows large:
    /// otherwise a stream that is never quite empty would grow without end.
    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start >= COMPACTED_BYTES && self.start * 2 >= self.tail.len() {
            self.tail.drain(..self.start);
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: fn() -> StreamId =
        || StreamId::new(quinn_proto::Side::Client, quinn_proto::Dir::Bi, 0);

    #[test]
    fn a_stream_that_is_never_quite_drained_stays_small() {
        let (mut outgoing, mut pool) = (StreamQueues::default(), Pool::default());
        let mut expected: VecDeque<u8> = VecDeque::new();
        for n in 0..100_000u32 {
            let bytes = [n as u8; 37];
            outgoing.push(&mut pool, STREAM(), &bytes, usize::MAX);
            expected.extend(bytes);
            let lane = &mut outgoing.lanes[0];
            let taken = expected.len().saturating_sub(500).min(40);
            assert!(lane.tail[lane.start..].iter().eq(expected.iter()) || n % 997 != 0);
            lane.advance(taken);
            expected.drain(..taken);
            assert!(lane.tail.capacity() <= 64 * 1024);
        }
    }

    #[test]
    fn what_is_queued_is_counted_and_what_is_dropped_is_not() {
        let (mut outgoing, mut pool) = (StreamQueues::default(), Pool::default());
        outgoing.push(&mut pool, STREAM(), &[1; 100], 150);
        assert!(!outgoing.above);
        outgoing.push_shared(&mut pool, STREAM(), Bytes::from_static(&[2; 100]), 150);
        outgoing.push(&mut pool, STREAM(), &[3; 10], 150);
        assert!(outgoing.above);
        assert_eq!(outgoing.unsent_bytes(), 210);
        let lane = &outgoing.lanes[0];
        assert_eq!(
            lane.queue.iter().map(Bytes::len).collect::<Vec<_>>(),
            [100, 100]
        );
        assert_eq!(lane.tail, [3; 10]);
        assert!(!outgoing.drop_stream(&mut pool, STREAM()));
        assert_eq!(outgoing.unsent_bytes(), 0);
        assert!(outgoing.is_empty());
        assert_eq!(pool.buffers.len(), 1, "the buffer serves the next stream");
        // After its end nothing is added to a stream.
        outgoing.finish(&mut pool, STREAM());
        outgoing.push(&mut pool, STREAM(), &[4; 10], 150);
        assert_eq!(outgoing.unsent_bytes(), 0);
    }
}
