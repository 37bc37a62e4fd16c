//! `sterna request` over HTTP.

use sterna_client::Publish;
use sterna_client::http::{Client, Received, Subscribe};

use super::{Args, random_name};
use crate::commands::connection::http::{HttpSettings, refuse};
use crate::commands::exit::{self, Failure};
use crate::commands::outage::Change;
use crate::commands::subscribe::until;
use crate::commands::{output, signals};

/// Subscribes to the topic for the answers, sends the request, and prints what is answered.
pub(super) async fn request(args: &Args) -> Result<(), Failure> {
    let HttpSettings {
        options,
        properties,
        topic,
        session,
    } = args.connection.http(&["publish"])?;
    refuse(&[("-c", session.is_some())])?;
    let topic =
        args.topic.clone().or(topic).ok_or_else(|| {
            Failure::local("no topic: give one with -t or as the path of the URL")
        })?;
    if !args.payload.is_given() {
        return Err(Failure::local("no request: give one of -m, -f, -n and -s"));
    }
    let response_topic = match &args.response_topic {
        Some(topic) => topic.clone(),
        None => format!("sterna/response/{}", random_name()?),
    };
    let correlation = match &args.correlation {
        Some(text) => text.clone(),
        None => random_name()?,
    };
    let wrong = |error| Failure::local(format_args!("-e {response_topic}: {error}"));
    let message = Publish::new(topic, args.payload.read()?)
        .map_err(|error| Failure::local(format_args!("-t: {error}")))?
        .qos(args.qos)
        .response_topic(&response_topic)
        .and_then(|message| message.correlation_data(correlation.as_bytes()))
        .map_err(wrong)?;
    let message = properties.publish(message)?;
    let outage = args.connection.outage(&options.url);
    let client = Client::new(options).map_err(|error| Failure::http(&error))?;
    let mut events = client.events();
    let exchange = Exchange {
        args,
        response_topic: &response_topic,
        correlation: correlation.as_bytes(),
    };
    let result = outage
        .beside(
            Box::pin(signals::or_end(exchange.run(&client, message))),
            async || Some(Change::http(&events.next().await?)),
        )
        .await;
    args.connection.tell_http_path(&client);
    client.close().await;
    result
}

struct Exchange<'a> {
    args: &'a Args,
    response_topic: &'a str,
    correlation: &'a [u8],
}

impl Exchange<'_> {
    async fn run(&self, client: &Client, message: Publish) -> Result<(), Failure> {
        let failed = |error| Failure::http(&error);
        let answers = Subscribe::new(self.response_topic, self.args.qos)
            .map_err(failed)?
            .retained(false);
        // It is in force before anybody can answer.
        let mut subscription = client.subscribe(answers).await.map_err(failed)?;
        let deadline = Some(tokio::time::Instant::now() + self.args.timeout);
        let publishing = client.publish(message);
        tokio::pin!(publishing);
        let mut published = false;
        let mut responses = 0;
        loop {
            tokio::select! {
                received = subscription.next() => {
                    if self.print(&received.map_err(failed)?)? {
                        responses += 1;
                        if responses >= self.args.count {
                            return Ok(());
                        }
                    }
                }
                answer = &mut publishing, if !published => {
                    published = true;
                    answer.map_err(failed)?;
                }
                () = until(deadline) => {
                    return Err(Failure::new(exit::TIMEOUT, "no response in time"));
                }
            }
        }
    }

    /// Prints a message if it is an answer.
    fn print(&self, received: &Received) -> Result<bool, Failure> {
        let message = &received.message;
        let is_answer = message.properties().correlation_data() == Some(self.correlation);
        if is_answer {
            let mut out = Vec::new();
            self.args.output.write(message, &mut out)?;
            output::print(&out)?;
        }
        Ok(is_answer)
    }
}
