//! A device that speaks AMQP 1.0.

use std::collections::BTreeMap;
use std::time::Duration;

use sterna_client::Url;
use sterna_client::amqp::{
    Connection, Credit, Delivery, Event, Events, Message, Options, Outcome, Receiver,
    ReceiverOptions, ReceiverSettles, Sasl, Sender, SenderOptions, Sending, Session,
};
use sterna_lab::kernel::monotonic_ns;
use sterna_lab::measure::device::{Credentials, Measured, Role, Task, Word, read_stamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{
    CONNECT_TIMEOUT, FILTER, Meter, Missing, NO_STAMP, Orders, look_at_path, name, note_lateness,
    payload, qlog, say, tls, topic,
};

/// Messages of a sender that may be under way: as many as it has to send.
const MAX_UNDER_WAY: usize = sterna_client::amqp::MAX_IN_FLIGHT;

/// Does what the task says.
pub(super) async fn work(task: &Task, url: Url, orders: Orders) -> Result<Measured, String> {
    match task.role {
        Role::Publisher => publish(task, url, orders).await,
        Role::Subscriber => subscribe(task, url, orders).await,
        Role::StopAndWait => stop_and_wait(task, url, orders).await,
        Role::ConnectPublish => connect_publish(task, url, orders).await,
        Role::ConnectReceive => connect_receive(task, url, orders).await,
    }
}

/// The client's options for a task.
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
    options.qlog = qlog(task);
    options.pipelined = task.pipelined;
    options.connect_timeout = CONNECT_TIMEOUT;
    for (name, value) in &task.quic {
        options.quic.set(name, value)?;
    }
    Ok(options)
}

/// Where messages go to and come from: the lab's queue, or its topics.
fn address(task: &Task, number: u32) -> String {
    match &task.queue {
        Some(name) => format!("queue/{name}"),
        None => topic(task, number),
    }
}

/// The links that messages leave by, one for each topic. With `per-topic` each has a session, and so a
/// stream, of its own; otherwise they share one.
struct Senders {
    connection: Connection,
    /// The session that links share.
    session: Session,
    is_per_topic: bool,
    by_address: BTreeMap<String, Sender>,
    qos: u8,
}

impl Senders {
    async fn new(task: &Task, connection: Connection) -> Result<Self, String> {
        let is_per_topic = match task.streams.as_deref() {
            None | Some("single") => false,
            Some("per-topic") => true,
            Some(other) => {
                return Err(format!(
                    "streams: AMQP has single and per-topic, not {other}"
                ));
            }
        };
        let session = connection.session().await.map_err(failed)?;
        Ok(Self {
            connection,
            session,
            is_per_topic,
            by_address: BTreeMap::new(),
            qos: task.qos,
        })
    }

    async fn sender(&mut self, address: String) -> Result<&Sender, String> {
        if !self.by_address.contains_key(&address) {
            let session = if self.is_per_topic && !self.by_address.is_empty() {
                self.connection.session().await.map_err(failed)?
            } else {
                self.session.clone()
            };
            let mut options = SenderOptions::new(&address);
            options.in_flight = MAX_UNDER_WAY;
            if self.qos == 2 {
                options.receiver_settles = ReceiverSettles::Second;
            }
            let sender = session.sender(options).await.map_err(failed)?;
            self.by_address.insert(address.clone(), sender);
        }
        self.by_address
            .get(&address)
            .ok_or_else(|| format!("no link to {address}"))
    }

    /// Hands the next message over. Settled, as QoS 0, nobody tells what becomes of it.
    async fn send(&mut self, task: &Task, number: u32) -> Result<(Sending, u64), String> {
        let settled = self.qos == 0;
        let sender = self.sender(address(task, number)).await?;
        let (payload, at_ns) = payload(task, number);
        let message = Message::data(payload);
        let sending = if settled {
            sender.send_settled(message).await
        } else {
            sender.send(message).await
        };
        sending
            .map(|sending| (sending, at_ns))
            .map_err(|error| format!("message {number}: {error}"))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: sterna_client::amqp::Error) -> String {
    error.to_string()
}

/// Waits until a message is settled, and taken.
async fn settle(number: u32, sending: Sending) -> Result<(), String> {
    match sending.await {
        Ok(Outcome::Accepted) => Ok(()),
        Ok(outcome) => Err(format!("message {number}: {outcome:?}")),
        Err(error) => Err(format!("message {number}: {error}")),
    }
}

/// Counts connections, so that nothing piles up in events that nobody needs.
fn count_connections(mut events: Events) -> mpsc::UnboundedReceiver<()> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if matches!(event, Event::Connected(_)) && sender.send(()).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn connect(task: &Task, url: Url) -> Result<(Connection, Events, u64), String> {
    let before = monotonic_ns();
    let (connection, events) = Connection::start(options(task, url)?).map_err(failed)?;
    connection
        .connected()
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    Ok((connection, events, monotonic_ns() - before))
}

/// A message every interval.
async fn publish(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (connection, events, connect_ns) = connect(task, url).await?;
    let mut connections = count_connections(events);
    let mut senders = Senders::new(task, connection.clone()).await?;
    for number in 0..task.topics.min(task.messages) {
        let sender = senders.sender(address(task, number)).await?;
        sender.attached().await.map_err(failed)?;
    }
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let start = Instant::now();
    let interval = Duration::from_nanos(task.interval_ns);
    let mut late_ns = Vec::with_capacity(task.messages as usize);
    let mut under_way = Vec::with_capacity(task.messages as usize);
    for number in 0..task.messages {
        let due = start + interval * number;
        tokio::time::sleep_until(due).await;
        late_ns.push(due.elapsed().as_nanos() as u64);
        let (sending, at_ns) = senders.send(task, number).await?;
        if number == 0 {
            measured.first_ns = at_ns;
        }
        under_way.push((number, sending));
    }
    for (number, sending) in under_way {
        settle(number, sending).await?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    if task.interval_ns > 0 {
        note_lateness(late_ns, &mut measured);
    }
    look_at_path(connection.path().await.ok(), &mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    let mut count = 0_u32;
    while connections.try_recv().is_ok() {
        count += 1;
    }
    measured.reconnections = count.saturating_sub(1);
    // The broker is on its way out too; how this connection ends is not measured.
    let _ = connection.close().await;
    Ok(measured)
}

async fn receiver(connection: &Connection, options: ReceiverOptions) -> Result<Receiver, String> {
    let session = connection.session().await.map_err(failed)?;
    session.receiver(options).await.map_err(failed)
}

/// Number and time of a message that has arrived.
fn stamp_of(delivery: &Delivery) -> Result<(u32, u64), String> {
    let message = delivery.message().map_err(|error| error.to_string())?;
    message
        .bytes()
        .and_then(|bytes| read_stamp(bytes))
        .ok_or_else(|| NO_STAMP.into())
}

/// Takes a message, where it waits for that.
fn accept(delivery: Delivery) {
    if !delivery.is_settled() {
        // Whether the decision stands is of no interest: the message has been measured.
        drop(delivery.accept());
    }
}

/// Notes arrivals until the input ends.
async fn subscribe(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (connection, _events, connect_ns) = connect(task, url).await?;
    let mut receiver = receiver(&connection, ReceiverOptions::new(FILTER)).await?;
    receiver.attached().await.map_err(failed)?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let mut missing = Missing::of(task);
    loop {
        let delivery = tokio::select! {
            biased;
            delivery = receiver.next() => delivery.map_err(failed)?,
            () = orders.end() => break,
        };
        let at_ns = monotonic_ns();
        let (number, sent_ns) = stamp_of(&delivery)?;
        accept(delivery);
        measured.arrivals.push((number, sent_ns, at_ns));
        if missing.note(number) {
            say(&Word::Finished)?;
        }
    }
    meter.read(&mut measured);
    let _ = connection.close().await;
    Ok(measured)
}

/// The next message when the one before is back.
async fn stop_and_wait(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (connection, _events, connect_ns) = connect(task, url).await?;
    let mut receiver = receiver(&connection, ReceiverOptions::new(FILTER)).await?;
    receiver.attached().await.map_err(failed)?;
    let mut senders = Senders::new(task, connection.clone()).await?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    measured.first_ns = monotonic_ns();
    for number in 0..task.messages {
        let (sending, at_ns) = senders.send(task, number).await?;
        loop {
            let reply = receiver.next().await.map_err(failed)?;
            let (answered, _) = stamp_of(&reply)?;
            accept(reply);
            if answered == number {
                break;
            }
        }
        measured.round_trip_ns.push(monotonic_ns() - at_ns);
        drop(sending);
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    look_at_path(connection.path().await.ok(), &mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    let _ = connection.close().await;
    Ok(measured)
}

/// Notes what one of several connections was like, and ends it.
async fn end_connection(connection: Connection, measured: &mut Measured) -> Result<(), String> {
    let path = connection.path().await.ok();
    let early_data = path.as_ref().map(|path| path.early_data);
    measured
        .early_data
        .push(early_data.map_or("not tried", name).into());
    look_at_path(path, measured);
    connection.close().await.map_err(failed)
}

/// Connects, sends and closes, again and again. Each message waits for the outcome of the one before;
/// a settled one (QoS 0) for the operating system only.
async fn connect_publish(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let options = options(task, url)?;
    let mut measured = Measured::default();
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let interval = Duration::from_nanos(task.interval_ns);
    for number in 0..task.connections {
        let started_ns = monotonic_ns();
        if number == 0 {
            measured.first_ns = started_ns;
        }
        measured.started_ns.push(started_ns);
        let failed = |error: sterna_client::amqp::Error| format!("connection {number}: {error}");
        let (connection, events) = Connection::start(options.clone()).map_err(failed)?;
        let _connections = count_connections(events);
        let connected = async {
            connection.connected().await.map_err(failed)?;
            Ok::<_, String>(monotonic_ns())
        };
        let messages = async {
            if task.wait_connack {
                connection.connected().await.map_err(failed)?;
            }
            let mut senders = Senders::new(task, connection.clone()).await?;
            let start = Instant::now();
            let mut first_ns = None;
            let mut under_way = Vec::new();
            for index in 0..task.messages {
                if task.interval_ns > 0 {
                    tokio::time::sleep_until(start + interval * index).await;
                }
                let message = number * task.messages + index;
                let (sending, _) = senders.send(task, message).await?;
                // With an interval, messages don't wait for each other.
                if task.interval_ns > 0 {
                    under_way.push((message, sending));
                } else {
                    settle(message, sending).await?;
                }
                first_ns.get_or_insert_with(monotonic_ns);
            }
            for (message, sending) in under_way {
                settle(message, sending).await?;
            }
            Ok::<_, String>((first_ns.unwrap_or(started_ns), senders))
        };
        let (connected_ns, (sent_ns, senders)) = tokio::try_join!(connected, messages)?;
        measured.connect_ns.push(connected_ns - started_ns);
        measured.sent_after_ns.push(sent_ns - started_ns);
        end_connection(connection, &mut measured).await?;
        drop(senders);
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    Ok(measured)
}

/// Connects, takes its messages from the queue and closes, again and again.
async fn connect_receive(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let options = options(task, url)?;
    let mut measured = Measured::default();
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    for number in 0..task.connections {
        let started_ns = monotonic_ns();
        if number == 0 {
            measured.first_ns = started_ns;
        }
        measured.started_ns.push(started_ns);
        let failed = |error: sterna_client::amqp::Error| format!("connection {number}: {error}");
        let (connection, events) = Connection::start(options.clone()).map_err(failed)?;
        let _connections = count_connections(events);
        let connected = async {
            connection.connected().await.map_err(failed)?;
            Ok::<_, String>(monotonic_ns())
        };
        let messages = async {
            if task.wait_connack {
                connection.connected().await.map_err(failed)?;
            }
            let mut source = ReceiverOptions::new(address(task, 0));
            // Not a message more than the connection is to take: others would have to come back.
            source.credit = Credit::Manual;
            let mut receiver = receiver(&connection, source).await?;
            receiver.add_credit(task.messages).map_err(failed)?;
            let mut arrivals = Vec::new();
            for _ in 0..task.messages {
                let delivery = receiver.next().await.map_err(failed)?;
                let (number, sent_ns) = stamp_of(&delivery)?;
                arrivals.push((number, sent_ns, monotonic_ns()));
                delivery.accept().await.map_err(failed)?;
            }
            Ok::<_, String>((arrivals, receiver))
        };
        let (connected_ns, (arrivals, receiver)) = tokio::try_join!(connected, messages)?;
        measured.connect_ns.push(connected_ns - started_ns);
        measured.arrivals.extend(arrivals);
        end_connection(connection, &mut measured).await?;
        drop(receiver);
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    Ok(measured)
}
