//! `sterna pub` over AMQP.

use std::collections::VecDeque;

use sterna_client::amqp::{
    Connection, MAX_IN_FLIGHT, Message, Outcome, ReceiverSettles, Sender, SenderOptions, Sending,
};
use sterna_client::{Priority, Publish, QoS};

use super::Args;
use crate::commands::connection::{AmqpSettings, amqp};
use crate::commands::exit::Failure;
use crate::commands::outage::Change;
use crate::commands::payload;

/// Sends what the command line says.
pub(super) async fn publish(args: &Args) -> Result<(), Failure> {
    amqp::refuse(&[
        ("--priority", args.priority != Priority::Normal),
        ("--rebind-every", args.rebind_every.is_some()),
        ("-c", args.connection.durable().is_some()),
    ])?;
    let AmqpSettings {
        options,
        properties,
        address,
    } = args.connection.amqp(&["publish"])?;
    let address = amqp::address(args.topic.as_ref(), address)?;
    let publish = Publish::new(&address, args.payload.read()?)
        .map_err(|error| Failure::local(format_args!("-t: {error}")))?
        .qos(args.qos)
        .retain(args.retain);
    let publish = properties.publish(publish)?;
    let outage = args.connection.outage(&options.url);
    let (connection, mut events) = Connection::start(options).map_err(Failure::local)?;
    let mut target = SenderOptions::new(&address);
    target.name.clone_from(&args.connection.link_name);
    target.in_flight = args.max_inflight().min(MAX_IN_FLIGHT);
    if args.qos == QoS::ExactlyOnce {
        target.receiver_settles = ReceiverSettles::Second;
    }
    outage
        .beside(
            publish_all(args, &connection, target, publish),
            async || Some(Change::amqp(&events.next().await?)),
        )
        .await
}

/// Sends what the command line says, and ends the connection.
async fn publish_all(
    args: &Args,
    connection: &Connection,
    target: SenderOptions,
    publish: Publish,
) -> Result<(), Failure> {
    let failed = |error| Failure::amqp(&error);
    let session = connection.session().await.map_err(failed)?;
    let sender = session.sender(target).await.map_err(failed)?;
    let mut messages = Messages {
        sender: &sender,
        settled: args.qos == QoS::AtMostOnce,
        under_way: VecDeque::new(),
        max_under_way: args.max_inflight(),
        failure: None,
    };
    if args.stdin_line {
        let mut lines = payload::lines();
        while let Some(line) = lines.recv().await {
            let line =
                line.map_err(|error| Failure::local(format_args!("standard input: {error}")))?;
            messages
                .send(message(&publish.clone().payload(line)))
                .await?;
        }
    } else {
        let message = message(&publish);
        for number in 0..args.repeat {
            if number > 0 && !args.repeat_delay.is_zero() {
                tokio::time::sleep(args.repeat_delay).await;
            }
            messages.send(message.clone()).await?;
        }
    }
    // Before anything else is believed: the broker has let this client in, and takes messages.
    sender.attached().await.map_err(failed)?;
    while !messages.under_way.is_empty() {
        messages.settle_one().await;
    }
    let failure = messages.failure.take();
    args.connection.tell_amqp_path(connection).await;
    let ended = connection.close().await;
    match failure {
        Some(failure) => Err(failure),
        None => ended.map_err(failed),
    }
}

/// The message; the link says where it goes.
fn message(publish: &Publish) -> Message {
    let mut message = Message::from(publish);
    message.properties.to = None;
    message
}

/// The messages under way, up to a limit.
struct Messages<'a> {
    sender: &'a Sender,
    settled: bool,
    under_way: VecDeque<Sending>,
    max_under_way: usize,
    /// The first one.
    failure: Option<Failure>,
}

impl Messages<'_> {
    async fn send(&mut self, message: Message) -> Result<(), Failure> {
        while self.under_way.len() >= self.max_under_way {
            self.settle_one().await;
        }
        let sending = if self.settled {
            self.sender.send_settled(message).await
        } else {
            self.sender.send(message).await
        };
        let sending = sending.map_err(|error| Failure::amqp(&error))?;
        self.under_way.push_back(sending);
        Ok(())
    }

    async fn settle_one(&mut self) {
        let Some(sending) = self.under_way.pop_front() else {
            return;
        };
        let failure = match sending.await {
            Ok(Outcome::Accepted) => return,
            Ok(outcome) => Failure::outcome(&outcome),
            Err(error) => Failure::amqp(&error),
        };
        self.failure.get_or_insert(failure);
    }
}
