//! What the hot path allocates, and what an idle session costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sterna_broker::{
    Appended, Broker, Close, Committed, Companions, ConsumerId, Directory, Frame, Full, Limits,
    Message, MessageHeader, MessageParts, NEVER_EXPIRES_S, NoStore, NodeSet, OpenSession, Opened,
    Outcome, PeerGate, Publication, Qos, ReadAnswer, ReadRequest, SessionKey, SessionName, ShardId,
    Store, SubscribeOptions, Wanted,
};

use crate::counting::{allocated_bytes, allocations};

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
        name: SessionName::new(None, client_id),
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
        .publish(NOW_MS, Publication::new(None, message))
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
    messages_that_nobody_here_wants();
    idle_sessions();
    messages_that_wait_in_the_log();
}

/// Messages that lie in their packets are not copied where nobody wants them, or only other nodes. What a turn has for other
/// nodes is one piece of memory, and the list of who gets it.
fn messages_that_nobody_here_wants() {
    let broker = &mut brokers(1)[0];
    let gate = Arc::new(PeerGate::new(1 << 30));
    broker.join_cluster(Arc::clone(&gate));
    gate.set_knows_wanted();
    gate.set_open(true);
    let mut any = NodeSet::EMPTY;
    any.insert(1);
    let wanted = Wanted {
        any,
        ..Wanted::NOBODY
    };
    broker.set_wanted(vec![(Arc::from("elsewhere"), wanted)]);
    for (topic, nodes, of_a_turn) in [("nowhere", 0, 0), ("elsewhere", 1, 2)] {
        let allocated = count(100, || {
            for _ in 0..100 {
                let header = MessageHeader::default();
                let parts = MessageParts::new(topic, &[], &[7; 64], header);
                let routed = broker.publish_parts(NOW_MS, None, parts, Companions::default());
                assert_eq!(routed.map(|routed| routed.matched), Ok(nodes));
            }
            let outbound = broker.take_outgoing();
            assert_eq!(outbound.is_some(), nodes > 0);
        });
        assert_eq!(allocated, 100 * of_a_turn, "{topic}");
    }
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
    assert!(per_session < 336, "{per_session} bytes");
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

/// A store that has everything on a disk, so to speak: it takes no memory, and nobody reads here.
#[derive(Debug, Default)]
struct Disk {
    last: u64,
    appends: u64,
    /// Bytes of the largest record since the last message.
    largest_record: Arc<AtomicUsize>,
}

impl Store for Disk {
    fn next_position(&self) -> u64 {
        self.last + 1
    }

    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        let first = self.last + 1;
        self.last += frame.messages.len() as u64;
        self.appends += 1;
        let values = frame
            .changes
            .iter()
            .filter_map(|change| change.value.as_ref());
        let largest = values.map(|value| value.len()).max().unwrap_or(0);
        self.largest_record.fetch_max(largest, Ordering::Relaxed);
        Ok(Appended {
            first,
            token: self.appends,
        })
    }

    fn committed(&self) -> Committed {
        Committed {
            written: self.appends,
            synced: self.appends,
        }
    }

    fn read(&mut self, _: ReadRequest) {}

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        None
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        ReadAnswer {
            next: request.to,
            ..ReadAnswer::default()
        }
    }

    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn needed_from(&mut self, _: u64) {}
    fn hold_from(&mut self, _: u64) {}
}

/// A queue of 100,000 messages of 1 KiB has a window of bodies, and 24 bytes of each other; its cursor tells
/// of the window only.
fn messages_that_wait_in_the_log() {
    const MESSAGES: usize = 100_000;
    let limits = Limits {
        group_queued_messages: usize::MAX,
        group_queued_bytes: usize::MAX,
        ..Limits::default()
    };
    let directory = Directory::new(1, limits, 1);
    let disk = Disk::default();
    let largest_record = Arc::clone(&disk.largest_record);
    let broker = &mut Broker::<()>::new(ShardId(0), Arc::clone(&directory), Box::new(disk));
    let request = OpenSession {
        name: SessionName::new(None, "anchor"),
        clean_start: false,
        expiry_s: NEVER_EXPIRES_S,
        consumer: ConsumerId(1),
        will: None,
        on_demand: true,
        selector: None,
    };
    let Ok(Opened::Ready { session, .. }) = broker.open(NOW_MS, request) else {
        panic!("it is the only one")
    };
    let options = SubscribeOptions {
        qos: Qos::ExactlyOnce,
        keep: true,
        ..SubscribeOptions::default()
    };
    (broker.subscribe(NOW_MS, session, "$share/queue/work", options)).expect("a valid filter");
    broker.close(NOW_MS, session, Close::NORMAL);
    let payload = [7; 1024];
    let put = |broker: &mut Broker<()>, count: usize| {
        for _ in 0..count {
            let header = MessageHeader {
                qos: Qos::AtLeastOnce,
                published_ms: NOW_MS,
                ..MessageHeader::default()
            };
            let message = Message::copy("work", &[], &payload, header).expect("a small message");
            let origin = None;
            let routed = broker.publish(NOW_MS, Publication::new(origin, message));
            assert!(routed.matched == 1 && !routed.is_refused());
        }
    };
    // The latest of the log are in memory for all readers.
    put(broker, 8 * 1024);
    let before = allocated_bytes();
    put(broker, MESSAGES);
    let per_message = (allocated_bytes() - before) as f64 / MESSAGES as f64;
    println!("{per_message:.1} bytes a message that waits in the log");
    assert!(per_message < 26.0, "{per_message} bytes");
    assert!(
        directory.message_bytes() < 4 * MESSAGES as u64 * 16,
        "the account"
    );
    assert!(broker.counters().logged_messages > MESSAGES as u64);
    largest_record.store(0, Ordering::Relaxed);
    put(broker, 1);
    broker.write_cursors();
    let record_bytes = largest_record.load(Ordering::Relaxed);
    assert!((1..1_000).contains(&record_bytes), "{record_bytes} bytes");
}
