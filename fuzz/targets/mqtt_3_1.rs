//! The bytes of one lane of MQTT 3.1.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::mqtt_3_1(bytes));
