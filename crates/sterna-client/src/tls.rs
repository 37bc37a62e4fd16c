//! Trusted servers, and the client's own certificate.
//!
//! The default is that of a browser. An authority that the system trusts must have signed the
//! server's certificate. The certificate must be in date and name the host. For a private broker,
//! use its authority's file, or the fingerprint of its certificate. `sterna serve` prints the
//! fingerprint when it makes a certificate.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    AlwaysResolvesClientRawPublicKeys, ClientSessionMemoryCache, Resumption, TicketRequest,
    WebPkiServerVerifier,
};
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, KeyLogFile, OtherError, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use sha2::{Digest as _, Sha256};
use sterna_quic::KeyShare;
use sterna_tls::Owner;

/// Most certificates that are read from one file or folder of authorities.
const MAX_AUTHORITIES: usize = 4_096;
/// Largest file of certificates or keys, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most different TLS settings whose tickets one process keeps; the oldest go first.
const MAX_CACHED_CONFIGS: usize = 32;
/// Session tickets kept per TLS setting, over all servers.
const MAX_TICKETS: usize = 1_024;
/// Tickets that a connection over QUIC asks for (RFC 9149): those of one connection are for those that end before theirs
/// come. As many as the library keeps for a server, and two for one that is used.
const TICKETS: TicketRequest = TicketRequest {
    new_session_count: 8,
    resumption_count: 2,
};

/// Why TLS could not be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsError {
    /// A file could not be read, or holds nothing usable.
    File {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The settings don't work together.
    Settings(String),
    /// The text is no fingerprint: 64 hexadecimal digits, colons between them allowed.
    Fingerprint,
    /// The host cannot stand in a certificate.
    ServerName,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::Settings(reason) => f.write_str(reason),
            Self::Fingerprint => f.write_str(
                "a fingerprint is the SHA-256 of a certificate: 64 hexadecimal digits, with or without colons",
            ),
            Self::ServerName => f.write_str("the host is neither a valid DNS name nor an address"),
        }
    }
}

impl std::error::Error for TlsError {}

/// The SHA-256 digest of a certificate in DER form, which pins exactly that certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a certificate, given in DER form.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl FromStr for Fingerprint {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        // OpenSSL prints `sha256 Fingerprint=AA:BB:…`; others put `sha256:` before it.
        let text = text.trim();
        let digits = text.rsplit_once('=').map_or(text, |(_, digits)| digits);
        let digits = match digits.get(..7) {
            Some(prefix) if prefix.eq_ignore_ascii_case("sha256:") => &digits[7..],
            _ => digits,
        };
        let mut out = [0; 32];
        let mut nibbles = 0;
        for character in digits.chars().filter(|character| *character != ':') {
            let value = character.to_digit(16).ok_or(TlsError::Fingerprint)?;
            let byte: &mut u8 = out.get_mut(nibbles / 2).ok_or(TlsError::Fingerprint)?;
            *byte = (*byte << 4) | value as u8;
            nibbles += 1;
        }
        if nibbles == 64 {
            Ok(Self(out))
        } else {
            Err(TlsError::Fingerprint)
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A version of TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsVersion {
    /// 1.2 (RFC 5246). QUIC cannot use it.
    Tls12,
    /// 1.3 (RFC 8446).
    Tls13,
}

/// TLS settings of a client; the default trusts the system's authorities and has no certificate of
/// its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// A PEM file of authorities to trust, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// A folder of PEM files of authorities to trust, in place of the system's.
    pub ca_path: Option<PathBuf>,
    /// Fingerprints of the only accepted certificates, unless empty. Signer, names and dates are
    /// then not checked.
    pub fingerprints: Vec<Fingerprint>,
    /// Keys of the only accepted servers, unless empty. Each is the SHA-256 of a
    /// SubjectPublicKeyInfo in DER form. The server sends its bare key in place of a certificate
    /// (RFC 7250; TLS 1.3 only). It must be configured for that. The handshake is smaller.
    pub server_keys: Vec<Fingerprint>,
    /// A PEM file with the client's certificate, and after it those of its authorities.
    pub certificate: Option<PathBuf>,
    /// A PEM file with the key of the client's certificate. Without a certificate the client shows
    /// the bare key (RFC 7250; TLS 1.3 only), to servers that know it.
    pub key: Option<PathBuf>,
    /// Accept every server. Anyone on the path can then read and change all data; for tests only.
    pub insecure: bool,
    /// The name that the certificate must be for, when it is not the host of the URL.
    pub server_name: Option<String>,
    /// Protocols to offer by ALPN on TLS over TCP; empty by default. QUIC always offers `mqtt`.
    pub alpn: Vec<String>,
    /// Only this version; any that both sides know by default.
    pub version: Option<TlsVersion>,
    /// Whether later connections of this process make use of the tickets of earlier ones; on by
    /// default.
    pub resumption: bool,
    /// Writes before the handshake is complete (RFC 8446, section 2.3), on TLS over TCP with MQTT
    /// or AMQP. That saves a round trip. Off by default. It needs a ticket of an earlier connection
    /// of this process, to a server that permits it. QUIC has a setting of its own.
    ///
    /// An attacker can record such bytes and send them to the server again. Turn it on only for
    /// servers that accept them once.
    pub early_data: bool,
    /// Whether to append the secrets of each connection to the file of the environment variable
    /// `SSLKEYLOGFILE`. The format is that of NSS, which Wireshark reads. Off by default, and
    /// without effect if the variable is not set.
    ///
    /// **Anyone with that file and a recording of the connections can read all of their data**,
    /// passwords included, for ever. It is for looking into one's own traffic.
    pub key_log: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            ca_file: None,
            ca_path: None,
            fingerprints: Vec::new(),
            server_keys: Vec::new(),
            certificate: None,
            key: None,
            insecure: false,
            server_name: None,
            alpn: Vec::new(),
            version: None,
            resumption: true,
            early_data: false,
            key_log: false,
        }
    }
}

impl Tls {
    /// Whether authorities are named in place of the system's.
    pub(crate) const fn names_authorities(&self) -> bool {
        self.ca_file.is_some() || self.ca_path.is_some()
    }

    /// The name under which `host` must present itself.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        let name = self.server_name.clone().unwrap_or_else(|| host.to_owned());
        ServerName::try_from(name).map_err(|_| TlsError::ServerName)
    }

    /// The configuration for rustls that these settings ask for, with this provider of cryptography: for
    /// programs that speak TLS themselves. `alpn` are the protocols that are offered, in place of
    /// [`Tls::alpn`]. With `early_data` it may write before the handshake is complete. Reads the files
    /// that are named.
    ///
    /// # Errors
    /// When a file cannot be read, or the settings do not go together.
    pub fn rustls_config(
        &self,
        provider: CryptoProvider,
        alpn: &[&[u8]],
        early_data: bool,
    ) -> Result<ClientConfig, TlsError> {
        Material::load(self, alpn, early_data)?.build(provider)
    }

    /// The configuration for rustls, the same object for the same settings, so that tickets of
    /// earlier connections of this process are found. Reads files; a few milliseconds the first
    /// time.
    ///
    /// With `early_data` it may write before the handshake is complete.
    pub(crate) fn config(
        &self,
        alpn: &[&[u8]],
        early_data: bool,
        preference: Option<Preference>,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let mut material = Material::load(self, alpn, early_data)?;
        material.preference = preference;
        let mut cache = CONFIGS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, config)) = cache.iter().find(|(cached, _)| *cached == material) {
            return Ok(Arc::clone(config));
        }
        let mut provider = rustls::crypto::ring::default_provider();
        if let Some(preference) = preference {
            preference.apply(&mut provider)?;
        }
        let config = Arc::new(material.build(provider)?);
        if cache.len() == MAX_CACHED_CONFIGS {
            cache.remove(0);
        }
        cache.push((material, Arc::clone(&config)));
        Ok(config)
    }
}

/// Tickets belong to a configuration: rustls resumes only with the same verifier and client
/// certificate objects. So a session of one setting is not resumed under a stricter one.
static CONFIGS: Mutex<Vec<(Material, Arc<ClientConfig>)>> = Mutex::new(Vec::new());

/// All that a configuration is made from, read from its files: the key of the cache.
#[derive(PartialEq, Eq)]
struct Material {
    trust: Trust,
    identity: Option<Identity>,
    alpn: Vec<Vec<u8>>,
    early_data: bool,
    preference: Option<Preference>,
    version: Option<TlsVersion>,
    resumption: bool,
    key_log: bool,
}

/// Identity of the client.
#[derive(PartialEq, Eq)]
enum Identity {
    Certificate(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    Key(PrivateKeyDer<'static>),
}

/// Preferences of a client among the options of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preference {
    /// The group of the key share in the ClientHello.
    pub(crate) key_share: KeyShare,
    /// ChaCha20-Poly1305 before AES-GCM.
    pub(crate) chacha20: bool,
    /// The server's port: the library files tickets by host alone, and early data for one server
    /// would only be refused by another.
    pub(crate) port: u16,
}

impl Preference {
    fn apply(self, provider: &mut CryptoProvider) -> Result<(), TlsError> {
        let groups: Vec<u16> = provider
            .kx_groups
            .iter()
            .map(|group| group.name().into())
            .collect();
        let first = self
            .key_share
            .position(&groups)
            .map_err(|error| TlsError::Settings(error.to_string()))?;
        provider.kx_groups[..=first].rotate_right(1);
        if self.chacha20 {
            let is_aes = |suite: &rustls::SupportedCipherSuite| {
                suite.suite() != rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            };
            provider.cipher_suites.sort_by_key(is_aes);
        }
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum Trust {
    System,
    Authorities(Vec<CertificateDer<'static>>),
    Fingerprints(Vec<Fingerprint>),
    Keys(Vec<Fingerprint>),
    Everyone,
}

impl Material {
    fn load(tls: &Tls, alpn: &[&[u8]], early_data: bool) -> Result<Self, TlsError> {
        let trust = if tls.insecure {
            Trust::Everyone
        } else if !tls.server_keys.is_empty() {
            Trust::Keys(tls.server_keys.clone())
        } else if !tls.fingerprints.is_empty() {
            Trust::Fingerprints(tls.fingerprints.clone())
        } else if tls.ca_file.is_some() || tls.ca_path.is_some() {
            let mut authorities = Vec::new();
            if let Some(path) = &tls.ca_file {
                authorities.extend(certificates(path)?);
            }
            if let Some(path) = &tls.ca_path {
                authorities.extend(certificates_in(path)?);
            }
            if authorities.len() > MAX_AUTHORITIES {
                return Err(TlsError::Settings(format!(
                    "more than {MAX_AUTHORITIES} authorities"
                )));
            }
            Trust::Authorities(authorities)
        } else {
            Trust::System
        };
        let identity = match (&tls.certificate, &tls.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                Some(Identity::Certificate(chain, private_key(key)?))
            }
            (None, Some(key)) => Some(Identity::Key(private_key(key)?)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(TlsError::Settings(
                    "a client certificate is of no use without its key".to_owned(),
                ));
            }
        };
        Ok(Self {
            trust,
            identity,
            alpn: alpn.iter().map(|name| name.to_vec()).collect(),
            early_data,
            preference: None,
            version: tls.version,
            resumption: tls.resumption,
            key_log: tls.key_log,
        })
    }

    fn build(&self, provider: CryptoProvider) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(provider);
        let verifier: Arc<dyn ServerCertVerifier> = match &self.trust {
            Trust::System => {
                let found = rustls_native_certs::load_native_certs();
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    return Err(TlsError::Settings(
                        "the system has no certificates of authorities; name a file of them, or the \
                         fingerprint of the server's certificate"
                            .to_owned(),
                    ));
                }
                webpki(roots, &provider)?
            }
            Trust::Authorities(certificates) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates {
                    roots.add(certificate.clone()).map_err(|error| {
                        TlsError::Settings(format!(
                            "an authority's certificate is not usable: {error}"
                        ))
                    })?;
                }
                webpki(roots, &provider)?
            }
            Trust::Fingerprints(fingerprints) => Arc::new(SignatureOnly {
                provider: Arc::clone(&provider),
                pinned: Some(fingerprints.clone()),
                raw_keys: false,
            }),
            Trust::Keys(keys) => Arc::new(SignatureOnly {
                provider: Arc::clone(&provider),
                pinned: Some(keys.clone()),
                raw_keys: true,
            }),
            Trust::Everyone => Arc::new(SignatureOnly {
                provider: Arc::clone(&provider),
                pinned: None,
                raw_keys: false,
            }),
        };
        let versions: &[&rustls::SupportedProtocolVersion] = match self.version {
            None => rustls::DEFAULT_VERSIONS,
            Some(TlsVersion::Tls12) => &[&rustls::version::TLS12],
            Some(TlsVersion::Tls13) => &[&rustls::version::TLS13],
        };
        let key_provider = provider.key_provider;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| TlsError::Settings(error.to_string()))?
            // Named `dangerous` for the two verifiers above that look at less than webpki does.
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let unusable =
            |why: String| TlsError::Settings(format!("the client's identity is not usable: {why}"));
        let mut config = match &self.identity {
            Some(Identity::Certificate(chain, key)) => builder
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|_| unusable(sterna_tls::unusable(chain, key)))?,
            Some(Identity::Key(key)) => {
                let key = key_provider
                    .load_private_key(key.clone_key())
                    .map_err(|_| unusable(sterna_tls::unusable_key(key)))?;
                let public = key.public_key().ok_or_else(|| {
                    TlsError::Settings("the client's key has no public half".to_owned())
                })?;
                // The library carries the key in the certificate's place (RFC 8446, section 4.4.2).
                let shown = vec![CertificateDer::from(public.as_ref().to_vec())];
                let certified = Arc::new(CertifiedKey::new(shown, key));
                let resolver = AlwaysResolvesClientRawPublicKeys::new(certified);
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        config.enable_early_data = self.early_data;
        config.resumption = if self.resumption {
            config.send_ticket_request = self.preference.is_some().then_some(TICKETS);
            Resumption::store(Arc::new(ClientSessionMemoryCache::new(MAX_TICKETS)))
        } else {
            Resumption::disabled()
        };
        if self.key_log {
            config.key_log = Arc::new(KeyLogFile::new());
        }
        Ok(config)
    }
}

fn webpki(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|error| TlsError::Settings(error.to_string()))?;
    Ok(verifier)
}

/// The server shows another certificate or key than those that are pinned.
struct AnotherFingerprint(Fingerprint);

impl AnotherFingerprint {
    /// Start of the text.
    const TEXT: &str = "the server has another fingerprint: ";
}

impl fmt::Display for AnotherFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::TEXT, self.0)
    }
}

/// The library shows no other form of it.
impl fmt::Debug for AnotherFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for AnotherFingerprint {}

/// Whether a text of [`explain`] says that the server's certificate is not accepted.
pub(crate) fn is_untrusted(text: &str) -> bool {
    text.contains("invalid peer certificate") || text.contains(AnotherFingerprint::TEXT)
}

/// The fault of the server's certificate in words, where the error has it in the library's form.
fn in_words(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let inner = error.downcast_ref::<std::io::Error>()?.get_ref()?;
    match inner.downcast_ref::<rustls::Error>()? {
        // Our own verifier's.
        rustls::Error::InvalidCertificate(CertificateError::Other(_)) if is_pin(inner) => None,
        rustls::Error::InvalidCertificate(why) => {
            let why = sterna_tls::refused(Owner::Server, why);
            Some(format!("invalid peer certificate: {why}"))
        }
        _ => None,
    }
}

fn is_pin(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error.to_string().contains(AnotherFingerprint::TEXT)
}

/// A TLS failure with what to do about it, where that can be known. `names_authorities` says whether the settings
/// have authorities of their own.
pub(crate) fn explain(
    error: &(dyn std::error::Error + 'static),
    names_authorities: bool,
) -> String {
    let text = in_words(error).unwrap_or_else(|| error.to_string());
    if let Some((_, seen)) = text.split_once(AnotherFingerprint::TEXT) {
        let digits = seen.chars().take_while(char::is_ascii_hexdigit);
        let seen: String = digits.collect();
        return format!("{}{seen}", AnotherFingerprint::TEXT);
    }
    let is_unknown = text.contains("UnknownIssuer") || text.contains("BadSignature");
    let hint = if is_unknown && names_authorities {
        " (no authority of --cafile or --capath signed it: it is another broker's, or name the right file, or pin it \
         with --fingerprint)"
    } else if is_unknown {
        " (no trusted authority signed it: name its authority with --cafile, or pin it with --fingerprint)"
    } else if text.contains("UnsupportedCertVersion") {
        " (the server's certificate is X.509 version 1: its operator has to make another one, of version 3 with names)"
    } else if text.contains("CaUsedAsEndEntity") {
        " (the server shows the certificate of an authority: its operator has to make another one; or pin it with \
         --fingerprint)"
    } else if text.contains("NoApplicationProtocol") || text.contains("error 120") {
        " (the server does not serve this protocol on this port)"
    } else if text.contains("InvalidContentType") {
        " (the server does not speak TLS on this port)"
    } else if text.contains("handshake eof") {
        " (the server closed the connection: it may not speak TLS on this port)"
    } else {
        ""
    };
    format!("{text}{hint}")
}

/// Accepts pinned certificates, or all when none are pinned. That the server holds the
/// certificate's key is still checked: that is the signature in the handshake.
#[derive(Debug)]
struct SignatureOnly {
    provider: Arc<CryptoProvider>,
    pinned: Option<Vec<Fingerprint>>,
    /// The server shows its bare key.
    raw_keys: bool,
}

impl ServerCertVerifier for SignatureOnly {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.pinned {
            Some(pinned) if !pinned.contains(&Fingerprint::of(certificate)) => {
                let seen = AnotherFingerprint(Fingerprint::of(certificate));
                let error = OtherError(Arc::new(seen));
                Err(CertificateError::Other(error).into())
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        if self.raw_keys {
            let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
            return verify_tls13_signature_with_raw_key(message, &key, signature, algorithms);
        }
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.raw_keys
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn file_error(path: &Path, reason: impl fmt::Display) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let length = std::fs::metadata(path)
        .map_err(|error| file_error(path, error))?
        .len();
    if length > MAX_FILE_BYTES {
        return Err(file_error(
            path,
            format_args!("is larger than {MAX_FILE_BYTES} bytes"),
        ));
    }
    std::fs::read(path).map_err(|error| file_error(path, error))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    sterna_tls::private_key(&read(path)?).map_err(|why| file_error(path, why))
}

/// The certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    sterna_tls::certificates(&read(path)?).map_err(|why| file_error(path, why))
}

/// The certificates of a folder's files. Files that are not PEM are passed over, as OpenSSL does.
fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let entries = std::fs::read_dir(path).map_err(|error| file_error(path, error))?;
    let mut files: Vec<PathBuf> = entries
        .take(MAX_AUTHORITIES)
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let found: Vec<_> = files
        .iter()
        .filter_map(|file| certificates(file).ok())
        .flatten()
        .collect();
    if found.is_empty() {
        return Err(file_error(
            path,
            "holds no file with certificates in PEM form",
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_printed_elsewhere() {
        let plain = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let fingerprint = Fingerprint::of(b"");
        assert_eq!(fingerprint.to_string(), plain);
        let colons: Vec<_> = plain
            .as_bytes()
            .chunks(2)
            .map(|two| std::str::from_utf8(two).unwrap().to_uppercase())
            .collect();
        let colons = colons.join(":");
        for text in [
            plain.to_owned(),
            colons.clone(),
            format!("SHA256:{plain}"),
            format!("sha256 Fingerprint={colons}"),
        ] {
            assert_eq!(text.parse::<Fingerprint>().unwrap(), fingerprint, "{text}");
        }
        for text in [
            "",
            "e3b0",
            &plain[1..],
            &format!("{plain}00"),
            &plain.replace('e', "g"),
        ] {
            assert_eq!(
                text.parse::<Fingerprint>().unwrap_err(),
                TlsError::Fingerprint,
                "{text}"
            );
        }
    }

    #[test]
    fn the_same_settings_share_tickets_and_others_do_not() {
        let pinned = Tls {
            fingerprints: vec![Fingerprint::of(b"x")],
            ..Tls::default()
        };
        let one = pinned.config(&[b"mqtt"], false, None).unwrap();
        assert!(Arc::ptr_eq(
            &one,
            &pinned.config(&[b"mqtt"], false, None).unwrap()
        ));
        assert!(!Arc::ptr_eq(
            &one,
            &pinned.config(&[], false, None).unwrap()
        ));
        assert!(!Arc::ptr_eq(
            &one,
            &pinned.config(&[b"mqtt"], true, None).unwrap()
        ));
        let open = Tls {
            insecure: true,
            ..Tls::default()
        };
        assert!(!Arc::ptr_eq(
            &one,
            &open.config(&[b"mqtt"], false, None).unwrap()
        ));
    }

    #[test]
    fn half_an_identity_and_missing_files_are_errors() {
        let half = Tls {
            certificate: Some("c.pem".into()),
            ..Tls::default()
        };
        assert!(matches!(
            half.config(&[], false, None),
            Err(TlsError::Settings(_))
        ));
        let gone = Tls {
            ca_file: Some("/nonexistent/ca.pem".into()),
            ..Tls::default()
        };
        assert!(matches!(
            gone.config(&[], false, None),
            Err(TlsError::File { .. })
        ));
    }

    #[test]
    fn the_name_in_the_certificate_can_differ_from_the_host() {
        let tls = Tls {
            server_name: Some("broker.example".to_owned()),
            ..Tls::default()
        };
        assert_eq!(tls.server_name("::1").unwrap().to_str(), "broker.example");
        assert_eq!(Tls::default().server_name("::1").unwrap().to_str(), "::1");
        assert_eq!(Tls::default().server_name("a b"), Err(TlsError::ServerName));
    }
}
