//! Publishers that wait for a reader whose queue is half full.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use sterna_broker::{
    Close, Counters, CrowdedReader, Limits, Loss, LossWatcher, Outcome, Publication, Qos,
    SessionKey, Will,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, qos};

const STALL_MS: u64 = 2_000;

/// A publisher as front doors make one: it asks before each message, and waits where it has to.
struct Publisher {
    shard: u16,
    /// Its own reader, if it has one.
    own: Option<Client>,
    waits: Option<CrowdedReader>,
    /// What waits with it.
    waiting: Vec<CrowdedReader>,
    left: VecDeque<(String, u32)>,
}

impl Publisher {
    fn new(shard: u16, own: Option<Client>) -> Self {
        Self {
            shard,
            own,
            waits: None,
            waiting: Vec::new(),
            left: VecDeque::new(),
        }
    }

    fn wants(&mut self, topic: &str, count: u32) {
        (self.left).extend((0..count).map(|number| (topic.to_owned(), number)));
    }

    fn sessions(&self) -> Vec<SessionKey> {
        self.own.iter().map(|own| own.key).collect()
    }

    /// Publishes up to `most` messages, or until it has to wait.
    fn publish(&mut self, cluster: &mut Cluster, most: usize) {
        let now_ms = cluster.now_ms;
        let (own, sessions) = (self.own.map(|own| own.consumer), self.sessions());
        let broker = cluster.broker(self.shard);
        for _ in 0..most {
            if self.waits.is_some() {
                break;
            }
            let Some((topic, number)) = self.left.front() else {
                break;
            };
            if broker.may_hold()
                && let Some(reader) = broker.holder_of(topic, |consumer| Some(consumer) == own)
                && let Some(waiting) = broker.hold(reader, &sessions)
            {
                (self.waits, self.waiting) = (Some(reader), waiting);
                break;
            }
            let message = message(topic, &number.to_string(), Qos::AtLeastOnce, false);
            let origin = self.own.map(|own| own.key);
            broker.publish(now_ms, Publication::new(origin, message));
            self.left.pop_front();
        }
    }

    /// Hears which readers hold nobody any more.
    fn hear(&mut self, cluster: &mut Cluster, released: &[CrowdedReader]) {
        if let Some(reader) = self.waits
            && released.contains(&reader)
        {
            self.waits = None;
            cluster.broker(self.shard).unhold(reader, &self.waiting);
        }
    }
}

/// The end of a turn of each shard, and the letters.
fn turn(cluster: &mut Cluster, publishers: &mut [&mut Publisher]) {
    for _ in 0..2 {
        for shard in 0..cluster.directory.shards() {
            let released = cluster.broker(shard).take_released();
            cluster.collect(shard);
            for publisher in publishers.iter_mut() {
                if publisher.shard == shard {
                    publisher.hear(cluster, &released);
                }
            }
        }
        cluster.run();
    }
}

/// Takes up to `most` messages of a reader, and acknowledges them.
fn take(cluster: &mut Cluster, reader: Client, most: usize) -> Vec<u32> {
    let now_ms = cluster.now_ms;
    let mut taken = Vec::new();
    let broker = cluster.broker(reader.shard);
    // As a turn ends; others have their turns, too.
    for _ in 0..8 {
        if broker.next_ready().is_none_or(|(_, key)| key == reader.key) {
            break;
        }
    }
    while taken.len() < most
        && let Some(delivery) = broker.next_delivery(now_ms, reader.key)
    {
        broker.settle(now_ms, reader.key, delivery.tag, Outcome::Accepted);
        let text = String::from_utf8_lossy(delivery.message.payload()).into_owned();
        taken.push(text.parse().expect("a number"));
    }
    broker.next_ready();
    taken
}

/// Time passes, one deadline after the other.
fn pass(cluster: &mut Cluster, ms: u64) {
    let until_ms = cluster.now_ms + ms;
    while cluster.now_ms < until_ms {
        let brokers = cluster.brokers.iter();
        let due_ms = brokers.filter_map(sterna_broker::Broker::deadline_ms).min();
        let due_ms = due_ms.unwrap_or(u64::MAX);
        cluster.now_ms = due_ms.clamp(cluster.now_ms + 1, until_ms);
        let now_ms = cluster.now_ms;
        for shard in 0..cluster.directory.shards() {
            cluster.broker(shard).timeout(now_ms);
        }
    }
}

fn counters(cluster: &mut Cluster, shard: u16) -> Counters {
    let broker = cluster.broker(shard);
    broker.check();
    broker.counters()
}

/// A reader, and a publisher that wants to send it 20,000 messages.
fn burst(shards: u16) -> (Cluster, Client, Publisher) {
    let mut cluster = Cluster::new(shards);
    let reader = cluster.open(0, "reader");
    cluster.subscribe(reader, "t", qos(Qos::AtLeastOnce));
    let mut publisher = Publisher::new(shards - 1, None);
    publisher.wants("t", 20_000);
    (cluster, reader, publisher)
}

#[test]
fn a_reader_that_takes_what_it_gets_loses_nothing_of_a_burst() {
    for shards in [1, 2] {
        let (mut cluster, reader, mut publisher) = burst(shards);
        let mut got = Vec::new();
        let mut turns = 0;
        while got.len() < 20_000 {
            // What a turn reads of a client at most.
            publisher.publish(&mut cluster, 8_192);
            turn(&mut cluster, &mut [&mut publisher]);
            got.extend(take(&mut cluster, reader, 100));
            turn(&mut cluster, &mut [&mut publisher]);
            turns += 1;
            assert!(turns < 1_000, "{} came", got.len());
        }
        assert!(got.iter().copied().eq(0..20_000), "in their order");
        let counters = counters(&mut cluster, 0);
        assert_eq!((counters.dropped_full, counters.readers_slow), (0, 0));
        assert!(counters.reader_holds > 0);
        assert_eq!(counters.readers_holding, 0);
    }
}

/// As before there was that.
#[test]
fn without_the_time_nobody_is_held() {
    let mut cluster = Cluster::limited(Limits {
        reader_stall_ms: 0,
        ..Limits::default()
    });
    let reader = cluster.open(0, "reader");
    cluster.subscribe(reader, "t", qos(Qos::AtLeastOnce));
    let mut publisher = Publisher::new(0, None);
    publisher.wants("t", 2_000);
    publisher.publish(&mut cluster, 2_000);
    assert!(publisher.left.is_empty());
    assert_eq!(counters(&mut cluster, 0).dropped_full, 1_000);
    cluster.subscribe(reader, "$share/g/s", qos(Qos::AtLeastOnce));
    publisher.wants("s", 20_000);
    publisher.publish(&mut cluster, 20_000);
    assert!(publisher.left.is_empty());
    // Its queue, and what its member may have.
    let lost = counters(&mut cluster, 0).dropped_full - 1_000;
    assert!((9_900..=10_000).contains(&lost), "{lost}");
}

/// What was on its way when the queue became half full is more than it has places.
#[test]
fn what_is_on_its_way_from_other_shards_is_not_lost() {
    let (mut cluster, reader, mut publisher) = burst(2);
    publisher.publish(&mut cluster, 5_000);
    assert_eq!(publisher.left.len(), 15_000, "it has heard of nothing");
    turn(&mut cluster, &mut [&mut publisher]);
    assert_eq!(cluster.pending(reader), 5_000);
    publisher.publish(&mut cluster, 1);
    assert!(publisher.waits.is_some());
    // What its own shard publishes without asking, as a will, goes by the rule.
    cluster.publish(0, "t", "0", Qos::AtLeastOnce);
    assert_eq!(counters(&mut cluster, 0).dropped_full, 1);
    assert!(take(&mut cluster, reader, 4_700).into_iter().eq(0..4_700));
    turn(&mut cluster, &mut [&mut publisher]);
    assert!(publisher.waits.is_some(), "more than a quarter is left");
    take(&mut cluster, reader, 50);
    turn(&mut cluster, &mut [&mut publisher]);
    assert!(publisher.waits.is_none());
}

#[test]
fn a_reader_that_takes_nothing_holds_nobody_until_it_takes_again() {
    for shards in [1, 2] {
        let (mut cluster, reader, mut publisher) = burst(shards);
        let mut publish = |cluster: &mut Cluster, most| {
            publisher.publish(cluster, most);
            turn(cluster, &mut [&mut publisher]);
            publisher.publish(cluster, 0);
            publisher.waits.is_some()
        };
        publish(&mut cluster, 600);
        assert!(publish(&mut cluster, 1));
        pass(&mut cluster, STALL_MS - 1);
        assert!(publish(&mut cluster, 1), "it waits");
        pass(&mut cluster, 1);
        assert!(!publish(&mut cluster, 0), "no longer");
        publish(&mut cluster, 2_000);
        let (slow, lost) = {
            let counters = counters(&mut cluster, 0);
            (counters.readers_slow, counters.dropped_full)
        };
        assert!(
            slow == 1 && lost > 1_000,
            "the queue drops by its rule: {lost}"
        );
        // It takes its share again.
        take(&mut cluster, reader, 200);
        publish(&mut cluster, 10);
        assert!(publish(&mut cluster, 1), "and holds again");
        let after = counters(&mut cluster, 0).dropped_full;
        take(&mut cluster, reader, 900);
        assert!(!publish(&mut cluster, 10));
        assert_eq!(counters(&mut cluster, 0).dropped_full, after);
    }
}

/// Otherwise one client would slow all publishers down to its pace.
#[test]
fn one_message_now_and_then_is_not_enough() {
    let (mut cluster, reader, mut publisher) = burst(1);
    let mut held_ms = 0;
    for _ in 0..100 {
        publisher.publish(&mut cluster, 100);
        turn(&mut cluster, &mut [&mut publisher]);
        held_ms += if publisher.waits.is_some() { 1_900 } else { 0 };
        pass(&mut cluster, 1_900);
        take(&mut cluster, reader, 1);
    }
    assert!(publisher.left.len() < 12_000, "{}", publisher.left.len());
    assert!((1_900..=5_700).contains(&held_ms), "{held_ms} ms");
}

#[test]
fn nobody_waits_for_itself_or_in_a_circle() {
    let mut cluster = Cluster::new(2);
    let names = [(0, "a"), (1, "b"), (0, "c")];
    let readers = names.map(|(shard, name)| {
        let reader = cluster.open(shard, name);
        cluster.subscribe(reader, name, qos(Qos::AtLeastOnce));
        reader
    });
    let [mut a, mut b, mut c] =
        [0, 1, 2].map(|at| Publisher::new(readers[at].shard, Some(readers[at])));
    // To itself.
    a.wants("a", 600);
    a.publish(&mut cluster, 600);
    assert!(a.waits.is_none() && a.left.is_empty());
    // a waits for b, and b for c: as slow as the last of a row.
    a.wants("b", 700);
    b.wants("c", 700);
    for _ in 0..2 {
        a.publish(&mut cluster, 600);
        b.publish(&mut cluster, 600);
        turn(&mut cluster, &mut [&mut a, &mut b, &mut c]);
    }
    assert!(a.waits.is_some() && b.waits.is_some());
    // c would wait for a, whose client hears nothing before c does.
    c.wants("a", 10);
    c.publish(&mut cluster, 600);
    assert!(c.waits.is_none() && c.left.is_empty());
    // Nor does b wait for a.
    take(&mut cluster, readers[2], 600);
    turn(&mut cluster, &mut [&mut a, &mut b, &mut c]);
    assert!(b.waits.is_none(), "c has drained");
    b.left.clear();
    b.wants("a", 10);
    b.publish(&mut cluster, 600);
    assert!(b.waits.is_none() && b.left.is_empty());
    // Another client does.
    let mut other = Publisher::new(1, None);
    other.wants("a", 10);
    other.publish(&mut cluster, 600);
    assert!(other.waits.is_some());
}

/// The acknowledgements of a client that waits are not read, so its own reader takes nothing.
#[test]
fn a_reader_whose_client_waits_is_not_slow() {
    for shards in [1, 2] {
        let mut cluster = Cluster::new(shards);
        let [a, b] = [(0, "a"), (shards - 1, "b")].map(|(shard, name)| {
            let reader = cluster.open(shard, name);
            cluster.subscribe(reader, name, qos(Qos::AtLeastOnce));
            reader
        });
        let mut both = Publisher::new(0, Some(a));
        let mut other = Publisher::new(0, None);
        both.wants("b", 700);
        other.wants("a", 2_000);
        for _ in 0..2 {
            both.publish(&mut cluster, 600);
            other.publish(&mut cluster, 2_000);
            turn(&mut cluster, &mut [&mut both, &mut other]);
        }
        assert!(both.waits.is_some() && other.waits.is_some());
        take(&mut cluster, b, 20);
        // Slowly, but its share.
        for _ in 0..4 {
            take(&mut cluster, b, 55);
            turn(&mut cluster, &mut [&mut both, &mut other]);
            pass(&mut cluster, STALL_MS / 2);
        }
        turn(&mut cluster, &mut [&mut both, &mut other]);
        assert!(both.waits.is_some() && other.waits.is_some());
        assert_eq!(counters(&mut cluster, 0).readers_slow, 0);
        // From here on it could.
        take(&mut cluster, b, 200);
        turn(&mut cluster, &mut [&mut both, &mut other]);
        assert!(both.waits.is_none() && other.waits.is_some());
        pass(&mut cluster, 2 * STALL_MS);
        turn(&mut cluster, &mut [&mut both, &mut other]);
        assert!(other.waits.is_none());
        assert_eq!(counters(&mut cluster, 0).readers_slow, 1);
    }
}

fn is_all_in_order(got: &[u32], count: u32) -> bool {
    got.iter().copied().eq(0..count)
}

/// Nobody was held for them, since nothing was crowded when they came, and nobody can be when they go.
#[test]
fn a_transaction_finds_room_beyond_the_limit_and_holds_those_that_come_after_it() {
    for shards in [1, 2] {
        let (mut cluster, reader, mut publisher) = burst(shards);
        let now_ms = cluster.now_ms;
        let messages =
            (0..3_000).map(|number| message("t", &number.to_string(), Qos::AtLeastOnce, false));
        (cluster.broker(shards - 1)).publish_together(now_ms, None, messages.collect(), &[]);
        turn(&mut cluster, &mut [&mut publisher]);
        publisher.publish(&mut cluster, 1);
        assert!(publisher.waits.is_some());
        let got = take(&mut cluster, reader, 10_000);
        assert!(is_all_in_order(&got, 3_000), "{} came", got.len());
        assert_eq!(counters(&mut cluster, 0).dropped_full, 0);
    }
}

#[test]
fn wills_of_many_clients_that_go_at_once_find_room_beyond_the_limit() {
    for shards in [1, 2] {
        let (mut cluster, reader, _) = burst(shards);
        let testators: Vec<Client> = (0..2_500)
            .map(|number: u32| {
                let message = message("t", &number.to_string(), Qos::AtLeastOnce, false);
                let will = Will {
                    is_given: false,
                    is_unproved: false,
                    message,
                    delay_s: 0,
                    expiry_s: None,
                };
                cluster.open_with(shards - 1, &format!("c{number}"), true, 0, Some(will))
            })
            .collect();
        for testator in testators {
            cluster.close(testator, Close::LOST);
        }
        turn(&mut cluster, &mut []);
        let got = take(&mut cluster, reader, 10_000);
        assert!(is_all_in_order(&got, 2_500), "{} came", got.len());
        assert_eq!(counters(&mut cluster, 0).dropped_full, 0);
    }
}

/// It has no end: a reader could take everything, and does not.
#[test]
fn the_room_beyond_the_limit_is_bounded() {
    let (mut cluster, reader, _) = burst(1);
    let now_ms = cluster.now_ms;
    for _ in 0..10 {
        let messages =
            (0..3_000).map(|number| message("t", &number.to_string(), Qos::AtLeastOnce, false));
        (cluster.broker(0)).publish_together(now_ms, None, messages.collect(), &[]);
    }
    let got = take(&mut cluster, reader, 100_000);
    assert!((16_384..18_000).contains(&got.len()), "{} came", got.len());
    let lost = counters(&mut cluster, 0).dropped_full;
    assert_eq!(got.len() as u64 + lost, 30_000);
}

/// Panics at the first loss.
#[derive(Debug, Default)]
pub(crate) struct PanicsOnce(AtomicBool);

impl LossWatcher for PanicsOnce {
    fn lost(&self, _: Loss<'_>) {
        let is_first = !self.0.swap(true, Ordering::Relaxed);
        assert!(!is_first, "the first loss");
    }
}

#[test]
fn room_beyond_the_limit_is_for_one_publication_also_where_that_panics() {
    let (mut cluster, reader, _) = burst(1);
    let now_ms = cluster.now_ms;
    let broker = cluster.broker(0);
    broker.set_loss_watcher(Box::<PanicsOnce>::default());
    let text = |number: u32| message("t", &number.to_string(), Qos::AtLeastOnce, false);
    let too_many = (0..30_000).map(text).collect();
    let publish = AssertUnwindSafe(|| broker.publish_together(now_ms, None, too_many, &[]));
    assert!(catch_unwind(publish).is_err());
    assert_eq!(take(&mut cluster, reader, 5_000).len(), 5_000);
    assert_eq!(counters(&mut cluster, 0).dropped_full, 1);
    // This one could wait, so it has no place beyond the limit.
    cluster.publish(0, "t", "x", Qos::AtLeastOnce);
    assert_eq!(counters(&mut cluster, 0).dropped_full, 2);
}

#[test]
fn a_reader_that_is_gone_holds_nobody() {
    for shards in [1, 2] {
        let (mut cluster, reader, mut publisher) = burst(shards);
        publisher.publish(&mut cluster, 600);
        turn(&mut cluster, &mut [&mut publisher]);
        publisher.publish(&mut cluster, 1);
        assert!(publisher.waits.is_some());
        cluster.close(reader, Close::LOST);
        turn(&mut cluster, &mut [&mut publisher]);
        assert!(publisher.waits.is_none());
        assert_eq!(counters(&mut cluster, 0).readers_holding, 0);
        publisher.publish(&mut cluster, 20_000);
        assert!(publisher.left.is_empty());
    }
}

/// Also by their bytes, and those that were sent count.
#[test]
fn large_messages_fill_a_queue_by_their_bytes() {
    let mut cluster = Cluster::limited(Limits {
        queued_bytes: 1_000,
        ..Limits::default()
    });
    let reader = cluster.open(0, "reader");
    cluster.subscribe(reader, "t", qos(Qos::AtLeastOnce));
    let text = "x".repeat(200);
    let now_ms = cluster.now_ms;
    let broker = cluster.broker(0);
    let mut published = 0;
    while !broker.may_hold() {
        let message = message("t", &text, Qos::AtLeastOnce, false);
        let origin = None;
        broker.publish(now_ms, Publication::new(origin, message));
        // Its client acknowledges nothing.
        while broker.next_delivery(now_ms, reader.key).is_some() {}
        published += 1;
        assert!(published < 10);
    }
    assert_eq!(counters(&mut cluster, 0).dropped_full, 0);
}

/// They fall behind, and read the log.
#[test]
fn a_reader_of_the_log_holds_nobody_and_one_that_ends_with_its_connection_does() {
    let store = MemoryStore::new();
    let limits = Limits::default();
    let mut cluster = Cluster::with(1, limits, |_| Box::new(store.clone()));
    let kept = cluster.open(0, "kept");
    cluster.subscribe(kept, "kept", qos(Qos::AtLeastOnce));
    let brief = cluster.open_with(0, "brief", true, 0, None);
    cluster.subscribe(brief, "brief", qos(Qos::AtLeastOnce));
    let mut publisher = Publisher::new(0, None);
    publisher.wants("kept", 2_000);
    publisher.publish(&mut cluster, 2_000);
    assert!(publisher.waits.is_none() && publisher.left.is_empty());
    assert!(!cluster.broker(0).may_hold());
    publisher.wants("brief", 2_000);
    publisher.publish(&mut cluster, 2_000);
    assert!(publisher.waits.is_some());
    assert_eq!(cluster.broker(0).counters().dropped_full, 0);
}

const GROUP: &str = "$share/g/t";

/// A shared subscription with one member, and a publisher that wants to send it 20,000 messages.
fn burst_for_a_group(shards: u16, expiry_s: u32, has_store: bool) -> (Cluster, Client, Publisher) {
    let mut cluster = if has_store {
        let store = MemoryStore::new();
        Cluster::with(shards, Limits::default(), |_| Box::new(store.clone()))
    } else {
        Cluster::new(shards)
    };
    let member = cluster.open_with(0, "member", true, expiry_s, None);
    cluster.subscribe(member, GROUP, qos(Qos::AtLeastOnce));
    let mut publisher = Publisher::new(shards - 1, None);
    publisher.wants("t", 20_000);
    (cluster, member, publisher)
}

/// Its queue has a limit wherever it is: without a store, and in the log.
#[test]
fn a_shared_subscription_whose_member_takes_what_it_gets_loses_nothing_of_a_burst() {
    for (shards, expiry_s, has_store) in [
        (1, 0, false),
        (2, 0, false),
        (3, 0, true),
        (1, 600, true),
        (2, 600, true),
    ] {
        let (mut cluster, member, mut publisher) = burst_for_a_group(shards, expiry_s, has_store);
        let mut got = Vec::new();
        let mut turns = 0;
        while got.len() < 20_000 {
            publisher.publish(&mut cluster, 8_192);
            turn(&mut cluster, &mut [&mut publisher]);
            got.extend(take(&mut cluster, member, 100));
            turn(&mut cluster, &mut [&mut publisher]);
            turns += 1;
            assert!(turns < 2_000, "{shards} {has_store}: {} came", got.len());
        }
        assert!(is_all_in_order(&got, 20_000), "in their order");
        for shard in 0..shards {
            let counters = counters(&mut cluster, shard);
            assert_eq!((counters.dropped_full, counters.readers_slow), (0, 0));
            assert_eq!(counters.readers_holding, 0);
        }
    }
}

#[test]
fn members_that_take_nothing_or_are_gone_hold_nobody() {
    for (shards, is_gone) in [(1, false), (2, false), (1, true), (2, true)] {
        let (mut cluster, member, mut publisher) = burst_for_a_group(shards, 600, false);
        for _ in 0..20 {
            publisher.publish(&mut cluster, 500);
            turn(&mut cluster, &mut [&mut publisher]);
        }
        publisher.publish(&mut cluster, 1);
        assert!(publisher.waits.is_some());
        if is_gone {
            cluster.close(member, Close::LOST);
        } else {
            pass(&mut cluster, STALL_MS);
        }
        turn(&mut cluster, &mut [&mut publisher]);
        assert!(publisher.waits.is_none());
        publisher.publish(&mut cluster, 20_000);
        assert!(publisher.left.is_empty(), "the queue drops by its rule");
    }
}

/// One of two that is stuck stops nobody while the other takes what there is.
#[test]
fn a_member_that_takes_its_share_is_enough() {
    let (mut cluster, member, mut publisher) = burst_for_a_group(2, 0, false);
    let stuck = cluster.open(1, "stuck");
    cluster.subscribe(stuck, GROUP, qos(Qos::AtLeastOnce));
    let mut got = 0;
    for _ in 0..2_000 {
        publisher.publish(&mut cluster, 8_192);
        turn(&mut cluster, &mut [&mut publisher]);
        got += take(&mut cluster, member, 100).len();
        turn(&mut cluster, &mut [&mut publisher]);
        if publisher.left.is_empty() && got + 32 >= 20_000 {
            break;
        }
        pass(&mut cluster, 10);
    }
    assert_eq!(got, 20_000 - 32, "all but the window of the other");
    for shard in 0..2 {
        let counters = counters(&mut cluster, shard);
        assert_eq!((counters.dropped_full, counters.readers_slow), (0, 0));
    }
}

/// Its acknowledgements would not be read.
#[test]
fn no_member_waits_for_its_own_shared_subscription_or_in_a_circle_with_it() {
    for shards in [1, 2] {
        let (mut cluster, member, mut publisher) = burst_for_a_group(shards, 0, false);
        let other = cluster.open(shards - 1, "other");
        cluster.subscribe(other, "other", qos(Qos::AtLeastOnce));
        for _ in 0..20 {
            publisher.publish(&mut cluster, 500);
            turn(&mut cluster, &mut [&mut publisher]);
        }
        publisher.publish(&mut cluster, 1);
        assert!(publisher.waits.is_some());
        let mut own = Publisher::new(0, Some(member));
        own.wants("t", 10);
        own.publish(&mut cluster, 10);
        assert!(own.waits.is_none() && own.left.is_empty(), "for itself");
        // The member waits for another reader, whose client then does not wait for the member.
        own.wants("other", 700);
        for _ in 0..2 {
            own.publish(&mut cluster, 600);
            turn(&mut cluster, &mut [&mut own, &mut publisher]);
        }
        assert!(own.waits.is_some());
        let mut others = Publisher::new(shards - 1, Some(other));
        others.wants("t", 10);
        others.publish(&mut cluster, 10);
        assert!(others.waits.is_none() && others.left.is_empty());
        take(&mut cluster, other, 700);
        turn(&mut cluster, &mut [&mut own, &mut publisher]);
        assert!(own.waits.is_none());
    }
}
