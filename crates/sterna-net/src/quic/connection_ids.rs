//! Connection identifiers that carry the owner of the connection: the shard, and the node where one is named.
//!
//! A byte of the identifier modulo the number of shards is the shard's index. So a packet reaches its owner after the
//! peer's address changed. The kernel (a BPF program on the sockets' group) or a sibling steers it. Without a node that
//! byte is the first. With one, the identifier has the plaintext form of draft-ietf-quic-load-balancers-21, and a
//! balancer steers by it:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 3 bits: the config rotation; 5 random bits |
//! | 1 to 6 | the server ID |
//! | 1 | the nonce begins: the shard |
//! | 5 | the rest of the nonce: random |

use std::fmt;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use rustls::crypto::SecureRandom;

use super::driver::Placement;

/// Length of identifiers without a server ID, in bytes.
pub const CONNECTION_ID_BYTES: usize = 8;

/// Bytes of an identifier beside its server ID.
const FIRST_AND_NONCE_BYTES: usize = 7;

/// Bits of the first byte below the config rotation.
const ROTATION_SHIFT: u8 = 5;

/// The name of a node in its connection identifiers, for load balancers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerId {
    bytes: [u8; Self::MOST_BYTES],
    length: u8,
    config_rotation: u8,
}

impl ServerId {
    /// Most bytes. A client's own identifier has at least 8 bytes, and the byte of the shard lies within.
    pub const MOST_BYTES: usize = 6;
    /// The highest config rotation. 7 is for packets that a balancer steers by address alone.
    pub const HIGHEST_ROTATION: u8 = 6;

    /// A server ID of 1 to 6 bytes under a config rotation of 0 to 6; `None` for others.
    #[must_use]
    pub fn new(server_id: &[u8], config_rotation: u8) -> Option<Self> {
        let fits = (1..=Self::MOST_BYTES).contains(&server_id.len());
        if !fits || config_rotation > Self::HIGHEST_ROTATION {
            return None;
        }
        let mut bytes = [0; Self::MOST_BYTES];
        bytes[..server_id.len()].copy_from_slice(server_id);
        Some(Self {
            bytes,
            length: server_id.len() as u8,
            config_rotation,
        })
    }

    /// Bytes of the server ID.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Offset of the shard's byte in identifiers.
pub(crate) fn shard_offset(server_id: Option<&ServerId>) -> usize {
    server_id.map_or(0, |id| 1 + id.as_bytes().len())
}

/// The shard that owns the connection a datagram is for.
///
/// It reads the destination connection identifier, which has the node's server ID, if it has one. Initial packets of new connections carry an
/// identifier of the client's choice, for which any shard is as good as another. `None`: too short to tell.
#[must_use]
pub fn shard_of(datagram: &[u8], shards: u16, server_id: Option<&ServerId>) -> Option<u16> {
    const LONG_HEADER: u8 = 0x80;
    // RFC 9000, section 17: long headers have flags, version and a length before the identifier.
    let start = if datagram.first()? & LONG_HEADER == 0 {
        1
    } else {
        6
    };
    let at = start + shard_offset(server_id);
    Some(u16::from(*datagram.get(at)?) % shards.max(1))
}

/// Random bytes fetched at a time.
const BATCH_BYTES: usize = 256;

/// Makes identifiers of one shard.
pub(super) struct ShardConnectionIds {
    placement: Placement,
    server_id: Option<ServerId>,
    random: &'static dyn SecureRandom,
    batch: [u8; BATCH_BYTES],
    used: usize,
}

impl ShardConnectionIds {
    pub(super) fn new(placement: Placement, server_id: Option<ServerId>) -> Self {
        let random = rustls::crypto::ring::default_provider().secure_random;
        Self {
            placement,
            server_id,
            random,
            batch: [0; BATCH_BYTES],
            used: BATCH_BYTES,
        }
    }

    fn next(&mut self) -> [u8; CONNECTION_ID_BYTES] {
        if self.used + CONNECTION_ID_BYTES > BATCH_BYTES {
            // Without randomness no handshake would work either; identifiers that repeat are told
            // apart by the endpoint, which asks again.
            if self.random.fill(&mut self.batch).is_err() {
                tracing::error!("no random numbers for connection identifiers");
            }
            self.used = 0;
        }
        let mut id = [0; CONNECTION_ID_BYTES];
        id.copy_from_slice(&self.batch[self.used..self.used + CONNECTION_ID_BYTES]);
        self.used += CONNECTION_ID_BYTES;
        id
    }
}

impl fmt::Debug for ShardConnectionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardConnectionIds")
            .field("placement", &self.placement)
            .field("server_id", &self.server_id)
            .finish_non_exhaustive()
    }
}

impl ConnectionIdGenerator for ShardConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let Placement { shard, shards, .. } = self.placement;
        let mut random = self.next();
        let of_shard = |byte: u8| {
            let lowest = u16::from(byte) / shards * shards + shard;
            // The last group of the byte's range may be incomplete.
            u8::try_from(lowest).unwrap_or(shard as u8)
        };
        let Some(node) = &self.server_id else {
            random[0] = of_shard(random[0]);
            return ConnectionId::new(&random);
        };
        let name = node.as_bytes();
        let mut id = [0; FIRST_AND_NONCE_BYTES + ServerId::MOST_BYTES];
        id[0] = node.config_rotation << ROTATION_SHIFT | random[0] >> (8 - ROTATION_SHIFT);
        id[1..=name.len()].copy_from_slice(name);
        let nonce = &mut id[1 + name.len()..FIRST_AND_NONCE_BYTES + name.len()];
        nonce.copy_from_slice(&random[1..FIRST_AND_NONCE_BYTES]);
        nonce[0] = of_shard(nonce[0]);
        ConnectionId::new(&id[..FIRST_AND_NONCE_BYTES + name.len()])
    }

    /// Refuses identifiers of other shards and nodes. A stray packet must not cause a stateless reset, which would end
    /// a healthy connection of a sibling.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let owner = id
            .get(shard_offset(self.server_id.as_ref()))
            .map(|byte| u16::from(*byte) % self.placement.shards);
        let is_of_node = (self.server_id.as_ref()).is_none_or(|node| {
            id.get(1..)
                .is_some_and(|id| id.starts_with(node.as_bytes()))
        });
        if owner == Some(self.placement.shard) && is_of_node {
            Ok(())
        } else {
            Err(InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        (self.server_id.as_ref()).map_or(CONNECTION_ID_BYTES, |node| {
            FIRST_AND_NONCE_BYTES + node.as_bytes().len()
        })
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(shard: u16, shards: u16, server_id: Option<ServerId>) -> ShardConnectionIds {
        let placement = Placement {
            listener: 0,
            shard,
            shards,
            address: ([127, 0, 0, 1], 0).into(),
        };
        ShardConnectionIds::new(placement, server_id)
    }

    fn node(bytes: &[u8]) -> ServerId {
        ServerId::new(bytes, 0).expect("a server ID")
    }

    #[test]
    fn identifiers_lead_to_their_shard_and_to_no_other() {
        for server_id in [None, Some(node(&[7])), Some(node(&[1, 2, 3, 4, 5, 6]))] {
            for shards in [1, 2, 3, 7, 16, 255, 256] {
                for shard in [0, shards / 2, shards - 1] {
                    let mut ids = generator(shard, shards, server_id);
                    for _ in 0..200 {
                        let id = ids.generate_cid();
                        assert_eq!(id.len(), ids.cid_len());
                        assert!(ids.validate(&id).is_ok());
                        let mut short = vec![0x40];
                        short.extend_from_slice(&id);
                        let owner =
                            |datagram: &[u8]| shard_of(datagram, shards, server_id.as_ref());
                        assert_eq!(owner(&short), Some(shard));
                        let mut long = vec![0xc0, 0, 0, 0, 1, id.len() as u8];
                        long.extend_from_slice(&id);
                        assert_eq!(owner(&long), Some(shard));
                        if shards > 1 {
                            let sibling = generator((shard + 1) % shards, shards, server_id);
                            assert!(sibling.validate(&id).is_err());
                        }
                    }
                }
            }
        }
    }

    /// draft-ietf-quic-load-balancers-21, sections 3.1 and 5.2: the three most significant bits are the config
    /// rotation. The server ID begins at the second byte, and the nonce has at least four bytes.
    #[test]
    fn identifiers_of_a_node_have_the_plain_form_of_the_draft() {
        for rotation in 0..=ServerId::HIGHEST_ROTATION {
            let server_id = ServerId::new(&[0xab, 0xcd], rotation).expect("a server ID");
            let mut ids = generator(1, 4, Some(server_id));
            let mut low_bits = std::collections::BTreeSet::new();
            for _ in 0..500 {
                let id = ids.generate_cid();
                assert_eq!((id[0] >> 5, &id[1..3]), (rotation, &[0xab, 0xcd][..]));
                assert!((4..=18).contains(&(id.len() - 3)));
                low_bits.insert(id[0] & 0x1f);
            }
            assert_eq!(low_bits.len(), 32, "random");
        }
    }

    #[test]
    fn a_server_id_has_one_to_six_bytes_and_a_rotation_that_is_not_reserved() {
        assert!(ServerId::new(&[], 0).is_none());
        assert!(ServerId::new(&[0; 7], 0).is_none());
        assert!(ServerId::new(&[0], 7).is_none());
        assert!(ServerId::new(&[0; 6], 6).is_some());
    }

    /// A balancer that has lost its way must not make one node reset the connections of another.
    #[test]
    fn identifiers_of_another_node_are_not_valid() {
        let mut ids = generator(0, 1, Some(node(&[1, 1])));
        let other = generator(0, 1, Some(node(&[1, 2])));
        let id = ids.generate_cid();
        assert!(ids.validate(&id).is_ok() && other.validate(&id).is_err());
    }

    #[test]
    fn short_datagrams_have_no_shard() {
        assert_eq!(shard_of(&[], 4, None), None);
        assert_eq!(shard_of(&[0x40], 4, None), None);
        assert_eq!(shard_of(&[0xc0, 0, 0, 0, 1, 8], 4, None), None);
        assert_eq!(shard_of(&[0x40, 0, 1], 4, Some(&node(&[1]))), None);
    }

    #[test]
    fn identifiers_do_not_repeat() {
        for server_id in [None, Some(node(&[9]))] {
            let mut ids = generator(3, 8, server_id);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..1_000 {
                assert!(seen.insert(ids.generate_cid().to_vec()));
            }
        }
    }
}
