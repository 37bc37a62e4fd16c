//! The state that must survive a restart, and the trait behind which it is kept.
//!
//! Two things are kept: a *log* of messages, each appended once however many readers want it, and small *records*.
//! A reader's settled positions are a record, its [`Cursor`](crate::cursor). `docs/durability.md` tells how they go
//! together.

use std::fmt;
use std::sync::Arc;

use crate::far_group::ROOT;
use crate::message::{Message, fnv1a};
use crate::name::SessionName;
use crate::needs::{LogNeeds, NeedsLimits};

/// Which part of the stored state a shard takes over when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The shard that asks.
    pub shard: u16,
    /// Number of shards.
    pub shards: u16,
}

impl Share {
    /// The shard that a name (the text of a session's, or the filter of a shared subscription) belongs to while nothing
    /// else decides.
    #[must_use]
    pub fn home(name: &str, shards: u16) -> u16 {
        // The root of a group is where the group is.
        let root = SessionName::parts_of(name).and_then(|(id, _)| id.strip_prefix(ROOT));
        let name = root.unwrap_or(name);
        (fnv1a(name.as_bytes()) % u64::from(shards.max(1))) as u16
    }

    /// Whether the name falls into this share.
    #[must_use]
    pub fn holds(self, name: &str) -> bool {
        Self::home(name, self.shards) == self.shard
    }

    /// Whether this share has the retained messages (one shard loads them for all).
    #[must_use]
    pub const fn holds_retained(self) -> bool {
        self.shard == 0
    }
}

/// One atomic change of a store: all of it is kept, or nothing.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Messages for the log; they get consecutive positions.
    pub messages: &'a [Arc<Message>],
    /// Changes of small records.
    pub changes: &'a [Change],
}

/// A small record: its key and its value.
pub type Record = (Box<[u8]>, Box<[u8]>);

/// A change of a small record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The record's key.
    pub key: Box<[u8]>,
    /// Its new value; `None` removes it.
    pub value: Option<Box<[u8]>>,
}

/// The result of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Appended {
    /// Position of the first message; a new log starts with 1.
    pub first: u64,
    /// Number of the append. None is lower than one before it, also of other shards. Those that are kept as one have the
    /// same.
    pub token: u64,
}

/// How far appends have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Committed {
    /// Appends up to this token are with the operating system: they survive the process.
    pub written: u64,
    /// Appends up to this token are on the disk: they survive a power cut.
    pub synced: u64,
}

/// How far an append has to have come before something is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keeping {
    /// No matter how far.
    #[default]
    Nothing,
    /// It survives the process.
    Written,
    /// It survives a power cut.
    Synced,
}

impl Keeping {
    /// The wish to be woken when an append has come so far.
    #[must_use]
    pub const fn wish(self, token: u64) -> Committed {
        match self {
            Self::Nothing => Committed {
                written: 0,
                synced: 0,
            },
            Self::Written => Committed {
                written: token,
                synced: 0,
            },
            Self::Synced => Committed {
                written: 0,
                synced: token,
            },
        }
    }

    /// The last append that has come so far.
    #[must_use]
    pub const fn reached(self, committed: Committed) -> u64 {
        match self {
            Self::Nothing => u64::MAX,
            Self::Written => committed.written,
            Self::Synced => committed.synced,
        }
    }
}

/// A store takes no messages: the disk or a limit of the store is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store has no room for another message")
    }
}

impl std::error::Error for Full {}

/// A reader asks for messages of the log.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Comes back with the answer; the store makes nothing of it.
    pub reader: u64,
    /// The first position.
    pub from: u64,
    /// The position behind the last; `u64::MAX` for the end of the log.
    pub to: u64,
    /// Topic filters, without `$share/NAME/`; wanted are messages whose topic matches one.
    pub filters: Arc<[Box<str>]>,
    /// Number of messages after which the answer ends.
    pub most_messages: usize,
    /// Bytes of bodies after which the answer ends; one message may be larger.
    pub most_bytes: usize,
}

/// The answer to a [`ReadRequest`].
#[derive(Clone, Debug, Default)]
pub struct ReadAnswer {
    /// As in the request.
    pub reader: u64,
    /// Messages with their positions, in order.
    pub messages: Vec<(u64, Arc<Message>)>,
    /// The first position that was not looked at.
    pub next: u64,
}

/// Keeps the log and the records.
///
/// Each shard has its own handle on one store. Calls don't wait for a disk, except those that say so.
pub trait Store: Send + fmt::Debug {
    /// Whether anything is kept at all; lets the broker skip the calls.
    fn is_durable(&self) -> bool {
        true
    }

    /// The position that the next message gets.
    fn next_position(&self) -> u64;

    /// Appends a frame.
    ///
    /// # Errors
    /// [`Full`] where messages find no room; then nothing is appended. A frame without messages is
    /// always taken.
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full>;

    /// Whether messages find no room at this moment.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether the store cannot write what it has taken: nothing is committed until the disk has room, or works again.
    fn is_stuck(&self) -> bool {
        false
    }

    /// Whether records should not grow, for want of room. Those that replace others or make room are still taken.
    fn lacks_room(&self) -> bool {
        self.is_stuck()
    }

    /// How far all shards' appends have come.
    fn committed(&self) -> Committed;

    /// Asks for this shard to be woken when appends have come to either of these tokens; 0 is no wish. Of several
    /// wishes the lowest stays, until it has come true. Then the shard is woken, and asks again for tokens that it
    /// still waits for. A wish for synced appends has them synced as soon as can be.
    fn wake_at(&mut self, wanted: Committed) {
        let _ = wanted;
    }

    /// Appended frames may be written now: all appends between two calls are written together.
    fn flush(&mut self) {}

    /// A message of a log that several nodes append to has come by at this position, which is higher than all
    /// before. The call is made under the lock that gives positions out.
    fn came_by(&mut self, position: u64) {
        let _ = position;
    }

    /// Asks for messages. The answer comes by [`next_answer`](Self::next_answer), after the shard was
    /// woken.
    fn read(&mut self, request: ReadRequest);

    /// The next answer to what this handle has asked for.
    fn next_answer(&mut self) -> Option<ReadAnswer>;

    /// As [`read`](Self::read), and waits for the answer. Only at the start.
    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer;

    /// Visits all records in the order of their keys, and may wait. Only at the start.
    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8]));

    /// No reader of this shard needs messages before this position.
    fn needed_from(&mut self, position: u64);

    /// A reader has come to this shard that needs messages from this position on, whatever was said before.
    fn hold_from(&mut self, position: u64);

    /// The position before which the log is to go as soon as can be. Readers that want nothing there are to say so.
    /// It is 1 while the log is not long.
    fn crowded_before(&self) -> u64 {
        1
    }

    /// Whether messages are refused for want of room, or will be soon.
    fn has_little_room(&self) -> bool {
        self.is_full() || self.pressed_before() > 1
    }

    /// While the room for messages is nearly used up: the position before which most of the log is. The reader that needs
    /// the oldest of it is to lose its consumer. It is 1 while there is room.
    fn pressed_before(&self) -> u64 {
        1
    }

    /// How much the store wants to be told of what this shard's readers need ([`needs`](Self::needs)). `None` while it
    /// would make nothing of it.
    fn wanted_needs(&self) -> Option<NeedsLimits> {
        None
    }

    /// The needs of this shard's readers, by their cursors that are on the disk. All else may be taken out of the log.
    /// [`hold_from`](Self::hold_from) has everything stay from its position on, until this is told again.
    fn needs(&mut self, needs: LogNeeds) {
        let _ = needs;
    }
}

/// Keeps nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoStore;

impl Store for NoStore {
    fn is_durable(&self) -> bool {
        false
    }

    fn next_position(&self) -> u64 {
        1
    }

    fn append(&mut self, _: Frame<'_>) -> Result<Appended, Full> {
        Ok(Appended::default())
    }

    fn committed(&self) -> Committed {
        Committed {
            written: u64::MAX,
            synced: u64::MAX,
        }
    }

    fn read(&mut self, _: ReadRequest) {}

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        None
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        ReadAnswer {
            reader: request.reader,
            messages: Vec::new(),
            next: request.to,
        }
    }

    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn needed_from(&mut self, _: u64) {}
    fn hold_from(&mut self, _: u64) {}
}
