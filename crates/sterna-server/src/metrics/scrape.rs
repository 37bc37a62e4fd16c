//! One scrape: the gathered numbers, and their page.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use sterna_broker::{Directory, Limits};
use sterna_net::quic::Counters as QuicCounters;
use sterna_net::{ListenerFigures, RefusedConnection, ShardFigures};
use sterna_store::UsageReader;

use super::drops::DropTable;
use super::figures::Figures;
use super::histogram::Observed;
use super::meters::{Distribution, MeterSums};
use super::page::Page;
use super::{Sources, ends, page};
use crate::config::Protocol;
use crate::holding;
use crate::identity::{Issuer, Webhook};
use crate::memory::{Memory, Stage};
use crate::node_clock::{Doubt, NodeClock};
use crate::sys::{Counts, Process};

/// The numbers of one scrape.
#[derive(Debug)]
pub(crate) struct Scrape {
    sources: Arc<Sources>,
    /// By shard.
    figures: Vec<Figures>,
    directory: Arc<Directory>,
    memory: Arc<Memory>,
    /// Passwords that are being checked, or wait for that.
    open_checks: u64,
    webhook: Arc<Webhook>,
    issuer: Arc<Issuer>,
}

/// A number of a listener's.
type OfListener = fn(&ListenerFigures) -> u64;
/// A number of a QUIC listener's.
type OfQuic = fn(&QuicCounters) -> u64;
/// Name, help, a label beside the listener, and the number for each of its values.
type Labelled = (
    &'static str,
    &'static str,
    &'static str,
    [(&'static str, OfQuic); 2],
);
/// A number of a door's.
type OfDoor = fn(&Counts) -> u64;
/// A number of a shard's.
type OfShard = fn(&Figures, &ShardFigures) -> u64;

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
const BY_QUIC_LISTENER: [(&str, &str, OfQuic); 6] = [
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
        "sterna_quic_refused_protocols",
        "Handshakes refused because nothing that the client offered is served (ALPN)",
        |quic| quic.refused_protocols,
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
    /// Puts the answers of the shards, in their order, together with the other sources.
    pub(crate) fn new(
        sources: Arc<Sources>,
        figures: Vec<Figures>,
        (directory, memory): (Arc<Directory>, Arc<Memory>),
        open_checks: u64,
        (webhook, issuer): (Arc<Webhook>, Arc<Issuer>),
    ) -> Self {
        Self {
            sources,
            figures,
            directory,
            memory,
            open_checks,
            webhook,
            issuer,
        }
    }

    /// The media type of the page.
    pub(crate) const MEDIA_TYPE: &'static str = page::MEDIA_TYPE;

    /// The page.
    ///
    /// # Errors
    /// None that is known: it is written to memory.
    pub(crate) fn page(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        text::encode(&mut page, &registry)?;
        Ok(page)
    }

    fn write_process(&self, page: &mut Page<'_>) {
        // Not of the type `info`, which older readers of the format do not know.
        page.gauges(
            "sterna_build_info",
            "The version of the broker; always 1",
            ["version"],
            [([env!("CARGO_PKG_VERSION")], 1)],
        );
        page.gauge(
            "process_start_time_seconds",
            "When the broker started, in seconds since the Unix epoch",
            self.sources.started_ms / 1000,
        );
        let process = Process::read();
        page.counter_of_seconds(
            "process_cpu_seconds",
            "Processor time that the process has used",
            process.cpu_s,
        );
        page.gauge(
            "process_resident_memory_bytes",
            "Resident memory of the process",
            process.resident_bytes,
        );
        self.write_clock(page);
        self.write_memory(page, &process);
        super::trust::write(&self.sources, &self.issuer, page);
    }

    fn write_clock(&self, page: &mut Page<'_>) {
        // Without a store nothing is dated for a later process.
        let doubt = self.sources.clock().and_then(NodeClock::doubt);
        let ahead_ms = (self.sources.clock()).map_or(0, NodeClock::wall_ahead_ms);
        page.gauges(
            "sterna_clock_in_doubt",
            "Whether the wall clock is far from the node's, so that nothing expires by it: 1 for the reason",
            ["reason"],
            [Doubt::Behind, Doubt::Ahead]
                .map(|reason| ([reason.name()], u64::from(doubt == Some(reason)))),
        );
        page.gauges(
            "sterna_clock_difference_seconds",
            "How far the wall clock is ahead of the node's clock, or behind it",
            ["wall_clock"],
            {
                let seconds = ahead_ms.unsigned_abs() / 1000;
                let of = |is_it| if is_it { seconds } else { 0 };
                [
                    (["ahead"], of(ahead_ms > 0)),
                    (["behind"], of(ahead_ms < 0)),
                ]
            },
        );
    }

    /// The resident memory by kind, as far as it is accounted for.
    fn write_memory(&self, page: &mut Page<'_>, process: &Process) {
        let kinds = self.sources.memory(&self.memory, process).into_iter();
        page.gauges(
            "sterna_memory_bytes",
            "Memory by kind, as the broker's account has it; what else is resident is unaccounted",
            ["kind"],
            kinds.map(|(kind, bytes)| ([kind], bytes)),
        );
        page.gauge(
            "sterna_memory_ceiling_bytes",
            "The ceiling of memory; 0 where there is none",
            self.memory.ceiling_bytes().unwrap_or(0),
        );
        page.gauge(
            "sterna_memory_used_bytes",
            "What is compared with the ceiling: the account or the resident memory, whichever is more",
            self.memory.used_bytes(),
        );
        let stage = self.memory.stage();
        page.gauges(
            "sterna_memory_stage",
            "Stages of short memory: 1 for those in force",
            ["stage"],
            Stage::SHORT.map(|short| ([short.name()], u64::from(short <= stage))),
        );
        let entered = Stage::SHORT.iter().zip(self.memory.entered());
        page.counters(
            "sterna_memory_stages_entered",
            "How often a stage of short memory was entered",
            ["stage"],
            entered.map(|(stage, times)| ([stage.name()], times)),
        );
    }

    fn write_sessions(&self, page: &mut Page<'_>) {
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
        let (retained_messages, retained_bytes) = self.directory.retained();
        page.gauge(
            "sterna_retained_messages",
            "Retained messages",
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
        ];
        page.gauges(
            "sterna_used",
            "What is used of limits that no other metric shows",
            ["resource"],
            used.into_iter().map(|(resource, used)| ([resource], used)),
        );
    }

    fn write_messages(&self, page: &mut Page<'_>, meters: &MeterSums) {
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

    pub(super) fn broker(&self, number: fn(&sterna_broker::Counters) -> u64) -> u64 {
        self.figures
            .iter()
            .map(|figures| number(&figures.broker))
            .sum()
    }

    fn write_logins(page: &mut Page<'_>, meters: &MeterSums) {
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

    fn write_holds(&self, page: &mut Page<'_>) {
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

    fn write_listeners(&self, page: &mut Page<'_>) {
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
            ("failed", |listener| listener.failed_handshakes),
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
                [
                    ("accepted", |quic| quic.opened_early),
                    ("refused", |quic| quic.early_refused),
                ],
            ),
            (
                "sterna_quic_datagrams_dropped",
                "Datagrams dropped because a limit of a handshake was reached",
                "reason",
                [
                    ("early_data", |quic| quic.early_dropped),
                    ("held_back", |quic| quic.held_back_dropped),
                ],
            ),
        ];
        for (name, help, key, values) in labelled {
            let numbers = quic_names.clone().flat_map(|(at, name)| {
                values.map(|(value, number)| ([name.as_str(), value], of_quic(at, number)))
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

    fn write_tickets(&self, page: &mut Page<'_>) {
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

    fn write_store(&self, page: &mut Page<'_>) {
        let store = self.sources.store.as_ref();
        let usage = store.map(UsageReader::usage).unwrap_or_default();
        for (name, help, number) in [
            (
                "sterna_store_segments",
                "Segments of the log",
                usage.segments,
            ),
            ("sterna_store_bytes", "Bytes of the log", usage.log_bytes),
            (
                "sterna_store_unwritten_bytes",
                "Bytes that wait to be written",
                usage.unwritten_bytes,
            ),
            (
                "sterna_store_unsynced_frames",
                "Frames that are written and not synced",
                usage.unsynced_frames,
            ),
            (
                "sterna_store_full",
                "1 while the store refuses messages",
                u64::from(usage.is_full),
            ),
            (
                "sterna_store_damaged_places",
                "Damaged places that were found",
                usage.damaged_places,
            ),
        ] {
            page.gauge(name, help, number);
        }
        for (name, help, number) in [
            (
                "sterna_store_written_bytes",
                "Bytes written to the log",
                usage.written_bytes,
            ),
            (
                "sterna_store_rewritten_segments",
                "Segments that were rewritten to what their few readers need",
                usage.rewritten_segments,
            ),
            (
                "sterna_store_rewrite_freed_bytes",
                "Bytes that rewritten segments have lost",
                usage.rewrite_freed_bytes,
            ),
            (
                "sterna_store_failures",
                "Writes and syncs of the log that failed",
                usage.failures,
            ),
            (
                "sterna_sessions_fallen_behind",
                "Times that a session fell behind its publishers, and reads the log since",
                self.broker(|broker| broker.fallen_behind),
            ),
        ] {
            page.counter(name, help, number);
        }
        let syncs = Distribution {
            label: "",
            observed: Observed::new(usage.syncs.buckets, usage.syncs.sum_us),
            unit: 64e-6,
            sum_unit: 1e-6,
        };
        page.histogram("sterna_store_sync_seconds", "Durations of syncs", &syncs);
    }

    fn write_shards(&self, page: &mut Page<'_>) {
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

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut meters = MeterSums::default();
        for shard in &self.sources.meters {
            shard.add_to(&mut meters);
        }
        let mut page = Page::new(encoder);
        self.write_process(&mut page);
        self.write_sessions(&mut page);
        self.write_messages(&mut page, &meters);
        Self::write_logins(&mut page, &meters);
        self.write_holds(&mut page);
        self.write_listeners(&mut page);
        self.write_tickets(&mut page);
        super::webhook::write(&self.webhook, &mut page);
        self.write_store(&mut page);
        super::cluster::write(self.sources.cluster.as_ref(), &mut page);
        page.histograms(
            "sterna_client_round_trip_seconds",
            "Round trips of clients, in a sample of all",
            "transport",
            meters.round_trips(),
        );
        page.histograms(
            "sterna_client_loss_ratio",
            "Part of a connection's packets that was lost so far, in a sample of all",
            "transport",
            meters.losses(),
        );
        self.write_shards(&mut page);
        page.written()
    }
}
