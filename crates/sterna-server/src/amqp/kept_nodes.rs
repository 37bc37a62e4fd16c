//! Nodes of a cluster that end with their last message, over the end of their process.
//!
//! A queue of that kind has a *keeper*: a session of the cluster that is away, and a member of the queue's shared subscription. When
//! the process of the node stops or dies, another one takes the keeper over. It has the node from then on. The node's name
//! says how long that lasts ([`policy_of`]).

use sterna_amqp::messaging::LifetimePolicy;
use sterna_broker::{
    Close, NEVER_EXPIRES_S, OpenSession, Opened, Qos, SessionKey, SessionName, SubscribeOptions,
};

use super::nodes::POLICIES;
use super::{Door, KEEPER, consumer_id};
use crate::context::Context;
use crate::session::amqp::{DYNAMIC, QUEUE_LEVEL, is_dynamic, topic_of_queue};
use crate::session::{QUEUE_PREFIX, anchor_of};

/// Follows a queue's anchor in the client identifier of its keeper.
const KEPT: &str = "/kept";

/// The two bits of a node's name that say its policy, which are the first of its first digit.
pub(super) fn policy_bits(policy: LifetimePolicy) -> u8 {
    let number = POLICIES.iter().position(|one| *one == policy);
    (number.unwrap_or_default() as u8) << 6
}

/// How long the node of a topic lasts, by its name; `None` where the topic is no such node's.
fn policy_of(topic: &str) -> Option<LifetimePolicy> {
    let name = is_dynamic(topic).then_some(topic)?;
    let name = name.strip_prefix(QUEUE_LEVEL).unwrap_or(name);
    let digit = name.strip_prefix(DYNAMIC)?.chars().next()?.to_digit(16)?;
    POLICIES.get(digit as usize >> 2).copied()
}

fn keeper_of(name: &str) -> SessionName {
    anchor_of(&format!("{name}{KEPT}"))
}

/// The queue that a session is the keeper of.
fn kept_by(session: &SessionName) -> Option<&str> {
    let name = session
        .id()
        .strip_prefix(QUEUE_PREFIX)?
        .strip_suffix(KEPT)?;
    is_dynamic(name).then_some(name)
}

impl Door {
    /// Has the cluster keep a queue that was made for a link.
    pub(super) fn keep_node(&self, cx: &mut Context<'_>, name: &str) {
        let now_ms = cx.now_ms;
        let opened = cx.broker.open(
            now_ms,
            OpenSession {
                name: keeper_of(name),
                clean_start: false,
                expiry_s: NEVER_EXPIRES_S,
                consumer: consumer_id(KEEPER),
                will: None,
                on_demand: true,
                selector: None,
            },
        );
        match opened {
            Ok(Opened::Ready { session, .. }) => self.keeper_opened(cx, session),
            // It is heard of when the cluster has it.
            Ok(Opened::Pending { .. }) => {}
            Err(error) => {
                tracing::warn!(queue = name, ?error, "the queue ends with its node");
            }
        }
    }

    /// The cluster has a keeper, which is away from now on.
    pub(super) fn keeper_opened(&self, cx: &mut Context<'_>, session: SessionKey) {
        let now_ms = cx.now_ms;
        let own = cx.broker.name(session).cloned();
        let name = own.as_ref().and_then(kept_by);
        // The node may have ended.
        let name = name.filter(|name| self.service.registry.has_node(&topic_of_queue(name)));
        let filter = name.and_then(|name| self.service.registry.shared_subscription(name));
        let options = SubscribeOptions {
            qos: Qos::ExactlyOnce,
            ..SubscribeOptions::default()
        };
        let is_kept = filter
            .is_some_and(|filter| (cx.broker.subscribe(now_ms, session, &filter, options)).is_ok());
        let close = Close {
            expiry_s: (!is_kept).then_some(0),
            ..Close::NORMAL
        };
        cx.broker.close(now_ms, session, close);
    }

    /// A session of another process goes on here: if it is a keeper, its node does, too.
    pub(crate) fn session_adopted(&self, cx: &mut Context<'_>, session: &SessionName) {
        if let Some(name) = kept_by(session)
            && let topic = topic_of_queue(name)
            && let Some(policy) = policy_of(&topic)
        {
            self.take_node_over(cx, &topic, policy);
        }
    }

    /// Ends the keeper of a queue, where it has one.
    pub(super) fn end_keeper(cx: &mut Context<'_>, name: &str) {
        let now_ms = cx.now_ms;
        cx.broker.end_session_of(now_ms, &keeper_of(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_node_says_how_long_it_lasts() {
        for policy in POLICIES {
            let bits = policy_bits(policy);
            for low in [0, 0x3f] {
                let topic = format!("{DYNAMIC}{:02x}{}", bits | low, "0".repeat(30));
                assert_eq!(policy_of(&topic), Some(policy), "{topic}");
                assert_eq!(policy_of(&topic_of_queue(&topic)), Some(policy));
                assert_eq!(kept_by(&keeper_of(&topic)), Some(&*topic));
                assert_eq!(kept_by(&anchor_of(&topic)), None);
            }
        }
        assert_eq!(policy_of("amqp/dynamic/f"), None);
        assert_eq!(kept_by(&keeper_of("orders")), None);
    }
}
