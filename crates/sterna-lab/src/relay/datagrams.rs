//! UDP through a relay: one socket towards the target for each client, so that answers find their way.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;

use super::{FLOW, KINDS, Unit};
use crate::kernel::Epoll;
use crate::link::{Counters, Direction, Link, LinkSettings, SettingsError};
use crate::netns::Family;

/// Bytes of UDP's header.
const UDP_BYTES: usize = 8;
/// Most clients; beyond, the one that was silent for longest is forgotten.
const MAX_FLOWS: usize = 1024;
/// Datagrams that are read from one socket before others have their turn.
const READ_BATCH: usize = 64;
const MAX_DATAGRAM_BYTES: usize = 65_536;

#[derive(Debug)]
struct Flow {
    client: SocketAddr,
    /// Connected to the target.
    socket: UdpSocket,
    last_ns: u64,
}

#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    target: SocketAddr,
    /// Of a packet that a datagram would be: IP's and UDP's.
    header_bytes: usize,
    link: Link<Unit>,
    flows: HashMap<u64, Flow>,
    numbers: HashMap<SocketAddr, u64>,
    next_number: u64,
    buffer: Vec<u8>,
}

impl Datagrams {
    pub(super) fn new(
        socket: UdpSocket,
        family: Family,
        target: SocketAddr,
        link: &LinkSettings,
        seed: u64,
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            header_bytes: family.header_bytes() + UDP_BYTES,
            socket,
            target,
            link: Link::new(link, seed)?,
            flows: HashMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            buffer: vec![0; MAX_DATAGRAM_BYTES],
        })
    }

    pub(super) fn counters(&self, direction: Direction) -> Counters {
        self.link.counters(direction)
    }

    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.link.next_deadline_ns()
    }

    /// Reads the clients' datagrams.
    pub(super) fn read_clients(&mut self, epoll: &Epoll, now_ns: u64) -> io::Result<()> {
        for _ in 0..READ_BATCH {
            // Errors here are those of datagrams sent earlier, such as a port that is closed.
            let Ok((length, client)) = self.socket.recv_from(&mut self.buffer) else {
                break;
            };
            let number = self.flow_of(client, epoll, now_ns)?;
            self.take_in(Direction::Up, number, length, now_ns);
        }
        Ok(())
    }

    /// Reads the target's datagrams to one client.
    pub(super) fn read_server(&mut self, number: u64, now_ns: u64) {
        for _ in 0..READ_BATCH {
            let Some(flow) = self.flows.get_mut(&number) else {
                break;
            };
            let Ok(length) = flow.socket.recv(&mut self.buffer) else {
                break;
            };
            flow.last_ns = now_ns;
            self.take_in(Direction::Down, number, length, now_ns);
        }
    }

    fn take_in(&mut self, direction: Direction, owner: u64, length: usize, now_ns: u64) {
        let unit = Unit {
            owner,
            bytes: self.buffer[..length].to_vec(),
            header_bytes: self.header_bytes,
            is_corrupted: false,
        };
        self.link.push(direction, now_ns, unit);
    }

    fn flow_of(&mut self, client: SocketAddr, epoll: &Epoll, now_ns: u64) -> io::Result<u64> {
        if let Some(number) = self.numbers.get(&client) {
            if let Some(flow) = self.flows.get_mut(number) {
                flow.last_ns = now_ns;
            }
            return Ok(*number);
        }
        if self.flows.len() >= MAX_FLOWS
            && let Some(oldest) = self
                .flows
                .iter()
                .min_by_key(|(_, flow)| flow.last_ns)
                .map(|(number, _)| *number)
            && let Some(flow) = self.flows.remove(&oldest)
        {
            self.numbers.remove(&flow.client);
        }
        let any: SocketAddr = match self.target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(self.target)?;
        socket.set_nonblocking(true)?;
        let number = self.next_number;
        self.next_number += 1;
        epoll.add(socket.as_fd(), number * KINDS + FLOW, true, false)?;
        self.numbers.insert(client, number);
        self.flows.insert(
            number,
            Flow {
                client,
                socket,
                last_ns: now_ns,
            },
        );
        Ok(number)
    }

    /// Sends the datagrams that have come through the link. Datagrams that a socket does not take
    /// are lost, as in a receiver's full buffer.
    pub(super) fn deliver(&mut self, now_ns: u64) {
        while let Some(delivery) = self.link.pop(Direction::Up, now_ns) {
            let unit = delivery.packet;
            if let Some(flow) = self.flows.get(&unit.owner)
                && !unit.is_corrupted
            {
                let _ = flow.socket.send(&unit.bytes);
            }
        }
        while let Some(delivery) = self.link.pop(Direction::Down, now_ns) {
            let unit = delivery.packet;
            if let Some(flow) = self.flows.get(&unit.owner)
                && !unit.is_corrupted
            {
                let _ = self.socket.send_to(&unit.bytes, flow.client);
            }
        }
    }
}
