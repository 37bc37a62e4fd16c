//! `sterna sub` over HTTP.

use sterna_client::http::{Client, Received, Subscribe, Subscription};
use sterna_client::{Publish, RetainHandling, topic};

use super::{Args, Next, is_drawn, signal, until};
use crate::commands::connection::http::{HttpSettings, refuse};
use crate::commands::exit::{self, Failure};
use crate::commands::outage::Change;
use crate::commands::{output, signals};

/// Messages that are printed, and acknowledged, in one go.
const TOGETHER: usize = 256;

/// Prints what the command line asks for.
pub(super) async fn subscribe(args: &Args) -> Result<(), Failure> {
    refuse(&[
        ("-U", !args.unsubscribe.is_empty()),
        ("--retain-as-published", args.retain_as_published),
        (
            "--retain-handling new",
            args.retain_handling == Some(RetainHandling::SendIfNew),
        ),
        ("--selector", args.selector.is_some()),
        ("--capability", !args.capability.is_empty()),
        ("--credit", args.credit.is_some()),
        ("--no-local", args.no_local),
        (
            "--subscription-identifier",
            args.subscription_identifier.is_some(),
        ),
    ])?;
    let HttpSettings {
        options,
        topic,
        session,
        ..
    } = args.connection.http(&[])?;
    if let Some(wrong) = args
        .filter_out
        .iter()
        .find(|filter| topic::check_filter(filter).is_err())
    {
        return Err(Failure::local(format_args!(
            "-T {wrong}: not a topic filter"
        )));
    }
    let filters: Vec<_> = args.topics.iter().cloned().chain(topic).collect();
    let asked = subscription(args, &filters, session)?;
    let outage = args.connection.outage(&options.url);
    let client = Client::new(options).map_err(|error| Failure::http(&error))?;
    let mut events = client.events();
    let mut printer = Printer {
        args,
        client: &client,
        printed: 0,
        out: Vec::new(),
    };
    let result = outage
        .beside(Box::pin(printer.run(asked)), async || {
            Some(Change::http(&events.next().await?))
        })
        .await;
    args.connection.tell_http_path(&client);
    client.close().await;
    result
}

/// The subscription that the command line asks for.
fn subscription(
    args: &Args,
    filters: &[String],
    session: Option<String>,
) -> Result<Subscribe, Failure> {
    let failed = |error| Failure::http(&error);
    let Some((first, further)) = filters.split_first() else {
        return Err(Failure::local(
            "no topic: give one with -t or as the path of the URL",
        ));
    };
    let mut asked = Subscribe::new(first, args.qos(first)).map_err(failed)?;
    for filter in further {
        asked = asked.filter(filter).map_err(failed)?;
    }
    let never = args.retain_handling == Some(RetainHandling::DoNotSend);
    asked = asked.retained(!never && !args.no_retained);
    if let Some(session) = session {
        // A message is acknowledged after it was printed.
        asked = asked.session(session).map_err(failed)?.acknowledge(false);
    }
    Ok(asked)
}

struct Printer<'a> {
    args: &'a Args,
    client: &'a Client,
    printed: u64,
    out: Vec<u8>,
}

impl Printer<'_> {
    /// Prints messages until it is time to end.
    async fn run(&mut self, asked: Subscribe) -> Result<(), Failure> {
        let is_durable = self.args.connection.durable().is_some();
        let mut signals = signals::listen();
        let mut signals_alive = true;
        let subscribing = self.client.subscribe(asked);
        tokio::pin!(subscribing);
        let mut subscription = loop {
            tokio::select! {
                // A signal may come before it was heard of.
                biased;
                subscribed = &mut subscribing => {
                    break subscribed.map_err(|error| Failure::http(&error))?;
                }
                word = signal(&mut signals), if signals_alive => {
                    if word {
                        return Err(Failure::unconnected());
                    }
                    signals_alive = false;
                }
            }
        };
        if self.args.exit_after_subscribe {
            return Ok(());
        }
        let now = tokio::time::Instant::now();
        let deadline = self.args.timeout.map(|timeout| now + timeout);
        let mut restarts = 0;
        loop {
            tokio::select! {
                received = subscription.next() => {
                    let first = received.map_err(|error| Failure::http(&error))?;
                    if self.take(&mut subscription, first, is_durable).await? == Next::End {
                        return Ok(());
                    }
                    if subscription.restarts() > restarts {
                        restarts = subscription.restarts();
                        self.say("Warning: the broker had forgotten the session; messages may be missing");
                    }
                }
                () = until(deadline), if deadline.is_some() => {
                    return Err(Failure::new(exit::TIMEOUT, "time ran out"));
                }
                word = signal(&mut signals), if signals_alive => {
                    if word {
                        return Ok(());
                    }
                    signals_alive = false;
                }
            }
        }
    }

    /// Handles a message and those that have come with it, prints them in one go, and says so.
    async fn take(
        &mut self,
        subscription: &mut Subscription,
        first: Received,
        is_durable: bool,
    ) -> Result<Next, Failure> {
        let failed = |error| Failure::http(&error);
        let mut next = Some(first);
        let mut count = 0;
        let mut last = None;
        let mut end = Ok(Next::GoOn);
        while let Some(received) = next.take() {
            if self.args.ends_before(&received.message) {
                // It stays for the next subscriber of its session.
                end = Ok(Next::End);
                break;
            }
            end = self.message(&received).await;
            if end.is_ok() {
                count += 1;
                last = received.id.or(last);
            }
            if matches!(end, Ok(Next::GoOn)) && count < TOGETHER {
                match subscription.try_next() {
                    Ok(received) => next = received,
                    Err(error) => end = Err(failed(error)),
                }
            }
        }
        // Messages that came before a failure are printed all the same.
        let out = std::mem::take(&mut self.out);
        if !out.is_empty() {
            output::print(&out)?;
        }
        if let Some(id) = last.filter(|_| is_durable) {
            let acknowledged = subscription.acknowledge(id).await.map_err(failed);
            return end.and_then(|end| acknowledged.map(|()| end));
        }
        end
    }

    async fn message(&mut self, received: &Received) -> Result<Next, Failure> {
        let (args, message) = (self.args, &received.message);
        let left_out = args
            .filter_out
            .iter()
            .any(|filter| topic::matches(filter, message.topic()));
        if left_out {
            return Ok(Next::GoOn);
        }
        if args.remove_retained && message.retain() && !message.payload_bytes().is_empty() {
            self.remove(message.topic()).await?;
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

    async fn remove(&self, topic: &str) -> Result<(), Failure> {
        // The topic was published to before, so it is a valid one.
        let Ok(nothing) = Publish::new(topic, "") else {
            return Ok(());
        };
        let removed = self.client.publish(nothing.retain(true)).await;
        removed.map_err(|error| Failure::http(&error))
    }

    fn say(&self, text: &str) {
        if !self.args.connection.quiet {
            exit::tell(format_args!("sterna: {text}"));
        }
    }
}
