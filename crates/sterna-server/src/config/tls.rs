//! The section `tls`: certificates, authorities and keys.

use std::path::{Path, PathBuf};

settings! {
    /// Certificates of all listeners that encrypt. [Make certificates](configuring.md#make-certificates) has the
    /// commands.
    #[derive(Eq)]
    pub struct Tls {
        /// Certificate of the broker with its chain, in PEM. Without it a [development
        /// certificate](configuring.md#the-development-certificate) is made.
        reload certificate: Option<PathBuf>, said "a development certificate";
        /// Key of `certificate`, in PEM.
        reload key: Option<PathBuf>, said "that of the development certificate";
        /// Authorities that sign client certificates, in PEM.
        presence client_ca: Option<PathBuf>;
        /// Revocation lists (CRLs) of `client_ca`, in PEM. A client whose certificate is listed is refused, also in a
        /// resumed handshake, and its connections end. Certificates that no list covers are accepted. A file without a
        /// list is an error. An overdue list stays in force: the log warns, and so does an
        /// [alert](operations.md#prometheus-and-grafana).
        reload client_revocation_lists: Vec<PathBuf>;
        /// Whether TLS and QUIC clients without a certificate are refused. It needs `client_ca`.
        restart require_client_certificate: bool = false;
        /// Whether the common name of a client's certificate is its user name.
        restart certificate_as_username: bool = false;
        /// Whether TLS 1.2 is refused on TCP. QUIC is always TLS 1.3.
        restart only_tls13: bool = false;
        /// Whether QUIC listeners show the certificate's public key alone (RFC 7250), for devices that know it. Clients
        /// that want a certificate are refused there.
        restart raw_public_key: bool = false;
        /// Public keys (`PUBLIC KEY`) of the clients that may connect over QUIC, in PEM, instead of client
        /// certificates. It needs `raw_public_key`.
        presence client_keys: Option<PathBuf>;
        /// Whether the development certificate may be shown on addresses that other hosts reach. Without it such a
        /// listener needs `certificate`.
        reload allow_development_certificate_beyond_loopback: bool = false;
        /// Certificates beside `certificate`, for clients that ask for one of their names.
        section additional: Vec<AdditionalCertificate>;
        /// Time between two looks at the files of this section. Changed files are put in force as at a reload: all or
        /// nothing, with one line in the log. Files that cannot be put in force are tried again at each look. 0: only a
        /// reload reads them.
        reload watch_interval_s: u32 = 10;
        /// Days before the end of a certificate at which the log warns of it. Certificates in `client_ca` count, too.
        reload expiry_warning_days: Vec<u32> = vec![30, 7, 1];
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

settings! {
    /// Certificates for clients that ask for one of their names (SNI). All other clients get `tls.certificate`.
    #[derive(Eq)]
    pub struct AdditionalCertificate {
        /// Certificate with its chain, in PEM.
        reload certificate: PathBuf, said "required";
        /// Key of the certificate, in PEM.
        reload key: PathBuf, said "required";
    }
}
