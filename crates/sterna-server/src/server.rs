//! The process: from a configuration to running shards, and what can be asked of them from outside.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sterna_broker::{Directory, Limits, NoStore};
use sterna_net::quic::QuicConfig;
use sterna_net::{
    BoundShard, Certificates, ClientAuth, ClientAuthority, ClientKeys, Courier, Gate,
    ListenerConfig, ListenerTransport, RawKeys, ShardConfig, TlsConfig, TlsVersions,
    WebSocketConfig,
};

use crate::amqp::Registry;
use crate::authentication::Checker;
use crate::certificate::{self, Certificate};
use crate::config::{Config, EarlyData, Listener, ListenerUrl, Scheme};
use crate::http::Registry as HttpRegistry;
use crate::mail::{Letters, Mail};
use crate::policy::Policy;
use crate::shard::{Parts, Shard};
use crate::sys::Board;
use crate::tracer::Tracer;

/// The application protocols of QUIC listeners (ALPN).
const PROTOCOLS: [&[u8]; 3] = [b"mqtt", b"amqp", b"h3"];

/// A running broker.
///
/// Dropping it without [`Server::shutdown`] leaves it running.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<String>,
    ports: Vec<u16>,
    certificate: Mutex<Certificate>,
    certificates: Arc<Certificates>,
    authority: Option<Arc<ClientAuthority>>,
    client_keys: Option<Arc<ClientKeys>>,
    started_with: Config,
    courier: Mutex<Courier<Mail>>,
    gate: Gate,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Binds every listener and starts the shards. When it returns, everything listens.
    ///
    /// # Errors
    /// A sentence for the operator: which setting, file or address, and what is wrong with it.
    pub fn start(config: &Config) -> Result<Self, String> {
        config.check().map_err(|problems| problems.join("\n"))?;
        let policy = Policy::load(config)?;
        let (certificate, identity) = certificate::load(&config.tls, &config.data_directory())?;
        let certificates = Certificates::new(vec![identity]).map_err(|e| e.to_string())?;
        let authority = match &config.tls.client_ca {
            None => None,
            Some(path) => Some(
                ClientAuthority::from_pem(&certificate::read(path)?, &[])
                    .map_err(|e| format!("{}: {e}", path.display()))?,
            ),
        };
        let client_keys = match &config.tls.client_keys {
            None => None,
            Some(path) => Some(
                ClientKeys::from_pem(&certificate::read(path)?)
                    .map_err(|e| format!("{}: {e}", path.display()))?,
            ),
        };
        let urls = config
            .listeners_in_force()
            .iter()
            .map(|listener| listener.url.parse::<ListenerUrl>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| e.to_string())?;
        let tls = Arc::new(TlsConfig {
            client_auth: match &authority {
                None => ClientAuth::None,
                Some(authority) if config.tls.require_client_certificate => {
                    ClientAuth::Required(Arc::clone(authority))
                }
                Some(authority) => ClientAuth::Optional(Arc::clone(authority)),
            },
            versions: if config.tls.only_tls13 {
                TlsVersions::Only13
            } else {
                TlsVersions::From12
            },
            raw_keys: config.tls.raw_public_key.then(|| RawKeys {
                clients: client_keys.clone(),
                required: client_keys.is_some(),
            }),
            ..TlsConfig::new(Arc::clone(&certificates), &PROTOCOLS)
        });
        // A WebSocket client offers HTTP/1.1 in its TLS handshake, not what it carries.
        let over_tls = |protocols: &[&[u8]]| {
            Arc::new(TlsConfig {
                alpn: protocols.iter().map(|name| name.to_vec()).collect(),
                ..(*tls).clone()
            })
        };
        let tls = Configurations {
            mqtt: over_tls(&[b"mqtt"]),
            amqp: over_tls(&[b"amqp"]),
            websocket: over_tls(&[b"http/1.1"]),
            https: over_tls(&[b"h2", b"http/1.1"]),
            quic: Arc::clone(&tls),
        };
        let listeners: Vec<ListenerConfig> = urls
            .iter()
            .zip(config.listeners_in_force())
            .map(|(url, listener)| ListenerConfig {
                address: url.address(),
                transport: transport(url, config, &listener, &tls),
            })
            .collect();

        let count = usize::from(config.shard_count());
        let bound = sterna_net::bind::<Mail>(&shard_config(config), &listeners, count)
            .map_err(|e| format!("cannot listen: {e}"))?;
        let ports: Vec<u16> = (bound[0].addresses().iter())
            .map(SocketAddr::port)
            .collect();
        let listeners = urls
            .iter()
            .zip(&ports)
            .map(|(url, port)| url.with_port(*port))
            .collect();
        let policy = Arc::new(policy.announcing(config, &ports));
        let courier = Mutex::new(bound[0].courier());
        let gate = bound[0].gate();
        let checker = Checker::start().map_err(|e| format!("cannot start a thread: {e}"))?;
        let tracer = Tracer::start().map_err(|e| format!("cannot start a thread: {e}"))?;
        let threads = start_shards(bound, config, &policy, &checker, &tracer)?;
        Ok(Self {
            listeners,
            ports,
            certificate: Mutex::new(certificate),
            certificates,
            authority,
            client_keys,
            started_with: config.clone(),
            courier,
            gate,
            threads,
        })
    }

    /// URLs of the listeners, with the ports that were bound, in the order of the configuration.
    #[must_use]
    pub fn listeners(&self) -> &[String] {
        &self.listeners
    }

    /// The certificate in force.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.certificate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts a new configuration in force as far as that goes without a restart: certificates, client
    /// authorities, users, rules, and what MQTT clients are granted. Connections go on.
    ///
    /// Returns the names of sections that changed and need a restart.
    ///
    /// # Errors
    /// A sentence for the operator; the old configuration then stays in force as a whole.
    pub fn reload(&self, config: &Config) -> Result<Vec<&'static str>, String> {
        config.check().map_err(|problems| problems.join("\n"))?;
        let old = &self.started_with;
        let mut unchanged = Vec::new();
        let mut kept = config.clone();
        kept.listeners.clone_from(&old.listeners);
        if config.listeners_in_force() != old.listeners_in_force() {
            unchanged.push("listener");
        }
        for (name, changed) in [
            ("shards", config.shards != old.shards),
            ("broker", config.broker != old.broker),
            ("amqp.queue", !config.amqp.has_queues_of(&old.amqp)),
            ("network", config.network != old.network),
            ("quic", config.quic != old.quic),
            ("sys", config.sys != old.sys),
            ("log", config.log != old.log),
        ] {
            if changed {
                unchanged.push(name);
            }
        }
        let policy = Arc::new(Policy::load(&kept)?.announcing(&kept, &self.ports));
        let (certificate, identity) = certificate::load(&config.tls, &config.data_directory())?;
        match (&self.authority, &config.tls.client_ca) {
            (Some(authority), Some(path)) => authority
                .replace_pem(&certificate::read(path)?, &[])
                .map_err(|e| format!("{}: {e}", path.display()))?,
            (None, None) => {}
            _ => unchanged.push("tls.client_ca"),
        }
        match (&self.client_keys, &config.tls.client_keys) {
            (Some(keys), Some(path)) => keys
                .replace_pem(&certificate::read(path)?)
                .map_err(|e| format!("{}: {e}", path.display()))?,
            (None, None) => {}
            _ => unchanged.push("tls.client_keys"),
        }
        if config.tls.raw_public_key != old.tls.raw_public_key {
            unchanged.push("tls.raw_public_key");
        }
        self.certificates
            .replace(vec![identity])
            .map_err(|e| e.to_string())?;
        *self
            .certificate
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = certificate;
        self.tell_all(|| Mail::Policy(Arc::clone(&policy)));
        Ok(unchanged)
    }

    fn tell_all(&self, letter: impl Fn() -> Mail) {
        let mut courier = self.courier.lock().unwrap_or_else(PoisonError::into_inner);
        for shard in 0..courier.shards() {
            courier.post(shard, letter());
        }
        courier.flush();
    }

    /// Takes no new connections, tells every client goodbye, and returns when all shards have ended.
    pub fn shutdown(self) {
        self.gate.shut();
        self.tell_all(|| Mail::Stop);
        for thread in self.threads {
            // A shard that panicked has already said so on standard error.
            let _ = thread.join();
        }
    }
}

fn start_shards(
    bound: Vec<BoundShard<Mail>>,
    config: &Config,
    policy: &Arc<Policy>,
    checker: &Checker,
    tracer: &Tracer,
) -> Result<Vec<JoinHandle<()>>, String> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|e| format!("no randomness: {e}"))?;
    let directory = Directory::new(
        bound.len() as u16,
        broker_limits(config),
        u64::from_ne_bytes(seed),
    );
    let board = Arc::new(Board::new(bound.len()));
    let amqp = Arc::new(Registry::new(&config.amqp));
    let http = Arc::new(HttpRegistry::default());
    let mut threads = Vec::with_capacity(bound.len());
    for shard in bound {
        let number = shard.index();
        let parts = Parts {
            number,
            directory: Arc::clone(&directory),
            store: Box::new(NoStore),
            amqp: Arc::clone(&amqp),
            http: Arc::clone(&http),
            policy: Arc::clone(policy),
            checker: Some(checker.clone()),
            tracer: Some(tracer.clone()),
            outbox: Box::new(Letters::new(shard.courier())),
            board: Arc::clone(&board),
            sys_interval_ms: u64::from(config.sys.interval_s) * 1000,
            high_watermark_bytes: config.network.high_watermark_bytes as usize,
        };
        let thread = std::thread::Builder::new()
            .name(format!("shard-{number}"))
            .spawn(move || {
                let handler = Shard::new(parts, shard.clock().now_ms());
                if let Err(error) = shard.run(handler) {
                    tracing::error!(shard = number, %error, "a shard ended");
                }
            })
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        threads.push(thread);
    }
    Ok(threads)
}

/// TLS for the listeners of each kind, which differ in what they negotiate.
struct Configurations {
    mqtt: Arc<TlsConfig>,
    amqp: Arc<TlsConfig>,
    websocket: Arc<TlsConfig>,
    https: Arc<TlsConfig>,
    quic: Arc<TlsConfig>,
}

fn transport(
    url: &ListenerUrl,
    config: &Config,
    listener: &Listener,
    tls: &Configurations,
) -> ListenerTransport {
    let websocket = || {
        let mut paths = vec![url.path.clone()];
        for path in ["/", "/amqp"] {
            if url.path != path {
                paths.push(path.to_owned());
            }
        }
        Arc::new(WebSocketConfig {
            paths,
            subprotocols: ["mqtt", "mqttv3.1", "amqp"].map(str::to_owned).to_vec(),
            ..WebSocketConfig::default()
        })
    };
    match url.scheme {
        Scheme::Mqtt | Scheme::Amqp | Scheme::Http => ListenerTransport::Tcp,
        Scheme::Mqtts => ListenerTransport::Tls(Arc::clone(&tls.mqtt)),
        Scheme::Amqps => ListenerTransport::Tls(Arc::clone(&tls.amqp)),
        Scheme::Ws => ListenerTransport::WebSocket(websocket()),
        Scheme::Wss => ListenerTransport::SecureWebSocket(Arc::clone(&tls.websocket), websocket()),
        Scheme::Https => ListenerTransport::Tls(Arc::clone(&tls.https)),
        Scheme::MqttQuic | Scheme::AmqpQuic | Scheme::H3 => ListenerTransport::Quic(
            Arc::clone(&tls.quic),
            Arc::new(quic_config(config, listener)),
        ),
    }
}

fn shard_config(config: &Config) -> ShardConfig {
    let network = &config.network;
    ShardConfig {
        connections: network.maximum_connections as usize,
        half_open: network.maximum_half_open as usize,
        half_open_per_address: network.maximum_half_open_per_address as usize,
        handshake_timeout_ms: network.handshake_timeout_ms,
        linger_ms: network.linger_ms,
        high_watermark_bytes: network.high_watermark_bytes as usize,
        low_watermark_bytes: network.high_watermark_bytes as usize / 4,
        ..ShardConfig::default()
    }
}

fn quic_config(config: &Config, listener: &Listener) -> QuicConfig {
    let (network, quic) = (&config.network, &config.quic);
    QuicConfig {
        protocols: PROTOCOLS.iter().map(|name| name.to_vec()).collect(),
        settings: config.quic_settings(listener),
        early_data: listener.early_data.unwrap_or(quic.early_data) != EarlyData::Off,
        max_early_bytes: quic.maximum_early_bytes as usize,
        max_early_bytes_total: quic.maximum_early_bytes_total as usize,
        max_connections: network.maximum_connections as usize,
        max_half_open: network.maximum_half_open as usize,
        max_half_open_per_address: network.maximum_half_open_per_address as usize,
        retry_half_open: quic.retry_half_open as usize,
        linger: Duration::from_millis(network.linger_ms),
        high_watermark_bytes: network.high_watermark_bytes as usize,
        low_watermark_bytes: network.high_watermark_bytes as usize / 4,
        ..QuicConfig::default()
    }
}

fn broker_limits(config: &Config) -> Limits {
    let broker = &config.broker;
    Limits {
        sessions: broker.maximum_sessions as usize,
        subscriptions_per_session: broker.maximum_subscriptions_per_session as usize,
        subscriptions: broker.maximum_subscriptions as usize,
        topic_levels: usize::from(broker.maximum_topic_levels),
        queued_messages: broker.maximum_queued_messages as usize,
        queued_bytes: broker.maximum_queued_bytes as usize,
        queued_qos0_bytes: broker.maximum_queued_qos0_bytes as usize,
        queued_qos0_age_ms: broker.maximum_queued_qos0_age_ms,
        group_queued_messages: broker.maximum_group_queued_messages as usize,
        group_queued_bytes: broker.maximum_group_queued_bytes as usize,
        group_members: broker.maximum_group_members as usize,
        group_window: broker.maximum_group_unacknowledged,
        message_bytes: broker.maximum_total_message_bytes,
        will_bytes: broker.maximum_will_bytes as usize,
        retained_deliveries: broker.maximum_retained_deliveries as usize,
        retained_messages: broker.maximum_retained_messages as usize,
        retained_bytes: broker.maximum_retained_bytes as usize,
        ..Limits::default()
    }
}
