//! The writes of a step, in order. They are handed to the transport at the step's end. While the
//! application answers, the transport belongs to the application.

use std::ops::Range;

use bytes::Bytes;
use sterna_h3::{ErrorCode, Output, StreamId};
use sterna_net::{ConnectionId, Network, SHARE_BYTES};

/// Above this the buffer is given back after use instead of being kept.
const KEPT_BYTES: usize = 4 << 10;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Wire {
    bytes: Vec<u8>,
    orders: Vec<Order>,
    written_bytes: usize,
    /// Largest datagram that the client takes, header included.
    pub(super) datagram_bytes: usize,
}

#[derive(Debug)]
enum Order {
    Write(StreamId, Range<usize>),
    Share(StreamId, Bytes),
    Finish(StreamId),
    Reset(StreamId, ErrorCode),
    Stop(StreamId, ErrorCode),
    Watch(StreamId),
    Datagram(Bytes),
}

impl Output for Wire {
    fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        if bytes.len() >= SHARE_BYTES {
            return self.write_shared(stream, Bytes::copy_from_slice(bytes));
        }
        self.written_bytes += bytes.len();
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        if let Some(Order::Write(last, range)) = self.orders.last_mut()
            && *last == stream
        {
            range.end = self.bytes.len();
        } else {
            self.orders
                .push(Order::Write(stream, start..self.bytes.len()));
        }
    }

    fn write_shared(&mut self, stream: StreamId, bytes: Bytes) {
        self.written_bytes += bytes.len();
        self.orders.push(Order::Share(stream, bytes));
    }

    fn finish(&mut self, stream: StreamId) {
        self.orders.push(Order::Finish(stream));
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        self.orders.push(Order::Reset(stream, code));
    }

    fn stop(&mut self, stream: StreamId, code: ErrorCode) {
        self.orders.push(Order::Stop(stream, code));
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.datagram_bytes;
        if fits {
            self.orders
                .push(Order::Datagram(Bytes::copy_from_slice(bytes)));
        }
        fits
    }
}

impl Wire {
    /// Bytes written to streams in this step.
    pub(super) const fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// Has the carrier told when all is gone that was written to a stream.
    pub(super) fn watch(&mut self, stream: StreamId) {
        self.orders.push(Order::Watch(stream));
    }

    /// Hands everything over; returns how many bytes it were.
    pub(super) fn flush(&mut self, net: &mut dyn Network, connection: ConnectionId) -> u64 {
        let number = |stream: StreamId| sterna_net::StreamId(stream.0);
        let mut sent = std::mem::take(&mut self.written_bytes) as u64;
        for order in self.orders.drain(..) {
            match order {
                Order::Write(stream, range) => {
                    net.send(connection, number(stream), &self.bytes[range]);
                }
                Order::Share(stream, bytes) => net.send_shared(connection, number(stream), bytes),
                Order::Finish(stream) => net.finish(connection, number(stream)),
                Order::Reset(stream, code) => net.reset(connection, number(stream), code.0),
                Order::Stop(stream, code) => net.stop(connection, number(stream), code.0),
                Order::Watch(stream) => net.watch(connection, number(stream)),
                Order::Datagram(bytes) => {
                    sent += bytes.len() as u64;
                    net.send_datagram(connection, bytes);
                }
            }
        }
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        sent
    }

    /// Gives the memory back.
    pub(super) fn release(&mut self) {
        self.bytes = Vec::new();
        self.orders = Vec::new();
    }
}
