//! `sterna pub`: publish messages.

mod amqp;
mod http;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Duration;

use sterna_client::arguments::{qos, seconds};
use sterna_client::{Client, Delivery, Priority, PropertyBuf, Protocol, Publish, QoS, Version};

use super::connection::{Connection, Settings};
use super::exit::{self, Failure};
use super::outage::Change;
use super::payload::{self, Payload};

/// Messages that may wait for their acknowledgements, where the protocol keeps their order.
const MAX_INFLIGHT: usize = 256;
/// Shortest time between two moves.
const MIN_REBIND: Duration = Duration::from_millis(10);

/// Publish messages.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = help())]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic to publish to; in AMQP the address [default: the path of the URL]
    #[arg(short = 't', long, visible_alias = "address", value_name = "TOPIC")]
    topic: Option<String>,
    #[command(flatten)]
    payload: Payload,
    /// Each line of standard input as a message of its own
    #[arg(short = 'l', long, conflicts_with_all = ["Payload", "repeat"])]
    stdin_line: bool,
    /// Quality of service: 0, 1 or 2; in AMQP settled, unsettled, and with the receiver settling second
    #[arg(short = 'q', long, value_name = "QOS", default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Let the broker keep it as the topic's retained message
    #[arg(short = 'r', long)]
    retain: bool,
    /// Publish it this number of times
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u64,
    /// Seconds between repetitions
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    repeat_delay: Duration,
    /// Over QUIC: how urgent it is, where streams have priorities: high, normal or bulk
    #[arg(long, value_name = "PRIORITY", default_value = "normal", value_parser = priority)]
    priority: Priority,
    /// Over QUIC: move to another local port after each interval of this many seconds, as a device
    /// that changes its network
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    rebind_every: Option<Duration>,
    /// Messages that may wait for their acknowledgements [default: 256; in HTTP 1, because messages
    /// under way may overtake each other there]
    #[arg(short = 'M', long, value_name = "N")]
    max_inflight: Option<usize>,
}

impl Args {
    /// Messages that may wait for their acknowledgements, where the protocol keeps their order.
    fn max_inflight(&self) -> usize {
        self.max_inflight.unwrap_or(MAX_INFLIGHT).max(1)
    }
}

fn help() -> String {
    format!(
        "\
Examples:
  sterna pub -t house/door -m open
  sterna pub mqtt+quic://broker.example/house/door --cafile ca.pem -q 1 -m open
  sterna pub amqps://broker.example/queue/jobs -q 1 -m work
  sterna pub https://broker.example/house/door -q 1 -m open
  sensors | sterna pub -h broker.example -t sensors -l
  sterna pub -t house/door -r -n              remove the retained message
  sterna pub -t a -m x -D publish message-expiry-interval 60 -D publish user-property unit C

With QoS 1 and 2 the command ends when the broker has acknowledged everything.

{}",
        exit::HELP
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    args.connection.start_log();
    exit::code(super::block_on(publish(args)), args.connection.quiet)
}

async fn publish(args: &Args) -> Result<(), Failure> {
    match args.connection.protocol()? {
        Protocol::Mqtt => {}
        Protocol::Amqp => return amqp::publish(args).await,
        Protocol::Http => return http::publish(args).await,
    }
    let Settings {
        options,
        properties,
        topic,
    } = args
        .connection
        .settings(&["connect", "publish", "disconnect", "will"])?;
    let topic =
        args.topic.clone().or(topic).ok_or_else(|| {
            Failure::local("no topic: give one with -t or as the path of the URL")
        })?;
    if !args.stdin_line && !args.payload.is_given() {
        return Err(Failure::local(
            "nothing to publish: give one of -m, -f, -l, -n and -s",
        ));
    }
    let is_quic = options.url.scheme().is_quic();
    for (flag, is_given) in [
        ("--priority", args.priority != Priority::Normal),
        ("--rebind-every", args.rebind_every.is_some()),
    ] {
        if is_given && !is_quic {
            let scheme = options.url.scheme();
            return Err(Failure::local(format_args!(
                "{flag}: {scheme}:// does not travel over QUIC"
            )));
        }
    }
    let message = Publish::new(topic, args.payload.read()?)
        .map_err(|error| Failure::local(format_args!("-t: {error}")))?
        .qos(args.qos)
        .retain(args.retain)
        .priority(args.priority);
    let message = properties.publish(message)?;
    let at_the_end = properties.block("disconnect")?;
    let version = options.version;
    let outage = args.connection.outage(&options.url);
    let (client, mut events) = Client::start(options).map_err(Failure::local)?;
    if let Some(pause) = args.rebind_every {
        // Ends with the client.
        tokio::spawn(rebind(client.clone(), pause.max(MIN_REBIND)));
    }
    let publishing = publish_all(args, &client, version, message, at_the_end);
    outage
        .beside(publishing, async || {
            Some(Change::mqtt(&events.next().await?, version))
        })
        .await
}

/// Publishes what the command line says, and ends the connection.
async fn publish_all(
    args: &Args,
    client: &Client,
    version: Version,
    message: Publish,
    at_the_end: PropertyBuf,
) -> Result<(), Failure> {
    let mut sender = Sender {
        client,
        version,
        under_way: VecDeque::new(),
        max_under_way: args.max_inflight(),
        failure: None,
    };
    if args.stdin_line {
        let mut lines = payload::lines();
        while let Some(line) = lines.recv().await {
            let line =
                line.map_err(|error| Failure::local(format_args!("standard input: {error}")))?;
            sender.send(message.clone().payload(line)).await?;
        }
    } else {
        for number in 0..args.repeat {
            if number > 0 && !args.repeat_delay.is_zero() {
                tokio::time::sleep(args.repeat_delay).await;
            }
            sender.send(message.clone()).await?;
        }
    }
    // Before anything else is believed: the broker has let this client in.
    client
        .connected()
        .await
        .map_err(|error| Failure::client(&error, version))?;
    while !sender.under_way.is_empty() {
        sender.settle_one().await;
    }
    let failure = sender.failure.take();
    args.connection.tell_path(client).await;
    let ended = client
        .disconnect_with(sterna_client::ReasonCode::Success, at_the_end)
        .await;
    match failure {
        Some(failure) => Err(failure),
        None => ended.map_err(|error| Failure::client(&error, version)),
    }
}

fn priority(text: &str) -> Result<Priority, String> {
    match text {
        "high" => Ok(Priority::High),
        "normal" => Ok(Priority::Normal),
        "bulk" => Ok(Priority::Bulk),
        _ => Err("high, normal or bulk".to_owned()),
    }
}

/// Moves again and again, as long as there is something that can.
async fn rebind(client: Client, pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        if client.migrate().await.is_err() {
            return;
        }
    }
}

/// The messages under way, up to a limit.
struct Sender<'a> {
    client: &'a Client,
    version: Version,
    under_way: VecDeque<Delivery>,
    max_under_way: usize,
    /// The first one.
    failure: Option<Failure>,
}

impl Sender<'_> {
    async fn send(&mut self, message: Publish) -> Result<(), Failure> {
        while self.under_way.len() >= self.max_under_way {
            self.settle_one().await;
        }
        let delivery = self
            .client
            .send(message)
            .await
            .map_err(|error| Failure::client(&error, self.version))?;
        self.under_way.push_back(delivery);
        Ok(())
    }

    async fn settle_one(&mut self) {
        if let Some(delivery) = self.under_way.pop_front()
            && let Err(error) = delivery.await
        {
            self.failure
                .get_or_insert_with(|| Failure::client(&error, self.version));
        }
    }
}
