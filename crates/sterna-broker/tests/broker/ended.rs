//! The end of everybody's subscriptions to a filter, and sessions looked up by name.

use std::collections::BTreeSet;

use sterna_broker::{Close, Event, Opened, Outcome, Qos};

use crate::cluster::{Client, Cluster, named, qos, text};

fn end_all(cluster: &mut Cluster, shard: u16, filter: &str) -> usize {
    let now_ms = cluster.now_ms;
    let count = cluster.broker(shard).unsubscribe_all(now_ms, filter);
    cluster.collect(shard);
    cluster.run();
    count
}

/// Who was told, each once.
fn told(cluster: &mut Cluster) -> BTreeSet<u64> {
    let events = std::mem::take(&mut cluster.events);
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Unsubscribed { consumer, .. } => Some(consumer.0),
            _ => None,
        })
        .collect();
    let each = told.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(told.len(), each.len());
    each
}

#[test]
fn everybodys_subscriptions_to_a_filter_end_on_all_shards() {
    for filter in ["a/b", "a/+", "#"] {
        let mut cluster = Cluster::new(3);
        let all: Vec<_> = (0..6)
            .map(|i| cluster.open(i % 3, &format!("c{i}")))
            .collect();
        for &client in &all {
            cluster.subscribe(client, filter, qos(Qos::AtLeastOnce));
            cluster.subscribe(client, "a/b/#", qos(Qos::AtMostOnce));
        }
        let shared = cluster.open(0, "shared");
        let text_of_shared = format!("$share/x/{filter}");
        cluster.subscribe(shared, &text_of_shared, qos(Qos::AtLeastOnce));
        cluster.close(all[5], Close::LOST);
        cluster.publish(0, "a/b", "before", Qos::AtLeastOnce);
        assert_eq!(end_all(&mut cluster, 1, filter), 7);
        assert_eq!(end_all(&mut cluster, 1, filter), 0);
        // One that is away is told nothing.
        let connected = all[..5].iter().chain([&shared]);
        let connected: BTreeSet<_> = connected.map(|client| client.consumer.0).collect();
        assert_eq!(told(&mut cluster), connected);
        assert_eq!(
            cluster.publish(2, "a/b", "after", Qos::AtLeastOnce).matched,
            6
        );
        for &client in &all[..5] {
            let got: Vec<_> = cluster.take(client).iter().map(text).collect();
            assert_eq!(got, ["before", "after"], "what is queued stays");
            let left: Vec<_> = cluster.broker(client.shard).filters(client.key).collect();
            assert_eq!(
                left.iter().map(|left| &***left).collect::<Vec<_>>(),
                ["a/b/#"]
            );
        }
        assert_eq!(cluster.directory.subscriptions(), 6);
    }
}

#[test]
fn a_kept_queue_outlives_its_topic_and_a_filter_of_a_shared_subscription_is_nobodys() {
    let mut cluster = Cluster::new(2);
    cluster.keep(0, "$share/q/t");
    let consumer = cluster.consume(1, "consumer", "$share/q/t");
    let member = cluster.open(0, "member");
    cluster.subscribe(member, "$share/other/t", qos(Qos::AtLeastOnce));
    for filter in ["$share/other/t", "$share/q/t", "t/#/t", "", "u"] {
        assert_eq!(end_all(&mut cluster, 0, filter), 0, "{filter}");
    }
    assert_eq!(end_all(&mut cluster, 0, "t"), 1);
    assert_eq!(told(&mut cluster), BTreeSet::from([member.consumer.0]));
    assert_eq!(cluster.publish(0, "t", "x", Qos::AtLeastOnce).matched, 1);
    cluster.demand(consumer, 1);
    cluster.run();
    assert_eq!(cluster.take(consumer).len(), 1);
}

/// A session moves from shard to shard while its subscription is ended from a third, and mail arrives
/// in any order: afterwards it has no subscription, and whoever has the session knows.
#[test]
fn a_session_on_its_way_loses_its_subscription_too() {
    let mut noted = 0;
    for order in 0..2_000_u64 {
        let mut random = order;
        let mut next = |bound: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % bound
        };
        let mut cluster = Cluster::new(4);
        let first = cluster.open(0, "c");
        cluster.subscribe(first, "a", qos(Qos::AtLeastOnce));
        cluster.subscribe(first, "b", qos(Qos::AtLeastOnce));
        cluster.subscribe(first, "$share/g/a", qos(Qos::AtLeastOnce));
        let (one, opened) = cluster.start_open(1, "c", false, 3600, None);
        assert!(matches!(opened, Opened::Pending { .. }));
        let mut last = (one, opened, 1);
        let ends_at = next(12);
        let moves_on_at = next(24);
        for step in 0.. {
            if step == ends_at {
                let now_ms = cluster.now_ms;
                assert_eq!(cluster.broker(3).unsubscribe_all(now_ms, "a"), 2);
                cluster.collect(3);
            }
            if step == moves_on_at {
                let (two, opened) = cluster.start_open(2, "c", false, 3600, None);
                last = (two, opened, 2);
            }
            let pairs = cluster.pairs();
            if pairs.is_empty() && step > ends_at.max(moves_on_at) {
                break;
            }
            if !pairs.is_empty() {
                let (from, to) = pairs[next(pairs.len())];
                cluster.deliver_one(from, to);
            }
        }
        let (consumer, Opened::Pending { session: key }, shard) = last else {
            panic!("it was elsewhere");
        };
        let client = Client {
            shard,
            key,
            consumer,
            present: true,
        };
        let left: Vec<_> = cluster.broker(shard).filters(key).collect();
        assert_eq!(left.iter().map(|left| &***left).collect::<Vec<_>>(), ["b"]);
        assert_eq!(cluster.publish(3, "a", "x", Qos::AtLeastOnce).matched, 0);
        assert_eq!(cluster.publish(3, "b", "x", Qos::AtLeastOnce).matched, 1);
        assert_eq!(cluster.take(client).len(), 1);
        assert_eq!(cluster.directory.subscriptions(), 1);
        // The events of a consumer come after its session has.
        let opened_at = cluster.events.iter().position(
            |event| matches!(event, Event::Opened { consumer: who, .. } if *who == consumer),
        );
        let told_at = cluster.events.iter().position(
            |event| matches!(event, Event::Unsubscribed { consumer: who, .. } if *who == consumer),
        );
        if let Some(told_at) = told_at {
            assert!(opened_at.expect("it came") < told_at);
            noted += 1;
        }
    }
    assert!(noted > 100, "{noted}");
}

#[test]
fn a_session_is_found_by_its_name_connected_or_away() {
    let mut cluster = Cluster::new(2);
    let client = cluster.open(1, "c");
    cluster.subscribe(client, "a", qos(Qos::AtLeastOnce));
    for text in ["1", "2", "3"] {
        cluster.publish(0, "a", text, Qos::AtLeastOnce);
    }
    let sent = [cluster.next(client), cluster.next(client)].map(|sent| sent.unwrap().tag);
    let now_ms = cluster.now_ms;
    assert!(
        cluster.broker(0).session_named(&named("c")).is_none(),
        "elsewhere"
    );
    assert!(cluster.broker(1).session_named(&named("d")).is_none());
    let (info, filters) = cluster.broker(1).session_named(&named("c")).unwrap();
    assert_eq!(info.consumer, Some(client.consumer));
    assert_eq!((info.queue.pending, info.queue.unacknowledged), (1, 2));
    assert_eq!(filters.len(), 1);
    assert_eq!(cluster.broker(1).key_named(&named("c")), Some(client.key));
    cluster
        .broker(1)
        .protocol_named(&named("c"))
        .unwrap()
        .push(7);
    assert_eq!(cluster.broker(1).protocol(client.key), Some(&vec![7]));
    cluster.close(client, Close::LOST);
    let broker = cluster.broker(1);
    assert_eq!(broker.key_named(&named("c")), None);
    assert!(broker.settle_named(now_ms, &named("c"), sent[0], Outcome::Accepted));
    assert!(!broker.settle_named(now_ms, &named("c"), sent[0], Outcome::Accepted));
    assert!(!broker.settle_named(now_ms, &named("d"), sent[1], Outcome::Accepted));
    let (info, _) = broker.session_named(&named("c")).unwrap();
    assert_eq!((info.consumer, info.queue.unacknowledged), (None, 1));
    // On its way it is nowhere.
    let (_, opened) = cluster.start_open(0, "c", false, 3600, None);
    assert!(matches!(opened, Opened::Pending { .. }));
    let nowhere = [0, 1].map(|shard| cluster.broker(shard).session_named(&named("c")).is_none());
    assert_eq!(nowhere, [true, true]);
    cluster.run();
    assert!(cluster.broker(0).session_named(&named("c")).is_some());
}

#[test]
fn a_topics_retained_message_is_looked_up_and_removed_alone() {
    let mut cluster = Cluster::new(2);
    let client = cluster.open(0, "c");
    cluster.subscribe(client, "a/b", qos(Qos::AtLeastOnce));
    cluster.retain(0, "a/b", "x");
    let now_ms = cluster.now_ms;
    assert!(cluster.broker(1).retained(now_ms, "a").is_none());
    assert!(cluster.broker(1).retained(now_ms, "a/+").is_none());
    let kept = cluster.broker(1).retained(now_ms, "a/b").unwrap();
    assert_eq!(kept.payload(), b"x");
    assert!(cluster.broker(1).clear_retained("a/b"));
    assert!(!cluster.broker(1).clear_retained("a/b"));
    assert!(cluster.broker(0).retained(now_ms, "a/b").is_none());
    assert_eq!(cluster.take(client).len(), 1, "nothing was published");
    assert_eq!(cluster.directory.retained(), (0, 0));
}
