//! What clients do.

use bytes::BytesMut;
use sterna_amqp::connection::LinkId;
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Recovery};
use sterna_amqp::messaging::{
    DeliveryState, MessageWriter, Modified, Outcome, Properties, Rejected, Target, TargetArchetype,
    TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{ReceiverSettleMode, SenderSettleMode};
use sterna_amqp::types::{Encoded, Value};

use crate::amqp_model::events::{Cause, Resumption};
use crate::amqp_model::links::{End, Held, Link, Receiver, Sender, Stage};
use crate::amqp_model::model::{Message, Mode};
use crate::amqp_model::transactions::in_transaction;
use crate::amqp_model::world::{QUEUES, World};

const TOPICS: [&str; 4] = ["t/a/temp", "t/a/alarm", "t/b/alarm", "u"];
const FILTERS: [&str; 5] = ["t/a/temp", "t/+/alarm", "t/#", "u", "#"];
const KINDS: i32 = 3;
/// Unsettled deliveries of a link: as many as an unsettled map holds in the smallest frame.
pub const MOST_UNSETTLED: usize = 15;

impl World {
    /// Something happens to one of the clients.
    pub fn step(&mut self) {
        let a = self.random.below(self.agents.len());
        if self.agents[a].client.is_none() {
            if self.random.chance(50) {
                self.connect(a);
                self.reattach_some(a);
            }
            return;
        }
        match self.random.below(100) {
            0..=3 => {
                // What is written last travels while the connection is lost.
                self.is_holding = true;
                for _ in 0..self.random.below(5) {
                    self.act(a);
                }
                self.cut(a);
            }
            4..=6 if !self.agents[a].sessions.is_empty() => {
                self.is_holding = true;
                for _ in 0..self.random.below(3) {
                    self.act(a);
                }
                self.abort_stream(a);
                self.is_holding = false;
                self.pump(a);
            }
            7..=8 => self.end_session(a),
            9..=10 => self.begin(a),
            11..=12 => {
                let ms = [10, 1_000, 20_000, 70_000][self.random.below(4)];
                self.advance(ms);
            }
            13..=15 => self.check(),
            16..=17 => self.slow_down(),
            18..=19 => self.speed_up(),
            _ => self.act(a),
        }
        self.pump(a);
        self.resume_due(a);
    }

    /// Something that leaves the connection as it is.
    fn act(&mut self, a: usize) {
        if self.agents[a].sessions.is_empty() {
            self.begin(a);
        }
        if self.agents[a].sessions.is_empty() {
            return;
        }
        match self.random.below(100) {
            0..=5 => self.attach_sender(a),
            6..=13 => self.attach_receiver(a),
            14..=17 => self.reattach_some(a),
            18..=21 => self.detach(a),
            22..=50 => self.send(a),
            51..=70 => self.give_credit(a),
            71..=85 => self.decide(a),
            86..=92 => self.transact(a),
            _ => self.settle(a),
        }
    }

    pub fn attached(&mut self, a: usize, of: impl Fn(&Link) -> bool) -> Option<(usize, LinkId)> {
        let links = &self.agents[a].links;
        let fitting: Vec<(usize, LinkId)> = links
            .iter()
            .enumerate()
            .filter(|(_, link)| of(link))
            .filter_map(|(l, link)| Some((l, link.id?)))
            .collect();
        (!fitting.is_empty()).then(|| fitting[self.random.below(fitting.len())])
    }

    fn attach_sender(&mut self, a: usize) {
        let address = match self.random.below(4) {
            0 => None,
            1 => Some(TOPICS[self.random.below(TOPICS.len())].to_owned()),
            _ => Some(format!("queue/q{}", self.random.below(2))),
        };
        let name = self.name("s");
        let mode = [Mode::Settled, Mode::First, Mode::Second, Mode::Second][self.random.below(4)];
        let sender = Sender {
            address,
            mode,
            to_settle: Vec::new(),
        };
        self.add_link(a, name, End::Sender(sender));
    }

    fn attach_receiver(&mut self, a: usize) {
        let name = self.name("r");
        let is_queue = self.random.chance(60);
        let kind = (self.random.chance(30)).then(|| self.random.below(KINDS as usize) as i32);
        let (address, store) = if is_queue {
            let number = self.random.below(QUEUES.len());
            (format!("queue/{}", QUEUES[number]), number)
        } else {
            let filter = FILTERS[self.random.below(FILTERS.len())];
            (
                filter.to_owned(),
                self.model.add_store(&name, filter, kind, false),
            )
        };
        let policies = [
            (TerminusExpiryPolicy::LinkDetach, 0),
            (TerminusExpiryPolicy::SessionEnd, 0),
            (TerminusExpiryPolicy::ConnectionClose, 0),
            (TerminusExpiryPolicy::SessionEnd, 30),
            (TerminusExpiryPolicy::ConnectionClose, 30),
            (TerminusExpiryPolicy::Never, 0),
            (TerminusExpiryPolicy::Never, 0),
        ];
        let (policy, timeout_s) = policies[self.random.below(policies.len())];
        let settle_modes = [
            SenderSettleMode::Unsettled,
            SenderSettleMode::Mixed,
            SenderSettleMode::Settled,
        ];
        let snd_settle_mode = settle_modes[self.random.below(3)];
        let rcv_settle_mode = if self.random.chance(50) {
            ReceiverSettleMode::First
        } else {
            ReceiverSettleMode::Second
        };
        let receiver = Receiver {
            address,
            store,
            kind,
            snd_settle_mode,
            rcv_settle_mode,
            policy,
            timeout_s,
            expires_at_ms: None,
            suspended_in: None,
            is_over: false,
            credit: 0,
            held: std::collections::BTreeMap::new(),
            refused: std::collections::BTreeSet::new(),
            last: std::collections::BTreeMap::new(),
        };
        self.add_link(a, name, End::Receiver(receiver));
    }

    fn add_link(&mut self, a: usize, name: String, end: End) {
        self.agents[a].links.push(Link {
            name,
            id: None,
            is_known: false,
            closing: false,
            unsettled: Vec::new(),
            detached_at_ms: 0,
            end,
        });
        let l = self.agents[a].links.len() - 1;
        self.reattach(a, l, false);
    }

    fn reattach_some(&mut self, a: usize) {
        for l in 0..self.agents[a].links.len() {
            let link = &self.agents[a].links[l];
            let lives = match &link.end {
                End::Sender(_) => !link.closing,
                End::Receiver(receiver) => {
                    // What is held back may be lost, and then the time goes on.
                    let is_safe =
                        !self.is_holding || receiver.policy == TerminusExpiryPolicy::Never;
                    is_safe
                        && !receiver.is_over
                        && (receiver.suspended_in.is_some() || receiver.outlives_connection())
                }
            };
            if link.id.is_none() && lives && self.random.chance(40) {
                let recovers = self.random.chance(75);
                self.reattach(a, l, recovers);
            }
        }
    }

    /// Attaches a link, for the first time or again; then with what is remembered, or without.
    pub fn reattach(&mut self, a: usize, l: usize, recovers: bool) {
        let is_holding = self.is_holding;
        let agent = &mut self.agents[a];
        if agent.sessions.is_empty() {
            return;
        }
        let session = agent.sessions[self.random.below(agent.sessions.len())];
        let link = &mut agent.links[l];
        if !recovers {
            link.unsettled.clear();
        }
        let unsettled = std::mem::take(&mut link.unsettled);
        if self.is_traced {
            eprintln!(
                "{} attaches {} recovers {recovers} {unsettled:?} {:?}",
                agent.container,
                link.name,
                link.as_receiver().map(|r| (
                    &r.address,
                    r.kind,
                    r.policy,
                    r.timeout_s,
                    r.snd_settle_mode,
                    r.rcv_settle_mode
                ))
            );
        }
        let filter;
        let options = match &link.end {
            End::Sender(sender) => {
                let (snd_settle_mode, rcv_settle_mode) = sender.modes();
                AttachOptions {
                    snd_settle_mode,
                    rcv_settle_mode,
                    source: Some(sterna_amqp::messaging::Source::default()),
                    target: Some(sender.target()),
                    ..AttachOptions::default()
                }
            }
            End::Receiver(receiver) => {
                filter = receiver.kind.map(crate::amqp_model::links::selector);
                let mut source = receiver.source();
                source.filter = match filter.as_ref().map(Encoded::value) {
                    Some(Value::Map(map)) => Some(map),
                    _ => None,
                };
                AttachOptions {
                    snd_settle_mode: receiver.snd_settle_mode,
                    rcv_settle_mode: receiver.rcv_settle_mode,
                    source: Some(source),
                    target: Some(TargetArchetype::Target(Target::default())),
                    ..AttachOptions::default()
                }
            }
        };
        let options = AttachOptions {
            unsettled: &unsettled,
            recover: recovers,
            ..options
        };
        let client = agent.client.as_mut().expect("connected");
        let id = client
            .engine
            .attach(session, &link.name, link.role(), &options, &mut client.out)
            .expect("a link");
        client.answers.remove(&id);
        link.id = Some(id);
        if let End::Receiver(receiver) = &mut link.end {
            if !recovers {
                receiver.held.clear();
            }
            if is_holding {
                self.model.unattended(receiver.store);
            }
            let store = &mut self.model.stores[receiver.store];
            store.is_attached = !is_holding;
            store.disturb(self.model.messages.len());
            for held in receiver.held.values_mut() {
                // A queue has taken them back when the receiver was lost.
                let is_kept = !store.is_queue;
                if let Stage::Suspended { gone: true, sure } = &mut held.stage
                    && !*sure
                    && !is_holding
                    && is_kept
                {
                    // The map tells the broker what has been decided.
                    *sure = true;
                    store.account(held.message).gone_min += 1;
                }
            }
            receiver.suspended_in = None;
            receiver.expires_at_ms = None;
        }
        if is_holding {
            return;
        }
        self.pump(a);
        let client = self.agents[a].client.as_ref().expect("connected");
        let answer = client.answers.get(&id).expect("an answer");
        assert!(
            !answer.refused,
            "{} is refused",
            self.agents[a].links[l].name
        );
        self.resume_due(a);
    }

    /// Sends what links have yet to send again.
    fn resume_due(&mut self, a: usize) {
        let all = std::mem::take(&mut self.resumptions);
        let (due, others) = all.into_iter().partition(|one| one.agent == a);
        self.resumptions = others;
        for resumption in due {
            self.resume(a, &resumption);
        }
    }

    /// Sends a delivery from before in the way that the maps ask for.
    fn resume(&mut self, a: usize, resumption: &Resumption) {
        let Resumption {
            link: l,
            delivery,
            recovery,
            ..
        } = resumption;
        let link = &self.agents[a].links[*l];
        let (id, name) = (link.id.expect("attached"), link.name.clone());
        let token = delivery.token;
        let (settled, resume, state) = match recovery {
            Recovery::Resend => (false, false, None),
            Recovery::Resume(_) => (false, true, None),
            Recovery::Settle(state) => (true, true, Some(state.view())),
            _ => return,
        };
        let client = self.agents[a].client.as_mut().expect("connected");
        if !client.engine.can_send(id) {
            // Credit may be less than what is to be resumed; what is resent is left to later.
            client.turn(&mut self.broker);
        }
        assert!(client.engine.can_send(id), "{name}: no credit to recover");
        if settled {
            let transfer = OutgoingTransfer {
                settled,
                resume,
                state,
                ..OutgoingTransfer::new(delivery.tag.as_bytes(), token)
            };
            let sent = client
                .engine
                .transfer(id, &transfer, &[], false, &mut client.out);
            sent.expect("credit");
            return self.pump(a);
        }
        if self.model.by_token(token).is_posted {
            // The transaction has decided about it.
            let tag = delivery.tag.as_bytes();
            let aborted = client.engine.abort_resumed(id, tag, &mut client.out);
            aborted.expect("credit");
            return self.pump(a);
        }
        let message = self.model.by_token(token).message;
        self.model.messages[message].is_unordered = true;
        self.transfer(a, *l, message, Some(delivery.tag.as_bytes()), resume, None);
    }

    fn send(&mut self, a: usize) {
        let Some((l, id)) = self.attached(a, |link| matches!(link.end, End::Sender(_))) else {
            return;
        };
        for _ in 0..=self.random.below(6) {
            let client = self.agents[a].client.as_ref().expect("connected");
            let unsettled = client.engine.unsettled(id.session).0;
            if !client.engine.can_send(id) || unsettled >= MOST_UNSETTLED {
                return;
            }
            let message = self.compose(a, l);
            self.transfer(a, l, message, None, false, None);
        }
    }

    /// A new message for a link.
    pub fn compose(&mut self, a: usize, l: usize) -> usize {
        let link = &mut self.agents[a].links[l];
        let sender_name = link.name.clone();
        let sender = link.sender();
        let mode = sender.mode;
        let address = match &sender.address {
            Some(address) => address.clone(),
            None if self.random.chance(50) => format!("queue/q{}", self.random.below(2)),
            None => TOPICS[self.random.below(TOPICS.len())].to_owned(),
        };
        let pad_bytes = if self.random.chance(20) {
            self.random.below(6_000)
        } else {
            self.random.below(50)
        };
        self.model.messages.push(Message {
            topic: address,
            kind: self.random.below(KINDS as usize) as i32,
            pad_bytes,
            mode,
            sender: sender_name,
            is_unordered: false,
        });
        self.model.messages.len() - 1
    }

    /// Sends a message.
    pub fn transfer(
        &mut self,
        a: usize,
        l: usize,
        number: usize,
        tag: Option<&[u8]>,
        resume: bool,
        transaction: Option<&[u8]>,
    ) {
        let token = match transaction {
            Some(_) => self.model.attempt_in_transaction(number),
            None => self.model.attempt(number),
        };
        let message = &self.model.messages[number];
        let mut bytes = BytesMut::new();
        let text = message.text(number);
        MessageWriter::new(&mut bytes)
            .properties(&Properties {
                to: Some(Value::String(&message.topic)),
                ..Properties::default()
            })
            .application_properties(|map| {
                map.push(&Value::String("kind"), &Value::Int(message.kind));
            })
            .data(text.as_bytes());
        self.trace(a, &("sends", number, &self.model.messages[number]));
        let link = &self.agents[a].links[l];
        let id = link.id.expect("attached");
        let settled = message.mode == Mode::Settled;
        let own_tag = token.to_be_bytes();
        let transfer = OutgoingTransfer {
            settled,
            resume,
            state: transaction.map(|txn_id| in_transaction(txn_id, None)),
            ..OutgoingTransfer::new(tag.unwrap_or(&own_tag), token)
        };
        let client = self.agents[a].client.as_mut().expect("connected");
        let mut sent = client
            .engine
            .transfer(id, &transfer, &[&bytes], false, &mut client.out)
            .expect("credit");
        self.model.by_token(token).delivery_id = sent.delivery_id;
        let mut offset = sent.payload_bytes;
        while !sent.complete {
            if self.is_holding {
                return;
            }
            let client = self.agents[a].client.as_mut().expect("connected");
            client.turn(&mut self.broker);
            sent = client
                .engine
                .transfer_more(id, &[&bytes[offset..]], false, &mut client.out)
                .expect("a window");
            offset += sent.payload_bytes;
        }
        if let (Some(_), Some(transaction)) = (transaction, &mut self.agents[a].transaction) {
            transaction.posted.push(token);
        }
        if settled && !self.is_holding {
            self.pump(a);
            self.model.accepted(token);
        }
        self.pump(a);
    }

    fn give_credit(&mut self, a: usize) {
        let Some((l, id)) = self.attached(a, |link| matches!(link.end, End::Receiver(_))) else {
            return;
        };
        self.pump(a);
        let next = self.model.messages.len();
        let agent = &mut self.agents[a];
        if agent.links[l].id != Some(id) || agent.links[l].closing {
            return;
        }
        let receiver = agent.links[l].receiver();
        let room = MOST_UNSETTLED.saturating_sub(receiver.held.len());
        let credit = self.random.below(room + 1) as u32;
        let drains = self.random.chance(20);
        if credit < receiver.credit || drains {
            self.model.stores[receiver.store].disturb(next);
        }
        // One that has been begun counts on the earlier credit.
        let most = credit + u32::from(self.is_slow);
        // What the earlier credit allows may be on its way.
        receiver.credit = if self.is_holding {
            receiver.credit.max(most)
        } else {
            most
        };
        let client = agent.client.as_mut().expect("connected");
        let set = client
            .engine
            .set_credit(id, credit, drains, false, &mut client.out);
        // One that leaves takes none.
        assert!(set.is_ok() || self.is_holding);
        self.trace(a, &("credit", id, credit, drains));
        self.pump(a);
        if drains && !self.is_holding && !self.is_slow {
            let client = self.agents[a].client.as_ref().expect("connected");
            assert_eq!(client.engine.credit(id), 0, "what is left comes back");
            self.agents[a].links[l].receiver().credit = 0;
        }
    }

    /// Decides about some of what has come.
    fn decide(&mut self, a: usize) {
        let fresh = |link: &Link| {
            let receiver = link.as_receiver();
            receiver.is_some_and(|receiver| {
                let mut held = receiver.held.values();
                held.any(|held| held.stage == Stage::Fresh)
            })
        };
        let Some((l, id)) = self.attached(a, fresh) else {
            return;
        };
        let receiver = self.agents[a].links[l].receiver();
        let mut all: Vec<(u32, Vec<u8>, usize)> = receiver
            .held
            .iter()
            .filter(|(_, held)| held.stage == Stage::Fresh)
            .map(|(tag, held)| (held.id, tag.clone(), held.message))
            .collect();
        all.sort_unstable();
        let second = receiver.rcv_settle_mode == ReceiverSettleMode::Second;
        let count = 1 + self.random.below(all.len());
        for _ in 0..count {
            let (delivery, tag, message) = all.remove(self.random.below(all.len()));
            let settled = !second && self.random.chance(70);
            let outcome = match self.random.below(10) {
                0 => Outcome::Released,
                1 => Outcome::Rejected(Rejected { error: None }),
                2 | 3 => Outcome::Modified(Modified {
                    delivery_failed: self.random.chance(50),
                    undeliverable_here: self.random.chance(40),
                    message_annotations: None,
                }),
                _ => Outcome::Accepted,
            };
            self.tell(
                a,
                l,
                &Told {
                    tag,
                    message,
                    settled,
                },
                &outcome,
            );
            let state = DeliveryState::Outcome(outcome);
            let client = self.agents[a].client.as_mut().expect("connected");
            client
                .engine
                .dispose(
                    id.session,
                    (delivery, delivery),
                    Some(&state),
                    settled,
                    &mut client.out,
                )
                .expect("a session");
        }
        self.pump(a);
    }

    /// What a decision changes, once the broker hears of it.
    fn tell(&mut self, a: usize, l: usize, told: &Told, outcome: &Outcome<'_>) {
        self.trace(a, &(&self.agents[a].links[l].name, told, outcome));
        let sure = !self.is_holding;
        let next = self.model.messages.len();
        let receiver = self.agents[a].links[l].receiver();
        let store = &mut self.model.stores[receiver.store];
        let gone = match outcome {
            Outcome::Accepted | Outcome::Rejected(_) => true,
            Outcome::Released => false,
            Outcome::Modified(modified) => {
                if modified.undeliverable_here {
                    receiver.refused.insert(told.message);
                    if !store.is_queue {
                        // There is nobody else.
                        store.account(told.message).gone_max += 1;
                    }
                }
                false
            }
        };
        if gone {
            let account = store.account(told.message);
            account.gone_max += 1;
            account.gone_min += u32::from(sure);
            assert!(
                account.gone_min <= account.max,
                "{}: message {} was taken too often",
                store.name,
                told.message
            );
        } else {
            store.disturb(next);
            if !store.is_queue && self.model.messages[told.message].mode == Mode::Settled {
                // A subscription keeps nothing of what its sender has settled.
                store.account(told.message).gone_max += 1;
            }
        }
        if told.settled {
            receiver.held.remove(&told.tag);
        } else {
            let held: &mut Held = receiver.held.get_mut(&told.tag).expect("held");
            held.stage = Stage::Told { gone, sure };
        }
    }

    /// A sender settles what was accepted and is to be settled by it.
    fn settle(&mut self, a: usize) {
        let due = |link: &Link| match &link.end {
            End::Sender(sender) => !sender.to_settle.is_empty(),
            End::Receiver(_) => false,
        };
        let Some((l, id)) = self.attached(a, due) else {
            return;
        };
        for token in std::mem::take(&mut self.agents[a].links[l].sender().to_settle) {
            let delivery = self.model.by_token(token).delivery_id;
            let client = self.agents[a].client.as_mut().expect("connected");
            client
                .engine
                .settle(id.session, (delivery, delivery), None, &mut client.out)
                .expect("a session");
        }
        self.pump(a);
    }

    fn detach(&mut self, a: usize) {
        let Some((l, id)) = self.attached(a, |link| !link.closing) else {
            return;
        };
        self.pump(a);
        let agent = &mut self.agents[a];
        if agent.links[l].id != Some(id) {
            return;
        }
        let closed = self.random.chance(40);
        let client = agent.client.as_mut().expect("connected");
        // While its attach is held back it cannot be detached yet.
        if client.answers.contains_key(&id)
            && client
                .engine
                .detach(id, closed, None, &mut client.out)
                .is_ok()
        {
            agent.links[l].closing = closed;
        }
        self.pump(a);
    }

    fn end_session(&mut self, a: usize) {
        self.trace(a, &"ends a session");
        self.pump(a);
        let sessions = self.agents[a].sessions.len();
        if sessions == 0 {
            return;
        }
        let session = self.agents[a].sessions.remove(self.random.below(sessions));
        self.cause = Cause::SessionEnd;
        let client = self.agents[a].client.as_mut().expect("connected");
        client
            .engine
            .end(session, None, &mut client.out)
            .expect("a session");
        client.note_rest();
        self.process(a);
        self.expire_with(a, Some(session));
        self.pump(a);
        self.cause = Cause::Detach;
    }
}

/// A delivery that is decided.
#[derive(Debug)]
struct Told {
    tag: Vec<u8>,
    message: usize,
    settled: bool,
}
