//! Any bytes as packets of every version: nothing panics, and what decodes can be encoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests of sterna-mqtt run all of the bodies, a target one")]
#[path = "../../crates/sterna-mqtt/tests/engine/bodies.rs"]
mod bodies;

fuzz_target!(|data: &[u8]| bodies::decode(data));
