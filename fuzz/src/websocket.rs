//! WebSocket frames from any bytes.
//!
//! The decoder is private to its crate, and that crate brings sockets and TLS; its one file is taken
//! from there as it is.

#[allow(dead_code, reason = "the half that writes frames is not used here")]
#[path = "../../crates/sterna-net/src/websocket/frame.rs"]
mod frame;

use frame::{Decoder, Violation};

/// What the frames said.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    data: Vec<u8>,
    last_ping: Option<Vec<u8>>,
    close: Option<u16>,
    violation: Option<Violation>,
}

/// Checks that frames mean the same however they are cut on the way, and that their payload is what
/// a plain reading of RFC 6455 finds in them.
///
/// # Panics
///
/// Where one of these does not hold.
pub fn frames(bytes: &[u8]) {
    let whole = hear(bytes, bytes.len().max(1));
    let by_byte = hear(bytes, 1);
    let mixed = hear(bytes, 7);
    for pieces in [&by_byte, &mixed] {
        assert_eq!(pieces.violation, whole.violation);
        assert_eq!(pieces.close, whole.close);
        if whole.violation.is_none() {
            assert_eq!(pieces, &whole, "frames in pieces are other frames");
        }
    }
    let plain = read(bytes);
    if whole.violation.is_none() {
        assert_eq!(
            (plain.data, plain.last_ping),
            (by_byte.data, by_byte.last_ping)
        );
    } else {
        assert!(plain.data.starts_with(&by_byte.data));
    }
}

fn hear(bytes: &[u8], piece_bytes: usize) -> Heard {
    let mut decoder = Decoder::default();
    let mut heard = Heard::default();
    for piece in bytes.chunks(piece_bytes) {
        let mut piece = piece.to_vec();
        match decoder.decode(&mut piece) {
            Ok(frame) => {
                assert!(frame.data_bytes <= piece.len());
                heard.data.extend(&piece[..frame.data_bytes]);
                heard.last_ping = frame.ping.or(heard.last_ping);
                if frame.close.is_some() {
                    heard.close = frame.close;
                    break;
                }
            }
            Err(violation) => {
                heard.violation = Some(violation);
                break;
            }
        }
    }
    heard
}

/// Reads frames one after the other and believes all of them.
fn read(mut bytes: &[u8]) -> Heard {
    let mut heard = Heard::default();
    while let Some((opcode, payload, whole, rest)) = read_frame(bytes) {
        match opcode {
            0..8 => heard.data.extend(payload),
            9 if whole => heard.last_ping = Some(payload),
            8 if whole => return heard,
            _ => {}
        }
        bytes = rest;
    }
    heard
}

/// Opcode, payload as far as it has come, whether that is all of it, and what follows.
fn read_frame(bytes: &[u8]) -> Option<(u8, Vec<u8>, bool, &[u8])> {
    let [first, second, rest @ ..] = bytes else {
        return None;
    };
    let (length, rest) = match second & 0x7f {
        126 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (u64::from(u16::from_be_bytes(*length)), rest)
        }
        127 => {
            let (length, rest) = rest.split_first_chunk::<8>()?;
            (u64::from_be_bytes(*length), rest)
        }
        short => (u64::from(short), rest),
    };
    let (mask, rest) = rest.split_first_chunk::<4>()?;
    let here = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(rest.len());
    let (payload, rest) = rest.split_at(here);
    let payload = payload
        .iter()
        .enumerate()
        .map(|(at, byte)| byte ^ mask[at % 4])
        .collect();
    Some((first & 0x0f, payload, here as u64 == length, rest))
}
