//! A server's connections driven by a script: order, limits and bounds hold whatever a client sends.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(
    dead_code,
    reason = "the tests of sterna-mqtt run all of the bodies, a target one"
)]
#[path = "../../crates/sterna-mqtt/tests/engine/bodies.rs"]
mod bodies;

fuzz_target!(|data: &[u8]| bodies::server(data));
