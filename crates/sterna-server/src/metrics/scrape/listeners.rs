//! Listeners, QUIC among them, and tickets of TLS.

use sterna_net::quic::Counters as QuicCounters;
use sterna_net::{HandshakeFault, ListenerFigures, RefusedConnection};

use super::Scrape;
use crate::metrics::page::Page;

/// A number of a listener's.
type OfListener = fn(&ListenerFigures) -> u64;
/// A number of a QUIC listener's.
type OfQuic = fn(&QuicCounters) -> u64;
/// Name, help, a label beside the listener, and the number for each of its values.
type Labelled = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, OfQuic)],
);

/// Counters by listener.
const BY_LISTENER: [(&str, &str, OfListener); 3] = [
    (
        "sterna_listener_accepted",
        "Connections taken in; of QUIC, handshakes begun",
        |listener| listener.accepted,
    ),
    (
        "sterna_listener_received_bytes",
        "Bytes read from the sockets, without the headers of IP, UDP and TCP",
        |listener| listener.received_bytes,
    ),
    (
        "sterna_listener_sent_bytes",
        "Bytes written to the sockets, without the headers of IP, UDP and TCP",
        |listener| listener.sent_bytes,
    ),
];

/// Counters by QUIC listener.
const BY_QUIC_LISTENER: [(&str, &str, OfQuic); 5] = [
    (
        "sterna_quic_retries",
        "First packets answered with Retry",
        |quic| quic.retried,
    ),
    (
        "sterna_quic_ignored",
        "First packets left unanswered, or refused, because of a limit on connections",
        |quic| quic.ignored,
    ),
    (
        "sterna_quic_amplification_stops",
        "Datagrams held back or dropped because the address was not proved",
        |quic| quic.amplification_stops,
    ),
    (
        "sterna_quic_migrations",
        "Validated changes of a client's address",
        |quic| quic.migrations,
    ),
    (
        "sterna_quic_held_back_datagrams",
        "Datagrams held back until the handshake was finished",
        |quic| quic.held_back,
    ),
];

impl Scrape {
    pub(super) fn write_listeners(&self, page: &mut Page<'_>) {
        let by_shard: Vec<_> = (self.sources.transports.iter())
            .map(|shard| shard.listeners())
            .collect();
        let names = self.sources.listeners.iter().enumerate();
        let sum = |at: usize, number: &dyn Fn(&ListenerFigures) -> u64| -> u64 {
            by_shard
                .iter()
                .filter_map(|shard| shard.get(at))
                .map(number)
                .sum()
        };
        let is_quic = |at: usize| by_shard.iter().any(|shard| shard[at].quic.is_some());
        page.gauges(
            "sterna_listener_connections",
            "Connections now, those in their handshake or closing included",
            ["listener"],
            (names.clone()).map(|(at, name)| ([name], sum(at, &|listener| listener.connections))),
        );
        for (name, help, number) in BY_LISTENER {
            let numbers = names.clone().map(|(at, name)| ([name], sum(at, &number)));
            page.counters(name, help, ["listener"], numbers);
        }
        let refused = names.clone().filter(|(at, _)| !is_quic(*at));
        let refused = refused.flat_map(|(at, name)| {
            RefusedConnection::ALL.map(|reason| {
                let number = sum(at, &|listener| listener.refused[reason as usize]);
                ([name.as_str(), reason.name()], number)
            })
        });
        page.counters(
            "sterna_listener_refused",
            "Connections of TCP that were closed as they came, by the limit that was reached",
            ["listener", "reason"],
            refused,
        );
        let kinds: [(&str, OfListener); 3] = [
            ("full", |listener| {
                listener.handshakes.saturating_sub(listener.resumed)
            }),
            ("resumed", |listener| listener.resumed),
            ("failed", |listener| listener.failed.iter().sum()),
        ];
        let handshakes = names.clone().flat_map(|(at, name)| {
            kinds.map(|(kind, number)| ([name.as_str(), kind], sum(at, &number)))
        });
        page.counters(
            "sterna_handshakes",
            "Handshakes of TLS and QUIC, and upgrades to WebSocket that failed",
            ["listener", "kind"],
            handshakes,
        );
        let failed = names.clone().flat_map(|(at, name)| {
            HandshakeFault::ALL.map(|fault| {
                let number = sum(at, &|listener| listener.failed[fault as usize]);
                ([name.as_str(), fault.name()], number)
            })
        });
        page.counters(
            "sterna_handshakes_failed",
            "Handshakes of TLS and QUIC, and upgrades to WebSocket, that failed, by their fault",
            ["listener", "reason"],
            failed,
        );
        let quic_names = names.filter(|(at, _)| is_quic(*at));
        let of_quic = |at: usize, number: OfQuic| {
            sum(at, &|listener| listener.quic.as_ref().map_or(0, number))
        };
        for (name, help, number) in BY_QUIC_LISTENER {
            let numbers = quic_names.clone();
            let numbers = numbers.map(|(at, name)| ([name], of_quic(at, number)));
            page.counters(name, help, ["listener"], numbers);
        }
        let labelled: [Labelled; 2] = [
            (
                "sterna_quic_early_data",
                "Connections with early data (0-RTT), by its fate",
                "verdict",
                &[
                    ("accepted", |quic| quic.opened_early),
                    ("refused", |quic| quic.early_refused),
                ],
            ),
            (
                "sterna_quic_datagrams_dropped",
                "Datagrams dropped because a limit of a handshake, or of unread bytes while memory is short, was reached",
                "reason",
                &[
                    ("early_data", |quic| quic.early_dropped),
                    ("held_back", |quic| quic.held_back_dropped),
                    ("unread", |quic| quic.unread_dropped),
                ],
            ),
        ];
        for (name, help, key, values) in labelled {
            let numbers = quic_names.clone().flat_map(|(at, name)| {
                values
                    .iter()
                    .map(move |&(value, number)| ([name.as_str(), value], of_quic(at, number)))
            });
            page.counters(name, help, ["listener", key], numbers);
        }
        let datagrams: [(&str, OfListener); 2] = [
            ("received", |listener| listener.received_datagrams),
            ("sent", |listener| listener.sent_datagrams),
        ];
        let datagrams = quic_names.flat_map(|(at, name)| {
            datagrams.map(|(direction, number)| ([name.as_str(), direction], sum(at, &number)))
        });
        page.counters(
            "sterna_quic_datagrams",
            "Datagrams that went through the sockets of QUIC",
            ["listener", "direction"],
            datagrams,
        );
    }

    pub(super) fn write_tickets(&self, page: &mut Page<'_>) {
        let tickets = self.sources.tickets.as_ref();
        let usage = tickets.map(|tickets| tickets.usage()).unwrap_or_default();
        page.gauge(
            "sterna_tickets",
            "Sessions of QUIC that can be resumed",
            usage.sessions as u64,
        );
        page.counter(
            "sterna_tickets_evicted",
            "Sessions of QUIC that made room for newer ones",
            usage.evicted,
        );
        page.counter(
            "sterna_tickets_unknown",
            "Tickets of QUIC that named no session: used before, as in a replay, pushed out, or of before a restart",
            usage.unknown,
        );
    }
}
