//! The policy that every shard asks before it lets a client do something; replaced as a whole on
//! reload.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use sterna_broker::Keeping;
use sterna_net::{ConnectionInfo, Pages};

use crate::authorization::{MessageKind, Rules, Standings, Subject};
use crate::config::{
    Admin, Amqp, Bans, ClientIds, Config, Durability, EarlyData, Guessing, Http, Listener,
    ListenerUrl, Mqtt, OnLostRight, Passwords, Protocol, QUEUE_LEVEL, Scheme,
};
use crate::identity::{Identity, Issuer, Tokens, Trust, Users, Webhook};
use crate::repeats::RepeatLimits;

/// The part of the configuration that can change while connections live.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Limits and settings of MQTT clients. A connected client keeps its own.
    pub mqtt: Mqtt,
    /// Limits and settings of AMQP clients. A connected client keeps its own.
    pub amqp: Amqp,
    /// Limits and settings of HTTP clients. An open subscription keeps its own.
    pub http: Http,
    /// Metrics and health.
    pub admin: Admin,
    /// Users and their records.
    pub users: Arc<Users>,
    /// Bearer tokens of HTTP.
    pub tokens: Arc<Tokens>,
    /// The issuer of JSON web tokens.
    pub issuer: Arc<Issuer>,
    /// The service that decides about clients and their actions.
    pub webhook: Arc<Webhook>,
    /// Client certificates that the files vouch for.
    pub trust: Arc<Trust>,
    /// Attributes of connected clients beside their names. They outlive policies.
    pub standings: Arc<Standings>,
    /// Whether a file says which tokens there are.
    pub has_token_file: bool,
    /// Whether clients may show certificates.
    pub takes_certificates: bool,
    /// Checks of passwords.
    pub passwords: Passwords,
    /// Delays after wrong credentials.
    pub guessing: Guessing,
    /// Bans by behaviour, and how many bans there may be.
    pub bans: Bans,
    /// Client identifiers that users may have.
    pub client_ids: Vec<ClientIds>,
    /// Rights of clients.
    pub rules: Rules,
    /// Per listener, in the order of the configuration.
    pub listeners: Vec<ListenerPolicy>,
    /// The URLs of the listeners, in the same order.
    pub listener_urls: Vec<String>,
    /// Clients whose connections are traced, where, and up to how many bytes.
    pub trace: TracePolicy,
    /// Whether the common name of a verified client certificate is the user name.
    pub certificate_as_username: bool,
    /// The broker's names, and the web pages that may use it.
    pub pages: Arc<Pages>,
    /// Largest early data of a client, in bytes, that a copy may bring again. It is 0 if none is
    /// taken, or everything is done at once.
    pub early_bytes: u32,
    /// Time from a connection's first moment to a client's first word, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Time that acknowledgements may wait for the store when the broker stops, in milliseconds.
    pub drain_ms: u64,
    /// Whether the wills of connected clients are due when the broker stops: no later start finds them.
    pub wills_end_with_broker: bool,
    /// Effect on a connected client when the rules take the right of one of its subscriptions.
    pub on_lost_right: OnLostRight,
    /// Acknowledgements of one connection that may wait for the store.
    pub waiting_acknowledgements: usize,
    /// Time for which a publisher waits in all for readers whose queues are half full, in milliseconds.
    pub publisher_hold_ms: u64,
    /// Time after its last message in which a held publisher may send one more, in milliseconds; 0 for none.
    pub held_publisher_interval_ms: u64,
    /// How often lines of the log may be alike that peers cause.
    pub repeats: RepeatLimits,
    /// Durability for which deliveries at QoS 2 wait.
    pub exactly_once: Keeping,
    /// Least durability of queues with a setting of their own that take the topic of their name, by
    /// name.
    pub queue_durability: HashMap<Box<str>, Durability>,
    /// Least durability of queues that take other topics, by their filters.
    pub filter_durability: Vec<(Box<str>, Durability)>,
}

/// Clients whose connections are traced.
#[derive(Clone, Debug, Default)]
pub struct TracePolicy {
    /// Client identifiers.
    pub clients: HashSet<String>,
    /// Folder of the traces.
    pub directory: PathBuf,
    /// Bytes after which a trace ends.
    pub max_bytes: u64,
}

/// Settings of one listener's clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerPolicy {
    /// Whether clients without credentials enter.
    pub anonymous: bool,
    /// Effect of early data.
    pub early_data: EarlyData,
    /// Keep alive told to every client, in seconds.
    pub server_keep_alive_s: Option<u16>,
    /// Protocol of connections that negotiate none.
    pub protocol: Protocol,
    /// Whether only this host can reach the listener.
    pub loopback: bool,
    /// Whether unreliable datagrams are taken.
    pub datagrams: bool,
    /// The UDP port at which clients find HTTP/3, for those that may be told (RFC 7838).
    pub http3_port: Option<u16>,
    /// Durability for which acknowledgements wait.
    pub durability: Durability,
}

impl Policy {
    /// Settings of a listener, by its index in the configuration.
    #[must_use]
    pub fn listener(&self, index: u16) -> ListenerPolicy {
        let known = self.listeners.get(usize::from(index));
        known.copied().unwrap_or_default()
    }

    /// The URL of a listener, by its index in the configuration; empty for one that is not known.
    pub(crate) fn listener_url(&self, index: u16) -> &str {
        let url = self.listener_urls.get(usize::from(index));
        url.map_or("", String::as_str)
    }

    /// The protocol of a connection: by its own word, or by its listener. The versions of HTTP over TCP serve clients
    /// and operators, so they say nothing.
    pub(crate) fn spoken(&self, info: &ConnectionInfo) -> Protocol {
        self.protocol_of(info.listener, &info.protocol)
    }

    /// The same of a listener and a negotiated application protocol.
    pub(crate) fn protocol_of(&self, listener: u16, negotiated: &[u8]) -> Protocol {
        match negotiated {
            b"amqp" => Protocol::Amqp,
            b"h3" => Protocol::Http,
            b"" | b"http/1.1" | b"h2" => self.listener(listener).protocol,
            _ => Protocol::Mqtt,
        }
    }

    /// Durability for which the acknowledgement of a message waits. It is the strictest of three:
    /// its publisher's listener, the rule that allows it, and the queues that take its topic.
    #[must_use]
    pub fn durability(
        &self,
        listener: u16,
        publisher: Subject<'_>,
        topic: &str,
        kind: MessageKind,
    ) -> Durability {
        let mut strictest = self.listener(listener).durability;
        let of_rule = self.rules.durability(publisher, topic, kind);
        strictest = strictest.max(of_rule.unwrap_or(Durability::Memory));
        if let Some(name) = topic.strip_prefix(QUEUE_LEVEL) {
            let of_queue = self.queue_durability.get(name).copied();
            strictest = strictest.max(of_queue.unwrap_or(Durability::Memory));
        }
        let filters = self.filter_durability.iter();
        let matching = filters.filter(|(filter, _)| sterna_topic::matches(filter, topic));
        matching.fold(strictest, |strictest, &(_, of_queue)| {
            strictest.max(of_queue)
        })
    }

    /// Announces HTTP/3 on HTTPS: that of a listener for HTTP/3, or else of any other that speaks QUIC. It
    /// has to admit the same clients, since a client that follows must not find other rules there. `ports`
    /// are those that were bound, in the order of the configuration.
    #[must_use]
    pub fn announcing(mut self, config: &Config, ports: &[u16]) -> Self {
        let schemes: Vec<Option<Scheme>> = (config.listeners_in_force().iter())
            .map(|listener| Some(listener.url.parse::<ListenerUrl>().ok()?.scheme))
            .collect();
        let admits: Vec<bool> = (self.listeners.iter())
            .map(|listener| listener.anonymous)
            .collect();
        for (listener, scheme) in self.listeners.iter_mut().zip(&schemes) {
            if *scheme != Some(Scheme::Https) {
                continue;
            }
            let find = |fits: fn(Scheme) -> bool| {
                (schemes.iter().zip(&admits)).position(|(scheme, anonymous)| {
                    scheme.is_some_and(fits) && *anonymous == listener.anonymous
                })
            };
            let at = find(|scheme| scheme == Scheme::H3).or_else(|| find(Scheme::is_quic));
            listener.http3_port = at.and_then(|at| ports.get(at).copied());
        }
        self
    }

    /// Whether clients can show who they are at all.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.users.are_configured()
            || self.has_token_file
            || self.issuer.is_configured()
            || self.webhook.authenticates()
            || (self.certificate_as_username && self.takes_certificates)
    }

    /// Reads a configuration and its files, the password file and the token file included.
    ///
    /// # Errors
    /// A sentence that names the file and its fault.
    pub fn load(config: &Config) -> Result<Self, String> {
        let default = config.admits_anonymous_usually();
        let users = Users::load(config.authentication.password_file.as_deref())?;
        users.warn_of_weak(config.passwords.iterations);
        let webhook = Arc::new(Webhook::load(&config.webhook)?);
        let in_force = config.listeners_in_force();
        let rules = Rules::new(&config.authorization, &in_force);
        let rules = rules.with_answers(Arc::clone(webhook.answers()));
        Ok(Self {
            mqtt: config.mqtt.clone(),
            amqp: config.amqp.clone(),
            http: config.http.clone(),
            admin: config.admin.clone(),
            users: Arc::new(users),
            tokens: Arc::new(Tokens::load(config.authentication.token_file.as_deref())?),
            issuer: Arc::new(Issuer::load(&config.authentication.jwt)?),
            webhook,
            trust: Arc::new(Trust::load(&config.tls)?),
            standings: Arc::default(),
            has_token_file: config.authentication.token_file.is_some(),
            takes_certificates: config.tls.client_ca.is_some() || config.tls.client_keys.is_some(),
            passwords: config.passwords.clone(),
            guessing: config.guessing.clone(),
            bans: config.bans.clone(),
            client_ids: config.authentication.client_ids.clone(),
            rules,
            listeners: (in_force.iter())
                .map(|listener| ListenerPolicy::of(config, listener, default))
                .collect(),
            listener_urls: (in_force.iter())
                .map(|listener| listener.url.clone())
                .collect(),
            trace: TracePolicy {
                clients: config.trace.clients.iter().cloned().collect(),
                directory: match &config.trace.directory {
                    Some(directory) => directory.clone(),
                    None if config.trace.clients.is_empty() => PathBuf::new(),
                    None => config.data_directory()?.join("traces"),
                },
                max_bytes: config.trace.maximum_bytes,
            },
            certificate_as_username: config.tls.certificate_as_username,
            pages: Arc::new(pages(&config.http)),
            early_bytes: {
                let takes = |listener: &Listener| {
                    listener.early_data.unwrap_or(config.quic.early_data) == EarlyData::Idempotent
                        && (listener.url.parse::<ListenerUrl>())
                            .is_ok_and(|url| url.scheme.is_quic())
                };
                let is_any = in_force.iter().any(takes);
                if is_any {
                    config.quic.maximum_early_bytes
                } else {
                    0
                }
            },
            connect_timeout_ms: config.network.connect_timeout_ms,
            // The other half is for goodbyes.
            drain_ms: config.network.shutdown_timeout_ms / 2,
            // In a cluster other nodes publish them.
            wills_end_with_broker: !config.store.enabled,
            on_lost_right: config.authorization.on_lost_right,
            waiting_acknowledgements: config.store.maximum_waiting_acknowledgements as usize,
            publisher_hold_ms: config.broker.publisher_hold_ms,
            held_publisher_interval_ms: config.broker.held_publisher_interval_ms,
            repeats: RepeatLimits::of(&config.log),
            exactly_once: exactly_once(config),
            queue_durability: (config.amqp.queues.iter())
                .filter(|queue| queue.filter.is_none())
                .filter_map(|queue| Some((queue.name.as_str().into(), queue.durability?)))
                .collect(),
            filter_durability: (config.amqp.queues.iter())
                .filter_map(|queue| Some((queue.filter.as_deref()?.into(), queue.durability?)))
                .collect(),
        })
    }
}

impl Policy {
    /// The policy that follows another while connections live.
    #[must_use]
    pub fn succeeding(mut self, old: &Self) -> Self {
        self.standings = Arc::clone(&old.standings);
        self.trust = Arc::new(self.trust.succeeding(&old.trust));
        if let Some(users) = Arc::get_mut(&mut self.users) {
            users.succeed(&old.users);
        }
        // Nobody else has it yet.
        if let Some(issuer) = Arc::get_mut(&mut self.issuer) {
            issuer.succeed(&old.issuer);
        }
        if let Some(webhook) = Arc::get_mut(&mut self.webhook) {
            webhook.succeed(&old.webhook);
        }
        self
    }

    /// The same policy, which follows this one, with other keys of signed tokens.
    pub(crate) fn with_issuer(&self, issuer: Issuer) -> Self {
        Self {
            issuer: Arc::new(issuer),
            // Authorities that this policy has changed are not changed again: their clients have come back since.
            trust: Arc::new(self.trust.succeeding(&self.trust)),
            ..self.clone()
        }
    }

    /// Notes the standing of a client that has come in, by its identifier as the rules know it.
    pub(crate) fn note_standing(&self, identity: &mut Identity, client: &str) {
        if self.gives_standings() {
            *identity = std::mem::take(identity).with_standing();
        }
        identity.note_standing(&self.standings, client);
    }

    /// Whether clients can be given groups or rules when they come in.
    pub(crate) fn gives_standings(&self) -> bool {
        self.webhook.authenticates() || self.issuer.gives_standings()
    }

    /// Refuses a file that has lost all its users or tokens, unless it says so. Their sessions would end, and a file that
    /// is being written looks like that.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub(crate) fn keeps_users_of(&self, old: &Self) -> Result<(), String> {
        if self.users.are_configured() && self.users.are_lost() && !old.users.is_empty() {
            return Err("authentication.password_file has no user any more: where that is meant, the line `# no users` says so".to_owned());
        }
        if self.has_token_file && self.tokens.are_lost() && !old.tokens.is_empty() {
            return Err("authentication.token_file has no token any more: where that is meant, the line `# no tokens` says so".to_owned());
        }
        Ok(())
    }
}

/// The durability that deliveries at QoS 2 wait for. It is the strictest that acknowledgements wait for anywhere, since
/// a publisher without an acknowledgement sends again. A delivery that waits at all waits for the disk. Otherwise,
/// after a power cut, another message would get the place and the packet identifier of one that was delivered.
fn exactly_once(config: &Config) -> Keeping {
    let listeners = config.listeners_in_force();
    let of_listeners = listeners.iter().filter_map(|listener| listener.durability);
    let of_queues = config
        .amqp
        .queues
        .iter()
        .filter_map(|queue| queue.durability);
    let of_rules = (config.authorization.rules.iter()).filter_map(|rule| rule.durability);
    let strictest = of_listeners.chain(of_queues).chain(of_rules).max();
    let of_store = config.store.durability;
    let strictest = strictest.map_or(of_store, |strictest| strictest.max(of_store));
    match strictest.for_once() {
        Durability::Memory => Keeping::Nothing,
        Durability::Interval => Keeping::Written,
        Durability::Commit => Keeping::Synced,
    }
}

/// The names by which browsers may address the broker, and the pages that may use it, also over
/// WebSocket.
pub(crate) fn pages(http: &Http) -> Pages {
    Pages {
        hosts: http.hosts.clone(),
        origins: http.cors_origins.clone(),
    }
}

impl ListenerPolicy {
    fn of(config: &Config, listener: &Listener, anonymous: bool) -> Self {
        let url = listener.url.parse::<ListenerUrl>().ok();
        let settings = config.quic_settings(listener);
        Self {
            anonymous: listener.admits_anonymous(anonymous),
            early_data: listener.early_data.unwrap_or(config.quic.early_data),
            server_keep_alive_s: listener
                .server_keep_alive_s
                .or(config.mqtt.server_keep_alive_s),
            protocol: (url.as_ref()).map_or(Protocol::Mqtt, |url| url.scheme.protocol()),
            loopback: url.is_some_and(|url| listener.is_for_this_host(&url)),
            datagrams: settings.datagram_buffer_bytes > 0,
            http3_port: None,
            durability: listener.durability.unwrap_or(config.store.durability),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_announces_the_port_at_which_http3_is() {
        let announced = |urls: &[&str], ports: &[u16]| -> Vec<Option<u16>> {
            let config = Config {
                listeners: urls.iter().map(|url| Listener::at(url)).collect(),
                ..Config::default()
            };
            let policy = Policy::load(&config).unwrap().announcing(&config, ports);
            let listeners = policy.listeners.iter();
            listeners.map(|listener| listener.http3_port).collect()
        };
        let (http, https) = ("http://127.0.0.1:0", "https://127.0.0.1:0");
        let (quic, h3) = ("mqtt+quic://127.0.0.1:0", "h3://127.0.0.1:0");
        assert_eq!(
            announced(&[quic, https, h3, http], &[1, 2, 3, 4]),
            [None, Some(3), None, None]
        );
        assert_eq!(
            announced(&[https, http, quic], &[1, 2, 3]),
            [Some(3), None, None]
        );
        assert_eq!(announced(&[https, http], &[1, 2]), [None, None]);
    }

    #[test]
    fn https_announces_no_listener_that_admits_others() {
        let listener = |url: &str, anonymous| Listener {
            anonymous: Some(anonymous),
            ..Listener::at(url)
        };
        let config = Config {
            listeners: vec![
                listener("h3://127.0.0.1:0", true),
                listener("https://127.0.0.1:0", false),
                listener("https://127.0.0.1:0", true),
                listener("mqtt+quic://127.0.0.1:0", false),
            ],
            ..Config::default()
        };
        let announced = |config: &Config| -> Vec<Option<u16>> {
            let policy = Policy::load(config)
                .unwrap()
                .announcing(config, &[1, 2, 3, 4]);
            let listeners = policy.listeners.iter();
            listeners.map(|listener| listener.http3_port).collect()
        };
        assert_eq!(announced(&config), [None, Some(4), Some(1), None]);
        let mut alone = config;
        alone.listeners.pop();
        assert_eq!(announced(&alone), [None, None, Some(1)]);
    }
}
