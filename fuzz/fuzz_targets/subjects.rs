//! Topics as subjects of NATS and back: see [`sterna_fuzz::topics`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::topics::filter_and_subject(bytes));
