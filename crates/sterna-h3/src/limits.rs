//! Limits on the memory and work that a peer can cause.

/// Limits of one connection. Each is told to the peer where the protocol has a field for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest field section that is taken, in bytes: names, values and 32 for each field (RFC 9114,
    /// section 4.2.2; SETTINGS_MAX_FIELD_SECTION_SIZE). A server answers a larger head with status
    /// 431.
    pub max_field_section_bytes: u32,
    /// Largest field section of a request that a server still reports although it is larger than
    /// the limit above. So the server can refuse it with an answer of its own. Not announced;
    /// without effect below the limit above.
    pub max_refused_section_bytes: u32,
    /// Most fields of a section, pseudo-header fields among them. A server answers more with status
    /// 431.
    pub max_fields: u32,
    /// Most requests of a client that are open at a time; one more is refused with
    /// H3_REQUEST_REJECTED. The transport's limit of streams should not be much higher.
    pub max_requests: u32,
    /// Most interim responses (status 1xx) before a response.
    pub max_interim_responses: u32,
    /// Most streams of the peer that may be left out when a later one is heard of. Above the
    /// transport's limit of streams it has no effect.
    pub max_skipped_streams: u32,
    /// Most bytes that are held back of a stream, see [`Connection::hold`](crate::Connection::hold).
    /// A transport with flow control should give a stream no larger window.
    pub max_held_bytes: u32,
    /// Most pairs in SETTINGS.
    pub max_settings: u32,
    /// Largest number of bytes without use within [`Limits::window_ms`]. These are frames, streams
    /// and capsules of unknown type, empty frames, and repeated announcements. A frame counts with
    /// its header, a stream of unknown type for 64 bytes.
    pub max_idle_bytes: u32,
    /// Most requests within [`Limits::window_ms`] that were given up before they were answered, by
    /// the peer or because of its behaviour. The measure against rapid reset (RFC 9114, section
    /// 10.5).
    pub max_resets: u32,
    /// The time in which [`Limits::max_idle_bytes`] and [`Limits::max_resets`] come back, evenly, in
    /// milliseconds.
    pub window_ms: u32,
    /// Most WebTransport sessions at a time, those among them that are not accepted yet; one more is
    /// refused with H3_REQUEST_REJECTED. It is announced; 0 turns WebTransport off.
    pub max_sessions: u32,
    /// Most streams of a WebTransport session that the peer has opened at a time; one more is
    /// refused with WEBTRANSPORT_BUFFERED_STREAM_REJECTED.
    pub max_session_streams: u32,
    /// Most streams of the connection that wait for their WebTransport session to be accepted, each
    /// with up to [`Limits::max_held_bytes`].
    pub max_waiting_streams: u32,
    /// Largest DATAGRAM capsule that is taken, in bytes. A larger one is dropped, as a datagram may
    /// be. The capsule that closes a session always fits.
    pub max_capsule_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_field_section_bytes: 16_383, // the largest that SETTINGS says in two bytes
            max_refused_section_bytes: 0,
            max_fields: 128,
            max_requests: 128,
            max_interim_responses: 16,
            max_skipped_streams: 1_024,
            max_held_bytes: 65_536,
            max_settings: 64,
            max_idle_bytes: 65_536,
            max_resets: 128,
            window_ms: 10_000,
            max_sessions: 16,
            max_session_streams: 128,
            max_waiting_streams: 16,
            max_capsule_bytes: 4_096,
        }
    }
}

impl Limits {
    /// The largest field section that is read.
    pub(crate) const fn read_section_bytes(&self) -> u32 {
        if self.max_refused_section_bytes > self.max_field_section_bytes {
            self.max_refused_section_bytes
        } else {
            self.max_field_section_bytes
        }
    }
}

/// An amount that may be spent within a window, and returns evenly.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// In millionths, so that slow clocks lose nothing.
    spent: u64,
    at_ms: u64,
}

impl Budget {
    /// Spends; false where that is more than there is.
    pub(crate) fn spend(&mut self, amount: u64, limit: u32, window_ms: u32, now_ms: u64) -> bool {
        const SCALE: u64 = 1_000_000;
        let elapsed_ms = now_ms.saturating_sub(self.at_ms).min(u64::from(window_ms));
        self.at_ms = self.at_ms.max(now_ms);
        let limit = u64::from(limit) * SCALE;
        let back = match window_ms {
            0 => limit,
            _ => limit / u64::from(window_ms) * elapsed_ms,
        };
        self.spent = self
            .spent
            .saturating_sub(back)
            .saturating_add(amount.saturating_mul(SCALE));
        self.spent <= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_comes_back_evenly() {
        let mut budget = Budget::default();
        for _ in 0..10 {
            assert!(budget.spend(1, 10, 1000, 5));
        }
        assert!(!budget.spend(1, 10, 1000, 5));
        // An amount above the budget is spent, too.
        assert!(!budget.spend(1, 10, 1000, 105));
        assert!(budget.spend(1, 10, 1000, 400));
        assert!(budget.spend(8, 10, 1000, 1_000_000));
        assert!(!budget.spend(u64::MAX, 10, 1000, u64::MAX));
    }
}
