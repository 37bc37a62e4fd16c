//! Rules that change while sessions are here, away, or on their way.

use std::sync::Arc;

use sterna_broker::{
    Close, ConsumerId, Holder, Message, OpenSession, Opened, Permit, Qos, Right, Rights,
    SessionName, SubscribeError,
};

use crate::cluster::{Client, Cluster, named, qos};

/// Nobody may read below `secret/`; the user `gone` is missing.
#[derive(Debug)]
pub(crate) struct Secretive;

impl Permit for Secretive {
    fn permits(&self, topic: &str) -> bool {
        !topic.starts_with("secret/")
    }
}

impl Rights for Secretive {
    fn digest(&self) -> [u8; 32] {
        [1; 32]
    }

    fn admits(&self, holder: Holder<'_>) -> bool {
        holder.owner != Some("gone")
    }

    fn reads(&self, _: Holder<'_>, filter: &str, queue: Option<&str>) -> Right {
        match filter {
            _ if queue.is_some() => Right::Everything,
            "#" => Right::Some(Arc::new(Self)),
            _ if self.permits(filter) => Right::Everything,
            _ => Right::Nothing,
        }
    }

    fn receives(&self, _: Holder<'_>, topic: &str) -> bool {
        self.permits(topic)
    }

    fn publishes(&self, _: Holder<'_>, will: &Message) -> bool {
        self.permits(will.topic())
    }
}

/// Puts the rules in force on one shard.
fn reload(cluster: &mut Cluster, shard: u16) {
    let now_ms = cluster.now_ms;
    cluster.broker(shard).set_rights(Arc::new(Secretive));
    cluster.broker(shard).judge(now_ms);
    cluster.collect(shard);
}

/// One shard knows of the new rules before the session leaves it, or the other before it comes, or both,
/// or neither until it is there.
#[test]
fn a_session_that_moves_during_a_reload_is_judged() {
    for (old_first, new_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut cluster = Cluster::new(2);
        let old = cluster.open(0, "a");
        cluster.subscribe(old, "#", qos(Qos::AtLeastOnce));
        cluster.subscribe(old, "secret/x", qos(Qos::AtLeastOnce));
        cluster.close(old, Close::LOST);
        cluster.publish(1, "secret/x", "1", Qos::AtLeastOnce);
        cluster.publish(1, "open", "2", Qos::AtLeastOnce);
        if old_first {
            reload(&mut cluster, 0);
        }
        let (consumer, opened) = cluster.start_open(1, "a", false, 3600, None);
        let (Opened::Pending { session: moved } | Opened::Ready { session: moved, .. }) = opened;
        assert!(cluster.deliver_one(1, 0), "the claim: it is on its way now");
        if new_first {
            reload(&mut cluster, 1);
        }
        cluster.run();
        for (shard, is_told) in [(0, old_first), (1, new_first)] {
            if !is_told {
                reload(&mut cluster, shard);
            }
        }
        cluster.run();
        cluster.publish(0, "secret/x", "3", Qos::AtLeastOnce);
        cluster.publish(0, "open", "4", Qos::AtLeastOnce);
        let (session, filters) =
            (cluster.broker(1).session_named(&named("a"))).expect("it is here");
        assert_eq!(session.consumer, Some(consumer));
        assert_eq!(filters.len(), 2);
        let (subscriptions, _) =
            (cluster.broker(1).subscriptions_named(&named("a"), None, 9)).expect("it is here");
        let resting: Vec<(&str, bool)> = (subscriptions.iter())
            .map(|one| (&*one.filter, one.is_resting))
            .collect();
        assert_eq!(resting, [("#", false), ("secret/x", true)]);
        let client = Client {
            shard: 1,
            key: moved,
            consumer,
            present: true,
        };
        assert_eq!(cluster.drain(client), ["2", "4"], "{old_first} {new_first}");
    }
}

#[test]
fn the_session_of_a_user_who_is_missing_stays_wherever_it_is() {
    for is_moving in [false, true] {
        let mut cluster = Cluster::new(2);
        let now_ms = cluster.now_ms;
        let of_user = || OpenSession {
            name: SessionName::new(Some("gone"), "a"),
            clean_start: false,
            expiry_s: 3600,
            consumer: ConsumerId::default(),
            will: None,
            on_demand: false,
            selector: None,
        };
        let (consumer, opened) = cluster.start_request(0, of_user());
        let old = cluster.opened(0, consumer, opened);
        cluster.subscribe(old, "open", qos(Qos::AtLeastOnce));
        cluster.close(old, Close::LOST);
        if is_moving {
            let (_, opened) = cluster.start_request(1, of_user());
            let (Opened::Pending { session } | Opened::Ready { session, .. }) = opened;
            cluster.broker(1).close(now_ms, session, Close::LOST);
            assert!(cluster.deliver_one(1, 0));
        }
        reload(&mut cluster, 0);
        reload(&mut cluster, 1);
        cluster.run();
        assert_eq!(cluster.directory.sessions(), 1, "moving: {is_moving}");
        assert_eq!(cluster.publish(0, "open", "x", Qos::AtLeastOnce).matched, 1);
        cluster.assert_empty();
    }
}

#[test]
fn what_is_not_allowed_is_not_subscribed_to() {
    let mut cluster = Cluster::new(1);
    reload(&mut cluster, 0);
    let client = cluster.open(0, "a");
    let now_ms = cluster.now_ms;
    let subscribed =
        (cluster.broker(0)).subscribe(now_ms, client.key, "secret/x", qos(Qos::AtMostOnce));
    assert_eq!(subscribed, Err(SubscribeError::NotAllowed));
    cluster.subscribe(client, "#", qos(Qos::AtLeastOnce));
    let routed = cluster.publish(0, "secret/x", "1", Qos::AtLeastOnce);
    assert_eq!(routed.matched, 0, "nobody may get it");
    assert_eq!(cluster.publish(0, "x", "2", Qos::AtLeastOnce).matched, 1);
    assert_eq!(cluster.drain(client), ["2"]);
}
