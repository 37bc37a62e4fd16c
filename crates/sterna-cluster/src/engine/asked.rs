//! Questions of one node's operators to the door of another.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Request;
use bytes::Bytes;

use super::Core;
use crate::owners::{number, put_number};
use crate::port::{Answerer, NodeAnswer, NodeQuestion, ToShard};
use crate::subjects;

/// Bytes of a message that NATS itself may add: room below its `max_payload`.
const ROOM_BYTES: usize = 1_024;

impl Core {
    /// Asks another node's door, and answers within the question's time.
    pub(super) async fn ask_node(self: Rc<Self>, question: NodeQuestion) {
        let NodeQuestion {
            node,
            question,
            within_ms,
            maximum_bytes,
            reply,
        } = question;
        let within = Duration::from_millis(within_ms);
        let asked = self.answer_of_node(&node, &question, within, maximum_bytes);
        let answer = tokio::time::timeout(within, asked).await;
        (reply.0)(answer.unwrap_or(NodeAnswer::Away));
    }

    async fn answer_of_node(
        &self,
        node: &str,
        question: &[u8],
        within: Duration,
        maximum_bytes: usize,
    ) -> NodeAnswer {
        // A request would wait for a server.
        if !self.status.is_connected() {
            return NodeAnswer::Away;
        }
        let mut asked = Vec::with_capacity(question.len() + 10);
        put_number(&mut asked, maximum_bytes as u64);
        asked.extend_from_slice(question);
        if asked.len() > self.most_in_message() {
            return NodeAnswer::TooLarge;
        }
        let subject = self.settings.subject(&subjects::door(node));
        let request = Request::new().payload(asked.into()).timeout(Some(within));
        match self.client.send_request(subject, request).await {
            Ok(answer) => read_answer(answer.payload, maximum_bytes),
            Err(error) => {
                tracing::debug!(node, %error, "a node does not answer operators");
                NodeAnswer::Away
            }
        }
    }

    /// Passes on to a shard what operators of other nodes ask this one.
    pub(super) async fn answer_operators(self: Rc<Self>) {
        let pass_on = async |asked: async_nats::Message| {
            let Some(reply) = asked.reply else {
                return;
            };
            let Some((maximum_bytes, question)) = read_question(&asked.payload) else {
                tracing::debug!("the operator of a node asks what this node does not understand");
                return;
            };
            let (sender, receiver) = tokio::sync::oneshot::channel::<Vec<u8>>();
            let core = Rc::clone(&self);
            self.spawn(async move {
                // The node that asks gives up by itself where there is no answer.
                if let Ok(answer) = receiver.await {
                    let most_bytes = maximum_bytes.min(core.most_in_message());
                    let answer = fitting(answer, most_bytes);
                    let _ = core.client.publish(reply, answer.into()).await;
                }
            });
            let answer = Answerer::new(move |answer| {
                let _ = sender.send(answer);
            });
            self.post(0, ToShard::NodeQuestion { question, answer });
        };
        let subject = subjects::door(&self.settings.node);
        self.hear_each(&subject, pass_on).await;
    }

    /// Most bytes that one message of NATS has room for.
    fn most_in_message(&self) -> usize {
        let most = self.client.server_info().max_payload;
        most.saturating_sub(ROOM_BYTES)
    }

    /// Notes for other threads which nodes there are.
    pub(super) fn note_roster(&self) {
        let table = self.table.borrow();
        let others = table.nodes().filter_map(|(node, presence, _)| {
            let is_here = match presence {
                crate::table::Presence::Here => true,
                crate::table::Presence::Away => false,
                // It left, or others have taken over what it had.
                crate::table::Presence::Gone => return None,
            };
            Some((Arc::clone(node), is_here))
        });
        self.status.note_roster(others.collect());
    }
}

/// The question of a node, with the bytes that its answer may have.
fn read_question(payload: &Bytes) -> Option<(usize, Bytes)> {
    let mut rest = &payload[..];
    let maximum_bytes = usize::try_from(number(&mut rest)?).ok()?;
    Some((maximum_bytes, payload.slice_ref(rest)))
}

/// An answer that may be sent: an empty one says that it would be too large.
fn fitting(answer: Vec<u8>, most_bytes: usize) -> Vec<u8> {
    if answer.len() > most_bytes {
        return Vec::new();
    }
    answer
}

fn read_answer(answer: Bytes, maximum_bytes: usize) -> NodeAnswer {
    if answer.is_empty() || answer.len() > maximum_bytes {
        return NodeAnswer::TooLarge;
    }
    NodeAnswer::Said(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_says_how_large_its_answer_may_be() {
        let mut asked = Vec::new();
        put_number(&mut asked, 70_000);
        asked.extend_from_slice(b"what");
        let (most, question) = read_question(&asked.into()).expect("it is one");
        assert_eq!((most, &question[..]), (70_000, &b"what"[..]));
        for other in [&b""[..], b"\xff"] {
            assert!(
                read_question(&Bytes::copy_from_slice(other)).is_none(),
                "{other:?}"
            );
        }
    }

    #[test]
    fn an_answer_that_is_too_large_is_neither_sent_nor_read() {
        assert_eq!(fitting(vec![1; 7], 7).len(), 7);
        assert!(fitting(vec![1; 8], 7).is_empty());
        let read = |bytes: usize| read_answer(vec![1; bytes].into(), 7);
        assert_eq!(read(7), NodeAnswer::Said(vec![1; 7].into()));
        // A node of another program may send more than it was asked for.
        assert_eq!(read(8), NodeAnswer::TooLarge);
        assert_eq!(read(0), NodeAnswer::TooLarge);
    }
}
