//! Topic filters against a matcher that is too simple to be wrong.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::topic_filters(bytes));
