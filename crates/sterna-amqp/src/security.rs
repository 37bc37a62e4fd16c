//! Protocol headers (AMQP 1.0, part 2, section 2.2; part 5).

use bytes::{BufMut as _, BytesMut};

/// Meaning of the bytes after a protocol header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolId {
    /// AMQP frames.
    Amqp,
    /// A TLS handshake (part 5, section 5.2.1). Refused: TLS belongs beneath AMQP.
    Tls,
    /// A SASL negotiation (part 5, section 5.3.1).
    Sasl,
    /// Anything else.
    Other(u8),
}

/// Eight bytes at the start of a protocol layer: `AMQP`, an id, and a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProtocolHeader {
    /// Layer that begins.
    pub id: ProtocolId,
    /// Major, minor, revision.
    pub version: [u8; 3],
}

impl ProtocolHeader {
    /// Length of a header, in bytes.
    pub const BYTES: usize = 8;
    /// The first four of them.
    pub const PREFIX: [u8; 4] = *b"AMQP";
    /// AMQP 1.0.0.
    pub const AMQP: Self = Self {
        id: ProtocolId::Amqp,
        version: [1, 0, 0],
    };
    /// The SASL layer of AMQP 1.0.0.
    pub const SASL: Self = Self {
        id: ProtocolId::Sasl,
        version: [1, 0, 0],
    };

    /// Reads a header; `None` if the bytes do not begin with `AMQP`.
    #[must_use]
    pub fn parse(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [b'A', b'M', b'Q', b'P', id, major, minor, revision] = bytes else {
            return None;
        };
        Some(Self {
            id: match id {
                0 => ProtocolId::Amqp,
                2 => ProtocolId::Tls,
                3 => ProtocolId::Sasl,
                other => ProtocolId::Other(other),
            },
            version: [major, minor, revision],
        })
    }

    /// Appends the header.
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&Self::PREFIX);
        out.put_u8(match self.id {
            ProtocolId::Amqp => 0,
            ProtocolId::Tls => 2,
            ProtocolId::Sasl => 3,
            ProtocolId::Other(id) => id,
        });
        out.put_slice(&self.version);
    }
}
