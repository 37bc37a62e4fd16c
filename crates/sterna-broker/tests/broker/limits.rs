//! What happens at the limits.

use sterna_broker::{Close, Limits, NoStore, Outcome, Qos, QueueFull, SubscribeError};
use sterna_store::MemoryStore;

use crate::cluster::{Cluster, qos};

#[test]
fn a_full_queue_drops_the_newest() {
    let mut cluster = Cluster::limited(Limits {
        queued_messages: 3,
        ..Limits::default()
    });
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    for i in 0..5 {
        cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
    }
    assert_eq!(cluster.drain(client), ["0", "1", "2"]);
    assert_eq!(cluster.broker(0).counters().dropped_full, 2);
}

#[test]
fn a_full_queue_drops_the_oldest_if_told_so() {
    let limits = Limits {
        queued_messages: 3,
        queue_full: QueueFull::DropOldest,
        ..Limits::default()
    };
    let mut cluster = Cluster::limited(limits);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "sent", Qos::AtLeastOnce);
    let sent = cluster.next(client).unwrap();
    for i in 0..5 {
        cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
    }
    // What was sent is not dropped.
    assert_eq!(
        cluster.broker(0).unacknowledged(client.key)[0].tag(),
        sent.tag
    );
    cluster.close(client, Close::LOST);
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client), ["2", "3", "4"]);
}

#[test]
fn bytes_are_limited_but_one_message_always_fits() {
    let mut cluster = Cluster::limited(Limits {
        queued_bytes: 20,
        ..Limits::default()
    });
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    let large = "x".repeat(100);
    cluster.publish(0, "t", &large, Qos::AtLeastOnce);
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    assert_eq!(cluster.drain(client), [large]);
    for _ in 0..3 {
        cluster.publish(0, "t", "012345678", Qos::AtLeastOnce);
    }
    assert_eq!(cluster.drain(client).len(), 2);
    cluster.assert_empty();
}

/// Attack 12: a client that never acknowledges.
#[test]
fn what_is_sent_and_not_settled_is_limited() {
    let limits = Limits {
        unacknowledged: 2,
        queued_messages: 3,
        ..Limits::default()
    };
    let mut cluster = Cluster::limited(limits);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    for i in 0..10 {
        cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
        cluster.next(client);
    }
    assert_eq!(cluster.broker(0).counters().stored_messages, 5);
    cluster.publish(0, "t", "0", Qos::AtMostOnce);
    assert!(cluster.next(client).is_none());
}

/// However many queues share a message, its body counts once; and the sum over all is limited.
#[test]
fn all_messages_together_are_limited() {
    let limits = Limits {
        message_bytes: 100_000,
        ..Limits::default()
    };
    let mut cluster = Cluster::limited(limits);
    let clients: Vec<_> = (0..20).map(|i| cluster.open(0, &i.to_string())).collect();
    for &client in &clients {
        cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
    }
    let message_bytes = |cluster: &mut Cluster| {
        let _ = cluster.broker(0).counters(); // brings the sum up to date
        cluster.directory.message_bytes()
    };
    let large = "x".repeat(70_000);
    cluster.publish(0, "t", &large, Qos::AtLeastOnce);
    // And every entry of a queue counts for what it takes itself.
    assert_eq!(message_bytes(&mut cluster), 70_001 + 20 * 64);
    cluster.publish(0, "t", &large, Qos::AtLeastOnce);
    assert_eq!(
        cluster.broker(0).counters().dropped_full,
        20,
        "that would be too much"
    );
    assert_eq!(message_bytes(&mut cluster), 70_001 + 20 * 64);
    // Those who are there and keep up are served all the same.
    let here = cluster.open(0, "here");
    cluster.subscribe(here, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", &large, Qos::AtLeastOnce);
    assert_eq!(cluster.drain(here).len(), 1);
    for i in 0..20 {
        let client = cluster.open(0, &i.to_string());
        assert_eq!(cluster.drain(client).len(), 1);
    }
    cluster.assert_empty();
}

/// Attack 17: whoever reads and never acknowledges holds no more than who never reads, and gets what
/// waits when it acknowledges.
#[test]
fn what_is_sent_and_not_settled_stays_in_the_account() {
    let limits = Limits {
        queued_bytes: 10_000,
        queued_messages: 1_000_000,
        ..Limits::default()
    };
    let mut cluster = Cluster::limited(limits);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::ExactlyOnce));
    let payload = "x".repeat(999);
    let mut tags = Vec::new();
    for _ in 0..1_000 {
        cluster.publish(0, "t", &payload, Qos::AtLeastOnce);
        tags.extend(cluster.next(client).map(|delivery| delivery.tag));
        let counters = cluster.broker(0).counters();
        // And one that waits until there is room.
        assert!(counters.stored_bytes <= 11_000, "{}", counters.stored_bytes);
    }
    assert_eq!(tags.len(), 10);
    assert_eq!(cluster.broker(0).counters().dropped_full, 989);
    // What is handed over has no body any more; what is settled neither.
    let now_ms = cluster.now_ms;
    assert!(cluster.broker(0).handed_over(client.key, tags[0]));
    for &tag in &tags[1..3] {
        assert!(
            cluster
                .broker(0)
                .settle(now_ms, client.key, tag, Outcome::Accepted)
        );
    }
    for _ in 0..5 {
        cluster.publish(0, "t", &payload, Qos::AtLeastOnce);
    }
    assert_eq!(cluster.broker(0).counters().dropped_full, 992);
    assert!(cluster.next(client).is_some());
}

/// Messages that came another way than by publishing, here retained ones, wait until the ledger has room.
#[test]
fn sending_stops_until_acknowledgements_free_room() {
    let limits = Limits {
        queued_bytes: 250,
        ..Limits::default()
    };
    let mut cluster = Cluster::limited(limits);
    let payload = "x".repeat(97);
    for topic in ["t/1", "t/2", "t/3", "t/4"] {
        cluster.retain(0, topic, &payload);
    }
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t/#", qos(Qos::AtLeastOnce));
    let first = cluster.next(client).expect("the first of four");
    assert!(cluster.next(client).is_some());
    assert!(cluster.next(client).is_none(), "300 bytes are too many");
    assert_eq!(cluster.broker(0).next_ready(), None, "nor is it ready");
    let now_ms = cluster.now_ms;
    let broker = cluster.broker(0);
    assert!(broker.settle(now_ms, client.key, first.tag, Outcome::Accepted));
    assert_eq!(
        broker.next_ready().map(|(consumer, _)| consumer),
        Some(client.consumer)
    );
    assert!(cluster.next(client).is_some());
    assert!(cluster.next(client).is_none());
}

/// Messages of QoS 0 and others have rooms of their own.
#[test]
fn qos_0_is_limited_by_bytes_and_age_and_takes_nobody_elses_room() {
    let limits = Limits {
        queued_messages: 2,
        queued_qos0_bytes: 100 * (64 + 10),
        queued_qos0_age_ms: 1_000,
        ..Limits::default()
    };
    for queue_full in [QueueFull::DropNewest, QueueFull::DropOldest] {
        let mut cluster = Cluster::limited(Limits {
            queue_full,
            ..limits.clone()
        });
        let client = cluster.open(0, "a");
        cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
        for i in 0..150 {
            cluster.publish(0, "t", &format!("{i:09}"), Qos::AtMostOnce);
        }
        for i in 150..153 {
            cluster.publish(0, "t", &format!("{i:09}"), Qos::AtLeastOnce);
        }
        let counters = cluster.broker(0).counters();
        let (dropped, stored) = match queue_full {
            QueueFull::DropNewest => (51, 102),
            // The third of QoS 1 makes room by the oldest, which are those of QoS 0 and the first.
            QueueFull::DropOldest => (151, 2),
        };
        assert_eq!(counters.dropped_full, dropped);
        assert_eq!(counters.stored_messages, stored);
        // All of QoS 0 that waits is late after its time, the others are not.
        cluster.now_ms += 1_001;
        let left = cluster.drain(client);
        let expected: &[&str] = match queue_full {
            QueueFull::DropNewest => &["000000150", "000000151"],
            QueueFull::DropOldest => &["000000151", "000000152"],
        };
        assert_eq!(left, expected);
        cluster.assert_empty();
    }
}

/// What a group has assigned it does not count any more, so its member does: bytes as well as number.
#[test]
fn a_member_on_demand_is_assigned_no_more_bytes_than_it_may_hold() {
    const QUEUE: &str = "$share/queue/q";
    for shards in [1, 2] {
        let limits = Limits {
            queued_bytes: 1_000,
            group_queued_messages: 10,
            ..Limits::default()
        };
        let mut cluster = Cluster::with(shards, limits, |_| Box::new(NoStore));
        cluster.keep(0, QUEUE);
        let member = cluster.consume(shards - 1, "member", QUEUE);
        cluster.demand(member, u32::MAX);
        cluster.run();
        let payload = "x".repeat(99);
        let mut published = 0;
        while !cluster
            .publish(0, "q", &payload, Qos::AtLeastOnce)
            .is_refused()
        {
            published += 1;
            assert!(published < 100, "the member takes all");
        }
        // Ten fill the queue, and eleven exceed what the member may hold.
        assert_eq!(published, 10 + 11, "{shards} shards");
        assert_eq!(cluster.pending(member), 11);
        // It goes on when half is free, until everything has come.
        let mut accepted = 0;
        while let Some(delivery) = cluster.next(member) {
            let now_ms = cluster.now_ms;
            let broker = cluster.broker(member.shard);
            assert!(broker.settle(now_ms, member.key, delivery.tag, Outcome::Accepted));
            cluster.collect(member.shard);
            cluster.run();
            accepted += 1;
        }
        assert_eq!(accepted, published, "{shards} shards");
    }
}

/// What has ended is read in the log for as long as a message before it is not settled. There is an end to it.
#[test]
fn subscriptions_that_have_ended_count_until_the_log_is_read() {
    let limits = Limits {
        subscriptions_per_session: 5,
        ..Limits::default()
    };
    let store = MemoryStore::new();
    let mut cluster = Cluster::with(1, limits, |_| Box::new(store.clone()));
    let client = cluster.open_with(0, "a", false, 3_600, None);
    cluster.subscribe(client, "held", qos(Qos::AtLeastOnce));
    cluster.publish(0, "held", "not settled", Qos::AtLeastOnce);
    let held = cluster.next(client).expect("it is here");
    let mut made = 0;
    let refused = loop {
        let (filter, now_ms) = (format!("f/{made}"), cluster.now_ms);
        let options = qos(Qos::AtLeastOnce);
        let done = cluster
            .broker(0)
            .subscribe(now_ms, client.key, &filter, options);
        if let Err(error) = done {
            break error;
        }
        made += 1;
        assert!(made < 100, "there is no end to it");
        cluster.publish(0, &filter, "x", Qos::AtLeastOnce);
        cluster.unsubscribe(client, &filter);
    };
    assert_eq!((made, refused), (4, SubscribeError::TooMany));
    // With the message settled there is room again.
    cluster.settle(client, held.tag, Outcome::Accepted);
    cluster.drain(client);
    cluster.pass(60_000);
    cluster.subscribe(client, "f/again", qos(Qos::AtLeastOnce));
}
