//! The memory of a path between two connections.

use std::time::Instant;

use quinn_proto::Connection;

use crate::careful_resume::PathMemory;
use crate::settings::Settings;

/// First byte of the encoding. Another layout takes another number.
const VERSION: u8 = 1;
/// Longest round trip believed: a minute, as for [`Settings::initial_rtt_ms`].
const MAX_RTT_US: u32 = 60_000_000;
/// Largest congestion window believed: 1 GiB, as for the windows of [`Settings`].
const MAX_WINDOW_BYTES: u64 = 1 << 30;
/// Smallest datagram of QUIC (RFC 9000, section 14).
const MIN_MTU_BYTES: u16 = 1_200;
/// Largest UDP payload.
const MAX_MTU_BYTES: u16 = 65_527;

/// The memory of a path at one end of a connection. A server has it beside the ticket that it issued, a
/// client beside the ticket that it received.
///
/// Each end remembers its own direction of sending. The values are hints, and their users check
/// them again: [`Settings::remembering`] and [`PathMemory::fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedPath {
    /// Smoothed round trip at the end, in microseconds.
    pub rtt_us: u32,
    /// Shortest round trip seen, in microseconds.
    pub min_rtt_us: u32,
    /// Congestion window that the path has carried, in bytes. 0 if unknown, because the connection
    /// never filled its window.
    pub congestion_window_bytes: u64,
    /// Largest UDP payload known to pass, in bytes.
    pub mtu_bytes: u16,
    /// Time at which the window was last filled, in milliseconds since the Unix epoch. Without a
    /// window: time at which the memory was written.
    pub saved_at_ms: u64,
}

impl SavedPath {
    /// Bytes of the encoding: version, then the fields in their order, big-endian.
    pub const ENCODED_BYTES: usize = 1 + 4 + 4 + 8 + 2 + 8;

    /// The memory of a connection's current path; `None` during the handshake.
    ///
    /// `now` and `now_ms` are the same moment on the library's clock and on the calendar's. To be
    /// called when a ticket is given out or got, and again when the connection ends.
    #[must_use]
    pub fn observe(connection: &Connection, now: Instant, now_ms: u64) -> Option<Self> {
        if connection.is_handshaking() {
            return None;
        }
        let path = connection.stats().path;
        let micros = |time: std::time::Duration| {
            u32::try_from(time.as_micros()).map_or(MAX_RTT_US, |us| us.clamp(1, MAX_RTT_US))
        };
        let capacity = PathMemory::capacity(connection, now, now_ms);
        Some(Self {
            rtt_us: micros(path.rtt),
            min_rtt_us: micros(path.min_rtt.min(path.rtt)),
            congestion_window_bytes: capacity.map_or(0, |(bytes, _)| bytes.min(MAX_WINDOW_BYTES)),
            mtu_bytes: path.current_mtu.clamp(MIN_MTU_BYTES, MAX_MTU_BYTES),
            saved_at_ms: capacity.map_or(now_ms, |(_, at_ms)| at_ms),
        })
    }

    /// The bytes to keep.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        let fields: [&[u8]; 6] = [
            &[VERSION],
            &self.rtt_us.to_be_bytes(),
            &self.min_rtt_us.to_be_bytes(),
            &self.congestion_window_bytes.to_be_bytes(),
            &self.mtu_bytes.to_be_bytes(),
            &self.saved_at_ms.to_be_bytes(),
        ];
        let mut rest = bytes.as_mut_slice();
        for field in fields {
            let (place, after) = rest.split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = after;
        }
        bytes
    }

    /// Reads the output of [`SavedPath::encode`]. `None` for another version or length, and for
    /// impossible values: for example, a minimum round trip above the smoothed one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (rtt_us, rest) = rest.split_first_chunk()?;
        let (min_rtt_us, rest) = rest.split_first_chunk()?;
        let (window, rest) = rest.split_first_chunk()?;
        let (mtu, rest) = rest.split_first_chunk()?;
        let (saved_at, rest) = rest.split_first_chunk()?;
        let path = Self {
            rtt_us: u32::from_be_bytes(*rtt_us),
            min_rtt_us: u32::from_be_bytes(*min_rtt_us),
            congestion_window_bytes: u64::from_be_bytes(*window),
            mtu_bytes: u16::from_be_bytes(*mtu),
            saved_at_ms: u64::from_be_bytes(*saved_at),
        };
        (version == VERSION && rest.is_empty() && path.is_plausible()).then_some(path)
    }

    /// Whether a path can have these values.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        (1..=MAX_RTT_US).contains(&self.rtt_us)
            && (1..=self.rtt_us).contains(&self.min_rtt_us)
            && self.congestion_window_bytes <= MAX_WINDOW_BYTES
            && (MIN_MTU_BYTES..=MAX_MTU_BYTES).contains(&self.mtu_bytes)
    }

    /// Whether this is from the last `lifetime_ms` milliseconds. A time in the future is not: the
    /// clock was set, and the age of the values is unknown.
    #[must_use]
    pub fn is_fresh(&self, now_ms: u64, lifetime_ms: u64) -> bool {
        now_ms
            .checked_sub(self.saved_at_ms)
            .is_some_and(|age_ms| age_ms <= lifetime_ms)
    }
}

impl Settings {
    /// These settings for a connection on a remembered path. The connection starts with the last
    /// one's round trip (RFC 9002, section 6.2.2) and datagram size (RFC 9000, section 14.1). The
    /// settings are unchanged if the memory is stale or implausible.
    ///
    /// The datagrams of the handshake keep 1,200 bytes in any case, so it succeeds on a path that
    /// has become narrower. Later datagrams fall back after a few losses.
    #[must_use]
    pub fn remembering(&self, path: &SavedPath, now_ms: u64) -> Self {
        let mut settings = self.clone();
        if path.is_plausible() && path.is_fresh(now_ms, self.path_memory_lifetime_ms) {
            settings.initial_rtt_ms = path.rtt_us.div_ceil(1_000);
            settings.initial_mtu_bytes = if self.mtu_discovery {
                // The size that a search found, within the limits of a search.
                path.mtu_bytes
                    .min(self.mtu_upper_bound_bytes)
                    .max(self.initial_mtu_bytes)
            } else {
                path.mtu_bytes.min(self.initial_mtu_bytes)
            };
            // Longer than the checked settings allow: the handshake needs its probes.
            let probe_ms = 3 * settings.initial_rtt_ms;
            settings.handshake_timeout_ms = settings.handshake_timeout_ms.max(probe_ms);
            if settings.idle_timeout_ms > 0 {
                settings.idle_timeout_ms = settings.idle_timeout_ms.max(probe_ms.into());
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::Profile;

    const PATH: SavedPath = SavedPath {
        rtt_us: 2_050_000,
        min_rtt_us: 2_001_000,
        congestion_window_bytes: 48_000,
        mtu_bytes: 1_400,
        saved_at_ms: 1_790_000_000_000,
    };

    proptest! {
        #[test]
        fn decoding_never_panics_and_keeps_only_what_encoding_gives(
            bytes in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            if let Some(path) = SavedPath::decode(&bytes) {
                prop_assert!(path.is_plausible());
                prop_assert_eq!(path.encode().to_vec(), bytes);
            }
        }

        #[test]
        fn bodies_of_the_right_shape_decode_or_are_implausible(
            body in any::<[u8; SavedPath::ENCODED_BYTES - 1]>()
        ) {
            let mut bytes = vec![VERSION];
            bytes.extend(body);
            if let Some(path) = SavedPath::decode(&bytes) {
                prop_assert_eq!(path.encode().to_vec(), bytes);
            }
        }

        #[test]
        fn what_is_plausible_comes_back(
            rtt_us in 1..=MAX_RTT_US,
            part in 1..=1_000_u64,
            congestion_window_bytes in 0..=MAX_WINDOW_BYTES,
            mtu_bytes in MIN_MTU_BYTES..=MAX_MTU_BYTES,
            saved_at_ms: u64,
        ) {
            let path = SavedPath {
                rtt_us,
                min_rtt_us: (u64::from(rtt_us) * part).div_ceil(1_000) as u32,
                congestion_window_bytes,
                mtu_bytes,
                saved_at_ms,
            };
            prop_assert_eq!(SavedPath::decode(&path.encode()), Some(path));
        }
    }

    #[test]
    fn other_versions_lengths_and_nonsense_are_refused() {
        const { assert!(SavedPath::ENCODED_BYTES <= 32) };
        let bytes = PATH.encode();
        assert_eq!(SavedPath::decode(&bytes), Some(PATH));
        assert_eq!(SavedPath::decode(&[]), None);
        assert_eq!(SavedPath::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(SavedPath::decode(&[&bytes[..], &[0]].concat()), None);
        let mut newer = bytes;
        newer[0] = VERSION + 1;
        assert_eq!(SavedPath::decode(&newer), None);
        for wrong in [
            SavedPath { rtt_us: 0, ..PATH },
            SavedPath {
                min_rtt_us: 0,
                ..PATH
            },
            SavedPath {
                min_rtt_us: PATH.rtt_us + 1,
                ..PATH
            },
            SavedPath {
                mtu_bytes: 1_199,
                ..PATH
            },
            SavedPath {
                congestion_window_bytes: MAX_WINDOW_BYTES + 1,
                ..PATH
            },
        ] {
            assert_eq!(SavedPath::decode(&wrong.encode()), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_remembered_path_gives_the_first_round_trip() {
        let settings = Settings::of(Profile::Satellite);
        let now_ms = PATH.saved_at_ms + 1_000;
        let warm = settings.remembering(&PATH, now_ms);
        assert_eq!(warm.initial_rtt_ms, 2_050);
        // No connection searched for more than the settings start with.
        assert_eq!(warm.initial_mtu_bytes, 1_200);
        assert_eq!(warm.check(), Ok(()));

        for (path, now_ms) in [
            // Too old, from the future, impossible.
            (
                PATH,
                PATH.saved_at_ms + settings.path_memory_lifetime_ms + 1,
            ),
            (PATH, PATH.saved_at_ms - 1),
            (SavedPath { rtt_us: 0, ..PATH }, now_ms),
        ] {
            assert_eq!(settings.remembering(&path, now_ms), settings);
        }

        let searching = Settings {
            mtu_discovery: true,
            ..settings
        };
        let warm = searching.remembering(&PATH, now_ms);
        assert_eq!(warm.initial_mtu_bytes, 1_400);
    }

    #[test]
    fn slow_memories_stretch_the_timers_that_depend_on_the_round_trip() {
        let slow = SavedPath {
            rtt_us: MAX_RTT_US,
            ..PATH
        };
        let hasty = Settings {
            idle_timeout_ms: 5_000,
            ..Settings::default()
        };
        let warm = hasty.remembering(&slow, PATH.saved_at_ms);
        assert_eq!(warm.initial_rtt_ms, 60_000);
        assert_eq!(warm.check(), Ok(()));
    }
}
