//! Sessions and their limits, logins, and publishers that wait for readers.

use sterna_broker::Limits;

use super::Scrape;
use crate::holding;
use crate::metrics::meters::MeterSums;
use crate::metrics::page::Page;
use crate::sys::Counts;

impl Scrape {
    pub(super) fn write_sessions(&self, page: &mut Page<'_>) {
        let mut sys = Counts::default();
        for figures in &self.figures {
            sys.add(&figures.sys);
        }
        page.gauges(
            "sterna_clients",
            "Clients by whether they are connected; those that are not have a session",
            ["state"],
            [
                (["connected"], sys.clients_connected),
                (["disconnected"], sys.clients_disconnected()),
            ],
        );
        for (name, help, number) in [
            ("sterna_subscriptions", "Subscriptions", sys.subscriptions),
            (
                "sterna_shared_subscriptions",
                "Shared subscriptions among them",
                sys.shared_subscriptions,
            ),
            (
                "sterna_queued_messages",
                "Messages that wait in queues, or are sent and not settled",
                sys.queued_messages,
            ),
            (
                "sterna_queued_bytes",
                "Bytes of the bodies of those in memory; a body that several queues share counts in each",
                sys.queued_bytes,
            ),
            (
                "sterna_password_checks",
                "Passwords that are being checked, or wait for that",
                self.open_checks,
            ),
        ] {
            page.gauge(name, help, number);
        }
        let (retained_messages, retained_bytes) = self.directory.retained_of_clients();
        page.gauge(
            "sterna_retained_messages",
            "Retained messages without those of $SYS",
            retained_messages as u64,
        );
        page.gauge(
            "sterna_retained_bytes",
            "Bytes of retained messages",
            retained_bytes as u64,
        );
        page.counter(
            "sterna_connections_opened",
            "Connections of all transports that were ready for a protocol",
            sys.sockets,
        );
        page.counter(
            "sterna_sessions_expired",
            "Sessions that ended because their expiry interval had passed",
            sys.clients_expired,
        );
        self.write_rights(page);
        self.write_limits(page);
    }

    /// Limits, for rules that warn before they are reached.
    fn write_limits(&self, page: &mut Page<'_>) {
        let limits: &Limits = self.directory.limits();
        let limits = [
            ("connections", self.sources.maximum_connections),
            ("sessions", limits.sessions as u64),
            ("subscriptions", limits.subscriptions as u64),
            ("message_bytes", limits.message_bytes),
            ("retained_messages", limits.retained_messages as u64),
            ("retained_bytes", limits.retained_bytes as u64),
            ("will_bytes", limits.will_bytes as u64),
            ("principals", limits.principals as u64),
            ("cluster_log_bytes", self.sources.cluster_log_bytes()),
        ];
        page.gauges(
            "sterna_limit",
            "Limits of the whole broker, from the configuration",
            ["resource"],
            limits
                .into_iter()
                .map(|(resource, limit)| ([resource], limit)),
        );
        let used = [
            ("sessions", self.directory.sessions() as u64),
            ("message_bytes", self.directory.message_bytes()),
            ("will_bytes", self.directory.will_bytes() as u64),
            ("principals", self.directory.principals().len() as u64),
        ];
        page.gauges(
            "sterna_used",
            "What is used of limits that no other metric shows",
            ["resource"],
            used.into_iter().map(|(resource, used)| ([resource], used)),
        );
    }

    pub(super) fn write_logins(page: &mut Page<'_>, meters: &MeterSums) {
        let failures = meters.login_failures();
        page.counters(
            "sterna_logins_refused",
            "Clients, and requests of HTTP, that did not get in, by reason",
            ["protocol", "reason"],
            failures.map(|(protocol, reason, number)| ([protocol, reason], number)),
        );
        page.counters(
            "sterna_early_data_held",
            "Connections of which early data waited for the end of the handshake",
            ["protocol"],
            meters
                .early_held()
                .map(|(protocol, number)| ([protocol], number)),
        );
        page.counters(
            "sterna_clients_paused",
            "Pauses of clients that published faster than they may",
            ["protocol"],
            meters
                .rate_pauses()
                .map(|(protocol, number)| ([protocol], number)),
        );
    }

    pub(super) fn write_holds(&self, page: &mut Page<'_>) {
        let sum = |of: fn(&holding::Figures) -> u64| -> u64 {
            self.figures.iter().map(|shard| of(&shard.holding)).sum()
        };
        for (name, help, number) in [
            (
                "sterna_publishers_held",
                "Publishers that wait for a reader whose queue is half full",
                sum(|holding| holding.held),
            ),
            (
                "sterna_publishers_in_line",
                "Clients whose message goes to many, or whose subscriptions change, and that wait for another turn",
                sum(|holding| holding.lined_up),
            ),
            (
                "sterna_readers_holding",
                "Readers that hold publishers",
                self.broker(|broker| broker.readers_holding),
            ),
        ] {
            page.gauge(name, help, number);
        }
        for (name, help, number) in [
            (
                "sterna_publisher_holds",
                "Times that a publisher began to wait for a reader whose queue is half full",
                sum(|holding| holding.begun),
            ),
            (
                "sterna_publisher_holds_exhausted",
                "Times that a publisher had waited as long as it may, and went on",
                sum(|holding| holding.given_up),
            ),
            (
                "sterna_publisher_waits_in_line",
                "Times that a client began to wait so for another turn",
                sum(|holding| holding.lined_up_times),
            ),
            (
                "sterna_reader_stalls",
                "Times that a reader held nobody any more because it took too little",
                self.broker(|broker| broker.readers_slow),
            ),
        ] {
            page.counter(name, help, number);
        }
        page.counter_of_seconds(
            "sterna_publishers_held_seconds",
            "Time for which publishers have waited for readers",
            sum(|holding| holding.waited_ms) as f64 / 1000.0,
        );
    }
}
