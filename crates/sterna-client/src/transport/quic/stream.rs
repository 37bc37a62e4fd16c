//! One stream in both directions, which survives that the server rejects early data.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use quinn::{
    Connection, ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt,
    WriteError,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{NO_ERROR, alert};

/// Verdict on the early data of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EarlyData {
    /// There was no ticket, or it was not wanted: everything waited for the handshake.
    NotTried,
    /// It is sent; the server has not answered yet.
    Pending,
    /// The server took it.
    Accepted,
    /// The server didn't take it, and it was sent again after the handshake.
    Rejected,
}

/// The verdict, shared by the streams of a connection.
#[derive(Debug)]
pub(super) struct Verdict(AtomicU8);

impl Verdict {
    pub(super) const fn new(verdict: EarlyData) -> Self {
        Self(AtomicU8::new(verdict as u8))
    }

    pub(super) fn get(&self) -> EarlyData {
        match self.0.load(Ordering::Acquire) {
            0 => EarlyData::NotTried,
            1 => EarlyData::Pending,
            2 => EarlyData::Accepted,
            _ => EarlyData::Rejected,
        }
    }

    pub(super) fn set(&self, verdict: EarlyData) {
        self.0.store(verdict as u8, Ordering::Release);
    }
}

/// The future of [`SendStream::stopped`].
type Delivered = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send>>;
type Opening =
    Pin<Box<dyn Future<Output = Result<(SendStream, RecvStream), ConnectionError>> + Send>>;

/// Where a stream stands that was opened before the handshake was complete.
enum Early {
    /// Written bytes, kept in case they have to be written again. Bounded by what the engine sends
    /// before CONNACK.
    Sent(BytesMut),
    /// It was rejected; a new stream takes its place.
    Reopening(Opening, BytesMut),
    /// Bytes still to be written again.
    Replaying(BytesMut),
    /// Nothing is early any more.
    Settled,
}

/// One stream in both directions. Shutting it down waits until the server has all bytes, because
/// closing the connection would drop those under way. It fails if their arrival is unknown.
pub(crate) struct QuicStream {
    connection: Connection,
    verdict: Arc<Verdict>,
    priority: i32,
    send: SendStream,
    receive: RecvStream,
    early: Early,
    delivered: Option<Delivered>,
    /// Its end is known: everything up to it has arrived, or not.
    ended: Option<bool>,
}

impl QuicStream {
    pub(super) fn new(
        connection: Connection,
        verdict: Arc<Verdict>,
        priority: i32,
        send: SendStream,
        receive: RecvStream,
    ) -> Self {
        let early = match verdict.get() {
            EarlyData::Pending => Early::Sent(BytesMut::new()),
            _ => Early::Settled,
        };
        let _ = send.set_priority(priority);
        Self {
            connection,
            verdict,
            priority,
            send,
            receive,
            early,
            delivered: None,
            ended: None,
        }
    }

    /// Which of the client's streams in both directions this is, from 0.
    pub(crate) fn number(&self) -> u64 {
        self.send.id().index()
    }

    /// Ends both directions at once: what was written and has not arrived is lost.
    pub(crate) fn abort(&mut self) {
        // An error says that they have ended before.
        let _ = self.send.reset(NO_ERROR);
        let _ = self.receive.stop(NO_ERROR);
        self.ended = Some(false);
    }

    /// Writes early data that was rejected again, on a new stream. Ready when nothing of it is left
    /// to write. Streams that are made ready in the order of their opening keep their numbers.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.early {
                Early::Settled => return Poll::Ready(Ok(())),
                Early::Sent(bytes) => match self.verdict.get() {
                    EarlyData::Pending => return Poll::Ready(Ok(())),
                    EarlyData::Rejected => {
                        let bytes = std::mem::take(bytes);
                        let connection = self.connection.clone();
                        let opening = Box::pin(async move { connection.open_bi().await });
                        self.early = Early::Reopening(opening, bytes);
                    }
                    EarlyData::Accepted | EarlyData::NotTried => self.early = Early::Settled,
                },
                Early::Reopening(opening, bytes) => {
                    let (send, receive) = ready!(opening.as_mut().poll(cx))?;
                    let bytes = std::mem::take(bytes);
                    let _ = send.set_priority(self.priority);
                    (self.send, self.receive) = (send, receive);
                    self.early = Early::Replaying(bytes);
                }
                Early::Replaying(bytes) => {
                    while !bytes.is_empty() {
                        let written = ready!(Pin::new(&mut self.send).poll_write(cx, bytes))?;
                        bytes.advance(written);
                    }
                    if self.delivered.take().is_some() {
                        let _ = self.send.finish();
                        self.delivered = Some(Box::pin(self.send.stopped()));
                    }
                    self.early = Early::Settled;
                }
            }
        }
    }
}

impl AsyncRead for QuicStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_ready(cx))?;
        match this.receive.poll_read(cx, buffer.initialize_unfilled()) {
            Poll::Ready(Ok(read)) => {
                buffer.advance(read);
                Poll::Ready(Ok(()))
            }
            // The verdict's own future is about to tell the task.
            Poll::Pending | Poll::Ready(Err(ReadError::ZeroRttRejected)) => Poll::Pending,
            Poll::Ready(Err(ReadError::ConnectionLost(reason))) => Poll::Ready(Err(lost(reason))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        }
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_ready(cx))?;
        match Pin::new(&mut this.send).poll_write(cx, bytes) {
            Poll::Ready(Ok(written)) => {
                if let Early::Sent(sent) = &mut this.early {
                    sent.extend_from_slice(&bytes[..written]);
                }
                Poll::Ready(Ok(written))
            }
            Poll::Pending | Poll::Ready(Err(WriteError::ZeroRttRejected)) => Poll::Pending,
            Poll::Ready(Err(WriteError::ConnectionLost(reason))) => Poll::Ready(Err(lost(reason))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_ready(cx))?;
        if let Some(arrived) = this.ended {
            return Poll::Ready(outcome(arrived));
        }
        let delivered = this.delivered.get_or_insert_with(|| {
            // An error says that the stream ended before, which is as good.
            let _ = this.send.finish();
            Box::pin(this.send.stopped())
        });
        let result = ready!(delivered.as_mut().poll(cx));
        if result == Err(StoppedError::ZeroRttRejected) {
            // The end is told anew on the new stream.
            this.delivered = Some(Box::pin(std::future::pending()));
            return Poll::Pending;
        }
        let arrived = match result {
            Ok(stopped) => stopped.is_none(),
            // A server that has read the last word may end the connection without another one.
            Err(StoppedError::ConnectionLost(ConnectionError::ApplicationClosed(close))) => {
                close.error_code == NO_ERROR
            }
            Err(_) => false,
        };
        this.ended = Some(arrived);
        Poll::Ready(outcome(arrived))
    }
}

/// The error of a stream whose connection has ended; an alert of the server's is told as over other transports. The
/// library's own error leaves the reason out.
fn lost(reason: ConnectionError) -> io::Error {
    match alert(&reason) {
        Some(fault) => io::Error::other(fault),
        None => io::Error::new(io::ErrorKind::NotConnected, reason),
    }
}

/// The result for an end of a stream.
fn outcome(arrived: bool) -> io::Result<()> {
    if arrived {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::BrokenPipe,
        "the server has not taken everything",
    ))
}
