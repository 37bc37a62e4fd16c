//! The actual negotiation of TLS and QUIC, read off the link.
//!
//! A server's ServerHello names its cipher and group. On TCP it is in clear. In QUIC it is in an Initial
//! packet, whose keys follow from the client's first identifier (RFC 9001, section 5.2). Any observer on
//! the path can therefore read it, with any client and any server, with any settings.

use std::collections::{BTreeMap, BTreeSet};

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{Keys, Version};
use rustls::{CipherSuite, NamedGroup, Side};

use crate::netns::Family;

/// Connections whose start is remembered; later ones of a run negotiate the same.
const MAX_CONNECTIONS: usize = 256;
/// Different outcomes that are kept.
const MAX_OUTCOMES: usize = 8;

const UDP: u8 = 17;
const TCP: u8 = 6;
const QUIC_V1: u32 = 1;
const FRAME_PADDING: u64 = 0;
const FRAME_PING: u64 = 1;
const FRAME_ACK: u64 = 2;
const FRAME_ACK_ECN: u64 = 3;
const FRAME_CRYPTO: u64 = 6;
const HANDSHAKE_RECORD: u8 = 22;
const SERVER_HELLO: u8 = 2;
const SERVER_KEY_EXCHANGE: u8 = 12;
const NAMED_CURVE: u8 = 3;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
/// The random number of a ServerHello that only asks for another key share (RFC 8446, section 4.1.3).
const RETRY_RANDOM_START: [u8; 8] = [0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11];

/// Watches the packets of a link.
#[derive(Default)]
pub(super) struct Negotiated {
    /// By the client's port.
    quic: BTreeMap<u16, Keys>,
    found: BTreeSet<String>,
}

impl Negotiated {
    /// Looks at a packet as the client has sent or received it.
    pub(super) fn look(&mut self, packet: &[u8], is_from_client: bool) {
        if self.found.len() < MAX_OUTCOMES {
            // Cut-off or other packets are ignored.
            let _ = self.read_packet(packet, is_from_client);
        }
    }

    /// The negotiation in words: usually the same for all connections of a run.
    pub(super) fn outcome(self) -> Option<String> {
        let all: Vec<String> = self.found.into_iter().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn read_packet(&mut self, packet: &[u8], is_from_client: bool) -> Option<()> {
        let first = packet.first()?;
        let (header_bytes, protocol) = if first >> 4 == 6 {
            // Programs of the lab send no headers between the fixed one and the transport's.
            (Family::V6.header_bytes(), *packet.get(6)?)
        } else {
            (usize::from(first & 0x0f) * 4, *packet.get(9)?)
        };
        let mut rest = Reader(packet.get(header_bytes..)?);
        let (source, destination) = (rest.u16()?, rest.u16()?);
        match (protocol, is_from_client) {
            (UDP, true) => {
                rest.take(4)?;
                self.client_initial(source, rest.0)
            }
            (UDP, false) => {
                rest.take(4)?;
                self.server_initial(destination, rest.0)
            }
            (TCP, false) => {
                rest.take(8)?;
                let segment_header_bytes = usize::from(rest.0.first()? >> 4) * 4;
                let records = packet.get(header_bytes + segment_header_bytes..)?;
                self.found.insert(read_records(records)?);
                Some(())
            }
            _ => None,
        }
    }

    /// Keys of a connection that begins.
    fn client_initial(&mut self, port: u16, datagram: &[u8]) -> Option<()> {
        let (kind, identifier, _) = long_header(datagram)?;
        if kind == Kind::Initial && self.quic.len() < MAX_CONNECTIONS {
            self.quic.entry(port).or_insert(initial_keys(identifier)?);
        }
        Some(())
    }

    fn server_initial(&mut self, port: u16, datagram: &[u8]) -> Option<()> {
        let (kind, _, mut rest) = long_header(datagram)?;
        if kind == Kind::Retry {
            // From here on keys follow from the identifier that the server chose.
            let (_, _, source) = long_header_with_source(datagram)?;
            self.quic.insert(port, initial_keys(source)?);
            return Some(());
        }
        if kind != Kind::Initial {
            return None;
        }
        let token_bytes = rest.variable()?;
        rest.take(usize::try_from(token_bytes).ok()?)?;
        let length = usize::try_from(rest.variable()?).ok()?;
        let number_at = datagram.len() - rest.0.len();
        let hello = self.decrypt(port, datagram, number_at, length)?;
        self.found.insert(read_frames(&hello)?);
        Some(())
    }

    /// The frames of a server's Initial packet (RFC 9001, section 5.4).
    fn decrypt(
        &self,
        port: u16,
        datagram: &[u8],
        number_at: usize,
        length: usize,
    ) -> Option<Vec<u8>> {
        let keys = &self.quic.get(&port)?.remote;
        let mut packet = datagram.get(..number_at + length)?.to_vec();
        let sample_at = number_at + 4;
        let sample = packet
            .get(sample_at..sample_at + keys.header.sample_len())?
            .to_vec();
        let (head, tail) = packet.split_at_mut(number_at);
        let number = tail.get_mut(..4)?;
        keys.header
            .decrypt_in_place(&sample, head.first_mut()?, number)
            .ok()?;
        let number_bytes = usize::from(head[0] & 3) + 1;
        let number = tail[..number_bytes]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (header, payload) = packet.split_at_mut(number_at + number_bytes);
        let plain = keys.packet.decrypt_in_place(number, header, payload).ok()?;
        Some(plain.to_vec())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Initial,
    Retry,
    Other,
}

/// Kind and destination of a packet with a long header (RFC 9000, section 17.2), and the bytes
/// after the source.
fn long_header(datagram: &[u8]) -> Option<(Kind, &[u8], Reader<'_>)> {
    let (kind, destination, rest, _) = read_long_header(datagram)?;
    Some((kind, destination, rest))
}

/// The same with the source.
fn long_header_with_source(datagram: &[u8]) -> Option<(Kind, &[u8], &[u8])> {
    let (kind, destination, _, source) = read_long_header(datagram)?;
    Some((kind, destination, source))
}

fn read_long_header(datagram: &[u8]) -> Option<(Kind, &[u8], Reader<'_>, &[u8])> {
    let mut rest = Reader(datagram);
    let first = rest.u8()?;
    if first & 0x80 == 0 || rest.u32()? != QUIC_V1 {
        return None;
    }
    let destination = rest.short()?;
    let source = rest.short()?;
    let kind = match first >> 4 & 3 {
        0 => Kind::Initial,
        3 => Kind::Retry,
        _ => Kind::Other,
    };
    Some((kind, destination, rest, source))
}

fn initial_keys(identifier: &[u8]) -> Option<Keys> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13()?.quic_suite()?;
    Some(suite.keys(identifier, Side::Client, Version::V1))
}

/// The ServerHello in the frames of an Initial packet.
fn read_frames(frames: &[u8]) -> Option<String> {
    let mut rest = Reader(frames);
    loop {
        match rest.variable()? {
            FRAME_PADDING | FRAME_PING => {}
            kind @ (FRAME_ACK | FRAME_ACK_ECN) => {
                rest.variable()?;
                rest.variable()?;
                let ranges = rest.variable()?;
                rest.variable()?;
                for _ in 0..ranges {
                    rest.variable()?;
                    rest.variable()?;
                }
                if kind == FRAME_ACK_ECN {
                    for _ in 0..3 {
                        rest.variable()?;
                    }
                }
            }
            FRAME_CRYPTO => {
                let offset = rest.variable()?;
                let length = usize::try_from(rest.variable()?).ok()?;
                let bytes = rest.take(length)?;
                if offset == 0 {
                    return read_messages(bytes);
                }
            }
            _ => return None,
        }
    }
}

/// The ServerHello in a segment of TCP.
fn read_records(segment: &[u8]) -> Option<String> {
    let mut rest = Reader(segment);
    let mut messages = Vec::new();
    while rest.0.first() == Some(&HANDSHAKE_RECORD) {
        rest.take(3)?;
        let length = usize::from(rest.u16()?);
        // The last record may go on in the next segment.
        let there = length.min(rest.0.len());
        messages.extend_from_slice(rest.take(there)?);
    }
    read_messages(&messages)
}

/// Content of TLS's handshake messages, of which the first must be a ServerHello.
fn read_messages(messages: &[u8]) -> Option<String> {
    let mut rest = Reader(messages);
    if rest.u8()? != SERVER_HELLO {
        return None;
    }
    let length = rest.u24()?;
    let mut hello = Reader(rest.take(length)?);
    hello.u16()?;
    if hello.take(32)?.starts_with(&RETRY_RANDOM_START) {
        return None;
    }
    hello.short()?;
    let cipher = CipherSuite::from(hello.u16()?);
    hello.u8()?;
    let mut version = "TLS 1.2";
    let mut group = None;
    if let Some(length) = hello.u16() {
        let mut extensions = Reader(hello.take(usize::from(length))?);
        while let (Some(kind), Some(length)) = (extensions.u16(), extensions.u16()) {
            let mut value = Reader(extensions.take(usize::from(length))?);
            match kind {
                SUPPORTED_VERSIONS if value.u16()? == 0x0304 => version = "TLS 1.3",
                KEY_SHARE => group = Some(value.u16()?),
                _ => {}
            }
        }
    }
    while let (Some(kind), Some(length)) = (rest.u8(), rest.u24()) {
        let Some(message) = rest.take(length) else {
            break;
        };
        if kind == SERVER_KEY_EXCHANGE && message.first() == Some(&NAMED_CURVE) {
            group = Reader(&message[1..]).u16();
        }
    }
    let group = group.map_or_else(
        // A resumed session of TLS 1.2 has none; otherwise it is in a later packet.
        || "no key share seen".to_owned(),
        |group| format!("{:?}", NamedGroup::from(group)),
    );
    Some(format!("{version}, {cipher:?}, {group}"))
}

/// Bytes that are read from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u24(&mut self) -> Option<usize> {
        Some(usize::from(self.u8()?) << 16 | usize::from(self.u16()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Bytes after their number.
    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    /// A variable-length integer (RFC 9000, section 16).
    fn variable(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let bytes = self.take(1 << (first >> 6))?;
        let start = u64::from(first & 0x3f);
        Some(
            bytes[1..]
                .iter()
                .fold(start, |value, byte| value << 8 | u64::from(*byte)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_length(bytes: &[u8], width: usize) -> Vec<u8> {
        let mut all = bytes.len().to_be_bytes()[8 - width..].to_vec();
        all.extend(bytes);
        all
    }

    fn hello(cipher: u16, extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(cipher.to_be_bytes());
        body.push(0);
        body.extend(with_length(extensions, 2));
        let mut message = vec![SERVER_HELLO];
        message.extend(with_length(&body, 3));
        message
    }

    fn hello_13() -> Vec<u8> {
        let mut extensions = vec![0, 43, 0, 2, 3, 4, 0, 51, 0, 6, 0, 0x1d];
        extensions.extend([0, 2, 1, 1]);
        hello(0x1303, &extensions)
    }

    fn packet(protocol: u8, ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45; 1];
        packet.resize(20, 0);
        packet[9] = protocol;
        packet.extend(ports[0].to_be_bytes());
        packet.extend(ports[1].to_be_bytes());
        packet.extend([0; 4]);
        if protocol == TCP {
            packet.extend([0; 4]);
            packet.extend([0x50, 0x10]);
            packet.extend([0; 6]);
        }
        packet.extend(payload);
        packet
    }

    fn record(message: &[u8]) -> Vec<u8> {
        let mut record = vec![HANDSHAKE_RECORD, 3, 3];
        record.extend(with_length(message, 2));
        record
    }

    #[test]
    fn what_tls_on_tcp_negotiates_is_in_clear() {
        let mut seen = Negotiated::default();
        seen.look(&packet(TCP, [8883, 40_000], &record(&hello_13())), false);
        let mut flight = record(&hello(0xc02b, &[]));
        let exchange = [&[SERVER_KEY_EXCHANGE, 0, 0, 4][..], &[3, 0, 0x17, 0]].concat();
        flight.extend(record(&exchange));
        seen.look(&packet(TCP, [8883, 40_001], &flight), false);
        // Data, a client's packet, and cut-off packets give nothing.
        seen.look(&packet(TCP, [8883, 40_001], b"\x17\x03\x03"), false);
        seen.look(&packet(TCP, [40_001, 8883], &record(&hello_13())), true);
        seen.look(&flight[..9], false);
        assert_eq!(
            seen.outcome().unwrap(),
            "TLS 1.2, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, secp256r1; \
             TLS 1.3, TLS13_CHACHA20_POLY1305_SHA256, X25519"
        );
    }

    #[test]
    fn what_quic_negotiates_follows_from_the_clients_identifier() {
        let identifier = [1, 2, 3, 4, 5, 6, 7, 8];
        let long = |destination: &[u8], source: &[u8]| {
            let mut header = vec![0xc1, 0, 0, 0, 1];
            header.extend(with_length(destination, 1));
            header.extend(with_length(source, 1));
            header
        };
        let mut header = long(&[9; 8], &[8; 4]);
        header.push(0);
        let mut frames = vec![0x02, 0, 0, 0, 0, 0x06, 0];
        let message = hello_13();
        frames.push(0x40);
        frames.push(u8::try_from(message.len()).unwrap());
        frames.extend(message);
        let suite = TLS13_AES_128_GCM_SHA256
            .tls13()
            .unwrap()
            .quic_suite()
            .unwrap();
        let keys = suite.keys(&identifier, Side::Server, Version::V1).local;
        let length = 2 + frames.len() + keys.packet.tag_len();
        header.extend(u16::try_from(0x4000 | length).unwrap().to_be_bytes());
        let number_at = header.len();
        header.extend([0, 5]);
        let tag = keys
            .packet
            .encrypt_in_place(5, &header, &mut frames)
            .unwrap();
        let mut datagram = [&header[..], &frames, tag.as_ref()].concat();
        let sample = datagram[number_at + 4..number_at + 20].to_vec();
        let (head, tail) = datagram.split_at_mut(number_at);
        keys.header
            .encrypt_in_place(&sample, &mut head[0], &mut tail[..2])
            .unwrap();

        let mut seen = Negotiated::default();
        let answer = packet(UDP, [14_567, 40_000], &datagram);
        seen.look(&answer, false);
        assert!(seen.found.is_empty(), "nothing is known of the client yet");
        let first = [&long(&identifier, &[9; 8])[..], &[0, 0x41, 0]].concat();
        seen.look(&packet(UDP, [40_000, 14_567], &first), true);
        seen.look(&answer, false);
        assert_eq!(
            seen.outcome().unwrap(),
            "TLS 1.3, TLS13_CHACHA20_POLY1305_SHA256, X25519"
        );
    }
}
