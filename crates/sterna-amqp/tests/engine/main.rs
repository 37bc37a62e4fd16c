//! The engine as its callers see it.
#![allow(clippy::unwrap_used)] // it is all test

mod both_ends;
mod codec;
mod harness;
mod links;
mod messages;
mod sasl;
mod time;
mod violations;
