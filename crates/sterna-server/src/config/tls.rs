//! The section `tls`: certificates, authorities and keys.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Certificates.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain in PEM. Without it a development certificate is made on first start.
    pub certificate: Option<PathBuf>,
    /// Private key in PEM.
    pub key: Option<PathBuf>,
    /// Certificates in PEM that sign client certificates.
    pub client_ca: Option<PathBuf>,
    /// Certificates of clients that are revoked: revocation lists of `client_ca` in PEM.
    pub client_revocation_lists: Vec<PathBuf>,
    /// Whether a client must present a certificate.
    pub require_client_certificate: bool,
    /// Whether the subject's common name of a client certificate is taken as user name.
    pub certificate_as_username: bool,
    /// Refuses TLS 1.2 on TCP. QUIC is always TLS 1.3.
    pub only_tls13: bool,
    /// QUIC listeners show the certificate's public key alone (RFC 7250). Clients that know it need
    /// nothing else; clients that want a certificate are refused.
    pub raw_public_key: bool,
    /// Public keys in PEM of the clients that may connect over QUIC, who then show no certificates;
    /// needs `raw_public_key`.
    pub client_keys: Option<PathBuf>,
    /// Show the development certificate on addresses that other hosts reach.
    pub allow_development_certificate_beyond_loopback: bool,
    /// Certificates beside `certificate`, for clients that ask for one of their names.
    pub additional: Vec<AdditionalCertificate>,
    /// Time between two looks at the files of this section, in seconds. Changed files are read
    /// again as at a reload. 0: only a reload reads them.
    pub watch_interval_s: u32,
    /// Days before the end of a certificate at which the log warns of it.
    pub expiry_warning_days: Vec<u32>,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            certificate: None,
            key: None,
            client_ca: None,
            client_revocation_lists: Vec::new(),
            require_client_certificate: false,
            certificate_as_username: false,
            only_tls13: false,
            raw_public_key: false,
            client_keys: None,
            allow_development_certificate_beyond_loopback: false,
            additional: Vec::new(),
            watch_interval_s: 10,
            expiry_warning_days: vec![30, 7, 1],
        }
    }
}

impl Tls {
    /// All files of this section.
    pub(crate) fn files(&self) -> Vec<&Path> {
        let single = [
            &self.certificate,
            &self.key,
            &self.client_ca,
            &self.client_keys,
        ];
        let pairs = self.additional.iter();
        (single.into_iter().flatten())
            .chain(&self.client_revocation_lists)
            .chain(pairs.flat_map(|pair| [&pair.certificate, &pair.key]))
            .map(PathBuf::as_path)
            .collect()
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdditionalCertificate {
    /// Certificate chain in PEM.
    pub certificate: PathBuf,
    /// Private key in PEM.
    pub key: PathBuf,
}
