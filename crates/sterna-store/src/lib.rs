//! Storage behind the broker's [`Store`](sterna_broker::Store) trait.
//!
//! [`Engine`] keeps a log of messages and small records on a disk. [`ShardStore`] is a handle on it for the
//! broker. `docs/store-format.md` has the format of its files, and [`inspect`] the work on a store that no broker has open.
//!
//! [`MemoryStore`] is for tests. It keeps the state within the process: brokers can be taken down and rebuilt from
//! it, with other shards if need be. It has faults on demand, such as a full disk or a death between two appends.
//!
//! ```
//! use std::sync::Arc;
//!
//! use sterna_store::disk::{Disk, SimulatedDisk};
//! use sterna_store::{Draft, Engine, Settings, inspect};
//!
//! // `disk::RealDisk` is a folder. This one is in memory, and loses what is not synced.
//! let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
//! let running = Engine::open(Arc::clone(&disk), Settings::default())?.spawn()?;
//! let mut handle = running.handle(Box::new(|| {}));
//! let mut draft = Draft::default();
//! draft.message("house/door", |content| content.extend_from_slice(b"open"))?;
//! draft.change(b"cursor of a reader", Some(b"1"))?;
//! // A frame: after a crash both are there, or neither.
//! let appended = handle.append(&draft).map_err(|_| "the disk is full")?;
//! assert_eq!(appended.first, 1);
//! drop(handle);
//! running.close()?;
//!
//! let found = inspect::inspect(&disk)?;
//! assert_eq!((found.segments[0].messages, found.records), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
