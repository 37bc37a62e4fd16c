//! Sessions that have gone to other nodes, until these are known to want what the sessions do.

use std::sync::Arc;

use sterna_broker::{Interest, Limits, Ownership, PeerGate, Qos};

use crate::cluster::{Client, message, named, qos};
use crate::log_node::{Log, LogNode, SHARDS};

/// A node with a session that outlives its connection and wants `one/+`, `two`, and `three` at QoS 0.
fn node() -> (LogNode, Client) {
    let mut site = LogNode::start(&Log::default(), Limits::default(), PeerGate::new(1 << 30));
    let reader = reader(&mut site);
    (site, reader)
}

fn reader(site: &mut LogNode) -> Client {
    let cluster = &mut site.cluster;
    cluster.is_granted = true;
    let reader = cluster.open(1, "reader");
    cluster.subscribe(reader, "one/+", qos(Qos::AtLeastOnce));
    cluster.subscribe(reader, "two", qos(Qos::ExactlyOnce));
    cluster.subscribe(reader, "three", qos(Qos::AtMostOnce));
    reader
}

/// Another node has the session.
fn lose(site: &mut LogNode) {
    let (now_ms, name) = (site.cluster.now_ms, named("reader"));
    for shard in 0..SHARDS {
        (site.cluster.broker(shard)).lose_session(now_ms, &name);
        site.cluster.collect(shard);
    }
    site.cluster.run();
    let ended = |note: &Ownership| matches!(note, Ownership::Ended { .. });
    assert!(site.cluster.notes.iter().any(ended));
}

/// Whether a message that is published on a shard goes to the log.
fn is_logged(site: &mut LogNode, shard: u16, topic: &str) -> bool {
    let one = message(topic, "x", Qos::AtLeastOnce, false);
    let is_logged = site.cluster.send(shard, None, one).token > 0;
    site.hand_over(shard);
    is_logged
}

fn interest(site: &mut LogNode) -> Vec<(Arc<str>, Interest)> {
    site.cluster.run();
    let mut changes = site.cluster.broker(0).take_interest();
    changes.sort_by_key(|(filter, _)| Arc::clone(filter));
    changes
}

/// Its new owner reads what is kept, and other nodes hear after that what it wants.
#[test]
fn what_a_session_wants_that_has_gone_to_another_node_is_logged_until_that_is_known() {
    let (mut site, _) = node();
    lose(&mut site);
    for shard in 0..SHARDS {
        assert!(is_logged(&mut site, shard, "one/a"), "shard {shard}");
        assert!(is_logged(&mut site, shard, "two"), "shard {shard}");
        assert!(!is_logged(&mut site, shard, "three"), "it may be missed");
        assert!(!is_logged(&mut site, shard, "four"), "nobody wants it");
    }
    let released = ["one/+", "two"].map(Arc::from).into();
    site.cluster.broker(0).release_handed_over(released);
    site.cluster.run();
    for shard in 0..SHARDS {
        assert!(!is_logged(&mut site, shard, "one/a"), "shard {shard}");
        assert!(!is_logged(&mut site, shard, "two"), "shard {shard}");
    }
}

#[test]
fn a_session_that_came_and_went_at_once_was_here_for_other_nodes() {
    let (mut site, _) = node();
    lose(&mut site);
    let both = |filter: &str| [Interest::Durable, Interest::None].map(|how| (filter.into(), how));
    let expected = [both("one/+"), both("two")].concat();
    assert_eq!(interest(&mut site), expected);
    reader(&mut site);
    assert_eq!(interest(&mut site).len(), 3);
    lose(&mut site);
    let ended = |filter: &str| (filter.into(), Interest::None);
    let expected = ["one/+", "three", "two"].map(ended);
    assert_eq!(interest(&mut site), expected, "it was told");
}

/// A session that ends is nobody's.
#[test]
fn what_a_session_wanted_that_has_ended_is_not_logged() {
    let (mut site, reader) = node();
    site.cluster.close(reader, sterna_broker::Close::LOST);
    site.cluster.pass(3_601_000);
    site.cluster.run();
    assert!(!is_logged(&mut site, 0, "two"));
}
