//! Every constant of the energy models, with its source.
//!
//! None of them was measured here: this project has no radios. That is why each radio has several
//! sets, and why results are always shown with all of them.

use super::radio::{Cellular, Radio, Wifi};

/// The supply that all papers and models use, in volts.
pub const SUPPLY_V: f64 = 3.0;

/// WiFi of ns-3 3.37's `WifiRadioEnergyModel`. The currents are those of Halperin and others,
/// "Demystifying 802.11n power consumption" (HotPower 2010). Transmitting takes 380 mA, receiving
/// 313 mA, idle and clear-channel assessment 273 mA, sleep 33 mA. Airtime is that of 802.11a at
/// 54 Mbit/s.
const WIFI: Wifi = Wifi {
    tx_a: 0.380,
    rx_a: 0.313,
    idle_a: 0.273,
    sleep_a: 0.033,
    data_bits_per_symbol: 216,
    sleeps_after_s: None,
};

/// Time that a station with power saving stays awake after a packet, in seconds: this project's
/// choice.
const WIFI_POWER_SAVE_S: f64 = 0.1;

/// Power classes of 3GPP TR 45.820, section 5.4 (NB-IoT's reference device). Transmitting at 23 dBm
/// takes 545 mW, receiving 90 mW, light sleep 3 mW, deep sleep 0.015 mW.
///
/// Timers and set-up as in github.com/peteryej/LoRaWAN-NBIoTEnergyModels (config.py). The device listens
/// for 200 ms after a packet, then for 5 ms in each 2.048 s (DRX). It is released after 10 s. Set-up
/// takes 50 bytes of RRC messages (7 and 13 up, 20 and 10 down), and 54 ms of the network's time.
///
/// Release assistance: the connection of an nRF9160 on NB-IoT took 1.47 s with it, and 12 s without. The
/// source is Røstad, "IoT Protocol Stack Current Optimizations for the nRF9160 SiP", NTNU 2020, section
/// 5.0.9. Active timer: 8 s, as in the measurements of github.com/boaks/zephyr-coaps-client. Networks
/// set all of these.
const REFERENCE: Cellular = Cellular {
    tx_w: 0.545,
    rx_w: 0.090,
    light_sleep_w: 0.003,
    deep_sleep_w: 0.000_015,
    wake_j: None,
    connected_w: None,
    inactivity_s: 0.2,
    drx_on_s: 0.005,
    drx_cycle_s: 2.048,
    release_s: 10.0,
    release_assistance_s: 1.47,
    active_timer_s: 8.0,
    setup_up_bytes: 20,
    setup_down_bytes: 30,
    setup_wait_s: 0.054,
};

/// A module: M5311 (NB-IoT), with the data of docs.m5stack.com/module/nb-iot at 3 V. Transmitting at
/// 23 dBm takes 167 mA, receiving 54 mA, idle with DRX of 1.28 s 0.4 mA, PSM 3 uA.
const MODULE: Cellular = Cellular {
    tx_w: 0.167 * SUPPLY_V,
    rx_w: 0.054 * SUPPLY_V,
    light_sleep_w: 0.000_4 * SUPPLY_V,
    deep_sleep_w: 0.000_003 * SUPPLY_V,
    ..REFERENCE
};

/// An nRF9160 on LTE-M, measured with a power profiler (github.com/boaks/zephyr-coaps-client,
/// POWERCONSUMPTION.md). Waking up from PSM costs 0.1 mWh (0.36 J). An exchange of 200 and 200
/// bytes with 10 s connected costs 0.152 mWh in all: 19 mW while connected. The rest is as in the
/// reference.
const MEASURED_LTE_M: Cellular = Cellular {
    wake_j: Some(0.36),
    connected_w: Some(0.019),
    ..REFERENCE
};

/// An nRF9160 on NB-IoT, from the same page. Waking up costs 0.055 mWh (0.198 J), with the active timer
/// of 8 s. An exchange of 200 and 200 bytes takes 1.5 s, and assistance releases it after 1 s. It costs
/// 0.076 mWh (0.274 J) in all. The remaining 76 mJ are 7 mJ of airtime by the reference, and 2.5 s
/// connected at 28 mW. The page gives no power of sleep; the rest is as in the reference.
///
/// Other networks are dearer: without assistance Røstad's tail took 395 mC instead of 28 mC at 3.7 V.
/// That is 129 mW for 10.5 s.
const MEASURED_NB_IOT: Cellular = Cellular {
    wake_j: Some(0.198),
    connected_w: Some(0.028),
    release_assistance_s: 1.0,
    // Its energy is in that of waking up.
    active_timer_s: 0.0,
    ..REFERENCE
};

/// The name and the model of each set of constants that fits a profile; the first is the reference.
#[must_use]
pub fn radios(profile: &str) -> Vec<(&'static str, Radio)> {
    match profile {
        "nb-iot" => vec![
            ("3GPP reference", Radio::Cellular(REFERENCE)),
            ("M5311 module", Radio::Cellular(MODULE)),
            ("nRF9160 measured", Radio::Cellular(MEASURED_NB_IOT)),
        ],
        "lte-m" => vec![
            ("3GPP reference", Radio::Cellular(REFERENCE)),
            ("nRF9160 measured", Radio::Cellular(MEASURED_LTE_M)),
        ],
        "wifi" | "wifi-up" | "wifi-a" | "wifi-a-54" => vec![
            ("ns-3, always on", Radio::Wifi(WIFI)),
            (
                "ns-3, power save",
                Radio::Wifi(Wifi {
                    sleeps_after_s: Some(WIFI_POWER_SAVE_S),
                    ..WIFI
                }),
            ),
        ],
        _ => Vec::new(),
    }
}

/// Profiles that have a radio.
pub const PROFILES_WITH_RADIO: [&str; 6] =
    ["nb-iot", "lte-m", "wifi", "wifi-up", "wifi-a", "wifi-a-54"];

/// Energy of a CPU-second above idle, in joules: boards and their sources.
pub const BOARDS: [(&str, f64, &str); 3] = [
    (
        "zero",
        0.8,
        "Raspberry Pi Zero: 80 mA idle, 240 mA full (pidramble figures)",
    ),
    (
        "3b",
        0.58,
        "Raspberry Pi 3B: 260 mA idle, 730 mA on four cores (pidramble figures)",
    ),
    (
        "3b+",
        0.80,
        "Raspberry Pi 3B+: 350 mA idle, 980 mA on four cores (pidramble figures)",
    ),
];

/// Power of an idle Raspberry Pi 3B, in watts: 260 mA (pidramble figures).
pub const BOARD_IDLE_W: f64 = 1.4;

/// The battery of 3GPP TR 45.820, section 5.4, in watt-hours.
pub const BATTERY_WH: f64 = 5.0;

/// Speed at which charge out of reach returns: Rakhmatov and Vrudhula's beta as in ns-3's
/// `RvBatteryModel`, per square root of a minute.
pub const RV_BETA: f64 = 0.637;
/// Number of terms of their series, as in ns-3.
pub const RV_TERMS: usize = 10;

/// Bytes around a message in one QUIC packet on a connection that is up.
///
/// IPv4 and UDP take 28 bytes. The short header takes 11, with a connection identifier of 8 and a packet
/// number of 2 bytes. The tag takes 16, and the STREAM frame 3. See RFC 9000, sections 17.3.1 and 19.8,
/// and RFC 9001, section 5.3.
pub const QUIC_AROUND_MESSAGE_BYTES: u32 = 58;
/// A QUIC packet with an acknowledgement only: the same without a STREAM frame, and an ACK frame of 5.
pub const QUIC_ACKNOWLEDGEMENT_BYTES: u32 = 60;
