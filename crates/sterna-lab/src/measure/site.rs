//! Place of a run: two sides and the link between them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};

use super::negotiated::Negotiated;
use super::ns3::{self, Air, Simulation};
use super::run::Setting;
use crate::campaign::Transport;
use crate::emulator::{Attachment, Captured, Cell, CellReport, Emulator, EmulatorOptions, Event};
use crate::energy::exchange::FlowPacket;
use crate::energy::radio::RadioPacket;
use crate::link::{Counters, Direction, LinkSettings};
use crate::netns::{Family, NamespaceSettings, Side};
use crate::relay::{Relay, RelayOptions};

/// Priority of the thread that notes packets: below the emulator's.
const TIMELINE_PRIORITY: i32 = 2;
/// Copies of packets that wait to be noted.
const NOTED_PACKETS: usize = 8192;
/// Attempts to find a port that is free in both protocols.
const MAX_PORT_TRIES: usize = 16;

/// The emulator of the links of a campaign's runs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum SiteKind {
    /// Namespaces with TUN devices.
    Namespaces,
    /// A relay on the loopback device: needs no rights, and sees no packets of TCP.
    Relay,
    /// Namespaces with TAP devices, and ns-3 between them.
    Ns3,
}

impl SiteKind {
    /// Its name in samples.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "tun",
            Self::Relay => "relay",
            Self::Ns3 => "ns3",
        }
    }
}

/// A place.
#[derive(Debug)]
pub(super) enum Site {
    /// Two namespaces.
    Namespaces {
        cell: Cell,
        family: Family,
        emulator: Emulator,
        timeline: Timeline,
    },
    /// Two namespaces and ns-3.
    Ns3 { cell: Cell, simulation: Simulation },
    /// This host. The relay starts once the broker's port is known.
    Loopback {
        link: Box<LinkSettings>,
        family: Family,
        seed: u64,
        relay: Option<Relay>,
    },
}

/// Counters of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) up: Counters,
    pub(super) down: Counters,
    /// Energy of the client's radio since the start, where ns-3 counts it.
    pub(super) energy_j: Option<f64>,
    /// Activity on the air, and the part of the time that ns-3 was late, in percent; only where ns-3
    /// counts it.
    pub(super) air: Option<(Air, f64)>,
}

/// Lateness of packets at a link, in microseconds.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_field_names, reason = "units come last")]
pub(super) struct Late {
    /// 99 % were no later.
    pub(super) p99_us: f64,
    /// All but one of a thousand were no later.
    pub(super) p999_us: f64,
    /// The latest.
    pub(super) max_us: f64,
}

impl Late {
    pub(super) fn of(cell: &CellReport) -> Self {
        let summary = cell.lateness.summary();
        Self {
            p99_us: summary.p99_us,
            p999_us: cell.lateness.p999_us(),
            max_us: summary.max_us,
        }
    }
}

/// A site's measurements.
#[derive(Debug)]
pub(super) struct SiteReport {
    /// Client to server.
    pub(super) up: Counters,
    /// Server to client.
    pub(super) down: Counters,
    /// The same of each hop, in the order from the client to the server.
    pub(super) hops_up: Vec<Counters>,
    /// Server to client.
    pub(super) hops_down: Vec<Counters>,
    /// Lateness of the link; a relay does not know it.
    pub(super) late: Option<Late>,
    /// Packets that the receiving kernel refused.
    pub(super) refused: u64,
    /// Packets that the kernel dropped before the emulator could read them.
    pub(super) overflows: u64,
    /// Packets on the client's air; none where some are missing.
    pub(super) packets: Option<Vec<FlowPacket>>,
    /// When their time begins, on the monotonic clock.
    pub(super) packets_from_ns: u64,
    /// Negotiation of TLS or QUIC, as read off the link.
    pub(super) negotiated: Option<String>,
    /// Packets that the client had sent before anything came back.
    pub(super) unanswered: Option<u64>,
    /// TCP segments that the client's kernel sent again.
    pub(super) tcp_retransmissions_up: Option<u64>,
    /// The same of the server's.
    pub(super) tcp_retransmissions_down: Option<u64>,
    /// TCP connections whose first data came with their SYN.
    pub(super) fast_opens: Option<u64>,
}

impl Site {
    /// Makes it.
    pub(super) fn start(
        setting: &Setting<'_>,
        profile: &str,
        link: &LinkSettings,
        seed: u64,
        transport: &Transport,
    ) -> io::Result<Self> {
        let kind = setting.site;
        if kind == SiteKind::Relay {
            return Ok(Self::Loopback {
                link: Box::new(link.clone()),
                family: transport.family(),
                seed,
                relay: None,
            });
        }
        let cell = Cell::new()?;
        let family = transport.family();
        let namespaces = NamespaceSettings {
            family,
            mtu_bytes: Some(link.mtu_bytes()),
            congestion_control: transport.congestion.clone(),
            rto_min_ms: transport.rto_min_ms,
        };
        if kind == SiteKind::Ns3 {
            if family == Family::V6 {
                return Err(io::Error::other("ns-3's scenario has no IPv6"));
            }
            let taps = [
                cell.client.tap(Side::Client, &namespaces)?,
                cell.server.tap(Side::Server, &namespaces)?,
            ];
            let program = setting.data.join(ns3::PROGRAM);
            let simulation =
                Simulation::start(&program, profile, link, seed, taps).map_err(io::Error::other)?;
            return Ok(Self::Ns3 { cell, simulation });
        }
        let devices = cell.devices(&namespaces)?;
        let (timeline, capture) = Timeline::start()?;
        let mut options = EmulatorOptions::default();
        if !setting.spin {
            options.spin_ns = 0;
        }
        let attachment = Attachment {
            devices,
            settings: link.clone(),
            seed,
            capture: Some(capture),
        };
        let emulator = Emulator::start(vec![attachment], options)?;
        Ok(Self::Namespaces {
            cell,
            family,
            emulator,
            timeline,
        })
    }

    /// Its namespaces, where it has some.
    pub(super) const fn cell(&self) -> Option<&Cell> {
        match self {
            Self::Namespaces { cell, .. } | Self::Ns3 { cell, .. } => Some(cell),
            Self::Loopback { .. } => None,
        }
    }

    /// A command on a side. In a namespace it is killed when the thread that spawns it ends.
    pub(super) fn command(&self, side: Side, program: &std::path::Path) -> Command {
        let mut command = Command::new(program);
        if let Some(cell) = self.cell() {
            crate::session::mark(&mut command);
            cell.namespace(side).adopt(&mut command);
        }
        command
    }

    /// The address on which a broker listens.
    pub(super) const fn listen_address(&self) -> IpAddr {
        match self {
            // The link's side, and the loopback device beside it.
            Self::Namespaces { family, .. } => family.unspecified(),
            Self::Ns3 { .. } => Family::V4.unspecified(),
            Self::Loopback { family, .. } => family.localhost(),
        }
    }

    /// Where a program beside the broker reaches it.
    pub(super) const fn beside_address(&self) -> IpAddr {
        self.family().localhost()
    }

    /// The version of IP between the sides.
    pub(super) const fn family(&self) -> Family {
        match self {
            Self::Namespaces { family, .. } | Self::Loopback { family, .. } => *family,
            Self::Ns3 { .. } => Family::V4,
        }
    }

    /// Where a client reaches a broker that listens on this port.
    pub(super) fn reach(&mut self, port: u16) -> io::Result<SocketAddr> {
        match self {
            Self::Namespaces { .. } | Self::Ns3 { .. } => {
                Ok((Side::Server.address(self.family()), port).into())
            }
            Self::Loopback {
                link,
                family,
                seed,
                relay,
            } => {
                let (listener, socket) = local_sockets(*family)?;
                let address = listener.local_addr()?;
                *relay = Some(Relay::start(RelayOptions {
                    listener,
                    socket,
                    target: (family.localhost(), port).into(),
                    link: link.as_ref().clone(),
                    seed: *seed,
                })?);
                Ok(address)
            }
        }
    }

    /// The link's counts so far; a relay tells them at its end only.
    pub(super) fn passed(&mut self) -> io::Result<Option<Passed>> {
        match self {
            Self::Namespaces { emulator, .. } => {
                let report = emulator.report(0)?;
                Ok(Some(Passed {
                    up: report.up,
                    down: report.down,
                    energy_j: None,
                    air: None,
                }))
            }
            Self::Ns3 { simulation, .. } => {
                let seen = simulation.look()?;
                Ok(Some(Passed {
                    up: seen.up,
                    down: seen.down,
                    energy_j: seen.energy_j,
                    air: seen.air.map(|air| (air, seen.late_percent)),
                }))
            }
            Self::Loopback { .. } => Ok(None),
        }
    }

    /// Gives the client another address, as the server sees it.
    pub(super) fn rebind(&self) -> Result<(), String> {
        match self {
            Self::Namespaces { emulator, .. } => emulator
                .rebind(0)
                .map(drop)
                .map_err(|error| error.to_string()),
            Self::Loopback { .. } => Err("a relay cannot change the client's address".into()),
            Self::Ns3 { .. } => Err("ns-3's scenario cannot change the client's address".into()),
        }
    }

    /// Takes the power from the server's host, as its peers see it, or gives it back. Nothing passes the link
    /// without it. Connections of processes that are killed meanwhile are forgotten by the kernel soon, as by
    /// a host that starts again.
    pub(super) fn power(&self, is_on: bool) -> Result<(), String> {
        let Self::Namespaces { cell, emulator, .. } = self else {
            return Err("a power cut needs `--emulator tun`".into());
        };
        cell.server
            .forget_orphans()
            .map_err(|error| error.to_string())?;
        for direction in Direction::BOTH {
            emulator
                .switch(0, direction, is_on)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Ends it. All processes must have ended.
    pub(super) fn finish(self) -> io::Result<SiteReport> {
        match self {
            Self::Namespaces {
                cell,
                emulator,
                timeline,
                ..
            } => {
                let overflows = cell.client.overflows()? + cell.server.overflows()?;
                let (up, down) = retransmissions(&cell);
                let fast_opens = cell.server.tcp_fast_opens().ok().flatten();
                let report = emulator.report(0);
                emulator.stop()?;
                let report = report?;
                if let Some(failure) = &report.failure {
                    return Err(io::Error::other(format!("the link failed: {failure}")));
                }
                let noted = timeline.finish();
                let packets = noted.packets;
                Ok(SiteReport {
                    up: report.up,
                    down: report.down,
                    hops_up: report.hops_up.clone(),
                    hops_down: report.hops_down.clone(),
                    overflows,
                    unanswered: Some(
                        packets.iter().take_while(|it| it.packet.is_sent).count() as u64
                    ),
                    negotiated: noted.negotiated,
                    packets: (report.capture_dropped == 0).then_some(packets),
                    packets_from_ns: noted.from_ns,
                    tcp_retransmissions_up: up,
                    tcp_retransmissions_down: down,
                    fast_opens,
                    late: Some(Late::of(&report)),
                    refused: report.refused,
                })
            }
            Self::Ns3 {
                cell,
                mut simulation,
            } => {
                let (up, down) = retransmissions(&cell);
                let fast_opens = cell.server.tcp_fast_opens().ok().flatten();
                let seen = simulation.look()?;
                simulation.stop();
                Ok(SiteReport {
                    up: seen.up,
                    down: seen.down,
                    hops_up: vec![seen.up],
                    hops_down: vec![seen.down],
                    // ns-3 reads frames as they come, and counts those that don't fit.
                    overflows: cell.client.overflows()? + cell.server.overflows()?,
                    packets: None,
                    packets_from_ns: 0,
                    negotiated: None,
                    unanswered: None,
                    tcp_retransmissions_up: up,
                    tcp_retransmissions_down: down,
                    fast_opens,
                    late: Some(seen.late),
                    refused: 0,
                })
            }
            Self::Loopback { relay, .. } => {
                let relay = relay.ok_or_else(|| io::Error::other("nothing was reached"))?;
                let report = relay.stop()?;
                let is_udp = report.datagrams_up.offered_packets > 0;
                let (up, down) = if is_udp {
                    (report.datagrams_up, report.datagrams_down)
                } else {
                    (report.streams_up, report.streams_down)
                };
                Ok(SiteReport {
                    up,
                    down,
                    hops_up: Vec::new(),
                    hops_down: Vec::new(),
                    late: None,
                    refused: 0,
                    overflows: 0,
                    packets: None,
                    packets_from_ns: 0,
                    negotiated: None,
                    unanswered: None,
                    tcp_retransmissions_up: None,
                    tcp_retransmissions_down: None,
                    fast_opens: None,
                })
            }
        }
    }
}

/// TCP segments that were sent again, by the client's and by the server's kernel.
fn retransmissions(cell: &Cell) -> (Option<u64>, Option<u64>) {
    let of = |side: Side| cell.namespace(side).tcp_retransmissions().ok().flatten();
    (of(Side::Client), of(Side::Server))
}

/// A port of the loopback device that is free for both protocols.
fn local_sockets(family: Family) -> io::Result<(TcpListener, UdpSocket)> {
    for _ in 0..MAX_PORT_TRIES {
        let listener = TcpListener::bind((family.localhost(), 0))?;
        if let Ok(socket) = UdpSocket::bind(listener.local_addr()?) {
            return Ok((listener, socket));
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Times of packets on the client's air, and their lengths.
#[derive(Debug)]
pub(super) struct Timeline {
    thread: JoinHandle<Noted>,
}

/// Notes of a time line.
#[derive(Debug)]
struct Noted {
    packets: Vec<FlowPacket>,
    /// When their time begins, on the monotonic clock.
    from_ns: u64,
    negotiated: Option<String>,
}

impl Timeline {
    fn start() -> io::Result<(Self, SyncSender<Captured>)> {
        let (sender, copies): (_, Receiver<Captured>) = sync_channel(NOTED_PACKETS);
        let thread = thread::Builder::new()
            .name("timeline".into())
            .stack_size(128 << 10)
            .spawn(move || {
                // It frees memory of the emulator's thread. Without priority it could be stopped in
                // the middle of that, and delay the emulator.
                let _ = crate::kernel::set_real_time(TIMELINE_PRIORITY);
                let mut packets: Vec<FlowPacket> = Vec::new();
                let mut negotiated = Negotiated::default();
                let mut start_ns = None;
                for copy in copies {
                    if copy.side != Side::Client {
                        continue;
                    }
                    // Packets that the link dropped were sent, too.
                    let is_sent = matches!(copy.event, Event::Sent(_));
                    negotiated.look(&copy.packet, is_sent);
                    let start_ns = *start_ns.get_or_insert(copy.at_ns);
                    packets.push(FlowPacket {
                        packet: RadioPacket {
                            at_s: copy.at_ns.saturating_sub(start_ns) as f64 / 1e9,
                            bytes: u32::try_from(copy.packet.len()).unwrap_or(u32::MAX),
                            is_sent,
                        },
                        port: FlowPacket::client_port(&copy.packet, is_sent),
                    });
                }
                Noted {
                    packets,
                    from_ns: start_ns.unwrap_or(0),
                    negotiated: negotiated.outcome(),
                }
            })?;
        Ok((Self { thread }, sender))
    }

    /// The packets in their order, and their negotiation, after the emulator has stopped.
    fn finish(self) -> Noted {
        match self.thread.join() {
            Ok(mut noted) => {
                let packets = &mut noted.packets;
                packets.sort_by(|a, b| a.packet.at_s.total_cmp(&b.packet.at_s));
                noted
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
