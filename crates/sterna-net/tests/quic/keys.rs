//! Changes of keys (RFC 9001, section 6) that meet each other.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::crypto::{
    ClientConfig, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionError, ConnectionId, Side, TransportError};
use sterna_net::StreamId;

use crate::world::{Fate, World, echo, settings};

const RTT: Duration = Duration::from_millis(40);

/// TLS of a client that counts the sets of keys for 1-RTT packets: two at first, and one more with each change.
struct Counting(Arc<QuicClientConfig>, Arc<AtomicUsize>);

impl ClientConfig for Counting {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = Arc::clone(&self.0).start_session(version, server_name, params)?;
        Ok(Box::new(Counted(session, Arc::clone(&self.1))))
    }
}

struct Counted(Box<dyn Session>, Arc<AtomicUsize>);

impl Session for Counted {
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.next_1rtt_keys()
    }

    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.0.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.0.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.0.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.0.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.0.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.0.write_handshake(buf)
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.0.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.0.export_keying_material(output, label, context)
    }
}

/// The n-th client, and its count of changes.
fn connect(world: &mut World) -> (usize, Arc<AtomicUsize>) {
    let tls = QuicClientConfig::try_from(world.identity.client_tls(&[b"mqtt"]));
    let count = Arc::default();
    let tls = Counting(
        Arc::new(tls.expect("a valid test setup")),
        Arc::clone(&count),
    );
    let mut transport = World::transport();
    transport.max_idle_timeout(None);
    let address = ([198, 51, 100, 7], 20_000 + world.clients.len() as u16).into();
    let client = world.connect_by(Arc::new(tls), transport, address);
    (client, count)
}

/// Connects clients until one gets the server's new keys before it changes them itself, with an
/// acknowledgement that needs no answer. Both sides draw the packet, one of the first thousand. Where
/// `is_mute`, whatever the client sends with new keys is lost.
fn meet_new_keys(world: &mut World, is_mute: bool) -> (usize, StreamId) {
    loop {
        assert!(world.clients.len() < 100, "the client is always first");
        let (client, count) = connect(world);
        let stream = world.open_when_connected(client);
        world.run_for(RTT * 4);
        let before = count.load(Ordering::Relaxed);
        let keys = Arc::clone(&count);
        world.rule = Box::new(move |crossing| {
            let is_changed = keys.load(Ordering::Relaxed) > before;
            let is_its = crossing.to_server && crossing.client == client;
            if is_mute && is_changed && is_its {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        loop {
            world.clients[client].connection.ping();
            world.run_for(Duration::ZERO);
            if count.load(Ordering::Relaxed) > before {
                break; // the client did
            }
            world.run_for(RTT * 2);
            if count.load(Ordering::Relaxed) > before {
                return (client, stream);
            }
        }
    }
}

/// The library at the client begins the next keys although the server has seen no packet with these,
/// and would decrypt with those of before.
#[test]
fn a_client_that_says_nothing_between_two_changes_of_keys_is_heard() {
    let mut world = World::new(settings(|settings| settings.idle_timeout_ms = 0), RTT / 2);
    world.reaction = Box::new(echo);
    let (client, stream) = meet_new_keys(&mut world, false);
    // The client forgets the keys of before.
    world.run_for(Duration::from_secs(10));
    world.clients[client].connection.force_key_update();
    world.write(client, stream, b"with new keys", false);
    world.run_for(Duration::from_secs(60));
    assert!(world.clients[client].received[&stream.0].ends_with(b"with new keys"));
}

/// As above, and what the client answers is lost. The library should not have changed the keys again
/// (RFC 9001, section 6.1), and is not heard, but neither side keeps the connection.
#[test]
fn a_client_that_is_not_heard_between_two_changes_of_keys_is_let_go() {
    let mut world = World::new(
        settings(|settings| settings.idle_timeout_ms = 30_000),
        RTT / 2,
    );
    world.reaction = Box::new(echo);
    let (client, stream) = meet_new_keys(&mut world, true);
    world.run_for(Duration::from_secs(10));
    world.clients[client].connection.force_key_update();
    world.rule = Box::new(|_| Fate::Deliver);
    world.write(client, stream, b"with new keys", false);
    world.run_for(Duration::from_secs(60));
    let received = &world.clients[client].received[&stream.0];
    assert!(!received.ends_with(b"with new keys"));
    assert!(world.server.is_empty(), "idle for too long");
    // A packet of an unknown connection is answered so.
    assert_eq!(world.clients[client].lost, Some(ConnectionError::Reset));
}
