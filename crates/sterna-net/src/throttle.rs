//! A limit on lines of the log that peers cause.

/// Lets one log line through per second and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    quiet_until_ms: u64,
    suppressed: u64,
}

impl Throttle {
    /// Number of lines suppressed since the last one; `None` if this one is suppressed, too.
    pub(crate) fn pass(&mut self, now_ms: u64) -> Option<u64> {
        const QUIET_MS: u64 = 1_000;
        if now_ms < self.quiet_until_ms {
            self.suppressed += 1;
            return None;
        }
        self.quiet_until_ms = now_ms + QUIET_MS;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_not_flooded() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.pass(5_000), Some(0));
        assert_eq!(throttle.pass(5_001), None);
        assert_eq!(throttle.pass(5_999), None);
        assert_eq!(throttle.pass(6_000), Some(2));
    }
}
