//! Attackers of one address that hold memory in ways that last. Honest clients of other addresses are served meanwhile;
//! those of the same address stay, for the heaviest client goes first.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::process::{Broker, MQTT, PATIENCE, await_that, await_whether};
use crate::wire::{Packets, mqtt_connect, packet, publish, subscribe, text};

/// An attacker, and honest clients of other addresses.
const ATTACKER: [u8; 4] = [127, 0, 0, 1];
const HONEST: [u8; 4] = [127, 0, 0, 2];
const NEWCOMER: [u8; 4] = [127, 0, 0, 3];

/// Limits that follow the ceiling are wide: what is weighed is to be enough. The unoptimised program takes 60 MiB, with the
/// store's caches.
const SETTINGS: &str = "[broker]\nmemory_ceiling = \"176 MiB\"\nmemory_patience_ms = 2000\n\
                        memory_wills_percent = 70\nmemory_subscriptions_percent = 70\n";

/// A connection from an address of this machine.
fn connect_from(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&to.into())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The return code that a client gets; `None` where it is turned away.
fn enter(stream: &mut TcpStream, connect: &[u8]) -> Option<u8> {
    stream.write_all(connect).ok()?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).ok()?;
    Some(answer[3])
}

/// A client that has come in.
fn client(from: [u8; 4], to: SocketAddr, name: &str) -> TcpStream {
    let mut stream = connect_from(from, to).unwrap();
    assert_eq!(
        enter(&mut stream, &mqtt_connect(name, true)),
        Some(0),
        "{name}"
    );
    stream
}

/// One who reads slowly, and one who publishes to it.
struct Honest {
    reader: TcpStream,
    publisher: TcpStream,
    packets: Packets,
    published: u16,
    came: u16,
}

impl Honest {
    fn new(from: [u8; 4], to: SocketAddr) -> Self {
        let mut reader = client(from, to, "honest-reader");
        reader.write_all(&subscribe("honest")).unwrap();
        reader.read_exact(&mut [0; 5]).unwrap();
        reader
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        Self {
            reader,
            publisher: client(from, to, "honest-publisher"),
            packets: Packets::default(),
            published: 0,
            came: 0,
        }
    }

    /// Publishes a message, and awaits that it is acknowledged. Reads what has come.
    fn publish(&mut self) {
        self.published += 1;
        let message = publish("honest", self.published, &[b'h'; 500], false);
        self.publisher.write_all(&message).unwrap();
        let mut answer = [0; 4];
        self.publisher
            .read_exact(&mut answer)
            .expect("it is acknowledged");
        assert_eq!(answer[0], 0x40);
        self.read();
    }

    fn read(&mut self) {
        let packets = self
            .packets
            .read(&mut self.reader)
            .expect("the reader stays");
        for (first, body) in packets {
            if first & 0xf0 == 0x30 {
                self.reader.write_all(&[0x40, 2, body[8], body[9]]).unwrap();
                self.came += 1;
            }
        }
    }

    /// All that was acknowledged comes.
    fn settle(mut self) {
        await_that("all that was acknowledged comes", || {
            self.read();
            self.came >= self.published
        });
    }
}

/// A newcomer that subscribes, and goes.
fn come_and_go(from: [u8; 4], to: SocketAddr, number: usize) {
    let mut stream = client(from, to, &format!("newcomer-{number}"));
    stream
        .write_all(&subscribe(&format!("news/{number}")))
        .unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[4]), (0x90, 1), "its subscription holds");
    stream.write_all(&[0xe0, 0]).unwrap();
}

fn is_ready(broker: &Broker) -> bool {
    broker.get("/readyz") == (200, "ready\n".to_owned())
}

fn entered(broker: &Broker, stage: &str) -> u64 {
    let entered = broker.metric("sterna_memory_stages_entered_total");
    let found = entered.iter().find(|(name, _)| name == stage);
    found.expect("the stage").1
}

/// What attackers do: it returns what they keep open.
type Attack = fn(SocketAddr) -> Vec<TcpStream>;

fn wills(to: SocketAddr) -> Vec<TcpStream> {
    let attempts = (0..1_600).filter_map(|number| {
        let head = [0, 4, b'M', b'Q', b'T', b'T', 4, 0x06, 0, 0];
        let will = [
            &text("will")[..],
            &65_000_u16.to_be_bytes(),
            &vec![b'w'; 65_000],
        ];
        let name = text(&format!("will-{number}"));
        let connect = packet(0x10, &[&head[..], &name, &will.concat()].concat());
        let mut stream = connect_from(ATTACKER, to).ok()?;
        (enter(&mut stream, &connect) == Some(0)).then_some(stream)
    });
    attempts.collect()
}

fn partial_packets(to: SocketAddr) -> Vec<TcpStream> {
    let whole = publish("partial", 1, &vec![b'x'; 30_000], false);
    let attempts = (0..7_000).filter_map(|number| {
        let mut stream = connect_from(ATTACKER, to).ok()?;
        stream
            .set_write_timeout(Some(Duration::from_millis(5)))
            .ok()?;
        let connect = mqtt_connect(&format!("partial-{number}"), true);
        // What is not read is lost, and makes it no lighter.
        if enter(&mut stream, &connect) == Some(0) {
            let _ = stream.write_all(&whole[..16_000]);
        }
        Some(stream)
    });
    attempts.collect()
}

fn sessions(to: SocketAddr) -> Vec<TcpStream> {
    let long = "x".repeat(250);
    for number in 0..200 {
        let Ok(mut stream) = connect_from(ATTACKER, to) else {
            continue;
        };
        let connect = mqtt_connect(&format!("session-{number}"), false);
        if enter(&mut stream, &connect) != Some(0) {
            continue;
        }
        for part in 0..10_usize {
            let filters = (0..100).flat_map(|one| {
                let filter = format!("{number}/{part}/{one}/{long}/+");
                [text(&filter), vec![0]].concat()
            });
            let body: Vec<u8> = [0, 1].into_iter().chain(filters).collect();
            let answered = stream.write_all(&packet(0x82, &body));
            let mut answer = [0; 104];
            if answered
                .and_then(|()| stream.read_exact(&mut answer))
                .is_err()
            {
                break;
            }
        }
    }
    Vec::new()
}

/// Begins an attack that lasts until it is to be over. The second value says whether all has been tried.
fn begin(attack: Attack, to: SocketAddr) -> (JoinHandle<()>, Arc<AtomicBool>, Arc<AtomicBool>) {
    let [is_tried, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (tried, over) = (Arc::clone(&is_tried), Arc::clone(&is_over));
    let thread = thread::spawn(move || {
        let kept = attack(to);
        tried.store(true, Ordering::Relaxed);
        while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        drop(kept);
    });
    (thread, is_tried, is_over)
}

/// Honest clients of other addresses notice nothing of an attack.
fn others_are_served(broker: &Broker, attack: Attack) {
    let to = broker.addresses[MQTT];
    let mut honest = Honest::new(HONEST, to);
    let (thread, is_tried, is_over) = begin(attack, to);
    let mut number = 0;
    while !is_tried.load(Ordering::Relaxed) {
        honest.publish();
        come_and_go(NEWCOMER, to, number);
        number += 1;
    }
    assert!(entered(broker, "pause-publishers") > 0, "memory was short");
    await_that("memory is enough again", || {
        honest.publish();
        come_and_go(NEWCOMER, to, number);
        number += 1;
        is_ready(broker)
    });
    assert_eq!(entered(broker, "refuse-newcomers"), 0);
    is_over.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    honest.settle();
}

#[test]
fn wills_of_one_address_stop_nobody_else() {
    others_are_served(&Broker::start(SETTINGS), wills);
}

#[test]
fn partial_packets_of_one_address_stop_nobody_else() {
    others_are_served(&Broker::start(SETTINGS), partial_packets);
}

/// Also after a restart: who holds a session that is away is known. The store's caches and what the allocator keeps need more
/// room here.
#[test]
fn sessions_of_one_address_stop_nobody_else() {
    let settings = SETTINGS.replace("176 MiB", "256 MiB");
    let patient = settings.replace("patience_ms = 2000", "patience_ms = 600000");
    let mut broker = Broker::start(&patient);
    let to = broker.addresses[MQTT];
    sessions(to);
    assert!(entered(&broker, "move-to-log") > 0, "memory was short");
    let mut honest = Honest::new(HONEST, to);
    honest.publish();
    come_and_go(NEWCOMER, to, 0);
    honest.settle();
    broker.restart(&settings);
    let to = broker.addresses[MQTT];
    let mut honest = Honest::new(HONEST, to);
    let mut number = 1;
    let mut is_enough = || {
        honest.publish();
        come_and_go(NEWCOMER, to, number);
        number += 1;
        // It may be ready for a moment before it looks at its memory.
        broker.number("sterna_sessions_of_heaviest_ended_total") > 0 && is_ready(&broker)
    };
    // Sessions are ended a few at a time.
    let is_ever = await_whether(&mut is_enough) || await_whether(&mut is_enough);
    assert!(
        is_ever,
        "some of the heaviest are ended, and memory is enough"
    );
    honest.settle();
}

/// A fleet may have one address: its heaviest clients go first, and the others stay.
#[test]
fn clients_of_the_same_address_stay_while_the_heaviest_are_ended() {
    for attack in [wills as Attack, partial_packets] {
        let broker = Broker::start(SETTINGS);
        let to = broker.addresses[MQTT];
        let mut honest = Honest::new(ATTACKER, to);
        let (thread, is_tried, is_over) = begin(attack, to);
        while !is_tried.load(Ordering::Relaxed) {
            honest.publish();
        }
        assert!(entered(&broker, "pause-publishers") > 0, "memory was short");
        await_that("memory is enough again", || {
            honest.publish();
            is_ready(&broker)
        });
        come_and_go(ATTACKER, to, 0);
        is_over.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        honest.settle();
    }
}
