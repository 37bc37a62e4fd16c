//! What is kept together with a message, also where publishing it panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sterna_broker::{
    Appended, Committed, CompanionRecord, Frame, Full, Limits, Publication, Qos, ReadAnswer,
    ReadRequest, SessionKey, Store,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, qos};
use crate::holding::PanicsOnce;

fn broker_on(store: &(impl Store + Clone + 'static)) -> (Cluster, Client) {
    let limits = Limits {
        queued_messages: 1,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(1, limits, |_| Box::new(store.clone()));
    cluster.broker(0).restore(0);
    cluster.collect(0);
    cluster.run();
    let publisher = cluster.open_with(0, "publisher", false, u32::MAX, None);
    (cluster, publisher)
}

/// A publication of QoS 2, with the record that says that it was received.
fn with_identifier(publisher: SessionKey, payload: &str) -> Publication<'static> {
    let text = message("t", payload, Qos::ExactlyOnce, false);
    let mut publication = Publication::new(Some(publisher), text);
    publication.companions.record = Some(CompanionRecord::Session {
        session: publisher,
        key: b"identifier",
        value: b"",
    });
    publication
}

/// The repetition of a publication that panicked is known by its record, and would be dropped.
#[test]
fn a_record_is_for_one_publication_also_where_that_panics() {
    let store = MemoryStore::new();
    let (mut cluster, publisher) = broker_on(&store);
    let reader = cluster.open_with(0, "reader", true, 0, None);
    cluster.subscribe(reader, "t", qos(Qos::ExactlyOnce));
    for _ in 0..10 {
        cluster.publish(0, "t", "1", Qos::ExactlyOnce);
    }
    let now_ms = cluster.now_ms;
    let broker = cluster.broker(0);
    broker.set_loss_watcher(Box::<PanicsOnce>::default());
    let publication = with_identifier(publisher.key, "2");
    assert!(catch_unwind(AssertUnwindSafe(|| broker.publish(now_ms, publication))).is_err());
    broker.keep(publisher.key, b"other", b"");

    let (mut cluster, publisher) = broker_on(&store.snapshot());
    let records = cluster.broker(0).take_records(publisher.key);
    let keys: Vec<_> = records.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, [b"other"]);
}

/// A store whose next append of a message panics once, before or behind the frame that it takes.
#[derive(Clone, Debug)]
struct PanicsInAppend {
    store: MemoryStore,
    is_armed: Arc<AtomicBool>,
    is_behind: bool,
}

impl Store for PanicsInAppend {
    fn next_position(&self) -> u64 {
        self.store.next_position()
    }

    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        let panics = !frame.messages.is_empty() && self.is_armed.swap(false, Ordering::Relaxed);
        assert!(!panics || self.is_behind, "before the append");
        let appended = self.store.append(frame);
        assert!(!panics, "behind the append");
        appended
    }

    fn committed(&self) -> Committed {
        self.store.committed()
    }

    fn read(&mut self, request: ReadRequest) {
        self.store.read(request);
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.store.next_answer()
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        self.store.read_now(request)
    }

    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.store.load(visit);
    }

    fn needed_from(&mut self, position: u64) {
        self.store.needed_from(position);
    }

    fn hold_from(&mut self, position: u64) {
        self.store.hold_from(position);
    }
}

/// Either both of a message and its record are in the store, or neither. What is kept next brings no record along.
#[test]
fn a_record_is_kept_with_its_message_or_not_also_where_the_append_panics() {
    for is_behind in [false, true] {
        let store = PanicsInAppend {
            store: MemoryStore::new(),
            is_armed: Arc::default(),
            is_behind,
        };
        let (mut cluster, publisher) = broker_on(&store);
        let reader = cluster.open_with(0, "reader", false, u32::MAX, None);
        cluster.subscribe(reader, "t", qos(Qos::ExactlyOnce));
        store.is_armed.store(true, Ordering::Relaxed);
        let now_ms = cluster.now_ms;
        let broker = cluster.broker(0);
        let publication = with_identifier(publisher.key, "1");
        assert!(catch_unwind(AssertUnwindSafe(|| broker.publish(now_ms, publication))).is_err());
        assert!(!store.is_armed.load(Ordering::Relaxed), "it has panicked");
        broker.keep(publisher.key, b"other", b"");

        let kept = store.store.snapshot();
        let (mut cluster, publisher) = broker_on(&kept);
        let records = cluster.broker(0).take_records(publisher.key);
        let keys: Vec<_> = records.iter().map(|(key, _)| &**key).collect();
        let reader = cluster.open_with(0, "reader", false, u32::MAX, None);
        cluster.run();
        let told = cluster.drain(reader);
        if is_behind {
            assert_eq!(keys, [&b"identifier"[..], b"other"]);
            assert_eq!(told, ["1"]);
        } else {
            assert_eq!(keys, [b"other"]);
            assert!(told.is_empty());
        }
    }
}
