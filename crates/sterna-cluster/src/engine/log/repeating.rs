//! Entries that NATS may have although it has not said so.
//!
//! NATS leaves out an entry whose name it knows, and it knows names for a while only. An append that is tried again
//! later would be a second entry. So before that, this node's own reader of the log says whether the entry is there.

use std::collections::HashMap;
use std::time::Duration;

use super::position;
use crate::engine::Core;
use crate::engine::streams::DUPLICATE_WINDOW;

/// Time after which NATS may not know a name again. An attempt takes a part of the window, too.
const SAFE_MS: u64 = DUPLICATE_WINDOW.as_millis() as u64 / 2;

#[derive(Debug)]
struct Attempts {
    /// When the entry was last known not to be in the log.
    absent_at_ms: u64,
    has_come: bool,
}

/// The entries that are under way, by their names.
#[derive(Debug, Default)]
pub(super) struct Repeats(HashMap<String, Attempts>);

impl Repeats {
    /// An entry is about to be appended.
    fn attempt(&mut self, now_ms: u64, name: &str) {
        if !self.0.contains_key(name) {
            let attempts = Attempts {
                absent_at_ms: now_ms,
                has_come: false,
            };
            self.0.insert(name.to_owned(), attempts);
        }
    }

    /// Whether NATS may have an entry and not know its name.
    fn is_late(&self, now_ms: u64, name: &str) -> bool {
        let attempts = self.0.get(name);
        attempts.is_some_and(|attempts| attempts.absent_at_ms + SAFE_MS <= now_ms)
    }

    /// An entry comes by.
    fn comes(&mut self, name: &str) {
        if let Some(attempts) = self.0.get_mut(name) {
            attempts.has_come = true;
        }
    }

    /// The reader has come to where the log ended at a time. Whether it has seen the entry.
    fn has_come(&mut self, read_ms: u64, name: &str) -> bool {
        self.0.get_mut(name).is_some_and(|attempts| {
            attempts.absent_at_ms = read_ms;
            attempts.has_come
        })
    }

    /// NATS has an entry, or never takes it.
    fn end(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl Core {
    /// An entry of the log comes by under a name.
    pub(super) fn note_name(&self, name: &str) {
        self.log.repeats.borrow_mut().comes(name);
    }

    /// Entries with these names are about to be appended. Returns for each whether the log has it already. `None`
    /// where that cannot be said now.
    pub(super) async fn are_in_log(&self, names: &[&str]) -> Option<Vec<bool>> {
        loop {
            let now_ms = self.now_ms();
            let mut are_late = false;
            {
                let mut repeats = self.log.repeats.borrow_mut();
                for name in names {
                    repeats.attempt(now_ms, name);
                    are_late |= repeats.is_late(now_ms, name);
                }
            }
            if !are_late {
                return Some(vec![false; names.len()]);
            }
            let last = self.last_of_log().await.ok()?;
            while self.log.view.end() <= position(last, 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut repeats = self.log.repeats.borrow_mut();
            let each = names.iter().map(|name| repeats.has_come(now_ms, name));
            let have_come: Vec<bool> = each.collect();
            // The reader may have had a long way to the end.
            if self.now_ms() < now_ms + SAFE_MS || have_come.iter().all(|has_come| *has_come) {
                return Some(have_come);
            }
        }
    }

    /// An entry is not under way any more.
    pub(super) fn end_attempts(&self, name: &str) {
        self.log.repeats.borrow_mut().end(name);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Attempt {
        /// It does not get to NATS.
        Lost,
        /// NATS has it, and does not say so.
        Unanswered,
        Answered,
    }

    fn attempts() -> impl Strategy<Value = Vec<(u64, Attempt)>> {
        let attempt = prop_oneof![
            Just(Attempt::Lost),
            Just(Attempt::Unanswered),
            Just(Attempt::Answered),
        ];
        proptest::collection::vec((0..200_000_u64, attempt), 1..12)
    }

    proptest! {
        /// A model of NATS: it knows a name again for the window.
        #[test]
        fn an_entry_is_in_the_log_once_however_late_it_is_tried_again(attempts in attempts()) {
            let mut repeats = Repeats::default();
            let (mut now_ms, mut stored_ms) = (0, Vec::<u64>::new());
            for (pause_ms, attempt) in attempts {
                now_ms += pause_ms;
                repeats.attempt(now_ms, "a");
                if repeats.is_late(now_ms, "a") {
                    if !stored_ms.is_empty() {
                        repeats.comes("a");
                    }
                    if repeats.has_come(now_ms, "a") {
                        break;
                    }
                }
                now_ms += 2_000;
                let knows = |at: &u64| at + DUPLICATE_WINDOW.as_millis() as u64 > now_ms;
                if !matches!(attempt, Attempt::Lost) && !stored_ms.last().is_some_and(knows) {
                    stored_ms.push(now_ms);
                }
                if matches!(attempt, Attempt::Answered) {
                    repeats.end("a");
                    break;
                }
            }
            prop_assert!(stored_ms.len() < 2);
        }
    }
}
