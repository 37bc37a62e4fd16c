//! PUBLISH and SUBSCRIBE about which a rule asks: they wait for the webhook, and later input waits behind them.

use sterna_mqtt::packet::Publish;
use sterna_mqtt::{Frame, Lane, Packet, PacketType};

use super::client::{Client, consumer};
use super::{Door, QOS, RETAIN};
use crate::authorization::MessageKind;
use crate::config::{ActionName, Protocol};
use crate::context::Context;
use crate::door::Early;

/// Numbers of letters for a client that is connected; that of its CONNECT is 0.
pub(super) const RENEWAL: u64 = 1;
pub(super) const ACTION: u64 = 2;

/// The decision about a packet before anything of it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// It has to wait until the webhook has been asked.
    Waits,
    /// The last answer for the same client and topic holds: whether this PUBLISH is allowed.
    Decided(bool),
    /// The packet goes on, and its request is looked at where it is done.
    GoesOn,
}

impl Door {
    /// Whether a packet has to wait until the webhook has been asked. Nothing of it is done before.
    #[inline]
    pub(super) fn must_ask(
        cx: &Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> Asked {
        if !cx.policy.rules.have_questions() || client.session().is_none() {
            return Asked::GoesOn;
        }
        match frame.packet_type() {
            Some(PacketType::Publish) => {
                if let Some(is_allowed) = Self::decided(cx, client, frame) {
                    client.asking.passed();
                    return Asked::Decided(is_allowed);
                }
            }
            Some(PacketType::Subscribe) => {}
            // Nothing is asked about acknowledgements, which come for each message.
            _ => return Asked::GoesOn,
        }
        if Self::must_ask_anew(cx, client, lane, frame) {
            Asked::Waits
        } else {
            Asked::GoesOn
        }
    }

    /// Whether a packet has to wait: for another turn, as PUBLISH, SUBSCRIBE and UNSUBSCRIBE may, or for a reader whose queue
    /// is half full.
    #[inline]
    pub(super) fn must_hold(
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> bool {
        let is_spent = cx.is_turn_spent();
        if !(is_spent || cx.broker.may_hold()) {
            return false;
        }
        match frame.packet_type() {
            Some(PacketType::Publish) => {}
            Some(PacketType::Subscribe | PacketType::Unsubscribe) if is_spent => {
                client.sips.is_held = cx.must_line_up(client.id, client.identity.user(), None);
                return client.sips.is_held;
            }
            _ => return false,
        }
        (is_spent && Self::must_line_up(cx, client, lane, frame))
            || (cx.broker.may_hold()
                && frame.first_byte() & QOS != 0
                && Self::must_hold_now(cx, client, lane, frame))
    }

    #[inline(never)]
    fn must_line_up(
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> bool {
        // The engine reports the fault of another.
        if let Ok(Packet::Publish(publish)) = Packet::decode(frame, client.engine.version()) {
            let topic = topic_of(client, lane, &publish);
            let waits = cx.must_line_up(client.id, client.identity.user(), Some(topic));
            client.sips.is_held = waits;
        }
        client.sips.is_held
    }

    /// Drops a datagram that would have to wait for another turn; whether it did.
    #[inline(never)]
    pub(super) fn drops_for_the_turn(
        cx: &mut Context<'_>,
        client: &Client,
        frame: &Frame<'_>,
    ) -> bool {
        // The engine reports the fault of another.
        let Ok(Packet::Publish(publish)) = Packet::decode(frame, client.engine.version()) else {
            return false;
        };
        let topic = topic_of(client, Lane::DATAGRAMS, &publish);
        cx.drops_for_the_turn(Protocol::Mqtt, &client.name, topic)
    }

    #[inline(never)]
    fn must_hold_now(
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> bool {
        let Some(session) = client.session() else {
            return false;
        };
        // The engine reports the fault of another.
        if let Ok(Packet::Publish(publish)) = Packet::decode(frame, client.engine.version()) {
            let topic = topic_of(client, lane, &publish);
            let own = consumer(client.id);
            let is_own = |consumer| consumer == own;
            let waits = cx.must_hold(client.id, topic, is_own, std::iter::once(session), true);
            client.sips.is_held = waits;
        }
        client.sips.is_held
    }

    /// The same of a PUBLISH or SUBSCRIBE about which it is not known. It is kept apart, because messages mostly do
    /// not come here.
    #[inline(never)]
    fn must_ask_anew(cx: &Context<'_>, client: &mut Client, lane: Lane, frame: &Frame<'_>) -> bool {
        let mut asking = std::mem::take(&mut client.asking);
        let mut ask = |action, about: (&str, MessageKind)| {
            asking.must_wait(cx, (client.id, ACTION), client.subject(cx), action, about)
        };
        let waits = match Packet::decode(frame, client.engine.version()) {
            Ok(Packet::Publish(publish)) => {
                let topic = topic_of(client, lane, &publish);
                let is_early = client.early == Early::Allowed;
                let kind = MessageKind::new(publish.qos as u8, publish.retain, is_early);
                ask(ActionName::Publish, (topic, kind))
            }
            Ok(Packet::Subscribe(subscribe)) => subscribe.filters().any(|(filter, _)| {
                // Rules are about topics. The topics of a shared subscription follow the share name.
                let parsed = sterna_mqtt::topic::Filter::parse(filter);
                let about = |filter| (filter, MessageKind::UNKNOWN);
                parsed.is_ok_and(|parsed| ask(ActionName::Subscribe, about(parsed.filter)))
            }),
            // The engine reports its fault.
            _ => false,
        };
        if !waits {
            asking.passed();
        }
        client.asking = asking;
        waits
    }

    /// Whether a PUBLISH is allowed, if that is known already; looks at no more of it than its topic.
    #[inline]
    fn decided(cx: &Context<'_>, client: &Client, frame: &Frame<'_>) -> Option<bool> {
        let (length, rest) = frame.body().split_first_chunk()?;
        // A topic that an alias stands for is known to the engine alone.
        let topic = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
        let (qos, retains) = (
            frame.first_byte() >> 1 & 3,
            frame.first_byte() & RETAIN != 0,
        );
        let number = MessageKind::number_of(qos, retains, client.early == Early::Allowed);
        let owner = client.identity.owner();
        (client.known_topics).find(&cx.policy.rules, owner, (topic, number), cx.now_ms)
    }
}

/// The topic of a PUBLISH, also where an alias stands for it.
fn topic_of<'a>(client: &'a Client, lane: Lane, publish: &Publish<'a>) -> &'a str {
    let alias = publish.properties.topic_alias();
    match publish.topic {
        "" => alias
            .and_then(|alias| client.engine.topic_of_alias(lane, alias))
            .unwrap_or_default(),
        topic => topic,
    }
}
