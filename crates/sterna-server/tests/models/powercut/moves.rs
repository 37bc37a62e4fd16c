//! A client of AMQP that moves messages from a queue to a topic, each in a transaction.

use std::collections::BTreeMap;

use bytes::BytesMut;
use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
use sterna_amqp::messaging::{MessageWriter, Outcome, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_amqp::transactions::{Declare, Discharge, Request};
use sterna_ledger::{Ledger, Stamp};

use crate::amqp_client::{Client, Happened, Received, in_transaction};
use crate::fixture::Broker;
use crate::powercut::amqp::{connect, has_ended};
use crate::powercut::world::{Actor, Phase, Stage};

/// The queue that it empties.
pub const QUEUE: &str = "in";
/// The topic that its messages go to.
pub const TOPIC: &str = "t/moved";
const CREDIT: u32 = 10;
/// Most messages of a transaction.
const MOST: usize = 3;
/// From this loss on, a queue holds a message back for a while, and others pass it.
const PASSED_FROM_LOSS: u32 = 2;
const DECLARES: u64 = 1;
const POSTS: u64 = 2;
const DISCHARGES: u64 = 3;

/// A connection with its links.
struct Line {
    client: Client,
    session: SessionId,
    from: LinkId,
    to: LinkId,
    coordinator: LinkId,
    /// Those of its transaction, while it does not know that they are moved.
    moving: Vec<Stamp>,
}

/// How far a transaction is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    None,
    Declared,
    Discharged,
}

struct Moves {
    line: Option<Line>,
    step: Step,
    /// How often a connection was lost with each message, at most, while the broker lived.
    losses: BTreeMap<Stamp, u32>,
}

impl Moves {
    fn attach(&mut self, stage: &mut Stage<'_>) {
        let (mut client, session) = connect(stage, "moves");
        let broker = &mut *stage.broker;
        let coordinator = client.coordinator(broker, session);
        let source = Source::new("queue/in");
        let from = client.receiver(broker, session, "in", source, CREDIT);
        // Its readers get each message once.
        let options = AttachOptions {
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target::new(TOPIC))),
            ..AttachOptions::default()
        };
        let to = client.attach(broker, session, "out", Role::Sender, &options);
        self.step = Step::None;
        self.line = Some(Line {
            client,
            session,
            from,
            to,
            coordinator,
            moving: Vec::new(),
        });
    }

    /// Goes on with its transaction; false where it gives up its connection.
    fn go_on(&mut self, stage: &mut Stage<'_>) -> bool {
        let Some(line) = &mut self.line else {
            return true;
        };
        let (client, broker) = (&mut line.client, &mut *stage.broker);
        client.turn(broker);
        let happened = std::mem::take(&mut client.happened);
        match self.step {
            Step::None if !client.received.is_empty() => {
                let mut request = BytesMut::new();
                Request::Declare(Declare { global_id: None }).encode(&mut request);
                client.send_message(broker, line.coordinator, DECLARES, &request, false, None);
                self.step = Step::Declared;
            }
            Step::None => {}
            Step::Declared => {
                let declared = happened.into_iter().find_map(|one| match one {
                    Happened::Declared(id) => Some(id),
                    _ => None,
                });
                if let Some(txn_id) = declared {
                    self.step = Step::Discharged;
                    return line.take_and_post(broker, &txn_id);
                }
            }
            Step::Discharged => {
                let outcome = happened.into_iter().find_map(|one| match one {
                    Happened::Disposed { token, state, .. } if token == DISCHARGES => state,
                    _ => None,
                });
                match outcome.as_deref() {
                    Some("accepted") => {
                        self.step = Step::None;
                        line.moving.clear();
                    }
                    // What it has taken goes back to the queue.
                    Some(_) => return false,
                    None => {}
                }
            }
        }
        let _ = (client.engine).set_credit(line.from, CREDIT, false, false, &mut client.out);
        client.turn(broker);
        true
    }
}

impl Line {
    fn take_and_post(&mut self, broker: &mut Broker, txn_id: &[u8]) -> bool {
        let client = &mut self.client;
        let count = client.received.len().min(MOST);
        let taken: Vec<_> = client.received.drain(..count).collect();
        self.moving.extend(taken.iter().filter_map(stamp_of));
        for one in &taken {
            let mut message = BytesMut::new();
            MessageWriter::new(&mut message).data(one.text().as_bytes());
            let tag = one.id.to_be_bytes();
            let transfer = OutgoingTransfer {
                state: Some(in_transaction(txn_id, None)),
                ..OutgoingTransfer::new(&tag, POSTS)
            };
            let sent =
                (client.engine).transfer(self.to, &transfer, &[&message], false, &mut client.out);
            if !sent.is_ok_and(|sent| sent.complete) {
                return false;
            }
            let accepted = in_transaction(txn_id, Some(Outcome::Accepted));
            client.dispose(broker, self.session, (one.id, one.id), &accepted, false);
        }
        let mut request = BytesMut::new();
        let fail = false;
        Request::Discharge(Discharge { txn_id, fail }).encode(&mut request);
        client.send_message(broker, self.coordinator, DISCHARGES, &request, false, None);
        true
    }
}

fn stamp_of(one: &Received) -> Option<Stamp> {
    Stamp::of(one.text().as_bytes())
}

impl Actor for Moves {
    fn name(&self) -> &'static str {
        "moves"
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
        let dies = stage.phase == Phase::Load && stage.below(60) == 0;
        if !self.go_on(stage) || dies {
            self.cut(stage.broker);
            self.lost(stage.ledger);
        }
    }

    fn lost(&mut self, ledger: &mut Ledger) {
        self.line = None;
        for (stamp, losses) in &self.losses {
            if *losses >= PASSED_FROM_LOSS {
                ledger.may_be_passed(*stamp);
            }
        }
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        let Some(line) = &mut self.line else {
            return false;
        };
        let is_open = !broker.is_closed(line.client.peer);
        // The broker may have sent more than it has read.
        if is_open {
            line.client.turn(broker);
            broker.cut(line.client.peer);
        } else {
            line.client.read(broker);
        }
        let unread = line.client.received.iter().filter_map(stamp_of);
        for stamp in unread.chain(line.moving.drain(..)) {
            *self.losses.entry(stamp).or_default() += 1;
        }
        is_open
    }

    fn is_idle(&self) -> bool {
        let line = self.line.as_ref();
        line.is_some_and(|line| line.client.received.is_empty()) && self.step == Step::None
    }
}

/// The mover.
pub fn enter(actors: &mut Vec<Box<dyn Actor>>) {
    actors.push(Box::new(Moves {
        line: None,
        step: Step::None,
        losses: BTreeMap::new(),
    }));
}
