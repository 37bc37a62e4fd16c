//! The session for itself.

use sterna_mqtt::session::{AckError, Received, Stage};
use sterna_mqtt::{Lane, MqttSession, PacketId, ReasonCode};

fn id(id: u16) -> PacketId {
    id.try_into().expect("not zero")
}

/// [MQTT-2.2.1-3] [MQTT-2.2.1-4] [MQTT311-2.3.1-1] [MQTT311-2.3.1-2]
#[test]
fn all_identifiers_can_be_in_use() {
    let mut session = MqttSession::new();
    for expected in 1..=65_535 {
        assert_eq!(
            session.allocate(u64::from(expected), Stage::PublishQoS1),
            Some(id(expected))
        );
    }
    assert_eq!(session.allocate(0, Stage::PublishQoS1), None);
    assert_eq!(session.puback(id(700)), Ok(700));
    assert_eq!(session.puback(id(700)), Err(AckError::Unknown));
    // The order of sending is kept, so the oldest has to go before another can come.
    assert_eq!(session.allocate(0, Stage::PublishQoS1), None);
    assert_eq!(session.puback(id(1)), Ok(1));
    assert_eq!(session.allocate(8, Stage::PublishQoS2), Some(id(1)));
    assert_eq!(
        session.unacknowledged().last().map(|last| last.tag),
        Some(8)
    );
}

/// Requests of a client share the identifiers and end with the connection.
#[test]
fn requests_end_with_the_connection() {
    let mut session = MqttSession::new();
    let publish = session.allocate(1, Stage::PublishQoS1).expect("free");
    let subscribe = session.allocate(2, Stage::Subscribe).expect("free");
    let unsubscribe = session.allocate(3, Stage::Unsubscribe).expect("free");
    assert_eq!(session.in_flight(), 1, "requests do not count");
    assert_eq!(session.puback(subscribe), Err(AckError::Unexpected));
    assert_eq!(session.answered(subscribe, Stage::Subscribe), Ok(2));
    session.begin_connection();
    assert_eq!(
        session.answered(unsubscribe, Stage::Unsubscribe),
        Err(AckError::Unknown)
    );
    assert_eq!(
        session.next_resend().map(|next| next.packet_id),
        Some(publish)
    );
}

/// [MQTT-4.3.3-9] [MQTT-4.3.3-10] [MQTT-4.3.3-12]
#[test]
fn received_identifiers() {
    let mut session = MqttSession::new();
    let lane = Lane::CONTROL;
    assert_eq!(session.receive(lane, id(1), false), Received::New);
    assert_eq!(session.receive(lane, id(1), true), Received::Pending);
    session.mark_received(lane, id(1));
    assert_eq!(session.receive(lane, id(1), false), Received::Repeated);
    assert_eq!(session.release(lane, id(1)), Some(true));
    assert_eq!(session.release(lane, id(1)), None);
    assert_eq!(session.receive(lane, id(1), true), Received::New);
    session.forget_received(lane, id(1));
    assert_eq!(session.receive(lane, id(1), false), Received::New);
    assert_eq!(
        session.release(lane, id(1)),
        Some(false),
        "no PUBREC was sent"
    );
}

/// A snapshot restores what a restart must not lose.
///
/// [MQTT-3.1.2-23] [MQTT311-3.1.2-5]
#[test]
fn snapshots() {
    let mut session = MqttSession::new();
    let mut snapshot = Vec::new();
    session.snapshot(&mut snapshot);
    assert_eq!(snapshot.len(), 5);
    assert_eq!(MqttSession::restore(&snapshot), Ok(MqttSession::new()));
    for tag in 0..6 {
        let stage = if tag % 2 == 0 {
            Stage::PublishQoS1
        } else {
            Stage::PublishQoS2
        };
        session.allocate(tag << 40, stage);
    }
    assert_eq!(session.puback(id(1)), Ok(0));
    assert_eq!(session.puback(id(3)), Ok(2 << 40));
    assert_eq!(
        session.pubrec(id(4), ReasonCode::Success),
        Ok((3 << 40, true))
    );
    session.allocate(0, Stage::Subscribe);
    session.receive(Lane(4), id(9), false);
    session.receive(Lane(8), id(9), false);
    session.receive(Lane(8), id(500), false);
    snapshot.clear();
    session.snapshot(&mut snapshot);
    let mut restored = MqttSession::restore(&snapshot).expect("a snapshot");
    session.begin_connection();
    assert_eq!(restored, session);
    assert_eq!(restored.incoming_len(), 2);
    let stages: Vec<_> = restored
        .unacknowledged()
        .map(|o| (o.packet_id.get(), o.stage))
        .collect();
    assert_eq!(
        stages,
        [
            (2, Stage::PublishQoS2),
            (4, Stage::Release),
            (5, Stage::PublishQoS1),
            (6, Stage::PublishQoS2),
        ]
    );
    assert_eq!(
        restored.receive(Lane::CONTROL, id(9), false),
        Received::Repeated
    );
    // New identifiers go on where they were.
    assert_eq!(restored.allocate(1, Stage::PublishQoS1), Some(id(8)));
    for len in 0..snapshot.len() - 2 {
        let cut = MqttSession::restore(&snapshot[..len]);
        assert!(
            cut.is_err() || cut.is_ok_and(|cut| cut.incoming_len() < 2),
            "{len}"
        );
    }
    assert!(MqttSession::restore(b"\x02\0\0\0\0").is_err());
    assert!(MqttSession::restore(b"\x01\xff\xff\0\0").is_err());
    assert!(MqttSession::restore(b"\x01\0\0\0\0\0\0").is_err());
    assert!(MqttSession::restore(b"\x01\0\0\0\x01\x09\0\0\0\0\0\0\0\0").is_err());
}
