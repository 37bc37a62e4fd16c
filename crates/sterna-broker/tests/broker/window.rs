//! Queues and shared subscriptions of which most waits in the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use sterna_broker::{
    Close, ConsumerId, DEFAULT_PRIORITY, DeadLetter, Delivery, Limits, Message, MessageHeader,
    MessageReader, NEVER_EXPIRES_S, OpenSession, Outcome, Pressure, Qos, QueueFull, QueueRules,
    Selector, SessionName,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, expiring, message, qos, text};
use crate::late_store::LateStore;

const QUEUE: &str = "$share/work/q/work";
const DEAD: &str = "$share/dead/q/dead";

/// What a queue reads at once, here.
const READ: usize = 4;

fn limits() -> Limits {
    Limits {
        read_ahead_messages: READ,
        group_queued_messages: 1_000_000,
        ..Limits::default()
    }
}

fn start(shards: u16, limits: Limits, store: &MemoryStore) -> Cluster {
    let mut cluster = Cluster::with(shards, limits, |_| Box::new(LateStore::new(store)));
    for shard in 0..shards {
        cluster.broker(shard).restore(1_000_000);
        cluster.collect(shard);
    }
    cluster
}

/// The same after an orderly end.
fn restart(mut cluster: Cluster, limits: Limits, store: &MemoryStore) -> Cluster {
    cluster.run();
    for broker in &mut cluster.brokers {
        broker.write_cursors();
    }
    let (shards, now_ms) = (cluster.brokers.len() as u16, cluster.now_ms);
    drop(cluster);
    let mut cluster = start(shards, limits, store);
    cluster.now_ms = now_ms;
    cluster
}

/// A priority stands before a blank, a time when the message is due behind it.
#[derive(Debug)]
struct Reader;

impl MessageReader for Reader {
    fn priority(&self, message: &Message) -> u8 {
        let text = std::str::from_utf8(message.payload()).unwrap_or_default();
        let first = text.split(' ').next().and_then(|text| text.parse().ok());
        first.unwrap_or(DEFAULT_PRIORITY)
    }

    fn due_ms(&self, message: &Message) -> Option<u64> {
        let text = std::str::from_utf8(message.payload()).unwrap_or_default();
        text.split(' ').nth(2)?.parse().ok()
    }

    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message> {
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            ..MessageHeader::default()
        };
        Message::copy(letter.topic, &[], message.payload(), header).ok()
    }
}

fn rules(has_priorities: bool) -> QueueRules {
    QueueRules {
        name: "work".into(),
        maximum_deliveries: Some(2),
        dead_letter: Some("q/dead".into()),
        has_priorities,
        reader: Arc::new(Reader),
    }
}

fn put(cluster: &mut Cluster, shard: u16, payload: &str) {
    let routed = cluster.publish(shard, "q/work", payload, Qos::AtLeastOnce);
    assert!(!routed.is_refused() && routed.matched == 1, "{payload}");
}

/// A queue whose anchor is away, as those of the front doors are.
fn keep(cluster: &mut Cluster, rules: QueueRules) {
    let request = OpenSession {
        name: SessionName::new(None, QUEUE),
        clean_start: false,
        expiry_s: NEVER_EXPIRES_S,
        consumer: ConsumerId::default(),
        will: None,
        on_demand: true,
        selector: None,
    };
    let (consumer, opened) = cluster.start_request(0, request);
    let anchor = cluster.opened(0, consumer, opened);
    let now_ms = cluster.now_ms;
    let options = qos(Qos::ExactlyOnce);
    let kept = (cluster.broker(0)).keep_queue(now_ms, anchor.key, QUEUE, options, rules);
    kept.expect("a valid filter within limits");
    cluster.collect(0);
    cluster.run();
    cluster.close(anchor, Close::NORMAL);
}

fn check(cluster: &Cluster) {
    for broker in &cluster.brokers {
        broker.check();
    }
}

/// Messages of all shards that are in memory, and those that wait in the log only.
fn waiting(cluster: &Cluster) -> (u64, u64) {
    let counters = cluster.brokers.iter().map(sterna_broker::Broker::counters);
    counters.fold((0, 0), |sum, counters| {
        (
            sum.0 + counters.stored_messages,
            sum.1 + counters.logged_messages,
        )
    })
}

fn consumer(cluster: &mut Cluster, shard: u16, filter: &str, credit: u32) -> Client {
    let client = cluster.consume(shard, &format!("consumer of {filter}"), filter);
    cluster.demand(client, credit);
    cluster.run();
    client
}

/// Takes so many, one after the other, each with a credit of one.
fn take_singly(cluster: &mut Cluster, client: Client, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    for _ in 0..count {
        cluster.demand(client, 1);
        cluster.run();
        let Some(delivery) = cluster.next(client) else {
            break;
        };
        cluster.run();
        taken.push(delivery);
    }
    taken
}

fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

/// Each publisher's messages come in its order, though the consumer comes and goes and the queue goes from
/// memory to the log and back, and nothing is lost or comes twice.
#[test]
fn the_order_of_each_publisher_holds_from_the_window_to_the_log_and_back() {
    for shards in 1..=3 {
        let store = MemoryStore::new();
        let mut cluster = start(shards, limits(), &store);
        keep(&mut cluster, rules(false));
        let (mut published, mut received) = (0, Vec::new());
        for round in 0..30_usize {
            for _ in 0..round * 7 % 41 {
                let payload = format!("x {published}");
                put(&mut cluster, published % shards, &payload);
                published += 1;
            }
            check(&cluster);
            let (in_memory, _) = waiting(&cluster);
            assert!(in_memory <= 4 * READ as u64, "{in_memory} in memory");
            let client = consumer(&mut cluster, shards - 1, QUEUE, (round % 23) as u32);
            let taken = cluster.take(client);
            // Some it accepts, the others come back when it leaves.
            for delivery in taken.iter().take(round % 13) {
                received.push(text(delivery));
                cluster.settle(client, delivery.tag, Outcome::Accepted);
            }
            for delivery in taken.iter().skip(round % 13) {
                cluster.settle(client, delivery.tag, Outcome::Released);
            }
            cluster.close(client, Close::NORMAL);
            check(&cluster);
            if round % 10 == 9 {
                cluster = restart(cluster, limits(), &store);
                keep(&mut cluster, rules(false));
            }
        }
        let client = consumer(&mut cluster, 0, QUEUE, 10_000);
        received.extend(cluster.drain(client));
        assert_eq!(received.len(), usize::from(published));
        let mut last: BTreeMap<u16, u16> = BTreeMap::new();
        for payload in received {
            let number: u16 = payload[2..].parse().expect("a number");
            let before = last.insert(number % shards, number);
            assert!(before.is_none_or(|before| before < number), "{payload}");
        }
        cluster.assert_empty();
    }
}

/// A higher priority is not hidden behind the window, wherever it was published.
#[test]
fn priorities_hold_over_the_edge_of_the_window() {
    let store = MemoryStore::new();
    let mut cluster = start(2, limits(), &store);
    keep(&mut cluster, rules(true));
    let mut model: BTreeMap<(u8, usize), String> = BTreeMap::new();
    let mut client = consumer(&mut cluster, 1, QUEUE, 0);
    let mut number = 0;
    let mut put_some = |cluster: &mut Cluster, model: &mut BTreeMap<_, _>, count: usize| {
        for _ in 0..count {
            let priority = (number * 7919 % 10) as u8;
            let payload = format!("{priority} {number}");
            put(cluster, 0, &payload);
            model.insert((9 - priority, number), payload);
            number += 1;
        }
    };
    for round in 0..40 {
        put_some(&mut cluster, &mut model, 10);
        check(&cluster);
        let taken = take_singly(&mut cluster, client, 7);
        let expected: Vec<_> = (0..7).filter_map(|_| model.pop_first()).collect();
        assert_eq!(taken.len(), expected.len());
        for (delivery, (key, first)) in taken.iter().zip(expected) {
            assert_eq!(text(delivery), first, "round {round}");
            if round % 3 == 0 && delivery.failures == 0 {
                // It goes back to its place.
                model.insert(key, first);
                cluster.settle(client, delivery.tag, Outcome::Failed);
            } else {
                cluster.settle(client, delivery.tag, Outcome::Accepted);
            }
        }
        if round == 20 {
            assert!(waiting(&cluster).1 > 50, "most waits in the log");
            cluster.close(client, Close::NORMAL);
            cluster = restart(cluster, limits(), &store);
            keep(&mut cluster, rules(true));
            client = consumer(&mut cluster, 1, QUEUE, 0);
        }
    }
    cluster.demand(client, 10_000);
    cluster.run();
    let rest: Vec<String> = model.into_values().collect();
    assert_eq!(cluster.drain(client), rest);
    cluster.assert_empty();
}

/// The number of failed deliveries goes with a message to the log and back, also over a restart.
#[test]
fn what_nobody_can_take_dies_wherever_it_waited() {
    let store = MemoryStore::new();
    let mut cluster = start(1, limits(), &store);
    keep(&mut cluster, rules(false));
    cluster.keep(0, DEAD);
    for number in 0..100 {
        put(&mut cluster, 0, &format!("x {number}"));
    }
    let client = consumer(&mut cluster, 0, QUEUE, 60);
    for delivery in cluster.take(client) {
        assert_eq!((delivery.failures, delivery.redelivered), (0, false));
        cluster.settle(client, delivery.tag, Outcome::Failed);
    }
    check(&cluster);
    cluster.close(client, Close::NORMAL);
    let (in_memory, in_log) = waiting(&cluster);
    assert!(in_memory <= READ as u64 && in_memory + in_log == 100);
    cluster = restart(cluster, limits(), &store);
    keep(&mut cluster, rules(false));
    cluster.keep(0, DEAD);
    check(&cluster);
    assert!(waiting(&cluster).0 <= READ as u64, "a window only");
    let client = consumer(&mut cluster, 0, QUEUE, 100);
    let taken = cluster.take(client);
    let failures: Vec<u16> = taken.iter().map(|delivery| delivery.failures).collect();
    assert_eq!(failures, [vec![1; 60], vec![0; 40]].concat());
    for delivery in taken {
        cluster.settle(client, delivery.tag, Outcome::Failed);
    }
    let undertaker = consumer(&mut cluster, 0, DEAD, 100);
    let dead = cluster.drain(undertaker);
    let expected: Vec<String> = (0..60).map(|number| format!("x {number}")).collect();
    assert_eq!(dead, expected);
    let rest = cluster.take(client);
    assert_eq!(rest.len(), 0, "credit is used up");
    cluster.demand(client, 100);
    cluster.run();
    assert_eq!(cluster.drain(client).len(), 40);
    cluster.assert_empty();
}

#[derive(Debug)]
struct EndsWith(&'static str);

impl Selector for EndsWith {
    fn selects(&self, message: &Message, _steps: &mut u64) -> Option<bool> {
        Some(message.payload().ends_with(self.0.as_bytes()))
    }
}

/// A member that chooses finds what is for it behind a window full of others' messages.
#[test]
fn a_member_that_chooses_looks_behind_the_window() {
    let store = MemoryStore::new();
    let mut cluster = start(2, limits(), &store);
    keep(&mut cluster, rules(false));
    for number in 0..200 {
        put(&mut cluster, 0, &format!("x {number}"));
    }
    let seven = cluster.open_on_demand(1, "seven", Some(Arc::new(EndsWith("7"))));
    cluster.subscribe(seven, QUEUE, qos(Qos::ExactlyOnce));
    let taken = take_singly(&mut cluster, seven, 30);
    let wanted: Vec<String> = (0..200)
        .filter(|number| number % 10 == 7)
        .map(|number| format!("x {number}"))
        .collect();
    assert_eq!(texts(&taken), wanted);
    check(&cluster);
    assert!(waiting(&cluster).0 <= 20 + 4 * READ as u64, "in memory");
    // What another gives back is for it, too, and what comes anew.
    put(&mut cluster, 1, "x 207");
    put(&mut cluster, 1, "x 208");
    assert_eq!(texts(&take_singly(&mut cluster, seven, 3)), ["x 207"]);
    let all = consumer(&mut cluster, 0, QUEUE, 3);
    assert_eq!(texts(&cluster.take(all)), ["x 0", "x 1", "x 2"]);
    for delivery in &taken[..5] {
        cluster.settle(seven, delivery.tag, Outcome::Released);
    }
    check(&cluster);
    let again = take_singly(&mut cluster, seven, 5);
    assert_eq!(texts(&again), wanted[..5]);
    cluster.close(seven, Close::NORMAL);
    cluster.close(all, Close::NORMAL);
    let all = consumer(&mut cluster, 0, QUEUE, 1_000);
    assert_eq!(cluster.drain(all).len(), 202, "all that was not accepted");
    cluster.assert_empty();
}

/// One looks at a queue as a whole, and nothing of that stays in memory.
#[test]
fn a_queue_is_browsed_purged_and_moved_as_a_whole() {
    let store = MemoryStore::new();
    let mut cluster = start(2, limits(), &store);
    keep(&mut cluster, rules(false));
    cluster.keep(1, DEAD);
    let all: Vec<String> = (0..100).map(|number| format!("x {number}")).collect();
    for payload in &all {
        put(&mut cluster, 0, payload);
    }
    let browser = cluster.open_on_demand(1, "browser", None);
    let now_ms = cluster.now_ms;
    (cluster.broker(1).browse(now_ms, browser.key, QUEUE)).expect("there is such a queue");
    cluster.collect(1);
    let mut seen = Vec::new();
    for _ in 0..100 {
        cluster.demand(browser, 7);
        cluster.run();
        seen.extend(texts(&cluster.take(browser)));
    }
    assert_eq!(seen, all);
    check(&cluster);
    cluster.close(browser, Close::NORMAL);
    assert!(waiting(&cluster).0 <= READ as u64);

    let home = (0..2)
        .find(|&shard| cluster.broker(shard).queue_info(QUEUE).is_some())
        .expect("it is somewhere");
    let (mut peeked, mut after) = (Vec::new(), None);
    loop {
        let page = cluster.broker(home).peek_queue(now_ms, QUEUE, after, 9);
        let (page, has_more) = page.expect("it is here");
        after = page.last().map(|peeked| peeked.place).or(after);
        let payloads = page.iter().map(|peeked| peeked.message.payload());
        peeked.extend(payloads.map(|payload| String::from_utf8_lossy(payload).into_owned()));
        if !has_more {
            break;
        }
        cluster.collect(home);
        cluster.run();
    }
    assert_eq!(peeked, all);

    let purged = cluster.broker(home).purge_queue(now_ms, QUEUE, 30);
    let purged = purged.expect("it is here");
    assert_eq!((purged.messages, purged.left), (30, 70));
    let mut left = 60;
    while left > 0 {
        let broker = cluster.broker(home);
        let moved = broker.move_queue(now_ms, QUEUE, left, |message| {
            message.under_topic("q/dead").ok()
        });
        let moved = moved.expect("it is here");
        assert!(!moved.is_refused);
        left -= moved.messages;
        assert!(moved.is_reading || left == 0);
        cluster.collect(home);
        cluster.run();
    }
    check(&cluster);
    let info = cluster.broker(home).queue_info(QUEUE).expect("it is here");
    assert_eq!(info.messages, 10);
    let client = consumer(&mut cluster, 0, DEAD, 1_000);
    assert_eq!(cluster.drain(client), all[30..90]);
    let client = consumer(&mut cluster, 0, QUEUE, 1_000);
    assert_eq!(cluster.drain(client), all[90..]);
    cluster.assert_empty();
}

/// What expires in the log leaves the queue, and its room, while no consumer is there.
#[test]
fn messages_expire_in_the_log() {
    let store = MemoryStore::new();
    let mut cluster = start(1, limits(), &store);
    keep(&mut cluster, rules(false));
    for number in 0..50 {
        let at_ms = cluster.now_ms + 5_000;
        let message = if number % 2 == 0 {
            expiring("q/work", "gone", Qos::AtLeastOnce, at_ms)
        } else {
            message("q/work", &format!("x {number}"), Qos::AtLeastOnce, false)
        };
        cluster.send(0, None, message);
    }
    cluster.run();
    cluster.pass(60_000);
    check(&cluster);
    let info = cluster.broker(0).queue_info(QUEUE).expect("it is here");
    assert_eq!(info.messages, 25);
    assert_eq!(cluster.broker(0).counters().dropped_expired, 25);
    let client = consumer(&mut cluster, 0, QUEUE, 100);
    assert_eq!(cluster.drain(client).len(), 25);
    cluster.assert_empty();
}

/// Delayed messages wait in the log, too; when they are due they have their place.
#[test]
fn delayed_messages_take_no_memory() {
    let store = MemoryStore::new();
    let mut cluster = start(1, limits(), &store);
    keep(&mut cluster, rules(true));
    let due_ms = cluster.now_ms + 10_000;
    for number in 0..100 {
        put(
            &mut cluster,
            0,
            &format!("{} {number} {due_ms}", number % 10),
        );
    }
    assert_eq!(waiting(&cluster), (0, 100));
    let client = consumer(&mut cluster, 0, QUEUE, 1_000);
    assert_eq!(cluster.take(client).len(), 0);
    cluster.close(client, Close::NORMAL);
    cluster = restart(cluster, limits(), &store);
    keep(&mut cluster, rules(true));
    let client = consumer(&mut cluster, 0, QUEUE, 1_000);
    cluster.pass(9_000);
    assert_eq!(cluster.take(client).len(), 0);
    cluster.pass(2_000);
    check(&cluster);
    let payloads = cluster.drain(client);
    assert_eq!(payloads.len(), 100);
    assert!(payloads[0].starts_with("9 9 ") && payloads[99].starts_with("0 90 "));
    cluster.assert_empty();
}

/// Of a shared subscription the limits hold for all that waits; what goes first goes also from the log.
#[test]
fn limits_hold_for_the_window_and_the_log_together() {
    for queue_full in [QueueFull::DropNewest, QueueFull::DropOldest] {
        let store = MemoryStore::new();
        let limits = Limits {
            group_queued_messages: 40,
            queue_full,
            ..limits()
        };
        let mut cluster = start(1, limits, &store);
        let client = cluster.open_with(0, "member", false, NEVER_EXPIRES_S, None);
        cluster.subscribe(client, QUEUE, qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
        for number in 0..100 {
            put(&mut cluster, 0, &format!("x {number}"));
        }
        check(&cluster);
        let (in_memory, in_log) = waiting(&cluster);
        assert!(in_memory <= READ as u64 && in_memory + in_log == 40);
        assert_eq!(cluster.broker(0).counters().dropped_full, 60);
        let client = cluster.open(0, "member");
        cluster.run();
        let got = cluster.drain(client);
        let first = if queue_full == QueueFull::DropNewest {
            0
        } else {
            60
        };
        let expected: Vec<String> = (first..first + 40).map(|at| format!("x {at}")).collect();
        assert_eq!(got, expected);
        cluster.assert_empty();
    }
}

/// What a consumer has changed is not in the log like that, and so stays in memory.
#[test]
fn a_changed_message_comes_back_as_it_was_changed() {
    let store = MemoryStore::new();
    let mut cluster = start(1, limits(), &store);
    keep(&mut cluster, rules(false));
    for number in 0..100 {
        put(&mut cluster, 0, &format!("x {number}"));
    }
    let client = consumer(&mut cluster, 0, QUEUE, 100);
    let taken = cluster.take(client);
    assert_eq!(taken.len(), 100);
    let changed = message("q/work", "changed", Qos::AtLeastOnce, false);
    assert!(
        cluster
            .broker(0)
            .replace(client.key, taken[70].tag, changed)
    );
    cluster.close(client, Close::NORMAL);
    check(&cluster);
    let (in_memory, in_log) = waiting(&cluster);
    assert!(in_memory <= READ as u64 + 1 && in_memory + in_log == 100);
    let client = consumer(&mut cluster, 0, QUEUE, 100);
    let payloads = cluster.drain(client);
    assert_eq!(payloads.len(), 100);
    assert_eq!(payloads[70], "changed");
    assert_eq!(payloads[99], "x 99");
    cluster.assert_empty();
}

/// Short of memory, queues keep little there, and lose nothing.
#[test]
fn queues_move_to_the_log_when_memory_is_short() {
    let store = MemoryStore::new();
    let limits = Limits {
        read_ahead_messages: 256,
        ..limits()
    };
    let mut cluster = start(1, limits, &store);
    keep(&mut cluster, rules(false));
    for number in 0..200 {
        put(&mut cluster, 0, &format!("x {number}"));
    }
    assert_eq!(waiting(&cluster), (200, 0));
    cluster.directory.set_pressure(Pressure::MoveToLog);
    cluster.broker(0).feel_pressure();
    let now_ms = cluster.now_ms;
    while cluster.broker(0).relieve(now_ms) {}
    check(&cluster);
    let (in_memory, in_log) = waiting(&cluster);
    assert!(in_memory <= 16 && in_memory + in_log == 200, "{in_memory}");
    put(&mut cluster, 0, "x 200");
    let client = consumer(&mut cluster, 0, QUEUE, 1_000);
    let expected: Vec<String> = (0..=200).map(|number| format!("x {number}")).collect();
    assert_eq!(cluster.drain(client), expected);
    cluster.assert_empty();
}

/// One message may have any size, and there may be many queues: the only one leaves memory, too, and comes to whoever comes.
#[test]
fn the_only_message_of_a_queue_that_nobody_reads_moves_to_the_log() {
    let store = MemoryStore::new();
    let mut cluster = start(1, limits(), &store);
    keep(&mut cluster, rules(false));
    let large = |number: u32| format!("{number}{}", "x".repeat(100_000));
    put(&mut cluster, 0, &large(0));
    assert_eq!(waiting(&cluster), (1, 0));
    cluster.directory.set_pressure(Pressure::MoveToLog);
    cluster.broker(0).feel_pressure();
    let now_ms = cluster.now_ms;
    while cluster.broker(0).relieve(now_ms) {}
    check(&cluster);
    assert_eq!(waiting(&cluster), (0, 1));
    for number in 1..4 {
        put(&mut cluster, 0, &large(number));
        check(&cluster);
        assert_eq!(waiting(&cluster), (0, 1 + u64::from(number)));
    }
    let client = consumer(&mut cluster, 0, QUEUE, 1_000);
    assert_eq!(cluster.drain(client), (0..4).map(large).collect::<Vec<_>>());
    // The store of the test keeps large bodies.
    assert_eq!(waiting(&cluster), (0, 0));
}
