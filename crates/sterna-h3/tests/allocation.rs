//! Where the engine allocates, and where it must not.
#![allow(clippy::unwrap_used)] // it is all test

use counting::allocated;
use sterna_h3::{
    Chunk, Connection, Content, ErrorCode, Event, Features, Field, Fields, Limits, Output,
    RequestLine, StreamId,
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

/// A transport with room for one flight, in one buffer for all streams.
struct Flight {
    bytes: Vec<u8>,
    shared_bytes: usize,
}

impl Flight {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(16_384),
            shared_bytes: 0,
        }
    }
}

impl Output for Flight {
    fn write(&mut self, _: StreamId, bytes: &[u8]) {
        assert!(self.bytes.capacity() - self.bytes.len() >= bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    fn write_shared(&mut self, _: StreamId, bytes: bytes::Bytes) {
        self.shared_bytes += bytes.len();
    }

    fn finish(&mut self, _: StreamId) {}

    fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        panic!("{stream:?} {code}");
    }

    fn stop(&mut self, stream: StreamId, code: ErrorCode) {
        panic!("{stream:?} {code}");
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        self.bytes.extend_from_slice(bytes);
        true
    }
}

fn connected() -> (Connection, Flight, Connection, Flight) {
    let (mut up, mut down) = (Flight::new(), Flight::new());
    let limits = Limits::default();
    let mut client = Connection::client(&limits, Features::default(), None, &mut up);
    let mut server = Connection::server(&limits, Features::default(), &mut down);
    let mut chunk = Chunk::new(StreamId(3), &down.bytes);
    client.receive(&mut chunk, 0, &mut up).unwrap();
    let mut chunk = Chunk::new(StreamId(2), &up.bytes);
    server.receive(&mut chunk, 0, &mut down).unwrap();
    up.bytes.clear();
    down.bytes.clear();
    (client, up, server, down)
}

const LINE: RequestLine<'_> = RequestLine::https("POST", "example.org", "/v1/topics/sensors/temp1");

#[test]
fn requests_allocate_nothing_in_the_long_run() {
    let (mut client, mut up, mut server, mut down) = connected();
    let fields = [
        Field::new("content-type", b"text/plain"),
        Field::secret("authorization", b"Basic ZGV2aWNlOnNlY3JldA=="),
    ];
    let mut round = || {
        let content = Content::Whole(&[b'x'; 32]);
        let stream = client.request(&LINE, &fields, content, &mut up).unwrap();
        let mut chunk = Chunk {
            fin: true,
            ..Chunk::new(stream, &up.bytes)
        };
        let mut events = 0;
        while let Some(event) = server.receive(&mut chunk, 0, &mut down).unwrap() {
            events += 1;
            match event {
                Event::Request { head, .. } => {
                    assert_eq!(head.path(), Some(LINE.path));
                    server.recycle(head.into_fields());
                }
                Event::Content { bytes, .. } => assert_eq!(bytes.len(), 32),
                Event::End { .. } => {
                    server
                        .respond(stream, 204, &[], Content::Empty, &mut down)
                        .unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        let mut chunk = Chunk {
            fin: true,
            ..Chunk::new(stream, &down.bytes)
        };
        while let Some(event) = client.receive(&mut chunk, 0, &mut up).unwrap() {
            events += 1;
            if let Event::Response { head, .. } = event {
                assert_eq!(head.status(), 204);
                client.recycle(head.into_fields());
            }
        }
        assert_eq!(events, 5);
        assert!(server.next_event().is_none() && client.next_event().is_none());
        up.bytes.clear();
        down.bytes.clear();
    };
    round();
    assert_eq!(allocated(|| (0..1000).for_each(|_| round())), (0, 0));
    assert_eq!((client.open_requests(), server.open_requests()), (0, 0));
}

#[test]
fn streaming_allocates_nothing_either_way() {
    let (mut client, mut up, mut server, mut down) = connected();
    let stream = client
        .request(&LINE, &[], Content::Streamed, &mut up)
        .unwrap();
    let mut chunk = Chunk::new(stream, &up.bytes);
    while server.receive(&mut chunk, 0, &mut down).unwrap().is_some() {}
    server
        .respond(stream, 200, &[], Content::Streamed, &mut down)
        .unwrap();
    let mut chunk = Chunk::new(stream, &down.bytes);
    while client.receive(&mut chunk, 0, &mut up).unwrap().is_some() {}
    let large = bytes::Bytes::from_static(&[b'x'; 10_000]);
    down.bytes.clear();
    // The buffer for a small frame is made once.
    server.send(stream, &[b'x'; 64], &mut down).unwrap();
    down.bytes.clear();
    let count = allocated(|| {
        for _ in 0..100 {
            server.send(stream, &[b'x'; 64], &mut down).unwrap();
            let mut bytes = 0;
            // In two pieces, cut within the frame's header.
            for part in [&down.bytes[..1], &down.bytes[1..]] {
                let mut chunk = Chunk::new(stream, part);
                while let Some(event) = client.receive(&mut chunk, 0, &mut up).unwrap() {
                    let Event::Content { bytes: part, .. } = event else {
                        panic!("{event:?}");
                    };
                    bytes += part.len();
                }
            }
            assert_eq!(bytes, 64);
            down.bytes.clear();
            server.send_shared(stream, large.clone(), &mut up).unwrap();
            up.bytes.clear();
        }
    });
    assert_eq!(count, (0, 0));
    assert_eq!(up.shared_bytes, 100 * large.len());
}

/// A head in pieces is put together once.
#[test]
fn heads_in_pieces_are_buffered_once_and_released() {
    let (mut client, mut up, mut server, mut down) = connected();
    let value = [b'"'; 4_000];
    let long = [Field::new("x-long", &value)];
    let stream = client
        .request(&LINE, &long, Content::Empty, &mut up)
        .unwrap();
    let (_, bytes) = allocated(|| {
        let mut requests = 0;
        for piece in up.bytes.chunks(100) {
            let mut chunk = Chunk::new(stream, piece);
            while let Some(event) = server.receive(&mut chunk, 0, &mut down).unwrap() {
                assert!(matches!(event, Event::Request { .. }));
                requests += 1;
            }
        }
        assert_eq!(requests, 1);
    });
    // The frame grows to its size and is decoded into fields that do.
    assert!(bytes < 6 * up.bytes.len(), "{bytes} for {}", up.bytes.len());
}

/// What is declared and has not come takes no memory.
#[test]
fn a_frame_that_is_only_announced_costs_nothing() {
    let (_, _, mut server, mut down) = connected();
    // HEADERS of 16,000 bytes, of which three have come.
    let bytes = [0x01, 0x7e, 0x80, 0x00, 0x00, 0x51];
    let mut chunk = Chunk::new(StreamId(0), &bytes);
    let (_, allocated_bytes) = allocated(|| {
        assert_eq!(server.receive(&mut chunk, 0, &mut down), Ok(None));
    });
    assert!(allocated_bytes < 2_048, "{allocated_bytes}");
}

/// What an idle connection and an open request cost.
#[test]
fn idle_state_is_small() {
    assert!(
        size_of::<Connection>() <= 600,
        "{}",
        size_of::<Connection>()
    );
    let mut out = Flight::new();
    let mut connection = None;
    let (_, bytes) = allocated(|| {
        let limits = Limits::default();
        connection = Some(Connection::server(&limits, Features::default(), &mut out));
    });
    // SETTINGS are written and forgotten.
    assert!(bytes <= 128, "{bytes}");
    assert!(connection.is_some_and(|connection| !connection.is_closed()));
    let (_, mut up, mut server, mut down) = connected();
    up.bytes.clear();
    let head = {
        let mut bytes = Vec::new();
        let fields: Fields = [(":method", "GET"), (":scheme", "https"), (":path", "/")]
            .into_iter()
            .chain([(":authority", "example.org")])
            .map(|(name, value)| Field::new(name, value.as_bytes()))
            .collect();
        sterna_h3::qpack::encode(fields.iter(), &mut bytes);
        let length = bytes.len() as u8;
        [&[1, length][..], &bytes].concat()
    };
    // Subscriptions that stay open: what each of a hundred keeps, the table's growth with it.
    let (_, bytes) = allocated(|| {
        for nth in 0..100 {
            let stream = StreamId(4 * nth);
            let mut chunk = Chunk {
                fin: true,
                ..Chunk::new(stream, &head)
            };
            while let Some(event) = server.receive(&mut chunk, 0, &mut down).unwrap() {
                if let Event::Request { head, .. } = event {
                    server.recycle(head.into_fields());
                }
            }
            server
                .respond(stream, 200, &[], Content::Streamed, &mut down)
                .unwrap();
        }
    });
    let per_request = bytes / 100;
    assert!(per_request <= 1_000, "{per_request}");
    println!(
        "Connection {}, request {per_request}",
        size_of::<Connection>()
    );
}
