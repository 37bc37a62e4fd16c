//! The MQTT packets of a load: written once as templates, stamped for each message, and read back.

/// Bytes at the start of every payload: publisher, sequence number, time.
pub(super) const STAMP_BYTES: usize = 16;
/// Larger packets from a broker end the connection.
const MAX_PACKET_BYTES: usize = 1 << 20;

/// Protocol version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    V311,
    V5,
}

/// What every payload starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    /// Number of the publisher.
    pub(super) publisher: u32,
    /// Number of the message, from 0, of that publisher.
    pub(super) sequence: u32,
    /// When it was due (open loop) or written (closed loop), nanoseconds since the run began.
    pub(super) time_ns: u64,
}

/// A PUBLISH whose identifier and stamp are filled in for each message.
pub(super) struct Publish {
    bytes: Vec<u8>,
    identifier_at: Option<usize>,
    stamp_at: usize,
}

impl Publish {
    pub(super) fn new(version: Version, topic: &str, qos: u8, payload_bytes: usize) -> Self {
        let mut body = Vec::new();
        string(topic, &mut body);
        let identifier_at = (qos > 0).then_some(body.len());
        if qos > 0 {
            body.extend_from_slice(&[0, 1]);
        }
        if version == Version::V5 {
            body.push(0);
        }
        let stamp_at = body.len();
        // Not compressible, and the same in every run.
        let mut state = 0x9e37_79b9_u32;
        body.extend((0..payload_bytes).map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        }));
        let bytes = packet(0x30 | qos << 1, &body);
        let header = bytes.len() - body.len();
        Self {
            bytes,
            identifier_at: identifier_at.map(|at| at + header),
            stamp_at: stamp_at + header,
        }
    }

    /// The packet for one message.
    pub(super) fn stamped(&mut self, identifier: u16, stamp: Stamp) -> &[u8] {
        if let Some(at) = self.identifier_at {
            self.bytes[at..at + 2].copy_from_slice(&identifier.to_be_bytes());
        }
        let place = &mut self.bytes[self.stamp_at..self.stamp_at + STAMP_BYTES];
        place[..4].copy_from_slice(&stamp.publisher.to_be_bytes());
        place[4..8].copy_from_slice(&stamp.sequence.to_be_bytes());
        place[8..].copy_from_slice(&stamp.time_ns.to_be_bytes());
        &self.bytes
    }
}

/// Reads the stamp of a payload that this load published.
pub(super) fn stamp(payload: &[u8]) -> Option<Stamp> {
    let bytes: &[u8; STAMP_BYTES] = payload.first_chunk()?;
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Some(Stamp {
        publisher: word(0),
        sequence: word(4),
        time_ns: u64::from(word(8)) << 32 | u64::from(word(12)),
    })
}

/// Who connects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Login<'a> {
    pub(super) version: Version,
    pub(super) client_id: &'a str,
    pub(super) username: Option<&'a str>,
    pub(super) password: Option<&'a [u8]>,
}

/// CONNECT with a clean start, no will and no keep alive.
pub(super) fn connect(login: Login<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    string("MQTT", &mut body);
    body.push(if login.version == Version::V5 { 5 } else { 4 });
    let flags = 0x02
        | if login.username.is_some() { 0x80 } else { 0 }
        | if login.password.is_some() { 0x40 } else { 0 };
    body.extend_from_slice(&[flags, 0, 0]);
    if login.version == Version::V5 {
        body.push(0);
    }
    string(login.client_id, &mut body);
    if let Some(username) = login.username {
        string(username, &mut body);
    }
    if let Some(password) = login.password {
        body.extend_from_slice(&(password.len() as u16).to_be_bytes());
        body.extend_from_slice(password);
    }
    packet(0x10, &body)
}

/// SUBSCRIBE to one filter.
pub(super) fn subscribe(version: Version, identifier: u16, filter: &str, qos: u8) -> Vec<u8> {
    let mut body = identifier.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
    }
    string(filter, &mut body);
    body.push(qos);
    packet(0x82, &body)
}

/// The four acknowledgements of QoS 1 and 2, without reason code or properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledgement {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
}

pub(super) fn acknowledgement(kind: Acknowledgement, identifier: u16) -> [u8; 4] {
    let first = match kind {
        Acknowledgement::Puback => 0x40,
        Acknowledgement::Pubrec => 0x50,
        Acknowledgement::Pubrel => 0x62,
        Acknowledgement::Pubcomp => 0x70,
    };
    let [high, low] = identifier.to_be_bytes();
    [first, 2, high, low]
}

pub(super) const PINGREQ: [u8; 2] = [0xc0, 0];
pub(super) const DISCONNECT: [u8; 2] = [0xe0, 0];

fn string(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut left = body.len();
    loop {
        let more = if left > 0x7f { 0x80 } else { 0 };
        out.push((left & 0x7f) as u8 | more);
        left >>= 7;
        if more == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

/// What a broker says.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Incoming<'a> {
    Connack {
        code: u8,
        receive_maximum: u16,
    },
    Suback {
        code: u8,
    },
    Publish {
        qos: u8,
        identifier: u16,
        payload: &'a [u8],
    },
    Acknowledgement {
        kind: Acknowledgement,
        identifier: u16,
        code: u8,
    },
    Pingresp,
    Disconnect {
        code: u8,
    },
}

/// Cuts one connection's bytes into packets.
#[derive(Default)]
pub(super) struct Reader {
    partial: Vec<u8>,
}

impl Reader {
    /// Hands every whole packet in `bytes` to `sink`; keeps what is left for the next call.
    pub(super) fn read(
        &mut self,
        version: Version,
        mut bytes: &[u8],
        sink: &mut impl FnMut(&Incoming<'_>),
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            if self.partial.is_empty() {
                match packet_bytes(bytes)? {
                    Some(length) if length <= bytes.len() => {
                        sink(&decode(version, &bytes[..length])?);
                        bytes = &bytes[length..];
                    }
                    _ => {
                        self.partial.extend_from_slice(bytes);
                        return Ok(());
                    }
                }
            } else {
                let wanted = match packet_bytes(&self.partial)? {
                    Some(length) => length - self.partial.len(),
                    None => 1,
                };
                let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
                self.partial.extend_from_slice(head);
                bytes = rest;
                if packet_bytes(&self.partial)? == Some(self.partial.len()) {
                    sink(&decode(version, &self.partial)?);
                    self.partial.clear();
                }
            }
        }
        Ok(())
    }
}

/// Length of the packet at the start, once its header is there.
fn packet_bytes(bytes: &[u8]) -> Result<Option<usize>, String> {
    let mut length = 0;
    for (index, byte) in bytes.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if length > MAX_PACKET_BYTES {
                return Err(format!("the broker sent a packet of {length} bytes"));
            }
            return Ok(Some(length + index + 2));
        }
    }
    if bytes.len() >= 5 {
        Err("malformed length from the broker".to_owned())
    } else {
        Ok(None)
    }
}

fn decode(version: Version, bytes: &[u8]) -> Result<Incoming<'_>, String> {
    let short = || "truncated packet from the broker".to_owned();
    let first = bytes[0];
    let header = bytes
        .iter()
        .skip(1)
        .position(|b| b & 0x80 == 0)
        .map_or(2, |at| at + 2);
    let body = &bytes[header..];
    let word = |at: usize| match body.get(at..at + 2) {
        Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
        _ => Err(short()),
    };
    let code = |at: usize| body.get(at).copied().unwrap_or(0);
    let answer = |kind| -> Result<Incoming<'_>, String> {
        Ok(Incoming::Acknowledgement {
            kind,
            identifier: word(0)?,
            code: code(2),
        })
    };
    match first >> 4 {
        2 => Ok(Incoming::Connack {
            code: *body.get(1).ok_or_else(short)?,
            receive_maximum: if version == Version::V5 {
                receive_maximum(&body[2..])
            } else {
                u16::MAX
            },
        }),
        3 => {
            let mut at = 2 + usize::from(word(0)?);
            let qos = first >> 1 & 3;
            let mut identifier = 0;
            if qos > 0 {
                identifier = word(at)?;
                at += 2;
            }
            if version == Version::V5 {
                let (length, size) = variable(body.get(at..).ok_or_else(short)?);
                at += length + size;
            }
            let payload = body.get(at..).ok_or_else(short)?;
            Ok(Incoming::Publish {
                qos,
                identifier,
                payload,
            })
        }
        4 => answer(Acknowledgement::Puback),
        5 => answer(Acknowledgement::Pubrec),
        6 => answer(Acknowledgement::Pubrel),
        7 => answer(Acknowledgement::Pubcomp),
        9 => Ok(Incoming::Suback {
            code: *body.last().ok_or_else(short)?,
        }),
        13 => Ok(Incoming::Pingresp),
        14 => Ok(Incoming::Disconnect { code: code(0) }),
        other => Err(format!("packet of type {other} from the broker")),
    }
}

/// A variable byte integer and its size.
fn variable(bytes: &[u8]) -> (usize, usize) {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return (value, index + 1);
        }
    }
    (value, bytes.len().min(4))
}

/// Receive Maximum among the properties of a CONNACK; 65,535 when absent.
fn receive_maximum(properties: &[u8]) -> u16 {
    let (length, size) = variable(properties);
    let mut rest = properties.get(size..size + length).unwrap_or_default();
    while let Some((&id, value)) = rest.split_first() {
        let skip = match id {
            0x21 => {
                return value
                    .first_chunk()
                    .map_or(u16::MAX, |b| u16::from_be_bytes(*b));
            }
            0x24 | 0x25 | 0x28 | 0x29 | 0x2a => 1,
            0x13 | 0x22 => 2,
            0x11 | 0x27 => 4,
            0x12 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f => value
                .first_chunk()
                .map_or(0, |b| 2 + usize::from(u16::from_be_bytes(*b))),
            _ => return u16::MAX,
        };
        rest = value.get(skip..).unwrap_or_default();
    }
    u16::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_publish_is_read_back_at_any_split() {
        for version in [Version::V311, Version::V5] {
            for (qos, size) in [(0, 16), (1, 64), (2, 1024)] {
                let mut template = Publish::new(version, "bench/pair/00000001", qos, size);
                let mut wire = Vec::new();
                let stamp_of = |n: u32| Stamp {
                    publisher: 7,
                    sequence: n,
                    time_ns: u64::from(n) << 33,
                };
                for n in 0..3 {
                    wire.extend_from_slice(template.stamped(n as u16 + 1, stamp_of(n)));
                }
                for step in 1..wire.len() {
                    let (mut reader, mut seen) = (Reader::default(), 0);
                    for part in wire.chunks(step) {
                        reader
                            .read(version, part, &mut |packet| {
                                let Incoming::Publish {
                                    qos: q,
                                    identifier,
                                    payload,
                                } = packet
                                else {
                                    panic!("{packet:?}")
                                };
                                assert_eq!((*q, payload.len()), (qos, size));
                                assert_eq!(*identifier, if qos > 0 { seen as u16 + 1 } else { 0 });
                                assert_eq!(stamp(payload), Some(stamp_of(seen)));
                                seen += 1;
                            })
                            .unwrap();
                    }
                    assert_eq!(seen, 3);
                }
            }
        }
    }

    #[test]
    fn receive_maximum_is_found_behind_other_properties() {
        // Session Expiry Interval, Assigned Client Identifier, Receive Maximum.
        let properties = [12, 0x11, 0, 0, 0, 9, 0x12, 0, 1, b'x', 0x21, 0, 20];
        assert_eq!(receive_maximum(&properties), 20);
        assert_eq!(receive_maximum(&[0]), u16::MAX);
    }
}
