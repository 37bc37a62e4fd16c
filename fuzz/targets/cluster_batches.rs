//! Batches of messages from other nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::cluster_batches(bytes));
