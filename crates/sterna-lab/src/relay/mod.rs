//! A relay for TCP and UDP in user space, with a link between its two sides.
//!
//! It serves two purposes. An ideal relay lets a command behind a link reach a server outside of
//! the lab. A relay with a link of its own is the variant that needs no rights.
//!
//! # Limits
//!
//! - UDP: datagrams are delayed, lost and limited in rate as on the link. Each counts with headers of IP
//!   and UDP that aren't there. Path-MTU and congestion marks are missing.
//! - TCP: there are two connections, one on each side, and the bytes between them are delayed and
//!   limited in rate. Nothing is lost, so TCP's recovery is not seen, nor its congestion control or
//!   its acknowledgements. A connection opens at once; its first bytes are taken a round trip later.
//! - UDP and TCP do not share the rate: each has the whole of it.

mod datagrams;
mod streams;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use crate::kernel::{self, Epoll, Timer};
use crate::link::{Counters, Direction, LinkSettings, Packet, PipeSettings, SettingsError};
use crate::netns::{Family, Namespace};

use datagrams::Datagrams;
use streams::Streams;

/// The kinds of descriptors, in the last bits of a token.
const KINDS: u64 = 4;
const FLOW: u64 = 0;
const CLIENT: u64 = 1;
const SERVER: u64 = 2;
const SINGLE: u64 = 3;
/// Descriptors of which there is one.
const TIMER: u64 = SINGLE;
const WAKE: u64 = KINDS + SINGLE;
const LISTENER: u64 = 2 * KINDS + SINGLE;
const SOCKET: u64 = 3 * KINDS + SINGLE;

/// A relay's sockets and link.
#[derive(Debug)]
pub struct RelayOptions {
    /// Where TCP comes in.
    pub listener: TcpListener,
    /// Where UDP comes in.
    pub socket: UdpSocket,
    /// Where it goes.
    pub target: SocketAddr,
    /// The link in between.
    pub link: LinkSettings,
    /// From which the link's decisions come.
    pub seed: u64,
}

/// Counters of a relay.
#[derive(Clone, Copy, Debug)]
pub struct RelayReport {
    /// UDP, client to server. Bytes are with the headers that packets would have.
    pub datagrams_up: Counters,
    /// UDP, server to client.
    pub datagrams_down: Counters,
    /// TCP, client to server.
    pub streams_up: Counters,
    /// TCP, server to client.
    pub streams_down: Counters,
    /// TCP connections that were accepted.
    pub connections: u64,
    /// Those for which the target did not accept one.
    pub failed_connections: u64,
}

/// A part of a relay's traffic.
#[derive(Clone, Debug)]
struct Unit {
    /// The flow or connection that it belongs to.
    owner: u64,
    bytes: Vec<u8>,
    /// Bytes of the headers that a packet would have.
    header_bytes: usize,
    is_corrupted: bool,
}

impl Packet for Unit {
    fn length_bytes(&self) -> usize {
        self.bytes.len() + self.header_bytes
    }

    fn flip_bit(&mut self, _: u64) {
        // The receiving kernel would drop it for its checksum.
        self.is_corrupted = true;
    }
}

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    wake: UnixStream,
    thread: Option<JoinHandle<io::Result<RelayReport>>>,
}

impl Relay {
    /// Leads from the server's address in a namespace, at the target's port, to a target outside,
    /// without a link.
    ///
    /// # Errors
    ///
    /// If the port is taken, or no descriptors are left.
    pub(crate) fn beside(
        server: &Namespace,
        family: Family,
        target: SocketAddr,
    ) -> io::Result<Self> {
        let address = (family.unspecified(), target.port());
        let (listener, socket) =
            server.run(|| Ok((TcpListener::bind(address)?, UdpSocket::bind(address)?)))?;
        Self::start(RelayOptions {
            listener,
            socket,
            target,
            link: LinkSettings::symmetric(PipeSettings {
                mtu_bytes: 65_535,
                ..PipeSettings::default()
            }),
            seed: 0,
        })
    }
    /// Starts relaying, on a thread of its own.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges; no descriptors left.
    pub fn start(options: RelayOptions) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let mut running = Running::new(options, woken)?;
        let thread = thread::Builder::new().name("relay".into()).spawn(move || {
            let _ = kernel::set_timer_slack_ns(1);
            while running.turn()? {}
            Ok(running.report())
        })?;
        Ok(Self {
            wake,
            thread: Some(thread),
        })
    }

    /// Stops; connections are closed, and bytes on their way are dropped.
    ///
    /// # Errors
    ///
    /// Why the relay failed, if it did.
    pub fn stop(mut self) -> io::Result<RelayReport> {
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(io::Error::other("the relay has stopped")),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Running {
    epoll: Epoll,
    timer: Timer,
    ready: Vec<u64>,
    start_ns: u64,
    datagrams: Datagrams,
    streams: Streams,
    /// Readable once the relay shall stop; it is only watched.
    #[allow(dead_code, reason = "it is watched as long as it is open")]
    woken: UnixStream,
}

fn invalid(error: SettingsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

impl Running {
    fn new(options: RelayOptions, woken: UnixStream) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let timer = Timer::new()?;
        options.listener.set_nonblocking(true)?;
        options.socket.set_nonblocking(true)?;
        epoll.add(timer.fd(), TIMER, true, false)?;
        epoll.add(woken.as_fd(), WAKE, true, false)?;
        epoll.add(options.listener.as_fd(), LISTENER, true, false)?;
        epoll.add(options.socket.as_fd(), SOCKET, true, false)?;
        let family = Family::from(options.socket.local_addr()?.ip());
        let (target, link, seed) = (options.target, &options.link, options.seed);
        let datagrams =
            Datagrams::new(options.socket, family, target, link, seed).map_err(invalid)?;
        let streams =
            Streams::new(options.listener, family, target, link, seed).map_err(invalid)?;
        Ok(Self {
            epoll,
            timer,
            ready: Vec::new(),
            start_ns: kernel::monotonic_ns(),
            datagrams,
            streams,
            woken,
        })
    }

    fn now_ns(&self) -> u64 {
        kernel::monotonic_ns() - self.start_ns
    }

    /// One turn; false when it was the last.
    fn turn(&mut self) -> io::Result<bool> {
        self.datagrams.deliver(self.now_ns());
        self.streams.deliver(&self.epoll, self.now_ns())?;
        let deadline_ns = [
            self.datagrams.next_deadline_ns(),
            self.streams.next_deadline_ns(),
        ]
        .into_iter()
        .flatten()
        .min();
        let block = deadline_ns.is_none_or(|deadline_ns| deadline_ns > self.now_ns());
        if block {
            self.timer
                .arm(deadline_ns.map(|at_ns| self.start_ns + at_ns))?;
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(block, &mut ready)?;
        let mut goes_on = true;
        for token in &ready {
            let now_ns = self.now_ns();
            match *token {
                TIMER => self.timer.fired(),
                WAKE => goes_on = false,
                SOCKET => self.datagrams.read_clients(&self.epoll, now_ns)?,
                LISTENER => self.streams.accept(&self.epoll, now_ns)?,
                token => match token % KINDS {
                    FLOW => self.datagrams.read_server(token / KINDS, now_ns),
                    CLIENT => {
                        self.streams
                            .ready(&self.epoll, token / KINDS, Direction::Up, now_ns)?;
                    }
                    _ => {
                        self.streams
                            .ready(&self.epoll, token / KINDS, Direction::Down, now_ns)?;
                    }
                },
            }
        }
        self.ready = ready;
        Ok(goes_on)
    }

    fn report(&self) -> RelayReport {
        RelayReport {
            datagrams_up: self.datagrams.counters(Direction::Up),
            datagrams_down: self.datagrams.counters(Direction::Down),
            streams_up: self.streams.counters(Direction::Up),
            streams_down: self.streams.counters(Direction::Down),
            connections: self.streams.accepted(),
            failed_connections: self.streams.failed(),
        }
    }
}

#[cfg(test)]
mod tests;
