//! What a store had is there again, whatever has changed meanwhile.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sterna_broker::{
    Broker, Close, Companions, ConsumerId, DeadLetter, Directory, Holder, Limits, Message,
    MessageReader, NEVER_EXPIRES_S, OpenError, OpenSession, Opened, Permit, Publication, Qos,
    QueueRules, Right, Rights, SessionKey, SessionName, ShardId, Store, SubscribeError, Will,
};
use sterna_store::MemoryStore;

use crate::cluster::{Cluster, Protocol, message, named, qos};

const NOW_MS: u64 = 1_000_000;

/// Brokers on a store, with what it has.
fn restarted(shards: u16, limits: Limits, store: &MemoryStore) -> Cluster {
    let mut cluster = Cluster::with(shards, limits, |_| Box::new(store.clone()));
    for shard in 0..shards {
        cluster.broker(shard).restore(NOW_MS);
        cluster.collect(shard);
    }
    for shard in 0..shards {
        cluster.broker(shard).all_restored(NOW_MS);
        cluster.collect(shard);
    }
    cluster.run();
    cluster
}

/// A shard hears of a queue of another one when it looks. It looks before it judges what becomes of a message.
#[test]
fn the_first_message_behind_a_new_queue_of_another_shard_is_kept() {
    let store = MemoryStore::new();
    let mut cluster = restarted(2, Limits::default(), &store);
    cluster.keep(0, "$share/queue/q");
    let message = message("q", "x", Qos::AtMostOnce, false);
    let routed =
        (cluster.broker(1)).publish_parts(NOW_MS, None, message.parts(), Companions::default());
    assert_eq!(routed.map(|routed| routed.matched), Ok(1));
    drop(cluster);
    let mut cluster = restarted(2, Limits::default(), &store);
    let member = cluster.open(1, "m");
    cluster.subscribe(member, "$share/queue/q", qos(Qos::AtLeastOnce));
    assert_eq!(cluster.drain(member), ["x"]);
}

/// The answer to what the connection before has asked of the store comes to nobody.
#[test]
fn a_session_that_is_taken_over_while_it_reads_the_log_reads_on() {
    for shards in 1..=2 {
        let store = MemoryStore::new();
        let mut cluster = restarted(shards, Limits::default(), &store);
        let client = cluster.open(0, "a");
        cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
        for i in 0..3 {
            cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
        }
        drop(cluster);

        let mut cluster = restarted(shards, Limits::default(), &store);
        let shard = cluster.directory.shard_of(&named("a")).unwrap().0;
        store.hold_answers(true);
        cluster.open(shard, "a");
        let second = cluster.open(shard, "a");
        assert_eq!(cluster.drain(second), [""; 0]);
        store.hold_answers(false);
        cluster.broker(shard).poll_store(NOW_MS);
        assert_eq!(cluster.drain(second), ["0", "1", "2"], "{shards} shards");
    }
}

/// Limits refuse newcomers. What was acknowledged is kept.
#[test]
fn limits_that_were_lowered_end_nothing() {
    let store = MemoryStore::new();
    let mut cluster = restarted(1, Limits::default(), &store);
    for name in ["a", "b", "c"] {
        let will = Will {
            is_given: false,
            is_unproved: false,
            message: message(&format!("will/{name}"), "gone", Qos::AtLeastOnce, false),
            delay_s: 60,
            expiry_s: None,
        };
        let client = cluster.open_with(0, name, false, NEVER_EXPIRES_S, Some(will));
        cluster.subscribe(client, "deep/in/the/tree", qos(Qos::AtLeastOnce));
        cluster.subscribe(client, "$share/g/deep/too", qos(Qos::AtLeastOnce));
        cluster.retain(0, &format!("retained/{name}"), "kept");
        cluster.close(client, Close::LOST);
    }
    cluster.publish(0, "deep/in/the/tree", "kept", Qos::AtLeastOnce);
    drop(cluster);

    let lowered = Limits {
        sessions: 1,
        subscriptions: 1,
        subscriptions_per_session: 1,
        topic_levels: 1,
        group_members: 1,
        retained_messages: 1,
        retained_bytes: 1,
        will_bytes: 1,
        ..Limits::default()
    };
    let mut cluster = restarted(1, lowered, &store);
    let directory = Arc::clone(&cluster.directory);
    assert_eq!(
        (directory.sessions(), directory.subscriptions()),
        (3, 6),
        "the limits refuse new ones only"
    );
    assert_eq!(directory.retained().0, 3);
    let wills = directory.will_bytes();
    assert!(wills > 3, "three wills: {wills} bytes");
    for name in ["a", "b", "c"] {
        let client = cluster.open(0, name);
        assert!(client.present, "{name}");
        assert_eq!(cluster.drain(client), ["kept"], "{name}");
        let now_ms = cluster.now_ms;
        let refused = cluster
            .broker(0)
            .subscribe(now_ms, client.key, "x", qos(Qos::AtMostOnce));
        assert_eq!(refused.unwrap_err(), SubscribeError::TooMany);
    }
    let request = OpenSession {
        name: SessionName::new(None, "new"),
        clean_start: false,
        expiry_s: NEVER_EXPIRES_S,
        consumer: ConsumerId::default(),
        will: None,
        on_demand: false,
        selector: None,
    };
    let refused = cluster.broker(0).open(NOW_MS, request);
    assert_eq!(refused.unwrap_err(), OpenError::TooManySessions);
    drop(cluster);
    let cluster = restarted(1, Limits::default(), &store);
    assert_eq!(
        cluster.directory.subscriptions(),
        6,
        "nothing was forgotten"
    );
}

/// Publishes by another shard's broker, once, while the first still has its message in hand.
struct Interfering {
    other: Mutex<Broker<Protocol>>,
    is_done: AtomicBool,
}

impl fmt::Debug for Interfering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interfering")
    }
}

fn retained(payload: &str) -> Publication<'static> {
    Publication::new(None, message("topic", payload, Qos::AtLeastOnce, true))
}

impl MessageReader for Interfering {
    fn priority(&self, _: &Message) -> u8 {
        0
    }

    fn due_ms(&self, _: &Message) -> Option<u64> {
        if !self.is_done.swap(true, Ordering::Relaxed) {
            let mut other = self.other.lock().expect("nobody else has it");
            other.publish(NOW_MS, retained("second"));
        }
        None
    }

    fn dead_letter(&self, _: &Message, _: &DeadLetter<'_>) -> Option<Message> {
        None
    }
}

/// Two shards retain messages of one topic. The record is that of the later message, as in memory.
#[test]
fn the_retained_message_is_the_same_after_a_restart() {
    let store = MemoryStore::new();
    let directory = Directory::new(2, Limits::default(), 42);
    let broker = |shard| {
        let store = Box::new(store.clone());
        Broker::<Protocol>::new(ShardId(shard), Arc::clone(&directory), store)
    };
    // The queue's home is the shard of its first member.
    let mut first = broker(0);
    let reader = Arc::new(Interfering {
        other: Mutex::new(broker(1)),
        is_done: AtomicBool::new(false),
    });
    let request = OpenSession {
        name: SessionName::new(None, "anchor"),
        clean_start: false,
        expiry_s: NEVER_EXPIRES_S,
        consumer: ConsumerId::default(),
        will: None,
        on_demand: true,
        selector: None,
    };
    let Ok(Opened::Ready { session, .. }) = first.open(NOW_MS, request) else {
        panic!("there is no other session");
    };
    for name in ["q", "r", "s", "t"] {
        let rules = QueueRules {
            name: name.into(),
            maximum_deliveries: None,
            dead_letter: None,
            has_priorities: false,
            reader: Arc::clone(&reader) as Arc<dyn MessageReader>,
        };
        let filter = format!("$share/{name}/topic");
        let kept = first.keep_queue(NOW_MS, session, &filter, qos(Qos::ExactlyOnce), rules);
        kept.expect("a valid filter");
    }
    first.publish(NOW_MS, retained("first"));
    assert!(
        reader.is_done.load(Ordering::Relaxed),
        "a queue is at home here"
    );
    let before = first.retained(NOW_MS, "topic").expect("it is retained");
    assert_eq!(before.payload(), b"second");
    let mut cluster = restarted(1, Limits::default(), &store);
    let after = cluster.broker(0).retained(NOW_MS, "topic");
    assert_eq!(after.expect("it is retained").payload(), b"second");
}

/// Subscribes by another shard's broker, once, while the first looks who wants its message.
#[derive(Debug)]
struct Overtaking {
    other: Mutex<Broker<Protocol>>,
    session: SessionKey,
    is_done: AtomicBool,
}

impl Permit for Overtaking {
    fn permits(&self, topic: &str) -> bool {
        if !self.is_done.swap(true, Ordering::Relaxed) {
            let mut other = self.other.lock().expect("nobody else has it");
            let subscribed = other.subscribe(NOW_MS, self.session, topic, qos(Qos::AtLeastOnce));
            subscribed.expect("a valid filter");
        }
        true
    }
}

/// The rules of a shard where each subscription has this permit.
#[derive(Debug)]
struct Permitting(Arc<Overtaking>);

impl Rights for Permitting {
    fn digest(&self) -> [u8; 32] {
        [1; 32]
    }

    fn admits(&self, _: Holder<'_>) -> bool {
        true
    }

    fn reads(&self, _: Holder<'_>, _: &str, _: Option<&str>) -> Right {
        Right::Some(Arc::clone(&self.0) as _)
    }

    fn receives(&self, _: Holder<'_>, _: &str) -> bool {
        true
    }

    fn publishes(&self, _: Holder<'_>, _: &Message) -> bool {
        true
    }
}

/// Whether a message is to be kept is decided when its readers are, however many messages are published as a whole.
#[test]
fn a_message_is_kept_for_a_reader_that_comes_at_the_last_moment() {
    for is_retained in [true, false] {
        let store = MemoryStore::new();
        let directory = Directory::new(2, Limits::default(), 42);
        let broker = |shard| {
            let store = Box::new(store.clone());
            Broker::<Protocol>::new(ShardId(shard), Arc::clone(&directory), store)
        };
        let open = |broker: &mut Broker<Protocol>, client_id, expiry_s| {
            let request = OpenSession {
                name: SessionName::new(None, client_id),
                clean_start: false,
                expiry_s,
                consumer: ConsumerId::default(),
                will: None,
                on_demand: false,
                selector: None,
            };
            let opened = broker.open(NOW_MS, request);
            let Ok(Opened::Ready { session, .. }) = opened else {
                panic!("there is no other session");
            };
            session
        };
        let (mut first, mut other) = (broker(0), broker(1));
        let session = open(&mut other, "late", NEVER_EXPIRES_S);
        let late = Arc::new(Overtaking {
            other: Mutex::new(other),
            session,
            is_done: AtomicBool::new(false),
        });
        first.set_rights(Arc::new(Permitting(Arc::clone(&late))));
        let brief = open(&mut first, "brief", 0);
        let subscribed = first.subscribe(NOW_MS, brief, "topic", qos(Qos::AtLeastOnce));
        subscribed.expect("a valid filter");
        let routed = if is_retained {
            first.publish(NOW_MS, retained("kept"))
        } else {
            let message = message("topic", "kept", Qos::AtLeastOnce, false);
            first.publish_together(NOW_MS, None, vec![message], &[])
        };
        assert!(late.is_done.load(Ordering::Relaxed));
        assert_eq!(routed.matched, 2, "the one that has just come, too");
        // The first shard dies before its letter is read.
        drop((first, late));
        let mut cluster = restarted(1, Limits::default(), &store);
        let back = cluster.open(0, "late");
        assert_eq!(cluster.drain(back), ["kept"], "retained: {is_retained}");
    }
}

/// A member of a shared subscription, whose session is away.
fn leave_member(cluster: &mut Cluster) {
    let member = cluster.open_with(0, "a", false, 3_600, None);
    cluster.subscribe(member, "$share/g/t", qos(Qos::AtLeastOnce));
    cluster.close(member, Close::LOST);
}

/// The last member's session ends with the process. What waited for the shared subscription is not for later members.
#[test]
fn a_shared_subscription_without_members_ends_with_the_restart() {
    for shards in 1..=2 {
        let store = MemoryStore::new();
        let mut cluster = restarted(shards, Limits::default(), &store);
        leave_member(&mut cluster);
        // It stays for as long as the connection does, and no longer.
        let brief = cluster.open_with(0, "a", false, 0, None);
        assert!(brief.present);
        cluster.publish(0, "t", "before", Qos::AtLeastOnce);
        cluster.run();
        let has_group = |store: &MemoryStore| {
            let mut is_there = false;
            let mut store = store.clone();
            store.load(&mut |key, _| is_there |= key.ends_with(b"$share/g/t"));
            is_there
        };
        assert!(has_group(&store));
        drop(cluster);
        let mut cluster = restarted(shards, Limits::default(), &store);
        cluster.pass(1_000);
        assert!(!has_group(&store), "nothing is left of it");
        let later = cluster.open_with(0, "b", false, 3_600, None);
        cluster.subscribe(later, "$share/g/t", qos(Qos::AtLeastOnce));
        cluster.publish(0, "t", "after", Qos::AtLeastOnce);
        cluster.pass(1_000);
        assert_eq!(cluster.drain(later), ["after"]);
    }
}

/// A member that comes back finds what waited, on whichever shard it is restored.
#[test]
fn a_shared_subscription_with_a_member_outlives_the_restart() {
    for shards in 1..=2 {
        let store = MemoryStore::new();
        let mut cluster = restarted(shards, Limits::default(), &store);
        leave_member(&mut cluster);
        cluster.publish(0, "t", "waits", Qos::AtLeastOnce);
        cluster.run();
        drop(cluster);
        let mut cluster = restarted(shards, Limits::default(), &store);
        cluster.pass(1_000);
        let back = cluster.open_with(0, "a", false, 3_600, None);
        assert!(back.present);
        cluster.pass(1_000);
        assert_eq!(cluster.drain(back), ["waits"]);
    }
}

/// Rules that allow wills only by rights which came with their clients.
#[derive(Debug)]
struct Giving;

impl Rights for Giving {
    fn digest(&self) -> [u8; 32] {
        [2; 32]
    }

    fn admits(&self, _: Holder<'_>) -> bool {
        true
    }

    fn reads(&self, _: Holder<'_>, _: &str, _: Option<&str>) -> Right {
        Right::Everything
    }

    fn receives(&self, _: Holder<'_>, _: &str) -> bool {
        true
    }

    fn publishes(&self, _: Holder<'_>, _: &Message) -> bool {
        false
    }

    fn still_publishes(&self, _: Holder<'_>, _: &Message, _: u64) -> bool {
        true
    }
}

/// A restart neither takes nor prolongs the rights that came with a will's client.
#[test]
fn given_rights_of_a_will_outlive_a_restart_for_their_day() {
    const DAY_S: u32 = 24 * 60 * 60;
    let store = MemoryStore::new();
    let mut cluster = restarted(1, Limits::default(), &store);
    for (name, is_given, delay_s, expiry_s) in [
        ("given", true, 60, None),
        ("expiring", true, 60, Some(u32::MAX)),
        ("own", false, 60, None),
        ("late", true, DAY_S + 60, None),
    ] {
        let will = Will {
            message: message(&format!("will/{name}"), name, Qos::AtLeastOnce, false),
            delay_s,
            expiry_s,
            is_given,
            is_unproved: false,
        };
        let client = cluster.open_with(0, name, false, NEVER_EXPIRES_S, Some(will));
        cluster.close(client, Close::LOST);
    }
    drop(cluster);
    let mut cluster = restarted(1, Limits::default(), &store);
    cluster.broker(0).set_rights(Arc::new(Giving));
    let reader = cluster.open(0, "reader");
    cluster.subscribe(reader, "will/#", qos(Qos::AtLeastOnce));
    cluster.pass(61_000);
    let mut got = cluster.drain(reader);
    got.sort();
    assert_eq!(got, ["expiring", "given"]);
    assert_eq!(cluster.broker(0).counters().dropped_forbidden, 1, "own");
    cluster.pass(u64::from(DAY_S) * 1_000);
    assert_eq!(cluster.broker(0).counters().dropped_forbidden, 2, "late");
    assert_eq!(cluster.drain(reader), [""; 0]);
    assert_eq!(cluster.directory.will_bytes(), 0, "none is left");
}

fn with_will(user: Option<&str>) -> OpenSession {
    OpenSession {
        name: SessionName::new(user, "device"),
        clean_start: true,
        expiry_s: 0,
        consumer: ConsumerId(7),
        will: Some(Will {
            message: message("will", "gone", Qos::AtLeastOnce, false),
            delay_s: 0,
            expiry_s: None,
            is_given: false,
            is_unproved: false,
        }),
        on_demand: false,
        selector: None,
    }
}

/// Number of wills in a store.
fn wills_in(store: &MemoryStore) -> usize {
    let keys = store.keys();
    keys.iter().filter(|key| key.first() == Some(&b'w')).count()
}

/// A client that comes to another shard in the turn in which its will is published: the letters with the will leave
/// before it is let in.
#[test]
fn a_will_that_is_due_goes_before_a_client_that_comes_at_that_moment() {
    let store = MemoryStore::new();
    let mut cluster = restarted(1, Limits::default(), &store);
    let opened = cluster.broker(0).open(NOW_MS, with_will(None));
    assert!(matches!(opened, Ok(Opened::Ready { .. })), "{opened:?}");
    drop(cluster);
    let mut cluster = restarted(3, Limits::default(), &store);
    let home = cluster
        .directory
        .shard_of(&named("device"))
        .expect("a will")
        .0;
    let [here, reads] = [1, 2].map(|step| (home + step) % 3);
    let reader = cluster.open(reads, "reader");
    cluster.subscribe(reader, "will", qos(Qos::AtLeastOnce));
    let due_ms = NOW_MS + 30_000;
    cluster.broker(home).timeout(due_ms);
    let opened = cluster.broker(here).open(due_ms, with_will(None));
    assert!(matches!(opened, Ok(Opened::Pending { .. })), "{opened:?}");
    cluster.collect(home);
    cluster.collect(here);
    cluster.run();
    assert_eq!(cluster.drain(reader), ["gone"]);
    assert_eq!(wills_in(&store), 1, "the will that it has now");
}

/// A will that waits for its client waits for that of its user alone, as a session does. The will goes with its user, if
/// that is gone.
#[test]
fn a_will_that_waits_for_its_client_is_its_users() {
    let open = |cluster: &mut Cluster, shard, user| {
        let opened = cluster.broker(shard).open(NOW_MS, with_will(user));
        cluster.collect(shard);
        cluster.run();
        opened.map(|_| ())
    };
    for is_admitted in [true, false] {
        let store = MemoryStore::new();
        let mut cluster = restarted(1, Limits::default(), &store);
        assert_eq!(open(&mut cluster, 0, Some("ann")), Ok(()));
        drop(cluster);
        let mut cluster = restarted(2, Limits::default(), &store);
        let reader = cluster.open(0, "reader");
        cluster.subscribe(reader, "will", qos(Qos::AtLeastOnce));
        for shard in 0..2 {
            for user in [Some("bob"), None] {
                let request = OpenSession {
                    will: None,
                    ..with_will(user)
                };
                let opened = cluster.broker(shard).open(NOW_MS, request);
                assert!(opened.is_ok(), "{opened:?}");
                cluster.collect(shard);
                cluster.run();
            }
        }
        if !is_admitted {
            for shard in 0..2 {
                cluster.broker(shard).set_rights(Arc::new(Nobody));
            }
        }
        cluster.pass(30_000);
        let expected = if is_admitted { &["gone"][..] } else { &[] };
        assert_eq!(cluster.drain(reader), expected);
        cluster.pass(1);
        assert_eq!(wills_in(&store), 0, "no record of it is left");
        for shard in 0..2 {
            cluster.broker(shard).set_rights(Arc::new(Giving));
        }
        assert_eq!(open(&mut cluster, 1, Some("bob")), Ok(()));
    }
}

/// Rules of which no user is left.
#[derive(Debug)]
struct Nobody;

impl Rights for Nobody {
    fn digest(&self) -> [u8; 32] {
        [3; 32]
    }

    fn admits(&self, holder: Holder<'_>) -> bool {
        holder.client_id == "reader"
    }

    fn reads(&self, _: Holder<'_>, _: &str, _: Option<&str>) -> Right {
        Right::Everything
    }

    fn receives(&self, _: Holder<'_>, _: &str) -> bool {
        true
    }

    fn publishes(&self, _: Holder<'_>, _: &Message) -> bool {
        true
    }
}
