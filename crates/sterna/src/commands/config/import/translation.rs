//! The translation of a line of Mosquitto's configuration.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use sterna_server::config::{AuditLevel, ClientIds, Config, Listener, Scheme};

use super::access::{self, Access, Door};
use super::keys::{ALWAYS_SO, LEVELS, OF_BRIDGES, OF_NO_RIGHT};
use super::passwords::{keep_one_file, users};
use super::source::Line;
use super::{Report, listener::Draft};

/// Smallest limit of packets that lets a client come in with a long name and a token.
const LEAST_PACKET_BYTES: u64 = 1024;

/// The configuration as far as it was read.
#[derive(Debug)]
pub(super) struct Translation {
    config: Config,
    /// The last one is the one that lines are about.
    listeners: Vec<Draft>,
    /// Whether users and rules are of a listener.
    per_listener: bool,
    /// Lines about all clients.
    access: Access,
    /// Connections of all listeners together.
    maximum_connections: Option<u32>,
    /// The bridge that lines are about.
    bridge: Option<Line>,
    log_level: Option<usize>,
}

impl Translation {
    /// Nothing yet of these lines but whether access is that of a listener. Wherever a line says so, it holds for those
    /// before it, too: Mosquitto wants it first.
    pub(super) fn of(lines: &[Line]) -> Self {
        let says_so =
            |line: &Line| line.key == "per_listener_settings" && line.flag() != Some(false);
        Self {
            config: Config::default(),
            listeners: vec![Draft::first()],
            per_listener: lines.iter().any(says_so),
            access: Access::default(),
            maximum_connections: None,
            bridge: None,
            log_level: None,
        }
    }

    /// Takes the next line.
    pub(super) fn take(&mut self, line: &Line, report: &mut Report) {
        let key = line.key.as_str();
        if ALWAYS_SO.contains(&(key, line.value.as_str())) {
            return;
        }
        match key {
            "listener" => {
                self.bridge = None;
                self.listeners.push(Draft::new(line, report));
                return;
            }
            "connection" => {
                self.bridge = Some(line.clone());
                report.missing(
                    line,
                    "there are no bridges: let the other broker have one to this, with its topics",
                );
                return;
            }
            _ => {}
        }
        if let Some(bridge) = &self.bridge {
            let prefixes = ["bridge_", "remote_", "local_"];
            if OF_BRIDGES.contains(&key) || prefixes.iter().any(|it| key.starts_with(it)) {
                report.missing(line, &format!("of the bridge `{}`", bridge.value));
                return;
            }
        }
        if self.take_identity(line, report) || self.take_rest(line, report) {
            return;
        }
        let is_about_listener = (self.listeners.last_mut()).is_some_and(|it| it.take(line, report));
        if is_about_listener {
            return;
        }
        match OF_NO_RIGHT.iter().find(|(known, _)| *known == key) {
            Some((_, why)) => report.missing(line, why),
            None => (self.access).close(line, "there is nothing like it here", report),
        }
    }

    /// Users, rules and plugins.
    fn take_identity(&mut self, line: &Line, report: &mut Report) -> bool {
        let client_ids = &mut self.config.authentication.client_ids;
        match line.key.as_str() {
            "per_listener_settings" => {}
            "clientid_prefixes" if line.value.contains("%u") => {
                self.access
                    .close(line, "%u is the user's name in a pattern here", report);
            }
            "clientid_prefixes" if client_ids.is_empty() => client_ids.push(ClientIds {
                users: Vec::new(),
                patterns: vec![format!("{}*", line.value)],
            }),
            // A client with its user's name as identifier has no choice that a prefix could restrict.
            "clientid_prefixes" => {
                report.less(line, "another line says which identifiers there are");
            }
            "use_username_as_clientid" if line.flag() == Some(false) => {}
            "use_username_as_clientid" => {
                report.less(
                    line,
                    "Mosquitto gives each client its user's name as identifier; here clients have to come with it, by \
                     every listener ([[authentication.client_ids]])",
                );
                *client_ids = vec![ClientIds {
                    users: vec!["*".to_owned()],
                    patterns: vec!["%u".to_owned()],
                }];
            }
            "global_plugin" => return self.access.take(line, report),
            _ if self.per_listener => {
                let access = self.listeners.last_mut().map(|it| &mut it.access);
                return access.is_some_and(|it| it.take(line, report));
            }
            _ => return self.access.take(line, report),
        }
        true
    }

    /// Limits, persistence and the log.
    fn take_rest(&mut self, line: &Line, report: &mut Report) -> bool {
        let config = &mut self.config;
        let is_taken = match line.key.as_str() {
            "persistence" => line.flag().map(|flag| config.store.enabled = flag),
            "persistence_location" | "persistence_file" => {
                report.missing(
                    line,
                    "what Mosquitto has kept is not read; data_directory is a folder of this broker's own",
                );
                Some(())
            }
            "autosave_interval" | "autosave_on_changes" => {
                report.note(
                    line,
                    "all is written at once; store.durability says how safely",
                );
                Some(())
            }
            "persistent_client_expiration" => duration_s(&line.value).map(|seconds| {
                config.mqtt.maximum_session_expiry_s = seconds;
                config.mqtt.legacy_session_expiry_s = seconds;
            }),
            "max_inflight_messages" => limited(line).map(|number| {
                config.mqtt.send_maximum = number;
                config.mqtt.receive_maximum = number;
            }),
            "max_queued_messages" => limited(line).map(|number| {
                config.broker.maximum_queued_messages = number;
                config.broker.maximum_away_messages = number.into();
            }),
            "max_queued_bytes" => match line.number() {
                Some(0) => Some(()),
                number => number.map(|number| {
                    config.broker.maximum_queued_bytes = number;
                    config.broker.maximum_away_bytes = number;
                }),
            },
            "max_packet_size" => line.number().map(|number| set_packet_bytes(config, number)),
            "message_size_limit" => match line.number() {
                Some(0) => Some(()),
                number => number.map(|number| {
                    let bytes = number.max(LEAST_PACKET_BYTES);
                    report.less(
                        line,
                        &format!(
                            "the limit is that of packets, topic and properties included, \
                             mqtt.maximum_packet_bytes = {bytes}"
                        ),
                    );
                    set_packet_bytes(config, bytes);
                }),
            },
            "max_keepalive" => (line.number())
                .and_then(|number| u16::try_from(number).ok())
                .map(|number| config.mqtt.maximum_keep_alive_s = number),
            "memory_limit" => match line.number() {
                Some(0) => Some(()),
                number => number.and_then(|number| {
                    config.broker.memory_ceiling =
                        toml::Value::try_from(number).ok()?.try_into().ok()?;
                    Some(())
                }),
            },
            "global_max_clients" | "global_max_connections" => (line.number())
                .and_then(|number| u32::try_from(number).ok())
                .map(|number| self.maximum_connections = Some(number)),
            "retain_available" => line.flag().map(|flag| config.mqtt.retain_available = flag),
            "sys_interval" => (line.number())
                .and_then(|number| u32::try_from(number).ok())
                .map(|number| config.sys.interval_s = number),
            "connection_messages" => line.flag().map(|flag| {
                if flag {
                    config.log.audit = AuditLevel::Debug;
                }
            }),
            "log_type" => {
                let is_level = |(_, names): &(&str, &[&str])| names.contains(&line.value.as_str());
                let level = LEVELS.iter().position(is_level);
                level.map(|level| self.log_level = self.log_level.max(Some(level)))
            }
            "log_dest" => {
                if !["stderr", "stdout"].contains(&line.value.as_str()) {
                    report.missing(
                        line,
                        "the log goes to standard error, and a service's to the journal",
                    );
                }
                Some(())
            }
            "pid_file" | "user" => {
                report.note(
                    line,
                    "the service manager does this; a unit for systemd is in the package",
                );
                Some(())
            }
            _ => return false,
        };
        if is_taken.is_none() {
            report.missing(line, "the value is not understood");
        }
        true
    }

    /// The configuration, and the text of a password file where there were users.
    pub(super) fn finish(
        mut self,
        passwords: &Path,
        report: &mut Report,
    ) -> Result<(Config, Option<String>), String> {
        if let Some(level) = self.log_level {
            LEVELS[level].0.clone_into(&mut self.config.log.level);
        }
        let mut doors = self.doors(report);
        let tls = &self.config.tls;
        let by_certificate = tls.certificate_as_username;
        let takes_certificates = tls.client_ca.is_some() && !by_certificate;
        let usual = self.config.authentication.anonymous == Some(true);
        let file = keep_one_file(&mut doors, by_certificate, report);
        let mut text = None;
        if let Some(line) = file {
            text = Some(users(&line, passwords, report)?);
            self.config.authentication.password_file = Some(PathBuf::from(passwords));
        }
        for door in &mut doors {
            // A certificate that names nobody lets its client in here, as nobody in particular.
            let is_anonymous = door.listener.anonymous.unwrap_or(usual);
            door.is_for_named = takes_certificates && door.encrypts() && !is_anonymous;
        }
        let has_users = text.is_some() || by_certificate;
        let authorization = &mut self.config.authorization;
        access::authorize(&mut doors, has_users, authorization, report)?;
        self.limit_connections(&mut doors, report);
        let admin = admin_listener(&doors, usual && !has_users);
        let listeners = doors.into_iter().map(|door| door.listener);
        self.config.listeners = listeners.chain([admin]).collect();
        Ok((self.config, text))
    }

    /// The listeners, each with what decides there.
    fn doors(&mut self, report: &mut Report) -> Vec<Door> {
        let config = &mut self.config;
        self.access.finish(report);
        let mut drafts = std::mem::take(&mut self.listeners);
        for draft in &mut drafts {
            draft.access.finish(report);
        }
        for draft in &drafts {
            draft.report_early(report);
        }
        let common = &self.access;
        let access_of = |own: Access| {
            if self.per_listener {
                own.within(common)
            } else {
                common.clone()
            }
        };
        let is_local_only = drafts.len() == 1 && drafts[0].is_usual();
        // Mosquitto admits clients without credentials where only this host reaches it, else if told so.
        config.authentication.anonymous = Some(
            common
                .anonymous
                .unwrap_or(is_local_only && !self.per_listener),
        );
        if is_local_only {
            let access = access_of(drafts[0].access.clone());
            let mut listener = Listener::at("mqtt://localhost:1883");
            listener.anonymous = self.per_listener.then(|| access.anonymous.unwrap_or(true));
            return vec![Door {
                listener,
                access,
                is_for_named: false,
            }];
        }
        let drafts: Vec<Draft> = drafts.into_iter().filter(Draft::exists).collect();
        // The least of all listeners holds for all.
        let mqtt = &mut config.mqtt;
        let qos = least(&drafts, |draft| draft.maximum_qos.as_ref(), report);
        mqtt.maximum_qos = mqtt.maximum_qos.min(qos.unwrap_or(2));
        let aliases = least(&drafts, |draft| draft.maximum_aliases.as_ref(), report);
        mqtt.topic_alias_maximum = aliases.map_or(mqtt.topic_alias_maximum, |it| {
            it.min(mqtt.topic_alias_maximum)
        });
        let mut doors = Vec::new();
        let mut pages = Vec::new();
        for draft in drafts {
            if let Some((mut listener, origins, own)) = draft.finish(&mut config.tls, report) {
                pages.extend(listener.url.starts_with("ws").then_some(origins));
                let access = access_of(own);
                if self.per_listener {
                    listener.anonymous = listener.anonymous.or(access.anonymous);
                }
                doors.push(Door {
                    listener,
                    access,
                    is_for_named: false,
                });
            }
        }
        config.http.cors_origins = origins(&pages, report);
        if doors.is_empty() {
            report
                .less
                .push("no listener is left: the result has none for clients".to_owned());
        }
        doors
    }

    /// Shares the connections of all among the listeners.
    fn limit_connections(&self, doors: &mut [Door], report: &mut Report) {
        let Some(most) = self.maximum_connections else {
            return;
        };
        let share = u32::try_from(doors.len()).map_or(most, |count| most / count.max(1));
        for door in doors {
            let own = &mut door.listener.maximum_connections;
            *own = Some(own.map_or(share, |own| own.min(share)));
        }
        report.less.push(format!(
            "the limit of all connections is shared by the listeners: {share} each, listener.maximum_connections"
        ));
    }
}

/// The listener of health, metrics and the admin API, on a port that is free.
fn admin_listener(doors: &[Door], is_open: bool) -> Listener {
    let is_taken = |port: &u16| {
        let end = format!(":{port}");
        doors.iter().any(|door| door.listener.url.ends_with(&end))
    };
    let usual = Scheme::Admin.default_port();
    let port = (usual..=u16::MAX)
        .find(|port| !is_taken(port))
        .unwrap_or(usual);
    let mut listener = Listener::at(&format!("admin://localhost:{port}"));
    // Clients that had to show credentials to learn anything have to here.
    listener.anonymous = (!is_open).then_some(false);
    listener
}

/// The origins of pages that may use all listeners for WebSocket: those that each one takes. Without a list, it takes all.
fn origins(listeners: &[Vec<String>], report: &mut Report) -> Vec<String> {
    let Some(shortest) = listeners
        .iter()
        .filter(|it| !it.is_empty())
        .min_by_key(|it| it.len())
    else {
        return listeners
            .first()
            .map(|_| "*".to_owned())
            .into_iter()
            .collect();
    };
    let takes = |list: &Vec<String>, origin: &String| list.is_empty() || list.contains(origin);
    let all = |origin: &&String| listeners.iter().all(|list| takes(list, origin));
    if listeners.iter().any(|list| list != shortest) {
        report.less.push(
            "websockets_origin: http.cors_origins is one list for all listeners, of what each one takes".to_owned(),
        );
    }
    shortest.iter().filter(all).cloned().collect()
}

/// The least limit of all listeners, and a note where others have more.
fn least<T: Ord + Copy + Display>(
    drafts: &[Draft],
    of: impl Fn(&Draft) -> Option<&(T, Line)>,
    report: &mut Report,
) -> Option<T> {
    let (least, line) = drafts.iter().filter_map(&of).min_by_key(|(own, _)| *own)?;
    if drafts
        .iter()
        .any(|draft| of(draft).is_none_or(|(own, _)| own > least))
    {
        report.less(line, &format!("holds for all listeners: {least}"));
    }
    Some(*least)
}

/// A number of which 0 means no limit.
fn limited<T: TryFrom<u64>>(line: &Line) -> Option<T> {
    let number = line.number()?;
    // The largest number of the type: it has only ones.
    let most = || [u64::from(u32::MAX), u64::from(u16::MAX)].into_iter();
    if number == 0 {
        return most().find_map(|number| T::try_from(number).ok());
    }
    T::try_from(number).ok()
}

fn set_packet_bytes(config: &mut Config, bytes: u64) {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    let mqtt = &mut config.mqtt;
    mqtt.maximum_packet_bytes = bytes;
    mqtt.maximum_assembling_bytes = mqtt.maximum_assembling_bytes.max(bytes);
}

/// `14d`, `2m`: hours, days, weeks, months or years in seconds.
fn duration_s(text: &str) -> Option<u32> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let hours = match unit {
        "h" => 1,
        "d" => 24,
        "w" => 7 * 24,
        "m" => 30 * 24,
        "y" => 365 * 24,
        _ => return None,
    };
    number.parse::<u32>().ok()?.checked_mul(hours * 3600)
}
