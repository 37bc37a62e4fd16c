//! TCP through a relay: for each connection another one to the target, and the bytes between them.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::{CLIENT, KINDS, SERVER, Unit};
use crate::kernel::Epoll;
use crate::link::{
    Counters, Direction, Down, Link, LinkSettings, Loss, PipeSettings, Queue, Reorder,
    SettingsError,
};
use crate::netns::Family;

/// Bytes of TCP's header with time stamps.
const TCP_BYTES: usize = 32;
/// Most connections; beyond, new ones are closed.
const MAX_CONNECTIONS: usize = 1024;
/// Bytes of one direction of a connection that are under way or wait for their receiver. Then its
/// sender waits.
const MAX_BUFFERED_BYTES: usize = 1 << 20;
/// Most bytes that wait for the link, where its queue would take more.
const MAX_QUEUED_BYTES: u64 = 256 << 10;
/// When it is looked again whether the link has room.
const RETRY_NS: u64 = 1_000_000;
/// Pieces that are read from one connection before others have their turn.
const READ_BATCH: usize = 64;

/// One direction of a connection.
#[derive(Debug, Default)]
struct Half {
    /// Bytes on the link.
    travelling_bytes: usize,
    /// Bytes that have come through and wait for their receiver.
    arrived: VecDeque<u8>,
    /// The sender has said that nothing more comes.
    has_ended: bool,
    /// The link has passed this end on.
    end_has_arrived: bool,
    /// The receiver has heard of it.
    end_is_told: bool,
    /// Events for which the receiver's socket is watched.
    wants_write: bool,
    /// Whether the sender's socket is watched.
    is_reading: bool,
}

impl Half {
    fn is_full(&self) -> bool {
        self.travelling_bytes + self.arrived.len() >= MAX_BUFFERED_BYTES
    }
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    /// Made when the client's wish has come through the link.
    server: Option<TcpStream>,
    /// The client's bytes are taken from here on: a round trip after it connected.
    from_ns: u64,
    up: Half,
    down: Half,
    /// Events for which the sockets are watched: reading and writing.
    client_watch: (bool, bool),
    server_watch: (bool, bool),
}

impl Connection {
    const fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    /// The socket from which a direction's bytes come.
    const fn source(&self, direction: Direction) -> Option<&TcpStream> {
        match direction {
            Direction::Up => Some(&self.client),
            Direction::Down => self.server.as_ref(),
        }
    }

    /// Watches both sockets for the operations that are possible now. A socket that hangs up is
    /// reported in any case, so nothing is requested twice.
    fn watch(&mut self, epoll: &Epoll, number: u64) -> io::Result<()> {
        let token = number * KINDS;
        let wanted = (self.up.is_reading, self.down.wants_write);
        if wanted != self.client_watch {
            self.client_watch = wanted;
            epoll.change(self.client.as_fd(), token + CLIENT, wanted.0, wanted.1)?;
        }
        let wanted = (self.down.is_reading, self.up.wants_write);
        if let Some(server) = &self.server
            && wanted != self.server_watch
        {
            self.server_watch = wanted;
            epoll.change(server.as_fd(), token + SERVER, wanted.0, wanted.1)?;
        }
        Ok(())
    }

    /// Gives the receiver of a direction the bytes that have arrived. An error ends the connection.
    fn write(&mut self, direction: Direction) -> io::Result<()> {
        let (half, receiver) = match direction {
            Direction::Up => (&mut self.up, self.server.as_mut()),
            Direction::Down => (&mut self.down, Some(&mut self.client)),
        };
        let Some(receiver) = receiver else {
            return Ok(());
        };
        half.wants_write = false;
        while !half.arrived.is_empty() {
            match receiver.write(half.arrived.as_slices().0) {
                Ok(written) => drop(half.arrived.drain(..written)),
                Err(error) if is_later(&error) => {
                    half.wants_write = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if half.end_has_arrived && !half.end_is_told {
            half.end_is_told = true;
            // A connection that is not open any more has no end to tell.
            let _ = receiver.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    const fn is_done(&self) -> bool {
        self.up.end_is_told && self.down.end_is_told
    }
}

/// Whether an operation is to be tried again when the socket is ready. A socket that is still
/// connecting says that it is not connected.
fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected
    )
}

#[derive(Debug)]
pub(super) struct Streams {
    listener: TcpListener,
    target: SocketAddr,
    link: Link<Unit>,
    /// Most bytes that may wait for the link, per direction.
    limits_bytes: [u64; 2],
    rtt_ns: u64,
    connections: HashMap<u64, Connection>,
    next_number: u64,
    /// Connections whose bytes wait until the link has room.
    is_waiting: bool,
    retry_ns: Option<u64>,
    piece_bytes: usize,
    /// Of a packet that carries a piece: IP's and TCP's.
    header_bytes: usize,
    failed: u64,
}

/// The settings of a link that hold for a stream of bytes.
fn without_losses(pipe: &PipeSettings) -> PipeSettings {
    let mut pipe = PipeSettings {
        loss: Loss::None,
        duplicate: 0.0,
        corrupt: 0.0,
        reorder: Reorder::default(),
        jitter_reorders: false,
        // The room for waiting bytes is checked before they are read.
        queue: Queue::Packets(u64::MAX),
        ..pipe.clone()
    };
    pipe.schedule.when_down = Down::Hold;
    pipe
}

impl Streams {
    pub(super) fn new(
        listener: TcpListener,
        family: Family,
        target: SocketAddr,
        link: &LinkSettings,
        seed: u64,
    ) -> Result<Self, SettingsError> {
        let limit = |pipe: &PipeSettings| {
            let (bytes, packets) = pipe.queue_limits(link.rtt_ns());
            bytes
                .min(packets.saturating_mul(u64::from(pipe.mtu_bytes)))
                .min(MAX_QUEUED_BYTES)
        };
        let mtu_bytes = link.mtu_bytes() as usize;
        let header_bytes = family.header_bytes() + TCP_BYTES;
        Ok(Self {
            listener,
            target,
            link: Link::new(&link.map(without_losses), seed)?,
            limits_bytes: Direction::BOTH.map(|direction| limit(link.pipes(direction)[0])),
            rtt_ns: link.rtt_ns(),
            connections: HashMap::new(),
            next_number: 0,
            is_waiting: false,
            retry_ns: None,
            piece_bytes: mtu_bytes.saturating_sub(header_bytes).max(1),
            header_bytes,
            failed: 0,
        })
    }

    pub(super) fn counters(&self, direction: Direction) -> Counters {
        self.link.counters(direction)
    }

    pub(super) const fn accepted(&self) -> u64 {
        self.next_number
    }

    pub(super) const fn failed(&self) -> u64 {
        self.failed
    }

    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        [self.link.next_deadline_ns(), self.retry_ns]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn accept(&mut self, epoll: &Epoll, now_ns: u64) -> io::Result<()> {
        loop {
            // A client that has gone again is no reason to stop.
            let Ok((client, _)) = self.listener.accept() else {
                return Ok(());
            };
            if self.connections.len() >= MAX_CONNECTIONS {
                self.failed += 1;
                continue;
            }
            client.set_nonblocking(true)?;
            client.set_nodelay(true)?;
            let number = self.next_number;
            self.next_number += 1;
            epoll.add(client.as_fd(), number * KINDS + CLIENT, false, false)?;
            self.connections.insert(
                number,
                Connection {
                    client,
                    server: None,
                    from_ns: now_ns + self.rtt_ns,
                    up: Half::default(),
                    down: Half::default(),
                    client_watch: (false, false),
                    server_watch: (true, false),
                },
            );
            self.push(number, Direction::Up, Vec::new(), now_ns);
            self.wait_for_room(now_ns);
        }
    }

    fn push(&mut self, owner: u64, direction: Direction, bytes: Vec<u8>, now_ns: u64) {
        let unit = Unit {
            owner,
            bytes,
            header_bytes: self.header_bytes,
            is_corrupted: false,
        };
        self.link.push(direction, now_ns, unit);
    }

    fn wait_for_room(&mut self, now_ns: u64) {
        self.is_waiting = true;
        self.retry_ns.get_or_insert(now_ns + RETRY_NS);
    }

    /// A socket of a connection can be read or written: the one from which `direction` comes.
    pub(super) fn ready(
        &mut self,
        epoll: &Epoll,
        number: u64,
        direction: Direction,
        now_ns: u64,
    ) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        let failed = match connection.source(direction).map(TcpStream::take_error) {
            Some(Ok(Some(error)) | Err(error)) => Err(error),
            _ => Ok(()),
        };
        let written = failed.and_then(|()| connection.write(direction.opposite()));
        let result = written.and_then(|()| self.read(number, direction, now_ns));
        self.settle(epoll, number, result.is_err())
    }

    /// Reads from the source of a direction while the link takes it.
    fn read(&mut self, number: u64, direction: Direction, now_ns: u64) -> io::Result<()> {
        let mut buffer = vec![0; self.piece_bytes];
        for _ in 0..READ_BATCH {
            let limit_bytes = self.limits_bytes[direction as usize];
            let has_room = self.link.waiting_bytes(direction, now_ns) < limit_bytes;
            let Some(connection) = self.connections.get_mut(&number) else {
                return Ok(());
            };
            let is_early = now_ns < connection.from_ns;
            let half = connection.half(direction);
            if half.has_ended || half.is_full() {
                half.is_reading = false;
                return Ok(());
            }
            if !has_room || is_early {
                half.is_reading = false;
                self.wait_for_room(now_ns);
                return Ok(());
            }
            half.is_reading = true;
            let Some(mut source) = connection.source(direction) else {
                return Ok(());
            };
            match source.read(&mut buffer) {
                Ok(0) => {
                    let half = connection.half(direction);
                    half.has_ended = true;
                    half.is_reading = false;
                    self.push(number, direction, Vec::new(), now_ns);
                    return Ok(());
                }
                Ok(length) => {
                    connection.half(direction).travelling_bytes += length;
                    self.push(number, direction, buffer[..length].to_vec(), now_ns);
                }
                Err(error) if is_later(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Forgets a connection that is done or broken, or watches its sockets.
    fn settle(&mut self, epoll: &Epoll, number: u64, is_broken: bool) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&number) else {
            return Ok(());
        };
        if is_broken || connection.is_done() {
            self.connections.remove(&number);
            return Ok(());
        }
        connection.watch(epoll, number)
    }

    /// Hands over the bytes that have come through the link, and reads on if it was full.
    pub(super) fn deliver(&mut self, epoll: &Epoll, now_ns: u64) -> io::Result<()> {
        for direction in Direction::BOTH {
            while let Some(delivery) = self.link.pop(direction, now_ns) {
                let unit = delivery.packet;
                let Some(connection) = self.connections.get_mut(&unit.owner) else {
                    continue;
                };
                let is_open = connection.server.is_some();
                let half = connection.half(direction);
                let result = if !unit.bytes.is_empty() {
                    half.travelling_bytes -= unit.bytes.len();
                    half.arrived.extend(&unit.bytes);
                    connection.write(direction)
                } else if direction == Direction::Up && !is_open {
                    connect(self.target).and_then(|server| {
                        let token = unit.owner * KINDS + SERVER;
                        connection.down.is_reading = true;
                        epoll.add(server.as_fd() as BorrowedFd<'_>, token, true, false)?;
                        connection.server = Some(server);
                        Ok(())
                    })
                } else {
                    half.end_has_arrived = true;
                    connection.write(direction)
                };
                if result.is_err() && !is_open {
                    self.failed += 1;
                }
                let result = result.and_then(|()| self.read(unit.owner, direction, now_ns));
                self.settle(epoll, unit.owner, result.is_err())?;
            }
        }
        if self.retry_ns.is_some_and(|retry_ns| retry_ns <= now_ns) {
            self.retry_ns = None;
            if std::mem::take(&mut self.is_waiting) {
                let numbers: Vec<u64> = self.connections.keys().copied().collect();
                for number in numbers {
                    let result = Direction::BOTH
                        .into_iter()
                        .try_for_each(|direction| self.read(number, direction, now_ns));
                    self.settle(epoll, number, result.is_err())?;
                }
            }
        }
        Ok(())
    }
}

/// Starts a connection without waiting for it.
fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(target),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}
