//! A device that speaks HTTP: a message is a request.

use std::time::Duration;

use sterna_client::http::{self, Client, Error, Options, Subscribe, Subscription};
use sterna_client::{EarlyData, Publish, Url};
use sterna_lab::kernel::monotonic_ns;
use sterna_lab::measure::device::{Credentials, Measured, Role, Task, Word, read_stamp};
use tokio::task::{JoinHandle, JoinSet};
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
        Role::ConnectReceive => Err("HTTP has no queues that a device could take from".into()),
    }
}

/// The client's options for a task.
fn options(task: &Task, url: Url) -> Result<Options, String> {
    if task.datagrams || task.streams.is_some() {
        return Err("HTTP has a stream for each message, and no other way".into());
    }
    let mut options = Options::new(url);
    tls(task, &mut options.tls);
    if let Credentials::Password {
        user,
        password,
        once,
    } = &task.credentials
    {
        options.credentials = http::Credentials::Basic {
            user: user.clone(),
            password: password.clone(),
        };
        options.credentials_once = *once;
    }
    options.early_data = task.early_data;
    options.qlog = qlog(task);
    options.connect_timeout = CONNECT_TIMEOUT;
    // A response may be lost and repeated; the task has its own limit.
    options.response_timeout = CONNECT_TIMEOUT;
    for (name, value) in &task.quic {
        options.quic.set(name, value)?;
    }
    Ok(options)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: Error) -> String {
    error.to_string()
}

/// The next message, stamped now.
fn message(task: &Task, number: u32) -> Result<(Publish, u64), String> {
    let (payload, at_ns) = payload(task, number);
    let publish = Publish::new(topic(task, number), payload).map_err(|error| error.to_string())?;
    Ok((publish.qos(qos(task)), at_ns))
}

/// Publishes beside whatever else is under way, and says what became of it.
fn send(client: &Client, number: u32, message: Publish) -> JoinHandle<Result<(), String>> {
    let client = client.clone();
    tokio::spawn(async move {
        client
            .publish(message)
            .await
            .map_err(|error| format!("message {number}: {error}"))
    })
}

async fn settle(sending: JoinHandle<Result<(), String>>) -> Result<(), String> {
    sending.await.map_err(|error| error.to_string())?
}

async fn connect(task: &Task, url: Url) -> Result<(Client, u64), String> {
    let before = monotonic_ns();
    let client = Client::new(options(task, url)?).map_err(failed)?;
    client
        .connected()
        .await
        .map_err(|error| format!("cannot connect: {error}"))?;
    Ok((client, monotonic_ns() - before))
}

async fn subscription(client: &Client, task: &Task) -> Result<Subscription, String> {
    let subscribe = Subscribe::new(FILTER, qos(task)).map_err(failed)?;
    client
        .subscribe(subscribe)
        .await
        .map_err(|error| format!("cannot subscribe: {error}"))
}

/// Connections beyond the first one.
fn reconnections(client: &Client) -> u32 {
    let connections = client
        .connection()
        .map_or(1, |connected| connected.connections);
    u32::try_from(connections.saturating_sub(1)).unwrap_or(u32::MAX)
}

/// A message every interval.
async fn publish(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (client, connect_ns) = connect(task, url).await?;
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
    let mut under_way = JoinSet::new();
    for number in 0..task.messages {
        let due = start + interval * number;
        tokio::time::sleep_until(due).await;
        late_ns.push(due.elapsed().as_nanos() as u64);
        let (message, at_ns) = message(task, number)?;
        if number == 0 {
            measured.first_ns = at_ns;
        }
        under_way.spawn(settle(send(&client, number, message)));
    }
    while let Some(settled) = under_way.join_next().await {
        settled.map_err(|error| error.to_string())??;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    if task.interval_ns > 0 {
        note_lateness(late_ns, &mut measured);
    }
    look_at_path(client.path(), &mut measured);
    measured.reconnections = reconnections(&client);
    say(&Word::Finished)?;
    orders.end().await;
    client.close().await;
    Ok(measured)
}

/// Notes arrivals until the input ends.
async fn subscribe(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (client, connect_ns) = connect(task, url).await?;
    let mut subscription = subscription(&client, task).await?;
    let mut measured = Measured {
        connect_ns: vec![connect_ns],
        ..Measured::default()
    };
    say(&Word::Ready)?;
    orders.go().await?;
    let meter = Meter::start();
    let mut missing = Missing::of(task);
    loop {
        let received = tokio::select! {
            biased;
            received = subscription.next() => received.map_err(failed)?,
            () = orders.end() => break,
        };
        let at_ns = monotonic_ns();
        let Some((number, sent_ns)) = read_stamp(received.message.payload_bytes()) else {
            return Err(NO_STAMP.into());
        };
        measured.arrivals.push((number, sent_ns, at_ns));
        if missing.note(number) {
            say(&Word::Finished)?;
        }
    }
    meter.read(&mut measured);
    client.close().await;
    Ok(measured)
}

/// The next message when the one before is back.
async fn stop_and_wait(task: &Task, url: Url, mut orders: Orders) -> Result<Measured, String> {
    let (client, connect_ns) = connect(task, url).await?;
    let mut subscription = subscription(&client, task).await?;
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
        let sending = send(&client, number, message);
        loop {
            let reply = subscription.next().await.map_err(failed)?;
            let stamp = read_stamp(reply.message.payload_bytes());
            if stamp.is_some_and(|(answered, _)| answered == number) {
                break;
            }
        }
        measured.round_trip_ns.push(monotonic_ns() - at_ns);
        if task.qos > 0 {
            settle(sending).await?;
        }
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    look_at_path(client.path(), &mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    client.close().await;
    Ok(measured)
}

/// Connects, publishes and closes, again and again. With an interval messages don't wait for each
/// other.
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
        let failed = |error: Error| format!("connection {connection}: {error}");
        let client = Client::new(options.clone()).map_err(failed)?;
        let connected = async {
            client.connected().await.map_err(failed)?;
            Ok::<_, String>(monotonic_ns())
        };
        let messages = async {
            if task.wait_connack {
                client.connected().await.map_err(failed)?;
            }
            let start = Instant::now();
            let mut first_ns = None;
            let mut under_way = JoinSet::new();
            for index in 0..task.messages {
                if task.interval_ns > 0 {
                    tokio::time::sleep_until(start + interval * index).await;
                }
                let number = connection * task.messages + index;
                let (message, _) = message(task, number)?;
                let sending = send(&client, number, message);
                if task.interval_ns > 0 {
                    under_way.spawn(settle(sending));
                } else {
                    settle(sending).await?;
                }
                first_ns.get_or_insert_with(monotonic_ns);
            }
            while let Some(settled) = under_way.join_next().await {
                settled.map_err(|error| error.to_string())??;
            }
            Ok::<_, String>(first_ns.unwrap_or(started_ns))
        };
        let (connected_ns, sent_ns) = tokio::try_join!(connected, messages)?;
        measured.connect_ns.push(connected_ns - started_ns);
        measured.sent_after_ns.push(sent_ns - started_ns);
        let early_data = client
            .connection()
            .map_or(EarlyData::NotTried, |connected| connected.early_data);
        measured.early_data.push(name(early_data).into());
        look_at_path(client.path(), &mut measured);
        client.close().await;
    }
    measured.last_ns = monotonic_ns();
    meter.read(&mut measured);
    say(&Word::Finished)?;
    orders.end().await;
    Ok(measured)
}
