//! The link between two namespaces. A thread reads packets from TUN devices, asks the
//! [model](crate::link) for their fate, and writes them when they are due.
//!
//! One thread serves many cells, a cell being two namespaces and the link between them. It forwards
//! about 290 000 packets a second on one core, with real-time priority if it may have it.

mod address;
mod forward;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::thread::{self, JoinHandle};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::link::{Counters, Direction, Link, LinkSettings};
use crate::netns::{Family, Namespace, NamespaceSettings, Side};

pub use forward::{Captured, Event};

/// The emulator's own priority. Below the kernel's threads (50), above that of endpoints (1).
const REAL_TIME_PRIORITY: i32 = 10;
/// Time before a packet is due at which the thread stops sleeping and watches the clock instead. A
/// sleeping timer is 70 to 90 us late.
const DEFAULT_SPIN_NS: u64 = 60_000;
/// With more cells than this there is no spinning: it takes the endpoints' CPU time.
const MAX_SPINNING_CELLS: usize = 100;
/// Longest lateness that is told apart, in nanoseconds: a minute.
const MAX_LATENESS_NS: u64 = 60_000_000_000;

/// Two namespaces and the link between them.
#[derive(Debug)]
pub struct Cell {
    /// Where clients run.
    pub client: Namespace,
    /// Where servers run.
    pub server: Namespace,
}

impl Cell {
    /// Makes the namespaces, without a link.
    ///
    /// # Errors
    ///
    /// Without the right to make them.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            client: Namespace::new()?,
            server: Namespace::new()?,
        })
    }

    /// One of the two.
    #[must_use]
    pub const fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Makes the devices that an emulator joins.
    ///
    /// # Errors
    ///
    /// Without `/dev/net/tun`, or for settings that the kernel doesn't have.
    pub fn devices(&self, settings: &NamespaceSettings) -> io::Result<Devices> {
        Ok(Devices {
            client: self.client.tun(Side::Client, settings)?,
            server: self.server.tun(Side::Server, settings)?,
            family: settings.family,
        })
    }
}

/// The TUN devices of a cell.
#[derive(Debug)]
pub struct Devices {
    client: OwnedFd,
    server: OwnedFd,
    family: Family,
}

/// A cell's part of an emulator.
#[derive(Debug)]
pub struct Attachment {
    /// The ends.
    pub devices: Devices,
    /// The link between them.
    pub settings: LinkSettings,
    /// From which decisions come.
    pub seed: u64,
    /// Channel for copies of the packets. Copies that do not fit are counted, not waited for.
    pub capture: Option<SyncSender<Captured>>,
}

/// Options of an emulator.
#[derive(Clone, Copy, Debug)]
pub struct EmulatorOptions {
    /// Ask for real-time priority.
    pub real_time: bool,
    /// Look at the clock instead of sleeping when a packet is due this soon; 0 for never.
    pub spin_ns: u64,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        Self {
            real_time: true,
            spin_ns: DEFAULT_SPIN_NS,
        }
    }
}

/// Lateness of packets at the emulator: the error that it adds to their delay.
#[derive(Clone, Debug)]
pub struct Lateness(Histogram<u64>);

/// A summary of it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LatenessSummary {
    /// Packets.
    pub packets: u64,
    /// Mean, in microseconds.
    pub mean_us: f64,
    /// Half of the packets were no later than this.
    pub p50_us: f64,
    /// 95 % were not.
    pub p95_us: f64,
    /// 99 % were not.
    pub p99_us: f64,
    /// The latest.
    pub max_us: f64,
}

impl Lateness {
    pub(crate) fn new() -> Self {
        // Three digits are enough, and the bounds are constants that the library accepts.
        Self(Histogram::new_with_max(MAX_LATENESS_NS, 3).expect("constant bounds"))
    }

    pub(crate) fn record(&mut self, late_ns: u64) {
        self.0.saturating_record(late_ns);
    }

    /// Adds another link's.
    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing is out of them.
        let _ = self.0.add(&other.0);
    }

    /// The lateness that all packets but one of a thousand did not exceed, in microseconds. Of fewer
    /// than a thousand packets it is that of the latest.
    #[must_use]
    pub fn p999_us(&self) -> f64 {
        self.0.value_at_quantile(0.999) as f64 / 1e3
    }

    /// Its summary.
    #[must_use]
    pub fn summary(&self) -> LatenessSummary {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        LatenessSummary {
            packets: self.0.len(),
            mean_us: self.0.mean() / 1e3,
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            max_us: self.0.max() as f64 / 1e3,
        }
    }
}

/// Counters of a cell's link.
#[derive(Clone, Debug)]
pub struct CellReport {
    /// Client to server.
    pub up: Counters,
    /// Server to client.
    pub down: Counters,
    /// The same of each hop, in the order from the client to the server.
    pub hops_up: Vec<Counters>,
    /// Server to client.
    pub hops_down: Vec<Counters>,
    /// Lateness of packets.
    pub lateness: Lateness,
    /// Packets that the receiving kernel refused: not of the link's version of IP, or changed so that it isn't any more.
    pub refused: u64,
    /// Copies that the capture had no room for.
    pub capture_dropped: u64,
    /// Number of changes of the client's address.
    pub address_changes: u32,
    /// Packets of the server to an address that the client had before. They are not among those that
    /// were offered to the link.
    pub to_old_addresses: u64,
    /// Why the link stopped forwarding before it was told to, if it did.
    pub failure: Option<String>,
}

impl CellReport {
    /// One direction's counters.
    #[must_use]
    pub const fn counters(&self, direction: Direction) -> &Counters {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

/// A request to the forwarding thread.
enum Request {
    Report(usize, Sender<CellReport>),
    Change(usize, Box<LinkSettings>, Sender<io::Result<()>>),
    Switch(usize, Direction, bool, Sender<()>),
    Rebind(usize, Sender<IpAddr>),
    Stop,
}

/// A running emulator.
#[derive(Debug)]
pub struct Emulator {
    requests: Sender<Request>,
    wake: UnixStream,
    thread: Option<JoinHandle<io::Result<()>>>,
    has_real_time: bool,
}

impl Emulator {
    /// Starts forwarding between the devices of all cells.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges; no descriptors left.
    pub fn start(cells: Vec<Attachment>, options: EmulatorOptions) -> io::Result<Self> {
        let spin_ns = match thread::available_parallelism() {
            Ok(cores) if cores.get() > 1 && cells.len() <= MAX_SPINNING_CELLS => options.spin_ns,
            _ => 0,
        };
        let (requests, inbox) = channel();
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let (ready, started) = channel();
        let thread = thread::Builder::new()
            .name("link".into())
            .spawn(move || run(cells, options, spin_ns, &inbox, &woken, &ready))?;
        match started.recv() {
            Ok(Ok(has_real_time)) => Ok(Self {
                requests,
                wake,
                thread: Some(thread),
                has_real_time,
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the emulator's thread ended at once")),
        }
    }

    /// Whether the forwarding thread got real-time priority.
    #[must_use]
    pub const fn has_real_time(&self) -> bool {
        self.has_real_time
    }

    fn request(&self, request: Request) -> io::Result<()> {
        self.requests.send(request).map_err(|_| gone())?;
        match io::Write::write(&mut (&self.wake), &[1]) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            // Full means that it is about to wake up anyway.
            _ => Ok(()),
        }
    }

    /// The counters of a cell's link.
    ///
    /// # Errors
    ///
    /// When the emulator has failed.
    pub fn report(&self, cell: usize) -> io::Result<CellReport> {
        let (reply, answer) = channel();
        self.request(Request::Report(cell, reply))?;
        answer.recv().map_err(|_| gone())
    }

    /// Changes a cell's link for the packets to come.
    ///
    /// # Errors
    ///
    /// Settings outside their ranges; or the emulator has failed.
    pub fn change(&self, cell: usize, settings: &LinkSettings) -> io::Result<()> {
        let (reply, answer) = channel();
        self.request(Request::Change(cell, Box::new(settings.clone()), reply))?;
        answer.recv().map_err(|_| gone())?
    }

    /// Takes one direction of a cell's link down, or up again.
    ///
    /// # Errors
    ///
    /// When the emulator has failed.
    pub fn switch(&self, cell: usize, direction: Direction, is_on: bool) -> io::Result<()> {
        let (reply, answer) = channel();
        self.request(Request::Switch(cell, direction, is_on, reply))?;
        answer.recv().map_err(|_| gone())
    }

    /// Gives the client another address, as its server sees it; returns the address. The server's
    /// packets to the earlier one are lost.
    ///
    /// # Errors
    ///
    /// When the emulator has failed.
    pub fn rebind(&self, cell: usize) -> io::Result<IpAddr> {
        let (reply, answer) = channel();
        self.request(Request::Rebind(cell, reply))?;
        answer.recv().map_err(|_| gone())
    }

    /// Stops forwarding: packets on their way are dropped, and the devices are removed.
    ///
    /// # Errors
    ///
    /// Why the emulator failed, if it did.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let asked = self.request(Request::Stop);
        match thread.join() {
            Ok(result) => result.and(asked),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = self.end();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the emulator has stopped")
}

/// The forwarding thread.
fn run(
    cells: Vec<Attachment>,
    options: EmulatorOptions,
    spin_ns: u64,
    inbox: &Receiver<Request>,
    woken: &UnixStream,
    ready: &Sender<io::Result<bool>>,
) -> io::Result<()> {
    let has_real_time =
        options.real_time && crate::kernel::set_real_time(REAL_TIME_PRIORITY).is_ok();
    // As long as the links are there; without the right, lateness shows it.
    let _awake = crate::kernel::Awake::begin();
    // A coarse timer is seen in the lateness; it is no reason to stop.
    let _ = crate::kernel::set_timer_slack_ns(1);
    let mut forwarder = match forward::Forwarder::new(cells, spin_ns, woken.as_fd()) {
        Ok(forwarder) => {
            let _ = ready.send(Ok(has_real_time));
            forwarder
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    loop {
        if forwarder.turn()? {
            let mut bytes = [0; 64];
            while io::Read::read(&mut { woken }, &mut bytes).is_ok_and(|length| length > 0) {}
            for request in inbox.try_iter() {
                match request {
                    Request::Report(cell, reply) => {
                        if let Some(report) = forwarder.report(cell) {
                            let _ = reply.send(report);
                        }
                    }
                    Request::Change(cell, settings, reply) => {
                        let _ = reply.send(forwarder.change(cell, &settings));
                    }
                    Request::Switch(cell, direction, is_on, reply) => {
                        forwarder.switch(cell, direction, is_on);
                        let _ = reply.send(());
                    }
                    Request::Rebind(cell, reply) => {
                        if let Some(address) = forwarder.rebind(cell) {
                            let _ = reply.send(address);
                        }
                    }
                    Request::Stop => return Ok(()),
                }
            }
        }
    }
}

/// The model over packets as the kernel gives them.
type PacketLink = Link<Vec<u8>>;
