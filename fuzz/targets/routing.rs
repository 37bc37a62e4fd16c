//! The broker's index, queues and takeovers against a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::routing(bytes));
