//! A store that has little room: records do not grow.

use std::sync::Arc;

use sterna_broker::{
    Close, CompanionRecord, ConsumerId, Event, EvictReason, Limits, OpenError, OpenSession, Qos,
    SessionName, SubscribeError, Will,
};
use sterna_store::disk::{Disk as _, SimulatedDisk};
use sterna_store::{Engine, MemoryStore, Settings, ShardStore};

use crate::cluster::{Client, Cluster, message, named, qos};

/// Room of the disk, and what of it is kept free, in bytes.
const CAPACITY_BYTES: u64 = 24 << 20;
const FREE_BYTES: u64 = 8 << 20;

fn engine_of(disk: &SimulatedDisk) -> Engine {
    let settings = Settings {
        segment_bytes: 1 << 20,
        minimum_free_bytes: FREE_BYTES,
        checkpoint_interval_ms: 100,
        ..Settings::default()
    };
    Engine::open_with_identity(Arc::new(disk.clone()), settings, [9; 16]).expect("opens")
}

/// A broker on the engine, with what that has.
fn broker_on(engine: &Engine) -> Cluster {
    let mut cluster = Cluster::with(1, Limits::default(), |_| {
        let handle = engine.handle(Box::new(|| {}));
        Box::new(ShardStore::new(handle, Arc::default()))
    });
    cluster.broker(0).restore(0);
    cluster.collect(0);
    cluster.run();
    cluster
}

fn pass(cluster: &mut Cluster, engine: &mut Engine, disk: &SimulatedDisk, ms: u64) {
    cluster.pass(ms);
    let now_ms = cluster.now_ms;
    disk.set_now_ms(now_ms);
    engine.turn(now_ms, &mut || false);
    cluster.broker(0).poll_store(now_ms);
    cluster.collect(0);
}

fn request(client_id: &str, clean_start: bool, expiry_s: u32) -> OpenSession {
    OpenSession {
        name: SessionName::new(None, client_id),
        clean_start,
        expiry_s,
        consumer: ConsumerId(u64::from(u32::MAX)),
        will: None,
        on_demand: false,
        selector: None,
    }
}

fn refused(cluster: &mut Cluster, request: OpenSession) -> Option<OpenError> {
    let now_ms = cluster.now_ms;
    let opened = cluster.broker(0).open(now_ms, request);
    cluster.collect(0);
    opened.err()
}

fn subscribe(cluster: &mut Cluster, client: Client, filter: &str) -> Result<(), SubscribeError> {
    let now_ms = cluster.now_ms;
    let subscribed =
        (cluster.broker(client.shard)).subscribe(now_ms, client.key, filter, qos(Qos::AtLeastOnce));
    cluster.collect(client.shard);
    cluster.run();
    subscribed.map(drop)
}

/// Attack F1: a client that may only subscribe filled the disk, and nobody's messages could be kept.
#[test]
fn subscribing_stops_before_the_disk_is_full() {
    let disk = SimulatedDisk::new(1);
    disk.set_capacity_bytes(CAPACITY_BYTES);
    let mut engine = engine_of(&disk);
    let mut cluster = broker_on(&engine);
    let mut made = Vec::new();
    let mut is_refused = false;
    for session in 0..60 {
        let name = format!("session {session}");
        if refused(&mut cluster, request(&name, false, 3_600)).is_some() {
            is_refused = true;
            continue;
        }
        let client = cluster.open(0, &name);
        for number in 0..10 {
            let filter = format!("{session}/{number}/{}", "x".repeat(60_000));
            match subscribe(&mut cluster, client, &filter) {
                Ok(()) => made.push((name.clone(), filter)),
                Err(_) => is_refused = true,
            }
            pass(&mut cluster, &mut engine, &disk, 10);
        }
        cluster.close(client, Close::LOST);
    }
    for _ in 0..100 {
        pass(&mut cluster, &mut engine, &disk, 100);
    }
    let free = disk.free_bytes().expect("a disk");
    assert!(free > FREE_BYTES / 4, "{free} bytes are free");
    assert!(is_refused && made.len() > 20, "{} were made", made.len());

    // The subscriptions that were acknowledged stay, and there is no end to the service once there is room.
    drop((cluster, engine));
    disk.kill_process();
    disk.set_capacity_bytes(u64::MAX);
    let mut engine = engine_of(&disk);
    let mut cluster = broker_on(&engine);
    for (session, filter) in &made {
        let known = cluster.broker(0).session_named(&named(session));
        let filters = known.map(|(_, filters)| filters).unwrap_or_default();
        assert!(filters.iter().any(|known| **known == **filter));
    }
    pass(&mut cluster, &mut engine, &disk, 200);
    let client = cluster.open(0, "newcomer");
    assert_eq!(subscribe(&mut cluster, client, "t"), Ok(()));
}

/// Those that a store knows may come back: they settle, and make room.
#[test]
fn without_room_only_known_sessions_are_kept() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::with(1, Limits::default(), |_| Box::new(store.clone()));
    let known = cluster.open(0, "known");
    cluster.subscribe(known, "t", qos(Qos::AtLeastOnce));
    cluster.close(known, Close::LOST);
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    let live = cluster.open_with(0, "live", false, 0, None);
    cluster.subscribe(live, "before", qos(Qos::AtLeastOnce));

    store.set_lacking_room(true);
    for (name, clean_start) in [("new", false), ("new", true), ("live", false)] {
        assert_eq!(
            refused(&mut cluster, request(name, clean_start, 3_600)),
            Some(OpenError::StoreFull),
            "{name} {clean_start}"
        );
    }
    assert!(!cluster.was_evicted(live));
    // A session that ends with its connection needs nothing of the store.
    assert_eq!(subscribe(&mut cluster, live, "u"), Ok(()));
    assert_eq!(refused(&mut cluster, request("fleeting", false, 0)), None);

    let known = cluster.open(0, "known");
    assert!(known.present);
    assert_eq!(cluster.drain(known), ["1"]);
    let appends = store.appends();
    assert_eq!(subscribe(&mut cluster, known, "t"), Ok(()));
    assert_eq!(store.appends(), appends, "the store has that record");
    let now_ms = cluster.now_ms;
    for (filter, options) in [
        ("u", qos(Qos::AtLeastOnce)),
        ("t", qos(Qos::ExactlyOnce)),
        ("$share/g/t", qos(Qos::AtLeastOnce)),
    ] {
        let subscribed = cluster
            .broker(0)
            .subscribe(now_ms, known.key, filter, options);
        assert_eq!(
            subscribed.err(),
            Some(SubscribeError::StoreFull),
            "{filter}"
        );
    }
    cluster.publish(0, "t", "2", Qos::AtLeastOnce);
    assert_eq!(cluster.drain(known), ["2"]);

    store.set_lacking_room(false);
    assert_eq!(subscribe(&mut cluster, known, "u"), Ok(()));
    assert_eq!(refused(&mut cluster, request("new", false, 3_600)), None);
}

/// Its new shard learns only from what arrives that the store does not know it.
#[test]
fn a_session_that_comes_from_another_shard_to_be_kept_finds_no_room() {
    for clean_start in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = Cluster::with(2, Limits::default(), |_| Box::new(store.clone()));
        let live = cluster.open_with(0, "live", false, 0, None);
        cluster.subscribe(live, "t", qos(Qos::AtLeastOnce));
        store.set_lacking_room(true);
        let (consumer, _) = cluster.start_open(1, "live", clean_start, 3_600, None);
        cluster.run();
        let told = cluster.events.iter().filter_map(|event| match event {
            Event::Evicted {
                consumer: who,
                reason,
                ..
            } if *who == consumer => Some(*reason),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<_>>(), [EvictReason::StoreFull]);
        assert_eq!(cluster.directory.sessions(), 0);
        assert_eq!(store.counts().1, 0);
        store.set_lacking_room(false);
        let client = cluster.open(1, "live");
        assert_eq!(subscribe(&mut cluster, client, "t"), Ok(()));
    }
}

#[test]
fn without_room_a_delayed_will_is_not_kept_and_published_all_the_same() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::with(1, Limits::default(), |_| Box::new(store.clone()));
    let watcher = cluster.open_with(0, "watcher", true, 0, None);
    cluster.subscribe(watcher, "will", qos(Qos::AtLeastOnce));
    let will = Will {
        is_given: false,
        is_unproved: false,
        message: message("will", "gone", Qos::AtLeastOnce, false),
        delay_s: 10,
        expiry_s: None,
    };
    let lost = cluster.open_with(0, "lost", true, 3_600, Some(will));
    store.set_lacking_room(true);
    let records = store.counts().1;
    cluster.close(lost, Close::LOST);
    assert_eq!(store.counts().1, records);
    cluster.pass(10_000);
    assert_eq!(cluster.drain(watcher), ["gone"]);
}

/// Each repetition of a transaction would leave its own record, if nobody wants its messages.
#[test]
fn without_room_a_transaction_that_leaves_records_is_refused() {
    let store = MemoryStore::new();
    let mut cluster = Cluster::with(1, Limits::default(), |_| Box::new(store.clone()));
    for lacks_room in [true, false] {
        store.set_lacking_room(lacks_room);
        let records = store.counts().1;
        let broker = cluster.broker(0);
        let messages = vec![message("t", "1", Qos::AtLeastOnce, false)];
        let (key, value) = (b"key", b"");
        let record = CompanionRecord::Node { key, value };
        let routed = broker.publish_together(0, None, messages, &[record]);
        assert_eq!(routed.refused.is_some(), lacks_room);
        let kept = store.counts().1 - records;
        assert_eq!(kept, usize::from(!lacks_room));
    }
}

/// Filters may have 65,535 bytes each: a number of them bounds little.
#[test]
fn the_bytes_of_a_sessions_filters_are_limited() {
    let limits = Limits {
        filter_bytes_per_session: 100,
        ..Limits::default()
    };
    let mut cluster = Cluster::limited(limits);
    let client = cluster.open(0, "a");
    let long = |letter: &str| letter.repeat(40);
    assert_eq!(subscribe(&mut cluster, client, &long("a")), Ok(()));
    assert_eq!(subscribe(&mut cluster, client, &long("b")), Ok(()));
    assert_eq!(
        subscribe(&mut cluster, client, &long("c")),
        Err(SubscribeError::TooMany)
    );
    assert_eq!(subscribe(&mut cluster, client, &long("a")), Ok(()));
    assert_eq!(subscribe(&mut cluster, client, &"d".repeat(20)), Ok(()));
    cluster.unsubscribe(client, &long("a"));
    assert_eq!(subscribe(&mut cluster, client, &long("c")), Ok(()));
    let other = cluster.open(0, "b");
    assert_eq!(subscribe(&mut cluster, other, &long("a")), Ok(()));
}
