//! The bytes of a lane of AMQP: frames, frame bodies and messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::amqp_frames(bytes));
