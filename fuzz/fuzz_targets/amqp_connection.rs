//! Either end of an AMQP connection driven by a script: limits and ends hold whatever a peer sends.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(
    dead_code,
    reason = "the tests of sterna-amqp run all of the bodies, a target one"
)]
#[path = "../../crates/sterna-amqp/tests/engine/bodies.rs"]
mod bodies;

fuzz_target!(|data: &[u8]| bodies::connection(data));
