//! The engine's thread: the client of NATS, on a runtime of its own.
//!
//! Tasks of one thread share a [`Core`]. Each goes on by itself after a fault: what it could not do, it does
//! again. Nothing here waits for a shard, and no shard waits for anything here.

#![allow(clippy::future_not_send)] // one thread runs all of them

mod agreement;
mod asked;
mod bans;
mod clocks;
mod connection;
mod ends;
mod expiring;
mod floors;
mod following;
mod gating;
mod given;
mod groups;
mod handed_over;
mod hearing;
mod incoming;
mod interest;
mod kept;
mod lanes;
mod log;
mod membership;
#[cfg(test)]
mod offline;
mod outgoing;
mod proving;
mod questions;
mod quorum;
pub(crate) mod refusals;
mod regions;
mod replicas;
mod report;
mod requests;
mod retained;
mod sessions;
mod streams;
mod transfer;
mod unreadable;
mod wire_version;
mod writing;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_nats::{Client, jetstream};
use bytes::Bytes;
use sterna_broker::{FromPeer, Interest, Message, NodeSet, PeerGate, SessionName, Store};
use tokio::sync::{Mutex, Notify};
use tokio::task::{LocalSet, spawn_local};

use crate::arrivals::Arrivals;
use crate::clocks::Clocks;
use crate::commits::{Commits, Part};
use crate::echoes::Echoes;
use crate::owners::{Fence, Key, Owners, Process, Terms};
use crate::port::{
    Asker, Commitments, FromShard, Inbound, LogView, Port, Progress, Shards, ToShard, Waiting,
};
use crate::settings::Settings;
use crate::status::Status;
use crate::table::{OUTSIDE, Table};
use crate::wire;
use lanes::Lane;
pub use transfer::{Content, Left, Plan, Transfer};

/// Time after which something that failed is tried again, at first.
const RETRY: Duration = Duration::from_millis(100);
/// The longest time between two tries.
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// The clock by which a node dates, in milliseconds since the Unix epoch.
pub type NodeTime = Box<dyn Fn() -> u64 + Send>;

/// Tells the process what becomes of the engine.
type Report = Rc<dyn Fn(Ended) + Send>;

/// A cluster's engine before its thread runs: what shards are made with.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    inbound: Arc<Inbound>,
    progress: Vec<Arc<Progress>>,
    status: Arc<Status>,
    gate: Arc<PeerGate>,
    fence: Arc<Fence>,
    log: Arc<LogView>,
}

/// Why an engine ended by itself, or is to be ended, a sentence each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// A bug.
    Failed(String),
    /// The cluster goes on without this process, for as long as it runs.
    LeftOut(String),
    /// The process goes by a wrong clock. It should stop in order, and begin anew with the wall clock as that is then. The
    /// engine goes on until it is stopped.
    Anew(String),
}

/// A running engine.
#[derive(Debug)]
pub struct Running {
    inbound: Arc<Inbound>,
    thread: JoinHandle<()>,
}

/// State that all tasks share.
struct Core {
    settings: Settings,
    clock: NodeTime,
    report: Report,
    /// Whether it is said that the process is to begin anew.
    begins_anew: Cell<bool>,
    clocks: RefCell<Clocks>,
    client: Client,
    jetstream: jetstream::Context,
    inbound: Arc<Inbound>,
    progress: Vec<Arc<Progress>>,
    status: Arc<Status>,
    gate: Arc<PeerGate>,
    shards: RefCell<Box<dyn Shards>>,
    table: RefCell<Table>,
    commits: RefCell<Vec<Commits>>,
    /// By the names of nodes: another may have a node's number later.
    lanes: RefCell<HashMap<Arc<str>, Rc<Lane>>>,
    new_lanes: RefCell<Vec<Arc<str>>>,
    lane_arrived: Notify,
    /// Notified when there is room for a node that was left out.
    has_room: Notify,
    log: log::Log,
    kept: RefCell<HashMap<Key, kept::Kept>>,
    /// Keys of requests that this process is at work on.
    requests: RefCell<HashMap<Key, requests::Own>>,
    /// Sessions that were claimed and could not be given what is kept of them in time, with the epochs.
    unrestored: RefCell<HashMap<Key, (SessionName, u64)>>,
    handed_over: RefCell<handed_over::HandedOver>,
    /// Retained messages that wait for the engine.
    retained: RefCell<VecDeque<retained::Waiting>>,
    retained_arrived: Notify,
    /// The number of the last retained message that this node has handed over.
    last_retained: Cell<u64>,
    regions: regions::Regions,
    /// Retained messages of this node that have not come back, and the payloads of others that have come meanwhile.
    echoes: RefCell<Echoes<Bytes>>,
    /// Filters of this node's readers. Those in `untold` are still to be told to other nodes.
    own: RefCell<HashMap<Arc<str>, Interest>>,
    /// Other processes, as shards know them.
    roll: RefCell<Option<groups::Roll>>,
    untold: RefCell<Vec<Arc<str>>>,
    /// Filters that are to be told later, and when, in milliseconds since the start.
    told_later: RefCell<HashMap<Arc<str>, u64>>,
    /// Filters whose end is being told. Shards hold them for sessions that have gone until NATS has it.
    ending: RefCell<HashSet<Arc<str>>>,
    untold_arrived: Notify,
    incarnation: Cell<u64>,
    hearing: hearing::Hearing,
    replicas: replicas::Replicas,
    /// Notified when another node is here.
    node_came: Notify,
    streams: streams::Streams,
    unreadable: unreadable::Throttle,
    overtaken: unreadable::Throttle,
    /// Lines about sessions that NATS says nothing about, and about messages that it never takes.
    unanswered: unreadable::Throttle,
    given_up: unreadable::Throttle,
    ends: RefCell<ends::Ends>,
    bans: RefCell<bans::Known>,
    arrivals: RefCell<Arrivals<given::Given>>,
    /// Notified when a batch is given, or one of the inbox is taken for which a given one may wait.
    given_arrived: Notify,
    /// Held by whoever hands over a batch that must arrive: one at a time.
    pace: Mutex<incoming::Pace>,
    /// Position of the last batch of the inbox that shards have.
    taken: Cell<u64>,
    fence: Arc<Fence>,
    owners: RefCell<Owners<Waiting>>,
    owners_changed: Notify,
    /// Whether sessions' records can be read and written.
    owns_sessions: Cell<bool>,
    started: Instant,
    gating: gating::Gating,
    /// Wakes who waits for an open connection.
    connected: Arc<Notify>,
    stopping: Notify,
    /// The time until which it waits for NATS when it stops.
    stops_by: Cell<Option<Instant>>,
    /// Why it is stopping, where nobody has asked for it.
    ended: RefCell<Option<Ended>>,
}

impl Engine {
    /// An engine that has not started. `maximum_waiting_bytes` is how many bytes of messages may wait for it.
    #[must_use]
    pub fn new(settings: Settings, maximum_waiting_bytes: u64) -> Self {
        let gate = PeerGate::new(maximum_waiting_bytes);
        if settings.region.is_some() {
            // Other regions get entries of one topic each.
            let mut whole = NodeSet::EMPTY;
            whole.insert(OUTSIDE);
            gate.set_whole(whole);
        }
        Self {
            inbound: Arc::default(),
            progress: (0..settings.shards).map(|_| Arc::default()).collect(),
            status: Arc::default(),
            gate: Arc::new(gate),
            fence: Arc::default(),
            log: Arc::new(LogView::new(settings.shards)),
            settings,
        }
    }

    /// How the engine and the other nodes are.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// The gate that brokers look at: [`Broker::join_cluster`](sterna_broker::Broker::join_cluster).
    #[must_use]
    pub fn gate(&self) -> Arc<PeerGate> {
        Arc::clone(&self.gate)
    }

    /// Whether this node is sure of its sessions, as shards look at it.
    #[must_use]
    pub fn fence(&self) -> Arc<Fence> {
        Arc::clone(&self.fence)
    }

    /// A shard's way to the engine.
    #[must_use]
    pub fn port(&self, shard: usize) -> Port {
        Port::new(shard, Arc::clone(&self.inbound))
    }

    /// The way of questions about the cluster.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Asker::new(Arc::clone(&self.inbound))
    }

    /// The store of a shard's broker. `wake` has the shard look at its acknowledgements in its next turn.
    ///
    /// # Panics
    /// Where there is no such shard.
    #[must_use]
    pub fn store(&self, shard: usize, wake: Box<dyn Fn() + Send>) -> Box<dyn Store> {
        Box::new(Commitments::new(
            shard,
            Arc::clone(&self.progress[shard]),
            Arc::clone(&self.log),
            Arc::clone(&self.inbound),
            wake,
        ))
    }

    /// Starts the thread, which connects to NATS by itself, and again after each loss. `report` is called
    /// where the thread ends and nobody has asked for it, or the process is to begin anew. `clock` is that of the shards.
    ///
    /// # Errors
    /// A sentence for the operator: what is wrong with the settings or their files.
    pub fn start(
        self,
        shards: Box<dyn Shards>,
        clock: NodeTime,
        report: Box<dyn Fn(Ended) + Send>,
    ) -> Result<Running, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| format!("cluster: no runtime: {error}"))?;
        let connected = Arc::new(Notify::new());
        let client = {
            // Tasks of the client begin here and go on when the thread runs.
            self.fence.await_clock(self.settings.answer_timeout_ms);
            let connecting =
                connection::connect(&self.settings, (&self.status, &self.fence), &connected);
            runtime.block_on(connecting)?
        };
        let inbound = Arc::clone(&self.inbound);
        let thread = std::thread::Builder::new()
            .name("cluster".to_owned())
            .spawn(move || {
                let report: Report = report.into();
                let own = Rc::clone(&report);
                let run = async move {
                    let core = Rc::new(self.core(client, shards, connected, (clock, own)));
                    core.run().await
                };
                if let Err(why) = LocalSet::new().block_on(&runtime, run) {
                    report(why);
                }
            })
            .map_err(|error| format!("cluster: cannot start a thread: {error}"))?;
        Ok(Running { inbound, thread })
    }

    fn core(
        self,
        client: Client,
        shards: Box<dyn Shards>,
        connected: Arc<Notify>,
        (clock, report): (NodeTime, Report),
    ) -> Core {
        let Self {
            settings,
            inbound,
            progress,
            status,
            gate,
            fence,
            log,
        } = self;
        let timeout = Duration::from_millis(settings.answer_timeout_ms);
        let jetstream = jetstream::context::ContextBuilder::new()
            .timeout(timeout)
            .ack_timeout(timeout)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let own = Process {
            node: settings.node.as_str().into(),
            incarnation: 0,
        };
        let terms = Terms {
            lease_ms: settings.session_lease_ms,
            absence_ms: settings.absence_ms,
            claim_timeout_ms: settings.claim_timeout_ms,
        };
        let arrivals = RefCell::new(Arrivals::new(settings.give_timeout_ms));
        let reads = settings.maximum_log_reads;
        let most_unsettled = settings.maximum_unsettled_entries;
        Core {
            clock,
            report,
            begins_anew: Cell::new(false),
            clocks: RefCell::new(Clocks::new(settings.maximum_clock_skew_ms)),
            owners: RefCell::new(Owners::new(own, terms)),
            owners_changed: Notify::new(),
            owns_sessions: Cell::new(false),
            fence,
            table: RefCell::new(Table::new(
                &settings.node,
                settings.lease_ms,
                settings.absence_ms,
                wire::READS,
            )),
            commits: RefCell::new((0..settings.shards).map(|_| Commits::default()).collect()),
            settings,
            client,
            jetstream,
            inbound,
            progress,
            status,
            gate,
            shards: RefCell::new(shards),
            lanes: RefCell::default(),
            new_lanes: RefCell::default(),
            lane_arrived: Notify::new(),
            has_room: Notify::new(),
            log: log::Log::new(log, reads, most_unsettled),
            kept: RefCell::default(),
            requests: RefCell::default(),
            unrestored: RefCell::default(),
            handed_over: RefCell::default(),
            retained: RefCell::default(),
            retained_arrived: Notify::new(),
            last_retained: Cell::new(0),
            regions: regions::Regions::default(),
            echoes: RefCell::default(),
            own: RefCell::default(),
            roll: RefCell::default(),
            untold: RefCell::default(),
            told_later: RefCell::default(),
            ending: RefCell::default(),
            untold_arrived: Notify::new(),
            incarnation: Cell::new(0),
            hearing: hearing::Hearing::default(),
            replicas: replicas::Replicas::default(),
            node_came: Notify::new(),
            streams: streams::Streams::default(),
            unreadable: unreadable::Throttle::default(),
            overtaken: unreadable::Throttle::default(),
            unanswered: unreadable::Throttle::default(),
            given_up: unreadable::Throttle::default(),
            ends: RefCell::default(),
            bans: RefCell::default(),
            arrivals,
            given_arrived: Notify::new(),
            pace: Mutex::default(),
            taken: Cell::new(0),
            started: Instant::now(),
            gating: gating::Gating::default(),
            connected,
            stopping: Notify::new(),
            stops_by: Cell::new(None),
            ended: RefCell::default(),
        }
    }
}

/// Time that other nodes are given to hear that this one leaves.
const GOODBYE: Duration = Duration::from_secs(1);

impl Running {
    /// Tells other nodes that this one takes no new clients soon, and leaves after that.
    pub fn drain(&self) {
        self.inbound.post(FromShard::Drain);
    }

    /// Tells other nodes that this one leaves, and ends the thread. All that still waits for NATS has up to `within` to get
    /// there, and the goodbye a second more. Messages that wait then are lost, and their publishers get no
    /// acknowledgement.
    pub fn stop(self, within: Duration) {
        let by = Instant::now() + within;
        self.inbound.post(FromShard::Stop { by });
        let until = by + GOODBYE;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.thread.is_finished() && self.thread.join().is_err() {
            tracing::error!("the cluster's thread has panicked, which is a bug");
        }
    }
}

impl Core {
    /// Ends when it is asked to, or with the reason why nobody had to ask.
    async fn run(self: Rc<Self>) -> Result<(), Ended> {
        // Shards are heard from the start: nothing may pile up unseen.
        self.spawn(Rc::clone(&self).take_from_shards());
        self.spawn(Rc::clone(&self).run_owners());
        // The topics that leave the region are known before NATS is there.
        (self.table.borrow_mut()).export(self.settings.exported());
        self.tell_changes();
        // Nodes that may not join count, too, where clocks are judged.
        self.spawn(Rc::clone(&self).answer_clock());
        let core = Rc::clone(&self);
        self.spawn(async move {
            core.join().await;
            core.spawn(Rc::clone(&core).keep_proving());
            core.spawn(Rc::clone(&core).look_for_quorum());
            core.spawn(Rc::clone(&core).look_after_replicas());
            core.spawn(Rc::clone(&core).compare_settings());
            core.spawn(Rc::clone(&core).look_at_clocks());
            core.spawn(Rc::clone(&core).run_lanes());
            core.spawn(Rc::clone(&core).beat());
            core.spawn(Rc::clone(&core).hear());
            core.spawn(Rc::clone(&core).answer_nodes());
            core.spawn(Rc::clone(&core).answer_about_sessions());
            core.spawn(Rc::clone(&core).answer_operators());
            core.spawn(Rc::clone(&core).hear_drains());
            core.spawn(Rc::clone(&core).hear_exports());
            core.spawn(Rc::clone(&core).follow_nodes());
            core.spawn(Rc::clone(&core).receive_live());
            core.spawn(Rc::clone(&core).receive_inbox());
            core.spawn(Rc::clone(&core).receive_given());
            core.spawn(Rc::clone(&core).take_given());
            core.spawn(Rc::clone(&core).clear_inbox());
            core.spawn(Rc::clone(&core).follow_retained());
            core.spawn(Rc::clone(&core).send_retained());
            core.spawn(Rc::clone(&core).tell_interest());
            core.spawn(Rc::clone(&core).tell_later());
            core.spawn(Rc::clone(&core).send_log());
            core.spawn(Rc::clone(&core).follow_log());
            core.spawn(Rc::clone(&core).look_after_log());
            core.spawn(Rc::clone(&core).look_after_kept());
            core.spawn(Rc::clone(&core).remove_ends());
            core.spawn(Rc::clone(&core).follow_bans());
            core.spawn(Rc::clone(&core).look_after_bans());
            core.spawn(Rc::clone(&core).look_after_handed_over());
            core.spawn(Rc::clone(&core).tell_interest_of_others());
            core.spawn(Rc::clone(&core).own_sessions());
            core.spawn(Rc::clone(&core).send_to_regions());
            core.spawn(Rc::clone(&core).look_after_regions());
            core.spawn(Rc::clone(&core).hear_regions());
        });
        self.stopping.notified().await;
        self.gate.set_open(false);
        self.inbound.close();
        // Sessions and words of this process may belong to another one by now.
        if let Some(why) = self.ended.take() {
            return Err(why);
        }
        self.give_up_sessions().await;
        self.say_goodbye().await;
        Ok(())
    }

    /// Runs a task. Where it panics, the engine ends.
    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let (core, task) = (Rc::clone(self), spawn_local(task));
        spawn_local(async move {
            if let Err(error) = task.await {
                let failure = format!("the cluster's thread has failed, which is a bug: {error}");
                core.end(Ended::Failed(failure));
            }
        });
    }

    /// Ends the engine. The first reason counts.
    fn end(&self, why: Ended) {
        self.ended.borrow_mut().get_or_insert(why);
        self.stopping.notify_one();
    }

    /// Milliseconds since the engine's start.
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn post(&self, shard: usize, letter: ToShard) {
        let shards = self.settings.shards.max(1);
        self.shards.borrow_mut().post(shard % shards, letter);
    }

    /// Posts messages of other nodes for a shard's readers.
    fn post_messages(&self, shard: usize, messages: Vec<(Message, FromPeer)>) {
        for (message, _) in &messages {
            self.gate.arrives(message);
        }
        self.post(shard, ToShard::Messages(messages));
    }

    /// Opens or shuts the gate as the state of NATS demands.
    fn look_at_gate(&self) {
        let (now_ms, patience_ms) = (self.now_ms(), self.settings.patience_ms);
        match (self.gating).look(now_ms, patience_ms, &self.status, &self.gate) {
            Some(gating::Turn::Opened) => {
                tracing::info!("messages of QoS 1 and 2 go to other nodes");
            }
            Some(gating::Turn::Shut) => {
                let why = self.status.trouble();
                let why = why.unwrap_or_else(|| "not known".to_owned());
                tracing::warn!(
                    why,
                    "messages of QoS 1 and 2 that other nodes want are refused"
                );
            }
            None => {}
        }
    }

    fn set_stalled(&self, is_stalled: bool) {
        (self.status.is_stalled).store(is_stalled, Ordering::Release);
        self.look_at_gate();
    }

    /// NATS or another node has a part of a shard's turn, or nobody needs it any more.
    fn close(&self, part: Part) {
        let token = self.commits.borrow_mut()[part.shard].close(part);
        if let Some(token) = token
            && self.progress[part.shard].commit(token)
        {
            self.post(part.shard, ToShard::Committed);
        }
    }
}

/// The time to wait before the next try. It grows, until a try has lasted for a while.
#[derive(Debug)]
struct Retry {
    pause: Duration,
    last: Option<tokio::time::Instant>,
}

impl Retry {
    const fn new() -> Self {
        Self {
            pause: RETRY,
            last: None,
        }
    }

    async fn wait(&mut self) {
        let lasted = |last: tokio::time::Instant| last.elapsed() > 2 * LONGEST_RETRY;
        if self.last.is_some_and(lasted) {
            self.pause = RETRY;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_RETRY);
        self.last = Some(tokio::time::Instant::now());
    }
}
