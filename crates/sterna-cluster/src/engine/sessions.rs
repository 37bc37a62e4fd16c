//! The stream of sessions' records: what [`Owners`](crate::owners::Owners) wants done there, and what it is told.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::message::PublishMessage;
use futures_util::StreamExt;
use ring::digest;
use sterna_broker::{ClaimRefusal, Ownership, SessionName};

use super::log::Item;
use super::streams::SESSIONS;
use super::writing::as_last;
use super::{Core, Retry};
use crate::owners::{
    Action, Begin, Floor, Key, Mark, Process, Record, Refusal, Request, WriteError, incarnation_in,
    number_in,
};
use crate::port::{ToShard, Waiting};
use crate::subjects;

/// Time between two looks whether everything is written before a node leaves.
const LAST_LOOK: Duration = Duration::from_millis(10);

/// Time in which a shard tells what a session wants that it has taken over.
const TOLD: Duration = Duration::from_secs(1);

/// The longest time between two looks at what is to be done.
const LOOK: Duration = Duration::from_millis(200);

/// The form of a mark and of a word between nodes, as a line of text.
const FORM: &str = "1";

impl Core {
    /// Takes what shards say of their sessions.
    pub(super) fn note_ownership(self: &Rc<Self>, shard: usize, notes: Vec<Ownership>) {
        let now_ms = self.fence.now_ms();
        for note in notes {
            let mut owners = self.owners.borrow_mut();
            match note {
                Ownership::Claim {
                    session,
                    name,
                    will,
                    outlives,
                    is_clean,
                    if_free,
                } => {
                    let request = Request {
                        session: (shard, session),
                        will,
                        outlives,
                        is_clean,
                        if_free,
                        name,
                    };
                    owners.claim(now_ms, key_of(&request.name), request);
                }
                Ownership::SetWill { name, will } => {
                    owners.set_will(now_ms, key_of(&name), name, will);
                }
                Ownership::PublishWill { name, will } => {
                    owners.publish_will(now_ms, key_of(&name), name, will);
                }
                Ownership::Renew { name, will } => {
                    owners.renew(now_ms, key_of(&name), name, will);
                }
                Ownership::Release { name } => {
                    owners.release(now_ms, key_of(&name), name);
                }
                Ownership::Ended { name } => {
                    let key = key_of(&name);
                    owners.has_ended(now_ms, key);
                    drop(owners);
                    // Behind what shards have handed over of it before.
                    self.log.push(Item::Left(key));
                }
                Ownership::Adopted { name } => {
                    owners.was_adopted(now_ms, key_of(&name));
                }
                Ownership::NotAdopted { name } => {
                    owners.was_not_adopted(now_ms, key_of(&name));
                }
            }
        }
        self.owners_changed.notify_one();
    }

    /// Looks after sessions from when the node has joined.
    pub(super) async fn own_sessions(self: Rc<Self>) {
        let mut retry = Retry::new();
        // Wills that are taken over go to all who want them.
        self.wait_for_wanted().await;
        // The position from which on a new session reads.
        self.wait_for_end_of_log().await;
        // Before this node's first mark takes the place of its earlier start's.
        while let Err(why) = self.learn_needs().await {
            tracing::debug!(why, "nodes' marks are read again");
            retry.wait().await;
        }
        self.knows_needs();
        let incarnation = self.incarnation.get();
        self.owners.borrow_mut().set_incarnation(incarnation);
        // Nodes that were here before may be about to write their records again.
        let longest = Duration::from_millis(self.settings.session_lease_ms * 2);
        if self.has_young_records(longest) {
            (self.owners.borrow_mut()).records_lost(self.fence.now_ms());
        }
        // From before this node's first record on: one that did not come by would be waited for.
        let next = loop {
            match self.end_of_records().await {
                Ok(end) => break end + 1,
                Err(why) => tracing::debug!(why, "the end of sessions' records is asked for again"),
            }
            retry.wait().await;
        };
        self.owns_sessions.set(true);
        self.spawn(Rc::clone(&self).follow_sessions(next));
        self.spawn(Rc::clone(&self).hear_of_sessions());
    }

    /// Does what is to be done, from the start: shards are answered also where NATS is away.
    pub(super) async fn run_owners(self: Rc<Self>) {
        loop {
            let now_ms = self.fence.now_ms();
            self.owners.borrow_mut().tick(now_ms);
            self.act();
            let deadline_ms = self.owners.borrow().deadline_ms();
            let rest = Duration::from_millis(deadline_ms.saturating_sub(now_ms)).min(LOOK);
            tokio::select! {
                () = tokio::time::sleep(rest.max(Duration::from_millis(1))) => {}
                () = self.owners_changed.notified() => {}
            }
        }
    }

    fn act(self: &Rc<Self>) {
        loop {
            let actions = self.owners.borrow_mut().take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.act_on(action);
            }
        }
        let owners = self.owners.borrow();
        let until_ms = owners.open_until_ms();
        self.status.sessions_owned.set(owners.held() as u64);
        self.status.sessions_claimed.set(owners.busy() as u64);
        drop(owners);
        let lapses = self.fence.lapses();
        let is_awaited = self.fence.open_until(until_ms);
        // Shards that were not sure are to find out which sessions are still this node's.
        if is_awaited || self.fence.lapses() != lapses {
            for shard in 0..self.settings.shards {
                self.post(shard, ToShard::Committed);
            }
        }
        self.tell_roll(self.fence.now_ms());
        let is_sure = !self.fence.is_shut();
        if self.status.is_sure.swap(is_sure, Ordering::AcqRel) != is_sure {
            if is_sure {
                tracing::info!("this node is sure of its sessions");
            } else if let Some(incarnation) = self.owners.borrow().superseded_by() {
                tracing::error!(
                    incarnation,
                    "NATS has words of a later process with this node's name: this one is not sure of its sessions \
                     any more. If no other process has the name, somebody else writes to this cluster's subjects"
                );
            } else {
                tracing::warn!(
                    "this node is not sure of its sessions: those that outlive their connections are \
                     acknowledged nothing until it is"
                );
            }
        }
    }

    fn act_on(self: &Rc<Self>, action: Action<Waiting>) {
        match action {
            Action::Read { key, attempt } => {
                let core = Rc::clone(self);
                self.spawn(async move {
                    let answer = core.read_session(key).await;
                    let now_ms = core.fence.now_ms();
                    (core.owners.borrow_mut()).was_read(now_ms, key, attempt, answer);
                    core.owners_changed.notify_one();
                });
            }
            Action::Write {
                key,
                attempt,
                expected,
                record,
            } => {
                let core = Rc::clone(self);
                self.spawn(async move {
                    let answer = core.write_session(key, expected, &record).await;
                    let now_ms = core.fence.now_ms();
                    (core.owners.borrow_mut()).was_written(now_ms, key, attempt, answer);
                    core.owners_changed.notify_one();
                });
            }
            Action::Mark { sent_ms } => {
                // A node that cannot hear its marks come back does not say that it lives.
                let has_way = self.status.is_connected() && self.status.rights.has_answers();
                if self.owns_sessions.get() && has_way {
                    let core = Rc::clone(self);
                    self.spawn(async move {
                        core.mark(&format!("here {sent_ms}")).await;
                    });
                }
            }
            Action::Tell { node, key, epoch } => {
                let core = Rc::clone(self);
                self.spawn(async move {
                    let subject = core.settings.subject(&subjects::ended(&node));
                    let own = (&core.settings.node, core.incarnation.get());
                    let line = format!("{FORM} {} {} {} {epoch}", own.0, own.1, hex(key));
                    // The new owner waits for this no longer than for a lease.
                    let _ = core.client.publish(subject, line.into()).await;
                });
            }
            Action::Settled {
                session: (shard, session),
                key,
                result: Ok(Begin::Kept(name)),
            } => {
                let core = Rc::clone(self);
                self.spawn(core.restore_session((shard, session), key, name));
            }
            Action::Settled {
                session: (shard, session),
                key,
                result: Ok(Begin::InPlace { epoch }),
            } => {
                let core = Rc::clone(self);
                self.spawn(core.begin_in_place((shard, session), key, epoch));
            }
            Action::Overtaken { name, by, why } => {
                self.tell_overtaken(&name, by.as_deref(), why);
            }
            Action::Discard { key, epoch } => {
                let core = Rc::clone(self);
                self.spawn(async move { core.discard_kept(key, epoch).await });
            }
            Action::Adopt { key, name, will } => {
                let core = Rc::clone(self);
                self.spawn(core.adopt_session(key, name, will));
            }
            Action::Swept {
                processes,
                has_unknown,
                position,
            } => {
                let core = Rc::clone(self);
                self.spawn(core.tell_all_swept(processes, has_unknown, position));
            }
            Action::Remove { key, sequence } => {
                self.note_end(SESSIONS, &subject_of(key), sequence);
            }
            Action::Settled {
                session: (shard, session),
                result,
                ..
            } => {
                let result = result.map(drop).map_err(|refusal| match refusal {
                    Refusal::Away => ClaimRefusal::Away,
                    Refusal::TakenOver => ClaimRefusal::TakenOver,
                });
                self.post(shard, ToShard::Claimed { session, result });
            }
            Action::End { name } => {
                self.has_gone(key_of(&name));
                for shard in 0..self.settings.shards {
                    let name = name.clone();
                    self.post(shard, ToShard::Lost { name });
                }
            }
            Action::Publish {
                name,
                will,
                testator,
            } => {
                let shard = usize::from(key_of(&name)[0]);
                self.post(shard, ToShard::Will { will, testator });
            }
            Action::Scan => {
                let core = Rc::clone(self);
                self.spawn(async move {
                    let scanned = core.scan_sessions().await;
                    if let Err(why) = &scanned {
                        tracing::debug!(why, "records of sessions are looked at again");
                    }
                    let now_ms = core.fence.now_ms();
                    (core.owners.borrow_mut()).has_scanned(now_ms, scanned.is_ok());
                    core.owners_changed.notify_one();
                });
            }
        }
    }

    pub(super) async fn read_session(&self, key: Key) -> Result<Option<(u64, Record)>, ()> {
        if !self.owns_sessions.get() || !self.status.is_connected() {
            return Err(());
        }
        let found = self.last_of_subject(SESSIONS, &subject_of(key)).await;
        let Some(found) = found.map_err(drop)? else {
            return Ok(None);
        };
        let record = Record::decode(&found.payload);
        if record.is_none() {
            let why = "its form is not known: a node of another version may have written it";
            self.cannot_read("record of a session", found.sequence, why);
        }
        Ok(Some((found.sequence, record.ok_or(())?)))
    }

    async fn write_session(
        &self,
        key: Key,
        expected: u64,
        record: &Record,
    ) -> Result<u64, WriteError> {
        self.compare_and_set(subject_of(key), expected, record.encode(), None)
            .await
    }

    /// Tells all nodes whose sessions are taken over, when they know what those want by this node's word.
    async fn tell_all_swept(
        self: Rc<Self>,
        mut processes: Vec<Process>,
        has_unknown: bool,
        position: u64,
    ) {
        if has_unknown {
            let needs = self.unknown_needs();
            let table = self.table.borrow();
            let owners = self.owners.borrow();
            let wants = (table.absent()).filter(|(node, _)| !owners.knows(node));
            let wants = wants.map(|(node, incarnation)| (node.to_string(), incarnation));
            let unknown = needs.into_iter().chain(wants);
            processes.extend(unknown.map(|(node, incarnation)| Process {
                node: node.into(),
                incarnation,
            }));
        }
        self.ends.borrow_mut().tells_floors();
        for Process { node, incarnation } in &processes {
            let floor = Floor {
                incarnation: *incarnation,
                position,
            };
            self.tell_floor(node, floor).await;
        }
        self.ends.borrow_mut().has_told_floors();
        tokio::time::sleep(TOLD).await;
        while !self.untold.borrow().is_empty() {
            tokio::time::sleep(TOLD).await;
        }
        for Process { node, incarnation } in processes {
            self.settle_requests_of(&node, incarnation).await;
            self.forget_wants(&node, incarnation).await;
            self.tell_swept(&node, incarnation).await;
        }
    }

    /// Learns what nodes need of the log, also those that are gone, and the floors of their records.
    pub(super) async fn learn_needs(&self) -> Result<(), String> {
        for (filter, is_mark) in [(subjects::floor("*"), false), (subjects::mark("*"), true)] {
            self.each_last(SESSIONS, &filter, |word| {
                if is_mark {
                    self.note_need_of(&word.subject, &word.payload, false);
                } else {
                    let node = word.subject.rsplit('.').next().unwrap_or_default();
                    self.floor_passed(node, &word.payload);
                }
            })
            .await?;
        }
        Ok(())
    }

    fn note_need_of(&self, subject: &str, payload: &[u8], lives: bool) {
        let node = subject.rsplit('.').next().unwrap_or_default();
        let mut words = std::str::from_utf8(payload).unwrap_or_default().split(' ');
        let incarnation = words.nth(1).and_then(incarnation_in);
        let needed = words.nth(2).and_then(number_in);
        let settled = words.next().and_then(number_in);
        if let (Some(incarnation), Some(needed), Some(settled)) = (incarnation, needed, settled) {
            self.note_need(node, incarnation, needed);
            self.note_settled_to(node, incarnation, settled, lives);
        }
    }

    /// A mark of another process has come: it lives, unless it says that it leaves.
    fn note_life(&self, node: &str, payload: &[u8]) {
        let mut words = std::str::from_utf8(payload).unwrap_or_default().split(' ');
        let incarnation = words.nth(1).and_then(incarnation_in);
        if let (Some(incarnation), Some("here")) = (incarnation, words.next())
            && *node != *self.settings.node
        {
            let lease_ms = self.settings.session_lease_ms;
            (self.hearing).marked(self.now_ms(), node, incarnation, lease_ms);
        }
    }

    async fn mark(&self, word: &str) {
        let subject = self.settings.subject(&subjects::mark(&self.settings.node));
        let (needed, settled) = (self.own_need(), self.own_settled_to());
        let incarnation = self.incarnation.get();
        let line = format!("{FORM} {incarnation} {word} {needed} {settled}");
        let mark = as_last(PublishMessage::build().payload(line.into()));
        if let Ok(answer) = self.jetstream.send_publish(subject, mark).await {
            // The next one follows soon.
            let _ = answer.await;
        }
    }

    /// Says that this process has no sessions any more, when all is written that they have, and all that they have handed
    /// over: wills may be among it, which nobody publishes again.
    pub(super) async fn give_up_sessions(&self) {
        let until = self.stops_by.get();
        // With its will, a claim is what other nodes know of a client.
        while !(self.has_kept_all() && self.owners.borrow().busy() == 0) {
            if until.is_none_or(|until| Instant::now() >= until) {
                break;
            }
            tokio::time::sleep(LAST_LOOK).await;
        }
        if self.owns_sessions.get() && self.status.is_connected() {
            self.mark("leaving 0").await;
        }
    }

    /// The last sequence number of sessions' records. Those from before this start are read where they are asked for.
    async fn end_of_records(&self) -> Result<u64, String> {
        let stream = self.settings.stream(SESSIONS);
        let mut stream = (self.jetstream.get_stream(stream).await).map_err(said)?;
        Ok(stream.info().await.map_err(said)?.state.last_sequence)
    }

    /// Follows sessions' records from `next` on.
    async fn follow_sessions(self: Rc<Self>, mut next: u64) {
        let mut retry = Retry::new();
        loop {
            let Err(why) = self.follow_sessions_once(&mut next).await;
            tracing::debug!(why, "sessions' records are read on");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    /// `next` is where to read on.
    async fn follow_sessions_once(&self, next: &mut u64) -> Result<Infallible, String> {
        let start = DeliverPolicy::ByStartSequence {
            start_sequence: *next,
        };
        let mut records = self.follow(SESSIONS, None, start).await?;
        loop {
            let record = records.next().await?;
            self.session_passed(&record.subject, record.position, &record.payload);
            *next = record.position + 1;
        }
    }

    fn session_passed(&self, subject: &str, sequence: u64, payload: &[u8]) {
        let mut tokens = subject.rsplit('.');
        let (last, kind) = (tokens.next().unwrap_or_default(), tokens.next());
        let now_ms = self.fence.now_ms();
        let mut owners = self.owners.borrow_mut();
        owners.note_passed(now_ms, sequence);
        match kind {
            Some("session") => match (unhex(last), Record::decode(payload)) {
                (Some(key), Some(record)) => owners.record_passed(now_ms, sequence, key, &record),
                _ if payload.is_empty() => {}
                _ => self.cannot_read("record of a session", subject, "its form is not known"),
            },
            Some("mark") => {
                self.note_life(last, payload);
                let passed = read_mark(last, payload).and_then(|(process, mark)| {
                    owners.mark_passed(now_ms, sequence, &process, mark)
                });
                match passed {
                    Ok(()) => self.note_need_of(subject, payload, true),
                    Err(why) => self.cannot_read("mark of a node", subject, why),
                }
            }
            Some("floor") => {
                drop(owners);
                self.floor_passed(last, payload);
                return self.owners_changed.notify_one();
            }
            _ => {}
        }
        drop(owners);
        self.owners_changed.notify_one();
    }

    /// Hears that other nodes have ended sessions which this one has taken over.
    async fn hear_of_sessions(self: Rc<Self>) {
        let mut retry = Retry::new();
        loop {
            let subject = subjects::ended(&self.settings.node);
            if let Ok(mut words) = self.client.subscribe(self.settings.subject(&subject)).await {
                retry = Retry::new();
                while let Some(word) = words.next().await {
                    if let Some((process, key, epoch)) = read_ended(&word.payload) {
                        let now_ms = self.fence.now_ms();
                        (self.owners.borrow_mut()).was_ended(now_ms, &process, key, epoch);
                        self.owners_changed.notify_one();
                    } else {
                        tracing::debug!("a node's word is not understood");
                    }
                }
            }
            retry.wait().await;
        }
    }

    /// Looks at the records of all sessions.
    async fn scan_sessions(&self) -> Result<(), String> {
        let (filter, start) = (subjects::session("*"), DeliverPolicy::LastPerSubject);
        let mut records = self.follow(SESSIONS, Some(&filter), start).await?;
        if records.waiting == 0 {
            return Ok(());
        }
        loop {
            let record = records.next().await?;
            let key = record.subject.rsplit('.').next().and_then(unhex);
            if let (Some(key), Some(read)) = (key, Record::decode(&record.payload)) {
                let now_ms = self.fence.now_ms();
                (self.owners.borrow_mut()).scanned(now_ms, record.position, key, read);
                self.owners_changed.notify_one();
            }
            if record.pending == 0 {
                return Ok(());
            }
            while self.owners.borrow().busy() > self.settings.maximum_in_flight {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

pub(super) fn subject_of(key: Key) -> String {
    subjects::session(&hex(key))
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The first half of the SHA-256 of the text of a session's name.
pub(super) fn key_of(name: &SessionName) -> Key {
    key_of_text(name.text())
}

/// The first half of the SHA-256 of a text.
pub(super) fn key_of_text(text: &str) -> Key {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    let mut key = Key::default();
    key.copy_from_slice(&digest.as_ref()[..16]);
    key
}

pub(super) fn hex(key: Key) -> String {
    format!("{:032x}", u128::from_be_bytes(key))
}

pub(super) fn unhex(text: &str) -> Option<Key> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| number.to_be_bytes())
}

fn read_mark(node: &str, payload: &[u8]) -> Result<(Process, Mark), &'static str> {
    const UNKNOWN: &str = "its form is not known";
    let mut words = std::str::from_utf8(payload)
        .map_err(|_| UNKNOWN)?
        .split(' ');
    if words.next() != Some(FORM) {
        return Err(UNKNOWN);
    }
    let incarnation = words.next().and_then(incarnation_in);
    let incarnation = incarnation.ok_or("its incarnation is none that NATS gives")?;
    let mark = match words.next() {
        Some("here") => {
            let sent_ms = words.next().and_then(number_in);
            let sent_ms = sent_ms.ok_or("its time is none of a clock")?;
            Mark::Here { sent_ms }
        }
        Some("leaving") => Mark::Leaving,
        _ => return Err(UNKNOWN),
    };
    let node = node.into();
    Ok((Process { node, incarnation }, mark))
}

fn read_ended(payload: &[u8]) -> Option<(Process, Key, u64)> {
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    if words.next()? != FORM {
        return None;
    }
    let process = Process {
        node: words.next()?.into(),
        incarnation: incarnation_in(words.next()?)?,
    };
    Some((process, unhex(words.next()?)?, number_in(words.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_from_subjects() {
        for name in ["", "a", "a.b *", "ü"] {
            let key = key_of_text(name);
            assert_eq!(unhex(&hex(key)), Some(key));
        }
        assert_ne!(key_of_text("a"), key_of_text("b"));
        assert_eq!(unhex("00"), None);
    }

    #[test]
    fn marks_and_words_are_understood_or_not() {
        let process = Process {
            node: "b".into(),
            incarnation: 7,
        };
        let here = (process.clone(), Mark::Here { sent_ms: 12 });
        assert_eq!(read_mark("b", b"1 7 here 12"), Ok(here));
        let leaving = (process.clone(), Mark::Leaving);
        assert_eq!(read_mark("b", b"1 7 leaving"), Ok(leaving));
        for other in ["", "2 7 here 12", "1 7", "1 7 there 12"] {
            let why = read_mark("b", other.as_bytes());
            assert_eq!(why, Err("its form is not known"), "{other}");
        }
        for incarnation in ["x", "0", "9223372036854775808", "18446744073709551615"] {
            let line = format!("1 {incarnation} here 12");
            let why = read_mark("b", line.as_bytes());
            assert_eq!(
                why,
                Err("its incarnation is none that NATS gives"),
                "{line}"
            );
        }
        for line in ["1 7 here", "1 7 here x", "1 7 here 9223372036854775808"] {
            let why = read_mark("b", line.as_bytes());
            assert_eq!(why, Err("its time is none of a clock"), "{line}");
        }
        let key = key_of_text("a");
        let line = format!("1 b 7 {} 44", hex(key));
        assert_eq!(read_ended(line.as_bytes()), Some((process, key, 44)));
        assert_eq!(read_ended(b"1 b 7 00 44"), None);
        for (incarnation, epoch) in [(0, 44), (u64::MAX, 44), (7, u64::MAX)] {
            let line = format!("1 b {incarnation} {} {epoch}", hex(key));
            assert_eq!(read_ended(line.as_bytes()), None, "{line}");
        }
    }
}
