//! Links and messages about which a rule asks: they wait for the webhook, and later input waits behind them.

use std::borrow::Cow;

use sterna_amqp::frame::{TYPE_AMQP, Unit};
use sterna_amqp::messaging::MessageView;
use sterna_amqp::performatives::{Attach, Performative, ReceiverSettleMode, Role, Transfer};
use sterna_amqp::types::Value;
use sterna_broker::Qos;

use super::Door;
use super::address::{End, Kind, Node};
use super::attach::kind_of;
use super::client::{Client, State, Target};
use crate::authorization::MessageKind;
use crate::config::{ActionName, Amqp};
use crate::context::Context;
use crate::door::{Early, Service as _};

/// Number of letters about actions.
const ACTION: u64 = 2;

/// Whether a frame has to wait until the webhook has been asked. Nothing of it is done before.
pub(super) fn must_ask(cx: &Context<'_>, client: &mut Client, unit: &Unit<'_>) -> bool {
    if !cx.policy.rules.have_questions() || !matches!(client.state, State::Open) {
        return false;
    }
    let Unit::Frame(frame) = unit else {
        return false;
    };
    if frame.frame_type() != TYPE_AMQP || frame.body().is_empty() {
        return false;
    }
    let config = &cx.policy.amqp;
    let mut kinds = Cow::Borrowed(&[MessageKind::UNKNOWN][..]);
    let question = match Performative::decode(frame.body()) {
        Ok((Performative::Attach(attach), _)) => of_attach(config, &attach),
        Ok((Performative::Transfer(transfer), payload)) => {
            if cx.policy.rules.look_at_messages() {
                kinds = kinds_of(&transfer, payload, client.early == Early::Allowed).into();
            }
            of_transfer(config, client, frame.channel(), &transfer, payload)
                .map(|topic| (ActionName::Publish, topic))
        }
        // The engine reports its fault.
        _ => None,
    };
    let Some((action, topic)) = question else {
        return false;
    };
    let (owner, now_ms) = (client.owner(), cx.now_ms);
    let is_known = |kind: &MessageKind| {
        let about = (topic.as_bytes(), kind.number());
        let found = (client.known_topics).find(&cx.policy.rules, owner, about, now_ms);
        found.is_some()
    };
    if action == ActionName::Publish && kinds.iter().all(is_known) {
        client.asking.passed();
        return false;
    }
    let topic = topic.into_owned();
    let mut asking = std::mem::take(&mut client.asking);
    let letter = (client.id, ACTION);
    let subject = client.subject(cx);
    let waits =
        (kinds.iter()).any(|&kind| asking.must_wait(cx, letter, subject, action, (&topic, kind)));
    if !waits {
        asking.passed();
    }
    client.asking = asking;
    waits
}

impl Door {
    /// Whether a frame has to wait: for another turn, as transfers do and the begin and end of links, or for a reader whose
    /// queue is half full.
    #[inline]
    pub(super) fn must_hold(
        &self,
        cx: &mut Context<'_>,
        client: &mut Client,
        unit: &Unit<'_>,
    ) -> bool {
        (cx.is_turn_spent() || cx.broker.may_hold()) && self.must_hold_now(cx, client, unit)
    }

    #[inline(never)]
    fn must_hold_now(&self, cx: &mut Context<'_>, client: &mut Client, unit: &Unit<'_>) -> bool {
        let Unit::Frame(frame) = unit else {
            return false;
        };
        let (transfer, payload) = match Performative::decode(frame.body()) {
            Ok((Performative::Transfer(transfer), payload)) => (transfer, payload),
            Ok((Performative::Attach(_) | Performative::Detach(_), _)) if cx.is_turn_spent() => {
                client.sips.is_held = cx.must_line_up(client.id, client.user(), None);
                return client.sips.is_held;
            }
            _ => return false,
        };
        let (id, config) = (client.id, &cx.policy.amqp);
        let topic = of_transfer(config, client, frame.channel(), &transfer, payload);
        // A message is published with its last frame.
        if cx.is_turn_spent()
            && !transfer.more
            && cx.must_line_up(id, client.user(), topic.as_deref())
        {
            client.sips.is_held = true;
            return true;
        }
        // Messages that have begun go on.
        if transfer.settled == Some(true) || transfer.delivery_id.is_none() {
            return false;
        }
        let Some(topic) = topic.filter(|_| cx.broker.may_hold()) else {
            return false;
        };
        let is_own = |consumer| self.service.is_consumer_of(consumer, id);
        let sessions = client.sources.values().map(|source| source.session);
        let waits = cx.must_hold(id, &topic, is_own, sessions, !transfer.more);
        client.sips.is_held = waits;
        waits
    }
}

/// The action that a link is for, and its topic or filter.
fn of_attach(config: &Amqp, attach: &Attach<'_>) -> Option<(ActionName, Cow<'static, str>)> {
    let node = |address: Option<&Value<'_>>, kind: Option<Kind>, end: End| {
        Node::parse(address?.as_text()?, kind, end, config)
            .ok()?
            .topic()
    };
    if attach.role == Role::Sender {
        let target = attach.target.as_ref()?.node()?;
        let kind = kind_of(&target.capabilities);
        let topic = node(target.address.as_ref(), kind, End::Target)?;
        return Some((ActionName::Publish, topic.into()));
    }
    let source = attach.source.as_ref()?;
    let topics = node(
        source.address.as_ref(),
        kind_of(&source.capabilities),
        End::Source,
    )?;
    // Rules are about topics. The topics of a shared subscription follow the share name.
    let filter = sterna_mqtt::topic::Filter::parse(&topics)
        .ok()?
        .filter
        .to_owned();
    Some((ActionName::Subscribe, filter.into()))
}

/// The kinds that a message may be of, as far as its first frame says: one of these is its kind.
fn kinds_of(transfer: &Transfer<'_>, payload: &[u8], is_early: bool) -> Vec<MessageKind> {
    let qos: &[Qos] = match (transfer.settled, transfer.rcv_settle_mode) {
        (Some(true), _) => &[Qos::AtMostOnce],
        (_, Some(ReceiverSettleMode::First)) => &[Qos::AtLeastOnce],
        (_, Some(ReceiverSettleMode::Second)) => &[Qos::ExactlyOnce],
        // The link says which.
        (_, None) => &[Qos::AtLeastOnce, Qos::ExactlyOnce],
    };
    let retain = MessageView::parse(payload).map(|view| sterna_mapping::is_to_be_retained(&view));
    let retains: &[bool] = match retain {
        Ok(true) => &[true],
        Ok(false) => &[false],
        // More frames belong to it.
        Err(_) => &[false, true],
    };
    let each = qos.iter().flat_map(|qos| {
        (retains.iter()).map(|retain| MessageKind::new(*qos as u8, *retain, is_early))
    });
    each.collect()
}

/// Where a message goes, as far as its first frame says.
fn of_transfer<'a>(
    config: &Amqp,
    client: &'a Client,
    channel: u16,
    transfer: &Transfer<'_>,
    payload: &[u8],
) -> Option<Cow<'a, str>> {
    let link = client.engine.link_of(channel, transfer.handle)?;
    match &client.targets.get(&link)?.node {
        Target::Topic(topic) => Some((&**topic).into()),
        Target::Anonymous => {
            let view = MessageView::parse(payload).ok()?;
            let to = view.properties().ok()??.to?;
            let topic = super::attach::topic_of_address(config, to.as_text()?, None)?;
            Some(topic.into())
        }
        Target::BySubject => {
            let view = MessageView::parse(payload).ok()?;
            let subject = view.properties().ok()??.subject?;
            let topic = super::address::topic_of_key(subject, End::Target);
            Some(topic.into())
        }
        Target::Coordinator => None,
    }
}
