//! The byte streams of one connection.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};
use sterna_amqp::{Framer, Lane, LaneWriter};

use super::Sent;
use crate::amqp::Error;
use crate::transport::Channel;
use crate::transport::ending::UnderWay;

/// One byte stream, what is to be sent on it, and what cuts what comes on it.
pub(super) struct LaneIo {
    pub(super) lane: Lane,
    pub(super) channel: Channel,
    pub(super) framer: Framer,
    /// What was read and cannot be taken yet.
    pub(super) unread: BytesMut,
    /// Nothing more will come.
    pub(super) ended: bool,
    bytes: BytesMut,
    /// The session is over: the stream ends behind what is there.
    pub(super) ending: bool,
    unflushed: bool,
    sent_bytes: u64,
    /// Settled messages that count as sent when so many bytes have been.
    written: VecDeque<(u64, Sent)>,
    /// Settled messages that may not have arrived.
    pub(super) under_way: UnderWay,
}

impl LaneIo {
    pub(super) fn new(lane: Lane, channel: Channel) -> Self {
        Self {
            lane,
            channel,
            framer: Framer::new(),
            unread: BytesMut::new(),
            ended: false,
            bytes: BytesMut::new(),
            ending: false,
            unflushed: false,
            sent_bytes: 0,
            written: VecDeque::new(),
            under_way: UnderWay::default(),
        }
    }

    /// Whether everything was handed to the transport.
    pub(super) fn is_written(&self) -> bool {
        self.bytes.is_empty() && !self.unflushed
    }

    /// Writes as much as the stream takes. True when it took something.
    pub(super) fn write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        while !self.bytes.is_empty() {
            match self.channel.poll_write(cx, &self.bytes) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(bytes)) => {
                    self.bytes.advance(bytes);
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
        while let Some((at, _)) = self.written.front()
            && *at <= self.sent_bytes
            && !self.unflushed
        {
            if let Some((_, sent)) = self.written.pop_front() {
                sent.tell(Ok(None));
            }
        }
        Ok(wrote)
    }

    /// Ends the stream behind what was written; ready when it is known whether all of that has arrived.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_written() {
            return Poll::Pending;
        }
        self.channel.poll_shutdown(cx).map(|outcome| {
            if outcome.is_ok() {
                self.under_way.clear();
            }
        })
    }

    /// Settled messages that were not written to the end are lost: at most once.
    pub(super) fn lose_written(&mut self) {
        for (_, sent) in self.written.drain(..) {
            let error = io::Error::from(io::ErrorKind::ConnectionReset);
            sent.tell(Err(Error::Lost(Arc::new(error))));
        }
    }
}

/// The streams of a connection, the control lane first.
pub(super) struct Lanes(pub(super) Vec<LaneIo>);

impl Lanes {
    pub(super) fn unsent_bytes(&self) -> usize {
        self.0.iter().map(|io| io.bytes.len()).sum()
    }

    /// Bytes handed to the transport since the start.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.0.iter().map(|io| io.sent_bytes).sum()
    }

    fn at(&self, lane: Lane) -> usize {
        // A lane that is gone is answered on the control lane.
        self.0.iter().position(|io| io.lane == lane).unwrap_or(0)
    }

    /// A settled message of so many bytes was put into the buffer of a lane.
    pub(super) fn note_sent(&mut self, lane: Lane, sent: Sent, bytes: usize) {
        let at = self.at(lane);
        let io = &mut self.0[at];
        let end = io.sent_bytes + io.bytes.len() as u64;
        io.under_way.add(end, bytes as u64);
        io.written.push_back((end, sent));
    }

    /// A lane was cut off by the peer: the other direction ends, too.
    pub(super) fn abort(&mut self, lane: Lane) {
        let at = self.at(lane);
        let io = &mut self.0[at];
        if let (true, Channel::Quic(stream)) = (at > 0, &mut io.channel) {
            stream.abort();
            io.bytes.clear();
            io.ending = true;
        }
    }

    /// The session of a lane is over.
    pub(super) fn finish(&mut self, lane: Lane) {
        let at = self.at(lane);
        if at > 0 {
            self.0[at].ending = true;
        }
    }
}

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        let at = self.at(lane);
        &mut self.0[at].bytes
    }
}
