//! `sterna request` over AMQP.

use sterna_client::amqp::{
    Connection, Delivery, Error, Message, Outcome, ReceiverOptions, ReceiverSettles, SenderOptions,
    Value,
};
use sterna_client::{Publish, QoS};

use super::{Args, random_name};
use crate::commands::connection::{AmqpSettings, amqp};
use crate::commands::exit::{self, Failure};
use crate::commands::outage::Change;
use crate::commands::subscribe::until;
use crate::commands::{output, signals};

/// Sends the request and prints the answers. They come to a node that the broker makes for this
/// client, or to the one that -e names.
pub(super) async fn request(args: &Args) -> Result<(), Failure> {
    amqp::refuse(&[
        ("-c", args.connection.durable().is_some()),
        ("--link-name", args.connection.link_name.is_some()),
    ])?;
    let AmqpSettings {
        options,
        properties,
        address,
    } = args.connection.amqp(&["publish"])?;
    let address = amqp::address(args.topic.as_ref(), address)?;
    if !args.payload.is_given() {
        return Err(Failure::local("no request: give one of -m, -f, -n and -s"));
    }
    let correlation = match &args.correlation {
        Some(text) => text.clone(),
        None => random_name()?,
    };
    let publish = Publish::new(&address, args.payload.read()?)
        .map_err(|error| Failure::local(format_args!("-t: {error}")))?
        .qos(args.qos);
    let mut message = Message::from(&properties.publish(publish)?);
    message.properties.to = None;
    message.properties.correlation_id = Some(Value::from(correlation.as_str()));
    let outage = args.connection.outage(&options.url);
    let (connection, mut events) = Connection::start(options).map_err(Failure::local)?;
    let exchange = Exchange {
        args,
        address: &address,
        correlation: &correlation,
    };
    let result = outage
        .beside(
            Box::pin(signals::or_end(exchange.run(&connection, message))),
            async || Some(Change::amqp(&events.next().await?)),
        )
        .await;
    if !is_connected(&connection).await {
        // There is nothing to end in order, and the client may still try to connect.
        return result;
    }
    args.connection.tell_amqp_path(&connection).await;
    match connection.close().await {
        Err(Error::Ended) | Ok(()) => result,
        Err(error) => result.and_then(|()| Err(Failure::amqp(&error))),
    }
}

/// Whether there is a connection at this moment.
async fn is_connected(connection: &Connection) -> bool {
    tokio::select! {
        biased;
        connected = connection.connected() => connected.is_ok(),
        () = std::future::ready(()) => false,
    }
}

struct Exchange<'a> {
    args: &'a Args,
    address: &'a str,
    correlation: &'a str,
}

impl Exchange<'_> {
    async fn run(&self, connection: &Connection, mut message: Message) -> Result<(), Failure> {
        let failed = |error| Failure::amqp(&error);
        let args = self.args;
        let session = connection.session().await.map_err(failed)?;
        let mut answers = match &args.response_topic {
            Some(address) => ReceiverOptions::new(address),
            None => ReceiverOptions::dynamic(),
        };
        let mut requests = SenderOptions::new(self.address);
        if args.qos == QoS::ExactlyOnce {
            answers.receiver_settles = ReceiverSettles::Second;
            requests.receiver_settles = ReceiverSettles::Second;
        }
        let mut receiver = session.receiver(answers).await.map_err(failed)?;
        let sender = session.sender(requests).await.map_err(failed)?;
        // The request carries the address of the answer, which the broker has to say first.
        let info = receiver.attached().await.map_err(failed)?;
        let reply_to = args.response_topic.clone().or_else(|| info.address.clone());
        let reply_to = reply_to.ok_or_else(|| {
            Failure::new(exit::REFUSED, "the broker names no address for answers")
        })?;
        message.properties.reply_to = Some(reply_to.clone());
        let deadline = Some(tokio::time::Instant::now() + args.timeout);
        let mut sent = false;
        let asking = async {
            if args.qos == QoS::AtMostOnce {
                return sender.send_settled(message).await?.await;
            }
            sender.deliver(message).await
        };
        tokio::pin!(asking);
        let mut responses = 0;
        loop {
            tokio::select! {
                delivery = receiver.next() => {
                    if self.print(delivery.map_err(failed)?, &reply_to).await? {
                        responses += 1;
                        if responses >= args.count {
                            return Ok(());
                        }
                    }
                }
                outcome = &mut asking, if !sent => {
                    sent = true;
                    match outcome.map_err(failed)? {
                        Outcome::Accepted => {}
                        outcome => return Err(Failure::outcome(&outcome)),
                    }
                }
                () = until(deadline) => {
                    return Err(Failure::new(exit::TIMEOUT, "no response in time"));
                }
            }
        }
    }

    /// Prints a delivery if it is an answer.
    async fn print(&self, delivery: Delivery, address: &str) -> Result<bool, Failure> {
        let message = delivery
            .to_mqtt(address)
            .map_err(|error| Failure::amqp(&error))?;
        let is_answer =
            message.properties().correlation_data() == Some(self.correlation.as_bytes());
        if is_answer {
            let mut out = Vec::new();
            self.args.output.write(&message, &mut out)?;
            output::print(&out)?;
        }
        // A loss of the connection has no effect here: the answer is printed.
        let _ = delivery.accept().await;
        Ok(is_answer)
    }
}
