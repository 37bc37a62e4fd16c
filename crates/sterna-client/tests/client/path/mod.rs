//! A path between client and server: forwards datagrams, delays them, limits their rate, counts.
#![allow(clippy::unwrap_used, dead_code)] // it is all test, and each test file uses a part

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What a path does to datagrams, each way.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) delay: Duration,
    /// Bytes a second; no limit when none.
    pub(crate) rate: Option<u32>,
    /// Bytes that wait for a slow line; more are dropped.
    pub(crate) queue_bytes: u32,
    /// Every n-th datagram is lost; none when 0.
    pub(crate) lose_every: u32,
}

impl Line {
    pub(crate) fn delayed_ms(delay_ms: u64) -> Self {
        Self {
            delay: Duration::from_millis(delay_ms),
            rate: None,
            queue_bytes: u32::MAX,
            lose_every: 0,
        }
    }
}

/// A datagram that came by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) up: bool,
    pub(crate) at: Instant,
    pub(crate) bytes: usize,
    /// The client's address.
    pub(crate) client: SocketAddr,
}

pub(crate) struct Path {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    is_cut: Arc<AtomicBool>,
}

impl Path {
    pub(crate) async fn new(server: SocketAddr, line: Line) -> Self {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = socket.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let is_cut = Arc::new(AtomicBool::new(false));
        let ends = (server, Arc::clone(&is_cut));
        tokio::spawn(forward(socket, ends, line, Arc::clone(&seen)));
        Self {
            address,
            seen,
            is_cut,
        }
    }

    /// From now on nothing arrives at either end.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
    }

    /// Everything that came by since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// The same without the last words of earlier connections: what the newest client has to do with.
    pub(crate) fn seen_of_newest(&self) -> Vec<Seen> {
        let mut seen = self.seen();
        if let Some(newest) = seen.last().map(|datagram| datagram.client) {
            seen.retain(|datagram| datagram.client == newest);
        }
        seen
    }
}

async fn forward(
    front: Arc<UdpSocket>,
    (server, is_cut): (SocketAddr, Arc<AtomicBool>),
    line: Line,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let mut clients: HashMap<SocketAddr, Queue> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    while let Ok((bytes, client)) = front.recv_from(&mut buffer).await {
        if is_cut.load(Ordering::SeqCst) {
            continue;
        }
        note(&seen, true, bytes, client);
        if let Some(up) = clients.get_mut(&client) {
            up.push(&buffer[..bytes]);
            continue;
        }
        let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        back.connect(server).await.unwrap();
        let mut up = Queue::new(line, Arc::clone(&back), None);
        up.push(&buffer[..bytes]);
        clients.insert(client, up);
        let mut down = Queue::new(line, Arc::clone(&front), Some(client));
        let seen = Arc::clone(&seen);
        let is_cut = Arc::clone(&is_cut);
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            loop {
                // A server that is gone is an error now and then.
                if let Ok(bytes) = back.recv(&mut buffer).await
                    && !is_cut.load(Ordering::SeqCst)
                {
                    note(&seen, false, bytes, client);
                    down.push(&buffer[..bytes]);
                }
            }
        });
    }
}

fn note(seen: &Mutex<Vec<Seen>>, up: bool, bytes: usize, client: SocketAddr) {
    let at = Instant::now();
    seen.lock().unwrap().push(Seen {
        up,
        at,
        bytes,
        client,
    });
}

/// One direction of one client's traffic.
struct Queue {
    line: Line,
    free_at: Instant,
    passed: u32,
    sender: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
}

impl Queue {
    fn new(line: Line, socket: Arc<UdpSocket>, to: Option<SocketAddr>) -> Self {
        let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        tokio::spawn(async move {
            while let Some((due, bytes)) = receiver.recv().await {
                tokio::time::sleep_until(due).await;
                let _ = match to {
                    Some(client) => socket.send_to(&bytes, client).await,
                    None => socket.send(&bytes).await,
                };
            }
        });
        Self {
            line,
            free_at: Instant::now(),
            passed: 0,
            sender,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.passed += 1;
        if self.line.lose_every > 0 && self.passed.is_multiple_of(self.line.lose_every) {
            return;
        }
        let now = Instant::now();
        if let Some(rate) = self.line.rate {
            let rate = f64::from(rate);
            let waiting = self.free_at.saturating_duration_since(now).as_secs_f64() * rate;
            if waiting + bytes.len() as f64 > f64::from(self.line.queue_bytes) {
                return;
            }
            self.free_at =
                self.free_at.max(now) + Duration::from_secs_f64(bytes.len() as f64 / rate);
        } else {
            self.free_at = now;
        }
        let _ = self
            .sender
            .send((self.free_at + self.line.delay, bytes.to_vec()));
    }
}
