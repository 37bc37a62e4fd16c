//! Why a message or a subscription is refused, for the log and the Reason String: the limits for which a client gets 0x97,
//! with the settings that hold, and the webhook's words.

use std::sync::Arc;

use sterna_broker::PublishRefusal;
use sterna_mqtt::ReasonCode;
use sterna_mqtt::server::Reason;

use crate::context::SHORT_FOR_NEW;

/// A limit that a message or a subscription is beyond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quota {
    Rate,
    UserProperties,
    /// The broker does not take the message.
    Refused(PublishRefusal),
    Retained,
    SubscriptionsOfUser,
    Subscriptions,
    Store,
    Memory,
}

impl Quota {
    /// Says so in words.
    pub(super) const fn detail(self) -> &'static str {
        match self {
            Self::Rate => {
                "the client publishes faster than its limit (authorization.limit.messages_per_s, \
                 authorization.limit.bytes_per_s)"
            }
            Self::UserProperties => "more User Properties than mqtt.maximum_list_entries",
            Self::Refused(refusal) => refusal.detail(),
            Self::Retained => {
                "it was delivered, but there is no room to retain it (broker.maximum_retained_messages, \
                 broker.maximum_retained_bytes, broker.memory_retained_percent)"
            }
            Self::SubscriptionsOfUser => {
                "the limit of the user has no more subscriptions (authorization.limit.subscriptions)"
            }
            Self::Subscriptions => {
                "too many subscriptions (broker.maximum_subscriptions_per_session and the settings beside it)"
            }
            Self::Store => "the store has no room (store.maximum_bytes, or the disk)",
            Self::Memory => SHORT_FOR_NEW,
        }
    }
}

/// The words that an acknowledgement has beside its reason code.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    Quota(Quota),
    /// The webhook has decided.
    Webhook(Arc<str>),
}

impl Why {
    /// The words.
    pub(super) fn detail(&self) -> &str {
        match self {
            Self::Quota(quota) => quota.detail(),
            Self::Webhook(words) => words,
        }
    }

    /// The reason of an acknowledgement, of which this may be why.
    pub(super) fn reason(why: Option<&Self>, code: ReasonCode) -> Reason<'_> {
        Reason {
            code,
            string: why.map(Self::detail),
        }
    }
}

impl From<Quota> for Why {
    fn from(quota: Quota) -> Self {
        Self::Quota(quota)
    }
}
