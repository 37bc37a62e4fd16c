//! Numbers and texts in records: integers of seven bits a byte, texts with their length in front.

use core::net::IpAddr;

/// The highest position, epoch or round that is read. True ones do not come near, and what is derived from one cannot
/// overflow.
pub(crate) const HIGHEST_PLACE: u64 = i64::MAX as u64;

/// Appends an integer, seven bits a byte, the lowest first.
#[inline]
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a principal's network: an IPv4 address, or the /48 of an IPv6 one.
pub(crate) fn put_network(out: &mut Vec<u8>, network: IpAddr) {
    match network {
        IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => out.extend_from_slice(&address.octets()[..6]),
    }
}

/// The network that [`put_network`] appended, which is told by its length; `None` where it is none.
pub(crate) fn read_network(bytes: &[u8]) -> Option<IpAddr> {
    if bytes.len() == 6 {
        let mut address = [0; 16];
        address[..6].copy_from_slice(bytes);
        return Some(IpAddr::from(address));
    }
    Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?))
}

/// Bytes that [`put_number`] appends.
#[inline]
pub(crate) const fn number_bytes(number: u64) -> usize {
    let bits = u64::BITS - (number | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Appends bytes with their length in front.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what was put. Every call gives `None` where the record is too short or not well formed.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) const fn new(record: &'a [u8]) -> Self {
        Self { rest: record }
    }

    #[inline]
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        // As most lengths are.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Some(u64::from(*byte));
        }
        self.long_number()
    }

    #[inline]
    fn long_number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for (at, byte) in self.rest.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Some(number);
            }
        }
        None
    }

    /// A position, an epoch or a number of a process; `None` where it is above [`HIGHEST_PLACE`].
    pub(crate) fn place(&mut self) -> Option<u64> {
        self.number().filter(|&place| place <= HIGHEST_PLACE)
    }

    #[inline]
    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (slice, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(slice)
    }

    #[inline]
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.slice(len)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_take_few_bytes() {
        let mut out = Vec::new();
        let numbers = [
            0,
            1,
            0x7f,
            0x80,
            0x3fff,
            0x4000,
            u64::from(u32::MAX),
            u64::MAX,
        ];
        for number in numbers {
            put_number(&mut out, number);
        }
        assert_eq!(out.len(), 1 + 1 + 1 + 2 + 2 + 3 + 5 + 10);
        let bytes: usize = numbers.into_iter().map(number_bytes).sum();
        assert_eq!(out.len(), bytes);
        let mut fields = Fields::new(&out);
        for number in numbers {
            assert_eq!(fields.number(), Some(number));
        }
        assert_eq!(fields.number(), None);
    }

    #[test]
    fn what_is_cut_off_is_no_field() {
        assert_eq!(Fields::new(&[0x80]).number(), None);
        assert_eq!(Fields::new(&[0xff; 11]).number(), None);
        assert_eq!(Fields::new(&[3, b'a', b'b']).bytes(), None);
        assert_eq!(Fields::new(&[1, 0xff]).text(), None);
    }
}
