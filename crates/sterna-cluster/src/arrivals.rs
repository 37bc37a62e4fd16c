//! Batches of other nodes that must arrive: which of them is the next, by whichever way it comes.
//!
//! A node numbers its batches for another one, without gaps, for as long as its process runs. A batch is given to the
//! other node directly, or appended to that node's inbox, or both. The next one follows when this one is taken or
//! appended. So the inbox alone has gaps, and a batch may come twice.
//!
//! - The inbox has the last word: its batches come in order, and what is missing before one never comes.
//! - A given batch is taken if it is the next of a process whose batches are known. The first batch of a process comes by
//!   the inbox, where it is behind those of the process before it.
//! - A given batch whose earlier ones are still in the inbox waits for them. The newest of each node waits: its node
//!   gives another one when it has appended this one.
//!
//! No input or output here, and time is an argument.

use std::collections::HashMap;

/// A batch's place among those of its node: the incarnation of the node's process, and the batch's number.
pub type Number = (u64, u64);

/// Where a batch of the inbox stands among those that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It is the next.
    Next,
    /// It came before.
    Repeated,
    /// N batches before it are missing.
    AfterMissing(u64),
}

/// The fate of a given batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the next, and counts as taken from now on.
    Next,
    /// It was taken before.
    Repeated,
    /// Nothing is known of its process: it is to come by the inbox.
    Behind,
}

/// See the module. `B` is a given batch.
#[derive(Debug)]
pub struct Arrivals<B> {
    /// The last batch of each node that was taken.
    last: HashMap<String, Number>,
    given: HashMap<String, Given<B>>,
    patience_ms: u64,
}

#[derive(Debug)]
struct Given<B> {
    number: Number,
    batch: B,
    until_ms: u64,
}

impl<B> Arrivals<B> {
    /// Nothing has come yet. A given batch waits for `patience_ms` milliseconds: its node waits no longer.
    #[must_use]
    pub fn new(patience_ms: u64) -> Self {
        Self {
            last: HashMap::new(),
            given: HashMap::new(),
            patience_ms,
        }
    }

    /// A batch of a node comes by the inbox. One without a number is taken for the next.
    pub fn came(&mut self, node: &str, number: Option<Number>) -> Place {
        let Some((incarnation, serial)) = number else {
            return Place::Next;
        };
        let known = self.last.get(node).copied();
        if known.is_some_and(|known| (incarnation, serial) <= known) {
            return Place::Repeated;
        }
        self.take(node, (incarnation, serial));
        match known {
            Some((same, last)) if same == incarnation && serial - last > 1 => {
                Place::AfterMissing(serial - last - 1)
            }
            _ => Place::Next,
        }
    }

    /// A node gives a batch. It takes the place of an earlier one that still waits, and a later one keeps its place.
    pub fn give(&mut self, now_ms: u64, node: &str, number: Number, batch: B) {
        self.given.retain(|_, given| now_ms < given.until_ms);
        // It was doubled or held up on its way, and its node waits for the later one's answer alone.
        if (self.given.get(node)).is_some_and(|given| number < given.number) {
            return;
        }
        let given = Given {
            number,
            batch,
            until_ms: now_ms + self.patience_ms,
        };
        self.given.insert(node.to_owned(), given);
    }

    /// A given batch that does not have to wait, and what becomes of it; `None` where there is no such batch.
    pub fn decide(&mut self) -> Option<(Verdict, B)> {
        let decided = (self.given.iter())
            .find_map(|(node, given)| Some((node.clone(), self.verdict(node, given.number)?)));
        let (node, verdict) = decided?;
        let given = self.given.remove(&node)?;
        if verdict == Verdict::Next {
            self.take(&node, given.number);
        }
        Some((verdict, given.batch))
    }

    /// A batch counts as taken.
    fn take(&mut self, node: &str, number: Number) {
        let before = self.last.insert(node.to_owned(), number);
        debug_assert!(
            before.is_none_or(|before| before < number),
            "batches of a node are taken in order"
        );
    }

    /// Looks at every batch that waits, after [`decide`](Self::decide) had none; for tests, after each of their steps.
    ///
    /// # Panics
    /// Where one waits for nothing, or for too long.
    pub fn check(&self, now_ms: u64) {
        for (node, given) in &self.given {
            let last = self.last.get(node);
            assert!(
                last.is_some_and(|(of, _)| *of == given.number.0),
                "a batch of {node} waits whose process is known"
            );
            assert!(
                last.is_some_and(|(_, last)| given.number.1 - last > 1),
                "a batch of {node} waits for those before it"
            );
            assert!(
                given.until_ms <= now_ms + self.patience_ms,
                "a batch of {node} waits as long as its node does"
            );
        }
    }

    fn verdict(&self, node: &str, (incarnation, serial): Number) -> Option<Verdict> {
        match self.last.get(node) {
            Some((same, last)) if *same == incarnation => {
                if serial <= *last {
                    Some(Verdict::Repeated)
                } else {
                    (serial - last == 1).then_some(Verdict::Next)
                }
            }
            // Batches of the process before it may still be in the inbox.
            _ => Some(Verdict::Behind),
        }
    }
}

/// The id by which a batch is known: `node.incarnation.target.number`.
#[must_use]
pub fn id(node: &str, (incarnation, serial): Number, target: &str) -> String {
    format!("{node}.{incarnation}.{target}.{serial}")
}

/// The number in a batch's id; `None` where it has none.
#[must_use]
pub fn number_in(id: &str) -> Option<Number> {
    let mut parts = id.split('.');
    let incarnation = parts.nth(1)?.parse().ok()?;
    let serial = parts.nth(1)?.parse().ok()?;
    Some((incarnation, serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(last: Number) -> Arrivals<&'static str> {
        let mut arrivals = Arrivals::new(500);
        assert_eq!(arrivals.came("b", Some(last)), Place::Next);
        arrivals
    }

    /// What becomes of a batch that is given now.
    fn given(arrivals: &mut Arrivals<&'static str>, node: &str, number: Number) -> Option<Verdict> {
        arrivals.give(0, node, number, "it");
        arrivals.decide().map(|(verdict, _)| verdict)
    }

    #[test]
    fn a_batch_that_came_before_is_known_again_and_so_is_a_gap() {
        let mut arrivals = Arrivals::<()>::new(500);
        let mut came = |node: &str, id: &str| arrivals.came(node, number_in(id));
        assert_eq!(
            came("b", "b.7.a.4"),
            Place::Next,
            "the first that this start sees"
        );
        assert_eq!(came("b", "b.7.a.5"), Place::Next);
        assert_eq!(came("b", "b.7.a.5"), Place::Repeated, "the same again");
        assert_eq!(came("b", "b.7.a.4"), Place::Repeated, "one from before");
        assert_eq!(came("b", "b.7.a.9"), Place::AfterMissing(3));
        assert_eq!(
            came("c", "c.3.a.1"),
            Place::Next,
            "another node counts for itself"
        );
        assert_eq!(came("b", "b.9.a.1"), Place::Next, "a new start counts anew");
        assert_eq!(
            came("b", "b.7.a.10"),
            Place::Repeated,
            "what the earlier start has left"
        );
        assert_eq!(came("b", "no id"), Place::Next, "nothing tells");
    }

    #[test]
    fn an_id_has_its_number() {
        assert_eq!(id("b", (7, 4), "a-1"), "b.7.a-1.4");
        assert_eq!(number_in(&id("b", (7, 4), "a-1")), Some((7, 4)));
        for other in ["", "b", "b.7", "b.7.a", "b.x.a.4", "b.7.a.x"] {
            assert_eq!(number_in(other), None, "{other}");
        }
    }

    #[test]
    fn the_next_is_taken_and_its_repetition_is_known_by_either_way() {
        let mut arrivals = known((7, 1));
        assert_eq!(given(&mut arrivals, "b", (7, 2)), Some(Verdict::Next));
        assert_eq!(given(&mut arrivals, "b", (7, 2)), Some(Verdict::Repeated));
        assert_eq!(given(&mut arrivals, "b", (7, 1)), Some(Verdict::Repeated));
        // Its answer was lost.
        assert_eq!(arrivals.came("b", Some((7, 2))), Place::Repeated);
        // The inbox has no gap where the others were given.
        assert_eq!(given(&mut arrivals, "b", (7, 3)), Some(Verdict::Next));
        assert_eq!(arrivals.came("b", Some((7, 4))), Place::Next);
        assert_eq!(arrivals.came("b", Some((7, 7))), Place::AfterMissing(2));
        assert_eq!(given(&mut arrivals, "b", (7, 6)), Some(Verdict::Repeated));
    }

    /// Otherwise what an earlier process has left in the inbox would count as repeated.
    #[test]
    fn the_first_of_a_process_comes_by_the_inbox() {
        let mut arrivals = known((7, 4));
        assert_eq!(given(&mut arrivals, "c", (3, 1)), Some(Verdict::Behind));
        assert_eq!(given(&mut arrivals, "b", (8, 1)), Some(Verdict::Behind));
        assert_eq!(arrivals.came("b", Some((7, 5))), Place::Next, "it was left");
        assert_eq!(arrivals.came("b", Some((8, 1))), Place::Next);
        assert_eq!(given(&mut arrivals, "b", (8, 2)), Some(Verdict::Next));
        assert_eq!(given(&mut arrivals, "b", (7, 6)), Some(Verdict::Behind));
    }

    #[test]
    fn what_is_ahead_waits_for_the_inbox() {
        let mut arrivals = known((7, 1));
        assert_eq!(given(&mut arrivals, "b", (7, 4)), None);
        assert_eq!(arrivals.came("b", Some((7, 2))), Place::Next);
        assert_eq!(arrivals.decide(), None);
        assert_eq!(arrivals.came("b", Some((7, 3))), Place::Next);
        assert_eq!(arrivals.decide(), Some((Verdict::Next, "it")));
        assert_eq!(arrivals.decide(), None, "once");
        // The inbox has that one, too, before the other.
        assert_eq!(given(&mut arrivals, "b", (7, 6)), None);
        assert_eq!(arrivals.came("b", Some((7, 5))), Place::Next);
        assert_eq!(arrivals.came("b", Some((7, 6))), Place::Next);
        assert_eq!(arrivals.decide(), Some((Verdict::Repeated, "it")));
    }

    #[test]
    fn the_newest_of_each_node_waits_and_none_for_longer_than_its_node() {
        let mut arrivals = known((7, 1));
        arrivals.came("c", Some((3, 1)));
        arrivals.give(0, "b", (7, 3), "first");
        arrivals.give(100, "b", (7, 4), "second");
        arrivals.give(200, "c", (3, 5), "of another");
        assert_eq!(arrivals.given.len(), 2);
        arrivals.came("b", Some((7, 3)));
        assert_eq!(arrivals.decide(), Some((Verdict::Next, "second")));
        // What is doubled on its way comes behind a later one.
        arrivals.give(300, "b", (7, 6), "third");
        arrivals.give(400, "b", (7, 2), "late");
        arrivals.came("b", Some((7, 5)));
        assert_eq!(arrivals.decide(), Some((Verdict::Next, "third")));
        arrivals.give(700, "b", (7, 9), "later");
        let waiting: Vec<_> = arrivals.given.keys().collect();
        assert_eq!(waiting, ["b"]);
    }
}
