//! An address that has proved nothing gets at most three times what came from there, to the byte (RFC
//! 9000, section 8).

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sterna_net::quic::QuicConfig;

use crate::world::{Fate, Identity, SERVER_NAME, World, settings};

const RTT: Duration = Duration::from_millis(40);

/// A server whose chain of certificates has about so many bytes more than the smallest.
fn identity(padding_bytes: usize) -> Identity {
    let mut identity = Identity::new();
    let certified =
        rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).expect("a valid test setup");
    let name = format!("{}.example", "a".repeat(50));
    let names = vec![name; padding_bytes / 64];
    let padding = rcgen::generate_simple_self_signed(names).expect("a valid test setup");
    let certificate: CertificateDer<'static> = certified.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    identity.trusted = rustls::RootCertStore::empty();
    let roots = &mut identity.trusted;
    roots.add(certificate.clone()).expect("a valid test setup");
    let mut chain = vec![certificate];
    if padding_bytes > 0 {
        chain.push(padding.cert.der().clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    identity.server_tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a valid test setup")
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::Pkcs8(key))
        .expect("a valid test setup");
    identity
}

/// A client whose datagrams arrive up to a number, and which then is silent.
/// Returns how often the server held back.
fn silent_after(datagrams: usize, padding_bytes: usize, mtu: u16) -> u64 {
    let config = settings(|settings| settings.initial_mtu_bytes = mtu);
    let mut world = World::with_identity(identity(padding_bytes), config, RTT / 2);
    let (came, went) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counts = (came.clone(), went.clone());
    world.rule = Box::new(move |crossing| {
        let bytes = crossing.bytes.len();
        if !crossing.to_server {
            counts.1.set(counts.1.get() + bytes);
            return Fate::Drop; // so that it proves nothing
        }
        if crossing.number >= datagrams {
            return Fate::Drop;
        }
        counts.0.set(counts.0.get() + bytes);
        Fate::Deliver
    });
    world.connect();
    for _ in 0..600 {
        world.run_for(Duration::from_millis(20));
        let (came, went) = (came.get(), went.get());
        // What is still on its way to the server counts already, so this is exact at rest only.
        assert!(went <= 3 * came, "{went} bytes for {came}");
    }
    assert!(went.get() > 0, "nothing was answered");
    world.server.counters().amplification_stops
}

#[test]
fn no_chain_of_certificates_is_sent_beyond_the_limit() {
    let mut stops = 0;
    for padding_bytes in (0..=6_400).step_by(256) {
        for mtu in [1_200, 1_357, 1_452] {
            stops += silent_after(1, padding_bytes, mtu);
        }
    }
    for datagrams in 2..5 {
        stops += silent_after(datagrams, 6_400, 1_252);
    }
    assert!(stops > 0, "none of them was held back");
    assert_eq!(
        silent_after(1, 0, 1_200),
        0,
        "a short chain needs no holding back"
    );
}

/// However long the chain, the handshake comes to its end, and at the cost of one more round trip at
/// most: what was held back leaves with the client's first acknowledgement.
#[test]
fn a_long_chain_does_not_stop_the_handshake() {
    for padding_bytes in (0..=6_400).step_by(320) {
        let identity = identity(padding_bytes);
        let mut world = World::with_identity(identity, QuicConfig::default(), RTT / 2);
        let client = world.connect();
        world.run_until(RTT * 4, |world| world.clients[client].connected.is_some());
        let took = world.clients[client].connected.expect("connected");
        let round_trips = 1 + padding_bytes / 2_500;
        assert!(
            took <= RTT * round_trips as u32 + Duration::from_millis(26),
            "{padding_bytes}: {took:?}"
        );
    }
}

/// Answers outside of connections: version negotiation, Retry, refusals.
#[test]
fn answers_without_a_connection_are_no_longer_than_three_questions() {
    let from: SocketAddr = "203.0.113.66:666".parse().expect("an address");
    let config = QuicConfig {
        retry_half_open: 0,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    for version in [0u32, 1, 0x0a0a_0a0a, 0xff00_001d, 0x6b33_43cf] {
        for bytes in [7, 20, 25, 60, 200, 1_199, 1_200, 1_452] {
            for first in [0xc0u8, 0xd0, 0xe0, 0xf0, 0x40] {
                let mut datagram = vec![0; bytes];
                datagram[0] = first;
                datagram[1..5].copy_from_slice(&version.to_be_bytes());
                datagram[5] = 8.min(bytes as u8 - 7);
                world.astray = (0, 0);
                world.inject(from, &datagram);
                world.run_for(Duration::from_millis(100));
                let answered = world.astray.1;
                assert!(answered <= 3 * bytes, "{answered} bytes for {bytes}");
            }
        }
    }
    // A Retry, too.
    world.connect();
    world.run_for(RTT * 4);
    assert!(world.server.counters().retried > 0);
    let (up, down) = (world.clients[0].up.1, world.clients[0].down.1);
    assert!(down <= 3 * up || world.clients[0].connected.is_some());
}
