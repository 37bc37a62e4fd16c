//! Where the engine allocates, and where it must not: nothing that a peer claims is believed before
//! its bytes have come.
#![allow(clippy::unwrap_used)] // it is all test

use bytes::{Buf as _, BytesMut};
use counting::{allocated, held};
use proptest::prelude::*;
use sterna_amqp::connection::{ClientOptions, LinkId, ServerOptions};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
use sterna_amqp::messaging::{
    DeliveryState, DeliveryStateBuf, MessageView, MessageWriter, Properties, Received,
};
use sterna_amqp::performatives::{Open, Performative, Role};
use sterna_amqp::types::{Reader, Value};
use sterna_amqp::{Connection, Event, Framer, Lane, Limits};

/// Counts what the current thread allocates. An allocator cannot be written without `unsafe`.
mod counting {
    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
        static BYTES: Cell<usize> = const { Cell::new(0) };
        static HELD: Cell<isize> = const { Cell::new(0) };
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
            HELD.set(HELD.get() + layout.size().cast_signed());
            // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            HELD.set(HELD.get() - layout.size().cast_signed());
            // SAFETY: the pointer came from `System` with this layout.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
            count(bytes);
            HELD.set(HELD.get() + bytes.cast_signed() - layout.size().cast_signed());
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

    /// Bytes that are held after `run` beyond those before it.
    pub(crate) fn held(run: impl FnOnce()) -> isize {
        let before = HELD.get();
        run();
        HELD.get() - before
    }
}

fn walk(value: &Value<'_>) {
    match value {
        Value::List(list) => list.iter().for_each(|one| walk(&one)),
        Value::Map(map) => map.iter().for_each(|(key, value)| {
            walk(&key);
            walk(&value);
        }),
        Value::Array(array) => array.iter().for_each(|one| walk(&one)),
        Value::Described(described) => {
            walk(&described.descriptor());
            walk(&described.value());
        }
        _ => {}
    }
}

/// Bytes that begin like values often do.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0x00, 0x40, 0x45, 0x50, 0x53, 0x14, 0x75, 0xa0, 0xa1, 0xa3, 0xb0, 0xc0, 0xc1, 0xd0,
            0xd1, 0xe0, 0xf0, 1, 2, 3, 4, 0xff,
        ]),
    ];
    prop::collection::vec(byte, 0..100)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn decoding_allocates_nothing(bytes in bytes()) {
        let (allocations, _) = allocated(|| {
            let mut reader = Reader::new(&bytes);
            while let Ok(value) = reader.value() {
                walk(&value);
                if reader.is_empty() {
                    break;
                }
            }
            let _ = Performative::decode(&bytes);
            if let Ok(message) = MessageView::parse(&bytes) {
                let _ = message.properties();
                let _ = message.body();
            }
        });
        prop_assert_eq!(allocations, 0);
    }

    #[test]
    fn a_lane_takes_memory_in_proportion_to_its_bytes(
        bytes in bytes(),
        claimed in 8..0x0100_0000_u32,
        piece in 1..40_usize,
    ) {
        let whole = [&claimed.to_be_bytes()[..], &[2, 0, 0, 0], &bytes].concat();
        let (_, allocated_bytes) = allocated(|| {
            let mut framer = Framer::new();
            for mut input in whole.chunks(piece) {
                while let Ok(Some(_)) = framer.next(&mut input, 1 << 30) {}
            }
        });
        prop_assert!(allocated_bytes <= 256 + 4 * whole.len(), "{allocated_bytes}");
    }
}

/// Moves what was written to the other end; the events are handled by `handle`.
fn pass(
    from: &mut BytesMut,
    to: &mut Connection,
    framer: &mut Framer,
    out: &mut BytesMut,
    mut handle: impl FnMut(&mut Connection, &mut BytesMut, Event<'_>),
) {
    let mut input = &from[..];
    while let Some(unit) = framer.next(&mut input, 65_536).unwrap() {
        if let Some(event) = to.receive(Lane::CONTROL, &unit, 0, out).unwrap() {
            handle(to, out, event);
        }
        while let Some(event) = to.next_event() {
            handle(to, out, event);
        }
    }
    from.advance(from.len());
    from.clear();
}

fn agree(connection: &mut Connection, out: &mut BytesMut, event: Event<'_>) {
    match event {
        Event::Open(_) => {
            let _ = connection.open(&Open::new("server"), out);
        }
        Event::Attach { link, .. } => {
            let options = AttachOptions::default();
            connection.accept_attach(link, &options, out).unwrap();
            connection
                .set_credit(link, 1 << 30, false, false, out)
                .unwrap();
        }
        Event::Delivery(delivery) if !delivery.settled => {
            let range = (delivery.delivery_id, delivery.delivery_id);
            let accepted = DeliveryState::ACCEPTED;
            connection
                .dispose(delivery.link.session, range, Some(&accepted), true, out)
                .unwrap();
        }
        _ => {}
    }
}

/// A client and a server with a link from one to the other.
fn pair() -> (Connection, BytesMut, Connection, BytesMut, LinkId) {
    let mut client_out = BytesMut::with_capacity(65_536);
    let mut server_out = BytesMut::with_capacity(65_536);
    let options = ClientOptions {
        open: Open::new("client"),
        mechanism: None,
        pipelined: true,
    };
    let mut client = Connection::client(options, &Limits::default(), 0, &mut client_out);
    let session = client.begin(Lane::CONTROL, &mut client_out).unwrap();
    let options = AttachOptions::default();
    let link = client
        .attach(session, "link", Role::Sender, &options, &mut client_out)
        .unwrap();
    let options = ServerOptions {
        container_id: "server".to_owned(),
        mechanisms: Vec::new(),
        require_sasl: false,
    };
    let mut server = Connection::server(&options, &Limits::default(), 0);
    let (mut up, mut down) = (Framer::new(), Framer::new());
    for _ in 0..2 {
        pass(
            &mut client_out,
            &mut server,
            &mut up,
            &mut server_out,
            agree,
        );
        pass(
            &mut server_out,
            &mut client,
            &mut down,
            &mut client_out,
            agree,
        );
    }
    assert!(client.can_send(link));
    (client, client_out, server, server_out, link)
}

#[test]
fn a_message_on_its_way_takes_no_memory() {
    for settled in [true, false] {
        let (mut client, mut client_out, mut server, mut server_out, link) = pair();
        let (mut up, mut down) = (Framer::new(), Framer::new());
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message)
            .properties(&Properties {
                subject: Some("subject"),
                ..Properties::default()
            })
            .data(&[7; 100]);
        let mut send = |rounds: u32| {
            for round in 0..rounds {
                let tag = round.to_be_bytes();
                let transfer = OutgoingTransfer {
                    settled,
                    ..OutgoingTransfer::new(&tag, 1)
                };
                client
                    .transfer(link, &transfer, &[&message], false, &mut client_out)
                    .unwrap();
                pass(
                    &mut client_out,
                    &mut server,
                    &mut up,
                    &mut server_out,
                    agree,
                );
                pass(
                    &mut server_out,
                    &mut client,
                    &mut down,
                    &mut client_out,
                    agree,
                );
            }
        };
        // The first ones make room.
        send(10);
        let (allocations, bytes) = allocated(|| send(200));
        // Buffers of the test are renewed now and then.
        assert!(
            allocations <= 8,
            "{allocations} allocations of {bytes} bytes"
        );
    }
}

/// What a connection with one idle session and link holds.
#[test]
fn an_idle_connection_is_small() {
    let (_, bytes) = allocated(|| std::mem::forget(pair()));
    // Both ends, and the buffers of the test.
    assert!(bytes <= 2 * 65_536 + 16_384, "{bytes}");
}

/// A frame about very many deliveries is answered by as many events, which must not all wait as such.
#[test]
fn a_disposition_of_many_deliveries_takes_little_for_each() {
    const DELIVERIES: u32 = 2_000;
    let on_its_way = DeliveryState::Received(Received {
        section_number: 1,
        section_offset: 2,
    });
    for (state, settled, events) in [
        (Some(&on_its_way), false, 0),
        (None, false, 0),
        (Some(&DeliveryState::RELEASED), false, DELIVERIES),
        (Some(&DeliveryState::ACCEPTED), true, DELIVERIES),
        (None, true, DELIVERIES),
    ] {
        let (mut client, mut client_out, mut server, mut server_out, link) = pair();
        let (mut up, mut down) = (Framer::new(), Framer::new());
        for number in 0..DELIVERIES {
            let tag = number.to_be_bytes();
            let transfer = OutgoingTransfer::new(&tag, u64::from(number) + 1);
            client
                .transfer(link, &transfer, &[b"x"], false, &mut client_out)
                .unwrap();
            pass(
                &mut client_out,
                &mut server,
                &mut up,
                &mut server_out,
                |_, _, _| {},
            );
        }
        server_out.clear();
        let range = (0, DELIVERIES - 1);
        (server.dispose(link.session, range, state, settled, &mut server_out)).unwrap();
        let mut input = &server_out[..];
        let unit = down.next(&mut input, 65_536).unwrap().unwrap();
        let mut tokens = Vec::with_capacity(DELIVERIES as usize);
        let kept = held(|| {
            let (_, bytes) = allocated(|| {
                let event = client.receive(Lane::CONTROL, &unit, 0, &mut client_out);
                assert!(event.unwrap().is_none());
            });
            // Growing by doubling, all room together is four times as much as is needed.
            let most = 4 * 16 * DELIVERIES as usize + 4_096;
            assert!(bytes <= most, "{bytes} bytes for {state:?} {settled}");
            while let Some(event) = client.next_event() {
                match event {
                    Event::Disposition {
                        token,
                        state: told,
                        settled: is_settled,
                        ..
                    } => {
                        assert_eq!(told.as_ref().map(DeliveryStateBuf::view).as_ref(), state);
                        assert_eq!(is_settled, settled);
                        tokens.push(token);
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(tokens.iter().copied().eq(1..=u64::from(events)), "{events}");
        assert!(kept <= 4_096, "{kept} bytes are kept");
    }
}
