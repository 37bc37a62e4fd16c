//! Members of a group that don't take every message. They have a selector, may not get some, or have given
//! some back as undeliverable.
//!
//! Each looks at an entry of the queue once. Nothing before its cursor is for it, except the entries of a short
//! list: those came back from other members. An entry that it doesn't take waits in its place for others.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::Selector;
use crate::message::Message;
use crate::nodes::{NIL, Nodes};
use crate::queues::Queues;
use crate::rights::Permit;
use crate::selecting::{Asked, Taste, Work};
use crate::tail::Tail;

/// Entries before the cursor that are listed; if more come back the cursor goes back instead.
const LISTED: usize = 64;

/// The next message for a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pick {
    Entry(u32),
    /// It has to look at what waits in the log first.
    InLog,
    /// It goes on in the next turn.
    Later,
    Nothing,
}

/// Whether a message is for a member is known in the next turn.
struct NotYet;

/// The way a member chooses from its group's queue.
#[derive(Debug)]
pub(crate) struct Choice {
    /// With whom it is asked for.
    selector: Option<(Asked, Arc<dyn Selector>)>,
    /// The messages of the queue that the member may get, if not all.
    permit: Option<Arc<dyn Permit>>,
    /// Tags of what it can't be given, and the order in which they came.
    refused: FxHashSet<u64>,
    refused_in_order: VecDeque<u64>,
    /// The first entry it hasn't looked at, or [`NIL`] if it has seen all.
    next: u32,
    /// Entries before that which are for it.
    listed: Vec<u32>,
    /// It has looked at what waits in the log up to this tag.
    pub(crate) seen: u64,
}

impl Choice {
    pub(crate) fn new(
        selector: Option<(Asked, Arc<dyn Selector>)>,
        permit: Option<Arc<dyn Permit>>,
        first: u32,
    ) -> Self {
        Self {
            selector,
            permit,
            refused: FxHashSet::default(),
            refused_in_order: VecDeque::new(),
            next: first,
            listed: Vec::new(),
            seen: 0,
        }
    }

    /// Whether there may be something for the member.
    pub(crate) fn may_choose(&self, tail: &Tail) -> bool {
        self.next != NIL
            || !self.listed.is_empty()
            || tail.last().is_some_and(|last| last.tag > self.seen)
    }

    /// A message waits in the log from now on: the member looks at it again if it is for it.
    pub(crate) fn look_again(&mut self, tag: u64, message: Option<&Message>, work: &Work) {
        if self.seen >= tag && message.is_none_or(|message| self.may_take(message, tag, work)) {
            self.seen = tag - 1;
        }
    }

    /// Sets what the member may get. It looks at the whole queue again.
    pub(crate) fn set_permit(&mut self, permit: Option<Arc<dyn Permit>>, first: u32) {
        self.permit = permit;
        self.listed.clear();
        self.next = first;
        self.seen = 0;
    }

    pub(crate) fn takes(&self, message: &Message, tag: u64, work: &Work) -> Taste {
        let is_permitted = !self.refused.contains(&tag)
            && (self.permit.as_ref()).is_none_or(|permit| permit.permits_message(message));
        match &self.selector {
            _ if !is_permitted => Taste::Unwanted,
            None => Taste::Wanted,
            Some((whose, selector)) => work.ask(*whose, &**selector, message),
        }
    }

    /// The same, where what is not known yet counts as wanted.
    fn may_take(&self, message: &Message, tag: u64, work: &Work) -> bool {
        matches!(self.takes(message, tag, work), Taste::Wanted | Taste::Later)
    }

    /// Keeps an entry from being given to the member again; of more than `limit` such, the first
    /// are forgotten.
    pub(crate) fn refuse(&mut self, tag: u64, limit: usize) {
        if self.refused.insert(tag) {
            self.refused_in_order.push_back(tag);
        }
        while self.refused.len() > limit
            && let Some(first) = self.refused_in_order.pop_front()
        {
            self.refused.remove(&first);
        }
    }

    /// The oldest entry that is for the member, or that has expired; everything before it isn't. An error where
    /// that is known in the next turn.
    fn pick(&mut self, nodes: &Nodes, work: &Work, now_ms: u64) -> Result<Option<u32>, NotYet> {
        let mut oldest = None;
        for &node in &self.listed {
            if oldest.is_none_or(|oldest| nodes.tag(node) < nodes.tag(oldest)) {
                oldest = Some(node);
            }
        }
        if oldest.is_some() {
            return Ok(oldest);
        }
        while self.next != NIL {
            let taste = nodes.entry(self.next).map(|entry| match &entry.message {
                Some(message) if !message.is_expired(now_ms) => {
                    self.takes(message, entry.tag, work)
                }
                _ => Taste::Wanted,
            });
            match taste {
                Some(Taste::Wanted) => return Ok(Some(self.next)),
                Some(Taste::Later) => return Err(NotYet),
                Some(Taste::Unwanted | Taste::TooDear) | None => {}
            }
            self.next = nodes.next(self.next);
        }
        Ok(None)
    }

    /// An entry came back to its place in the queue. True if the member may take it.
    fn came_back(&mut self, nodes: &Nodes, node: u32, work: &Work) -> bool {
        let tag = nodes.tag(node);
        if self.next != NIL && tag >= nodes.tag(self.next) {
            return true; // it will come to it
        }
        let message = nodes.entry(node).and_then(|entry| entry.message.as_ref());
        match message.map(|message| self.takes(message, tag, work)) {
            Some(Taste::Wanted) => {}
            Some(Taste::Later) => {
                // It looks at what it has seen again, too.
                self.next = node;
                return true;
            }
            Some(Taste::Unwanted | Taste::TooDear) | None => return false,
        }
        self.listed.push(node);
        if self.listed.len() > LISTED {
            for node in self.listed.drain(..) {
                if self.next == NIL || nodes.tag(node) < nodes.tag(self.next) {
                    self.next = node;
                }
            }
        }
        true
    }

    fn leaves(&mut self, nodes: &Nodes, node: u32) {
        if self.next == node {
            self.next = nodes.next(node);
        }
        self.listed.retain(|&listed| listed != node);
    }
}

impl<P> Queues<P> {
    /// The entry that a member takes next.
    pub(crate) fn pick_from_group(&mut self, now_ms: u64, id: u32, member: u32) -> Pick {
        let Some(group) = self.groups.get_mut(&id) else {
            return Pick::Nothing;
        };
        let (node, unseen) = if let Some(choice) = group.choices.get_mut(&member) {
            let unseen = group.tail.after(choice.seen).next();
            let Ok(node) = choice.pick(&self.nodes, &self.work, now_ms) else {
                self.work.postpone_group(id);
                return Pick::Later;
            };
            (node, unseen)
        } else {
            let first = Some(group.queue.first()).filter(|&node| node != NIL);
            (first, group.tail.first())
        };
        match (node, unseen) {
            (None, None) => Pick::Nothing,
            (Some(node), unseen)
                if unseen.is_none_or(|unseen| self.nodes.tag(node) < unseen.tag) =>
            {
                Pick::Entry(node)
            }
            _ => Pick::InLog,
        }
    }

    /// Whether a member looks at more of its group's queue in the next turn. Others of the group do not count: their
    /// selectors may have looks in all turns.
    pub(crate) fn is_undecided_member(&self, id: u32, member: u32) -> bool {
        let group = self.groups.get(&id);
        let choice = group.and_then(|group| Some((group.choices.get(&member)?, &group.tail)));
        self.work.groups.contains(&id)
            && choice.is_some_and(|(choice, tail)| choice.may_choose(tail))
    }

    /// A message of a group's queue waits in the log from now on.
    pub(crate) fn offer_in_log(&mut self, id: u32, tag: u64, message: Option<&Message>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        for at in 0..group.choices.len() {
            let Some((member, choice)) = group.choices.pair_at_mut(at) else {
                return;
            };
            choice.look_again(tag, message, &self.work);
            let member = *member;
            group.list_if_available(member);
        }
    }

    /// An entry has been appended to a group's queue: who has seen all others looks at it.
    pub(crate) fn offer_appended(&mut self, id: u32, node: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        for at in 0..group.choices.len() {
            let Some((member, choice)) = group.choices.pair_at_mut(at) else {
                return;
            };
            if choice.next == NIL {
                choice.next = node;
                let member = *member;
                group.list_if_available(member);
            }
        }
    }

    /// An entry has come back to a group's queue.
    pub(crate) fn offer_returned(&mut self, id: u32, node: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        for at in 0..group.choices.len() {
            let Some((member, choice)) = group.choices.pair_at_mut(at) else {
                return;
            };
            if choice.came_back(&self.nodes, node, &self.work) {
                let member = *member;
                group.list_if_available(member);
            }
        }
    }

    /// An entry is about to leave a group's queue.
    pub(crate) fn withdraw(&mut self, id: u32, node: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        for at in 0..group.choices.len() {
            if let Some((_, choice)) = group.choices.pair_at_mut(at) {
                choice.leaves(&self.nodes, node);
            }
        }
    }
}
