//! What a TLS listener is configured with.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, ProducesTickets, StoresServerSessions};

use super::{Certificates, ClientAuth, ClientAuthority};
use crate::quic::{QuicConfig, TicketStore};

/// Sessions that QUIC clients can resume, unless another store is given: about 30 MB when full.
const QUIC_SESSIONS: usize = 100_000;

/// Versions of TLS that a listener on TCP speaks. QUIC is always TLS 1.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlsVersions {
    /// 1.2 and 1.3.
    #[default]
    From12,
    /// 1.3 only.
    Only13,
}

/// What a TLS listener is configured with; a QUIC listener uses it as well.
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
            quic_sessions: Arc::new(TicketStore::new(QUIC_SESSIONS)),
        }
    }

    /// The configuration for TLS on TCP: one stateless ticket per handshake, so that an idle session
    /// costs the server nothing, and no early data, which stateless tickets could not protect from
    /// replay.
    ///
    /// # Errors
    ///
    /// When the system gives no randomness for the ticket key.
    pub fn for_tcp(&self) -> Result<ServerConfig, rustls::Error> {
        let versions: &[&rustls::SupportedProtocolVersion] = match self.versions {
            TlsVersions::From12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
            TlsVersions::Only13 => &[&rustls::version::TLS13],
        };
        let mut config = self.base(versions)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(EpochTicketer::new(self.client_auth.authority().cloned())?);
        config.send_tls13_tickets = 1;
        Ok(config)
    }

    /// The configuration for a QUIC listener: TLS 1.3, stateful tickets that are good for one use,
    /// early data as the listener allows it.
    ///
    /// # Errors
    ///
    /// When the provider does not support TLS 1.3.
    pub fn for_quic(&self, quic: &QuicConfig) -> Result<ServerConfig, rustls::Error> {
        let base = self.base(&[&rustls::version::TLS13])?;
        let sessions: Arc<dyn StoresServerSessions> = match self.client_auth.authority() {
            None => Arc::clone(&self.quic_sessions),
            Some(authority) => Arc::new(EpochSessions {
                authority: Arc::clone(authority),
                sessions: Arc::clone(&self.quic_sessions),
            }),
        };
        Ok(quic.prepare_tls(&base, sessions))
    }

    fn base(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certificates = Arc::clone(&self.certificates);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(self.client_auth.verifier())
            .with_cert_resolver(certificates);
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(config)
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
    authority: Arc<ClientAuthority>,
    sessions: Arc<dyn StoresServerSessions>,
}

impl EpochSessions {
    /// The session behind its epoch, if that is the present one.
    fn strip(&self, mut value: Vec<u8>) -> Option<Vec<u8>> {
        if value.len() < size_of::<u64>() {
            return None;
        }
        let session = value.split_off(size_of::<u64>());
        (value == self.authority.epoch().to_be_bytes()).then_some(session)
    }
}

impl StoresServerSessions for EpochSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let epoch = self.authority.epoch().to_be_bytes();
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
            authority: Arc::clone(&authority),
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
