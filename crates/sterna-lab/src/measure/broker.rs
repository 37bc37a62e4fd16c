//! The broker of a run: this project's, another that the lab starts, or one that runs already.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::credentials;
use super::device::Credentials;
use super::process::{INTERRUPTED, Process};
use super::run::Setting;
use super::site::Site;
use crate::campaign::{Foreign, Run};
use crate::netns::Side;
use crate::relay::Relay;

/// The name in the broker's development certificate.
const SERVER_NAME: &str = "localhost";
/// Where this project's broker keeps its development certificate, which other brokers get as well: all
/// have the same to send.
const CERTIFICATE: &str = "development-certificate.pem";
const KEY: &str = "development-key.pem";
const AUTHORITY: &str = "development-ca.pem";
/// How long a program may take to start on a busy machine.
pub(super) const START_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked whether a broker listens.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What a broker has to be told before it serves the cell as campaigns ask: nobody else is there.
const OPEN_TO_THE_CELL: [&str; 4] = [
    "STERNA__AUTHENTICATION__ALLOW_ANONYMOUS_BEYOND_LOOPBACK",
    "STERNA__AUTHENTICATION__ALLOW_PLAINTEXT_PASSWORDS_BEYOND_LOOPBACK",
    "STERNA__AUTHORIZATION__ALLOW_DEFAULT_BEYOND_LOOPBACK",
    "STERNA__TLS__ALLOW_DEVELOPMENT_CERTIFICATE_BEYOND_LOOPBACK",
];

/// A broker that listens.
#[derive(Debug)]
pub(super) struct Broker {
    /// None where it runs outside of the lab.
    process: Option<Process>,
    /// Leads to a broker outside.
    relay: Option<Relay>,
    port: u16,
    server_name: String,
    authority: Option<PathBuf>,
    credentials: Credentials,
}

impl Broker {
    /// Starts one for a transport.
    pub(super) fn start(setting: &Setting<'_>, site: &Site, run: &Run) -> Result<Self, String> {
        match &run.transport.foreign {
            None => Self::start_own(setting, site, run),
            Some(Foreign::Running {
                host,
                port,
                authority,
                ..
            }) => Self::reach(site, (host, *port), authority.as_deref()),
            Some(foreign) => Self::start_foreign(setting, site, run, foreign),
        }
    }

    /// Starts this project's.
    fn start_own(setting: &Setting<'_>, site: &Site, run: &Run) -> Result<Self, String> {
        let mut command = site.command(Side::Server, setting.sterna);
        let port = if site.cell().is_some() {
            default_port(&run.transport.scheme)
        } else {
            0
        };
        let url = format!(
            "{}://{}:{port}",
            run.transport.scheme,
            site.listen_address()
        );
        command
            .arg("serve")
            .args(["--shards", "1", "--listen", &url])
            // Nothing but the campaign says what a broker does.
            .env_remove("STERNA_CONFIG")
            .env("STERNA__LOG__LEVEL", "warn")
            .env("STERNA__SYS__INTERVAL_S", "0")
            .env("STERNA__QUIC__EARLY_DATA", "off")
            .envs(OPEN_TO_THE_CELL.map(|name| (name, "true")));
        let quic = run
            .transport
            .quic
            .iter()
            .map(|(name, value)| (format!("quic.{name}"), value));
        let congestion = run
            .transport
            .congestion
            .iter()
            .map(|name| ("quic.congestion".to_owned(), quic_congestion(name)));
        let broker = run
            .transport
            .broker
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        for (name, value) in congestion
            .chain(quic.map(|(name, value)| (name, value.clone())))
            .chain(broker)
        {
            command.env(environment_name(&name), value);
        }
        let authentication = run.transport.authentication;
        for (name, value) in credentials::of_broker(authentication, setting.data) {
            command.env(environment_name(name), value);
        }
        let certificate = setting.data.join(CERTIFICATE);
        if certificate.is_file() {
            // Several run at once, with one certificate; a data directory is one broker's alone.
            command
                .env(environment_name("tls.certificate"), &certificate)
                .env(environment_name("tls.key"), setting.data.join(KEY));
        } else {
            command.arg("--data-dir").arg(setting.data);
        }
        let mut process = Process::start("broker", &mut command)
            .map_err(|error| format!("cannot start a broker: {error}"))?;
        let port = read_greeting(&mut process, setting.stop)?;
        Ok(Self {
            process: Some(process),
            relay: None,
            port,
            server_name: SERVER_NAME.into(),
            authority: Some(setting.data.join(AUTHORITY)),
            credentials: credentials::of_device(authentication, setting.data),
        })
    }

    /// Starts another one, with a configuration of its own.
    fn start_foreign(
        setting: &Setting<'_>,
        site: &Site,
        run: &Run,
        foreign: &Foreign,
    ) -> Result<Self, String> {
        let name = foreign.name();
        let Some(cell) = site.cell() else {
            return Err(format!("{name}: a relay has no place for other brokers"));
        };
        let program = find_program(&name).ok_or_else(|| {
            format!(
                "{name} is not installed: no such program in PATH, /usr/sbin or /usr/local/sbin"
            )
        })?;
        let scheme = run.transport.scheme.as_str();
        let port = default_port(scheme);
        let mut command = site.command(Side::Server, &program);
        // RMQTT tells the format of a file by its name, and passes over one that it does not know.
        let (option, ending, text) = match foreign {
            Foreign::Mosquitto => (
                "-c",
                "conf",
                mosquitto_configuration(scheme, port, setting.data),
            ),
            _ => (
                "-f",
                "toml",
                rmqttd_configuration(scheme, port, setting.data),
            ),
        };
        let path = setting.data.join(format!("{name}-{port}.{ending}"));
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        command.current_dir(setting.data);
        command.arg(option).arg(&path);
        let mut process = Process::start("broker", &mut command)
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let deadline = Instant::now() + START_LIMIT;
        let failed = |error: std::io::Error| format!("{name}: {error}");
        while !cell.server.has_listener(Some(port)).map_err(failed)? {
            if setting.stop.load(Ordering::Relaxed) {
                return Err(INTERRUPTED.into());
            }
            if process.has_ended() || Instant::now() >= deadline {
                return Err(process.complain("does not listen"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(Self {
            process: Some(process),
            relay: None,
            port,
            server_name: SERVER_NAME.into(),
            authority: Some(setting.data.join(AUTHORITY)),
            credentials: Credentials::None,
        })
    }

    /// Leads from the server's side to one that runs outside.
    fn reach(
        site: &Site,
        (host, port): (&str, u16),
        authority: Option<&str>,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{host}:{port}: {error}");
        let Some(cell) = site.cell() else {
            return Err(format!("{host}:{port}: a relay leads to no other broker"));
        };
        let target: SocketAddr = (host, port)
            .to_socket_addrs()
            .map_err(failed)?
            .find(SocketAddr::is_ipv4)
            .ok_or_else(|| format!("{host} has no IPv4 address, and the links have no IPv6"))?;
        let relay = Relay::beside(&cell.server, target).map_err(failed)?;
        Ok(Self {
            process: None,
            relay: Some(relay),
            port,
            server_name: host.to_owned(),
            authority: authority.map(PathBuf::from),
            credentials: Credentials::None,
        })
    }

    /// Its process, where it has one here.
    pub(super) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// By which name its certificate knows it.
    pub(super) fn server_name(&self) -> &str {
        &self.server_name
    }

    /// Who has signed its certificate; the system's authorities without one.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// What it lets devices in with.
    pub(super) const fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Ends it.
    pub(super) fn end(self) -> Result<(), String> {
        if let Some(mut process) = self.process {
            process.end();
        }
        match self.relay {
            Some(relay) => relay
                .stop()
                .map(drop)
                .map_err(|error| format!("relay: {error}")),
            None => Ok(()),
        }
    }

    /// One that nobody has started.
    #[cfg(test)]
    pub(super) fn for_test() -> Self {
        Self {
            process: None,
            relay: None,
            port: 1,
            server_name: SERVER_NAME.into(),
            authority: Some("ca.pem".into()),
            credentials: Credentials::None,
        }
    }

    /// Where it listens, on the server's side.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }
}

/// A program by its name, also where servers are that are not for everybody's PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Mosquitto's defaults, but for what a comparison needs: TCP_NODELAY as all others have it, and
/// nothing on disk. It would give up root's rights, and could not read the key then.
fn mosquitto_configuration(scheme: &str, port: u16, data: &Path) -> String {
    let mut text = format!(
        "user root\nlistener {port} 0.0.0.0\nallow_anonymous true\npersistence false\n\
         set_tcp_nodelay true\nlog_dest stderr\nlog_type error\n"
    );
    if scheme == "mqtts" {
        for (name, file) in [("certfile", CERTIFICATE), ("keyfile", KEY)] {
            // Writing to a String does not fail, here and below.
            let _ = writeln!(text, "{name} {}", data.join(file).display());
        }
    }
    text
}

/// RMQTT's defaults, with one listener.
fn rmqttd_configuration(scheme: &str, port: u16, data: &Path) -> String {
    let kind = match scheme {
        "mqtt" => "tcp",
        "mqtts" => "tls",
        _ => "quic",
    };
    let listener = format!("listener.{kind}.external");
    let mut text = format!(
        "node.id = 1\nrpc.server_addr = \"127.0.0.1:5363\"\nlog.to = \"off\"\n\
         plugins.dir = \"{}\"\nplugins.default_startups = []\n\
         {listener}.enable = true\n{listener}.addr = \"0.0.0.0:{port}\"\n\
         {listener}.allow_anonymous = true\n",
        data.display()
    );
    if kind != "tcp" {
        for (name, file) in [("cert", CERTIFICATE), ("key", KEY)] {
            let _ = writeln!(
                text,
                "{listener}.{name} = \"{}\"",
                data.join(file).display()
            );
        }
    }
    text
}

/// The variable that sets one of this project's broker's settings.
fn environment_name(setting: &str) -> String {
    format!("STERNA__{}", setting.replace('.', "__").to_uppercase())
}

/// The name of a congestion control among QUIC's.
pub(super) fn quic_congestion(name: &str) -> String {
    match name {
        "reno" => "newreno",
        other => other,
    }
    .to_owned()
}

/// The port that a scheme is known by.
fn default_port(scheme: &str) -> u16 {
    match scheme {
        "mqtt" => 1883,
        "mqtts" => 8883,
        "ws" => 8083,
        "wss" => 8084,
        "amqp" => 5672,
        "amqps" | "amqp+quic" => 5671,
        "amqp+ws" => 8081,
        "amqp+wss" | "https" | "h3" => 8443,
        "http" => 8080,
        _ => 14567,
    }
}

/// The port and the authority's file in what a broker says when it is ready.
fn read_greeting(process: &mut Process, stop: &AtomicBool) -> Result<u16, String> {
    let deadline = Instant::now() + START_LIMIT;
    let mut port = None;
    loop {
        let line = process.line(deadline, stop)?;
        let line = line.trim();
        if let Some(url) = line.split_ascii_whitespace().next()
            && url.contains("://")
        {
            port = port.or_else(|| url.rsplit_once(':')?.1.parse().ok());
        }
        if line.starts_with("certificate ") {
            return port.ok_or_else(|| "the broker listens nowhere".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_brokers_get_the_same_certificate() {
        let data = Path::new("/data");
        let text = mosquitto_configuration("mqtts", 8883, data);
        assert!(text.contains("listener 8883 0.0.0.0\n"));
        assert!(text.contains("keyfile /data/development-key.pem\n"));
        assert!(!mosquitto_configuration("mqtt", 1883, data).contains("keyfile"));
        let text = rmqttd_configuration("mqtt+quic", 14_567, data);
        assert!(text.contains("listener.quic.external.cert = \"/data/development-cert"));
        assert!(text.parse::<toml::Table>().is_ok(), "{text}");
    }

    #[test]
    fn programs_that_are_not_there_are_not_found() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-broker"), None);
    }
}
