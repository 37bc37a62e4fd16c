//! The mqtt5 crate's QUIC client against the broker, in every way in which it uses streams.
//!
//! It has one bidirectional control stream and, by its strategy, unidirectional streams for each
//! PUBLISH or for each topic, whose acknowledgements it expects on the control stream. Its callbacks
//! tell less than the common scenario asks for (no reason codes, no DUP, one call for each matching
//! filter), so it has steps of its own.

mod steps;

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mqtt5::time::Duration as ClientDuration;
use mqtt5::transport::StreamStrategy;
use mqtt5::types::{Message, WillMessage};
use mqtt5::{
    ConnectOptions, ConnectionEvent, DisconnectReason, MqttClient, ProtocolVersion, PublishOptions,
    QoS, SubscribeOptions,
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest time of a step.
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// Steps that run side by side.
const AT_ONCE: usize = 6;

/// Why a step did not hold, or why it was left out.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(String),
    Left(String),
}

pub(crate) type Outcome = Result<(), Stop>;

impl<E: std::fmt::Display> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Fails a step unless the condition holds.
pub(crate) fn expect(condition: bool, why: impl FnOnce() -> String) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(Stop::Failed(why()))
    }
}

/// How the client uses QUIC in one run of the steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    name: &'static str,
    version: ProtocolVersion,
    strategy: StreamStrategy,
    flow_headers: bool,
    datagrams: bool,
}

impl Variant {
    /// Whether messages that are not awaited keep their order.
    pub(crate) const fn ordered(self) -> bool {
        !matches!(self.strategy, StreamStrategy::DataPerPublish)
    }

    pub(crate) fn five(self) -> bool {
        matches!(self.version, ProtocolVersion::V5)
    }
}

/// One run of one step.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    url: String,
    ca: Vec<u8>,
    pub(crate) variant: Variant,
    root: String,
}

impl Step {
    pub(crate) fn topic(&self, name: &str) -> String {
        format!("iop/mqtt5/{}/{name}", self.root)
    }

    pub(crate) fn options(&self, name: &str) -> ConnectOptions {
        ConnectOptions::new(format!("m{}{name}", self.root))
            .with_protocol_version(self.variant.version)
            .with_clean_start(true)
            .with_automatic_reconnect(false)
            .with_keep_alive(ClientDuration::from_secs(60))
    }

    /// A client that is set up and not connected yet.
    pub(crate) async fn prepare(&self, options: ConnectOptions) -> Result<Client, Stop> {
        let client = MqttClient::with_options(options.clone());
        client
            .set_tls_config(None, None, Some(self.ca.clone()))
            .await;
        client.set_quic_stream_strategy(self.variant.strategy).await;
        client
            .set_quic_flow_headers(self.variant.flow_headers)
            .await;
        client.set_quic_datagrams(self.variant.datagrams).await;
        let (events, ends) = unbounded_channel();
        client
            .on_connection_event(move |event| {
                if let ConnectionEvent::Disconnected { reason } = event {
                    let _ = events.send(reason);
                }
            })
            .await?;
        let (sender, inbox) = unbounded_channel();
        Ok(Client {
            client,
            options,
            url: self.url.clone(),
            sender,
            inbox,
            ends,
            session_present: false,
        })
    }

    pub(crate) async fn client_with(&self, options: ConnectOptions) -> Result<Client, Stop> {
        let mut client = self.prepare(options).await?;
        client.connect().await?;
        Ok(client)
    }

    pub(crate) async fn client(&self, name: &str) -> Result<Client, Stop> {
        self.client_with(self.options(name)).await
    }

    pub(crate) fn will(&self) -> WillMessage {
        WillMessage::new(self.topic("will"), b"gone".to_vec()).with_qos(QoS::AtLeastOnce)
    }
}

/// A client and what it has received.
pub(crate) struct Client {
    pub(crate) client: MqttClient,
    options: ConnectOptions,
    url: String,
    sender: UnboundedSender<Message>,
    inbox: UnboundedReceiver<Message>,
    ends: UnboundedReceiver<DisconnectReason>,
    pub(crate) session_present: bool,
}

impl Client {
    pub(crate) async fn connect(&mut self) -> Outcome {
        let connecting = self
            .client
            .connect_with_options(&self.url, self.options.clone());
        let connected = timeout(PATIENCE, connecting)
            .await
            .map_err(|_| Stop::Failed(format!("connect was not done within {PATIENCE:?}")))??;
        self.session_present = connected.session_present;
        Ok(())
    }

    pub(crate) async fn subscribe(&self, filter: &str, qos: QoS) -> Outcome {
        self.subscribe_with(
            filter,
            SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            },
        )
        .await
    }

    pub(crate) async fn subscribe_with(&self, filter: &str, options: SubscribeOptions) -> Outcome {
        let (sender, qos) = (self.sender.clone(), options.qos);
        let subscribing = self
            .client
            .subscribe_with_options(filter, options, move |message| {
                let _ = sender.send(message);
            });
        let (_, granted) = timeout(PATIENCE, subscribing)
            .await
            .map_err(|_| Stop::Failed(format!("no SUBACK for {filter} within {PATIENCE:?}")))??;
        expect(granted == qos, || {
            format!("granted {granted:?} for {filter}, asked {qos:?}")
        })
    }

    pub(crate) async fn publish(
        &self,
        topic: &str,
        payload: impl Into<Vec<u8>>,
        qos: QoS,
    ) -> Outcome {
        self.publish_with(
            topic,
            payload,
            PublishOptions {
                qos,
                ..PublishOptions::default()
            },
        )
        .await
    }

    pub(crate) async fn publish_with(
        &self,
        topic: &str,
        payload: impl Into<Vec<u8>>,
        options: PublishOptions,
    ) -> Outcome {
        let publishing = self.client.publish_with_options(topic, payload, options);
        let result = timeout(PATIENCE, publishing).await.map_err(|_| {
            Stop::Failed(format!(
                "PUBLISH to {topic} was not done within {PATIENCE:?}"
            ))
        })??;
        match result {
            mqtt5::PublishResult::Sent(_) => Ok(()),
            mqtt5::PublishResult::Queued(_) => Err(Stop::Failed(format!(
                "PUBLISH to {topic} was not acknowledged"
            ))),
        }
    }

    pub(crate) async fn receive(&mut self) -> Result<Message, Stop> {
        match timeout(PATIENCE, self.inbox.recv()).await {
            Ok(Some(message)) => Ok(message),
            _ => Err(Stop::Failed(format!("no message within {PATIENCE:?}"))),
        }
    }

    pub(crate) async fn quiet(&mut self, why: &str) -> Outcome {
        match timeout(Duration::from_millis(500), self.inbox.recv()).await {
            Ok(Some(message)) => Err(Stop::Failed(format!(
                "{why}: got {:?} on {}",
                String::from_utf8_lossy(&message.payload),
                message.topic
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) async fn ended(&mut self) -> Result<DisconnectReason, Stop> {
        match timeout(PATIENCE, self.ends.recv()).await {
            Ok(Some(reason)) => Ok(reason),
            _ => Err(Stop::Failed(format!(
                "not disconnected within {PATIENCE:?}"
            ))),
        }
    }
}

type Run = fn(Step) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The places that the runner names.
fn places() -> Result<(String, Vec<u8>), Stop> {
    let path = std::env::var("STERNA_READY_FILE")?;
    let ready: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let listeners = ready["listeners"].as_array().cloned().unwrap_or_default();
    let address = listeners
        .iter()
        .filter_map(|entry| entry["url"].as_str())
        .find_map(|url| {
            url.strip_prefix("mqtt+quic://")
                .or_else(|| url.strip_prefix("quic://"))
        })
        .ok_or_else(|| Stop::Failed("the broker has no QUIC listener".to_owned()))?;
    let ca = fs::read(ready["certificate"].as_str().unwrap_or_default())?;
    Ok((format!("quics://{address}"), ca))
}

fn variants() -> Vec<Variant> {
    let base = Variant {
        name: "control-only",
        version: ProtocolVersion::V5,
        strategy: StreamStrategy::ControlOnly,
        flow_headers: false,
        datagrams: false,
    };
    let per_publish = Variant {
        name: "data-per-publish",
        strategy: StreamStrategy::DataPerPublish,
        ..base
    };
    let per_topic = Variant {
        name: "data-per-topic",
        strategy: StreamStrategy::DataPerTopic,
        ..base
    };
    vec![
        base,
        Variant {
            version: ProtocolVersion::V311,
            ..base
        },
        per_publish,
        Variant {
            version: ProtocolVersion::V311,
            ..per_publish
        },
        per_topic,
        Variant {
            version: ProtocolVersion::V311,
            ..per_topic
        },
        // Offers MQTT-next before mqtt; a broker that takes mqtt gets no headers.
        Variant {
            name: "control-only-headers",
            flow_headers: true,
            ..base
        },
        Variant {
            name: "data-per-publish-headers",
            flow_headers: true,
            ..per_publish
        },
        Variant {
            name: "data-per-topic-headers",
            flow_headers: true,
            ..per_topic
        },
        Variant {
            name: "control-only-datagrams",
            datagrams: true,
            ..base
        },
    ]
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let only = std::env::args()
        .skip_while(|argument| argument != "--only")
        .nth(1)
        .unwrap_or_default();
    let (url, ca) = match places() {
        Ok(places) => places,
        Err(stop) => {
            println!("not ok quic: {stop:?}");
            return ExitCode::FAILURE;
        }
    };
    let start = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as u64);
    let counter = AtomicU64::new(start << 12);
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = tokio::task::JoinSet::new();
    for variant in variants() {
        for (name, run) in steps::all() {
            let version = if variant.five() { "5.0" } else { "3.1.1" };
            let label = format!("quic/{version}/{}/{name}", variant.name);
            if !label.contains(&only) {
                continue;
            }
            let root = format!("{:x}", counter.fetch_add(1, Ordering::SeqCst));
            let step = Step {
                url: url.clone(),
                ca: ca.clone(),
                variant,
                root,
            };
            let gate = gate.clone();
            running.spawn(async move {
                let _permit = gate.acquire().await;
                let outcome = timeout(STEP_LIMIT, run(step)).await;
                (
                    label,
                    outcome.unwrap_or_else(|_| {
                        Err(Stop::Failed(format!("not done within {STEP_LIMIT:?}")))
                    }),
                )
            });
        }
    }
    let mut counts = BTreeMap::from([("ok", 0), ("not ok", 0), ("n/a", 0)]);
    while let Some(done) = running.join_next().await {
        let (verdict, line) = match done {
            Ok((label, Ok(()))) => ("ok", format!("ok {label}")),
            Ok((label, Err(Stop::Left(why)))) => ("n/a", format!("n/a {label}: {why}")),
            Ok((label, Err(Stop::Failed(why)))) => (
                "not ok",
                format!("not ok {label}: {}", why.replace('\n', " ")),
            ),
            Err(error) => ("not ok", format!("not ok quic/panic: {error}")),
        };
        *counts.entry(verdict).or_default() += 1;
        println!("{line}");
    }
    println!(
        "# {} ok, {} not ok, {} not applicable",
        counts["ok"], counts["not ok"], counts["n/a"]
    );
    if counts["not ok"] > 0 || counts["ok"] == 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Names a step and makes its future of one type.
macro_rules! named {
    ($name:literal, $function:path) => {
        ($name, (|step| Box::pin($function(step))) as crate::Run)
    };
}
pub(crate) use named;
