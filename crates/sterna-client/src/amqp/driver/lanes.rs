//! The byte streams of one connection.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use sterna_amqp::{Framer, Lane, LaneWriter};

use super::Sent;
use crate::amqp::Error;
use crate::transport::outlet::Waiter;
use crate::transport::{Channel, carrier};

/// The streams, each with the framer of its input.
pub(super) type Lanes = carrier::Lanes<Framer, Sent>;
pub(super) type Carrier = carrier::Carrier<Framer, Sent>;

/// A settled message counts as sent when it was handed to the transport.
impl Waiter for Sent {
    fn handed_over(self, outcome: Result<(), Arc<io::Error>>) {
        self.tell(outcome.map(|()| None).map_err(Error::Lost));
    }
}

impl Lanes {
    /// A settled message of this length was put into the buffer of a lane. `sent` is told when it was
    /// handed to the transport.
    pub(super) fn note_sent(&mut self, lane: Lane, sent: Option<Sent>, bytes: usize) {
        let at = self.at(lane.0).unwrap_or(0);
        self.0[at].outlet.note(bytes, sent);
    }

    /// Tells `sent` when everything that is in the buffer of a lane now was handed to the transport.
    pub(super) fn wait(&mut self, lane: Lane, sent: Sent) {
        let at = self.at(lane.0).unwrap_or(0);
        self.0[at].outlet.wait(sent);
    }

    /// A lane was cut off by the peer: the other direction ends, too.
    pub(super) fn abort(&mut self, lane: Lane) {
        if let Some(io) = self.get(lane.0)
            && let Channel::Quic(stream) = &mut io.outlet.channel
            && !lane.is_control()
        {
            stream.abort();
            io.outlet.buffer.clear();
            io.outlet.ending = true;
        }
    }

    /// The session of a lane is over.
    pub(super) fn finish(&mut self, lane: Lane) {
        if let Some(io) = self.get(lane.0).filter(|_| !lane.is_control()) {
            io.outlet.ending = true;
        }
    }
}

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.buffer_of(lane.0)
    }
}
