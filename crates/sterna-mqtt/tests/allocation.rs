//! Where the engine allocates, and where it must not.

use bytes::BytesMut;
use counting::allocated;
use sterna_mqtt::packet::Connect;
use sterna_mqtt::server::{Accept, Connection, Event, Limits, OutgoingPublish};
use sterna_mqtt::{
    Framer, Lane, MAX_PACKET_BYTES, MqttSession, Packet, Properties, QoS, ReasonCode, Version,
};

/// Counts what the current thread allocates. An allocator cannot be written without `unsafe`.
mod counting {
    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
        static BYTES: Cell<usize> = const { Cell::new(0) };
    }

    struct Counting;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    fn count(bytes: usize) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + bytes);
    }

    // SAFETY: everything is left to the system's allocator; the counters do not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
            count(bytes);
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.realloc(pointer, layout, bytes) }
        }
    }

    /// Number of allocations and their bytes while `run` runs.
    pub(crate) fn allocated(run: impl FnOnce()) -> (usize, usize) {
        let before = (ALLOCATIONS.get(), BYTES.get());
        run();
        (ALLOCATIONS.get() - before.0, BYTES.get() - before.1)
    }
}

/// One packet of every type, as 5.0 has them.
const PACKETS: [&[u8]; 15] = [
    b"\x10\x19\x00\x04MQTT\x05\xc2\x00\x0a\x05\x11\x00\x00\x00\x05\x00\x01c\x00\x01u\x00\x01p",
    b"\x20\x06\x00\x00\x03\x21\x00\x10",
    b"\x32\x13\x00\x03a/b\x00\x01\x08\x26\x00\x01a\x00\x02bcxyz",
    b"\x40\x02\x00\x01",
    b"\x50\x04\x00\x01\x10\x00",
    b"\x62\x02\x00\x01",
    b"\x70\x03\x00\x01\x92",
    b"\x82\x0d\x00\x01\x02\x0b\x01\x00\x01a\x00\x00\x01#\x01",
    b"\x90\x05\x00\x01\x00\x00\x01",
    b"\xa2\x06\x00\x01\x00\x00\x01a",
    b"\xb0\x04\x00\x01\x00\x11",
    b"\xc0\x00",
    b"\xd0\x00",
    b"\xe0\x07\x00\x05\x11\x00\x00\x00\x01",
    b"\xf0\x06\x18\x04\x15\x00\x01m",
];

fn connected() -> (Connection, MqttSession, BytesMut) {
    let mut connection = Connection::new(Limits::default(), 0);
    let mut session = MqttSession::new();
    let mut out = BytesMut::with_capacity(4096);
    let connect = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_s: 0,
        client_id: "c",
        will: None,
        user_name: None,
        password: None,
        properties: Properties::EMPTY,
    };
    connection
        .handle(None, Lane::CONTROL, Packet::Connect(connect), 0, &mut out)
        .expect("a valid CONNECT");
    connection
        .accept(&mut session, &Accept::default(), 0, &mut out)
        .expect("fits");
    out.clear();
    (connection, session, out)
}

#[test]
fn decoding_allocates_nothing() {
    for bytes in PACKETS {
        let mut framer = Framer::new();
        let mut packet_type = None;
        let count = allocated(|| {
            let mut input = bytes;
            let frame = framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("valid")
                .expect("whole");
            let packet = Packet::decode(&frame, Version::V5).expect("valid");
            packet_type = Some(packet.packet_type());
            assert!(input.is_empty());
        });
        assert_eq!(count, (0, 0), "{packet_type:?}");
    }
}

#[test]
fn errors_allocate_nothing() {
    for bytes in PACKETS {
        for len in 2..bytes.len() {
            let cut = sterna_mqtt::Frame::new(bytes[0], &bytes[2..len]);
            let count = allocated(|| {
                let _ = Packet::decode(&cut, Version::V5);
            });
            assert_eq!(count, (0, 0));
        }
    }
}

#[test]
fn partial_packets_are_buffered_once_and_released() {
    let mut packet = b"\x30\x84\x80\x04\x00\x01t\x00".to_vec();
    packet.resize(packet.len() + 65_536, b'x');
    let mut framer = Framer::new();
    let (_, bytes) = allocated(|| {
        let mut found = 0;
        for piece in packet.chunks(1400) {
            let mut input = piece;
            while let Some(frame) = framer.next(&mut input, MAX_PACKET_BYTES).expect("valid") {
                // A slice of the body is kept without another copy.
                let shared = frame.shared().expect("put together");
                let Ok(Packet::Publish(publish)) = Packet::decode(&frame, Version::V5) else {
                    panic!("not a PUBLISH")
                };
                let kept = shared.slice_ref(publish.payload);
                assert_eq!(kept.len(), 65_536);
                found += 1;
            }
        }
        assert_eq!(found, 1);
    });
    assert!(
        bytes < 3 * packet.len(),
        "{bytes} bytes for {}",
        packet.len()
    );
    assert_eq!(framer.buffered_bytes(), 0);
}

/// Two allocations, of the state and of the body, in however many pieces a packet comes; none once it is done.
#[test]
fn a_partial_packet_allocates_not_for_each_piece() {
    let mut packet = b"\x30\xc8\x01\x00\x01t".to_vec();
    packet.resize(3 + 200, b'x');
    for piece_bytes in [1, 2, 50, 202] {
        let mut framer = Framer::new();
        for _ in 0..2 {
            let (count, _) = allocated(|| {
                let mut found = 0;
                for mut input in packet.chunks(piece_bytes) {
                    while let Some(frame) =
                        framer.next(&mut input, MAX_PACKET_BYTES).expect("valid")
                    {
                        assert_eq!(frame.body().len(), 200);
                        found += 1;
                    }
                }
                assert_eq!((found, framer.partial()), (1, None));
            });
            assert_eq!(count, 2, "pieces of {piece_bytes} bytes");
        }
        let (count, _) = allocated(|| {
            let frame = framer
                .next(&mut &packet[..], MAX_PACKET_BYTES)
                .expect("valid");
            assert_eq!(frame.expect("whole").body().len(), 200);
        });
        assert_eq!(count, 0, "a whole packet");
    }
}

#[test]
fn a_message_with_qos_0_allocates_nothing_either_way() {
    let (mut connection, mut session, mut out) = connected();
    let mut framer = Framer::new();
    let delivery = OutgoingPublish {
        tag: 1,
        lane: Lane::CONTROL,
        qos: QoS::AtMostOnce,
        packet_id: None,
        dup: false,
        retain: false,
        topic: b"some/topic",
        properties: b"\x03\x00\x01x",
        expires_at_ms: Some(5000),
        identifiers: &[1, 2],
        payload: &[b'x'; 500],
    };
    let count = allocated(|| {
        let mut input = &b"\x30\x05\x00\x01t\x00x"[..];
        let frame = framer
            .next(&mut input, MAX_PACKET_BYTES)
            .expect("valid")
            .expect("whole");
        let event = connection.receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out);
        assert!(matches!(event, Ok(Some(Event::Publish(_)))));
        connection
            .publish(&mut session, &delivery, 0, &mut out)
            .expect("sent");
    });
    assert_eq!(count, (0, 0));
}

#[test]
fn acknowledged_messages_allocate_nothing_in_the_long_run() {
    let (mut connection, mut session, mut out) = connected();
    let mut framer = Framer::new();
    let delivery = OutgoingPublish {
        tag: 1,
        lane: Lane::CONTROL,
        qos: QoS::AtLeastOnce,
        packet_id: None,
        dup: false,
        retain: false,
        topic: b"some/topic",
        properties: &[],
        expires_at_ms: None,
        identifiers: &[],
        payload: b"x",
    };
    let mut round = || {
        let mut input = &b"\x32\x07\x00\x01t\x00\x01\x00x"[..];
        let frame = framer
            .next(&mut input, MAX_PACKET_BYTES)
            .expect("valid")
            .expect("whole");
        let event = connection.receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out);
        assert!(matches!(event, Ok(Some(Event::Publish(_)))));
        let id = 1.try_into().expect("not zero");
        connection.puback(Lane::CONTROL, id, ReasonCode::Success, &mut out);
        let sent = connection
            .publish(&mut session, &delivery, 0, &mut out)
            .expect("sent");
        let id = sent.packet_id.expect("QoS 1").get().to_be_bytes();
        let ack = [0x40, 2, id[0], id[1]];
        let frame = framer
            .next(&mut &ack[..], MAX_PACKET_BYTES)
            .expect("valid")
            .expect("whole");
        let event = connection.receive(Some(&mut session), Lane::CONTROL, &frame, 0, &mut out);
        assert!(matches!(event, Ok(Some(Event::Delivered { tag: 1, .. }))));
        out.clear();
    };
    round();
    assert_eq!(allocated(|| (0..1000).for_each(|_| round())), (0, 0));
}

/// What an idle connection costs beside its buffers.
#[test]
fn idle_state_is_small() {
    assert!(size_of::<Connection>() <= 64, "{}", size_of::<Connection>());
    assert!(
        size_of::<MqttSession>() <= 96,
        "{}",
        size_of::<MqttSession>()
    );
    assert_eq!(size_of::<Framer>(), size_of::<usize>());
    let limits = std::sync::Arc::new(Limits::default());
    let (count, _) = allocated(|| {
        let connection = Connection::new(limits, 0);
        let session = MqttSession::new();
        let framer = Framer::new();
        assert!(!connection.is_closed() && session.is_empty() && framer.partial().is_none());
    });
    assert_eq!(count, 0);
}
