//! Where clients' sending links lead: targets.

use sterna_amqp::Condition;
use sterna_amqp::connection::LinkId;
use sterna_amqp::link::{AttachOptions, Unsettled};
use sterna_amqp::messaging::{
    LifetimePolicy, Source, Target as TargetTerminus, TargetArchetype, TerminusDurability,
    TerminusExpiryPolicy, capability as terminus,
};
use sterna_amqp::performatives::{Attach, ReceiverSettleMode, SenderSettleMode};
use sterna_amqp::transactions::{Coordinator, capability};
use sterna_amqp::types::{Composite as _, Encoded, Multiple, Value};
use sterna_net::{StreamId, TransportKind};

use super::Door;
use super::acknowledge::Acknowledgement;
use super::address::{End, Kind, Node};
use super::attach::{
    Refusal, encoded, kind_of, may_publish, not_to_publish, refusal, refused_address,
};
use super::claims::Claim;
use super::client::{Client, Target, TargetLink};
use super::exact::{ExactLink, Forgotten, Recorded};
use super::nodes::{NodeLink, properties_of};
use super::security;
use super::wanted::kept_capabilities;
use crate::authorization::MessageKind;
use crate::context::Context;
use crate::door::Promise;
use crate::session::amqp::QUEUE_LEVEL;

const CAPABILITIES: [&str; 3] = [
    capability::LOCAL_TRANSACTIONS,
    capability::MULTI_TXNS_PER_SSN,
    capability::MULTI_SSNS_PER_TXN,
];

const COORDINATOR: TargetArchetype<'static> = TargetArchetype::Coordinator(Coordinator {
    capabilities: Multiple::Slice(&CAPABILITIES),
});

/// A target whose attach is to be answered.
#[derive(Debug)]
pub(crate) struct AttachingTarget {
    snd_settle_mode: SenderSettleMode,
    rcv_settle_mode: ReceiverSettleMode,
    source: Option<Encoded>,
    /// `None` for the coordinator of transactions.
    target: Option<Encoded>,
    unsettled: Vec<Unsettled>,
    recover: bool,
    /// Whether a delivery that is taken has a record until it is settled.
    is_recorded: bool,
}

/// The part of a target that concerns a node that was made for a link.
#[derive(Debug)]
struct Placed {
    lifetime: Option<NodeLink>,
    /// The topic and the policy of a node that was made for this link.
    made: Option<(String, LifetimePolicy)>,
    until: TerminusExpiryPolicy,
}

impl Default for Placed {
    fn default() -> Self {
        Self {
            lifetime: None,
            made: None,
            until: TerminusExpiryPolicy::LinkDetach,
        }
    }
}

/// When a target expires. Of one on a node that was made for a link, the node's end hangs on that. Of any other one
/// there is nothing to expire but the state of deliveries that are not settled.
fn target_expiry(
    cx: &Context<'_>,
    attach: &Attach<'_>,
    target: &TargetTerminus<'_>,
    place: &Placed,
) -> (TerminusExpiryPolicy, u32) {
    if place.lifetime.is_some() {
        let most = TerminusExpiryPolicy::ConnectionClose;
        return match target.expiry_policy {
            TerminusExpiryPolicy::Never => (most, 0),
            policy => (policy, 0),
        };
    }
    // In a cluster only links that settle second are known at other nodes.
    let is_remembered =
        !cx.broker.is_in_cluster() || attach.rcv_settle_mode == ReceiverSettleMode::Second;
    let timeout_s = cx.policy.amqp.suspended_link_timeout_s;
    let timeout_s = if is_remembered { timeout_s } else { 0 };
    (TerminusExpiryPolicy::LinkDetach, timeout_s)
}

/// Whether a sender wants its target to keep unsettled deliveries.
fn keeps_unsettled(attach: &Attach<'_>) -> bool {
    let target = attach.target.as_ref().and_then(TargetArchetype::node);
    target.is_some_and(|target| target.durable == TerminusDurability::UnsettledState)
}

/// Removes the records of deliveries.
pub(super) fn forget(cx: &mut Context<'_>, forgotten: Forgotten) {
    for key in forgotten {
        cx.broker.forget_node(&key);
    }
}

/// Removes the records of deliveries of a link.
pub(super) fn forget_of(cx: &mut Context<'_>, claim: Option<Claim>, forgotten: Forgotten) {
    match claim {
        Some(claim) => claim.forget(cx, forgotten),
        None => forget(cx, forgotten),
    }
}

fn is_quic(cx: &Context<'_>, client: &Client) -> bool {
    let info = cx.net.info(client.id);
    info.is_some_and(|info| info.transport == TransportKind::Quic)
}

/// Notes that the attach of a link is not answered yet. A client that resumes with a ticket sends messages behind
/// it: they are no violation, and wait.
fn note_unanswered(cx: &Context<'_>, client: &mut Client, link: LinkId) {
    if !is_quic(cx, client) {
        return;
    }
    let targets = &client.targets;
    (client.unanswered).retain(|(known, _)| targets.contains_key(known));
    let mut sessions = client.sessions.iter();
    if let Some((_, lane)) = sessions.find(|(session, _)| *session == link.session) {
        client.unanswered.push((link, StreamId(lane.0)));
    }
}

/// Capabilities that a link offers its sender: delays, where the node is a queue, or each message names its own. A topic delivers at
/// once. A connection that offered them would offer them for topics, too.
fn offered(node: &Target, maximum_delay_s: u32) -> Multiple<'static> {
    let has_delays = match node {
        Target::Topic(topic) => topic.starts_with(QUEUE_LEVEL),
        Target::Anonymous => true,
        Target::BySubject | Target::Coordinator => false,
    };
    if has_delays && maximum_delay_s > 0 {
        Multiple::Slice(&[terminus::DELAYED_DELIVERY])
    } else {
        Multiple::None
    }
}

impl Door {
    pub(super) fn attach_target(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        attach: &Attach<'_>,
    ) -> Result<(), Refusal> {
        let Some(target) = &attach.target else {
            return Err(refusal(Condition::INVALID_FIELD, "the link has no target"));
        };
        let properties;
        let (mut address, mut capabilities) = (String::new(), Vec::new());
        let mut place = Placed::default();
        let (node, answer) = match target {
            TargetArchetype::Coordinator(_) => (Target::Coordinator, COORDINATOR),
            TargetArchetype::Target(target) => {
                let (node, kind) =
                    self.target_node(cx, client, (attach.name, target), &mut place)?;
                let mut dynamic_node_properties = None;
                if let Some((topic, policy)) = &place.made {
                    address.clone_from(topic);
                    properties = properties_of(topic, *policy);
                    if let Value::Map(map) = properties.value() {
                        dynamic_node_properties = Some(map);
                    }
                }
                let (expiry_policy, timeout) = target_expiry(cx, attach, target, &place);
                place.until = expiry_policy;
                capabilities.extend(kept_capabilities(&target.capabilities, kind, false));
                let answer = TargetTerminus {
                    address: if target.dynamic {
                        Some(Value::String(&address))
                    } else {
                        target.address
                    },
                    expiry_policy,
                    timeout,
                    dynamic: target.dynamic,
                    dynamic_node_properties,
                    capabilities: Multiple::Slice(&capabilities),
                    durable: if attach.rcv_settle_mode == ReceiverSettleMode::Second
                        && keeps_unsettled(attach)
                        && cx.broker.is_durable()
                    {
                        TerminusDurability::UnsettledState
                    } else {
                        TerminusDurability::None
                    },
                };
                (node, TargetArchetype::Target(answer))
            }
        };
        let attaching = Box::new(AttachingTarget {
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            source: attach.source.as_ref().and_then(encoded),
            target: answer.node().and_then(encoded),
            unsettled: Vec::new(),
            recover: attach.unsettled.is_some(),
            is_recorded: keeps_unsettled(attach) && cx.broker.is_durable(),
        });
        let target = TargetLink {
            name: attach.name.into(),
            node,
            exact: None,
            earlier: 0,
            claim: None,
            waiting: None,
            is_stolen: false,
            lifetime: place.lifetime,
            until: place.until,
        };
        // It is attached again.
        (client.lingering).retain(|link| *link.name != *attach.name);
        client.targets.insert(link, target);
        note_unanswered(cx, client, link);
        if self.takes_place(cx, client, link, attach.name) {
            if let Some(target) = client.targets.get_mut(link) {
                target.waiting = Some(attaching);
            }
        } else {
            self.finish_target(cx, client, link, attaching);
        }
        Ok(())
    }

    /// Takes up the known state of a link, and answers its attach once that state is kept.
    pub(super) fn finish_target(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        mut attaching: Box<AttachingTarget>,
    ) {
        let Some(target) = client.targets.get(&link) else {
            return;
        };
        let is_exact = attaching.rcv_settle_mode == ReceiverSettleMode::Second
            && target.node != Target::Coordinator;
        if is_exact {
            let Some(claimed) = self.claim_target(cx, client, link, attaching) else {
                return;
            };
            attaching = claimed;
        }
        let Some(target) = client.targets.get(&link) else {
            return;
        };
        let now_ms = cx.now_ms;
        let key = client.link_key(&target.name);
        let (mut unsettled, mut token) = self.service.registry.resume(&key, now_ms);
        let exact = is_exact.then(|| {
            let links = &self.service.registry.exact;
            let recorded = match target.claim {
                Some(_) => Recorded::InSession,
                None if attaching.is_recorded => Recorded::OnNode,
                None => Recorded::Nowhere,
            };
            let (link, deliveries, kept_by, forgotten) = links.attach(key, recorded, now_ms);
            forget(cx, forgotten);
            if !attaching.recover {
                forget_of(cx, target.claim, link.settled_all());
            }
            // Shards of a cluster's node count their own appends. The last one of a claim is behind all before.
            token = match target.claim {
                Some(_) => cx.broker.token(),
                None => token.max(kept_by),
            };
            unsettled.extend(deliveries);
            link
        });
        if attaching.recover {
            // Otherwise the client has nothing left of it.
            attaching.unsettled = unsettled;
        }
        // It weighs more now.
        if let Some(mut target) = client.targets.remove(link) {
            target.earlier = exact.as_ref().map_or(0, ExactLink::unsettled) as usize;
            target.exact = exact;
            client.targets.insert(link, target);
        }
        // The answer tells the outcomes of earlier deliveries.
        let promise = if attaching.unsettled.is_empty() {
            Promise::on(cx, client.listener)
        } else {
            Promise::again(cx)
        };
        let promise = promise.at(token);
        let attached = Acknowledgement::AttachedTarget(link, attaching);
        self.acknowledge(cx, client, promise, attached);
    }

    /// Answers the attach of a target.
    pub(super) fn answer_target(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        attaching: &AttachingTarget,
    ) {
        client.unanswered.retain(|(known, _)| *known != link);
        let Some(target) = client.targets.get(&link) else {
            return; // it is gone
        };
        let source = attaching.source.as_ref().map(Encoded::value);
        let node = attaching.target.as_ref().map(Encoded::value);
        let options = AttachOptions {
            snd_settle_mode: attaching.snd_settle_mode,
            rcv_settle_mode: attaching.rcv_settle_mode,
            source: source.and_then(|source| Source::from_value(source).ok()),
            target: match node {
                Some(node) => TargetTerminus::from_value(node)
                    .ok()
                    .map(TargetArchetype::Target),
                None => Some(COORDINATOR),
            },
            unsettled: &attaching.unsettled,
            recover: attaching.recover,
            offered_capabilities: offered(&target.node, cx.policy.amqp.queue_maximum_delay_s),
            ..AttachOptions::default()
        };
        if let Err(error) = (client.engine).accept_attach(link, &options, &mut self.out) {
            let (name, node) = (target.name.clone(), target.node.clone());
            let refusal = error.to_string();
            if let Some(claim) = target.claim {
                self.release_claim(cx, claim, true);
            }
            client.targets.remove(link);
            self.leaves_place(cx, client, link, &name);
            let refusal = (Condition::INTERNAL_ERROR, refusal);
            return self.refuse_attach(cx, client, link, (&name, node.topic()), &refusal);
        }
        self.renew_credit(cx, client, link);
        let announced = security::initial_credit(cx.policy);
        if is_quic(cx, client) && client.engine.credit(link) < announced {
            // A client that resumes has counted on it.
            let (engine, out) = (&mut client.engine, &mut self.out);
            let _ = engine.set_credit(link, announced, false, false, out);
        }
    }

    fn target_node(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        (name, target): (&str, &TargetTerminus<'_>),
        place: &mut Placed,
    ) -> Result<(Target, Option<Kind>), Refusal> {
        let kind = kind_of(&target.capabilities);
        let link = (name, false);
        if target.dynamic {
            let wish = (kind, target.lifetime_policy());
            let (topic, policy, lifetime) = self.make_node(cx, client, link, wish)?;
            place.lifetime = Some(lifetime);
            let node = Target::Topic(topic.as_str().into());
            place.made = Some((topic, policy));
            return Ok((node, Some(kind.unwrap_or(Kind::Topic))));
        }
        let Some(value) = &target.address else {
            return Ok((Target::Anonymous, None));
        };
        let text = value.as_text().ok_or_else(|| {
            refusal(
                Condition::INVALID_FIELD,
                "the target's address is not a string",
            )
        })?;
        let node =
            Node::parse(text, kind, End::Target, &cx.policy.amqp).map_err(refused_address)?;
        if let Some(topic) = node.topic()
            && !may_publish(cx, client, &topic, MessageKind::UNKNOWN)
        {
            return Err(not_to_publish(cx, client, &topic, MessageKind::UNKNOWN));
        }
        place.lifetime = self.join_node(cx, client, link, &node)?;
        if let Node::Queue(name) = &node {
            self.find_queue(cx, name, client.user())?;
            if !self.service.registry.takes_its_topic(name) {
                let detail = "the queue takes what its filter matches, and nothing else";
                return Err(refusal(Condition::PRECONDITION_FAILED, detail));
            }
        }
        let kind = match node {
            Node::Queue(_) => Kind::Queue,
            Node::Topic(_) | Node::BySubject => Kind::Topic,
        };
        let target = match node.topic() {
            Some(topic) => Target::Topic(topic.into()),
            None => Target::BySubject,
        };
        Ok((target, Some(kind)))
    }
}
