//! Two nodes behind a balancer on UDP that routes by connection identifiers
//! (draft-ietf-quic-load-balancers-21, plaintext), with quinn's client.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use quinn::Endpoint;
use sterna_net::ListenerTransport;
use sterna_net::quic::{AddressTokens, QuicConfig, ServerId};

use crate::support::pki::Authority;
use crate::support::quinn_client::{endpoint, exchange, run};
use crate::support::{Seen, Server, Setup, loopback};

/// Bits of the first byte of a packet and of an identifier.
const LONG_HEADER: u8 = 0x80;
const ROTATION_SHIFT: u8 = 5;
const ROTATION: u8 = 2;

/// The way of a packet without a node's identifier.
type Fallback = Box<dyn FnMut(usize) -> usize + Send>;

/// A balancer that keeps nothing but a socket for each client, by which all nodes know it. It reads packets as the draft
/// says: where an identifier has no known server ID, as a client's own has not, any node is right.
struct Balancer {
    address: SocketAddr,
    /// Packets to each node, of connections that have begun.
    routed: Arc<[AtomicUsize; 2]>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Balancer {
    /// `fallback` chooses a node from the number of the packet that names none.
    fn start(nodes: [(SocketAddr, Vec<u8>); 2], mut fallback: Fallback) -> Self {
        let front = UdpSocket::bind(loopback()).unwrap();
        front
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let address = front.local_addr().unwrap();
        let front = Arc::new(front);
        let routed: Arc<[AtomicUsize; 2]> = Arc::default();
        let ends = Arc::new(AtomicBool::new(false));
        let (counts, over) = (Arc::clone(&routed), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let mut ways: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
            let mut back = Vec::new();
            let mut strangers = 0;
            let mut buffer = vec![0; 65_536];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, client)) = front.recv_from(&mut buffer) else {
                    continue;
                };
                let packet = &buffer[..length];
                let named = nodes.iter().position(|(_, id)| names(packet, id));
                if let Some(node) = named {
                    counts[node].fetch_add(1, Ordering::Relaxed);
                }
                let node = named.unwrap_or_else(|| {
                    strangers += 1;
                    fallback(strangers - 1)
                });
                let way = Arc::clone(ways.entry(client).or_insert_with(|| {
                    let way = Arc::new(UdpSocket::bind(loopback()).unwrap());
                    way.set_read_timeout(Some(Duration::from_millis(50)))
                        .unwrap();
                    let (from, front, over) =
                        (Arc::clone(&way), Arc::clone(&front), Arc::clone(&over));
                    back.push(std::thread::spawn(move || {
                        let mut buffer = vec![0; 65_536];
                        while !over.load(Ordering::Relaxed) {
                            if let Ok(length) = from.recv(&mut buffer) {
                                let _ = front.send_to(&buffer[..length], client);
                            }
                        }
                    }));
                    way
                }));
                let _ = way.send_to(packet, nodes[node].0);
            }
            for thread in back {
                thread.join().unwrap();
            }
        });
        Self {
            address,
            routed,
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a packet's identifier has this server ID.
fn names(packet: &[u8], server_id: &[u8]) -> bool {
    let id = match packet.first() {
        Some(first) if first & LONG_HEADER == 0 => packet.get(1..),
        Some(_) => packet.get(6..),
        None => None,
    };
    id.and_then(|id| id.split_first())
        .is_some_and(|(first, rest)| {
            first >> ROTATION_SHIFT == ROTATION && rest.starts_with(server_id)
        })
}

struct World {
    nodes: [Server; 2],
    authority: Authority,
}

/// Two nodes of two shards, with server IDs of this many bytes; `change` has the number of the node.
fn world(bytes: usize, change: impl Fn(usize, &mut QuicConfig)) -> World {
    let authority = Authority::new();
    let nodes = [0, 1].map(|node| {
        let mut quic = QuicConfig {
            server_id: ServerId::new(&server_id(node, bytes), ROTATION),
            ..QuicConfig::default()
        };
        change(node, &mut quic);
        let tls = Arc::new(authority.tls_config(&[]));
        let mut setup = Setup::new(ListenerTransport::Quic(tls, Arc::new(quic)));
        setup.shards = 2;
        setup.start()
    });
    World { nodes, authority }
}

fn server_id(node: usize, bytes: usize) -> Vec<u8> {
    vec![0xa0 + node as u8; bytes]
}

impl World {
    fn balancer(&self, bytes: usize, fallback: Fallback) -> Balancer {
        let node = |node: usize| (self.nodes[node].address(), server_id(node, bytes));
        Balancer::start([node(0), node(1)], fallback)
    }

    fn endpoint(&self) -> Endpoint {
        endpoint(loopback(), &self.authority, false)
    }

    fn opened(&self) -> [usize; 2] {
        [0, 1].map(|node: usize| {
            (self.nodes[node].log).count(|_, seen| matches!(seen, Seen::Opened(_)))
        })
    }

    fn migrated(&self) -> usize {
        let migrated = |_, seen: &Seen| matches!(seen, Seen::Migrated(_));
        self.nodes.iter().map(|node| node.log.count(migrated)).sum()
    }

    fn stop(self) {
        for node in self.nodes {
            node.stop();
        }
    }
}

/// A client whose address changes stays with its node, whatever the length of server IDs, though the
/// balancer sends each new address elsewhere.
#[test]
fn a_client_that_moves_stays_with_its_node() {
    run(async {
        for bytes in [1, 3, ServerId::MOST_BYTES] {
            let world = world(bytes, |_, _| ());
            // Packets of one flight go to one node, the next flight to the other.
            let turn = Arc::new(AtomicUsize::new(0));
            let at = Arc::clone(&turn);
            let fallback = move |_| at.load(Ordering::Relaxed) % 2;
            let balancer = world.balancer(bytes, Box::new(fallback));
            for client in 0..6 {
                turn.store(client, Ordering::Relaxed);
                let endpoint = world.endpoint();
                let connecting = endpoint.connect(balancer.address, "localhost").unwrap();
                let connection = connecting.await.unwrap();
                exchange(&connection, b"before").await;
                // What has no server ID would now go to the other node.
                turn.store(client + 1, Ordering::Relaxed);
                for _ in 0..3 {
                    endpoint
                        .rebind(UdpSocket::bind(loopback()).unwrap())
                        .unwrap();
                    exchange(&connection, b"after").await;
                }
                assert!(connection.close_reason().is_none());
                connection.close(0u32.into(), b"");
                endpoint.wait_idle().await;
            }
            assert_eq!(world.opened(), [3, 3], "no client began anew");
            assert!(world.migrated() > 0);
            let routed = [0, 1].map(|node: usize| balancer.routed[node].load(Ordering::Relaxed));
            assert!(routed.iter().all(|packets| *packets > 20), "{routed:?}");
            drop(balancer);
            world.stop();
        }
    });
}

/// Without server IDs such a client is lost: the test above would notice.
#[test]
fn without_server_ids_a_client_that_moves_is_lost() {
    run(async {
        let world = world(1, |_, quic| quic.server_id = None);
        let turn = Arc::new(AtomicUsize::new(0));
        let at = Arc::clone(&turn);
        let balancer = world.balancer(1, Box::new(move |_| at.load(Ordering::Relaxed)));
        let endpoint = world.endpoint();
        let connecting = endpoint.connect(balancer.address, "localhost").unwrap();
        let connection = connecting.await.unwrap();
        exchange(&connection, b"before").await;
        turn.store(1, Ordering::Relaxed);
        endpoint
            .rebind(UdpSocket::bind(loopback()).unwrap())
            .unwrap();
        let lost =
            tokio::time::timeout(Duration::from_millis(800), exchange(&connection, b"after"));
        assert!(lost.await.is_err());
        drop(balancer);
        world.stop();
    });
}

/// A Retry's identifier names its node, so the answer comes back to it; and where the balancer does not heed
/// that, another node with the same secret takes the token as well.
#[test]
fn the_answer_to_a_retry_is_taken_by_every_node_with_the_secret() {
    let secret = [7; 32];
    for heeds in [true, false] {
        run(async {
            let world = world(2, |_, quic| {
                quic.retry_half_open = 0;
                quic.address_tokens = AddressTokens::with_secret(&secret);
            });
            let mut fallback: Fallback = Box::new(|_| 0);
            let mut bytes = 2;
            if !heeds {
                // A balancer that knows other server IDs: the first Initial goes to one node, the rest to the
                // other.
                bytes = 5;
                fallback = Box::new(|number| usize::from(number > 0));
            }
            let balancer = world.balancer(bytes, fallback);
            let endpoint = world.endpoint();
            let connecting = endpoint.connect(balancer.address, "localhost").unwrap();
            exchange(&connecting.await.unwrap(), b"after a retry").await;
            let expected = if heeds { [1, 0] } else { [0, 1] };
            assert_eq!(world.opened(), expected);
            drop(balancer);
            world.stop();
        });
    }
}

/// Each with its own secret, the second node asks for a Retry again, which clients ignore (RFC 9000, section
/// 17.2.5.2).
#[test]
fn without_a_common_secret_the_answer_to_a_retry_is_for_its_node_alone() {
    run(async {
        let world = world(2, |_, quic| quic.retry_half_open = 0);
        let balancer = world.balancer(5, Box::new(|number| usize::from(number > 0)));
        let endpoint = world.endpoint();
        let connecting = endpoint.connect(balancer.address, "localhost").unwrap();
        let lost = tokio::time::timeout(Duration::from_millis(800), connecting).await;
        assert!(lost.is_err());
        assert_eq!(world.opened(), [0, 0]);
        drop(balancer);
        world.stop();
    });
}
