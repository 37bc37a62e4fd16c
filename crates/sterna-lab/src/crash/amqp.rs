//! Clients of AMQP: senders that wait for `accepted`, receivers of queues and durable subscriptions, and
//! transactions.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use sterna_client::amqp::{
    Connection, Controller, Durability, Error, ExpiryPolicy, Message, Options, Outcome, Receiver,
    ReceiverOptions, ReceiverSettles, Sender, SenderOptions, SenderSettles, Session, Settlement,
};
use tokio::sync::Semaphore;

use sterna_ledger::{Promise, Protocol, PublisherId, ReaderId, Reading, Sending, Stamp};

use super::broker::Door;
use super::gate::Gate;
use super::mqtt::text;
use super::site::{CONNECT_TIMEOUT, Habit, RECONNECT, Site};
use crate::link::Random;

const AMQP: Protocol = Protocol::Amqp;
/// Queues of the broker's configuration: one with a single consumer, one whose consumers compete.
pub(super) const QUEUES: [&str; 2] = ["single", "shared"];
/// The condition of a transaction that the broker does not know.
const UNKNOWN_ID: &str = "amqp:transaction:unknown-id";
/// Most messages of a transaction.
const MAX_POSTS: u64 = 6;
/// Seconds after which a silent broker is taken for dead, about half of them.
const IDLE_TIMEOUT_S: u16 = 5;

fn options(site: &Site, door: Door, gate: &Gate, name: &str) -> Result<Options, String> {
    let mut options = Options::new(Site::url(door, gate)?);
    name.clone_into(&mut options.container_id);
    options.tls = site.tls();
    options.quic = Site::quic()?;
    options.connect_timeout = CONNECT_TIMEOUT;
    options.idle_timeout_s = IDLE_TIMEOUT_S;
    options.reconnect = Some(RECONNECT);
    options.retry_first = true;
    Ok(options)
}

/// A connection through a gate, and its first session.
async fn connect(
    site: &Site,
    door: Door,
    name: &str,
) -> Result<(Arc<Gate>, Connection, Session), String> {
    let gate = site.gate(door).await.map_err(text)?;
    let options = options(site, door, &gate, name)?;
    let (connection, _) = Connection::start(options).map_err(text)?;
    let session = connection.session().await.map_err(text)?;
    Ok((gate, connection, session))
}

/// A sender.
#[derive(Clone, Debug)]
pub(super) struct Sends {
    pub(super) name: String,
    pub(super) door: Door,
    /// The address; in the ledger it is the topic.
    pub(super) address: String,
    /// Whether deliveries are exactly once: settled in two steps, on a link that is recovered.
    pub(super) is_exact: bool,
    /// Messages that may be unsettled.
    pub(super) window: usize,
    /// Longest pause between messages.
    pub(super) pause_ms: u64,
}

impl Sends {
    /// Sends whenever there is load, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let (_gate, _connection, session) = connect(&site, self.door, &self.name).await?;
        let mut options = SenderOptions::new(self.address.clone());
        options.name = Some(format!("{}-link", self.name));
        options.sender_settles = SenderSettles::Unsettled;
        if self.is_exact {
            options.receiver_settles = ReceiverSettles::Second;
            options.durability = Durability::UnsettledState;
            options.expiry_policy = ExpiryPolicy::Never;
        }
        let sender = session.sender(options).await.map_err(text)?;
        let sending = Sending {
            protocol: AMQP,
            is_exact: self.is_exact,
        };
        let publisher = site.ledger().publisher(self.name.clone(), sending);
        let mut random = site.random(&self.name);
        let window = Arc::new(Semaphore::new(self.window));
        loop {
            site.pace(&mut random, self.pause_ms).await;
            let permit = Arc::clone(&window).acquire_owned().await.map_err(text)?;
            let stamp = site.ledger().send(publisher, &self.address);
            let message = Message::data(stamp.payload());
            let sending = sender.send(message).await.map_err(text)?;
            let (site, name) = (site.clone(), self.name.clone());
            tokio::spawn(async move {
                note_fate(&site, &name, stamp, sending.await);
                drop(permit);
            });
        }
    }
}

/// Notes what has become of a message.
fn note_fate(site: &Site, name: &str, stamp: Stamp, fate: Result<Outcome, Error>) {
    let mut ledger = site.ledger();
    match fate {
        Ok(Outcome::Accepted) => ledger.acknowledged(stamp),
        Ok(outcome) => {
            ledger.refused(stamp);
            let text = format!("a message of {name} was not taken: {outcome:?}");
            ledger.complain(Promise::Serving, AMQP, name, text);
        }
        Err(Error::Unknown) => {
            ledger.doubtful(stamp);
            let text = format!("the link of {name} was forgotten, with an unsettled delivery");
            ledger.complain(Promise::Remembered, AMQP, name, text);
        }
        Err(error) => {
            ledger.doubtful(stamp);
            let text = format!("a message of {name} has no outcome: {error}");
            ledger.complain(Promise::Serving, AMQP, name, text);
        }
    }
}

/// The source of a receiver.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A durable subscription of its own.
    Topic(String),
    /// A queue of the configuration, whose page in the ledger all its receivers share.
    Queue(&'static str, ReaderId),
}

/// A receiver, which accepts all it gets.
#[derive(Clone, Debug)]
pub(super) struct Receives {
    pub(super) name: String,
    pub(super) door: Door,
    pub(super) source: Source,
    /// Whether deliveries are exactly once: settled in two steps.
    pub(super) is_exact: bool,
    pub(super) habit: Habit,
}

/// The page of a queue, which exists before the first message is sent.
pub(super) fn queue_reader(site: &Site, queue: &str, is_ordered: bool) -> ReaderId {
    let mut ledger = site.ledger();
    let reading = Reading {
        protocol: AMQP,
        is_exact: false,
        is_ordered,
    };
    let reader = ledger.reader(format!("the queue {queue}"), reading);
    let topic = format!("queue/{queue}");
    ledger.asks(reader, &topic);
    ledger.granted(reader, &topic);
    reader
}

impl Receives {
    /// Receives, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let (gate, _connection, session) = connect(&site, self.door, &self.name).await?;
        let (mut options, reader) = match &self.source {
            Source::Topic(filter) => {
                let reading = Reading {
                    protocol: AMQP,
                    is_exact: self.is_exact,
                    is_ordered: true,
                };
                let mut ledger = site.ledger();
                let reader = ledger.reader(self.name.clone(), reading);
                ledger.asks(reader, filter);
                let link = format!("{}-link", self.name);
                (ReceiverOptions::new(filter.clone()).durable(link), reader)
            }
            Source::Queue(queue, reader) => {
                (ReceiverOptions::new(format!("queue/{queue}")), *reader)
            }
        };
        options.sender_settles = SenderSettles::Unsettled;
        if self.is_exact {
            options.receiver_settles = ReceiverSettles::Second;
        }
        let receiver = session.receiver(options).await.map_err(text)?;
        receiver.attached().await.map_err(text)?;
        if let Source::Topic(filter) = &self.source {
            site.ledger().granted(reader, filter);
        }
        tokio::select! {
            ended = receive(&site, &self.name, receiver, reader, self.is_exact) => ended,
            ended = site.live(&self.name, &gate, self.habit) => ended,
        }
    }
}

/// Takes deliveries. A message of an exactly-once receiver counts when its settlement stands: before
/// that it may come again.
async fn receive(
    site: &Site,
    name: &str,
    mut receiver: Receiver,
    reader: ReaderId,
    is_exact: bool,
) -> Result<(), String> {
    let mut settling: VecDeque<(Bytes, Settlement)> = VecDeque::new();
    loop {
        let delivery = tokio::select! {
            delivery = receiver.next() => delivery.map_err(text)?,
            settled = settled(&mut settling) => {
                if let Some(payload) = settled {
                    site.ledger().received(reader, None, &payload);
                }
                continue;
            }
        };
        let payload = match delivery.message() {
            Ok(message) => message.bytes().cloned().unwrap_or_default(),
            Err(error) => {
                let text = format!("a delivery to {name} cannot be read: {error}");
                site.complain(Promise::Intact, AMQP, name, text);
                continue;
            }
        };
        let settlement = delivery.accept();
        if is_exact {
            settling.push_back((payload, settlement));
        } else {
            site.ledger().received(reader, None, &payload);
        }
    }
}

/// The payload of the first of these deliveries, when its settlement stands; `None` where it comes again.
async fn settled(settling: &mut VecDeque<(Bytes, Settlement)>) -> Option<Bytes> {
    let Some((_, settlement)) = settling.front_mut() else {
        return std::future::pending().await;
    };
    let stands = settlement.await.is_ok();
    let (payload, _) = settling.pop_front()?;
    stands.then_some(payload)
}

/// A sender of transactions, each to a topic and a queue.
#[derive(Clone, Debug)]
pub(super) struct Transacts {
    pub(super) name: String,
    pub(super) door: Door,
    /// Addresses, which are topics in the ledger.
    pub(super) addresses: Vec<String>,
    /// Longest pause between transactions.
    pub(super) pause_ms: u64,
}

impl Transacts {
    /// Makes transactions whenever there is load, for ever.
    pub(super) async fn run(self, site: Site) -> Result<(), String> {
        let sending = Sending {
            protocol: AMQP,
            is_exact: false,
        };
        let publisher = site.ledger().publisher(self.name.clone(), sending);
        let mut random = site.random(&self.name);
        loop {
            let (_gate, _connection, session) = connect(&site, self.door, &self.name).await?;
            let controller = session.controller().await.map_err(text)?;
            let mut senders = Vec::new();
            for address in &self.addresses {
                let mut options = SenderOptions::new(address.clone());
                options.sender_settles = SenderSettles::Unsettled;
                senders.push(session.sender(options).await.map_err(text)?);
            }
            let error = loop {
                site.pace(&mut random, self.pause_ms).await;
                let made = self.transact(&site, publisher, &controller, &senders, &mut random);
                match made.await {
                    // It was lost with its connection, and the links are attached again.
                    Ok(()) | Err(Error::Unknown | Error::TransactionLost) => {}
                    Err(error) => break error,
                }
            };
            // A message that is posted on the next connection belongs to no transaction there, and
            // ends the link.
            if !matches!(&error, Error::Detached(Some(remote)) if remote.condition == UNKNOWN_ID) {
                let text = format!("a transaction of {}: {error}", self.name);
                site.complain(Promise::Serving, AMQP, &self.name, text);
            }
        }
    }

    /// One transaction, from its declaration to its end.
    async fn transact(
        &self,
        site: &Site,
        publisher: PublisherId,
        controller: &Controller,
        senders: &[Sender],
        random: &mut Random,
    ) -> Result<(), Error> {
        let transaction = controller.declare().await?;
        let number = site.ledger().transaction();
        let mut posted = Ok(());
        let mut sendings = Vec::new();
        for _ in 0..=random.next_u64() % MAX_POSTS {
            let place = random.next_u64() as usize % senders.len();
            let stamp = (site.ledger()).post(publisher, &self.addresses[place], number);
            let message = Message::data(stamp.payload());
            match transaction.post(&senders[place], message).await {
                Ok(sending) => sendings.push(sending),
                Err(error) => {
                    posted = Err(error);
                    break;
                }
            }
        }
        for sending in sendings {
            posted = posted.and(sending.await.map(drop));
        }
        if posted.is_err() || random.happens(0.1) {
            // Whether the broker hears it or not: what is not committed has no effect.
            let _ = transaction.rollback().await;
            site.ledger().rolled_back(number);
            return posted;
        }
        let committed = transaction.commit().await;
        let mut ledger = site.ledger();
        match &committed {
            Ok(()) => ledger.committed(number),
            // The broker says that nothing has taken effect.
            Err(Error::Detached(Some(_))) => ledger.rolled_back(number),
            Err(_) => ledger.in_doubt(number),
        }
        committed
    }
}
