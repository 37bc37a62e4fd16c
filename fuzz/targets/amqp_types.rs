//! Values of AMQP from any bytes: what is decoded can be walked and encoded.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::amqp_types(bytes));
