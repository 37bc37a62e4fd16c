//! QUIC: a profile, what differs from it, and the broker's own limits.

use serde::{Deserialize, Serialize};
use sterna_quic::{Overrides, Settings};

use super::{Config, EarlyData, Listener};

/// Idle timeout without a profile and without a word about it, in milliseconds: what MQTT clients
/// that ping every minute never notice.
const IDLE_TIMEOUT_MS: u64 = 120_000;

/// QUIC's own settings.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quic {
    /// Half-open handshakes of a shard from which on addresses are validated by Retry.
    pub retry_half_open: u32,
    /// What early data (0-RTT) may do.
    pub early_data: EarlyData,
    /// Bytes that a QUIC client may send before its handshake is complete.
    pub maximum_early_bytes: u32,
    /// The same of all clients of a shard together.
    pub maximum_early_bytes_total: u32,
    /// The profile, and the settings that differ from it, each by its name.
    #[serde(flatten)]
    pub transport: Overrides,
}

impl Default for Quic {
    fn default() -> Self {
        Self {
            retry_half_open: 4_000,
            early_data: EarlyData::Idempotent,
            maximum_early_bytes: 16 * 1024,
            maximum_early_bytes_total: 16 * 1024 * 1024,
            transport: Overrides::default(),
        }
    }
}

impl Config {
    /// What is wrong with the settings of QUIC on any of the listeners.
    pub(super) fn quic_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for listener in self.listeners_in_force() {
            if let Err(found) = self.quic_settings(&listener).check() {
                for problem in found {
                    let problem = format!("quic.{problem}");
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
            }
        }
        problems
    }

    /// The settings of QUIC that are in force on a listener: its profile, else that of `[quic]`, with
    /// what `[quic]` changes on top, within what `[mqtt]` grants.
    #[must_use]
    pub fn quic_settings(&self, listener: &Listener) -> Settings {
        let mut overrides = self.quic.transport.clone();
        overrides.profile = listener.profile.or(overrides.profile);
        let mut settings = overrides.settings();
        if overrides.profile.is_none() {
            // Without a profile, what was so before there were any.
            if overrides.idle_timeout_ms.is_none() {
                settings.idle_timeout_ms = IDLE_TIMEOUT_MS;
            }
            if overrides.handshake_timeout_ms.is_none() {
                let timeout_ms = self.network.handshake_timeout_ms;
                let timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
                // A setting about other transports must not make this one's unsound.
                let probe_ms = settings.initial_rtt_ms.saturating_mul(3);
                settings.handshake_timeout_ms = timeout_ms.max(probe_ms);
            }
        }
        // The control stream comes on top.
        let streams = u32::from(self.mqtt.maximum_data_streams);
        let within = |value: &mut u32, most: u32| *value = (*value).min(most);
        within(&mut settings.max_bidirectional_streams, streams + 1);
        within(&mut settings.initial_bidirectional_streams, streams + 1);
        within(&mut settings.max_unidirectional_streams, streams);
        within(&mut settings.initial_unidirectional_streams, streams);
        if !self.mqtt.datagrams {
            settings.datagram_buffer_bytes = 0;
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use sterna_quic::Profile;

    use super::*;
    use crate::config::{load, parse};

    fn settings(text: &str) -> Settings {
        let config = parse("x", text).expect("a configuration");
        config.check().expect("sound");
        config.quic_settings(&config.listeners_in_force()[0])
    }

    #[test]
    fn without_a_word_everything_is_as_it_was() {
        let now = settings("");
        let expected = Settings {
            idle_timeout_ms: 120_000,
            handshake_timeout_ms: 10_000,
            max_bidirectional_streams: 129,
            max_unidirectional_streams: 128,
            ..Settings::default()
        };
        assert_eq!(now, expected);
        assert_eq!((now.initial_rtt_ms, now.mtu_discovery), (333, false));
    }

    #[test]
    fn a_handshake_has_time_for_a_probe() {
        let now = settings("[network]\nhandshake_timeout_ms = 500\n");
        assert_eq!(now.handshake_timeout_ms, 999);
        let now = settings("[quic]\ninitial_rtt_ms = 5000\n");
        assert_eq!(now.handshake_timeout_ms, 15_000);
    }

    #[test]
    fn a_profile_can_be_changed_key_by_key() {
        let nb_iot = Settings::of(Profile::NbIot);
        let now = settings("[quic]\nprofile = \"nb-iot\"\n");
        assert_eq!(now.initial_rtt_ms, 1_500);
        assert_eq!(now.idle_timeout_ms, nb_iot.idle_timeout_ms);
        assert_eq!(now.handshake_timeout_ms, nb_iot.handshake_timeout_ms);
        let now = settings(
            "[quic]\nprofile = \"nb-iot\"\ninitial_rtt_ms = 900\nearly_data = \"all\"\n\
             idle_timeout_ms = 0\nmtu_discovery = true\nretry_half_open = 7\n",
        );
        assert_eq!((now.initial_rtt_ms, now.idle_timeout_ms), (900, 0));
        assert!(now.mtu_discovery);
        assert_eq!(now.max_ack_delay_ms, nb_iot.max_ack_delay_ms);
    }

    #[test]
    fn a_listener_may_have_a_profile_of_its_own() {
        let config = parse(
            "x",
            "[quic]\nprofile = \"lan\"\ntickets = 2\n\
             [[listener]]\nurl = \"mqtt+quic://localhost:1\"\nprofile = \"sleepy\"\n\
             [[listener]]\nurl = \"mqtt+quic://localhost:2\"\n",
        )
        .expect("a configuration");
        let [sleepy, lan] = [0, 1].map(|n| config.quic_settings(&config.listeners[n]));
        assert_eq!((sleepy.idle_timeout_ms, sleepy.tickets), (0, 2));
        assert_eq!((lan.initial_rtt_ms, lan.tickets), (50, 2));
    }

    #[test]
    fn the_environment_sets_the_profile_and_single_settings() {
        let vars = [
            ("STERNA__QUIC__PROFILE".to_owned(), "cellular".to_owned()),
            ("STERNA__QUIC__TICKETS".to_owned(), "3".to_owned()),
            ("STERNA__QUIC__EARLY_DATA".to_owned(), "all".to_owned()),
        ];
        let config = load(None, vars).expect("a configuration");
        assert_eq!(config.quic.transport.profile, Some(Profile::Cellular));
        assert_eq!(config.quic.transport.tickets, Some(3));
        assert_eq!(config.quic.early_data, EarlyData::All);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = parse("f.toml", "[quic]\nintial_rtt_ms = 3\n").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("did you mean `initial_rtt_ms`?"), "{error}");
        let error = parse("f.toml", "[quic]\nprofile = \"lte\"\n").unwrap_err();
        assert!(error.to_string().contains("nb-iot"), "{error}");
        let config = parse("x", "[quic]\ntickets = 200\n").expect("types are right");
        let problems = config.check().unwrap_err();
        assert!(problems[0].starts_with("quic.tickets "), "{problems:?}");
        // A profile that a listener brings is checked too.
        let config = parse(
            "x",
            "[quic]\nhandshake_timeout_ms = 2000\n\
             [[listener]]\nurl = \"mqtt+quic://localhost:1\"\nprofile = \"nb-iot\"\n",
        )
        .expect("types are right");
        let problems = config.check().unwrap_err();
        assert!(
            problems[0].starts_with("quic.handshake_timeout_ms "),
            "{problems:?}"
        );
    }

    #[test]
    fn the_documentation_names_every_setting_with_its_default() {
        let page = include_str!("../../../../docs/configuration.md");
        let (_, page) = page.split_once("## `[quic]`").expect("a section");
        let (page, _) = page.split_once("\n## ").expect("more sections");
        let defaults = settings("[quic]\nprofile = \"default\"\n");
        for (name, value) in defaults.values() {
            let row = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}`")))
                .unwrap_or_else(|| panic!("docs/configuration.md does not name quic.{name}"));
            let value = value.trim_matches('"');
            let said = row.split('|').nth(2).unwrap_or_default().trim();
            let bare = said
                .split(';')
                .next()
                .unwrap_or_default()
                .trim()
                .trim_matches('`');
            let ours = ["max_bidirectional_streams", "max_unidirectional_streams"];
            assert!(bare == value || ours.contains(&name), "{row}: not {value}");
        }
    }
}
