//! The blocks of the pcapng format (draft-ietf-opsawg-pcapng) that a capture needs.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const DECRYPTION_SECRETS: u32 = 10;
/// Secrets in the form that `SSLKEYLOGFILE` has.
const TLS_KEY_LOG: u32 = 0x544c_534b;
/// Packets that begin with their IP header.
const LINKTYPE_RAW: u16 = 101;

const OPTION_END: u16 = 0;
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Times are in units of 10 to the power of minus this.
const NANOSECONDS: u8 = 9;

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn option(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    bytes.extend(code.to_le_bytes());
    bytes.extend((value.len() as u16).to_le_bytes());
    bytes.extend(value);
    pad(bytes);
}

fn write_block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length)?;
    out.write_all(body)?;
    out.write_all(&length)
}

/// Begins a file with one interface. Secrets come before the packets that need them.
pub(super) fn write_header(
    out: &mut impl Write,
    interface: &str,
    secrets: &[u8],
) -> io::Result<()> {
    let mut body = Vec::new();
    body.extend(BYTE_ORDER.to_le_bytes());
    body.extend(1_u16.to_le_bytes());
    body.extend(0_u16.to_le_bytes());
    body.extend(u64::MAX.to_le_bytes()); // the section's length is not said
    option(&mut body, APPLICATION, b"sterna-lab");
    option(&mut body, OPTION_END, b"");
    write_block(out, SECTION_HEADER, &body)?;

    if !secrets.is_empty() {
        body.clear();
        body.extend(TLS_KEY_LOG.to_le_bytes());
        body.extend((secrets.len() as u32).to_le_bytes());
        body.extend(secrets);
        pad(&mut body);
        write_block(out, DECRYPTION_SECRETS, &body)?;
    }

    body.clear();
    body.extend(LINKTYPE_RAW.to_le_bytes());
    body.extend([0; 6]); // reserved, and no limit on a packet's length
    option(&mut body, INTERFACE_NAME, interface.as_bytes());
    option(&mut body, TIME_RESOLUTION, &[NANOSECONDS]);
    option(&mut body, OPTION_END, b"");
    write_block(out, INTERFACE, &body)
}

/// Appends one packet, at nanoseconds since 1970.
pub(super) fn write_packet(
    out: &mut impl Write,
    at_ns: u64,
    packet: &[u8],
    is_outbound: bool,
    comment: Option<&str>,
) -> io::Result<()> {
    let mut body = Vec::with_capacity(packet.len() + 64);
    let length = (packet.len() as u32).to_le_bytes();
    body.extend([0; 4]); // the first and only interface
    body.extend(((at_ns >> 32) as u32).to_le_bytes());
    body.extend((at_ns as u32).to_le_bytes());
    body.extend(length);
    body.extend(length);
    body.extend(packet);
    pad(&mut body);
    let flags = if is_outbound { OUTBOUND } else { INBOUND };
    option(&mut body, PACKET_FLAGS, &flags.to_le_bytes());
    if let Some(comment) = comment {
        option(&mut body, COMMENT, comment.as_bytes());
    }
    option(&mut body, OPTION_END, b"");
    write_block(out, ENHANCED_PACKET, &body)
}

/// A packet of a capture, without its bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PacketRecord {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Bytes from the IP header on.
    pub length_bytes: u32,
    /// Whether the side whose capture it is has sent it.
    pub is_outbound: bool,
}

/// Reads the lab's own comments on the packets of a capture.
///
/// # Errors
///
/// If it is not a capture, or cut off.
pub fn read_packets(mut bytes: &[u8]) -> io::Result<Vec<PacketRecord>> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a capture of the lab");
    let number = |bytes: &[u8], at: usize| -> io::Result<u32> {
        bytes
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes)
            .ok_or_else(broken)
    };
    if number(bytes, 0)? != SECTION_HEADER || number(bytes, 8)? != BYTE_ORDER {
        return Err(broken());
    }
    let mut packets = Vec::new();
    while !bytes.is_empty() {
        let (kind, length) = (number(bytes, 0)?, number(bytes, 4)? as usize);
        if length < 12 || length > bytes.len() {
            return Err(broken());
        }
        let body = &bytes[8..length - 4];
        if kind == ENHANCED_PACKET {
            let kept = number(body, 12)? as usize;
            // The flags are the first option behind the packet.
            let flags_at = 20 + kept.next_multiple_of(4) + 4;
            packets.push(PacketRecord {
                at_ns: u64::from(number(body, 4)?) << 32 | u64::from(number(body, 8)?),
                length_bytes: number(body, 16)?,
                is_outbound: number(body, flags_at)? == OUTBOUND,
            });
        }
        bytes = &bytes[length..];
    }
    Ok(packets)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) struct ReadPacket {
        pub(in super::super) at_ns: u64,
        pub(in super::super) bytes: Vec<u8>,
        pub(in super::super) is_outbound: bool,
        pub(in super::super) comment: Option<String>,
    }

    #[derive(Default)]
    pub(in super::super) struct ReadFile {
        pub(in super::super) secrets: Vec<u8>,
        pub(in super::super) interface: String,
        pub(in super::super) packets: Vec<ReadPacket>,
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            let head = u32_at(bytes, 0);
            let (code, length) = ((head & 0xffff) as u16, (head >> 16) as usize);
            if code == OPTION_END {
                assert_eq!(bytes.len(), 4, "options end where the block ends");
                return found;
            }
            found.push((code, bytes[4..4 + length].to_vec()));
            bytes = &bytes[4 + length.next_multiple_of(4)..];
        }
    }

    /// A reader written from the format's description, not from the writer.
    pub(in super::super) fn read(mut bytes: &[u8]) -> ReadFile {
        let mut file = ReadFile::default();
        let mut kinds = Vec::new();
        while !bytes.is_empty() {
            let (kind, length) = (u32_at(bytes, 0), u32_at(bytes, 4) as usize);
            assert_eq!(length % 4, 0);
            assert_eq!(u32_at(bytes, length - 4) as usize, length);
            let body = &bytes[8..length - 4];
            kinds.push(kind);
            match kind {
                SECTION_HEADER => assert_eq!(u32_at(body, 0), 0x1a2b_3c4d),
                DECRYPTION_SECRETS => {
                    assert_eq!(&body[..4], b"KSLT");
                    let length = u32_at(body, 4) as usize;
                    file.secrets = body[8..8 + length].to_vec();
                }
                INTERFACE => {
                    assert_eq!(u32_at(body, 0), 101);
                    for (code, value) in options(&body[8..]) {
                        match code {
                            INTERFACE_NAME => file.interface = String::from_utf8(value).unwrap(),
                            code => assert_eq!((code, &value[..]), (TIME_RESOLUTION, &[9][..])),
                        }
                    }
                }
                ENHANCED_PACKET => {
                    let length = u32_at(body, 12) as usize;
                    assert_eq!(u32_at(body, 0), 0);
                    assert_eq!(u32_at(body, 16) as usize, length);
                    let options = options(&body[20 + length.next_multiple_of(4)..]);
                    let of = |wanted| options.iter().find(|(code, _)| *code == wanted);
                    file.packets.push(ReadPacket {
                        at_ns: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
                        bytes: body[20..20 + length].to_vec(),
                        is_outbound: of(PACKET_FLAGS).unwrap().1 == [2, 0, 0, 0],
                        comment: of(COMMENT)
                            .map(|(_, text)| String::from_utf8(text.clone()).unwrap()),
                    });
                }
                kind => panic!("block of kind {kind}"),
            }
            bytes = &bytes[length..];
        }
        assert_eq!(kinds[0], SECTION_HEADER);
        file
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut bytes = Vec::new();
        write_header(&mut bytes, "x", b"").unwrap();
        let at_ns = 1_795_197_950_123_456_789;
        write_packet(&mut bytes, at_ns, &[1, 2, 3], true, Some("lost")).unwrap();
        write_packet(&mut bytes, at_ns + 1, &[], false, None).unwrap();
        let records = read_packets(&bytes).unwrap();
        assert_eq!(
            records[0],
            PacketRecord {
                at_ns,
                length_bytes: 3,
                is_outbound: true
            }
        );
        assert!(!records[1].is_outbound);
        for length in 0..bytes.len() {
            // Cut off anywhere it is an error or a shorter capture, never a panic.
            let _ = read_packets(&bytes[..length]);
        }
        let file = read(&bytes);
        assert!(file.secrets.is_empty());
        assert_eq!(file.packets[0].at_ns, at_ns);
        assert_eq!(file.packets[0].bytes, [1, 2, 3]);
        assert_eq!(file.packets[0].comment.as_deref(), Some("lost"));
        assert!(file.packets[1].bytes.is_empty());
    }
}
