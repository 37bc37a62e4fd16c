//! Configuration: one TOML file, overridden by the environment, overridden by flags.
//!
//! Every limit of the broker is a named setting here, with its unit last in the name. A key that
//! does not exist is an error that names the nearest one that does.

// Before the sections, which are made by its macro.
#[macro_use]
mod table;

mod address;
mod admin;
mod amqp;
mod authentication;
mod authorization;
mod bans;
mod broker;
mod change;
mod cluster;
mod exposure;
mod http;
mod identity;
mod in_force;
mod jwt;
mod kind;
mod limit;
mod listener;
mod load;
mod log;
mod memory;
mod mqtt;
mod network;
mod quic;
pub mod reference;
mod secrets;
mod store;
mod tls;
mod trace;
mod transport;
mod webhook;

use std::borrow::Cow;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use address::AddressPrefix;
pub use admin::Admin;
pub use amqp::{Amqp, Queue};
pub(crate) use amqp::{QUEUE_LEVEL, is_queue_name, is_topic_name};
pub use authentication::Authentication;
pub(crate) use authorization::ANONYMOUS;
pub use authorization::{
    ActionName, Authorization, Effect, Group, OnLostRight, Rule, TransportName,
};
pub use bans::Bans;
pub use broker::Broker;
pub use cluster::{Cluster, RegionFull, RemoteRegion};
pub use http::{Http, HttpAuthentication, HttpEarlyDataRefusal};
pub use identity::{ClientIds, Guessing, Passwords};
pub use in_force::{InForce, Place};
pub use jwt::{Jwt, JwtAlgorithm};
pub use kind::Kind;
pub use limit::{Exceeded, Limit};
pub use listener::{EarlyData, Listener, ListenerUrl, ListenerUrlError, Protocol, Scheme};
pub(crate) use load::nearest;
pub use load::{ConfigError, ENVIRONMENT_PREFIX, load, located, parse, rule_lines};
pub use log::{AuditLevel, Log, LogFormat, Sys};
pub(crate) use memory::LEAST_CEILING_BYTES;
pub use memory::MemoryCeiling;
pub use mqtt::Mqtt;
pub use network::{Network, ProxyProtocol};
pub use quic::Quic;
pub use secrets::without_secrets;
pub use store::{Durability, Store};
use table::Nested as _;
pub use table::{Change, Section, Setting};
pub use tls::{AdditionalCertificate, Tls};
pub(crate) use trace::collector;
pub use trace::{Otlp, Trace};
pub use webhook::Webhook;

settings! {
    /// The whole configuration of a broker process.
    pub struct Config {
        /// Threads that serve connections. 0: one per processor.
        restart shards: u16 = 1, within ..=256;
        /// Directory of the development certificate, the store and `quic-reset-key`. See [the data
        /// directory](configuring.md#the-data-directory).
        restart data_directory: Option<PathBuf>,
            said "`$STATE_DIRECTORY` (systemd), else `sterna` in `$XDG_STATE_HOME` or `~/.local/state`";
        /// Listeners. Without any, those of [`Config::default_listeners`].
        section listeners as "listener": Vec<Listener>;
        /// Certificates of every listener that encrypts.
        section tls: Tls;
        /// Credentials of clients.
        section authentication: Authentication;
        /// A service that decides about clients and their actions.
        section webhook: Webhook;
        /// Records and checks of passwords.
        section passwords: Passwords;
        /// Delays after wrong credentials.
        section guessing: Guessing;
        /// Bans by behaviour.
        section bans: Bans;
        /// Rights of clients.
        section authorization: Authorization;
        /// Limits and settings of MQTT clients.
        section mqtt: Mqtt;
        /// Limits and settings of AMQP clients.
        section amqp: Amqp;
        /// Limits and settings of HTTP clients.
        section http: Http;
        /// Metrics and health.
        section admin: Admin;
        /// Sessions, queues, subscriptions and retained messages.
        section broker: Broker;
        /// Other nodes.
        section cluster: Cluster;
        /// Storage and the durability of acknowledgements.
        section store: Store;
        /// Sockets and handshakes.
        section network: Network;
        /// QUIC's own settings.
        section quic: Quic;
        /// Traces of single clients' connections.
        section trace: Trace;
        /// Spans of single messages.
        section otlp: Otlp;
        /// `$SYS` topics.
        section sys: Sys;
        /// The log.
        section log: Log;
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
    pub fn files(&self) -> Vec<(Cow<'static, str>, &Path)> {
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
        single
            .chain(keys.map(|path| ("authentication.jwt.key_files", path.as_path())))
            .chain(revoked.map(|path| ("tls.client_revocation_lists", path.as_path())))
            .map(|(name, path)| (Cow::Borrowed(name), path))
            .chain(self.tls.additional_pairs().flat_map(|(of, pair)| {
                [("certificate", &pair.certificate), ("key", &pair.key)]
                    .map(|(key, path)| (Cow::Owned(of(key)), path.as_path()))
            }))
            .collect()
    }

    /// Checks combinations of values, the existence of files, and exposure.
    ///
    /// # Errors
    /// Every problem found, each a sentence that names the setting.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        problems.extend(self.exposure_problems());
        self.range_problems("", &mut problems);
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
        if self.mqtt.maximum_assembling_bytes < self.mqtt.maximum_packet_bytes {
            problems.push(
                "mqtt.maximum_assembling_bytes is at least mqtt.maximum_packet_bytes".to_owned(),
            );
        }
        problems.extend(listener::address_problems(&self.listeners));
        problems.extend(listener::name_problems(&self.listeners));
        problems.extend(self.authorization.unknown_listeners(&self.listeners));
        let proxies = self.listeners.iter().enumerate();
        problems.extend(proxies.filter_map(|(at, listener)| {
            let problem = listener.proxy_protocol_problem()?;
            Some(format!(
                "listener {}: `{}`: {problem}",
                at + 1,
                listener.url
            ))
        }));
        problems.extend(self.quic_problems());
        problems.extend(self.tls.problems());
        problems.extend(self.amqp.problems());
        problems.extend(self.http.problems());
        problems.extend(self.broker.memory_problems());
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
        problems.extend(identity::problems(&self.authentication.client_ids));
        problems.extend(self.authentication.jwt.problems());
        problems.extend(self.authorization.problems());
        problems.extend(self.webhook.problems());
        if self.webhook.authorization_url.is_none()
            && let Some(number) = self.authorization.first_that_asks()
        {
            problems.push(format!(
                "authorization.rule {number}: `ask` needs webhook.authorization_url"
            ));
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
