//! Either end of a connection driven by a script, for a fuzz target and a property test.

use std::collections::BTreeSet;

use bytes::BytesMut;
use sterna_amqp::connection::{
    ClientOptions, Connection, Event, LinkId, ServerOptions, SessionId, Side,
};
use sterna_amqp::frame::{self, Unit};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Unsettled};
use sterna_amqp::messaging::{DeliveryState, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{
    Attach, Begin, Close, Detach, Disposition, End, Error, Flow, Open, Performative,
    ReceiverSettleMode, Role, SenderSettleMode, Transfer,
};
use sterna_amqp::sasl::{Anonymous, SaslCode, SaslFrame};
use sterna_amqp::security::ProtocolHeader;
use sterna_amqp::types::{Multiple, Value};
use sterna_amqp::{Condition, Framer, Lane, LaneWriter, Limits, Scope};

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

    /// Zero, unless one choice in `parts` says otherwise.
    fn rarely(&mut self, parts: u8, bound: u8) -> u8 {
        if self.below(parts) == 1 {
            self.below(bound)
        } else {
            0
        }
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

/// What a peer knows of itself.
#[derive(Default)]
struct Peer {
    next_delivery_id: u32,
    /// It is in the middle of a delivery.
    sending: bool,
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
        get_going(&mut engine, &mut framers[0], &mut out, &mut told);
    }
    let mut peer = Peer::default();
    let mut now_ms = 0;
    while !choices.0.is_empty() {
        let lane = Lane(u64::from(choices.rarely(8, 3)) * 4);
        if choices.flag() {
            let mut bytes = BytesMut::new();
            peer_sends(&mut choices, &mut peer, &mut bytes);
            // A proper caller waits; an improper one is told off.
            if engine.accepts_input(lane) || choices.below(64) == 0 {
                let framer = &mut framers[(lane.0 / 4) as usize];
                feed(&mut engine, framer, lane, &bytes, &mut out, &mut told);
            }
        } else {
            caller_does(&mut choices, &mut engine, lane, &mut out, &mut told);
            drain(&mut engine, &mut told);
        }
        if choices.byte() == 77 {
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
            assert!(body.len() + 8 <= max, "a frame that the peer does not take");
            if frame_type == frame::TYPE_AMQP && !body.is_empty() {
                Performative::decode(&body).expect("what is written can be read");
            }
        }
    }
}

/// Opens, begins a session and attaches a link in each direction, which the caller accepts.
fn get_going(engine: &mut Connection, framer: &mut Framer, out: &mut Lanes, told: &mut Told) {
    let is_client = engine.side() == Side::Client;
    let mut bytes = BytesMut::new();
    ProtocolHeader::AMQP.encode(&mut bytes);
    write(&mut bytes, 0, &Performative::Open(Open::new("peer")), &[]);
    feed(engine, framer, Lane(0), &bytes, out, told);
    let _ = engine.open(&Open::new("me"), out);
    let session = if is_client {
        engine.begin(Lane(0), out).ok()
    } else {
        None
    };
    told.sessions.extend(session);
    let answered = session.map(|session| session.0);
    let mut bytes = BytesMut::new();
    let begin = Performative::Begin(Begin {
        remote_channel: answered,
        next_outgoing_id: 0,
        incoming_window: 20,
        outgoing_window: 20,
        handle_max: 5,
        offered_capabilities: Multiple::None,
        desired_capabilities: Multiple::None,
        properties: None,
    });
    write(&mut bytes, 0, &begin, &[]);
    for (handle, role) in [(0, Role::Sender), (1, Role::Receiver)] {
        let attach = Performative::Attach(Attach {
            name: NAMES[handle],
            handle: handle as u32,
            role,
            snd_settle_mode: SenderSettleMode::Mixed,
            rcv_settle_mode: ReceiverSettleMode::First,
            source: None,
            target: None,
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: Some(0),
            max_message_size: None,
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        });
        write(&mut bytes, 0, &attach, &[]);
    }
    let flow = Performative::Flow(Flow {
        next_incoming_id: Some(0),
        incoming_window: 20,
        next_outgoing_id: 0,
        outgoing_window: 20,
        handle: Some(1),
        delivery_count: Some(0),
        link_credit: Some(9),
        available: None,
        drain: false,
        echo: false,
        properties: None,
    });
    write(&mut bytes, 0, &flow, &[]);
    if engine.accepts_input(Lane(0)) {
        feed(engine, framer, Lane(0), &bytes, out, told);
    }
    for link in told.links.clone() {
        let _ = engine.accept_attach(link, &AttachOptions::default(), out);
        let _ = engine.set_credit(link, 9, false, false, out);
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
fn peer_sends(choices: &mut Choices<'_>, peer: &mut Peer, out: &mut BytesMut) {
    let channel = u16::from(choices.rarely(60, 5));
    // {"0": accepted, "1": null}
    let Ok(Value::Map(unsettled)) = Value::decode(&[
        0xc1, 12, 4, 0xa0, 1, b'0', 0x00, 0x53, 0x24, 0x45, 0xa0, 1, b'1', 0x40,
    ]) else {
        return;
    };
    let body = match choices.below(240) {
        // What ends a connection comes now and then.
        0..=6 | 238..=239 if choices.below(8) != 1 => return frame::encode_empty(out),
        0 | 1 => {
            let length = usize::from(choices.below(40)).min(choices.0.len());
            let (bytes, rest) = choices.0.split_at(length);
            choices.0 = rest;
            return out.extend_from_slice(bytes);
        }
        2 => return ProtocolHeader::AMQP.encode(out),
        3 => return ProtocolHeader::SASL.encode(out),
        4 | 5 => {
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
        6 => Performative::Open(Open {
            max_frame_size: 512 + u32::from(choices.byte()),
            channel_max: u16::from(choices.below(4)),
            ..Open::new("peer")
        }),
        7..=19 => {
            let begin = Performative::Begin(Begin {
                remote_channel: (choices.below(16) == 1).then(|| u16::from(choices.below(4))),
                next_outgoing_id: choices.number(),
                incoming_window: choices.number(),
                outgoing_window: choices.number(),
                handle_max: choices.number(),
                offered_capabilities: Multiple::None,
                desired_capabilities: Multiple::None,
                properties: None,
            });
            return write(out, 1 + u16::from(choices.rarely(4, 4)), &begin, &[]);
        }
        20..=49 => Performative::Attach(Attach {
            name: NAMES[usize::from(choices.below(4))],
            handle: 2 - u32::from(choices.rarely(4, 3)) + u32::from(choices.rarely(60, 3)),
            role: role(choices),
            snd_settle_mode: [
                SenderSettleMode::Unsettled,
                SenderSettleMode::Settled,
                SenderSettleMode::Mixed,
            ][usize::from(choices.below(3))],
            rcv_settle_mode: ReceiverSettleMode::First,
            source: Some(Source::new("s")),
            target: Some(TargetArchetype::Target(Target::new("t"))),
            unsettled: match choices.below(3) {
                0 => Some(unsettled),
                _ => None,
            },
            incomplete_unsettled: choices.below(8) == 0,
            initial_delivery_count: Some(choices.number()),
            max_message_size: choices.maybe().map(u64::from),
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        }),
        50..=89 => Performative::Flow(Flow {
            next_incoming_id: Some(u32::from(choices.rarely(24, 4))),
            incoming_window: choices.number().saturating_add(5),
            next_outgoing_id: choices.number(),
            outgoing_window: choices.number(),
            handle: (choices.below(60) != 1)
                .then(|| u32::from(choices.flag()) + u32::from(choices.rarely(16, 3))),
            delivery_count: (choices.below(4) == 1).then(|| choices.number()),
            link_credit: choices.maybe(),
            available: None,
            drain: choices.flag(),
            echo: choices.flag(),
            properties: None,
        }),
        90..=169 => {
            let more = choices.below(3) == 1;
            let first = !peer.sending || choices.below(32) == 1;
            if first {
                peer.next_delivery_id += 1 + u32::from(choices.rarely(16, 3));
            }
            let aborted = choices.below(16) == 1;
            peer.sending = more && !aborted;
            let transfer = Performative::Transfer(Transfer {
                handle: u32::from(choices.rarely(24, 4)),
                delivery_id: first.then_some(peer.next_delivery_id),
                delivery_tag: first.then(|| TAGS[usize::from(choices.below(4))]),
                message_format: None,
                settled: choices.flag().then_some(true),
                more,
                rcv_settle_mode: None,
                state: state(choices),
                resume: choices.below(4) == 1,
                aborted,
                batchable: false,
            });
            let payload = vec![7; usize::from(choices.below(160))];
            return write(out, channel, &transfer, &payload);
        }
        170..=204 | 215..=230 => Performative::Disposition(Disposition {
            role: role(choices),
            first: choices.number(),
            last: (choices.below(4) == 1).then(|| choices.number().wrapping_add(8)),
            settled: choices.flag(),
            state: state(choices),
            batchable: false,
        }),
        205..=214 => Performative::Detach(Detach {
            handle: u32::from(choices.below(3)),
            closed: choices.flag(),
            error: None,
        }),
        231..=237 => Performative::End(End { error: None }),
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
    let result = match choices.below(22) {
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
                ..OutgoingTransfer::new(TAGS[usize::from(choices.below(4))], 1)
            };
            let payload = vec![8; usize::from(choices.byte()) * 8];
            let sent = engine.transfer(link, &transfer, &[&payload], choices.flag(), out);
            // What is settled at once is not limited by what is unsettled.
            assert!(can_send || transfer.settled || sent.is_err());
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
        19..=20 => engine.settle(link.session, (choices.number(), 8), None, out),
        _ => match choices.below(16) {
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
