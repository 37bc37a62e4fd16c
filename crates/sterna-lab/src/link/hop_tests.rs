//! Links of several hops.

use proptest::prelude::*;

use super::tests::{Numbered, any_ordered_pipe, numbered};
use super::*;

const MS: u64 = 1_000_000;

/// A link of these pipes, each in both directions.
fn chain(pipes: &[PipeSettings]) -> LinkSettings {
    let mut links = pipes.iter().cloned().map(LinkSettings::symmetric);
    let first = links.next().unwrap();
    links.fold(first, LinkSettings::followed_by)
}

/// Sends packets at these distances, and returns the deliveries. A punctual caller looks at every moment
/// that the link names, another one only now and then.
fn deliveries(
    settings: &LinkSettings,
    seed: u64,
    direction: Direction,
    pauses_ns: &[u64],
    is_punctual: bool,
) -> (Vec<(u64, Numbered)>, Link<Numbered>) {
    let mut link = Link::new(settings, seed).unwrap();
    let mut out = Vec::new();
    let mut take = |link: &mut Link<Numbered>, now_ns| {
        while let Some(delivery) = link.pop(direction, now_ns) {
            assert!(delivery.due_ns <= now_ns);
            out.push((delivery.due_ns, delivery.packet));
        }
    };
    let mut now_ns = 0;
    for (number, pause_ns) in pauses_ns.iter().enumerate() {
        let next_ns = now_ns + pause_ns;
        while is_punctual
            && let Some(due_ns) = link.next_deadline_ns().filter(|due| *due <= next_ns)
        {
            take(&mut link, due_ns);
        }
        now_ns = next_ns;
        link.push(
            direction,
            now_ns,
            numbered(number as u64, 100 + number * 7 % 1400),
        );
    }
    while let Some(due_ns) = link.next_deadline_ns() {
        take(&mut link, due_ns.max(now_ns));
    }
    (out, link)
}

#[test]
fn each_hop_has_its_own_rate_delay_and_queue_in_the_order_of_the_way() {
    let hop = |rate_bps, delay_ns| {
        LinkSettings::symmetric(PipeSettings {
            rate_bps: Some(rate_bps),
            delay_ns,
            queue: Queue::Packets(1),
            ..PipeSettings::default()
        })
    };
    let settings = hop(8_000_000, 10 * MS).followed_by(hop(800_000, 100 * MS));
    assert_eq!(settings.rtt_ns(), 220 * MS);
    for (direction, moments_ms) in [
        // 1000 bytes take 1 ms on the first hop and 10 ms on the second.
        (Direction::Up, [121, 131]),
        // The slow hop comes first: the second packet waits 10 ms there, and a third finds no room.
        (Direction::Down, [121, 131]),
    ] {
        let mut link = Link::new(&settings, 1).unwrap();
        for number in 0..4 {
            link.push(direction, 0, numbered(number, 1000));
        }
        let mut arrived_ms = Vec::new();
        while let Some(due_ns) = link.next_deadline_ns() {
            arrived_ms.extend(
                link.pop(direction, due_ns)
                    .map(|delivery| delivery.due_ns / MS),
            );
        }
        assert_eq!(arrived_ms, moments_ms, "{direction:?}");
        let counters = link.counters(direction);
        assert_eq!(
            (counters.offered_packets, counters.delivered_packets),
            (4, 2)
        );
        assert_eq!(counters.dropped.queue, 2);
        let full: Vec<u64> = link
            .hop_counters(direction)
            .iter()
            .map(|hop| hop.dropped.queue)
            .collect();
        let first = if direction == Direction::Up {
            [2, 0]
        } else {
            [0, 2]
        };
        assert_eq!(full, first, "{direction:?}");
    }
}

#[test]
fn settings_change_for_all_hops_or_none() {
    let delayed = |delay_ns| PipeSettings {
        delay_ns,
        ..PipeSettings::default()
    };
    let mut link = Link::new(&chain(&[delayed(1), delayed(2)]), 1).unwrap();
    let mut wrong = delayed(5);
    wrong.duplicate = 2.0;
    assert!(link.change(&chain(&[delayed(5), wrong])).is_err());
    assert!(link.change(&chain(&[delayed(5)])).is_err());
    link.push(Direction::Up, 0, numbered(0, 100));
    // The first hop's packet meets the second hop as it is when it comes there.
    link.change(&chain(&[delayed(10), delayed(20)])).unwrap();
    link.push(Direction::Up, 0, numbered(1, 100));
    let moments: Vec<u64> = std::iter::from_fn(|| link.pop(Direction::Up, 1000))
        .map(|delivery| delivery.due_ns)
        .collect();
    assert_eq!(moments, [21, 30]);
    link.switch(Direction::Up, false);
    link.push(Direction::Up, 2000, numbered(2, 100));
    assert_eq!(link.counters(Direction::Up).dropped.down, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_is_counted_in_order_and_not_early(
        pipes in proptest::collection::vec(any_ordered_pipe(), 1..4),
        seed in any::<u64>(),
        is_up in any::<bool>(),
        pauses_ns in proptest::collection::vec(0..20 * MS, 1..200),
    ) {
        let direction = if is_up { Direction::Up } else { Direction::Down };
        let settings = chain(&pipes);
        let (out, link) = deliveries(&settings, seed, direction, &pauses_ns, true);
        prop_assert!(out.is_sorted_by_key(|(due_ns, packet)| (*due_ns, packet.number)));
        let mut pushed_ns = 0;
        let pushed: Vec<u64> = pauses_ns.iter().map(|pause| { pushed_ns += pause; pushed_ns }).collect();
        let has_jitter = pipes.iter().any(|pipe| pipe.jitter != Jitter::None);
        let delay_ns: u64 = pipes.iter().map(|pipe| pipe.delay_ns).sum();
        for (due_ns, packet) in &out {
            let least_ns = if has_jitter { 0 } else { delay_ns };
            prop_assert!(*due_ns >= pushed[packet.number as usize] + least_ns);
        }
        let counters = link.counters(direction);
        prop_assert_eq!(counters.offered_packets, pauses_ns.len() as u64);
        prop_assert_eq!(counters.delivered_packets, out.len() as u64);
        prop_assert_eq!(
            counters.offered_packets + counters.duplicated,
            counters.delivered_packets + counters.dropped.total()
        );
        prop_assert_eq!(link.in_flight_packets(direction), 0);
        // A packet that leaves a hop enters the next one.
        let mut hops = link.hop_counters(direction);
        if direction == Direction::Down {
            hops.reverse();
        }
        for pair in hops.windows(2) {
            prop_assert_eq!(pair[0].delivered_packets, pair[1].offered_packets);
            prop_assert_eq!(pair[0].delivered_bytes, pair[1].offered_bytes);
        }
    }

    #[test]
    fn a_caller_that_comes_late_changes_nothing(
        pipes in proptest::collection::vec(any_ordered_pipe(), 1..4),
        seed in any::<u64>(),
        pauses_ns in proptest::collection::vec(0..20 * MS, 1..200),
    ) {
        let settings = chain(&pipes);
        let of = |is_punctual| deliveries(&settings, seed, Direction::Up, &pauses_ns, is_punctual).0;
        prop_assert_eq!(of(true), of(false));
    }

    #[test]
    fn a_hop_that_only_delays_adds_its_delay(
        pipe in any_ordered_pipe(),
        delay_ns in 0..300 * MS,
        seed in any::<u64>(),
        pauses_ns in proptest::collection::vec(0..20 * MS, 1..200),
    ) {
        // Upwards it comes second; a pipe behind it would meet other moments of its schedule.
        let direction = Direction::Up;
        let only_delay = PipeSettings { delay_ns, ..PipeSettings::default() };
        let alone = deliveries(&chain(std::slice::from_ref(&pipe)), seed, direction, &pauses_ns, true).0;
        let later: Vec<_> = alone.into_iter().map(|(due_ns, packet)| (due_ns + delay_ns, packet)).collect();
        // The client's hop keeps the decisions that it has alone, whatever is behind it.
        let both = deliveries(&chain(&[pipe, only_delay]), seed, direction, &pauses_ns, true).0;
        prop_assert_eq!(both, later);
    }

    #[test]
    fn a_chain_is_as_fast_as_its_slowest_hop(
        rates_bps in proptest::collection::vec(100_000..50_000_000_u64, 2..5),
        seed in any::<u64>(),
    ) {
        let pipes: Vec<PipeSettings> = rates_bps.iter().map(|rate_bps| PipeSettings {
            rate_bps: Some(*rate_bps),
            queue: Queue::Packets(5000),
            ..PipeSettings::default()
        }).collect();
        let slowest_bps = *rates_bps.iter().min().unwrap();
        let mut link = Link::new(&chain(&pipes), seed).unwrap();
        for number in 0..500 {
            link.push(Direction::Up, 0, numbered(number, 1000));
        }
        let mut moments = Vec::new();
        while let Some(due_ns) = link.next_deadline_ns() {
            moments.extend(link.pop(Direction::Up, due_ns).map(|delivery| delivery.due_ns));
        }
        prop_assert_eq!(moments.len(), 500);
        let bits = 499.0 * 8000.0;
        let rate = bits / ((moments[499] - moments[0]) as f64 / 1e9);
        prop_assert!((rate / slowest_bps as f64 - 1.0).abs() < 0.001, "{} of {}", rate, slowest_bps);
    }
}
