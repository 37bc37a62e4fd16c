//! The engine as its callers see it.
#![allow(clippy::unwrap_used)] // it is all test

mod bodies;
mod both_ends;
mod foreign;
mod harness;
mod limits;
mod malformed;
mod qpack;
mod requests;
mod robustness;
mod script;
mod size;
mod violations;
mod webtransport;
