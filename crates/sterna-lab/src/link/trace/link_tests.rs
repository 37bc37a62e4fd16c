//! Links with traces of the models, in virtual time.

use super::super::{Direction, Link, LinkSettings, PipeSettings, Queue};
use super::{Coverage, OPPORTUNITY_BYTES, Trace};

const MS: u64 = 1_000_000;

/// A link whose one direction has a trace.
fn link(direction: Direction, trace: Trace) -> Link<Vec<u8>> {
    let mut settings = LinkSettings::default();
    let pipe = PipeSettings {
        trace: Some(trace),
        delay_ns: 20 * MS,
        queue: Queue::Packets(100),
        mtu_bytes: OPPORTUNITY_BYTES as u32,
        ..PipeSettings::default()
    };
    match direction {
        Direction::Up => settings.up = pipe,
        Direction::Down => settings.down = pipe,
    }
    Link::new(&settings, 1).unwrap()
}

/// Sends more than the link carries; returns when packets arrived, in milliseconds, without the delay.
fn saturate(
    link: &mut Link<Vec<u8>>,
    direction: Direction,
    packet_bytes: usize,
    gap_ns: u64,
    end_ms: u64,
) -> Vec<u64> {
    let mut arrivals = Vec::new();
    for now_ns in (0..end_ms * MS).step_by(gap_ns as usize) {
        link.push(direction, now_ns, vec![0; packet_bytes]);
        while let Some(delivery) = link.pop(direction, now_ns) {
            assert_eq!(delivery.due_ns % MS, 0);
            arrivals.push(delivery.due_ns / MS - 20);
        }
    }
    arrivals
}

#[test]
fn a_link_delivers_at_the_levels_of_starlinks_intervals() {
    let trace = Trace::starlink(Direction::Up, 60, 4).unwrap();
    let mut link = link(Direction::Up, trace.clone());
    let bytes = OPPORTUNITY_BYTES as usize;
    // 60 Mbit/s, through the trace and again through its first interval.
    let arrivals = saturate(&mut link, Direction::Up, bytes, MS / 5, 75_100);
    for interval in 0..5 {
        let count = |moments: &[u64], from_ms: u64| {
            let at = |ms: u64| moments.partition_point(|moment| *moment <= ms);
            at(from_ms + 15_000) - at(from_ms)
        };
        let carried = count(&arrivals, interval * 15_000);
        let offered = count(&trace.at_ms, interval % 4 * 15_000);
        assert!(carried.abs_diff(offered) <= 1, "{carried} of {offered}");
        let mbps = carried as f64 * OPPORTUNITY_BYTES as f64 * 8.0 / 15e6;
        assert!((5.0..30.0).contains(&mbps), "{mbps}");
    }
    // Nothing arrives in the pause that begins an interval.
    let first = arrivals.partition_point(|arrival| *arrival <= 15_000);
    let pause = trace.at_ms[trace.at_ms.partition_point(|moment| *moment <= 15_000)];
    assert_eq!(arrivals[first], pause);
}

#[test]
fn a_link_delivers_nb_iots_blocks_at_their_rate() {
    for (coverage, direction, end_ms) in [
        (Coverage::Normal, Direction::Up, 60_000),
        (Coverage::Normal, Direction::Down, 60_000),
        (Coverage::Robust, Direction::Up, 120_000),
        (Coverage::Extreme, Direction::Down, 240_000),
    ] {
        let trace = Trace::nb_iot(coverage, direction, 60, 4);
        let mut link = link(direction, trace.clone());
        let arrivals = saturate(&mut link, direction, 60, 5 * MS, end_ms);
        let bps = arrivals.len() as f64 * 60.0 * 8.0 * 1000.0 / end_ms as f64;
        let error = (bps / trace.mean_bps() as f64 - 1.0).abs();
        assert!(error < 0.03, "{coverage:?}: {bps} of {}", trace.mean_bps());
        // All at the ends of blocks.
        let period_ms = *trace.at_ms.last().unwrap();
        for arrival in arrivals {
            let moment = (arrival - 1) % period_ms + 1;
            assert!(trace.at_ms.binary_search(&moment).is_ok(), "{arrival}");
        }
    }
}

#[test]
fn a_short_packet_on_an_idle_nb_iot_link_waits_for_the_next_block_and_no_longer() {
    let trace = Trace::nb_iot(Coverage::Extreme, Direction::Up, 600, 2);
    let mut link = link(Direction::Up, trace.clone());
    link.push(Direction::Up, MS, vec![0; 100]);
    // Five seconds of repetitions; 1,504 bytes would take a minute.
    let due_ns = link.next_deadline_ns().unwrap();
    assert_eq!(due_ns, (trace.at_ms[0] + 20) * MS);
    assert!((5_000..20_000).contains(&trace.at_ms[0]));
}
