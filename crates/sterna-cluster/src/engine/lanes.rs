//! Lanes for messages that must arrive at a node. They are appended to the node's inbox, one batch after the other.
//!
//! A batch is tried until NATS has it, or the node is gone. The next batch begins only after that, so the inbox has
//! all of them in their order. NATS leaves out a batch that it has already, and so does the node at the other end.
//! Batches for a node are counted for as long as this process runs. So its lane stays when it is gone for good.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

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
            if self.append(&node, serial, payload, messages).await {
                self.count_sent(messages, bytes);
            }
            for part in parcels.into_iter().filter_map(|parcel| parcel.part) {
                self.close(part);
            }
        }
    }

    /// Appends a batch of some messages to a node's inbox, and tries until it is there. False where they are dropped:
    /// the node is gone, so that nobody is left there to receive them, or they are more than NATS takes.
    async fn append(&self, node: &str, serial: u64, payload: Bytes, messages: usize) -> bool {
        let mut retry = Retry::new();
        let mut has_failed = false;
        let is_stored = loop {
            let presence = self.table.borrow().presence(node);
            let Some(Presence::Here | Presence::Away) = presence else {
                self.gate.count_dropped(messages as u64);
                break false;
            };
            let own = &self.settings.node;
            let subject = self.settings.subject(&format!("inbox.{node}.{own}"));
            let id = format!("{own}.{}.{node}.{serial}", self.incarnation.get());
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
