//! Many clients that do what they like to a server that does what it likes: every connection that
//! was opened is closed once, an honest client is served throughout, and nothing is left over.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use sterna_net::{ListenerConfig, ListenerTransport, StreamId, WebSocketConfig};

use crate::support::pki::Authority;
use crate::support::{PATIENCE, Seen, Setup, loopback, pattern};

/// A small generator: the order of threads is chance anyway, their choices need not be.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn misbehave(dice: &mut Dice, address: SocketAddr, tls: Option<&Arc<ClientConfig>>, http: bool) {
    let mut stream: Box<dyn ReadWrite> = match tls {
        Some(config) if dice.roll(8) > 0 => Box::new(crate::support::pki::connect(address, config)),
        _ => Box::new(TcpStream::connect(address).unwrap()),
    };
    if http && dice.roll(8) > 0 {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\
            Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";
        let _ = stream.write_all(request);
    }
    for _ in 0..dice.roll(6) {
        let length = [1, 100, 5_000, 200_000][dice.roll(4) as usize];
        let mut bytes = pattern(length);
        if http && dice.roll(8) > 0 {
            // A frame with a mask of zeroes, or several that begin like one.
            let header = [0x82, 0xfe, 0x10, 0x00, 0, 0, 0, 0];
            bytes.resize(0x1000, 0);
            bytes.splice(0..0, header);
        }
        stream
            .socket()
            .set_write_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let _ = stream.write_all(&bytes);
        if dice.roll(2) == 0 {
            stream
                .socket()
                .set_read_timeout(Some(Duration::from_millis(5)))
                .unwrap();
            let _ = stream.read(&mut vec![0; length]);
        }
    }
    let socket = stream.socket();
    match dice.roll(4) {
        0 => {
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(socket).set_linger(linger).unwrap();
        }
        1 => {
            let _ = socket.shutdown(Shutdown::Write);
            std::thread::sleep(Duration::from_millis(dice.roll(20)));
        }
        _ => {}
    }
}

trait ReadWrite: Read + Write {
    fn socket(&self) -> &TcpStream;
}

impl ReadWrite for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl ReadWrite for crate::support::pki::TlsStream {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

#[test]
fn nothing_is_lost_and_nobody_suffers() {
    const EXCHANGES: usize = 3_000;
    const SHARDS: usize = 2;
    let authority = Authority::new();
    let tls = Arc::new(authority.tls_config(&[]));
    let websocket = Arc::new(WebSocketConfig::default());
    let mut setup = Setup::new(ListenerTransport::Tcp);
    setup.shards = SHARDS;
    setup.config.linger_ms = 300;
    setup.config.half_closed_timeout_ms = 300;
    setup.config.paused_timeout_ms = 300;
    setup.config.handshake_timeout_ms = 10_000;
    setup.listeners = [
        ListenerTransport::Tcp,
        ListenerTransport::Tls(Arc::clone(&tls)),
        ListenerTransport::WebSocket(Arc::clone(&websocket)),
        ListenerTransport::SecureWebSocket(tls, websocket),
    ]
    .map(|transport| ListenerConfig {
        address: loopback(),
        transport,
        balancers: None,
        connections: usize::MAX,
    })
    .to_vec();
    let server = setup.start();
    let config = authority.client(&[&rustls::version::TLS13], None, &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..6u64)
        .map(|thread| {
            let (config, stop) = (Arc::clone(&config), Arc::clone(&stop));
            let addresses = server.addresses.clone();
            std::thread::spawn(move || {
                let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ thread << 32);
                while !stop.load(Ordering::Relaxed) {
                    let kind = dice.roll(4) as usize;
                    let tls = (kind % 2 == 1).then_some(&config);
                    misbehave(&mut dice, addresses[kind], tls, kind >= 2);
                }
            })
        })
        .collect();

    let mut honest = crate::support::pki::connect(server.addresses[1], &config);
    honest.write_all(b"first").unwrap();
    honest.read_exact(&mut [0; 5]).unwrap();
    let me = honest.sock.local_addr().unwrap();
    let mut dice = Dice(7);
    let opened = || {
        let opened = |_, seen: &Seen| matches!(seen, Seen::Opened(_));
        server.log.count(opened)
    };
    // Each exchange ends although the others go on for as long as it takes.
    let mut exchanges = 0;
    while exchanges < EXCHANGES || exchanges % 100 > 0 || opened() <= 100 {
        exchanges += 1;
        honest.write_all(&[7; 64]).unwrap();
        honest.read_exact(&mut [0; 64]).unwrap();
        // The server is no better than its clients.
        let choice = dice.roll(5);
        let shard = dice.roll(SHARDS as u64) as usize;
        let pick = dice.roll(1_000) as usize;
        server.run(shard, move |echo, net| {
            let others: Vec<_> = echo
                .open
                .iter()
                .copied()
                .filter(|id| net.info(*id).is_some_and(|info| info.peer != me))
                .collect();
            if others.is_empty() {
                return;
            }
            let id = others[pick % others.len()];
            match choice {
                0 => net.close(id, 0),
                1 => net.abort(id, StreamId::FIRST, 1),
                2 => net.finish(id, StreamId::FIRST),
                3 => net.send_shared(id, StreamId::FIRST, vec![1; 300_000].into()),
                _ => net.pause(id, pick.is_multiple_of(2)),
            }
        });
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }

    // Whatever is still there is paused or half-closed; then only the honest one is left.
    let started = Instant::now();
    loop {
        let open: usize = (0..SHARDS)
            .map(|shard| {
                server.run(shard, move |echo, net| {
                    for id in echo.open.clone() {
                        net.pause(id, false);
                        if net.info(id).is_some_and(|info| info.peer != me) {
                            net.close(id, 0);
                        }
                    }
                    echo.open.len()
                })
            })
            .sum();
        if open == 1 {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{open} connections are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    honest.write_all(b"last").unwrap();
    honest.read_exact(&mut [0; 4]).unwrap();
    let log = Arc::clone(&server.log);
    for echo in server.stop() {
        assert!(echo.open.is_empty());
    }
    let opened = log.count(|_, seen| matches!(seen, Seen::Opened(_)));
    let closed = log.count(|_, seen| matches!(seen, Seen::Closed(..)));
    assert_eq!(opened, closed);
    assert!(opened > 100, "only {opened} connections");
    println!("{opened} connections, {exchanges} exchanges of the honest client");
}
