//! Who holds retained messages: one principal cannot take the last part of their share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use sterna_broker::{
    Close, FromPeer, Limits, Message, MessageHeader, OpenSession, PeerGate, Principal, Publication,
    Publisher, Qos, RETAINED_MESSAGE_BYTES, Retention, SessionName, Store, Will,
};
use sterna_store::MemoryStore;

use crate::cluster::{Cluster, message, qos};
use crate::random::Random;
use crate::seeds;

const ATTACKER: Publisher<'static> = user("attacker");
const HONEST: Publisher<'static> = user("honest");

const fn user(name: &str) -> Publisher<'_> {
    Publisher {
        user: Some(name),
        address: None,
    }
}

fn network(address: &str) -> Publisher<'static> {
    Publisher {
        user: None,
        address: Some(address.parse().expect("an address")),
    }
}

fn sends(cluster: &mut Cluster, publisher: Publisher<'_>, message: Message) -> Retention {
    let publication = Publication {
        publisher: Some(publisher),
        ..Publication::new(None, message)
    };
    let now_ms = cluster.now_ms;
    let routed = cluster.broker(0).publish(now_ms, publication);
    cluster.collect(0);
    cluster.run();
    cluster.broker(0).check();
    routed.retention
}

fn retains(
    cluster: &mut Cluster,
    publisher: Publisher<'_>,
    topic: &str,
    payload: &str,
) -> Retention {
    let message = message(topic, payload, Qos::AtLeastOnce, true);
    sends(cluster, publisher, message)
}

/// Retains messages until one is refused, and returns how many were kept.
fn fill(cluster: &mut Cluster, publisher: Publisher<'_>, prefix: &str) -> usize {
    let kept = (0..1_000).take_while(|number| {
        retains(cluster, publisher, &format!("{prefix}/{number}"), "12345") == Retention::Stored
    });
    kept.count()
}

fn of(cluster: &Cluster, publisher: Publisher<'_>) -> (usize, u64) {
    let principals = cluster.directory.principals();
    let found = principals.find(publisher.user, publisher.address);
    found.map_or((0, 0), |found| cluster.directory.retained_by(found))
}

/// Of the number, and of the bytes.
fn limits_of_a_hundred() -> [Limits; 2] {
    [
        Limits {
            retained_messages: 100,
            ..Limits::default()
        },
        Limits {
            retained_bytes: 100 * (RETAINED_MESSAGE_BYTES + 12),
            ..Limits::default()
        },
    ]
}

#[test]
fn the_last_part_is_for_all_but_those_that_hold_most() {
    for limits in limits_of_a_hundred() {
        let mut cluster = Cluster::limited(limits);
        let kept = fill(&mut cluster, ATTACKER, "a");
        assert!((84..=87).contains(&kept), "{kept}");
        // What does not grow always goes.
        assert_eq!(
            retains(&mut cluster, ATTACKER, "a/0", "54321"),
            Retention::Stored
        );
        assert_eq!(
            retains(&mut cluster, ATTACKER, "a/0", ""),
            Retention::Cleared
        );
        assert_eq!(
            retains(&mut cluster, ATTACKER, "a/0", "x"),
            Retention::Stored
        );
        assert_eq!(
            retains(&mut cluster, ATTACKER, "b", "x"),
            Retention::Refused
        );
        let light = fill(&mut cluster, HONEST, "h");
        assert!((12..=16).contains(&light), "{light}");
        assert_eq!(of(&cluster, ATTACKER).0, kept);
        assert_eq!(of(&cluster, HONEST).0, light);
        // The share is full for everybody then.
        let third = network("10.0.0.3");
        assert_eq!(retains(&mut cluster, third, "t", "x"), Retention::Refused);
    }
}

/// A larger message in the place of another grows in bytes alone.
#[test]
fn a_larger_replacement_counts_where_bytes_are_scarce() {
    let long = "x".repeat(500);
    for (limits, expected) in limits_of_a_hundred()
        .into_iter()
        .zip([Retention::Stored, Retention::Refused])
    {
        let mut cluster = Cluster::limited(limits);
        fill(&mut cluster, ATTACKER, "a");
        assert_eq!(retains(&mut cluster, ATTACKER, "a/1", &long), expected);
        retains(&mut cluster, HONEST, "h", "x");
        assert_eq!(retains(&mut cluster, HONEST, "h", &long), Retention::Stored);
    }
}

#[test]
fn the_part_is_a_setting() {
    let mut cluster = Cluster::limited(Limits {
        retained_messages: 100,
        retained_heavy_percent: 100,
        ..Limits::default()
    });
    assert_eq!(fill(&mut cluster, ATTACKER, "a"), 100);
    assert_eq!(retains(&mut cluster, HONEST, "h", "x"), Retention::Refused);
}

/// The broker itself has no part that ends earlier, and its reports take no place of a client's.
#[test]
fn what_the_broker_retains_is_never_too_much_of_one() {
    let mut cluster = Cluster::limited(Limits {
        retained_messages: 100,
        ..Limits::default()
    });
    for topic in ["own", "$SYS"] {
        for number in 0..98 {
            let routed = cluster.retain(0, &format!("{topic}/{number}"), "x");
            assert_eq!(routed.retention, Retention::Stored, "{topic} {number}");
        }
    }
    // Of all others, who has something has most.
    assert_eq!(fill(&mut cluster, ATTACKER, "a"), 1);
    assert_eq!(fill(&mut cluster, HONEST, "h"), 1);
    for (topic, expected) in [
        ("own/more", Retention::Refused),
        ("$SYS/more", Retention::Stored),
    ] {
        assert_eq!(cluster.retain(0, topic, "x").retention, expected, "{topic}");
    }
}

fn opens(cluster: &mut Cluster, name: SessionName, address: IpAddr, will: Option<Will>) {
    let request = OpenSession {
        name,
        clean_start: true,
        expiry_s: 0,
        consumer: sterna_broker::ConsumerId(7),
        will,
        on_demand: false,
        selector: None,
    };
    let now_ms = cluster.now_ms;
    let peer = Some((address, 1).into());
    let opened = cluster.broker(0).open_from(now_ms, peer, request);
    let Ok(sterna_broker::Opened::Ready { session, .. }) = opened else {
        panic!("{opened:?}");
    };
    let of_session = message("of/session", "x", Qos::AtMostOnce, true);
    let publication = Publication::new(Some(session), of_session);
    cluster.broker(0).publish(now_ms, publication);
    cluster.broker(0).close(now_ms, session, Close::LOST);
    cluster.collect(0);
    cluster.run();
    cluster.broker(0).check();
}

/// A session's messages and its will are of who holds the session. They stay when it ends, and so does the place.
#[test]
fn a_session_and_its_will_retain_for_their_user_or_network() {
    let mut cluster = Cluster::new(1);
    let address = "10.0.0.7".parse().expect("an address");
    for (user, publisher) in [(Some("u"), user("u")), (None, network("10.0.0.7"))] {
        let will = Will {
            is_given: false,
            is_unproved: false,
            message: message("will", "x", Qos::AtMostOnce, true),
            delay_s: 0,
            expiry_s: None,
        };
        opens(
            &mut cluster,
            SessionName::new(user, "c"),
            address,
            Some(will),
        );
        assert_eq!(cluster.directory.sessions(), 0);
        assert_eq!(of(&cluster, publisher).0, 2, "{user:?}");
        assert_eq!(cluster.directory.principals().len(), 1);
    }
    for topic in ["will", "of/session"] {
        assert_eq!(retains(&mut cluster, HONEST, topic, ""), Retention::Cleared);
    }
    assert!(cluster.directory.principals().is_empty());
}

fn restarted(limits: &Limits, store: &MemoryStore, now_ms: u64) -> Cluster {
    let boxed = |_| -> Box<dyn Store> { Box::new(store.clone()) };
    let mut cluster = Cluster::with(1, limits.clone(), boxed);
    cluster.now_ms = now_ms;
    cluster.broker(0).restore(now_ms);
    cluster.broker(0).all_restored(now_ms);
    cluster.collect(0);
    cluster.run();
    cluster.broker(0).check();
    cluster
}

#[test]
fn who_holds_them_is_known_after_a_restart() {
    let attackers = [ATTACKER, network("10.0.0.1"), network("2001:db8:7::1")];
    for (attacker, limits) in attackers
        .into_iter()
        .zip(limits_of_a_hundred().iter().cycle())
    {
        let store = MemoryStore::new();
        let mut cluster = restarted(limits, &store, 1_000_000);
        let kept = fill(&mut cluster, attacker, "a");
        assert_eq!(of(&cluster, attacker).0, kept);
        drop(cluster);
        let mut cluster = restarted(limits, &store, 2_000_000);
        assert_eq!(of(&cluster, attacker).0, kept);
        assert_eq!(
            retains(&mut cluster, attacker, "b", "x"),
            Retention::Refused
        );
        assert_eq!(retains(&mut cluster, HONEST, "h", "x"), Retention::Stored);
    }
}

/// A limit that was lowered since ends nothing, and the heaviest is known all the same.
#[test]
fn a_share_that_was_lowered_keeps_what_there_was() {
    let store = MemoryStore::new();
    let [limits, _] = limits_of_a_hundred();
    fill(&mut restarted(&limits, &store, 1_000_000), ATTACKER, "a");
    let lowered = Limits {
        retained_messages: 10,
        ..limits
    };
    let mut cluster = restarted(&lowered, &store, 2_000_000);
    assert_eq!(of(&cluster, ATTACKER).0, 85);
    assert_eq!(
        retains(&mut cluster, ATTACKER, "a/0", "54321"),
        Retention::Refused,
        "a full share takes no more than before"
    );
}

/// What another node has retained is not refused here, or nodes would differ.
#[test]
fn what_other_nodes_retain_counts_for_others_and_always_goes() {
    let mut cluster = Cluster::limited(Limits {
        retained_messages: 100,
        ..Limits::default()
    });
    let gate = Arc::new(PeerGate::new(10_000));
    cluster.broker(0).join_cluster(Arc::clone(&gate));
    gate.set_knows_wanted();
    gate.set_open(true);
    for number in 0..95 {
        let what = if number % 2 == 0 {
            FromPeer::Retain
        } else {
            FromPeer::Publish
        };
        comes_by(&mut cluster, &gate, &format!("p/{number}"), what);
    }
    assert_eq!(cluster.directory.retained_by(Principal::OTHERS).0, 95);
    assert_eq!(retains(&mut cluster, HONEST, "h", "x"), Retention::Stored);
    // Its own message comes by again, and is still the user's.
    comes_by(&mut cluster, &gate, "h", FromPeer::Retain);
    assert_eq!(of(&cluster, HONEST).0, 1);
    let other = Publisher::default();
    assert_eq!(retains(&mut cluster, other, "o", "x"), Retention::Refused);
    cluster.now_ms += 1;
    comes_by(&mut cluster, &gate, "h", FromPeer::Retain);
    assert_eq!(of(&cluster, HONEST).0, 0, "this one is another node's");
    assert!(cluster.directory.principals().is_empty());
}

fn comes_by(cluster: &mut Cluster, gate: &PeerGate, topic: &str, what: FromPeer) {
    let header = MessageHeader {
        qos: Qos::AtLeastOnce,
        retain: true,
        published_ms: cluster.now_ms,
        expires_at_ms: None,
    };
    let message = Message::copy(topic, &[], b"x", header).expect("it fits");
    gate.arrives(&message);
    let now_ms = cluster.now_ms;
    cluster.broker(0).publish_from_peer(now_ms, message, what);
    cluster.broker(0).check();
}

/// A retained message of the model: whose it is, and when it ends.
#[derive(Clone, Copy, Debug)]
struct Modelled {
    /// By number; `None` for those without a place, and for who has no name.
    holder: Option<usize>,
    expires_at_ms: u64,
}

/// Users and networks, of which not all have a place, and one without a name.
fn everybody() -> Vec<Publisher<'static>> {
    let mut all: Vec<_> = ["u", "v", "w"].map(user).into();
    all.extend(["10.0.0.1", "10.0.0.2", "2001:db8::"].map(network));
    all.push(Publisher::default());
    all
}

const PLACES: usize = 4;

fn holders(model: &BTreeMap<String, Modelled>) -> BTreeSet<usize> {
    model.values().filter_map(|kept| kept.holder).collect()
}

fn agree(cluster: &mut Cluster, model: &BTreeMap<String, Modelled>, all: &[Publisher<'_>]) {
    cluster.broker(0).check();
    let mut sums: BTreeMap<Option<usize>, (usize, u64)> = BTreeMap::new();
    for (topic, kept) in model {
        let now_ms = cluster.now_ms;
        let message = cluster.broker(0).retained(now_ms, topic);
        let body_bytes = message.expect("it is there").body_bytes();
        let sum = sums.entry(kept.holder).or_default();
        *sum = (
            sum.0 + 1,
            sum.1 + (body_bytes + RETAINED_MESSAGE_BYTES) as u64,
        );
    }
    let sum = |holder| sums.get(&holder).copied().unwrap_or_default();
    for (number, publisher) in all.iter().enumerate().take(all.len() - 1) {
        assert_eq!(of(cluster, *publisher), sum(Some(number)), "{publisher:?}");
    }
    let others = cluster.directory.retained_by(Principal::OTHERS);
    assert_eq!(others, sum(None), "all others");
    assert_eq!(cluster.directory.retained().0, model.len());
    assert_eq!(cluster.directory.principals().len(), holders(model).len());
}

fn play(seed: u64) {
    let limits = Limits {
        retained_messages: 20,
        principals: PLACES,
        ..Limits::default()
    };
    let store = MemoryStore::new();
    let mut random = Random::from_seed(seed);
    let mut cluster = restarted(&limits, &store, 1_000_000);
    // The messages go into the log, which may have no room for them.
    let reader = cluster.open(0, "reader");
    cluster.subscribe(reader, "t/#", qos(Qos::AtLeastOnce));
    cluster.close(reader, Close::LOST);
    let all = everybody();
    let mut model: BTreeMap<String, Modelled> = BTreeMap::new();
    let mut refused = 0;
    for _ in 0..600 {
        match random.below(20) {
            0 => {
                let now_ms = cluster.now_ms;
                drop(cluster);
                cluster = restarted(&limits, &store, now_ms);
            }
            1 | 2 => {
                let passed_ms = random.below(3_000);
                cluster.pass(passed_ms);
                // They are dropped once a second.
                let now_ms = cluster.now_ms;
                cluster.broker(0).timeout(now_ms);
            }
            3 => {
                let topic = format!("t/{}", random.below(30));
                let is_there = model.remove(&topic).is_some();
                assert_eq!(cluster.broker(0).clear_retained(&topic), is_there);
            }
            _ => {
                refused += usize::from(publishes(
                    &mut cluster,
                    &store,
                    &mut model,
                    &mut random,
                    &all,
                ));
            }
        }
        let now_ms = cluster.now_ms;
        model.retain(|_, kept| kept.expires_at_ms > now_ms);
        agree(&mut cluster, &model, &all);
    }
    assert!(refused > 0, "the store has refused some");
    for topic in model.keys() {
        assert!(cluster.broker(0).clear_retained(topic));
    }
    agree(&mut cluster, &BTreeMap::new(), &all);
}

/// Publishes one to three messages of somebody, as a whole. Returns whether the store has refused them.
fn publishes(
    cluster: &mut Cluster,
    store: &MemoryStore,
    model: &mut BTreeMap<String, Modelled>,
    random: &mut Random,
    all: &[Publisher<'_>],
) -> bool {
    let number = random.below(all.len() as u64) as usize;
    let count = 1 + random.below(3);
    let mut messages = Vec::new();
    for _ in 0..count {
        let topic = format!("t/{}", random.below(30));
        let payload = "x".repeat(random.below(4) as usize * 5);
        let expires_at_ms = if random.below(2) == 0 {
            cluster.now_ms + 1 + random.below(10_000)
        } else {
            u64::MAX
        };
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            retain: true,
            expires_at_ms: Some(expires_at_ms).filter(|&at_ms| at_ms < u64::MAX),
            ..MessageHeader::default()
        };
        let message = Message::copy(&topic, &[], payload.as_bytes(), header).expect("it fits");
        messages.push((message, expires_at_ms));
    }
    let known = holders(model);
    let is_named = number + 1 < all.len();
    let has_place = known.contains(&number) || known.len() < PLACES;
    let holder = Some(number).filter(|_| is_named && has_place);
    if random.below(8) == 0 {
        store.refuse_next();
    }
    let before = model.clone();
    let now_ms = cluster.now_ms;
    let routed = if count == 1 {
        let (message, expires_at_ms) = messages.remove(0);
        let topic = message.topic().to_owned();
        let old = before.get(&topic);
        let publication = Publication {
            publisher: Some(all[number]),
            ..Publication::new(None, message)
        };
        let routed = cluster.broker(0).publish(now_ms, publication);
        match routed.retention {
            Retention::Stored => {
                let kept = Modelled {
                    holder,
                    expires_at_ms,
                };
                model.insert(topic, kept);
            }
            Retention::Cleared => {
                model.remove(&topic).expect("there was one");
            }
            Retention::Absent => assert!(old.is_none()),
            Retention::Refused => {
                assert!(
                    old.is_none() && model.len() >= 17,
                    "what does not grow goes"
                );
            }
            other => assert!(routed.is_refused(), "{other:?}"),
        }
        routed
    } else {
        // Those that are published together have one answer: all fit here, or the store refuses all.
        let grown: BTreeSet<_> = model
            .keys()
            .map(String::as_str)
            .chain(messages.iter().map(|(message, _)| message.topic()))
            .collect();
        if grown.len() > 16 {
            return false;
        }
        let parts: Vec<_> = messages
            .iter()
            .map(|(message, expires_at_ms)| {
                let is_clear = message.payload().is_empty();
                let kept = Modelled {
                    holder,
                    expires_at_ms: *expires_at_ms,
                };
                (message.topic().to_owned(), (!is_clear).then_some(kept))
            })
            .collect();
        let messages = messages.into_iter().map(|(message, _)| message).collect();
        let broker = cluster.broker(0);
        let routed = broker.publish_together(now_ms, Some(all[number]), messages, &[]);
        if !routed.is_refused() {
            for (topic, kept) in parts {
                match kept {
                    Some(kept) => drop(model.insert(topic, kept)),
                    None => drop(model.remove(&topic)),
                }
            }
        }
        routed
    };
    cluster.collect(0);
    cluster.run();
    routed.is_refused()
}

/// Sets, replacements by others, clears, expiries, refusals of the store and restarts leave sums that agree, and no
/// place of anybody who holds nothing.
#[test]
fn sums_of_holders_agree_whatever_happens() {
    seeds::play("retained_holders", 1..9, play);
}
