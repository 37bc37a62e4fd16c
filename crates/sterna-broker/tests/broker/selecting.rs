//! The work of selectors in one turn, whoever asks them, and consumers whose selectors take too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sterna_broker::{
    ConsumerId, Event, EvictReason, Limits, Message, NEVER_EXPIRES_S, OpenSession, Qos,
    RetainHandling, Selector, SessionName, SubscribeOptions,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, qos, text};
use crate::late_store::LateStore;

const QUEUE: &str = "$share/queue/q/#";
const TURN: u64 = 100;
const STEPS: u64 = 30;

/// Wants payloads with this end. Each look takes [`STEPS`]; a message that says so takes too much.
#[derive(Debug)]
struct Dear {
    end: &'static str,
    work: Arc<AtomicU64>,
}

impl Selector for Dear {
    fn selects(&self, message: &Message, steps: &mut u64) -> Option<bool> {
        *steps += STEPS;
        self.work.fetch_add(STEPS, Ordering::Relaxed);
        if message.payload().starts_with(b"dear") {
            return None;
        }
        Some(message.payload().ends_with(self.end.as_bytes()))
    }
}

fn limits() -> Limits {
    Limits {
        steps_per_turn: TURN,
        ..Limits::default()
    }
}

fn begin_turn(cluster: &mut Cluster) {
    let now_ms = cluster.now_ms;
    cluster.broker(0).begin_turn(|| now_ms);
    cluster.collect(0);
    cluster.run();
}

/// Has turns go by until nothing comes any more. Each does no more work than a turn may, and one look.
fn turns(cluster: &mut Cluster, clients: &[Client], work: &AtomicU64) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new(); clients.len()];
    let mut quiet = 0;
    while quiet < 50 {
        work.store(0, Ordering::Relaxed);
        begin_turn(cluster);
        quiet += 1;
        for (client, all) in clients.iter().zip(&mut all) {
            let payloads = cluster.drain(*client);
            quiet *= usize::from(payloads.is_empty());
            all.extend(payloads);
        }
        let done = work.load(Ordering::Relaxed);
        assert!(done < TURN + STEPS, "{done} steps in one turn");
    }
    all
}

fn dear(end: &'static str, work: &Arc<AtomicU64>) -> Arc<dyn Selector> {
    let work = Arc::clone(work);
    Arc::new(Dear { end, work })
}

fn names(range: std::ops::Range<u32>, end: &str) -> Vec<String> {
    range.map(|number| format!("{number:03}{end}")).collect()
}

#[test]
fn members_of_a_queue_look_at_it_in_turns() {
    let work = Arc::default();
    let mut cluster = Cluster::limited(limits());
    cluster.keep(0, QUEUE);
    let mut members = Vec::new();
    for (name, end) in [("a", "a"), ("b", "b"), ("none", "never"), ("c", "c")] {
        let client = cluster.open_on_demand(0, name, Some(dear(end, &work)));
        cluster.subscribe(client, QUEUE, qos(Qos::AtLeastOnce));
        cluster.demand(client, 1_000);
        members.push(client);
    }
    for number in 0..40 {
        for end in ["a", "b", "c", "x"] {
            cluster.publish(0, "q", &format!("{number:03}{end}"), Qos::AtLeastOnce);
        }
    }
    let all = turns(&mut cluster, &members, &work);
    assert_eq!(all[0], names(0..40, "a"));
    assert_eq!(all[1], names(0..40, "b"));
    assert!(all[2].is_empty());
    assert_eq!(all[3], names(0..40, "c"));
    // Whoever chooses nothing need not wait.
    let rest = cluster.consume(0, "rest", QUEUE);
    cluster.demand(rest, 1_000);
    cluster.run();
    assert_eq!(cluster.drain(rest), names(0..40, "x"));
    cluster.assert_empty();
}

#[test]
fn who_takes_credit_back_learns_first_what_is_for_him() {
    let work = Arc::default();
    let mut cluster = Cluster::limited(limits());
    cluster.keep(0, QUEUE);
    for payload in names(0..40, "x") {
        cluster.publish(0, "q", &payload, Qos::AtLeastOnce);
    }
    cluster.publish(0, "q", "last", Qos::AtLeastOnce);
    let client = cluster.open_on_demand(0, "a", Some(dear("last", &work)));
    cluster.subscribe(client, QUEUE, qos(Qos::AtLeastOnce));
    cluster.demand(client, 5);
    cluster.start_drain(client);
    cluster.run();
    let mut seen = Vec::new();
    while cluster.drained(client) == 0 {
        begin_turn(&mut cluster);
        seen.extend(cluster.drain(client));
    }
    seen.extend(cluster.drain(client));
    assert_eq!(seen, ["last"]);
}

/// Others of the queue may have looks in all turns: the answer waits for the member's own.
#[test]
fn who_takes_credit_back_waits_for_nobody_else() {
    let work = Arc::default();
    let mut cluster = Cluster::limited(limits());
    cluster.keep(0, QUEUE);
    for payload in names(0..100, "x") {
        cluster.publish(0, "q", &payload, Qos::AtLeastOnce);
    }
    let quick = cluster.open_on_demand(0, "quick", Some(dear("last", &work)));
    cluster.subscribe(quick, QUEUE, qos(Qos::AtLeastOnce));
    cluster.demand(quick, 5);
    turns(&mut cluster, &[quick], &work);
    let slow = cluster.open_on_demand(0, "slow", Some(dear("never", &work)));
    cluster.subscribe(slow, QUEUE, qos(Qos::AtLeastOnce));
    cluster.demand(slow, 5);
    begin_turn(&mut cluster);
    assert!(cluster.broker(0).has_postponed(), "it looks at more");
    cluster.start_drain(quick);
    cluster.run();
    assert_eq!(cluster.drained(quick), 1);
    cluster.start_drain(slow);
    cluster.run();
    assert_eq!(cluster.drained(slow), 0);
}

/// Nobody is told that there is nothing while the first message of a queue waits for its look.
#[test]
fn a_queue_is_undecided_until_its_first_message_was_looked_at() {
    let work: Arc<AtomicU64> = Arc::default();
    let mut cluster = Cluster::limited(limits());
    let client = cluster.open_on_demand(0, "a", Some(dear("a", &work)));
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    cluster.demand(client, 5);
    for payload in names(0..9, "x") {
        cluster.publish(0, "t", &payload, Qos::AtLeastOnce);
    }
    cluster.publish(0, "t", "1a", Qos::AtLeastOnce);
    assert!(cluster.drain(client).is_empty());
    let mut count = 0;
    while cluster.broker(0).is_undecided(client.key) {
        count += 1;
        begin_turn(&mut cluster);
        let came = cluster.drain(client);
        assert!(came.is_empty() || came == ["1a"]);
        if !came.is_empty() {
            assert!(count > 1, "it took {count} turns");
            assert!(!cluster.broker(0).is_undecided(client.key));
            return;
        }
    }
    panic!("it was decided after {count} turns that nothing comes");
}

#[test]
fn subscriptions_and_retained_messages_wait_for_their_look() {
    let work: Arc<AtomicU64> = Arc::default();
    let mut cluster = Cluster::limited(limits());
    for number in 0..20 {
        for end in ["a", "x"] {
            let payload = format!("{number:03}{end}");
            cluster.retain(0, &format!("r/{payload}"), &payload);
        }
    }
    let mut clients = Vec::new();
    for number in 0..5 {
        let client = cluster.open_on_demand(0, &format!("c{number}"), Some(dear("a", &work)));
        cluster.subscribe(client, "r/#", qos(Qos::AtLeastOnce));
        cluster.demand(client, 1_000);
        clients.push(client);
    }
    let other = cluster.open(0, "other");
    cluster.subscribe(other, "now", qos(Qos::AtMostOnce));
    work.store(0, Ordering::Relaxed);
    begin_turn(&mut cluster);
    for number in 20..40 {
        for end in ["a", "x"] {
            cluster.publish(0, "r/now", &format!("{number:03}{end}"), Qos::AtLeastOnce);
        }
    }
    // Others get theirs in the same turn.
    cluster.publish(0, "now", "at once", Qos::AtMostOnce);
    assert_eq!(cluster.drain(other), ["at once"]);
    assert!(work.load(Ordering::Relaxed) < TURN + STEPS);
    for mut seen in turns(&mut cluster, &clients, &work) {
        seen.sort();
        assert_eq!(seen, names(0..40, "a"));
    }
}

/// Filters whose lookup of retained messages visits all topics: one in a turn, and each client has its turn.
#[test]
fn retained_messages_are_looked_up_in_turns() {
    let mut cluster = Cluster::limited(limits());
    for number in 0..50 {
        cluster.retain(0, &format!("r/{number}/x"), "x");
    }
    cluster.retain(0, "r/7/y", "y");
    begin_turn(&mut cluster);
    let greedy = cluster.open(0, "greedy");
    for number in 0..20 {
        let filter = format!("{}/y", ["+/+", "r/+", "+/7"][number % 3]);
        cluster.subscribe(greedy, &filter, qos(Qos::AtLeastOnce));
    }
    assert_eq!(cluster.drain(greedy), ["y"], "the others are postponed");
    let other = cluster.open(0, "other");
    cluster.subscribe(other, "r/7/y", qos(Qos::AtLeastOnce));
    assert_eq!(cluster.drain(other), ["y"], "one without a wildcard is not");
    let wild = cluster.open(0, "wild");
    cluster.subscribe(wild, "r/+/y", qos(Qos::AtLeastOnce));
    // What is published meanwhile comes once, and what was retained before does not come after it.
    cluster.retain(0, "r/8/y", "new");
    assert_eq!(cluster.drain(wild), ["new"]);
    begin_turn(&mut cluster);
    begin_turn(&mut cluster);
    assert_eq!(
        cluster.drain(wild),
        ["y"],
        "it waits for one other, not for all"
    );
    let mut came = cluster.drain(greedy);
    for _ in 0..30 {
        begin_turn(&mut cluster);
        came.extend(cluster.drain(greedy));
    }
    assert_eq!(came.iter().filter(|payload| *payload == "y").count(), 19);
    assert!(!cluster.broker(0).has_postponed());
}

/// Three lookups without steps: one for a session that moves, one for a subscription that is made again with another
/// identifier, one for a subscription that ends.
#[test]
fn lookups_that_wait_are_their_sessions() {
    let mut cluster = Cluster::with(2, limits(), |_| Box::new(MemoryStore::default()));
    for number in 0..50 {
        cluster.retain(0, &format!("r/{number}/x"), "x");
    }
    cluster.retain(0, "r/7/y", "y");
    cluster.run();
    begin_turn(&mut cluster);
    let greedy = cluster.open(0, "greedy");
    cluster.subscribe(greedy, "+/+/y", qos(Qos::AtLeastOnce));
    let [moving, again, ended] = ["moving", "again", "ended"].map(|name| {
        let client = cluster.open(0, name);
        cluster.subscribe(client, "r/+/y", qos(Qos::AtLeastOnce));
        assert!(cluster.drain(client).is_empty(), "it waits");
        client
    });
    let moved = cluster.open(1, "moving");
    assert!(moved.present && cluster.was_evicted(moving));
    let options = SubscribeOptions {
        identifier: Some(7),
        retain_handling: RetainHandling::Never,
        ..qos(Qos::AtLeastOnce)
    };
    cluster.subscribe(again, "r/+/y", options);
    assert!(cluster.unsubscribe(ended, "r/+/y"));
    let mut came = [moved, again, ended].map(|client| cluster.drain(client));
    for _ in 0..10 {
        for shard in [0, 1] {
            let now_ms = cluster.now_ms;
            cluster.broker(shard).begin_turn(|| now_ms);
            cluster.collect(shard);
            cluster.run();
        }
        for (came, client) in came.iter_mut().zip([moved, again, ended]) {
            came.extend(cluster.drain(client));
        }
    }
    assert_eq!(came, [vec!["y"], vec!["y"], vec![]]);
    assert!(!cluster.broker(0).has_postponed() && !cluster.broker(1).has_postponed());
}

#[test]
fn browsers_look_in_turns() {
    let work = Arc::default();
    let mut cluster = Cluster::limited(limits());
    cluster.keep(0, QUEUE);
    for number in 0..300 {
        let end = if number % 10 == 0 { "a" } else { "x" };
        cluster.publish(0, "q", &format!("{number:03}{end}"), Qos::AtLeastOnce);
    }
    let mut clients = Vec::new();
    for number in 0..3 {
        let client = cluster.open_on_demand(0, &format!("c{number}"), Some(dear("a", &work)));
        let now_ms = cluster.now_ms;
        let browsed = cluster.broker(0).browse(now_ms, client.key, QUEUE);
        browsed.expect("a queue");
        cluster.demand(client, 1_000);
        cluster.start_drain(client);
        cluster.run();
        assert_eq!(cluster.drained(client), 0, "there is more to look at");
        clients.push(client);
    }
    for seen in turns(&mut cluster, &clients, &work) {
        let wanted: Vec<_> = (0..300).step_by(10).map(|n| format!("{n:03}a")).collect();
        assert_eq!(seen, wanted);
    }
    for client in clients {
        assert_eq!(cluster.drained(client), 1);
    }
}

#[test]
fn what_waits_in_the_log_is_looked_at_in_turns() {
    let work = Arc::default();
    let store = MemoryStore::default();
    let limits = Limits {
        read_ahead_messages: 4,
        ..limits()
    };
    let mut cluster = Cluster::with(1, limits, |_| Box::new(LateStore::new(&store)));
    cluster.broker(0).restore(1_000_000);
    cluster.keep(0, QUEUE);
    let members: Vec<_> = (0..3)
        .map(|number| {
            let client = cluster.open_on_demand(0, &format!("c{number}"), Some(dear("a", &work)));
            cluster.subscribe(client, QUEUE, qos(Qos::AtLeastOnce));
            cluster.demand(client, 1_000);
            client
        })
        .collect();
    for number in 0..60 {
        let end = if number % 3 == 0 { "a" } else { "x" };
        cluster.publish(0, "q", &format!("{number:03}{end}"), Qos::AtLeastOnce);
    }
    let mut seen = turns(&mut cluster, &members, &work).concat();
    seen.sort();
    let wanted: Vec<_> = (0..60).step_by(3).map(|n| format!("{n:03}a")).collect();
    assert_eq!(seen, wanted);
}

fn evicted(cluster: &Cluster, client: Client) -> bool {
    cluster.events.iter().any(|event| {
        matches!(event, Event::Evicted { consumer, reason: EvictReason::SelectorTooDear, .. }
            if *consumer == client.consumer)
    })
}

#[test]
fn a_consumer_whose_selector_takes_too_much_is_let_go() {
    for shards in 1..=2 {
        let work = Arc::default();
        let mut cluster = Cluster::new(shards);
        cluster.keep(0, QUEUE);
        let member = cluster.open_on_demand(shards - 1, "member", Some(dear("a", &work)));
        cluster.subscribe(member, QUEUE, qos(Qos::AtLeastOnce));
        cluster.demand(member, 10);
        cluster.run();
        cluster.publish(0, "q", "1a", Qos::AtLeastOnce);
        assert_eq!(cluster.drain(member), ["1a"]);
        cluster.publish(0, "q", "dear a", Qos::AtLeastOnce);
        assert!(evicted(&cluster, member));
        cluster.publish(0, "q", "2a", Qos::AtLeastOnce);
        // Others get what was there.
        let other = cluster.consume(0, "other", QUEUE);
        cluster.demand(other, 10);
        cluster.run();
        assert_eq!(cluster.drain(other), ["dear a", "2a"]);

        cluster.publish(0, "q", "dear b", Qos::AtLeastOnce);
        cluster.demand(other, 0);
        cluster.run();
        cluster.publish(0, "q", "dear c", Qos::AtLeastOnce);
        let browser = cluster.open_on_demand(shards - 1, "browser", Some(dear("a", &work)));
        let now_ms = cluster.now_ms;
        let broker = cluster.broker(shards - 1);
        (broker.browse(now_ms, browser.key, QUEUE)).expect("a queue");
        cluster.demand(browser, 10);
        cluster.run();
        assert!(evicted(&cluster, browser));
        cluster.demand(other, 10);
        cluster.run();
        let left = cluster.drain(other);
        assert_eq!(left.last().map(String::as_str), Some("dear c"));
    }
}

/// A session that outlives its consumer loses nothing of what that could not be asked about.
#[test]
fn a_durable_session_keeps_what_was_too_dear() {
    let work = Arc::default();
    let mut cluster = Cluster::new(1);
    let request = |selector| OpenSession {
        name: SessionName::new(None, "durable"),
        clean_start: false,
        expiry_s: NEVER_EXPIRES_S,
        consumer: ConsumerId::default(),
        will: None,
        on_demand: false,
        selector,
    };
    let (consumer, opened) = cluster.start_request(0, request(Some(dear("a", &work))));
    let client = cluster.opened(0, consumer, opened);
    cluster.subscribe(client, "t", qos(Qos::AtLeastOnce));
    for payload in ["1a", "dear a", "2a", "2b"] {
        cluster.publish(0, "t", payload, Qos::AtLeastOnce);
    }
    assert!(evicted(&cluster, client));
    let (consumer, opened) = cluster.start_request(0, request(None));
    let client = cluster.opened(0, consumer, opened);
    let payloads: Vec<_> = cluster.take(client).iter().map(text).collect();
    assert_eq!(payloads, ["1a", "dear a", "2a"]);
}
