//! A sample of the clients' paths, taken only while metrics are scraped.

use sterna_net::Network;

use super::meters::Meters;

/// Time between two looks, in milliseconds.
const INTERVAL_MS: u64 = 1_000;
/// Connections shown in one look. A look at one costs about a microsecond.
const CONNECTIONS: usize = 256;
/// Time from the last scrape to the end of the survey, in milliseconds.
const INTEREST_MS: u64 = 300_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    next_ms: Option<u64>,
    until_ms: u64,
}

impl Survey {
    /// Starts the survey, or lets it go on, because metrics were scraped.
    pub(crate) fn wanted(&mut self, now_ms: u64) {
        self.until_ms = now_ms + INTEREST_MS;
        self.next_ms.get_or_insert(now_ms + INTERVAL_MS);
    }

    /// When [`look`](Self::look) wants to be called, in milliseconds since the Unix epoch.
    pub(crate) const fn deadline_ms(&self) -> Option<u64> {
        self.next_ms
    }

    /// Looks at the next connections, if it is time.
    pub(crate) fn look(&mut self, net: &mut dyn Network, meters: &Meters) {
        let now_ms = net.now_ms();
        if self.next_ms.is_none_or(|next_ms| next_ms > now_ms) {
            return;
        }
        net.survey(CONNECTIONS, &mut |info, path| {
            meters.surveyed(info.transport, path);
        });
        self.next_ms = (now_ms < self.until_ms).then_some(now_ms + INTERVAL_MS);
    }
}
