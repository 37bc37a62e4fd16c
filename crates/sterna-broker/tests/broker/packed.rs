//! Sessions that are away and packed: nobody can tell them from others but by the memory that they take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sterna_broker::{
    Appended, Close, Committed, ConsumerId, Frame, Full, Holder, Limits, Message, OpenSession, Qos,
    ReadAnswer, ReadRequest, Right, Rights, SessionName, Store, SubscribeOptions, Will,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, named, qos, text};

/// Time after which cursors are written.
const WRITTEN_MS: u64 = 60_000;

fn kept(shards: u16, store: &MemoryStore) -> Cluster {
    Cluster::with(shards, Limits::default(), |_| Box::new(store.clone()))
}

/// Takes a client away, and waits until its session is packed beside so many others.
fn pack(cluster: &mut Cluster, client: Client, packed: usize) {
    cluster.close(client, Close::LOST);
    cluster.pass(WRITTEN_MS);
    assert_eq!(cluster.directory.packed().0, packed, "it is packed");
    check(cluster);
}

fn check(cluster: &Cluster) {
    for broker in &cluster.brokers {
        broker.check();
    }
}

/// A client with what a session can have, that was sent some messages before it went away.
fn full_client(cluster: &mut Cluster, will: Option<Will>) -> Client {
    let client = cluster.open_with(0, "a", false, 3_600, will);
    let options = SubscribeOptions {
        identifier: Some(77),
        no_local: true,
        retain_as_published: true,
        ..qos(Qos::ExactlyOnce)
    };
    cluster.subscribe(client, "own/+", options);
    cluster.subscribe(client, "plain", qos(Qos::AtLeastOnce));
    cluster.subscribe(client, "$share/group/work", qos(Qos::AtLeastOnce));
    let protocol = cluster.broker(0).protocol_mut(client.key);
    protocol.expect("it is here").extend([1, 2, 3]);
    cluster.broker(0).keep(client.key, b"key", b"value");
    for (topic, payload) in [("own/x", "1"), ("plain", "2"), ("work", "3")] {
        cluster.publish(0, topic, payload, Qos::ExactlyOnce);
    }
    assert_eq!(cluster.drain(client).len(), 3);
    client
}

/// What takes nothing from anybody is told of packed sessions as of others.
#[test]
fn an_opening_that_takes_nothing_is_known() {
    for is_packed in [false, true] {
        let mut cluster = kept(2, &MemoryStore::new());
        let own = cluster.open_with(0, "own", false, 3_600, None);
        cluster.subscribe(own, "plain", qos(Qos::AtLeastOnce));
        let shared = cluster.open_with(0, "shared", false, 3_600, None);
        cluster.subscribe(shared, "$share/group/work", qos(Qos::AtLeastOnce));
        let delayed = Will {
            message: message("will", "gone", Qos::AtLeastOnce, false),
            delay_s: 3_600,
            expiry_s: None,
            is_given: false,
            is_unproved: false,
        };
        let willed = cluster.open_with(0, "willed", false, 3_600, Some(delayed));
        let takes_nothing = |cluster: &mut Cluster, shard, id, clean_start, expiry_s| {
            cluster
                .broker(shard)
                .takes_nothing(&named(id), clean_start, expiry_s)
        };
        assert!(takes_nothing(&mut cluster, 0, "nobody", true, 0));
        assert!(
            !takes_nothing(&mut cluster, 0, "own", false, 3_600),
            "connected"
        );
        for client in [own, shared, willed] {
            cluster.close(client, Close::LOST);
        }
        if is_packed {
            cluster.pass(WRITTEN_MS);
            assert_eq!(cluster.directory.packed().0, 3, "they are packed");
        }
        for (shard, name, clean_start, expiry_s, expected) in [
            (0, "own", false, 3_600, true),
            (0, "own", false, 3_601, true),
            (0, "own", false, 3_599, false),
            (0, "own", true, 3_600, false),
            (1, "own", false, 3_600, false),
            (0, "shared", false, 3_600, false),
            (0, "willed", false, 3_600, false),
        ] {
            let told = takes_nothing(&mut cluster, shard, name, clean_start, expiry_s);
            assert_eq!(
                told, expected,
                "{is_packed} {shard} {name} {clean_start} {expiry_s}"
            );
        }
    }
}

/// The consumer comes back on the same shard and on another; all is there, in order, by its options.
#[test]
fn a_packed_session_has_all_that_it_had() {
    for (shards, shard) in [(1, 0), (2, 0), (2, 1)] {
        let mut cluster = kept(shards, &MemoryStore::new());
        let client = full_client(&mut cluster, None);
        let own = message("own/y", "own", Qos::ExactlyOnce, false);
        cluster.send(0, Some(client.key), own);
        pack(&mut cluster, client, 1);
        for (topic, payload) in [("own/y", "4"), ("plain", "5"), ("work", "6"), ("no", "7")] {
            let retained = message(topic, payload, Qos::ExactlyOnce, true);
            cluster.send(shards - 1, None, retained);
            cluster.run();
        }
        assert_eq!(cluster.directory.packed().0, 1, "messages do not unpack it");
        let client = cluster.open(shard, "a");
        assert!(client.present);
        assert_eq!(cluster.directory.packed().0, 0);
        let protocol = cluster.broker(shard).protocol(client.key);
        assert_eq!(protocol.expect("it is here"), &[1, 2, 3]);
        let mut deliveries = cluster.take(client);
        deliveries.sort_by_key(text);
        let got: Vec<_> = deliveries
            .iter()
            .map(|one| (text(one), one.qos, one.retain, one.identifiers().to_vec()))
            .collect();
        let expected = [
            ("4".to_owned(), Qos::ExactlyOnce, true, vec![77]),
            ("5".to_owned(), Qos::AtLeastOnce, false, vec![]),
            ("6".to_owned(), Qos::AtLeastOnce, false, vec![]),
        ];
        assert_eq!(got, expected, "{shards} shards, on shard {shard}");
        check(&cluster);
        // What it is sent from now on has other tags than what it was sent before.
        cluster.publish(0, "plain", "8", Qos::AtLeastOnce);
        let next = cluster.take(client).pop().expect("it is awake");
        assert!(deliveries.iter().all(|before| before.tag < next.tag));
        cluster.broker(shard).forget(client.key, b"key");
        check(&cluster);
    }
}

#[test]
fn a_packed_session_expires_and_leaves_nothing() {
    let store = MemoryStore::new();
    let mut cluster = kept(1, &store);
    let client = full_client(&mut cluster, None);
    pack(&mut cluster, client, 1);
    cluster.pass(3_600_000);
    let directory = Arc::clone(&cluster.directory);
    assert_eq!((directory.sessions(), directory.subscriptions()), (0, 0));
    assert_eq!(directory.packed(), (0, 0));
    assert_eq!(cluster.broker(0).counters().sessions_expired, 1);
    assert_eq!(
        cluster.publish(0, "plain", "x", Qos::AtLeastOnce).matched,
        0
    );
    let of_session = |key: &[u8]| key.windows(1).any(|part| part == b"a") && key[0] != b'q';
    let left: Vec<_> = store
        .keys()
        .into_iter()
        .filter(|key| of_session(key))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    check(&cluster);
}

/// [MQTT-3.1.3-9]
#[test]
fn the_will_of_a_packed_session_is_published_when_it_is_due_or_not_if_its_client_is_back() {
    for is_back in [false, true] {
        let mut cluster = kept(1, &MemoryStore::new());
        let watcher = cluster.open_with(0, "watcher", true, 0, None);
        cluster.subscribe(watcher, "will", qos(Qos::AtLeastOnce));
        let will = Will {
            is_given: false,
            is_unproved: false,
            message: message("will", "gone", Qos::AtLeastOnce, false),
            delay_s: 600,
            expiry_s: None,
        };
        let client = full_client(&mut cluster, Some(will));
        pack(&mut cluster, client, 1);
        assert!(cluster.directory.will_bytes() > 0);
        if is_back {
            let client = cluster.open(0, "a");
            cluster.close(client, Close::NORMAL);
        }
        cluster.pass(600_000);
        let wills = cluster.drain(watcher);
        assert_eq!(wills, if is_back { vec![] } else { vec!["gone"] });
        assert_eq!(cluster.directory.will_bytes(), 0);
        assert_eq!(cluster.directory.packed().0, 1, "it is packed again");
        check(&cluster);
    }
}

#[test]
fn administrators_see_and_end_packed_sessions() {
    let mut cluster = kept(2, &MemoryStore::new());
    let client = full_client(&mut cluster, None);
    let open = cluster
        .broker(0)
        .session_named(&named("a"))
        .expect("it is here");
    pack(&mut cluster, client, 1);
    let (info, mut filters) = cluster
        .broker(0)
        .session_named(&named("a"))
        .expect("it is here");
    filters.sort_unstable();
    assert_eq!(filters.len(), open.1.len());
    assert_eq!(
        (info.name.id(), info.expiry_s, info.subscriptions),
        ("a", 3_600, 3)
    );
    assert_eq!(info.consumer, None);
    assert!(info.expires_at_ms.is_some());
    let (page, _) = cluster.broker(0).sessions(0, 10);
    let (other_page, _) = cluster.broker(0).sessions_within(0, 10, 1_000);
    assert_eq!((page.len(), other_page.len()), (1, 1));
    let found = cluster.broker(0).subscriptions_named(&named("a"), None, 10);
    let (subscriptions, has_more) = found.expect("it is here");
    assert!(!has_more);
    let own = subscriptions.iter().find(|one| &*one.filter == "own/+");
    let own = own.expect("it subscribes to it");
    assert_eq!(
        (own.identifier, own.no_local, own.qos),
        (Some(77), true, Qos::ExactlyOnce)
    );
    cluster.publish(1, "plain", "x", Qos::AtLeastOnce);
    let (info, _) = cluster
        .broker(0)
        .session_named(&named("a"))
        .expect("it is here");
    assert!(info.queue.has_more_in_log, "it has slept through a message");
    assert_eq!(cluster.broker(0).key_named(&named("a")), None);
    assert_eq!(
        cluster.directory.packed().0,
        1,
        "looking does not unpack it"
    );
    let state = cluster.broker(0).protocol_named(&named("a")).cloned();
    assert_eq!(state, Some(vec![1, 2, 3]));
    let now_ms = cluster.now_ms;
    assert!(cluster.broker(1).end_session_of(now_ms, &named("a")));
    cluster.collect(1);
    cluster.run();
    assert_eq!(
        (cluster.directory.sessions(), cluster.directory.packed()),
        (0, (0, 0))
    );
    check(&cluster);
}

/// What was published before a subscription ended is still the session's. [MQTT-3.10.4-4]
#[test]
fn the_end_of_a_topic_reaches_packed_sessions_and_they_are_packed_again() {
    let mut cluster = kept(2, &MemoryStore::new());
    let client = full_client(&mut cluster, None);
    pack(&mut cluster, client, 1);
    cluster.publish(0, "plain", "before", Qos::AtLeastOnce);
    let now_ms = cluster.now_ms;
    assert_eq!(cluster.broker(1).unsubscribe_all(now_ms, "plain"), 1);
    cluster.collect(1);
    cluster.run();
    cluster.publish(0, "plain", "after", Qos::AtLeastOnce);
    cluster.pass(WRITTEN_MS);
    assert_eq!(cluster.directory.packed(), (1, 2));
    check(&cluster);
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client), ["before"]);
}

/// The user `gone` is missing, and nobody may read `plain`.
#[derive(Debug)]
struct Stricter;

impl Rights for Stricter {
    fn digest(&self) -> [u8; 32] {
        [1; 32]
    }

    fn admits(&self, holder: Holder<'_>) -> bool {
        holder.owner != Some("gone")
    }

    fn reads(&self, _: Holder<'_>, filter: &str, _: Option<&str>) -> Right {
        if filter == "plain" {
            Right::Nothing
        } else {
            Right::Everything
        }
    }

    fn receives(&self, _: Holder<'_>, topic: &str) -> bool {
        topic != "plain"
    }

    fn publishes(&self, _: Holder<'_>, _: &Message) -> bool {
        true
    }
}

/// Opens a session of the user `gone`.
fn open_of_gone(cluster: &mut Cluster, client_id: &str) -> Client {
    let request = OpenSession {
        name: SessionName::new(Some("gone"), client_id),
        clean_start: false,
        expiry_s: 3_600,
        consumer: ConsumerId::default(),
        will: None,
        on_demand: false,
        selector: None,
    };
    let (consumer, opened) = cluster.start_request(0, request);
    cluster.opened(0, consumer, opened)
}

#[test]
fn packed_sessions_are_judged_by_new_rules() {
    let mut cluster = kept(1, &MemoryStore::new());
    let client = full_client(&mut cluster, None);
    pack(&mut cluster, client, 1);
    let other = open_of_gone(&mut cluster, "b");
    cluster.subscribe(other, "plain", qos(Qos::AtLeastOnce));
    pack(&mut cluster, other, 2);
    cluster.publish(0, "plain", "secret", Qos::AtLeastOnce);
    cluster.publish(0, "own/z", "open", Qos::AtLeastOnce);
    let now_ms = cluster.now_ms;
    cluster.broker(0).set_rights(Arc::new(Stricter));
    cluster.broker(0).judge(now_ms);
    cluster.collect(0);
    cluster.pass(WRITTEN_MS);
    assert_eq!(cluster.directory.packed(), (2, 4), "nothing ends");
    assert_eq!(cluster.broker(0).counters().rights_lost, 2);
    check(&cluster);
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client), ["open"]);
}

/// However many sessions are away, a call judges some of them, and a client does not wait for all.
#[test]
fn many_packed_sessions_are_judged_in_parts() {
    const SESSIONS: usize = 3_000;
    const MOST_AT_ONCE: usize = 1_024;
    let mut cluster = kept(1, &MemoryStore::new());
    for number in 0..SESSIONS {
        let client_id = format!("away-{number}");
        let client = open_of_gone(&mut cluster, &client_id);
        cluster.subscribe(client, "own", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
    }
    cluster.pass(WRITTEN_MS);
    assert_eq!(cluster.directory.packed().0, SESSIONS);
    let now_ms = cluster.now_ms;
    cluster.broker(0).set_rights(Arc::new(Stricter));
    cluster.broker(0).judge(now_ms);
    let mut judged = 0;
    while judged < SESSIONS {
        assert_eq!(cluster.broker(0).deadline_ms(), Some(0), "it is not done");
        assert!(cluster.broker(0).is_judging());
        cluster.broker(0).timeout(now_ms);
        cluster.collect(0);
        cluster.run();
        let now = cluster.broker(0).counters().rights_lost as usize;
        let more = now - judged;
        assert!(
            (1..=MOST_AT_ONCE).contains(&more),
            "{more} in one call, after {judged}"
        );
        judged = now;
        assert_eq!(cluster.directory.packed().0, SESSIONS, "packed at once");
    }
    assert_eq!(cluster.directory.sessions(), SESSIONS);
    cluster.broker(0).timeout(now_ms);
    assert_ne!(cluster.broker(0).deadline_ms(), Some(0), "it is done");
    assert!(!cluster.broker(0).is_judging());
    check(&cluster);
}

/// A store that tells up to where nobody needs the log, and how many messages each reader asked for.
#[derive(Debug)]
struct Surveyed {
    inner: MemoryStore,
    needed_from: Arc<AtomicU64>,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Store for Surveyed {
    fn next_position(&self) -> u64 {
        self.inner.next_position()
    }
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        self.inner.append(frame)
    }
    fn committed(&self) -> Committed {
        self.inner.committed()
    }
    fn read(&mut self, request: ReadRequest) {
        self.asked
            .lock()
            .expect("no thread panicked")
            .push(request.most_messages);
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
        self.needed_from.store(position, Ordering::Relaxed);
    }
    fn hold_from(&mut self, position: u64) {
        self.needed_from.fetch_min(position, Ordering::Relaxed);
    }
}

/// The log is kept as far as a packed session needs it.
#[test]
fn the_log_is_kept_for_a_packed_session() {
    let needed_from = Arc::new(AtomicU64::new(0));
    let store = MemoryStore::new();
    let mut cluster = Cluster::with(1, Limits::default(), |_| {
        Box::new(Surveyed {
            inner: store.clone(),
            needed_from: Arc::clone(&needed_from),
            asked: Arc::default(),
        })
    });
    let client = full_client(&mut cluster, None);
    // A shared subscription has a cursor of its own.
    cluster.unsubscribe(client, "$share/group/work");
    pack(&mut cluster, client, 1);
    cluster.pass(WRITTEN_MS);
    let first = store.next_position();
    assert_eq!(needed_from.load(Ordering::Relaxed), first);
    for _ in 0..100 {
        cluster.publish(0, "plain", "x", Qos::AtLeastOnce);
        cluster.pass(1_000);
    }
    cluster.pass(WRITTEN_MS);
    assert_eq!(needed_from.load(Ordering::Relaxed), first, "nothing more");
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client).len(), 100);
    pack(&mut cluster, client, 1);
    cluster.pass(WRITTEN_MS);
    assert_eq!(needed_from.load(Ordering::Relaxed), first + 100);
}

#[test]
fn a_packed_session_is_restored_packed() {
    let store = MemoryStore::new();
    let mut cluster = kept(1, &store);
    let client = full_client(&mut cluster, None);
    pack(&mut cluster, client, 1);
    for n in 0..100 {
        cluster.publish(0, "plain", &n.to_string(), Qos::AtLeastOnce);
    }
    drop(cluster);
    let mut cluster = kept(2, &store);
    for shard in 0..2 {
        cluster.broker(shard).restore(1_200_000);
        cluster.collect(shard);
    }
    cluster.now_ms = 1_200_000;
    cluster.run();
    assert_eq!(cluster.directory.packed(), (1, 3), "at once");
    check(&cluster);
    let shard = cluster
        .directory
        .shard_of(&named("a"))
        .expect("it is there")
        .0;
    let client = cluster.open(1 - shard, "a");
    assert!(client.present);
    let records = cluster.broker(1 - shard).take_records(client.key);
    assert_eq!(records, [(Box::from(*b"key"), Box::from(*b"value"))]);
    let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(cluster.drain(client), expected);
    check(&cluster);
}

/// The first messages come before many are read, and the others in large steps.
#[test]
fn the_first_messages_of_a_session_that_slept_wait_for_few() {
    let store = MemoryStore::new();
    let mut cluster = kept(1, &store);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "plain", qos(Qos::AtLeastOnce));
    pack(&mut cluster, client, 1);
    let payloads: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    for payload in &payloads {
        cluster.publish(0, "plain", payload, Qos::AtLeastOnce);
    }
    drop(cluster);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut cluster = Cluster::with(1, Limits::default(), |_| {
        Box::new(Surveyed {
            inner: store.clone(),
            needed_from: Arc::default(),
            asked: Arc::clone(&asked),
        })
    });
    cluster.broker(0).restore(1_200_000);
    cluster.collect(0);
    cluster.now_ms = 1_200_000;
    cluster.run();
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client), payloads);
    let asked = asked.lock().unwrap();
    assert!(asked[0] <= 16, "{asked:?}");
    assert!(asked[1..].iter().all(|most| *most == 256), "{asked:?}");
    assert!(asked.len() < 10, "{asked:?}");
}

/// Two shards on a store, each of which tells from where on it needs the log.
fn surveyed(store: &MemoryStore, needed: &[Arc<AtomicU64>; 2]) -> Cluster {
    Cluster::with(2, Limits::default(), |shard| {
        Box::new(Surveyed {
            inner: store.clone(),
            needed_from: Arc::clone(&needed[usize::from(shard)]),
            asked: Arc::default(),
        })
    })
}

/// Shards look through the log at times of their own. It is kept for a session that goes from one to another, whichever
/// looks first.
#[test]
fn the_log_is_kept_for_a_session_that_moves() {
    for late_shard in [0, 1] {
        let needed: [Arc<AtomicU64>; 2] = Default::default();
        let lowest = || needed.iter().map(|one| one.load(Ordering::Relaxed)).min();
        let store = MemoryStore::new();
        let mut cluster = surveyed(&store, &needed);
        // Others settle what they get all the time, on both shards.
        let busy = [0, 1].map(|shard| cluster.open(shard, &format!("busy-{shard}")));
        for client in busy {
            cluster.subscribe(client, "busy", qos(Qos::AtLeastOnce));
        }
        let work = |cluster: &mut Cluster, seconds: u64| {
            for _ in 0..seconds {
                cluster.publish(0, "busy", "x", Qos::AtLeastOnce);
                for client in busy {
                    assert_eq!(cluster.drain(client), ["x"]);
                }
                cluster.pass(1_000);
            }
        };
        let client = cluster.open_with(0, "a", false, 3_600, None);
        cluster.subscribe(client, "plain", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
        work(&mut cluster, 60);
        // One of them is busy for a while when it is to look.
        cluster.now_ms += 13_000;
        for shard in [1 - late_shard, late_shard] {
            let now_ms = cluster.now_ms;
            cluster.broker(shard).timeout(now_ms);
            cluster.collect(shard);
            cluster.run();
            cluster.now_ms += 4_000;
        }
        let waits_from = store.next_position();
        cluster.publish(0, "plain", "waits", Qos::AtLeastOnce);
        work(&mut cluster, 60);
        assert!(lowest() <= Some(waits_from), "it holds the log");
        // It comes back on the other shard, and settles nothing.
        let back = cluster.open(1, "a");
        assert_eq!(cluster.take(back).len(), 1);
        for _ in 0..60 {
            work(&mut cluster, 1);
            assert!(lowest() <= Some(waits_from), "shard {late_shard} is late");
        }
        assert_eq!(cluster.drain(back).len(), 0);
    }
}

/// A survey of many sessions takes several turns, and a session may leave between two of them.
#[test]
fn the_log_is_kept_for_a_session_that_leaves_during_a_survey() {
    let needed: [Arc<AtomicU64>; 2] = Default::default();
    let store = MemoryStore::new();
    let mut cluster = surveyed(&store, &needed);
    for n in 0..8_192 {
        cluster.open_with(0, &format!("other {n}"), false, 0, None);
    }
    // These are behind those that a survey looks at first.
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    cluster.close(client, Close::LOST);
    let busy = cluster.open(0, "busy");
    cluster.subscribe(busy, "busy", qos(Qos::AtLeastOnce));
    let waits_from = store.next_position();
    cluster.publish(0, "t", "waits", Qos::AtLeastOnce);
    for _ in 0..60 {
        cluster.publish(0, "busy", "x", Qos::AtLeastOnce);
        assert_eq!(cluster.drain(busy), ["x"]);
        cluster.pass(1_000);
    }
    let timeout = |cluster: &mut Cluster| {
        let now_ms = cluster.now_ms;
        cluster.broker(0).timeout(now_ms);
        cluster.collect(0);
    };
    cluster.now_ms += 10_000;
    timeout(&mut cluster);
    cluster.run();
    let (consumer, opened) = cluster.start_open(1, "a", false, 3_600, None);
    assert!(cluster.deliver_one(1, 0), "the claim");
    assert!(cluster.deliver_one(0, 1), "the fence");
    assert!(cluster.deliver_one(1, 0), "its answer: the session leaves");
    // This survey ends, and the next one tells what it has found.
    timeout(&mut cluster);
    cluster.now_ms += 10_000;
    timeout(&mut cluster);
    let held_from = needed[0].load(Ordering::Relaxed);
    assert!(held_from <= waits_from, "{held_from}, {waits_from}");
    let back = cluster.opened(1, consumer, opened);
    assert_eq!(cluster.drain(back), ["waits"]);
}
