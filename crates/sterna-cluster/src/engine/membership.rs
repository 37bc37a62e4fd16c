//! Saying that this node is there, hearing who else is, and following what they want.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;
use sterna_broker::Interest;

use super::streams::NODES;
use super::{Core, Ended, Retry};
use crate::conditions::Remark;
use crate::owners::{WriteError, incarnation_in};
use crate::port::ToShard;
use crate::subjects::{self, SWEPT};
use crate::table::{Event, Presence};
use crate::wire::{self, Versions};

/// Filters that one letter to the first shard has at most.
const CHANGES: usize = 1_000;

/// How often is looked whether what other nodes want is read by the connection that there is.
const WAY_LOOK: Duration = Duration::from_millis(100);

/// Time after which shards are told again that they know what other nodes want.
const TOLD_AGAIN: Duration = Duration::from_secs(1);

/// How often is looked whether shards know what other nodes want.
const PAUSE: Duration = Duration::from_millis(1);

/// A node's word, as a line of text.
pub(super) const FORM: &str = "1";

impl Core {
    /// Says again and again that this node is there, and looks who was not heard of.
    pub(super) async fn beat(self: Rc<Self>) {
        let beat = Duration::from_millis((self.settings.lease_ms / 4).max(50));
        let mut heard_by = None;
        let mut last_ms = self.now_ms();
        loop {
            let is_connected = self.status.is_connected();
            // A node that has just joined, was cut off, or stood still, has heard nobody before.
            let stood_still = self.now_ms() - last_ms > self.settings.lease_ms / 2;
            // It may have been cut off and be back since the last beat: then its connection is another.
            let way = is_connected.then(|| self.status.connects.get());
            if (is_connected && way != heard_by) || stood_still {
                self.hearing.begins(self.now_ms());
                self.table.borrow_mut().begins_to_hear(self.now_ms());
            }
            heard_by = way;
            last_ms = self.now_ms();
            if is_connected {
                if self.status.rights.has_answers() {
                    self.say("here").await;
                }
                self.look_at_others();
            }
            self.tell_changes();
            self.look_at_gate();
            tokio::select! {
                () = tokio::time::sleep(beat) => {}
                () = self.connected.notified() => {}
            }
        }
    }

    /// Looks who was not heard of. A node that may not hear, or is deaf, gives up nobody.
    fn look_at_others(&self) {
        let (now_ms, lease_ms) = (self.now_ms(), self.settings.lease_ms);
        let is_deaf = !self.hearing.hears_itself(now_ms, lease_ms);
        let own = (self.settings).subject(&subjects::alive(&self.settings.node));
        let is_news = self
            .status
            .conditions
            .set_deaf(is_deaf.then(|| own.clone()));
        if is_news {
            if is_deaf {
                tracing::warn!(
                    subject = own,
                    "NATS does not bring this node's own words back"
                );
            } else {
                tracing::info!("this node hears itself again");
            }
        }
        let mut table = self.table.borrow_mut();
        let leases = (lease_ms, self.settings.session_lease_ms);
        let unheard = self.hearing.unheard(now_ms, leases, table.away());
        let named = Some(unheard.join(", ")).filter(|named| !named.is_empty());
        let remark = named.map(|named| {
            format!(
                "this node does not hear {named}, which lives: its marks come, and its words do not"
            )
        });
        let text = remark.clone().unwrap_or_default();
        if self.status.conditions.remark(Remark::Unheard, remark) && !text.is_empty() {
            tracing::warn!("{text}");
        }
        let judges = !is_deaf && unheard.is_empty() && self.status.has_rights();
        if table.set_judges(judges) {
            // Silence of before was this node's own deafness.
            table.begins_to_hear(now_ms);
        }
        table.look(now_ms);
    }

    /// The line that this node says of itself.
    pub(super) fn own_line(&self, word: &str) -> String {
        format!("{FORM} {} {word} {}", self.incarnation.get(), self.reads())
    }

    async fn say(&self, word: &str) {
        let subject = (self.settings).subject(&subjects::alive(&self.settings.node));
        let line = self.own_line(word);
        // The next word follows soon.
        let said = self.client.publish(subject, line.into());
        if tokio::time::timeout(Duration::from_millis(self.settings.answer_timeout_ms), said)
            .await
            .is_err()
        {
            tracing::debug!("NATS takes no word of this node");
        }
    }

    /// Tells other nodes that this one leaves.
    pub(super) async fn say_goodbye(&self) {
        if self.status.is_connected() && self.incarnation.get() != 0 {
            self.say("leaving").await;
            let flushed = self.client.flush();
            let _ = tokio::time::timeout(Duration::from_millis(500), flushed).await;
        }
    }

    /// Hears what other nodes say of themselves.
    pub(super) async fn hear(self: Rc<Self>) {
        let hear = async |word: async_nats::Message| {
            self.heard(word.subject.as_str(), &word.payload);
        };
        self.hear_each(&subjects::alive("*"), hear).await;
    }

    pub(super) fn heard(&self, subject: &str, payload: &[u8]) {
        if payload.is_empty() {
            // A trial of rights.
            return;
        }
        let node = subject.rsplit('.').next().unwrap_or_default();
        let line = std::str::from_utf8(payload).unwrap_or_default();
        let mut words = line.split(' ');
        let (form, incarnation, word) = (words.next(), words.next(), words.next());
        let incarnation = incarnation.and_then(incarnation_in);
        let reads = words.next().and_then(Versions::parse);
        let (Some(FORM), Some(incarnation), Some(word), Some(reads)) =
            (form, incarnation, word, reads)
        else {
            tracing::debug!(node, line, "a node says what this one does not understand");
            return;
        };
        if *node == *self.settings.node && incarnation == self.incarnation.get() {
            self.hearing.heard_itself(self.now_ms());
        }
        let is_leaving = word == "leaving";
        (self.table.borrow_mut()).heard(self.now_ms(), node, incarnation, is_leaving, reads);
        self.tell_changes();
    }

    /// Follows what all nodes want.
    pub(super) async fn follow_nodes(self: Rc<Self>) {
        let mut retry = Retry::new();
        loop {
            let Err(why) = self.follow_nodes_once().await;
            self.status.hears_no_nodes();
            self.look_at_gate();
            tracing::debug!(why, "what other nodes want is read anew");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    async fn follow_nodes_once(&self) -> Result<Infallible, String> {
        let (filter, start) = (subjects::want("*", "*"), DeliverPolicy::LastPerSubject);
        let connects = self.status.connects.get();
        let mut entries = self.follow(NODES, Some(&filter), start).await?;
        if entries.waiting == 0 {
            self.knows_nodes(connects).await;
        }
        let mut old = entries.waiting;
        let mut looks = tokio::time::interval(WAY_LOOK);
        loop {
            let entry = tokio::select! {
                entry = entries.next() => entry?,
                _ = looks.tick() => {
                    if self.status.is_connected() && self.status.connects.get() != connects {
                        return Err("the connection is another".to_owned());
                    }
                    // After rights that were missing, or deafness.
                    if self.status.hears_nodes() && !self.gate.knows_wanted() {
                        return Err("shards have forgotten it".to_owned());
                    }
                    continue;
                }
                () = self.has_room.notified() => {
                    return Err("there is room for a node that was left out".to_owned());
                }
            };
            self.read_entry(&entry.subject, &entry.payload, old > 0);
            old = old.saturating_sub(1);
            if entry.pending == 0 {
                self.tell_changes();
                self.knows_nodes(connects).await;
            }
        }
    }

    /// The sessions of a process that is gone are all taken over, or have ended.
    fn was_swept(&self, node: &str, incarnation: Option<u64>) {
        let Some(incarnation) = incarnation else {
            return;
        };
        let left = self.table.borrow_mut().swept(node, incarnation);
        self.forget_need(node, incarnation);
        if *node != *self.settings.node {
            return;
        }
        // From now on NATS is to have what this start wants, and no more.
        let mut untold = self.untold.borrow_mut();
        untold.extend(left);
        if incarnation >= self.incarnation.get() {
            // It was taken for gone, and is not: what it wants holds all the same.
            untold.extend(self.own.borrow().keys().cloned());
        }
        self.untold_arrived.notify_one();
    }

    /// Tells all nodes that nobody has anything any more of a process that is gone.
    pub(super) async fn tell_swept(&self, node: &str, incarnation: u64) {
        let line = format!("{FORM} {incarnation} {SWEPT} ");
        // Nodes that start later read the last one alone.
        let is_later = |told: &Bytes| {
            let told = std::str::from_utf8(told)
                .unwrap_or_default()
                .split(' ')
                .nth(1);
            told.and_then(incarnation_in)
                .is_some_and(|told| told > incarnation)
        };
        let subject = subjects::want(node, SWEPT);
        self.write_unless(NODES, &subject, line.as_bytes(), is_later)
            .await;
    }

    /// Removes from NATS what processes of a node up to an incarnation have told of their readers. A word that they are
    /// swept is to follow: a node that reads the last of it at this moment waits for one more entry.
    pub(super) async fn forget_wants(&self, node: &str, incarnation: u64) {
        let mut retry = Retry::new();
        // The incarnation is the place of the process's entering, and all that it has told is behind that. So a later
        // process enters behind this write, or has entered already.
        let first_to_stay = loop {
            let word = b"1".to_vec();
            let written = self.compare_and_set(subjects::join(node), incarnation, word, None);
            match written.await {
                Ok(position) => break position,
                Err(WriteError::Conflict) => break incarnation + 1,
                Err(WriteError::Unknown) => retry.wait().await,
            }
        };
        let wants = self.settings.subject(&subjects::want(node, "*"));
        loop {
            if let Ok(stream) = self.stream(NODES).await {
                let purge = stream.purge().filter(wants.as_str());
                if purge.sequence(first_to_stay).await.is_ok() {
                    break;
                }
            }
            retry.wait().await;
        }
    }

    /// Notes that it is known what other nodes want, when shards know it, too: the gate opens after that. `connects` is
    /// the connection with which the reading began.
    async fn knows_nodes(&self, connects: u64) {
        if self.status.hears_nodes() {
            return;
        }
        self.gate.forget_wanted();
        loop {
            self.post(0, ToShard::WantedIsWhole);
            // It may be forgotten at this moment, for it was not heard for too long.
            let known = tokio::time::timeout(TOLD_AGAIN, self.wait_for_wanted());
            if known.await.is_ok() {
                break;
            }
        }
        self.status.knows_nodes_since(connects);
        self.look_at_gate();
        self.untold_arrived.notify_one();
    }

    /// Waits until shards know what other nodes want.
    pub(super) async fn wait_for_wanted(&self) {
        while !self.gate.knows_wanted() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// An entry is one line: the form, the incarnation, how much is wanted, and the filter. `is_old` says whether it was
    /// there before this reading began.
    fn read_entry(&self, subject: &str, payload: &[u8], is_old: bool) {
        let node = subject.split('.').nth(3).unwrap_or_default();
        let line = std::str::from_utf8(payload).unwrap_or_default();
        let mut words = line.splitn(4, ' ');
        let (form, incarnation) = (words.next(), words.next());
        let incarnation = incarnation.and_then(incarnation_in);
        let interest = match words.next() {
            Some("0") => Some(Interest::None),
            Some("1") => Some(Interest::AtMostOnce),
            Some("2") => Some(Interest::Acknowledged),
            Some("3") => Some(Interest::Durable),
            Some(SWEPT) => return self.was_swept(node, incarnation),
            _ => None,
        };
        let (Some(FORM), Some(incarnation), Some(interest), Some(filter)) =
            (form, incarnation, interest, words.next())
        else {
            return self.cannot_read("interest of a node", subject, "its form is not known");
        };
        let is_own = *node == *self.settings.node && incarnation == self.incarnation.get();
        if is_old && is_own {
            self.mend_told(filter, interest);
        }
        (self.table.borrow_mut()).wants(self.now_ms(), node, incarnation, filter, interest);
    }

    /// The line of an entry.
    pub(super) fn line(incarnation: u64, interest: Interest, filter: &str) -> String {
        let level = match interest {
            Interest::None => 0,
            Interest::AtMostOnce => 1,
            Interest::Acknowledged => 2,
            Interest::Durable => 3,
        };
        format!("{FORM} {incarnation} {level} {filter}")
    }

    /// Tells the shards what has changed, and the log who came and went.
    pub(super) fn tell_changes(&self) {
        let mut table = self.table.borrow_mut();
        let events = table.take_events();
        for event in &events {
            match event {
                Event::Came { node } => {
                    tracing::info!(node = &**node, "a node is here");
                    self.node_came.notify_one();
                }
                Event::Missed { node } => {
                    tracing::warn!(node = &**node, "a node is not heard of");
                }
                Event::Went { node } => {
                    tracing::warn!(node = &**node, "a node is gone; nothing waits for it");
                }
                Event::TooMany { node } => {
                    tracing::error!(
                        node = &**node,
                        "the cluster has too many nodes for this one"
                    );
                }
                Event::HasRoom => self.has_room.notify_one(),
                Event::Unread { node, reads } => tracing::error!(
                    node = &**node,
                    %reads,
                    own = %table.reads(),
                    "a node joined that reads no version of the wire form which this one writes: it is left out"
                ),
                Event::Unfit { node, reads } => {
                    if !self.status.is_unfit.swap(true, Ordering::AcqRel) {
                        tracing::error!(
                            node = &**node,
                            %reads,
                            own = %table.reads(),
                            "a node that was here first reads no version of the wire form which this one writes: \
                             this one takes no part"
                        );
                        self.end(Ended::LeftOut(format!(
                            "the node {node} was in the cluster first, and reads no version of the wire form \
                             that this one writes"
                        )));
                    }
                }
                Event::Superseded => {
                    if !self.status.is_superseded.swap(true, Ordering::AcqRel) {
                        tracing::error!(
                            node = self.settings.node,
                            "another process joined the cluster with this node's name: this one takes no \
                             part any more"
                        );
                        self.end(Ended::LeftOut(format!(
                            "another process joined the cluster with this node's name, {}",
                            self.settings.node
                        )));
                    }
                }
            }
        }
        loop {
            let changes = table.take_changes(CHANGES);
            if changes.is_empty() {
                break;
            }
            self.post(0, ToShard::Wanted(changes));
        }
        let status = &self.status;
        status.nodes_here.set(table.count(Presence::Here) as u64);
        status.nodes_away.set(table.count(Presence::Away) as u64);
        status.filters.set(table.filters() as u64);
        drop(table);
        self.note_roster();
        // NATS may take less than before.
        let has_room = self.batch_bytes() >= wire::BRIEF_BATCH_BYTES;
        self.gate.set_takes_brief(has_room);
        if !events.is_empty() {
            self.look_at_gate();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::engine::offline;
    use crate::settings::Settings;

    /// Between two beats the way is lost, and is back.
    #[tokio::test]
    async fn a_node_that_was_cut_off_between_two_beats_has_heard_nobody() {
        let settings = Settings {
            lease_ms: 60_000,
            ..Settings::sample(None)
        };
        let mut core = offline::core(settings, |_| offline::Silent).await;
        // It has run for a lease.
        core.started -= Duration::from_millis(core.settings.lease_ms);
        let reads = Versions::parse("1-2").expect("versions");
        core.table.borrow_mut().set_reads(reads);
        let core = Rc::new(core);
        core.status.way_is_back();
        let mut beat = pin!(Rc::clone(&core).beat());
        assert!(beat.as_mut().now_or_never().is_none());
        offline::has_heard_all(&core);
        assert_eq!(core.version(), 2);
        core.status.way_is_lost();
        core.status.way_is_back();
        core.connected.notify_one();
        assert!(beat.as_mut().now_or_never().is_none());
        assert_eq!(core.version(), 1);
    }

    /// A whole record and the brief ones behind it are never apart.
    #[tokio::test]
    async fn no_record_is_brief_where_a_batch_may_not_have_all_that_stay_together() {
        for (batch_bytes, may_be_brief) in [(1_000, false), (10_000, false), (12_000, true)] {
            let settings = Settings {
                batch_bytes,
                ..Settings::sample(None)
            };
            let core = offline::core(settings, |_| offline::Silent).await;
            core.tell_changes();
            assert_eq!(core.gate.takes_brief(), may_be_brief, "{batch_bytes}");
        }
    }
}
