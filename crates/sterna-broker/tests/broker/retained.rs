//! Retained messages.

use sterna_broker::{
    Limits, Publication, PublishRefusal, Qos, RETAINED_MESSAGE_BYTES, RetainHandling, Retention,
    SubscribeOptions,
};
use sterna_store::MemoryStore;

use crate::cluster::{Cluster, expiring, message, qos, text};

fn handling(retain_handling: RetainHandling) -> SubscribeOptions {
    SubscribeOptions {
        retain_handling,
        ..qos(Qos::AtLeastOnce)
    }
}

/// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-9]
#[test]
fn the_last_retained_message_of_each_topic_is_kept() {
    let mut cluster = Cluster::new(1);
    for (topic, payload) in [("a/1", "old"), ("a/1", "new"), ("a/2", "x"), ("b", "y")] {
        assert_eq!(
            cluster.retain(0, topic, payload).retention,
            Retention::Stored
        );
    }
    cluster.publish(0, "a/1", "not retained", Qos::AtLeastOnce);
    let client = cluster.open(0, "c");
    assert_eq!(
        cluster
            .subscribe(client, "a/+", qos(Qos::AtLeastOnce))
            .retained,
        2
    );
    let mut deliveries = cluster.take(client);
    deliveries.sort_by_key(text);
    let seen: Vec<_> = deliveries
        .iter()
        .map(|d| (d.message.topic().to_owned(), text(d), d.retain, d.qos))
        .collect();
    assert_eq!(
        seen,
        [
            ("a/1".into(), "new".into(), true, Qos::AtLeastOnce),
            ("a/2".into(), "x".into(), true, Qos::AtLeastOnce),
        ]
    );
    // An empty payload is delivered like any other, and clears.
    assert_eq!(cluster.retain(0, "a/1", "").retention, Retention::Cleared);
    assert_eq!(cluster.retain(0, "c", "").retention, Retention::Absent);
    assert_eq!(cluster.drain(client), [""]);
    assert_eq!(
        cluster
            .subscribe(client, "a/1", qos(Qos::AtLeastOnce))
            .retained,
        0
    );
    assert_eq!(cluster.directory.retained(), (2, 6));
}

/// [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]
#[test]
fn retain_handling_decides_when_they_are_sent() {
    let mut cluster = Cluster::new(1);
    cluster.retain(0, "a", "x");
    let client = cluster.open(0, "c");
    let mut count = |filter, option| cluster.subscribe(client, filter, handling(option)).retained;
    assert_eq!(count("a", RetainHandling::Never), 0);
    assert_eq!(count("a", RetainHandling::IfNew), 0);
    assert_eq!(count("a", RetainHandling::Always), 1);
    assert_eq!(count("a", RetainHandling::Always), 1);
    assert_eq!(count("#", RetainHandling::IfNew), 1);
    assert_eq!(count("#", RetainHandling::IfNew), 0);
}

#[test]
fn no_local_holds_for_retained_messages_too() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "c");
    cluster.send(
        0,
        Some(client.key),
        message("a", "x", Qos::AtLeastOnce, true),
    );
    let options = SubscribeOptions {
        no_local: true,
        ..qos(Qos::AtLeastOnce)
    };
    assert_eq!(cluster.subscribe(client, "a", options).retained, 0);
    assert_eq!(
        cluster
            .subscribe(client, "+", qos(Qos::AtLeastOnce))
            .retained,
        1
    );
}

/// [MQTT-3.3.2-5]
#[test]
fn expired_retained_messages_are_neither_sent_nor_kept() {
    let mut cluster = Cluster::new(1);
    let now_ms = cluster.now_ms;
    for (payload, after_ms) in [("x", 5_000), ("y", 50_000)] {
        let source = expiring(payload, payload, Qos::AtLeastOnce, now_ms + after_ms);
        let mut header = source.header();
        header.retain = true;
        let message = sterna_broker::Message::copy(payload, &[], b"p", header).unwrap();
        cluster
            .broker(0)
            .publish(now_ms, Publication::new(None, message));
    }
    cluster.now_ms += 5_000;
    let client = cluster.open(0, "c");
    assert_eq!(
        cluster
            .subscribe(client, "#", qos(Qos::AtLeastOnce))
            .retained,
        1
    );
    assert_eq!(cluster.directory.retained().0, 2);
    cluster.pass(15_000);
    assert_eq!(cluster.directory.retained().0, 1);
    // A replaced message's expiry is forgotten with it.
    cluster.retain(0, "y", "lasting");
    cluster.pass(100_000);
    assert_eq!(cluster.directory.retained().0, 1);
    assert_eq!(cluster.broker(0).deadline_ms(), None);
}

/// However many expire together, a call drops some of them: nobody can append meanwhile.
#[test]
fn many_retained_messages_expire_in_parts() {
    const MESSAGES: usize = 3_000;
    const MOST_AT_ONCE: usize = 1_024;
    let mut cluster = Cluster::new(1);
    let expires_at_ms = cluster.now_ms + 5_000;
    for number in 0..MESSAGES {
        let topic = format!("t/{number}");
        let mut header = expiring(&topic, "x", Qos::AtLeastOnce, expires_at_ms).header();
        header.retain = true;
        let message = sterna_broker::Message::copy(&topic, &[], b"x", header).unwrap();
        let now_ms = cluster.now_ms;
        let publication = Publication::new(None, message);
        cluster.broker(0).publish(now_ms, publication);
    }
    cluster.now_ms += 20_000;
    let mut left = cluster.directory.retained().0;
    assert_eq!(left, MESSAGES);
    while left > 0 {
        let now_ms = cluster.now_ms;
        assert!(cluster.broker(0).deadline_ms() <= Some(now_ms), "{left}");
        cluster.broker(0).timeout(now_ms);
        let dropped = left - cluster.directory.retained().0;
        assert!((1..=MOST_AT_ONCE).contains(&dropped), "{dropped}");
        left -= dropped;
    }
}

/// Attack 10: retained messages on ever new topics.
/// A tree of topics takes memory for each level, which counts for the limit of bytes.
#[test]
fn long_topics_count_for_the_limit_until_their_messages_are_gone() {
    let mut cluster = Cluster::limited(Limits {
        retained_bytes: 40_000,
        ..Limits::default()
    });
    let deep = |number: u32| format!("{number}{}", "/x".repeat(100));
    assert_eq!(
        cluster.retain(0, &deep(0), "1").retention,
        Retention::Stored
    );
    let one = cluster.directory.retained_topic_bytes();
    assert!(one > 10_000, "{one}");
    assert_eq!(
        cluster.retain(0, &deep(0), "2").retention,
        Retention::Stored
    );
    assert_eq!(
        cluster.retain(0, &deep(1), "1").retention,
        Retention::Stored
    );
    assert_eq!(
        cluster.retain(0, &deep(2), "1").retention,
        Retention::Refused
    );
    assert_eq!(cluster.retain(0, "short", "1").retention, Retention::Stored);
    assert_eq!(cluster.directory.retained_topic_bytes(), 2 * one);
    assert!(cluster.broker(0).clear_retained(&deep(0)));
    assert_eq!(
        cluster.retain(0, &deep(2), "1").retention,
        Retention::Stored
    );
    for topic in [deep(1), deep(2)] {
        cluster.retain(0, &topic, "");
    }
    assert_eq!(cluster.directory.retained_topic_bytes(), 0);
    assert_eq!(cluster.directory.retained().0, 1);
}

#[test]
fn their_number_and_bytes_are_limited() {
    let mut cluster = Cluster::limited(Limits {
        retained_messages: 2,
        retained_bytes: 20 + 2 * RETAINED_MESSAGE_BYTES,
        retained_deliveries: 1,
        ..Limits::default()
    });
    assert_eq!(cluster.retain(0, "a", "1").retention, Retention::Stored);
    assert_eq!(cluster.retain(0, "b", "1").retention, Retention::Stored);
    let client = cluster.open(0, "c");
    assert_eq!(
        cluster
            .subscribe(client, "#", qos(Qos::AtLeastOnce))
            .retained,
        1
    );
    cluster.drain(client);
    // One too many is delivered, but not retained.
    assert_eq!(cluster.retain(0, "c", "1").retention, Retention::Refused);
    assert_eq!(cluster.drain(client), ["1"]);
    assert_eq!(
        cluster.retain(0, "a", "0123456789012345678").retention,
        Retention::Refused
    );
    assert_eq!(
        cluster.retain(0, "a", "0123456789").retention,
        Retention::Stored
    );
    assert_eq!(cluster.directory.retained(), (2, 13));
    for topic in ["a", "b"] {
        cluster.retain(0, topic, "");
    }
    cluster.drain(client);
    assert_eq!(cluster.directory.retained(), (0, 0));
    cluster.assert_empty();
}

#[test]
fn reports_of_the_broker_take_no_place_of_a_message() {
    let limits_of_two = [
        Limits {
            retained_messages: 2,
            ..Limits::default()
        },
        Limits {
            retained_bytes: 2 * (RETAINED_MESSAGE_BYTES + 2),
            ..Limits::default()
        },
    ];
    for limits in limits_of_two {
        let mut cluster = Cluster::limited(limits);
        let report = |cluster: &mut Cluster, number: u32| {
            let topic = format!("$SYS/broker/{number}");
            assert_eq!(
                cluster.retain(0, &topic, "1").retention,
                Retention::Stored,
                "{topic}"
            );
        };
        for number in 0..5 {
            report(&mut cluster, number);
        }
        assert_eq!(cluster.retain(0, "a", "1").retention, Retention::Stored);
        assert_eq!(cluster.retain(0, "b", "1").retention, Retention::Stored);
        assert_eq!(cluster.retain(0, "c", "1").retention, Retention::Refused);
        for number in 0..10 {
            report(&mut cluster, number);
        }
        assert_eq!(cluster.directory.retained_of_clients(), (2, 4));
        cluster.retain(0, "$SYS/broker/1", "");
        cluster.retain(0, "a", "");
        assert_eq!(cluster.retain(0, "c", "1").retention, Retention::Stored);
        assert_eq!(cluster.directory.retained_of_clients().0, 2);
    }
}

/// Retained copies wait beside the live messages' limit, not within it.
#[test]
fn many_retained_messages_leave_room_for_live_ones() {
    let mut cluster = Cluster::limited(Limits {
        queued_messages: 5,
        ..Limits::default()
    });
    for i in 0..100 {
        cluster.retain(0, &format!("r/{i}"), "x");
    }
    let client = cluster.open(0, "c");
    assert_eq!(
        cluster
            .subscribe(client, "#", qos(Qos::AtLeastOnce))
            .retained,
        100
    );
    for i in 0..7 {
        cluster.publish(0, "live", &i.to_string(), Qos::AtLeastOnce);
    }
    assert_eq!(cluster.drain(client).len(), 105);
    assert_eq!(cluster.broker(0).counters().dropped_full, 2);
}

/// `$SYS` does not outlive the process, so it needs no room, and operators need it then.
#[test]
fn what_the_broker_says_of_itself_is_retained_while_the_store_is_full() {
    let store = MemoryStore::new();
    let limits = Limits::default();
    let mut cluster = Cluster::with(1, limits, |_| Box::new(store.clone()));
    store.set_full(true);
    let routed = cluster.retain(0, "$SYS/broker/uptime", "1 seconds");
    assert_eq!(
        (routed.retention, routed.refused),
        (Retention::Stored, None)
    );
    let routed = cluster.retain(0, "a", "of a client");
    assert_eq!(routed.refused, Some(PublishRefusal::StoreFull));
}

/// Small messages fill the limit of bytes, too.
#[test]
fn each_counts_beside_its_body() {
    let mut cluster = Cluster::limited(Limits {
        retained_bytes: 100 * RETAINED_MESSAGE_BYTES,
        ..Limits::default()
    });
    let kept = (0..200).take_while(|number| {
        cluster.retain(0, &format!("t{number}"), "1").retention == Retention::Stored
    });
    assert_eq!(kept.count(), 99);
}
