//! The options that every client command has: broker, client, trust.

pub(super) mod amqp;
pub(super) mod http;

use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sterna_client::arguments::{
    Credentials, Place, Quic, Trust, first_given, qos, seconds, version,
};
use sterna_client::{
    Backoff, Client, LinkOptions, Login, Options, Protocol, Publish, Qlog, QoS, Scheme, Streams,
    Tls, Url, Version,
};

use super::outage::Outage;
use super::property::{Given, Properties};
pub(super) use amqp::AmqpSettings;
use amqp::{Mechanism, mechanism};

/// Options of a connection. Names and meanings are mosquitto's where it has the same.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Connection {
    #[command(flatten)]
    place: Place,

    /// Client identifier; in AMQP the container-id, in HTTP the session's name with -c [default: random]
    #[arg(
        short = 'i',
        long,
        visible_alias = "container-id",
        value_name = "ID",
        help_heading = "Client"
    )]
    id: Option<String>,
    /// Client identifier made of this and the process number
    #[arg(
        short = 'I',
        long,
        value_name = "PREFIX",
        conflicts_with = "id",
        help_heading = "Client"
    )]
    id_prefix: Option<String>,
    #[command(flatten)]
    login: Credentials,
    /// Log in by SCRAM-SHA-256: the password stays here, and the broker has to know it, too
    #[arg(long, help_heading = "Client")]
    scram: bool,
    /// HTTP: a token to log in with, in place of user name and password [env: STERNA_TOKEN]
    #[arg(
        long,
        value_name = "TOKEN",
        conflicts_with = "username",
        help_heading = "Client"
    )]
    token: Option<String>,
    /// HTTP/3: show user name and password or token with the first request of a connection only, for
    /// brokers with http.authentication = "connection"
    #[arg(long, help_heading = "Client")]
    login_once: bool,
    /// AMQP: how to log in: none, anonymous, plain, external (by --cert) or scram [default: plain with
    /// a user name, else anonymous]
    #[arg(long, value_name = "MECHANISM", conflicts_with = "scram", value_parser = mechanism,
          help_heading = "Client")]
    sasl: Option<Mechanism>,
    /// AMQP: name of the link, by which a durable subscription is found again [default: random; with
    /// -c the address]
    #[arg(long, value_name = "NAME", help_heading = "Client")]
    pub(super) link_name: Option<String>,
    /// Version of MQTT: 5, 311 or 31
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version,
          help_heading = "Client")]
    protocol_version: Version,
    /// Seconds between signs of life; 0 for none
    #[arg(
        short = 'k',
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        help_heading = "Client"
    )]
    keepalive: u16,
    /// Go on with the session (in AMQP: the subscription) of this identifier, and leave it at the broker (needs -i)
    #[arg(
        short = 'c',
        long,
        visible_alias = "durable",
        requires = "id",
        help_heading = "Client"
    )]
    disable_clean_session: bool,
    /// Seconds that the session outlives the connection; -1 for ever [default: 0; -1 with -c]
    #[arg(short = 'x', long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = expiry,
          help_heading = "Client")]
    session_expiry_interval: Option<u32>,
    /// Local address to connect from
    #[arg(short = 'A', long, value_name = "ADDRESS", help_heading = "Client")]
    bind: Option<IpAddr>,
    /// Longest wait for the connection
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds,
          help_heading = "Client")]
    connect_timeout: Duration,
    /// Longest wait at the end for the broker's acknowledgement [default: 30; over QUIC less on a
    /// fast path, more with progress]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Client")]
    close_timeout: Option<Duration>,
    /// Failed attempts in a row to connect again, after which the command ends with status 7. A
    /// connection of 5 s starts the count again. The wait between two attempts doubles from 0.5 s
    /// to 60 s [default: for ever]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub(super) maximum_reconnect_times: Option<u32>,
    /// Over QUIC: one stream for all messages (single), for each topic (per-topic) or for each
    /// message (per-publish). With priority, QoS 0 has a stream behind all others
    #[arg(long, value_name = "MODE", default_value = "single", value_parser = streams,
          help_heading = "TLS and QUIC")]
    streams: Streams,
    /// Over QUIC: send and receive messages with QoS 0 as datagrams, if the broker agrees. They may
    /// be lost, and delay no others
    #[arg(long, help_heading = "TLS and QUIC")]
    datagrams: bool,
    #[command(flatten)]
    quic: Quic,
    /// Over QUIC: write what each connection does (packets, losses, round trip, window) as qlog into
    /// this folder, a file for each
    #[arg(long, value_name = "FOLDER", help_heading = "TLS and QUIC")]
    qlog: Option<PathBuf>,
    /// Over QUIC: wait for the handshake, also where a ticket would save that (when it connects
    /// again). For brokers that do not protect themselves against repeated packets
    #[arg(long, overrides_with = "early_data", help_heading = "TLS and QUIC")]
    no_early_data: bool,
    /// Over QUIC: do not wait for it, which is the default
    #[arg(long, overrides_with = "no_early_data", help_heading = "TLS and QUIC")]
    early_data: bool,
    /// With https://: how long HTTP/3 is tried alone, before HTTP/2 over TLS is tried beside it
    /// [default: 300]
    #[arg(long, value_name = "MILLISECONDS", help_heading = "TLS and QUIC")]
    head_start: Option<u32>,
    /// With https://: do without HTTP/3
    #[arg(long, help_heading = "TLS and QUIC")]
    no_http3: bool,
    /// A property of MQTT 5: packet, name, and its value (user-property: key and value)
    #[arg(
        short = 'D',
        long = "property",
        value_name = "PACKET NAME [KEY] VALUE",
        help_heading = "Client"
    )]
    pub(super) properties: Vec<Given>,

    /// Topic of the message that the broker sends when this client is lost
    #[arg(long, value_name = "TOPIC", help_heading = "Will")]
    will_topic: Option<String>,
    /// Its payload [default: empty]
    #[arg(
        long,
        value_name = "TEXT",
        requires = "will_topic",
        allow_hyphen_values = true,
        help_heading = "Will"
    )]
    will_payload: Option<String>,
    /// Its QoS
    #[arg(long, value_name = "QOS", default_value = "0", value_parser = qos, help_heading = "Will")]
    will_qos: QoS,
    /// Keep it as the topic's retained message
    #[arg(long, requires = "will_topic", help_heading = "Will")]
    will_retain: bool,

    #[command(flatten)]
    trust: Trust,

    /// Say on standard error what happens
    #[arg(short = 'd', long, help_heading = "Output")]
    pub(super) debug: bool,
    /// Over QUIC: print the path's measurements and the connection's counts at the end, as one line
    /// of JSON on standard error
    #[arg(long, help_heading = "Output")]
    pub(super) path_stats: bool,
    /// Say nothing on standard error about errors while running
    #[arg(long, help_heading = "Output")]
    pub(super) quiet: bool,
    /// Print this help
    #[arg(long, action = clap::ArgAction::Help, help_heading = "Output")]
    help: Option<bool>,
    /// Small messages are never held back; taken for the sake of old scripts
    #[arg(long, hide = true)]
    nodelay: bool,
}

/// The settings of a command line.
pub(super) struct Settings {
    pub(super) options: Options,
    pub(super) properties: Properties,
    /// The topic that the URL names.
    pub(super) topic: Option<String>,
}

impl Connection {
    /// An error for a flag that is given and does nothing over this transport.
    pub(super) fn refuse_idle_flags(&self, scheme: Scheme) -> Result<(), String> {
        let is_quic = scheme.is_quic() || (scheme == Scheme::Https && !self.no_http3);
        let over_quic = [
            ("--streams", self.streams != Streams::Single),
            ("--datagrams", self.datagrams),
            ("--no-early-data", self.no_early_data),
            ("--early-data", self.early_data),
            ("--qlog", self.qlog.is_some()),
            ("--path-stats", self.path_stats),
        ];
        let with_https = [
            ("--head-start", self.head_start.is_some()),
            ("--no-http3", self.no_http3),
        ];
        let name = scheme.name();
        let first = first_given(&self.quic.given()).or_else(|| first_given(&over_quic));
        if let Some(flag) = first.filter(|_| !is_quic) {
            return Err(format!("{flag}: {name}:// does not travel over QUIC"));
        }
        self.trust.refuse_idle(scheme)?;
        if let Some(flag) = first_given(&with_https).filter(|_| scheme != Scheme::Https) {
            return Err(format!("{flag}: {name}:// has no choice of HTTP's version"));
        }
        Ok(())
    }

    /// Makes the options, and refuses what does nothing over the transport. `packets` are those that
    /// this command sends with properties.
    pub(super) fn settings(&self, packets: &[&str]) -> Result<Settings, String> {
        self.refuse_idle_flags(self.url()?.scheme())?;
        self.settings_for_any(packets)
    }

    /// The same where the transport is not settled.
    pub(super) fn settings_for_any(&self, packets: &[&str]) -> Result<Settings, String> {
        let url = self.url()?;
        if url.scheme().protocol() != Protocol::Mqtt {
            return Err(format!("{}: this command speaks MQTT only", url.scheme()));
        }
        for (flag, is_given) in [
            ("--sasl", self.sasl.is_some()),
            ("--link-name", self.link_name.is_some()),
            ("--token", self.token.is_some()),
            ("--login-once", self.login_once),
            ("--no-http3", self.no_http3),
        ] {
            if is_given {
                return Err(format!("{flag}: MQTT has no such thing"));
            }
        }
        let topic = url.topic().map_err(|error| error.to_string())?;
        let login = self.login.login(&url);
        let mut options = Options::new(url);
        options.version = self.protocol_version;
        let properties = Properties::new(&self.properties, options.version, packets)?;
        options.client_id = match (&self.id, &self.id_prefix) {
            (Some(id), _) => Some(id.clone()),
            (None, Some(prefix)) => Some(format!("{prefix}{}", std::process::id())),
            (None, None) => None,
        };
        options.clean_start = !self.disable_clean_session;
        options.session_expiry_s = match self.session_expiry_interval {
            Some(_) if !options.version.is_v5() => {
                return Err(
                    "-x: only MQTT 5 has a session expiry; -c keeps older sessions".to_owned(),
                );
            }
            Some(seconds) => seconds,
            None if self.disable_clean_session && options.version.is_v5() => u32::MAX,
            None => 0,
        };
        options.login = match (login.user, login.password) {
            (Some(user), Some(password)) if self.scram => Login::Scram { user, password },
            (Some(_), None) if self.scram => return Err("--scram: there is no password".to_owned()),
            (None, _) if self.scram => return Err("--scram: there is no user name".to_owned()),
            (None, None) => Login::Anonymous,
            (user, password) => Login::Password {
                user,
                password: password.map(String::into_bytes),
            },
        };
        self.link(&mut options.link)?;
        options.keep_alive_s = self.keepalive;
        options.close_timeout = self.close_timeout.unwrap_or(options.close_timeout);
        options.streams = self.streams;
        options.datagrams = self.datagrams;
        properties.connect(&mut options)?;
        if let Some(topic) = &self.will_topic {
            let payload = self.will_payload.clone().unwrap_or_default();
            let message = Publish::new(topic, payload)
                .map_err(|error| format!("--will-topic: {error}"))?
                .qos(self.will_qos)
                .retain(self.will_retain);
            options.will = Some(properties.will(message)?);
        } else if properties.has_will() {
            return Err("-D will: there is no --will-topic".to_owned());
        }
        Ok(Settings {
            options,
            properties,
            topic,
        })
    }

    /// Sets the options that all protocols have.
    fn link(&self, link: &mut LinkOptions) -> Result<(), String> {
        link.reconnect = self.reconnect();
        link.bind = self.bind;
        link.connect_timeout = self.connect_timeout;
        link.quic = self.quic.overrides()?;
        link.qlog = self.qlog();
        link.early_data = !self.no_early_data || self.early_data;
        link.tls = self.tls(link.url.scheme());
        Ok(())
    }

    /// The back-off after the connection was lost; `None` for no further connection.
    fn reconnect(&self) -> Option<Backoff> {
        let max_attempts = match self.maximum_reconnect_times {
            Some(0) => return None,
            // The loss itself is the first that counts as failed.
            Some(times) => Some(times.saturating_add(1)),
            None => None,
        };
        Some(Backoff {
            max_attempts,
            ..Backoff::default()
        })
    }

    /// The reports of an outage.
    pub(super) fn outage(&self, url: &Url) -> Outage {
        Outage::new(url, self.quiet)
    }

    /// Where traces of QUIC go.
    fn qlog(&self) -> Option<Qlog> {
        let directory = self.qlog.as_ref()?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = since_1970.map_or(0, |time| time.as_millis());
        let name = format!("sterna-{now_ms}-{}", std::process::id());
        Some(Qlog::new(directory, name))
    }

    /// Whether secrets are to be written, with a warning where that is asked for and not possible,
    /// because the library says nothing.
    fn key_log(&self) -> bool {
        let Some(path) = std::env::var_os("SSLKEYLOGFILE") else {
            return false;
        };
        let mut file = OpenOptions::new();
        file.append(true).create(true).mode(0o600);
        if let Err(error) = file.open(&path)
            && !self.quiet
        {
            let path = Path::new(&path).display();
            eprintln!("Warning: SSLKEYLOGFILE: {path}: {error}; no secrets are written");
        }
        true
    }

    /// The settings of TLS. Warns if the broker is not verified.
    fn tls(&self, scheme: Scheme) -> Tls {
        let mut tls = self.trust.tls();
        tls.key_log = self.key_log();
        if tls.insecure && scheme.is_encrypted() && !self.quiet {
            eprintln!(
                "Warning: --insecure: the broker is not verified; anyone on the path can read and change everything."
            );
        }
        tls
    }

    /// Which protocol the URL is of.
    pub(super) fn protocol(&self) -> Result<Protocol, String> {
        Ok(self.url()?.scheme().protocol())
    }

    /// Whether a broker is named, be it by the environment.
    pub(super) fn names_broker(&self) -> bool {
        self.place.is_given()
    }

    fn url(&self) -> Result<Url, String> {
        self.place.url(&self.trust)
    }

    /// Says what the connection knows of its path, when --path-stats asks for it.
    pub(super) async fn tell_path(&self, client: &Client) {
        if self.path_stats
            && let Ok(path) = client.path().await
        {
            eprintln!("{}", path.to_json());
        }
    }

    /// Starts the log on standard error, when -d asks for it.
    pub(super) fn start_log(&self) {
        if self.debug {
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
                .with_max_level(tracing::Level::DEBUG)
                .with_target(false)
                .init();
        }
    }
}

fn streams(text: &str) -> Result<Streams, String> {
    text.parse()
        .map_err(|_| "single, per-topic, per-publish or priority".to_owned())
}

fn expiry(text: &str) -> Result<u32, String> {
    match text {
        "-1" | "∞" => Ok(u32::MAX),
        number => number
            .parse()
            .map_err(|_| "not a number of seconds, nor -1".to_owned()),
    }
}
