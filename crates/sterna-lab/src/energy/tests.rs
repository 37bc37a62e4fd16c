//! The models against figures that were found elsewhere.

use super::constants::{BATTERY_WH, PROFILES_WITH_RADIO, radios};
use super::radio::{Sleep, Wifi};
use super::*;
use crate::profile::Profile;

const NB_IOT: Conditions = Conditions {
    up_bps: 159_000.0,
    down_bps: 127_000.0,
    sleep: Sleep::PowerSaving,
    release_assistance: false,
};

fn exchange() -> Vec<RadioPacket> {
    vec![
        RadioPacket {
            at_s: 0.0,
            bytes: 196,
            is_sent: true,
        },
        RadioPacket {
            at_s: 2.0,
            bytes: 60,
            is_sent: false,
        },
    ]
}

fn wifi() -> Wifi {
    match radios("wifi")[0].1 {
        Radio::Wifi(wifi) => wifi,
        Radio::Cellular(_) => unreachable!("the wifi profile has a WiFi radio"),
    }
}

#[test]
fn every_profile_with_a_radio_has_several_sets_and_exists() {
    for name in PROFILES_WITH_RADIO {
        assert!(Profile::find(name).is_some());
        assert!(radios(name).len() >= 2, "{name}");
    }
    assert!(radios("satellite").is_empty());
}

#[test]
fn wifi_draws_what_ns3_says() {
    // 24 s of ns-3: TX 2.130, RX 1.868, idle and CCA 19.936 s give 20.51 J by its currents.
    let wifi = wifi();
    let joules: f64 = [
        (2.130, wifi.tx_a),
        (1.868, wifi.rx_a),
        (0.490 + 19.446, wifi.idle_a),
    ]
    .iter()
    .map(|(seconds, amperes)| seconds * amperes * SUPPLY_V)
    .sum();
    assert!((joules - 20.51).abs() < 0.01, "{joules}");
    // 1500 bytes at 54 Mbit/s: 57 symbols and the preamble.
    let airtime_us = wifi.airtime_s(1500) * 1e6;
    assert!((airtime_us - 248.0).abs() < 0.01, "{airtime_us}");
}

#[test]
fn a_cycle_fills_its_period() {
    for profile in PROFILES_WITH_RADIO {
        for (name, radio) in radios(profile) {
            for period_s in [2.5, 8.0, 10.0, 15.0, 60.0, 600.0, 3_600.0, 86_400.0] {
                let segments = radio.cycle(&exchange(), period_s, &NB_IOT);
                let seconds: f64 = segments.iter().map(|segment| segment.seconds).sum();
                assert!(
                    (seconds - period_s).abs() < 1e-9,
                    "{name} {period_s} {seconds}"
                );
                assert!(segments.iter().all(|s| s.seconds >= 0.0 && s.watts > 0.0));
            }
        }
    }
}

#[test]
fn a_busy_cellular_device_never_leaves_its_connection() {
    let (_, radio) = radios("nb-iot")[0];
    let states = |period_s| {
        let mut states: Vec<State> = radio
            .cycle(&exchange(), period_s, &NB_IOT)
            .iter()
            .map(|segment| segment.state)
            .collect();
        states.sort_unstable();
        states.dedup();
        states
    };
    assert_eq!(
        states(5.0),
        [State::Tx, State::Rx, State::Listen, State::Connected]
    );
    assert!(states(15.0).contains(&State::Idle));
    assert!(!states(15.0).contains(&State::Sleep));
    assert!(states(600.0).contains(&State::Sleep));
    assert!(states(600.0).contains(&State::Wake));
}

#[test]
fn release_assistance_and_sleep_modes_cost_what_they_should() {
    let (name, radio) = radios("nb-iot")[0];
    let of = |conditions: &Conditions| {
        estimate(
            name,
            &radio,
            &exchange(),
            3600.0,
            conditions,
            0.0,
            BATTERY_WH,
        )
    };
    let plain = of(&NB_IOT);
    let early = of(&Conditions {
        release_assistance: true,
        ..NB_IOT
    });
    let edrx = of(&Conditions {
        sleep: Sleep::Edrx,
        ..NB_IOT
    });
    assert!(early.period_j < plain.period_j);
    assert!(edrx.period_j > plain.period_j);
    assert!(early.linear_days > plain.linear_days);
    // 5 Wh in deep sleep alone last 38 years; once an hour must be some years.
    assert!((1000.0..13_900.0).contains(&plain.linear_days), "{plain:?}");
}

#[test]
fn a_measured_lte_m_exchange_costs_what_was_measured() {
    let (name, radio) = radios("lte-m")[1];
    let packets = [
        RadioPacket {
            at_s: 0.0,
            bytes: 200,
            is_sent: true,
        },
        RadioPacket {
            at_s: 0.2,
            bytes: 200,
            is_sent: false,
        },
    ];
    let conditions = Conditions {
        up_bps: 375_000.0,
        down_bps: 300_000.0,
        ..NB_IOT
    };
    let result = estimate(name, &radio, &packets, 3600.0, &conditions, 0.0, BATTERY_WH);
    // Without the device's sleep and waiting for pages: 0.152 mWh.
    let active_j: f64 = result
        .states
        .iter()
        .filter(|cost| !matches!(cost.state, State::Sleep | State::Idle))
        .map(|cost| cost.joules)
        .sum();
    assert!((active_j - 0.55).abs() < 0.03, "{active_j}");
}

#[test]
fn the_batterys_recursion_is_the_published_sum() {
    let (alpha, beta) = (35_220.0, 0.637);
    // Loads of 1 to 400 mA that change at odd times.
    let loads: Vec<(f64, f64)> = (0..200_u32)
        .map(|n| {
            (
                f64::from(n * 37 % 400 + 1),
                f64::from(n * 13 % 29 + 1) / 60.0,
            )
        })
        .collect();
    let mut battery = RakhmatovVrudhula::new(alpha, beta);
    for (current, minutes) in &loads {
        battery.draw(*current, *minutes);
    }
    let end: f64 = loads.iter().map(|load| load.1).sum();
    let mut sum = 0.0;
    let mut begin = 0.0;
    for (current, minutes) in &loads {
        let finish = begin + minutes;
        let mut term = *minutes;
        for m in 1..=10_u32 {
            let rate = (beta * f64::from(m)).powi(2);
            let part = ((-rate * (end - finish)).exp() - (-rate * (end - begin)).exp()) / rate;
            term = 2.0_f64.mul_add(part, term);
        }
        sum += current * term;
        begin = finish;
    }
    assert!((battery.apparent_ma_min() / sum - 1.0).abs() < 1e-9);
}

#[test]
fn the_batterys_level_is_that_of_ns3() {
    // ns-3 3.37, 5.92 s of an idle WiFi station: 0.990083.
    let mut battery = RakhmatovVrudhula::new(35_220.0, 0.637);
    battery.draw(273.0, 5.92 / 60.0);
    assert!(
        (battery.level() - 0.990_083).abs() < 0.000_05,
        "{}",
        battery.level()
    );
}

#[test]
fn both_batteries_agree_on_light_loads_and_differ_on_heavy_ones() {
    let segment = |watts, seconds| Segment {
        state: State::Tx,
        seconds,
        watts,
    };
    let capacity_wh = 1.0;
    let alpha = capacity_wh / SUPPLY_V * 60_000.0;
    let lives = |segments: &[Segment]| {
        (
            linear_life_s(capacity_wh * 3600.0, segments),
            RakhmatovVrudhula::new(alpha, RV_BETA).life_s(segments),
        )
    };
    let (linear, rv) = lives(&[segment(0.001, 100.0)]);
    assert!((rv / linear - 1.0).abs() < 0.001, "{rv} {linear}");
    let (linear, rv) = lives(&[segment(3.0, 100.0)]);
    assert!(rv < 0.9 * linear, "{rv} {linear}");
    // With pauses the charge comes back.
    let (_, paused) = lives(&[segment(3.0, 10.0), segment(1e-6, 600.0)]);
    assert!(paused * 10.0 / 610.0 > rv, "{paused} {rv}");
}

#[test]
fn the_cpu_is_added() {
    let (name, radio) = radios("nb-iot")[0];
    let of = |cpu_j| estimate(name, &radio, &exchange(), 600.0, &NB_IOT, cpu_j, 5.0).period_j;
    assert!((of(0.25) - of(0.0) - 0.25).abs() < 1e-9);
}
