//! SUBSCRIBE, UNSUBSCRIBE and their answers.

use sterna_mqtt::packet::{RetainHandling, SubscribeOptions};
use sterna_mqtt::server::{Features, Limits};
use sterna_mqtt::{Lane, QoS, ReasonCode, Version};

use super::harness::{ALL, BOTH, Seen, Server};

/// [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.2-1]
/// [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT-2.2.1-6] [MQTT311-2.3.1-7] [MQTT311-3.8.4-1]
/// [MQTT311-3.8.4-2] [MQTT311-3.8.4-4] [MQTT311-3.8.4-5]
#[test]
fn suback_answers_every_filter_in_order() {
    for version in ALL {
        let mut server = Server::connected(version);
        let seen = server.send("82 { 1234 P s\"a\" 00 s\"b/+\" 01 s\"#\" 02 s\"d\" 01 }");
        let expected = [("a", 0), ("b/+", 1), ("#", 2), ("d", 1)].map(|(filter, qos)| {
            let qos = QoS::from_u8(qos).expect("a QoS");
            (filter.to_owned(), SubscribeOptions::new(qos))
        });
        assert_eq!(seen, [Seen::Subscribe(0x1234, expected.to_vec())]);
        let codes = [
            ReasonCode::granted(QoS::AtMostOnce),
            ReasonCode::granted(QoS::AtLeastOnce),
            ReasonCode::granted(QoS::ExactlyOnce),
            ReasonCode::NotAuthorized,
        ];
        let id = 0x1234.try_into().expect("not zero");
        server
            .connection
            .suback(Lane::CONTROL, id, &codes, &mut server.out);
        let refused = if version == Version::V5 { "87" } else { "80" };
        server.expect(&format!("90 {{ 1234 P 00 01 02 {refused} }}"));
    }
}

/// The options of 5.0.
#[test]
fn options() {
    let mut server = Server::connected(Version::V5);
    let seen = server.send("82 { 0001 { 0b ac02 } s\"a\" 2d s\"b\" 16 s\"c\" 08 }");
    let options = |qos, no_local, retain_as_published, retain_handling| SubscribeOptions {
        qos,
        no_local,
        retain_as_published,
        retain_handling,
    };
    let expected = vec![
        (
            "a".to_owned(),
            options(QoS::AtLeastOnce, true, true, RetainHandling::DoNotSend),
        ),
        (
            "b".to_owned(),
            options(QoS::ExactlyOnce, true, false, RetainHandling::SendIfNew),
        ),
        (
            "c".to_owned(),
            options(QoS::AtMostOnce, false, true, RetainHandling::Send),
        ),
    ];
    assert_eq!(seen, [Seen::Subscribe(1, expected)]);
}

/// [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.2-1] [MQTT-3.11.3-1] [MQTT-3.11.3-2]
/// [MQTT-2.2.1-6] [MQTT311-2.3.1-7] [MQTT311-3.10.4-4] [MQTT311-3.10.4-5]
#[test]
fn unsuback_answers_every_filter_in_order() {
    for version in BOTH {
        let mut server = Server::connected(version);
        let seen = server.send("a2 { 1234 P s\"a\" s\"b/+\" }");
        assert_eq!(
            seen,
            [Seen::Unsubscribe(
                0x1234,
                vec!["a".to_owned(), "b/+".to_owned()]
            )]
        );
        let codes = [ReasonCode::Success, ReasonCode::NoSubscriptionExisted];
        let id = 0x1234.try_into().expect("not zero");
        server
            .connection
            .unsuback(Lane::CONTROL, id, &codes, &mut server.out);
        let codes = if version == Version::V5 { "00 11" } else { "" };
        server.expect(&format!("b0 {{ 1234 P {codes} }}"));
    }
}

/// [MQTT-3.2.2-9]
#[test]
fn any_qos_may_be_asked_for() {
    let limits = Limits {
        maximum_qos: QoS::AtMostOnce,
        ..Limits::default()
    };
    let mut server = Server::connected_with(Version::V5, limits, "CONNECT");
    assert_eq!(server.send("82 { 0001 00 s\"a\" 02 s\"b\" 01 }").len(), 1);
}

/// [MQTT311-3.8.3-2] [MQTT-3.2.2-21]
#[test]
fn wildcards_can_be_unavailable() {
    let limits = Limits {
        features: Features::ALL
            .without(Features::WILDCARDS)
            .without(Features::SHARED),
        ..Limits::default()
    };
    for version in BOTH {
        let mut server = Server::connected_with(version, limits, "CONNECT");
        assert_eq!(server.send("82 { 0001 P s\"a\" 00 }").len(), 1);
        let violation = server.violate("82 { 0002 P s\"a/+\" 00 }");
        assert_eq!(
            violation.reason,
            ReasonCode::WildcardSubscriptionsNotSupported
        );
    }
    // Before 5.0 there are no shared subscriptions, so there is nothing to refuse.
    let mut server = Server::connected_with(Version::V311, limits, "CONNECT");
    assert_eq!(server.send("82 { 0001 s\"$share/n/a\" 00 }").len(), 1);
}
