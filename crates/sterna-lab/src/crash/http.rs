//! Clients of HTTP: publishers whose requests have keys, and durable subscriptions.

use sterna_client::http::{Client, Error, Options, Retained, Subscribe};
use sterna_client::{Publish, QoS};

use sterna_ledger::{Promise, Protocol, ReaderId, Reading, Sending};

use super::broker::Door;
use super::gate::Gate;
use super::mqtt::text;
use super::site::{CONNECT_TIMEOUT, Habit, RECONNECT, Site};

const HTTP: Protocol = Protocol::Http;
/// How long a request waits for its answer before it is sent again.
const RESPONSE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

fn client(site: &Site, door: Door, gate: &Gate) -> Result<Client, String> {
    let mut options = Options::new(Site::url(door, gate)?);
    options.tls = site.tls();
    options.quic = Site::quic()?;
    options.http3 = door.is_quic();
    options.connect_timeout = CONNECT_TIMEOUT;
    options.response_timeout = RESPONSE_TIMEOUT;
    options.reconnect = Some(RECONNECT);
    options.retry_first = true;
    Client::new(options).map_err(text)
}

/// A publisher. It waits for each answer, since requests that overlap may overtake each other.
#[derive(Clone, Debug)]
pub(super) struct Posts {
    pub(super) name: String,
    pub(super) door: Door,
    /// Where it publishes, at random.
    pub(super) topics: Vec<String>,
    pub(super) qos: QoS,
    /// Longest pause between messages.
    pub(super) pause_ms: u64,
}

impl Posts {
    /// Publishes whenever there is load, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let gate = site.gate(self.door).await.map_err(text)?;
        let client = client(&site, self.door, &gate)?;
        let sending = Sending {
            protocol: HTTP,
            is_exact: self.qos == QoS::ExactlyOnce,
        };
        let publisher = site.ledger().publisher(self.name.clone(), sending);
        let mut random = site.random(&self.name);
        loop {
            site.pace(&mut random, self.pause_ms).await;
            let topic = &self.topics[random.next_u64() as usize % self.topics.len()];
            let stamp = site.ledger().send(publisher, topic);
            let message = Publish::new(topic.clone(), stamp.payload()).map_err(text)?;
            // The client gives it a key, and repeats it with that key until it is answered.
            let answer = client.publish(message.qos(self.qos)).await;
            let mut ledger = site.ledger();
            match answer {
                Ok(()) => ledger.acknowledged(stamp),
                Err(error) => {
                    if matches!(error, Error::Problem(_)) {
                        ledger.refused(stamp);
                    } else {
                        ledger.doubtful(stamp);
                    }
                    let text = format!("a message of {} was not answered well: {error}", self.name);
                    ledger.complain(Promise::Serving, HTTP, &self.name, text);
                }
            }
        }
    }
}

/// A durable subscription.
#[derive(Clone, Debug)]
pub(super) struct Listens {
    /// The name of the session, too.
    pub(super) name: String,
    pub(super) door: Door,
    pub(super) filter: String,
    pub(super) habit: Habit,
}

impl Listens {
    /// Receives, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let gate = site.gate(self.door).await.map_err(text)?;
        let client = client(&site, self.door, &gate)?;
        let reading = Reading {
            protocol: HTTP,
            is_exact: false,
            is_ordered: true,
        };
        let reader = site.ledger().reader(self.name.clone(), reading);
        site.ledger().asks(reader, &self.filter);
        let subscribe = Subscribe::new(self.filter.clone(), QoS::AtLeastOnce);
        let subscribe = subscribe.and_then(|subscribe| subscribe.session(self.name.clone()));
        let subscribe = subscribe.map_err(text)?;
        tokio::select! {
            ended = self.receive(&site, &client, reader, &subscribe) => ended,
            // It begins to come and go with the load, which waits for the subscription.
            ended = site.live(&self.name, &gate, self.habit) => ended,
        }
    }

    async fn receive(
        &self,
        site: &Site,
        client: &Client,
        reader: ReaderId,
        subscribe: &Subscribe,
    ) -> Result<(), String> {
        let mut is_first = true;
        loop {
            let mut subscription = match client.subscribe(subscribe.clone()).await {
                Ok(subscription) => subscription,
                Err(error) if error.is_temporary() => {
                    tokio::time::sleep(RECONNECT.max).await;
                    continue;
                }
                Err(error) => return Err(text(error)),
            };
            if std::mem::take(&mut is_first) {
                site.ledger().granted(reader, &self.filter);
            }
            let mut restarts = 0;
            let error = loop {
                match subscription.next().await {
                    Ok(received) => {
                        let mut ledger = site.ledger();
                        let message = &received.message;
                        ledger.received(reader, Some(message.topic()), message.payload_bytes());
                        if subscription.restarts() > restarts {
                            restarts = subscription.restarts();
                            let text = format!("the session of {} has begun anew", self.name);
                            ledger.complain(Promise::Remembered, HTTP, &self.name, text);
                        }
                    }
                    Err(error) => break error,
                }
            };
            match error {
                Error::Closed => {
                    let text = format!("the subscription of {} was ended", self.name);
                    site.complain(Promise::Remembered, HTTP, &self.name, text);
                }
                error if error.is_temporary() => {}
                error => return Err(text(error)),
            }
        }
    }
}

/// The retained message of a topic, as a question for it tells.
pub(super) async fn retained(
    site: &Site,
    door: Door,
    topics: &[String],
) -> Result<Vec<(String, Option<Vec<u8>>)>, String> {
    let gate = site.gate(door).await.map_err(text)?;
    let client = client(site, door, &gate)?;
    let mut found = Vec::new();
    for topic in topics {
        let payload = match client.retained(topic, None).await.map_err(text)? {
            Retained::Message { message, .. } => Some(message.payload_bytes().to_vec()),
            Retained::None | Retained::NotModified => None,
        };
        found.push((topic.clone(), payload));
    }
    client.close().await;
    Ok(found)
}
