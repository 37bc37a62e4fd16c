//! `sterna handshake` for HTTP, and for MQTT over QUIC beside it.

use std::time::Duration;

use sterna_client::http::{Client, Error, Options, Subscribe, Subscription};
use sterna_client::{Publish, QoS, Scheme, TlsVersion};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::path::Path;
use super::{
    Args, Kind, Measurable, Measured, PATIENCE, TICKET_PAUSE, Way, measure_ways, own_broker,
    print_head, way,
};
use crate::commands::connection::http::HttpSettings;
use crate::commands::exit::Failure;

const MQTT: &[Way] = &[
    way("MQTT, QUIC, full", None, Kind::Full),
    way("MQTT, QUIC, resumed", None, Kind::Resumed),
    way("MQTT, QUIC, 0-RTT", None, Kind::Early),
];
const HTTP3: &[Way] = &[
    way("HTTP/3, full", None, Kind::Full),
    way("HTTP/3, resumed", None, Kind::Resumed),
    way("HTTP/3, 0-RTT", None, Kind::Early),
];
const TLS: &[Way] = &[
    way("HTTP/2, TLS 1.3, full", Some(TlsVersion::Tls13), Kind::Full),
    way(
        "HTTP/2, TLS 1.3, resumed",
        Some(TlsVersion::Tls13),
        Kind::Resumed,
    ),
];
const TCP: &[Way] = &[way("HTTP/1.1, TCP", None, Kind::Full)];

/// Measures every way to the broker that the command line names, or to one in this process.
pub(super) async fn handshake(args: &Args) -> Result<(), Failure> {
    let one_way = Duration::from_millis(args.delay.max(1));
    print_head(args, ["connected", "answer"])?;
    if !args.http {
        let HttpSettings { options, .. } = args.connection.http(&[])?;
        return measure_target(args, &options, one_way).await;
    }
    let (server, urls, fingerprint) = own_broker(["http", "https", "mqtt+quic"])?;
    let mut result = Ok(());
    for url in urls {
        if url.scheme() == Scheme::MqttQuic {
            let mut options = sterna_client::Options::new(url.clone());
            options.tls.fingerprints = vec![fingerprint];
            result = result.and(measure_ways(args, &options, MQTT, one_way).await);
        }
        // Every listener of QUIC speaks HTTP/3.
        let scheme = match url.scheme() {
            Scheme::MqttQuic => Scheme::H3,
            other => other,
        };
        let port = url.port();
        let mut options = Options::new(url.with_scheme(scheme, Some(port)));
        options.tls.fingerprints = vec![fingerprint];
        options.http3 = false;
        result = result.and(measure_target(args, &options, one_way).await);
    }
    server.shutdown();
    result
}

async fn measure_target(args: &Args, options: &Options, one_way: Duration) -> Result<(), Failure> {
    let mut result = Ok(());
    for (scheme, ways) in [
        (Scheme::Http, TCP),
        (Scheme::Https, TLS),
        (Scheme::H3, HTTP3),
    ] {
        // An https:// URL is measured over QUIC and over TCP.
        let is_named = options.url.scheme() == scheme
            || (options.url.scheme() == Scheme::Https && scheme == Scheme::H3 && options.http3);
        if is_named {
            let port = options.url.port();
            let mut options = options.clone();
            options.url = options.url.clone().with_scheme(scheme, Some(port));
            options.http3 = false;
            result = result.and(measure_ways(args, &options, ways, one_way).await);
        }
    }
    result
}

/// A subscriber without delay, which shows when the broker has a message.
pub(super) struct Watcher {
    client: Client,
    subscription: Subscription,
    topic: String,
}

impl Watcher {
    async fn start(options: &Options) -> Result<Self, Failure> {
        let failed = |error: Error| Failure::http(&error);
        let mut options = options.clone();
        // Its tickets are not used by the measured connections.
        options.tls.resumption = false;
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Failure::local(format_args!("no random numbers: {error}")))?;
        let topic = format!("sterna/handshake/{:016x}", u64::from_ne_bytes(random));
        let client = Client::new(options).map_err(failed)?;
        let subscribe = Subscribe::new(&topic, QoS::AtMostOnce).map_err(failed)?;
        let subscription = client.subscribe(subscribe).await.map_err(failed)?;
        Ok(Self {
            client,
            subscription,
            topic,
        })
    }

    /// Takes this number of messages, and returns the time of the first one.
    async fn take(&mut self, messages: u32) -> Option<Instant> {
        let mut first = None;
        for _ in 0..messages {
            let received = tokio::time::timeout(PATIENCE, self.subscription.next()).await;
            received.ok()?.ok()?;
            first.get_or_insert_with(Instant::now);
        }
        first
    }
}

impl Measurable for Options {
    type Watcher = Watcher;

    async fn watch(&self) -> Result<Watcher, Failure> {
        Watcher::start(self).await
    }

    async fn dismiss(watcher: Watcher) {
        watcher.client.close().await;
    }

    async fn measure(
        &self,
        args: &Args,
        path: &Path,
        watcher: &mut Watcher,
        one_way: Duration,
    ) -> Result<Measured, Failure> {
        let failed = |error: Error| Failure::http(&error);
        path.start().await;
        let message = Publish::new(&watcher.topic, vec![b'x'; args.bytes as usize])
            .map_err(Failure::local)?
            .qos(QoS::AtLeastOnce);
        let client = Client::new(self.clone()).map_err(failed)?;
        let publishing = async {
            // The first one waits for nothing; the others follow as they may.
            let mut under_way = JoinSet::new();
            for _ in 0..args.messages {
                let (client, message) = (client.clone(), message.clone());
                under_way.spawn(async move { client.publish(message).await });
            }
            while let Some(answer) = under_way.join_next().await {
                answer.unwrap_or(Err(Error::Ended))?;
            }
            Ok::<_, Error>((Instant::now(), path.take()))
        };
        let connecting = async {
            // Behind the first message, which travels with the handshake where it can.
            tokio::task::yield_now().await;
            while client.connection().is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let connected = client.connected().await?;
            Ok::<_, Error>((Instant::now(), connected.early_data))
        };
        let (published, connected, arrived) =
            tokio::join!(publishing, connecting, watcher.take(args.messages));
        let (connected, early_data) = connected.map_err(failed)?;
        let (acknowledged, passed) = published.map_err(failed)?;
        let arrived =
            arrived.ok_or_else(|| Failure::local("the broker answered and did not deliver"))?;
        let started = passed.started.unwrap_or(acknowledged);
        // TCP to the path stands at once, and through it after a round trip.
        let connected = connected.max(started + 2 * one_way);
        tokio::time::sleep(2 * one_way + TICKET_PAUSE).await;
        client.close().await;
        Ok(Measured {
            at_broker: arrived.duration_since(started),
            connected: connected.duration_since(started),
            acknowledged: acknowledged.duration_since(started),
            passed,
            early_data,
        })
    }
}
