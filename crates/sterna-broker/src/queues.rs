//! The queues and ledgers of a shard's sessions.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::{Delivery, DoorState, SessionKey};
use crate::attempts::Failures;
use crate::copies::Copies;
use crate::counters::Counters;
use crate::directory::Directory;
use crate::eras::Eras;
use crate::far_group::{Branches, ROOT_CONSUMER, RootQueue};
use crate::group::Group;
use crate::group_reader::GroupRecord;
use crate::holding::{CrowdedReader, Holding, Holds};
use crate::ledger::{Owed, delivery, group_position, hint};
use crate::limits::Limits;
use crate::losses::{LossReason, LossWatcher};
use crate::message::{Message, Origin, Qos};
use crate::nodes::{Entry, List, NIL, Nodes, Phase};
use crate::pressure::Pressure;
use crate::queue_rules::DeathCause;
use crate::reads::Reads;
use crate::records::{self, Kind, OwnedRecord};
use crate::rights::QUEUE_TOPICS;
use crate::route::{Context, Target};
use crate::selecting::Work;
use crate::session::{BrokerSession, NEVER_MS, State};
use crate::sessions::Sessions;
use crate::store::{Change, Store};
use crate::watch::{RoadWatcher, Step};

/// A queue of the shard: that of a session, by its slot, or that of a shared subscription.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum QueueKey {
    Session(u32),
    Group(u32),
}

/// A message that has left a kept queue, and is to go to the dead letters.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) group: u32,
    pub(crate) message: Arc<Message>,
    /// See [`Entry::group_tag`].
    pub(crate) tag: u64,
    /// See [`Entry::position`].
    pub(crate) position: u64,
    pub(crate) failures: Failures,
    pub(crate) cause: DeathCause,
}

impl Dead {
    /// A message that a consumer has rejected; `None` where it had taken the message over before.
    pub(crate) fn rejected(entry: Entry) -> Option<Self> {
        Some(Self {
            group: entry.group,
            message: entry.message?,
            tag: entry.group_tag,
            position: entry.position,
            failures: entry.failures,
            cause: DeathCause::Rejected,
        })
    }
}

/// A message about to be queued for a session.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) message: Arc<Message>,
    pub(crate) context: Option<Arc<Context>>,
    /// The shared subscription it is from, or [`NIL`]. The group limits messages that are from it.
    pub(crate) group: u32,
    /// See [`Entry::group_tag`].
    pub(crate) group_tag: u64,
    pub(crate) failures: Failures,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    pub(crate) redelivered: bool,
    pub(crate) retained_copy: bool,
    /// See [`Entry::is_kept`].
    pub(crate) is_kept: bool,
    /// See [`Entry::position`].
    pub(crate) position: u64,
}

/// Least time between two sweeps of one queue, and the number of entries that add a millisecond to it. So looking for
/// expired messages stays a small part of the work, whatever clients send.
const SWEEP_EVERY_MS: u64 = 1_000;
const SWEEP_ENTRIES_PER_MS: u64 = 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Queues<P> {
    pub(crate) sessions: Sessions<P>,
    pub(crate) nodes: Nodes,
    pub(crate) groups: FxHashMap<u32, Group>,
    /// Groups with something to dispatch.
    pub(crate) dirty_groups: Vec<u32>,
    pub(crate) owed: Vec<Owed>,
    /// Messages that are to go to the dead letters.
    pub(crate) dead: Vec<Dead>,
    /// Sessions whose groups may assign more than their consumers take.
    pub(crate) unbalanced: Vec<u32>,
    pub(crate) timers: BTreeSet<(u64, QueueKey)>,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) loss_watcher: Option<Box<dyn LossWatcher>>,
    /// Is told of each message's way; `None` while nobody looks.
    pub(crate) road: Option<Box<dyn RoadWatcher>>,
    pub(crate) store: Box<dyn Store>,
    /// Changes of records that are to be appended at the end of the call, or with a message before.
    pub(crate) changes: Vec<Change>,
    /// Removals of records that wait for cursors to be written.
    pub(crate) disowned: Vec<Change>,
    /// Sessions whose cursors are to be written.
    pub(crate) changed: Vec<u32>,
    /// Groups whose cursors are to be written.
    pub(crate) changed_groups: Vec<u32>,
    /// The deliveries of this turn, counted as copies are.
    pub(crate) delivered: Copies,
    /// Sessions that have fallen behind in this call.
    pub(crate) fallen: Vec<u32>,
    /// Sessions that are to read on in the log, some of them several times.
    pub(crate) hungry: VecDeque<u32>,
    /// Groups whose queues may have to read in the log.
    pub(crate) hungry_groups: Vec<u32>,
    /// Queues of groups that a store had, and that are to be read in its log.
    pub(crate) unread: FxHashMap<u32, GroupRecord>,
    /// The end of the log at the start.
    pub(crate) restored_to: u64,
    /// When it was restored, in milliseconds since the Unix epoch.
    pub(crate) restored_ms: u64,
    /// Times for which the clock of earlier processes was behind.
    pub(crate) eras: Eras,
    /// Messages that were read in the log for sessions and queues, and are still here.
    pub(crate) reads: Reads,
    /// For each other shard, the position before which nothing of it is under way.
    pub(crate) marks: Box<[u64]>,
    pub(crate) is_durable: bool,
    /// Whether all shards' messages together are above their limit.
    pub(crate) is_over_memory: bool,
    /// How short the process is of memory.
    pub(crate) pressure: Pressure,
    /// Whether the queue of a session has been half full in this turn, and has taken more.
    pub(crate) is_crowded: bool,
    pub(crate) shard: u16,
    /// The readers of all shards that hold publishers.
    pub(crate) holds: Arc<Holds>,
    /// Readers of this shard whose queues were half full and have not drained since.
    pub(crate) holders: FxHashMap<QueueKey, Holding>,
    /// When to look at them.
    pub(crate) holders_due_ms: u64,
    /// When the watcher may be told again of a reader that holds publishers, and of a slow one.
    pub(crate) untold_ms: [u64; 2],
    /// Readers that hold nobody any more, and the shards that have clients which waited.
    pub(crate) released: Vec<(CrowdedReader, Vec<u16>)>,
    ready: VecDeque<u32>,
    /// Sessions of roots with something to give.
    pub(crate) ready_roots: Vec<u32>,
    /// The queues of roots' sessions, by slot.
    pub(crate) roots: FxHashMap<u32, RootQueue>,
    /// Queues of roots whose content has changed: it may be told whether they have room.
    pub(crate) weighed: Vec<u32>,
    /// The node's parts of a cluster's shared subscriptions.
    pub(crate) branches: Branches,
    /// The work of selectors.
    pub(crate) work: Work,
    /// The session that `next_ready` gave last.
    current: Option<u32>,
}

/// The part of a record's key that tells entries of a session apart. It has the place in the log, and whether the
/// entry came from a group.
pub(crate) fn owned_key(entry: &Entry) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&entry.position.to_be_bytes());
    key[8] = u8::from(entry.own_position() == 0);
    key
}

/// The time to look again for expired messages in a queue with this number of entries.
pub(crate) fn next_sweep_ms(now_ms: u64, earliest_ms: u64, entries: usize) -> u64 {
    if earliest_ms == NEVER_MS {
        return NEVER_MS;
    }
    earliest_ms.max(now_ms + SWEEP_EVERY_MS + entries as u64 / SWEEP_ENTRIES_PER_MS)
}

impl<P: DoorState> Queues<P> {
    /// Delivers a message to one of the queues it matched. `position` is its place in the log; zero where
    /// it is not there. `was_on_way` says whether another shard has published it, or its publisher cannot wait.
    pub(crate) fn deliver(
        &mut self,
        now_ms: u64,
        message: Arc<Message>,
        position: u64,
        target: &Target,
        was_on_way: bool,
    ) {
        if target.flags.is_group() {
            let is_reserved = target.flags.keeps();
            let way = (is_reserved, was_on_way);
            self.push_to_group(now_ms, target.slot, &message, position, way);
            return;
        }
        let Some(session) = self.session(target.slot, target.generation) else {
            return;
        };
        if target.flags.is_selective() {
            let is_own = message.origin() != Origin::NONE && message.origin() == session.origin;
            if (target.flags.no_local() && is_own) || (target.flags.only_local() && !is_own) {
                return;
            }
        }
        if session.selector().is_some() && !self.selects(target.slot, &message) {
            return;
        }
        // [MQTT-3.8.4-8]
        let qos = message.qos().min(target.flags.qos());
        let goes_by_log = position != 0 && self.goes_by_log(target.slot, qos);
        let is_admitted = if goes_by_log {
            self.takes_logged(target.slot, position, &message)
        } else if qos.is_acknowledged() {
            self.admits_acknowledged(now_ms, target.slot, &message, was_on_way)
        } else {
            self.admits_qos0(now_ms, target.slot, &message)
        };
        if is_admitted {
            let position = if goes_by_log { position } else { 0 };
            self.append_own(now_ms, target.slot, (position, false), message, target);
            self.note_unselected(target.slot);
        } else if goes_by_log {
            let reader = self.sessions[target.slot].name.text();
            self.saw(&message, Step::Logged { reader });
        }
    }

    /// Whether a session finds what it does not take from its publisher's hand in the log, at this level.
    fn goes_by_log(&self, slot: u32, qos: Qos) -> bool {
        let session = &self.sessions[slot];
        (qos.is_acknowledged() || self.is_for_queue_of(session))
            && (session.reader.is_some() || session.state == State::Claiming)
    }

    /// Whether such a session takes a message of the log from its publisher's hand.
    fn takes_logged(&mut self, slot: u32, position: u64, message: &Message) -> bool {
        match &self.sessions[slot].reader {
            Some(reader) => reader.takes(position) && self.keeps_up(slot, position, message),
            None => self.waits_for_session(slot, position, message),
        }
    }
}

impl<P> Queues<P> {
    pub(crate) fn new(shard: u16, store: Box<dyn Store>, directory: Arc<Directory>) -> Self {
        let (gauge, holds) = (directory.read_gauge(shard), directory.holds());
        let mark = store.next_position();
        let (limits, shards) = (directory.limits().clone(), directory.shards());
        let replayed_bytes = limits.replayed_bytes / u64::from(shards.max(1));
        let work = Work::new(limits.steps_per_turn);
        Self {
            shard,
            holds,
            holders: FxHashMap::default(),
            holders_due_ms: NEVER_MS,
            untold_ms: [0; 2],
            released: Vec::new(),
            marks: vec![mark; usize::from(shards) - 1].into(),
            changes: Vec::new(),
            disowned: Vec::new(),
            changed: Vec::new(),
            changed_groups: Vec::new(),
            delivered: Copies::default(),
            fallen: Vec::new(),
            hungry: VecDeque::new(),
            hungry_groups: Vec::new(),
            unread: FxHashMap::default(),
            restored_to: 0,
            restored_ms: 0,
            eras: Eras::default(),
            reads: Reads::new(gauge, replayed_bytes),
            sessions: Sessions::new(directory),
            nodes: Nodes::new(),
            groups: FxHashMap::default(),
            dirty_groups: Vec::new(),
            owed: Vec::new(),
            dead: Vec::new(),
            unbalanced: Vec::new(),
            timers: BTreeSet::new(),
            limits,
            counters: Counters::default(),
            loss_watcher: None,
            road: None,
            is_durable: store.is_durable(),
            store,
            is_over_memory: false,
            pressure: Pressure::None,
            is_crowded: false,
            ready: VecDeque::new(),
            ready_roots: Vec::new(),
            roots: FxHashMap::default(),
            weighed: Vec::new(),
            branches: Branches::default(),
            work,
            current: None,
        }
    }

    /// The session that a consumer opened and still has.
    pub(crate) fn attended(&self, key: SessionKey) -> Option<&BrokerSession<P>> {
        let session = self.sessions.get(key.slot)?;
        let valid = session.is_connected()
            && session.generation == key.generation
            && session.attendance == key.attendance;
        valid.then_some(session)
    }

    /// As [`attended`](Self::attended).
    pub(crate) fn attended_mut(&mut self, key: SessionKey) -> Option<&mut BrokerSession<P>> {
        let session = self.sessions.get_mut(key.slot)?;
        let valid = session.is_connected()
            && session.generation == key.generation
            && session.attendance == key.attendance;
        valid.then_some(session)
    }

    /// The session that a consumer opened, still has, and that is not on its way from elsewhere.
    pub(crate) fn active_mut(&mut self, key: SessionKey) -> Option<&mut BrokerSession<P>> {
        self.attended_mut(key)
            .filter(|session| session.state == State::Active)
    }

    // Into the queue.

    /// Appends a message to a session's queue as its own subscriptions want it. The message comes from its
    /// publisher's hand or from the log, with whether it was sent before.
    #[inline]
    pub(crate) fn append_own(
        &mut self,
        now_ms: u64,
        slot: u32,
        (position, redelivered): (u64, bool),
        message: Arc<Message>,
        target: &Target,
    ) {
        let entry = Entry {
            // [MQTT-3.8.4-8]
            qos: match message.qos().min(target.flags.qos()) {
                // A queue keeps it as any other.
                Qos::AtMostOnce if position != 0 => Qos::AtLeastOnce,
                qos => qos,
            },
            // [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT311-3.3.1-8] [MQTT311-3.3.1-9]
            retain: message.retain() && target.flags.retain_as_published(),
            context: target.context.clone(),
            position,
            redelivered,
            is_to_be_judged: message.topic().starts_with(QUEUE_TOPICS),
            ..Entry::waiting(self.sessions[slot].next_tag(), message)
        };
        self.append(now_ms, slot, entry);
    }

    /// Appends a message to a session's queue that was not just published. It is a retained one, or a group
    /// has chosen the session. Those were limited before.
    pub(crate) fn push(&mut self, now_ms: u64, slot: u32, item: Item) {
        let session = &mut self.sessions[slot];
        if !item.qos.is_acknowledged() && session.is_away() {
            self.lose(slot, Some(&item.message), LossReason::Away);
            return;
        }
        let entry = Entry {
            message: Some(item.message),
            context: item.context,
            tag: session.next_tag(),
            group_tag: item.group_tag,
            group: item.group,
            failures: item.failures,
            qos: item.qos,
            phase: Phase::Pending,
            retain: item.retain,
            redelivered: item.redelivered,
            retained_copy: item.retained_copy,
            is_kept: item.is_kept,
            position: item.position,
            is_owned: false,
            is_claimed: false,
            is_to_be_judged: false,
            is_to_be_selected: false,
        };
        self.append(now_ms, slot, entry);
    }

    /// Appends an entry to a session's queue. [MQTT-4.5.0-1]
    #[inline]
    pub(crate) fn append(&mut self, now_ms: u64, slot: u32, entry: Entry) {
        if self.road.is_some()
            && let Some(message) = &entry.message
        {
            let session = &self.sessions[slot];
            let (reader, waiting) = (session.name.text(), session.pending.len() + 1);
            self.saw(message, Step::Queued { reader, waiting });
        }
        let session = &mut self.sessions[slot];
        session.account.waits(&entry);
        self.counters.stored(entry.held());
        let node = self.nodes.push_back(&mut session.pending, slot, entry);
        if session.is_connected() {
            // It is listed already where it has more messages.
            if !session.is_listed {
                self.list_if_ready(slot);
            }
        } else {
            let entries = session.pending.len();
            let sweep_at_ms = next_sweep_ms(now_ms, self.expires_at_ms(node), entries);
            let session = &mut self.sessions[slot];
            if sweep_at_ms < session.sweep_at_ms() {
                session.set_sweep(sweep_at_ms);
                self.set_session_timer(slot);
            }
        }
    }

    /// Lists a session as ready if it is.
    pub(crate) fn list_if_ready(&mut self, slot: u32) {
        let session = &mut self.sessions[slot];
        if !session.is_listed && session.is_ready() {
            session.is_listed = true;
            if session.consumer() == Some(ROOT_CONSUMER) {
                self.ready_roots.push(slot);
            } else {
                self.ready.push_back(slot);
            }
        }
    }

    // Out of the queue.

    /// The next session with something to send.
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        if let Some(slot) = self.current.take()
            && self.sessions.is_open(slot)
        {
            self.list_if_ready(slot);
            if !self.holders.is_empty() {
                self.look_at_holder(QueueKey::Session(slot));
            }
        }
        while let Some(slot) = self.ready.pop_front() {
            let Some(session) = self.sessions.get_mut(slot) else {
                continue;
            };
            // A session that ended may have left its slot in the list.
            if std::mem::take(&mut session.is_listed) && session.is_ready() {
                session.set_has_more(false);
                self.current = Some(slot);
                return Some(slot);
            }
        }
        if self.ready.capacity() > 4096 {
            self.ready = VecDeque::new();
        }
        None
    }

    /// Sessions that wait for [`next_ready`](Self::next_ready), at most.
    pub(crate) fn ready_sessions(&self) -> usize {
        self.ready.len()
    }

    /// Whether [`next_ready`](Self::next_ready) may have one.
    pub(crate) fn has_ready(&self) -> bool {
        self.current.is_some() || !self.ready.is_empty()
    }

    /// Whether `next_ready` gave the session last, and lists it again when it is asked the next time.
    pub(crate) fn is_current(&self, slot: u32) -> bool {
        self.current == Some(slot)
    }

    /// Drops messages that have expired, or of QoS 0 that have waited too long, from the front of a
    /// queue. Returns the node of the first other one and its level, if it can be sent now. [MQTT-3.3.2-5]
    #[inline]
    pub(crate) fn first_pending(&mut self, now_ms: u64, slot: u32) -> Option<(u32, Qos)> {
        loop {
            let session = &self.sessions[slot];
            let entry = self.nodes.first(session.pending)?;
            let message = entry.message.as_ref();
            let reason = if message.is_none_or(|message| message.is_expired(now_ms)) {
                LossReason::Expired
            } else if self.is_late(now_ms, session, entry) {
                LossReason::Late
            } else if self.may_send(session, entry) {
                return Some((session.pending.first(), entry.qos));
            } else {
                self.sessions[slot].is_blocked = true;
                return None;
            };
            self.drop_first(slot, reason);
        }
    }

    /// Takes the first message from a queue, whose node is this.
    pub(crate) fn take_next(&mut self, slot: u32, node: u32) -> Option<Delivery> {
        let delivery = self.take_first(slot, node);
        if self.road.is_some()
            && let Some(delivery) = &delivery
        {
            let step = Step::Sent {
                reader: self.sessions[slot].name.text(),
                qos: delivery.qos,
                redelivered: delivery.redelivered,
            };
            self.saw(&delivery.message, step);
        }
        self.list_if_hungry(slot);
        let body_bytes = delivery
            .as_ref()
            .map_or(0, |delivery| delivery.message.body_bytes());
        self.delivered.made(1, body_bytes);
        delivery
    }

    #[inline]
    fn take_first(&mut self, slot: u32, node: u32) -> Option<Delivery> {
        let session = &mut self.sessions[slot];
        debug_assert_eq!(session.pending.first(), node, "the first goes first");
        let is_on_demand = session.is_on_demand;
        let entry = self.nodes.entry_mut(node)?;
        let group = entry.group;
        if entry.qos.is_acknowledged() {
            let delivery = self.send_first(slot, node);
            if is_on_demand && delivery.is_some() {
                self.handed_out(slot, group);
            }
            return delivery;
        }
        session.account.left(entry);
        self.counters.unstored(entry.held());
        // Most messages come by here: what the delivery needs is taken out of the entry, which is not moved.
        let (message, context) = (entry.message.take(), entry.context.take());
        let (qos, retain, failures) = (entry.qos, entry.retain, entry.failures);
        let position = group_position(entry);
        self.nodes.discard(&mut session.pending, node);
        let message = message?;
        self.counters.sent_messages += 1;
        self.counters.sent_bytes += message.payload().len() as u64;
        let attendance = session.attendance;
        if group != NIL {
            self.owed.push(Owed {
                group,
                position,
                credit: u32::from(!is_on_demand),
                member: session.subscriber,
                attendance,
            });
        }
        if is_on_demand {
            self.handed_out(slot, group);
        }
        Some(Delivery {
            tag: 0,
            qos,
            retain,
            redelivered: false, // [MQTT-3.3.1-2]
            hint: hint(context.as_deref(), attendance),
            failures: failures.counted(&self.limits),
            known_failures: failures,
            position: 0,
            message,
            context,
        })
    }

    /// Counts a message that a consumer on demand has taken.
    fn handed_out(&mut self, slot: u32, group: u32) {
        if let Some(demand) = self.sessions[slot].demand_mut()
            && demand.handed_out(group)
        {
            self.unbalanced.push(slot);
        }
    }

    /// Moves the first message of a queue to the ledger.
    fn send_first(&mut self, slot: u32, node: u32) -> Option<Delivery> {
        let session = &mut self.sessions[slot];
        let entry = self.nodes.entry_mut(node)?;
        let delivery = delivery(session, entry, &self.limits)?;
        session.account.left(entry);
        session.account.sent_bytes += entry.body_bytes();
        entry.retained_copy = false;
        let is_from_group = entry.group != NIL;
        let is_kept = entry.is_kept;
        entry.phase = Phase::Sent;
        entry.redelivered = true;
        if entry.tag as u32 != node {
            session.rare_mut().rehomed.insert(delivery.tag, node);
        }
        self.nodes
            .move_back(&mut session.pending, &mut session.ledger, node);
        if is_from_group && !is_kept && delivery.qos == Qos::ExactlyOnce {
            // From here on the message is no other member's. [MQTT-4.8.2-5]
            self.release_from_group(slot, node, None);
        }
        let reader = self.sessions[slot].reader.as_ref();
        if reader.is_some_and(|reader| reader.cursor.away.contains(delivery.position)) {
            // That it was sent is to be written: it counts no more.
            self.mark_changed(slot);
        }
        if !delivery.redelivered {
            self.counters.sent_messages += 1;
            self.counters.sent_bytes += delivery.message.payload().len() as u64;
        }
        Some(delivery)
    }

    /// Drops what waits and isn't for the session's consumer, who has just come and chooses anew.
    pub(crate) fn drop_unselected(&mut self, slot: u32) {
        let mut node = self.sessions[slot].pending.first();
        while node != NIL {
            let next = self.nodes.next(node);
            let selected = self.nodes.entry(node).is_none_or(|entry| {
                let message = entry.message.as_ref();
                entry.group != NIL || message.is_none_or(|message| self.selects(slot, message))
            });
            if self.work.is_spent()
                && let Some(entry) = self.nodes.entry_mut(node)
            {
                entry.is_to_be_selected = entry.group == NIL;
            }
            if !selected && let Some(entry) = self.remove_pending(slot, node) {
                self.forget_stored(slot, &entry);
            }
            node = next;
        }
    }

    /// Drops the first message that waits.
    pub(crate) fn drop_first(&mut self, slot: u32, reason: LossReason) {
        let node = self.sessions[slot].pending.first();
        if let Some(entry) = self.remove_pending(slot, node) {
            self.lose(slot, entry.message.as_deref(), reason);
            self.forget_stored(slot, &entry);
            self.note_owed(slot, &entry, true);
        }
    }

    /// Takes a waiting entry out of a queue, with its share of the sums.
    pub(crate) fn remove_pending(&mut self, slot: u32, node: u32) -> Option<Entry> {
        let session = &mut self.sessions[slot];
        let entry = self.nodes.remove(&mut session.pending, node)?;
        session.account.left(&entry);
        self.counters.unstored(entry.held());
        if entry.is_claimed {
            // Somebody else may get it.
            let session = &self.sessions[slot];
            let key = owned_key(&entry);
            let change = records::remove(Kind::Owned, session.name.text(), &key);
            self.changes.push(change);
        }
        self.list_if_hungry(slot);
        Some(entry)
    }

    /// Takes an entry out of the ledger, with its share of the sums.
    #[inline]
    pub(crate) fn remove_sent(&mut self, slot: u32, node: u32) -> Option<Entry> {
        let session = &mut self.sessions[slot];
        let entry = self.nodes.remove(&mut session.ledger, node)?;
        session.forget_rehomed(entry.tag);
        self.counters.unstored(entry.held());
        self.ledger_has_room(slot, entry.body_bytes());
        if self.settles_first() {
            self.list_if_hungry(slot);
        }
        Some(entry)
    }

    /// Notes that an entry is no longer in a session's queue or ledger, and will not be again.
    #[inline]
    pub(crate) fn forget_stored(&mut self, slot: u32, entry: &Entry) {
        self.settle_position(slot, entry.own_position());
        if entry.phase == Phase::HandedOver || entry.is_owned {
            self.forget_owned(slot, entry);
        }
    }

    /// Keeps an entry as its session's alone, whatever becomes of the log. `group` is the filter of the shared
    /// subscription that it came from.
    pub(crate) fn keep_owned(&mut self, slot: u32, node: u32, group: Option<&str>) {
        let entry = self.nodes.entry(node);
        let is_handed_over = entry.is_some_and(|entry| entry.phase == Phase::HandedOver);
        let change = self.owned_record(slot, node, is_handed_over, group);
        self.changes.extend(change);
    }

    /// The record that an entry is its session's alone; `None` where nothing is kept of it. `group` is the filter of
    /// the shared subscription that it came from.
    pub(crate) fn owned_record(
        &self,
        slot: u32,
        node: u32,
        is_handed_over: bool,
        group: Option<&str>,
    ) -> Option<Change> {
        let session = &self.sessions[slot];
        let entry = self.nodes.entry(node)?;
        // A kept queue outlives the session: a record tells that it is done with the message.
        // In a cluster its root is told instead.
        let is_kept = entry.is_kept && !self.branches.is_on;
        if !(session.is_stored || is_kept) || entry.position == 0 {
            return None;
        }
        let context = (entry.context.as_ref()).filter(|_| !is_handed_over);
        let record = OwnedRecord {
            qos: entry.qos,
            retain: entry.retain,
            is_handed_over,
            group: group.map(Into::into),
            identifiers: context.map_or_else(Box::default, |context| context.identifiers.clone()),
        };
        let mut value = record.encode();
        if let Some(message) = entry.message.as_ref().filter(|_| !is_handed_over) {
            message.encode(&mut value);
        }
        let key = owned_key(entry);
        Some(records::put(Kind::Owned, session.name.text(), &key, value))
    }

    /// Forgets an entry that was its session's alone, when the cursors that have passed it are written.
    fn forget_owned(&mut self, slot: u32, entry: &Entry) {
        let session = &self.sessions[slot];
        if (session.is_stored || entry.is_kept) && entry.position != 0 {
            let change = records::remove(Kind::Owned, session.name.text(), &owned_key(entry));
            self.disowned.push(change);
        }
    }

    /// The filter of the shared subscription that has assigned an entry to a session, while the session has it.
    fn groups_filter(&self, slot: u32, node: u32) -> Option<Arc<str>> {
        let group = self.nodes.entry(node)?.group;
        let mut subscriptions = self.sessions[slot].subscriptions.iter();
        let of_group = subscriptions.find(|(_, known)| group != NIL && known.group == group);
        of_group.map(|(filter, _)| Arc::clone(filter))
    }

    /// Takes a message of a group into the keeping of its member's session: the group is done with it. `filter` is the
    /// group's; it is not needed while the session has the subscription.
    pub(crate) fn release_from_group(&mut self, slot: u32, node: u32, filter: Option<&str>) {
        let Some(entry) = self.nodes.entry_mut(node) else {
            return;
        };
        if std::mem::replace(&mut entry.is_owned, true) {
            return;
        }
        let (group, position) = (entry.group, entry.position);
        if !std::mem::take(&mut entry.is_claimed) {
            let own = (filter.is_none()).then(|| self.groups_filter(slot, node));
            let own = own.flatten();
            self.keep_owned(slot, node, filter.or(own.as_deref()));
        }
        let session = &self.sessions[slot];
        self.owed.push(Owed {
            group,
            position,
            credit: 0,
            member: session.subscriber,
            attendance: session.attendance,
        });
    }

    // While no consumer is connected.

    /// Sets the session's one timer to what it waits for.
    pub(crate) fn set_session_timer(&mut self, slot: u32) {
        let session = &mut self.sessions[slot];
        let deadline_ms = session.deadline_ms();
        if deadline_ms != session.timer_ms {
            self.timers
                .remove(&(session.timer_ms, QueueKey::Session(slot)));
            if deadline_ms != NEVER_MS {
                self.timers.insert((deadline_ms, QueueKey::Session(slot)));
            }
            session.timer_ms = deadline_ms;
        }
    }

    /// Drops the expired messages of a session that is away.
    pub(crate) fn sweep_session(&mut self, now_ms: u64, slot: u32) {
        let mut earliest_ms = NEVER_MS;
        let mut node = self.sessions[slot].pending.first();
        while node != NIL {
            let next = self.nodes.next(node);
            let expires_at_ms = self.expires_at_ms(node);
            if expires_at_ms <= now_ms {
                if let Some(entry) = self.remove_pending(slot, node) {
                    self.forget_stored(slot, &entry);
                    self.note_owed(slot, &entry, true);
                    self.lose(slot, entry.message.as_deref(), LossReason::Expired);
                }
            } else {
                earliest_ms = earliest_ms.min(expires_at_ms);
            }
            node = next;
        }
        let session = &mut self.sessions[slot];
        let pending = session.pending.len();
        session.set_sweep(next_sweep_ms(now_ms, earliest_ms, pending));
    }

    /// When the message of a node expires.
    pub(crate) fn expires_at_ms(&self, node: u32) -> u64 {
        self.nodes
            .entry(node)
            .and_then(|entry| entry.message.as_ref()?.expires_at_ms())
            .unwrap_or(NEVER_MS)
    }

    /// Empties a list, with its entries' share of the sums.
    pub(crate) fn drain(&mut self, mut list: List) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(list.len());
        while let Some(entry) = self.nodes.pop_front(&mut list) {
            self.counters.unstored(entry.held());
            entries.push(entry);
        }
        entries
    }

    /// Appends an entry that has its tag to a list, with its share of the sums.
    pub(crate) fn restore(&mut self, list: &mut List, owner: u32, entry: Entry) -> u32 {
        self.counters.stored(entry.held());
        self.nodes.push_back(list, owner, entry)
    }
}
