//! The owner of a session in a cluster of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use sterna_broker::{
    Change, ClaimRefusal, Close, ConsumerId, Event, EvictReason, Holder, Keeping, Limits, Message,
    NoStore, OpenError, OpenSession, Opened, Ownership, PeerGate, Qos, Record, Right, Rights,
    SessionKey, SessionName, SubscribeError, Will, delayed_will, name_of,
};
use sterna_store::MemoryStore;

use crate::cluster::{Client, Cluster, message, named, qos};

fn node() -> Cluster {
    joined(Cluster::new(2))
}

/// Two shards of a node, whose gate is open.
fn joined(mut node: Cluster) -> Cluster {
    let gate = Arc::new(PeerGate::new(10_000));
    gate.set_open(true);
    for shard in [0, 1] {
        node.broker(shard).join_cluster(Arc::clone(&gate));
    }
    node
}

/// The same, with sessions that are kept.
fn durable() -> Cluster {
    let store = MemoryStore::new();
    let mut node = joined(Cluster::with(2, Limits::default(), |_| {
        Box::new(store.clone())
    }));
    for shard in [0, 1] {
        node.broker(shard).set_keeping(Keeping::Synced);
        node.broker(shard).restore(0);
    }
    node
}

/// What is kept of a session.
fn records_of(node: &mut Cluster, client_id: &str) -> Vec<Record> {
    let changes = [0, 1].map(|shard| node.broker(shard).take_changes());
    let mut records = BTreeMap::new();
    for Change { key, value } in changes.into_iter().flatten() {
        if name_of(&key) == Some(named(client_id).text()) {
            match value {
                Some(value) => records.insert(key, value),
                None => records.remove(&key),
            };
        }
    }
    records.into_iter().collect()
}

fn will() -> Will {
    Will {
        is_given: false,
        is_unproved: false,
        message: message("will", "gone", Qos::AtLeastOnce, false),
        delay_s: 0,
        expiry_s: Some(60),
    }
}

/// A request of a client that leaves a will.
fn with_will(client_id: &str) -> OpenSession {
    OpenSession {
        name: SessionName::new(None, client_id),
        clean_start: true,
        expiry_s: 0,
        consumer: ConsumerId(1),
        will: Some(will()),
        on_demand: false,
        selector: None,
    }
}

/// What was told since the last call, in a word each.
fn told(node: &mut Cluster) -> Vec<String> {
    node.run();
    let word = |note| match note {
        Ownership::Claim {
            name,
            will,
            outlives,
            ..
        } => format!("claim {} {} {outlives}", name.id(), will.is_some()),
        Ownership::SetWill { name, will } => format!("will {} {}", name.id(), will.is_some()),
        Ownership::PublishWill { name, .. } => format!("publish {}", name.id()),
        Ownership::Renew { name, will } => format!("renew {} {}", name.id(), will.is_some()),
        Ownership::Release { name } => format!("release {}", name.id()),
        Ownership::Ended { name } => format!("ended {}", name.id()),
        Ownership::Adopted { name } => format!("adopted {}", name.id()),
        Ownership::NotAdopted { name } => format!("not adopted {}", name.id()),
    };
    std::mem::take(&mut node.notes)
        .into_iter()
        .map(word)
        .collect()
}

fn evicted(node: &Cluster, client: ConsumerId) -> Option<EvictReason> {
    node.events.iter().find_map(|event| match event {
        Event::Evicted {
            consumer, reason, ..
        } if *consumer == client => Some(*reason),
        _ => None,
    })
}

fn is_opened(node: &Cluster, client: ConsumerId) -> bool {
    let opened =
        |event: &Event| matches!(event, Event::Opened { consumer, .. } if *consumer == client);
    node.events.iter().any(opened)
}

/// A session that waits for its claim.
fn pending(
    node: &mut Cluster,
    shard: u16,
    client_id: &str,
    expiry_s: u32,
) -> (ConsumerId, SessionKey) {
    node.is_granted = false;
    let (consumer, opened) = node.start_open(shard, client_id, false, expiry_s, None);
    let Opened::Pending { session } = opened else {
        panic!("a new session waits for its claim");
    };
    node.run();
    node.is_granted = true;
    (consumer, session)
}

fn lose(node: &mut Cluster, client_id: &str) {
    let (now_ms, name) = (node.now_ms, named(client_id));
    for shard in [0, 1] {
        node.broker(shard).lose_session(now_ms, &name);
        node.collect(shard);
    }
    node.run();
}

fn settle(node: &mut Cluster, shard: u16, session: SessionKey, result: Result<(), ClaimRefusal>) {
    let now_ms = node.now_ms;
    node.broker(shard).session_claimed(now_ms, session, result);
    node.collect(shard);
    node.run();
}

fn read(node: &mut Cluster, client: Client) -> usize {
    node.pending(client)
}

#[test]
fn a_new_session_begins_when_it_is_claimed_and_not_before() {
    let mut node = node();
    let (consumer, session) = pending(&mut node, 1, "a", 3600);
    assert_eq!(told(&mut node), ["claim a false true"]);
    assert!(!is_opened(&node, consumer));
    settle(&mut node, 1, session, Ok(()));
    assert!(is_opened(&node, consumer));
    let client = Client {
        shard: 1,
        key: session,
        consumer,
        present: false,
    };
    node.subscribe(client, "t", qos(Qos::AtLeastOnce));
    node.close(client, Close::LOST);
    assert_eq!(told(&mut node), [""; 0], "it waits for its client");
    // It was here before: nobody is asked.
    assert!(node.open(1, "a").present);
    assert_eq!(told(&mut node), ["will a false"]);
    // On the other shard, too.
    assert!(node.open(0, "a").present);
    assert_eq!(told(&mut node), ["will a false"]);
}

#[test]
fn a_claim_that_is_refused_evicts_who_waits() {
    for (why, reason) in [
        (ClaimRefusal::Away, EvictReason::ClusterAway),
        (ClaimRefusal::TakenOver, EvictReason::TakenOver),
    ] {
        let mut node = node();
        let (consumer, session) = pending(&mut node, 0, "a", 3600);
        settle(&mut node, 0, session, Err(why));
        assert_eq!(evicted(&node, consumer), Some(reason));
        assert!(!node.broker(0).owner_exists(&named("a")));
        assert!(!node.open(1, "a").present, "it can be asked for again");
    }
}

#[test]
fn a_refusal_lets_the_next_ask_for_itself() {
    let mut node = node();
    let (first, session) = pending(&mut node, 0, "a", 3600);
    node.is_granted = false;
    let (second, opened) = node.start_open(1, "a", false, 3600, None);
    let Opened::Pending { session: next } = opened else {
        panic!("it waits");
    };
    node.run();
    assert_eq!(evicted(&node, first), Some(EvictReason::TakenOver));
    assert_eq!(told(&mut node), ["claim a false true"], "the first alone");
    settle(&mut node, 0, session, Err(ClaimRefusal::Away));
    assert!(!is_opened(&node, second));
    assert!(told(&mut node).contains(&"claim a false true".to_owned()));
    settle(&mut node, 1, next, Ok(()));
    assert!(is_opened(&node, second));
}

#[test]
fn a_client_that_goes_before_its_claim_is_settled_leaves_nothing() {
    for expiry_s in [0, 3600] {
        let mut node = node();
        let (consumer, session) = pending(&mut node, 0, "a", expiry_s);
        let now_ms = node.now_ms;
        node.broker(0).close(now_ms, session, Close::LOST);
        told(&mut node);
        settle(&mut node, 0, session, Ok(()));
        assert!(!is_opened(&node, consumer));
        assert_eq!(told(&mut node), ["release a"]);
        assert!(!node.broker(0).owner_exists(&named("a")));
    }
}

#[test]
fn a_session_that_another_node_has_taken_ends_without_its_will() {
    for shard in [0, 1] {
        let mut node = node();
        let reader = node.open(0, "reader");
        node.subscribe(reader, "will", qos(Qos::AtLeastOnce));
        let client = node.open_with(shard, "a", false, 3600, Some(will()));
        told(&mut node);
        lose(&mut node, "a");
        assert_eq!(
            evicted(&node, client.consumer),
            Some(EvictReason::TakenOver)
        );
        assert_eq!(
            told(&mut node),
            ["ended a"],
            "the record is the other node's"
        );
        assert_eq!(read(&mut node, reader), 0, "the will is the other node's");
        assert!(!node.open(1 - shard, "a").present);
    }
}

#[test]
fn a_loss_is_answered_where_the_session_has_ended_and_where_another_waits() {
    let mut node = node();
    lose(&mut node, "a");
    assert_eq!(told(&mut node), ["ended a"]);
    let (consumer, session) = pending(&mut node, 1, "a", 3600);
    told(&mut node);
    lose(&mut node, "a");
    assert_eq!(told(&mut node), ["ended a"]);
    assert_eq!(
        evicted(&node, consumer),
        None,
        "it was not lost: it never began"
    );
    settle(&mut node, 1, session, Ok(()));
    assert!(is_opened(&node, consumer));
}

#[test]
fn a_will_is_published_when_it_is_this_nodes_to_publish() {
    let mut node = node();
    let reader = node.open(1, "reader");
    node.subscribe(reader, "will", qos(Qos::AtLeastOnce));
    told(&mut node);
    let client = node.open_with(0, "a", false, 0, Some(will()));
    assert_eq!(told(&mut node), ["claim a true false"]);
    node.close(client, Close::LOST);
    node.run();
    assert_eq!(read(&mut node, reader), 0);
    let due = node.notes.iter().find_map(|note| match note {
        Ownership::PublishWill { will, .. } => Some(Arc::clone(will)),
        _ => None,
    });
    assert_eq!(told(&mut node), ["publish a", "release a"], "in this order");
    let now_ms = node.now_ms;
    assert!(
        node.broker(0)
            .publish_owned_will(now_ms, &due.expect("it is due"), None)
    );
    assert!(!node.broker(0).publish_owned_will(now_ms, &[1, 2, 3], None));
    node.collect(0);
    node.run();
    assert_eq!(read(&mut node, reader), 1);
    assert_eq!(node.broker(0).counters().wills_published, 1);
}

/// Wills that wait while NATS is away count as those of connected clients do, until they are taken care of.
#[test]
fn wills_that_wait_for_other_nodes_are_bounded() {
    let will_bytes = 3 * will().message.body_bytes();
    let limits = Limits {
        will_bytes,
        ..Limits::default()
    };
    let mut node = joined(Cluster::with(2, limits, |_| Box::new(NoStore)));
    for name in ["a", "b", "c"] {
        let client = node.open_with(0, name, false, 0, Some(will()));
        node.close(client, Close::LOST);
        node.run();
    }
    assert_eq!(node.directory.will_bytes(), will_bytes);
    let now_ms = node.now_ms;
    let opened = node.broker(0).open(now_ms, with_will("d"));
    assert_eq!(opened, Err(OpenError::TooManyWills));
    assert!(node.broker(0).has_due_wills());
    // The engine has them no more.
    node.notes.clear();
    assert!(!node.broker(0).has_due_wills());
    node.run();
    assert_eq!(node.directory.will_bytes(), 0);
    assert!(node.broker(0).open(now_ms, with_will("d")).is_ok());
}

#[test]
fn a_will_that_other_nodes_cannot_keep_is_refused() {
    let mut node = node();
    let gate = Arc::new(PeerGate::new(10_000));
    gate.set_largest_body_bytes(4);
    node.broker(0).join_cluster(gate);
    let now_ms = node.now_ms;
    let opened = node.broker(0).open(now_ms, with_will("a"));
    assert_eq!(opened, Err(OpenError::WillTooLarge));
    assert!(!node.broker(0).owner_exists(&named("a")));
}

#[test]
fn other_nodes_know_the_will_that_holds() {
    let mut node = node();
    let client = node.open_with(0, "a", false, 3600, Some(will()));
    assert_eq!(told(&mut node), ["claim a true true"]);
    node.close(client, Close::NORMAL);
    assert_eq!(told(&mut node), ["will a false"]);
    let client = node.open_with(1, "a", false, 3600, Some(will()));
    assert!(client.present);
    assert_eq!(told(&mut node), ["will a true"]);
    // A clean start ends the session, whose will is due, and begins another.
    node.open_with(1, "a", true, 3600, None);
    assert_eq!(told(&mut node), ["publish a", "claim a false true"]);
}

/// The claim has told other nodes of the first client's will, which was never in force.
#[test]
fn other_nodes_know_the_will_of_who_comes_while_a_session_is_claimed() {
    for (first, second) in [(true, false), (false, true), (true, true)] {
        let mut node = node();
        let will_if = |is_set: bool| is_set.then(will);
        node.is_granted = false;
        let (_, opened) = node.start_open(0, "a", false, 3600, will_if(first));
        let Opened::Pending { session } = opened else {
            panic!("a new session waits for its claim");
        };
        let (next, _) = node.start_open(0, "a", false, 3600, will_if(second));
        assert_eq!(told(&mut node), [format!("claim a {first} true")]);
        settle(&mut node, 0, session, Ok(()));
        assert!(is_opened(&node, next));
        assert_eq!(told(&mut node), [format!("will a {second}")]);
    }
}

#[test]
fn a_client_that_goes_before_its_session_comes_leaves_no_will() {
    let mut node = durable();
    node.is_granted = false;
    let (_, opened) = node.start_open(0, "a", false, 3600, Some(will()));
    let Opened::Pending { session } = opened else {
        panic!("a new session waits for its claim");
    };
    told(&mut node);
    let now_ms = node.now_ms;
    node.broker(0).close(now_ms, session, Close::NORMAL);
    // It goes on with what another node has kept of it.
    let mut other = durable();
    other.open(0, "a");
    let records = records_of(&mut other, "a");
    node.broker(0).session_restored(now_ms, session, records);
    node.collect(0);
    assert_eq!(told(&mut node), ["will a false"]);
    assert!(node.broker(0).owner_exists(&named("a")));
}

/// A node dies with its client's connection: the delay of the will begins when another node takes the session over.
#[test]
fn a_will_that_is_delayed_waits_on_the_node_that_adopts_its_session() {
    let mut node = durable();
    let delayed = Will {
        is_given: false,
        is_unproved: false,
        delay_s: 30,
        ..will()
    };
    let request = OpenSession {
        expiry_s: 3600,
        clean_start: false,
        will: Some(delayed),
        ..with_will("a")
    };
    node.start_request(0, request);
    node.run();
    let in_record = node.notes.iter().find_map(|note| match note {
        Ownership::Claim { will, .. } => will.clone(),
        _ => None,
    });
    let in_record = in_record.expect("the claim has it");
    let mut records = records_of(&mut node, "a");
    let now_ms = node.now_ms;
    assert!(delayed_will(&named("a"), &[0, 0], now_ms).is_none());
    records.extend(delayed_will(&named("a"), &in_record, now_ms));
    let mut other = durable();
    assert!(other.broker(0).adopt(now_ms, &named("a"), &records));
    other.collect(0);
    other.run();
    assert_eq!(told(&mut other), ["adopted a"]);
    other.pass(29_000);
    assert_eq!(told(&mut other), [""; 0]);
    other.pass(2_000);
    assert_eq!(told(&mut other), ["publish a"]);
}

#[test]
fn every_session_is_told_again_with_its_will() {
    let mut node = node();
    node.open_with(0, "a", false, 3600, Some(will()));
    node.open(1, "elsewhere");
    for client_id in ["b", "c"] {
        // Nobody is there, and nothing waits: it is packed.
        let away = node.open(0, client_id);
        node.close(away, Close::LOST);
    }
    told(&mut node);
    let (_, waits) = pending(&mut node, 0, "waits", 3600);
    told(&mut node);
    let (mut from, mut found) = (Some(0), Vec::new());
    while let Some(place) = from {
        let now_ms = node.now_ms;
        from = node.broker(0).renew_sessions(now_ms, place, 2);
        let page = told(&mut node);
        assert!(page.len() <= 2, "{page:?}");
        found.extend(page);
    }
    found.sort_unstable();
    assert_eq!(found, ["renew a true", "renew b false", "renew c false"]);
    settle(&mut node, 0, waits, Ok(()));
    assert!(node.open(0, "b").present);
}

#[test]
fn while_a_node_is_not_sure_only_sessions_that_end_with_their_connection_are_asked_for() {
    let mut node = node();
    let away = node.open(0, "away");
    node.close(away, Close::LOST);
    node.broker(0).set_unsure(true);
    told(&mut node);
    let now_ms = node.now_ms;
    let mut try_open = |client_id, expiry_s, consumer| {
        let request = OpenSession {
            name: SessionName::new(None, client_id),
            clean_start: false,
            expiry_s,
            consumer: ConsumerId(consumer),
            will: None,
            on_demand: false,
            selector: None,
        };
        node.broker(0).open(now_ms, request)
    };
    assert_eq!(try_open("a", 3600, 901), Err(OpenError::ClusterAway));
    assert_eq!(
        try_open("away", 0, 902),
        Err(OpenError::ClusterAway),
        "it is there"
    );
    assert!(matches!(try_open("b", 0, 903), Ok(Opened::Pending { .. })));
    assert_eq!(told(&mut node), ["claim b false false"]);
    assert!(!node.broker(0).owner_exists(&named("a")));
}

#[test]
fn a_session_has_no_more_subscriptions_than_other_nodes_can_be_brought() {
    let store = MemoryStore::new();
    let mut node = Cluster::with(2, Limits::default(), |_| Box::new(store.clone()));
    let gate = Arc::new(PeerGate::new(10_000));
    gate.set_open(true);
    gate.set_largest_body_bytes(8_000);
    for shard in [0, 1] {
        node.broker(shard).join_cluster(Arc::clone(&gate));
        node.broker(shard).set_keeping(Keeping::Synced);
        node.broker(shard).restore(0);
    }
    let kept = node.open_with(0, "kept", false, 3600, None);
    let other = node.open_with(0, "ends with its connection", true, 0, None);
    let mut subscribe = |client: Client, number: usize| {
        let filter = format!("some/filter/of/a/client/{number}");
        let broker = node.broker(client.shard);
        broker.subscribe(0, client.key, &filter, qos(Qos::AtLeastOnce))
    };
    let taken = (0..200)
        .take_while(|number| subscribe(kept, *number).is_ok())
        .count();
    assert!((60..120).contains(&taken), "{taken} subscriptions");
    let refused = subscribe(kept, taken).unwrap_err();
    assert_eq!(refused, SubscribeError::TooMany);
    assert!(subscribe(kept, 0).is_ok(), "one of them again");
    assert!((0..200).all(|number| subscribe(other, number).is_ok()));
}

#[test]
fn who_has_more_than_is_kept_is_told_so_and_what_is_kept_stays() {
    let mut node = node();
    let client = node.open_with(0, "a", false, 3600, None);
    told(&mut node);
    let (now_ms, name) = (node.now_ms, named("a"));
    for shard in [0, 1] {
        node.broker(shard).drop_unkept_session(now_ms, &name);
        node.collect(shard);
    }
    assert_eq!(told(&mut node), ["ended a"]);
    assert_eq!(evicted(&node, client.consumer), Some(EvictReason::TooLarge));
}

/// The user alice may publish nothing, and the user gone is no user any more.
#[derive(Debug)]
struct Strict;

impl Rights for Strict {
    fn digest(&self) -> [u8; 32] {
        [1; 32]
    }

    fn admits(&self, holder: Holder<'_>) -> bool {
        holder.owner != Some("gone")
    }

    fn reads(&self, _: Holder<'_>, _: &str, _: Option<&str>) -> Right {
        Right::Everything
    }

    fn receives(&self, _: Holder<'_>, _: &str) -> bool {
        true
    }

    fn publishes(&self, holder: Holder<'_>, _: &Message) -> bool {
        holder.owner != Some("alice")
    }
}

/// The rights are those of now: they may have been others when the will came to the node that has gone.
#[test]
fn a_will_of_another_nodes_session_is_judged_when_it_is_published() {
    let mut node = node();
    let reader = node.open(1, "reader");
    node.subscribe(reader, "will", qos(Qos::AtLeastOnce));
    let client = node.open_with(0, "a", false, 0, Some(will()));
    node.close(client, Close::LOST);
    node.run();
    let due = node.notes.iter().find_map(|note| match note {
        Ownership::PublishWill { will, .. } => Some(Arc::clone(will)),
        _ => None,
    });
    let due = due.expect("it is due");
    node.broker(0).set_rights(Arc::new(Strict));
    for (user, expected) in [("alice", 0), ("gone", 0), ("bob", 1)] {
        let testator = SessionName::new(Some(user), "a");
        let now_ms = node.now_ms;
        let is_will = (node.broker(0)).publish_owned_will(now_ms, &due, Some(&testator));
        assert!(is_will);
        node.collect(0);
        node.run();
        assert_eq!(read(&mut node, reader), expected, "{user}");
    }
    assert_eq!(node.broker(0).counters().dropped_forbidden, 2);
}

/// Where a client waits for the answer to its claim, the engine is told, and brings the session again.
#[test]
fn a_session_is_not_adopted_while_a_client_waits_for_its_claim() {
    let mut first = durable();
    let away = first.open_with(0, "a", false, 3600, None);
    first.close(away, Close::LOST);
    let records = records_of(&mut first, "a");
    let mut node = durable();
    let (_, session) = pending(&mut node, 1, "a", 3600);
    told(&mut node);
    let now_ms = node.now_ms;
    assert!(!node.broker(0).adopt(now_ms, &named("a"), &records));
    node.collect(0);
    assert_eq!(told(&mut node), ["not adopted a"]);
    settle(&mut node, 1, session, Err(ClaimRefusal::Away));
    assert_eq!(told(&mut node), ["ended a"]);
    assert!(node.broker(0).adopt(now_ms, &named("a"), &records));
    node.collect(0);
    assert_eq!(told(&mut node), ["adopted a"]);
}
