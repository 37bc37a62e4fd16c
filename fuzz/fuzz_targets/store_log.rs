//! Files of the store's log: see [`sterna_fuzz::store`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::store::log(bytes));
