//! Topic filters against a matcher that is too simple to be wrong: see [`sterna_fuzz::topics`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::topics::filter_and_name(bytes));
