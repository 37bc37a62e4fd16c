//! The loop that forwards.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::mpsc::SyncSender;

use super::address::Addresses;
use super::{Attachment, CellReport, Devices, Lateness, PacketLink};
use crate::kernel::{self, Epoll, Timer};
use crate::link::{Cause, Direction, Fate, LinkSettings};
use crate::netns::Side;

/// Packets that are read from one device before others have their turn.
const READ_BATCH: usize = 64;
/// Longest packet that a TUN device gives.
const MAX_PACKET_BYTES: usize = 65_536;
/// Tokens that are not devices.
const TIMER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// Fate of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A side sent it, and it will arrive unless it was dropped.
    Sent(Option<Cause>),
    /// The server sent it to an address that the client no longer has.
    SentToOldAddress,
    /// It arrived at a side.
    Received,
}

/// A copy of a packet.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Where it was seen.
    pub side: Side,
    /// Its fate.
    pub event: Event,
    /// When, on the monotonic clock.
    pub at_ns: u64,
    /// The packet, from its IP header.
    pub packet: Vec<u8>,
}

#[derive(Debug)]
struct Running {
    devices: Devices,
    link: PacketLink,
    lateness: Lateness,
    refused: u64,
    capture: Option<SyncSender<Captured>>,
    capture_dropped: u64,
    addresses: Addresses,
    /// Why the cell is no longer served.
    failure: Option<String>,
    /// The moment for which the cell is in the heap.
    scheduled_ns: Option<u64>,
}

impl Running {
    fn copy(&mut self, side: Side, event: Event, at_ns: u64, packet: &[u8]) {
        if let Some(capture) = &self.capture {
            let copy = Captured {
                side,
                event,
                at_ns,
                packet: packet.to_vec(),
            };
            if capture.try_send(copy).is_err() {
                self.capture_dropped += 1;
            }
        }
    }

    fn device(&self, side: Side) -> BorrowedFd<'_> {
        match side {
            Side::Client => self.devices.client.as_fd(),
            Side::Server => self.devices.server.as_fd(),
        }
    }
}

/// The state of the loop.
#[derive(Debug)]
pub(super) struct Forwarder {
    cells: Vec<Running>,
    /// Cells by the moment of their next delivery. Entries that a cell no longer stands by are
    /// skipped.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    epoll: Epoll,
    timer: Timer,
    ready: Vec<u64>,
    buffer: Vec<u8>,
    spin_ns: u64,
    /// Moment 0 of the links.
    start_ns: u64,
}

const fn sender(direction: Direction) -> Side {
    match direction {
        Direction::Up => Side::Client,
        Direction::Down => Side::Server,
    }
}

impl Forwarder {
    pub(super) fn new(
        cells: Vec<Attachment>,
        spin_ns: u64,
        wake: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let timer = Timer::new()?;
        epoll.add(timer.fd(), TIMER, true, false)?;
        epoll.add(wake, WAKE, true, false)?;
        let cells = cells
            .into_iter()
            .enumerate()
            .map(|(number, cell)| {
                let link = PacketLink::new(&cell.settings, cell.seed)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let family = cell.devices.family;
                let token = number as u64 * 2;
                epoll.add(cell.devices.client.as_fd(), token, true, false)?;
                epoll.add(cell.devices.server.as_fd(), token + 1, true, false)?;
                Ok(Running {
                    devices: cell.devices,
                    link,
                    lateness: Lateness::new(),
                    refused: 0,
                    capture: cell.capture,
                    capture_dropped: 0,
                    addresses: Addresses::new(family),
                    failure: None,
                    scheduled_ns: None,
                })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            cells,
            due: BinaryHeap::new(),
            epoll,
            timer,
            ready: Vec::new(),
            buffer: vec![0; MAX_PACKET_BYTES],
            spin_ns,
            start_ns: kernel::monotonic_ns(),
        })
    }

    fn now_ns(&self) -> u64 {
        kernel::monotonic_ns() - self.start_ns
    }

    /// Delivers due packets, waits for the next ones, and takes them. Returns whether there is a
    /// request from outside.
    pub(super) fn turn(&mut self) -> io::Result<bool> {
        let mut now_ns = self.now_ns();
        while let Some(Reverse((due_ns, cell))) = self.due.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.due.pop();
            if self.cells[cell].scheduled_ns == Some(due_ns) {
                self.cells[cell].scheduled_ns = None;
                now_ns = self.deliver(cell);
                self.schedule(cell);
            }
        }
        let next_ns = self.due.peek().map(|entry| entry.0.0);
        let block = match next_ns {
            Some(next_ns) if next_ns <= now_ns + self.spin_ns => false,
            next_ns => {
                let wake_ns = next_ns.map(|next_ns| self.start_ns + next_ns - self.spin_ns);
                self.timer.arm(wake_ns)?;
                true
            }
        };
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(block, &mut ready)?;
        let mut is_woken = false;
        for token in &ready {
            match *token {
                TIMER => self.timer.fired(),
                WAKE => is_woken = true,
                device => {
                    let direction = if device % 2 == 0 {
                        Direction::Up
                    } else {
                        Direction::Down
                    };
                    let cell = (device / 2) as usize;
                    if let Err(error) = self.take_in(cell, direction) {
                        self.give_up(cell, direction, &error)?;
                    }
                }
            }
        }
        self.ready = ready;
        Ok(is_woken)
    }

    /// Reads the packets of a side.
    fn take_in(&mut self, cell: usize, direction: Direction) -> io::Result<()> {
        let from = sender(direction);
        for _ in 0..READ_BATCH {
            let running = &mut self.cells[cell];
            let Some(length) = kernel::read_packet(running.device(from), &mut self.buffer)? else {
                break;
            };
            let mut packet = self.buffer[..length].to_vec();
            let at_ns = kernel::monotonic_ns();
            // The change of addresses is beyond the link, at the server.
            if from == Side::Server && !running.addresses.towards_client(&mut packet) {
                running.copy(from, Event::SentToOldAddress, at_ns, &packet);
                continue;
            }
            let copy = running.capture.is_some().then(|| packet.clone());
            let fate = running.link.push(direction, at_ns - self.start_ns, packet);
            if let Some(copy) = copy {
                let cause = match fate {
                    Fate::Arrives { .. } => None,
                    Fate::Dropped(cause) => Some(cause),
                };
                running.copy(from, Event::Sent(cause), at_ns, &copy);
            }
        }
        self.schedule(cell);
        Ok(())
    }

    /// Serves a cell no longer whose device has failed, for example because a program removed it. The
    /// others go on.
    fn give_up(&mut self, cell: usize, direction: Direction, error: &io::Error) -> io::Result<()> {
        let running = &mut self.cells[cell];
        let side = sender(direction);
        running
            .failure
            .get_or_insert_with(|| format!("the {}'s device: {error}", side.name()));
        self.epoll.remove(running.device(side))
    }

    /// Writes the packets that have arrived by now, in both directions; returns the time.
    fn deliver(&mut self, cell: usize) -> u64 {
        let start_ns = self.start_ns;
        let running = &mut self.cells[cell];
        let mut now_ns = kernel::monotonic_ns() - start_ns;
        for direction in Direction::BOTH {
            let to = sender(direction.opposite());
            while let Some(mut delivery) = running.link.pop(direction, now_ns) {
                if to == Side::Server {
                    running.addresses.towards_server(&mut delivery.packet);
                }
                now_ns = kernel::monotonic_ns() - start_ns;
                running.lateness.record(now_ns - delivery.due_ns);
                if kernel::write_packet(running.device(to), &delivery.packet).is_err() {
                    running.refused += 1;
                }
                running.copy(to, Event::Received, start_ns + now_ns, &delivery.packet);
            }
        }
        now_ns
    }

    /// Puts a cell into the heap for its next delivery, unless it is there for that.
    fn schedule(&mut self, cell: usize) {
        let running = &mut self.cells[cell];
        if let Some(next_ns) = running.link.next_deadline_ns()
            && running.scheduled_ns.is_none_or(|at_ns| next_ns < at_ns)
        {
            running.scheduled_ns = Some(next_ns);
            self.due.push(Reverse((next_ns, cell)));
        }
    }

    pub(super) fn report(&self, cell: usize) -> Option<CellReport> {
        let running = self.cells.get(cell)?;
        Some(CellReport {
            up: running.link.counters(Direction::Up),
            down: running.link.counters(Direction::Down),
            hops_up: running.link.hop_counters(Direction::Up),
            hops_down: running.link.hop_counters(Direction::Down),
            lateness: running.lateness.clone(),
            refused: running.refused,
            capture_dropped: running.capture_dropped,
            address_changes: running.addresses.changes(),
            to_old_addresses: running.addresses.lost(),
            failure: running.failure.clone(),
        })
    }

    pub(super) fn change(&mut self, cell: usize, settings: &LinkSettings) -> io::Result<()> {
        let running = self
            .cells
            .get_mut(cell)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        running
            .link
            .change(settings)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    pub(super) fn rebind(&mut self, cell: usize) -> Option<IpAddr> {
        Some(self.cells.get_mut(cell)?.addresses.change())
    }

    pub(super) fn switch(&mut self, cell: usize, direction: Direction, is_on: bool) {
        if let Some(running) = self.cells.get_mut(cell) {
            running.link.switch(direction, is_on);
        }
    }
}

#[cfg(test)]
mod tests;
