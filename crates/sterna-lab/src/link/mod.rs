//! The model of a link, without input or output.
//!
//! A [`Link`] has two [`Pipe`]s, one per [`Direction`]. A packet is pushed in at a moment, and the
//! pipe decides its fate at once. It can be popped at a later moment, which the pipe names as its
//! deadline. Moments are nanoseconds since the link's start and must not go back. The same
//! settings, seed and sequence of pushes always give the same fates:
//!
//! ```
//! use sterna_lab::link::{Direction, Link, LinkSettings, Loss, PipeSettings};
//!
//! let pipe = PipeSettings {
//!     rate_bps: Some(20_000_000),
//!     delay_ns: 12_500_000,
//!     loss: Loss::Independent { probability: 0.02 },
//!     ..PipeSettings::default()
//! };
//! let mut link = Link::new(&LinkSettings::symmetric(pipe), 42).unwrap();
//! link.push(Direction::Up, 0, vec![0; 1500]);
//! // 1500 bytes take 0.6 ms at 20 Mbit/s, and then 12.5 ms to travel.
//! assert_eq!(link.next_deadline_ns(), Some(13_100_000));
//! assert!(link.pop(Direction::Up, 13_099_999).is_none());
//! assert!(link.pop(Direction::Up, 13_100_000).is_some());
//! ```
//!
//! # Steps of a packet, in this order
//!
//! 1. Longer than the MTU: dropped.
//! 2. The link is down: dropped, or held until it is up again, as set.
//! 3. Lost at the entry ([`LossAt::Entry`], as netem does).
//! 4. Does not fit into the queue of packets that wait for the transmitter: dropped (tail drop). The
//!    packet that is being transmitted is not in the queue.
//! 5. Transmitted: its bytes, and the overhead that is set, at the rate, or at the moments of a
//!    [`Trace`].
//! 6. Lost behind the transmitter ([`LossAt::Exit`], as ns-3's error models do): it has used the
//!    link's time for nothing.
//! 7. Travels: delay and jitter. Jitter lets no packet overtake another unless that is asked for.
//! 8. Reordered, duplicated, corrupted, if it is so decided.
//!
//! # Several hops
//!
//! A link may have further hops behind it. A packet that has passed a hop enters the next one at that
//! very moment. Delays add up to the nanosecond, however late the caller is.
//!
//! # Randomness
//!
//! Each kind of decision has a random stream of its own, made from seed, direction and kind. Each packet
//! takes the same number of values from it, so decision *k* belongs to packet *k*. Two transports over
//! links with one seed meet the same losses at the same packets, with any other settings.

mod counters;
#[cfg(test)]
mod hop_tests;
mod loss;
mod pipe;
mod random;
mod settings;
#[cfg(test)]
mod tests;
mod trace;

pub use counters::{Cause, Counters, DropCounts};
pub use pipe::{Delivery, Fate, MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_PACKETS, Packet, Pipe};
pub use random::Random;
pub use settings::{
    Down, Hop, Interval, Jitter, LinkSettings, Loss, LossAt, MAX_HOPS, PipeSettings, Queue,
    Reorder, Schedule, SettingsError,
};
pub use trace::{Coverage, OPPORTUNITY_BYTES, Trace};

/// One of the two ways of a link.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

impl Direction {
    /// Both, in the order in which they are listed everywhere.
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];

    /// The way back.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }

    /// `up` or `down`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// One or several hops, each with two pipes.
#[derive(Debug)]
pub struct Link<P> {
    /// In the order from the client to the server; at least one.
    hops: Vec<PipePair<P>>,
}

/// Both directions of a hop.
#[derive(Debug)]
struct PipePair<P> {
    up: Pipe<P>,
    down: Pipe<P>,
}

impl<P: Packet> PipePair<P> {
    const fn of(&self, direction: Direction) -> &Pipe<P> {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    const fn of_mut(&mut self, direction: Direction) -> &mut Pipe<P> {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}

impl<P: Packet> Link<P> {
    /// A link that is up and empty, at moment 0.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges.
    pub fn new(settings: &LinkSettings, seed: u64) -> Result<Self, SettingsError> {
        settings.validate()?;
        let hops = settings.hops().enumerate().map(|(number, hop)| {
            let (rtt_ns, seed) = (hop.rtt_ns(), hop_seed(seed, number));
            Ok::<_, SettingsError>(PipePair {
                up: Pipe::new(&hop.up, rtt_ns, seed, Direction::Up)?,
                down: Pipe::new(&hop.down, rtt_ns, seed, Direction::Down)?,
            })
        });
        Ok(Self {
            hops: hops.collect::<Result<_, _>>()?,
        })
    }

    /// The index of the hop that a packet of a direction meets as the `place`-th one.
    const fn index(&self, direction: Direction, place: usize) -> usize {
        match direction {
            Direction::Up => place,
            Direction::Down => self.hops.len() - 1 - place,
        }
    }

    /// Takes new settings for the packets to come, for all hops or none.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges, or of another number of hops.
    pub fn change(&mut self, settings: &LinkSettings) -> Result<(), SettingsError> {
        settings.validate()?;
        if settings.behind.len() + 1 != self.hops.len() {
            return Err(SettingsError("a link keeps its number of hops"));
        }
        for (pair, hop) in self.hops.iter_mut().zip(settings.hops()) {
            pair.up.change(&hop.up, hop.rtt_ns())?;
            pair.down.change(&hop.down, hop.rtt_ns())?;
        }
        Ok(())
    }

    /// Switches one direction of the client's hop off or on; see [`Pipe::switch`].
    pub fn switch(&mut self, direction: Direction, is_on: bool) {
        self.hops[0].of_mut(direction).switch(is_on);
    }

    /// The counters of one direction, from its entry to its exit.
    #[must_use]
    pub fn counters(&self, direction: Direction) -> Counters {
        let mut counters = *self.hops[self.index(direction, 0)].of(direction).counters();
        for place in 1..self.hops.len() {
            let hop = &self.hops[self.index(direction, place)];
            counters.continue_with(hop.of(direction).counters());
        }
        counters
    }

    /// The counters of one direction of each hop, in the order from the client to the server.
    #[must_use]
    pub fn hop_counters(&self, direction: Direction) -> Vec<Counters> {
        let hops = self.hops.iter();
        hops.map(|hop| *hop.of(direction).counters()).collect()
    }

    /// Bytes that wait for the first transmitter of a direction at a moment, with overhead.
    pub fn waiting_bytes(&mut self, direction: Direction, now_ns: u64) -> u64 {
        let index = self.index(direction, 0);
        self.hops[index].of_mut(direction).waiting_bytes(now_ns)
    }

    /// Hands a packet to the link; see [`Pipe::push`]. Behind the first hop its fate is decided when it
    /// comes there, and the counters tell.
    pub fn push(&mut self, direction: Direction, now_ns: u64, packet: P) -> Fate {
        self.forward(direction, now_ns);
        let index = self.index(direction, 0);
        self.hops[index].of_mut(direction).push(now_ns, packet)
    }

    /// Hands packets on that have passed a hop by `now_ns`, at the moments when they have. So a caller that
    /// comes late changes nothing.
    fn forward(&mut self, direction: Direction, now_ns: u64) {
        for place in 1..self.hops.len() {
            let (from, to) = (
                self.index(direction, place - 1),
                self.index(direction, place),
            );
            while let Some(delivery) = self.hops[from].of_mut(direction).pop(now_ns) {
                let next = self.hops[to].of_mut(direction);
                next.push(delivery.due_ns, delivery.packet);
            }
        }
    }

    /// Takes a packet that has arrived by `now_ns`; see [`Pipe::pop`].
    pub fn pop(&mut self, direction: Direction, now_ns: u64) -> Option<Delivery<P>> {
        self.forward(direction, now_ns);
        let last = self.index(direction, self.hops.len() - 1);
        self.hops[last].of_mut(direction).pop(now_ns)
    }

    /// When the next packet arrives, in either direction, or has passed a hop.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let pipes = self.hops.iter().flat_map(|hop| [&hop.up, &hop.down]);
        pipes.filter_map(Pipe::next_deadline_ns).min()
    }

    /// Packets that were accepted and not popped yet, in one direction of all hops.
    #[must_use]
    pub fn in_flight_packets(&self, direction: Direction) -> usize {
        let hops = self.hops.iter();
        hops.map(|hop| hop.of(direction).in_flight_packets()).sum()
    }
}

/// The seed of a hop. The first one has that of the link: its losses are those of a link without others behind.
fn hop_seed(seed: u64, number: usize) -> u64 {
    if number == 0 {
        return seed;
    }
    Random::new(&[seed, number as u64, HOP]).next_u64()
}

/// Tells the seeds of hops from other random streams.
const HOP: u64 = u64::from_be_bytes(*b"hop\0\0\0\0\0");
