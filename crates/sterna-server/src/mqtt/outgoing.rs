//! What a step writes, gathered per lane and handed to the transport at its end.

use bytes::{Bytes, BytesMut};
use sterna_mqtt::{Lane, LaneWriter};
use sterna_net::{ConnectionId, Network, StreamId};

/// Buffers that one shard uses again and again for whichever connection it works on.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    control: BytesMut,
    lanes: Vec<(Lane, BytesMut)>,
    /// Bytes handed to the transport so far.
    pub(super) sent_bytes: u64,
}

/// Above this a buffer is given back after use instead of being kept.
const KEPT_BYTES: usize = 256 << 10;

impl LaneWriter for Outgoing {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        if lane.is_control() {
            return &mut self.control;
        }
        let at = self
            .lanes
            .iter()
            .position(|(known, _)| *known == lane)
            .unwrap_or_else(|| {
                self.lanes.push((lane, BytesMut::new()));
                self.lanes.len() - 1
            });
        &mut self.lanes[at].1
    }
}

impl Outgoing {
    /// Bytes gathered and not yet handed over.
    pub(super) fn len(&self) -> usize {
        self.control.len()
            + self
                .lanes
                .iter()
                .map(|(_, buffer)| buffer.len())
                .sum::<usize>()
    }

    /// Hands everything over.
    pub(super) fn flush(&mut self, net: &mut dyn Network, connection: ConnectionId) {
        if !self.control.is_empty() {
            net.send(connection, StreamId::FIRST, &self.control);
            self.sent_bytes += self.control.len() as u64;
            if self.control.capacity() > KEPT_BYTES {
                self.control = BytesMut::new();
            } else {
                self.control.clear();
            }
        }
        for (lane, buffer) in self.lanes.drain(..) {
            if !buffer.is_empty() {
                net.send(connection, StreamId(lane.0), &buffer);
                self.sent_bytes += buffer.len() as u64;
            }
        }
    }

    /// Hands over the packet that was gathered for [`Lane::DATAGRAMS`] as a datagram; one that is too
    /// large for the path goes on a stream.
    pub(super) fn send_datagram(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        otherwise: Lane,
    ) {
        let packet = self.buffer(Lane::DATAGRAMS).split().freeze();
        let bytes = packet.len() as u64;
        if net.send_datagram(connection, packet.clone()) {
            self.sent_bytes += bytes;
        } else {
            self.buffer(otherwise).extend_from_slice(&packet);
        }
    }

    /// Hands over what was gathered for a lane, and a large payload right behind it without a copy.
    pub(super) fn append_shared(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        lane: Lane,
        payload: Bytes,
    ) {
        let buffer = self.buffer(lane);
        let head = buffer.split();
        net.send(connection, StreamId(lane.0), &head);
        self.sent_bytes += (head.len() + payload.len()) as u64;
        net.send_shared(connection, StreamId(lane.0), payload);
    }
}
