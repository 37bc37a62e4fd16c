//! Claims: who wants a session, from the request until it is granted or refused.

use std::sync::Arc;

use sterna_broker::is_will_delayed;

use super::work::{Op, RETRY_MS, Stage, Work};
use super::{Action, Begin, Held, Key, Owners, Process, Record, Request};

/// Why a session was not claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// NATS did not take the claim in time.
    Away,
    /// Another node has claimed it since.
    TakenOver,
}

/// Why a claim has lost its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overtaken {
    /// Another process has written its record over the claim's.
    Claimed,
    /// Another process has written its record, and nobody can say whether the claim's was there before it.
    Unknown,
}

impl Overtaken {
    /// The reason in words.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Claimed => "another node has claimed the session since",
            Self::Unknown => "another node has the session, and may have taken it from this claim",
        }
    }
}

#[derive(Debug)]
pub(super) struct Claim<S> {
    pub(super) request: Request<S>,
    pub(super) serial: u64,
    pub(super) deadline_ms: u64,
    /// Whether its session was let in before the claim is settled.
    pub(super) is_let_in: bool,
    /// Whether nobody waits for it any more.
    pub(super) is_abandoned: bool,
    pub(super) may_be_written: bool,
    /// The epoch in which the earlier owner says that it has ended the session.
    pub(super) ended_in: Option<u64>,
    /// Where nobody knows whether it was written.
    pub(super) unsure: Option<Unsure>,
    /// When it was handed to NATS last.
    pub(super) written_ms: u64,
    /// The record before, until its will is taken care of.
    pub(super) previous: Option<(u64, Record)>,
    /// Whether the session goes on with what is kept of it.
    pub(super) goes_on: bool,
    /// Whether it begins anew although another is kept.
    pub(super) discards: bool,
}

/// A claim that may be written: NATS has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsure {
    /// The sequence number that it was written over.
    pub(super) over: u64,
    /// When it was handed to NATS first.
    pub(super) since_ms: u64,
}

impl<S> Claim<S> {
    /// The next operation on the session where nobody waits for the claim any more.
    fn what_is_left(&self) -> Op<S> {
        let name = self.request.name.clone();
        if self.goes_on {
            let will = None;
            Op::Adopt { name, will }
        } else {
            Op::Release(name)
        }
    }
}

impl<S: Copy> Owners<S> {
    /// A shard wants a session, and has none of this client any more.
    pub fn claim(&mut self, now_ms: u64, key: Key, request: Request<S>) {
        let is_sure = self.is_sure(now_ms);
        let session = request.session;
        if !is_sure && request.outlives {
            return self.settle(session, key, Err(Refusal::Away));
        }
        if !is_sure {
            self.settle(session, key, Ok(Begin::Anew));
        }
        if self.unwritten(key).is_some() {
            self.drop_last(now_ms, key);
        }
        let claim = Claim {
            request,
            serial: self.number(),
            deadline_ms: now_ms + self.terms.claim_timeout_ms,
            is_let_in: !is_sure,
            is_abandoned: false,
            may_be_written: false,
            ended_in: None,
            unsure: None,
            written_ms: 0,
            previous: None,
            goes_on: false,
            discards: false,
        };
        let deadline_ms = claim.deadline_ms;
        self.enqueue(now_ms, key, Op::Claim(Box::new(claim)));
        if is_sure {
            self.wakes.insert((deadline_ms, key));
        }
    }

    /// The claim of a session that was let in, if nothing of it can be written yet and nothing follows it.
    pub(super) fn unwritten(&mut self, key: Key) -> Option<&mut Claim<S>> {
        match self.work.get_mut(&key)?.ops.back_mut()? {
            Op::Claim(claim) if claim.is_let_in && !claim.may_be_written => Some(claim),
            _ => None,
        }
    }

    /// Whether no shard had a session of this client when the last one claimed it: what comes before that claim
    /// ends without a session, or brings one to a shard.
    pub(super) fn last_found_none(&self, key: Key) -> bool {
        let before = self.work.get(&key).and_then(|work| {
            let before = work.ops.len().checked_sub(2)?;
            work.ops.get(before)
        });
        match before {
            Some(Op::Adopt { .. } | Op::Sweep { .. }) => true,
            Some(Op::Claim(claim)) => claim.is_abandoned,
            _ => false,
        }
    }

    /// Drops the last operation of a session, of which nothing is written.
    pub(super) fn drop_last(&mut self, now_ms: u64, key: Key) {
        match self.work.get_mut(&key) {
            Some(work) if work.ops.len() > 1 => {
                work.ops.pop_back();
            }
            _ => self.finish(now_ms, key),
        }
    }

    /// Claims a session whose last record is known.
    pub(super) fn claim_from(&mut self, now_ms: u64, key: Key, found: Option<(u64, Record)>) {
        let expected = found.as_ref().map_or(0, |(sequence, _)| *sequence);
        let found = found.filter(|(_, record)| !record.is_over);
        let is_kept = found.as_ref().is_some_and(|(_, record)| record.is_kept);
        let previous = found.filter(|(_, record)| record.owner != self.own);
        let is_gone =
            (previous.as_ref()).is_some_and(|(_, record)| self.is_gone(now_ms, &record.owner));
        let is_free = (previous.as_ref()).is_none_or(|(_, record)| {
            is_gone || self.harmless_from_ms(now_ms, &record.owner) <= now_ms
        });
        let last_owner = previous.as_ref().map(|(_, record)| &record.owner.node);
        let last_owner = last_owner.cloned();
        let (read_to, gap_ms) = (self.read_to, self.gap_ms);
        let Some(claim) = self.work.get_mut(&key).and_then(Work::claim_mut) else {
            return;
        };
        if claim.request.if_free && !is_free {
            return self.refuse_overtaken(now_ms, key, None);
        }
        if let Some(unsure) = claim.unsure.filter(|unsure| expected > unsure.over) {
            // Somebody has written: over the claim, or in its place. If it was written, it comes by before that.
            if gap_ms >= unsure.since_ms {
                // It may be missing there. Its will may be published, by who has claimed the session since.
                let why = Overtaken::Unknown;
                return self.refuse_overtaken(now_ms, key, Some((why, last_owner)));
            }
            if read_to < expected {
                return self.pause(now_ms, key, RETRY_MS);
            }
            claim.unsure = None;
        }
        // One that may still be written takes a will out of the record: it goes on until that is known.
        if claim.is_abandoned && claim.unsure.is_none() {
            return self.give_up(now_ms, key);
        }
        claim.written_ms = now_ms;
        if claim.is_let_in && previous.is_some() && !is_gone {
            // Its client came here while this node could not know of the other.
            self.end_let_in(key);
            return self.give_up(now_ms, key);
        }
        claim.previous = previous;
        claim.goes_on = is_kept && !claim.request.is_clean && !claim.is_let_in;
        claim.discards = is_kept && !claim.goes_on;
        self.write(key, expected);
    }

    /// Publishes the will of the session that a claim has ended.
    pub(super) fn inherit_will(&mut self, key: Key) {
        let claim = (self.work.get_mut(&key)).and_then(Work::claim_mut);
        let goes_on = claim.as_ref().is_some_and(|claim| claim.goes_on);
        let previous = claim.and_then(|claim| claim.previous.as_mut());
        if let Some((_, record)) = previous
            && let Some(will) = record.will.take()
            // [MQTT-3.1.3-9]
            && !(goes_on && is_will_delayed(&will))
        {
            let name = record.name.clone();
            let testator = Some(name.clone());
            self.actions.push(Action::Publish {
                name,
                will,
                testator,
            });
        }
    }

    /// A record of this process comes by.
    pub(super) fn own_record_passed(
        &mut self,
        now_ms: u64,
        sequence: u64,
        key: Key,
        record: &Record,
    ) {
        let is_held = self.held.contains_key(&key);
        let Some(work) = self.work.get_mut(&key) else {
            if !is_held && !record.is_over {
                // A claim that was given up was written after all.
                let name = record.name.clone();
                if record.is_kept {
                    // Its will was never in force.
                    let record = Record {
                        will: None,
                        ..record.clone()
                    };
                    let sweep = Op::Sweep {
                        sequence,
                        record,
                        until_ms: now_ms + self.terms.grace_ms(),
                    };
                    return self.enqueue(now_ms, key, sweep);
                }
                self.enqueue(now_ms, key, Op::Tidy { sequence, name });
            }
            return;
        };
        if work.serial == record.serial && matches!(work.ops.front(), Some(Op::Sweep { .. })) {
            return self.sweep_passed(now_ms, sequence, key);
        }
        let Some(claim) = (self.work.get_mut(&key))
            .and_then(Work::claim_mut)
            .filter(|claim| claim.serial == record.serial)
        else {
            return;
        };
        let has_will = claim.request.will.is_some();
        let is_kept = claim.request.outlives;
        let has_ended = claim.ended_in == Some(sequence);
        let previous =
            (claim.previous.as_ref()).map(|(sequence, record)| (*sequence, record.owner.clone()));
        self.inherit_will(key);
        self.held.insert(
            key,
            Held {
                epoch: sequence,
                has_will,
                is_kept,
                is_kept_untold: false,
            },
        );
        let until_ms = match previous {
            Some((before, owner)) if before <= self.old_to => self.harmless_from_ms(now_ms, &owner),
            Some(_) => now_ms + self.terms.grace_ms(),
            None => self.lost_until_ms,
        };
        self.remember(now_ms, key);
        // A session that was let in waits, too: what follows it would find no earlier owner in the record.
        if has_ended || until_ms <= now_ms {
            return self.grant(now_ms, key);
        }
        self.wait_for_owner(key, sequence, until_ms);
    }

    /// Waits for the earlier owner of a session that was written in an epoch.
    pub(super) fn wait_for_owner(&mut self, key: Key, epoch: u64, until_ms: u64) {
        if let Some(work) = self.work.get_mut(&key) {
            work.stage = Stage::Waiting { epoch, until_ms };
            self.wakes.insert((until_ms, key));
        }
    }

    /// Nobody else is sure of a session that was claimed.
    pub(super) fn grant(&mut self, now_ms: u64, key: Key) {
        let epoch = self.epoch(key);
        let Some(claim) = self.work.get_mut(&key).and_then(Work::claim_mut) else {
            return;
        };
        let session = claim.request.session;
        let discarded = epoch.filter(|_| claim.discards);
        let begin = match discarded {
            Some(epoch) => Begin::InPlace { epoch },
            None if claim.goes_on => Begin::Kept(claim.request.name.clone()),
            None => Begin::Anew,
        };
        if let Some(epoch) = discarded.filter(|_| claim.is_abandoned || claim.is_let_in) {
            self.actions.push(Action::Discard { key, epoch });
        }
        if claim.is_abandoned {
            let next = claim.what_is_left();
            let name = claim.request.name.clone();
            if claim.goes_on {
                self.keep_on(key);
            }
            if let Some(work) = self.work.get_mut(&key) {
                // Its will was never in force.
                work.ops.insert(1, Op::SetWill(name, None));
                work.ops.insert(2, next);
            }
        } else {
            let is_let_in = claim.is_let_in;
            if let Some(work) = self.work.get_mut(&key) {
                // The session has a client again.
                work.ops.retain(|op| !matches!(op, Op::Adopt { .. }));
            }
            if !is_let_in {
                self.settle(session, key, Ok(begin));
            }
        }
        self.finish(now_ms, key);
    }

    /// A record of another process comes by. A claim that was written before it, and was not granted, is lost.
    /// True where there was one.
    pub(super) fn overtake_claim(
        &mut self,
        now_ms: u64,
        key: Key,
        (sequence, owner): (u64, &Process),
    ) -> bool {
        let is_lost = (self.work.get_mut(&key)).is_some_and(|work| {
            work.foreign = work.foreign.max(sequence);
            match work.stage {
                Stage::Written(own) | Stage::Waiting { epoch: own, .. } => own < sequence,
                Stage::Pausing | Stage::Reading | Stage::Writing | Stage::Adopting => false,
            }
        });
        if is_lost {
            let by = Some(Arc::clone(&owner.node));
            self.refuse_overtaken(now_ms, key, Some((Overtaken::Claimed, by)));
        }
        is_lost
    }

    /// Refuses a claim that is lost. `told` says why and to which node, where operators are to know.
    pub(super) fn refuse_overtaken(
        &mut self,
        now_ms: u64,
        key: Key,
        told: Option<(Overtaken, Option<Arc<str>>)>,
    ) {
        if let Some(claim) = self.work.get_mut(&key).and_then(Work::claim_mut) {
            let session = claim.request.session;
            if let Some((why, by)) = told.filter(|_| !claim.is_abandoned) {
                let name = claim.request.name.clone();
                self.actions.push(Action::Overtaken { name, by, why });
            }
            if claim.is_let_in {
                self.end_let_in(key);
            } else if !claim.is_abandoned {
                self.settle(session, key, Err(Refusal::TakenOver));
            }
        }
        self.publish_swept_will(key);
        self.give_up(now_ms, key);
    }

    /// Ends the session of a claim that was let in. A session that has ended, or made room for another, is left
    /// alone. A shard knows it by the client only, and would end the other.
    fn end_let_in(&mut self, key: Key) {
        let Some(work) = self.work.get_mut(&key) else {
            return;
        };
        let is_followed =
            (work.ops.iter().skip(1)).any(|op| matches!(op, Op::Release(_) | Op::Claim(_)));
        if !is_followed && let Some(claim) = work.claim_mut() {
            let name = claim.request.name.clone();
            self.actions.push(Action::End { name });
        }
    }

    /// A claim came to nothing. The session that this node held before is released, or adopted if it is kept.
    pub(super) fn give_up(&mut self, now_ms: u64, key: Key) {
        if let Some(work) = self.work.get_mut(&key)
            && work.claim_mut().is_some_and(|claim| claim.is_let_in)
        {
            work.drop_what_follows();
        }
        if self.held.contains_key(&key)
            && let Some(work) = self.work.get_mut(&key)
            && !work.takes_over()
            && let Some(claim) = work.claim_mut()
        {
            let next = claim.what_is_left();
            work.ops.insert(1, next);
        }
        self.finish(now_ms, key);
    }

    /// Lets in who can be let in without NATS.
    pub(super) fn let_in_all(&mut self) {
        let mut sessions = Vec::new();
        for (key, work) in &mut self.work {
            let waits = matches!(work.stage, Stage::Waiting { .. });
            for (at, op) in work.ops.iter_mut().enumerate() {
                let waits = waits && at == 0;
                if let Op::Claim(claim) = op
                    && !(claim.request.outlives || claim.is_let_in || claim.is_abandoned || waits)
                {
                    claim.is_let_in = true;
                    sessions.push((claim.request.session, *key));
                }
            }
        }
        for (session, key) in sessions {
            self.settle(session, key, Ok(Begin::Anew));
        }
    }

    pub(super) fn settle(&mut self, session: S, key: Key, result: Result<Begin, Refusal>) {
        self.actions.push(Action::Settled {
            session,
            key,
            result,
        });
    }
}
