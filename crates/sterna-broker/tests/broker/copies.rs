//! The copies of messages in one turn: how they are counted, and what waits for another turn.

use sterna_broker::{Close, Delivery, Limits, NEVER_EXPIRES_S, Outcome, Pressure, Qos, Will};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, named, qos};

const PER_TURN: u64 = 100;
const READERS: usize = 40;

fn limits() -> Limits {
    Limits {
        copies_per_turn: PER_TURN,
        will_bytes: 1_000,
        ..Limits::default()
    }
}

fn begin_turn(cluster: &mut Cluster, shard: u16) {
    let now_ms = cluster.now_ms;
    cluster.broker(shard).begin_turn(|| now_ms);
    cluster.collect(shard);
    cluster.run();
}

fn readers(cluster: &mut Cluster, shards: u16, filter: &str) -> Vec<Client> {
    let open = |number: usize| {
        let shard = number as u16 % shards;
        let reader = cluster.open(shard, &format!("reader{number}"));
        cluster.subscribe(reader, filter, qos(Qos::AtMostOnce));
        reader
    };
    (0..READERS).map(open).collect()
}

#[test]
fn deliveries_on_all_shards_count_and_large_bodies_count_more() {
    let mut cluster = Cluster::with(2, limits(), |_| Box::new(sterna_broker::NoStore));
    let all = readers(&mut cluster, 2, "all");
    begin_turn(&mut cluster, 0);
    let mut before = cluster.broker(0).copies_of_turn();
    let mut made = |cluster: &mut Cluster, topic: &str, body: &str| {
        cluster.publish(0, topic, body, Qos::AtMostOnce);
        let now = cluster.broker(0).copies_of_turn();
        now - std::mem::replace(&mut before, now)
    };
    let readers = READERS as u64;
    // The first look finds them, the later ones remember them.
    let first = made(&mut cluster, "all", "");
    assert!((readers..=2 * readers).contains(&first), "{first}");
    made(&mut cluster, "all", "");
    assert_eq!(made(&mut cluster, "all", ""), readers);
    // The queues share it.
    let body = "x".repeat(3 * 16 * 1_024);
    assert_eq!(made(&mut cluster, "all", &body), 4 * readers);
    assert!(made(&mut cluster, "nobody", "") <= 1);
    assert!(cluster.broker(0).is_light("nobody") && !cluster.broker(0).is_light("all"));
    assert!(
        cluster.broker(0).is_light("not/a/+/topic"),
        "it goes to nobody"
    );
    begin_turn(&mut cluster, 0);
    assert_eq!(cluster.broker(0).copies_of_turn(), 0);
    for reader in all {
        cluster.take(reader);
    }
}

#[test]
fn bytes_copied_for_one_connection_count_among_deliveries() {
    let mut cluster = Cluster::limited(limits());
    let reader = cluster.open(0, "reader");
    begin_turn(&mut cluster, 0);
    let broker = cluster.broker(0);
    // A session with an empty queue is ready once, as often as its consumer says that it has more.
    assert_eq!(broker.next_ready(), None);
    for _ in 0..2 {
        broker.note_more(reader.key);
        assert!(broker.has_ready());
        let ready = broker.next_ready().map(|(_, session)| session);
        assert_eq!(ready, Some(reader.key));
        assert_eq!(broker.next_ready(), None);
    }
    broker.note_more(reader.key);
    broker.park(reader.key);
    assert_eq!(broker.next_ready(), None);
    broker.note_more(reader.key);
    broker.unpark(reader.key);
    assert!(broker.next_ready().is_some());
    assert!(!broker.has_delivered());
    broker.note_copied(24 << 10);
    assert_eq!(broker.deliveries_of_turn(), 96);
    assert!(!broker.has_delivered());
    broker.note_copied(1 << 10);
    assert!(broker.has_delivered() && !broker.has_copied());
    begin_turn(&mut cluster, 0);
    assert!(!cluster.broker(0).has_delivered());
}

#[test]
fn a_visit_is_shorter_the_more_sessions_are_ready() {
    let mut cluster = Cluster::limited(Limits {
        copies_per_turn: 16_384,
        ..limits()
    });
    let readers: Vec<_> = (0..1_000)
        .map(|number| cluster.open(0, &format!("reader {number}")))
        .collect();
    let visits = [0, 1, 16, 64, 256, 1_000].map(|ready| {
        for reader in &readers[..ready] {
            cluster.broker(0).note_more(reader.key);
        }
        cluster.broker(0).messages_of_visit()
    });
    assert_eq!(visits, [256, 256, 256, 64, 16, 16]);
}

/// All ways through such filters match a topic of their levels.
#[test]
fn filters_that_are_looked_at_in_vain_count_and_the_short_look_is_short() {
    const LEVELS: u32 = 10;
    let mut cluster = Cluster::limited(limits());
    let client = cluster.open(0, "client");
    for bits in 0..1_u32 << LEVELS {
        let levels = (0..LEVELS).map(|level| if bits >> level & 1 == 0 { "a" } else { "+" });
        let filter = levels.collect::<Vec<_>>().join("/") + "/end";
        cluster.subscribe(client, &filter, qos(Qos::AtMostOnce));
    }
    begin_turn(&mut cluster, 0);
    let before = cluster.broker(0).copies_of_turn();
    let topic = ["a"; LEVELS as usize].join("/") + "/other";
    assert!(!cluster.broker(0).is_light(&topic));
    let after_look = cluster.broker(0).copies_of_turn();
    assert!(after_look - before <= 9, "{before} to {after_look}");
    cluster.publish(0, &topic, "", Qos::AtMostOnce);
    let looked_at = 2_u64 << LEVELS;
    let made = cluster.broker(0).copies_of_turn() - after_look;
    assert!(made + 1 >= looked_at / 16, "{made} of {looked_at} places");
    assert!(cluster.broker(0).is_light("a/b"));
}

fn will(topic: &str) -> Will {
    Will {
        is_given: false,
        is_unproved: false,
        message: message(topic, "gone", Qos::AtLeastOnce, false),
        delay_s: 0,
        expiry_s: None,
    }
}

/// Wills of clients, the readers of which get one copy each.
fn open_with_wills(cluster: &mut Cluster, topic: &str, count: usize) -> Vec<Client> {
    let open = |number: usize| {
        let name = format!("client{number}");
        cluster.open_with(0, &name, true, 0, Some(will(topic)))
    };
    (0..count).map(open).collect()
}

#[test]
fn wills_that_go_to_many_wait_for_their_turns() {
    let mut cluster = Cluster::limited(limits());
    let all = readers(&mut cluster, 1, "all");
    let own = cluster.open(0, "own");
    cluster.subscribe(own, "own", qos(Qos::AtLeastOnce));
    let clients = open_with_wills(&mut cluster, "all", 20);
    let light = cluster.open_with(0, "light", true, 0, Some(will("own")));
    begin_turn(&mut cluster, 0);
    for client in clients {
        cluster.close(client, Close::LOST);
    }
    // Who goes to few goes at once.
    cluster.close(light, Close::LOST);
    assert_eq!(cluster.drain(own), ["gone"]);
    let per_turn = PER_TURN as usize / READERS + 1;
    let mut came = cluster.drain(all[0]).len();
    assert!((1..=per_turn).contains(&came), "{came} at once");
    // Their clients may come back before, and their bytes still count.
    let back = cluster.open_with(0, "client19", true, 0, Some(will("all")));
    let mut turns = 0;
    while cluster.broker(0).has_postponed() {
        begin_turn(&mut cluster, 0);
        let now = cluster.drain(all[0]).len();
        assert!(now <= per_turn, "{now} in a turn");
        came += now;
        turns += 1;
    }
    assert_eq!(came, 20);
    assert!(turns >= 20 / per_turn, "{turns}");
    for reader in &all[1..] {
        assert_eq!(cluster.drain(*reader).len(), 20);
    }
    cluster.close(back, Close::NORMAL);
    // Nothing of them counts any more.
    let bytes = "x".repeat(1_000 - 3);
    let mut largest = will("all");
    largest.message = message("all", &bytes, Qos::AtLeastOnce, false);
    cluster.open_with(0, "largest", true, 0, Some(largest));
    assert_eq!(cluster.broker(0).counters().wills_published, 21);
}

#[test]
fn wills_that_wait_for_a_turn_outlive_the_broker_and_go_once() {
    const NOW_MS: u64 = 1_000_000;
    let store = MemoryStore::new();
    let restarted = || {
        let mut cluster = Cluster::with(1, limits(), |_| Box::new(store.clone()));
        cluster.broker(0).restore(NOW_MS);
        cluster.broker(0).all_restored(NOW_MS);
        cluster.collect(0);
        cluster.run();
        cluster
    };
    let mut cluster = restarted();
    let all = readers(&mut cluster, 1, "all");
    let clients = open_with_wills(&mut cluster, "all", 20);
    begin_turn(&mut cluster, 0);
    for client in clients {
        cluster.close(client, Close::LOST);
    }
    let before = cluster.drain(all[0]).len();
    assert!(before < 20);
    // The client of one of them is back, with another will.
    cluster.open_with(0, "client19", true, 0, Some(will("other")));
    cluster.broker(0).flush_store();
    drop(cluster);

    let mut cluster = restarted();
    let late = cluster.open_with(0, "late", true, NEVER_EXPIRES_S, None);
    cluster.subscribe(late, "all", qos(Qos::AtLeastOnce));
    while cluster.broker(0).has_postponed() {
        begin_turn(&mut cluster, 0);
    }
    assert_eq!(cluster.drain(late).len(), 20 - before);
    assert!(
        cluster.directory.shard_of(&named("client19")).is_some(),
        "its own will waits"
    );
    cluster.broker(0).flush_store();
    drop(cluster);

    let mut cluster = restarted();
    assert!(!cluster.broker(0).has_postponed(), "they went once");
}

/// Sessions that are away, with messages of a topic in the log.
fn away(cluster: &mut Cluster, sessions: usize, messages: usize) {
    for number in 0..sessions {
        let name = format!("away{number}");
        let client = cluster.open_with(0, &name, false, NEVER_EXPIRES_S, None);
        cluster.subscribe(client, "all", qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
    }
    for number in 0..messages {
        cluster.publish(0, "all", &number.to_string(), Qos::AtLeastOnce);
    }
}

fn come_back(cluster: &mut Cluster, number: usize) -> Client {
    let name = format!("away{number}");
    cluster.open_with(0, &name, false, NEVER_EXPIRES_S, None)
}

#[test]
fn sessions_that_return_together_read_the_log_in_turns() {
    const SESSIONS: usize = 30;
    const MESSAGES: usize = 40;
    let store = MemoryStore::new();
    let mut cluster = Cluster::with(1, limits(), |_| Box::new(store.clone()));
    away(&mut cluster, SESSIONS, MESSAGES);
    begin_turn(&mut cluster, 0);
    let back: Vec<Client> = (0..SESSIONS)
        .map(|number| come_back(&mut cluster, number))
        .collect();
    let mut came = vec![Vec::new(); SESSIONS];
    let mut turns = 0;
    loop {
        let before: usize = came.iter().map(Vec::len).sum();
        for (client, came) in back.iter().zip(&mut came) {
            came.extend(cluster.drain(*client));
        }
        let now: usize = came.iter().map(Vec::len).sum();
        // Each may go beyond by what one session reads at once.
        assert!(
            now - before <= PER_TURN as usize + MESSAGES,
            "{} in a turn",
            now - before
        );
        if now == SESSIONS * MESSAGES {
            break;
        }
        turns += 1;
        assert!(turns < 1_000, "{now} came");
        begin_turn(&mut cluster, 0);
    }
    assert!(
        turns >= SESSIONS * MESSAGES / (PER_TURN as usize + MESSAGES),
        "{turns}"
    );
    let all: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert!(came.iter().all(|came| *came == all));
}

fn restored(store: &MemoryStore, limits: Limits) -> Cluster {
    let mut cluster = Cluster::with(1, limits, |_| Box::new(store.clone()));
    let now_ms = cluster.now_ms;
    cluster.broker(0).restore(now_ms);
    cluster.broker(0).all_restored(now_ms);
    cluster.collect(0);
    cluster.run();
    cluster
}

/// Whether they are given the end of the log, which is in memory, or each asks the store.
#[test]
fn a_body_counts_once_for_all_sessions_that_read_it_in_the_log() {
    const SESSIONS: usize = 30;
    const MESSAGES: usize = 20;
    for (body_bytes, is_restarted) in [(900, false), (3_000, false), (900, true), (3_000, true)] {
        let store = MemoryStore::new();
        let started = || restored(&store, Limits::default());
        let mut cluster = started();
        away(&mut cluster, SESSIONS, 0);
        for _ in 0..MESSAGES {
            cluster.publish(0, "all", &"x".repeat(body_bytes), Qos::AtLeastOnce);
        }
        if is_restarted {
            cluster.broker(0).flush_store();
            cluster = started();
        }
        let mut came = Vec::new();
        for number in 0..SESSIONS {
            let client = come_back(&mut cluster, number);
            came.push((client, cluster.take(client)));
        }
        assert!(came.iter().all(|(_, sent)| sent.len() == MESSAGES));
        let bodies = |sent: &[Delivery]| -> Vec<*const u8> {
            let payloads = sent.iter().map(|delivery| delivery.message.payload());
            payloads.map(<[u8]>::as_ptr).collect()
        };
        let first = bodies(&came[0].1);
        for (_, sent) in &came {
            assert_eq!(bodies(sent), first, "{body_bytes} {is_restarted}");
        }
        let held_bytes = |cluster: &mut Cluster| {
            let _ = cluster.broker(0).counters();
            cluster.directory.message_bytes()
        };
        // In the log a message has a few bytes more.
        let each = came[0].1.iter().map(|one| one.message.body_bytes() as u64);
        let bodies: u64 = each.sum();
        let entries = (SESSIONS * MESSAGES * 64) as u64;
        assert_eq!(held_bytes(&mut cluster), bodies + entries);
        // Each of them is weighed for what it has in its hands.
        let client = came[0].0;
        let own = cluster.broker(0).held_bytes(client.key).connected;
        assert_eq!(own, bodies + (MESSAGES * 64) as u64);
        for (client, sent) in came {
            for delivery in sent {
                cluster.settle(client, delivery.tag, Outcome::Accepted);
            }
        }
        let left = held_bytes(&mut cluster);
        assert!(left <= bodies, "{left}: the end of the log");
    }
}

/// Each reads its own part of the log. Those that settle nothing leave the others something.
#[test]
fn what_all_sessions_have_of_the_log_is_bounded() {
    const SESSIONS: usize = 30;
    const IDLE: usize = 10;
    const MESSAGES: usize = 100;
    const BODY_BYTES: usize = 1_000;
    const MOST_BYTES: usize = 100_000;
    let limits = Limits {
        replayed_bytes: MOST_BYTES as u64,
        ..Limits::default()
    };
    let store = MemoryStore::new();
    let mut cluster = restored(&store, limits.clone());
    for number in 0..SESSIONS {
        let client = come_back(&mut cluster, number);
        cluster.subscribe(client, &number.to_string(), qos(Qos::AtLeastOnce));
        cluster.close(client, Close::LOST);
    }
    for _ in 0..MESSAGES {
        for number in 0..SESSIONS {
            let (topic, body) = (number.to_string(), "x".repeat(BODY_BYTES));
            cluster.publish(0, &topic, &body, Qos::AtLeastOnce);
        }
    }
    cluster.broker(0).flush_store();
    let mut cluster = restored(&store, limits);
    let clients: Vec<Client> = (0..SESSIONS)
        .map(|number| come_back(&mut cluster, number))
        .collect();
    let mut came = [0; SESSIONS];
    let mut left = true;
    while std::mem::take(&mut left) {
        for (number, client) in clients.iter().enumerate() {
            let sent = cluster.take(*client);
            came[number] += sent.len();
            left |= !sent.is_empty();
            let _ = cluster.broker(0).counters();
            let held = cluster.directory.message_bytes() as usize;
            let parts = SESSIONS * 2 * (MOST_BYTES / SESSIONS);
            assert!(held <= 2 * MOST_BYTES + parts, "{held} bytes");
            for delivery in sent.into_iter().filter(|_| number >= IDLE) {
                cluster.settle(*client, delivery.tag, Outcome::Accepted);
            }
        }
        begin_turn(&mut cluster, 0);
    }
    assert!(came[..IDLE].iter().all(|&came| came > 0), "{came:?}");
    assert_eq!(came[IDLE..], [MESSAGES; SESSIONS - IDLE]);
}

#[test]
fn where_memory_is_short_a_reader_of_the_log_settles_before_it_gets_more() {
    const AHEAD: usize = 20;
    let limits = Limits {
        read_ahead_messages: AHEAD,
        ..Limits::default()
    };
    for is_relieved in [false, true] {
        let store = MemoryStore::new();
        let mut cluster = Cluster::with(1, limits.clone(), |_| Box::new(store.clone()));
        away(&mut cluster, 1, 200);
        cluster.directory.set_pressure(Pressure::MoveToLog);
        cluster.broker(0).feel_pressure();
        let client = come_back(&mut cluster, 0);
        let mut unsettled = cluster.take(client);
        let first = unsettled.len();
        assert!((1..=2 * AHEAD).contains(&first), "{first} without a word");
        begin_turn(&mut cluster, 0);
        assert!(cluster.take(client).is_empty());
        if is_relieved {
            cluster.directory.set_pressure(Pressure::None);
            cluster.broker(0).feel_pressure();
            begin_turn(&mut cluster, 0);
            assert_eq!(cluster.take(client).len(), 200 - first);
            continue;
        }
        let mut settled = 0;
        while let Some(delivery) = unsettled.pop() {
            cluster.settle(client, delivery.tag, Outcome::Accepted);
            settled += 1;
            let mut more = cluster.take(client);
            assert!(unsettled.len() + more.len() <= 2 * AHEAD);
            more.append(&mut unsettled);
            unsettled = more;
        }
        assert_eq!(settled, 200);
        cluster.assert_empty();
    }
}

#[test]
fn sessions_that_end_together_are_ended_in_turns() {
    const SESSIONS: usize = 60;
    const FILTERS: usize = 10;
    let mut cluster = Cluster::with(1, limits(), |_| Box::new(MemoryStore::new()));
    for number in 0..SESSIONS {
        let client = cluster.open_with(0, &format!("s{number}"), false, 5, None);
        for filter in 0..FILTERS {
            cluster.subscribe(client, &format!("{number}/{filter}"), qos(Qos::AtMostOnce));
        }
        cluster.close(client, Close::LOST);
    }
    let now_ms = cluster.now_ms + 6_000;
    let left = |cluster: &mut Cluster| cluster.broker(0).sessions(0, usize::MAX).0.len();
    assert_eq!(left(&mut cluster), SESSIONS);
    let mut turns = 0;
    while left(&mut cluster) > 0 {
        let before = left(&mut cluster);
        let broker = cluster.broker(0);
        broker.begin_turn(|| now_ms);
        assert!(broker.deadline_ms().is_some_and(|due_ms| due_ms <= now_ms));
        broker.timeout(now_ms);
        let ended = before - left(&mut cluster);
        assert!((1..=16).contains(&ended), "{ended} in one turn");
        turns += 1;
    }
    assert!(turns >= SESSIONS / 16, "{turns}");
}
