//! The measures of a shard while memory is short.

use sterna_net::{ConnectionId, Network};

use super::{Shard, Stopping};
use crate::config::Protocol;
use crate::mail::Mail;
use crate::memory::Stage;

/// The stage of short memory, and the measures that are due.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// The stage that the shard has last seen.
    stage: Stage,
    /// The time since which memory is short, in milliseconds. While it is not short: the time until which it was.
    since_ms: u64,
    /// The time for which it was short before that, in milliseconds.
    earlier_ms: u64,
    /// The next time to read clients for a moment, and to look for memory in excess.
    pub(super) next_ms: Option<u64>,
    /// Whether there is more room to be made in queues.
    pub(super) is_relieving: bool,
}

/// Time between two such moments, in milliseconds.
const SIP_INTERVAL_MS: u64 = 1_000;

impl Shard {
    /// Brings this shard's share of the account of memory up to date.
    pub(super) fn account(&mut self) {
        let kept_bytes = self.mqtt.kept_bytes()
            + self.amqp.kept_bytes()
            + self.http.kept_bytes()
            + self.admin.kept_bytes();
        let counters = self.broker.own_counters();
        if self.memory.note(self.number, kept_bytes, counters) && self.memory.look() {
            for shard in 0..usize::from(self.sys.retained.shards()) {
                self.outbox.post(shard, Mail::Memory);
            }
        }
    }

    /// Another stage of short memory is in force.
    pub(super) fn memory_changed(&mut self, net: &mut dyn Network) {
        let stage = self.memory.stage();
        let before = std::mem::replace(&mut self.shortage.stage, stage);
        if stage == before {
            return;
        }
        if before == Stage::Normal {
            // Otherwise a moment in which enough was given back would begin everybody's patience anew.
            let over_ms = net.now_ms().saturating_sub(self.shortage.since_ms);
            self.shortage.earlier_ms = self.shortage.earlier_ms.saturating_sub(over_ms);
            self.shortage.since_ms = net.now_ms();
        } else if stage == Stage::Normal {
            self.shortage.earlier_ms = self.short_ms(net.now_ms()).min(self.memory.patience_ms());
            self.shortage.since_ms = net.now_ms();
        }
        self.broker.feel_pressure();
        self.shortage.is_relieving = stage >= Stage::MoveToLog;
        self.shortage.next_ms = (stage > Stage::Normal).then(|| net.now_ms() + SIP_INTERVAL_MS);
        let is_refusing = stage >= Stage::RefuseNewcomers;
        if is_refusing != (before >= Stage::RefuseNewcomers) {
            let listeners = self.policy.listeners.iter().enumerate();
            // Operators are let in, since they can help.
            let refusing: Vec<u16> = listeners
                .filter(|(_, listener)| is_refusing && listener.protocol != Protocol::Admin)
                .map(|(index, _)| index as u16)
                .collect();
            net.refuse_newcomers(&refusing);
        }
        if (stage > Stage::Normal) != (before > Stage::Normal) && self.stopping == Stopping::No {
            let mut doors = self.doors(net);
            doors.mqtt.memory_changed(&mut doors.cx);
            doors.amqp.memory_changed(&mut doors.cx);
            doors.http.memory_changed(&mut doors.cx);
        }
    }

    /// Makes room while memory is short, a little in each turn, and reads paused clients for a moment.
    pub(super) fn relieve(&mut self, net: &mut dyn Network) {
        let now_ms = net.now_ms();
        if self.shortage.is_relieving {
            self.shortage.is_relieving = self.broker.relieve(now_ms);
        }
        if self.shortage.next_ms.is_none_or(|next_ms| next_ms > now_ms)
            || self.stopping != Stopping::No
        {
            return;
        }
        self.shortage.next_ms = Some(now_ms + SIP_INTERVAL_MS);
        if self.shortage.stage >= Stage::MoveToLog {
            self.broker.relieve_again();
            self.shortage.is_relieving = true;
        }
        self.shed(net);
        let mut doors = self.doors(net);
        doors.mqtt.sip(&mut doors.cx);
        doors.amqp.sip(&mut doors.cx);
        doors.http.sip(&mut doors.cx);
    }

    /// The time for which memory has been short, in milliseconds. An earlier shortage counts, less the time
    /// without shortage that followed it.
    const fn short_ms(&self, now_ms: u64) -> u64 {
        self.shortage.earlier_ms + now_ms.saturating_sub(self.shortage.since_ms)
    }

    /// Forgets links that are attached nowhere, then ends the clients that hold most themselves, until this shard's part
    /// of the excess is gone.
    fn shed(&mut self, net: &mut dyn Network) {
        let shards = u64::from(self.sys.retained.shards());
        let short_ms = self.short_ms(net.now_ms());
        let mut excess_bytes = self.memory.excess_bytes(short_ms) / shards;
        if excess_bytes == 0 {
            return;
        }
        let mut doors = self.doors(net);
        // Nobody's connection ends for what others have left.
        let given_up = doors.amqp.give_up_departed(&mut doors.cx, excess_bytes);
        excess_bytes = excess_bytes.saturating_sub(given_up);
        let mqtt = doors.mqtt.heavy(&doors.cx).into_iter();
        let amqp = doors.amqp.heavy(&doors.cx).into_iter();
        let http = doors.http.heavy(&doors.cx).into_iter();
        let admin = doors.admin.heavy(&doors.cx).into_iter();
        // Operators stay, and clients that are yet to prove that they are some do not.
        let admin = admin.filter(|(_, connection)| doors.admin.name_of(*connection).is_none());
        let mut heavy: Vec<(u64, ConnectionId)> =
            mqtt.chain(amqp).chain(http).chain(admin).collect();
        heavy.sort_unstable();
        while excess_bytes > 0
            && let Some((bytes, connection)) = heavy.pop()
        {
            excess_bytes = excess_bytes.saturating_sub(bytes);
            match doors.of_connection(connection) {
                Protocol::Mqtt => doors.mqtt.shed(&mut doors.cx, connection),
                Protocol::Amqp => doors.amqp.shed(&mut doors.cx, connection),
                Protocol::Http => doors.http.shed(&mut doors.cx, connection),
                Protocol::Admin => doors.admin.shed(&mut doors.cx, connection),
            }
        }
    }
}
