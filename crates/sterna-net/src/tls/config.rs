//! What a TLS listener is configured with.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, ProducesTickets};

use super::{Certificates, ClientAuth, ClientAuthority};

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
    /// Application protocols (RFC 7301), the preferred one first. A client that names only others
    /// is refused; one that names none is taken in. Empty switches the negotiation off.
    pub alpn: Vec<Vec<u8>>,
    /// Versions spoken on TCP.
    pub versions: TlsVersions,
}

impl TlsConfig {
    /// No client certificates, both versions.
    #[must_use]
    pub fn new(certificates: Arc<Certificates>, alpn: &[&[u8]]) -> Self {
        Self {
            certificates,
            client_auth: ClientAuth::None,
            alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
            versions: TlsVersions::default(),
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

    /// Certificates, client authentication and ALPN for TLS 1.3, without any resumption: for QUIC,
    /// which brings its own tickets.
    ///
    /// # Errors
    ///
    /// When the provider does not support TLS 1.3.
    pub fn for_quic(&self) -> Result<ServerConfig, rustls::Error> {
        let mut config = self.base(&[&rustls::version::TLS13])?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
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
        config.for_quic().expect("config");
    }
}
