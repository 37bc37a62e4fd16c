//! Transactions: what is posted and accepted in them takes effect with the commit, or not at all.

use bytes::BytesMut;
use sterna_amqp::connection::LinkId;
use sterna_amqp::link::{AttachOptions, OutgoingTransfer};
use sterna_amqp::messaging::{DeliveryState, Outcome, Source, TargetArchetype};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_amqp::transactions::{Coordinator, Declare, Discharge, Request, TransactionalState};
use sterna_amqp::types::Multiple;

use crate::amqp_model::links::{End, Link, Retired, Stage, Transaction};
use crate::amqp_model::model::Mode;
use crate::amqp_model::steps::MOST_UNSETTLED;
use crate::amqp_model::world::World;

pub fn in_transaction<'a>(txn_id: &'a [u8], outcome: Option<Outcome<'a>>) -> DeliveryState<'a> {
    DeliveryState::Transactional(TransactionalState { txn_id, outcome })
}

impl World {
    /// The next thing that a client does with a transaction.
    pub fn transact(&mut self, a: usize) {
        if self.agents[a].transaction.is_none() {
            return self.declare(a);
        }
        match self.random.below(10) {
            0..=3 => self.post(a),
            4..=7 => self.retire(a),
            8 => self.discharge(a, true),
            _ => self.discharge(a, false),
        }
    }

    fn coordinator(&mut self, a: usize) -> LinkId {
        if let Some(link) = self.agents[a].coordinator {
            return link;
        }
        let name = self.name("coordinator");
        let options = AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Coordinator(Coordinator {
                capabilities: Multiple::None,
            })),
            ..AttachOptions::default()
        };
        let agent = &mut self.agents[a];
        let session = agent.sessions[self.random.below(agent.sessions.len())];
        let client = agent.client.as_mut().expect("connected");
        let link = client.attach(&mut self.broker, session, &name, Role::Sender, &options);
        agent.coordinator = Some(link);
        self.process(a);
        link
    }

    fn request(&mut self, a: usize, request: &Request<'_>) {
        let link = self.coordinator(a);
        let mut message = BytesMut::new();
        request.encode(&mut message);
        self.next_name += 1;
        let tag = self.next_name.to_be_bytes();
        let transfer = OutgoingTransfer::new(&tag, u64::MAX);
        self.outcome = None;
        self.declared = None;
        let client = self.agents[a].client.as_mut().expect("connected");
        let sent = client
            .engine
            .transfer(link, &transfer, &[&message], false, &mut client.out);
        assert!(sent.expect("credit").complete);
        self.pump(a);
    }

    fn declare(&mut self, a: usize) {
        if self.is_holding {
            return;
        }
        self.request(a, &Request::Declare(Declare { global_id: None }));
        let id = self.declared.take().expect("declared");
        self.trace(a, &("declares", &id));
        self.agents[a].transaction = Some(Transaction {
            id,
            posted: Vec::new(),
            retired: Vec::new(),
            has_lost: false,
        });
    }

    fn post(&mut self, a: usize) {
        let posts = |link: &Link| match &link.end {
            End::Sender(sender) => sender.mode != Mode::Settled,
            End::Receiver(_) => false,
        };
        let Some((l, id)) = self.attached(a, posts) else {
            return;
        };
        let agent = &self.agents[a];
        let Some(transaction) = &agent.transaction else {
            return;
        };
        let client = agent.client.as_ref().expect("connected");
        let unsettled = client.engine.unsettled(id.session).0;
        if !client.engine.can_send(id) || unsettled >= MOST_UNSETTLED {
            return;
        }
        let txn_id = transaction.id.clone();
        let message = self.compose(a, l);
        self.model.messages[message].is_unordered = true;
        self.transfer(a, l, message, None, false, Some(&txn_id));
    }

    /// Accepts a delivery within the transaction.
    fn retire(&mut self, a: usize) {
        let is_fresh = |link: &Link| {
            let receiver = link.as_receiver();
            receiver.is_some_and(|receiver| {
                let mut held = receiver.held.values();
                held.any(|held| held.stage == Stage::Fresh)
            })
        };
        let Some((l, id)) = self.attached(a, is_fresh) else {
            return;
        };
        let settles = self.random.chance(50);
        let agent = &mut self.agents[a];
        let Some(transaction) = &mut agent.transaction else {
            return;
        };
        let receiver = agent.links[l].receiver();
        let fresh = receiver
            .held
            .iter_mut()
            .find(|(_, held)| held.stage == Stage::Fresh);
        let (tag, held) = fresh.expect("one of them");
        let (tag, delivery, message) = (tag.clone(), held.id, held.message);
        let settled = settles && receiver.rcv_settle_mode == ReceiverSettleMode::First;
        held.stage = Stage::Retired;
        if settled {
            receiver.held.remove(&tag);
        }
        let store = receiver.store;
        let state = in_transaction(&transaction.id, Some(Outcome::Accepted));
        let client = agent.client.as_mut().expect("connected");
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
        transaction.retired.push(Retired {
            link: l,
            store,
            tag,
            message,
            settled,
        });
        self.trace(a, &("retires", message, settled));
        self.pump(a);
    }

    /// Ends the transaction, if there is one.
    pub fn discharge(&mut self, a: usize, fail: bool) {
        let agent = &self.agents[a];
        if let (Some(link), Some(client)) = (agent.coordinator, &agent.client)
            && self.is_holding
            && !client.engine.can_send(link)
        {
            return;
        }
        let Some(transaction) = self.agents[a].transaction.take() else {
            return;
        };
        let txn_id = &transaction.id;
        self.trace(a, &("discharges", txn_id, fail));
        if fail {
            self.agents[a].transaction = Some(Transaction {
                id: txn_id.clone(),
                ..transaction
            });
            // It comes back as the broker hears of it.
            self.rolled_back(a);
            self.request(a, &Request::Discharge(Discharge { txn_id, fail }));
            let held_back = self.is_holding;
            assert!(held_back || self.outcome.as_deref() == Some("accepted"));
            return;
        }
        for token in &transaction.posted {
            self.model.by_token(*token).accepted = false;
            self.model.routed(*token);
        }
        for one in &transaction.retired {
            self.model.stores[one.store].account(one.message).gone_max += 1;
        }
        self.request(a, &Request::Discharge(Discharge { txn_id, fail }));
        if self.is_holding {
            return;
        }
        match self.outcome.as_deref() {
            Some("accepted") => {
                for token in &transaction.posted {
                    self.model.accepted(*token);
                }
                // Also where a link was detached meanwhile, and has its deliveries still.
                for one in &transaction.retired {
                    self.model.stores[one.store].account(one.message).gone_min += 1;
                }
            }
            Some("rejected amqp:transaction:rollback") => {
                assert!(transaction.has_lost, "rolled back without a reason");
                for token in &transaction.posted {
                    self.model.withdrawn(*token);
                }
                for one in &transaction.retired {
                    self.model.stores[one.store].account(one.message).gone_max -= 1;
                }
                self.agents[a].transaction = Some(transaction);
                self.rolled_back(a);
            }
            other => panic!("{other:?}"),
        }
    }

    /// A transaction is over as if it had never been.
    pub fn rolled_back(&mut self, a: usize) {
        let next = self.model.messages.len();
        let agent = &mut self.agents[a];
        let Some(transaction) = agent.transaction.take() else {
            return;
        };
        for one in transaction.retired {
            let store = &mut self.model.stores[one.store];
            store.disturb(next);
            if one.settled {
                let mode = self.model.messages[one.message].mode;
                if !store.is_queue && mode == Mode::Settled {
                    // A subscription keeps nothing of what its sender has settled.
                    store.account(one.message).gone_max += 1;
                }
            } else if let Some(held) = agent.links[one.link].receiver().held.get_mut(&one.tag)
                && held.stage == Stage::Retired
            {
                held.stage = Stage::Fresh;
            }
        }
    }
}
