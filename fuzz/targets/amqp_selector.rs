//! Selectors over messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::amqp_selector(bytes));
