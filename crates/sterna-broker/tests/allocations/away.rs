//! What a session costs that is away: a budget, not a time, so it does not flake.

use std::sync::Arc;

use sterna_broker::{
    Appended, Broker, Close, Committed, ConsumerId, Directory, Frame, Full, Limits, Message,
    MessageHeader, OpenSession, Opened, Publication, Qos, ReadAnswer, ReadRequest, SessionKey,
    SessionName, ShardId, Store, SubscribeOptions,
};
use sterna_store::MemoryStore;

use crate::counting::{allocated_bytes, allocations};

const NOW_MS: u64 = 1_700_000_000_000;
const SESSIONS: usize = 10_000;
/// What a session may take that is away with one filter.
const MOST_BYTES: usize = 400;
/// The same with a filter of its own that has wildcards: the index has a node for each of its levels.
const MOST_BYTES_WILD: usize = 560;

fn open(broker: &mut Broker<()>, client_id: &str) -> SessionKey {
    let request = OpenSession {
        name: SessionName::new(None, client_id),
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
fn put_away(broker: &mut Broker<()>, sessions: usize, filter_of: FilterOf) {
    for n in 0..sessions {
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
fn sessions_that_are_away_are_within_their_budget() {
    memory();
    messages();
}

/// Counts positions, and keeps nothing.
#[derive(Debug, Default)]
struct Forgetful {
    appended: Appended,
}

impl Store for Forgetful {
    fn next_position(&self) -> u64 {
        self.appended.first + 1
    }
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        let first = self.next_position();
        self.appended.first += frame.messages.len() as u64;
        self.appended.token += 1;
        Ok(Appended {
            first,
            token: self.appended.token,
        })
    }
    fn committed(&self) -> Committed {
        Committed {
            written: self.appended.token,
            synced: self.appended.token,
        }
    }
    fn read(&mut self, _: ReadRequest) {}
    fn next_answer(&mut self) -> Option<ReadAnswer> {
        None
    }
    fn read_now(&mut self, _: ReadRequest) -> ReadAnswer {
        ReadAnswer::default()
    }
    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    fn needed_from(&mut self, _: u64) {}
    fn hold_from(&mut self, _: u64) {}
}

/// A message costs the same however many sessions sleep that want it, and leaves nothing with any.
fn messages() {
    let cost = |sessions: usize| {
        let directory = Directory::new(1, Limits::default(), 1);
        let store = Box::new(Forgetful::default());
        let mut broker = Broker::new(ShardId(0), Arc::clone(&directory), store);
        put_away(&mut broker, sessions, |_| "away/all".to_owned());
        let mut publish = |messages: usize| {
            for _ in 0..messages {
                let header = MessageHeader {
                    qos: Qos::AtLeastOnce,
                    ..MessageHeader::default()
                };
                let message = Message::copy("away/all", &[], &[7; 64], header);
                let publication = Publication::new(None, message.expect("a small message"));
                assert_eq!(broker.publish(NOW_MS, publication).matched, sessions);
            }
        };
        // The end of the log stays in memory, up to a limit.
        publish(20_000);
        let before = (allocations(), allocated_bytes());
        publish(1_000);
        let after = (allocations(), allocated_bytes());
        assert_eq!(directory.packed().0, sessions);
        (after.0 - before.0, after.1.saturating_sub(before.1))
    };
    let (one, many) = (cost(1), cost(SESSIONS));
    println!("a message for one and for {SESSIONS}: {one:?} and {many:?} allocations and bytes");
    assert_eq!(one, many);
    assert_eq!(one.1, 0, "nothing is left");
}

fn memory() {
    let filters: [(&str, FilterOf, usize); 4] = [
        (
            "a filter of its own",
            |n| format!("away/{n:06}"),
            MOST_BYTES,
        ),
        ("one filter for all", |_| "away/all".to_owned(), MOST_BYTES),
        (
            "a wildcard of its own",
            |n| format!("away/{n:06}/+"),
            MOST_BYTES_WILD,
        ),
        ("one wildcard for all", |_| "away/+".to_owned(), MOST_BYTES),
    ];
    for (what, filter_of, most_bytes) in filters {
        let store = MemoryStore::new();
        let start = allocated_bytes();
        put_away(&mut broker(&store), SESSIONS, filter_of);
        // What is left is the store's.
        let of_store = allocated_bytes() - start;
        let empty = MemoryStore::new();
        let mut first = broker(&empty);
        let before = allocated_bytes();
        put_away(&mut first, SESSIONS, filter_of);
        first.check();
        let slept = (allocated_bytes() - before - of_store) / SESSIONS;
        drop((first, empty));
        let mut second = broker(&store);
        let before = allocated_bytes();
        second.restore(NOW_MS);
        let restored = (allocated_bytes() - before) / SESSIONS;
        second.check();
        println!("{what}: {slept} bytes, {restored} after a restart");
        assert!(slept <= most_bytes, "{what}: {slept} bytes");
        assert!(restored <= most_bytes, "{what}: {restored} after a restart");
    }
}
