//! The bytes of one lane of MQTT 5.0: see [`sterna_fuzz::mqtt`].
#![no_main]

use libfuzzer_sys::fuzz_target;
use sterna_mqtt::Version;

fuzz_target!(|bytes: &[u8]| sterna_fuzz::mqtt::lane(bytes, Version::V5));
