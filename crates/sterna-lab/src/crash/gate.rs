//! A gate between one client and the broker: the way by which a client is away although it does not know.
//!
//! While the gate is shut, connections break and datagrams are dropped. It stands through all lives of the broker, so a
//! client always has the same address to go to. Over all gates is one [`Weather`]: while that is clear, bytes and
//! datagrams pass unchanged.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::weather::{Weather, flip};
use crate::link::Random;

/// Most flows of one client; the oldest make room.
const MAX_FLOWS: usize = 64;
/// Largest datagram.
const DATAGRAM_BYTES: usize = 65_536;
/// Bytes of a stream that pass at once.
const PIECE_BYTES: usize = 8_192;
/// Bound of the delay of bytes and datagrams in [`Weather::Disturbed`], in milliseconds.
const LATE_MS: u64 = 40;
/// The time that the broker keeps the other half of a half-open connection after that weather.
const HALF_OPEN: Duration = Duration::from_millis(1_500);

/// The carrier of the listener behind a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Nothing notices a changed byte.
    Tcp,
    Tls,
    Udp,
}

/// A gate, open at first. It stands until it is dropped.
#[derive(Debug)]
pub(super) struct Gate {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Gate {
    /// Builds a gate before a listener of the broker.
    pub(super) async fn build(
        target: SocketAddr,
        carrier: Carrier,
        weather: watch::Receiver<Weather>,
        seed: u64,
    ) -> io::Result<Self> {
        let (is_open, gate) = watch::channel(true);
        let way = Way {
            gate,
            weather,
            carrier,
            seed,
        };
        let mut tasks = JoinSet::new();
        let place = (Ipv4Addr::LOCALHOST, 0);
        let address = if carrier == Carrier::Udp {
            let socket = Arc::new(UdpSocket::bind(place).await?);
            let address = socket.local_addr()?;
            tasks.spawn(pass_datagrams(socket, target, way));
            address
        } else {
            let listener = TcpListener::bind(place).await?;
            let address = listener.local_addr()?;
            tasks.spawn(pass_connections(listener, target, way));
            address
        };
        Ok(Self {
            address,
            is_open,
            _tasks: tasks,
        })
    }

    /// Where the client connects to.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }

    pub(super) fn shut(&self) {
        self.is_open.send_replace(false);
    }
}

/// The way through a gate.
#[derive(Clone)]
struct Way {
    gate: watch::Receiver<bool>,
    weather: watch::Receiver<Weather>,
    carrier: Carrier,
    seed: u64,
}

impl Way {
    fn weather(&self) -> Weather {
        *self.weather.borrow()
    }

    fn is_open(&self) -> bool {
        *self.gate.borrow() && self.weather() != Weather::Cut
    }

    /// Waits until it is not open, or nobody can open it any more.
    async fn ends(&mut self) {
        tokio::select! {
            _ = self.gate.wait_for(|is_open| !*is_open) => {}
            _ = self.weather.wait_for(|weather| *weather == Weather::Cut) => {}
        }
    }

    /// Waits for a weather; for ever where nobody makes it any more.
    async fn until(&mut self, is_it: impl FnMut(&Weather) -> bool) {
        if self.weather.wait_for(is_it).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The fate of a datagram: the number of its copies that pass, and their delay in milliseconds. The
    /// datagram may be changed.
    fn fate(&self, random: &mut Random, is_answer: bool, datagram: &mut [u8]) -> (usize, u64) {
        match self.weather() {
            Weather::Clear | Weather::Moved(_) => (1, 0),
            Weather::Cut | Weather::Partition => (0, 0),
            Weather::HalfOpen => (usize::from(!is_answer), 0),
            Weather::Disturbed => {
                if random.happens(0.03) {
                    flip(random, datagram);
                }
                let copies = match random.next_u64() % 20 {
                    0 => 0,
                    1 => 2,
                    _ => 1,
                };
                let late_ms = random.next_u64() % LATE_MS;
                (copies, if random.happens(0.2) { late_ms } else { 0 })
            }
        }
    }
}

async fn pass_connections(listener: TcpListener, target: SocketAddr, way: Way) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors: others may give some back.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if way.is_open() {
            connections.spawn(pass_bytes(client, target, way.clone()));
        }
    }
}

/// Passes bytes until one end is gone or the gate is shut. Then both ends are, unless the weather leaves one.
async fn pass_bytes(mut client: TcpStream, target: SocketAddr, mut way: Way) {
    let Ok(mut broker) = TcpStream::connect(target).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = broker.set_nodelay(true);
    let port = client.peer_addr().map_or(0, |peer| u64::from(peer.port()));
    let seeds = [0, 1].map(|way_back| Random::new(&[way.seed, port, way_back]));
    let is_half_open = {
        let (from_client, to_client) = client.split();
        let (from_broker, to_broker) = broker.split();
        let [there, back] = seeds;
        let (mut half, along, against) = (way.clone(), way.clone(), way.clone());
        let both = async {
            tokio::try_join!(
                pass_one_way(from_client, to_broker, along, there),
                pass_one_way(from_broker, to_client, against, back),
            )
        };
        tokio::select! {
            _ = both => false,
            () = way.ends() => false,
            () = half.until(|weather| *weather == Weather::HalfOpen) => true,
        }
    };
    drop(client);
    if is_half_open {
        way.until(|weather| *weather != Weather::HalfOpen).await;
        tokio::time::sleep(HALF_OPEN).await;
    }
}

/// Passes bytes one way until they end.
async fn pass_one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: Way,
    mut random: Random,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let piece = &mut buffer[..length];
        if way.weather() == Weather::Disturbed {
            if random.happens(0.2) {
                let late = Duration::from_millis(random.next_u64() % LATE_MS);
                tokio::time::sleep(late).await;
            }
            if way.carrier == Carrier::Tls && random.happens(0.02) {
                flip(&mut random, piece);
            }
        }
        way.until(|weather| *weather != Weather::Partition).await;
        to.write_all(piece).await?;
    }
}

async fn pass_datagrams(socket: Arc<UdpSocket>, target: SocketAddr, way: Way) {
    let mut flows: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut order = Vec::new();
    let mut answers: JoinSet<()> = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let mut random = Random::new(&[way.seed]);
    let mut moves = 0;
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        if !way.is_open() {
            continue;
        }
        if let Weather::Moved(number) = way.weather()
            && number != moves
        {
            moves = number;
            flows.clear();
            order.clear();
        }
        if !flows.contains_key(&client) {
            let Ok(flow) = connect(target).await else {
                continue;
            };
            if order.len() == MAX_FLOWS {
                flows.remove(&order.remove(0));
            }
            order.push(client);
            let flow = Arc::new(flow);
            answers.spawn(pass_answers(
                Arc::downgrade(&flow),
                Arc::clone(&socket),
                client,
                way.clone(),
                Random::new(&[way.seed, random.next_u64()]),
            ));
            flows.insert(client, flow);
        }
        if let Some(flow) = flows.get(&client) {
            let datagram = &mut buffer[..length];
            let (copies, late_ms) = way.fate(&mut random, false, datagram);
            // Nobody may be listening, and datagrams may be lost.
            if late_ms > 0 && copies > 0 {
                let (flow, late) = (Arc::clone(flow), datagram.to_vec());
                answers.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(late_ms)).await;
                    let _ = flow.send(&late).await;
                });
            } else {
                for _ in 0..copies {
                    let _ = flow.send(datagram).await;
                }
            }
        }
        while answers.try_join_next().is_some() {}
    }
}

async fn connect(target: SocketAddr) -> io::Result<UdpSocket> {
    let flow = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    flow.connect(target).await?;
    Ok(flow)
}

/// Passes what the broker sends to a client, until the flow has made room for another.
async fn pass_answers(
    flow: std::sync::Weak<UdpSocket>,
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    way: Way,
    mut random: Random,
) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    while let Some(open) = flow.upgrade() {
        let wait = Duration::from_secs(1);
        match tokio::time::timeout(wait, open.recv(&mut buffer)).await {
            Ok(Ok(length)) if way.is_open() => {
                let datagram = &mut buffer[..length];
                let (copies, late_ms) = way.fate(&mut random, true, datagram);
                if late_ms > 0 {
                    // Those behind it wait as well; the other way has it out of order.
                    tokio::time::sleep(Duration::from_millis(late_ms / 8)).await;
                }
                for _ in 0..copies {
                    let _ = socket.send_to(datagram, client).await;
                }
            }
            // Shut; or nobody listens; or nothing came.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.map_or_else(|error| panic!("{error}"), |runtime| runtime.block_on(test));
    }

    #[test]
    fn a_shut_gate_ends_connections_and_takes_new_ones_when_it_opens() {
        run(async {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = server.local_addr().unwrap();
            let weather = watch::Sender::new(Weather::Clear);
            let gate = Gate::build(target, Carrier::Tcp, weather.subscribe(), 1);
            let gate = gate.await.unwrap();
            let mut client = TcpStream::connect(gate.address()).await.unwrap();
            client.write_all(b"x").await.unwrap();
            let (mut accepted, _) = server.accept().await.unwrap();
            assert_eq!(accepted.read_u8().await.unwrap(), b'x');
            gate.shut();
            assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
            let mut refused = TcpStream::connect(gate.address()).await.unwrap();
            assert!(matches!(refused.read(&mut [0]).await, Ok(0) | Err(_)));
            gate.open();
            let _client = TcpStream::connect(gate.address()).await.unwrap();
            let (mut accepted, _) = server.accept().await.unwrap();
            weather.send_replace(Weather::Cut);
            assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
        });
    }

    #[test]
    fn datagrams_pass_both_ways_while_the_gate_is_open() {
        run(async {
            let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let target = server.local_addr().unwrap();
            let weather = watch::Sender::new(Weather::Clear);
            let gate = Gate::build(target, Carrier::Udp, weather.subscribe(), 1);
            let gate = gate.await.unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let mut buffer = [0; 8];
            client.send_to(b"1", gate.address()).await.unwrap();
            let (_, flow) = server.recv_from(&mut buffer).await.unwrap();
            server.send_to(b"2", flow).await.unwrap();
            assert_eq!(client.recv(&mut buffer).await.unwrap(), 1);
            assert_eq!(buffer[0], b'2');
            gate.shut();
            client.send_to(b"3", gate.address()).await.unwrap();
            // The gate drops it when its task runs, which is before anything else is ready.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let silence = Duration::from_millis(50);
            let nothing = tokio::time::timeout(silence, server.recv(&mut buffer)).await;
            assert!(nothing.is_err());
            gate.open();
            client.send_to(b"4", gate.address()).await.unwrap();
            server.recv_from(&mut buffer).await.unwrap();
            assert_eq!(buffer[0], b'4');
        });
    }

    #[test]
    fn a_half_open_connection_is_gone_for_the_client_alone_and_a_partition_for_nobody() {
        run(async {
            let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = server.local_addr().unwrap();
            let weather = watch::Sender::new(Weather::Clear);
            let gate = Gate::build(target, Carrier::Tcp, weather.subscribe(), 1);
            let gate = gate.await.unwrap();
            let mut client = TcpStream::connect(gate.address()).await.unwrap();
            let (mut accepted, _) = server.accept().await.unwrap();
            weather.send_replace(Weather::Partition);
            client.write_all(b"x").await.unwrap();
            let silence = Duration::from_millis(50);
            let nothing = tokio::time::timeout(silence, accepted.read_u8()).await;
            assert!(nothing.is_err());
            weather.send_replace(Weather::Clear);
            assert_eq!(accepted.read_u8().await.unwrap(), b'x');
            weather.send_replace(Weather::HalfOpen);
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
            let nothing = tokio::time::timeout(silence, accepted.read_u8()).await;
            assert!(nothing.is_err(), "the broker hears nothing of it");
        });
    }

    #[test]
    fn datagrams_come_from_another_address_after_a_move() {
        run(async {
            let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let target = server.local_addr().unwrap();
            let weather = watch::Sender::new(Weather::Clear);
            let gate = Gate::build(target, Carrier::Udp, weather.subscribe(), 1);
            let gate = gate.await.unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let mut buffer = [0; 8];
            client.send_to(b"1", gate.address()).await.unwrap();
            let (_, before) = server.recv_from(&mut buffer).await.unwrap();
            weather.send_replace(Weather::Moved(1));
            client.send_to(b"2", gate.address()).await.unwrap();
            let (_, after) = server.recv_from(&mut buffer).await.unwrap();
            assert_ne!(before, after);
            server.send_to(b"3", after).await.unwrap();
            client.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[0], b'3');
        });
    }
}
