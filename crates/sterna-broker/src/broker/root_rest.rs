//! Messages of a cluster's shared subscriptions that are given to nobody for a while, because consumers that had them
//! were lost again and again: on whichever nodes those were.

use std::sync::Arc;

use super::Broker;
use crate::api::DoorState;
use crate::attempts::HoldBack;
use crate::far_group::{Back, Resting};

impl<P: DoorState> Broker<P> {
    /// Holds a message back that has come back to its root. False where it may be given again at once.
    pub(super) fn rests_at_root(
        &mut self,
        now_ms: u64,
        group: &Arc<str>,
        (position, tag): (u64, u64),
        node: u32,
    ) -> bool {
        let queues = &mut self.queues;
        let entry = queues.nodes.entry(node);
        let pause_ms = entry.map_or(0, |entry| entry.failures.pause_ms(&queues.limits));
        let Some(root) = self.roots.get_mut(group).filter(|_| pause_ms > 0) else {
            return false;
        };
        let until_ms = now_ms.saturating_add(pause_ms);
        root.resting.insert(position, Resting { tag, until_ms });
        queues.counters.held_back[HoldBack::Lost as usize] += 1;
        let told = root.held_back.note(now_ms, HoldBack::Lost);
        if let (Some(watcher), Some(messages)) = (&queues.loss_watcher, told) {
            watcher.held_back(group, HoldBack::Lost, messages, pause_ms);
        }
        self.far.wake_by(until_ms);
        true
    }

    /// Puts messages into their places again that have been held back for long enough.
    pub(super) fn give_rested(&mut self, now_ms: u64) {
        let Some(own) = self.far.own.clone() else {
            return;
        };
        let mut rested = Vec::new();
        for (group, root) in &mut self.roots {
            let due = root.resting.extract_if(|_, one| one.until_ms <= now_ms);
            let due: Vec<(u64, Resting)> = due.collect();
            for one in root.resting.values() {
                self.far.wake_by(one.until_ms);
            }
            if due.is_empty() {
                continue;
            }
            let mut backs = Vec::with_capacity(due.len());
            for (position, Resting { tag, .. }) in due {
                root.out.insert(position, (tag, own.clone()));
                backs.push(Back::sent(position));
            }
            backs.sort_unstable_by_key(|back| std::cmp::Reverse(back.position));
            rested.push((Arc::clone(group), backs));
        }
        for (group, backs) in rested {
            self.take_back_to_root(now_ms, &group, backs);
        }
    }
}
