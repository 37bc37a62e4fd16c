//! Either end of an HTTP/3 connection driven by a script: rules and limits hold whatever a peer sends.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sterna-h3/tests/engine/script.rs"]
mod script;

fuzz_target!(|data: &[u8]| script::connection(data));
