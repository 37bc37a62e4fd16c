//! The output of a step, gathered per stream and handed to the transport at the step's end.

use bytes::{Bytes, BytesMut};
use sterna_net::{ConnectionId, Network, StreamId};

use crate::context::Context;

/// Buffers that one shard uses again and again for whichever connection it works on.
#[derive(Debug, Default)]
pub(crate) struct StepOutput {
    control: BytesMut,
    lanes: Vec<(StreamId, BytesMut)>,
    /// Bytes that were copied and are not noted yet.
    copied_bytes: usize,
    /// Bytes handed to the transport so far.
    pub(crate) sent_bytes: u64,
}

/// Above this a buffer is given back after use instead of being kept.
const KEPT_BYTES: usize = 256 << 10;

impl sterna_mqtt::LaneWriter for StepOutput {
    fn buffer(&mut self, lane: sterna_mqtt::Lane) -> &mut BytesMut {
        self.on(StreamId(lane.0))
    }
}

impl sterna_amqp::LaneWriter for StepOutput {
    fn buffer(&mut self, lane: sterna_amqp::Lane) -> &mut BytesMut {
        self.on(StreamId(lane.0))
    }
}

impl StepOutput {
    /// The output gathered for a stream.
    #[inline]
    pub(crate) fn on(&mut self, stream: StreamId) -> &mut BytesMut {
        if stream == StreamId::FIRST {
            &mut self.control
        } else {
            self.on_lane(stream)
        }
    }

    fn on_lane(&mut self, stream: StreamId) -> &mut BytesMut {
        let at = self
            .lanes
            .iter()
            .position(|(known, _)| *known == stream)
            .unwrap_or_else(|| {
                self.lanes.push((stream, BytesMut::new()));
                self.lanes.len() - 1
            });
        &mut self.lanes[at].1
    }

    /// Drops the gathered output.
    pub(crate) fn clear(&mut self) {
        self.control.clear();
        self.lanes.clear();
    }

    /// Bytes gathered and not yet handed over.
    pub(crate) fn len(&self) -> usize {
        self.control.len()
            + self
                .lanes
                .iter()
                .map(|(_, buffer)| buffer.len())
                .sum::<usize>()
    }

    /// Hands everything over. Output for a stream that `is_mute` goes on the control stream.
    pub(crate) fn flush(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        is_mute: impl Fn(StreamId) -> bool,
    ) {
        let bytes = std::mem::take(&mut self.copied_bytes) + self.len();
        cx.broker.note_copied(bytes);
        for (stream, buffer) in &mut self.lanes {
            if is_mute(*stream) {
                self.control.extend_from_slice(&buffer.split());
            }
        }
        if !self.control.is_empty() {
            (cx.net).send(connection, StreamId::FIRST, &self.control);
            self.sent_bytes += self.control.len() as u64;
            if self.control.capacity() > KEPT_BYTES {
                self.control = BytesMut::new();
            } else {
                self.control.clear();
            }
        }
        for (stream, buffer) in self.lanes.drain(..) {
            if !buffer.is_empty() {
                cx.net.send(connection, stream, &buffer);
                self.sent_bytes += buffer.len() as u64;
            }
        }
    }

    /// Hands over the output gathered for `datagrams`, which is no stream, as a datagram. A datagram that is too
    /// large for the path goes on a stream.
    pub(crate) fn send_datagram(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        datagrams: StreamId,
        otherwise: StreamId,
    ) {
        let packet = self.on(datagrams).split().freeze();
        let bytes = packet.len() as u64;
        if net.send_datagram(connection, packet.clone()) {
            self.sent_bytes += bytes;
        } else {
            self.on(otherwise).extend_from_slice(&packet);
        }
    }

    /// Hands over the output gathered for a stream, and a large payload right behind it without a copy.
    pub(crate) fn append_shared(
        &mut self,
        net: &mut dyn Network,
        connection: ConnectionId,
        stream: StreamId,
        payload: Bytes,
    ) {
        let head = self.on(stream).split();
        net.send(connection, stream, &head);
        self.copied_bytes += head.len();
        self.sent_bytes += (head.len() + payload.len()) as u64;
        net.send_shared(connection, stream, payload);
    }
}
