//! Queues of a cluster, in virtual time: the queue as a whole is at its root, consumers are on any node.

use std::collections::BTreeMap;
use std::sync::Arc;

use sterna_broker::{
    Close, Companions, DEFAULT_PRIORITY, DeadLetter, Destination, Limits, Message, MessageHeader,
    MessageReader, Outcome, Outgoing, PeerGate, PublishRefusal, Qos, QueueRules, SessionKey, Share,
    Wanted,
};

use crate::cluster::{Client, message, qos, text};
use crate::far_world::{DEAD, GROUP, LARGEST_BODY_BYTES, NODES, World};
use crate::log_node::{Log, LogNode, SHARDS};

/// Reads payloads such as `12 p7`: a number, a priority.
#[derive(Debug)]
struct Reader;

impl MessageReader for Reader {
    fn priority(&self, message: &Message) -> u8 {
        let payload = String::from_utf8_lossy(message.payload());
        let priority = payload.split(" p").nth(1);
        priority.map_or(DEFAULT_PRIORITY, |one| one.parse().expect("a priority"))
    }

    fn due_ms(&self, _: &Message) -> Option<u64> {
        None
    }

    fn dead_letter(&self, message: &Message, letter: &DeadLetter<'_>) -> Option<Message> {
        let payload = String::from_utf8_lossy(message.payload());
        let payload = format!("{payload} {} {}", letter.cause.as_str(), letter.failures);
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            ..MessageHeader::default()
        };
        Message::copy(letter.topic, &[], payload.as_bytes(), header).ok()
    }
}

fn rules(maximum_deliveries: Option<u16>) -> QueueRules {
    QueueRules {
        name: "g".into(),
        maximum_deliveries,
        dead_letter: Some(DEAD.into()),
        has_priorities: false,
        reader: Arc::new(Reader),
    }
}

fn world(rules: QueueRules, limits: Limits) -> World {
    let mut world = World::with(1, true, Some(rules), limits);
    world.calm_down();
    world
}

/// A node that has not the root.
fn other_than_owner(world: &World) -> usize {
    (world.owner() + 1) % NODES
}

fn join(world: &mut World, at: usize) {
    world.join(at);
    world.end_turn(at);
    world.calm_down();
}

/// A member takes all that there is, and accepts each. What it got.
fn drain(world: &mut World, at: usize, which: usize) -> Vec<String> {
    let mut got = Vec::new();
    loop {
        world.calm_down();
        let deliveries = world.take(at, which);
        if deliveries.is_empty() {
            return got;
        }
        for delivery in deliveries {
            got.push(text(&delivery));
            world.settle(at, which, delivery.tag, Outcome::Accepted);
        }
    }
}

/// Messages that wait, as the root's node says.
fn waiting(world: &mut World) -> usize {
    let at = world.owner();
    let broker = world.nodes[at]
        .site
        .cluster
        .broker(Share::home(GROUP, SHARDS));
    broker.queue_info(GROUP).expect("the root's node").messages
}

fn publish(world: &mut World, at: usize, payloads: &[&str]) {
    for payload in payloads {
        let routed = world.publish_text(at, payload, Qos::AtLeastOnce);
        assert!(routed.token > 0 && !routed.is_refused(), "{payload}");
    }
    world.calm_down();
}

fn play(seed: u64, with_fence: bool) -> Option<String> {
    let mut world = World::with(seed, with_fence, Some(rules(Some(3))), Limits::default());
    // Messages that go to others anyway hide who has them without the fence.
    world.takes_all = !with_fence;
    world.join(0);
    world.end_turn(0);
    for at in 0..NODES {
        world.take_turns(at, usize::MAX);
        world.end_turn(at);
    }
    for _ in 0..400 {
        world.step();
    }
    world.rest();
    let doubled = (world.dead_letters().into_iter()).find(|&(_, count)| count > 2);
    let fault = world.judge();
    // A node that dies may leave a letter, and not that it has counted a failure.
    fault.or_else(|| doubled.map(|(number, count)| format!("{number} died {count} times")))
}

#[test]
fn without_deaths_no_message_is_a_dead_letter_twice() {
    crate::seeds::play("dead letters of nodes", 0..20, |seed| {
        let mut world = World::with(seed, true, Some(rules(Some(2))), Limits::default());
        world.calm_down();
        for at in 0..NODES {
            join(&mut world, at);
        }
        for number in 0..60 {
            world.publish(number % NODES);
            world.read((number + 1) % NODES);
            if number % 5 == 0 {
                world.calm_down();
            }
        }
        world.rest();
        for (number, count) in world.dead_letters() {
            assert_eq!(count, 1, "{number}, seed {seed}");
            assert!(!world.done.contains_key(&number), "{number}, seed {seed}");
        }
        assert_eq!(world.judge(), None, "seed {seed}");
    });
}

/// Another shard has not heard of the queue when its publisher sends.
#[test]
fn the_first_message_behind_a_new_queue_goes_by_the_log() {
    let gate = PeerGate::new(1 << 30);
    gate.set_largest_body_bytes(1_000);
    let mut site = LogNode::start(&Log::default(), Limits::default(), gate);
    let declared = (site.cluster.broker(0)).declare_queue(0, GROUP, rules(None));
    declared.expect("a valid queue");
    let message = message("t", "x", Qos::AtMostOnce, false);
    let routed =
        (site.cluster.broker(1)).publish_parts(0, None, message.parts(), Companions::default());
    assert!(routed.is_ok_and(|routed| routed.token > 0));
    let outbound = site.cluster.broker(1).take_outgoing().expect("the message");
    assert!(matches!(
        outbound.outgoing[..],
        [Outgoing {
            destination: Destination::Log { .. },
            ..
        }]
    ));
}

#[test]
fn a_message_of_a_queue_is_with_one_consumer_of_all_nodes_at_a_time() {
    crate::seeds::play("queues of nodes", 0..40, |seed| {
        assert_eq!(play(seed, true), None, "seed {seed}");
    });
}

/// Who stood still does not look at the fence, and goes on with what others have by now: somebody must notice.
#[test]
fn without_the_fence_a_message_of_a_queue_is_with_two_consumers() {
    let is_noticed = |&seed: &u64| {
        let played = std::panic::catch_unwind(|| play(seed, false));
        !matches!(played, Ok(None))
    };
    let found = (0..30).filter(is_noticed).count();
    assert!(found > 1, "only {found} of 30 seeds have found two holders");
}

#[test]
fn what_a_queue_gave_to_an_earlier_process_of_a_node_is_not_for_the_next() {
    for attendances in 1..10 {
        let mut world = world(rules(None), Limits::default());
        let [early, had] = world.give_to_the_process_before(attendances);
        assert!(early.is_empty(), "{early:?} with {attendances}");
        assert_eq!(had, ["1", "2", "3", "4"], "with {attendances}");
    }
}

#[test]
fn a_consumer_that_comes_while_its_node_waits_for_the_roots_answer_has_its_part() {
    let mut world = world(rules(None), Limits::default());
    assert_eq!(world.join_before_the_answer(), [2, 4]);
}

#[test]
fn what_is_published_to_a_queue_without_consumers_waits_whichever_node_dies() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    publish(&mut world, at, &["1", "2", "3"]);
    assert_eq!(waiting(&mut world), 3);
    for _ in 0..NODES {
        let owner = world.owner();
        world.replace(owner);
        assert_eq!(waiting(&mut world), 3);
    }
    let at = other_than_owner(&world);
    join(&mut world, at);
    assert_eq!(drain(&mut world, at, 0), ["1", "2", "3"]);
    assert_eq!(waiting(&mut world), 0);
}

/// The next owner waits for what the node that died before may have, and nobody tells it anything after that.
#[test]
fn what_waits_is_there_when_the_lease_of_a_node_is_over_that_died_before_the_owner() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    publish(&mut world, at, &["1", "2", "3"]);
    let owner = world.owner();
    world.kill_within_lease(at, false);
    world.kill_within_lease(owner, true);
    world.calm_down();
    world.lease_over();
    for node in 0..NODES {
        world.tell_roll(node);
    }
    world.calm_down();
    assert_eq!(waiting(&mut world), 3);
}

#[test]
fn a_queue_takes_what_is_published_at_qos_0() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    world.publish_text(at, "1", Qos::AtMostOnce);
    publish(&mut world, at, &["2"]);
    let owner = world.owner();
    world.replace(owner);
    let at = other_than_owner(&world);
    join(&mut world, at);
    assert_eq!(drain(&mut world, at, 0), ["1", "2"]);
}

#[test]
fn one_consumer_gets_messages_by_priority_and_in_order() {
    let rules = QueueRules {
        has_priorities: true,
        ..rules(None)
    };
    let mut world = world(rules, Limits::default());
    let at = other_than_owner(&world);
    publish(
        &mut world,
        at,
        &["1 p4", "2 p9", "3 p4", "4 p0", "5 p9", "6"],
    );
    join(&mut world, at);
    let expected = ["2 p9", "5 p9", "1 p4", "3 p4", "6", "4 p0"];
    assert_eq!(drain(&mut world, at, 0), expected);
}

/// Takes the only message at a node, and says how often it has failed and whether it was sent before.
fn take_one(world: &mut World, at: usize) -> Option<(u16, bool)> {
    world.calm_down();
    let taken = world.take(at, 0);
    assert!(taken.len() <= 1);
    let taken = taken.first();
    taken.map(|delivery| (delivery.failures, delivery.redelivered))
}

#[test]
fn consumers_of_any_node_that_end_in_order_or_die_with_it_have_failed_nothing() {
    let mut world = world(rules(Some(2)), Limits::default());
    let owner = world.owner();
    let at = other_than_owner(&world);
    publish(&mut world, owner, &["1"]);
    for round in 0..4 {
        join(&mut world, at);
        assert_eq!(take_one(&mut world, at), Some((0, round > 0)), "{round}");
        world.leave_with(at, 0, Close::NORMAL);
        world.calm_down();
    }
    for _ in 0..3 {
        join(&mut world, at);
        assert_eq!(take_one(&mut world, at), Some((0, true)));
        world.replace(at);
        world.calm_down();
    }
    assert_eq!(waiting(&mut world), 1);
    assert!(world.dead_letters().is_empty());
}

#[test]
fn what_is_lost_with_consumers_of_another_node_waits_at_its_root() {
    // Calming down takes some seconds.
    let limits = Limits {
        redelivery_pause_ms: 60_000,
        ..Limits::default()
    };
    let mut world = world(rules(None), limits);
    let owner = world.owner();
    let at = other_than_owner(&world);
    publish(&mut world, owner, &["1"]);
    for is_at_once in [true, true, false] {
        join(&mut world, at);
        assert_eq!(take_one(&mut world, at).is_some(), is_at_once);
        world.leave_now(at, 0);
        world.calm_down();
    }
    world.nodes[owner].site.cluster.pass(60_000);
    join(&mut world, at);
    assert_eq!(take_one(&mut world, at), Some((0, true)));
}

#[test]
fn a_message_that_fails_as_often_as_it_may_is_a_dead_letter_once() {
    let mut world = world(rules(Some(3)), Limits::default());
    let at = other_than_owner(&world);
    join(&mut world, at);
    publish(&mut world, at, &["1"]);
    for failures in 0..3 {
        let delivery = world.take(at, 0).pop().expect("it comes again");
        assert_eq!(
            (delivery.failures, delivery.redelivered),
            (failures, failures > 0)
        );
        assert!(world.dead_letters().is_empty());
        world.settle(at, 0, delivery.tag, Outcome::Failed);
    }
    assert!(world.take(at, 0).is_empty());
    assert_eq!(world.dead_letters(), BTreeMap::from([(1, 1)]));
    // It does not come back with another root.
    for at in 0..NODES {
        world.nodes[at].site.cluster.pass(10_000);
    }
    world.calm_down();
    let owner = world.owner();
    world.replace(owner);
    world.calm_down();
    assert_eq!(waiting(&mut world), 0);
    assert_eq!(world.dead_letters(), BTreeMap::from([(1, 1)]));
}

#[test]
fn a_rejected_message_is_a_dead_letter_and_a_released_one_comes_again_uncounted() {
    let mut world = world(rules(Some(2)), Limits::default());
    let at = other_than_owner(&world);
    join(&mut world, at);
    publish(&mut world, at, &["1"]);
    for _ in 0..5 {
        let delivery = world.take(at, 0).pop().expect("it comes again");
        assert_eq!(delivery.failures, 0);
        world.settle(at, 0, delivery.tag, Outcome::Released);
    }
    let delivery = world.take(at, 0).pop().expect("it comes again");
    world.settle(at, 0, delivery.tag, Outcome::Rejected(0x80));
    assert!(world.take(at, 0).is_empty());
    assert_eq!(world.dead_letters(), BTreeMap::from([(1, 1)]));
}

/// Puts another message into the place of what a member was sent.
fn change(world: &mut World, at: usize, tag: u64, payload: &str) {
    let Client { shard, key, .. } = world.nodes[at].members[0].client;
    let changed = message("t", payload, Qos::AtLeastOnce, false);
    let cluster = &mut world.nodes[at].site.cluster;
    assert!(cluster.broker(shard).replace(key, tag, changed));
    cluster.collect(shard);
}

#[test]
fn changed_messages_go_back_in_as_many_letters_as_they_need() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    join(&mut world, at);
    publish(&mut world, at, &["1", "2", "3"]);
    for _ in 0..2 {
        let deliveries = world.take(at, 0);
        assert!(deliveries.len() > 1);
        for delivery in &deliveries {
            let payload = format!("{:0>60000}", text(delivery));
            change(&mut world, at, delivery.tag, &payload);
        }
        let ended = deliveries.iter().map(|one| (one.tag, Outcome::Released));
        world.settle_all(at, 0, ended.collect());
        assert!(world.largest_letter < LARGEST_BODY_BYTES);
    }
    let got = drain(&mut world, at, 0);
    let numbers: Vec<u64> = got
        .iter()
        .map(|text| text.parse().expect("a number"))
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert!(got[0].len() > 1 && got[1].len() > 1, "they stay changed");
}

/// What comes back before the next owner knows of the branch is reported once that is welcome.
#[test]
fn changed_messages_that_the_next_owner_gets_go_in_as_many_letters_as_they_need() {
    for outcome in [Outcome::Released, Outcome::Rejected(0x80)] {
        let mut world = world(rules(None), Limits::default());
        let owner = world.owner();
        let (at, other) = ((owner + 1) % NODES, (owner + 2) % NODES);
        join(&mut world, at);
        publish(&mut world, at, &["1", "2"]);
        let deliveries = world.take(at, 0);
        assert_eq!(deliveries.len(), 2);
        world.kill_within_lease(other, false);
        world.kill_within_lease(owner, true);
        for delivery in &deliveries {
            let payload = format!("{:0>60000}", text(delivery));
            change(&mut world, at, delivery.tag, &payload);
        }
        let ended = deliveries.iter().map(|one| (one.tag, outcome));
        world.settle_all(at, 0, ended.collect());
        world.lease_over();
        for node in 0..NODES {
            world.tell_roll(node);
        }
        world.calm_down();
        assert!(world.largest_letter < LARGEST_BODY_BYTES);
        if outcome == Outcome::Released {
            let got = drain(&mut world, at, 0);
            let lengths: Vec<usize> = got.iter().map(String::len).collect();
            assert_eq!(lengths, [60_000; 2]);
        } else {
            assert_eq!(world.letters(), [1, 2]);
        }
        assert_eq!(waiting(&mut world), 0);
    }
}

#[test]
fn a_change_that_no_letter_can_have_is_left_out() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    join(&mut world, at);
    publish(&mut world, at, &["1"]);
    let delivery = world.take(at, 0).pop().expect("it comes");
    change(
        &mut world,
        at,
        delivery.tag,
        &"1".repeat(LARGEST_BODY_BYTES),
    );
    world.settle(at, 0, delivery.tag, Outcome::Released);
    assert!(world.largest_letter < LARGEST_BODY_BYTES);
    assert_eq!(drain(&mut world, at, 0), ["1"]);
}

#[test]
fn dead_letters_come_in_the_order_of_their_queue_also_from_another_node() {
    for last in [Outcome::Rejected(0x80), Outcome::Failed] {
        let mut world = world(rules(Some(1)), Limits::default());
        let at = other_than_owner(&world);
        join(&mut world, at);
        publish(&mut world, at, &["1", "2"]);
        let deliveries = world.take(at, 0);
        let ended = deliveries.iter().map(|delivery| (delivery.tag, last));
        world.settle_all(at, 0, ended.collect());
        assert_eq!(world.letters(), [1, 2], "{last:?}");
    }
}

#[test]
fn failed_deliveries_are_counted_on_after_the_death_of_the_owner() {
    let mut world = world(rules(Some(3)), Limits::default());
    let owner = world.owner();
    let at = other_than_owner(&world);
    join(&mut world, at);
    publish(&mut world, at, &["1"]);
    for _ in 0..2 {
        let delivery = world.take(at, 0).pop().expect("it comes");
        world.settle(at, 0, delivery.tag, Outcome::Failed);
    }
    // The cursor of the queue is written.
    for at in 0..NODES {
        world.nodes[at].site.cluster.pass(10_000);
    }
    world.calm_down();
    let held = world.take(at, 0).pop().expect("it comes");
    assert_eq!(held.failures, 2);
    world.replace(owner);
    // The member has it still, and it fails for the third time.
    assert!(world.take(at, 0).is_empty() && world.dead_letters().is_empty());
    world.settle(at, 0, held.tag, Outcome::Failed);
    assert_eq!(world.dead_letters(), BTreeMap::from([(1, 1)]));
}

#[test]
fn what_a_consumer_may_not_have_again_goes_to_another() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    join(&mut world, at);
    publish(&mut world, at, &["1"]);
    let delivery = world.take(at, 0).pop().expect("it comes");
    world.settle(at, 0, delivery.tag, Outcome::Undeliverable);
    assert!(world.take(at, 0).is_empty(), "not to it again");
    join(&mut world, at);
    assert!(world.take(at, 0).is_empty(), "not to it again");
    let delivery = world.take(at, 1).pop().expect("to another of the node");
    world.settle(at, 1, delivery.tag, Outcome::Undeliverable);
    assert!(world.take(at, 0).is_empty() && world.take(at, 1).is_empty());
    let third = (at + 1) % NODES;
    join(&mut world, third);
    assert_eq!(drain(&mut world, third, 0), ["1"]);
}

#[test]
fn a_full_queue_refuses_publishers_of_all_nodes_until_it_has_room() {
    let limits = Limits {
        group_queued_messages: 3,
        ..Limits::default()
    };
    let mut world = world(rules(None), limits);
    let owner = world.owner();
    let at = other_than_owner(&world);
    publish(&mut world, at, &["1", "2", "3"]);
    for node in 0..NODES {
        for level in [Qos::AtMostOnce, Qos::AtLeastOnce] {
            let routed = world.publish_text(node, "4", level);
            assert_eq!(routed.refused, Some(PublishRefusal::QueueFull), "{node}");
        }
    }
    // The next root is as full.
    world.replace(owner);
    assert_eq!(waiting(&mut world), 3);
    let routed = world.publish_text(owner, "4", Qos::AtLeastOnce);
    assert_eq!(routed.refused, Some(PublishRefusal::QueueFull));
    let at = other_than_owner(&world);
    join(&mut world, at);
    assert_eq!(drain(&mut world, at, 0), ["1", "2", "3"]);
    publish(&mut world, owner, &["4"]);
    assert_eq!(drain(&mut world, at, 0), ["4"]);
}

#[test]
fn a_consumer_that_drains_has_all_that_it_took_before_it_is_told() {
    let mut world = world(rules(None), Limits::default());
    for at in 0..NODES {
        publish(&mut world, at, &["1", "2", "3"]);
        world.join_as(at, "drains", true);
        let client = world.nodes[at].members.pop().expect("it has come").client;
        let cluster = &mut world.nodes[at].site.cluster;
        cluster.subscribe(client, GROUP, qos(Qos::ExactlyOnce));
        cluster.run();
        world.end_turn(at);
        world.calm_down();
        let cluster = &mut world.nodes[at].site.cluster;
        cluster.demand(client, 10);
        cluster.start_drain(client);
        cluster.run();
        let is_owner = at == world.owner();
        let cluster = &mut world.nodes[at].site.cluster;
        assert_eq!(cluster.drained(client), usize::from(is_owner), "{at}");
        world.end_turn(at);
        world.calm_down();
        let cluster = &mut world.nodes[at].site.cluster;
        assert_eq!(cluster.drained(client), 1, "{at}");
        let got: Vec<_> = cluster.take(client).iter().map(text).collect();
        assert_eq!(got, ["1", "2", "3"], "{at}");
        // What comes later is not for it.
        publish(&mut world, at, &["4"]);
        let cluster = &mut world.nodes[at].site.cluster;
        assert!(cluster.take(client).is_empty());
        cluster.close(client, Close::NORMAL);
        cluster.run();
        world.end_turn(at);
        world.calm_down();
        join(&mut world, at);
        assert_eq!(drain(&mut world, at, 0), ["1", "2", "3", "4"]);
        world.leave_now(at, 0);
    }
}

/// A node declares the queue, and others do as their front doors: when they hear of it.
fn declare(world: &mut World, at: usize) {
    for node in (0..NODES).cycle().skip(at).take(4 * NODES) {
        for shard in 0..SHARDS {
            let cluster = &mut world.nodes[node].site.cluster;
            let broker = cluster.broker(shard);
            let is_found = !broker.take_found_queues().is_empty();
            if is_found || (node == at && shard == 0) {
                let declared = broker.declare_queue(0, GROUP, rules(None));
                declared.expect("a valid queue");
                cluster.collect(shard);
            }
        }
        world.nodes[node].site.cluster.run();
        world.end_turn(node);
        world.calm_down();
    }
}

#[test]
fn a_group_becomes_a_queue_and_its_members_keep_what_they_have() {
    let mut world = World::new(1, true);
    join(&mut world, 0);
    publish(&mut world, 1, &["1", "2", "3", "4"]);
    let held = world.take(0, 0);
    assert_eq!(held.iter().map(text).collect::<Vec<_>>(), ["1", "2"]);
    declare(&mut world, 1);
    assert_eq!(waiting(&mut world), 2);
    assert!(world.take(0, 0).is_empty(), "it has what it takes");
    for delivery in held {
        world.settle(0, 0, delivery.tag, Outcome::Accepted);
    }
    assert_eq!(drain(&mut world, 0, 0), ["3", "4"]);
    // Without members it goes on.
    world.leave_now(0, 0);
    publish(&mut world, 2, &["5"]);
    for at in 0..NODES {
        world.nodes[at].site.cluster.pass(100_000);
    }
    world.calm_down();
    assert_eq!(waiting(&mut world), 1);
}

/// A session on a node that looks at the queue.
fn look(world: &mut World, at: usize, credit: u32) -> Client {
    world.join_as(at, "looks", true);
    let member = world.nodes[at].members.pop().expect("it has come");
    let client = member.client;
    let cluster = &mut world.nodes[at].site.cluster;
    let now_ms = cluster.now_ms;
    let key: SessionKey = client.key;
    let browsed = cluster.broker(client.shard).browse(now_ms, key, GROUP);
    browsed.expect("a queue");
    cluster.demand(client, credit);
    cluster.run();
    world.end_turn(at);
    world.calm_down();
    client
}

#[test]
fn a_queue_is_looked_at_from_any_node_and_nothing_is_taken() {
    let mut world = world(rules(None), Limits::default());
    let at = other_than_owner(&world);
    publish(&mut world, at, &["1", "2", "3", "4"]);
    for node in 0..NODES {
        let client = look(&mut world, node, 3);
        let cluster = &mut world.nodes[node].site.cluster;
        let seen: Vec<_> = cluster.take(client).iter().map(text).collect();
        assert_eq!(seen, ["1", "2", "3"], "from {node}");
        cluster.demand(client, 5);
        cluster.run();
        world.end_turn(node);
        world.calm_down();
        let seen: Vec<_> = (world.nodes[node].site.cluster.take(client).iter())
            .map(text)
            .collect();
        assert_eq!(seen, ["4"], "from {node}");
    }
    assert_eq!(waiting(&mut world), 4);
}

#[test]
fn operators_find_a_queue_at_its_owner_alone_and_are_told_who_that_is() {
    let mut world = world(rules(None), Limits::default());
    let owner = world.owner();
    let at = other_than_owner(&world);
    publish(&mut world, at, &["1", "2", "3"]);
    let home = Share::home(GROUP, SHARDS);
    for node in 0..NODES {
        let broker = world.nodes[node].site.cluster.broker(home);
        let told = broker.queue_owner(GROUP).expect("a queue");
        assert_eq!(told.node(), Some(&*format!("n{owner}")));
        assert_eq!(broker.queue_info(GROUP).is_some(), node == owner);
        let purged = broker.purge_queue(0, GROUP, 1);
        assert_eq!(
            purged.map(|change| change.left),
            (node == owner).then_some(2)
        );
    }
    world.calm_down();
    join(&mut world, at);
    assert_eq!(drain(&mut world, at, 0), ["2", "3"]);
}

/// The next owner waits for a node that may live, and another node's consumer gives back meanwhile what it has.
fn returned_while_the_owner_waits(outcome: Outcome) -> (World, usize) {
    let mut world = world(rules(Some(3)), Limits::default());
    let owner = world.owner();
    let (at, other) = ((owner + 1) % NODES, (owner + 2) % NODES);
    join(&mut world, at);
    publish(&mut world, at, &["1"]);
    let held = world.take(at, 0).pop().expect("it comes");
    world.kill_within_lease(other, false);
    world.kill_within_lease(owner, true);
    world.calm_down();
    world.settle(at, 0, held.tag, outcome);
    assert!(world.take(at, 0).is_empty() && world.dead_letters().is_empty());
    world.lease_over();
    for node in 0..NODES {
        world.tell_roll(node);
    }
    world.calm_down();
    (world, at)
}

#[test]
fn what_a_consumer_gives_back_while_the_next_owner_waits_for_others_comes_again() {
    for outcome in [Outcome::Released, Outcome::Failed] {
        let (mut world, at) = returned_while_the_owner_waits(outcome);
        let again = world.take(at, 0).pop().expect("it comes again");
        let failures = u16::from(outcome == Outcome::Failed);
        assert_eq!((text(&again).as_str(), again.failures), ("1", failures));
        world.settle(at, 0, again.tag, Outcome::Accepted);
        assert_eq!(waiting(&mut world), 0);
    }
}

#[test]
fn what_a_consumer_rejects_while_the_next_owner_waits_for_others_is_a_dead_letter() {
    let (mut world, at) = returned_while_the_owner_waits(Outcome::Rejected(0x80));
    assert!(world.take(at, 0).is_empty());
    assert_eq!(world.dead_letters(), BTreeMap::from([(1, 1)]));
    assert_eq!(waiting(&mut world), 0);
}

/// A consumer rejects the first message that comes, and nobody takes the dead letter. The queue's owner dies before anything
/// else has its cursor written. How many messages wait then.
fn waiting_after_a_refused_dead_letter(rules: QueueRules, payloads: &[&str]) -> usize {
    let limits = Limits {
        cursor_interval_ms: 3_600_000,
        ..Limits::default()
    };
    let mut world = world(rules, limits);
    let owner = world.owner();
    let at = other_than_owner(&world);
    let broker = world.nodes[owner].site.cluster.broker(0);
    broker.set_wanted(vec![(DEAD.into(), Wanted::NOBODY)]);
    world.nodes[owner].site.cluster.collect(0);
    world.nodes[owner].site.cluster.run();
    publish(&mut world, at, payloads);
    join(&mut world, at);
    let mut taken = world.take(at, 0);
    let first = taken.swap_remove(0);
    world.settle(at, 0, first.tag, Outcome::Rejected(0x80));
    assert!(world.dead_letters().is_empty(), "nobody takes it");
    world.leave_now(at, 0);
    world.calm_down();
    assert_eq!(waiting(&mut world), payloads.len());
    world.replace(owner);
    waiting(&mut world)
}

#[test]
fn a_message_whose_dead_letter_is_refused_stays_over_the_death_of_the_owner() {
    assert_eq!(waiting_after_a_refused_dead_letter(rules(None), &["1"]), 1);
}

/// Messages before it wait in the log alone, so the queue's cursor is before it.
#[test]
fn a_message_of_a_long_queue_whose_dead_letter_is_refused_stays_over_the_death_of_the_owner() {
    let rules = QueueRules {
        has_priorities: true,
        ..rules(None)
    };
    let texts: Vec<String> = (1..60).map(|number| number.to_string()).collect();
    let mut payloads: Vec<&str> = texts.iter().map(String::as_str).collect();
    payloads.push("60 p9");
    assert_eq!(waiting_after_a_refused_dead_letter(rules, &payloads), 60);
}
