//! A store that answers late, in parts, and at times that it has not written yet what is asked for.

use std::cell::Cell;

use sterna_broker::{Appended, Committed, Frame, Full, ReadAnswer, ReadRequest, Store};
use sterna_store::MemoryStore;

use crate::random::Random;

thread_local! {
    /// Answers that are yet to come, of all such stores of the thread.
    static AWAITED: Cell<usize> = const { Cell::new(0) };
    /// How often the shards are to be woken for what was not written.
    static UNWRITTEN: Cell<usize> = const { Cell::new(0) };
}

/// Whether the shards are to be woken: an answer is yet to come, or something was not written before.
pub(crate) fn is_awaited() -> bool {
    if AWAITED.get() > 0 {
        return true;
    }
    let unwritten = UNWRITTEN.get();
    UNWRITTEN.set(unwritten.saturating_sub(1));
    unwritten > 0
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LateStore {
    store: MemoryStore,
    awaited: usize,
    random: Random,
}

impl LateStore {
    pub(crate) fn new(store: &MemoryStore) -> Self {
        Self {
            store: store.clone(),
            awaited: 0,
            random: Random::from_state(store.appends() | 1),
        }
    }

    fn await_answers(&mut self, awaited: usize) {
        AWAITED.set(AWAITED.get() + awaited - self.awaited);
        self.awaited = awaited;
    }
}

impl Drop for LateStore {
    fn drop(&mut self) {
        self.await_answers(0);
    }
}

impl Store for LateStore {
    fn next_position(&self) -> u64 {
        self.store.next_position()
    }

    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        self.store.append(frame)
    }

    fn is_full(&self) -> bool {
        self.store.is_full()
    }

    fn committed(&self) -> Committed {
        self.store.committed()
    }

    fn read(&mut self, mut request: ReadRequest) {
        self.await_answers(self.awaited + 1);
        match self.random.below(4) {
            0 => {
                request.to = request.from;
                UNWRITTEN.set(2);
            }
            1 => request.most_messages = 1,
            _ => {}
        }
        self.store.read(request);
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        if self.awaited == 0 || self.random.below(2) == 0 {
            return None;
        }
        self.await_answers(self.awaited - 1);
        self.store.next_answer()
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        self.store.read_now(request)
    }

    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.store.load(visit);
    }

    fn needed_from(&mut self, position: u64) {
        self.store.needed_from(position);
    }
    fn hold_from(&mut self, position: u64) {
        self.store.hold_from(position);
    }
}
