//! A device that speaks MQTT.

use std::time::Duration;

use sterna_client::{Client, Event, Events, Login, Options, Publish, Subscription, Url};
use sterna_lab::kernel::monotonic_ns;
use sterna_lab::measure::device::{Credentials, Measured, Role, Task, Word, read_stamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{
    CONNECT_TIMEOUT, FILTER, Meter, Missing, NO_STAMP, Orders, look_at_path, name, note_lateness,
    payload, qlog, qos, say, tls, topic,
};

/// Does what the task says.
pub(super) async fn work(task: &Task, url: Url, orders: Orders) -> Result<Measured, String> {
    match task.role {
        Role::Publisher => publish(task, url, orders).await,
        Role::Subscriber => subscribe(task, url, orders).await,
        Role::StopAndWait => stop_and_wait(task, url, orders).await,
        Role::ConnectPublish => connect_publish(task, url, orders).await,
        Role::ConnectReceive => Err("MQTT has no queues that a device could take from".into()),
    }
}

/// The client's options for a task.
fn options(task: &Task, url: Url) -> Result<Options, String> {
    let mut options = Options::new(url);
    tls(task, &mut options.tls);
    if let Credentials::Password { user, password, .. } = &task.credentials {
        options.login = Login::Password {
            user: Some(user.clone()),
            password: Some(password.clone().into_bytes()),
        };
    }
    options.early_data = task.early_data;
    options.qlog = qlog(task);
    options.connect_timeout = CONNECT_TIMEOUT;
    options.datagrams = task.datagrams;
    if let Some(streams) = &task.streams {
        options.streams = streams
            .parse()
            .map_err(|error| format!("streams: {error}"))?;
    }
    for (name, value) in &task.quic {
        options.quic.set(name, value)?;
    }
    Ok(options)
}

/// The next message, stamped now.
fn message(task: &Task, number: u32) -> Result<(Publish, u64), String> {
    let (payload, at_ns) = payload(task, number);
    let publish = Publish::new(topic(task, number), payload).map_err(|error| error.to_string())?;
    Ok((publish.qos(qos(task)), at_ns))
}

/// Counts connections, so that nothing piles up in a client whose events nobody needs.
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

async fn connect(task: &Task, url: Url) -> Result<(Client, Events, u64), String> {
    let before = monotonic_ns();
    let (client, events) = Client::connect(options(task, url)?)
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    Ok((client, events, monotonic_ns() - before))
}

/// A message every interval.
async fn publish(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (client, events, connect_ns) = connect(task, url).await?;
    let mut connections = count_connections(events);
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
    let mut deliveries = Vec::with_capacity(task.messages as usize);
    for number in 0..task.messages {
        let due = start + interval * number;
        tokio::time::sleep_until(due).await;
        late_ns.push(due.elapsed().as_nanos() as u64);
        let (message, at_ns) = message(task, number)?;
        if number == 0 {
            measured.first_ns = at_ns;
        }
        let delivery = client
            .send(message)
            .await
            .map_err(|error| format!("message {number}: {error}"))?;
        deliveries.push(delivery);
    }
    for (number, delivery) in deliveries.into_iter().enumerate() {
        delivery
            .await
            .map_err(|error| format!("message {number}: {error}"))?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    note_lateness(late_ns, &mut measured);
    look_at_path(client.path().await.ok(), &mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    let mut count = 0_u32;
    while connections.try_recv().is_ok() {
        count += 1;
    }
    measured.reconnections = count.saturating_sub(1);
    // The broker is on its way out too; how this connection ends is not measured.
    let _ = client.disconnect().await;
    Ok(measured)
}

/// Notes arrivals until the input ends.
async fn subscribe(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (client, mut events, connect_ns) = connect(task, url).await?;
    subscribe_to(&client, task).await?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let mut missing = Missing::of(task);
    loop {
        let message = tokio::select! {
            biased;
            message = events.message() => message.ok_or("the connection has ended")?,
            () = orders.end() => break,
        };
        let at_ns = monotonic_ns();
        let Some((number, sent_ns)) = read_stamp(message.payload_bytes()) else {
            return Err(NO_STAMP.into());
        };
        measured.arrivals.push((number, sent_ns, at_ns));
        if missing.note(number) {
            say(&Word::Finished)?;
        }
    }
    meter.read(&mut measured);
    let _ = client.disconnect().await;
    Ok(measured)
}

async fn subscribe_to(client: &Client, task: &Task) -> Result<(), String> {
    let subscription = Subscription::new(FILTER, qos(task)).map_err(|error| error.to_string())?;
    let codes = client
        .subscribe([subscription])
        .await
        .map_err(|error| format!("cannot subscribe: {error}"))?;
    match codes.iter().find(|code| code.is_error()) {
        Some(code) => Err(format!("cannot subscribe: {code:?}")),
        None => Ok(()),
    }
}

/// The next message when the one before is back.
async fn stop_and_wait(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (client, mut events, connect_ns) = connect(task, url).await?;
    subscribe_to(&client, task).await?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    measured.first_ns = monotonic_ns();
    for number in 0..task.messages {
        let (message, at_ns) = message(task, number)?;
        let delivery = client
            .send(message)
            .await
            .map_err(|error| format!("message {number}: {error}"))?;
        loop {
            let reply = events.message().await.ok_or("the connection has ended")?;
            if read_stamp(reply.payload_bytes()).is_some_and(|(reply, _)| reply == number) {
                break;
            }
        }
        measured.round_trip_ns.push(monotonic_ns() - at_ns);
        drop(delivery);
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    look_at_path(client.path().await.ok(), &mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    let _ = client.disconnect().await;
    Ok(measured)
}

/// Connects, publishes and disconnects, again and again.
async fn connect_publish(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let options = options(task, url)?;
    let mut measured = Measured::default();
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let interval = Duration::from_nanos(task.interval_ns);
    for connection in 0..task.connections {
        let started_ns = monotonic_ns();
        if connection == 0 {
            measured.first_ns = started_ns;
        }
        measured.started_ns.push(started_ns);
        let failed = |error: sterna_client::Error| format!("connection {connection}: {error}");
        let (client, events) = Client::start(options.clone()).map_err(|error| error.to_string())?;
        let _connections = count_connections(events);
        let connected = async {
            let connected = client.connected().await.map_err(failed)?;
            Ok::<_, String>((connected, monotonic_ns()))
        };
        let messages = async {
            if task.wait_connack {
                client.connected().await.map_err(failed)?;
            }
            let start = Instant::now();
            let mut first_ns = None;
            let mut under_way = Vec::new();
            for index in 0..task.messages {
                if task.interval_ns > 0 {
                    tokio::time::sleep_until(start + interval * index).await;
                }
                let (message, _) = message(task, connection * task.messages + index)?;
                let delivery = client.send(message).await.map_err(failed)?;
                // With an interval, messages don't wait for each other.
                if task.interval_ns > 0 {
                    under_way.push(delivery);
                } else {
                    // QoS 0: the operating system has it; else: the broker has.
                    delivery.await.map_err(failed)?;
                }
                first_ns.get_or_insert_with(monotonic_ns);
            }
            for delivery in under_way {
                delivery.await.map_err(failed)?;
            }
            Ok::<_, String>(first_ns.unwrap_or(started_ns))
        };
        let ((connected, connected_ns), sent_ns) = tokio::try_join!(connected, messages)?;
        measured.connect_ns.push(connected_ns - started_ns);
        measured.sent_after_ns.push(sent_ns - started_ns);
        let early_data = match client.path().await {
            Ok(path) => path.early_data,
            Err(_) => connected.early_data,
        };
        measured.early_data.push(name(early_data).into());
        look_at_path(client.path().await.ok(), &mut measured);
        client.disconnect().await.map_err(failed)?;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    Ok(measured)
}
