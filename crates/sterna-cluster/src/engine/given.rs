//! Batches that must arrive and are given from node to node, without a place in NATS between them.
//!
//! The node that takes a batch answers when its shards have it: it is lost only with the process, and the sessions with
//! it. Another answer, or none, sends the batch to the inbox of that node, as if it had not been given.
//!
//! A process is given batches by its incarnation. So one whose name another process has by now takes nothing for it.

use std::rc::Rc;
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, Request, Subject};
use bytes::Bytes;

use super::Core;
use super::incoming::{number_of, source_of};
use crate::arrivals::Verdict;
use crate::subjects;

/// The answers to a batch.
const TAKEN: &str = "taken";
const BEHIND: &str = "behind";

/// A batch that another node has given.
#[derive(Debug)]
pub(super) struct Given {
    subject: Subject,
    payload: Bytes,
    /// Where its node waits for the answer.
    reply: Subject,
}

impl Core {
    /// Gives a batch to a process of another node, and waits for its answer for `cluster.give_timeout_ms`. Returns
    /// whether it has taken the batch; `None` without an answer.
    pub(super) async fn give(
        &self,
        node: &str,
        incarnation: u64,
        id: &str,
        payload: Bytes,
    ) -> Option<bool> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        let within = Duration::from_millis(self.settings.give_timeout_ms);
        let request = (Request::new().headers(headers))
            .payload(payload)
            .timeout(Some(within));
        let subject = subjects::give(node, incarnation, &self.settings.node);
        let subject = self.settings.subject(&subject);
        match self.client.send_request(subject, request).await {
            Ok(answer) => Some(*answer.payload == *TAKEN.as_bytes()),
            Err(error) => {
                tracing::debug!(node, %error, "a node does not take a batch: it goes to the inbox");
                None
            }
        }
    }

    /// Hears what other nodes give. The newest batch of each waits, however long the one before it takes.
    pub(super) async fn receive_given(self: Rc<Self>) {
        let hear = async |batch: async_nats::Message| {
            if batch.payload.is_empty() && batch.reply.is_none() {
                // A trial of rights.
                return;
            }
            let number = number_of(batch.headers.as_ref());
            let (Some(number), Some(reply)) = (number, batch.reply) else {
                return self.cannot_read(
                    "given batch",
                    &batch.subject,
                    "it has no number or no reply",
                );
            };
            let given = Given {
                subject: batch.subject.clone(),
                payload: batch.payload,
                reply,
            };
            let source = source_of(&batch.subject);
            (self.arrivals.borrow_mut()).give(self.now_ms(), source, number, given);
            self.given_arrived.notify_one();
        };
        let subject = subjects::give(&self.settings.node, self.incarnation.get(), "*");
        self.hear_each(&subject, hear).await;
    }

    /// Takes what other nodes have given, between batches of the inbox.
    pub(super) async fn take_given(self: Rc<Self>) {
        loop {
            let mut pace = self.pace.lock().await;
            let decided = self.arrivals.borrow_mut().decide();
            let Some((verdict, given)) = decided else {
                drop(pace);
                self.given_arrived.notified().await;
                continue;
            };
            if verdict == Verdict::Next {
                self.deliver_batch(&mut pace, &given.subject, &given.payload)
                    .await;
            }
            drop(pace);
            let answer = match verdict {
                Verdict::Next => TAKEN,
                Verdict::Repeated => {
                    self.status.repeated_batches.add(1);
                    TAKEN
                }
                Verdict::Behind => BEHIND,
            };
            // Without it the batch comes by the inbox, too.
            let _ = self.client.publish(given.reply, answer.into()).await;
        }
    }
}
