//! Actions of a client that wait for the webhook's answer.

use sterna_net::ConnectionId;

use crate::authorization::{MessageKind, Subject};
use crate::config::ActionName;
use crate::context::Context;
use crate::identity::{Access, Refusal, WebhookSubject, WebhookTicket};
use crate::mail::Mail;

/// Most questions for one packet or request. The rules refuse an action that is not asked about.
const MAXIMUM_QUESTIONS: u8 = 64;

/// The questions to the webhook since an action was last let through; `None` if there was none.
#[derive(Debug, Default)]
pub(crate) struct Asking(Option<Box<Questions>>);

#[derive(Debug, Default)]
struct Questions {
    /// The question under way.
    ticket: Option<WebhookTicket>,
    /// How many there were.
    asked: u8,
}

impl Asking {
    /// Whether an answer is awaited.
    pub(crate) fn is_waiting(&self) -> bool {
        (self.0.as_ref()).is_some_and(|questions| questions.ticket.is_some())
    }

    /// The answer has come; false if none was awaited.
    pub(crate) fn answered(&mut self) -> bool {
        (self.0.as_mut()).is_some_and(|questions| questions.ticket.take().is_some())
    }

    /// Whether an action has to wait: a rule asks, and there is no recent answer. `kind` is that of a message
    /// that is published. The letter with the answer carries `number`. The rules refuse an action that cannot be
    /// asked about now.
    pub(crate) fn must_wait(
        &mut self,
        cx: &Context<'_>,
        (connection, number): (ConnectionId, u64),
        subject: Subject<'_>,
        action: ActionName,
        (topic, kind): (&str, MessageKind),
    ) -> bool {
        let asks = cx.policy.rules.asks(subject, action, topic, kind);
        let asked = self.0.as_ref().map_or(0, |questions| questions.asked);
        if !asks || asked >= MAXIMUM_QUESTIONS {
            return false;
        }
        let Some(post) = cx.outbox.postbox(cx.shard) else {
            return false;
        };
        let access = Access {
            user: subject.user.map(Into::into),
            client: subject.client.into(),
            action,
            topic: topic.into(),
        };
        let Some(origin) = cx.address(connection) else {
            return false;
        };
        let ticket = cx.policy.webhook.authorize(&access, origin, move || {
            post(Mail::Judged {
                connection,
                number,
                outcome: Ok(None),
            });
        });
        let questions = self.0.get_or_insert_default();
        questions.asked += 1;
        match ticket {
            Ok(ticket) => questions.ticket = Some(ticket),
            Err(refusal) => {
                if let Some(line) = cx.repeats(connection, subject.client, refusal.detail()) {
                    let about = WebhookSubject::Authorization;
                    let cause = cx.policy.webhook.last_failure(about);
                    tracing::info!(
                        peer = line.peer,
                        user = subject.user,
                        client = subject.client,
                        topic,
                        reason = refusal.name(),
                        cause = cause.filter(|_| refusal == Refusal::Webhook),
                        more = line.more,
                        "the webhook cannot be asked"
                    );
                }
            }
        }
        questions.ticket.is_some()
    }

    /// An action was let through.
    pub(crate) fn passed(&mut self) {
        self.0 = None;
    }
}
