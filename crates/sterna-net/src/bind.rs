//! Binding: from a configuration to shards that are ready to run.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use mio::Poll;
use mio::net::TcpListener;

use crate::clock::Clock;
use crate::config::{ListenerConfig, ListenerTransport, ShardConfig, WebSocketConfig};
use crate::counters::ShardCounters;
use crate::mailbox::{Courier, Gate, Mailbox, Nudge};
use crate::peers::Peers;
use crate::quic::{Driver, Placement, QuicConfig, shard_offset};
use crate::shard::Shard;
use crate::strays::Siblings;
use crate::tls::{BySize, TlsConfig};
use crate::tokens;
use crate::udp::{self, UdpListener};
use crate::{Handler, sockets};

/// A byte-stream listener of one shard, with everything that its connections share.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) kind: ListenerKind,
}

/// The layers of a byte-stream listener on top of TCP.
#[derive(Clone, Debug)]
pub(crate) struct ListenerKind {
    pub(crate) index: u16,
    pub(crate) tls: Option<Arc<BySize>>,
    pub(crate) websocket: Option<Arc<WebSocketConfig>>,
    /// Prefixes of the balancers: only these addresses may connect, for their clients.
    pub(crate) balancers: Option<Arc<[IpNet]>>,
}

/// A shard whose sockets are bound and whose mailbox is open. It moves to its thread and runs there.
pub struct BoundShard<M> {
    pub(crate) index: usize,
    pub(crate) config: Arc<ShardConfig>,
    pub(crate) clock: Clock,
    pub(crate) peers: Arc<Peers>,
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) udp: Vec<UdpListener>,
    pub(crate) addresses: Arc<[SocketAddr]>,
    pub(crate) mailboxes: Vec<Mailbox<M>>,
    pub(crate) gate: Gate,
    pub(crate) counters: Arc<ShardCounters>,
}

impl<M> fmt::Debug for BoundShard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundShard")
            .field("index", &self.index)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Binds every listener once per shard and opens the shards' mailboxes.
///
/// # Errors
///
/// If an address cannot be bound, a TLS configuration cannot be used, or `shards` is 0. Also with
/// more than 256 shards or 128 listeners: identifiers have no room for more.
pub fn bind<M: Send + 'static>(
    config: &ShardConfig,
    listeners: &[ListenerConfig],
    shards: usize,
) -> io::Result<Vec<BoundShard<M>>> {
    const MOST_SHARDS: usize = 256; // One byte of a QUIC connection identifier names the shard.
    const MOST_LISTENERS: usize = udp::MOST_SOCKETS;
    if shards == 0 || shards > MOST_SHARDS || listeners.len() > MOST_LISTENERS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "there must be 1 to 256 shards and at most 128 listeners",
        ));
    }
    let config = Arc::new(config.clone());
    let clock = config.clock.unwrap_or_else(Clock::start);
    let of_listeners: Vec<usize> = (listeners.iter())
        .map(|listener| listener.connections)
        .collect();
    let peers = Peers::new(config.connections_per_address, &of_listeners);
    let mut polls = Vec::with_capacity(shards);
    let mut mailboxes = Vec::with_capacity(shards);
    for _ in 0..shards {
        let poll = Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), tokens::WAKER)?;
        mailboxes.push(Mailbox::new(waker));
        polls.push(poll);
    }
    let nudges: Vec<Nudge> = mailboxes.iter().map(Mailbox::nudger).collect();
    let mut opening = Opening {
        config: &config,
        clock,
        peers: &peers,
        nudges: &nudges,
        sockets: (0..shards).map(|_| Sockets::default()).collect(),
    };
    let mut addresses = Vec::with_capacity(listeners.len());
    for (index, listener) in listeners.iter().enumerate() {
        let bound = opening.open(index as u16, listener).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", listener.address))
        })?;
        addresses.push(bound);
    }
    let sockets = opening.sockets;
    let addresses: Arc<[SocketAddr]> = addresses.into();
    let gate = Gate::new(&nudges);
    Ok(polls
        .into_iter()
        .zip(sockets)
        .enumerate()
        .map(|(index, (poll, sockets))| BoundShard {
            index,
            config: Arc::clone(&config),
            clock,
            peers: Arc::clone(&peers),
            poll,
            listeners: sockets.listeners,
            udp: sockets.udp,
            addresses: Arc::clone(&addresses),
            mailboxes: mailboxes.clone(),
            gate: gate.clone(),
            counters: Arc::new(ShardCounters::new(listeners.len())),
        })
        .collect())
}

/// Sockets of one shard.
#[derive(Debug, Default)]
struct Sockets {
    listeners: Vec<Listener>,
    udp: Vec<UdpListener>,
}

/// The sockets of all shards in the making.
struct Opening<'a> {
    config: &'a ShardConfig,
    clock: Clock,
    peers: &'a Arc<Peers>,
    nudges: &'a [Nudge],
    sockets: Vec<Sockets>,
}

impl Opening<'_> {
    /// Opens one listener on all shards and returns its address.
    fn open(&mut self, index: u16, listener: &ListenerConfig) -> io::Result<SocketAddr> {
        let (tls, websocket) = match &listener.transport {
            ListenerTransport::Tcp => (None, None),
            ListenerTransport::Tls(tls) => (Some(tls), None),
            ListenerTransport::WebSocket(websocket) => (None, Some(websocket)),
            ListenerTransport::SecureWebSocket(tls, websocket) => (Some(tls), Some(websocket)),
            ListenerTransport::Quic(..) if listener.balancers.is_some() => {
                let detail = "QUIC has no header of the PROXY protocol";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, detail));
            }
            ListenerTransport::Quic(tls, quic) => {
                return self.open_quic(index, listener.address, tls, quic);
            }
        };
        let tls = match tls {
            Some(tls) => {
                let config = tls.for_tcp().map_err(io::Error::other)?;
                Some(Arc::new(BySize::new(&config, tls.maximum_record_bytes)))
            }
            None => None,
        };
        let shards = self.sockets.len();
        let (bound, group) = sockets::listen(listener.address, shards, self.config)?;
        for (shard, socket) in self.sockets.iter_mut().zip(group) {
            let kind = ListenerKind {
                index,
                tls: tls.clone(),
                websocket: websocket.cloned(),
                balancers: listener.balancers.clone(),
            };
            shard.listeners.push(Listener { socket, kind });
        }
        Ok(bound)
    }

    fn open_quic(
        &mut self,
        index: u16,
        address: SocketAddr,
        tls: &TlsConfig,
        quic: &QuicConfig,
    ) -> io::Result<SocketAddr> {
        let shards = self.sockets.len();
        if quic.max_connections > udp::MOST_CONNECTIONS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "max_connections of a QUIC listener is above 16,777,216",
            ));
        }
        let tls = Arc::new(tls.for_quic(quic).map_err(io::Error::other)?);
        let now = Instant::now();
        let offset = shard_offset(quic.server_id.as_ref());
        let (bound, group) = sockets::bind_udp(address, shards, offset, self.config)?;
        let siblings = Siblings::new(self.nudges, quic.server_id);
        for (shard, (socket, siblings)) in group.into_iter().zip(siblings).enumerate() {
            let placement = Placement {
                listener: index,
                shard: shard as u16,
                shards: shards as u16,
                address: bound,
            };
            let mut driver = Driver::new(quic.clone(), Arc::clone(&tls), placement, now)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            driver.set_clock(self.clock);
            driver.set_peers(Arc::clone(self.peers));
            let listener = UdpListener::new(socket, driver, siblings)?;
            self.sockets[shard].udp.push(listener);
        }
        Ok(bound)
    }
}

impl<M: Send + 'static> BoundShard<M> {
    /// Number of the shard, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of shards that were bound together.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.mailboxes.len()
    }

    /// The address of every listener, in the order of the configuration.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The clock that [`crate::Network::now_ms`] follows on all shards.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// This shard's mailbox.
    #[must_use]
    pub fn mailbox(&self) -> Mailbox<M> {
        self.mailboxes[self.index].clone()
    }

    /// A courier to all shards that were bound together; each thread makes its own.
    #[must_use]
    pub fn courier(&self) -> Courier<M> {
        Courier::new(self.mailboxes.iter().cloned())
    }

    /// The gate that stops new connections on all shards.
    #[must_use]
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// The counters that the shard publishes.
    #[must_use]
    pub fn counters(&self) -> Arc<ShardCounters> {
        Arc::clone(&self.counters)
    }

    /// Runs the loop on this thread until the handler has finished, and gives the handler back.
    /// Connections that are still open then are closed with [`crate::CloseReason::Shutdown`].
    ///
    /// # Errors
    ///
    /// When the system refuses to wait for events or to register a listener; nothing that a peer
    /// does leads there.
    ///
    /// # Panics
    ///
    /// When the handler does.
    pub fn run<H: Handler<Mail = M>>(self, handler: H) -> io::Result<H> {
        Shard::new(self, handler)?.run()
    }
}
