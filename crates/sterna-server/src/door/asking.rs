//! Actions of a client that wait for the webhook's answer.

use sterna_net::ConnectionId;

use crate::authorization::{MessageKind, Subject};
use crate::config::ActionName;
use crate::context::Context;
use crate::identity::{Access, WebhookTicket};
use crate::mail::Mail;

/// Most questions for one packet or request. The rules refuse an action that is not asked about.
const MAXIMUM_QUESTIONS: u8 = 64;

/// The question to the webhook under way, and the number of questions since an action was last let through.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    ticket: Option<Box<WebhookTicket>>,
    questions: u8,
}

impl Asking {
    /// Whether an answer is awaited.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.ticket.is_some()
    }

    /// The answer has come; false if none was awaited.
    pub(crate) fn answered(&mut self) -> bool {
        self.ticket.take().is_some()
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
        if !asks || self.questions >= MAXIMUM_QUESTIONS {
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
        let Some(origin) = cx.net.info(connection).map(|info| info.peer.ip()) else {
            return false;
        };
        let ticket = cx.policy.webhook.authorize(&access, origin, move || {
            post(Mail::Judged {
                connection,
                number,
                outcome: Ok(None),
            });
        });
        self.questions += 1;
        match ticket {
            Ok(ticket) => self.ticket = Some(Box::new(ticket)),
            Err(refusal) => {
                let peer = cx.net.info(connection).map(|info| info.peer);
                tracing::info!(
                    peer = peer.map(tracing::field::display),
                    user = subject.user,
                    client = subject.client,
                    topic,
                    reason = refusal.name(),
                    "the webhook cannot be asked"
                );
            }
        }
        self.ticket.is_some()
    }

    /// An action was let through.
    pub(crate) const fn passed(&mut self) {
        self.questions = 0;
    }
}
