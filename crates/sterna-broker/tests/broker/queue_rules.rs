//! What a kept queue does beside keeping: dead letters, priorities, delays, and a look at what waits.

use std::sync::Arc;

use proptest::prelude::*;
use sterna_broker::{
    DEFAULT_PRIORITY, DeadLetter, Limits, Message, MessageHeader, MessageReader, NoStore, Outcome,
    Qos, QueueRules, Selector,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, expiring, qos, text};
use crate::late_store::LateStore;

const QUEUE: &str = "$share/work/q/work";
const DEAD: &str = "$share/dead/q/dead";

/// Reads payloads such as `p7 text` and `d500 text`: a priority, a delay in milliseconds.
#[derive(Debug)]
struct Reader;

fn leading(message: &Message, mark: u8) -> Option<u64> {
    let payload = message.payload();
    let digits = payload.strip_prefix(&[mark])?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

impl MessageReader for Reader {
    fn priority(&self, message: &Message) -> u8 {
        leading(message, b'p').map_or(DEFAULT_PRIORITY, |priority| priority as u8)
    }

    fn due_ms(&self, message: &Message) -> Option<u64> {
        Some(message.published_ms() + leading(message, b'd')?)
    }

    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message> {
        let payload = format!(
            "{}: {} {} {}",
            String::from_utf8_lossy(message.payload()),
            letter.queue,
            letter.cause.as_str(),
            letter.failures
        );
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            ..MessageHeader::default()
        };
        Message::copy(letter.topic, &[], payload.as_bytes(), header).ok()
    }
}

fn rules(dead_letter: Option<&str>, maximum_deliveries: Option<u16>) -> QueueRules {
    QueueRules {
        name: "work".into(),
        maximum_deliveries,
        dead_letter: dead_letter.map(Into::into),
        has_priorities: false,
        reader: Arc::new(Reader),
    }
}

fn with_priorities() -> QueueRules {
    QueueRules {
        has_priorities: true,
        ..rules(None, None)
    }
}

fn put(cluster: &mut Cluster, shard: u16, payload: &str) -> bool {
    let header = MessageHeader {
        qos: Qos::AtLeastOnce,
        published_ms: cluster.now_ms,
        ..MessageHeader::default()
    };
    let message = Message::copy("q/work", &[], payload.as_bytes(), header).expect("small");
    let routed = cluster.send(shard, None, message);
    cluster.run();
    check(cluster);
    !routed.is_refused()
}

/// What always holds of all queues.
fn check(cluster: &mut Cluster) {
    for shard in 0..cluster.brokers.len() {
        cluster.broker(shard as u16).check();
    }
}

fn consumer(cluster: &mut Cluster, shard: u16, filter: &str, credit: u32) -> Client {
    let client = cluster.consume(shard, &format!("consumer of {filter}"), filter);
    cluster.demand(client, credit);
    cluster.run();
    client
}

#[test]
fn a_rejected_message_goes_to_the_dead_letters_and_is_counted() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep_with(0, QUEUE, rules(Some("q/dead"), None));
        cluster.keep(0, DEAD);
        put(&mut cluster, 0, "bad");
        put(&mut cluster, 0, "good");
        let client = consumer(&mut cluster, shards - 1, QUEUE, 10);
        let deliveries = cluster.take(client);
        cluster.settle(client, deliveries[0].tag, Outcome::Rejected(0x80));
        cluster.settle(client, deliveries[1].tag, Outcome::Accepted);
        // It is counted where it is rejected, and its letter where its queue is.
        let rejected = cluster.broker(shards - 1).counters().rejected_messages;
        let dead_lettered = (0..shards).map(|shard| cluster.broker(shard).counters().dead_lettered);
        assert_eq!((rejected, dead_lettered.sum()), (1, 1_u64));
        let undertaker = consumer(&mut cluster, 0, DEAD, 10);
        assert_eq!(cluster.drain(undertaker), ["bad: work rejected 0"]);
        cluster.assert_empty();
    }
}

#[test]
fn a_message_that_nobody_can_take_goes_to_the_dead_letters() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep_with(0, QUEUE, rules(Some("q/dead"), Some(3)));
        cluster.keep(0, DEAD);
        put(&mut cluster, 0, "poison");
        put(&mut cluster, 0, "well");
        let client = consumer(&mut cluster, shards - 1, QUEUE, 1);
        for failures in 0..3 {
            let delivery = cluster.next(client).expect("it is delivered again");
            assert_eq!(
                (text(&delivery).as_str(), delivery.failures),
                ("poison", failures)
            );
            // Who gives it back untried does it no harm.
            cluster.settle(client, delivery.tag, Outcome::Released);
            cluster.demand(client, 1);
            cluster.run();
            let delivery = cluster.next(client).expect("it is delivered again");
            cluster.settle(client, delivery.tag, Outcome::Failed);
            cluster.demand(client, 1);
            cluster.run();
        }
        assert_eq!(cluster.drain(client), ["well"]);
        let undertaker = consumer(&mut cluster, 0, DEAD, 10);
        assert_eq!(
            cluster.drain(undertaker),
            ["poison: work maximum-deliveries 3"]
        );
        cluster.assert_empty();
    }
}

/// A cluster where lost connections count or not.
fn where_lost(counts_lost: bool, dead_letter: Option<&str>) -> Cluster {
    let limits = Limits {
        counts_lost,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(2, limits, |_| Box::new(NoStore));
    cluster.keep_with(0, QUEUE, rules(dead_letter, Some(2)));
    cluster.keep(0, DEAD);
    put(&mut cluster, 0, "poison");
    cluster
}

/// Consumers get the message and are lost, as often as it comes. After the second time it comes when a pause is over.
fn lose(cluster: &mut Cluster, times: u64) {
    for lost in 0..times {
        let client = consumer(cluster, 1, QUEUE, 1);
        if lost > 1 {
            assert_eq!(cluster.take(client).len(), 0, "it waits");
            cluster.pass(125 << lost);
            assert_eq!(cluster.take(client).len(), 0, "it still waits");
            cluster.pass(125 << lost);
        }
        assert_eq!(cluster.take(client).len(), 1, "lost {lost} times");
        cluster.close(client, sterna_broker::Close::LOST);
        check(cluster);
    }
}

/// Whoever asks for the order of a queue has to except that.
#[test]
fn a_message_that_was_lost_twice_is_passed_and_one_that_was_lost_once_is_not() {
    let mut cluster = where_lost(false, None);
    lose(&mut cluster, 1);
    put(&mut cluster, 0, "next");
    let payloads = |cluster: &mut Cluster, client| {
        let taken = cluster.take(client);
        taken.iter().map(text).collect::<Vec<_>>()
    };
    let second = consumer(&mut cluster, 1, QUEUE, 3);
    assert_eq!(payloads(&mut cluster, second), ["poison", "next"]);
    cluster.close(second, sterna_broker::Close::LOST);
    let third = consumer(&mut cluster, 1, QUEUE, 3);
    assert_eq!(payloads(&mut cluster, third), ["next"]);
    put(&mut cluster, 0, "last");
    assert_eq!(payloads(&mut cluster, third), ["last"]);
    cluster.pass(60_000);
    assert_eq!(payloads(&mut cluster, third), ["poison"]);
}

#[test]
fn lost_connections_count_as_failed_deliveries_where_that_is_set() {
    let mut cluster = where_lost(true, Some("q/dead"));
    lose(&mut cluster, 2);
    let undertaker = consumer(&mut cluster, 0, DEAD, 10);
    assert_eq!(
        cluster.drain(undertaker),
        ["poison: work lost-connections 2"]
    );
    cluster.assert_empty();
}

#[test]
fn lost_connections_alone_destroy_no_message() {
    for (counts_lost, dead_letter) in [(true, None), (false, None), (false, Some("q/dead"))] {
        let mut cluster = where_lost(counts_lost, dead_letter);
        lose(&mut cluster, 6);
        let held_back: u64 = (0..2)
            .map(|at| cluster.broker(at).counters().held_back[0])
            .sum();
        assert_eq!(held_back, 5);
        let client = consumer(&mut cluster, 1, QUEUE, 1);
        cluster.pass(60_000);
        let delivery = cluster.next(client).expect("it is there");
        let failures = if counts_lost { 6 } else { 0 };
        assert_eq!((delivery.failures, delivery.redelivered), (failures, true));
        // What a consumer says counts.
        for failures in 1..=2 {
            let tag = if failures == 1 {
                delivery.tag
            } else {
                cluster.next(client).expect("it comes again").tag
            };
            cluster.settle(client, tag, Outcome::Failed);
            cluster.demand(client, 1);
            cluster.run();
        }
        assert_eq!(cluster.drain(client).len(), 0);
        let undertaker = consumer(&mut cluster, 0, DEAD, 10);
        assert_eq!(
            cluster.drain(undertaker).len(),
            usize::from(dead_letter.is_some())
        );
        cluster.assert_empty();
    }
}

/// Every other end is in order, whoever ends it.
#[test]
fn no_end_but_a_loss_counts_or_makes_a_message_wait() {
    use sterna_broker::{Close, EndCause};
    for cause in EndCause::ALL.into_iter().filter(|cause| !cause.is_loss()) {
        let mut cluster = where_lost(true, None);
        for _ in 0..5 {
            let client = consumer(&mut cluster, 1, QUEUE, 1);
            let delivery = cluster.next(client).expect("it comes at once");
            assert_eq!(delivery.failures, 0, "{cause:?}");
            cluster.close(client, Close::of(cause));
        }
        let client = consumer(&mut cluster, 1, QUEUE, 1);
        assert_eq!(cluster.drain(client), ["poison"]);
        cluster.assert_empty();
    }
}

#[test]
fn what_full_dead_letters_do_not_take_comes_back_after_a_pause_that_grows() {
    let limits = Limits {
        group_queued_messages: 1,
        ..Limits::default()
    };
    let mut cluster = Cluster::with(2, limits, |_| Box::new(NoStore));
    cluster.keep_with(0, QUEUE, rules(Some("q/dead"), None));
    cluster.keep(0, DEAD);
    cluster.publish(0, "q/dead", "full", Qos::AtLeastOnce);
    put(&mut cluster, 0, "bad");
    let client = consumer(&mut cluster, 1, QUEUE, 1);
    let mut came_at = Vec::new();
    let begun_ms = cluster.now_ms;
    while cluster.now_ms < begun_ms + 200_000 {
        while let Some(delivery) = cluster.next(client) {
            came_at.push(cluster.now_ms - begun_ms);
            cluster.settle(client, delivery.tag, Outcome::Rejected(0x80));
            cluster.demand(client, 1);
            cluster.run();
            check(&mut cluster);
        }
        cluster.pass(500);
    }
    let seconds = [0, 1, 3, 7, 15, 31, 63, 123, 183];
    assert_eq!(came_at, seconds.map(|second| second * 1_000));
    let held_back: u64 = (0..2)
        .map(|at| cluster.broker(at).counters().held_back[1])
        .sum();
    assert_eq!(held_back, 9);
    // With room it goes there, and the next one that finds none begins with a short pause.
    let undertaker = consumer(&mut cluster, 0, DEAD, 1);
    assert_eq!(cluster.drain(undertaker), ["full"]);
    cluster.pass(60_000);
    let delivery = cluster.next(client).expect("the pause is over");
    cluster.settle(client, delivery.tag, Outcome::Rejected(0x80));
    cluster.run();
    put(&mut cluster, 0, "worse");
    cluster.demand(client, 1);
    cluster.run();
    let delivery = cluster.next(client).expect("another one");
    cluster.settle(client, delivery.tag, Outcome::Rejected(0x80));
    cluster.demand(client, 1);
    cluster.run();
    assert!(cluster.next(client).is_none());
    cluster.pass(1_000);
    assert!(cluster.next(client).is_some());
}

#[test]
fn a_message_stays_in_its_queue_while_the_dead_letters_are_full() {
    for shards in 1..=2 {
        let limits = Limits {
            group_queued_messages: 1,
            ..Limits::default()
        };
        let mut cluster = Cluster::with(shards, limits, |_| Box::new(NoStore));
        cluster.keep_with(0, QUEUE, rules(Some("q/dead"), Some(1)));
        cluster.keep(0, DEAD);
        let client = consumer(&mut cluster, 0, QUEUE, 1);
        for (payload, outcome) in [
            ("a", Outcome::Rejected(0x80)),
            ("b", Outcome::Rejected(0x80)),
        ] {
            put(&mut cluster, 0, payload);
            let delivery = cluster.next(client).expect("one");
            cluster.settle(client, delivery.tag, outcome);
            cluster.demand(client, 1);
            cluster.run();
        }
        assert!(cluster.next(client).is_none(), "it waits");
        cluster.pass(1_000);
        let delivery = cluster.next(client).expect("it came back");
        assert_eq!(
            (text(&delivery).as_str(), delivery.redelivered),
            ("b", true)
        );
        cluster.settle(client, delivery.tag, Outcome::Failed);
        cluster.demand(client, 1);
        cluster.run();
        cluster.pass(2_000);
        let delivery = cluster.next(client).expect("it came back again");
        let undertaker = consumer(&mut cluster, 0, DEAD, 1);
        assert_eq!(cluster.drain(undertaker), ["a: work rejected 0"]);
        cluster.settle(client, delivery.tag, Outcome::Failed);
        cluster.demand(undertaker, 1);
        cluster.run();
        assert_eq!(cluster.drain(undertaker), ["b: work maximum-deliveries 2"]);
        cluster.assert_empty();
    }
}

#[test]
fn higher_priorities_go_first_and_equal_ones_in_order() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep_with(0, QUEUE, with_priorities());
        for payload in ["p4 a", "p9 b", "p0 c", "p9 d", "e", "p77 f", "p0 g"] {
            put(&mut cluster, 0, payload);
        }
        let client = consumer(&mut cluster, shards - 1, QUEUE, 2);
        let first = cluster.take(client);
        assert_eq!(first.iter().map(text).collect::<Vec<_>>(), ["p9 b", "p9 d"]);
        // What comes back has its old place, behind nothing of a lower priority.
        cluster.settle(client, first[1].tag, Outcome::Released);
        put(&mut cluster, 0, "p5 h");
        cluster.demand(client, 20);
        cluster.run();
        let rest = ["p9 d", "p77 f", "p5 h", "p4 a", "e", "p0 c", "p0 g"];
        assert_eq!(cluster.drain(client), rest);
        cluster.settle(client, first[0].tag, Outcome::Accepted);
        cluster.assert_empty();
    }
}

/// The rules come after the messages then: the store has no rules.
#[test]
fn priorities_and_delays_hold_for_what_waited_over_a_restart() {
    for shards in 1..=3 {
        let store = MemoryStore::new();
        let start = || Cluster::with(shards, Limits::default(), |_| Box::new(store.clone()));
        let mut cluster = start();
        cluster.keep_with(0, QUEUE, with_priorities());
        for payload in ["p0 a", "d500 b", "p9 c", "e", "p9 f", "p0 g"] {
            put(&mut cluster, 0, payload);
        }
        let now_ms = cluster.now_ms;
        drop(cluster);
        let mut cluster = start();
        cluster.now_ms = now_ms;
        for shard in 0..shards {
            cluster.broker(shard).restore(now_ms);
            cluster.collect(shard);
        }
        cluster.run();
        cluster.keep_with(0, QUEUE, with_priorities());
        put(&mut cluster, 0, "p5 h");
        let client = consumer(&mut cluster, shards - 1, QUEUE, 20);
        let rest = ["p9 c", "p9 f", "p5 h", "e", "p0 a", "p0 g"];
        assert_eq!(cluster.drain(client), rest);
        put(&mut cluster, 0, "p4 later");
        cluster.pass(500);
        check(&mut cluster);
        cluster.demand(client, 20);
        cluster.run();
        assert_eq!(cluster.drain(client), ["p4 later", "d500 b"]);
    }
}

/// A process may die between any two appends: then a rejected message is in its queue or among the dead letters, and not
/// in both. So it is wherever its consumer was.
#[test]
fn a_crash_leaves_a_rejected_message_in_one_place() {
    for (shards, appends) in (1..=3).flat_map(|shards| (0..6).map(move |appends| (shards, appends)))
    {
        let store = MemoryStore::new();
        let start = |store: MemoryStore| {
            let mut cluster = Cluster::with(shards, Limits::default(), |_| Box::new(store.clone()));
            for shard in 0..shards {
                let now_ms = cluster.now_ms;
                cluster.broker(shard).restore(now_ms);
                cluster.collect(shard);
            }
            cluster.run();
            cluster.keep_with(0, QUEUE, rules(Some("q/dead"), None));
            cluster.keep(0, DEAD);
            cluster
        };
        let mut cluster = start(store.clone());
        put(&mut cluster, 0, "bad");
        put(&mut cluster, 0, "good");
        let client = consumer(&mut cluster, shards - 1, QUEUE, 1);
        let delivery = cluster.next(client).expect("it was assigned");
        store.die_after(appends);
        cluster.settle(client, delivery.tag, Outcome::Rejected(0x80));
        cluster.run();
        drop(cluster);
        let mut cluster = start(store.snapshot());
        let client = consumer(&mut cluster, shards - 1, QUEUE, 10);
        let waiting = cluster.drain(client);
        let undertaker = consumer(&mut cluster, 0, DEAD, 10);
        let dead = cluster.drain(undertaker);
        if appends == 0 {
            assert_eq!(
                (&waiting[..], &dead[..]),
                (&["bad", "good"].map(String::from)[..], &[][..])
            );
        } else {
            assert_eq!(waiting, ["good"], "{shards} shards, {appends} appends");
            assert_eq!(
                dead,
                ["bad: work rejected 0"],
                "{shards} shards, {appends} appends"
            );
        }
    }
}

/// Selects payloads that end with a letter.
#[derive(Debug)]
struct EndsWith(u8);

impl Selector for EndsWith {
    fn selects(&self, message: &Message, _steps: &mut u64) -> Option<bool> {
        Some(message.payload().ends_with(&[self.0]))
    }
}

#[test]
fn a_member_that_chooses_sees_what_overtakes() {
    let mut cluster = Cluster::new(2);
    cluster.keep_with(0, QUEUE, with_priorities());
    let picky = cluster.open_on_demand(1, "picky", Some(Arc::new(EndsWith(b'x'))));
    cluster.subscribe(picky, QUEUE, qos(Qos::ExactlyOnce));
    put(&mut cluster, 0, "p1 a");
    put(&mut cluster, 0, "p1 x");
    cluster.demand(picky, 1);
    cluster.run();
    assert_eq!(cluster.drain(picky), ["p1 x"]);
    put(&mut cluster, 0, "p1 b");
    put(&mut cluster, 0, "p8 x");
    cluster.demand(picky, 1);
    cluster.run();
    assert_eq!(cluster.drain(picky), ["p8 x"], "behind its cursor");
    let all = consumer(&mut cluster, 0, QUEUE, 10);
    assert_eq!(cluster.drain(all), ["p1 a", "p1 b"]);
    cluster.assert_empty();
}

#[test]
fn a_delayed_message_waits_until_it_is_due_and_takes_room_meanwhile() {
    for shards in 1..=2 {
        let limits = Limits {
            group_queued_messages: 3,
            ..Limits::default()
        };
        let mut cluster = Cluster::with(shards, limits, |_| Box::new(NoStore));
        cluster.keep_with(0, QUEUE, rules(None, None));
        let client = consumer(&mut cluster, shards - 1, QUEUE, 10);
        for payload in ["d500 late", "d200 soon", "d500 last"] {
            assert!(put(&mut cluster, 0, payload));
        }
        assert!(!put(&mut cluster, 0, "more"), "they wait in the queue");
        cluster.pass(199);
        assert_eq!(cluster.drain(client).len(), 0);
        cluster.pass(1);
        assert_eq!(cluster.drain(client), ["d200 soon"]);
        assert!(put(&mut cluster, 0, "now"));
        assert_eq!(cluster.drain(client), ["now"]);
        cluster.pass(300);
        assert_eq!(cluster.drain(client), ["d500 late", "d500 last"]);
        assert!(put(&mut cluster, 0, "d0 at once"));
        assert_eq!(cluster.drain(client), ["d0 at once"]);
        cluster.assert_empty();
    }
}

/// A message that waits beside delayed ones may leave in every way, and a delayed one may expire.
#[test]
fn delayed_messages_expire_and_do_not_disturb_those_that_wait() {
    for outcome in [
        Some(Outcome::Accepted),
        Some(Outcome::Rejected(0x80)),
        Some(Outcome::Failed),
        None,
    ] {
        let mut cluster = Cluster::new(2);
        cluster.keep_with(0, QUEUE, rules(None, Some(1)));
        put(&mut cluster, 0, "d600000 later");
        let now_ms = cluster.now_ms;
        for (payload, lives_ms) in [("d60000 too late", 2_000), ("now", 1_000)] {
            let header = MessageHeader {
                qos: Qos::AtLeastOnce,
                published_ms: now_ms,
                expires_at_ms: Some(now_ms + lives_ms),
                ..MessageHeader::default()
            };
            let message = Message::copy("q/work", &[], payload.as_bytes(), header);
            cluster.send(0, None, message.expect("small"));
            cluster.run();
            check(&mut cluster);
        }
        if let Some(outcome) = outcome {
            let client = consumer(&mut cluster, 1, QUEUE, 1);
            let delivery = cluster.next(client).expect("one is due");
            assert_eq!(text(&delivery), "now");
            cluster.settle(client, delivery.tag, outcome);
            cluster.close(client, sterna_broker::Close::NORMAL);
        }
        check(&mut cluster);
        cluster.pass(10_000);
        check(&mut cluster);
        let stored: u64 = (0..2)
            .map(|at| cluster.broker(at).counters().stored_messages)
            .sum();
        assert_eq!(stored, 1, "{outcome:?}: the one that is due in ten minutes");
        cluster.pass(600_000);
        let client = consumer(&mut cluster, 0, QUEUE, 1);
        assert_eq!(cluster.drain(client), ["d600000 later"]);
        cluster.assert_empty();
    }
}

#[test]
fn delayed_messages_end_with_their_queue() {
    let mut cluster = Cluster::new(1);
    let anchor = cluster.keep_with(0, QUEUE, rules(None, None));
    put(&mut cluster, 0, "d500 a");
    cluster.close(anchor, sterna_broker::Close::NORMAL);
    cluster.assert_empty();
    cluster.pass(1000);
}

fn browser(cluster: &mut Cluster, shard: u16, selector: Option<Arc<dyn Selector>>) -> Client {
    let client = cluster.open_on_demand(shard, "browser", selector);
    let now_ms = cluster.now_ms;
    cluster
        .broker(shard)
        .browse(now_ms, client.key, QUEUE)
        .expect("there is a queue");
    cluster.collect(shard);
    client
}

#[test]
fn a_browser_sees_what_waits_and_takes_nothing() {
    for shards in 1..=3 {
        let mut cluster = Cluster::new(shards);
        cluster.keep_with(0, QUEUE, rules(None, None));
        let mut expected = Vec::new();
        for number in 0..600 {
            put(&mut cluster, 0, &number.to_string());
            expected.push(number.to_string());
        }
        let expired = expiring("q/work", "gone", Qos::AtLeastOnce, cluster.now_ms);
        cluster.send(0, None, expired);
        put(&mut cluster, 0, "d500 not due");
        let client = browser(&mut cluster, shards - 1, None);
        cluster.run();
        assert!(cluster.next(client).is_none(), "without credit");
        let mut seen = Vec::new();
        while seen.len() < 600 {
            let credit = 1 + seen.len() as u32 / 2;
            cluster.demand(client, credit);
            cluster.run();
            let copies = cluster.take(client);
            assert!(!copies.is_empty() && copies.len() <= credit as usize);
            assert!(copies.iter().all(|copy| copy.tag == 0));
            seen.extend(copies.iter().map(text));
        }
        assert_eq!(seen, expected);
        cluster.demand(client, 10);
        cluster.start_drain(client);
        cluster.run();
        assert_eq!((cluster.drained(client), cluster.pending(client)), (1, 0));
        cluster.close(client, sterna_broker::Close::NORMAL);
        let consumer = consumer(&mut cluster, 0, QUEUE, 1000);
        assert_eq!(cluster.drain(consumer), expected);
    }
}

#[test]
fn a_drain_waits_for_the_answer_and_a_browser_may_choose() {
    let mut cluster = Cluster::new(3);
    cluster.keep_with(0, QUEUE, rules(None, None));
    for payload in ["a", "x", "b", "cx", "d"] {
        put(&mut cluster, 0, payload);
    }
    for shard in 0..3 {
        let client = browser(&mut cluster, shard, Some(Arc::new(EndsWith(b'x'))));
        cluster.demand(client, 3);
        cluster.start_drain(client);
        cluster.run();
        assert_eq!(cluster.drained(client), 1);
        let copies = cluster.take(client);
        assert_eq!(copies.iter().map(text).collect::<Vec<_>>(), ["x", "cx"]);
        cluster.close(client, sterna_broker::Close::NORMAL);
    }
    let client = cluster.open_on_demand(0, "nowhere", None);
    let now_ms = cluster.now_ms;
    let browsed = cluster.broker(0).browse(now_ms, client.key, "$share/no/q");
    assert_eq!(browsed, Err(sterna_broker::SubscribeError::InvalidFilter));
}

#[derive(Clone, Debug)]
enum Step {
    Put { priority: u8, delay_ms: u64 },
    Take,
    Settle { which: usize, outcome: Outcome },
    Pass(u64),
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![
        Just(Outcome::Accepted),
        Just(Outcome::Rejected(0x80)),
        Just(Outcome::Released),
        Just(Outcome::Failed),
        Just(Outcome::Undeliverable),
    ];
    prop_oneof![
        4 => (0..10_u8, 0..3_u64).prop_map(|(priority, delay)| Step::Put {
            priority,
            delay_ms: delay * 100,
        }),
        4 => Just(Step::Take),
        3 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Step::Settle { which, outcome }),
        1 => (0..200_u64).prop_map(Step::Pass),
        1 => Just(Step::Lose),
    ]
}

/// Reads payloads of numbers, priorities and delays.
#[derive(Debug)]
struct Fields;

fn field(message: &Message, at: usize) -> u64 {
    let text = std::str::from_utf8(message.payload()).unwrap_or_default();
    let field = text.split(' ').nth(at);
    field
        .and_then(|field| field.parse().ok())
        .unwrap_or_default()
}

impl MessageReader for Fields {
    fn priority(&self, message: &Message) -> u8 {
        field(message, 1) as u8
    }

    fn due_ms(&self, message: &Message) -> Option<u64> {
        Some(field(message, 2))
    }

    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message> {
        Message::copy(
            letter.topic,
            &[],
            message.payload(),
            MessageHeader::default(),
        )
        .ok()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// What a queue accepts is accepted by a consumer or a dead letter in the end, once.
    #[test]
    fn nothing_is_lost_between_a_queue_and_its_dead_letters(
        shards in 1..=3_u16,
        window in 0..4_usize,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let store = MemoryStore::new();
        let limits = Limits {
            read_ahead_messages: window,
            ..Limits::default()
        };
        // With a small window most of the queue waits in the log.
        let mut cluster = Cluster::with(shards, limits, |_| match window {
            0 => Box::new(NoStore),
            1 => Box::new(store.clone()),
            _ => Box::new(LateStore::new(&store)),
        });
        let queue = QueueRules {
            has_priorities: true,
            reader: Arc::new(Fields),
            ..rules(Some("q/dead"), Some(3))
        };
        cluster.keep_with(0, QUEUE, queue);
        cluster.keep(0, DEAD);
        let mut client = consumer(&mut cluster, shards - 1, QUEUE, 1000);
        let mut held = Vec::new();
        let (mut sent, mut done) = (Vec::new(), Vec::new());
        for step in steps {
            check(&mut cluster);
            match step {
                Step::Put { priority, delay_ms } => {
                    let due_ms = cluster.now_ms + delay_ms;
                    let payload = format!("{} {priority} {due_ms}", sent.len());
                    let shard = sent.len() as u16 % shards;
                    prop_assert!(put(&mut cluster, shard, &payload));
                    sent.push(payload);
                }
                Step::Take => {
                    if let Some(delivery) = cluster.next(client) {
                        prop_assert!(field(&delivery.message, 2) <= cluster.now_ms);
                        prop_assert!(delivery.failures < 3);
                        held.push(delivery);
                        cluster.run();
                    }
                }
                Step::Settle { which, outcome } => {
                    if !held.is_empty() {
                        let delivery = held.swap_remove(which % held.len());
                        if outcome == Outcome::Accepted {
                            done.push(text(&delivery));
                        }
                        cluster.settle(client, delivery.tag, outcome);
                    }
                }
                Step::Pass(duration_ms) => cluster.pass(duration_ms),
                Step::Lose => {
                    held.clear();
                    cluster.close(client, sterna_broker::Close::LOST);
                    client = consumer(&mut cluster, shards - 1, QUEUE, 1000);
                }
            }
        }
        cluster.close(client, sterna_broker::Close::LOST);
        cluster.pass(60_000);
        client = consumer(&mut cluster, 0, QUEUE, 1000);
        done.extend(cluster.drain(client));
        let undertaker = consumer(&mut cluster, 0, DEAD, 1000);
        done.extend(cluster.drain(undertaker));
        done.sort();
        sent.sort();
        prop_assert_eq!(done, sent);
        cluster.assert_empty();
    }
}
