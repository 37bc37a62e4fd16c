//! Time: idle time-outs in both directions (AMQP 1.0, part 2, section 2.4.5).

use super::{Connection, Phase};
use crate::frame;
use crate::{Condition, DecodeError, Lane, LaneWriter, Violation};

/// A sign of life is sent when nothing was written for this part of the peer's idle time-out.
/// Writes are seen only in retrospect, so that a silence may last twice as long.
const HEARTBEAT_PARTS: u64 = 3;

impl Connection {
    /// Time at which [`Connection::on_timeout`] is due, in milliseconds since the Unix epoch;
    /// `None` for never.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let patience_ms = u64::from(self.limits.open_timeout_ms);
        match self.phase {
            Phase::Header { .. } | Phase::Sasl(_) | Phase::Open => {
                Some(self.started_ms.saturating_add(patience_ms))
            }
            Phase::CloseSent => Some(self.closing_since_ms.saturating_add(patience_ms)),
            Phase::Closed => None,
            Phase::Opened => match (self.silence_deadline_ms(), self.heartbeat_deadline_ms()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        }
    }

    fn silence_deadline_ms(&self) -> Option<u64> {
        let announced_ms = u64::from(self.limits.idle_timeout_ms);
        (announced_ms > 0).then(|| self.last_received_ms.saturating_add(2 * announced_ms))
    }

    fn heartbeat_deadline_ms(&self) -> Option<u64> {
        let interval_ms = u64::from(self.peer.idle_timeout_ms) / HEARTBEAT_PARTS;
        (interval_ms > 0).then(|| self.heartbeat_ms.saturating_add(interval_ms))
    }

    /// Input was not read until now, because this end could not: that was not the peer's silence.
    pub const fn input_resumed(&mut self, now_ms: u64) {
        self.last_received_ms = now_ms;
    }

    /// Checks the time: sends a sign of life if one is due.
    ///
    /// # Errors
    ///
    /// The violation, if the peer has been silent for too long. Also if its open or close has not
    /// come in time.
    pub fn on_timeout(&mut self, now_ms: u64, out: &mut impl LaneWriter) -> Result<(), Violation> {
        self.now_ms = self.now_ms.max(now_ms);
        let due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now_ms);
        if self.phase != Phase::Opened {
            if !due(self.deadline_ms()) {
                return Ok(());
            }
            let violation = self.fail(
                DecodeError::new(Condition::RESOURCE_LIMIT_EXCEEDED, "the peer took too long"),
                out,
            );
            // There is no more patience for an answer.
            self.phase = Phase::Closed;
            return Err(violation);
        }
        if due(self.silence_deadline_ms()) {
            let violation = self.fail(
                DecodeError::new(
                    Condition::RESOURCE_LIMIT_EXCEEDED,
                    "nothing came within the idle time-out",
                ),
                out,
            );
            self.phase = Phase::Closed;
            return Err(violation);
        }
        if due(self.heartbeat_deadline_ms()) {
            if !self.wrote && self.open_sent {
                frame::encode_empty(out.buffer(Lane::CONTROL));
            }
            self.wrote = false;
            self.heartbeat_ms = now_ms;
        }
        Ok(())
    }
}
