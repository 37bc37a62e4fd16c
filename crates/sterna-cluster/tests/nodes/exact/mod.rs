//! Messages that a client sends exactly once, in virtual time: its node dies between the append of a message and the
//! write of its record, and the client comes back to another node, also when NATS knows names no longer.
//!
//! `STERNA_SEEDS` says which seeds are played (`seeds/mod.rs` of the broker's tests).

mod node;
mod world;

use std::cell::Cell;

use world::World;

/// What was found to be wrong, and how often the tail had what the records had not.
fn play(seed: u64, knows_tail: bool) -> (Option<String>, usize) {
    let mut world = World::new(seed, knows_tail);
    for _ in 0..400 {
        world.step();
    }
    world.rest();
    (world.fault(), world.amended)
}

#[test]
fn what_is_sent_exactly_once_is_published_once_whenever_its_client_returns() {
    let amended = Cell::new(0);
    crate::seeds::play("messages that come once", 0..200, |seed| {
        let (fault, found) = play(seed, true);
        assert_eq!(fault, None, "seed {seed}");
        amended.set(amended.get() + found);
    });
    // One seed alone may have none.
    if std::env::var_os("STERNA_SEEDS").is_none() {
        assert!(amended.get() > 20, "only {amended:?} records were missing");
    }
}

/// The same where nobody looks at the tail of the log: somebody must notice.
#[test]
fn without_the_tail_of_the_log_messages_come_twice() {
    let doubled = (0..100).filter(|&seed| play(seed, false).0.is_some());
    let doubled = doubled.count();
    assert!(doubled > 5, "only {doubled} of 100 seeds have found it");
}
