//! Taking connections in: never more than a limit at a time, never one after the other.

use std::io;

use mio::{Interest, Registry};
use thin_vec::ThinVec;

use super::Shard;
use super::connection::{Client, Connection, Phase};
use super::core::Core;
use super::deadlines::Kind;
use crate::bind::{Listener, ListenerKind};
use crate::counters::RefusedConnection;
use crate::mailbox::Gate;
use crate::throttle::Throttle;
use crate::udp::canonical;
use crate::{ConnectionInfo, Handler, TransportKind, tls, tokens, websocket};

/// Milliseconds to wait when the system has no descriptors or memory for another connection.
const RETRY_MS: u64 = 100;

/// The listening sockets of a shard.
#[derive(Debug)]
pub(super) struct Acceptors {
    listeners: Vec<Acceptor>,
    gate: Gate,
    /// The gate was shut, and the sockets are closed.
    shut: bool,
    errors: Throttle,
    /// Nothing is accepted before.
    retry_ms: Option<u64>,
    have_tls: bool,
}

#[derive(Debug)]
struct Acceptor {
    listener: Listener,
    /// There may be connections to accept.
    ready: bool,
}

impl Acceptors {
    pub(super) fn new(
        listeners: Vec<Listener>,
        gate: Gate,
        registry: &Registry,
    ) -> io::Result<Self> {
        let have_tls = listeners.iter().any(|listener| listener.kind.tls.is_some());
        let mut acceptors = Vec::with_capacity(listeners.len());
        for (index, mut listener) in listeners.into_iter().enumerate() {
            let token = tokens::listener(index);
            registry.register(&mut listener.socket, token, Interest::READABLE)?;
            acceptors.push(Acceptor {
                listener,
                ready: false,
            });
        }
        Ok(Self {
            listeners: acceptors,
            gate,
            shut: false,
            errors: Throttle::default(),
            retry_ms: None,
            have_tls,
        })
    }

    pub(super) fn have_tls(&self) -> bool {
        self.have_tls
    }

    /// Notes that a listener has connections to accept.
    pub(super) fn note(&mut self, index: usize) {
        if let Some(acceptor) = self.listeners.get_mut(index) {
            acceptor.ready = true;
        }
    }

    /// Whether connections wait that the last turn's limit left over.
    pub(super) fn are_busy(&self) -> bool {
        self.retry_ms.is_none() && self.listeners.iter().any(|acceptor| acceptor.ready)
    }

    /// When to try again after the system refused a connection.
    pub(super) fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }
}

impl<H: Handler> Shard<H> {
    /// Closes the listening sockets once the gate was shut.
    pub(super) fn heed_gate(&mut self) {
        if self.acceptors.gate.is_shut() && !self.acceptors.shut {
            self.acceptors.shut = true;
            // Dropping a socket closes it, which also ends its registration.
            self.acceptors.listeners.clear();
            self.acceptors.retry_ms = None;
            for udp in &mut self.core.udp {
                udp.driver.refuse_newcomers();
            }
        }
    }

    /// Accepts waiting connections, up to the limit of a turn.
    pub(super) fn accept(&mut self) {
        if self
            .acceptors
            .retry_ms
            .is_some_and(|retry_ms| self.core.now_ms < retry_ms)
        {
            return;
        }
        self.acceptors.retry_ms = None;
        for index in 0..self.acceptors.listeners.len() {
            for _ in 0..self.core.config.accepts_per_turn {
                if !self.accept_one(index) {
                    break;
                }
            }
        }
    }

    /// Accepts one connection; whether there may be more.
    fn accept_one(&mut self, index: usize) -> bool {
        let Some(acceptor) = self.acceptors.listeners.get_mut(index) else {
            return false;
        };
        if !acceptor.ready {
            return false;
        }
        match acceptor.listener.socket.accept() {
            Ok((socket, peer)) => {
                let kind = &acceptor.listener.kind;
                let registry = self.poll.registry();
                let peer = canonical(peer);
                let admitted = admit(&mut self.core, registry, kind, socket, peer);
                match admitted {
                    Ok(Some(id)) => self.handler.opened(&mut self.core, id),
                    Ok(None) => {}
                    Err(refusal) => {
                        let (reason, error) = (refusal.reason(), refusal.error());
                        let from = (kind.index, transport_of(kind), peer);
                        (self.core).turn_away(from, (reason, 1), None, error);
                    }
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                acceptor.ready = false;
                false
            }
            // The peer gave up while it waited in the queue, or a signal came.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) =>
            {
                true
            }
            Err(error) => {
                // No descriptors or no memory: others must close first.
                self.acceptors.retry_ms = Some(self.core.now_ms + RETRY_MS);
                if let Some(more) = self.acceptors.errors.pass(self.core.now_ms) {
                    tracing::error!(%error, more, "cannot accept connections");
                }
                false
            }
        }
    }
}

/// Why a connection was not taken in.
#[derive(Debug)]
enum NotAdmitted {
    Limit(RefusedConnection),
    System(io::Error),
}

impl NotAdmitted {
    const fn reason(&self) -> RefusedConnection {
        match self {
            Self::Limit(refusal) => *refusal,
            Self::System(_) => RefusedConnection::System,
        }
    }

    const fn error(&self) -> Option<&io::Error> {
        match self {
            Self::Limit(_) => None,
            Self::System(error) => Some(error),
        }
    }
}

const fn transport_of(kind: &ListenerKind) -> TransportKind {
    match (&kind.tls, &kind.websocket) {
        (None, None) => TransportKind::Tcp,
        (Some(_), None) => TransportKind::Tls,
        (None, Some(_)) => TransportKind::WebSocket,
        (Some(_), Some(_)) => TransportKind::SecureWebSocket,
    }
}

/// Takes a connection into the table. Returns its identifier when it is open at once.
fn admit(
    core: &mut Core,
    registry: &Registry,
    kind: &ListenerKind,
    socket: mio::net::TcpStream,
    peer: std::net::SocketAddr,
) -> Result<Option<crate::ConnectionId>, NotAdmitted> {
    let transport = transport_of(kind);
    // Nothing stands between its accept and the handler.
    let plain = transport == TransportKind::Tcp && kind.balancers.is_none();
    let is_balancer = kind.balancers.is_some();
    // Of a balancer's connection it is asked when the client is known.
    if !is_balancer && let Some(refusal) = core.refusing.refusal(kind.index, peer.ip()) {
        return Err(NotAdmitted::Limit(refusal));
    }
    if let Some(balancers) = &kind.balancers
        && !balancers.iter().any(|prefix| prefix.contains(&peer.ip()))
    {
        return Err(NotAdmitted::Limit(RefusedConnection::NotBalancer));
    }
    let client = if is_balancer {
        Client::Unnamed(ThinVec::new())
    } else {
        let place = core.peers.enter(peer.ip(), kind.index);
        Client::Named(place.map_err(NotAdmitted::Limit)?)
    };
    let address = (!is_balancer).then_some(peer.ip());
    let count = core.connections.len();
    if plain && count >= core.config.connections {
        return Err(NotAdmitted::Limit(RefusedConnection::Connections));
    }
    if !plain {
        core.admission
            .admit(address, count, &core.config)
            .map_err(NotAdmitted::Limit)?;
    }
    let info = ConnectionInfo {
        listener: kind.index,
        transport,
        protocol: Box::default(),
        peer,
        is_peer_proved: true,
        peer_certificates: ThinVec::new(),
    };
    let mut connection = Connection::new(socket, info, client);
    if let Some(config) = &kind.tls {
        let session = tls::TlsSession::new(std::sync::Arc::clone(config));
        connection.tls = Some(Box::new(session));
    }
    if let Some(config) = &kind.websocket {
        let session = websocket::WebSocketSession::new(std::sync::Arc::clone(config));
        connection.websocket = Some(Box::new(session));
    }
    if plain {
        connection.phase = Phase::Open;
        connection.announced = true;
    }
    let id = core.connections.insert_with(|_| connection);
    let registered = core.connections.get_mut(id).map(|connection| {
        registry.register(
            &mut connection.socket,
            tokens::connection(id),
            Interest::READABLE | Interest::WRITABLE,
        )
    });
    if let Some(Err(error)) = registered {
        core.connections.remove(id);
        if !plain {
            core.admission.release(address);
        }
        return Err(NotAdmitted::System(error));
    }
    let counters = core.counters.listener(kind.index);
    counters.accepted.add(1);
    counters.connections.add(1);
    if !plain {
        let deadline_ms = core.now_ms + core.config.handshake_timeout_ms;
        core.deadlines.push(Kind::Handshake, deadline_ms, id);
    }
    if is_balancer {
        let deadline_ms = core.now_ms + core.config.proxy_header_timeout_ms;
        core.deadlines.push(Kind::Header, deadline_ms, id);
    }
    Ok(plain.then_some(id))
}
