//! Whether a certificate that was good in its handshake still is: a connection outlives revocations and
//! authorities.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rustc_hash::FxHashSet;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, SubjectPublicKeyInfoDer};

use crate::config::Tls;

type Bytes = Box<[u8]>;

/// Certificates that the files of `tls` vouch for now. Names are only looked up. The TLS library
/// has verified the chain in its handshake, by the files of that time.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The public keys of the authorities by their subjects; `None` without authorities.
    authorities: Option<HashMap<Bytes, FxHashSet<Bytes>>>,
    /// Issuers and serial numbers of revoked certificates.
    revoked: HashSet<(Bytes, Bytes)>,
    /// The bare keys of clients; `None` without.
    keys: Option<FxHashSet<Bytes>>,
    /// Subjects of authorities that have lost a key with these files: nobody knows which of their
    /// certificates it has signed.
    changed: FxHashSet<Bytes>,
    /// Whether the files before vouched for the same.
    is_unchanged: bool,
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Trust {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub(crate) fn load(tls: &Tls) -> Result<Self, String> {
        let mut trust = Self::default();
        if let Some(path) = &tls.client_ca {
            let fault = |why: String| format!("{}: {why}", path.display());
            let authorities = trust.authorities.insert(HashMap::new());
            for one in CertificateDer::pem_slice_iter(&read(path)?) {
                let one = one.map_err(|error| fault(error.to_string()))?;
                let (_, one) = x509_parser::parse_x509_certificate(&one)
                    .map_err(|error| fault(error.to_string()))?;
                let subject = one.subject().as_raw().into();
                let keys = authorities.entry(subject).or_default();
                keys.insert(one.public_key().raw.into());
            }
        }
        for path in &tls.client_revocation_lists {
            let fault = |why: String| format!("{}: {why}", path.display());
            for list in CertificateRevocationListDer::pem_slice_iter(&read(path)?) {
                let list = list.map_err(|error| fault(error.to_string()))?;
                let (_, list) =
                    x509_parser::parse_x509_crl(&list).map_err(|error| fault(error.to_string()))?;
                let issuer: Bytes = list.issuer().as_raw().into();
                let serials = list.iter_revoked_certificates();
                let serials = serials.map(|one| (issuer.clone(), one.raw_serial().into()));
                trust.revoked.extend(serials);
            }
        }
        if let Some(path) = &tls.client_keys {
            let fault = |why: String| format!("{}: {why}", path.display());
            let keys = trust.keys.insert(FxHashSet::default());
            for key in SubjectPublicKeyInfoDer::pem_slice_iter(&read(path)?) {
                let key = key.map_err(|error| fault(error.to_string()))?;
                keys.insert(key.as_ref().into());
            }
        }
        Ok(trust)
    }

    /// The same trust, which follows `old`.
    pub(crate) fn succeeding(&self, old: &Self) -> Self {
        let mut next = self.clone();
        next.is_unchanged = self.is_same(old);
        if let (Some(new), Some(old)) = (&self.authorities, &old.authorities) {
            let has_lost = |subject: &Bytes, keys: &FxHashSet<Bytes>| {
                new.get(subject).is_some_and(|now| !keys.is_subset(now))
            };
            let lost = old.iter().filter(|(subject, keys)| has_lost(subject, keys));
            next.changed = lost.map(|(subject, _)| subject.clone()).collect();
        }
        next
    }

    /// Whether it vouches for the same as another.
    fn is_same(&self, other: &Self) -> bool {
        self.authorities == other.authorities
            && self.revoked == other.revoked
            && self.keys == other.keys
    }

    /// Whether a peer may come in with its handshake's credentials: a chain in DER, end-entity first, a bare key, or
    /// nothing.
    pub(crate) fn admits(&self, chain: &[Bytes]) -> bool {
        self.stands(chain, false)
    }

    /// Whether a connection from before these files may live on.
    pub(crate) fn keeps(&self, chain: &[Bytes]) -> bool {
        self.is_unchanged || self.stands(chain, true)
    }

    fn stands(&self, chain: &[Bytes], is_from_before: bool) -> bool {
        let Some(first) = chain.first() else {
            return true;
        };
        if x509_parser::parse_x509_certificate(first).is_err() {
            // A bare key is known as such.
            return self.keys.as_ref().is_none_or(|keys| keys.contains(first));
        }
        let Some(authorities) = &self.authorities else {
            return true;
        };
        let mut is_vouched_for = false;
        for one in chain {
            let Ok((_, one)) = x509_parser::parse_x509_certificate(one) else {
                return false;
            };
            let issuer = one.issuer().as_raw();
            let key = (Bytes::from(issuer), Bytes::from(one.raw_serial()));
            if self.revoked.contains(&key) {
                return false;
            }
            let is_here = |name: &[u8]| {
                authorities.contains_key(name) && !(is_from_before && self.changed.contains(name))
            };
            is_vouched_for |= is_here(issuer) || is_here(one.subject().as_raw());
        }
        is_vouched_for
    }
}
