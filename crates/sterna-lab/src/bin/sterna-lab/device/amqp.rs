//! A device that speaks AMQP 1.0.

use std::collections::BTreeMap;
use std::future::Future;

use sterna_client::amqp::{
    Connection, Credit, Event, Message, Options, Outcome, Receiver, ReceiverOptions,
    ReceiverSettles, Sasl, Sender, SenderOptions, Sending, Session,
};
use sterna_client::{PathStatistics, Url};
use sterna_lab::measure::device::{Credentials, Task};

use super::roles::{Arrival, Device};
use super::{
    CONNECT_TIMEOUT, Connections, FILTER, NO_STAMP, arrival, payload, qlog, socket_setup, text,
    tls, topic,
};

/// Messages of a sender that may be under way: as many as it has to send.
const MAX_UNDER_WAY: usize = sterna_client::amqp::MAX_IN_FLIGHT;

pub(super) struct Amqp {
    connection: Connection,
    connections: Connections,
    senders: Option<Senders>,
    source: Option<Receiver>,
    /// Whether a message is to be settled before the next one is taken.
    is_queue: bool,
}

/// The links that messages leave by, one for each topic. With `per-topic` each has a session, and so a
/// stream, of its own; otherwise they share one.
struct Senders {
    /// The session that links share.
    session: Session,
    is_per_topic: bool,
    by_address: BTreeMap<String, Sender>,
}

impl Device for Amqp {
    type Options = Options;
    type Sending = Sending;

    fn options(task: &Task, url: Url) -> Result<Options, String> {
        if task.datagrams {
            return Err("AMQP has no datagrams".into());
        }
        let mut options = Options::new(url);
        tls(task, &mut options.tls);
        options.sasl = match &task.credentials {
            Credentials::None => options.sasl,
            Credentials::Password { user, password, .. } => Sasl::Plain {
                user: user.clone(),
                password: password.clone(),
            },
            Credentials::Certificate { .. } => Sasl::External,
        };
        options.early_data = task.early_data;
        options.socket_setup = socket_setup(task);
        options.qlog = qlog(task);
        options.pipelined = task.pipelined;
        options.connect_timeout = CONNECT_TIMEOUT;
        for (name, value) in &task.quic {
            options.quic.set(name, value)?;
        }
        Ok(options)
    }

    fn start(options: Options) -> Result<Self, String> {
        let (connection, mut events) = Connection::start(options).map_err(text)?;
        let connections = Connections::default();
        let noted = connections.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Event::Connected(connected) = event {
                    noted.note(connected.connections);
                }
            }
        });
        Ok(Self {
            connection,
            connections,
            senders: None,
            source: None,
            is_queue: false,
        })
    }

    fn connected(&self) -> impl Future<Output = Result<(), String>> + use<> {
        let connection = self.connection.clone();
        async move { connection.connected().await.map(drop).map_err(text) }
    }

    async fn prepare(&mut self, task: &Task, topics: u32) -> Result<(), String> {
        let is_per_topic = match task.streams.as_deref() {
            None | Some("single") => false,
            Some("per-topic") => true,
            Some(other) => {
                return Err(format!(
                    "streams: AMQP has single and per-topic, not {other}"
                ));
            }
        };
        self.senders = Some(Senders {
            session: self.connection.session().await.map_err(text)?,
            is_per_topic,
            by_address: BTreeMap::new(),
        });
        for number in 0..topics {
            let sender = self.sender(task, number).await?;
            sender.attached().await.map_err(text)?;
        }
        Ok(())
    }

    /// Settled, as QoS 0: no outcome is reported.
    async fn send(&mut self, task: &Task, number: u32) -> Result<(Sending, u64), String> {
        let sender = self.sender(task, number).await?;
        let (payload, at_ns) = payload(task, number);
        let message = Message::data(payload);
        let sending = if task.qos == 0 {
            sender.send_settled(message).await
        } else {
            sender.send(message).await
        };
        match sending {
            Ok(sending) => Ok((sending, at_ns)),
            Err(error) => Err(format!("message {number}: {error}")),
        }
    }

    async fn settle(number: u32, sending: Sending) -> Result<(), String> {
        match sending.await {
            Ok(Outcome::Accepted) => Ok(()),
            Ok(outcome) => Err(format!("message {number}: {outcome:?}")),
            Err(error) => Err(format!("message {number}: {error}")),
        }
    }

    async fn subscribe(&mut self, _: &Task) -> Result<(), String> {
        let source = self.receiver(ReceiverOptions::new(FILTER)).await?;
        source.attached().await.map_err(text)?;
        self.source = Some(source);
        Ok(())
    }

    async fn take(&mut self, task: &Task) -> Result<(), String> {
        let mut options = ReceiverOptions::new(address(task, 0));
        // Not a message more than the connection is to take: others would have to come back.
        options.credit = Credit::Manual;
        let source = self.receiver(options).await?;
        source.add_credit(task.messages).map_err(text)?;
        self.source = Some(source);
        self.is_queue = true;
        Ok(())
    }

    async fn receive(&mut self) -> Result<Arrival, String> {
        let source = self.source.as_mut().ok_or("no link to receive by")?;
        let delivery = source.next().await.map_err(text)?;
        let message = delivery.message().map_err(text)?;
        let arrival = arrival(message.bytes().ok_or(NO_STAMP)?)?;
        if self.is_queue {
            delivery.accept().await.map_err(text)?;
        } else if !delivery.is_settled() {
            // Whether the decision stands is of no interest: the message has been measured.
            drop(delivery.accept());
        }
        Ok(arrival)
    }

    async fn path(&mut self) -> Option<PathStatistics> {
        self.connection.path().await.ok()
    }

    fn reconnections(&mut self) -> u32 {
        self.connections.beyond_the_first()
    }

    fn last_connected_ns(&self) -> u64 {
        self.connections.last_ns()
    }

    async fn end(self) -> Result<(), String> {
        self.connection.close().await.map_err(text)
    }
}

impl Amqp {
    async fn receiver(&self, options: ReceiverOptions) -> Result<Receiver, String> {
        let session = self.connection.session().await.map_err(text)?;
        session.receiver(options).await.map_err(text)
    }

    /// The link for a message; it is made if there is none yet.
    async fn sender(&mut self, task: &Task, number: u32) -> Result<&Sender, String> {
        let address = address(task, number);
        let senders = self.senders.as_mut().ok_or("no session to send in")?;
        if !senders.by_address.contains_key(&address) {
            let session = if senders.is_per_topic && !senders.by_address.is_empty() {
                self.connection.session().await.map_err(text)?
            } else {
                senders.session.clone()
            };
            let mut options = SenderOptions::new(&address);
            options.in_flight = MAX_UNDER_WAY;
            if task.qos == 2 {
                options.receiver_settles = ReceiverSettles::Second;
            }
            let sender = session.sender(options).await.map_err(text)?;
            senders.by_address.insert(address.clone(), sender);
        }
        senders
            .by_address
            .get(&address)
            .ok_or_else(|| format!("no link to {address}"))
    }
}

/// Where messages go to and come from: the lab's queue, or its topics.
fn address(task: &Task, number: u32) -> String {
    match &task.queue {
        Some(name) => format!("queue/{name}"),
        None => topic(task, number),
    }
}
