//! Frames of a WebSocket client: see [`sterna_fuzz::websocket`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::websocket::frames(bytes));
