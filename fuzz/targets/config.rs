//! Configuration files and variables.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::config(bytes));
