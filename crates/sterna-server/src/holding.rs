//! Clients that wait for a reader whose queue is half full, and for how long they may.
//!
//! A client is not read while it waits. Readers slow their publishers down so, and a client that reads on purpose as
//! slowly as it may would slow down all. So each connection has a budget of time for which it waits in all. It comes
//! back as time passes in which the client does not wait. A client that has used it up is let go, and its messages go by
//! the rule of the queue.
//!
//! A client that sends a message now and then does not fill a queue. So a message passes where its client has sent none for a
//! while, beyond the queue's limit. A reader that is slow on purpose stops such clients for no time.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use sterna_broker::CrowdedReader;
use sterna_net::ConnectionId;

use crate::line::Line;

/// The budget that a client needs to begin to wait, in milliseconds: otherwise one without any would wait and go on at
/// each message.
const LEAST_MS: u64 = 100;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Clients that wait, or have not their whole budget.
    clients: FxHashMap<ConnectionId, Wait>,
    /// Those that wait, in the order in which they came, by the reader that they wait for.
    rows: BTreeMap<(CrowdedReader, u64), ConnectionId>,
    next_place: u64,
    /// Those that wait for a turn.
    pub(crate) line: Line,
    /// When the budget of one is used up, or whole again.
    dues: BTreeSet<(u64, ConnectionId)>,
    /// Whether the message that is looked at passes.
    is_passage: bool,
    figures: Figures,
}

/// Figures of clients that wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    /// Clients that wait now.
    pub(crate) held: u64,
    /// Times that a client began to wait.
    pub(crate) begun: u64,
    /// The time for which clients have waited, in milliseconds.
    pub(crate) waited_ms: u64,
    /// Times that a client had used up its budget.
    pub(crate) given_up: u64,
    /// Clients that wait for a turn now.
    pub(crate) lined_up: u64,
    /// Times that a client began to wait for a turn.
    pub(crate) lined_up_times: u64,
}

#[derive(Debug)]
struct Wait {
    /// Its place in the row, while it waits.
    place: Option<(CrowdedReader, u64)>,
    /// Its own readers at that time, which take nothing meanwhile.
    own: Vec<CrowdedReader>,
    /// The time since which it waits, or waits no more, in milliseconds.
    since_ms: u64,
    /// Its budget at that time, in milliseconds.
    left_ms: u64,
    /// When a message of it passed last, in milliseconds.
    passed_ms: u64,
    due_ms: u64,
}

impl Holding {
    /// Whether nobody waits for a reader, and everybody has the whole budget.
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(crate) fn figures(&self) -> Figures {
        let (lined_up, lined_up_times) = self.line.figures();
        Figures {
            lined_up,
            lined_up_times,
            ..self.figures
        }
    }

    /// Whether a client waits, for a reader or for a turn.
    pub(crate) fn waits(&self, id: ConnectionId) -> bool {
        self.is_held(id) || self.line.has(id)
    }

    /// Whether a client waits for a reader.
    pub(crate) fn is_held(&self, id: ConnectionId) -> bool {
        (self.clients.get(&id)).is_some_and(|wait| wait.place.is_some())
    }

    /// The budget of a client that does not wait, in milliseconds; zero where it is too little to begin.
    pub(crate) fn budget_ms(&self, now_ms: u64, id: ConnectionId, most_ms: u64) -> u64 {
        let left_ms = self.clients.get(&id).map_or(most_ms, |wait| {
            let since_ms = now_ms.saturating_sub(wait.since_ms);
            wait.left_ms.saturating_add(since_ms).min(most_ms)
        });
        if left_ms >= LEAST_MS.min(most_ms) {
            left_ms
        } else {
            0
        }
    }

    /// A client with this budget waits for a reader, no longer than the second time.
    pub(crate) fn begin(
        &mut self,
        now_ms: u64,
        (id, own): (ConnectionId, Vec<CrowdedReader>),
        reader: CrowdedReader,
        (budget_ms, longest_ms): (u64, u64),
    ) {
        self.forget_due(id);
        let place = (reader, self.next_place);
        self.next_place += 1;
        self.rows.insert(place, id);
        let due_ms = now_ms.saturating_add(longest_ms);
        self.dues.insert((due_ms, id));
        let passed_ms = self.clients.get(&id).map_or(0, |wait| wait.passed_ms);
        let wait = Wait {
            place: Some(place),
            own,
            since_ms: now_ms,
            left_ms: budget_ms,
            passed_ms,
            due_ms,
        };
        let before = self.clients.insert(id, wait);
        debug_assert!(
            before.is_none_or(|wait| wait.place.is_none()),
            "a client that waits is not read"
        );
        self.figures.held += 1;
        self.figures.begun += 1;
    }

    /// When the next message of a client may pass, in milliseconds.
    pub(crate) fn next_passage_ms(&self, id: ConnectionId, interval_ms: u64) -> u64 {
        let last = self.clients.get(&id).filter(|wait| wait.passed_ms > 0);
        last.map_or(0, |wait| wait.passed_ms.saturating_add(interval_ms))
    }

    /// The message of a client that is looked at passes.
    pub(crate) fn pass(&mut self, now_ms: u64, id: ConnectionId, most_ms: u64, interval_ms: u64) {
        self.is_passage = true;
        self.forget_due(id);
        let due_ms = now_ms.saturating_add(interval_ms);
        let wait = self.clients.entry(id).or_insert(Wait {
            place: None,
            own: Vec::new(),
            since_ms: now_ms,
            left_ms: most_ms,
            passed_ms: 0,
            due_ms,
        });
        wait.passed_ms = now_ms;
        wait.due_ms = wait.due_ms.max(due_ms);
        self.dues.insert((wait.due_ms, id));
    }

    /// Whether the message that is published now passes; no other does.
    pub(crate) const fn take_passage(&mut self) -> bool {
        std::mem::replace(&mut self.is_passage, false)
    }

    /// The client that has waited longest for a reader.
    pub(crate) fn first_of(&self, reader: CrowdedReader) -> Option<ConnectionId> {
        let mut row = self.rows.range((reader, 0)..=(reader, u64::MAX));
        row.next().map(|(_, id)| *id)
    }

    /// Ends the wait of a client. Returns the reader that it waited for, and its own readers at the beginning; `None`
    /// where it does not wait.
    pub(crate) fn end(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        most_ms: u64,
    ) -> Option<(CrowdedReader, Vec<CrowdedReader>)> {
        let wait = self.clients.get_mut(&id)?;
        let place = wait.place.take()?;
        let waited_ms = now_ms.saturating_sub(wait.since_ms);
        wait.left_ms = wait.left_ms.saturating_sub(waited_ms);
        wait.since_ms = now_ms;
        let own = std::mem::take(&mut wait.own);
        self.dues.remove(&(wait.due_ms, id));
        wait.due_ms = now_ms.saturating_add(most_ms.saturating_sub(wait.left_ms));
        self.dues.insert((wait.due_ms, id));
        self.figures.given_up += u64::from(wait.left_ms == 0);
        self.figures.held -= 1;
        self.figures.waited_ms += waited_ms;
        self.rows.remove(&place);
        Some((place.0, own))
    }

    /// The same, and takes its budget away.
    pub(crate) fn exhaust(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        most_ms: u64,
    ) -> Option<(CrowdedReader, Vec<CrowdedReader>)> {
        let ended = self.end(now_ms, id, most_ms)?;
        if let Some(wait) = self.clients.get_mut(&id) {
            wait.left_ms = 0;
        }
        Some(ended)
    }

    /// A client is gone. Returns what [`end`](Self::end) does.
    pub(crate) fn forget(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
    ) -> Option<(CrowdedReader, Vec<CrowdedReader>)> {
        let ended = self.end(now_ms, id, 0);
        self.forget_due(id);
        self.clients.remove(&id);
        ended
    }

    fn forget_due(&mut self, id: ConnectionId) {
        if let Some(wait) = self.clients.get(&id) {
            self.dues.remove(&(wait.due_ms, id));
        }
    }

    /// When a client has to be looked at, in milliseconds.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.dues.first().map(|(due_ms, _)| *due_ms)
    }

    /// The next client that has used up its budget, and still waits.
    pub(crate) fn next_due(&mut self, now_ms: u64) -> Option<ConnectionId> {
        while let Some(&(due_ms, id)) = self.dues.first()
            && due_ms <= now_ms
        {
            if self.is_held(id) {
                return Some(id);
            }
            self.dues.pop_first();
            self.clients.remove(&id);
        }
        None
    }
}
