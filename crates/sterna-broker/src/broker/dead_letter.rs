//! Messages of kept queues that consumers reject, or that no consumer could take in as many deliveries as
//! the queue allows.

use std::sync::Arc;

use super::Broker;
use super::companions::{Beside, Name};
use crate::api::{
    DoorState, PublishRefusal, Routed, SessionKey, SubscribeError, SubscribeOptions, Subscribed,
};
use crate::attempts::{Attempts, Comeback, Refusals};
use crate::directory::RetainedBy;
use crate::far_group::root_name;
use crate::losses::LossReason;
use crate::mail::{Letter, Returned};
use crate::message::{Message, Origin};
use crate::peers::Once;
use crate::queue_rules::{DeadLetter, QueueRules};
use crate::queues::Dead;

impl<P: DoorState> Broker<P> {
    /// Subscribes a session to a shared subscription whose queue is kept. The queue gets its rules, in place of
    /// those that it had.
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

    /// Publishes a message to the dead letters of its queue, where the queue is. Where they have no room it goes back
    /// to its queue: an acknowledged message is not lost because consumers reject it.
    ///
    /// The letter is appended with the cursor that has passed the message: both are kept, or none.
    pub(super) fn bury(&mut self, now_ms: u64, dead: Dead) {
        let (group, position) = (dead.group, dead.position);
        if let Some(home) = self.index.home(group)
            && home != self.shard
        {
            return self.send(home, Letter::Bury(Box::new(dead)));
        }
        if self.reject_in_branch(&dead) {
            return;
        }
        // The root of a queue has its rules alone.
        let known = self.queues.groups.get(&group);
        let is_root = known.is_some_and(|known| known.root.is_some());
        let rules = known.and_then(|known| known.rules.clone());
        let rules = rules.or_else(|| self.index.rules(group).map(Arc::clone));
        let Some((rules, topic)) = rules
            .as_ref()
            .and_then(|rules| Some((rules, rules.dead_letter.as_ref()?)))
        else {
            let message = Some(&*dead.message);
            if is_root {
                self.queues.lose_of_group(group, message, LossReason::Dead);
            } else {
                let reader = self.index.filter_of_group(group).unwrap_or_default();
                self.queues
                    .lose_of_reader(reader, message, LossReason::Dead);
            }
            self.queues.settle_in_group(group, position);
            return;
        };
        let letter = DeadLetter {
            topic,
            queue: &rules.name,
            cause: dead.cause,
            failures: dead.failures.counted(&self.queues.limits),
        };
        let letter = rules.reader.dead_letter(&dead.message, &letter);
        if position != 0 {
            self.queues.settle_in_group(group, position);
            self.queues.write_group_cursor(group);
        }
        let routed = letter.map(|letter| self.route_dead_letter(now_ms, letter, &dead));
        if routed.is_some_and(|routed| !routed.is_refused() && routed.matched > 0) {
            self.queues.counters.dead_lettered += 1;
            if let Some(known) = self.queues.groups.get_mut(&group) {
                known.refusals = Refusals::default();
            }
            return;
        }
        if position != 0 {
            let attempts = Attempts {
                failures: dead.failures,
                was_sent: true,
            };
            (self.queues).note_in_group(group, position, |log| log.enter(position, attempts));
            // The cursor that has passed it is not kept without its letter.
            self.queues.write_group_cursor(group);
        }
        let returned = Returned {
            message: dead.message,
            tag: dead.tag,
            failures: dead.failures,
            position: dead.position,
            redelivered: true,
            refused_by: None,
            why: Comeback::Undead,
        };
        if is_root {
            let hashing = self.directory.hashing();
            return (self.queues).take_back(now_ms, group, vec![returned], hashing);
        }
        self.give_back(vec![(dead.group, returned)]);
    }

    /// Routes a dead letter. In a cluster it goes by the log, before the cursor that has passed the message. Where the node
    /// dies between the two, the next one does it again by the same name.
    fn route_dead_letter(&mut self, now_ms: u64, letter: Message, dead: &Dead) -> Routed {
        if !self.is_in_cluster() {
            return self.route_alone(now_ms, letter, false, RetainedBy::default());
        }
        if !self.takes_moved(now_ms, &letter) {
            return Routed {
                refused: Some(PublishRefusal::QueueFull),
                ..Routed::default()
            };
        }
        let group = self.queues.groups.get(&dead.group);
        let filter = group.map_or("", |group| &group.filter);
        let once = Once {
            session: Origin::of_client(root_name(filter).text()).0,
            round: dead.position,
            packet_id: dead.failures.said,
        };
        let mut beside = Beside {
            name: Some(Name::Given(once, None)),
            ..Beside::default()
        };
        self.route(now_ms, letter, false, &mut beside)
    }
}
