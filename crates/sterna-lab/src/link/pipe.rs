//! One direction of a link.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Direction;
use super::counters::{Cause, Counters};
use super::loss::LossProcess;
use super::random::Random;
use super::settings::{Down, Jitter, LossAt, PipeSettings, SettingsError, whole};
use super::trace::Progress;

/// Most packets that may be under way or waiting in one direction.
pub const MAX_IN_FLIGHT_PACKETS: usize = 1 << 20;
/// Most bytes that may be under way or waiting in one direction.
pub const MAX_IN_FLIGHT_BYTES: u64 = 256 << 20;

/// Shape of the Pareto distribution of [`Jitter::Pareto`].
const PARETO_SHAPE: f64 = 3.0;
/// Where it is cut off, in means.
const PARETO_LIMIT: f64 = 50.0;
/// Where the normal distribution is cut off, in standard deviations.
const NORMAL_LIMIT: f64 = 4.0;

/// A packet of a pipe.
pub trait Packet: Clone {
    /// Its length as the network layer sees it, in bytes.
    fn length_bytes(&self) -> usize;
    /// Changes one bit; the number may be any and is taken modulo the packet's bits.
    fn flip_bit(&mut self, bit: u64);
}

impl Packet for Vec<u8> {
    fn length_bytes(&self) -> usize {
        self.len()
    }

    fn flip_bit(&mut self, bit: u64) {
        if self.is_empty() {
            return;
        }
        let bit = bit % (self.len() as u64 * 8);
        self[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// Decision about a packet when it was pushed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It arrives at this moment.
    Arrives {
        /// When.
        at_ns: u64,
    },
    /// It does not arrive.
    Dropped(Cause),
}

/// A packet at the end of its way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Delivery<P> {
    /// When it arrived. A caller that comes later has the difference as its own lateness.
    pub due_ns: u64,
    /// The packet.
    pub packet: P,
}

#[derive(Debug)]
struct InFlight<P> {
    due_ns: u64,
    /// Counts pushes, so that packets with the same moment keep their order.
    number: u64,
    packet: P,
}

impl<P> InFlight<P> {
    const fn key(&self) -> (u64, u64) {
        (self.due_ns, self.number)
    }
}

impl<P> PartialEq for InFlight<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<P> Eq for InFlight<P> {}

impl<P> PartialOrd for InFlight<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for InFlight<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// A packet that waits for the transmitter.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// When the transmitter takes it.
    start_ns: u64,
    wire_bytes: u64,
}

/// One direction of a link; see the [module](super).
#[derive(Debug)]
pub struct Pipe<P> {
    settings: PipeSettings,
    queue_limit_bytes: u64,
    queue_limit_packets: u64,
    /// Switched off by hand, besides the schedule.
    is_off: bool,

    loss: LossProcess,
    jitter: Random,
    reorder: Random,
    duplicate: Random,
    corrupt: Random,

    /// End of the transmitter's work, in nanoseconds and 2^32nds of one. At 100 Gbit/s a byte takes
    /// 0.08 ns, and rounding each packet would make the rate wrong.
    busy: u128,
    /// With a trace: how far it was used.
    progress: Progress,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// Packets in the order of their arrival.
    in_order: VecDeque<InFlight<P>>,
    /// Packets that may be overtaken.
    unordered: BinaryHeap<Reverse<InFlight<P>>>,
    in_flight_bytes: u64,
    next_number: u64,
    counters: Counters,
}

impl<P: Packet> Pipe<P> {
    /// An empty pipe.
    ///
    /// `rtt_ns` is the round trip of the link, for queues that are set as multiples of the
    /// bandwidth-delay product.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges.
    pub fn new(
        settings: &PipeSettings,
        rtt_ns: u64,
        seed: u64,
        direction: Direction,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        let (queue_limit_bytes, queue_limit_packets) = settings.queue_limits(rtt_ns);
        // The numbers of the kinds of decisions are part of a seed's meaning.
        let stream = |kind: u64| Random::new(&[seed, direction as u64, kind]);
        Ok(Self {
            settings: settings.clone(),
            queue_limit_bytes,
            queue_limit_packets,
            is_off: false,
            loss: LossProcess::new(settings.loss.clone(), stream(0)),
            jitter: stream(1),
            reorder: stream(2),
            duplicate: stream(3),
            corrupt: stream(4),
            busy: 0,
            progress: Progress::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            in_order: VecDeque::new(),
            unordered: BinaryHeap::new(),
            in_flight_bytes: 0,
            next_number: 0,
            counters: Counters::default(),
        })
    }

    /// Takes new settings for the packets to come. Those that were accepted keep their fate.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges; the old ones stay.
    pub fn change(&mut self, settings: &PipeSettings, rtt_ns: u64) -> Result<(), SettingsError> {
        settings.validate()?;
        (self.queue_limit_bytes, self.queue_limit_packets) = settings.queue_limits(rtt_ns);
        self.loss.change(settings.loss.clone());
        self.settings = settings.clone();
        Ok(())
    }

    /// Switches the pipe off or on, besides its schedule. While it is off, packets are dropped.
    pub const fn switch(&mut self, is_on: bool) {
        self.is_off = !is_on;
    }

    /// The settings in force.
    #[must_use]
    pub const fn settings(&self) -> &PipeSettings {
        &self.settings
    }

    /// The counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The most bytes that may wait; `u64::MAX` where packets are counted.
    #[must_use]
    pub const fn queue_limit_bytes(&self) -> u64 {
        self.queue_limit_bytes
    }

    /// Bytes that wait for the transmitter at a moment, with overhead.
    pub fn waiting_bytes(&mut self, now_ns: u64) -> u64 {
        self.start_waiting(now_ns);
        self.waiting_bytes
    }

    /// Whether a packet of this length would find room in the queue.
    pub fn has_room(&mut self, now_ns: u64, length_bytes: usize) -> bool {
        self.start_waiting(now_ns);
        let free_ns = self.start_ns(now_ns);
        free_ns <= now_ns || self.fits(length_bytes as u64 + self.overhead())
    }

    /// Decides about a packet, and keeps it until it arrives.
    ///
    /// `now_ns` must not be before that of an earlier call.
    pub fn push(&mut self, now_ns: u64, packet: P) -> Fate {
        let length = packet.length_bytes() as u64;
        let counters = &mut self.counters;
        counters.offered_packets += 1;
        counters.offered_bytes += length;
        counters.first_ns.get_or_insert(now_ns);
        counters.last_ns = Some(now_ns);
        let fate = self.decide(now_ns, packet, length);
        if let Fate::Dropped(cause) = fate {
            self.counters.dropped.add(cause);
            self.counters.dropped_bytes += length;
        }
        fate
    }

    fn decide(&mut self, now_ns: u64, mut packet: P, length: u64) -> Fate {
        // Every packet takes its random numbers, with any fate.
        let is_lost = self.loss.next();
        let jitter_ns = self.next_jitter_ns();
        let is_reordered = self.reorder.happens(self.settings.reorder.probability);
        let is_doubled = self.duplicate.happens(self.settings.duplicate);
        let is_corrupted = self.corrupt.happens(self.settings.corrupt);
        let corrupted_bit = self.corrupt.next_u64();

        if length > u64::from(self.settings.mtu_bytes) {
            return Fate::Dropped(Cause::Mtu);
        }
        let is_down = self.settings.schedule.up_from_ns(now_ns) > now_ns;
        if self.is_off || (is_down && self.settings.schedule.when_down == Down::Drop) {
            return Fate::Dropped(Cause::Down);
        }
        if is_lost && self.settings.loss_at == LossAt::Entry {
            return Fate::Dropped(Cause::Loss);
        }
        if self.in_flight_bytes + length > MAX_IN_FLIGHT_BYTES
            || self.in_order.len() + self.unordered.len() >= MAX_IN_FLIGHT_PACKETS
        {
            return Fate::Dropped(Cause::Overload);
        }
        let Some(departure_ns) = self.transmit(now_ns, length + self.overhead()) else {
            return Fate::Dropped(Cause::Queue);
        };
        if is_lost {
            return Fate::Dropped(Cause::Loss);
        }

        let travel_ns = self.settings.delay_ns.saturating_add_signed(jitter_ns);
        let mut due_ns = departure_ns.saturating_add(travel_ns);
        let mut may_be_overtaken = self.settings.jitter_reorders;
        if is_reordered && self.settings.reorder.extra_ns > 0 {
            due_ns = due_ns.saturating_add(self.settings.reorder.extra_ns);
            may_be_overtaken = true;
            self.counters.reordered += 1;
        }
        if !may_be_overtaken
            && let Some(last) = self.in_order.back()
            && last.due_ns > due_ns
        {
            due_ns = last.due_ns;
            self.counters.held_back += 1;
        }
        if is_doubled {
            self.counters.duplicated += 1;
            self.keep(due_ns, packet.clone(), length, may_be_overtaken);
        }
        if is_corrupted {
            packet.flip_bit(corrupted_bit);
            self.counters.corrupted += 1;
        }
        self.keep(due_ns, packet, length, may_be_overtaken);
        Fate::Arrives { at_ns: due_ns }
    }

    fn keep(&mut self, due_ns: u64, packet: P, length: u64, may_be_overtaken: bool) {
        let in_flight = InFlight {
            due_ns,
            number: self.next_number,
            packet,
        };
        self.next_number += 1;
        self.in_flight_bytes += length;
        if may_be_overtaken {
            self.unordered.push(Reverse(in_flight));
        } else {
            self.in_order.push_back(in_flight);
        }
    }

    fn overhead(&self) -> u64 {
        u64::from(self.settings.overhead_bytes)
    }

    /// Takes the packets off the queue whose transmission has started.
    fn start_waiting(&mut self, now_ns: u64) {
        while let Some(first) = self.waiting.front()
            && first.start_ns <= now_ns
        {
            self.waiting_bytes -= first.wire_bytes;
            self.waiting.pop_front();
        }
    }

    /// When the transmitter could take a packet that comes now.
    fn start_ns(&self, now_ns: u64) -> u64 {
        // The moment at which the last packet has left, rounded up.
        let free_ns = u64::try_from((self.busy + 0xffff_ffff) >> 32).unwrap_or(u64::MAX);
        let schedule = &self.settings.schedule;
        let start_ns = self.settings.trace.as_ref().map_or_else(
            || now_ns.max(free_ns),
            |trace| self.progress.start_ns(trace, now_ns),
        );
        match schedule.when_down {
            Down::Drop => start_ns,
            Down::Hold => schedule.up_from_ns(start_ns),
        }
    }

    fn fits(&self, wire_bytes: u64) -> bool {
        (self.waiting.len() as u64) < self.queue_limit_packets
            && self.waiting_bytes.saturating_add(wire_bytes) <= self.queue_limit_bytes
    }

    /// Puts a packet through the queue and the transmitter. Returns the time at which its last bit has
    /// left, or `None` if the queue is full.
    fn transmit(&mut self, now_ns: u64, wire_bytes: u64) -> Option<u64> {
        self.start_waiting(now_ns);
        let start_ns = self.start_ns(now_ns);
        if start_ns > now_ns {
            if !self.fits(wire_bytes) {
                return None;
            }
            self.waiting.push_back(Waiting {
                start_ns,
                wire_bytes,
            });
            self.waiting_bytes += wire_bytes;
            let counters = &mut self.counters;
            counters.queue_peak_bytes = counters.queue_peak_bytes.max(self.waiting_bytes);
            counters.queue_peak_packets =
                counters.queue_peak_packets.max(self.waiting.len() as u64);
        }
        if let Some(trace) = &self.settings.trace {
            return Some(self.progress.send(trace, start_ns, wire_bytes));
        }
        let Some(rate_bps) = self.settings.rate_bps else {
            self.busy = self.busy.max(u128::from(start_ns) << 32);
            return Some(start_ns);
        };
        // Back to back, the next packet starts at the very fraction at which the last one left.
        let start = if u128::from(start_ns) << 32 >= self.busy + (1 << 32) {
            u128::from(start_ns) << 32
        } else {
            self.busy.max(u128::from(now_ns) << 32)
        };
        let time = ((u128::from(wire_bytes) * 8_000_000_000) << 32) / u128::from(rate_bps);
        self.busy = start + time;
        Some(u64::try_from((self.busy + (1 << 31)) >> 32).unwrap_or(u64::MAX))
    }

    /// The next deviation from the delay. It takes two random numbers in any distribution.
    fn next_jitter_ns(&mut self) -> i64 {
        let (first, second) = (self.jitter.unit(), self.jitter.unit());
        match self.settings.jitter {
            Jitter::None => 0,
            Jitter::Uniform { plus_minus_ns } => {
                signed(first.mul_add(2.0, -1.0) * plus_minus_ns as f64)
            }
            Jitter::Normal { deviation_ns } => {
                // Box and Muller; 1 - x is never 0.
                let radius = (-2.0 * (1.0 - first).ln()).sqrt();
                let value = radius * (std::f64::consts::TAU * second).cos();
                signed(value.clamp(-NORMAL_LIMIT, NORMAL_LIMIT) * deviation_ns as f64)
            }
            Jitter::Pareto { mean_ns } => {
                let value = (PARETO_SHAPE - 1.0) * ((1.0 - first).powf(-1.0 / PARETO_SHAPE) - 1.0);
                i64::try_from(whole(value.min(PARETO_LIMIT) * mean_ns as f64)).unwrap_or(i64::MAX)
            }
        }
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let ordered = self.in_order.front().map(|packet| packet.due_ns);
        let unordered = self.unordered.peek().map(|packet| packet.0.due_ns);
        [ordered, unordered].into_iter().flatten().min()
    }

    /// Takes the next packet that has arrived by `now_ns`.
    pub fn pop(&mut self, now_ns: u64) -> Option<Delivery<P>> {
        let ordered = self.in_order.front().map(InFlight::key);
        let unordered = self.unordered.peek().map(|packet| packet.0.key());
        let from_unordered = match (ordered, unordered) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(ordered), Some(unordered)) => unordered < ordered,
        };
        let (due_ns, _) = if from_unordered { unordered } else { ordered }?;
        if due_ns > now_ns {
            return None;
        }
        let packet = if from_unordered {
            self.unordered.pop()?.0.packet
        } else {
            self.in_order.pop_front()?.packet
        };
        let length = packet.length_bytes() as u64;
        self.in_flight_bytes -= length;
        self.counters.delivered_packets += 1;
        self.counters.delivered_bytes += length;
        self.counters.last_ns = Some(now_ns);
        Some(Delivery { due_ns, packet })
    }

    /// Packets that were accepted and not popped yet.
    #[must_use]
    pub fn in_flight_packets(&self) -> usize {
        self.in_order.len() + self.unordered.len()
    }
}

/// The nearest whole number; the values here are far inside the range.
fn signed(value: f64) -> i64 {
    value.round() as i64
}
