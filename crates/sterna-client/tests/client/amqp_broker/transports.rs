//! The broker's listeners: TCP, TLS, WebSocket and QUIC.

use std::collections::HashMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use quinn::crypto::rustls::QuicServerConfig;
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sterna_client::amqp::Options;
use sterna_client::{Backoff, Fingerprint, Scheme, Tls, Url};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::{Served, Setup, Shared};

/// A certificate of its own.
pub(crate) struct Pki {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        Self {
            certificate: signed.cert.der().clone(),
            key: signed.signing_key.serialize_der(),
        }
    }

    fn tls(&self) -> Tls {
        let mut tls = Tls::default();
        tls.fingerprints = vec![Fingerprint::of(&self.certificate)];
        tls
    }

    fn config(&self, alpn: &[u8]) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = vec![alpn.to_vec()];
        config.max_early_data_size = u32::MAX;
        config
    }
}

/// A broker that listens.
pub(crate) struct Broker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) url: Url,
    pub(crate) pki: Pki,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    endpoint: Option<quinn::Endpoint>,
}

impl Drop for Broker {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Broker {
    pub(crate) async fn start(scheme: Scheme, setup: Setup) -> Self {
        Self::start_at(scheme, setup, 0).await.unwrap()
    }

    /// Starts at a port, 0 for any; fails where that is taken.
    pub(crate) async fn start_at(scheme: Scheme, setup: Setup, port: u16) -> std::io::Result<Self> {
        let pki = Pki::new();
        let shared = Shared::new(setup);
        let host = "localhost";
        if scheme == Scheme::AmqpQuic {
            let crypto = QuicServerConfig::try_from(pki.config(b"amqp")).unwrap();
            let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
            let mut transport = quinn::TransportConfig::default();
            transport.max_concurrent_bidi_streams(shared.setup.streams.into());
            config.transport_config(Arc::new(transport));
            let endpoint =
                quinn::Endpoint::server(config, SocketAddr::from(([127, 0, 0, 1], port)))?;
            let port = endpoint.local_addr().unwrap().port();
            let task = tokio::spawn(accept_quic(endpoint.clone(), Arc::clone(&shared)));
            return Ok(Self {
                shared,
                url: Url::new(scheme, host, Some(port)).unwrap(),
                pki,
                tasks: vec![task],
                endpoint: Some(endpoint),
            });
        }
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr().unwrap().port();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(pki.config(b"amqp")));
        let task = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (shared, acceptor) = (Arc::clone(&shared), acceptor.clone());
                    tokio::spawn(async move {
                        match scheme {
                            Scheme::Amqp => serve(stream, shared, &[]).await,
                            Scheme::Amqps => {
                                let mut stream = acceptor.accept(stream).await.unwrap();
                                let mut early = Vec::new();
                                if let Some(mut data) = stream.get_mut().1.early_data() {
                                    data.read_to_end(&mut early).unwrap();
                                }
                                serve(stream, shared, &early).await;
                            }
                            _ => serve_websocket(stream, shared).await,
                        }
                    });
                }
            }
        });
        Ok(Self {
            shared,
            url: Url::new(scheme, host, Some(port)).unwrap(),
            pki,
            tasks: vec![task],
            endpoint: None,
        })
    }

    /// Options of a client that comes back quickly.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new(self.url.clone());
        options.tls = self.pki.tls();
        options.reconnect = Some(Backoff {
            min: Duration::from_millis(5),
            max: Duration::from_millis(20),
            max_attempts: None,
        });
        options
    }

    /// The address that QUIC listens at.
    pub(crate) fn quic_address(&self) -> SocketAddr {
        self.endpoint.as_ref().unwrap().local_addr().unwrap()
    }

    /// From now on, tickets of before are unknown.
    pub(crate) fn forget_tickets(&self) {
        let mut config = self.pki.config(b"amqp");
        config.ticketer = Arc::new(NoTickets);
        config.session_storage = rustls::server::ServerSessionMemoryCache::new(16);
        let crypto = QuicServerConfig::try_from(config).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        self.endpoint
            .as_ref()
            .unwrap()
            .set_server_config(Some(config));
    }

    /// Forgets suspended links.
    pub(crate) fn forget_links(&self) {
        self.shared.world.lock().unwrap().forget = true;
    }

    /// Breaks every connection.
    pub(crate) fn break_all(&self) {
        self.shared.break_all.notify_waiters();
    }
}

/// Does not make tickets, so that sessions are kept by the server.
#[derive(Debug)]
struct NoTickets;

impl rustls::server::ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }
    fn lifetime(&self) -> u32 {
        0
    }
    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Serves a connection that is one stream of bytes. `early` came before its handshake was complete.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, shared: Arc<Shared>, early: &[u8]) {
    let mut served = Served::new(Arc::clone(&shared));
    if !early.is_empty() {
        served.log("early data");
        served.input(0, early);
    }
    let (mut reading, mut writing) = tokio::io::split(stream);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let bell = shared.bell.notified();
        served.dispatch();
        for bytes in served.out.0.values_mut() {
            if writing.write_all(&bytes.split()).await.is_err() || writing.flush().await.is_err() {
                served.lost();
                return;
            }
        }
        if served.is_over() {
            return;
        }
        tokio::select! {
            read = reading.read(&mut buffer) => match read {
                Ok(bytes) if bytes > 0 => served.input(0, &buffer[..bytes]),
                _ => {
                    served.lost();
                    return;
                }
            },
            () = bell => {}
            () = shared.break_all.notified() => {
                served.lost();
                return;
            }
        }
    }
}

#[expect(
    clippy::result_large_err,
    clippy::unnecessary_wraps,
    reason = "tungstenite's callback has this signature"
)]
fn answer(
    request: &tokio_tungstenite::tungstenite::handshake::server::Request,
    mut response: tokio_tungstenite::tungstenite::handshake::server::Response,
) -> Result<
    tokio_tungstenite::tungstenite::handshake::server::Response,
    tokio_tungstenite::tungstenite::handshake::server::ErrorResponse,
> {
    assert_eq!(request.uri().path(), "/amqp");
    assert_eq!(request.headers()["sec-websocket-protocol"], "amqp");
    let name = request.headers()["sec-websocket-protocol"].clone();
    response
        .headers_mut()
        .insert("Sec-WebSocket-Protocol", name);
    Ok(response)
}

async fn serve_websocket(stream: tokio::net::TcpStream, shared: Arc<Shared>) {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::Message;

    let mut socket = tokio_tungstenite::accept_hdr_async(stream, answer)
        .await
        .unwrap();
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { serve(far, shared, &[]).await });
    let (mut reading, mut writing) = tokio::io::split(near);
    let mut buffer = vec![0; 1 << 14];
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => writing.write_all(&bytes).await.unwrap(),
                Some(Ok(_)) => {}
                _ => return,
            },
            read = reading.read(&mut buffer) => match read {
                Ok(bytes) if bytes > 0 => {
                    let message = Message::Binary(Bytes::copy_from_slice(&buffer[..bytes]));
                    if socket.send(message).await.is_err() {
                        return;
                    }
                }
                _ => {
                    let _ = socket.close(None).await;
                    return;
                }
            },
        }
    }
}

async fn accept_quic(endpoint: quinn::Endpoint, shared: Arc<Shared>) {
    while let Some(incoming) = endpoint.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let Ok(connecting) = incoming.accept() else {
                return;
            };
            // Half a round trip early, with what came as early data.
            let connection = match connecting.into_0rtt() {
                Ok((connection, _)) => connection,
                Err(connecting) => match connecting.await {
                    Ok(connection) => connection,
                    Err(_) => return,
                },
            };
            serve_quic(connection, shared).await;
        });
    }
}

/// Serves a connection whose sessions have streams of their own.
async fn serve_quic(connection: quinn::Connection, shared: Arc<Shared>) {
    let mut served = Served::new(Arc::clone(&shared));
    let (sender, mut arrived) = mpsc::channel::<(u64, Option<Bytes>)>(64);
    let mut writers: HashMap<u64, quinn::SendStream> = HashMap::new();
    loop {
        served.log_streams();
        let bell = shared.bell.notified();
        served.dispatch();
        let lanes: Vec<u64> = served.out.0.keys().copied().collect();
        for lane in lanes {
            if shared.hold.load(Ordering::SeqCst) {
                break;
            }
            let bytes = served.out.0.get_mut(&lane).unwrap().split();
            if !bytes.is_empty()
                && let Some(writer) = writers.get_mut(&lane)
                && writer.write_all(&bytes).await.is_err()
            {
                served.lane_closed(lane);
            }
        }
        if served.is_over() {
            // The client closes when it has read the close.
            let _ = tokio::time::timeout(Duration::from_secs(60), connection.closed()).await;
            return;
        }
        tokio::select! {
            stream = connection.accept_bi() => {
                let Ok((writer, mut reader)) = stream else {
                    served.lost();
                    return;
                };
                let lane = u64::from(writer.id());
                writers.insert(lane, writer);
                let sender = sender.clone();
                tokio::spawn(async move {
                    loop {
                        let read = reader.read_chunk(1 << 16, true).await;
                        let bytes = read.ok().flatten().map(|chunk| chunk.bytes);
                        let end = bytes.is_none();
                        if sender.send((lane, bytes)).await.is_err() || end {
                            return;
                        }
                    }
                });
            }
            Some((lane, bytes)) = arrived.recv() => {
                if !writers.contains_key(&lane) {
                    // It was reset.
                    continue;
                }
                if let Some(bytes) = bytes {
                    served.input(lane, &bytes);
                    continue;
                }
                served.lane_closed(lane);
                if let Some(mut writer) = writers.remove(&lane) {
                    let _ = writer.finish();
                }
            }
            () = bell => {}
            () = shared.reset_streams.notified() => {
                for (lane, mut writer) in writers.extract_if(|lane, _| *lane > 0) {
                    let _ = writer.reset(1_u32.into());
                    served.lane_closed(lane);
                }
            }
            () = shared.break_all.notified() => {
                served.lost();
                connection.close(1_u32.into(), b"");
                return;
            }
        }
    }
}
