//! The work of timers: wills, the end of sessions, the expiry of messages.

use super::Broker;
use crate::api::DoorState;
use crate::queues::QueueKey;
use crate::session::NEVER_MS;

/// Timers handled in one call, so that a crowd that expires together doesn't hold the shard up.
const TIMERS_PER_CALL: usize = 1_024;

/// Timers handled in one call, whatever else was done in the turn.
const LEAST_TIMERS: usize = 16;

/// Expired retained messages are dropped together this often; until then nobody is sent them.
const RETAINED_SWEEP_MS: u64 = 10_000;

impl<P: DoorState> Broker<P> {
    /// When [`timeout`](Self::timeout) wants to be called. In the past if there is more to do than
    /// one call did.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        let timer_ms = self.queues.timers.first().map(|&(at_ms, _)| at_ms);
        let retained_ms = Some(self.directory.retained_deadline_ms())
            .filter(|&at_ms| self.shard == 0 && at_ms != u64::MAX)
            .map(|at_ms| (at_ms / RETAINED_SWEEP_MS + 1) * RETAINED_SWEEP_MS);
        let is_stalled = !(self.stalled.is_empty() && self.stalled_groups.is_empty());
        let stalled_ms = is_stalled.then_some(self.stalled_until_ms);
        let holders_ms =
            (self.queues.holders_due_ms != NEVER_MS).then_some(self.queues.holders_due_ms);
        let all = [
            timer_ms,
            holders_ms,
            retained_ms,
            stalled_ms,
            self.cursors_due_ms(),
            self.survey_due_ms(),
            self.far_due_ms(),
            self.judging_due_ms(),
            self.queues.work.has_postponed().then_some(0),
            self.postponed_wills.due_ms(),
            self.has_hungry().then_some(0),
        ];
        all.into_iter().flatten().min()
    }

    /// Publishes wills that are due, ends sessions and drops messages whose time is over.
    pub fn timeout(&mut self, now_ms: u64) {
        self.catch_up();
        self.read_restored();
        for handled in 0..TIMERS_PER_CALL {
            // The end of a session changes routes, and may be the end of many.
            if handled >= LEAST_TIMERS && self.has_copied() {
                break;
            }
            match self.queues.timers.first() {
                Some(&(at_ms, QueueKey::Session(slot))) if at_ms <= now_ms => {
                    self.session_timeout(now_ms, slot);
                }
                Some(&(at_ms, QueueKey::Group(group))) if at_ms <= now_ms => {
                    self.queues.group_timeout(now_ms, group);
                }
                _ => break,
            }
        }
        if self.shard == 0 {
            self.expire_retained(now_ms);
        }
        let is_stalled = !(self.stalled.is_empty() && self.stalled_groups.is_empty());
        if is_stalled && self.stalled_until_ms <= now_ms {
            self.poll_store(now_ms);
        }
        self.queues.look_at_holders(now_ms);
        let has_judged = self.judge_on(now_ms);
        self.far_timeout(now_ms);
        self.write_cursors_if_due(now_ms);
        self.survey_if_due(now_ms);
        self.finish(now_ms);
        if has_judged {
            self.judged_on();
        }
    }

    fn session_timeout(&mut self, now_ms: u64, slot: u32) {
        self.queues.sessions.unpack(slot);
        let session = &self.queues.sessions[slot];
        // [MQTT-4.1.0-2] The will is published with the end if it wasn't before.
        if session.expires_at_ms <= now_ms {
            if self.will_goes_first(now_ms, slot) {
                return self.queues.set_session_timer(slot);
            }
            self.queues.counters.sessions_expired += 1;
            self.end_session(now_ms, slot, true);
            return;
        }
        let sweeps = session.sweep_at_ms() <= now_ms;
        if session
            .will
            .as_ref()
            .is_some_and(|will| will.due_ms <= now_ms)
        {
            self.will_is_due(now_ms, slot);
        }
        if sweeps {
            self.queues.sweep_session(now_ms, slot);
        }
        self.queues.set_session_timer(slot);
    }
}
