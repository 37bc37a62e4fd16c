//! The client over TLS, WebSocket and QUIC, each against a server of the test's own.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use quinn::crypto::rustls::QuicServerConfig;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{HandshakeKind, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sterna_client::{
    Client, ConnectError, Error, Fingerprint, Options, Publish, QoS, Scheme, Streams, Tls, TlsError,
};
use sterna_mqtt::packet::Packet;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::broker::{Broker, Got, Listener, published};

/// An authority, a server certificate for `localhost` and a client certificate, and files of them.
struct Pki {
    folder: tempfile::TempDir,
    authority: CertificateDer<'static>,
    server: CertificateDer<'static>,
    server_key: Vec<u8>,
}

impl Pki {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = parameters.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(parameters, authority_key);
        let leaf = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            (parameters.signed_by(&key, &issuer).unwrap(), key)
        };
        let (server, server_key) = leaf("localhost");
        let (client, client_key) = leaf("client.example");
        let write = |name: &str, text: String| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("ca.pem", authority.pem());
        write("client.pem", client.pem());
        write("client.key", client_key.serialize_pem());
        Self {
            authority: authority.der().clone(),
            server: server.der().clone(),
            server_key: server_key.serialize_der(),
            folder,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn server_config(&self, alpn: &[u8], wants_client_certificate: bool) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if wants_client_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.server_key.clone()));
        let mut config = builder
            .with_single_cert(vec![self.server.clone()], key)
            .unwrap();
        if !alpn.is_empty() {
            config.alpn_protocols = vec![alpn.to_vec()];
        }
        config
    }

    /// A broker over TLS that lets everybody in.
    async fn tls_broker(&self, wants_client_certificate: bool) -> SocketAddr {
        let acceptor =
            TlsAcceptor::from(Arc::new(self.server_config(b"", wants_client_certificate)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    welcome(Broker::new(tls)).await;
                });
            }
        });
        address
    }
}

/// Accepts the client and acknowledges what it publishes until it goes.
async fn welcome<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(mut broker: Broker<S>) {
    loop {
        match broker.next().await {
            Got::Connect { .. } => broker.connack(false, &[]).await,
            Got::Publish {
                id,
                qos: QoS::AtLeastOnce,
                ..
            } => broker.ack(Packet::PubAck, id).await,
            Got::Closed => return,
            _ => {}
        }
    }
}

fn options(scheme: Scheme, host: &str, address: SocketAddr, tls: Tls) -> Options {
    let url = sterna_client::Url::new(scheme, host, Some(address.port())).unwrap();
    let mut options = Options::new(url);
    options.tls = tls;
    options.reconnect = None;
    options
}

fn trusting(pki: &Pki) -> Tls {
    let mut tls = Tls::default();
    tls.ca_file = Some(pki.file("ca.pem"));
    tls
}

async fn publish_one(options: Options) -> Result<(), Error> {
    let (client, _events) = Client::connect(options).await?;
    client
        .publish(Publish::new("a", "x")?.qos(QoS::AtLeastOnce))
        .await?;
    client.disconnect().await
}

fn handshake_failure(result: Result<(), Error>) -> String {
    match result {
        Err(Error::Connect(ConnectError::Handshake(text) | ConnectError::Quic(text))) => text,
        other => panic!("{other:?}"),
    }
}

/// [MQTT-4.2-1] TLS over TCP is one of the transports.
#[tokio::test]
async fn servers_are_verified() {
    let pki = Pki::new();
    let address = pki.tls_broker(false).await;
    let tls = |host: &str, tls: Tls| publish_one(options(Scheme::Mqtts, host, address, tls));

    tls("localhost", trusting(&pki)).await.unwrap();
    let mut folder = Tls::default();
    folder.ca_path = Some(pki.folder.path().to_owned());
    tls("localhost", folder).await.unwrap();
    let mut named = trusting(&pki);
    named.server_name = Some("localhost".to_owned());
    tls("127.0.0.1", named).await.unwrap();

    let wrong_name = handshake_failure(tls("127.0.0.1", trusting(&pki)).await);
    assert!(wrong_name.contains("not valid for"), "{wrong_name}");
    let mut stranger = Tls::default();
    stranger.ca_file = Some(Pki::new().file("ca.pem"));
    assert!(matches!(
        tls("localhost", stranger).await,
        Err(Error::Connect(ConnectError::Tls(TlsError::File { .. })))
    ));
    let other = Pki::new();
    let unknown = handshake_failure(tls("localhost", trusting(&other)).await);
    assert!(unknown.contains("--cafile"), "{unknown}");
}

#[tokio::test]
async fn a_fingerprint_pins_one_certificate() {
    let pki = Pki::new();
    let address = pki.tls_broker(false).await;
    let pinned = |fingerprint| {
        let mut tls = Tls::default();
        tls.fingerprints = vec![fingerprint];
        publish_one(options(Scheme::Mqtts, "127.0.0.1", address, tls))
    };
    pinned(Fingerprint::of(&pki.server)).await.unwrap();
    let refused = handshake_failure(pinned(Fingerprint::of(&pki.authority)).await);
    assert!(refused.contains("another fingerprint"), "{refused}");
    let mut insecure = Tls::default();
    insecure.insecure = true;
    publish_one(options(Scheme::Mqtts, "127.0.0.1", address, insecure))
        .await
        .unwrap();
}

/// Tickets of earlier connections are found again, also by another client with the same settings;
/// and not by one with others.
#[tokio::test]
async fn sessions_are_resumed() {
    let pki = Pki::new();
    let acceptor = TlsAcceptor::from(Arc::new(pki.server_config(b"", false)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, mut kinds) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let tls = acceptor.accept(tcp).await.unwrap();
            sender.send(tls.get_ref().1.handshake_kind()).unwrap();
            welcome(Broker::new(tls)).await;
        }
    });
    let mut pinned = Tls::default();
    pinned.fingerprints = vec![Fingerprint::of(&pki.server)];
    for (tls, kind) in [
        (trusting(&pki), HandshakeKind::Full),
        (trusting(&pki), HandshakeKind::Resumed),
        (pinned, HandshakeKind::Full),
    ] {
        publish_one(options(Scheme::Mqtts, "localhost", address, tls))
            .await
            .unwrap();
        assert_eq!(kinds.recv().await.unwrap(), Some(kind));
    }
}

#[tokio::test]
async fn clients_have_certificates() {
    let pki = Pki::new();
    let address = pki.tls_broker(true).await;
    let mut tls = trusting(&pki);
    assert!(
        publish_one(options(Scheme::Mqtts, "localhost", address, tls.clone()))
            .await
            .is_err()
    );
    tls.certificate = Some(pki.file("client.pem"));
    tls.key = Some(pki.file("client.key"));
    publish_one(options(Scheme::Mqtts, "localhost", address, tls.clone()))
        .await
        .unwrap();
    tls.key = Some(pki.file("client.pem"));
    let no_key = publish_one(options(Scheme::Mqtts, "localhost", address, tls)).await;
    assert!(matches!(
        no_key,
        Err(Error::Connect(ConnectError::Tls(TlsError::File { .. })))
    ));
}

#[tokio::test]
async fn two_addresses_of_one_name_are_both_tried() {
    // `localhost` is ::1 first on most systems, where nobody listens.
    let listener = Listener::new().await;
    let port = listener.options().url.port();
    let url = sterna_client::Url::new(Scheme::Mqtt, "localhost", Some(port)).unwrap();
    let (client, _events) = Client::start(Options::new(url)).unwrap();
    let _broker = listener.accept_connected(false).await;
    assert!(client.connected().await.unwrap().peer.is_ipv4());
}

/// A QUIC server and its address.
fn quic_server(pki: &Pki, alpn: &[u8], max_streams: u32) -> (quinn::Endpoint, SocketAddr) {
    quic_server_with(pki.server_config(alpn, false), max_streams)
}

fn quic_server_with(tls: ServerConfig, max_streams: u32) -> (quinn::Endpoint, SocketAddr) {
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = quinn::TransportConfig::default();
    transport.max_concurrent_bidi_streams(max_streams.into());
    config.transport_config(Arc::new(transport));
    let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = endpoint.local_addr().unwrap();
    (endpoint, address)
}

async fn next_stream(
    connection: &quinn::Connection,
) -> Broker<tokio::io::Join<quinn::RecvStream, quinn::SendStream>> {
    let (send, receive) = connection.accept_bi().await.unwrap();
    Broker::new(tokio::io::join(receive, send))
}

#[tokio::test]
async fn over_quic_the_first_stream_carries_everything_at_once() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 1);
    let options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    let (client, _events) = Client::start(options).unwrap();
    let delivery = client
        .send(Publish::new("a", "x").unwrap().qos(QoS::AtLeastOnce))
        .await
        .unwrap();
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let mut broker = next_stream(&connection).await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    assert!(broker.has_more(), "the PUBLISH came with the CONNECT");
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, false)
    );
    broker.connack(false, &[]).await;
    broker.ack(Packet::PubAck, 1).await;
    delivery.await.unwrap();

    // To another port, as after a change of network: the connection lives on.
    let before = connection.remote_address();
    client.migrate().await.unwrap();
    let delivery = client
        .send(Publish::new("a", "x").unwrap().qos(QoS::AtLeastOnce))
        .await
        .unwrap();
    assert_eq!(
        broker.next().await,
        published(2, "a", QoS::AtLeastOnce, false)
    );
    broker.ack(Packet::PubAck, 2).await;
    delivery.await.unwrap();
    assert_ne!(connection.remote_address().port(), before.port());

    let disconnecting = tokio::spawn(async move { client.disconnect().await });
    assert!(matches!(broker.next().await, Got::Disconnect(_)));
    assert_eq!(broker.next().await, Got::Closed);
    disconnecting.await.unwrap().unwrap();
    match connection.closed().await {
        quinn::ConnectionError::ApplicationClosed(close) => {
            assert_eq!(close.error_code, 0_u8.into());
        }
        other => panic!("{other}"),
    }
}

/// Each topic has its stream; the acknowledgements come back on it; DISCONNECT overtakes nothing.
#[tokio::test]
async fn topics_have_streams_of_their_own() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 8);
    let mut options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    options.streams = Streams::PerTopic;
    let (client, _events) = Client::start(options).unwrap();
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let mut control = next_stream(&connection).await;
    assert!(matches!(control.next().await, Got::Connect { .. }));
    control.connack(false, &[]).await;
    for topic in ["a", "b", "c", "d", "a", "b", "c", "d"] {
        let message = Publish::new(topic, "x").unwrap().qos(QoS::AtLeastOnce);
        drop(client.send(message).await.unwrap());
    }
    let disconnecting = tokio::spawn(async move { client.disconnect().await });
    let mut topics = Vec::new();
    for _ in 0..4 {
        let mut stream = next_stream(&connection).await;
        let mut of_stream = Vec::new();
        while let Got::Publish { id, topic, .. } = stream.next().await {
            stream.ack(Packet::PubAck, id).await;
            of_stream.push(topic);
        }
        assert_eq!(of_stream.len(), 2);
        assert_eq!(of_stream[0], of_stream[1]);
        topics.push(of_stream.remove(0));
    }
    topics.sort_unstable();
    assert_eq!(topics, ["a", "b", "c", "d"]);
    assert!(matches!(control.next().await, Got::Disconnect(_)));
    disconnecting.await.unwrap().unwrap();
}

/// What was not acknowledged on a stream that the server aborts comes again on the first stream,
/// and nothing else does.
#[tokio::test]
async fn what_an_aborted_stream_carried_is_sent_again() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 8);
    let mut options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    options.streams = Streams::PerTopic;
    let (client, _events) = Client::start(options).unwrap();
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let mut control = next_stream(&connection).await;
    assert!(matches!(control.next().await, Got::Connect { .. }));
    control.connack(false, &[]).await;
    let mut deliveries = Vec::new();
    for qos in [
        QoS::AtLeastOnce,
        QoS::AtLeastOnce,
        QoS::ExactlyOnce,
        QoS::ExactlyOnce,
    ] {
        let message = Publish::new("a", "x").unwrap().qos(qos);
        deliveries.push(client.send(message).await.unwrap());
    }
    let mut stream = next_stream(&connection).await;
    for (id, qos) in [
        (1, QoS::AtLeastOnce),
        (2, QoS::AtLeastOnce),
        (3, QoS::ExactlyOnce),
        (4, QoS::ExactlyOnce),
    ] {
        assert_eq!(stream.next().await, published(id, "a", qos, false));
    }
    stream.ack(Packet::PubAck, 1).await;
    stream.ack(Packet::PubRec, 3).await;
    assert_eq!(stream.next().await, Got::PubRel(3));
    let (mut receive, mut send) = stream.stream.into_inner();
    send.reset(1_u8.into()).unwrap();
    receive.stop(1_u8.into()).unwrap();
    assert_eq!(
        control.next().await,
        published(2, "a", QoS::AtLeastOnce, true)
    );
    assert_eq!(control.next().await, Got::PubRel(3));
    assert_eq!(
        control.next().await,
        published(4, "a", QoS::ExactlyOnce, true)
    );
    control.ack(Packet::PubAck, 2).await;
    control.ack(Packet::PubComp, 3).await;
    control.ack(Packet::PubRec, 4).await;
    assert_eq!(control.next().await, Got::PubRel(4));
    control.ack(Packet::PubComp, 4).await;
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    // The topic has a new stream.
    let delivery = client
        .send(Publish::new("a", "x").unwrap().qos(QoS::AtLeastOnce))
        .await
        .unwrap();
    let mut stream = next_stream(&connection).await;
    assert_eq!(
        stream.next().await,
        published(5, "a", QoS::AtLeastOnce, false)
    );
    stream.ack(Packet::PubAck, 5).await;
    delivery.await.unwrap();
}

/// A server that takes no further streams gets everything on the first one, once it has accepted.
#[tokio::test]
async fn streams_may_be_aborted_before_the_answer() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 8);
    let mut options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    options.streams = Streams::PerPublish;
    let (client, _events) = Client::start(options).unwrap();
    let delivery = client
        .send(Publish::new("a", "x").unwrap().qos(QoS::ExactlyOnce))
        .await
        .unwrap();
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let mut control = next_stream(&connection).await;
    assert!(matches!(control.next().await, Got::Connect { .. }));
    let stream = next_stream(&connection).await;
    let (mut receive, mut send) = stream.stream.into_inner();
    send.reset(1_u8.into()).unwrap();
    receive.stop(1_u8.into()).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    control.connack(false, &[]).await;
    assert_eq!(
        control.next().await,
        published(1, "a", QoS::ExactlyOnce, true)
    );
    control.ack(Packet::PubRec, 1).await;
    assert_eq!(control.next().await, Got::PubRel(1));
    control.ack(Packet::PubComp, 1).await;
    delivery.await.unwrap();
}

/// Each message has a stream, which ends with its acknowledgement.
#[tokio::test]
async fn messages_have_streams_of_their_own() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 3);
    let mut options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    options.streams = Streams::PerPublish;
    let (client, _events) = Client::start(options).unwrap();
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    let mut control = next_stream(&connection).await;
    assert!(matches!(control.next().await, Got::Connect { .. }));
    control.connack(false, &[]).await;
    for _ in 0..5 {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let message = Publish::new("a", "x").unwrap().qos(qos);
            drop(client.send(message).await.unwrap());
        }
    }
    for _ in 0..15 {
        let mut stream = next_stream(&connection).await;
        let Got::Publish { id, qos, .. } = stream.next().await else {
            panic!("a stream without a message");
        };
        match qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => stream.ack(Packet::PubAck, id).await,
            QoS::ExactlyOnce => {
                stream.ack(Packet::PubRec, id).await;
                assert_eq!(stream.next().await, Got::PubRel(id));
                stream.ack(Packet::PubComp, id).await;
            }
        }
        assert_eq!(stream.next().await, Got::Closed);
    }
}

/// A server with room for fewer streams than the client would like is served with fewer.
#[tokio::test]
async fn a_server_may_allow_fewer_streams() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 1);
    let mut options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    options.streams = Streams::PerTopic;
    let serving = tokio::spawn(async move {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        welcome(next_stream(&connection).await).await;
    });
    publish_one(options).await.unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn quic_servers_are_verified_too() {
    let pki = Pki::new();
    let (endpoint, address) = quic_server(&pki, b"mqtt", 1);
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let _ = incoming.await;
        }
    });
    let try_with = |tls| publish_one(options(Scheme::MqttQuic, "localhost", address, tls));
    let other = Pki::new();
    let unknown = handshake_failure(try_with(trusting(&other)).await);
    assert!(unknown.contains("--cafile"), "{unknown}");

    let (endpoint, address) = quic_server(&pki, b"h3", 1);
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let _ = incoming.await;
        }
    });
    let options = options(Scheme::MqttQuic, "localhost", address, trusting(&pki));
    let not_mqtt = handshake_failure(publish_one(options).await);
    assert!(
        not_mqtt.contains("does not serve this protocol"),
        "{not_mqtt}"
    );
}

/// A server without certificates, known by its key alone; and the client's certificate over QUIC.
#[tokio::test]
async fn keys_and_client_certificates_over_quic() {
    let pki = Pki::new();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pki.server_key.clone()));
    let provider = rustls::crypto::ring::default_provider();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let spki = key.public_key().unwrap().to_vec();
    let certified = CertifiedKey::new(vec![spki.clone().into()], key);
    let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified));
    let mut raw = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    raw.alpn_protocols = vec![b"mqtt".to_vec()];
    let serve = |endpoint: quinn::Endpoint| {
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let Ok(connection) = incoming.await else {
                    continue;
                };
                if let Ok((send, receive)) = connection.accept_bi().await {
                    welcome(Broker::new(tokio::io::join(receive, send))).await;
                }
            }
        })
    };
    let (endpoint, address) = quic_server_with(raw, 1);
    serve(endpoint);
    let try_key = |key: Fingerprint| {
        let mut tls = Tls::default();
        tls.server_keys = vec![key];
        publish_one(options(Scheme::MqttQuic, "localhost", address, tls))
    };
    try_key(Fingerprint::of(&spki)).await.unwrap();
    let other = handshake_failure(try_key(Fingerprint::of(b"other")).await);
    assert!(other.contains("fingerprint"), "{other}");
    // The resumed connection is the same server's.
    try_key(Fingerprint::of(&spki)).await.unwrap();

    let (endpoint, address) = quic_server_with(pki.server_config(b"mqtt", true), 1);
    serve(endpoint);
    let without = publish_one(options(
        Scheme::MqttQuic,
        "localhost",
        address,
        trusting(&pki),
    ));
    without.await.unwrap_err();
    let mut tls = trusting(&pki);
    tls.certificate = Some(pki.file("client.pem"));
    tls.key = Some(pki.file("client.key"));
    publish_one(options(Scheme::MqttQuic, "localhost", address, tls))
        .await
        .unwrap();
}
