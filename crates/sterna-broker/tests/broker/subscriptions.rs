//! Subscribing, matching and unsubscribing.

use sterna_broker::{Limits, Message, MessageHeader, Qos, SubscribeError, SubscribeOptions, Wish};

use crate::cluster::{Cluster, message, qos, text};

/// [MQTT-3.8.4-8] [MQTT-3.3.2-3]
#[test]
fn a_message_goes_to_matching_filters_at_the_lower_level() {
    let mut cluster = Cluster::new(1);
    for granted in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce] {
        let client = cluster.open(0, &format!("{granted:?}"));
        assert_eq!(
            cluster.subscribe(client, "a/+/c", qos(granted)).qos,
            granted
        );
        for published in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce] {
            assert!(cluster.publish(0, "a/b/c", "x", published).matched > 0);
            let deliveries = cluster.take(client);
            assert_eq!(deliveries.len(), 1);
            assert_eq!(deliveries[0].qos, granted.min(published));
            assert_eq!(deliveries[0].message.topic(), "a/b/c");
            assert_eq!(deliveries[0].tag == 0, deliveries[0].qos == Qos::AtMostOnce);
        }
        assert_eq!(cluster.publish(0, "a/b", "x", Qos::AtMostOnce).matched, 0);
    }
}

/// [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]
#[test]
fn overlapping_subscriptions_make_one_delivery() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    let with = |level, identifier, hint| SubscribeOptions {
        identifier,
        hint,
        ..qos(level)
    };
    cluster.subscribe(client, "a/b", with(Qos::AtMostOnce, Some(1), 0));
    cluster.subscribe(client, "a/+", with(Qos::ExactlyOnce, Some(2), 8));
    cluster.subscribe(client, "#", with(Qos::AtLeastOnce, None, 4));
    for _ in 0..3 {
        // The first from the index, later ones from what is remembered.
        assert_eq!(cluster.publish(0, "a/b", "x", Qos::ExactlyOnce).matched, 1);
        let deliveries = cluster.take(client);
        assert_eq!(deliveries.len(), 1);
        let mut identifiers = deliveries[0].identifiers().to_vec();
        identifiers.sort_unstable();
        assert_eq!(
            (identifiers.as_slice(), deliveries[0].qos),
            (&[1, 2][..], Qos::ExactlyOnce)
        );
        assert_eq!(
            deliveries[0].hint, 8,
            "the stream of the strongest subscription"
        );
    }
    cluster.publish(0, "b", "x", Qos::AtMostOnce);
    let deliveries = cluster.take(client);
    assert!(deliveries[0].identifiers().is_empty());
    assert_eq!(deliveries[0].hint, 4);
}

#[test]
fn a_stream_is_no_hint_for_the_next_connection() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(
        client,
        "a",
        SubscribeOptions {
            hint: 4,
            ..qos(Qos::AtLeastOnce)
        },
    );
    cluster.publish(0, "a", "1", Qos::AtLeastOnce);
    assert_eq!(cluster.next(client).unwrap().hint, 4);
    let client = cluster.open(0, "a");
    cluster.publish(0, "a", "2", Qos::AtLeastOnce);
    assert_eq!(cluster.next(client).unwrap().hint, 0);
}

/// [MQTT-3.8.4-3]
#[test]
fn a_subscription_with_the_same_filter_replaces_the_old_one() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    assert!(!cluster.subscribe(client, "a", qos(Qos::AtMostOnce)).existed);
    cluster.publish(0, "a", "1", Qos::ExactlyOnce);
    assert!(
        cluster
            .subscribe(client, "a", qos(Qos::AtLeastOnce))
            .existed
    );
    cluster.publish(0, "a", "2", Qos::ExactlyOnce);
    let levels: Vec<_> = cluster
        .take(client)
        .iter()
        .map(|delivery| delivery.qos)
        .collect();
    assert_eq!(levels, [Qos::AtMostOnce, Qos::AtLeastOnce]);
    assert_eq!(cluster.broker(0).counters().subscriptions, 1);
    assert_eq!(cluster.directory.subscriptions(), 1);
}

/// [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3]
#[test]
fn after_unsubscribe_nothing_is_added_and_what_was_started_is_completed() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "a", qos(Qos::AtLeastOnce));
    cluster.publish(0, "a", "1", Qos::AtLeastOnce);
    let started = cluster.next(client).unwrap();
    assert!(cluster.unsubscribe(client, "a"));
    assert!(!cluster.unsubscribe(client, "a"));
    assert_eq!(cluster.publish(0, "a", "2", Qos::AtLeastOnce).matched, 0);
    assert!(cluster.next(client).is_none());
    assert_eq!(cluster.broker(0).unacknowledged(client.key).len(), 1);
    cluster.settle(client, started.tag, sterna_broker::Outcome::Accepted);
    drop(started);
    cluster.assert_empty();
}

/// [MQTT-4.7.2-1]
#[test]
fn reserved_topics_are_not_for_leading_wildcards() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "#", qos(Qos::AtMostOnce));
    cluster.subscribe(client, "+/x", qos(Qos::AtMostOnce));
    assert_eq!(
        cluster.publish(0, "$SYS/x", "1", Qos::AtMostOnce).matched,
        0
    );
    cluster.subscribe(client, "$SYS/#", qos(Qos::AtMostOnce));
    assert_eq!(
        cluster.publish(0, "$SYS/x", "2", Qos::AtMostOnce).matched,
        1
    );
    assert_eq!(cluster.drain(client), ["2"]);
}

/// [MQTT-3.3.1-12] [MQTT-3.3.1-13]
#[test]
fn the_retain_flag_is_kept_only_where_asked_for() {
    let mut cluster = Cluster::new(1);
    let plain = cluster.open(0, "plain");
    let keeping = cluster.open(0, "keeping");
    cluster.subscribe(plain, "a", qos(Qos::AtMostOnce));
    let options = SubscribeOptions {
        retain_as_published: true,
        ..qos(Qos::AtMostOnce)
    };
    cluster.subscribe(keeping, "a", options);
    for retain in [true, false] {
        cluster.send(0, None, message("a", "x", Qos::AtMostOnce, retain));
        assert!(!cluster.next(plain).unwrap().retain);
        assert_eq!(cluster.next(keeping).unwrap().retain, retain);
    }
}

/// No Local (section 3.8.3.1), alone and beside a subscription without it.
#[test]
fn no_local_keeps_a_clients_own_messages_from_it() {
    let mut cluster = Cluster::new(1);
    let me = cluster.open(0, "me");
    let other = cluster.open(0, "other");
    let no_local = |identifier| SubscribeOptions {
        no_local: true,
        identifier: Some(identifier),
        ..qos(Qos::AtLeastOnce)
    };
    cluster.subscribe(me, "a", no_local(1));
    let from = |client: crate::cluster::Client| Some(client.key);
    let post = |text| message("a", text, Qos::AtLeastOnce, false);
    cluster.send(0, from(me), post("mine"));
    cluster.send(0, from(other), post("theirs"));
    cluster.send(0, None, post("broker's"));
    assert_eq!(cluster.drain(me), ["theirs", "broker's"]);

    // What the client publishes reaches it by the other subscription only.
    cluster.subscribe(
        me,
        "+",
        SubscribeOptions {
            identifier: Some(2),
            ..qos(Qos::AtMostOnce)
        },
    );
    for _ in 0..3 {
        cluster.send(0, from(me), post("mine"));
        cluster.send(0, from(other), post("theirs"));
        let deliveries = cluster.take(me);
        let seen: Vec<_> = deliveries
            .iter()
            .map(|delivery| {
                (
                    text(delivery),
                    delivery.qos,
                    delivery.identifiers().to_vec(),
                )
            })
            .collect();
        assert_eq!(seen[0], ("mine".into(), Qos::AtMostOnce, vec![2]));
        let (theirs, level, mut identifiers) = seen[1].clone();
        identifiers.sort_unstable();
        assert_eq!((theirs.as_str(), level), ("theirs", Qos::AtLeastOnce));
        assert_eq!((identifiers, seen.len()), (vec![1, 2], 2));
    }
}

/// [MQTT-3.8.3-4] [MQTT-4.7.1-1] and attacks 9 and 10.
#[test]
fn filters_and_their_number_are_limited() {
    let mut cluster = Cluster::limited(Limits {
        subscriptions_per_session: 2,
        subscriptions: 3,
        topic_levels: 4,
        ..Limits::default()
    });
    let a = cluster.open(0, "a");
    let b = cluster.open(0, "b");
    let mut subscribe = |client: crate::cluster::Client, filter: &str, no_local| {
        let options = SubscribeOptions {
            no_local,
            ..SubscribeOptions::default()
        };
        cluster
            .broker(0)
            .subscribe(0, client.key, filter, options)
            .map(|_| ())
    };
    assert_eq!(
        subscribe(a, "a/#/b", false),
        Err(SubscribeError::InvalidFilter)
    );
    assert_eq!(
        subscribe(a, &"/".repeat(32_000), false),
        Err(SubscribeError::InvalidFilter)
    );
    assert_eq!(
        subscribe(a, "1/2/3/4/5", false),
        Err(SubscribeError::InvalidFilter)
    );
    assert_eq!(
        subscribe(a, "$share/g/a", true),
        Err(SubscribeError::NoLocalOnShared)
    );
    assert_eq!(subscribe(a, "1/2/3/4", false), Ok(()));
    assert_eq!(subscribe(a, "b", false), Ok(()));
    assert_eq!(subscribe(a, "c", false), Err(SubscribeError::TooMany));
    assert_eq!(subscribe(a, "b", false), Ok(()), "replacing is not adding");
    assert_eq!(subscribe(b, "a", false), Ok(()));
    assert_eq!(subscribe(b, "b", false), Err(SubscribeError::TooMany));
    assert!(cluster.unsubscribe(a, "b"));
    cluster.subscribe(b, "b", qos(Qos::AtMostOnce));
    assert_eq!(cluster.directory.subscriptions(), 3);
}

/// Changes of routes reach what is remembered about topics.
#[test]
fn remembered_matches_follow_every_change() {
    let mut cluster = Cluster::limited(Limits {
        match_cache_topics: 4,
        ..Limits::default()
    });
    let a = cluster.open(0, "a");
    let b = cluster.open(0, "b");
    let topics = ["t/1", "t/2", "u/1", "v"];
    let matched = |cluster: &mut Cluster| -> Vec<usize> {
        let mut counts = Vec::new();
        for _ in 0..4 {
            counts = topics
                .iter()
                .map(|topic| cluster.publish(0, topic, "x", Qos::AtMostOnce).matched)
                .collect();
        }
        counts
    };
    assert_eq!(matched(&mut cluster), [0, 0, 0, 0]);
    cluster.subscribe(a, "t/1", qos(Qos::AtMostOnce));
    assert_eq!(matched(&mut cluster), [1, 0, 0, 0]);
    cluster.subscribe(b, "t/+", qos(Qos::AtMostOnce));
    assert_eq!(matched(&mut cluster), [2, 1, 0, 0]);
    cluster.subscribe(a, "#", qos(Qos::AtMostOnce));
    assert_eq!(matched(&mut cluster), [2, 2, 1, 1]);
    cluster.unsubscribe(a, "t/1");
    cluster.unsubscribe(b, "t/+");
    assert_eq!(matched(&mut cluster), [1, 1, 1, 1]);
    cluster.close(
        a,
        sterna_broker::Close {
            expiry_s: Some(0),
            ..sterna_broker::Close::LOST
        },
    );
    assert_eq!(matched(&mut cluster), [0, 0, 0, 0]);
}

/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18]: the properties'
/// bytes go through as they came.
#[test]
fn properties_pass_through_unaltered() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "a", qos(Qos::AtMostOnce));
    let properties = [
        0x26, 0, 1, b'k', 0, 1, b'v', 0x26, 0, 1, b'a', 0, 1, b'b', 1, 1,
    ];
    let body = bytes::Bytes::from([b"a", &properties[..], b"payload"].concat());
    let header = MessageHeader::default();
    let end = 1 + properties.len();
    let message = Message::from_body(body.clone(), 0..1, 1..end, end..body.len(), header).unwrap();
    cluster.send(0, None, message);
    let delivery = cluster.next(client).unwrap();
    assert_eq!(delivery.message.properties(), properties);
    assert_eq!(delivery.message.payload(), b"payload");
    assert_eq!(&delivery.message.payload_shared()[..], b"payload");
    assert!(Message::from_body(body, 0..1, 1..end, end..99, header).is_err());
    assert!(
        Message::from_body(bytes::Bytes::from_static(b"\xff"), 0..1, 1..1, 1..1, header).is_err()
    );
}

/// What a session has that lasts is charged until it ends, wherever it is: filters by their length on every shard, and the
/// will.
#[test]
fn what_sessions_take_is_charged_until_they_end() {
    let long = format!("{}/#", "x".repeat(1_000));
    let deep = format!("$share/g/{}#", "y/".repeat(100));
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        let held = |cluster: &Cluster| cluster.directory.principals().lasting_bytes();
        let client = cluster.open(0, "a");
        let of_none = held(&cluster);
        assert!(of_none > 500, "{of_none}");
        cluster.subscribe(client, "a/short/+/filter", qos(Qos::AtLeastOnce));
        let of_short = held(&cluster);
        assert!((200..800).contains(&(of_short - of_none)), "{of_short}");
        cluster.subscribe(client, &long, qos(Qos::AtLeastOnce));
        let of_long = held(&cluster);
        let least = 900 * (1 + u64::from(shards));
        assert!(of_long - of_short > least, "{of_long}");
        let bytes = cluster.broker(0).held_bytes(client.key);
        assert_eq!(bytes.connected + bytes.lasting, of_long);
        // The same once more is no other subscription.
        cluster.subscribe(client, &long, qos(Qos::AtMostOnce));
        assert_eq!(held(&cluster), of_long);
        cluster.subscribe(client, &deep, qos(Qos::AtLeastOnce));
        assert!(held(&cluster) - of_long > 100 * 96 * u64::from(shards));
        assert!(cluster.unsubscribe(client, &deep));
        assert_eq!(held(&cluster), of_long);
        cluster.close(client, sterna_broker::Close::LOST);
        let client = cluster.open(shards - 1, "a");
        assert_eq!(held(&cluster), of_long, "it is where its session is");
        cluster.subscribe(client, &deep, qos(Qos::AtLeastOnce));
        let close = sterna_broker::Close {
            expiry_s: Some(0),
            ..sterna_broker::Close::NORMAL
        };
        cluster.close(client, close);
        assert_eq!(held(&cluster), 0);
    }
}

/// Every subscription of a shard comes once, whatever the sizes of pages and the places that a page looks at.
#[test]
fn administrators_see_subscriptions_by_topic_and_filter() {
    let mut cluster = Cluster::new(1);
    let filters = ["a/b", "a/+", "#", "$share/g/a/b", "x/#"];
    for name in ["one", "two", "three"] {
        let client = cluster.open(0, name);
        for filter in filters {
            cluster.subscribe(client, filter, qos(Qos::AtLeastOnce));
        }
    }
    let all = |cluster: &mut Cluster, limit, slots, wish: Wish<'_>| {
        let (mut found, mut from, mut behind) = (Vec::new(), 0, None);
        loop {
            let at = (from, behind.as_deref());
            let page = cluster
                .broker(0)
                .subscriptions_within(at, limit, slots, wish);
            assert!(page.found.len() <= limit);
            let named = page.found.into_iter();
            found.extend(named.map(|(name, one)| format!("{} {}", name.id(), one.filter)));
            match page.next {
                Some(next) => (from, behind) = next,
                None => break,
            }
        }
        found.sort_unstable();
        found
    };
    let expected = |filters: &[&str]| {
        let names = ["one", "three", "two"].into_iter();
        let mut lines: Vec<String> = names
            .flat_map(|name| filters.iter().map(move |filter| format!("{name} {filter}")))
            .collect();
        lines.sort_unstable();
        lines
    };
    let of = |topic, filter| Wish { topic, filter };
    for limit in [1, 2, 4, 5, 7, 100] {
        for slots in [1, 2, 1_000] {
            for (wish, filters) in [
                (of(None, None), &filters[..]),
                (of(Some("a/b"), None), &filters[..4]),
                (of(Some("x"), None), &["#", "x/#"]),
                (of(Some("$SYS/x"), None), &[]),
                (of(None, Some("a/+")), &["a/+"]),
                (of(None, Some("a/c")), &[]),
                (of(Some("a/b"), Some("x/#")), &[]),
            ] {
                let found = all(&mut cluster, limit, slots, wish);
                assert_eq!(found, expected(filters), "{wish:?} {limit} {slots}");
            }
        }
    }
}

/// What a message would reach is told without one.
#[test]
fn the_reach_of_a_topic_is_what_a_message_matches() {
    let mut cluster = Cluster::new(2);
    for (shard, name) in [(0, "one"), (1, "two"), (1, "three")] {
        let client = cluster.open(shard, name);
        cluster.subscribe(client, "a/+", qos(Qos::AtLeastOnce));
        cluster.subscribe(client, "#", qos(Qos::AtLeastOnce));
        cluster.subscribe(client, "$share/g/a/b", qos(Qos::AtLeastOnce));
    }
    for shard in [0, 1] {
        for (topic, shared) in [("a/b", 1), ("a/c", 0), ("x", 0), ("$x", 0)] {
            let reach = cluster.broker(shard).reach(topic).expect("a topic");
            let matched = cluster.publish(shard, topic, "x", Qos::AtMostOnce).matched;
            assert_eq!((reach.matched, reach.shared), (matched, shared), "{topic}");
            assert_eq!((reach.queues, reach.nodes), (0, 0));
        }
        assert_eq!(cluster.broker(shard).reach("a/+"), None);
    }
}
