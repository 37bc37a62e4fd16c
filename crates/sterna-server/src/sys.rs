//! `$SYS` topics, named as Mosquitto names them, so that existing dashboards work.

use std::sync::{Mutex, PoisonError};

/// Counts of one shard, summed over all shards for `$SYS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions with a connection.
    pub clients_connected: u64,
    /// Sessions without one, also those that keep queues.
    pub sessions_away: u64,
    /// Queues, each of which is kept by a session that nobody attends.
    pub queues: u64,
    /// Sessions that ended because their expiry interval passed.
    pub clients_expired: u64,
    /// Connections accepted, with or without CONNECT.
    pub sockets: u64,
    /// CONNECT packets accepted.
    pub connections: u64,
    /// MQTT packets received.
    pub messages_received: u64,
    /// MQTT packets sent.
    pub messages_sent: u64,
    /// Bytes received from clients above the transport.
    pub bytes_received: u64,
    /// Bytes sent to clients above the transport.
    pub bytes_sent: u64,
    /// PUBLISH packets received.
    pub publish_received: u64,
    /// PUBLISH packets sent.
    pub publish_sent: u64,
    /// Messages dropped because a limit was reached or they expired.
    pub publish_dropped: u64,
    /// Payload bytes of PUBLISH packets received.
    pub publish_bytes_received: u64,
    /// Payload bytes of PUBLISH packets sent.
    pub publish_bytes_sent: u64,
    /// Messages that wait in queues.
    pub queued_messages: u64,
    /// Bytes of messages that wait in queues.
    pub queued_bytes: u64,
    /// Subscriptions.
    pub subscriptions: u64,
    /// Shared subscriptions among them.
    pub shared_subscriptions: u64,
}

impl Counts {
    /// Clients that are away and have a session. Of the counts of all shards together: one shard may have the
    /// session of a queue that another has made.
    pub(crate) const fn clients_disconnected(&self) -> u64 {
        self.sessions_away.saturating_sub(self.queues)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.clients_connected += other.clients_connected;
        self.sessions_away += other.sessions_away;
        self.queues += other.queues;
        self.clients_expired += other.clients_expired;
        self.sockets += other.sockets;
        self.connections += other.connections;
        self.messages_received += other.messages_received;
        self.messages_sent += other.messages_sent;
        self.bytes_received += other.bytes_received;
        self.bytes_sent += other.bytes_sent;
        self.publish_received += other.publish_received;
        self.publish_sent += other.publish_sent;
        self.publish_dropped += other.publish_dropped;
        self.publish_bytes_received += other.publish_bytes_received;
        self.publish_bytes_sent += other.publish_bytes_sent;
        self.queued_messages += other.queued_messages;
        self.queued_bytes += other.queued_bytes;
        self.subscriptions += other.subscriptions;
        self.shared_subscriptions += other.shared_subscriptions;
    }
}

/// Counts of all shards, each written by its shard; the first shard sums them up.
#[derive(Debug)]
pub struct Board {
    shards: Mutex<Vec<Counts>>,
}

impl Board {
    /// A board for a number of shards.
    #[must_use]
    pub fn new(shards: usize) -> Self {
        Self {
            shards: Mutex::new(vec![Counts::default(); shards]),
        }
    }

    /// Leaves one shard's counts.
    pub fn post(&self, shard: usize, counts: Counts) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = shards.get_mut(shard) {
            *place = counts;
        }
    }

    /// The sum over all shards.
    #[must_use]
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in self
            .shards
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            total.add(counts);
        }
        total
    }
}

/// Turns counts into `$SYS` topics and values, keeping the averages between calls.
#[derive(Debug)]
pub struct Reporter {
    started_ms: u64,
    last_ms: u64,
    last: Counts,
    maximum_clients: u64,
    averages: [[f64; 3]; LOADS.len()],
}

type Field = fn(&Counts) -> u64;

/// The counts that are averaged over 1, 5 and 15 minutes, per minute.
const LOADS: [(&str, Field); 9] = [
    ("connections", |c| c.connections),
    ("sockets", |c| c.sockets),
    ("messages/received", |c| c.messages_received),
    ("messages/sent", |c| c.messages_sent),
    ("bytes/received", |c| c.bytes_received),
    ("bytes/sent", |c| c.bytes_sent),
    ("publish/received", |c| c.publish_received),
    ("publish/sent", |c| c.publish_sent),
    ("publish/dropped", |c| c.publish_dropped),
];

const WINDOWS: [(&str, f64); 3] = [("1min", 60.0), ("5min", 300.0), ("15min", 900.0)];

impl Reporter {
    /// A reporter for a broker that started at `now_ms`.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self {
            started_ms: now_ms,
            last_ms: now_ms,
            last: Counts::default(),
            maximum_clients: 0,
            averages: [[0.0; 3]; LOADS.len()],
        }
    }

    /// Topics (without the leading `$SYS/broker/`) and values at `now_ms`. `retained` is the number
    /// and the bytes of retained messages.
    pub fn report(
        &mut self,
        now_ms: u64,
        counts: &Counts,
        retained: (u64, u64),
    ) -> Vec<(String, String)> {
        self.maximum_clients = self.maximum_clients.max(counts.clients_connected);
        let mut topics: Vec<(String, String)> = Vec::with_capacity(64);
        let mut put = |topic: &str, value: String| topics.push((topic.to_owned(), value));
        put(
            "version",
            format!("sterna version {}", env!("CARGO_PKG_VERSION")),
        );
        put(
            "uptime",
            format!("{} seconds", now_ms.saturating_sub(self.started_ms) / 1000),
        );
        for (topic, value) in [
            (
                "clients/total",
                counts.clients_connected + counts.clients_disconnected(),
            ),
            ("clients/connected", counts.clients_connected),
            ("clients/active", counts.clients_connected),
            ("clients/disconnected", counts.clients_disconnected()),
            ("clients/inactive", counts.clients_disconnected()),
            ("clients/maximum", self.maximum_clients),
            ("clients/expired", counts.clients_expired),
            ("messages/received", counts.messages_received),
            ("messages/sent", counts.messages_sent),
            ("messages/stored", counts.queued_messages + retained.0),
            ("bytes/received", counts.bytes_received),
            ("bytes/sent", counts.bytes_sent),
            ("publish/messages/received", counts.publish_received),
            ("publish/messages/sent", counts.publish_sent),
            ("publish/messages/dropped", counts.publish_dropped),
            ("publish/bytes/received", counts.publish_bytes_received),
            ("publish/bytes/sent", counts.publish_bytes_sent),
            ("retained messages/count", retained.0),
            ("store/messages/count", counts.queued_messages + retained.0),
            ("store/messages/bytes", counts.queued_bytes + retained.1),
            ("subscriptions/count", counts.subscriptions),
            ("shared_subscriptions/count", counts.shared_subscriptions),
        ] {
            put(topic, value.to_string());
        }
        let process = Process::read();
        if process.resident_bytes > 0 {
            put("heap/current", process.resident_bytes.to_string());
            put("heap/maximum", process.most_resident_bytes.to_string());
        }
        let elapsed_s = now_ms.saturating_sub(self.last_ms) as f64 / 1000.0;
        for ((name, field), averages) in LOADS.iter().zip(&mut self.averages) {
            let grown = field(counts).saturating_sub(field(&self.last)) as f64;
            for ((window, seconds), average) in WINDOWS.iter().zip(averages) {
                if elapsed_s > 0.0 {
                    let weight = (-elapsed_s / seconds).exp();
                    *average = weight.mul_add(*average, (1.0 - weight) * grown * 60.0 / elapsed_s);
                }
                put(&format!("load/{name}/{window}"), format!("{average:.2}"));
            }
        }
        self.last = *counts;
        self.last_ms = now_ms;
        topics
    }
}

/// The system's figures of this process; unknown numbers are 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Process {
    /// Resident memory in bytes.
    pub(crate) resident_bytes: u64,
    /// Of this, pages of files: the program and its libraries.
    pub(crate) program_bytes: u64,
    /// The most resident memory so far, in bytes.
    pub(crate) most_resident_bytes: u64,
    /// Processor time in seconds.
    pub(crate) cpu_s: f64,
}

impl Process {
    /// Asks the system.
    pub(crate) fn read() -> Self {
        /// Of `/proc`, on every architecture that Linux has.
        const TICKS_PER_S: f64 = 100.0;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let kib = status.lines().find_map(|line| {
                let kib = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
                kib.trim().parse::<u64>().ok()
            });
            kib.unwrap_or(0) * 1024
        };
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name of the program, which may have spaces, is in parentheses; fields 14 and 15 of all.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 = (after_name.split_whitespace().skip(11).take(2))
            .filter_map(|ticks| ticks.parse::<u64>().ok())
            .sum();
        Self {
            resident_bytes: field("VmRSS:"),
            program_bytes: field("RssFile:"),
            most_resident_bytes: field("VmHWM:"),
            cpu_s: ticks as f64 / TICKS_PER_S,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_shards_are_summed() {
        let board = Board::new(2);
        board.post(
            0,
            Counts {
                subscriptions: 2,
                ..Counts::default()
            },
        );
        board.post(
            1,
            Counts {
                subscriptions: 3,
                publish_sent: 1,
                ..Counts::default()
            },
        );
        assert_eq!(
            board.total(),
            Counts {
                subscriptions: 5,
                publish_sent: 1,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn the_system_tells_of_this_process() {
        let process = Process::read();
        assert!(process.resident_bytes > process.program_bytes);
        assert!(process.program_bytes > 0);
        assert!(process.most_resident_bytes >= process.resident_bytes / 2);
        let busy = |_| Process::read().cpu_s > 0.0;
        assert!((0..1_000_000).any(busy));
    }

    #[test]
    fn a_steady_rate_is_approached_by_its_average() {
        let mut reporter = Reporter::new(0);
        let mut value = String::new();
        for minute in 1..=100 {
            let counts = Counts {
                publish_sent: minute * 120,
                ..Counts::default()
            };
            let topics = reporter.report(minute * 60_000, &counts, (0, 0));
            value = topics
                .into_iter()
                .find(|(t, _)| t == "load/publish/sent/5min")
                .unwrap()
                .1;
        }
        assert_eq!(value, "120.00");
    }
}
