//! Either end of an AMQP connection driven by a script: limits and ends hold whatever a peer sends.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sterna-amqp/tests/engine/script.rs"]
mod script;

fuzz_target!(|data: &[u8]| script::connection(data));
