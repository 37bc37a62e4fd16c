//! Careful Resume (RFC 9959): a connection starts with the congestion window of an earlier one.
//!
//! Without it, a connection that returns with a ticket learns the capacity of the path again, in slow
//! start. At a round trip of 2 s that takes many seconds. Careful Resume spends one round trip to check
//! that the path is still the same. Then it sends half of the last connection's window, and takes it back
//! at the first sign of congestion.
//!
//! [`CarefulResume`] wraps the library's congestion controllers. They cannot be given a window. So
//! where RFC 9959 sets one, the wrapper replaces the inner controller by a new one that *begins*
//! with that window. It recognises packets by the time of sending, not by their number. Numbers
//! start again in each of QUIC's three packet number spaces.
//!
//! A server learns the ticket from the ClientHello, when the connection already has its controller.
//! Each controller therefore comes with a [`PathMemory`]. The driver takes it from the connection
//! and fills it later.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig, NewRenoConfig,
};
use quinn_proto::{Connection, RttEstimator};

use crate::choice::CongestionControl;
use crate::saved_path::SavedPath;

/// Phase of a connection that remembers its path (RFC 9959, section 3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The first flight is out, or there has not been enough to send yet to need more. Section 3.2.
    Reconnaissance,
    /// Sending into the half of the remembered window. Section 3.3.
    Unvalidated,
    /// Waiting for acknowledgements of all that. Section 3.4.
    Validating,
    /// The jump was too much. The window is half of the acknowledged bytes until the rest has
    /// drained. Section 3.5.
    SafeRetreat,
    /// Congestion control without a memory. Section 3.6.
    Normal,
}

impl Phase {
    /// The phase of a connection, for statistics; `None` without path memory.
    #[must_use]
    pub fn of(connection: &Connection) -> Option<Self> {
        Some(resuming(connection)?.phase.name())
    }
}

/// Why a memory was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// The memory is older than its lifetime, or from the future.
    Stale,
    /// The memory has impossible values, or no window.
    Implausible,
    /// The connection has one already.
    Filled,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stale => "path memory is too old",
            Self::Implausible => "path memory has impossible values or no window",
            Self::Filled => "path memory was filled before",
        })
    }
}

impl std::error::Error for Refused {}

/// The place where a connection's congestion controller finds the memory of an earlier connection.
/// A handle: clones are the same place.
///
/// After a change of the address, except of a NAT's port, the library makes a new controller. That has a
/// new and empty place, since the new path is not the remembered one.
#[derive(Clone, Debug, Default)]
pub struct PathMemory(Arc<OnceLock<Restored>>);

/// The memory that the controller uses.
#[derive(Clone, Copy, Debug)]
struct Restored {
    path: SavedPath,
    /// Remaining lifetime.
    valid_for: Duration,
}

impl PathMemory {
    /// The memory of a connection on its current path; `None` when its configuration has none
    /// (`path_memory_lifetime_ms` is 0).
    ///
    /// To be taken right after connecting or accepting; it copies the controller's state, so not in
    /// every turn.
    #[must_use]
    pub fn of(connection: &Connection) -> Option<Self> {
        Some(resuming(connection)?.memory)
    }

    /// Gives the connection the memory of an earlier one on the same path.
    ///
    /// `lifetime_ms` is the setting [`path_memory_lifetime_ms`]. The controller uses it once the
    /// connection's own first flight is acknowledged and shows a similar round trip. Later than that
    /// it still serves, as long as the lifetime lasts and nothing was lost.
    ///
    /// The keeper of the memory gives it to one connection only: RFC 9959, section 3.5, requires
    /// that a failed one is removed. With single-use tickets, a memory beside the ticket satisfies
    /// this.
    ///
    /// [`path_memory_lifetime_ms`]: crate::Settings::path_memory_lifetime_ms
    ///
    /// # Errors
    ///
    /// When the memory is stale or implausible, or there is one already. The connection then starts
    /// like any other.
    pub fn fill(&self, path: SavedPath, now_ms: u64, lifetime_ms: u64) -> Result<(), Refused> {
        if !path.is_plausible() || path.congestion_window_bytes == 0 {
            return Err(Refused::Implausible);
        }
        if !path.is_fresh(now_ms, lifetime_ms) {
            return Err(Refused::Stale);
        }
        let age_ms = now_ms - path.saved_at_ms;
        let valid_for = Duration::from_millis(lifetime_ms - age_ms);
        self.0
            .set(Restored { path, valid_for })
            .map_err(|_| Refused::Filled)
    }

    /// The window that a connection's path was seen to carry, in bytes, and when, in milliseconds
    /// since the Unix epoch.
    pub(crate) fn capacity(
        connection: &Connection,
        now: Instant,
        now_ms: u64,
    ) -> Option<(u64, u64)> {
        let resuming = resuming(connection)?;
        let (bytes, seen) = match resuming.capacity() {
            Some(capacity) => capacity,
            // Nothing learnt, but nothing against the old memory either: it is passed on as it was.
            None if resuming.phase.name() == Phase::Reconnaissance => {
                let restored = resuming.memory.0.get()?;
                return Some((
                    restored.path.congestion_window_bytes,
                    restored.path.saved_at_ms,
                ));
            }
            None => return None,
        };
        let age = now.saturating_duration_since(seen);
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Some((bytes, now_ms.saturating_sub(age_ms)))
    }
}

/// The controller of a connection, if it is ours.
fn resuming(connection: &Connection) -> Option<Box<Resuming>> {
    let copy = connection.congestion_state().clone_box();
    crate::meter::unmetered(copy).downcast().ok()
}

/// The library's controller in one of ours; anything else as it is.
pub(crate) fn library_controller(controller: Box<dyn Any>) -> Box<dyn Any> {
    match controller.downcast::<Resuming>() {
        Ok(resuming) => resuming.inner.into_any(),
        Err(other) => other,
    }
}

/// Makes congestion controllers that resume carefully, around one of the library's.
#[derive(Clone, Debug)]
pub struct CarefulResume {
    /// The algorithm that follows the path.
    pub congestion: CongestionControl,
    /// Congestion window of a connection without memory, in bytes.
    pub initial_window_bytes: u64,
}

impl CarefulResume {
    /// A controller that begins with a window, and with the packets sent after `since`.
    fn inner(&self, window_bytes: u64, since: Instant, mtu: u16) -> Box<dyn Controller> {
        // New Reno counts nothing that was sent up to the moment of its making.
        let before = since.checked_sub(Duration::from_nanos(1)).unwrap_or(since);
        plain_factory(self.congestion, window_bytes).build(before, mtu)
    }

    /// A controller that has just reacted to congestion, and now has this window and slow start
    /// threshold.
    fn settled(&self, window_bytes: u64, now: Instant, mtu: u16) -> Box<dyn Controller> {
        match self.kept_percent() {
            Some(percent) => {
                let before = (window_bytes * 100).div_ceil(percent);
                let mut inner = self.inner(before, now, mtu);
                inner.on_congestion_event(now, now, false, 0);
                inner
            }
            None => self.inner(window_bytes, now, mtu),
        }
    }

    /// Part of the window that remains after congestion, in percent; `None` if the controller keeps
    /// a model of the path instead.
    const fn kept_percent(&self) -> Option<u64> {
        match self.congestion {
            CongestionControl::Cubic => Some(70),
            CongestionControl::NewReno => Some(50),
            CongestionControl::Bbr => None,
        }
    }
}

impl ControllerFactory for CarefulResume {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Resuming {
            inner: self.inner(self.initial_window_bytes, now, current_mtu),
            config: self,
            mtu: current_mtu,
            memory: PathMemory::default(),
            built: now,
            phase: State::Reconnaissance,
            threshold: None,
            answered: None,
            acked_bytes: 0,
            flight_bytes: 0,
            batch_bytes: 0,
            last_sent: now,
            rtt: None,
            filled: None,
        })
    }
}

/// The library's own controller, beginning with a window.
pub(crate) fn plain_factory(
    congestion: CongestionControl,
    window_bytes: u64,
) -> Arc<dyn ControllerFactory + Send + Sync> {
    match congestion {
        CongestionControl::Cubic => {
            let mut cubic = CubicConfig::default();
            cubic.initial_window(window_bytes);
            Arc::new(cubic)
        }
        CongestionControl::NewReno => {
            let mut reno = NewRenoConfig::default();
            reno.initial_window(window_bytes);
            Arc::new(reno)
        }
        CongestionControl::Bbr => {
            let mut bbr = BbrConfig::default();
            bbr.initial_window(window_bytes);
            Arc::new(bbr)
        }
    }
}

/// A phase with its state. `pipe_bytes` is RFC 9959's PipeSize: the bytes that the path has carried
/// since the jump.
#[derive(Clone, Copy, Debug)]
enum State {
    Reconnaissance,
    Unvalidated {
        entered: Instant,
        /// Round trip at the jump.
        rtt: Duration,
        window_bytes: u64,
        pipe_bytes: u64,
        /// Whether a packet sent since the jump was acknowledged.
        acknowledged: bool,
    },
    Validating {
        entered: Instant,
        /// When the last packet of the jump was sent.
        last: Instant,
        /// In flight when the jump ended, and not acknowledged yet.
        left_bytes: u64,
        pipe_bytes: u64,
        last_acknowledged: bool,
    },
    SafeRetreat {
        last: Instant,
        window_bytes: u64,
        pipe_bytes: u64,
        last_acknowledged: bool,
    },
    Normal,
}

impl State {
    const fn name(&self) -> Phase {
        match self {
            Self::Reconnaissance => Phase::Reconnaissance,
            Self::Unvalidated { .. } => Phase::Unvalidated,
            Self::Validating { .. } => Phase::Validating,
            Self::SafeRetreat { .. } => Phase::SafeRetreat,
            Self::Normal => Phase::Normal,
        }
    }
}

/// A congestion controller that resumes carefully.
struct Resuming {
    config: Arc<CarefulResume>,
    inner: Box<dyn Controller>,
    mtu: u16,
    memory: PathMemory,
    built: Instant,
    phase: State,
    /// Where slow start ends after a retreat.
    threshold: Option<u64>,
    /// Losses of packets sent before this time are old: the retreat was the answer.
    answered: Option<Instant>,
    /// All that was ever acknowledged.
    acked_bytes: u64,
    /// Bytes in flight as far as the library reports them. Exact after each acknowledgement; all
    /// bytes sent since then are added, even datagrams that only acknowledge.
    flight_bytes: u64,
    /// Acknowledged within the batch that is being processed.
    batch_bytes: u64,
    last_sent: Instant,
    /// Shortest time from sending to acknowledgement within the batch that is being processed. The
    /// library's own estimator does not have that sample yet.
    rtt: Option<Duration>,
    /// When last an acknowledgement found the window in use.
    filled: Option<Instant>,
}

impl Resuming {
    fn min_window(&self) -> u64 {
        2 * u64::from(self.mtu)
    }

    /// Reconnaissance has news: jump, stay, or give up (RFC 9959, sections 3.2 and 4.2).
    fn reconnoitre(&mut self, now: Instant, app_limited: bool) {
        let (Some(restored), Some(rtt)) = (self.memory.0.get().copied(), self.rtt) else {
            return;
        };
        let window_bytes = self.inner.window();
        let jump_bytes = restored.path.congestion_window_bytes / 2;
        let too_old = now.saturating_duration_since(self.built) > restored.valid_for;
        if too_old || !is_same_path(&restored.path, rtt) || jump_bytes <= window_bytes {
            self.phase = State::Normal;
            return;
        }
        // Until the initial window is acknowledged and more is waiting than the window lets through,
        // nothing is gained by a jump. With pacing, a window in use is never full; half of it counts
        // as in use (RFC 7661 draws the line there).
        let confirmed = self.acked_bytes >= self.config.initial_window_bytes;
        let flight_bytes = self.flight_bytes + self.batch_bytes;
        let in_use = !app_limited && flight_bytes >= window_bytes / 2;
        if confirmed && in_use {
            self.phase = State::Unvalidated {
                entered: now,
                rtt,
                window_bytes: jump_bytes,
                pipe_bytes: self.flight_bytes,
                acknowledged: false,
            };
        }
    }

    /// The end of the jump (RFC 9959, section 3.3): the unused part of the window is not kept.
    fn end_jump(&mut self, entered: Instant, pipe_bytes: u64) {
        let initial_bytes = self.config.initial_window_bytes;
        if self.flight_bytes <= pipe_bytes || self.flight_bytes < initial_bytes {
            let window_bytes = pipe_bytes.max(initial_bytes);
            self.inner = self.config.inner(window_bytes, entered, self.mtu);
            self.phase = State::Normal;
        } else {
            self.inner = self.config.inner(self.flight_bytes, entered, self.mtu);
            self.phase = State::Validating {
                entered,
                last: self.last_sent,
                left_bytes: self.flight_bytes,
                pipe_bytes,
                last_acknowledged: false,
            };
        }
    }

    /// RFC 9959, section 3.5: at most half of the bytes that the path has carried.
    fn retreat(&mut self, now: Instant, last: Instant, pipe_bytes: u64) {
        self.answered = Some(now);
        self.phase = State::SafeRetreat {
            last,
            window_bytes: (pipe_bytes / 2).max(self.min_window()),
            pipe_bytes,
            last_acknowledged: false,
        };
    }

    /// The jump has drained. Continues from the retreat's window, in slow start, up to the window
    /// that the controller would have left of the pipe.
    fn end_retreat(&mut self, now: Instant, window_bytes: u64, pipe_bytes: u64) {
        let threshold = self
            .config
            .kept_percent()
            .map(|percent| pipe_bytes * percent / 100);
        self.inner = match threshold {
            Some(threshold) if threshold <= window_bytes => {
                self.config.settled(window_bytes, now, self.mtu)
            }
            _ => self.config.inner(window_bytes, now, self.mtu),
        };
        self.threshold = threshold.filter(|threshold| *threshold > window_bytes);
        self.phase = State::Normal;
    }

    /// The window that the path has carried, and when.
    fn capacity(&self) -> Option<(u64, Instant)> {
        let bytes = match self.phase {
            State::Unvalidated { pipe_bytes, .. } | State::Validating { pipe_bytes, .. } => {
                pipe_bytes
            }
            State::SafeRetreat { window_bytes, .. } => window_bytes,
            State::Reconnaissance | State::Normal => self.inner.window(),
        };
        // Up to the initial window there is nothing to remember.
        (bytes > self.config.initial_window_bytes)
            .then_some(bytes)
            .zip(self.filled)
    }
}

/// RFC 9959, section 4.2.1: a round trip of half the remembered one or less, or of ten times or
/// more, means another path.
fn is_same_path(path: &SavedPath, rtt: Duration) -> bool {
    let remembered = Duration::from_micros(path.min_rtt_us.into());
    rtt > remembered / 2 && rtt < remembered * 10
}

impl Controller for Resuming {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
        self.last_sent = now;
        self.flight_bytes += bytes;
        if let State::Unvalidated {
            entered,
            window_bytes,
            pipe_bytes,
            ..
        } = self.phase
            // The library sends whole datagrams, and stops before the one that would fill the window.
            && self.flight_bytes + self.min_window() >= window_bytes
        {
            self.end_jump(entered, pipe_bytes);
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let sample = now.saturating_duration_since(sent);
        self.rtt = Some(self.rtt.map_or(sample, |least| least.min(sample)));
        self.acked_bytes += bytes;
        self.batch_bytes += bytes;
        if !app_limited {
            self.filled = Some(now);
        }
        let forward = match &mut self.phase {
            State::Reconnaissance | State::Normal => true,
            State::Unvalidated {
                entered,
                pipe_bytes,
                acknowledged,
                ..
            } => {
                *pipe_bytes += bytes;
                *acknowledged |= sent >= *entered;
                false
            }
            State::Validating {
                entered,
                last,
                left_bytes,
                pipe_bytes,
                last_acknowledged,
            } => {
                *pipe_bytes += bytes;
                *left_bytes = left_bytes.saturating_sub(bytes);
                *last_acknowledged |= sent >= *last;
                // Packets sent before the jump say nothing about it.
                sent >= *entered
            }
            State::SafeRetreat {
                last,
                pipe_bytes,
                last_acknowledged,
                ..
            } => {
                *pipe_bytes += bytes;
                *last_acknowledged |= sent >= *last;
                false
            }
        };
        if forward {
            self.inner.on_ack(now, sent, bytes, app_limited, rtt);
        }
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        if !matches!(
            self.phase,
            State::Unvalidated { .. } | State::SafeRetreat { .. }
        ) {
            self.inner
                .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        }
        self.flight_bytes = in_flight;
        match self.phase {
            State::Reconnaissance => self.reconnoitre(now, app_limited),
            State::Unvalidated {
                entered,
                rtt,
                pipe_bytes,
                acknowledged,
                ..
            } => {
                let another_path = self.memory.0.get().is_some_and(|restored| {
                    self.rtt
                        .is_some_and(|rtt| !is_same_path(&restored.path, rtt))
                });
                if another_path {
                    self.retreat(now, self.last_sent, pipe_bytes);
                } else if acknowledged || now.saturating_duration_since(entered) > rtt {
                    self.end_jump(entered, pipe_bytes);
                }
            }
            State::Validating {
                left_bytes: 0,
                last_acknowledged: true,
                ..
            } => self.phase = State::Normal,
            State::SafeRetreat {
                window_bytes,
                pipe_bytes,
                last_acknowledged: true,
                ..
            } => self.end_retreat(now, window_bytes, pipe_bytes),
            State::Validating { .. } | State::SafeRetreat { .. } => {}
            State::Normal => {
                if let Some(threshold) = self.threshold
                    && self.inner.window() >= threshold
                {
                    self.inner = self.config.settled(threshold, now, self.mtu);
                    self.threshold = None;
                }
            }
        }
        self.rtt = None;
        self.batch_bytes = 0;
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.flight_bytes = self.flight_bytes.saturating_sub(lost_bytes);
        if !is_persistent_congestion && self.answered.is_some_and(|answered| sent <= answered) {
            return;
        }
        match self.phase {
            State::Unvalidated { pipe_bytes, .. } if !is_persistent_congestion => {
                self.retreat(now, self.last_sent, pipe_bytes);
                return;
            }
            State::Validating {
                last, pipe_bytes, ..
            } if !is_persistent_congestion => {
                self.retreat(now, last, pipe_bytes);
                return;
            }
            // The inner controller does not know of the jump; it gets the window after a retreat.
            State::Unvalidated { pipe_bytes, .. } | State::Validating { pipe_bytes, .. } => {
                let window_bytes = (pipe_bytes / 2).max(self.min_window());
                self.inner = self.config.inner(window_bytes, sent, self.mtu);
            }
            State::SafeRetreat { window_bytes, .. } => {
                self.inner = self.config.inner(window_bytes, sent, self.mtu);
            }
            State::Reconnaissance | State::Normal => {}
        }
        self.phase = State::Normal;
        self.threshold = None;
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        match self.phase {
            State::Unvalidated { window_bytes, .. } | State::SafeRetreat { window_bytes, .. } => {
                // The path may have got larger datagrams since.
                window_bytes.max(self.min_window())
            }
            State::Reconnaissance | State::Validating { .. } | State::Normal => self.inner.window(),
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            config: Arc::clone(&self.config),
            inner: self.inner.clone_box(),
            memory: self.memory.clone(),
            ..*self
        })
    }

    fn initial_window(&self) -> u64 {
        self.config.initial_window_bytes
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_has_nothing_to_remember_pays_little() {
        // Beside the inner controller, per connection: this and the place of the memory.
        assert!(size_of::<Resuming>() <= 256, "{}", size_of::<Resuming>());
        assert!(size_of::<OnceLock<Restored>>() <= 64);
    }

    #[test]
    fn the_round_trip_decides_whether_it_is_the_same_path() {
        let path = SavedPath {
            rtt_us: 120_000,
            min_rtt_us: 100_000,
            congestion_window_bytes: 1,
            mtu_bytes: 1_200,
            saved_at_ms: 0,
        };
        for (rtt_ms, same) in [
            (49, false),
            (50, false),
            (51, true),
            (999, true),
            (1_000, false),
        ] {
            assert_eq!(is_same_path(&path, Duration::from_millis(rtt_ms)), same);
        }
    }

    #[test]
    fn a_settled_controller_has_the_window_that_was_asked_for() {
        let now = Instant::now();
        for congestion in CongestionControl::ALL {
            let factory = CarefulResume {
                congestion: *congestion,
                initial_window_bytes: 12_000,
            };
            for window_bytes in [2_400, 55_800, 1_000_001] {
                let window = factory.settled(window_bytes, now, 1_200).window();
                assert!(window.abs_diff(window_bytes) <= 1, "{congestion}: {window}");
            }
        }
    }
}
