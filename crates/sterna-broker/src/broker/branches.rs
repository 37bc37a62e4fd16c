//! Shared subscriptions of a cluster: a node's branches, and what branches and roots tell each other. See
//! [`far_group`](crate::far_group).

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Broker;
use super::browse::PAGE;
use super::roots::Told;
use crate::api::{DoorState, SessionKey};
use crate::far_group::{
    Back, Given, GroupLetter, Heard, Looking, Owner, Peer, Word, decode, encode,
};
use crate::mail::Letter;
use crate::name::SessionName;
use crate::nodes::{Entry, NIL, Phase};
use crate::records::HIGHEST_PLACE;
use crate::session::NEVER_MS;

/// Intervals that a root has for its answer before a branch looks for it again.
const ANSWER_INTERVALS: u64 = 4;

/// Numbers of attendances that a process has for itself. Letters go to a node, and those to a process that has died come
/// to the next, which is to take none of them for its own.
const ATTENDANCES: u64 = 1 << 24;

/// Something that happened to the session of a root.
#[derive(Clone, Debug)]
pub(super) enum RootTold {
    /// It is here.
    Opened {
        group: Arc<str>,
        session: SessionKey,
    },
    /// It is this node's no more, or could not be had.
    Lost {
        group: Arc<str>,
        session: SessionKey,
    },
    /// It is this node's, for its node is gone.
    Adopted { group: Arc<str> },
    /// The group is a queue that has rules on this node, or has got others.
    Declared { group: Arc<str> },
}

/// A shard's part.
#[derive(Debug, Default)]
pub(super) struct Far {
    /// This process; `None` before it has joined.
    pub(super) own: Option<Peer>,
    /// Processes that may be sure of something; `None` where that is not known.
    sure: Option<Vec<Peer>>,
    /// Time for which a group waits for members of nodes that are gone.
    pub(super) linger_ms: u64,
    /// How often this process was not sure of anything.
    lapses: u64,
    was_unsure: bool,
    /// The last attendance of a branch. Processes of the node before this one had lower ones.
    attendance: u64,
    pub(super) letters: Vec<GroupLetter>,
    /// Words of this node to itself.
    words: VecDeque<(Arc<str>, Word)>,
    pub(super) told: VecDeque<RootTold>,
    /// Roots with something that is to be kept before they go on.
    pub(super) unkept: Vec<Arc<str>>,
    /// Roots with messages for other nodes in this turn.
    pub(super) giving: Vec<Arc<str>>,
    /// Groups whose messages may be others' by now, until their roots say which.
    doubted: FxHashSet<u32>,
    /// Sessions with such a message first in their queue: slot and generation.
    doubting: Vec<(u32, u32)>,
    /// Queues that other nodes have and this one has not declared.
    pub(super) found: Vec<Arc<str>>,
    /// Sessions that were other nodes' and go on here.
    pub(super) adopted: Vec<SessionName>,
    /// Queues of roots that have begun on this shard.
    pub(super) queues_begun: u32,
    /// Processes whose members look at queues of this shard, by numbers.
    pub(super) lookers: FxHashMap<u32, (Arc<str>, Peer, Looking)>,
    pub(super) next_looker: u32,
    /// When there is something to do; 0 for nothing.
    due_ms: u64,
}

impl Far {
    pub(super) fn wake_by(&mut self, at_ms: u64) {
        if at_ms != NEVER_MS && (self.due_ms == 0 || at_ms < self.due_ms) {
            self.due_ms = at_ms.max(1);
        }
    }

    pub(super) fn has_words(&self) -> bool {
        !self.words.is_empty() || !self.told.is_empty()
    }

    /// Counts an attendance of a branch.
    fn next_attendance(&mut self) -> u64 {
        let incarnation = self.own.as_ref().map_or(0, |own| own.incarnation);
        let first = incarnation.saturating_mul(ATTENDANCES);
        self.attendance = self.attendance.max(first.min(HIGHEST_PLACE / 2)) + 1;
        self.attendance
    }

    /// Whether a process may be sure of something.
    pub(super) fn may_be_sure(&self, peer: &Peer) -> bool {
        (self.sure.as_ref())
            .is_none_or(|sure| sure.contains(peer) || self.own.as_ref() == Some(peer))
    }
}

impl<P: DoorState> Broker<P> {
    // Calls for the caller.

    /// Tells which process this is, and which others may be sure of their messages: `None` where that is not known.
    /// Messages of all other processes are given to others. `linger_ms` is the time in which the members of a node
    /// that is gone come to other nodes. To be called on all shards.
    pub fn set_roll(&mut self, now_ms: u64, own: Peer, sure: Option<Vec<Peer>>, linger_ms: u64) {
        self.far.own = Some(own);
        let before = std::mem::replace(&mut self.far.sure, sure).unwrap_or_default();
        self.far.linger_ms = linger_ms;
        let new = self.far.sure.iter().flatten();
        let new = new.filter(|peer| !before.contains(peer)).cloned();
        let new: Vec<Peer> = new.collect();
        self.tell_of_queues(&new);
        let far = &self.far;
        let mut orphans = Vec::new();
        for (name, branch) in self.queues.branches.iter_mut() {
            let is_gone = (branch.owner.as_ref()).is_none_or(|owner| !far.may_be_sure(&owner.peer));
            if is_gone {
                branch.owner = None;
                branch.is_welcome = false;
                branch.seek_at_ms = now_ms;
                orphans.push(Arc::clone(name));
            }
        }
        for name in orphans {
            self.queues.branches.touch_named(&name);
        }
        self.drop_gone_peers(now_ms);
        self.finish(now_ms);
    }

    /// Says whether this node is sure of what it has, and how often it was not. While it is not, no message of a
    /// shared subscription is sent or given.
    pub fn look_at_fence(&mut self, now_ms: u64, is_unsure: bool, lapses: u64) {
        self.set_unsure(is_unsure);
        let was_unsure = std::mem::replace(&mut self.far.was_unsure, is_unsure);
        let has_lapsed = std::mem::replace(&mut self.far.lapses, lapses) != lapses;
        if has_lapsed || (is_unsure && !was_unsure) {
            self.catch_up();
            self.far.doubted.extend(self.index.groups());
        }
        if !is_unsure && (has_lapsed || was_unsure) {
            let names: Vec<_> = (self.queues.branches.iter())
                .filter(|(_, branch)| branch.owner.is_some())
                .map(|(name, _)| Arc::clone(name))
                .collect();
            for name in names {
                self.attend_root(now_ms, &name);
            }
            self.roots_kept();
            self.list_all_roots();
            self.finish(now_ms);
        }
    }

    /// The letters of groups for other nodes, in order. To be called at the end of a turn.
    pub fn take_group_letters(&mut self) -> Vec<GroupLetter> {
        if self.queues.branches.reporting.is_empty()
            && self.far.giving.is_empty()
            && self.far.letters.is_empty()
        {
            return Vec::new();
        }
        for name in std::mem::take(&mut self.queues.branches.reporting) {
            if let Some(branch) = self.queues.branches.get_mut(&name) {
                branch.is_reporting = false;
                self.report_to_root(&name);
            }
        }
        self.write_given();
        std::mem::take(&mut self.far.letters)
    }

    /// A letter of another node, for the shard that is the home of its group
    /// ([`Share::home`](crate::Share::home)). False where it cannot be read.
    pub fn group_letter(&mut self, now_ms: u64, node: &Arc<str>, record: &[u8]) -> bool {
        let Some(Heard {
            group,
            from,
            is_queue,
            word,
        }) = decode(node, record)
        else {
            return false;
        };
        self.catch_up();
        if is_queue {
            self.queue_is_found(&group);
        }
        if is_queue || !self.is_unknowing(&group, &from, &word) {
            self.heard(now_ms, &group, &from, word);
        }
        self.finish(now_ms);
        true
    }

    /// Letters of a node did not arrive. It and this node tell each other anew which messages their members hold.
    pub fn group_letters_missed(&mut self, now_ms: u64, node: &str) {
        let attends = self.queues.branches.iter().filter(|(_, branch)| {
            let owner = branch.owner.as_ref();
            owner.is_some_and(|owner| *owner.peer.node == *node)
        });
        let names: Vec<_> = attends.map(|(name, _)| Arc::clone(name)).collect();
        for name in names {
            self.attend_root(now_ms, &name);
        }
        self.greet_peers(node);
        self.finish(now_ms);
    }

    // Between branches and roots.

    /// Tells a process something about a group; all others and this one for `None`.
    pub(super) fn tell_of_group(&mut self, group: &Arc<str>, to: Option<&Peer>, word: Word) {
        let Some(own) = &self.far.own else {
            return;
        };
        let is_queue = self.queues.branches.is_queue(group);
        if to != Some(own) {
            self.far.letters.push(GroupLetter {
                to: to.map(|peer| Arc::clone(&peer.node)),
                record: encode(group, own.incarnation, is_queue, &word),
            });
        }
        if to.is_none_or(|to| to == own) {
            self.far.words.push_back((Arc::clone(group), word));
        }
    }

    /// Does the first of what this node has told itself.
    pub(super) fn hear_own(&mut self, now_ms: u64) {
        if let Some(told) = self.far.told.pop_front() {
            self.root_told(now_ms, told);
        } else if let Some((group, word)) = self.far.words.pop_front()
            && let Some(own) = self.far.own.clone()
        {
            self.heard(now_ms, &group, &own, word);
        }
    }

    fn heard(&mut self, now_ms: u64, group: &Arc<str>, from: &Peer, word: Word) {
        match word {
            Word::Seek => self.root_is_sought(group, from),
            Word::Hello { epoch } => self.root_is_known(now_ms, group, from, epoch),
            Word::Full { epoch, is_full } => self.queue_is_full(now_ms, group, epoch, is_full),
            Word::Look {
                epoch,
                looking,
                limit,
            } => {
                if self.is_root_in(group, epoch) {
                    self.looked_at_from(now_ms, group, from, looking, limit.min(PAGE));
                }
            }
            Word::Seen {
                looking, messages, ..
            } => self.has_seen(group, looking, messages),
            Word::Ask {
                epoch,
                attendance,
                number,
            } => {
                if self.is_root_in(group, epoch) {
                    self.asked_by_branch(group, from, attendance, number);
                }
            }
            Word::Done {
                epoch,
                attendance,
                number,
            } => {
                if self.is_own_attendance(group, from, epoch, attendance) {
                    self.recall_now(group, Some(number));
                }
            }
            Word::Welcome {
                epoch,
                attendance,
                void,
            } => {
                if self.is_own_attendance(group, from, epoch, attendance) {
                    self.branch_is_welcome(group, &void);
                }
            }
            Word::Give {
                epoch,
                attendance,
                messages,
            } => {
                // It does not hold messages that it does not take: it says so when it attends anew.
                if self.is_own_attendance(group, from, epoch, attendance) && !self.is_unsure() {
                    self.given(now_ms, group, messages);
                }
            }
            Word::Attend {
                epoch,
                attendance,
                held,
                settled,
                most,
                members,
            } => {
                if self.is_root_in(group, epoch) {
                    let told = Told {
                        attendance,
                        most,
                        members,
                        settled: &settled,
                    };
                    self.attended(now_ms, group, from, &told, &held);
                }
            }
            Word::Report {
                epoch,
                attendance,
                settled,
                returned,
                most,
                members,
            } => {
                if self.is_root_in(group, epoch) {
                    let told = Told {
                        attendance,
                        most,
                        members,
                        settled: &settled,
                    };
                    self.reported(now_ms, group, from, &told, returned);
                }
            }
            Word::Leave { epoch } => {
                if self.is_root_in(group, epoch) {
                    self.branch_left(now_ms, group, from);
                }
            }
        }
    }

    // A branch.

    /// Sees to what has changed of a branch.
    pub(super) fn look_after_branch(&mut self, now_ms: u64, name: &Arc<str>) {
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        branch.is_dirty = false;
        if !branch.is_welcome && !branch.recalls.is_empty() {
            // Nobody answers any more.
            self.recall_now(name, None);
        }
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        let id = branch.id;
        if let Some(id) = id {
            self.queues.return_leftovers(name, id);
        }
        let room = self.queues.room_of_branch(name);
        let members = self.queues.members_of_branch(name);
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        let most = branch.received + room;
        let has_news = most != branch.told
            || (branch.is_queue && members != branch.told_members)
            || !branch.settled.is_empty()
            || !branch.returned.is_empty();
        let has_ended = id.is_none() && branch.held.is_empty();
        if id.is_none() && !has_ended && branch.gives_up_at_ms == 0 {
            branch.gives_up_at_ms = now_ms + self.far.linger_ms;
            self.far.wake_by(branch.gives_up_at_ms);
        } else if id.is_some() {
            branch.gives_up_at_ms = 0;
        }
        let Some(Owner { peer, epoch }) = branch.owner.clone() else {
            if has_ended {
                self.queues.branches.remove(name);
            } else if branch.seek_at_ms <= now_ms {
                self.seek_root(now_ms, name);
            } else {
                let at_ms = branch.seek_at_ms;
                self.far.wake_by(at_ms);
            }
            return;
        };
        if has_ended && branch.is_queue && !branch.is_welcome && !branch.returned.is_empty() {
            // The root is to know why they came back.
            return;
        }
        // Before that nothing is told, and what is new since it attended is told then.
        if branch.is_welcome {
            branch.told = most;
            branch.told_members = members;
        }
        if has_ended {
            self.report_to_root(name);
            self.queues.branches.remove(name);
            self.tell_of_group(name, Some(&peer), Word::Leave { epoch });
        } else if has_news && branch.is_welcome {
            if self.far.own.as_ref() == Some(&peer) {
                self.report_to_root(name);
            } else {
                self.queues.branches.report(name);
            }
        }
    }

    /// Tells the root what is new.
    pub(super) fn report_to_root(&mut self, name: &Arc<str>) {
        let most_bytes = self.letter_room();
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        let Some(Owner { peer, epoch }) = branch.owner.clone().filter(|_| branch.is_welcome) else {
            return;
        };
        let mut words = Vec::with_capacity(1);
        loop {
            let (settled, returned) = branch.take_news(most_bytes);
            let is_last = branch.returned.is_empty();
            words.push(Word::Report {
                epoch,
                attendance: branch.attendance,
                settled,
                returned,
                // Nothing is given before all of it is back in its place.
                most: if is_last {
                    branch.told
                } else {
                    branch.received
                },
                members: branch.told_members,
            });
            if is_last {
                break;
            }
        }
        for word in words {
            self.tell_of_group(name, Some(&peer), word);
        }
    }

    /// Bytes of the largest message that a letter can have.
    fn letter_room(&self) -> u64 {
        (self.peers.as_ref()).map_or(u64::MAX, |peers| peers.gate.largest_body_bytes())
    }

    /// Looks for the root of a branch that has none: on this node, then on others, if they have none either here.
    fn seek_root(&mut self, now_ms: u64, name: &Arc<str>) {
        let at_ms = now_ms + self.limits().group_seek_interval_ms;
        if let Some(branch) = self.queues.branches.get_mut(name) {
            branch.seek_at_ms = at_ms;
        }
        self.far.wake_by(at_ms);
        if let Some(root) = self.roots.get(name) {
            let epoch = root.epoch;
            if root.is_known
                && let Some(own) = self.far.own.clone()
            {
                self.tell_of_group(name, Some(&own), Word::Hello { epoch });
            }
        } else if self.far.own.is_some() && !self.is_unsure() {
            self.claim_root(now_ms, name);
        }
    }

    /// A root is not this node's. Its branch looks for it on others.
    pub(super) fn root_is_elsewhere(&mut self, now_ms: u64, name: &Arc<str>) {
        let seek_at_ms = now_ms + self.limits().group_seek_interval_ms;
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        if (branch.owner.as_ref()).is_none_or(|owner| Some(&owner.peer) == self.far.own.as_ref()) {
            branch.owner = None;
            branch.is_welcome = false;
            branch.seek_at_ms = seek_at_ms;
            self.tell_of_group(name, None, Word::Seek);
            self.queues.branches.touch_named(name);
        }
    }

    /// A process says that it has the root.
    fn root_is_known(&mut self, now_ms: u64, name: &Arc<str>, from: &Peer, epoch: u64) {
        let Some(branch) = self.queues.branches.get_mut(name) else {
            // It may wait for this node.
            return self.tell_of_group(name, Some(from), Word::Leave { epoch });
        };
        let is_older = (branch.owner.as_ref()).is_some_and(|known| {
            epoch < known.epoch || (epoch == known.epoch && known.peer != *from)
        });
        if !is_older {
            let owner = Owner {
                peer: from.clone(),
                epoch,
            };
            let is_new = branch.owner.as_ref() != Some(&owner);
            branch.owner = Some(owner);
            if is_new {
                self.end_looks(name);
            }
            self.attend_root(now_ms, name);
        }
    }

    /// A member comes, or chooses anew: what others have refused may be for it.
    pub(super) fn is_for_new_member(&mut self, now_ms: u64, group: u32) {
        let branches = &self.queues.branches;
        if let Some(name) = branches.name(group).cloned()
            && branches.get(&name).is_some_and(|branch| branch.has_refused)
        {
            self.attend_root(now_ms, &name);
        }
    }

    /// A member has room again: messages that others have refused may be for it.
    pub(super) fn has_room_again(&mut self, now_ms: u64, group: u32) {
        let branches = &self.queues.branches;
        if let Some(name) = branches.name(group).cloned()
            && branches.get(&name).is_some_and(|branch| branch.is_starved)
        {
            self.attend_root(now_ms, &name);
        }
    }

    /// Tells the root what members hold, and begins to count anew.
    fn attend_root(&mut self, now_ms: u64, name: &Arc<str>) {
        let attendance = self.far.next_attendance();
        let seek_at_ms = now_ms + ANSWER_INTERVALS * self.limits().group_seek_interval_ms;
        let room = self.queues.room_of_branch(name);
        let members = self.queues.members_of_branch(name);
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        let Some(Owner { peer, epoch }) = branch.owner.clone() else {
            return;
        };
        branch.attendance = attendance;
        branch.is_welcome = false;
        branch.received = 0;
        branch.told_members = members;
        if !branch.is_queue {
            // It does not hold them, which says enough.
            branch.returned.clear();
        }
        // They are its own until it is welcome, and reports them. A new root knows of nothing that is out before that.
        let returned = branch.returned.iter().map(|back| back.position);
        let held: Vec<u64> = branch.held.iter().copied().chain(returned).collect();
        // Nothing is given before all of it is back in its place.
        branch.told = if branch.returned.is_empty() { room } else { 0 };
        branch.has_refused = false;
        branch.is_starved = false;
        branch.seek_at_ms = seek_at_ms;
        let word = Word::Attend {
            epoch,
            attendance,
            held,
            settled: std::mem::take(&mut branch.settled),
            most: branch.told,
            members,
        };
        let has_recalls = !branch.recalls.is_empty();
        self.far.wake_by(seek_at_ms);
        self.tell_of_group(name, Some(&peer), word);
        if has_recalls {
            self.queues.branches.touch_named(name);
        }
    }

    fn is_own_attendance(&self, name: &str, from: &Peer, epoch: u64, attendance: u64) -> bool {
        self.queues.branches.get(name).is_some_and(|branch| {
            let owner = branch.owner.as_ref();
            branch.attendance == attendance
                && owner.is_some_and(|owner| owner.peer == *from && owner.epoch == epoch)
        })
    }

    fn branch_is_welcome(&mut self, name: &Arc<str>, void: &[u64]) {
        let groups = self.queues.branches.ids(name);
        if let Some(branch) = self.queues.branches.get_mut(name) {
            branch.is_welcome = true;
            for position in void {
                branch.held.remove(position);
            }
        }
        self.queues.branches.touch_named(name);
        self.look_on(name);
        for shard in 0..self.directory.shards() {
            self.send(
                shard,
                Letter::Welcomed {
                    groups: groups.clone(),
                    void: void.to_vec(),
                },
            );
        }
    }

    fn given(&mut self, now_ms: u64, name: &Arc<str>, messages: Vec<Given>) {
        let Some(branch) = self.queues.branches.get_mut(name) else {
            return;
        };
        branch.received += messages.len() as u64;
        let id = branch.id;
        let hashing = self.directory.hashing();
        branch.held.extend(
            (messages.iter())
                .map(|given| given.position)
                .filter(|&at| at != 0),
        );
        for mut given in messages {
            if let Some(message) = Arc::get_mut(&mut given.message) {
                message.charge_large(&self.gauge);
            }
            match id {
                Some(id) => self.queues.enter_branch(now_ms, id, given, (name, hashing)),
                None if given.position != 0 => {
                    let back = Back::new(given.position, given.failures, given.redelivered);
                    self.queues.branches.give_back(name, back);
                }
                None => {}
            }
        }
        self.queues.branches.touch_named(name);
    }

    // On the shards of members.

    /// Whether a root has yet to say which messages of its group members here have.
    pub(super) fn has_doubts(&self) -> bool {
        !self.far.doubted.is_empty()
    }

    /// Whether the first message of a session's queue may be another member's by now. The session is listed again
    /// when it is known.
    pub(super) fn is_doubted(&mut self, slot: u32, node: u32) -> bool {
        if !self.has_doubts() {
            return false;
        }
        let entry = self.queues.nodes.entry(node);
        let is_doubted = entry
            .is_some_and(|entry| entry.group != NIL && self.far.doubted.contains(&entry.group));
        if is_doubted {
            let generation = self.queues.sessions[slot].generation;
            self.far.doubting.push((slot, generation));
        }
        is_doubted
    }

    /// The root of groups knows what members here have; some of it is others' by now.
    pub(super) fn welcomed(&mut self, groups: &[u32], void: &[u64]) {
        for group in groups {
            self.far.doubted.remove(group);
        }
        if !void.is_empty() {
            let slots: Vec<u32> = self.queues.sessions.open().map(|(slot, _)| slot).collect();
            for slot in slots {
                self.revoke(slot, groups, void);
            }
        }
        for (slot, generation) in std::mem::take(&mut self.far.doubting) {
            if let Some(session) = self.queues.session(slot, generation) {
                session.is_held = false;
                self.queues.list_if_ready(slot);
            }
        }
    }

    /// Takes messages of groups from a session that others have by now. Those that were sent to its client settle
    /// nothing.
    fn revoke(&mut self, slot: u32, groups: &[u32], void: &[u64]) {
        let is_void = |entry: &Entry| {
            groups.contains(&entry.group) && void.contains(&entry.position) && !entry.is_owned
        };
        let mut node = self.queues.sessions[slot].pending.first();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            if self.queues.nodes.entry(node).is_some_and(is_void)
                && let Some(entry) = self.queues.remove_pending(slot, node)
            {
                self.queues.note_owed(slot, &entry, false);
            }
            node = next;
        }
        let mut node = self.queues.sessions[slot].ledger.first();
        while node != NIL {
            let next = self.queues.nodes.next(node);
            if let Some(entry) = self.queues.nodes.entry_mut(node)
                && entry.phase == Phase::Sent
                && is_void(entry)
            {
                let group = std::mem::replace(&mut entry.group, NIL);
                entry.position = 0;
                self.queues.owe_credit(slot, group);
            }
            node = next;
        }
    }

    // Time.

    /// When there is something to do for groups of a cluster.
    pub(super) fn far_due_ms(&self) -> Option<u64> {
        Some(self.far.due_ms).filter(|&at_ms| at_ms != 0)
    }

    pub(super) fn far_timeout(&mut self, now_ms: u64) {
        if self.far_due_ms().is_none_or(|at_ms| at_ms > now_ms) {
            return;
        }
        self.far.due_ms = 0;
        let seek_at_ms = now_ms + self.limits().group_seek_interval_ms;
        let mut sought = Vec::new();
        let mut touched = Vec::new();
        for (name, branch) in self.queues.branches.iter_mut() {
            if branch.gives_up_at_ms > now_ms {
                self.far.wake_by(branch.gives_up_at_ms);
            } else if branch.gives_up_at_ms != 0 {
                branch.give_up();
                touched.push(Arc::clone(name));
            }
            if branch.is_welcome {
                continue;
            }
            if branch.seek_at_ms > now_ms {
                self.far.wake_by(branch.seek_at_ms);
                continue;
            }
            if branch.owner.take().is_some() {
                branch.seek_at_ms = seek_at_ms;
                sought.push(Arc::clone(name));
            }
            touched.push(Arc::clone(name));
        }
        for name in sought {
            self.tell_of_group(&name, None, Word::Seek);
        }
        for name in touched {
            self.queues.branches.touch_named(&name);
        }
        self.say_full_again(now_ms);
        self.roots_timeout(now_ms);
        self.finish(now_ms);
    }
}
