//! Transactions (AMQP 1.0, part 4): posted messages and retired deliveries wait for the discharge, and then take
//! effect together.

use rustc_hash::FxHashMap;
use sterna_amqp::Condition;
use sterna_amqp::connection::{Delivery, LinkId};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf, Outcome};
use sterna_amqp::performatives::Error;
use sterna_amqp::transactions::{Declared, Discharge, Request, TransactionalState};
use sterna_broker::{
    self as broker, CompanionRecord, Message, PublishRefusal, SessionKey, Unacknowledged,
};

use super::Door;
use super::acknowledge::Acknowledgement;
use super::attach::{Refusal, may_publish, refusal};
use super::client::{Client, Links, Target, TargetLink};
use super::incoming::rejected;
use super::outgoing::{Disposed, Returned, broker_outcome, give_back, is_returning, modify};
use crate::authorization::MessageKind;
use crate::config::{Amqp, Protocol};
use crate::context::Context;
use crate::door::Promise;
use crate::metrics::DropReason;

/// The transactions of one connection.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    declared: FxHashMap<u32, Transaction>,
}

/// One transaction.
#[derive(Debug)]
struct Transaction {
    /// The link that it was declared on, and ends with.
    coordinator: LinkId,
    posted: Vec<Message>,
    posted_bytes: u64,
    /// The promise of the strictest posted message.
    promise: Promise,
    retired: Vec<Retired>,
}

/// A delivery to a receiver that is settled with the transaction.
#[derive(Debug)]
struct Retired {
    link: LinkId,
    session: SessionKey,
    delivery_id: u32,
    tag: u64,
    state: DeliveryStateBuf,
    outcome: broker::Outcome,
    /// Whether the receiver has settled already.
    settled: bool,
}

impl Transactions {
    /// Bytes that the transactions take.
    pub(super) fn bytes(&self) -> usize {
        let each = self.declared.values().map(|transaction| {
            transaction.posted_bytes as usize
                + transaction.posted.len() * size_of::<Message>()
                + transaction.retired.len() * size_of::<Retired>()
        });
        each.sum()
    }

    /// # Panics
    /// Where the bytes are not those of the messages, or a coordinator's link is gone.
    pub(super) fn check(&self, targets: &Links<TargetLink>) {
        for transaction in self.declared.values() {
            let posted = transaction.posted.iter();
            let posted_bytes: u64 = posted.map(|message| message.body_bytes() as u64).sum();
            assert_eq!(
                transaction.posted_bytes, posted_bytes,
                "bytes of posted messages"
            );
            let coordinator = targets.get(&transaction.coordinator);
            assert!(
                coordinator.is_some_and(|link| link.node == Target::Coordinator),
                "a transaction ends with its coordinator"
            );
        }
    }
}

impl Transaction {
    fn has_room(&self, config: &Amqp, bytes: u64) -> bool {
        self.posted.len() + self.retired.len() < config.maximum_transaction_deliveries as usize
            && self.posted_bytes + bytes <= config.maximum_transaction_bytes
    }
}

fn id_of(txn_id: &[u8]) -> Option<u32> {
    txn_id.try_into().ok().map(u32::from_be_bytes)
}

const UNKNOWN: (Condition, &str) = (
    Condition::TRANSACTION_UNKNOWN_ID,
    "there is no such transaction",
);
const TOO_LARGE: (Condition, &str) = (
    Condition::RESOURCE_LIMIT_EXCEEDED,
    "the transaction is too large",
);

impl Door {
    /// A message to the coordinator.
    pub(super) fn transaction_request(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
    ) {
        let mut promise = Promise::on(cx, client.listener);
        let result = match Request::decode(&delivery.payload) {
            Err(error) => Err(refusal(error.condition, error.detail)),
            Ok(Request::Declare(declare)) if declare.global_id.is_some() => {
                let detail = "distributed transactions are not served";
                Err(refusal(Condition::NOT_IMPLEMENTED, detail))
            }
            Ok(Request::Declare(_)) => declare(cx, client, delivery.link),
            Ok(Request::Discharge(discharge)) => {
                let declared = &client.transactions.declared;
                let transaction = id_of(discharge.txn_id).and_then(|id| declared.get(&id));
                promise = transaction.map_or(promise, |transaction| transaction.promise);
                let (result, token) = cx.appended(|cx| Self::discharge(cx, client, &discharge));
                promise = promise.at(token);
                result.map(|settled| {
                    if !settled.is_empty() {
                        // Receivers that settle second forget these deliveries.
                        promise = promise.and(Promise::once(cx, client.listener));
                    }
                    for settled in settled {
                        self.acknowledge(cx, client, promise, settled);
                    }
                    None
                })
            }
        };
        let id;
        let state = match &result {
            Ok(None) => DeliveryState::ACCEPTED,
            Ok(Some(declared)) => {
                id = declared.to_be_bytes();
                DeliveryState::Declared(Declared { txn_id: &id })
            }
            Err((condition, detail)) => {
                if let Some(line) = cx.repeats(client.id, &client.container, detail) {
                    tracing::info!(
                        peer = line.peer,
                        client = &*client.container,
                        user = client.user(),
                        condition = condition.as_str(),
                        detail,
                        more = line.more,
                        "transaction refused"
                    );
                }
                rejected(*condition, detail)
            }
        };
        self.dispose(cx, client, delivery, &state, promise);
        self.renew_credit(cx, client, delivery.link);
    }

    /// Ends a transaction; the settlements of deliveries to the client that are to be told.
    fn discharge(
        cx: &mut Context<'_>,
        client: &mut Client,
        discharge: &Discharge<'_>,
    ) -> Result<Vec<Acknowledgement>, Refusal> {
        let mut transaction = id_of(discharge.txn_id)
            .and_then(|id| client.transactions.declared.remove(&id))
            .ok_or_else(|| refusal(UNKNOWN.0, UNKNOWN.1))?;
        if discharge.fail {
            Self::roll_back(cx, client, transaction, broker::Outcome::Failed);
            return Ok(Vec::new());
        }
        // A transaction takes effect as a whole or not at all.
        let gone = |retired: &Retired| is_gone(cx, retired);
        if transaction.retired.iter().any(gone) {
            Self::roll_back(cx, client, transaction, broker::Outcome::Released);
            let detail = "a delivery that is settled in the transaction is its link's no more";
            return Err(refusal(Condition::TRANSACTION_ROLLBACK, detail));
        }
        // The rules may have changed since it was posted.
        let mut posted = transaction.posted.iter();
        if !posted.all(|message| may_publish(cx, client, message.topic(), MessageKind::of(message)))
        {
            Self::roll_back(cx, client, transaction, broker::Outcome::Released);
            let detail = "the rules do not allow any more to publish what the transaction posts";
            return Err(refusal(Condition::TRANSACTION_ROLLBACK, detail));
        }
        // Retired deliveries are kept together with the posted messages. Otherwise a crash could come in between.
        // Then the deliveries would come again, and their messages would be posted twice.
        let retired = transaction.retired.iter();
        let retired = retired.filter(|retired| retired.tag != 0);
        let ended = retired.map(|retired| CompanionRecord::Ended {
            session: retired.session,
            tag: retired.tag,
            outcome: retired.outcome,
        });
        let ended: Vec<_> = ended.collect();
        let posted = std::mem::take(&mut transaction.posted);
        let count = posted.len();
        let most = cx.policy.amqp.maximum_transaction_copies.into();
        if count > 1 && !cx.broker.makes_within(&posted, most) {
            let drops = &cx.meters.drops;
            drops.count_refused(Protocol::Amqp, PublishRefusal::QueueFull, count);
            Self::roll_back(cx, client, transaction, broker::Outcome::Released);
            let detail = "its messages go to more readers than amqp.maximum_transaction_copies";
            return Err(refusal(Condition::TRANSACTION_ROLLBACK, detail));
        }
        let publisher = cx.publisher(client.id, client.user());
        let routed = cx.publish_together((&client.container, publisher), posted, &ended);
        if let Some(why) = routed.refused {
            cx.meters.drops.count_refused(Protocol::Amqp, why, count);
            Self::roll_back(cx, client, transaction, broker::Outcome::Released);
            return Err(refusal(Condition::TRANSACTION_ROLLBACK, why.detail()));
        }
        let now_ms = cx.now_ms;
        let (mut returned, mut settled) = (Returned::new(), Vec::new());
        for retired in transaction.retired {
            if retired.tag == 0 {
            } else if is_returning(retired.outcome) {
                modify(
                    cx,
                    client.id,
                    retired.session,
                    retired.tag,
                    &retired.state.view(),
                );
                returned.push((retired.session, retired.tag, retired.outcome));
            } else {
                let Retired { session, tag, .. } = retired;
                cx.broker
                    .settle_for_good(now_ms, session, tag, retired.outcome);
            }
            if !retired.settled {
                settled.push(Acknowledgement::Settled {
                    session: retired.link.session,
                    delivery_id: retired.delivery_id,
                    state: retired.state,
                });
            }
        }
        give_back(cx, &mut returned);
        Ok(settled)
    }

    /// Undoes a transaction: nothing is published, and deliveries that their receiver has settled already go back
    /// to their queue with this outcome: they have failed only if the client says that the transaction has. Deliveries
    /// that it has not settled are as before.
    fn roll_back(
        cx: &mut Context<'_>,
        client: &Client,
        transaction: Transaction,
        outcome: broker::Outcome,
    ) {
        tracing::debug!(
            client = &*client.container,
            posted = transaction.posted.len(),
            retired = transaction.retired.len(),
            "transaction rolled back"
        );
        let mut returned: Returned = transaction
            .retired
            .into_iter()
            .filter(|retired| retired.settled && retired.tag != 0)
            .map(|retired| (retired.session, retired.tag, outcome))
            .collect();
        give_back(cx, &mut returned);
    }

    /// Keeps a message for the discharge.
    pub(super) fn post(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
        txn_id: &[u8],
        message: Result<Message, Refusal>,
    ) {
        let promise = Promise::on(cx, client.listener);
        let of_message = message.as_ref().map_or(promise, |message| {
            Promise::of_message(
                cx,
                client.listener,
                client.subject(cx),
                message.topic(),
                MessageKind::of(message),
            )
        });
        let transaction = id_of(txn_id).and_then(|id| client.transactions.declared.get_mut(&id));
        let Some(transaction) = transaction else {
            let error = Error::new(UNKNOWN.0, UNKNOWN.1);
            // A link that is gone needs no error.
            let _ = client
                .engine
                .detach(delivery.link, true, Some(error), &mut self.out);
            return;
        };
        let result = message.and_then(|message| {
            let bytes = message.body_bytes() as u64;
            if !transaction.has_room(&cx.policy.amqp, bytes) {
                let of = (&*client.container, message.topic());
                cx.meters
                    .refuse(Protocol::Amqp, of, DropReason::QueueRefused);
                return Err(refusal(TOO_LARGE.0, TOO_LARGE.1));
            }
            transaction.posted_bytes += bytes;
            transaction.posted.push(message);
            transaction.promise = transaction.promise.and(of_message);
            Ok(promise)
        });
        if result.is_err() {
            return self.conclude(cx, client, delivery, result);
        }
        self.write_accepted(cx, client);
        let state = DeliveryState::Transactional(TransactionalState {
            txn_id,
            outcome: Some(Outcome::Accepted),
        });
        self.settle_received(client, delivery, &state);
    }

    /// Keeps the outcome of a delivery to a receiver for the discharge.
    pub(super) fn retire(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        disposed: &Disposed,
        session: SessionKey,
        state: &TransactionalState<'_>,
        returned: &mut Returned,
    ) {
        let outcome = state.outcome.clone().unwrap_or(Outcome::Accepted);
        let retired = Retired {
            link: disposed.link,
            session,
            delivery_id: disposed.delivery_id,
            tag: disposed.token,
            outcome: broker_outcome(&outcome),
            state: DeliveryStateBuf::new(&DeliveryState::Outcome(outcome)),
            settled: disposed.settled,
        };
        let transaction =
            id_of(state.txn_id).and_then(|id| client.transactions.declared.get_mut(&id));
        let (condition, detail) = match transaction {
            Some(transaction) if transaction.has_room(&cx.policy.amqp, 0) => {
                // The last word on a delivery holds.
                transaction
                    .retired
                    .retain(|known| (known.session, known.tag) != (session, retired.tag));
                transaction.retired.push(retired);
                return;
            }
            Some(_) => TOO_LARGE,
            None => UNKNOWN,
        };
        if retired.settled && retired.tag != 0 {
            returned.push((session, retired.tag, broker::Outcome::Released));
        }
        // A link that is gone needs no error.
        self.detach_source(client, disposed.link, true, (condition, detail));
    }

    /// Ends the transactions of a coordinator's link, or all.
    pub(super) fn roll_back_all(
        cx: &mut Context<'_>,
        client: &mut Client,
        coordinator: Option<LinkId>,
    ) {
        let of = |transaction: &Transaction| {
            coordinator.is_none_or(|link| transaction.coordinator == link)
        };
        let ids: Vec<u32> = client
            .transactions
            .declared
            .iter()
            .filter(|(_, transaction)| of(transaction))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(transaction) = client.transactions.declared.remove(&id) {
                Self::roll_back(cx, client, transaction, broker::Outcome::Released);
            }
        }
    }
}

/// Whether a retired delivery is the receiver's no more: its link is gone, or it went back without the transaction.
fn is_gone(cx: &Context<'_>, retired: &Retired) -> bool {
    let Retired { session, tag, .. } = *retired;
    if tag == 0 {
        return cx.broker.protocol(session).is_none();
    }
    let sent = cx.broker.unacknowledged_by_tag(session, tag);
    !matches!(sent, Some(Unacknowledged::Sent(_)))
}

fn declare(
    cx: &Context<'_>,
    client: &mut Client,
    coordinator: LinkId,
) -> Result<Option<u32>, Refusal> {
    debug_assert!(
        client
            .targets
            .get(&coordinator)
            .is_some_and(|link| link.node == Target::Coordinator),
        "a transaction is declared to a coordinator"
    );
    let transactions = &mut client.transactions;
    if transactions.declared.len() >= cx.policy.amqp.maximum_transactions as usize {
        let detail = "too many transactions at a time";
        return Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, detail));
    }
    let id = new_id(&transactions.declared)?;
    transactions.declared.insert(
        id,
        Transaction {
            coordinator,
            posted: Vec::new(),
            posted_bytes: 0,
            promise: Promise::on(cx, client.listener),
            retired: Vec::new(),
        },
    );
    Ok(Some(id))
}

/// An identifier at random. A client that goes on with a transaction of a lost connection then meets
/// none of its new connection's.
fn new_id(declared: &FxHashMap<u32, Transaction>) -> Result<u32, Refusal> {
    let mut random = [0; 4];
    loop {
        getrandom::fill(&mut random).map_err(|_| {
            let detail = "no randomness for a transaction";
            refusal(Condition::INTERNAL_ERROR, detail)
        })?;
        let id = u32::from_be_bytes(random);
        if !declared.contains_key(&id) {
            return Ok(id);
        }
    }
}
