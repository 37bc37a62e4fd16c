//! Path memory (RFC 9959): a server answers a request with megabytes over a path of 600 ms.

use std::time::Duration;

use proptest::prelude::*;
use sterna_quic::{CongestionControl, PathMemory, Phase, Profile, Refused, SavedPath, Settings};

use crate::link::{EPOCH_MS, Link, Moment, Path};

const LIFETIME_MS: u64 = 3_600_000;

/// Windows that never limit, so that only congestion control does.
fn settings(congestion: CongestionControl) -> Settings {
    Settings {
        congestion,
        stream_receive_window_bytes: 1 << 26,
        receive_window_bytes: 1 << 26,
        send_window_bytes: 1 << 26,
        path_memory_lifetime_ms: LIFETIME_MS,
        // Quick, so that what is compared is the congestion window.
        ack_frequency: false,
        ..Settings::of(Profile::Satellite)
    }
}

/// What a connection of the past remembers of the satellite path.
fn saved() -> SavedPath {
    SavedPath {
        rtt_us: 610_000,
        min_rtt_us: 601_000,
        congestion_window_bytes: 800_000,
        mtu_bytes: 1_200,
        saved_at_ms: EPOCH_MS - 60_000,
    }
}

fn resumed(path: Path, congestion: CongestionControl, bytes: usize) -> (Link, Duration) {
    let mut link = Link::new(path, &settings(congestion), bytes);
    let memory = link.accept();
    let (_, now_ms) = link.now();
    memory.fill(saved(), now_ms, LIFETIME_MS).unwrap();
    let took = link.receive(bytes);
    (link, took)
}

fn cold(path: Path, congestion: CongestionControl, bytes: usize) -> (Link, Duration) {
    let mut link = Link::new(path, &settings(congestion), bytes);
    let took = link.receive(bytes);
    (link, took)
}

/// The phases that were passed through, with the time of entry.
fn phases(link: &Link) -> Vec<(Phase, Duration)> {
    let mut phases: Vec<(Phase, Duration)> = Vec::new();
    for moment in &link.moments {
        let phase = moment.phase.unwrap();
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, moment.at));
        }
    }
    phases
}

fn names(link: &Link) -> Vec<Phase> {
    phases(link).into_iter().map(|(phase, _)| phase).collect()
}

/// Largest window of the server between two moments.
fn most(link: &Link, from: Duration, to: Duration) -> u64 {
    let within = |moment: &&Moment| (from..to).contains(&moment.at);
    let windows = link.moments.iter().filter(within);
    windows.map(|moment| moment.window_bytes).max().unwrap()
}

#[test]
fn a_resumed_connection_has_the_saved_window_one_round_trip_after_its_jump() {
    let round_trip = Path::SATELLITE.round_trip;
    for congestion in [CongestionControl::Cubic, CongestionControl::NewReno] {
        let bytes = 1_500_000;
        let (link, took) = resumed(Path::SATELLITE, congestion, bytes);
        assert_eq!(
            names(&link),
            [
                Phase::Reconnaissance,
                Phase::Unvalidated,
                Phase::Validating,
                Phase::Normal
            ],
            "{congestion}"
        );
        // Handshake, then the initial window: the jump follows on its acknowledgement.
        let (_, jumped) = phases(&link)[1];
        assert!(jumped < round_trip * 11 / 4, "{congestion}: {jumped:?}");
        // Half of what was saved at once, never more before it is acknowledged ...
        let at_once = most(&link, jumped, jumped + round_trip / 2);
        assert_eq!(at_once, 400_000, "{congestion}");
        // ... and all of it when that has come back: sent over one round trip, acknowledged over the
        // next one.
        let reached = most(&link, jumped, jumped + round_trip * 2);
        assert!(reached >= 780_000, "{congestion}: {reached}");

        let (_, cold) = cold(Path::SATELLITE, congestion, bytes);
        eprintln!("{congestion}: {bytes} bytes after {took:?}, without memory {cold:?}");
        assert!(
            took + 3 * round_trip < cold,
            "{congestion}: {took:?}, {cold:?}"
        );
    }
}

// The library's BBR shrinks and grows its window by its own model from the first acknowledgement on,
// so only the jump itself is certain.
#[test]
fn bbr_jumps_as_well() {
    let bytes = 1_500_000;
    let (link, took) = resumed(Path::SATELLITE, CongestionControl::Bbr, bytes);
    let (_, jumped) = phases(&link)[1];
    assert_eq!(phases(&link)[1].0, Phase::Unvalidated);
    let at_once = most(&link, jumped, jumped + Path::SATELLITE.round_trip / 2);
    assert_eq!(at_once, 400_000);
    let (_, cold) = cold(Path::SATELLITE, CongestionControl::Bbr, bytes);
    eprintln!("bbr: {bytes} bytes after {took:?}, without memory {cold:?}");
    assert!(took < cold, "{took:?}, {cold:?}");
}

#[test]
fn a_worse_path_is_noticed_and_the_jump_taken_back() {
    let worse = Path {
        bytes_per_s: 125_000,
        queue_bytes: 75_000,
        ..Path::SATELLITE
    };
    for congestion in CongestionControl::ALL {
        let bytes = 1_500_000;
        let (link, took) = resumed(worse, *congestion, bytes);
        let names = names(&link);
        let retreat = names.iter().position(|phase| *phase == Phase::SafeRetreat);
        let retreat = retreat.unwrap_or_else(|| panic!("{congestion}: {names:?}"));
        assert!(matches!(
            names[retreat - 1],
            Phase::Unvalidated | Phase::Validating
        ));
        assert_eq!(names[retreat + 1..], [Phase::Normal]);
        // What the path carries is 75 kB in flight and as much in the queue.
        for moment in &link.moments {
            if moment.phase == Some(Phase::SafeRetreat) {
                assert!(
                    moment.window_bytes <= 150_000 / 2,
                    "{congestion}: {moment:?}"
                );
            }
        }
        let (_, cold) = cold(worse, *congestion, bytes);
        eprintln!("{congestion}: {bytes} bytes after {took:?}, without memory {cold:?}");
        // The wrong guess costs nothing to speak of.
        assert!(took < cold * 5 / 4, "{congestion}: {took:?}, {cold:?}");
    }
}

#[test]
fn another_round_trip_is_another_path() {
    for milliseconds in [50, 6_100] {
        let other = Path {
            round_trip: Duration::from_millis(milliseconds),
            queue_bytes: 10_000_000,
            ..Path::SATELLITE
        };
        let (link, _) = resumed(other, CongestionControl::Cubic, 300_000);
        assert_eq!(names(&link), [Phase::Reconnaissance, Phase::Normal]);
    }
}

#[test]
fn congestion_before_the_jump_prevents_it() {
    let lossy = Path {
        queue_bytes: 5_000,
        ..Path::SATELLITE
    };
    let (link, _) = resumed(lossy, CongestionControl::Cubic, 300_000);
    assert_eq!(names(&link), [Phase::Reconnaissance, Phase::Normal]);
}

#[test]
fn stale_and_implausible_memories_are_refused() {
    let mut link = Link::new(
        Path::SATELLITE,
        &settings(CongestionControl::Cubic),
        200_000,
    );
    let memory = link.accept();
    let (_, now_ms) = link.now();
    let path = saved();
    let fill = |path| memory.fill(path, now_ms, LIFETIME_MS);
    let old = SavedPath {
        saved_at_ms: now_ms - LIFETIME_MS - 1,
        ..path
    };
    assert_eq!(fill(old), Err(Refused::Stale));
    let future = SavedPath {
        saved_at_ms: now_ms + 1,
        ..path
    };
    assert_eq!(fill(future), Err(Refused::Stale));
    let impossible = SavedPath {
        min_rtt_us: path.rtt_us + 1,
        ..path
    };
    assert_eq!(fill(impossible), Err(Refused::Implausible));
    let unknown = SavedPath {
        congestion_window_bytes: 0,
        ..path
    };
    assert_eq!(fill(unknown), Err(Refused::Implausible));
    link.receive(200_000);
    assert_eq!(names(&link), [Phase::Reconnaissance]);

    assert_eq!(fill(path), Ok(()));
    assert_eq!(fill(path), Err(Refused::Filled));
}

#[test]
fn a_memory_does_not_outlive_its_lifetime_in_a_waiting_connection() {
    let mut link = Link::new(Path::SATELLITE, &settings(CongestionControl::Cubic), 1_000);
    let memory = link.accept();
    let (_, now_ms) = link.now();
    let path = SavedPath {
        saved_at_ms: now_ms - LIFETIME_MS + 5_000,
        ..saved()
    };
    memory.fill(path, now_ms, LIFETIME_MS).unwrap();
    link.receive(1_000);
    link.run(Duration::from_secs(10));
    link.say(500_000);
    link.receive(501_000);
    assert_eq!(names(&link), [Phase::Reconnaissance, Phase::Normal]);
}

#[test]
fn a_waiting_connection_jumps_when_there_is_enough_to_send() {
    let mut link = Link::new(Path::SATELLITE, &settings(CongestionControl::Cubic), 1_000);
    let memory = link.accept();
    let (_, now_ms) = link.now();
    memory.fill(saved(), now_ms, LIFETIME_MS).unwrap();
    link.receive(1_000);
    link.run(Duration::from_secs(60));
    assert_eq!(names(&link), [Phase::Reconnaissance]);
    // Nothing learnt: the next connection gets the memory as it was.
    let (now, now_ms) = link.now();
    let passed_on = SavedPath::observe(link.server().unwrap(), now, now_ms).unwrap();
    assert_eq!(passed_on.congestion_window_bytes, 800_000);
    assert_eq!(passed_on.saved_at_ms, saved().saved_at_ms);

    link.say(1_000_000);
    link.receive(1_001_000);
    assert!(names(&link).contains(&Phase::Unvalidated));
}

#[test]
fn a_connection_remembers_what_it_filled_and_nothing_else() {
    let (mut link, _) = cold(Path::SATELLITE, CongestionControl::Cubic, 4_000_000);
    let (now, now_ms) = link.now();
    let path = SavedPath::observe(link.server().unwrap(), now, now_ms).unwrap();
    assert_eq!(SavedPath::decode(&path.encode()), Some(path));
    assert!((590_000..700_000).contains(&path.min_rtt_us), "{path:?}");
    // Up to the bandwidth-delay product and a full queue.
    assert!(
        (300_000..1_600_000).contains(&path.congestion_window_bytes),
        "{path:?}"
    );
    assert_eq!(path.mtu_bytes, 1_200);
    // Idle time makes the window older, not younger.
    link.run(Duration::from_secs(30));
    let (now, now_ms) = link.now();
    let later = SavedPath::observe(link.server().unwrap(), now, now_ms).unwrap();
    assert!(later.saved_at_ms + 29_000 < now_ms, "{later:?}");

    let (link, _) = cold(Path::SATELLITE, CongestionControl::Cubic, 3_000);
    let (now, now_ms) = link.now();
    let path = SavedPath::observe(link.server().unwrap(), now, now_ms).unwrap();
    assert_eq!(path.congestion_window_bytes, 0);
    assert_eq!(path.saved_at_ms, now_ms);
}

#[test]
fn another_port_is_the_same_path_and_another_address_is_not() {
    for (address, phase) in [
        (([10, 0, 0, 1], 2_000), Phase::Normal),
        (([10, 0, 9, 1], 1_000), Phase::Reconnaissance),
    ] {
        let (mut link, _) = resumed(Path::SATELLITE, CongestionControl::Cubic, 1_500_000);
        assert_eq!(names(&link).last(), Some(&Phase::Normal));
        let old = PathMemory::of(link.server().unwrap()).unwrap();
        link.run(Duration::from_secs(10));
        link.move_client(address.into());
        link.ping();
        link.run(Duration::from_secs(10));
        let server = link.server().unwrap();
        assert_eq!(server.remote_address(), address.into());
        assert_eq!(Phase::of(server), Some(phase));
        // The new path's memory is another, empty place.
        let fill = |memory: &PathMemory| memory.fill(saved(), EPOCH_MS, LIFETIME_MS);
        let new = PathMemory::of(server).unwrap();
        assert_eq!(fill(&old), Err(Refused::Filled));
        assert_eq!(fill(&new).is_ok(), phase == Phase::Reconnaissance);
    }
}

#[test]
fn without_a_lifetime_there_is_no_memory() {
    let settings = Settings {
        path_memory_lifetime_ms: 0,
        ..settings(CongestionControl::Cubic)
    };
    let mut link = Link::new(Path::SATELLITE, &settings, 1_000);
    link.receive(1_000);
    assert!(PathMemory::of(link.server().unwrap()).is_none());
    assert!(Phase::of(link.server().unwrap()).is_none());
}

/// Whether one phase may follow another (RFC 9959, section 3).
const fn follows(from: Phase, to: Phase) -> bool {
    matches!(
        (from, to),
        // Several acknowledgements may come at one moment: one makes it jump, the next one says
        // that something is lost, and the jump between them is not seen.
        (
            Phase::Reconnaissance,
            Phase::Unvalidated | Phase::SafeRetreat | Phase::Normal
        ) | (
            Phase::Unvalidated,
            Phase::Validating | Phase::SafeRetreat | Phase::Normal
        ) | (Phase::Validating, Phase::SafeRetreat | Phase::Normal)
            | (Phase::SafeRetreat, Phase::Normal)
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_memory_on_any_path_is_survived(
        round_trip_ms in 5..=3_000_u64,
        kbyte_per_s in 4..=5_000_u64,
        queue_packets in 4..=600_u64,
        loss_per_mille in 0..=60_u32,
        congestion in prop::sample::select(CongestionControl::ALL),
        rtt_percent in 30..=1_200_u64,
        congestion_window_bytes in 1..=4_000_000_u64,
    ) {
        let path = Path {
            round_trip: Duration::from_millis(round_trip_ms),
            bytes_per_s: kbyte_per_s * 1_000,
            queue_bytes: queue_packets * 1_200,
            loss_per_mille,
        };
        let rtt_us = (round_trip_ms * rtt_percent * 10) as u32;
        let memory = SavedPath {
            rtt_us,
            min_rtt_us: rtt_us,
            congestion_window_bytes,
            ..saved()
        };
        let bytes = 150_000;
        let mut link = Link::new(path, &settings(congestion), bytes);
        let place = link.accept();
        let (_, now_ms) = link.now();
        place.fill(memory, now_ms, LIFETIME_MS).unwrap();
        link.receive(bytes);
        let names = names(&link);
        for pair in names.windows(2) {
            prop_assert!(follows(pair[0], pair[1]), "{names:?}");
        }
        for moment in &link.moments {
            prop_assert!(moment.window_bytes >= 2_400, "{moment:?}");
            if moment.phase == Some(Phase::Unvalidated) {
                prop_assert!(moment.window_bytes <= congestion_window_bytes / 2, "{moment:?}");
            }
        }
        let (now, now_ms) = link.now();
        let observed = SavedPath::observe(link.server().unwrap(), now, now_ms).unwrap();
        prop_assert_eq!(SavedPath::decode(&observed.encode()), Some(observed));
    }
}
