//! Telling other nodes what this node's readers want.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use ring::digest;
use sterna_broker::Interest;

use super::streams::NODES;
use super::writing::as_last;
use super::{Core, Retry};
use crate::owners::WriteError;
use crate::port::ToShard;
use crate::subjects;

/// How often is looked whether something is to be told that could wait.
const LATER: Duration = Duration::from_millis(500);

impl Core {
    /// Notes what readers want from now on.
    pub(super) fn note_interest(&self, changes: Vec<(Arc<str>, Interest)>) {
        let (mut own, mut untold) = (self.own.borrow_mut(), self.untold.borrow_mut());
        for (filter, interest) in changes {
            let before = own.insert(Arc::clone(&filter), interest);
            let mut later = self.told_later.borrow_mut();
            if before == Some(Interest::Durable) {
                // The session may have moved to a node that tells so in a moment.
                let due_ms = self.now_ms() + self.settings.claim_timeout_ms;
                later.insert(filter, due_ms);
            } else if interest == Interest::Durable || !later.contains_key(&filter) {
                untold.push(filter);
            }
        }
        self.untold_arrived.notify_one();
    }

    /// Tells that fewer want something, when that is due.
    pub(super) async fn tell_later(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LATER).await;
            let now_ms = self.now_ms();
            // It may be wanted by a session that nobody else knows yet.
            let since_ms = self.handed_over.borrow().since_ms();
            let held_ms = since_ms.map(|since_ms| since_ms + self.settings.claim_timeout_ms);
            let is_due =
                |due_ms| due_ms <= now_ms && held_ms.is_none_or(|held_ms| due_ms < held_ms);
            let mut later = self.told_later.borrow_mut();
            let due = later.extract_if(|_, due_ms| is_due(*due_ms));
            let due: Vec<Arc<str>> = due.map(|(filter, _)| filter).collect();
            (self.ending.borrow_mut()).extend(due.iter().cloned());
            (self.untold.borrow_mut()).extend(due);
            self.untold_arrived.notify_one();
        }
    }

    /// Tells it, again and again until NATS has it.
    pub(super) async fn tell_interest(self: Rc<Self>) {
        let mut retry = Retry::new();
        // NATS has one entry for each filter: this start is not to replace what it has not read.
        while !self.status.knows_nodes.load(Ordering::Acquire) {
            self.untold_arrived.notified().await;
        }
        loop {
            let filters: Vec<Arc<str>> = {
                let mut untold = self.untold.borrow_mut();
                let count = untold.len().min(self.settings.maximum_in_flight);
                let mut filters: Vec<_> = untold.drain(..count).collect();
                // Each is told as it is now.
                filters.sort_unstable();
                filters.dedup();
                filters
            };
            if filters.is_empty() {
                self.untold_arrived.notified().await;
                continue;
            }
            let failed = self.tell(filters).await;
            if failed.is_empty() {
                retry = Retry::new();
                continue;
            }
            self.status.failed_attempts.add(1);
            self.untold.borrow_mut().extend(failed);
            retry.wait().await;
        }
    }

    /// Tells what sessions want that are nobody's now, and were another node's: NATS has lost it, and that node does
    /// not tell.
    pub(super) async fn tell_interest_of_others(self: Rc<Self>) {
        loop {
            self.streams.is_interest_lost.notified().await;
            let all = self.table.borrow().durable_of_absent();
            for (node, incarnation, filter) in all {
                let line = Self::line(incarnation, Interest::Durable, &filter);
                let subject = subjects::want(&node, &digest_of(&filter));
                let mut retry = Retry::new();
                // Where there is one, the node has said it by itself.
                while self
                    .compare_and_set(subject.clone(), 0, line.clone().into_bytes(), None)
                    .await
                    == Err(WriteError::Unknown)
                {
                    retry.wait().await;
                }
            }
        }
    }

    /// NATS has an entry of this process for a filter. It is told again where it is not what readers want: a server that
    /// was killed may have an earlier one again.
    pub(super) fn mend_told(&self, filter: &str, found: Interest) {
        let own = (self.own.borrow().get(filter).copied()).unwrap_or_default();
        let is_right = self.table.borrow().told(filter, own) == found;
        if !is_right && !self.told_later.borrow().contains_key(filter) {
            self.untold.borrow_mut().push(filter.into());
            self.untold_arrived.notify_one();
        }
    }

    /// Tells some filters, and returns those that NATS does not have.
    async fn tell(&self, filters: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let writes = filters.into_iter().map(|filter| {
            let own = (self.own.borrow().get(&filter).copied()).unwrap_or_default();
            let interest = self.table.borrow().told(&filter, own);
            let line = Self::line(self.incarnation.get(), interest, &filter);
            let subject = subjects::want(&self.settings.node, &digest_of(&filter));
            let entry = as_last(PublishMessage::build().payload(line.into()));
            let whole = self.settings.subject(&subject);
            ((filter, subject, interest), whole, entry)
        });
        let (mut failed, mut ended) = (Vec::new(), Vec::new());
        for ((filter, subject, told), answer) in self.publish_all(writes).await {
            let Ok(sequence) = answer else {
                failed.push(filter);
                continue;
            };
            if told == Interest::None {
                // A node that was cut off for longer sends messages for nothing.
                self.note_end(NODES, &subject, sequence);
            }
            let mut own = self.own.borrow_mut();
            let interest = own.get(&filter).copied().unwrap_or_default();
            if interest == Interest::None {
                own.remove(&filter);
            }
            let is_held = self.told_later.borrow().contains_key(&filter);
            if self.ending.borrow_mut().remove(&filter) && !is_held && interest != Interest::Durable
            {
                ended.push(filter);
            }
        }
        if !ended.is_empty() {
            self.post(0, ToShard::Released(ended));
        }
        failed
    }
}

/// A token for a filter of any length: the first half of its SHA-256, in hexadecimal digits.
pub(super) fn digest_of(text: &str) -> String {
    use std::fmt::Write as _;

    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    let mut token = String::with_capacity(32);
    for byte in &digest.as_ref()[..16] {
        let _ = write!(token, "{byte:02x}");
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::offline;
    use crate::settings::Settings;

    #[tokio::test]
    async fn an_entry_of_old_is_told_again_as_it_is_now() {
        let core = offline::core(Settings::sample(None), |_| offline::Silent).await;
        core.note_interest(vec![("a".into(), Interest::Acknowledged)]);
        core.untold.borrow_mut().clear();
        core.mend_told("a", Interest::Acknowledged);
        core.mend_told("nobody's", Interest::None);
        assert!(core.untold.borrow().is_empty(), "NATS has what is so");
        core.mend_told("nobody's", Interest::Durable);
        core.mend_told("a", Interest::AtMostOnce);
        assert_eq!(*core.untold.borrow(), ["nobody's".into(), "a".into()]);
    }
}
