//! Each shard.

use sterna_net::ShardFigures;

use super::Scrape;
use crate::metrics::figures::Figures;
use crate::metrics::page::Page;

/// A number of a shard's.
type OfShard = fn(&Figures, &ShardFigures) -> u64;

/// Counters by shard.
const BY_SHARD: [(&str, &str, OfShard); 3] = [
    (
        "sterna_shard_turns",
        "Turns of the shard's loop",
        |_, net| net.turns,
    ),
    (
        "sterna_shard_messages_received",
        "Messages published on the shard, the broker's own included",
        |figures, _| figures.broker.received_messages,
    ),
    (
        "sterna_shard_messages_sent",
        "Messages that the shard has handed to its consumers",
        |figures, _| figures.broker.sent_messages,
    ),
];

/// Gauges by shard.
const GAUGES_BY_SHARD: [(&str, &str, OfShard); 5] = [
    (
        "sterna_shard_half_open_connections",
        "Connections in their handshake",
        |_, net| net.half_open,
    ),
    (
        "sterna_shard_sessions",
        "Sessions of the shard, connected or not",
        |figures, _| figures.broker.sessions,
    ),
    (
        "sterna_shard_queued_messages",
        "Messages that wait in the shard's queues, or are sent and not settled",
        |figures, _| figures.broker.stored_messages + figures.broker.logged_messages,
    ),
    (
        "sterna_shard_logged_messages",
        "Of them, messages of queues that wait in the log and not in memory",
        |figures, _| figures.broker.logged_messages,
    ),
    (
        "sterna_shard_letters",
        "Letters of other threads that the shard has not taken yet",
        |figures, _| figures.letters,
    ),
];

impl Scrape {
    pub(super) fn write_shards(&self, page: &mut Page<'_>) {
        let shards = self.figures.iter().enumerate();
        let shards: Vec<(String, &Figures, ShardFigures)> = shards
            .map(|(number, figures)| {
                let transports = self.sources.transports.get(number);
                let transports = transports.map(|shard| shard.figures());
                (number.to_string(), figures, transports.unwrap_or_default())
            })
            .collect();
        for (name, help, number) in BY_SHARD {
            let numbers = shards.iter();
            let numbers = numbers.map(|(shard, figures, net)| ([shard], number(figures, net)));
            page.counters(name, help, ["shard"], numbers);
        }
        for (name, help, number) in GAUGES_BY_SHARD {
            let numbers = shards.iter();
            let numbers = numbers.map(|(shard, figures, net)| ([shard], number(figures, net)));
            page.gauges(name, help, ["shard"], numbers);
        }
    }
}
