//! Whether a certificate that was good in its handshake still is: a connection outlives revocations and
//! authorities.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rustc_hash::FxHashSet;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, SubjectPublicKeyInfoDer};
use sterna_tls::CertificateSubject;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::config::Tls;

type Bytes = Box<[u8]>;

/// Certificates that the files of `tls` vouch for now.
///
/// The TLS library has verified the chain in its handshake, by the files of that time. So the name of an authority is only looked up, unless it has lost a key since the start.
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
    /// The same with any files since the start. A handshake may have verified a certificate by the lost key, and end
    /// only now: so the present keys are looked for in the signature.
    rekeyed: FxHashSet<Bytes>,
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
                new.get(subject).is_none_or(|now| !keys.is_subset(now))
            };
            let lost = old.iter().filter(|(subject, keys)| has_lost(subject, keys));
            next.changed = lost.map(|(subject, _)| subject.clone()).collect();
        }
        next.rekeyed = next.changed.union(&old.rekeyed).cloned().collect();
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
    ///
    /// # Errors
    /// Why not, with whose certificate it is.
    pub(crate) fn admits(&self, chain: &[Bytes]) -> Result<(), String> {
        self.stands(chain, |one, keys| {
            !self.rekeyed.contains(one.issuer().as_raw())
                || keys.iter().any(|key| has_signed(key, one))
        })
    }

    /// Whether a connection from before these files may live on.
    ///
    /// # Errors
    /// Why not, with whose certificate it is.
    pub(crate) fn keeps(&self, chain: &[Bytes]) -> Result<(), String> {
        if self.is_unchanged {
            return Ok(());
        }
        // Without a look at signatures: there may be very many connections.
        self.stands(chain, |one, _| {
            !self.changed.contains(one.issuer().as_raw())
        })
    }

    /// Whether a chain is vouched for. `is_of` says of a certificate with the name of an authority whether it is of that
    /// one, which has these keys.
    fn stands(
        &self,
        chain: &[Bytes],
        is_of: impl Fn(&X509Certificate<'_>, &FxHashSet<Bytes>) -> bool,
    ) -> Result<(), String> {
        let Some(first) = chain.first() else {
            return Ok(());
        };
        if x509_parser::parse_x509_certificate(first).is_err() {
            // A bare key is known as such.
            let is_known = self.keys.as_ref().is_none_or(|keys| keys.contains(first));
            let unknown = || "the client's key is not in tls.client_keys".to_owned();
            return is_known.then_some(()).ok_or_else(unknown);
        }
        let Some(authorities) = &self.authorities else {
            return Ok(());
        };
        let own = || subject_of(first);
        let mut certificates = Vec::with_capacity(chain.len());
        for (place, der) in chain.iter().enumerate() {
            let Ok((_, one)) = x509_parser::parse_x509_certificate(der) else {
                return Err(format!(
                    "the client shows a damaged certificate beside its own: {}",
                    own()
                ));
            };
            let key = (
                Bytes::from(one.issuer().as_raw()),
                Bytes::from(one.raw_serial()),
            );
            if self.revoked.contains(&key) {
                return Err(if place == 0 {
                    format!("the client's certificate is revoked: {}", own())
                } else {
                    let issuer = subject_of(der);
                    format!(
                        "an issuer of the client's certificate is revoked ({issuer}): {}",
                        own()
                    )
                });
            }
            certificates.push(one);
        }
        let is_issued = leads_to(&certificates, &|one| {
            (authorities.get(one.issuer().as_raw())).is_some_and(|keys| is_of(one, keys))
        });
        let unknown = || {
            format!(
                "no authority of tls.client_ca vouches for the client's certificate: {}",
                own()
            )
        };
        is_issued.then_some(()).ok_or_else(unknown)
    }
}

/// The subject of a certificate in words.
fn subject_of(der: &[u8]) -> String {
    CertificateSubject::of(der).map_or_else(String::new, |subject| subject.to_string())
}

/// Whether a key, in DER, has signed a certificate.
fn has_signed(key: &[u8], certificate: &X509Certificate<'_>) -> bool {
    SubjectPublicKeyInfo::from_der(key)
        .is_ok_and(|(_, key)| certificate.verify_signature(Some(&key)).is_ok())
}

/// Signatures of one chain that are looked at, at most: as many as the handshake does.
const MOST_SIGNATURES: usize = 100;

/// Whether the first certificate was issued by an authority, or by one of the others that was.
///
/// The peer may show certificates of its own making, which the handshake has ignored: so a certificate counts as the
/// issuer of another only if its key has signed that.
fn leads_to(
    chain: &[X509Certificate<'_>],
    is_by_authority: &dyn Fn(&X509Certificate<'_>) -> bool,
) -> bool {
    let mut is_reached = vec![false; chain.len()];
    let mut next = vec![0];
    let mut signatures = 0;
    while let Some(at) = next.pop() {
        let one = &chain[at];
        is_reached[at] = true;
        if is_by_authority(one) {
            return true;
        }
        for (by, other) in chain.iter().enumerate() {
            if is_reached[by] || other.subject() != one.issuer() {
                continue;
            }
            signatures += 1;
            if signatures > MOST_SIGNATURES {
                return false;
            }
            if one.verify_signature(Some(other.public_key())).is_ok() {
                next.push(by);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        der: Bytes,
        pem: String,
    }

    fn parameters(name: &str, is_authority: bool) -> CertificateParams {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        if is_authority {
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        parameters
    }

    /// An authority; of itself without an issuer.
    fn authority(name: &str, by: Option<&Authority>) -> Authority {
        let key = KeyPair::generate().unwrap();
        let parameters = parameters(name, true);
        let certificate = match by {
            Some(by) => parameters.signed_by(&key, &by.issuer).unwrap(),
            None => parameters.self_signed(&key).unwrap(),
        };
        Authority {
            der: certificate.der().to_vec().into(),
            pem: certificate.pem(),
            issuer: Issuer::new(parameters, key),
        }
    }

    fn device(by: &Authority) -> Bytes {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters("device", false).signed_by(&key, &by.issuer);
        certificate.unwrap().der().to_vec().into()
    }

    fn trust_of(authorities: &[&Authority]) -> Trust {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let pem: String = authorities.iter().map(|one| &*one.pem).collect();
        std::fs::write(&path, pem).unwrap();
        let tls = Tls {
            client_ca: Some(path),
            ..Tls::default()
        };
        Trust::load(&tls).unwrap()
    }

    /// A device of an authority that was removed shows more certificates than the handshake has looked at.
    #[test]
    fn certificates_of_the_peers_own_making_vouch_for_nothing() {
        let (gone, stays) = (authority("gone", None), authority("stays", None));
        let trust = trust_of(&[&stays]).succeeding(&trust_of(&[&gone, &stays]));
        let own = device(&gone);
        // Of the authority's name, and of its own issuer's name as if the authority had issued that.
        let namesake = authority("stays", None);
        let between = authority("gone", Some(&namesake));
        for chain in [
            vec![own.clone()],
            vec![own.clone(), namesake.der.clone()],
            vec![own.clone(), stays.der.clone()],
            vec![own.clone(), between.der.clone()],
            vec![own.clone(), between.der, namesake.der],
            vec![own, gone.der, stays.der],
        ] {
            assert!(trust.keeps(&chain).is_err() && trust.admits(&chain).is_err());
        }
    }

    #[test]
    fn a_chain_leads_to_its_authority_in_any_order() {
        let (gone, root) = (authority("gone", None), authority("root", None));
        let between = authority("between", Some(&root));
        let last = authority("last", Some(&between));
        let trust = trust_of(&[&root]).succeeding(&trust_of(&[&gone, &root]));
        let own = device(&last);
        for chain in [
            vec![device(&root)],
            vec![device(&root), root.der.clone()],
            vec![own.clone(), last.der.clone(), between.der.clone()],
            vec![own.clone(), between.der.clone(), last.der.clone()],
            vec![
                own.clone(),
                root.der,
                between.der,
                gone.der,
                last.der.clone(),
            ],
        ] {
            assert!(trust.keeps(&chain).is_ok() && trust.admits(&chain).is_ok());
        }
        assert!(trust.keeps(&[own, last.der]).is_err(), "a link is missing");
    }

    /// The handshake has verified a certificate by the key that is gone now, and ends after the change.
    #[test]
    fn a_lost_key_admits_nobody_any_more() {
        let (old, new) = (authority("x", None), authority("x", None));
        let (was, changed) = (trust_of(&[&old]), trust_of(&[&new]));
        let next = changed.succeeding(&was);
        let again = next.succeeding(&next);
        // The name was away for a while.
        let away = trust_of(&[&authority("other", None)]).succeeding(&was);
        let back = changed.succeeding(&away);
        let both = trust_of(&[&old, &new]);
        let one_of_both = changed.succeeding(&both);
        for trust in [&next, &again, &back, &one_of_both] {
            let (oldest, newest) = (authority("y", Some(&old)), authority("y", Some(&new)));
            assert!(trust.admits(&[device(&old)]).is_err());
            assert!(trust.admits(&[device(&old), new.der.clone()]).is_err());
            assert!(trust.admits(&[device(&oldest), oldest.der]).is_err());
            assert!(trust.admits(&[device(&new)]).is_ok());
            assert!(trust.admits(&[device(&newest), newest.der]).is_ok());
        }
        assert!(next.keeps(&[device(&new)]).is_err() && again.keeps(&[device(&new)]).is_ok());
    }

    /// Hundreds of certificates that have all issued each other take no time.
    #[test]
    fn a_chain_that_leads_nowhere_is_given_up() {
        let (one, other) = (authority("one", None), authority("other", None));
        let trust = trust_of(&[&authority("stays", None)]).succeeding(&trust_of(&[&one]));
        let crossed = |name: &str, key: &Authority, by: &Authority| -> Bytes {
            let certificate = parameters(name, true).signed_by(key.issuer.key(), &by.issuer);
            certificate.unwrap().der().to_vec().into()
        };
        let mut chain = vec![device(&one)];
        for _ in 0..100 {
            chain.push(crossed("one", &one, &other));
            chain.push(crossed("other", &other, &one));
        }
        assert!(trust.keeps(&chain).is_err());
    }
}
