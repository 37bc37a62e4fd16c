//! Whether this node hears what others say, itself among them.
//!
//! NATS brings a node its own words. One whose words do not come back is deaf: it would take all others for gone, and
//! drop what it has for them. One that reads another's marks, and hears none of that one's words, is deaf to it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// A process whose marks come.
#[derive(Debug)]
struct Marked {
    incarnation: u64,
    since_ms: u64,
    last_ms: u64,
}

/// See the module. Times are milliseconds since the engine's start.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// When this node's own word came last, or its connection began.
    own_ms: Cell<u64>,
    /// Whether it did not come in time, and has not come since.
    is_deaf: Cell<bool>,
    marks: RefCell<HashMap<Arc<str>, Marked>>,
}

impl Hearing {
    /// The connection is another, or this process has stood still: nothing could be heard before.
    pub(super) fn begins(&self, now_ms: u64) {
        self.own_ms.set(now_ms);
        self.marks.borrow_mut().clear();
    }

    /// A word of this process has come.
    pub(super) fn heard_itself(&self, now_ms: u64) {
        self.own_ms.set(now_ms);
        self.is_deaf.set(false);
    }

    /// Whether this node's own words come: one is deaf that has heard none for `lease_ms`, until one comes.
    pub(super) fn hears_itself(&self, now_ms: u64, lease_ms: u64) -> bool {
        if now_ms.saturating_sub(self.own_ms.get()) >= lease_ms {
            self.is_deaf.set(true);
        }
        !self.is_deaf.get()
    }

    /// A mark of another process has come. Marks with more than `lease_ms` between them are no sign of life.
    pub(super) fn marked(&self, now_ms: u64, node: &str, incarnation: u64, lease_ms: u64) {
        let mut marks = self.marks.borrow_mut();
        if let Some(known) = marks.get_mut(node)
            && known.incarnation == incarnation
            && now_ms.saturating_sub(known.last_ms) < lease_ms
        {
            known.last_ms = now_ms;
            return;
        }
        let marked = Marked {
            incarnation,
            since_ms: now_ms,
            last_ms: now_ms,
        };
        marks.insert(node.into(), marked);
    }

    /// Those of some silent processes that live: their marks have come for `silent_ms`, and one within `lease_ms`.
    pub(super) fn unheard<'a>(
        &self,
        now_ms: u64,
        (silent_ms, lease_ms): (u64, u64),
        silent: impl Iterator<Item = (&'a Arc<str>, u64)>,
    ) -> Vec<Arc<str>> {
        let mut marks = self.marks.borrow_mut();
        let is_fresh = |marked: &Marked| now_ms.saturating_sub(marked.last_ms) < lease_ms;
        marks.retain(|_, marked| is_fresh(marked));
        let lives = |node: &Arc<str>, incarnation: u64| {
            marks.get(node).is_some_and(|marked| {
                marked.incarnation == incarnation && marked.last_ms - marked.since_ms >= silent_ms
            })
        };
        let unheard = silent.filter(|(node, incarnation)| lives(node, *incarnation));
        unheard.map(|(node, _)| Arc::clone(node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_MS: u64 = 1_000;
    const SILENT_MS: u64 = 4_000;

    #[test]
    fn a_node_whose_own_words_do_not_come_is_deaf() {
        let hearing = Hearing::default();
        hearing.begins(10_000);
        assert!(hearing.hears_itself(10_999, LEASE_MS));
        assert!(!hearing.hears_itself(11_000, LEASE_MS));
        hearing.begins(11_000);
        assert!(
            !hearing.hears_itself(11_000, LEASE_MS),
            "a connection is no word"
        );
        hearing.heard_itself(11_000);
        assert!(hearing.hears_itself(11_999, LEASE_MS));
    }

    #[test]
    fn a_silent_node_whose_marks_come_lives() {
        let (hearing, node): (_, Arc<str>) = (Hearing::default(), "b".into());
        let unheard = |now_ms, incarnation| {
            let silent = std::iter::once((&node, incarnation));
            let found = hearing.unheard(now_ms, (SILENT_MS, LEASE_MS), silent);
            !found.is_empty()
        };
        for now_ms in (0..=SILENT_MS).step_by(500) {
            assert!(!unheard(now_ms, 7), "{now_ms}: its word may be on its way");
            hearing.marked(now_ms, &node, 7, LEASE_MS);
        }
        assert!(unheard(SILENT_MS, 7));
        assert!(!unheard(SILENT_MS, 8), "that is another process");
        assert!(!unheard(SILENT_MS + LEASE_MS, 7), "its marks have ceased");
        hearing.marked(SILENT_MS + LEASE_MS, &node, 7, LEASE_MS);
        assert!(!unheard(SILENT_MS + LEASE_MS, 7), "it was cut off");
    }
}
