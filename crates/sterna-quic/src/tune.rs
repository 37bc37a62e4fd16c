//! Settings for a described path, with the reason for each.

mod choices;

use std::fmt::Write as _;

use serde::Serialize;

use crate::profile::Profile;
use crate::settings::{Overrides, Settings};
use choices::Choices;

/// Smallest datagram of QUIC (RFC 9000, section 14).
const MIN_PAYLOAD_BYTES: u16 = 1_200;
/// Headers of IPv6 and UDP, and of IPv4 and UDP.
const IPV6_HEADER_BYTES: u16 = 48;
const IPV4_HEADER_BYTES: u16 = 28;
/// From this interval between messages on, a device is taken for one that sleeps between them.
const SLEEPS_FROM_MS: u64 = 10 * 60 * 1_000;
/// Columns of the printed comments.
const COLUMNS: usize = 100;

/// Description of a path and of its traffic.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathDescription {
    /// Round trip without queues, in microseconds; 1 to 60,000,000.
    pub rtt_us: u32,
    /// Rate towards the device, in bits per second; 1,000 to 100,000,000,000.
    pub rate_down_bits_per_s: u64,
    /// Rate from the device.
    pub rate_up_bits_per_s: u64,
    /// Datagrams lost at random each way, in percent; 0 to 50.
    pub loss_percent: f64,
    /// Largest IP packet that passes, in bytes; at least 1,228. `None` if unknown.
    pub mtu_bytes: Option<u16>,
    /// Size of a typical message, if known, in bytes.
    pub message_bytes: Option<u32>,
    /// Time between two messages of a device, if known, in milliseconds.
    pub message_interval_ms: Option<u64>,
}

/// The value of one setting, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reason {
    /// The setting.
    pub name: &'static str,
    /// Value of the setting, as TOML writes it.
    pub value: String,
    /// Why, in a sentence.
    pub because: String,
    /// Source of the advice.
    pub source: &'static str,
}

/// Settings for a path.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The nearest profile; `settings` has the differences.
    pub profile: Profile,
    /// All settings. They pass [`Settings::check`].
    pub settings: Settings,
    /// The reasons, one for each setting in their order.
    pub reasons: Vec<Reason>,
    /// Further remarks about the path.
    pub notes: Vec<String>,
}

impl PathDescription {
    /// Bytes under way at full rate, in the faster direction.
    #[must_use]
    pub fn bandwidth_delay_bytes(&self) -> u64 {
        let rate = self.rate_down_bits_per_s.max(self.rate_up_bits_per_s);
        (u128::from(rate) * u128::from(self.rtt_us) / 8_000_000) as u64
    }

    /// Checks the description.
    ///
    /// # Errors
    ///
    /// A sentence that names the value out of bounds.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=60_000_000).contains(&self.rtt_us) {
            return Err("the round trip must be from 1us to 60s".to_owned());
        }
        for rate in [self.rate_down_bits_per_s, self.rate_up_bits_per_s] {
            if !(1_000..=100_000_000_000).contains(&rate) {
                return Err("the rate must be from 1kbit to 100gbit".to_owned());
            }
        }
        if !(0.0..=50.0).contains(&self.loss_percent) {
            return Err("the loss must be from 0% to 50%".to_owned());
        }
        let least = MIN_PAYLOAD_BYTES + IPV4_HEADER_BYTES;
        if self.mtu_bytes.is_some_and(|mtu| mtu < least) {
            return Err(format!(
                "the MTU must be at least {least} bytes: QUIC sends no datagram below 1,200 bytes \
                 of payload in its handshake (RFC 9000, section 14)"
            ));
        }
        Ok(())
    }

    /// Payload of the largest datagram that is known to pass.
    fn payload_bytes(&self) -> u16 {
        match self.mtu_bytes {
            None => MIN_PAYLOAD_BYTES,
            Some(mtu) if mtu < MIN_PAYLOAD_BYTES + IPV6_HEADER_BYTES => mtu - IPV4_HEADER_BYTES,
            Some(mtu) => mtu - IPV6_HEADER_BYTES,
        }
        // Beyond Ethernet's size, sockets and tunnels have their own ideas.
        .clamp(MIN_PAYLOAD_BYTES, 1_452)
    }

    /// Time of some bytes on the link, in microseconds.
    const fn link_us(bytes: u64, bits_per_s: u64) -> u64 {
        bytes * 8_000_000 / bits_per_s
    }

    /// Rate of a window-based sender at random loss, in bits per second. It follows the square-root
    /// law of Mathis and others (1997), with one acknowledgement per packet.
    fn loss_limited_bits_per_s(&self, payload_bytes: u16) -> Option<f64> {
        let loss = self.loss_percent / 100.0;
        (loss > 0.0).then(|| {
            let packets = 1.22 / loss.sqrt();
            packets * f64::from(payload_bytes) * 8.0 * 1e6 / f64::from(self.rtt_us)
        })
    }

    /// Rate of the device's messages, in bits per second.
    fn offered_bits_per_s(&self) -> Option<f64> {
        let (bytes, interval_ms) = self.message_bytes.zip(self.message_interval_ms)?;
        Some(f64::from(bytes) * 8_000.0 / interval_ms.max(1) as f64)
    }

    fn profile(&self) -> Profile {
        let rate = self.rate_down_bits_per_s.min(self.rate_up_bits_per_s);
        let sleeps = self
            .message_interval_ms
            .is_some_and(|ms| ms >= SLEEPS_FROM_MS);
        match self.rtt_us {
            1_000_000.. if sleeps => Profile::Sleepy,
            1_000_000.. => Profile::NbIot,
            _ if rate < 100_000 && sleeps => Profile::Sleepy,
            _ if rate < 100_000 => Profile::NbIot,
            400_000.. => Profile::Satellite,
            30_000.. => Profile::Cellular,
            ..10_000 if rate >= 10_000_000 && self.loss_percent < 0.5 => Profile::Lan,
            _ => Profile::Default,
        }
    }
}

/// Picks every setting for a path.
///
/// # Errors
///
/// The faults that [`PathDescription::check`] finds.
pub fn advise(path: &PathDescription) -> Result<Advice, String> {
    path.check()?;
    let profile = path.profile();
    Ok(Choices::new(path, profile).all())
}

impl Advice {
    /// The advice as a table for the broker's configuration: `[quic]`, with every setting below its
    /// reason.
    #[must_use]
    pub fn toml(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            comment(&mut text, note);
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "[quic]\nprofile = \"{}\"", self.profile);
        for reason in &self.reasons {
            text.push('\n');
            let mut sentence = reason.because.clone();
            if let Some(first) = sentence.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            comment(&mut text, &format!("{sentence}. [{}]", reason.source));
            let _ = writeln!(text, "{} = {}", reason.name, reason.value);
        }
        text
    }

    /// The differences from the profile.
    #[must_use]
    pub fn overrides(&self) -> Overrides {
        Overrides::between(self.profile, &self.settings)
    }
}

/// Appends a comment, broken into lines.
fn comment(text: &mut String, sentence: &str) {
    let mut column = COLUMNS;
    for word in sentence.split(' ') {
        if column + 1 + word.len() > COLUMNS {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push('#');
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + word.len();
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;
    use crate::choice::{CongestionControl, KeyShare};

    #[derive(Deserialize)]
    struct File {
        quic: Overrides,
    }

    const NB_IOT: PathDescription = PathDescription {
        rtt_us: 2_000_000,
        rate_down_bits_per_s: 127_000,
        rate_up_bits_per_s: 127_000,
        loss_percent: 2.0,
        mtu_bytes: Some(1_280),
        message_bytes: None,
        message_interval_ms: None,
    };

    fn advice(path: PathDescription) -> Advice {
        advise(&path).unwrap()
    }

    #[test]
    fn the_path_of_the_issue_gets_the_values_of_the_paper() {
        let advice = advice(NB_IOT);
        assert_eq!(advice.profile, Profile::NbIot);
        let settings = &advice.settings;
        assert!((1_500..1_700).contains(&settings.initial_rtt_ms));
        assert_eq!(settings.max_ack_delay_ms, 1_000);
        assert!(settings.ack_frequency);
        assert_eq!(settings.stream_credit_watermark_percent, 50);
        assert_eq!(settings.initial_mtu_bytes, 1_232);
        assert!(!settings.mtu_discovery);
        assert_eq!(settings.initial_window_bytes, 12_320);
        assert_eq!(settings.congestion, CongestionControl::Cubic);
        assert_eq!(settings.key_share, KeyShare::X25519);
    }

    #[test]
    fn kinds_of_paths_are_recognised() {
        let kind = |rtt_us, rate, interval| {
            let path = PathDescription {
                rtt_us,
                rate_down_bits_per_s: rate,
                rate_up_bits_per_s: rate,
                loss_percent: 0.0,
                mtu_bytes: None,
                message_bytes: None,
                message_interval_ms: interval,
            };
            advice(path).profile
        };
        assert_eq!(kind(1_000, 1_000_000_000, None), Profile::Lan);
        assert_eq!(kind(25_000, 20_000_000, None), Profile::Default);
        assert_eq!(kind(100_000, 10_000_000, None), Profile::Cellular);
        assert_eq!(kind(600_000, 1_500_000, None), Profile::Satellite);
        assert_eq!(kind(2_000_000, 127_000, None), Profile::NbIot);
        assert_eq!(kind(2_000_000, 127_000, Some(3_600_000)), Profile::Sleepy);
        assert_eq!(kind(50_000, 32_000, None), Profile::NbIot);
    }

    #[test]
    fn bulk_against_random_loss_gets_bbr_and_messages_do_not() {
        let satellite = PathDescription {
            rtt_us: 600_000,
            rate_down_bits_per_s: 1_500_000,
            rate_up_bits_per_s: 1_500_000,
            loss_percent: 5.0,
            message_bytes: Some(100),
            message_interval_ms: Some(1_000),
            ..NB_IOT
        };
        assert_eq!(
            advice(satellite).settings.congestion,
            CongestionControl::Cubic
        );
        let camera = PathDescription {
            message_bytes: Some(100_000),
            ..satellite
        };
        assert_eq!(advice(camera).settings.congestion, CongestionControl::Bbr);
    }

    #[test]
    fn impossible_paths_are_refused_by_name() {
        let refused = |path: PathDescription| advise(&path).unwrap_err();
        assert!(
            refused(PathDescription {
                rtt_us: 0,
                ..NB_IOT
            })
            .contains("round trip")
        );
        let slow = PathDescription {
            rate_up_bits_per_s: 999,
            ..NB_IOT
        };
        assert!(refused(slow).contains("rate"));
        let lossy = PathDescription {
            loss_percent: f64::NAN,
            ..NB_IOT
        };
        assert!(refused(lossy).contains("loss"));
        let narrow = PathDescription {
            mtu_bytes: Some(1_227),
            ..NB_IOT
        };
        assert!(refused(narrow).contains("at least 1228 bytes"));
    }

    #[test]
    fn comments_are_broken_into_lines() {
        let mut text = String::new();
        comment(&mut text, &"word ".repeat(50));
        assert!(text.lines().count() > 1);
        assert!(
            text.lines()
                .all(|line| line.starts_with("# ") && line.len() <= COLUMNS)
        );
        assert!(text.ends_with('\n'));
    }

    proptest! {
        #[test]
        fn advice_is_sound_complete_and_comes_back_from_its_text(
            rtt_us in 1..=60_000_000_u32,
            down_kbit in 1..=100_000_000_u64,
            up_kbit in 1..=100_000_000_u64,
            loss_percent in 0.0..=50.0,
            mtu_bytes in prop::option::of(1_228..=9_000_u16),
            message_bytes in prop::option::of(any::<u32>()),
            message_interval_ms in prop::option::of(any::<u64>()),
        ) {
            let path = PathDescription {
                rtt_us,
                rate_down_bits_per_s: down_kbit * 1_000,
                rate_up_bits_per_s: up_kbit * 1_000,
                loss_percent,
                mtu_bytes,
                message_bytes,
                message_interval_ms,
            };
            let advice = advise(&path).unwrap();
            prop_assert_eq!(advice.settings.check(), Ok(()));
            prop_assert!(advice.settings.initial_window_bytes >= 10_800);
            let names: Vec<_> = advice.reasons.iter().map(|reason| reason.name).collect();
            prop_assert_eq!(names.as_slice(), Settings::NAMES);
            for (reason, (name, value)) in advice.reasons.iter().zip(advice.settings.values()) {
                prop_assert_eq!(&reason.value, &value, "{} changed after its reason", name);
            }
            let file: File = toml::from_str(&advice.toml()).unwrap();
            prop_assert_eq!(&file.quic.settings(), &advice.settings);
            prop_assert_eq!(advice.overrides().settings(), advice.settings);
        }
    }
}
