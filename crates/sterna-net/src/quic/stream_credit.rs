//! Number of streams that a client may have open at once.

use quinn_proto::Dir;

use super::connection::{Connected, Shared};

/// Growth limit of the permitted streams for a client that uses them one after the other, as with a
/// stream per message. More of them mean fewer MAX_STREAMS frames, and about 50 bytes each.
const SEQUENTIAL_STREAMS: u32 = 32;
/// Round trips (plus an acknowledgement's delay) that the client's remaining streams must last at
/// its pace. Otherwise it may have to wait for the next grant. A bidirectional stream ends when the
/// client has acknowledged its end: a round trip and a half after it was opened. The grant takes
/// half a round trip.
const HURRIED_ROUND_TRIPS: u128 = 3;
/// Delay of a client's acknowledgement (RFC 9000, section 18.2: the default).
const ACK_DELAY_MS: u128 = 25;

/// A client's granted streams; two values each, for bidirectional and unidirectional streams.
#[derive(Debug, Default)]
pub(super) struct StreamCredit {
    /// Streams that it may have open at once; 0 before it opened one.
    limits: [u32; 2],
    /// Number of its requests for more.
    blocked: [u32; 2],
    /// When it was granted more, by the driver's clock.
    granted_ms: [u32; 2],
}

impl Connected {
    /// Permits more streams to a client that says that it has no more (STREAMS_BLOCKED; RFC 9000,
    /// section 4.6). The server does not see streams that the client has opened and not written to.
    pub(super) fn heed_blocked(&mut self, shared: &Shared) {
        let most = |dir: Dir| shared.config.streams(dir).1;
        let dirs = [Dir::Bi, Dir::Uni];
        if dirs
            .iter()
            .all(|&dir| self.credit.limits[dir as usize] >= most(dir))
        {
            return;
        }
        let frames = self.quic.stats().frame_rx;
        let told = [frames.streams_blocked_bidi, frames.streams_blocked_uni];
        for dir in dirs {
            let told = told[dir as usize] as u32;
            if std::mem::replace(&mut self.credit.blocked[dir as usize], told) == told {
                continue;
            }
            self.tend_limit(shared, dir);
            let limit = &mut self.credit.limits[dir as usize];
            if *limit < most(dir) {
                *limit = limit.saturating_mul(2).min(most(dir));
                self.permit(shared, dir);
            }
        }
    }

    /// Raises the number of streams that the client may have open, and renews it one part at a time. It is
    /// raised in three cases. The client uses more than half of it, or needs many one after the other. Or
    /// it would use up the rest before the next grant can arrive.
    ///
    /// Permitted streams cost memory, so few are permitted at first. The library would send
    /// MAX_STREAMS for each used eighth of the limit. So the target stays below the limit by
    /// [`sterna_quic::Settings::stream_credit_watermark_percent`]. When that part is used up, the
    /// target is raised to the whole for a moment: one frame renews the part.
    pub(super) fn tend_limit(&mut self, shared: &Shared, dir: Dir) {
        let (initial, max) = shared.config.streams(dir);
        let limit = &mut self.credit.limits[dir as usize];
        if *limit == 0 {
            *limit = initial;
            self.credit.granted_ms[dir as usize] = shared.clock_ms();
            let low = low_watermark(shared, initial);
            self.quic.set_max_concurrent_streams(dir, low.into());
        }
        let low = low_watermark(shared, *limit);
        let open = self.quic.streams().remote_open_streams(dir);
        let is_short = open * 2 > u64::from(*limit) && *limit < max;
        if !is_short && self.quic.max_concurrent_streams(dir) > u64::from(low) {
            return;
        }
        let used_in_ms = shared
            .clock_ms()
            .wrapping_sub(self.credit.granted_ms[dir as usize]);
        let enough_ms = self.quic.rtt().as_millis() * HURRIED_ROUND_TRIPS + ACK_DELAY_MS;
        let is_hurried =
            u128::from(used_in_ms) * u128::from(low) < enough_ms * u128::from(*limit - low);
        let most = if is_short || is_hurried {
            max
        } else {
            SEQUENTIAL_STREAMS.min(max).max(*limit)
        };
        *limit = limit.saturating_mul(2).min(most);
        self.permit(shared, dir);
    }

    /// Grants as many streams as the limit says at once, and the next ones only when enough of them are
    /// used.
    fn permit(&mut self, shared: &Shared, dir: Dir) {
        let limit = self.credit.limits[dir as usize];
        self.credit.granted_ms[dir as usize] = shared.clock_ms();
        self.quic.set_max_concurrent_streams(dir, limit.into());
        let low = low_watermark(shared, limit);
        self.quic.set_max_concurrent_streams(dir, low.into());
    }
}

/// The number of permitted streams below which more are granted.
fn low_watermark(shared: &Shared, limit: u32) -> u32 {
    let percent = u32::from(shared.config.settings.stream_credit_watermark_percent);
    limit - (limit * percent).div_ceil(100)
}
