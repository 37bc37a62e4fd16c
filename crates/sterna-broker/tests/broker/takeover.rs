//! Sessions that move from shard to shard.

use sterna_broker::{Close, Event, Opened, Outcome, Qos, Unacknowledged, Will};

use crate::cluster::{Cluster, message, named, qos, text};

/// [MQTT-3.1.4-3] [MQTT-3.1.2-5] [MQTT-4.6.0-1]
#[test]
fn a_session_moves_with_everything_it_has() {
    let mut cluster = Cluster::new(3);
    let old = cluster.open(0, "a");
    cluster.subscribe(old, "t", qos(Qos::ExactlyOnce));
    cluster.broker(0).protocol_mut(old.key).unwrap().push(9);
    for i in 0..6 {
        cluster.publish(i % 3, "t", &i.to_string(), Qos::ExactlyOnce);
    }
    let sent: Vec<_> = (0..3).map(|_| cluster.next(old).unwrap().tag).collect();
    assert!(cluster.broker(0).handed_over(old.key, sent[0]));
    let new = cluster.open(2, "a");
    assert!(new.present && cluster.was_evicted(old));
    assert_eq!(cluster.broker(2).protocol(new.key), Some(&vec![9]));
    let entries = cluster.broker(2).unacknowledged(new.key);
    let tags: Vec<_> = entries.iter().map(Unacknowledged::tag).collect();
    assert_eq!(tags, sent, "tags stay the same");
    drop(entries);
    for tag in sent {
        cluster.settle(new, tag, Outcome::Accepted);
    }
    cluster.publish(1, "t", "6", Qos::ExactlyOnce);
    assert_eq!(cluster.drain(new), ["3", "4", "5", "6"]);
    assert_eq!(cluster.broker(0).counters().sessions, 0);
    assert_eq!(cluster.directory.shard_of(&named("a")).unwrap().0, 2);
    // And back, while away.
    cluster.close(new, Close::LOST);
    cluster.publish(1, "t", "7", Qos::ExactlyOnce);
    let back = cluster.open(0, "a");
    assert!(back.present);
    assert_eq!(cluster.drain(back), ["7"]);
    assert_eq!(cluster.directory.sessions(), 1);
    cluster.assert_empty();
}

/// [MQTT-4.6.0-6]: messages under way to the old shard come before those sent to the new one.
#[test]
fn the_order_of_each_publisher_is_kept_across_a_move() {
    let mut cluster = Cluster::new(3);
    let old = cluster.open(0, "a");
    cluster.subscribe(old, "t", qos(Qos::AtLeastOnce));
    let post = |i: u32| message("t", &i.to_string(), Qos::AtLeastOnce, false);
    // Under way from shard 2 to shard 0.
    cluster.send(2, None, post(0));
    let (consumer, opened) = cluster.start_open(1, "a", false, 3600, None);
    assert!(matches!(opened, Opened::Pending { .. }));
    cluster.send(2, None, post(1));
    assert!(cluster.deliver_one(1, 0), "the claim");
    // The route log says by now that the session is on shard 1.
    cluster.send(2, None, post(2));
    assert!(
        cluster.deliver_one(2, 1),
        "the new shard has it before the old one's handover"
    );
    cluster.send(1, None, message("t", "own", Qos::AtMostOnce, false));
    assert!(
        cluster
            .events
            .iter()
            .all(|event| !matches!(event, Event::Opened { .. }))
    );
    cluster.run();
    let opened = cluster.events.last().unwrap();
    let Event::Opened {
        consumer: who,
        session,
        present: true,
    } = *opened
    else {
        panic!("{opened:?}")
    };
    assert_eq!(who, consumer);
    let client = crate::cluster::Client {
        shard: 1,
        key: session,
        consumer,
        present: true,
    };
    assert_eq!(cluster.drain(client), ["0", "1", "2", "own"]);
}

#[test]
fn claims_of_several_shards_chain_up() {
    let mut cluster = Cluster::new(4);
    let first = cluster.open(0, "a");
    cluster.subscribe(first, "t", qos(Qos::AtLeastOnce));
    cluster.publish(3, "t", "1", Qos::AtLeastOnce);
    let (second, _) = cluster.start_open(1, "a", false, 3600, None);
    let (third, _) = cluster.start_open(2, "a", false, 3600, None);
    let (fourth, opened) = cluster.start_open(3, "a", false, 3600, None);
    let Opened::Pending { session } = opened else {
        panic!("{opened:?}")
    };
    cluster.run();
    assert!(cluster.was_evicted(first));
    for consumer in [second, third] {
        assert!(cluster.events.iter().any(
            |event| matches!(event, Event::Evicted { consumer: who, .. } if *who == consumer)
        ));
    }
    assert_eq!(
        cluster.events.last(),
        Some(&Event::Opened {
            consumer: fourth,
            session,
            present: true,
        })
    );
    let client = crate::cluster::Client {
        shard: 3,
        key: session,
        consumer: fourth,
        present: true,
    };
    assert_eq!(cluster.drain(client), ["1"]);
    let sessions: u64 = cluster
        .brokers
        .iter()
        .map(|broker| broker.counters().sessions)
        .sum();
    assert_eq!((sessions, cluster.directory.sessions()), (1, 1));
}

/// [MQTT-3.1.2-4] [MQTT-3.2.2-2]
#[test]
fn a_clean_start_on_another_shard_discards_the_session() {
    let mut cluster = Cluster::new(2);
    let old = cluster.open(0, "a");
    cluster.subscribe(old, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    let new = cluster.open_with(1, "a", true, 3600, None);
    assert!(cluster.was_evicted(old) && !new.present);
    assert_eq!(cluster.publish(0, "t", "2", Qos::AtLeastOnce).matched, 0);
    assert!(cluster.drain(new).is_empty());
    assert_eq!(
        (
            cluster.directory.sessions(),
            cluster.directory.subscriptions()
        ),
        (1, 0)
    );
    cluster.assert_empty();
}

/// A consumer that leaves before its session has come, and one that ends it so.
#[test]
fn a_claimer_may_leave_before_the_session_comes() {
    for expiry_s in [0, 60] {
        let mut cluster = Cluster::new(2);
        let old = cluster.open(0, "a");
        cluster.subscribe(old, "t", qos(Qos::AtLeastOnce));
        let (_, opened) = cluster.start_open(1, "a", false, expiry_s, None);
        let Opened::Pending { session } = opened else {
            panic!("{opened:?}")
        };
        let now_ms = cluster.now_ms;
        cluster.broker(1).close(now_ms, session, Close::LOST);
        cluster.run();
        let present = expiry_s > 0;
        assert_eq!(cluster.directory.sessions(), usize::from(present));
        assert_eq!(
            cluster.publish(0, "t", "1", Qos::AtLeastOnce).matched,
            usize::from(present)
        );
        cluster.pass(59_999);
        let back = cluster.open(0, "a");
        assert_eq!(back.present, present);
        assert_eq!(cluster.drain(back).len(), usize::from(present));
    }
}

#[test]
fn a_session_that_expires_while_it_is_claimed_is_not_present() {
    let mut cluster = Cluster::new(2);
    let old = cluster.open_with(0, "a", false, 1, None);
    cluster.close(old, Close::LOST);
    let (consumer, opened) = cluster.start_open(1, "a", false, 3600, None);
    let Opened::Pending { session } = opened else {
        panic!("{opened:?}")
    };
    cluster.now_ms += 1_000;
    let now_ms = cluster.now_ms;
    cluster.broker(0).timeout(now_ms);
    cluster.run();
    assert_eq!(
        cluster.events.last(),
        Some(&Event::Opened {
            consumer,
            session,
            present: false
        })
    );
    assert_eq!(cluster.directory.sessions(), 1);
}

/// A reconnect on the shard that waits for the session already.
#[test]
fn a_second_claimer_on_the_same_shard_waits_instead_of_the_first() {
    let mut cluster = Cluster::new(2);
    let old = cluster.open(0, "a");
    cluster.subscribe(old, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    let (first, first_opened) = cluster.start_open(1, "a", false, 3600, None);
    let (second, second_opened) = cluster.start_open(1, "a", false, 3600, None);
    let (Opened::Pending { session: stale }, Opened::Pending { session }) =
        (first_opened, second_opened)
    else {
        panic!("both wait");
    };
    let now_ms = cluster.now_ms;
    cluster.broker(1).close(now_ms, stale, Close::LOST);
    cluster.run();
    assert_eq!(
        cluster.events.last(),
        Some(&Event::Opened {
            consumer: second,
            session,
            present: true,
        })
    );
    assert!(
        cluster
            .events
            .iter()
            .any(|event| matches!(event, Event::Evicted { consumer, .. } if *consumer == first))
    );
    let client = crate::cluster::Client {
        shard: 1,
        key: session,
        consumer: second,
        present: true,
    };
    let deliveries = cluster.take(client);
    assert_eq!(text(&deliveries[0]), "1");
}

/// [MQTT-3.1.3-9]: across shards as well.
#[test]
fn wills_across_shards_follow_the_same_rules() {
    let mut cluster = Cluster::new(2);
    let watcher = cluster.open(1, "watcher");
    cluster.subscribe(watcher, "will", qos(Qos::AtLeastOnce));
    let will = |delay_s| {
        let message = message("will", "gone", Qos::AtLeastOnce, false);
        Some(Will {
            is_given: false,
            is_unproved: false,
            message,
            delay_s,
            expiry_s: None,
        })
    };
    cluster.open_with(0, "a", false, 100, will(0));
    cluster.open_with(1, "a", false, 100, will(10));
    assert_eq!(cluster.drain(watcher), ["gone"]);
    cluster.open_with(0, "a", false, 100, will(10));
    cluster.pass(50_000);
    assert!(cluster.drain(watcher).is_empty());
    cluster.open_with(1, "a", true, 100, None);
    assert_eq!(cluster.drain(watcher), ["gone"]);
}

/// A shard that has nothing to do is told when the route log grows.
#[test]
fn an_idle_shard_does_not_hold_the_route_log_up() {
    let limits = sterna_broker::Limits {
        route_backlog: 16,
        ..sterna_broker::Limits::default()
    };
    let mut cluster = Cluster::with(2, limits, |_| Box::new(sterna_broker::NoStore));
    let client = cluster.open(0, "a");
    let now_ms = cluster.now_ms;
    for i in 0..100 {
        let filter = format!("t/{i}");
        cluster
            .broker(0)
            .subscribe(now_ms, client.key, &filter, qos(Qos::AtMostOnce))
            .unwrap();
        assert_eq!(
            cluster.broker(0).has_mail(),
            i >= 15,
            "told once, when it falls behind"
        );
    }
    cluster.collect(0);
    assert_eq!(cluster.pairs(), [(0, 1)]);
    cluster.run();
    assert_eq!(cluster.publish(1, "t/99", "x", Qos::AtMostOnce).matched, 1);
    assert_eq!(cluster.drain(client), ["x"]);
}

/// A clean start on the shard that still waits for the old session: what is on its way to that one
/// must not reach the new one. [MQTT-3.1.2-4]
#[test]
fn a_discarded_sessions_messages_do_not_reach_its_successor() {
    let mut cluster = Cluster::new(3);
    let old = cluster.open(0, "a");
    cluster.subscribe(old, "t", qos(Qos::AtLeastOnce));
    cluster.start_open(1, "a", false, 3600, None);
    assert!(cluster.deliver_one(1, 0), "the claim");
    let (consumer, opened) = cluster.start_open(1, "a", true, 3600, None);
    let Opened::Pending { session: key } = opened else {
        panic!("{opened:?}")
    };
    // Routed to the session's new place, and slower than everything else.
    cluster.send(2, None, message("t", "late", Qos::AtLeastOnce, false));
    while let Some(&(from, to)) = cluster.pairs().iter().find(|&&pair| pair != (2, 1)) {
        cluster.deliver_one(from, to);
    }
    cluster.run();
    let opened = Event::Opened {
        consumer,
        session: key,
        present: false,
    };
    assert_eq!(cluster.events.last(), Some(&opened));
    let client = crate::cluster::Client {
        shard: 1,
        key,
        consumer,
        present: false,
    };
    assert!(cluster.drain(client).is_empty());
    assert_eq!(cluster.publish(0, "t", "x", Qos::AtLeastOnce).matched, 0);
    cluster.assert_empty();
}

/// The session expires, its claimer is gone before it knows, and the next must not be told that it
/// is present.
#[test]
fn a_session_that_nobody_got_is_not_passed_on() {
    let mut cluster = Cluster::new(3);
    let old = cluster.open_with(0, "a", false, 1, None);
    cluster.subscribe(old, "t", qos(Qos::AtLeastOnce));
    cluster.close(old, Close::LOST);
    cluster.start_open(1, "a", false, 3600, None);
    let (consumer, opened) = cluster.start_open(2, "a", false, 3600, None);
    let Opened::Pending { session } = opened else {
        panic!("{opened:?}")
    };
    cluster.now_ms += 1_000;
    let now_ms = cluster.now_ms;
    cluster.broker(0).timeout(now_ms);
    assert!(cluster.deliver_one(2, 1), "the second claim comes first");
    cluster.run();
    let opened = Event::Opened {
        consumer,
        session,
        present: false,
    };
    assert_eq!(cluster.events.last(), Some(&opened));
    assert_eq!(cluster.directory.sessions(), 1);
}

/// Brokers and their mail go between threads.
#[test]
fn brokers_and_mail_can_be_sent() {
    const fn is_send<T: Send>() {}
    const fn is_sync<T: Sync>() {}
    is_send::<sterna_broker::Broker<crate::cluster::Protocol>>();
    is_send::<sterna_broker::Mail<crate::cluster::Protocol>>();
    is_sync::<sterna_broker::Directory>();
}
