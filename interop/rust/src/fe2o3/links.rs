//! Each link is a task that owns it and takes commands, since the library's links are used by one at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::transaction::{OwnedTransaction, TransactionPosting, TransactionRetirement};
use fe2o3_amqp::types::messaging::{
    Accepted, Body, Message, Modified, Outcome, Rejected, Released,
};
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Receiver, Sendable, Sender};
use fe2o3_amqp_types::definitions::{AmqpError, Error, ErrorCondition};
use serde_json::{Value as Json, json};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::values::{from_message, to_message};
use crate::{Answer, condition, out, refused};

/// A transaction until it is discharged.
pub(crate) type Transaction = Arc<Mutex<Option<OwnedTransaction>>>;

/// What a link is told to do, and where the answer goes.
pub(crate) type Command = (Json, Option<Transaction>, oneshot::Sender<Answer>);

/// Messages of a burst that may be unsettled at once.
const WINDOW: usize = 100;

static DELIVERIES: AtomicU64 = AtomicU64::new(1);

pub(crate) fn told(outcome: &Outcome) -> Json {
    match outcome {
        Outcome::Accepted(_) => json!({"state": "accepted"}),
        Outcome::Released(_) => json!({"state": "released"}),
        Outcome::Rejected(Rejected { error }) => {
            let found = error.as_ref().map(|error| format!("{:?}", error.condition));
            json!({"state": "rejected", "condition": found.and_then(|text| condition(&text))})
        }
        Outcome::Modified(modified) => json!({
            "state": "modified", "failed": modified.delivery_failed.unwrap_or_default(),
            "undeliverable": modified.undeliverable_here.unwrap_or_default(),
        }),
        other => json!({"state": format!("{other:?}")}),
    }
}

fn outcome(said: &Json) -> Outcome {
    match said["state"].as_str() {
        Some("accepted") => Outcome::Accepted(Accepted {}),
        Some("released") => Outcome::Released(Released {}),
        Some("rejected") => Outcome::Rejected(Rejected {
            error: said["condition"].as_str().map(|_| {
                let condition = ErrorCondition::AmqpError(AmqpError::DecodeError);
                Error::new(condition, Some("as the step wants".to_owned()), None)
            }),
        }),
        _ => Outcome::Modified(Modified {
            delivery_failed: said["failed"].as_bool(),
            undeliverable_here: said["undeliverable"].as_bool(),
            message_annotations: None,
        }),
    }
}

type Content = Message<Body<Value>>;

fn sendable(message: Content, settled: bool) -> Sendable<Body<Value>> {
    Sendable::builder()
        .message(message)
        .settled(settled)
        .build()
}

/// Serves a sender until it is closed.
pub(crate) async fn send(mut link: Sender, mut commands: mpsc::UnboundedReceiver<Command>) {
    while let Some((said, transaction, answer)) = commands.recv().await {
        let settled = said["settled"].as_bool().unwrap_or_default();
        match said["op"].as_str() {
            Some("send") => {
                let message = match to_message(&said["m"]) {
                    Ok(message) => message,
                    Err(why) => {
                        let _ = answer.send(Answer::refused(why, None));
                        continue;
                    }
                };
                if let Some(transaction) = transaction {
                    let held = transaction.lock().await;
                    let result = match held.as_ref() {
                        Some(open) => match open.post(&mut link, sendable(message, false)).await {
                            Ok(found) => Answer::Ok(told(&found)),
                            Err(why) => refused(&why),
                        },
                        None => Answer::refused("the transaction is over", None),
                    };
                    let _ = answer.send(result);
                    continue;
                }
                match link.send_batchable(sendable(message, settled)).await {
                    Ok(_) if settled => {
                        let _ = answer.send(Answer::Ok(json!({"state": "settled"})));
                    }
                    Ok(settlement) => {
                        tokio::spawn(async move {
                            let _ = answer.send(match settlement.await {
                                Ok(found) => Answer::Ok(told(&found)),
                                Err(why) => refused(&why),
                            });
                        });
                    }
                    Err(why) => {
                        let _ = answer.send(refused(&why));
                    }
                }
            }
            Some("burst") => {
                let _ = answer.send(burst(&mut link, &said, settled).await);
            }
            _ => {
                let result = if said["closed"].as_bool().unwrap_or(true) {
                    link.close().await.map_err(|why| refused(&why))
                } else {
                    link.detach()
                        .await
                        .map(drop)
                        .map_err(|(_, why)| refused(&why))
                };
                let _ = answer.send(result.map_or_else(|why| why, |()| Answer::Ok(json!({}))));
                return;
            }
        }
    }
}

async fn burst(link: &mut Sender, said: &Json, settled: bool) -> Answer {
    let count = said["count"].as_u64().unwrap_or_default();
    let size = said["size"].as_u64().unwrap_or_default() as usize;
    let mut states: HashMap<String, u64> = HashMap::new();
    let mut waiting = std::collections::VecDeque::new();
    for number in 0..count {
        let body =
            fe2o3_amqp::types::messaging::Data(format!("{number:<size$}").into_bytes().into());
        let message = Message::builder().data(body).build();
        let message = Sendable::builder()
            .message(message)
            .settled(settled)
            .build();
        match link.send_batchable(message).await {
            Ok(_) if settled => *states.entry("settled".to_owned()).or_default() += 1,
            Ok(settlement) => waiting.push_back(settlement),
            Err(why) => return refused(&why),
        }
        let last = number + 1 == count;
        while waiting.len() > if last { 0 } else { WINDOW } {
            let Some(settlement) = waiting.pop_front() else {
                break;
            };
            match settlement.await {
                Ok(found) => {
                    let state = told(&found)["state"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned();
                    *states.entry(state).or_default() += 1;
                }
                Err(why) => return refused(&why),
            }
        }
    }
    Answer::Ok(json!({ "states": states }))
}

/// Serves a receiver until it is closed.
pub(crate) async fn receive(
    mut link: Receiver,
    number: u64,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut deliveries: HashMap<u64, DeliveryInfo> = HashMap::new();
    let mut draining: Option<oneshot::Sender<Answer>> = None;
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let mut ended = false;
    loop {
        let (said, transaction, answer) = tokio::select! {
            arrived = link.recv::<Body<Value>>(), if !ended => {
                match arrived {
                    Ok(delivery) => {
                        let d = DELIVERIES.fetch_add(1, Ordering::SeqCst);
                        let (info, message) = delivery.into_parts();
                        deliveries.insert(d, info);
                        // Whether it came settled the library does not show.
                        out(&json!({"event": "message", "l": number, "d": d, "settled": null, "m": from_message(message)}));
                    }
                    Err(why) => {
                        ended = true;
                        let text = format!("{why:?}");
                        out(&json!({"event": "detached", "l": number, "closed": true, "condition": condition(&text), "description": text}));
                    }
                }
                continue;
            }
            _ = tick.tick(), if draining.is_some() => {
                if link.credit() == 0
                    && let Some(answer) = draining.take()
                {
                    let _ = answer.send(Answer::Ok(json!({})));
                }
                continue;
            }
            command = commands.recv() => match command {
                Some(command) => command,
                None => return,
            },
        };
        let result = match said["op"].as_str() {
            Some("credit") => {
                let more = said["credit"].as_u64().unwrap_or_default() as u32;
                let total = link.credit() + more;
                link.set_credit(total).await.map_err(|why| refused(&why))
            }
            Some("drain") => match link.drain().await {
                Ok(()) => {
                    draining = Some(answer);
                    continue;
                }
                Err(why) => Err(refused(&why)),
            },
            Some("settle") => {
                let found = said["d"].as_u64().and_then(|d| deliveries.remove(&d));
                match (found, transaction) {
                    (None, _) => Err(Answer::refused("no such delivery", None)),
                    (Some(info), Some(transaction)) => match transaction.lock().await.as_ref() {
                        Some(open) => open
                            .retire(&mut link, info, outcome(&said))
                            .await
                            .map_err(|why| refused(&why)),
                        None => Err(Answer::refused("the transaction is over", None)),
                    },
                    (Some(info), None) => match outcome(&said) {
                        Outcome::Accepted(_) => link.accept(info).await,
                        Outcome::Released(_) => link.release(info).await,
                        Outcome::Rejected(rejected) => link.reject(info, rejected.error).await,
                        Outcome::Modified(modified) => link.modify(info, modified).await,
                        _ => Ok(()),
                    }
                    .map_err(|why| refused(&why)),
                }
            }
            _ => {
                let result = if said["closed"].as_bool().unwrap_or(true) {
                    link.close().await.map_err(|why| refused(&why))
                } else {
                    link.detach()
                        .await
                        .map(drop)
                        .map_err(|(_, why)| refused(&why))
                };
                let _ = answer.send(result.map_or_else(|why| why, |()| Answer::Ok(json!({}))));
                return;
            }
        };
        let _ = answer.send(result.map_or_else(|why| why, |()| Answer::Ok(json!({}))));
    }
}
