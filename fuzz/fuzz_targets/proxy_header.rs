//! Headers of a balancer: see [`sterna_fuzz::proxy_header`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::proxy_header::header(bytes));
