//! Raw public keys (RFC 7250) instead of certificates: the smallest handshakes, for devices that know
//! their broker's key anyway.
//!
//! There is no chain, no name and no expiry: the holder of the key is the identity, as with SSH.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashSet;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError as Reason, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};

use super::{CertificateError, Certificates};

/// Keys of a QUIC listener, and of its clients, instead of certificates.
#[derive(Clone, Debug, Default)]
pub struct RawKeys {
    /// The keys of clients, who then show no certificates. `None`: clients authenticate by
    /// [`super::ClientAuth`].
    pub clients: Option<Arc<ClientKeys>>,
    /// Whether a client without a known key is refused.
    pub required: bool,
}

/// The public keys of the clients that are let in, exchangeable at run time.
#[derive(Debug, Default)]
pub struct ClientKeys {
    known: RwLock<FxHashSet<Box<[u8]>>>,
    /// Changes with every exchange, so that sessions verified before are not resumed.
    epoch: AtomicU64,
}

impl ClientKeys {
    /// Takes keys in PEM (`PUBLIC KEY`, RFC 7468, section 13), any number of them.
    ///
    /// # Errors
    ///
    /// When something is malformed.
    pub fn from_pem(keys: &[u8]) -> Result<Arc<Self>, CertificateError> {
        Ok(Arc::new(Self {
            known: RwLock::new(parse(keys)?),
            epoch: AtomicU64::new(0),
        }))
    }

    /// Exchanges all keys, or none when there is an error. It concerns handshakes that start
    /// afterwards; sessions verified before are not resumed.
    ///
    /// # Errors
    ///
    /// As [`ClientKeys::from_pem`].
    pub fn replace_pem(&self, keys: &[u8]) -> Result<(), CertificateError> {
        let keys = parse(keys)?;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.epoch.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Knows from now on the keys that `other` knows. Sessions verified before are not resumed.
    pub fn take_over(&self, other: &Self) {
        let keys = (other.known.read())
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// A number that changes with every exchange.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn knows(&self, key: &[u8]) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.contains(key)
    }
}

fn parse(keys: &[u8]) -> Result<FxHashSet<Box<[u8]>>, CertificateError> {
    SubjectPublicKeyInfoDer::pem_slice_iter(keys)
        .map(|key| key.map(|key| key.as_ref().into()))
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateError::Key(error.to_string()))
}

/// Shows the public keys of certificates in their stead.
#[derive(Debug)]
pub(super) struct KeyOnly(pub(super) Arc<Certificates>);

impl ResolvesServerCert for KeyOnly {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.0.resolve(hello)?;
        let key = certified.key.public_key()?;
        // The library carries the key in the certificate's place (RFC 8446, section 4.4.2).
        let shown = vec![CertificateDer::from(key.as_ref().to_vec())];
        Some(Arc::new(CertifiedKey::new(
            shown,
            Arc::clone(&certified.key),
        )))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// Lets in clients whose key is known.
#[derive(Debug)]
pub(super) struct KnownKeys {
    pub(super) keys: Arc<ClientKeys>,
    pub(super) required: bool,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for KnownKeys {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.keys.knows(end_entity.as_ref()) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(
                Reason::ApplicationVerificationFailure,
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("raw public keys need TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
