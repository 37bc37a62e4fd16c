//! Proofs of address that outlive a connection (NEW_TOKEN; RFC 9000, section 8.1.3), and the key of
//! Retry tokens.
//!
//! One key and one log serve all shards: a client that comes back may reach any of them.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::crypto::HandshakeTokenKey;
use quinn_proto::{TokenLog, TokenReuseError};
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};

/// Most remembered used tokens, about 3 MB. When it is reached, others count as used: their clients
/// must prove their address by Retry, as clients without a token.
const MAX_USED: usize = 65_536;

/// The key that seals tokens, and the tokens that were used. A handle: clones share both.
#[derive(Clone)]
pub struct AddressTokens {
    key: Arc<hkdf::Prk>,
    used: Arc<UsedTokens>,
}

impl AddressTokens {
    /// Makes tokens with a key derived from a secret of at least 32 random bytes. Tokens survive a
    /// restart, and every node with the same secret takes them. A token in NEW_TOKEN may then be
    /// used once at each node, and once more after a restart.
    #[must_use]
    pub fn with_secret(secret: &[u8]) -> Self {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"sterna address tokens");
        Self {
            key: Arc::new(salt.extract(secret)),
            used: Arc::default(),
        }
    }

    pub(super) fn key(&self) -> Arc<dyn HandshakeTokenKey> {
        self.key.clone()
    }

    pub(super) fn log(&self) -> Arc<dyn TokenLog> {
        self.used.clone()
    }
}

impl Default for AddressTokens {
    /// With a random key.
    ///
    /// # Panics
    ///
    /// When the system has no randomness, without which there is no TLS either.
    fn default() -> Self {
        let mut secret = [0; 32];
        SystemRandom::new()
            .fill(&mut secret)
            .expect("the system gives randomness");
        Self::with_secret(&secret)
    }
}

impl fmt::Debug for AddressTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressTokens").finish_non_exhaustive()
    }
}

/// Tokens that were used and have not expired. Their names are random and sealed, so clients cannot
/// choose them.
#[derive(Default)]
struct UsedTokens(Mutex<Used>);

#[derive(Default)]
struct Used {
    names: HashSet<u128>,
    /// When each may be forgotten, in the order of their use.
    expiry: VecDeque<(SystemTime, u128)>,
}

impl TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        issued: SystemTime,
        lifetime: Duration,
    ) -> Result<(), TokenReuseError> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let expires = issued.checked_add(lifetime).ok_or(TokenReuseError)?;
        // The library has checked that this token has not expired. Tokens that expire before its
        // issue cannot be used any more.
        while let Some(&(at, name)) = used.expiry.front()
            && at < issued
        {
            used.expiry.pop_front();
            used.names.remove(&name);
        }
        if used.names.len() >= MAX_USED || !used.names.insert(nonce) {
            return Err(TokenReuseError);
        }
        used.expiry.push_back((expires, nonce));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_works_once_and_the_log_is_bounded() {
        let log = UsedTokens::default();
        let (start, hour) = (SystemTime::UNIX_EPOCH, Duration::from_secs(3600));
        let use_at = |nonce, hours| {
            log.check_and_insert(nonce, start + hour * hours, hour)
                .is_ok()
        };
        assert!(use_at(1, 0));
        assert!(!use_at(1, 0));
        for nonce in 2..=MAX_USED as u128 {
            assert!(use_at(nonce, 0));
        }
        assert!(!use_at(70_000, 1), "full");
        assert!(use_at(70_000, 2), "those before have expired");
        assert_eq!(log.0.lock().unwrap().names.len(), 1);
    }
}
