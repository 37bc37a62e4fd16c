//! Shared subscriptions whose queue is kept.

use sterna_broker::{Close, Limits, NoStore, Outcome, Qos, QueueFull, SubscribeOptions};

use crate::cluster::{Client, Cluster, message, named, qos, text};

const QUEUE: &str = "$share/queue/q/#";

fn limited(shards: u16, limits: Limits) -> Cluster {
    Cluster::with(shards, limits, |_| Box::new(NoStore))
}

/// What a consumer gets when it takes everything, without settling any.
fn texts(cluster: &mut Cluster, client: Client) -> Vec<String> {
    cluster.take(client).iter().map(text).collect()
}

#[test]
fn everything_waits_at_least_at_qos_1_and_can_be_settled() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        for (i, level) in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]
            .into_iter()
            .enumerate()
        {
            let routed = cluster.publish(i as u16 % shards, "q", &i.to_string(), level);
            assert_eq!((routed.matched, routed.is_refused()), (1, false));
        }
        // What the member asks for is a ceiling, but not below QoS 1.
        let member = cluster.open(shards - 1, "m");
        cluster.subscribe(member, QUEUE, qos(Qos::AtMostOnce));
        let deliveries = cluster.take(member);
        assert_eq!(deliveries.len(), 3);
        for delivery in deliveries {
            assert_eq!(delivery.qos, Qos::AtLeastOnce);
            assert_ne!(delivery.tag, 0);
            cluster.settle(member, delivery.tag, Outcome::Accepted);
        }
        cluster.assert_empty();
    }
}

#[test]
fn a_full_queue_refuses_a_publication_as_a_whole_from_every_shard() {
    for shards in 1..=3 {
        let limits = Limits {
            group_queued_messages: 3,
            // The rule for other queues.
            queue_full: QueueFull::DropOldest,
            ..Limits::default()
        };
        let mut cluster = limited(shards, limits);
        cluster.keep(0, QUEUE);
        let beside = cluster.open(0, "beside");
        cluster.subscribe(beside, "q/#", qos(Qos::ExactlyOnce));
        for i in 0..3 {
            assert!(
                !cluster
                    .publish(i % shards, "q", &i.to_string(), Qos::AtMostOnce)
                    .is_refused()
            );
        }
        for shard in 0..shards {
            for level in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce] {
                assert!(cluster.publish(shard, "q", "no", level).is_refused());
            }
            assert!(cluster.retain(shard, "q", "no").is_refused());
            assert_eq!(cluster.broker(shard).counters().refused_messages, [4, 0, 0]);
        }
        assert_eq!(cluster.directory.retained(), (0, 0));
        assert!(
            !cluster
                .publish(0, "else", "x", Qos::AtMostOnce)
                .is_refused()
        );
        assert_eq!(cluster.drain(beside), ["0", "1", "2"], "nor to others");

        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        cluster.demand(consumer, 1);
        cluster.run();
        // As soon as one is assigned there is room; for one.
        assert!(!cluster.publish(0, "q", "3", Qos::AtMostOnce).is_refused());
        assert!(
            cluster
                .publish(shards - 1, "q", "no", Qos::AtMostOnce)
                .is_refused()
        );
        cluster.demand(consumer, 10);
        cluster.run();
        assert_eq!(cluster.drain(consumer), ["0", "1", "2", "3"]);
        assert!(!cluster.retain(0, "q", "yes").is_refused());
        assert_eq!(cluster.directory.retained().0, 1);
        assert_eq!(cluster.drain(consumer), ["yes"]);
        cluster.retain(0, "q", "");
        assert_eq!(cluster.drain(consumer), [""]);
    }
}

/// Publishers of all shards reserve room before their messages are on their way.
#[test]
fn messages_under_way_do_not_overfill_a_queue() {
    let limits = Limits {
        group_queued_messages: 10,
        ..Limits::default()
    };
    let mut cluster = limited(3, limits);
    cluster.keep(0, QUEUE);
    let mut accepted = 0;
    for i in 0..30_u16 {
        let sent = cluster.send(i % 3, None, message("q", "x", Qos::AtLeastOnce, i % 2 == 0));
        accepted += usize::from(!sent.is_refused());
    }
    assert_eq!(accepted, 10);
    cluster.run();
    let consumer = cluster.consume(0, "c", QUEUE);
    cluster.demand(consumer, 100);
    cluster.run();
    assert_eq!(cluster.drain(consumer).len(), 10);
}

#[test]
fn bytes_and_the_memory_of_all_shards_fill_a_queue_too() {
    for shards in 1..=2 {
        let limits = Limits {
            group_queued_bytes: 20,
            ..Limits::default()
        };
        let mut cluster = limited(shards, limits);
        cluster.keep(0, QUEUE);
        let long = "a message that is longer than the limit";
        assert!(!cluster.publish(0, "q", long, Qos::AtLeastOnce).is_refused());
        assert!(cluster.publish(0, "q", "x", Qos::AtLeastOnce).is_refused());
        let consumer = cluster.consume(0, "c", QUEUE);
        cluster.demand(consumer, 1);
        cluster.run();
        assert_eq!(cluster.drain(consumer), [long]);
        assert!(
            !cluster
                .publish(0, "q", "0123456789", Qos::AtLeastOnce)
                .is_refused()
        );
        assert!(
            cluster
                .publish(0, "q", "0123456789", Qos::AtLeastOnce)
                .is_refused()
        );
    }
    let limits = Limits {
        message_bytes: 100_000,
        ..Limits::default()
    };
    let mut cluster = limited(2, limits);
    cluster.keep(0, QUEUE);
    let large = "x".repeat(70_000);
    assert!(
        !cluster
            .publish(0, "q", &large, Qos::AtLeastOnce)
            .is_refused()
    );
    assert!(
        cluster
            .publish(1, "q", &large, Qos::AtLeastOnce)
            .is_refused()
    );
    assert!(
        cluster
            .publish(0, "q", &large, Qos::AtLeastOnce)
            .is_refused()
    );
    let consumer = cluster.consume(0, "c", QUEUE);
    cluster.demand(consumer, 1);
    cluster.run();
    assert_eq!(cluster.drain(consumer).len(), 1);
    assert!(
        !cluster
            .publish(0, "q", &large, Qos::AtLeastOnce)
            .is_refused()
    );
}

/// One of two queues is full: the other gets nothing either, and keeps its room.
#[test]
fn two_queues_are_filled_together_or_not_at_all() {
    for shards in 1..=3 {
        let limits = Limits {
            group_queued_messages: 2,
            ..Limits::default()
        };
        let mut cluster = limited(shards, limits);
        let other = "$share/other/q/+";
        cluster.keep(0, QUEUE);
        cluster.keep(shards - 1, other);
        cluster.publish(0, "q", "0", Qos::AtMostOnce);
        for i in 1..=2 {
            let routed = cluster.publish(0, "q/1", &i.to_string(), Qos::AtMostOnce);
            assert_eq!(routed.is_refused(), i == 2);
        }
        let consumer = cluster.consume(0, "c", QUEUE);
        cluster.demand(consumer, 10);
        cluster.run();
        assert_eq!(cluster.drain(consumer), ["0", "1"]);
        assert!(!cluster.publish(0, "q/1", "2", Qos::AtMostOnce).is_refused());
        assert!(cluster.publish(0, "q/1", "3", Qos::AtMostOnce).is_refused());
        let consumer = cluster.consume(0, "d", other);
        cluster.demand(consumer, 10);
        cluster.run();
        assert_eq!(cluster.drain(consumer), ["1", "2"]);
    }
}

#[test]
fn what_a_consumer_had_goes_back_to_its_place_whatever_its_level() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let levels = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce];
        for i in 0..9 {
            cluster.publish(0, "q", &i.to_string(), levels[i % 3]);
        }
        let first = cluster.consume(0, "first", QUEUE);
        let second = cluster.consume(shards - 1, "second", QUEUE);
        cluster.demand(first, 3);
        cluster.run();
        cluster.demand(second, 3);
        cluster.run();
        // Three are pending at each; of those of the first, two are sent, and one of them settled.
        let settled = cluster.next(first).unwrap();
        cluster.next(first).unwrap();
        cluster.settle(first, settled.tag, Outcome::Accepted);
        assert_eq!(texts(&mut cluster, second), ["3", "4", "5"]);
        // The later ones come back first.
        cluster.close(second, Close::NORMAL);
        cluster.close(first, Close::LOST);
        assert!(!cluster.broker(0).owner_exists(&named("first")));
        let third = cluster.consume(shards / 2, "third", QUEUE);
        cluster.demand(third, 100);
        cluster.run();
        let deliveries = cluster.take(third);
        let seen: Vec<_> = deliveries
            .iter()
            .map(|delivery| (text(delivery), delivery.redelivered, delivery.failures))
            .collect();
        let seen: Vec<_> = seen
            .iter()
            .map(|(text, again, failures)| (text.as_str(), *again, *failures))
            .collect();
        assert_eq!(
            seen,
            [
                ("1", true, 0),
                ("2", false, 0),
                ("3", true, 0),
                ("4", true, 0),
                ("5", true, 0),
                ("6", false, 0),
                ("7", false, 0),
                ("8", false, 0),
            ]
        );
        for delivery in deliveries {
            cluster.settle(third, delivery.tag, Outcome::Accepted);
        }
        cluster.assert_empty();
    }
}

/// An MQTT client's session outlives its connection, but holds nothing of a kept queue, except what
/// it has taken over.
#[test]
fn a_session_that_is_away_holds_nothing_of_a_kept_queue() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let member = cluster.open(shards - 1, "m");
        cluster.subscribe(member, QUEUE, qos(Qos::ExactlyOnce));
        for i in 0..3 {
            cluster.publish(0, "q", &i.to_string(), Qos::ExactlyOnce);
        }
        let deliveries = cluster.take(member);
        assert_eq!(deliveries.len(), 3);
        assert!(
            cluster
                .broker(member.shard)
                .handed_over(member.key, deliveries[0].tag)
        );
        // To another shard, or lost.
        let again = cluster.open(0, "m");
        let unacknowledged = cluster.broker(0).unacknowledged(again.key);
        assert_eq!(unacknowledged.len(), 1);
        assert_eq!(unacknowledged[0].tag(), deliveries[0].tag);
        assert_eq!(texts(&mut cluster, again), ["1", "2"]);
        cluster.close(again, Close::LOST);
        let consumer = cluster.consume(0, "c", QUEUE);
        cluster.demand(consumer, 5);
        cluster.run();
        let deliveries = cluster.take(consumer);
        assert!(
            deliveries
                .iter()
                .all(|delivery| delivery.redelivered && delivery.failures == 0)
        );
        assert_eq!(deliveries.len(), 2);
    }
}

#[test]
fn a_queue_is_kept_as_long_as_a_member_asks_for_it() {
    for shards in 1..=2 {
        let limits = Limits {
            group_queued_messages: 2,
            ..Limits::default()
        };
        let mut cluster = limited(shards, limits);
        let members = [(0, "a"), (shards - 1, "b")].map(|(shard, name)| {
            let member = cluster.open_on_demand(shard, name, None);
            cluster.subscribe(member, QUEUE, qos(Qos::AtLeastOnce));
            member
        });
        let full = |cluster: &mut Cluster| {
            let routed =
                [0, 1, 2].map(|_| cluster.publish(0, "q", "x", Qos::AtLeastOnce).is_refused());
            routed.contains(&true)
        };
        assert!(!full(&mut cluster), "dropped without a word");
        let keep = SubscribeOptions {
            keep: true,
            ..qos(Qos::AtLeastOnce)
        };
        for member in members {
            cluster.subscribe(member, QUEUE, keep);
            // Twice is once.
            cluster.subscribe(member, QUEUE, keep);
        }
        assert!(full(&mut cluster), "what was there counts");
        for (at, member) in members.into_iter().enumerate() {
            assert!(full(&mut cluster));
            if at == 0 {
                cluster.subscribe(member, QUEUE, qos(Qos::AtLeastOnce));
            } else {
                cluster.unsubscribe(member, QUEUE);
            }
        }
        assert!(!full(&mut cluster), "no longer kept");
        cluster.subscribe(members[0], QUEUE, keep);
        assert!(full(&mut cluster), "kept again");
        cluster.demand(members[0], 10);
        cluster.run();
        assert_eq!(cluster.drain(members[0]).len(), 2);
        assert!(!cluster.publish(0, "q", "x", Qos::AtLeastOnce).is_refused());
    }
}

/// The anchor may be opened again, anywhere; and ended.
#[test]
fn the_anchor_moves_and_ends() {
    for shards in 1..=3 {
        let limits = Limits {
            group_queued_messages: 2,
            ..Limits::default()
        };
        let mut cluster = limited(shards, limits);
        cluster.keep(0, QUEUE);
        cluster.publish(0, "q", "0", Qos::AtMostOnce);
        let anchor = cluster.open_with(shards - 1, QUEUE, false, u32::MAX, None);
        assert!(anchor.present);
        cluster.close(anchor, Close::NORMAL);
        cluster.publish(0, "q", "1", Qos::AtMostOnce);
        assert!(cluster.publish(0, "q", "2", Qos::AtMostOnce).is_refused());
        let now_ms = cluster.now_ms;
        assert!(cluster.broker(0).end_session_of(now_ms, &named(QUEUE)));
        cluster.collect(0);
        cluster.run();
        let routed = cluster.publish(0, "q", "3", Qos::AtLeastOnce);
        assert_eq!((routed.is_refused(), routed.matched), (false, 0));
        cluster.assert_empty();
    }
}

#[test]
fn to_keep_means_nothing_for_a_subscription_that_is_not_shared() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    let keep = SubscribeOptions {
        keep: true,
        ..qos(Qos::ExactlyOnce)
    };
    cluster.subscribe(client, "q", keep);
    cluster.publish(0, "q", "0", Qos::AtMostOnce);
    let delivery = cluster.next(client).unwrap();
    assert_eq!((delivery.qos, delivery.tag), (Qos::AtMostOnce, 0));
}

/// Whatever the order in which messages are given back, they stand in the order of publication.
#[test]
fn messages_given_back_find_their_places() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let consumers = [0, shards - 1]
            .iter()
            .enumerate()
            .map(|(at, &shard)| cluster.consume(shard, &format!("c{at}"), QUEUE))
            .collect::<Vec<_>>();
        let mut random = 7_u64;
        for i in 0..40 {
            cluster.publish(0, "q", &format!("{i:02}"), Qos::AtLeastOnce);
        }
        for _ in 0..20 {
            let mut held = Vec::new();
            for &consumer in &consumers {
                cluster.demand(consumer, 15);
                cluster.run();
                for delivery in cluster.take(consumer) {
                    held.push((consumer, delivery.tag));
                }
                cluster.demand(consumer, 0);
                cluster.run();
            }
            assert_eq!(held.len(), 30);
            while !held.is_empty() {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let at = (random >> 33) as usize % held.len();
                let (consumer, tag) = held.swap_remove(at);
                cluster.settle(consumer, tag, Outcome::Released);
            }
        }
        cluster.demand(consumers[0], 100);
        cluster.run();
        let expected: Vec<_> = (0..40).map(|i| format!("{i:02}")).collect();
        assert_eq!(cluster.drain(consumers[0]), expected);
        cluster.assert_empty();
    }
}
