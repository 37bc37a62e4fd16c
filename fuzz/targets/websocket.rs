//! Frames of a WebSocket client.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::websocket(bytes));
