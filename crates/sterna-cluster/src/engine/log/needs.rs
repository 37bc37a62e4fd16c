//! The positions of the log that nodes need, and the removal of entries that nobody needs.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use super::sequence;
use crate::conditions::Remark;
use crate::engine::Core;
use crate::engine::streams::LOG;

/// How often is looked how large the log is, and what nobody needs of it.
const LOOK: Duration = Duration::from_secs(1);

/// Time for which what nobody needs stays: a reader may be on its way from one node to another.
const LINGER_MS: u64 = 30_000;

/// The part of the log's bytes at which publishers are refused: behind it, NATS would refuse what was accepted.
const FULL_EIGHTHS: u64 = 7;

/// The positions that nodes have said they need, by their names and incarnations.
#[derive(Debug, Default)]
pub(super) struct Needs(BTreeMap<(Box<str>, u64), u64>);

impl Needs {
    /// A process has said which position it needs. The need of an earlier process of the node holds until that is
    /// swept, but a late word of it is ignored.
    fn note(&mut self, node: &str, incarnation: u64, position: u64) {
        let (name, last) = ((node.into(), incarnation), (node.into(), u64::MAX));
        let later = (Bound::Excluded(&name), Bound::Included(&last));
        if self.0.range::<(Box<str>, u64), _>(later).next().is_none() {
            self.0.insert(name, position);
        }
    }

    /// Nobody needs anything any more of a node's processes up to an incarnation.
    fn forget(&mut self, node: &str, incarnation: u64) {
        (self.0).retain(|(name, known), _| **name != *node || *known > incarnation);
    }

    /// The lowest position that a node's processes before an incarnation need.
    fn of_earlier(&self, node: &str, incarnation: u64) -> Option<u64> {
        let earlier = (node.into(), 0)..(node.into(), incarnation);
        self.0.range(earlier).map(|(_, at)| *at).min()
    }

    fn lowest(&self) -> Option<u64> {
        self.0.values().copied().min()
    }
}

impl Core {
    /// A node has said what it needs of the log.
    pub(in crate::engine) fn note_need(&self, node: &str, incarnation: u64, position: u64) {
        (self.log.needs.borrow_mut()).note(node, incarnation, position);
    }

    /// The lowest position that this node's sessions need, and those that an earlier start of it has left.
    pub(in crate::engine) fn own_need(&self) -> u64 {
        let needs = self.log.needs.borrow();
        let earlier = needs.of_earlier(&self.settings.node, self.incarnation.get());
        self.present_need().min(earlier.unwrap_or(u64::MAX))
    }

    /// The position that this process needs, also for sessions that nobody else has yet, or that others would read from if it died. While the log is full, only
    /// the first counts.
    fn present_need(&self) -> u64 {
        let handed_over = self.handed_over.borrow().need();
        let needed = (self.log.view.needed()).min(handed_over.unwrap_or(u64::MAX));
        if self.gate.is_log_full() {
            return needed;
        }
        needed.min(self.settled_to())
    }

    /// Nobody needs anything any more of a node's processes up to an incarnation.
    pub(in crate::engine) fn forget_need(&self, node: &str, incarnation: u64) {
        (self.log.needs.borrow_mut()).forget(node, incarnation);
        (self.log.tail.borrow_mut()).forget(node, incarnation);
    }

    /// The nodes that need something and were never seen, with their incarnations.
    pub(in crate::engine) fn unknown_needs(&self) -> Vec<(String, u64)> {
        let (needs, owners) = (self.log.needs.borrow(), self.owners.borrow());
        let processes = needs.0.keys();
        let unknown = processes.filter(|(name, _)| !owners.knows(name));
        unknown
            .map(|(name, incarnation)| (name.to_string(), *incarnation))
            .collect()
    }

    /// All nodes' needs that were written before this start are known.
    pub(in crate::engine) fn knows_needs(&self) {
        self.log.knows_needs.set(true);
    }

    /// Refuses publishers while the log is full, and removes what nobody needs. Every node does, and finds the same.
    pub(in crate::engine) async fn look_after_log(self: Rc<Self>) {
        let mut needed = VecDeque::<(u64, u64)>::new();
        let mut cleared = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(mut stream) = self.jetstream.get_stream(self.settings.stream(LOG)).await else {
                continue;
            };
            let Ok(info) = stream.info().await else {
                continue;
            };
            let bytes = info.state.bytes;
            let is_full = bytes >= self.settings.log_bytes / 8 * FULL_EIGHTHS;
            let remark = is_full.then(|| {
                let most = self.settings.log_bytes;
                format!(
                    "the log is full: {bytes} bytes of {most} (cluster.maximum_log_bytes). Publishers of what sessions \
                     want that outlive their connections are refused"
                )
            });
            self.status.conditions.remark(Remark::FullLog, remark);
            if self.gate.set_log_full(is_full) != is_full {
                if is_full {
                    tracing::warn!(
                        bytes,
                        "the log is full (cluster.maximum_log_bytes): publishers of what sessions want that \
                         outlive their connections are refused"
                    );
                } else {
                    tracing::info!(bytes, "the log has room again");
                }
            }
            self.status.log_bytes.set(bytes);
            if !self.log.knows_needs.get() || self.fence.is_shut() {
                needed.clear();
                continue;
            }
            let now_ms = self.now_ms();
            let own = self.present_need();
            let all = (self.log.needs.borrow().lowest()).map_or(own, |low| low.min(own));
            needed.push_back((now_ms, all));
            while needed
                .front()
                .is_some_and(|(at, _)| at + LINGER_MS <= now_ms)
            {
                let Some((_, position)) = needed.pop_front() else {
                    break;
                };
                let low = needed.iter().fold(position, |low, (_, at)| low.min(*at));
                let first = sequence(low);
                if first > cleared + 1 && stream.purge().sequence(first).await.is_ok() {
                    cleared = first - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_process_needs_holds_until_it_is_swept() {
        let mut needs = Needs::default();
        needs.note("a", 3, 700);
        needs.note("a-b", 4, 900);
        needs.note("a", 9, 800);
        needs.note("a", 3, 100);
        assert_eq!(needs.lowest(), Some(700), "what came late is nothing");
        assert_eq!(needs.of_earlier("a", 9), Some(700));
        assert_eq!(needs.of_earlier("a", 3), None);
        needs.note("a", 9, 850);
        needs.forget("a", 8);
        assert_eq!(needs.of_earlier("a", 9), None);
        assert_eq!(needs.lowest(), Some(850));
        needs.forget("a", 9);
        assert_eq!(needs.lowest(), Some(900), "another node");
        needs.note("a", u64::MAX, 100);
        needs.note("a", 9, 50);
        assert_eq!(
            needs.lowest(),
            Some(100),
            "the highest incarnation is one as others"
        );
    }
}
