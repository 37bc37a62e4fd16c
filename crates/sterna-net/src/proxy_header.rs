//! The header of the PROXY protocol, versions 1 and 2, by which a balancer names the client that it connects for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How version 1 begins.
const TEXT: &[u8] = b"PROXY ";
/// The longest header of version 1, its CRLF included.
const MOST_TEXT_BYTES: usize = 107;
/// How version 2 begins.
const BINARY: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The fixed part of version 2.
const FIXED_BYTES: usize = 16;

/// A header that is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Its length in bytes.
    pub(crate) bytes: usize,
    /// The client's address and port. `None` where the balancer speaks for itself (LOCAL, UNKNOWN), or for a
    /// client that has no address of IP.
    pub(crate) client: Option<SocketAddr>,
}

/// Reads the header at the front of a connection's bytes; `None` until it is complete. One that is longer than
/// `maximum_bytes` is refused as soon as its length is known.
///
/// # Errors
///
/// A fault in it.
pub(crate) fn read(bytes: &[u8], maximum_bytes: usize) -> Result<Option<Header>, &'static str> {
    if begins_with(bytes, BINARY) {
        binary(bytes, maximum_bytes)
    } else if begins_with(bytes, TEXT) {
        text(bytes, maximum_bytes.min(MOST_TEXT_BYTES))
    } else {
        Err("there is none")
    }
}

/// Whether the bytes begin with a mark, as far as both go.
fn begins_with(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.iter().zip(mark).all(|(one, other)| one == other)
}

fn text(bytes: &[u8], maximum_bytes: usize) -> Result<Option<Header>, &'static str> {
    const WRONG: &str = "the line is malformed";
    let head = &bytes[..bytes.len().min(maximum_bytes)];
    let Some(end) = head.windows(2).position(|pair| pair == b"\r\n") else {
        if bytes.len() >= maximum_bytes {
            return Err("the line is too long");
        }
        return Ok(None);
    };
    let line = std::str::from_utf8(&head[..end]).map_err(|_| WRONG)?;
    let mut words = line.split(' ').skip(1);
    let client = match words.next() {
        // The rest of the line is ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(addresses(words, |word| {
            word.parse().ok().map(|address: Ipv4Addr| address.into())
        })),
        Some("TCP6") => Some(addresses(words, |word| {
            word.parse().ok().map(|address: Ipv6Addr| address.into())
        })),
        _ => return Err(WRONG),
    };
    let client = match client {
        Some(client) => Some(client.ok_or(WRONG)?),
        None => None,
    };
    Ok(Some(Header {
        bytes: end + 2,
        client,
    }))
}

/// The source of a line of version 1; its destination is only checked.
fn addresses<'a>(
    mut words: impl Iterator<Item = &'a str>,
    address: impl Fn(&str) -> Option<IpAddr>,
) -> Option<SocketAddr> {
    let source = address(words.next()?)?;
    address(words.next()?)?;
    let source_port = port(words.next()?)?;
    port(words.next()?)?;
    words
        .next()
        .is_none()
        .then(|| SocketAddr::new(source, source_port))
}

/// A port as version 1 writes it: digits, without zeros in front.
fn port(word: &str) -> Option<u16> {
    let is_plain =
        word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    is_plain.then(|| word.parse().ok())?
}

fn binary(bytes: &[u8], maximum_bytes: usize) -> Result<Option<Header>, &'static str> {
    let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else {
        return Ok(None);
    };
    let [version, family] = [fixed[12], fixed[13]];
    if version >> 4 != 2 {
        return Err("the version is not 2");
    }
    let is_local = match version & 0x0F {
        0 => true,
        1 => false,
        _ => return Err("the command is neither LOCAL nor PROXY"),
    };
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let end = FIXED_BYTES + length;
    if end > maximum_bytes {
        return Err("it is too long");
    }
    let Some(rest) = bytes.get(FIXED_BYTES..end) else {
        return Ok(None);
    };
    let short = "it is too short for its addresses";
    let client = match family {
        _ if is_local => None,
        // The balancer names no client, or a client on its own host.
        0x00 => None,
        0x31 if length >= 216 => None,
        0x11 => {
            let fields = rest.first_chunk::<12>().ok_or(short)?;
            let [a, b, c, d, .., high, low, _, _] = *fields;
            let port = u16::from_be_bytes([high, low]);
            Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), port))
        }
        0x21 => {
            let fields = rest.first_chunk::<36>().ok_or(short)?;
            let mut address = [0; 16];
            address.copy_from_slice(&fields[..16]);
            let port = u16::from_be_bytes([fields[32], fields[33]]);
            Some(SocketAddr::new(Ipv6Addr::from(address).into(), port))
        }
        0x31 => return Err(short),
        _ => return Err("it is not about a stream"),
    };
    Ok(Some(Header { bytes: end, client }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 4096;

    fn written(client: SocketAddr, is_text: bool, extra: &[u8]) -> Vec<u8> {
        if is_text {
            let kind = if client.is_ipv4() { "TCP4" } else { "TCP6" };
            let ip = client.ip();
            return format!("PROXY {kind} {ip} {ip} {} 443\r\n", client.port()).into_bytes();
        }
        let (family, mut addresses) = match client.ip() {
            IpAddr::V4(ip) => (0x11, [ip.octets(), ip.octets()].concat()),
            IpAddr::V6(ip) => (0x21, [ip.octets(), ip.octets()].concat()),
        };
        addresses.extend(client.port().to_be_bytes());
        addresses.extend(443_u16.to_be_bytes());
        addresses.extend(extra);
        let length = u16::try_from(addresses.len()).expect("a short header");
        let mut bytes = BINARY.to_vec();
        bytes.extend([0x21, family]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(addresses);
        bytes
    }

    fn clients() -> impl Strategy<Value = SocketAddr> {
        let v4 = any::<[u8; 4]>().prop_map(IpAddr::from);
        let v6 = any::<[u8; 16]>().prop_map(IpAddr::from);
        (prop_oneof![v4, v6], any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    proptest! {
        /// A header says the same in any pieces, and before any bytes.
        #[test]
        fn a_header_is_read_as_it_was_written(
            client in clients(),
            is_text: bool,
            extra in prop::collection::vec(any::<u8>(), 0..40),
            after in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let header = written(client, is_text, &extra);
            let all = [&*header, &*after].concat();
            for end in 0..header.len() {
                prop_assert_eq!(read(&all[..end], MOST), Ok(None));
            }
            let found = Header { bytes: header.len(), client: Some(client) };
            prop_assert_eq!(read(&header, MOST), Ok(Some(found)));
            prop_assert_eq!(read(&all, MOST), Ok(Some(found)));
        }

        /// With more bytes behind it, a refused header stays refused and a complete one stays complete.
        #[test]
        fn more_bytes_change_no_verdict(
            start in prop::sample::select(vec![&b""[..], TEXT, BINARY, b"PROXY TCP4 1.2.3.4 ", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"]),
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let all = [start, &*bytes].concat();
            let mut before = Ok(None);
            for end in 0..=all.len() {
                let now = read(&all[..end], 200);
                prop_assert!(before == Ok(None) || before == now, "{:?} {:?}", before, now);
                if let Ok(Some(header)) = now {
                    prop_assert!(header.bytes <= end && header.bytes <= 200);
                }
                prop_assert!(end < 200 || now != Ok(None), "what is too long is refused");
                before = now;
            }
        }
    }

    #[test]
    fn a_balancer_may_speak_for_itself() {
        let local = [&BINARY[..], &[0x20, 0x11, 0, 2, 9, 9], b"next"].concat();
        let unspecified = [&BINARY[..], &[0x21, 0x00, 0, 0]].concat();
        let unix = [&BINARY[..], &[0x21, 0x31, 0, 216], &[7; 216]].concat();
        for (bytes, length) in [
            (&b"PROXY UNKNOWN\r\n"[..], 15),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nrest", 35),
            (&local, 18),
            (&unspecified, 16),
            (&unix, 232),
        ] {
            let found = Header {
                bytes: length,
                client: None,
            };
            assert_eq!(read(bytes, MOST), Ok(Some(found)));
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        let binary = |fields: &[u8]| [&BINARY[..], fields].concat();
        for bytes in [
            b"\x10\x0e\0\x04MQTT".to_vec(),
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"\x16\x03\x01".to_vec(),
            b"PROXY\tTCP4 ".to_vec(),
            b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.04 1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
            b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \r\n".to_vec(),
            b"PROXY TCP4 \xff.2.3.4 1.2.3.4 1 2\r\n".to_vec(),
            long,
            binary(&[0x11, 0x11, 0, 12]),
            binary(&[0x22, 0x11, 0, 12]),
            binary(&[0x21, 0x12, 0, 12, 1, 2, 3, 4, 1, 2, 3, 4, 0, 1, 0, 2]),
            binary(&[0x21, 0x11, 0, 11, 1, 2, 3, 4, 1, 2, 3, 4, 0, 1, 0]),
            binary(&[0x21, 0x31, 0, 1, 0]),
            binary(&[0x21, 0x11, 0xff, 0xff]),
        ] {
            assert!(read(&bytes, MOST).is_err(), "{bytes:?}");
        }
    }
}
