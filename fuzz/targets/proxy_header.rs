//! Headers of a balancer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::proxy_header(bytes));
