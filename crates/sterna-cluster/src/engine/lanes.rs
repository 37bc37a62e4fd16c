//! Lanes for messages that must arrive at a node. They are given to the node, one batch after the other, or appended to
//! its inbox where it does not take them.
//!
//! A batch for the inbox is tried until NATS has it, or the node is gone. The next batch begins only when this one is
//! taken, appended or dropped. So the node gets all of them in their order, whichever way each goes. NATS leaves out a
//! batch that it has already, and so does the node at the other end. Batches for a node are counted for as long as this
//! process runs. So its lane stays when it is gone for good.
//!
//! A node that has lost its way to most servers of NATS may not know what others want by now. It gives nothing: its batches
//! are for the inbox, which takes none from there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use tokio::sync::Notify;

use super::outgoing::{Charge, in_one_batch};
use super::{Core, Retry};
use crate::arrivals;
use crate::commits::Part;
use crate::subjects;
use crate::table::Presence;
use crate::wire::EncodedRun;

/// Messages of one turn for one node.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) run: EncodedRun,
    /// Is closed when the node or NATS has it; `None` where nothing waits for that.
    pub(super) part: Option<Part>,
    pub(super) _charge: Option<Rc<Charge>>,
}

/// Parcels that wait for one node.
#[derive(Debug, Default)]
pub(super) struct Lane {
    waiting: RefCell<VecDeque<Parcel>>,
    arrived: Notify,
}

impl Lane {
    pub(super) fn push(&self, parcel: Parcel) {
        self.waiting.borrow_mut().push_back(parcel);
        self.arrived.notify_one();
    }

    /// Takes what fits a batch, of one kind.
    fn take(&self, most_bytes: usize) -> Vec<Parcel> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return Vec::new();
        }
        let kind = waiting[0].run.kind();
        let same = waiting.iter().map(|parcel| &parcel.run);
        let same = same.take_while(|run| run.kind() == kind);
        let count = in_one_batch(same, most_bytes);
        waiting.drain(..count).collect()
    }
}

/// The longest time for which a node that does not answer is given nothing, in milliseconds.
const LONGEST_REST_MS: u64 = 30_000;

/// Whether batches of a lane are given to the node, or go to its inbox at once.
#[derive(Debug, Default)]
struct Way {
    /// The node did not answer.
    rest: Option<Rest>,
    /// The last batch was dropped: the node waits for it before it takes one that is given.
    has_gap: bool,
}

/// The time for which a process of a node is given nothing.
#[derive(Debug)]
struct Rest {
    incarnation: u64,
    until_ms: u64,
    pause_ms: u64,
}

impl Way {
    /// Whether a process of the node, which is here, is given the next batch.
    fn gives(&self, now_ms: u64, incarnation: u64) -> bool {
        let rests = |rest: &Rest| rest.incarnation == incarnation && now_ms < rest.until_ms;
        !self.has_gap && !self.rest.as_ref().is_some_and(rests)
    }

    /// The node has answered. The node is not here: when it is again, it is asked at once.
    fn has_no_rest(&mut self) {
        self.rest = None;
    }

    /// A process of the node did not answer within the time-out. It rests for longer each time.
    fn had_no_answer(&mut self, now_ms: u64, incarnation: u64, timeout_ms: u64) {
        let before = self
            .rest
            .take()
            .filter(|rest| rest.incarnation == incarnation);
        let pause_ms = before.map_or(timeout_ms, |rest| rest.pause_ms) * 2;
        let pause_ms = pause_ms.min(LONGEST_REST_MS);
        self.rest = Some(Rest {
            incarnation,
            until_ms: now_ms + pause_ms,
            pause_ms,
        });
    }
}

impl Core {
    /// The lane to the node that has a number now. It is made where there is none; `None` where there is no node.
    pub(super) fn lane(&self, number: usize) -> Option<Rc<Lane>> {
        let (node, _) = self.table.borrow().node(number)?;
        if let Some(lane) = self.lanes.borrow().get(&node) {
            return Some(Rc::clone(lane));
        }
        let lane = Rc::new(Lane::default());
        (self.lanes.borrow_mut()).insert(Arc::clone(&node), Rc::clone(&lane));
        self.new_lanes.borrow_mut().push(node);
        self.lane_arrived.notify_one();
        Some(lane)
    }

    /// Runs a task for each lane that is made.
    pub(super) async fn run_lanes(self: Rc<Self>) {
        loop {
            let new = std::mem::take(&mut *self.new_lanes.borrow_mut());
            for node in new {
                let lane = self.lanes.borrow().get(&node).map(Rc::clone);
                if let Some(lane) = lane {
                    self.spawn(Rc::clone(&self).run_lane(node, lane));
                }
            }
            self.lane_arrived.notified().await;
        }
    }

    async fn run_lane(self: Rc<Self>, node: Arc<str>, lane: Rc<Lane>) {
        let (mut serial, mut way) = (0_u64, Way::default());
        loop {
            let parcels = lane.take(self.batch_bytes());
            if parcels.is_empty() {
                lane.arrived.notified().await;
                continue;
            }
            serial += 1;
            let runs = parcels.iter().map(|parcel| &parcel.run);
            let payload = self.batch(runs);
            let messages = parcels.iter().map(|parcel| parcel.run.messages()).sum();
            let bytes = payload.len();
            let number = (self.incarnation.get(), serial);
            let id = arrivals::id(&self.settings.node, number, &node);
            let is_taken = self.gives(&mut way, &node, &id, &payload).await;
            let is_sent = is_taken || self.append(&node, &id, payload, messages).await;
            way.has_gap = !is_sent;
            if is_sent {
                self.count_sent(messages, bytes);
                let ways = [&self.status.inbox_batches, &self.status.given_batches];
                ways[usize::from(is_taken)].add(1);
            }
            for part in parcels.into_iter().filter_map(|parcel| parcel.part) {
                self.close(part);
            }
        }
    }

    /// Gives a batch to a node. False where it is to go to the inbox.
    async fn gives(&self, way: &mut Way, node: &str, id: &str, payload: &Bytes) -> bool {
        let known = {
            let table = self.table.borrow();
            table.presence(node).zip(table.incarnation(node))
        };
        let Some((Presence::Here, incarnation)) = known else {
            way.has_no_rest();
            return false;
        };
        // The fence is open when this node has heard a moment ago that NATS has stored something.
        let may_give = self.status.is_connected() && !self.fence.is_shut();
        if !may_give || !way.gives(self.now_ms(), incarnation) {
            return false;
        }
        let answer = self.give(node, incarnation, id, payload.clone()).await;
        if answer.is_some() {
            way.has_no_rest();
        } else {
            way.had_no_answer(self.now_ms(), incarnation, self.settings.give_timeout_ms);
        }
        answer == Some(true)
    }

    /// Appends a batch of some messages to a node's inbox, and tries until it is there. False where they are dropped:
    /// the node is gone, so that nobody is left there to receive them, or they are more than NATS takes.
    async fn append(&self, node: &str, id: &str, payload: Bytes, messages: usize) -> bool {
        let mut retry = Retry::new();
        let mut has_failed = false;
        let is_stored = loop {
            let presence = self.table.borrow().presence(node);
            let Some(Presence::Here | Presence::Away) = presence else {
                self.gate.count_dropped(messages as u64);
                break false;
            };
            let own = &self.settings.node;
            let subject = self.settings.subject(&subjects::inbox(node, own));
            let message = PublishMessage::build()
                .payload(payload.clone())
                .message_id(id);
            let answer = match self.jetstream.send_publish(subject, message).await {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            let why = match answer {
                Ok(_) => break true,
                Err(error) if self.gives_up("an inbox", messages, &error) => break false,
                Err(error) => {
                    self.note_unwritten(&error);
                    error.to_string()
                }
            };
            self.status.failed_attempts.add(1);
            if !has_failed {
                tracing::warn!(
                    node,
                    why,
                    "NATS does not take messages for a node: they are tried again"
                );
            }
            has_failed = true;
            self.set_stalled(true);
            retry.wait().await;
        };
        if has_failed {
            self.set_stalled(false);
        }
        is_stored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT_MS: u64 = 500;

    #[test]
    fn a_node_that_does_not_answer_rests_for_longer_each_time() {
        let (mut way, mut now_ms, mut rests) = (Way::default(), 0, Vec::new());
        assert!(way.gives(now_ms, 7));
        for _ in 0..8 {
            way.had_no_answer(now_ms, 7, TIMEOUT_MS);
            let begun_ms = now_ms;
            while !way.gives(now_ms, 7) {
                now_ms += 500;
            }
            rests.push(now_ms - begun_ms);
        }
        let longest = LONGEST_REST_MS;
        let expected = [
            1_000, 2_000, 4_000, 8_000, 16_000, longest, longest, longest,
        ];
        assert_eq!(rests, expected);
        way.has_no_rest();
        way.had_no_answer(now_ms, 7, TIMEOUT_MS);
        assert!(!way.gives(now_ms + 999, 7));
        assert!(way.gives(now_ms + 1_000, 7), "it had answered meanwhile");
    }

    #[test]
    fn another_process_of_the_node_does_not_rest() {
        let mut way = Way::default();
        way.had_no_answer(0, 7, TIMEOUT_MS);
        way.had_no_answer(1_000, 7, TIMEOUT_MS);
        assert!(!way.gives(1_500, 7));
        assert!(way.gives(1_500, 8));
        way.had_no_answer(1_500, 8, TIMEOUT_MS);
        assert!(!way.gives(2_499, 8));
        assert!(way.gives(2_500, 8), "it begins anew");
    }

    #[test]
    fn what_follows_a_gap_goes_to_the_inbox() {
        let mut way = Way {
            has_gap: true,
            ..Way::default()
        };
        assert!(!way.gives(0, 7));
        way.has_no_rest();
        assert!(!way.gives(0, 7), "an earlier batch is missing still");
        way.has_gap = false;
        assert!(way.gives(0, 7));
    }
}
