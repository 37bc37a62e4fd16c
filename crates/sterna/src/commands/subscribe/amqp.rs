//! `sterna sub` over AMQP.

use sterna_client::amqp::{
    Connection, Credit, Delivery, Durability, Error, Event, ExpiryPolicy, Outcome, Receiver,
    ReceiverOptions, ReceiverSettles, SenderSettles, Settlement,
};
use sterna_client::{QoS, topic};
use tokio::sync::mpsc;

use super::{Args, Next, is_drawn, signal, until};
use crate::commands::connection::{AmqpSettings, amqp};
use crate::commands::exit::{self, Failure};
use crate::commands::outage::Change;
use crate::commands::{output, signals};

/// Deliveries that wait to be printed, besides those that the links' windows hold.
const QUEUED_DELIVERIES: usize = 64;

/// Messages that may be on their way or wait to be printed.
const CREDIT: u32 = 256;

/// A delivery or error of one of the links.
type Arrived = (usize, Result<Delivery, Error>);

/// Prints what the command line asks for.
pub(super) async fn subscribe(args: &Args) -> Result<(), Failure> {
    amqp::refuse(&[
        ("-U", !args.unsubscribe.is_empty()),
        ("--remove-retained", args.remove_retained),
        ("--retain-as-published", args.retain_as_published),
        ("--retain-handling", args.retain_handling.is_some()),
        (
            "--subscription-identifier",
            args.subscription_identifier.is_some(),
        ),
    ])?;
    let AmqpSettings {
        options, address, ..
    } = args.connection.amqp(&[])?;
    let mut addresses = args.topics.clone();
    addresses.extend(address);
    if addresses.is_empty() {
        return Err(Failure::local(
            "no address: give one with -t or as the path of the URL",
        ));
    }
    let links = links(args, &addresses)?;
    let mut outage = args.connection.outage(&options.url);
    let (connection, mut events) = Connection::start(options).map_err(Failure::local)?;
    let failed = |error| Failure::amqp(&error);
    let session = connection.session().await.map_err(failed)?;
    let (sender, mut arrived) = mpsc::channel(QUEUED_DELIVERIES);
    let (attached, mut answers) = mpsc::channel(addresses.len());
    let mut grants = Vec::new();
    for (number, link) in links.into_iter().enumerate() {
        let receiver = session.receiver(link).await.map_err(failed)?;
        let (grant, granted) = mpsc::unbounded_channel();
        grants.push(Grant { given: 0, grant });
        tokio::spawn(forward(
            receiver,
            number,
            sender.clone(),
            attached.clone(),
            granted,
        ));
    }
    drop((sender, attached));
    let mut printer = Printer {
        args,
        addresses: &addresses,
        attached: 0,
        refused: 0,
        printed: 0,
        out: Vec::new(),
        settling: Vec::new(),
        grants,
    };
    for number in 0..addresses.len() {
        printer.give_credit(number);
    }
    let mut signals = signals::listen();
    let mut signals_alive = true;
    let mut deadline = None;
    let mut events_alive = true;
    let result = loop {
        tokio::select! {
            // Rare events first. The connection's end explains more than the links', and a signal may come before its
            // beginning was heard of.
            biased;
            () = until(deadline), if deadline.is_some() => {
                break Err(Failure::new(exit::TIMEOUT, "time ran out"));
            }
            event = events.next(), if events_alive => {
                let Some(event) = event else {
                    events_alive = false;
                    continue;
                };
                if matches!(event, Event::Connected(_)) && deadline.is_none() {
                    let now = tokio::time::Instant::now();
                    deadline = args.timeout.map(|timeout| now + timeout);
                }
                if let Err(failure) = outage.note(Change::amqp(&event)) {
                    printer.take_rest(&mut arrived).await;
                    break Err(failure);
                }
            }
            word = signal(&mut signals), if signals_alive => {
                if word && !outage.was_connected() {
                    break Err(Failure::unconnected());
                }
                if word {
                    break Ok(());
                }
                signals_alive = false;
            }
            Some(answer) = answers.recv() => match printer.answer(answer) {
                Ok(Next::GoOn) => {}
                Ok(Next::End) => break Ok(()),
                Err(failure) => break Err(failure),
            },
            one = arrived.recv() => {
                let Some(one) = one else { break Ok(()) };
                match printer.take(&mut arrived, one) {
                    Ok(Next::GoOn) => {}
                    Ok(Next::End) => break Ok(()),
                    Err(failure) => {
                        // Messages of other links may have come already.
                        while let Ok(one) = arrived.try_recv() {
                            let _ = printer.take(&mut arrived, one);
                        }
                        break Err(failure);
                    }
                }
            }
        }
    };
    let result = outage.judge(result);
    if !outage.was_connected() {
        // There is nothing to end in order, and the client may still try to connect.
        return result;
    }
    // Printed messages are settled before the connection ends. The others come again to a
    // subscription that outlives it.
    for settlement in printer.settling {
        let _ = settlement.await;
    }
    args.connection.tell_amqp_path(&connection).await;
    match connection.close().await {
        // A signal while there was no connection to end, or an error that is told already.
        Err(Error::Ended) | Ok(()) => result,
        Err(error) => result.and_then(|()| Err(Failure::amqp(&error))),
    }
}

/// The links that the command line asks for.
fn links(args: &Args, addresses: &[String]) -> Result<Vec<ReceiverOptions>, Failure> {
    if let Some(wrong) = args
        .filter_out
        .iter()
        .find(|filter| topic::check_filter(filter).is_err())
    {
        return Err(Failure::local(format_args!(
            "-T {wrong}: not a topic filter"
        )));
    }
    if args.connection.link_name.is_some() && addresses.len() > 1 {
        return Err(Failure::local("--link-name: there are several addresses"));
    }
    let durable = args.connection.durable();
    let links = addresses.iter().map(|address| {
        let mut link = ReceiverOptions::new(address);
        link.name.clone_from(&args.connection.link_name);
        if let Some(seconds) = durable {
            let name = link.name.take().unwrap_or_else(|| address.clone());
            link = link.durable(name);
            if seconds != u32::MAX {
                link.durability = Durability::UnsettledState;
                link.expiry_policy = ExpiryPolicy::ConnectionClose;
                link.timeout_s = seconds;
            }
        }
        link.sender_settles = match args.qos {
            // A queue must not lose what was not printed, and any address may be one.
            None => SenderSettles::Unsettled,
            Some(QoS::AtMostOnce) => SenderSettles::Settled,
            Some(_) => SenderSettles::Mixed,
        };
        if args.qos == Some(QoS::ExactlyOnce) {
            link.receiver_settles = ReceiverSettles::Second;
        }
        link.selector.clone_from(&args.selector);
        link.no_local = args.no_local;
        link.capabilities.clone_from(&args.capability);
        link.credit = if args.count.is_some() {
            // A window would be filled again behind the last message that is wanted.
            Credit::Manual
        } else {
            Credit::Window(args.credit.unwrap_or(CREDIT))
        };
        link
    });
    Ok(links.collect())
}

/// Hands on what comes by a link.
async fn forward(
    mut receiver: Receiver,
    number: usize,
    arrived: mpsc::Sender<Arrived>,
    attached: mpsc::Sender<(usize, Result<Vec<String>, Error>)>,
    mut granted: mpsc::UnboundedReceiver<u32>,
) {
    let answer = receiver.attached().await;
    let refused = answer.is_err();
    let filters = answer.map(|info| info.filters.clone());
    if attached.send((number, filters)).await.is_err() || refused {
        return;
    }
    loop {
        let delivery = tokio::select! {
            delivery = receiver.next() => delivery,
            Some(add) = granted.recv() => {
                // That the client has ended the next delivery tells.
                let _ = receiver.add_credit(add);
                continue;
            }
        };
        let end = delivery.is_err();
        if arrived.send((number, delivery)).await.is_err() || end {
            return;
        }
    }
}

/// The credit of a link where `-C` bounds it.
struct Grant {
    /// Given, without what has been taken by messages that were handled.
    given: u64,
    grant: mpsc::UnboundedSender<u32>,
}

struct Printer<'a> {
    args: &'a Args,
    addresses: &'a [String],
    /// Links that the broker has answered for.
    attached: usize,
    refused: usize,
    printed: u64,
    out: Vec<u8>,
    settling: Vec<Settlement>,
    /// For each link.
    grants: Vec<Grant>,
}

impl Printer<'_> {
    /// The broker has answered for a link: an error when every link was refused, a warning for each
    /// that was.
    fn answer(&mut self, answer: (usize, Result<Vec<String>, Error>)) -> Result<Next, Failure> {
        let (number, answer) = answer;
        let address = &self.addresses[number];
        self.attached += 1;
        match answer {
            Ok(filters) => {
                let has = |name: &str| filters.iter().any(|filter| filter == name);
                if self.args.selector.is_some() && !has("jms-selector") {
                    let text = format!("{address}: the broker does not apply the selector");
                    return Err(Failure::new(exit::REFUSED, text));
                }
                if self.args.no_local && !has("no-local") {
                    let text = format!("{address}: the broker does not apply --no-local");
                    return Err(Failure::new(exit::REFUSED, text));
                }
            }
            Err(error) => {
                self.refused += 1;
                if self.refused == self.addresses.len() {
                    return Err(Failure::amqp(&error));
                }
                self.say(&format!("Warning: {address}: {error}"));
            }
        }
        if self.args.exit_after_subscribe && self.attached == self.addresses.len() {
            return Ok(Next::End);
        }
        Ok(Next::GoOn)
    }

    /// Handles a delivery and those that have come with it, and prints them in one go.
    fn take(
        &mut self,
        arrived: &mut mpsc::Receiver<Arrived>,
        first: Arrived,
    ) -> Result<Next, Failure> {
        let mut next = Some(first);
        let mut settled = Vec::new();
        let mut end = Ok(Next::GoOn);
        while let Some((number, delivery)) = next.take() {
            match delivery {
                Ok(delivery) => match self.delivery(number, &delivery) {
                    // Unsettled, it goes back to its queue.
                    None => end = Ok(Next::End),
                    Some((outcome, and_then)) => {
                        end = Ok(and_then);
                        settled.push((delivery, outcome));
                    }
                },
                Err(error) => end = Err(Failure::amqp(&error)),
            }
            let grant = &mut self.grants[number];
            grant.given = grant.given.saturating_sub(1);
            self.give_credit(number);
            if matches!(end, Ok(Next::GoOn)) && settled.len() < 256 {
                next = arrived.try_recv().ok();
            }
        }
        // Messages that came before a failure are printed all the same.
        let out = std::mem::take(&mut self.out);
        if !out.is_empty() {
            output::print(&out)?;
        }
        for (delivery, outcome) in settled {
            // They have left this process.
            let settlement = delivery.settle(&outcome);
            if !matches!(end, Ok(Next::GoOn)) {
                self.settling.push(settlement);
            }
        }
        end
    }

    /// Prints what came before the connection ended for good. All links end with it.
    async fn take_rest(&mut self, arrived: &mut mpsc::Receiver<Arrived>) {
        while let Some(one) = arrived.recv().await {
            if matches!(self.take(arrived, one), Ok(Next::End)) {
                return;
            }
        }
    }

    /// Prints a delivery: its outcome, and whether to go on. `None` if the command ends before it.
    fn delivery(&mut self, number: usize, delivery: &Delivery) -> Option<(Outcome, Next)> {
        let args = self.args;
        let message = match delivery.to_mqtt(&self.addresses[number]) {
            Ok(message) => message,
            Err(error) => {
                self.say(&format!("Error: {error}"));
                // Released it would come again at once. The queue may have a place for it.
                return Some((Outcome::Rejected(None), Next::GoOn));
            }
        };
        if args.ends_before(&message) {
            return None;
        }
        let left_out = args
            .filter_out
            .iter()
            .any(|filter| topic::matches(filter, message.topic()));
        if left_out || (args.no_retained && message.retain()) || !is_drawn(args.random_filter) {
            return Some((Outcome::Accepted, Next::GoOn));
        }
        if let Err(error) = args.output.write(&message, &mut self.out) {
            self.say(&format!("Error: {error}"));
        }
        self.printed += 1;
        let is_last = args.count.is_some_and(|count| self.printed >= count);
        let next = if is_last { Next::End } else { Next::GoOn };
        Some((Outcome::Accepted, next))
    }

    /// Lets a link send what `-C` still wants, as far as the window allows. Messages of a queue that
    /// come beyond that would be lost to `-q 0`.
    fn give_credit(&mut self, number: usize) {
        let Some(count) = self.args.count else {
            return;
        };
        let window = u64::from(self.args.credit.unwrap_or(CREDIT));
        let wanted = window.min(count.saturating_sub(self.printed));
        let grant = &mut self.grants[number];
        let add = wanted.saturating_sub(grant.given);
        // Half of it at a time, so that not every message costs a flow.
        if add > 0 && add >= wanted.div_ceil(2) {
            grant.given += add;
            // A link that has ended takes no more.
            let _ = grant.grant.send(u32::try_from(add).unwrap_or(u32::MAX));
        }
    }

    fn say(&self, text: &str) {
        if !self.args.connection.quiet {
            exit::tell(format_args!("sterna: {text}"));
        }
    }
}
