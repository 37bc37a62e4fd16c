//! SCRAM messages and password files: see [`sterna_fuzz::scram`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::scram::messages(bytes));
