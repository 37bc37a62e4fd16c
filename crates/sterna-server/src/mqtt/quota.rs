//! Why a message or a subscription is refused, for the log and the Reason String: the limits for which a client gets 0x97,
//! with the settings that hold, and the webhook's words.

use std::sync::Arc;

use sterna_broker::PublishRefusal;
use sterna_mqtt::ReasonCode;
use sterna_mqtt::server::Reason;

use crate::context::{
    NOT_RETAINED, SHORT_FOR_NEW, STORE_FULL, TOO_FAST, TOO_MANY_OF_USER, TOO_MANY_SUBSCRIPTIONS,
};

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
    /// The topic or filter is none, or has more levels than there may be.
    Topic(&'static str),
}

impl Quota {
    /// Says so in words.
    pub(super) const fn detail(self) -> &'static str {
        match self {
            Self::Rate => TOO_FAST,
            Self::UserProperties => "more User Properties than mqtt.maximum_list_entries",
            Self::Refused(refusal) => refusal.detail(),
            Self::Retained => NOT_RETAINED,
            Self::SubscriptionsOfUser => TOO_MANY_OF_USER,
            Self::Subscriptions => TOO_MANY_SUBSCRIPTIONS,
            Self::Store => STORE_FULL,
            Self::Memory => SHORT_FOR_NEW,
            Self::Topic(fault) => fault,
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
