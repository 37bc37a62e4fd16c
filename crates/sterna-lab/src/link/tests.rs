//! The model in virtual time: the effect of each setting, and the rules for all of them.

use proptest::prelude::*;

use super::settings::bdp_bytes;
use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// A packet that is a number and a length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Numbered {
    pub(super) number: u64,
    length_bytes: usize,
    flipped: Option<u64>,
}

impl Packet for Numbered {
    fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    fn flip_bit(&mut self, bit: u64) {
        self.flipped = Some(bit % (self.length_bytes as u64 * 8));
    }
}

pub(super) const fn numbered(number: u64, length_bytes: usize) -> Numbered {
    Numbered {
        number,
        length_bytes,
        flipped: None,
    }
}

fn pipe(settings: &PipeSettings, rtt_ns: u64, seed: u64) -> Pipe<Numbered> {
    Pipe::new(settings, rtt_ns, seed, Direction::Up).unwrap()
}

/// Pushes packets of one length at a fixed interval and pops due ones; returns the popped ones.
fn stream(
    pipe: &mut Pipe<Numbered>,
    packets: u64,
    interval_ns: u64,
    length_bytes: usize,
) -> Vec<Delivery<Numbered>> {
    let mut out = Vec::new();
    for number in 0..packets {
        let now_ns = number * interval_ns;
        while let Some(delivery) = pipe.pop(now_ns) {
            out.push(delivery);
        }
        pipe.push(now_ns, numbered(number, length_bytes));
    }
    while let Some(due_ns) = pipe.next_deadline_ns() {
        out.push(pipe.pop(due_ns).unwrap());
    }
    out
}

fn numbers(deliveries: &[Delivery<Numbered>]) -> Vec<u64> {
    deliveries.iter().map(|d| d.packet.number).collect()
}

/// Mean and standard deviation of the packets' travel times, in milliseconds.
fn travel_ms(deliveries: &[Delivery<Numbered>], interval_ns: u64) -> (f64, f64) {
    let times: Vec<f64> = deliveries
        .iter()
        .map(|d| (d.due_ns - d.packet.number * interval_ns) as f64 / MS as f64)
        .collect();
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / times.len() as f64;
    (mean, variance.sqrt())
}

#[test]
fn an_empty_setting_lets_everything_through_at_once() {
    let mut pipe = pipe(&PipeSettings::default(), 0, 1);
    let out = stream(&mut pipe, 1000, 10, 1500);
    assert_eq!(numbers(&out), (0..1000).collect::<Vec<_>>());
    assert!(out.iter().all(|d| d.due_ns == d.packet.number * 10));
    assert_eq!(pipe.counters().delivered_bytes, 1_500_000);
    assert_eq!(pipe.counters().dropped, DropCounts::default());
}

#[test]
fn delay_is_added_to_each_packet_behind_the_transmitter() {
    let settings = PipeSettings {
        rate_bps: Some(8_000),
        delay_ns: 600 * MS,
        overhead_bytes: 14,
        ..PipeSettings::default()
    };
    let mut pipe = pipe(&settings, 0, 1);
    pipe.push(0, numbered(0, 86));
    pipe.push(0, numbered(1, 86));
    assert_eq!(pipe.next_deadline_ns(), Some(700 * MS));
    assert!(pipe.pop(700 * MS - 1).is_none());
    assert_eq!(pipe.pop(700 * MS).unwrap().packet.number, 0);
    assert_eq!(pipe.next_deadline_ns(), Some(800 * MS));
}

#[test]
fn the_packet_in_transmission_is_not_in_the_queue() {
    let settings = PipeSettings {
        rate_bps: Some(8_000),
        queue: Queue::Packets(2),
        ..PipeSettings::default()
    };
    let mut pipe = pipe(&settings, 0, 1);
    let fates: Vec<_> = (0..4).map(|n| pipe.push(0, numbered(n, 100))).collect();
    assert_eq!(
        fates,
        [
            Fate::Arrives { at_ns: 100 * MS },
            Fate::Arrives { at_ns: 200 * MS },
            Fate::Arrives { at_ns: 300 * MS },
            Fate::Dropped(Cause::Queue),
        ]
    );
    assert_eq!(pipe.waiting_bytes(0), 200);
    assert!(!pipe.has_room(99 * MS, 100));
    assert!(pipe.has_room(100 * MS, 100));
    assert_eq!(pipe.waiting_bytes(100 * MS), 100);
    assert_eq!(pipe.counters().queue_peak_packets, 2);
}

#[test]
fn a_bdp_queue_is_that_of_the_papers() {
    for (rate_bps, rtt_ms, bytes) in [
        (20_000_000, 25, 62_500),
        (10_000_000, 100, 125_000),
        (1_500_000, 600, 112_500),
    ] {
        assert_eq!(bdp_bytes(rate_bps, rtt_ms * MS), bytes);
        let settings = PipeSettings {
            rate_bps: Some(rate_bps),
            queue: Queue::Bdp(1.0),
            ..PipeSettings::default()
        };
        assert_eq!(pipe(&settings, rtt_ms * MS, 1).queue_limit_bytes(), bytes);
        assert_eq!(pipe(&settings, 0, 1).queue_limit_bytes(), 3000);
    }
}

#[test]
fn loss_at_the_exit_takes_the_links_time() {
    let settings = |loss_at| PipeSettings {
        rate_bps: Some(8_000),
        loss: Loss::Pattern {
            lost: vec![true, false],
            repeat: false,
        },
        loss_at,
        ..PipeSettings::default()
    };
    for (loss_at, due_ns) in [(LossAt::Entry, 100 * MS), (LossAt::Exit, 200 * MS)] {
        let mut pipe = pipe(&settings(loss_at), 0, 1);
        assert_eq!(pipe.push(0, numbered(0, 100)), Fate::Dropped(Cause::Loss));
        assert_eq!(
            pipe.push(0, numbered(1, 100)),
            Fate::Arrives { at_ns: due_ns }
        );
    }
}

#[test]
fn patterns_and_bursts_lose_what_they_say() {
    let lost = |loss: Loss, packets: u64| {
        let settings = PipeSettings {
            loss,
            ..PipeSettings::default()
        };
        let mut pipe = pipe(&settings, 0, 7);
        (0..packets)
            .filter(|n| pipe.push(*n, numbered(*n, 1)) == Fate::Dropped(Cause::Loss))
            .collect::<Vec<_>>()
    };
    let pattern = |repeat| Loss::Pattern {
        lost: vec![false, true, true],
        repeat,
    };
    assert_eq!(lost(pattern(false), 9), [1, 2]);
    assert_eq!(lost(pattern(true), 9), [1, 2, 4, 5, 7, 8]);

    let bursts = lost(
        Loss::Burst {
            probability: 0.01,
            packets: 5,
        },
        100_000,
    );
    // Bursts may follow each other at once, so runs are multiples of the length.
    let mut run = 1;
    for pair in bursts.windows(2) {
        if pair[1] == pair[0] + 1 {
            run += 1;
        } else {
            assert_eq!(run % 5, 0);
            run = 1;
        }
    }
    let rate = bursts.len() as f64 / 1e5;
    assert!((rate - 0.0481).abs() < 0.006, "{rate}");
}

#[test]
fn gilbert_elliott_comes_in_runs_of_the_set_length() {
    let loss = Loss::GilbertElliott {
        to_bad: 0.01,
        to_good: 0.25,
        loss_good: 0.0,
        loss_bad: 1.0,
    };
    assert!((loss.expected() - 0.038_46).abs() < 1e-4);
    let settings = PipeSettings {
        loss,
        ..PipeSettings::default()
    };
    let mut pipe = pipe(&settings, 0, 3);
    let (mut runs, mut losses, mut before) = (0, 0, false);
    for n in 0..200_000 {
        let is_lost = pipe.push(n, numbered(n, 1)) == Fate::Dropped(Cause::Loss);
        runs += u32::from(is_lost && !before);
        losses += u32::from(is_lost);
        before = is_lost;
    }
    let (rate, run) = (f64::from(losses) / 2e5, f64::from(losses) / f64::from(runs));
    assert!((rate - 0.0385).abs() < 0.004, "{rate}");
    assert!((run - 4.0).abs() < 0.2, "{run}");
}

#[test]
fn jitter_has_its_mean_and_spread_when_packets_are_far_apart() {
    let of = |jitter| {
        let settings = PipeSettings {
            delay_ns: 50 * MS,
            jitter,
            ..PipeSettings::default()
        };
        let mut pipe = pipe(&settings, 0, 5);
        let out = stream(&mut pipe, 20_000, 200 * MS, 100);
        travel_ms(&out, 200 * MS)
    };
    let near = |(mean, deviation): (f64, f64), wanted: (f64, f64)| {
        assert!((mean - wanted.0).abs() < 0.1, "mean {mean}");
        assert!(
            (deviation - wanted.1).abs() < 0.15 * wanted.1,
            "sd {deviation}"
        );
    };
    near(
        of(Jitter::Uniform {
            plus_minus_ns: 5 * MS,
        }),
        (50.0, 2.887),
    );
    near(
        of(Jitter::Normal {
            deviation_ns: 5 * MS,
        }),
        (50.0, 5.0),
    );
    // A Lomax distribution of shape 3 has a deviation of sqrt(3) means.
    near(of(Jitter::Pareto { mean_ns: 2 * MS }), (52.0, 3.46));
}

#[test]
fn jitter_reorders_only_when_asked() {
    for jitter_reorders in [false, true] {
        let settings = PipeSettings {
            delay_ns: 50 * MS,
            jitter: Jitter::Uniform {
                plus_minus_ns: 20 * MS,
            },
            jitter_reorders,
            ..PipeSettings::default()
        };
        let mut pipe = pipe(&settings, 0, 5);
        let out = stream(&mut pipe, 1000, MS, 100);
        assert_eq!(numbers(&out).is_sorted(), !jitter_reorders);
        assert_eq!(pipe.counters().held_back == 0, jitter_reorders);
        assert_eq!(out.len(), 1000);
    }
}

#[test]
fn reordered_packets_are_late_and_hold_nobody_back() {
    let settings = PipeSettings {
        reorder: Reorder {
            probability: 0.1,
            extra_ns: 5 * MS,
        },
        ..PipeSettings::default()
    };
    let mut pipe = pipe(&settings, 0, 5);
    let out = stream(&mut pipe, 1000, MS, 100);
    let late = out
        .iter()
        .filter(|d| d.due_ns == d.packet.number * MS + 5 * MS)
        .count();
    assert_eq!(late as u64, pipe.counters().reordered);
    assert!((70..130).contains(&late), "{late}");
    assert_eq!(
        out.iter()
            .filter(|d| d.due_ns == d.packet.number * MS)
            .count(),
        1000 - late
    );
}

#[test]
fn duplicates_follow_their_packet_and_corruption_changes_one_bit() {
    let settings = PipeSettings {
        duplicate: 0.1,
        corrupt: 0.1,
        ..PipeSettings::default()
    };
    let mut pipe = pipe(&settings, 0, 9);
    let out = stream(&mut pipe, 1000, MS, 100);
    let counters = *pipe.counters();
    assert_eq!(out.len() as u64, 1000 + counters.duplicated);
    assert!((70..130).contains(&counters.duplicated));
    assert!((70..130).contains(&counters.corrupted));
    assert!(numbers(&out).is_sorted());
    let flipped = out.iter().filter(|d| d.packet.flipped.is_some()).count();
    assert_eq!(flipped as u64, counters.corrupted);

    let mut bytes = vec![0_u8; 4];
    bytes.flip_bit(32 + 9);
    assert_eq!(bytes, [0, 2, 0, 0]);
    Vec::new().flip_bit(1);
}

#[test]
fn a_schedule_takes_the_link_down_again_and_again() {
    let interval = |from_s: u64, to_s: u64| Interval {
        from_ns: from_s * S,
        to_ns: to_s * S,
    };
    let settings = |when_down| PipeSettings {
        schedule: Schedule {
            down: vec![interval(1, 2), interval(2, 3)],
            period_ns: 10 * S,
            when_down,
        },
        ..PipeSettings::default()
    };
    let mut dropping = pipe(&settings(Down::Drop), 0, 1);
    let mut holding = pipe(&settings(Down::Hold), 0, 1);
    for (number, (at_ns, up_ns)) in [
        (S - 1, S - 1),
        (S, 3 * S),
        (2 * S, 3 * S),
        (3 * S, 3 * S),
        (10 * S, 10 * S),
        (11 * S, 13 * S),
    ]
    .into_iter()
    .enumerate()
    {
        let packet = numbered(number as u64, 100);
        let fate = dropping.push(at_ns, packet);
        if up_ns == at_ns {
            assert_eq!(fate, Fate::Arrives { at_ns });
        } else {
            assert_eq!(fate, Fate::Dropped(Cause::Down));
        }
        assert_eq!(holding.push(at_ns, packet), Fate::Arrives { at_ns: up_ns });
    }
    dropping.switch(false);
    assert_eq!(
        dropping.push(20 * S, numbered(9, 1)),
        Fate::Dropped(Cause::Down)
    );
    dropping.switch(true);
    assert_eq!(
        dropping.push(20 * S, numbered(9, 1)),
        Fate::Arrives { at_ns: 20 * S }
    );
}

#[test]
fn long_packets_and_too_many_are_dropped() {
    let settings = PipeSettings {
        mtu_bytes: 1280,
        delay_ns: 60 * S,
        ..PipeSettings::default()
    };
    let mut narrow = pipe(&settings, 0, 1);
    assert_eq!(narrow.push(0, numbered(0, 1281)), Fate::Dropped(Cause::Mtu));
    assert!(matches!(
        narrow.push(0, numbered(0, 1280)),
        Fate::Arrives { .. }
    ));
    let wide = PipeSettings {
        mtu_bytes: 65_535,
        ..settings
    };
    narrow.change(&wide, 0).unwrap();
    let accepted = (0..10_000)
        .filter(|n| matches!(narrow.push(1, numbered(*n, 65_535)), Fate::Arrives { .. }))
        .count() as u64;
    assert_eq!(accepted, (MAX_IN_FLIGHT_BYTES - 1280) / 65_535);
    assert!(narrow.counters().dropped.overload > 0);
}

#[test]
fn a_change_keeps_what_is_under_way() {
    let slow = PipeSettings {
        delay_ns: 600 * MS,
        ..PipeSettings::default()
    };
    let mut pipe = pipe(&slow, 0, 1);
    pipe.push(0, numbered(0, 100));
    pipe.change(&PipeSettings::default(), 0).unwrap();
    // The new packet would arrive at once; it does not overtake.
    assert_eq!(
        pipe.push(MS, numbered(1, 100)),
        Fate::Arrives { at_ns: 600 * MS }
    );
}

#[test]
fn settings_outside_their_ranges_are_refused() {
    let good = PipeSettings::default();
    let bad = [
        PipeSettings {
            rate_bps: Some(10),
            ..good.clone()
        },
        PipeSettings {
            delay_ns: 4_000 * S,
            ..good.clone()
        },
        PipeSettings {
            duplicate: 1.5,
            ..good.clone()
        },
        PipeSettings {
            corrupt: f64::NAN,
            ..good.clone()
        },
        PipeSettings {
            mtu_bytes: 20,
            ..good.clone()
        },
        PipeSettings {
            queue: Queue::Bytes(0),
            ..good.clone()
        },
        PipeSettings {
            queue: Queue::Bdp(f64::INFINITY),
            ..good.clone()
        },
        PipeSettings {
            loss: Loss::Independent { probability: -0.1 },
            ..good.clone()
        },
        PipeSettings {
            loss: Loss::Pattern {
                lost: Vec::new(),
                repeat: true,
            },
            ..good.clone()
        },
        PipeSettings {
            schedule: Schedule {
                down: vec![Interval {
                    from_ns: 5,
                    to_ns: 5,
                }],
                ..Schedule::default()
            },
            ..good.clone()
        },
        PipeSettings {
            schedule: Schedule {
                down: vec![Interval {
                    from_ns: 5,
                    to_ns: 9,
                }],
                period_ns: 9,
                ..Schedule::default()
            },
            ..good
        },
    ];
    for settings in bad {
        assert!(settings.validate().is_err(), "{settings:?}");
    }
}

#[test]
fn a_link_serves_both_directions() {
    let mut link = Link::new(
        &LinkSettings {
            up: PipeSettings {
                delay_ns: 10,
                ..PipeSettings::default()
            },
            down: PipeSettings {
                delay_ns: 5,
                ..PipeSettings::default()
            },
            ..LinkSettings::default()
        },
        1,
    )
    .unwrap();
    assert_eq!(link.next_deadline_ns(), None);
    link.push(Direction::Up, 0, vec![1]);
    assert_eq!(link.next_deadline_ns(), Some(10));
    link.push(Direction::Down, 0, vec![2]);
    assert_eq!(link.next_deadline_ns(), Some(5));
    assert_eq!(link.pop(Direction::Down, 10).unwrap().packet, [2]);
    assert_eq!(link.pop(Direction::Up, 10).unwrap().packet, [1]);
    assert_eq!(link.counters(Direction::Up).delivered_packets, 1);
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..0.5).prop_map(|probability| Loss::Independent { probability }),
        (0.001..0.2, 0.05..0.9, 0.0..0.05, 0.3..=1.0).prop_map(
            |(to_bad, to_good, loss_good, loss_bad)| Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad
            }
        ),
        (0.0..0.02, 1..20_u32).prop_map(|(probability, packets)| Loss::Burst {
            probability,
            packets
        }),
        (
            proptest::collection::vec(any::<bool>(), 1..20),
            any::<bool>()
        )
            .prop_map(|(lost, repeat)| Loss::Pattern { lost, repeat }),
    ]
}

fn any_queue() -> impl Strategy<Value = Queue> {
    prop_oneof![
        (1..200_000_u64).prop_map(Queue::Bytes),
        (1..100_u64).prop_map(Queue::Packets),
        (0.1..4.0).prop_map(Queue::Bdp),
    ]
}

fn any_jitter() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        Just(Jitter::None),
        (1..20 * MS).prop_map(|plus_minus_ns| Jitter::Uniform { plus_minus_ns }),
        (1..20 * MS).prop_map(|deviation_ns| Jitter::Normal { deviation_ns }),
        (1..20 * MS).prop_map(|mean_ns| Jitter::Pareto { mean_ns }),
    ]
}

prop_compose! {
    /// Anything without intended reordering.
    pub(super) fn any_ordered_pipe()(
        rate_bps in proptest::option::of(8_000..1_000_000_000_u64),
        delay_ns in 0..S,
        jitter in any_jitter(),
        queue in any_queue(),
        overhead_bytes in 0..50_u32,
        loss in any_loss(),
        at_exit in any::<bool>(),
        duplicate in 0.0..0.1,
        corrupt in 0.0..0.1,
        hold in any::<bool>(),
        down_ns in 0..S,
    ) -> PipeSettings {
        PipeSettings {
            rate_bps,
            trace: None,
            delay_ns,
            jitter,
            jitter_reorders: false,
            queue,
            overhead_bytes,
            loss,
            loss_at: if at_exit { LossAt::Exit } else { LossAt::Entry },
            duplicate,
            corrupt,
            reorder: Reorder::default(),
            mtu_bytes: 1500,
            schedule: Schedule {
                down: vec![Interval { from_ns: down_ns, to_ns: down_ns + 100 * MS }],
                period_ns: 2 * S,
                when_down: if hold { Down::Hold } else { Down::Drop },
            },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_saturated_link_has_its_rate(
        rate_bps in prop_oneof![
            Just(8_000_u64), Just(159_000), Just(1_500_000), Just(1_000_000_000), 8_000..1_000_000_000_u64
        ],
        length_bytes in 40..1500_usize,
        seed in any::<u64>(),
    ) {
        let settings = PipeSettings {
            rate_bps: Some(rate_bps),
            queue: Queue::Packets(50),
            ..PipeSettings::default()
        };
        let mut pipe = pipe(&settings, 0, seed);
        // A quarter more than fits.
        let interval_ns = length_bytes as u64 * 8 * S / rate_bps * 4 / 5;
        let out = stream(&mut pipe, 2000, interval_ns, length_bytes);
        let bits = (out.len() - 1) as f64 * length_bytes as f64 * 8.0;
        let seconds = (out[out.len() - 1].due_ns - out[0].due_ns) as f64 / S as f64;
        let ratio = bits / seconds / rate_bps as f64;
        prop_assert!((ratio - 1.0).abs() < 0.001, "{}", ratio);
        prop_assert!(pipe.counters().dropped.queue > 0);
    }

    #[test]
    fn order_is_kept_nothing_is_early_and_all_is_counted(
        settings in any_ordered_pipe(),
        seed in any::<u64>(),
        pushes in proptest::collection::vec((0..20 * MS, 1..1600_usize), 1..400),
    ) {
        let rtt_ns = 2 * settings.delay_ns;
        let mut pipe = pipe(&settings, rtt_ns, seed);
        let (limit_bytes, limit_packets) = settings.queue_limits(rtt_ns);
        let mut now_ns = 0;
        let mut pushed_ns = Vec::new();
        let mut out = Vec::new();
        for (number, (pause_ns, length_bytes)) in pushes.iter().enumerate() {
            now_ns += pause_ns;
            while let Some(delivery) = pipe.pop(now_ns) {
                prop_assert!(delivery.due_ns <= now_ns);
                out.push(delivery);
            }
            prop_assert!(pipe.next_deadline_ns().is_none_or(|due_ns| due_ns > now_ns));
            pushed_ns.push(now_ns);
            pipe.push(now_ns, numbered(number as u64, *length_bytes));
            prop_assert!(pipe.waiting_bytes(now_ns) <= limit_bytes);
        }
        while let Some(due_ns) = pipe.next_deadline_ns() {
            out.push(pipe.pop(due_ns).unwrap());
        }
        prop_assert!(numbers(&out).is_sorted());
        prop_assert!(out.is_sorted_by_key(|d| d.due_ns));
        for delivery in &out {
            let pushed_ns = pushed_ns[delivery.packet.number as usize];
            prop_assert!(delivery.due_ns >= pushed_ns);
            if settings.jitter == Jitter::None {
                prop_assert!(delivery.due_ns >= pushed_ns + settings.delay_ns);
            }
        }
        let counters = pipe.counters();
        prop_assert!(counters.queue_peak_bytes <= limit_bytes);
        prop_assert!(counters.queue_peak_packets <= limit_packets);
        prop_assert_eq!(counters.offered_packets, pushes.len() as u64);
        prop_assert_eq!(
            counters.offered_packets + counters.duplicated,
            counters.delivered_packets + counters.dropped.total()
        );
        prop_assert_eq!(pipe.in_flight_packets(), 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_fates(
        settings in any_ordered_pipe(),
        seed in any::<u64>(),
        pauses in proptest::collection::vec(0..20 * MS, 1..200),
    ) {
        let fates = |seed| {
            let mut pipe = pipe(&settings, 0, seed);
            let mut now_ns = 0;
            pauses.iter().map(|pause_ns| {
                now_ns += pause_ns;
                pipe.push(now_ns, numbered(0, 100))
            }).collect::<Vec<_>>()
        };
        prop_assert_eq!(fates(seed), fates(seed));
    }

    #[test]
    fn losses_belong_to_packets_whatever_else_is_set(
        settings in any_ordered_pipe(),
        seed in any::<u64>(),
    ) {
        let lost = |settings: &PipeSettings| {
            let mut pipe = pipe(settings, 0, seed);
            (0..300_u64).filter(|n| {
                pipe.push(n * 200 * MS, numbered(*n, 20)) == Fate::Dropped(Cause::Loss)
            }).collect::<Vec<_>>()
        };
        let plain = PipeSettings { loss: settings.loss.clone(), ..PipeSettings::default() };
        let without_schedule = PipeSettings { schedule: Schedule::default(), ..settings };
        prop_assert_eq!(lost(&plain), lost(&without_schedule));
    }

    #[test]
    fn loss_is_within_binomial_bounds(probability in 0.0..0.3, seed in any::<u64>()) {
        let packets = 20_000_u64;
        let settings = PipeSettings {
            loss: Loss::Independent { probability },
            ..PipeSettings::default()
        };
        let mut pipe = pipe(&settings, 0, seed);
        for n in 0..packets {
            pipe.push(n, numbered(n, 100));
        }
        let deviation = (probability * (1.0 - probability) / packets as f64).sqrt();
        let error = (pipe.counters().loss_rate() - probability).abs();
        // Five standard deviations: once in two million runs.
        prop_assert!(error <= 5.0f64.mul_add(deviation, 1e-4), "{} at {}", error, probability);
    }
}

#[test]
fn a_pipe_with_a_trace_carries_at_its_moments_and_queues_between_them() {
    let settings = PipeSettings {
        trace: Some(Trace::parse("10\n20\n").unwrap()),
        delay_ns: 3 * MS,
        queue: Queue::Packets(2),
        ..PipeSettings::default()
    };
    let mut pipe: Pipe<Vec<u8>> = Pipe::new(&settings, 0, 1, Direction::Up).unwrap();
    let mut fate = |at_ms: u64| pipe.push(at_ms * MS, vec![0; 1504 - 4]);
    let arrives = |at_ms: u64| Fate::Arrives { at_ns: at_ms * MS };
    // The first packet leaves at 10 ms, and four bytes of that moment are left for the second.
    assert_eq!(fate(1), arrives(13));
    assert_eq!(fate(1), arrives(23));
    // Both wait. A third one has no room before the first has gone.
    assert_eq!(fate(2), Fate::Dropped(Cause::Queue));
    assert_eq!(fate(12), arrives(33));
    // Nothing happens until the moment at 50 ms, which the trace has after it has begun again.
    assert_eq!(fate(41), arrives(53));
    let both = PipeSettings {
        rate_bps: Some(1_000_000),
        ..settings
    };
    assert!(both.validate().unwrap_err().to_string().contains("trace"));
}
