//! Configuration: one TOML file, overridden by the environment, overridden by flags.
//!
//! Every limit of the broker is a named setting here, with its unit last in the name. A key that
//! does not exist is an error that names the nearest one that does.

mod address;
mod admin;
mod amqp;
mod authorization;
mod bans;
mod change;
mod cluster;
mod exposure;
mod http;
mod identity;
mod jwt;
mod limit;
mod listener;
mod load;
mod log;
mod memory;
mod network;
mod quic;
pub mod reference;
mod store;
mod tls;
mod trace;
mod webhook;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sterna_quic::Profile;

pub use address::AddressPrefix;
pub use admin::Admin;
pub use amqp::{Amqp, Queue};
pub(crate) use amqp::{QUEUE_LEVEL, is_queue_name, is_topic_name};
pub(crate) use authorization::ANONYMOUS;
pub use authorization::{ActionName, Authorization, Effect, Group, Rule, TransportName};
pub use bans::Bans;
pub use cluster::{Cluster, RegionFull, RemoteRegion};
pub use http::{Http, HttpAuthentication, HttpEarlyDataRefusal};
pub use identity::{ClientIds, Guessing, Passwords};
pub use jwt::{Jwt, JwtAlgorithm};
pub use limit::{Exceeded, Limit};
pub use listener::{ListenerUrl, ListenerUrlError, Protocol, Scheme};
pub use load::{ConfigError, ENVIRONMENT_PREFIX, load, located, parse, rule_lines};
pub use log::{AuditLevel, Log, LogFormat};
pub use memory::MemoryCeiling;
pub use network::{Network, ProxyProtocol};
pub use quic::Quic;
pub use store::{Durability, Store};
pub use tls::{AdditionalCertificate, Tls};
pub(crate) use trace::collector;
pub use trace::{Otlp, Trace};
pub use webhook::Webhook;

/// The whole configuration of a broker process.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Number of shards (threads that serve connections); 0 means one per processor.
    pub shards: u16,
    /// Directory for the store and the development certificate. Default: that of systemd
    /// (`$STATE_DIRECTORY`), else `sterna` in the user's state directory.
    pub data_directory: Option<PathBuf>,
    /// Listeners; without any, [`Config::default_listeners`].
    #[serde(rename = "listener")]
    pub listeners: Vec<Listener>,
    /// Certificates of every listener that encrypts.
    pub tls: Tls,
    /// Credentials of clients.
    pub authentication: Authentication,
    /// Records and checks of passwords.
    pub passwords: Passwords,
    /// Delays after wrong credentials.
    pub guessing: Guessing,
    /// Bans by behaviour.
    pub bans: Bans,
    /// A service that decides about clients and their actions.
    pub webhook: Webhook,
    /// Rights of clients.
    pub authorization: Authorization,
    /// Limits and settings of MQTT clients.
    pub mqtt: Mqtt,
    /// Limits and settings of AMQP clients.
    pub amqp: Amqp,
    /// Limits and settings of HTTP clients.
    pub http: Http,
    /// Metrics and health.
    pub admin: Admin,
    /// Sessions, queues, subscriptions and retained messages.
    pub broker: Broker,
    /// Storage and the durability of acknowledgements.
    pub store: Store,
    /// Other nodes.
    pub cluster: Cluster,
    /// Sockets and handshakes.
    pub network: Network,
    /// QUIC's own settings.
    pub quic: Quic,
    /// `$SYS` topics.
    pub sys: Sys,
    /// The log.
    pub log: Log,
    /// Traces of single clients' connections.
    pub trace: Trace,
    /// Spans of single messages.
    pub otlp: Otlp,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shards: 1,
            data_directory: None,
            listeners: Vec::new(),
            tls: Tls::default(),
            authentication: Authentication::default(),
            passwords: Passwords::default(),
            guessing: Guessing::default(),
            bans: Bans::default(),
            webhook: Webhook::default(),
            authorization: Authorization::default(),
            mqtt: Mqtt::default(),
            amqp: Amqp::default(),
            http: Http::default(),
            admin: Admin::default(),
            broker: Broker::default(),
            store: Store::default(),
            cluster: Cluster::default(),
            network: Network::default(),
            quic: Quic::default(),
            sys: Sys::default(),
            log: Log::default(),
            trace: Trace::default(),
            otlp: Otlp::default(),
        }
    }
}

impl Config {
    /// The listeners of a broker that was not told otherwise: every transport, on loopback.
    #[must_use]
    pub fn default_listeners() -> Vec<Listener> {
        [
            "mqtt://localhost:1883",
            "mqtts://localhost:8883",
            "ws://localhost:8083/mqtt",
            "wss://localhost:8084/mqtt",
            "mqtt+quic://localhost:14567",
            "amqp://localhost:5672",
            "amqps://localhost:5671",
            "amqp+quic://localhost:5671",
            "http://localhost:8080",
            "https://localhost:8443",
            "h3://localhost:8443",
            "admin://localhost:9464",
        ]
        .into_iter()
        .map(Listener::at)
        .collect()
    }

    /// The listeners in force.
    #[must_use]
    pub fn listeners_in_force(&self) -> Vec<Listener> {
        if self.listeners.is_empty() {
            Self::default_listeners()
        } else {
            self.listeners.clone()
        }
    }

    /// The addresses at which listeners take encrypted connections, without those that mean all of this host.
    pub(crate) fn encrypted_addresses(&self) -> Vec<IpAddr> {
        let listeners = self.listeners_in_force();
        listeners
            .iter()
            .filter_map(Listener::encrypted_address)
            .collect()
    }

    /// Directory for the broker's files.
    ///
    /// # Errors
    /// When neither the configuration nor the environment names one.
    pub fn data_directory(&self) -> Result<PathBuf, String> {
        match &self.data_directory {
            Some(directory) => Ok(directory.clone()),
            None => usual_directory(|name| std::env::var_os(name)),
        }
    }

    /// Number of shards in force.
    #[must_use]
    pub fn shard_count(&self) -> u16 {
        if self.shards > 0 {
            return self.shards;
        }
        std::thread::available_parallelism()
            .map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX).min(256))
    }

    /// The files that the configuration names and the broker reads, each with its setting. Those of
    /// `[cluster]` are left out.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        let single = [
            ("tls.client_keys", &self.tls.client_keys),
            ("tls.certificate", &self.tls.certificate),
            ("tls.key", &self.tls.key),
            ("tls.client_ca", &self.tls.client_ca),
            (
                "authentication.password_file",
                &self.authentication.password_file,
            ),
            ("authentication.token_file", &self.authentication.token_file),
            (
                "authentication.jwt.keys_ca",
                &self.authentication.jwt.keys_ca,
            ),
            ("webhook.ca", &self.webhook.ca),
            ("webhook.headers_file", &self.webhook.headers_file),
        ];
        let single = (single.into_iter()).filter_map(|(name, path)| Some((name, path.as_deref()?)));
        let keys = self.authentication.jwt.key_files.iter();
        let revoked = self.tls.client_revocation_lists.iter();
        let pairs = self.tls.additional.iter();
        single
            .chain(keys.map(|path| ("authentication.jwt.key_files", path.as_path())))
            .chain(revoked.map(|path| ("tls.client_revocation_lists", path.as_path())))
            .chain(
                pairs.flat_map(|AdditionalCertificate { certificate, key }| {
                    let key = ("tls.additional.key", key.as_path());
                    [("tls.additional.certificate", certificate.as_path()), key]
                }),
            )
            .collect()
    }

    /// Checks combinations of values, the existence of files, and exposure.
    ///
    /// # Errors
    /// Every problem found, each a sentence that names the setting.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        problems.extend(self.exposure_problems());
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            problems.push("tls.certificate and tls.key go together".to_owned());
        }
        if self.tls.require_client_certificate && self.tls.client_ca.is_none() {
            problems.push("tls.require_client_certificate needs tls.client_ca".to_owned());
        }
        if self.tls.client_keys.is_some() && !self.tls.raw_public_key {
            problems.push("tls.client_keys needs tls.raw_public_key = true".to_owned());
        }
        for (name, path) in self.files() {
            if !path.is_file() {
                problems.push(format!("{name}: there is no file {}", path.display()));
            }
        }
        if !self.tls.client_revocation_lists.is_empty() && self.tls.client_ca.is_none() {
            problems.push("tls.client_revocation_lists needs tls.client_ca".to_owned());
        }
        if !self.tls.additional.is_empty() && self.tls.certificate.is_none() {
            problems.push("tls.additional needs tls.certificate".to_owned());
        }
        if self.mqtt.maximum_qos > 2 {
            problems.push("mqtt.maximum_qos is 0, 1 or 2".to_owned());
        }
        if self.mqtt.maximum_data_streams < 4 {
            problems.push("mqtt.maximum_data_streams is at least 4".to_owned());
        }
        if self.mqtt.maximum_assembling_bytes < self.mqtt.maximum_packet_bytes {
            problems.push(
                "mqtt.maximum_assembling_bytes is at least mqtt.maximum_packet_bytes".to_owned(),
            );
        }
        if self.broker.maximum_group_unacknowledged == 0 {
            problems.push("broker.maximum_group_unacknowledged is at least 1".to_owned());
        }
        if self.mqtt.receive_maximum == 0 {
            problems.push("mqtt.receive_maximum is at least 1".to_owned());
        }
        if self.shards > 256 {
            problems.push("shards is at most 256".to_owned());
        }
        problems.extend(self.network.problems());
        problems.extend(self.bans.problems());
        problems.extend(listener::address_problems(&self.listeners));
        problems.extend((self.listeners.iter()).filter_map(Listener::proxy_protocol_problem));
        problems.extend(self.quic_problems());
        problems.extend(self.amqp.problems());
        problems.extend(self.http.problems());
        problems.extend(self.broker.memory_problems());
        if !(1..=100).contains(&self.broker.reader_share_percent) {
            problems.push("broker.reader_share_percent is 1 to 100".to_owned());
        }
        problems.extend(self.store.problems());
        problems.extend(self.cluster.problems(self));
        problems.extend(self.admin.problems());
        let groups = [
            ("admin.viewer_groups", &self.admin.viewer_groups),
            ("admin.operator_groups", &self.admin.operator_groups),
        ];
        problems.extend(
            (groups.into_iter())
                .filter_map(|(setting, names)| self.authorization.unknown_group(setting, names)),
        );
        problems.extend(self.otlp.problems());
        problems.extend(self.log.problem());
        problems.extend(identity::problems(
            &self.passwords,
            &self.guessing,
            &self.authentication.client_ids,
        ));
        problems.extend(self.authentication.jwt.problems());
        problems.extend(self.authorization.problems());
        problems.extend(self.webhook.problems());
        if self.webhook.authorization_url.is_none() && self.authorization.asks() {
            let what = "authorization.rule: `ask` needs webhook.authorization_url";
            problems.push(what.to_owned());
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// The default data directory: the one that systemd gives a service, else a place below the user's own.
fn usual_directory(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    // A relative path would be another directory in each folder where the broker is started.
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    // systemd separates several directories by colons; the first is ours.
    let of_service = variable("STATE_DIRECTORY").and_then(|list| {
        let list = list.into_string().ok()?;
        let first = PathBuf::from(list.split(':').next()?);
        first.is_absolute().then_some(first)
    });
    of_service
        .or_else(|| absolute("XDG_STATE_HOME").map(|state| state.join("sterna")))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state/sterna")))
        .ok_or_else(|| {
            "there is no place to keep anything: none of STATE_DIRECTORY, XDG_STATE_HOME and HOME is \
             set; set data_directory (or --data-dir)"
                .to_owned()
        })
}

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listener {
    /// Transport, address and port, for example `mqtts://[::]:8883`. Schemes of MQTT: `mqtt` (TCP), `mqtts`
    /// (TLS), `ws`, `wss` (WebSocket; the path is served too), `mqtt+quic`. Of AMQP: `amqp` (TCP), `amqps`
    /// (TLS), `amqp+quic`. Of HTTP: `http`, `https`, `h3`. For metrics and health: `admin` (TCP), `admins`
    /// (TLS). Every QUIC listener serves all protocols, and every WebSocket listener those that have a
    /// subprotocol.
    pub url: String,
    /// Whether clients without credentials are admitted here; overrides `[authentication]`. Default of
    /// an admin listener: only where it is on loopback.
    pub anonymous: Option<bool>,
    /// Effect of early data on this listener; overrides `quic.early_data`.
    pub early_data: Option<EarlyData>,
    /// Keep alive told to every client of this listener instead of its own, in seconds; overrides
    /// `mqtt.server_keep_alive_s`. With 0 there is no keep alive: the transport alone tells whether
    /// a client lives.
    pub server_keep_alive_s: Option<u16>,
    /// The profile of QUIC's settings here; overrides `quic.profile`. Changes of `[quic]` to a
    /// profile hold for this one, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Durability for which acknowledgements to clients of this listener wait; overrides
    /// `store.durability`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Balancers: only they connect here, for their clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocol>,
}

/// Packets of early data (0-RTT) that take effect before the handshake has shown that they are no
/// replay. All others wait for that, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EarlyData {
    /// Early data is refused; clients send it again after the handshake.
    #[default]
    Off,
    /// Requests that a replay cannot harm are done at once: CONNECT, SUBSCRIBE, UNSUBSCRIBE and PINGREQ. So is PUBLISH
    /// of QoS 1 and 2 from clients with a name of their own, by which a repetition is known. So is PUBLISH of QoS 0 if
    /// the rule that allows it says `idempotent`.
    Idempotent,
    /// Everything is done at once. Tickets work once, so a replay can only succeed instead of the
    /// original, and the client then repeats the refused requests.
    All,
}

impl Listener {
    /// A listener with defaults at a URL.
    #[must_use]
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ..Self::default()
        }
    }

    /// Whether clients without credentials are admitted, where `[authentication]` says `default`.
    pub(crate) fn admits_anonymous(&self, default: bool) -> bool {
        self.anonymous.unwrap_or_else(|| {
            let url = self.url.parse::<ListenerUrl>().ok();
            match url.filter(|url| url.scheme.protocol() == Protocol::Admin) {
                Some(url) => self.is_for_this_host(&url),
                None => default,
            }
        })
    }

    /// The address at which it takes encrypted connections, if it names one and not all of this host.
    fn encrypted_address(&self) -> Option<IpAddr> {
        let url = self.url.parse::<ListenerUrl>().ok()?;
        let address = url.address().ip();
        (url.scheme.is_encrypted() && !address.is_unspecified()).then_some(address)
    }

    /// Whether only this host can reach the listener; `url` is its own. Through a balancer others can.
    pub(crate) fn is_for_this_host(&self, url: &ListenerUrl) -> bool {
        url.is_loopback() && self.proxy_protocol.is_none()
    }

    fn encrypts(&self) -> bool {
        self.url
            .parse::<ListenerUrl>()
            .is_ok_and(|url| url.scheme.is_encrypted())
    }
}

/// Credentials of clients.
#[derive(Clone, Debug, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Authentication {
    /// Whether clients without credentials are admitted. Default: only without a password file and a
    /// token file, and without keys of JSON web tokens.
    pub anonymous: Option<bool>,
    /// Users, one `name:record` a line, made by `sterna passwd`.
    pub password_file: Option<PathBuf>,
    /// Bearer tokens of HTTP, one `name:digest` or `name:digest:expiry` a line, made by `sterna token`.
    pub token_file: Option<PathBuf>,
    /// JSON web tokens of an issuer.
    pub jwt: Jwt,
    /// Serve clients without credentials on addresses that other hosts reach.
    pub allow_anonymous_beyond_loopback: bool,
    /// Take passwords and tokens in the clear on addresses that other hosts reach.
    pub allow_plaintext_passwords_beyond_loopback: bool,
    /// Client identifiers that users may have; without an entry, all.
    pub client_ids: Vec<ClientIds>,
}

impl Authentication {
    /// Whether files or an issuer know clients by secrets: passwords or tokens.
    const fn has_secrets(&self) -> bool {
        self.password_file.is_some() || self.token_file.is_some() || self.jwt.is_configured()
    }
}

/// Limits and settings of MQTT clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mqtt {
    /// Largest packet accepted, in bytes (Maximum Packet Size).
    pub maximum_packet_bytes: u32,
    /// Largest packet accepted before CONNACK, in bytes; a CONNECT with its will must fit.
    pub maximum_connect_bytes: u32,
    /// Unacknowledged QoS 1 and 2 PUBLISH packets a client may have in flight (Receive Maximum).
    pub receive_maximum: u16,
    /// Largest number of unacknowledged PUBLISH packets sent to one client, also if its Receive
    /// Maximum is higher.
    pub send_maximum: u16,
    /// Topic aliases a client may set (Topic Alias Maximum).
    pub topic_alias_maximum: u16,
    /// Highest QoS granted: 0, 1 or 2.
    pub maximum_qos: u8,
    /// Whether retained messages are served.
    pub retain_available: bool,
    /// Whether wildcards are allowed in filters.
    pub wildcard_subscription_available: bool,
    /// Whether shared subscriptions are served.
    pub shared_subscription_available: bool,
    /// Whether subscription identifiers are served.
    pub subscription_identifiers_available: bool,
    /// Longest session expiry granted, in seconds.
    pub maximum_session_expiry_s: u32,
    /// Session expiry of persistent 3.1 and 3.1.1 sessions, in seconds.
    pub legacy_session_expiry_s: u32,
    /// Keep alive told to every client instead of its own, in seconds (Server Keep Alive).
    pub server_keep_alive_s: Option<u16>,
    /// Longest keep alive accepted, in seconds; a longer one (or none) is answered with this. 0: any.
    pub maximum_keep_alive_s: u16,
    /// Longest client identifier, in bytes.
    pub maximum_client_id_bytes: u16,
    /// Prefix of response topics told to clients that ask for Response Information.
    pub response_information: Option<String>,
    /// Server Reference told to clients that are turned away at shutdown (reason 0x9C is used then).
    pub server_reference: Option<String>,
    /// Streams besides the control stream that a QUIC client may use at once.
    pub maximum_data_streams: u16,
    /// Bytes held back on data streams until CONNACK.
    pub maximum_held_bytes: u32,
    /// Bytes of all packets of one connection of which only parts have arrived.
    pub maximum_assembling_bytes: u32,
    /// Largest number of user properties of a message or a will, and of filters in one packet.
    pub maximum_list_entries: u32,
    /// Whether QUIC datagrams carry messages of QoS 0, both ways, for clients that ask.
    pub datagrams: bool,
    /// Whether the wills of connected clients are due when the broker stops. Otherwise a restart drops them.
    /// Without a store they always are.
    pub wills_at_shutdown: bool,
}

impl Default for Mqtt {
    fn default() -> Self {
        Self {
            maximum_packet_bytes: 1 << 21,
            maximum_connect_bytes: 128 << 10,
            receive_maximum: 1024,
            send_maximum: 1024,
            topic_alias_maximum: 32,
            maximum_qos: 2,
            retain_available: true,
            wildcard_subscription_available: true,
            shared_subscription_available: true,
            subscription_identifiers_available: true,
            maximum_session_expiry_s: u32::MAX,
            legacy_session_expiry_s: 7 * 24 * 3600,
            server_keep_alive_s: None,
            maximum_keep_alive_s: 0,
            maximum_client_id_bytes: 256,
            response_information: None,
            server_reference: None,
            maximum_data_streams: 128,
            maximum_held_bytes: 64 << 10,
            maximum_assembling_bytes: 8 << 20,
            maximum_list_entries: 1024,
            datagrams: true,
            wills_at_shutdown: false,
        }
    }
}

/// Sessions, queues, subscriptions and retained messages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Broker {
    /// Sessions held at once, connected or not.
    pub maximum_sessions: u64,
    /// Messages of QoS 1 and 2 that wait in one session's queue in memory. A session that the store keeps reads there
    /// what has no room.
    pub maximum_queued_messages: u32,
    /// Time in which a connected reader whose queue is half full has to take its share of what waits, in milliseconds. One
    /// that does holds its publishers of QoS 1 and 2. 0 holds nobody.
    pub reader_stall_ms: u64,
    /// That share, in percent of the messages that waited at the beginning.
    pub reader_share_percent: u8,
    /// Time for which readers hold one publisher in all, in milliseconds. It comes back while nobody holds it.
    pub publisher_hold_ms: u64,
    /// Bytes of one session's messages of QoS 1 and 2 that wait or are not acknowledged. Where they fill
    /// it, sending waits for acknowledgements.
    pub maximum_queued_bytes: u64,
    /// Bytes that the store keeps for one session of what was published while its client was away.
    pub maximum_away_bytes: u64,
    /// The same in messages.
    pub maximum_away_messages: u64,
    /// Bytes of one session's messages of QoS 0 that wait, and 64 for each of them.
    pub maximum_queued_qos0_bytes: u64,
    /// Time since its publication after which a waiting message of QoS 0 is dropped, in milliseconds. It
    /// waits longer for an AMQP receiver, which gives credit when it pleases.
    pub maximum_queued_qos0_age_ms: u64,
    /// Messages that wait in the queue of one shared subscription, or in one AMQP queue.
    pub maximum_group_queued_messages: u32,
    /// Bytes that wait there.
    pub maximum_group_queued_bytes: u64,
    /// Members of one shared subscription.
    pub maximum_group_members: u32,
    /// Messages of one shared subscription that one MQTT client holds unacknowledged.
    pub maximum_group_unacknowledged: u32,
    /// Bytes of all messages of all shards: waiting, sent and not acknowledged, and retained. Above it,
    /// only clients that keep up get messages, and AMQP queues refuse them.
    pub maximum_total_message_bytes: u64,
    /// Bytes of the wills of all clients.
    pub maximum_will_bytes: u64,
    /// Subscriptions of one session.
    pub maximum_subscriptions_per_session: u32,
    /// Bytes of the filters of one session.
    pub maximum_filter_bytes_per_session: u32,
    /// Subscriptions in all.
    pub maximum_subscriptions: u64,
    /// Retained messages.
    pub maximum_retained_messages: u64,
    /// Bytes of retained messages.
    pub maximum_retained_bytes: u64,
    /// Retained messages that wait for one session because its subscriptions asked for them.
    pub maximum_retained_deliveries: u32,
    /// Levels of a topic or filter.
    pub maximum_topic_levels: u16,
    /// Memory that the process may take. Near it the broker does more and more to stay below, in stages.
    pub memory_ceiling: MemoryCeiling,
    /// The most that retained messages may take, in percent of the ceiling; `maximum_retained_bytes` holds, too. They stay
    /// when their publishers go, so without a bound below the first stage it would never end.
    pub memory_retained_percent: u8,
    /// From here on clients that publish are not read, in percent of the ceiling.
    pub memory_pause_percent: u8,
    /// From here on messages that wait and are in the log leave memory, in percent of the ceiling.
    pub memory_move_percent: u8,
    /// From here on messages that wait are dropped, and new ones refused, in percent of the ceiling.
    pub memory_drop_percent: u8,
    /// From here on new clients are refused, and those that hold most are ended, in percent of the ceiling.
    pub memory_refuse_percent: u8,
    /// Distance between the beginning of a stage and its end below that, in percent of the ceiling.
    pub memory_hysteresis_percent: u8,
    /// Time that memory may be short before the clients that hold most are ended in any stage, in
    /// milliseconds.
    pub memory_patience_ms: u64,
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            maximum_sessions: 1_000_000,
            maximum_queued_messages: 1000,
            reader_stall_ms: 2_000,
            reader_share_percent: 10,
            publisher_hold_ms: 30_000,
            maximum_queued_bytes: 64 << 20,
            maximum_away_bytes: 256 << 20,
            maximum_away_messages: 1_000_000,
            maximum_queued_qos0_bytes: 16 << 20,
            maximum_queued_qos0_age_ms: 60_000,
            maximum_group_queued_messages: 10_000,
            maximum_group_queued_bytes: 64 << 20,
            maximum_group_members: 10_000,
            maximum_group_unacknowledged: 32,
            maximum_total_message_bytes: 2 << 30,
            maximum_will_bytes: 256 << 20,
            maximum_subscriptions_per_session: 1000,
            maximum_filter_bytes_per_session: 1 << 20,
            maximum_subscriptions: 10_000_000,
            maximum_retained_messages: 1_000_000,
            maximum_retained_bytes: 1 << 30,
            maximum_retained_deliveries: 100_000,
            maximum_topic_levels: 128,
            memory_ceiling: MemoryCeiling::Percent(80),
            memory_retained_percent: 25,
            memory_pause_percent: 70,
            memory_move_percent: 80,
            memory_drop_percent: 90,
            memory_refuse_percent: 95,
            memory_hysteresis_percent: 5,
            memory_patience_ms: 30_000,
        }
    }
}

/// `$SYS` topics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sys {
    /// Seconds between two updates; 0 turns `$SYS` off.
    pub interval_s: u32,
}

impl Default for Sys {
    fn default() -> Self {
        Self { interval_s: 10 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_is_never_one_for_everybody() {
        let place = |variables: &[(&str, &str)]| {
            let value = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            };
            usual_directory(value).map(|path| path.display().to_string())
        };
        let home = ("HOME", "/home/ann");
        assert_eq!(place(&[home]).unwrap(), "/home/ann/.local/state/sterna");
        let state = ("XDG_STATE_HOME", "/state");
        assert_eq!(place(&[home, state]).unwrap(), "/state/sterna");
        let service = ("STATE_DIRECTORY", "/var/lib/sterna:/var/lib/other");
        assert_eq!(place(&[home, state, service]).unwrap(), "/var/lib/sterna");
        for nowhere in [
            &[][..],
            &[("HOME", "")],
            &[("XDG_STATE_HOME", "here"), ("STATE_DIRECTORY", "")],
        ] {
            let why = place(nowhere).unwrap_err();
            assert!(why.contains("set data_directory (or --data-dir)"), "{why}");
        }
    }
}
