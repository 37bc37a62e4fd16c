//! Frames and frame bodies: what is cut, how it is written.

use bytes::BytesMut;
use proptest::prelude::*;
use sterna_amqp::frame::{self, Unit};
use sterna_amqp::messaging::{
    DeliveryState, DeliveryStateBuf, LifetimePolicy, Modified, Outcome, Received, Rejected, Source,
    Target, TargetArchetype, TerminusDurability, TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{
    Attach, Begin, Close, Detach, Disposition, End, Error, Flow, Open, Performative,
    ReceiverSettleMode, Role, SenderSettleMode, Transfer,
};
use sterna_amqp::security::ProtocolHeader;
use sterna_amqp::transactions::{Coordinator, Declare, Discharge, Request, TransactionalState};
use sterna_amqp::types::{Encoded, MapWriter, Multiple, Value};
use sterna_amqp::{Condition, Framer};

use crate::harness::{attach, encode};

/// Every frame body with every field set.
fn bodies(with: impl Fn(&Performative<'_>)) {
    let mut out = BytesMut::new();
    let mut writer = MapWriter::new(&mut out);
    writer.push(&Value::Symbol("key"), &Value::Uint(300));
    writer.finish();
    let kept = Encoded::from_bytes(out.freeze()).unwrap();
    let Value::Map(map) = kept.value() else {
        panic!("not a map");
    };
    let lifetime = LifetimePolicy::DeleteOnNoLinks.encoded();
    let mut out = BytesMut::new();
    let mut writer = MapWriter::new(&mut out);
    writer.push(&Value::Symbol(LifetimePolicy::PROPERTY), &lifetime.value());
    writer.finish();
    let node = Encoded::from_bytes(out.freeze()).unwrap();
    let Value::Map(node) = node.value() else {
        panic!("not a map");
    };
    let error = Some(Error {
        info: Some(map),
        ..Error::new(Condition::NOT_FOUND, "where")
    });
    let one = Multiple::Slice(&["one"]);
    let two = Multiple::Slice(&["one", "two"]);
    with(&Performative::Open(Open {
        hostname: Some("host"),
        max_frame_size: 4_096,
        channel_max: 7,
        idle_time_out: Some(1_000),
        outgoing_locales: two,
        incoming_locales: two,
        offered_capabilities: one,
        desired_capabilities: two,
        properties: Some(map),
        ..Open::new("me")
    }));
    with(&Performative::Begin(Begin {
        remote_channel: Some(3),
        next_outgoing_id: u32::MAX,
        incoming_window: 10,
        outgoing_window: 0,
        handle_max: 9,
        offered_capabilities: two,
        desired_capabilities: Multiple::None,
        properties: Some(map),
    }));
    let source = Source {
        durable: TerminusDurability::UnsettledState,
        expiry_policy: TerminusExpiryPolicy::Never,
        timeout: 60,
        dynamic: true,
        dynamic_node_properties: Some(node),
        distribution_mode: Some(sterna_amqp::messaging::DistributionMode::Copy),
        filter: Some(map),
        default_outcome: Some(Outcome::Released),
        outcomes: two,
        capabilities: one,
        ..Source::new("from")
    };
    assert_eq!(
        source.lifetime_policy(),
        Ok(Some(LifetimePolicy::DeleteOnNoLinks))
    );
    let targets = [
        TargetArchetype::Target(Target {
            durable: TerminusDurability::Configuration,
            dynamic_node_properties: Some(node),
            ..Target::new("to")
        }),
        TargetArchetype::Coordinator(Coordinator { capabilities: one }),
    ];
    for target in targets {
        with(&Performative::Attach(Attach {
            snd_settle_mode: SenderSettleMode::Unsettled,
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(source.clone()),
            target: Some(target),
            unsettled: Some(map),
            incomplete_unsettled: true,
            max_message_size: Some(1 << 40),
            properties: Some(map),
            ..attach("name", 5, Role::Sender)
        }));
    }
    with(&Performative::Flow(Flow {
        next_incoming_id: Some(1),
        incoming_window: 2,
        next_outgoing_id: 3,
        outgoing_window: 4,
        handle: Some(5),
        delivery_count: Some(6),
        link_credit: Some(7),
        available: Some(8),
        drain: true,
        echo: true,
        properties: Some(map),
    }));
    let states = [
        DeliveryState::ACCEPTED,
        DeliveryState::RELEASED,
        DeliveryState::Outcome(Outcome::Rejected(Rejected {
            error: error.clone(),
        })),
        DeliveryState::Outcome(Outcome::Modified(Modified {
            delivery_failed: true,
            undeliverable_here: false,
            message_annotations: Some(map),
        })),
        DeliveryState::Received(Received {
            section_number: 3,
            section_offset: 1 << 33,
        }),
        DeliveryState::Declared(sterna_amqp::transactions::Declared { txn_id: b"txn" }),
        DeliveryState::Transactional(TransactionalState {
            txn_id: b"txn",
            outcome: Some(Outcome::Accepted),
        }),
    ];
    for state in states {
        assert_eq!(DeliveryStateBuf::new(&state).view(), state);
        with(&Performative::Transfer(Transfer {
            handle: 1,
            delivery_id: Some(2),
            delivery_tag: Some(b"tag"),
            message_format: Some(0),
            settled: Some(false),
            more: true,
            rcv_settle_mode: Some(ReceiverSettleMode::First),
            state: Some(state.clone()),
            resume: true,
            aborted: true,
            batchable: true,
        }));
        with(&Performative::Disposition(Disposition {
            role: Role::Receiver,
            first: 1,
            last: Some(2),
            settled: true,
            state: Some(state),
            batchable: true,
        }));
    }
    with(&Performative::Detach(Detach {
        handle: 1,
        closed: true,
        error: error.clone(),
    }));
    with(&Performative::End(End {
        error: error.clone(),
    }));
    with(&Performative::Close(Close { error }));
}

#[test]
fn frame_bodies_round_trip() {
    bodies(|body| {
        let mut out = BytesMut::new();
        body.encode(&mut out);
        let (decoded, rest) = Performative::decode(&out).unwrap();
        assert!(rest.is_empty());
        let mut again = BytesMut::new();
        decoded.encode(&mut again);
        assert_eq!(again, out, "{body:?}");
        // Cut off anywhere, it is an error and nothing else.
        for end in 0..out.len() {
            assert!(Performative::decode(&out[..end]).is_err());
        }
    });
}

#[test]
fn symbolic_descriptors_are_understood() {
    let mut body = BytesMut::from(&[0x00][..]);
    Value::Symbol("amqp:close:list").encode(&mut body);
    Value::List(sterna_amqp::types::List::EMPTY).encode(&mut body);
    let (decoded, _) = Performative::decode(&body).unwrap();
    assert_eq!(decoded, Performative::Close(Close { error: None }));
}

/// The bytes of a begin as other implementations write it.
#[test]
fn bytes_of_known_frames() {
    let begin = Performative::Begin(Begin {
        remote_channel: None,
        next_outgoing_id: 0,
        incoming_window: 2_048,
        outgoing_window: 255,
        handle_max: 255,
        offered_capabilities: Multiple::None,
        desired_capabilities: Multiple::None,
        properties: None,
    });
    #[rustfmt::skip]
    let expected = [
        0, 0, 0, 0x19, 2, 0, 0, 1, // 25 bytes, channel 1
        0x00, 0x53, 0x11, 0xc0, 0x0c, 5,
        0x40, 0x43, 0x70, 0, 0, 8, 0, 0x52, 0xff, 0x52, 0xff,
    ];
    assert_eq!(encode(1, &begin, &[])[..], expected);
    let accepted = Performative::Disposition(Disposition {
        role: Role::Receiver,
        first: 1,
        last: None,
        settled: true,
        state: Some(DeliveryState::ACCEPTED),
        batchable: false,
    });
    assert_eq!(
        encode(0, &accepted, &[])[8..],
        [
            0x00, 0x53, 0x15, 0xc0, 0x0a, 5, 0x41, 0x52, 1, 0x40, 0x41, 0x00, 0x53, 0x24, 0x45
        ]
    );
}

#[test]
fn requests_to_a_coordinator_round_trip() {
    for request in [
        Request::Declare(Declare { global_id: None }),
        Request::Discharge(Discharge {
            txn_id: b"txn",
            fail: true,
        }),
    ] {
        let mut out = BytesMut::new();
        request.encode(&mut out);
        assert_eq!(Request::decode(&out).unwrap(), request);
    }
    let other = [0x00, 0x53, 0x77, 0x40];
    assert_eq!(
        Request::decode(&other).unwrap_err().condition,
        Condition::NOT_IMPLEMENTED
    );
}

fn cut(bytes: &[u8], mut pieces: impl FnMut() -> usize) -> Vec<(u8, u16, Vec<u8>)> {
    let mut framer = Framer::new();
    let mut units = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (mut now, later) = rest.split_at(pieces().clamp(1, rest.len()));
        rest = later;
        while let Some(unit) = framer.next(&mut now, 4_096).unwrap() {
            units.push(match unit {
                Unit::Header(header) => {
                    let mut bytes = BytesMut::new();
                    header.encode(&mut bytes);
                    (255, 0, bytes.to_vec())
                }
                Unit::Frame(frame) => {
                    if let Some(shared) = frame.share(frame.body()) {
                        assert_eq!(shared, frame.body());
                    }
                    (frame.frame_type(), frame.channel(), frame.body().to_vec())
                }
            });
        }
        assert!(now.is_empty());
        assert!(framer.buffered_bytes() <= 4_096);
    }
    assert!(!framer.is_partial());
    units
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn frames_are_the_same_however_they_arrive(
        bodies in prop::collection::vec(
            (any::<u8>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..600), 0..4_u8),
            1..6,
        ),
        pieces in prop::collection::vec(1..300_usize, 1..20),
    ) {
        let mut bytes = BytesMut::new();
        ProtocolHeader::AMQP.encode(&mut bytes);
        let mut expected = vec![(255, 0, bytes.to_vec())];
        for (frame_type, channel, body, extension) in bodies {
            // With an extended header, which is passed over.
            let start = bytes.len();
            frame::encode(&mut bytes, frame_type, channel, |out| {
                out.extend_from_slice(&vec![0xee; usize::from(extension) * 4]);
                out.extend_from_slice(&body);
            });
            bytes[start + 4] += extension;
            expected.push((frame_type, channel, body));
        }
        prop_assert_eq!(&cut(&bytes, || usize::MAX), &expected);
        prop_assert_eq!(&cut(&bytes, || 1), &expected);
        let mut pieces = pieces.iter().cycle();
        prop_assert_eq!(&cut(&bytes, || *pieces.next().unwrap()), &expected);
    }
}

/// A claimed size takes no memory; bytes do.
#[test]
fn a_frame_takes_memory_as_it_arrives() {
    let mut framer = Framer::new();
    let mut input = &[0, 16, 0, 0, 2, 0, 0, 0][..];
    assert!(framer.next(&mut input, 1 << 24).unwrap().is_none());
    assert_eq!(framer.buffered_bytes(), 0);
    for byte in [7; 100] {
        let mut input = &[byte][..];
        assert!(framer.next(&mut input, 1 << 24).unwrap().is_none());
        assert!(framer.buffered_bytes() <= 256);
    }
    assert!(framer.is_partial());
}

#[test]
fn a_lane_that_cannot_be_cut_stays_so() {
    let mut framer = Framer::new();
    let mut input = &[0, 0, 0, 1, 2, 0, 0, 0][..];
    let error = framer.next(&mut input, 512).unwrap_err();
    assert_eq!(error.condition, Condition::FRAMING_ERROR);
    let mut input = &[0, 0, 0, 8, 2, 0, 0, 0][..];
    assert_eq!(framer.next(&mut input, 512).unwrap_err(), error);
}

/// Libraries such as fe2o3-amqp end the connection for an array without elements.
#[test]
fn no_symbols_are_null() {
    for none in [Multiple::None, Multiple::Slice(&[])] {
        let mut out = BytesMut::new();
        none.encode(&mut out);
        assert_eq!(&out[..], [0x40], "{none:?}");
    }
}
