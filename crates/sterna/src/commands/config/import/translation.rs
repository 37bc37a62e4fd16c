//! The translation of a line of Mosquitto's configuration.

use std::fmt::{Display, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use sterna_server::config::{AuditLevel, ClientIds, Config};

use super::source::Line;
use super::{Report, acl, listener::Draft};

/// Bytes of a PUBLISH beside its payload: the longest topic, and room for properties.
const PACKET_OVERHEAD_BYTES: u64 = 128 << 10;

/// Lines that ask for what is so here anyway.
const ALWAYS_SO: &[(&str, &str)] = &[
    ("allow_duplicate_messages", "false"),
    ("allow_zero_length_clientid", "true"),
    ("log_timestamp", "true"),
    ("queue_qos0_messages", "false"),
    ("set_tcp_nodelay", "true"),
    ("upgrade_outgoing_qos", "false"),
];

/// Keys of a bridge, beside those that begin with `bridge_`, `remote_` and `local_`.
const OF_BRIDGES: &[&str] = &[
    "address",
    "addresses",
    "cleansession",
    "clientid",
    "idle_timeout",
    "keepalive_interval",
    "notification_topic",
    "notifications",
    "notifications_local_only",
    "password",
    "restart_timeout",
    "round_robin",
    "start_type",
    "threshold",
    "topic",
    "try_private",
    "username",
];

/// The configuration as far as it was read.
#[derive(Debug)]
pub(super) struct Translation {
    config: Config,
    /// The last one is the one that lines are about.
    listeners: Vec<Draft>,
    /// Whether users and anonymous access are of a listener.
    per_listener: bool,
    password_file: Option<Line>,
    acl_file: Option<Line>,
    anonymous: Option<bool>,
    /// The bridge that lines are about.
    bridge: Option<Line>,
    log_level: Option<usize>,
}

/// Levels of the log, and what Mosquitto calls them.
const LEVELS: [(&str, &[&str]); 5] = [
    ("off", &["none"]),
    ("error", &["error"]),
    ("warn", &["warning"]),
    ("info", &["notice", "information"]),
    (
        "debug",
        &["debug", "all", "subscribe", "unsubscribe", "websockets"],
    ),
];

impl Default for Translation {
    fn default() -> Self {
        Self {
            config: Config::default(),
            listeners: vec![Draft::first()],
            per_listener: false,
            password_file: None,
            acl_file: None,
            anonymous: None,
            bridge: None,
            log_level: None,
        }
    }
}

impl Translation {
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
        if !is_about_listener {
            report.missing(line, "there is nothing like it here");
        }
    }

    /// Users, rules and plugins.
    fn take_identity(&mut self, line: &Line, report: &mut Report) -> bool {
        match line.key.as_str() {
            "per_listener_settings" => self.per_listener = line.flag().unwrap_or_default(),
            "allow_anonymous" if self.per_listener => {
                if let Some(listener) = self.listeners.last_mut() {
                    listener.anonymous = line.flag();
                }
            }
            "allow_anonymous" => self.anonymous = line.flag(),
            "password_file" => keep_one(&mut self.password_file, line, report),
            "acl_file" => keep_one(&mut self.acl_file, line, report),
            "clientid_prefixes" => self.config.authentication.client_ids.push(ClientIds {
                users: Vec::new(),
                patterns: vec![format!("{}*", line.value)],
            }),
            "plugin" | "global_plugin" | "plugin_load" | "auth_plugin" => report.missing(
                line,
                "there are no plugins: users are in files or signed tokens, [authentication]",
            ),
            key if key.starts_with("plugin_") || key.starts_with("auth_") => {
                report.missing(line, "an option of a plugin");
            }
            _ => return false,
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
                    let bytes = number.saturating_add(PACKET_OVERHEAD_BYTES);
                    report.note(
                        line,
                        &format!(
                            "the limit is that of packets, mqtt.maximum_packet_bytes = {bytes}: \
                             {PACKET_OVERHEAD_BYTES} more, for topic and properties"
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
        self.finish_listeners(report);
        let config = &mut self.config;
        if let Some(level) = self.log_level {
            LEVELS[level].0.clone_into(&mut config.log.level);
        }
        let mut text = None;
        if let Some(line) = &self.password_file {
            text = Some(users(line, passwords, report)?);
            config.authentication.password_file = Some(PathBuf::from(passwords));
        }
        if let Some(line) = &self.acl_file {
            config.authorization.rules = acl::rules(line, report)?;
            config.authorization.default_allow = false;
            report.note(
                line,
                "a subscription that is wider than what is allowed is refused; Mosquitto takes it, and \
                 delivers a part",
            );
        }
        Ok((self.config, text))
    }

    fn finish_listeners(&mut self, report: &mut Report) {
        let config = &mut self.config;
        let drafts = std::mem::take(&mut self.listeners);
        for draft in &drafts {
            draft.report_early(report);
        }
        let is_local_only = drafts.len() == 1 && !drafts[0].exists();
        // Mosquitto admits clients without credentials where only this host reaches it, else if told so.
        config.authentication.anonymous = Some(self.anonymous.unwrap_or(is_local_only));
        if is_local_only {
            config.listeners = vec![sterna_server::config::Listener::at("mqtt://localhost:1883")];
        }
        let drafts: Vec<Draft> = drafts.into_iter().filter(Draft::exists).collect();
        set_connections(config, &drafts, report);
        // The least of all listeners holds for all.
        let mqtt = &mut config.mqtt;
        let qos = least(&drafts, |draft| draft.maximum_qos.as_ref(), report);
        mqtt.maximum_qos = mqtt.maximum_qos.min(qos.unwrap_or(2));
        let aliases = least(&drafts, |draft| draft.maximum_aliases.as_ref(), report);
        mqtt.topic_alias_maximum = aliases.map_or(mqtt.topic_alias_maximum, |it| {
            it.min(mqtt.topic_alias_maximum)
        });
        for draft in drafts {
            if let Some((listener, origins)) = draft.finish(&mut config.tls, report) {
                config.listeners.push(listener);
                config.http.cors_origins.extend(origins);
            }
        }
        if config.listeners.is_empty() {
            // Without any, this broker has listeners of its own; what is left out must not be more.
            let none = "no listener is left: the result has one on loopback";
            report.missing.push(none.to_owned());
            config.listeners = vec![sterna_server::config::Listener::at("mqtt://localhost:1883")];
        }
    }
}

/// The limits of connections: there is one for all listeners, the sum.
fn set_connections(config: &mut Config, drafts: &[Draft], report: &mut Report) {
    let own: Vec<_> = (drafts.iter())
        .filter_map(|draft| draft.maximum_connections.as_ref())
        .collect();
    let sum = own
        .iter()
        .fold(0_u32, |sum, (most, _)| sum.saturating_add(*most));
    if own.len() < drafts.len() {
        for (_, line) in own {
            report.missing(
                line,
                "not translated: the limit is one for all listeners, network.maximum_connections, and \
                 another listener has none",
            );
        }
        return;
    }
    if let Some((_, line)) = own.last().filter(|_| own.len() > 1) {
        report.note(
            line,
            &format!(
                "the limit is one for all listeners, network.maximum_connections: {sum} together"
            ),
        );
    }
    if sum > 0 {
        config.network.maximum_connections = sum;
    }
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
        report.note(line, &format!("holds for all listeners: {least}"));
    }
    Some(*least)
}

fn keep_one(place: &mut Option<Line>, line: &Line, report: &mut Report) {
    match place {
        Some(known) if known.path() != line.path() => report.missing(
            line,
            "there is one for all listeners; the first one of the file is translated",
        ),
        _ => *place = Some(line.clone()),
    }
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

/// A password file with the names of Mosquitto's users, who need new passwords.
fn users(line: &Line, passwords: &Path, report: &mut Report) -> Result<String, String> {
    let path = line.path();
    let text = fs::read_to_string(&path)
        .map_err(|error| format!("{line}: {}: {error}", path.display()))?;
    let names = text
        .lines()
        .filter_map(|line| line.split_once(':').map(|(name, _)| name));
    let names: Vec<&str> = names.filter(|name| !name.starts_with('#')).collect();
    let mut file =
        String::from("# Users without a password yet. `sterna passwd THIS_FILE NAME` sets one.\n");
    for name in &names {
        // A text takes everything.
        let _ = writeln!(file, "# {name}");
    }
    let (count, passwords) = (names.len(), passwords.display());
    report.missing(
        line,
        &format!(
            "passwords are digests of another kind. The names of {count} users are in {passwords}; until \
             `sterna passwd {passwords} NAME` sets new ones, they cannot log in"
        ),
    );
    Ok(file)
}
