//! A server's connections driven by a script: order, limits and bounds hold whatever a client sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::mqtt_server(bytes));
