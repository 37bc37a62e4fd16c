//! The queues that clients have made, by their makers.

use rustc_hash::FxHashMap;

use super::registry::Found;
use crate::config::Amqp;
use crate::shares::{self, Owner, Quota, Shares};

/// First byte of the key of the record of a queue's owner.
const RECORD: u8 = b'q';

/// The one who has a queue made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Maker<'a> {
    /// The configuration, a record, or another node.
    Broker,
    /// A client's link that names it.
    Client {
        user: Option<&'a str>,
        /// Whether memory is too short for what stays when its maker goes.
        is_short: bool,
    },
    /// The same, for a queue that is to end with its link, or with its last message.
    Link {
        user: Option<&'a str>,
        is_short: bool,
    },
}

impl Maker<'_> {
    /// The owner of what it makes.
    pub(super) fn owner(self) -> Option<Owner> {
        match self {
            Self::Broker => None,
            Self::Client { user, .. } | Self::Link { user, .. } => Some(shares::owner(user)),
        }
    }
}

/// Owners of queues. A queue of the configuration has none.
#[derive(Debug, Default)]
pub(super) struct Owners {
    of: FxHashMap<Box<str>, Owner>,
    shares: Shares,
}

impl Owners {
    /// Why a queue may not be made; `None` where it may.
    pub(super) fn refuse(&self, maker: Maker<'_>, config: &Amqp) -> Option<Found> {
        let (Maker::Client { is_short, .. } | Maker::Link { is_short, .. }) = maker else {
            return None;
        };
        if is_short {
            return Some(Found::MemoryShort);
        }
        let most = Quota {
            objects: config.maximum_queues_per_user as usize,
            bytes: usize::MAX,
        };
        let has_room = (maker.owner()).is_none_or(|owner| self.shares.have_room(&owner, 0, most));
        (!has_room).then_some(Found::TooManyOfUser)
    }

    /// Notes the owner of a queue.
    pub(super) fn note(&mut self, name: &str, owner: Owner) {
        if !self.of.contains_key(name) {
            let owner = self.shares.add(owner, 0);
            self.of.insert(name.into(), owner);
        }
    }

    /// A queue is gone.
    pub(super) fn forget(&mut self, name: &str) {
        if let Some(owner) = self.of.remove(name) {
            self.shares.remove(&owner, 0);
        }
    }

    /// Takes up the owner of a record that the store has kept; other records are passed over.
    pub(super) fn restore(&mut self, key: &[u8], value: &[u8]) {
        if let Some((&RECORD, name)) = key.split_first()
            && let Ok(name) = std::str::from_utf8(name)
            && let Some(owner) = shares::read_owner(value)
        {
            self.note(name, owner);
        }
    }
}

/// The key of the record of a queue's owner.
pub(super) fn owner_record(name: &str) -> Vec<u8> {
    [&[RECORD], name.as_bytes()].concat()
}
