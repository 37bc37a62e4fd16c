//! Lanes for messages that must arrive at a node. They are appended to the node's inbox, one batch after the other.
//!
//! A batch is tried until NATS has it, or the node is gone. The next batch begins only after that, so the inbox has
//! all of them in their order. NATS leaves out a batch that it has already, and so does the node at the other end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use tokio::sync::Notify;

use super::outgoing::{Charge, in_one_batch};
use super::{Core, Retry};
use crate::commits::Part;
use crate::table::Presence;
use crate::wire::{self, EncodedRun, Kind};

/// Messages of one turn for one node.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) run: EncodedRun,
    /// Is closed when NATS has it; `None` where nothing waits for that.
    pub(super) part: Option<Part>,
    pub(super) _charge: Option<Rc<Charge>>,
}

/// Parcels that wait for one node's inbox.
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

    /// Has it look at its node again.
    pub(super) fn wake(&self) {
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

impl Core {
    /// The lane to a node, which is made where there is none.
    pub(super) fn lane(&self, number: usize) -> Rc<Lane> {
        if let Some(lane) = self.lanes.borrow().get(&number) {
            return Rc::clone(lane);
        }
        let lane = Rc::new(Lane::default());
        self.lanes.borrow_mut().insert(number, Rc::clone(&lane));
        self.new_lanes.borrow_mut().push(number);
        self.lane_arrived.notify_one();
        lane
    }

    /// Runs a task for each lane that is made.
    pub(super) async fn run_lanes(self: Rc<Self>) {
        loop {
            let new = std::mem::take(&mut *self.new_lanes.borrow_mut());
            for number in new {
                let lane = self.lanes.borrow().get(&number).map(Rc::clone);
                if let Some(lane) = lane {
                    self.spawn(Rc::clone(&self).run_lane(number, lane));
                }
            }
            self.lane_arrived.notified().await;
        }
    }

    async fn run_lane(self: Rc<Self>, number: usize, lane: Rc<Lane>) {
        let mut serial = 0_u64;
        loop {
            let parcels = lane.take(self.batch_bytes());
            if parcels.is_empty() {
                lane.arrived.notified().await;
                continue;
            }
            serial += 1;
            let runs = parcels.iter().map(|parcel| &parcel.run);
            let payload = match parcels[0].run.kind() {
                Kind::Messages => self.batch(runs),
                // They go to nodes that read them, whatever others do.
                kind @ (Kind::Letters | Kind::QueueLetters) => wire::batch(kind.since(), runs),
            };
            let messages = parcels.iter().map(|parcel| parcel.run.messages()).sum();
            let bytes = payload.len();
            if self.append(number, serial, payload, messages).await {
                self.count_sent(messages, bytes);
            }
            for part in parcels.into_iter().filter_map(|parcel| parcel.part) {
                self.close(part);
            }
        }
    }

    /// Appends a batch of some messages to a node's inbox, and tries until it is there. False where they are dropped:
    /// the node is gone, so that nobody is left there to receive them, or they are more than NATS takes.
    async fn append(&self, number: usize, serial: u64, payload: Bytes, messages: usize) -> bool {
        let mut retry = Retry::new();
        let mut has_failed = false;
        let is_stored = loop {
            let node = self.table.borrow().node(number);
            let Some((name, Presence::Here | Presence::Away)) = node else {
                self.gate.count_dropped(messages as u64);
                break false;
            };
            let own = &self.settings.node;
            let subject = self.settings.subject(&format!("inbox.{name}.{own}"));
            let id = format!("{own}.{}.{name}.{serial}", self.incarnation.get());
            let message = PublishMessage::build()
                .payload(payload.clone())
                .message_id(&id);
            let answer = match self.jetstream.send_publish(subject, message).await {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            let why = match answer {
                Ok(_) => break true,
                Err(error) if self.gives_up("an inbox", messages, &error) => break false,
                Err(error) => error.to_string(),
            };
            self.status.failed_attempts.add(1);
            if !has_failed {
                tracing::warn!(
                    node = &*name,
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
