//! After a restart: what the store has kept becomes sessions, routes and queues again.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::Broker;
use super::branches::RootTold;
use super::wills::WillKey;
use crate::account::Account;
use crate::api::{DoorState, NEVER_EXPIRES_S};
use crate::attempts::Failures;
use crate::cursor::{Cursor, Past, Reader};
use crate::directory::{Admission, Claimed, Owner, Principal, RetainedBy};
use crate::far_group::group_of_root;
use crate::filter::Filter;
use crate::group_reader::{GroupReader, GroupRecord};
use crate::limits::Limits;
use crate::message::Message;
use crate::name::SessionName;
use crate::nodes::{Entry, List, NIL, Phase};
use crate::owned::Ownership;
use crate::queues::Queues;
use crate::records::{
    self, HIGHEST_PLACE, JudgedRecord, Kind, OwnedRecord, RetainedOwner, SessionRecord,
    SubscriptionRecord, decode_retained, split_key,
};
use crate::route::{Context, topics_of_shared};
use crate::session::{BrokerSession, NEVER_MS, State, Subscription};
use crate::store::{Change, ReadRequest, Record, Share};
use crate::will::WillRecord;

/// Messages that are read at once for a restored queue.
const READ_MESSAGES: usize = 1_024;
/// Bytes of their bodies.
const READ_BYTES: usize = 8 << 20;

/// The restored state beside sessions, queues and retained messages.
#[derive(Debug, Default)]
pub struct Restored {
    /// Number of sessions of this shard.
    pub sessions: usize,
    /// Records that the front doors keep of the node, with their keys; every shard gets all of them.
    pub node_records: Vec<Record>,
    /// Number of records that could not be understood; they were left out.
    pub unsound_records: usize,
}

/// A session, as its records have it.
#[derive(Default)]
struct StoredSession {
    session: Option<SessionRecord>,
    subscriptions: Vec<(Arc<str>, SubscriptionRecord)>,
    cursor: Cursor,
    past: Vec<Past>,
    owned: Vec<StoredOwned>,
    rounds: u64,
    records: Vec<Record>,
    will: Option<WillRecord>,
}

/// A delivery that is a session's alone, as its record has it.
struct StoredOwned {
    key: Box<[u8]>,
    position: u64,
    record: OwnedRecord,
    message: Option<Message>,
}

impl StoredOwned {
    /// Whether a group had assigned it, which the session may have left since.
    fn is_from_group(&self) -> bool {
        self.key.get(8) == Some(&1)
    }
}

/// All records, taken apart.
#[derive(Default)]
struct Loaded {
    sessions: BTreeMap<SessionName, StoredSession>,
    groups: BTreeMap<Box<str>, GroupRecord>,
    /// Messages of groups that are sessions' alone.
    owned: Vec<(Box<str>, u64)>,
    retained: Vec<(RetainedOwner, Message)>,
    judged: Option<JudgedRecord>,
    /// Wills that were due.
    postponed_wills: Vec<(WillKey, WillRecord)>,
    restored: Restored,
}

impl Loaded {
    /// Takes in a record; `None` where it can't be understood.
    fn visit(&mut self, share: Share, key: &[u8], value: &[u8]) -> Option<()> {
        let (kind, name, rest) = split_key(key)?;
        if kind == Kind::Owned
            && let Some(group) = OwnedRecord::decode(value)?.0.group
        {
            let position = u64::from_be_bytes(*rest.first_chunk()?);
            self.owned.push((group, position));
        }
        match kind {
            Kind::Node => {
                let record = (rest.into(), value.into());
                self.restored.node_records.push(record);
            }
            Kind::Retained if share.holds_retained() => {
                self.retained.push(decode_retained(value)?);
            }
            Kind::Group if share.holds(name) => {
                self.groups.insert(name.into(), GroupRecord::decode(value)?);
            }
            Kind::Judged => self.judged = Some(JudgedRecord::decode(value)?),
            Kind::Retained | Kind::Group | Kind::Shared => {}
            Kind::Will if share.holds(name) && !rest.is_empty() => {
                let will = WillRecord::decode(value)?;
                self.postponed_wills
                    .push(((name.into(), rest.into()), will));
            }
            _ if share.holds(name) => {
                if !self.sessions.contains_key(name) {
                    let named = SessionName::of_text(name)?;
                    self.sessions.insert(named, StoredSession::default());
                }
                (self.sessions.get_mut(name)?).visit(kind, rest, value)?;
            }
            _ => {}
        }
        Some(())
    }
}

impl StoredSession {
    fn visit(&mut self, kind: Kind, rest: &[u8], value: &[u8]) -> Option<()> {
        match kind {
            Kind::Session => self.session = Some(SessionRecord::decode(value)?),
            Kind::Subscription => {
                let filter = std::str::from_utf8(rest).ok()?;
                let subscription = SubscriptionRecord::decode(value)?;
                self.subscriptions.push((Arc::from(filter), subscription));
            }
            Kind::Past => {
                let (until, filter) = rest.split_first_chunk()?;
                let filter = Arc::from(std::str::from_utf8(filter).ok()?);
                let record = SubscriptionRecord::decode(value)?;
                self.past.push(Past {
                    filter,
                    since: record.since,
                    subscription: subscription(record),
                    until: u64::from_be_bytes(*until),
                });
            }
            Kind::Cursor => self.cursor = Cursor::decode(value)?,
            Kind::Owned => {
                let position = u64::from_be_bytes(*rest.first_chunk()?);
                let (record, end) = OwnedRecord::decode(value)?;
                let message = if record.is_handed_over {
                    None
                } else {
                    Some(message(&value[end..])?)
                };
                self.owned.push(StoredOwned {
                    key: rest.into(),
                    position,
                    record,
                    message,
                });
            }
            Kind::Rounds => {
                let rounds = u64::from_be_bytes(value.try_into().ok()?);
                self.rounds = Some(rounds).filter(|&rounds| rounds <= HIGHEST_PLACE)?;
            }
            Kind::Door => self.records.push((rest.into(), value.into())),
            Kind::Will => self.will = Some(WillRecord::decode(value)?),
            Kind::Group | Kind::Retained | Kind::Node | Kind::Shared | Kind::Judged => {}
        }
        Some(())
    }
}

impl StoredSession {
    /// The removal of all its records.
    fn removal(&self, name: &SessionName) -> Vec<Change> {
        let mut keys: Vec<(Kind, Box<[u8]>)> = [Kind::Session, Kind::Cursor, Kind::Rounds]
            .map(|kind| (kind, Box::default()))
            .into();
        keys.extend(self.will.iter().map(|_| (Kind::Will, Box::default())));
        let subscriptions = self.subscriptions.iter();
        keys.extend(
            subscriptions.map(|(filter, _)| (Kind::Subscription, filter.as_bytes().into())),
        );
        keys.extend(self.past.iter().map(|past| (Kind::Past, past.key().into())));
        keys.extend(
            self.owned
                .iter()
                .map(|owned| (Kind::Owned, owned.key.clone())),
        );
        keys.extend(
            self.records
                .iter()
                .map(|(key, _)| (Kind::Door, key.clone())),
        );
        let keys = keys.into_iter();
        keys.map(|(kind, rest)| records::remove(kind, name.text(), &rest))
            .collect()
    }
}

fn message(record: &[u8]) -> Option<Message> {
    Message::decode(Bytes::copy_from_slice(record)).ok()
}

impl<P: DoorState> Broker<P> {
    /// Takes over this shard's share of what the store holds. Once, before anything else, on all shards
    /// before any of them routes a message. All sessions are away, and their expiry counts on from where it
    /// was.
    ///
    /// The rules are to be in force ([`set_rights`](Self::set_rights)). Where they are not those by which the sessions were
    /// judged last, all are judged, as of now.
    pub fn restore(&mut self, now_ms: u64) -> Restored {
        // One time for all shards: what the clock has not reached is dated back to it.
        let now_ms = self.directory.started_ms(now_ms);
        let share = Share {
            shard: self.shard,
            shards: self.directory.shards(),
        };
        let mut loaded = Loaded::default();
        self.queues.store.load(&mut |key, value| {
            if loaded.visit(share, key, value).is_none() {
                loaded.restored.unsound_records += 1;
            }
        });
        let end = self.queues.store.next_position();
        self.queues.restored_to = end;
        self.queues.restored_ms = now_ms;
        let eras = self.directory.eras().clone();
        self.queues.marks.fill(end);
        let interval_ms = self.queues.limits.survey_interval_ms;
        self.surveys.begin_after(now_ms, interval_ms);
        let directory = Arc::clone(&self.directory);
        for (owner, mut message) in loaded.retained {
            message.charge(&self.gauge);
            message.date_anew(&eras, now_ms);
            let entered = owner.enter(directory.principals());
            let by = RetainedBy::Here(entered.principal);
            directory.retain(&Arc::new(message), by, Admission::Restored);
        }
        self.queues.eras = eras;
        for (group, position) in loaded.owned {
            // A session has taken it over; the group may not have known that yet.
            if let Some(record) = loaded.groups.get_mut(&group) {
                record.cursor.settle(position);
            }
        }
        for record in loaded.groups.values_mut() {
            record.process_ended(end);
        }
        self.orphans.extend(loaded.groups);
        let mut restored = loaded.restored;
        let limits = self.limits_of_stored();
        let is_judged = self.judges_restored(now_ms, loaded.judged.as_ref());
        for (name, session) in loaded.sessions {
            let is_restored = self.restore_session(now_ms, &name, session, (&limits, is_judged));
            restored.sessions += usize::from(is_restored);
        }
        for (key, will) in loaded.postponed_wills {
            self.restore_postponed_will(key, will);
        }
        // Nothing of this is new to the store, but for what has come to its end.
        self.finish(now_ms);
        restored
    }

    /// Restores a session, and judges it where that is to be; false where it has ended. Filters are parsed within
    /// `limits`.
    fn restore_session(
        &mut self,
        now_ms: u64,
        name: &SessionName,
        mut stored: StoredSession,
        (limits, is_judged): (&Limits, bool),
    ) -> bool {
        let record = stored.session.as_ref();
        let Some(record) = record.filter(|record| record.expiry_s > 0).cloned() else {
            let will = (stored.will.take()).filter(|_| self.keeps_of_node());
            self.remove_stored(name, &stored);
            if let Some(will) = will {
                self.restore_lone_will(now_ms, name, will);
            }
            return false;
        };
        let slot = self.queues.sessions.vacant_slot();
        let generation = self.directory.next_opening();
        let shard = self.shard;
        let admission = (Admission::Restored, None);
        let claimed = self
            .directory
            .claim((name, Principal::BROKER), shard, admission, || Owner {
                shard,
                slot,
                generation,
            });
        // There twice, which no store has.
        let Claimed::New { name, .. } = claimed else {
            return false;
        };
        let mut session = BrokerSession::new(name, generation, State::Active);
        session.expiry_s = record.expiry_s;
        session.expires_at_ms = match (record.expires_at_ms, record.expiry_s) {
            (None, NEVER_EXPIRES_S) => NEVER_MS,
            // It was connected when the broker stopped: its connection ends now.
            (None, expiry_s) => now_ms + u64::from(expiry_s) * 1000,
            // Not more than the whole interval, also if the clock was set back.
            (Some(at_ms), expiry_s) => {
                let whole_ms = u64::from(expiry_s) * 1000;
                (self.queues)
                    .dated_anew(at_ms, whole_ms)
                    .min(now_ms + whole_ms)
            }
        };
        session.weight.principal = self.principal_of_stored(&session.name, &record);
        self.queues.sessions.insert(session);
        self.install_stored(now_ms, slot, stored, limits);
        if !(self.queues.sessions[slot].reader.as_ref())
            .is_some_and(|reader| reader.cursor.away.is_open())
        {
            // It was connected: its consumer left when the broker did.
            self.mark_left(slot);
        }
        // Others are judged when their clients return. A part of topics that one may get is not stored.
        if is_judged {
            self.judge_session(now_ms, slot, true);
            self.write_cursor_of_judged(slot);
        }
        self.queues.set_session_timer(slot);
        self.queues.pack(slot);
        true
    }

    /// The principal of a session of a store; it has entered.
    fn principal_of_stored(&self, name: &SessionName, record: &SessionRecord) -> Principal {
        let principals = self.directory.principals();
        match (name.user(), record.network) {
            (None, None) => Principal::BROKER,
            (None, Some(SessionRecord::UNNOTED)) => Principal::OTHERS,
            (user, network) => principals.enter(user, network),
        }
    }

    /// Removes what is stored of a session that has ended with the broker.
    fn remove_stored(&mut self, name: &SessionName, stored: &StoredSession) {
        // Groups are yet to know of the messages that it took from them.
        let is_owned =
            |change: &Change| split_key(&change.key).is_some_and(|(kind, ..)| kind == Kind::Owned);
        for change in stored.removal(name) {
            if is_owned(&change) {
                self.queues.disowned.push(change);
            } else {
                self.queues.changes.push(change);
            }
        }
    }

    /// Gives a session that is new here what is stored of it.
    fn install_stored(&mut self, now_ms: u64, slot: u32, stored: StoredSession, limits: &Limits) {
        let mut cursor = stored.cursor;
        cursor.process_ended(self.queues.store.next_position());
        let mut reader = Reader::restored(cursor);
        reader.past = stored.past;
        for owned in &stored.owned {
            if !owned.is_from_group() {
                reader.settle(owned.position);
            }
        }
        self.queues.sessions[slot].reader = Some(Box::new(reader));
        for (filter, subscription) in stored.subscriptions {
            let Some(parsed) = Filter::parse(&filter, limits) else {
                continue;
            };
            let is_shared = parsed.shared;
            if !self
                .directory
                .add_subscription(Admission::Restored, Principal::BROKER)
            {
                continue;
            }
            let since = Some(subscription.since);
            let mut subscription = subscription;
            if let Some(rest) = &mut subscription.rest {
                // The clock may have been set back: what it retains then has changed.
                rest.since_ms = self.queues.dated_anew(rest.since_ms, 0).min(now_ms);
            }
            let subscription = self::subscription(subscription);
            if self
                .add_routes(slot, &filter, is_shared, subscription, since)
                .is_none()
            {
                self.directory.remove_subscription();
            }
        }
        // From here on, changes are new to the store.
        self.queues.sessions[slot].is_stored = true;
        self.restore_ledger(slot, stored.owned);
        let session = &mut self.queues.sessions[slot];
        if stored.rounds > 0 {
            session.rare_mut().rounds = stored.rounds;
        }
        if !stored.records.is_empty() {
            let rare = session.rare_mut();
            rare.kept = stored.records.iter().map(|(key, _)| key.clone()).collect();
            rare.restored = stored.records;
        }
        if let Some(will) = stored.will {
            self.restore_will(now_ms, slot, will);
        }
        self.queues.sessions.reweigh(slot);
    }

    /// Takes the records of one session apart. Those that cannot be understood are left out.
    fn stored_session(records: &[Record]) -> StoredSession {
        let mut stored = StoredSession::default();
        for (key, value) in records {
            if let Some((kind, _, rest)) = split_key(key) {
                let _ = stored.visit(kind, rest, value);
            }
        }
        stored
    }

    fn limits_of_stored(&self) -> Limits {
        // Subscriptions that were admitted before stay, also if a limit was lowered since.
        Limits {
            topic_levels: usize::MAX,
            ..self.queues.limits.clone()
        }
    }

    /// Gives a session that has its consumer, and is new on this node of a cluster, what another node kept of it.
    /// False where that session has ended.
    pub(super) fn install_kept(&mut self, now_ms: u64, slot: u32, records: &[Record]) -> bool {
        let mut stored = Self::stored_session(records);
        let name = self.queues.sessions[slot].name.clone();
        let is_over = (stored.session.as_ref()).is_none_or(|record| {
            record.expiry_s == 0 || record.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
        });
        if is_over {
            self.remove_stored(&name, &stored);
            return false;
        }
        if stored.will.take().is_some() {
            // [MQTT-3.1.3-9]
            let change = records::remove(Kind::Will, name.text(), &[]);
            self.queues.changes.push(change);
        }
        self.hold_log(stored.cursor.first());
        let limits = self.limits_of_stored();
        self.install_stored(now_ms, slot, stored, &limits);
        true
    }

    /// Takes over a session that is away, of a node of the cluster that is gone. A will that is delayed waits on.
    /// Returns whether it goes on here; otherwise it has ended, or a client waits for it.
    pub fn adopt(&mut self, now_ms: u64, name: &SessionName, records: &[Record]) -> bool {
        if self.directory.owner(name).is_some() {
            self.note(Ownership::NotAdopted { name: name.clone() });
            return false;
        }
        self.note(Ownership::Adopted { name: name.clone() });
        let mut stored = Self::stored_session(records);
        if let Some(record) = &mut stored.session
            && record.expires_at_ms.is_none()
            && record.expiry_s != NEVER_EXPIRES_S
        {
            // Its connection ended with its node: it is away from now on, also when another node adopts it after
            // this one.
            record.expires_at_ms = Some(now_ms + u64::from(record.expiry_s) * 1000);
            let change = records::put(Kind::Session, name.text(), &[], record.encode());
            self.queues.changes.push(change);
        }
        self.hold_log(stored.cursor.first());
        let limits = self.limits_of_stored();
        let is_here = self.restore_session(now_ms, name, stored, (&limits, false));
        if !is_here {
            self.note(Ownership::Release { name: name.clone() });
        } else if let Some(group) = group_of_root(name) {
            let group = group.into();
            self.far.told.push_back(RootTold::Adopted { group });
        } else {
            self.far.adopted.push(name.clone());
        }
        self.finish(now_ms);
        is_here
    }

    /// Restores the deliveries that are a session's alone.
    fn restore_ledger(&mut self, slot: u32, owned: Vec<StoredOwned>) {
        let mut ledger = List::default();
        let mut rehomed = Vec::new();
        for owned in owned {
            let is_from_group = owned.is_from_group();
            let StoredOwned {
                position,
                record,
                message,
                ..
            } = owned;
            let message = message.map(|mut message| {
                message.charge_large(&self.gauge);
                message.date_anew(&self.queues.eras, self.queues.restored_ms);
                Arc::new(message)
            });
            let phase = if record.is_handed_over {
                Phase::HandedOver
            } else {
                Phase::Sent
            };
            let tag = self.queues.sessions[slot].next_tag();
            let entry = Entry {
                message,
                context: context(&record.identifiers),
                tag,
                // It came from a group, and will not go back.
                group_tag: u64::from(is_from_group),
                group: NIL,
                failures: Failures::default(),
                qos: record.qos,
                phase,
                retain: record.retain,
                redelivered: true,
                retained_copy: false,
                is_kept: false,
                position,
                is_owned: true,
                is_claimed: false,
                is_to_be_judged: false,
                is_to_be_selected: false,
            };
            rehomed.push((tag, self.queues.restore(&mut ledger, slot, entry)));
        }
        if rehomed.is_empty() {
            return;
        }
        let session = &mut self.queues.sessions[slot];
        session.ledger = ledger;
        session.account = Account::of(&self.queues.nodes, session.pending, ledger);
        session.rare_mut().rehomed.extend(rehomed);
    }

    /// Counts messages of the log among those that are alive, and dates those of an earlier process. Readers of the same
    /// message share it.
    pub(super) fn take_in(&mut self, messages: &mut [(u64, Arc<Message>)]) {
        for (position, message) in messages {
            self.queues.take_in(*position, message);
            self.queues.reads.share(*position, message);
        }
    }

    /// Gives a group the queue that it had; false where it had none. A kept queue is read in the log when its
    /// rules have come: they decide the places of its messages.
    pub(super) fn restore_group(&mut self, id: u32, is_durable: bool) -> bool {
        if self.orphans.is_empty() && self.queues.unread.is_empty() {
            return false;
        }
        let Some(group) = self.queues.groups.get(&id).filter(|_| is_durable) else {
            return false;
        };
        let has_come = !group.is_kept || group.rules.is_some();
        if let Some(record) = self.orphans.remove(&*group.filter) {
            self.queues.unread.insert(id, record);
        }
        let is_unread = self.queues.unread.contains_key(&id);
        if has_come {
            self.queues.read_unread(id);
        }
        is_unread
    }
}

impl<P: DoorState> Broker<P> {
    /// All shards have restored their sessions. Shared subscriptions that are stored and have no member any more end:
    /// they would hold the log, and give a later member what was published before it. Queues stay.
    pub fn all_restored(&mut self, now_ms: u64) {
        self.catch_up();
        for (filter, record) in std::mem::take(&mut self.orphans) {
            if record.is_kept {
                self.orphans.insert(filter, record);
            } else {
                let end = records::remove(Kind::Group, &filter, &[]);
                self.queues.changes.push(end);
            }
        }
        self.restored_are_judged();
        self.finish(now_ms);
    }

    /// Reads in the log which messages the queues had before a restart, so that their limits hold. To be called after
    /// [`restore`](Self::restore), when queues have their rules; else it is done with the first timers.
    pub fn read_restored(&mut self) {
        while let Some(&group) = self.queues.unread.keys().next() {
            self.queues.read_unread(group);
        }
    }
}

impl<P> Queues<P> {
    /// The end of an interval of so many milliseconds, as an earlier process has noted it: later, if the clock was
    /// behind when the interval began.
    pub(super) fn dated_anew(&self, end_ms: u64, interval_ms: u64) -> u64 {
        let began_ms = end_ms.saturating_sub(interval_ms);
        end_ms.saturating_add(self.eras.behind_ms(began_ms))
    }

    /// Counts a message of the log among those that are alive. One of an earlier process may have to be dated.
    fn take_in(&self, position: u64, message: &mut Arc<Message>) {
        if let Some(message) = Arc::get_mut(message) {
            message.charge(&self.reads.gauge);
            if position < self.restored_to {
                message.date_anew(&self.eras, self.restored_ms);
            }
        }
    }

    /// Reads in the log what a group's queue had before the restart. At the start; and at the first use of a
    /// queue that nobody has given rules by then.
    pub(crate) fn read_unread(&mut self, id: u32) {
        if self.unread.is_empty() {
            return;
        }
        let Some(GroupRecord {
            is_kept, cursor, ..
        }) = self.unread.remove(&id)
        else {
            return;
        };
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let filters: Arc<[Box<str>]> = [topics_of_shared(&group.filter).into()].into();
        group.log = Some(Box::new(GroupReader::restored(&cursor)));
        let mut next = cursor.first();
        while next < self.restored_to {
            let answer = self.store.read_now(ReadRequest {
                reader: 0,
                from: next,
                to: self.restored_to,
                filters: Arc::clone(&filters),
                most_messages: READ_MESSAGES,
                most_bytes: READ_BYTES,
            });
            if answer.next <= next {
                break;
            }
            next = answer.next;
            for (position, mut message) in answer.messages {
                let is_logged = is_kept || message.qos().is_acknowledged();
                if let Some(attempts) = cursor.wants(position).filter(|_| is_logged) {
                    self.take_in(position, &mut message);
                    let published_ms = message.published_ms();
                    self.enter_group(published_ms, id, &message, position, attempts);
                }
            }
        }
        self.write_group_cursor(id);
    }
}

/// A subscription, as its record has it.
fn subscription(record: SubscriptionRecord) -> Subscription {
    Subscription {
        flags: record.flags,
        group: NIL,
        context: match record.rest {
            None => (record.identifier).and_then(|identifier| context(&[identifier])),
            rest => Some(Arc::new(Context {
                rest,
                ..Context::of(record.identifier.into_iter().collect())
            })),
        },
    }
}

fn context(identifiers: &[u32]) -> Option<Arc<Context>> {
    (!identifiers.is_empty()).then(|| Arc::new(Context::of(identifiers.into())))
}
