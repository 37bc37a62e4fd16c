//! The value of every setting, and the sentence that says why.

use std::fmt::Write as _;

use super::{Advice, MIN_PAYLOAD_BYTES, PathDescription, Reason};
use crate::choice::{Cipher, CongestionControl, KeyShare};
use crate::profile::Profile;
use crate::settings::Settings;

/// Below this, the paper on AMQP found QUIC slower than TCP.
const TCP_FASTER_BELOW_BITS_PER_S: u64 = 32_000;
/// Bytes of a full handshake in both directions, as measured with a self-signed P-256 certificate.
const HANDSHAKE_UP_BYTES: u64 = 2_626;
const HANDSHAKE_DOWN_BYTES: u64 = 1_503;
/// Shortest initial round trip: a third of the time that a broker may be busy before it seems lost.
const LEAST_INITIAL_RTT_MS: u64 = 25;
/// Smallest initial window with which the broker can answer early data as it likes.
const BROKER_WINDOW_BYTES: u64 = 10_800;
/// Bounds of the flow-control window of a connection.
const LEAST_WINDOW_BYTES: u64 = 32 * 1_024;
const MOST_WINDOW_BYTES: u64 = 16 * 1_024 * 1_024;

/// Settings in the making.
pub(super) struct Choices<'a> {
    path: &'a PathDescription,
    profile: Profile,
    settings: Settings,
    reasons: Vec<Reason>,
    notes: Vec<String>,
}

impl<'a> Choices<'a> {
    /// Begins with the profile's.
    pub(super) fn new(path: &'a PathDescription, profile: Profile) -> Self {
        Self {
            path,
            profile,
            settings: Settings::of(profile),
            reasons: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Makes all of them, in the order of the settings.
    pub(super) fn all(mut self) -> Advice {
        self.timers();
        self.acknowledgements();
        self.streams();
        self.congestion();
        self.datagram_size();
        self.buffers();
        self.security();
        self.memory();
        self.expectations();
        Advice {
            profile: self.profile,
            settings: self.settings,
            reasons: self.reasons,
            notes: self.notes,
        }
    }

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
        let wanted_ms = (padded_us * 3 / 4).div_ceil(1_000);
        let initial_ms = wanted_ms.clamp(LEAST_INITIAL_RTT_MS, 60_000) as u32;
        self.settings.initial_rtt_ms = initial_ms;
        let probe_ms = 3 * initial_ms;
        let because = if wanted_ms < LEAST_INITIAL_RTT_MS {
            format!(
                "more than this path's {} us: the first probe leaves after three times the value, \
                 and a broker that is busy for {probe_ms} ms has lost nothing",
                self.path.rtt_us
            )
        } else {
            format!(
                "three quarters of the {} ms that a datagram of 1,200 bytes and its answer take \
                 here; the first probe leaves after three times the value, so {probe_ms} ms after \
                 the packet, when the answer should have come",
                padded_us / 1_000
            )
        };
        self.because(
            "initial_rtt_ms",
            because,
            "RFC 9002, section 6.2.2; HTTP/3 paper, section V: 1.5 s at a round trip of 2 s",
        );

        // Both flights have to pass; the wait doubles with every try.
        let passes = 1.0 - path.loss_percent / 100.0;
        let fails = passes.mul_add(-passes, 1.0);
        let tries = (2..=6)
            .find(|tries| fails.powi(*tries) <= 1e-4)
            .unwrap_or(6);
        let waits_ms = u64::from(probe_ms) * ((1 << tries) - 1);
        let whole_ms = (waits_ms + 2 * padded_us / 1_000).clamp(10_000, 600_000);
        // In whole seconds, which is precise enough.
        self.settings.handshake_timeout_ms = (whole_ms.div_ceil(1_000) * 1_000) as u32;
        let mut because =
            format!("room for {tries} lost tries, each waiting twice as long as the one before");
        if path.loss_percent > 0.0 {
            let failing_percent = fails.powi(tries) * 100.0;
            let _ = write!(
                because,
                ": with {}% loss each way, {failing_percent:.3}% of the handshakes fail then",
                path.loss_percent
            );
        }
        self.because(
            "handshake_timeout_ms",
            because,
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
                 handshake costs more than the broker's memory meanwhile",
                "RFC 9308, section 3.2; RFC 9006, section 5.3",
            );
        }
        self.because(
            "keep_alive_interval_ms",
            "no PINGs: the connection survives a translator that forgets it, because the device's \
             next packet is taken from any address",
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
                "half a round trip: loss detection and congestion control need two \
                 acknowledgements in each",
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
                "not requested; every second packet",
                "RFC 9000, section 13.2.2",
            );
            self.because(
                "max_ack_delay_ms",
                "not requested; the protocol's own value",
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
        let initial = "enough for a connection that has just begun; more is granted as it is used, \
                       and every stream permitted costs the server 50 bytes per connection";
        self.because(
            "initial_bidirectional_streams",
            initial,
            "measured on quinn-proto 0.11",
        );
        let most = "a limit of the memory that one client takes of the server";
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
            self.settings.initial_window_bytes = bdp.max(BROKER_WINDOW_BYTES);
            self.because(
                "initial_window_bytes",
                format!(
                    "hardly less than ten datagrams, since the broker answers early data within \
                     it; the path holds no more than {bdp} bytes, so a device that sends more than \
                     messages does better with {}",
                    bdp.max(u64::from(payload) * 4)
                ),
                "RFC 9002, section 7.2; RFC 9006, section 4.3.3",
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
                "the standard's controller, and that of TCP, so both are fair to each other",
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
                "11 kB of probes per connection cost little at this rate",
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
            "the end of a search, if it were enabled",
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
                "every path of QUIC carries this",
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
            "the largest payload on Ethernet",
            "RFC 9000, section 18.2",
        );
    }

    fn buffers(&mut self) {
        let path = self.path;
        let bdp = path.bandwidth_delay_bytes();
        let message = u64::from(path.message_bytes.unwrap_or(0));
        // Twice the bytes in flight, so that the sender never waits for credit; a power of two.
        let needed = (2 * bdp).max(2 * message);
        let connection = needed
            .clamp(LEAST_WINDOW_BYTES, MOST_WINDOW_BYTES)
            .next_power_of_two() as u32;
        self.settings.receive_window_bytes = connection;
        self.settings.stream_receive_window_bytes = connection / 2;
        self.settings.send_window_bytes = connection;
        self.settings.datagram_buffer_bytes = (connection / 8).clamp(4_096, 64 * 1_024);
        let source = "RFC 9000, section 4; RFC 9308, section 4.4";
        let because = match needed {
            ..LEAST_WINDOW_BYTES => format!(
                "room for a burst of messages; full rate would need no more than the {bdp} bytes \
                 that are under way"
            ),
            LEAST_WINDOW_BYTES..=MOST_WINDOW_BYTES if message > bdp => {
                format!("a whole message of {message} bytes, rounded up")
            }
            LEAST_WINDOW_BYTES..=MOST_WINDOW_BYTES => format!(
                "the {bdp} bytes that are under way at full rate, rounded up, so that one stream \
                 can fill the path"
            ),
            _ => format!(
                "no more, to bound the memory of a connection, though {} bytes would be of use",
                needed / 2
            ),
        };
        self.because("stream_receive_window_bytes", because, source);
        self.because(
            "receive_window_bytes",
            "twice that, so that an unread stream does not stop the others; more is memory that a \
             peer can take",
            source,
        );
        self.because(
            "send_window_bytes",
            "bytes in flight are kept until they are acknowledged",
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

    /// The effects that the device will see.
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
