//! The engine as its callers see it.
#![allow(clippy::unwrap_used)] // it is all test

mod bodies;
mod both_ends;
mod codec;
mod harness;
mod links;
mod messages;
mod robustness;
mod sasl;
mod script;
mod selector;
mod time;
mod transactions;
mod types;
mod violations;
