//! Which node has a client's session: one at a time in the cluster.
//!
//! Each session has a record in one stream, the last of its subject. A node that wants the session writes its name
//! there, by compare-and-set on the record's sequence number. The sequence number of its record is the *epoch* of
//! its ownership. Every node follows the stream. So the new owner's record tells the old owner, which ends the
//! session and says so. The new owner begins after that.
//!
//! A node that cannot be told (it stands still, or is cut off) ends nothing. Therefore each node writes *marks*
//! into the same stream. A mark that comes by says that the node has seen everything that was written before it. So
//! the node is sure of its sessions for the *lease* from the time at which it wrote the mark. After that its
//! *fence* is shut: it acknowledges nothing for sessions that outlive their connections. A new owner that gets no
//! answer waits for the lease of the earlier owner. It adds a part of the lease, because clocks do not run alike.
//!
//! The will is in the record, and belongs to the record's owner. The owner takes the will out by compare-and-set
//! before it publishes it. The records of a node that is gone are taken over by another node, which publishes the
//! wills.
//!
//! Where NATS has lost the stream, another is made with sequence numbers above all before. Each node writes the
//! records of its sessions again, with the epoch of its ownership. Where two nodes have one session, the later
//! epoch stays. A node is not sure of its sessions before that is done. Nor is it sure while a node that does not
//! know of the loss may be sure of one.
//!
//! Each node has a [`Floor`], which only rises: when all that its processes have left was taken over, published or
//! ended. Records below it do not exist, whatever NATS brings back.
//!
//! No input or output here, and time is an argument: [`Owners::take_actions`] says what is to be done.

mod check;
mod claims;
mod fence;
mod floor;
mod record;
mod sweep;
mod work;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub use claims::{Overtaken, Refusal};
pub use fence::Fence;
pub use floor::Floor;
pub use record::{Key, Process, Record};
pub(crate) use record::{incarnation_in, number, number_in, put_number};

use sterna_broker::SessionName;
use sweep::Sweeping;
use work::{Op, Work};

/// Times, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// See the module.
    pub lease_ms: u64,
    /// Time without a mark after which a node's sessions have ended.
    pub absence_ms: u64,
    /// Time in which a session is claimed, or refused.
    pub claim_timeout_ms: u64,
}

impl Terms {
    /// The longest time for which an owner may be sure of what it has lost already.
    const fn grace_ms(self) -> u64 {
        self.lease_ms + self.lease_ms / 8
    }
}

/// A session is wanted.
#[derive(Clone, Debug)]
pub struct Request<S> {
    /// The session that waits for the answer.
    pub session: S,
    /// The session's name.
    pub name: SessionName,
    /// The will, if any.
    pub will: Option<Arc<[u8]>>,
    /// Whether the session outlives its connection. One that does not is let in without NATS, too.
    pub outlives: bool,
    /// Whether it begins anew, whatever is kept of it.
    pub is_clean: bool,
    /// Whether it is refused while another process has it that may be sure of it.
    pub if_free: bool,
}

/// An action that the engine is to do.
#[derive(Clone, Debug)]
pub enum Action<S> {
    /// Read the last record of a key: [`Owners::was_read`].
    Read {
        /// The key.
        key: Key,
        /// Comes back with the answer.
        attempt: u64,
    },
    /// Write a record, if the last of its key is that: [`Owners::was_written`].
    Write {
        /// The key.
        key: Key,
        /// Comes back with the answer.
        attempt: u64,
        /// The sequence number of the last record; 0 for none.
        expected: u64,
        /// The record.
        record: Record,
    },
    /// Write a mark: [`Owners::mark_passed`].
    Mark {
        /// The time at which it is written.
        sent_ms: u64,
    },
    /// Tell a node that this process has ended a session, which the node has taken over:
    /// [`Owners::was_ended`].
    Tell {
        /// The node.
        node: Arc<str>,
        /// The session.
        key: Key,
        /// The epoch of the node's ownership.
        epoch: u64,
    },
    /// A claim is settled.
    Settled {
        /// The session that waits for the answer.
        session: S,
        /// The key.
        key: Key,
        /// Whether the session may begin, and how.
        result: Result<Begin, Refusal>,
    },
    /// Note for operators that a claim is refused, or a client that was let in is ended.
    Overtaken {
        /// The session's name.
        name: SessionName,
        /// The node that has the session, where that is known.
        by: Option<Arc<str>>,
        /// The reason.
        why: Overtaken,
    },
    /// Bring what is kept of a session that is away to a shard of this node: [`Owners::was_adopted`], or
    /// [`Owners::was_not_adopted`].
    Adopt {
        /// The key.
        key: Key,
        /// The session.
        name: SessionName,
        /// The will of its last connection, which is no record's any more.
        will: Option<Arc<[u8]>>,
    },
    /// A session has begun anew, or ended, in place of one that was kept: remove what is kept of that one, with lower
    /// epochs than this.
    Discard {
        /// The key.
        key: Key,
        /// The epoch of the new ownership.
        epoch: u64,
    },
    /// Nobody has anything any more of these processes of other nodes, or of nodes that were never seen.
    Swept {
        /// The node of each, and its highest incarnation.
        processes: Vec<Process>,
        /// Whether all nodes that were never seen are among them.
        has_unknown: bool,
        /// The position up to which that holds for the highest incarnations, which may be back.
        position: u64,
    },
    /// A session has ended, or its record does not exist any more. Nothing of it is to stay in the stream up to this
    /// sequence number, after a time.
    Remove {
        /// The key.
        key: Key,
        /// The sequence number of the record.
        sequence: u64,
    },
    /// End a session of this node, without its will: [`Owners::has_ended`], then [`Owners::has_left`].
    End {
        /// The session's name.
        name: SessionName,
    },
    /// Publish a will.
    Publish {
        /// The session's name.
        name: SessionName,
        /// The will.
        will: Arc<[u8]>,
        /// The client whose rights are to be asked for, where another node had the session.
        testator: Option<SessionName>,
    },
    /// Look at all records: [`Owners::scanned`] for each, and [`Owners::has_scanned`].
    Scan,
}

/// How a session begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// As a new one.
    Anew,
    /// As a new one, when nothing is kept any more of this client's session before it: as for [`Action::Discard`].
    InPlace {
        /// The epoch of the new one.
        epoch: u64,
    },
    /// With what is kept of this client's, if anything is. Where that cannot be had: [`Owners::put_aside`].
    Kept(SessionName),
}

/// The statement of a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Its process is here.
    Here {
        /// The time at which it was written, by the clock of its process.
        sent_ms: u64,
    },
    /// Its process acknowledges nothing any more, and all its sessions have ended.
    Leaving,
}

/// Why a record was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The last record was another.
    Conflict,
    /// No answer: it may be written, now or later.
    Unknown,
}

#[derive(Debug)]
struct Held {
    epoch: u64,
    has_will: bool,
    is_kept: bool,
    /// Whether its record does not say yet that it is kept.
    is_kept_untold: bool,
}

#[derive(Debug)]
struct Known {
    incarnation: u64,
    /// The incarnation that was seen before; 0 for none.
    before: u64,
    /// When its last mark was seen.
    seen_ms: u64,
    /// When this incarnation was seen first, which is when the one before was over.
    since_ms: u64,
    has_left: bool,
    /// Whether the incarnation before may have left records.
    has_leftovers: bool,
    /// Whether its records were looked at since it is gone.
    is_swept: bool,
}

/// A session that was lost: its new owner, which is to be told that it has ended here.
#[derive(Debug)]
struct Lost {
    owner: Arc<str>,
    epoch: u64,
}

/// See the module. `S` is how shards know a session that waits.
#[derive(Debug)]
pub struct Owners<S> {
    own: Process,
    terms: Terms,
    held: HashMap<Key, Held>,
    work: HashMap<Key, Work<S>>,
    wakes: BTreeSet<(u64, Key)>,
    nodes: HashMap<Arc<str>, Known>,
    floors: HashMap<Arc<str>, Floor>,
    /// Sessions that were lost and that shards are to end. This node is sure of none before.
    losing: HashMap<Key, Lost>,
    /// Sessions that were lost and have ended, until all is written that this node had of them.
    leaving: HashMap<Key, Lost>,
    /// Sessions that this node holds and whose records NATS has lost.
    forgotten: HashSet<Key>,
    /// Until when somebody may be sure of a session whose record NATS has lost.
    lost_until_ms: u64,
    /// Whether other nodes may have ended this one's sessions before that.
    is_doubtful: bool,
    /// When the last own mark that was seen had been written.
    last_mark_ms: u64,
    /// The last position of the stream that has come by.
    read_to: u64,
    /// When positions were last found missing: what took their place may lie behind marks that were written before.
    gap_ms: u64,
    /// Own marks before which something was missing: when they were written, and when they came by.
    unsure_marks: VecDeque<(u64, u64)>,
    /// How far the stream had come at which times, the oldest first.
    passed: VecDeque<(u64, u64)>,
    /// The position up to which records are so old that no earlier owner is sure any more.
    old_to: u64,
    /// When the first own mark was seen.
    began_ms: Option<u64>,
    /// Until when the fence is open, and until when it is once all that was lost has ended.
    open_until_ms: u64,
    sure_until_ms: u64,
    was_sure: bool,
    /// The later process that has this node's name.
    superseded_by: Option<u64>,
    next_mark_ms: u64,
    next_number: u64,
    /// Whether records of this node's earlier starts were looked at, and those of nodes that were never seen.
    has_swept_earlier: bool,
    has_swept_unknown: bool,
    is_scanning: bool,
    /// Nodes whose records are looked at now.
    sweeping: HashMap<Arc<str>, Sweeping>,
    skipped_in_scan: bool,
    /// Up to where records were old when the scan began.
    scanned_to: u64,
    next_scan_ms: u64,
    /// Processes whose records were all looked at, and whether those of unknown nodes were, until what was
    /// begun for them is done.
    swept: Vec<Process>,
    /// Up to where that holds for the highest of their incarnations.
    swept_to: u64,
    has_swept: bool,
    actions: Vec<Action<S>>,
}

impl<S: Copy> Owners<S> {
    /// The sessions of a process, which has none yet.
    #[must_use]
    pub fn new(own: Process, terms: Terms) -> Self {
        Self {
            own,
            terms,
            held: HashMap::new(),
            work: HashMap::new(),
            wakes: BTreeSet::new(),
            nodes: HashMap::new(),
            floors: HashMap::new(),
            losing: HashMap::new(),
            leaving: HashMap::new(),
            forgotten: HashSet::new(),
            lost_until_ms: 0,
            is_doubtful: false,
            last_mark_ms: 0,
            read_to: 0,
            gap_ms: 0,
            unsure_marks: VecDeque::new(),
            passed: VecDeque::new(),
            old_to: 0,
            began_ms: None,
            open_until_ms: 0,
            sure_until_ms: 0,
            was_sure: false,
            superseded_by: None,
            next_mark_ms: 0,
            next_number: 0,
            has_swept_earlier: false,
            has_swept_unknown: false,
            is_scanning: false,
            sweeping: HashMap::new(),
            skipped_in_scan: false,
            scanned_to: 0,
            next_scan_ms: 0,
            swept: Vec::new(),
            swept_to: u64::MAX,
            has_swept: false,
            actions: Vec::new(),
        }
    }

    /// This process.
    #[must_use]
    pub const fn own(&self) -> &Process {
        &self.own
    }

    /// Gives this process its number, before anything of the stream comes by.
    pub const fn set_incarnation(&mut self, incarnation: u64) {
        self.own.incarnation = incarnation;
    }

    /// Sessions of this node that are to be written again: [`renew`](Self::renew).
    #[must_use]
    pub fn forgotten(&self) -> usize {
        self.forgotten.len()
    }

    /// Whether a session's record is to be written again.
    #[must_use]
    pub fn is_forgotten(&self, key: Key) -> bool {
        self.forgotten.contains(&key)
    }

    /// The stream is a new one: NATS has lost all records, or there was none. Sequence numbers go on.
    pub fn records_lost(&mut self, now_ms: u64) {
        // Nobody has ended anything of a node that was silent for less than the absence.
        let was_silent = self.last_mark_ms + self.terms.absence_ms <= now_ms;
        self.is_doubtful = was_silent || (self.is_doubtful && !self.forgotten.is_empty());
        self.forgotten = self.held.keys().copied().collect();
        self.lost_until_ms = now_ms + self.terms.grace_ms();
        // Records of the stream before come by nowhere.
        self.gap_ms = now_ms;
        self.sure_until_ms = 0;
        self.unsure_marks.clear();
        self.open_until_ms = 0;
        if std::mem::take(&mut self.was_sure) {
            self.let_in_all();
        }
        self.begin_all_again(now_ms);
        self.next_mark_ms = now_ms;
    }

    /// A shard has this session, whose record may be lost.
    pub fn renew(&mut self, now_ms: u64, key: Key, name: SessionName, will: Option<Arc<[u8]>>) {
        if !self.forgotten.contains(&key) {
            return;
        }
        let is_kept = self.held.get(&key).is_some_and(|held| held.is_kept);
        if self.is_doubtful && !is_kept {
            // Its will may be published, and nothing says so any more.
            self.held.remove(&key);
            self.remember(now_ms, key);
            return self.actions.push(Action::End { name });
        }
        let will = will.filter(|_| !self.is_doubtful);
        self.enqueue(now_ms, key, Op::Renew(name, will));
    }

    /// The record of a session is there again, or the session is not this node's any more.
    fn remember(&mut self, now_ms: u64, key: Key) {
        if self.forgotten.remove(&key) && self.forgotten.is_empty() {
            self.open(now_ms);
        }
    }

    /// No shard has a session any more that is this node's: it is brought to one as one that is away.
    /// `epoch` is that of the ownership whose session has ended: what was claimed since is left alone.
    pub fn put_aside(&mut self, now_ms: u64, key: Key, epoch: u64, name: SessionName) {
        if self.epoch(key) == Some(epoch) && !self.work.contains_key(&key) {
            self.keep_on(key);
            // Its client was refused, or has ended: the will in the record is nobody's.
            let will = None;
            self.enqueue(now_ms, key, Op::SetWill(name.clone(), None));
            self.enqueue(now_ms, key, Op::Adopt { name, will });
        }
    }

    /// A session goes on as one that is away, whose last client wanted it to end with the connection.
    fn keep_on(&mut self, key: Key) {
        if let Some(held) = self.held.get_mut(&key) {
            held.is_kept_untold |= !held.is_kept;
            held.is_kept = true;
        }
    }

    /// The sequence number of this node's last record of a session that it holds; 0 where NATS has lost it.
    fn last_own(&self, key: Key) -> Option<u64> {
        let held = self.held.get(&key)?;
        let is_forgotten = self.forgotten.contains(&key);
        Some(if is_forgotten { 0 } else { held.epoch })
    }

    /// The actions to do, in order.
    pub fn take_actions(&mut self) -> Vec<Action<S>> {
        std::mem::take(&mut self.actions)
    }

    /// Whether a mark of this process has come by. Others cannot tell what it has left if it dies before.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.began_ms.is_some()
    }

    /// Until when this node is sure of its sessions.
    #[must_use]
    pub const fn open_until_ms(&self) -> u64 {
        self.open_until_ms
    }

    /// The incarnation of a later process that has this node's name, of which the stream has told.
    #[must_use]
    pub const fn superseded_by(&self) -> Option<u64> {
        self.superseded_by
    }

    /// Whether this node is sure of its sessions.
    #[must_use]
    pub const fn is_sure(&self, now_ms: u64) -> bool {
        now_ms < self.open_until_ms
    }

    /// The epoch of a session that this node has; `None` for others.
    #[must_use]
    pub fn epoch(&self, key: Key) -> Option<u64> {
        Some(self.held.get(&key)?.epoch)
    }

    /// Whether a node was seen since the start, this one included.
    #[must_use]
    pub fn knows(&self, node: &str) -> bool {
        *self.own.node == *node || self.nodes.contains_key(node)
    }

    /// Whether a process may be doing something still that it has begun, as far as is known.
    #[must_use]
    pub fn may_act(&self, now_ms: u64, process: &Process) -> bool {
        if process.node == self.own.node {
            return process.incarnation == self.own.incarnation;
        }
        let grace_ms = self.terms.grace_ms();
        match self.nodes.get(&process.node) {
            Some(known) if known.incarnation == process.incarnation => {
                !known.has_left && now_ms < known.seen_ms + grace_ms
            }
            Some(known) => known.incarnation < process.incarnation,
            // One that was never seen is given as long.
            None => (self.began_ms).is_none_or(|began_ms| now_ms < began_ms + grace_ms),
        }
    }

    /// Sessions that this node has.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Sessions with something under way.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.work.len()
    }

    /// When [`tick`](Self::tick) is to be called.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        let wake_ms = self.wakes.first().map_or(u64::MAX, |&(at_ms, _)| at_ms);
        let shuts_ms = if self.was_sure {
            self.open_until_ms
        } else {
            u64::MAX
        };
        wake_ms.min(self.next_mark_ms).min(shuts_ms)
    }

    /// Does what time does.
    pub fn tick(&mut self, now_ms: u64) {
        if now_ms >= self.next_mark_ms && self.superseded_by.is_none() {
            self.next_mark_ms = now_ms + (self.terms.lease_ms / 4).max(1);
            self.actions.push(Action::Mark { sent_ms: now_ms });
            self.sweep(now_ms);
        }
        if self.was_sure && !self.is_sure(now_ms) {
            self.was_sure = false;
            self.let_in_all();
        }
        self.tell_swept();
        while let Some(&(at_ms, key)) = self.wakes.first() {
            if at_ms > now_ms {
                break;
            }
            self.wakes.pop_first();
            self.woken(now_ms, key);
        }
    }

    /// A mark comes by in the stream.
    ///
    /// # Errors
    /// This process cannot have written its mark; the text says why. It is left out.
    pub fn mark_passed(
        &mut self,
        now_ms: u64,
        sequence: u64,
        process: &Process,
        mark: Mark,
    ) -> Result<(), &'static str> {
        self.note_passed(now_ms, sequence);
        if process.node == self.own.node {
            if process.incarnation > self.own.incarnation {
                self.supersede(process.incarnation);
            } else if process.incarnation == self.own.incarnation
                && let Mark::Here { sent_ms } = mark
            {
                // It would make this node sure of its sessions for a time in which others may have them.
                if sent_ms > now_ms {
                    return Err("it is of this process, and of a time that is still to come");
                }
                self.own_mark_passed(now_ms, sent_ms);
            }
            return Ok(());
        }
        let known = (self.nodes.entry(Arc::clone(&process.node))).or_insert_with(|| Known {
            incarnation: process.incarnation,
            before: 0,
            seen_ms: now_ms,
            since_ms: now_ms,
            has_left: false,
            has_leftovers: false,
            is_swept: false,
        });
        if process.incarnation > known.incarnation {
            known.before = known.incarnation;
            known.incarnation = process.incarnation;
            known.since_ms = now_ms;
            known.has_left = false;
            known.has_leftovers = true;
        }
        if process.incarnation == known.incarnation {
            known.seen_ms = now_ms;
            known.is_swept = false;
            known.has_left |= mark == Mark::Leaving;
        }
        Ok(())
    }

    fn own_mark_passed(&mut self, now_ms: u64, sent_ms: u64) {
        if self.superseded_by.is_some() {
            return;
        }
        self.began_ms.get_or_insert(now_ms);
        if self.sure_until_ms <= now_ms {
            // A node that was cut off has heard nobody meanwhile: silence counts from now on.
            for known in self.nodes.values_mut() {
                known.seen_ms = now_ms;
            }
        }
        self.last_mark_ms = self.last_mark_ms.max(sent_ms);
        // All that was there when these came by has come by, too.
        while let Some(&(earlier_ms, at_ms)) = self.unsure_marks.front()
            && at_ms < sent_ms
        {
            self.unsure_marks.pop_front();
            self.sure_until_ms = self.sure_until_ms.max(earlier_ms + self.terms.lease_ms);
        }
        if sent_ms < self.gap_ms {
            // NATS keeps the last record of a key alone. The one by which this node lost a session before this mark may
            // be missing, and another be behind it.
            self.unsure_marks.push_back((sent_ms, now_ms));
        } else {
            self.sure_until_ms = self.sure_until_ms.max(sent_ms + self.terms.lease_ms);
        }
        self.open(now_ms);
    }

    /// Opens the fence as far as nothing that was lost is still to be ended.
    fn open(&mut self, now_ms: u64) {
        let may_open = now_ms >= self.lost_until_ms && self.superseded_by.is_none();
        if may_open && self.losing.is_empty() && self.forgotten.is_empty() {
            self.open_until_ms = self.sure_until_ms;
            self.was_sure = self.is_sure(now_ms);
        }
    }

    /// Another process has this node's name: this one is sure of nothing any more.
    fn supersede(&mut self, incarnation: u64) {
        self.superseded_by = Some(incarnation);
        self.open_until_ms = 0;
        self.was_sure = false;
    }

    /// An entry of the stream comes by, whatever it is.
    pub fn note_passed(&mut self, now_ms: u64, sequence: u64) {
        if self.read_to != 0 && sequence > self.read_to + 1 {
            self.gap_ms = now_ms;
        }
        self.read_to = self.read_to.max(sequence);
        let grace_ms = self.terms.grace_ms();
        while let Some(&(old, at_ms)) = self.passed.front()
            && at_ms + grace_ms <= now_ms
        {
            self.old_to = self.old_to.max(old);
            self.passed.pop_front();
        }
        let apart_ms = (grace_ms / 16).max(1);
        let is_apart = (self.passed.back()).is_none_or(|&(_, at_ms)| at_ms + apart_ms <= now_ms);
        if is_apart {
            self.passed.push_back((sequence, now_ms));
        }
        debug_assert!(
            self.passed.len() as u64 <= grace_ms / apart_ms + 1,
            "places of the stream are as far apart as they are to be"
        );
    }

    /// A record comes by in the stream.
    pub fn record_passed(&mut self, now_ms: u64, sequence: u64, key: Key, record: &Record) {
        self.note_passed(now_ms, sequence);
        if record.owner == self.own {
            self.own_record_passed(now_ms, sequence, key, record);
            return;
        }
        if record.owner.node == self.own.node && record.owner.incarnation > self.own.incarnation {
            self.supersede(record.owner.incarnation);
        }
        let is_lost = (self.held.get(&key)).is_some_and(|held| match record.since {
            // Two have written it again.
            Some(since) if self.forgotten.contains(&key) => held.epoch < since,
            _ => held.epoch < sequence,
        });
        if is_lost {
            self.held.remove(&key);
        }
        if self.overtake_claim(now_ms, key, (sequence, &record.owner)) {
            return self.remember(now_ms, key);
        }
        if is_lost {
            // The shard may have ended it by itself; then only the new owner is to be told.
            let has_ended = (self.work.get(&key)).is_some_and(Work::has_ended);
            if has_ended {
                self.tell(&record.owner.node, key, sequence);
            } else {
                let owner = Arc::clone(&record.owner.node);
                (self.losing.entry(key)).or_insert(Lost {
                    owner,
                    epoch: sequence,
                });
                let name = record.name.clone();
                self.actions.push(Action::End { name });
            }
            self.remember(now_ms, key);
        }
    }

    fn tell(&mut self, node: &Arc<str>, key: Key, epoch: u64) {
        self.actions.push(Action::Tell {
            node: Arc::clone(node),
            key,
            epoch,
        });
    }

    /// Shards have ended a session that was lost: they acknowledge nothing for it any more. The new owner is told when
    /// it [has left](Self::has_left).
    pub fn has_ended(&mut self, now_ms: u64, key: Key) {
        if let Some(lost) = self.losing.remove(&key) {
            self.leaving.entry(key).or_insert(lost);
            self.open(now_ms);
        }
    }

    /// All is written that this node had of a session that has ended here.
    pub fn has_left(&mut self, key: Key) {
        if let Some(Lost { owner, epoch }) = self.leaving.remove(&key) {
            self.tell(&owner, key, epoch);
        }
    }

    /// A node says that it has ended a session which this one took over in that epoch.
    ///
    /// The word of an owner before that one is nothing to this: the one between them may still be sure.
    pub fn was_ended(&mut self, now_ms: u64, process: &Process, key: Key, epoch: u64) {
        if (self.work.get_mut(&key)).is_some_and(|work| work.told(process, epoch)) {
            self.grant(now_ms, key);
        }
    }

    /// Since when a process is not sure of anything it has lost, or will not be.
    fn harmless_from_ms(&self, now_ms: u64, process: &Process) -> u64 {
        let grace_ms = self.terms.grace_ms();
        let began_ms = self.began_ms.unwrap_or(now_ms);
        match self.nodes.get(&process.node) {
            Some(known) if known.incarnation == process.incarnation && known.has_left => 0,
            Some(known) if known.incarnation == process.incarnation => known.seen_ms + grace_ms,
            Some(known) if known.incarnation > process.incarnation => known.since_ms + grace_ms,
            // Its first mark is still to come.
            Some(_) => now_ms + grace_ms,
            // No mark of it has come by since this node began.
            None => began_ms + grace_ms,
        }
    }

    /// Other processes that may be sure of something; `None` where some may be that were not seen yet.
    #[must_use]
    pub fn may_be_sure(&self, now_ms: u64) -> Option<Vec<Process>> {
        let grace_ms = self.terms.grace_ms();
        if self.began_ms? + grace_ms > now_ms {
            return None;
        }
        let mut sure = Vec::new();
        for (name, known) in &self.nodes {
            for incarnation in [known.before, known.incarnation] {
                let node = Arc::clone(name);
                let process = Process { node, incarnation };
                if incarnation != 0 && self.harmless_from_ms(now_ms, &process) > now_ms {
                    sure.push(process);
                }
            }
        }
        sure.sort_unstable_by(|one, other| {
            (&one.node, one.incarnation).cmp(&(&other.node, other.incarnation))
        });
        Some(sure)
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}
