//! The variation of the round-trip time and the bytes in flight. A congestion controller gets these
//! values, and quinn-proto's statistics leave them out.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::{Connection, RttEstimator};

/// Builds controllers with a meter.
pub(crate) struct Metering(pub(crate) Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for Metering {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Metered {
            inner: self.0.clone().build(now, current_mtu),
            meter: Meter::default(),
        })
    }
}

/// A controller with a meter. It does not change the controller's input and output.
struct Metered {
    inner: Box<dyn Controller>,
    meter: Meter,
}

/// A copy of a connection's controller, without its meter.
pub(crate) fn unmetered(copy: Box<dyn Controller>) -> Box<dyn Any> {
    match copy.into_any().downcast::<Metered>() {
        Ok(metered) => metered.inner.into_any(),
        Err(other) => other,
    }
}

/// Values of a connection's path that the library's statistics leave out. For connections whose
/// configuration is made by [`crate::Settings::transport_config`].
#[derive(Clone, Copy, Default, Debug)]
pub struct Meter {
    /// The smoothed round trip when last looked at, in nanoseconds; 0 before the first sample.
    smoothed_ns: u64,
    variance_ns: u64,
    in_flight_bytes: u32,
    /// The same right after the last acknowledgement, and when that came.
    left_bytes: u32,
    acknowledged: Option<Instant>,
    /// Whether the acknowledgement being processed covers a packet that asked for one.
    acked: bool,
    /// Whether the estimate has changed since it was last looked at: the library updates it after
    /// it told the controller.
    due: bool,
}

impl Meter {
    /// The meter of a connection's path; all 0 if there is none. It copies the controller's state,
    /// so do not call it in every turn.
    #[must_use]
    pub fn of(connection: &Connection) -> Self {
        // The only way to look into a controller is to take a copy of it apart.
        Self::in_copy(connection.congestion_state().clone_box(), connection.rtt())
    }

    /// The meter in a copy of a connection's controller, where the connection itself is out of
    /// reach. `rtt` is the connection's smoothed round trip.
    #[must_use]
    pub fn in_copy(copy: Box<dyn Controller>, rtt: Duration) -> Self {
        let metered = copy.into_any().downcast::<Metered>();
        let mut meter = metered.map(|metered| metered.meter).unwrap_or_default();
        meter.sample(rtt);
        meter
    }

    /// Variation of the round trip, as RFC 9002, section 5.3, estimates it.
    #[must_use]
    pub const fn variance(&self) -> Duration {
        Duration::from_nanos(self.variance_ns)
    }

    /// Bytes of packets that were neither acknowledged nor declared lost. Those sent since the last
    /// acknowledgement are included, ack-eliciting or not.
    #[must_use]
    pub const fn in_flight_bytes(&self) -> u32 {
        self.in_flight_bytes
    }

    /// Time of the last acknowledgement; `None` before the first one.
    #[must_use]
    pub const fn acknowledged(&self) -> Option<Instant> {
        self.acknowledged
    }

    /// Whether the last acknowledgement left nothing in flight that asked for one.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.left_bytes == 0
    }

    /// Takes an updated estimate. The sample follows from the smoothed values: the new one is 7/8
    /// of the old plus 1/8 of the sample.
    fn sample(&mut self, smoothed: Duration) {
        if !std::mem::take(&mut self.due) {
            return;
        }
        let new = smoothed.as_nanos() as u64;
        if self.smoothed_ns == 0 {
            self.variance_ns = new / 2;
        } else {
            let old = self.smoothed_ns;
            let sample = (8 * new).saturating_sub(7 * old);
            self.variance_ns = (3 * self.variance_ns + old.abs_diff(sample)) / 4;
        }
        self.smoothed_ns = new;
    }
}

impl Controller for Metered {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.meter.in_flight_bytes = self.meter.in_flight_bytes.saturating_add(bytes as u32);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.meter.sample(rtt.get());
        self.meter.acked = true;
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.meter.in_flight_bytes = u32::try_from(in_flight).unwrap_or(u32::MAX);
        self.meter.left_bytes = self.meter.in_flight_bytes;
        self.meter.acknowledged = Some(now);
        self.meter.due |= std::mem::take(&mut self.meter.acked);
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
        let in_flight = &mut self.meter.in_flight_bytes;
        *in_flight = in_flight.saturating_sub(lost_bytes as u32);
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            meter: self.meter,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variation equals that of RFC 9002, section 5.3, for the same samples, to the rounding.
    #[test]
    fn the_variation_follows_from_the_smoothed_values() {
        let mut meter = Meter::default();
        let samples = [
            50_000_000u64,
            70_000_000,
            40_000_000,
            40_000_000,
            90_000_000,
        ];
        let (mut smoothed, mut variance) = (0u64, 0u64);
        for sample in samples {
            if smoothed == 0 {
                (smoothed, variance) = (sample, sample / 2);
            } else {
                variance = (3 * variance + smoothed.abs_diff(sample)) / 4;
                smoothed = (7 * smoothed + sample) / 8;
            }
            meter.due = true;
            meter.sample(Duration::from_nanos(smoothed));
            meter.sample(Duration::from_nanos(smoothed));
            assert!(meter.variance_ns.abs_diff(variance) < 100);
        }
    }
}
