//! Batches of messages from other nodes: see [`sterna_fuzz::cluster`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::cluster::batch(bytes));
