//! The session for itself.

use sterna_mqtt::session::{AckError, Content, Received, ReceivedId, Stage};
use sterna_mqtt::{Lane, MqttSession, PacketId, PublishProperties, ReasonCode};

fn id(id: u16) -> PacketId {
    id.try_into().expect("not zero")
}

fn content(payload: &str) -> Content {
    let none = PublishProperties::EMPTY;
    Content::of("t", false, &none, payload.as_bytes())
}

/// Receives a message on a lane; true for a new one.
fn is_new(session: &mut MqttSession, lane: Lane, number: u16, dup: bool, payload: &str) -> bool {
    let received = session.receive(lane, id(number), dup, content(payload));
    session.check();
    matches!(received, Received::New(_))
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

/// A client that knows nothing of its session releases an identifier on control. What an earlier connection left there
/// or on another lane is then forgotten, so that an equal message is a new one on any lane.
#[test]
fn control_releases_what_an_earlier_connection_left_on_any_lane() {
    for left_on in [Lane::CONTROL, Lane(2), Lane(4)] {
        for comes_on in [Lane::CONTROL, Lane(4)] {
            let mut session = MqttSession::new();
            assert!(is_new(&mut session, left_on, 1, false, "17"));
            session.begin_connection();
            session.mark_all_received();
            let released = session.release(Lane::CONTROL, id(1));
            assert!(matches!(released, Some((_, true))), "{released:?}");
            assert!(is_new(&mut session, comes_on, 1, false, "17"));
        }
    }
}

/// On one lane, an identifier in use is the same message, whatever it carries.
///
/// [MQTT-4.3.3-9] [MQTT-4.3.3-10] [MQTT-4.3.3-12]
#[test]
fn received_identifiers() {
    let mut session = MqttSession::new();
    let lane = Lane::CONTROL;
    assert!(is_new(&mut session, lane, 1, false, "a"));
    let again = |session: &mut MqttSession, dup, payload| {
        session.receive(lane, id(1), dup, content(payload))
    };
    assert_eq!(again(&mut session, true, "a"), Received::Pending);
    session.mark_received(lane, id(1));
    assert_eq!(again(&mut session, false, "b"), Received::Repeated);
    session.begin_connection();
    assert_eq!(again(&mut session, false, "b"), Received::Repeated);
    let released = session.release(lane, id(1));
    assert!(matches!(released, Some((_, true))));
    assert_eq!(session.release(lane, id(1)), None);
    assert!(is_new(&mut session, lane, 1, true, "a"));
    session.forget_received(lane, id(1));
    assert!(is_new(&mut session, lane, 1, false, "a"));
    let released = session.release(lane, id(1));
    assert!(matches!(released, Some((_, false))), "no PUBREC was sent");
}

/// A refused message whose PUBREC was not sent is new on the next connection, and one that was taken is not.
///
/// [MQTT-4.3.3-9] [MQTT-4.3.3-10]
#[test]
fn refused_identifiers_end_with_the_connection() {
    let mut session = MqttSession::new();
    let (lane, control) = (Lane(4), Lane::CONTROL);
    for number in 1..=3 {
        assert!(is_new(&mut session, lane, number, false, "a"));
    }
    session.mark_refused(lane, id(1));
    session.mark_refused(lane, id(3));
    let again = |session: &mut MqttSession, lane| session.receive(lane, id(1), true, content("a"));
    assert_eq!(again(&mut session, lane), Received::Pending);
    // Also where its lane is lost meanwhile.
    session.lane_closed(lane);
    assert_eq!(again(&mut session, control), Received::Pending);
    // As a server does.
    session.mark_all_received();
    session.begin_connection();
    session.check();
    assert_eq!(session.incoming_len(), 1);
    assert!(is_new(&mut session, control, 1, true, "a"));
    assert!(!is_new(&mut session, control, 2, true, "a"));
    assert!(is_new(&mut session, control, 3, true, "a"));
}

/// Of a lost connection and of lost lanes: the same identifier with another content is another message.
#[test]
fn lost_lanes_are_told_apart_by_content() {
    let (control, four, eight) = (Lane::CONTROL, Lane(4), Lane(8));
    let received = |lanes: &[(Lane, &str)]| {
        let mut session = MqttSession::new();
        for &(lane, payload) in lanes {
            assert!(is_new(&mut session, lane, 1, false, payload));
            session.mark_received(lane, id(1));
        }
        session
    };
    // A new message comes before the repetition.
    let mut session = received(&[(four, "B4")]);
    session.begin_connection();
    assert!(is_new(&mut session, eight, 1, false, "B8"));
    assert!(!is_new(&mut session, four, 1, true, "B4"));
    // Both had it, and both are repeated, on whatever lanes.
    for (first, second) in [(four, eight), (eight, four), (control, eight)] {
        let mut session = received(&[(four, "C4"), (eight, "C8")]);
        session.begin_connection();
        assert!(!is_new(&mut session, first, 1, true, "C4"));
        assert!(!is_new(&mut session, second, 1, true, "C8"));
        for lane in [first, second] {
            assert!(session.release(lane, id(1)).is_some());
        }
        assert!(session.is_empty());
    }
    // Within a connection.
    let mut session = received(&[(four, "X")]);
    session.lane_closed(four);
    assert!(is_new(&mut session, control, 1, true, "Y"));
    session.mark_received(control, id(1));
    assert!(session.release(control, id(1)).is_some());
    assert!(!is_new(&mut session, control, 1, true, "X"));
    // The repetition overtakes the end of its lane.
    let mut session = received(&[(four, "X")]);
    assert!(!is_new(&mut session, control, 1, true, "X"));
    session.lane_closed(four);
    assert_eq!(session.incoming_in_flight(), 1);
}

/// PUBREL names an identifier alone.
#[test]
fn release_chooses_among_equal_identifiers() {
    let mut session = MqttSession::new();
    for (lane, payload) in [(0, "0"), (4, "4"), (8, "8"), (12, "12")] {
        assert!(is_new(&mut session, Lane(lane), 1, false, payload));
    }
    session.mark_all_received();
    session.begin_connection();
    assert!(!is_new(&mut session, Lane(16), 1, true, "4"));
    for (lane, first) in [
        // Its own, an equally numbered one, one of a data stream, at last that of the control stream.
        (16, "4"),
        (12, "12"),
        (20, "8"),
        (20, "0"),
    ] {
        let (released, _) = session.release(Lane(lane), id(1)).expect("one is left");
        assert_eq!(released.content, content(first), "on {lane}");
    }
    assert_eq!(session.release(Lane(4), id(1)), None);
}

/// Clients that forget a stream's messages with it use their identifiers again.
#[test]
fn forgotten_messages_are_displaced() {
    let mut session = MqttSession::new();
    for (lane, payload) in [(4, "a"), (8, "b"), (12, "c")] {
        assert!(is_new(&mut session, Lane(lane), 1, false, payload));
        session.mark_received(Lane(lane), id(1));
        session.lane_closed(Lane(lane));
    }
    assert_eq!(
        (session.incoming_len(), session.incoming_in_flight()),
        (3, 0)
    );
    assert!(is_new(&mut session, Lane(16), 1, false, "d"));
    let displaced = session.displace_received(id(1)).expect("the oldest");
    assert_eq!((displaced.lane, displaced.content), (4, content("a")));
    assert_eq!(session.displace_received(id(2)), None);
    session.check();
}

/// Neither the alias nor how the rest is cut matters; all that subscribers see does.
#[test]
fn a_digest_is_of_what_subscribers_see() {
    let properties = |bytes: &'static [u8]| {
        let context = sterna_mqtt::PropertyContext::Publish;
        PublishProperties::parse(bytes, context).expect("valid")
    };
    // Content Type "a", Correlation Data "b"; between them an alias or an expiry.
    let plain = properties(&[0x03, 0, 1, b'a', 0x09, 0, 1, b'b']);
    let aliased = properties(&[0x03, 0, 1, b'a', 0x23, 0, 7, 0x09, 0, 1, b'b']);
    let expiring = properties(&[0x03, 0, 1, b'a', 0x02, 0, 0, 0, 9, 0x09, 0, 1, b'b']);
    let of = |properties: &PublishProperties<'_>| Content::of("t", false, properties, b"payload");
    assert_eq!(of(&plain), of(&aliased));
    assert_eq!(of(&plain), of(&expiring));
    let none = PublishProperties::EMPTY;
    let others = [
        of(&plain),
        of(&none),
        Content::of("t", true, &none, b"payload"),
        Content::of("u", false, &none, b"payload"),
        Content::of("tp", false, &none, b"ayload"),
        Content::of("t", false, &none, b"payloae"),
        Content::of("t", false, &none, b"payload\0"),
        Content::of("t", false, &none, b""),
        Content::of("", false, &none, b""),
    ];
    for (index, one) in others.iter().enumerate() {
        assert!(!others[..index].contains(one), "{index}");
        assert_eq!(Content::from_number(one.number()), *one);
    }
    // It is in records: every process has to find the same.
    assert_eq!(of(&plain).number().get(), 9_932_955_020_571_256_535);
}

/// What was written down restores what a restart must not lose.
///
/// [MQTT-3.1.2-23] [MQTT-4.4.0-1] [MQTT311-3.1.2-5] [MQTT311-4.4.0-1]
#[test]
fn a_restored_session() {
    let received = |number, lane, content| ReceivedId {
        packet_id: id(number),
        lane,
        content,
    };
    let of_control_stream = received(9, 0, content("c"));
    let of_data_stream = received(500, 4, content("a"));
    let all = [of_control_stream, of_data_stream, of_control_stream].into_iter();
    let handed_over = [(id(40), 4), (id(7), 5), (id(40), 6)].into_iter();
    let mut session = MqttSession::restored(all, handed_over);
    session.check();
    assert_eq!(session.incoming_len(), 2);
    assert!(!is_new(&mut session, Lane::CONTROL, 9, false, "c"));
    assert!(is_new(&mut session, Lane(8), 500, false, "b"));
    assert!(!is_new(&mut session, Lane(12), 500, true, "a"));
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

/// A lane that the peer does not read any more: what was sent there comes again before anything new, in the order of
/// sending, and does not count as in flight until then.
#[test]
fn a_lost_lane_is_sent_again() {
    let lane = Lane(4);
    for chosen in [None, Some(id(2)), Some(id(900))] {
        let mut session = MqttSession::new();
        let mut ids = Vec::new();
        for tag in 1..=7 {
            let stage = if tag == 3 {
                Stage::PublishQoS1
            } else {
                Stage::PublishQoS2
            };
            // Chosen identifiers are in the same order.
            let packet_id = match chosen.filter(|_| tag == 2) {
                Some(chosen) => {
                    assert!(session.allocate_as(chosen, tag, stage));
                    chosen
                }
                None => session.allocate(tag, stage).expect("free"),
            };
            if tag != 6 {
                session.sent_on(packet_id, lane);
            }
            ids.push(packet_id);
        }
        // The first is done. The fourth was received, and PUBREL was sent on the lane; that of the fifth was not.
        session.pubrec(ids[0], ReasonCode::Success).expect("sent");
        session.pubcomp(ids[0]).expect("released");
        session.pubrec(ids[3], ReasonCode::Success).expect("sent");
        session.pubrec(ids[4], ReasonCode::Success).expect("sent");
        session.sent_on(ids[4], Lane::CONTROL);
        for _ in 0..2 {
            let mut released = Vec::new();
            session.resend_lane(lane, |packet_id| released.push(packet_id));
            session.check();
            assert!(released.is_empty() || released == [ids[3]]);
        }
        assert_eq!(
            session.in_flight(),
            3,
            "two of the lane are released, and one is elsewhere"
        );
        // One is acknowledged all the same.
        assert_eq!(session.puback(ids[2]), Ok(3));
        let mut again = Vec::new();
        while let Some(next) = session.next_resend() {
            again.push(next.tag);
            session.mark_resent(next.packet_id);
            session.check();
        }
        assert_eq!(again, [2, 7]);
        session.resend_lane(lane, |_| unreachable!("everything is on the control lane"));
        assert!(!session.has_resends());
        assert_eq!(session.in_flight(), 5);
    }
}

/// Chosen identifiers that follow closely cost no more than those that are given out; others are apart, also
/// where one message is not acknowledged. [MQTT-2.2.1-4] [MQTT-4.6.0-1]
#[test]
fn chosen_identifiers_in_ascending_order() {
    let mut session = MqttSession::new();
    // Behind the last follows the first.
    let ids = [65_530, 65_535, 3, 4, 900, 5, 901, 6, 65_534];
    for (tag, of) in (1..).zip(ids) {
        assert!(session.allocate_as(id(of), tag, Stage::PublishQoS1));
        session.check();
    }
    assert_eq!(session.span(), 12, "from 65,530 to 6");
    assert!(!session.allocate_as(id(900), 10, Stage::PublishQoS1));
    session.begin_connection();
    for of in ids {
        let next = session.next_resend().expect("all are due");
        assert_eq!(next.packet_id, id(of));
        session.mark_resent(id(of));
        session.check();
    }
    for of in [3, 900, 65_534] {
        assert!(session.puback(id(of)).is_ok());
        session.check();
    }
    // The first is never acknowledged.
    for of in (7..65_530).filter(|of| *of != 901) {
        assert!(session.allocate_as(id(of), 10, Stage::PublishQoS1));
        assert_eq!(session.puback(id(of)), Ok(10));
    }
    session.check();
    assert!(session.span() < 200, "{}", session.span());
    assert!(!session.allocate_as(id(65_530), 11, Stage::PublishQoS1));
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
    assert_eq!(session.allocate(2, Stage::PublishQoS1), Some(id(3)));
    assert!(!chosen(&mut session, 3, 9), "it is in use");
    assert!(chosen(&mut session, 65_535, 3));
    assert_eq!(session.allocate(4, Stage::PublishQoS1), Some(id(4)));
    let free = [1, 2, 65_535].map(|from| session.free_from(id(from)));
    assert_eq!(free, [1, 5, 1].map(|free| Some(id(free))));
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
