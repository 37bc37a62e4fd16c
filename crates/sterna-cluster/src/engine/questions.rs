//! Questions to the node that has a session, from a node whose client asks about it.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use sterna_broker::SessionName;

use super::Core;
use super::sessions::key_of;
use crate::owners::{number, put_number};
use crate::port::{Answer, Answerer, QuestionReply, ToShard};
use crate::subjects;

impl Core {
    /// Asks the node that has a session, and answers within `cluster.answer_timeout_ms`.
    pub(super) async fn ask_owner(
        self: Rc<Self>,
        name: SessionName,
        question: Bytes,
        reply: QuestionReply,
    ) {
        let within = Duration::from_millis(self.settings.answer_timeout_ms);
        let asked = self.answer_of_owner(&name, &question);
        let answer = tokio::time::timeout(within, asked).await;
        (reply.0)(answer.unwrap_or(Answer::Away));
    }

    async fn answer_of_owner(&self, name: &SessionName, question: &[u8]) -> Answer {
        let Ok(found) = self.read_session(key_of(name)).await else {
            return Answer::Away;
        };
        let Some((_, record)) = found.filter(|(_, record)| !record.is_over) else {
            return Answer::NoSession;
        };
        if record.name != *name {
            return Answer::NoSession;
        }
        let subject = subjects::asked_for(&record.owner.node);
        let mut asked = Vec::new();
        put_number(&mut asked, name.text().len() as u64);
        asked.extend_from_slice(name.text().as_bytes());
        asked.extend_from_slice(question);
        let subject = self.settings.subject(&subject);
        match self.client.request(subject, asked.into()).await {
            // It has lost the session since, or has no client that asks like this.
            Ok(answer) if answer.payload.is_empty() => Answer::Away,
            Ok(answer) => Answer::Said(answer.payload),
            Err(error) => {
                tracing::debug!(%error, "the node that has a session does not answer");
                Answer::Away
            }
        }
    }

    /// Passes on to shards what other nodes ask about this one's sessions.
    pub(super) async fn answer_about_sessions(self: Rc<Self>) {
        let pass_on = async |asked: async_nats::Message| {
            let Some(reply) = asked.reply else {
                return;
            };
            let (sender, receiver) = tokio::sync::oneshot::channel::<Vec<u8>>();
            let core = Rc::clone(&self);
            self.spawn(async move {
                // Nobody answers for a session that is not here.
                let answer = receiver.await.unwrap_or_default();
                let _ = core.client.publish(reply, answer.into()).await;
            });
            let Some((name, question)) = read(&asked.payload) else {
                tracing::debug!("a node asks what this one does not understand");
                return;
            };
            if self.owners.borrow().epoch(key_of(&name)).is_some() {
                let answer = Answerer(Box::new(move |answer| {
                    let _ = sender.send(answer);
                }));
                self.post(
                    0,
                    ToShard::Question {
                        name,
                        question,
                        answer,
                    },
                );
            }
        };
        let subject = subjects::asked_for(&self.settings.node);
        self.hear_each(&subject, pass_on).await;
    }
}

/// The session's name and the question of what a node asks.
fn read(payload: &Bytes) -> Option<(SessionName, Bytes)> {
    let mut rest = &payload[..];
    let len = usize::try_from(number(&mut rest)?).ok()?;
    let (name, question) = rest.split_at_checked(len)?;
    let name = SessionName::of_text(std::str::from_utf8(name).ok()?)?;
    Some((name, payload.slice_ref(question)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_or_not() {
        let asked = Bytes::from_static(b"\x053:a/bwhat");
        let (name, question) = read(&asked).expect("it is one");
        assert_eq!((name.id(), &question[..]), ("a/b", &b"what"[..]));
        for other in [&b""[..], b"\x063:a/b", b"\x01\xff", b"\x03a/b"] {
            assert!(read(&Bytes::copy_from_slice(other)).is_none(), "{other:?}");
        }
    }
}
