//! The certificate in force: the operator's, or one for development made on first start.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use sterna_net::{Certificates, Identity};
use x509_parser::extensions::GeneralName;

use crate::config::Tls;
use crate::data_directory::{DataDirectory, create_private};

/// Days a development certificate is valid.
const DEVELOPMENT_DAYS: u64 = 397;

/// Names of its files.
const AUTHORITY: &str = "development-ca.pem";
const CERTIFICATE: &str = "development-certificate.pem";
const KEY: &str = "development-key.pem";

/// The use of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificateUse {
    /// It is shown to clients.
    Shown,
    /// It is one of `tls.client_ca`, which signs clients' certificates.
    Authority,
    /// It is a list of `tls.client_revocation_lists`.
    RevocationList,
}

/// Facts about a certificate in force, or a revocation list.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// SHA-256 of the end-entity certificate or the list in hexadecimal, bytes joined by colons.
    pub fingerprint: String,
    /// The subject of the end-entity certificate, the issuer of a list; empty where it cannot be read.
    pub subject: String,
    /// The file that it is read from.
    pub file: PathBuf,
    /// Its use.
    pub usage: CertificateUse,
    /// The earliest end of a certificate of the chain, in seconds since the Unix epoch; 0 if its form is
    /// unknown. Of a list: when the next one is due, or 0 if it does not say.
    pub expires_s: i64,
    /// Trust anchor for clients: the development authority, or the operator's chain. Empty for
    /// certificates that are chosen by name.
    pub trust_anchor: PathBuf,
    /// Whether it was made by the broker itself.
    pub development: bool,
}

/// Reads the operator's certificate, `None` where the configuration names none.
///
/// # Errors
/// A sentence that names the file and its fault.
pub fn load(tls: &Tls) -> Result<Option<(Certificate, Identity)>, String> {
    let (Some(chain), Some(key)) = (&tls.certificate, &tls.key) else {
        return Ok(None);
    };
    let identity = read_identity(chain, key, |key| format!("tls.{key}"))?;
    let certificate = Certificate {
        fingerprint: fingerprint(&identity.chain[0]),
        subject: subject(&identity.chain[0]),
        expires_s: end_s(&identity.chain),
        file: chain.clone(),
        usage: CertificateUse::Shown,
        trust_anchor: chain.clone(),
        development: false,
    };
    Ok(Some((certificate, identity)))
}

/// Reads the development certificate of a data directory, or makes one.
///
/// It is valid for this host's names and loopback addresses, and for the given addresses. A
/// certificate that lacks any of these is replaced.
///
/// # Errors
/// A sentence that names the file and its fault.
pub fn development(
    directory: &DataDirectory,
    addresses: &[IpAddr],
) -> Result<(Certificate, Identity), String> {
    if let Some((certificate, identity)) = existing(directory)?
        && addresses
            .iter()
            .all(|address| is_valid_at(&identity.chain[0], *address))
    {
        return Ok((certificate, identity));
    }
    let made = |error: Box<dyn std::error::Error>| {
        let folder = directory.path().display();
        format!("cannot make a development certificate in {folder}: {error}")
    };
    Files::new(directory.path()).make(addresses).map_err(made)?;
    (existing(directory)?).ok_or_else(|| made("what was written is not there".into()))
}

/// Reads the development certificate of a data directory. `None` where another has to be made.
///
/// # Errors
/// A sentence that names the file and its fault.
pub fn existing(directory: &DataDirectory) -> Result<Option<(Certificate, Identity)>, String> {
    let files = Files::new(directory.path());
    let Some(Pair { chain, key }) = files.read(directory)? else {
        return Ok(None);
    };
    let identity = Identity::from_pem(&chain, &key).map_err(|e| {
        let (chain, key) = (files.certificate.display(), files.key.display());
        format!("{chain} and {key}: {e}; remove them, and others are made")
    })?;
    let certificate = Certificate {
        fingerprint: fingerprint(&identity.chain[0]),
        subject: subject(&identity.chain[0]),
        expires_s: end_s(&identity.chain),
        file: files.certificate,
        usage: CertificateUse::Shown,
        trust_anchor: files.authority,
        development: true,
    };
    Ok(Some((certificate, identity)))
}

/// Reads a file that the configuration names.
///
/// # Errors
/// A sentence that names the file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads a certificate with its chain, and its key. `setting` has the names of both.
///
/// # Errors
/// A sentence that names the setting, the file and its fault.
pub(crate) fn read_identity(
    chain: &Path,
    key: &Path,
    setting: impl Fn(&str) -> String,
) -> Result<Identity, String> {
    let of_chain = |why| format!("{}: {why}", setting("certificate"));
    let of_key = |why| format!("{}: {why}", setting("key"));
    let at = |path: &Path, why: String| format!("{}: {why}", path.display());
    let certificates = |pem: Vec<u8>| sterna_tls::certificates(&pem).map_err(|why| at(chain, why));
    let private_key = |pem: Vec<u8>| sterna_tls::private_key(&pem).map_err(|why| at(key, why));
    Ok(Identity {
        chain: read(chain).and_then(certificates).map_err(of_chain)?,
        key: read(key).and_then(private_key).map_err(of_key)?,
    })
}

/// Faults of the certificates that the configuration names, for which many clients will refuse them: sentences with their settings and
/// files. Files that cannot be read are the matter of [`load`].
pub(crate) fn weaknesses(tls: &Tls) -> Vec<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_s = now.map_or(0, |now| now.as_secs() as i64);
    let first = (tls.certificate.iter()).map(|file| ("tls.certificate".to_owned(), file));
    let additional =
        (tls.additional_pairs()).map(|(of, pair)| (of("certificate"), &pair.certificate));
    let mut found = Vec::new();
    for (setting, file) in first.chain(additional) {
        let chain = read(file).and_then(|pem| sterna_tls::certificates(&pem));
        let weaknesses = sterna_tls::weaknesses(&chain.unwrap_or_default(), now_s).into_iter();
        found.extend(weaknesses.map(|why| format!("{setting}: {}: {why}", file.display())));
    }
    found
}

/// Reads revocation lists in PEM.
///
/// # Errors
/// A sentence that names the setting, the file and its fault. A file without a list is an error. A file that is being
/// written looks like that, and would admit every revoked client.
pub(crate) fn read_revocation_list(path: &Path) -> Result<Vec<u8>, String> {
    let setting = "tls.client_revocation_lists";
    let mut pem = read(path).map_err(|why| format!("{setting}: {why}"))?;
    let fault = |why: &str| format!("{setting}: {}: {why}", path.display());
    let mut lists = CertificateRevocationListDer::pem_slice_iter(&pem).peekable();
    if lists.peek().is_none() {
        return Err(fault("there is no revocation list in PEM"));
    }
    for list in lists {
        let list = list.map_err(|error| fault(&error.to_string()))?;
        if x509_parser::parse_x509_crl(&list).is_err() {
            return Err(fault("a revocation list is malformed"));
        }
    }
    pem.push(b'\n');
    Ok(pem)
}

/// The certificates in force: the first, those that are chosen by name, the authorities of clients, and their
/// revocation lists.
///
/// # Errors
/// A sentence that names the file of the authorities or lists and its fault.
pub(crate) fn all(
    tls: &Tls,
    first: &Certificate,
    certificates: &Certificates,
) -> Result<Vec<Certificate>, String> {
    let one = |chain: &[CertificateDer<'_>], file: &Path, usage| Certificate {
        fingerprint: chain
            .first()
            .map_or_else(String::new, |der| fingerprint(der)),
        subject: chain.first().map_or_else(String::new, |der| subject(der)),
        expires_s: end_s(chain),
        file: file.to_owned(),
        usage,
        trust_anchor: PathBuf::new(),
        development: false,
    };
    let mut all = vec![first.clone()];
    let by_name = certificates.chains().into_iter().skip(1);
    let by_name = by_name.zip(&tls.additional);
    all.extend(by_name.map(|(chain, pair)| one(&chain, &pair.certificate, CertificateUse::Shown)));
    if let Some(file) = &tls.client_ca {
        let authorities = sterna_tls::certificates(&read(file)?);
        for der in authorities.map_err(|why| format!("{}: {why}", file.display()))? {
            all.push(one(&[der], file, CertificateUse::Authority));
        }
    }
    for file in &tls.client_revocation_lists {
        let pem = read_revocation_list(file)?;
        for der in CertificateRevocationListDer::pem_slice_iter(&pem).flatten() {
            let (issuer, due_s) = issuer_and_due(&der);
            all.push(Certificate {
                fingerprint: fingerprint(&der),
                subject: issuer,
                expires_s: due_s,
                ..one(&[], file, CertificateUse::RevocationList)
            });
        }
    }
    Ok(all)
}

/// The issuer of a revocation list in DER, and the time at which the next list is due. The time is in seconds since the
/// Unix epoch; 0 where the list names none (RFC 5280, section 5.1.2.5).
fn issuer_and_due(list: &[u8]) -> (String, i64) {
    x509_parser::parse_x509_crl(list).map_or_else(
        |_| (String::new(), 0),
        |(_, list)| {
            let due_s = list.next_update().map_or(0, |due| due.timestamp());
            (list.issuer().to_string(), due_s)
        },
    )
}

/// The earliest end of certificates in DER, in seconds since the Unix epoch; 0 where one cannot be read. A chain is
/// worth nothing any more when one of its authorities has ended.
fn end_s(chain: &[CertificateDer<'_>]) -> i64 {
    let ends = chain.iter().map(|der| expiry_s(der));
    ends.min().unwrap_or(0)
}

/// The subject of a certificate in DER; empty where it cannot be read.
fn subject(certificate: &[u8]) -> String {
    x509_parser::parse_x509_certificate(certificate).map_or_else(
        |_| String::new(),
        |(_, certificate)| certificate.subject().to_string(),
    )
}

/// When a certificate in DER expires, in seconds since the Unix epoch; 0 where it cannot be read.
fn expiry_s(certificate: &[u8]) -> i64 {
    x509_parser::parse_x509_certificate(certificate).map_or(0, |(_, certificate)| {
        certificate.validity().not_after.timestamp()
    })
}

/// Whether a certificate in DER names an address.
fn is_valid_at(certificate: &[u8], address: IpAddr) -> bool {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let names = |certificate: &x509_parser::certificate::X509Certificate<'_>| {
        let names = certificate.subject_alternative_name().ok().flatten();
        names.is_some_and(|names| {
            let mut names = names.value.general_names.iter();
            names.any(|name| matches!(name, GeneralName::IPAddress(found) if **found == *octets))
        })
    };
    x509_parser::parse_x509_certificate(certificate).is_ok_and(|(_, found)| names(&found))
}

/// SHA-256 of a certificate in the form that people compare.
#[must_use]
pub fn fingerprint(certificate: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let mut text = String::with_capacity(95);
    for (at, byte) in digest.as_ref().iter().enumerate() {
        if at > 0 {
            text.push(':');
        }
        let _ = write!(text, "{byte:02X}");
    }
    text
}

/// A certificate chain and its key, in PEM.
struct Pair {
    chain: Vec<u8>,
    key: Vec<u8>,
}

/// Files of the development certificate.
struct Files {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(directory: &Path) -> Self {
        Self {
            authority: directory.join(AUTHORITY),
            certificate: directory.join(CERTIFICATE),
            key: directory.join(KEY),
        }
    }

    /// Chain and key, where all files are there and the certificate is not about to expire. Its age is
    /// that of the file: it was written when it was made.
    fn read(&self, directory: &DataDirectory) -> Result<Option<Pair>, String> {
        let age_days = fs::metadata(&self.certificate)
            .and_then(|meta| meta.modified())
            .ok()
            // Hosts without a clock of their own start in the past: it was made later then.
            .map(|made| made.elapsed().unwrap_or_default().as_secs() / 86_400);
        // All are looked at also where new ones are made: those of somebody else are not written over.
        let authority = directory.read(AUTHORITY)?;
        let (chain, key) = (directory.read(CERTIFICATE)?, directory.read(KEY)?);
        let is_fresh = age_days.is_some_and(|days| days < DEVELOPMENT_DAYS - 30);
        Ok(match (authority, chain, key) {
            (Some(_), Some(chain), Some(key)) if is_fresh => Some(Pair { chain, key }),
            _ => None,
        })
    }

    /// Makes an authority that signs one certificate for this host and its addresses. Forgets the authority's key:
    /// nobody can sign another one with it.
    fn make(&self, addresses: &[IpAddr]) -> Result<(), Box<dyn std::error::Error>> {
        let now = SystemTime::now();
        let until = now + std::time::Duration::from_secs(DEVELOPMENT_DAYS * 86_400);
        let from = now - std::time::Duration::from_secs(24 * 3600);

        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::default();
        authority
            .distinguished_name
            .push(DnType::CommonName, "Sterna development authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority.not_before = from.into();
        authority.not_after = until.into();
        let authority_certificate = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);

        let key = KeyPair::generate()?;
        let mut names = vec![
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ];
        names.extend(host_name());
        names.extend(addresses.iter().map(IpAddr::to_string));
        names.dedup();
        let mut server = CertificateParams::new(names)?;
        server
            .distinguished_name
            .push(DnType::CommonName, "Sterna development certificate");
        server.use_authority_key_identifier_extension = true;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.not_before = from.into();
        server.not_after = until.into();
        let certificate = server.signed_by(&key, &issuer)?;

        write_private(&self.key, key.serialize_pem().as_bytes())?;
        // Others may read these, and nobody change them, with any umask.
        for (path, pem) in [
            (&self.authority, authority_certificate.pem()),
            (&self.certificate, certificate.pem()),
        ] {
            write_private(path, pem.as_bytes())?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    }
}

fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    let plain = !name.is_empty()
        && name != "localhost"
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    plain.then(|| name.to_owned())
}

fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    create_private(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_development_certificate_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let directory = DataDirectory::claim(directory.path()).unwrap();
        assert!(load(&Tls::default()).unwrap().is_none());
        let (first, _) = development(&directory, &[]).unwrap();
        let (second, _) = development(&directory, &[Ipv4Addr::LOCALHOST.into()]).unwrap();
        assert!(first.development);
        assert_eq!(first.fingerprint, second.fingerprint);
        assert_eq!(first.fingerprint.len(), 95);
        let now_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let lasts_s = first.expires_s - i64::try_from(now_s).unwrap();
        let days = lasts_s / (24 * 3600);
        assert!(
            (DEVELOPMENT_DAYS as i64 - 2..=DEVELOPMENT_DAYS as i64).contains(&days),
            "{days}"
        );
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(directory.path().join(KEY))
                .unwrap()
                .permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        // The clock went back: clients that know the fingerprint still do.
        let file = fs::File::open(directory.path().join(CERTIFICATE)).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(86_400);
        file.set_modified(later).unwrap();
        let (third, _) = development(&directory, &[]).unwrap();
        assert_eq!(first.fingerprint, third.fingerprint);
    }

    #[test]
    fn the_development_certificate_is_valid_where_listeners_are() {
        let directory = tempfile::tempdir().unwrap();
        let directory = DataDirectory::claim(directory.path()).unwrap();
        let [here, there]: [IpAddr; 2] =
            ["198.18.0.2", "2001:2::2"].map(|text| text.parse().unwrap());
        let (first, identity) = development(&directory, &[here]).unwrap();
        assert!(is_valid_at(&identity.chain[0], here));
        assert!(!is_valid_at(&identity.chain[0], there));
        assert!(is_valid_at(&identity.chain[0], Ipv4Addr::LOCALHOST.into()));
        // The one that is there serves for less, and is replaced for more.
        let (second, _) = development(&directory, &[]).unwrap();
        assert_eq!(first.fingerprint, second.fingerprint);
        let (third, identity) = development(&directory, &[here, there]).unwrap();
        assert_ne!(first.fingerprint, third.fingerprint);
        assert!(is_valid_at(&identity.chain[0], there));
        let (fourth, _) = development(&directory, &[there, here]).unwrap();
        assert_eq!(third.fingerprint, fourth.fingerprint);
    }
}
