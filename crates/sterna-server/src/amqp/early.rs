//! Frames that are handled before the handshake is complete.
//!
//! Until then a first flight can be a replay, it can have been held back on its way, and its source address can be
//! forged. So a frame is handled early only if it takes nothing from anybody, even if its client has come by another
//! connection in the meantime: `docs/quic.md`, "Early data".

use std::borrow::Cow;

use sterna_amqp::frame::{Frame, TYPE_AMQP, TYPE_SASL, Unit};
use sterna_amqp::messaging::{MessageView, Source, capability};
use sterna_amqp::performatives::{Attach, Performative, ReceiverSettleMode, Role, Transfer};
use sterna_amqp::sasl::SaslFrame;

use super::Door;
use super::address::{End, Node};
use super::attach::{durable_name, kind_of, passing_name, topic_of_address};
use super::client::{Client, Target};
use super::security::claim_of;
use crate::authorization::MessageKind;
use crate::config::EarlyData;
use crate::context::Context;
use crate::judge::{Claim, waits_for_proof};

impl Door {
    /// Whether a frame may be handled although the handshake is not complete.
    pub(super) fn may_be_early(&self, cx: &Context<'_>, client: &Client, unit: &Unit<'_>) -> bool {
        let is_all = cx.policy.listener(client.listener).early_data == EarlyData::All;
        let Unit::Frame(frame) = unit else {
            return true;
        };
        match frame.frame_type() {
            TYPE_SASL => may_claim(cx, client, frame),
            TYPE_AMQP if frame.body().is_empty() => true,
            TYPE_AMQP => match Performative::decode(frame.body()) {
                // Without a SASL layer the client shows nothing.
                Ok((Performative::Open(_), _)) => {
                    client.identity.is_some() || !waits_for_proof(cx, client.id, Claim::Nothing)
                }
                Ok((Performative::Begin(_) | Performative::Flow(_), _)) => true,
                Ok((Performative::Attach(attach), _)) => {
                    is_all || self.may_attach(cx, client, &attach)
                }
                Ok((Performative::Transfer(transfer), payload)) => {
                    may_transfer(cx, client, (frame, &transfer, payload), is_all)
                }
                _ => is_all,
            },
            _ => is_all,
        }
    }

    /// A link of which nothing is known. Another one would take over what an earlier connection has left, or has.
    fn may_attach(&self, cx: &Context<'_>, client: &Client, attach: &Attach<'_>) -> bool {
        match attach.role {
            // In a cluster, links that settle second are sessions, which another node may have.
            Role::Sender => {
                let may_be_elsewhere = cx.broker.is_in_cluster()
                    && attach.rcv_settle_mode == ReceiverSettleMode::Second;
                !may_be_elsewhere && !self.service.registry.knows(&client.link_key(attach.name))
            }
            Role::Receiver => {
                let source = attach.source.as_ref();
                let mut names = [
                    durable_name(client, attach.name),
                    passing_name(client, attach.name),
                ]
                .into_iter();
                names.all(|name| cx.broker.takes_nothing(&name, true, 0))
                    && source.is_some_and(|source| is_for_itself(cx, source))
            }
        }
    }
}

/// Whether a source takes messages from no other receiver.
fn is_for_itself(cx: &Context<'_>, source: &Source<'_>) -> bool {
    if source.dynamic {
        return true;
    }
    let kind = kind_of(&source.capabilities);
    let node = (source.address())
        .and_then(|address| Node::parse(address, kind, End::Source, &cx.policy.amqp).ok());
    match node {
        Some(Node::Topic(topic)) => {
            !source.capabilities.contains(capability::SHARED)
                && !sterna_mqtt::topic::is_shared(&topic)
        }
        Some(Node::Queue(_) | Node::BySubject) => false,
        // It is refused.
        None => true,
    }
}

/// A claim that is known to be right, whatever the client's address. An answer to a challenge comes from a client
/// that has read it, and so after the handshake.
fn may_claim(cx: &Context<'_>, client: &Client, frame: &Frame<'_>) -> bool {
    let Ok(SaslFrame::Init(init)) = SaslFrame::decode(frame.body()) else {
        return false;
    };
    let claim = claim_of(init.mechanism.0, init.initial_response.unwrap_or_default());
    claim.is_ok_and(|claim| !waits_for_proof(cx, client.id, claim))
}

/// A message that the rules let come twice, and that is settled, or any where everything may be early.
fn may_transfer(
    cx: &Context<'_>,
    client: &Client,
    (frame, transfer, payload): (&Frame<'_>, &Transfer<'_>, &[u8]),
    is_all: bool,
) -> bool {
    let rules = &cx.policy.rules;
    if is_all && !rules.look_at_early_data() {
        return true;
    }
    let link = client.engine.link_of(frame.channel(), transfer.handle);
    let target = link.and_then(|link| client.targets.get(&link));
    let is_whole = transfer.settled == Some(true)
        && transfer.state.is_none()
        && !transfer.more
        && !transfer.aborted;
    let to = || {
        let view = MessageView::parse(payload).ok()?;
        let to = view.properties().ok()??.to?;
        topic_of_address(&cx.policy.amqp, to.as_text()?, None)
    };
    let topic = match target.map(|target| &target.node) {
        Some(Target::Topic(topic)) => Some(Cow::Borrowed(&**topic)),
        Some(Target::Anonymous) => to().map(Cow::Owned),
        _ => None,
    };
    topic.is_some_and(|topic| {
        let subject = client.subject(cx);
        let kind = MessageKind {
            early_data: Some(true),
            ..MessageKind::UNKNOWN
        };
        if is_all {
            rules.may_publish(subject, &topic, kind)
        } else {
            is_whole && rules.is_idempotent(subject, &topic, kind)
        }
    })
}
