//! Numbers of WebTransport over HTTP/3 (draft-ietf-webtrans-http3).
//!
//! Browsers use versions 2 and 7 of the draft. On streams and in datagrams they are the same. They
//! differ in the setting that announces them; both are sent. Version 2 also has two fields in the
//! heads: [`DRAFT_02_OFFER`] and [`DRAFT_02_CHOICE`].

use crate::ErrorCode;

/// The protocol of an extended CONNECT that asks for a session.
pub const PROTOCOL: &str = "webtransport";

/// First integer of a unidirectional stream of a session, before the session's identifier.
pub const UNIDIRECTIONAL_STREAM: u64 = 0x54;

/// The field by which a client offers version 2, with the value `1`.
pub const DRAFT_02_OFFER: &str = "sec-webtransport-http3-draft02";

/// The field by which a server takes version 2, with the value `draft02`.
pub const DRAFT_02_CHOICE: &str = "sec-webtransport-http3-draft";

/// Longest reason for closing a session, in bytes.
pub const MAX_REASON_BYTES: usize = 1024;

/// The first code of HTTP/3 that stands for a code of an application.
const FIRST: u64 = 0x52e4_a40f_a8db;
/// The last one.
const LAST: u64 = 0x52e5_ac98_3162;
/// One in N codes is reserved (RFC 9114, section 8.1) and left out.
const RESERVED_EVERY: u64 = 0x1f;

/// The code that stands for an application's code in RESET_STREAM and STOP_SENDING (section 4.3).
#[must_use]
pub const fn error_code(application_code: u32) -> ErrorCode {
    let code = application_code as u64;
    ErrorCode(FIRST + code + code / (RESERVED_EVERY - 1))
}

/// The application's code that a code stands for, if it does.
#[must_use]
pub const fn application_code(code: ErrorCode) -> Option<u32> {
    if code.0 < FIRST || code.0 > LAST || (code.0 - 0x21).is_multiple_of(RESERVED_EVERY) {
        return None;
    }
    let shifted = code.0 - FIRST;
    Some((shifted - shifted / RESERVED_EVERY) as u32)
}

/// The end of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionClose {
    /// The application's code; 0 where the peer named none.
    pub code: u32,
    /// The reason, for people; up to [`MAX_REASON_BYTES`].
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_applications_skip_reserved_ones() {
        assert_eq!(error_code(0), ErrorCode(FIRST));
        assert_eq!(error_code(0x1d), ErrorCode(FIRST + 0x1d));
        assert_eq!(error_code(0x1e), ErrorCode(FIRST + 0x1f));
        // The form of version 2 for codes of one byte.
        assert_eq!(error_code(0xff), ErrorCode(0x52e4_a40f_a9e2));
        assert_eq!(error_code(u32::MAX), ErrorCode(LAST));
        let codes = (0..2_000).chain(u32::MAX - 2_000..=u32::MAX);
        for code in codes {
            let mapped = error_code(code);
            assert_ne!((mapped.0 - 0x21) % 0x1f, 0);
            assert_eq!(application_code(mapped), Some(code));
        }
        for code in [0, 0x100, FIRST - 1, FIRST + 0x1e, LAST + 1, u64::MAX] {
            assert_eq!(application_code(ErrorCode(code)), None, "{code:#x}");
        }
    }
}
