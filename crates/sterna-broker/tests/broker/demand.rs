//! Consumers that take messages on demand.

use sterna_broker::{Close, Outcome, Qos, SessionName};

use crate::cluster::{Client, Cluster, expiring, qos, text};

const QUEUE: &str = "$share/queue/q/#";

fn filled(shards: u16, messages: usize) -> Cluster {
    let mut cluster = Cluster::new(shards);
    cluster.keep(0, QUEUE);
    for i in 0..messages {
        let shard = i as u16 % shards;
        cluster.publish(shard, "q", &format!("{i:02}"), Qos::AtLeastOnce);
    }
    cluster
}

fn demand(cluster: &mut Cluster, client: Client, credit: u32) {
    cluster.demand(client, credit);
    cluster.run();
}

#[test]
fn a_consumer_is_given_what_it_asks_for() {
    for shards in 1..=3 {
        let mut cluster = filled(shards, 60);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        assert!(cluster.next(consumer).is_none(), "nothing was asked for");
        demand(&mut cluster, consumer, 50);
        assert_eq!(cluster.pending(consumer), 50, "more than a group's window");
        // Settling gives nothing.
        let deliveries = cluster.take(consumer);
        for delivery in &deliveries {
            cluster.settle(consumer, delivery.tag, Outcome::Accepted);
        }
        assert_eq!(deliveries.len(), 50);
        assert!(cluster.next(consumer).is_none());
        // The same number again is so many more, as those before have been handed out.
        demand(&mut cluster, consumer, 3);
        demand(&mut cluster, consumer, 3);
        assert_eq!(cluster.take(consumer).len(), 3);
        demand(&mut cluster, consumer, 100);
        assert_eq!(cluster.take(consumer).len(), 7);
        for i in 0..93 {
            cluster.publish(0, "q", &i.to_string(), Qos::AtMostOnce);
        }
        assert_eq!(cluster.take(consumer).len(), 93, "the rest of the hundred");
        cluster.publish(0, "q", "x", Qos::AtMostOnce);
        assert!(cluster.next(consumer).is_none());
    }
}

#[test]
fn less_credit_gives_back_what_is_beyond_it_in_order() {
    for shards in 1..=3 {
        let mut cluster = filled(shards, 20);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        let other = cluster.consume(0, "d", QUEUE);
        demand(&mut cluster, consumer, 15);
        assert_eq!(text(&cluster.next(consumer).unwrap()), "00");
        demand(&mut cluster, consumer, 4);
        assert_eq!(cluster.pending(consumer), 4);
        demand(&mut cluster, other, 100);
        let taken: Vec<_> = cluster.take(other).iter().map(text).collect();
        let expected: Vec<_> = (5..20).map(|i| format!("{i:02}")).collect();
        assert_eq!(taken, expected);
        let taken: Vec<_> = cluster.take(consumer).iter().map(text).collect();
        assert_eq!(taken, ["01", "02", "03", "04"]);
        // What was not assigned is taken back as well.
        demand(&mut cluster, consumer, 10);
        demand(&mut cluster, consumer, 1);
        cluster.publish(0, "q", "a", Qos::AtMostOnce);
        cluster.publish(0, "q", "b", Qos::AtMostOnce);
        assert_eq!((cluster.pending(consumer), cluster.pending(other)), (1, 1));
    }
}

/// With letters under way: whatever is asked for meanwhile, in the end it is what was asked last.
#[test]
fn credit_that_changes_faster_than_mail_ends_as_asked() {
    for shards in 1..=3 {
        for last in [0, 1, 5, 30] {
            let mut cluster = filled(shards, 20);
            let consumer = cluster.consume(shards - 1, "c", QUEUE);
            for credit in [10, 2, 7, 0, 19, 3, 3, 12, last] {
                cluster.demand(consumer, credit);
                // One letter at most arrives in between.
                if let Some(&(from, to)) = cluster.pairs().first() {
                    cluster.deliver_one(from, to);
                }
            }
            cluster.run();
            assert_eq!(cluster.pending(consumer), last.min(20) as usize);
            for i in 0..15 {
                cluster.publish(0, "q", &format!("x{i}"), Qos::AtMostOnce);
            }
            assert_eq!(cluster.pending(consumer), last as usize);
            // Nothing is lost or doubled.
            let mut taken = cluster.drain(consumer);
            demand(&mut cluster, consumer, 100);
            taken.extend(cluster.drain(consumer));
            taken.sort();
            taken.dedup();
            assert_eq!(taken.len(), 35);
            cluster.assert_empty();
        }
    }
}

#[test]
fn drained_is_told_after_all_that_was_assigned() {
    for shards in 1..=3 {
        for messages in [0, 3, 20] {
            let mut cluster = filled(shards, messages);
            let consumer = cluster.consume(shards - 1, "c", QUEUE);
            cluster.demand(consumer, 10);
            cluster.start_drain(consumer);
            cluster.run();
            assert_eq!(cluster.drained(consumer), 1);
            assert_eq!(cluster.take(consumer).len(), messages.min(10));
            // Nothing more until it asks again.
            cluster.publish(0, "q", "x", Qos::AtMostOnce);
            assert!(cluster.next(consumer).is_none());
            demand(&mut cluster, consumer, 1);
            assert_eq!(cluster.take(consumer).len(), 1);
            assert_eq!(cluster.drained(consumer), 1);
        }
    }
}

#[test]
fn drained_is_told_at_once_where_no_other_shard_is_asked() {
    let mut cluster = filled(1, 3);
    let consumer = cluster.consume(0, "c", QUEUE);
    cluster.demand(consumer, 2);
    cluster.start_drain(consumer);
    assert_eq!(
        (cluster.drained(consumer), cluster.pending(consumer)),
        (1, 2)
    );
    // Nor groups at all: its own queue is its own business.
    let plain = cluster.open_on_demand(0, "plain", None);
    cluster.subscribe(plain, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "0", Qos::AtLeastOnce);
    cluster.start_drain(plain);
    assert_eq!((cluster.drained(plain), cluster.pending(plain)), (1, 1));
    assert_eq!(cluster.drain(plain), ["0"]);
    // Nor demand.
    let client = cluster.open(0, "client");
    cluster.start_drain(client);
    assert_eq!(cluster.drained(client), 1);
}

/// A consumer may say what it takes before its session has come from another shard.
#[test]
fn demand_and_drain_wait_for_a_session_that_moves() {
    let mut cluster = filled(3, 5);
    let member = cluster.open(0, "m");
    cluster.subscribe(member, QUEUE, qos(Qos::AtLeastOnce));
    cluster.close(member, Close::LOST);
    let request = sterna_broker::OpenSession {
        name: SessionName::new(None, "m"),
        clean_start: false,
        expiry_s: 10,
        consumer: sterna_broker::ConsumerId::default(),
        will: None,
        on_demand: true,
        selector: None,
    };
    let (consumer, opened) = cluster.start_request(1, request);
    let sterna_broker::Opened::Pending { session: key } = opened else {
        panic!("it is on another shard");
    };
    let client = Client {
        shard: 1,
        key,
        consumer,
        present: true,
    };
    cluster.demand(client, 2);
    cluster.start_drain(client);
    assert_eq!(cluster.drained(client), 0);
    cluster.run();
    assert_eq!(cluster.drained(client), 1);
    demand(&mut cluster, client, 2);
    assert_eq!(cluster.take(client).len(), 2);
}

#[test]
fn messages_of_its_own_queue_use_credit_too() {
    for shards in 1..=2 {
        let mut cluster = filled(shards, 0);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        cluster.subscribe(consumer, "t", qos(Qos::AtLeastOnce));
        demand(&mut cluster, consumer, 2);
        cluster.publish(0, "t", "own", Qos::AtMostOnce);
        assert_eq!(cluster.take(consumer).len(), 1);
        cluster.run();
        for _ in 0..2 {
            cluster.publish(0, "q", "x", Qos::AtMostOnce);
        }
        assert_eq!(cluster.pending(consumer), 1);
    }
}

/// What expires before it is handed out has used no credit.
#[test]
fn an_expired_message_gives_its_credit_to_another() {
    for shards in 1..=2 {
        let mut cluster = filled(shards, 0);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        demand(&mut cluster, consumer, 1);
        let expires_at_ms = cluster.now_ms + 10;
        cluster.send(
            0,
            None,
            expiring("q", "old", Qos::AtLeastOnce, expires_at_ms),
        );
        cluster.run();
        cluster.publish(0, "q", "new", Qos::AtLeastOnce);
        assert_eq!(cluster.pending(consumer), 1);
        cluster.now_ms += 10;
        assert!(cluster.next(consumer).is_none());
        cluster.run();
        assert_eq!(cluster.drain(consumer), ["new"]);
        cluster.publish(0, "q", "more", Qos::AtLeastOnce);
        assert!(cluster.next(consumer).is_none());
    }
}

#[test]
fn who_leaves_the_group_is_owed_nothing_and_may_come_back() {
    for shards in 1..=3 {
        let mut cluster = filled(shards, 10);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        demand(&mut cluster, consumer, 4);
        cluster.demand(consumer, 8);
        cluster.start_drain(consumer);
        cluster.unsubscribe(consumer, QUEUE);
        assert_eq!(cluster.drained(consumer), 1);
        assert_eq!(cluster.pending(consumer), 0);
        cluster.subscribe(consumer, QUEUE, qos(Qos::AtLeastOnce));
        demand(&mut cluster, consumer, 10);
        let expected: Vec<_> = (0..10).map(|i| format!("{i:02}")).collect();
        assert_eq!(cluster.drain(consumer), expected);
        cluster.assert_empty();
    }
}

/// Each is assigned its share, and no more than it asked for in all.
#[test]
fn two_groups_share_the_credit_of_one_session() {
    for shards in 1..=3 {
        let mut cluster = filled(shards, 10);
        let other = "$share/other/r";
        cluster.keep(shards - 1, other);
        for i in 0..10 {
            cluster.publish(0, "r", &i.to_string(), Qos::AtMostOnce);
        }
        let consumer = cluster.consume(0, "c", QUEUE);
        cluster.subscribe(consumer, other, qos(Qos::AtLeastOnce));
        demand(&mut cluster, consumer, 7);
        assert_eq!(cluster.pending(consumer), 7);
        demand(&mut cluster, consumer, 2);
        assert_eq!(cluster.pending(consumer), 2);
        let mut all = cluster.drain(consumer).len();
        demand(&mut cluster, consumer, 30);
        all += cluster.drain(consumer).len();
        assert_eq!(all, 20);
        cluster.assert_empty();
    }
}

/// What one group has no messages for doesn't keep another from giving its own, for ever.
#[test]
fn an_empty_group_does_not_hold_all_of_the_credit() {
    for shards in 1..=3 {
        let mut cluster = filled(shards, 60);
        let empty = "$share/other/r";
        cluster.keep(shards - 1, empty);
        let consumer = cluster.consume(0, "c", empty);
        cluster.subscribe(consumer, QUEUE, qos(Qos::AtLeastOnce));
        let mut all = 0;
        for _ in 0..30 {
            demand(&mut cluster, consumer, 4);
            all += cluster.drain(consumer).len();
        }
        assert_eq!(all, 60);
        // It has its part as well.
        demand(&mut cluster, consumer, 4);
        for _ in 0..4 {
            cluster.publish(0, "r", "x", Qos::AtMostOnce);
            cluster.publish(0, "q", "x", Qos::AtMostOnce);
        }
        assert_eq!(cluster.drain(consumer).len(), 4);
    }
}
