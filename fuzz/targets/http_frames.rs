//! Frames of WebTransport.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::http_frames(bytes));
