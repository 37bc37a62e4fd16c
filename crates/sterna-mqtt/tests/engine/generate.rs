//! Strategies for everything that can stand in a packet.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use sterna_mqtt::packet::{RetainHandling, SubscribeOptions};
use sterna_mqtt::{
    PacketId, PacketType, Property, PropertyBuf, PropertyContext, PropertyId, QoS, ReasonCode,
    Version,
};

/// This many cases, or as many as `PROPTEST_CASES` asks for.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    if std::env::var_os("PROPTEST_CASES").is_some() {
        ProptestConfig::default()
    } else {
        ProptestConfig::with_cases(cases)
    }
}

pub(crate) fn version() -> impl Strategy<Value = Version> {
    select(vec![Version::V31, Version::V311, Version::V5])
}

pub(crate) fn qos() -> impl Strategy<Value = QoS> {
    select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

pub(crate) fn packet_id() -> impl Strategy<Value = PacketId> {
    any::<PacketId>()
}

/// Any text that a UTF-8 Encoded String may hold, long ones and odd characters included.
pub(crate) fn text() -> impl Strategy<Value = String> {
    let odd = select(vec![
        '\u{feff}',
        '\u{1}',
        '\u{ffff}',
        '\u{10ffff}',
        'ä',
        '+',
        '#',
        '/',
        '$',
    ]);
    let character = prop_oneof![4 => prop::char::range('a', 'z'), 1 => odd, 1 => any::<char>()];
    vec(character, 0..20).prop_map(|text| text.into_iter().filter(|&c| c != '\0').collect())
}

pub(crate) fn topic_name() -> impl Strategy<Value = String> {
    text().prop_map(|text| {
        let name: String = text.chars().filter(|c| !"+#".contains(*c)).collect();
        if name.is_empty() {
            "t".to_owned()
        } else {
            name
        }
    })
}

pub(crate) fn filter() -> impl Strategy<Value = String> {
    let plain = topic_name().prop_map(|name| name.replace('/', "-"));
    let level = prop_oneof![3 => plain, 1 => Just("+".to_owned()), 1 => Just(String::new())];
    (vec(level, 1..6), any::<bool>(), option::of("[a-z]{1,5}")).prop_map(|(levels, all, share)| {
        let mut filter = levels.join("/");
        if all || filter.is_empty() {
            filter.push_str(if filter.is_empty() { "#" } else { "/#" });
        }
        match share {
            Some(name) => format!("$share/{name}/{filter}"),
            None => filter,
        }
    })
}

pub(crate) fn options(version: Version, shared: bool) -> impl Strategy<Value = SubscribeOptions> {
    let handling = select(vec![
        RetainHandling::Send,
        RetainHandling::SendIfNew,
        RetainHandling::DoNotSend,
    ]);
    (qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        move |(qos, local, retain, handling)| {
            if version == Version::V5 {
                SubscribeOptions {
                    qos,
                    no_local: local && !shared,
                    retain_as_published: retain,
                    retain_handling: handling,
                }
            } else {
                SubscribeOptions::new(qos)
            }
        },
    )
}

pub(crate) fn reason(packet: PacketType, version: Version) -> impl Strategy<Value = ReasonCode> {
    let valid = ReasonCode::ALL.iter().copied().filter(move |reason| {
        if version == Version::V5 {
            return reason.is_valid_in(packet);
        }
        match packet {
            PacketType::ConnAck => {
                reason
                    .for_v3_connack()
                    .and_then(ReasonCode::from_v3_connack)
                    == Some(*reason)
            }
            PacketType::SubAck => {
                reason.is_valid_in(packet)
                    && ReasonCode::from_u8(reason.for_v3_suback()) == Some(*reason)
            }
            _ => *reason == ReasonCode::Success,
        }
    });
    select(valid.collect::<Vec<_>>())
}

/// A property's value, owned.
#[derive(Clone, Debug)]
struct Value {
    id: PropertyId,
    flag: bool,
    number: u32,
    text: String,
    other: String,
    bytes: Vec<u8>,
}

impl Value {
    fn property(&self) -> Property<'_> {
        let nonzero_u16 = (self.number as u16).max(1);
        match self.id {
            PropertyId::PayloadFormatIndicator => Property::PayloadFormatIndicator(self.flag),
            PropertyId::MessageExpiryInterval => Property::MessageExpiryInterval(self.number),
            PropertyId::ContentType => Property::ContentType(&self.text),
            PropertyId::ResponseTopic => Property::ResponseTopic(&self.other),
            PropertyId::CorrelationData => Property::CorrelationData(&self.bytes),
            PropertyId::SubscriptionIdentifier => {
                Property::SubscriptionIdentifier((self.number % 268_435_455) + 1)
            }
            PropertyId::SessionExpiryInterval => Property::SessionExpiryInterval(self.number),
            PropertyId::AssignedClientIdentifier => Property::AssignedClientIdentifier(&self.text),
            PropertyId::ServerKeepAlive => Property::ServerKeepAlive(self.number as u16),
            PropertyId::AuthenticationMethod => Property::AuthenticationMethod(&self.text),
            PropertyId::AuthenticationData => Property::AuthenticationData(&self.bytes),
            PropertyId::RequestProblemInformation => Property::RequestProblemInformation(self.flag),
            PropertyId::WillDelayInterval => Property::WillDelayInterval(self.number),
            PropertyId::RequestResponseInformation => {
                Property::RequestResponseInformation(self.flag)
            }
            PropertyId::ResponseInformation => Property::ResponseInformation(&self.text),
            PropertyId::ServerReference => Property::ServerReference(&self.text),
            PropertyId::ReasonString => Property::ReasonString(&self.text),
            PropertyId::ReceiveMaximum => Property::ReceiveMaximum(nonzero_u16),
            PropertyId::TopicAliasMaximum => Property::TopicAliasMaximum(self.number as u16),
            PropertyId::TopicAlias => Property::TopicAlias(nonzero_u16),
            PropertyId::MaximumQoS => Property::MaximumQoS(u8::from(self.flag)),
            PropertyId::RetainAvailable => Property::RetainAvailable(self.flag),
            PropertyId::UserProperty => Property::UserProperty(&self.text, &self.other),
            PropertyId::MaximumPacketSize => Property::MaximumPacketSize(self.number.max(1)),
            PropertyId::WildcardSubscriptionAvailable => {
                Property::WildcardSubscriptionAvailable(self.flag)
            }
            PropertyId::SubscriptionIdentifierAvailable => {
                Property::SubscriptionIdentifierAvailable(self.flag)
            }
            PropertyId::SharedSubscriptionAvailable => {
                Property::SharedSubscriptionAvailable(self.flag)
            }
        }
    }
}

/// The properties that a context allows, and whether they may occur more than once.
pub(crate) fn allowed(context: PropertyContext) -> Vec<(PropertyId, bool)> {
    use PropertyContext as C;
    use PropertyId as P;
    let mut allowed = match context {
        C::Connect => vec![
            P::SessionExpiryInterval,
            P::AuthenticationMethod,
            P::AuthenticationData,
            P::RequestProblemInformation,
            P::RequestResponseInformation,
            P::ReceiveMaximum,
            P::TopicAliasMaximum,
            P::MaximumPacketSize,
        ],
        C::Will => vec![
            P::WillDelayInterval,
            P::PayloadFormatIndicator,
            P::MessageExpiryInterval,
            P::ContentType,
            P::ResponseTopic,
            P::CorrelationData,
        ],
        C::ConnAck => vec![
            P::SessionExpiryInterval,
            P::ReceiveMaximum,
            P::MaximumQoS,
            P::RetainAvailable,
            P::MaximumPacketSize,
            P::AssignedClientIdentifier,
            P::TopicAliasMaximum,
            P::ReasonString,
            P::WildcardSubscriptionAvailable,
            P::SubscriptionIdentifierAvailable,
            P::SharedSubscriptionAvailable,
            P::ServerKeepAlive,
            P::ResponseInformation,
            P::ServerReference,
            P::AuthenticationMethod,
            P::AuthenticationData,
        ],
        C::Publish => vec![
            P::PayloadFormatIndicator,
            P::MessageExpiryInterval,
            P::ContentType,
            P::ResponseTopic,
            P::CorrelationData,
            P::TopicAlias,
        ],
        C::Acknowledgement | C::SubAck => vec![P::ReasonString],
        C::Subscribe => vec![P::SubscriptionIdentifier],
        C::Unsubscribe => vec![],
        C::Disconnect => vec![
            P::SessionExpiryInterval,
            P::ReasonString,
            P::ServerReference,
        ],
        C::Auth => vec![
            P::AuthenticationMethod,
            P::AuthenticationData,
            P::ReasonString,
        ],
    }
    .into_iter()
    .map(|id| (id, false))
    .collect::<Vec<_>>();
    allowed.push((P::UserProperty, true));
    if context == C::Publish {
        allowed.push((P::SubscriptionIdentifier, true));
    }
    allowed
}

/// The block for 5.0, none before.
pub(crate) fn only_v5(version: Version, block: PropertyBuf) -> PropertyBuf {
    if version == Version::V5 {
        block
    } else {
        PropertyBuf::new()
    }
}

/// A valid block of properties in any order; empty before 5.0.
pub(crate) fn properties(
    context: PropertyContext,
    version: Version,
) -> impl Strategy<Value = PropertyBuf> {
    let value = (
        any::<bool>(),
        any::<u32>(),
        text(),
        topic_name(),
        vec(any::<u8>(), 0..12),
    );
    vec((any::<prop::sample::Index>(), value), 0..10).prop_map(move |picks| {
        let allowed = allowed(context);
        let mut block = PropertyBuf::new();
        if version != Version::V5 {
            return block;
        }
        let mut used = Vec::new();
        for (index, (flag, number, text, other, bytes)) in picks {
            let (id, repeatable) = *index.get(&allowed);
            let orphaned = id == PropertyId::AuthenticationData
                && !used.contains(&PropertyId::AuthenticationMethod);
            if orphaned || (used.contains(&id) && !repeatable) {
                continue;
            }
            used.push(id);
            let value = Value {
                id,
                flag,
                number,
                text,
                other,
                bytes,
            };
            block.push(value.property()).expect("short");
        }
        block
    })
}
