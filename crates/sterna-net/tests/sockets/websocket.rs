//! WebSocket on TCP and TLS, on loopback, with a client written by hand.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sterna_net::{CloseReason, ListenerTransport, StreamId, TransportKind, WebSocketConfig};

use crate::support::pki::Authority;
use crate::support::{Manner, PATIENCE, Seen, Setup, pattern};

pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
pub(crate) const FINAL: u8 = 0x80;

pub(crate) struct Client<S> {
    pub(crate) stream: S,
}

fn setup() -> Setup {
    Setup::new(ListenerTransport::WebSocket(Arc::new(
        WebSocketConfig::default(),
    )))
}

pub(crate) fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

const REQUEST: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n\r\n";

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0xa1, 0xb2, 0xc3, 0xd4];
    let mut wire = vec![first];
    match payload.len() {
        length @ 0..126 => wire.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            wire.push(0xfe);
            wire.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            wire.push(0xff);
            wire.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    wire.extend_from_slice(&mask);
    wire.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
    wire
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn upgrade(mut stream: S) -> Self {
        stream.write_all(REQUEST.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(
            head.contains("Sec-WebSocket-Protocol: mqtt\r\n"),
            "[MQTT-6.0.0-4]"
        );
        Self { stream }
    }

    fn send(&mut self, first: u8, payload: &[u8]) {
        self.stream.write_all(&frame(first, payload)).unwrap();
        self.stream.flush().unwrap();
    }

    /// The first byte and the payload of the next frame.
    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 2];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[1] & 0x80, 0, "a server does not mask");
        let length = match header[1] {
            126 => {
                let mut length = [0; 2];
                self.stream.read_exact(&mut length).unwrap();
                usize::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.stream.read_exact(&mut length).unwrap();
                u64::from_be_bytes(length) as usize
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).unwrap();
        (header[0], payload)
    }

    /// The payloads of binary frames until there are so many bytes.
    fn receive_data(&mut self, length: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < length {
            let (first, payload) = self.receive();
            assert_eq!(
                first,
                FINAL | BINARY,
                "[MQTT-6.0.0-1] packets are in binary frames"
            );
            data.extend(payload);
        }
        data
    }

    fn exchange(&mut self, payload: &[u8]) {
        self.send(FINAL | BINARY, payload);
        assert!(self.receive_data(payload.len()) == payload);
    }

    fn expect_close(&mut self, code: u16) {
        assert_eq!(self.receive(), (FINAL | CLOSE, code.to_be_bytes().to_vec()));
        assert_eq!(self.stream.read(&mut [0; 1]).unwrap(), 0, "then the end");
    }
}

/// [MQTT-6.0.0-1] Packets travel in binary frames. [MQTT-6.0.0-4] The subprotocol is "mqtt".
#[test]
fn frames_of_all_sizes_come_back() {
    let mut setup = setup();
    setup.close_on_end = false;
    let server = setup.start();
    let mut client = Client::upgrade(tcp(server.address()));
    for length in [1, 125, 126, 65_535, 65_536, 300_000] {
        client.exchange(&pattern(length));
    }
    let id = server.log.wait_opened();
    let info = server.info(id);
    assert_eq!(info.transport, TransportKind::WebSocket);
    assert_eq!(&*info.protocol, b"mqtt");
    client.send(FINAL | CLOSE, &1000u16.to_be_bytes());
    client.expect_close(1000);
    assert_eq!(server.log.wait_closed(id), CloseReason::Peer { code: 0 });
    let finished = Seen::Finished(id, StreamId::FIRST);
    assert_eq!(server.log.count(|_, seen| *seen == finished), 1);
    server.stop();
}

/// [MQTT-6.0.0-2] One packet may be spread over frames and fragments, with control frames in
/// between; many may share one.
#[test]
fn packets_need_not_be_aligned_with_frames() {
    let server = setup().start();
    let mut client = Client::upgrade(tcp(server.address()));
    client.send(BINARY, b"one ");
    client.send(FINAL | PING, b"still there?");
    client.send(0, b"packet ");
    client.send(FINAL, b"in three");
    let mut data = Vec::new();
    let mut pongs = 0;
    while data.len() < 19 || pongs == 0 {
        match client.receive() {
            (first, payload) if first == FINAL | PONG => {
                assert_eq!(payload, b"still there?");
                pongs += 1;
            }
            (_, payload) => data.extend(payload),
        }
    }
    assert_eq!(data, b"one packet in three");
    // Frames that come together are handed up together and answered in one frame.
    let many: Vec<u8> = (0..20u8)
        .flat_map(|n| frame(FINAL | BINARY, &[n; 50]))
        .collect();
    client.stream.write_all(&many).unwrap();
    let (_, payload) = client.receive();
    let expected: Vec<u8> = (0..20u8).flat_map(|n| [n; 50]).collect();
    assert!(
        expected.starts_with(&payload) && payload.len() > 50,
        "{}",
        payload.len()
    );
    server.stop();
}

/// [MQTT-6.0.0-1] Any other type of data frame closes the connection.
#[test]
fn violations_are_answered_with_a_code_and_the_end() {
    let server = setup().start();
    for (wire, code) in [
        (frame(FINAL | 1, b"text"), 1003),
        (vec![FINAL | BINARY, 1, 0], 1002),
        (frame(FINAL | 0x70 | BINARY, b"x"), 1002),
        (frame(FINAL, b"x"), 1002),
    ] {
        server.log.forget();
        let mut client = Client::upgrade(tcp(server.address()));
        let id = server.log.wait_opened();
        client.stream.write_all(&wire).unwrap();
        client.expect_close(code);
        assert!(matches!(server.log.wait_closed(id), CloseReason::Failed(_)));
    }
    server.stop();
}

#[test]
fn the_handler_closes_with_a_frame() {
    let mut setup = setup();
    setup.manner = Manner::Drop;
    let server = setup.start();
    let mut client = Client::upgrade(tcp(server.address()));
    let id = server.log.wait_opened();
    server.run(0, move |_, net| {
        net.send(id, StreamId::FIRST, b"bye");
        net.close(id, 0);
    });
    assert_eq!(client.receive_data(3), b"bye");
    client.expect_close(1000);
    assert_eq!(server.log.wait_closed(id), CloseReason::Local);
    let mut client = Client::upgrade(tcp(server.address()));
    client.send(FINAL | BINARY, b"x");
    server.log.wait("it", |seen| {
        matches!(seen, Seen::Received(_, _, 1)).then_some(())
    });
    server.stop();
    client.expect_close(1001);
}

#[test]
fn requests_that_are_no_upgrade_get_an_answer() {
    let server = setup().start();
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 426),
        (REQUEST.replace("/mqtt", "/else"), 404),
        (REQUEST.replace("GET", "PUT"), 405),
        (REQUEST.replace("Version: 13", "Version: 7"), 426),
        (REQUEST.replace("Protocol: mqtt", "Protocol: soap"), 400),
        ("\x10\x0c".to_owned(), 400),
        (
            format!("GET / HTTP/1.1\r\nX: {}\r\n", "x".repeat(10_000)),
            431,
        ),
    ] {
        let mut stream = tcp(server.address());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{status}: {answer}"
        );
    }
    server.stop();
    // One that never finishes its request is dropped.
    let mut setup = setup();
    setup.config.handshake_timeout_ms = 500;
    let server = setup.start();
    let started = Instant::now();
    let mut stream = tcp(server.address());
    stream
        .write_all(&REQUEST.as_bytes()[..REQUEST.len() - 2])
        .unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    assert!(started.elapsed() >= Duration::from_millis(450));
    assert_eq!(
        server.log.count(|_, seen| matches!(seen, Seen::Opened(_))),
        0
    );
    server.stop();
}

#[test]
fn on_tls_it_is_the_same() {
    let authority = Authority::new();
    let tls = Arc::new(authority.tls_config(&[b"http/1.1"]));
    let websocket = Arc::new(WebSocketConfig::default());
    let mut setup = Setup::new(ListenerTransport::SecureWebSocket(tls, websocket));
    setup.close_on_end = false;
    let server = setup.start();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        server.log.forget();
        let config = authority.client(&[version], None, &[b"http/1.1"]);
        let stream = crate::support::pki::connect(server.address(), &config);
        let mut client = Client::upgrade(stream);
        for length in [1, 126, 70_000, 300_000] {
            client.exchange(&pattern(length));
        }
        let id = server.log.wait_opened();
        let info = server.info(id);
        assert_eq!(info.transport, TransportKind::SecureWebSocket);
        assert_eq!(&*info.protocol, b"mqtt");
        client.send(FINAL | PING, b"p");
        assert_eq!(client.receive(), (FINAL | PONG, b"p".to_vec()));
        client.send(FINAL | CLOSE, &[]);
        assert_eq!(client.receive(), (FINAL | CLOSE, Vec::new()));
        assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0, "close_notify");
        assert_eq!(server.log.wait_closed(id), CloseReason::Peer { code: 0 });
    }
    // Plain HTTP errors arrive through TLS as well.
    let config = authority.client(&[&rustls::version::TLS13], None, &[]);
    let mut stream = crate::support::pki::connect(server.address(), &config);
    stream
        .write_all(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    server.stop();
}

#[test]
fn large_transfers_under_backpressure() {
    const BYTES: usize = 8 << 20;
    let server = setup().start();
    let mut client = Client::upgrade(tcp(server.address()));
    let mut writer = client.stream.try_clone().unwrap();
    let sent = pattern(BYTES);
    let thread = std::thread::spawn({
        let sent = sent.clone();
        move || {
            for part in sent.chunks(100_000) {
                writer.write_all(&frame(FINAL | BINARY, part)).unwrap();
            }
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(client.receive_data(BYTES) == sent);
    thread.join().unwrap();
    server.stop();
}

/// The Close frame came with what the handler has not looked at yet.
#[test]
fn a_connection_whose_handler_has_paused_is_not_closed_before_it_goes_on() {
    for has_close_frame in [true, false] {
        let mut setup = setup();
        setup.close_on_end = false;
        setup.config.half_closed_timeout_ms = 50;
        setup.config.paused_timeout_ms = u64::MAX;
        let server = setup.start();
        server.run(0, |echo, _| echo.manner = Manner::DropAndPause);
        let mut client = Client::upgrade(tcp(server.address()));
        let id = server.log.wait_opened();
        let mut bytes = frame(FINAL | BINARY, &pattern(1_000));
        if has_close_frame {
            bytes.extend(frame(FINAL | CLOSE, &[]));
        }
        client.stream.write_all(&bytes).unwrap();
        if !has_close_frame {
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        server.log.wait("its end", |seen| {
            (*seen == Seen::Finished(id, StreamId::FIRST)).then_some(())
        });
        server.run(0, |echo, _| echo.manner = Manner::Drop);
        assert!(server.run(0, move |_, net| net.info(id).is_some()));
        server.run(0, move |_, net| {
            net.pause(id, false);
            net.close(id, 0);
        });
        assert_eq!(server.log.wait_closed(id), CloseReason::Local);
        assert_eq!(client.receive().0, FINAL | CLOSE);
        server.stop();
    }
}

#[test]
fn a_pause_does_not_hide_for_ever_that_the_peer_is_gone() {
    let mut setup = setup();
    setup.config.half_closed_timeout_ms = 50;
    setup.config.paused_timeout_ms = 50;
    let server = setup.start();
    let mut client = Client::upgrade(tcp(server.address()));
    let id = server.log.wait_opened();
    server.run(0, move |_, net| net.pause(id, true));
    client.send(FINAL | BINARY, &pattern(10_000));
    drop(client);
    assert_eq!(server.log.wait_closed(id), CloseReason::Peer { code: 0 });
    server.stop();
}
