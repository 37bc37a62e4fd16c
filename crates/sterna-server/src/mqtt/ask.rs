//! PUBLISH and SUBSCRIBE about which a rule asks: they wait for the webhook, and what follows waits
//! behind them.

use sterna_mqtt::{Frame, Lane, Packet, PacketType};

use super::client::Client;
use super::{Door, RETAIN};
use crate::authorization::MessageKind;
use crate::config::ActionName;
use crate::context::Context;
use crate::door::Early;

/// Numbers of letters for a client that is connected; that of its CONNECT is 0.
pub(super) const RENEWAL: u64 = 1;
pub(super) const ACTION: u64 = 2;

impl Door {
    /// Whether a packet has to wait until the webhook has been asked. Nothing of it is done before.
    #[inline]
    pub(super) fn must_ask(
        cx: &Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> bool {
        cx.policy.rules.have_questions()
            && client.session().is_some()
            && matches!(
                frame.packet_type(),
                Some(PacketType::Publish | PacketType::Subscribe)
            )
            && Self::must_ask_of_topics(cx, client, lane, frame)
    }

    fn must_ask_of_topics(
        cx: &Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> bool {
        if Self::is_decided(cx, client, frame) {
            client.asking.passed();
            return false;
        }
        let mut asking = std::mem::take(&mut client.asking);
        let mut ask = |action, about: (&str, MessageKind)| {
            asking.must_wait(cx, (client.id, ACTION), client.subject(cx), action, about)
        };
        let waits = match Packet::decode(frame, client.engine.version()) {
            Ok(Packet::Publish(publish)) => {
                let alias = publish.properties.topic_alias();
                let aliased = alias.and_then(|alias| client.engine.topic_of_alias(lane, alias));
                let topic = match publish.topic {
                    "" => aliased.unwrap_or_default(),
                    topic => topic,
                };
                let is_early = client.early == Early::Allowed;
                let kind = MessageKind::new(publish.qos as u8, publish.retain, is_early);
                ask(ActionName::Publish, (topic, kind))
            }
            Ok(Packet::Subscribe(subscribe)) => subscribe.filters().any(|(filter, _)| {
                // Rules are about topics: of a shared subscription that is what follows the share name.
                let parsed = sterna_mqtt::topic::Filter::parse(filter);
                let about = |filter| (filter, MessageKind::UNKNOWN);
                parsed.is_ok_and(|parsed| ask(ActionName::Subscribe, about(parsed.filter)))
            }),
            // The engine says what is wrong with it.
            _ => false,
        };
        if !waits {
            asking.passed();
        }
        client.asking = asking;
        waits
    }

    /// Whether it is known already what becomes of a PUBLISH; looks at no more of it than its topic.
    fn is_decided(cx: &Context<'_>, client: &Client, frame: &Frame<'_>) -> bool {
        if frame.packet_type() != Some(PacketType::Publish) {
            return false;
        }
        let Some((length, rest)) = frame.body().split_first_chunk() else {
            return false;
        };
        let topic = rest.get(..usize::from(u16::from_be_bytes(*length)));
        let Some(topic) = topic.filter(|topic| !topic.is_empty()) else {
            return false;
        };
        let (qos, retains) = (
            frame.first_byte() >> 1 & 3,
            frame.first_byte() & RETAIN != 0,
        );
        let kind = MessageKind::new(qos, retains, client.early == Early::Allowed);
        let (owner, now_ms) = (client.identity.owner(), cx.net.now_ms());
        let found = (client.known_topics).find(&cx.policy.rules, owner, (topic, kind), now_ms);
        found.is_some()
    }
}
