//! The bytes of a lane of AMQP: frames, frame bodies and messages.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(
    dead_code,
    reason = "the tests of sterna-amqp run all of the bodies, a target one"
)]
#[path = "../../crates/sterna-amqp/tests/engine/bodies.rs"]
mod bodies;

fuzz_target!(|data: &[u8]| bodies::frames(data));
