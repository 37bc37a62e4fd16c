//! `sterna request`: publish a request and print what is answered.

mod amqp;
mod http;

use std::process::ExitCode;
use std::time::Duration;

use sterna_client::arguments::{qos, seconds};
use sterna_client::{
    Client, Error, Event, Events, Message, Protocol, Publish, QoS, ReasonCode, Subscription,
    Version,
};

use super::connection::{Connection, Settings};
use super::exit::{self, Failure};
use super::outage::{Change, Outage};
use super::output::{self, FORMATS, Output};
use super::payload::Payload;
use super::signals;

/// Publish a request and print the response.
///
/// The request has a response topic and correlation data (MQTT 5). The client is subscribed before
/// anyone can answer: SUBSCRIBE and the request leave together. Before MQTT 5 every message on the
/// response topic counts as a response. In AMQP the broker makes a node for the responses, and the
/// request carries its address as reply-to, and a correlation-id.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = help())]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic of the request; in AMQP the address [default: the path of the URL]
    #[arg(short = 't', long, visible_alias = "address", value_name = "TOPIC")]
    topic: Option<String>,
    /// Topic for the response [default: one of this client's own]
    #[arg(short = 'e', long, value_name = "TOPIC")]
    response_topic: Option<String>,
    /// Correlation data of the request [default: random]
    #[arg(long, value_name = "TEXT")]
    correlation: Option<String>,
    #[command(flatten)]
    payload: Payload,
    /// Quality of service of request and response: 0, 1 or 2
    #[arg(short = 'q', long, value_name = "QOS", default_value = "1", value_parser = qos)]
    qos: QoS,
    /// Wait for this number of responses
    #[arg(short = 'C', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Seconds to wait after the connection stands, then end with status 27
    #[arg(short = 'W', value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    timeout: Duration,
    #[command(flatten)]
    output: Output,
}

fn help() -> String {
    format!(
        "\
Examples:
  sterna request -t house/door/get -n
  sterna request mqtt+quic://broker.example/jobs --cafile ca.pem -m '{{\"job\": 7}}' -W 30
  sterna request -t ping -m x -C 3 -F '%t %p'     the first three answers

{FORMATS}

{}",
        exit::HELP
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    args.connection.start_log();
    exit::code(super::block_on(request(args)), args.connection.quiet)
}

/// Random hexadecimal digits.
fn random_name() -> Result<String, Failure> {
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::local(format_args!("no random numbers: {error}")))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

async fn request(args: &Args) -> Result<(), Failure> {
    match args.connection.protocol()? {
        Protocol::Mqtt => {}
        Protocol::Amqp => return amqp::request(args).await,
        Protocol::Http => return http::request(args).await,
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
    if !args.payload.is_given() {
        return Err(Failure::local("no request: give one of -m, -f, -n and -s"));
    }
    let version = options.version;
    let response_topic = match &args.response_topic {
        Some(topic) => topic.clone(),
        None => format!("sterna/response/{}", random_name()?),
    };
    let correlation = match &args.correlation {
        Some(text) => text.clone(),
        None => random_name()?,
    };
    let wrong = |error| Failure::local(format_args!("-e {response_topic}: {error}"));
    let subscription = Subscription::new(&response_topic, args.qos).map_err(wrong)?;
    let mut message = Publish::new(topic, args.payload.read()?)
        .map_err(|error| Failure::local(format_args!("-t: {error}")))?
        .qos(args.qos);
    if version.is_v5() {
        message = message
            .response_topic(&response_topic)
            .and_then(|message| message.correlation_data(correlation.as_bytes()))
            .map_err(wrong)?;
    }
    let message = properties.publish(message)?;
    let at_the_end = properties.block("disconnect")?;
    let mut outage = args.connection.outage(&options.url);
    let (client, mut events) = Client::start(options).map_err(Failure::local)?;
    let exchange = Exchange {
        args,
        version,
        correlation: correlation.as_bytes(),
        response_topic: &response_topic,
    };
    let result = exchange
        .run(&client, &mut events, &mut outage, subscription, message)
        .await;
    let result = outage.judge(result);
    if !outage.was_connected() {
        // There is nothing to end in order, and the client may still try to connect.
        return result;
    }
    args.connection.tell_path(&client).await;
    let ended = client
        .disconnect_with(ReasonCode::Success, at_the_end)
        .await;
    result.and_then(|()| ended.map_err(|error| Failure::client(&error, version)))
}

struct Exchange<'a> {
    args: &'a Args,
    version: Version,
    correlation: &'a [u8],
    response_topic: &'a str,
}

impl Exchange<'_> {
    async fn run(
        &self,
        client: &Client,
        events: &mut Events,
        outage: &mut Outage,
        subscription: Subscription,
        message: Publish,
    ) -> Result<(), Failure> {
        let failed = |error: &Error| Failure::client(error, self.version);
        let asking = async {
            // Requests of one client go out in the order of the calls, so this order is that of the
            // packets.
            let subscribing = client.subscribe([subscription]);
            let publishing = client.publish(message);
            tokio::join!(subscribing, publishing)
        };
        tokio::pin!(asking);
        let mut asked = false;
        let mut deadline = None;
        let mut responses = 0;
        let mut signals = signals::listen();
        let mut signals_alive = true;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    None => return Ok(()),
                    Some(Event::Message(message)) if self.is_response(&message) => {
                        let mut out = Vec::new();
                        self.args.output.write(&message, &mut out)?;
                        output::print(&out)?;
                        responses += 1;
                        if responses >= self.args.count {
                            return Ok(());
                        }
                    }
                    Some(event) => {
                        if matches!(event, Event::Connected(_)) && deadline.is_none() {
                            deadline = Some(tokio::time::Instant::now() + self.args.timeout);
                        }
                        outage.note(Change::mqtt(&event, self.version))?;
                    }
                },
                (subscribed, published) = &mut asking, if !asked => {
                    asked = true;
                    if let Some(refused) = subscribed.map_err(|error| failed(&error))?.first()
                        && refused.is_error()
                    {
                        let name = refused.name();
                        let text = format!("the broker refused the subscription: {name}");
                        return Err(Failure::new(*refused as u8, text));
                    }
                    let published = published.map_err(|error| failed(&error))?;
                    if published.reason == ReasonCode::NoMatchingSubscribers {
                        let text = "the topic has no subscriber";
                        return Err(Failure::new(exit::NOBODY, text));
                    }
                }
                () = super::subscribe::until(deadline), if deadline.is_some() => {
                    return Err(Failure::new(exit::TIMEOUT, "no response in time"));
                }
                word = super::subscribe::signal(&mut signals), if signals_alive => {
                    if word {
                        return Err(Failure::interrupted());
                    }
                    signals_alive = false;
                }
            }
        }
    }

    fn is_response(&self, message: &Message) -> bool {
        if message.topic() != self.response_topic || message.retain() {
            return false;
        }
        // Before MQTT 5 there is nothing else to know a response by.
        !self.version.is_v5() || message.properties().correlation_data() == Some(self.correlation)
    }
}
