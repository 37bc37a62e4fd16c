//! The ClientHello as far as the library does not tell of it: what a client offered, for the log, and the size of records
//! that it asks for.

/// Bytes of a record's header (RFC 8446, section 5.1).
const RECORD_HEADER: usize = 5;
/// Bytes in front of a handshake message.
const MESSAGE_HEADER: usize = 4;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// Most of the client's offers that are kept for the log, of each kind.
const MOST_KEPT: usize = 8;
/// Longest name that is kept.
const MOST_NAME_BYTES: usize = 32;
/// Cipher suites that are served, and versions of TLS.
pub(crate) const SERVED_CIPHERS: [u16; 9] = [
    0x1301, 0x1302, 0x1303, 0xc02b, 0xc02c, 0xc02f, 0xc030, 0xcca8, 0xcca9,
];
const SERVED_VERSIONS: [u16; 2] = [0x0303, 0x0304];
/// Smallest limit of RFC 8449, section 4.
const LEAST_RECORD_BYTES: u16 = 64;

mod extension {
    /// RFC 6066, section 4.
    pub(super) const MAX_FRAGMENT_LENGTH: u16 = 1;
    /// RFC 7301.
    pub(super) const ALPN: u16 = 16;
    /// RFC 8449.
    pub(super) const RECORD_SIZE_LIMIT: u16 = 28;
    /// RFC 8446, section 4.2.1.
    pub(super) const SUPPORTED_VERSIONS: u16 = 43;
}

/// The offers of a client. Lists are cut at [`MOST_KEPT`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hello {
    /// Versions of TLS.
    versions: Vec<u16>,
    pub(crate) ciphers: Vec<u16>,
    /// Number of all its cipher suites.
    pub(crate) all_ciphers: usize,
    /// One of them is served.
    pub(crate) shares_cipher: bool,
    /// A version of TLS that it speaks may be served.
    pub(crate) shares_version: bool,
    pub(crate) protocols: Vec<Box<[u8]>>,
    /// The most bytes of plaintext that it takes in one record, where it says so.
    pub(crate) record_bytes: Option<u16>,
}

/// The first record of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FirstRecord {
    /// It is not complete yet.
    Incomplete,
    /// It holds a ClientHello.
    Hello(Box<Hello>),
    /// It holds something else, or only a part of a ClientHello. The library may still understand it.
    Other,
}

impl FirstRecord {
    /// Looks at the first bytes of a connection. The work is bounded by one record.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        if bytes.first().is_some_and(|kind| *kind != HANDSHAKE) {
            return Self::Other;
        }
        let Some(&[_, major, _, high, low]) = bytes.first_chunk::<RECORD_HEADER>() else {
            return Self::Incomplete;
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        // A longer one is refused by the library.
        if major != 3 || length > 1 << 14 {
            return Self::Other;
        }
        let Some(record) = bytes.get(RECORD_HEADER..RECORD_HEADER + length) else {
            return Self::Incomplete;
        };
        let hello = record.split_at_checked(MESSAGE_HEADER);
        match hello {
            Some(([CLIENT_HELLO, 0, high, low], rest)) => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                let hello = rest.get(..length).and_then(Hello::of);
                hello.map_or(Self::Other, |hello| Self::Hello(Box::new(hello)))
            }
            _ => Self::Other,
        }
    }
}

impl Hello {
    /// Reads the body of a ClientHello (RFC 8446, section 4.1.2); `None` where it is malformed.
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        let mut input = Input(body);
        let version = input.number()?;
        input.take(32)?; // random
        input.short_vector()?; // session
        let ciphers = input.vector()?;
        input.short_vector()?; // compression
        let mut hello = Self {
            versions: vec![version],
            all_ciphers: ciphers.0.len() / 2,
            shares_cipher: ciphers.has(&SERVED_CIPHERS),
            shares_version: SERVED_VERSIONS.contains(&version),
            ciphers: ciphers.numbers(),
            ..Self::default()
        };
        if input.0.is_empty() {
            return Some(hello);
        }
        let mut extensions = input.vector()?;
        let mut limit = None;
        while !extensions.0.is_empty() {
            let kind = extensions.number()?;
            let mut body = extensions.vector()?;
            match kind {
                extension::SUPPORTED_VERSIONS => {
                    let versions = body.short_vector()?;
                    hello.shares_version = versions.has(&SERVED_VERSIONS);
                    hello.versions = versions.numbers();
                }
                extension::ALPN => hello.protocols = body.vector()?.names(),
                extension::MAX_FRAGMENT_LENGTH => {
                    hello.record_bytes = match body.0 {
                        [code @ 1..=4] => Some(256 << code),
                        _ => None,
                    };
                }
                extension::RECORD_SIZE_LIMIT => {
                    limit = body.number().filter(|bytes| *bytes >= LEAST_RECORD_BYTES);
                }
                _ => {}
            }
        }
        // The newer one counts where both are there (RFC 8449, section 5). In TLS 1.3 the type of the content is part of
        // it (section 4), and with TLS 1.2 one byte less does no harm.
        hello.record_bytes = limit.map(|bytes| bytes - 1).or(hello.record_bytes);
        Some(hello)
    }

    /// The versions of TLS that it speaks, for the log. Those that nobody knows are left out.
    pub(crate) fn versions(&self) -> String {
        let known = self.versions.iter().filter_map(|version| match version {
            0x0300 => Some("SSL 3.0"),
            0x0301 => Some("TLS 1.0"),
            0x0302 => Some("TLS 1.1"),
            0x0303 => Some("TLS 1.2"),
            0x0304 => Some("TLS 1.3"),
            _ => None,
        });
        known.collect::<Vec<_>>().join(", ")
    }
}

/// Bytes that are still to be read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        let (taken, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*taken))
    }

    /// A vector whose length has two bytes.
    fn vector(&mut self) -> Option<Self> {
        let length = self.number()?;
        self.take(length.into()).map(Self)
    }

    /// A vector whose length has one byte.
    fn short_vector(&mut self) -> Option<Self> {
        let length = self.take(1)?[0];
        self.take(length.into()).map(Self)
    }

    /// Whether one of these is among its numbers.
    fn has(&self, wanted: &[u16]) -> bool {
        let mut numbers = (self.0.chunks_exact(2)).map(|two| u16::from_be_bytes([two[0], two[1]]));
        numbers.any(|number| wanted.contains(&number))
    }

    /// The first of its numbers that are no random ones (GREASE, RFC 8701).
    fn numbers(mut self) -> Vec<u16> {
        let all = std::iter::from_fn(|| self.number());
        let is_grease = |number: &u16| number & 0x0f0f == 0x0a0a && number >> 8 == number & 0xff;
        all.filter(|number| !is_grease(number))
            .take(MOST_KEPT)
            .collect()
    }

    /// The first of its names, each cut.
    fn names(mut self) -> Vec<Box<[u8]>> {
        let all = std::iter::from_fn(|| self.short_vector());
        let cut = |name: Self| name.0[..name.0.len().min(MOST_NAME_BYTES)].into();
        all.take(MOST_KEPT).map(cut).collect()
    }
}
