//! Operations on a session against a model that is obviously right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::mqtt_session(bytes));
