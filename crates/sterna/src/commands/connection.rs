//! The options that every client command has: where the broker is, who the client is, whom it
//! trusts.

pub(super) mod amqp;
pub(super) mod http;

use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sterna_client::{
    Client, Fingerprint, Login, Options, Protocol, Publish, Qlog, QoS, QuicOverrides, QuicProfile,
    Scheme, Streams, Tls, TlsVersion, Url, Version,
};

use super::property::{Given, Properties};
pub(super) use amqp::AmqpSettings;
use amqp::{Mechanism, mechanism};

/// Options of a connection. Names and meanings are mosquitto's where it has the same.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Connection {
    /// The broker: mqtt://, mqtts://, ws://, wss://, mqtt+quic://, amqp://, amqps://, amqp+ws://,
    /// amqp+wss://, amqp+quic://, http://, https:// or h3://[USER[:PASSWORD]@]HOST[:PORT][/TOPIC]
    #[arg(value_name = "URL")]
    broker: Option<String>,
    /// The broker, as an option in place of the argument [env: STERNA_URL]
    #[arg(short = 'L', long, value_name = "URL", conflicts_with = "broker")]
    url: Option<String>,
    /// Host of the broker, in place of a URL [default: localhost]
    #[arg(short = 'h', long, value_name = "HOST", conflicts_with_all = ["broker", "url"])]
    host: Option<String>,
    /// Port of the broker [default: 1883; 8883 with TLS, 14567 with --quic]
    #[arg(short = 'p', long, value_name = "PORT", conflicts_with_all = ["broker", "url"])]
    port: Option<u16>,
    /// With -h: connect over QUIC
    #[arg(long, conflicts_with_all = ["broker", "url"])]
    quic: bool,

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
    /// User name
    #[arg(
        short = 'u',
        long,
        value_name = "USER",
        env = "STERNA_USERNAME",
        help_heading = "Client"
    )]
    username: Option<String>,
    /// Password. Other users of this host can see it on the command line; the environment is safer
    /// [env: STERNA_PASSWORD, if there is a user name]
    #[arg(
        short = 'P',
        long = "pw",
        value_name = "PASSWORD",
        help_heading = "Client"
    )]
    password: Option<String>,
    /// Log in by SCRAM-SHA-256: the password stays here, and the broker has to know it, too
    #[arg(long, requires = "username", help_heading = "Client")]
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
    /// Go on with the session that this identifier has at the broker, and leave it there (needs -i);
    /// in AMQP with the subscription
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
    /// Longest wait at the end for the broker's acknowledgement of what was sent [default: 30; over QUIC
    /// less on a fast path, and as long as there is progress]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "Client")]
    close_timeout: Option<Duration>,
    /// Over QUIC: one stream for all messages (single), one for each topic (per-topic), one for each
    /// message (per-publish), or QoS 0 on a stream behind all others (priority)
    #[arg(long, value_name = "MODE", default_value = "single", value_parser = streams,
          help_heading = "TLS and QUIC")]
    streams: Streams,
    /// Over QUIC: send messages with QoS 0 as datagrams, and receive them so, where the broker does
    /// it: they may be lost, and hold up nothing
    #[arg(long, help_heading = "TLS and QUIC")]
    datagrams: bool,
    /// Over QUIC: the kind of path: default, lan, cellular, satellite, nb-iot, sleepy
    #[arg(long, value_name = "PROFILE", help_heading = "TLS and QUIC")]
    quic_profile: Option<QuicProfile>,
    /// Over QUIC: change one setting of the profile; may be repeated
    #[arg(
        long = "quic-set",
        value_name = "NAME=VALUE",
        help_heading = "TLS and QUIC"
    )]
    quic_settings: Vec<String>,
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

    /// PEM file of authorities to trust, in place of the system's
    #[arg(long, value_name = "FILE", help_heading = "TLS and QUIC")]
    cafile: Option<PathBuf>,
    /// Folder of PEM files of authorities to trust, in place of the system's
    #[arg(long, value_name = "FOLDER", help_heading = "TLS and QUIC")]
    capath: Option<PathBuf>,
    /// Trust exactly the certificate with this SHA-256, which `sterna serve` prints; may be
    /// repeated
    #[arg(long, value_name = "SHA256", help_heading = "TLS and QUIC")]
    fingerprint: Vec<Fingerprint>,
    /// Trust exactly the server whose bare key has this SHA-256, and ask it for that in place of a
    /// certificate (RFC 7250); may be repeated
    #[arg(long, value_name = "SHA256", help_heading = "TLS and QUIC")]
    server_key: Vec<Fingerprint>,
    /// PEM file with this client's certificate
    #[arg(
        long,
        value_name = "FILE",
        requires = "key",
        help_heading = "TLS and QUIC"
    )]
    cert: Option<PathBuf>,
    /// PEM file with its key; without --cert this client shows the bare key (RFC 7250)
    #[arg(long, value_name = "FILE", help_heading = "TLS and QUIC")]
    key: Option<PathBuf>,
    /// Do not verify the broker at all: whoever is on the path can read and change everything
    #[arg(long, help_heading = "TLS and QUIC")]
    insecure: bool,
    /// Name that the broker's certificate must have, if not the host's
    #[arg(long, value_name = "NAME", help_heading = "TLS and QUIC")]
    server_name: Option<String>,
    /// Protocol to ask for on a TLS port that serves several
    #[arg(long, value_name = "NAME", help_heading = "TLS and QUIC")]
    tls_alpn: Option<String>,
    /// Only this version of TLS: tlsv1.2 or tlsv1.3
    #[arg(long, value_name = "VERSION", value_parser = tls_version, help_heading = "TLS and QUIC")]
    tls_version: Option<TlsVersion>,
    /// With -h: use TLS and trust the system's authorities, as mqtts:// does
    #[arg(long, help_heading = "TLS and QUIC")]
    tls_use_os_certs: bool,

    /// Say on standard error what happens
    #[arg(short = 'd', long, help_heading = "Output")]
    pub(super) debug: bool,
    /// Over QUIC: say at the end, as one line of JSON on standard error, what the connection has
    /// learnt about its path and counted
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

/// What a command line says about the connection.
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
            ("--quic-profile", self.quic_profile.is_some()),
            ("--quic-set", !self.quic_settings.is_empty()),
            ("--streams", self.streams != Streams::Single),
            ("--datagrams", self.datagrams),
            ("--no-early-data", self.no_early_data),
            ("--early-data", self.early_data),
            ("--qlog", self.qlog.is_some()),
            ("--path-stats", self.path_stats),
        ];
        let encrypted = [
            ("--cafile", self.cafile.is_some()),
            ("--capath", self.capath.is_some()),
            ("--fingerprint", !self.fingerprint.is_empty()),
            ("--server-key", !self.server_key.is_empty()),
            ("--cert", self.cert.is_some()),
            ("--key", self.key.is_some()),
            ("--insecure", self.insecure),
            ("--server-name", self.server_name.is_some()),
            ("--tls-alpn", self.tls_alpn.is_some()),
            ("--tls-version", self.tls_version.is_some()),
            ("--tls-use-os-certs", self.tls_use_os_certs),
        ];
        let over_tcp = [
            ("--tls-alpn", self.tls_alpn.is_some()),
            (
                "--tls-version tlsv1.2",
                self.tls_version == Some(TlsVersion::Tls12),
            ),
        ];
        let with_https = [
            ("--head-start", self.head_start.is_some()),
            ("--no-http3", self.no_http3),
        ];
        let name = scheme.name();
        let given = |flags: &[(&'static str, bool)]| {
            let given = flags.iter().find(|(_, is_given)| *is_given);
            given.map(|(flag, _)| *flag)
        };
        if let Some(flag) = given(&over_quic).filter(|_| !is_quic) {
            return Err(format!("{flag}: {name}:// does not travel over QUIC"));
        }
        if let Some(flag) = given(&encrypted).filter(|_| !scheme.is_encrypted()) {
            return Err(format!("{flag}: {name}:// is not encrypted"));
        }
        if let Some(flag) = given(&over_tcp).filter(|_| scheme.is_quic()) {
            return Err(format!(
                "{flag}: QUIC has TLS 1.3 and a protocol that the URL says"
            ));
        }
        if let Some(flag) = given(&with_https).filter(|_| scheme != Scheme::Https) {
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
        let password = self
            .password
            .clone()
            .or_else(|| from_environment("STERNA_PASSWORD"));
        match (&self.username, password) {
            (Some(user), Some(password)) if self.scram => {
                options.login = Login::Scram {
                    user: user.clone(),
                    password,
                };
            }
            (Some(_), None) if self.scram => return Err("--scram: there is no password".to_owned()),
            (user, password) if user.is_some() || self.password.is_some() => {
                let user = user.clone();
                options.login = Login::Password {
                    user,
                    password: password.map(String::into_bytes),
                };
            }
            // The environment's password belongs to a user name; without one it stays there.
            _ => {}
        }
        options.keep_alive_s = self.keepalive;
        options.bind = self.bind;
        options.connect_timeout = self.connect_timeout;
        options.close_timeout = self.close_timeout.unwrap_or(options.close_timeout);
        options.streams = self.streams;
        options.datagrams = self.datagrams;
        options.quic = self.quic()?;
        options.qlog = self.qlog();
        options.early_data = !self.no_early_data || self.early_data;
        options.tls = self.tls(options.url.scheme());
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

    /// QUIC's own settings.
    fn quic(&self) -> Result<QuicOverrides, String> {
        let mut quic = QuicOverrides {
            profile: self.quic_profile,
            ..QuicOverrides::default()
        };
        for setting in &self.quic_settings {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("--quic-set {setting}: NAME=VALUE"))?;
            quic.set(name, value)
                .map_err(|error| format!("--quic-set: {error}"))?;
        }
        if let Err(problems) = quic.settings().check() {
            return Err(format!("--quic-set: {}", problems.join("; ")));
        }
        Ok(quic)
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

    /// Whom to trust, with a warning where it is everybody.
    fn tls(&self, scheme: Scheme) -> Tls {
        let mut tls = Tls::default();
        tls.ca_file.clone_from(&self.cafile);
        tls.ca_path.clone_from(&self.capath);
        tls.fingerprints.clone_from(&self.fingerprint);
        tls.server_keys.clone_from(&self.server_key);
        tls.version = self.tls_version;
        tls.certificate.clone_from(&self.cert);
        tls.key.clone_from(&self.key);
        tls.insecure = self.insecure;
        tls.key_log = self.key_log();
        tls.server_name.clone_from(&self.server_name);
        tls.alpn = self.tls_alpn.iter().cloned().collect();
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
        self.broker.is_some()
            || self.url.is_some()
            || self.host.is_some()
            || self.port.is_some()
            || self.quic
            || from_environment("STERNA_URL").is_some()
    }

    fn url(&self) -> Result<Url, String> {
        let given = self.broker.clone().or_else(|| self.url.clone());
        let url = given.or_else(|| {
            let by_parts = self.host.is_some() || self.port.is_some() || self.quic;
            from_environment("STERNA_URL").filter(|_| !by_parts)
        });
        if let Some(url) = url {
            return url.parse().map_err(|error| format!("{url}: {error}"));
        }
        let wants_tls = self.tls_use_os_certs
            || self.cafile.is_some()
            || self.capath.is_some()
            || self.key.is_some()
            || self.server_name.is_some()
            || self.tls_alpn.is_some()
            || self.tls_version.is_some()
            || !self.fingerprint.is_empty()
            || !self.server_key.is_empty()
            || self.insecure
            || self.port == Some(8883);
        let scheme = match (self.quic, wants_tls) {
            (true, _) => Scheme::MqttQuic,
            (false, true) => Scheme::Mqtts,
            (false, false) => Scheme::Mqtt,
        };
        Url::new(
            scheme,
            self.host.as_deref().unwrap_or("localhost"),
            self.port,
        )
        .map_err(|error| error.to_string())
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

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A QoS of the command line.
pub(super) fn qos(text: &str) -> Result<QoS, String> {
    text.parse()
        .ok()
        .and_then(QoS::from_u8)
        .ok_or_else(|| "QoS is 0, 1 or 2".to_owned())
}

/// A length of time in seconds, fractions allowed.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "not a number of seconds".to_owned())
}

fn tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "tlsv1.2" => Ok(TlsVersion::Tls12),
        "tlsv1.3" => Ok(TlsVersion::Tls13),
        _ => Err("tlsv1.2 or tlsv1.3".to_owned()),
    }
}

fn streams(text: &str) -> Result<Streams, String> {
    text.parse()
        .map_err(|_| "single, per-topic, per-publish or priority".to_owned())
}

fn version(text: &str) -> Result<Version, String> {
    match text.trim_start_matches("mqttv") {
        "5" | "5.0" => Ok(Version::V5),
        "311" | "3.1.1" | "4" => Ok(Version::V311),
        "31" | "3.1" | "3" => Ok(Version::V31),
        _ => Err("MQTT has the versions 5, 311 and 31".to_owned()),
    }
}

fn expiry(text: &str) -> Result<u32, String> {
    match text {
        "-1" | "∞" => Ok(u32::MAX),
        number => number
            .parse()
            .map_err(|_| "not a number of seconds, nor -1".to_owned()),
    }
}
