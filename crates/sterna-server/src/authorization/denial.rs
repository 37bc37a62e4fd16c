//! Why an action is refused, in words: for the log, and for the client.

use std::borrow::Cow;
use std::sync::Arc;

use sterna_mqtt::topic;

use super::{Answer, By, MessageKind, Reading, Reason, Rules, Subject};
use crate::config::ActionName;

/// The cause of a refusal.
#[derive(Clone, Debug)]
pub(crate) enum Denial {
    /// A rule of the configuration, or the want of one.
    Rules(Reason),
    /// A rule that the client's token or the webhook gave.
    Own,
    /// A rule asks, and this is the answer; `None` where there is none.
    Webhook(Option<Answer>),
}

impl Denial {
    /// The cause in words, for the log.
    pub(crate) fn detail(&self) -> Cow<'static, str> {
        match self {
            Self::Rules(Reason::Rule(place)) => format!("rule {} denies it", place + 1).into(),
            Self::Rules(Reason::Administrators) => "only authorization.admins may do this".into(),
            Self::Rules(Reason::Default | Reason::Nothing) => "no rule allows it".into(),
            Self::Rules(Reason::Server) => "topics of this kind are the server's".into(),
            Self::Own => "a rule of its token, or of the webhook's answer, denies it".into(),
            Self::Webhook(Some(Answer::Failed(why))) => {
                format!("the webhook gives no good answer: {why}").into()
            }
            Self::Webhook(answer) => words_of_webhook(answer.as_ref()),
        }
    }

    /// The words for the client where the webhook decides; `None` where rules do. Faults of the service are the operator's.
    pub(crate) fn of_webhook(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Webhook(answer) => Some(words_of_webhook(answer.as_ref())),
            Self::Rules(_) | Self::Own => None,
        }
    }

    /// The words for the client: those of the webhook, or these.
    pub(crate) fn told(&self, by_rules: &'static str) -> Cow<'static, str> {
        self.of_webhook().unwrap_or(Cow::Borrowed(by_rules))
    }
}

/// The words for a client that the webhook has refused.
fn words_of_webhook(answer: Option<&Answer>) -> Cow<'static, str> {
    match answer {
        Some(Answer::Denied(Some(words))) => format!("the webhook denies it: {words}").into(),
        Some(Answer::Denied(None) | Answer::Allowed) => "the webhook denies it".into(),
        Some(Answer::Failed(_)) => "the webhook gives no good answer".into(),
        None => "the webhook cannot be asked".into(),
    }
}

impl Rules {
    /// The cause for which a subscription is refused. Rules are about its topics, which follow the share name.
    pub(crate) fn subscription_denial(&self, subject: Subject<'_>, filter: &str) -> Denial {
        let parsed = topic::Filter::parse(filter);
        let topics = parsed.map_or(filter, |parsed| parsed.filter);
        self.denial(subject, ActionName::Subscribe, topics, MessageKind::UNKNOWN)
    }

    /// The cause for which an action is refused. `kind` is that of a message that is published.
    #[cold]
    pub(crate) fn denial(
        &self,
        subject: Subject<'_>,
        action: ActionName,
        topic: &str,
        kind: MessageKind,
    ) -> Denial {
        let (reading, by) = match action {
            ActionName::Publish => self.decide_publish(subject, topic, kind),
            ActionName::Subscribe => self.decide_subscribe(subject, topic, |_| ()),
            ActionName::Delete => self.decide_delete(subject, topic),
        };
        if reading == Reading::Asked {
            let answers = self.answers.as_ref();
            return Denial::Webhook(answers.and_then(|it| it.recall(subject, action, topic)));
        }
        match by {
            By::Rule(rule) if subject.standing.is_some_and(|own| own.has(rule)) => Denial::Own,
            by => Denial::Rules(by.into()),
        }
    }
}

/// Words of a service as they are told: no longer than so many characters, and without control characters.
const MOST_CHARACTERS: usize = 200;

/// The reason that a service gives, as it is told to clients and in the log; `None` where it says nothing.
pub(crate) fn words_of(said: &str) -> Option<Arc<str>> {
    let printable = said.chars().filter(|character| !character.is_control());
    let words: String = printable.take(MOST_CHARACTERS).collect();
    let words = words.trim();
    (!words.is_empty()).then(|| words.into())
}
