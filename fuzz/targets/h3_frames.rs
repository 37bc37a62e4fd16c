//! The bytes of a stream of HTTP/3: integers, frames, settings.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::h3_frames(bytes));
