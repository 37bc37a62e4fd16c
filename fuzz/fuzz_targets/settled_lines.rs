//! Headers of the log's entries, from other nodes: see [`sterna_fuzz::cluster`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::cluster::settled_line(bytes));
