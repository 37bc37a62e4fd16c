//! The broker's trait on a handle of the engine.

use std::sync::{Arc, OnceLock};

use sterna_broker::{
    Appended, Committed, Frame, Full, LogNeeds, Message, NeedsLimits, ReadAnswer, ReadRequest,
    Store,
};

use crate::engine::{Answer, Handle, Request};
use crate::log::frame::Draft;
use crate::settings::Durability;

/// A shard's handle on an open store, as the broker knows it. A token is the number of a frame.
#[derive(Debug)]
pub struct ShardStore {
    handle: Handle,
    draft: Draft,
    failure: Arc<OnceLock<String>>,
}

impl ShardStore {
    /// The store of a handle. Where the records cannot be read at the start, `failure` gets the reason. The broker
    /// must not go on then, since it has no records.
    #[must_use]
    pub fn new(handle: Handle, failure: Arc<OnceLock<String>>) -> Self {
        Self {
            handle,
            draft: Draft::default(),
            failure,
        }
    }
}

impl Store for ShardStore {
    fn next_position(&self) -> u64 {
        self.handle.next_position()
    }

    /// A frame of more than 4 GiB finds no room.
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        self.draft.clear();
        for message in frame.messages {
            let write = |out: &mut Vec<u8>| message.encode(out);
            self.draft
                .message(message.topic(), write)
                .map_err(|_| Full)?;
        }
        for change in frame.changes {
            let value = change.value.as_deref();
            self.draft.change(&change.key, value).map_err(|_| Full)?;
        }
        let appended = self.handle.append(&self.draft).map_err(|_| Full)?;
        Ok(Appended {
            first: appended.first,
            token: appended.sequence,
        })
    }

    fn is_full(&self) -> bool {
        self.handle.is_full()
    }

    fn is_stuck(&self) -> bool {
        self.handle.is_stuck()
    }

    fn lacks_room(&self) -> bool {
        self.handle.lacks_room()
    }

    fn committed(&self) -> Committed {
        let progress = self.handle.progress();
        Committed {
            written: progress.written,
            synced: progress.synced,
        }
    }

    fn wake_at(&mut self, wanted: Committed) {
        if wanted.written > 0 {
            self.handle.wake_when(wanted.written, Durability::Interval);
        }
        if wanted.synced > 0 {
            self.handle.wake_when(wanted.synced, Durability::Commit);
        }
    }

    fn flush(&mut self) {
        self.handle.flush();
    }

    fn read(&mut self, request: ReadRequest) {
        self.handle.read(asked(request));
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.handle.next_answer().map(answered)
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        answered(self.handle.read_now(&asked(request)))
    }

    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        if let Err(error) = self.handle.load(visit) {
            // Another handle may have told it already.
            let _ = self.failure.set(error);
        }
    }

    fn needed_from(&mut self, position: u64) {
        self.handle.needed_from(position);
    }

    fn hold_from(&mut self, position: u64) {
        self.handle.hold_from(position);
    }

    fn crowded_before(&self) -> u64 {
        self.handle.crowded_before()
    }

    fn has_little_room(&self) -> bool {
        self.handle.has_little_room()
    }

    fn pressed_before(&self) -> u64 {
        self.handle.pressed_before()
    }

    fn wanted_needs(&self) -> Option<NeedsLimits> {
        self.handle.wanted_needs()
    }

    fn needs(&mut self, needs: LogNeeds) {
        self.handle.needs(needs);
    }
}

fn asked(request: ReadRequest) -> Request {
    Request {
        reader: request.reader,
        from: request.from,
        to: request.to,
        filters: request.filters,
        most_messages: request.most_messages,
        most_bytes: request.most_bytes,
    }
}

/// An answer with the broker's messages. One that cannot be understood is left out and told: its frame has a
/// good checksum, so that it was written so.
fn answered(answer: Answer) -> ReadAnswer {
    let messages = answer.messages.into_iter().filter_map(|stored| {
        let message = Message::decode(stored.content);
        if message.is_err() {
            let (position, topic) = (stored.position, &*stored.topic);
            tracing::error!(
                position,
                topic,
                "a message of the store cannot be understood"
            );
        }
        Some((stored.position, Arc::new(message.ok()?)))
    });
    ReadAnswer {
        reader: answer.reader,
        messages: messages.collect(),
        next: answer.next,
    }
}
