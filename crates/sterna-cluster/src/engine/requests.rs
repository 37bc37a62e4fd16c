//! Requests that are done once in the cluster, as the stream of what is kept knows them.

use std::rc::Rc;
use std::time::Duration;

use super::kept::subject_of;
use super::streams::KEPT;
use super::{Core, Retry};
use crate::commits::Part;
use crate::owners::{Key, WriteError};
use crate::port::KeyOrder;
use crate::requests::{Beginning, Begun, Entry, Freeing, key_of};

/// The pause before an entry is read again that another server does not have yet.
const PAUSE: Duration = Duration::from_millis(5);

/// A request that this process has begun, and has not done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mine {
    /// The sequence number of its entry.
    sequence: u64,
    round: u64,
    kept_for: Duration,
}

impl Mine {
    /// Which use of the key it is, and for how many seconds NATS keeps the entry.
    pub(super) const fn round_and_time(self) -> (u64, u64) {
        (self.round, self.kept_for.as_secs())
    }
}

/// How far this process is with a key. Nobody does the request of an entry that this process wrote otherwise.
#[derive(Debug)]
pub(super) enum Own {
    /// It is to be known whether the request is to be done.
    Beginning,
    /// The request is being done, and what gives it up.
    Begun(Mine, Freeing),
    /// The request was done, and that is being written.
    Finishing,
    /// The request is not done here, and its key is being freed.
    Freeing,
}

impl Own {
    /// The request, while it is being done.
    pub(super) const fn mine(&self) -> Option<Mine> {
        match self {
            Self::Begun(mine, _) => Some(*mine),
            _ => None,
        }
    }
}

impl Core {
    /// Does what a front door asks for.
    pub(super) fn take_key_order(self: &Rc<Self>, order: KeyOrder) {
        let core = Rc::clone(self);
        match order {
            KeyOrder::Begin {
                key,
                value,
                kept_for_s,
                reply,
            } => {
                let kept_for = Duration::from_secs(u64::from(kept_for_s.max(1)));
                self.spawn(async move {
                    let begun = core.begin_request(key_of(&key), value, kept_for).await;
                    (reply.0)(begun);
                });
            }
            KeyOrder::GiveUp { key } => {
                self.spawn(async move { core.give_up_request(key_of(&key)).await });
            }
            KeyOrder::Forget { key, value } => {
                let is_meant = move |found: &Entry| found.is_record(&value);
                self.spawn(async move {
                    core.replace_request(key_of(&key), is_meant, None).await;
                });
            }
        }
    }

    async fn begin_request(
        self: &Rc<Self>,
        key: Key,
        value: Box<[u8]>,
        kept_for: Duration,
    ) -> Begun {
        if !self.owns_sessions.get() || !self.owners.borrow().has_begun() {
            return Begun::Away;
        }
        match self.requests.borrow().get(&key) {
            None => {}
            Some(Own::Freeing) => return Begun::Away,
            Some(_) => {
                let is_done = false;
                return Begun::Known { is_done, value };
            }
        }
        self.requests.borrow_mut().insert(key, Own::Beginning);
        // A number that rises with the node's clock, which never runs back.
        let round =
            self.wall_ms() * 1_000 + u64::from(self.started.elapsed().subsec_micros() % 1_000);
        let own = self.owners.borrow().own().clone();
        let mut beginning = Beginning::new(own, round, value);
        let limit = Duration::from_millis(self.settings.claim_timeout_ms);
        let begun = self.try_to_begin(key, &mut beginning, kept_for);
        match tokio::time::timeout(limit, begun).await {
            Ok(Ok(mine)) => {
                let freeing = beginning.begun(mine.sequence);
                let own = Own::Begun(mine, freeing);
                self.requests.borrow_mut().insert(key, own);
                return Begun::First(mine.round);
            }
            Ok(Err(known)) => {
                self.requests.borrow_mut().remove(&key);
                return known;
            }
            Err(_) => {}
        }
        // It may be written all the same, and nobody will do it.
        self.requests.borrow_mut().insert(key, Own::Freeing);
        let core = Rc::clone(self);
        let freeing = beginning.give_up();
        self.spawn(async move { core.free_begun_request(key, freeing, kept_for).await });
        Begun::Away
    }

    /// Sets a key free whose entry this process may have written.
    async fn free_begun_request(&self, key: Key, mut freeing: Freeing, kept_for: Duration) {
        let mut retry = Retry::new();
        loop {
            let entry = freeing.entry().map(|entry| (entry, kept_for));
            let written = self.put_request(key, freeing.expected, entry).await;
            if written.is_ok() {
                break;
            }
            match self.get_request(key).await {
                Ok((sequence, found)) if !freeing.found(sequence, found.as_ref()) => break,
                Ok(_) => {}
                Err(why) => tracing::debug!(why, "a key's entry is read again"),
            }
            retry.wait().await;
        }
        self.requests.borrow_mut().remove(&key);
    }

    /// Begins with a request, or tells the answer that it is not to be done here.
    async fn try_to_begin(
        &self,
        key: Key,
        beginning: &mut Beginning,
        kept_for: Duration,
    ) -> Result<Mine, Begun> {
        let mine = |sequence, round| Mine {
            sequence,
            round,
            kept_for,
        };
        let mut retry = Retry::new();
        loop {
            let expected = beginning.expected;
            let entry = Some((beginning.entry(), kept_for));
            let written = self.put_request(key, expected, entry).await;
            if let Ok(sequence) = written {
                return Ok(mine(sequence, beginning.entry().round));
            }
            match self.get_request(key).await {
                // The server that answered is behind.
                Ok((sequence, _)) if sequence < expected => tokio::time::sleep(PAUSE).await,
                Ok((sequence, found)) => {
                    let now_ms = self.fence.now_ms();
                    let may_act = |process: &_| {
                        let owners = self.owners.borrow();
                        // This process does nothing with the key beside this.
                        process != owners.own() && owners.may_act(now_ms, process)
                    };
                    let left = found.as_ref().filter(|found| !found.is_done);
                    let left = left.filter(|found| !may_act(&found.by));
                    let left = left.map(|found| found.round);
                    if left.is_some() {
                        // Its process may have died before it wrote that it is done.
                        self.know_tail().await;
                    }
                    let published = |round| Some(self.published(key, round)?.0);
                    match beginning.found(sequence, found, may_act, published) {
                        Some(Begun::First(round)) => {
                            return Ok(mine(sequence, round));
                        }
                        Some(begun) => {
                            if let Some(round) = left {
                                self.settle_request(key, round).await;
                            }
                            return Err(begun);
                        }
                        // The server that answered may be behind.
                        None if sequence == expected => tokio::time::sleep(PAUSE).await,
                        None => continue,
                    }
                }
                Err(why) => tracing::debug!(why, "a key's entry is read again"),
            }
            if written == Err(WriteError::Unknown) {
                retry.wait().await;
            }
        }
    }

    /// Takes the request that is being done, and notes how far this process is with its key from now on. `None` where
    /// it does none.
    fn take_begun(&self, key: Key, next: Own) -> Option<(Mine, Freeing)> {
        let mut requests = self.requests.borrow_mut();
        let own = requests.get_mut(&key)?;
        own.mine()?;
        match std::mem::replace(own, next) {
            Own::Begun(mine, freeing) => Some((mine, freeing)),
            _ => None,
        }
    }

    /// Sets a key free that this process has begun with, and has not done. The round of another process that it took up
    /// stays: that process may publish all the same.
    async fn give_up_request(&self, key: Key) {
        if let Some((mine, freeing)) = self.take_begun(key, Own::Freeing) {
            self.free_begun_request(key, freeing, mine.kept_for).await;
        }
    }

    /// Keeps that a request was done. `part` is closed when NATS has it.
    pub(super) fn keep_request(self: &Rc<Self>, key: &[u8], value: Box<[u8]>, part: Part) {
        let (core, key) = (Rc::clone(self), key_of(key));
        self.spawn(async move {
            // Otherwise another has taken it up, for this process was taken for dead.
            if let Some((mine, _)) = core.take_begun(key, Own::Finishing) {
                core.finish_request(key, mine, value).await;
                core.requests.borrow_mut().remove(&key);
            }
            core.close(part);
        });
    }

    async fn finish_request(&self, key: Key, mine: Mine, value: Box<[u8]>) {
        let entry = Entry {
            is_done: true,
            round: mine.round,
            by: self.owners.borrow().own().clone(),
            value,
        };
        let (mut expected, mut retry) = (mine.sequence, Retry::new());
        loop {
            let entry = Some((&entry, mine.kept_for));
            match self.put_request(key, expected, entry).await {
                Ok(_) => return,
                Err(WriteError::Unknown) => {}
                Err(WriteError::Conflict) => match self.get_request(key).await {
                    // It is done, by a process that was told the same round.
                    Ok((_, Some(found))) if found.is_done || found.round != mine.round => return,
                    // NATS may have lost it, or another has begun it again: what both publish is the same.
                    Ok((sequence, _)) => expected = sequence,
                    Err(why) => tracing::debug!(why, "a key's entry is read again"),
                },
            }
            retry.wait().await;
        }
    }

    /// Writes that a request was done whose publication the log has, and whose process is gone.
    async fn settle_request(&self, key: Key, round: u64) {
        let Some((value, kept_for_s)) = self.published(key, round) else {
            return;
        };
        let by = self.owners.borrow().own().clone();
        let is_done = true;
        let entry = Entry {
            is_done,
            round,
            by,
            value,
        };
        let kept_for = Duration::from_secs(kept_for_s.max(1));
        let is_meant = |found: &Entry| !found.is_done && found.round == round;
        (self.replace_request(key, is_meant, Some((&entry, kept_for)))).await;
    }

    /// Writes which requests were done of a node's processes that are gone, before the log forgets it.
    pub(super) async fn settle_requests_of(&self, node: &str, incarnation: u64) {
        self.know_tail().await;
        for (key, round) in self.requests_of(node, incarnation) {
            self.settle_request(key, round).await;
        }
    }

    /// Writes an entry in place of a key's last one where that is meant, or that the key is free.
    async fn replace_request(
        &self,
        key: Key,
        is_meant: impl Fn(&Entry) -> bool,
        entry: Option<(&Entry, Duration)>,
    ) {
        let mut retry = Retry::new();
        loop {
            match self.get_request(key).await {
                Ok((sequence, Some(found))) if is_meant(&found) => {
                    if self.put_request(key, sequence, entry).await.is_ok() {
                        return;
                    }
                }
                Ok(_) => return,
                Err(why) => tracing::debug!(why, "a key's entry is read again"),
            }
            retry.wait().await;
        }
    }

    /// Writes an entry and for how long it holds, or that the key is free.
    async fn put_request(
        &self,
        key: Key,
        expected: u64,
        entry: Option<(&Entry, Duration)>,
    ) -> Result<u64, WriteError> {
        let subject = subject_of(key);
        let Some((entry, kept_for)) = entry else {
            let written =
                (self.compare_and_set(subject.clone(), expected, Vec::new(), None)).await?;
            self.note_end(KEPT, &subject, written);
            return Ok(written);
        };
        let payload = entry.encode(self.wall_ms() / 1_000 + kept_for.as_secs());
        self.compare_and_set(subject, expected, payload, Some(kept_for))
            .await
    }

    /// The sequence number of a key's last entry, 0 for none, and the entry where the key is not free.
    async fn get_request(&self, key: Key) -> Result<(u64, Option<Entry>), String> {
        let Some(found) = self.last_of_subject(KEPT, &subject_of(key)).await? else {
            return Ok((0, None));
        };
        if found.payload.is_empty() {
            return Ok((found.sequence, None));
        }
        let (entry, until_s) = Entry::decode(&found.payload).ok_or_else(|| {
            tracing::warn!(
                sequence = found.sequence,
                "the entry of a request's key cannot be read: a node of another version may have written it"
            );
            "it cannot be read".to_owned()
        })?;
        // NATS may have brought it back.
        Ok((
            found.sequence,
            Some(entry).filter(|_| self.wall_ms() / 1_000 < until_s),
        ))
    }
}
