//! What fuzz targets and property tests do with any bytes.

use std::collections::BTreeSet;

use bytes::BytesMut;
use sterna_amqp::connection::{
    ClientOptions, Connection, Event, LinkId, ServerOptions, SessionId, Side,
};
use sterna_amqp::frame::{self, Unit};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Unsettled};
use sterna_amqp::messaging::{DeliveryState, MessageView, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{
    Attach, Begin, Close, Detach, Disposition, End, Error, Flow, Open, Performative,
    ReceiverSettleMode, Role, SenderSettleMode, Transfer,
};
use sterna_amqp::sasl::{Anonymous, SaslCode, SaslFrame};
use sterna_amqp::security::ProtocolHeader;
use sterna_amqp::selector::{Selector, SelectorLimits};
use sterna_amqp::types::{Multiple, Reader, Value};
use sterna_amqp::{Condition, Framer, Lane, LaneWriter, Limits, Scope};

/// Small, so that inputs reach it.
const MAX_FRAME_BYTES: usize = 4_096;

/// Values from any bytes: what is decoded can be walked, and encodes to what decodes to the same.
pub(crate) fn types(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    while let Ok(value) = reader.value() {
        assert!(reader.rest().len() < bytes.len());
        walk(&value);
        let mut encoded = BytesMut::new();
        value.encode(&mut encoded);
        let again = Value::decode(&encoded).expect("what was encoded can be decoded");
        let mut twice = BytesMut::new();
        again.encode(&mut twice);
        assert_eq!(encoded, twice);
        if reader.is_empty() {
            break;
        }
    }
}

fn walk(value: &Value<'_>) {
    match value {
        Value::List(list) => {
            assert_eq!(list.iter().count(), list.len());
            list.iter().for_each(|one| walk(&one));
        }
        Value::Map(map) => {
            assert_eq!(map.iter().count(), map.len());
            let _ = map.check_keys(|_| true);
            map.iter().for_each(|(key, value)| {
                walk(&key);
                walk(&value);
            });
        }
        Value::Array(array) => assert_eq!(array.iter().count(), array.len()),
        Value::Described(described) => {
            walk(&described.descriptor());
            walk(&described.value());
        }
        _ => {}
    }
}

/// The bytes of a lane: they mean the same however they are cut on the way, and frame bodies that
/// are decoded can be encoded.
pub(crate) fn frames(bytes: &[u8]) {
    let whole = cut(bytes, |rest| rest);
    assert_eq!(whole, cut(bytes, |_| 1), "in pieces it is something else");
    let mut step = 0;
    let mixed = cut(bytes, |_| {
        step = (step * 5 + 3) % 17;
        step + 1
    });
    assert_eq!(whole, mixed, "in pieces it is something else");
    for (frame_type, _, body) in &whole.0 {
        match *frame_type {
            frame::TYPE_AMQP => body_round_trips(body),
            frame::TYPE_SASL => {
                if let Ok(sasl) = SaslFrame::decode(body) {
                    let mut encoded = BytesMut::new();
                    sasl.encode(&mut encoded);
                    assert_eq!(SaslFrame::decode(&encoded), Ok(sasl));
                }
            }
            _ => {}
        }
    }
}

fn body_round_trips(body: &[u8]) {
    let Ok((performative, payload)) = Performative::decode(body) else {
        return;
    };
    let mut encoded = BytesMut::new();
    performative.encode(&mut encoded);
    let (_, rest) = Performative::decode(&encoded).expect("what was encoded can be decoded");
    assert!(rest.is_empty());
    if let Ok(message) = MessageView::parse(payload) {
        let _ = message.validate();
        let _ = message.body();
        let bare = &payload[message.bare()];
        assert!(MessageView::parse(bare).is_ok());
    }
}

type Units = (Vec<(u8, u16, Vec<u8>)>, Option<sterna_amqp::DecodeError>);

fn cut(bytes: &[u8], mut piece: impl FnMut(usize) -> usize) -> Units {
    let mut framer = Framer::new();
    let mut units = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (mut now, later) = rest.split_at(piece(rest.len()).min(rest.len()));
        rest = later;
        loop {
            match framer.next(&mut now, MAX_FRAME_BYTES) {
                Ok(Some(Unit::Header(header))) => {
                    let mut bytes = BytesMut::new();
                    header.encode(&mut bytes);
                    units.push((255, 0, bytes.to_vec()));
                }
                Ok(Some(Unit::Frame(frame))) => {
                    units.push((frame.frame_type(), frame.channel(), frame.body().to_vec()));
                }
                Ok(None) => {
                    assert!(now.is_empty(), "bytes were left lying");
                    break;
                }
                Err(error) => return (units, Some(error)),
            }
            assert!(framer.buffered_bytes() <= MAX_FRAME_BYTES);
        }
        if !framer.is_partial() {
            assert_eq!(framer.buffered_bytes(), 0, "an idle lane holds memory");
        }
    }
    (units, None)
}

/// A selector and, after a zero byte, a message.
pub(crate) fn selector(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let Ok(text) = std::str::from_utf8(parts.next().unwrap_or_default()) else {
        return;
    };
    let Ok(selector) = Selector::parse(text, &SelectorLimits::default()) else {
        return;
    };
    let payload = parts.next().unwrap_or_default();
    if let Ok(message) = MessageView::parse(payload) {
        let matches = selector.matches(&message);
        if let Ok(not) = Selector::parse(&format!("NOT ({text})"), &SelectorLimits::default()) {
            assert!(!(matches && not.matches(&message)), "true and false");
        }
    }
}

/// Bytes as choices.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn number(&mut self) -> u32 {
        match self.byte() {
            254 => u32::MAX,
            255 => 1 << 31,
            small => u32::from(small % 8),
        }
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn maybe(&mut self) -> Option<u32> {
        self.flag().then(|| self.number())
    }
}

#[derive(Default)]
struct Lanes([BytesMut; 3]);

impl LaneWriter for Lanes {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        &mut self.0[(lane.0 / 4) as usize % 3]
    }
}

/// What the caller has been told.
#[derive(Default)]
struct Told {
    links: BTreeSet<LinkId>,
    sessions: BTreeSet<SessionId>,
    unsettled: Vec<Unsettled>,
    received: Vec<(SessionId, u32)>,
}

fn limits() -> Limits {
    Limits {
        max_frame_bytes: 4_096,
        channel_max: 3,
        links_per_session: 3,
        unsettled_per_link: 4,
        max_message_bytes: 300,
        max_assembling_bytes: 600,
        incoming_window: 6,
        max_errant_frames: 5,
        ..Limits::default()
    }
}

/// Either end of a connection against a peer that sends what the bytes choose, and a caller that
/// does what they choose: whatever comes, every link and session that was surfaced ends once,
/// after the end of the connection there is nothing, and what is written are whole frames of the
/// size that the peer takes.
pub(crate) fn connection(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut out = Lanes::default();
    let start = choices.byte();
    let sasl = start & 2 != 0;
    let mut engine = if start & 1 == 0 {
        let options = ServerOptions {
            container_id: "server".to_owned(),
            mechanisms: if sasl {
                vec!["ANONYMOUS".to_owned()]
            } else {
                Vec::new()
            },
            require_sasl: start & 4 != 0,
        };
        Connection::server(&options, &limits(), 0)
    } else {
        let options = ClientOptions {
            open: Open::new("client"),
            mechanism: sasl.then(|| Box::new(Anonymous::default()) as _),
            pipelined: start & 4 != 0,
        };
        Connection::client(options, &limits(), 0, &mut out)
    };
    let mut framers = [Framer::new(), Framer::new(), Framer::new()];
    let mut told = Told::default();
    // So that not all of it ends at the first frame.
    if start & 8 != 0 {
        let mut bytes = BytesMut::new();
        ProtocolHeader::AMQP.encode(&mut bytes);
        write(&mut bytes, 0, &Performative::Open(Open::new("peer")), &[]);
        feed(
            &mut engine,
            &mut framers[0],
            Lane(0),
            &bytes,
            &mut out,
            &mut told,
        );
    }
    let mut now_ms = 0;
    while !choices.0.is_empty() {
        let lane = Lane(u64::from(choices.below(3)) * 4);
        if choices.flag() {
            let mut bytes = BytesMut::new();
            peer_sends(&mut choices, &mut bytes);
            let framer = &mut framers[(lane.0 / 4) as usize];
            feed(&mut engine, framer, lane, &bytes, &mut out, &mut told);
        } else {
            caller_does(&mut choices, &mut engine, lane, &mut out, &mut told);
            drain(&mut engine, &mut told);
        }
        if choices.below(16) == 0 {
            now_ms += u64::from(choices.byte()) * 1_000;
            let _ = engine.on_timeout(now_ms, &mut out);
            drain(&mut engine, &mut told);
        }
    }
    engine.transport_closed();
    drain(&mut engine, &mut told);
    assert!(
        told.links.is_empty(),
        "links without an end: {:?}",
        told.links
    );
    assert!(
        told.sessions.is_empty(),
        "sessions without an end: {:?}",
        told.sessions
    );
    let max = engine.peer_max_frame_bytes().max(512) as usize;
    for lane in &out.0 {
        let (units, error) = cut_all(lane);
        assert_eq!(error, None);
        for (frame_type, body) in units {
            assert!(body.len() + 8 <= max.max(4_096));
            if frame_type == frame::TYPE_AMQP && !body.is_empty() {
                Performative::decode(&body).expect("what is written can be read");
            }
        }
    }
}

fn cut_all(bytes: &[u8]) -> (Vec<(u8, Vec<u8>)>, Option<sterna_amqp::DecodeError>) {
    let mut framer = Framer::new();
    let mut units = Vec::new();
    let mut rest = bytes;
    loop {
        match framer.next(&mut rest, 1 << 24) {
            Ok(Some(Unit::Frame(frame))) => units.push((frame.frame_type(), frame.body().to_vec())),
            Ok(Some(Unit::Header(_))) => {}
            Ok(None) => {
                assert!(!framer.is_partial(), "half a frame was written");
                return (units, None);
            }
            Err(error) => return (units, Some(error)),
        }
    }
}

fn feed(
    engine: &mut Connection,
    framer: &mut Framer,
    lane: Lane,
    bytes: &[u8],
    out: &mut Lanes,
    told: &mut Told,
) {
    let mut input = bytes;
    loop {
        match framer.next(&mut input, engine.max_frame_bytes()) {
            Ok(Some(unit)) => {
                let over = engine.is_closed();
                let received = engine.receive(lane, &unit, 0, out);
                assert!(
                    !over || matches!(received, Ok(None)),
                    "something after the end"
                );
                match received {
                    Ok(Some(event)) => tell(&event, told),
                    Ok(None) => {}
                    Err(violation) => {
                        assert!(!violation.detail.is_empty());
                        if violation.scope == Scope::Connection {
                            assert!(!engine.is_open());
                        }
                    }
                }
                drain(engine, told);
            }
            Ok(None) => return,
            Err(error) => {
                engine.decode_failed(error, out);
                drain(engine, told);
                *framer = Framer::new();
                return;
            }
        }
    }
}

fn drain(engine: &mut Connection, told: &mut Told) {
    while let Some(event) = engine.next_event() {
        tell(&event, told);
    }
}

fn tell(event: &Event<'_>, told: &mut Told) {
    match event {
        Event::Begin { session, .. } => {
            assert!(told.sessions.insert(*session), "a session twice");
        }
        Event::Attach { link, .. } => assert!(told.links.insert(*link), "a link twice"),
        Event::Delivery(delivery) => {
            assert!(delivery.payload.len() <= 300);
            if !delivery.settled {
                told.received
                    .push((delivery.link.session, delivery.delivery_id));
            }
        }
        Event::Detached {
            link, unsettled, ..
        } => {
            // One whose attach was a violation was never surfaced.
            told.links.remove(link);
            told.unsettled.clone_from(unsettled);
        }
        Event::Ended { session, .. } => {
            assert!(told.sessions.remove(session), "the end of no session");
            assert!(
                !told.links.iter().any(|link| link.session == *session),
                "links end before their session"
            );
        }
        _ => {}
    }
}

fn write(out: &mut BytesMut, channel: u16, body: &Performative<'_>, payload: &[u8]) {
    frame::encode(out, frame::TYPE_AMQP, channel, |out| {
        body.encode(out);
        out.extend_from_slice(payload);
    });
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn role(choices: &mut Choices<'_>) -> Role {
    if choices.flag() {
        Role::Sender
    } else {
        Role::Receiver
    }
}

fn state(choices: &mut Choices<'_>) -> Option<DeliveryState<'static>> {
    match choices.below(4) {
        0 => Some(DeliveryState::ACCEPTED),
        1 => Some(DeliveryState::RELEASED),
        2 => Some(DeliveryState::Received(sterna_amqp::messaging::Received {
            section_number: choices.number(),
            section_offset: 1,
        })),
        _ => None,
    }
}

const TAGS: [&[u8]; 4] = [b"0", b"1", b"2", b""];

/// A frame of the peer: a proper one, as a rule, that may come at the wrong time.
fn peer_sends(choices: &mut Choices<'_>, out: &mut BytesMut) {
    let channel = u16::from(choices.below(5));
    let body = match choices.below(24) {
        0 => {
            let length = usize::from(choices.below(40)).min(choices.0.len());
            let (bytes, rest) = choices.0.split_at(length);
            choices.0 = rest;
            return out.extend_from_slice(bytes);
        }
        1 => return ProtocolHeader::AMQP.encode(out),
        2 => return ProtocolHeader::SASL.encode(out),
        3 => {
            let body = match choices.below(3) {
                0 => SaslFrame::Mechanisms(sterna_amqp::sasl::SaslMechanisms {
                    sasl_server_mechanisms: Multiple::Slice(&["ANONYMOUS"]),
                }),
                1 => SaslFrame::Init(sterna_amqp::sasl::SaslInit {
                    mechanism: sterna_amqp::types::Symbol("ANONYMOUS"),
                    initial_response: None,
                    hostname: None,
                }),
                _ => SaslFrame::Outcome(sterna_amqp::sasl::SaslOutcome {
                    code: SaslCode::Ok,
                    additional_data: None,
                }),
            };
            return frame::encode(out, frame::TYPE_SASL, 0, |out| body.encode(out));
        }
        4 => Performative::Open(Open {
            max_frame_size: 512 + u32::from(choices.byte()),
            channel_max: u16::from(choices.below(4)),
            ..Open::new("peer")
        }),
        5 | 6 => Performative::Begin(Begin {
            remote_channel: choices.flag().then(|| u16::from(choices.below(4))),
            next_outgoing_id: choices.number(),
            incoming_window: choices.number(),
            outgoing_window: choices.number(),
            handle_max: choices.number(),
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        }),
        7..=9 => Performative::Attach(Attach {
            name: NAMES[usize::from(choices.below(4))],
            handle: u32::from(choices.below(4)),
            role: role(choices),
            snd_settle_mode: [
                SenderSettleMode::Unsettled,
                SenderSettleMode::Settled,
                SenderSettleMode::Mixed,
            ][usize::from(choices.below(3))],
            rcv_settle_mode: ReceiverSettleMode::First,
            source: Some(Source::new("s")),
            target: Some(TargetArchetype::Target(Target::new("t"))),
            unsettled: None,
            incomplete_unsettled: choices.below(8) == 0,
            initial_delivery_count: choices.maybe(),
            max_message_size: choices.maybe().map(u64::from),
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        }),
        10..=12 => Performative::Flow(Flow {
            next_incoming_id: choices.maybe(),
            incoming_window: choices.number(),
            next_outgoing_id: choices.number(),
            outgoing_window: choices.number(),
            handle: choices.flag().then(|| u32::from(choices.below(4))),
            delivery_count: choices.maybe(),
            link_credit: choices.maybe(),
            available: None,
            drain: choices.flag(),
            echo: choices.flag(),
            properties: None,
        }),
        13..=17 => {
            let transfer = Performative::Transfer(Transfer {
                handle: u32::from(choices.below(4)),
                delivery_id: choices.maybe(),
                delivery_tag: choices.flag().then(|| TAGS[usize::from(choices.below(4))]),
                message_format: None,
                settled: choices.flag().then_some(true),
                more: choices.flag(),
                rcv_settle_mode: None,
                state: state(choices),
                resume: choices.below(8) == 0,
                aborted: choices.below(8) == 0,
                batchable: false,
            });
            let payload = vec![7; usize::from(choices.byte())];
            return write(out, channel, &transfer, &payload);
        }
        18 | 19 => Performative::Disposition(Disposition {
            role: role(choices),
            first: choices.number(),
            last: choices.maybe(),
            settled: choices.flag(),
            state: state(choices),
            batchable: false,
        }),
        20 | 21 => Performative::Detach(Detach {
            handle: u32::from(choices.below(4)),
            closed: choices.flag(),
            error: None,
        }),
        22 => Performative::End(End { error: None }),
        _ => Performative::Close(Close { error: None }),
    };
    write(out, channel, &body, &[]);
}

fn caller_does(
    choices: &mut Choices<'_>,
    engine: &mut Connection,
    lane: Lane,
    out: &mut Lanes,
    told: &mut Told,
) {
    let link = LinkId {
        session: SessionId(u16::from(choices.below(4))),
        handle: u32::from(choices.below(3)),
    };
    let link = told
        .links
        .iter()
        .nth(usize::from(choices.below(4)))
        .copied()
        .unwrap_or(link);
    let error = || Error::new(Condition::INTERNAL_ERROR, "chosen");
    let options = AttachOptions {
        source: Some(Source::new("s")),
        target: Some(TargetArchetype::Target(Target::new("t"))),
        unsettled: &told.unsettled.clone(),
        ..AttachOptions::default()
    };
    let result = match choices.below(20) {
        0 => engine.sasl_outcome(SaslCode::Ok, None, out),
        1 => engine.sasl_challenge(b"x", out),
        2 | 3 => engine.open(&Open::new("me"), out),
        4 => engine.begin(lane, out).map(|session| {
            assert!(told.sessions.insert(session), "a session twice");
        }),
        5 | 6 => {
            let name = NAMES[usize::from(choices.below(4))];
            let role = role(choices);
            engine
                .attach(link.session, name, role, &options, out)
                .map(|link| assert!(told.links.insert(link), "a link twice"))
        }
        7..=9 => engine.accept_attach(link, &options, out),
        10 => engine.refuse_attach(link, error(), out),
        11 => {
            let error = choices.flag().then(error);
            engine.detach(link, choices.flag(), error, out)
        }
        12 | 13 => engine.set_credit(link, choices.number(), choices.flag(), choices.flag(), out),
        14 => engine.drained(link, choices.number(), out),
        15 | 16 => {
            let can_send = engine.can_send(link);
            let transfer = OutgoingTransfer {
                settled: choices.flag(),
                resume: choices.below(8) == 0,
                ..OutgoingTransfer::new(b"tag", 1)
            };
            let payload = vec![8; usize::from(choices.byte()) * 8];
            let sent = engine.transfer(link, &transfer, &[&payload], choices.flag(), out);
            assert!(can_send || sent.is_err());
            sent.map(|_| ())
        }
        17 => match choices.below(3) {
            0 => engine
                .transfer_more(link, &[&[9; 700]], choices.flag(), out)
                .map(|_| ()),
            1 => engine.abort(link, out),
            _ => engine.abort_resumed(link, b"0", out),
        },
        18 => {
            let state = state(choices);
            let settled = choices.flag();
            match told.received.pop() {
                Some((session, id)) => {
                    engine.dispose(session, (id, id), state.as_ref(), settled, out)
                }
                None => engine.settle(link.session, (0, choices.number()), state.as_ref(), out),
            }
        }
        _ => match choices.below(8) {
            0 => engine.close(None, out),
            1 => {
                engine.lane_closed(lane);
                Ok(())
            }
            _ => engine.end(link.session, choices.flag().then(error), out),
        },
    };
    let _ = result;
    let _ = engine.side() == Side::Client;
}
