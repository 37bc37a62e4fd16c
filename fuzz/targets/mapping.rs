//! Marks, texts and fields of the mapping.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::mapping(bytes));
