//! Opening, resuming and ending sessions.

use sterna_broker::{
    Close, ConsumerId, Event, EvictReason, Limits, NEVER_EXPIRES_S, OpenError, OpenSession, Opened,
    Qos, SessionName, Will, WillFate,
};

use crate::cluster::{Cluster, message, named, qos};

/// [MQTT-3.1.2-4] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-3.1.2-5] [MQTT-3.1.3-2]
#[test]
fn a_session_is_resumed_unless_a_clean_start_discards_it() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    assert!(!client.present);
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    cluster.broker(0).protocol_mut(client.key).unwrap().push(7);
    cluster.close(client, Close::LOST);
    assert!(
        cluster.broker(0).protocol(client.key).is_none(),
        "the key is outdated"
    );

    let client = cluster.open(0, "a");
    assert!(client.present);
    assert_eq!(cluster.broker(0).protocol(client.key), Some(&vec![7]));
    assert_eq!(cluster.publish(0, "t", "1", Qos::AtLeastOnce).matched, 1);
    cluster.close(client, Close::LOST);

    let client = cluster.open_with(0, "a", true, 3600, None);
    assert!(!client.present);
    assert_eq!(cluster.broker(0).protocol(client.key), Some(&vec![]));
    assert_eq!(cluster.publish(0, "t", "2", Qos::AtLeastOnce).matched, 0);
    assert!(cluster.drain(client).is_empty());
    cluster.assert_empty();
}

/// [MQTT-4.1.0-1] [MQTT-4.1.0-2] [MQTT-3.1.2-23]
#[test]
fn a_session_outlives_its_connection_by_its_expiry_interval() {
    let mut cluster = Cluster::new(1);
    let short = cluster.open_with(0, "short", false, 10, None);
    let never = cluster.open_with(0, "never", false, NEVER_EXPIRES_S, None);
    let none = cluster.open_with(0, "none", false, 0, None);
    for client in [short, never, none] {
        cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    }
    // While the connection is open nothing expires.
    cluster.pass(100_000);
    assert_eq!(cluster.directory.sessions(), 3);
    for client in [short, never, none] {
        cluster.close(client, Close::LOST);
    }
    assert_eq!(cluster.directory.sessions(), 2);
    cluster.pass(9_999);
    assert_eq!(cluster.publish(0, "t", "1", Qos::AtLeastOnce).matched, 2);
    cluster.pass(1);
    assert_eq!(cluster.publish(0, "t", "2", Qos::AtLeastOnce).matched, 1);
    assert_eq!(cluster.broker(0).counters().sessions_expired, 1);
    assert!(!cluster.open(0, "short").present);
    cluster.pass(1_000_000_000_000);
    let never = cluster.open(0, "never");
    assert!(never.present);
    assert_eq!(cluster.drain(never), ["1", "2"]);
}

#[test]
fn a_reconnect_in_time_stops_the_expiry_and_disconnect_can_change_it() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open_with(0, "a", false, 10, None);
    cluster.close(client, Close::LOST);
    cluster.pass(5_000);
    let client = cluster.open_with(0, "a", false, 10, None);
    assert!(client.present);
    cluster.pass(20_000);
    cluster.close(
        client,
        Close {
            will: WillFate::Discard,
            expiry_s: Some(100),
            ..Close::LOST
        },
    );
    cluster.pass(99_999);
    let client = cluster.open_with(0, "a", false, 10, None);
    assert!(client.present);
    cluster.close(
        client,
        Close {
            will: WillFate::Discard,
            expiry_s: Some(0),
            ..Close::LOST
        },
    );
    assert_eq!(cluster.directory.sessions(), 0);
    assert_eq!(cluster.broker(0).deadline_ms(), None);
}

/// [MQTT-3.1.4-3]
#[test]
fn a_second_connection_takes_the_session_over() {
    let mut cluster = Cluster::new(1);
    let first = cluster.open(0, "a");
    cluster.subscribe(first, "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "1", Qos::AtLeastOnce);
    let second = cluster.open(0, "a");
    assert!(second.present);
    assert_eq!(
        cluster.events,
        [Event::Evicted {
            consumer: first.consumer,
            reason: EvictReason::TakenOver,
            by: None,
        }]
    );
    // Whatever the evicted connection still does, it does to nobody.
    assert!(cluster.next(first).is_none());
    cluster.close(
        first,
        Close {
            will: WillFate::Publish,
            expiry_s: Some(0),
            ..Close::LOST
        },
    );
    assert!(!cluster.unsubscribe(first, "t"));
    assert_eq!(cluster.drain(second), ["1"]);
}

/// [MQTT-4.1.0-2]: the old connection's session ended with it, although the next came first.
#[test]
fn a_session_without_expiry_is_not_taken_over() {
    let mut cluster = Cluster::new(1);
    let first = cluster.open_with(0, "a", false, 0, None);
    cluster.subscribe(first, "t", qos(Qos::AtLeastOnce));
    let second = cluster.open(0, "a");
    assert!(cluster.was_evicted(first) && !second.present);
    assert_eq!(cluster.publish(0, "t", "1", Qos::AtLeastOnce).matched, 0);
    assert_eq!(cluster.directory.sessions(), 1);
}

/// Attack 13: sessions that never expire, from ever new clients.
#[test]
fn the_number_of_sessions_is_limited() {
    let mut cluster = Cluster::limited(Limits {
        sessions: 2,
        ..Limits::default()
    });
    let a = cluster.open_with(0, "a", false, NEVER_EXPIRES_S, None);
    cluster.open_with(0, "b", false, 0, None);
    cluster.close(a, Close::LOST);
    let now_ms = cluster.now_ms;
    let mut open = |client_id| {
        let request = OpenSession {
            name: SessionName::new(None, client_id),
            clean_start: true,
            expiry_s: 0,
            consumer: ConsumerId(9),
            will: None,
            on_demand: false,
            selector: None,
        };
        cluster.broker(0).open(now_ms, request)
    };
    assert_eq!(open("c"), Err(OpenError::TooManySessions));
    // Those that have one may come back, and make room.
    assert!(matches!(
        open("a"),
        Ok(Opened::Ready { present: false, .. })
    ));
    assert_eq!(open("c"), Err(OpenError::TooManySessions));
}

#[test]
fn administrators_see_and_evict_sessions() {
    let mut cluster = Cluster::new(1);
    let clients: Vec<_> = (0..5).map(|i| cluster.open(0, &format!("c{i}"))).collect();
    cluster.subscribe(clients[1], "t", qos(Qos::AtLeastOnce));
    cluster.publish(0, "t", "hello", Qos::AtLeastOnce);
    cluster.close(clients[1], Close::LOST);
    let mut names = Vec::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let (infos, next) = cluster.broker(0).sessions(at, 2);
        assert!(infos.len() <= 2);
        for info in infos {
            if info.name.id() == "c1" {
                assert_eq!((info.subscriptions, info.queue.pending), (1, 1));
                assert_eq!(info.consumer, None);
            }
            names.push(info.name.id().to_owned());
        }
        cursor = next;
    }
    names.sort();
    assert_eq!(names.len(), 5);

    let now_ms = cluster.now_ms;
    assert!(cluster.broker(0).evict(now_ms, &named("c2"), false));
    assert!(cluster.broker(0).evict(now_ms, &named("c3"), true));
    assert!(!cluster.broker(0).evict(now_ms, &named("nobody"), true));
    cluster.collect(0);
    assert!(cluster.was_evicted(clients[2]) && cluster.was_evicted(clients[3]));
    assert_eq!(cluster.directory.sessions(), 4);
    assert!(cluster.open(0, "c2").present);
    assert!(!cluster.open(0, "c3").present);
    let counters = cluster.broker(0).counters();
    assert_eq!((counters.sessions, counters.sessions_connected), (5, 4));
}

#[test]
fn a_session_is_ended_by_its_name_from_any_shard() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        let attended = cluster.open(0, "attended");
        let away = cluster.open(0, "away");
        for client in [attended, away] {
            cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
        }
        cluster.close(away, Close::NORMAL);
        let from = shards - 1;
        let now_ms = cluster.now_ms;
        for name in ["attended", "away"] {
            assert!(cluster.broker(from).owner_exists(&named(name)));
            assert!(cluster.broker(from).end_session_of(now_ms, &named(name)));
            cluster.collect(from);
            cluster.run();
            assert!(!cluster.broker(from).owner_exists(&named(name)));
        }
        assert!(
            !cluster
                .broker(from)
                .end_session_of(now_ms, &named("nobody"))
        );
        assert!(cluster.was_evicted(attended) && !cluster.was_evicted(away));
        assert_eq!(cluster.publish(0, "t", "x", Qos::AtLeastOnce).matched, 0);
        assert_eq!(cluster.directory.sessions(), 0);
    }
}

#[test]
fn the_wish_to_end_a_session_follows_it_to_another_shard() {
    let mut cluster = Cluster::new(3);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    let now_ms = cluster.now_ms;
    // The letter to the first shard is under way when the session moves to the second.
    assert!(cluster.broker(2).end_session_of(now_ms, &named("a")));
    let (consumer, opened) = cluster.start_open(1, "a", false, 3600, None);
    assert!(matches!(opened, Opened::Pending { .. }));
    cluster.collect(2);
    cluster.run();
    assert_eq!(cluster.directory.shard_of(&named("a")), None);
    assert!(
        cluster
            .events
            .iter()
            .any(|event| matches!(event, Event::Evicted { consumer: who, .. } if *who == consumer))
    );
    assert_eq!(cluster.publish(0, "t", "x", Qos::AtLeastOnce).matched, 0);
}

#[test]
fn a_session_is_ended_where_it_is_and_when_it_arrives() {
    let mut cluster = Cluster::new(2);
    for name in ["stays", "moves"] {
        cluster.open(0, name);
    }
    let now_ms = cluster.now_ms;
    assert!(!cluster.broker(1).end_session_here(now_ms, &named("stays")));
    assert!(!cluster.broker(0).end_session_here(now_ms, &named("nobody")));
    assert!(cluster.broker(0).end_session_here(now_ms, &named("stays")));
    assert_eq!(cluster.directory.shard_of(&named("stays")), None);
    let (_, opened) = cluster.start_open(1, "moves", false, 3600, None);
    assert!(matches!(opened, Opened::Pending { .. }));
    // It is on its way, and nobody may say yet that it has ended.
    for shard in [0, 1] {
        let has_ended = cluster
            .broker(shard)
            .end_session_here(now_ms, &named("moves"));
        assert!(!has_ended, "shard {shard}");
    }
    assert!(cluster.directory.shard_of(&named("moves")).is_some());
    cluster.collect(1);
    cluster.run();
    assert_eq!(cluster.directory.shard_of(&named("moves")), None);
}

/// Opens a session as a user, without a clean start unless one is asked for.
fn open_as(
    cluster: &mut Cluster,
    shard: u16,
    user: Option<&str>,
    clean_start: bool,
    will: Option<Will>,
) -> Result<Opened, OpenError> {
    let now_ms = cluster.now_ms;
    let request = OpenSession {
        name: SessionName::new(user, "a"),
        clean_start,
        expiry_s: 100,
        consumer: ConsumerId(77),
        will,
        on_demand: false,
        selector: None,
    };
    let opened = cluster.broker(shard).open(now_ms, request);
    cluster.collect(shard);
    opened
}

/// Whoever uses the client identifier of another user, on whatever shard and however, has a session of its own: the
/// other one keeps its connection, its will, its subscriptions and its queue, and gets none of its messages.
#[test]
fn sessions_of_two_users_with_one_client_identifier_are_two() {
    let users = [Some("ann"), Some("bob"), Some("a"), Some(""), None];
    for owner in users {
        let mut cluster = Cluster::new(2);
        let will = |topic| Will {
            is_given: false,
            is_unproved: false,
            message: message(topic, "gone", Qos::AtLeastOnce, false),
            delay_s: 0,
            expiry_s: None,
        };
        let request = OpenSession {
            name: SessionName::new(owner, "a"),
            clean_start: false,
            expiry_s: 100,
            consumer: ConsumerId::default(),
            will: Some(will("will/of/owner")),
            on_demand: false,
            selector: None,
        };
        let (consumer, opened) = cluster.start_request(0, request);
        let Opened::Ready { session, .. } = opened else {
            panic!("it is new");
        };
        let client = crate::cluster::Client {
            shard: 0,
            key: session,
            consumer,
            present: false,
        };
        cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
        cluster.publish(1, "t", "1", Qos::AtLeastOnce);
        let strangers = users.iter().filter(|user| **user != owner);
        for &stranger in strangers.clone() {
            for (shard, clean_start, present) in
                [(0, false, false), (0, true, false), (0, false, true)]
            {
                let opened = open_as(&mut cluster, shard, stranger, clean_start, None);
                let Ok(Opened::Ready {
                    session,
                    present: is_present,
                }) = opened
                else {
                    panic!("{owner:?} {stranger:?} {opened:?}");
                };
                assert_eq!(is_present, present, "{owner:?} {stranger:?}");
                let filters = cluster.broker(shard).filters(session).count();
                assert_eq!(filters, 0, "nothing of the other's");
                let now_ms = cluster.now_ms;
                cluster.broker(shard).close(now_ms, session, Close::LOST);
                cluster.collect(shard);
                cluster.run();
            }
            // For ever, and then gone.
            let name = SessionName::new(stranger, "a");
            assert!(cluster.broker(0).owner_exists(&name));
        }
        let evicted = |event: &&Event| matches!(event, Event::Evicted { .. });
        assert_eq!(cluster.events.iter().filter(evicted).count(), 0);
        assert_eq!(cluster.broker(0).counters().wills_published, 0);
        assert_eq!(cluster.drain(client), ["1"]);
        // The same while it is on its way to another shard, and there.
        let opened = open_as(&mut cluster, 1, owner, false, None);
        assert!(matches!(opened, Ok(Opened::Pending { .. })));
        let now_ms = cluster.now_ms;
        for &stranger in strangers.clone() {
            let name = SessionName::new(stranger, "a");
            assert!(cluster.broker(0).end_session_of(now_ms, &name));
        }
        cluster.run();
        let arrived = cluster.events.iter().find_map(|event| match event {
            Event::Opened {
                session, present, ..
            } => Some((*session, *present)),
            _ => None,
        });
        let (session, present) = arrived.expect("its owner gets it");
        assert!(present);
        assert_eq!(cluster.broker(1).filters(session).count(), 1);
        assert_eq!(cluster.directory.sessions(), 1, "only its own");
    }
}
