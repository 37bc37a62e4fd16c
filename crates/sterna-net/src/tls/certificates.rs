//! The server's certificates, which can be exchanged while connections go on.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// A certificate chain with its private key.
#[derive(Debug)]
pub struct Identity {
    /// End-entity certificate first, then its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key of the end-entity certificate.
    pub key: PrivateKeyDer<'static>,
}

/// Why certificates could not be loaded or used.
#[derive(Debug)]
#[non_exhaustive]
pub enum CertificateError {
    /// No identity was given.
    Empty,
    /// The certificates are not PEM, or there are none: why, in words.
    Chain(String),
    /// The private key is not PEM, or there is none: why, in words.
    Key(String),
    /// The key does not belong to the certificate, or a kind is not supported: why, in words.
    Unusable(String),
    /// The trust anchors or revocation lists cannot be used.
    Authority(String),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no certificate was given"),
            Self::Chain(error) => write!(f, "of the file of the certificate: {error}"),
            Self::Key(error) => write!(f, "of the file of the key: {error}"),
            Self::Unusable(error) => f.write_str(error),
            Self::Authority(error) => write!(f, "cannot use the client authority: {error}"),
        }
    }
}

impl std::error::Error for CertificateError {}

impl Identity {
    /// Reads a chain and a key (PKCS #8, SEC 1 or PKCS #1) from PEM.
    ///
    /// # Errors
    ///
    /// When either is missing or malformed.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain = sterna_tls::certificates(chain).map_err(CertificateError::Chain)?;
        let key = sterna_tls::private_key(key).map_err(CertificateError::Key)?;
        Ok(Self { chain, key })
    }
}

/// The certificates that a server presents. All listeners that share one see an exchange at once;
/// it concerns handshakes that start afterwards, connections go on undisturbed.
#[derive(Debug)]
pub struct Certificates {
    keys: RwLock<Vec<Arc<CertifiedKey>>>,
}

impl Certificates {
    /// Takes one identity per group of names. Clients that name no server, or another one, get the
    /// first.
    ///
    /// # Errors
    ///
    /// If `identities` is empty, or a key does not fit its certificate.
    pub fn new(identities: Vec<Identity>) -> Result<Arc<Self>, CertificateError> {
        Ok(Arc::new(Self {
            keys: RwLock::new(certify(identities)?),
        }))
    }

    /// Exchanges all certificates, or none when there is an error.
    ///
    /// # Errors
    ///
    /// As [`Certificates::new`].
    pub fn replace(&self, identities: Vec<Identity>) -> Result<(), CertificateError> {
        let keys = certify(identities)?;
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// From now on presents the certificates of `other`, which was checked at its creation.
    pub fn take_over(&self, other: &Self) {
        let keys = (other.keys.read())
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The chains in DER, end-entity first, in the order of the identities.
    #[must_use]
    pub fn chains(&self) -> Vec<Vec<CertificateDer<'static>>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().map(|key| key.cert.clone()).collect()
    }

    fn select(&self, server_name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let named = server_name
            .filter(|_| keys.len() > 1)
            .and_then(|name| ServerName::try_from(name).ok())
            .and_then(|name| keys.iter().find(|key| is_valid_for(key, &name)));
        named.or_else(|| keys.first()).cloned()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.select(hello.server_name())
    }
}

fn is_valid_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    key.end_entity_cert()
        .ok()
        .and_then(|certificate| ParsedCertificate::try_from(certificate).ok())
        .is_some_and(|certificate| verify_server_name(&certificate, name).is_ok())
}

fn certify(identities: Vec<Identity>) -> Result<Vec<Arc<CertifiedKey>>, CertificateError> {
    if identities.is_empty() {
        return Err(CertificateError::Empty);
    }
    let provider: CryptoProvider = rustls::crypto::ring::default_provider();
    identities
        .into_iter()
        .map(|identity| {
            let Identity { chain, key } = identity;
            CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider)
                .map(Arc::new)
                .map_err(|_| CertificateError::Unusable(sterna_tls::unusable(&chain, &key)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str) -> (Identity, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("certificate");
        let identity = Identity::from_pem(
            made.cert.pem().as_bytes(),
            made.signing_key.serialize_pem().as_bytes(),
        )
        .expect("pem");
        (identity, made.cert.der().clone())
    }

    #[test]
    fn the_name_selects_the_certificate_and_a_replacement_takes_effect() {
        let (first, first_der) = identity("a.example");
        let (second, second_der) = identity("b.example");
        let certificates = Certificates::new(vec![first, second]).expect("usable");
        let selected = |name| certificates.select(name).expect("one").cert[0].clone();
        assert_eq!(selected(None), first_der);
        assert_eq!(selected(Some("a.example")), first_der);
        assert_eq!(selected(Some("b.example")), second_der);
        assert_eq!(selected(Some("c.example")), first_der);

        let (third, third_der) = identity("c.example");
        certificates.replace(vec![third]).expect("usable");
        assert_eq!(selected(Some("a.example")), third_der);
        assert!(certificates.replace(Vec::new()).is_err());
        assert_eq!(selected(None), third_der, "an error changes nothing");
    }

    #[test]
    fn a_foreign_key_is_refused() {
        let (first, _) = identity("a.example");
        let (second, _) = identity("b.example");
        let mixed = Identity {
            chain: first.chain,
            key: second.key,
        };
        assert!(matches!(
            Certificates::new(vec![mixed]),
            Err(CertificateError::Unusable(_))
        ));
    }
}
