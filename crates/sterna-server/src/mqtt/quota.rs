//! Limits for which a client gets 0x97, with the settings that hold, for the log and the Reason String.

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

    /// The reason of an acknowledgement, of which this may be why.
    pub(super) fn reason(why: Option<Self>, code: ReasonCode) -> Reason {
        Reason {
            code,
            string: why.map(Self::detail),
        }
    }
}
