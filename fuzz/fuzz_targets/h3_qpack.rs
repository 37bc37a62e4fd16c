//! Field sections from any bytes: what is decoded can be encoded.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(
    dead_code,
    reason = "the tests of sterna-h3 run all of the bodies, a target one"
)]
#[path = "../../crates/sterna-h3/tests/engine/bodies.rs"]
mod bodies;

fuzz_target!(|data: &[u8]| bodies::sections(data));
