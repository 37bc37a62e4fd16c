//! Wills (MQTT 5.0, section 3.1.2.5).

use sterna_broker::{
    Close, Limits, OpenError, OpenSession, Qos, Retention, SessionName, Will, WillFate,
};

use crate::cluster::{Client, Cluster, message, qos};

fn will(delay_s: u32, retain: bool) -> Will {
    let message = message("will", "gone", Qos::AtLeastOnce, retain);
    Will {
        is_given: false,
        is_unproved: false,
        message,
        delay_s,
        expiry_s: None,
    }
}

fn watcher(cluster: &mut Cluster) -> Client {
    let watcher = cluster.open(0, "watcher");
    cluster.subscribe(watcher, "will", qos(Qos::AtLeastOnce));
    watcher
}

/// [MQTT-3.1.2-14] [MQTT-3.14.4-3] [MQTT-3.1.2-10]
#[test]
fn a_will_is_published_when_the_connection_is_lost() {
    let mut cluster = Cluster::new(1);
    let watcher = watcher(&mut cluster);
    let lost = cluster.open_with(0, "lost", true, 0, Some(will(0, false)));
    let polite = cluster.open_with(0, "polite", true, 0, Some(will(0, false)));
    let none = cluster.open_with(0, "none", true, 0, None);
    cluster.close(polite, Close::NORMAL);
    cluster.close(none, Close::LOST);
    assert!(cluster.drain(watcher).is_empty());
    cluster.close(lost, Close::LOST);
    assert_eq!(cluster.drain(watcher), ["gone"]);
    assert_eq!(cluster.directory.retained().0, 0);
    cluster.assert_empty();
}

/// [MQTT-3.1.2-15]
#[test]
fn a_retained_will_is_retained_and_its_expiry_counts_from_its_publication() {
    let mut cluster = Cluster::new(1);
    let mut will = will(0, true);
    will.expiry_s = Some(10);
    let lost = cluster.open_with(0, "lost", true, 0, Some(will));
    cluster.pass(1_000_000);
    cluster.close(lost, Close::LOST);
    cluster.pass(4_000);
    let late = cluster.open(0, "late");
    assert_eq!(
        cluster
            .subscribe(late, "will", qos(Qos::AtLeastOnce))
            .retained,
        1
    );
    let now_ms = cluster.now_ms;
    assert_eq!(
        cluster.next(late).unwrap().message.expiry_left_s(now_ms),
        Some(6)
    );
}

/// [MQTT-3.1.3-9]: a reconnect within the delay cancels the will.
#[test]
fn a_delayed_will_is_cancelled_by_a_reconnect() {
    let mut cluster = Cluster::new(1);
    let watcher = watcher(&mut cluster);
    let client = cluster.open_with(0, "c", false, 100, Some(will(10, false)));
    cluster.close(client, Close::LOST);
    cluster.pass(9_999);
    let client = cluster.open_with(0, "c", false, 100, Some(will(10, false)));
    assert!(client.present);
    cluster.pass(100_000);
    assert!(cluster.drain(watcher).is_empty());
    cluster.close(client, Close::LOST);
    cluster.pass(10_000);
    assert_eq!(cluster.drain(watcher), ["gone"]);
    cluster.pass(1_000_000);
    assert!(cluster.drain(watcher).is_empty(), "once is enough");
}

/// Attack 13: a will delay longer than the session; the will fires at the earlier.
#[test]
fn the_end_of_the_session_publishes_a_delayed_will() {
    let mut cluster = Cluster::new(1);
    let watcher = watcher(&mut cluster);
    let expiring = cluster.open_with(0, "expiring", false, 5, Some(will(100, false)));
    cluster.close(expiring, Close::LOST);
    cluster.pass(4_999);
    assert!(cluster.drain(watcher).is_empty());
    cluster.pass(1);
    assert_eq!(cluster.drain(watcher), ["gone"]);

    let ending = cluster.open_with(0, "ending", false, 0, Some(will(100, false)));
    cluster.close(ending, Close::LOST);
    assert_eq!(cluster.drain(watcher), ["gone"]);

    // A clean start ends the session as well. [MQTT-3.1.2-4]
    let discarded = cluster.open_with(0, "discarded", false, 100, Some(will(50, false)));
    cluster.close(discarded, Close::LOST);
    cluster.open_with(0, "discarded", true, 100, None);
    assert_eq!(cluster.drain(watcher), ["gone"]);

    // DISCONNECT with Session Expiry Interval 0 and a wish for the will.
    let leaving = cluster.open_with(0, "leaving", false, 100, Some(will(50, false)));
    cluster.close(
        leaving,
        Close {
            will: WillFate::Publish,
            expiry_s: Some(0),
            ..Close::LOST
        },
    );
    assert_eq!(cluster.drain(watcher), ["gone"]);
    assert_eq!(cluster.broker(0).counters().wills_published, 4);
}

/// A taken-over connection is a lost one: its will is published, unless its delay lets the new
/// connection cancel it.
#[test]
fn taking_a_session_over_treats_the_will_like_a_lost_connection() {
    let mut cluster = Cluster::new(1);
    let watcher = watcher(&mut cluster);
    cluster.open_with(0, "c", false, 100, Some(will(0, false)));
    cluster.open_with(0, "c", false, 100, Some(will(10, false)));
    assert_eq!(cluster.drain(watcher), ["gone"]);
    cluster.open_with(0, "c", false, 100, Some(will(10, false)));
    cluster.pass(100_000);
    assert!(cluster.drain(watcher).is_empty());
    cluster.open_with(0, "c", true, 100, None);
    assert_eq!(cluster.drain(watcher), ["gone"], "the session ended");
}

#[test]
fn wills_are_checked_and_limited_at_the_opening() {
    let mut cluster = Cluster::limited(Limits {
        will_bytes: 20,
        sessions: 2,
        ..Limits::default()
    });
    let open = |cluster: &mut Cluster, client_id, topic| {
        let message = message(topic, "12345", Qos::AtMostOnce, false);
        let request = OpenSession {
            name: SessionName::new(None, client_id),
            clean_start: false,
            expiry_s: 0,
            consumer: sterna_broker::ConsumerId(1),
            will: Some(Will {
                is_given: false,
                is_unproved: false,
                message,
                delay_s: 0,
                expiry_s: None,
            }),
            on_demand: false,
            selector: None,
        };
        let opened = cluster.broker(0).open(0, request);
        opened.map(|opened| match opened {
            sterna_broker::Opened::Ready { session, .. }
            | sterna_broker::Opened::Pending { session } => session,
        })
    };
    assert_eq!(
        open(&mut cluster, "a", "a/+"),
        Err(OpenError::InvalidWillTopic)
    );
    let first = open(&mut cluster, "a", "t23").unwrap();
    open(&mut cluster, "b", "t23").unwrap();
    assert_eq!(open(&mut cluster, "c", "t23"), Err(OpenError::TooManyWills));
    for _ in 0..5 {
        // Refused for another reason: the bytes are not kept.
        assert_eq!(open(&mut cluster, "c", "t"), Err(OpenError::TooManyWills));
    }
    cluster.broker(0).close(0, first, Close::NORMAL);
    let first = open(&mut cluster, "a", "t23").unwrap();
    cluster.broker(0).close(0, first, Close::LOST);
    open(&mut cluster, "a", "t23").unwrap();
    let routed = cluster.retain(0, "t", "x");
    assert_eq!(routed.retention, Retention::Stored);
}
