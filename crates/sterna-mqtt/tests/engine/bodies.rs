//! Bodies that take any bytes and check what must hold for all of them. The fuzz targets in
//! `fuzz/targets/mqtt_*.rs` and the tests of this crate call the same functions.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use sterna_mqtt::server::{
    Accept, Connection, Event, Features, Limits, OutgoingPublish, Refuse, Sent,
};
use sterna_mqtt::session::Stage;
use sterna_mqtt::{
    Frame, Framer, Lane, LaneWriter, MAX_PACKET_BYTES, MqttSession, Packet, PacketId,
    PropertyContext, QoS, ReasonCode, Scope, Version, topic,
};

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

/// Decodes every packet in the bytes for every version, reads all it offers and encodes it again.
pub(crate) fn decode(data: &[u8]) {
    for version in VERSIONS {
        let mut framer = Framer::new();
        let mut input = data;
        while let Ok(Some(frame)) = framer.next(&mut input, MAX_PACKET_BYTES) {
            assert!(
                frame.shared().is_none(),
                "a packet in the input is borrowed"
            );
            if let Ok(packet) = Packet::decode(&frame, version) {
                read_all(&packet);
                encode_again(&packet, version);
            }
        }
    }
}

/// Touches everything that a view offers.
fn read_all(packet: &Packet<'_>) {
    let properties = match packet {
        Packet::Connect(p) => {
            if let Some(will) = &p.will {
                assert_eq!(topic::check_name(will.topic), Ok(()));
                let _ = (
                    will.properties.will_delay_s(),
                    will.properties.message_expiry_s(),
                );
            }
            let _ = (
                p.session_expiry_s(),
                p.receive_maximum(),
                p.maximum_packet_bytes(),
            );
            let _ = (p.topic_alias_maximum(), p.wants_problem_information());
            p.properties
        }
        Packet::ConnAck(p) => {
            let _ = (p.receive_maximum(), p.maximum_qos(), p.assigned_client_id());
            p.properties
        }
        Packet::Publish(p) => {
            assert_eq!(p.packet_id.is_some(), p.qos.is_acknowledged());
            assert!(p.topic.is_empty() || topic::check_name(p.topic).is_ok());
            let forward = p.properties.forward();
            let mut kept = BytesMut::new();
            forward.copy_to(&mut kept);
            assert_eq!(kept.len(), forward.len());
            if let Some(whole) = forward.contiguous() {
                assert_eq!(whole, &kept[..]);
            }
            let _ = (p.properties.content_type(), p.properties.response_topic());
            let _ = (
                p.properties.correlation_data(),
                p.properties.is_utf8_payload(),
            );
            let _ = p.properties.subscription_identifiers().count();
            p.properties.all()
        }
        Packet::PubAck(p) | Packet::PubRec(p) | Packet::PubRel(p) | Packet::PubComp(p) => {
            p.properties
        }
        Packet::Subscribe(p) => {
            assert_eq!(p.filters().count(), p.len(), "every filter can be read");
            let _ = p.identifier();
            p.properties
        }
        Packet::SubAck(p) => {
            assert_eq!(p.codes().count(), p.codes().len(), "every code can be read");
            p.properties
        }
        Packet::Unsubscribe(p) => {
            assert_eq!(p.topics().count(), p.len(), "every filter can be read");
            p.properties
        }
        Packet::UnsubAck(p) => {
            assert_eq!(p.codes().count(), p.codes().len(), "every code can be read");
            p.properties
        }
        Packet::Disconnect(p) => p.properties,
        Packet::Auth(p) => p.properties,
        Packet::PingReq | Packet::PingResp => return,
    };
    // Every property can be read: as many bytes come out as went in.
    let mut block = sterna_mqtt::PropertyBuf::new();
    for property in properties {
        block.push(property).expect("was in a packet");
    }
    assert_eq!(block.len(), properties.raw().len());
    assert_eq!(
        properties.user_properties().count() > 0,
        properties.raw().contains(&38) && {
            properties
                .iter()
                .any(|p| matches!(p, sterna_mqtt::Property::UserProperty(..)))
        }
    );
}

/// What was decoded can be encoded, and decodes to the same.
fn encode_again(packet: &Packet<'_>, version: Version) {
    let version = if let Packet::Connect(connect) = packet {
        connect.version
    } else {
        version
    };
    let mut out = BytesMut::new();
    packet
        .encode(version, MAX_PACKET_BYTES, &mut out)
        .expect("a valid packet can be encoded");
    let mut input = &out[..];
    let mut framer = Framer::new();
    let frame = framer
        .next(&mut input, out.len())
        .expect("valid")
        .expect("whole");
    let again = Packet::decode(&frame, version).expect("valid");
    assert_eq!(&again, packet);
    assert!(input.is_empty());
}

/// However the bytes are cut, the same frames come out, and no more is buffered than arrived.
pub(crate) fn framer(data: &[u8]) {
    let Some((&seed, data)) = data.split_first() else {
        return;
    };
    let max_packet_bytes = 1 << (seed & 0x1f).min(20);
    let mut whole = Vec::new();
    let mut input = data;
    let mut one = Framer::new();
    let whole_error = loop {
        match one.next(&mut input, max_packet_bytes) {
            Ok(Some(frame)) => whole.push((frame.first_byte(), frame.body().to_vec())),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let mut pieces = VecDeque::from(whole);
    let mut many = Framer::new();
    let mut state = u32::from(seed) | 1;
    let mut rest = data;
    let mut error = None;
    'all: while !rest.is_empty() {
        // A small generator is enough: the bytes themselves come from the caller.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (mut piece, tail) = rest.split_at(rest.len().min(1 + (state >> 28) as usize));
        rest = tail;
        loop {
            match many.next(&mut piece, max_packet_bytes) {
                Ok(Some(frame)) => {
                    let expected = pieces
                        .pop_front()
                        .expect("no more frames than in one piece");
                    assert_eq!((frame.first_byte(), frame.body().to_vec()), expected);
                    if let Some(shared) = frame.shared() {
                        assert_eq!(&shared[..], frame.body());
                    }
                    assert_eq!(frame.range_of(frame.body()), Some(0..frame.body().len()));
                }
                Ok(None) => break,
                Err(found) => {
                    error = Some(found);
                    break 'all;
                }
            }
        }
        assert!(piece.is_empty());
        assert!(
            many.buffered_bytes() <= 2 * data.len() + 256,
            "grows with what arrives"
        );
    }
    assert_eq!(error, whole_error);
    assert!(pieces.is_empty());
    if error.is_none() && many.partial().is_none() {
        assert_eq!(many.buffered_bytes(), 0, "nothing is held between packets");
    }
}

/// Takes a script apart.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// One buffer per lane.
#[derive(Default)]
struct Buffers(BTreeMap<Lane, BytesMut>);

impl LaneWriter for Buffers {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.0.entry(lane).or_default()
    }
}

/// A server's connections of one session, driven by a script: bytes on lanes in any order, and
/// whatever a front door may do. Checks what must hold whatever the client sends.
pub(crate) fn server(data: &[u8]) {
    let mut script = Script(data);
    let Some(settings) = script.u8() else { return };
    let limits = Limits {
        max_packet_bytes: 4096,
        max_connect_bytes: 2048,
        receive_maximum: 4.try_into().expect("not zero"),
        max_incoming_ids: 8,
        send_window: 3.try_into().expect("not zero"),
        topic_alias_maximum: 3,
        max_alias_topic_bytes: 64,
        outgoing_topic_aliases: 2,
        maximum_qos: if settings & 1 == 0 {
            QoS::ExactlyOnce
        } else {
            QoS::AtLeastOnce
        },
        features: if settings & 2 == 0 {
            Features::ALL
        } else {
            Features::SHARED
        },
        isolate_lanes: settings & 4 != 0,
        share_payload_bytes: 16,
        ..Limits::default()
    };
    let mut front_door = FrontDoor::new(limits);
    while let Some(operation) = script.u8() {
        front_door.step(operation, &mut script);
    }
}

struct FrontDoor {
    limits: Limits,
    connection: Connection,
    session: MqttSession,
    framers: BTreeMap<Lane, Framer>,
    out: Buffers,
    now_ms: u64,
    tag: u64,
    connacks: usize,
    client_max_bytes: usize,
    /// Publications whose acknowledgement is due.
    unanswered: VecDeque<(Lane, PacketId, QoS)>,
}

impl FrontDoor {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            connection: Connection::new(limits, 0),
            session: MqttSession::new(),
            framers: BTreeMap::new(),
            out: Buffers::default(),
            now_ms: 0,
            tag: 0,
            connacks: 0,
            client_max_bytes: usize::MAX,
            unanswered: VecDeque::new(),
        }
    }

    fn step(&mut self, operation: u8, script: &mut Script<'_>) {
        let argument = script.u8().unwrap_or(0);
        match operation % 10 {
            0..=3 => {
                let lane = Lane([0, 4, 8, 2][usize::from(operation / 10 % 4)]);
                let bytes = script.bytes(usize::from(argument));
                self.input(lane, bytes);
            }
            4 => self.decide(argument),
            5 => self.answer(argument),
            6 => self.deliver(argument),
            7 => self.resend(argument),
            8 => {
                self.now_ms += u64::from(argument) * 100;
                if let Err(violation) = self.connection.on_timeout(self.now_ms) {
                    self.connection.violation(&violation, &mut self.out);
                }
            }
            _ => match argument % 4 {
                0 => {
                    let lane = Lane([4, 8, 2][usize::from(argument / 4 % 3)]);
                    self.framers.remove(&lane);
                    self.connection.lane_closed(Some(&mut self.session), lane);
                }
                1 => self.connection.disconnect(
                    ReasonCode::SessionTakenOver,
                    &Refuse {
                        reason_string: Some("taken over"),
                        server_reference: None,
                    },
                    &mut self.out,
                ),
                _ => self.reconnect(),
            },
        }
        self.check();
    }

    fn input(&mut self, lane: Lane, mut bytes: &[u8]) {
        let framer = self.framers.entry(lane).or_default();
        while self.connection.accepts_input(lane) {
            let was_closed = self.connection.is_closed();
            let written = self.out.0.values().map(BytesMut::len).sum::<usize>();
            let max_packet_bytes = self.connection.max_packet_bytes();
            let result = match framer.next(&mut bytes, max_packet_bytes) {
                Ok(Some(frame)) => self.connection.receive(
                    Some(&mut self.session),
                    lane,
                    &frame,
                    self.now_ms,
                    &mut self.out,
                ),
                Ok(None) => match framer.partial() {
                    Some(first) if !was_closed => {
                        match self.connection.check_partial(lane, first) {
                            Ok(()) => break,
                            Err(violation) => Err(violation),
                        }
                    }
                    _ => break,
                },
                Err(error) => Err(self.connection.decode_failed(lane, error)),
            };
            if was_closed {
                let now = self.out.0.values().map(BytesMut::len).sum::<usize>();
                assert_eq!(written, now, "nothing is written after the end");
                assert!(
                    !matches!(result, Ok(Some(_))),
                    "nothing is processed after the end"
                );
                break;
            }
            match result {
                Ok(Some(Event::Connect(connect))) => {
                    self.client_max_bytes = connect.maximum_packet_bytes() as usize;
                }
                Ok(Some(Event::Publish(publish))) => {
                    assert_eq!(topic::check_name(&publish.topic), Ok(()));
                    assert!(publish.qos <= self.limits.maximum_qos);
                    if let Some(packet_id) = publish.packet_id {
                        self.unanswered.push_back((lane, packet_id, publish.qos));
                    }
                }
                Ok(Some(Event::Subscribe(subscribe))) => {
                    let codes = vec![ReasonCode::GrantedQoS1; subscribe.len()];
                    self.connection
                        .suback(lane, subscribe.packet_id, &codes, &mut self.out);
                }
                Ok(Some(Event::Unsubscribe(unsubscribe))) => {
                    let codes = vec![ReasonCode::Success; unsubscribe.len()];
                    self.connection
                        .unsuback(lane, unsubscribe.packet_id, &codes, &mut self.out);
                }
                Ok(Some(Event::HandedOver {
                    packet_id, reason, ..
                })) => self
                    .connection
                    .pubrel(lane, packet_id, reason, &mut self.out),
                Ok(Some(Event::Released {
                    packet_id, reason, ..
                })) => {
                    self.connection
                        .pubcomp(lane, packet_id, reason, &mut self.out);
                }
                Ok(Some(Event::Repeated { packet_id })) => self.connection.pubrec(
                    &mut self.session,
                    lane,
                    packet_id,
                    ReasonCode::Success,
                    &mut self.out,
                ),
                Ok(_) => {}
                Err(violation) => {
                    let all = violation.scope == Scope::Connection;
                    assert_eq!(self.connection.is_closed(), all);
                    self.connection.violation(&violation, &mut self.out);
                    self.framers.remove(&lane);
                    break;
                }
            }
        }
    }

    /// Answers a CONNECT or AUTH, or tries to where none is due.
    fn decide(&mut self, argument: u8) {
        let out = &mut self.out;
        match argument % 8 {
            0 => {
                let refuse = Refuse {
                    reason_string: Some("no"),
                    server_reference: Some("b"),
                };
                self.connection
                    .refuse(ReasonCode::NotAuthorized, &refuse, out);
            }
            1 => self
                .connection
                .auth(ReasonCode::ContinueAuthentication, Some(b"data"), out),
            2 => self.connection.auth(ReasonCode::Success, None, out),
            _ => {
                let accept = Accept {
                    session_present: argument & 8 != 0,
                    assigned_client_id: Some("assigned"),
                    keep_alive_s: (argument & 16 != 0).then_some(7),
                    reason_string: Some("welcome"),
                    user_properties: &[("a", "b")],
                    ..Accept::default()
                };
                let before = self.connection.is_connected();
                let accepted = self
                    .connection
                    .accept(&mut self.session, &accept, self.now_ms, out);
                if accepted.is_ok() && !before && self.connection.is_connected() {
                    assert_eq!(self.session.incoming_in_flight(), 0);
                }
            }
        }
    }

    fn answer(&mut self, argument: u8) {
        let Some((lane, packet_id, qos)) = self.unanswered.pop_front() else {
            return;
        };
        let reason = if argument.is_multiple_of(4) {
            ReasonCode::QuotaExceeded
        } else {
            ReasonCode::Success
        };
        if qos == QoS::AtLeastOnce {
            self.connection
                .puback(lane, packet_id, reason, &mut self.out);
        } else {
            self.connection
                .pubrec(&mut self.session, lane, packet_id, reason, &mut self.out);
        }
    }

    fn delivery(&mut self, argument: u8) -> OutgoingPublish<'static> {
        self.tag += 1;
        OutgoingPublish {
            tag: self.tag,
            lane: Lane(if argument & 64 == 0 { 0 } else { 4 }),
            qos: [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(argument % 3)],
            packet_id: (argument & 1 != 0)
                .then(|| PacketId::MIN.saturating_add(u16::from(argument % 8))),
            dup: argument & 2 != 0,
            retain: argument & 4 != 0,
            topic: [&b"topic"[..], b"another/topic", b"a"][usize::from(argument / 8 % 3)],
            properties: b"\x03\x00\x01x",
            expires_at_ms: (argument & 32 != 0).then_some(self.now_ms + 1500),
            identifiers: if argument & 16 == 0 { &[] } else { &[1, 200] },
            payload: if argument & 128 == 0 {
                b"small"
            } else {
                b"large enough to be shared"
            },
        }
    }

    fn deliver(&mut self, argument: u8) {
        let delivery = self.delivery(argument);
        let could = self.connection.can_send(&self.session, delivery.qos);
        let out = self.out.buffer(delivery.lane);
        let before = out.len();
        match self
            .connection
            .publish(&mut self.session, &delivery, self.now_ms, out)
        {
            Ok(sent) => {
                assert!(could);
                self.append(&delivery, sent);
            }
            Err(_) => assert_eq!(self.out.buffer(delivery.lane).len(), before),
        }
    }

    fn resend(&mut self, argument: u8) {
        let out = self.out.buffer(Lane::CONTROL);
        let Some(resend) = self.connection.next_resend(&mut self.session, out) else {
            return;
        };
        if argument.is_multiple_of(4) {
            self.session.forget_outgoing(resend.packet_id);
            return;
        }
        let delivery = OutgoingPublish {
            lane: Lane::CONTROL,
            ..self.delivery(argument)
        };
        let out = self.out.buffer(Lane::CONTROL);
        let result = self.connection.resend(
            &mut self.session,
            resend.packet_id,
            &delivery,
            self.now_ms,
            out,
        );
        if let Ok(sent) = result {
            self.append(&delivery, sent);
        }
    }

    fn append(&mut self, delivery: &OutgoingPublish<'_>, sent: Sent) {
        if sent.append_payload {
            self.out
                .buffer(delivery.lane)
                .extend_from_slice(delivery.payload);
        }
    }

    fn reconnect(&mut self) {
        self.connection = Connection::new(self.limits, self.now_ms);
        self.framers.clear();
        self.out.0.clear();
        self.unanswered.clear();
        self.connacks = 0;
        self.client_max_bytes = usize::MAX;
    }

    /// What is sent is valid, in order and within the client's limits; what is kept is bounded.
    fn check(&mut self) {
        let version = self.connection.version();
        for (lane, buffer) in &mut self.out.0 {
            let written = buffer.split();
            let mut input = &written[..];
            let mut framer = Framer::new();
            while let Some(frame) = framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("what is sent can be cut")
            {
                self.connacks = check_sent(&frame, *lane, version, self.connacks);
                let refusal = frame.first_byte() == 0x20 && !self.connection.is_connected();
                assert!(refusal || frame.packet_bytes() <= self.client_max_bytes);
            }
            assert_eq!(framer.partial(), None, "whole packets only");
        }
        assert!(self.session.in_flight() <= usize::from(self.limits.send_window.get()));
        assert!(self.session.incoming_len() <= self.limits.max_incoming_ids as usize);
        assert!(self.session.span() <= 4 * 3 + 64);
        let ids: Vec<_> = self.session.unacknowledged().map(|o| o.packet_id).collect();
        let mut unique = ids.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(
            ids.len(),
            unique.len(),
            "identifiers are unique in the session"
        );
        assert_eq!(ids.len(), self.session.outgoing_len());
        self.session.check();
    }
}

/// Checks a packet that the server sent; returns the number of CONNACKs so far.
fn check_sent(frame: &Frame<'_>, lane: Lane, version: Version, connacks: usize) -> usize {
    let packet = Packet::decode(frame, version).expect("what is sent is valid");
    let packet_type = packet.packet_type();
    assert!(packet_type.is_sent_by_server(version));
    assert!(lane.is_bidirectional());
    match packet {
        Packet::ConnAck(_) => {
            assert_eq!(connacks, 0, "one CONNACK");
            assert!(lane.is_control());
            return 1;
        }
        Packet::Auth(_) => {}
        _ => assert_eq!(connacks, 1, "nothing but AUTH before the CONNACK"),
    }
    connacks
}

/// The outgoing half of a session against a list that is obviously right.
pub(crate) fn session(data: &[u8]) {
    let mut script = Script(data);
    let mut session = MqttSession::new();
    let mut model: Vec<(PacketId, u64, Stage)> = Vec::new();
    let mut tag = 0;
    while let Some(operation) = script.u8() {
        session.check();
        let argument = script.u8().unwrap_or(0);
        let picked = (!model.is_empty()).then(|| usize::from(argument) % model.len());
        match (operation % 9, picked) {
            (8, _) => {
                let packet_id = PacketId::MIN.saturating_add(u16::from(argument % 16));
                let is_free = !model.iter().any(|entry| entry.0 == packet_id);
                tag += 1;
                let taken = session.allocate_as(packet_id, tag, Stage::PublishQoS2);
                assert_eq!(taken, is_free);
                if taken {
                    model.push((packet_id, tag, Stage::PublishQoS2));
                }
            }
            (0..=2, _) => {
                let stage = [Stage::PublishQoS1, Stage::PublishQoS2, Stage::Subscribe]
                    [usize::from(operation % 3)];
                tag += 1;
                let packet_id = session.allocate(tag, stage).expect("far from full");
                assert!(!model.iter().any(|entry| entry.0 == packet_id));
                model.push((packet_id, tag, stage));
            }
            (3, Some(index)) => {
                let (packet_id, tag, stage) = model[index];
                let result = session.puback(packet_id);
                assert_eq!(result.is_ok(), stage == Stage::PublishQoS1);
                if result.is_ok() {
                    assert_eq!(result, Ok(tag));
                    model.remove(index);
                }
            }
            (4, Some(index)) => {
                let (packet_id, tag, stage) = model[index];
                match stage {
                    Stage::PublishQoS2 => {
                        let result = session.pubrec(packet_id, ReasonCode::Success);
                        assert_eq!(result, Ok((tag, true)));
                        model[index].2 = Stage::Release;
                    }
                    Stage::Release => {
                        let result = session.pubrec(packet_id, ReasonCode::Success);
                        assert_eq!(result, Ok((tag, false)));
                    }
                    _ => assert!(session.pubrec(packet_id, ReasonCode::Success).is_err()),
                }
            }
            (5, Some(index)) => {
                let (packet_id, tag, stage) = model[index];
                let result = session.pubcomp(packet_id);
                assert_eq!(result.is_ok(), stage == Stage::Release);
                if result.is_ok() {
                    assert_eq!(result, Ok(tag));
                    model.remove(index);
                }
            }
            (6, Some(index)) => {
                let (packet_id, tag, stage) = model.remove(index);
                let removed = session.forget_outgoing(packet_id).expect("in use");
                assert_eq!((removed.tag, removed.stage), (tag, stage));
            }
            (7, _) => {
                // A new connection: everything comes again, in order.
                session.begin_connection();
                model.retain(|entry| entry.2 != Stage::Subscribe);
                for &(packet_id, tag, stage) in &model {
                    let next = session.next_resend().expect("as many as are open");
                    assert_eq!(
                        (next.packet_id, next.tag, next.stage),
                        (packet_id, tag, stage)
                    );
                    session.mark_resent(packet_id);
                }
                assert_eq!(session.next_resend(), None);
            }
            _ => {}
        }
        assert!(
            session
                .unacknowledged()
                .map(|o| (o.packet_id, o.tag, o.stage))
                .eq(model.iter().copied()),
            "in the order of sending",
        );
        let published = |entry: &&(PacketId, u64, Stage)| entry.2 != Stage::Subscribe;
        assert!(session.in_flight() <= model.iter().filter(published).count());
    }
}

/// Topics: what is checked can be matched, and parsing never fails otherwise.
pub(crate) fn topics(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (filter, name) = text.split_once('\n').unwrap_or((text, "a/b"));
    let valid = topic::check_any_filter(filter).is_ok();
    if valid && topic::check_name(name).is_ok() {
        let parsed = topic::Filter::parse(filter).expect("valid");
        let matched = topic::matches(parsed.filter, name);
        if !topic::has_wildcard(parsed.filter) {
            assert_eq!(matched, parsed.filter == name);
        }
        assert!(matched || !matches!(parsed.filter, "#") || name.starts_with('$'));
    }
    let _ = topic::levels(filter);
    let _ = sterna_mqtt::Properties::parse(data, PropertyContext::ConnAck);
}
