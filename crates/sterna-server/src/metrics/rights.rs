//! Rights of sessions that went and came back, and sessions that the broker let go.

use super::page::Page;
use super::scrape::Scrape;

impl Scrape {
    /// Writes the counters of what was taken from sessions.
    pub(super) fn write_rights(&self, page: &mut Page<'_>) {
        for (name, help, number) in [
            (
                "sterna_subscriptions_lost_right",
                "Times that a subscription lost its right, and gets nothing until it is back",
                self.broker(|broker| broker.rights_lost),
            ),
            (
                "sterna_subscriptions_regained_right",
                "Times that the right of a subscription came back",
                self.broker(|broker| broker.rights_returned),
            ),
            (
                "sterna_sessions_of_missing_users_ended",
                "Sessions of missing users that ended because memory or the store was short",
                self.broker(|broker| broker.missing_ended),
            ),
            (
                "sterna_sessions_of_heaviest_ended",
                "Sessions that ended because memory was short and their user or address held most",
                self.broker(|broker| broker.sessions_shed),
            ),
            (
                "sterna_store_readers_let_go",
                "Clients that were disconnected because their session held most of a nearly full store",
                self.broker(|broker| broker.let_go),
            ),
        ] {
            page.counter(name, help, number);
        }
    }
}
