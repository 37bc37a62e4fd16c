//! The same for AMQP: what it costs to connect and to send the first messages.

use std::time::Duration;

use sterna_client::amqp::{
    self, Connection, Event, Events, Message, Outcome, Receiver, ReceiverOptions, SenderOptions,
};
use tokio::time::Instant;

use super::path::Path;
use super::{
    Args, Measurable, Measured, PATIENCE, TICKET_PAUSE, measure_ways, own_broker, print_head, ways,
};
use crate::commands::connection::AmqpSettings;
use crate::commands::exit::Failure;

/// Measures every way to the broker that the command line names, or to one in this process.
pub(super) async fn handshake(args: &Args) -> Result<(), Failure> {
    let one_way = Duration::from_millis(args.delay.max(1));
    let mut targets = Vec::new();
    let own = if args.amqp {
        let (server, urls, fingerprint) = own_broker(["amqp", "amqps", "amqp+quic"])?;
        for url in urls {
            let mut target = amqp::Options::new(url);
            target.tls.fingerprints = vec![fingerprint];
            targets.push(target);
        }
        Some(server)
    } else {
        let AmqpSettings { options, .. } = args.connection.amqp(&[])?;
        targets.push(options);
        None
    };
    print_head(args, ["open", "accepted"])?;
    let mut result = Ok(());
    for options in targets {
        let ways = ways(options.url.scheme())?;
        result = result.and(measure_ways(args, &options, ways, one_way).await);
    }
    if let Some(server) = own {
        server.shutdown();
    }
    result
}

/// A receiver without delay, which shows when the broker has a message.
pub(super) struct Watcher {
    connection: Connection,
    receiver: Receiver,
    address: String,
}

impl Watcher {
    async fn start(options: &amqp::Options) -> Result<Self, Failure> {
        let mut options = options.clone();
        // Its tickets are not used by the measured connections.
        options.tls.resumption = false;
        let address = format!("sterna/handshake/{}", options.container_id);
        options.container_id.push_str("-watcher");
        let failed = |error| Failure::amqp(&error);
        let connection = Connection::open(options).await.map_err(failed)?;
        let session = connection.session().await.map_err(failed)?;
        let source = ReceiverOptions::new(&address);
        let receiver = session.receiver(source).await.map_err(failed)?;
        receiver.attached().await.map_err(failed)?;
        Ok(Self {
            connection,
            receiver,
            address,
        })
    }

    /// Takes this number of messages, and returns the time of the first one.
    async fn take(&mut self, messages: u32) -> Option<Instant> {
        let mut first = None;
        for _ in 0..messages {
            let delivery = tokio::time::timeout(PATIENCE, self.receiver.next()).await;
            let delivery = delivery.ok()?.ok()?;
            first.get_or_insert_with(Instant::now);
            // Whether the decision stands is no matter: each message is counted once.
            drop(delivery.accept());
        }
        first
    }
}

impl Measurable for amqp::Options {
    type Watcher = Watcher;

    async fn watch(&self) -> Result<Watcher, Failure> {
        Watcher::start(self).await
    }

    async fn dismiss(watcher: Watcher) {
        watcher.connection.close().await.ok();
    }

    async fn measure(
        &self,
        args: &Args,
        path: &Path,
        watcher: &mut Watcher,
        one_way: Duration,
    ) -> Result<Measured, Failure> {
        let failed = |error| Failure::amqp(&error);
        path.start().await;
        let message = Message::data(vec![b'x'; args.bytes as usize]);
        let (connection, events) = Connection::start(self.clone()).map_err(failed)?;
        let target = SenderOptions::new(&watcher.address);
        let sending = async {
            let session = connection.session().await?;
            let sender = session.sender(target).await?;
            let mut under_way = Vec::new();
            for _ in 0..args.messages {
                under_way.push(sender.send(message.clone()).await?);
            }
            for sending in under_way {
                let outcome = sending.await?;
                if outcome != Outcome::Accepted {
                    return Ok(Err(outcome));
                }
            }
            Ok(Ok((Instant::now(), path.take())))
        };
        let (sent, connected, arrived) =
            tokio::join!(sending, opened(events), watcher.take(args.messages));
        let connected = connected.map_err(failed)?;
        let sent: Result<_, amqp::Error> = sent;
        let (acknowledged, passed) = sent
            .map_err(failed)?
            .map_err(|outcome| Failure::outcome(&outcome))?;
        let arrived =
            arrived.ok_or_else(|| Failure::local("the broker accepted and did not deliver"))?;
        let started = passed.started.unwrap_or(acknowledged);
        tokio::time::sleep(2 * one_way + TICKET_PAUSE).await;
        let early_data = connection.connected().await.map_err(failed)?.early_data;
        connection.close().await.map_err(failed)?;
        Ok(Measured {
            at_broker: arrived.duration_since(started),
            connected: connected.duration_since(started),
            acknowledged: acknowledged.duration_since(started),
            passed,
            early_data,
        })
    }
}

/// When the broker's open came.
async fn opened(mut events: Events) -> Result<Instant, amqp::Error> {
    match events.next().await {
        Some(Event::Connected(_)) => Ok(Instant::now()),
        Some(Event::Disconnected { error, .. }) => Err(error),
        _ => Err(amqp::Error::Ended),
    }
}
