//! The store from outside: its engine, brokers on it, and what power cuts leave.

mod engine;
mod power_cuts;
mod restart;
mod rewrite;
mod shard_store;
