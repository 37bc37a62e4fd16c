//! One scrape: the gathered numbers, and their page.

mod clients;
mod listeners;
mod messages;
mod process;
mod shards;
mod store;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use sterna_broker::Directory;

use super::figures::Figures;
use super::meters::MeterSums;
use super::page::Page;
use super::{Sources, page};
use crate::identity::{Issuer, Webhook};
use crate::memory::Memory;

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

    pub(super) fn broker(&self, number: fn(&sterna_broker::Counters) -> u64) -> u64 {
        self.figures
            .iter()
            .map(|figures| number(&figures.broker))
            .sum()
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
