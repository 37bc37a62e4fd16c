//! The memory of a real process: its account against the system's, and an attack by anonymous clients within
//! every documented limit.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest that anything awaited may take.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A broker as a process of its own; ended when dropped.
struct Broker {
    child: Child,
    addresses: Vec<SocketAddr>,
    _folder: tempfile::TempDir,
}

const MQTT: usize = 0;
const AMQP: usize = 1;
const HTTP: usize = 2;
const ADMIN: usize = 3;

impl Broker {
    fn start(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sterna.toml");
        let listeners = ["mqtt", "amqp", "http", "admin"];
        let listeners = listeners.map(|it| format!("[[listener]]\nurl = \"{it}://127.0.0.1:0\"\n"));
        let text = format!(
            "shards = 2\n{}\n[authorization]\nadmins = [\"anonymous\"]\n{settings}",
            listeners.concat()
        );
        fs::write(&config, text).unwrap();
        let ready = folder.path().join("ready.json");
        let mut command = Command::new(env!("CARGO_BIN_EXE_sterna"));
        command.arg("serve").arg("--config").arg(&config);
        command.arg("--data-dir").arg(folder.path().join("data"));
        command
            .arg("--ready-file")
            .arg(&ready)
            .args(["--log-level", "error"]);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut broker = Self {
            child,
            addresses: Vec::new(),
            _folder: folder,
        };
        await_that("the broker is ready", || ready.is_file());
        let ready = fs::read_to_string(&ready).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
        let urls = ready["listeners"].as_array().unwrap().iter();
        broker.addresses = urls
            .map(|listener| {
                let url = listener["url"].as_str().unwrap();
                let (_, port) = url.rsplit_once(':').unwrap();
                let port: String = port.chars().take_while(char::is_ascii_digit).collect();
                SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()))
            })
            .collect();
        broker
    }

    /// A connection whose reads and writes give up after a while.
    fn connect(&self, listener: usize) -> std::io::Result<TcpStream> {
        connect(self.addresses[listener])
    }

    fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.unwrap().trim().strip_suffix("kB").unwrap().trim();
        kib.parse::<u64>().unwrap() * 1024
    }

    /// Status and content of the answer to a GET.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = self.connect(ADMIN).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, content) = answer.split_once("\r\n\r\n").unwrap();
        (
            head.split(' ').nth(1).unwrap().parse().unwrap(),
            content.to_owned(),
        )
    }

    /// Numbers of a metric, by the value of its one label.
    fn metric(&self, name: &str) -> Vec<(String, u64)> {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, 200);
        let samples = page.lines().filter_map(|line| {
            let (label, number) = line
                .strip_prefix(name)?
                .strip_prefix('{')?
                .split_once("\"} ")?;
            let (_, label) = label.split_once("=\"")?;
            Some((label.to_owned(), number.parse().ok()?))
        });
        samples.collect()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[track_caller]
fn await_that(what: &str, is_so: impl FnMut() -> bool) {
    assert!(await_whether(is_so), "{what}: not within {PATIENCE:?}");
}

/// Whether it becomes so in time.
fn await_whether(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}

// MQTT 3.1.1, as far as it is needed.

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    let mut rest = body.len();
    loop {
        let more = rest > 127;
        packet.push((rest & 127) as u8 | (u8::from(more) << 7));
        rest >>= 7;
        if !more {
            break;
        }
    }
    packet.extend_from_slice(body);
    packet
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn mqtt_connect(client_id: &str, clean: bool) -> Vec<u8> {
    let head = [0, 4, b'M', b'Q', b'T', b'T', 4, u8::from(clean) << 1, 0, 0];
    packet(0x10, &[&head[..], &text(client_id)].concat())
}

fn subscribe(filter: &str) -> Vec<u8> {
    packet(0x82, &[&[0, 1], &text(filter)[..], &[1]].concat())
}

fn publish(topic: &str, id: u16, payload: &[u8], retain: bool) -> Vec<u8> {
    let topic = text(topic);
    let first = 0x32 | u8::from(retain);
    packet(first, &[&topic[..], &id.to_be_bytes(), payload].concat())
}

/// Whole packets: their first bytes and bodies.
#[derive(Default)]
struct Packets(Vec<u8>);

impl Packets {
    /// Reads what has come; `None` at the end of the stream.
    fn read(&mut self, stream: &mut TcpStream) -> Option<Vec<(u8, Vec<u8>)>> {
        let mut buffer = [0; 16_384];
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => self.0.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
        let mut packets = Vec::new();
        let mut at = 0;
        while let Some((length, head)) = self.length(at) {
            let end = at + head + length;
            if end > self.0.len() {
                break;
            }
            packets.push((self.0[at], self.0[at + head..end].to_vec()));
            at = end;
        }
        self.0.drain(..at);
        Some(packets)
    }

    /// Length of the body of the packet that begins here, and of its head.
    fn length(&self, at: usize) -> Option<(usize, usize)> {
        let mut length = 0;
        for index in 0..4 {
            let byte = *self.0.get(at + 1 + index)?;
            length |= usize::from(byte & 127) << (7 * index);
            if byte & 128 == 0 {
                return Some((length, index + 2));
            }
        }
        None
    }
}

/// A client that is connected.
fn client(broker: &Broker, client_id: &str, clean: bool) -> TcpStream {
    let mut stream = broker.connect(MQTT).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&mqtt_connect(client_id, clean)).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[3]), (0x20, 0), "{answer:?}");
    stream
}

/// Publishes, and awaits the acknowledgements of all.
fn publish_all(
    stream: &mut TcpStream,
    messages: impl Iterator<Item = (String, Vec<u8>)>,
    retain: bool,
) {
    let (mut packets, mut open) = (Packets::default(), 0_usize);
    let mut settle = |stream: &mut TcpStream, open: &mut usize, most: usize| {
        while *open > most {
            *open -= packets.read(stream).expect("the broker reads on").len();
        }
    };
    for (number, (topic, payload)) in messages.enumerate() {
        let id = (number % 60_000) as u16 + 1;
        stream
            .write_all(&publish(&topic, id, &payload, retain))
            .unwrap();
        open += 1;
        if open >= 200 {
            settle(stream, &mut open, 100);
        }
    }
    settle(stream, &mut open, 0);
}

/// The account without the program itself, by kind.
fn accounted_kinds(broker: &Broker) -> Vec<(String, u64)> {
    let kinds = broker.metric("sterna_memory_bytes").into_iter();
    kinds
        .filter(|(kind, _)| kind != "program" && kind != "unaccounted")
        .collect()
}

/// The account's sum, without the program itself, is what a load has made resident, within a tenth.
#[test]
fn the_account_is_what_a_load_makes_resident() {
    let broker = Broker::start("[broker]\nmemory_ceiling = \"8 GiB\"\n");
    // What is made once, whatever the load.
    drop(client(&broker, "first", true));
    let _ = broker.get("/metrics");
    let before_bytes = broker.resident_bytes();
    let sum = |kinds: &[(String, u64)]| kinds.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let accounted_before = sum(&accounted_kinds(&broker));
    let mut streams = Vec::new();
    // Readers that never acknowledge, each with a queue of its own.
    for reader in 0..60 {
        let mut stream = client(&broker, &format!("reader-{reader}"), true);
        stream
            .write_all(&subscribe(&format!("load/{reader}")))
            .unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        streams.push(stream);
    }
    let mut publisher = client(&broker, "publisher", true);
    let messages = (0..60_000).map(|n| {
        let bytes = if n % 2 == 0 { 200 } else { 1_200 };
        (format!("load/{}", n % 60), vec![b'x'; bytes])
    });
    publish_all(&mut publisher, messages, false);
    let retained = (0..30_000).map(|n| (format!("kept/{n}/state"), vec![b'r'; 100]));
    publish_all(&mut publisher, retained, true);
    for n in 0..2_000 {
        let mut stream = client(&broker, &format!("session-{n}"), true);
        for filter in 0..3 {
            stream
                .write_all(&subscribe(&format!("device/{n}/{filter}/+")))
                .unwrap();
            stream.read_exact(&mut [0; 5]).unwrap();
        }
        streams.push(stream);
    }
    for n in 0..30 {
        let mut stream = client(&broker, &format!("partial-{n}"), true);
        let whole = publish("partial", 1, &vec![b'p'; 2_000_000], false);
        stream.write_all(&whole[..1_000_000]).unwrap();
        streams.push(stream);
    }
    for n in 0..10 {
        let mut stream = broker.connect(AMQP).unwrap();
        stream
            .write_all(&amqp_sender(&format!("transfer-{n}")))
            .unwrap();
        for part in 0..16 {
            stream.write_all(&amqp_transfer(part == 0, 30_000)).unwrap();
        }
        streams.push(stream);
        let mut stream = broker.connect(HTTP).unwrap();
        stream.write_all(POST.as_bytes()).unwrap();
        stream.write_all(&vec![b'x'; 500_000]).unwrap();
        streams.push(stream);
    }
    await_that("the account has come to rest", || {
        let sums = [(); 2].map(|()| {
            thread::sleep(Duration::from_millis(600));
            sum(&accounted_kinds(&broker))
        });
        sums[0].abs_diff(sums[1]) < MIB
    });
    let kinds = accounted_kinds(&broker);
    let accounted = sum(&kinds) - accounted_before;
    let resident = broker.resident_bytes() - before_bytes;
    println!("resident {resident}, accounted {accounted}: {kinds:?}");
    assert!(resident > 100 * MIB, "{resident} bytes are no load");
    let (_, partial) = kinds.iter().find(|(kind, _)| kind == "partial").unwrap();
    let parts = 30 * 1_000_000 + 10 * (16 * 30_000 + 500_000) - 1_000_000;
    assert!(*partial >= parts, "{partial} of all doors");
    let error = resident.abs_diff(accounted);
    assert!(
        error <= resident / 10,
        "{accounted} accounted of {resident}: {kinds:?}"
    );
    // And it is given back.
    drop(streams);
    await_that("nothing has partly arrived, and nothing waits", || {
        let kinds = accounted_kinds(&broker).into_iter();
        let mut of_peers =
            kinds.filter(|(kind, _)| ["partial", "queues", "send"].contains(&&**kind));
        of_peers.all(|(_, bytes)| bytes == 0)
    });
}

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

/// The head of a request whose content comes in parts.
const POST: &str =
    "POST /v1/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n";

// AMQP, as far as it is needed: open, begin, attach of a sender, and parts of one message.

fn frame(channel: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = (8 + body.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&[2, 0]);
    frame.extend_from_slice(&channel.to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// A performative: its code, and its fields, encoded.
fn performative(code: u8, fields: &[&[u8]]) -> Vec<u8> {
    let content = fields.concat();
    let mut bytes = vec![0, 0x53, code, 0xd0];
    bytes.extend_from_slice(&(4 + content.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&(fields.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&content);
    bytes
}

fn amqp_text(text: &str) -> Vec<u8> {
    let mut bytes = vec![0xa1, text.len() as u8];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

const NULL: &[u8] = &[0x40];
const ZERO: &[u8] = &[0x43];

fn amqp_sender(container: &str) -> Vec<u8> {
    let open = performative(0x10, &[&amqp_text(container)]);
    let window = [&[0x70][..], &1_000_000_u32.to_be_bytes()].concat();
    let begin = performative(0x11, &[NULL, ZERO, &window, &window]);
    let target = performative(0x29, &[&amqp_text("t")]);
    let source = performative(0x28, &[]);
    let attach = performative(
        0x12,
        &[
            &amqp_text("l"),
            ZERO,
            &[0x42],
            NULL,
            NULL,
            &source,
            &target,
            NULL,
            NULL,
            ZERO,
        ],
    );
    [
        &b"AMQP\0\x01\0\0"[..],
        &frame(0, &open),
        &frame(0, &begin),
        &frame(0, &attach),
    ]
    .concat()
}

/// A part of a message, of which more is to come.
fn amqp_transfer(is_first: bool, bytes: usize) -> Vec<u8> {
    let (delivery, tag): (&[u8], &[u8]) = if is_first {
        (ZERO, &[0xa0, 1, 1])
    } else {
        (NULL, NULL)
    };
    let format: &[u8] = if is_first { ZERO } else { NULL };
    let mut body = performative(0x14, &[ZERO, delivery, tag, format, &[0x42], &[0x41]]);
    if is_first {
        body.extend_from_slice(&[0, 0x53, 0x75, 0xb0]);
        body.extend_from_slice(&20_000_000_u32.to_be_bytes());
    }
    body.resize(body.len() + bytes, b'x');
    frame(0, &body)
}

/// They stay when their publisher goes, and after a restart: without a bound below the first stage's beginning,
/// nobody could publish any more.
#[test]
fn retained_messages_leave_memory_for_what_others_publish() {
    let broker = Broker::start("[broker]\nmemory_ceiling = \"256 MiB\"\n");
    let mut keeper = client(&broker, "keeper", true);
    keeper.set_write_timeout(Some(PATIENCE)).unwrap();
    let messages = (0..1_200).map(|number| (format!("keep/{number}"), vec![b'r'; 200_000]));
    publish_all(&mut keeper, messages, true);
    await_that("no stage is left", || {
        broker.get("/readyz") == (200, "ready\n".to_owned())
    });
    let mut other = client(&broker, "other", true);
    let messages = (0..10).map(|number| (format!("other/{number}"), vec![b'x'; 1_000]));
    publish_all(&mut other, messages, false);
}

/// The ceiling of the attacked broker. The unoptimised program alone takes 46 MiB of it, and the store's caches 16: stages
/// that end at 65 % must leave room for retained messages that stay, and for gaps between them.
const CEILING_BYTES: u64 = 160 * MIB;
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
