//! With namespaces and devices of the kernel. Left out, and said so, where they can't be made.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use super::super::{Cell, Emulator, EmulatorOptions};
use super::*;
use crate::kernel;
use crate::link::{Loss, PipeSettings, Queue};
use crate::netns::{CLIENT_ADDRESS, Family, NamespaceSettings, SERVER_ADDRESS};

const MS: u64 = 1_000_000;

/// A cell with this link, if this process may make one.
fn cell(settings: LinkSettings) -> Option<(Cell, Attachment)> {
    cell_of(Family::V4, settings)
}

fn cell_of(family: Family, settings: LinkSettings) -> Option<(Cell, Attachment)> {
    if let Err(why) = crate::session::check_rights() {
        eprintln!("left out: {why}");
        return None;
    }
    let cell = match Cell::new() {
        Ok(cell) => cell,
        Err(error) => {
            eprintln!("left out: no network namespace: {error}");
            return None;
        }
    };
    let namespace = NamespaceSettings {
        family,
        mtu_bytes: Some(settings.up.mtu_bytes),
        congestion_control: Some("cubic".into()),
        rto_min_ms: Some(25),
    };
    let devices = match cell.devices(&namespace) {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("left out: no TUN device: {error}");
            return None;
        }
    };
    let attachment = Attachment {
        devices,
        settings,
        seed: 1,
        capture: None,
    };
    Some((cell, attachment))
}

fn start(attachment: Attachment) -> Emulator {
    let options = EmulatorOptions {
        real_time: false,
        spin_ns: 0,
    };
    Emulator::start(vec![attachment], options).unwrap()
}

fn delayed(delay_ns: u64) -> LinkSettings {
    LinkSettings::symmetric(PipeSettings {
        delay_ns,
        ..PipeSettings::default()
    })
}

/// The algorithm of a connection.
fn congestion_control(stream: &TcpStream) -> String {
    let name = socket2::SockRef::from(stream).tcp_congestion().unwrap();
    let end = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(name.len());
    String::from_utf8(name[..end].to_vec()).unwrap()
}

#[test]
fn fast_open_saves_a_round_trip_once_there_is_a_cookie() {
    let Some((cell, attachment)) = cell(delayed(20 * MS)) else {
        return;
    };
    let emulator = start(attachment);
    let listener = cell
        .server
        .run(|| TcpListener::bind((SERVER_ADDRESS, 7)))
        .unwrap();
    let echo = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    let packets_up = || emulator.report(0).unwrap().up.offered_packets;
    for known in [false, true] {
        let before = packets_up();
        let stream = cell.client.run(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            kernel::connect_by_fast_open(socket.as_fd())?;
            socket.connect(&SocketAddr::from((SERVER_ADDRESS, 7)).into())?;
            Ok(TcpStream::from(socket))
        });
        let mut stream = stream.unwrap();
        // With a cookie nothing has left yet: the SYN waits for the first bytes.
        assert_eq!(packets_up() == before, known);
        stream.write_all(b"ping").unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        let opened = cell.server.tcp_fast_opens().unwrap();
        assert_eq!(opened, Some(u64::from(known)));
    }
    echo.join().unwrap();
    emulator.stop().unwrap();
}

#[test]
fn tcp_echoes_through_the_link_and_every_packet_is_counted() {
    for family in [Family::V4, Family::V6] {
        tcp_echoes(family);
    }
}

fn tcp_echoes(family: Family) {
    let (at_client, at_server) = (Side::Client.address(family), Side::Server.address(family));
    let Some((cell, attachment)) = cell_of(family, delayed(20 * MS)) else {
        return;
    };
    let emulator = start(attachment);
    let listener = cell
        .server
        .run(|| TcpListener::bind((at_server, 7)))
        .unwrap();
    assert!(cell.server.has_listener(None).unwrap());
    assert!(cell.server.has_listener(Some(7)).unwrap());
    assert!(!cell.server.has_listener(Some(8)).unwrap());
    let echo = std::thread::spawn(move || {
        let (mut stream, from) = listener.accept().unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
        (from, congestion_control(&stream), stream)
    });
    let began = Instant::now();
    let mut stream = cell
        .client
        .run(|| TcpStream::connect((at_server, 7)))
        .unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(b"ping").unwrap();
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    // A handshake and an exchange: two round trips at the least.
    assert!(began.elapsed() >= Duration::from_millis(80));
    assert_eq!(&bytes, b"ping");
    let (from, in_force, still_open) = echo.join().unwrap();
    assert_eq!(from.ip(), at_client);
    // The route's algorithm is in force at both ends, with any default of the system.
    assert_eq!([in_force, congestion_control(&stream)], ["cubic", "cubic"]);
    let refused = socket2::SockRef::from(&stream).set_tcp_congestion(b"reno");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // The round trip of 40 ms and the least timeout of 25, where the kernel's own is 200. On a busy machine a round trip
    // takes longer, and the timeout follows it.
    let over_rtt_us = kernel::own_tcp_connections()
        .into_iter()
        .filter(|state| (39_000..100_000).contains(&state.rtt_us))
        .map(|state| state.rto_us - state.rtt_us)
        .min();
    assert!(
        over_rtt_us.is_some_and(|over_us| over_us < 200_000),
        "{over_rtt_us:?}"
    );
    drop(still_open);
    let report = emulator.report(0).unwrap();
    // SYN, ACK, data one way, SYN+ACK and data the other, 40 bytes of headers and 4 of data.
    assert!(report.up.delivered_packets >= 3, "{report:?}");
    assert!(report.down.delivered_packets >= 2, "{report:?}");
    assert_eq!(report.up.dropped.total(), 0);
    assert_eq!(report.refused, 0);
    assert_eq!(cell.client.overflows().unwrap(), 0);
    emulator.stop().unwrap();
}

#[test]
fn datagrams_are_lost_as_the_pattern_says_and_captured() {
    for family in [Family::V4, Family::V6] {
        datagrams_are_lost(family);
    }
}

fn datagrams_are_lost(family: Family) {
    let (at_client, at_server) = (Side::Client.address(family), Side::Server.address(family));
    let packet_bytes = family.header_bytes() + 8 + 100;
    let mut settings = delayed(MS);
    settings.up.loss = Loss::Pattern {
        lost: vec![false, true],
        repeat: true,
    };
    let Some((cell, mut attachment)) = cell_of(family, settings) else {
        return;
    };
    let (copies, captured) = sync_channel(100);
    attachment.capture = Some(copies);
    let emulator = start(attachment);
    let receiver = cell.server.run(|| UdpSocket::bind((at_server, 9))).unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let sender = cell.client.run(|| UdpSocket::bind((at_client, 9))).unwrap();
    for number in 0..10_u8 {
        sender.send_to(&[number; 100], (at_server, 9)).unwrap();
    }
    let mut bytes = [0; 200];
    for number in [0, 2, 4, 6, 8_u8] {
        let (length, _) = receiver.recv_from(&mut bytes).unwrap();
        assert_eq!((length, bytes[0]), (100, number));
    }
    let report = emulator.report(0).unwrap();
    assert_eq!(report.up.offered_packets, 10);
    // Nothing asks for neighbours or routers.
    assert_eq!(report.up.offered_bytes, 10 * packet_bytes as u64);
    assert_eq!(report.down.offered_packets, 0);
    assert_eq!(report.up.dropped.loss, 5);
    emulator.stop().unwrap();
    let captured: Vec<_> = captured.iter().collect();
    let count = |side, event| {
        captured
            .iter()
            .filter(|copy| copy.side == side && copy.event == event)
            .count()
    };
    assert_eq!(count(Side::Client, Event::Sent(None)), 5);
    assert_eq!(count(Side::Client, Event::Sent(Some(Cause::Loss))), 5);
    assert_eq!(count(Side::Server, Event::Received), 5);
    assert!(
        captured
            .iter()
            .all(|copy| copy.packet.len() == packet_bytes)
    );
}

#[test]
fn the_kernel_divides_what_is_longer_than_a_packet() {
    let mut settings = delayed(0);
    settings.up.queue = Queue::Packets(10_000);
    let Some((cell, attachment)) = cell(settings) else {
        return;
    };
    let emulator = start(attachment);
    let listener = cell
        .server
        .run(|| TcpListener::bind((SERVER_ADDRESS, 7)))
        .unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let mut stream = cell
        .client
        .run(|| TcpStream::connect((SERVER_ADDRESS, 7)))
        .unwrap();
    stream.write_all(&vec![7; 1 << 20]).unwrap();
    drop(stream);
    assert_eq!(reader.join().unwrap(), 1 << 20);
    let report = emulator.report(0).unwrap();
    // 1448 bytes in each; nothing was dropped for its length, so nothing was longer.
    assert!(report.up.offered_packets >= (1 << 20) / 1448, "{report:?}");
    assert_eq!(report.up.dropped.mtu, 0);
    emulator.stop().unwrap();
}

#[test]
fn a_link_changes_and_goes_down_while_it_runs() {
    let Some((cell, attachment)) = cell(delayed(0)) else {
        return;
    };
    let emulator = start(attachment);
    let receiver = cell
        .server
        .run(|| UdpSocket::bind((SERVER_ADDRESS, 9)))
        .unwrap();
    let sender = cell
        .client
        .run(|| UdpSocket::bind((CLIENT_ADDRESS, 9)))
        .unwrap();
    let exchange = |timeout_ms: u64| {
        sender.send_to(b"x", (SERVER_ADDRESS, 9)).unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_millis(timeout_ms)))
            .unwrap();
        receiver.recv_from(&mut [0; 10]).is_ok()
    };
    assert!(exchange(20_000));
    emulator.switch(0, Direction::Up, false).unwrap();
    assert!(!exchange(100));
    emulator.switch(0, Direction::Up, true).unwrap();
    assert!(exchange(20_000));
    emulator.change(0, &delayed(60 * MS)).unwrap();
    let began = Instant::now();
    assert!(exchange(20_000));
    assert!(began.elapsed() >= Duration::from_millis(60));
    let mut wrong = delayed(0);
    wrong.down.duplicate = 2.0;
    assert!(emulator.change(0, &wrong).is_err());
    assert_eq!(emulator.report(0).unwrap().up.dropped.down, 1);
    emulator.stop().unwrap();
}

#[test]
fn an_unknown_congestion_control_is_named() {
    let Some((cell, _)) = cell(delayed(0)) else {
        return;
    };
    let other = Cell::new().unwrap();
    drop(cell);
    let settings = NamespaceSettings {
        congestion_control: Some("warp".into()),
        ..NamespaceSettings::default()
    };
    let error = other.devices(&settings).unwrap_err();
    assert!(error.to_string().contains("warp"), "{error}");
}

#[test]
fn the_server_sees_another_address_after_a_change() {
    for family in [Family::V4, Family::V6] {
        address_changes(family);
    }
}

fn address_changes(family: Family) {
    let (at_client, at_server) = (Side::Client.address(family), Side::Server.address(family));
    let Some((cell, attachment)) = cell_of(family, delayed(0)) else {
        return;
    };
    let emulator = start(attachment);
    let server = cell.server.run(|| UdpSocket::bind((at_server, 9))).unwrap();
    let client = cell.client.run(|| UdpSocket::bind((at_client, 9))).unwrap();
    for socket in [&server, &client] {
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
    }
    // Sent again until it comes: a busy kernel may drop one. The number tells those of earlier exchanges.
    let send = |number: u8, from: &UdpSocket, to: SocketAddr, at: &UdpSocket| {
        let comes = (0..20).find_map(|_| {
            from.send_to(&[number], to).unwrap();
            let mut content = [0; 10];
            let (_, source) = at.recv_from(&mut content).ok()?;
            (content[0] == number).then_some(source)
        });
        comes.unwrap()
    };
    let mut exchanges = 0;
    let mut exchange = || {
        exchanges += 1;
        let from = send(exchanges, &client, (at_server, 9).into(), &server);
        let to = send(exchanges, &server, from, &client);
        assert_eq!(to.ip(), at_server);
        from
    };
    let before = exchange();
    assert_eq!(before.ip(), at_client);
    let address = emulator.rebind(0).unwrap();
    let after = exchange();
    assert_eq!(after.ip(), address);
    assert_eq!(after.port(), before.port());
    server.send_to(b"late", before).unwrap();
    // The following exchange shows that it was seen.
    exchange();
    let report = emulator.report(0).unwrap();
    assert_eq!((report.address_changes, report.to_old_addresses), (1, 1));
    emulator.stop().unwrap();
}

#[test]
fn a_cell_whose_device_is_removed_fails_alone() {
    let (Some((broken, first)), Some((whole, second))) = (cell(delayed(0)), cell(delayed(0)))
    else {
        return;
    };
    let options = EmulatorOptions {
        real_time: false,
        spin_ns: 0,
    };
    let emulator = Emulator::start(vec![first, second], options).unwrap();
    let mut remove = std::process::Command::new("ip");
    remove.args(["link", "delete", crate::netns::DEVICE]);
    broken.client.adopt(&mut remove);
    match remove.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            eprintln!("left out: ip: {error}");
            return;
        }
    }
    let receiver = whole
        .server
        .run(|| UdpSocket::bind((SERVER_ADDRESS, 9)))
        .unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let sender = whole
        .client
        .run(|| UdpSocket::bind((CLIENT_ADDRESS, 9)))
        .unwrap();
    sender.send_to(b"x", (SERVER_ADDRESS, 9)).unwrap();
    receiver.recv_from(&mut [0; 10]).unwrap();
    assert!(emulator.report(1).unwrap().failure.is_none());
    let failure = emulator.report(0).unwrap().failure.unwrap();
    assert!(failure.contains("client"), "{failure}");
    emulator.stop().unwrap();
}
