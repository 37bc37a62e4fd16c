//! Headers of the log's entries, from other nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::settled_lines(bytes));
