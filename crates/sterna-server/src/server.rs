//! The process: from a configuration to running shards, and what can be asked of them from outside.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sterna_broker::{Directory, Limits};
use sterna_net::quic::{QuicConfig, TicketStore};
use sterna_net::{
    BoundShard, Certificates, ClientAuth, ClientAuthority, ClientKeys, Courier, Gate, Identity,
    ListenerConfig, ListenerTransport, RawKeys, ShardConfig, SharedPages, TlsConfig, TlsVersions,
    WebSocketConfig, contain,
};

use crate::amqp::Registry;
use crate::bans::Bans;
use crate::certificate::{self, Certificate};
use crate::cluster::Cluster;
use crate::config::{Config, EarlyData, Listener, ListenerUrl, Scheme, Tls};
use crate::control::OrderLetter;
use crate::data_directory::DataDirectory;
use crate::http::Registry as HttpRegistry;
use crate::identity::{Checker, Issuer, Tokens, Users};
use crate::key_refresh::{self, refreshed};
use crate::mail::{Letters, Mail};
use crate::memory::{Memory, Watch};
use crate::metrics::{ClusterSource, Sources};
use crate::mqtt::Repetitions;
use crate::policy::{self, Policy};
use crate::seats::Seats;
use crate::shard::{Found, Parts, Shard};
use crate::store::OpenStore;
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
    certificates: Arc<Certificates>,
    authority: Option<Arc<ClientAuthority>>,
    client_keys: Option<Arc<ClientKeys>>,
    pages: SharedPages,
    in_force: Arc<Mutex<InForce>>,
    sources: Arc<Sources>,
    courier: Arc<Mutex<Courier<Mail>>>,
    gate: Gate,
    /// Held by the server alone: the thread that refreshes keys ends with it.
    _keys: Arc<KeysInForce>,
    threads: Vec<JoinHandle<()>>,
    /// Open as long as a shard runs.
    store: Arc<OpenStore>,
    /// Runs as long as this broker.
    _watch: Watch,
    cluster: Cluster,
    failures: Mutex<Option<Receiver<String>>>,
    orders: Mutex<Option<Receiver<OrderLetter>>>,
}

/// Where the thread that refreshes keys puts them.
#[derive(Debug)]
struct KeysInForce {
    in_force: Arc<Mutex<InForce>>,
    courier: Arc<Mutex<Courier<Mail>>>,
}

impl key_refresh::Place for KeysInForce {
    fn issuer(&self) -> Arc<Issuer> {
        Arc::clone(&locked(&self.in_force).policy.issuer)
    }

    fn replace(&self, old: &Arc<Issuer>, new: Issuer) {
        // No reload meanwhile.
        let mut in_force = locked(&self.in_force);
        if Arc::ptr_eq(&in_force.policy.issuer, old) {
            let policy = Arc::new(Policy {
                issuer: Arc::new(new),
                ..(*in_force.policy).clone()
            });
            in_force.policy = Arc::clone(&policy);
            tell_all(&self.courier, || Mail::Policy(Arc::clone(&policy)));
        }
    }
}

/// Takes a lock, whoever has panicked with it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Posts a letter to every shard.
fn tell_all(courier: &Mutex<Courier<Mail>>, letter: impl Fn() -> Mail) {
    let mut courier = locked(courier);
    for shard in 0..courier.shards() {
        courier.post(shard, letter());
    }
    courier.flush();
}

/// What a reload replaces as a whole.
#[derive(Debug)]
struct InForce {
    config: Config,
    policy: Arc<Policy>,
    certificate: Certificate,
    /// Locked as long as a shard runs; `None` where nothing is kept.
    directory: Option<Arc<DataDirectory>>,
}

/// Everything that a configuration names, read and found good, before any of it is in force.
struct Prepared {
    policy: Policy,
    certificate: Certificate,
    certificates: Arc<Certificates>,
    authority: Option<Arc<ClientAuthority>>,
    client_keys: Option<Arc<ClientKeys>>,
    directory: Option<Arc<DataDirectory>>,
}

impl Prepared {
    /// Reads it. `claimed` is the data directory, where this process uses it already.
    fn read(config: &Config, claimed: Option<&Arc<DataDirectory>>) -> Result<Self, String> {
        let policy = Policy::load(config)?;
        let mut directory = claimed.map(Arc::clone);
        if config.store.enabled && directory.is_none() {
            directory = Some(Arc::new(DataDirectory::claim(&config.data_directory()?)?));
        }
        let (certificate, identity) = if let Some(loaded) = certificate::load(&config.tls)? {
            loaded
        } else {
            let directory = match &mut directory {
                Some(directory) => directory,
                none => none.insert(Arc::new(DataDirectory::claim(&config.data_directory()?)?)),
            };
            certificate::development(directory)?
        };
        Ok(Self {
            policy,
            certificate,
            certificates: presented(&config.tls, identity)?,
            authority: authority(&config.tls)?,
            client_keys: client_keys(&config.tls)?,
            directory,
        })
    }

    /// What [`Prepared::read`] would refuse, as far as that can be known without making or locking
    /// anything.
    fn problems(config: &Config) -> Vec<String> {
        let files = &config.authentication;
        let credentials = [
            Users::load(files.password_file.as_deref()).err(),
            Tokens::load(files.token_file.as_deref()).err(),
        ];
        let rest = if credentials.iter().all(Option::is_none) {
            Policy::load(config).err()
        } else {
            None
        };
        let own = || {
            let found = match certificate::load(&config.tls)? {
                None => match DataDirectory::inspect(&config.data_directory()?)? {
                    None => None,
                    Some(directory) => certificate::existing(&directory)?,
                },
                found => found,
            };
            found.map_or(Ok(()), |(_, identity)| {
                presented(&config.tls, identity).map(drop)
            })
        };
        let tls = [
            own().err(),
            authority(&config.tls).err(),
            client_keys(&config.tls).err(),
        ];
        let found = credentials.into_iter().chain([rest]).chain(tls);
        let mut problems: Vec<String> = found.flatten().collect();
        // Traces and certificates are kept in one directory.
        problems.dedup();
        problems
    }
}

/// The certificate as listeners present it.
fn presented(tls: &Tls, identity: Identity) -> Result<Arc<Certificates>, String> {
    let mut identities = vec![identity];
    for pair in &tls.additional {
        let found = certificate::read_pair(pair)?;
        // Whether they go together is said of each, with its files.
        Certificates::new(vec![found]).map_err(|error| {
            let (chain, key) = (pair.certificate.display(), pair.key.display());
            format!("{chain} and {key}: {error}")
        })?;
        identities.push(certificate::read_pair(pair)?);
    }
    Certificates::new(identities).map_err(|error| match (&tls.certificate, &tls.key) {
        (Some(chain), Some(key)) => format!("{} and {}: {error}", chain.display(), key.display()),
        _ => error.to_string(),
    })
}

/// The authority of clients' certificates, where one is configured.
fn authority(tls: &Tls) -> Result<Option<Arc<ClientAuthority>>, String> {
    let mut lists = Vec::new();
    for path in &tls.client_revocation_lists {
        lists.extend(certificate::read_revocation_list(path)?);
    }
    let read = |path: &Path| {
        ClientAuthority::from_pem(&certificate::read(path)?, &lists)
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    tls.client_ca.as_deref().map(read).transpose()
}

/// The bare keys of clients, where they are configured.
fn client_keys(tls: &Tls) -> Result<Option<Arc<ClientKeys>>, String> {
    let read = |path: &Path| {
        ClientKeys::from_pem(&certificate::read(path)?)
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    tls.client_keys.as_deref().map(read).transpose()
}

impl Server {
    /// Binds every listener and starts the shards. When it returns, everything listens.
    ///
    /// # Errors
    /// A sentence for the operator: which setting, file or address, and what is wrong with it.
    pub fn start(config: &Config) -> Result<Self, String> {
        config.check().map_err(|problems| problems.join("\n"))?;
        warn_of(config);
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
        let mut cluster = Cluster::prepare(config)?;
        let pages = SharedPages::new(policy::pages(&config.http));
        let urls = config
            .listeners_in_force()
            .iter()
            .map(|listener| listener.url.parse::<ListenerUrl>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| e.to_string())?;
        let tickets = Arc::new(TicketStore::default());
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
                transport: transport(url, config, &listener, &tls, &pages),
                balancers: (listener.proxy_protocol.as_ref())
                    .map(|proxy| proxy.from.iter().map(|prefix| (*prefix).into()).collect()),
            })
            .collect();

        let count = usize::from(config.shard_count());
        let bound = sterna_net::bind::<Mail>(&shard_config(config), &listeners, count)
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
        let of_cluster = (cluster.status()).map(|(status, gate)| ClusterSource { status, gate });
        let sources = (sources.with_store(store.usage_reader())).with_cluster(of_cluster);
        sources.set_certificate_expiry(certificate::earliest_expiry_s(&certificates));
        sources.set_certificates(certificate::all(&certificate, &certificates));
        let (sources, orders) = sources.with_orders();
        let sources = Arc::new(sources);
        #[cfg(feature = "otlp")]
        sources.send_spans(&config.otlp)?;
        let mut policy = policy.announcing(config, &ports);
        match Issuer::load(&config.authentication.jwt).and_then(refreshed) {
            Ok(issuer) => policy.issuer = Arc::new(issuer),
            // The thread tries again. Until then the keys of files are all there are.
            Err(why) => tracing::warn!(why, "the keys of tokens cannot be read from their URL"),
        }
        let policy = Arc::new(policy);
        let courier = Arc::new(Mutex::new(bound[0].courier()));
        let gate = bound[0].gate();
        let checker = Checker::start(config.passwords.threads)
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        let tracer = Tracer::start().map_err(|e| format!("cannot start a thread: {e}"))?;
        let in_force = Arc::new(Mutex::new(InForce {
            config: config.clone(),
            policy: Arc::clone(&policy),
            certificate,
            directory,
        }));
        let keys = Arc::new(KeysInForce {
            in_force: Arc::clone(&in_force),
            courier: Arc::clone(&courier),
        });
        key_refresh::start(&keys).map_err(|e| format!("cannot start a thread: {e}"))?;
        let (report, failures) = channel();
        let (of_shards, memory) = parts(
            &bound,
            config,
            &policy,
            &checker,
            &tracer,
            (&store, &cluster, &sources),
        )?;
        let watch = watch(&memory, bound[0].courier())?;
        cluster.start(bound[0].courier(), report.clone())?;
        let shared = Shared {
            in_force: Arc::clone(&in_force),
            report,
            store: Arc::clone(&store),
        };
        let threads = start_shards(bound, of_shards, &shared)?;
        Ok(Self {
            listeners,
            ports,
            certificates,
            authority,
            client_keys,
            pages,
            in_force,
            sources,
            courier,
            gate,
            _keys: keys,
            threads,
            store,
            _watch: watch,
            cluster,
            failures: Mutex::new(Some(failures)),
            orders: Mutex::new(Some(orders)),
        })
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

    fn in_force(&self) -> MutexGuard<'_, InForce> {
        locked(&self.in_force)
    }

    /// Puts a new configuration in force as far as that goes without a restart: certificates, client
    /// authorities, users, rules, and what clients are granted. Connections go on.
    ///
    /// It is in force as a whole or not at all, and it is judged with what stays: the listeners that are
    /// open, with the authentication that would be new. Whatever would let clients in that are refused
    /// now needs a word of its own.
    ///
    /// Returns the names of sections that changed and need a restart.
    ///
    /// # Errors
    /// A sentence for the operator; the old configuration then stays in force as a whole.
    pub fn reload(&self, config: &Config) -> Result<Vec<&'static str>, String> {
        // One reload at a time.
        let mut in_force = self.in_force();
        let said = |problems: Vec<String>| problems.join("\n");
        config.check().map_err(said)?;
        let (next, unchanged) = config.after(&in_force.config);
        next.check()
            .map_err(|problems| format!("with what only a restart changes: {}", said(problems)))?;
        let weaker = next.weaker_than(&in_force.config);
        if !weaker.is_empty() {
            return Err(said(weaker));
        }
        let prepared = Prepared::read(&next, in_force.directory.as_ref())?;
        let mut policy = prepared.policy.announcing(&next, &self.ports);
        if let Some(issuer) = issuer_after(&policy.issuer, &in_force.policy.issuer)? {
            policy.issuer = Arc::new(issuer);
        }
        let policy = Arc::new(policy);
        policy.keeps_users_of(&in_force.policy)?;
        warn_of(&next);
        // From here on nothing can fail.
        self.tell_all(|| Mail::Policy(Arc::clone(&policy)));
        self.pages.replace(policy::pages(&next.http));
        if let (Some(authority), Some(new)) = (&self.authority, &prepared.authority) {
            authority.take_over(new);
        }
        if let (Some(keys), Some(new)) = (&self.client_keys, &prepared.client_keys) {
            keys.take_over(new);
        }
        self.certificates.take_over(&prepared.certificates);
        (self.sources)
            .set_certificate_expiry(certificate::earliest_expiry_s(&prepared.certificates));
        let all = certificate::all(&prepared.certificate, &prepared.certificates);
        self.sources.set_certificates(all);
        *in_force = InForce {
            config: next,
            policy,
            certificate: prepared.certificate,
            directory: prepared.directory,
        };
        Ok(unchanged)
    }

    fn tell_all(&self, letter: impl Fn() -> Mail) {
        tell_all(&self.courier, letter);
    }

    /// Where shards that have failed are told of, each in one line; `None` from the second call on. A
    /// broker of which a shard has failed serves nobody of that shard and may serve others wrongly: the
    /// process should end. When all shards have ended as asked the other end hangs up.
    pub fn take_failures(&mut self) -> Option<Receiver<String>> {
        self.failures
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Where orders of operators arrive (`docs/admin.md`); `None` from the second call on. Without anybody
    /// who takes them they are not obeyed, and whoever gave them is told so.
    pub fn take_orders(&mut self) -> Option<Receiver<OrderLetter>> {
        self.orders
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Takes no new connections, sends the acknowledgements that wait for the store, tells every client
    /// goodbye, and has the disk take everything. Returns when that is done, or
    /// [`shutdown_timeout_ms`](crate::config::Network::shutdown_timeout_ms) is over.
    ///
    /// Returns false where not everything was kept: the log says why.
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
        self.cluster.stop();
        // Nobody else has it any more. The data directory is still locked.
        Arc::into_inner(self.store).is_none_or(OpenStore::close)
    }
}

/// The issuer after a reload, with the keys that its URL has published: what it has said last, if the URL
/// stays, else what it says now.
fn issuer_after(new: &Issuer, old: &Issuer) -> Result<Option<Issuer>, String> {
    let Some(url) = new.keys_url() else {
        return Ok(None);
    };
    let fault = |why: String| format!("authentication.jwt.keys_url: {url}: {why}");
    if let Some(text) = new.published_by(old) {
        return new.with_published(&text).map(Some).map_err(fault);
    }
    match new.fetch() {
        Ok(Some(text)) => new.with_published(&text).map(Some).map_err(fault),
        Ok(None) => Ok(None),
        // It was not there before, and the thread goes on asking.
        Err(_) if old.keys_url() == Some(url) => Ok(None),
        Err(why) => Err(fault(why)),
    }
}

/// How often a shard that is to end is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Tells the operator what is better not left as it is.
fn warn_of(config: &Config) {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
}

/// What all shards' threads share.
#[derive(Clone)]
struct Shared {
    /// The data directory stays locked as long as a shard runs.
    in_force: Arc<Mutex<InForce>>,
    report: Sender<String>,
    store: Arc<OpenStore>,
}

/// What each shard is made of.
fn parts(
    bound: &[BoundShard<Mail>],
    config: &Config,
    policy: &Arc<Policy>,
    checker: &Checker,
    tracer: &Tracer,
    (store, cluster, sources): (&OpenStore, &Cluster, &Arc<Sources>),
) -> Result<(Vec<Parts>, Arc<Memory>), String> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|e| format!("no randomness: {e}"))?;
    let directory = Directory::new(
        bound.len() as u16,
        broker_limits(config),
        u64::from_ne_bytes(seed),
    );
    let counters = bound.iter().map(BoundShard::counters).collect();
    let usage = store.usage_reader();
    let memory = Memory::of_process(config, Arc::clone(&directory), counters, usage);
    let memory = Arc::new(memory);
    let board = Arc::new(Board::new(bound.len()));
    let amqp = Arc::new(Registry::new(&config.amqp));
    let http = Arc::new(HttpRegistry::default());
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
fn watch(memory: &Arc<Memory>, mut courier: Courier<Mail>) -> Result<Watch, String> {
    let tell = move || {
        for shard in 0..courier.shards() {
            courier.post(shard, Mail::Memory);
        }
        courier.flush();
    };
    Watch::start(memory, tell).map_err(|e| format!("cannot start a thread: {e}"))
}

/// Starts a thread for each shard. They restore what the store has, all at once, and serve when all of them
/// have: a session that is still to be restored must not be made anew.
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
                let _ = report.send(format!("shard {number} has failed: {failure}"));
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

/// Restores a shard, says what was found, and serves when the gate is opened; ends when nobody will open it.
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
            Arc::new(quic_config(config, listener)),
        ),
    }
}

fn shard_config(config: &Config) -> ShardConfig {
    let network = &config.network;
    ShardConfig {
        connections: network.maximum_connections as usize,
        connections_per_address: network.maximum_connections_per_address as usize,
        half_open: network.maximum_half_open as usize,
        half_open_per_address: network.maximum_half_open_per_address as usize,
        handshake_timeout_ms: network.handshake_timeout_ms,
        proxy_header_timeout_ms: network.proxy_header_timeout_ms,
        proxy_header_bytes: network.maximum_proxy_header_bytes.into(),
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
        cursor_interval_ms: config.store.cursor_interval_ms,
        read_ahead_messages: config.store.read_ahead_messages as usize,
        read_ahead_bytes: config.store.read_ahead_bytes as usize,
        ..Limits::default()
    }
}
