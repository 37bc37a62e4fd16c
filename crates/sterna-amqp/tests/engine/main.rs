//! The engine as its callers see it.
#![allow(clippy::unwrap_used)] // it is all test

mod harness;
mod links;
