//! The settings, and changes on top of a profile's.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::choice::{Cipher, CongestionControl, KeyShare};
use crate::profile::Profile;
use crate::transport::{
    MAX_ACK_DELAY_MS, MAX_PATH_MEMORY_MS, MAX_PAYLOAD_BYTES, MAX_STREAMS, MAX_TIME_MS,
    MAX_WINDOW_BYTES, MIN_PAYLOAD_BYTES,
};

/// A value of a setting as text: on the command line, and as TOML.
trait Value: Sized {
    /// The expected form of a value, for parser errors.
    const EXPECTED: &'static str;

    fn parse(text: &str) -> Option<Self>;

    fn toml(&self) -> String;
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            const EXPECTED: &'static str = concat!("a whole number (", stringify!($type), ")");

            fn parse(text: &str) -> Option<Self> {
                // As in TOML, digits may be grouped.
                text.replace('_', "").parse().ok()
            }

            fn toml(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

numbers!(u8, u16, u32, u64);

impl Value for f64 {
    const EXPECTED: &'static str = "a number such as 1.125";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &Self| number.is_finite())
    }

    fn toml(&self) -> String {
        // With a decimal point, without which TOML would take it for an integer.
        format!("{self:?}")
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn toml(&self) -> String {
        self.to_string()
    }
}

macro_rules! named {
    ($($type:ty, $expected:literal);+ $(;)?) => {$(
        impl Value for $type {
            const EXPECTED: &'static str = $expected;

            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn toml(&self) -> String {
                format!("\"{self}\"")
            }
        }
    )+};
}

named!(
    CongestionControl, "cubic, newreno or bbr";
    KeyShare, "x25519, p256 or x25519mlkem768";
    Cipher, "auto, aes or chacha20";
);

/// Writes the list of settings once, with their ranges, and makes of it the structure, its optional twin, the
/// check of the ranges, and the access by name.
macro_rules! settings {
    ($($(#[$doc:meta])+ $name:ident: $type:ty $(= $range:expr)?,)+) => {
        /// The settings of a QUIC connection, for either end.
        ///
        /// Missing fields of a TOML table are those of [`Profile::Default`]; unknown ones are errors.
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings {
            $($(#[$doc])+ pub $name: $type,)+
        }

        /// A profile and changes to it: a configuration's `[quic]` table, or flags.
        ///
        /// All of it is optional. So layers can be put on each other ([`Overrides::or`]) before
        /// [`Overrides::settings`] makes [`Settings`] of them.
        ///
        /// The table may have other fields beside. With `#[serde(flatten)]` in a structure that has
        /// `deny_unknown_fields`, unknown names stay errors.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Overrides {
            /// The profile that the changes apply to. Default: `default`.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub profile: Option<Profile>,
            $(
                #[doc = concat!("Instead of the profile's [`Settings::", stringify!($name), "`].")]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )+
        }

        impl Settings {
            /// The names of all settings, in the order of the documentation.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// A setting's value as TOML writes it; `None` for an unknown setting.
            #[must_use]
            pub fn value(&self, name: &str) -> Option<String> {
                match name {
                    $(stringify!($name) => Some(self.$name.toml()),)+
                    _ => None,
                }
            }

            /// The least and the greatest value of a setting as TOML writes them. `None` for an unknown setting, and
            /// for one whose values are bounded by their type or by other settings alone.
            #[must_use]
            pub fn range(name: &str) -> Option<(String, String)> {
                $($(if name == stringify!($name) {
                    let range: RangeInclusive<$type> = $range;
                    return Some((range.start().toml(), range.end().toml()));
                })?)+
                None
            }

            /// A sentence for each value out of its range, beginning with the setting's name. [`Settings::check`]
            /// finds these and more.
            #[must_use]
            pub fn range_problems(&self) -> Vec<String> {
                let mut problems = Vec::new();
                $($({
                    let range: RangeInclusive<$type> = $range;
                    if !range.contains(&self.$name) {
                        problems.push(format!(
                            "{} must be from {} to {}, not {}",
                            stringify!($name),
                            range.start(),
                            range.end(),
                            self.$name
                        ));
                    }
                })?)+
                problems
            }

            /// Every setting's name with its value as TOML writes it.
            #[must_use]
            pub fn values(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($name), self.$name.toml())),+]
            }
        }

        impl Overrides {
            /// Puts the changes into `settings`. The profile is not looked at.
            pub fn apply(&self, settings: &mut Settings) {
                $(if let Some(value) = self.$name {
                    settings.$name = value;
                })+
            }

            /// These changes, and those of `below` for settings that these leave open: flags, then
            /// the file.
            #[must_use]
            pub fn or(&self, below: &Self) -> Self {
                Self {
                    profile: self.profile.or(below.profile),
                    $($name: self.$name.or(below.$name),)+
                }
            }

            /// The changes that make `to` of the settings of `profile`.
            #[must_use]
            #[allow(clippy::float_cmp, reason = "the same literal or another one")]
            pub fn between(profile: Profile, to: &Settings) -> Self {
                let from = Settings::of(profile);
                Self {
                    profile: Some(profile),
                    $($name: (from.$name != to.$name).then_some(to.$name),)+
                }
            }

            /// Changes one setting by its name, or the `profile`: for flags like `--quic
            /// initial_rtt_ms=1500`.
            ///
            /// # Errors
            ///
            /// If the setting is unknown, or the value is not of its type. The text names the right
            /// form. [`Settings::check`] checks bounds.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
                match name {
                    "profile" => self.profile = Some(value.parse()?),
                    $(stringify!($name) => self.$name = Some(read(name, value)?),)+
                    _ => {
                        return Err(format!(
                            "unknown QUIC setting `{}`; there are profile, {}",
                            name.escape_debug(),
                            Settings::NAMES.join(", ")
                        ));
                    }
                }
                Ok(())
            }
        }
    };
}

fn read<V: Value>(name: &str, value: &str) -> Result<V, String> {
    V::parse(value).ok_or_else(|| {
        format!(
            "{name} must be {}, not `{}`",
            V::EXPECTED,
            value.escape_debug()
        )
    })
}

settings! {
    /// Round trip assumed before the first measurement, in milliseconds, 1 to 60,000. Default: 333
    /// (RFC 9002, section 6.2.2); 1,500 for `nb-iot`.
    ///
    /// The first probe leaves after three times this. If it is less than the real round trip, every
    /// packet of the handshake is sent more than once. At a real round trip of 2 s a client sent
    /// six Initial datagrams of 1,200 bytes with 100 ms here. It sent four with 333 ms, and two
    /// with 1,500 ms. If it is more, a lost first packet is noticed later.
    initial_rtt_ms: u32 = 1..=60_000,

    /// Longest handshake, in milliseconds: at least three times `initial_rtt_ms`, at most an hour.
    /// Default: 30,000. The driver keeps this time, not the library.
    handshake_timeout_ms: u32 = 1..=3_600_000,

    /// Time without an arriving packet after which a connection is dropped without a word, in milliseconds; 0 is never.
    /// The smaller value of the two ends counts (RFC 9000, section 10.1). Default: 3,600,000 (1 h).
    ///
    /// Short ones make sleeping devices shake hands again; long ones keep the state of devices that
    /// have gone. With 0 only the message protocol's keep alive finds those.
    idle_timeout_ms: u64 = 0..=MAX_TIME_MS,

    /// Time without traffic after which a PING is sent, in milliseconds; 0 is never, the default.
    /// Must be less than `idle_timeout_ms`. It keeps network address translators and firewalls from
    /// forgetting the device, and wakes its radio each time. One end is enough. Connections survive
    /// a forgotten binding if the device speaks first.
    keep_alive_interval_ms: u64 = 0..=MAX_TIME_MS,

    /// Whether the peer is asked to acknowledge as the next two settings say
    /// (draft-ietf-quic-ack-frequency). Peers without the extension go on as RFC 9000 says: every
    /// second packet, 25 ms at most. Default: no.
    ack_frequency: bool,

    /// Packets that the peer may leave unacknowledged, 0 to 1,000: with 9, every tenth is
    /// acknowledged at once. Default: 1 (RFC 9000, section 13.2.2). Many save the peer's uplink and
    /// battery, and make the sender's bursts longer and its loss detection slower.
    ack_eliciting_threshold_packets: u32 = 0..=1_000,

    /// Longest delay of the peer's acknowledgements, in milliseconds, 1 to 16,383. Default: 25; the
    /// profiles with `ack_frequency` have half their typical round trip.
    ///
    /// The library (quinn-proto 0.11.19) limits the requested delay to the measured round trip or
    /// 25 ms, whichever is more. It raises it to the peer's minimum. It never sets the transport
    /// parameter `max_ack_delay`. So an end acknowledges later than 25 ms only if its *peer*
    /// requested it. With both ends on the same profile, both do.
    max_ack_delay_ms: u32 = 1..=MAX_ACK_DELAY_MS,

    /// Share of the granted streams, in percent, 1 to 100, after whose use the peer is granted more
    /// (MAX_STREAMS). Default: 50. Small values send many frames; with 100 the peer waits a round
    /// trip each time. The driver does this: the library alone would announce every eighth part.
    stream_credit_watermark_percent: u8 = 1..=100,

    /// Bidirectional streams that a client may have open at once, at first. Default: 5, the number
    /// that common clients open by themselves. Each costs the server about 50 bytes per connection.
    /// Server only.
    initial_bidirectional_streams: u32 = 0..=MAX_STREAMS,

    /// Limit of that number's growth, which doubles as the client uses them; at most 65,535.
    /// Default: 256.
    max_bidirectional_streams: u32 = 0..=MAX_STREAMS,

    /// Unidirectional streams that a client may have open at once, at first. Default: 5: three that
    /// HTTP/3 needs (RFC 9114, section 6.2), and some of WebTransport. Server only.
    initial_unidirectional_streams: u32 = 0..=MAX_STREAMS,

    /// Limit of that number's growth; at most 65,535. Default: 256.
    max_unidirectional_streams: u32 = 0..=MAX_STREAMS,

    /// Congestion window at the start, in bytes, 2,400 to 1,000,000. Default: 12,000 (ten datagrams;
    /// RFC 9002, section 7.2). A server needs 4,800 more than it lets answer early data, which makes
    /// 10,800 with the usual 6,000.
    initial_window_bytes: u64 = 2 * u64::from(MIN_PAYLOAD_BYTES)..=1_000_000,

    /// Algorithm of the congestion window. Default: `cubic`. `bbr` does not take random loss for
    /// congestion, but the library calls its version experimental.
    congestion: CongestionControl,

    /// Packets by which one may be overtaken before it counts as lost, 3 to 1,000. Default: 3
    /// (RFC 9002, section 6.1.1). More on paths that reorder.
    packet_threshold: u32 = 3..=1_000,

    /// Round trips after which an overtaken packet counts as lost, 1 to 10. Default: 1.125 (RFC 9002,
    /// section 6.1.2). More on paths whose delay jumps.
    time_threshold: f64 = 1.0..=10.0,

    /// Search for datagrams larger than `initial_mtu_bytes` (RFC 8899). Default: no. It costs about
    /// 11 kB of padded probes per connection. It saves 28 bytes of header and a cipher tag per
    /// 1,200, so only bulk transfers gain.
    mtu_discovery: bool,

    /// Largest UDP payload that the search tries, in bytes, up to 65,527. Default: 1,452 (Ethernet
    /// with IPv6).
    mtu_upper_bound_bytes: u16 = MIN_PAYLOAD_BYTES..=MAX_PAYLOAD_BYTES,

    /// Time between two searches, in milliseconds. Default: 600,000.
    mtu_search_interval_ms: u64 = 1_000..=MAX_TIME_MS,

    /// UDP payload without a search, in bytes. At least 1,200, which is the default, and which
    /// every path of QUIC carries (RFC 9000, section 14). If the path carries less, losses show it.
    initial_mtu_bytes: u16 = MIN_PAYLOAD_BYTES..=MAX_PAYLOAD_BYTES,

    /// Largest UDP payload accepted from the peer, in bytes, 1,200 to 65,527. Default: 1,472
    /// (Ethernet). Sets the size of the receive buffers.
    max_received_payload_bytes: u16 = MIN_PAYLOAD_BYTES..=MAX_PAYLOAD_BYTES,

    /// Bytes that the peer may send on a stream ahead of our reading, 1,024 to 1 GiB. Also the limit
    /// for early data on a stream. Default: 131,072. Less than a path's rate times its round trip
    /// slows bulk down to one window per round trip.
    stream_receive_window_bytes: u32 = 1_024..=MAX_WINDOW_BYTES,

    /// The same for a whole connection, at least as much as for a stream. Default: 262,144. A peer
    /// can make this end keep as much.
    receive_window_bytes: u32 = 1_024..=MAX_WINDOW_BYTES,

    /// Bytes per connection taken over from the application until they are acknowledged, 1,024 to
    /// 1 GiB. Default: 262,144.
    send_window_bytes: u32 = 1_024..=MAX_WINDOW_BYTES,

    /// Buffer for unreliable datagrams (RFC 9221), each way, in bytes; 0 refuses them. Default:
    /// 65,536. When it is full, the oldest are dropped.
    datagram_buffer_bytes: u32 = 0..=MAX_WINDOW_BYTES,

    /// Handshake bytes kept that arrived out of order, 4,096 (RFC 9000, section 7.5) to 1 MiB.
    /// Default: 16,384. A limit, not a reservation.
    crypto_buffer_bytes: u32 = 4_096..=1 << 20,

    /// Group of the key share that a client sends first, and a server likes most. Default: `x25519`.
    /// `x25519mlkem768` needs a TLS library that has it.
    key_share: KeyShare,

    /// Cipher put first. Default: `auto`, which asks this processor.
    cipher: Cipher,

    /// Session tickets sent per connection, 0 to 16; each is good for one resumption and takes about
    /// 90 bytes. Default: 1. 0 turns resumption and early data off. Server only.
    tickets: u8 = 0..=16,

    /// Address validation tokens (NEW_TOKEN) sent per connection, 0 to 16. Default: 0. Each spares a
    /// Retry under load, and costs about 90 bytes. Server only.
    address_tokens: u8 = 0..=16,

    /// Lifetime of the memory of a path's round trip and congestion window, for a device that
    /// returns with a ticket (RFC 9959). In milliseconds, up to 7 days; 0 forgets them at once.
    /// Default: 3,600,000 (1 h).
    path_memory_lifetime_ms: u64 = 0..=MAX_PATH_MEMORY_MS,
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(Profile::Default)
    }
}

impl Overrides {
    /// The profile with the changes on top.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::of(self.profile.unwrap_or_default());
        self.apply(&mut settings);
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration that has other fields beside the settings.
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        early_data: bool,
        #[serde(flatten)]
        settings: Overrides,
    }

    #[test]
    fn overrides_stand_on_a_profile_and_beside_other_fields() {
        let table: Table = toml::from_str(
            "early_data = true\nprofile = \"nb-iot\"\ninitial_rtt_ms = 1_800\ncipher = \"chacha20\"",
        )
        .unwrap();
        assert!(table.early_data);
        let expected = Settings {
            initial_rtt_ms: 1_800,
            cipher: Cipher::ChaCha20,
            ..Settings::of(Profile::NbIot)
        };
        assert_eq!(table.settings.settings(), expected);

        let error = toml::from_str::<Table>("early_data = true\ninitial_rtt = 1").unwrap_err();
        assert!(error.message().contains("initial_rtt"), "{error}");
        let error = toml::from_str::<Overrides>("profile = \"gsm\"").unwrap_err();
        assert!(
            error.message().contains("choices are default, lan"),
            "{error}"
        );
        let error = toml::from_str::<Settings>("ticket = 1").unwrap_err();
        assert!(
            error.message().contains("unknown field `ticket`"),
            "{error}"
        );
    }

    #[test]
    fn flags_go_over_the_file() {
        let file: Overrides =
            toml::from_str("profile = \"lan\"\ntickets = 4\naddress_tokens = 2").unwrap();
        let mut flags = Overrides::default();
        flags.set("tickets", "0").unwrap();
        flags.set("time_threshold", "1.25").unwrap();
        let settings = flags.or(&file).settings();
        let expected = Settings {
            tickets: 0,
            address_tokens: 2,
            time_threshold: 1.25,
            ..Settings::of(Profile::Lan)
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn every_setting_can_be_set_by_its_name_and_printed() {
        let wanted = Settings::of(Profile::Sleepy);
        let mut overrides = Overrides::default();
        for (name, value) in wanted.values() {
            overrides.set(name, value.trim_matches('"')).unwrap();
            assert_eq!(wanted.value(name), Some(value));
        }
        assert_eq!(overrides.settings(), wanted);
        assert_eq!(wanted.value("profile"), None);

        let text = toml::to_string(&wanted).unwrap();
        assert_eq!(toml::from_str::<Settings>(&text).unwrap(), wanted);
        let names: Vec<_> = text.lines().filter_map(|l| l.split(' ').next()).collect();
        assert_eq!(names, Settings::NAMES);
    }

    #[test]
    fn wrong_flags_are_answered_with_what_would_be_right() {
        let mut overrides = Overrides::default();
        let mut refused = |name, value| overrides.set(name, value).unwrap_err();
        assert_eq!(
            refused("initial_rtt_ms", "1.5s"),
            "initial_rtt_ms must be a whole number (u32), not `1.5s`"
        );
        assert_eq!(
            refused("congestion", "reno"),
            "congestion must be cubic, newreno or bbr, not `reno`"
        );
        assert_eq!(
            refused("ack_frequency", "yes"),
            "ack_frequency must be true or false, not `yes`"
        );
        assert!(refused("time_threshold", "inf").contains("such as 1.125"));
        assert!(refused("mtu", "1280").contains("there are profile, initial_rtt_ms"));
        assert!(refused("profile", "gsm").contains("choices are"));
    }
}
