//! Either end of an AMQP connection driven by a script: limits and ends hold whatever a peer sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::amqp_connection(bytes));
