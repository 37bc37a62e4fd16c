//! Clients of MQTT: publishers and subscribers whose sessions outlive their connections.

use std::sync::Arc;

use sterna_client::{
    Client, Error, Event, Events, Options, Publish, QoS, Streams, Subscription, Version,
};
use tokio::sync::Semaphore;

use sterna_ledger::{Promise, Protocol, PublisherId, ReaderId, Reading, Sending, Stamp};

use super::broker::Door;
use super::gate::Gate;
use super::site::{CONNECT_TIMEOUT, Habit, RECONNECT, Running, Site};
use crate::link::Random;

const MQTT: Protocol = Protocol::Mqtt;
/// How long the broker keeps sessions, in seconds: longer than any run.
const SESSION_EXPIRY_S: u32 = 7 * 24 * 3_600;
/// Seconds after which a silent broker is asked whether it lives.
const KEEP_ALIVE_S: u16 = 5;

/// How a client speaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    pub(super) door: Door,
    pub(super) version: Version,
    pub(super) qos: QoS,
}

impl Dialect {
    pub(super) const fn new(door: Door, qos: QoS) -> Self {
        Self {
            door,
            version: Version::V5,
            qos,
        }
    }

    /// The settings of a client with a session that is kept.
    pub(super) fn options(self, site: &Site, gate: &Gate, name: &str) -> Result<Options, String> {
        let mut options = Options::new(Site::url(self.door, gate)?);
        options.version = self.version;
        options.client_id = Some(name.to_owned());
        options.session_expiry_s = SESSION_EXPIRY_S;
        // Before 5.0 that is what keeps a session. The folder is new, so there is none to go on with.
        options.clean_start = self.version.is_v5();
        options.keep_alive_s = KEEP_ALIVE_S;
        options.tls = site.tls();
        options.quic = Site::quic()?;
        options.connect_timeout = CONNECT_TIMEOUT;
        options.reconnect = Some(RECONNECT);
        options.retry_first = true;
        Ok(options)
    }
}

/// A publisher.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    pub(super) name: String,
    pub(super) dialect: Dialect,
    pub(super) streams: Streams,
    /// Where it publishes, at random.
    pub(super) topics: Vec<String>,
    /// As retained messages, some of which clear the topic.
    pub(super) retain: bool,
    /// Messages that may be unacknowledged.
    pub(super) window: usize,
    /// Longest pause between messages.
    pub(super) pause_ms: u64,
}

impl Publisher {
    /// Publishes whenever there is load, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let gate = site.gate(self.dialect.door).await.map_err(text)?;
        let mut options = self.dialect.options(&site, &gate, &self.name)?;
        options.streams = self.streams;
        let (client, events) = Client::start(options).map_err(text)?;
        let _session = Running::start(follow(site.clone(), self.name.clone(), None, events));
        let sending = Sending {
            protocol: MQTT,
            is_exact: self.dialect.qos == QoS::ExactlyOnce,
        };
        let publisher = site.ledger().publisher(self.name.clone(), sending);
        let mut random = site.random(&self.name);
        let window = Arc::new(Semaphore::new(self.window));
        loop {
            site.pace(&mut random, self.pause_ms).await;
            let permit = Arc::clone(&window).acquire_owned().await.map_err(text)?;
            let (stamp, message) = self.message(&site, publisher, &mut random)?;
            let delivery = client.send(message).await.map_err(text)?;
            let (site, name) = (site.clone(), self.name.clone());
            tokio::spawn(async move {
                note_fate(&site, &name, stamp, delivery.await.map(drop));
                drop(permit);
            });
        }
    }

    fn message(
        &self,
        site: &Site,
        publisher: PublisherId,
        random: &mut Random,
    ) -> Result<(Stamp, Publish), String> {
        let topic = &self.topics[random.next_u64() as usize % self.topics.len()];
        let clears = self.retain && random.happens(0.1);
        let stamp = if clears {
            site.ledger().clear(publisher, topic)
        } else {
            site.ledger().send(publisher, topic)
        };
        let payload = if clears { Vec::new() } else { stamp.payload() };
        let message = Publish::new(topic.clone(), payload).map_err(text)?;
        Ok((stamp, message.qos(self.dialect.qos).retain(self.retain)))
    }
}

/// Notes what has become of a message.
fn note_fate(site: &Site, name: &str, stamp: Stamp, fate: Result<(), Error>) {
    let mut ledger = site.ledger();
    match fate {
        Ok(()) => ledger.acknowledged(stamp),
        Err(Error::Rejected(refusal)) => {
            ledger.refused(stamp);
            let text = format!("a message of {name} was refused: {refusal}");
            ledger.complain(Promise::Serving, MQTT, name, text);
        }
        // The loss of the session is told where the connection is looked at.
        Err(Error::SessionLost) => ledger.doubtful(stamp),
        Err(error) => {
            ledger.doubtful(stamp);
            let text = format!("a message of {name} has no answer: {error}");
            ledger.complain(Promise::Serving, MQTT, name, text);
        }
    }
}

/// Follows a client's events: messages go to the ledger, and whether its session was there.
async fn follow(site: Site, name: String, reader: Option<ReaderId>, mut events: Events) {
    while let Some(event) = events.next().await {
        match event {
            Event::Message(message) => {
                if let Some(reader) = reader {
                    let topic = Some(message.topic());
                    let payload = message.payload_bytes();
                    site.ledger().received(reader, topic, payload);
                }
            }
            Event::Connected(connected) => {
                let is_expected = connected.connections > 1;
                if connected.session_present != is_expected {
                    let has = if is_expected { "lost" } else { "old" };
                    let text = format!("{name} came back and has a {has} session");
                    site.complain(Promise::Remembered, MQTT, &name, text);
                }
            }
            Event::Disconnected { error, retry_in }
                if retry_in.is_none() || matches!(error, Error::Protocol(_)) =>
            {
                let text = format!("{name}: {error}");
                site.complain(Promise::Serving, MQTT, &name, text);
            }
            _ => {}
        }
    }
}

/// A subscriber with a session that is kept.
#[derive(Clone, Debug)]
pub(super) struct Subscriber {
    pub(super) name: String,
    pub(super) dialect: Dialect,
    pub(super) filters: Vec<String>,
    pub(super) habit: Habit,
    /// The group in which it shares.
    pub(super) group: Option<(String, ReaderId)>,
}

impl Subscriber {
    /// Subscribes and receives, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let gate = site.gate(self.dialect.door).await.map_err(text)?;
        let options = self.dialect.options(&site, &gate, &self.name)?;
        let reader = match &self.group {
            Some((_, reader)) => *reader,
            None => (site.ledger()).reader(self.name.clone(), self.dialect.reading(true)),
        };
        let (client, events) = Client::start(options).map_err(text)?;
        let _events = Running::start(follow(
            site.clone(),
            self.name.clone(),
            Some(reader),
            events,
        ));
        for filter in &self.filters {
            let whole = match &self.group {
                Some((group, _)) => format!("$share/{group}/{filter}"),
                None => filter.clone(),
            };
            subscribe(&site, &client, self.dialect.qos, reader, &whole, filter).await?;
        }
        site.live(&self.name, &gate, self.habit).await
    }
}

impl Dialect {
    /// The description of a subscriber in the ledger.
    pub(super) fn reading(self, is_ordered: bool) -> Reading {
        Reading {
            protocol: MQTT,
            is_exact: self.qos == QoS::ExactlyOnce,
            is_ordered,
        }
    }
}

async fn subscribe(
    site: &Site,
    client: &Client,
    qos: QoS,
    reader: ReaderId,
    whole: &str,
    filter: &str,
) -> Result<(), String> {
    site.ledger().asks(reader, filter);
    let subscription = Subscription::new(whole, qos).map_err(text)?;
    let codes = client.subscribe([subscription]).await.map_err(text)?;
    if let Some(code) = codes.iter().find(|code| code.is_error()) {
        return Err(format!("{whole} was refused: {code:?}"));
    }
    site.ledger().granted(reader, filter);
    Ok(())
}

/// A subscriber that subscribes and unsubscribes at random, and now and then starts anew.
#[derive(Clone, Debug)]
pub(super) struct Fickle {
    pub(super) name: String,
    pub(super) dialect: Dialect,
    pub(super) filters: Vec<String>,
    /// Longest pause between changes.
    pub(super) pause_ms: u64,
}

impl Fickle {
    /// Changes its mind whenever there is load, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let gate = site.gate(self.dialect.door).await.map_err(text)?;
        let mut random = site.random(&self.name);
        let mut number = 0;
        let mut last: Option<(ReaderId, Vec<String>)> = None;
        loop {
            number += 1;
            // The same client identifier, and another page in the ledger.
            let mut options = self.dialect.options(&site, &gate, &self.name)?;
            options.clean_start = true;
            let page = format!("{}, session {number}", self.name);
            let reader = (site.ledger()).reader(page.clone(), self.dialect.reading(true));
            let (client, events) = Client::start(options).map_err(text)?;
            let _events = Running::start(follow(site.clone(), page, Some(reader), events));
            client.connected().await.map_err(text)?;
            if let Some((old, filters)) = last.take() {
                for filter in filters {
                    site.ledger().left(old, &filter);
                }
            }
            let held = self.session(&site, &client, reader, &mut random).await?;
            for filter in &held {
                site.ledger().leaves(reader, filter);
            }
            site.ledger().retires(reader);
            last = Some((reader, held));
            // The broker may have been killed at this moment: then there was nothing to end.
            let _ = client.disconnect().await;
        }
    }

    /// Lives with one session; returns what it was subscribed to at its end.
    async fn session(
        &self,
        site: &Site,
        client: &Client,
        reader: ReaderId,
        random: &mut Random,
    ) -> Result<Vec<String>, String> {
        let mut held: Vec<String> = Vec::new();
        loop {
            site.pace(random, self.pause_ms).await;
            if random.happens(0.03) {
                return Ok(held);
            }
            let filter = &self.filters[random.next_u64() as usize % self.filters.len()];
            if let Some(place) = held.iter().position(|one| one == filter) {
                held.swap_remove(place);
                site.ledger().leaves(reader, filter);
                client.unsubscribe([filter.clone()]).await.map_err(text)?;
                site.ledger().left(reader, filter);
            } else {
                let qos = self.dialect.qos;
                subscribe(site, client, qos, reader, filter, filter).await?;
                held.push(filter.clone());
            }
        }
    }
}

/// Asks for the retained messages of a filter, as a newcomer does.
pub(super) async fn retained(
    site: &Site,
    door: Door,
    filter: &str,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    let gate = site.gate(door).await.map_err(text)?;
    let dialect = Dialect::new(door, QoS::AtLeastOnce);
    let mut options = dialect.options(site, &gate, "newcomer")?;
    options.session_expiry_s = 0;
    let (client, mut events) = Client::start(options).map_err(text)?;
    let sentinel = "sentinel/newcomer";
    let subscription = |filter: &str| Subscription::new(filter, dialect.qos).map_err(text);
    client
        .subscribe([subscription(filter)?, subscription(sentinel)?])
        .await
        .map_err(text)?;
    // It is queued behind the retained messages.
    let last = Publish::new(sentinel, "").map_err(text)?.qos(dialect.qos);
    client.publish(last).await.map_err(text)?;
    let mut found = Vec::new();
    while let Some(message) = events.message().await {
        if message.topic() == sentinel {
            let _ = client.disconnect().await;
            return Ok(found);
        }
        found.push((message.topic().to_owned(), message.payload_bytes().to_vec()));
    }
    Err("the newcomer has ended".to_owned())
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
