//! Messages of kept queues that consumers reject, or that no consumer could take in as many deliveries as
//! the queue allows.

use std::sync::Arc;

use super::Broker;
use crate::api::SessionKey;
use crate::api::{SubscribeError, SubscribeOptions, Subscribed};
use crate::mail::Returned;
use crate::queue_rules::{DeadLetter, QueueRules};
use crate::queues::Dead;

impl<P: Default + Send> Broker<P> {
    /// Subscribes a session to a shared subscription whose queue is kept, and gives that queue its rules,
    /// in place of those that it had.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe); then the rules are as they were.
    pub fn keep_queue(
        &mut self,
        now_ms: u64,
        session: SessionKey,
        filter: &str,
        options: SubscribeOptions,
        rules: QueueRules,
    ) -> Result<Subscribed, SubscribeError> {
        let options = SubscribeOptions {
            keep: true,
            ..options
        };
        let subscribed = self.subscribe(now_ms, session, filter, options)?;
        let (filter, rules) = (Arc::from(filter), Arc::new(rules));
        self.edit_log(|log| log.set_rules(&filter, rules));
        self.finish(now_ms);
        Ok(subscribed)
    }

    /// Publishes a message to the dead letters of its queue. Where they have no room it goes back to its
    /// queue: an acknowledged message is not lost because consumers reject it.
    pub(super) fn bury(&mut self, now_ms: u64, dead: Dead) {
        let counters = &mut self.queues.counters;
        let Some(rules) = self.index.rules(dead.group).map(Arc::clone) else {
            counters.dropped_dead += 1;
            return;
        };
        let Some(topic) = &rules.dead_letter else {
            counters.dropped_dead += 1;
            return;
        };
        let letter = DeadLetter {
            topic,
            queue: &rules.name,
            cause: dead.cause,
            failures: dead.failures,
        };
        let letter = rules.reader.dead_letter(&dead.message, &letter);
        let routed = letter.map(|letter| self.route(now_ms, letter));
        if routed.is_some_and(|routed| !routed.refused && routed.matched > 0) {
            self.queues.counters.dead_lettered += 1;
            return;
        }
        let returned = Returned {
            message: dead.message,
            tag: dead.tag,
            failures: dead.failures,
            in_group_store: false,
            redelivered: true,
            refused_by: None,
            is_undead: true,
        };
        self.give_back(vec![(dead.group, returned)]);
    }
}
