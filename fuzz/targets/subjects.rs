//! Topics as subjects of NATS and back.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::subjects(bytes));
