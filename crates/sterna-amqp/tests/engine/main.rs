//! The engine as its callers see it.
#![allow(clippy::unwrap_used)] // it is all test

mod both_ends;
mod harness;
mod links;
mod violations;
