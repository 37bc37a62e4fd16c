//! Tickets: whose they are, how long they live, and what they remember of the path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn_proto::Dir;
use rustls::server::{StoresServerSessions, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use sterna_net::quic::{EventKind, QuicConfig, TicketStore};

use crate::world::{Identity, World, echo, settings};

const RTT: Duration = Duration::from_millis(600);

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A certificate of a device, with its key.
fn device(name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    (made.cert.der().clone(), PrivateKeyDer::Pkcs8(key))
}

/// Early data of a device that proved itself with a certificate once is that device's, whose chain is
/// that of its ticket: it comes before the handshake has shown it again.
#[test]
fn a_resumed_client_is_who_its_ticket_was_given_to() {
    let devices = [device("one.example"), device("two.example")];
    let mut identity = Identity::new();
    let mut roots = rustls::RootCertStore::empty();
    for (certificate, _) in &devices {
        roots.add(certificate.clone()).expect("a root");
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .expect("a verifier");
    let (certificate, key) = {
        let made = rcgen::generate_simple_self_signed([crate::world::SERVER_NAME.to_owned()])
            .expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        (made.cert.der().clone(), PrivateKeyDer::Pkcs8(key))
    };
    identity.trusted.add(certificate.clone()).expect("a root");
    identity.server_tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate], key)
        .expect("a server");
    let mut world = World::with_identity(identity, QuicConfig::default(), RTT / 2);
    let clients: Vec<_> = devices
        .iter()
        .map(|(certificate, key)| {
            let mut tls = rustls::ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .expect("TLS 1.3")
                .with_root_certificates(world.identity.trusted.clone())
                .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
                .expect("a client");
            tls.enable_early_data = true;
            tls.alpn_protocols = vec![b"mqtt".to_vec()];
            Arc::new(tls)
        })
        .collect();
    for round in 0..3 {
        for (tls, (certificate, _)) in clients.iter().zip(&devices) {
            world.log.clear();
            let client = world.connect_with(tls.clone(), World::transport());
            if round > 0 {
                world.open(client, Dir::Bi, b"early", false);
            }
            world.run_for(RTT * 6);
            let opened = world.events(|kind| match kind {
                EventKind::Opened { info, confirmed } => {
                    Some((info.peer_certificates.clone(), *confirmed))
                }
                _ => None,
            });
            let (chain, confirmed) = &opened[0].2;
            assert_eq!(*confirmed, round == 0, "early from the second time on");
            assert_eq!(chain.len(), 1);
            assert_eq!(*chain[0], **certificate);
            assert_eq!(world.server.path(opened[0].1).resumed, round > 0);
        }
    }
}

/// Seconds since the Unix epoch.
#[derive(Debug)]
struct Calendar(AtomicU64);

impl TimeProvider for Calendar {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// The TLS library's stateful tickets live for a day, and nothing can change that: `docs/quic.md`
/// names this limit.
#[test]
fn a_ticket_lives_for_a_day() {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    for (hours, resumes) in [(23, true), (25, false)] {
        let calendar = Arc::new(Calendar(AtomicU64::new(now.as_secs())));
        let mut identity = Identity::new();
        identity.server_tls.time_provider = calendar.clone();
        let mut world = World::with_identity(identity, QuicConfig::default(), RTT / 2);
        let mut tls = world.identity.client_tls(&[b"mqtt"]);
        tls.time_provider = calendar.clone();
        let tls = Arc::new(tls);
        world.connect_with(tls.clone(), World::transport());
        world.run_for(RTT * 6);
        calendar.0.fetch_add(hours * 3_600, Ordering::Relaxed);
        let client = world.connect_with(tls, World::transport());
        assert_eq!(
            world.clients[client].connection.has_0rtt(),
            resumes,
            "{hours} hours"
        );
        world.run_for(RTT * 6);
        let path = world.server.path(world.opened()[1].1);
        assert_eq!(path.resumed, resumes, "{hours} hours");
    }
}

#[test]
fn tickets_are_bounded_and_the_oldest_make_room() {
    let mut identity = Identity::new();
    identity.tickets = Arc::new(TicketStore::new(8));
    let mut world = World::with_identity(identity, QuicConfig::default(), RTT / 2);
    let clients: Vec<_> = (0..20)
        .map(|_| Arc::new(world.identity.client_tls(&[b"mqtt"])))
        .collect();
    for tls in &clients {
        world.connect_with(tls.clone(), World::transport());
        world.run_for(RTT * 6);
    }
    let usage = world.identity.tickets.usage();
    assert_eq!((usage.sessions, usage.evicted), (8, 72));
    for (tls, resumes) in [(&clients[0], false), (&clients[19], true)] {
        let opened = world.opened().len();
        world.connect_with(tls.clone(), World::transport());
        world.run_for(RTT * 6);
        let path = world.server.path(world.opened()[opened].1);
        assert_eq!(path.resumed, resumes);
    }
}

const LARGE_BYTES: usize = 3_000_000;
const SMALL_BYTES: usize = 300_000;

/// Connects, asks for `bytes`, and returns how long that took from the request on.
fn download(world: &mut World, tls: &Arc<rustls::ClientConfig>, bytes: usize) -> (usize, Duration) {
    let client = world.connect_with(tls.clone(), World::transport());
    world.run_until(RTT * 5, |world| world.clients[client].connected.is_some());
    let start = world.since_start();
    let stream = world.open(client, Dir::Bi, &(bytes as u32).to_be_bytes(), false);
    world.run_until(Duration::from_secs(2 * 60), |world| {
        let received = world.clients[client].received.get(&stream.0);
        received.is_some_and(|received| received.len() == bytes)
    });
    (client, world.since_start().saturating_sub(start))
}

/// Whether two downloads took equally long, but for the timing of single datagrams.
fn is_alike(one: Duration, other: Duration) -> bool {
    one.abs_diff(other) < RTT / 50
}

fn downloads(path_memory_lifetime_ms: u64) -> World {
    let config = settings(|settings| {
        settings.path_memory_lifetime_ms = path_memory_lifetime_ms;
        settings.send_window_bytes = 2_000_000;
        // A full handshake has as many in its last flight as a resumed one: no other difference is to be seen.
        settings.tickets = 1;
    });
    let mut world = World::new(config, RTT / 2);
    world.reaction = Box::new(|server, event| {
        if let EventKind::Chunk { stream, bytes, .. } = &event.kind {
            let asked: [u8; 4] = bytes[..].try_into().expect("a length");
            let answer = vec![7; u32::from_be_bytes(asked) as usize];
            server.send_shared(event.connection, *stream, answer.into());
        }
    });
    world
}

/// RFC 9959: what a connection learnt of the path serves the one that resumes its session.
#[test]
fn a_resumed_connection_grows_faster_than_a_fresh_one() {
    for (lifetime_ms, vanishes) in [(3_600_000, false), (3_600_000, true), (0, false)] {
        let mut world = downloads(lifetime_ms);
        let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
        let (first, _) = download(&mut world, &tls, LARGE_BYTES);
        if vanishes {
            // Its packets don't get through any more: the server learns nothing of its end.
            world.clients[first].address = "192.0.2.99:9".parse().expect("an address");
            world.rule = Box::new(move |crossing| {
                if crossing.client == first {
                    crate::world::Fate::Drop
                } else {
                    crate::world::Fate::Deliver
                }
            });
        } else {
            let now = world.now;
            let connection = &mut world.clients[first].connection;
            connection.close(now, 0u32.into(), bytes::Bytes::new());
        }
        world.run_for(Duration::from_secs(10));
        let (_, resumed) = download(&mut world, &tls, SMALL_BYTES);
        let stranger = Arc::new(world.identity.client_tls(&[b"mqtt"]));
        let (_, fresh) = download(&mut world, &stranger, SMALL_BYTES);
        println!(
            "lifetime {lifetime_ms} ms, vanishes {vanishes}: resumed {resumed:?}, fresh {fresh:?}"
        );
        if lifetime_ms > 0 {
            assert!(resumed + RTT <= fresh, "{resumed:?} and {fresh:?}");
        } else {
            assert!(
                is_alike(resumed, fresh),
                "nothing is remembered: {resumed:?}, {fresh:?}"
            );
        }
    }
}

/// What the path was like an hour ago says nothing.
#[test]
fn an_old_memory_is_not_believed() {
    let mut world = downloads(60_000);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    download(&mut world, &tls, LARGE_BYTES);
    world.run_for(Duration::from_secs(5 * 60));
    let (client, resumed) = download(&mut world, &tls, SMALL_BYTES);
    let stranger = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let (_, fresh) = download(&mut world, &stranger, SMALL_BYTES);
    assert!(world.server.path(world.opened()[client].1).resumed);
    assert!(is_alike(resumed, fresh), "{resumed:?}, {fresh:?}");
}

/// A store that other code brings is wrapped, not changed: a session that it gives back is whole.
#[test]
fn what_is_remembered_stays_beside_the_session() {
    let mut world = World::new(QuicConfig::default(), RTT / 2);
    world.reaction = Box::new(echo);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    for n in 0..4 {
        let client = world.connect_with(tls.clone(), World::transport());
        world.run_for(RTT * 4);
        world.open(client, Dir::Bi, b"hello", false);
        // Long enough for what is learnt to be written down, twice.
        world.run_for(Duration::from_secs(8));
        world.open(client, Dir::Bi, b"hello", false);
        world.run_for(Duration::from_secs(8));
        assert!(world.identity.tickets.can_cache());
        assert_eq!(world.identity.tickets.usage().sessions, 4 + n);
        assert_eq!(world.server.path(world.opened()[n].1).resumed, n > 0);
        let now = world.now;
        let connection = &mut world.clients[client].connection;
        connection.close(now, 0u32.into(), bytes::Bytes::new());
        world.run_for(RTT * 8);
    }
}
