//! Every malformed or misplaced packet of the engine's table against a running broker, over TCP.

#[path = "../../../sterna-mqtt/tests/malformed/mod.rs"]
mod table;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sterna_mqtt::{Framer, MAX_PACKET_BYTES};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};
use table::{Case, Expect, Step};

/// How long an answer may take before the broker counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn broker() -> (tempfile::TempDir, Server, SocketAddr) {
    let directory = tempfile::tempdir().expect("a folder");
    let config = Config {
        listeners: vec![Listener::at("mqtt://127.0.0.1:0")],
        data_directory: Some(directory.path().to_owned()),
        ..Config::default()
    };
    let server = Server::start(&config).expect("a broker");
    let address = server.listeners()[0]
        .trim_start_matches("mqtt://")
        .parse()
        .expect("an address");
    (directory, server, address)
}

/// A connection as bytes: first byte and body of each packet that the broker sends.
struct Wire {
    stream: TcpStream,
    framer: Framer,
    unread: Vec<u8>,
    ended: bool,
}

impl Wire {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self {
            stream,
            framer: Framer::new(),
            unread: Vec::new(),
            ended: false,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        // The broker may have closed already; what it said is read all the same.
        let _ = self.stream.write_all(bytes);
    }

    /// The next packet, or `None` at the end of the connection.
    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let mut input = &self.unread[..];
            let frame = self
                .framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("legal packets");
            let packet = frame.map(|frame| (frame.first_byte(), frame.body().to_vec()));
            let used = self.unread.len() - input.len();
            self.unread.drain(..used);
            if packet.is_some() || self.ended {
                return packet;
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(length) => self.unread.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => self.ended = true,
                Err(error) => panic!("the broker neither answers nor closes: {error}"),
            }
        }
    }

    /// Every packet until the end, and at the latest the answer to a PINGREQ.
    fn rest(&mut self) -> Vec<(u8, Vec<u8>)> {
        let mut packets = Vec::new();
        while let Some(packet) = self.next() {
            let pong = packet.0 == 0xD0;
            packets.push(packet);
            if pong {
                break;
            }
        }
        packets
    }
}

fn play(address: SocketAddr, case: &Case) -> Result<(), String> {
    let mut wire = Wire::open(address);
    for step in &case.steps {
        match step {
            Step::Send(bytes) => wire.send(bytes),
            Step::Wait(first) => loop {
                match wire.next() {
                    Some((byte, _)) if byte & 0xF0 == first & 0xF0 => break,
                    Some(_) => {}
                    None => return Err(format!("closed before {first:#04x}")),
                }
            },
        }
    }
    if case.expect == Expect::Alive {
        wire.send(&[0xC0, 0]);
    }
    let packets = wire.rest();
    let refusal = packets
        .iter()
        .find(|(first, body)| *first == 0x20 && body.get(1).is_some_and(|code| *code != 0))
        .map(|(_, body)| body[1]);
    let disconnect = packets
        .iter()
        .find(|(first, _)| *first == 0xE0)
        .map(|(_, body)| body.first().copied().unwrap_or_default());
    let alive = packets.last().is_some_and(|(first, _)| *first == 0xD0);
    let expected = match case.expect {
        Expect::ConnAck(code) => (Some(code), None, false),
        Expect::Disconnect(code) if case.version == 5 => (None, Some(code), false),
        Expect::Disconnect(_) | Expect::Close => (None, None, false),
        Expect::Alive => (None, None, true),
    };
    let seen = (refusal, disconnect, alive);
    // A ping that was on its way is answered before a close in no case of the table.
    if seen == expected {
        Ok(())
    } else {
        Err(format!("{seen:02x?} instead of {expected:02x?}"))
    }
}

/// [MQTT-4.2-1] over TCP here; [MQTT311-3.14.1-1] and the reserved flags of every other packet
#[test]
fn every_fault_is_answered_as_the_specification_asks_and_others_are_served_meanwhile() {
    let (_directory, server, address) = broker();
    let mut honest = Wire::open(address);
    honest.send(&table::connect(5, "honest"));
    assert_eq!(honest.next().map(|(first, _)| first), Some(0x20));
    let cases = table::cases();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        if let Err(why) = play(address, case) {
            let statements = case.statements.join(" ");
            failures.push(format!(
                "{} ({}): {why} {statements}",
                case.name, case.version
            ));
        }
        honest.send(&[0xC0, 0]);
        assert_eq!(
            honest.next(),
            Some((0xD0, Vec::new())),
            "after {}",
            case.name
        );
    }
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
    server.shutdown();
}
