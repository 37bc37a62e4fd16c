//! The bytes of one lane of MQTT 5.0.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sterna_fuzz::targets::mqtt_5_0(bytes));
