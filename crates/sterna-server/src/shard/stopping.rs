//! The end of a shard: its clients are told goodbye, and then the shards wait for each other's last letters.
//!
//! Messages that clients leave go back to the homes of their queues, maybe on other shards. So cursors are written
//! when all letters are read. Shards say farewell in rounds: one says the next when it has heard the last of all others.
//! Letters between two shards keep their order, so a farewell comes after all that was sent before it.

use sterna_net::Network;

use super::Shard;
use crate::mail::Mail;

/// Rounds of farewells. The first is said behind what clients have left, and a queue's home assigns nothing after
/// that. Messages that it has assigned before come back ahead of the third. One that has failed too often by then goes to
/// another queue ahead of the fourth.
const ROUNDS: usize = 4;

/// Time between two looks for wills that are due, in milliseconds.
const LOOK_MS: u64 = 20;

/// How far the end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stopping {
    /// Nobody has asked for it.
    No,
    /// Acknowledgements wait for the store, and wills for other nodes, which tell nobody when they have them.
    Draining {
        /// The longest time for that, in milliseconds.
        until_ms: u64,
        /// When to look for the wills, in milliseconds.
        look_ms: u64,
    },
    /// Clients have been told goodbye. Letters of other shards are waited for, until this time at most, in
    /// milliseconds.
    Leaving(u64),
    /// Everything is written.
    Over,
}

impl Stopping {
    /// When it goes on in any case, in milliseconds; `None` if time changes nothing.
    pub(super) const fn deadline_ms(self) -> Option<u64> {
        match self {
            Self::Draining { look_ms, .. } => Some(look_ms),
            Self::Leaving(until_ms) => Some(until_ms),
            Self::No | Self::Over => None,
        }
    }
}

/// Farewells between this shard and the others.
#[derive(Debug, Default)]
pub(super) struct Farewells {
    /// Rounds in which this shard has said its own.
    said: usize,
    /// Those of others, by round.
    heard: [usize; ROUNDS],
}

impl Shard {
    /// Tells clients goodbye, if that was asked for and no acknowledgement or due will waits any more, or the time for
    /// that is over.
    pub(super) fn stop_if_drained(&mut self, net: &mut dyn Network) {
        let Stopping::Draining { until_ms, .. } = self.stopping else {
            return;
        };
        let now_ms = net.now_ms();
        let is_drained = self.mqtt.is_drained()
            && self.amqp.is_drained()
            && self.http.is_drained()
            && self.admin.is_drained();
        let has_wills = self.broker.has_due_wills();
        if (!is_drained || has_wills) && now_ms < until_ms {
            let look_ms = if is_drained {
                now_ms + LOOK_MS
            } else {
                until_ms
            };
            let look_ms = look_ms.min(until_ms);
            self.stopping = Stopping::Draining { until_ms, look_ms };
            return;
        }
        // A shard that has failed says no farewell.
        self.stopping = Stopping::Leaving(until_ms + self.policy.drain_ms / 2);
        let mut doors = self.doors(net);
        doors.mqtt.stop(&mut doors.cx);
        doors.amqp.stop(&mut doors.cx);
        doors.http.stop(&mut doors.cx);
        doors.admin.stop(&mut doors.cx);
    }

    /// Another shard has said its farewell of a round.
    pub(super) fn hear_farewell(&mut self, round: usize) {
        if let Some(heard) = self.farewells.heard.get_mut(round) {
            *heard += 1;
        }
    }

    /// Writes what clients have settled, if no other shard sends anything more, or the time for that is over.
    pub(super) fn end_if_all_is_heard(&mut self, net: &dyn Network) {
        if let Stopping::Leaving(until_ms) = self.stopping
            && (self.has_heard(ROUNDS) || net.now_ms() >= until_ms)
        {
            self.broker.write_cursors();
            self.keep_clock(true);
            self.stopping = Stopping::Over;
        }
    }

    /// Says farewell to the other shards, behind all letters of this turn.
    pub(super) fn say_farewell(&mut self) {
        if !matches!(self.stopping, Stopping::Leaving(_) | Stopping::Over) {
            return;
        }
        while self.farewells.said < ROUNDS && self.has_heard(self.farewells.said) {
            let round = self.farewells.said;
            for shard in (0..self.shards()).filter(|&shard| shard != self.number) {
                self.outbox.post(shard, Mail::Farewell(round));
            }
            self.farewells.said += 1;
        }
    }

    /// Whether all other shards have said so many farewells.
    fn has_heard(&self, rounds: usize) -> bool {
        let last = self.farewells.heard[..rounds].last();
        last.is_none_or(|heard| *heard + 1 >= self.shards())
    }

    fn shards(&self) -> usize {
        usize::from(self.broker.directory().shards())
    }
}
