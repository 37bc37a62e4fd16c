//! What an idle byte-stream connection costs in memory, counted by the allocator on the shard's
//! thread. A binary of its own, because the counting allocator serves the whole process.
#![allow(unsafe_code)] // a global allocator is unsafe by its nature; this one counts and forwards
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "sockets/support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use sterna_net::{ListenerTransport, WebSocketConfig};
use support::pki::Authority;
use support::{PATIENCE, Server, Setup};

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // Ignored while a thread goes down.
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call goes to the system's allocator unchanged; the bookkeeping allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

const CONNECTIONS: usize = 400;

/// Bytes per idle connection, each after one exchange.
fn cost(server: &Server, connect: impl Fn() -> TcpStream) -> usize {
    let live = || server.run(0, |_, _| LIVE_BYTES.get());
    let mut clients = Vec::new();
    let mut open = |count: usize| {
        clients.resize_with(clients.len() + count, &connect);
        live()
    };
    let before = open(CONNECTIONS);
    let after = open(CONNECTIONS);
    let each = usize::try_from(after - before).unwrap() / CONNECTIONS;
    drop(clients);
    each
}

fn tcp(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn exchange(stream: &mut (impl Read + Write)) {
    stream.write_all(&[7; 1_000]).unwrap();
    stream.flush().unwrap();
    stream.read_exact(&mut [0; 1_000]).unwrap();
}

#[test]
fn an_idle_connection_keeps_its_budget() {
    let server = Setup::new(ListenerTransport::Tcp).start();
    let plain = cost(&server, || {
        let mut stream = tcp(&server);
        exchange(&mut stream);
        stream
    });
    server.stop();

    let websocket = Arc::new(WebSocketConfig::default());
    let server = Setup::new(ListenerTransport::WebSocket(websocket)).start();
    let framed = cost(&server, || {
        let mut stream = tcp(&server);
        stream
            .write_all(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Protocol: mqtt\r\n\r\n",
            )
            .unwrap();
        stream.write_all(&[0x82, 0x81, 0, 0, 0, 0, 7]).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(&[0x82, 1, 7]) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        stream
    });
    server.stop();

    let authority = Authority::new();
    let tls = Arc::new(authority.tls_config(&[b"mqtt"]));
    let server = Setup::new(ListenerTransport::Tls(tls)).start();
    let encrypted = [&rustls::version::TLS12, &rustls::version::TLS13].map(|version| {
        let config = authority.client(&[version], None, &[b"mqtt"]);
        cost(&server, || {
            let mut stream = support::pki::connect(server.address(), &config);
            exchange(&mut stream);
            stream.sock
        })
    });
    server.stop();

    println!(
        "TCP {plain}, WebSocket {framed}, TLS 1.2 {}, 1.3 {}",
        encrypted[0], encrypted[1]
    );
    assert!(plain <= 300, "TCP: {plain} bytes");
    assert!(framed <= 700, "WebSocket: {framed} bytes");
    assert!(encrypted[0] <= 5_000, "TLS 1.2: {} bytes", encrypted[0]);
    assert!(encrypted[1] <= 5_000, "TLS 1.3: {} bytes", encrypted[1]);
}
