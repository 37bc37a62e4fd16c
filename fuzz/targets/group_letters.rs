//! Letters about shared subscriptions, from other nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::group_letters(bytes));
