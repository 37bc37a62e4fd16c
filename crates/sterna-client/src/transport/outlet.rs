//! The sending side of one byte stream of a connection, whatever protocol it carries.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};

use super::Channel;
use super::ending::{Unacknowledged, UnderWay};

/// Who waits for a message that has no acknowledgement of its own to be handed to the transport.
pub(crate) trait Waiter {
    /// It was, or the connection has ended before.
    fn handed_over(self, outcome: Result<(), Arc<io::Error>>);
}

/// See the module's description.
pub(crate) struct Outlet<W> {
    pub(crate) channel: Channel,
    /// Something was written that the stream has not been told to send.
    unflushed: bool,
    /// Bytes handed to the transport since the start.
    sent_bytes: u64,
    /// Who waits until so many bytes have been.
    written: VecDeque<(u64, W)>,
    /// Messages that may not have arrived.
    under_way: UnderWay,
}

impl<W: Waiter> Outlet<W> {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
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

    /// Whether the transport has been told to send everything that it was handed.
    pub(crate) const fn is_flushed(&self) -> bool {
        !self.unflushed
    }

    /// Writes as much of `buffer` as the stream takes. True when it took something.
    pub(crate) fn write(
        &mut self,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
    ) -> io::Result<bool> {
        let mut wrote = false;
        while !buffer.is_empty() {
            match self.channel.poll_write(cx, buffer) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    buffer.advance(bytes);
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
        Ok(wrote)
    }

    /// Notes that a message of so many bytes, which has no acknowledgement of its own, is the last in a
    /// buffer of so many.
    pub(crate) fn note(&mut self, buffered: usize, bytes: usize, waiter: Option<W>) {
        let end = self.sent_bytes + buffered as u64;
        self.under_way.add(end, bytes as u64);
        self.written.extend(waiter.map(|waiter| (end, waiter)));
    }

    /// Ends the stream behind what was written; ready when it is known whether all of that has arrived.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.channel.poll_shutdown(cx).map(|outcome| {
            if outcome.is_ok() {
                self.under_way.clear();
            }
        })
    }

    /// What may be lost with the stream.
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
