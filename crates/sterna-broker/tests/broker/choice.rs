//! Consumers that don't take every message, and what becomes of what they give back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sterna_broker::{
    Close, Message, NEVER_EXPIRES_S, OpenSession, Outcome, Qos, Selector, SessionName,
};

use crate::cluster::{Client, Cluster, expiring, qos, text};

const QUEUE: &str = "$share/queue/q/#";

/// Wants payloads that start with a letter, and counts how often it is asked.
#[derive(Debug)]
struct Letter {
    letter: u8,
    asked: AtomicUsize,
}

impl Selector for Letter {
    fn selects(&self, message: &Message, _steps: &mut u64) -> Option<bool> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Some(message.payload().first() == Some(&self.letter))
    }
}

fn letter(letter: char) -> Arc<Letter> {
    Arc::new(Letter {
        letter: letter as u8,
        asked: AtomicUsize::new(0),
    })
}

fn selective(
    cluster: &mut Cluster,
    shard: u16,
    name: &str,
    selector: &Arc<Letter>,
    credit: u32,
) -> Client {
    let client = cluster.open_on_demand(shard, name, Some(Arc::clone(selector) as _));
    cluster.subscribe(client, QUEUE, qos(Qos::AtLeastOnce));
    cluster.demand(client, credit);
    cluster.run();
    client
}

fn publish(cluster: &mut Cluster, payloads: &[&str]) {
    for payload in payloads {
        cluster.publish(0, "q", payload, Qos::AtLeastOnce);
    }
}

#[test]
fn a_group_gives_its_members_what_they_want_in_order() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        publish(&mut cluster, &["a1", "b1", "c1", "a2", "b2", "c2"]);
        let (wants_a, wants_b) = (letter('a'), letter('b'));
        let a = selective(&mut cluster, 0, "a", &wants_a, 100);
        let b = selective(&mut cluster, shards - 1, "b", &wants_b, 100);
        assert_eq!(cluster.drain(a), ["a1", "a2"]);
        assert_eq!(cluster.drain(b), ["b1", "b2"]);
        publish(&mut cluster, &["c3", "b3", "a3"]);
        assert_eq!(cluster.drain(a), ["a3"]);
        assert_eq!(cluster.drain(b), ["b3"]);
        // Each message was looked at once by each at most.
        assert!(wants_a.asked.load(Ordering::Relaxed) <= 9);
        assert!(wants_b.asked.load(Ordering::Relaxed) <= 9);
        // The others have waited in order.
        let all = cluster.consume(0, "all", QUEUE);
        cluster.demand(all, 100);
        cluster.run();
        assert_eq!(cluster.drain(all), ["c1", "c2", "c3"]);
        cluster.assert_empty();
    }
}

/// The work is one look per message and member, however often there is something to dispatch.
#[test]
fn what_nobody_wants_is_not_looked_at_again() {
    let mut cluster = Cluster::new(1);
    cluster.keep(0, QUEUE);
    for _ in 0..1_000 {
        publish(&mut cluster, &["x"]);
    }
    let wants = letter('a');
    let consumer = selective(&mut cluster, 0, "a", &wants, 1_000);
    assert_eq!(wants.asked.load(Ordering::Relaxed), 1_000);
    let other = cluster.consume(0, "other", QUEUE);
    for i in 0..100 {
        publish(&mut cluster, &["a", "y"]);
        assert_eq!(cluster.drain(consumer), ["a"]);
        // Another member takes the first and gives it back: one look more.
        cluster.demand(other, 1);
        let first = cluster.next(other).unwrap();
        cluster.settle(other, first.tag, Outcome::Released);
        let asked = wants.asked.load(Ordering::Relaxed);
        assert_eq!(asked, 1_000 + 3 * (i + 1));
    }
}

/// What comes back in front of a member's cursor is for it, if it wants it; of any number.
#[test]
fn a_member_gets_what_others_give_back() {
    for shards in 1..=2 {
        for count in [1, 5, 100] {
            let mut cluster = Cluster::new(shards);
            cluster.keep(0, QUEUE);
            for i in 0..count {
                publish(&mut cluster, &[&format!("a{i:03}"), "x"]);
            }
            let other = cluster.consume(0, "other", QUEUE);
            cluster.demand(other, 2 * count);
            cluster.run();
            let taken = cluster.take(other);
            assert_eq!(taken.len(), 2 * count as usize);
            // It has seen all there is.
            publish(&mut cluster, &["x"]);
            let a = selective(&mut cluster, shards - 1, "a", &letter('a'), 0);
            cluster.demand(a, 1);
            cluster.run();
            for delivery in &taken {
                cluster.settle(other, delivery.tag, Outcome::Released);
            }
            cluster.demand(a, 1_000);
            cluster.run();
            let expected: Vec<_> = (0..count).map(|i| format!("a{i:03}")).collect();
            assert_eq!(cluster.drain(a), expected);
            cluster.demand(other, 1_000);
            cluster.run();
            assert_eq!(cluster.drain(other).len(), count as usize + 1);
            cluster.assert_empty();
        }
    }
}

#[test]
fn a_sessions_own_queue_takes_only_what_is_selected() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        for (topic, payload) in [("t/1", "a-kept"), ("t/2", "b-kept")] {
            cluster.retain(0, topic, payload);
        }
        let open = |cluster: &mut Cluster, shard, selector: Option<Arc<Letter>>| {
            let request = OpenSession {
                name: SessionName::new(None, "s"),
                clean_start: false,
                expiry_s: NEVER_EXPIRES_S,
                consumer: sterna_broker::ConsumerId::default(),
                will: None,
                on_demand: false,
                selector: selector.map(|selector| selector as _),
            };
            let (consumer, opened) = cluster.start_request(shard, request);
            cluster.run();
            let (sterna_broker::Opened::Ready { session, .. }
            | sterna_broker::Opened::Pending { session }) = opened;
            Client {
                shard,
                key: session,
                consumer,
                present: true,
            }
        };
        let client = open(&mut cluster, 0, Some(letter('a')));
        cluster.subscribe(client, "t/#", qos(Qos::AtLeastOnce));
        assert_eq!(cluster.drain(client), ["a-kept"]);
        let send = |cluster: &mut Cluster| {
            for payload in ["a", "b", "c"] {
                cluster.publish(shards - 1, "t", payload, Qos::AtLeastOnce);
            }
        };
        send(&mut cluster);
        assert_eq!(cluster.drain(client), ["a"]);
        // Also while it is away.
        cluster.close(client, Close::LOST);
        send(&mut cluster);
        let client = open(&mut cluster, shards - 1, Some(letter('a')));
        assert_eq!(cluster.drain(client), ["a"]);
        // Who comes with another choice doesn't get what waits and is not for it.
        cluster.close(client, Close::LOST);
        send(&mut cluster);
        let client = open(&mut cluster, 0, Some(letter('b')));
        send(&mut cluster);
        assert_eq!(cluster.drain(client), ["b"]);
        let client = open(&mut cluster, shards - 1, None);
        send(&mut cluster);
        assert_eq!(cluster.drain(client), ["a", "b", "c"]);
        for topic in ["t/1", "t/2"] {
            cluster.retain(0, topic, "");
        }
        assert_eq!(cluster.drain(client), ["", ""]);
        cluster.assert_empty();
    }
}

/// What is put in the place of a message that is out is what comes back, in a session's queue and in a
/// group's, and what is counted.
#[test]
fn another_message_takes_the_place_of_one_that_was_sent() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let owner = cluster.open(0, "owner");
        cluster.subscribe(owner, "q/#", qos(Qos::AtLeastOnce));
        publish(&mut cluster, &["x"]);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        for client in [owner, consumer] {
            cluster.demand(client, 1);
            cluster.run();
            let delivery = cluster.next(client).unwrap();
            let header = delivery.message.header();
            for payload in ["longer", "and longer"] {
                let other =
                    Message::copy(delivery.message.topic(), b"", payload.as_bytes(), header);
                let broker = cluster.broker(client.shard);
                let before = broker.counters().stored_bytes;
                assert!(broker.replace(client.key, delivery.tag, other.unwrap()));
                assert!(broker.counters().stored_bytes > before);
            }
            cluster.settle(client, delivery.tag, Outcome::Failed);
            cluster.demand(client, 1);
            cluster.run();
            let again = cluster.next(client).unwrap();
            assert_eq!((text(&again).as_str(), again.failures), ("and longer", 1));
            let other = Message::copy("q/x", b"", b"z", header).unwrap();
            let broker = cluster.broker(client.shard);
            assert!(!broker.replace(client.key, again.tag + 1, other));
            cluster.settle(client, again.tag, Outcome::Accepted);
        }
        for shard in 0..shards {
            let counters = cluster.broker(shard).counters();
            assert_eq!((counters.stored_messages, counters.stored_bytes), (0, 0));
        }
    }
}

#[test]
fn failures_are_counted_and_releases_are_not() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        // In a session's own queue and in a group's.
        let owner = cluster.open(0, "owner");
        cluster.subscribe(owner, "q/#", qos(Qos::ExactlyOnce));
        publish(&mut cluster, &["x"]);
        let consumer = cluster.consume(shards - 1, "c", QUEUE);
        for client in [owner, consumer] {
            let mut failures = 0;
            for (outcome, counts) in [
                (Outcome::Released, 0),
                (Outcome::Failed, 1),
                (Outcome::Failed, 1),
                (Outcome::Released, 0),
            ] {
                cluster.demand(client, 1);
                cluster.run();
                let delivery = cluster.next(client).unwrap();
                assert_eq!(delivery.failures, failures);
                cluster.settle(client, delivery.tag, outcome);
                failures += counts;
            }
            assert_eq!(failures, 2);
        }
        // The end of a connection is no failure.
        cluster.demand(consumer, 1);
        cluster.run();
        assert_eq!(cluster.next(consumer).unwrap().failures, 2);
        let again = cluster.consume(shards - 1, "c", QUEUE);
        cluster.demand(again, 1);
        cluster.run();
        assert_eq!(cluster.next(again).unwrap().failures, 2);

        assert_eq!(cluster.next(owner).unwrap().failures, 2);
        let owner = cluster.open(shards - 1, "owner");
        let unacknowledged = cluster.broker(owner.shard).unacknowledged(owner.key);
        let [sterna_broker::Unacknowledged::Sent(delivery)] = &unacknowledged[..] else {
            panic!("one was sent");
        };
        assert_eq!((delivery.failures, delivery.redelivered), (2, true));
        cluster.settle(owner, delivery.tag, Outcome::Released);
        assert_eq!(cluster.next(owner).unwrap().failures, 2);
    }
}

#[test]
fn an_undeliverable_message_goes_to_others_only() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        publish(&mut cluster, &["0", "1", "2"]);
        let first = cluster.consume(0, "first", QUEUE);
        cluster.demand(first, 100);
        cluster.run();
        for _ in 0..3 {
            let delivery = cluster.next(first).unwrap();
            let outcome = if text(&delivery) == "1" {
                Outcome::Accepted
            } else {
                Outcome::Undeliverable
            };
            cluster.settle(first, delivery.tag, outcome);
        }
        // They wait for another; what is new doesn't.
        cluster.demand(first, 100);
        publish(&mut cluster, &["3"]);
        assert_eq!(cluster.drain(first), ["3"]);
        let second = cluster.consume(shards - 1, "second", QUEUE);
        cluster.demand(second, 1);
        cluster.run();
        let delivery = cluster.next(second).unwrap();
        assert_eq!((text(&delivery).as_str(), delivery.failures), ("0", 1));
        cluster.settle(second, delivery.tag, Outcome::Released);
        assert!(cluster.next(first).is_none(), "still not");
        // In its next attendance it gets them as anybody does.
        cluster.close(second, Close::NORMAL);
        cluster.close(first, Close::NORMAL);
        let first = cluster.consume(0, "first", QUEUE);
        cluster.demand(first, 100);
        cluster.run();
        assert_eq!(cluster.drain(first), ["0", "2"]);
        cluster.assert_empty();
    }
}

#[test]
fn an_undeliverable_message_of_a_sessions_own_queue_is_dropped() {
    let mut cluster = Cluster::new(1);
    let client = cluster.open(0, "a");
    cluster.subscribe(client, "t", qos(Qos::ExactlyOnce));
    for payload in ["0", "1"] {
        cluster.publish(0, "t", payload, Qos::ExactlyOnce);
    }
    let delivery = cluster.next(client).unwrap();
    cluster.settle(client, delivery.tag, Outcome::Undeliverable);
    drop(delivery);
    assert_eq!(cluster.drain(client), ["1"]);
    cluster.assert_empty();
}

/// What no member wants leaves when its time is over, and makes room.
#[test]
fn unwanted_messages_expire() {
    for shards in 1..=2 {
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let consumer = selective(&mut cluster, 0, "a", &letter('a'), 100);
        let expires_at_ms = cluster.now_ms + 100;
        for payload in ["x", "y"] {
            cluster.send(
                0,
                None,
                expiring("q", payload, Qos::AtLeastOnce, expires_at_ms),
            );
        }
        cluster.run();
        cluster.pass(10_000);
        cluster.assert_empty();
        publish(&mut cluster, &["a"]);
        assert_eq!(cluster.drain(consumer), ["a"]);
        for broker in &cluster.brokers {
            assert_eq!(broker.deadline_ms(), None);
        }
    }
}

/// Against a model of the queue: random members, choices, outcomes and departures.
#[test]
fn every_message_reaches_somebody_who_wants_it_in_order() {
    for seed in 0..60_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |bound: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % bound
        };
        let shards = 1 + (seed % 3) as u16;
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let mut clients: Vec<(Client, Option<char>)> = Vec::new();
        let mut held: Vec<(usize, u64, String)> = Vec::new();
        let (mut published, mut accepted) = (0, Vec::new());
        for step in 0..400 {
            match below(10) {
                0 if clients.len() < 6 => {
                    let wants = [None, Some('a'), Some('b')][below(3) as usize];
                    let shard = below(u64::from(shards)) as u16;
                    let selector = wants.map(|wants| letter(wants) as Arc<dyn Selector>);
                    let client = cluster.open_on_demand(shard, &format!("c{step}"), selector);
                    cluster.subscribe(client, QUEUE, qos(Qos::AtLeastOnce));
                    clients.push((client, wants));
                }
                1 if !clients.is_empty() && below(4) == 0 => {
                    let at = below(clients.len() as u64) as usize;
                    let (client, _) = clients[at];
                    held.retain(|(owner, ..)| *owner != at);
                    clients.remove(at);
                    for (owner, ..) in &mut held {
                        *owner -= usize::from(*owner > at);
                    }
                    cluster.close(client, Close::LOST);
                }
                2..=4 => {
                    let payload = format!("{}{published:04}", ["a", "b"][below(2) as usize]);
                    published += 1;
                    let shard = below(u64::from(shards)) as u16;
                    assert!(
                        !cluster
                            .publish(shard, "q", &payload, Qos::AtMostOnce)
                            .is_refused()
                    );
                }
                5..=6 if !clients.is_empty() => {
                    let at = below(clients.len() as u64) as usize;
                    let (client, wants) = clients[at];
                    let credit = below(6) as u32;
                    cluster.demand(client, credit);
                    cluster.run();
                    let deliveries = cluster.take(client);
                    assert!(deliveries.len() <= credit as usize);
                    for delivery in deliveries {
                        let payload = text(&delivery);
                        assert!(wants.is_none_or(|wants| payload.starts_with(wants)));
                        held.push((at, delivery.tag, payload));
                    }
                }
                _ if !held.is_empty() => {
                    let at = below(held.len() as u64) as usize;
                    let (owner, tag, payload) = held.swap_remove(at);
                    let outcome = match below(5) {
                        0 => Outcome::Released,
                        1 => Outcome::Failed,
                        2 => Outcome::Undeliverable,
                        _ => {
                            accepted.push(payload);
                            Outcome::Accepted
                        }
                    };
                    cluster.settle(clients[owner].0, tag, outcome);
                }
                _ => {}
            }
        }
        for (client, _) in clients {
            cluster.close(client, Close::NORMAL);
        }
        // What was lost with its consumer waits for a while.
        cluster.pass(60_000);
        // One that takes the a's, then one that takes all: each in order.
        for selector in [Some(letter('a')), None] {
            let wants_all = selector.is_none();
            let selector = selector.map(|selector| selector as Arc<dyn Selector>);
            let last = cluster.open_on_demand(shards - 1, "last", selector);
            cluster.subscribe(last, QUEUE, qos(Qos::AtLeastOnce));
            cluster.demand(last, 1_000);
            cluster.run();
            let rest = cluster.drain(last);
            assert!(
                rest.is_sorted_by_key(|payload| payload[1..].to_owned()),
                "seed {seed}"
            );
            assert!(
                rest.iter()
                    .all(|payload| payload.starts_with('a') != wants_all)
            );
            accepted.extend(rest);
            cluster.close(last, Close::NORMAL);
        }
        accepted.sort();
        accepted.dedup();
        assert_eq!(accepted.len(), published, "seed {seed}");
        cluster.assert_empty();
    }
}
