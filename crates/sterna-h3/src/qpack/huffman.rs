//! The Huffman code of HPACK and QPACK (RFC 7541, appendix B).
//!
//! The code is canonical: within a length codes ascend with the symbols, and longer codes follow
//! shorter ones. So the lengths are all that has to be written down.

use super::Error;

/// Bits of the code of each symbol; the last is the end of the string (EOS).
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// Shortest and longest code in bits.
const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// Bits that are looked up at once: letters, digits and most punctuation have no longer code.
const QUICK_BITS: u32 = 8;

/// The code of each symbol, in the low bits.
const CODES: [u32; 257] = CANON.codes;
const CANON: Canon = Canon::new();

/// Symbol and length by the next eight bits; length 0 where the code is longer.
const QUICK: [(u8, u8); 1 << QUICK_BITS] = quick();

/// Tables that follow from the lengths.
struct Canon {
    codes: [u32; 257],
    /// Symbols by length, then by value.
    symbols: [u16; 257],
    /// First code of each length, moved up to the top of 32 bits; lower values belong to a shorter
    /// code.
    first: [u32; LONGEST + 2],
    /// Where in `symbols` each length begins.
    offset: [u16; LONGEST + 2],
}

impl Canon {
    const fn new() -> Self {
        let mut canon = Self {
            codes: [0; 257],
            symbols: [0; 257],
            first: [0; LONGEST + 2],
            offset: [0; LONGEST + 2],
        };
        let mut code = 0_u64;
        let mut placed = 0;
        let mut bits = 1;
        while bits <= LONGEST {
            code <<= 1;
            canon.first[bits] = (code << (32 - bits)) as u32;
            canon.offset[bits] = placed as u16;
            let mut symbol = 0;
            while symbol < LENGTHS.len() {
                if LENGTHS[symbol] as usize == bits {
                    canon.codes[symbol] = code as u32;
                    canon.symbols[placed] = symbol as u16;
                    placed += 1;
                    code += 1;
                }
                symbol += 1;
            }
            bits += 1;
        }
        // The code is complete: after the last one nothing is left.
        assert!(code == 1 << LONGEST && placed == LENGTHS.len());
        canon.first[LONGEST + 1] = u32::MAX;
        canon
    }
}

const fn quick() -> [(u8, u8); 1 << QUICK_BITS] {
    let mut table = [(0, 0); 1 << QUICK_BITS];
    let mut symbol = 0;
    while symbol < 256 {
        let bits = LENGTHS[symbol] as u32;
        if bits <= QUICK_BITS {
            let first = CODES[symbol] << (QUICK_BITS - bits);
            let mut at = first;
            while at < first + (1 << (QUICK_BITS - bits)) {
                table[at as usize] = (symbol as u8, bits as u8);
                at += 1;
            }
        }
        symbol += 1;
    }
    table
}

/// Bytes that `text` takes in the code.
pub(super) fn encoded_bytes(text: &[u8]) -> usize {
    let bits: usize = text
        .iter()
        .map(|byte| usize::from(LENGTHS[usize::from(*byte)]))
        .sum();
    bits.div_ceil(8)
}

/// Appends `text` in the code, with ones up to the next byte.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    // The low `pending` bits wait; never more than 7 + 30.
    let mut bits = 0_u64;
    let mut pending = 0_u32;
    for byte in text {
        let symbol = usize::from(*byte);
        bits = bits << LENGTHS[symbol] | u64::from(CODES[symbol]);
        pending += u32::from(LENGTHS[symbol]);
        if pending >= 32 {
            pending -= 32;
            out.extend_from_slice(&((bits >> pending) as u32).to_be_bytes());
        }
    }
    while pending >= 8 {
        pending -= 8;
        out.push((bits >> pending) as u8);
    }
    if pending > 0 {
        out.push((bits << (8 - pending)) as u8 | 0xff >> pending);
    }
}

/// Appends the text of `input`.
///
/// # Errors
///
/// If the padding is longer than 7 bits or has other bits than ones. Also if EOS stands in the text
/// (RFC 7541, section 5.2).
pub(super) fn decode(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    // The high `held` bits of `window` are the next ones.
    let mut window = 0_u64;
    let mut held = 0_u32;
    loop {
        if held <= 32 {
            if let Some((next, rest)) = input.split_first_chunk::<4>() {
                window |= u64::from(u32::from_be_bytes(*next)) << (32 - held);
                held += 32;
                input = rest;
            } else {
                while held <= 56
                    && let Some((next, rest)) = input.split_first()
                {
                    window |= u64::from(*next) << (56 - held);
                    held += 8;
                    input = rest;
                }
            }
        }
        let (symbol, bits) = QUICK[(window >> (64 - QUICK_BITS)) as usize];
        let (symbol, bits) = if bits == 0 {
            long(window)
        } else {
            (u16::from(symbol), u32::from(bits))
        };
        if bits > held {
            break;
        }
        let Ok(symbol) = u8::try_from(symbol) else {
            return Err(Error("end of string in a Huffman code"));
        };
        out.push(symbol);
        window <<= bits;
        held -= bits;
    }
    if held > 7 {
        return Err(Error("Huffman code is cut off or its padding too long"));
    }
    if window >> 57 | (0x7f >> held) != 0x7f {
        return Err(Error("Huffman padding is not the start of EOS"));
    }
    Ok(())
}

/// Symbol and length of a code of more than eight bits at the top of `window`.
fn long(window: u64) -> (u16, u32) {
    let top = (window >> 32) as u32;
    let mut bits = SHORTEST.max(QUICK_BITS as usize) + 1;
    while bits < LONGEST && top >= CANON.first[bits + 1] {
        bits += 1;
    }
    let index = (top - CANON.first[bits]) >> (32 - bits);
    let symbol = CANON.symbols[usize::from(CANON.offset[bits]) + index as usize];
    (symbol, bits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    /// RFC 7541, appendix C.4 and C.6.
    #[test]
    fn the_samples_of_the_specification() {
        let samples: [(&str, &[u8]); 6] = [
            (
                "www.example.com",
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ],
            ),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (
                "custom-key",
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f],
            ),
            ("302", &[0x64, 0x02]),
            ("307", &[0x64, 0x0e, 0xff]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ];
        for (text, bytes) in samples {
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!(out, bytes, "{text}");
            assert_eq!(encoded_bytes(text.as_bytes()), bytes.len());
            assert_eq!(decoded(bytes).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn every_symbol_at_every_offset() {
        for before in 0..8 {
            for symbol in 0..=255_u8 {
                let mut text = vec![b'0'; before];
                text.extend([symbol, symbol ^ 0x55, b'z', symbol]);
                let mut out = Vec::new();
                encode(&text, &mut out);
                assert_eq!(out.len(), encoded_bytes(&text));
                assert_eq!(decoded(&out).unwrap(), text);
            }
        }
    }

    #[test]
    fn padding_is_short_and_made_of_ones() {
        // `a` is 00011.
        assert_eq!(decoded(&[0b0001_1111]).unwrap(), b"a");
        for wrong in [0b0001_1000, 0b0001_1110, 0b0001_1011] {
            assert!(decoded(&[wrong]).is_err(), "{wrong:b}");
        }
        assert!(decoded(&[0b0001_1111, 0xff]).is_err());
        assert!(decoded(&[0xff]).is_err());
        assert!(decoded(&[]).unwrap().is_empty());
        // EOS, and EOS after an `a`.
        assert!(decoded(&[0xff; 4]).is_err());
        assert!(decoded(&[0b0001_1111, 0xff, 0xff, 0xff, 0xff]).is_err());
        // The longest code that is a symbol ends a byte of padding before EOS would.
        let mut out = Vec::new();
        encode(&[b'\n', 22], &mut out);
        assert_eq!(decoded(&out).unwrap(), [b'\n', 22]);
    }
}
