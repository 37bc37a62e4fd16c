//! What is told of single clients: the statistics of their paths, and traces of their connections.

use std::time::Duration;

use sterna_broker::{Message, MessageHeader, Publication};
use sterna_net::{ConnectionId, ConnectionInfo, EarlyData, PathStatistics};

use super::Door;
use super::client::{Client, State};
use crate::shard::Context;
use crate::tracer::escape;

/// Clients whose paths are told in one turn; messages pass between two turns.
const PATHS_PER_TURN: usize = 64;
/// Time until the next turn.
const PAUSE_MS: u64 = 1;

impl Door {
    /// Begins to tell every client's path, if somebody wants to know and the last round is over.
    pub(crate) fn begin_paths(&mut self, cx: &mut Context<'_>) {
        if self.paths.is_empty() && cx.broker.is_inspected() {
            self.paths = self.clients.keys().copied().collect();
            self.paths_ms = Some(cx.net.now_ms());
        }
    }

    /// Tells the paths of some clients in `$SYS/sterna/clients/<client identifier>/path`.
    pub(crate) fn report_paths(&mut self, cx: &mut Context<'_>) {
        let now_ms = cx.net.now_ms();
        if self.paths_ms.is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        for _ in 0..PATHS_PER_TURN {
            let Some(id) = self.paths.pop() else {
                break;
            };
            let Some(Some(client)) = self.clients.get(&id) else {
                continue;
            };
            let (State::Live(_), Some(info)) = (&client.state, cx.net.info(id)) else {
                continue;
            };
            let topic = format!("$SYS/sterna/clients/{}/path", escape(&client.name));
            let path = json(info, &cx.net.path(id));
            let header = MessageHeader {
                published_ms: now_ms,
                ..MessageHeader::default()
            };
            if let Ok(message) = Message::copy(&topic, &[], path.as_bytes(), header) {
                let publication = Publication {
                    origin: None,
                    message,
                };
                cx.broker.publish(now_ms, publication);
            }
        }
        self.paths_ms = (!self.paths.is_empty()).then_some(now_ms + PAUSE_MS);
    }

    /// A new policy is in force: begins and ends traces.
    pub(crate) fn policy_changed(&mut self, cx: &mut Context<'_>) {
        for client in self.clients.values_mut().flatten() {
            trace(cx, client);
        }
    }

    /// A client has moved to another address.
    pub(crate) fn migrated(&self, cx: &Context<'_>, connection: ConnectionId) {
        if let (Some(Some(client)), Some(info)) =
            (self.clients.get(&connection), cx.net.info(connection))
        {
            tracing::debug!(client = &*client.name, peer = %info.peer, "moved");
        }
    }
}

/// Begins or ends the trace of a connection, as the policy says.
pub(super) fn trace(cx: &mut Context<'_>, client: &mut Client) {
    let wanted =
        matches!(client.state, State::Live(_)) && cx.policy.trace.clients.contains(&*client.name);
    if wanted == client.traced {
        return;
    }
    let Some(tracer) = cx.tracer else {
        return;
    };
    client.traced = wanted;
    let policy = &cx.policy.trace;
    let now_ms = cx.net.now_ms();
    let trace =
        wanted.then(|| tracer.trace(&policy.directory, &client.name, now_ms, policy.max_bytes));
    cx.net.trace(client.id, trace);
}

/// A line for the operator about the path of a connection that ends.
pub(super) fn log_path(cx: &Context<'_>, client: &Client) {
    let path = cx.net.path(client.id);
    tracing::debug!(
        client = &*client.name,
        peer = cx.net.info(client.id).map(|info| tracing::field::display(info.peer)),
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

/// A path as a JSON object. Names are those of [`PathStatistics`]; none needs escaping.
fn json(info: &ConnectionInfo, path: &PathStatistics) -> String {
    serde_json::json!({
        "peer": info.peer.to_string(),
        "transport": format!("{:?}", info.transport).to_lowercase(),
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
    .to_string()
}
