//! Other nodes: the engine of the cluster, started and ended with the shards, and a shard's part in it.

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sterna_broker::{Broker, Ownership, PeerGate, Store};
use sterna_cluster::{
    BanRecord, Ended, Engine, Fence, Port, Region, Remote, Running, Settings, Shards, ToShard, Told,
};
use sterna_net::{Clock, Courier, Mailbox};

use crate::config::{self, Config};
use crate::control::Failure;
use crate::mail::admin::Body;
use crate::mail::{AdminLetter, HttpLetter, Mail};
use crate::metrics::ClusterSource;
use crate::session::SessionState;

/// Places of sessions, and retained messages, that a shard tells again in one turn.
const TOLD_AGAIN: usize = 256;

/// The engine, or none where there are no other nodes.
#[derive(Debug, Default)]
pub struct Cluster {
    engine: Option<Engine>,
    /// Name of this node.
    node: String,
    /// Bytes of the log in NATS.
    log_bytes: u64,
    /// Letters of each shard that wait for another turn.
    late: Arc<[AtomicUsize]>,
    running: Mutex<Option<Running>>,
}

impl Cluster {
    /// An engine that is still to be started; none where the configuration has no cluster.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn prepare(config: &Config) -> Result<Self, String> {
        let cluster = &config.cluster;
        if !cluster.is_on() {
            return Ok(Self::default());
        }
        let settings = settings(cluster, usize::from(config.shard_count()))?;
        tracing::info!(
            cluster = settings.name,
            node = settings.node,
            "this is a node of a cluster: it shares messages, retained messages, sessions and AMQP queues \
             with other nodes (docs/cluster.md)"
        );
        Ok(Self {
            node: settings.node.clone(),
            log_bytes: settings.log_bytes,
            late: (0..settings.shards).map(|_| AtomicUsize::new(0)).collect(),
            engine: Some(Engine::new(settings, cluster.maximum_waiting_bytes)),
            running: Mutex::default(),
        })
    }

    /// The store of a shard; `None` where there is no cluster.
    pub(crate) fn store(&self, shard: usize, mailbox: Mailbox<Mail>) -> Option<Box<dyn Store>> {
        let wake = move || mailbox.post(Mail::Store);
        Some(self.engine.as_ref()?.store(shard, Box::new(wake)))
    }

    /// A shard's part; `None` where there is no cluster.
    #[must_use]
    pub fn member(&self, shard: usize) -> Option<Member> {
        let engine = self.engine.as_ref()?;
        Some(Member {
            port: engine.port(shard),
            gate: engine.gate(),
            fence: engine.fence(),
            late: VecDeque::new(),
            late_count: Arc::clone(&self.late),
            shard,
        })
    }

    /// Whether the node is sure of its sessions, and may let clients in; `None` where there is no cluster.
    #[must_use]
    pub fn fence(&self) -> Option<Arc<Fence>> {
        Some(self.engine.as_ref()?.fence())
    }

    /// The way of questions; `None` where there is no cluster.
    pub(crate) fn asker(&self) -> Option<sterna_cluster::Asker> {
        Some(self.engine.as_ref()?.asker())
    }

    /// How the engine is, what waits for it, and the way of questions; `None` where there is no cluster.
    pub(crate) fn source(&self) -> Option<ClusterSource> {
        let engine = self.engine.as_ref()?;
        Some(ClusterSource {
            status: engine.status(),
            gate: engine.gate(),
            asker: engine.asker(),
            node: self.node.as_str().into(),
            maximum_log_bytes: self.log_bytes,
        })
    }

    /// Starts the engine, which writes to shards by the courier, and tells of a failure as they do.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub(crate) fn start(
        &mut self,
        courier: Courier<Mail>,
        clock: Clock,
        report: Sender<Failure>,
    ) -> Result<(), String> {
        if let Some(engine) = self.engine.take() {
            let ended = move |why| {
                // Nobody may be listening.
                let _ = report.send(match why {
                    Ended::Failed(why) => Failure::Bug(why),
                    Ended::LeftOut(why) => Failure::LeftOut(why),
                    Ended::Anew(why) => Failure::Anew(why),
                });
            };
            let clock = Box::new(move || clock.now_ms());
            let late = Arc::clone(&self.late);
            let letters = Letters { courier, late };
            let running = engine.start(Box::new(letters), clock, Box::new(ended))?;
            *self
                .running
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner) = Some(running);
        }
        Ok(())
    }

    /// Tells other nodes that this one takes no new clients soon, and leaves after that.
    pub(crate) fn drain(&self) {
        let running = (self.running.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*running {
            running.drain();
        }
    }

    /// Tells other nodes that this one leaves, and ends the engine. All that still waits for NATS has up to `within` to get there.
    pub(crate) fn stop(&self, within: Duration) {
        let running = (self.running.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(running) = running {
            running.stop(within);
        }
    }
}

/// The engine's settings.
///
/// # Errors
/// A sentence for the operator.
pub(crate) fn settings(cluster: &config::Cluster, shards: usize) -> Result<Settings, String> {
    let user = match (&cluster.user, &cluster.password_file) {
        (Some(user), Some(file)) => {
            let text = fs::read_to_string(file)
                .map_err(|error| format!("cluster.password_file: {}: {error}", file.display()))?;
            let password = text.lines().next().unwrap_or_default();
            Some((user.clone(), password.to_owned()))
        }
        _ => None,
    };
    let certificate = cluster.certificate.clone().zip(cluster.key.clone());
    let is_encrypted = |url: &String| url.starts_with("tls://");
    Ok(Settings {
        servers: cluster.nats.clone(),
        name: cluster.name.clone(),
        node: cluster.node_name()?,
        credentials_file: cluster.credentials_file.clone(),
        user,
        ca: cluster.ca.clone(),
        certificate,
        // A server that asks for no TLS must not get in the clear the messages that others encrypt.
        requires_tls: cluster.nats.iter().any(is_encrypted),
        replicas: usize::from(cluster.replicas),
        lease_ms: cluster.lease_ms,
        session_lease_ms: cluster.session_lease_ms,
        claim_timeout_ms: cluster.claim_timeout_ms,
        absence_ms: cluster.absence_ms,
        ended_session_ms: cluster.ended_session_ms,
        ended_filter_ms: cluster.ended_filter_ms,
        cleared_topic_ms: cluster.cleared_topic_ms,
        maximum_waiting_ends: cluster.maximum_waiting_ends as usize,
        maximum_node_names: cluster.maximum_node_names as usize,
        maximum_clock_skew_ms: cluster.maximum_clock_skew_ms,
        answer_timeout_ms: cluster.answer_timeout_ms,
        give_timeout_ms: cluster.give_timeout_ms,
        patience_ms: cluster.patience_ms,
        batch_bytes: cluster.batch_bytes as usize,
        maximum_in_flight: cluster.maximum_in_flight as usize,
        maximum_log_reads: cluster.maximum_log_reads as usize,
        maximum_unsettled_entries: cluster.maximum_unsettled_entries as usize,
        inbox_bytes: cluster.maximum_inbox_bytes,
        log_bytes: cluster.maximum_log_bytes,
        maximum_backoff_ms: cluster.maximum_backoff_ms,
        shards,
        region: cluster.region.as_ref().map(|name| region(cluster, name)),
    })
}

fn region(cluster: &config::Cluster, name: &str) -> Region {
    let remotes = cluster.remote_regions.iter().map(|remote| Remote {
        name: remote.name.clone(),
        domain: remote.domain().to_owned(),
    });
    Region {
        name: name.to_owned(),
        topics: cluster.region_topics.clone(),
        remotes: remotes.collect(),
        waiting_bytes: cluster.maximum_region_bytes,
        refuses_when_full: cluster.region_full == config::RegionFull::Refuse,
    }
}

/// The engine's way to the shards.
#[derive(Debug)]
struct Letters {
    courier: Courier<Mail>,
    late: Arc<[AtomicUsize]>,
}

impl Shards for Letters {
    fn post(&mut self, shard: usize, letter: ToShard) {
        let letter = match letter {
            // The same as with a store: acknowledgements may leave.
            ToShard::Committed => Mail::Store,
            ToShard::Question {
                name,
                question,
                answer,
            } => match HttpLetter::of_node(&name, &question, answer) {
                Some(letter) => Mail::Http(Box::new(letter)),
                // Its answer is that nobody answers.
                None => return,
            },
            ToShard::NodeQuestion { question, answer } => {
                let body = Body::Asked { question, answer };
                Mail::Admin(Box::new(AdminLetter(body)))
            }
            ToShard::Ban(record) => Mail::Ban(Box::new(record)),
            letter => Mail::Cluster(Box::new(letter)),
        };
        self.courier.post(shard, letter);
        self.courier.flush();
    }

    fn backlog(&self, shard: usize) -> usize {
        self.courier.backlog(shard) + self.late[shard].load(Ordering::Relaxed)
    }
}

/// A shard's part in a cluster.
#[derive(Debug)]
pub struct Member {
    port: Port,
    gate: Arc<PeerGate>,
    fence: Arc<Fence>,
    /// Letters that wait for another turn, in their order.
    late: VecDeque<ToShard>,
    /// Their number, for each shard. The engine brings no more while there are some.
    late_count: Arc<[AtomicUsize]>,
    shard: usize,
}

impl Member {
    /// Whether this node is sure of its sessions.
    pub(crate) const fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Tells of bans of the cluster that were made on this node, and of their ends.
    pub(crate) fn tell_bans(&self, records: Vec<BanRecord>) {
        if !records.is_empty() {
            self.port.tell_bans(records);
        }
    }

    /// Makes a shard's broker one of a node. To be called before there is a session.
    pub(crate) fn join(&self, broker: &mut Broker<SessionState>) {
        broker.join_cluster(Arc::clone(&self.gate));
    }

    /// Has the broker look whether this node is sure of its sessions, before something is sent.
    pub(crate) fn look_at_fence(&self, broker: &mut Broker<SessionState>, now_ms: u64) {
        // In this order: where it shuts and opens between the two, the number is another.
        let is_shut = self.fence.is_shut();
        let lapses = self.fence.lapses();
        if is_shut {
            self.fence.wake_when_open();
        }
        broker.look_at_fence(now_ms, is_shut, lapses);
    }

    /// Hands over a turn's letters for other nodes. Wills and the ends of sessions of a shard that stops stay where
    /// they are. Other nodes take them up, for nothing would come back to this one. A shard `is_leaving` when its clients have
    /// been told goodbye.
    ///
    /// Where there are messages alone, and nobody sees the turn's end, they may go with those of the next turn. An answer
    /// or a letter to another shard would be ahead of them: what follows it elsewhere could overtake them.
    pub(crate) fn end_of_turn(
        &self,
        broker: &mut Broker<SessionState>,
        (is_stopping, is_leaving): (bool, bool),
        is_unseen: bool,
    ) {
        let letters = broker.take_group_letters();
        let interest = broker.take_interest();
        let mut ownership = broker.take_ownership();
        let has_more = !(letters.is_empty() && interest.is_empty() && ownership.is_empty());
        if is_unseen && !has_more && !is_stopping && broker.may_outgoing_wait() {
            return;
        }
        if !letters.is_empty() {
            self.port.send_group_letters(letters);
        }
        if !interest.is_empty() {
            self.port.tell(interest);
        }
        // The changes go before the note that a session has ended here: another node goes on with them.
        let mut changes = broker.take_changes();
        if is_leaving && self.fence.has_wrong_clock() {
            // They say when sessions end. As after a kill, other nodes go on with what is kept.
            changes.clear();
        }
        if let Some(outbound) = broker.take_outgoing() {
            self.port.send(outbound, changes);
        }
        if is_stopping {
            ownership.retain(|note| {
                !matches!(
                    note,
                    Ownership::PublishWill { .. } | Ownership::Release { .. }
                )
            });
        }
        if !ownership.is_empty() {
            self.port.own(ownership);
        }
    }

    /// Takes a letter of the engine. Messages wait for another turn where the copies of this one are made, and so does all
    /// behind them.
    pub(crate) fn mail(&mut self, broker: &mut Broker<SessionState>, now_ms: u64, letter: ToShard) {
        let brings_messages = matches!(
            letter,
            ToShard::Messages(_) | ToShard::Encoded { .. } | ToShard::Logged { .. }
        );
        let is_spent = broker.has_copied();
        if !self.late.is_empty() || (brings_messages && is_spent) {
            self.late.push_back(letter);
            self.count_late();
        } else {
            self.take(broker, now_ms, letter);
        }
    }

    /// Takes letters that have waited for this turn: one, and more while they make no more than three quarters of its copies.
    pub(crate) fn take_late(&mut self, broker: &mut Broker<SessionState>, now_ms: u64) {
        let most = broker.limits().copies_per_turn / 4 * 3;
        while let Some(letter) = self.late.pop_front() {
            self.take(broker, now_ms, letter);
            if broker.copies_of_turn() >= most {
                break;
            }
        }
        self.count_late();
    }

    /// Whether letters wait for another turn.
    pub(crate) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    fn count_late(&self) {
        if let Some(count) = self.late_count.get(self.shard) {
            count.store(self.late.len(), Ordering::Relaxed);
        }
    }

    fn take(&self, broker: &mut Broker<SessionState>, now_ms: u64, letter: ToShard) {
        match letter {
            ToShard::Messages(messages) => {
                for (message, what) in messages {
                    broker.publish_from_peer(now_ms, message, what);
                }
            }
            ToShard::Encoded { records, subject } => {
                if broker.publish_encoded(now_ms, &records).is_err() {
                    let error = "its parts do not fit its body";
                    self.port.cannot_read("message", subject, error);
                }
            }
            ToShard::Wanted(changes) => broker.set_wanted(changes),
            ToShard::Released(filters) => broker.release_handed_over(filters),
            ToShard::WantedIsWhole => self.gate.set_knows_wanted(),
            // These are for doors.
            ToShard::Committed
            | ToShard::Question { .. }
            | ToShard::NodeQuestion { .. }
            | ToShard::Ban(_)
            | ToShard::Exporting(_) => {}
            ToShard::Claimed { session, result } => {
                broker.session_claimed(now_ms, session, result);
            }
            ToShard::Logged { messages, last } => {
                for (position, message) in messages {
                    broker.publish_from_log(now_ms, position, message);
                }
                broker.pass_log(last);
            }
            ToShard::Restored { session, records } => {
                broker.session_restored(now_ms, session, records);
            }
            ToShard::Adopt { name, records } => {
                broker.adopt(now_ms, &name, &records);
            }
            ToShard::Lost { name } => broker.lose_session(now_ms, &name),
            ToShard::Unkept { name } => broker.drop_unkept_session(now_ms, &name),
            ToShard::Will { will, testator } => {
                if !broker.publish_owned_will(now_ms, &will, testator.as_ref()) {
                    let client = testator.map_or_else(|| "".into(), |who| who.id().into());
                    (self.port).cannot_read("will of a client", client, "its form is not known");
                }
            }
            ToShard::GroupLetters { node, letters } => {
                for record in letters {
                    if !broker.group_letter(now_ms, &node, &record) {
                        let kind = "letter about a shared subscription";
                        let error = "its form is not known";
                        self.port.cannot_read(kind, Arc::clone(&node), error);
                    }
                }
            }
            ToShard::GroupLettersMissed { node } => broker.group_letters_missed(now_ms, &node),
            ToShard::Roll {
                own,
                sure,
                linger_ms,
            } => broker.set_roll(now_ms, own, sure, linger_ms),
            ToShard::TellAgain(told) => {
                let next = match told {
                    Told::Sessions(from) => broker
                        .renew_sessions(now_ms, from, TOLD_AGAIN)
                        .map(Told::Sessions),
                    Told::Retained(skip) => broker
                        .restore_retained(now_ms, skip, TOLD_AGAIN)
                        .map(Told::Retained),
                };
                self.port.has_told(told, next);
            }
        }
    }
}
