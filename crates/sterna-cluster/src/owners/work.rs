//! The operations under way for each session: claims, changes of wills, releases, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;

use sterna_broker::SessionName;

use super::claims::{Claim, Unsure};
use super::{Action, Key, Overtaken, Owners, Process, Record, Refusal, WriteError};

/// Time after which something that failed is tried again.
pub(super) const RETRY_MS: u64 = 200;
/// The same after somebody else was quicker. It doubles with each time: NATS may be at a write that it does not finish.
const CONFLICT_RETRY_MS: u64 = 5;

#[derive(Debug)]
pub(super) enum Op<S> {
    Claim(Box<Claim<S>>),
    /// The session's will is another now.
    SetWill(SessionName, Option<Arc<[u8]>>),
    /// The session's will is published; it has none after that.
    PublishWill(SessionName, Arc<[u8]>),
    /// NATS has lost the session's record.
    Renew(SessionName, Option<Arc<[u8]>>),
    /// The session has ended.
    Release(SessionName),
    /// The session of a node that is gone has ended, or is this node's from now on if it is kept.
    Sweep {
        sequence: u64,
        record: Record,
        /// Until when an owner before the one of this record may be sure of the session.
        until_ms: u64,
    },
    /// A session that is away, and is this node's, comes to a shard of it.
    Adopt {
        name: SessionName,
        /// That of its last connection.
        will: Option<Arc<[u8]>>,
    },
    /// A claim was written that nobody waited for any more.
    Tidy {
        sequence: u64,
        name: SessionName,
    },
}

impl<S> Op<S> {
    /// The session that it is of.
    fn name(&self) -> SessionName {
        match self {
            Self::Claim(claim) => &claim.request.name,
            Self::Sweep { record, .. } => &record.name,
            Self::SetWill(name, _)
            | Self::PublishWill(name, _)
            | Self::Renew(name, _)
            | Self::Release(name)
            | Self::Adopt { name, .. }
            | Self::Tidy { name, .. } => name,
        }
        .clone()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// It has not begun, or waits until it is tried again.
    Pausing,
    Reading,
    Writing,
    /// It is written, and is still to come by.
    Written(u64),
    /// A shard takes it.
    Adopting,
    /// It has come by, and is a claim or what was taken over; the earlier owner may still be sure of the session.
    Waiting {
        epoch: u64,
        until_ms: u64,
    },
}

#[derive(Debug)]
pub(super) struct Work<S> {
    pub(super) ops: VecDeque<Op<S>>,
    pub(super) stage: Stage,
    pub(super) attempt: u64,
    pub(super) serial: u64,
    /// The sequence number that was written over.
    pub(super) expected: u64,
    /// How often somebody else was quicker.
    pub(super) conflicts: u32,
    /// The last record of another process that has come by meanwhile.
    pub(super) foreign: u64,
    pub(super) wake_ms: u64,
}

impl<S> Work<S> {
    /// Whether the shard's session has ended: it has said so, or wants another.
    pub(super) fn has_ended(&self) -> bool {
        let mut ops = self.ops.iter();
        ops.any(|op| matches!(op, Op::Release(_) | Op::Claim(_)))
    }

    /// Whether it takes over what a node that is gone has left.
    pub(super) fn takes_over(&self) -> bool {
        let mut ops = self.ops.iter();
        ops.any(|op| matches!(op, Op::Sweep { .. } | Op::Adopt { .. }))
    }

    /// Notes that a process has ended the session which was claimed in that epoch. Its word may come before the
    /// record of the claim comes by. True where the claim waits for that.
    pub(super) fn told(&mut self, process: &Process, epoch: u64) -> bool {
        let stage = self.stage;
        let Some(claim) = self.claim_mut() else {
            return false;
        };
        let previous = claim.previous.as_ref();
        if previous.is_none_or(|(_, record)| record.owner != *process) {
            return false;
        }
        claim.ended_in = Some(epoch);
        matches!(stage, Stage::Waiting { epoch: own, .. } if own == epoch)
    }

    /// Drops what was said of the session of the first claim, which was let in and comes to nothing. It would hold
    /// for the session that is there instead.
    pub(super) fn drop_what_follows(&mut self) {
        let is_claim = |op: &Op<S>| matches!(op, Op::Claim(_));
        let next = self.ops.iter().skip(1).position(is_claim);
        let (mut at, end) = (0, next.map_or(self.ops.len(), |next| next + 1));
        self.ops.retain(|op| {
            at += 1;
            let is_behind = (2..=end).contains(&at);
            !(is_behind && matches!(op, Op::SetWill(..) | Op::PublishWill(..) | Op::Release(_)))
        });
    }

    /// Whether its record takes a session over that goes on here, so that an earlier owner may be sure of it still.
    pub(super) fn waits_for_owner(&self) -> bool {
        match self.ops.front() {
            Some(Op::Claim(_)) => true,
            Some(Op::Sweep { record, .. }) => record.is_kept,
            _ => false,
        }
    }

    pub(super) fn claim_mut(&mut self) -> Option<&mut Claim<S>> {
        match self.ops.front_mut() {
            Some(Op::Claim(claim)) => Some(claim),
            _ => None,
        }
    }
}

impl<S: Copy> Owners<S> {
    /// A session of this node has another will, or none.
    pub fn set_will(&mut self, now_ms: u64, key: Key, name: SessionName, will: Option<Arc<[u8]>>) {
        if let Some(claim) = self.unwritten(key) {
            claim.request.will = will;
        } else {
            self.enqueue(now_ms, key, Op::SetWill(name, will));
        }
    }

    /// The will of a session of this node is to be published.
    pub fn publish_will(&mut self, now_ms: u64, key: Key, name: SessionName, will: Arc<[u8]>) {
        if let Some(claim) = self.unwritten(key) {
            // Nobody else knows of it.
            claim.request.will = None;
            self.actions.push(Action::Publish {
                name,
                will,
                testator: None,
            });
        } else {
            self.enqueue(now_ms, key, Op::PublishWill(name, will));
        }
    }

    /// A session of this node has ended.
    pub fn release(&mut self, now_ms: u64, key: Key, name: SessionName) {
        if self.unwritten(key).is_some() {
            if self.work.get(&key).is_some_and(|work| work.ops.len() == 1) {
                return self.give_up(now_ms, key);
            }
            if self.last_found_none(key) {
                // Its release would be that of the session which is brought to a shard.
                return self.drop_last(now_ms, key);
            }
        }
        // It has ended, whichever node is to have it now.
        self.has_ended(now_ms, key);
        self.has_left(key);
        self.enqueue(now_ms, key, Op::Release(name));
    }

    pub(super) fn enqueue(&mut self, now_ms: u64, key: Key, op: Op<S>) {
        let work = self.work.entry(key).or_insert_with(|| Work {
            ops: VecDeque::new(),
            stage: Stage::Pausing,
            attempt: 0,
            serial: 0,
            expected: 0,
            conflicts: 0,
            foreign: 0,
            wake_ms: 0,
        });
        work.ops.push_back(op);
        if work.ops.len() == 1 {
            self.begin(now_ms, key);
        }
    }

    /// Begins the first operation of a session, or begins it again.
    pub(super) fn begin(&mut self, now_ms: u64, key: Key) {
        let epoch = self.last_own(key);
        let is_forgotten = self.forgotten.contains(&key);
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        let Some(op) = work.ops.front() else {
            self.work.remove(&key);
            return;
        };
        let held = self.held.get(&key);
        let is_news = held.is_some_and(|held| held.has_will || held.is_kept_untold);
        match (op, epoch) {
            (Op::SetWill(_, None), Some(_)) if !is_news && !is_forgotten => {
                self.finish(now_ms, key);
            }
            (Op::Renew(..), _) if !is_forgotten => self.finish(now_ms, key),
            (Op::Claim(claim), _) if claim.is_abandoned && !claim.may_be_written => {
                self.give_up(now_ms, key);
            }
            (Op::Claim(_), _) => {
                work.stage = Stage::Reading;
                self.read(key);
            }
            (Op::Sweep { sequence, .. } | Op::Tidy { sequence, .. }, None) => {
                let sequence = *sequence;
                self.write(key, sequence);
            }
            (
                Op::SetWill(..) | Op::PublishWill(..) | Op::Renew(..) | Op::Release(_),
                Some(epoch),
            ) => {
                self.write(key, epoch);
            }
            (Op::Adopt { name, will }, Some(_)) => {
                let name = name.clone();
                let will = will.clone();
                work.stage = Stage::Adopting;
                self.actions.push(Action::Adopt { key, name, will });
            }
            // The process that took the session takes care of its will.
            (
                Op::SetWill(..)
                | Op::PublishWill(..)
                | Op::Renew(..)
                | Op::Release(_)
                | Op::Adopt { .. },
                None,
            )
            | (Op::Sweep { .. } | Op::Tidy { .. }, Some(_)) => self.finish(now_ms, key),
        }
    }

    /// Begins everything that is under way again, for nothing of it may be in the stream.
    pub(super) fn begin_all_again(&mut self, now_ms: u64) {
        let keys: Vec<Key> = self.work.keys().copied().collect();
        for key in keys {
            self.pause(now_ms, key, RETRY_MS);
        }
    }

    fn read(&mut self, key: Key) {
        let attempt = self.number();
        if let Some(work) = self.work.get_mut(&key) {
            work.stage = Stage::Reading;
            work.attempt = attempt;
            self.actions.push(Action::Read { key, attempt });
        }
    }

    /// Writes what the first operation makes of the record.
    pub(super) fn write(&mut self, key: Key, expected: u64) {
        let attempt = self.number();
        let held = self.held.get(&key);
        let is_kept = held.is_some_and(|held| held.is_kept);
        let since = held.filter(|_| self.forgotten.contains(&key));
        let since = since.map(|held| held.epoch);
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        if work.serial == 0 {
            work.serial = attempt;
        }
        let Some(name) = work.ops.front().map(Op::name) else {
            return;
        };
        let mut record = Record {
            owner: self.own.clone(),
            is_over: false,
            is_kept,
            serial: work.serial,
            name,
            will: None,
            since,
        };
        // With the will that is due, others know of the next one: this process may not come to write that alone.
        let next_will = match (work.ops.front(), work.ops.get(1)) {
            (Some(Op::PublishWill(..)), Some(Op::SetWill(_, will))) => will.clone(),
            _ => None,
        };
        match work.ops.front_mut() {
            Some(Op::Claim(claim)) => {
                claim.may_be_written = true;
                record.since = None;
                record.serial = claim.serial;
                record.will.clone_from(&claim.request.will);
                record.is_kept = claim.request.outlives;
            }
            Some(Op::SetWill(_, will) | Op::Renew(_, will)) => {
                record.will.clone_from(will);
            }
            Some(Op::Release(_) | Op::Tidy { .. }) => {
                record.is_over = true;
                record.is_kept = false;
            }
            Some(Op::Sweep { record: swept, .. }) => {
                record.is_over = !swept.is_kept;
                record.is_kept = swept.is_kept;
            }
            Some(Op::PublishWill(..)) => record.will = next_will,
            Some(Op::Adopt { .. }) | None => return,
        }
        work.stage = Stage::Writing;
        work.attempt = attempt;
        work.expected = expected;
        self.actions.push(Action::Write {
            key,
            attempt,
            expected,
            record,
        });
    }

    pub(super) fn pause(&mut self, now_ms: u64, key: Key, for_ms: u64) {
        if let Some(work) = self.work.get_mut(&key) {
            work.stage = Stage::Pausing;
            work.wake_ms = now_ms + for_ms;
            self.wakes.insert((work.wake_ms, key));
        }
    }

    /// Time has come for a session.
    pub(super) fn woken(&mut self, now_ms: u64, key: Key) {
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        let stage = work.stage;
        let is_due = now_ms >= work.wake_ms;
        let mut refused = Vec::new();
        let mut is_over = false;
        for (at, op) in work.ops.iter_mut().enumerate() {
            // One that waits behind another operation is refused in time, too.
            if let Op::Claim(claim) = op
                && !(claim.is_let_in || claim.is_abandoned)
                && now_ms >= claim.deadline_ms
            {
                claim.is_abandoned = true;
                refused.push(claim.request.session);
                is_over |= at == 0 && !claim.may_be_written;
            }
        }
        for session in refused {
            self.settle(session, key, Err(Refusal::Away));
        }
        if is_over {
            return self.give_up(now_ms, key);
        }
        match stage {
            Stage::Pausing if is_due => self.begin_again(now_ms, key),
            Stage::Waiting { until_ms, .. } if until_ms <= now_ms => self.go_on(now_ms, key),
            _ => {}
        }
    }

    /// Nobody else is sure any more of a session that waits for that.
    fn go_on(&mut self, now_ms: u64, key: Key) {
        if self.work.get_mut(&key).and_then(Work::claim_mut).is_some() {
            self.grant(now_ms, key);
        } else {
            self.begin(now_ms, key);
        }
    }

    /// Begins the first operation again, of which something may be written already.
    fn begin_again(&mut self, now_ms: u64, key: Key) {
        if self.work.get(&key).is_some_and(|work| work.serial != 0) {
            self.read(key);
        } else {
            self.begin(now_ms, key);
        }
    }

    /// The last record of a key was read; an error where there was no answer.
    pub fn was_read(
        &mut self,
        now_ms: u64,
        key: Key,
        attempt: u64,
        answer: Result<Option<(u64, Record)>, ()>,
    ) {
        let epoch = self.last_own(key);
        let former = self.held.get(&key).map(|held| held.epoch);
        let found = answer.map(|found| {
            found.map(|(sequence, record)| (sequence, self.as_it_counts(sequence, record)))
        });
        let Some(work) = (self.work.get_mut(&key))
            .filter(|work| work.attempt == attempt && work.stage == Stage::Reading)
        else {
            return;
        };
        let Ok(found) = found else {
            return self.pause(now_ms, key, RETRY_MS);
        };
        let own_serial = match work.ops.front() {
            Some(Op::Claim(claim)) => claim.serial,
            _ => work.serial,
        };
        if let Some((sequence, record)) = &found
            && record.owner == self.own
            && record.serial == own_serial
        {
            return self.is_written(now_ms, key, *sequence);
        }
        if matches!(work.ops.front(), Some(Op::Claim(_))) {
            return self.claim_from(now_ms, key, found);
        }
        if let Some(Op::Sweep { record, .. }) = work.ops.front()
            && record.owner != self.own
        {
            let owner = record.owner.clone();
            if !self.is_gone(now_ms, &owner) {
                return self.leave_to(now_ms, key, &owner);
            }
        }
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        let last = found.as_ref().map_or(0, |(sequence, _)| *sequence);
        let expected = match work.ops.front() {
            Some(Op::Sweep { sequence, .. } | Op::Tidy { sequence, .. }) => Some(*sequence),
            _ => epoch,
        };
        match expected {
            // Two have written it again: the later owner's stays.
            Some(0)
                if found
                    .is_some_and(|(_, record)| record.since.is_some() && record.since < former) =>
            {
                self.write(key, last);
            }
            Some(0) if last == 0 => self.write(key, 0),
            // The record that was read may be older than the one there.
            Some(expected) if last <= expected && last != 0 => self.write(key, expected),
            // Somebody else has it: a loss is noticed when that comes by. Or it is gone altogether.
            _ => {
                let is_release = matches!(work.ops.front(), Some(Op::Release(_)));
                if is_release && last == 0 {
                    self.held.remove(&key);
                    self.remember(now_ms, key);
                }
                self.finish(now_ms, key);
            }
        }
    }

    /// A record was written, or not.
    pub fn was_written(
        &mut self,
        now_ms: u64,
        key: Key,
        attempt: u64,
        answer: Result<u64, WriteError>,
    ) {
        let is_expected = (self.work.get(&key))
            .is_some_and(|work| work.attempt == attempt && work.stage == Stage::Writing);
        if !is_expected {
            return;
        }
        match answer {
            Ok(sequence) => self.is_written(now_ms, key, sequence),
            Err(WriteError::Conflict) => {
                let mut for_ms = RETRY_MS;
                if let Some(work) = self.work.get_mut(&key) {
                    for_ms = for_ms.min(CONFLICT_RETRY_MS << work.conflicts.min(16));
                    work.conflicts += 1;
                }
                self.pause(now_ms, key, for_ms);
            }
            Err(WriteError::Unknown) => {
                let hears = self.read_to != 0;
                if let Some(work) = self.work.get_mut(&key) {
                    let over = work.expected;
                    if let Some(claim) = work.claim_mut() {
                        // A claim from before this node read anything may never come by.
                        let since_ms = if hears { claim.written_ms } else { 0 };
                        claim.unsure.get_or_insert(Unsure { over, since_ms });
                    }
                }
                self.pause(now_ms, key, RETRY_MS);
            }
        }
    }

    /// The record of the first operation is written.
    fn is_written(&mut self, now_ms: u64, key: Key, sequence: u64) {
        if let Some(work) = self.work.get_mut(&key)
            && work.waits_for_owner()
        {
            work.stage = Stage::Written(sequence);
            let is_overtaken = work.foreign > sequence;
            self.inherit_will(key);
            if is_overtaken {
                // Another record has been written over it, so it will not come by.
                self.refuse_overtaken(now_ms, key, Some((Overtaken::Claimed, None)));
            }
            return;
        }
        if let Some(held) = self.held.get_mut(&key) {
            held.epoch = sequence;
            held.is_kept_untold = false;
        }
        let is_forgotten = self.forgotten.contains(&key);
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        let says_over = match work.ops.front() {
            Some(Op::Release(_) | Op::Tidy { .. }) => true,
            Some(Op::Sweep { record, .. }) => !record.is_kept,
            _ => false,
        };
        if says_over {
            self.actions.push(Action::Remove { key, sequence });
        }
        if is_forgotten && work.expected != 0 {
            // The owner whose record was written over may still be sure of the session.
            self.lost_until_ms = now_ms + self.terms.grace_ms();
        }
        if let Some(held) = self.held.get_mut(&key) {
            held.has_will = matches!(
                work.ops.front(),
                Some(Op::SetWill(_, Some(_)) | Op::Renew(_, Some(_)))
            );
        }
        match work.ops.front_mut() {
            Some(Op::PublishWill(name, will)) => {
                let (name, will) = (name.clone(), Arc::clone(will));
                self.actions.push(Action::Publish {
                    name,
                    will,
                    testator: None,
                });
            }
            Some(Op::Sweep { record, .. }) => {
                if let Some(will) = record.will.take() {
                    let name = record.name.clone();
                    let testator = Some(name.clone());
                    self.actions.push(Action::Publish {
                        name,
                        will,
                        testator,
                    });
                }
            }
            Some(Op::Release(_)) => {
                self.held.remove(&key);
            }
            Some(
                Op::SetWill(..) | Op::Renew(..) | Op::Tidy { .. } | Op::Claim(_) | Op::Adopt { .. },
            )
            | None => {}
        }
        self.remember(now_ms, key);
        self.finish(now_ms, key);
    }

    /// A shard has a session that was adopted, or the session has ended.
    pub fn was_adopted(&mut self, now_ms: u64, key: Key) {
        let Some(work) = (self.work.get_mut(&key)).filter(|work| work.stage == Stage::Adopting)
        else {
            return;
        };
        // A client that was refused meanwhile would end the session which the shard has now.
        work.ops.retain(
            |op| !matches!(op, Op::Claim(claim) if claim.is_abandoned && !claim.may_be_written),
        );
        self.finish(now_ms, key);
    }

    /// A shard could not take a session that was adopted: another client waits there for the answer to its claim of it.
    pub fn was_not_adopted(&mut self, now_ms: u64, key: Key) {
        let Some(work) = (self.work.get_mut(&key)).filter(|work| work.stage == Stage::Adopting)
        else {
            return;
        };
        if let Some(Op::Adopt { will, .. }) = work.ops.front_mut() {
            // It is published, or among what is kept.
            *will = None;
        }
        let is_claim = |op: &Op<S>| matches!(op, Op::Claim(_));
        if let Some(claim) = work.ops.iter().position(is_claim)
            && let Some(adopt) = work.ops.pop_front()
        {
            // Behind the claim, which may be that of the session's own client.
            work.ops.insert(claim, adopt);
            work.stage = Stage::Pausing;
            return self.begin(now_ms, key);
        }
        self.pause(now_ms, key, RETRY_MS);
    }

    /// The first operation of a session is done.
    pub(super) fn finish(&mut self, now_ms: u64, key: Key) {
        if let Some(work) = self.work.get_mut(&key) {
            work.ops.pop_front();
            work.serial = 0;
            work.attempt = 0;
            work.conflicts = 0;
            work.stage = Stage::Pausing;
            self.begin(now_ms, key);
        }
    }
}
