//! Named sets of settings for kinds of paths.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::choice::{Cipher, CongestionControl, KeyShare, names};
use crate::settings::Settings;

/// A kind of path and device; [`Settings::of`] returns its settings. `docs/tuning.md` compares the
/// profiles, with reasons.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Profile {
    /// Any path, many mostly idle devices.
    #[default]
    Default,
    /// A local network: round trips of milliseconds, no datagram limit below Ethernet's.
    Lan,
    /// LTE and the like: round trips around 100 ms, radio that has to be woken.
    Cellular,
    /// Geostationary satellite: round trips of 600 ms and more, random loss.
    Satellite,
    /// NB-IoT and other links with round trips of seconds and some tens of kbit/s.
    NbIot,
    /// A device on an NB-IoT link that sleeps for hours and keeps its connection meanwhile.
    Sleepy,
}

names!(
    Profile,
    "profile",
    Default = "default",
    Lan = "lan",
    Cellular = "cellular",
    Satellite = "satellite",
    NbIot = "nb-iot",
    Sleepy = "sleepy",
);

impl Settings {
    /// The settings of a profile.
    #[must_use]
    pub const fn of(profile: Profile) -> Self {
        match profile {
            Profile::Default => DEFAULT,
            Profile::Lan => LAN,
            Profile::Cellular => CELLULAR,
            Profile::Satellite => SATELLITE,
            Profile::NbIot => NB_IOT,
            Profile::Sleepy => SLEEPY,
        }
    }
}

const KIB: u32 = 1024;
const MINUTE_MS: u64 = 60 * 1_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

const DEFAULT: Settings = Settings {
    // RFC 9002, section 6.2.2.
    initial_rtt_ms: 333,
    handshake_timeout_ms: 30_000,
    idle_timeout_ms: HOUR_MS,
    keep_alive_interval_ms: 0,
    ack_frequency: false,
    ack_eliciting_threshold_packets: 1,
    max_ack_delay_ms: 25,
    stream_credit_watermark_percent: 50,
    initial_bidirectional_streams: 5,
    max_bidirectional_streams: 256,
    // Three of HTTP/3, and some of WebTransport: browsers refuse a page another stream rather than wait.
    initial_unidirectional_streams: 5,
    max_unidirectional_streams: 256,
    // RFC 9002, section 7.2: ten datagrams.
    initial_window_bytes: 12_000,
    congestion: CongestionControl::Cubic,
    // RFC 9002, sections 6.1.1 and 6.1.2.
    packet_threshold: 3,
    time_threshold: 1.125,
    mtu_discovery: false,
    mtu_upper_bound_bytes: 1_452,
    mtu_search_interval_ms: 10 * MINUTE_MS,
    initial_mtu_bytes: 1_200,
    max_received_payload_bytes: 1_472,
    stream_receive_window_bytes: 128 * KIB,
    receive_window_bytes: 256 * KIB,
    send_window_bytes: 256 * KIB,
    datagram_buffer_bytes: 64 * KIB,
    crypto_buffer_bytes: 16 * KIB,
    key_share: KeyShare::X25519,
    cipher: Cipher::Auto,
    // A device that stops at its PUBACK gets none of the connection: they come one round trip later.
    tickets: 4,
    address_tokens: 0,
    path_memory_lifetime_ms: HOUR_MS,
};

const LAN: Settings = Settings {
    initial_rtt_ms: 50,
    handshake_timeout_ms: 10_000,
    mtu_discovery: true,
    max_bidirectional_streams: 1_024,
    max_unidirectional_streams: 1_024,
    stream_receive_window_bytes: 512 * KIB,
    receive_window_bytes: 1_024 * KIB,
    send_window_bytes: 1_024 * KIB,
    datagram_buffer_bytes: 256 * KIB,
    // Slow start takes a few milliseconds.
    path_memory_lifetime_ms: 0,
    ..DEFAULT
};

const CELLULAR: Settings = Settings {
    // The default's first probe after a second leaves time to wake the radio.
    ack_frequency: true,
    ack_eliciting_threshold_packets: 9,
    max_ack_delay_ms: 50,
    stream_receive_window_bytes: 256 * KIB,
    receive_window_bytes: 512 * KIB,
    ..DEFAULT
};

const SATELLITE: Settings = Settings {
    initial_rtt_ms: 600,
    handshake_timeout_ms: MINUTE_MS as u32,
    ack_frequency: true,
    ack_eliciting_threshold_packets: 9,
    max_ack_delay_ms: 300,
    stream_receive_window_bytes: 256 * KIB,
    receive_window_bytes: 512 * KIB,
    send_window_bytes: 512 * KIB,
    path_memory_lifetime_ms: 24 * HOUR_MS,
    ..DEFAULT
};

const NB_IOT: Settings = Settings {
    initial_rtt_ms: 1_500,
    handshake_timeout_ms: 2 * MINUTE_MS as u32,
    idle_timeout_ms: 24 * HOUR_MS,
    ack_frequency: true,
    ack_eliciting_threshold_packets: 9,
    // The device's radio listens until it has acknowledged the last answer. With 750 ms a message costs 8 % more
    // energy, and fifty messages 100 ms apart only 1.5 % less.
    max_ack_delay_ms: 100,
    max_bidirectional_streams: 32,
    max_unidirectional_streams: 32,
    stream_receive_window_bytes: 32 * KIB,
    receive_window_bytes: 64 * KIB,
    send_window_bytes: 64 * KIB,
    datagram_buffer_bytes: 8 * KIB,
    // Each message may be a connection of its own, which ends before its tickets come.
    tickets: 8,
    path_memory_lifetime_ms: 24 * HOUR_MS,
    ..DEFAULT
};

const SLEEPY: Settings = Settings {
    idle_timeout_ms: 0,
    // It sends a message and sleeps: nothing comes that its acknowledgement could wait for.
    max_ack_delay_ms: 25,
    initial_bidirectional_streams: 2,
    stream_receive_window_bytes: 16 * KIB,
    receive_window_bytes: 32 * KIB,
    send_window_bytes: 32 * KIB,
    datagram_buffer_bytes: 4 * KIB,
    ..NB_IOT
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_sound() {
        for profile in Profile::ALL {
            assert_eq!(Settings::of(*profile).check(), Ok(()), "{profile}");
            assert_eq!(profile.name().parse(), Ok(*profile));
        }
    }

    #[test]
    fn an_unknown_profile_is_answered_with_the_choices() {
        assert_eq!(
            "lte".parse::<Profile>().unwrap_err(),
            "unknown profile `lte`; choices are default, lan, cellular, satellite, nb-iot, sleepy"
        );
    }
}
