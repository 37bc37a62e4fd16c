//! The carrier of one connection with a driver: its byte streams, the end of the handshake, timers
//! and the end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use super::ending::{self, Patience, Unacknowledged};
use super::outlet::{Outlet, Waiter};
use super::quic::{EarlyData, memory};
use super::{Channel, Quic, Transport};
use crate::error::ConnectError;
use crate::url::Url;

/// Time for the end of a stream to be read once it takes nothing more.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// One byte stream.
pub(crate) struct LaneIo<S, W> {
    /// QUIC's identifier of the stream; 0 for the first, which is control.
    pub(crate) id: u64,
    pub(crate) outlet: Outlet<W>,
    /// Received bytes that cannot be processed yet.
    pub(crate) unread: BytesMut,
    /// Nothing more comes, or it cannot be written to any more.
    pub(crate) ended: bool,
    /// The protocol's state of it.
    pub(crate) state: S,
}

impl<S, W: Waiter> LaneIo<S, W> {
    fn new(id: u64, channel: Channel, state: S) -> Self {
        Self {
            id,
            outlet: Outlet::new(channel),
            unread: BytesMut::new(),
            ended: false,
            state,
        }
    }
}

/// The byte streams of a connection, control first.
pub(crate) struct Lanes<S, W>(pub(crate) Vec<LaneIo<S, W>>);

impl<S, W: Waiter> Lanes<S, W> {
    /// Where the stream is; `None` when it is gone.
    pub(crate) fn at(&self, id: u64) -> Option<usize> {
        self.0.iter().position(|io| io.id == id)
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut LaneIo<S, W>> {
        self.0.iter_mut().find(|io| io.id == id)
    }

    pub(crate) fn control(&mut self) -> &mut BytesMut {
        &mut self.0[0].outlet.buffer
    }

    /// Where to write what belongs on a stream: on control when that is gone or going.
    pub(crate) fn buffer_of(&mut self, id: u64) -> &mut BytesMut {
        let at = self.at(id).filter(|at| !self.0[*at].outlet.ending);
        &mut self.0[at.unwrap_or(0)].outlet.buffer
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.0.iter().map(|io| io.outlet.buffer.len()).sum()
    }
}

/// The carrier of one connection.
pub(crate) struct Carrier<S, W> {
    pub(crate) lanes: Lanes<S, W>,
    pub(crate) quic: Option<Quic>,
    pub(crate) peer: SocketAddr,
    url: Url,
    /// The server must have let the client in by then.
    pub(crate) deadline: Instant,
    /// Streams that were opened.
    pub(crate) opened: u64,
    /// Bytes handed to the transport.
    pub(crate) sent_bytes: u64,
    /// Bytes that have come.
    pub(crate) received_bytes: u64,
    pub(crate) input: Box<[u8]>,
    timer: Pin<Box<Sleep>>,
    /// The wait for the end, once that has begun.
    patience: Option<Patience>,
    /// Why control takes nothing more, and the wait for the server's last words.
    unwritable: Option<(Arc<io::Error>, Pin<Box<Sleep>>)>,
    /// Unacknowledged data of streams that are gone.
    lost: Unacknowledged,
    /// Something was sent, and QUIC's handshake is not complete.
    handshaking: bool,
}

impl<S, W: Waiter> Carrier<S, W> {
    /// Takes over a new transport. `read_bytes` is the size of the buffer for reading.
    pub(crate) fn new(
        transport: Transport,
        url: &Url,
        deadline: Instant,
        read_bytes: usize,
        state: S,
    ) -> Self {
        Self {
            lanes: Lanes(vec![LaneIo::new(0, transport.control, state)]),
            quic: transport.quic,
            peer: transport.peer,
            url: url.clone(),
            deadline,
            opened: 1,
            sent_bytes: 0,
            received_bytes: 0,
            input: vec![0; read_bytes].into_boxed_slice(),
            timer: Box::pin(tokio::time::sleep_until(deadline.into())),
            patience: None,
            unwritable: None,
            lost: Unacknowledged::default(),
            handshaking: false,
        }
    }

    // ---- Handshake -------------------------------------------------------------------------

    /// Learns what became of early data, once, when QUIC's handshake is complete.
    pub(crate) fn poll_handshake(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Result<Option<EarlyData>, ConnectError> {
        let Some(quic) = &mut self.quic else {
            return Ok(None);
        };
        self.handshaking = quic.early_data() == EarlyData::Pending;
        match quic.poll_handshake(cx) {
            Poll::Pending => Ok(None),
            Poll::Ready(verdict) => {
                self.handshaking = verdict.is_err();
                verdict.map(Some)
            }
        }
    }

    /// Why the handshake failed, where it did: a stream that ends with it does not know.
    pub(crate) fn handshake_error(&self) -> Option<ConnectError> {
        let quic = self.quic.as_ref().filter(|_| self.handshaking)?;
        quic.handshake_error()
    }

    /// Verdict on the early data.
    pub(crate) fn early_data(&self) -> EarlyData {
        let quic = self.quic.as_ref();
        quic.map_or(EarlyData::NotTried, Quic::early_data)
    }

    /// Lets the first datagram leave.
    pub(crate) fn uncork(&mut self) {
        if let Some(quic) = &mut self.quic {
            quic.uncork();
        }
    }

    /// Keeps for the next connection what this one has learnt.
    pub(crate) fn remember(&self) {
        if let Some(quic) = &self.quic {
            quic.remember();
        }
    }

    // ---- Streams ---------------------------------------------------------------------------

    /// Opens a stream, and gives its identifier; pending while the server has no room for one more.
    pub(crate) fn poll_open(
        &mut self,
        priority: i32,
        state: S,
        cx: &mut Context<'_>,
    ) -> Poll<Option<u64>> {
        let Some(quic) = &mut self.quic else {
            return Poll::Ready(None);
        };
        let Ok(stream) = ready!(quic.poll_open(priority, cx)) else {
            return Poll::Ready(None);
        };
        // The n-th stream of a client in both directions (RFC 9000, section 2.1).
        let id = stream.number() * 4;
        let channel = Channel::Quic(Box::pin(stream));
        self.lanes.0.push(LaneIo::new(id, channel, state));
        self.opened += 1;
        Poll::Ready(Some(id))
    }

    /// Takes a stream away that has ended.
    pub(crate) fn remove(&mut self, at: usize) -> LaneIo<S, W> {
        let mut io = self.lanes.0.remove(at);
        io.outlet.lose_written();
        self.lost += io.outlet.unacknowledged();
        io
    }

    /// Writes what there is to write. True when there was progress. A stream besides control that
    /// takes nothing more has `ended`.
    ///
    /// A server that closes over something that it has not read resets a TCP connection. Its last words, perhaps the
    /// reason, came before. So they are read first: the error comes with the end that is read, or a moment later.
    pub(crate) fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, Arc<io::Error>> {
        if self.unwritable.is_some() {
            return self.poll_last_words(cx).map(|()| false);
        }
        let mut progress = false;
        for (at, io) in self.lanes.0.iter_mut().enumerate() {
            let before = io.outlet.sent_bytes();
            let written = io.outlet.write(cx);
            self.sent_bytes += io.outlet.sent_bytes() - before;
            match written {
                Ok(some) => progress |= some,
                Err(error) if at == 0 && self.quic.is_none() && self.patience.is_none() => {
                    let wait = Box::pin(tokio::time::sleep(LAST_WORDS));
                    self.unwritable = Some((error.into(), wait));
                    return self.poll_last_words(cx).map(|()| progress);
                }
                Err(error) if at == 0 => return Err(error.into()),
                Err(_) => io.ended = true,
            }
        }
        Ok(progress)
    }

    /// The error of a write, when its time for the server's last words is over.
    fn poll_last_words(&mut self, cx: &mut Context<'_>) -> Result<(), Arc<io::Error>> {
        if let Some((error, wait)) = &mut self.unwritable
            && wait.as_mut().poll(cx).is_ready()
        {
            return Err(Arc::clone(error));
        }
        Ok(())
    }

    /// Reads of a stream into `input`, and gives the number of bytes: 0 when a stream besides control
    /// has ended. The end of control is an error.
    pub(crate) fn poll_read(
        &mut self,
        at: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, Arc<io::Error>>> {
        let mut buffer = ReadBuf::new(&mut self.input);
        let io = &mut self.lanes.0[at];
        let read = ready!(io.outlet.channel.poll_read(cx, &mut buffer));
        let bytes = buffer.filled().len();
        self.received_bytes += bytes as u64;
        // An alert of TLS, for example, explains more than the write that has failed.
        let explains = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
        if let Some((error, _)) = &self.unwritable
            && bytes == 0
            && !read.as_ref().is_err_and(explains)
        {
            return Poll::Ready(Err(Arc::clone(error)));
        }
        Poll::Ready(match read {
            Ok(()) if bytes > 0 => Ok(bytes),
            Ok(()) if at == 0 => {
                let text = if self.received_bytes == 0 && self.quic.is_none() {
                    "the broker closed the connection without an answer: it may speak another protocol on this port"
                } else {
                    "the broker closed the connection"
                };
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, text).into())
            }
            Err(error) if at == 0 => Err(error.into()),
            _ => {
                io.ended = true;
                Ok(0)
            }
        })
    }

    // ---- Time ------------------------------------------------------------------------------

    /// True when something was due at this moment, and it has come.
    pub(crate) fn poll_due(&mut self, due: Instant, cx: &mut Context<'_>) -> bool {
        if self.timer.deadline().into_std() != due {
            self.timer.as_mut().reset(due.into());
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    /// The server has not accepted the client within this time.
    pub(crate) fn timeout(&self, after: Duration) -> ConnectError {
        ConnectError::timeout(after).at(&self.url)
    }

    // ---- The end ---------------------------------------------------------------------------

    /// The end has begun: it is waited for, without progress for this long at most.
    pub(crate) fn begin_end(&mut self, longest: Duration) {
        let (quic, sent_bytes) = (self.quic.as_ref(), self.sent_bytes);
        self.patience
            .get_or_insert_with(|| Patience::new(longest, quic, sent_bytes));
    }

    /// Ready when the end has begun and nothing has moved for too long.
    pub(crate) fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.patience {
            Some(patience) => patience.poll(self.quic.as_ref(), self.sent_bytes, cx),
            None => Poll::Pending,
        }
    }

    /// Data that may be lost with the connection, if control has not arrived.
    pub(crate) fn unacknowledged(&self) -> Unacknowledged {
        self.unacknowledged_of(0)
    }

    fn unacknowledged_of(&self, first: usize) -> Unacknowledged {
        let mut left = self.lost;
        for io in &self.lanes.0[first..] {
            left += io.outlet.unacknowledged();
        }
        left
    }

    /// Ends control in order, and the transport with it where it is no QUIC connection. True when the
    /// peer has all of it, and what may be lost otherwise.
    pub(crate) async fn finish(&mut self, longest: Duration) -> (bool, Unacknowledged) {
        let is_at_risk = self.unacknowledged().messages > 0;
        let (control, quic) = (&mut self.lanes.0[0].outlet.channel, self.quic.as_ref());
        let arrived = ending::finish(control, quic, &mut self.input, longest, is_at_risk).await;
        (arrived, self.unacknowledged_of(usize::from(arrived)))
    }

    /// Fails the waiters for data that was not written.
    pub(crate) fn lose_written(&mut self) {
        for io in &mut self.lanes.0 {
            io.outlet.lose_written();
        }
    }

    /// Lets the connection go.
    pub(crate) fn let_go(&mut self) {
        if self.handshaking {
            // Perhaps it is at another address now.
            memory::SERVERS.forget(&self.url);
        }
        if let Some(quic) = self.quic.take() {
            tokio::spawn(quic.close());
        }
        self.lose_written();
    }
}
