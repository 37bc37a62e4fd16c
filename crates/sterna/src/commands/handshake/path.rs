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
    /// The trips, one behind the other, of which the last is that of a packet here. A packet begins the trip behind that of
    /// the packets which its sender had by then. So the number knows no time.
    pub(super) trips: u32,
}

impl Count {
    fn add(&mut self, packets: usize, bytes: usize, trip: u32) {
        self.packets += packets as u64;
        self.bytes += bytes as u64;
        self.trips = self.trips.max(trip);
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

    /// The trip of a packet that the client sends now.
    const fn trip_up(&self) -> u32 {
        self.down.trips + 1
    }

    /// The trip of a packet that the broker sends now.
    const fn trip_down(&self) -> u32 {
        self.up.trips + 1
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
type Queue = mpsc::UnboundedSender<UnderWay>;

/// Bytes under way: when they come out, and on which trip they are.
type UnderWay = (Instant, Vec<u8>, u32);

async fn datagrams(front: Arc<UdpSocket>, server: SocketAddr, one_way: Duration, passed: Counter) {
    // One command has a handful of connections.
    let mut clients: HashMap<SocketAddr, Queue> = HashMap::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let Ok((bytes, client)) = front.recv_from(&mut buffer).await else {
            continue;
        };
        let trip = passed.with(|passed| {
            passed.begin();
            passed.trip_up()
        });
        let datagram = buffer[..bytes].to_vec();
        let up = match clients.get(&client) {
            Some(up) => up,
            None => match datagram_client(&front, client, server, one_way, &passed).await {
                Ok(up) => clients.entry(client).or_insert(up),
                Err(_) => continue,
            },
        };
        let _ = up.send((Instant::now() + one_way, datagram, trip));
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
    let (up, mut to_server) = mpsc::unbounded_channel::<UnderWay>();
    let (down, mut to_client) = mpsc::unbounded_channel::<UnderWay>();
    tokio::spawn({
        let (back, passed) = (Arc::clone(&back), passed.clone());
        async move {
            while let Some((due, datagram, trip)) = to_server.recv().await {
                tokio::time::sleep_until(due).await;
                passed.with(|passed| passed.up.add(1, datagram.len(), trip));
                let _ = back.send(&datagram).await;
            }
        }
    });
    tokio::spawn({
        let (front, passed) = (Arc::clone(front), passed.clone());
        async move {
            while let Some((due, datagram, trip)) = to_client.recv().await {
                tokio::time::sleep_until(due).await;
                passed.with(|passed| passed.down.add(1, datagram.len(), trip));
                let _ = front.send_to(&datagram, client).await;
            }
        }
    });
    let passed = passed.clone();
    tokio::spawn(async move {
        let mut buffer = vec![0; READ_BYTES];
        while !down.is_closed() {
            if let Ok(bytes) = back.recv(&mut buffer).await {
                let trip = passed.with(|passed| passed.trip_down());
                let datagram = buffer[..bytes].to_vec();
                let _ = down.send((Instant::now() + one_way, datagram, trip));
            }
        }
    });
    Ok(up)
}

async fn connection(client: TcpStream, server: SocketAddr, one_way: Duration, passed: Counter) {
    passed.with(|passed| {
        passed.begin();
        // SYN and its acknowledgement; the third one goes with the first data.
        passed.up.add(1, 0, 1);
        passed.down.add(1, 0, 2);
    });
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // The client's first data would leave when the SYN has been to the server and back.
    let stands = Instant::now() + 2 * one_way;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (of_up, of_down) = (passed.clone(), passed.clone());
    tokio::spawn(pipe(
        (from_client, to_server),
        (stands, one_way),
        move || of_up.with(|passed| passed.trip_up()),
        {
            let passed = passed.clone();
            move |bytes, trip| {
                let packets = bytes.div_ceil(SEGMENT_BYTES);
                passed.with(|passed| passed.up.add(packets, bytes, trip));
            }
        },
    ));
    pipe(
        (from_server, to_client),
        (stands, one_way),
        move || of_down.with(|passed| passed.trip_down()),
        move |bytes, trip| {
            let packets = bytes.div_ceil(SEGMENT_BYTES);
            passed.with(|passed| passed.down.add(packets, bytes, trip));
        },
    )
    .await;
}

/// Forwards one direction: what comes in is read at once, or when the connection stands, and is
/// written after the delay. `trip` says on which trip something leaves, and `delivered` is told how much came of it.
async fn pipe(
    (mut from, mut to): (tcp::OwnedReadHalf, tcp::OwnedWriteHalf),
    (stands, one_way): (Instant, Duration),
    trip: impl Fn() -> u32 + Send + 'static,
    delivered: impl Fn(usize, u32) + Send + 'static,
) {
    let (sender, mut queue) = mpsc::unbounded_channel::<UnderWay>();
    tokio::spawn(async move {
        while let Some((due, bytes, trip)) = queue.recv().await {
            tokio::time::sleep_until(due).await;
            delivered(bytes.len(), trip);
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
        let due = Instant::now().max(stands) + one_way;
        if sender
            .send((due, buffer[..bytes].to_vec(), trip()))
            .is_err()
        {
            return;
        }
    }
}
