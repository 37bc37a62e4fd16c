//! Storage behind the broker's [`Store`](sterna_broker::Store) trait.
//!
//! [`MemoryStore`] keeps the state within the process: brokers can be taken down and rebuilt from
//! it, with other shards if need be. It outlives neither the process nor a crash of it.

mod memory;

pub use memory::MemoryStore;
