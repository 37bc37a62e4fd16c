//! The certificate in force: the operator's, or one for development made on first start.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sterna_net::Identity;

use crate::config::Tls;

/// Days a development certificate is valid.
const DEVELOPMENT_DAYS: u64 = 397;

/// What people need to know of the certificate in force.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// SHA-256 of the end-entity certificate in hexadecimal, bytes joined by colons.
    pub fingerprint: String,
    /// What a client takes as trust anchor: the development authority, or the operator's chain.
    pub trust_anchor: PathBuf,
    /// Whether it was made by the broker itself.
    pub development: bool,
}

/// Reads the operator's certificate, or reads or makes the development certificate in `directory`.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub fn load(tls: &Tls, directory: &Path) -> Result<(Certificate, Identity), String> {
    let (chain, key, trust_anchor, development) =
        if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
            (certificate.clone(), key.clone(), certificate.clone(), false)
        } else {
            let files = Files::new(directory);
            if !files.usable() {
                files.make().map_err(|e| {
                    format!(
                        "cannot make a development certificate in {}: {e}",
                        directory.display()
                    )
                })?;
            }
            (files.certificate, files.key, files.authority, true)
        };
    let identity = Identity::from_pem(&read(&chain)?, &read(&key)?)
        .map_err(|e| format!("{} and {}: {e}", chain.display(), key.display()))?;
    let fingerprint = fingerprint(&identity.chain[0]);
    Ok((
        Certificate {
            fingerprint,
            trust_anchor,
            development,
        },
        identity,
    ))
}

/// Reads a file that the configuration names.
///
/// # Errors
/// A sentence that names the file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
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

/// Files of the development certificate.
struct Files {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(directory: &Path) -> Self {
        Self {
            authority: directory.join("development-ca.pem"),
            certificate: directory.join("development-certificate.pem"),
            key: directory.join("development-key.pem"),
        }
    }

    /// Whether all are there and the certificate is not about to expire. Its age is that of the file:
    /// it was written when it was made.
    fn usable(&self) -> bool {
        let age_days = fs::metadata(&self.certificate)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|made| made.elapsed().ok())
            .map(|age| age.as_secs() / 86_400);
        self.authority.is_file()
            && self.key.is_file()
            && age_days.is_some_and(|days| days < DEVELOPMENT_DAYS - 30)
    }

    /// Makes an authority that signs one certificate for this host, and forgets the authority's key:
    /// nobody can sign another one with it.
    fn make(&self) -> Result<(), Box<dyn std::error::Error>> {
        let now = std::time::SystemTime::now();
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
        fs::write(&self.authority, authority_certificate.pem())?;
        fs::write(&self.certificate, certificate.pem())?;
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

/// Makes a file that only this user can read, and the folders above it.
pub(crate) fn create_private(path: &Path) -> std::io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_development_certificate_is_made_once_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (first, _) = load(&Tls::default(), directory.path()).unwrap();
        let (second, _) = load(&Tls::default(), directory.path()).unwrap();
        assert!(first.development);
        assert_eq!(first.fingerprint, second.fingerprint);
        assert_eq!(first.fingerprint.len(), 95);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(directory.path().join("development-key.pem"))
                .unwrap()
                .permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    }
}
