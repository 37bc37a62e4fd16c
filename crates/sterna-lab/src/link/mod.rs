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
//! # Randomness
//!
//! Each kind of decision has a random stream of its own, made from seed, direction and kind. Each
//! packet takes the same number of values from it. So decision *k* belongs to packet *k*: two
//! transports over links with one seed meet the same losses at the same packets, with any other
//! settings.

mod counters;
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
    Down, Interval, Jitter, LinkSettings, Loss, LossAt, PipeSettings, Queue, Reorder, Schedule,
    SettingsError,
};
pub use trace::{OPPORTUNITY_BYTES, Trace};

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

/// Two pipes that belong together.
#[derive(Debug)]
pub struct Link<P> {
    up: Pipe<P>,
    down: Pipe<P>,
}

impl<P: Packet> Link<P> {
    /// A link that is up and empty, at moment 0.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges.
    pub fn new(settings: &LinkSettings, seed: u64) -> Result<Self, SettingsError> {
        let rtt_ns = settings.rtt_ns();
        Ok(Self {
            up: Pipe::new(&settings.up, rtt_ns, seed, Direction::Up)?,
            down: Pipe::new(&settings.down, rtt_ns, seed, Direction::Down)?,
        })
    }

    /// One direction.
    #[must_use]
    pub const fn pipe(&self, direction: Direction) -> &Pipe<P> {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    /// One direction, to change it.
    pub const fn pipe_mut(&mut self, direction: Direction) -> &mut Pipe<P> {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// Hands a packet to the link; see [`Pipe::push`].
    pub fn push(&mut self, direction: Direction, now_ns: u64, packet: P) -> Fate {
        self.pipe_mut(direction).push(now_ns, packet)
    }

    /// Takes a packet that has arrived by `now_ns`; see [`Pipe::pop`].
    pub fn pop(&mut self, direction: Direction, now_ns: u64) -> Option<Delivery<P>> {
        self.pipe_mut(direction).pop(now_ns)
    }

    /// When the next packet arrives, in either direction.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        [self.up.next_deadline_ns(), self.down.next_deadline_ns()]
            .into_iter()
            .flatten()
            .min()
    }
}
