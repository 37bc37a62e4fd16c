//! Measurements of one shard beside the counters of its parts.

use std::sync::Arc;

use sterna_broker::{Delivery, EndCause, Message};
use sterna_net::{Count, PathStatistics, TransportKind};

use super::drops::{DropReason, Drops, log_drop};
use super::histogram::{Histogram, Observed};
use crate::config::Protocol;
use crate::identity::Refusal;
use crate::metrics::last_refusal::LastRefusal;
use crate::repeats::Repeats;
use crate::watch::Watch;

/// The reason of a refused login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoginFailure {
    /// It did not prove an identity.
    Claim(Refusal),
    /// Its identity may not have this client identifier, will or session.
    NotAuthorized,
    /// There are too many sessions or wills.
    Quota,
    /// Its CONNECT or SASL exchange is not valid.
    Protocol,
}

impl LoginFailure {
    /// All failures.
    pub(crate) const ALL: [Self; Refusal::ALL.len() + 3] = {
        let mut all = [Self::NotAuthorized; Refusal::ALL.len() + 3];
        let mut at = 0;
        while at < Refusal::ALL.len() {
            all[at] = Self::Claim(Refusal::ALL[at]);
            at += 1;
        }
        all[at + 1] = Self::Quota;
        all[at + 2] = Self::Protocol;
        all
    };

    const fn index(self) -> usize {
        match self {
            Self::Claim(refusal) => refusal as usize,
            Self::NotAuthorized => Refusal::ALL.len(),
            Self::Quota => Refusal::ALL.len() + 1,
            Self::Protocol => Refusal::ALL.len() + 2,
        }
    }

    /// The value of the label.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Claim(refusal) => refusal.name(),
            Self::NotAuthorized => "not_authorized",
            Self::Quota => "quota",
            Self::Protocol => "protocol",
        }
    }
}

/// Transports with histograms of their own, and their names.
pub(crate) const TRANSPORTS: [(TransportKind, &str); 5] = [
    (TransportKind::Tcp, "tcp"),
    (TransportKind::Tls, "tls"),
    (TransportKind::WebSocket, "ws"),
    (TransportKind::SecureWebSocket, "wss"),
    (TransportKind::Quic, "quic"),
];

/// The first bucket of round trips, in microseconds.
const ROUND_TRIP_UNIT_US: u64 = 64;
/// The first bucket of losses, in millionths of the sent packets.
const LOSS_UNIT_PPM: u64 = 100;

/// The meters of one shard: it writes, any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) drops: Drops,
    /// Lines of the log that peers have caused.
    pub(crate) repeats: Repeats,
    /// The cause of the last refused login.
    pub(crate) last_refusal: LastRefusal,
    /// Traces of messages.
    pub(crate) watch: Arc<Watch>,
    /// By protocol, as all that follows.
    delays: [Histogram; Protocol::OF_MESSAGES.len()],
    login_failures: [[Count; LoginFailure::ALL.len()]; Protocol::ALL.len()],
    early_held: [Count; Protocol::OF_MESSAGES.len()],
    not_retained: [Count; Protocol::OF_MESSAGES.len()],
    rate_pauses: [Count; Protocol::OF_MESSAGES.len()],
    /// Messages that were acknowledged and not done again.
    pub(crate) repetitions: Count,
    /// Ends of consumers, by the number of the cause.
    pub(crate) ends: [Count; EndCause::ALL.len()],
    /// By transport.
    round_trips: [Histogram; TRANSPORTS.len()],
    losses: [Histogram; TRANSPORTS.len()],
}

/// Delays of messages that are handed to one connection. Those of a turn have mostly waited equally long, and equal
/// ones are observed together.
#[derive(Debug)]
pub(crate) struct Delays<'a> {
    histogram: &'a Histogram,
    delay_ms: u64,
    /// The number of messages with that delay that are not observed yet.
    count: u64,
}

impl Delays<'_> {
    /// A message was handed over. Repetitions and retained messages do not count: their age is not the broker's delay.
    #[inline]
    pub(crate) fn delivered(&mut self, delivery: &Delivery, now_ms: u64) {
        if delivery.retain || delivery.redelivered {
            return;
        }
        let delay_ms = now_ms.saturating_sub(delivery.message.published_ms());
        if delay_ms != self.delay_ms {
            self.observe();
            self.delay_ms = delay_ms;
        }
        self.count += 1;
    }

    fn observe(&mut self) {
        let count = std::mem::take(&mut self.count);
        if count > 0 {
            (self.histogram).observe_times(self.delay_ms, self.delay_ms, count);
        }
    }
}

impl Drop for Delays<'_> {
    fn drop(&mut self) {
        self.observe();
    }
}

impl Meters {
    /// Takes the delays of messages that are handed to a reader's connection.
    pub(crate) fn delays(&self, protocol: Protocol) -> Delays<'_> {
        Delays {
            histogram: &self.delays[protocol as usize],
            delay_ms: 0,
            count: 0,
        }
    }

    /// A client was not let in.
    pub(crate) fn login_failed(&self, protocol: Protocol, failure: LoginFailure) {
        self.login_failures[protocol as usize][failure.index()].add(1);
    }

    /// Early data of a client waits for the end of its handshake.
    pub(crate) fn early_data_held(&self, protocol: Protocol) {
        self.early_held[protocol as usize].add(1);
    }

    /// A publication of a client is refused before the broker has it: counts it, and tells traces. `topic` is
    /// empty where the message does not say which.
    pub(crate) fn refuse(
        &self,
        protocol: Protocol,
        (publisher, topic): (&str, &str),
        reason: DropReason,
    ) {
        self.drops.count(protocol, reason);
        self.watch.refused(publisher, topic, reason.name());
    }

    /// A reader does not get a message that its door has: counts it, logs it, and tells traces.
    pub(crate) fn drop_delivery(
        &self,
        protocol: Protocol,
        reader: &str,
        message: &Message,
        reason: DropReason,
    ) {
        self.drops.count(protocol, reason);
        log_drop(reader, message.topic(), reason);
        let watch = &self.watch;
        watch.dropped(
            (reader, message.origin()),
            message.topic(),
            reason.name(),
            1,
        );
    }

    /// A message was delivered, and not retained because a limit was reached.
    pub(crate) fn not_retained(&self, protocol: Protocol) {
        self.not_retained[protocol as usize].add(1);
    }

    /// A client is not read for a while, because it publishes faster than it may.
    pub(crate) fn rate_paused(&self, protocol: Protocol) {
        self.rate_pauses[protocol as usize].add(1);
    }

    /// The path of a client, in a sample of all.
    pub(crate) fn surveyed(&self, transport: TransportKind, path: &PathStatistics) {
        let Some(at) = TRANSPORTS.iter().position(|(kind, _)| *kind == transport) else {
            return;
        };
        if path.rtt_us > 0 {
            let units = path.rtt_us.div_ceil(ROUND_TRIP_UNIT_US);
            self.round_trips[at].observe(units, path.rtt_us);
        }
        if let Some(loss_ppm) =
            (path.lost_packets.saturating_mul(1_000_000)).checked_div(path.sent_datagrams)
        {
            let loss_ppm = loss_ppm.min(1_000_000);
            self.losses[at].observe(loss_ppm.div_ceil(LOSS_UNIT_PPM), loss_ppm);
        }
    }

    /// Adds the measurements to `sums`.
    pub(super) fn add_to(&self, sums: &mut MeterSums) {
        add_all(&mut sums.delays, &self.delays);
        add_all(&mut sums.round_trips, &self.round_trips);
        add_all(&mut sums.losses, &self.losses);
        for (sums, counts) in sums.login_failures.iter_mut().zip(&self.login_failures) {
            count_all(sums, counts);
        }
        count_all(&mut sums.early_held, &self.early_held);
        count_all(&mut sums.not_retained, &self.not_retained);
        count_all(&mut sums.rate_pauses, &self.rate_pauses);
        count_all(&mut sums.ends, &self.ends);
        sums.repetitions += self.repetitions.get();
    }
}

fn add_all(sums: &mut [Observed], histograms: &[Histogram]) {
    for (sum, histogram) in sums.iter_mut().zip(histograms) {
        sum.add(&histogram.observed());
    }
}

fn count_all(sums: &mut [u64], counts: &[Count]) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count.get();
    }
}

/// Measurements of all shards.
#[derive(Debug, Default)]
pub(super) struct MeterSums {
    delays: [Observed; Protocol::OF_MESSAGES.len()],
    login_failures: [[u64; LoginFailure::ALL.len()]; Protocol::ALL.len()],
    early_held: [u64; Protocol::OF_MESSAGES.len()],
    not_retained: [u64; Protocol::OF_MESSAGES.len()],
    rate_pauses: [u64; Protocol::OF_MESSAGES.len()],
    pub(super) repetitions: u64,
    pub(super) ends: [u64; EndCause::ALL.len()],
    round_trips: [Observed; TRANSPORTS.len()],
    losses: [Observed; TRANSPORTS.len()],
}

/// A distribution to write down.
pub(super) struct Distribution {
    /// Value of the label; empty without one.
    pub(super) label: &'static str,
    pub(super) observed: Observed,
    /// The first bound.
    pub(super) unit: f64,
    /// The unit of the sum.
    pub(super) sum_unit: f64,
}

impl MeterSums {
    /// Delays of deliveries in seconds, by protocol.
    pub(super) fn delays(&self) -> impl Iterator<Item = Distribution> {
        let all = Protocol::OF_MESSAGES.iter().zip(&self.delays);
        all.map(|(protocol, observed)| Distribution {
            label: protocol.name(),
            observed: *observed,
            unit: 1e-3,
            sum_unit: 1e-3,
        })
    }

    /// Round trips in seconds, by transport.
    pub(super) fn round_trips(&self) -> impl Iterator<Item = Distribution> {
        let all = TRANSPORTS.iter().zip(&self.round_trips);
        all.map(|((_, label), observed)| Distribution {
            label,
            observed: *observed,
            unit: ROUND_TRIP_UNIT_US as f64 * 1e-6,
            sum_unit: 1e-6,
        })
    }

    /// Lost parts of the sent packets, by transport.
    pub(super) fn losses(&self) -> impl Iterator<Item = Distribution> {
        let all = TRANSPORTS.iter().zip(&self.losses);
        all.map(|((_, label), observed)| Distribution {
            label,
            observed: *observed,
            unit: LOSS_UNIT_PPM as f64 * 1e-6,
            sum_unit: 1e-6,
        })
    }

    /// Failures of logins, with the labels `protocol` and `reason`.
    pub(super) fn login_failures(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let rows = Protocol::ALL.iter().zip(&self.login_failures);
        rows.flat_map(|(protocol, row)| {
            let numbers = LoginFailure::ALL.iter().zip(row);
            numbers.map(|(failure, number)| (protocol.name(), failure.name(), *number))
        })
    }

    /// Clients whose early data had to wait, by protocol.
    pub(super) fn early_held(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_protocol(&self.early_held)
    }

    /// Pauses of clients that published too fast, by protocol.
    pub(super) fn rate_pauses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_protocol(&self.rate_pauses)
    }

    /// Messages that were not retained, by protocol.
    pub(super) fn not_retained(&self) -> impl Iterator<Item = (&'static str, u64)> {
        by_protocol(&self.not_retained)
    }
}

fn by_protocol(numbers: &[u64]) -> impl Iterator<Item = (&'static str, u64)> {
    let all = Protocol::OF_MESSAGES.iter().zip(numbers);
    all.map(|(protocol, number)| (protocol.name(), *number))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_failure_has_a_place_and_a_name_of_its_own() {
        let mut names = HashSet::new();
        for (at, failure) in LoginFailure::ALL.into_iter().enumerate() {
            assert_eq!(failure.index(), at);
            assert!(names.insert(failure.name()));
        }
    }

    #[test]
    fn a_path_is_measured_by_its_transport() {
        let meters = Meters::default();
        let path = PathStatistics {
            rtt_us: 1_500,
            sent_datagrams: 1_000,
            lost_packets: 20,
            ..PathStatistics::default()
        };
        meters.surveyed(TransportKind::Quic, &path);
        // It knows nothing yet.
        meters.surveyed(TransportKind::Tcp, &PathStatistics::default());
        meters.surveyed(TransportKind::Simulated, &path);
        let mut sums = MeterSums::default();
        meters.add_to(&mut sums);
        let count = |all: &mut dyn Iterator<Item = Distribution>| -> u64 {
            all.map(|one| one.observed.count()).sum()
        };
        assert_eq!(count(&mut sums.round_trips()), 1);
        assert_eq!(count(&mut sums.losses()), 1);
        let loss = sums.losses().last().expect("QUIC");
        assert_eq!((loss.label, loss.observed.sum()), ("quic", 20_000));
        let found = (loss.observed.buckets(loss.unit).into_iter()).find(|(_, count)| *count > 0);
        let (bound, _) = found.expect("a bucket");
        assert!((0.02..0.04).contains(&bound), "{bound}");
    }
}
