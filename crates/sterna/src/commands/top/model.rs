//! The picture on the screen: two looks at a broker, and the changes between them.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde_json::Value;

use super::super::admin::table::harmless;

/// One look at a broker, as the admin API tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) node: Value,
    pub(super) clients: Vec<Value>,
    /// Whether there are more clients than were read.
    pub(super) has_more: bool,
    pub(super) queues: Vec<Value>,
    /// Nodes of the cluster that have not answered.
    pub(super) unanswered: Vec<String>,
}

/// By what clients are sorted; the largest is first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Sort {
    /// Round trip
    Rtt,
    /// Lost part of what was sent
    Loss,
    /// Messages that wait
    Queue,
    /// Bytes in a second, both ways
    Bytes,
    /// Messages in a second, both ways
    Messages,
}

/// A client in the list.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// Its node; `None` without a cluster.
    pub(super) node: Option<String>,
    pub(super) name: String,
    pub(super) protocol: String,
    pub(super) peer: String,
    pub(super) rtt_us: u64,
    /// In millionths; segments sent again on TCP.
    pub(super) loss_ppm: u64,
    /// `None` where the broker does not know it.
    pub(super) pending: Option<u64>,
    pub(super) in_flight: u64,
    /// In a second.
    pub(super) received_bytes: f64,
    pub(super) sent_bytes: f64,
    /// Both ways.
    pub(super) messages: f64,
}

/// A queue in the list.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) messages: u64,
    pub(super) delayed: u64,
    pub(super) bytes: u64,
    pub(super) consumers: u64,
}

/// A broker between two looks.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    /// The node of a cluster that the counts and rates are of; `None` without one.
    pub(super) node: Option<String>,
    /// Nodes that have not answered.
    pub(super) unanswered: Vec<String>,
    pub(super) version: String,
    pub(super) uptime_s: u64,
    pub(super) clients_connected: u64,
    pub(super) clients_disconnected: u64,
    pub(super) queued_messages: u64,
    pub(super) retained_messages: u64,
    pub(super) resident_bytes: u64,
    /// In hundredths of one processor.
    pub(super) cpu_percent: f64,
    /// In a second, as all rates.
    pub(super) messages_received: f64,
    pub(super) messages_sent: f64,
    pub(super) messages_dropped: f64,
    pub(super) bytes_received: f64,
    pub(super) bytes_sent: f64,
    pub(super) clients: Vec<Client>,
    pub(super) has_more: bool,
    pub(super) queues: Vec<Queue>,
}

fn number(value: &Value, at: &str) -> u64 {
    value.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}

fn text(value: &Value, at: &str) -> String {
    let text = value.pointer(at).and_then(Value::as_str);
    text.map_or_else(|| "-".to_owned(), harmless)
}

impl Picture {
    /// The picture of the broker at `now`, and of its changes since `before`.
    pub(super) fn new(before: &Look, now: &Look, sort: Sort) -> Self {
        let node = &now.node;
        let passed_ms = number(node, "/now_ms").saturating_sub(number(&before.node, "/now_ms"));
        let elapsed_s = (passed_ms as f64 / 1000.0).max(0.001);
        // A broker that was started anew counts from zero.
        let rate =
            |at: &str| number(node, at).saturating_sub(number(&before.node, at)) as f64 / elapsed_s;
        let float = |look: &Look| look.node["cpu_s"].as_f64().unwrap_or(0.0);
        let old: HashMap<&str, &Value> = (before.clients.iter())
            .filter_map(|client| Some((client["id"].as_str()?, client)))
            .collect();
        let mut clients: Vec<Client> = (now.clients.iter())
            .map(|client| {
                let old = client["id"].as_str().and_then(|id| old.get(id));
                Client::new(client, old.copied(), elapsed_s)
            })
            .collect();
        clients.sort_by(|one, other| {
            sort.compare(one, other)
                .then_with(|| one.name.cmp(&other.name))
        });
        // Queues of nodes that do not answer are left out: nobody else knows their messages.
        let here = (now.queues.iter()).filter(|queue| !queue["messages"].is_null());
        let queues = here.map(|queue| Queue {
            name: text(queue, "/name"),
            messages: number(queue, "/messages"),
            delayed: number(queue, "/delayed"),
            bytes: number(queue, "/bytes"),
            consumers: number(queue, "/consumers"),
        });
        let mut queues: Vec<Queue> = queues.collect();
        queues.sort_by(|one, other| {
            let by_depth = other.messages.cmp(&one.messages);
            by_depth.then_with(|| one.name.cmp(&other.name))
        });
        Self {
            node: node["node"].as_str().map(harmless),
            unanswered: now.unanswered.iter().map(|node| harmless(node)).collect(),
            version: text(node, "/version"),
            uptime_s: number(node, "/uptime_s"),
            clients_connected: number(node, "/clients_connected"),
            clients_disconnected: number(node, "/clients_disconnected"),
            queued_messages: number(node, "/queued_messages"),
            retained_messages: number(node, "/retained_messages"),
            resident_bytes: number(node, "/resident_bytes"),
            cpu_percent: (float(now) - float(before)).max(0.0) / elapsed_s * 100.0,
            messages_received: rate("/messages_received"),
            messages_sent: rate("/messages_sent"),
            messages_dropped: rate("/messages_dropped"),
            bytes_received: rate("/bytes_received"),
            bytes_sent: rate("/bytes_sent"),
            clients,
            has_more: now.has_more,
            queues,
        }
    }
}

impl Client {
    fn new(client: &Value, before: Option<&Value>, elapsed_s: f64) -> Self {
        let rate = |at: &str| {
            let since = before.map_or(0, |before| {
                number(client, at).saturating_sub(number(before, at))
            });
            since as f64 / elapsed_s
        };
        let sent = number(client, "/path/sent_datagrams");
        let lost = number(client, "/path/lost_packets");
        Self {
            node: client["node"].as_str().map(harmless),
            name: text(client, "/name"),
            protocol: text(client, "/protocol"),
            peer: text(client, "/peer"),
            rtt_us: number(client, "/path/rtt_us"),
            loss_ppm: lost
                .saturating_mul(1_000_000)
                .checked_div(sent)
                .unwrap_or(0)
                .min(1_000_000),
            pending: client["pending"].as_u64(),
            in_flight: number(client, "/unacknowledged"),
            received_bytes: rate("/path/received_bytes"),
            sent_bytes: rate("/path/sent_bytes"),
            messages: rate("/messages_received") + rate("/messages_sent"),
        }
    }
}

impl Sort {
    fn compare(self, one: &Client, other: &Client) -> Ordering {
        let key = |client: &Client| match self {
            Self::Rtt => client.rtt_us as f64,
            Self::Loss => client.loss_ppm as f64,
            Self::Queue => (client.pending.unwrap_or(0) + client.in_flight) as f64,
            Self::Bytes => client.received_bytes + client.sent_bytes,
            Self::Messages => client.messages,
        };
        key(other).total_cmp(&key(one))
    }

    /// Its name in the admin API, which sorts all clients before the first are read.
    pub(super) const fn parameter(self) -> &'static str {
        match self {
            Self::Rtt => "rtt",
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Bytes => "bytes",
            Self::Messages => "messages",
        }
    }

    /// Its name in the heading.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rtt => "round trip",
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Bytes => "bytes",
            Self::Messages => "messages",
        }
    }
}
