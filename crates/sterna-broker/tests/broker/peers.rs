//! Other nodes of a cluster: what they are told, what goes to them, and what comes from them.

use std::sync::Arc;

use sterna_broker::{
    Destination, FromPeer, Interest, InvalidMessage, Limits, MessageName, NodeSet, Once, Outbound,
    Outgoing, PeerGate, Publication, PublishRefusal, Qos, Recipients, Retention, Routed, Wanted,
    messages_of, shared_of,
};

use crate::cluster::{Cluster, message, qos};

/// Two shards of a node, whose gate is open.
fn node() -> (Cluster, Arc<PeerGate>) {
    let (node, gate) = node_that_begins();
    gate.set_knows_wanted();
    gate.set_open(true);
    (node, gate)
}

/// Two shards of a node that has not joined.
fn node_that_begins() -> (Cluster, Arc<PeerGate>) {
    let gate = Arc::new(PeerGate::new(10_000));
    let mut node = Cluster::new(2);
    for shard in [0, 1] {
        node.broker(shard).join_cluster(Arc::clone(&gate));
    }
    (node, gate)
}

fn set(numbers: &[usize]) -> NodeSet {
    let mut set = NodeSet::EMPTY;
    for &number in numbers {
        set.insert(number);
    }
    set
}

fn wanted(any: &[usize], acknowledged: &[usize]) -> Wanted {
    Wanted {
        any: set(any),
        acknowledged: set(acknowledged),
        is_durable: false,
    }
}

fn want(node: &mut Cluster, filter: &str, wanted: Wanted) {
    (node.broker(0)).set_wanted(vec![(Arc::from(filter), wanted)]);
    node.collect(0);
    node.run();
}

fn publish(node: &mut Cluster, shard: u16, topic: &str, level: Qos, retain: bool) -> Routed {
    let routed = node.send(shard, None, message(topic, "x", level, retain));
    node.run();
    routed
}

/// What a shard has for other nodes.
struct Taken {
    token: u64,
    destinations: Vec<Destination>,
    topics: Vec<String>,
    /// Bytes that the gate was charged with.
    bytes: u64,
}

fn take(node: &mut Cluster, shard: u16) -> Option<Taken> {
    let Outbound {
        token,
        encoded,
        outgoing,
    } = node.broker(shard).take_outgoing()?;
    let mut taken = Taken {
        token,
        destinations: Vec::new(),
        topics: Vec::new(),
        bytes: encoded.bytes() + outgoing.iter().map(Outgoing::bytes).sum::<u64>(),
    };
    for (part, records) in encoded.parts() {
        for message in messages_of(records) {
            let message = message.expect("it was encoded here");
            taken.destinations.push(Destination::Nodes(part.recipients));
            taken.topics.push(message.topic().to_owned());
        }
    }
    for one in outgoing {
        taken.destinations.push(one.destination);
        taken.topics.push(one.message.topic().to_owned());
    }
    Some(taken)
}

fn nodes(acknowledged: &[usize], at_most_once: &[usize]) -> Destination {
    Destination::Nodes(Recipients {
        acknowledged: set(acknowledged),
        at_most_once: set(at_most_once),
    })
}

fn interest(node: &mut Cluster) -> Vec<(String, Interest)> {
    node.run();
    let mut changes: Vec<_> = (node.broker(0).take_interest().into_iter())
        .map(|(filter, interest)| (filter.to_string(), interest))
        .collect();
    changes.sort();
    changes
}

#[test]
fn messages_for_other_nodes_are_brief_where_there_is_room_for_those_that_stay_together() {
    let (mut node, gate) = node();
    want(&mut node, "x/#", wanted(&[1, 2], &[2]));
    let mut bytes = Vec::new();
    for takes_brief in [false, true, false] {
        gate.set_takes_brief(takes_brief);
        let levels = [
            Qos::AtMostOnce,
            Qos::AtMostOnce,
            Qos::AtLeastOnce,
            Qos::AtLeastOnce,
        ];
        for level in levels {
            publish(&mut node, 0, "x/y", level, false);
        }
        let outbound = node.broker(0).take_outgoing().expect("four messages");
        // Each part is read by itself.
        let parts: Vec<usize> = (outbound.encoded.parts())
            .map(|(_, records)| messages_of(records).flatten().count())
            .collect();
        assert_eq!(parts, [2, 2]);
        bytes.push(outbound.encoded.record_bytes());
    }
    // The second of each part has no topic and no publisher.
    assert_eq!(
        (bytes[0], bytes[0] - bytes[1] >= 2 * (3 + 8)),
        (bytes[2], true)
    );
}

/// A burst of small messages ends in the next turn. What an acknowledgement waits for does not wait for that.
#[test]
fn few_messages_of_qos_0_may_wait_for_one_more_turn() {
    let (mut node, _) = node();
    want(&mut node, "x", wanted(&[1], &[1]));
    let may_wait = |node: &mut Cluster| node.broker(0).may_outgoing_wait();
    let count = |node: &mut Cluster| take(node, 0).map_or(0, |taken| taken.topics.len());
    let send = |node: &mut Cluster, level| publish(node, 0, "x", level, false);
    assert!(!may_wait(&mut node), "there is nothing");
    send(&mut node, Qos::AtMostOnce);
    assert!(may_wait(&mut node));
    send(&mut node, Qos::AtMostOnce);
    assert!(!may_wait(&mut node), "once");
    assert_eq!(count(&mut node), 2);

    send(&mut node, Qos::AtMostOnce);
    assert!(may_wait(&mut node), "others");
    send(&mut node, Qos::AtLeastOnce);
    assert!(!may_wait(&mut node), "its publisher waits");
    assert_eq!(count(&mut node), 2);

    // Two turns' messages of 64 KiB each are a batch, and no more are gathered.
    let gate = Arc::new(PeerGate::new(1 << 30));
    let mut node = Cluster::new(1);
    node.broker(0).join_cluster(Arc::clone(&gate));
    gate.set_knows_wanted();
    gate.set_open(true);
    want(&mut node, "x", wanted(&[1], &[1]));
    for _ in 0..66 {
        let large = message("x", &"y".repeat(1_000), Qos::AtMostOnce, false);
        node.send(0, None, large);
    }
    assert!(!may_wait(&mut node), "they are enough");
}

#[test]
fn other_nodes_are_told_of_filters_and_not_of_clients() {
    let (mut node, _) = node();
    let (a, b) = (node.open(0, "a"), node.open(1, "b"));
    node.subscribe(b, "x/+", qos(Qos::AtMostOnce));
    node.subscribe(a, "x/+", qos(Qos::AtMostOnce));
    node.subscribe(a, "$SYS/#", qos(Qos::AtMostOnce));
    assert_eq!(
        interest(&mut node),
        [("x/+".to_owned(), Interest::AtMostOnce)]
    );
    node.subscribe(b, "x/+", qos(Qos::AtLeastOnce));
    assert_eq!(
        interest(&mut node),
        [("x/+".to_owned(), Interest::Acknowledged)]
    );
    let now_ms = node.now_ms;
    node.broker(1).unsubscribe(now_ms, b.key, "x/+");
    node.collect(1);
    assert_eq!(
        interest(&mut node),
        [("x/+".to_owned(), Interest::AtMostOnce)]
    );
    node.broker(0).unsubscribe(now_ms, a.key, "x/+");
    node.collect(0);
    assert_eq!(interest(&mut node), [("x/+".to_owned(), Interest::None)]);
    // Comes and goes within one turn: nothing to tell.
    node.subscribe(b, "y", qos(Qos::AtMostOnce));
    node.broker(1).unsubscribe(now_ms, b.key, "y");
    node.collect(1);
    assert_eq!(interest(&mut node), []);
}

#[test]
fn what_a_node_wants_is_refused_where_no_more_can_wait_for_it() {
    let (mut node, gate) = node();
    want(&mut node, "t/#", wanted(&[1, 2], &[2]));
    want(&mut node, "u", wanted(&[1], &[1]));
    gate.set_full(set(&[2]));
    let routed = publish(&mut node, 1, "t/1", Qos::AtLeastOnce, false);
    assert_eq!(routed.refused, Some(PublishRefusal::StoreFull));
    let routed = publish(&mut node, 1, "t/1", Qos::AtLeastOnce, true);
    assert_eq!(routed.refused, Some(PublishRefusal::StoreFull), "retained");
    assert_eq!(node.broker(1).retained(0, "t/1").map(drop), None);
    let routed = publish(&mut node, 1, "t/1", Qos::AtMostOnce, false);
    assert_eq!(routed.refused, None, "it may be missed");
    let routed = publish(&mut node, 1, "u", Qos::AtLeastOnce, false);
    assert_eq!(routed.refused, None, "another node");
    gate.set_full(NodeSet::EMPTY);
    let routed = publish(&mut node, 1, "t/1", Qos::AtLeastOnce, false);
    assert_eq!(routed.refused, None);
}

#[test]
fn a_message_goes_once_to_each_node_that_wants_it() {
    let (mut node, gate) = node();
    want(&mut node, "t/#", wanted(&[1, 2], &[2]));
    want(&mut node, "t/1", wanted(&[2, 5], &[]));
    let routed = publish(&mut node, 1, "t/1", Qos::AtMostOnce, false);
    assert_eq!((routed.matched, routed.token), (3, 0));
    let routed = publish(&mut node, 1, "t/1", Qos::ExactlyOnce, false);
    assert_eq!((routed.matched, routed.token), (3, 1), "it waits");
    let routed = publish(&mut node, 1, "other", Qos::ExactlyOnce, false);
    assert_eq!((routed.matched, routed.token), (0, 0));
    let taken = take(&mut node, 1).expect("two messages");
    assert_eq!(taken.token, 1);
    let expected = [nodes(&[], &[1, 2, 5]), nodes(&[2], &[1, 5])];
    assert_eq!(taken.destinations, expected);
    assert_eq!(taken.topics, ["t/1", "t/1"]);
    assert_eq!(gate.waiting_bytes(), taken.bytes);
    want(&mut node, "t/#", Wanted::NOBODY);
    want(&mut node, "t/1", Wanted::NOBODY);
    assert_eq!(
        publish(&mut node, 1, "t/1", Qos::AtMostOnce, false).matched,
        0
    );
    assert!(node.broker(1).take_outgoing().is_none());
}

#[test]
fn what_must_arrive_waits_for_a_node_that_is_away() {
    let (mut node, _) = node();
    want(&mut node, "t", wanted(&[], &[4]));
    let routed = publish(&mut node, 0, "t", Qos::AtLeastOnce, false);
    assert_eq!((routed.matched, routed.token), (1, 1));
    publish(&mut node, 0, "t", Qos::AtMostOnce, false);
    let taken = take(&mut node, 0).expect("both");
    assert_eq!(
        taken.destinations,
        [nodes(&[4], &[])],
        "QoS 0 does not wait"
    );
}

#[test]
fn what_comes_from_a_node_goes_to_no_other() {
    let (mut node, _) = node();
    let reader = node.open(1, "reader");
    node.subscribe(reader, "t", qos(Qos::AtLeastOnce));
    want(&mut node, "#", wanted(&[1], &[1]));
    let now_ms = node.now_ms;
    for (what, retain) in [
        (FromPeer::Publish, false),
        (FromPeer::Publish, true),
        (FromPeer::Deliver, true),
        (FromPeer::Retain, true),
    ] {
        let message = message("t", "from afar", Qos::AtLeastOnce, retain);
        node.broker(0).publish_from_peer(now_ms, message, what);
        node.collect(0);
    }
    node.run();
    assert_eq!(node.drain(reader).len(), 3, "all but the last");
    assert!(node.broker(0).take_outgoing().is_none());
    assert_eq!(node.directory.retained().0, 1);
    let clearing = message("t", "", Qos::AtMostOnce, true);
    (node.broker(0)).publish_from_peer(now_ms, clearing, FromPeer::Retain);
    assert_eq!(node.directory.retained().0, 0);
    assert!(node.drain(reader).is_empty());
}

/// The messages that a node has for another, as this brings them there.
fn encoded(node: &mut Cluster, shard: u16) -> Vec<u8> {
    let outbound = node.broker(shard).take_outgoing().expect("messages");
    let parts = outbound.encoded.parts();
    parts.flat_map(|(_, records)| records.to_vec()).collect()
}

#[test]
fn encoded_messages_reach_the_readers_of_another_node() {
    let ((mut here, _), (mut there, gate)) = (node(), node());
    want(&mut here, "t/#", wanted(&[1], &[1]));
    let reader = there.open(1, "reader");
    there.subscribe(reader, "t/#", qos(Qos::AtLeastOnce));
    want(&mut there, "t/#", wanted(&[2], &[2]));
    for (topic, level, retain) in [
        ("t/1", Qos::AtMostOnce, false),
        ("t/2", Qos::AtLeastOnce, false),
        ("t/1", Qos::AtLeastOnce, true),
        ("t/3", Qos::ExactlyOnce, false),
    ] {
        publish(&mut here, 0, topic, level, retain);
    }
    let records = encoded(&mut here, 0);
    let now_ms = there.now_ms;
    gate.arrive_encoded(records.len() as u64);
    let taken = there.broker(0).publish_encoded(now_ms, &records);
    assert_eq!(taken, Ok(()));
    there.collect(0);
    there.run();
    let drained = there.drain(reader);
    assert_eq!(drained.len(), 4, "{drained:?}");
    assert!(take(&mut there, 0).is_none(), "it goes to no other");
    assert_eq!(there.directory.retained().0, 0, "by another way");
    // Those before what is not valid have arrived.
    let cut = &records[..records.len() - 1];
    let taken = there.broker(0).publish_encoded(now_ms, cut);
    assert_eq!(taken, Err(InvalidMessage));
    there.collect(0);
    there.run();
    assert_eq!(there.drain(reader).len(), 3);
}

#[test]
fn a_node_that_takes_messages_as_they_are_gets_them_by_themselves() {
    let (mut node, gate) = node();
    gate.set_whole(set(&[9]));
    want(&mut node, "t", wanted(&[1], &[]));
    want(&mut node, "u", wanted(&[1, 9], &[9]));
    publish(&mut node, 0, "t", Qos::AtLeastOnce, false);
    publish(&mut node, 0, "u", Qos::AtLeastOnce, false);
    let outbound = node.broker(0).take_outgoing().expect("both");
    assert_eq!(outbound.encoded.parts().count(), 1);
    let destinations: Vec<_> = (outbound.outgoing.iter())
        .map(|one| one.destination)
        .collect();
    assert_eq!(destinations, [nodes(&[9], &[1])]);
}

#[test]
fn what_arrives_encoded_is_bounded_as_well() {
    let (mut node, gate) = node();
    gate.arrive_encoded(10_000);
    assert!(gate.is_behind());
    let now_ms = node.now_ms;
    let nothing = node.broker(0).publish_encoded(now_ms, &[0; 10_000]);
    assert_eq!(nothing, Err(InvalidMessage));
    assert!(!gate.is_behind());
}

#[test]
fn a_queue_that_is_half_full_is_told_to_who_brings_messages() {
    let (mut node, gate) = node();
    let reader = node.open(1, "reader");
    node.subscribe(reader, "t", qos(Qos::AtLeastOnce));
    let half = Limits::default().queued_messages / 2;
    let bring = |node: &mut Cluster, count: usize| {
        for _ in 0..count {
            let (now_ms, message) = (node.now_ms, message("t", "x", Qos::AtLeastOnce, false));
            (node.broker(0)).publish_from_peer(now_ms, message, FromPeer::Publish);
            node.collect(0);
            node.run();
        }
        for shard in [0, 1] {
            assert!(node.broker(shard).take_outgoing().is_none());
        }
    };
    bring(&mut node, half - 1);
    assert!(!gate.take_crowded());
    bring(&mut node, 2);
    assert!(gate.take_crowded());
    assert!(!gate.take_crowded(), "it is told once");
    assert_eq!(node.drain(reader).len(), half + 1);
    bring(&mut node, 2);
    assert!(!gate.take_crowded(), "there is room again");
}

#[test]
fn what_arrives_for_a_shard_that_stands_still_is_bounded() {
    let (mut node, gate) = node();
    let now_ms = node.now_ms;
    let mut arriving = Vec::new();
    while !gate.is_behind() {
        assert!(arriving.len() < 1_000, "it has a limit");
        let one = message("t", "x", Qos::AtMostOnce, false);
        gate.arrives(&one);
        arriving.push(one);
    }
    for one in arriving {
        (node.broker(0)).publish_from_peer(now_ms, one, FromPeer::Publish);
        assert!(!gate.is_behind());
    }
    assert_eq!(gate.waiting_bytes(), 0);
}

#[test]
fn behind_a_shut_gate_only_what_must_arrive_elsewhere_is_refused() {
    let (mut node, gate) = node();
    let reader = node.open(0, "reader");
    node.subscribe(reader, "#", qos(Qos::AtLeastOnce));
    want(&mut node, "far", wanted(&[1], &[1]));
    want(&mut node, "far/qos0", wanted(&[1], &[]));
    gate.set_open(false);
    let routed = publish(&mut node, 0, "far", Qos::AtLeastOnce, false);
    assert_eq!(routed.refused, Some(PublishRefusal::ClusterAway));
    let routed = publish(&mut node, 0, "near", Qos::AtLeastOnce, true);
    assert!(routed.is_refused(), "all nodes are to retain it");
    assert_eq!(node.drain(reader), [""; 0], "refused is not delivered");
    for (topic, level) in [
        ("far", Qos::AtMostOnce),
        ("far/qos0", Qos::AtLeastOnce),
        ("near", Qos::ExactlyOnce),
    ] {
        assert!(
            !publish(&mut node, 0, topic, level, false).is_refused(),
            "{topic}"
        );
    }
    assert_eq!(node.drain(reader).len(), 3, "local traffic goes on");
    assert_eq!((gate.refused(), gate.dropped()), (2, 2));
    assert!(node.broker(0).take_outgoing().is_none());
    gate.set_open(true);
    assert_eq!(
        publish(&mut node, 0, "far", Qos::AtLeastOnce, false).token,
        1
    );
}

/// A reader at another node would miss what this one acknowledges.
#[test]
fn before_it_is_known_what_others_want_nothing_is_acknowledged() {
    let (mut node, gate) = node_that_begins();
    let reader = node.open(1, "reader");
    node.subscribe(reader, "#", qos(Qos::AtLeastOnce));
    node.subscribe(reader, "$own", qos(Qos::AtLeastOnce));
    let away = Some(PublishRefusal::ClusterAway);
    for shard in [0, 1] {
        for level in [Qos::AtLeastOnce, Qos::ExactlyOnce] {
            for retain in [false, true] {
                let routed = publish(&mut node, shard, "t", level, retain);
                assert_eq!(routed.refused, away, "{level:?}");
            }
        }
        let both = [
            ("a", Qos::AtMostOnce, false),
            ("b", Qos::AtLeastOnce, false),
        ];
        assert_eq!(together(&mut node, &both).0.refused, away);
        assert_eq!(node.drain(reader), [""; 0], "refused is not delivered");
        for (topic, level) in [("t", Qos::AtMostOnce), ("$own", Qos::ExactlyOnce)] {
            let routed = publish(&mut node, shard, topic, level, false);
            assert_eq!((routed.refused, routed.matched), (None, 1), "{topic}");
        }
        assert_eq!(node.drain(reader).len(), 2, "local traffic goes on");
    }
    // The first shard is told, and NATS goes away again before the gate is open.
    want(&mut node, "far", wanted(&[1], &[1]));
    gate.set_knows_wanted();
    for shard in [0, 1] {
        let routed = publish(&mut node, shard, "far", Qos::AtLeastOnce, false);
        assert_eq!(routed.refused, away);
        let routed = publish(&mut node, shard, "near", Qos::AtLeastOnce, false);
        assert_eq!(routed.refused, None);
    }
    // It stays away, and what was told is old.
    gate.forget_wanted();
    for (topic, level, refused) in [
        ("near", Qos::AtLeastOnce, away),
        ("near", Qos::ExactlyOnce, away),
        ("near", Qos::AtMostOnce, None),
        ("$own", Qos::ExactlyOnce, None),
    ] {
        let routed = publish(&mut node, 0, topic, level, false);
        assert_eq!(routed.refused, refused, "{topic} {level:?}");
    }
}

#[test]
fn what_waits_is_bounded_and_so_is_one_message() {
    let (mut node, gate) = node();
    want(&mut node, "t", wanted(&[1], &[1]));
    let mut published = 0;
    while !publish(&mut node, 0, "t", Qos::AtLeastOnce, false).is_refused() {
        published += 1;
        assert!(published < 1_000, "it has a limit");
    }
    assert!(
        !publish(&mut node, 1, "t", Qos::AtLeastOnce, false).is_refused(),
        "a turn of each shard may go above"
    );
    let taken = take(&mut node, 0).expect("many");
    assert_eq!(gate.waiting_bytes(), taken.bytes);
    gate.release(taken.bytes);
    assert_eq!(gate.waiting_bytes(), 0);
    assert!(!publish(&mut node, 0, "t", Qos::AtLeastOnce, false).is_refused());
    gate.set_largest_body_bytes(1);
    assert!(publish(&mut node, 0, "t", Qos::AtLeastOnce, false).is_refused());
}

#[test]
fn retained_messages_go_to_all_nodes() {
    let (mut node, _) = node();
    let routed = publish(&mut node, 0, "t", Qos::AtLeastOnce, true);
    assert_eq!((routed.retention, routed.token), (Retention::Stored, 1));
    assert_eq!(
        publish(&mut node, 0, "t", Qos::AtMostOnce, true).retention,
        Retention::Stored
    );
    assert!(node.broker(0).clear_retained("t"));
    publish(&mut node, 0, "$own", Qos::AtMostOnce, true);
    let taken = take(&mut node, 0).expect("three");
    assert_eq!(taken.token, 1);
    assert_eq!(
        taken.destinations,
        [
            Destination::Retained {
                reached: NodeSet::EMPTY
            },
            Destination::Retained {
                reached: NodeSet::EMPTY
            },
            Destination::RetainedQuietly
        ],
        "topics with $ stay"
    );
}

/// Of the retained messages of a topic NATS has the last alone: the others wait in inboxes.
#[test]
fn each_acknowledged_retained_message_goes_into_the_inboxes_of_its_readers() {
    let (mut node, _) = node();
    want(&mut node, "t", wanted(&[1, 2], &[1]));
    let retained = |reached: &[usize]| Destination::Retained {
        reached: set(reached),
    };
    let inbox = nodes(&[1], &[]);
    for (level, expected) in [
        (Qos::AtMostOnce, vec![retained(&[])]),
        (Qos::AtLeastOnce, vec![inbox, retained(&[1])]),
        (Qos::ExactlyOnce, vec![inbox, retained(&[1])]),
    ] {
        let routed = publish(&mut node, 0, "t", level, true);
        let taken = take(&mut node, 0).expect("it goes to others");
        assert_eq!(
            routed.token,
            if level.is_acknowledged() {
                taken.token
            } else {
                0
            },
            "the acknowledgement waits for both"
        );
        assert_eq!(taken.destinations, expected, "{level:?}");
    }
}

/// NATS would keep an entry for each topic that somebody clears. Another node's message that is not known here yet ends.
#[test]
fn a_clear_of_nothing_is_delivered_and_leaves_no_retained_message() {
    let (mut node, _) = node();
    want(&mut node, "t", wanted(&[1], &[1]));
    let durable = Wanted {
        is_durable: true,
        ..Wanted::NOBODY
    };
    want(&mut node, "logged", durable);
    let clear = |node: &mut Cluster, topic: &str, level| {
        let (now_ms, message) = (node.now_ms, message(topic, "", level, true));
        let origin = None;
        let routed = (node.broker(0)).publish(now_ms, Publication::new(origin, message));
        let taken = take(node, 0).expect("it goes to others");
        assert_eq!(
            routed.token,
            if level.is_acknowledged() {
                taken.token
            } else {
                0
            },
            "the acknowledgement waits for all"
        );
        (routed.retention, taken.destinations)
    };
    let log = Destination::Log {
        once: None,
        following: 0,
    };
    let absent = Destination::Absent;
    for (topic, level, expected) in [
        ("nobodys", Qos::AtMostOnce, vec![absent]),
        ("nobodys", Qos::AtLeastOnce, vec![absent]),
        ("t", Qos::AtMostOnce, vec![nodes(&[], &[1]), absent]),
        ("t", Qos::AtLeastOnce, vec![nodes(&[1], &[]), absent]),
        ("logged", Qos::AtLeastOnce, vec![log, absent]),
    ] {
        let answer = clear(&mut node, topic, level);
        assert_eq!(answer, (Retention::Absent, expected), "{topic} {level:?}");
    }
    publish(&mut node, 0, "nobodys", Qos::AtMostOnce, true);
    node.broker(0).take_outgoing();
    let reached = NodeSet::EMPTY;
    let cleared = (Retention::Cleared, vec![Destination::Retained { reached }]);
    assert_eq!(clear(&mut node, "nobodys", Qos::AtMostOnce), cleared);
}

#[test]
fn retained_messages_are_handed_over_again_a_page_at_a_time() {
    let (mut node, gate) = node();
    for topic in ["a", "b", "c/d", "$stays"] {
        publish(&mut node, 1, topic, Qos::AtLeastOnce, true);
    }
    node.broker(1).take_outgoing();
    let waiting = gate.waiting_bytes();
    let (mut skip, mut topics) = (Some(0), Vec::new());
    while let Some(place) = skip {
        let now_ms = node.now_ms;
        skip = node.broker(0).restore_retained(now_ms, place, 2);
        let page = take(&mut node, 0).expect("a page");
        assert_eq!(page.token, 0, "nobody waits for it");
        assert!(page.topics.len() <= 2);
        let mut destinations = page.destinations.iter();
        assert!(destinations.all(|one| *one == Destination::Restored));
        topics.extend(page.topics);
    }
    topics.sort_unstable();
    assert_eq!(topics, ["a", "b", "c/d"]);
    assert!(gate.waiting_bytes() > waiting, "they are charged");
}

fn together(node: &mut Cluster, messages: &[(&str, Qos, bool)]) -> (Routed, Vec<Destination>) {
    let now_ms = node.now_ms;
    let messages = (messages.iter())
        .map(|&(topic, level, retain)| message(topic, "x", level, retain))
        .collect();
    let routed = node.broker(0).publish_together(now_ms, None, messages, &[]);
    node.collect(0);
    let taken = take(node, 0);
    (
        routed,
        taken.map_or_else(Vec::new, |taken| taken.destinations),
    )
}

#[test]
fn messages_that_are_published_together_are_one_entry_of_the_log() {
    let (mut node, gate) = node();
    let both = [
        ("a", Qos::AtLeastOnce, false),
        ("b", Qos::ExactlyOnce, false),
    ];
    let following = |following| Destination::Log {
        once: None,
        following,
    };
    let (routed, destinations) = together(&mut node, &both);
    assert_eq!(destinations, [following(1), following(0)]);
    assert!(routed.token > 0, "it waits");
    // Retained messages follow the entry, which nothing parts.
    let retained = [
        ("a", Qos::AtLeastOnce, true),
        ("b", Qos::AtLeastOnce, false),
        ("c", Qos::AtLeastOnce, true),
    ];
    let (_, destinations) = together(&mut node, &retained);
    let quietly = Destination::RetainedQuietly;
    let expected = [following(2), following(1), following(0), quietly, quietly];
    assert_eq!(destinations, expected);
    // These cannot be in the log, or not in one entry.
    for other in [
        [
            ("a", Qos::AtLeastOnce, false),
            ("b", Qos::AtMostOnce, false),
        ],
        [
            ("a", Qos::AtLeastOnce, false),
            ("$b", Qos::AtLeastOnce, false),
        ],
        [
            ("a", Qos::AtLeastOnce, false),
            ("#", Qos::AtLeastOnce, false),
        ],
    ] {
        assert_eq!(together(&mut node, &other).1, [], "{other:?}");
    }
    gate.set_largest_body_bytes(100);
    assert_eq!(together(&mut node, &both).1, [], "too large together");
    gate.set_largest_body_bytes(1_000);
    gate.set_log_full(true);
    let (routed, destinations) = together(&mut node, &both);
    assert_eq!(routed.refused, Some(PublishRefusal::StoreFull));
    assert_eq!(destinations, []);
    gate.set_open(false);
    let (routed, _) = together(&mut node, &both);
    assert_eq!(routed.refused, Some(PublishRefusal::ClusterAway));
}

#[test]
fn what_has_a_name_of_its_own_goes_by_the_log_whoever_wants_it() {
    let (mut node, gate) = node();
    let once = Once {
        session: 7,
        round: 8,
        packet_id: 0,
    };
    let named = |node: &mut Cluster, topic: &str, level| {
        let mut publication = Publication::new(None, message(topic, "x", level, false));
        publication.companions.name = Some(MessageName::Given {
            once,
            record: Some((b"key", b"value")),
        });
        let now_ms = node.now_ms;
        let routed = node.broker(0).publish(now_ms, publication);
        node.run();
        let taken = take(node, 0);
        let destination = taken.and_then(|taken| taken.destinations.first().copied());
        (routed.refused, destination)
    };
    let log = Destination::Log {
        once: Some(once),
        following: 0,
    };
    let logged = named(&mut node, "a", Qos::AtLeastOnce);
    assert_eq!(logged, (None, Some(log)));
    for (topic, level) in [
        ("a", Qos::AtMostOnce),
        ("$a", Qos::AtLeastOnce),
        ("#", Qos::AtLeastOnce),
    ] {
        assert_eq!(named(&mut node, topic, level), (None, None), "{topic}");
    }
    gate.set_log_full(true);
    let full = named(&mut node, "a", Qos::AtLeastOnce);
    assert_eq!(full, (Some(PublishRefusal::StoreFull), None));
    gate.set_open(false);
    let away = named(&mut node, "a", Qos::AtLeastOnce);
    assert_eq!(away, (Some(PublishRefusal::ClusterAway), None));
    // A name is that of one message.
    gate.set_open(true);
    gate.set_log_full(false);
    publish(&mut node, 0, "a", Qos::AtLeastOnce, false);
    assert!(node.broker(0).take_outgoing().is_none());
}

#[test]
fn records_of_the_cluster_follow_the_messages_of_their_turn() {
    let (mut node, _) = node();
    node.broker(1).keep_shared(b"key", b"value");
    node.broker(1).keep_shared(b"other", b"one");
    let changes = node.broker(1).take_changes();
    let found: Vec<_> = (changes.iter())
        .map(|change| (shared_of(&change.key), change.value.as_deref()))
        .collect();
    let key = Some(&b"key"[..]);
    let other = Some(&b"other"[..]);
    let values = [b"value", &b"one"[..]].map(Some);
    assert_eq!(found, [(key, values[0]), (other, values[1])]);
    let taken = take(&mut node, 1).expect("a token");
    assert_eq!((taken.token, taken.topics.len()), (2, 0));
    let mut alone = Cluster::new(1);
    alone.broker(0).keep_shared(b"key", b"value");
    assert_eq!(alone.broker(0).token(), 0, "nobody else is to know");
}
