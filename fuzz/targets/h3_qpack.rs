//! Field sections from any bytes: what is decoded can be encoded.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::h3_qpack(bytes));
