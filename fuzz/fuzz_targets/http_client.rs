//! What servers of HTTP send: see [`sterna_fuzz::http_client`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::http_client::responses(bytes));
