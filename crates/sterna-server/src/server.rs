//! The process: from a configuration to running shards, and the questions that they answer from
//! outside.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sterna_broker::{Directory, Limits};
use sterna_net::quic::{AddressTokens, QuicConfig, ServerId, TicketStore};
use sterna_net::{
    BoundShard, ClientAuth, Courier, Gate, ListenerConfig, ListenerTransport, RawKeys, ShardConfig,
    SharedPages, TlsConfig, TlsVersions, WebSocketConfig, contain,
};

use crate::amqp::Registry;
use crate::bans::Bans;
use crate::certificate::{self, Certificate};
use crate::cluster::Cluster;
use crate::config::{Config, EarlyData, Listener, ListenerUrl, Scheme};
use crate::control::{Failure, Needed, Obeyed, OrderLetter};
use crate::directory_watch;
use crate::file_watch;
use crate::http::Registry as HttpRegistry;
use crate::identity::Checker;
use crate::key_refresh;
use crate::mail::{Letters, Mail};
use crate::memory::{self, Memory, Watch};
use crate::metrics::Sources;
use crate::mqtt::Repetitions;
use crate::node_clock::NodeClock;
use crate::open_files;
use crate::policy::{self, Policy};
use crate::reload::{InForce, Live, Prepared, locked, tell_all, warn_of, warnings};
use crate::seats::Seats;
use crate::shard::{Found, Parts, Shard};
use crate::store::OpenStore;
use crate::sys::Board;
use crate::tracer::Tracer;
use crate::unread_store;

/// The application protocols of QUIC listeners (ALPN).
const PROTOCOLS: [&[u8]; 3] = [b"mqtt", b"amqp", b"h3"];

/// A running broker.
///
/// Dropping it without [`Server::shutdown`] leaves it running.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<String>,
    /// Held by the server alone: the threads that refresh keys and files end with it.
    live: Arc<Live>,
    gate: Gate,
    threads: Vec<JoinHandle<()>>,
    /// Open as long as a shard runs.
    store: Arc<OpenStore>,
    /// Runs as long as this broker.
    _watch: Watch,
    cluster: Cluster,
    failures: Mutex<Option<Receiver<Failure>>>,
    orders: Mutex<Option<Receiver<OrderLetter>>>,
}

impl Server {
    /// Binds every listener and starts the shards. When it returns, everything listens.
    ///
    /// # Errors
    /// A sentence for the operator that names the setting, file or address, and its fault.
    pub fn start(config: &Config) -> Result<Self, String> {
        config.check().map_err(|problems| problems.join("\n"))?;
        warn_of(config);
        unread_store::look(config)?;
        let threads = u64::from(config.shard_count()) + u64::from(config.passwords.threads);
        let ceiling_bytes = memory::ceiling_bytes(config.broker.memory_ceiling, threads)?;
        // Before they are read: none that changes meanwhile is overlooked.
        let files = file_watch::marks(&config.tls);
        let Prepared {
            policy,
            certificate,
            certificates,
            authority,
            client_keys,
            directory,
        } = Prepared::read(config, None)?;
        // Before it listens: a store that cannot be opened is no reason to let clients wait.
        let store = Arc::new(OpenStore::open(config, directory.as_deref())?);
        let clock = store.clock(config)?;
        let mut cluster = Cluster::prepare(config)?;
        let pages = SharedPages::new(policy::pages(&config.http));
        let urls = config
            .listeners_in_force()
            .iter()
            .map(|listener| listener.url.parse::<ListenerUrl>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| e.to_string())?;
        let tickets = Arc::new(TicketStore::new(config.quic.maximum_tickets as usize));
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
            quic_sessions: Arc::clone(&tickets) as _,
            maximum_record_bytes: config.tls.maximum_record_bytes,
            ..TlsConfig::new(Arc::clone(&certificates), &[])
        });
        // A WebSocket client offers HTTP/1.1 in its TLS handshake, not the protocol that it
        // carries.
        let over_tls = |protocols: &[&[u8]]| {
            Arc::new(TlsConfig {
                alpn: protocols.iter().map(|name| name.to_vec()).collect(),
                ..(*tls).clone()
            })
        };
        let other_names = config.tls.mqtt_alpn.iter().map(String::as_bytes);
        let mqtt: Vec<&[u8]> = std::iter::once(&b"mqtt"[..]).chain(other_names).collect();
        let tls = Configurations {
            mqtt: over_tls(&mqtt),
            amqp: over_tls(&[b"amqp"]),
            websocket: over_tls(&[b"http/1.1"]),
            https: over_tls(&[b"h2", b"http/1.1"]),
            quic: Arc::clone(&tls),
        };
        let identity = QuicIdentity {
            server_id: config.quic.named_server()?,
            address_tokens: config.quic.address_tokens()?,
            // Clients of a broker that was killed learn from its successor that their connections are gone.
            reset_secret: (directory.as_ref())
                .map(|directory| directory.secret(RESET_KEY))
                .transpose()?,
        };
        let listeners: Vec<ListenerConfig> = urls
            .iter()
            .zip(config.listeners_in_force())
            .map(|(url, listener)| ListenerConfig {
                address: url.address(),
                transport: transport(url, config, &listener, (&tls, &identity), &pages),
                balancers: (listener.proxy_protocol.as_ref())
                    .map(|proxy| proxy.from.iter().map(|prefix| (*prefix).into()).collect()),
                connections: (listener.maximum_connections)
                    .map_or(usize::MAX, |most| most as usize),
            })
            .collect();

        let count = usize::from(config.shard_count());
        let connections = open_files::connections_per_shard(&config.network, count);
        let shard_config = ShardConfig {
            clock: clock.as_ref().map(NodeClock::now),
            ..shard_config(config, connections)
        };
        let bound = sterna_net::bind::<Mail>(&shard_config, &listeners, count)
            .map_err(|e| format!("cannot listen: {e}"))?;
        let ports: Vec<u16> = (bound[0].addresses().iter())
            .map(SocketAddr::port)
            .collect();
        let listeners: Vec<String> = urls
            .iter()
            .zip(&ports)
            .map(|(url, port)| url.with_port(*port))
            .collect();
        let started_ms = bound[0].clock().now_ms();
        let sources = Sources::new(count, started_ms).with_transports(
            bound.iter().map(BoundShard::counters).collect(),
            listeners.clone(),
            tickets,
            u64::from(config.network.maximum_connections) * count as u64,
        );
        let sources = (sources.with_store(store.usage_reader())).with_cluster(cluster.source());
        let sources = sources.with_clock(clock);
        sources.set_certificates(certificate::all(&config.tls, &certificate, &certificates)?);
        let (sources, orders) = sources.with_orders();
        let sources = Arc::new(sources);
        sources.send_spans(&config.otlp)?;
        let mut policy = policy.announcing(config, &ports);
        match policy.issuer.ask() {
            Ok(Some(issuer)) => policy.issuer = Arc::new(issuer),
            Ok(None) => {}
            // The thread tries again. Until then the keys of files are all there are.
            Err(why) => tracing::warn!(why, "the keys of tokens cannot be read from their URL"),
        }
        let policy = Arc::new(policy);
        let courier = Mutex::new(bound[0].courier());
        let gate = bound[0].gate();
        let checker = Checker::start(config.passwords.threads)
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        let tracer = Tracer::start().map_err(|e| format!("cannot start a thread: {e}"))?;
        let in_force = Arc::new(Mutex::new(InForce {
            config: config.clone(),
            policy: Arc::clone(&policy),
            certificate,
            directory: directory.clone(),
        }));
        let (report, failures) = channel();
        if let Some(directory) = directory.as_ref().filter(|_| config.store.enabled) {
            directory_watch::start(directory, report.clone())
                .map_err(|e| format!("cannot start a thread: {e}"))?;
        }
        let (of_shards, memory) = parts(
            &bound,
            config,
            &policy,
            &checker,
            &tracer,
            (&store, &cluster, &sources),
            ceiling_bytes,
        )?;
        let teller = bound[0].courier();
        cluster.start(bound[0].courier(), bound[0].clock(), report.clone())?;
        let report = Arc::new(report);
        let of_threads = Arc::downgrade(&report);
        store.report_to(Weak::clone(&of_threads));
        let shared = Shared {
            in_force: Arc::clone(&in_force),
            report,
            store: Arc::clone(&store),
        };
        let threads = start_shards(bound, of_shards, &shared)?;
        let watch = watch(&memory, teller, Needed::new("memory", &of_threads))?;
        let live = Arc::new(Live {
            ports,
            certificates,
            authority,
            client_keys,
            pages,
            in_force,
            sources,
            courier,
        });
        let no_thread = |error| format!("cannot start a thread: {error}");
        let needed = |name| Needed::new(name, &of_threads);
        key_refresh::start(&live, needed("token-keys")).map_err(no_thread)?;
        file_watch::start(&live, files, needed("files")).map_err(no_thread)?;
        Ok(Self {
            listeners,
            live,
            gate,
            threads,
            store,
            _watch: watch,
            cluster,
            failures: Mutex::new(Some(failures)),
            orders: Mutex::new(Some(orders)),
        })
    }

    /// Settings that are better not left as they are, and certificates that many clients refuse. Each is a sentence that names
    /// the setting or the file.
    #[must_use]
    pub fn warnings(config: &Config) -> Vec<String> {
        warnings(config)
    }

    /// Checks a configuration as [`Server::start`] does, with the files that it names: certificates, keys,
    /// authorities, passwords and tokens. No listener is opened, and no file or directory is made or
    /// locked, so a broker may run with them.
    ///
    /// # Errors
    /// Every problem found, each a sentence that names the setting, or the file and the line where it
    /// has lines.
    pub fn check(config: &Config) -> Result<(), Vec<String>> {
        config.check()?;
        let problems = Prepared::problems(config);
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// URLs of the listeners, with the ports that were bound, in the order of the configuration.
    #[must_use]
    pub fn listeners(&self) -> &[String] {
        &self.listeners
    }

    /// The certificate in force.
    #[must_use]
    pub fn certificate(&self) -> Certificate {
        self.in_force().certificate.clone()
    }

    /// The configuration in force, with the changes of reloads.
    #[must_use]
    pub fn configuration(&self) -> Config {
        self.in_force().config.clone()
    }

    fn in_force(&self) -> MutexGuard<'_, InForce> {
        locked(&self.live.in_force)
    }

    /// Puts a new configuration in force as far as possible without a restart. That includes
    /// certificates, client authorities, users, rules and limits of clients. Connections continue.
    ///
    /// It is in force as a whole or not at all. It is checked together with the open listeners,
    /// which stay, and the new authentication. A change that would admit clients that are refused
    /// now needs an explicit setting.
    ///
    /// Returns the names of settings that changed and need a restart.
    ///
    /// # Errors
    /// A sentence for the operator; the old configuration then stays in force as a whole.
    pub fn reload(&self, config: &Config) -> Result<Vec<String>, String> {
        (self.live.reload(config, false)).map(|reloaded| reloaded.unchanged)
    }

    /// The same, with all its effects. A dry run puts nothing in force, and says what would be.
    ///
    /// # Errors
    /// As [`reload`](Self::reload).
    pub fn reload_with(&self, config: &Config, is_dry_run: bool) -> Obeyed {
        self.live.reload(config, is_dry_run)
    }

    fn tell_all(&self, letter: impl Fn() -> Mail) {
        tell_all(&self.live.courier, letter);
    }

    /// Receives why the process should end though nobody has asked for it; `None` from the second
    /// call on. When all shards have ended in order, the other end hangs up.
    pub fn take_failures(&mut self) -> Option<Receiver<Failure>> {
        self.failures
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Receives the orders of operators (`docs/admin.md`); `None` from the second call on. If
    /// nobody takes them, they are refused.
    pub fn take_orders(&mut self) -> Option<Receiver<OrderLetter>> {
        self.orders
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Says to operators and other nodes that it will stop. Clients are still taken. Returns for how long that
    /// is to be so before [`Server::shutdown`]:
    /// [`drain_notice_ms`](crate::config::Network::drain_notice_ms).
    #[must_use]
    pub fn drain(&self) -> Duration {
        self.cluster.drain();
        self.tell_all(|| Mail::Drain);
        Duration::from_millis(self.in_force().config.network.drain_notice_ms)
    }

    /// Takes no new connections, and sends the acknowledgements that wait for the store. Tells
    /// every client goodbye, and syncs the store. Returns when that is done, or
    /// [`shutdown_timeout_ms`](crate::config::Network::shutdown_timeout_ms) is over.
    ///
    /// Returns false if not everything was stored; the log says why.
    pub fn shutdown(self) -> bool {
        let within_ms = self.in_force().config.network.shutdown_timeout_ms;
        let until = Instant::now() + Duration::from_millis(within_ms);
        self.gate.shut();
        self.tell_all(|| Mail::Stop);
        for thread in self.threads {
            while !thread.is_finished() {
                if Instant::now() >= until {
                    tracing::error!(within_ms, "clients have not gone in time");
                    return false;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            // Failures have been told of.
            let _ = thread.join();
        }
        self.cluster
            .stop(until.saturating_duration_since(Instant::now()));
        // Nobody else has it any more. The data directory is still locked.
        Arc::into_inner(self.store).is_none_or(OpenStore::close)
    }
}

/// How often a shard that is to end is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The state that all shards' threads share.
#[derive(Clone)]
struct Shared {
    /// The data directory stays locked as long as a shard runs.
    in_force: Arc<Mutex<InForce>>,
    report: Arc<Sender<Failure>>,
    store: Arc<OpenStore>,
}

/// The parts of each shard.
fn parts(
    bound: &[BoundShard<Mail>],
    config: &Config,
    policy: &Arc<Policy>,
    checker: &Checker,
    tracer: &Tracer,
    (store, cluster, sources): (&OpenStore, &Cluster, &Arc<Sources>),
    ceiling_bytes: Option<u64>,
) -> Result<(Vec<Parts>, Arc<Memory>), String> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|e| format!("no randomness: {e}"))?;
    let directory = Directory::new(
        bound.len() as u16,
        broker_limits(config, ceiling_bytes),
        u64::from_ne_bytes(seed),
    );
    if let Some(clock) = sources.clock() {
        directory.set_eras(clock.eras());
    }
    let counters = bound.iter().map(BoundShard::counters).collect();
    let usage = store.usage_reader();
    let memory = Memory::of_process(
        config,
        ceiling_bytes,
        Arc::clone(&directory),
        counters,
        usage,
    );
    let memory = Arc::new(memory);
    let board = Arc::new(Board::new(bound.len()));
    let amqp = Arc::new(Registry::new(&config.amqp));
    let http = Arc::new(HttpRegistry::of_node(cluster.asker()));
    let repetitions = Arc::new(Repetitions::default());
    let seats = Arc::new(Seats::default());
    let bans = Arc::new(Bans::default());
    let of_shard = |shard: &BoundShard<Mail>| Parts {
        number: shard.index(),
        directory: Arc::clone(&directory),
        store: (cluster.store(shard.index(), shard.mailbox()))
            .unwrap_or_else(|| store.handle(shard.mailbox())),
        cluster: cluster.member(shard.index()),
        amqp: Arc::clone(&amqp),
        http: Arc::clone(&http),
        repetitions: Arc::clone(&repetitions),
        policy: Arc::clone(policy),
        checker: Some(checker.clone()),
        bans: Arc::clone(&bans),
        seats: Arc::clone(&seats),
        tracer: Some(tracer.clone()),
        outbox: Box::new(Letters::new(shard.courier())),
        board: Arc::clone(&board),
        sources: Arc::clone(sources),
        memory: Some(Arc::clone(&memory)),
        sys_interval_ms: u64::from(config.sys.interval_s) * 1000,
        high_watermark_bytes: config.network.high_watermark_bytes as usize,
    };
    let parts = bound.iter().map(of_shard).collect();
    Ok((parts, memory))
}

/// Starts the watch over the memory, which tells all shards of another stage.
fn watch(
    memory: &Arc<Memory>,
    mut courier: Courier<Mail>,
    needed: Needed,
) -> Result<Watch, String> {
    let tell = move || {
        // It goes with the thread.
        let _ = &needed;
        for shard in 0..courier.shards() {
            courier.post(shard, Mail::Memory);
        }
        courier.flush();
    };
    Watch::start(memory, tell).map_err(|e| format!("cannot start a thread: {e}"))
}

/// Starts a thread for each shard. They restore the store's contents, all at once. They serve when all of them have: a
/// session that is still to be restored must not be made anew.
fn start_shards(
    bound: Vec<BoundShard<Mail>>,
    parts: Vec<Parts>,
    shared: &Shared,
) -> Result<Vec<JoinHandle<()>>, String> {
    let (tell, restored) = channel();
    let (mut threads, mut gates) = (Vec::new(), Vec::new());
    for (shard, parts) in bound.into_iter().zip(parts) {
        let number = parts.number;
        let (open, gate) = channel::<()>();
        gates.push(open);
        let (shared, tell) = (shared.clone(), tell.clone());
        let thread = std::thread::Builder::new()
            .name(format!("shard-{number}"))
            .spawn(move || {
                let Shared {
                    in_force: _in_force,
                    report,
                    store: _store,
                } = shared;
                let failure = match contain(|| run_shard(shard, parts, tell, &gate)) {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(panic) => format!("a panic, which is a bug: {panic}"),
                };
                // Nobody may be listening.
                let failure = format!("shard {number} has failed: {failure}");
                let _ = report.send(Failure::Bug(failure));
            })
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        threads.push(thread);
    }
    drop(tell);
    let found: Vec<Found> = restored.iter().collect();
    if let Some(failure) = shared.store.failure() {
        return Err(failure);
    }
    if found.len() < threads.len() {
        return Err("a shard has failed to restore its sessions, which is a bug".to_owned());
    }
    let sessions = found.iter().map(|found| found.sessions).sum();
    let unsound_records = found.iter().map(|found| found.unsound_records).max();
    (shared.store).log(
        sessions,
        unsound_records.unwrap_or(0),
        found[0].next_position,
    );
    for gate in gates {
        // One that has failed meanwhile has told of it.
        let _ = gate.send(());
    }
    Ok(threads)
}

/// Restores a shard, reports the findings, and serves when the gate is opened; ends when nobody will open it.
fn run_shard(
    bound: BoundShard<Mail>,
    parts: Parts,
    tell: Sender<Found>,
    gate: &Receiver<()>,
) -> std::io::Result<()> {
    let shard = Shard::new(parts, bound.clock().now_ms());
    // Nobody listens where the start has failed.
    let _ = tell.send(shard.found());
    drop(tell);
    if gate.recv().is_ok() {
        bound.run(shard)?;
    }
    Ok(())
}

/// TLS for the listeners of each kind, which differ in the protocols that they negotiate.
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
    (tls, identity): (&Configurations, &QuicIdentity),
    pages: &SharedPages,
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
            pages: pages.clone(),
            on_loopback: listener.is_for_this_host(url),
            ..WebSocketConfig::default()
        })
    };
    match url.scheme {
        Scheme::Mqtt | Scheme::Amqp | Scheme::Http | Scheme::Admin => ListenerTransport::Tcp,
        Scheme::Mqtts => ListenerTransport::Tls(Arc::clone(&tls.mqtt)),
        Scheme::Amqps => ListenerTransport::Tls(Arc::clone(&tls.amqp)),
        Scheme::Ws => ListenerTransport::WebSocket(websocket()),
        Scheme::Wss => ListenerTransport::SecureWebSocket(Arc::clone(&tls.websocket), websocket()),
        Scheme::Https | Scheme::Admins => ListenerTransport::Tls(Arc::clone(&tls.https)),
        Scheme::MqttQuic | Scheme::AmqpQuic | Scheme::H3 => ListenerTransport::Quic(
            Arc::clone(&tls.quic),
            Arc::new(quic_config(config, listener, identity)),
        ),
    }
}

fn shard_config(config: &Config, connections: usize) -> ShardConfig {
    let network = &config.network;
    let defaults = ShardConfig::default();
    // No other pause is as long as that of a publisher whose reader holds it.
    let hold_ms = config.broker.publisher_hold_ms;
    ShardConfig {
        connections,
        connections_per_address: network.maximum_connections_per_address as usize,
        half_open: network.maximum_half_open as usize,
        half_open_per_address: network.maximum_half_open_per_address as usize,
        handshake_timeout_ms: network.handshake_timeout_ms,
        proxy_header_timeout_ms: network.proxy_header_timeout_ms,
        proxy_header_bytes: network.maximum_proxy_header_bytes.into(),
        linger_ms: network.linger_ms,
        reading_per_turn_ms: network.reading_per_turn_ms.into(),
        writing_per_turn_ms: network.writing_per_turn_ms.into(),
        accepts_per_turn: network.accepts_per_turn as usize,
        handshakes_per_turn: network.handshakes_per_turn as usize,
        high_watermark_bytes: network.high_watermark_bytes as usize,
        low_watermark_bytes: network.high_watermark_bytes as usize / 4,
        paused_timeout_ms: defaults.paused_timeout_ms.saturating_add(hold_ms),
        ..defaults
    }
}

/// File of the secret of stateless resets in the data directory.
const RESET_KEY: &str = "quic-reset-key";

/// The identity of this node on all QUIC listeners.
struct QuicIdentity {
    server_id: Option<ServerId>,
    address_tokens: AddressTokens,
    /// Each listener derives its key. `None` for one of this process, where nothing is kept.
    reset_secret: Option<[u8; 32]>,
}

fn quic_config(config: &Config, listener: &Listener, identity: &QuicIdentity) -> QuicConfig {
    let (network, quic) = (&config.network, &config.quic);
    QuicConfig {
        protocols: (PROTOCOLS.iter().map(|name| name.to_vec()))
            .chain(
                config
                    .tls
                    .mqtt_alpn
                    .iter()
                    .map(|name| name.as_bytes().to_vec()),
            )
            .collect(),
        settings: config.quic_settings(listener),
        early_data: listener.early_data.unwrap_or(quic.early_data) != EarlyData::Off,
        max_early_bytes: quic.maximum_early_bytes as usize,
        max_early_bytes_total: quic.maximum_early_bytes_total as usize,
        max_connections: network.maximum_connections as usize,
        max_half_open: network.maximum_half_open as usize,
        max_half_open_per_address: network.maximum_half_open_per_address as usize,
        retry_half_open: quic.retry_half_open as usize,
        challenge_at_once: quic.challenge_at_once,
        server_id: identity.server_id,
        address_tokens: identity.address_tokens.clone(),
        reset_secret: identity.reset_secret,
        linger: Duration::from_millis(network.linger_ms),
        handshakes_per_turn: network.handshakes_per_turn as usize,
        sent_per_turn_bytes: network.quic_sent_per_turn_bytes as usize,
        high_watermark_bytes: network.high_watermark_bytes as usize,
        low_watermark_bytes: network.high_watermark_bytes as usize / 4,
        ..QuicConfig::default()
    }
}

fn broker_limits(config: &Config, ceiling_bytes: Option<u64>) -> Limits {
    let (broker, cluster) = (&config.broker, &config.cluster);
    Limits {
        sessions: broker.maximum_sessions as usize,
        subscriptions_per_session: broker.maximum_subscriptions_per_session as usize,
        filter_bytes_per_session: broker.maximum_filter_bytes_per_session as usize,
        subscriptions: memory::subscriptions(broker, ceiling_bytes) as usize,
        topic_levels: usize::from(broker.maximum_topic_levels),
        queued_messages: broker.maximum_queued_messages as usize,
        reader_stall_ms: broker.reader_stall_ms,
        reader_share_percent: usize::from(broker.reader_share_percent),
        queued_bytes: broker.maximum_queued_bytes as usize,
        away_bytes: broker.maximum_away_bytes,
        away_messages: broker.maximum_away_messages,
        queued_qos0_bytes: broker.maximum_queued_qos0_bytes as usize,
        queued_qos0_age_ms: broker.maximum_queued_qos0_age_ms,
        group_queued_messages: broker.maximum_group_queued_messages as usize,
        group_queued_bytes: broker.maximum_group_queued_bytes as usize,
        group_members: broker.maximum_group_members as usize,
        group_window: broker.maximum_group_unacknowledged,
        counts_lost: config.amqp.queue_counts_lost_connections,
        steps_per_turn: broker.maximum_steps_per_turn.into(),
        copies_per_turn: broker.maximum_copies_per_turn.into(),
        redelivery_pause_ms: broker.redelivery_pause_ms,
        redelivery_pause_most_ms: broker.maximum_redelivery_pause_ms,
        branch_messages: cluster.maximum_branch_messages as usize,
        group_seek_interval_ms: cluster.group_seek_interval_ms,
        group_linger_ms: cluster.group_linger_ms,
        message_bytes: broker.maximum_total_message_bytes,
        will_bytes: memory::will_bytes(broker, ceiling_bytes) as usize,
        principals: broker.maximum_principals as usize,
        will_grace_ms: u64::from(config.mqtt.will_grace_ms),
        retained_deliveries: broker.maximum_retained_deliveries as usize,
        retained_messages: broker.maximum_retained_messages as usize,
        retained_bytes: memory::retained_bytes(broker, ceiling_bytes) as usize,
        retained_heavy_percent: usize::from(broker.retained_heavy_percent),
        cursor_interval_ms: config.store.cursor_interval_ms,
        survey_interval_ms: config.store.survey_interval_ms,
        read_ahead_messages: config.store.read_ahead_messages as usize,
        read_ahead_bytes: config.store.read_ahead_bytes as usize,
        replayed_bytes: memory::replayed_bytes(broker, ceiling_bytes),
        ..Limits::default()
    }
}
