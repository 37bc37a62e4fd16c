//! Frames of RFC 6455, section 5, as a server reads and writes them.

/// Longest header: two bytes, eight of length, four of mask.
const HEADER_BYTES: usize = 14;
/// Longest payload of a control frame (section 5.5).
pub(crate) const CONTROL_BYTES: usize = 125;

/// Status codes of a Close frame (section 7.4.1).
pub(crate) mod code {
    pub(crate) const NORMAL: u16 = 1000;
    pub(crate) const GOING_AWAY: u16 = 1001;
    pub(crate) const PROTOCOL_ERROR: u16 = 1002;
    pub(crate) const UNSUPPORTED_DATA: u16 = 1003;
    pub(crate) const NO_STATUS: u16 = 1005;
    pub(crate) const INVALID_DATA: u16 = 1007;
}

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// Why a peer's frames cannot be read on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    /// Code of the Close frame.
    pub(crate) code: u16,
    /// Text for the log.
    pub(crate) what: &'static str,
}

const fn violation(what: &'static str) -> Violation {
    Violation {
        code: code::PROTOCOL_ERROR,
        what,
    }
}

/// Content of received bytes besides data.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Decoded {
    /// Bytes of data, which now are at the front of the buffer.
    pub(crate) data_bytes: usize,
    /// The payload of the last Ping. Earlier ones need no answer (section 5.5.3).
    pub(crate) ping: Option<Vec<u8>>,
    /// The peer's Close frame with its status code. Nothing after it is read.
    pub(crate) close: Option<u16>,
}

/// Reads frames from chunks that end anywhere. It holds no data: payload is unmasked in place and
/// moved to the front of the buffer. So the data of many small frames is handed up at once.
///
/// [MQTT-6.0.0-2] The output is a stream of bytes: later layers do not see where frames began.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The header as far as it has come.
    header: [u8; HEADER_BYTES],
    header_bytes: u8,
    /// Payload of the current frame that is still to come.
    payload_left: u64,
    /// Position of the next payload byte within the mask.
    mask_offset: u8,
    /// The current frame; meaningful once its header is complete.
    in_frame: bool,
    /// Whether a data message has begun and its final frame has not come (section 5.4).
    in_message: bool,
    /// Payload of a control frame that is not complete. At most [`CONTROL_BYTES`].
    control: Vec<u8>,
}

impl Decoder {
    /// Decodes a chunk in place.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, Violation> {
        let mut decoded = Decoded::default();
        let mut position = 0;
        while position < bytes.len() || (self.in_frame && self.payload_left == 0) {
            if !self.in_frame {
                position += self.read_header(&bytes[position..])?;
                continue;
            }
            let available = bytes.len() - position;
            let count = usize::try_from(self.payload_left).map_or(available, |n| n.min(available));
            let payload = position..position + count;
            position += count;
            self.payload_left -= count as u64;
            self.unmask(&mut bytes[payload.clone()]);
            let opcode = self.header[0] & 0x0f;
            if opcode < CLOSE {
                if payload.start != decoded.data_bytes {
                    bytes.copy_within(payload, decoded.data_bytes);
                }
                decoded.data_bytes += count;
            } else {
                self.control.extend_from_slice(&bytes[payload]);
            }
            if self.payload_left > 0 {
                continue; // The chunk is exhausted.
            }
            self.in_frame = false;
            self.header_bytes = 0;
            match opcode {
                PING => decoded.ping = Some(std::mem::take(&mut self.control)),
                PONG => self.control = Vec::new(),
                CLOSE => {
                    decoded.close = Some(close_code(&self.control)?);
                    self.control = Vec::new();
                    return Ok(decoded);
                }
                _ => {}
            }
        }
        Ok(decoded)
    }

    /// Takes header bytes from the front of `bytes` and returns their number.
    fn read_header(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let mut taken = 0;
        loop {
            let have = usize::from(self.header_bytes);
            let need = if have < 2 {
                2
            } else {
                2 + self.length_bytes() + 4
            };
            if have == need {
                self.begin_frame()?;
                return Ok(taken);
            }
            let count = (need - have).min(bytes.len() - taken);
            if count == 0 {
                return Ok(taken);
            }
            self.header[have..have + count].copy_from_slice(&bytes[taken..taken + count]);
            self.header_bytes += count as u8;
            taken += count;
            if have < 2 && self.header_bytes >= 2 {
                self.check_first_bytes()?;
            }
        }
    }

    /// Length of the extended length, in bytes.
    fn length_bytes(&self) -> usize {
        match self.header[1] & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    fn check_first_bytes(&self) -> Result<(), Violation> {
        let (first, second) = (self.header[0], self.header[1]);
        if first & RESERVED != 0 {
            return Err(violation("reserved bits are set without an extension"));
        }
        if second & MASKED == 0 {
            return Err(violation("a client's frame is not masked"));
        }
        let opcode = first & 0x0f;
        match opcode {
            CONTINUATION if !self.in_message => Err(violation("a continuation without a message")),
            BINARY if self.in_message => Err(violation("a message within a message")),
            // [MQTT-6.0.0-1] Control packets are sent in binary frames; any other type of data
            // frame closes the connection.
            TEXT => Err(Violation {
                code: code::UNSUPPORTED_DATA,
                what: "a text frame",
            }),
            CLOSE | PING | PONG if first & FINAL == 0 => {
                Err(violation("a control frame is fragmented"))
            }
            CLOSE | PING | PONG if usize::from(second & !MASKED) > CONTROL_BYTES => {
                Err(violation("a control frame is too long"))
            }
            CONTINUATION | BINARY | CLOSE | PING | PONG => Ok(()),
            _ => Err(violation("an unknown type of frame")),
        }
    }

    fn begin_frame(&mut self) -> Result<(), Violation> {
        let length_bytes = self.length_bytes();
        let extended = &self.header[2..2 + length_bytes];
        let length = match length_bytes {
            0 => u64::from(self.header[1] & !MASKED),
            _ => extended
                .iter()
                .fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        // Section 5.2: the shortest form, and the most significant bit is 0.
        if (length_bytes == 2 && length < 126)
            || (length_bytes == 8 && (length <= 0xffff || length >> 63 != 0))
        {
            return Err(violation("a length is not in its shortest form"));
        }
        let opcode = self.header[0] & 0x0f;
        if opcode < CLOSE {
            self.in_message = self.header[0] & FINAL == 0;
        }
        self.payload_left = length;
        self.mask_offset = 0;
        self.in_frame = true;
        Ok(())
    }

    fn unmask(&mut self, bytes: &mut [u8]) {
        let at = 2 + self.length_bytes();
        let mut mask = [0; 4];
        mask.copy_from_slice(&self.header[at..at + 4]);
        mask.rotate_left(usize::from(self.mask_offset));
        let wide = u64::from_ne_bytes([
            mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3],
        ]);
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        self.mask_offset = ((usize::from(self.mask_offset) + bytes.len()) % 4) as u8;
    }
}

/// The status code of a Close frame (section 5.5.1).
fn close_code(payload: &[u8]) -> Result<u16, Violation> {
    let [high, low, reason @ ..] = payload else {
        return if payload.is_empty() {
            Ok(code::NO_STATUS)
        } else {
            Err(violation("a close code of one byte"))
        };
    };
    let status = u16::from_be_bytes([*high, *low]);
    if !matches!(status, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(violation("a close code that must not be sent"));
    }
    if std::str::from_utf8(reason).is_err() {
        return Err(Violation {
            code: code::INVALID_DATA,
            what: "a close reason that is not UTF-8",
        });
    }
    Ok(status)
}

/// Appends the header of one unfragmented binary frame.
pub(crate) fn write_binary_header(out: &mut Vec<u8>, payload_bytes: usize) {
    out.push(FINAL | BINARY);
    match payload_bytes {
        0..126 => out.push(payload_bytes as u8),
        126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
}

/// Appends a Pong frame.
pub(crate) fn write_pong(out: &mut Vec<u8>, payload: &[u8]) {
    debug_assert!(payload.len() <= CONTROL_BYTES);
    out.extend_from_slice(&[FINAL | PONG, payload.len() as u8]);
    out.extend_from_slice(payload);
}

/// Appends a Close frame.
pub(crate) fn write_close(out: &mut Vec<u8>, code: u16) {
    if code == code::NO_STATUS {
        out.extend_from_slice(&[FINAL | CLOSE, 0]);
    } else {
        let [high, low] = code.to_be_bytes();
        out.extend_from_slice(&[FINAL | CLOSE, 2, high, low]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A client's frame.
    fn frame(first: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
        let mut header = Vec::new();
        write_binary_header(&mut header, payload.len());
        header[0] = first;
        header[1] |= MASKED;
        header.extend_from_slice(&mask);
        header.extend(payload.iter().zip(mask.iter().cycle()).map(|(b, m)| b ^ m));
        header
    }

    /// Data, pings, close code.
    type Content = (Vec<u8>, Vec<Vec<u8>>, Option<u16>);

    /// Feeds `wire` in pieces of these sizes (the last one for the rest).
    fn feed(wire: &[u8], sizes: &[usize]) -> Result<Content, Violation> {
        let mut decoder = Decoder::default();
        let (mut data, mut pings, mut rest) = (Vec::new(), Vec::new(), wire);
        let mut sizes = sizes.iter().copied().chain(std::iter::repeat(usize::MAX));
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(sizes.next().unwrap_or(1).clamp(1, rest.len()));
            rest = later;
            let mut piece = piece.to_vec();
            let content = decoder.decode(&mut piece)?;
            data.extend_from_slice(&piece[..content.data_bytes]);
            pings.extend(content.ping);
            if content.close.is_some() {
                return Ok((data, pings, content.close));
            }
        }
        Ok((data, pings, None))
    }

    #[derive(Clone, Debug)]
    struct Message {
        fragments: Vec<Vec<u8>>,
        ping_after: Option<usize>,
        mask: [u8; 4],
    }

    fn message() -> impl Strategy<Value = Message> {
        let fragment = prop_oneof![
            4 => prop::collection::vec(any::<u8>(), 0..200),
            1 => prop::collection::vec(any::<u8>(), 65_530..65_600),
        ];
        (
            prop::collection::vec(fragment, 1..4),
            prop::option::of(0usize..4),
            any::<[u8; 4]>(),
        )
            .prop_map(|(fragments, ping_after, mask)| Message {
                fragments,
                ping_after,
                mask,
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// [MQTT-6.0.0-2] Packets are not aligned with frames: the bytes come out in order however
        /// they were framed and cut.
        #[test]
        fn data_comes_out_however_it_is_framed_and_cut(
            messages in prop::collection::vec(message(), 1..5),
            sizes in prop::collection::vec(1usize..300, 0..400),
        ) {
            let (mut wire, mut data, mut pings) = (Vec::new(), Vec::new(), Vec::new());
            for message in &messages {
                let last = message.fragments.len() - 1;
                for (index, fragment) in message.fragments.iter().enumerate() {
                    let opcode = if index == 0 { BINARY } else { CONTINUATION };
                    let fin = if index == last { FINAL } else { 0 };
                    wire.extend(frame(fin | opcode, fragment, message.mask));
                    data.extend_from_slice(fragment);
                    if message.ping_after == Some(index) {
                        wire.extend(frame(FINAL | PING, &[index as u8; 5], message.mask));
                        pings.push(vec![index as u8; 5]);
                    }
                }
            }
            wire.extend(frame(FINAL | CLOSE, &1001u16.to_be_bytes(), [1, 2, 3, 4]));
            wire.extend_from_slice(b"not looked at");
            let (got, got_pings, close) = feed(&wire, &sizes).expect("valid");
            prop_assert_eq!(got, data);
            prop_assert_eq!(close, Some(1001));
            // Within one chunk only the last ping counts.
            prop_assert!(got_pings.len() <= pings.len());
            prop_assert_eq!(got_pings.last(), pings.last());
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(
            wire in prop::collection::vec(any::<u8>(), 0..600),
            sizes in prop::collection::vec(1usize..50, 0..20),
        ) {
            let _ = feed(&wire, &sizes);
        }

        #[test]
        fn cutting_does_not_change_the_verdict(
            opcode in 0u8..16, fin in any::<bool>(), reserved in 0u8..8, masked in any::<bool>(),
            payload in prop::collection::vec(any::<u8>(), 0..140),
        ) {
            let first = opcode | reserved << 4 | if fin { FINAL } else { 0 };
            let mut wire = frame(first, &payload, [9, 8, 7, 6]);
            if !masked {
                wire[1] &= !MASKED;
            }
            let whole = feed(&wire, &[]);
            let pieces = feed(&wire, &vec![1; wire.len()]);
            prop_assert_eq!(whole.clone().map(|w| w.2), pieces.map(|p| p.2));
            if !masked || reserved != 0 || opcode == TEXT {
                prop_assert!(whole.is_err());
            }
        }
    }

    fn code_of(wire: &[u8]) -> u16 {
        feed(wire, &[]).expect_err("a violation").code
    }

    /// [MQTT-6.0.0-1] A text frame closes the connection.
    #[test]
    fn a_text_frame_is_refused() {
        assert_eq!(
            code_of(&frame(FINAL | TEXT, b"hi", [0; 4])),
            code::UNSUPPORTED_DATA
        );
    }

    #[test]
    fn each_rule_of_the_framing_is_kept() {
        let mask = [5; 4];
        let protocol_errors = [
            frame(FINAL | CONTINUATION, b"x", mask),
            [frame(BINARY, b"x", mask), frame(FINAL | BINARY, b"y", mask)].concat(),
            frame(PING, b"", mask),
            frame(FINAL | PING, &[0; 126], mask),
            frame(FINAL | 0x3, b"", mask),
            frame(FINAL | 0xb, b"", mask),
            frame(FINAL | 0x40 | BINARY, b"", mask),
            frame(FINAL | CLOSE, &[3], mask),
            frame(FINAL | CLOSE, &1005u16.to_be_bytes(), mask),
            frame(FINAL | CLOSE, &999u16.to_be_bytes(), mask),
            vec![FINAL | BINARY, 5, 1, 2, 3, 4, 5],
            vec![FINAL | BINARY, MASKED | 0x7e, 0, 125, 0, 0, 0, 0],
            vec![
                FINAL | BINARY,
                MASKED | 0x7f,
                0,
                0,
                0,
                0,
                0,
                0,
                255,
                255,
                0,
                0,
                0,
                0,
            ],
            vec![
                FINAL | BINARY,
                MASKED | 0x7f,
                128,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ],
        ];
        for wire in &protocol_errors {
            assert_eq!(code_of(wire), code::PROTOCOL_ERROR, "{wire:?}");
        }
        let reason = [&1000u16.to_be_bytes()[..], &[0xff]].concat();
        assert_eq!(
            code_of(&frame(FINAL | CLOSE, &reason, mask)),
            code::INVALID_DATA
        );
        let empty = feed(&frame(FINAL | CLOSE, &[], mask), &[]).expect("valid");
        assert_eq!(empty.2, Some(code::NO_STATUS));
    }

    #[test]
    fn headers_take_the_shortest_form() {
        for (payload, header) in [
            (0, vec![0x82, 0]),
            (125, vec![0x82, 125]),
            (126, vec![0x82, 126, 0, 126]),
            (65_535, vec![0x82, 126, 255, 255]),
            (65_536, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            write_binary_header(&mut out, payload);
            assert_eq!(out, header);
        }
    }
}
