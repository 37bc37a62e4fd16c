//! Random AMQP clients against a reference model, in virtual time.
//!
//! A few clients on one to three shards, over TCP and QUIC, attach links, give credit, send, settle
//! one way or the other, detach, end sessions, lose streams and connections in the middle of a frame,
//! and come back, with what they remember of their unsettled deliveries or without. The model knows how
//! often each message must, and may, be in each queue and subscription, and in the end everything is
//! drained and counted: nothing accepted is lost, and what both ends agreed to settle exactly once is
//! there once.
//!
//! A failing run prints its seed; `STERNA_AMQP_MODEL_SEED=<seed>` runs it alone.
//! `STERNA_AMQP_MODEL_RUNS` sets how many seeds are tried.

#![allow(unreachable_pub, reason = "the modules of one test binary")]

#[path = "../amqp/client.rs"]
mod client;
mod events;
#[path = "../fixture/mod.rs"]
mod fixture;
mod links;
mod model;
mod steps;
mod transactions;
mod world;

const RUNS: u64 = 120;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn clients_agree_with_the_model() {
    if let Some(seed) = number("STERNA_AMQP_MODEL_SEED") {
        return world::run(seed);
    }
    for seed in 0..number("STERNA_AMQP_MODEL_RUNS").unwrap_or(RUNS) {
        if let Err(panic) = std::panic::catch_unwind(|| world::run(seed)) {
            eprintln!("failed with STERNA_AMQP_MODEL_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
