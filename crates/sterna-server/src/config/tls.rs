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
        /// Whether TLS 1.2 is refused on TCP. QUIC is always TLS 1.3. Served are AES-GCM and ChaCha20-Poly1305, in TLS 1.2 with
        /// ECDHE alone; X25519, P-256 and P-384. A client that has none of them is [named in the
        /// log](operations.md#handshakes-that-fail).
        restart only_tls13: bool = false;
        /// Bytes of plaintext in a record of TLS on TCP. A client that asks for less (RFC 6066, RFC 8449) gets that, down
        /// to 512. Set it for [devices with small buffers](configuring.md#devices-with-small-buffers) that do not ask.
        restart maximum_record_bytes: u16 = 16_384, within 512..=16_384;
        /// Names of application protocols (ALPN) for MQTT beside `mqtt`, on TLS and QUIC, such as `x-amzn-mqtt-ca`.
        restart mqtt_alpn: Vec<String>;
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

/// Names of application protocols that mean something else, or are there anyway.
const KNOWN_PROTOCOLS: [&str; 6] = ["mqtt", "amqp", "h3", "h2", "http/1.1", "http/1.0"];

impl Tls {
    /// The faults of the settings, each a sentence that names one setting.
    pub(super) fn problems(&self) -> Vec<String> {
        let is_wrong = |name: &&String| {
            name.is_empty() || name.len() > 255 || KNOWN_PROTOCOLS.contains(&name.as_str())
        };
        let wrong = self.mqtt_alpn.iter().filter(is_wrong);
        wrong
            .map(|name| {
                format!(
                    "tls.mqtt_alpn: `{name}` has to have 1 to 255 bytes, and be none of {}",
                    KNOWN_PROTOCOLS.join(", ")
                )
            })
            .collect()
    }

    /// The additional certificates, each with the names of its settings in problems.
    pub(crate) fn additional_pairs(
        &self,
    ) -> impl Iterator<Item = (impl Fn(&str) -> String, &AdditionalCertificate)> {
        (1..).zip(&self.additional).map(|(number, pair)| {
            let of = move |key: &str| format!("tls.additional {number}: {key}");
            (of, pair)
        })
    }

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
