//! Connection identifiers that carry the shard that owns the connection.
//!
//! The first byte modulo the number of shards is the shard's index. So the kernel (a BPF program on
//! the sockets' group) or a sibling can steer a packet to its owner after the peer's address
//! changed. The other seven bytes and the rest of the first are random.

use std::fmt;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use rustls::crypto::SecureRandom;

use super::driver::Placement;

/// Length of the identifiers that we choose, in bytes.
pub const CONNECTION_ID_BYTES: usize = 8;

/// Random bytes fetched at a time.
const BATCH_BYTES: usize = 256;

/// The shard that owns the connection a datagram is for.
///
/// It reads the destination connection identifier. Initial packets of new connections carry an identifier of the client's choice, for which any
/// shard is as good as another. `None`: too short to tell.
#[must_use]
pub fn shard_of(datagram: &[u8], shards: u16) -> Option<u16> {
    const LONG_HEADER: u8 = 0x80;
    // RFC 9000, section 17: long headers have flags, version and a length before the identifier.
    let at = if datagram.first()? & LONG_HEADER == 0 {
        1
    } else {
        6
    };
    Some(u16::from(*datagram.get(at)?) % shards.max(1))
}

/// Makes identifiers of one shard.
pub(super) struct ShardConnectionIds {
    placement: Placement,
    random: &'static dyn SecureRandom,
    batch: [u8; BATCH_BYTES],
    used: usize,
}

impl ShardConnectionIds {
    pub(super) fn new(placement: Placement) -> Self {
        let random = rustls::crypto::ring::default_provider().secure_random;
        Self {
            placement,
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
            .finish_non_exhaustive()
    }
}

impl ConnectionIdGenerator for ShardConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let Placement { shard, shards, .. } = self.placement;
        let mut id = self.next();
        let lowest = u16::from(id[0]) / shards * shards + shard;
        // The last group of the byte's range may be incomplete.
        id[0] = u8::try_from(lowest).unwrap_or(shard as u8);
        ConnectionId::new(&id)
    }

    /// Refuses identifiers of other shards: a stray packet must not cause a stateless reset, which
    /// would end a healthy connection of a sibling.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let owner = id
            .first()
            .map(|byte| u16::from(*byte) % self.placement.shards);
        if owner == Some(self.placement.shard) {
            Ok(())
        } else {
            Err(InvalidCid)
        }
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(shard: u16, shards: u16) -> ShardConnectionIds {
        ShardConnectionIds::new(Placement {
            listener: 0,
            shard,
            shards,
        })
    }

    #[test]
    fn identifiers_lead_to_their_shard_and_to_no_other() {
        for shards in [1, 2, 3, 7, 16, 255, 256] {
            for shard in [0, shards / 2, shards - 1] {
                let mut ids = generator(shard, shards);
                for _ in 0..200 {
                    let id = ids.generate_cid();
                    assert_eq!(id.len(), CONNECTION_ID_BYTES);
                    assert!(ids.validate(&id).is_ok());
                    let mut short = vec![0x40];
                    short.extend_from_slice(&id);
                    assert_eq!(shard_of(&short, shards), Some(shard));
                    let mut long = vec![0xc0, 0, 0, 0, 1, 8];
                    long.extend_from_slice(&id);
                    assert_eq!(shard_of(&long, shards), Some(shard));
                    if shards > 1 {
                        assert!(
                            generator((shard + 1) % shards, shards)
                                .validate(&id)
                                .is_err()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn short_datagrams_have_no_shard() {
        assert_eq!(shard_of(&[], 4), None);
        assert_eq!(shard_of(&[0x40], 4), None);
        assert_eq!(shard_of(&[0xc0, 0, 0, 0, 1, 8], 4), None);
    }

    #[test]
    fn identifiers_do_not_repeat() {
        let mut ids = generator(3, 8);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            assert!(seen.insert(ids.generate_cid().to_vec()));
        }
    }
}
