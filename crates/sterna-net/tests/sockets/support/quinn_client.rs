//! Clients of quinn on loopback.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint};

use super::PATIENCE;
use super::pki::Authority;

/// A client endpoint at an address; its connections share tickets, and use them for early data where that is wanted.
pub(crate) fn endpoint(from: SocketAddr, authority: &Authority, early_data: bool) -> Endpoint {
    let mut endpoint = Endpoint::client(from).unwrap();
    let config = authority.client(&[&rustls::version::TLS13], None, &[b"mqtt"]);
    let mut config = (*config).clone();
    config.enable_early_data = early_data;
    let crypto = QuicClientConfig::try_from(config).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
    endpoint
}

/// Sends bytes on a stream of their own, and takes their echo.
pub(crate) async fn exchange(connection: &Connection, bytes: &[u8]) {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(bytes).await.unwrap();
    send.finish().unwrap();
    let answer = receive.read_to_end(bytes.len() + 1).await.unwrap();
    assert!(answer == bytes);
}

/// Runs a test, for a limited time.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            tokio::time::timeout(3 * PATIENCE, test)
                .await
                .expect("in time");
        });
}
