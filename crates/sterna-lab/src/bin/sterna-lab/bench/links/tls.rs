//! TLS of the load: 1.3 unless the command line says 1.2, one suite, one group.

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConfig, ClientConnection};
use sterna_client::TlsVersion;

use super::LinkOptions;
use super::target::Scheme;

/// The client configuration for these protocols (ALPN).
pub(in super::super) fn client_config(
    options: &LinkOptions,
    protocols: &[&[u8]],
) -> Result<ClientConfig, String> {
    // AES-128-GCM first and X25519 first: every broker then does the same work, with any preference
    // of its library.
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|s| s.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut tls = options.tls.clone();
    tls.version.get_or_insert(TlsVersion::Tls13);
    tls.rustls_config(provider, protocols, options.tls.resumption)
        .map_err(|error| error.to_string())
}

/// State that TLS on TCP needs for each connection.
pub(super) struct ByteStreamTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl ByteStreamTls {
    pub(super) fn new(options: &LinkOptions) -> Result<Self, String> {
        let (target, tls) = (&options.target, &options.tls);
        // Some brokers refuse an ALPN they do not know, so only a WebSocket offers one by itself.
        let mut protocols: Vec<&[u8]> = tls.alpn.iter().map(String::as_bytes).collect();
        if protocols.is_empty() && target.scheme == Scheme::SecureWebSocket {
            protocols.push(b"http/1.1");
        }
        let config = Arc::new(client_config(options, &protocols)?);
        let name = ServerName::try_from(target.name.clone())
            .map_err(|_| format!("'{}' is no name for a certificate", target.name))?;
        Ok(Self { config, name })
    }

    pub(super) fn connection(&self) -> io::Result<ClientConnection> {
        let mut connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(io::Error::other)?;
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}
