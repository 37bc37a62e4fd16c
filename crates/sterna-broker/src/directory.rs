//! What all shards share.

use std::sync::Arc;

use crate::limits::Limits;

/// Shared by all shards: the route log, retained messages, the registry of sessions.
#[derive(Debug)]
pub struct Directory {
    limits: Limits,
    shards: u16,
}

impl Directory {
    /// A directory for so many shards. `hash_seed` keys the hash tables that clients' strings go
    /// into; it should be random, except where a run must be repeatable.
    #[must_use]
    pub fn new(shards: u16, limits: Limits, hash_seed: u64) -> Arc<Self> {
        let _ = hash_seed;
        Arc::new(Self {
            limits,
            shards: shards.max(1),
        })
    }

    /// The limits that hold for all shards.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many shards there are.
    #[must_use]
    pub const fn shards(&self) -> u16 {
        self.shards
    }

    /// Retained messages and the bytes of their bodies.
    #[must_use]
    pub fn retained(&self) -> (usize, usize) {
        unimplemented!("follows")
    }

    /// Sessions on all shards.
    #[must_use]
    pub fn sessions(&self) -> usize {
        unimplemented!("follows")
    }

    /// The shard that a client's session is on.
    #[must_use]
    pub fn shard_of(&self, client_id: &str) -> Option<crate::ShardId> {
        unimplemented!("follows {client_id}")
    }
}
