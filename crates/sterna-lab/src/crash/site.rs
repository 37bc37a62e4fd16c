//! The site that all clients of a run share: the ledger, the phase of the run, and the way to the
//! broker.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sterna_client::{Backoff, Fingerprint, QuicOverrides, Tls, Url};
use tokio::sync::watch;

use sterna_ledger::{Ledger, Promise, Protocol};

use super::broker::{Addresses, Door};
use super::gate::Gate;
use super::weather::Weather;
use crate::link::Random;

/// Pauses before clients reconnect.
pub(super) const RECONNECT: Backoff = Backoff {
    min: Duration::from_millis(10),
    max: Duration::from_millis(150),
    max_attempts: None,
};
/// The time that a client waits for a connection before it tries again. A busy machine may be slow. It
/// must not serve an attempt that was given up, which would take the session from the next. Connections
/// to a killed broker end at once. Connections that the weather has silenced end before their silence
/// counts as a loss.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Settings of QUIC. A client that hears nothing for the idle timeout takes its connection for lost,
/// since a killed broker says nothing.
const QUIC: [(&str, &str); 3] = [
    ("initial_rtt_ms", "50"),
    ("idle_timeout_ms", "800"),
    ("keep_alive_interval_ms", "200"),
];

/// Activity of the clients at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Everybody acts.
    Load,
    /// Nobody sends anything new.
    Rest,
    /// The same, and everybody is there to read.
    Drain,
}

/// Presence of a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Habit {
    /// Always.
    Stays,
    /// Comes and goes. Each stay and each absence is random, up to these times.
    Wanders { here_ms: u64, away_ms: u64 },
    /// Comes for the drains only.
    Sleeps,
}

struct Inner {
    ledger: Mutex<Ledger>,
    phase: watch::Sender<Phase>,
    /// The weather at all gates.
    weather: watch::Sender<Weather>,
    addresses: Addresses,
    fingerprint: Fingerprint,
    seed: u64,
}

/// A handle to what clients share.
#[derive(Clone)]
pub(super) struct Site(Arc<Inner>);

impl Site {
    pub(super) fn new(addresses: Addresses, fingerprint: Fingerprint, seed: u64) -> Self {
        Self(Arc::new(Inner {
            ledger: Mutex::new(Ledger::default()),
            phase: watch::Sender::new(Phase::Rest),
            weather: watch::Sender::new(Weather::Clear),
            addresses,
            fingerprint,
            seed,
        }))
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn complain(&self, promise: Promise, protocol: Protocol, who: &str, text: String) {
        self.ledger().complain(promise, protocol, who, text);
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.0.phase.send_replace(phase);
    }

    /// Sets the weather on all clients' ways to the broker; [`Weather::Clear`] ends a fault.
    pub(super) fn set_weather(&self, weather: Weather) {
        self.0.weather.send_replace(weather);
    }

    /// Waits until the phase is this one.
    pub(super) async fn until(&self, phase: Phase) {
        let mut phases = self.0.phase.subscribe();
        // The sender lives as long as this.
        let _ = phases.wait_for(|now| *now == phase).await;
    }

    /// Waits up to `limit_ms` at random, and then until there is load.
    pub(super) async fn pace(&self, random: &mut Random, limit_ms: u64) {
        self.pause(random, limit_ms).await;
        self.until(Phase::Load).await;
    }

    /// Waits up to `limit_ms` at random, and no longer than the load lasts.
    pub(super) async fn pause(&self, random: &mut Random, limit_ms: u64) {
        let pause = Duration::from_micros(random.next_u64() % (1_000 * limit_ms + 1));
        let mut phases = self.0.phase.subscribe();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = phases.wait_for(|now| *now != Phase::Load) => {}
        }
    }

    /// Random numbers of a client's own.
    pub(super) fn random(&self, name: &str) -> Random {
        let parts: Vec<u64> = std::iter::once(self.0.seed)
            .chain(name.bytes().map(u64::from))
            .collect();
        Random::new(&parts)
    }

    /// A gate before a listener of the broker.
    pub(super) async fn gate(&self, door: Door) -> io::Result<Arc<Gate>> {
        let target = self.0.addresses.of(door);
        let weather = self.0.weather.subscribe();
        let gate = Gate::build(target, door.carrier(), weather, self.0.seed).await?;
        Ok(Arc::new(gate))
    }

    /// The URL by which a client goes through a gate.
    pub(super) fn url(door: Door, gate: &Gate) -> Result<Url, String> {
        let url = format!("{}://{}", door.scheme(), gate.address());
        url.parse().map_err(|error| format!("{url}: {error}"))
    }

    /// Trusts the broker's certificate.
    pub(super) fn tls(&self) -> Tls {
        let mut tls = Tls::default();
        tls.fingerprints = vec![self.0.fingerprint];
        tls
    }

    pub(super) fn quic() -> Result<QuicOverrides, String> {
        let mut overrides = QuicOverrides::default();
        for (name, value) in QUIC {
            overrides.set(name, value)?;
        }
        Ok(overrides)
    }

    /// Opens and shuts a client's gate as its habit says, for ever.
    pub(super) async fn live(&self, name: &str, gate: &Gate, habit: Habit) -> Result<(), String> {
        let mut random = self.random(name);
        loop {
            self.until(Phase::Load).await;
            match habit {
                Habit::Stays => return std::future::pending().await,
                Habit::Wanders { here_ms, away_ms } => {
                    self.pace(&mut random, here_ms).await;
                    gate.shut();
                    let pause = Duration::from_millis(random.next_u64() % away_ms);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.until(Phase::Drain) => {}
                    }
                }
                Habit::Sleeps => {
                    gate.shut();
                    self.until(Phase::Drain).await;
                }
            }
            gate.open();
        }
    }
}

/// A task that runs for as long as its handle lives.
#[derive(Debug)]
pub(super) struct Running(tokio::task::JoinHandle<()>);

impl Running {
    pub(super) fn start(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}
