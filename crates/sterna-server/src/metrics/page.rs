//! Families of metrics on a page, in the text format of OpenMetrics.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::meters::Distribution;

/// The media type of a page.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page being written. [`Page::written`] returns the first error.
pub(super) struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
    written: fmt::Result,
}

impl<'a> Page<'a> {
    pub(super) const fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self {
            encoder,
            written: Ok(()),
        }
    }

    /// Whether all was written.
    pub(super) const fn written(self) -> fmt::Result {
        self.written
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) {
        if self.written.is_ok() {
            let encoder = self.encoder.encode_descriptor(name, help, None, kind);
            self.written = encoder.and_then(|mut encoder| write(&mut encoder));
        }
    }

    /// A number that only grows; its name gets `_total`.
    pub(super) fn counter(&mut self, name: &str, help: &str, number: u64) {
        self.family(name, help, MetricType::Counter, |encoder| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&number, None)
        });
    }

    /// Seconds that only grow; its name gets `_total`.
    pub(super) fn counter_of_seconds(&mut self, name: &str, help: &str, seconds: f64) {
        self.family(name, help, MetricType::Counter, |encoder| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&seconds, None)
        });
    }

    /// A number that comes and goes.
    pub(super) fn gauge(&mut self, name: &str, help: &str, number: u64) {
        self.family(name, help, MetricType::Gauge, |encoder| {
            encoder.encode_gauge(&as_gauge(number))
        });
    }

    /// Numbers that only grow, with their labels; their name gets `_total`.
    pub(super) fn counters<const L: usize, V: AsRef<str>>(
        &mut self,
        name: &str,
        help: &str,
        keys: [&str; L],
        numbers: impl IntoIterator<Item = ([V; L], u64)>,
    ) {
        self.family(name, help, MetricType::Counter, |encoder| {
            for (values, number) in numbers {
                let labels: [(&str, &str); L] =
                    std::array::from_fn(|at| (keys[at], values[at].as_ref()));
                let mut encoder = encoder.encode_family(&labels)?;
                encoder.encode_counter::<NoLabelSet, _, f64>(&number, None)?;
            }
            Ok(())
        });
    }

    /// Numbers that come and go, with their labels.
    pub(super) fn gauges<const L: usize, V: AsRef<str>>(
        &mut self,
        name: &str,
        help: &str,
        keys: [&str; L],
        numbers: impl IntoIterator<Item = ([V; L], u64)>,
    ) {
        self.family(name, help, MetricType::Gauge, |encoder| {
            for (values, number) in numbers {
                let labels: [(&str, &str); L] =
                    std::array::from_fn(|at| (keys[at], values[at].as_ref()));
                encoder
                    .encode_family(&labels)?
                    .encode_gauge(&as_gauge(number))?;
            }
            Ok(())
        });
    }

    /// A distribution without a label.
    pub(super) fn histogram(&mut self, name: &str, help: &str, distribution: &Distribution) {
        self.family(name, help, MetricType::Histogram, |encoder| {
            let observed = &distribution.observed;
            let sum = observed.sum() as f64 * distribution.sum_unit;
            let buckets = observed.buckets(distribution.unit);
            encoder.encode_histogram::<NoLabelSet>(sum, observed.count(), &buckets, None)
        });
    }

    /// Distributions, each with a label.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        key: &str,
        distributions: impl IntoIterator<Item = Distribution>,
    ) {
        self.family(name, help, MetricType::Histogram, |encoder| {
            for distribution in distributions {
                let labels = [(key, distribution.label)];
                let observed = &distribution.observed;
                let sum = observed.sum() as f64 * distribution.sum_unit;
                let buckets = observed.buckets(distribution.unit);
                let mut encoder = encoder.encode_family(&labels)?;
                encoder.encode_histogram::<NoLabelSet>(sum, observed.count(), &buckets, None)?;
            }
            Ok(())
        });
    }
}

/// Gauges are signed.
fn as_gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
