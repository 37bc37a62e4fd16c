//! `sterna-lab link`: any command behind a link.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use sterna_lab::calibrate::Machine;
use sterna_lab::emulator::{CellReport, EmulatorOptions, LatenessSummary};
use sterna_lab::link::{Cause, Counters, LinkSettings};
use sterna_lab::netns::{Family, Side};
use sterna_lab::quantity;
use sterna_lab::relay::{Relay, RelayOptions};
use sterna_lab::session::{self, Backend, LabSession, SessionOptions, SessionReport, StartError};

use super::settings::{self, LinkArgs};
use crate::console;

/// Interval of checks whether the command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time that the command has to end after Ctrl-C, which it gets as well.
const GRACE: Duration = Duration::from_secs(2);
/// Longest time until a server listens.
const SERVER_START: Duration = Duration::from_secs(10);
/// Attempts to find a port that is free in both protocols.
const MAX_PORT_TRIES: usize = 16;
/// A shell's exit status for a command that a signal has ended, less the signal.
const SIGNAL_BASE: u8 = 128;
/// A shell's exit status if there is no such command, or it cannot be run.
const NO_COMMAND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Run a command behind an emulated link.
///
/// The command runs in a network of its own. The link is its only way out, and leads to a second
/// network, in which a server may run. Both are gone afterwards.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// The emulator of the link
    #[arg(long, value_name = "KIND", default_value = "tun")]
    emulator: Emulator,
    /// Make it a link of IPv6, and of nothing else
    #[arg(long)]
    ipv6: bool,
    /// Congestion control of TCP on both sides, overrides the programs' choice: cubic, reno, bbr
    /// [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Run this on the other side, by the shell; it is ended after the command
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
    /// Start the command when the server listens on this TCP or UDP port [default: on any]
    #[arg(long, value_name = "PORT", requires = "server")]
    wait: Option<u16>,
    /// Lead the link to this server outside of the lab, instead of running one: the command reaches
    /// it at LAB_SERVER and LAB_PORT
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "server")]
    to: Option<String>,
    /// Give the command another address, as the server sees it, so long after the command started;
    /// may be repeated
    #[arg(long, value_name = "TIME", value_parser = quantity::time_ns)]
    rebind: Vec<u64>,
    /// Record packets, with TLS secrets: FILE.client.pcapng and FILE.server.pcapng
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write the link's counters to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Say nothing about the link at the end
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

const HELP: &str = "\
Values of the link are for both directions, or UP/DOWN, up being from the command:
  --rate 159kbit/127kbit    --loss 2%/none    --delay 25ms/0

The command finds in its environment:
  LAB_SERVER, LAB_CLIENT                 addresses of the other side, and its own
  LAB_PORT                               with --to: the port there
  LAB_SERVER_NETNS, LAB_CLIENT_NETNS     for nsenter --net=$LAB_SERVER_NETNS COMMAND
  SSLKEYLOGFILE                          with --capture

Examples:
  sterna-lab link --profile nb-iot --server 'mosquitto -c lab.conf' -- \\
      sh -c 'mosquitto_pub -h $LAB_SERVER -t x -m 21.5'
  sterna-lab link --profile lte --to broker.example:1883 -- \\
      sh -c 'mosquitto_pub -h $LAB_SERVER -p $LAB_PORT -t x -m 21.5'
  sterna-lab link --rtt 600ms --loss 2% --congestion cubic --server 'sterna serve -c lab.toml' \\
      -- sh -c 'sterna pub mqtt+quic://$LAB_SERVER -t x -m 21.5'

The exit status is the command's.";

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Emulator {
    /// The lab's own, between two network namespaces; needs root, or a /dev/net/tun that is open to all
    Tun,
    /// The kernel's netem, between two network namespaces; needs root and a kernel that has it
    Netem,
    /// A relay on this host, in user space; needs no rights, but --to. Datagrams are delayed,
    /// lost and limited; of TCP only the bytes are delayed and limited, its packets are not seen
    Proxy,
    /// ns-3 in real time: for campaigns only, `sterna-lab run --emulator ns3`
    Ns3,
}

/// Signals that end the lab.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    match run_link(args) {
        Ok(code) => code,
        Err(error) => console::fail(error),
    }
}

fn run_link(args: &Args) -> Result<ExitCode, String> {
    let link = args.link.settings()?;
    let target = match &args.to {
        Some(target) => Some(resolve(target)?),
        None => None,
    };
    let backend = match args.emulator {
        Emulator::Tun => Backend::Tun,
        Emulator::Netem => Backend::Netem,
        Emulator::Proxy => return run_behind_relay(args, &link, target),
        Emulator::Ns3 => {
            return Err(
                "ns-3 has a campaign's links only (sterna-lab run --emulator ns3): `--emulator tun` \
                 emulates any link"
                    .into(),
            );
        }
    };
    if backend == Backend::Netem && !args.rebind.is_empty() {
        return Err("--rebind needs `--emulator tun`".into());
    }
    session::gain_rights();
    let caught = catch_signals()?;
    let session = LabSession::start(&SessionOptions {
        link: link.clone(),
        family: Family::of(args.ipv6),
        seed: args.link.seed,
        backend,
        congestion_control: args.congestion.clone(),
        capture: args.capture.clone(),
        emulator: EmulatorOptions::default(),
    })
    .map_err(|error| match error {
        StartError::Unavailable(why) if backend == Backend::Tun => format!("{why}\n{OFFER}"),
        error => error.to_string(),
    })?;
    let relay = match target {
        Some(target) => Some(
            session
                .relay(target)
                .map_err(|error| format!("cannot relay to {target}: {error}"))?,
        ),
        None => None,
    };
    let result = run_commands(args, &session, target, &caught);
    drop(relay);
    let report = session.finish().map_err(|error| format!("lab: {error}"))?;
    let code = result?;
    if let Some(path) = &args.report {
        write_report(path, args, &link, &report)?;
    }
    if !args.quiet {
        let text = statistics(args, &link, &report);
        // If standard error is closed, the text has no reader.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    Ok(code)
}

/// Content of `--report`.
#[derive(Serialize)]
struct Report<'a> {
    profile: &'a str,
    ip_version: u8,
    seed: u64,
    settings: &'a LinkSettings,
    congestion_control: String,
    up: Option<&'a Counters>,
    down: Option<&'a Counters>,
    hops_up: Option<&'a [Counters]>,
    hops_down: Option<&'a [Counters]>,
    lateness: Option<LatenessSummary>,
    overflows: u64,
    machine: Machine,
}

fn write_report(
    path: &Path,
    args: &Args,
    link: &LinkSettings,
    session: &SessionReport,
) -> Result<(), String> {
    let machine = Machine::look();
    let report = Report {
        profile: &args.link.profile,
        ip_version: if args.ipv6 { 6 } else { 4 },
        seed: args.link.seed,
        settings: link,
        congestion_control: args
            .congestion
            .clone()
            .unwrap_or_else(|| machine.congestion_control.clone()),
        up: session.link.as_ref().map(|cell| &cell.up),
        down: session.link.as_ref().map(|cell| &cell.down),
        hops_up: session.link.as_ref().map(|cell| &*cell.hops_up),
        hops_down: session.link.as_ref().map(|cell| &*cell.hops_down),
        lateness: session.link.as_ref().map(|cell| cell.lateness.summary()),
        overflows: session.overflows,
        machine,
    };
    let text = serde_json::to_string(&report).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}

/// Possible without rights.
const OFFER: &str = "without that, `--emulator proxy --to HOST:PORT` emulates delay, rate and the \
                     loss of datagrams in user space; --help names its limits";

/// The first address of a server.
fn resolve(target: &str) -> Result<SocketAddr, String> {
    target
        .to_socket_addrs()
        .map_err(|error| format!("{target}: {error}"))?
        .next()
        .ok_or_else(|| format!("{target}: has no address"))
}

/// Runs the command on this host, with a relay that it can connect to.
fn run_behind_relay(
    args: &Args,
    link: &LinkSettings,
    target: Option<SocketAddr>,
) -> Result<ExitCode, String> {
    let target = target.ok_or("--emulator proxy needs --to HOST:PORT, the server that is meant")?;
    if args.capture.is_some()
        || args.congestion.is_some()
        || args.report.is_some()
        || !args.rebind.is_empty()
    {
        return Err(
            "--capture, --congestion, --report and --rebind need `--emulator tun`: a relay has no packets"
                .into(),
        );
    }
    let caught = catch_signals()?;
    let failed = |error: io::Error| format!("cannot make a relay: {error}");
    let (listener, socket) = local_sockets(Family::of(args.ipv6)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let relay = Relay::start(RelayOptions {
        listener,
        socket,
        target,
        link: link.clone(),
        seed: args.link.seed,
    })
    .map_err(failed)?;
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or("there is no command to run")?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LAB_SIDE", Side::Client.name())
        .env("LAB_CLIENT", address.ip().to_string())
        .env("LAB_SERVER", address.ip().to_string())
        .env("LAB_PORT", address.port().to_string());
    let code = match command.spawn() {
        Ok(mut child) => wait(&mut child, None, &[], &caught)?,
        Err(error) => cannot_run(&command, &error),
    };
    let report = relay.stop().map_err(|error| format!("relay: {error}"))?;
    if !args.quiet {
        let text = format!(
            "relay {} (seed {})\n{} UDP\n{} TCP, {} connections, {} failed; \
             its bytes as packets would carry them, without acknowledgements\n{}",
            args.link.profile,
            args.link.seed,
            settings::describe_link(link),
            table(&report.datagrams_up, &report.datagrams_down),
            report.connections,
            report.failed_connections,
            table(&report.streams_up, &report.streams_down),
        );
        // If standard error is closed, the text has no reader.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    Ok(code)
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

/// A number that becomes that of the signal which has come.
fn catch_signals() -> Result<Arc<AtomicUsize>, String> {
    let caught = Arc::new(AtomicUsize::new(0));
    for signal in SIGNALS {
        signal_hook::flag::register_usize(
            signal,
            Arc::clone(&caught),
            signal.unsigned_abs() as usize,
        )
        .map_err(|error| format!("cannot catch signals: {error}"))?;
    }
    Ok(caught)
}

fn run_commands(
    args: &Args,
    session: &LabSession,
    target: Option<SocketAddr>,
    caught: &AtomicUsize,
) -> Result<ExitCode, String> {
    let mut server = match &args.server {
        Some(line) => {
            let mut command = session.command(Side::Server, "sh");
            // The server's output must not mix with that of the command.
            let stdout = io::stderr()
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| format!("standard error: {error}"))?;
            command
                .arg("-c")
                .arg(line)
                .stdin(Stdio::null())
                .stdout(stdout);
            let child = command
                .spawn()
                .map_err(|error| format!("cannot start the server: {error}"))?;
            Some(child)
        }
        None => None,
    };
    if let Some(server) = &mut server
        && let Some(code) = wait_for_server(args, session, server, caught)?
    {
        return Ok(code);
    }
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or("there is no command to run")?;
    let mut command = session.command(Side::Client, program);
    command.args(arguments);
    if let Some(target) = target {
        command.env("LAB_PORT", target.port().to_string());
    }
    let code = match command.spawn() {
        Ok(mut child) => wait(&mut child, Some(session), &args.rebind, caught)?,
        Err(error) => cannot_run(&command, &error),
    };
    Ok(code)
}

fn cannot_run(command: &Command, error: &io::Error) -> ExitCode {
    eprintln!("sterna: {}: {error}", command.get_program().display());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        NO_COMMAND
    } else {
        NOT_RUNNABLE
    })
}

/// Waits until the server listens. A code says that there is nothing more to do.
fn wait_for_server(
    args: &Args,
    session: &LabSession,
    server: &mut Child,
    caught: &AtomicUsize,
) -> Result<Option<ExitCode>, String> {
    let began = Instant::now();
    while !session
        .cell()
        .server
        .has_listener(args.wait)
        .map_err(|error| format!("cannot see whether the server listens: {error}"))?
    {
        if let Some(status) = ended(server)? {
            return Err(format!("the server ended before it listened: {status}"));
        }
        if began.elapsed() > SERVER_START {
            let what = args.wait.map_or_else(
                || "any port".to_owned(),
                |port| SocketAddr::from((session.address(Side::Server), port)).to_string(),
            );
            return Err(format!(
                "the server does not listen on {what} after {} seconds",
                SERVER_START.as_secs()
            ));
        }
        if let Some(code) = signal_code(caught) {
            return Ok(Some(code));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>, String> {
    child
        .try_wait()
        .map_err(|error| format!("cannot wait for a process: {error}"))
}

fn signal_code(caught: &AtomicUsize) -> Option<ExitCode> {
    match caught.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(ExitCode::from(SIGNAL_BASE + signal as u8)),
    }
}

/// Waits for the command, and makes it end when the lab has to.
fn wait(
    child: &mut Child,
    session: Option<&LabSession>,
    rebind_ns: &[u64],
    caught: &AtomicUsize,
) -> Result<ExitCode, String> {
    let started = Instant::now();
    let mut rebind: Vec<Duration> = rebind_ns
        .iter()
        .copied()
        .map(Duration::from_nanos)
        .collect();
    rebind.sort_unstable_by(|a, b| b.cmp(a));
    let mut since: Option<Instant> = None;
    loop {
        while rebind.pop_if(|at| *at <= started.elapsed()).is_some() {
            if let Some(emulator) = session.and_then(LabSession::emulator) {
                emulator
                    .rebind(0)
                    .map_err(|error| format!("cannot change the address: {error}"))?;
            }
        }
        if let Some(status) = ended(child)? {
            return Ok(code_of(status));
        }
        if let Some(code) = signal_code(caught) {
            let first = since.is_none();
            let began = *since.get_or_insert_with(Instant::now);
            let is_interrupt =
                caught.load(Ordering::Relaxed) == libc::SIGINT.unsigned_abs() as usize;
            // From a terminal, the command has got the interrupt too and may have work to finish.
            if !is_interrupt && first || began.elapsed() > GRACE {
                match session {
                    Some(session) => session.end_processes(),
                    None => child.kill(),
                }
                .map_err(|error| format!("cannot end the command: {error}"))?;
                return Ok(ended(child)?.map_or(code, code_of));
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .or_else(|| {
            status
                .signal()
                .and_then(|signal| u8::try_from(signal).ok())
                .map(|signal| SIGNAL_BASE.saturating_add(signal))
        });
    ExitCode::from(code.unwrap_or(console::NOT_RUN))
}

fn statistics(args: &Args, link: &LinkSettings, report: &SessionReport) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let congestion = args
        .congestion
        .clone()
        .unwrap_or_else(|| Machine::look().congestion_control);
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "link {}{} (seed {}, TCP {congestion})",
        args.link.profile,
        if args.ipv6 { ", IPv6" } else { "" },
        args.link.seed,
    );
    text.push_str(&settings::describe_link(link));
    for line in &report.netem {
        let _ = writeln!(text, "  netem {line}");
    }
    if let Some(cell) = &report.link {
        text.push_str(&table(&cell.up, &cell.down));
        text.push_str(&hops(cell));
        let late = cell.lateness.summary();
        let _ = writeln!(
            text,
            "  late: mean {:.0} us, 95 % {:.0} us, 99 % {:.0} us, worst {:.0} us",
            late.mean_us, late.p95_us, late.p99_us, late.max_us
        );
        if cell.address_changes > 0 {
            let _ = writeln!(
                text,
                "  {} changes of the client's address; {} packets went to earlier ones",
                cell.address_changes, cell.to_old_addresses
            );
        }
        if cell.refused > 0 {
            let _ = writeln!(
                text,
                "  {} packets were refused by the kernel",
                cell.refused
            );
        }
        if cell.capture_dropped > 0 {
            let _ = writeln!(
                text,
                "  {} packets are missing in the capture: the disk was too slow",
                cell.capture_dropped
            );
        }
    }
    if report.overflows > 0 {
        let _ = writeln!(
            text,
            "  warning: the kernel dropped {} packets before the emulator could read them",
            report.overflows
        );
    }
    if let Some((files, packets)) = &report.capture {
        let _ = writeln!(
            text,
            "  {packets} packets recorded in {} and {}",
            files.client.display(),
            files.server.display()
        );
    }
    text
}

/// Where packets were dropped on a link of several hops.
fn hops(cell: &CellReport) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    if cell.hops_up.len() < 2 {
        return text;
    }
    let dropped = |counters: &Counters| {
        let causes = Cause::ALL.into_iter().filter_map(|cause| {
            let count = counters.dropped.of(cause);
            (count > 0).then(|| format!("{count} {}", cause.name()))
        });
        let causes: Vec<String> = causes.collect();
        if causes.is_empty() {
            "0".to_owned()
        } else {
            causes.join(", ")
        }
    };
    for (number, (up, down)) in cell.hops_up.iter().zip(&cell.hops_down).enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "  hop {}: dropped up {}; down {}",
            number + 1,
            dropped(up),
            dropped(down)
        );
    }
    text
}

/// The counters of both directions, one row each.
fn table(up: &Counters, down: &Counters) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "  {:5} {:>10} {:>12} {:>10} {:>12}  {}\n",
        "", "sent", "bytes", "arrived", "bytes", "dropped"
    );
    for (name, counters) in [("up", up), ("down", down)] {
        let mut dropped = Vec::new();
        for cause in Cause::ALL {
            let count = counters.dropped.of(cause);
            if count > 0 {
                dropped.push(format!("{count} {}", cause.name()));
            }
        }
        let under_way = (counters.offered_packets + counters.duplicated)
            .saturating_sub(counters.delivered_packets + counters.dropped.total());
        for (count, what) in [
            (under_way, "still under way"),
            (counters.duplicated, "duplicated"),
            (counters.corrupted, "corrupted"),
            (counters.reordered, "late on purpose"),
            (counters.held_back, "held back for order"),
        ] {
            if count > 0 {
                dropped.push(format!("({count} {what})"));
            }
        }
        if dropped.is_empty() {
            dropped.push("0".into());
        }
        let _ = writeln!(
            text,
            "  {name:5} {:>10} {:>12} {:>10} {:>12}  {}",
            counters.offered_packets,
            counters.offered_bytes,
            counters.delivered_packets,
            counters.delivered_bytes,
            dropped.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        let code = |raw| format!("{:?}", code_of(ExitStatus::from_raw(raw)));
        let of = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(0), of(0));
        assert_eq!(code(3 << 8), of(3));
        assert_eq!(code(9), of(137));
    }

    #[test]
    fn drops_are_listed_by_cause() {
        let mut up = Counters {
            offered_packets: 10,
            delivered_packets: 6,
            ..Counters::default()
        };
        up.dropped.loss = 2;
        up.dropped.queue = 1;
        up.held_back = 3;
        let text = table(&up, &Counters::default());
        assert!(
            text.contains("2 lost, 1 queue full, (1 still under way), (3 held back for order)")
        );
        assert_eq!(text.lines().count(), 3);
    }
}
