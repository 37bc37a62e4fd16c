//! When sessions that are away are judged, and as of when: after a reload, at a start, and after a kill between.

use std::sync::Arc;

use sterna_broker::{Close, Limits, Qos};
use sterna_store::MemoryStore;

use crate::cluster::{Cluster, named, qos, text};
use crate::late_store::LateStore;
use crate::rights::Secretive;
use crate::rights_return::{Fault, all_of, apply, open, reload, say, started, started_at};

/// A session that is away and reads `secret/x`, with a message that waits for it.
fn away(cluster: &mut Cluster) {
    let client = open(cluster, 0);
    cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
    all_of(cluster, client);
    cluster.close(client, Close::LOST);
    say(cluster, "secret/x", "before");
    cluster.pass(60_000);
}

#[test]
fn rules_that_changed_while_no_broker_ran_take_a_right_at_the_start() {
    for (fault, shards) in [(Fault::Denied, 1), (Fault::Denied, 2), (Fault::Missing, 2)] {
        let store = MemoryStore::new();
        let mut cluster = started(shards, &store, Fault::None);
        away(&mut cluster);
        drop(cluster);
        let mut cluster = started(shards, &store, fault);
        say(&mut cluster, "secret/x", "while denied");
        cluster.pass(60_000);
        drop(cluster);
        let mut cluster = started(shards, &store, Fault::None);
        say(&mut cluster, "secret/x", "after");
        let client = open(&mut cluster, shards - 1);
        assert_eq!(
            all_of(&mut cluster, client),
            ["before", "after"],
            "{fault:?} {shards}"
        );
    }
}

/// The process is killed before it has judged the sessions that are away.
#[test]
fn a_kill_while_sessions_are_judged_changes_nothing_about_since_when() {
    for shards in [1, 2] {
        let store = MemoryStore::new();
        let mut cluster = started(shards, &store, Fault::None);
        cluster.now_ms += 1;
        cluster.retain(0, "secret/x", "before it");
        cluster.now_ms += 1;
        away(&mut cluster);
        reload(&mut cluster, Fault::Denied);
        say(&mut cluster, "secret/x", "while denied");
        cluster.now_ms += 1;
        cluster.retain(0, "secret/x", "changed");
        let now_ms = cluster.now_ms;
        drop(cluster);
        let mut cluster = started_at(now_ms + 1, shards, &store, Fault::Denied);
        say(&mut cluster, "secret/x", "while denied, again");
        apply(&mut cluster, Fault::None);
        say(&mut cluster, "secret/x", "after");
        let client = open(&mut cluster, 0);
        let mut came = all_of(&mut cluster, client);
        came.sort_unstable();
        assert_eq!(came, ["after", "before", "changed"], "{shards} shards");
    }
}

/// A value that changes before the walk over the sessions comes to one has changed while that was denied.
#[test]
fn a_retained_value_that_changed_before_a_session_was_judged_is_sent_once() {
    let store = MemoryStore::new();
    let mut cluster = started(1, &store, Fault::None);
    cluster.retain(0, "secret/x", "first");
    let client = open(&mut cluster, 0);
    cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
    assert_eq!(cluster.drain(client), ["first"]);
    cluster.close(client, Close::LOST);
    cluster.pass(60_000);
    reload(&mut cluster, Fault::Denied);
    cluster.now_ms += 1;
    cluster.retain(0, "secret/x", "changed");
    cluster.pass(10);
    apply(&mut cluster, Fault::None);
    let client = open(&mut cluster, 0);
    let sent = cluster.take(client);
    let sent: Vec<(String, bool)> = (sent.iter())
        .map(|delivery| (text(delivery), delivery.retain))
        .collect();
    assert_eq!(sent, [("changed".to_owned(), true)]);
}

/// With the clock set back, each message that is retained is as old as the start. Shards that start one after the other
/// have one start, or what has changed would seem older than the loss.
#[test]
fn all_shards_have_one_start() {
    // The session is restored by the second shard, and what is retained by the first.
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        let store = MemoryStore::new();
        let mut cluster = started_at(2_000_000, 2, &store, Fault::None);
        let client = cluster.open(0, name);
        cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
        apply(&mut cluster, Fault::Denied);
        cluster.now_ms += 1;
        cluster.retain(0, "secret/x", "changed");
        cluster.close(client, Close::LOST);
        cluster.pass(60_000);
        drop(cluster);
        let mut cluster = started_late(&store, Fault::Denied);
        if cluster.broker(1).session_named(&named(name)).is_none() {
            continue;
        }
        let client = cluster.open(1, name);
        apply(&mut cluster, Fault::None);
        let sent: Vec<String> = cluster.take(client).iter().map(text).collect();
        assert_eq!(sent, ["changed"]);
        return;
    }
    panic!("no name of the second shard");
}

/// Two shards on a store. The clock was set back, and the second one starts a while after the first.
fn started_late(store: &MemoryStore, fault: Fault) -> Cluster {
    let mut cluster = Cluster::with(2, Limits::default(), |_| Box::new(LateStore::new(store)));
    for shard in 0..2 {
        cluster.now_ms = 1_000_000 + u64::from(shard) * 50;
        let now_ms = cluster.now_ms;
        cluster.broker(shard).set_rights(Arc::new(fault));
        cluster.broker(shard).restore(now_ms);
        cluster.collect(shard);
    }
    for shard in 0..2 {
        let now_ms = cluster.now_ms;
        cluster.broker(shard).all_restored(now_ms);
        cluster.collect(shard);
    }
    cluster.run();
    cluster
}

/// Rules change again and again before all are judged by the last ones, and the process is killed in the end.
#[test]
fn many_reloads_in_a_row_and_a_kill_lose_nothing_that_was_allowed() {
    for kills in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = started(2, &store, Fault::None);
        away(&mut cluster);
        for _ in 0..20 {
            reload(&mut cluster, Fault::Denied);
            reload(&mut cluster, Fault::Missing);
            reload(&mut cluster, Fault::None);
        }
        if kills {
            let now_ms = cluster.now_ms;
            drop(cluster);
            cluster = started_at(now_ms, 2, &store, Fault::None);
        } else {
            cluster.pass(10);
            assert!(cluster.brokers.iter().all(|broker| !broker.is_judging()));
        }
        say(&mut cluster, "secret/x", "after");
        cluster.pass(60_000);
        let client = open(&mut cluster, 1);
        assert_eq!(all_of(&mut cluster, client), ["before", "after"]);
    }
}

/// The rules are those of before: nobody is judged.
#[test]
fn a_start_with_the_same_rules_judges_nobody() {
    let store = MemoryStore::new();
    let mut cluster = started(2, &store, Fault::None);
    away(&mut cluster);
    apply(&mut cluster, Fault::Denied);
    cluster.pass(60_000);
    drop(cluster);
    let cluster = started(2, &store, Fault::Denied);
    let counters = cluster.brokers.iter().map(sterna_broker::Broker::counters);
    assert_eq!(
        counters.map(|counters| counters.rights_lost).sum::<u64>(),
        0
    );
}

/// A topic may end while the right to it is gone: its subscription does not come back with the right.
#[test]
fn a_subscription_without_a_right_ends_with_its_topic() {
    for is_away in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = started(2, &store, Fault::None);
        let client = open(&mut cluster, 0);
        cluster.subscribe(client, "secret/x", qos(Qos::AtLeastOnce));
        if is_away {
            cluster.close(client, Close::LOST);
            cluster.pass(60_000);
        }
        apply(&mut cluster, Fault::Denied);
        let now_ms = cluster.now_ms;
        assert_eq!(cluster.broker(1).unsubscribe_all(now_ms, "secret/x"), 1);
        cluster.collect(1);
        cluster.run();
        apply(&mut cluster, Fault::None);
        say(&mut cluster, "secret/x", "after");
        let client = open(&mut cluster, 0);
        assert!(client.present);
        assert_eq!(all_of(&mut cluster, client), [""; 0], "away {is_away}");
        let subscriptions = cluster.brokers.iter().map(sterna_broker::Broker::counters);
        assert_eq!(subscriptions.map(|one| one.subscriptions).sum::<u64>(), 0);
    }
}

/// A part of a subscription's topics is denied: also after a start, by the same rules and by others.
#[test]
fn what_is_denied_in_part_is_so_after_a_start() {
    for is_denied_before in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = started(1, &store, Fault::None);
        if is_denied_before {
            cluster.broker(0).set_rights(Arc::new(Secretive));
            let now_ms = cluster.now_ms;
            cluster.broker(0).judge(now_ms);
            cluster.pass(10);
        }
        let client = open(&mut cluster, 0);
        cluster.subscribe(client, "#", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
        cluster.pass(60_000);
        drop(cluster);
        let mut cluster = Cluster::with(1, Limits::default(), |_| Box::new(store.clone()));
        let now_ms = cluster.now_ms;
        cluster.broker(0).set_rights(Arc::new(Secretive));
        cluster.broker(0).restore(now_ms);
        cluster.broker(0).all_restored(now_ms);
        say(&mut cluster, "secret/x", "denied and away");
        let client = open(&mut cluster, 0);
        say(&mut cluster, "secret/x", "denied");
        say(&mut cluster, "open", "open");
        assert_eq!(all_of(&mut cluster, client), ["open"], "{is_denied_before}");
    }
}
