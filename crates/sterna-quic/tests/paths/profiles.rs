//! What the profiles promise, counted in datagrams.

use std::time::Duration;

use sterna_quic::{Profile, Settings};

use crate::link::{Link, Path};

/// NB-IoT as the paper on HTTP/3 emulates it: 2 s, 127 kbit/s.
const NB_IOT: Path = Path {
    round_trip: Duration::from_secs(2),
    bytes_per_s: 15_875,
    queue_bytes: 64_000,
    loss_per_mille: 0,
};

fn settings(profile: Profile, initial_rtt_ms: u32) -> Settings {
    Settings {
        initial_rtt_ms,
        ..Settings::of(profile)
    }
}

/// Padded datagrams that the client has sent when the answer to its request is there.
fn padded(settings: &Settings) -> usize {
    let mut link = Link::new(NB_IOT, settings, 4);
    link.receive(4);
    link.sent[0].iter().filter(|size| **size >= 1_200).count()
}

#[test]
fn the_initial_round_trip_saves_initial_packets() {
    let [right, usual, hasty] = [1_500, 333, 100].map(|ms| padded(&settings(Profile::NbIot, ms)));
    eprintln!("padded datagrams with 1,500, 333 and 100 ms: {right}, {usual}, {hasty}");
    // The last of them carries the acknowledgement of the server's.
    assert_eq!(right, 2);
    assert!((3..=5).contains(&usual), "{usual}");
    assert!(hasty >= 5, "{hasty}");
}

/// Datagrams up and down for fifty messages of the server, 100 ms apart.
fn trickle(settings: &Settings) -> [usize; 2] {
    let path = Path {
        round_trip: Duration::from_secs(1),
        ..Path::SATELLITE
    };
    let mut link = Link::new(path, settings, 4);
    link.receive(4);
    link.run(Duration::from_secs(10));
    let before = link.sent.each_ref().map(Vec::len);
    for _ in 0..50 {
        link.say(40);
        link.run(Duration::from_millis(100));
    }
    link.run(Duration::from_secs(10));
    let after = link.sent.each_ref().map(Vec::len);
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn a_peer_that_is_asked_acknowledges_less_often() {
    let [acknowledgements, messages] = trickle(&Settings::of(Profile::Default));
    eprintln!("not asked: {messages} messages, {acknowledgements} acknowledgements");
    assert_eq!(messages, 50);
    assert!(acknowledgements >= 45, "{acknowledgements}");
    let asked = Settings {
        max_ack_delay_ms: 500,
        ..Settings::of(Profile::Satellite)
    };
    let [acknowledgements, messages] = trickle(&asked);
    eprintln!("asked: {messages} messages, {acknowledgements} acknowledgements");
    assert!((50..=52).contains(&messages), "{messages}");
    assert!(acknowledgements <= 13, "{acknowledgements}");
}

#[test]
fn a_sleeping_connection_has_no_packet_on_the_air_and_no_timer_set() {
    let mut link = Link::new(NB_IOT, &Settings::of(Profile::Sleepy), 100);
    link.receive(100);
    // Until the last acknowledgement, and until the keys of the handshake are gone.
    link.run(Duration::from_secs(2 * 60));
    assert_eq!(link.timers(), [None, None]);
    let before = link.sent.clone();
    link.run(Duration::from_secs(24 * 3600));
    assert_eq!(link.sent, before);

    // One datagram for the message, one for its acknowledgement.
    link.say(40);
    link.run(Duration::from_secs(60));
    assert_eq!(link.received_bytes, 140);
    let up: Vec<_> = link.sent[0][before[0].len()..].to_vec();
    let down: Vec<_> = link.sent[1][before[1].len()..].to_vec();
    assert_eq!([up.len(), down.len()], [1, 1], "{up:?} {down:?}");
    eprintln!("awake: {down:?} down, {up:?} up");
    assert!(up[0] < 60 && down[0] < 110, "{up:?} {down:?}");
    assert_eq!(link.timers(), [None, None]);
}

#[test]
fn an_idle_connection_ends_when_the_profile_says_so() {
    let settings = Settings {
        idle_timeout_ms: 60_000,
        ..Settings::of(Profile::Cellular)
    };
    let mut link = Link::new(Path::SATELLITE, &settings, 100);
    link.receive(100);
    link.run(Duration::from_secs(50));
    assert!(!link.server().unwrap().is_closed());
    link.run(Duration::from_secs(30));
    assert!(link.server().unwrap().is_closed());
}
