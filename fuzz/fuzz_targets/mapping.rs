//! Marks, texts and fields of the mapping: see [`sterna_fuzz::mapping`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::mapping::texts(bytes));
