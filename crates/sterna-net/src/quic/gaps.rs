//! Stream data that the library keeps behind gaps: it cannot be read, because bytes before it are missing.
//!
//! The library does not tell how much that is. It says [`quinn_proto::StreamEvent::Readable`] once for each frame. So
//! where nothing is to be read, the bytes of the datagrams that no reading explains are charged to the stream. Later
//! bytes of the stream pay the charge back. A frame that repeats earlier bytes is charged, too, until the stream goes
//! on.

use std::collections::BTreeMap;

use quinn_proto::StreamId;

/// Bytes that the library needs for a frame beside the frame's own.
const FRAME_BYTES: u32 = 80;

/// Most bytes of a datagram around the data of one frame: headers, tag, an acknowledgement.
const OVERHEAD_BYTES: u32 = 64;

/// Most of the overhead that a byte of data excuses: the smallest packet of MQTT has two.
const OVERHEAD_PER_BYTE: u32 = 32;

/// The estimate for one connection.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// By stream; also those behind whose gaps may be bytes that another was charged with.
    charged: BTreeMap<StreamId, u32>,
    /// The sum of them.
    bytes: u32,
    /// The part of `bytes` that the count of all connections includes.
    counted_bytes: u32,
    /// Datagrams since the last settlement, and their bytes that no reading has explained.
    datagrams: u32,
    unexplained_bytes: u32,
    /// The last stream of which nothing was to be read, and how often that was so of any.
    empty: Option<(StreamId, u32)>,
}

impl Gaps {
    /// All that is charged, in bytes.
    pub(super) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Brings a count of all connections up to date.
    pub(super) fn count(&mut self, all_bytes: &mut u64) {
        *all_bytes -= u64::from(self.counted_bytes);
        self.counted_bytes = self.bytes;
        *all_bytes += u64::from(self.counted_bytes);
    }

    /// A datagram came.
    pub(super) fn arrived(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.datagrams = self.datagrams.saturating_add(1);
        self.unexplained_bytes = self.unexplained_bytes.saturating_add(bytes);
    }

    /// A stream was read, and gave N bytes.
    pub(super) fn read(&mut self, stream: StreamId, bytes: usize) {
        if bytes == 0 {
            let times = self.empty.map_or(0, |(_, times)| times);
            self.empty = Some((stream, times.saturating_add(1)));
            self.charged.entry(stream).or_default();
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let overhead_bytes = (self.datagrams.saturating_mul(OVERHEAD_BYTES))
            .min(bytes.saturating_mul(OVERHEAD_PER_BYTE));
        let explained_bytes = bytes.saturating_add(overhead_bytes);
        self.unexplained_bytes = self.unexplained_bytes.saturating_sub(explained_bytes);
        // The repetition of a small packet is paid back by the next one.
        let paid_bytes = explained_bytes.saturating_add(FRAME_BYTES);
        if let Some(charged_bytes) = self.charged.get_mut(&stream) {
            let paid_bytes = paid_bytes.min(*charged_bytes);
            *charged_bytes -= paid_bytes;
            self.bytes -= paid_bytes;
            if *charged_bytes == 0 {
                self.charged.remove(&stream);
            }
        }
    }

    /// A stream is not received any more: the library keeps nothing of it.
    pub(super) fn ended(&mut self, stream: StreamId) {
        self.bytes -= self.charged.remove(&stream).unwrap_or(0);
        if self.empty.is_some_and(|(empty, _)| empty == stream) {
            self.empty = None;
        }
    }

    /// The streams that bytes may be kept of. Nothing is kept any more.
    pub(super) fn take_streams(&mut self, all_bytes: &mut u64) -> impl Iterator<Item = StreamId> {
        *all_bytes -= u64::from(self.counted_bytes);
        std::mem::take(self).charged.into_keys()
    }

    /// All streams were read. Charges what is still unexplained, up to `most_bytes` in all.
    pub(super) fn settle(&mut self, most_bytes: u32) {
        let unexplained_bytes = std::mem::take(&mut self.unexplained_bytes);
        self.datagrams = 0;
        let Some((stream, times)) = self.empty.take() else {
            return;
        };
        if unexplained_bytes == 0 {
            return;
        }
        let charge_bytes = unexplained_bytes
            .saturating_add(times.saturating_sub(1).saturating_mul(FRAME_BYTES))
            .min(most_bytes.saturating_sub(self.bytes));
        if charge_bytes > 0 {
            *self.charged.entry(stream).or_default() += charge_bytes;
            self.bytes += charge_bytes;
        }
    }
}

/// The most bytes that one end can make the other keep behind gaps, with a window of this size. The worst case is a
/// frame of one byte at every second byte.
pub(super) const fn most_bytes(window_bytes: u32) -> u32 {
    (window_bytes / 2).saturating_mul(FRAME_BYTES)
}

#[cfg(test)]
mod tests {
    use quinn_proto::{Dir, Side};

    use super::*;

    fn stream(number: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, number)
    }

    #[test]
    fn small_frames_cost_more_than_their_bytes_and_no_more_than_the_window_allows() {
        let mut gaps = Gaps::default();
        let most = most_bytes(1_000);
        assert_eq!(most, 40_000);
        let mut all = 5;
        for datagram in 1..=4 {
            gaps.arrived(1_200);
            for _ in 0..150 {
                gaps.read(stream(1), 0);
            }
            gaps.settle(most);
            gaps.count(&mut all);
            let expected = (datagram * (1_200 + 149 * FRAME_BYTES)).min(most);
            assert_eq!((gaps.bytes(), all), (expected, u64::from(expected) + 5));
        }
        gaps.ended(stream(0));
        assert_eq!(gaps.bytes(), most);
        gaps.ended(stream(1));
        gaps.count(&mut all);
        assert_eq!((gaps.bytes(), all), (0, 5));
    }

    #[test]
    fn what_is_read_explains_its_datagrams() {
        let mut gaps = Gaps::default();
        // Ten small packets in a turn: the first reading takes all.
        for _ in 0..10 {
            gaps.arrived(60);
        }
        gaps.read(stream(0), 20);
        for _ in 1..10 {
            gaps.read(stream(0), 0);
        }
        gaps.settle(u32::MAX);
        assert_eq!(gaps.bytes(), 0);
        // The bytes of another stream explain their own part alone, and pay nothing back.
        gaps.arrived(1_200);
        gaps.read(stream(0), 200);
        gaps.read(stream(1), 0);
        gaps.settle(u32::MAX);
        let charged = 1_200 - 200 - OVERHEAD_BYTES;
        assert_eq!(gaps.bytes(), charged);
        gaps.read(stream(0), 5_000);
        gaps.settle(u32::MAX);
        assert_eq!(gaps.bytes(), charged);
        gaps.read(stream(1), 1_200);
        assert_eq!(gaps.bytes(), 0);
        let mut all = 0;
        gaps.count(&mut all);
        gaps.read(stream(7), 0);
        let left: Vec<StreamId> = gaps.take_streams(&mut all).collect();
        assert_eq!((left, all), (vec![stream(7)], 0));
    }
}
