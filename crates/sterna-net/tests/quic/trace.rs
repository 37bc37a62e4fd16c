//! Traces (qlog) of single connections, switched at run time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn_proto::Dir;
use serde_json::Value;
use sterna_net::quic::QuicConfig;
use sterna_net::{Trace, TraceSink};

use crate::world::{Fate, World, echo};

const RTT: Duration = Duration::from_millis(40);

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl TraceSink for Memory {
    fn record(&mut self, record: &[u8]) {
        self.0.lock().expect("no panic").extend_from_slice(record);
    }
}

impl Memory {
    fn trace(&self, max_bytes: u64) -> Trace {
        Trace {
            sink: Box::new(self.clone()),
            title: "device \"7\"\n".to_owned(),
            max_bytes,
        }
    }

    /// The records: each begins with a record separator, ends with a line feed, and is JSON.
    fn records(&self) -> Vec<Value> {
        let bytes = self.0.lock().expect("no panic");
        let text = std::str::from_utf8(&bytes).expect("UTF-8");
        text.split_inclusive('\n')
            .map(|line| {
                let line = line.strip_prefix('\u{1e}').expect("a record separator");
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
            })
            .collect()
    }
}

fn sum(records: &[Value], name: &str) -> (u64, u64) {
    let mut total = (0, 0);
    for record in records.iter().filter(|record| record["name"] == name) {
        let data = &record["data"];
        let count = data["count"].as_u64().expect("a count");
        let lengths = data["raw"].as_array().expect("datagrams");
        assert_eq!(lengths.len() as u64, count);
        total.0 += count;
        total.1 += lengths
            .iter()
            .map(|raw| raw["length"].as_u64().expect("a length"))
            .sum::<u64>();
    }
    total
}

/// Over links that lose, double, delay and garble.
#[test]
fn counts_in_a_trace_equal_the_statistics() {
    for seed in 1..=8 {
        count(seed);
    }
}

fn count(seed: u64) {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(echo);
    let client = world.connect();
    world.run_until(RTT * 5, |world| !world.log.is_empty());
    let key = world.opened()[0].1;
    let memory = Memory::default();
    let clock = sterna_net::Clock::since(world.now, 1_700_000_000_000);
    world.server.set_clock(clock);
    world.server.trace(key, Some(memory.trace(10_000_000)));
    let before = world.server.path(key);
    // Some loss, a change of address, streams that end and that are aborted.
    let mut state = seed;
    world.rule = Box::new(move |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        match state >> 58 {
            0..4 => Fate::Drop,
            4..6 => Fate::Twice,
            6..9 => Fate::Late(RTT / 2),
            9 => Fate::Garbled(state as usize >> 20),
            _ => Fate::Deliver,
        }
    });
    let stream = world.open(client, Dir::Bi, &vec![1; 100_000], true);
    world.run_until(Duration::from_secs(60), |world| {
        world.clients[client].finished.contains(&stream.0)
    });
    world.clients[client].address = "203.0.113.77:40000".parse().expect("an address");
    let second = world.open(client, Dir::Bi, b"hello", false);
    world.run_for(Duration::from_secs(5));
    world.rule = Box::new(|_| Fate::Deliver);
    world.server.abort(key, second, 9);
    world.run_for(Duration::from_secs(5));
    let after = world.server.path(key);
    assert!(after.lost_packets > 0 && after.migrations >= 1);
    let records = memory.records();
    let (header, events) = records.split_first().expect("records");
    assert_eq!(header["qlog_version"], "0.4");
    assert_eq!(header["qlog_format"], "JSON-SEQ");
    assert_eq!(header["title"], "device \"7\"\n");
    let common = &header["trace"]["common_fields"];
    assert_eq!(common["reference_time"], 1_700_000_000_000u64);

    assert_eq!(events[0]["name"], "sterna:statistics");
    assert_eq!(events[0]["data"]["bytes_sent"], before.sent_bytes);
    let received = sum(events, "transport:datagrams_received");
    assert_eq!(
        before.received_datagrams + received.0,
        after.received_datagrams
    );
    assert_eq!(before.received_bytes + received.1, after.received_bytes);
    let sent = sum(events, "transport:datagrams_sent");
    assert_eq!(before.sent_datagrams + sent.0, after.sent_datagrams);
    assert_eq!(before.sent_bytes + sent.1, after.sent_bytes);
    let all = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    let lost: u64 = all("sterna:packets_lost")
        .map(|event| event["data"]["count"].as_u64().expect("a count"))
        .sum();
    assert_eq!(lost, after.lost_packets);
    let metrics = all("recovery:metrics_updated")
        .next_back()
        .expect("metrics");
    assert_eq!(
        metrics["data"]["congestion_window"],
        after.congestion_window_bytes
    );
    assert_eq!(metrics["data"]["pto_count"], after.probe_timeouts);
    let smoothed = metrics["data"]["smoothed_rtt"].as_f64().expect("a number");
    assert!((smoothed - after.rtt_us as f64 / 1_000.0).abs() < 0.001);
    let variance = metrics["data"]["rtt_variance"].as_f64().expect("a number");
    assert!((variance - after.rtt_variance_us as f64 / 1_000.0).abs() < 0.001);
    assert!(all("connectivity:path_assigned").count() >= 2);
    let states: Vec<_> = all("transport:stream_state_updated")
        .map(|event| {
            (
                event["data"]["stream_id"].as_u64(),
                event["data"]["new"].as_str(),
            )
        })
        .collect();
    for (id, state) in [
        (stream.0, "open"),
        (stream.0, "half_closed_remote"),
        (stream.0, "data_received"),
        (second.0, "open"),
        (second.0, "reset_sent"),
    ] {
        assert!(
            states.contains(&(Some(id), Some(state))),
            "{id} {state}: {states:?}"
        );
    }
    let times: Vec<_> = events.iter().map(|event| event["time"].as_f64()).collect();
    assert!(times.is_sorted());

    let now = world.now;
    world.clients[client]
        .connection
        .close(now, 7u32.into(), bytes::Bytes::new());
    world.run_for(Duration::from_secs(5));
    let records = memory.records();
    let closed = records
        .iter()
        .find(|event| event["name"] == "connectivity:connection_closed");
    assert_eq!(closed.expect("the end")["data"]["owner"], "remote");
}

#[test]
fn a_trace_is_bounded_and_can_be_ended() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(echo);
    let client = world.connect();
    let stream = world.open_when_connected(client);
    let key = world.opened()[0].1;
    let memory = Memory::default();
    world.server.trace(key, Some(memory.trace(2_000)));
    for _ in 0..100 {
        world.write(client, stream, &[7; 100], false);
        world.run_for(RTT * 2);
    }
    assert!(memory.0.lock().expect("no panic").len() <= 2_000);
    let records = memory.records();
    assert_eq!(records.last().expect("records")["name"], "sterna:trace_cut");

    let memory = Memory::default();
    world.server.trace(key, Some(memory.trace(1_000_000)));
    world.write(client, stream, &[7; 100], false);
    world.run_for(RTT * 2);
    world.server.trace(key, None);
    let records = memory.records().len();
    assert!(records > 4);
    assert_eq!(Arc::strong_count(&memory.0), 1, "the sink is let go of");
    world.write(client, stream, &[7; 100], false);
    world.run_for(RTT * 2);
    assert_eq!(memory.records().len(), records);
}
