//! The section `tls`: certificates, authorities and keys.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Certificates.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
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
