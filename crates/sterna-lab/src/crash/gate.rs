//! A gate between one client and the broker: the way by which a client is away although it does not know.
//!
//! Bytes and datagrams pass unchanged. While the gate is shut, connections break and datagrams are dropped. It
//! stands through all lives of the broker, so a client always has the same address to go to. Behind all gates is
//! one line, which can be cut.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Most flows of one client; the oldest make room.
const MAX_FLOWS: usize = 64;
/// Largest datagram.
const DATAGRAM_BYTES: usize = 65_536;

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
        is_udp: bool,
        line: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let (is_open, gate) = watch::channel(true);
        let way = Way { gate, line };
        let mut tasks = JoinSet::new();
        let place = (Ipv4Addr::LOCALHOST, 0);
        let address = if is_udp {
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
    line: watch::Receiver<bool>,
}

impl Way {
    fn is_open(&self) -> bool {
        *self.gate.borrow() && *self.line.borrow()
    }

    /// Waits until it is not open, or nobody can open it any more.
    async fn ends(&mut self) {
        tokio::select! {
            _ = self.gate.wait_for(|is_open| !*is_open) => {}
            _ = self.line.wait_for(|is_whole| !*is_whole) => {}
        }
    }
}

async fn pass_connections(listener: TcpListener, target: SocketAddr, way: Way) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of descriptors: others may give some back.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        if way.is_open() {
            connections.spawn(pass_bytes(client, target, way.clone()));
        }
    }
}

/// Passes bytes until one end is gone or the gate is shut. Then both ends are.
async fn pass_bytes(mut client: TcpStream, target: SocketAddr, mut way: Way) {
    let Ok(mut broker) = TcpStream::connect(target).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = broker.set_nodelay(true);
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut broker) => {}
        () = way.ends() => {}
    }
}

async fn pass_datagrams(socket: Arc<UdpSocket>, target: SocketAddr, way: Way) {
    let mut flows: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut order = Vec::new();
    let mut answers: JoinSet<()> = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        if !way.is_open() {
            continue;
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
            ));
            flows.insert(client, flow);
        }
        if let Some(flow) = flows.get(&client) {
            // Nobody may be listening, and datagrams may be lost.
            let _ = flow.send(&buffer[..length]).await;
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
) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    while let Some(open) = flow.upgrade() {
        let wait = std::time::Duration::from_secs(1);
        match tokio::time::timeout(wait, open.recv(&mut buffer)).await {
            Ok(Ok(length)) if way.is_open() => {
                let _ = socket.send_to(&buffer[..length], client).await;
            }
            // Shut; or nobody listens; or nothing came.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
            let line = watch::Sender::new(true);
            let gate = Gate::build(target, false, line.subscribe()).await.unwrap();
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
            line.send_replace(false);
            assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
        });
    }

    #[test]
    fn datagrams_pass_both_ways_while_the_gate_is_open() {
        run(async {
            let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let target = server.local_addr().unwrap();
            let line = watch::Sender::new(true);
            let gate = Gate::build(target, true, line.subscribe()).await.unwrap();
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
}
