//! What happens at the limits.

use sterna_broker::{Close, Limits, Qos, QueueFull};

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
