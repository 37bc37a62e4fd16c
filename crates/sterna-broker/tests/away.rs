//! What a session costs that is away: a budget, not a time, so it does not flake.

#[path = "allocations/counting.rs"]
mod counting;

use std::sync::Arc;

use counting::allocated_bytes;
use sterna_broker::{
    Broker, Close, ConsumerId, Directory, Limits, OpenSession, Opened, Qos, SessionKey, ShardId,
    SubscribeOptions,
};
use sterna_store::MemoryStore;

const NOW_MS: u64 = 1_700_000_000_000;
const SESSIONS: usize = 10_000;
/// What the issue asks for: a session that is away with one filter.
const MOST_BYTES: usize = 400;

fn open(broker: &mut Broker<()>, client_id: &str) -> SessionKey {
    let request = OpenSession {
        client_id,
        user: None,
        clean_start: false,
        expiry_s: 86_400,
        consumer: ConsumerId(1),
        will: None,
        on_demand: false,
        selector: None,
    };
    match broker.open(NOW_MS, request) {
        Ok(Opened::Ready { session, .. }) => session,
        other => panic!("{other:?}"),
    }
}

/// The filter of a session.
type FilterOf = fn(usize) -> String;

/// Opens sessions with a filter each, and takes their clients away.
fn put_away(broker: &mut Broker<()>, filter_of: FilterOf) {
    for n in 0..SESSIONS {
        let session = open(broker, &format!("away-{n:06}"));
        let options = SubscribeOptions {
            qos: Qos::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        let filter = filter_of(n);
        let subscribed = broker.subscribe(NOW_MS, session, &filter, options);
        subscribed.expect("a valid filter");
        broker.close(NOW_MS, session, Close::LOST);
    }
    // Their cursors are written.
    broker.timeout(NOW_MS + 10_000);
}

fn broker(store: &MemoryStore) -> Broker<()> {
    let directory = Directory::new(1, Limits::default(), 1);
    Broker::new(ShardId(0), Arc::clone(&directory), Box::new(store.clone()))
}

// One test, so that no other thread allocates meanwhile.
#[test]
fn a_session_that_is_away_is_within_its_budget() {
    let filters: [(&str, FilterOf); 4] = [
        ("a filter of its own", |n| format!("away/{n:06}")),
        ("one filter for all", |_| "away/all".to_owned()),
        ("a wildcard of its own", |n| format!("away/{n:06}/+")),
        ("one wildcard for all", |_| "away/+".to_owned()),
    ];
    for (what, filter_of) in filters {
        let store = MemoryStore::new();
        let start = allocated_bytes();
        put_away(&mut broker(&store), filter_of);
        // What is left is the store's.
        let of_store = allocated_bytes() - start;
        let empty = MemoryStore::new();
        let mut first = broker(&empty);
        let before = allocated_bytes();
        put_away(&mut first, filter_of);
        first.check();
        let slept = (allocated_bytes() - before - of_store) / SESSIONS;
        drop((first, empty));
        let mut second = broker(&store);
        let before = allocated_bytes();
        second.restore(NOW_MS);
        let restored = (allocated_bytes() - before) / SESSIONS;
        second.check();
        println!("{what}: {slept} bytes, {restored} after a restart");
        assert!(slept <= MOST_BYTES, "{what}: {slept} bytes");
        assert!(restored <= MOST_BYTES, "{what}: {restored} after a restart");
    }
}
