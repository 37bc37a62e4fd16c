//! Requests with a key in a cluster: all nodes are asked whether another does, or has done, the request.

use std::sync::{Arc, Mutex, PoisonError};

use sterna_cluster::Asker;
use sterna_cluster::requests::Begun;

use super::registry::{Fingerprint, KeyRecord};

/// A question about a key, which belongs to the request that waits for the answer. The key is free again when it is
/// dropped, unless the request was done.
#[derive(Debug)]
pub(crate) struct Claim {
    asker: Asker,
    record: KeyRecord,
    answer: Arc<Mutex<Option<Begun>>>,
    is_done: bool,
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
        let answer = Arc::new(Mutex::new(None));
        let (place, giver) = (Arc::downgrade(&answer), asker.clone());
        let reply = move |begun: Begun| {
            let is_first = matches!(begun, Begun::First(_));
            let Some(answer) = place.upgrade() else {
                // Nobody waits any more.
                if is_first {
                    giver.give_up(&record);
                }
                return;
            };
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
            drop(answer);
            wake();
        };
        if !asker.begin(&record, fingerprint.as_bytes(), kept_for_s, reply) {
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Begun::Away);
        }
        Self {
            asker: asker.clone(),
            record,
            answer,
            is_done: false,
        }
    }

    /// The answer, where there is one.
    pub(crate) fn answer(&self) -> Option<Begun> {
        let answer = self.answer.lock();
        answer.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The request was done, or is told to the cluster as such.
    pub(crate) const fn done(&mut self) {
        self.is_done = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_done && matches!(self.answer(), Some(Begun::First(_))) {
            self.asker.give_up(&self.record);
        }
    }
}
