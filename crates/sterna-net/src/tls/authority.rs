//! Issuers of client certificates. They can change while connections continue.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use sterna_tls::CertificateSubject;

use super::CertificateError;

/// Whether clients show certificates.
#[derive(Clone, Debug, Default)]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    None,
    /// They are asked; one that shows none is let in, a bad certificate is not.
    Optional(Arc<ClientAuthority>),
    /// One that shows no good certificate is refused.
    Required(Arc<ClientAuthority>),
}

impl ClientAuth {
    pub(super) fn authority(&self) -> Option<&Arc<ClientAuthority>> {
        match self {
            Self::None => None,
            Self::Optional(authority) | Self::Required(authority) => Some(authority),
        }
    }

    /// The verifier for a rustls configuration.
    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        match self.authority() {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(authority) => Arc::new(Verifier {
                authority: Arc::clone(authority),
                mandatory: matches!(self, Self::Required(_)),
            }),
        }
    }
}

/// Trust anchors and revocation lists for client certificates, exchangeable at run time.
#[derive(Debug)]
pub struct ClientAuthority {
    verifier: RwLock<Arc<dyn ClientCertVerifier>>,
    /// Changes with every exchange, so that sessions verified under an older one are not resumed.
    epoch: AtomicU64,
}

impl ClientAuthority {
    /// Trusts certificates that these anchors issued and these lists do not revoke. Without lists
    /// no certificate counts as revoked. With lists, a certificate that none of them covers is
    /// admitted.
    ///
    /// # Errors
    ///
    /// When there is no anchor or a list is malformed.
    pub fn new(
        anchors: impl IntoIterator<Item = CertificateDer<'static>>,
        revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Arc<Self>, CertificateError> {
        Ok(Arc::new(Self {
            verifier: RwLock::new(build(anchors, revocation_lists)?),
            epoch: AtomicU64::new(0),
        }))
    }

    /// Makes an authority as [`ClientAuthority::new`] does, from PEM.
    ///
    /// # Errors
    ///
    /// When the PEM is malformed or has no anchor.
    pub fn from_pem(
        anchors: &[u8],
        revocation_lists: &[u8],
    ) -> Result<Arc<Self>, CertificateError> {
        let (anchors, lists) = parse(anchors, revocation_lists)?;
        Self::new(anchors, lists)
    }

    /// Exchanges anchors and lists, or nothing when there is an error. It concerns handshakes that
    /// start afterwards; sessions verified before are not resumed.
    ///
    /// # Errors
    ///
    /// As [`ClientAuthority::new`].
    pub fn replace(
        &self,
        anchors: impl IntoIterator<Item = CertificateDer<'static>>,
        revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<(), CertificateError> {
        let verifier = build(anchors, revocation_lists)?;
        *self
            .verifier
            .write()
            .unwrap_or_else(PoisonError::into_inner) = verifier;
        self.epoch.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Replaces the anchors as [`ClientAuthority::replace`] does, from PEM.
    ///
    /// # Errors
    ///
    /// When the PEM is malformed or has no anchor.
    pub fn replace_pem(
        &self,
        anchors: &[u8],
        revocation_lists: &[u8],
    ) -> Result<(), CertificateError> {
        let (anchors, lists) = parse(anchors, revocation_lists)?;
        self.replace(anchors, lists)
    }

    /// From now on trusts the anchors and lists of `other`, which was checked at its creation.
    /// Sessions verified before are not resumed.
    pub fn take_over(&self, other: &Self) {
        *self
            .verifier
            .write()
            .unwrap_or_else(PoisonError::into_inner) = other.current();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// A number that changes with every exchange; verifications under another number are void.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn current(&self) -> Arc<dyn ClientCertVerifier> {
        let verifier = self.verifier.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&verifier)
    }
}

type Anchors = Vec<CertificateDer<'static>>;
type RevocationLists = Vec<CertificateRevocationListDer<'static>>;

fn parse(anchors: &[u8], lists: &[u8]) -> Result<(Anchors, RevocationLists), CertificateError> {
    let anchors = sterna_tls::certificates(anchors).map_err(CertificateError::Authority)?;
    let lists = CertificateRevocationListDer::pem_slice_iter(lists)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| CertificateError::Authority(error.to_string()))?;
    Ok((anchors, lists))
}

fn build(
    anchors: impl IntoIterator<Item = CertificateDer<'static>>,
    revocation_lists: RevocationLists,
) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
    let mut roots = RootCertStore::empty();
    for anchor in anchors {
        roots
            .add(anchor)
            .map_err(|error| CertificateError::Authority(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .with_crls(revocation_lists)
        .allow_unknown_revocation_status()
        .build()
        .map_err(|error| CertificateError::Authority(error.to_string()))
}

thread_local! {
    /// The certificate that a verifier of this thread has refused last, in words.
    static REFUSED: Cell<Option<String>> = const { Cell::new(None) };
}

/// The subject of the certificate that a verifier of this thread has refused last, since the last question. The library's
/// error does not say, and it keeps no certificate that it has refused.
pub(super) fn last_refused() -> Option<String> {
    REFUSED.take()
}

/// Notes whose certificate it was that is refused, and the end of its time that is wrong.
fn note_refused<T>(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
    verified: Result<T, Error>,
) -> Result<T, Error> {
    if verified.is_err() {
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let words = CertificateSubject::of(certificate).map(|subject| {
            let beyond = subject.beyond(now_s).map(|end| format!(", {end}"));
            format!("{subject}{}", beyond.unwrap_or_default())
        });
        REFUSED.set(words);
    }
    verified
}

/// Asks the authority as it is now.
#[derive(Debug)]
struct Verifier {
    authority: Arc<ClientAuthority>,
    mandatory: bool,
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    /// No hints: they would cost bytes in every handshake and could not change at run time.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified =
            (self.authority.current()).verify_client_cert(end_entity, intermediates, now);
        note_refused(end_entity, now, verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified =
            (self.authority.current()).verify_tls12_signature(message, certificate, signature);
        note_refused(certificate, UnixTime::now(), verified)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified =
            (self.authority.current()).verify_tls13_signature(message, certificate, signature);
        note_refused(certificate, UnixTime::now(), verified)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.current().supported_verify_schemes()
    }
}
