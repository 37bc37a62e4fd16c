//! Configuration of a TLS listener.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    NoServerSessionStorage, ProducesTickets, ResolvesServerCert, StoresServerSessions,
};
use rustls::{CipherSuite, ServerConfig};
use sterna_quic::{Cipher, Settings};

use super::raw_keys::{KeyOnly, KnownKeys};
use super::{Certificates, ClientAuth, ClientAuthority, ClientKeys, RawKeys};
use crate::quic::{QuicConfig, TicketStore};

/// Most bytes of plaintext in a record (RFC 8446, section 5.1).
pub(super) const FULL_RECORD_BYTES: u16 = 1 << 14;

/// Versions of TLS that a listener on TCP speaks. QUIC is always TLS 1.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsVersions {
    /// 1.2 and 1.3.
    #[default]
    From12,
    /// 1.3 only.
    Only13,
}

/// Configuration of a TLS listener, and of a QUIC listener.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    /// The server's certificates.
    pub certificates: Arc<Certificates>,
    /// Whether and how clients show certificates.
    pub client_auth: ClientAuth,
    /// Application protocols (RFC 7301) on TCP, the preferred one first. A client that names only
    /// others is refused; one that names none is taken in. Empty switches the negotiation off.
    /// A QUIC listener has its own, [`QuicConfig::protocols`].
    pub alpn: Vec<Vec<u8>>,
    /// Versions spoken on TCP.
    pub versions: TlsVersions,
    /// The most bytes of plaintext in a record on TCP, 512 to 16,384. A client that asks for less gets that, down to 512:
    /// RFC 6066, section 4, or RFC 8449.
    pub maximum_record_bytes: u16,
    /// On QUIC listeners the server shows its bare public key (RFC 7250) instead of a certificate.
    /// Clients that require a certificate are refused. Default: no.
    pub raw_keys: Option<RawKeys>,
    /// Sessions that QUIC clients can resume, with early data: each leaves the store with its first
    /// use. One that keeps its content lets clients resume after a restart. Listeners that ask for
    /// different client certificates must not share one.
    pub quic_sessions: Arc<dyn StoresServerSessions>,
}

impl TlsConfig {
    /// No client certificates, both versions, sessions of QUIC in memory.
    #[must_use]
    pub fn new(certificates: Arc<Certificates>, alpn: &[&[u8]]) -> Self {
        Self {
            certificates,
            client_auth: ClientAuth::None,
            alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
            versions: TlsVersions::default(),
            maximum_record_bytes: FULL_RECORD_BYTES,
            raw_keys: None,
            quic_sessions: Arc::new(TicketStore::default()),
        }
    }

    /// The configuration for TLS on TCP. It has one stateless ticket per handshake, so an idle
    /// session costs the server nothing. It has no early data: stateless tickets could not protect
    /// it from replay.
    ///
    /// # Errors
    ///
    /// When the system gives no randomness for the ticket key.
    pub fn for_tcp(&self) -> Result<ServerConfig, rustls::Error> {
        let versions: &[&rustls::SupportedProtocolVersion] = match self.versions {
            TlsVersions::From12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersions::Only13 => &[&rustls::version::TLS13],
        };
        let provider = rustls::crypto::ring::default_provider();
        let certificates = Arc::clone(&self.certificates);
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(self.client_auth.verifier())
            .with_cert_resolver(certificates);
        config.alpn_protocols.clone_from(&self.alpn);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(EpochTicketer::new(self.client_auth.authority().cloned())?);
        config.send_tls13_tickets = 1;
        Ok(config)
    }

    /// The configuration for a QUIC listener: TLS 1.3, with stateful tickets for one use. Early data is by
    /// the listener's policy. Key shares and ciphers are in the order of its settings.
    ///
    /// # Errors
    ///
    /// When the provider does not support TLS 1.3 or the key share.
    pub fn for_quic(&self, quic: &QuicConfig) -> Result<ServerConfig, rustls::Error> {
        let provider = provider(&quic.settings)?;
        let algorithms = provider.signature_verification_algorithms;
        let known = self.raw_keys.as_ref().and_then(|raw| {
            let keys = Arc::clone(raw.clients.as_ref()?);
            Some((keys, raw.required))
        });
        let (verifier, epochs) = if let Some((keys, required)) = known {
            let epochs: Arc<dyn Epochs> = Arc::clone(&keys) as _;
            let verifier: Arc<dyn ClientCertVerifier> = Arc::new(KnownKeys {
                keys,
                required,
                algorithms,
            });
            (verifier, Some(epochs))
        } else {
            let authority = self.client_auth.authority().cloned();
            let epochs = authority.map(|authority| authority as Arc<dyn Epochs>);
            (self.client_auth.verifier(), epochs)
        };
        let certificates = Arc::clone(&self.certificates);
        let resolver: Arc<dyn ResolvesServerCert> = match self.raw_keys {
            None => certificates,
            Some(_) => Arc::new(KeyOnly(certificates)),
        };
        let mut base = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(resolver);
        // A client knows best which cipher is cheap for it; unless this machine is the weaker one, or
        // was told.
        let cipher = quic.settings.cipher;
        base.ignore_client_order = cipher != Cipher::Auto || cipher.prefers_chacha20();
        let sessions: Arc<dyn StoresServerSessions> = match epochs {
            None => Arc::clone(&self.quic_sessions),
            Some(epochs) => Arc::new(EpochSessions {
                epochs,
                sessions: Arc::clone(&self.quic_sessions),
            }),
        };
        Ok(quic.prepare_tls(&base, sessions))
    }
}

/// The provider with key shares and ciphers in the order of the settings.
fn provider(settings: &Settings) -> Result<CryptoProvider, rustls::Error> {
    let mut provider = rustls::crypto::ring::default_provider();
    let groups = provider.kx_groups.iter();
    let groups: Vec<u16> = groups.map(|group| group.name().into()).collect();
    let first = settings
        .key_share
        .position(&groups)
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    provider.kx_groups[..=first].rotate_right(1);
    let chacha20_first = settings.cipher.prefers_chacha20();
    provider.cipher_suites.sort_by_key(|suite| {
        let chacha20 = suite.suite() == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        chacha20 != chacha20_first
    });
    // Of the ciphers with AES the short key is as good as the long one, and faster.
    provider.cipher_suites.sort_by_key(|suite| {
        let aes_256 = suite.suite() == CipherSuite::TLS13_AES_256_GCM_SHA384;
        aes_256 && settings.cipher == Cipher::Aes
    });
    Ok(provider)
}

/// Something with which clients are verified, and which is exchanged from time to time.
trait Epochs: fmt::Debug + Send + Sync {
    /// A number that changes with every exchange; verifications under another number are void.
    fn current(&self) -> u64;
}

impl Epochs for ClientAuthority {
    fn current(&self) -> u64 {
        self.epoch()
    }
}

impl Epochs for ClientKeys {
    fn current(&self) -> u64 {
        self.epoch()
    }
}

/// Stateless tickets that die when the authority over client certificates changes: a revoked client
/// must not come back with a ticket.
#[derive(Debug)]
struct EpochTicketer {
    authority: Option<Arc<ClientAuthority>>,
    current: RwLock<(u64, Arc<dyn ProducesTickets>)>,
}

impl EpochTicketer {
    fn new(authority: Option<Arc<ClientAuthority>>) -> Result<Self, rustls::Error> {
        let epoch = authority.as_ref().map_or(0, |authority| authority.epoch());
        let ticketer = rustls::crypto::ring::Ticketer::new()?;
        Ok(Self {
            authority,
            current: RwLock::new((epoch, ticketer)),
        })
    }

    /// The ticketer of this epoch; `None` when a new one is due and there is no randomness for it.
    fn ticketer(&self) -> Option<Arc<dyn ProducesTickets>> {
        let epoch = self.authority.as_ref().map_or(0, |a| a.epoch());
        {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            if current.0 == epoch {
                return Some(Arc::clone(&current.1));
            }
        }
        let fresh = rustls::crypto::ring::Ticketer::new().ok()?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.0 != epoch {
            *current = (epoch, fresh);
        }
        Some(Arc::clone(&current.1))
    }
}

impl ProducesTickets for EpochTicketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.ticketer().map_or(0, |ticketer| ticketer.lifetime())
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.ticketer()?.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.ticketer()?.decrypt(cipher)
    }
}

/// Stateful sessions that die when the authority over client certificates changes.
#[derive(Debug)]
struct EpochSessions {
    epochs: Arc<dyn Epochs>,
    sessions: Arc<dyn StoresServerSessions>,
}

impl EpochSessions {
    /// The session behind its epoch, if that is the present one.
    fn strip(&self, mut value: Vec<u8>) -> Option<Vec<u8>> {
        if value.len() < size_of::<u64>() {
            return None;
        }
        let session = value.split_off(size_of::<u64>());
        (value == self.epochs.current().to_be_bytes()).then_some(session)
    }
}

impl StoresServerSessions for EpochSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let epoch = self.epochs.current().to_be_bytes();
        self.sessions.put(key, [&epoch[..], &value].concat())
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.strip(self.sessions.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.strip(self.sessions.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Identity;

    #[test]
    fn tickets_die_with_the_authority_that_verified_the_client() {
        let made = rcgen::generate_simple_self_signed(vec!["ca".into()]).expect("certificate");
        let authority =
            ClientAuthority::new([made.cert.der().clone()], Vec::new()).expect("authority");
        let ticketer = EpochTicketer::new(Some(Arc::clone(&authority))).expect("ticketer");
        let ticket = ticketer.encrypt(b"state").expect("ticket");
        assert_eq!(ticketer.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        authority
            .replace([made.cert.der().clone()], Vec::new())
            .expect("authority");
        assert_eq!(ticketer.decrypt(&ticket), None);
        let ticket = ticketer.encrypt(b"state").expect("ticket");
        assert_eq!(ticketer.decrypt(&ticket).as_deref(), Some(&b"state"[..]));

        let sessions = EpochSessions {
            epochs: Arc::clone(&authority) as Arc<dyn Epochs>,
            sessions: Arc::new(TicketStore::new(10)),
        };
        for key in [[1; 32], [2; 32]] {
            assert!(sessions.put(key.to_vec(), b"state".to_vec()));
        }
        assert_eq!(sessions.get(&[1; 32]).as_deref(), Some(&b"state"[..]));
        assert_eq!(sessions.take(&[1; 32]).as_deref(), Some(&b"state"[..]));
        assert_eq!(sessions.take(&[1; 32]), None);
        authority
            .replace([made.cert.der().clone()], Vec::new())
            .expect("authority");
        assert_eq!(sessions.take(&[2; 32]), None);
    }

    #[test]
    fn configurations_are_built() {
        let made = rcgen::generate_simple_self_signed(vec!["a".into()]).expect("certificate");
        let identity = Identity::from_pem(
            made.cert.pem().as_bytes(),
            made.signing_key.serialize_pem().as_bytes(),
        )
        .expect("pem");
        let certificates = Certificates::new(vec![identity]).expect("usable");
        let config = TlsConfig::new(certificates, &[b"mqtt"]);
        let tcp = config.for_tcp().expect("config");
        assert_eq!(tcp.alpn_protocols, [b"mqtt".to_vec()]);
        assert_eq!(tcp.max_early_data_size, 0);
        let quic = config.for_quic(&QuicConfig::default()).expect("config");
        assert_eq!(quic.max_early_data_size, u32::MAX);
        assert!(quic.session_storage.can_cache() && !quic.ticketer.enabled());
    }
}
