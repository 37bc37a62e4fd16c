//! The state of sessions that outlive their connections, but for their messages. Each session has one entry of a
//! stream, which its owner writes as a whole.
//!
//! An entry is written by compare-and-set on its sequence number, and has the epoch of its writer's ownership. A
//! new owner writes it first of all, as it found it. So a late write of an earlier owner comes to nothing: it finds
//! a higher epoch, and gives up.

use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sterna_broker::{Change, Record, Records, SessionName, delayed_will, name_of, shared_of};

use super::connection::HEADER_BYTES;
use super::sessions::{hex, key_of_text};
use super::streams::{KEPT, SESSIONS};
use super::unreadable::UNREADABLE_INTERVAL;
use super::{Core, Retry};
use crate::commits::Part;
use crate::owners::{Key, WriteError, number, put_number};
use crate::port::ToShard;
use crate::subjects;

/// The version that this node writes, and the only one that it reads.
const VERSION: u8 = 1;

/// How often is looked whether an earlier write is done.
const PAUSE: Duration = Duration::from_millis(5);

/// The longest two lengths, as numbers.
const LENGTHS_BYTES: usize = 2 * 5;

/// The kept state of a session of this node.
#[derive(Debug, Default)]
pub(super) struct Kept {
    records: Records,
    /// The epoch of this node's ownership, and the last sequence number that is known.
    epoch: u64,
    sequence: u64,
    /// The parts of turns that wait for the next write.
    parts: Vec<Part>,
    is_changed: bool,
    is_writing: bool,
    /// Whether the session has gone to another node, which waits until everything is written.
    is_leaving: bool,
    /// Whether it is more than NATS takes. Its session ends here, and goes on as it was kept last.
    is_too_large: bool,
}

impl Kept {
    /// Bytes that it takes in NATS, at most.
    fn bytes(&self) -> usize {
        let each = self.records.iter();
        let each = each.map(|(key, value)| key.len() + value.len() + LENGTHS_BYTES);
        1 + LENGTHS_BYTES + each.sum::<usize>()
    }

    /// The epoch of this node's ownership.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    fn name(&self) -> Option<SessionName> {
        SessionName::of_text(name_of(self.records.first_key_value()?.0)?)
    }
}

impl Core {
    /// Keeps changes of records. `part` is closed when NATS has them all.
    pub(super) fn keep(self: &Rc<Self>, changes: Vec<Change>, part: Part) {
        let mut touched = Vec::new();
        {
            let (mut all, owners) = (self.kept.borrow_mut(), self.owners.borrow());
            for Change { key, value } in changes {
                if let Some(shared) = shared_of(&key) {
                    // Doors forget such records by an order that says which is meant.
                    let Some(value) = value else {
                        continue;
                    };
                    self.commits.borrow_mut()[part.shard].add(part);
                    self.keep_request(shared, value, part);
                    continue;
                }
                let Some(name) = name_of(&key).map(key_of_text) else {
                    continue;
                };
                let kept = match all.entry(name) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => {
                        // The records of a session that another node has by now are that node's to keep.
                        let Some(epoch) = owners.epoch(name) else {
                            continue;
                        };
                        place.insert(Kept {
                            epoch,
                            ..Kept::default()
                        })
                    }
                };
                match value {
                    Some(value) => kept.records.insert(key, value),
                    None => kept.records.remove(&key),
                };
                kept.is_changed = true;
                if !touched.contains(&name) {
                    touched.push(name);
                }
            }
            for name in &touched {
                if let Some(kept) = all.get_mut(name) {
                    kept.parts.push(part);
                    self.commits.borrow_mut()[part.shard].add(part);
                }
            }
        }
        for name in touched {
            self.begin_writing(name);
        }
        self.close(part);
    }

    fn begin_writing(self: &Rc<Self>, key: Key) {
        let begins = (self.kept.borrow_mut().get_mut(&key)).is_some_and(|kept| {
            !kept.is_too_large && !std::mem::replace(&mut kept.is_writing, true)
        });
        if begins {
            self.spawn(Rc::clone(self).write_kept(key));
        }
    }

    /// Writes what is kept of a session until there is nothing new.
    async fn write_kept(self: Rc<Self>, key: Key) {
        let mut retry = Retry::new();
        let mut parts = Vec::new();
        let mut is_leaving = false;
        loop {
            // It is written under the epoch of a record that is there.
            while self.owners.borrow().is_forgotten(key) {
                tokio::time::sleep(PAUSE).await;
            }
            if self.is_too_large(key, &mut parts) {
                return;
            }
            let (payload, is_empty, sequence) = {
                let mut all = self.kept.borrow_mut();
                let Some(kept) = all.get_mut(&key) else {
                    break;
                };
                if !std::mem::take(&mut kept.is_changed) && parts.is_empty() {
                    kept.is_writing = false;
                    is_leaving = kept.is_leaving;
                    if kept.records.is_empty() || is_leaving {
                        all.remove(&key);
                    }
                    break;
                }
                if let Some(epoch) = self.owners.borrow().epoch(key) {
                    kept.epoch = kept.epoch.max(epoch);
                }
                parts.append(&mut kept.parts);
                let payload = encode(kept.epoch, &kept.records);
                (payload, kept.records.is_empty(), kept.sequence)
            };
            match self.put_kept(key, payload, is_empty, sequence).await {
                Ok(sequence) => {
                    if let Some(kept) = self.kept.borrow_mut().get_mut(&key) {
                        kept.sequence = sequence;
                    }
                    for part in std::mem::take(&mut parts) {
                        self.close(part);
                    }
                    retry = Retry::new();
                    continue;
                }
                Err(WriteError::Conflict) => match self.get_kept(key).await {
                    Ok(found) => {
                        let (sequence, epoch) = found.map_or((0, 0), |(at, epoch, _)| (at, epoch));
                        let own = self.epoch_of_kept(key, epoch).await;
                        let mut all = self.kept.borrow_mut();
                        let is_lost = (all.get_mut(&key)).is_none_or(|kept| {
                            kept.is_changed = true;
                            own.is_some_and(|own| {
                                kept.sequence = sequence;
                                kept.epoch = kept.epoch.max(own);
                                epoch > kept.epoch
                            })
                        });
                        if is_lost {
                            // Nothing is acknowledged for it: this node is not sure of it, or it has ended here.
                            if let Some(kept) = all.remove(&key) {
                                is_leaving = kept.is_leaving;
                                parts.extend(kept.parts);
                            }
                            break;
                        }
                    }
                    Err(why) => tracing::debug!(why, "what is kept of a session is read again"),
                },
                Err(WriteError::Unknown) => {
                    if let Some(kept) = self.kept.borrow_mut().get_mut(&key) {
                        kept.is_changed = true;
                    }
                }
            }
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
        for part in parts {
            self.close(part);
        }
        if is_leaving {
            self.left(key);
        }
    }

    /// The most bytes of what is kept of a session.
    pub(super) fn most_kept_bytes(&self) -> usize {
        self.client.max_payload().saturating_sub(HEADER_BYTES)
    }

    /// Whether what is kept of a session does not fit a message of NATS. Its shard ends it then; nothing that waits for
    /// it is acknowledged before that is done.
    fn is_too_large(&self, key: Key, parts: &mut Vec<Part>) -> bool {
        let most = self.most_kept_bytes();
        let mut all = self.kept.borrow_mut();
        let Some(kept) = all.get_mut(&key) else {
            return false;
        };
        let bytes = kept.bytes();
        let Some(name) = kept.name().filter(|_| bytes > most) else {
            return false;
        };
        kept.is_too_large = true;
        kept.is_writing = false;
        kept.parts.append(parts);
        drop(all);
        self.status.unkept_sessions.add(1);
        tracing::error!(
            client = name.id(),
            user = name.user(),
            bytes,
            most,
            "what the session has is more than NATS takes (max_payload): it ends, and goes on as it was kept last"
        );
        for shard in 0..self.settings.shards {
            let name = name.clone();
            self.post(shard, ToShard::Unkept { name });
        }
        true
    }

    /// Forgets the kept state of a session. Parts that wait for its records wait no longer.
    fn forget_kept(&self, key: Key) -> Option<Kept> {
        let mut kept = self.kept.borrow_mut().remove(&key)?;
        for part in std::mem::take(&mut kept.parts) {
            self.close(part);
        }
        Some(kept)
    }

    /// No shard has this session of this node any more. A session that ended because it could not be kept or
    /// restored is brought to a shard as one that is away.
    fn put_aside(&self, key: Key, kept: Option<&Kept>) {
        let unrestored = self.unrestored.borrow_mut().remove(&key);
        let too_large = kept.filter(|kept| kept.is_too_large);
        let too_large = too_large.and_then(|kept| Some((kept.name()?, kept.epoch)));
        if let Some((name, epoch)) = unrestored.or(too_large) {
            let now_ms = self.fence.now_ms();
            (self.owners.borrow_mut()).put_aside(now_ms, key, epoch, name);
        }
    }

    /// A session of this node is another's. Says so when all is written that this node had of it.
    pub(super) fn leave_kept(self: &Rc<Self>, key: Key) {
        let is_to_write = (self.kept.borrow_mut().get_mut(&key)).is_some_and(|kept| {
            kept.is_leaving = true;
            kept.is_writing || (kept.is_changed && !kept.is_too_large)
        });
        if is_to_write {
            return self.begin_writing(key);
        }
        let kept = self.forget_kept(key);
        self.put_aside(key, kept.as_ref());
        self.left(key);
    }

    /// Whether everything is written that shards have handed over.
    pub(super) fn has_kept_all(&self) -> bool {
        let kept = self.kept.borrow();
        self.has_logged_all() && !kept.values().any(|kept| kept.is_writing)
    }

    /// This node's epoch for a record that has been found with another: 0 where the session is not this node's.
    /// `None` while nobody can say, for NATS has lost the records of who has which session.
    async fn epoch_of_kept(&self, key: Key, found: u64) -> Option<u64> {
        let own = self.owners.borrow().epoch(key);
        if own.is_some_and(|own| own < found) {
            self.look_at_stream(SESSIONS).await.ok()?;
        }
        let owners = self.owners.borrow();
        (!owners.is_forgotten(key)).then(|| owners.epoch(key).unwrap_or(0))
    }

    /// Writes everything again that this node keeps, for NATS has lost it.
    pub(super) async fn keep_all_again(self: &Rc<Self>) {
        // The sessions' owners are written first, if their records are lost, too.
        let mut retry = Retry::new();
        while let Err(why) = self.look_at_stream(SESSIONS).await {
            tracing::debug!(why, "sessions' records are looked for");
            retry.wait().await;
        }
        let keys: Vec<Key> = {
            let mut kept = self.kept.borrow_mut();
            for one in kept.values_mut() {
                one.sequence = 0;
                one.is_changed = true;
            }
            kept.keys().copied().collect()
        };
        for keys in keys.chunks(self.settings.maximum_in_flight) {
            for key in keys {
                if self.kept.borrow().contains_key(key) {
                    self.begin_writing(*key);
                }
            }
            while (keys.iter())
                .any(|key| (self.kept.borrow().get(key)).is_some_and(|kept| kept.is_writing))
            {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn left(&self, key: Key) {
        self.owners.borrow_mut().has_left(key);
        self.owners_changed.notify_one();
    }

    /// Waits until this node writes nothing of a session any more, and forgets what it had of it: only NATS has the records
    /// that count.
    async fn end_writing(&self, key: Key) {
        let is_writing = || {
            let kept = self.kept.borrow();
            // A write that waits for the session's record waits for this.
            kept.get(&key).is_some_and(|kept| kept.is_writing)
                && !self.owners.borrow().is_forgotten(key)
        };
        while self.owners.borrow().epoch(key).is_some() && is_writing() {
            tokio::time::sleep(PAUSE).await;
        }
        if self.owners.borrow().epoch(key).is_some() {
            self.forget_kept(key);
        }
    }

    /// Takes over what is kept of a session that is this node's now: its records. `None` where the session is
    /// another's by then. `will` is the record of its will, if none is kept that waits.
    async fn take_kept(self: &Rc<Self>, key: Key, will: Option<Record>) -> Option<Vec<Record>> {
        // Records that this node had handed over in an earlier ownership must not be taken for news of this one.
        self.is_handed_over(key).await;
        let mut retry = Retry::new();
        loop {
            self.end_writing(key).await;
            let epoch = self.owners.borrow().epoch(key)?;
            match self.get_kept(key).await {
                Ok(found) => {
                    let (sequence, before, mut records) = found.unwrap_or_default();
                    if before > epoch && self.epoch_of_kept(key, before).await.is_some() {
                        return None;
                    }
                    // The log has to come by here as far as the earlier owner has seen it, with its own entries.
                    self.know_tail().await;
                    let before_death = records.clone();
                    // Its earlier owner may have died before it wrote the last of them.
                    self.amend(key, before, &mut records);
                    if let Some((key, value)) = will.as_ref().filter(|_| !records.is_empty()) {
                        records.entry(key.clone()).or_insert_with(|| value.clone());
                    }
                    if encode(epoch, &records).len() > self.most_kept_bytes() {
                        self.status.unkept_sessions.add(1);
                        tracing::error!(
                            "what the session's earlier node did not come to write is more than NATS takes \
                             (max_payload): the session goes on as it was kept last"
                        );
                        records = before_death;
                    }
                    let (payload, is_empty) = (encode(epoch, &records), records.is_empty());
                    let written = self.put_kept(key, payload, is_empty, sequence).await;
                    if let Ok(sequence) = written {
                        let kept = Kept {
                            records: records.clone(),
                            epoch,
                            sequence,
                            ..Kept::default()
                        };
                        if !records.is_empty() {
                            self.kept.borrow_mut().insert(key, kept);
                        }
                        return Some(records.into_iter().collect());
                    }
                }
                Err(why) => tracing::debug!(why, "what is kept of a session is read again"),
            }
            retry.wait().await;
        }
    }

    /// Gives a session that was claimed its kept state. Where NATS does not have it in time, the client is refused.
    /// The session is then this node's as one that is away.
    pub(super) async fn restore_session(
        self: Rc<Self>,
        (shard, session): (usize, sterna_broker::SessionKey),
        key: Key,
        name: SessionName,
    ) {
        let limit = Duration::from_millis(self.settings.claim_timeout_ms);
        let records = tokio::time::timeout(limit, self.take_kept(key, None)).await;
        let own = self.owners.borrow().epoch(key);
        let refused = |why| ToShard::Claimed {
            session,
            result: Err(why),
        };
        let letter = match (records, own) {
            (Ok(Some(records)), Some(_)) => ToShard::Restored { session, records },
            (Err(_), Some(epoch)) => {
                if let Some(untold) = self.unanswered.note(UNREADABLE_INTERVAL) {
                    tracing::warn!(
                        client = name.id(),
                        user = name.user(),
                        untold,
                        "NATS does not say what the session has: its client is refused"
                    );
                }
                (self.unrestored.borrow_mut()).insert(key, (name, epoch));
                refused(sterna_broker::ClaimRefusal::Away)
            }
            _ => refused(sterna_broker::ClaimRefusal::TakenOver),
        };
        self.post(shard, letter);
    }

    /// Has a session begin that was claimed, when nothing is kept any more of the one before it. Its client waits for that
    /// no longer than for the claim: what is kept is removed later then.
    pub(super) async fn begin_in_place(
        self: Rc<Self>,
        (shard, session): (usize, sterna_broker::SessionKey),
        key: Key,
        epoch: u64,
    ) {
        let limit = Duration::from_millis(self.settings.claim_timeout_ms);
        let discarding = async {
            // This node's records of an earlier session must not be taken for this one's.
            self.is_handed_over(key).await;
            self.end_writing(key).await;
            self.discard_kept(key, epoch).await;
        };
        let is_discarded = tokio::time::timeout(limit, discarding).await.is_ok();
        let is_own = self.owners.borrow().epoch(key).is_some();
        let result = is_own.then_some(());
        let result = result.ok_or(sterna_broker::ClaimRefusal::TakenOver);
        self.post(shard, ToShard::Claimed { session, result });
        if !is_discarded {
            self.discard_kept(key, epoch).await;
        }
    }

    /// Removes what earlier owners have kept of a session that has begun anew in an epoch. Their late writes find that
    /// epoch, and give up.
    pub(super) async fn discard_kept(&self, key: Key, epoch: u64) {
        let mut retry = Retry::new();
        loop {
            match self.get_kept(key).await {
                Ok(found) => {
                    let (sequence, before, records) = found.unwrap_or_default();
                    if before >= epoch || (sequence != 0 && records.is_empty()) {
                        return;
                    }
                    // Also where there is nothing: the server that answered may be behind.
                    let nothing = encode(epoch, &Records::new());
                    if self.put_kept(key, nothing, true, sequence).await.is_ok() {
                        return;
                    }
                }
                Err(why) => tracing::debug!(why, "what is kept of a session is read again"),
            }
            retry.wait().await;
        }
    }

    /// Brings a session that is away, and this node's now, to a shard.
    pub(super) async fn adopt_session(
        self: Rc<Self>,
        key: Key,
        name: SessionName,
        will: Option<Arc<[u8]>>,
    ) {
        // Its connection has ended with its node, so that the delay of its will begins.
        let now_ms = self.wall_ms();
        let waiting = (will.as_deref()).and_then(|will| delayed_will(&name, will, now_ms));
        let is_delayed = waiting.is_some();
        let records = self.take_kept(key, waiting).await;
        // [MQTT-3.1.3-9] where its client has come back elsewhere
        let is_over = is_delayed && records.as_ref().is_none_or(|records| !records.is_empty());
        let records = records.unwrap_or_default();
        if let Some(will) = will
            && !is_over
            // A will that waits is among the records.
            && !records.iter().any(|(key, _)| key.first() == Some(&b'w'))
        {
            let testator = Some(name.clone());
            self.post(usize::from(key[0]), ToShard::Will { will, testator });
        }
        if self.owners.borrow().epoch(key).is_some() {
            let shards = self.settings.shards as u16;
            let shard = sterna_broker::Share::home(name.text(), shards);
            self.post(usize::from(shard), ToShard::Adopt { name, records });
        } else {
            let now_ms = self.fence.now_ms();
            self.owners.borrow_mut().was_adopted(now_ms, key);
            self.owners_changed.notify_one();
        }
    }

    /// Whether what is kept of a session has been written since an epoch by a later owner, or nothing is to be written
    /// any more. False where NATS does not say.
    pub(super) async fn is_written_since(&self, key: Key, epoch: u64) -> bool {
        let is_later = |found: Option<(u64, u64, Records)>| {
            found.is_some_and(|(_, written_in, _)| written_in > epoch)
        };
        if self.get_kept(key).await.is_ok_and(is_later) {
            return true;
        }
        let record = self.read_session(key).await;
        record.is_ok_and(|found| found.is_none_or(|(_, record)| !record.is_kept))
    }

    /// Sequence number, epoch and records that NATS has; `None` where there are none.
    pub(super) async fn get_kept(&self, key: Key) -> Result<Option<(u64, u64, Records)>, String> {
        let subject = subject_of(key);
        let Some(found) = self.last_of_subject(KEPT, &subject).await? else {
            return Ok(None);
        };
        if found.payload.is_empty() {
            return Ok(Some((found.sequence, 0, Records::new())));
        }
        if let Some((epoch, records)) = decode(&found.payload) {
            return Ok(Some((found.sequence, epoch, records)));
        }
        let why = "its form is not known: a node of another version may have written it";
        self.cannot_read("records of a session", found.sequence, why);
        Err("it cannot be read".to_owned())
    }

    async fn put_kept(
        &self,
        key: Key,
        payload: Vec<u8>,
        is_empty: bool,
        expected: u64,
    ) -> Result<u64, WriteError> {
        let subject = subject_of(key);
        let written = (self.compare_and_set(subject.clone(), expected, payload, None)).await?;
        if is_empty {
            self.note_end(KEPT, &subject, written);
        }
        Ok(written)
    }
}

pub(super) fn subject_of(key: Key) -> String {
    subjects::kept(&hex(key))
}

pub(super) fn encode(epoch: u64, records: &Records) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_number(&mut out, epoch);
    for (key, value) in records {
        put_number(&mut out, key.len() as u64);
        out.extend_from_slice(key);
        put_number(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    }
    out
}

pub(super) fn decode(bytes: &[u8]) -> Option<(u64, Records)> {
    let (&version, mut rest) = bytes.split_first()?;
    if version != VERSION {
        return None;
    }
    let epoch = number(&mut rest)?;
    let mut records = Records::new();
    while !rest.is_empty() {
        let key = slice(&mut rest)?.into();
        records.insert(key, slice(&mut rest)?.into());
    }
    Some((epoch, records))
}

fn slice<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(rest)?).ok()?;
    let (slice, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_parts_of_it_do_not() {
        let records: Records = [(&b"s\x031:a"[..], &b""[..]), (b"c\x031:a", b"\x00\xff")]
            .map(|(key, value)| (key.into(), value.into()))
            .into();
        let bytes = encode(300, &records);
        assert_eq!(decode(&bytes), Some((300, records)));
        assert_eq!(
            decode(&encode(7, &Records::new())),
            Some((7, Records::new()))
        );
        for end in [0, 1, 2, bytes.len() - 1] {
            assert_eq!(decode(&bytes[..end]), None, "cut off at {end}");
        }
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(decode(&other), None, "another version");
    }
}
