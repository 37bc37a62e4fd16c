//! PUBLISH and its acknowledgements.

use sterna_broker::{Close, Limits, NEVER_EXPIRES_S, Opened, SessionName, ShardId};
use sterna_mqtt::packet::{Connect, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, PropertyContext, QoS};
use sterna_server::config::{Config, Effect, Rule};
use sterna_store::MemoryStore;

use crate::conformance::{V5, V311, expiring, persistent};
use crate::fixture::{Broker, block, describe, encode, plain, publish};

/// [MQTT-2.2.1-5] [MQTT-3.3.4-1] [MQTT-4.3.2-4] [MQTT-4.3.2-5] [MQTT-4.3.3-8] [MQTT-4.3.3-10]
/// [MQTT-4.3.3-11] [MQTT-4.3.3-12] [MQTT311-2.3.1-6] [MQTT311-3.3.4-1] [MQTT311-4.3.2-2]
/// [MQTT311-4.3.3-2]
#[test]
fn publications_are_acknowledged_by_their_level_and_qos_2_is_delivered_once() {
    let mut broker = Broker::new();
    for version in [V311, V5] {
        let watcher = broker.client(version, "watch");
        broker.subscribe(watcher, version, "t", QoS::AtMostOnce);
        let peer = broker.client(version, "p");
        broker.publish(peer, version, "t", "0", QoS::AtMostOnce);
        assert_eq!(broker.told(peer, version), [""; 0]);
        broker.publish(peer, version, "t", "1", QoS::AtLeastOnce);
        broker.publish(peer, version, "t", "1", QoS::AtLeastOnce);
        assert_eq!(
            broker.told(peer, version),
            ["PUBACK 7 Success", "PUBACK 7 Success"]
        );
        let seen = broker.told(watcher, version);
        assert_eq!(seen, ["PUBLISH0 t=0", "PUBLISH0 t=1", "PUBLISH0 t=1"]);
        broker.publish(peer, version, "t", "2", QoS::ExactlyOnce);
        let mut again = publish("t", "2", QoS::ExactlyOnce);
        again.dup = true;
        broker.packet(peer, version, &Packet::Publish(again));
        assert_eq!(
            broker.told(peer, version),
            ["PUBREC 7 Success", "PUBREC 7 Success"]
        );
        assert_eq!(broker.told(watcher, version), ["PUBLISH0 t=2"]);
        broker.send(peer, &[0x62, 2, 0, 7]);
        assert_eq!(broker.told(peer, version), ["PUBCOMP 7 Success"]);
        broker.publish(peer, version, "t", "3", QoS::ExactlyOnce);
        assert_eq!(broker.told(watcher, version), ["PUBLISH0 t=3"]);
    }
}

/// More than the subscriber's queue has places.
#[test]
fn a_burst_of_one_turn_goes_to_a_subscriber_while_it_comes() {
    let mut broker = Broker::new();
    let reader = broker.client(V5, "reader");
    broker.subscribe(reader, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V311, "publisher");
    let count = Limits::default().queued_messages + 600;
    let mut bytes = Vec::new();
    for number in 1..=count {
        let mut message = publish("t", "m", QoS::AtLeastOnce);
        message.packet_id = PacketId::new(number as u16);
        bytes.extend(encode(V311, &Packet::Publish(message)));
    }
    broker.burst(publisher, &bytes);
    // The client is read no more when the queue is half full behind a full window.
    let acknowledged = broker.told(publisher, V311).len();
    assert!(
        acknowledged > Limits::default().queued_messages,
        "{acknowledged}"
    );
    let mut delivered = 0;
    loop {
        let ids = broker.packets(reader, V5, |packet| match packet {
            Packet::Publish(message) => message.packet_id.expect("QoS 1").get(),
            other => panic!("{other:?}"),
        });
        if ids.is_empty() {
            break;
        }
        delivered += ids.len();
        for id in ids {
            broker.send(reader, &[0x40, 2, (id >> 8) as u8, id as u8]);
        }
    }
    assert_eq!(delivered, count);
    assert_eq!(acknowledged + broker.told(publisher, V311).len(), count);
}

#[test]
fn a_message_with_too_many_user_properties_is_refused() {
    let mut config = Config::default();
    config.mqtt.maximum_list_entries = 3;
    let mut broker = Broker::with(&config, 1);
    let watcher = broker.client(V5, "watch");
    broker.subscribe(watcher, V5, "t", QoS::AtMostOnce);
    let peer = broker.client(V5, "p");
    let property = Property::UserProperty("", "");
    for (count, qos, told) in [
        (3, QoS::AtMostOnce, None),
        (4, QoS::AtMostOnce, None),
        (3, QoS::AtLeastOnce, Some("PUBACK 7 Success")),
        (4, QoS::AtLeastOnce, Some("PUBACK 7 Quota exceeded")),
        (4, QoS::ExactlyOnce, Some("PUBREC 7 Quota exceeded")),
        (3, QoS::ExactlyOnce, Some("PUBREC 7 Success")),
    ] {
        let mut all = vec![Property::ContentType("x")];
        all.extend(vec![property; count]);
        let properties = block(&all);
        let packet = sterna_mqtt::packet::Publish {
            properties: properties
                .publish_properties(PropertyContext::Publish)
                .expect("a message's"),
            ..publish("t", "x", qos)
        };
        broker.packet(peer, V5, &Packet::Publish(packet));
        assert_eq!(broker.told(peer, V5), told.as_slice(), "{count} {qos:?}");
        let came = broker.told(watcher, V5).len();
        assert_eq!(came, usize::from(count == 3), "{count} {qos:?}");
    }
}

/// [MQTT-3.3.1-1] [MQTT-3.3.1-3] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6]
/// [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT311-3.3.1-1] [MQTT311-4.4.0-1]
/// [MQTT311-4.6.0-1] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6]
#[test]
fn unacknowledged_deliveries_come_again_in_their_order_and_only_then() {
    let mut broker = Broker::new();
    let session = expiring(1000);
    let peer = broker.client_with(V5, &persistent("s", &session, true));
    broker.subscribe(peer, V5, "t", QoS::ExactlyOnce);
    let publisher = broker.client(V5, "p");
    for text in ["1", "2", "3"] {
        let mut packet = publish("t", text, QoS::ExactlyOnce);
        packet.packet_id = PacketId::new(text.as_bytes()[0].into());
        packet.dup = text == "2";
        broker.packet(publisher, V5, &Packet::Publish(packet));
    }
    assert_eq!(
        broker.told(peer, V5),
        ["PUBLISH2 t=1", "PUBLISH2 t=2", "PUBLISH2 t=3"]
    );
    // The second is handed over: its PUBREL is due, not its PUBLISH.
    broker.send(peer, &[0x50, 2, 0, 2]);
    assert_eq!(broker.told(peer, V5), ["PUBREL 2 Success"]);
    broker.advance(30_000);
    broker.send(peer, &[0xC0, 0]);
    assert_eq!(
        broker.told(peer, V5),
        ["PINGRESP"],
        "nothing is sent again on the same connection"
    );
    broker.cut(peer);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(persistent("s", &session, false)));
    assert_eq!(
        broker.told(peer, V5),
        [
            "CONNACK Success present",
            "PUBLISH2 dup t=1",
            "PUBREL 2 Success",
            "PUBLISH2 dup t=3"
        ]
    );
}

/// [MQTT-3.1.2-24] [MQTT-3.1.2-25] [MQTT-3.2.2-16]
#[test]
fn what_is_too_large_for_a_client_counts_as_delivered() {
    let mut broker = Broker::new();
    let small = block(&[Property::MaximumPacketSize(40), Property::ReceiveMaximum(1)]);
    let peer = broker.client_with(
        V5,
        &Connect {
            properties: small.properties(),
            ..plain(V5, "small")
        },
    );
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "t", &"x".repeat(100), QoS::AtLeastOnce);
    broker.publish(publisher, V5, "t", "fits", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=fits"]);
}

/// [MQTT-3.3.4-7] [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]
#[test]
fn no_more_is_sent_than_the_client_takes_unacknowledged() {
    let mut broker = Broker::new();
    let two = block(&[Property::ReceiveMaximum(2)]);
    let peer = broker.client_with(
        V5,
        &Connect {
            properties: two.properties(),
            ..plain(V5, "s")
        },
    );
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    for text in ["1", "2", "3", "4"] {
        broker.publish(publisher, V5, "t", text, QoS::AtLeastOnce);
    }
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=1", "PUBLISH1 t=2"]);
    broker.send(peer, &[0xC0, 0]);
    assert_eq!(broker.told(peer, V5), ["PINGRESP"], "other packets go on");
    broker.send(peer, &[0x40, 2, 0, 1]);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=3"]);
    broker.send(peer, &[0x40, 2, 0, 2, 0x40, 2, 0, 3]);
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 t=4"]);
}

/// [MQTT-3.3.4-8] more than Receive Maximum from a client ends it; [MQTT-3.3.2-7] and so do bad aliases
#[test]
fn a_client_that_exceeds_what_it_was_granted_is_disconnected_with_the_reason() {
    let mut config = Config::default();
    config.mqtt.receive_maximum = 2;
    let mut broker = Broker::with(&config, 1);
    let peer = broker.client(V5, "p");
    for id in 1..=3 {
        let mut packet = publish("t", "x", QoS::ExactlyOnce);
        packet.packet_id = PacketId::new(id);
        broker.packet(peer, V5, &Packet::Publish(packet));
    }
    let told = broker.told(peer, V5);
    assert_eq!(
        told.last().map(String::as_str),
        Some("DISCONNECT Receive Maximum exceeded")
    );
    let peer = broker.client(V5, "alias");
    let alias = block(&[Property::TopicAlias(33)]);
    let mut packet = publish("t", "x", QoS::AtMostOnce);
    packet.properties = alias
        .publish_properties(PropertyContext::Publish)
        .expect("an alias");
    broker.packet(peer, V5, &Packet::Publish(packet));
    assert_eq!(broker.told(peer, V5), ["DISCONNECT Topic Alias invalid"]);
}

/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
/// [MQTT-3.3.2-5] [MQTT-3.3.2-6]
#[test]
fn properties_pass_through_unaltered_and_expired_messages_do_not() {
    let mut broker = Broker::new();
    let session = expiring(1000);
    let peer = broker.client_with(V5, &persistent("s", &session, true));
    broker.subscribe(peer, V5, "t", QoS::AtLeastOnce);
    broker.cut(peer);
    let publisher = broker.client(V5, "p");
    let sent = [
        Property::PayloadFormatIndicator(true),
        Property::ContentType("text/plain"),
        Property::ResponseTopic("answers"),
        Property::CorrelationData(b"\x00\xff"),
        Property::UserProperty("k", "1"),
        Property::UserProperty("k", "2"),
    ];
    for (expiry_s, text) in [(5, "short"), (60, "long")] {
        let mut properties = block(&sent);
        properties
            .push(Property::MessageExpiryInterval(expiry_s))
            .expect("fits");
        let mut packet = publish("t", text, QoS::AtLeastOnce);
        packet.properties = properties
            .publish_properties(PropertyContext::Publish)
            .expect("a message's");
        broker.packet(publisher, V5, &Packet::Publish(packet));
    }
    broker.advance(10_000);
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(persistent("s", &session, false)));
    let seen = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(p) => {
            let passed: Vec<Property<'_>> = p
                .properties
                .all()
                .iter()
                .filter(|p| !matches!(p, Property::MessageExpiryInterval(_)))
                .collect();
            assert_eq!(passed, sent);
            format!(
                "{} {:?}",
                String::from_utf8_lossy(p.payload),
                p.properties.message_expiry_s()
            )
        }
        other => describe(other),
    });
    assert_eq!(seen, ["CONNACK Success present", "long Some(50)"]);
}

/// [MQTT311-3.3.5-1] [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT311-3.3.5-1]
#[test]
fn overlapping_subscriptions_give_one_copy_at_the_highest_level_with_all_identifiers() {
    let mut broker = Broker::new();
    let peer = broker.client(V5, "s");
    for (filter, qos, id) in [
        ("a/#", QoS::AtMostOnce, 1),
        ("a/+", QoS::ExactlyOnce, 2),
        ("a/b", QoS::AtLeastOnce, 300),
    ] {
        let identifier = [Property::SubscriptionIdentifier(id)];
        broker.subscribe_with(peer, V5, filter, SubscribeOptions::new(qos), &identifier);
    }
    broker.take(peer);
    let publisher = broker.client(V5, "p");
    broker.publish(publisher, V5, "a/b", "x", QoS::ExactlyOnce);
    let seen = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(p) => {
            let mut ids: Vec<u32> = p.properties.subscription_identifiers().collect();
            ids.sort_unstable();
            (p.qos, ids)
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(seen, [(QoS::ExactlyOnce, vec![1, 2, 300])]);
}

/// [MQTT311-3.3.1-7] [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8] [MQTT-3.3.1-9] [MQTT-3.3.1-10]
/// [MQTT-3.3.1-11] [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT-3.8.4-4] [MQTT311-3.3.1-5] [MQTT311-3.3.1-6]
/// [MQTT311-3.3.1-8] [MQTT311-3.3.1-9] [MQTT311-3.3.1-10] [MQTT311-3.3.1-11] [MQTT311-3.3.1-12]
#[test]
fn retained_messages_are_kept_replaced_cleared_and_sent_as_the_subscription_asks() {
    use sterna_mqtt::packet::RetainHandling;
    let mut broker = Broker::new();
    let publisher = broker.client(V5, "p");
    let retain = |broker: &mut Broker, text: &str| {
        let mut packet = publish("r", text, QoS::AtLeastOnce);
        packet.retain = true;
        broker.packet(publisher, V5, &Packet::Publish(packet));
    };
    retain(&mut broker, "1");
    retain(&mut broker, "2");
    broker.publish(publisher, V5, "r", "not retained", QoS::AtMostOnce);
    let peer = broker.client(V5, "s");
    let ask = |broker: &mut Broker, handling: RetainHandling, as_published: bool| {
        let options = SubscribeOptions {
            retain_handling: handling,
            retain_as_published: as_published,
            ..SubscribeOptions::new(QoS::AtLeastOnce)
        };
        broker.subscribe_with(peer, V5, "r", options, &[]);
        broker.told(peer, V5)[1..].to_vec()
    };
    assert_eq!(ask(&mut broker, RetainHandling::DoNotSend, false), [""; 0]);
    assert_eq!(ask(&mut broker, RetainHandling::SendIfNew, false), [""; 0]);
    assert_eq!(
        ask(&mut broker, RetainHandling::Send, false),
        ["PUBLISH1 retain r=2"]
    );
    retain(&mut broker, "3");
    assert_eq!(
        broker.told(peer, V5),
        ["PUBLISH1 r=3"],
        "the flag is cleared for the established"
    );
    ask(&mut broker, RetainHandling::DoNotSend, true);
    retain(&mut broker, "4");
    assert_eq!(
        broker.told(peer, V5),
        ["PUBLISH1 retain r=4"],
        "the flag is kept as published"
    );
    retain(&mut broker, "");
    assert_eq!(broker.told(peer, V5), ["PUBLISH1 retain r="]);
    assert_eq!(
        ask(&mut broker, RetainHandling::Send, false),
        [""; 0],
        "nothing is retained"
    );
}

/// [MQTT-3.8.3-3] no local; [MQTT-4.7.2-1] [MQTT311-4.7.2-1] `$` topics apart from wildcards
#[test]
fn own_messages_and_system_topics_stay_away_from_those_who_did_not_ask() {
    let mut config = Config::default();
    config.sys.interval_s = 10;
    let mut broker = Broker::with(&config, 1);
    let peer = broker.client(V5, "s");
    let options = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::new(QoS::AtMostOnce)
    };
    broker.subscribe_with(peer, V5, "#", options, &[]);
    broker.publish(peer, V5, "own", "x", QoS::AtMostOnce);
    broker.advance(30_000);
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x00"]);
    let admin = broker.client(V5, "admin");
    broker.subscribe_with(
        admin,
        V5,
        "$SYS/broker/clients/connected",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert!(
        broker.told(admin, V5)[1].starts_with("PUBLISH0 retain $SYS/broker/clients/connected=")
    );
    // Nobody but the broker speaks there.
    broker.publish(peer, V5, "$SYS/broker/uptime", "lie", QoS::AtLeastOnce);
    assert_eq!(broker.told(peer, V5), ["PUBACK 7 Not authorized"]);
}

/// [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-4.3.3-9] [MQTT311-3.3.5-2] [MQTT-3.1.2-29]
#[test]
fn a_publication_against_the_rules_is_refused_by_reason_or_quietly_dropped() {
    let mut config = Config::default();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        topics: vec!["secret/#".to_owned()],
        ..Rule::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let peer = broker.client(V5, "p");
    broker.publish(peer, V5, "secret/x", "1", QoS::AtLeastOnce);
    broker.publish(peer, V5, "secret/x", "1", QoS::ExactlyOnce);
    broker.publish(peer, V5, "nobody", "1", QoS::ExactlyOnce);
    assert_eq!(
        broker.told(peer, V5),
        [
            "PUBACK 7 Not authorized",
            "PUBREC 7 Not authorized",
            "PUBREC 7 No matching subscribers"
        ]
    );
    broker.subscribe_with(
        peer,
        V5,
        "secret/#",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert_eq!(broker.told(peer, V5), ["SUBACK 1 0x87"]);
    let old = broker.client(V311, "old");
    broker.publish(old, V311, "secret/x", "1", QoS::AtLeastOnce);
    assert_eq!(broker.told(old, V311), ["PUBACK 7 Success"]);
    broker.subscribe_with(
        old,
        V311,
        "secret/+",
        SubscribeOptions::new(QoS::AtMostOnce),
        &[],
    );
    assert_eq!(broker.told(old, V311), ["SUBACK 1 0x80"]);
}

/// A store with a session that keeps the queue of a shared subscription.
fn kept_queue(filter: &str) -> MemoryStore {
    let store = MemoryStore::new();
    let directory = sterna_broker::Directory::new(1, Limits::default(), 7);
    let mut broker: sterna_broker::Broker<()> =
        sterna_broker::Broker::new(ShardId(0), directory, Box::new(store.clone()));
    let request = sterna_broker::OpenSession {
        name: SessionName::new(None, "keeper"),
        clean_start: false,
        expiry_s: NEVER_EXPIRES_S,
        consumer: sterna_broker::ConsumerId(1),
        will: None,
        on_demand: true,
        selector: None,
    };
    let opened = broker.open(0, request).expect("within limits");
    let Opened::Ready { session, .. } = opened else {
        panic!("there is one shard");
    };
    let options = sterna_broker::SubscribeOptions {
        keep: true,
        ..sterna_broker::SubscribeOptions::default()
    };
    broker
        .subscribe(0, session, filter, options)
        .expect("a valid filter");
    broker.close(0, session, Close::NORMAL);
    store
}

#[test]
fn a_publication_for_a_full_queue_is_refused_and_delivered_to_nobody() {
    let store = kept_queue("$share/keeper/q");
    let limits = Limits {
        group_queued_messages: 2,
        ..Limits::default()
    };
    for shards in 1..=2 {
        let config = Config::default();
        // On the second round the queue is as full as the first has left it.
        let mut broker =
            Broker::restored(&config, shards, limits.clone(), || Box::new(store.clone()));
        let watcher = broker.client(V5, "watch");
        broker.subscribe(watcher, V5, "q", QoS::AtMostOnce);
        let peer = broker.client(V5, "p");
        if shards == 1 {
            broker.publish(peer, V5, "q", "1", QoS::AtMostOnce);
            broker.publish(peer, V5, "q", "2", QoS::AtLeastOnce);
            assert_eq!(broker.told(peer, V5), ["PUBACK 7 Success"]);
            assert_eq!(broker.told(watcher, V5), ["PUBLISH0 q=1", "PUBLISH0 q=2"]);
        }
        broker.publish(peer, V5, "q", "3", QoS::AtMostOnce);
        broker.publish(peer, V5, "q", "3", QoS::AtLeastOnce);
        broker.publish(peer, V5, "q", "3", QoS::ExactlyOnce);
        assert_eq!(
            broker.told(peer, V5),
            ["PUBACK 7 Quota exceeded", "PUBREC 7 Quota exceeded"]
        );
        assert_eq!(broker.told(watcher, V5), [""; 0]);
        let old = broker.client(V311, "old");
        broker.publish(old, V311, "q", "3", QoS::AtLeastOnce);
        assert_eq!(broker.told(old, V311), ["PUBACK 7 Success"]);
        assert_eq!(broker.told(watcher, V5), [""; 0]);
    }
}

/// The client may have a message of QoS 2 that has become too large for it. PUBREL makes it forget the identifier: else it
/// would take a later message under that for a repetition. [MQTT-3.1.2-25] [MQTT-4.3.3-5]
#[test]
fn a_message_of_qos_2_that_will_not_be_sent_again_is_released() {
    let mut broker = Broker::new();
    let connect = |maximum| {
        block(&[
            Property::SessionExpiryInterval(1_000),
            Property::MaximumPacketSize(maximum),
        ])
    };
    let come = |broker: &mut Broker, maximum| {
        let properties = connect(maximum);
        let peer = broker.open();
        let connect = Connect {
            clean_start: false,
            properties: properties.properties(),
            ..plain(V5, "reader")
        };
        broker.packet(peer, V5, &Packet::Connect(connect));
        peer
    };
    let reader = come(&mut broker, 1_000);
    broker.take(reader);
    broker.subscribe(reader, V5, "t", QoS::ExactlyOnce);
    let publisher = broker.client(V5, "publisher");
    let large = "x".repeat(200);
    broker.publish(publisher, V5, "t", &large, QoS::ExactlyOnce);
    let told = broker.told(reader, V5);
    assert!(told[0].starts_with("PUBLISH"), "{told:?}");
    broker.cut(reader);
    let reader = come(&mut broker, 100);
    let told = broker.told(reader, V5);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].starts_with("PUBREL 1 "), "{told:?}");
    // It comes again until PUBCOMP.
    broker.cut(reader);
    let reader = come(&mut broker, 100);
    let told = broker.told(reader, V5);
    assert!(told[1].starts_with("PUBREL 1 "), "{told:?}");
    broker.send(reader, &[0x70, 2, 0, 1]);
    broker.cut(reader);
    let reader = come(&mut broker, 100);
    assert_eq!(broker.told(reader, V5).len(), 1, "it is done");
    assert!(!broker.is_closed(reader));
}
