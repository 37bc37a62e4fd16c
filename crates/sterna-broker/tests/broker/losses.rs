//! Each message that a queue has lost is told once, with its reader and the reason.

use std::sync::{Arc, Mutex};

use sterna_broker::{
    Close, Limits, Loss, LossReason, LossWatcher, Outcome, Qos, QueueFull, SessionName,
};

use crate::cluster::{Cluster, expiring, qos};

type Losses = Arc<Mutex<Vec<(LossReason, String, String)>>>;

#[derive(Debug)]
struct Watcher(Losses);

impl LossWatcher for Watcher {
    fn lost(&self, loss: Loss<'_>) {
        let told = (loss.reason, loss.reader.to_owned(), loss.topic.to_owned());
        self.0.lock().expect("no panic").push(told);
    }
}

fn watched(limits: Limits) -> (Cluster, Losses) {
    let mut cluster = Cluster::limited(limits);
    let losses = Losses::default();
    let watcher = Box::new(Watcher(Arc::clone(&losses)));
    cluster.broker(0).set_loss_watcher(watcher);
    (cluster, losses)
}

/// Takes the losses that were told, and asserts that as many were counted.
fn told(cluster: &mut Cluster, losses: &Losses, before: &mut usize) -> Vec<(LossReason, String)> {
    let told = std::mem::take(&mut *losses.lock().expect("no panic"));
    let counters = cluster.broker(0).counters();
    let counted = counters.dropped_full
        + counters.dropped_late
        + counters.dropped_away
        + counters.dropped_expired
        + counters.dropped_undeliverable
        + counters.dropped_dead
        + counters.dropped_forbidden;
    *before += told.len();
    assert_eq!(counted, *before as u64);
    let of = |(reason, reader, topic): (_, String, _)| {
        // A session's by its identifier, or a group's by its filter.
        let reader = SessionName::parts_of(&reader).map_or(&*reader, |(id, _)| id);
        (reason, format!("{reader} {topic}"))
    };
    told.into_iter().map(of).collect()
}

#[test]
fn each_loss_is_told_with_its_reader_and_reason() {
    for queue_full in [QueueFull::DropNewest, QueueFull::DropOldest] {
        let (mut cluster, losses) = watched(Limits {
            queued_messages: 1,
            group_queued_messages: 1,
            queue_full,
            ..Limits::default()
        });
        let mut count = 0;
        let client = cluster.open(0, "a");
        cluster.subscribe(client, "t/+", qos(Qos::AtLeastOnce));
        cluster.publish(0, "t/1", "x", Qos::AtLeastOnce);
        cluster.publish(0, "t/2", "x", Qos::AtLeastOnce);
        let lost = if queue_full == QueueFull::DropNewest {
            "a t/2"
        } else {
            "a t/1"
        };
        let expected = [(LossReason::Full, lost.to_owned())];
        assert_eq!(told(&mut cluster, &losses, &mut count), expected);

        cluster.drain(client);
        cluster.publish(0, "t/5", "x", Qos::AtLeastOnce);
        let delivery = cluster.next(client).expect("a message");
        cluster.settle(client, delivery.tag, Outcome::Undeliverable);
        let expected = [(LossReason::Undeliverable, "a t/5".to_owned())];
        assert_eq!(told(&mut cluster, &losses, &mut count), expected);

        cluster.close(client, Close::LOST);
        cluster.publish(0, "t/3", "x", Qos::AtMostOnce);
        let expected = [(LossReason::Away, "a t/3".to_owned())];
        assert_eq!(told(&mut cluster, &losses, &mut count), expected);

        let soon_ms = cluster.now_ms + 1_000;
        cluster.send(0, None, expiring("t/4", "x", Qos::AtLeastOnce, soon_ms));
        cluster.pass(60_000);
        let expected = [(LossReason::Expired, "a t/4".to_owned())];
        assert_eq!(told(&mut cluster, &losses, &mut count), expected);

        let member = cluster.open(0, "b");
        cluster.subscribe(member, "$share/g/u/+", qos(Qos::AtLeastOnce));
        cluster.close(member, Close::LOST);
        cluster.publish(0, "u/1", "x", Qos::AtLeastOnce);
        cluster.publish(0, "u/2", "x", Qos::AtLeastOnce);
        let lost = if queue_full == QueueFull::DropNewest {
            "$share/g/u/+ u/2"
        } else {
            "$share/g/u/+ u/1"
        };
        let expected = [(LossReason::Full, lost.to_owned())];
        assert_eq!(told(&mut cluster, &losses, &mut count), expected);
    }
}

#[test]
fn shared_subscriptions_are_counted_among_all() {
    let mut cluster = Cluster::new(2);
    let counted = |cluster: &mut Cluster, shard| {
        let counters = cluster.broker(shard).counters();
        (counters.subscriptions, counters.shared_subscriptions)
    };
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "$share/g/t", qos(Qos::AtLeastOnce));
    cluster.subscribe(client, "$share/g/t", qos(Qos::AtMostOnce));
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    assert_eq!(counted(&mut cluster, 0), (2, 1));
    cluster.close(client, Close::LOST);
    let client = cluster.open(1, "a");
    assert_eq!(counted(&mut cluster, 0), (0, 0), "the session has moved");
    assert_eq!(counted(&mut cluster, 1), (2, 1));
    cluster.unsubscribe(client, "$share/g/t");
    assert_eq!(counted(&mut cluster, 1), (1, 0));
    cluster.close(
        client,
        Close {
            expiry_s: Some(0),
            ..Close::LOST
        },
    );
    assert_eq!(counted(&mut cluster, 1), (0, 0));
}
