//! SETTINGS (RFC 9114, section 7.2.4).

use crate::frame::{self, FrameType};
use crate::{ErrorCode, Features, Limits, varint};

/// SETTINGS_QPACK_MAX_TABLE_CAPACITY (RFC 9204, section 5).
pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
/// SETTINGS_MAX_FIELD_SECTION_SIZE (RFC 9114, section 7.2.4.1).
pub const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
/// SETTINGS_QPACK_BLOCKED_STREAMS (RFC 9204, section 5).
pub const QPACK_BLOCKED_STREAMS: u64 = 0x07;
/// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 9220, section 3).
pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
/// SETTINGS_H3_DATAGRAM (RFC 9297, section 2.1.1).
pub const H3_DATAGRAM: u64 = 0x33;
/// SETTINGS_ENABLE_WEBTRANSPORT (draft-ietf-webtrans-http3, up to version 6).
pub const ENABLE_WEBTRANSPORT: u64 = 0x2b60_3742;
/// SETTINGS_WEBTRANSPORT_MAX_SESSIONS (draft-ietf-webtrans-http3, from version 7).
pub const WEBTRANSPORT_MAX_SESSIONS: u64 = 0xc671_706a;

/// The peer's SETTINGS, with initial values for absent ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Largest field section that the peer takes, in bytes; `None` where it sets no limit.
    pub max_field_section_bytes: Option<u64>,
    /// Whether a client may send extended CONNECT (RFC 9220).
    pub extended_connect: bool,
    /// Whether the peer takes HTTP datagrams (RFC 9297). A caller whose transport was told of no
    /// max_datagram_frame_size then ends the connection with H3_SETTINGS_ERROR (section 2.1.1).
    pub datagrams: bool,
    /// Most WebTransport sessions that the peer takes; a client that speaks WebTransport says 1 or
    /// more as well.
    pub webtransport_sessions: u64,
    /// Largest dynamic table that the peer would keep. Nothing is put into it.
    pub qpack_table_bytes: u64,
    /// Streams that the peer would let wait for its dynamic table. None has to.
    pub qpack_blocked_streams: u64,
}

impl Settings {
    /// The meaning of SETTINGS without a pair.
    pub const INITIAL: Self = Self {
        max_field_section_bytes: None,
        extended_connect: false,
        datagrams: false,
        webtransport_sessions: 0,
        qpack_table_bytes: 0,
        qpack_blocked_streams: 0,
    };

    /// Reads the payload of SETTINGS.
    ///
    /// # Errors
    ///
    /// The code and the fault. A pair may be cut off, repeated, of HTTP/2 or out of range. More
    /// pairs than `max_pairs` are a fault, too.
    pub fn decode(mut payload: &[u8], max_pairs: u32) -> Result<Self, (ErrorCode, &'static str)> {
        const WRONG: ErrorCode = ErrorCode::H3_SETTINGS_ERROR;
        let mut settings = Self::INITIAL;
        let mut seen = Vec::new();
        while !payload.is_empty() {
            let pair = varint::take(&mut payload).zip(varint::take(&mut payload));
            let Some((identifier, value)) = pair else {
                return Err((ErrorCode::H3_FRAME_ERROR, "a setting is cut off"));
            };
            if seen.len() == max_pairs as usize {
                return Err((ErrorCode::H3_EXCESSIVE_LOAD, "too many settings"));
            }
            // Section 7.2.4: the same identifier must not come more than once.
            if seen.contains(&identifier) {
                return Err((WRONG, "a setting comes twice"));
            }
            seen.push(identifier);
            match identifier {
                QPACK_MAX_TABLE_CAPACITY => settings.qpack_table_bytes = value,
                QPACK_BLOCKED_STREAMS => settings.qpack_blocked_streams = value,
                MAX_FIELD_SECTION_SIZE => settings.max_field_section_bytes = Some(value),
                ENABLE_CONNECT_PROTOCOL => settings.extended_connect = flag(value)?,
                H3_DATAGRAM => settings.datagrams = flag(value)?,
                ENABLE_WEBTRANSPORT => {
                    let sessions = u64::from(flag(value)?);
                    settings.webtransport_sessions = settings.webtransport_sessions.max(sessions);
                }
                WEBTRANSPORT_MAX_SESSIONS => {
                    settings.webtransport_sessions = settings.webtransport_sessions.max(value);
                }
                // Section 7.2.4.1: settings of HTTP/2 without a meaning here.
                0x00 | 0x02..=0x05 => return Err((WRONG, "a setting of HTTP/2")),
                _ => {}
            }
        }
        Ok(settings)
    }

    /// Whether requests that relied on `before` are still right (RFC 9114, section 7.2.4.2).
    pub(crate) fn keeps(&self, before: &Self) -> bool {
        let no_limit = u64::MAX;
        self.max_field_section_bytes.unwrap_or(no_limit)
            >= before.max_field_section_bytes.unwrap_or(no_limit)
            && self.extended_connect >= before.extended_connect
            && self.datagrams >= before.datagrams
            && self.webtransport_sessions >= before.webtransport_sessions
            && self.qpack_table_bytes >= before.qpack_table_bytes
            && self.qpack_blocked_streams >= before.qpack_blocked_streams
    }
}

fn flag(value: u64) -> Result<bool, (ErrorCode, &'static str)> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err((ErrorCode::H3_SETTINGS_ERROR, "a setting is neither 0 nor 1")),
    }
}

/// Appends the SETTINGS frame of an end. Initial values are left out.
pub(crate) fn write(limits: &Limits, features: Features, is_server: bool, out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(40);
    let mut pair = |identifier, value| {
        varint::write(identifier, &mut payload);
        varint::write(value, &mut payload);
    };
    pair(
        MAX_FIELD_SECTION_SIZE,
        u64::from(limits.max_field_section_bytes),
    );
    if is_server && features.extended_connect() {
        pair(ENABLE_CONNECT_PROTOCOL, 1);
    }
    if features.datagrams() {
        pair(H3_DATAGRAM, 1);
    }
    if features.webtransport {
        pair(ENABLE_WEBTRANSPORT, 1);
        pair(WEBTRANSPORT_MAX_SESSIONS, u64::from(limits.max_sessions));
    }
    frame::write_header(FrameType::SETTINGS, payload.len() as u64, out);
    out.extend_from_slice(&payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pairs: &[(u64, u64)]) -> Result<Settings, ErrorCode> {
        let mut payload = Vec::new();
        for (identifier, value) in pairs {
            varint::write(*identifier, &mut payload);
            varint::write(*value, &mut payload);
        }
        Settings::decode(&payload, 8).map_err(|(code, _)| code)
    }

    #[test]
    fn what_is_written_is_read() {
        let features = Features {
            extended_connect: true,
            datagrams: true,
            webtransport: true,
        };
        let limits = Limits::default();
        let mut out = Vec::new();
        write(&limits, features, true, &mut out);
        let settings = Settings::decode(&out[2..], 8).unwrap();
        assert_eq!(settings.max_field_section_bytes, Some(16_383));
        assert_eq!(settings.webtransport_sessions, 16);
        assert!(settings.extended_connect && settings.datagrams);
        // Settings that are not enabled cost no byte.
        out.clear();
        write(&limits, Features::default(), true, &mut out);
        assert_eq!(out, [0x04, 0x03, 0x06, 0x7f, 0xff]);
    }

    #[test]
    fn wrong_settings_are_refused() {
        let wrong = Err(ErrorCode::H3_SETTINGS_ERROR);
        for identifier in [0, 2, 3, 4, 5] {
            assert_eq!(decode(&[(identifier, 0)]), wrong);
        }
        for identifier in [ENABLE_CONNECT_PROTOCOL, H3_DATAGRAM, ENABLE_WEBTRANSPORT] {
            assert_eq!(decode(&[(identifier, 2)]), wrong);
            assert!(decode(&[(identifier, 1)]).is_ok());
        }
        assert_eq!(decode(&[(0x21, 1), (6, 1), (0x21, 1)]), wrong);
        let many: Vec<_> = (0..9).map(|nth| (0x21 + 0x1f * nth, nth)).collect();
        assert_eq!(decode(&many[..8]), Ok(Settings::INITIAL));
        assert_eq!(decode(&many), Err(ErrorCode::H3_EXCESSIVE_LOAD));
        let cut = Settings::decode(&[0x06, 0x80, 0x00], 8);
        assert_eq!(cut.unwrap_err().0, ErrorCode::H3_FRAME_ERROR);
    }

    #[test]
    fn settings_may_only_grow_after_early_data() {
        let before = decode(&[(6, 100), (H3_DATAGRAM, 1)]).unwrap();
        assert!(before.keeps(&before));
        assert!(
            decode(&[(6, 101), (H3_DATAGRAM, 1), (8, 1)])
                .unwrap()
                .keeps(&before)
        );
        assert!(decode(&[(H3_DATAGRAM, 1)]).unwrap().keeps(&before));
        assert!(!decode(&[(6, 99), (H3_DATAGRAM, 1)]).unwrap().keeps(&before));
        assert!(!decode(&[(6, 100)]).unwrap().keeps(&before));
    }
}
