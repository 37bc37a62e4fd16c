//! Over the loopback device, without rights.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::link::{Loss, PipeSettings};

const MS: u64 = 1_000_000;
const LOCAL: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const PATIENCE: Duration = Duration::from_secs(60);

fn link(pipe: PipeSettings) -> LinkSettings {
    LinkSettings::symmetric(pipe)
}

/// A relay to a target; the address is where it is reached, by either protocol.
fn relay(target: SocketAddr, link: LinkSettings) -> (Relay, SocketAddr) {
    // Another program may have the same port by UDP.
    let (listener, socket) = (0..100)
        .find_map(|_| {
            let listener = TcpListener::bind(LOCAL).unwrap();
            let socket = UdpSocket::bind(listener.local_addr().unwrap());
            Some((listener, socket.ok()?))
        })
        .expect("a port that is free by TCP and UDP");
    let address = listener.local_addr().unwrap();
    let options = RelayOptions {
        listener,
        socket,
        target,
        link,
        seed: 1,
    };
    (Relay::start(options).unwrap(), address)
}

#[test]
fn bytes_go_both_ways_and_ends_are_told() {
    let server = TcpListener::bind(LOCAL).unwrap();
    let delay = PipeSettings {
        delay_ns: 20 * MS,
        // Losses are for datagrams.
        loss: Loss::Independent { probability: 0.5 },
        ..PipeSettings::default()
    };
    let (relay, address) = relay(server.local_addr().unwrap(), link(delay));
    let echo = thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let began = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let copy = sent.clone();
    let mut writer = stream.try_clone().unwrap();
    let writing = thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    writing.join().unwrap();
    echo.join().unwrap();
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    // A round trip to connect and one for the bytes.
    assert!(began.elapsed() >= Duration::from_millis(80));
    let report = relay.stop().unwrap();
    assert_eq!(report.connections, 1);
    assert_eq!(report.failed_connections, 0);
    assert!(report.streams_up.delivered_bytes > 3_000_000);
    assert_eq!(report.streams_up.dropped.total(), 0);
}

#[test]
fn a_rate_limits_a_stream() {
    let server = TcpListener::bind(LOCAL).unwrap();
    let slow = PipeSettings {
        rate_bps: Some(8_000_000),
        ..PipeSettings::default()
    };
    let (relay, address) = relay(server.local_addr().unwrap(), link(slow));
    let mut stream = TcpStream::connect(address).unwrap();
    let reading = thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let began = Instant::now();
    stream.write_all(&vec![1; 300_000]).unwrap();
    drop(stream);
    assert_eq!(reading.join().unwrap(), 300_000);
    assert!(began.elapsed() >= Duration::from_millis(300));
    drop(relay);
}

#[test]
fn a_target_that_refuses_closes_the_connection() {
    let nobody = TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
    let (relay, address) = relay(nobody, link(PipeSettings::default()));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let ended = stream.read(&mut [0; 10]);
    assert!(!matches!(ended, Ok(length) if length > 0), "{ended:?}");
    assert_eq!(relay.stop().unwrap().connections, 1);
}

#[test]
fn datagrams_are_delayed_and_lost_and_find_their_client() {
    let server = UdpSocket::bind(LOCAL).unwrap();
    let target = server.local_addr().unwrap();
    let mut settings = link(PipeSettings {
        delay_ns: 10 * MS,
        ..PipeSettings::default()
    });
    settings.up.loss = Loss::Pattern {
        lost: vec![false, false, true],
        repeat: true,
    };
    let (relay, address) = relay(target, settings);
    let echo = thread::spawn(move || {
        let mut bytes = [0; 100];
        for _ in 0..4 {
            let (length, from) = server.recv_from(&mut bytes).unwrap();
            server.send_to(&bytes[..length], from).unwrap();
        }
    });
    let clients: Vec<_> = (0..2).map(|_| UdpSocket::bind(LOCAL).unwrap()).collect();
    let mut answers = 0;
    for round in 0..3_u8 {
        for (index, client) in clients.iter().enumerate() {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let began = Instant::now();
            client.send_to(&[round, index as u8], address).unwrap();
            let mut bytes = [0; 100];
            // Every third one is lost.
            if (usize::from(round) * 2 + index) % 3 == 2 {
                continue;
            }
            let (length, _) = client.recv_from(&mut bytes).unwrap();
            assert_eq!(bytes[..length], [round, index as u8]);
            assert!(began.elapsed() >= Duration::from_millis(20));
            answers += 1;
        }
    }
    assert_eq!(answers, 4);
    echo.join().unwrap();
    let report = relay.stop().unwrap();
    assert_eq!(report.datagrams_up.offered_packets, 6);
    assert_eq!(report.datagrams_up.offered_bytes, 6 * 30);
    assert_eq!(report.datagrams_up.dropped.loss, 2);
    assert_eq!(report.datagrams_down.delivered_packets, 4);
}
