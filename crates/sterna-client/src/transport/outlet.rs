//! The sending side of one byte stream of a connection, for every protocol.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};

use super::Channel;
use super::ending::{Unacknowledged, UnderWay};

/// A waiter for the hand-over of a message without an acknowledgement to the transport.
pub(crate) trait Waiter {
    /// It was, or the connection has ended before.
    fn handed_over(self, outcome: Result<(), Arc<io::Error>>);
}

/// See the module's description.
pub(crate) struct Outlet<W> {
    pub(crate) channel: Channel,
    /// Bytes to send.
    pub(crate) buffer: BytesMut,
    /// Nothing more may be added: the stream ends behind what is there.
    pub(crate) ending: bool,
    /// The stream has ended, and it is known whether all of it has arrived.
    finished: bool,
    /// Something was written that the stream has not been told to send.
    unflushed: bool,
    /// Bytes handed to the transport since the start.
    sent_bytes: u64,
    /// Waiters, each with the number of bytes that it waits for.
    written: VecDeque<(u64, W)>,
    /// Messages that may not have arrived.
    under_way: UnderWay,
}

impl<W: Waiter> Outlet<W> {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
            buffer: BytesMut::new(),
            ending: false,
            finished: false,
            unflushed: false,
            sent_bytes: 0,
            written: VecDeque::new(),
            under_way: UnderWay::default(),
        }
    }

    /// Bytes handed to the transport since the start.
    pub(crate) const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Whether everything was handed to the transport, which has been told to send it.
    pub(crate) fn is_written(&self) -> bool {
        self.buffer.is_empty() && !self.unflushed
    }

    /// Whether the stream has ended, and it is known whether all of it has arrived.
    pub(crate) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Writes as much as the stream takes, and then the stream's end where that is wanted. True when
    /// there was progress.
    pub(crate) fn write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        while !self.buffer.is_empty() {
            match self.channel.poll_write(cx, &self.buffer) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.buffer.advance(bytes);
                    self.sent_bytes += bytes as u64;
                    self.unflushed = true;
                    wrote = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        if self.unflushed
            && let Poll::Ready(flushed) = self.channel.poll_flush(cx)
        {
            flushed?;
            self.unflushed = false;
        }
        // These have been handed to the operating system.
        while let Some((at, _)) = self.written.front()
            && *at <= self.sent_bytes
            && !self.unflushed
        {
            if let Some((_, waiter)) = self.written.pop_front() {
                waiter.handed_over(Ok(()));
            }
        }
        if self.ending
            && !self.finished
            && self.is_written()
            && let Poll::Ready(ended) = self.channel.poll_shutdown(cx)
        {
            if ended.is_ok() {
                self.under_way.clear();
            }
            self.finished = true;
            wrote = true;
        }
        Ok(wrote)
    }

    /// Notes that the last message in the buffer has this length, and no acknowledgement of its
    /// own.
    pub(crate) fn note(&mut self, bytes: usize, waiter: Option<W>) {
        let end = self.end();
        self.under_way.add(end, bytes as u64);
        if let Some(waiter) = waiter {
            self.wait(waiter);
        }
    }

    /// Tells this waiter when everything that is in the buffer now was handed to the transport.
    pub(crate) fn wait(&mut self, waiter: W) {
        let end = self.end();
        self.written.push_back((end, waiter));
    }

    /// The end of what is in the buffer, in bytes since the start.
    fn end(&self) -> u64 {
        self.sent_bytes + self.buffer.len() as u64
    }

    /// Data that may be lost with the stream.
    pub(crate) fn unacknowledged(&self) -> Unacknowledged {
        self.under_way.total()
    }

    /// Messages that were not written to the end are lost: at most once.
    pub(crate) fn lose_written(&mut self) {
        for (_, waiter) in self.written.drain(..) {
            waiter.handed_over(Err(Arc::new(io::ErrorKind::ConnectionReset.into())));
        }
    }
}
