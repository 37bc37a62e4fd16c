//! What readers of the log cost the store while their consumers are there: records that are written, and reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sterna_broker::{
    Appended, Committed, Frame, Full, Limits, Outcome, Qos, ReadAnswer, ReadRequest, Store,
};
use sterna_store::MemoryStore;

use crate::cluster::{Cluster, qos, text};

/// What was asked of all handles on a store.
#[derive(Debug, Default)]
struct Asked {
    records: AtomicU64,
    record_bytes: AtomicU64,
    reads: AtomicU64,
}

impl Asked {
    /// Takes the numbers: records that were written, their bytes, and reads of the log.
    fn take(&self) -> (u64, u64, u64) {
        (
            self.records.swap(0, Ordering::Relaxed),
            self.record_bytes.swap(0, Ordering::Relaxed),
            self.reads.swap(0, Ordering::Relaxed),
        )
    }
}

/// A store that counts.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    asked: Arc<Asked>,
}

impl Store for Counting {
    fn next_position(&self) -> u64 {
        self.inner.next_position()
    }
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        for change in frame.changes {
            let value_bytes = change.value.as_ref().map_or(0, |value| value.len());
            let bytes = (change.key.len() + value_bytes) as u64;
            self.asked.records.fetch_add(1, Ordering::Relaxed);
            self.asked.record_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.inner.append(frame)
    }
    fn committed(&self) -> Committed {
        self.inner.committed()
    }
    fn read(&mut self, request: ReadRequest) {
        self.asked.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(request);
    }
    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.inner.next_answer()
    }
    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        self.inner.read_now(request)
    }
    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.inner.load(visit);
    }
    fn needed_from(&mut self, position: u64) {
        self.inner.needed_from(position);
    }
    fn hold_from(&mut self, position: u64) {
        self.inner.hold_from(position);
    }
}

fn start(shards: u16, limits: Limits) -> (Cluster, Arc<Asked>) {
    let (store, asked) = (MemoryStore::new(), Arc::new(Asked::default()));
    let cluster = Cluster::with(shards, limits, |_| {
        Box::new(Counting {
            inner: store.clone(),
            asked: Arc::clone(&asked),
        })
    });
    (cluster, asked)
}

/// Settled messages are in a cursor that is written at intervals. Between two of them no watermark comes from other shards,
/// which the cursor may not pass. So it is not written for each message meanwhile, with all that were settled.
#[test]
fn the_cursor_of_a_reader_that_keeps_up_is_written_seldom() {
    const MESSAGES: u64 = 8_000;
    for shards in 1..=3 {
        let (mut cluster, asked) = start(shards, Limits::default());
        let reader = cluster.open(shards - 1, "reader");
        cluster.subscribe(reader, "t", qos(Qos::AtLeastOnce));
        asked.take();
        for number in 0..MESSAGES {
            cluster.publish(0, "t", &number.to_string(), Qos::AtLeastOnce);
            assert_eq!(cluster.drain(reader), [number.to_string()]);
        }
        cluster.pass(1_000);
        let (records, bytes, reads) = asked.take();
        assert_eq!(reads, 0, "{shards} shards");
        assert!(
            records <= MESSAGES / 256,
            "{shards} shards: {records} records"
        );
        assert!(
            bytes <= 8 * MESSAGES,
            "{shards} shards: {bytes} bytes of records"
        );
    }
}

/// A reader that has some thousand messages before it, and gets on as fast as its publishers, does so by the log. It reads
/// many at once, however few its client takes.
#[test]
fn a_reader_that_stays_behind_reads_seldom() {
    const BEHIND: u64 = 3_000;
    const MESSAGES: u64 = 8_000;
    const WINDOW: u64 = 16;
    for shards in 1..=2 {
        let (mut cluster, asked) = start(shards, Limits::default());
        let reader = cluster.open(shards - 1, "reader");
        cluster.subscribe(reader, "t", qos(Qos::AtLeastOnce));
        asked.take();
        let (mut published, mut received) = (0, 0);
        while received < MESSAGES {
            let until = MESSAGES.min(received + BEHIND);
            for number in published..until {
                cluster.publish(0, "t", &number.to_string(), Qos::AtLeastOnce);
            }
            published = until;
            let window: Vec<_> = (0..WINDOW).filter_map(|_| cluster.next(reader)).collect();
            assert!(!window.is_empty(), "{shards} shards: {received} are here");
            let now_ms = cluster.now_ms;
            cluster.broker(shards - 1).begin_turn(|| now_ms);
            for delivery in window {
                assert_eq!(text(&delivery), received.to_string());
                cluster.settle(reader, delivery.tag, Outcome::Accepted);
                received += 1;
            }
        }
        cluster.pass(1_000);
        let (records, bytes, reads) = asked.take();
        let from_log = MESSAGES - Limits::default().queued_messages as u64;
        assert!(reads > 0, "{shards} shards: it has not read the log");
        assert!(reads <= from_log / 128, "{shards} shards: {reads} reads");
        assert!(
            records <= MESSAGES / 256,
            "{shards} shards: {records} records"
        );
        assert!(
            bytes <= 8 * MESSAGES,
            "{shards} shards: {bytes} bytes of records"
        );
    }
}
