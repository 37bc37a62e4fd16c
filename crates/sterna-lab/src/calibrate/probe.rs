//! Datagrams with a number and a time, sent through a link and compared with when they arrive.
//!
//! Both ends are on one machine and read one clock, so one-way delays are exact.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::emulator::{Cell, CellReport, Emulator, EmulatorOptions};
use crate::kernel::{self, Epoll};
use crate::link::{Direction, LinkSettings};
use crate::netns::{Family, NamespaceSettings, Side};

/// Bytes of UDP's header.
const UDP_BYTES: usize = 8;
/// The smallest probe: a number and a time.
pub(super) const MIN_PROBE_BYTES: usize = 16;
/// Priority of the probes' threads: that of an experiment's endpoints.
const REAL_TIME_PRIORITY: i32 = 1;
/// A sender that is late sends at most this many at once, so that it doesn't fill the kernel's queue.
const MAX_BURST: u64 = 128;
/// Interval of a receiver's checks whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const PORT: u16 = 4000;

/// The packets to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Where to.
    pub(super) direction: Direction,
    /// Time between two packets.
    pub(super) interval_ns: u64,
    /// Bytes of a packet with its headers.
    pub(super) length_bytes: usize,
    /// Duration of sending.
    pub(super) duration: Duration,
    /// Whether to wait for packets on their way.
    pub(super) drain: bool,
}

/// Bytes of the headers of a probe.
pub(super) const fn header_bytes(family: Family) -> usize {
    family.header_bytes() + UDP_BYTES
}

/// One probe that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) number: u64,
    pub(super) sent_ns: u64,
    pub(super) arrived_ns: u64,
}

/// Result of a plan.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) sent: u64,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) report: CellReport,
    pub(super) has_real_time: bool,
    /// Packets that the kernel dropped before the emulator.
    pub(super) overflows: u64,
}

impl Measured {
    /// One-way times, in nanoseconds.
    pub(super) fn times_ns(&self) -> Vec<u64> {
        self.arrivals
            .iter()
            .map(|arrival| arrival.arrived_ns.saturating_sub(arrival.sent_ns))
            .collect()
    }

    /// Packets that came after one that was sent later.
    pub(super) fn inversions(&self) -> usize {
        self.arrivals
            .windows(2)
            .filter(|pair| pair[1].number < pair[0].number)
            .count()
    }
}

/// Sends probes over a link of its own.
pub(super) fn run(
    link: &LinkSettings,
    family: Family,
    seed: u64,
    plan: &Plan,
) -> io::Result<Measured> {
    let cell = Cell::new()?;
    let devices = cell.devices(&NamespaceSettings {
        family,
        mtu_bytes: Some(link.mtu_bytes()),
        ..NamespaceSettings::default()
    })?;
    let emulator = Emulator::start(
        vec![crate::emulator::Attachment {
            devices,
            settings: link.clone(),
            seed,
            capture: None,
        }],
        EmulatorOptions::default(),
    )?;
    let (from, to) = match plan.direction {
        Direction::Up => (Side::Client, Side::Server),
        Direction::Down => (Side::Server, Side::Client),
    };
    let bind = |side: Side| {
        cell.namespace(side)
            .run(move || UdpSocket::bind((side.address(family), PORT)))
    };
    let (sender, receiver) = (bind(from)?, bind(to)?);
    receiver.set_read_timeout(Some(LOOK_EVERY))?;
    // As much as the system lets one have.
    let _ = socket2::SockRef::from(&receiver).set_recv_buffer_size(8 << 20);
    let is_done = AtomicBool::new(false);
    let (sent, arrivals) = thread::scope(|scope| {
        let (ready, started) = channel();
        let (receiver, is_done) = (&receiver, &is_done);
        let receiving = scope.spawn(move || {
            // Without the right to it, the times have no priority.
            let _ = kernel::set_real_time(REAL_TIME_PRIORITY);
            let _ = ready.send(());
            receive(receiver, is_done)
        });
        let _ = started.recv();
        let sending = scope.spawn(|| {
            let _ = kernel::set_real_time(REAL_TIME_PRIORITY);
            let _ = kernel::set_timer_slack_ns(1);
            send(&sender, SocketAddr::from((to.address(family), PORT)), plan)
        });
        let sent = joined(sending.join());
        if plan.drain {
            let pipes = link.pipes(plan.direction).into_iter();
            let travel_ns: u64 = pipes
                .map(|pipe| pipe.delay_ns + 10 * pipe.jitter.width_ns())
                .sum();
            thread::sleep(Duration::from_nanos(travel_ns) + Duration::from_millis(50));
        }
        is_done.store(true, Ordering::Relaxed);
        let arrivals = joined(receiving.join());
        Ok::<_, io::Error>((sent?, arrivals?))
    })?;
    let report = emulator.report(0)?;
    let has_real_time = emulator.has_real_time();
    let overflows = cell.client.overflows()? + cell.server.overflows()?;
    emulator.stop()?;
    Ok(Measured {
        sent,
        arrivals,
        report,
        has_real_time,
        overflows,
    })
}

/// Result of a TCP connection through a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct BulkTransfer {
    /// Packets in the second half of the time.
    pub(super) packets: u64,
    /// Their bytes, with headers.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// Fills a link with one TCP connection of the kernel, upwards. The first half of the time is for
/// its start.
pub(super) fn run_tcp(
    link: &LinkSettings,
    family: Family,
    seed: u64,
    congestion_control: &str,
    duration: Duration,
) -> io::Result<(BulkTransfer, CellReport, bool)> {
    let cell = Cell::new()?;
    let devices = cell.devices(&NamespaceSettings {
        family,
        mtu_bytes: Some(link.mtu_bytes()),
        congestion_control: Some(congestion_control.to_owned()),
        ..NamespaceSettings::default()
    })?;
    let emulator = Emulator::start(
        vec![crate::emulator::Attachment {
            devices,
            settings: link.clone(),
            seed,
            capture: None,
        }],
        EmulatorOptions::default(),
    )?;
    let listener = cell
        .server
        .run(|| TcpListener::bind((Side::Server.address(family), PORT)))?;
    let mut stream = cell
        .client
        .run(|| TcpStream::connect((Side::Server.address(family), PORT)))?;
    let (mut accepted, _) = listener.accept()?;
    stream.set_write_timeout(Some(LOOK_EVERY))?;
    let is_done = AtomicBool::new(false);
    let transfer = thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 128 << 10];
            while io::Read::read(&mut accepted, &mut buffer).is_ok_and(|length| length > 0) {}
        });
        scope.spawn(|| {
            let chunk = vec![0; 128 << 10];
            while !is_done.load(Ordering::Relaxed) {
                match io::Write::write(&mut stream, &chunk) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
                    _ => {}
                }
            }
            // Unsent bytes would keep the reader waiting.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        let look = || {
            emulator
                .report(0)
                .map(|report| (kernel::monotonic_ns(), report.up))
        };
        thread::sleep(duration / 2);
        let first = look();
        thread::sleep(duration / 2);
        let last = look();
        is_done.store(true, Ordering::Relaxed);
        let ((from_ns, first), (to_ns, last)) = (first?, last?);
        Ok::<_, io::Error>(BulkTransfer {
            packets: last.delivered_packets - first.delivered_packets,
            bytes: last.delivered_bytes - first.delivered_bytes,
            seconds: (to_ns - from_ns) as f64 / 1e9,
        })
    })?;
    let report = emulator.report(0)?;
    let has_real_time = emulator.has_real_time();
    emulator.stop()?;
    Ok((transfer, report, has_real_time))
}

/// Descriptors of a link: two devices, two sockets. Those keep the namespaces.
const DESCRIPTORS_PER_LINK: u64 = 4;
/// Descriptors of everything else.
const OTHER_DESCRIPTORS: u64 = 64;

/// Sends one probe a second over each of many links at once, in turn.
pub(super) fn run_many(
    links: usize,
    settings: &LinkSettings,
    family: Family,
    duration: Duration,
) -> io::Result<Measured> {
    let limit = kernel::raise_open_files()?;
    if links as u64 * DESCRIPTORS_PER_LINK + OTHER_DESCRIPTORS > limit {
        return Err(io::Error::other(format!(
            "{links} links need more than the {limit} files that may be open"
        )));
    }
    let mut attachments = Vec::new();
    let mut sockets = Vec::new();
    let mut epoll = Epoll::new()?;
    for number in 0..links {
        let cell = Cell::new()?;
        let devices = cell.devices(&NamespaceSettings {
            family,
            ..NamespaceSettings::default()
        })?;
        attachments.push(crate::emulator::Attachment {
            devices,
            settings: settings.clone(),
            seed: number as u64,
            capture: None,
        });
        let bind = |side: Side| {
            cell.namespace(side)
                .run(move || UdpSocket::bind((side.address(family), PORT)))
        };
        let (sender, receiver) = (bind(Side::Client)?, bind(Side::Server)?);
        receiver.set_nonblocking(true)?;
        epoll.add(receiver.as_fd(), number as u64, true, false)?;
        sockets.push((sender, receiver));
    }
    let (wake, woken) = std::os::unix::net::UnixStream::pair()?;
    epoll.add(woken.as_fd(), u64::MAX, true, false)?;
    let emulator = Emulator::start(attachments, EmulatorOptions::default())?;
    let (sent, arrivals) = thread::scope(|scope| {
        let sockets = &sockets;
        let receiving = scope.spawn(move || {
            let _ = kernel::set_real_time(REAL_TIME_PRIORITY);
            let mut arrivals = Vec::new();
            let mut ready = Vec::new();
            let mut buffer = [0; 64];
            loop {
                epoll.wait(true, &mut ready)?;
                for token in &ready {
                    let Some((_, receiver)) = sockets.get(*token as usize) else {
                        return Ok(arrivals);
                    };
                    while let Ok(length) = receiver.recv(&mut buffer) {
                        arrivals.extend(arrival(&buffer[..length]));
                    }
                }
            }
        });
        let sending = scope.spawn(move || {
            let _ = kernel::set_real_time(REAL_TIME_PRIORITY);
            let _ = kernel::set_timer_slack_ns(1);
            let to = SocketAddr::from((Side::Server.address(family), PORT));
            let start_ns = kernel::monotonic_ns();
            let interval_ns = 1_000_000_000 / sockets.len() as u64;
            let packets = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX) / interval_ns;
            for number in 0..packets {
                let due_ns = start_ns + number * interval_ns;
                thread::sleep(Duration::from_nanos(
                    due_ns.saturating_sub(kernel::monotonic_ns()),
                ));
                let mut probe = [0; MIN_PROBE_BYTES];
                probe[..8].copy_from_slice(&number.to_le_bytes());
                probe[8..].copy_from_slice(&kernel::monotonic_ns().to_le_bytes());
                let (sender, _) = &sockets[(number % sockets.len() as u64) as usize];
                sender.send_to(&probe, to)?;
            }
            Ok(packets)
        });
        let sent = joined(sending.join());
        thread::sleep(Duration::from_nanos(settings.up.delay_ns) + Duration::from_millis(50));
        drop(wake);
        let arrivals = joined(receiving.join());
        Ok::<_, io::Error>((sent?, arrivals?))
    })?;
    let mut report = emulator.report(0)?;
    for number in 1..links {
        let other = emulator.report(number)?;
        report.lateness.add(&other.lateness);
    }
    let has_real_time = emulator.has_real_time();
    emulator.stop()?;
    Ok(Measured {
        sent,
        arrivals,
        report,
        has_real_time,
        overflows: 0,
    })
}

fn joined<T>(result: thread::Result<io::Result<T>>) -> io::Result<T> {
    match result {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn send(socket: &UdpSocket, to: SocketAddr, plan: &Plan) -> io::Result<u64> {
    let mut probe = vec![
        0;
        plan.length_bytes
            .saturating_sub(header_bytes(to.ip().into()))
            .max(MIN_PROBE_BYTES)
    ];
    let start_ns = kernel::monotonic_ns();
    let end_ns = start_ns + u64::try_from(plan.duration.as_nanos()).unwrap_or(u64::MAX);
    let interval_ns = plan.interval_ns.max(1);
    let mut number = 0_u64;
    // Packets that fell out of the plan because the sender was late.
    let mut skipped = 0_u64;
    loop {
        let now_ns = kernel::monotonic_ns();
        if now_ns >= end_ns {
            return Ok(number);
        }
        let wanted = (now_ns - start_ns) / interval_ns + 1;
        let behind = wanted.saturating_sub(number + skipped);
        if behind > MAX_BURST {
            skipped += behind - MAX_BURST;
        }
        for _ in 0..behind.min(MAX_BURST) {
            probe[..8].copy_from_slice(&number.to_le_bytes());
            probe[8..16].copy_from_slice(&kernel::monotonic_ns().to_le_bytes());
            match socket.send_to(&probe, to) {
                Ok(_) => number += 1,
                // The kernel's queue is full: less is sent.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => skipped += 1,
                Err(error) => return Err(error),
            }
        }
        let next_ns = start_ns + (number + skipped) * interval_ns;
        let now_ns = kernel::monotonic_ns();
        if next_ns > now_ns {
            // At high rates one wake-up sends several.
            thread::sleep(Duration::from_nanos((next_ns - now_ns).max(100_000)));
        }
    }
}

fn receive(socket: &UdpSocket, is_done: &AtomicBool) -> io::Result<Vec<Arrival>> {
    let mut arrivals = Vec::new();
    let mut buffer = vec![0; 65_536];
    while !is_done.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(length) => arrivals.extend(arrival(&buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(arrivals)
}

/// A probe that arrives now.
fn arrival(probe: &[u8]) -> Option<Arrival> {
    let arrived_ns = kernel::monotonic_ns();
    let field = |at: usize| {
        probe
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u64::from_le_bytes)
    };
    Some(Arrival {
        number: field(0)?,
        sent_ns: field(8)?,
        arrived_ns,
    })
}
