//! The part of a shard that bans need: their records, and the end of clients that are banned.

use std::net::IpAddr;

use sterna_broker::EndCause;
use sterna_cluster::BanRecord;
use sterna_net::{ConnectionId, Network};

use super::{Doors, Shard};
use crate::bans::{Newcomer, TooManyBans};
use crate::config::Protocol;
use crate::mail::Mail;

/// Clients that are looked at in one turn; messages pass between two turns.
const CLIENTS_PER_TURN: usize = 500;
/// Time until the next turn.
const PAUSE_MS: u64 = 1;
/// Time between the end of a round and the next one.
const ROUNDS_PAUSE_MS: u64 = 1_000;

/// The rounds in which all clients are looked at for those that are banned.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Clients that are still to be looked at.
    clients: Vec<ConnectionId>,
    /// The newest ban when it began.
    newest: u64,
    /// When the next clients are looked at, or a new round begins.
    due_ms: Option<u64>,
    /// When a new round may begin.
    next_ms: u64,
    /// When the next ban ends; for the first shard.
    expiry_ms: Option<u64>,
}

impl Round {
    /// When [`Shard::end_banned`] is to be called.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        [self.due_ms, self.expiry_ms].into_iter().flatten().min()
    }
}

impl Shard {
    /// Bans were added or lifted, here or on another shard.
    pub(super) fn bans_changed(&mut self, net: &mut dyn Network) {
        self.keep_bans(net.now_ms());
        // Nobody is to be ended by a ban that is lifted.
        if self.bans.newest() != self.bans_round.newest {
            let due_ms = self.bans_round.next_ms.max(net.now_ms());
            self.bans_round.due_ms.get_or_insert(due_ms);
        }
        self.end_banned(net);
    }

    /// Takes up a ban of another node, or its end, and has all shards look at it.
    pub(super) fn learn_ban(&mut self, now_ms: u64, record: &BanRecord) {
        match self.bans.learn(&self.policy.bans, now_ms, record) {
            Ok(false) => {}
            Ok(true) => {
                for shard in 0..usize::from(self.broker.directory().shards()) {
                    self.outbox.post(shard, Mail::Bans);
                }
                self.outbox.flush();
            }
            Err(TooManyBans) => tracing::error!(
                ban = record.name,
                "a ban of another node does not hold here: there are as many as bans.maximum_bans"
            ),
        }
    }

    /// Writes the records of bans that have changed, and ends those whose time is over. One shard does, since records have
    /// no owner.
    fn keep_bans(&mut self, now_ms: u64) {
        if self.number != 0 {
            return;
        }
        self.bans_round.expiry_ms = self.bans.expire(now_ms);
        let told = self.bans.take_told();
        if let Some(member) = &self.cluster {
            member.tell_bans(told);
        }
        for (key, value) in self.bans.take_changed() {
            match value {
                Some(value) => self.broker.keep_node(&key, &value),
                None => self.broker.forget_node(&key),
            }
        }
    }

    /// Ends the connections of some clients that are banned, if that is due.
    pub(super) fn end_banned(&mut self, net: &mut dyn Network) {
        let now_ms = net.now_ms();
        let is_due = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        if is_due(self.bans_round.expiry_ms) {
            self.keep_bans(now_ms);
        }
        if !is_due(self.bans_round.due_ms) {
            return;
        }
        let mut round = std::mem::take(&mut self.bans_round);
        if round.clients.is_empty() {
            // Bans from now on are for the round after this one.
            round.newest = self.bans.newest();
            let ids = (self.mqtt.clients.ids()).chain(self.amqp.clients.ids());
            round.clients = ids.chain(self.http.clients.ids()).collect();
        }
        let mut doors = self.doors(net);
        let rest = round.clients.len().saturating_sub(CLIENTS_PER_TURN);
        for id in round.clients.drain(rest..) {
            doors.end_if_banned(id, doors.address(id));
        }
        round.due_ms = if round.clients.is_empty() {
            // None may come for a long time.
            round.clients = Vec::new();
            round.next_ms = now_ms + ROUNDS_PAUSE_MS;
            (self.bans.newest() != round.newest).then_some(round.next_ms)
        } else {
            Some(now_ms + PAUSE_MS)
        };
        self.bans_round = round;
    }
}

impl Doors<'_> {
    /// Whether a client of MQTT or AMQP is banned.
    fn is_banned(&self, id: ConnectionId, address: Option<IpAddr>) -> bool {
        let names = (self.mqtt.names(id)).or_else(|| self.amqp.names(id));
        let (user, client) = names.unwrap_or_default();
        let who = Newcomer {
            user,
            client,
            address,
        };
        self.cx.bans.find(self.cx.now_ms, who).is_some()
    }

    fn address(&self, id: ConnectionId) -> Option<IpAddr> {
        self.cx.address(id)
    }

    /// Ends what is banned on a connection whose client is at this address.
    pub(super) fn end_if_banned(&mut self, id: ConnectionId, address: Option<IpAddr>) {
        match self.of_connection(id) {
            Protocol::Http => self.http.end_banned(&mut self.cx, id, address),
            Protocol::Mqtt if self.is_banned(id, address) => {
                let _ = self.mqtt.dismiss(&mut self.cx, id, EndCause::Banned);
            }
            Protocol::Amqp if self.is_banned(id, address) => {
                let _ = self.amqp.dismiss(&mut self.cx, id, EndCause::Banned);
            }
            Protocol::Mqtt | Protocol::Amqp | Protocol::Admin => {}
        }
    }
}
