//! A pipe's counters.

use serde::Serialize;

/// Why a packet did not get through.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The loss that is set.
    Loss,
    /// No room in the queue.
    Queue,
    /// The link was down.
    Down,
    /// Longer than the MTU.
    Mtu,
    /// More was under way than the emulator keeps. An experiment in which this happens says nothing
    /// about the link that was meant.
    Overload,
}

impl Cause {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Self; 5] = [
        Self::Loss,
        Self::Queue,
        Self::Down,
        Self::Mtu,
        Self::Overload,
    ];

    /// A word for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "lost",
            Self::Queue => "queue full",
            Self::Down => "link down",
            Self::Mtu => "too long",
            Self::Overload => "overload",
        }
    }
}

/// Packets that did not get through, by cause.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct DropCounts {
    /// By the loss that is set.
    pub loss: u64,
    /// By a full queue.
    pub queue: u64,
    /// Because the link was down.
    pub down: u64,
    /// Because of their length.
    pub mtu: u64,
    /// Because too much was under way.
    pub overload: u64,
}

impl DropCounts {
    /// The count of one cause.
    #[must_use]
    pub const fn of(&self, cause: Cause) -> u64 {
        match cause {
            Cause::Loss => self.loss,
            Cause::Queue => self.queue,
            Cause::Down => self.down,
            Cause::Mtu => self.mtu,
            Cause::Overload => self.overload,
        }
    }

    /// All causes together.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.loss + self.queue + self.down + self.mtu + self.overload
    }

    pub(super) const fn add(&mut self, cause: Cause) {
        match cause {
            Cause::Loss => self.loss += 1,
            Cause::Queue => self.queue += 1,
            Cause::Down => self.down += 1,
            Cause::Mtu => self.mtu += 1,
            Cause::Overload => self.overload += 1,
        }
    }
}

/// Counters of one direction. Bytes are those of the packets, without the link's overhead.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counters {
    /// Packets that were pushed.
    pub offered_packets: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets that were popped, duplicates too.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets that did not get through.
    pub dropped: DropCounts,
    /// Bytes of packets that did not get through.
    pub dropped_bytes: u64,
    /// Copies that were made.
    pub duplicated: u64,
    /// Packets in which a bit was changed.
    pub corrupted: u64,
    /// Packets that were made late, so that others could overtake them.
    pub reordered: u64,
    /// Packets whose jitter was made longer because they would have overtaken the one before.
    pub held_back: u64,
    /// Most bytes that ever waited, with overhead.
    pub queue_peak_bytes: u64,
    /// Most packets that ever waited.
    pub queue_peak_packets: u64,
    /// When the first packet was pushed, if one was.
    pub first_ns: Option<u64>,
    /// When the last packet was pushed or popped.
    pub last_ns: Option<u64>,
}

impl Counters {
    /// Makes these the counters of two pipes: what leaves this one enters the other.
    pub(super) fn continue_with(&mut self, next: &Self) {
        self.delivered_packets = next.delivered_packets;
        self.delivered_bytes = next.delivered_bytes;
        let (dropped, more) = (&mut self.dropped, &next.dropped);
        dropped.loss += more.loss;
        dropped.queue += more.queue;
        dropped.down += more.down;
        dropped.mtu += more.mtu;
        dropped.overload += more.overload;
        self.dropped_bytes += next.dropped_bytes;
        self.duplicated += next.duplicated;
        self.corrupted += next.corrupted;
        self.reordered += next.reordered;
        self.held_back += next.held_back;
        self.queue_peak_bytes = self.queue_peak_bytes.max(next.queue_peak_bytes);
        self.queue_peak_packets = self.queue_peak_packets.max(next.queue_peak_packets);
        self.last_ns = self.last_ns.max(next.last_ns);
    }

    /// The part of the packets that the loss setting took, of those that it was asked about.
    #[must_use]
    pub fn loss_rate(&self) -> f64 {
        let asked = self.offered_packets - self.dropped.mtu - self.dropped.down;
        if asked == 0 {
            0.0
        } else {
            self.dropped.loss as f64 / asked as f64
        }
    }
}
