//! Clients that move while data flows, and attackers who pretend that one did.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use quinn_proto::Dir;
use sterna_net::StreamId;
use sterna_net::quic::{EventKind, Key, QuicConfig};

use crate::world::{Fate, World, echo};

const RTT: Duration = Duration::from_millis(40);
const MESSAGE_BYTES: usize = 64;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn connected() -> (World, usize, StreamId, Key) {
    connected_to(QuicConfig::default())
}

/// To a server that holds path challenges back until enough has come from the new address.
fn connected_strictly() -> (World, usize, StreamId, Key) {
    connected_to(QuicConfig {
        challenge_at_once: false,
        ..QuicConfig::default()
    })
}

fn connected_to(config: QuicConfig) -> (World, usize, StreamId, Key) {
    let mut world = World::new(config, RTT / 2);
    world.reaction = Box::new(echo);
    let client = world.connect();
    let stream = world.open_when_connected(client);
    world.run_for(RTT * 4);
    let key = world.opened()[0].1;
    world.log.clear();
    world.clients[client].received.clear();
    (world, client, stream, key)
}

fn moves(world: &World) -> Vec<SocketAddr> {
    let moved = world.events(|kind| match kind {
        EventKind::PeerAddressChanged { peer } => Some(*peer),
        _ => None,
    });
    moved.into_iter().map(|moved| moved.2).collect()
}

/// The n-th message: recognisable, so that what is lost, doubled or swapped shows.
fn message(n: u32) -> [u8; MESSAGE_BYTES] {
    let mut message = [n as u8; MESSAGE_BYTES];
    message[..4].copy_from_slice(&n.to_be_bytes());
    message
}

/// 1,000 messages a second for four seconds, echoed; the client moves in the middle of it: to another
/// port (the new binding of a NAT, of which it knows nothing) and to another network (of which it
/// knows, and tells its library).
#[test]
fn a_move_in_the_middle_of_a_flow_loses_nothing() {
    for (to, knows) in [
        ("198.51.100.7:40000", false),
        ("203.0.113.77:40000", false),
        ("203.0.113.77:40000", true),
    ] {
        let (mut world, client, stream, key) = connected();
        let (messages, moves_at) = (4_000u32, 2_000);
        let mut expected = Vec::new();
        for n in 0..messages {
            if n == moves_at {
                world.clients[client].address = address(to);
                if knows {
                    world.clients[client].connection.local_address_changed();
                }
            }
            expected.extend_from_slice(&message(n));
            world.write(client, stream, &message(n), false);
            world.run_for(Duration::from_millis(1));
        }
        world.run_for(Duration::from_secs(2));
        assert!(
            world.arrived(key, stream) == expected,
            "all, in order, once"
        );
        assert!(world.clients[client].received[&stream.0] == expected);
        assert_eq!(moves(&world), [address(to)]);
        assert!(world.opened().is_empty(), "no reconnect");
        assert!(world.clients[client].lost.is_none());
        let path = world.server.path(key);
        assert_eq!(path.migrations, 1);
        println!(
            "{to}, knows {knows}: {} packets lost on the way back",
            path.lost_packets
        );
    }
}

/// Again and again, as behind a NAT that forgets quickly.
#[test]
fn a_client_may_move_often() {
    let (mut world, client, stream, key) = connected();
    let mut expected = Vec::new();
    for n in 0..50u32 {
        world.clients[client].address = SocketAddr::from(([198, 51, 100, 7], 50_000 + n as u16));
        expected.extend_from_slice(&message(n));
        world.write(client, stream, &message(n), false);
        world.run_for(RTT * 5);
    }
    assert!(world.arrived(key, stream) == expected);
    assert!(world.clients[client].received[&stream.0] == expected);
    assert_eq!(world.server.path(key).migrations, 50);
}

/// An attacker who sees the client's packets sends a copy from another address, faster than the
/// original: RFC 9000, section 9.3.2. The address is not taken over, since nobody answers there.
#[test]
fn a_spoofed_address_does_not_take_the_connection_away() {
    let spoofed = address("203.0.113.66:666");
    for original_arrives in [true, false] {
        let (mut world, client, stream, key) = connected();
        let seen = Rc::new(RefCell::new(None));
        let copy = seen.clone();
        world.rule = Box::new(move |crossing| {
            if crossing.to_server && copy.borrow().is_none() {
                *copy.borrow_mut() = Some(crossing.bytes.to_vec());
                return if original_arrives {
                    Fate::Late(RTT / 4)
                } else {
                    Fate::Drop
                };
            }
            Fate::Deliver
        });
        world.write(client, stream, &message(1), false);
        world.drive_client(client);
        let datagram = seen.borrow().clone().expect("a datagram");
        world.inject(spoofed, &datagram);
        world.run_for(Duration::from_secs(3));
        // The copy was the first, so it counts.
        assert!(world.arrived(key, stream) == message(1));
        assert!(world.clients[client].received[&stream.0] == message(1));
        assert_eq!(moves(&world), [], "nobody was told of the spoofed address");
        assert_eq!(world.server.path(key).migrations, 0);
        // Not more than three times what came from there (RFC 9000, section 8.1), but for the one
        // padded challenge.
        println!(
            "to the spoofed address: {:?}, from it {}",
            world.astray,
            datagram.len()
        );
        assert!(
            world.astray.1 <= 1_200 + 3 * datagram.len(),
            "{:?}",
            world.astray
        );
        // And everything goes on at the old one.
        world.write(client, stream, &message(2), false);
        world.run_for(RTT * 2);
        assert!(world.clients[client].received[&stream.0].ends_with(&message(2)));
        assert!(world.clients[client].lost.is_none());
    }
}

/// A client that forges addresses: each of its small datagrams seems to come from another victim. All together they
/// get no more than three times what the client has sent (RFC 9000, section 8). A new address of its own still works.
#[test]
fn many_forged_addresses_get_no_more_than_three_times_what_was_sent() {
    let (mut world, client, stream, key) = connected();
    let own = world.clients[client].address;
    for n in 0..200 {
        world.clients[client].address = SocketAddr::from(([203, 0, 113, n], 666));
        world.clients[client].connection.ping();
        world.drive_client(client);
        world.clients[client].address = own;
        world.run_for(RTT);
    }
    let (sent, victims) = (world.clients[client].up.1, world.astray.1);
    println!("sent {sent} bytes, to victims {victims}");
    assert!(victims > 0 && victims <= 3 * sent, "{victims} for {sent}");
    assert_eq!(moves(&world), [], "none of them was believed");
    world.clients[client].address = address("198.51.100.9:1");
    let before = world.arrived(key, stream).len();
    world.write(client, stream, &message(1), false);
    world.run_for(RTT * 100);
    assert_eq!(world.arrived(key, stream).len(), before + MESSAGE_BYTES);
    assert!(world.clients[client].received[&stream.0] == message(1));
    assert_eq!(moves(&world), [address("198.51.100.9:1")]);
}

/// Each forged address gets no more than three times what came from there, to the byte, however often the client comes
/// back to it. A path challenge, which the library fills up to 1,200 bytes, waits for 400.
#[test]
fn each_forged_address_gets_no_more_than_three_times_what_came_from_there() {
    let (mut world, client, stream, key) = connected_strictly();
    let own = world.clients[client].address;
    let mut sent: HashMap<SocketAddr, usize> = HashMap::new();
    for n in 0..400u32 {
        let forged = SocketAddr::from(([203, 0, 113, (n % 5) as u8], 666));
        let before = world.clients[client].up.1;
        world.clients[client].address = forged;
        world.clients[client].connection.ping();
        world.drive_client(client);
        *sent.entry(forged).or_default() += world.clients[client].up.1 - before;
        world.clients[client].address = own;
        world.run_for(RTT);
        for (victim, bytes) in &world.astray_to {
            let came = sent[victim];
            assert!(*bytes <= 3 * came, "{victim}: {bytes} bytes for {came}");
        }
    }
    assert!(world.astray.1 > 0, "who has sent enough is challenged");
    assert!(world.server.counters().amplification_stops > 0);
    assert_eq!(moves(&world), [], "none of them was believed");
    world.write(client, stream, &message(1), false);
    world.run_for(RTT * 4);
    assert!(world.clients[client].received[&stream.0] == message(1));
    assert!(world.arrived(key, stream) == message(1));
}

/// A device that sends one small message from a new address gets its answer, though the library's path challenge needs
/// 400 bytes from there: what the device repeats counts, too.
#[test]
fn a_mover_with_small_packets_gets_through() {
    for (bytes, knows) in [(2, false), (2, true), (15, false), (60, false)] {
        let (mut world, client, stream, _) = connected_strictly();
        let to = address("203.0.113.77:40000");
        world.clients[client].address = to;
        if knows {
            world.clients[client].connection.local_address_changed();
        }
        let (up, down) = (world.clients[client].up.1, world.clients[client].down.1);
        let start = world.since_start();
        let question = vec![7; bytes];
        world.write(client, stream, &question, false);
        while moves(&world).is_empty() {
            world.run_for(Duration::from_millis(1));
            let (up, down) = (
                world.clients[client].up.1 - up,
                world.clients[client].down.1 - down,
            );
            assert!(down <= 3 * up, "{down} bytes for {up}");
            let waited = world.since_start().saturating_sub(start);
            assert!(waited < Duration::from_secs(30), "{bytes} bytes");
        }
        world.run_for(RTT * 2);
        let took = world.since_start().saturating_sub(start);
        println!("{bytes} bytes, knows {knows}: {took:?}");
        assert!(world.clients[client].received[&stream.0] == question);
        assert_eq!(moves(&world), [to]);
    }
}

/// A client that forges addresses, and answers a challenge that it has got at its own: to the library that is no
/// answer. So the forged address is no more believed than one that nobody answers at.
#[test]
fn an_answer_to_the_challenge_of_another_path_proves_nothing() {
    let (mut world, client, stream, key) = connected();
    let own = world.clients[client].address;
    for n in 0..20 {
        let forged = SocketAddr::from(([203, 0, 113, n], 666));
        world.clients[client].address = forged;
        world.clients[client].connection.ping();
        world.drive_client(client);
        world.clients[client].address = own;
        // The server challenges both addresses. The client has both challenges when it answers.
        let challenges = world.server.path(key).sent_datagrams;
        let answers = world.clients[client]
            .connection
            .stats()
            .frame_tx
            .path_response;
        world.run_until(RTT, |world| {
            world.server.path(key).sent_datagrams > challenges
        });
        world.clients[client].address = forged;
        world.run_for(RTT * 3 / 4);
        let answered = world.clients[client]
            .connection
            .stats()
            .frame_tx
            .path_response;
        assert_eq!(answered, answers + 1);
        world.clients[client].address = own;
        world.run_for(Duration::from_secs(3));
        assert_eq!(moves(&world), [], "{n}");
    }
    let (sent, victims) = (world.clients[client].up.1, world.astray.1);
    assert!(victims > 0 && victims <= 3 * sent, "{victims} for {sent}");
    assert_eq!(world.server.path(key).migrations, 0);
    world.write(client, stream, &message(1), false);
    world.run_for(RTT * 2);
    assert!(world.clients[client].received[&stream.0] == message(1));
    // After an answer that was wrong, a right one counts.
    world.clients[client].address = address("198.51.100.9:1");
    world.write(client, stream, &message(2), false);
    world.run_for(RTT * 2);
    assert_eq!(moves(&world), [address("198.51.100.9:1")]);
}

/// The attacker carries on while the client sends: the client's own packets win.
#[test]
fn a_persistent_spoofer_is_not_believed_either() {
    let (mut world, client, stream, key) = connected();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let copies = seen.clone();
    world.rule = Box::new(move |crossing| {
        if crossing.to_server && crossing.is_one_rtt() {
            copies.borrow_mut().push(crossing.bytes.to_vec());
        }
        Fate::Deliver
    });
    let mut expected = Vec::new();
    for n in 0..200u32 {
        expected.extend_from_slice(&message(n));
        world.write(client, stream, &message(n), false);
        world.drive_client(client);
        for datagram in seen.take() {
            world.inject(
                SocketAddr::from(([203, 0, 113, 66], 1_000 + n as u16)),
                &datagram,
            );
        }
        world.run_for(Duration::from_millis(5));
    }
    world.run_for(Duration::from_secs(5));
    assert!(world.arrived(key, stream) == expected);
    assert!(world.clients[client].received[&stream.0] == expected);
    assert_eq!(world.server.path(key).migrations, 0);
    assert!(world.clients[client].lost.is_none());
}

/// The first exchange after a change of address: an answer that is ready in the same turn shares the
/// datagram with the path challenge, so that it takes one round trip. A longer one waits, because an
/// address that is not validated gets no more than three times what came from it (RFC 9000, section
/// 8); unless the client, who knows that it moved, sent enough.
#[test]
fn the_first_exchange_after_a_move() {
    for (asked, answered, round_trips) in
        [(60, 60, 1), (60, 900, 1), (60, 3_000, 2), (1_200, 3_000, 1)]
    {
        let (mut world, client, stream, _) = connected();
        world.reaction = Box::new(move |server, event| {
            if let EventKind::Chunk { stream, bytes, .. } = &event.kind
                && bytes.first() == Some(&1)
            {
                server.send(event.connection, *stream, &vec![7; answered]);
            }
        });
        world.clients[client].address = address("203.0.113.77:40000");
        let mut question = vec![2; asked];
        question[0] = 1;
        let start = world.since_start();
        world.write(client, stream, &question, false);
        world.run_until(RTT * 20, |world| {
            let received = world.clients[client].received.get(&stream.0);
            received.is_some_and(|received| received.len() == answered)
        });
        let took = world.since_start().saturating_sub(start);
        println!("{asked} bytes up, {answered} down: {took:?}");
        assert_eq!(took, RTT * round_trips, "{asked} up, {answered} down");
    }
}

#[test]
fn streams_are_opened_before_the_new_address_is_validated() {
    let (mut world, client, _, key) = connected();
    world.clients[client].address = address("203.0.113.77:40000");
    let stream = world.open(client, Dir::Uni, &message(7), true);
    let start = world.since_start();
    world.run_for(RTT / 2);
    assert!(world.arrived(key, stream) == message(7));
    assert_eq!(world.since_start().saturating_sub(start), RTT / 2);
    assert_eq!(moves(&world), [], "not validated yet");
    world.run_for(RTT);
    assert_eq!(moves(&world), [address("203.0.113.77:40000")]);
}

/// Acknowledgements to a new address carry a path challenge and its padding, which fill a small congestion window. Where
/// the last of them are lost, the server still finds out and goes on.
#[test]
fn lost_challenges_do_not_fill_the_window_for_ever() {
    for first_fates in [
        [
            Fate::Drop,
            Fate::Deliver,
            Fate::Drop,
            Fate::Drop,
            Fate::Drop,
        ],
        [
            Fate::Deliver,
            Fate::Drop,
            Fate::Drop,
            Fate::Drop,
            Fate::Drop,
        ],
    ] {
        let (mut world, client, stream, key) = connected();
        world.reaction = Box::new(|_, _| ());
        // Losses leave the least window there is.
        let mtu = u64::from(world.server.path(key).mtu_bytes);
        let mut expected = 0;
        while world.server.path(key).congestion_window_bytes > 2 * mtu {
            let mut sent = 0;
            world.rule = Box::new(move |crossing| {
                sent += usize::from(!crossing.to_server);
                if sent == 1 && !crossing.to_server {
                    Fate::Drop
                } else {
                    Fate::Deliver
                }
            });
            world.server.send(key, stream, &[7; 2_000]);
            expected += 2_000;
            assert!(
                expected < 100_000,
                "it shrinks with each loss: {:?}",
                world.server.path(key)
            );
            world.run_for(RTT * 100);
        }
        assert_eq!(world.clients[client].received[&stream.0].len(), expected);

        // The client moves. Two of its packets at a time are acknowledged at once, and permit a challenge.
        world.clients[client].address = address("198.51.100.7:40000");
        let mut fates = first_fates.into_iter();
        world.rule = Box::new(move |crossing| {
            if crossing.to_server {
                Fate::Deliver
            } else {
                fates.next().unwrap_or(Fate::Deliver)
            }
        });
        for _ in 0..4 {
            for _ in 0..2 {
                world.write(client, stream, &[9; 1_000], false);
                world.drive_client(client);
            }
            world.run_for(Duration::from_millis(2));
        }
        world.run_for(RTT * 2);
        // What it is told now arrives, and what it says is acknowledged.
        world.server.send(key, stream, &[8; 5_000]);
        for _ in 0..10 {
            world.write(client, stream, b"x", false);
            world.run_for(Duration::from_secs(1));
        }
        let received = world.clients[client].received[&stream.0].len();
        assert_eq!(received, expected + 5_000, "{first_fates:?}");
        assert_eq!(world.arrived(key, stream).len(), 8_010);
        assert_eq!(moves(&world), [address("198.51.100.7:40000")]);
        let unsettled = world.clients[client].connection.stats();
        let sent = unsettled.udp_tx.datagrams;
        world.run_for(Duration::from_secs(60));
        let later = world.clients[client].connection.stats().udp_tx.datagrams;
        assert_eq!(sent, later, "the client has nothing to probe for");
    }
}
