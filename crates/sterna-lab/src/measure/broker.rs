//! The broker of a run: this project's, another that the lab starts, or one that runs already.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::credentials;
use super::device::{Credentials, EarlyConnections};
use super::process::{INTERRUPTED, Process};
use super::run::Setting;
use super::site::Site;
use crate::campaign::{Foreign, ForeignDevice, Run, Transport};
use crate::netns::Side;
use crate::relay::Relay;

/// The name in the broker's development certificate.
const SERVER_NAME: &str = "localhost";
/// Where this project's broker keeps its development certificate, which other brokers get as well: all
/// have the same to send.
const CERTIFICATE: &str = "development-certificate.pem";
const KEY: &str = "development-key.pem";
const AUTHORITY: &str = "development-ca.pem";
/// The time that brokers wait for a handshake, and then for CONNECT, in milliseconds. With any transport
/// it is as long as devices try. A slow handshake is a result, and no failure.
const PATIENCE_MS: &str = "60000";
/// Longest start of a program on a busy machine.
pub(super) const START_LIMIT: Duration = Duration::from_secs(60);
/// Interval of checks whether a broker listens.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Settings with which a broker serves the cell as campaigns require: there are no other clients.
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
    /// Takes early data over TCP, or a rival's protocol, in front of it.
    gateway: Option<Process>,
    port: u16,
    /// Where the subscriber beside it connects.
    port_beside: u16,
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
        let transport = &run.transport;
        let beside = transport.scheme_beside();
        let mut schemes = vec![if transport.needs_gateway() {
            transport.scheme_behind()
        } else {
            transport.scheme.as_str()
        }];
        if !schemes.contains(&beside) {
            schemes.push(beside);
        }
        command.arg("serve").args(["--shards", "1"]);
        for scheme in schemes {
            let port = site.cell().map_or(0, |_| default_port(scheme));
            let place = SocketAddr::new(site.listen_address(), port);
            command.args(["--listen", &format!("{scheme}://{place}")]);
        }
        command
            // Only the campaign configures a broker.
            .env_remove("STERNA_CONFIG")
            .env("STERNA__LOG__LEVEL", "warn")
            .env("STERNA__SYS__INTERVAL_S", "0")
            .env("STERNA__QUIC__EARLY_DATA", "off")
            .env("STERNA__NETWORK__HANDSHAKE_TIMEOUT_MS", PATIENCE_MS)
            .env("STERNA__NETWORK__CONNECT_TIMEOUT_MS", PATIENCE_MS)
            // Nothing is kept on disk, as with the other brokers; and several run at once.
            .env("STERNA__STORE__ENABLED", "false")
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
        let ports = read_greeting(&mut process, setting.stop)?;
        let (Some(port), Some(port_beside)) = (ports.first(), ports.last()) else {
            return Err("the broker listens nowhere".into());
        };
        let mut port = *port;
        let gateway = if transport.needs_gateway() {
            let (process, its_port) = start_gateway(setting, site, transport, port)?;
            port = its_port;
            Some(process)
        } else {
            None
        };
        Ok(Self {
            process: Some(process),
            relay: None,
            gateway,
            port,
            port_beside: *port_beside,
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
        let place = SocketAddr::new(site.listen_address(), port);
        let mut command = site.command(Side::Server, &program);
        // RMQTT recognises the format of a file by its name, and ignores an unknown one.
        let (option, ending, text) = match foreign {
            Foreign::Mosquitto => (
                "-c",
                "conf",
                mosquitto_configuration(scheme, place, setting.data),
            ),
            _ => (
                "-f",
                "toml",
                rmqttd_configuration(scheme, place, setting.data),
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
            gateway: None,
            port,
            port_beside: port,
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
            .next()
            .ok_or_else(|| format!("{host} has no address"))?;
        let relay = Relay::beside(&cell.server, site.family(), target).map_err(failed)?;
        Ok(Self {
            process: None,
            relay: Some(relay),
            gateway: None,
            port,
            port_beside: port,
            server_name: host.to_owned(),
            authority: authority.map(PathBuf::from),
            credentials: Credentials::None,
        })
    }

    /// Its process, where it has one here.
    pub(super) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// The process that takes connections in front of it, where there is one.
    pub(super) const fn gateway(&self) -> Option<&Process> {
        self.gateway.as_ref()
    }

    /// By which name its certificate knows it.
    pub(super) fn server_name(&self) -> &str {
        &self.server_name
    }

    /// The issuer of its certificate; the system's authorities without one.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// The devices' credentials.
    pub(super) const fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Ends it, and says what became of the connections that a gateway took.
    pub(super) fn end(self, stop: &AtomicBool) -> Result<Option<EarlyConnections>, String> {
        if let Some(mut process) = self.process {
            process.end();
        }
        if let Some(relay) = self.relay {
            relay.stop().map_err(|error| format!("relay: {error}"))?;
        }
        let Some(mut gateway) = self.gateway else {
            return Ok(None);
        };
        gateway.close();
        let line = gateway.line(Instant::now() + START_LIMIT, stop)?;
        gateway.wait();
        serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| format!("gateway: {error}"))
    }

    /// Takes its power away: nothing is said or written any more.
    pub(super) fn kill(&mut self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot kill the broker: {error}");
        let Some(process) = &mut self.process else {
            return Err("a broker outside of the lab keeps its power".into());
        };
        process.kill().map_err(failed)?;
        if let Some(gateway) = &mut self.gateway {
            gateway.kill().map_err(failed)?;
        }
        Ok(())
    }

    /// A broker that was not started.
    #[cfg(test)]
    pub(super) fn for_test() -> Self {
        Self {
            process: None,
            relay: None,
            gateway: None,
            port: 1,
            port_beside: 2,
            server_name: SERVER_NAME.into(),
            authority: Some("ca.pem".into()),
            credentials: Credentials::None,
        }
    }

    /// Where it listens, on the server's side.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens to the subscriber beside it.
    pub(super) const fn port_beside(&self) -> u16 {
        self.port_beside
    }
}

/// Starts a gateway in front of a listener without TLS, for early data over TCP or for a rival's
/// protocol. Returns its port as well.
fn start_gateway(
    setting: &Setting<'_>,
    site: &Site,
    transport: &Transport,
    to: u16,
) -> Result<(Process, u16), String> {
    let rival = transport.device.as_ref().filter(|_| transport.is_rival());
    let program = rival.map_or(setting.program, ForeignDevice::program);
    let place = SocketAddr::new(site.listen_address(), 0);
    let listen = rival.map_or_else(
        || place.to_string(),
        |it| format!("{}://{place}", it.scheme),
    );
    let mut command = site.command(Side::Server, program);
    command
        .arg("gateway")
        .args(["--listen", &listen])
        .args([
            "--to",
            &SocketAddr::new(site.beside_address(), to).to_string(),
        ])
        .arg("--certificate")
        .arg(setting.data.join(CERTIFICATE))
        .arg("--key")
        .arg(setting.data.join(KEY));
    let mut process = Process::start("gateway", &mut command)
        .map_err(|error| format!("cannot start a gateway: {error}"))?;
    let line = process.line(Instant::now() + START_LIMIT, setting.stop)?;
    let port = line
        .trim()
        .parse()
        .map_err(|_| process.complain("names no port"))?;
    Ok((process, port))
}

/// Finds a program by its name, also in the folders of servers that are not in every user's PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// Mosquitto's defaults, with changes for the comparison: TCP_NODELAY as all others have it, and no
/// data on disk. It would give up root's rights, and could not read the key then.
fn mosquitto_configuration(scheme: &str, place: SocketAddr, data: &Path) -> String {
    let (address, port) = (place.ip(), place.port());
    let mut text = format!(
        "user root\nlistener {port} {address}\nallow_anonymous true\npersistence false\n\
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
fn rmqttd_configuration(scheme: &str, place: SocketAddr, data: &Path) -> String {
    let kind = match scheme {
        "mqtt" => "tcp",
        "mqtts" => "tls",
        _ => "quic",
    };
    let listener = format!("listener.{kind}.external");
    let mut text = format!(
        "node.id = 1\nrpc.server_addr = \"127.0.0.1:5363\"\nlog.to = \"off\"\n\
         plugins.dir = \"{}\"\nplugins.default_startups = []\n\
         {listener}.enable = true\n{listener}.addr = \"{place}\"\n\
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

/// The ports in what a broker says when it is ready, in the order of its listeners.
fn read_greeting(process: &mut Process, stop: &AtomicBool) -> Result<Vec<u16>, String> {
    let deadline = Instant::now() + START_LIMIT;
    let mut ports = Vec::new();
    loop {
        let line = process.line(deadline, stop)?;
        let line = line.trim();
        if line.starts_with("certificate ") {
            return Ok(ports);
        }
        let port = line
            .split_ascii_whitespace()
            .next()
            .filter(|url| url.contains("://"))
            .and_then(|url| url.rsplit_once(':')?.1.parse::<u16>().ok());
        ports.extend(port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_brokers_get_the_same_certificate() {
        let data = Path::new("/data");
        let at = |place: &str| place.parse().unwrap();
        let text = mosquitto_configuration("mqtts", at("0.0.0.0:8883"), data);
        assert!(text.contains("listener 8883 0.0.0.0\n"));
        assert!(text.contains("keyfile /data/development-key.pem\n"));
        assert!(!mosquitto_configuration("mqtt", at("[::]:1883"), data).contains("keyfile"));
        let text = rmqttd_configuration("mqtt+quic", at("[::]:14567"), data);
        assert!(text.contains("listener.quic.external.cert = \"/data/development-cert"));
        assert!(text.parse::<toml::Table>().is_ok(), "{text}");
    }

    #[test]
    fn programs_that_are_not_there_are_not_found() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-broker"), None);
    }
}
