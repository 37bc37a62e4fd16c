//! What the hot path allocates, and what an idle session costs.

#[path = "allocations/counting.rs"]
mod counting;

use std::sync::Arc;

use counting::{allocated_bytes, allocations};
use sterna_broker::{
    Broker, Close, ConsumerId, Directory, Limits, Message, MessageHeader, NoStore, OpenSession,
    Opened, Outcome, Publication, Qos, SessionKey, ShardId, SubscribeOptions,
};

const NOW_MS: u64 = 1_000_000;

fn brokers(shards: u16) -> Vec<Broker<()>> {
    let directory = Directory::new(shards, Limits::default(), 1);
    (0..shards)
        .map(|shard| Broker::new(ShardId(shard), Arc::clone(&directory), Box::new(NoStore)))
        .collect()
}

fn open(broker: &mut Broker<()>, client_id: &str) -> SessionKey {
    let consumer = ConsumerId(1);
    let request = OpenSession {
        client_id,
        user: None,
        clean_start: true,
        expiry_s: 0,
        consumer,
        will: None,
        on_demand: false,
        selector: None,
    };
    match broker.open(NOW_MS, request) {
        Ok(Opened::Ready { session, .. }) => session,
        other => panic!("{other:?}"),
    }
}

fn subscribe(broker: &mut Broker<()>, session: SessionKey, filter: &str, qos: Qos) {
    let options = SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    broker
        .subscribe(NOW_MS, session, filter, options)
        .expect("a valid filter");
}

fn publish(broker: &mut Broker<()>, topic: &str, qos: Qos) -> usize {
    let header = MessageHeader {
        qos,
        published_ms: NOW_MS,
        ..MessageHeader::default()
    };
    let message = Message::copy(topic, &[], &[7; 64], header).expect("a small message");
    broker
        .publish(
            NOW_MS,
            Publication {
                origin: None,
                message,
            },
        )
        .matched
}

/// Hands everything that is ready to its consumer, as a front door does at the end of a turn.
fn send(broker: &mut Broker<()>) -> usize {
    let mut sent = 0;
    while let Some((_, session)) = broker.next_ready() {
        while let Some(delivery) = broker.next_delivery(NOW_MS, session) {
            sent += 1;
            if delivery.tag != 0 {
                assert!(broker.settle(NOW_MS, session, delivery.tag, Outcome::Accepted));
            }
        }
    }
    sent
}

/// Allocations of a number of rounds, after some to warm up.
fn count(rounds: usize, mut round: impl FnMut()) -> usize {
    for _ in 0..300 {
        round();
    }
    let before = allocations();
    for _ in 0..rounds {
        round();
    }
    allocations() - before
}

// One test, so that no other thread allocates meanwhile.
#[test]
fn allocations_are_within_their_budget() {
    one_message_to_one_subscriber();
    one_message_to_a_thousand_subscribers();
    one_message_to_another_shard();
    idle_sessions();
}

/// The message's body and its shared count: two allocations, whatever the level; nothing else.
fn one_message_to_one_subscriber() {
    let broker = &mut brokers(1)[0];
    let session = open(broker, "subscriber");
    subscribe(broker, session, "sensors/+/temperature", Qos::ExactlyOnce);
    for qos in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce] {
        let allocated = count(1_000, || {
            assert_eq!(publish(broker, "sensors/17/temperature", qos), 1);
            assert_eq!(send(broker), 1);
        });
        assert_eq!(allocated, 2_000, "{qos:?}");
    }
    // Batches: sixteen messages read together are written together.
    let allocated = count(100, || {
        for _ in 0..16 {
            publish(broker, "sensors/17/temperature", Qos::AtMostOnce);
        }
        assert_eq!(send(broker), 16);
    });
    assert_eq!(allocated, 3_200);
    // Nobody to send it to: not even shared.
    let allocated = count(100, || {
        assert_eq!(publish(broker, "nowhere", Qos::AtMostOnce), 0);
    });
    assert_eq!(allocated, 100);
}

/// A thousand subscribers add none.
fn one_message_to_a_thousand_subscribers() {
    let broker = &mut brokers(1)[0];
    for i in 0..1_000 {
        let session = open(broker, &format!("subscriber{i}"));
        subscribe(broker, session, "news/#", Qos::AtMostOnce);
    }
    let allocated = count(100, || {
        assert_eq!(publish(broker, "news/today", Qos::AtMostOnce), 1_000);
        assert_eq!(send(broker), 1_000);
    });
    assert_eq!(allocated, 200);
}

/// To another shard: the letter of the turn, however many subscribers there are.
fn one_message_to_another_shard() {
    let mut brokers = brokers(2);
    let [here, there] = brokers.as_mut_slice() else {
        panic!("two shards")
    };
    for i in 0..100 {
        let session = open(there, &format!("subscriber{i}"));
        subscribe(there, session, "news/#", Qos::AtMostOnce);
    }
    let allocated = count(100, || {
        for _ in 0..8 {
            assert_eq!(publish(here, "news/today", Qos::AtMostOnce), 100);
        }
        for (_, mail) in here.take_mail() {
            there.mail(NOW_MS, mail);
        }
        assert_eq!(send(there), 800);
    });
    // Eight messages and a letter.
    assert_eq!(allocated, 100 * (8 * 2 + 1));
}

/// Bytes per session with all its entries in tables, without subscription and with one.
fn idle_sessions() {
    const SESSIONS: usize = 50_000;
    let broker = &mut brokers(1)[0];
    let names: Vec<String> = (0..SESSIONS).map(|i| format!("device-{i:016}")).collect();
    let before = allocated_bytes();
    let sessions: Vec<_> = names.iter().map(|name| open(broker, name)).collect();
    let with_keys = allocated_bytes() - before - size_of_val(sessions.as_slice());
    let per_session = with_keys / SESSIONS;
    println!("{per_session} bytes an idle session");
    assert!(per_session < 350, "{per_session} bytes");
    let before = allocated_bytes();
    for (session, name) in sessions.iter().zip(&names) {
        subscribe(
            broker,
            *session,
            &format!("commands/{name}"),
            Qos::AtLeastOnce,
        );
    }
    let per_subscription = (allocated_bytes() - before) / SESSIONS;
    println!("{per_subscription} bytes a subscription to a topic of its own");
    assert!(per_subscription < 260, "{per_subscription} bytes");
    // A burst leaves nothing behind.
    let before = allocated_bytes();
    for name in &names {
        publish(broker, &format!("commands/{name}"), Qos::AtLeastOnce);
    }
    assert_eq!(send(broker), SESSIONS);
    let left = allocated_bytes().saturating_sub(before) / SESSIONS;
    println!("{left} bytes a session left of a burst");
    assert!(left < 30, "{left} bytes");
    for session in sessions {
        broker.close(NOW_MS, session, Close::LOST);
    }
    let left = allocated_bytes().saturating_sub(before);
    println!("{left} bytes left of {SESSIONS} sessions");
}
