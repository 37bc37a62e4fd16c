//! `sterna sub`: print the messages of topics.

mod amqp;
mod http;

use std::process::ExitCode;
use std::time::Duration;

use sterna_client::arguments::{qos, seconds};
use sterna_client::{
    Client, Error, Event, Events, Message, PropertyBuf, Protocol, Publish, QoS, ReasonCode,
    RetainHandling, Subscription, Version, topic,
};
use tokio::sync::mpsc;

use super::connection::{Connection, Settings};
use super::exit::{self, Failure};
use super::outage::{Change, Outage};
use super::output::{self, FORMATS, Output};
use super::signals;

/// Print the messages of topics.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = help())]
pub(crate) struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Topic filter to subscribe to, in AMQP an address; may be repeated [default: the path of the URL]
    #[arg(
        short = 't',
        long = "topic",
        visible_alias = "address",
        value_name = "FILTER"
    )]
    topics: Vec<String>,
    /// Topic filter to unsubscribe from, for sessions that are kept; may be repeated
    #[arg(short = 'U', long = "unsubscribe", value_name = "FILTER")]
    unsubscribe: Vec<String>,
    /// Highest quality of service of the messages: 0, 1 or 2 [default: 0, and 1 for a shared
    /// subscription with -C]. In AMQP, messages are settled when they are printed
    #[arg(short = 'q', long, value_name = "QOS", value_parser = qos)]
    qos: Option<QoS>,
    /// Leave out what matches this topic filter; may be repeated
    #[arg(short = 'T', long, value_name = "FILTER", help_heading = "Selection")]
    filter_out: Vec<String>,
    /// Leave out retained messages
    #[arg(
        short = 'R',
        conflicts_with = "retained_only",
        help_heading = "Selection"
    )]
    no_retained: bool,
    /// Only retained messages; ends at the first one that is not
    #[arg(long, help_heading = "Selection")]
    retained_only: bool,
    /// Remove each retained message from the broker
    #[arg(long, help_heading = "Selection")]
    remove_retained: bool,
    /// Keep the retained flag as the publisher set it (MQTT 5)
    #[arg(long, help_heading = "Selection")]
    retain_as_published: bool,
    /// Send no retained messages at the start, or, with "new", only for new subscriptions (MQTT 5)
    #[arg(long, value_name = "WHEN", value_parser = retain_handling, help_heading = "Selection")]
    retain_handling: Option<RetainHandling>,
    /// AMQP: only messages that this selector (JMS) is true for
    #[arg(long, value_name = "SELECTOR", help_heading = "Selection")]
    selector: Option<String>,
    /// AMQP: what the node has to be: queue, topic, shared, global; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    capability: Vec<String>,
    /// AMQP: messages that may be on their way or wait to be printed [default: 256, and no more than
    /// -C still wants]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    credit: Option<u32>,
    /// Leave out what this client publishes itself (MQTT 5, AMQP)
    #[arg(long, help_heading = "Selection")]
    no_local: bool,
    /// Have the broker mark the messages with this number (MQTT 5; shown by %S)
    #[arg(long, value_name = "N", help_heading = "Selection")]
    subscription_identifier: Option<u32>,
    /// Print only this percentage of the messages
    #[arg(long, value_name = "PERCENT", value_parser = percent, help_heading = "Selection")]
    random_filter: Option<f64>,
    /// End after this number of messages
    #[arg(short = 'C', value_name = "N", help_heading = "End",
          value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Seconds after the connection stands at which the command ends, with status 27
    #[arg(short = 'W', value_name = "SECONDS", value_parser = seconds, help_heading = "End")]
    timeout: Option<Duration>,
    /// End once the broker has confirmed the subscriptions
    #[arg(short = 'E', help_heading = "End")]
    exit_after_subscribe: bool,
    #[command(flatten)]
    output: Output,
}

fn help() -> String {
    format!(
        "\
Examples:
  sterna sub -t 'house/#' -v
  sterna sub 'mqtt+quic://broker.example/house/#' --cafile ca.pem
  sterna sub -t sensors -C 1 -W 5 || echo silent          wait for one message, 5 s at most
  sterna sub -t 'house/#' -F '%I %t %p'
  sterna sub -t 'house/#' -F %j | jq .payload
  sterna sub -t '#' --remove-retained --retained-only -W 1  empty a broker
  sterna sub amqp://broker.example/queue/jobs -q 1 --credit 10 -v
  sterna sub 'https://broker.example/house/#' -i panel -c -q 1  a durable subscription of HTTP
  sterna sub -t 'jobs/#' -i worker -c -q 1                 get what came while away

Messages with QoS 1 and 2 are acknowledged when they are printed. A lost connection is regained.

{FORMATS}

{}",
        exit::HELP
    )
}

fn retain_handling(text: &str) -> Result<RetainHandling, String> {
    match text {
        "always" | "0" => Ok(RetainHandling::Send),
        "new" | "1" => Ok(RetainHandling::SendIfNew),
        "never" | "2" => Ok(RetainHandling::DoNotSend),
        _ => Err("always, new or never".to_owned()),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "a number from 0 to 100".to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    args.connection.start_log();
    exit::code(super::block_on(subscribe(args)), args.connection.quiet)
}

impl Args {
    /// The highest quality of service of a filter's messages, where the protocol is not AMQP. Messages for others of a
    /// group must not be lost: at QoS 0 they are gone when this command ends.
    fn qos(&self, filter: &str) -> QoS {
        let takes_part = self.count.is_some() && topic::is_shared(filter);
        let own = if takes_part {
            QoS::AtLeastOnce
        } else {
            QoS::AtMostOnce
        };
        self.qos.unwrap_or(own)
    }

    /// Whether the command ends before this message, which it then neither prints nor acknowledges.
    const fn ends_before(&self, message: &Message) -> bool {
        self.retained_only && !message.retain()
    }

    fn subscriptions(&self, url_topic: Option<String>) -> Result<Vec<Subscription>, Failure> {
        let mut filters = self.topics.clone();
        filters.extend(url_topic);
        if filters.is_empty() && self.unsubscribe.is_empty() {
            return Err(Failure::local(
                "no topic: give one with -t or as the path of the URL",
            ));
        }
        filters
            .iter()
            .map(|filter| self.subscription(filter))
            .collect()
    }

    fn subscription(&self, filter: &str) -> Result<Subscription, Failure> {
        let wrong = |error| Failure::local(format_args!("-t {filter}: {error}"));
        let mut subscription = Subscription::new(filter, self.qos(filter)).map_err(wrong)?;
        if self.no_local {
            subscription = subscription.no_local().map_err(wrong)?;
        }
        if self.retain_as_published {
            subscription = subscription.retain_as_published();
        }
        if let Some(handling) = self.retain_handling {
            subscription = subscription.retain_handling(handling);
        }
        if let Some(identifier) = self.subscription_identifier {
            subscription = subscription.identifier(identifier).map_err(wrong)?;
        }
        Ok(subscription)
    }
}

async fn subscribe(args: &Args) -> Result<(), Failure> {
    match args.connection.protocol()? {
        Protocol::Mqtt => {}
        Protocol::Amqp => return amqp::subscribe(args).await,
        Protocol::Http => return http::subscribe(args).await,
    }
    for (flag, is_given) in [
        ("--selector", args.selector.is_some()),
        ("--capability", !args.capability.is_empty()),
        ("--credit", args.credit.is_some()),
    ] {
        if is_given {
            return Err(Failure::local(format_args!(
                "{flag}: MQTT has no such thing"
            )));
        }
    }
    let Settings {
        mut options,
        properties,
        topic,
    } = args
        .connection
        .settings(&["connect", "subscribe", "unsubscribe", "disconnect", "will"])?;
    let subscriptions = args.subscriptions(topic)?;
    if let Some(wrong) = args
        .filter_out
        .iter()
        .find(|f| topic::check_filter(f).is_err())
    {
        return Err(Failure::local(format_args!(
            "-T {wrong}: not a topic filter"
        )));
    }
    let shared = subscriptions
        .iter()
        .map(Subscription::filter)
        .find(|filter| topic::is_shared(filter));
    if let Some(filter) = shared
        && args.count.is_some()
        && args.qos == Some(QoS::AtMostOnce)
        && !args.connection.quiet
    {
        eprintln!(
            "Warning: -C and -q 0 with {filter}: messages that come and are not printed are lost to the \
             group; with -q 1 they go back"
        );
    }
    let with_subscribe = properties.block("subscribe")?;
    let with_unsubscribe = properties.block("unsubscribe")?;
    let with_disconnect = properties.block("disconnect")?;
    let version = options.version;
    options.acknowledge_on_receipt = false;
    let outage = args.connection.outage(&options.url);
    let (client, mut events) = Client::start(options).map_err(Failure::local)?;
    let asking = {
        let client = client.clone();
        let unsubscribe = args.unsubscribe.clone();
        let quiet = args.connection.quiet;
        async move {
            let asked = ask(
                &client,
                subscriptions,
                unsubscribe,
                with_subscribe,
                with_unsubscribe,
            );
            asked
                .await
                .map_err(|error| Failure::client(&error, version))
                .and_then(|answers| answers.check(version, quiet))
        }
    };
    let mut printer = Printer {
        args,
        client: &client,
        version,
        outage,
        printed: 0,
        granted: None,
        out: Vec::new(),
    };
    let result = printer.run(&mut events, asking).await;
    let result = printer.outage.judge(result);
    if !printer.outage.was_connected() {
        // There is nothing to end in order, and the client may still try to connect.
        return result;
    }
    // Those that a signal or -C left unacknowledged come again to a session that goes on.
    args.connection.tell_path(&client).await;
    let ended = client
        .disconnect_with(ReasonCode::Success, with_disconnect)
        .await;
    match ended {
        // A signal while there was no connection to end.
        Err(Error::Ended) | Ok(()) => result,
        Err(error) => result.and_then(|()| Err(Failure::client(&error, version))),
    }
}

/// The broker's answers, in the order of the filters.
struct Answers {
    filters: Vec<String>,
    codes: Vec<ReasonCode>,
}

impl Answers {
    /// The number of subscriptions. An error when every one was refused, a warning for each that was.
    fn check(self, version: Version, quiet: bool) -> Result<usize, Failure> {
        let refused: Vec<_> = self
            .filters
            .iter()
            .zip(&self.codes)
            .filter(|(_, code)| code.is_error())
            .collect();
        if let Some((_, first)) = refused.first()
            && refused.len() == self.filters.len()
        {
            return Err(refused_all(**first, version));
        }
        let granted = self.filters.len() - refused.len();
        for (filter, code) in refused {
            if !quiet {
                exit::tell(format_args!(
                    "Warning: the broker refused the subscription to {filter}: {}",
                    code.name()
                ));
            }
        }
        Ok(granted)
    }
}

/// The failure of a command that has no subscription.
fn refused_all(reason: ReasonCode, version: Version) -> Failure {
    let text = if version.is_v5() {
        reason.name()
    } else {
        "refused"
    };
    Failure::new(
        reason as u8,
        format_args!("the broker refused all subscriptions: {text}"),
    )
}

async fn ask(
    client: &Client,
    subscriptions: Vec<Subscription>,
    unsubscribe: Vec<String>,
    with_subscribe: PropertyBuf,
    with_unsubscribe: PropertyBuf,
) -> Result<Answers, Error> {
    let filters = subscriptions
        .iter()
        .map(|one| one.filter().to_owned())
        .collect();
    let codes = if subscriptions.is_empty() {
        Vec::new()
    } else {
        client.subscribe_with(subscriptions, with_subscribe).await?
    };
    if !unsubscribe.is_empty() {
        client
            .unsubscribe_with(unsubscribe, with_unsubscribe)
            .await?;
    }
    Ok(Answers { filters, codes })
}

/// The effect of a message on the command.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

struct Printer<'a> {
    args: &'a Args,
    client: &'a Client,
    version: Version,
    outage: Outage,
    printed: u64,
    /// Subscriptions that the broker has granted; `None` before its answer.
    granted: Option<usize>,
    out: Vec<u8>,
}

impl Printer<'_> {
    /// Prints messages until it is time to end.
    async fn run(
        &mut self,
        events: &mut Events,
        asking: impl Future<Output = Result<usize, Failure>>,
    ) -> Result<(), Failure> {
        let mut signals = signals::listen();
        let mut signals_alive = true;
        let mut asked = false;
        let mut deadline = None;
        tokio::pin!(asking);
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { return Ok(()) };
                    if matches!(event, Event::Connected(_)) && deadline.is_none() {
                        let now = tokio::time::Instant::now();
                        deadline = self.args.timeout.map(|timeout| now + timeout);
                    }
                    if self.take(events, event).await? == Next::End {
                        return Ok(());
                    }
                }
                result = &mut asking, if !asked => {
                    asked = true;
                    match result {
                        Ok(granted) => self.granted = Some(granted),
                        Err(failure) => {
                            // Messages of a kept session may have come before.
                            if let Some(event) = events.try_next() {
                                self.take(events, event).await?;
                            }
                            return Err(failure);
                        }
                    }
                    if self.args.exit_after_subscribe {
                        return Ok(());
                    }
                }
                () = until(deadline), if deadline.is_some() => {
                    return Err(Failure::new(exit::TIMEOUT, "time ran out"));
                }
                word = signal(&mut signals), if signals_alive => {
                    if !word {
                        signals_alive = false;
                        continue;
                    }
                    // The connection may stand, and was not heard of yet.
                    if !self.outage.was_connected()
                        && let Some(event) = events.try_next()
                    {
                        self.take(events, event).await?;
                    }
                    if !self.outage.was_connected() {
                        return Err(Failure::unconnected());
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Handles an event and those that have come with it, and prints them in one go.
    async fn take(&mut self, events: &mut Events, first: Event) -> Result<Next, Failure> {
        let mut next = Some(first);
        let mut printed = Vec::new();
        let mut end = Ok(Next::GoOn);
        while let Some(event) = next.take() {
            end = match event {
                // It stays for the next subscriber of its session.
                Event::Message(message) if self.args.ends_before(&message) => Ok(Next::End),
                Event::Message(message) => {
                    let handled = self.message(&message).await;
                    if handled.is_ok() {
                        printed.push(message);
                    }
                    handled
                }
                Event::SubscriptionRefused { filter, reason } => {
                    self.refused(&filter, reason).map(|()| Next::GoOn)
                }
                other => self
                    .outage
                    .note(Change::mqtt(&other, self.version))
                    .map(|()| Next::GoOn),
            };
            if matches!(end, Ok(Next::GoOn)) && printed.len() < 256 {
                next = events.try_next();
            }
        }
        // Messages that came before a failure are printed all the same.
        let out = std::mem::take(&mut self.out);
        if !out.is_empty() {
            output::print(&out)?;
        }
        for message in &printed {
            // They have left this process; the client ends by itself when there is no connection
            // any more.
            let _ = self.client.acknowledge(message).await;
        }
        end
    }

    /// The broker has lost the session, and does not grant a subscription again: an error when it was
    /// the last one.
    fn refused(&mut self, filter: &str, reason: ReasonCode) -> Result<(), Failure> {
        let name = reason.name();
        let text = format!("Warning: the broker does not grant {filter} again: {name}");
        // The client asks for it once more when it connects.
        if reason == ReasonCode::QuotaExceeded {
            self.say(&text);
            return Ok(());
        }
        self.granted = self.granted.map(|granted| granted.saturating_sub(1));
        if self.granted == Some(0) {
            return Err(refused_all(reason, self.version));
        }
        self.say(&text);
        Ok(())
    }

    async fn message(&mut self, message: &Message) -> Result<Next, Failure> {
        let args = self.args;
        if args
            .filter_out
            .iter()
            .any(|filter| topic::matches(filter, message.topic()))
        {
            return Ok(Next::GoOn);
        }
        if args.remove_retained && message.retain() && !message.payload_bytes().is_empty() {
            self.remove(message).await?;
        }
        if (args.no_retained && message.retain()) || !is_drawn(args.random_filter) {
            return Ok(Next::GoOn);
        }
        if let Err(error) = args.output.write(message, &mut self.out) {
            self.say(&format!("Error: {error}"));
        }
        self.printed += 1;
        if args.count.is_some_and(|count| self.printed >= count) {
            return Ok(Next::End);
        }
        Ok(Next::GoOn)
    }

    async fn remove(&self, message: &Message) -> Result<(), Failure> {
        // The topic was published to before, so it is a valid one.
        let Ok(nothing) = Publish::new(message.topic(), "") else {
            return Ok(());
        };
        let sent = self.client.send(nothing.retain(true)).await;
        sent.map(drop)
            .map_err(|error| Failure::client(&error, self.version))
    }

    fn say(&self, text: &str) {
        if !self.args.connection.quiet {
            exit::tell(format_args!("sterna: {text}"));
        }
    }
}

/// Whether a message is drawn for this percentage.
fn is_drawn(percent: Option<f64>) -> bool {
    let Some(percent) = percent else {
        return true;
    };
    let mut random = [0; 4];
    // Without random numbers every message is printed.
    if getrandom::fill(&mut random).is_err() {
        return true;
    }
    f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX) * 100.0 < percent
}

pub(super) async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// True at a signal; false if signals cannot be received.
pub(super) async fn signal(signals: &mut mpsc::Receiver<()>) -> bool {
    signals.recv().await.is_some()
}
