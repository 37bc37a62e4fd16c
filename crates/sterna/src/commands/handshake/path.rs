//! A path between the measured client and its broker: forwards, delays and counts.
//!
//! It counts delivered packets. A packet under way at the last acknowledgement is not counted,
//! whichever task of this process ran first. A TCP connection through it stands at once, without
//! the path's delay. So the handshake's packets are counted and its round trip waited for at the
//! start.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket, tcp};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Data in a segment of TCP on a path for Ethernet's packets, with time stamps.
const SEGMENT_BYTES: usize = 1_448;
/// Largest piece that is read at once.
const READ_BYTES: usize = 65_536;

/// For the programs at both ends, besides the path's delay.
const SETTLING: Duration = Duration::from_millis(20);

/// The traffic of the path in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Datagrams, or segments with data and those of the three-way handshake.
    pub(super) packets: u64,
    /// Their payload in bytes.
    pub(super) bytes: u64,
}

impl Count {
    fn add(&mut self, packets: usize, bytes: usize) {
        self.packets += packets as u64;
        self.bytes += bytes as u64;
    }
}

/// Both directions since the last start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// When the client sent its first packet.
    pub(super) started: Option<Instant>,
    pub(super) up: Count,
    pub(super) down: Count,
}

impl Passed {
    fn begin(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }
}

#[derive(Clone, Debug, Default)]
struct Counter(Arc<Mutex<Passed>>);

impl Counter {
    fn with<T>(&self, change: impl FnOnce(&mut Passed) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A path, as long as it exists.
pub(super) struct Path {
    pub(super) address: SocketAddr,
    one_way: Duration,
    passed: Counter,
    tasks: tokio::task::JoinHandle<()>,
}

impl Drop for Path {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

impl Path {
    /// A path for datagrams.
    pub(super) async fn udp(server: SocketAddr, one_way: Duration) -> io::Result<Self> {
        let front = Arc::new(UdpSocket::bind(loopback(server)).await?);
        let address = front.local_addr()?;
        let passed = Counter::default();
        let tasks = tokio::spawn(datagrams(front, server, one_way, passed.clone()));
        Ok(Self {
            address,
            one_way,
            passed,
            tasks,
        })
    }

    /// A path for streams of bytes.
    pub(super) async fn tcp(server: SocketAddr, one_way: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(loopback(server)).await?;
        let address = listener.local_addr()?;
        let passed = Counter::default();
        let counter = passed.clone();
        let tasks = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(client, server, one_way, counter.clone()));
            }
        });
        Ok(Self {
            address,
            one_way,
            passed,
            tasks,
        })
    }

    /// Starts counting anew, when the end of the connection before and the answer to it are through.
    pub(super) async fn start(&self) {
        tokio::time::sleep(2 * self.one_way + SETTLING).await;
        self.take();
    }

    /// The counts since the start.
    pub(super) fn take(&self) -> Passed {
        self.passed.with(std::mem::take)
    }
}

/// A free port on this host, of the server's address family.
fn loopback(server: SocketAddr) -> SocketAddr {
    if server.is_ipv4() {
        SocketAddr::from(([127, 0, 0, 1], 0))
    } else {
        SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0))
    }
}

/// A queue whose contents come out after the path's delay.
type Queue = mpsc::UnboundedSender<(Instant, Vec<u8>)>;

async fn datagrams(front: Arc<UdpSocket>, server: SocketAddr, one_way: Duration, passed: Counter) {
    // One command has a handful of connections.
    let mut clients: HashMap<SocketAddr, Queue> = HashMap::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let Ok((bytes, client)) = front.recv_from(&mut buffer).await else {
            continue;
        };
        passed.with(Passed::begin);
        let datagram = buffer[..bytes].to_vec();
        let up = match clients.get(&client) {
            Some(up) => up,
            None => match datagram_client(&front, client, server, one_way, &passed).await {
                Ok(up) => clients.entry(client).or_insert(up),
                Err(_) => continue,
            },
        };
        let _ = up.send((Instant::now() + one_way, datagram));
    }
}

async fn datagram_client(
    front: &Arc<UdpSocket>,
    client: SocketAddr,
    server: SocketAddr,
    one_way: Duration,
    passed: &Counter,
) -> io::Result<Queue> {
    let any = if server.is_ipv4() {
        SocketAddr::from(([0, 0, 0, 0], 0))
    } else {
        SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0))
    };
    let back = Arc::new(UdpSocket::bind(any).await?);
    back.connect(server).await?;
    let (up, mut to_server) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let (down, mut to_client) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn({
        let (back, passed) = (Arc::clone(&back), passed.clone());
        async move {
            while let Some((due, datagram)) = to_server.recv().await {
                tokio::time::sleep_until(due).await;
                passed.with(|passed| passed.up.add(1, datagram.len()));
                let _ = back.send(&datagram).await;
            }
        }
    });
    tokio::spawn({
        let (front, passed) = (Arc::clone(front), passed.clone());
        async move {
            while let Some((due, datagram)) = to_client.recv().await {
                tokio::time::sleep_until(due).await;
                passed.with(|passed| passed.down.add(1, datagram.len()));
                let _ = front.send_to(&datagram, client).await;
            }
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; READ_BYTES];
        while !down.is_closed() {
            if let Ok(bytes) = back.recv(&mut buffer).await {
                let _ = down.send((Instant::now() + one_way, buffer[..bytes].to_vec()));
            }
        }
    });
    Ok(up)
}

async fn connection(client: TcpStream, server: SocketAddr, one_way: Duration, passed: Counter) {
    passed.with(|passed| {
        passed.begin();
        // SYN and its acknowledgement; the third one goes with the first data.
        passed.up.add(1, 0);
        passed.down.add(1, 0);
    });
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // The client's first data would leave when the SYN has been to the server and back.
    let stands = Instant::now() + 2 * one_way;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = passed.clone();
    tokio::spawn(pipe(
        from_client,
        to_server,
        stands,
        one_way,
        move |bytes| {
            up.with(|passed| passed.up.add(bytes.div_ceil(SEGMENT_BYTES), bytes));
        },
    ));
    pipe(from_server, to_client, stands, one_way, move |bytes| {
        passed.with(|passed| passed.down.add(bytes.div_ceil(SEGMENT_BYTES), bytes));
    })
    .await;
}

/// Forwards one direction: what comes in is read at once, or when the connection stands, and is
/// written after the delay. `delivered` is told how much.
async fn pipe(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    stands: Instant,
    one_way: Duration,
    delivered: impl Fn(usize) + Send + 'static,
) {
    let (sender, mut queue) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = queue.recv().await {
            tokio::time::sleep_until(due).await;
            delivered(bytes.len());
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        let due = Instant::now().max(stands) + one_way;
        if sender.send((due, buffer[..bytes].to_vec())).is_err() {
            return;
        }
    }
}
