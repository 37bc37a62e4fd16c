//! The work of selectors and of lookups of retained messages, which is bounded as memory is.
//!
//! A shard spends some steps on them in each turn of its loop. Where they are spent, what is still to be looked at
//! waits for the next turn: a member's look at its queue, a browser's at its page, and messages in a session's queue
//! until it is their turn. So other clients wait for one turn's steps and no more. A consumer whose selector takes too
//! much for one message is let go.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::Selector;
use crate::mail::Recall;
use crate::message::{Message, Qos};
use crate::queues::Queues;

/// The answer of a selector about a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taste {
    /// Its consumer wants it.
    Wanted,
    /// It does not.
    Unwanted,
    /// It has to be asked again, in the next turn.
    Later,
    /// That takes more work than a consumer may have done for one message. It is let go.
    TooDear,
}

/// Steps of one place of the tree of retained messages.
const STEPS_PER_PLACE: u64 = 8;

/// A new subscription whose retained messages are to be looked up.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) filter: Arc<str>,
    /// Those count that were set before the route log had this length.
    pub(crate) length: u64,
    /// The highest level, and whether its own messages are left out.
    pub(crate) options: (Qos, bool),
}

/// The consumer whose selector is asked, with its attendance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Of a session of this shard: slot and generation.
    Session(u32, u32, u32),
    /// Of a member of a group of this shard: its subscriber.
    Member(u32, u32),
}

/// The steps of this turn, and what waits for the next one.
#[derive(Debug)]
pub(crate) struct Work {
    per_turn: u64,
    left: Cell<u64>,
    /// The kind of work that was first in the last turn.
    first: u8,
    dear: RefCell<Vec<Asked>>,
    /// Sessions whose first message is to be looked at.
    pub(crate) sessions: Vec<u32>,
    /// Groups with members that have not looked at everything.
    pub(crate) groups: Vec<u32>,
    /// Browsers that have not looked at all that came.
    pub(crate) browsers: Vec<u32>,
    /// Retained messages that are to be looked up for sessions, by slot and generation.
    lookups: FxHashMap<(u32, u32), VecDeque<Lookup>>,
    /// These sessions, each of which has its turn.
    lookup_turns: VecDeque<(u32, u32)>,
    /// Credit that is taken back of members that have not looked at everything.
    pub(crate) recalls: Vec<Recall>,
}

impl Work {
    pub(crate) fn new(per_turn: u64) -> Self {
        Self {
            per_turn,
            left: Cell::new(per_turn),
            first: 0,
            dear: RefCell::new(Vec::new()),
            sessions: Vec::new(),
            groups: Vec::new(),
            browsers: Vec::new(),
            lookups: FxHashMap::default(),
            lookup_turns: VecDeque::new(),
            recalls: Vec::new(),
        }
    }

    /// Whether the steps of this turn are spent.
    pub(crate) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// Whether something waits for the next turn.
    pub(crate) fn has_postponed(&self) -> bool {
        !(self.sessions.is_empty()
            && self.groups.is_empty()
            && self.browsers.is_empty()
            && self.lookup_turns.is_empty()
            && self.recalls.is_empty())
    }

    /// The number of the kind of work that has the steps of this turn first.
    pub(crate) const fn next_first(&mut self) -> usize {
        self.first = self.first.wrapping_add(1);
        self.first as usize
    }

    /// A turn begins.
    pub(crate) fn renew(&self) {
        self.left.set(self.per_turn);
    }

    /// Those who are to be let go.
    pub(crate) fn take_dear(&self) -> Vec<Asked> {
        self.dear.take()
    }

    /// Whether somebody is to be let go.
    pub(crate) fn has_dear(&self) -> bool {
        !self.dear.borrow().is_empty()
    }

    /// Asks a selector.
    pub(crate) fn ask(&self, whose: Asked, selector: &dyn Selector, message: &Message) -> Taste {
        if self.is_spent() {
            return Taste::Later;
        }
        if self.dear.borrow().contains(&whose) {
            return Taste::TooDear;
        }
        let mut steps = 0;
        let answer = selector.selects(message, &mut steps);
        self.left.set(self.left.get().saturating_sub(steps.max(1)));
        match answer {
            Some(true) => Taste::Wanted,
            Some(false) => Taste::Unwanted,
            None => {
                self.dear.borrow_mut().push(whose);
                Taste::TooDear
            }
        }
    }

    /// A lookup of retained messages has been at so many places.
    pub(crate) fn visited(&self, places: usize) {
        let steps = places.max(1) as u64 * STEPS_PER_PLACE;
        self.left.set(self.left.get().saturating_sub(steps));
    }

    /// Has a lookup wait for a session, by slot and generation, which may have `most` of them: those beyond bring nothing, as
    /// messages beyond [`Limits::retained_deliveries`](crate::Limits::retained_deliveries).
    pub(crate) fn postpone_lookup(&mut self, of: (u32, u32), lookup: Lookup, most: usize) {
        if most == 0 {
            return;
        }
        let waiting = self.lookups.entry(of).or_default();
        if waiting.is_empty() {
            self.lookup_turns.push_back(of);
        }
        if waiting.len() < most {
            waiting.push_back(lookup);
        }
    }

    /// The next lookup, of the session whose turn it is: its slot and generation. It costs a step.
    pub(crate) fn next_lookup(&mut self) -> Option<((u32, u32), Lookup)> {
        let of = self.lookup_turns.pop_front()?;
        let waiting = self.lookups.get_mut(&of)?;
        let lookup = waiting.pop_front()?;
        if waiting.is_empty() {
            self.lookups.remove(&of);
        } else {
            self.lookup_turns.push_back(of);
        }
        self.visited(1);
        Some((of, lookup))
    }

    /// Takes the lookups that wait for a session, by slot and generation.
    pub(crate) fn take_lookups(&mut self, of: (u32, u32)) -> VecDeque<Lookup> {
        let Some(waiting) = self.lookups.remove(&of) else {
            return VecDeque::new();
        };
        self.lookup_turns.retain(|one| *one != of);
        waiting
    }

    /// Forgets the lookups that wait for a subscription that has ended.
    pub(crate) fn forget_lookups(&mut self, of: (u32, u32), filter: &str) {
        let Some(waiting) = self.lookups.get_mut(&of) else {
            return;
        };
        waiting.retain(|lookup| *lookup.filter != *filter);
        if waiting.is_empty() {
            self.take_lookups(of);
        }
    }

    pub(crate) fn postpone_group(&mut self, group: u32) {
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
    }
}

impl<P> Queues<P> {
    /// Whether the consumer of a session wants a message, as far as that is known. Of the rest it is
    /// asked again when it is its turn ([`note_unselected`](Self::note_unselected)).
    pub(crate) fn selects(&self, slot: u32, message: &Message) -> bool {
        self.taste(slot, message) != Taste::Unwanted
    }

    pub(crate) fn taste(&self, slot: u32, message: &Message) -> Taste {
        let session = &self.sessions[slot];
        session.selector().map_or(Taste::Wanted, |selector| {
            let whose = Asked::Session(slot, session.generation, session.attendance);
            self.work.ask(whose, &**selector, message)
        })
    }

    /// The last message of a session's queue was appended, and its selector may have had no steps for it.
    #[inline]
    pub(crate) fn note_unselected(&mut self, slot: u32) {
        if self.work.is_spent() && self.sessions[slot].selector().is_some() {
            let last = self.sessions[slot].pending.last();
            if let Some(entry) = self.nodes.entry_mut(last) {
                entry.is_to_be_selected = true;
            }
        }
    }

    /// Whether the first message of a session's queue, with this node, may be sent as far as its selector says. `None`
    /// where that is known in the next turn.
    pub(crate) fn first_is_selected(&mut self, slot: u32, node: u32) -> Option<bool> {
        let entry = self.nodes.entry_mut(node)?;
        if !std::mem::take(&mut entry.is_to_be_selected) {
            return Some(true);
        }
        let message = entry.message.clone()?;
        match self.taste(slot, &message) {
            Taste::Wanted => Some(true),
            Taste::Unwanted => Some(false),
            Taste::Later | Taste::TooDear => {
                if let Some(entry) = self.nodes.entry_mut(node) {
                    entry.is_to_be_selected = true;
                }
                self.sessions[slot].is_held = true;
                self.work.sessions.push(slot);
                None
            }
        }
    }
}
