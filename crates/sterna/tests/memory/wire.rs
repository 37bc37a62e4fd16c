//! MQTT 3.1.1, AMQP 1.0 and HTTP, as far as they are needed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use crate::process::{Broker, MQTT, PATIENCE};

// MQTT 3.1.1, as far as it is needed.

pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut rest = body.len();
    loop {
        let more = rest > 127;
        packet.push((rest & 127) as u8 | (u8::from(more) << 7));
        rest >>= 7;
        if !more {
            break;
        }
    }
    packet.extend_from_slice(body);
    packet
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

pub(crate) fn mqtt_connect(client_id: &str, clean: bool) -> Vec<u8> {
    let head = [0, 4, b'M', b'Q', b'T', b'T', 4, u8::from(clean) << 1, 0, 0];
    packet(0x10, &[&head[..], &text(client_id)].concat())
}

pub(crate) fn subscribe(filter: &str) -> Vec<u8> {
    packet(0x82, &[&[0, 1], &text(filter)[..], &[1]].concat())
}

pub(crate) fn publish(topic: &str, id: u16, payload: &[u8], retain: bool) -> Vec<u8> {
    let topic = text(topic);
    let first = 0x32 | u8::from(retain);
    packet(first, &[&topic[..], &id.to_be_bytes(), payload].concat())
}

/// Whole packets: their first bytes and bodies.
#[derive(Default)]
pub(crate) struct Packets(Vec<u8>);

impl Packets {
    /// Reads what has come; `None` at the end of the stream.
    pub(crate) fn read(&mut self, stream: &mut TcpStream) -> Option<Vec<(u8, Vec<u8>)>> {
        let mut buffer = [0; 16_384];
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => self.0.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
        let mut packets = Vec::new();
        let mut at = 0;
        while let Some((length, head)) = self.length(at) {
            let end = at + head + length;
            if end > self.0.len() {
                break;
            }
            packets.push((self.0[at], self.0[at + head..end].to_vec()));
            at = end;
        }
        self.0.drain(..at);
        Some(packets)
    }

    /// Length of the body of the packet that begins here, and of its head.
    pub(crate) fn length(&self, at: usize) -> Option<(usize, usize)> {
        let mut length = 0;
        for index in 0..4 {
            let byte = *self.0.get(at + 1 + index)?;
            length |= usize::from(byte & 127) << (7 * index);
            if byte & 128 == 0 {
                return Some((length, index + 2));
            }
        }
        None
    }
}

/// A client that is connected.
pub(crate) fn client(broker: &Broker, client_id: &str, clean: bool) -> TcpStream {
    let mut stream = broker.connect(MQTT).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&mqtt_connect(client_id, clean)).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[3]), (0x20, 0), "{answer:?}");
    stream
}

/// Publishes, and awaits the acknowledgements of all.
pub(crate) fn publish_all(
    stream: &mut TcpStream,
    messages: impl Iterator<Item = (String, Vec<u8>)>,
    retain: bool,
) {
    let (mut packets, mut open) = (Packets::default(), 0_usize);
    let mut settle = |stream: &mut TcpStream, open: &mut usize, most: usize| {
        while *open > most {
            *open -= packets.read(stream).expect("the broker reads on").len();
        }
    };
    for (number, (topic, payload)) in messages.enumerate() {
        let id = (number % 60_000) as u16 + 1;
        stream
            .write_all(&publish(&topic, id, &payload, retain))
            .unwrap();
        open += 1;
        if open >= 200 {
            settle(stream, &mut open, 100);
        }
    }
    settle(stream, &mut open, 0);
}

/// The head of a request whose content comes in parts.
pub(crate) const POST: &str =
    "POST /v1/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n";

// AMQP, as far as it is needed: open, begin, attach of a sender, and parts of one message.

pub(crate) fn frame(channel: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = (8 + body.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&[2, 0]);
    frame.extend_from_slice(&channel.to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// A performative: its code, and its fields, encoded.
pub(crate) fn performative(code: u8, fields: &[&[u8]]) -> Vec<u8> {
    let content = fields.concat();
    let mut bytes = vec![0, 0x53, code, 0xd0];
    bytes.extend_from_slice(&(4 + content.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&(fields.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&content);
    bytes
}

pub(crate) fn amqp_text(text: &str) -> Vec<u8> {
    let mut bytes = vec![0xa1, text.len() as u8];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

pub(crate) const NULL: &[u8] = &[0x40];
pub(crate) const ZERO: &[u8] = &[0x43];

pub(crate) fn amqp_sender(container: &str) -> Vec<u8> {
    let open = performative(0x10, &[&amqp_text(container)]);
    let window = [&[0x70][..], &1_000_000_u32.to_be_bytes()].concat();
    let begin = performative(0x11, &[NULL, ZERO, &window, &window]);
    let target = performative(0x29, &[&amqp_text("t")]);
    let source = performative(0x28, &[]);
    let attach = performative(
        0x12,
        &[
            &amqp_text("l"),
            ZERO,
            &[0x42],
            NULL,
            NULL,
            &source,
            &target,
            NULL,
            NULL,
            ZERO,
        ],
    );
    [
        &b"AMQP\0\x01\0\0"[..],
        &frame(0, &open),
        &frame(0, &begin),
        &frame(0, &attach),
    ]
    .concat()
}

/// A part of a message, of which more is to come.
pub(crate) fn amqp_transfer(is_first: bool, bytes: usize) -> Vec<u8> {
    let (delivery, tag): (&[u8], &[u8]) = if is_first {
        (ZERO, &[0xa0, 1, 1])
    } else {
        (NULL, NULL)
    };
    let format: &[u8] = if is_first { ZERO } else { NULL };
    let mut body = performative(0x14, &[ZERO, delivery, tag, format, &[0x42], &[0x41]]);
    if is_first {
        body.extend_from_slice(&[0, 0x53, 0x75, 0xb0]);
        body.extend_from_slice(&20_000_000_u32.to_be_bytes());
    }
    body.resize(body.len() + bytes, b'x');
    frame(0, &body)
}
