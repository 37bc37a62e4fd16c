//! Watches the congestion controller for what the library keeps to itself: the variation of the round
//! trip, and how much was acknowledged.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory};
use sterna_quic::{CarefulResume, Settings};

/// Makes controllers that are watched.
#[derive(Debug)]
pub(super) struct Observed {
    inner: Arc<CarefulResume>,
    gauge: Arc<Gauge>,
}

impl Observed {
    pub(super) fn new(settings: &Settings) -> Self {
        let inner = Arc::new(CarefulResume {
            congestion: settings.congestion,
            initial_window_bytes: settings.initial_window_bytes,
        });
        Self {
            inner,
            gauge: Arc::default(),
        }
    }

    pub(super) fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }
}

/// The observed figures.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    /// The mean variation of the round trip, in microseconds; 0 before the first sample.
    variation_us: AtomicU64,
    acknowledged_bytes: AtomicU64,
}

impl Gauge {
    /// The mean variation of the round trip; 0 before the first sample.
    pub(super) fn variation(&self) -> Duration {
        Duration::from_micros(self.variation_us.load(Ordering::Relaxed))
    }

    /// Bytes of packets that the server has acknowledged.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged_bytes.load(Ordering::Relaxed)
    }
}

impl ControllerFactory for Observed {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Watched {
            inner: Arc::clone(&self.inner).build(now, current_mtu),
            gauge: Arc::clone(&self.gauge),
            smoothed_us: None,
        })
    }
}

struct Watched {
    inner: Box<dyn Controller>,
    gauge: Arc<Gauge>,
    smoothed_us: Option<u64>,
}

impl Watched {
    /// RFC 9002, section 5.3: the sample follows from two successive smoothed values.
    fn sample(&mut self, smoothed_us: u64) {
        let variation_us = match self.smoothed_us {
            None => smoothed_us / 2,
            Some(before) if before == smoothed_us => return,
            Some(before) => {
                let adjusted = (8 * smoothed_us).saturating_sub(7 * before);
                let last = self.gauge.variation_us.load(Ordering::Relaxed);
                (3 * last + before.abs_diff(adjusted)) / 4
            }
        };
        self.smoothed_us = Some(smoothed_us);
        self.gauge
            .variation_us
            .store(variation_us, Ordering::Relaxed);
    }
}

impl Controller for Watched {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &quinn_proto::RttEstimator,
    ) {
        self.gauge
            .acknowledged_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        self.sample(rtt.get().as_micros() as u64);
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> quinn::congestion::ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            gauge: Arc::clone(&self.gauge),
            smoothed_us: self.smoothed_us,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variation_follows_rfc_9002() {
        let observed = Arc::new(Observed::new(&Settings::default()));
        let gauge = observed.gauge();
        let mut watched = Watched {
            inner: Arc::clone(&observed.inner).build(Instant::now(), 1_200),
            gauge: observed.gauge(),
            smoothed_us: None,
        };
        watched.sample(100_000);
        assert_eq!(gauge.variation(), Duration::from_millis(50));
        // A sample of 180 ms: smoothed (7 × 100 + 180) / 8, variation (3 × 50 + 80) / 4.
        watched.sample(110_000);
        assert_eq!(gauge.variation(), Duration::from_micros(57_500));
        watched.sample(110_000);
        assert_eq!(gauge.variation(), Duration::from_micros(57_500));
    }
}
