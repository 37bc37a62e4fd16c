//! Roles of devices in any protocol: each role once, over the operations of a protocol.

use std::future::Future;
use std::time::Duration;

use sterna_client::{EarlyData, PathStatistics, Url};
use sterna_lab::kernel::monotonic_ns;
use sterna_lab::measure::device::{Measured, Role, Task, Word};
use tokio::time::Instant;

use super::{Meter, Missing, Orders, fleet, look_at_path, name, note_lateness, say};

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Its number.
    pub(super) number: u32,
    /// When it was handed over.
    pub(super) sent_ns: u64,
    /// When it arrived.
    pub(super) at_ns: u64,
}

/// A device's connection. Errors are texts for people.
pub(super) trait Device: Sized + 'static {
    /// The client's options.
    type Options: Clone + 'static;
    /// A message that is under way.
    type Sending: 'static;

    /// Takes the client's options from a task.
    fn options(task: &Task, url: Url) -> Result<Self::Options, String>;

    /// Begins to connect.
    fn start(options: Self::Options) -> Result<Self, String>;

    /// Waits until the connection stands, beside other work of the device.
    fn connected(&self) -> impl Future<Output = Result<(), String>> + use<Self>;

    /// From now on the device receives nothing: input is dropped.
    fn only_send(&mut self) {}

    /// Prepares sending. In protocols with links, opens those of the first N topics.
    async fn prepare(&mut self, _task: &Task, _topics: u32) -> Result<(), String> {
        Ok(())
    }

    /// Hands the next message over; says when.
    async fn send(&mut self, task: &Task, number: u32) -> Result<(Self::Sending, u64), String>;

    /// Waits until the broker has a message, as far as its QoS tells.
    async fn settle(number: u32, sending: Self::Sending) -> Result<(), String>;

    /// Subscribes to the lab's topics.
    async fn subscribe(&mut self, task: &Task) -> Result<(), String>;

    /// Begins to take as many messages from the task's queue as one connection is to take.
    async fn take(&mut self, task: &Task) -> Result<(), String>;

    /// Waits for the next message.
    async fn receive(&mut self) -> Result<Arrival, String>;

    /// QUIC's knowledge of the path, on QUIC.
    async fn path(&mut self) -> Option<PathStatistics>;

    /// Connections beyond the first one.
    fn reconnections(&mut self) -> u32;

    /// When the last connection was made, on the monotonic clock; 0 of a protocol that does not tell.
    fn last_connected_ns(&self) -> u64 {
        0
    }

    /// Ends the connection in order.
    async fn end(self) -> Result<(), String>;
}

/// Executes the task.
#[allow(clippy::future_not_send, reason = "a device has one thread")]
pub(super) async fn work<D: Device>(
    task: &Task,
    url: Url,
    orders: Orders,
) -> Result<Measured, String> {
    let options = D::options(task, url)?;
    match task.role {
        Role::Publisher => publish::<D>(task, options, orders).await,
        Role::Subscriber => subscribe::<D>(task, options, orders).await,
        Role::StopAndWait => stop_and_wait::<D>(task, options, orders).await,
        Role::ConnectPublish | Role::ConnectReceive => reconnect::<D>(task, options, orders).await,
        Role::Fleet => fleet::work::<D>(task, options, orders).await,
    }
}

async fn connect<D: Device>(options: D::Options) -> Result<(D, Measured), String> {
    let before = monotonic_ns();
    let device = D::start(options)?;
    device
        .connected()
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    let measured = Measured {
        connect_ns: vec![monotonic_ns() - before],
        ..Measured::default()
    };
    Ok((device, measured))
}

/// A message every interval.
async fn publish<D: Device>(
    task: &Task,
    options: D::Options,
    mut orders: Orders,
) -> Result<Measured, String> {
    let (mut device, mut measured) = connect::<D>(options).await?;
    device.only_send();
    device.prepare(task, task.topics.min(task.messages)).await?;
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
        let (sending, at_ns) = device.send(task, number).await?;
        if number == 0 {
            measured.first_ns = at_ns;
        }
        under_way.push((number, sending));
    }
    for (number, sending) in under_way {
        D::settle(number, sending).await?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    // Messages without an interval are all due at once, so none of them is late.
    if task.interval_ns > 0 {
        note_lateness(late_ns, &mut measured);
    }
    finish(device, orders, measured).await
}

/// Says that all is done, and ends when that was wanted.
async fn finish<D: Device>(
    mut device: D,
    mut orders: Orders,
    mut measured: Measured,
) -> Result<Measured, String> {
    look_at_path(device.path().await, &mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    measured.reconnections = device.reconnections();
    // The broker ends, too; the end of this connection is not measured.
    let _ = device.end().await;
    Ok(measured)
}

/// Notes arrivals until the input ends.
async fn subscribe<D: Device>(
    task: &Task,
    options: D::Options,
    mut orders: Orders,
) -> Result<Measured, String> {
    let (mut device, mut measured) = connect::<D>(options).await?;
    device.subscribe(task).await?;
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let mut missing = Missing::of(task);
    loop {
        let arrival = tokio::select! {
            biased;
            arrival = device.receive() => arrival?,
            () = orders.end() => break,
        };
        note(arrival, &mut measured);
        if missing.note(arrival.number) {
            say(&Word::Finished)?;
        }
    }
    meter.read(&mut measured);
    let _ = device.end().await;
    Ok(measured)
}

fn note(arrival: Arrival, measured: &mut Measured) {
    let Arrival {
        number,
        sent_ns,
        at_ns,
    } = arrival;
    measured.arrivals.push((number, sent_ns, at_ns));
}

/// The next message when the one before is back.
async fn stop_and_wait<D: Device>(
    task: &Task,
    options: D::Options,
    mut orders: Orders,
) -> Result<Measured, String> {
    let (mut device, mut measured) = connect::<D>(options).await?;
    device.subscribe(task).await?;
    device.prepare(task, 0).await?;
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    measured.first_ns = monotonic_ns();
    for number in 0..task.messages {
        let (sending, at_ns) = device.send(task, number).await?;
        while device.receive().await?.number != number {}
        measured.round_trip_ns.push(monotonic_ns() - at_ns);
        // It is back, so the broker has had it.
        drop(sending);
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    finish(device, orders, measured).await
}

/// Connects, sends or takes messages and ends the connection, again and again.
async fn reconnect<D: Device>(
    task: &Task,
    options: D::Options,
    mut orders: Orders,
) -> Result<Measured, String> {
    let mut measured = Measured::default();
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    for connection in 0..task.connections {
        let started_ns = monotonic_ns();
        if connection == 0 {
            measured.first_ns = started_ns;
        }
        measured.started_ns.push(started_ns);
        one_of_many::<D>(task, options.clone(), connection, started_ns, &mut measured)
            .await
            .map_err(|error| format!("connection {connection}: {error}"))?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    Ok(measured)
}

async fn one_of_many<D: Device>(
    task: &Task,
    options: D::Options,
    connection: u32,
    started_ns: u64,
    measured: &mut Measured,
) -> Result<(), String> {
    let mut device = D::start(options)?;
    let [connected, may_begin] = [device.connected(), device.connected()];
    let connected = async {
        connected.await?;
        Ok::<_, String>(monotonic_ns())
    };
    let work = async {
        if task.wait_connack {
            may_begin.await?;
        }
        if task.role == Role::ConnectReceive {
            device.take(task).await?;
            for _ in 0..task.messages {
                note(device.receive().await?, measured);
            }
        } else {
            let sent_ns = send_all(&mut device, task, connection * task.messages).await?;
            let sent_after_ns = sent_ns.map_or(0, |sent_ns| sent_ns - started_ns);
            measured.sent_after_ns.push(sent_after_ns);
        }
        Ok(())
    };
    let (connected_ns, ()) = tokio::try_join!(connected, work)?;
    measured.connect_ns.push(connected_ns - started_ns);
    if task.linger_ns > 0 {
        tokio::time::sleep(Duration::from_nanos(task.linger_ns)).await;
    }
    let path = device.path().await;
    let early_data = path
        .as_ref()
        .map_or(EarlyData::NotTried, |path| path.early_data);
    measured.early_data.push(name(early_data).into());
    look_at_path(path, measured);
    device.end().await
}

/// Sends a connection's messages. Each waits until the broker has the one before (QoS 0: the operating
/// system), but where there is an interval between them. Says when the first one had left, if there
/// was any.
async fn send_all<D: Device>(
    device: &mut D,
    task: &Task,
    first: u32,
) -> Result<Option<u64>, String> {
    device.only_send();
    device.prepare(task, 0).await?;
    let start = Instant::now();
    let interval = Duration::from_nanos(task.interval_ns);
    let mut first_ns = None;
    let mut under_way = Vec::new();
    for index in 0..task.messages {
        let number = first + index;
        if task.interval_ns > 0 {
            tokio::time::sleep_until(start + interval * index).await;
        } else if index > 0 && task.pause_ns > 0 {
            tokio::time::sleep(Duration::from_nanos(task.pause_ns)).await;
        }
        let (sending, _) = device.send(task, number).await?;
        if task.interval_ns > 0 {
            under_way.push((number, sending));
        } else {
            D::settle(number, sending).await?;
        }
        first_ns.get_or_insert_with(monotonic_ns);
    }
    for (number, sending) in under_way {
        D::settle(number, sending).await?;
    }
    Ok(first_ns)
}
