//! A fast publisher of QoS 0 and a subscriber that cannot always take what comes, in virtual time.

use std::sync::Arc;

use sterna_broker::{Directory, Limits, NoStore};
use sterna_net::sim::{Client, ClientOptions, Settings, Simulation};
use sterna_net::{StreamId, TransportKind};
use sterna_server::config::Config;
use sterna_server::{HttpRegistry, Letters, Parts, Policy, Registry, Shard, metrics, sys};

const MESSAGES_PER_MS: usize = 30;
/// Fixed header, topic and number of a message.
const MESSAGE_BYTES: usize = 13;

fn simulation(limits: Limits) -> Simulation<Shard> {
    let mut config = Config::default();
    config.sys.interval_s = 0;
    let directory = Directory::new(1, limits, 1);
    let policy = Arc::new(Policy::load(&config).expect("a policy"));
    let settings = Settings {
        chunk_bytes: 64 << 10,
        gap_us: 0..=500,
        delay_us: 5_000..=5_000,
        ..Settings::default()
    };
    let start_ms = settings.start_ms;
    Simulation::new(1, settings, 1, |number, courier| {
        let parts = Parts {
            number,
            directory: Arc::clone(&directory),
            store: Box::new(NoStore),
            amqp: Arc::new(Registry::default()),
            http: Arc::new(HttpRegistry::default()),
            repetitions: Arc::default(),
            policy: Arc::clone(&policy),
            checker: None,
            bans: Arc::default(),
            seats: Arc::default(),
            tracer: None,
            outbox: Box::new(Letters::new(courier)),
            cluster: None,
            board: Arc::new(sys::Board::new(1)),
            sources: Arc::new(metrics::Sources::new(1, 0)),
            memory: None,
            sys_interval_ms: 0,
            high_watermark_bytes: config.network.high_watermark_bytes as usize,
        };
        Shard::new(parts, start_ms)
    })
}

fn connect(sim: &mut Simulation<Shard>, transport: TransportKind, name: u8) -> Client {
    let client = sim.connect(ClientOptions {
        transport,
        ..ClientOptions::default()
    });
    let connect = [
        0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1, name,
    ];
    sim.send(client, StreamId::FIRST, &connect);
    sim.run_for(1_000);
    assert_eq!(sim.take(client, StreamId::FIRST), [0x20, 2, 0, 0]);
    client
}

/// A subscriber of `t`, and a publisher.
fn pair(sim: &mut Simulation<Shard>, transport: TransportKind) -> (Client, Client) {
    let subscriber = connect(sim, transport, b's');
    sim.send(subscriber, StreamId::FIRST, &[0x82, 6, 0, 1, 0, 1, b't', 0]);
    sim.run_for(1_000);
    assert_eq!(sim.take(subscriber, StreamId::FIRST), [0x90, 3, 0, 1, 0]);
    (subscriber, connect(sim, TransportKind::Simulated, b'p'))
}

/// Publishes numbered messages at the pace for some time.
fn publish(sim: &mut Simulation<Shard>, publisher: Client, ms: usize, next: &mut u64) {
    for _ in 0..ms {
        let mut packets = Vec::with_capacity(MESSAGES_PER_MS * MESSAGE_BYTES);
        for _ in 0..MESSAGES_PER_MS {
            packets.extend_from_slice(&[0x30, 11, 0, 1, b't']);
            packets.extend_from_slice(&next.to_be_bytes());
            *next += 1;
        }
        sim.send(publisher, StreamId::FIRST, &packets);
        sim.run_for(1);
    }
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let packets = bytes.chunks_exact(MESSAGE_BYTES);
    assert!(packets.remainder().is_empty());
    packets
        .map(|packet| u64::from_be_bytes(packet[5..].try_into().expect("eight bytes")))
        .collect()
}

/// The limit on the number of messages is reached within 33 ms at this pace; none is lost by it.
#[test]
fn a_pause_of_a_second_at_30000_messages_a_second_loses_none() {
    for transport in [TransportKind::Quic, TransportKind::Simulated] {
        let mut sim = simulation(Limits::default());
        let (subscriber, publisher) = pair(&mut sim, transport);
        let mut next = 0;
        publish(&mut sim, publisher, 500, &mut next);
        sim.pause(subscriber, true);
        publish(&mut sim, publisher, 1_000, &mut next);
        sim.pause(subscriber, false);
        publish(&mut sim, publisher, 500, &mut next);
        sim.run_for(5_000);
        let came = numbers(&sim.take(subscriber, StreamId::FIRST));
        assert_eq!(came.len(), 60_000, "{transport:?}");
        assert!(came.into_iter().eq(0..60_000), "{transport:?}: in order");
    }
}

#[test]
fn a_subscriber_that_never_reads_holds_what_its_limits_say() {
    let limits = Limits {
        queued_qos0_bytes: 1 << 20,
        queued_qos0_age_ms: 2_000,
        ..Limits::default()
    };
    for transport in [TransportKind::Quic, TransportKind::Simulated] {
        let mut sim = simulation(limits.clone());
        let (subscriber, publisher) = pair(&mut sim, transport);
        sim.pause(subscriber, true);
        let mut next = 0;
        let mut most_bytes = 0;
        for _ in 0..30 {
            publish(&mut sim, publisher, 100, &mut next);
            let (sessions, _) = sim.handler(0).broker().sessions(0, 10);
            let queues = sessions.iter().map(|session| session.queue);
            let bytes = queues.map(|queue| queue.pending_bytes + 64 * queue.pending as u64);
            most_bytes = most_bytes.max(bytes.sum());
        }
        assert!(most_bytes <= 1 << 20, "{transport:?}: {most_bytes} bytes");
        assert!(most_bytes > 1 << 19, "{transport:?}: {most_bytes} bytes");
        // Of what waited too long nothing comes when it reads again.
        sim.run_for(10_000);
        sim.pause(subscriber, false);
        sim.run_for(5_000);
        let came = numbers(&sim.take(subscriber, StreamId::FIRST));
        let in_transport = (256 << 10) / MESSAGE_BYTES + 2 * 256;
        assert!(
            came.len() < 2 * in_transport,
            "{transport:?}: {}",
            came.len()
        );
        publish(&mut sim, publisher, 1, &mut next);
        sim.run_for(1_000);
        let came = numbers(&sim.take(subscriber, StreamId::FIRST));
        assert_eq!(came.len(), MESSAGES_PER_MS, "{transport:?}");
    }
}
