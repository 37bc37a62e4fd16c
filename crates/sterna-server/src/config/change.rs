//! From one configuration to the next while connections live.

use super::Config;

impl Config {
    /// The configuration that a reload would put in force: this one, with the settings of `old` that cannot change at
    /// run time. The second value names those that differ.
    #[must_use]
    pub(crate) fn after(&self, old: &Self) -> (Self, Vec<&'static str>) {
        let mut next = self.clone();
        let mut unchanged = Vec::new();
        let mut keep = |name, differs: bool| {
            if differs {
                unchanged.push(name);
            }
        };
        keep(
            "listener",
            self.listeners_in_force() != old.listeners_in_force(),
        );
        next.listeners.clone_from(&old.listeners);
        keep("shards", self.shards != old.shards);
        next.shards = old.shards;
        keep("data_directory", self.data_directory != old.data_directory);
        next.data_directory.clone_from(&old.data_directory);
        keep("broker", self.broker != old.broker);
        next.broker.clone_from(&old.broker);
        keep("store", !self.store.is_opened_like(&old.store));
        next.store.clone_from(&old.store);
        next.store.take_reloaded(&self.store);
        keep("cluster", self.cluster != old.cluster);
        next.cluster.clone_from(&old.cluster);
        keep("amqp.queue", !self.amqp.has_queues_of(&old.amqp));
        next.amqp.take_queues_of(&old.amqp);
        keep("network", self.network != old.network);
        next.network.clone_from(&old.network);
        // The transports' announcements must stay true.
        keep("mqtt.datagrams", self.mqtt.datagrams != old.mqtt.datagrams);
        next.mqtt.datagrams = old.mqtt.datagrams;
        keep("quic", self.quic != old.quic);
        next.quic.clone_from(&old.quic);
        keep(
            "passwords.threads",
            self.passwords.threads != old.passwords.threads,
        );
        next.passwords.threads = old.passwords.threads;
        keep("sys", self.sys != old.sys);
        next.sys.clone_from(&old.sys);
        keep("otlp", self.otlp != old.otlp);
        next.otlp.clone_from(&old.otlp);
        keep("log", self.log != old.log);
        next.log.clone_from(&old.log);
        let (tls, before) = (&mut next.tls, &old.tls);
        // Their files may be others, but whether there is one is what a handshake is made of.
        if tls.client_ca.is_some() != before.client_ca.is_some() {
            keep("tls.client_ca", true);
            tls.client_ca.clone_from(&before.client_ca);
        }
        if tls.client_keys.is_some() != before.client_keys.is_some() {
            keep("tls.client_keys", true);
            tls.client_keys.clone_from(&before.client_keys);
        }
        for (name, value, before) in [
            (
                "tls.require_client_certificate",
                &mut tls.require_client_certificate,
                before.require_client_certificate,
            ),
            (
                "tls.certificate_as_username",
                &mut tls.certificate_as_username,
                before.certificate_as_username,
            ),
            ("tls.only_tls13", &mut tls.only_tls13, before.only_tls13),
            (
                "tls.raw_public_key",
                &mut tls.raw_public_key,
                before.raw_public_key,
            ),
        ] {
            keep(name, *value != before);
            *value = before;
        }
        (next, unchanged)
    }

    /// The accesses that `old` keeps shut and this configuration would open without a setting that says so. Each is a
    /// sentence. This configuration has the listeners of `old`.
    #[must_use]
    pub(crate) fn weaker_than(&self, old: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        let is_said = self.authentication.anonymous == Some(true);
        for listener in self.listeners_in_force() {
            if self.admits_anonymous(&listener) && !old.admits_anonymous(&listener) && !is_said {
                problems.push(format!(
                    "listener `{}` would admit clients without credentials, which it refuses now: set \
                     authentication.anonymous = true if that is meant",
                    listener.url
                ));
            }
        }
        let limits = |config: &Self| {
            let authorization = &config.authorization;
            !authorization.default_allow || !authorization.rules.is_empty()
        };
        if limits(old) && !limits(self) {
            problems.push(
                "authorization would allow everything to everybody, and now it does not: that needs a \
                 restart if it is meant"
                    .to_owned(),
            );
        } else if self.authorization.default_allow && !old.authorization.default_allow {
            problems.push(
                "authorization.default_allow would become true, and now it is false: that needs a \
                 restart if it is meant"
                    .to_owned(),
            );
        }
        if problems.is_empty() && old.authorization.is_closed() && !self.authorization.is_closed() {
            problems.push(
                "authorization would allow topics that no rule names, which are refused now: if this is \
                 intended, restart the broker"
                    .to_owned(),
            );
        }
        let binds = |config: &Self| !config.authentication.client_ids.is_empty();
        if binds(old) && !binds(self) {
            problems.push(
                "authentication.client_ids would bind no client identifier any more: that needs a \
                 restart if it is meant"
                    .to_owned(),
            );
        }
        problems
    }
}
