//! The measures of a shard while memory is short.

use std::net::IpAddr;

use ipnet::IpNet;
use rustc_hash::FxHashMap;
use sterna_broker::{LastingSession, Principal};
use sterna_net::{Network, RefusedPeers};

use super::{Shard, Stopping};
use crate::config::Protocol;
use crate::door::{LIGHT_BYTES, Weighed, most_unread_bytes};
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
    /// The next time to read clients for a moment.
    pub(super) next_ms: Option<u64>,
    /// The next such time at which clients of heavy principals are read, too, and that looks for memory in excess.
    round_ms: u64,
    /// Whether there is more room to be made in queues.
    pub(super) is_relieving: bool,
    /// Whether all that can has left the memory of sessions, as far as the stage in which messages are dropped asks.
    is_relieved: bool,
    /// Bytes that clients and queues held at the last round, by principals that have entered for it.
    weighed: Vec<(Principal, u64)>,
    /// The most bytes that a principal has held since memory became short.
    heaviest_bytes: u64,
    /// Networks whose connections hold much, and that are heavy: they may have no more of them while waiting messages leave
    /// memory.
    full: Vec<IpAddr>,
    /// The newcomers that the transport refuses.
    refused: RefusedPeers,
    /// Bytes that clients were ended for, and when: the system has them back a little later.
    shed: (u64, u64),
}

/// Time between two such moments, in milliseconds: the longest wait of clients that hold little.
const SIP_INTERVAL_MS: u64 = 250;
/// Time between two rounds, in milliseconds.
const ROUND_INTERVAL_MS: u64 = 4 * SIP_INTERVAL_MS;
/// Time after which memory of clients that were ended is to be back, in milliseconds.
const BACK_MS: u64 = 2 * ROUND_INTERVAL_MS;
/// Less than this part of what the heaviest principal has held is little.
const LITTLE: u64 = 16;
/// Networks that are refused at once, at most.
const MOST_FULL: usize = 256;
/// Connections and sessions that are ended at once at most.
const MOST_ENDED: usize = 4_096;

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
            if self.shortage.earlier_ms == 0 {
                self.shortage.heaviest_bytes = 0;
            }
        } else if stage == Stage::Normal {
            self.shortage.earlier_ms = self.short_ms(net.now_ms()).min(self.memory.patience_ms());
            self.shortage.since_ms = net.now_ms();
        }
        self.broker.feel_pressure();
        self.shortage.is_relieving = stage >= Stage::MoveToLog;
        self.shortage.is_relieved &= stage >= Stage::Drop;
        self.shortage.next_ms = (stage > Stage::Normal).then(|| net.now_ms() + SIP_INTERVAL_MS);
        self.shortage.round_ms = net.now_ms() + ROUND_INTERVAL_MS;
        let found = if stage > Stage::Normal || before >= Stage::MoveToLog {
            self.weigh(net)
        } else {
            Vec::new()
        };
        if stage == Stage::Normal {
            self.forget_weights();
        }
        self.refuse(net);
        if self.stopping != Stopping::No {
            return;
        }
        let pauses = |stage: Stage| (stage > Stage::Normal, stage >= Stage::Drop);
        if pauses(stage) != pauses(before) {
            let mut doors = self.doors(net);
            doors.mqtt.memory_changed(&mut doors.cx);
            doors.amqp.memory_changed(&mut doors.cx);
            doors.http.memory_changed(&mut doors.cx);
        }
        if stage >= Stage::Drop {
            self.shed(net, found);
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
        let is_round = self.shortage.round_ms <= now_ms;
        if is_round {
            self.shortage.round_ms = now_ms + ROUND_INTERVAL_MS;
            if self.shortage.stage >= Stage::MoveToLog {
                let is_dropping = self.shortage.stage >= Stage::Drop;
                self.shortage.is_relieved = is_dropping && !self.shortage.is_relieving;
                self.broker.relieve_again();
                self.shortage.is_relieving = true;
            }
            let found = self.weigh(net);
            self.refuse(net);
            self.shed(net, found);
        }
        let mut doors = self.doors(net);
        doors.mqtt.sip(&mut doors.cx, is_round);
        doors.amqp.sip(&mut doors.cx, is_round);
        doors.http.sip(&mut doors.cx, is_round);
    }

    /// The time for which memory has been short, in milliseconds. An earlier shortage counts, less the time
    /// without shortage that followed it.
    const fn short_ms(&self, now_ms: u64) -> u64 {
        self.shortage.earlier_ms + now_ms.saturating_sub(self.shortage.since_ms)
    }

    /// Weighs what all clients and queues of this shard hold, by principal, and finds out who is heavy.
    fn weigh(&mut self, net: &mut dyn Network) -> Vec<Weighed> {
        let doors = self.doors(net);
        let mut found = Vec::new();
        doors.mqtt.weigh(&doors.cx, &mut found);
        doors.amqp.weigh(&doors.cx, &mut found);
        doors.http.weigh(&doors.cx, &mut found);
        let others = found.len();
        doors.admin.weigh(&doors.cx, &mut found);
        // Operators stay, and clients that are yet to prove that they are some do not, if they hold much.
        let stays = found.extract_if(others.., |one| {
            doors.admin.name_of(one.connection).is_some() || one.bytes <= LIGHT_BYTES as u64
        });
        for one in stays {
            doors.cx.memory.principals().leave(one.principal);
        }
        let principals = doors.cx.memory.principals();
        let mut sums: FxHashMap<Principal, u64> = FxHashMap::default();
        for one in &found {
            let is_new = !sums.contains_key(&one.principal);
            *sums.entry(one.principal).or_default() += one.own_bytes;
            if !is_new {
                principals.leave(one.principal);
            }
        }
        // Of connections alone, which newcomers would make more.
        let of_connections: Vec<_> = sums.iter().map(|(one, bytes)| (*one, *bytes)).collect();
        doors.cx.broker.weigh_sessions(&mut |principal, bytes| {
            if !sums.contains_key(&principal) {
                principals.enter_again(principal);
            }
            *sums.entry(principal).or_default() += bytes;
        });
        for (&principal, &bytes) in &sums {
            principals.adjust(principal, 0, bytes);
        }
        self.forget_weights();
        let principals = self.memory.principals();
        principals.judge_for(self.memory.ceiling_bytes().unwrap_or(u64::MAX));
        self.shortage.weighed = sums.into_iter().collect();
        for one in &found {
            let is_heavy = self.memory.is_heavy(one.principal);
            let most_bytes = most_unread_bytes(is_heavy, self.shortage.stage);
            net.cap_unread(one.connection, most_bytes);
            let _ = self.mqtt.note_heavy(one.connection, is_heavy)
                || self.amqp.note_heavy(one.connection, is_heavy)
                || self.http.note_heavy(one.connection, is_heavy);
        }
        self.note_full(&of_connections);
        found
    }

    /// Notes the networks that are full, by the bytes that connections of each principal hold on this shard.
    fn note_full(&mut self, of_connections: &[(Principal, u64)]) {
        if self.shortage.stage < Stage::MoveToLog {
            self.shortage.full.clear();
            return;
        }
        for &(principal, bytes) in of_connections {
            if self.memory.is_heavy(principal)
                && self.is_worth_ending(bytes)
                && let Some(network) = self.memory.principals().network(principal)
                && self.shortage.full.len() < MOST_FULL
                && !self.shortage.full.contains(&network)
            {
                self.shortage.full.push(network);
            }
        }
    }

    /// Has the transport refuse newcomers, as the stage asks: all of them, or those from networks that are full. Operators
    /// are let in, since they can help.
    fn refuse(&mut self, net: &mut dyn Network) {
        let refused = if self.shortage.stage >= Stage::RefuseNewcomers {
            RefusedPeers::All
        } else if self.shortage.full.is_empty() {
            RefusedPeers::None
        } else {
            RefusedPeers::Of(self.shortage.full.iter().copied().map(prefix_of).collect())
        };
        if refused == self.shortage.refused {
            return;
        }
        let listeners = self.policy.listeners.iter().enumerate();
        let refusing: Vec<u16> = listeners
            .filter(|(_, listener)| listener.protocol != Protocol::Admin)
            .map(|(index, _)| index as u16)
            .collect();
        net.refuse_newcomers(&refusing, &refused);
        self.shortage.refused = refused;
    }

    /// Forgets what the last round has weighed.
    fn forget_weights(&mut self) {
        let principals = self.memory.principals();
        for (principal, bytes) in std::mem::take(&mut self.shortage.weighed) {
            principals.adjust(principal, bytes, 0);
            principals.leave(principal);
        }
    }

    /// Forgets links that are attached nowhere, then ends clients of the heaviest principals until this shard's
    /// [part] of the excess is gone.
    fn shed(&mut self, net: &mut dyn Network, found: Vec<Weighed>) {
        let now_ms = net.now_ms();
        let shards = u64::from(self.sys.retained.shards());
        let excess_bytes = self.memory.excess_bytes(self.short_ms(now_ms));
        let (shed_bytes, shed_ms) = self.shortage.shed;
        let is_back = now_ms.saturating_sub(shed_ms) >= BACK_MS;
        let back_bytes = if is_back { 0 } else { shed_bytes };
        let mut ranked = self.memory.principals().ranked();
        let heaviest_bytes = ranked.first().map_or(0, |(bytes, _)| *bytes);
        self.shortage.heaviest_bytes = self.shortage.heaviest_bytes.max(heaviest_bytes);
        // Memory that was given back may be with the process still. Others with little are not why memory is short.
        let least_bytes = self.shortage.heaviest_bytes / LITTLE;
        let little = ranked.partition_point(|(bytes, _)| *bytes >= least_bytes);
        let little_bytes: u64 = ranked[little..].iter().map(|(bytes, _)| bytes).sum();
        if !self.memory.is_worth_ending(little_bytes) {
            ranked.truncate(little);
        }
        let (giving, part_bytes) = part(ranked, &self.shortage.weighed, shards, excess_bytes);
        // Nobody's connection ends for what others have left.
        let left_bytes = (excess_bytes / shards).saturating_sub(back_bytes);
        let mut ended_bytes = if left_bytes > 0 {
            let doors = self.doors(net);
            let mut cx = doors.cx;
            doors.amqp.give_up_departed(&mut cx, left_bytes)
        } else {
            0
        };
        let mut excess_bytes = part_bytes.saturating_sub(back_bytes + ended_bytes);
        let light = found.iter().filter(|one| one.bytes <= LIGHT_BYTES as u64);
        let light_bytes: u64 = light.map(|one| one.bytes).sum();
        let ends_light = self.memory.is_worth_ending(light_bytes * shards);
        let mut clients: FxHashMap<Principal, Vec<Weighed>> = FxHashMap::default();
        // Each of the light ones has little. Unless that is much together, their end would bring nothing.
        for one in found {
            if ends_light || one.bytes > LIGHT_BYTES as u64 {
                clients.entry(one.principal).or_default().push(one);
            }
        }
        let mut left = MOST_ENDED;
        for principal in giving {
            if excess_bytes == 0 || left == 0 {
                break;
            }
            let clients = clients.remove(&principal).unwrap_or_default();
            let bytes = self.shed_of(net, (principal, clients), excess_bytes, &mut left);
            excess_bytes = excess_bytes.saturating_sub(bytes);
            ended_bytes += bytes;
        }
        if ended_bytes > 0 {
            self.shortage.shed = (back_bytes + ended_bytes, now_ms);
        }
    }

    /// Ends clients of a principal until so many bytes come back, `left` of them at most. Those go first that hold more than
    /// a little and end with their connections. Of the rest, sessions that outlive theirs or the other connections go first,
    /// whichever hold more together; within each those that hold most. Returns the bytes that come back.
    fn shed_of(
        &mut self,
        net: &mut dyn Network,
        (principal, mut clients): (Principal, Vec<Weighed>),
        excess_bytes: u64,
        left: &mut usize,
    ) -> u64 {
        clients.sort_unstable_by_key(|one| std::cmp::Reverse(one.bytes));
        let light = clients.partition_point(|one| one.bytes > LIGHT_BYTES as u64);
        let light = clients.split_off(light);
        let mut ended = Ended::default();
        self.end_connections(net, clients, (excess_bytes, left), &mut ended);
        if ended.bytes < excess_bytes && *left > 0 {
            // A session of others has what was acknowledged, and is not why memory is short.
            let sessions = if self.memory.principals().is_burden(principal) {
                self.sessions_to_end(principal)
            } else {
                Vec::new()
            };
            let of_sessions = bytes_of(&sessions);
            let of_connections: u64 = light.iter().map(|one| one.bytes).sum();
            if of_sessions > of_connections {
                self.end_sessions(net, sessions, (excess_bytes, left), &mut ended);
                self.end_connections(net, light, (excess_bytes, left), &mut ended);
            } else {
                self.end_connections(net, light, (excess_bytes, left), &mut ended);
                self.end_sessions(net, sessions, (excess_bytes, left), &mut ended);
            }
        }
        if ended.connections + ended.sessions > 0 {
            tracing::warn!(
                principal = self.memory.principals().describe(principal),
                connections = ended.connections,
                sessions = ended.sessions,
                bytes = ended.bytes,
                "memory is short: clients of who holds most are ended"
            );
        }
        ended.bytes
    }

    /// Ends connections until so many bytes come back, `left` of them at most.
    fn end_connections(
        &mut self,
        net: &mut dyn Network,
        clients: Vec<Weighed>,
        (excess_bytes, left): (u64, &mut usize),
        ended: &mut Ended,
    ) {
        let mut doors = self.doors(net);
        for Weighed {
            bytes, connection, ..
        } in clients
        {
            if ended.bytes >= excess_bytes || *left == 0 {
                return;
            }
            *left -= 1;
            ended.bytes += bytes;
            ended.connections += 1;
            match doors.of_connection(connection) {
                Protocol::Mqtt => doors.mqtt.shed(&mut doors.cx, connection),
                Protocol::Amqp => doors.amqp.shed(&mut doors.cx, connection),
                Protocol::Http => doors.http.shed(&mut doors.cx, connection),
                Protocol::Admin => doors.admin.shed(&mut doors.cx, connection),
            }
        }
    }

    /// The sessions of a principal whose end would bring much, on this shard: all that outlive their connections where what
    /// lasts of them is much. Otherwise those that are away, where much of what waits for them could not leave memory.
    fn sessions_to_end(&self, principal: Principal) -> Vec<LastingSession> {
        let mut sessions = self.broker.lasting_sessions(principal);
        if !self.memory.is_for_sessions() {
            sessions.retain(|session| session.is_away);
            if !self.shortage.is_relieved || !self.is_worth_ending(bytes_of(&sessions)) {
                sessions.clear();
            }
        }
        sessions
    }

    /// Whether so many bytes of sessions on this shard are much: the others have as many, about.
    fn is_worth_ending(&self, bytes: u64) -> bool {
        let shards = u64::from(self.sys.retained.shards());
        self.memory.is_worth_ending(bytes * shards)
    }

    /// Ends sessions that outlive their connections until so many bytes come back, `left` of them at most.
    fn end_sessions(
        &mut self,
        net: &dyn Network,
        mut sessions: Vec<LastingSession>,
        (excess_bytes, left): (u64, &mut usize),
        ended: &mut Ended,
    ) {
        sessions.sort_unstable_by(|one, other| other.cmp(one));
        let mut rest_bytes = bytes_of(&sessions);
        for session in sessions {
            let is_worth = self.memory.is_for_sessions() || self.is_worth_ending(rest_bytes);
            if ended.bytes >= excess_bytes || !is_worth || *left == 0 {
                return;
            }
            rest_bytes -= session.bytes;
            if let Some(name) = self.broker.end_lasting(net.now_ms(), session) {
                *left -= 1;
                ended.bytes += session.bytes;
                ended.sessions += 1;
                tracing::debug!(
                    client = name.id(),
                    user = name.user(),
                    "memory is short: its session is ended"
                );
            }
        }
    }
}

/// The addresses of a principal that is a network, as [`sterna_broker::network_of`] cuts it.
fn prefix_of(network: IpAddr) -> IpNet {
    let bits = if network.is_ipv4() { 32 } else { 48 };
    IpNet::new(network, bits).unwrap_or_else(|_| network.into())
}

fn bytes_of(sessions: &[LastingSession]) -> u64 {
    sessions.iter().map(|session| session.bytes).sum()
}

/// The principals that are to give the bytes in excess, the heaviest first, and a shard's part of these bytes. That is what
/// it has of each one's, and at least an equal part: the bytes of sessions that are away are on no shard. `ranked` has all
/// principals' bytes, and `own` those of this shard.
fn part(
    mut ranked: Vec<(u64, Principal)>,
    own: &[(Principal, u64)],
    shards: u64,
    excess_bytes: u64,
) -> (Vec<Principal>, u64) {
    let own: FxHashMap<Principal, u64> = own.iter().copied().collect();
    let mut left_bytes = excess_bytes;
    let mut part_bytes = 0;
    ranked.retain(|&(bytes, principal)| {
        let taken_bytes = bytes.min(left_bytes);
        left_bytes -= taken_bytes;
        let own_bytes = own.get(&principal).map_or(0, |own| bytes.min(*own));
        let of_own = u128::from(taken_bytes) * u128::from(own_bytes) / u128::from(bytes.max(1));
        part_bytes +=
            u64::try_from(of_own).map_or(taken_bytes, |bytes| bytes.max(taken_bytes / shards));
        taken_bytes > 0
    });
    let giving = ranked.into_iter().map(|(_, principal)| principal);
    (giving.collect(), part_bytes)
}

/// Counts of those that were ended because memory is short.
#[derive(Debug, Default)]
struct Ended {
    connections: usize,
    sessions: usize,
    bytes: u64,
}
