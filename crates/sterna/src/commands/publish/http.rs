//! `sterna pub` over HTTP.

use sterna_client::http::{Client, Error};
use sterna_client::{Priority, Publish};
use tokio::task::JoinSet;

use super::Args;
use crate::commands::connection::http::{HttpSettings, refuse};
use crate::commands::exit::Failure;
use crate::commands::outage::Change;
use crate::commands::payload;

/// Sends what the command line says.
pub(super) async fn publish(args: &Args) -> Result<(), Failure> {
    refuse(&[
        ("--priority", args.priority != Priority::Normal),
        ("--rebind-every", args.rebind_every.is_some()),
    ])?;
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
    if !args.stdin_line && !args.payload.is_given() {
        return Err(Failure::local(
            "nothing to publish: give one of -m, -f, -l, -n and -s",
        ));
    }
    let message = Publish::new(topic, args.payload.read()?)
        .map_err(|error| Failure::local(format_args!("-t: {error}")))?
        .qos(args.qos)
        .retain(args.retain);
    let message = properties.publish(message)?;
    let outage = args.connection.outage(&options.url);
    let client = Client::new(options).map_err(|error| Failure::http(&error))?;
    let mut events = client.events();
    outage
        .beside(publish_all(args, &client, message), async || {
            Some(Change::http(&events.next().await?))
        })
        .await
}

/// Publishes what the command line says, and ends the connection.
async fn publish_all(args: &Args, client: &Client, message: Publish) -> Result<(), Failure> {
    let mut sender = Sender {
        client,
        under_way: JoinSet::new(),
        max_under_way: args.max_inflight.unwrap_or(1).max(1),
        failure: None,
    };
    if args.stdin_line {
        let mut lines = payload::lines();
        while let Some(line) = lines.recv().await {
            let line =
                line.map_err(|error| Failure::local(format_args!("standard input: {error}")))?;
            sender.send(message.clone().payload(line)).await;
        }
    } else {
        for number in 0..args.repeat {
            if number > 0 && !args.repeat_delay.is_zero() {
                tokio::time::sleep(args.repeat_delay).await;
            }
            sender.send(message.clone()).await;
        }
    }
    let failure = sender.finish().await;
    args.connection.tell_http_path(client);
    client.close().await;
    failure.map_or(Ok(()), Err)
}

/// The messages under way, up to a limit.
struct Sender<'a> {
    client: &'a Client,
    under_way: JoinSet<Result<(), Error>>,
    max_under_way: usize,
    /// The first one.
    failure: Option<Failure>,
}

impl Sender<'_> {
    async fn send(&mut self, message: Publish) {
        if self.max_under_way == 1 {
            let answer = self.client.publish(message).await;
            self.note(answer);
            return;
        }
        while self.under_way.len() >= self.max_under_way {
            self.settle_one().await;
        }
        let client = self.client.clone();
        self.under_way
            .spawn(async move { client.publish(message).await });
    }

    fn note(&mut self, answer: Result<(), Error>) {
        if let Err(error) = answer {
            self.failure.get_or_insert_with(|| Failure::http(&error));
        }
    }

    async fn settle_one(&mut self) {
        match self.under_way.join_next().await {
            Some(Ok(answer)) => self.note(answer),
            Some(Err(error)) => {
                self.failure.get_or_insert_with(|| Failure::local(error));
            }
            None => {}
        }
    }

    /// Waits for all, and gives the first failure.
    async fn finish(mut self) -> Option<Failure> {
        while !self.under_way.is_empty() {
            self.settle_one().await;
        }
        self.failure
    }
}
