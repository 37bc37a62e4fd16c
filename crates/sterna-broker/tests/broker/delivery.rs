//! Queues, the ledger, and what comes after a reconnect.

use sterna_broker::{Close, Outcome, Publication, Qos, Unacknowledged};

use crate::cluster::{Cluster, expiring, message, qos, text};

/// A shard knows when it has published more than another one has taken up. Letters are so small that the other one may
/// drain its queues in between.
#[test]
fn a_shard_is_ahead_of_one_that_takes_nothing_up() {
    let mut cluster = Cluster::new(2);
    let reader = cluster.open(1, "reader");
    cluster.subscribe(reader, "t", qos(Qos::AtMostOnce));
    let now_ms = cluster.now_ms;
    let publish = |cluster: &mut Cluster, count: usize| {
        let broker = cluster.broker(0);
        for _ in 0..count {
            let message = message("t", "x", Qos::AtMostOnce, false);
            let origin = None;
            broker.publish(now_ms, Publication::new(origin, message));
        }
        let before = broker.is_ahead();
        let letters: Vec<_> = broker.take_mail().map(|(_, letter)| letter).collect();
        (before, broker.is_ahead(), letters)
    };
    let (before, after, first) = publish(&mut cluster, 1_000);
    assert_eq!((before, after, first.len()), (false, false, 4));
    let (before, after, second) = publish(&mut cluster, 24);
    assert_eq!((before, after, second.len()), (false, true, 1));
    for letter in first {
        cluster.broker(1).mail(now_ms, letter);
    }
    assert_eq!(cluster.pending(reader), 1_000);
    assert!(!cluster.broker(0).is_ahead());
    let (before, ..) = publish(&mut cluster, 1_024);
    assert!(before, "what it has not sent yet counts");
}

/// [MQTT-4.3.2-3] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1]
#[test]
fn what_was_not_acknowledged_is_sent_again_in_its_order() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::ExactlyOnce));
    for payload in ["1", "2", "3", "4", "5"] {
        cluster.publish(0, "t", payload, Qos::AtLeastOnce);
    }
    let tags: Vec<_> = (0..4).map(|_| cluster.next(client).unwrap().tag).collect();
    // Acknowledged out of order, one refused.
    cluster.settle(client, tags[1], Outcome::Accepted);
    cluster.settle(client, tags[3], Outcome::Rejected(0x80));
    cluster.close(client, Close::LOST);

    let client = cluster.open(0, "a");
    let again: Vec<_> = cluster
        .broker(0)
        .unacknowledged(client.key)
        .into_iter()
        .map(|entry| match entry {
            Unacknowledged::Sent(delivery) => (delivery.tag, text(&delivery), delivery.redelivered),
            Unacknowledged::HandedOver { .. } => panic!("nothing was handed over"),
        })
        .collect();
    assert_eq!(
        again,
        [(tags[0], "1".into(), true), (tags[2], "3".into(), true)]
    );
    // What was never sent is still pending, and not redelivered.
    let fresh = cluster.next(client).unwrap();
    assert_eq!((text(&fresh).as_str(), fresh.redelivered), ("5", false));
    let now_ms = cluster.now_ms;
    assert!(
        !cluster
            .broker(0)
            .settle(now_ms, client.key, tags[1], Outcome::Accepted)
    );
    for tag in [tags[0], tags[2], fresh.tag] {
        cluster.settle(client, tag, Outcome::Accepted);
    }
    drop(fresh);
    cluster.assert_empty();
}

/// [MQTT-4.3.3-3] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.3.3-13]
#[test]
fn exactly_once_goes_from_sent_to_handed_over_to_settled() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::ExactlyOnce));
    for payload in ["1", "2", "3"] {
        cluster.publish(0, "t", payload, Qos::ExactlyOnce);
    }
    let deliveries = cluster.take(client);
    let tags: Vec<_> = deliveries.iter().map(|delivery| delivery.tag).collect();
    drop(deliveries);
    assert!(cluster.broker(0).handed_over(client.key, tags[1]));
    assert!(
        cluster.broker(0).handed_over(client.key, tags[1]),
        "a repeated PUBREC is harmless"
    );
    let stored_bytes = cluster.broker(0).counters().stored_bytes;
    assert_eq!(stored_bytes, 4, "the payload is dropped at the hand-over");
    cluster.close(client, Close::LOST);

    let client = cluster.open(0, "a");
    let entries = cluster.broker(0).unacknowledged(client.key);
    let phases: Vec<_> = entries
        .iter()
        .map(|entry| (entry.tag(), entry.is_handed_over()))
        .collect();
    assert_eq!(
        phases,
        [(tags[0], false), (tags[1], true), (tags[2], false),]
    );
    let one = cluster
        .broker(0)
        .unacknowledged_by_tag(client.key, tags[2])
        .unwrap();
    assert!(matches!(one, Unacknowledged::Sent(delivery) if text(&delivery) == "3"));
    drop(entries);
    for tag in tags {
        assert!(cluster.broker(0).handed_over(client.key, tag));
        cluster.settle(client, tag, Outcome::Accepted);
        assert!(!cluster.broker(0).handed_over(client.key, tag));
    }
    cluster.assert_empty();
}

/// [MQTT-4.4.0-2]: a refused message is not sent again. Released ones go to the front.
#[test]
fn outcomes_decide_what_becomes_of_a_delivery() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    for payload in ["1", "2", "3"] {
        cluster.publish(0, "t", payload, Qos::AtLeastOnce);
    }
    let first = cluster.next(client).unwrap();
    let second = cluster.next(client).unwrap();
    cluster.settle(client, second.tag, Outcome::Released);
    cluster.settle(client, first.tag, Outcome::Released);
    let again = cluster.take(client);
    let seen: Vec<_> = again
        .iter()
        .map(|delivery| (text(delivery), delivery.redelivered))
        .collect();
    assert_eq!(
        seen,
        [("1".into(), true), ("2".into(), true), ("3".into(), false)]
    );
    cluster.settle(client, again[0].tag, Outcome::Rejected(0x87));
    assert_eq!(cluster.broker(0).unacknowledged(client.key).len(), 2);
    let counters = cluster.broker(0).counters();
    assert_eq!((counters.sent_messages, counters.sent_bytes), (3, 3));
}

#[test]
fn made_up_tags_settle_nothing() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    let other = cluster.open(0, "b");
    for client in [client, other] {
        cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    }
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    cluster.publish(0, "t", "2", Qos::AtLeastOnce);
    let tag = cluster.next(other).unwrap().tag;
    let now_ms = cluster.now_ms;
    // Another session's, a pending one's, and numbers beyond everything.
    for tag in [tag, tag + 1, 0, 1, u64::MAX, 1 << 32, (1 << 32) | 1, 300] {
        assert!(
            !cluster
                .broker(0)
                .settle(now_ms, client.key, tag, Outcome::Accepted),
            "{tag}"
        );
        assert!(!cluster.broker(0).handed_over(client.key, tag));
        assert!(
            cluster
                .broker(0)
                .unacknowledged_by_tag(client.key, tag)
                .is_none()
        );
    }
    assert_eq!(cluster.drain(client), ["1", "2"]);
}

/// [MQTT-3.3.2-5] [MQTT-3.3.2-6] [MQTT-4.3.3-7]
#[test]
fn expired_messages_are_dropped_unless_they_were_sent() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::ExactlyOnce));
    let now_ms = cluster.now_ms;
    for (payload, after_ms) in [("sent", 1_000), ("short", 1_000), ("long", 10_000)] {
        cluster.send(
            0,
            None,
            expiring("t", payload, Qos::ExactlyOnce, now_ms + after_ms),
        );
    }
    assert_eq!(text(&cluster.next(client).unwrap()), "sent");
    cluster.pass(2_001);
    let now_ms = cluster.now_ms;
    assert_eq!(
        (cluster.broker(0).next(now_ms, client.key)).map(|next| next.qos()),
        Some(Qos::ExactlyOnce)
    );
    let delivery = cluster.next(client).unwrap();
    assert_eq!(text(&delivery), "long");
    assert_eq!(delivery.message.expiry_left_s(now_ms), Some(8));
    assert!(cluster.next(client).is_none());
    assert_eq!(cluster.broker(0).counters().dropped_expired, 1);
    assert_eq!(cluster.broker(0).unacknowledged(client.key).len(), 2);
}

/// [MQTT-3.3.2-5]: expired messages of a session that is away give their memory back.
#[test]
fn queues_of_absent_sessions_are_swept() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    let now_ms = cluster.now_ms;
    cluster.send(
        0,
        None,
        expiring("t", "before", Qos::AtLeastOnce, now_ms + 60_000),
    );
    cluster.close(client, Close::LOST);
    for i in 0..100 {
        cluster.send(
            0,
            None,
            expiring("t", "while", Qos::AtLeastOnce, now_ms + 50_000 + i),
        );
    }
    cluster.publish(0, "t", "stays", Qos::AtLeastOnce);
    assert_eq!(cluster.broker(0).counters().stored_messages, 102);
    cluster.pass(58_000);
    assert_eq!(cluster.broker(0).counters().stored_messages, 2);
    cluster.pass(10_000);
    assert_eq!(cluster.broker(0).counters().stored_messages, 1);
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client), ["stays"]);
}

/// QoS 0 messages don't wait for a consumer that is away, and don't outlast its connection.
#[test]
fn at_most_once_is_only_for_those_who_are_there() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "0", Qos::AtMostOnce);
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    cluster.close(client, Close::LOST);
    cluster.publish(0, "t", "2", Qos::AtMostOnce);
    cluster.publish(0, "t", "3", Qos::AtLeastOnce);
    let client = cluster.open(0, "a");
    assert_eq!(cluster.drain(client), ["1", "3"]);
    assert_eq!(cluster.broker(0).counters().dropped_away, 2);
}

#[test]
fn ready_sessions_come_in_turn_until_drained_or_parked() {
    let mut cluster = Cluster::new(1);
    let a = cluster.open(0, "a");
    let b = cluster.open(0, "b");
    for client in [a, b] {
        cluster.subscribe(client, "t", qos(Qos::AtMostOnce));
    }
    assert_eq!(cluster.broker(0).next_ready(), None);
    for payload in ["1", "2"] {
        cluster.publish(0, "t", payload, Qos::AtMostOnce);
    }
    let ready = |cluster: &mut Cluster| cluster.broker(0).next_ready().map(|(_, key)| key);
    assert_eq!(ready(&mut cluster), Some(a.key));
    cluster.next(a);
    assert_eq!(
        ready(&mut cluster),
        Some(b.key),
        "neither drained nor parked: after the others"
    );
    cluster.broker(0).park(b.key);
    assert_eq!(ready(&mut cluster), Some(a.key));
    cluster.next(a);
    assert_eq!(ready(&mut cluster), None);
    cluster.publish(0, "t", "3", Qos::AtMostOnce);
    assert_eq!(ready(&mut cluster), Some(a.key));
    cluster.next(a);
    assert_eq!(ready(&mut cluster), None);
    cluster.broker(0).unpark(b.key);
    assert_eq!(cluster.broker(0).next_ready(), Some((b.consumer, b.key)));
    assert_eq!(cluster.drain(b), ["1", "2", "3"]);
    assert_eq!(ready(&mut cluster), None);
}
