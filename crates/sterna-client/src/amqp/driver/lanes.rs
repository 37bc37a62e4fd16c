//! The byte streams of one connection.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use sterna_amqp::{Framer, Lane, LaneWriter};

use super::Sent;
use crate::amqp::Error;
use crate::transport::Channel;
use crate::transport::outlet::{Outlet, Waiter};

/// One byte stream, what is to be sent on it, and what cuts what comes on it.
pub(super) struct LaneIo {
    pub(super) lane: Lane,
    pub(super) outlet: Outlet<Sent>,
    pub(super) framer: Framer,
    /// What was read and cannot be taken yet.
    pub(super) unread: BytesMut,
    /// Nothing more will come.
    pub(super) ended: bool,
    bytes: BytesMut,
    /// The session is over: the stream ends behind what is there.
    pub(super) ending: bool,
}

impl LaneIo {
    pub(super) fn new(lane: Lane, channel: Channel) -> Self {
        Self {
            lane,
            outlet: Outlet::new(channel),
            framer: Framer::new(),
            unread: BytesMut::new(),
            ended: false,
            bytes: BytesMut::new(),
            ending: false,
        }
    }

    /// Whether everything was handed to the transport.
    pub(super) fn is_written(&self) -> bool {
        self.bytes.is_empty() && self.outlet.is_flushed()
    }

    /// Writes as much as the stream takes. True when it took something.
    pub(super) fn write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        self.outlet.write(&mut self.bytes, cx)
    }

    /// Ends the stream behind what was written; ready when it is known whether all of that has arrived.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_written() {
            self.outlet.poll_end(cx)
        } else {
            Poll::Pending
        }
    }
}

/// A settled message counts as sent when it was handed to the transport.
impl Waiter for Sent {
    fn handed_over(self, outcome: Result<(), Arc<io::Error>>) {
        self.tell(outcome.map(|()| None).map_err(Error::Lost));
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
        self.0.iter().map(|io| io.outlet.sent_bytes()).sum()
    }

    fn at(&self, lane: Lane) -> usize {
        // A lane that is gone is answered on the control lane.
        self.0.iter().position(|io| io.lane == lane).unwrap_or(0)
    }

    /// A settled message of so many bytes was put into the buffer of a lane.
    pub(super) fn note_sent(&mut self, lane: Lane, sent: Sent, bytes: usize) {
        let at = self.at(lane);
        let io = &mut self.0[at];
        io.outlet.note(io.bytes.len(), bytes, Some(sent));
    }

    /// A lane was cut off by the peer: the other direction ends, too.
    pub(super) fn abort(&mut self, lane: Lane) {
        let at = self.at(lane);
        let io = &mut self.0[at];
        if let (true, Channel::Quic(stream)) = (at > 0, &mut io.outlet.channel) {
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
