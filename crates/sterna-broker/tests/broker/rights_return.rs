//! Rights that go and come back: nothing is taken away for good.

use std::sync::Arc;

use sterna_broker::{
    Close, ConsumerId, Delivery, Event, Holder, Limits, Message, NoStore, OpenSession, Outcome,
    Qos, Right, Rights, SessionName, Unacknowledged, Will,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, named, qos, text};
use crate::late_store::LateStore;

/// What clients may not do for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing is wrong.
    None,
    /// Nobody may read below `secret/`.
    Denied,
    /// There are no users.
    Missing,
}

impl Rights for Fault {
    fn digest(&self) -> [u8; 32] {
        [*self as u8; 32]
    }

    fn admits(&self, holder: Holder<'_>) -> bool {
        *self != Self::Missing || holder.owner.is_none()
    }

    fn reads(&self, _: Holder<'_>, filter: &str, _: Option<&str>) -> Right {
        if *self == Self::Denied && filter.starts_with("secret/") {
            Right::Nothing
        } else {
            Right::Everything
        }
    }

    fn receives(&self, _: Holder<'_>, topic: &str) -> bool {
        *self != Self::Denied || !topic.starts_with("secret/")
    }

    fn publishes(&self, _: Holder<'_>, _: &Message) -> bool {
        true
    }
}

/// Puts rules in force on all shards, which judge whoever is in memory.
pub(crate) fn reload(cluster: &mut Cluster, fault: Fault) {
    for shard in 0..cluster.brokers.len() as u16 {
        let now_ms = cluster.now_ms;
        cluster.broker(shard).set_rights(Arc::new(fault));
        cluster.broker(shard).judge(now_ms);
        cluster.collect(shard);
    }
    cluster.run();
}

/// The same, and waits until sessions that are away are judged, too.
pub(crate) fn apply(cluster: &mut Cluster, fault: Fault) {
    reload(cluster, fault);
    // Packed sessions are judged with the timers.
    cluster.pass(10);
    check(cluster);
}

fn check(cluster: &Cluster) {
    for broker in &cluster.brokers {
        broker.check();
    }
}

/// Brokers on a store, with what it has. The rules are in force before.
pub(crate) fn started(shards: u16, store: &MemoryStore, fault: Fault) -> Cluster {
    started_at(1_000_000, shards, store, fault)
}

pub(crate) fn started_at(now_ms: u64, shards: u16, store: &MemoryStore, fault: Fault) -> Cluster {
    let mut cluster = Cluster::with(shards, Limits::default(), |shard| {
        if shard % 2 == 1 {
            Box::new(LateStore::new(store))
        } else {
            Box::new(store.clone())
        }
    });
    cluster.now_ms = now_ms;
    for shard in 0..shards {
        let now_ms = cluster.now_ms;
        cluster.broker(shard).set_rights(Arc::new(fault));
        cluster.broker(shard).restore(now_ms);
        cluster.collect(shard);
    }
    for shard in 0..shards {
        let now_ms = cluster.now_ms;
        cluster.broker(shard).all_restored(now_ms);
        cluster.collect(shard);
    }
    cluster.run();
    cluster.pass(10);
    cluster
}

pub(crate) fn say(cluster: &mut Cluster, topic: &str, payload: &str) {
    let shard = cluster.brokers.len() as u16 - 1;
    cluster.publish(shard, topic, payload, Qos::AtLeastOnce);
}

/// The session of a user.
pub(crate) fn open_of(
    cluster: &mut Cluster,
    shard: u16,
    user: &str,
    expiry_s: u32,
    will: Option<Will>,
) -> Client {
    let request = OpenSession {
        name: SessionName::new(Some(user), "s"),
        clean_start: false,
        expiry_s,
        consumer: ConsumerId::default(),
        will,
        on_demand: false,
        selector: None,
    };
    let (consumer, opened) = cluster.start_request(shard, request);
    cluster.opened(shard, consumer, opened)
}

pub(crate) fn open(cluster: &mut Cluster, shard: u16) -> Client {
    open_of(cluster, shard, "ann", 3_600, None)
}

/// Settles what is in flight and all that comes after it.
pub(crate) fn all_of(cluster: &mut Cluster, client: Client) -> Vec<String> {
    let mut all = Vec::new();
    let in_flight = cluster.broker(client.shard).unacknowledged(client.key);
    for one in in_flight {
        let tag = match one {
            Unacknowledged::Sent(delivery) => {
                all.push(text(&delivery));
                delivery.tag
            }
            Unacknowledged::HandedOver { tag, .. } => tag,
        };
        cluster.settle(client, tag, Outcome::Accepted);
    }
    loop {
        cluster.run();
        let more = cluster.drain(client);
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

fn is_told(cluster: &Cluster, client: Client) -> bool {
    cluster.events.iter().any(
        |event| matches!(event, Event::LostRight { consumer, .. } if *consumer == client.consumer),
    )
}

#[test]
fn a_connected_reader_gets_messages_again_when_its_right_is_back() {
    for shards in 1..=2 {
        for expiry_s in [0, 3_600] {
            let mut cluster = Cluster::with(shards, Limits::default(), |_| Box::new(NoStore));
            let client = cluster.open_with(0, "s", false, expiry_s, None);
            cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
            cluster.subscribe(client, "open", qos(Qos::AtLeastOnce));
            apply(&mut cluster, Fault::Denied);
            assert!(is_told(&cluster, client), "the front door hears of it");
            say(&mut cluster, "secret/x", "while denied");
            say(&mut cluster, "open", "1");
            assert_eq!(cluster.drain(client), ["1"]);
            assert_eq!(cluster.broker(0).counters().subscriptions, 2);
            assert_eq!(cluster.broker(0).counters().rights_lost, 1);
            apply(&mut cluster, Fault::None);
            say(&mut cluster, "secret/x", "2");
            assert_eq!(cluster.drain(client), ["2"], "{shards} {expiry_s}");
            assert_eq!(cluster.broker(0).counters().rights_returned, 1);
        }
    }
}

/// Whoever is away, behind or connected, and over a restart: all that was published before or after comes.
#[test]
fn a_kept_session_loses_only_what_was_published_while_denied() {
    for (fault, is_away, restarts_denied, comes_to) in [
        (Fault::Denied, true, false, 0),
        (Fault::Denied, true, true, 0),
        (Fault::Denied, false, false, 1),
        (Fault::Denied, true, true, 1),
        (Fault::Missing, true, false, 0),
        (Fault::Missing, true, true, 1),
        (Fault::Missing, false, false, 0),
        (Fault::Missing, false, true, 1),
    ] {
        let what = format!("{fault:?} away {is_away}, restart {restarts_denied}, to {comes_to}");
        let store = MemoryStore::new();
        let mut cluster = started(2, &store, Fault::None);
        let client = open(&mut cluster, 0);
        cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
        say(&mut cluster, "secret/x", "1");
        assert_eq!(cluster.drain(client), ["1"]);
        say(&mut cluster, "secret/x", "2");
        assert_eq!(cluster.take(client).len(), 1, "it is in flight");
        if is_away {
            cluster.close(client, Close::LOST);
            say(&mut cluster, "secret/x", "3");
            cluster.pass(60_000);
        }
        apply(&mut cluster, fault);
        if fault == Fault::Missing && !is_away {
            assert!(cluster.was_evicted(client), "{what}");
        }
        say(&mut cluster, "secret/x", "while denied");
        if restarts_denied {
            cluster.pass(60_000);
            drop(cluster);
            cluster = started(2, &store, fault);
            say(&mut cluster, "secret/x", "while denied, again");
        }
        assert_eq!(cluster.directory.sessions(), 1, "{what}");
        apply(&mut cluster, Fault::None);
        say(&mut cluster, "secret/x", "4");
        cluster.pass(60_000);
        check(&cluster);
        let client = open(&mut cluster, comes_to);
        assert!(client.present, "{what}");
        say(&mut cluster, "secret/x", "5");
        let came = all_of(&mut cluster, client);
        let wanted: &[&str] = if is_away {
            &["2", "3", "4", "5"]
        } else {
            &["2", "4", "5"]
        };
        assert_eq!(came, wanted, "{what}");
    }
}

/// Rules may have changed while the broker was down.
#[test]
fn a_right_that_is_back_at_a_start_counts_from_there() {
    let store = MemoryStore::new();
    let mut cluster = started(1, &store, Fault::None);
    let client = open(&mut cluster, 0);
    cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
    cluster.close(client, Close::LOST);
    say(&mut cluster, "secret/x", "1");
    apply(&mut cluster, Fault::Denied);
    say(&mut cluster, "secret/x", "while denied");
    cluster.pass(60_000);
    drop(cluster);
    let mut cluster = started(1, &store, Fault::None);
    say(&mut cluster, "secret/x", "2");
    let client = open(&mut cluster, 0);
    assert_eq!(all_of(&mut cluster, client), ["1", "2"]);
}

#[test]
fn what_was_published_before_is_judged_when_it_is_delivered() {
    for store in [false, true] {
        let memory = MemoryStore::new();
        let mut cluster = Cluster::with(1, Limits::default(), |_| {
            if store {
                Box::new(memory.clone())
            } else {
                Box::new(NoStore)
            }
        });
        let client = cluster.open(0, "s");
        cluster.subscribe(client, "secret/x", qos(Qos::ExactlyOnce));
        for payload in ["1", "2", "3", "4"] {
            cluster.publish(0, "secret/x", payload, Qos::ExactlyOnce);
        }
        let first = cluster.next(client).expect("the first message");
        let second = cluster.next(client).expect("the second message");
        assert!(cluster.broker(0).handed_over(client.key, second.tag));
        apply(&mut cluster, Fault::Denied);
        let in_flight = cluster.broker(0).unacknowledged(client.key);
        assert_eq!(in_flight.len(), 2, "what is in flight is completed");
        apply(&mut cluster, Fault::None);
        assert_eq!(
            cluster
                .next(client)
                .map(|delivery| text(&delivery))
                .as_deref(),
            Some("3")
        );
        apply(&mut cluster, Fault::Denied);
        assert!(
            cluster.next(client).is_none(),
            "it is its turn, and it is denied"
        );
        assert_eq!(cluster.broker(0).counters().dropped_forbidden, 1);
        for tag in [first.tag, second.tag] {
            cluster.settle(client, tag, Outcome::Accepted);
        }
        apply(&mut cluster, Fault::None);
        let left: Vec<Delivery> = cluster.take(client);
        assert!(left.is_empty());
    }
}

#[test]
fn the_queue_of_a_shared_subscription_outlives_that_all_members_are_denied() {
    for restarts in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = started(2, &store, Fault::None);
        let one = open(&mut cluster, 0);
        cluster.subscribe(one, "$share/g/secret/x", qos(Qos::AtLeastOnce));
        let other = cluster.open(1, "other");
        cluster.subscribe(other, "$share/g/secret/x", qos(Qos::AtLeastOnce));
        for client in [one, other] {
            cluster.close(client, Close::LOST);
        }
        say(&mut cluster, "secret/x", "1");
        say(&mut cluster, "secret/x", "2");
        apply(&mut cluster, Fault::Denied);
        say(&mut cluster, "secret/x", "while denied");
        cluster.pass(60_000);
        if restarts {
            drop(cluster);
            cluster = started(2, &store, Fault::Denied);
            say(&mut cluster, "secret/x", "while denied, again");
        }
        // A member that is here and denied is given nothing.
        let one = open(&mut cluster, 0);
        cluster.run();
        assert_eq!(all_of(&mut cluster, one), [""; 0]);
        apply(&mut cluster, Fault::None);
        say(&mut cluster, "secret/x", "3");
        assert_eq!(all_of(&mut cluster, one), ["1", "2", "3"], "{restarts}");
    }
}

/// What a member has and was not sent goes back, and to it again.
#[test]
fn a_connected_member_gives_back_and_gets_again() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        let client = cluster.open(0, "s");
        cluster.subscribe(client, "$share/g/secret/x", qos(Qos::AtLeastOnce));
        for payload in ["1", "2", "3"] {
            say(&mut cluster, "secret/x", payload);
        }
        let first = cluster.next(client).expect("the first message");
        apply(&mut cluster, Fault::Denied);
        cluster.run();
        assert!(cluster.next(client).is_none());
        cluster.settle(client, first.tag, Outcome::Accepted);
        say(&mut cluster, "secret/x", "while denied");
        assert!(cluster.next(client).is_none());
        apply(&mut cluster, Fault::None);
        say(&mut cluster, "secret/x", "4");
        cluster.run();
        assert_eq!(all_of(&mut cluster, client), ["2", "3", "4"]);
        cluster.assert_empty();
    }
}

#[test]
fn a_retained_value_that_changed_while_denied_is_sent_once() {
    for restarts in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = started(1, &store, Fault::None);
        cluster.retain(0, "secret/same", "same");
        cluster.retain(0, "secret/other", "before");
        let mut client = open(&mut cluster, 0);
        cluster.subscribe(client, "secret/+", qos(Qos::AtLeastOnce));
        assert_eq!(cluster.drain(client).len(), 2);
        cluster.now_ms += 1;
        apply(&mut cluster, Fault::Denied);
        cluster.now_ms += 1;
        cluster.retain(0, "secret/other", "after");
        if restarts {
            cluster.pass(60_000);
            let now_ms = cluster.now_ms;
            drop(cluster);
            cluster = started_at(now_ms, 1, &store, Fault::Denied);
            client = open(&mut cluster, 0);
        }
        apply(&mut cluster, Fault::None);
        let sent = cluster.take(client);
        let sent: Vec<(String, bool)> = (sent.iter())
            .map(|delivery| (text(delivery), delivery.retain))
            .collect();
        assert_eq!(sent, [("after".to_owned(), true)], "{restarts}");
        apply(&mut cluster, Fault::Denied);
        apply(&mut cluster, Fault::None);
        assert!(cluster.take(client).is_empty(), "once");
    }
}

#[test]
fn a_sleeping_subscription_can_be_ended_and_made_anew() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "s");
    cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
    apply(&mut cluster, Fault::Denied);
    let now_ms = cluster.now_ms;
    let again = cluster
        .broker(0)
        .subscribe(now_ms, client.key, "secret/x", qos(Qos::AtLeastOnce));
    assert!(again.is_err(), "its client is told that it may not");
    assert!(cluster.unsubscribe(client, "secret/x"));
    apply(&mut cluster, Fault::None);
    say(&mut cluster, "secret/x", "1");
    assert!(cluster.drain(client).is_empty());
    cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
    say(&mut cluster, "secret/x", "2");
    assert_eq!(cluster.drain(client), ["2"]);
}

pub(crate) fn will(delay_s: u32) -> Will {
    Will {
        message: message("gone", "will", Qos::AtLeastOnce, false),
        delay_s,
        expiry_s: None,
        is_given: false,
        is_unproved: false,
    }
}

#[test]
fn the_will_of_a_missing_user_waits_for_him() {
    for delay_s in [0, 5] {
        for returns in [false, true] {
            let mut cluster = Cluster::new(1);
            let watcher = cluster.open(0, "watcher");
            cluster.subscribe(watcher, "gone", qos(Qos::AtLeastOnce));
            open_of(&mut cluster, 0, "ann", 60, Some(will(delay_s)));
            apply(&mut cluster, Fault::Missing);
            cluster.pass(10_000);
            assert!(cluster.drain(watcher).is_empty(), "it waits");
            if returns {
                apply(&mut cluster, Fault::None);
                assert_eq!(cluster.drain(watcher), ["will"], "after {delay_s} s");
            }
            cluster.pass(60_000);
            assert!(
                cluster.drain(watcher).is_empty(),
                "it goes with its session"
            );
            assert_eq!(cluster.directory.sessions(), 1);
        }
    }
}

/// A session that ends with its connection has a will, too: the client or the user may be back in a moment.
#[test]
fn the_will_of_a_missing_user_outlives_its_session_for_the_grace() {
    for (delay_s, comes, restarts) in [
        (0, "nobody", false),
        (0, "the user", false),
        (5, "the user", false),
        (0, "the user", true),
        (0, "the client", false),
        (5, "the client", false),
        (0, "the operator", false),
    ] {
        let what = format!("{comes} comes, delay {delay_s}, restart {restarts}");
        let store = MemoryStore::new();
        let mut cluster = started(2, &store, Fault::None);
        let grace_ms = cluster.broker(0).limits().will_grace_ms;
        let mut watcher = cluster.open(0, "watcher");
        cluster.subscribe(watcher, "gone", qos(Qos::AtLeastOnce));
        open_of(&mut cluster, 1, "ann", 0, Some(will(delay_s)));
        apply(&mut cluster, Fault::Missing);
        cluster.pass(grace_ms / 2);
        assert!(cluster.drain(watcher).is_empty(), "{what}: it waits");
        if restarts {
            let now_ms = cluster.now_ms;
            drop(cluster);
            cluster = started_at(now_ms, 2, &store, Fault::Missing);
            watcher = cluster.open(0, "watcher");
            cluster.subscribe(watcher, "gone", qos(Qos::AtLeastOnce));
        }
        match comes {
            "the user" => apply(&mut cluster, Fault::None),
            "the client" => {
                apply(&mut cluster, Fault::None);
                open_of(&mut cluster, 0, "ann", 0, None);
            }
            "the operator" => {
                let now_ms = cluster.now_ms;
                for shard in 0..2 {
                    cluster.broker(shard).end_sessions_of(
                        now_ms,
                        |name| name.user() == Some("ann"),
                        0,
                        1_024,
                    );
                    cluster.collect(shard);
                }
                cluster.run();
                apply(&mut cluster, Fault::None);
            }
            _ => {}
        }
        assert!(
            cluster.drain(watcher).is_empty(),
            "{what}: its client may return"
        );
        cluster.pass(grace_ms);
        let wanted: &[&str] = if comes == "the user" { &["will"] } else { &[] };
        assert_eq!(cluster.drain(watcher), wanted, "{what}");
        let sessions = 1 + usize::from(comes == "the client");
        assert_eq!(cluster.directory.sessions(), sessions, "{what}");
        check(&cluster);
    }
}

/// A session that may not be of use again takes no place that others need.
#[test]
fn sessions_of_missing_users_end_first_when_memory_is_short() {
    let mut cluster = Cluster::new(1);
    let client = open(&mut cluster, 0);
    cluster.subscribe(client, "open", qos(Qos::AtLeastOnce));
    let other = cluster.open(0, "other");
    cluster.close(other, Close::LOST);
    apply(&mut cluster, Fault::Missing);
    assert_eq!(cluster.directory.sessions(), 2);
    cluster
        .directory
        .set_pressure(sterna_broker::Pressure::Drop);
    cluster.broker(0).feel_pressure();
    let now_ms = cluster.now_ms;
    while cluster.broker(0).relieve(now_ms) {}
    assert_eq!(cluster.directory.sessions(), 1);
    assert!(cluster.directory.shard_of(&named("other")).is_some());
}

/// Rules that are wrong again and again while a client is away add no end of records.
#[test]
fn a_right_that_flaps_takes_a_bounded_part_of_a_session() {
    let store = MemoryStore::new();
    let limits = Limits {
        subscriptions_per_session: 8,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(1, limits, |_| Box::new(store.clone()));
    let client = cluster.open(0, "s");
    cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
    cluster.close(client, Close::LOST);
    let mut wanted = Vec::new();
    for number in 0..50 {
        say(&mut cluster, "secret/x", &number.to_string());
        wanted.push(number.to_string());
        apply(&mut cluster, Fault::Denied);
        say(&mut cluster, "open", "between");
        apply(&mut cluster, Fault::None);
    }
    cluster.pass(60_000);
    let records = (store.keys().iter())
        .filter(|key| key.first() == Some(&b'p'))
        .count();
    assert!(records <= 8, "{records} records");
    let client = cluster.open(0, "s");
    assert_eq!(all_of(&mut cluster, client), wanted);
}

#[test]
fn it_is_said_before_what_rules_would_take() {
    let store = MemoryStore::new();
    let mut cluster = started(1, &store, Fault::None);
    let client = open(&mut cluster, 0);
    for filter in ["secret/x", "secret/y", "open"] {
        cluster.subscribe(client, filter, qos(Qos::AtLeastOnce));
    }
    let other = cluster.open(0, "other");
    cluster.subscribe(other, "secret/x", qos(Qos::AtLeastOnce));
    cluster.close(other, Close::LOST);
    cluster.pass(60_000);
    let weigh = |cluster: &mut Cluster, fault: Fault| {
        let mut lost = (0, 0);
        let mut from = Some(0);
        while let Some(at) = from {
            let (found, next) = cluster.broker(0).losses_by(&fault, at, 1);
            lost = (lost.0 + found.subscriptions, lost.1 + found.sessions);
            from = next;
        }
        lost
    };
    assert_eq!(weigh(&mut cluster, Fault::Denied), (3, 2));
    assert_eq!(weigh(&mut cluster, Fault::Missing), (3, 1));
    apply(&mut cluster, Fault::Denied);
    assert_eq!(
        weigh(&mut cluster, Fault::Denied),
        (0, 0),
        "they sleep already"
    );
}

#[test]
fn the_sessions_of_a_user_end_at_once_with_their_wills() {
    for is_missing in [false, true] {
        let mut cluster = Cluster::new(1);
        let watcher = cluster.open(0, "watcher");
        cluster.subscribe(watcher, "gone", qos(Qos::AtLeastOnce));
        open_of(&mut cluster, 0, "ann", 60, Some(will(0)));
        if is_missing {
            apply(&mut cluster, Fault::Missing);
        }
        let now_ms = cluster.now_ms;
        let ended =
            cluster
                .broker(0)
                .end_sessions_of(now_ms, |name| name.user() == Some("ann"), 0, 1_024);
        assert_eq!(ended, (1, None));
        cluster.collect(0);
        apply(&mut cluster, Fault::None);
        cluster.pass(120_000);
        assert!(cluster.drain(watcher).is_empty());
        assert_eq!(cluster.directory.sessions(), 1);
    }
}

/// A million sessions that are away are judged one after the other.
#[test]
fn who_is_judged_later_loses_and_gets_back_a_right_where_the_rules_changed() {
    for shards in [1, 2] {
        let store = MemoryStore::new();
        let mut cluster = started(shards, &store, Fault::None);
        // All is in the log, also what nobody else may read.
        let keeper = cluster.open(0, "keeper");
        cluster.subscribe(keeper, "#", qos(Qos::AtLeastOnce));
        let client = open(&mut cluster, 0);
        cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::NORMAL);
        cluster.pass(5_000);
        let rules = |cluster: &mut Cluster, fault| {
            for shard in 0..shards {
                let now_ms = cluster.now_ms;
                cluster.broker(shard).set_rights(Arc::new(fault));
                cluster.broker(shard).judge(now_ms);
            }
        };
        say(&mut cluster, "secret/x", "before");
        rules(&mut cluster, Fault::Denied);
        say(&mut cluster, "secret/x", "denied");
        cluster.pass(10);
        rules(&mut cluster, Fault::None);
        say(&mut cluster, "secret/x", "after");
        cluster.pass(10);
        let client = open(&mut cluster, 0);
        assert_eq!(all_of(&mut cluster, client), ["before", "after"]);
    }
}
