//! The broker's index, queues and takeovers against a model: see [`sterna_fuzz::routing`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::routing::play(bytes));
