//! One link with programs at its ends.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::capture::{CaptureFiles, Recorder};
use crate::emulator::{Attachment, Cell, CellReport, Emulator, EmulatorOptions};
use crate::kernel;
use crate::link::LinkSettings;
use crate::netem;
use crate::netns::{Family, Namespace, NamespaceSettings, Side};
use crate::relay::Relay;

/// Time that programs have to end when they are asked to.
const GRACE: Duration = Duration::from_secs(2);
/// Interval of checks for events.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The emulator of the link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Backend {
    /// TUN devices and the lab's own model.
    Tun,
    /// The kernel's netem.
    Netem,
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The link.
    pub link: LinkSettings,
    /// The version of IP on it.
    pub family: Family,
    /// From which its decisions come.
    pub seed: u64,
    /// Its emulator.
    pub backend: Backend,
    /// Congestion control of TCP on both sides; the system's default without one.
    pub congestion_control: Option<String>,
    /// Where packets are recorded.
    pub capture: Option<PathBuf>,
    /// Options of the emulator.
    pub emulator: EmulatorOptions,
}

/// Why there is no session.
#[derive(Debug)]
pub enum StartError {
    /// This process or machine cannot have one; the text says what is missing.
    Unavailable(String),
    /// Something failed.
    Failed(String),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for StartError {}

/// Bits of the capabilities that a lab needs: CAP_NET_ADMIN and CAP_SYS_ADMIN.
const NEEDED_CAPABILITIES: u64 = 1 << 12 | 1 << 21;

/// Moves this process into a user namespace of its own if that gives it the rights.
///
/// It does if the process may not make network namespaces, but the system lets every user open
/// `/dev/net/tun` and make user namespaces. Real-time priority is not available this way. Call it
/// before any thread is started. Without success everything stays unchanged, and [`check_rights`]
/// names the missing rights.
pub fn gain_rights() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let has_rights = capabilities(&status)
        .is_some_and(|capabilities| capabilities & NEEDED_CAPABILITIES == NEEDED_CAPABILITIES);
    let tun = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    if !has_rights && tun.is_ok() {
        // A refusal shows when a network namespace is made.
        let _ = kernel::unshare_user();
    }
}

/// The effective capabilities in `/proc/self/status`.
fn capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether this process can make namespaces with TUN devices in them.
///
/// # Errors
///
/// The missing rights, as a text for people.
pub fn check_rights() -> Result<(), String> {
    let tun = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    match tun {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(
                "there is no /dev/net/tun: load the kernel's module `tun`, or give the \
                        container the device (--device /dev/net/tun)"
                    .into(),
            );
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(
                "no permission to open /dev/net/tun: run as root; or let everybody open it (mode \
                        0666), which does no harm, and the lab runs in a user namespace"
                    .into(),
            );
        }
        Err(error) => return Err(format!("/dev/net/tun: {error}")),
        Ok(_) => {}
    }
    match Namespace::new() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(
            "no permission to make a network namespace: run as root, or with the capabilities \
             CAP_NET_ADMIN and CAP_SYS_ADMIN (in a container: --cap-add), or allow user namespaces"
                .into(),
        ),
        Err(error) => Err(format!("no network namespace: {error}")),
    }
}

/// The variable by which processes of a lab know its process.
const LAB_PID: &str = "STERNA_LAB_PID";

/// Ends processes that a killed lab left behind. Its own children died with it, but not theirs.
/// Returns their number.
///
/// Their environment shows them: it names a lab that no longer runs, and their network is not this
/// process's.
#[must_use]
pub fn end_stale_processes() -> usize {
    let mut ended = 0;
    let own_network = fs::read_link("/proc/self/ns/net").ok();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let Some(lab) = lab_of(&environment) else {
            continue;
        };
        let network = fs::read_link(entry.path().join("ns/net")).ok();
        if network.is_some()
            && network != own_network
            && !Path::new("/proc").join(lab.to_string()).exists()
            && kernel::signal(pid, kernel::SIGKILL).is_ok()
        {
            ended += 1;
        }
    }
    ended
}

/// Makes a command's processes known as this lab's.
pub(crate) fn mark(command: &mut Command) {
    command.env(LAB_PID, std::process::id().to_string());
}

/// The process of the lab in an environment.
fn lab_of(environment: &[u8]) -> Option<u32> {
    environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok())
        .find_map(|variable| variable.strip_prefix(LAB_PID)?.strip_prefix('='))?
        .parse()
        .ok()
}

/// A link that is up.
#[derive(Debug)]
pub struct LabSession {
    cell: Cell,
    family: Family,
    emulator: Option<Emulator>,
    recorder: Option<Recorder>,
}

/// A session's measurements.
#[derive(Debug)]
pub struct SessionReport {
    /// The link's own counts; none with netem.
    pub link: Option<CellReport>,
    /// netem's, as the kernel writes them.
    pub netem: Vec<String>,
    /// Packets that the kernel dropped before the emulator could read them. There should be none.
    pub overflows: u64,
    /// The files of a capture and the packets in them.
    pub capture: Option<(CaptureFiles, u64)>,
}

impl LabSession {
    /// Makes namespaces and link.
    ///
    /// # Errors
    ///
    /// Rights that are missing, settings that make no sense, or a system that refuses.
    pub fn start(options: &SessionOptions) -> Result<Self, StartError> {
        options
            .link
            .validate()
            .map_err(|error| StartError::Failed(error.to_string()))?;
        check_rights().map_err(StartError::Unavailable)?;
        let _ = end_stale_processes();
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| StartError::Failed(format!("{what}: {error}"))
        };
        let cell = Cell::new().map_err(failed("cannot make a network namespace"))?;
        let namespace = NamespaceSettings {
            family: options.family,
            mtu_bytes: Some(options.link.mtu_bytes()),
            congestion_control: options.congestion_control.clone(),
            ..NamespaceSettings::default()
        };
        match options.backend {
            Backend::Netem => {
                if options.capture.is_some() {
                    return Err(StartError::Failed(
                        "--capture needs `--emulator tun`".into(),
                    ));
                }
                netem::join(&cell.client, &cell.server, &options.link, &namespace)
                    .map_err(StartError::Unavailable)?;
                Ok(Self {
                    cell,
                    family: options.family,
                    emulator: None,
                    recorder: None,
                })
            }
            Backend::Tun => {
                let devices = cell
                    .devices(&namespace)
                    .map_err(failed("cannot make a TUN device"))?;
                let (recorder, capture) = match &options.capture {
                    Some(path) => {
                        let (recorder, sender) =
                            Recorder::start(path).map_err(failed(&path.display().to_string()))?;
                        (Some(recorder), Some(sender))
                    }
                    None => (None, None),
                };
                let attachment = Attachment {
                    devices,
                    settings: options.link.clone(),
                    seed: options.seed,
                    capture,
                };
                let emulator = Emulator::start(vec![attachment], options.emulator)
                    .map_err(failed("cannot start the emulator"))?;
                Ok(Self {
                    cell,
                    family: options.family,
                    emulator: Some(emulator),
                    recorder,
                })
            }
        }
    }

    /// The namespaces.
    #[must_use]
    pub const fn cell(&self) -> &Cell {
        &self.cell
    }

    /// The emulator; none with netem.
    #[must_use]
    pub const fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// A side's address.
    #[must_use]
    pub const fn address(&self, side: Side) -> IpAddr {
        side.address(self.family)
    }

    /// A command that will run on a side, and knows its place from its environment. `LAB_SIDE` names the
    /// side; `LAB_CLIENT` and `LAB_SERVER` are addresses. `LAB_CLIENT_NETNS` and `LAB_SERVER_NETNS` are
    /// paths for nsenter. `SSLKEYLOGFILE` is there when packets are recorded.
    ///
    /// It is killed when the thread that spawns it ends.
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        mark(&mut command);
        command
            .env("LAB_SIDE", side.name())
            .env("LAB_CLIENT", self.address(Side::Client).to_string())
            .env("LAB_SERVER", self.address(Side::Server).to_string())
            .env("LAB_CLIENT_NETNS", self.cell.client.path())
            .env("LAB_SERVER_NETNS", self.cell.server.path());
        if let Some(secrets) = self.secrets() {
            command.env("SSLKEYLOGFILE", secrets);
        }
        self.cell.namespace(side).adopt(&mut command);
        command
    }

    fn secrets(&self) -> Option<&Path> {
        self.recorder
            .as_ref()
            .map(|recorder| recorder.files().secrets.as_path())
    }

    /// Lets the server's side reach a server outside. Connections to the server's address, at the
    /// target's port, go to the target by a relay without a link.
    ///
    /// # Errors
    ///
    /// If the port is taken, or no descriptors are left.
    pub fn relay(&self, target: SocketAddr) -> io::Result<Relay> {
        Relay::beside(&self.cell.server, self.family, target)
    }

    /// Ends all processes in the namespaces: asks them first, and does not ask for long.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn end_processes(&self) -> io::Result<()> {
        let processes = || -> io::Result<Vec<u32>> {
            let mut all = self.cell.client.processes()?;
            all.extend(self.cell.server.processes()?);
            Ok(all)
        };
        let began = Instant::now();
        let mut asked = Vec::new();
        loop {
            let left = processes()?;
            if left.is_empty() {
                return Ok(());
            }
            let is_late = began.elapsed() > GRACE;
            for pid in &left {
                if is_late {
                    let _ = kernel::signal(*pid, kernel::SIGKILL);
                } else if !asked.contains(pid) {
                    let _ = kernel::signal(*pid, kernel::SIGTERM);
                    asked.push(*pid);
                }
            }
            if began.elapsed() > 2 * GRACE {
                // A process that does not die from this hangs in the kernel, or waits for its
                // parent to notice.
                return Ok(());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends everything: processes, link, namespaces.
    ///
    /// # Errors
    ///
    /// If the emulator has failed, or the capture could not be written.
    pub fn finish(mut self) -> io::Result<SessionReport> {
        self.end_processes()?;
        let overflows = self.cell.client.overflows()? + self.cell.server.overflows()?;
        let mut netem = Vec::new();
        let link = if let Some(emulator) = self.emulator.take() {
            let report = emulator.report(0);
            // Why it failed says more than that it has.
            emulator.stop()?;
            let report = report?;
            if let Some(failure) = &report.failure {
                return Err(io::Error::other(format!("the link failed: {failure}")));
            }
            Some(report)
        } else {
            for side in Side::BOTH {
                netem.push(netem::statistics(self.cell.namespace(side), side));
            }
            None
        };
        let capture = match self.recorder.take() {
            Some(recorder) => {
                let files = recorder.files().clone();
                Some((files, recorder.finish()?))
            }
            None => None,
        };
        Ok(SessionReport {
            link,
            netem,
            overflows,
            capture,
        })
    }
}

impl Drop for LabSession {
    fn drop(&mut self) {
        // After `finish` no process is left; after a failure this is the clean-up.
        let _ = self.end_processes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read() {
        assert_eq!(
            capabilities("Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(capabilities("Name:\tx\n"), None);
    }

    #[test]
    fn a_labs_processes_are_known_by_their_environment() {
        assert_eq!(lab_of(b"A=1\0STERNA_LAB_PID=42\0B=2\0"), Some(42));
        assert_eq!(lab_of(b"STERNA_LAB_PIDS=42\0"), None);
        assert_eq!(lab_of(b"STERNA_LAB_PID=x\0"), None);
        assert_eq!(lab_of(b""), None);
    }
}
