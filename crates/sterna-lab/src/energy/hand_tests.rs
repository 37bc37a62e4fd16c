//! The states of an NB-IoT radio against sums that were made by hand.

use super::constants::radios;
use super::exchange::{FlowPacket, by_connection, by_time, mean_j};
use super::radio::{Conditions, Radio, RadioPacket, Sleep, State};
use super::{Period, period};

const CONDITIONS: Conditions = Conditions {
    up_bps: 159_000.0,
    down_bps: 127_000.0,
    sleep: Sleep::PowerSaving,
    release_assistance: false,
};

fn packet(at_s: f64, bytes: u32, is_sent: bool) -> RadioPacket {
    RadioPacket {
        at_s,
        bytes,
        is_sent,
    }
}

/// A message, and its acknowledgement after a round trip of 2 s.
fn exchange() -> Vec<RadioPacket> {
    vec![packet(0.0, 196, true), packet(2.0, 60, false)]
}

/// The radio of a set of constants of the profile nb-iot.
fn radio(set: usize) -> Radio {
    radios("nb-iot")[set].1
}

/// Seconds and millijoules of a state.
fn of(period: &Period, state: State) -> (f64, f64) {
    let cost = period.states.iter().find(|cost| cost.state == state);
    cost.map_or((0.0, 0.0), |cost| (cost.seconds, cost.joules * 1e3))
}

#[track_caller]
fn assert_is(period: &Period, state: State, seconds: f64, millijoules: f64) {
    let (found_s, found_mj) = of(period, state);
    assert!((found_s - seconds).abs() < 1e-4, "{state:?}: {found_s} s");
    assert!(
        (found_mj - millijoules).abs() < 1e-3,
        "{state:?}: {found_mj} mJ"
    );
}

#[test]
fn a_message_every_ten_minutes_costs_what_a_sum_by_hand_says() {
    let period = period(&radio(0), &exchange(), 600.0, &CONDITIONS, 0.0);
    // 196 bytes at 159 kbit/s and 545 mW; 60 bytes at 127 kbit/s and 90 mW.
    assert_is(&period, State::Tx, 0.009_862, 5.374_6);
    assert_is(&period, State::Rx, 0.003_780, 0.340_2);
    // 0.2 s at 90 mW after either packet.
    assert_is(&period, State::Listen, 0.4, 36.0);
    // Looks of 5 ms at 90 mW every 2.048 s beside 3 mW are 3.219 73 mW. They last
    // 2 - 0.009 862 - 0.2 s between the packets, and 10 - 0.2 s after the second.
    assert_is(&period, State::Connected, 11.590_138, 37.317_1);
    // 20 bytes up, 30 down, 54 ms of listening.
    assert_is(&period, State::Wake, 0.056_896, 5.578_5);
    // Pages for 8 s, then 15 uW.
    assert_is(&period, State::Idle, 8.0, 25.757_8);
    assert_is(&period, State::Sleep, 579.939_3, 8.699_1);
    assert!((period.seconds - 600.0).abs() < 1e-9, "{}", period.seconds);
    assert!(
        (period.joules - 0.119_067).abs() < 2e-6,
        "{}",
        period.joules
    );
}

#[test]
fn release_assistance_ends_the_tail_of_the_last_packet_alone() {
    let conditions = Conditions {
        release_assistance: true,
        ..CONDITIONS
    };
    let period = period(&radio(0), &exchange(), 600.0, &conditions, 0.0);
    // The answer comes after 2 s, and finds the connection. The release follows 1.47 s later, after
    // 1.27 s without listening.
    assert_is(&period, State::Listen, 0.4, 36.0);
    assert_is(&period, State::Connected, 3.060_138, 9.852_8);
    assert_is(&period, State::Wake, 0.056_896, 5.578_5);
    assert_is(&period, State::Idle, 8.0, 25.757_8);
    assert!((period.seconds - 600.0).abs() < 1e-9);
}

#[test]
fn extended_drx_costs_a_paging_window_in_each_cycle() {
    let conditions = Conditions {
        sleep: Sleep::Edrx,
        ..CONDITIONS
    };
    let period = period(&radio(0), &exchange(), 600.0, &conditions, 0.0);
    // A cycle of 81.92 s has 2.56 s at 3 mW and two looks of 5 ms at 90 mW. That is 104.736 uW,
    // beside 15 uW.
    assert_is(&period, State::Sleep, 579.939_3, 69.439_8);
}

#[test]
fn a_packet_within_the_tail_begins_it_again() {
    let packets = [packet(0.0, 100, true), packet(9.0, 100, true)];
    let period = period(&radio(0), &packets, 60.0, &CONDITIONS, 0.0);
    // One wake-up, because the second packet found the connection.
    assert_is(&period, State::Wake, 0.056_896, 5.578_5);
    assert_is(&period, State::Listen, 0.4, 36.0);
    let (connected_s, _) = of(&period, State::Connected);
    let (tx_s, _) = of(&period, State::Tx);
    assert!((tx_s - 2.0 * 800.0 / 159_000.0).abs() < 1e-9, "{tx_s}");
    let wanted_s = 9.0 - 800.0 / 159_000.0 - 0.2 + 9.8;
    assert!((connected_s - wanted_s).abs() < 1e-9, "{connected_s}");
    // After the release there is nothing between the second packet and the period's end but the rest.
    let (idle_s, _) = of(&period, State::Idle);
    assert!((idle_s - 8.0).abs() < 1e-9, "{idle_s}");
}

#[test]
fn a_measured_nb_iot_exchange_costs_what_was_measured() {
    let packets = [packet(0.0, 200, true), packet(1.5, 200, false)];
    let conditions = Conditions {
        release_assistance: true,
        ..CONDITIONS
    };
    let period = period(&radio(2), &packets, 3600.0, &conditions, 0.0);
    // Without the device's sleep: 0.076 mWh.
    let (_, sleep_mj) = of(&period, State::Sleep);
    let awake_j = period.joules - sleep_mj / 1e3;
    assert!((awake_j - 0.274).abs() < 0.002, "{awake_j}");
}

fn flow(at_s: f64, port: u16) -> FlowPacket {
    FlowPacket {
        packet: packet(at_s, 100, true),
        port,
    }
}

#[test]
fn exchanges_are_those_of_a_connection_or_between_two_messages() {
    let packets = [flow(1.0, 7), flow(2.0, 8), flow(2.5, 7), flow(4.0, 8)];
    let at = |exchanges: &[Vec<RadioPacket>]| -> Vec<Vec<f64>> {
        let times = |packets: &Vec<RadioPacket>| packets.iter().map(|it| it.at_s).collect();
        exchanges.iter().map(times).collect()
    };
    assert_eq!(at(&by_connection(&packets)), [[0.0, 1.5], [0.0, 2.0]]);
    // Packets before the first message, and after the last one, belong to no exchange.
    assert_eq!(at(&by_time(&packets, &[1.5, 2.2, 4.0])), [[0.0], [0.0]]);
    assert!(by_time(&packets, &[1.5]).is_empty());
}

#[test]
fn the_mean_of_exchanges_needs_some_that_fit_into_the_period() {
    let of = |exchanges: &[Vec<RadioPacket>], period_s| {
        mean_j(&radio(0), exchanges, period_s, &CONDITIONS)
    };
    let one = of(&[exchange()], 600.0).unwrap();
    assert!((one - 0.119_067).abs() < 2e-6, "{one}");
    let twice = of(&[exchange(), exchange()], 600.0).unwrap();
    assert!((twice - one).abs() < 1e-12);
    assert!(of(&[], 600.0).unwrap_err().contains("no exchange"));
    let error = of(&[exchange(), Vec::new()], 600.0).unwrap_err();
    assert!(error.contains("without packets"), "{error}");
    assert!(of(&[exchange()], 2.0).unwrap_err().contains("2.0 s"));
}

#[test]
fn a_client_is_known_by_its_port() {
    let mut packet = vec![0x45; 20];
    packet.extend([0x1f, 0x90, 0x22, 0xb3]);
    assert_eq!(FlowPacket::client_port(&packet, true), 0x1f90);
    assert_eq!(FlowPacket::client_port(&packet, false), 0x22b3);
    // Nobody listens there any more: the client's answer to a packet of the server.
    let mut answer = vec![0x45; 20];
    answer[9] = 1;
    answer.extend([3; 8]);
    answer.extend(&packet);
    assert_eq!(FlowPacket::client_port(&answer, true), 0x22b3);
    assert_eq!(FlowPacket::client_port(&answer[..30], true), 0);
    let mut six = vec![0x60; 40];
    six.extend([1, 2, 3, 4]);
    assert_eq!(FlowPacket::client_port(&six, false), 0x0304);
    assert_eq!(FlowPacket::client_port(&packet[..21], true), 0);
    assert_eq!(FlowPacket::client_port(&[], true), 0);
}
