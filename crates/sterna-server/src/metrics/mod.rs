//! Metrics, and their text for Prometheus (OpenMetrics 1.0).
//!
//! Each shard counts in its own `Meters`, and in the counters of its doors, its broker and its transports.
//! Shards share no counter. At a scrape every shard is asked for its `Figures` by letter. `scrape/` puts
//! them together with the [`Sources`], which any thread may read, and `page.rs` writes them.

mod cluster;
mod drops;
mod ends;
mod figures;
mod histogram;
mod last_refusal;
mod meters;
mod page;
mod rights;
mod scrape;
mod survey;
mod trust;
mod webhook;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sterna_net::ShardCounters;
use sterna_net::quic::TicketStore;
use sterna_store::{Usage, UsageReader};

use crate::certificate::Certificate;
use crate::control::{Orders, Waiting};
use crate::memory::{Kind, Memory};
use crate::node_clock::NodeClock;
use crate::sys::Process;

pub use cluster::ClusterSource;
pub(crate) use drops::{DropReason, Watcher};
pub(crate) use figures::Figures;
pub(crate) use last_refusal::Cause;
pub(crate) use meters::{LoginFailure, Meters};
pub(crate) use scrape::Scrape;
pub(crate) use survey::Survey;

/// Sources of metrics beside the answers of the shards: shared by all shards, read at a scrape.
#[derive(Debug)]
pub struct Sources {
    /// URLs of the listeners, in the order of the configuration.
    listeners: Vec<String>,
    /// The transports' counters, by shard; empty in a simulation.
    transports: Vec<Arc<ShardCounters>>,
    /// By shard.
    meters: Vec<Arc<Meters>>,
    tickets: Option<Arc<TicketStore>>,
    /// `None` without a store.
    store: Option<UsageReader>,
    /// `None` where there are no other nodes.
    cluster: Option<ClusterSource>,
    /// Connections that all shards together may have; 0 where that is not known.
    maximum_connections: u64,
    started_ms: u64,
    /// `None` where nothing is kept over a restart.
    clock: Option<NodeClock>,
    /// The certificates in force.
    certificates: Mutex<Vec<Certificate>>,
    /// Traces under way.
    traces: AtomicU32,
    /// `None` where there is no process that takes orders.
    orders: Option<Orders>,
}

impl Sources {
    /// Sources of a simulation: shards without transports. `started_ms` is the start of the broker, in
    /// milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(shards: usize, started_ms: u64) -> Self {
        Self {
            listeners: Vec::new(),
            transports: Vec::new(),
            meters: (0..shards).map(|_| Arc::default()).collect(),
            tickets: None,
            store: None,
            cluster: None,
            maximum_connections: 0,
            started_ms,
            clock: None,
            certificates: Mutex::default(),
            traces: AtomicU32::new(0),
            orders: None,
        }
    }

    /// Adds transports: their counters by shard, the URLs of the listeners, and the tickets of
    /// QUIC. `maximum_connections` is the limit of all shards together.
    #[must_use]
    pub fn with_transports(
        self,
        transports: Vec<Arc<ShardCounters>>,
        listeners: Vec<String>,
        tickets: Arc<TicketStore>,
        maximum_connections: u64,
    ) -> Self {
        Self {
            listeners,
            transports,
            tickets: Some(tickets),
            maximum_connections,
            ..self
        }
    }

    /// Adds a store.
    #[must_use]
    pub fn with_store(self, store: Option<UsageReader>) -> Self {
        Self { store, ..self }
    }

    /// Adds the clock of a node that keeps something over a restart.
    #[must_use]
    pub fn with_clock(self, clock: Option<NodeClock>) -> Self {
        Self { clock, ..self }
    }

    /// The node's clock; `None` where nothing is kept over a restart.
    #[must_use]
    pub const fn clock(&self) -> Option<&NodeClock> {
        self.clock.as_ref()
    }

    /// Adds other nodes.
    #[must_use]
    pub fn with_cluster(self, cluster: Option<ClusterSource>) -> Self {
        Self { cluster, ..self }
    }

    /// Why the node does not take part in its cluster as it should; `None` where it does, or there is none.
    pub(crate) fn cluster_trouble(&self) -> Option<String> {
        self.cluster.as_ref()?.status.trouble()
    }

    /// Facts about the cluster that operators are to know although the node takes part as it should, a sentence each.
    pub(crate) fn cluster_remarks(&self) -> Vec<String> {
        (self.cluster.as_ref()).map_or_else(Vec::new, |cluster| cluster.status.remarks())
    }

    /// The clocks of nodes and servers of NATS that are wrong, in words; `None` where there are none.
    pub(crate) fn wrong_clocks(&self) -> Option<String> {
        self.cluster.as_ref()?.status.clocks().sentence()
    }

    /// Bytes that NATS keeps at most for the cluster's sessions; 0 where there is no cluster.
    pub(crate) fn cluster_log_bytes(&self) -> u64 {
        (self.cluster.as_ref()).map_or(0, |cluster| cluster.maximum_log_bytes)
    }

    /// The name of this node; `None` where there is no cluster.
    pub(crate) fn node(&self) -> Option<&str> {
        Some(&self.cluster.as_ref()?.node)
    }

    /// Whether this node has joined its cluster since the start.
    pub(crate) fn has_joined(&self) -> bool {
        (self.cluster.as_ref()).is_some_and(|cluster| cluster.status.has_joined())
    }

    /// The other nodes of the cluster that are here, or away for a while.
    pub(crate) fn roster(&self) -> sterna_cluster::Roster {
        (self.cluster.as_ref()).map_or_else(sterna_cluster::Roster::default, |cluster| {
            cluster.status.roster()
        })
    }

    /// The way of questions about the cluster; `None` where there is none.
    pub(crate) fn cluster_asker(&self) -> Option<&sterna_cluster::Asker> {
        Some(&self.cluster.as_ref()?.asker)
    }

    /// Notes the certificates in force.
    pub fn set_certificates(&self, certificates: Vec<Certificate>) {
        *self
            .certificates
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = certificates;
    }

    /// Adds a process that takes orders. The second value receives them.
    #[must_use]
    pub fn with_orders(self) -> (Self, Waiting) {
        let (orders, receiver) = Orders::new();
        let this = Self {
            orders: Some(orders),
            ..self
        };
        (this, receiver)
    }

    /// Counts a trace that begins; false where there are as many as may be.
    pub(crate) fn begin_trace(&self, most: u32) -> bool {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let next = |count: u32| count.checked_add(1).filter(|count| *count <= most);
        self.traces.fetch_update(set, fetch, next).is_ok()
    }

    /// Counts a trace that has ended.
    pub(crate) fn end_trace(&self) {
        self.traces.fetch_sub(1, Ordering::Relaxed);
    }

    /// The way for orders to the process.
    pub(crate) const fn orders(&self) -> Option<&Orders> {
        self.orders.as_ref()
    }

    /// The certificates in force.
    pub(crate) fn certificates(&self) -> Vec<Certificate> {
        let certificates = self.certificates.lock();
        certificates.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// URLs of the listeners, in the order of the configuration.
    pub(crate) fn listeners(&self) -> &[String] {
        &self.listeners
    }

    /// When the broker started, in milliseconds since the Unix epoch.
    pub(crate) const fn started_ms(&self) -> u64 {
        self.started_ms
    }

    /// The figures of the store; `None` without one.
    pub(crate) fn store(&self) -> Option<Usage> {
        self.store.as_ref().map(UsageReader::usage)
    }

    /// The resident memory by kind, as far as it is accounted for; the last is the rest.
    pub(crate) fn memory(&self, memory: &Memory, process: &Process) -> Vec<(&'static str, u64)> {
        let tickets = self.tickets.as_ref();
        let own = [
            ("program", process.program_bytes),
            (
                "tickets",
                tickets.map_or(0, |tickets| tickets.usage().bytes as u64),
            ),
        ];
        let account = Kind::ALL.iter().zip(memory.account());
        let account = account.map(|(kind, bytes)| (kind.name(), bytes));
        let mut kinds: Vec<(&'static str, u64)> = own.into_iter().chain(account).collect();
        let sum: u64 = kinds.iter().map(|(_, bytes)| bytes).sum();
        kinds.push(("unaccounted", process.resident_bytes.saturating_sub(sum)));
        kinds
    }

    /// The meters of a shard.
    pub(crate) fn meters(&self, shard: usize) -> Arc<Meters> {
        Arc::clone(&self.meters[shard])
    }

    /// Has the watches of all shards send spans, if there is a collector.
    pub(crate) fn send_spans(&self, config: &crate::config::Otlp) -> Result<(), String> {
        let spans = crate::otlp::Spans::start(config);
        if let Some(spans) = spans.map_err(|e| format!("cannot start a thread: {e}"))? {
            for meters in &self.meters {
                meters.watch.send_spans(spans.clone());
            }
        }
        Ok(())
    }
}
