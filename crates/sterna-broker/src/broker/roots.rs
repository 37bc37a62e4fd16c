//! Shared subscriptions of a cluster: the roots that this node has. See [`far_group`](crate::far_group).

use std::sync::Arc;

use super::Broker;
use super::branches::RootTold;
use crate::api::{
    DoorState, EvictReason, NEVER_EXPIRES_S, OpenSession, Opened, Outcome, RetainHandling,
    SessionKey, SubscribeOptions,
};
use crate::cursor::{Cursor, Reader};
use crate::directory::{Admission, Principal};
use crate::far_group::{
    Attendee, Back, Given, LETTER_BYTES, Peer, ROOT_CONSUMER, Root, RootRecord, Word,
    group_of_root, root_name,
};
use crate::message::Qos;
use crate::nodes::{List, NIL};
use crate::route::{RouteFlags, topics_of_shared};
use crate::session::{NEVER_MS, Subscription};
use crate::store::Committed;

/// The word of a branch about itself.
#[derive(Debug)]
pub(super) struct Told<'a> {
    pub(super) attendance: u64,
    /// How many messages it takes in this attendance.
    pub(super) most: u64,
    /// Of a queue: members that are connected.
    pub(super) members: u32,
    pub(super) settled: &'a [u64],
}

impl<P: DoorState> Broker<P> {
    /// Wants the root of a group for this node, if no node has it that may be sure of it.
    pub(super) fn claim_root(&mut self, now_ms: u64, group: &Arc<str>) {
        let request = OpenSession {
            name: root_name(group),
            clean_start: false,
            expiry_s: NEVER_EXPIRES_S,
            consumer: ROOT_CONSUMER,
            will: None,
            on_demand: false,
            selector: None,
        };
        // Where it is refused, the branch tries again.
        let Ok(opened) = self.open(now_ms, request) else {
            return;
        };
        let (Opened::Ready { session, .. } | Opened::Pending { session }) = opened;
        self.roots.insert(Arc::clone(group), Root::coming(session));
        if matches!(opened, Opened::Ready { .. }) {
            self.root_opened(now_ms, group, session);
        }
    }

    pub(super) fn root_told(&mut self, now_ms: u64, told: RootTold) {
        match told {
            RootTold::Opened { group, session } => self.root_opened(now_ms, &group, session),
            RootTold::Lost { group, session } => {
                if (self.roots.get(&group)).is_some_and(|root| root.session == session) {
                    if let Some(root) = self.roots.remove(&group) {
                        self.end_queue(&root);
                    }
                    self.root_is_elsewhere(now_ms, &group);
                }
            }
            RootTold::Adopted { group } => {
                if !self.roots.contains_key(&group) {
                    self.claim_root(now_ms, &group);
                }
            }
            RootTold::Declared { group } => self.queue_is_declared(now_ms, &group),
        }
    }

    fn root_opened(&mut self, now_ms: u64, group: &Arc<str>, session: SessionKey) {
        let is_it = (self.roots.get(group)).is_some_and(|root| root.session == session);
        if !is_it || self.queues.active_mut(session).is_none() {
            return;
        }
        let topics: Arc<str> = topics_of_shared(group).into();
        let subscriptions = &self.queues.sessions[session.slot].subscriptions;
        if subscriptions.get(&*topics).is_none() && !self.begin_root(session.slot, group, &topics) {
            return self.end_root(now_ms, group);
        }
        let records = self.take_records(session);
        if records.iter().any(|(key, _)| Self::is_record_of_queue(key)) {
            self.queue_is_found(group);
        }
        let is_queue = self.queues.branches.is_queue(group);
        let record = (records.iter()).find(|(key, _)| **key == *RootRecord::KEY);
        let before = record.and_then(|(_, value)| RootRecord::decode(value));
        let before = before.unwrap_or_default();
        let linger_ms = now_ms + self.far.linger_ms;
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        root.is_open = true;
        root.epoch = before.epoch + 1;
        // A queue does not end with its members.
        root.ends_at_ms = if is_queue { NEVER_MS } else { linger_ms };
        for peer in before.peers {
            if self.far.may_be_sure(&peer) {
                root.awaited.insert(peer);
            } else {
                root.ghosts.insert(peer, linger_ms);
            }
        }
        self.far.wake_by(linger_ms);
        if is_queue {
            self.begin_queue(group);
        }
        self.keep_root(group);
        self.far.unkept.push(Arc::clone(group));
        self.roots_kept();
    }

    /// Has a new root read what was published since its branch began: members have had their acknowledgements since then.
    /// False where there are as many subscriptions as may be.
    fn begin_root(&mut self, slot: u32, group: &Arc<str>, topics: &Arc<str>) -> bool {
        if !self
            .directory
            .add_subscription(Admission::Limited, Principal::BROKER)
        {
            return false;
        }
        let branch = self.queues.branches.get(group);
        let since = branch.map_or_else(|| self.queues.store.next_position(), |one| one.began_at);
        self.queues.sessions[slot].reader = Some(Box::new(Reader::restored(Cursor::at(since))));
        self.hold_log(since);
        let options = SubscribeOptions {
            qos: Qos::ExactlyOnce,
            retain_as_published: true,
            retain_handling: RetainHandling::Never,
            ..SubscribeOptions::default()
        };
        let subscription = Subscription {
            flags: RouteFlags::of(&options),
            group: NIL,
            context: None,
        };
        self.add_routes(slot, topics, false, subscription, Some(since));
        self.queues.write_cursor(slot);
        self.wake(slot);
        true
    }

    /// Keeps who may have messages of a root.
    pub(super) fn keep_root(&mut self, group: &Arc<str>) {
        let Some(root) = self.roots.get(group) else {
            return;
        };
        let (session, record) = (root.session, root.record().encode());
        self.keep(session, RootRecord::KEY, &record);
        let token = self.token();
        if let Some(root) = self.roots.get_mut(group) {
            root.token = token;
        }
    }

    /// Goes on with roots whose records are kept.
    pub(super) fn roots_kept(&mut self) {
        if self.is_unsure() || self.far.unkept.is_empty() {
            return;
        }
        let committed = self.queues.store.committed().synced;
        for group in std::mem::take(&mut self.far.unkept) {
            let Some(root) = self.roots.get_mut(&group).filter(|root| root.is_open) else {
                continue;
            };
            let (epoch, is_queue) = (root.epoch, root.queue.is_some());
            if !is_queue && self.queues.branches.is_queue(&group) {
                // It is said when it has its rules.
                continue;
            }
            let mut waits_for = None;
            let is_said = root.token <= committed;
            let becomes_known = is_said && !root.is_known;
            root.is_known |= is_said;
            if !is_said {
                waits_for = Some(root.token);
            }
            let mut welcome = Vec::new();
            for (peer, attendee) in &mut root.attendees {
                if attendee.is_welcome {
                    continue;
                }
                if attendee.token > committed {
                    waits_for = Some(attendee.token);
                    continue;
                }
                attendee.is_welcome = true;
                root.turns.push_back(peer.clone());
                let void = std::mem::take(&mut attendee.void);
                let attendance = attendee.attendance;
                welcome.push((peer.clone(), attendance, void));
            }
            if becomes_known {
                self.tell_of_group(&group, None, Word::Hello { epoch });
            }
            for (peer, attendance, void) in welcome {
                if is_queue {
                    self.credit_branch(&group, &peer);
                }
                self.tell_of_group(
                    &group,
                    Some(&peer),
                    Word::Welcome {
                        epoch,
                        attendance,
                        void,
                    },
                );
            }
            self.list_root(&group);
            if let Some(token) = waits_for {
                self.far.unkept.push(group);
                self.queues.store.wake_at(Committed {
                    written: token,
                    synced: token,
                });
            }
        }
    }

    /// Has a root look at its queue at the end of the call.
    fn list_root(&mut self, group: &str) {
        if let Some(root) = self.roots.get(group) {
            self.queues.ready_roots.push(root.session.slot);
        }
    }

    pub(super) fn list_all_roots(&mut self) {
        let slots = self.roots.values().map(|root| root.session.slot);
        self.queues.ready_roots.extend(slots);
    }

    pub(super) fn root_is_sought(&mut self, group: &Arc<str>, from: &Peer) {
        if let Some(root) = self.roots.get(group).filter(|root| root.is_known)
            && !self.is_unsure()
        {
            let epoch = root.epoch;
            self.tell_of_group(group, Some(from), Word::Hello { epoch });
        }
    }

    /// Has the branches of a node attend anew.
    pub(super) fn greet_peers(&mut self, node: &str) {
        let mut greeted = Vec::new();
        for (group, root) in self.roots.iter().filter(|(_, root)| root.is_known) {
            let all = root.attendees.keys().chain(&root.awaited);
            let theirs = all.filter(|peer| *peer.node == *node);
            greeted.extend(theirs.map(|peer| (Arc::clone(group), peer.clone(), root.epoch)));
        }
        for (group, peer, epoch) in greeted {
            self.tell_of_group(&group, Some(&peer), Word::Hello { epoch });
        }
    }

    /// Whether this node has the root of a group in an epoch, as far as it knows.
    pub(super) fn is_root_in(&self, group: &str, epoch: u64) -> bool {
        let root = self.roots.get(group);
        root.is_some_and(|root| root.is_known && root.epoch == epoch)
    }

    // Branches.

    /// A branch tells what it holds.
    pub(super) fn attended(
        &mut self,
        now_ms: u64,
        group: &Arc<str>,
        from: &Peer,
        told: &Told<'_>,
        held: &[u64],
    ) {
        // Of who is gone; or it will say so again.
        if !self.far.may_be_sure(from) {
            return;
        }
        for &position in told.settled {
            self.settled_by(group, from, position);
        }
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        let own = from.clone();
        for (position, tag) in root.parked.drain() {
            // It may be for a member that has come.
            root.out.insert(position, (tag, own.clone()));
        }
        let lost: Vec<Back> = (root.out_with(from).into_iter())
            .filter(|position| !held.contains(position))
            .map(Back::sent)
            .collect();
        root.disclaim(from);
        let was_kept = root.record().peers.contains(from);
        root.awaited.remove(from);
        root.ghosts.remove(from);
        root.turns.retain(|peer| peer != from);
        root.ends_at_ms = NEVER_MS;
        let session = root.session;
        let mut void = Vec::new();
        for &position in held {
            let is_free = self.wants_place(session, position);
            let Some(root) = self.roots.get_mut(group) else {
                return;
            };
            match root.out.get(&position) {
                Some((_, who)) if who == from => {}
                None if is_free
                    && !root.resting.contains_key(&position)
                    && !root.claimed.contains_key(&position)
                    && !root.settled_early.contains(&position) =>
                {
                    root.claimed.insert(position, from.clone());
                }
                _ => void.push(position),
            }
        }
        let attendee = Attendee {
            attendance: told.attendance,
            most: told.most,
            members: told.members,
            void,
            ..Attendee::default()
        };
        if let Some(root) = self.roots.get_mut(group) {
            root.attendees.insert(from.clone(), attendee);
        }
        self.seat_branch(group, from, told.attendance);
        self.take_back_to_root(now_ms, group, lost);
        if !was_kept {
            self.keep_root(group);
        }
        if let Some(root) = self.roots.get_mut(group) {
            let token = root.token;
            if let Some(attendee) = root.attendees.get_mut(from) {
                attendee.token = token;
            }
        }
        self.far.unkept.push(Arc::clone(group));
        self.roots_kept();
    }

    /// A branch tells what is new.
    pub(super) fn reported(
        &mut self,
        now_ms: u64,
        group: &Arc<str>,
        from: &Peer,
        told: &Told<'_>,
        mut returned: Vec<Back>,
    ) {
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        let epoch = root.epoch;
        let attendee = root.attendees.get_mut(from);
        let Some(attendee) = attendee.filter(|one| one.attendance == told.attendance) else {
            // It is to attend anew.
            return self.tell_of_group(group, Some(from), Word::Hello { epoch });
        };
        attendee.most = told.most;
        attendee.members = told.members;
        if root.queue.is_none() {
            for back in returned.iter().filter(|back| back.is_refused) {
                attendee.refused.insert(back.position);
                if back.is_forbidden {
                    attendee.forbidden.insert(back.position);
                }
            }
        }
        self.return_early(group, from, &mut returned);
        self.retain_out(group, from, &mut returned);
        for &position in told.settled {
            self.settled_by(group, from, position);
        }
        self.take_back_to_root(now_ms, group, returned);
        self.credit_branch(group, from);
        self.list_root(group);
    }

    /// Takes messages out of `returned` that are still to come out of the queue here. They are nobody's when they
    /// come.
    fn return_early(&mut self, group: &str, from: &Peer, returned: &mut Vec<Back>) {
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        let claimed = &mut root.claimed;
        let early = returned.extract_if(.., |back| claimed.get(&back.position) == Some(from));
        let early: Vec<Back> = early.collect();
        for back in early {
            if root.queue.is_some() {
                root.returned_early.insert(back.position, back);
            } else {
                root.claimed.remove(&back.position);
            }
        }
    }

    /// Leaves out of what a branch returns what it does not have, and puts the highest position first.
    fn retain_out(&self, group: &str, from: &Peer, returned: &mut Vec<Back>) {
        if let Some(root) = self.roots.get(group) {
            returned.retain(|back| {
                root.out
                    .get(&back.position)
                    .is_some_and(|(_, who)| who == from)
            });
        }
        returned.sort_unstable_by_key(|back| std::cmp::Reverse(back.position));
    }

    /// A branch has no members any more, or its node has none.
    pub(super) fn branch_left(&mut self, now_ms: u64, group: &Arc<str>, from: &Peer) {
        self.drop_peer(now_ms, group, from, false);
        if let Some(root) = self.roots.get_mut(group) {
            // It was taken for gone, and lives: none of its members comes to another node.
            root.ghosts.remove(from);
        }
        // Another branch may be about to attend whose members have joined.
        let ends_at_ms = now_ms + self.limits().group_linger_ms;
        let is_queue = self.queues.branches.is_queue(group);
        if let Some(root) = self.roots.get_mut(group).filter(|root| root.is_bare())
            && !is_queue
        {
            root.ends_at_ms = ends_at_ms;
            self.far.wake_by(ends_at_ms);
        }
    }

    /// A branch's members are done with a message.
    fn settled_by(&mut self, group: &Arc<str>, from: &Peer, position: u64) {
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        let session = root.session;
        match root.out.get(&position) {
            Some((tag, who)) if who == from => {
                let tag = *tag;
                root.out.remove(&position);
                for attendee in root.attendees.values_mut() {
                    attendee.refused.remove(&position);
                    attendee.forbidden.remove(&position);
                }
                if root.queue.is_some() {
                    self.settle_in_queue(group, position);
                } else if let Some(node) = self.queues.find_sent(session.slot, tag) {
                    self.settle_node(session.slot, node, Outcome::Accepted);
                }
            }
            Some(_) => {}
            None => {
                if root.claimed.get(&position).is_some_and(|who| who != from) {
                    return;
                }
                root.claimed.remove(&position);
                if self.wants_place(session, position)
                    && let Some(root) = self.roots.get_mut(group)
                {
                    root.settled_early.insert(position);
                }
            }
        }
        self.list_root(group);
    }

    /// Puts messages back into their places in the queue; the highest position first.
    pub(super) fn take_back_to_root(&mut self, now_ms: u64, group: &Arc<str>, returned: Vec<Back>) {
        let Some(root) = self.roots.get(group) else {
            return;
        };
        if root.queue.is_some() {
            return self.take_back_to_queue(now_ms, group, returned);
        }
        let slot = root.session.slot;
        for back in returned {
            let Some(root) = self.roots.get_mut(group) else {
                return;
            };
            let Some((tag, _)) = root.out.remove(&back.position) else {
                continue;
            };
            let Some(node) = self.queues.find_sent(slot, tag) else {
                continue;
            };
            if let Some(entry) = self.queues.nodes.entry_mut(node) {
                entry.failures = entry.failures.max(back.failures);
            }
            if back.is_lost && self.rests_at_root(now_ms, group, (back.position, tag), node) {
                continue;
            }
            // Messages that came back before it, and go before it.
            let queues = &mut self.queues;
            let mut ahead = List::default();
            loop {
                let first = queues.sessions[slot].pending.first();
                let entry = if first == NIL {
                    None
                } else {
                    queues.nodes.entry(first)
                };
                let is_ahead = entry
                    .is_some_and(|entry| entry.position != 0 && entry.position < back.position);
                if !is_ahead {
                    break;
                }
                let pending = &mut queues.sessions[slot].pending;
                queues.nodes.move_back(pending, &mut ahead, first);
            }
            self.settle_node(slot, node, Outcome::Released);
            let queues = &mut self.queues;
            if let Some(entry) = queues.nodes.entry_mut(node) {
                entry.redelivered = back.was_sent;
            }
            while ahead.last() != NIL {
                let last = ahead.last();
                let pending = &mut queues.sessions[slot].pending;
                queues.nodes.move_front(&mut ahead, pending, last);
            }
        }
        self.list_root(group);
    }

    /// Gives what a process had to others. `is_gone` where its members may come to other nodes.
    fn drop_peer(&mut self, now_ms: u64, group: &Arc<str>, peer: &Peer, is_gone: bool) {
        let until_ms = now_ms + self.far.linger_ms;
        let Some(root) = self.roots.get_mut(group) else {
            return;
        };
        let had = root.attendees.remove(peer).is_some() | root.awaited.remove(peer);
        if !had {
            return;
        }
        root.turns.retain(|known| known != peer);
        root.disclaim(peer);
        let returned: Vec<Back> = (root.out_with(peer).into_iter()).map(Back::sent).collect();
        if is_gone {
            root.ghosts.insert(peer.clone(), until_ms);
            self.far.wake_by(until_ms);
        }
        self.take_back_to_root(now_ms, group, returned);
        self.unseat_branch(group, peer);
        self.keep_root(group);
        // Messages that are here may have waited for the word of this one.
        self.list_root(group);
    }

    /// Gives what processes had that are gone to others.
    pub(super) fn drop_gone_peers(&mut self, now_ms: u64) {
        let mut gone = Vec::new();
        for (group, root) in &self.roots {
            let all = root.attendees.keys().chain(&root.awaited);
            let theirs = all.filter(|peer| !self.far.may_be_sure(peer));
            gone.extend(theirs.map(|peer| (Arc::clone(group), peer.clone())));
        }
        for (group, peer) in gone {
            self.drop_peer(now_ms, &group, &peer, true);
        }
    }

    pub(super) fn roots_timeout(&mut self, now_ms: u64) {
        self.give_rested(now_ms);
        let mut ended = Vec::new();
        for (group, root) in &mut self.roots {
            let before = root.ghosts.len();
            root.ghosts.retain(|_, until_ms| *until_ms > now_ms);
            for &until_ms in root.ghosts.values() {
                self.far.wake_by(until_ms);
            }
            if root.ends_at_ms > now_ms {
                self.far.wake_by(root.ends_at_ms);
            }
            let is_over = root.ends_at_ms <= now_ms || before > root.ghosts.len();
            if is_over && root.is_open {
                ended.push(Arc::clone(group));
            }
        }
        for group in ended {
            self.keep_root(&group);
            self.end_if_bare(now_ms, &group);
        }
    }

    fn end_if_bare(&mut self, now_ms: u64, group: &Arc<str>) {
        let is_bare = (self.roots.get(group)).is_some_and(Root::is_bare)
            && !self.queues.branches.is_queue(group);
        if is_bare && self.queues.branches.get(group).is_none() {
            self.end_root(now_ms, group);
        }
    }

    /// Ends a group: it has no members on any node.
    fn end_root(&mut self, now_ms: u64, group: &Arc<str>) {
        let Some(root) = self.roots.remove(group) else {
            return;
        };
        let slot = root.session.slot;
        self.end_queue(&root);
        if self.queues.active_mut(root.session).is_some() {
            self.evict_consumer(now_ms, slot, EvictReason::Administrative);
            self.end_session(now_ms, slot, true);
        }
    }

    // Messages.

    /// Gives what waits at a root to branches, as long as they take more.
    pub(super) fn dispatch_root(&mut self, now_ms: u64, slot: u32) {
        if self.is_unsure() {
            return;
        }
        let Some(session) = self.queues.sessions.get_mut(slot) else {
            return;
        };
        session.is_listed = false;
        let Some(group) = group_of_root(&session.name).map(Arc::<str>::from) else {
            return;
        };
        if self.queues.branches.is_queue(&group) {
            return self.fill_queue(now_ms, &group, slot);
        }
        while self.give_one(now_ms, &group, slot) {}
        self.hand_out(&group);
    }

    /// Brings what was given in this call on its way: to this node's branch at once, to others with the turn.
    pub(super) fn hand_out(&mut self, group: &Arc<str>) {
        let own = self.far.own.clone();
        let local = own.and_then(|own| {
            let root = self.roots.get_mut(group)?;
            let epoch = root.epoch;
            let attendee = root.attendees.get_mut(&own)?;
            let attendance = attendee.attendance;
            let messages = std::mem::take(&mut attendee.giving);
            (!messages.is_empty()).then_some((own, epoch, attendance, messages))
        });
        if let Some((own, epoch, attendance, messages)) = local {
            let word = Word::Give {
                epoch,
                attendance,
                messages,
            };
            self.tell_of_group(group, Some(&own), word);
        }
        let root = self.roots.get(group);
        let has_more = root.is_some_and(|root| {
            let mut all = root.attendees.values();
            all.any(|attendee| !attendee.giving.is_empty())
        });
        if has_more && !self.far.giving.contains(group) {
            self.far.giving.push(Arc::clone(group));
        }
    }

    /// Gives the first message out; false where that waits.
    fn give_one(&mut self, now_ms: u64, group: &Arc<str>, slot: u32) -> bool {
        let may_give = |root: &Root| {
            root.session.slot == slot && root.is_open && root.is_known && root.awaited.is_empty()
        };
        let Some(root) = self.roots.get(group).filter(|root| may_give(root)) else {
            return false;
        };
        if self.queues.active_mut(root.session).is_none() {
            return false;
        }
        let Some((node, _)) = self.first_to_leave(now_ms, slot) else {
            return false;
        };
        let position = self
            .queues
            .nodes
            .entry(node)
            .map_or(0, |entry| entry.position);
        let Some(root) = self.roots.get_mut(group) else {
            return false;
        };
        let is_settled = position != 0 && root.settled_early.remove(&position);
        let holder = root.claimed.remove(&position);
        let taker = match holder {
            _ if is_settled => None,
            Some(holder) => Some((holder, false)),
            None => root.next_taker(position).map(|peer| (peer, true)),
        };
        let is_nobodys = taker.is_none() && !is_settled;
        if is_nobodys && (position == 0 || !root.is_refused(position)) {
            return false;
        }
        let is_parked = is_nobodys && !root.is_forbidden(position);
        let Some(delivery) = self.queues.take_next(slot, node) else {
            return false;
        };
        let Some(root) = self.roots.get_mut(group) else {
            return false;
        };
        if position != 0
            && delivery.tag != 0
            && let Some((peer, _)) = &taker
        {
            root.out.insert(position, (delivery.tag, peer.clone()));
        }
        if let Some((peer, true)) = &taker
            && let Some(attendee) = root.attendees.get_mut(peer)
        {
            attendee.given += 1;
            attendee.giving.push(Given {
                position,
                failures: delivery.known_failures,
                redelivered: delivery.redelivered,
                message: Arc::clone(&delivery.message),
            });
        }
        if is_parked {
            root.parked.insert(position, delivery.tag);
            return true;
        }
        let is_done = taker.is_none() || position == 0;
        if is_done
            && delivery.tag != 0
            && let Some(node) = self.queues.find_sent(slot, delivery.tag)
        {
            self.settle_node(slot, node, Outcome::Accepted);
        }
        true
    }

    /// Writes letters with what roots have given to other nodes in this turn.
    pub(super) fn write_given(&mut self) {
        for group in std::mem::take(&mut self.far.giving) {
            let Some(root) = self.roots.get_mut(&group) else {
                continue;
            };
            let epoch = root.epoch;
            let mut given = Vec::new();
            for (peer, attendee) in &mut root.attendees {
                let (attendance, mut bytes) = (attendee.attendance, 0);
                let mut messages = Vec::new();
                for one in std::mem::take(&mut attendee.giving) {
                    let size = one.message.body_bytes();
                    if bytes > 0 && bytes + size > LETTER_BYTES {
                        let full = std::mem::take(&mut messages);
                        given.push((peer.clone(), attendance, full));
                        bytes = 0;
                    }
                    bytes += size;
                    messages.push(one);
                }
                if !messages.is_empty() {
                    given.push((peer.clone(), attendance, messages));
                }
            }
            for (peer, attendance, messages) in given {
                let word = Word::Give {
                    epoch,
                    attendance,
                    messages,
                };
                self.tell_of_group(&group, Some(&peer), word);
            }
            self.answer_branches(&group);
        }
    }
}
