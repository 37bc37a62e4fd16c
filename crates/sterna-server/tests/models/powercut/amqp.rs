//! Clients of AMQP.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;
use sterna_amqp::Event;
use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Recovery, Unsettled};
use sterna_amqp::messaging::{
    DeliveryState, MessageWriter, Source, Target, TargetArchetype, TerminusDurability,
    TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_ledger::{Ledger, Protocol, PublisherId, ReaderId, Reading, Sending, Stamp};
use sterna_net::TransportKind;

use crate::amqp_client::{Client, Happened, Start};
use crate::fixture::Broker;
use crate::powercut::world::{Actor, Phase, Stage};

const WINDOW: usize = 4;
const CREDIT: u32 = 1_000;
const FILTER: &str = "t/#";

/// A connection with its one link.
struct Line {
    client: Client,
    session: SessionId,
    link: LinkId,
}

pub fn connect(stage: &mut Stage<'_>, container: &str) -> (Client, SessionId) {
    let quic = stage.below(3) == 0;
    let transport = if quic {
        TransportKind::Quic
    } else {
        TransportKind::Tcp
    };
    let start = Start::new(container).on(stage.shard()).over(transport);
    let mut client = Client::start(stage.broker, start);
    let session = client.begin(stage.broker);
    (client, session)
}

/// Ends the transport at the client alone; what was unsettled of its links.
fn lose(client: &mut Client) -> Vec<Unsettled> {
    client.engine.transport_closed();
    let mut left = Vec::new();
    while let Some(event) = client.engine.next_event() {
        if let Event::Detached { unsettled, .. } = event {
            left.extend(unsettled);
        }
    }
    left
}

/// Whether the broker has ended a link of a client, or what is below it.
pub fn has_ended(client: &Client, broker: &Broker) -> bool {
    let ends = |one: &Happened| {
        matches!(
            one,
            Happened::Detached { .. } | Happened::Ended(_) | Happened::Closed(_)
        )
    };
    broker.is_closed(client.peer) || client.happened.iter().any(ends)
}

/// Publishes, with or without a memory of what it sent.
struct Sends {
    name: &'static str,
    is_exact: bool,
    publisher: PublisherId,
    line: Option<Line>,
    /// Stamps of what is not settled, by token.
    open: BTreeMap<u64, Stamp>,
    left: Vec<Unsettled>,
    /// Tokens of what is to be sent (again), in order.
    again: BTreeSet<u64>,
    /// A link was attached and its answer is here.
    is_attached: bool,
}

impl Sends {
    fn attach(&mut self, stage: &mut Stage<'_>) {
        let (mut client, session) = connect(stage, self.name);
        let topic = self.topic();
        let target = Target::new(&topic);
        let options = if self.is_exact {
            AttachOptions {
                rcv_settle_mode: ReceiverSettleMode::Second,
                source: Some(Source::default()),
                target: Some(TargetArchetype::Target(Target {
                    durable: TerminusDurability::UnsettledState,
                    ..target
                })),
                recover: true,
                unsettled: &self.left,
                ..AttachOptions::default()
            }
        } else {
            AttachOptions {
                source: Some(Source::default()),
                target: Some(TargetArchetype::Target(target)),
                ..AttachOptions::default()
            }
        };
        let link = client.attach(stage.broker, session, "out", Role::Sender, &options);
        self.line = Some(Line {
            client,
            session,
            link,
        });
        self.is_attached = false;
    }

    fn topic(&self) -> String {
        format!("t/{}", self.name)
    }

    fn transfer(&mut self, broker: &mut Broker, token: u64, resume: bool) -> bool {
        let Some(line) = &mut self.line else {
            return false;
        };
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message).data(&self.open[&token].payload());
        let tag = token.to_be_bytes();
        let transfer = OutgoingTransfer {
            resume,
            ..OutgoingTransfer::new(&tag, token)
        };
        let client = &mut line.client;
        let sent =
            (client.engine).transfer(line.link, &transfer, &[&message], false, &mut client.out);
        let is_sent = sent.is_ok_and(|sent| sent.complete);
        client.turn(broker);
        is_sent
    }

    fn read(&mut self, stage: &mut Stage<'_>) {
        let Some(line) = &mut self.line else { return };
        line.client.turn(stage.broker);
        self.is_attached |= line.client.answers.contains_key(&line.link);
        let recovered = std::mem::take(&mut line.client.recovered);
        let mut resumes = Vec::new();
        for (_, delivery, recovery) in recovered {
            let token = delivery.token;
            match recovery {
                Recovery::Resend => drop(self.again.insert(token)),
                Recovery::Resume(_) => resumes.push(token),
                Recovery::Settle(outcome) => {
                    let tag = token.to_be_bytes();
                    let transfer = OutgoingTransfer {
                        resume: true,
                        settled: true,
                        state: Some(outcome.view()),
                        ..OutgoingTransfer::new(&tag, token)
                    };
                    let client = &mut line.client;
                    let _ =
                        client
                            .engine
                            .transfer(line.link, &transfer, &[], false, &mut client.out);
                    client.turn(stage.broker);
                    stage
                        .ledger
                        .acknowledged(self.open.remove(&token).expect("open"));
                }
                Recovery::Settled(_) => {
                    stage
                        .ledger
                        .acknowledged(self.open.remove(&token).expect("open"));
                }
                Recovery::Abort | Recovery::Resumed { .. } | Recovery::Wait => {}
            }
        }
        let mut settles = Vec::new();
        line.client.happened.retain(|one| match one {
            Happened::Disposed {
                id,
                token,
                state,
                settled,
                ..
            } => {
                let stamp = self.open.remove(token).expect("open");
                match state.as_deref() {
                    Some("accepted") => stage.ledger.acknowledged(stamp),
                    _ => stage.ledger.doubtful(stamp),
                }
                if !settled {
                    settles.push(*id);
                }
                false
            }
            _ => true,
        });
        for id in settles {
            let client = &mut line.client;
            let _ = client
                .engine
                .settle(line.session, (id, id), None, &mut client.out);
        }
        line.client.turn(stage.broker);
        for token in resumes {
            if !self.transfer(stage.broker, token, true) {
                self.again.insert(token);
            }
        }
    }
}

impl Actor for Sends {
    fn name(&self) -> &'static str {
        self.name
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        if let Some(line) = &self.line
            && has_ended(&line.client, stage.broker)
        {
            self.cut(stage.broker);
            self.lost(stage.ledger);
        }
        if self.line.is_none() {
            return self.attach(stage);
        }
        self.read(stage);
        if !self.is_attached {
            return;
        }
        while let Some(token) = self.again.first().copied() {
            if self.open.contains_key(&token) && !self.transfer(stage.broker, token, false) {
                return;
            }
            self.again.remove(&token);
        }
        if stage.phase == Phase::Load && self.open.len() < WINDOW {
            let stamp = stage.ledger.send(self.publisher, &self.topic());
            let token = u64::from(stamp.sequence);
            self.open.insert(token, stamp);
            if !self.transfer(stage.broker, token, false) {
                self.again.insert(token);
            }
        }
    }

    fn lost(&mut self, ledger: &mut Ledger) {
        let Some(mut line) = self.line.take() else {
            return;
        };
        let left = lose(&mut line.client);
        if !self.is_exact {
            for stamp in std::mem::take(&mut self.open).into_values() {
                ledger.doubtful(stamp);
            }
            self.again.clear();
        } else if self.is_attached {
            // What waits to be sent again is unsettled no more for the engine.
            self.left = left;
        } else {
            let known: BTreeSet<u64> = left.iter().map(|one| one.token).collect();
            self.left.retain(|one| !known.contains(&one.token));
            self.left.extend(left);
        }
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        let Some(line) = self
            .line
            .as_ref()
            .filter(|line| !broker.is_closed(line.client.peer))
        else {
            return false;
        };
        broker.cut(line.client.peer);
        true
    }

    fn is_idle(&self) -> bool {
        self.line.is_some() && self.open.is_empty()
    }
}

/// What a receiver reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Topic,
    TopicExactly,
    Queue,
}

struct Receives {
    name: &'static str,
    from: From,
    reader: ReaderId,
    line: Option<Line>,
    left: Vec<Unsettled>,
    /// Tags that were accepted and are not settled, with their payloads.
    taken: BTreeMap<Vec<u8>, String>,
}

impl Receives {
    fn attach(&mut self, stage: &mut Stage<'_>) {
        let (mut client, session) = connect(stage, self.name);
        let durable = Source {
            durable: TerminusDurability::UnsettledState,
            expiry_policy: TerminusExpiryPolicy::Never,
            ..Source::new(FILTER)
        };
        let target = Some(TargetArchetype::Target(Target::default()));
        let options = match self.from {
            From::Topic => AttachOptions {
                source: Some(durable),
                target,
                ..AttachOptions::default()
            },
            From::TopicExactly => AttachOptions {
                rcv_settle_mode: ReceiverSettleMode::Second,
                source: Some(durable),
                target,
                recover: true,
                unsettled: &self.left,
                ..AttachOptions::default()
            },
            From::Queue => AttachOptions {
                source: Some(Source::new("queue/q")),
                target,
                ..AttachOptions::default()
            },
        };
        let link = client.attach(stage.broker, session, "in", Role::Receiver, &options);
        client.credit(stage.broker, link, CREDIT);
        stage.ledger.asks(self.reader, FILTER);
        self.line = Some(Line {
            client,
            session,
            link,
        });
    }
}

impl Actor for Receives {
    fn name(&self) -> &'static str {
        self.name
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        if let Some(line) = &self.line
            && has_ended(&line.client, stage.broker)
        {
            self.cut(stage.broker);
            self.lost(stage.ledger);
        }
        if self.line.is_none() {
            return self.attach(stage);
        }
        let Some(line) = &mut self.line else { return };
        let client = &mut line.client;
        client.turn(stage.broker);
        let is_exact = self.from == From::TopicExactly;
        let answer = client.answers.get(&line.link);
        if answer.is_some_and(|answer| !answer.refused)
            && !stage.ledger.is_granted(self.reader, FILTER)
        {
            stage.ledger.granted(self.reader, FILTER);
        }
        // What the broker has settled will not be told again.
        let settled = |one: &Happened| matches!(one, Happened::Disposed { settled: true, .. });
        let received = std::mem::take(&mut client.received);
        if is_exact {
            for one in &client.happened {
                if let Happened::Recovered(tag, recovery) = one
                    && recovery.starts_with("Settled")
                    && let Some(payload) = self.taken.remove(tag)
                {
                    stage.ledger.told_again(self.reader, payload.as_bytes());
                }
            }
        }
        client.happened.retain(|one| !settled(one));
        client.recovered.clear();
        for one in &received {
            if one.payload.is_empty() {
                continue;
            }
            let payload = one.text();
            if self.taken.contains_key(&one.tag) {
                stage.ledger.told_again(self.reader, payload.as_bytes());
            } else {
                (stage.ledger).received(self.reader, None, payload.as_bytes());
                if is_exact {
                    self.taken.insert(one.tag.clone(), payload);
                }
            }
        }
        let dies = stage.phase == Phase::Load && stage.below(60) == 0;
        if dies && !is_exact {
            self.cut(stage.broker);
            return self.lost(stage.ledger);
        }
        for one in received.iter().filter(|one| !one.settled) {
            let accepted = DeliveryState::ACCEPTED;
            let range = (one.id, one.id);
            let _ = client.engine.dispose(
                line.session,
                range,
                Some(&accepted),
                !is_exact,
                &mut client.out,
            );
        }
        client.turn(stage.broker);
        let _ = client
            .engine
            .set_credit(line.link, CREDIT, false, false, &mut client.out);
        client.turn(stage.broker);
        if self.taken.len() > 2_000 {
            // Long settled: only the newest can come again.
            self.taken.pop_first();
        }
    }

    fn lost(&mut self, _: &mut Ledger) {
        if let Some(mut line) = self.line.take() {
            let has_answer = line.client.answers.contains_key(&line.link);
            let left = lose(&mut line.client);
            if self.from == From::TopicExactly && has_answer {
                self.left = left;
                // A client forgets a tag when both ends have settled it.
                let open: BTreeSet<&[u8]> =
                    self.left.iter().map(|one| one.tag.as_bytes()).collect();
                self.taken.retain(|tag, _| open.contains(tag.as_slice()));
            }
        }
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        let Some(line) = self
            .line
            .as_ref()
            .filter(|line| !broker.is_closed(line.client.peer))
        else {
            return false;
        };
        broker.cut(line.client.peer);
        true
    }

    fn is_idle(&self) -> bool {
        self.line.is_some()
    }
}

/// Senders and receivers.
pub fn enter(ledger: &mut Ledger, actors: &mut Vec<Box<dyn Actor>>) {
    let protocol = Protocol::Amqp;
    for (name, is_exact) in [("amqp", false), ("amqp-exact", true)] {
        let sending = Sending { protocol, is_exact };
        actors.push(Box::new(Sends {
            name,
            is_exact,
            publisher: ledger.publisher(name, sending),
            line: None,
            open: BTreeMap::new(),
            left: Vec::new(),
            again: BTreeSet::new(),
            is_attached: false,
        }));
    }
    let reading = |is_exact, is_ordered| Reading {
        protocol,
        is_exact,
        is_ordered,
    };
    let queue = ledger.reader("queue", reading(false, false));
    for (name, from) in [
        ("amqp-reads", From::Topic),
        ("amqp-reads-exact", From::TopicExactly),
        ("queue-1", From::Queue),
        ("queue-2", From::Queue),
    ] {
        let reader = match from {
            From::Queue => queue,
            _ => ledger.reader(name, reading(from == From::TopicExactly, true)),
        };
        actors.push(Box::new(Receives {
            name,
            from,
            reader,
            line: None,
            left: Vec::new(),
            taken: BTreeMap::new(),
        }));
    }
}
