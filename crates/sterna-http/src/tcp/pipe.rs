//! The bytes of a connection, between the transport and the library. Both ends are in memory, and
//! neither waits for the other.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use sterna_net::{ConnectionId, Network, SHARE_BYTES, StreamId};

/// Bytes that the library has not taken above which the transport is not read.
const HELD_BYTES: usize = 16 << 10;

/// Above this a buffer is given back after use instead of being kept.
const KEPT_BYTES: usize = 4 << 10;

/// The carrier's end.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    incoming: Vec<u8>,
    /// Number of bytes that the library has taken.
    taken: usize,
    is_ended: bool,
    reader: Option<Waker>,
    outgoing: Vec<u8>,
    /// Bytes that the transport had queued before this step, and those that the step has added.
    unsent_bytes: usize,
    /// Number of bytes ever handed over.
    written_bytes: u64,
    high_watermark_bytes: usize,
    writer: Option<Waker>,
    is_paused: bool,
}

impl Pipe {
    pub(super) fn new(high_watermark_bytes: usize) -> Self {
        Self {
            high_watermark_bytes,
            ..Self::default()
        }
    }

    /// Bytes arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
        wake(&mut self.reader);
    }

    /// Nothing more arrives.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        wake(&mut self.reader);
    }

    /// Notes what the transport has queued.
    pub(super) fn begin(&mut self, unsent_bytes: usize) {
        self.unsent_bytes = unsent_bytes;
        if self.has_room() {
            wake(&mut self.writer);
        }
    }

    /// Whether the client takes what is sent.
    pub(super) fn has_room(&self) -> bool {
        self.unsent_bytes + self.outgoing.len() < self.high_watermark_bytes
    }

    /// Whether everything that came was taken, and everything that was said could be written.
    pub(super) fn is_idle(&self) -> bool {
        self.incoming.is_empty() && self.has_room() && !self.is_ended
    }

    /// Bytes that the transport has queued.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Bytes that the client's transport has taken over since the connection began. TLS queues more
    /// than was written: its handshake, and the frame of each record.
    pub(super) fn taken_over_bytes(&self) -> u64 {
        self.written_bytes.saturating_sub(self.unsent_bytes as u64)
    }

    /// Writes past the library, which has nothing to say.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
    }

    /// Whether what is written in this step ends with a text.
    pub(super) fn has_said(&self, text: &[u8]) -> bool {
        self.outgoing.ends_with(text)
    }

    /// Bytes that came and were not taken yet.
    pub(super) const fn held_bytes(&self) -> usize {
        self.incoming.len() - self.taken
    }

    /// Hands over what was written; returns how many bytes it were. A client that `is_paced` is not read.
    pub(super) fn flush(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        is_paced: bool,
    ) -> u64 {
        if (is_paced || self.held_bytes() > HELD_BYTES) != self.is_paused {
            self.is_paused = !self.is_paused;
            net.pause(connection, self.is_paused);
        }
        let sent = self.outgoing.len();
        self.unsent_bytes += sent;
        self.written_bytes += sent as u64;
        if sent >= SHARE_BYTES {
            let bytes = Bytes::from(std::mem::take(&mut self.outgoing));
            net.send_shared(connection, StreamId::FIRST, bytes);
        } else if sent > 0 {
            net.send(connection, StreamId::FIRST, &self.outgoing);
            self.outgoing.clear();
        }
        sent as u64
    }

    fn read(&mut self, cx: &Context<'_>, mut room: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let waiting = &self.incoming[self.taken..];
        if waiting.is_empty() {
            if self.is_ended {
                return Poll::Ready(Ok(()));
            }
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let bytes = waiting.len().min(room.remaining());
        room.put_slice(&waiting[..bytes]);
        self.taken += bytes;
        if self.taken == self.incoming.len() {
            self.taken = 0;
            self.incoming.clear();
            if self.incoming.capacity() > KEPT_BYTES {
                self.incoming = Vec::new();
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// The library's end.
#[derive(Clone, Debug)]
pub(super) struct End(pub(super) Rc<RefCell<Pipe>>);

impl Read for End {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().read(cx, room)
    }
}

impl Write for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.borrow_mut();
        if !pipe.has_room() {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        pipe.outgoing.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The carrier closes the connection when the library is done with it.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
