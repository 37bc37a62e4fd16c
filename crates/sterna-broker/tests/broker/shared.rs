//! Shared subscriptions.

use std::collections::BTreeMap;

use sterna_broker::{Close, Limits, NoStore, Outcome, Qos, SubscribeOptions};

use crate::cluster::{Cluster, qos, text};

const FILTER: &str = "$share/group/t/#";

#[test]
fn each_message_goes_to_one_member_in_turn() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        let members: Vec<_> = (0..6)
            .map(|i| cluster.open(i % shards, &format!("m{i}")))
            .collect();
        for &member in &members {
            cluster.subscribe(member, FILTER, qos(Qos::AtLeastOnce));
        }
        let beside = cluster.open(0, "beside");
        cluster.subscribe(beside, "t/#", qos(Qos::AtLeastOnce));
        for i in 0..60 {
            let routed = cluster.publish(i % shards, "t/1", &i.to_string(), Qos::AtLeastOnce);
            assert_eq!(routed.matched, 2, "the group and the one beside");
        }
        let mut all = Vec::new();
        for &member in &members {
            let payloads = cluster.drain(member);
            assert_eq!(payloads.len(), 10);
            all.extend(payloads);
        }
        all.sort();
        all.dedup();
        assert_eq!((all.len(), cluster.drain(beside).len()), (60, 60));
        cluster.assert_empty();
    }
}

#[test]
fn a_slow_member_holds_only_its_window() {
    let limits = Limits {
        group_window: 4,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(2, limits, |_| Box::new(NoStore));
    let slow = cluster.open(0, "slow");
    let quick = cluster.open(1, "quick");
    for member in [slow, quick] {
        cluster.subscribe(member, FILTER, qos(Qos::ExactlyOnce));
    }
    let mut received = 0;
    for i in 0..50 {
        cluster.publish(0, "t", &i.to_string(), Qos::AtMostOnce);
        received += cluster.drain(quick).len();
    }
    assert_eq!(received, 46);
    assert_eq!(cluster.drain(slow).len(), 4);
}

/// [MQTT-4.8.2-3]
#[test]
fn members_keep_their_own_options() {
    let mut cluster = Cluster::new(1);
    let members = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce].map(|level| {
        let member = cluster.open(0, &format!("{level:?}"));
        let identifier = Some(level as u32 + 1);
        cluster.subscribe(
            member,
            FILTER,
            SubscribeOptions {
                identifier,
                ..qos(level)
            },
        );
        (member, level)
    });
    cluster.retain(0, "t", "not for shared subscriptions");
    for _ in 0..3 {
        cluster.publish(0, "t", "x", Qos::ExactlyOnce);
    }
    let mut deliveries = 0;
    for (member, level) in members {
        for delivery in cluster.take(member) {
            assert_eq!(
                (delivery.qos, delivery.identifiers()),
                (level, &[level as u32 + 1][..])
            );
            deliveries += 1;
        }
    }
    assert_eq!(deliveries, 4);
}

#[test]
fn what_a_member_has_not_sent_goes_to_the_others() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        let leaving = cluster.open(0, "leaving");
        let staying = cluster.open(shards - 1, "staying");
        for member in [leaving, staying] {
            cluster.subscribe(member, FILTER, qos(Qos::AtLeastOnce));
        }
        for i in 0..10 {
            cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
        }
        let sent = cluster.next(leaving).unwrap();
        cluster.close(leaving, Close::LOST);
        assert_eq!(cluster.drain(staying).len(), 9);
        // The one that was sent stays with its member as long as its session lasts.
        let back = cluster.open(0, "leaving");
        assert_eq!(
            cluster.broker(0).unacknowledged(back.key)[0].tag(),
            sent.tag
        );
        cluster.unsubscribe(back, FILTER);
        for i in 0..10 {
            cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
        }
        assert_eq!(cluster.drain(staying).len(), 10);
        cluster.settle(back, sent.tag, Outcome::Accepted);
        drop(sent);
        cluster.assert_empty();
    }
}

/// [MQTT-4.8.2-4] [MQTT-4.8.2-5]
#[test]
fn when_a_session_ends_at_least_once_messages_go_on_and_exactly_once_ones_do_not() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        let ending = cluster.open_with(0, "ending", false, 10, None);
        cluster.subscribe(ending, FILTER, qos(Qos::ExactlyOnce));
        for (payload, level) in [("one", Qos::AtLeastOnce), ("two", Qos::ExactlyOnce)] {
            cluster.publish(0, "t", payload, level);
        }
        assert_eq!(cluster.take(ending).len(), 2);
        let other = cluster.open(shards - 1, "other");
        cluster.subscribe(other, FILTER, qos(Qos::ExactlyOnce));
        cluster.close(ending, Close::LOST);
        cluster.pass(9_999);
        assert!(cluster.next(other).is_none(), "the member may come back");
        cluster.pass(1);
        let deliveries = cluster.take(other);
        assert_eq!(deliveries.len(), 1);
        assert_eq!(
            (text(&deliveries[0]).as_str(), deliveries[0].redelivered),
            ("one", true)
        );
    }
}

/// [MQTT-4.8.2-6]
#[test]
fn a_refused_message_goes_to_nobody_else() {
    let mut cluster = Cluster::new(2);
    let members = [0, 1].map(|shard| cluster.open(shard, &format!("m{shard}")));
    for member in members {
        cluster.subscribe(member, FILTER, qos(Qos::AtLeastOnce));
    }
    cluster.publish(0, "t", "x", Qos::AtLeastOnce);
    let (member, delivery) = members
        .into_iter()
        .find_map(|member| Some((member, cluster.next(member)?)))
        .unwrap();
    cluster.settle(member, delivery.tag, Outcome::Rejected(0x97));
    assert!(
        members
            .into_iter()
            .all(|member| cluster.next(member).is_none())
    );
    // Released, it goes to whoever's turn it is.
    cluster.publish(0, "t", "y", Qos::AtLeastOnce);
    let (member, delivery) = members
        .into_iter()
        .find_map(|member| Some((member, cluster.next(member)?)))
        .unwrap();
    cluster.settle(member, delivery.tag, Outcome::Released);
    let again = members
        .into_iter()
        .find_map(|member| cluster.next(member))
        .unwrap();
    assert!(again.redelivered && text(&again) == "y");
}

#[test]
fn messages_wait_for_members_that_are_away_and_end_with_the_last() {
    let limits = Limits {
        group_queued_messages: 5,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(2, limits, |_| Box::new(NoStore));
    let member = cluster.open(1, "m");
    cluster.subscribe(member, FILTER, qos(Qos::AtLeastOnce));
    cluster.close(member, Close::LOST);
    for i in 0..8 {
        cluster.publish(0, "t", &i.to_string(), Qos::AtLeastOnce);
        cluster.publish(0, "t", "not kept", Qos::AtMostOnce);
    }
    // Back on another shard.
    let member = cluster.open(0, "m");
    assert_eq!(cluster.drain(member), ["0", "1", "2", "3", "4"]);
    cluster.close(member, Close::LOST);
    cluster.publish(0, "t", "x", Qos::AtLeastOnce);
    let member = cluster.open_with(0, "m", true, 10, None);
    assert_eq!(cluster.publish(0, "t", "y", Qos::AtLeastOnce).matched, 0);
    cluster.subscribe(member, FILTER, qos(Qos::AtLeastOnce));
    assert!(cluster.drain(member).is_empty());
    cluster.assert_empty();
}

#[test]
fn members_are_limited_and_groups_leave_nothing_behind() {
    let limits = Limits {
        group_members: 2,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(2, limits, |_| Box::new(NoStore));
    let clients: Vec<_> = (0..3)
        .map(|i| cluster.open(i % 2, &i.to_string()))
        .collect();
    let mut results = BTreeMap::new();
    for (i, client) in clients.iter().enumerate() {
        let result =
            cluster
                .broker(client.shard)
                .subscribe(0, client.key, FILTER, qos(Qos::AtLeastOnce));
        cluster.collect(client.shard);
        cluster.run();
        results.insert(i, result.is_ok());
    }
    assert_eq!(
        results.into_values().collect::<Vec<_>>(),
        [true, true, false]
    );
    assert_eq!(cluster.directory.subscriptions(), 2);
    for &client in &clients[..2] {
        cluster.unsubscribe(client, FILTER);
    }
    assert_eq!(cluster.publish(0, "t", "x", Qos::AtLeastOnce).matched, 0);
    cluster.subscribe(clients[2], FILTER, qos(Qos::AtLeastOnce));
    assert_eq!(cluster.publish(0, "t", "y", Qos::AtLeastOnce).matched, 1);
    assert_eq!(cluster.drain(clients[2]), ["y"]);
}

/// A message that ends each member that gets it does not spin among them.
#[test]
fn what_is_lost_with_members_whose_sessions_end_comes_after_a_pause() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        // One that is away keeps the group going.
        let other = cluster.open(0, "other");
        cluster.subscribe(other, FILTER, qos(Qos::AtLeastOnce));
        cluster.close(other, Close::NORMAL);
        for payload in ["bad", "good"] {
            cluster.publish(0, "t", payload, Qos::AtLeastOnce);
        }
        let mut came = Vec::new();
        for pause_ms in [0, 0, 0, 1_000, 1_999, 1] {
            cluster.pass(pause_ms);
            let member = cluster.open_with(shards - 1, "member", true, 0, None);
            cluster.subscribe(member, FILTER, qos(Qos::AtLeastOnce));
            came.push(cluster.take(member).len());
            cluster.close(member, Close::LOST);
        }
        assert_eq!(came, [2, 2, 0, 2, 0, 2], "{shards} shards");
    }
}
