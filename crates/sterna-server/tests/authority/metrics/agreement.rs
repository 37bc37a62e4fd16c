//! The page agrees with the events, and with `$SYS`.

use std::collections::HashMap;

use sterna_mqtt::packet::{Connect, Packet, SubscribeOptions};
use sterna_mqtt::{Property, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::{Authorization, Effect, Rule};

use crate::fixture::{Broker, Peer, plain};
use crate::page::{ADMIN, AMQP, HTTP, Page, answer, config, connect, get, scrape, scrape_on};

const V5: Version = Version::V5;

/// A client of MQTT 5 on a shard.
fn client_on(broker: &mut Broker, shard: usize, connect: &Connect<'_>) -> Peer {
    let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(*connect));
    let told = broker.told(peer, V5);
    assert!(told[0].starts_with("CONNACK Success"), "{told:?}");
    peer
}

/// `$SYS` topics and values, as an observer finds them retained.
fn sys(broker: &mut Broker) -> HashMap<String, f64> {
    let observer = broker.client(V5, "observer");
    let options = SubscribeOptions::new(QoS::AtMostOnce);
    broker.subscribe_with(observer, V5, "$SYS/broker/#", options, &[]);
    let told = broker.told(observer, V5);
    let values = told.iter().filter_map(|line| {
        let (topic, value) = line.split_once("$SYS/broker/")?.1.split_once('=')?;
        Some((topic.to_owned(), value.parse().ok()?))
    });
    values.collect()
}

const AGREE: [(&str, &str); 19] = [
    ("clients/connected", r#"sterna_clients{state="connected"}"#),
    (
        "clients/disconnected",
        r#"sterna_clients{state="disconnected"}"#,
    ),
    ("clients/expired", "sterna_sessions_expired_total"),
    ("messages/received", "sterna_packets_received_total"),
    ("messages/sent", "sterna_packets_sent_total"),
    ("bytes/received", "sterna_received_bytes_total"),
    ("bytes/sent", "sterna_sent_bytes_total"),
    (
        "publish/messages/received",
        "sterna_messages_received_total",
    ),
    ("publish/messages/sent", "sterna_messages_sent_total"),
    ("publish/messages/dropped", "sterna_messages_dropped_total"),
    (
        "publish/bytes/received",
        "sterna_payload_received_bytes_total",
    ),
    ("publish/bytes/sent", "sterna_payload_sent_bytes_total"),
    ("subscriptions/count", "sterna_subscriptions"),
    ("shared_subscriptions/count", "sterna_shared_subscriptions"),
    ("load/sockets/1min", "sterna_connections_opened_total"),
    ("load/connections/1min", "sterna_connects_total"),
    ("load/publish/sent/1min", "sterna_messages_sent_total"),
    (
        "load/publish/received/1min",
        "sterna_messages_received_total",
    ),
    ("load/publish/dropped/1min", "sterna_messages_dropped_total"),
];

#[test]
fn metrics_and_sys_agree() {
    let mut config = config();
    config.sys.interval_s = 10;
    config.authorization = Authorization {
        rules: vec![Rule {
            effect: Effect::Deny,
            topics: vec!["secret/#".to_owned()],
            ..Rule::default()
        }],
        ..config.authorization
    };
    let mut broker = Broker::with(&config, 2);
    let kept = Connect {
        clean_start: false,
        ..plain(V5, "kept")
    };
    let expiry = crate::fixture::block(&[Property::SessionExpiryInterval(1000)]);
    let kept = Connect {
        properties: expiry.properties(),
        ..kept
    };
    let away = client_on(&mut broker, 1, &kept);
    broker.subscribe(away, V5, "t/#", QoS::AtLeastOnce);
    let member = client_on(&mut broker, 1, &plain(V5, "member"));
    broker.subscribe(member, V5, "$share/g/u", QoS::AtMostOnce);
    broker.cut(away);
    let publisher = client_on(&mut broker, 0, &plain(V5, "publisher"));
    for (topic, qos) in [
        ("t/1", QoS::AtLeastOnce),
        ("t/2", QoS::AtMostOnce), // its reader is away
        ("u", QoS::AtMostOnce),
        ("secret/1", QoS::AtLeastOnce),
        ("nobody", QoS::AtMostOnce),
    ] {
        broker.publish(publisher, V5, topic, "payload", qos);
    }
    let http = connect(&mut broker, HTTP, 1);
    let request = "POST /v1/topics/u HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
    broker.send(http, request.as_bytes());
    assert_eq!(answer(&mut broker, http).expect("an answer").status, 204);

    // The first shard sums the counts that the others leave at their own time: the second round is complete.
    let page = scrape(&mut broker);
    broker.advance(20_000);
    let again = scrape(&mut broker);
    for (_, name) in AGREE {
        let family = name.split('{').next().unwrap_or_default();
        assert_eq!(
            page.sum(family),
            again.sum(family),
            "{name} counts what nobody did"
        );
    }
    let sys = sys(&mut broker);
    let mut compared = 0;
    for (topic, name) in AGREE {
        let said = sys
            .get(topic)
            .unwrap_or_else(|| panic!("no {topic} in {sys:?}"));
        let counted = if name.contains('{') {
            page.value(name)
        } else {
            page.sum(name)
        };
        if topic.starts_with("load/") {
            // An average of the rate; there is one where something was counted.
            assert_eq!(*said > 0.0, counted > 0, "{topic} {said} {name} {counted}");
        } else {
            let difference = (said - counted as f64).abs();
            assert!(difference < 0.5, "{topic} {said} {name} {counted}");
        }
        compared += u32::from(counted > 0);
    }
    assert!(compared >= 17, "{compared} of them say anything");
    let of = |sample: &str| page.value(sample);
    assert_eq!(of(r#"sterna_messages_received_total{protocol="mqtt"}"#), 5);
    assert_eq!(of(r#"sterna_messages_received_total{protocol="http"}"#), 1);
    assert_eq!(of(r#"sterna_messages_sent_total{protocol="mqtt"}"#), 2);
    assert_eq!(of("sterna_messages_unmatched_total"), 1);
    assert_eq!(of("sterna_queued_messages"), 1);
    let dropped = |reason, protocol| {
        of(&format!(
            r#"sterna_messages_dropped_total{{reason="{reason}",protocol="{protocol}"}}"#
        ))
    };
    assert_eq!(dropped("away", "mqtt"), 1);
    assert_eq!(dropped("not_authorized", "mqtt"), 1);
    assert_eq!(page.sum("sterna_messages_dropped_total"), 2);
    // Two were on their way for as long as the turn, which is no time.
    let delay = "sterna_delivery_delay_seconds";
    assert_eq!(of(&format!(r#"{delay}_count{{protocol="mqtt"}}"#)), 2);
    assert_eq!(
        of(&format!(r#"{delay}_bucket{{le="0.001",protocol="mqtt"}}"#)),
        2
    );
    assert_eq!(page.sum("sterna_shard_messages_received_total"), 5);
}

#[test]
fn each_drop_has_its_reason() {
    let mut config = config();
    config.broker.maximum_queued_messages = 2;
    config.mqtt.legacy_session_expiry_s = 1000;
    let limits = sterna_broker::Limits {
        queued_messages: 2,
        ..sterna_broker::Limits::default()
    };
    let mut broker = Broker::restored(&config, 1, limits, || Box::new(sterna_broker::NoStore));
    let expiry = crate::fixture::block(&[
        Property::SessionExpiryInterval(1000),
        Property::MaximumPacketSize(100),
    ]);
    let small = Connect {
        clean_start: false,
        properties: expiry.properties(),
        ..plain(V5, "small")
    };
    let reader = client_on(&mut broker, 0, &small);
    broker.subscribe(reader, V5, "t/#", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "publisher");
    let large = "x".repeat(200);
    broker.publish(publisher, V5, "t/large", &large, QoS::AtLeastOnce);
    broker.cut(reader);
    for _ in 0..5 {
        broker.publish(publisher, V5, "t/1", "x", QoS::AtLeastOnce);
    }
    broker.publish(publisher, V5, "t/1", "x", QoS::AtMostOnce);
    let page = scrape(&mut broker);
    let mqtt = |reason: &str| {
        let name = "sterna_messages_dropped_total";
        page.value(&format!(r#"{name}{{reason="{reason}",protocol="mqtt"}}"#))
    };
    assert_eq!(mqtt("too_large"), 1);
    assert_eq!(mqtt("queue_full"), 3);
    assert_eq!(mqtt("away"), 1);
    assert_eq!(page.sum("sterna_messages_dropped_total"), 5);
    assert_eq!(page.value("sterna_queued_messages"), 2);
}

/// Those that the doors and clocks drop, beside those of full queues; the broker's own tests have the others.
#[test]
fn refused_and_late_messages_have_their_reasons() {
    let mut config = config();
    config.mqtt.legacy_session_expiry_s = 1000;
    let rules = "[[authorization.rule]]\neffect = 'deny'\ntopics = ['secret/#']\n\
                 [[authorization.limit]]\nmessages_per_s = 100\nexceeded = 'refuse'\n";
    let rules = sterna_server::config::parse("x", rules).expect("rules");
    config.authorization.rules = rules.authorization.rules;
    config.authorization.limits = rules.authorization.limits;
    let mut broker = Broker::with(&config, 1);
    let expiry = crate::fixture::block(&[Property::SessionExpiryInterval(1000)]);
    let lasting = Connect {
        clean_start: false,
        properties: expiry.properties(),
        ..plain(V5, "away")
    };
    let reader = client_on(&mut broker, 0, &lasting);
    broker.subscribe(reader, V5, "t/#", QoS::AtLeastOnce);
    broker.cut(reader);
    let publisher = broker.client(V5, "publisher");
    let soon = crate::fixture::block(&[Property::MessageExpiryInterval(1)]);
    let mut message = crate::fixture::publish("t/soon", "x", QoS::AtLeastOnce);
    message.properties = soon
        .publish_properties(sterna_mqtt::PropertyContext::Publish)
        .expect("properties of a message");
    broker.packet(publisher, V5, &Packet::Publish(message));
    broker.publish(publisher, V5, "secret/a", "x", QoS::AtLeastOnce);
    broker.advance(2_000);
    let reader = client_on(&mut broker, 0, &lasting);
    broker.told(reader, V5);
    for _ in 0..150 {
        broker.publish(publisher, V5, "other", "x", QoS::AtMostOnce);
    }
    let page = scrape(&mut broker);
    let mqtt = |reason: &str| {
        let name = "sterna_messages_dropped_total";
        page.value(&format!(r#"{name}{{reason="{reason}",protocol="mqtt"}}"#))
    };
    assert_eq!(mqtt("expired"), 1);
    assert_eq!(mqtt("not_authorized"), 1);
    assert_eq!(mqtt("rate_exceeded"), 50);
    assert_eq!(page.sum("sterna_messages_dropped_total"), 52);
}

#[test]
fn logins_that_fail_are_counted_by_door_and_reason() {
    let mut config = config();
    config.authentication.anonymous = Some(false);
    let mut broker = Broker::with(&config, 1);
    let mqtt = broker.open();
    broker.packet(mqtt, V5, &Packet::Connect(plain(V5, "a")));
    let http = connect(&mut broker, HTTP, 0);
    assert_eq!(get(&mut broker, http, "/v1/topics/a?last", "").status, 401);
    let amqp = connect(&mut broker, AMQP, 0);
    broker.send(amqp, b"AMQP\x03\x01\x00\x00");
    // sasl-init with PLAIN: where there are no users, a password proves nothing.
    broker.send(
        amqp,
        b"\x00\x00\x00\x1b\x02\x01\x00\x00\x00\x53\x41\xc0\x0e\x02\xa3\x05PLAIN\xa0\x04\x00u\x00p",
    );
    let page = scrape(&mut broker);
    for protocol in ["mqtt", "http", "amqp"] {
        let refused = format!(
            r#"sterna_logins_refused_total{{protocol="{protocol}",reason="no_credentials"}}"#
        );
        assert_eq!(page.value(&refused), 1, "{protocol}");
    }
    assert_eq!(page.sum("sterna_logins_refused_total"), 3);
    assert_eq!(page.sum("sterna_connects_total"), 0);
}

/// However many clients, users and topics there are, and whatever their names, the page has the same samples.
#[test]
fn the_page_does_not_depend_on_clients_and_their_names() {
    const CLIENTS: usize = 50_000;
    let mut config = config();
    config.authentication.anonymous = Some(true);
    let mut broker = Broker::with(&config, 2);
    let peer = connect(&mut broker, ADMIN, 0);
    let before = get(&mut broker, peer, "/metrics", "").content;
    let expiry = crate::fixture::block(&[Property::SessionExpiryInterval(1_000)]);
    for number in 0..CLIENTS {
        // Each with all that could end a label, a line or the page.
        let name = format!("x\"}} 1\\{number}{{a=\"# EOF");
        let connect = Connect {
            clean_start: false,
            properties: expiry.properties(),
            ..plain(V5, &name)
        };
        let client = client_on(&mut broker, number % 2, &connect);
        let topic = name.replace('#', "%");
        broker.subscribe(client, V5, &topic, QoS::AtMostOnce);
        broker.publish(client, V5, &topic, "x", QoS::AtMostOnce);
        broker.cut(client);
    }
    for number in 0..500 {
        // Users without an account, containers of AMQP, topics and fields of HTTP.
        let wrong = broker.open();
        let name = format!("x-{number}");
        let mut connect_as = plain(V5, &name);
        connect_as.user_name = Some(&name);
        connect_as.password = Some(b"guess");
        broker.packet(wrong, V5, &Packet::Connect(connect_as));
        let http = connect(&mut broker, HTTP, 1);
        let request = format!(
            "POST /v1/topics/{name} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {name}\r\n\
             Content-Length: 1\r\n\r\nx"
        );
        broker.send(http, request.as_bytes());
        broker.cut(http);
    }
    let after = get(&mut broker, peer, "/metrics", "").content;
    let names = |page: &str| -> Vec<String> {
        let samples = page.lines().map(|line| line.rsplit_once(' '));
        samples
            .map(|sample| sample.map_or("", |(name, _)| name).to_owned())
            .collect()
    };
    assert_eq!(names(&after), names(&before));
    let (samples, grown) = (after.lines().count(), after.len() - before.len());
    assert!(grown < 8 * samples, "{grown} bytes for {samples} numbers");
    let page = Page::parse(&after);
    assert_eq!(
        page.value(r#"sterna_clients{state="disconnected"}"#),
        CLIENTS as u64
    );
    assert_eq!(page.sum("sterna_subscriptions"), CLIENTS as u64);
}

/// Paths are surveyed while metrics are scraped, not before or long after.
#[test]
fn paths_are_surveyed_while_somebody_asks() {
    let mut broker = Broker::with(&config(), 1);
    let patient = Connect {
        keep_alive_s: 0,
        ..plain(V5, "a")
    };
    client_on(&mut broker, 0, &patient);
    broker.advance(50_000);
    let peer = connect(&mut broker, ADMIN, 0);
    let count = r#"sterna_client_round_trip_seconds_count{transport="tcp"}"#;
    assert_eq!(scrape_on(&mut broker, peer).value(count), 0);
    broker.advance(5_000);
    let looks = scrape_on(&mut broker, peer).value(count);
    assert!((5..=10).contains(&looks), "{looks} for two connections");
    broker.advance(3_600_000);
    let peer = connect(&mut broker, ADMIN, 0);
    let all = scrape_on(&mut broker, peer).value(count);
    assert!(
        (looks + 200..looks + 700).contains(&all),
        "{all}: it went on for five minutes"
    );
}
