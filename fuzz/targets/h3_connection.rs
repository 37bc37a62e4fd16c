//! Either end of an HTTP/3 connection driven by a script: rules and limits hold whatever a peer sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::h3_connection(bytes));
