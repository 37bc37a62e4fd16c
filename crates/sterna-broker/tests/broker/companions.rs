//! What is kept together with a message, also where publishing it panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sterna_broker::{CompanionRecord, Limits, Publication, Qos};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, qos};
use crate::holding::PanicsOnce;

fn broker_on(store: &MemoryStore) -> (Cluster, Client) {
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
    let text = message("t", "2", Qos::ExactlyOnce, false);
    let mut publication = Publication::new(Some(publisher.key), text);
    publication.companions.record = Some(CompanionRecord::Session {
        session: publisher.key,
        key: b"identifier",
        value: b"",
    });
    assert!(catch_unwind(AssertUnwindSafe(|| broker.publish(now_ms, publication))).is_err());
    broker.keep(publisher.key, b"other", b"");

    let (mut cluster, publisher) = broker_on(&store.snapshot());
    let records = cluster.broker(0).take_records(publisher.key);
    let keys: Vec<_> = records.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, [b"other"]);
}
