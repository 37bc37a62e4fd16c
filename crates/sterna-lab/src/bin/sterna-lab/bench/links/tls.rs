//! TLS 1.3 of the load: one suite, one group, and verification unless it was switched off in words.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::target::{Scheme, Target};

/// Whose certificates are believed.
#[derive(Clone, Debug)]
pub(in super::super) enum Trust {
    /// The authorities of the operating system.
    System,
    /// The authorities in a PEM file.
    File(PathBuf),
    /// Anybody's (`--insecure`).
    Anybody,
}

/// The client configuration for `protocol` (an ALPN), with full handshakes unless `resume`.
pub(in super::super) fn client_config(
    trust: &Trust,
    protocol: Option<&[u8]>,
    resume: bool,
) -> Result<ClientConfig, String> {
    // AES-128-GCM first and X25519 first: every broker then does the same work, whatever its
    // library would have preferred.
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|s| s.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let provider = Arc::new(provider);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| format!("cannot use TLS 1.3: {e}"))?;
    let mut config = match trust {
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth(),
        Trust::System | Trust::File(_) => builder
            .with_root_certificates(roots(trust)?)
            .with_no_client_auth(),
    };
    config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
    // It does nothing where SSLKEYLOGFILE is not set.
    config.key_log = Arc::new(rustls::KeyLogFile::new());
    if resume {
        config.enable_early_data = true;
    } else {
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}

fn roots(trust: &Trust) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Trust::File(path) = trust {
        let fail = |e: &dyn std::fmt::Display| format!("cannot read '{}': {e}", path.display());
        for certificate in CertificateDer::pem_file_iter(path).map_err(|e| fail(&e))? {
            let certificate = certificate.map_err(|e| fail(&e))?;
            roots.add(certificate).map_err(|e| fail(&e))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err("no certificate authority to trust: name one with --ca FILE".to_owned());
    }
    Ok(roots)
}

/// What TLS on TCP needs for each connection.
pub(super) struct ByteStreamTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl ByteStreamTls {
    pub(super) fn new(target: &Target, trust: &Trust, resume: bool) -> Result<Self, String> {
        // Some brokers refuse an ALPN they do not know, so only a WebSocket offers one.
        let protocol = (target.scheme == Scheme::SecureWebSocket).then_some(&b"http/1.1"[..]);
        let config = Arc::new(client_config(trust, protocol, resume)?);
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| format!("'{}' is no name for a certificate", target.host))?;
        Ok(Self { config, name })
    }

    pub(super) fn connection(&self) -> io::Result<ClientConnection> {
        let mut connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(io::Error::other)?;
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

/// Believes every certificate, but still checks that the peer holds its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not offered".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
