//! Bounds of the settings, and their translation for the QUIC library.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::congestion::ControllerFactory;
use quinn_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::careful_resume::{CarefulResume, plain_factory};
use crate::meter::Metering;
use crate::settings::Settings;

/// End of the connection that the settings are for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The one that connects. It lets the server open no streams; a protocol whose servers do raises
    /// that in the returned configuration.
    Client,
    /// The one that accepts.
    Server,
}

/// Shortest UDP payload that every path of QUIC carries (RFC 9000, section 14).
pub(crate) const MIN_PAYLOAD_BYTES: u16 = 1_200;
/// Longest UDP payload there is.
pub(crate) const MAX_PAYLOAD_BYTES: u16 = 65_527;
/// Largest flow-control and send windows.
pub(crate) const MAX_WINDOW_BYTES: u32 = 1 << 30;
/// Most streams at once.
pub(crate) const MAX_STREAMS: u32 = 65_535;
/// Longest delay of acknowledgements: RFC 9000, section 18.2, ends the transport parameter at 2^14 ms.
pub(crate) const MAX_ACK_DELAY_MS: u32 = 16_383;
/// A year: longer times mean never, for which there is 0.
pub(crate) const MAX_TIME_MS: u64 = 366 * 24 * 3_600 * 1_000;
/// Longest lifetime of a ticket (RFC 8446, section 4.6.1).
pub(crate) const MAX_PATH_MEMORY_MS: u64 = 7 * 24 * 3_600 * 1_000;

/// Collects all faults, so that one attempt shows them all.
struct Problems(Vec<String>);

impl Problems {
    fn unless(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.0.push(problem());
        }
    }
}

impl Settings {
    /// Checks bounds, and settings against each other.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, one sentence each, beginning with the setting's name.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = Problems(self.range_problems());
        // The first probe leaves after three initial round trips (RFC 9002, section 6.2.1). A
        // shorter handshake timeout could not survive the loss of one datagram.
        let probe_ms = 3 * u64::from(self.initial_rtt_ms);
        problems.unless(u64::from(self.handshake_timeout_ms) >= probe_ms, || {
            format!(
                "handshake_timeout_ms must be at least three times initial_rtt_ms, which is \
                 {probe_ms}, not {}",
                self.handshake_timeout_ms
            )
        });
        problems.unless(
            self.idle_timeout_ms == 0 || self.idle_timeout_ms >= probe_ms,
            || {
                format!(
                    "idle_timeout_ms must be 0 (never) or at least three times initial_rtt_ms, \
                     which is {probe_ms}, not {}",
                    self.idle_timeout_ms
                )
            },
        );
        problems.unless(
            self.idle_timeout_ms == 0 || self.keep_alive_interval_ms < self.idle_timeout_ms,
            || {
                format!(
                    "keep_alive_interval_ms must be less than idle_timeout_ms, which is {}, not {}",
                    self.idle_timeout_ms, self.keep_alive_interval_ms
                )
            },
        );
        for (name, value, initial_name, initial) in [
            (
                "max_bidirectional_streams",
                self.max_bidirectional_streams,
                "initial_bidirectional_streams",
                self.initial_bidirectional_streams,
            ),
            (
                "max_unidirectional_streams",
                self.max_unidirectional_streams,
                "initial_unidirectional_streams",
                self.initial_unidirectional_streams,
            ),
        ] {
            problems.unless(value >= initial, || {
                format!("{name} must be at least {initial_name}, which is {initial}, not {value}")
            });
        }
        problems.unless(
            !self.mtu_discovery || self.mtu_upper_bound_bytes >= self.initial_mtu_bytes,
            || {
                format!(
                    "mtu_upper_bound_bytes must be at least initial_mtu_bytes, which is {}, not {}",
                    self.initial_mtu_bytes, self.mtu_upper_bound_bytes
                )
            },
        );
        problems.unless(
            self.receive_window_bytes >= self.stream_receive_window_bytes,
            || {
                format!(
                    "receive_window_bytes must be at least stream_receive_window_bytes, which is \
                     {}, not {}",
                    self.stream_receive_window_bytes, self.receive_window_bytes
                )
            },
        );
        if problems.0.is_empty() {
            Ok(())
        } else {
            Err(problems.0)
        }
    }

    /// The settings as the QUIC library takes them.
    ///
    /// Some settings are not in it. The driver keeps `handshake_timeout_ms`,
    /// `stream_credit_watermark_percent` and the `max_…_streams`. `max_received_payload_bytes` is
    /// in `EndpointConfig`, `address_tokens` in `ServerConfig`; `tickets`, `key_share` and `cipher`
    /// are in TLS. Values without a setting, for example the spin bit, are the library's defaults.
    ///
    /// # Errors
    ///
    /// The faults that [`Settings::check`] finds.
    pub fn transport_config(&self, role: Role) -> Result<TransportConfig, Vec<String>> {
        self.check()?;
        let (bidirectional, unidirectional) = match role {
            Role::Client => (0, 0),
            Role::Server => (
                self.initial_bidirectional_streams,
                self.initial_unidirectional_streams,
            ),
        };
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(bidirectional.into())
            .max_concurrent_uni_streams(unidirectional.into())
            .initial_rtt(Duration::from_millis(self.initial_rtt_ms.into()))
            // `check` keeps it far below the bound of the wire's integers.
            .max_idle_timeout(
                VarInt::from_u64(self.idle_timeout_ms)
                    .ok()
                    .filter(|_| self.idle_timeout_ms > 0)
                    .map(IdleTimeout::from),
            )
            .keep_alive_interval(
                (self.keep_alive_interval_ms > 0)
                    .then(|| Duration::from_millis(self.keep_alive_interval_ms)),
            )
            .ack_frequency_config(self.ack_frequency.then(|| self.ack_frequency_config()))
            .congestion_controller_factory(self.congestion_factory())
            .packet_threshold(self.packet_threshold)
            .time_threshold(self.time_threshold as f32)
            .initial_mtu(self.initial_mtu_bytes)
            .mtu_discovery_config(self.mtu_discovery.then(|| {
                let mut search = MtuDiscoveryConfig::default();
                search
                    .upper_bound(self.mtu_upper_bound_bytes)
                    .interval(Duration::from_millis(self.mtu_search_interval_ms));
                search
            }))
            .stream_receive_window(self.stream_receive_window_bytes.into())
            .receive_window(self.receive_window_bytes.into())
            .send_window(self.send_window_bytes.into())
            .datagram_receive_buffer_size(
                (self.datagram_buffer_bytes > 0).then_some(self.datagram_buffer_bytes as usize),
            )
            .datagram_send_buffer_size(self.datagram_buffer_bytes as usize)
            .crypto_buffer_size(self.crypto_buffer_bytes as usize);
        Ok(transport)
    }

    fn ack_frequency_config(&self) -> AckFrequencyConfig {
        let mut asked = AckFrequencyConfig::default();
        asked
            .ack_eliciting_threshold(self.ack_eliciting_threshold_packets.into())
            .max_ack_delay(Some(Duration::from_millis(self.max_ack_delay_ms.into())))
            // One less than the threshold of loss: the peer reports a gap when it matters.
            .reordering_threshold((self.packet_threshold - 1).into());
        asked
    }

    /// The congestion controller of the settings.
    fn congestion_factory(&self) -> Arc<dyn ControllerFactory + Send + Sync> {
        let factory = if self.path_memory_lifetime_ms == 0 {
            plain_factory(self.congestion, self.initial_window_bytes)
        } else {
            Arc::new(CarefulResume {
                congestion: self.congestion,
                initial_window_bytes: self.initial_window_bytes,
            })
        };
        Arc::new(Metering(factory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::CongestionControl;
    use crate::profile::Profile;
    use crate::settings::Overrides;

    fn debug(settings: &Settings, role: Role) -> String {
        format!("{:?}", settings.transport_config(role).unwrap())
    }

    #[test]
    fn every_setting_reaches_the_library_or_is_named_as_somebody_elses() {
        // Settings that are kept elsewhere (see `transport_config`), and the congestion controller,
        // which the library does not print.
        let elsewhere = [
            "handshake_timeout_ms",
            "stream_credit_watermark_percent",
            "max_bidirectional_streams",
            "max_unidirectional_streams",
            "initial_window_bytes",
            "congestion",
            "max_received_payload_bytes",
            "key_share",
            "cipher",
            "tickets",
            "address_tokens",
            "path_memory_lifetime_ms",
        ];
        let base = Settings {
            ack_frequency: true,
            mtu_discovery: true,
            ..Settings::of(Profile::Default)
        };
        for (name, value) in base.values() {
            let other = match (name, value.as_str()) {
                (_, "true") => "false".to_owned(),
                ("congestion", _) => "bbr".to_owned(),
                ("key_share", _) => "p256".to_owned(),
                ("cipher", _) => "aes".to_owned(),
                ("time_threshold", _) => "2.0".to_owned(),
                (_, number) => (number.parse::<u64>().unwrap() + 1).to_string(),
            };
            let mut overrides = Overrides::default();
            overrides.set(name, &other).unwrap();
            let mut changed = base.clone();
            overrides.apply(&mut changed);
            assert_eq!(
                debug(&changed, Role::Server) == debug(&base, Role::Server),
                elsewhere.contains(&name),
                "{name}"
            );
        }
    }

    #[test]
    fn the_congestion_controller_begins_with_the_window_asked_for() {
        for congestion in CongestionControl::ALL {
            for path_memory_lifetime_ms in [0, 1] {
                let settings = Settings {
                    congestion: *congestion,
                    initial_window_bytes: 14_000,
                    path_memory_lifetime_ms,
                    ..Settings::default()
                };
                let factory = settings.congestion_factory();
                let controller = factory.build(std::time::Instant::now(), 1_200);
                assert_eq!(controller.window(), 14_000, "{congestion}");
                assert_eq!(controller.initial_window(), 14_000);
            }
        }
    }

    #[test]
    fn zero_means_never_and_none() {
        let sleepy = Settings {
            datagram_buffer_bytes: 0,
            ..Settings::of(Profile::Sleepy)
        };
        let text = debug(&sleepy, Role::Server);
        for part in [
            "max_idle_timeout: None",
            "keep_alive_interval: None",
            "datagram_receive_buffer_size: None",
            "datagram_send_buffer_size: 0",
            "mtu_discovery_config: None",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_client_grants_no_streams() {
        let settings = Settings::default();
        let text = debug(&settings, Role::Client);
        assert!(text.contains("max_concurrent_bidi_streams: 0"), "{text}");
        assert!(text.contains("max_concurrent_uni_streams: 0"), "{text}");
        let text = debug(&settings, Role::Server);
        assert!(text.contains("max_concurrent_bidi_streams: 5"), "{text}");
        assert!(text.contains("max_concurrent_uni_streams: 5"), "{text}");
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let wrong = Settings {
            initial_rtt_ms: 0,
            handshake_timeout_ms: 0,
            idle_timeout_ms: 20_000,
            keep_alive_interval_ms: 20_000,
            max_bidirectional_streams: 4,
            time_threshold: f64::NAN,
            initial_mtu_bytes: 1_199,
            receive_window_bytes: 100_000,
            ..Settings::default()
        };
        let problems = wrong.check().unwrap_err();
        assert_eq!(
            problems,
            [
                "initial_rtt_ms must be from 1 to 60000, not 0",
                "handshake_timeout_ms must be from 1 to 3600000, not 0",
                "time_threshold must be from 1 to 10, not NaN",
                "initial_mtu_bytes must be from 1200 to 65527, not 1199",
                "keep_alive_interval_ms must be less than idle_timeout_ms, which is 20000, not \
                 20000",
                "max_bidirectional_streams must be at least initial_bidirectional_streams, which \
                 is 5, not 4",
                "receive_window_bytes must be at least stream_receive_window_bytes, which is \
                 131072, not 100000",
            ]
        );
        assert_eq!(wrong.transport_config(Role::Client).err(), Some(problems));

        let hasty = Settings {
            initial_rtt_ms: 20_000,
            idle_timeout_ms: 30_000,
            ..Settings::default()
        };
        assert_eq!(
            hasty.check().unwrap_err(),
            [
                "handshake_timeout_ms must be at least three times initial_rtt_ms, which is 60000, \
                 not 30000",
                "idle_timeout_ms must be 0 (never) or at least three times initial_rtt_ms, which is \
                 60000, not 30000",
            ]
        );
    }
}
