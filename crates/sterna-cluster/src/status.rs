//! How the engine and the other nodes are, as any thread may read it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::clocks::Verdict;
use crate::conditions::Conditions;
use crate::engine::refusals::Refusals;
use crate::rights::Rights;

/// Time between two lines about messages that the client of NATS drops.
const DROPPED_INTERVAL: Duration = Duration::from_secs(10);

/// A number that one thread changes and any thread reads.
#[derive(Debug, Default)]
pub struct Figure(AtomicU64);

impl Figure {
    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Other nodes by name, in its order, and whether each was heard of within its lease.
pub type Roster = Arc<[(Arc<str>, bool)]>;

/// Figures of a node in a cluster. Counts are those since the start of the process.
#[derive(Debug, Default)]
pub struct Status {
    pub(crate) is_connected: AtomicBool,
    pub(crate) has_joined: AtomicBool,
    pub(crate) knows_nodes: AtomicBool,
    /// Whether what other nodes want was read to its end since this connection began, and is read on.
    hears_nodes: AtomicBool,
    pub(crate) knows_retained: AtomicBool,
    pub(crate) is_superseded: AtomicBool,
    pub(crate) is_unfit: AtomicBool,
    pub(crate) is_stalled: AtomicBool,
    pub(crate) is_draining: AtomicBool,
    pub(crate) is_clock_wrong: AtomicBool,
    clocks: Mutex<Verdict>,
    /// When the log was told of messages that the client of NATS drops, and how many it dropped since.
    dropped_fast: Mutex<(Option<Instant>, u64)>,
    pub(crate) refusals: Refusals,
    /// The rights of this node in NATS.
    pub(crate) rights: Rights,
    pub(crate) conditions: Conditions,
    pub(crate) is_sure: AtomicBool,
    pub(crate) lacks_streams: AtomicBool,
    pub(crate) tells_again: AtomicBool,
    roster: RwLock<Roster>,
    /// Connections to a server of NATS.
    pub connects: Figure,
    /// Other nodes that are here.
    pub nodes_here: Figure,
    /// Other nodes that are away.
    pub nodes_away: Figure,
    /// Filters that other nodes have readers for, of each node those that it told.
    pub filters: Figure,
    /// Sessions that this node owns.
    pub sessions_owned: Figure,
    /// Sessions with a claim or a change of their record under way.
    pub sessions_claimed: Figure,
    /// Bytes of the log in NATS.
    pub log_bytes: Figure,
    /// Bytes of messages in NATS that wait for other regions.
    pub region_bytes: Figure,
    /// Entries of other regions' messages that have not come.
    pub region_missed: Figure,
    /// Messages sent to other nodes; one for several nodes counts once for each.
    pub sent_messages: Figure,
    /// Batches that they were sent in.
    pub sent_batches: Figure,
    /// Bytes of these batches.
    pub sent_bytes: Figure,
    /// Those of them that the other node has taken directly.
    pub given_batches: Figure,
    /// Those that were appended to the other node's inbox.
    pub inbox_batches: Figure,
    /// Messages received from other nodes.
    pub received_messages: Figure,
    /// Batches that they came in.
    pub received_batches: Figure,
    /// Batches that came again and were left out.
    pub repeated_batches: Figure,
    /// Batches, records and other messages of NATS that could not be read.
    pub unreadable_batches: Figure,
    /// Requests to NATS for entries of the log that readers have not come to.
    pub log_requests: Figure,
    /// Ends that NATS keeps for a time, and that this node removes then: of sessions, keys, filters, bans and retained
    /// messages.
    pub ends: Figure,
    /// Names of nodes that the cluster had had when this node joined.
    pub node_names: Figure,
    /// Times that a session had more than NATS takes in one message.
    pub unkept_sessions: Figure,
    /// Attempts to hand something to NATS that failed, and were made again.
    pub failed_attempts: Figure,
}

impl Status {
    /// Whether a server of NATS is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Acquire)
    }

    /// Whether the node has joined the cluster since its start, and knows who else is there.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// The other nodes that are here, and those that are away and not given up.
    #[must_use]
    pub fn roster(&self) -> Roster {
        Arc::clone(&self.roster.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes the other nodes.
    pub(crate) fn note_roster(&self, mut others: Vec<(Arc<str>, bool)>) {
        others.sort();
        let mut roster = self.roster.write().unwrap_or_else(PoisonError::into_inner);
        *roster = others.into();
    }

    /// Why the node does not take part in the cluster as it should; `None` where it does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let is = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        let words = &self.conditions;
        let sentence = if is(&self.is_superseded) {
            "another process has this node's name"
        } else if is(&self.is_unfit) {
            "other nodes read no version of the wire form that this one writes"
        } else if !is(&self.is_connected) {
            self.refusals.sentence()
        } else if is(&self.is_clock_wrong) {
            "this node's clock is not the cluster's: it serves nobody"
        } else if let Some(refused) = self.rights.sentence() {
            return Some(refused);
        } else if !is(&self.has_joined) {
            return Some(words.not_joined());
        } else if !self.has_rights() {
            "this node's rights in NATS are being proved"
        } else if let Some(deaf) = words.deaf() {
            return Some(deaf);
        } else if is(&self.lacks_streams) {
            "NATS has lost streams of this cluster: they are made again"
        } else if is(&self.tells_again) {
            "NATS has lost what this node knows: it is written again"
        } else if let Some(quorum) = words.no_quorum() {
            return Some(quorum);
        } else if !is(&self.knows_nodes) {
            "what other nodes want is not known yet"
        } else if !is(&self.hears_nodes) {
            "what other nodes want is read again"
        } else if !is(&self.knows_retained) {
            "retained messages are not complete yet"
        } else if !is(&self.is_sure) {
            "the node is not sure of its sessions"
        } else if is(&self.is_stalled) {
            return Some(words.takes_nothing());
        } else {
            return None;
        };
        Some(sentence.to_owned())
    }

    /// Facts that operators are to know although the node takes part as it should, a sentence each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        self.conditions.remarks()
    }

    /// Whether this node has proved its rights on the present connection, and none was refused since.
    pub(crate) fn has_rights(&self) -> bool {
        self.rights.hold_for(self.connects.get())
    }

    /// The judgement of the clocks of nodes and servers of NATS at the last look.
    #[must_use]
    pub fn clocks(&self) -> Verdict {
        self.verdict().clone()
    }

    /// Notes what clocks say. Returns what they said before.
    pub(crate) fn note_clocks(&self, verdict: &Verdict) -> Verdict {
        std::mem::replace(&mut *self.verdict(), verdict.clone())
    }

    fn verdict(&self) -> MutexGuard<'_, Verdict> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server of NATS is connected. Returns the number of the connection.
    pub(crate) fn way_is_back(&self) -> u64 {
        // Changes of that time are still to be read.
        self.hears_no_nodes();
        self.connects.add(1);
        self.is_connected.store(true, Ordering::Release);
        self.connects.get()
    }

    /// The client of NATS drops a message that nobody takes. How many it dropped since the last line of the log, where that
    /// gets another one now.
    pub(crate) fn dropped_fast(&self) -> Option<u64> {
        let mut told = (self.dropped_fast.lock()).unwrap_or_else(PoisonError::into_inner);
        let (at, untold) = &mut *told;
        *untold += 1;
        let is_due = at.is_none_or(|at| at.elapsed() >= DROPPED_INTERVAL);
        is_due.then(|| {
            *at = Some(Instant::now());
            std::mem::take(untold)
        })
    }

    /// The connection is lost. Whether there was one.
    pub(crate) fn way_is_lost(&self) -> bool {
        self.hears_no_nodes();
        self.is_connected.swap(false, Ordering::AcqRel)
    }

    /// The filters that other nodes want were read to the end by a reader that began with a connection. False where that
    /// is over.
    pub(crate) fn knows_nodes_since(&self, connects: u64) -> bool {
        let is_same = self.is_connected() && self.connects.get() == connects;
        if is_same {
            self.knows_nodes.store(true, Ordering::Release);
            self.hears_nodes.store(true, Ordering::Release);
        }
        is_same
    }

    /// Nobody reads on what other nodes want.
    pub(crate) fn hears_no_nodes(&self) {
        self.hears_nodes.store(false, Ordering::Release);
    }

    /// Whether this node hears what other nodes want. One that lacks rights may not.
    pub(crate) fn hears_nodes(&self) -> bool {
        self.hears_nodes.load(Ordering::Acquire) && self.has_rights() && !self.conditions.is_deaf()
    }

    /// Whether messages may go to other nodes.
    pub(crate) fn may_send(&self) -> bool {
        let is = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        is(&self.is_connected)
            && is(&self.has_joined)
            && is(&self.knows_nodes)
            && is(&self.hears_nodes)
            && self.has_rights()
            && !self.conditions.is_deaf()
            && !is(&self.is_stalled)
            && !is(&self.is_clock_wrong)
            && !is(&self.is_superseded)
            && !is(&self.is_unfit)
    }
}
