//! Handshakes: what they report, cost, and survive.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::Dir;
use sterna_net::quic::{EventKind, QuicConfig};
use sterna_net::{CloseReason, HandshakeFault, StreamId, TransportKind};

use crate::world::{Fate, Identity, World, echo};

const RTT: Duration = Duration::from_millis(40);

fn world() -> World {
    World::new(QuicConfig::default(), RTT / 2)
}

#[test]
fn a_handshake_takes_one_round_trip_and_opens_the_connection_once() {
    let mut world = world();
    let client = world.connect();
    world.run_until(RTT * 3, |world| !world.log.is_empty());
    assert_eq!(world.clients[client].connected, Some(RTT));
    // The server learns of the end half a round trip after the client.
    let (at, key, confirmed) = world.opened()[0];
    assert_eq!((at, confirmed), (RTT * 3 / 2, true));
    assert_eq!(world.log.len(), 1);
    let EventKind::Opened { info, .. } = &world.log[0].1.kind else {
        panic!("opened")
    };
    assert_eq!(info.listener, 3);
    assert_eq!(info.transport, TransportKind::Quic);
    assert_eq!(*info.protocol, *b"mqtt");
    assert_eq!(info.peer, world.clients[client].address);
    assert!(info.peer_certificates.is_empty());
    assert_eq!(world.server.len(), 1);
    assert_eq!(world.server.half_open(), 0);
    assert_eq!(world.server.counters().confirmed, 1);
    world.run_for(RTT * 4);
    assert_eq!(world.server.path(key).rtt_us / 1_000, 40);
}

/// A handshake with one small request and its answer, as `LIBRARIES` measured it for quinn with
/// tuned settings (4,519 bytes at most). A change that makes it dearer fails here.
#[test]
fn a_handshake_with_one_request_keeps_its_budget() {
    let mut world = world();
    world.reaction = Box::new(echo);
    let client = world.connect();
    world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, &[7; 64], false);
    world.run_until(RTT * 3, |world| {
        world.clients[client].received.contains_key(&stream.0)
    });
    world.run_for(Duration::from_secs(30));
    let (up, down) = (world.clients[client].up, world.clients[client].down);
    println!("handshake and one echo of 64 bytes: up {up:?}, down {down:?} (datagrams, bytes)");
    assert!(up.0 + down.0 <= 12, "datagrams {up:?} {down:?}");
    assert!(up.1 + down.1 <= 4_600, "bytes {up:?} {down:?}");
    // Nothing else was said in 30 seconds, and nothing else will be.
    assert_eq!(world.clients[client].lost, None);
}

#[test]
fn a_client_that_wants_another_protocol_is_refused_with_the_alert() {
    let mut world = world();
    let tls = world.identity.client_tls(&[b"coap"]);
    let client = world.connect_with(Arc::new(tls), World::transport());
    world.run_until(RTT * 3, |world| world.clients[client].lost.is_some());
    let lost = world.clients[client]
        .lost
        .clone()
        .expect("lost")
        .to_string();
    assert!(lost.contains("aborted by peer"), "{lost}");
    world.run_for(Duration::from_secs(10));
    assert_eq!(
        world.server.counters().failed[HandshakeFault::Alpn as usize],
        1
    );
    assert_eq!(world.server.counters().failed.iter().sum::<u64>(), 1);
    assert_eq!(world.server.len(), 0);
    assert_eq!(world.server.half_open(), 0);
    let [(_, told)] = &world.log[..] else {
        panic!("one event: {:?}", world.log);
    };
    let EventKind::HandshakeFailed { failed } = &told.kind else {
        panic!("a failed handshake: {told:?}");
    };
    assert_eq!(failed.fault, HandshakeFault::Alpn);
    assert!(
        failed.detail.contains("coap; served are mqtt"),
        "{failed:?}"
    );
}

#[test]
fn the_alert_of_a_client_is_told() {
    let mut world = world();
    // It trusts another server's certificate.
    let tls = Identity::new().client_tls(&[b"mqtt"]);
    let client = world.connect_with(Arc::new(tls), World::transport());
    world.run_until(RTT * 3, |world| world.clients[client].lost.is_some());
    world.run_for(Duration::from_secs(10));
    assert_eq!(
        world.server.counters().failed[HandshakeFault::Alert as usize],
        1
    );
    let is_told = world.log.iter().any(|(_, event)| match &event.kind {
        EventKind::HandshakeFailed { failed } => failed.detail.contains("the client's alert "),
        _ => false,
    });
    assert!(is_told, "{:?}", world.log);
}

#[test]
fn the_first_protocol_that_both_know_is_taken() {
    let config = QuicConfig {
        protocols: vec![b"MQTT-next".to_vec(), b"mqtt".to_vec(), b"h3".to_vec()],
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    let tls = world.identity.client_tls(&[b"mqttv5", b"h3", b"mqtt"]);
    world.connect_with(Arc::new(tls), World::transport());
    world.run_until(RTT * 3, |world| !world.log.is_empty());
    let EventKind::Opened { info, .. } = &world.log[0].1.kind else {
        panic!("opened")
    };
    assert_eq!(*info.protocol, *b"mqtt");
}

/// The client's first 1-RTT packets overtake the datagram that ends its handshake: they are kept and
/// read at once when it comes, instead of a probe timeout later.
#[test]
fn requests_that_overtake_the_end_of_the_handshake_cost_nothing() {
    for (held_back, answer_within) in [(8, RTT * 3), (0, RTT * 40)] {
        let config = QuicConfig {
            held_back_datagrams: held_back,
            ..QuicConfig::default()
        };
        let mut world = World::new(config, RTT / 2);
        world.reaction = Box::new(echo);
        let client = world.connect();
        // The second datagram of the client ends the handshake.
        world.rule = Box::new(|crossing| match (crossing.to_server, crossing.number) {
            (true, 1) => Fate::Late(RTT / 4),
            _ => Fate::Deliver,
        });
        world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
        let stream = world.open(client, Dir::Bi, b"hello", false);
        world.run_until(answer_within, |world| {
            world.clients[client].received.contains_key(&stream.0)
        });
        let took = world.clients[client].first_byte[&stream.0].saturating_sub(RTT);
        println!("held back {held_back}: answered {took:?} after the request");
        if held_back > 0 {
            assert_eq!(took, RTT + RTT / 4);
            assert_eq!(world.server.counters().held_back, 1);
        } else {
            assert!(
                took > RTT * 2,
                "without the buffer it takes a probe timeout: {took:?}"
            );
        }
    }
}

#[test]
fn what_is_held_back_is_bounded() {
    let config = QuicConfig {
        held_back_bytes: 3_000,
        ..QuicConfig::default()
    };
    let mut world = World::new(config, RTT / 2);
    let client = world.connect();
    world.rule = Box::new(|crossing| match (crossing.to_server, crossing.number) {
        (true, 1) => Fate::Late(RTT),
        _ => Fate::Deliver,
    });
    world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, &[1; 10_000], false);
    world.run_until(RTT * 40, |world| {
        world
            .opened()
            .first()
            .is_some_and(|opened| world.arrived(opened.1, stream).len() == 10_000)
    });
    let counters = world.server.counters();
    assert!(counters.held_back <= 3, "{counters:?}");
    assert!(counters.held_back_dropped > 3, "{counters:?}");
}

#[test]
fn lost_and_doubled_packets_are_survived() {
    for seed in 0..40u64 {
        let mut world = world();
        world.reaction = Box::new(echo);
        let mut state = seed + 1;
        world.rule = Box::new(move |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963);
            match state >> 60 {
                0..4 => Fate::Drop,
                4..6 => Fate::Twice,
                6..9 => Fate::Late(RTT),
                9 => Fate::Garbled(state as usize >> 20),
                _ => Fate::Deliver,
            }
        });
        let client = world.connect();
        world.run_until(Duration::from_secs(60), |world| {
            world.clients[client].connected.is_some()
        });
        let stream = world.open(client, Dir::Bi, &vec![seed as u8; 20_000], true);
        world.run_until(Duration::from_secs(2 * 60), |world| {
            world.clients[client].finished.contains(&stream.0)
        });
        assert_eq!(
            world.clients[client].received[&stream.0],
            vec![seed as u8; 20_000]
        );
        assert_eq!(world.opened().len(), 1);
    }
}

#[test]
fn unknown_versions_are_answered_and_noise_is_not() {
    let mut world = world();
    let client = world.connect();
    let from = world.clients[client].address;
    let mut probe = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
    probe.extend_from_slice(&[5; 8]);
    probe.extend_from_slice(&[8, 6, 6, 6, 6, 6, 6, 6, 6]);
    probe.resize(1_200, 0);
    let before = world.clients[client].down.0;
    world.inject(from, &probe);
    for noise in [
        &[][..],
        &[0],
        &[0x40; 3],
        &[0x40; 30],
        &[0xff; 40],
        &[0; 1_300],
    ] {
        world.inject(from, noise);
    }
    world.run_for(RTT * 2);
    // The version negotiation came besides the handshake's datagrams.
    assert!(world.clients[client].down.0 > before);
    assert_eq!(world.clients[client].connected, Some(RTT));
    assert_eq!(world.server.len(), 1);
}

#[test]
fn new_certificates_serve_new_connections() {
    let mut world = world();
    let first = world.connect();
    world.run_until(RTT * 3, |world| world.clients[first].connected.is_some());
    let other = Identity::new();
    let tls = QuicConfig::default().prepare_tls(&other.server_tls, other.tickets.clone());
    world.server.set_tls(Arc::new(tls)).unwrap();
    // Who trusts only the old certificate is refused, by itself; who trusts the new one is not.
    let old = world.connect();
    let tls = other.client_tls(&[b"mqtt"]);
    let new = world.connect_with(Arc::new(tls), World::transport());
    world.run_for(RTT * 4);
    assert!(world.clients[old].lost.is_some());
    assert!(world.clients[new].connected.is_some());
    assert!(world.clients[first].lost.is_none());
}

#[test]
fn unsuitable_configurations_are_refused() {
    let identity = Identity::new();
    let mut tls = identity.server_tls.clone();
    tls.max_early_data_size = 16_384;
    let mut world = world();
    let error = world.server.set_tls(Arc::new(tls)).unwrap_err();
    assert!(error.to_string().contains("max_early_data_size"), "{error}");
    let config = QuicConfig {
        low_watermark_bytes: 2_000_000,
        ..QuicConfig::default()
    };
    let placement = sterna_net::quic::Placement {
        listener: 0,
        shard: 0,
        shards: 1,
        address: world.server_address,
    };
    let tls = Arc::new(identity.server_tls);
    let error = sterna_net::quic::Driver::new(config, tls, placement, world.now).unwrap_err();
    assert!(
        error.to_string().contains("high_watermark_bytes"),
        "{error}"
    );
}

#[test]
fn a_client_certificate_is_handed_up() {
    let identity = Identity::new();
    let device = rcgen::generate_simple_self_signed(["device-1".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(device.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    )
    .build()
    .unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(identity.server_tls.cert_resolver.clone());
    let client_base = identity.client_tls(&[b"mqtt"]);
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(device.signing_key.serialize_der());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(identity.trusted.clone())
        .with_client_auth_cert(vec![device.cert.der().clone()], key.into())
        .unwrap();
    tls.alpn_protocols = client_base.alpn_protocols;
    tls.enable_early_data = true;
    let tls = Arc::new(tls);

    let identity = Identity {
        server_tls: server,
        ..identity
    };
    let mut world = World::with_identity(identity, QuicConfig::default(), RTT / 2);
    world.connect_with(tls.clone(), World::transport());
    world.run_for(RTT * 4);
    // The second connection resumes, and knows who it is from the ticket before it is confirmed.
    let second = world.connect_with(tls, World::transport());
    world.open(second, Dir::Bi, b"early", false);
    world.run_for(RTT * 4);
    let seen = world.events(|kind| match kind {
        EventKind::Opened { info, confirmed } => Some((info.peer_certificates.clone(), *confirmed)),
        _ => None,
    });
    assert_eq!(seen.len(), 2);
    for (opened, confirmed) in seen.iter().zip([true, false]) {
        assert_eq!(opened.2.1, confirmed);
        assert_eq!(opened.2.0.len(), 1);
        assert_eq!(*opened.2.0[0], **device.cert.der());
    }
}

#[test]
fn a_restarted_server_with_the_same_secret_tells_peers_to_come_again() {
    let config = QuicConfig {
        reset_secret: Some([9; 32]),
        ..QuicConfig::default()
    };
    let mut world = World::new(config.clone(), RTT / 2);
    let client = world.connect();
    world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, b"one", false);
    world.run_for(RTT * 4);
    let tls = config.prepare_tls(&world.identity.server_tls, world.identity.tickets.clone());
    let placement = sterna_net::quic::Placement {
        listener: 3,
        shard: 1,
        shards: 4,
        address: world.server_address,
    };
    world.server =
        sterna_net::quic::Driver::new(config, Arc::new(tls), placement, world.now).unwrap();
    world.write(client, stream, &[2; 200], false);
    world.run_for(RTT * 2);
    assert!(matches!(
        world.clients[client].lost,
        Some(quinn_proto::ConnectionError::Reset)
    ));
}

#[test]
fn shutting_down_tells_every_peer() {
    let mut world = world();
    for _ in 0..3 {
        world.connect();
    }
    world.run_for(RTT * 2);
    assert_eq!(world.opened().len(), 3);
    world.server.shutdown(world.now, 42);
    let late = world.connect();
    world.run_for(RTT * 2);
    for client in 0..3 {
        let lost = world.clients[client]
            .lost
            .clone()
            .expect("told")
            .to_string();
        assert!(lost.contains("42"), "{lost}");
    }
    assert!(world.clients[late].connected.is_none());
    let closed = world.events(|kind| match kind {
        EventKind::Closed { reason } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(closed.len(), 3);
    assert!(
        closed
            .iter()
            .all(|closed| closed.2 == CloseReason::Shutdown)
    );
    world.run_for(Duration::from_secs(20));
    assert!(world.server.is_empty());
    assert_eq!(world.server.unsent_bytes(closed[0].1), 0);
    world
        .server
        .send(closed[0].1, StreamId::FIRST, b"nobody is there");
}

#[test]
fn keys_are_changed_as_often_as_the_peer_likes() {
    let mut world = world();
    world.reaction = Box::new(echo);
    let client = world.connect();
    world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, b"", false);
    for n in 1..=20 {
        world.write(client, stream, &[n; 3_000], false);
        world.run_until(RTT * 4, |world| {
            world.clients[client]
                .received
                .get(&stream.0)
                .is_some_and(|all| all.len() == usize::from(n) * 3_000)
        });
        world.run_for(Duration::from_secs(2));
        world.clients[client].connection.force_key_update();
    }
    assert!(world.clients[client].lost.is_none());
}

/// Enough packets for the library to change the keys by itself, several times.
#[test]
fn long_transfers_change_keys_by_themselves() {
    let mut world = world();
    let client = world.connect();
    world.run_until(RTT * 3, |world| world.clients[client].connected.is_some());
    let stream = world.open(client, Dir::Bi, b"x", false);
    world.run_for(RTT * 2);
    let key = world.opened()[0].1;
    for _ in 0..40 {
        world.server.send(key, stream, &vec![7; 100_000]);
        world.run_for(RTT * 20);
    }
    assert_eq!(world.clients[client].received[&stream.0].len(), 4_000_000);
    assert!(world.clients[client].connection.stats().udp_rx.datagrams > 3_000);
}
