//! The terms on which a client's receiving link is attached: what it asks for, and what it is answered.

use std::sync::Arc;

use bytes::BytesMut;
use sterna_amqp::Condition;
use sterna_amqp::messaging::{
    DistributionMode, Source, TargetArchetype, TerminusDurability, TerminusExpiryPolicy, capability,
};
use sterna_amqp::performatives::{Attach, ReceiverSettleMode, SenderSettleMode};
use sterna_amqp::types::{Composite as _, Encoded, Multiple, Value};
use sterna_broker::SessionName;
use sterna_mqtt::topic::is_shared;

use super::Door;
use super::address::{End, Kind, Node, share_name};
use super::attach::{
    Refusal, durable_name, encoded, kind_of, not_to_subscribe, passing_name, refusal,
    refused_address, refused_field,
};
use super::client::{Client, Expiry};
use super::nodes::{NodeLink, dynamic_topic_of, properties_of};
use super::recovery::Told;
use super::selection::Selection;
use crate::context::Context;
use crate::session::amqp::{QUEUE_LEVEL, Terminus};

/// Sources are answered with the outcomes that they know.
const OUTCOMES: [&str; 4] = [
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
];

/// A source that is to be attached.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(super) snd_settle_mode: SenderSettleMode,
    pub(super) rcv_settle_mode: ReceiverSettleMode,
    /// `None` for whatever the link was attached with before.
    pub(super) terminus: Option<Terminus>,
    pub(super) target: Option<Encoded>,
    pub(super) selection: Option<Arc<Selection>>,
    /// Whether a look at a queue is all that it wants.
    pub(super) browses: bool,
    /// The name of its session.
    pub(super) session: SessionName,
    pub(super) expiry: Expiry,
    /// Deliveries that the client has not settled; `None` where it tells nothing of them.
    pub(super) told: Option<Vec<Told>>,
    /// Whether the client has more unsettled deliveries than it tells.
    pub(super) is_incomplete: bool,
    /// The append by which its session was opened; 0 for none.
    pub(super) token: u64,
    /// Counts it as a link of its node, where that was made for a link.
    pub(super) lifetime: Option<NodeLink>,
}

/// The capabilities of a terminus that do something: those that fit the kind of its node, and whether it is shared.
pub(super) fn kept_capabilities<'a>(
    asked: &Multiple<'a>,
    kind: Option<Kind>,
    is_shared: bool,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let names: &[&str] = match kind {
        Some(Kind::Queue) => &[capability::QUEUE, capability::TEMPORARY_QUEUE],
        Some(Kind::Topic) if is_shared => &[
            capability::TOPIC,
            capability::TEMPORARY_TOPIC,
            capability::SHARED,
            capability::GLOBAL,
        ],
        Some(Kind::Topic) => &[capability::TOPIC, capability::TEMPORARY_TOPIC],
        None => &[],
    };
    asked.iter().filter(move |name| names.contains(name))
}

impl Door {
    /// The checked terms of an attach.
    pub(super) fn wanted(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        attach: &Attach<'_>,
    ) -> Result<Wanted, Refusal> {
        let mut wanted = Wanted {
            snd_settle_mode: attach.snd_settle_mode,
            rcv_settle_mode: attach.rcv_settle_mode,
            terminus: None,
            target: (attach.target.as_ref())
                .and_then(TargetArchetype::node)
                .and_then(encoded),
            selection: None,
            browses: false,
            session: durable_name(client, attach.name),
            expiry: Expiry {
                policy: TerminusExpiryPolicy::Never,
                timeout_s: 0,
            },
            is_incomplete: attach.incomplete_unsettled,
            told: (attach.unsettled)
                .map(|unsettled| unsettled.iter().filter_map(Told::read).collect()),
            token: 0,
            lifetime: None,
        };
        let Some(source) = &attach.source else {
            return Ok(wanted);
        };
        let config = &cx.policy.amqp;
        let (selection, applied) = Selection::read(source, client.origin, config)?;
        wanted.selection = selection.map(Arc::new);
        let link = (attach.name, true);
        let kind = kind_of(&source.capabilities);
        let mut made = None;
        let node = if source.dynamic {
            let wish = (kind, source.lifetime_policy());
            let (topic, policy, lifetime) = self.make_node(cx, client, link, wish)?;
            wanted.lifetime = Some(lifetime);
            let node = (topic.strip_prefix(QUEUE_LEVEL)).map_or_else(
                || Node::Topic(topic.clone()),
                |name| Node::Queue(name.into()),
            );
            made = Some((topic, policy));
            node
        } else if let Some(text) = source.address() {
            let node = Node::parse(text, kind, End::Source, config).map_err(refused_address)?;
            wanted.lifetime = self.join_node(cx, client, link, &node)?;
            node
        } else {
            let detail = "the source has no address";
            return Err(refusal(Condition::INVALID_FIELD, detail));
        };
        wanted.browses = matches!(node, Node::Queue(_))
            && source.distribution_mode == Some(DistributionMode::Copy);
        let most_s = config.maximum_source_timeout_s;
        let most_s = if dynamic_topic_of(&node).is_some() {
            0
        } else {
            most_s
        };
        wanted.expiry = match source.expiry_policy {
            _ if wanted.browses => Expiry {
                policy: TerminusExpiryPolicy::LinkDetach,
                timeout_s: 0,
            },
            TerminusExpiryPolicy::Never if most_s < u32::MAX => Expiry {
                policy: TerminusExpiryPolicy::ConnectionClose,
                timeout_s: most_s,
            },
            policy => Expiry {
                policy,
                timeout_s: source.timeout.min(most_s),
            },
        };
        if !wanted.expiry.outlives_connection() {
            wanted.session = passing_name(client, attach.name);
        }
        let topics = node.topic().unwrap_or_default();
        let topics = match sterna_mqtt::topic::Filter::parse(&topics) {
            Ok(parsed) => parsed.filter,
            Err(error) => return Err(refusal(Condition::INVALID_FIELD, error.detail())),
        };
        // Nobody else knows the topic of a dynamic node.
        let is_own = (wanted.lifetime.as_ref()).is_some_and(|lifetime| lifetime.is_of(client));
        if !is_own && !cx.policy.rules.may_subscribe(client.subject(cx), topics) {
            return Err(not_to_subscribe(cx, client, topics));
        }
        let filter = if let Node::Queue(name) = &node {
            self.find_queue(cx, name, client.user())?;
            self.service.registry.shared_subscription(name)
        } else {
            subscription(&source.capabilities, client, &node, attach.name)
        };
        let filter = filter.ok_or_else(|| refusal(Condition::NOT_FOUND, "the queue is gone"))?;
        let map = applied.as_ref().map(Encoded::value);
        let properties = made.as_ref();
        let properties = properties.map(|(topic, policy)| properties_of(topic, *policy));
        let (node_kind, is_shared) = match node {
            Node::Queue(_) => (Kind::Queue, false),
            Node::Topic(_) | Node::BySubject => (Kind::Topic, is_shared(&filter)),
        };
        let capabilities: Vec<&str> =
            kept_capabilities(&source.capabilities, Some(node_kind), is_shared).collect();
        let answer = Source {
            address: match &made {
                Some((topic, _)) => Some(Value::String(topic)),
                None => source.address,
            },
            dynamic: made.is_some(),
            dynamic_node_properties: match properties.as_ref().map(Encoded::value) {
                Some(Value::Map(map)) => Some(map),
                _ => None,
            },
            default_outcome: source.default_outcome.clone(),
            capabilities: Multiple::Slice(&capabilities),
            expiry_policy: wanted.expiry.policy,
            timeout: wanted.expiry.timeout_s,
            filter: match map {
                Some(Value::Map(map)) => Some(map),
                _ => None,
            },
            outcomes: Multiple::Slice(&OUTCOMES),
            distribution_mode: Some(match node {
                Node::Queue(_) if !wanted.browses => DistributionMode::Move,
                _ => DistributionMode::Copy,
            }),
            // Unsettled deliveries are sent again after a restart, without the states that the client has told.
            durable: if wanted.expiry.outlives_connection() && cx.broker.is_durable() {
                TerminusDurability::Configuration
            } else {
                TerminusDurability::None
            },
        };
        let mut out = BytesMut::new();
        answer.encode(&mut out);
        wanted.terminus = Some(Terminus {
            source: Encoded::from_bytes(out.freeze()).map_err(refused_field)?,
            filter: filter.into(),
        });
        Ok(wanted)
    }
}

/// Whether deliveries are named by their places in the log. The receiver must settle second, and the source must
/// outlive its connection.
pub(super) fn names_places(wanted: &Wanted) -> bool {
    wanted.rcv_settle_mode == ReceiverSettleMode::Second && wanted.expiry.outlives_connection()
}

/// The subscription behind a source that is no queue.
fn subscription(
    capabilities: &Multiple<'_>,
    client: &Client,
    node: &Node,
    link_name: &str,
) -> Option<String> {
    let topics = node.topic()?;
    if !capabilities.contains(capability::SHARED) || is_shared(&topics) {
        return Some(topics);
    }
    // JMS clients tell the links of one shared subscription apart by the text behind `|`.
    let name = link_name.split('|').next().unwrap_or(link_name);
    let name = if capabilities.contains(capability::GLOBAL) {
        share_name(name)
    } else {
        let name = share_name(&format!("{}.{name}", client.container));
        match client.user() {
            // No other name has this mark: another user's container of the same name is another one.
            Some(user) => format!("{}%:{name}", share_name(user)),
            None => name,
        }
    };
    Some(format!("$share/{name}/{topics}"))
}
