//! A store that keeps nothing, and where a call can panic: in the midst of the broker's work.

use std::sync::Arc;

use sterna_broker::{
    Message, Phase, QueueName, Share, Store, Stored, StoredEntry, StoredSubscription,
};

use crate::fixture::Fault;

#[derive(Debug)]
pub(crate) struct Faulty(pub(crate) Arc<Fault>);

impl Store for Faulty {
    fn session_opened(&mut self, _: &str, _: Option<&str>, _: u32) {
        self.0.call("session_opened");
    }
    fn session_closed(&mut self, _: &str, _: u32, _: Option<u64>) {
        self.0.call("session_closed");
    }
    fn session_ended(&mut self, _: &str) {
        self.0.call("session_ended");
    }
    fn subscribed(&mut self, _: &str, _: &str, _: &StoredSubscription) {
        self.0.call("subscribed");
    }
    fn unsubscribed(&mut self, _: &str, _: &str) {
        self.0.call("unsubscribed");
    }
    fn retained_set(&mut self, _: &Arc<Message>) {}
    fn retained_cleared(&mut self, _: &str) {}
    fn enqueued(&mut self, _: QueueName<'_>, _: StoredEntry) {
        self.0.call("enqueued");
    }
    fn advanced(&mut self, _: QueueName<'_>, _: u64, _: Phase) {
        self.0.call("advanced");
    }
    fn failed(&mut self, _: QueueName<'_>, _: u64, _: u16) {
        self.0.call("failed");
    }
    fn settled(&mut self, _: QueueName<'_>, _: u64) {
        self.0.call("settled");
    }
    fn group_ended(&mut self, _: &str) {
        self.0.call("group_ended");
    }
    fn protocol_saved(&mut self, _: &str, _: &[u8]) {}
    fn load(&mut self, _: Share) -> Stored {
        Stored::default()
    }
    fn is_durable(&self) -> bool {
        true
    }
}
