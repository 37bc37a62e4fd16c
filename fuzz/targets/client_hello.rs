//! The first bytes of a client of TLS.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::client_hello(bytes));
