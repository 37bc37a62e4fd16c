//! An attack by anonymous clients within every documented limit.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process::{AMQP, Broker, HTTP, MIB, MQTT, PATIENCE, await_that, await_whether, connect};
use crate::wire::{
    POST, Packets, amqp_sender, amqp_transfer, client, mqtt_connect, publish, subscribe,
};

/// Attackers of one kind: each opens connections, and does with each what it is for, until it is told to stop.
fn attack(
    is_over: &Arc<AtomicBool>,
    address: SocketAddr,
    connections: usize,
    work: impl Fn(&mut TcpStream, usize, usize) -> std::io::Result<()> + Send + 'static,
) -> JoinHandle<()> {
    let is_over = Arc::clone(is_over);
    thread::spawn(move || {
        let mut streams: Vec<Option<TcpStream>> = (0..connections).map(|_| None).collect();
        for round in 0.. {
            for (number, place) in streams.iter_mut().enumerate() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let Some(stream) = place.as_mut() else {
                    *place = connect(address).ok().and_then(|stream| {
                        let short = Some(Duration::from_millis(20));
                        stream.set_write_timeout(short).ok()?;
                        stream
                            .set_read_timeout(Some(Duration::from_millis(1)))
                            .ok()?;
                        Some(stream)
                    });
                    if let Some(stream) = place.as_mut()
                        && work(stream, number, 0).is_err()
                    {
                        *place = None;
                    }
                    continue;
                };
                match work(stream, number, round + 1) {
                    Err(error)
                        if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                    {
                        *place = None;
                    }
                    _ => {}
                }
            }
            thread::sleep(Duration::from_millis(5));
        }
    })
}

/// What a client keeps sending, cut where the broker does not read: the rest is lost, and the broker then
/// ends the client or waits for it.
fn flood(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes)
}

fn attackers(broker: &Broker, is_over: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let [mqtt, amqp, http] = [MQTT, AMQP, HTTP].map(|listener| broker.addresses[listener]);
    let never_acknowledge = |stream: &mut TcpStream, number: usize, round: usize| {
        if round == 0 {
            stream.write_all(&mqtt_connect(&format!("never-{number}"), true))?;
            return stream.write_all(&subscribe("flood/#"));
        }
        let mut drain = [0; 4096];
        let _ = stream.read(&mut drain);
        Ok(())
    };
    let publishers = |stream: &mut TcpStream, number: usize, round: usize| {
        if round == 0 {
            return stream.write_all(&mqtt_connect(&format!("publisher-{number}"), true));
        }
        let mut drain = [0; 16_384];
        let _ = stream.read(&mut drain);
        let topic = format!("flood/{number}");
        flood(
            stream,
            &publish(&topic, round as u16 | 1, &vec![b'x'; 20_000], false),
        )
    };
    let partial_packets = |stream: &mut TcpStream, number: usize, round: usize| {
        if round == 0 {
            stream.write_all(&mqtt_connect(&format!("partial-{number}"), true))?;
            let whole = publish("partial", 1, &vec![b'x'; 2_000_000], false);
            return flood(stream, &whole[..50_000]);
        }
        if round < 30 {
            return flood(stream, &vec![b'x'; 50_000]);
        }
        Ok(())
    };
    let partial_transfers = |stream: &mut TcpStream, number: usize, round: usize| {
        if round == 0 {
            return stream.write_all(&amqp_sender(&format!("transfer-{number}")));
        }
        flood(stream, &amqp_transfer(round == 1, 30_000))
    };
    let retained = |stream: &mut TcpStream, number: usize, round: usize| {
        if round == 0 {
            return stream.write_all(&mqtt_connect(&format!("retained-{number}"), true));
        }
        let mut drain = [0; 16_384];
        let _ = stream.read(&mut drain);
        for n in 0..50 {
            let topic = format!("retained/{number}/{round}/{n}");
            stream.write_all(&publish(&topic, n + 1, &[b'r'; 900], true))?;
        }
        Ok(())
    };
    // What it published is sent to itself, and it does not read.
    let slow_readers = |stream: &mut TcpStream, number: usize, round: usize| {
        if round == 0 {
            stream.write_all(&mqtt_connect(&format!("slow-{number}"), true))?;
            return stream.write_all(&subscribe("flood/#"));
        }
        Ok(())
    };
    let requests = |stream: &mut TcpStream, _: usize, round: usize| {
        if round == 0 {
            return stream.write_all(POST.as_bytes());
        }
        if round < 28 {
            return flood(stream, &vec![b'x'; 30_000]);
        }
        Ok(())
    };
    let sessions = |stream: &mut TcpStream, number: usize, round: usize| {
        // A new session in each round, which is kept.
        let _ = stream.write_all(&mqtt_connect(&format!("kept-{number}-{round}"), false));
        let _ = stream.write_all(&subscribe(&format!("a/{number}/{round}/+")));
        let _ = stream.write_all(&[0xe0, 0]);
        Err(ErrorKind::ConnectionReset.into())
    };
    vec![
        attack(is_over, mqtt, 60, never_acknowledge),
        attack(is_over, mqtt, 30, publishers),
        attack(is_over, mqtt, 100, partial_packets),
        attack(is_over, amqp, 60, partial_transfers),
        attack(is_over, mqtt, 20, retained),
        attack(is_over, mqtt, 60, slow_readers),
        attack(is_over, http, 60, requests),
        attack(is_over, mqtt, 20, sessions),
    ]
}

/// The ceiling of the attacked broker. The unoptimised program alone takes 46 MiB of it, and the store's caches 16: stages
/// that end at 65 % must leave room for retained messages that stay, and for gaps between them.
const CEILING_BYTES: u64 = 168 * MIB;
/// What it may be above it for a moment: what arrives between two looks, and what the allocator has not given back.
const MARGIN_BYTES: u64 = 32 * MIB;
const ATTACK: Duration = Duration::from_secs(12);

#[test]
fn anonymous_clients_within_every_limit_do_not_end_the_process_or_an_honest_client() {
    let ceiling = format!(
        "[broker]\nmemory_ceiling = \"{} MiB\"\n",
        CEILING_BYTES / MIB
    );
    let broker = Broker::start(&ceiling);
    // Who publishes honestly, and who is to get it, now and then away.
    let mut reader = client(&broker, "honest-reader", false);
    reader.write_all(&subscribe("honest")).unwrap();
    reader.read_exact(&mut [0; 5]).unwrap();
    let mut honest = client(&broker, "honest", true);
    honest
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    drop(reader);

    let is_over = Arc::new(AtomicBool::new(false));
    let most_bytes = Arc::new(AtomicU64::new(0));
    let attackers = attackers(&broker, &is_over);
    let (mut packets, mut acknowledged) = (Packets::default(), Vec::new());
    let (mut next, mut is_open, mut pings, mut answers) = (1_u16, false, 0, 0);
    let begin = Instant::now();
    let mut answered = Instant::now();
    let mut longest = Duration::ZERO;
    let is_short = || {
        let entered = broker.metric("sterna_memory_stages_entered_total");
        entered.iter().any(|(_, times)| *times > 0)
    };
    // On a slow machine the attackers need longer.
    while begin.elapsed() < ATTACK || (begin.elapsed() < 10 * ATTACK && !is_short()) {
        if !is_open {
            let payload = next.to_be_bytes();
            honest
                .write_all(&publish("honest", next, &payload, false))
                .unwrap();
            honest.write_all(&[0xc0, 0]).unwrap();
            (is_open, pings, answered) = (true, pings + 1, Instant::now());
        }
        for (first, body) in packets.read(&mut honest).expect("the honest client stays") {
            match first {
                0x40 => {
                    acknowledged.push(u16::from_be_bytes([body[0], body[1]]));
                    (is_open, next) = (false, next + 1);
                    longest = longest.max(answered.elapsed());
                }
                0xd0 => answers += 1,
                other => panic!("packet {other:#x}"),
            }
        }
        most_bytes.fetch_max(broker.resident_bytes(), Ordering::Relaxed);
    }
    let entered = broker.metric("sterna_memory_stages_entered_total");
    is_over.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.join().unwrap();
    }
    let most_bytes = most_bytes.load(Ordering::Relaxed);
    println!(
        "{} MiB at most, {} acknowledged, {longest:?} the longest, {entered:?}",
        most_bytes / MIB,
        acknowledged.len()
    );
    assert!(
        most_bytes <= CEILING_BYTES + MARGIN_BYTES,
        "{most_bytes} bytes"
    );
    assert!(
        entered.iter().any(|(_, times)| *times > 0),
        "memory was short: {entered:?}"
    );
    assert!(answers + 1 >= pings && !acknowledged.is_empty());

    // All resumes.
    let mut used = Vec::new();
    let is_ready = await_whether(|| {
        used = broker.metric("sterna_memory_bytes");
        broker.get("/readyz") == (200, "ready\n".to_owned())
    });
    assert!(is_ready, "a stage is left after {PATIENCE:?}: {used:?}");
    honest.set_read_timeout(Some(PATIENCE)).unwrap();
    while is_open {
        let came = packets.read(&mut honest).expect("the honest client stays");
        for (first, body) in came {
            if first == 0x40 {
                acknowledged.push(u16::from_be_bytes([body[0], body[1]]));
                is_open = false;
            }
        }
    }
    let mut reader = client(&broker, "honest-reader", false);
    reader
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let (mut packets, mut came) = (Packets::default(), Vec::new());
    await_that("everything that was acknowledged has come", || {
        for (first, body) in packets.read(&mut reader).expect("the reader stays") {
            if first & 0xf0 == 0x30 {
                let id = &body[8..10];
                reader.write_all(&[0x40, 2, id[0], id[1]]).unwrap();
                came.push(u16::from_be_bytes([body[10], body[11]]));
            }
        }
        acknowledged.iter().all(|number| came.contains(number))
    });
}
