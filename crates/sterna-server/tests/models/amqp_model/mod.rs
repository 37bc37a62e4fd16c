//! Random AMQP clients against a reference model, in virtual time.
//!
//! A few clients on one to three shards, over TCP and QUIC, attach links, give credit, send, settle
//! one way or the other, detach, end sessions, lose streams and connections in the middle of a frame,
//! and come back, with what they remember of their unsettled deliveries or without. The model knows how
//! often each message must, and may, be in each queue and subscription, and in the end everything is
//! drained and counted: nothing accepted is lost, and what both ends agreed to settle exactly once is
//! there once.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

mod events;
mod links;
mod model;
mod steps;
mod transactions;
mod world;

#[test]
fn clients_agree_with_the_model() {
    crate::seeds::play("the model of AMQP", 0..100, world::run);
}
