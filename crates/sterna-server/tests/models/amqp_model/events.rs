//! What clients are told, and what the model makes of it.

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{Recovery, Unsettled};
use sterna_amqp::messaging::TerminusExpiryPolicy;
use sterna_amqp::performatives::SenderSettleMode;

use crate::amqp_client::{Happened, Received};
use crate::amqp_model::links::{End, Held, Receiver, Stage};
use crate::amqp_model::model::{Mode, Store, numbers_in};
use crate::amqp_model::world::World;

/// Why links end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    Detach,
    SessionEnd,
    ConnectionEnd,
}

/// A sender's delivery from before that is to be sent in some way.
pub struct Resumption {
    pub agent: usize,
    pub link: usize,
    pub delivery: Unsettled,
    pub recovery: Recovery,
}

impl World {
    /// Sends and reads until a client has nothing to do, unless what it writes is held back.
    pub fn pump(&mut self, a: usize) {
        if self.is_holding {
            return;
        }
        if let Some(client) = &mut self.agents[a].client {
            client.turn(&mut self.broker);
            self.process(a);
        }
    }

    /// Takes note of what a client has been told.
    pub fn process(&mut self, a: usize) {
        let Some(client) = &mut self.agents[a].client else {
            return;
        };
        let raw = client.tap.replace(Vec::new()).unwrap_or_default();
        let received = std::mem::take(&mut client.received);
        let happened = std::mem::take(&mut client.happened);
        let recovered = std::mem::take(&mut client.recovered);
        assert_eq!(client.refusal, None, "the broker breaks the protocol");
        let answered: Vec<LinkId> = client.answers.keys().copied().collect();
        for link in &mut self.agents[a].links {
            link.is_known |= link.id.is_some_and(|id| answered.contains(&id));
        }
        for number in numbers_in(&raw) {
            *self.agents[a].begun.entry(number).or_default() += 1;
        }
        let mut received = received.into_iter().peekable();
        let mut recovered = recovered.into_iter();
        for (number, one) in happened.into_iter().enumerate() {
            while let Some(one) = received.next_if(|one| one.after <= number) {
                self.delivered(a, &one);
            }
            if let Happened::Recovered(..) = one {
                let (link, delivery, recovery) = recovered.next().expect("noted twice");
                self.recovered(a, link, delivery, recovery);
            } else {
                self.happened(a, one);
            }
        }
        for one in received {
            self.delivered(a, &one);
        }
    }

    fn delivered(&mut self, a: usize, one: &Received) {
        let text = one.text();
        let number = numbers_in(text.as_bytes())[0];
        let agent = &mut self.agents[a];
        if let Some(begun) = agent.begun.get_mut(&number) {
            *begun = begun.saturating_sub(1);
        }
        let l = agent.link_at(one.link).expect("a link for the delivery");
        let name = agent.links[l].name.clone();
        let receiver = agent.links[l].receiver();
        let message = &self.model.messages[number];
        assert_eq!(text, message.text(number), "{name}: another body");
        let fits = receiver.kind.is_none_or(|kind| kind == message.kind);
        assert!(fits, "{name}: the selector does not hold");
        assert!(receiver.credit > 0, "{name}: more than its credit");
        receiver.credit -= 1;
        match receiver.snd_settle_mode {
            SenderSettleMode::Settled => assert!(one.settled, "{name}: not settled"),
            SenderSettleMode::Unsettled => assert!(!one.settled, "{name}: settled"),
            SenderSettleMode::Mixed => {}
        }
        let store = &mut self.model.stores[receiver.store];
        assert!(
            store.accounts.contains_key(&number),
            "{name}: message {number} was never sent to {}",
            store.name
        );
        let orderly_from = store.orderly_from;
        let account = store.account(number);
        assert!(account.max > 0, "{name}: message {number} was not sent");
        if receiver.refused.contains(&number) {
            assert!(account.max > 1, "{name}: {number} is undeliverable here");
        }
        if self.is_traced {
            eprintln!(
                "  {name} gets {number} id {} tag {:02x?} settled {} resumed {} {account:?}",
                one.id, one.tag, one.settled, one.resumed
            );
        }
        let is_first = !account.was_out && !message.is_unordered && account.max == 1;
        account.was_out = true;
        if is_first && number >= orderly_from {
            let last = receiver.last.insert(message.sender.clone(), number);
            assert!(
                last.is_none_or(|last| last < number || last < orderly_from),
                "{name}: {number} of {} comes after {last:?}",
                message.sender
            );
        }
        if one.settled {
            account.gone_min += 1;
            account.gone_max += 1;
            assert!(
                account.gone_min <= account.max,
                "{name}: message {number} came too often, {account:?}"
            );
            return;
        }
        if let Some(known) = receiver.held.get(&one.tag) {
            let was_suspended = matches!(known.stage, Stage::Suspended { .. });
            assert!(was_suspended, "{name}: a tag is used twice");
        }
        let held = Held {
            id: one.id,
            message: number,
            stage: Stage::Fresh,
        };
        receiver.held.insert(one.tag.clone(), held);
    }

    fn recovered(&mut self, a: usize, link: LinkId, delivery: Unsettled, recovery: Recovery) {
        let now_ms = self.now_ms();
        let agent = &mut self.agents[a];
        let l = agent.link_at(link).expect("the link that is recovered");
        let link = &mut agent.links[l];
        if self.is_traced {
            eprintln!("  {} recovers {delivery:?}: {recovery:?}", link.name);
        }
        let (name, since_ms) = (link.name.clone(), now_ms - link.detached_at_ms);
        match &mut link.end {
            End::Receiver(receiver) => match recovery {
                Recovery::Settled(_) => drop(receiver.held.remove(delivery.tag.as_bytes())),
                Recovery::Resumed { delivery_id } => {
                    let held = receiver.held.get_mut(delivery.tag.as_bytes());
                    let held = held.expect("what is resumed");
                    held.id = delivery_id;
                    if let Stage::Suspended { gone, sure } = held.stage {
                        held.stage = Stage::Told { gone, sure };
                    }
                }
                other => panic!("{name}: {other:?}"),
            },
            End::Sender(sender) => {
                let token = delivery.token;
                if self.model.by_token(token).is_posted {
                    // Its transaction is over, one way or the other.
                    if !matches!(recovery, Recovery::Resume(_)) {
                        return;
                    }
                } else {
                    match &recovery {
                        Recovery::Resend => {
                            // As long as the broker remembers its word is good.
                            if sender.mode == Mode::Second && since_ms < self.remembers_ms {
                                self.model.withdrawn(token);
                            }
                        }
                        Recovery::Resume(_) => self.model.withdrawn(token),
                        Recovery::Settle(_) | Recovery::Settled(_) => {}
                        other => panic!("{name}: {other:?}"),
                    }
                    if let Recovery::Settle(state) | Recovery::Settled(Some(state)) = &recovery {
                        let is_accepted =
                            *state == sterna_amqp::messaging::DeliveryStateBuf::Accepted;
                        assert!(is_accepted, "{name}: {recovery:?}");
                        self.model.accepted(token);
                    }
                }
                self.resumptions.push(Resumption {
                    agent: a,
                    link: l,
                    delivery,
                    recovery,
                });
            }
        }
    }

    fn happened(&mut self, a: usize, one: Happened) {
        match one {
            Happened::Disposed {
                link,
                id,
                token,
                state,
                settled,
            } => self.disposed(a, link, (id, token), state.as_deref(), settled),
            Happened::Declared(id) => self.declared = Some(id),
            Happened::Detached {
                link,
                closed,
                condition,
                unsettled,
            } => {
                assert_eq!(condition, None, "{}", self.agents[a].container);
                self.detached(a, link, closed, unsettled);
            }
            Happened::Ended(condition) => {
                assert_eq!(condition, None, "{} session", self.agents[a].container);
            }
            Happened::Closed(condition) => {
                assert_eq!(condition, None, "{}", self.agents[a].container);
            }
            Happened::Recovered(..) | Happened::Drained(_) => {}
        }
    }

    fn disposed(
        &mut self,
        a: usize,
        link: LinkId,
        (id, token): (u32, u64),
        state: Option<&str>,
        settled: bool,
    ) {
        let agent = &mut self.agents[a];
        if agent.coordinator == Some(link) {
            self.outcome = state.map(str::to_owned);
            return;
        }
        let Some(l) = agent.link_at(link) else {
            return;
        };
        let name = agent.links[l].name.clone();
        match &mut agent.links[l].end {
            End::Sender(sender) => {
                match state {
                    Some("accepted") => self.model.accepted(token),
                    Some("transactional amqp:accepted:list") => {
                        self.model.by_token(token).accepted = true;
                    }
                    other => panic!("{name}: {other:?} of {token}"),
                }
                if !settled {
                    sender.to_settle.push(token);
                }
            }
            End::Receiver(receiver) => {
                assert!(settled, "{name}: a state of the sender's");
                let of = |held: &Held| held.id == id;
                let tag = receiver.held.iter().find(|(_, held)| of(held));
                let tag = tag.map(|(tag, _)| tag.clone()).expect("what is settled");
                let held = receiver.held.remove(&tag).expect("found");
                assert!(
                    matches!(held.stage, Stage::Told { .. } | Stage::Retired),
                    "{name}: settled before it was decided, {held:?}"
                );
            }
        }
    }

    fn detached(&mut self, a: usize, id: LinkId, closed: bool, unsettled: Vec<Unsettled>) {
        let (now_ms, next) = (self.now_ms(), self.model.messages.len());
        let cause = self.cause;
        let agent = &mut self.agents[a];
        if agent.coordinator == Some(id) {
            agent.coordinator = None;
            return self.rolled_back(a);
        }
        let Some(l) = agent.link_at(id) else {
            return;
        };
        if let Some(transaction) = &mut agent.transaction {
            transaction.has_lost |= transaction.retired.iter().any(|one| one.link == l);
        }
        let link = &mut agent.links[l];
        if self.is_traced {
            eprintln!(
                "  {} is detached, closed {closed}, {unsettled:?}",
                link.name
            );
        }
        let client = agent.client.as_ref().expect("connected");
        if client.answers.contains_key(&id) {
            link.detached_at_ms = now_ms;
        }
        link.id = None;
        link.unsettled = unsettled;
        // What was never answered may be there or not, and is not looked for.
        let is_over = closed || std::mem::take(&mut link.closing) || !link.is_known;
        let kept: Vec<Vec<u8>> = link
            .unsettled
            .iter()
            .map(|one| one.tag.as_bytes().to_vec())
            .collect();
        let End::Receiver(receiver) = &mut link.end else {
            return;
        };
        self.model.unattended(receiver.store);
        let store = &mut self.model.stores[receiver.store];
        store.disturb(next);
        if receiver.snd_settle_mode != SenderSettleMode::Unsettled {
            // What comes after the link's own detach is passed over, and may have been settled.
            for (number, count) in &agent.begun {
                if let Some(account) = store.accounts.get_mut(number) {
                    account.gone_max += count;
                }
            }
        }
        receiver.held.retain(|tag, held| {
            held.stage = match held.stage {
                Stage::Told { gone, sure } | Stage::Suspended { gone, sure } => {
                    Stage::Suspended { gone, sure }
                }
                Stage::Fresh | Stage::Retired => Stage::Suspended {
                    gone: false,
                    sure: false,
                },
            };
            kept.contains(tag)
        });
        receiver.credit = 0;
        receiver.refused.clear();
        receiver.last.clear();
        if is_over {
            over(receiver, store);
            return;
        }
        match (receiver.policy, cause) {
            (TerminusExpiryPolicy::Never, _) => {}
            (TerminusExpiryPolicy::LinkDetach, _)
            | (_, Cause::ConnectionEnd)
            | (TerminusExpiryPolicy::SessionEnd, Cause::SessionEnd) => {
                begin_expiry(receiver, store, now_ms);
            }
            _ => receiver.suspended_in = Some(id.session),
        }
    }

    /// Termini that were detached before end with their session, or the connection.
    pub fn expire_with(&mut self, a: usize, session: Option<SessionId>) {
        let now_ms = self.now_ms();
        for link in &mut self.agents[a].links {
            let End::Receiver(receiver) = &mut link.end else {
                continue;
            };
            let is_session_end = receiver.policy == TerminusExpiryPolicy::SessionEnd;
            let ends = match session {
                Some(_) => receiver.suspended_in == session && is_session_end,
                None => receiver.suspended_in.is_some(),
            };
            if ends {
                let store = &mut self.model.stores[receiver.store];
                begin_expiry(receiver, store, now_ms);
            }
        }
    }

    /// Termini whose time is over.
    pub fn expire_due(&mut self) {
        let now_ms = self.now_ms();
        for link in self.agents.iter_mut().flat_map(|agent| &mut agent.links) {
            if let End::Receiver(receiver) = &mut link.end
                && receiver.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
            {
                over(receiver, &mut self.model.stores[receiver.store]);
            }
        }
    }
}

fn begin_expiry(receiver: &mut Receiver, store: &mut Store, now_ms: u64) {
    receiver.suspended_in = None;
    if receiver.timeout_s == 0 {
        over(receiver, store);
    } else {
        receiver.expires_at_ms = Some(now_ms + u64::from(receiver.timeout_s) * 1000);
    }
}

/// The terminus is gone, or may be.
fn over(receiver: &mut Receiver, store: &mut Store) {
    receiver.is_over = true;
    receiver.expires_at_ms = None;
    receiver.held.clear();
    if !store.is_queue {
        store.is_alive = false;
    }
}
