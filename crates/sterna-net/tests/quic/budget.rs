//! What a handshake may cost in datagrams and bytes, and what makes it smaller.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::Dir;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, DigitallySignedStruct, Error, NamedGroup, SignatureScheme};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use sterna_net::quic::{EventKind, QuicConfig};
use sterna_net::{Certificates, ClientKeys, Identity, RawKeys, TlsConfig};
use sterna_quic::{Cipher, KeyShare, Profile, Role, Settings};

use crate::world::{SERVER_NAME, World, echo, settings};

const RTT: Duration = Duration::from_millis(600);

/// Datagrams and bytes, up and down.
type Cost = [(usize, usize); 2];

fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// The server's certificates as a broker loads them, the certificate, and its public key.
fn certified(name: &str) -> (Identity, rcgen::CertifiedKey<rcgen::KeyPair>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).expect("PEM");
    (identity, made)
}

fn public_key(made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> Vec<u8> {
    rcgen::PublicKeyData::subject_public_key_info(&made.signing_key)
}

/// A world whose server has the configuration that a broker would make.
fn served(config: &QuicConfig, raw_keys: Option<RawKeys>) -> (World, Vec<u8>) {
    let (identity, made) = certified(SERVER_NAME);
    let mut world = World::new(config.clone(), RTT / 2);
    world.reaction = Box::new(echo);
    let certificate: CertificateDer<'static> = made.cert.der().clone();
    world.identity.trusted.add(certificate).expect("a root");
    let certificates = Certificates::new(vec![identity]).expect("usable");
    let tls = TlsConfig {
        raw_keys,
        ..TlsConfig::new(certificates, &[b"mqtt"])
    };
    let tls = tls.for_quic(config).expect("a configuration");
    world.server.set_tls(Arc::new(tls)).expect("suits QUIC");
    (world, public_key(&made))
}

/// Trusts one public key.
#[derive(Debug)]
struct Pinned(Vec<u8>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if end_entity.as_ref() == self.0 {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General("another key".to_owned()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        let algorithms = provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn pinning(
    key: Vec<u8>,
    own: Option<&rcgen::CertifiedKey<rcgen::KeyPair>>,
) -> rustls::ClientConfig {
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(key)));
    let mut tls = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
            let signer = provider()
                .key_provider
                .load_private_key(PrivateKeyDer::Pkcs8(key))
                .expect("a key");
            let shown = vec![CertificateDer::from(public_key(own))];
            let certified = Arc::new(CertifiedKey::new(shown, signer));
            builder.with_client_cert_resolver(Arc::new(
                rustls::client::AlwaysResolvesClientRawPublicKeys::new(certified),
            ))
        }
    };
    tls.enable_early_data = true;
    tls.alpn_protocols = vec![b"mqtt".to_vec()];
    tls
}

/// A handshake, a request of 64 bytes and its answer, and all that follows.
fn exchange(world: &mut World, tls: &Arc<rustls::ClientConfig>, early: bool) -> (usize, Cost) {
    let client = world.connect_with(tls.clone(), World::transport());
    if !early {
        world.run_until(RTT * 4, |world| world.clients[client].connected.is_some());
    }
    let stream = world.open(client, Dir::Bi, &[7; 64], false);
    world.run_until(RTT * 4, |world| {
        world.clients[client].received.contains_key(&stream.0)
    });
    world.run_for(Duration::from_secs(20));
    assert!(world.clients[client].lost.is_none());
    let stats = world.clients[client].connection.stats();
    assert_eq!(
        stats.frame_rx.new_token, 0,
        "no token that nobody asked for"
    );
    let cost = [world.clients[client].up, world.clients[client].down];
    (client, cost)
}

#[track_caller]
fn within(what: &str, cost: Cost, most: Cost) {
    println!(
        "{what}: up {:?}, down {:?} (datagrams, bytes)",
        cost[0], cost[1]
    );
    for way in [0, 1] {
        let within = cost[way].0 <= most[way].0 && cost[way].1 <= most[way].1;
        assert!(within, "{what}: {cost:?} is more than {most:?}");
    }
}

/// A self-signed P-256 certificate, four tickets and two at each resumption, no MTU probing: full, resumed, and with early data.
#[test]
fn handshakes_keep_their_budgets() {
    let (mut world, _) = served(&QuicConfig::default(), None);
    let mut plain = world.identity.client_tls(&[b"mqtt"]);
    plain.enable_early_data = false;
    let plain = Arc::new(plain);
    let (_, full) = exchange(&mut world, &plain, false);
    let (client, resumed) = exchange(&mut world, &plain, false);
    assert!(world.server.path(world.opened()[client].1).resumed);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    exchange(&mut world, &tls, false);
    let (client, early) = exchange(&mut world, &tls, true);
    assert!(world.clients[client].connection.accepted_0rtt());
    within("full", full, [(4, 2_600), (3, 1_720)]);
    within("resumed", resumed, [(4, 2_600), (3, 1_550)]);
    within("0-RTT", early, [(3, 2_500), (3, 1_490)]);
}

/// A chain of the size that public authorities issue, compressed (RFC 8879).
#[cfg(feature = "certificate-compression")]
#[test]
fn long_chains_are_compressed() {
    let names: Vec<String> = (0..40)
        .map(|n| format!("broker-{n}.devices.example"))
        .collect();
    let mut subjects = vec![SERVER_NAME.to_owned()];
    subjects.extend(names);
    let made = rcgen::generate_simple_self_signed(subjects).expect("a certificate");
    let bytes = made.cert.der().len();
    let costs = [true, false].map(|compressed| {
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).expect("PEM");
        let mut world = World::new(QuicConfig::default(), RTT / 2);
        world.reaction = Box::new(echo);
        let root = made.cert.der().clone();
        world.identity.trusted.add(root).expect("a root");
        let certificates = Certificates::new(vec![identity]).expect("usable");
        let tls = TlsConfig::new(certificates, &[b"mqtt"]);
        let tls = tls
            .for_quic(&QuicConfig::default())
            .expect("a configuration");
        world.server.set_tls(Arc::new(tls)).expect("suits QUIC");
        let mut client = world.identity.client_tls(&[b"mqtt"]);
        if !compressed {
            client.cert_decompressors.clear();
        }
        exchange(&mut world, &Arc::new(client), false).1
    });
    println!("a certificate of {bytes} bytes: {costs:?} with and without compression");
    assert!(costs[0][1].1 + 500 < costs[1][1].1, "{costs:?}");
}

/// RFC 7250: the server shows its key alone, and knows its clients by theirs.
#[test]
fn raw_public_keys_serve_instead_of_certificates() {
    let config = QuicConfig::default();
    let (_, known) = certified("device.example");
    let (_, stranger) = certified("device.example");
    let pem = |made: &rcgen::CertifiedKey<rcgen::KeyPair>| made.signing_key.public_key_pem();
    let keys = ClientKeys::from_pem(pem(&known).as_bytes()).expect("PEM");

    // The server alone.
    let (mut world, key) = served(&config, Some(RawKeys::default()));
    let tls = Arc::new(pinning(key, None));
    let (_, cost) = exchange(&mut world, &tls, false);
    within("raw public key", cost, [(4, 2_600), (3, 1_720)]);
    let (client, cost) = exchange(&mut world, &tls, true);
    assert!(world.clients[client].connection.accepted_0rtt());
    // This client does not say how many tickets it wants.
    within("raw public key, 0-RTT", cost, [(3, 2_500), (3, 1_660)]);
    // A client that pins another key, or wants a certificate, does not connect.
    for tls in [
        pinning(vec![1; 91], None),
        world.identity.client_tls(&[b"mqtt"]),
    ] {
        let client = world.connect_with(Arc::new(tls), World::transport());
        world.run_until(RTT * 4, |world| world.clients[client].lost.is_some());
    }

    // Both.
    let raw = RawKeys {
        clients: Some(keys.clone()),
        required: true,
    };
    let (mut world, key) = served(&config, Some(raw));
    let tls = Arc::new(pinning(key.clone(), Some(&known)));
    let (_, cost) = exchange(&mut world, &tls, false);
    within("mutual raw public keys", cost, [(4, 2_600), (3, 1_720)]);
    exchange(&mut world, &tls, true);
    let identities = world.events(|kind| match kind {
        EventKind::Opened { info, confirmed } => Some((info.peer_certificates.clone(), *confirmed)),
        _ => None,
    });
    assert_eq!(identities.len(), 2);
    for (n, (_, _, (shown, confirmed))) in identities.iter().enumerate() {
        assert_eq!(shown.len(), 1);
        assert_eq!(*shown[0], *public_key(&known), "resumed or not");
        assert_eq!(*confirmed, n == 0);
    }
    for refused in [pinning(key.clone(), Some(&stranger)), pinning(key, None)] {
        let client = world.connect_with(Arc::new(refused), World::transport());
        world.run_until(RTT * 4, |world| world.clients[client].lost.is_some());
    }
    assert_eq!(world.opened().len(), 2);
    // A key that is taken off the list is refused, with a ticket too.
    keys.replace_pem(pem(&stranger).as_bytes()).expect("PEM");
    let client = world.connect_with(tls, World::transport());
    world.open(client, Dir::Bi, b"early", false);
    world.run_until(RTT * 4, |world| world.clients[client].lost.is_some());
    assert_eq!(world.opened().len(), 2);
}

/// 50 messages of 40 bytes, 100 ms apart, at a round trip of 1 s, both ends on the same profile: what the
/// server sends back, all of it acknowledgements.
#[test]
fn slow_profiles_acknowledge_less() {
    let mut sent_back = Vec::new();
    for profile in [Profile::Default, Profile::Satellite, Profile::NbIot] {
        let config = QuicConfig {
            settings: Settings::of(profile),
            ..QuicConfig::default()
        };
        let mut world = World::new(config, Duration::from_millis(500));
        let transport = Settings::of(profile).transport_config(Role::Client);
        let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
        let client = world.connect_with(tls, transport.expect("a sound profile"));
        world.run_for(Duration::from_secs(10));
        let stream = world.open(client, Dir::Bi, b"first", false);
        world.run_for(Duration::from_secs(10));
        let before = world.clients[client].down;
        for _ in 0..50 {
            world.write(client, stream, &[7; 40], false);
            world.run_for(Duration::from_millis(100));
        }
        world.run_for(Duration::from_secs(20));
        let key = world.opened()[0].1;
        assert_eq!(world.arrived(key, stream).len(), 5 + 50 * 40);
        let now = world.clients[client].down;
        let down = (now.0 - before.0, now.1 - before.1);
        println!("{profile}: {down:?} (datagrams, bytes) for 50 messages");
        assert_eq!(world.server.path(key).lost_packets, 0);
        sent_back.push(down);
    }
    assert!(sent_back[1].0 * 2 <= sent_back[0].0, "{sent_back:?}");
    // NB-IoT's delay is that of least energy for one message: two that come 100 ms apart have one acknowledgement.
    assert!(sent_back[2].0 * 2 <= sent_back[0].0, "{sent_back:?}");
}

/// What a server with these settings agrees on with a client that offers every group and cipher.
fn agreed(key_share: KeyShare, cipher: Cipher, reversed: bool) -> (NamedGroup, CipherSuite) {
    use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
    let config = settings(|settings| {
        settings.key_share = key_share;
        settings.cipher = cipher;
    });
    let (identity, made) = certified(SERVER_NAME);
    let certificates = Certificates::new(vec![identity]).expect("usable");
    let server = TlsConfig::new(certificates, &[b"mqtt"])
        .for_quic(&config)
        .expect("a configuration");
    let mut offer = provider();
    if reversed {
        offer.cipher_suites.reverse();
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let mut client = rustls::ClientConfig::builder_with_provider(Arc::new(offer))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"mqtt".to_vec()];
    let name = ServerName::try_from(SERVER_NAME).expect("a name");
    let (version, parameters) = (Version::V1, b"parameters".to_vec());
    let client = ClientConnection::new(Arc::new(client), version, name, parameters.clone());
    let server = ServerConnection::new(Arc::new(server), version, parameters);
    let mut ends = [
        Connection::from(client.expect("a client")),
        Connection::from(server.expect("a server")),
    ];
    for turn in 0..6 {
        loop {
            // Messages of one level of encryption at a time.
            let mut flight = Vec::new();
            let change = ends[turn % 2].write_hs(&mut flight);
            if flight.is_empty() && change.is_none() {
                break;
            }
            ends[(turn + 1) % 2].read_hs(&flight).expect("a flight");
        }
    }
    assert!(!ends[1].is_handshaking());
    let group = ends[1].negotiated_key_exchange_group().expect("a group");
    let suite = ends[1].negotiated_cipher_suite().expect("a cipher");
    (group.name(), suite.suite())
}

#[test]
fn key_shares_and_ciphers_follow_the_settings() {
    let chacha20 = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
    for reversed in [false, true] {
        let (group, cipher) = agreed(KeyShare::X25519, Cipher::ChaCha20, reversed);
        assert_eq!((group, cipher), (NamedGroup::X25519, chacha20));
        let (_, cipher) = agreed(KeyShare::X25519, Cipher::Aes, reversed);
        assert_eq!(cipher, CipherSuite::TLS13_AES_128_GCM_SHA256);
    }
    // Where this machine has instructions for AES, the client's order decides.
    assert_eq!(agreed(KeyShare::X25519, Cipher::Auto, true).1, chacha20);
    if !Cipher::Auto.prefers_chacha20() {
        assert_ne!(agreed(KeyShare::X25519, Cipher::Auto, false).1, chacha20);
    }
    let config = settings(|settings| settings.key_share = KeyShare::X25519MlKem768);
    let (identity, _) = certified(SERVER_NAME);
    let certificates = Certificates::new(vec![identity]).expect("usable");
    let error = TlsConfig::new(certificates, &[b"mqtt"]).for_quic(&config);
    let error = error.expect_err("ring has none").to_string();
    assert!(error.contains("x25519mlkem768"), "{error}");
}
