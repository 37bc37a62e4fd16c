//! Reports about single clients: the statistics of their paths, and traces of their connections.

use std::time::Duration;

use serde_json::{Value, json};
use sterna_broker::{Message, MessageHeader, Publication, QueueState};
use sterna_net::{ConnectionId, ConnectionInfo, EarlyData, PathStatistics, TransportKind};

use crate::context::Context;
use crate::identity::Proof;
use crate::tracer::escape;

/// Clients whose paths are told in one turn; messages pass between two turns.
const PATHS_PER_TURN: usize = 64;
/// Time until the next turn.
const PAUSE_MS: u64 = 1;

/// Clients whose paths are still to be told in this round.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    clients: Vec<ConnectionId>,
    /// When the next of them are.
    due_ms: Option<u64>,
}

impl Paths {
    /// When `report` wants to be called.
    pub(crate) const fn deadline_ms(&self) -> Option<u64> {
        self.due_ms
    }

    /// Begins to tell clients' paths, if somebody wants to know and the last round is over.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        clients: impl Iterator<Item = ConnectionId>,
    ) {
        if self.clients.is_empty() && cx.broker.is_inspected() {
            self.clients.extend(clients);
            self.due_ms = Some(cx.now_ms);
        }
    }

    /// Tells the paths of some clients in `$SYS/sterna/clients/<client identifier>/path`. `names_of` knows the names of
    /// those that are connected, and their users.
    pub(crate) fn report<'n>(
        &mut self,
        cx: &mut Context<'_>,
        names_of: impl Fn(ConnectionId) -> Option<(&'n str, Option<&'n str>)>,
    ) {
        let now_ms = cx.now_ms;
        if self.due_ms.is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        for _ in 0..PATHS_PER_TURN {
            let Some(id) = self.clients.pop() else {
                break;
            };
            let (Some((name, user)), Some(info)) = (names_of(id), cx.net.info(id)) else {
                continue;
            };
            let topic = format!("$SYS/sterna/clients/{}/path", escape(name));
            let path = json(user, info, &cx.net.path(id));
            let header = MessageHeader {
                published_ms: now_ms,
                ..MessageHeader::default()
            };
            if let Ok(message) = Message::copy(&topic, &[], path.as_bytes(), header) {
                let publication = Publication::new(None, message);
                cx.broker.publish(now_ms, publication);
            }
        }
        self.due_ms = (!self.clients.is_empty()).then_some(now_ms + PAUSE_MS);
    }
}

/// Begins or ends the trace of a client's connection, as the policy says; `name` is `None` while it is
/// not connected.
pub(crate) fn trace(
    cx: &mut Context<'_>,
    connection: ConnectionId,
    name: Option<&str>,
    is_traced: &mut bool,
) {
    let policy = &cx.policy.trace;
    let wanted = name.filter(|name| policy.clients.contains(*name));
    if wanted.is_some() == *is_traced {
        return;
    }
    let Some(tracer) = cx.tracer else {
        return;
    };
    *is_traced = wanted.is_some();
    let now_ms = cx.now_ms;
    let trace = wanted.map(|name| tracer.trace(&policy.directory, name, now_ms, policy.max_bytes));
    cx.net.trace(connection, trace);
}

/// A line for the operator: a client has moved to another address.
pub(crate) fn log_move(cx: &Context<'_>, connection: ConnectionId, name: &str) {
    if let Some(info) = cx.net.info(connection) {
        tracing::debug!(client = name, peer = %info.peer, "moved");
    }
}

/// A line for the operator about the path of a connection that ends.
pub(crate) fn log_path(cx: &Context<'_>, connection: ConnectionId, name: &str) {
    let path = cx.net.path(connection);
    tracing::debug!(
        client = name,
        peer = cx.net.info(connection).map(|info| tracing::field::display(info.peer)),
        rtt = ?Duration::from_micros(path.rtt_us),
        lost_packets = path.lost_packets,
        sent_bytes = path.sent_bytes,
        received_bytes = path.received_bytes,
        early_data = early_data(path.early_data),
        migrations = path.migrations,
        "path"
    );
}

const fn early_data(verdict: EarlyData) -> &'static str {
    match verdict {
        EarlyData::None => "none",
        EarlyData::Accepted => "accepted",
        EarlyData::Rejected => "rejected",
    }
}

/// A path as a JSON object, with its client's user and its transport.
fn json(user: Option<&str>, info: &ConnectionInfo, path: &PathStatistics) -> String {
    let mut json = path_value(path);
    json["user"] = user.into();
    json["peer"] = info.peer.to_string().into();
    json["transport"] = transport_name(info.transport).into();
    json.to_string()
}

/// A path as a JSON object. Names are those of [`PathStatistics`].
pub(crate) fn path_value(path: &PathStatistics) -> Value {
    json!({
        "rtt_us": path.rtt_us,
        "min_rtt_us": path.min_rtt_us,
        "rtt_variance_us": path.rtt_variance_us,
        "lost_packets": path.lost_packets,
        "lost_bytes": path.lost_bytes,
        "probe_timeouts": path.probe_timeouts,
        "congestion_window_bytes": path.congestion_window_bytes,
        "mtu_bytes": path.mtu_bytes,
        "received_bytes": path.received_bytes,
        "sent_bytes": path.sent_bytes,
        "received_datagrams": path.received_datagrams,
        "sent_datagrams": path.sent_datagrams,
        "received_payload_bytes": path.received_payload_bytes,
        "sent_payload_bytes": path.sent_payload_bytes,
        "early_data": early_data(path.early_data),
        "resumed": path.resumed,
        "migrations": path.migrations,
        "open_streams": path.open_streams,
    })
}

/// The name of a transport.
pub(crate) fn transport_name(transport: TransportKind) -> String {
    format!("{transport:?}").to_lowercase()
}

/// Messages of a connection since its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Messages that the client published, refused ones included.
    pub(crate) received: u64,
    /// Messages that it was sent, repetitions included.
    pub(crate) sent: u64,
}

/// The report of a door about one of its clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientView<'a> {
    pub(crate) protocol: &'static str,
    /// Version of the protocol, where a connection has one.
    pub(crate) version: Option<&'static str>,
    /// Client identifier of MQTT, container-id of AMQP, user of HTTP; `None` until it is connected.
    pub(crate) name: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
    /// How that was shown; `None` where it is not yet, or differs between requests.
    pub(crate) proof: Option<Proof>,
    /// Filters of MQTT and HTTP, receiving links of AMQP.
    pub(crate) subscriptions: usize,
    /// When the connection began, in milliseconds since the Unix epoch.
    pub(crate) since_ms: u64,
    /// The number of its messages.
    pub(crate) tally: Tally,
    /// Of its sessions together.
    pub(crate) queue: QueueState,
    /// The end of its pause for publishing too fast, in milliseconds since the Unix epoch; it may be over.
    pub(crate) paused_until_ms: Option<u64>,
}

impl ClientView<'_> {
    /// Adds the figures of one of its sessions.
    pub(crate) fn add_queue(&mut self, queue: Option<QueueState>) {
        let queue = queue.unwrap_or_default();
        self.queue.pending += queue.pending;
        self.queue.pending_bytes += queue.pending_bytes;
        self.queue.has_more_in_log |= queue.has_more_in_log;
        self.queue.unacknowledged += queue.unacknowledged;
    }
}

/// Adds the figures of a queue as members of a JSON object. Waiting messages are not counted as long as some are in the
/// log alone.
pub(crate) fn add_queue_members(json: &mut Value, queue: QueueState) {
    let known = Some(queue).filter(|queue| !queue.has_more_in_log);
    json["pending"] = known.map(|queue| queue.pending).into();
    json["pending_bytes"] = known.map(|queue| queue.pending_bytes).into();
    json["unacknowledged"] = queue.unacknowledged.into();
}

/// A line about a connection whose certificate is good no more.
pub(crate) fn log_distrust(
    cx: &Context<'_>,
    connection: ConnectionId,
    user: Option<&str>,
    detail: &str,
) {
    let Some(line) = cx.repeats(connection, user.unwrap_or_default(), detail) else {
        return;
    };
    tracing::warn!(
        peer = line.peer,
        user,
        detail,
        more = line.more,
        "HTTP client turned away"
    );
}
