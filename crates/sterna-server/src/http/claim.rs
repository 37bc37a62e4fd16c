//! Requests with a key in a cluster: all nodes are asked whether another does, or has done, the request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sterna_cluster::Asker;
use sterna_cluster::requests::Begun;

use super::registry::{Fingerprint, KeyRecord};

/// A question about a key, which belongs to the request that waits for the answer. The key is free again when it is
/// dropped, unless the request was done.
#[derive(Debug)]
pub(crate) struct Claim {
    asker: Asker,
    record: KeyRecord,
    place: Arc<Place>,
    is_done: bool,
}

/// The place of an answer, until it comes and until nobody waits for it any more. Whichever of both is later finds the
/// other, on any two threads.
#[derive(Debug, Default)]
struct Place(Mutex<State>);

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Waiting,
    Answered(Begun),
    Abandoned,
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the answer; false where nobody waits for it any more.
    fn put(&self, begun: Begun) -> bool {
        let mut state = self.state();
        if matches!(*state, State::Abandoned) {
            return false;
        }
        *state = State::Answered(begun);
        true
    }

    /// Nobody waits any more. Returns the answer, where there is one.
    fn abandon(&self) -> Option<Begun> {
        let before = std::mem::replace(&mut *self.state(), State::Abandoned);
        match before {
            State::Answered(begun) => Some(begun),
            State::Waiting | State::Abandoned => None,
        }
    }

    fn answer(&self) -> Option<Begun> {
        match &*self.state() {
            State::Answered(begun) => Some(begun.clone()),
            State::Waiting | State::Abandoned => None,
        }
    }
}

impl Claim {
    /// Asks. `wake` is called when there is an answer.
    pub(crate) fn ask(
        asker: &Asker,
        record: KeyRecord,
        fingerprint: Fingerprint,
        kept_for_s: u32,
        wake: impl FnOnce() + Send + 'static,
    ) -> Self {
        let place = Arc::<Place>::default();
        let (answer, giver) = (Arc::clone(&place), asker.clone());
        let reply = move |begun: Begun| {
            let is_first = matches!(begun, Begun::First(_));
            if answer.put(begun) {
                wake();
            } else if is_first {
                giver.give_up(&record);
            }
        };
        if !asker.begin(&record, fingerprint.as_bytes(), kept_for_s, reply) {
            place.put(Begun::Away);
        }
        Self {
            asker: asker.clone(),
            record,
            place,
            is_done: false,
        }
    }

    /// The answer, where there is one.
    pub(crate) fn answer(&self) -> Option<Begun> {
        self.place.answer()
    }

    /// The request was done, or is told to the cluster as such.
    pub(crate) const fn done(&mut self) {
        self.is_done = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let answer = self.place.abandon();
        if !self.is_done && matches!(answer, Some(Begun::First(_))) {
            self.asker.give_up(&self.record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_both_ends_finds_that_a_key_was_begun_with_for_nobody() {
        let place = Place::default();
        assert_eq!(place.answer(), None);
        assert!(place.put(Begun::First(1)));
        assert_eq!(place.answer(), Some(Begun::First(1)));
        assert_eq!(place.abandon(), Some(Begun::First(1)), "who goes finds it");
        let place = Place::default();
        assert_eq!(place.abandon(), None);
        assert!(!place.put(Begun::First(1)), "who answers finds it");
        assert_eq!(place.abandon(), None, "and nobody else");
    }
}
