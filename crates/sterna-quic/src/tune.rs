//! Settings for a path that somebody describes, with the reason for each.

use std::fmt::Write as _;

use serde::Serialize;

use crate::choice::{Cipher, CongestionControl, KeyShare};
use crate::profile::Profile;
use crate::settings::{Overrides, Settings};

/// Smallest datagram of QUIC (RFC 9000, section 14).
const MIN_PAYLOAD_BYTES: u16 = 1_200;
/// Headers of IPv6 and UDP, and of IPv4 and UDP.
const IPV6_HEADER_BYTES: u16 = 48;
const IPV4_HEADER_BYTES: u16 = 28;
/// Below this, the paper on AMQP found QUIC slower than TCP.
const TCP_FASTER_BELOW_BITS_PER_S: u64 = 32_000;
/// From this interval between messages on, a device is taken for one that sleeps between them.
const SLEEPS_FROM_MS: u64 = 10 * 60 * 1_000;
/// Bytes of a full handshake in both directions, as measured (`docs/tuning.md`).
const HANDSHAKE_UP_BYTES: u64 = 2_626;
const HANDSHAKE_DOWN_BYTES: u64 = 1_503;
/// Columns of the printed comments.
const COLUMNS: usize = 100;

/// What is known of a path and of what goes over it.
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
    /// Largest IP packet that passes, in bytes; at least 1,228. `None` when nobody knows.
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
    /// Its value, as TOML writes it.
    pub value: String,
    /// Why, in a sentence.
    pub because: String,
    /// Where that comes from.
    pub source: &'static str,
}

/// Settings for a path.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The profile that comes nearest; what differs from it is in `settings`.
    pub profile: Profile,
    /// All settings. They pass [`Settings::check`].
    pub settings: Settings,
    /// The reasons, one for each setting in their order.
    pub reasons: Vec<Reason>,
    /// What else there is to know about the path.
    pub notes: Vec<String>,
}

impl PathDescription {
    /// Bytes under way at full rate, in the faster direction.
    #[must_use]
    pub fn bandwidth_delay_bytes(&self) -> u64 {
        let rate = self.rate_down_bits_per_s.max(self.rate_up_bits_per_s);
        (u128::from(rate) * u128::from(self.rtt_us) / 8_000_000) as u64
    }

    /// Checks what was described.
    ///
    /// # Errors
    ///
    /// A sentence that names what is out of bounds.
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

    /// What a window-based sender reaches against random loss, in bits per second: the square-root
    /// law of Mathis and others (1997), with one acknowledgement per packet.
    fn loss_limited_bits_per_s(&self, payload_bytes: u16) -> Option<f64> {
        let loss = self.loss_percent / 100.0;
        (loss > 0.0).then(|| {
            let packets = 1.22 / loss.sqrt();
            packets * f64::from(payload_bytes) * 8.0 * 1e6 / f64::from(self.rtt_us)
        })
    }

    /// What the device's messages need, in bits per second.
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
/// What [`PathDescription::check`] finds.
pub fn advise(path: &PathDescription) -> Result<Advice, String> {
    path.check()?;
    let profile = path.profile();
    let mut work = Work {
        path,
        settings: Settings::of(profile),
        reasons: Vec::new(),
        notes: Vec::new(),
    };
    work.timers();
    work.acknowledgements();
    work.streams();
    work.congestion();
    work.datagram_size();
    work.buffers();
    work.security();
    work.memory();
    work.expectations();
    Ok(Advice {
        profile,
        settings: work.settings,
        reasons: work.reasons,
        notes: work.notes,
    })
}

/// Settings in the making.
struct Work<'a> {
    path: &'a PathDescription,
    settings: Settings,
    reasons: Vec<Reason>,
    notes: Vec<String>,
}

impl Work<'_> {
    fn because(&mut self, name: &'static str, because: impl Into<String>, source: &'static str) {
        let value = self.settings.value(name).unwrap_or_default();
        self.reasons.push(Reason {
            name,
            value,
            because: because.into(),
            source,
        });
    }

    fn timers(&mut self) {
        // The round trip of the handshake's padded datagrams, which take their time on a slow link.
        let path = self.path;
        let up_us = PathDescription::link_us(MIN_PAYLOAD_BYTES.into(), path.rate_up_bits_per_s);
        let down_us = PathDescription::link_us(MIN_PAYLOAD_BYTES.into(), path.rate_down_bits_per_s);
        let padded_us = u64::from(path.rtt_us) + up_us + down_us;
        let initial_ms = (padded_us * 3 / 4).div_ceil(1_000).clamp(25, 60_000) as u32;
        self.settings.initial_rtt_ms = initial_ms;
        self.because(
            "initial_rtt_ms",
            format!(
                "three quarters of the {} ms that a datagram of 1,200 bytes and its answer take \
                 here; the first probe leaves after three times the value, so {} ms after the \
                 packet, when the answer should have come",
                padded_us / 1_000,
                3 * initial_ms
            ),
            "RFC 9002, section 6.2.2; HTTP/3 paper, section V: 1.5 s at a round trip of 2 s",
        );

        // Both flights have to pass; the wait doubles with every try.
        let passes = 1.0 - path.loss_percent / 100.0;
        let fails = passes.mul_add(-passes, 1.0);
        let tries = (2..=6)
            .find(|tries| fails.powi(*tries) <= 1e-4)
            .unwrap_or(6);
        let waits_ms = u64::from(3 * initial_ms) * ((1 << tries) - 1);
        let whole_ms = (waits_ms + 2 * padded_us / 1_000).clamp(10_000, 600_000);
        // In whole seconds, which is precise enough.
        self.settings.handshake_timeout_ms = (whole_ms.div_ceil(1_000) * 1_000) as u32;
        let failing_percent = fails.powi(tries) * 100.0;
        self.because(
            "handshake_timeout_ms",
            format!(
                "room for {tries} lost tries, each waiting twice as long as the one before: with \
                 {}% loss each way, {failing_percent:.3}% of the handshakes fail then",
                path.loss_percent
            ),
            "RFC 9002, section 6.2.1 (back-off); HTTP/3 paper, section V (longer handshake timers)",
        );

        let sleepy = Settings::of(Profile::Sleepy).idle_timeout_ms;
        if self.settings.idle_timeout_ms == sleepy {
            self.because(
                "idle_timeout_ms",
                "never: the device sleeps longer than any timer should guess, and a new handshake \
                 costs more energy than the state does memory",
                "RFC 9000, section 10.1; RFC 9006, section 5.3",
            );
        } else {
            if let Some(interval_ms) = path.message_interval_ms {
                let least_ms = interval_ms.saturating_mul(4).min(366 * 24 * 3_600_000);
                self.settings.idle_timeout_ms = self.settings.idle_timeout_ms.max(least_ms);
            }
            self.because(
                "idle_timeout_ms",
                "long enough that messages keep the connection open by themselves; a new \
                 handshake costs more than what the broker keeps meanwhile",
                "RFC 9308, section 3.2; RFC 9006, section 5.3",
            );
        }
        self.because(
            "keep_alive_interval_ms",
            "no packets for their own sake: the connection survives that a translator forgets it, \
             since the device's next packet is taken from any address",
            "RFC 9000, sections 9 and 10.1.2; RFC 9308, section 3.2",
        );
    }

    fn acknowledgements(&mut self) {
        let half_ms = (self.path.rtt_us / 2_000).clamp(25, 16_383);
        let slow = self.path.rtt_us >= 50_000;
        self.settings.ack_frequency = slow;
        let source = "draft-ietf-quic-ack-frequency; RFC 9308, section 7; HTTP/3 paper, section V: 0.5 x RTT";
        if slow {
            self.settings.ack_eliciting_threshold_packets = 9;
            self.settings.max_ack_delay_ms = half_ms;
            self.because(
                "ack_frequency",
                "acknowledgements cost the device's radio as much as data; a peer without the \
                 extension ignores it",
                source,
            );
            self.because(
                "ack_eliciting_threshold_packets",
                "every tenth packet: measured at a round trip of 1 s, 50 messages then take 11 \
                 datagrams of acknowledgements and not 50",
                source,
            );
            self.because(
                "max_ack_delay_ms",
                "half a round trip: two acknowledgements for each, which is what loss detection \
                 and congestion control need",
                source,
            );
        } else {
            let usual = Settings::default();
            self.settings.ack_eliciting_threshold_packets = usual.ack_eliciting_threshold_packets;
            self.settings.max_ack_delay_ms = usual.max_ack_delay_ms;
            self.because(
                "ack_frequency",
                "half of this round trip is less than the 25 ms that receivers wait anyway",
                "RFC 9000, section 13.2.1",
            );
            self.because(
                "ack_eliciting_threshold_packets",
                "not asked for; every second packet",
                "RFC 9000, section 13.2.2",
            );
            self.because(
                "max_ack_delay_ms",
                "not asked for; the protocol's own value",
                "RFC 9000, section 18.2",
            );
        }
    }

    fn streams(&mut self) {
        self.settings.stream_credit_watermark_percent = 50;
        self.because(
            "stream_credit_watermark_percent",
            "one MAX_STREAMS for each half of the streams, and half of them left for the round \
             trip until it arrives",
            "HTTP/3 paper, section V",
        );
        let initial = "what clients open by themselves; more is granted as it is used, and every \
                       stream permitted costs the server 50 bytes per connection";
        self.because(
            "initial_bidirectional_streams",
            initial,
            "measured on quinn-proto 0.11",
        );
        let most = "a limit on what one client can make the server keep";
        self.because("max_bidirectional_streams", most, "RFC 9000, section 4.6");
        self.because(
            "initial_unidirectional_streams",
            initial,
            "measured on quinn-proto 0.11",
        );
        self.because("max_unidirectional_streams", most, "RFC 9000, section 4.6");
    }

    fn congestion(&mut self) {
        let path = self.path;
        let payload = path.payload_bytes();
        let ten = u64::from(payload) * 10;
        let bdp = path.bandwidth_delay_bytes();
        if bdp >= ten {
            self.settings.initial_window_bytes = ten;
            self.because(
                "initial_window_bytes",
                format!(
                    "ten datagrams; the path holds {} at a time",
                    bdp / u64::from(payload)
                ),
                "RFC 9002, section 7.2",
            );
        } else {
            let four = u64::from(payload) * 4;
            self.settings.initial_window_bytes = bdp.max(four);
            self.because(
                "initial_window_bytes",
                "what the path holds at a time, four datagrams at least: ten would wait in \
                 buffers that small devices and radios don't have",
                "RFC 9006, section 4.3.3; RFC 5681, section 3.1",
            );
        }

        let rate = path.rate_down_bits_per_s.max(path.rate_up_bits_per_s) as f64;
        let limited = path.loss_limited_bits_per_s(payload);
        let offered = path.offered_bits_per_s();
        let starved = limited.is_some_and(|limited| limited < rate / 2.0);
        let bulk = offered.is_some_and(|offered| limited.is_some_and(|l| offered > l));
        if starved && bulk {
            self.settings.congestion = CongestionControl::Bbr;
            self.because(
                "congestion",
                "the messages need more than a loss-based controller reaches against this random \
                 loss; the library calls its BBR experimental, so measure before relying on it",
                "square-root law (Mathis and others, 1997); RFC 9743 on new controllers",
            );
        } else {
            self.settings.congestion = CongestionControl::Cubic;
            self.because(
                "congestion",
                "the standard's controller, as TCP has it, and fair to it",
                "RFC 9438",
            );
        }
        if let (true, Some(limited)) = (starved, limited) {
            self.notes.push(format!(
                "Against {}% random loss a loss-based congestion controller reaches about \
                 {:.0} kbit/s of the {:.0} kbit/s. That is enough for messages{}.",
                path.loss_percent,
                limited / 1_000.0,
                rate / 1_000.0,
                if bulk {
                    " that are smaller or rarer than yours"
                } else {
                    "; for bulk transfers try `congestion = \"bbr\"`"
                }
            ));
        }
        self.settings.packet_threshold = 3;
        self.because(
            "packet_threshold",
            "the standard's value: links of one hop don't reorder, and fewer would mistake \
             reordering for loss",
            "RFC 9002, section 6.1.1",
        );
        self.settings.time_threshold = 1.125;
        self.because(
            "time_threshold",
            "the standard's value: an eighth of a round trip of patience",
            "RFC 9002, section 6.1.2",
        );
    }

    fn datagram_size(&mut self) {
        let path = self.path;
        let payload = path.payload_bytes();
        let rate = path.rate_down_bits_per_s.min(path.rate_up_bits_per_s);
        let usual = Settings::default();
        let search = path.mtu_bytes.is_none() && rate >= 10_000_000 && path.rtt_us < 30_000;
        self.settings.mtu_discovery = search;
        self.settings.mtu_upper_bound_bytes = if path.mtu_bytes.is_some() {
            payload
        } else {
            usual.mtu_upper_bound_bytes
        };
        self.settings.initial_mtu_bytes = payload;
        if search {
            self.because(
                "mtu_discovery",
                "11 kB of probes per connection are nothing at this rate",
                "RFC 8899; RFC 9000, section 14.3",
            );
        } else if path.mtu_bytes.is_some() {
            self.because(
                "mtu_discovery",
                "the MTU is known; searching costs 11 kB of padded probes per connection",
                "measured on quinn-proto 0.11; HTTP/3 paper, section VIII-B (padded PINGs)",
            );
        } else {
            self.because(
                "mtu_discovery",
                format!(
                    "11 kB of padded probes per connection would take {:.1} s of this link",
                    88_000.0 / rate as f64
                ),
                "measured on quinn-proto 0.11; HTTP/3 paper, section VIII-B (padded PINGs)",
            );
        }
        self.because(
            "mtu_upper_bound_bytes",
            "where a search would end, if it were turned on",
            "RFC 8899, section 5.1.2",
        );
        self.because(
            "mtu_search_interval_ms",
            "the same",
            "RFC 8899, section 5.1.1",
        );
        match path.mtu_bytes {
            None => self.because(
                "initial_mtu_bytes",
                "what every path of QUIC carries",
                "RFC 9000, section 14",
            ),
            Some(mtu) => self.because(
                "initial_mtu_bytes",
                format!(
                    "the MTU of {mtu} without the headers of IP and UDP; the handshake keeps to \
                     1,200 bytes in case that is wrong"
                ),
                "RFC 9000, section 14; RFC 9006, section 4.1.1",
            ),
        }
        self.settings.max_received_payload_bytes = usual.max_received_payload_bytes.max(payload);
        self.because(
            "max_received_payload_bytes",
            "what Ethernet brings",
            "RFC 9000, section 18.2",
        );
    }

    fn buffers(&mut self) {
        let path = self.path;
        let bdp = path.bandwidth_delay_bytes();
        let message = u64::from(path.message_bytes.unwrap_or(0));
        // Twice what is under way, so that the sender never waits for credit; a power of two.
        let connection = (2 * bdp)
            .max(2 * message)
            .clamp(32 * 1_024, 16 << 20)
            .next_power_of_two() as u32;
        self.settings.receive_window_bytes = connection;
        self.settings.stream_receive_window_bytes = connection / 2;
        self.settings.send_window_bytes = connection;
        self.settings.datagram_buffer_bytes = (connection / 8).clamp(4_096, 64 * 1_024);
        let source = "RFC 9000, section 4; RFC 9308, section 4.4";
        self.because(
            "stream_receive_window_bytes",
            format!(
                "the {bdp} bytes that are under way at full rate, rounded up, so that one stream \
                 can fill the path"
            ),
            source,
        );
        self.because(
            "receive_window_bytes",
            "twice that, so that a stream nobody reads doesn't stop the others; more is memory \
             that a peer can take",
            source,
        );
        self.because(
            "send_window_bytes",
            "what is under way has to be kept until it is acknowledged",
            "RFC 9000, section 13.3",
        );
        self.because(
            "datagram_buffer_bytes",
            "unreliable messages that wait are old messages; the oldest go first",
            "RFC 9221, section 5.3",
        );
        self.because(
            "crypto_buffer_bytes",
            "a handshake with a long certificate chain that arrives in any order",
            "RFC 9000, section 7.5",
        );
    }

    fn security(&mut self) {
        self.settings.key_share = KeyShare::X25519;
        self.because(
            "key_share",
            "the ClientHello fits one datagram; the post-quantum hybrid takes a second one and \
             2.4 kB more in all",
            "RFC 9001, section 4.3; measured with rustls 0.23",
        );
        self.settings.cipher = Cipher::Auto;
        self.because(
            "cipher",
            "each device by its processor: AES where it has instructions for it",
            "RFC 8446, section 9.1; HTTP/3 paper, section V (ChaCha20 on both ends)",
        );
        self.because(
            "tickets",
            "one resumption needs one, and brings the next one with it",
            "RFC 8446, section 4.6.1",
        );
        self.because(
            "address_tokens",
            "they help only under load, and cost 90 bytes each on every connection",
            "RFC 9000, section 8.1.3",
        );
    }

    fn memory(&mut self) {
        let gains = self.path.bandwidth_delay_bytes() > 2 * self.settings.initial_window_bytes;
        let source = "RFC 9959; RFC 9002, section 6.2.2";
        if self.settings.path_memory_lifetime_ms == 0 {
            self.because(
                "path_memory_lifetime_ms",
                "nothing to remember: the window grows to the path in milliseconds",
                source,
            );
        } else if gains {
            self.because(
                "path_memory_lifetime_ms",
                "a device that comes back starts with the round trip of last time and half of \
                 its congestion window, which slow start would take several round trips for",
                source,
            );
        } else {
            self.because(
                "path_memory_lifetime_ms",
                "for the round trip: a device that comes back sends its first probe at the right \
                 time (its congestion window starts near the path's in any case)",
                source,
            );
        }
    }

    /// What the device will see with all that.
    fn expectations(&mut self) {
        let path = self.path;
        let handshake_us = u64::from(path.rtt_us)
            + PathDescription::link_us(HANDSHAKE_UP_BYTES, path.rate_up_bits_per_s)
            + PathDescription::link_us(HANDSHAKE_DOWN_BYTES, path.rate_down_bits_per_s);
        let first_ms = (handshake_us + u64::from(path.rtt_us) / 2) / 1_000;
        let resumed_ms = (u64::from(path.rtt_us) / 2
            + PathDescription::link_us(MIN_PAYLOAD_BYTES.into(), path.rate_up_bits_per_s))
            / 1_000;
        self.notes.push(format!(
            "Without loss, the first message reaches the broker about {first_ms} ms after the \
             start of a full handshake, {resumed_ms} ms after that of a resumed one with early data."
        ));
        let rate = path.rate_down_bits_per_s.min(path.rate_up_bits_per_s);
        if rate < TCP_FASTER_BELOW_BITS_PER_S {
            self.notes.push(
                "Below 32 kbit/s the AMQP paper found QUIC slower than TCP: the handshake's padding \
                 weighs most. Keep connections open, and let devices resume."
                    .to_owned(),
            );
        }
    }
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

    /// What differs from the profile.
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
