//! Configuration files and variables: see [`sterna_fuzz::configuration`].
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::configuration::file_and_variables(bytes));
