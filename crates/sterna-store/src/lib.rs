//! Storage behind the broker's [`Store`](sterna_broker::Store) trait.
//!
//! [`MemoryStore`] keeps the state within the process: brokers can be taken down and rebuilt from
//! it, with other shards if need be. It outlives neither the process nor a crash of it.
//!
//! [`Engine`] keeps a log of messages and small records on a disk; [`ShardStore`] is a handle on it for the
//! broker. `docs/store-format.md` has the format
//! of its files.

pub mod disk;
mod engine;
mod error;
pub mod inspect;
mod log;
mod memory;
mod settings;
mod shard_store;

pub use engine::{
    Answer, Appended, Damage, Engine, Full, Handle, OpenReport, Progress, Request, Running,
    StoredMessage, SyncTimes, Unwritten, Usage, UsageReader,
};
pub use error::OpenError;
pub use log::frame::{Draft, TooLong};
pub use memory::MemoryStore;
pub use settings::{Durability, LARGEST_SEGMENT_BYTES, SMALLEST_SEGMENT_BYTES, Settings};
pub use shard_store::ShardStore;
