//! Metrics, and their text for Prometheus (OpenMetrics 1.0).
//!
//! Each shard counts in its own `Meters`, and in the counters of its doors, its broker and its transports.
//! Shards share no counter. At a scrape every shard is asked for its `Figures` by letter. `scrape.rs` puts
//! them together with the [`Sources`], which any thread may read, and `page.rs` writes them.

mod cluster;
mod drops;
mod figures;
mod histogram;
mod meters;
mod page;
mod scrape;
mod survey;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sterna_net::ShardCounters;
use sterna_net::quic::TicketStore;
use sterna_store::UsageReader;

pub use cluster::ClusterSource;
pub(crate) use drops::{DropReason, Watcher, log_drop};
pub(crate) use figures::Figures;
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
    /// When the certificate in force expires, in seconds since the Unix epoch; 0 where that is not
    /// known.
    certificate_expires_s: AtomicI64,
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
            certificate_expires_s: AtomicI64::new(0),
        }
    }

    /// The same with transports: their counters by shard, the URLs of the listeners, the tickets of
    /// QUIC, and how many connections all shards together may have.
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

    /// The same with a store.
    #[must_use]
    pub fn with_store(self, store: Option<UsageReader>) -> Self {
        Self { store, ..self }
    }

    /// The same with other nodes.
    #[must_use]
    pub fn with_cluster(self, cluster: Option<ClusterSource>) -> Self {
        Self { cluster, ..self }
    }

    /// Why the node does not take part in its cluster as it should; `None` where it does, or there is none.
    pub(crate) fn cluster_trouble(&self) -> Option<&'static str> {
        self.cluster.as_ref()?.status.trouble()
    }

    /// Notes when the certificate in force expires, in seconds since the Unix epoch.
    pub fn set_certificate_expiry(&self, expires_s: i64) {
        self.certificate_expires_s
            .store(expires_s, Ordering::Relaxed);
    }

    /// The meters of a shard.
    pub(crate) fn meters(&self, shard: usize) -> Arc<Meters> {
        Arc::clone(&self.meters[shard])
    }
}
