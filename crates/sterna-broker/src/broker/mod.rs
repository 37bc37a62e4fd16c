//! The broker of one shard: what all its parts share, and the mail between shards.

mod append;
mod branch_queue;
mod branches;
mod browse;
mod companions;
mod cursors;
mod dead_letter;
mod delivery;
mod demand;
mod evict;
mod far_browse;
mod far_drain;
mod far_queues;
mod feed;
mod held;
mod holding;
mod judging;
mod manage;
mod members;
mod named;
mod open;
mod owned;
mod parts;
mod passing;
mod peers;
mod pinning;
mod publish;
mod relief;
mod rest;
mod restore;
mod rights;
mod root_rest;
mod roots;
mod shed;
mod sleep;
mod subscribe;
mod takeover;
mod timers;
mod turns;
mod unsubscribe;
mod wills;

pub use delivery::Next;
pub(crate) use far_queues::QUEUE_KEY;
pub use far_queues::QueueOwner;
pub use manage::{Peeked, QueueChange, QueueInfo, Reach, SubscriptionInfo, SubscriptionPage, Wish};
pub use rest::LostRights;
pub use restore::Restored;
pub use shed::{LastingSession, SessionBytes};

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::{DoorState, Event, QueueState, SessionInfo, SessionKey, ShardId};
use crate::copies::{Copies, ROUTE_COPIES};
use crate::counters::Counters;
use crate::directory::{Directory, Log};
use crate::far_group::Root;
use crate::group_reader::GroupRecord;
use crate::holding::CrowdedReader;
use crate::index::Index;
use crate::limits::Limits;
use crate::losses::LossWatcher;
use crate::mail::{Letter, Mail};
use crate::message::Gauge;
use crate::name::SessionName;
use crate::outbox::Outbox;
use crate::peers::Peers;
use crate::queues::{QueueKey, Queues};
use crate::rights::Rights;
use crate::route::{Parcel, RouteUpdate};
use crate::store::{Change, Store};
use crate::watch::RoadWatcher;
use append::LastAppend;
use branches::Far;
use cursors::Surveys;
use held::Held;
use passing::Passing;
use pinning::Pinning;
use takeover::{Arrival, Fence};

/// One shard's broker. `P` is the front door's state per session, opaque here.
///
/// Everything happens in calls and ends with them. After a call (best once per turn of the loop)
/// the caller carries out what has gathered: [`take_mail`](Self::take_mail),
/// [`next_event`](Self::next_event), [`next_ready`](Self::next_ready).
#[derive(Debug)]
pub struct Broker<P> {
    shard: u16,
    directory: Arc<Directory>,
    index: Index,
    /// How much of the route log the index has applied.
    applied: u64,
    updates: Vec<RouteUpdate>,
    queues: Queues<P>,
    outbox: Outbox<P>,
    /// Mail to this shard itself.
    loopback: VecDeque<Letter<P>>,
    /// Readers for which clients of this shard have waited, and that hold nobody any more.
    let_go: Vec<CrowdedReader>,
    events: VecDeque<Event>,
    /// The client that opens a session, meanwhile.
    opener: Option<SocketAddr>,
    fences: FxHashMap<u32, Fence>,
    next_fence: u32,
    gauge: Arc<Gauge>,
    /// Publications since the shards' messages were last summed up.
    unsummed: u32,
    /// Cursors of restored shared subscriptions whose members are yet to come.
    orphans: FxHashMap<Box<str>, GroupRecord>,
    last_append: LastAppend,
    held: Held,
    /// Answers of the store that are yet to come.
    reads: usize,
    /// Sessions that wait for the store to write what they are to read.
    stalled: Vec<u32>,
    /// When they try again.
    stalled_until_ms: u64,
    /// Groups that wait for the same: whether for their queues, or for those who look at them.
    stalled_groups: Vec<(bool, u32)>,
    cursors_written_ms: u64,
    /// Shards that have not yet said how far they have sent what they publish.
    unmarked: u16,
    /// Removals of records that wait for all shards to have said so.
    disowning: Vec<Change>,
    surveys: Surveys,
    passing: Passing,
    pinning: Pinning,
    /// The rules in force; without them everything is allowed.
    rights: Option<Arc<dyn Rights>>,
    /// Counts the rules that were in force.
    rights_version: u32,
    judging: judging::Judging,
    /// The last session at which room was made.
    relief_at: usize,
    /// Sessions at which room is to be made.
    relief_left: usize,
    /// Groups at whose queues room is to be made.
    relief_groups: Vec<u32>,
    /// Other nodes; `None` where there is no cluster.
    peers: Option<Box<Peers>>,
    /// Shared subscriptions of the cluster that this node gives the messages of.
    roots: FxHashMap<Arc<str>, Root>,
    far: Far,
    /// The copies of this turn.
    copies: Copies,
    /// The same of messages that sessions read in the log.
    replays: Copies,
    /// Wills that are due and go to many, in the order in which they have come due.
    postponed_wills: wills::Postponed,
    /// Whether kept wills of connections that end wait for the next start.
    leaves_wills: bool,
    /// Whether the end of a call is under way: what it calls does not end calls.
    is_finishing: bool,
}

impl<P: DoorState> Broker<P> {
    /// The broker of one of the directory's shards.
    #[must_use]
    pub fn new(shard: ShardId, directory: Arc<Directory>, store: Box<dyn Store>) -> Self {
        Self {
            shard: shard.0,
            index: Index::new(
                shard.0,
                directory.shards(),
                directory.limits(),
                directory.hashing(),
            ),
            applied: 0,
            updates: Vec::new(),
            queues: Queues::new(shard.0, store, Arc::clone(&directory)),
            outbox: Outbox::new(directory.on_way()),
            loopback: VecDeque::new(),
            let_go: Vec::new(),
            events: VecDeque::new(),
            opener: None,
            fences: FxHashMap::default(),
            next_fence: 0,
            gauge: directory.gauge(shard.0),
            unsummed: 0,
            orphans: FxHashMap::default(),
            last_append: LastAppend::default(),
            held: Held::default(),
            reads: 0,
            stalled: Vec::new(),
            stalled_groups: Vec::new(),
            stalled_until_ms: 0,
            cursors_written_ms: 0,
            unmarked: 0,
            disowning: Vec::new(),
            surveys: Surveys::default(),
            passing: Passing::default(),
            pinning: Pinning::default(),
            rights: None,
            rights_version: 0,
            judging: judging::Judging::default(),
            relief_at: 0,
            relief_left: 0,
            relief_groups: Vec::new(),
            peers: None,
            roots: FxHashMap::default(),
            far: Far::default(),
            copies: Copies::default(),
            replays: Copies::default(),
            postponed_wills: wills::Postponed::default(),
            leaves_wills: false,
            is_finishing: false,
            directory,
        }
    }

    /// Which shard this is.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        ShardId(self.shard)
    }

    /// The limits that hold.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.queues.limits
    }

    /// The state that all shards share.
    #[must_use]
    pub const fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// The name of a session; `None` for an outdated key.
    #[must_use]
    pub fn name(&self, session: SessionKey) -> Option<&SessionName> {
        Some(&self.queues.attended(session)?.name)
    }

    /// The front door's state of a session; `None` for an outdated key.
    #[must_use]
    pub fn protocol(&self, session: SessionKey) -> Option<&P> {
        Some(&self.queues.attended(session)?.protocol)
    }

    /// The front door's state of a session; `None` for an outdated key.
    #[must_use]
    pub fn protocol_mut(&mut self, session: SessionKey) -> Option<&mut P> {
        Some(&mut self.queues.attended_mut(session)?.protocol)
    }

    /// The contents of a session's queue.
    #[must_use]
    pub fn queue(&self, session: SessionKey) -> Option<QueueState> {
        let session = self.queues.attended(session)?;
        Some(self.queue_state(session))
    }

    // Mail.

    /// Mail for other shards, in the order it is to arrive.
    pub fn take_mail(&mut self) -> std::vec::Drain<'_, (ShardId, Mail<P>)> {
        self.outbox.take()
    }

    /// Whether there is mail to carry.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether this shard has published more for other shards than they have taken up: 1,024 messages or more wait for
    /// [`take_mail`](Self::take_mail), or are on their way to a shard. The front door then reads nothing more before the
    /// next turn, and asks again.
    pub fn is_ahead(&mut self) -> bool {
        self.outbox.is_ahead()
    }

    /// Mail from another shard.
    pub fn mail(&mut self, now_ms: u64, mail: Mail<P>) {
        // This shard must know all routes that the sender knew of.
        self.catch_up();
        self.handle(now_ms, mail.0);
        self.finish(now_ms);
        self.report();
    }

    fn handle(&mut self, now_ms: u64, letter: Letter<P>) {
        match letter {
            Letter::Deliver(parcels) => {
                self.outbox.taken_up(self.shard, parcels.len());
                for parcel in parcels {
                    let Parcel {
                        message,
                        position,
                        targets,
                    } = parcel;
                    for target in targets.iter() {
                        let message = Arc::clone(&message);
                        self.queues.deliver(now_ms, message, position, target, true);
                    }
                }
            }
            Letter::LetGo { reader } => self.let_go.push(reader),
            Letter::Announce { name, is_there } => self.index.announce(name, is_there),
            Letter::CatchUp => {} // done by `mail`
            Letter::AskMark { from: asker } => {
                // Positions that the asker has settled here are written before it removes its own records of them.
                self.write_cursors();
                let (from, position) = (self.shard, self.queues.store.next_position());
                self.send(asker, Letter::Mark { from, position });
            }
            Letter::Mark { from, position } => self.marked(from, position),
            Letter::Claim(claim) => self.claimed(now_ms, claim),
            Letter::Fence { from, fence } => self.send(from, Letter::FenceAck { fence }),
            Letter::FenceAck { fence } => self.fence_answered(fence),
            Letter::Handover {
                slot,
                generation,
                state,
            } => {
                self.handed_session(now_ms, slot, generation, Arrival::Moved(state));
            }
            Letter::Assign(assign) => self.assigned(now_ms, *assign),
            Letter::Attend(attend) => self.member_attends(now_ms, *attend),
            Letter::Recall(recall) => self.member_recalled(now_ms, recall),
            Letter::Recalled {
                group,
                slot,
                generation,
                attendance,
                taken,
            } => {
                self.recalled(group, slot, generation, attendance, taken);
            }
            Letter::Detach {
                group,
                member,
                attendance,
            } => {
                if let Some(known) = self.queues.groups.get_mut(&group) {
                    known.detach(member, attendance);
                }
                self.queues.note_left(group);
                self.queues.look_at_holder(QueueKey::Group(group));
                self.queues.branches.touch(group);
                self.queues.trim_window(group);
            }
            Letter::Credit {
                group,
                member,
                attendance,
                credit,
                settled,
            } => {
                self.member_credited(now_ms, group, member, attendance, credit, &settled);
            }
            Letter::Unsubscribe {
                filter,
                subscribers,
            } => self.end_subscriptions(&filter, subscribers),
            Letter::Disband { group } => self.disband(group),
            Letter::Welcomed { groups, void } => self.welcomed(&groups, &void),
            // It may have moved on; then the letter follows it.
            Letter::End { name } => {
                self.end_session_of(now_ms, &name);
            }
            Letter::TooDear {
                slot,
                generation,
                attendance,
            } => self.selector_too_dear(now_ms, slot, generation, attendance),
            Letter::Browse(browse) => self.queue_browsed(now_ms, browse),
            Letter::Browsed(browsed) => self.browsed(now_ms, *browsed),
            Letter::Bury(dead) => self.bury(now_ms, *dead),
            Letter::Return { group, messages } => {
                let hashing = self.directory.hashing();
                self.queues.take_back(now_ms, group, messages, hashing);
            }
        }
    }

    /// Sends a letter, to this shard itself by the shortest way.
    fn send(&mut self, shard: u16, letter: Letter<P>) {
        if shard == self.shard {
            self.loopback.push_back(letter);
            return;
        }
        self.outbox.send(shard, letter);
    }

    /// Does the work that is left at the end of every call: letters to this shard itself, and messages that groups
    /// dispatch.
    #[inline]
    fn finish(&mut self, now_ms: u64) {
        let queues = &self.queues;
        // One branch, for every message comes by here twice and mostly nothing is left.
        let left = self.loopback.len()
            | queues.owed.len()
            | queues.dead.len()
            | queues.dirty_groups.len()
            | queues.unbalanced.len()
            | queues.fallen.len()
            | queues.hungry.len()
            | queues.hungry_groups.len()
            | queues.changes.len()
            | queues.ready_roots.len()
            | queues.branches.dirty.len()
            | queues.weighed.len()
            | usize::from(queues.work.has_dear())
            | usize::from(self.far.has_words())
            | queues.sessions.unpacked();
        if left != 0 {
            self.finish_all(now_ms);
        }
    }

    /// See [`finish`](Self::finish). Calls out of the work itself leave the rest to it.
    fn finish_all(&mut self, now_ms: u64) {
        if std::mem::replace(&mut self.is_finishing, true) {
            return;
        }
        self.work_off(now_ms);
        self.is_finishing = false;
    }

    fn work_off(&mut self, now_ms: u64) {
        loop {
            if let Some(letter) = self.loopback.pop_front() {
                self.handle(now_ms, letter);
            } else if let Some(owed) = self.queues.owed.pop() {
                self.pay(owed);
            } else if !self.queues.dead.is_empty() {
                for dead in std::mem::take(&mut self.queues.dead) {
                    self.bury(now_ms, dead);
                }
            } else if let Some(slot) = self.queues.unbalanced.pop() {
                if self.queues.sessions.is_open(slot) {
                    self.balance(slot);
                }
            } else if let Some(group) = self.queues.dirty_groups.pop() {
                self.dispatch(now_ms, group);
            } else if let Some(slot) = self.queues.fallen.pop() {
                if self.queues.sessions.is_open(slot) {
                    self.remove_routes(slot);
                    self.queues.list_if_hungry(slot);
                }
            } else if !self.has_replayed()
                && let Some(slot) = self.queues.hungry.pop_front()
            {
                self.read_on(now_ms, slot);
                self.take_answers(now_ms);
            } else if let Some(group) = self.queues.hungry_groups.pop() {
                self.feed(now_ms, group, false);
                self.take_answers(now_ms);
            } else if let Some(name) = self.queues.branches.dirty.pop() {
                self.look_after_branch(now_ms, &name);
            } else if self.queues.work.has_dear() {
                self.let_dear_go(now_ms);
            } else if self.far.has_words() {
                self.hear_own(now_ms);
            } else if let Some(slot) = self.queues.ready_roots.pop() {
                self.dispatch_root(now_ms, slot);
            } else if !self.queues.weighed.is_empty() {
                self.weigh_queues(now_ms);
            } else if !self.queues.changes.is_empty() {
                self.append_changes();
            } else {
                self.queues.pack_again();
                return;
            }
        }
    }

    /// Tells the other shards what this one's queues hold.
    fn report(&self) {
        self.gauge.set_entries(self.queues.counters.entry_bytes());
    }

    /// The next event for the front door, in order.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // The route log.

    /// Brings this shard's index up to the end of the route log.
    fn catch_up(&mut self) {
        let head = self.directory.head();
        if head != self.applied {
            self.catch_up_to(head);
        }
    }

    /// Brings this shard's index to a point of the route log.
    fn catch_up_to(&mut self, length: u64) {
        if length <= self.applied {
            return;
        }
        let mut updates = std::mem::take(&mut self.updates);
        self.directory.read_log(self.shard, length, &mut updates);
        self.copies.made(updates.len() * ROUTE_COPIES, 0);
        for update in &updates {
            self.index.apply(update);
            self.apply_to_groups(update);
        }
        updates.clear();
        if updates.capacity() <= 4096 {
            self.updates = updates;
        }
        self.applied = length;
    }

    /// Changes routes, for all shards. Returns also the log's length after the change.
    ///
    /// With a store this is done under the lock that gives positions out. So for each message it is decided by
    /// which routes it goes.
    fn edit_log<R>(&mut self, edit: impl FnOnce(&mut Log) -> R) -> (R, u64) {
        let directory = Arc::clone(&self.directory);
        let appends = self.queues.is_durable.then(|| directory.appends());
        let position = self.queues.store.next_position();
        let (result, length) = self.edit_log_at(position, edit);
        drop(appends);
        self.catch_up_to(length);
        (result, length)
    }

    /// As [`edit_log`](Self::edit_log), where the lock is held and the log of messages ends at `position`.
    /// This shard's index is to catch up after that.
    fn edit_log_at<R>(&mut self, position: u64, edit: impl FnOnce(&mut Log) -> R) -> (R, u64) {
        let (result, length, behind) = self.directory.edit_log(|log| {
            log.position = position;
            edit(log)
        });
        for shard in behind {
            if shard != self.shard {
                self.send(shard, Letter::CatchUp);
            }
        }
        // It tells other nodes what this one's readers want.
        if self.shard != 0 && self.directory.is_clustered() {
            self.send(0, Letter::CatchUp);
        }
        (result, length)
    }

    /// Takes what the store has for this shard: answers to its reading. To be called when the store has
    /// woken the shard.
    pub fn poll_store(&mut self, now_ms: u64) {
        self.let_go();
        self.roots_kept();
        self.take_answers(now_ms);
        let stalled = std::mem::take(&mut self.stalled);
        for slot in stalled {
            if self.queues.sessions.is_open(slot) {
                self.queues.list_if_hungry(slot);
            }
        }
        self.feed_stalled(now_ms);
        self.take_answers(now_ms);
        self.finish(now_ms);
    }

    // For administrators.

    /// Looks at every queue, ledger, sum and timer of the shard, and at the sums of retained messages; for tests, after each
    /// of their steps.
    ///
    /// # Panics
    /// Where something does not agree with what it stands for.
    pub fn check(&self) {
        self.queues.check();
        self.directory.check_retained();
    }

    /// Sets the watcher of messages that a queue of this shard loses.
    pub fn set_loss_watcher(&mut self, watcher: Box<dyn LossWatcher>) {
        self.queues.loss_watcher = Some(watcher);
    }

    /// Sets the watcher of each message's way, or ends the watch.
    pub fn watch_road(&mut self, watcher: Option<Box<dyn RoadWatcher>>) {
        self.queues.road = watcher;
    }

    /// The counters of this shard.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.report();
        Counters {
            sessions: self.queues.sessions.len() as u64,
            ..self.queues.counters
        }
    }

    /// The counters of this shard, without a copy; [`Counters::sessions`] is not in it.
    #[must_use]
    pub const fn own_counters(&self) -> &Counters {
        &self.queues.counters
    }

    /// Whether some subscription lies below `$SYS/sterna/clients/`. Figures that nobody reads there need not be
    /// gathered.
    #[must_use]
    pub fn is_inspected(&mut self) -> bool {
        self.catch_up();
        self.index.is_inspected()
    }

    /// Sessions of this shard for an administrator: up to `limit`, from a cursor on (zero at first). The
    /// second value is the cursor to go on with, `None` at the end.
    #[must_use]
    pub fn sessions(&self, cursor: usize, limit: usize) -> (Vec<SessionInfo>, Option<usize>) {
        let slots = &self.queues.sessions;
        let mut infos = Vec::new();
        for at in cursor..slots.capacity() {
            if infos.len() >= limit {
                return (infos, Some(at));
            }
            infos.extend(
                slots
                    .look(at as u32, |session| self.client_info(session))
                    .flatten(),
            );
        }
        (infos, None)
    }
}
