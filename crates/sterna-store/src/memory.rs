//! A store in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sterna_broker::{
    Appended, Committed, Frame, Full, LogNeeds, Message, NeedsLimits, ReadAnswer, ReadRequest,
    Store,
};

/// Keeps the log and the records in memory, for as long as a handle on it exists. Clones are handles
/// on the same state: each shard gets one.
///
/// For tests: brokers can be taken down and rebuilt from it, with other shards if need be. Only the needs of
/// readers bound its size.
#[derive(Default, Debug)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    answers: VecDeque<ReadAnswer>,
}

#[derive(Clone, Default, Debug)]
struct State {
    log: BTreeMap<u64, Arc<Message>>,
    last: u64,
    records: BTreeMap<Box<[u8]>, Box<[u8]>>,
    tokens: u64,
    is_full: bool,
    holds_answers: bool,
    is_stuck: bool,
    lacks_room: bool,
    refuses_next: bool,
    pressed_before: u64,
    needs: Option<LogNeeds>,
    /// Appends with a higher token are lost; `None` for none.
    last_kept: Option<u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another store with the same content, which later appends to this one do not change. It has no faults.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let state = State {
            is_full: false,
            holds_answers: false,
            is_stuck: false,
            lacks_room: false,
            refuses_next: false,
            pressed_before: 0,
            needs: None,
            last_kept: None,
            ..locked(&self.state).clone()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            answers: VecDeque::new(),
        }
    }

    /// Number of messages in the log, and number of records.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let state = locked(&self.state);
        (state.log.len(), state.records.len())
    }

    /// The keys of all records.
    #[must_use]
    pub fn keys(&self) -> Vec<Box<[u8]>> {
        locked(&self.state).records.keys().cloned().collect()
    }

    /// Bytes of the values of all records.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        let state = locked(&self.state);
        state.records.values().map(|value| value.len()).sum()
    }

    /// Number of appends so far.
    #[must_use]
    pub fn appends(&self) -> u64 {
        locked(&self.state).tokens
    }

    /// Keeps answers to reading back from now on, or no longer: a disk takes its time.
    pub fn hold_answers(&self, holds: bool) {
        locked(&self.state).holds_answers = holds;
    }

    /// Says from now on that it can write nothing, or no longer.
    pub fn set_stuck(&self, is_stuck: bool) {
        locked(&self.state).is_stuck = is_stuck;
    }

    /// Says from now on that records should not grow, or no longer.
    pub fn set_lacking_room(&self, lacks_room: bool) {
        locked(&self.state).lacks_room = lacks_room;
    }

    /// Loses all appends from now on but for the next `appends` ones, as if the process died between two of them.
    pub fn die_after(&self, appends: u64) {
        let mut state = locked(&self.state);
        state.last_kept = Some(state.tokens + appends);
    }

    /// Refuses the next append of messages, without a word before that it is full.
    pub fn refuse_next(&self) {
        locked(&self.state).refuses_next = true;
    }

    /// Says from now on that readers should need nothing before a position; 1 for no longer.
    pub fn set_pressed_before(&self, position: u64) {
        locked(&self.state).pressed_before = position;
    }

    /// The needs of a shard's readers, as they were told last while there was little room.
    #[must_use]
    pub fn last_needs(&self) -> Option<LogNeeds> {
        locked(&self.state).needs.clone()
    }

    /// Refuses messages from now on, or no longer.
    pub fn set_full(&self, is_full: bool) {
        locked(&self.state).is_full = is_full;
    }
}

impl Clone for MemoryStore {
    /// A handle for another shard: it has answers of its own.
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            answers: VecDeque::new(),
        }
    }
}

impl Store for MemoryStore {
    fn next_position(&self) -> u64 {
        locked(&self.state).last + 1
    }

    fn is_full(&self) -> bool {
        locked(&self.state).is_full
    }

    fn pressed_before(&self) -> u64 {
        locked(&self.state).pressed_before.max(1)
    }

    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        let mut state = locked(&self.state);
        if !frame.messages.is_empty() && (state.is_full || std::mem::take(&mut state.refuses_next))
        {
            return Err(Full);
        }
        state.tokens += 1;
        let first = state.last + 1;
        if state.last_kept.is_some_and(|last| state.tokens > last) {
            state.last += frame.messages.len() as u64;
            return Ok(Appended {
                first,
                token: state.tokens,
            });
        }
        for message in frame.messages {
            state.last += 1;
            let position = state.last;
            state.log.insert(position, Arc::clone(message));
        }
        for change in frame.changes {
            match &change.value {
                Some(value) => state.records.insert(change.key.clone(), value.clone()),
                None => state.records.remove(&change.key),
            };
        }
        Ok(Appended {
            first,
            token: state.tokens,
        })
    }

    fn is_stuck(&self) -> bool {
        locked(&self.state).is_stuck
    }

    fn lacks_room(&self) -> bool {
        let state = locked(&self.state);
        state.lacks_room || state.is_stuck
    }

    fn committed(&self) -> Committed {
        let token = locked(&self.state).tokens;
        Committed {
            written: token,
            synced: token,
        }
    }

    fn read(&mut self, request: ReadRequest) {
        let answer = self.read_now(request);
        self.answers.push_back(answer);
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        if locked(&self.state).holds_answers {
            return None;
        }
        self.answers.pop_front()
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        let state = locked(&self.state);
        let mut answer = ReadAnswer {
            reader: request.reader,
            messages: Vec::new(),
            next: request.to.min(state.last + 1).max(request.from),
        };
        let mut bytes = 0;
        for (&position, message) in state.log.range(request.from..request.to.max(request.from)) {
            let topic = message.topic();
            let mut filters = request.filters.iter();
            if !filters.any(|filter| sterna_topic::matches(filter, topic)) {
                continue;
            }
            bytes += message.body_bytes();
            let is_full = answer.messages.len() >= request.most_messages
                || (bytes > request.most_bytes && !answer.messages.is_empty());
            if is_full {
                answer.next = position;
                break;
            }
            // A copy, as from a disk.
            let mut stored = Vec::new();
            message.encode(&mut stored);
            if let Ok(message) = Message::decode(stored.into()) {
                answer.messages.push((position, Arc::new(message)));
            }
        }
        answer
    }

    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        let records = locked(&self.state).records.clone();
        for (key, value) in &records {
            visit(key, value);
        }
    }

    /// Several shards share it, and only the lowest of what they need may go; so nothing does.
    fn needed_from(&mut self, _: u64) {}

    fn hold_from(&mut self, _: u64) {}

    fn wanted_needs(&self) -> Option<NeedsLimits> {
        (self.pressed_before() > 1).then_some(NeedsLimits {
            before: u64::MAX,
            readers: 256,
            filters: 1_024,
            positions: 65_536,
        })
    }

    fn needs(&mut self, needs: LogNeeds) {
        locked(&self.state).needs = Some(needs);
    }
}
