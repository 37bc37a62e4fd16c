//! Frames of WebTransport: see [`sterna_fuzz::http_frames`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::http_frames::frames(bytes));
