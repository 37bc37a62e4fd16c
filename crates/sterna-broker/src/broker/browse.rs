//! A look at what waits in a kept queue: a browser gets copies, in the queue's order, and takes nothing.
//!
//! A browser asks the queue's shard for as many messages as it takes, from behind the last that it has
//! seen. At the end of the queue the browsing ends.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Broker;
use crate::api::{DoorState, SessionKey, SubscribeError};
use crate::attempts::Failures;
use crate::mail::{Address, Browse, Browsed, Letter};
use crate::message::Qos;
use crate::nodes::NIL;
use crate::queues::Item;
use crate::selecting::Taste;
use crate::session::Browsing;

/// Messages in one letter.
pub(super) const PAGE: u32 = 256;

impl<P: DoorState> Broker<P> {
    /// Lets a session, opened [`on_demand`](crate::OpenSession::on_demand), browse a kept queue by the
    /// filter of its shared subscription. It gets as many copies as [`demand`](Self::demand) says, at
    /// QoS 0, of what waits and its selector selects.
    ///
    /// # Errors
    /// [`SubscribeError::InvalidFilter`] where there is no such queue, and
    /// [`SubscribeError::NoSession`] for an outdated key.
    pub fn browse(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        filter: &str,
    ) -> Result<(), SubscribeError> {
        let (group, _) = self.edit_log(|log| log.group(filter));
        let group = group.ok_or(SubscribeError::InvalidFilter)?;
        let slot = session.slot;
        let session = (self.queues.active_mut(session)).ok_or(SubscribeError::NoSession)?;
        session.rare_mut().browsing = Some(Box::new(Browsing {
            group,
            after: None,
            asked: 0,
            rest: VecDeque::new(),
        }));
        self.browse_on(slot);
        self.finish(now_ms);
        Ok(())
    }

    /// Asks for what a browser takes and has not asked for.
    pub(super) fn browse_on(&mut self, slot: u32) {
        let shard = self.shard;
        let session = &mut self.queues.sessions[slot];
        let address = Address {
            shard,
            slot,
            generation: session.generation,
        };
        let (attendance, pending) = (session.attendance, session.pending.len() as u32);
        let credit = session.demand_mut().map_or(0, |demand| demand.credit);
        let Some(browsing) = session.browsing_mut() else {
            return;
        };
        let limit = credit.saturating_sub(pending).min(PAGE);
        if limit == 0 || browsing.asked > 0 {
            return;
        }
        browsing.asked = limit;
        let browse = Browse {
            group: browsing.group,
            after: browsing.after,
            limit,
            attendance,
            from: address,
            looker: 0,
        };
        if let Some(home) = self.index.home(browse.group) {
            self.send(home, Letter::Browse(browse));
        } else {
            self.end_browsing(slot);
        }
    }

    fn end_browsing(&mut self, slot: u32) {
        self.queues.sessions[slot].rare_mut().browsing = None;
        self.tell_drained(slot);
    }

    /// On the queue's shard: a browser asks for more.
    pub(super) fn queue_browsed(&mut self, now_ms: u64, mut browse: Browse) {
        if !(self.is_in_cluster() && self.is_looked_at_afar(&mut browse)) {
            self.browse_queue(now_ms, browse);
        }
    }

    /// Answers a browser of a queue of this shard.
    pub(super) fn browse_queue(&mut self, now_ms: u64, browse: Browse) {
        self.queues.read_unread(browse.group);
        let after = browse.after.unwrap_or(0);
        let page = (self.queues).page_of_group(now_ms, browse.group, after, browse.limit as usize);
        if page.is_in_log && page.messages.is_empty() {
            let after = Some(page.after);
            let browse = Browse { after, ..browse };
            self.look(now_ms, browse.group, page.after, Some(browse));
            return;
        }
        let Browse {
            attendance,
            from,
            looker,
            ..
        } = browse;
        let messages = page.messages.into_iter();
        let messages: Vec<_> = messages.map(|(tag, _, message)| (tag, message)).collect();
        let after = page.has_more.then_some(page.after);
        if self.answer_looker(looker, &messages, after) {
            return;
        }
        let messages = messages.into_iter();
        self.send(
            from.shard,
            Letter::Browsed(Box::new(Browsed {
                slot: from.slot,
                generation: from.generation,
                attendance,
                messages: messages.map(|(_, message)| message).collect(),
                after,
            })),
        );
    }

    /// On the browser's shard: what it asked for.
    pub(super) fn browsed(&mut self, now_ms: u64, browsed: Browsed) {
        let slot = browsed.slot;
        let session = self.queues.session(slot, browsed.generation);
        let session = session.filter(|session| session.attendance == browsed.attendance);
        let Some(session) = session.filter(|session| session.is_active()) else {
            return;
        };
        let Some(browsing) = session.browsing_mut() else {
            return;
        };
        browsing.after = browsed.after;
        browsing.rest = browsed.messages.into();
        self.look_at_browsed(now_ms, slot);
    }

    /// A browser looks at what has come, as far as its selector has steps for it.
    pub(super) fn look_at_browsed(&mut self, now_ms: u64, slot: u32) {
        while let Some(browsing) = self.queues.sessions[slot].browsing_mut()
            && let Some(message) = browsing.rest.pop_front()
        {
            if self.is_denied(slot, &message) {
                continue;
            }
            match self.queues.taste(slot, &message) {
                Taste::Wanted => self.queues.push(now_ms, slot, copy_of(message)),
                Taste::Unwanted => {}
                Taste::Later => {
                    if let Some(browsing) = self.queues.sessions[slot].browsing_mut() {
                        browsing.rest.push_front(message);
                    }
                    return self.queues.work.browsers.push(slot);
                }
                // It is let go.
                Taste::TooDear => return,
            }
        }
        let Some(browsing) = self.queues.sessions[slot].browsing_mut() else {
            return;
        };
        browsing.asked = 0;
        if browsing.after.is_some() {
            self.browse_on(slot);
            self.tell_drained(slot);
        } else {
            self.end_browsing(slot);
        }
    }
}

/// A message as a browser gets it.
const fn copy_of(message: Arc<crate::message::Message>) -> Item {
    Item {
        message,
        context: None,
        group: NIL,
        group_tag: 0,
        failures: Failures { said: 0, lost: 0 },
        qos: Qos::AtMostOnce,
        retain: false,
        redelivered: false,
        retained_copy: false,
        is_kept: false,
        position: 0,
    }
}
