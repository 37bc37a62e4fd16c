//! QUIC: a profile, the settings that differ from it, and the broker's own limits.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;

use sterna_net::quic::{AddressTokens, ServerId};
use sterna_quic::{Overrides, Settings};

use super::{Config, EarlyData, Listener};

/// Idle timeout without a profile and without a setting of its own, in milliseconds. MQTT clients
/// that ping every minute never notice it.
const IDLE_TIMEOUT_MS: u64 = 120_000;

settings! {
    /// QUIC: the broker's own limits, and the transport's settings, which depend on the devices' paths.
    ///
    /// `profile` names a set of values for a kind of path, and each of them can be changed beside it. `[[listener]]` may
    /// name another profile; changes here hold there, too. [Tuning](tuning.md) compares the profiles.
    pub struct Quic {
        /// Half-open handshakes of a shard, and 256 of one address: from there on, Retry validates addresses. It costs
        /// each client a round trip.
        restart retry_half_open: u32 = 4_000;
        /// Whether a client that sends from another address gets a path challenge at once, though it has 1,200 bytes. All
        /// bytes to addresses without a proof keep to three times what the client has sent. `false`: a challenge waits
        /// for 400 bytes from the new address, and devices with small packets [seconds](quic.md#addresses).
        restart challenge_at_once: bool = true;
        /// Effect of [early data](quic.md#early-data) (0-RTT). `off`: none, and clients send it again after the
        /// handshake. `idempotent`: actions that a replay cannot harm. `all`: everything.
        restart early_data: EarlyData = EarlyData::Idempotent;
        /// Bytes that a client may send as early data. More is dropped; the client sends it again after the handshake.
        restart maximum_early_bytes: u32 = 16 * 1024;
        /// The same for all clients of a shard that are in their handshake. Each client's first datagram does not
        /// count.
        restart maximum_early_bytes_total: u32 = 16 * 1024 * 1024;
        /// Sessions of all listeners that tickets resume, about 300 bytes each. 0 is as `tickets = 0`. Where there are as
        /// many, the oldest of the address that has most makes room.
        restart maximum_tickets: u32 = 100_000;
        /// Name of this node in connection identifiers: 1 to 6 bytes in hexadecimal, such as `"01"`. Each node has its
        /// own, of the same length. [Balancers](cluster.md#balancers-for-quic) route by it.
        restart server_id: Option<String>;
        /// Config rotation of the draft, beside `server_id`, as the balancer has it.
        restart config_rotation: u8 = 0, within ..=u64::from(ServerId::HIGHEST_ROTATION);
        /// File with a secret of 32 bytes or more. With the same on all nodes, each takes the address tokens (Retry,
        /// NEW_TOKEN) of the others.
        restart address_token_key_file: Option<PathBuf>, said "a random key";
        /// The profile, and the settings that differ from it, each by its name.
        #[serde(flatten)]
        section transport: Overrides;
    }
}

/// Least bytes of the secret of address tokens.
const MIN_SECRET_BYTES: usize = 32;

impl Quic {
    /// This node's name in connection identifiers; `None` where it has no server ID.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub(crate) fn named_server(&self) -> Result<Option<ServerId>, String> {
        let Some(text) = &self.server_id else {
            return Ok(None);
        };
        let wrong = || format!("quic.server_id: `{text}` is not 1 to 6 bytes in hexadecimal");
        let bytes = from_hexadecimal(text).ok_or_else(wrong)?;
        let server_id = ServerId::new(&bytes, self.config_rotation).ok_or_else(wrong)?;
        Ok(Some(server_id))
    }

    /// The key of address tokens: that of all nodes, or one of this process.
    ///
    /// # Errors
    /// A sentence that names the setting and the file.
    pub(crate) fn address_tokens(&self) -> Result<AddressTokens, String> {
        let Some(path) = &self.address_token_key_file else {
            return Ok(AddressTokens::default());
        };
        let told =
            |why: &dyn Display| format!("quic.address_token_key_file: {}: {why}", path.display());
        let secret = fs::read(path).map_err(|error| told(&error))?;
        let secret = secret.trim_ascii_end();
        if secret.len() < MIN_SECRET_BYTES {
            return Err(told(&format!("has less than {MIN_SECRET_BYTES} bytes")));
        }
        Ok(AddressTokens::with_secret(secret))
    }
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    let byte = |pair: &[u32]| (pair[0] << 4 | pair[1]) as u8;
    Some(digits.chunks_exact(2).map(byte).collect())
}

impl Config {
    /// The faults of the settings of QUIC on any of the listeners.
    pub(super) fn quic_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(self.quic.named_server().err());
        problems.extend(self.quic.address_tokens().err());
        // As they are set: below, limits of `[mqtt]` have lowered some.
        let out_of_range = self.quic.transport.settings().range_problems();
        problems.extend(out_of_range.into_iter().map(|it| format!("quic.{it}")));
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

    /// The settings of QUIC in force on a listener. They are its profile, else that of `[quic]`,
    /// with the changes of `[quic]`. The limits of `[mqtt]` bound them.
    #[must_use]
    pub fn quic_settings(&self, listener: &Listener) -> Settings {
        let mut overrides = self.quic.transport.clone();
        overrides.profile = listener.profile.or(overrides.profile);
        let mut settings = overrides.settings();
        if overrides.profile.is_none() {
            // A profile's times are its own.
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
            handshake_timeout_ms: 30_000,
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
        let now = settings("[quic]\ninitial_rtt_ms = 12000\n");
        assert_eq!(now.handshake_timeout_ms, 36_000);
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
    fn a_node_has_a_server_id_in_hexadecimal() {
        let named = |id: &str, rotation: u8| {
            let quic = Quic {
                server_id: Some(id.to_owned()),
                config_rotation: rotation,
                ..Quic::default()
            };
            quic.named_server()
        };
        let server_id = named("0aFF", 6).expect("sound").expect("named");
        assert_eq!(server_id.as_bytes(), [0x0a, 0xff]);
        for wrong in ["", "1", "0x01", "0g", "00112233445566", "é1"] {
            let why = named(wrong, 0).unwrap_err();
            assert!(why.contains("quic.server_id"), "{why}");
        }
        assert_eq!(Quic::default().named_server(), Ok(None));
    }

    #[test]
    fn the_key_of_address_tokens_is_read_and_long_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let config = parse(
            "x",
            &format!(
                "[quic]\naddress_token_key_file = {:?}\n",
                path.display().to_string()
            ),
        )
        .expect("a configuration");
        let problem = || config.quic_problems().concat();
        assert!(problem().contains("quic.address_token_key_file"));
        fs::write(&path, [b'a'; 31]).expect("written");
        assert!(problem().contains("less than 32 bytes"), "{}", problem());
        fs::write(&path, [b'a'; 32]).expect("written");
        assert_eq!(problem(), "");
    }
}
