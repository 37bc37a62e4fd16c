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

/// A refused message whose PUBREC was not sent is new on the next connection, and one that was taken is not.
///
/// [MQTT-4.3.3-9] [MQTT-4.3.3-10]
#[test]
fn refused_identifiers_end_with_the_connection() {
    let mut session = MqttSession::new();
    let (lane, control) = (Lane(4), Lane::CONTROL);
    for number in 1..=3 {
        assert_eq!(session.receive(lane, id(number), false), Received::New);
    }
    session.mark_refused(lane, id(1));
    session.mark_refused(lane, id(3));
    assert_eq!(session.receive(lane, id(1), true), Received::Pending);
    // Also where its lane is lost meanwhile.
    session.lane_closed(lane);
    assert_eq!(session.receive(control, id(1), true), Received::Pending);
    // As a server does.
    session.mark_all_received();
    session.begin_connection();
    session.check();
    assert_eq!(session.incoming_len(), 1);
    assert_eq!(session.receive(control, id(1), true), Received::New);
    assert_eq!(session.receive(control, id(2), true), Received::Repeated);
    assert_eq!(session.receive(control, id(3), true), Received::New);
}

/// What was written down restores what a restart must not lose.
///
/// [MQTT-3.1.2-23] [MQTT-4.4.0-1] [MQTT311-3.1.2-5] [MQTT311-4.4.0-1]
#[test]
fn a_restored_session() {
    let received = [9, 500, 9].map(id).into_iter();
    let handed_over = [(id(40), 4), (id(7), 5), (id(40), 6)].into_iter();
    let mut session = MqttSession::restored(received, handed_over);
    session.check();
    assert_eq!(session.incoming_len(), 2);
    assert_eq!(
        session.receive(Lane::CONTROL, id(9), false),
        Received::Repeated
    );
    session.begin_connection();
    // In the order of sending, whatever the identifiers are.
    for (packet_id, tag) in [(40, 4), (7, 5)] {
        let next = session.next_resend().expect("both are due");
        assert_eq!((next.packet_id, next.tag), (id(packet_id), tag));
        assert_eq!(next.stage, Stage::Release);
        session.mark_resent(next.packet_id);
    }
    assert_eq!(session.next_resend(), None);
    assert_eq!(session.in_flight(), 0);
    assert_eq!(session.pubcomp(id(7)), Ok(5));
    assert_eq!(session.pubcomp(id(40)), Ok(4));
    assert!(session.outgoing_len() == 0);
}

/// Identifiers that the caller chooses and those that are given out never meet, and both come again in
/// the order of sending.
///
/// [MQTT-2.2.1-3] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT311-2.3.1-4] [MQTT311-4.6.0-1]
#[test]
fn chosen_identifiers() {
    let mut session = MqttSession::new();
    let chosen =
        |session: &mut MqttSession, of, tag| session.allocate_as(id(of), tag, Stage::PublishQoS2);
    assert!(chosen(&mut session, 2, 1));
    assert!(!chosen(&mut session, 2, 9), "it is in use");
    assert_eq!(session.allocate(2, Stage::PublishQoS1), Some(id(1)));
    assert!(!chosen(&mut session, 1, 9), "it is in use");
    assert!(chosen(&mut session, 65_535, 3));
    assert_eq!(session.allocate(4, Stage::PublishQoS1), Some(id(3)));
    assert_eq!(session.in_flight(), 4);
    session.check();
    session.begin_connection();
    for tag in 1..=4 {
        let next = session.next_resend().expect("all are due");
        assert_eq!(next.tag, tag);
        session.mark_resent(next.packet_id);
        session.check();
    }
    assert_eq!(session.pubrec(id(2), ReasonCode::Success), Ok((1, true)));
    assert_eq!(session.pubrec(id(2), ReasonCode::Success), Ok((1, false)));
    assert_eq!(session.pubcomp(id(2)), Ok(1));
    assert!(chosen(&mut session, 2, 5), "it is free again");
    let tags: Vec<_> = session.unacknowledged().map(|o| o.tag).collect();
    assert_eq!(tags, [2, 3, 4, 5]);
    session.check();
}
