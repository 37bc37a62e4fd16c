//! Messages, by protocol and by their fate.

use super::Scrape;
use crate::config::Protocol;
use crate::metrics::drops::DropTable;
use crate::metrics::ends;
use crate::metrics::meters::MeterSums;
use crate::metrics::page::Page;
use crate::sys::Counts;

/// A number of a door's.
type OfDoor = fn(&Counts) -> u64;

/// Counters by protocol: name, help, and the number.
const BY_PROTOCOL: [(&str, &str, OfDoor); 9] = [
    (
        "sterna_connects",
        "Logins that were accepted: MQTT CONNECT, AMQP open, HTTP subscription",
        |counts| counts.connections,
    ),
    (
        "sterna_packets_received",
        "MQTT packets, AMQP frames and HTTP requests received",
        |counts| counts.messages_received,
    ),
    (
        "sterna_packets_sent",
        "MQTT packets, AMQP transfers and HTTP responses and messages sent",
        |counts| counts.messages_sent,
    ),
    (
        "sterna_received_bytes",
        "Bytes received from clients above TLS, WebSocket and QUIC",
        |counts| counts.bytes_received,
    ),
    (
        "sterna_sent_bytes",
        "Bytes sent to clients above TLS, WebSocket and QUIC",
        |counts| counts.bytes_sent,
    ),
    (
        "sterna_messages_received",
        "Messages that clients have published, those that were refused included",
        |counts| counts.publish_received,
    ),
    (
        "sterna_messages_sent",
        "Messages sent to subscribers, repetitions included",
        |counts| counts.publish_sent,
    ),
    (
        "sterna_payload_received_bytes",
        "Payload bytes of messages received",
        |counts| counts.publish_bytes_received,
    ),
    (
        "sterna_payload_sent_bytes",
        "Payload bytes of messages sent",
        |counts| counts.publish_bytes_sent,
    ),
];

impl Scrape {
    pub(super) fn write_messages(&self, page: &mut Page<'_>, meters: &MeterSums) {
        for (name, help, number) in BY_PROTOCOL {
            let numbers = Protocol::OF_MESSAGES.iter().map(|protocol| {
                let of_shards = self.figures.iter();
                let sum = of_shards.map(|figures| number(&figures.doors[*protocol as usize]));
                ([protocol.name()], sum.sum())
            });
            page.counters(name, help, ["protocol"], numbers);
        }
        let mut drops = DropTable::default();
        for figures in &self.figures {
            drops.add(&figures.drops);
        }
        page.counters(
            "sterna_messages_dropped",
            "Messages that a reader did not get, or that nobody got, by reason",
            ["reason", "protocol"],
            (drops.numbers()).map(|(reason, protocol, number)| ([reason, protocol], number)),
        );
        ends::write(page, &self.figures, &meters.ends);
        for (name, help, number) in [
            (
                "sterna_messages_unmatched",
                "Messages that matched no subscription",
                self.broker(|broker| broker.unmatched_messages),
            ),
            (
                "sterna_messages_rejected",
                "Messages of kept queues that consumers rejected",
                self.broker(|broker| broker.rejected_messages),
            ),
            (
                "sterna_messages_dead_lettered",
                "Messages of kept queues published to their dead letters",
                self.broker(|broker| broker.dead_lettered),
            ),
            (
                "sterna_messages_repeated",
                "Messages of repeated first flights that were acknowledged and not done again",
                meters.repetitions,
            ),
            (
                "sterna_wills_published",
                "Wills published",
                self.broker(|broker| broker.wills_published),
            ),
            (
                "sterna_sessions_moved",
                "Sessions that came from another shard",
                self.broker(|broker| broker.sessions_claimed),
            ),
        ] {
            page.counter(name, help, number);
        }
        page.counters(
            "sterna_messages_not_retained",
            "Messages that were delivered, and not retained because of a limit",
            ["protocol"],
            meters
                .not_retained()
                .map(|(protocol, number)| ([protocol], number)),
        );
        page.histograms(
            "sterna_delivery_delay_seconds",
            "Time from the publication of a message to its first delivery",
            "protocol",
            meters.delays(),
        );
    }
}
